/* engine.h - tokens in, tokens out: the one interface between a worker and
 * whatever computes.
 *
 * Two backends: the CPU engine (engine_cpu.c: a GGUF file, its tokenizer, paged
 * KV, a scheduler that batches all running sequences) and the scripted engine
 * (engine_scripted.c: plays what a JSON file says, for tests of everything
 * around it). Both stand behind struct engine_ops; callers use the functions
 * below only.
 *
 * An engine has a thread of its own that steps. The caller's thread submits,
 * cancels and collects events: `notify` is called (on the engine's thread)
 * when events wait, engine_poll() delivers them on the caller's thread. Text in
 * events is whole UTF-8 characters, never holds a part of a stop string and
 * never shrinks: what is delivered stands.
 *
 * Threads  one caller thread; engine_tokenize(), engine_detokenize(), engine_info() and
 *          engine_stats() from any
 */
#ifndef GEN_ENGINE_H
#define GEN_ENGINE_H

#include "base/cleanup.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arena;
struct buf;
struct chat_template;
struct conv_registry;
struct text_span;
struct engine;
struct engine_seq;
struct err;
struct weights_share;

enum { ENGINE_BUSY = 1, ENGINE_TOP_LOGPROBS = 20, ENGINE_MAX_STOPS = 64, ENGINE_MAX_PRIORITY = 1000 };

/* Signs of life of the engine's thread, read by the worker's heartbeat. The
 * caller owns it; it must outlive the engine. */
struct engine_pulse {
    _Atomic uint64_t beats;         /* grows between parts of layers, loaded tensors, steps */
    _Atomic uint64_t busy_until_us; /* monotonic; no beat is due before */
    _Atomic bool idle;              /* nothing to do: no beat is due */
};

/* Prompts that begin alike are read once (prefix.h): */
enum engine_prefix {
    ENGINE_PREFIX_SALTED,           /* those of requests of the same salt */
    ENGINE_PREFIX_SHARED,           /* those of all */
    ENGINE_PREFIX_OFF,              /* none */
};

struct engine_config {
    const char *name;               /* for errors and logs */
    const char *path;               /* model file or script */
    const char *device;             /* "cpu" or "scripted" */
    uint32_t context;               /* tokens a sequence may hold; 0: the model's own */
    uint32_t threads;               /* 0: all that the affinity mask and the cgroup allow */
    const char *isa;                /* whose kernels compute (cpu/kernels.h); NULL, "" or "auto": what $FASTCHAT_ISA
                                     * says, else the best of this machine */
    uint32_t parallel;              /* sequences that may run at once, >= 1 */
    uint64_t kv_tokens;             /* positions in the KV cache of all sequences; 0: as many
                                     * as parallel sequences of `context` need, within memory */
    const char *kv_type;            /* how it keeps them: "f16", "bf16" or "q8"; NULL: f16 */
    enum engine_prefix prefix;      /* whose prompts may be known again */
    const char *speculative;        /* "off", "ngram" or "draft" (draft.h); NULL: off */
    const char *draft_model;        /* model file, with "draft" */
    uint32_t draft_tokens;          /* proposals in a row, up to DRAFT_MAX_TOKENS; 0: the default */
    const char *chat_template;      /* "auto": adapters_choose()'s rule; else a name */
    const struct conv_registry *templates;  /* lives as long as the engine; NULL: the built-in ones */
    struct engine_pulse *pulse;
    struct weights_share *share;    /* packed weights of other processes and for them (weights.h); NULL: none */
    void (*notify)(void *user);
    void *notify_user;
    /* A sentence for the log while the engine opens, on that thread: the plan before anything is loaded. May be NULL. */
    void (*say)(void *user, const char *text);
    void *say_user;
};

