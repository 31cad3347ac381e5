#include "gen/budget.h"

static double *alone_of(struct budget *b, uint32_t n_generated)
{
    int band = 31 - __builtin_clz(n_generated);

    return &b->alone_us[band < BUDGET_BANDS ? band : BUDGET_BANDS - 1];
}

void budget_init(struct budget *b, uint32_t max_rows)
{
    *b = (struct budget){ .rows = BUDGET_FIRST_ROWS, .max_rows = max_rows };
}

uint32_t budget_rows(struct budget *b, uint32_t n_generated)
{
    if (n_generated == 0)
        return b->max_rows;
    if (!b->asked && (*alone_of(b, n_generated) == 0 || b->n_mixed >= BUDGET_REFRESH)) {
        b->asked = true;
        return 0;
    }
    b->asked = false;
    return b->rows < b->max_rows ? (uint32_t)b->rows : b->max_rows;
}

/* One pass that was held up by something else shall not count for much. */
static void learn(double *alone, double us)
{
    if (*alone == 0)
        *alone = us;
    else
        *alone += ((us < 2 * *alone ? us : 2 * *alone) - *alone) / 8;
}

void budget_took(struct budget *b, uint32_t n_generated, uint32_t n_prompt, uint64_t us)
{
    double *alone, target, part, ratio;

    if (n_generated == 0 || us == 0)
        return;
    alone = alone_of(b, n_generated);
    if (n_prompt == 0) {
        learn(alone, (double)us);
        b->n_mixed = 0;
        return;
    }
    b->n_mixed++;
    if (*alone == 0)
        return;
    target = BUDGET_STRETCH * *alone > BUDGET_SMOOTH_US ? BUDGET_STRETCH * *alone : BUDGET_SMOOTH_US;
    part = (double)us - *alone > *alone / 16 ? (double)us - *alone : *alone / 16;
    ratio = (target - *alone) / part;
    /* Halved at most, for one slow pass says little; grown only by a pass that used what it had. */
    if (ratio < 1)
        b->rows = n_prompt * (ratio > 0.5 ? ratio : 0.5);
    else if (n_prompt * 2 > b->rows)
        b->rows = b->rows > n_prompt * ratio ? b->rows : n_prompt * (ratio < 1.5 ? ratio : 1.5);
    if (b->rows < BUDGET_MIN_ROWS)
        b->rows = BUDGET_MIN_ROWS;
    if (b->rows > b->max_rows)
        b->rows = b->max_rows;
}
