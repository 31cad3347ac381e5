/* chat_request.h - the body of POST /v1/chat/completions, checked, and the
 * request that a worker gets for it. No I/O.
 *
 * Closed on types, open on names: a known field of a wrong type or out of its
 * range is refused and named, an unknown field is ignored, null means absent.
 * What a client may depend on and this server can not do yet (tools, JSON
 * modes, images, audio) is refused when it asks for something, and
 * accepted in the empty forms that SDKs send by default.
 *
 * - `max_completion_tokens` wins over `max_tokens`, as at OpenAI.
 * - Messages go on to the worker in full: contents in parts, earlier tool calls and their results, as they were
 *   written. What its template does not take is refused there.
 * - `continue_final_message` takes back the default of `add_generation_prompt`; both true is refused.
 * - `messages` as one string is a raw prompt: no template, as in FastChat.
 * - An assistant message at the end is history, and the answer a new turn, without continue_final_message.
 * - `top_k` 0 and -1 both mean off.
 * - `priority` as at vLLM: the lower, the sooner; `cache_salt` too, but the worker hears only what owner.h makes of it.
 * - `logit_bias` goes on as it was written, once it is known to be one; only the worker knows the vocabulary.
 *
 * Source   OpenAI API reference; docs/wire.md, part 4
 */
#ifndef DAEMON_API_CHAT_REQUEST_H
#define DAEMON_API_CHAT_REQUEST_H

#include "base/json.h"
#include "daemon/api/owner.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct api_error;
struct arena;
struct buf;

enum {
    CHAT_MAX_N = 128,           /* choices of one request; a model's queue may allow fewer */
    CHAT_MAX_STOPS = 16,
    CHAT_MAX_STOP_BYTES = 1024, /* of one stop string */
    CHAT_MAX_STOP_TOKENS = 64,
    CHAT_MAX_BREAKERS = 16,     /* of sequences that may be repeated, for DRY */
    CHAT_MAX_BREAKER_BYTES = 40,
    CHAT_MAX_TOP_LOGPROBS = 20,
    CHAT_MAX_MODEL_NAME = 256,
    CHAT_MAX_PRIORITY = 1000,
    CHAT_MAX_SALT_BYTES = 256,
};

struct chat_message {
    const char *role;           /* "system", "user", "assistant", "tool" */
    const cJSON *tree;
    struct json_slice text;     /* the message as it was written */
};

enum chat_form {
    CHAT_IN_FULL,
    CHAT_TEXTS_ONLY,            /* for workers of version 1: contents joined */
};

struct chat_request {
    const char *model;          /* in the arena */
    const char *prompt;         /* raw; NULL: messages count */
    struct chat_message *messages;
    size_t n_messages;
    struct json_slice tools, documents, kwargs, logit_bias;     /* as they were written; {NULL, 0}: absent */
    bool has_generation_prompt, add_generation_prompt, continue_final_message;
    bool parts;                 /* a content is in parts */
    bool in_full_only;          /* it asks for what a worker of version 1 would pass over */

    /* NAN: absent */
    double temperature, top_p, typical_p, min_p, xtc_probability, xtc_threshold, dry_base, dry_multiplier, mirostat_eta,
        mirostat_tau, top_n_sigma, repetition_penalty, presence_penalty, frequency_penalty;
    /* INT64_MIN: absent */
    int64_t dry_allowed_length, dry_penalty_last_n, mirostat, priority, repeat_last_n;
    bool has_top_k, has_seed, has_max_tokens;
    int64_t top_k, seed, max_tokens;
    const char *stops[CHAT_MAX_STOPS];
    size_t n_stops;
    const cJSON *breakers;      /* strings; NULL: absent */
    int64_t stop_tokens[CHAT_MAX_STOP_TOKENS];
    size_t n_stop_tokens;
    bool ignore_eos;
    const char *cache_salt;     /* NULL: absent */
    struct owner owner;         /* the caller's, between parsing and writing */

    unsigned n;
    bool stream, include_usage;
    bool logprobs;
    unsigned top_logprobs;

    cJSON *tree;                /* owned; texts above live in it, or in the body */
};

/* 0, or -EINVAL and *e says which field and why. The body must live as long as the tree.
 * Release with chat_request_fini() in either case. */
int chat_request_parse(const char *body, size_t len, struct arena *a, struct chat_request *ret,
                       struct api_error *e);
/* The same for a prompt that is only rendered: the model may be absent (NULL), tools may be there, what concerns an answer is not read. */
int chat_request_parse_prompt(const char *body, size_t len, struct arena *a, struct chat_request *ret, struct api_error *e);
void chat_request_fini(struct chat_request *r);     /* texts are gone, numbers stay */

/* The worker's request in two pieces: what all choices share, and the end for
 * choice i, which gets the seed + i and its own request id. */
void chat_request_write(const struct chat_request *r, enum chat_form form, struct buf *out);
/* Only the messages, a JSON array, in full. */
void chat_request_write_messages(const struct chat_request *r, struct buf *out);
void chat_request_write_end(const struct chat_request *r, unsigned choice,
                            const char *request_id, struct buf *out);

#endif
