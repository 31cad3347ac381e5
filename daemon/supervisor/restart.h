/* restart.h - when a child that went down starts again.
 *
 * The delay doubles with each restart up to a cap; a random part of up to half
 * of it is taken off, so that children that fell together do not rise together.
 * A child that was ready for `reset_us` has its credit back. More than `budget`
 * restarts within `window_us` are too many.
 *
 * Source  s6-supervise.c (a pause between starts, credit by readiness);
 *         Erlang's supervisor (at most so many restarts in so much time)
 */
#ifndef DAEMON_SUPERVISOR_RESTART_H
#define DAEMON_SUPERVISOR_RESTART_H

#include <stddef.h>
#include <stdint.h>

enum { RESTART_OVER_BUDGET = 1, RESTART_MAX_BUDGET = 1000 };

struct restart_limits {
    uint64_t delay_us, delay_max_us, reset_us, window_us;
    size_t budget;              /* at most RESTART_MAX_BUDGET */
};

struct restart {
    uint64_t times[RESTART_MAX_BUDGET];     /* of the restarts since the last reset, oldest first */
    size_t n_times;
    unsigned n_doubled;
};

/* The child is down at now_us; it had been ready for ready_us (0: never).
 * 0 and how long to wait, or RESTART_OVER_BUDGET. `random` is any number. */
int restart_next(struct restart *r, const struct restart_limits *limits, uint64_t now_us,
                 uint64_t ready_us, uint64_t random, uint64_t *ret_delay_us);

#endif
