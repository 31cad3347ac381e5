/* chat_parts.h - what the two files of a chat share; private to them.
 *
 * chat.c is a request's life: its calls, their failures, its answer.
 * chat_wait.c is the time in which nobody can be called.
 *
 * A choice that waits has neither call nor worker. Its request keeps its leases
 * of the model, so it counts against the queue, and its place in api->chats,
 * which is in order of arrival.
 */
#ifndef DAEMON_API_CHAT_PARTS_H
#define DAEMON_API_CHAT_PARTS_H

#include "base/id.h"
#include "daemon/api/api.h"
#include "daemon/api/api_error.h"
#include "daemon/api/chat_answer.h"
#include "daemon/api/chat_request.h"
#include "daemon/api/foreign.h"

enum {
    MAX_TRIES = 8,                      /* replicas asked for one choice, each time it is tried */
    MAX_DEATHS = 2,                     /* workers that may end under one choice */
};

/* What a worker is asked. One of ours is asked to generate at once; a foreign
 * one goes through all of it. */
enum stage { STAGE_CONV, STAGE_WINDOW, STAGE_COUNT, STAGE_STREAM, STAGE_GENERATE };

struct choice {
    struct chat *chat;
    unsigned index;
    enum stage stage;
    struct http_call *call;
    struct worker *worker;              /* leased while the call is open */
    int status;                         /* of the worker's answer */
    unsigned retry_after_s;             /* it said so */
    bool again;                         /* the same worker may be asked anew, over a new connection */
    bool waiting;                       /* for somebody to ask */
    bool admitted, role_sent, spoke, finished;
    struct upstream_lines lines;
    struct buf whole;                   /* body of an answer that is no stream */
    struct foreign foreign;

    struct buf content, logprobs;       /* not streamed */
    struct buf timings;
    const char *finish_reason;
    int64_t prompt_tokens, completion_tokens, cached_tokens;

    /* Who was asked: first those that refused the request itself, then those
     * that were not there, which counts only until the next look. */
    uint64_t tried[MAX_TRIES];
    size_t n_refused, n_tried;
    unsigned n_deaths;
};

struct chat {
    struct note note;                   /* first: req->user is this too */
    struct api *api;
    struct http_request *req;
    struct model *model;                /* leased */
    struct chat_request spec;           /* numbers only, unless a foreign worker may need it all */
    struct chat_head head;
    struct buf body;                    /* for the workers, without its end */
    struct api_error last;              /* why the last try failed */
    char id[sizeof "chatcmpl-" + ID_SHORT];

    bool started, paused, released;
    unsigned n_waiting;                 /* choices */
    uint64_t start_us, write_us, pause_us, finish_us;
    uint64_t ask_us;                    /* workers have been asked since */
    uint64_t wait_us;                   /* when it first had to wait for one; 0: never */
    struct chat *next, **at;            /* in api->chats */
    struct choice *choices;
};

/* ---- chat.c ---- */

/* Asks the best worker that was not asked yet, or waits for one; fails the
 * request when none will come, and says so with a value other than 0. */
int choice_start(struct choice *c);
/* Ends the request with an error; it is gone afterwards. */
void chat_fail(struct chat *chat, const struct api_error *e);

/* ---- chat_wait.c ---- */

/* Nobody can be asked. True: it waits now. False: chat->last says why not. */
bool wait_begin(struct choice *c);
void wait_end(struct choice *c);        /* not waiting: fine */
/* True: its time was up, and it is gone. */
bool wait_is_over(struct chat *chat, uint64_t now);

#endif
