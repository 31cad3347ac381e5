/* streams.c - the two answers that never end.
 *
 * /worker_watch: a worker of ours holds one open. The controller writes a
 * newline now and then; when the connection ends the worker is gone, and is
 * out of the table in that moment. When the controller forgets a worker it
 * ends the watch, so that the worker registers again.
 *
 * /routes: every line is the whole table. Changes are gathered for PUSH_US, so
 * a burst of them is one line. A reader that falls behind skips lines, never
 * the last one: what it has not taken is superseded anyway.
 */
#include "daemon/controller/inner.h"

#include "daemon/controller/worker.h"
#include "ipc/http_server.h"
#include "ipc/loop.h"

#include <stdio.h>
#include <string.h>
#include <syslog.h>

enum { PUSH_US = 20000, SIGN_US = 5000000 };

struct watch {
    struct controller *c;
    struct watch *next;
    struct http_request *req;
    char name[WORKER_NAME + 1];
    uint64_t serial;
};

struct route_reader {
    struct controller *c;
    struct route_reader *next;
    struct http_request *req;
    bool full, missed;
};

/* Watches live in the arenas of their requests. */

static void watch_leave(struct watch *gone)
{
    struct watch **at = &gone->c->watches;

    while (*at != gone)
        at = &(*at)->next;
    *at = gone->next;
}

static void watch_end(struct watch *w)
{
    watch_leave(w);
    w->req->on_gone = NULL;
    http_stream_end(w->req);
}

static void on_watch_gone(struct http_request *req)
{
    struct watch *gone = req->user;
    struct controller *c = gone->c;
    struct worker *w = registry_find_serial(c->registry, gone->name, gone->serial);

    watch_leave(gone);
    if (!w)
        return;
    controller_say(c, LOG_NOTICE, "%s is gone: its connection ended", gone->name);
    registry_remove(c->registry, w);
    controller_changed(c);
}

/* A worker has one watch: a new one takes the place of the old. */
static void end_older(struct controller *c, const char *name)
{
    for (struct watch *w = c->watches, *next; w; w = next) {
        next = w->next;
        if (strcmp(w->name, name) == 0)
            watch_end(w);
    }
}

void handle_watch(struct http_request *req, void *user)
{
    struct door *d = user;
    struct controller *c = d->c;
    CLEANUP(json_delete) cJSON *body = body_object(req);
    const struct worker *w;
    struct watch *watch;
    const char *name;

    if (!body)
        return;
    watch = arena_alloc(req->arena, sizeof *watch);
    if (!watch || json_get_string(body, "worker_name", &name, NULL) != 0) {
        reply_error(req);
        return;
    }
    controller_sweep(c);
    w = registry_find(c->registry, name);
    if (!w || (w->local && !d->local) || c->draining) {
        http_reply_json(req, 404, "{\"detail\":\"this worker is not registered\"}");
        return;
    }
    end_older(c, name);
    *watch = (struct watch){ .c = c, .next = c->watches, .req = req, .serial = w->serial };
    snprintf(watch->name, sizeof watch->name, "%s", name);
    c->watches = watch;
    req->user = watch;
    req->on_gone = on_watch_gone;
    http_stream_start(req, 200, "text/plain; charset=utf-8");
    http_stream_write(req, "\n", 1);
}

static void reap_watches(struct controller *c)
{
    for (struct watch *w = c->watches, *next; w; w = next) {
        next = w->next;
        if (!registry_find(c->registry, w->name))
            watch_end(w);
    }
}

/* Readers of the table */

static void reader_leave(struct route_reader *gone)
{
    struct route_reader **at = &gone->c->readers;

    while (*at != gone)
        at = &(*at)->next;
    *at = gone->next;
}

static void on_reader_gone(struct http_request *req)
{
    reader_leave(req->user);
}

static void reader_send(struct route_reader *reader, const struct buf *line)
{
    if (reader->full) {
        reader->missed = true;
        return;
    }
    reader->missed = false;
    reader->full = http_stream_write(reader->req, line->data, line->len) == HTTP_FULL;
}

static void write_line(struct controller *c, struct buf *line)
{
    controller_sweep(c);
    registry_write_routes(c->registry, line);
}

static void on_reader_drain(struct http_request *req)
{
    struct route_reader *reader = req->user;
    BUF_LOCAL line = BUF_INIT;

    reader->full = false;
    if (!reader->missed)
        return;
    write_line(reader->c, &line);
    if (!line.failed)
        reader_send(reader, &line);
}

static void push(void *user)
{
    struct controller *c = user;
    BUF_LOCAL line = BUF_INIT;

    c->push_due = false;
    if (!c->readers)
        return;
    write_line(c, &line);
    c->pushed_version = registry_version(c->registry);
    if (!line.failed)
        for (struct route_reader *r = c->readers, *next; r; r = next) {
            next = r->next;
            reader_send(r, &line);
        }
}

static void sign_of_life(void *user)
{
    struct controller *c = user;

    push(c);
    for (struct watch *w = c->watches, *next; w; w = next) {
        next = w->next;
        if (http_stream_waiting(w->req) == 0)
            http_stream_write(w->req, "\n", 1);
    }
    poll_probe(c);
    loop_timer_set(c->sign, SIGN_US);
}

void handle_routes(struct http_request *req, void *user)
{
    struct controller *c = ((struct door *)user)->c;
    struct route_reader *reader = arena_alloc(req->arena, sizeof *reader);
    BUF_LOCAL line = BUF_INIT;

    write_line(c, &line);
    if (!reader || line.failed || c->draining) {
        reply_error(req);
        return;
    }
    *reader = (struct route_reader){ .c = c, .next = c->readers, .req = req };
    c->readers = reader;
    req->user = reader;
    req->on_gone = on_reader_gone;
    req->on_drain = on_reader_drain;
    http_stream_start(req, 200, "application/x-ndjson");
    reader_send(reader, &line);
}

int streams_open(struct controller *c)
{
    int r = loop_timer_new(c->loop, push, c, &c->push);

    if (r == 0)
        r = loop_timer_new(c->loop, sign_of_life, c, &c->sign);
    if (r == 0)
        loop_timer_set(c->sign, SIGN_US);
    return r;
}

void streams_close(struct controller *c)
{
    loop_timer_free(c->push);
    loop_timer_free(c->sign);
}

void streams_changed(struct controller *c)
{
    reap_watches(c);
    if (c->push_due || !c->readers || registry_version(c->registry) == c->pushed_version)
        return;
    c->push_due = true;
    loop_timer_set(c->push, PUSH_US);
}

void streams_end(struct controller *c)
{
    while (c->watches)
        watch_end(c->watches);
    while (c->readers) {
        struct http_request *req = c->readers->req;

        reader_leave(c->readers);
        req->on_gone = NULL;
        req->on_drain = NULL;
        http_stream_end(req);
    }
}
