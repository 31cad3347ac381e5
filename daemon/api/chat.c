/* Lifetime: struct chat lies in the request's arena; what it owns beyond that
 * (calls, leases, buffers, its place in the list) goes in release(), once,
 * before the answer's last byte is handed over or when the client leaves.
 * After finish() and fail() the request may be freed already: their callers
 * touch nothing and return, those that loop learn it from a return value. */
#include "daemon/api/chat.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/id.h"
#include "base/json.h"
#include "base/log.h"
#include "daemon/api/api.h"
#include "daemon/api/catalog.h"
#include "daemon/api/chat_parts.h"
#include "ipc/http_client.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CONNECT_US = 2000000,
    LINGER_US = 5000000,                /* for the end of a call whose last line has come */
    LAG_US = 120000000,                 /* a reader that does not catch up for so long is let go */
    WHOLE_BYTES = 4 << 20,              /* of a worker's answer that is no stream */
    ANSWER_BYTES = 64 << 20,            /* of one choice that is not streamed */
    /* Others come first so long after one that was not there, or was not taking requests. */
    SUSPECT_US = 2000000, SUSPECT_BUSY_US = 250000,
};

static const char *const stage_paths[] = {
    [STAGE_CONV] = "/worker_get_conv_template", [STAGE_WINDOW] = "/model_details",
    [STAGE_COUNT] = "/count_token",             [STAGE_STREAM] = "/worker_generate_stream",
    [STAGE_GENERATE] = "/fastchat/generate",
};

static void next_stage(struct choice *c);

/* ---- the end ---- */

static void choice_release(struct choice *c)
{
    wait_end(c);
    if (c->call)
        http_call_cancel(STEAL(c->call));
    if (c->worker)
        catalog_release_worker(c->chat->api->catalog, STEAL(c->worker));
    upstream_lines_fini(&c->lines);
    buf_fini(&c->whole);
    foreign_fini(&c->foreign);
    buf_fini(&c->content);
    buf_fini(&c->logprobs);
    buf_fini(&c->timings);
}

static void sum_usage(struct chat *chat, struct chat_usage *u)
{
    /* The prompt is the same for all choices and counted once, as OpenAI does. */
    *u = (struct chat_usage){ .cached_tokens = -1 };
    for (unsigned i = 0; i < chat->spec.n; i++) {
        const struct choice *c = &chat->choices[i];

        if (c->prompt_tokens > u->prompt_tokens)
            u->prompt_tokens = c->prompt_tokens;
        u->completion_tokens += c->completion_tokens;
        /* The first to read it: the others found what it had read. */
        if (c->cached_tokens >= 0 && (u->cached_tokens < 0 || c->cached_tokens < u->cached_tokens))
            u->cached_tokens = c->cached_tokens;
    }
    chat->note.tokens_in = u->prompt_tokens;
    chat->note.tokens_out = u->completion_tokens;
}

static void release(struct chat *chat)
{
    struct chat_usage usage;

    if (chat->released)
        return;
    chat->released = true;
    sum_usage(chat, &usage);            /* of an answer that was cut short, too */
    for (unsigned i = 0; i < chat->spec.n; i++)
        choice_release(&chat->choices[i]);
    catalog_release_model(chat->api->catalog, chat->model, chat->spec.n);
    chat_head_fini(&chat->head);
    chat_request_fini(&chat->spec);
    buf_fini(&chat->body);
    *chat->at = chat->next;
    if (chat->next)
        chat->next->at = chat->at;
    else
        chat->api->chats_end = chat->at;
    chat->api->n_chats--;
}

static void on_gone(struct http_request *req)
{
    release(req->user);
}

/* ---- writing ---- */

/* Hands over what lies in api->out. */
static void flush(struct chat *chat)
{
    struct buf *out = &chat->api->out;

    if (!out->len)
        return;
    chat->write_us = clock_mono_us();
    if (http_stream_write(chat->req, out->data, out->len) == HTTP_FULL && !chat->paused) {
        chat->paused = true;
        chat->pause_us = chat->write_us;
        for (unsigned i = 0; i < chat->spec.n; i++)
            if (chat->choices[i].call)
                http_call_pause(chat->choices[i].call, true);
    }
    buf_clear(out);
}

static void on_drain(struct http_request *req)
{
    struct chat *chat = req->user;

    if (chat->released || !chat->paused)
        return;
    chat->paused = false;
    for (unsigned i = 0; i < chat->spec.n; i++)
        if (chat->choices[i].call)
            http_call_pause(chat->choices[i].call, false);
}

