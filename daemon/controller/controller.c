/* controller.c - the doors, the short answers, and the clock of the leases.
 *
 * A lease ends by a timer at the earliest end, not by a sweep now and then.
 * Beats only ever move an end further away, so they leave the timer alone: it
 * fires, finds nothing due, and is set for the next end.
 */
#include "daemon/controller/inner.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/id.h"
#include "daemon/controller/worker.h"
#include "ipc/http_client.h"
#include "ipc/http_server.h"
#include "ipc/loop.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <syslog.h>

enum { SMALL_BODY = 1 << 20, TCP_CONNS = 1024 };

void controller_say(struct controller *c, int level, const char *fmt, ...)
{
    char text[ERR_TEXT];
    va_list ap;

    if (!c->config.log)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    c->config.log(level, text);
}

/* The table and the clock */

static void set_expiry(struct controller *c)
{
    uint64_t next = registry_next_expiry(c->registry), now = clock_mono_us();

    if (next == c->expiry_at_us)
        return;
    c->expiry_at_us = next;
    if (next == UINT64_MAX)
        loop_timer_off(c->expiry);
    else
        loop_timer_set(c->expiry, next > now ? next - now : 0);
}

void controller_changed(struct controller *c)
{
    set_expiry(c);
    streams_changed(c);
}

void controller_sweep(struct controller *c)
{
    size_t n = registry_expire(c->registry, clock_mono_us());

    if (n == 0)
        return;
    controller_say(c, LOG_NOTICE, "%zu worker%s gone: no heartbeat", n, n == 1 ? "" : "s");
    controller_changed(c);
}

static void on_expiry(void *user)
{
    struct controller *c = user;

    c->expiry_at_us = UINT64_MAX;
    controller_sweep(c);
    set_expiry(c);
}

void controller_unreachable(struct controller *c, const char *name, uint64_t serial)
{
    struct worker *w = registry_find_serial(c->registry, name, serial);

    if (!w || w->unreachable)
        return;
    controller_say(c, LOG_NOTICE, "%s cannot be reached: out of dispatch until it is heard from",
                   name);
    registry_unreachable(c->registry, w);
    controller_changed(c);
}

const struct worker *controller_dispatch(struct controller *c, const char *model, bool url_only)
{
    double chance = (double)(id_random_u64() >> 11) * 0x1p-53;
    const struct worker *w;

    controller_sweep(c);
    w = registry_dispatch(c->registry, model, c->config.dispatch, url_only, chance);
    if (w)
        streams_changed(c);
    return w;
}

size_t controller_workers(const struct controller *c)
{
    return registry_count(c->registry);
}

/* Answers */

void reply_buf(struct http_request *req, const struct buf *json)
{
    if (json->failed)
        reply_error(req);
    else
        http_reply(req, 200, "application/json", json->data, json->len);
}

void reply_error(struct http_request *req)
{
    static const char text[] = "Internal Server Error";

    http_reply(req, 500, "text/plain; charset=utf-8", text, sizeof text - 1);
}

cJSON *body_object(struct http_request *req)
{
    cJSON *tree = NULL;

    if (json_parse(req->body, req->body_len, NULL, &tree, NULL) == 0 && cJSON_IsObject(tree))
        return tree;
    cJSON_Delete(tree);
    reply_error(req);
    return NULL;
}

void reply_registered(struct http_request *req, bool native, bool done)
{
    http_reply_json(req, 200, native && done ? "{\"fastchat\":{\"version\":1}}" : "null");
}

/* Handlers */

bool controller_register(struct controller *c, struct worker *w)
{
    bool known = registry_find(c->registry, w->name) != NULL;
    int r = registry_put(c->registry, w, clock_mono_us());

    if (r != 0) {
        controller_say(c, LOG_WARNING, "registration of %s refused: %s", w->name,
                       r == REGISTRY_FULL   ? "the table is full"
                       : r == REGISTRY_HELD ? "a worker of this machine has that address"
                                            : "no memory");
        worker_free(w);
        return false;
    }
    controller_say(c, LOG_INFO, "%s %s, %zu model name%s", w->name,
                   known ? "registered again" : "registered", w->n_models,
                   w->n_models == 1 ? "" : "s");
    controller_changed(c);
    return true;
}

