/* What a worker says of its speed, at times that the test makes. */
#include "daemon/worker/rates.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

enum { S = 1000000 };

Test(worker_rates, a_steady_flow_is_its_rate)
{
    struct rates r = { 0 };
    struct rates_now now = { 0 };

    for (uint64_t t = 0; t <= 60; t++)
        now = rates_take(&r, t * S, t * 100, t * 7);
    cr_expect(eq(dbl, now.prompt_per_s, 100));
    cr_expect(eq(dbl, now.generated_per_s, 7));
    cr_expect(zero(u64, now.wait_max_ms));
}

Test(worker_rates, what_is_older_than_the_window_is_forgotten)
{
    struct rates r = { 0 };
    struct rates_now now;

    rates_take(&r, 5 * S, 0, 0);
    rates_admitted(&r, 3 * S);
    now = rates_take(&r, 6 * S, 500, 20);
    cr_expect(eq(dbl, now.prompt_per_s, 500));
    cr_expect(eq(dbl, now.generated_per_s, 20));
    cr_expect(eq(u64, now.wait_max_ms, 3000));
    now = rates_take(&r, 10 * S, 500, 20);
    cr_expect(eq(dbl, now.prompt_per_s, 100));
    cr_expect(eq(dbl, now.generated_per_s, 4));
    for (uint64_t t = 11; t <= 17; t++)
        now = rates_take(&r, t * S, 500, 20);
    cr_expect(zero(dbl, now.prompt_per_s));
    cr_expect(zero(dbl, now.generated_per_s));
    cr_expect(zero(u64, now.wait_ms));
    cr_expect(zero(u64, now.wait_max_ms));
}

Test(worker_rates, beats_close_together_fill_no_more_than_the_window)
{
    struct rates r = { 0 };
    struct rates_now now = { 0 };

    for (uint64_t t = 0; t <= 3000; t++) {      /* every 20 ms */
        if (t % 10 == 0)
            rates_admitted(&r, t == 2600 ? 90000 : 10000);
        now = rates_take(&r, t * 20000, t * 2, t);
        cr_assert(le(sz, r.n, (size_t)RATES_SAMPLES));
    }
    cr_expect(eq(dbl, now.prompt_per_s, 100));
    cr_expect(eq(dbl, now.generated_per_s, 50));
    cr_expect(ge(u64, now.wait_ms, 10));
    cr_expect(le(u64, now.wait_ms, 12));
    cr_expect(eq(u64, now.wait_max_ms, 90));
}

Test(worker_rates, rare_beats_show_what_came_since_the_last)
{
    struct rates r = { 0 };
    struct rates_now now;

    rates_take(&r, 60 * S, 0, 0);
    rates_admitted(&r, 1 * S);
    rates_admitted(&r, 2 * S);
    now = rates_take(&r, 120 * S, 600, 6000);
    cr_expect(eq(dbl, now.prompt_per_s, 10));
    cr_expect(eq(dbl, now.generated_per_s, 100));
    cr_expect(eq(u64, now.wait_ms, 1500));
    cr_expect(eq(u64, now.wait_max_ms, 2000));
    now = rates_take(&r, 180 * S, 600, 6000);
    cr_expect(zero(dbl, now.generated_per_s));
    cr_expect(zero(u64, now.wait_max_ms));
}
