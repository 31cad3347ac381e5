/* budget.h - how many rows of prompts a pass may hold beside those that generate.
 *
 * Each pass gives every running sequence a token, so the gap between two tokens is how long
 * a pass takes. Rows of prompts make it longer, late ones in a long prompt more so, and by how
 * much only the machine knows. So passes are timed: one that only generates says what the gap is
 * undisturbed, and the rows beside it grow or shrink until the whole takes BUDGET_STRETCH of it,
 * or BUDGET_SMOOTH_US where that is longer: nobody reads faster, and prompts wait for nothing then.
 * Rows come in pages, or parts of one. Few of them only where that makes a pass shorter, which it does where
 * each row costs by itself, and not where unpacking weights, keys and values for the first one does:
 * then a pass takes as long as it does, and the prompt is not read a row at a time.
 * Where nothing generates, or nothing was timed, nothing is held back but the first guess.
 *
 * What a row computes never depends on it: the same request has the same answer.
 *
 * Threads  one at a time
 * Source   the token budget of Sarathi-Serve, arXiv:2403.02310, found by control instead of by profile
 */
#ifndef GEN_BUDGET_H
#define GEN_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

enum {
    BUDGET_FIRST_ROWS = 32,
    BUDGET_SMALL = 6,                   /* up to 2^this rows, fewer are taken only where that makes a pass shorter */
    BUDGET_SMOOTH_US = 15000,           /* between two tokens */
    BUDGET_REFRESH = 64,                /* passes with prompts, then one without */
    BUDGET_BANDS = 10,                  /* 1, 2-3, 4-7, … rows that generate: a pass of each is timed apart */
};
#define BUDGET_STRETCH 2.5

struct budget {
    double alone_us[BUDGET_BANDS];      /* 0: not timed yet */
    double rows;
    double small_us[BUDGET_SMALL + 1];  /* what 2^i rows have cost of late; 0: not timed yet */
    uint32_t max_rows, n_mixed;
    bool asked;                         /* for a pass without prompts */
};

void budget_init(struct budget *b, uint32_t max_rows);
/* Rows for prompts in a pass where so many rows generate; 0: none this time, so that it can be
 * timed, but never twice in turn. */
uint32_t budget_rows(struct budget *b, uint32_t n_generated);
/* A pass took so long. */
void budget_took(struct budget *b, uint32_t n_generated, uint32_t n_prompt, uint64_t us);

#endif