static void handle_register(struct http_request *req, void *user)
{
    struct door *d = user;
    CLEANUP(json_delete) cJSON *body = body_object(req);
    CLEANUP(worker_free) struct worker *w = NULL;
    struct err err = { 0 };
    bool native;
    int r;

    if (!body)
        return;
    controller_sweep(d->c);
    r = worker_from_json(body, d->local, &w, &err);
    if (r < 0) {
        reply_error(req);
    } else if (r == WORKER_NEEDS_STATUS) {
        poll_registration(d->c, STEAL(w), req);
    } else if (r == WORKER_REFUSED) {
        controller_say(d->c, LOG_WARNING, "registration from %s refused: %s", req->peer,
                       err_text(&err));
        reply_registered(req, false, false);
    } else {
        native = w->native;
        reply_registered(req, native, controller_register(d->c, STEAL(w)));
    }
}

static void handle_heart_beat(struct http_request *req, void *user)
{
    struct door *d = user;
    CLEANUP(json_delete) cJSON *body = body_object(req);
    const char *name;
    int64_t queue_length;
    uint64_t before;
    bool exist;

    if (!body)
        return;
    if (json_get_string(body, "worker_name", &name, NULL) != 0 ||
        json_get_int(body, "queue_length", 0, WORKER_QUEUE_MAX, &queue_length, NULL) != 0) {
        reply_error(req);
        return;
    }
    controller_sweep(d->c);
    before = registry_version(d->c->registry);
    exist = registry_beat(d->c->registry, name, d->local, queue_length, clock_mono_us());
    if (registry_version(d->c->registry) != before)
        streams_changed(d->c);
    http_reply_json(req, 200, exist ? "{\"exist\":true}" : "{\"exist\":false}");
}

static void handle_get_address(struct http_request *req, void *user)
{
    struct door *d = user;
    CLEANUP(json_delete) cJSON *body = body_object(req);
    BUF_LOCAL out = BUF_INIT;
    struct json_writer j = json_writer(&out);
    const struct worker *w;
    const char *model;

    if (!body)
        return;
    if (json_get_string(body, "model", &model, NULL) != 0) {
        reply_error(req);
        return;
    }
    w = controller_dispatch(d->c, model, !d->local);
    json_open(&j, '{');
    json_kstr(&j, "address", w ? w->name : "");
    json_close(&j, '}');
    reply_buf(req, &out);
}

static void list(struct http_request *req, void *user, enum registry_kind kind)
{
    struct door *d = user;
    BUF_LOCAL out = BUF_INIT;

    controller_sweep(d->c);
    registry_write_models(d->c->registry, kind, &out);
    reply_buf(req, &out);
}

static void handle_list_models(struct http_request *req, void *user)
{
    list(req, user, KIND_ALL);
}
static void handle_list_multimodal(struct http_request *req, void *user)
{
    list(req, user, KIND_MULTIMODAL);
}
static void handle_list_language(struct http_request *req, void *user)
{
    list(req, user, KIND_LANGUAGE);
}

static void handle_refresh(struct http_request *req, void *user)
{
    poll_gather(((struct door *)user)->c, GATHER_REFRESH, req);
}

static void handle_status(struct http_request *req, void *user)
{
    poll_gather(((struct door *)user)->c, GATHER_STATUS, req);
}

static void handle_test(struct http_request *req, void *user)
{
    http_reply_json(req, 200, "\"success\"");
}
static void handle_health(struct http_request *req, void *user)
{
    http_reply_json(req, 200, "{\"status\":\"ok\"}");
}

