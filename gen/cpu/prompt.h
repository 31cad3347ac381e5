/* prompt.h - the inner loops of reading a prompt, where a processor has better ones for it than those of kernels.h.
 *
 * A table that has them multiplies rows of a prompt as bf16 tiles: weights are unpacked a panel at a time, sums are fp32 through all of k.
 * Generated rows keep the kernels of kernels.h, always: which of the two a row takes is decided by what the row is, never by how many
 * there are. Within either way a row's result does not depend on what else is in the call: every step is one row's own, in an order that
 * its own positions give. So pages that a prompt wrote may be shared by whoever has the same prompt, and what was generated may be
 * computed again, one row at a time or many.
 *
 * bf16 rows are stored as tiles, 32 rows together: [rows / 32][k / 32][2][16 rows][32 columns], what one tile register loads.
 *
 * Threads  any; prompt_kernels.enter() and leave() on each thread around all others
 * Source   Intel Architecture Instruction Set Extensions Programming Reference, chapter on AMX
 */
#ifndef GEN_CPU_PROMPT_H
#define GEN_CPU_PROMPT_H

#include "gen/cpu/kernels.h"

enum { PROMPT_ROWS = 32 };      /* rows of a block of tiles */

/* Attention of up to PROMPT_ROWS neighbouring rows of one sequence, those query heads that share one key/value head. */
struct prompt_attend {
    const float *q;             /* of the first row: [group][head_dim], rotated, not scaled */
    size_t q_stride;            /* floats from row to row */
    uint32_t n, group, head_dim;                /* rows, 1 to PROMPT_ROWS; head_dim a multiple of 16 */
    uint32_t pos;               /* of the first row; row r sees positions up to pos + r */
    uint32_t window;            /* and at most this many, its own included */
    const struct kv_view *kv;   /* this layer and head */
    const uint32_t *pages;      /* of the sequence, from position 0 on */
    float scale, softcap;       /* as in struct attend */
    float *o;                   /* of the first row: [group][head_dim], done: divided by the sum */
    size_t o_stride;
    void *scratch;              /* prompt_kernels.attend_scratch bytes, aligned to 64 */
};

#endif
