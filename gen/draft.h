/* draft.h - speculation: a few tokens that a sequence may generate next, proposed
 * cheaply, so that the model computes them in one pass.
 *
 * A pass of few rows costs little more than one of a single row, for it reads
 * the same weights. So the token that is fed next takes proposals behind it, and the
 * sequence's own sampler draws from the logits of each row as if there were none: a proposal stands when it
 * is what was drawn, the first that is not ends it, and what was drawn stands in its place. So every
 * token is drawn from the model's own distribution with the sequence's own random numbers, and an answer
 * is the same, byte for byte, as without proposals. Nothing that a proposer does changes a text.
 *
 * Proposers    ngram.h looks up in the sequence's own text; a draft model
 *              (draft_model.h) is a smaller model of the same vocabulary.
 * How many     each sequence learns how often it is right: what was right
 *              throughout doubles, what failed shrinks, and where it does not pay it stops and
 *              tries again later, each time later.
 *
 * Threads  begin, end, wants, prepare and learn: under one lock; propose: by one
 *          thread at a time without it, of sequences that do not end meanwhile
 * Source   arXiv:2211.17192; llama.cpp, common/speculative.cpp; vLLM,
 *          v1/spec_decode
 */
#ifndef GEN_DRAFT_H
#define GEN_DRAFT_H

#include "base/cleanup.h"
#include "gen/cpu/kernels.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct draft;
struct draft_seq;
struct engine_pulse;
struct err;
struct gguf;
struct model;
struct model_shape;
struct tokenizer;

enum draft_kind { DRAFT_OFF, DRAFT_NGRAM, DRAFT_MODEL };

enum {
    DRAFT_MAX_TOKENS = 16,      /* proposals for a sequence in a pass */
    DRAFT_DEFAULT_TOKENS = 8,
    DRAFT_ROWS = 16,            /* generated rows of a pass, proposals among them: a pass of more does not wait
                                 * for the weights, and a proposal would cost what it saves */
};

/* "off", "ngram" or "draft"; NULL and "" are off. -1 for another word. */
int draft_kind_of(const char *name);

struct draft_options {
    enum draft_kind kind;
    uint32_t tokens;            /* proposals in a row, up to DRAFT_MAX_TOKENS; 0: the default */
    uint32_t parallel, n_ctx;   /* sequences that run at once, and how long they get */
    /* Of a draft model: */
    const struct gguf *file;    /* may be closed after open */
    const struct gguf *target_file;             /* whose vocabulary it must have */
    const struct tokenizer *target_tokenizer;
    const struct model *target; /* whose threads it computes on; outlives it */
    struct engine_pulse *pulse; /* may be NULL */
};

/* Not for DRAFT_OFF. -EINVAL for a draft model of another vocabulary, with the
 * first difference; what model_open() and tokenizer_open() say; -ENOMEM. */
int draft_open(const struct draft_options *options, struct draft **ret, struct err *err);
/* A draft model's own pages of KV; nothing for others. Once, before the first sequence. -ENOMEM, -EINVAL. */
int draft_open_kv(struct draft *d, uint32_t n_pages, enum kv_type type, struct err *err);
void draft_close(struct draft *d);                  /* NULL is fine */
DEFINE_CLEANUP(struct draft *, draft_close)

const struct model_shape *draft_shape(const struct draft *d);   /* of a draft model, or NULL */
uint64_t draft_kv_bytes(const struct draft *d);

/* A sequence begins to run, with room of its own; NULL when `parallel` do. */
struct draft_seq *draft_begin(struct draft *d);
void draft_end(struct draft *d, struct draft_seq *s);           /* NULL is fine */

/* How many proposals it is worth now; 0: none. Asked once a pass. */
uint32_t draft_wants(struct draft *d, struct draft_seq *s);

/* A sequence's part in a pass. */
struct draft_ask {
    struct draft_seq *seq;
    const int32_t *text;        /* [n] all its tokens so far; what they were before they are still */
    uint32_t n;
    uint32_t want;              /* 0: only reads along */
    uint32_t n_drafted;         /* by propose, up to want */
    bool tried;                 /* by propose: it has cost something */
    int32_t tokens[DRAFT_MAX_TOKENS];
};

/* Room for what is asked; `want` is 0 where there is none. */
void draft_prepare(struct draft *d, struct draft_ask *asks, size_t n);
/* At most `parallel` asks, each of another sequence. Allocates nothing. */
void draft_propose(struct draft *d, struct draft_ask *asks, size_t n);
/* What became of the proposals of a pass: so many of the n_drafted stood. */
void draft_learn(struct draft *d, const struct draft_ask *ask, uint32_t n_accepted);

#endif