static void stream_begin(struct chat *chat)
{
    if (chat->started)
        return;
    chat->started = true;
    chat->write_us = clock_mono_us();
    http_add_header(chat->req, "Cache-Control", "no-cache");
    http_add_header(chat->req, "X-Accel-Buffering", "no");
    http_stream_start(chat->req, 200, "text/event-stream; charset=utf-8");
}

void chat_fail(struct chat *chat, const struct api_error *e)
{
    struct http_request *req = chat->req;
    struct api *api = chat->api;
    bool started = chat->started;

    chat->note.failed = true;
    if (started) {
        chat_event_error(e, &api->out);
        flush(chat);
    }
    release(chat);
    if (started)
        http_stream_end(req);
    else
        api_reply_error(req, e);
}

static void fail_with(struct chat *chat, int status, const char *code, const char *text)
{
    struct api_error e = { 0 };

    api_error_set(&e, status, code, NULL, "%s", text);
    if (status == 503)
        e.retry_after_s = 1;
    chat_fail(chat, &e);
}

static void finish_stream(struct chat *chat)
{
    struct http_request *req = chat->req;
    struct buf *out = &chat->api->out;
    struct chat_usage usage;

    sum_usage(chat, &usage);
    if (chat->spec.include_usage)
        chat_chunk_usage(&chat->head, &usage, out);
    chat_event_done(out);
    flush(chat);
    release(chat);
    http_stream_end(req);
}

static void finish_whole(struct chat *chat)
{
    struct http_request *req = chat->req;
    struct chat_choice *list = arena_array(req->arena, chat->spec.n, sizeof *list);
    struct buf *out = &chat->api->out;
    struct chat_usage usage;

    if (!list) {
        fail_with(chat, 503, NULL, "No memory for this answer.");
        return;
    }
    for (unsigned i = 0; i < chat->spec.n; i++) {
        struct choice *c = &chat->choices[i];

        if (c->content.failed || c->logprobs.failed) {
            fail_with(chat, 500, "answer_too_large", "The answer is too large to be held.");
            return;
        }
        list[i] = (struct chat_choice){
            .content = buf_str(&c->content), .content_len = c->content.len,
            .logprobs = chat->spec.logprobs ? buf_str(&c->logprobs) : NULL,
            .finish_reason = c->finish_reason,
        };
    }
    sum_usage(chat, &usage);
    chat_answer_write(&chat->head, list, chat->spec.n, &usage,
                      chat->choices[0].timings.len ? chat->choices[0].timings.data : NULL, out);
    release(chat);
    http_reply_json(req, 200, buf_str(out));
    buf_clear(out);
}

/* All last lines are there; the calls that have not ended yet are done for. */
static void finish(struct chat *chat)
{
    if (chat->spec.stream)
        finish_stream(chat);
    else
        finish_whole(chat);
}

static bool all_finished(const struct chat *chat, bool and_ended)
{
    for (unsigned i = 0; i < chat->spec.n; i++)
        if (!chat->choices[i].finished || (and_ended && chat->choices[i].call))
            return false;
    return true;
}

/* ---- what a worker says ---- */

static void admitted(struct choice *c)
{
    struct chat *chat = c->chat;

    if (c->admitted)
        return;
    c->admitted = true;
    if (!chat->spec.stream || c->role_sent)
        return;
    c->role_sent = true;
    stream_begin(chat);
    chat_chunk_role(&chat->head, c->index, &chat->api->out);
}

static void text_came(struct choice *c, const struct upstream_event *ev)
{
    struct chat *chat = c->chat;
    const char *logprobs = NULL;

    admitted(c);
    c->completion_tokens += ev->n_tokens;
    chat->note.tokens_out += ev->n_tokens;      /* so far: the client may leave */
    if (ev->prompt_tokens >= 0)
        c->prompt_tokens = ev->prompt_tokens;
    if (ev->completion_tokens >= 0)     /* a foreign worker counts for itself */
        c->completion_tokens = ev->completion_tokens;
    if (chat->spec.logprobs)
        logprobs = ev->logprobs ? ev->logprobs : "";
    if (!ev->text_len && !ev->logprobs && !ev->n_tokens)
        return;
    c->spoke = true;
    if (!ev->text_len && !ev->logprobs)
        return;
    if (chat->spec.stream) {
        chat_chunk_text(&chat->head, c->index, ev->text, ev->text_len, logprobs, &chat->api->out);
        return;
    }
    buf_add(&c->content, ev->text, ev->text_len);
    if (logprobs && logprobs[0]) {
        if (c->logprobs.len)
            buf_addc(&c->logprobs, ',');
        buf_adds(&c->logprobs, logprobs);
    }
}

