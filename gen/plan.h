/* plan.h - what running a model takes, and whether that fits, before any of it is asked for.
 *
 * An engine takes packed weights, scratch and logits, and pages of KV for `parallel` sequences of `context`
 * tokens, but for these at most half of what is left. So where not everything fits, fewer sequences run at a time,
 * or a sequence may hold less; where not even weights and one page fit, the engine refuses. Replicas share their
 * weights (weights.h); a replica's own limit has to hold them all the same, for one of them is charged.
 *
 * Threads  any
 */
#ifndef GEN_PLAN_H
#define GEN_PLAN_H

#include "gen/cpu/kernels.h"
#include "gen/draft.h"
#include "gen/model.h"

enum { PLAN_TEXT = 400, PLAN_MAX_TYPES = 64, PLAN_DEFAULT_CONTEXT = 2048, PLAN_SAMPLERS = 8 };

enum plan_verdict {
    PLAN_FITS,
    PLAN_WAITS,                 /* a sequence may be as long as asked, but not all at once */
    PLAN_SHORTER,               /* a sequence can not be as long as asked */
    PLAN_REFUSED,               /* no room for the weights */
};

struct plan_ask {
    uint32_t threads;           /* 0: all that are allowed */
    const char *isa;            /* as kernels_choose() takes it */
    uint32_t context;           /* 0: the model's own */
    uint32_t parallel, replicas;                /* >= 1 */
    enum kv_type kv_type;
    uint64_t room;              /* bytes of the machine: memory_room() */
    uint64_t limit;             /* bytes that one replica may take; 0: no limit */
    enum draft_kind speculative;
    const struct gguf *draft;   /* with DRAFT_MODEL */
};

struct plan {
    struct model_size size, draft_size;
    struct plan_ask ask;        /* context, threads and isa as they would be */
    uint64_t logits_bytes;
    uint64_t sampler_bytes;     /* what tokens are drawn with */
    uint64_t draft_bytes;       /* all of speculation but KV */
    uint64_t page_bytes;        /* with a draft model's */
    uint64_t fixed_bytes;       /* of a replica, without KV */
    uint64_t pages_wanted, pages_most;          /* of a replica: asked for, and what there is room for */
    uint64_t kv_bytes;          /* of the pages wanted */
    uint64_t total_bytes;       /* all replicas with the pages they want; both are UINT64_MAX where they can not be counted */
    enum plan_verdict verdict;
    uint32_t most_context;      /* tokens that `parallel` sequences can have each; 0: none */
    uint32_t most_parallel;     /* sequences that can have `context` tokens each; 0: none */
};

/* Tokens that a sequence may hold: those asked for, else those the model was trained for. */
uint32_t plan_context(const struct model_shape *s, uint32_t asked);
/* Of KV in all layers: of a token, and of a page. */
uint64_t plan_token_bytes(const struct model_shape *s, enum kv_type type);
uint64_t plan_page_bytes(const struct model_shape *s, enum kv_type type);
/* Pages for `parallel` sequences of `context` tokens. */
uint64_t plan_pages(uint32_t context, uint32_t parallel);
/* Threads that draw tokens at once. */
uint32_t plan_samplers(uint32_t threads, uint32_t parallel);
/* Pages that an engine takes at most when so many bytes are left. */
uint64_t plan_pages_within(uint64_t left, uint64_t page_bytes);

/* 0, or what model_measure() says. */
int plan_make(const struct gguf *file, const struct plan_ask *ask, struct plan *ret, struct err *err);
/* A sentence about the verdict and what would fit. */
const char *plan_text(const struct plan *p, char ret[PLAN_TEXT]);
/* What a replica takes, in one line, and plan_text(). */
const char *plan_line(const struct plan *p, char ret[2 * PLAN_TEXT]);

/* The tensors of a file by their type. */
struct plan_type {
    const char *name;           /* "Q4_1" */
    uint64_t n, elements, bytes;
    double bits, kept_bits;     /* of an element in the file, and as it is kept; 0: it can not be computed with */
};
size_t plan_types(const struct gguf *file, struct plan_type ret[PLAN_MAX_TYPES]);

#endif