struct engine_info {
    char model[128];                /* "SmolLM2 135M Instruct" or the like */
    char backend[64];               /* "cpu avx512vnni", "scripted" */
    uint32_t context_length, vocab_size;
    uint64_t weight_bytes, kv_bytes;
    size_t longest_token;           /* n bytes are at least n / this many tokens; 0: not known */
    struct chat_template *chat;     /* how its chats are written (conv/chat.h) */
    char chat_reason[256];          /* why so, for a person */
};

struct engine_stats {
    uint32_t running, waiting;      /* sequences */
    uint32_t kv_pages;
    uint32_t kv_pages_free;         /* used by no sequence */
    uint32_t kv_pages_cached;       /* hold a part of a prompt that is known again, used or not */
    uint64_t forwards, forwards_batched;    /* the latter: with more than one sequence */
    uint64_t prompt_tokens;         /* that were read, with those read again after a preemption */
    uint64_t cached_tokens;         /* of prompts, that did not have to be */
    uint64_t generated_tokens;
    uint64_t preemptions;           /* sequences that gave their pages to others, and went on later */
    uint64_t drafted_tokens, accepted_tokens;       /* proposed by speculation; and of these, that became text */
    uint64_t allocations;           /* on the step path after warm-up; stays 0 */
};

struct logit_bias { int32_t token; float bias; };

struct sample_params {
    float temperature;              /* below 1e-5: greedy */
    float top_p;                    /* 1: off; below 1e-8: greedy */
    float typical_p;                /* 1: off */
    float min_p;                    /* 0: off */
    float top_n_sigma;              /* 0 or less: off */
    float xtc_probability;          /* 0: off */
    float xtc_threshold;            /* above 0.5: off */
    float repetition_penalty;       /* 1: off; over prompt and generated tokens */
    float presence_penalty, frequency_penalty;      /* 0: off; over generated tokens */
    int32_t top_k;                  /* 0 or less: off */
    int32_t repeat_last_n;          /* tokens that the three penalties look at; -1: all */
    float dry_multiplier;           /* 0: off */
    float dry_base;                 /* below 1: off */
    int32_t dry_allowed_length;     /* tokens that may be repeated */
    int32_t dry_penalty_last_n;     /* tokens to look for repetitions in; 0: off; -1: all */
    const char *const *dry_breakers;        /* texts that end a sequence; NULL: dry_default_breakers */
    size_t n_dry_breakers;
    int32_t mirostat;               /* 0: off; 1, 2: that version, in place of all that keeps some tokens only */
    float mirostat_tau;             /* the surprise to hold, in bits */
    float mirostat_eta;             /* how fast */
    bool has_seed;
    uint64_t seed;
    const struct logit_bias *bias;  /* added to the logits before all else, copied; -infinity: never */
    size_t n_bias;
};
extern const struct sample_params sample_defaults;  /* temperature 1, everything else off */

struct engine_request {
    const int32_t *tokens;          /* the prompt, copied */
    size_t n_tokens;                /* at least 1, with max_tokens at most the context */
    uint32_t max_tokens;            /* at least 1 */
    struct sample_params sample;
    const char *const *stop;        /* strings that end it, copied; not in the text */
    size_t n_stop;
    const int32_t *stop_tokens;     /* besides the model's own end tokens, copied */
    size_t n_stop_tokens;
    bool ignore_end;                /* the model's end tokens do not end it */
    int n_logprobs;                 /* -1: none; 0: of the token; n: and of the n best */
    int32_t priority;               /* -ENGINE_MAX_PRIORITY to ENGINE_MAX_PRIORITY; lower goes first */
    uint64_t tenant;                /* whose it is: tenants of a priority take turns */
    uint64_t salt[2];               /* nothing is shared with requests of another salt */
    uint64_t deadline_us;           /* monotonic; 0: none. Not done by then: FAILED, -ETIMEDOUT; the
                                     * scripted engine knows no deadlines, priorities and tenants */
    void *user;
};

struct engine_logprob { int32_t token; float logprob; };

