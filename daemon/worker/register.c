/* A peer is always in one of three situations: a call is under way, or its timer
 * is set, or it was left. The timer decides by `joined` what the next call is.
 *
 * To register anew replaces the entry at the controller. The watch from before
 * counts no more there, so it ends only once the controller has answered, and a
 * new one is opened.
 *
 * Retries wait 0.25 s, doubling to 4 s, with jitter; only a heartbeat that was
 * answered resets that, so a controller that accepts and forgets at once is not
 * flooded. */
#include "daemon/worker/register.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/id.h"
#include "base/json.h"
#include "base/log.h"
#include "daemon/worker/worker.h"
#include "ipc/address.h"
#include "ipc/http_client.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
    BEAT_OURS_MS = 1000, BEAT_OTHERS_MS = 45000, BEAT_RETRY_MS = 5000, LEASE_MS = 10000,
    BACKOFF_MIN_MS = 20, BACKOFF_MAX_MS = 4000, CALL_MS = 5000, WATCH_SILENCE_MS = 30000,
    REPLY_BYTES = 65536,
};

enum said { SAID_NOTHING, SAID_JOINED, SAID_AWAY };

struct peer {
    struct registrar *registrar;
    struct address address;
    bool ours, joined;
    bool stale;                 /* it was told what is true no more */
    unsigned failures;
    enum said said;
    uint64_t pulse_seen;
    struct loop_timer *timer;
    struct http_call *call, *watch;
    int status;
    struct buf reply;
};

struct registrar {
    struct worker *worker;
    uint64_t beat_others_us;
    int64_t instance;           /* tells this process from others of its name */
    bool tried;                 /* the first controller was asked once */
    size_t n;
    struct peer peers[];        /* the service's own is the first */
};

DEFINE_CLEANUP(struct registrar *, registrar_close)

static void say_joined(struct peer *p)
{
    if (p->said != SAID_JOINED)
        log_notice("registered with the controller %s", p->address.text);
    p->said = SAID_JOINED;
}

static void say_away(struct peer *p, const char *why)
{
    if (p->said != SAID_AWAY)
        log_warning("not registered with the controller %s: %s (trying on)", p->address.text, why);
    p->said = SAID_AWAY;
}

static void stop_watch(struct peer *p)
{
    if (p->watch)
        http_call_cancel(STEAL(p->watch));
}

/* Register again, after a while. */
static void back_off(struct peer *p)
{
    uint64_t ms = BACKOFF_MIN_MS;

    for (unsigned i = 0; i < p->failures && ms < BACKOFF_MAX_MS; i++)
        ms *= 2;
    if (p->failures < 100)
        p->failures++;
    if (p->call)
        http_call_cancel(STEAL(p->call));
    stop_watch(p);
    p->joined = false;
    loop_timer_set(p->timer, ms * (750 + id_random_u64() % 500));
}

/* Whether it worked or not: the worker has done what it could to be found. */
static void note_try(struct peer *p)
{
    struct registrar *r = p->registrar;

    if (r->tried || p != &r->peers[0])
        return;
    r->tried = true;
    worker_announce(r->worker);
}

static void on_head(struct http_call *c, int status, void *user)
{
    ((struct peer *)user)->status = status;
}

static void on_reply_data(struct http_call *c, const char *data, size_t len, void *user)
{
    buf_add(&((struct peer *)user)->reply, data, len);
}

static int post(struct peer *p, const char *path, const struct buf *body, struct http_call_spec *spec,
                struct http_call **ret)
{
    static const char *const headers[] = { "Content-Type: application/json", NULL };
    const struct address *a = &p->address;
    struct err err = { 0 };
    char url[256];
    int r;

    if (body->failed)
        r = err_set(&err, -ENOMEM, "out of memory");
    else {
        if (a->is_unix)
            snprintf(url, sizeof url, "http://localhost%s", path);
        else
            snprintf(url, sizeof url, strchr(a->host, ':') ? "http://[%s]:%u%s" : "http://%s:%u%s", a->host,
                     a->port, path);
        spec->unix_path = a->is_unix ? a->path : NULL;
        spec->url = url;
        spec->method = "POST";
        spec->body = buf_str(body);
        spec->body_len = body->len;
        spec->headers = headers;
        spec->user = p;
        r = http_call_start(p->registrar->worker->client, spec, ret, &err);
    }
    if (r < 0) {
        say_away(p, err_text(&err));
        back_off(p);
    }
    return r;
}

