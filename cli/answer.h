/* answer.h - an answer as it arrives, in either of the two forms that the command
 * line reads: events of the api, frames of a worker. No I/O.
 *
 * Both are fed in reads as they come. What is not whole yet waits in `rest`.
 *
 * Source   FastChat contract, stream frames; server-sent events, HTML living
 *          standard 9.2 (data lines only, one a record)
 */
#ifndef CLI_ANSWER_H
#define CLI_ANSWER_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>

enum { ANSWER_MAX = 64 << 20 };       /* of one event or frame, and of the text */

struct answer {
    struct buf rest;            /* of a line or frame that is not whole */
    struct buf text;            /* so far */
    bool any;                   /* an event or frame was understood */
    bool finished;              /* the api has said that it is whole */
    struct err err;             /* it is wrong, or says that it failed */
    void (*show)(const char *text, size_t len);     /* new text; NULL: nobody looks */
};

#define ANSWER_INIT { .rest.limit = ANSWER_MAX, .text.limit = ANSWER_MAX }
void answer_fini(struct answer *a);

/* True as long as more may come: not after [DONE] or a failure. */
bool answer_events(struct answer *a, const char *data, size_t len);
/* Each frame repeats the text so far; a NUL ends it. False after a failure. */
bool answer_frames(struct answer *a, const char *data, size_t len);

#endif
