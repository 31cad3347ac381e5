/* budget.h - how much of prompts a pass may read beside the rows that generate.
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
 * Where prompts are read apart, layer by layer, rows need not be few: a piece has up to BUDGET_PIECE of them, so
 * that weights, keys and values are unpacked for many, and fewer only where a pass would have room for less than
 * two layers of them. A pass takes as many layers as fit beside what it generates, at least one. What it generates is
 * slower beside a piece than alone, for that leaves the caches to it and the clock lower, so both are timed.
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
    BUDGET_PIECE = 256,                 /* rows that are read together, at least BUDGET_LEAST_PIECE */
    BUDGET_LEAST_PIECE = 32,
    BUDGET_AGAIN = 16,                  /* generated rows of a pass that are computed again, beside pieces */
    BUDGET_REFRESH = 64,                /* passes with prompts, then one without */
    BUDGET_BANDS = 10,                  /* 1, 2-3, 4-7, … rows that generate: a pass of each is timed apart */
};
#define BUDGET_STRETCH 2.25

struct budget {
    double alone_us[BUDGET_BANDS];      /* 0: not timed yet */
    double beside_us[BUDGET_BANDS];     /* of the same, after some layers of a piece */
    double rows;
    double small_us[BUDGET_SMALL + 1];  /* what 2^i rows have cost of late; 0: not timed yet */
    double layer_us;                    /* what a layer of a row of a piece takes; 0: not timed yet */
    uint32_t max_rows, n_mixed;
    bool asked;                         /* for a pass without prompts */
};

void budget_init(struct budget *b, uint32_t max_rows);
/* Rows for prompts in a pass where so many rows generate; 0: none this time, so that it can be
 * timed, but never twice in turn. */
uint32_t budget_rows(struct budget *b, uint32_t n_generated);
/* Rows of the piece that begins now; all where nothing generates. */
uint32_t budget_piece(struct budget *b, uint32_t n_generated);
/* Layers of such a piece for this pass, up to n_left; 0 as with budget_rows(). */
uint32_t budget_layers(struct budget *b, uint32_t n_generated, uint32_t n_rows, uint32_t n_left);
/* A pass took so long. */
void budget_took(struct budget *b, uint32_t n_generated, uint32_t n_prompt, uint64_t us);
/* A pass took so long for some layers of a piece, and then for what it generates. */
void budget_took_layers(struct budget *b, uint32_t n_rows, uint32_t n_layers, uint64_t us, uint32_t n_generated, uint64_t generated_us);

#endif