static int post_call(struct peer *p, const char *path, const struct buf *body,
                     void (*done)(struct http_call *, const struct http_call_result *, void *))
{
    struct http_call_spec spec = {
        .connect_us = CALL_MS * 1000, .total_us = CALL_MS * 1000,
        .on_head = on_head, .on_data = on_reply_data, .on_done = done,
    };

    buf_clear(&p->reply);
    p->reply.limit = REPLY_BYTES;
    p->status = 0;
    return post(p, path, body, &spec, &p->call);
}

/* A whole 200; otherwise it says why not. */
static bool answered(struct peer *p, const struct http_call_result *result)
{
    char why[64];

    p->call = NULL;
    if (result->error == 0 && p->status == 200 && !p->reply.failed)
        return true;
    snprintf(why, sizeof why, "it answered with status %d", p->status);
    /* The client's sentence names a host and a port, which a Unix socket has not. */
    say_away(p, !result->error ? why : p->address.is_unix ? strerror(-result->error) : result->text);
    return false;
}

/* ---- the watch ---- */

static void on_watch_data(struct http_call *c, const char *data, size_t len, void *user)
{
}

static void on_watch_done(struct http_call *c, const struct http_call_result *result, void *user)
{
    struct peer *p = user;

    p->watch = NULL;
    say_away(p, "the connection to it ended");
    back_off(p);
}

static void write_name(struct peer *p, struct json_writer *w)
{
    json_open(w, '{');
    json_kstr(w, "worker_name", p->registrar->worker->set.worker_name);
}

static int start_watch(struct peer *p)
{
    BUF_LOCAL body = BUF_INIT;
    struct json_writer w = json_writer(&body);
    struct http_call_spec spec = {
        .connect_us = CALL_MS * 1000, .silence_us = WATCH_SILENCE_MS * 1000,
        .on_data = on_watch_data, .on_done = on_watch_done,
    };

    write_name(p, &w);
    json_close(&w, '}');
    return post(p, "/worker_watch", &body, &spec, &p->watch);
}

/* ---- registration ---- */

static bool is_ours(const struct buf *reply)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    const cJSON *ours = NULL;
    int64_t version = 0;

    if (json_parse(buf_str(reply), reply->len, NULL, &tree, NULL) < 0 || !cJSON_IsObject(tree))
        return false;
    return json_get_object(tree, "fastchat", &ours, NULL) == 0 &&
           json_get_int(ours, "version", 1, 1000, &version, NULL) == 0;
}

static void beat_later(struct peer *p)
{
    loop_timer_set(p->timer, p->stale ? 0 : p->ours ? BEAT_OURS_MS * 1000 : p->registrar->beat_others_us);
}

static void on_registered(struct http_call *c, const struct http_call_result *result, void *user)
{
    struct peer *p = user;

    if (!answered(p, result)) {
        back_off(p);
        note_try(p);
        return;
    }
    p->joined = true;
    p->ours = is_ours(&p->reply);
    stop_watch(p);
    note_try(p);
    if (p->ours && start_watch(p) < 0)
        return;
    say_joined(p);
    beat_later(p);
}

static void write_ours(struct worker *w, int64_t instance, struct json_writer *out)
{
    json_key(out, "fastchat");
    json_open(out, '{');
    json_kint(out, "version", 2);
    json_kint(out, "instance", instance);
    json_kstr(out, "unix", w->set.unix_path);
    json_kint(out, "lease_ms", LEASE_MS);
    json_kint(out, "context_length", engine_info(w->engine)->context_length);
    json_kint(out, "parallel", w->set.parallel);
    json_kint(out, "queue", w->set.queue);
    json_key(out, "aliases");
    json_open(out, '[');
    for (size_t i = 0; i < w->set.n_aliases; i++)
        json_str(out, w->set.aliases[i]);
    json_close(out, ']');
    json_close(out, '}');
}

static void send_registration(struct peer *p)
{
    BUF_LOCAL body = BUF_INIT;
    struct json_writer w = json_writer(&body);

    p->stale = false;
    write_name(p, &w);
    json_kbool(&w, "check_heart_beat", true);
    json_key(&w, "worker_status");
    json_open(&w, '{');
    worker_status(p->registrar->worker, &w);
    json_close(&w, '}');
    json_kbool(&w, "multimodal", false);
    write_ours(p->registrar->worker, p->registrar->instance, &w);
    json_close(&w, '}');
    if (post_call(p, "/register_worker", &body, on_registered) < 0)
        note_try(p);
}

/* ---- heartbeats ---- */

/* While the watch of ours is open it has us in its table, whatever became of one
 * call; without one it is asked anew at once. Of a Python controller nobody can
 * tell whether it has forgotten, so the beat itself is tried again (contract 1.4). */
static void beat_failed(struct peer *p)
{
    if (p->ours && p->watch)
        beat_later(p);
    else if (p->ours)
        back_off(p);
    else
        loop_timer_set(p->timer, BEAT_RETRY_MS * 1000);
}