static void finish_came(struct choice *c, const struct upstream_event *ev)
{
    struct chat *chat = c->chat;

    text_came(c, ev);                   /* of a foreign worker's last frame; else none */
    c->cached_tokens = ev->cached_tokens;
    c->finished = true;
    c->finish_reason = ev->finish_reason;
    if (ev->timings)
        buf_adds(&c->timings, ev->timings);
    if (chat->spec.stream)
        chat_chunk_finish(&chat->head, c->index, ev->finish_reason, &chat->api->out);
    if (all_finished(chat, false))
        chat->finish_us = clock_mono_us();
}

static int parse_line(struct choice *c, const char *line, size_t len, struct upstream_event *ev,
                      struct err *err)
{
    struct upstream_scratch *scratch = &c->chat->api->scratch;

    if (c->stage == STAGE_STREAM)
        return foreign_parse(&c->foreign, line, len, scratch, ev, err);
    return upstream_parse(line, len, c->chat->spec.top_logprobs, scratch, ev, err);
}

/* Non-zero: the request is gone. */
static int on_line(const char *line, size_t len, void *user)
{
    struct choice *c = user;
    struct chat *chat = c->chat;
    struct upstream_event ev;
    struct err err = { 0 };

    if (c->finished)
        return 0;
    if (parse_line(c, line, len, &ev, &err) < 0) {
        log_warning("worker %s: %s", c->worker->name, err_text(&err));
        fail_with(chat, 502, "worker_error", "The model's worker sent what can not be understood.");
        return 1;
    }
    switch (ev.kind) {
    case UPSTREAM_OTHER: break;
    case UPSTREAM_ADMITTED:
        c->prompt_tokens = ev.prompt_tokens;
        chat->note.tokens_in = ev.prompt_tokens;
        admitted(c);
        break;
    case UPSTREAM_TEXT: text_came(c, &ev); break;
    case UPSTREAM_FINISH: finish_came(c, &ev); break;
    case UPSTREAM_ERROR:
        chat_fail(chat, &ev.error);
        return 1;
    }
    return 0;
}

static void on_head(struct http_call *call, int status, void *user)
{
    struct choice *c = user;

    c->status = status;
    c->retry_after_s = api_retry_after_s(http_call_header(call, "Retry-After"));
}

static void on_data(struct http_call *call, const char *data, size_t len, void *user)
{
    struct choice *c = user;
    struct chat *chat = c->chat;
    int r;

    if (c->status != 200 || c->stage < STAGE_STREAM) {
        buf_add(&c->whole, data, len);
        return;
    }
    r = upstream_lines_feed(&c->lines, c->stage == STAGE_STREAM ? FOREIGN_FRAME_END : '\n', data,
                            len, on_line, c);
    if (r > 0)
        return;
    if (r < 0)
        fail_with(chat, 502, "worker_error", "The model's worker sent what can not be understood.");
    else
        flush(chat);
}

/* ---- asking workers ---- */

/* Notes why a try failed. True: somebody else may do better. */
static bool read_failure(struct choice *c, const struct http_call_result *result)
{
    CLEANUP(json_delete) cJSON *body = NULL;
    struct api_error *e = &c->chat->last;

    *e = (struct api_error){ 0 };
    if (c->status == 200) {
        api_error_set(e, 502, "worker_lost", NULL, "The model's worker ended before it answered.");
    } else if (result->error || c->status == 0) {
        api_error_set(e, 503, NULL, NULL, "No worker of the model '%s' could take the request.",
                      c->chat->model->name);
    } else {
        json_parse(buf_str(&c->whole), c->whole.len, NULL, &body, NULL);
        api_error_of_worker(e, c->status, body);
    }
    if (e->status == 503)
        e->retry_after_s = c->status == 503 ? c->retry_after_s : 1;
    return e->status >= 500 && e->status != 501;
}

