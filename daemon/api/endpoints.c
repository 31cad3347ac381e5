#include "daemon/api/endpoints.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/id.h"
#include "base/json.h"
#include "base/log.h"
#include "daemon/api/api.h"
#include "daemon/api/api_error.h"
#include "daemon/api/catalog.h"
#include "daemon/api/chat.h"
#include "daemon/api/models_answer.h"
#include "daemon/api/text.h"

#include <stdio.h>
#include <string.h>

/* ---- what all answers share ---- */

static bool sane_id(const char *id)
{
    size_t n = strlen(id);

    return n > 0 && n <= API_REQUEST_ID &&
           strspn(id, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                      "-_.:+/=@~") == n;
}

void api_add_headers(struct http_request *req, const char *id)
{
    http_add_header(req, "X-Request-Id", id);
    http_add_header(req, "Access-Control-Allow-Origin", "*");
}

void api_reply_error(struct http_request *req, const struct api_error *e)
{
    BUF_LOCAL body = BUF_INIT;
    char seconds[16];

    if (e->retry_after_s) {
        snprintf(seconds, sizeof seconds, "%u", e->retry_after_s);
        http_add_header(req, "Retry-After", seconds);
    }
    api_error_write(e, &body);
    http_reply_json(req, e->status, buf_str(&body));
}

static void refuse(struct http_request *req, int status, const char *code, const char *text)
{
    struct note *note = req->user;
    struct api_error e = { 0 };

    note->failed = true;
    api_error_set(&e, status, code, NULL, "%s", text);
    api_reply_error(req, &e);
}

/* ---- models ---- */

static void get_models(struct api *api, struct http_request *req, const char *rest)
{
    CLEANUP(mem_free) struct catalog_entry *list = NULL;
    BUF_LOCAL body = BUF_INIT;
    size_t n = 0;

    if (catalog_list(api->catalog, &list, &n) == 0)
        models_write_list(list, n, api->start_s, &body);
    if (!list || body.failed)
        refuse(req, 503, NULL, "No memory for this answer.");
    else
        http_reply_json(req, 200, buf_str(&body));
}

static void get_model(struct api *api, struct http_request *req, const char *id)
{
    CLEANUP(mem_free) struct catalog_entry *list = NULL;
    BUF_LOCAL body = BUF_INIT;
    struct api_error e = { 0 };
    struct note *note = req->user;
    size_t n = 0;

    catalog_list(api->catalog, &list, &n);
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i].id, id) == 0) {
            models_write_one(&list[i], api->start_s, &body);
            http_reply_json(req, 200, buf_str(&body));
            return;
        }
    note->failed = true;
    api_error_set(&e, 404, "model_not_found", "model", "The model '%.256s' does not exist.", id);
    api_reply_error(req, &e);
}

/* ---- health: a status, and nothing about what runs here ---- */

static void get_health(struct api *api, struct http_request *req, const char *rest)
{
    enum catalog_health health = catalog_health(api->catalog);
    struct api_error e = { 0 };
    BUF_LOCAL error = BUF_INIT;
    BUF_LOCAL body = BUF_INIT;

    if (health == CATALOG_OK) {
        http_reply_json(req, 200, "{\"status\":\"ok\"}");
        return;
    }
    api_error_set(&e, 503, NULL, NULL, "%s",
                  health == CATALOG_LOADING ? "Loading model" : "No model is ready");
    api_error_write(&e, &error);
    /* {"error":{…}} gets the status in front. */
    buf_printf(&body, "{\"status\":\"%s\",%s", health == CATALOG_LOADING ? "loading" : "failed",
               buf_str(&error) + 1);
    http_add_header(req, "Retry-After", health == CATALOG_LOADING ? "2" : "30");
    http_reply_json(req, 503, buf_str(&body));
}

static void get_live(struct api *api, struct http_request *req, const char *rest)
{
    http_reply_json(req, 200, "{\"status\":\"ok\"}");
}

static void post_chat(struct api *api, struct http_request *req, const char *rest)
{
    chat_start(api, req);
}

static void post_tokenize(struct api *api, struct http_request *req, const char *rest)
{
    text_tokenize(api, req);
}

static void post_detokenize(struct api *api, struct http_request *req, const char *rest)
{
    text_detokenize(api, req);
}

static void post_apply_template(struct api *api, struct http_request *req, const char *rest)
{
    text_apply_template(api, req);
}

static void post_token_check(struct api *api, struct http_request *req, const char *rest)
{
    text_token_check(api, req);
}

/* ---- the table ---- */

struct endpoint {
    const char *path;           /* behind the optional /v1; with "/" at its end: a prefix */
    const char *method, *allow;
    void (*fn)(struct api *api, struct http_request *req, const char *rest);
    bool quiet;                 /* asked every few seconds: logged at debug level */
};

