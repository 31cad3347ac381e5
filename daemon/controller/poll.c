/* poll.c - asking workers for their status, without waiting for any of them.
 *
 * A poll is one POST /worker_get_status. It belongs either to a registration
 * that came without a status, or to a gather: many workers at once, for
 * /refresh_all_workers and /worker_get_status. At most one gather of a kind
 * runs; requests that come meanwhile wait for its end, so that many callers do
 * not multiply the polls.
 *
 * A worker that sends no heartbeats cannot say that it is back after a call
 * did not reach it, so those are asked now and then (a gather without waiters).
 *
 * The table is never emptied for a refresh: a worker leaves it when its own
 * poll has failed, and only if it has not registered anew in between.
 */
#include "daemon/controller/inner.h"

#include "base/clock.h"
#include "base/err.h"
#include "daemon/controller/worker.h"
#include "ipc/http_client.h"
#include "ipc/http_server.h"

#include <stdio.h>
#include <string.h>
#include <syslog.h>

enum {
    POLL_US = 5000000,
    STATUS_BYTES = 65536,
    REGISTERING_LIMIT = 64,
    URL_SIZE = WORKER_NAME + 64
};

struct waiter {
    struct gather *gather;
    struct waiter *next;
    struct http_request *req;
};

struct gather {
    struct controller *c;
    enum gather_kind kind;
    uint64_t round;
    size_t pending;         /* polls that have not ended */
    struct waiter *waiters; /* in the arenas of their requests */
};

struct poll {
    struct controller *c;
    struct poll *prev, *next;
    struct http_call *call;
    struct buf answer;

    struct worker *worker;    /* a registration: the worker to be, … */
    struct http_request *req; /* … and who waits; NULL once gone */

    struct gather *gather; /* or a gather: of this worker */
    char name[WORKER_NAME + 1];
    uint64_t serial;
};

static void poll_free(struct poll *p)
{
    if (p->prev)
        p->prev->next = p->next;
    else
        p->c->polls = p->next;
    if (p->next)
        p->next->prev = p->prev;
    buf_fini(&p->answer);
    worker_free(p->worker);
    free(p);
}

static void on_data(struct http_call *call, const char *data, size_t len, void *user)
{
    struct poll *p = user;

    buf_add(&p->answer, data, len);
}

static int poll_start(struct poll *p, const struct worker *w,
                      void (*done)(struct http_call *call, const struct http_call_result *result,
                                   void *user))
{
    char url[URL_SIZE];
    struct http_call_spec spec;

    worker_call_spec(w, "/worker_get_status", url, sizeof url, &spec);
    spec.body = "";
    spec.connect_us = spec.total_us = POLL_US;
    spec.user = p;
    spec.on_data = on_data;
    spec.on_done = done;
    return http_call_start(p->c->client, &spec, &p->call, NULL);
}

static struct poll *poll_new(struct controller *c)
{
    struct poll *p = calloc(1, sizeof *p);

    if (!p)
        return NULL;
    p->c = c;
    p->answer.limit = STATUS_BYTES;
    p->next = c->polls;
    if (p->next)
        p->next->prev = p;
    c->polls = p;
    return p;
}

/* What the worker said goes into `w`; false when that is no status. */
static bool apply_answer(const struct poll *p, const struct http_call_result *result,
                         struct worker *w)
{
    CLEANUP(json_delete) cJSON *status = NULL;

    return result->error == 0 && result->status == 200 && !p->answer.failed &&
           json_parse(buf_str(&p->answer), p->answer.len, NULL, &status, NULL) == 0 &&
           worker_apply_status(w, status, NULL) == 0;
}

/* Registrations */

static void on_registrant_gone(struct http_request *req)
{
    ((struct poll *)req->user)->req = NULL;
}

static void registration_done(struct http_call *call, const struct http_call_result *result,
                              void *user)
{
    struct poll *p = user;
    bool native = p->worker->native, done = false;

    p->c->n_registering--;
    if (apply_answer(p, result, p->worker))
        done = controller_register(p->c, STEAL(p->worker));
    else
        controller_say(p->c, LOG_WARNING,
                       "registration of %s refused: it did not answer with its status",
                       p->worker->name);
    if (p->req) {
        p->req->on_gone = NULL;
        reply_registered(p->req, native, done);
    }
    poll_free(p);
}

