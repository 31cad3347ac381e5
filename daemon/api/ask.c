/* A question lives in its request's arena and is in api->asks from ask_go() to its end. After ask_end() and ask_fail()
 * the request may be freed already: their callers touch nothing and return. */
#include "daemon/api/ask.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "daemon/api/catalog.h"
#include "daemon/api/chat.h"
#include "ipc/http_client.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CONNECT_US = 2000000,
    SUSPECT_US = 2000000, SUSPECT_BUSY_US = 250000,     /* as for a chat */
    ANSWER_BYTES = 64 << 20,
};

static void next_worker(struct ask *a);
static void fail(struct ask *a, const struct api_error *e);

/* ---- the end ---- */

static void release_call(struct ask *a)
{
    if (a->call)
        http_call_cancel(STEAL(a->call));
    if (a->worker)
        catalog_release_worker(a->api->catalog, STEAL(a->worker));
}

static void release(struct ask *a)
{
    release_call(a);
    if (a->model)
        catalog_release_model(a->api->catalog, STEAL(a->model), 1);
    if (a->ops->fini)
        a->ops->fini(a);
    buf_fini(&a->answer);
    if (a->at) {
        *a->at = a->next;
        if (a->next)
            a->next->at = a->at;
        a->at = NULL;
    }
}

void ask_reply(struct ask *a, struct buf *json)
{
    struct http_request *req = a->req;
    BUF_LOCAL body = *json;

    *json = (struct buf){ 0 };
    if (body.failed) {
        struct api_error e = { 0 };

        api_error_set(&e, 503, NULL, NULL, "No memory for this answer.");
        fail(a, &e);
        return;
    }
    release(a);
    http_reply_json(req, 200, buf_str(&body));
}

static void on_gone(struct http_request *req)
{
    release(req->user);
}

static void fail(struct ask *a, const struct api_error *e)
{
    struct http_request *req = a->req;
    struct api_error error = *e;

    a->note.failed = true;
    release(a);
    api_reply_error(req, &error);
}

/* ---- a call ---- */

static void on_head(struct http_call *call, int status, void *user)
{
    struct ask *a = user;

    a->status = status;
    a->retry_after_s = api_retry_after_s(http_call_header(call, "Retry-After"));
}

static void on_data(struct http_call *call, const char *data, size_t len, void *user)
{
    buf_add(&((struct ask *)user)->answer, data, len);
}

/* Notes why; true: somebody else may do better. */
static bool read_failure(struct ask *a, const struct http_call_result *result)
{
    CLEANUP(json_delete) cJSON *body = NULL;

    a->error = (struct api_error){ 0 };
    if (result->error || a->status == 0) {
        api_error_set(&a->error, 503, NULL, NULL, "No worker of the model '%s' could take the request.", a->model->name);
        a->error.retry_after_s = 1;
        return true;
    }
    json_parse(buf_str(&a->answer), a->answer.len, NULL, &body, NULL);
    api_error_of_worker(&a->error, a->status, body);
    if (a->error.status == 503)
        a->error.retry_after_s = a->retry_after_s;
    return a->error.status >= 500 && a->error.status != 501;
}

/* It loads or drains. */
static bool is_passing(const struct ask *a)
{
    return a->status == 503 && (strcmp(a->error.code, "draining") == 0 || strcmp(a->error.code, "loading") == 0);
}

/* suspect_us: others come first for so long; 0: it was there, and will say the same again. */
static void note_tried(struct ask *a, uint64_t suspect_us)
{
    a->tried[a->n_tried++] = a->worker->serial;
    a->answered |= !suspect_us;
    if (suspect_us)
        a->worker->suspect_until_us = clock_mono_us() + suspect_us;
}

static void on_done(struct http_call *call, const struct http_call_result *result, void *user)
{
    struct ask *a = user;
    bool kept = result->reused && !a->again;
    int r;

    a->call = NULL;
    if (!result->error && a->status == 200 && !a->answer.failed) {
        release_call(a);
        a->error = (struct api_error){ 0 };
        a->n_tried = 0;
        a->answered = false;
        r = a->ops->take(a);
        if (r == ASK_MORE)
            next_worker(a);
        else if (r < 0)
            fail(a, &a->error);
        return;
    }
    if (!read_failure(a, result)) {
        fail(a, &a->error);
        return;
    }
    log_info("worker %s: did not answer a question: %s", a->worker->name, result->error ? result->text : a->error.message);
    a->again = result->error && !a->status && kept;
    if (!a->again)
        note_tried(a, result->error ? SUSPECT_US : is_passing(a) ? SUSPECT_BUSY_US : 0);
    release_call(a);
    next_worker(a);
}

