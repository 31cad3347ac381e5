/* foreign.h - workers that speak only the FastChat contract: what they are
 * asked, and what their stream says. No I/O.
 *
 * Such a worker renders nothing. It is asked for its conversation template,
 * its window and the length of the prompt that was rendered from it, and then
 * gets that prompt. Its frames carry the whole text so far; a client gets what
 * is new in it. The end of a frame may change yet: an unfinished character is
 * shown as U+FFFD until it is whole, and a word may be written anew once its
 * end is known. So a client gets only what two frames in a row agree on, and
 * the rest with the last one; an answer that is not streamed is the last frame's
 * text. Where a worker takes back more than that, the client gets what
 * lies beyond as many characters as it has: nothing is sent twice, and the
 * answer goes on.
 *
 * Source   FastChat contract, 2.1-2.3, 2.6, 4.5-4.9
 */
#ifndef DAEMON_API_FOREIGN_H
#define DAEMON_API_FOREIGN_H

#include "base/buf.h"
#include "daemon/api/upstream.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct api_error;
struct chat_request;
struct err;

enum { FOREIGN_FRAME_END = 0 };         /* what ends a frame; upstream_lines_feed */

struct foreign {
    struct buf prompt;
    struct buf stops, stop_tokens;      /* JSON */
    int64_t window, n_prompt;           /* tokens */
    bool whole;                         /* no text before the last frame */
    struct buf last;                    /* text of the frame before */
    size_t n_sent;                      /* characters that have become events */
};

void foreign_fini(struct foreign *f);

/* From the answer of /worker_get_conv_template: prompt and stops. 0; -EINVAL
 * and *e (400: the template refuses the messages, 502: it is none). */
int foreign_render(struct foreign *f, const struct chat_request *r, const cJSON *answer,
                   struct api_error *e);
/* From the answers of /model_details and /count_token. -EINVAL and *e. */
int foreign_take_window(struct foreign *f, const cJSON *answer, struct api_error *e);
/* The window must be known: a prompt that fills it is refused with both
 * numbers. */
int foreign_take_count(struct foreign *f, const cJSON *answer, struct api_error *e);

/* Body of those three questions; only the last one needs the prompt. */
void foreign_write_question(const struct foreign *f, const char *model, bool with_prompt,
                            struct buf *out);
/* Body of /worker_generate_stream for choice i. */
void foreign_write(const struct foreign *f, const struct chat_request *r, unsigned choice,
                   struct buf *out);

/* One frame, as upstream_parse(). A frame may be text and end in one: then the
 * kind is UPSTREAM_FINISH and text_len is not 0. */
int foreign_parse(struct foreign *f, const char *frame, size_t len, struct upstream_scratch *s,
                  struct upstream_event *ret, struct err *err);
/* The stream ended in good order without a reason, as some workers' do: the
 * text that was held back, and "stop". 0 or -ENOMEM. */
int foreign_end(struct foreign *f, struct upstream_scratch *s, struct upstream_event *ret);

#endif
