#include "gen/cpu/crew.h"

#include <math.h>

/* n threads that are not disturbed do as much as n^GAIN: they share memory, and fetch from one another's caches. */
#define GAIN 0.8
/* Less of a core than this is not worth a trial: what a system does besides takes some percent. */
#define LEAST_AWAY 0.125
/* Of what fewer threads would do undisturbed: below, they are worth a trial. */
#define LEAST_GAIN 0.95

enum { COST_SHARE = 20 };       /* a trial costs no more than one of so many parts of all time */

void crew_init(struct crew *c, uint32_t most)
{
    *c = (struct crew){ .most = most, .n = most, .home = most, .step = 1, .drop = 1, .hold_us = CREW_HOLD_US };
}

/* What n threads do that compute for so much of a time, in units of what one does. */
static double rate(const struct crew *c, uint64_t computed_us, uint64_t took_us)
{
    return pow(c->n, GAIN - 1) * (double)computed_us / (double)took_us;
}

static void start_window(struct crew *c) { c->window = (struct crew_pass){ 0 }; }

static void try_with(struct crew *c, uint32_t n)
{
    c->settle_us = n < c->home ? CREW_SETTLE_US : 0;
    c->n = n;
    c->bad = (struct crew_pass){ 0 };
    start_window(c);
}

/* Without those who share their cores. One such is away half of the time or more, 0.6 of it as a guess; where too few went, the next
 * trial goes further, and what is too many comes back. */
static uint32_t fewer(const struct crew *c)
{
    const uint64_t took = c->window.took_us, guess = (c->window.away_us * 5 / 3 + took / 2) / took;
    const uint64_t lost = guess > c->drop ? guess : c->drop;

    return lost >= c->n ? 1 : c->n - (uint32_t)lost;
}

/* Whether in this window fewer threads would have done more, and all for lack of cores. */
static bool is_bad(const struct crew *c)
{
    const struct crew_pass *w = &c->window;

    return c->n > 1 && (double)w->away_us >= LEAST_AWAY * (double)w->took_us &&
           rate(c, w->computed_us, w->took_us) < LEAST_GAIN * pow(fewer(c), GAIN);
}

/* It takes two such windows in a row, for a delay that happens once falls into one; a pass as long as some windows speaks for itself. */
static bool look_bad(struct crew *c)
{
    const struct crew_pass *w = &c->window, *b = &c->bad;

    if (b->took_us || w->took_us >= CREW_LONG_US) {
        c->home_rate = rate(c, b->computed_us + w->computed_us, b->took_us + w->took_us);
        try_with(c, fewer(c));
        return true;
    }
    c->bad = *w;
    return false;
}

static void look_home(struct crew *c, uint64_t now_us)
{
    const struct crew_pass *w = &c->window;

    if (w->took_us >= CREW_WINDOW_US) {
        const double r = rate(c, w->computed_us, w->took_us);

        c->home_rate = c->home_rate > 0 ? (c->home_rate + r) / 2 : r;
        if (is_bad(c) && now_us >= c->down_at_us) {
            if (look_bad(c))
                return;
        } else {
            c->bad = (struct crew_pass){ 0 };
            if (now_us >= c->down_at_us)
                c->drop = 1;
        }
        start_window(c);
    }
    if (c->home_rate > 0 && c->n < c->most && now_us >= c->up_at_us)
        try_with(c, c->most - c->n < c->step ? c->most : c->n + c->step);
}

static void stay(struct crew *c, double r, uint64_t now_us)
{
    const bool up = c->n > c->home;

    c->step = up ? 2 * c->step : 1;
    c->drop = 1;
    c->hold_us = CREW_HOLD_US;
    c->up_at_us = up ? now_us : now_us + CREW_HOLD_US;
    c->home = c->n;
    c->home_rate = r;
    start_window(c);
}

/* What a trial has to reach. More threads should bring half of what they would bring undisturbed, so that luck is not enough. */
static double needed(const struct crew *c)
{
    return c->home_rate * (c->n > c->home ? (1 + pow((double)c->n / c->home, GAIN)) / 2 : 1);
}

static void go_home(struct crew *c, double r, uint64_t now_us)
{
    if (c->n > c->home) {
        const uint64_t hold = (uint64_t)(fmax(0, 1 - r / needed(c)) * COST_SHARE * (double)c->window.took_us);

        c->up_at_us = now_us + (hold > c->hold_us ? hold : c->hold_us);
        c->hold_us = c->hold_us < CREW_MOST_HOLD_US / 2 ? 2 * c->hold_us : CREW_MOST_HOLD_US;
        c->step = 1;
    } else {
        c->down_at_us = now_us + (c->n == 1 ? CREW_MOST_HOLD_US : CREW_HOLD_US);
        c->drop = c->n == 1 ? 1 : 2 * (c->home - c->n);
    }
    c->n = c->home;
    start_window(c);
}

/* More threads fail soon, for they were all right if they are to stay; fewer may still have to share their cores, in turns. */
static void look_away(struct crew *c, uint64_t now_us)
{
    const struct crew_pass *w = &c->window;
    const bool up = c->n > c->home;
    const uint64_t least = up ? CREW_SHORT_US : CREW_TURNS_US, enough = up ? CREW_WINDOW_US : CREW_TURNS_US;
    const uint64_t left = w->took_us < least ? least - w->took_us : 0;
    const double r = rate(c, w->computed_us, w->took_us);
    /* Were the rest perfect. */
    const bool hopeless = rate(c, w->computed_us + c->n * left, w->took_us + left) <= c->home_rate;

    if (w->took_us >= enough && r > needed(c))
        stay(c, r, now_us);
    else if (w->took_us >= enough || hopeless)
        go_home(c, r, now_us);
}

uint32_t crew_note(struct crew *c, const struct crew_pass *pass, uint64_t now_us)
{
    if (c->most == 1 || pass->took_us == 0)
        return c->n;
    if (c->settle_us && pass->took_us < CREW_WINDOW_US) {
        c->settle_us = pass->took_us < c->settle_us ? c->settle_us - pass->took_us : 0;
        return c->n;
    }
    c->settle_us = 0;
    c->window.took_us += pass->took_us;
    c->window.computed_us += pass->computed_us;
    c->window.away_us += pass->away_us;
    if (c->n == c->home)
        look_home(c, now_us);
    else
        look_away(c, now_us);
    return c->n;
}