static int call_worker(struct ask *a, const char *path, struct err *err)
{
    const struct worker *w = a->worker;
    struct buf *body = &a->api->body;
    char url[512];
    struct http_call_spec spec = {
        .unix_path = w->unix_path, .url = url, .connect_us = CONNECT_US, .silence_us = a->api->wait_us, .fresh = a->again,
        .user = a, .on_head = on_head, .on_data = on_data, .on_done = on_done,
    };
    int r = snprintf(url, sizeof url, "%s%s", w->unix_path ? "http://worker" : w->url, path);

    if (r < 0 || (size_t)r >= sizeof url)
        return err_set(err, -EINVAL, "its address is too long");
    a->status = 0;
    buf_clear(&a->answer);
    buf_clear(body);
    a->ops->write(a, body);
    if (body->failed)
        return err_set(err, -ENOMEM, "no memory for the question");
    spec.body = buf_str(body);
    spec.body_len = body->len;
    return http_call_start(a->api->client, &spec, &a->call, err);
}

/* Nobody is there: waits for somebody to come, or fails. */
static void wait_or_fail(struct ask *a)
{
    struct api_error e = { 0 };

    if (!a->answered && wait_may(a->api, a->model, &e)) {
        a->waiting = true;
        a->n_tried = 0;
        if (!a->wait_us)
            a->wait_us = clock_mono_us();
        return;
    }
    if (!a->error.status)
        a->error = e;
    fail(a, &a->error);
}

static void next_worker(struct ask *a)
{
    struct catalog *catalog = a->api->catalog;
    struct err err = { 0 };

    a->waiting = false;
    while (a->n_tried < ASK_TRIES) {
        const char *path;

        a->worker = catalog_pick(catalog, a->model, a->tried, a->n_tried, clock_mono_us());
        if (!a->worker)
            break;
        catalog_lease_worker(a->worker);
        path = a->ops->path(a, a->worker);
        if (path && call_worker(a, path, &err) == 0)
            return;
        if (path)
            log_warning("worker %s: %s", a->worker->name, err_text(&err));
        api_error_set(&a->error, path ? 503 : 501, path ? NULL : "not_supported", NULL,
                      "The worker of the model '%s' can not answer this.", a->model->name);
        err_clear(&err);
        note_tried(a, 0);
        catalog_release_worker(catalog, STEAL(a->worker));
    }
    wait_or_fail(a);
}

/* ---- the beginning ---- */

static bool take_model(struct ask *a, struct model *model, struct api_error *e)
{
    if (catalog_admit(a->api->catalog, model, 1, e) < 0 || !wait_may(a->api, model, e))
        return false;
    catalog_lease_model(a->api->catalog, model, 1);
    a->model = model;
    return true;
}

void *ask_new(struct api *api, struct http_request *req, const struct ask_ops *ops, size_t size, struct model *model,
              struct api_error *e)
{
    struct note *note = req->user;
    struct ask *a = arena_alloc(req->arena, size);

    if (!a) {
        api_error_set(e, 503, NULL, NULL, "No memory for this request.");
        return NULL;
    }
    note->model = arena_strdup(req->arena, model->name);
    a->note = *note;
    a->ops = ops;
    a->api = api;
    a->req = req;
    a->answer.limit = ANSWER_BYTES;
    return take_model(a, model, e) ? a : NULL;
}

void ask_go(struct ask *a)
{
    struct api *api = a->api;

    a->at = &api->asks;
    a->next = api->asks;
    if (a->next)
        a->next->at = &a->next;
    api->asks = a;
    a->req->user = a;
    a->req->on_gone = on_gone;
    next_worker(a);
}

int ask_turn_to(struct ask *a, struct model *model)
{
    if (model == a->model)
        return 0;
    catalog_release_model(a->api->catalog, STEAL(a->model), 1);
    a->wait_us = 0;
    return take_model(a, model, &a->error) ? 0 : -EINVAL;
}

struct model *ask_model(struct api *api, const char *name, struct api_error *e)
{
    struct model *m = name ? catalog_find(api->catalog, name) : catalog_only(api->catalog, e);

    if (!m)
        api_error_set(e, 404, "model_not_found", "model", "The model '%.256s' does not exist.", name ? name : "");
    return m;
}

/* ---- time ---- */

static void look(struct ask *a, uint64_t now)
{
    const struct worker *w = catalog_pick(a->api->catalog, a->model, NULL, 0, now);
    struct api_error e = { 0 };

    if (w && w->suspect_until_us <= now) {
        next_worker(a);
    } else if (!wait_may(a->api, a->model, &e)) {
        fail(a, &e);
    } else if (now - a->wait_us >= a->api->load_wait_us) {
        catalog_comes(a->model, &e);
        fail(a, &e);
    }
}

void ask_look(struct api *api)
{
    uint64_t now = clock_mono_us();

    for (struct ask *a = api->asks, *next; a; a = next) {
        next = a->next;
        if (a->waiting)
            look(a, now);
    }
}
