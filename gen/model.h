/* model.h - one transformer on the CPU: weights from a mapped file, and a
 * forward pass over rows of different sequences.
 *
 * A row is one token at one position of one sequence: a prompt chunk is many
 * rows of one sequence, a decode step one row of each running sequence, and a
 * pass may hold both. A row's result depends on its own sequence only, never
 * on what else is in the pass: each kernel computes a row in the same order
 * whatever the number of rows and threads, so results are equal bit by bit.
 *
 * Rows of one sequence are in the order of their positions and all of one kind; the positions
 * before them are in its pages already.
 *
 * Rows of a prompt may take kernels of their own, all of them or none (cpu/prompt.h): a position read is other bits then
 * than the same one generated. Their logits come by way of the kernels of generated rows.
 *
 * What a family of models does beyond that, or otherwise, is its row of arch.def.
 *
 * Threads  a pool of its own (pool.h), or another model's; one caller at a time
 * Source   Llama 2, arXiv:2307.09288; Gemma 2 and 3, arXiv:2408.00118 and 2503.19786;
 *          RoPE, arXiv:2104.09864; YaRN, arXiv:2309.00071; GGUF's own conventions, see
 *          arch.h and loaders/gguf.h
 */
#ifndef GEN_MODEL_H
#define GEN_MODEL_H

#include "base/cleanup.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct engine_pulse;
struct err;
struct gguf;
struct kv;
struct model;
struct weights_share;

enum { MODEL_MAX_ROWS = 512 };

struct model_shape {
    char arch[32];              /* "llama": a row of arch.def */
    uint32_t n_layers, n_heads, n_kv_heads, dim, ffn_dim, vocab_size;
    uint32_t head_dim;          /* as the cache holds it: head_real, padded to a multiple of 16 */
    uint32_t head_real;         /* what the file says */
    uint32_t n_ctx_train;       /* what the file says it was trained for */
    float rms_eps, rope_theta;
};

struct model_options {
    uint32_t threads;           /* 0: all that affinity mask and cgroup quota allow */
    const struct model *threads_of;             /* computes on that one's threads, never at the same time; NULL: own ones */
    const char *isa;            /* as kernels_choose() takes it */
    struct engine_pulse *pulse; /* beaten many times a tensor and a layer; may be NULL */
    struct weights_share *share;    /* NULL: weights of its own (weights.h) */
};

/* What a file takes once it is loaded. */
struct model_size {
    struct model_shape shape;
    uint32_t threads;
    const char *isa;            /* static */
    size_t weight_bytes;        /* as they are packed */
    size_t scratch_bytes;       /* grows with the threads */
    uint32_t n_sliding, window; /* layers that see only the newest `window` positions; 0: none does */
};

struct model_row {
    int32_t token;              /* below vocab_size */
    uint32_t pos;
    const uint32_t *pages;      /* of its sequence: pages[pos / KV_PAGE] holds pos */
    float *logits;              /* [vocab_size] to fill, or NULL: not wanted */
    bool prompt;                /* read, not generated: may take other kernels (cpu/prompt.h); behind all that are not */
};

/* Packs the weights of an open file; the file may be closed afterwards. -ENOTSUP
 * for an architecture or a tensor type by name, -EINVAL for a file whose
 * tensors do not fit together, -ENOMEM. */
int model_open(const struct gguf *file, const struct model_options *options, struct model **ret,
               struct err *err);
/* The same checks and sizes as model_open(), without memory for weights and without
 * packing any. threads and isa as in model_options. */
int model_measure(const struct gguf *file, uint32_t threads, const char *isa, struct model_size *ret, struct err *err);
void model_close(struct model *m);                  /* NULL is fine */
DEFINE_CLEANUP(struct model *, model_close)

const struct model_shape *model_shape(const struct model *m);
const char *model_isa(const struct model *m);       /* "amx" */
uint32_t model_threads(const struct model *m);
/* fn(arg, thread) at once on those that took part in the last pass over generated rows: they are still awake right after it. Not during one. */
void model_on_threads(struct model *m, void (*fn)(void *arg, uint32_t thread), void *arg);
size_t model_weight_bytes(const struct model *m);

/* One pass: writes K and V of every row into kv and the wanted logits, also those of rows that model_read() has
 * brought to their end since; n may be 0 for these alone. Rows may go afterwards. n at most MODEL_MAX_ROWS. Allocates nothing. */
void model_forward(struct model *m, struct kv *kv, const struct model_row *rows, size_t n);

/* Whether rows of a prompt can be read apart from all others. */
bool model_reads(const struct model *m);
/* Rows of prompts through layers [from, to) of shape.n_layers: so a prompt can be read in parts, and what generates need not wait for
 * all of it. From layer 0 on each call goes on where the last one ended, with the same rows; in between model_forward() may be
 * called for generated rows of other sequences, no more of them than MODEL_MAX_ROWS - n. One may begin anew at any time.
 * Results are those of one model_forward() over all. */
void model_read(struct model *m, struct kv *kv, const struct model_row *rows, size_t n, uint32_t from, uint32_t to);

#endif
