/* ask.h - a question to a model's worker that generates nothing: one or more calls, then the answer.
 *
 * Any replica can answer, so a call that fails is made again on another one. A request whose model
 * is loading or on demand waits for it, as a chat does: at most load_wait_s, within the model's queue. When the client
 * leaves, the call is cancelled within that callback.
 *
 * Who asks fills in struct ask_ops; the object that embeds struct ask as its first member lies in the
 * request's arena, what it owns beyond that goes in `fini`.
 */
#ifndef DAEMON_API_ASK_H
#define DAEMON_API_ASK_H

#include "base/buf.h"
#include "daemon/api/api.h"
#include "daemon/api/api_error.h"

#include <stdbool.h>
#include <stdint.h>

struct ask;
struct http_call;
struct http_request;
struct model;
struct worker;

enum { ASK_TRIES = 8 };

struct ask_ops {
    /* The path of the call that comes next at such a worker; NULL: it can not be asked, and another one is looked for. */
    const char *(*path)(struct ask *a, const struct worker *w);
    void (*write)(struct ask *a, struct buf *body);
    /* What a worker answered with 200 is in a->answer. 0: it has replied, the request is done; ASK_MORE: there is another
     * call to make, with a->model as it is now; -EINVAL: a->error says what to tell the client. */
    int (*take)(struct ask *a);
    void (*fini)(struct ask *a);        /* may be NULL */
};
enum { ASK_MORE = 1 };

struct ask {
    struct note note;                   /* first: req->user is this too */
    const struct ask_ops *ops;
    struct api *api;
    struct http_request *req;
    struct model *model;                /* leased */
    struct worker *worker;              /* leased while it is asked */
    struct http_call *call;
    struct buf answer;
    struct api_error error;             /* why the last try failed, or what to tell */
    int status;
    unsigned retry_after_s;
    bool again;                         /* the same worker, over a new connection */
    bool answered;                      /* one was there, and could or would not answer */
    uint64_t tried[ASK_TRIES];
    size_t n_tried;
    bool waiting;
    uint64_t wait_us;                   /* waits since then; 0: it never had to */
    struct ask *next, **at;             /* in api->asks */
};

/* Takes over the request, whose req->user is a struct note. `size` is of the object that embeds an ask; NULL and *e when it can
 * not be asked. Then ask_go(). */
void *ask_new(struct api *api, struct http_request *req, const struct ask_ops *ops, size_t size, struct model *model,
              struct api_error *e);
void ask_go(struct ask *a);
/* From take(): 200 with this JSON, whose storage it takes over. The request is done. */
void ask_reply(struct ask *a, struct buf *json);
/* Before ASK_MORE: the next call is about another model. -EINVAL and a->error when that can not be asked. */
int ask_turn_to(struct ask *a, struct model *model);
/* The model of a request that may leave it out; NULL and *e. */
struct model *ask_model(struct api *api, const char *name, struct api_error *e);

/* After a change of what is known about models and workers, and every now and then. */
void ask_look(struct api *api);

#endif
