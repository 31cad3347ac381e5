/* upstream.h - what a worker's stream says, line by line (docs/wire.md, part
 * 4). No I/O.
 *
 * Lines are cut out of the reads as they lie; only a line that a read breaks
 * is copied. The line of plain text and token ids, which is nearly all of
 * them, is recognised by a scanner that leaves the text as it was escaped;
 * every other line goes through the JSON parser.
 *
 * Source   docs/wire.md, part 4
 */
#ifndef DAEMON_API_UPSTREAM_H
#define DAEMON_API_UPSTREAM_H

#include "base/buf.h"
#include "daemon/api/api_error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

/* Bytes of one line. A worker whose loop was held up says all that came meanwhile in one. */
enum { UPSTREAM_LINE = 16 << 20 };

/* Bytes of a line that is not whole yet. */
struct upstream_lines {
    struct buf rest;
};

/* Calls on_line for each line (without the byte that ends it) that is whole
 * now. Stops at once when on_line returns non-zero and returns that; nothing is touched
 * afterwards, so on_line may have freed the struct. -E2BIG for a line over
 * UPSTREAM_LINE, -ENOMEM; 0. */
int upstream_lines_feed(struct upstream_lines *l, char end, const char *data, size_t len,
                        int (*on_line)(const char *line, size_t len, void *user), void *user);
void upstream_lines_fini(struct upstream_lines *l);

enum upstream_kind {
    UPSTREAM_OTHER,             /* a sign of life, or a line of a later version: ignored */
    UPSTREAM_ADMITTED,          /* prompt_tokens */
    UPSTREAM_TEXT,              /* text, n_tokens, logprobs */
    UPSTREAM_FINISH,            /* finish_reason, usage, timings */
    UPSTREAM_ERROR,             /* error */
};

struct upstream_event {
    enum upstream_kind kind;
    const char *text;           /* escaped; lives as long as the line and the scratch */
    size_t text_len;
    unsigned n_tokens;
    const char *logprobs;       /* entries in OpenAI's form, comma between them; NULL: none */
    int64_t prompt_tokens, completion_tokens, cached_tokens;    /* -1: not said */
    const char *finish_reason;  /* static */
    const char *timings;        /* JSON object; NULL: none */
    struct api_error error;     /* set for UPSTREAM_ERROR only */
};

void upstream_event_init(struct upstream_event *ev);

/* Storage that events point into; one serves all streams. */
struct upstream_scratch {
    struct buf text, logprobs, timings;
};
void upstream_scratch_fini(struct upstream_scratch *s);

/* top: how many alternatives a token may keep (the client's top_logprobs). 0;
 * -EPROTO with what is wrong with the line; -ENOMEM. */
int upstream_parse(const char *line, size_t len, unsigned top, struct upstream_scratch *s,
                   struct upstream_event *ret, struct err *err);

#endif
