#include "daemon/supervisor/restart.h"

#include <string.h>

/* Drops what lies before the window. */
static void forget_old(struct restart *r, uint64_t now_us, uint64_t window_us)
{
    size_t old = 0;

    while (old < r->n_times && now_us - r->times[old] > window_us)
        old++;
    memmove(r->times, r->times + old, (r->n_times - old) * sizeof r->times[0]);
    r->n_times -= old;
}

int restart_next(struct restart *r, const struct restart_limits *limits, uint64_t now_us,
                 uint64_t ready_us, uint64_t random, uint64_t *ret_delay_us)
{
    uint64_t delay = limits->delay_us;

    if (ready_us >= limits->reset_us)
        r->n_times = r->n_doubled = 0;
    forget_old(r, now_us, limits->window_us);
    if (r->n_times >= limits->budget)
        return RESTART_OVER_BUDGET;
    r->times[r->n_times++] = now_us;
    for (unsigned i = 0; i < r->n_doubled && delay < limits->delay_max_us; i++)
        delay *= 2;
    if (delay > limits->delay_max_us)
        delay = limits->delay_max_us;
    else if (delay < limits->delay_max_us)
        r->n_doubled++;
    *ret_delay_us = delay - random % (delay / 2 + 1);
    return 0;
}
