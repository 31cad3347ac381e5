/* chat_answer.h - what a client of /v1/chat/completions reads: the chunks of a
 * stream and the whole answer. No I/O.
 *
 * A stream is, in OpenAI's order: for each choice a role chunk, content chunks
 * and a finish chunk with an empty delta; a usage chunk without choices when
 * it was asked for; `[DONE]`. After an error event nothing follows. All chunks
 * of a request share their first bytes, which are built once (struct
 * chat_head), so that a chunk costs a few copies.
 *
 * Text that comes from a worker stays as it was escaped in the worker's JSON
 * ("escaped" below: the inside of a JSON string, without its quotes).
 *
 * Source   OpenAI API reference, "chat/streaming"; WHATWG HTML 9.2
 */
#ifndef DAEMON_API_CHAT_ANSWER_H
#define DAEMON_API_CHAT_ANSWER_H

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct api_error;

struct chat_head {
    const char *id, *model;     /* kept, not copied */
    int64_t created;
    bool include_usage;
    struct buf start;           /* `data: {"id":…,"choices":[` */
};

struct chat_usage {
    int64_t prompt_tokens, completion_tokens;
    int64_t cached_tokens;      /* -1: not known */
};

struct chat_choice {
    const char *content;        /* escaped */
    size_t content_len;
    const char *logprobs;       /* JSON objects, comma between them; NULL: none asked for */
    const char *finish_reason;
};

void chat_head_init(struct chat_head *h, const char *id, const char *model, int64_t created,
                    bool include_usage);
void chat_head_fini(struct chat_head *h);

void chat_chunk_role(const struct chat_head *h, unsigned index, struct buf *out);
/* logprobs: as in struct chat_choice. */
void chat_chunk_text(const struct chat_head *h, unsigned index, const char *text, size_t len,
                     const char *logprobs, struct buf *out);
void chat_chunk_finish(const struct chat_head *h, unsigned index, const char *reason,
                       struct buf *out);
void chat_chunk_usage(const struct chat_head *h, const struct chat_usage *usage, struct buf *out);
void chat_event_done(struct buf *out);
void chat_event_error(const struct api_error *e, struct buf *out);
void chat_event_ping(struct buf *out);

/* The whole answer; timings: a JSON object, or NULL. */
void chat_answer_write(const struct chat_head *h, const struct chat_choice *choices, unsigned n,
                       const struct chat_usage *usage, const char *timings, struct buf *out);

#endif