void poll_registration(struct controller *c, struct worker *w, struct http_request *req)
{
    struct poll *p = c->n_registering < REGISTERING_LIMIT ? poll_new(c) : NULL;

    if (!p || poll_start(p, w, registration_done) < 0) {
        if (p)
            poll_free(p);
        controller_say(c, LOG_WARNING, "registration of %s refused: too many at once", w->name);
        worker_free(w);
        reply_registered(req, false, false);
        return;
    }
    c->n_registering++;
    p->worker = w;
    p->req = req;
    req->user = p;
    req->on_gone = on_registrant_gone;
}

/* Gathers */

static void gather_reply(struct gather *g, struct http_request *req)
{
    BUF_LOCAL out = BUF_INIT;

    if (g->kind == GATHER_STATUS)
        registry_write_status(g->c->registry, g->round, &out);
    else
        buf_adds(&out, "null");
    reply_buf(req, &out);
}

static void gather_finish(struct gather *g)
{
    g->c->gathers[g->kind] = NULL;
    while (g->waiters) {
        struct http_request *req = g->waiters->req;

        g->waiters = g->waiters->next;
        req->on_gone = NULL;
        gather_reply(g, req);
    }
    free(g);
}

static void on_waiter_gone(struct http_request *req)
{
    struct waiter *gone = req->user, **at = &gone->gather->waiters;

    while (*at != gone)
        at = &(*at)->next;
    *at = gone->next;
}

static void member_failed(struct controller *c, const struct poll *p,
                          const struct http_call_result *result)
{
    struct worker *w = registry_find_serial(c->registry, p->name, p->serial);

    if (w && p->gather->kind == GATHER_REFRESH) {
        controller_say(c, LOG_NOTICE, "%s dropped: it did not answer with its status", p->name);
        registry_remove(c->registry, w);
        controller_changed(c);
    } else if (w && !result->connected) {
        controller_unreachable(c, p->name, p->serial);
    }
}

static void member_done(struct http_call *call, const struct http_call_result *result, void *user)
{
    struct poll *p = user;
    struct controller *c = p->c;
    struct gather *g = p->gather;
    struct worker *w = registry_find(c->registry, p->name);

    if (w && apply_answer(p, result, w)) {
        w->round = g->round;
        if (!registry_touched(c->registry, w, clock_mono_us()))
            controller_say(c, LOG_WARNING, "%s dropped: the table is full", p->name);
        controller_changed(c);
    } else {
        member_failed(c, p, result);
    }
    poll_free(p);
    if (--g->pending == 0)
        gather_finish(g);
}

static void ask_member(struct gather *g, const struct worker *w)
{
    struct poll *p = poll_new(g->c);

    if (!p)
        return;
    p->gather = g;
    p->serial = w->serial;
    snprintf(p->name, sizeof p->name, "%s", w->name);
    if (poll_start(p, w, member_done) < 0)
        poll_free(p);
    else
        g->pending++;
}

static struct gather *gather_start(struct controller *c, enum gather_kind kind)
{
    struct gather *g = calloc(1, sizeof *g);

    if (!g)
        return NULL;
    controller_sweep(c);
    g->c = c;
    g->kind = kind;
    g->round = ++c->round;
    for (size_t i = 0; i < registry_count(c->registry); i++) {
        const struct worker *w = registry_at(c->registry, i);

        if (kind != GATHER_PROBE || (w->unreachable && !w->check_heart_beat))
            ask_member(g, w);
    }
    return g;
}

void poll_probe(struct controller *c)
{
    struct gather *g = c->gathers[GATHER_PROBE] ? NULL : gather_start(c, GATHER_PROBE);

    if (g && g->pending > 0)
        c->gathers[GATHER_PROBE] = g;
    else
        free(g);
}

void poll_gather(struct controller *c, enum gather_kind kind, struct http_request *req)
{
    struct waiter *w = arena_alloc(req->arena, sizeof *w);
    struct gather *g = c->gathers[kind];

    if (w && !g)
        g = gather_start(c, kind);
    if (!w || !g) {
        reply_error(req);
        return;
    }
    if (g->pending == 0) {
        gather_reply(g, req);
        free(g);
        return;
    }
    c->gathers[kind] = g;
    *w = (struct waiter){ .gather = g, .next = g->waiters, .req = req };
    g->waiters = w;
    req->user = w;
    req->on_gone = on_waiter_gone;
}

void poll_close(struct controller *c)
{
    while (c->polls) {
        http_call_cancel(c->polls->call);
        poll_free(c->polls);
    }
    for (int i = 0; i < N_GATHERS; i++)
        free(c->gathers[i]);
}