/* Why a try came to nothing, and what that says about its worker. */
enum failure {
    FAILED_KEPT,        /* nothing: the connection was kept from an older process or had died */
    FAILED_ANSWERED,    /* it answered, and would again: somebody else may do better */
    FAILED_BUSY,        /* it loads or drains */
    FAILED_ABSENT,      /* nobody was there */
    FAILED_DIED,        /* it ended under the request */
};

static enum failure failure_of(const struct choice *c, const struct http_call_result *result)
{
    const char *code = c->chat->last.code;
    bool kept = result->reused && !c->again;

    if (result->error && !result->connected)
        return FAILED_ABSENT;
    if (result->error && !c->status && kept)
        return FAILED_KEPT;
    if (result->error || c->status == 200)
        return FAILED_DIED;
    if (c->status == 503 && (strcmp(code, "draining") == 0 || strcmp(code, "loading") == 0))
        return kept ? FAILED_KEPT : FAILED_BUSY;
    return FAILED_ANSWERED;
}

static void note_tried(struct choice *c, bool refused)
{
    if (c->n_tried == MAX_TRIES)
        return;
    c->tried[c->n_tried++] = c->tried[c->n_refused];
    if (refused)
        c->tried[c->n_refused++] = c->worker->serial;
    else
        c->tried[c->n_tried - 1] = c->worker->serial;
}

static void next_try(struct choice *c, enum failure why)
{
    struct chat *chat = c->chat;
    uint64_t now = clock_mono_us();

    c->again = why == FAILED_KEPT;
    if (!c->again)
        note_tried(c, why == FAILED_ANSWERED);
    if (why >= FAILED_BUSY)
        c->worker->suspect_until_us = now + (why == FAILED_BUSY ? SUSPECT_BUSY_US : SUSPECT_US);
    if (c->admitted)
        chat->ask_us = now;
    c->admitted = false;
    catalog_release_worker(chat->api->catalog, STEAL(c->worker));
    if (why == FAILED_DIED && ++c->n_deaths == MAX_DEATHS)
        fail_with(chat, 502, "worker_lost", "The model's workers ended before they answered.");
    else
        choice_start(c);
}

/* A foreign worker's answer to one of the questions. True: on to the next one;
 * false: chat->last says why not. */
static bool read_answer(struct choice *c)
{
    CLEANUP(json_delete) cJSON *body = NULL;
    struct chat *chat = c->chat;
    struct api_error *e = &chat->last;
    int r = 0;

    *e = (struct api_error){ 0 };
    if (c->whole.failed ||
        json_parse(buf_str(&c->whole), c->whole.len, NULL, &body, NULL) < 0) {
        api_error_set(e, 502, "worker_error", NULL, "The model's worker gave no JSON.");
        return false;
    }
    if (c->stage == STAGE_CONV)
        r = foreign_render(&c->foreign, &chat->spec, body, e);
    else if (c->stage == STAGE_WINDOW)
        r = foreign_take_window(&c->foreign, body, e);
    else
        r = foreign_take_count(&c->foreign, body, e);
    return r == 0;
}

/* Some foreign workers end their stream without a reason. */
static bool end_of_frames(struct choice *c)
{
    struct upstream_event ev;

    if (foreign_end(&c->foreign, &c->chat->api->scratch, &ev) < 0)
        return false;
    finish_came(c, &ev);
    flush(c->chat);
    return true;
}

static void on_done(struct http_call *call, const struct http_call_result *result, void *user)
{
    struct choice *c = user;
    struct chat *chat = c->chat;

    c->call = NULL;
    if (!result->error && c->status == 200 && c->stage < STAGE_STREAM) {
        if (read_answer(c))
            next_stage(c);
        else if (chat->last.status == 400)
            chat_fail(chat, &chat->last);
        else
            next_try(c, FAILED_ANSWERED);
        return;
    }
    if (!result->error && c->stage == STAGE_STREAM && c->admitted && !c->finished &&
        !end_of_frames(c)) {
        fail_with(chat, 503, NULL, "No memory for this answer.");
        return;
    }
    if (c->finished) {
        catalog_release_worker(chat->api->catalog, STEAL(c->worker));
        if (all_finished(chat, true))
            finish(chat);
        return;
    }
    if (c->spoke) {
        log_warning("worker %s: ended in the middle of an answer%s%s", c->worker->name,
                    result->error ? ": " : "", result->error ? result->text : "");
        fail_with(chat, 502, "worker_lost", "The model's worker ended in the middle of the answer.");
        return;
    }
    if (read_failure(c, result)) {
        log_info("worker %s: did not take a request: %s", c->worker->name,
                 result->error ? result->text : chat->last.message);
        next_try(c, failure_of(c, result));
        return;
    }
    chat_fail(chat, &chat->last);
}

