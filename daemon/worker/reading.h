/* reading.h - a request in our own form that is being read: its body, and if it can not be served, why not.
 *
 * What the endpoints under /fastchat/ have in common: a body that is an object, messages with all that goes with
 * them, texts to token ids, the answer that says no.
 */
#ifndef DAEMON_WORKER_READING_H
#define DAEMON_WORKER_READING_H

#include "base/err.h"
#include "base/json.h"
#include "base/span.h"

#include <stdint.h>

struct chat_prompt;
struct engine_request;
struct http_request;
struct worker;

struct reading {
    struct worker *w;
    struct http_request *req;
    struct engine_request *er;      /* of a generation */
    cJSON *body;
    const char *param;              /* the field that is at fault */
    const char *code;
    struct err err;
};

/* 0, or -errno with a sentence and maybe a param, for reading_refuse(). */
int reading_parse(struct reading *rd);
void reading_fini(struct reading *rd);
/* Messages and what goes with them (docs/wire.md, part 4) as the model's chat template writes them. */
int reading_chat(struct reading *rd, struct chat_prompt *ret);
/* What can not fit the context is refused, `param` at fault, without being encoded. */
int reading_tokens(struct reading *rd, const char *param, const struct text_span *spans, size_t n_spans,
                   const int32_t **ret, size_t *ret_n);
/* Token ids of an array in the body, at most `max`. */
int reading_ids(struct reading *rd, const char *key, const cJSON *list, size_t max, const int32_t **ret, size_t *ret_n);

/* r, the field noted when it is a failure; a condition becomes 0. */
int reading_fault(struct reading *rd, const char *param, int r);
int reading_no_memory(struct reading *rd);
/* The sentence for n tokens; `least`: what stands before the number. */
int reading_too_long(struct reading *rd, const char *least, size_t n);

/* The answers: 400, or 503 when memory was short; 503. */
void reading_refuse(struct reading *rd, int r);
void reading_busy(struct reading *rd, const char *code, const char *message);

#endif
