#include "gen/budget.h"

#include "gen/kv.h"

static int band_of(uint32_t n_generated)
{
    const int band = 31 - __builtin_clz(n_generated);

    return band < BUDGET_BANDS ? band : BUDGET_BANDS - 1;
}

static double *alone_of(struct budget *b, uint32_t n_generated) { return &b->alone_us[band_of(n_generated)]; }

void budget_init(struct budget *b, uint32_t max_rows)
{
    *b = (struct budget){ .rows = BUDGET_FIRST_ROWS, .max_rows = max_rows };
}

/* Pages, or what divides one. */
static uint32_t whole(uint32_t rows)
{
    return rows >= KV_PAGE ? rows / KV_PAGE * KV_PAGE : 1u << (31 - __builtin_clz(rows));
}

/* This pass, so that it can be timed. */
static bool goes_alone(struct budget *b, uint32_t n_generated)
{
    b->asked = !b->asked && (*alone_of(b, n_generated) == 0 || b->n_mixed >= BUDGET_REFRESH);
    return b->asked;
}

uint32_t budget_rows(struct budget *b, uint32_t n_generated)
{
    if (n_generated == 0)
        return b->max_rows;
    if (goes_alone(b, n_generated))
        return 0;
    return whole(b->rows < b->max_rows ? (uint32_t)b->rows : b->max_rows);
}

/* One pass that was held up by something else shall not count for much, nor where few are timed the first of them for long. */
static void learn(double *mean, double us, double part)
{
    if (*mean == 0)
        *mean = us;
    else
        *mean += ((us < 2 * *mean ? us : 2 * *mean) - *mean) * part;
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

static double target_us(double alone)
{
    return BUDGET_STRETCH * alone > BUDGET_SMOOTH_US ? BUDGET_STRETCH * alone : BUDGET_SMOOTH_US;
}

/* For reading, beside so many rows that generate. */
static double spare_us(struct budget *b, uint32_t n_generated)
{
    const double alone = *alone_of(b, n_generated), beside = b->beside_us[band_of(n_generated)];

    return target_us(alone) - (beside > alone ? beside : alone);
}

uint32_t budget_piece(struct budget *b, uint32_t n_generated)
{
    uint32_t rows = BUDGET_PIECE;

    if (n_generated == 0)
        return b->max_rows;
    while (rows > BUDGET_LEAST_PIECE && 2 * rows * b->layer_us > spare_us(b, n_generated))
        rows /= 2;
    return rows;
}

uint32_t budget_layers(struct budget *b, uint32_t n_generated, uint32_t n_rows, uint32_t n_left)
{
    double n;

    if (n_generated == 0)
        return n_left;
    if (goes_alone(b, n_generated))
        return 0;
    n = b->layer_us > 0 ? spare_us(b, n_generated) / (n_rows * b->layer_us) : 1;
    return n < 1 ? 1 : n < n_left ? (uint32_t)n : n_left;
}

/* Layers: up at once, but for one that was held up by something else; down slowly, for they differ. */
void budget_took_layers(struct budget *b, uint32_t n_rows, uint32_t n_layers, uint64_t us, uint32_t n_generated, uint64_t generated_us)
{
    const double now = (double)us / n_layers / n_rows;

    b->n_mixed++;
    if (n_generated)
        learn(&b->beside_us[band_of(n_generated)], (double)generated_us, 0.125);
    if (b->layer_us == 0)
        b->layer_us = now;
    else if (now > b->layer_us)
        b->layer_us = now < 1.5 * b->layer_us ? now : 1.5 * b->layer_us;
    else
        b->layer_us += (now - b->layer_us) / 4;
}

void budget_took(struct budget *b, uint32_t n_generated, uint32_t n_prompt, uint64_t us)
{
    double *alone, target, part, ratio;

    if (n_generated == 0 || us == 0)
        return;
    alone = alone_of(b, n_generated);
    if (n_prompt == 0) {
        learn(alone, (double)us, b->n_mixed ? 0.5 : 0.125);
        if (b->n_mixed >= BUDGET_REFRESH && b->rows < 1 << BUDGET_SMALL)
            b->rows = 2 * whole((uint32_t)b->rows);     /* more may have become worth it */
        b->n_mixed = 0;
        return;
    }
    b->n_mixed++;
    if (*alone == 0)
        return;
    target = target_us(*alone);
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