static void on_beaten(struct http_call *c, const struct http_call_result *result, void *user)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    struct peer *p = user;
    bool exist = false;

    if (!answered(p, result)) {
        beat_failed(p);
        return;
    }
    if (json_parse(buf_str(&p->reply), p->reply.len, NULL, &tree, NULL) < 0 || !cJSON_IsObject(tree) ||
        json_get_bool(tree, "exist", &exist, NULL) != 0) {
        say_away(p, "it answered a heartbeat with something else");
        beat_failed(p);
        return;
    }
    p->failures = 0;
    if (exist) {
        say_joined(p);
        beat_later(p);
        return;
    }
    say_away(p, "it has forgotten this worker");
    stop_watch(p);
    p->joined = false;
    loop_timer_set(p->timer, 0);
}

static void send_beat(struct peer *p)
{
    BUF_LOCAL body = BUF_INIT;
    struct json_writer w = json_writer(&body);
    uint64_t busy_ms;

    /* A frozen engine is not advertised as alive. */
    if (!worker_alive(p->registrar->worker, &p->pulse_seen, &busy_ms)) {
        beat_later(p);
        return;
    }
    write_name(p, &w);
    json_kint(&w, "queue_length", worker_queue_length(p->registrar->worker));
    json_close(&w, '}');
    post_call(p, "/receive_heart_beat", &body, on_beaten);
}

static void on_timer(void *user)
{
    struct peer *p = user;

    if (p->joined && !p->stale)
        send_beat(p);
    else
        send_registration(p);
}

/* ---- the whole ---- */

static uint64_t interval_of_environment(void)
{
    const char *text = getenv("FASTCHAT_WORKER_HEART_BEAT_INTERVAL");
    char *end = NULL;
    unsigned long s = text ? strtoul(text, &end, 10) : 0;

    return (text && end != text && !*end && s >= 1 && s <= 86400 ? s * 1000 : BEAT_OTHERS_MS) * 1000;
}

/* http://host:port or unix:PATH */
static int parse_controller(const char *text, struct address *ret, struct err *err)
{
    static const char scheme[] = "http://";
    struct err inner = { 0 };
    bool http = strncmp(text, scheme, sizeof scheme - 1) == 0;

    if (!http && strncmp(text, "unix:", 5) != 0)
        return err_set(err, -EINVAL, "controller \"%s\": is neither http://host:port nor unix:PATH", text);
    if (address_parse(http ? text + sizeof scheme - 1 : text, ret, &inner) < 0)
        return err_set(err, -EINVAL, "controller \"%s\": %s", text, err_text(&inner));
    return 0;
}

int registrar_open(struct worker *w, struct registrar **ret, struct err *err)
{
    size_t n = w->set.n_controllers;
    CLEANUP(registrar_close) struct registrar *r = calloc(1, sizeof *r + n * sizeof r->peers[0]);

    if (!r)
        return err_set(err, -ENOMEM, "no memory for %zu controllers", n);
    r->worker = w;
    r->instance = (int64_t)(id_random_u64() >> 12) + 1;
    r->beat_others_us = interval_of_environment();
    for (; r->n < n; r->n++) {
        struct peer *p = &r->peers[r->n];
        int e;

        p->registrar = r;
        e = parse_controller(w->set.controllers[r->n], &p->address, err);
        if (e == 0 && (e = loop_timer_new(w->loop, on_timer, p, &p->timer)) < 0)
            err_errno(err, e, "timer");
        if (e < 0)
            return e;
    }
    *ret = STEAL(r);
    return 0;
}

void registrar_start(struct registrar *r)
{
    for (size_t i = 0; i < r->n; i++)
        loop_timer_set(r->peers[i].timer, 0);
    if (r->n == 0)
        worker_announce(r->worker);
}

/* A peer with a call under way, or that waits for its next try, comes to it by
 * itself. */
void registrar_renew(struct registrar *r)
{
    for (size_t i = 0; i < r->n; i++) {
        struct peer *p = &r->peers[i];

        p->stale = true;
        if (p->joined && !p->call)
            loop_timer_set(p->timer, 0);
    }
}

void registrar_leave(struct registrar *r)
{
    for (size_t i = 0; i < r->n; i++) {
        struct peer *p = &r->peers[i];

        loop_timer_off(p->timer);
        if (p->call)
            http_call_cancel(STEAL(p->call));
        stop_watch(p);
    }
}

void registrar_close(struct registrar *r)
{
    if (!r)
        return;
    registrar_leave(r);
    for (size_t i = 0; i < r->n; i++) {
        loop_timer_free(r->peers[i].timer);
        buf_fini(&r->peers[i].reply);
    }
    free(r);
}
