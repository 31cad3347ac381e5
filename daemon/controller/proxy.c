/* proxy.c - a generation stream through the controller.
 *
 * The worker's frames (JSON, then a NUL) are relayed as they become whole, so
 * that whatever happens to the worker, what follows starts on a frame's edge:
 * a stream that breaks ends with an error frame of its own. Other workers are
 * tried as long as nothing has been said and the request cannot have been seen.
 *
 * Source   FastChat contract, "Stream through the controller"
 */
#include "daemon/controller/inner.h"

#include "daemon/controller/worker.h"
#include "ipc/http_client.h"
#include "ipc/http_server.h"

#include <stdio.h>
#include <string.h>
#include <syslog.h>

enum { NO_WORKER = 50005, WORKER_TIMEOUT = 50006 };
enum { FRAME_BYTES = 32 << 20, STALE_RETRIES = 3, URL_SIZE = WORKER_NAME + 64 };

struct proxy {
    struct controller *c;
    struct http_request *req;
    struct http_call *call;
    const char *model; /* in the request's arena */
    char worker[WORKER_NAME + 1];
    uint64_t serial;
    struct buf partial; /* of a frame whose NUL has not come */
    bool started;       /* something has come from a worker */
    unsigned stale;     /* kept connections that turned out dead */
};

static void proxy_free(struct proxy *p)
{
    buf_fini(&p->partial);
    free(p);
}

static void on_gone(struct http_request *req)
{
    struct proxy *p = req->user;

    if (p->call)
        http_call_cancel(p->call);
    proxy_free(p);
}

static void finish(struct proxy *p)
{
    struct http_request *req = p->req;

    req->on_gone = NULL;
    req->on_drain = NULL;
    proxy_free(p);
    http_stream_end(req);
}

static void finish_with_error(struct proxy *p, int code)
{
    BUF_LOCAL frame = BUF_INIT;

    buf_printf(&frame,
               "{\"text\":\"**NETWORK ERROR DUE TO HIGH TRAFFIC. PLEASE REGENERATE OR REFRESH THIS "
               "PAGE.**\","
               "\"error_code\":%d}",
               code);
    buf_addc(&frame, '\0');
    http_stream_write(p->req, frame.data, frame.len);
    finish(p);
}

static void on_drain(struct http_request *req)
{
    struct proxy *p = req->user;

    if (p->call)
        http_call_pause(p->call, false);
}

static void on_head(struct http_call *call, int status, void *user)
{
    struct proxy *p = user;

    if (status == 200)
        return;
    controller_say(p->c, LOG_WARNING, "%s answered %d to a stream", p->worker, status);
    http_call_cancel(call);
    p->call = NULL;
    finish_with_error(p, WORKER_TIMEOUT);
}

/* What is whole goes out in one write; the rest waits for its NUL. */
static void on_data(struct http_call *call, const char *data, size_t len, void *user)
{
    struct proxy *p = user;
    const char *last = memrchr(data, '\0', len);
    size_t whole = last ? (size_t)(last - data) + 1 : 0;

    p->started = true;
    buf_add(&p->partial, data, whole ? whole : len);
    if (whole && !p->partial.failed) {
        if (http_stream_write(p->req, p->partial.data, p->partial.len) == HTTP_FULL)
            http_call_pause(call, true);
        buf_clear(&p->partial);
        buf_add(&p->partial, data + whole, len - whole);
    }
    if (p->partial.failed) {
        controller_say(p->c, LOG_WARNING, "%s sent a frame over %d bytes", p->worker, FRAME_BYTES);
        http_call_cancel(call);
        p->call = NULL;
        finish_with_error(p, WORKER_TIMEOUT);
    }
}

static int start(struct proxy *p);

static void on_done(struct http_call *call, const struct http_call_result *result, void *user)
{
    struct proxy *p = user;
    bool again = false;

    p->call = NULL;
    if (result->error == 0) {
        if (p->partial.len > 0) { /* a worker that leaves out the last NUL */
            buf_addc(&p->partial, '\0');
            http_stream_write(p->req, p->partial.data, p->partial.len);
        }
        finish(p);
        return;
    }
    controller_say(p->c, LOG_NOTICE, "%s: stream: %s", p->worker,
                   result->text ? result->text : "failed");
    if (!result->connected) {
        controller_unreachable(p->c, p->worker, p->serial);
        again = true;
    } else if (!p->started && result->reused) {
        again = p->stale++ < STALE_RETRIES;
    }
    if (!again || start(p) != 0)
        finish_with_error(p, WORKER_TIMEOUT);
}

/* Sends the request to the next worker; nonzero when there is none. */
static int start(struct proxy *p)
{
    struct controller *c = p->c;
    const struct worker *w;
    struct http_call_spec spec;
    char url[URL_SIZE];

    w = controller_dispatch(c, p->model, false);
    if (!w)
        return 1;
    snprintf(p->worker, sizeof p->worker, "%s", w->name);
    p->serial = w->serial;
    worker_call_spec(w, "/worker_generate_stream", url, sizeof url, &spec);
    spec.body = p->req->body;
    spec.body_len = p->req->body_len;
    spec.silence_us = c->config.request_timeout_ms * 1000;
    spec.headers = (const char *const[]){ "Content-Type: application/json", NULL };
    spec.user = p;
    spec.on_head = on_head;
    spec.on_data = on_data;
    spec.on_done = on_done;
    return http_call_start(c->client, &spec, &p->call, NULL);
}

void handle_generate_stream(struct http_request *req, void *user)
{
    struct door *d = user;
    CLEANUP(json_delete) cJSON *body = body_object(req);
    struct proxy *p;
    const char *model;

    if (!body)
        return;
    p = calloc(1, sizeof *p);
    if (!p || json_get_string(body, "model", &model, NULL) != 0 ||
        !(model = arena_strdup(req->arena, model))) {
        free(p);
        reply_error(req);
        return;
    }
    *p = (struct proxy){
        .c = d->c, .req = req, .model = model, .partial = { .limit = FRAME_BYTES }
    };
    req->user = p;
    req->on_gone = on_gone;
    req->on_drain = on_drain;
    http_stream_start(req, 200, NULL);
    switch (start(p)) {
    case 0: break;
    case 1: finish_with_error(p, NO_WORKER); break;
    default: finish_with_error(p, WORKER_TIMEOUT); break;
    }
}
