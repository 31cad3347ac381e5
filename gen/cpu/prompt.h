/* prompt.h - the inner loops of reading a prompt, where a processor has better ones for it than those of kernels.h.
 *
 * A table that has them multiplies rows of a prompt as bf16 tiles: weights are unpacked a panel at a time, sums are fp32 through all of k.
 * Generated rows keep the kernels of kernels.h, always: which of the two a row takes is decided by what the row is, never by how many
 * there are. Within either way a row's result does not depend on what else is in the call: every step is one row's own, in an order that
 * its own positions give. So pages that a prompt wrote may be shared by whoever has the same prompt, and what was generated may be
 * computed again, one row at a time or many.
 *
 * bf16 rows are stored as tiles, 32 rows together: [rows / 32][k / 32][2][16 rows][32 columns], what one tile register loads. Sums leave
 * in the same order, as blocks of 32 rows and 32 columns: [2][2][16 rows][16 columns] of float.
 *
 * Threads  any; prompt_kernels.enter() and leave() on each thread around all others
 * Source   Intel Architecture Instruction Set Extensions Programming Reference, chapter on AMX
 */
#ifndef GEN_CPU_PROMPT_H
#define GEN_CPU_PROMPT_H

#include "gen/cpu/kernels.h"

#include <stdbool.h>

enum {
    PROMPT_ROWS = 32,           /* rows of a block of tiles */
    PROMPT_ATTEND_ROWS = 128,   /* of a call of attend(): the more, the less often keys and values are unpacked */
    PROMPT_TILE = 512,          /* elements of a tile of activations */
    PROMPT_SUMS = 1024,         /* floats of a block of sums */
    PROMPT_ROOM = 24 << 10,     /* bytes of struct prompt_mul.room */
};

/* Panels of two groups (32 rows of a weight) times blocks of 32 rows of activations. */
struct prompt_mul {
    enum mat_type type;
    const uint8_t *w;           /* the first group */
    const uint8_t *next;        /* as many groups that this thread may unpack after these; a hint, may be NULL */
    size_t group_bytes;
    uint32_t n_groups;          /* an odd last one is a panel with zeros behind it */
    uint32_t k;
    const uint16_t *x;          /* tiles, from the first block on */
    uint32_t n_rows;            /* behind them, up to the end of a block, x is read and the sums mean nothing */
    float *c;                   /* [panels][blocks][PROMPT_SUMS] */
    void *room;                 /* PROMPT_ROOM bytes, aligned to 64 */
};

/* The sums of one panel on their way out. */
struct prompt_out {
    const float *c;             /* [blocks][PROMPT_SUMS] */
    uint32_t n_rows, n_groups;  /* n_groups 1 or 2 */
    const float *bias;          /* [n_groups * 16], or NULL */
    bool add;                   /* to what is in y: the residual stream */
    const float *cos, *sin;     /* of the first row, for rope() of struct kernels; NULL: not turned */
    uint32_t turn_at[2];        /* where in them each group begins */
    size_t turn_stride;         /* floats from row to row */
    float *y;                   /* of the first row and column */
    size_t y_stride;            /* floats from row to row */
};

/* Two panels on their way to one column of tiles: act(gate) * up. */
struct prompt_gate {
    const float *gate, *up;     /* [blocks][PROMPT_SUMS] */
    const float *gate_bias, *up_bias;           /* [32], or NULL */
    uint32_t n_rows;
    bool gelu;                  /* else SiLU */
    uint16_t *x;                /* the two tiles of the first block */
    size_t x_stride;            /* elements from block to block */
};

/* Attention of neighbouring rows of one sequence, those query heads that share one key/value head. How rows are cut into calls does
 * not change their results. */
struct prompt_attend {
    const float *q;             /* of the first row: [group][head_dim], rotated, not scaled */
    size_t q_stride;            /* floats from row to row */
    uint32_t n, group, head_dim;                /* rows, 1 to PROMPT_ATTEND_ROWS; head_dim a multiple of 16 */
    uint32_t pos;               /* of the first row; row r sees positions up to pos + r */
    uint32_t window;            /* and at most this many, its own included */
    const struct kv_view *kv;   /* this layer and head */
    const uint32_t *pages;      /* of the sequence, from position 0 on */
    float scale, softcap;       /* as in struct attend */
    float *o;                   /* of the first row: [group][head_dim], done: divided by the sum */
    size_t o_stride;
    void *scratch;              /* attend_scratch() bytes, aligned to 64 */
};

struct prompt_kernels {
    /* Tiles are configured, and given back: no other kernels of any table on this thread in between but those below
     * and those of struct kernels that are not mul. */
    void (*enter)(void);
    void (*leave)(void);
    void (*mul)(const struct prompt_mul *m);
    void (*out)(const struct prompt_out *o);
    void (*gate)(const struct prompt_gate *g);
    /* n floats as elements [at, at + n) of row `row` of a block whose tiles begin at x. */
    void (*to_tiles)(const float *f, uint32_t n, uint32_t at, uint32_t row, uint16_t *x);
    /* NULL: prompt rows take attend() of struct kernels, row by row. */
    void (*attend)(const struct prompt_attend *a);
    size_t (*attend_scratch)(uint32_t group, uint32_t head_dim);    /* bytes, a multiple of 64 */
};

#endif
