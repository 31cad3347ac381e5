/* engine_cpu_in.h - the state of the engine that computes: engine_cpu.c runs it, engine_cpu_open.c opens it.
 *
 * Locks: `lock` guards what is below it in struct cpu and all of a sequence,
 * but for `in_pass` ones' pages and sampler, which the pass reads. Tokenizer and
 * info never change. `delivering` and delivery buffers are the caller's.
 */
#ifndef GEN_ENGINE_CPU_IN_H
#define GEN_ENGINE_CPU_IN_H

#include "base/buf.h"
#include "gen/draft.h"
#include "gen/dry.h"
#include "gen/engine_ops.h"
#include "gen/kv.h"
#include "gen/model.h"
#include "gen/prefix.h"
#include "gen/sampler.h"
#include "gen/sched.h"
#include "gen/textout.h"
#include "loaders/tokenizer.h"

#include <pthread.h>
#include <stdatomic.h>

enum { OUTBOX_TOKENS = 64, OUTBOX_BYTES = 4096 };

struct slot {
    struct engine_token token;
    uint64_t seen;              /* due when the text has been given up to here */
};

/* The result of one sequence's sampling in a pass. */
struct pick {
    int error;
    int32_t token;
    float logprob;
    struct engine_logprob top[ENGINE_TOP_LOGPROBS];
};

/* What the engine knows of an entry of the plan. */
struct part {
    struct draft_ask *ask;      /* NULL: no proposals, nor does it read along */
    bool widened;               /* as sched_widen() says */
    size_t first;               /* of its logits and picks */
    uint32_t n_rows, n_picks;
};

struct engine_seq {
    struct sched_seq sched;     /* first: the scheduler hands it back */
    struct engine_seq *prev, *next;             /* all of them */
    struct engine_seq *next_told;
    bool told;                  /* is in the list of those with news */
    bool in_pass;               /* or in a piece that goes on */
    bool cancelled, paused, started, ended;
    bool admitted;              /* before, if it waits now */
    uint64_t deadline_us;

    int32_t *tokens;            /* [n_total]: the prompt, then what was generated */
    uint64_t *chain;            /* of the prompt's pages */
    uint32_t n_generated, max_tokens;
    struct draft_seq *draft;    /* NULL: it has none, or does not run */
    uint32_t n_drafted, n_accepted;
    struct sampler *sampler;
    struct textout *filter;
    int32_t *stop_tokens;
    size_t n_stop_tokens;
    bool ignore_end;
    int n_logprobs;
    void *user;

    struct buf text;            /* outbox */
    size_t text_cap;
    struct slot *slots;         /* [OUTBOX_TOKENS] */
    struct engine_logprob *tops;                /* [OUTBOX_TOKENS][n_logprobs] */
    size_t n_slots;
    const char *finish, *message;
    int error;
};

struct cpu {
    struct engine engine;
    struct tokenizer *tokenizer;
    struct model *model;
    enum kv_type kv_type;
    struct kv *kv;
    struct prefix *prefix;      /* NULL: off */
    bool salted;
    struct sampler_work **works;                /* [n_works]: of the first so many threads */
    uint32_t n_works;
    struct dry_breakers *breakers;              /* those asked for last; of the caller's thread */
    struct engine_pulse *pulse, own_pulse;
    void (*notify)(void *user);
    void *notify_user;
    uint32_t parallel, max_token_bytes;
    struct draft *draft;        /* NULL: no speculation */
    struct draft_ask *asks;     /* [parallel] */
    size_t n_asks;
    struct part *parts;         /* [parallel] of the plan */
    struct model_row *rows;     /* [MODEL_MAX_ROWS] */
    float *logits;              /* [most_picks][vocab_size] */
    struct pick *picks;         /* [most_picks] */
    pthread_t thread;
    bool locks, threaded;       /* what close has to undo */

    struct engine_seq *delivering;
    struct buf text;            /* of the event that is being delivered */
    struct engine_token *tokens;                /* [OUTBOX_TOKENS] */
    struct engine_logprob *tops;                /* [OUTBOX_TOKENS][ENGINE_TOP_LOGPROBS] */

    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct sched *sched;
    struct engine_seq *all, *first_told, *last_told;
    bool closing, notified, woken;
    size_t n_told, n_deadlines;
    struct engine_stats stats;
};

/* engine_cpu.c: what it can do, closing one that was opened in part among it; and the thread of its passes, on a struct cpu. */
extern const struct engine_ops engine_cpu_ops;
void *engine_cpu_main(void *cpu);

static inline void beat(struct cpu *e)
{
    atomic_fetch_add(&e->pulse->beats, 1);
}

#endif
