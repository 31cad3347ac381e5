/* model_in.h - what model_load.c fills in and what model.c and model_prompt.c compute with. */
#ifndef GEN_MODEL_IN_H
#define GEN_MODEL_IN_H

#include "base/arena.h"
#include "gen/arch.h"
#include "gen/cpu/crew.h"
#include "gen/cpu/kernels.h"
#include "gen/cpu/pack.h"
#include "gen/cpu/pool.h"
#include "gen/cpu/prompt.h"
#include "gen/engine.h"
#include "gen/model.h"
#include "gen/weights.h"

#include <stdatomic.h>

enum weight_id { W_Q, W_K, W_V, W_O, W_GATE, W_UP, W_DOWN, N_WEIGHTS };

struct weight {
    struct mat mat;
    float *bias;                /* [n_groups * 16], or NULL */
};

/* In which form the matrices that share an input want it. */
struct need {
    bool quantised, floats;
};

enum sight_id { SIGHT_FULL, SIGHT_LOCAL, N_SIGHTS };

/* How far a layer looks back, and how its queries and keys turn. */
struct sight {
    uint32_t window;            /* positions that one sees, its own included; UINT32_MAX: all */
    double *freq;               /* [head_dim / 2]: radians a position */
    float turn_length;          /* what turns is multiplied by this */
    size_t at[MODEL_MAX_ROWS + 1];      /* spans of a pass before those of generated row r */
};

struct layer {
    enum sight_id sight;
    float *attn_norm, *ffn_norm;        /* [dim], padded */
    float *q_norm, *k_norm;             /* [head_dim], padded, or NULL */
    float *post_attn_norm, *post_ffn_norm;          /* [dim], padded, or NULL */
    struct weight w[N_WEIGHTS];
    struct need attn, o, ffn, down;
};

/* Where the rows that one thread works on live: in the buffers of all, or, for
 * a pass of very few rows, in copies of its own that every thread computes. */
struct rows {
    float *x;                   /* [rows][dim]: the residual stream */
    struct turns { float *c, *s; } turns[N_SIGHTS];     /* [rows][head_dim]: cosines and sines */
    struct acts in;             /* of Q, K, V, gate, up and the output matrix */
    struct acts att;            /* of O */
    float *heads;               /* [rows][n_heads][head_dim]; in att unless heads are padded */
};

struct worker_room {
    struct rows rows;           /* of MODEL_COPIED_ROWS */
    float *row;                 /* as long as the widest row or a slot */
    float *part;                /* [slot_floats] */
    /* Of the kernels of a prompt, where there are some. */
    float *sums;                /* [PROMPT_ITEM] rows of 32 */
    void *tiles, *attend;
    float *heads;               /* [PROMPT_ATTEND_ROWS][group][head_dim]: what attend() gives */
};

/* Neighbouring rows of one sequence whose attention is one piece of work. */
struct unit { uint16_t first, n; };

enum { PROMPT_SHARES = 5 };

/* Rows of prompts on their way through the layers (model_prompt.c), counted from the first of them: the last `n` rows of
 * the model's buffers are theirs, so that generated ones can pass by while they wait between two layers. */
struct prompt {
    uint32_t n, from, to;       /* layers of this call */
    uint16_t *in, *att, *mid;   /* tiles: what struct rows and model have as in, att and mid */
    struct unit units[MODEL_MAX_ROWS];
    uint32_t n_shares, share_rows;              /* rows of each share but the last */
    uint32_t share_units[PROMPT_SHARES + 1], most_units;        /* where each share's units begin; of the largest */
    uint32_t seen_from;         /* in the last layer rows from here on matter, a multiple of PROMPT_ROWS */
    uint32_t n_wanted;          /* have come to their end and want logits, by the next model_forward() */
    uint32_t wanted[MODEL_MAX_ROWS];
    /* Work that is claimed of each share, in this phase and in the next one: a line each. */
    struct claims { _Atomic uint32_t n; uint8_t apart[60]; } claims[2][PROMPT_SHARES];
};

