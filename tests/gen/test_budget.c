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

/* ---- pieces of prompts that are read apart ---- */

static uint64_t generated_us(uint32_t n) { return 6000 + 100 * n; }

/* A pass beside a piece: returns how long it takes, in *ret_rows the rows of the piece. */
static uint64_t pass_apart(struct budget *b, uint32_t n_generated, double layer_row_us, uint32_t *ret_rows)
{
    const uint32_t rows = budget_piece(b, n_generated), n = budget_layers(b, n_generated, rows, 30);
    const uint64_t read = (uint64_t)(n * rows * layer_row_us), generated = generated_us(n_generated) * (n ? 5 : 4) / 4;

    cr_assert(le(u32, n, 30));
    *ret_rows = rows;
    if (n)
        budget_took_layers(b, rows, n, read, n_generated, generated);
    else
        budget_took(b, n_generated, 0, generated);
    return read + generated;
}

Test(budget, layers_fill_a_pass_and_pieces_are_as_long_as_two_of_them_fit)
{
    for (double us = 0.1; us < 1000; us *= 3) {
        double alone = (double)generated_us(8), target = BUDGET_STRETCH * alone > BUDGET_SMOOTH_US ? BUDGET_STRETCH * alone : BUDGET_SMOOTH_US;
        uint64_t took = 0;
        struct budget b;
        uint32_t rows;

        budget_init(&b, 512);
        for (int i = 0; i < 50; i++)
            took = pass_apart(&b, 8, us, &rows);
        cr_expect(ge(u32, rows, BUDGET_LEAST_PIECE));
        cr_expect(le(u32, rows, BUDGET_PIECE));
        if (rows > BUDGET_LEAST_PIECE)
            cr_expect(le(dbl, (double)took, target + 1));
        if (us > 1 && rows == BUDGET_PIECE)
            cr_expect(ge(dbl, (double)took, target * 0.7));
        if (us > 100)
            cr_expect(eq(u32, rows, BUDGET_LEAST_PIECE));
    }
}

Test(budget, a_piece_goes_on_by_a_layer_at_least_and_stands_never_twice)
{
    struct budget b;
    uint32_t last = 1, n_stood = 0;

    budget_init(&b, 512);
    for (int i = 0; i < 10 * BUDGET_REFRESH; i++) {
        uint32_t n = budget_layers(&b, 8, 64, 30);

        cr_assert(n || last);
        cr_assert(le(u32, n, 1));
        n_stood += n == 0;
        last = n;
        if (n)
            budget_took_layers(&b, 64, n, 10000000, 8, 8000);
        else
            budget_took(&b, 8, 0, 7000);
    }
    cr_expect(ge(u32, n_stood, 9));
    cr_expect(le(u32, n_stood, 11));
}

Test(budget, where_nobody_generates_a_piece_is_all_and_goes_through_at_once)
{
    struct budget b;

    budget_init(&b, 512);
    budget_took_layers(&b, 64, 1, 10000000, 8, 8000);
    cr_expect(eq(u32, budget_piece(&b, 0), 512));
    cr_expect(eq(u32, budget_layers(&b, 0, 512, 17), 17));
}