static void write_body(const struct choice *c, struct buf *body)
{
    const struct chat *chat = c->chat;

    buf_clear(body);
    switch (c->stage) {
    case STAGE_CONV:
    case STAGE_WINDOW:
    case STAGE_COUNT:
        foreign_write_question(&c->foreign, chat->spec.model, c->stage == STAGE_COUNT, body);
        break;
    case STAGE_STREAM: foreign_write(&c->foreign, &chat->spec, c->index, body); break;
    case STAGE_GENERATE:
        if (c->worker->version < CATALOG_VERSION && chat->spec.parts)
            chat_request_write(&chat->spec, CHAT_TEXTS_ONLY, body);
        else
            buf_add(body, chat->body.data, chat->body.len);
        chat_request_write_end(&chat->spec, c->index, chat->note.id, body);
    }
}

static int call_worker(struct choice *c, struct err *err)
{
    struct chat *chat = c->chat;
    const struct worker *w = c->worker;
    struct buf *body = &chat->api->body;
    char url[512];
    struct http_call_spec spec = {
        .unix_path = w->unix_path, .url = url, .connect_us = CONNECT_US,
        .fresh = c->again,
        .user = c, .on_head = on_head, .on_data = on_data, .on_done = on_done,
    };
    const char *base = w->unix_path ? "http://worker" : w->url;
    int r = snprintf(url, sizeof url, "%s%s", base, stage_paths[c->stage]);

    if (r < 0 || (size_t)r >= sizeof url)
        return err_set(err, -EINVAL, "its address is too long");
    c->status = 0;
    buf_clear(&c->whole);
    buf_clear(&c->lines.rest);
    write_body(c, body);
    if (body->failed)
        return err_set(err, -ENOMEM, "no memory for the request");
    spec.body = body->data;
    spec.body_len = body->len;
    r = http_call_start(chat->api->client, &spec, &c->call, err);
    if (r == 0 && chat->paused)
        http_call_pause(c->call, true);
    return r;
}

int choice_start(struct choice *c)
{
    struct chat *chat = c->chat;
    struct catalog *catalog = chat->api->catalog;
    struct err err = { 0 };
    bool older;

    while (c->n_tried < MAX_TRIES) {
        c->worker = catalog_pick(catalog, chat->model, c->tried, c->n_tried, clock_mono_us());
        if (!c->worker)
            break;
        catalog_lease_worker(c->worker);
        c->stage = c->worker->native ? STAGE_GENERATE : STAGE_CONV;
        foreign_fini(&c->foreign);
        c->foreign = (struct foreign){ .whole = !chat->spec.stream };
        older = c->worker->version < CATALOG_VERSION;
        if (!chat->spec.tree && (c->stage == STAGE_CONV || (older && chat->spec.parts)))
            err_set(&err, -EAGAIN, "is of another kind than those that were here before");
        else if (c->stage == STAGE_GENERATE && older && chat->spec.in_full_only)
            err_set(&err, -ENOTSUP, "is older than what is asked of it");
        else if (call_worker(c, &err) == 0)
            return 0;
        log_warning("worker %s: %s", c->worker->name, err_text(&err));
        err_clear(&err);
        note_tried(c, true);
        catalog_release_worker(catalog, STEAL(c->worker));
    }
    if (wait_begin(c))
        return 0;
    if (!chat->last.status) {
        api_error_set(&chat->last, 503, NULL, NULL,
                      "No worker of the model '%s' could take the request.", chat->model->name);
        chat->last.retry_after_s = 1;
    }
    chat_fail(chat, &chat->last);
    return 1;
}

/* The same worker's next question. */
static void next_stage(struct choice *c)
{
    struct err err = { 0 };

    c->stage++;
    if (call_worker(c, &err) == 0)
        return;
    log_warning("worker %s: %s", c->worker->name, err_text(&err));
    next_try(c, FAILED_ANSWERED);
}

/* ---- the beginning ---- */

/* Takes over spec's tree when it succeeds. */
static struct chat *chat_new(struct api *api, struct http_request *req, struct model *model,
                             struct chat_request *spec)
{
    struct note *note = req->user;
    struct chat *chat = arena_alloc(req->arena, sizeof *chat);
    struct choice *choices = arena_array(req->arena, spec->n, sizeof *choices);