/* The last row is for this machine alone: the table names Unix paths. */
static const struct http_route routes[] = {
    { "GET", "/health", handle_health, SMALL_BODY },
    { "GET", "/test_connection", handle_test, SMALL_BODY },
    { "POST", "/get_worker_address", handle_get_address, SMALL_BODY },
    { "POST", "/list_language_models", handle_list_language, SMALL_BODY },
    { "POST", "/list_models", handle_list_models, SMALL_BODY },
    { "POST", "/list_multimodal_models", handle_list_multimodal, SMALL_BODY },
    { "POST", "/receive_heart_beat", handle_heart_beat, SMALL_BODY },
    { "POST", "/refresh_all_workers", handle_refresh, SMALL_BODY },
    { "POST", "/register_worker", handle_register, SMALL_BODY },
    { "POST", "/worker_generate_stream", handle_generate_stream, 0 },
    { "POST", "/worker_get_status", handle_status, SMALL_BODY },
    { "POST", "/worker_watch", handle_watch, SMALL_BODY },
    { "GET", "/routes", handle_routes, SMALL_BODY },
};

enum { N_ROUTES = sizeof routes / sizeof routes[0] };

void worker_call_spec(const struct worker *w, const char *path, char *url, size_t size,
                      struct http_call_spec *spec)
{
    snprintf(url, size, "%s%s", w->has_url ? w->name : "http://worker", path);
    *spec = (struct http_call_spec){ .unix_path = w->unix_path, .url = url, .method = "POST" };
}

/* Life */

static void on_shortage(int error, void *user)
{
    struct door *d = user;

    controller_say(d->c, LOG_WARNING, "connections are refused: %s", strerror(-error));
}

static int open_door(struct controller *c, struct door *d, bool local, struct err *err)
{
    struct http_config config = {
        .routes = routes,
        .n_routes = local ? N_ROUTES : N_ROUTES - 1,
        .user = d,
        .limits = { .max_conns = local ? 0 : TCP_CONNS },
        .shortage = on_shortage,
    };

    d->c = c;
    d->local = local;
    return http_server_open(c->loop, &config, &d->server, err);
}

static void take_config(struct controller *c, const struct controller_config *config)
{
    c->config = *config;
    if (!c->config.lease_ms)
        c->config.lease_ms = 90000;
    if (!c->config.request_timeout_ms)
        c->config.request_timeout_ms = 100000;
}

int controller_open(struct loop *l, const struct controller_config *config, struct controller **ret,
                    struct err *err)
{
    CLEANUP(controller_close) struct controller *c = calloc(1, sizeof *c);
    int r;

    if (!c)
        return err_set(err, -ENOMEM, "no memory for the controller");
    c->loop = l;
    take_config(c, config);
    c->expiry_at_us = UINT64_MAX;
    c->registry = registry_new(c->config.lease_ms * 1000);
    if (!c->registry || loop_timer_new(l, on_expiry, c, &c->expiry) < 0 || streams_open(c) < 0)
        return err_set(err, -ENOMEM, "no memory for the controller");
    if ((r = http_client_open(l, &c->client, err)) < 0 ||
        (r = open_door(c, &c->unix_door, true, err)) < 0 ||
        (r = open_door(c, &c->tcp_door, false, err)) < 0)
        return r;
    *ret = STEAL(c);
    return 0;
}

void controller_configure(struct controller *c, const struct controller_config *config)
{
    take_config(c, config);
    registry_set_lease(c->registry, c->config.lease_ms * 1000);
    controller_sweep(c);
    set_expiry(c);
}

/* The servers go first: their requests' on_gone cancels calls and leaves lists. */
void controller_close(struct controller *c)
{
    if (!c)
        return;
    http_server_close(c->unix_door.server);
    http_server_close(c->tcp_door.server);
    poll_close(c);
    http_client_close(c->client);
    streams_close(c);
    loop_timer_free(c->expiry);
    registry_free(c->registry);
    free(c);
}

int controller_listen(struct controller *c, int fd, bool local, struct err *err)
{
    return http_server_listen(local ? c->unix_door.server : c->tcp_door.server, fd, err);
}

static void on_drained(void *user)
{
    struct controller *c = user;

    if (--c->draining == 0)
        c->drained(c->drained_user);
}

void controller_drain(struct controller *c, void (*done)(void *user), void *user)
{
    if (c->draining)
        return;
    c->drained = done;
    c->drained_user = user;
    c->draining = 2;
    streams_end(c);
    http_server_drain(c->unix_door.server, 0, on_drained, c);
    http_server_drain(c->tcp_door.server, 0, on_drained, c);
}