enum {
    MODEL_COPIED_ROWS = 2,      /* up to here a copy is cheaper than a barrier */
    MODEL_SLOTS = 1024,         /* spans whose partial results may wait */
    PROMPT_ITEM = 1024,         /* rows times panels of one piece of work: 128 KB of sums */
};

/* One call, for all threads. */
struct step {
    struct kv *kv;
    uint32_t n;                 /* generated rows */
    uint32_t n_wanted;
    bool copied;                /* every thread computes all rows' norms itself */
    bool split;                 /* attention by spans, joined afterwards */
};

struct model {
    const struct arch *arch;
    struct model_shape shape;
    struct engine_pulse *pulse;
    const struct kernels *k;
    struct pool *pool;
    const struct model *borrowed;               /* whose pool it is; NULL: its own */
    uint32_t threads;           /* of the pool */
    struct crew reading, generating;            /* of these, who takes part in a pass over rows of prompts, over generated ones */
    struct arena *arena;        /* layers and vectors */
    struct weights weights;
    void *scratch;
    size_t weights_bytes, scratch_bytes;

    struct layer *layers;
    struct mat embd, out;       /* the same bytes when tied */
    float *out_norm;
    struct need out_need;
    struct sight sights[N_SIGHTS];
    uint32_t n_sights;          /* 1: every layer sees everything */
    float attn_scale, attn_softcap, final_softcap, embd_scale;

    uint32_t dim, attn, ffn;    /* padded: of x, of O's input, of the middle */
    uint32_t heads_stride;      /* of rows.heads */
    uint32_t group;             /* query heads for each key/value head */
    size_t slot_floats;

    struct step step;
    struct prompt prompt;
    struct model_row pass[MODEL_MAX_ROWS];      /* generated rows are the first, those of prompts the last */
    struct rows rows;           /* of MODEL_MAX_ROWS */
    struct acts mid;            /* of down */
    float *y, *qkv, *gate, *up, *slots, *tail;
    float *y_rows[MODEL_MAX_ROWS], *qkv_rows[MODEL_MAX_ROWS], *gate_rows[MODEL_MAX_ROWS],
        *up_rows[MODEL_MAX_ROWS], *tail_rows[MODEL_MAX_ROWS], *logit_rows[MODEL_MAX_ROWS];
    uint32_t wanted[MODEL_MAX_ROWS];
    struct worker_room *rooms;  /* [threads] */
};

/* What one thread needs to know in a pass. */
struct part {
    struct model *m;
    const struct step *step;
    const struct kernels *k;
    struct rows *rows;
    struct worker_room *room;
    uint32_t thread, threads;
    uint32_t from, to;          /* generated rows that it does row-wise work for */
};

/* For row r of the model's buffers: embedding and turns; head h of queries, then keys, normed, turned and kept; what the
 * query heads of head h see. */
void part_begin_row(const struct part *p, uint32_t r);
void part_keep_head(const struct part *p, uint32_t layer, uint32_t h, uint32_t r);
void part_attend_head(const struct part *p, uint32_t layer, uint32_t h, uint32_t r);

static inline void part_beat(const struct part *p)
{
    if (p->m->pulse)
        atomic_fetch_add_explicit(&p->m->pulse->beats, 1, memory_order_relaxed);
}

static inline uint32_t prompt_row(const struct model *m, uint32_t r) { return MODEL_MAX_ROWS - m->prompt.n + r; }

/* model_prompt.c: rows of prompts through layers [prompt.from, prompt.to), on all threads; before it, on the caller's, what these share. */
void prompt_plan(struct model *m);
void prompt_part(const struct part *p);

/* Everything of `m` but pool, threads and kernels, which are there. share may be NULL. */
int model_load(struct model *m, const struct gguf *file, struct weights_share *share, struct err *err);

#endif
