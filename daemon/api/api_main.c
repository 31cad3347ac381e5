/* The api: HTTP in front, workers behind, one thread and one loop. */
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "daemon/api/api.h"
#include "daemon/api/catalog.h"
#include "daemon/api/chat.h"
#include "daemon/api/endpoints.h"
#include "daemon/api/routes.h"
#include "daemon/child.h"
#include "daemon/roles.h"
#include "ipc/http_client.h"
#include "ipc/loop.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* GRACE_US: for the next request of a kept connection once the drain has begun.
 * BLIND_US: how long to wait for the controller before serving without it. */
enum { GRACE_US = 1000000, BLIND_US = 1000000, TICK_MIN_US = 20000, TICK_MAX_US = 1000000 };

struct process {
    struct api api;
    struct child *child;
    struct routes *routes;
    struct loop_timer *tick, *blind, *patience;
    struct http_limits limits;
    bool serving, draining;
};

DEFINE_CLEANUP(struct child *, child_close)

/* ---- settings ---- */

static int get_seconds(const cJSON *settings, const char *key, uint64_t *ret_us, struct err *err)
{
    double s;
    int r = json_get_number(settings, key, &s, err);

    if (r < 0)
        return r;
    if (r == JSON_ABSENT)
        return 0;
    if (s < 0 || s > 86400 * 366)
        return err_set(err, -EINVAL, "'%s' must be between 0 and a year, but is %g s", key, s);
    *ret_us = (uint64_t)(s * 1e6);
    return 0;
}

static int get_limits(const cJSON *settings, struct http_limits *ret, struct err *err)
{
    const cJSON *limits = NULL;
    int64_t conns = 0, header_kb = 0, body_mb = 0, processes = 1;

    if (json_get_object(settings, "limits", &limits, err) < 0 ||
        json_get_int(limits, "max_connections", 1, 1000000, &conns, err) < 0 ||
        json_get_int(limits, "header_kb", 1, 1024, &header_kb, err) < 0 ||
        json_get_int(limits, "body_mb", 1, 1024, &body_mb, err) < 0 ||
        get_seconds(limits, "header_s", &ret->header_us, err) < 0 ||
        get_seconds(limits, "body_s", &ret->body_us, err) < 0 ||
        get_seconds(limits, "idle_s", &ret->idle_us, err) < 0 ||
        get_seconds(limits, "stall_s", &ret->stall_us, err) < 0 ||
        json_get_int(settings, "processes", 1, 1000, &processes, err) < 0)
        return -EINVAL;
    ret->shared = processes > 1;
    ret->max_conns = (uint32_t)conns;
    ret->header_bytes = (uint32_t)header_kb << 10;
    ret->body_bytes = (size_t)body_mb << 20;
    return 0;
}

/* What may change while requests run; all of it or nothing. */
static int take_settings(struct process *p, const cJSON *settings, struct err *err)
{
    uint64_t wait_us = 0, ping_us = 15000000, load_wait_us = 300000000;
    struct http_limits limits = { 0 };
    const cJSON *models = NULL;
    int r;

    if (get_limits(settings, &limits, err) < 0 ||
        get_seconds(settings, "wait_s", &wait_us, err) < 0 ||
        get_seconds(settings, "ping_s", &ping_us, err) < 0 ||
        get_seconds(settings, "load_wait_s", &load_wait_us, err) < 0 ||
        json_get_array(settings, "models", &models, err) < 0)
        return -EINVAL;
    r = catalog_configure(p->api.catalog, models, err);
    if (r < 0)
        return err_set(err, r, "no memory for the models");
    p->api.wait_us = wait_us;
    p->api.ping_us = ping_us;
    p->api.load_wait_us = load_wait_us;
    p->limits = limits;
    return 0;
}

/* ---- what the supervisor says ---- */

static void on_tick(void *user)
{
    struct process *p = user;
    uint64_t in = TICK_MAX_US;

    chat_tick(&p->api);
    if (p->api.ping_us && p->api.ping_us / 4 < in)
        in = p->api.ping_us / 4;
    if (p->api.wait_us && p->api.wait_us / 4 < in)
        in = p->api.wait_us / 4;
    if (p->api.load_wait_us && p->api.load_wait_us / 4 < in)
        in = p->api.load_wait_us / 4;
    loop_timer_set(p->tick, in < TICK_MIN_US ? TICK_MIN_US : in);
}

static void on_drained(void *user)
{
    struct process *p = user;

    loop_stop(p->api.loop, EXIT_DONE);
}

static void lose_patience(void *user)
{
    struct process *p = user;

    chat_drain(&p->api);
}

static void on_drain(uint64_t limit_ms, void *user)
{
    struct process *p = user;
    uint64_t grace_us = limit_ms / 2 * 1000;

    /* One that is replaced has time for what waits, but tells it before it is cut. */
    p->draining = true;
    if (child_is_replaced(p->child))
        loop_timer_set(p->patience, limit_ms * 900);
    else
        chat_drain(&p->api);
    log_info("draining: %zu requests run", http_server_active(p->api.server));
    http_server_drain(p->api.server, grace_us < GRACE_US ? grace_us : GRACE_US, on_drained, p);
}

static void on_models(const cJSON *models, void *user)
{
    struct process *p = user;

    catalog_states(p->api.catalog, models);
    chat_look(&p->api);
}

