/* kernels.h - the inner loops, one table of them for each instruction set.
 *
 * A table is a translation unit with compiler flags of its own (scalar.c,
 * avx2.c, neon.c …); which one runs is chosen once. scalar.c is plain C and
 * the twin that the others are tested against.
 *
 * Weights are packed 16 rows at a time (pack.h), one row a lane, so that no
 * kernel ever adds across lanes. Activations meet quantised weights as int8 with
 * one scale for 32 of them, as llama.cpp's Q8_1 does; products of a block are
 * exact integers, and a row's float steps happen block by block in one order.
 * So a row's result is the same, bit by bit, for any number of rows in a call
 * and for any split of the groups among threads. It differs between tables.
 *
 * Every length is padded with zeros to a multiple of KERNEL_BLOCK.
 *
 * Threads  any; nothing here has state
 */
#ifndef GEN_CPU_KERNELS_H
#define GEN_CPU_KERNELS_H

#include <stddef.h>
#include <stdint.h>

struct err;
struct prompt_kernels;

enum {
    KERNEL_LANES = 16,          /* rows of a group */
    KERNEL_BLOCK = 32,          /* elements that share a scale */
    KERNEL_SPAN = 128,          /* positions that one attend() covers */
    KERNEL_PAGE = 16,           /* positions of a page of keys and values */
};

/* Of GELU's tanh form, 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))): arXiv:1606.08415, section 2. */
#define SQRT_2_OVER_PI 0.797884560802865356f
#define GELU_CUBE 0.044715f

/* Weight types: how they are packed is pack_forms[] of pack.h. X() for each that meets int8 activations. */
#define MAT_QUANTISED(X) \
    X(Q4_0) X(Q4_1) X(Q8_0) X(Q5_0) X(Q5_1) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K) X(IQ4_NL) X(IQ4_XS) X(MXFP4)
enum mat_type {
    MAT_F32,
    MAT_F16,
    MAT_BF16,
#define MAT_ROW(name) MAT_##name,
    MAT_QUANTISED(MAT_ROW)
#undef MAT_ROW
    MAT_TYPES
};

/* Rows of activations. Quantised weights read q, d and sums, others f. */
struct acts {
    uint32_t k;                 /* elements of a row, padded */
    int8_t *q;                  /* [rows][k], -127 to 127 */
    float *d;                   /* [rows][k / 32]: scale */
    int32_t *sum, *half;        /* [rows][k / 32]: of q; of the first 16 of the 32 */
    float *f;                   /* [rows][k] */
};

/* y[row][at + 16 * group + lane] = weights * x[row], for rows [0, n_rows). */
struct mul {
    const uint8_t *w;           /* the first group */
    const uint8_t *next;        /* what this thread reads after the last; a hint, may be NULL */
    size_t group_bytes;
    uint32_t n_groups;
    const struct acts *x;
    uint32_t n_rows;
    float *const *y;
    size_t at;
};

/* How keys and values are kept, and where those of one layer and head are. What a page holds of a head is in gen/kv.h. */
enum kv_type { KV_F16, KV_BF16, KV_Q8, KV_TYPES };
struct kv_view {
    enum kv_type type;
    const uint8_t *page;        /* of page 0 */
    size_t page_stride;         /* bytes from page to page */
};

/* Of the elements of K, or of V, that a page has of one head; in KV_Q8 their scales lie behind them. */
static inline size_t kv_elements_bytes(enum kv_type type, uint32_t head_dim)
{
    return (size_t)head_dim * KERNEL_PAGE * (type == KV_Q8 ? 1 : 2);
}

/* With the scales: where V begins. */
static inline size_t kv_half_bytes(enum kv_type type, uint32_t head_dim)
{
    return kv_elements_bytes(type, head_dim) + (type == KV_Q8 ? 2 * (size_t)head_dim : 0);
}

/* Attention of the query heads that share one key/value head over one span. */
struct attend {
    const float *q;             /* [n_q][head_dim] */
    uint32_t n_q, head_dim;
    struct kv_view kv;          /* this layer and head */
    const uint32_t *pages;      /* of the span */
    uint32_t n;                 /* positions, 1 to KERNEL_SPAN */
    uint32_t skip;              /* of these, at the front, that are not seen: below n and KERNEL_PAGE */
    const uint8_t *next[2];     /* the first pages of what this thread attends to next; hints, may be NULL */
    float scale;
    float softcap;              /* scaled scores s become softcap * tanh(s / softcap); 0: they stay */
    float *max, *sum;           /* [n_q]: of scores, of their exponentials less max */
    float *o;                   /* [n_q][head_dim], weighted by these exponentials */
};

struct kernels {
    const char *name;
    void (*mul[MAT_TYPES])(const struct mul *m);
    void (*attend)(const struct attend *a);
    /* Joins span b into a, n of each: max, sum, o[head_dim]. */
    void (*fold)(float *max, float *sum, float *o, const float *b_max, const float *b_sum,
                 const float *b_o, uint32_t n, uint32_t head_dim);
    void (*quantise)(const float *x, uint32_t n, int8_t *q, float *d, int32_t *sum, int32_t *half);
    /* out = x / sqrt(mean(x^2) + eps) * w, the mean over the first n_real. */
    void (*rms_norm)(const float *x, const float *w, uint32_t n, uint32_t n_real, float eps,
                     float *out);
    void (*add)(float *x, const float *y, uint32_t n);
    void (*scale)(float *x, float by, uint32_t n);
    /* out = act(gate) * up. GELU in its tanh form. */
    void (*silu_mul)(const float *gate, const float *up, uint32_t n, float *out);
    void (*gelu_tanh_mul)(const float *gate, const float *up, uint32_t n, float *out);
    /* x = cap * tanh(x / cap), n a multiple of 16. */
    void (*softcap)(float *x, float cap, uint32_t n);
    /* Rotates pairs of neighbours; c and s as rope tables of model.c: one entry
     * an element, s with its sign. n a multiple of 16. */
    void (*rope)(float *x, const float *c, const float *s, uint32_t n);
    /* 16 dimensions of a key, or of a value, from `at` on, to position `pos` of 16 in a page of their head. */
    void (*put_k[KV_TYPES])(uint8_t *page, uint32_t head_dim, uint32_t pos, uint32_t at, const float *x);
    void (*put_v[KV_TYPES])(uint8_t *page, uint32_t head_dim, uint32_t pos, uint32_t at, const float *x);
    const struct prompt_kernels *prompt;            /* prompt.h; NULL: rows of a prompt are like all others */
};

/* The table called `name`; NULL, "" or "auto": what $FASTCHAT_ISA says, else
 * the best that this machine runs. -ENOTSUP and a sentence that names those of
 * this machine for a name that is unknown or that it can not run. */
int kernels_choose(const char *name, const struct kernels **ret, struct err *err);

/* Number i of the tables that this machine runs, the plainest first; NULL
 * past the end. */
const struct kernels *kernels_at(size_t i);

extern const struct kernels kernels_scalar;

#endif
