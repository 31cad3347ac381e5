#include "gen/budget.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

/* A machine on which a pass takes so long. */
static uint64_t pass_us(uint32_t n_generated, uint32_t n_prompt, double row_us)
{
    return (uint64_t)(6000 + 100 * n_generated + (n_prompt ? 300 + n_prompt * row_us : 0));
}

static uint32_t settle(struct budget *b, uint32_t n_generated, double row_us)
{
    uint32_t rows = 0;

    for (int i = 0; i < 100; i++) {
        uint32_t n = budget_rows(b, n_generated);

        budget_took(b, n_generated, n, pass_us(n_generated, n, row_us));
        rows = n ? n : rows;
    }
    return rows;
}

Test(budget, a_pass_takes_no_longer_than_it_may_and_not_much_less)
{
    struct budget b;

    budget_init(&b, 512);
    for (double row_us = 20; row_us < 500; row_us *= 2) {
        double gap = (double)pass_us(8, 0, 0), us = (double)pass_us(8, settle(&b, 8, row_us), row_us);

        cr_expect(le(dbl, us, BUDGET_STRETCH * gap + row_us));
        cr_expect(ge(dbl, us, BUDGET_STRETCH * gap * (row_us < 300 ? 0.8 : 0.6)));   /* rows come in pages */
    }
}

Test(budget, a_gap_that_nobody_sees_is_not_kept_shorter)
{
    struct budget b;

    budget_init(&b, 512);
    for (int i = 0; i < 100; i++) {
        uint32_t n = budget_rows(&b, 1);

        budget_took(&b, 1, n, 1000 + n * 100);
    }
    cr_expect(ge(dbl, b.rows, 128));
    cr_expect(le(dbl, b.rows, 141));
}

Test(budget, dear_rows_are_few_but_never_none_twice)
{
    struct budget b;
    uint32_t last = 1;

    budget_init(&b, 512);
    cr_expect(eq(u32, settle(&b, 8, 2000), 4));
    cr_expect(eq(u32, settle(&b, 8, 1e5), 1));
    for (int i = 0; i < 1000; i++) {
        uint32_t n = budget_rows(&b, 8);

        cr_expect(n || last);
        last = n;
        budget_took(&b, 8, n, pass_us(8, n, 1e5));
    }
    cr_expect(ge(u32, settle(&b, 8, 10), 256));
}

Test(budget, a_page_is_not_divided_where_the_first_row_is_what_costs)
{
    struct budget b;
    int n_small = 0, n = 0;

    budget_init(&b, 512);
    for (int i = 0; i < 1000; i++) {
        uint32_t rows = budget_rows(&b, 8);

        budget_took(&b, 8, rows, 8000 + (rows ? 20000 + 50 * rows : 0));
        n += rows > 0;
        n_small += rows > 0 && rows < 16;
    }
    cr_expect(le(int, n_small, n / 10));
}

Test(budget, where_nobody_generates_everything_is_allowed)
{
    struct budget b;

    budget_init(&b, 512);
    settle(&b, 8, 1e5);
    cr_expect(eq(u32, budget_rows(&b, 0), 512));
}

Test(budget, a_pass_without_prompts_is_timed_now_and_then)
{
    struct budget b;
    int n_alone = 0;

    budget_init(&b, 512);
    for (int i = 0; i < 10 * BUDGET_REFRESH; i++) {
        uint32_t n = budget_rows(&b, 3);

        n_alone += n == 0;
        budget_took(&b, 3, n, pass_us(3, n, 10));
    }
    cr_expect(ge(int, n_alone, 9));
    cr_expect(le(int, n_alone, 11));
}

Test(budget, one_slow_pass_changes_little)
{
    struct budget b;
    uint32_t before, after;

    budget_init(&b, 512);
    before = settle(&b, 8, 10);
    budget_took(&b, 8, before, 10000000);
    after = budget_rows(&b, 8);
    after = after ? after : budget_rows(&b, 8);
    cr_expect(ge(u32, after, before / 2 - 16));
    cr_expect(ge(u32, settle(&b, 8, 10), before - 16));
}