    if (!chat || !choices)
        return NULL;
    chat->note = *note;
    chat->api = api;
    chat->req = req;
    chat->choices = choices;
    chat->start_us = chat->ask_us = clock_mono_us();
    for (unsigned i = 0; i < spec->n; i++) {
        choices[i].chat = chat;
        choices[i].index = i;
        choices[i].cached_tokens = -1;
        choices[i].whole.limit = WHOLE_BYTES;
        choices[i].content.limit = choices[i].logprobs.limit = ANSWER_BYTES;
    }
    chat_request_write(spec, CHAT_IN_FULL, &chat->body);
    if (chat->body.failed) {
        buf_fini(&chat->body);
        return NULL;
    }
    if (!catalog_has_others(api->catalog, model))
        chat_request_fini(spec);
    chat->spec = *spec;
    spec->tree = NULL;
    id_short("chatcmpl-", chat->id, sizeof chat->id);
    chat_head_init(&chat->head, chat->id, spec->model, clock_wall_s(), spec->include_usage);
    return chat;
}

static void chat_run(struct chat *chat, struct model *model)
{
    struct api *api = chat->api;

    chat->model = model;
    catalog_lease_model(api->catalog, model, chat->spec.n);
    chat->at = api->chats ? api->chats_end : &api->chats;
    *chat->at = chat;
    api->chats_end = &chat->next;
    api->n_chats++;
    chat->req->user = chat;
    chat->req->on_gone = on_gone;
    chat->req->on_drain = on_drain;
    for (unsigned i = 0, n = chat->spec.n; i < n; i++)
        if (choice_start(&chat->choices[i]) != 0)
            return;
}

void chat_start(struct api *api, struct http_request *req)
{
    struct note *note = req->user;
    struct api_error e = { 0 };
    struct chat_request spec;
    struct chat *chat = NULL;
    struct model *model = NULL;

    if (chat_request_parse(req->body, req->body_len, req->arena, &spec, &e) == 0) {
        owner_of(http_header(req, "authorization"), http_header(req, "x-api-key"), spec.cache_salt, &spec.owner);
        model = catalog_find(api->catalog, spec.model);
        if (!model) {
            api_error_set(&e, 404, "model_not_found", "model", "The model '%s' does not exist.",
                          spec.model);
        } else {
            note->model = arena_strdup(req->arena, model->name);
            if (catalog_admit(api->catalog, model, spec.n, &e) == 0 && wait_may(api, model, &e)) {
                chat = chat_new(api, req, model, &spec);
                if (!chat)
                    api_error_set(&e, 503, NULL, NULL, "No memory for this request.");
            }
        }
    }
    chat_request_fini(&spec);
    if (chat) {
        chat_run(chat, model);
        return;
    }
    note->failed = true;
    api_reply_error(req, &e);
}

/* ---- time ---- */

static bool any_admitted(const struct chat *chat)
{
    for (unsigned i = 0; i < chat->spec.n; i++)
        if (chat->choices[i].admitted)
            return true;
    return false;
}

static void tick(struct chat *chat, uint64_t now)
{
    struct api *api = chat->api;
    uint64_t since = chat->started ? chat->write_us : chat->start_us;

    if (chat->finish_us && now - chat->finish_us > LINGER_US) {
        finish(chat);
        return;
    }
    if (chat->paused && now - chat->pause_us > LAG_US) {
        struct http_request *req = chat->req;

        release(chat);
        http_stream_abort(req);
        return;
    }
    if (wait_is_over(chat, now))
        return;
    if (api->wait_us && !chat->n_waiting && now - chat->ask_us > api->wait_us && !any_admitted(chat)) {
        fail_with(chat, 503, NULL, "No worker began to answer in time.");
        return;
    }
    if (api->ping_us && chat->spec.stream && !chat->paused && now - since >= api->ping_us) {
        stream_begin(chat);
        chat_event_ping(&api->out);
        flush(chat);
    }
}

void chat_tick(struct api *api)
{
    uint64_t now;

    chat_look(api);
    now = clock_mono_us();      /* not before those that it lets go on have asked */
    for (struct chat *chat = api->chats, *next; chat; chat = next) {
        next = chat->next;
        tick(chat, now);
    }
}
