#include "gen/budget.h"

#include "gen/kv.h"

static double *alone_of(struct budget *b, uint32_t n_generated)
{
    int band = 31 - __builtin_clz(n_generated);

    return &b->alone_us[band < BUDGET_BANDS ? band : BUDGET_BANDS - 1];
}

void budget_init(struct budget *b, uint32_t max_rows)
{
    *b = (struct budget){ .rows = BUDGET_FIRST_ROWS, .max_rows = max_rows };
}

/* Pages, or what divides one. */
static uint32_t whole(uint32_t rows)
{
    return rows >= KV_PAGE ? rows / KV_PAGE * KV_PAGE : 1u << (31 - __builtin_clz(rows));
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
    return whole(b->rows < b->max_rows ? (uint32_t)b->rows : b->max_rows);
}

/* One pass that was held up by something else shall not count for much. */
static void learn(double *alone, double us)
{
    if (*alone == 0)
        *alone = us;
    else
        *alone += ((us < 2 * *alone ? us : 2 * *alone) - *alone) / 8;
}

/* Too long with n rows, which are few: how many then? Half, unless that was tried and
 * made little difference. */
static double fewer(struct budget *b, uint32_t n, double us)
{
    int i = 31 - __builtin_clz(n);
    double *at = &b->small_us[i];

    *at = *at == 0 ? us : (*at + us) / 2;
    if (i < BUDGET_SMALL && at[1] > 0 && *at > 0.75 * at[1])
        return 2 * n;
    return i == 0 || (at[-1] > 0 && at[-1] > 0.75 * *at) ? n : n / 2.0;
}

void budget_took(struct budget *b, uint32_t n_generated, uint32_t n_prompt, uint64_t us)
{
    double *alone, target, part, ratio;

    if (n_generated == 0 || us == 0)
        return;
    alone = alone_of(b, n_generated);
    if (n_prompt == 0) {
        learn(alone, (double)us);
        if (b->n_mixed >= BUDGET_REFRESH && b->rows < 1 << BUDGET_SMALL)
            b->rows = 2 * whole((uint32_t)b->rows);     /* more may have become worth it */
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
    if (ratio < 1 && n_prompt <= 1u << BUDGET_SMALL)
        b->rows = fewer(b, n_prompt, part);
    else if (ratio < 1)
        b->rows = n_prompt * (ratio > 0.5 ? ratio : 0.5);
    else if (n_prompt * 2 > b->rows)
        b->rows = b->rows > n_prompt * ratio ? b->rows : n_prompt * (ratio < 2 ? ratio : 2);
    if (b->rows > b->max_rows)
        b->rows = b->max_rows;
}