struct engine_token {
    int32_t id;
    float logprob;                  /* natural, of the raw logits; 0 when not asked for */
    const struct engine_logprob *top;       /* n_logprobs of them, best first */
    size_t n_top;
};

enum engine_event_kind {
    ENGINE_STARTED,                 /* left the queue, prefill begins */
    ENGINE_OUTPUT,                  /* text and/or tokens */
    ENGINE_DONE,                    /* ended well; the last event */
    ENGINE_FAILED,                  /* ended with an error; the last event */
};

struct engine_event {
    enum engine_event_kind kind;
    void *user;                     /* of the request */
    const char *text;               /* new text, NUL behind len */
    size_t len;
    const struct engine_token *tokens;      /* the tokens generated since the last event */
    size_t n_tokens;
    uint32_t prompt_tokens, completion_tokens;      /* so far; the end token is not counted */
    uint32_t cached_tokens;         /* of the prompt, that were known from before; more may follow until the first token */
    uint32_t drafted_tokens, accepted_tokens;       /* so far, by speculation */
    const char *finish_reason;      /* DONE: "stop" or "length" */
    const char *stop_reason;        /* DONE: the stop string that matched, or NULL */
    int error;                      /* FAILED: -errno; -ENOMEM is "out of memory" */
    const char *message;            /* FAILED */
};
typedef void (*engine_event_fn)(const struct engine_event *ev, void *poll_user);

/* Loads the model; may take long and beats meanwhile. Call it on any thread; the
 * caller thread is the one that uses the engine afterwards. -ENOTSUP for an
 * architecture or tensor type that is not supported, -EINVAL for a bad file,
 * -ENOENT, -EACCES, -ENOMEM; always with a sentence that names the file. */
int engine_open(const struct engine_config *config, struct engine **ret, struct err *err);
void engine_close(struct engine *e);                /* cancels everything; NULL is fine */
DEFINE_CLEANUP(struct engine *, engine_close)

const struct engine_info *engine_info(const struct engine *e);
void engine_stats(struct engine *e, struct engine_stats *ret);

/* Spans to token ids, in `a`: spans that are trusted may hold control tokens,
 * others never become any. `add_special` puts BOS where the model wants it and the text does not
 * begin with it already. 0, -EINVAL, -ENOMEM. */
int engine_tokenize(struct engine *e, const struct text_span *spans, size_t n_spans,
                    bool add_special, struct arena *a, int32_t **ret, size_t *ret_n,
                    struct err *err);
/* Appends the text of ids, control tokens as they are written. 0 or -ENOMEM. */
int engine_detokenize(struct engine *e, const int32_t *ids, size_t n, struct buf *out);
/* The bytes of one token as text (special tokens: as they are written); may be
 * a part of a character. Valid as long as the engine. */
const char *engine_token_text(struct engine *e, int32_t id, size_t *ret_len);

/* 0 and a sequence that waits for pages; ENGINE_BUSY when `parallel` plus the
 * engine's own queue (1024) are full; -EINVAL for a request that can never
 * run, with a sentence. Nothing of `req` is kept but `user`. */
int engine_submit(struct engine *e, const struct engine_request *req, struct engine_seq **ret,
                  struct err *err);
/* Ends a sequence: after this no event of it is delivered, and its pages are
 * free within one step. Not after its DONE or FAILED was delivered. */
void engine_cancel(struct engine *e, struct engine_seq *seq);
/* A paused sequence takes no part in steps (a slow reader). It keeps its pages while nobody needs
 * them; else what was in them is computed again afterwards. */
void engine_pause(struct engine *e, struct engine_seq *seq, bool paused);

/* Delivers what waits, on the caller's thread; the callback may submit and
 * cancel. Returns the number of events. The seq of a DONE or FAILED event is
 * gone when the callback returns. */
size_t engine_poll(struct engine *e, engine_event_fn fn, void *poll_user);

#endif