static const struct endpoint endpoints[] = {
    { "/api/v1/token_check", "POST", "OPTIONS, POST", post_token_check, false },
    { "/apply-template", "POST", "OPTIONS, POST", post_apply_template, false },
    { "/chat/completions", "POST", "OPTIONS, POST", post_chat, false },
    { "/detokenize", "POST", "OPTIONS, POST", post_detokenize, false },
    { "/health", "GET", "GET, HEAD, OPTIONS", get_health, true },
    { "/healthz", "GET", "GET, HEAD, OPTIONS", get_health, true },
    { "/livez", "GET", "GET, HEAD, OPTIONS", get_live, true },
    { "/models", "GET", "GET, HEAD, OPTIONS", get_models, false },
    { "/models/", "GET", "GET, HEAD, OPTIONS", get_model, false },
    { "/readyz", "GET", "GET, HEAD, OPTIONS", get_health, true },
    { "/tokenize", "POST", "OPTIONS, POST", post_tokenize, false },
};

static const struct endpoint *find(const char *path, const char **ret_rest)
{
    if (strncmp(path, "/v1/", 4) == 0)
        path += 3;
    for (size_t i = 0; i < sizeof endpoints / sizeof endpoints[0]; i++) {
        const struct endpoint *e = &endpoints[i];
        size_t n = strlen(e->path);

        if (e->path[n - 1] == '/' ? strncmp(path, e->path, n) == 0 && path[n]
                                  : strcmp(path, e->path) == 0) {
            *ret_rest = path + n;
            return e;
        }
    }
    return NULL;
}

static void preflight(struct http_request *req)
{
    const char *wanted = http_header(req, "access-control-request-headers");

    http_add_header(req, "Access-Control-Allow-Methods",
                    "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT");
    http_add_header(req, "Access-Control-Max-Age", "600");
    if (wanted) {
        http_add_header(req, "Access-Control-Allow-Headers", wanted);
        http_add_header(req, "Vary", "Access-Control-Request-Headers");
    }
    http_reply(req, 200, "text/plain; charset=utf-8", "OK", 2);
}

static struct note *note_new(struct http_request *req)
{
    struct note *note = arena_alloc(req->arena, sizeof *note);
    const char *id = http_header(req, "x-request-id");

    if (!note)
        return NULL;
    if (id && sane_id(id))
        snprintf(note->id, sizeof note->id, "%s", id);
    else
        id_short("req-", note->id, sizeof note->id);
    return note;
}

void endpoints_handle(struct http_request *req, void *user)
{
    struct api *api = user;
    const char *rest = "";
    const struct endpoint *e = find(req->path, &rest);
    const char *method = strcmp(req->method, "HEAD") == 0 ? "GET" : req->method;

    req->user = note_new(req);
    if (!req->user) {
        http_reply_json(req, 503, endpoints_error_body(503, NULL, req, req->arena));
        return;
    }
    api->n_requests++;
    api_add_headers(req, ((struct note *)req->user)->id);
    if (strcmp(method, "OPTIONS") == 0) {
        preflight(req);
    } else if (!e) {
        refuse(req, 404, "not_found", "There is nothing at this path.");
    } else if (strcmp(method, e->method) != 0) {
        http_add_header(req, "Allow", e->allow);
        refuse(req, 405, "method_not_allowed", "This path has no such method.");
    } else {
        e->fn(api, req, rest);
    }
}

/* ---- answers of the server itself, and the log ---- */

const char *endpoints_error_body(int status, const char *detail, struct http_request *req,
                                 struct arena *arena)
{
    BUF_LOCAL body = BUF_INIT;
    struct api_error e = { 0 };
    char id[sizeof "req-" + ID_SHORT];
    const char *text;

    if (!req->user) {
        id_short("req-", id, sizeof id);
        api_add_headers(req, id);
    }
    api_error_set(&e, status, status == 413 ? "request_too_large" : "bad_request", NULL, "%s",
                  detail ? detail : "The request can not be served.");
    api_error_write(&e, &body);
    text = body.failed ? NULL : arena_strndup(arena, body.data, body.len);
    return text ? text : "{\"error\":{\"message\":\"No memory\",\"type\":\"unavailable_error\","
                         "\"param\":null,\"code\":503}}";
}

void endpoints_access(const struct http_request *req, void *user)
{
    static const struct note none = { .id = "-", .failed = true };
    struct api *api = user;
    const struct note *note = req->user ? req->user : &none;
    const char *path = req->path ? req->path : "-", *rest;
    const struct endpoint *e = find(path, &rest);
    const char *outcome = req->cut ? "client_closed" : note->failed ? "error" : "ok";
    int status = req->cut ? 499 : req->status;
    const char *fields[] = { "FASTCHAT_REQUEST_ID", note->id, "FASTCHAT_MODEL",
                             note->model ? note->model : "-", "FASTCHAT_OUTCOME", outcome, NULL };

    api->n_failed += note->failed && !req->cut;
    log_event(e && e->quiet && status < 400 ? LOG_DEBUG : LOG_INFO, "request", fields,
              "%s %.200s %d %s model=%s ms=%.1f in=%lld out=%lld bytes=%llu id=%s peer=%s",
              req->method ? req->method : "-", path, status, outcome,
              note->model ? note->model : "-",
              (double)(clock_mono_us() - req->start_us) / 1000.0, (long long)note->tokens_in,
              (long long)note->tokens_out, (unsigned long long)req->sent_bytes, note->id,
              req->peer ? req->peer : "-");
}
