#include "daemon/supervisor/restart.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

static const struct restart_limits limits = {
    .delay_us = 100, .delay_max_us = 1000, .reset_us = 5000, .window_us = 1000000, .budget = 6,
};

Test(restart, delays_double_up_to_the_cap)
{
    static const uint64_t want[] = { 100, 200, 400, 800, 1000, 1000 };
    struct restart r = { 0 };
    uint64_t delay;

    for (size_t i = 0; i < 6; i++) {
        cr_assert(zero(int, restart_next(&r, &limits, i, 0, 0, &delay)));
        cr_expect(eq(u64, delay, want[i]));
    }
}

Test(restart, jitter_takes_off_at_most_half)
{
    for (uint64_t random = 0; random < 500; random++) {
        struct restart r = { 0 };
        uint64_t delay;

        cr_assert(zero(int, restart_next(&r, &limits, 0, 0, random, &delay)));
        cr_expect(delay >= 50 && delay <= 100);
    }
}

Test(restart, one_more_than_the_budget_is_too_many)
{
    struct restart r = { 0 };
    uint64_t delay;

    for (size_t i = 0; i < limits.budget; i++)
        cr_assert(zero(int, restart_next(&r, &limits, i, 0, 0, &delay)));
    cr_expect(eq(int, restart_next(&r, &limits, 6, 0, 0, &delay), RESTART_OVER_BUDGET));
}

Test(restart, what_lies_before_the_window_does_not_count)
{
    struct restart r = { 0 };
    uint64_t delay;

    for (size_t i = 0; i < 50; i++)
        cr_assert(zero(int, restart_next(&r, &limits, i * 200000, 0, 0, &delay)));
    cr_expect(eq(u64, delay, 1000));
}

Test(restart, credit_comes_back_only_after_a_long_readiness)
{
    struct restart r = { 0 };
    uint64_t delay;

    for (size_t i = 0; i < 4; i++)
        cr_assert(zero(int, restart_next(&r, &limits, i, 4999, 0, &delay)));
    cr_expect(eq(u64, delay, 800));
    cr_assert(zero(int, restart_next(&r, &limits, 10, 5000, 0, &delay)));
    cr_expect(eq(u64, delay, 100));
    cr_expect(eq(sz, r.n_times, 1));
}

Test(restart, a_budget_of_nothing_allows_nothing)
{
    struct restart_limits none = limits;
    struct restart r = { 0 };
    uint64_t delay;

    none.budget = 0;
    cr_expect(eq(int, restart_next(&r, &none, 0, 0, 0, &delay), RESTART_OVER_BUDGET));
}