static void on_listen(const char *name, int fd, void *user)
{
    struct process *p = user;
    struct err err = { 0 };

    if (http_server_listen(p->api.server, fd, &err) < 0) {
        log_error("%s: %s", name, err_text(&err));
        close(fd);
    }
}

static int on_reload(const cJSON *settings, void *user, struct err *err)
{
    struct process *p = user;
    int r = take_settings(p, settings, err);

    if (r < 0)
        return r;
    http_server_set_limits(p->api.server, &p->limits);
    chat_look(&p->api);
    on_tick(p);                 /* in its new time */
    return 0;
}

static void on_stats(struct json_writer *w, void *user)
{
    struct process *p = user;

    if (!p->api.server)
        return;
    json_kint(w, "connections", (int64_t)http_server_conns(p->api.server));
    json_kint(w, "requests", (int64_t)p->api.n_requests);
    json_kint(w, "active", (int64_t)http_server_active(p->api.server));
    json_kint(w, "waiting", (int64_t)p->api.n_waiting);
    json_kint(w, "failed", (int64_t)p->api.n_failed);
}

/* ---- start and end ---- */

static void on_shortage(int error, void *user)
{
    log_warning("connections are refused: %s", strerror(-error));
}

static int listen_all(struct process *p, struct err *err)
{
    char name[16];
    int fd, r;

    for (int i = 0;; i++) {
        snprintf(name, sizeof name, "api.%d", i);
        fd = child_take_socket(p->child, name);
        if (fd < 0)
            return i ? 0 : err_set(err, -EINVAL, "there is no socket to listen on");
        r = http_server_listen(p->api.server, fd, err);
        if (r < 0)
            return r;
    }
}

/* Connections are taken from now on. Until the first table has come this
 * process knows no worker, and another one that listens may. */
static void serve(void *user)
{
    struct process *p = user;
    struct err err = { 0 };

    if (p->serving || p->draining)
        return;
    p->serving = true;
    if (listen_all(p, &err) == 0) {
        child_state(p->child, "ready", NULL);
        return;
    }
    log_error("%s", err_text(&err));
    child_state(p->child, "failed", err_text(&err));
    loop_stop(p->api.loop, EXIT_FAILED);
}

static int start(struct process *p, struct err *err)
{
    static const struct http_route all = { .path = "/*", .fn = endpoints_handle };
    const struct http_config config = {
        .routes = &all, .n_routes = 1, .user = &p->api, .limits = p->limits,
        .error_body = endpoints_error_body, .access = endpoints_access,
        .shortage = on_shortage,
    };
    int r;

    if ((r = http_client_open(p->api.loop, &p->api.client, err)) < 0 ||
        (r = http_server_open(p->api.loop, &config, &p->api.server, err)) < 0 ||
        (r = routes_open(&p->api, serve, p, &p->routes, err)) < 0)
        return r;
    http_server_gather(p->api.server);
    r = loop_timer_new(p->api.loop, on_tick, p, &p->tick);
    if (r == 0)
        r = loop_timer_new(p->api.loop, serve, p, &p->blind);
    if (r == 0)
        r = loop_timer_new(p->api.loop, lose_patience, p, &p->patience);
    if (r < 0)
        return err_errno(err, r, "no timer");
    on_tick(p);
    loop_timer_set(p->blind, BLIND_US);
    return 0;
}

static int open_process(struct process *p, struct err *err)
{
    const cJSON *settings = child_settings(p->child);
    const char *controller = NULL;

    p->api.child = p->child;
    p->api.loop = child_loop(p->child);
    p->api.start_s = clock_wall_s();
    p->api.catalog = catalog_new();
    if (!p->api.catalog)
        return err_set(err, -ENOMEM, "no memory");
    if (json_get_string(settings, "controller", &controller, err) != 0)
        return err_set(err, -EINVAL, "'controller' is missing");
    p->api.controller = strdup(controller);
    if (!p->api.controller)
        return err_set(err, -ENOMEM, "no memory");
    return take_settings(p, settings, err);
}

/* The server first: its requests cancel their calls. */
static void close_process(struct process *p)
{
    http_server_close(p->api.server);
    routes_close(p->routes);
    http_client_close(p->api.client);
    loop_timer_free(p->tick);
    loop_timer_free(p->blind);
    loop_timer_free(p->patience);
    catalog_free(p->api.catalog);
    upstream_scratch_fini(&p->api.scratch);
    buf_fini(&p->api.out);
    buf_fini(&p->api.body);
    free(p->api.controller);
    child_close(p->child);
}

int api_main(int argc, char **argv)
{
    struct process p = { 0 };
    const struct child_ops ops = {
        .drain = on_drain, .models = on_models, .listen = on_listen, .reload = on_reload, .stats = on_stats,
        .user = &p,
    };
    struct err err = { 0 };
    int code = EXIT_FAILED, r;

    r = child_open("api", &ops, &p.child, &err);
    if (r < 0) {
        log_error("api: %s", err_text(&err));
        return EXIT_FAILED;
    }
    r = open_process(&p, &err);
    if (r == -EINVAL)
        code = EXIT_CONFIG;
    if (r == 0)
        r = start(&p, &err);
    if (r < 0) {
        log_error("%s", err_text(&err));
        child_state(p.child, "failed", err_text(&err));
    } else {
        code = loop_run(p.api.loop);
    }
    close_process(&p);
    return code;
}
