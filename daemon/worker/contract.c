/* The worker's side of the FastChat contract (parts 2 and 3): what a Python
 * controller, API server or web UI asks of a worker.
 *
 * Frames carry the whole text so far and end in a NUL; the last one repeats
 * the text and names the reason. Faults of a request are frames as well, with
 * an error code inside a 200, except for what the reference answers with a
 * plain 500: a body that is no JSON, or lacks a key it can not do without.
 * Numbers are read as leniently as there: a value beyond the useful range
 * means the end of the range. */
#include "daemon/worker/worker.h"

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/utf8.h"
#include "conv/chat.h"
#include "conv/conv.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum {
    CONTEXT_OVERFLOW = 40303, ENGINE_OVERLOADED = 42903, INTERNAL_ERROR = 50001, OUT_OF_MEMORY = 50002,
};
enum { DEFAULT_MAX_NEW_TOKENS = 256 };

#define SERVER_ERROR "**NETWORK ERROR DUE TO HIGH TRAFFIC. PLEASE REGENERATE OR REFRESH THIS PAGE.**"

/* The logprobs object grows token by token; each array is kept as text. */
struct logprob_arrays { struct buf offsets, tokens, values, tops; uint64_t chars; };

struct answer {
    struct job job;
    bool whole;                     /* one JSON object instead of frames */
    bool logprobs;
    struct buf text, frame;
    struct logprob_arrays arrays;
};

static void answer_free(struct answer *a)
{
    if (!a)
        return;
    buf_fini(&a->text);
    buf_fini(&a->frame);
    buf_fini(&a->arrays.offsets);
    buf_fini(&a->arrays.tokens);
    buf_fini(&a->arrays.values);
    buf_fini(&a->arrays.tops);
    free(a);
}
DEFINE_CLEANUP(struct answer *, answer_free)

/* ---- answers without a sequence ---- */

static void reply_internal(struct http_request *req)
{
    static const char text[] = "Internal Server Error";

    http_reply(req, 500, "text/plain; charset=utf-8", text, sizeof text - 1);
}

static void reply_error(struct http_request *req, int status, int code, const char *message)
{
    BUF_LOCAL body = BUF_INIT;
    struct json_writer w = json_writer(&body);

    json_open(&w, '{');
    json_kstr(&w, "object", "error");
    json_kstr(&w, "message", message);
    json_kint(&w, "code", code);
    json_close(&w, '}');
    reply_buf(req, status, &body);
}

static void reply_busy(struct http_request *req, const char *message)
{
    http_add_header(req, "Retry-After", "1");
    reply_error(req, 503, ENGINE_OVERLOADED, message);
}

static void error_frame(struct buf *out, int code, const char *message)
{
    struct json_writer w = json_writer(out);

    json_open(&w, '{');
    json_kstr(&w, "text", message);
    json_kint(&w, "error_code", code);
    json_close(&w, '}');
}

/* A request that is refused: the frame alone, as a stream or whole. */
static void refuse(struct http_request *req, bool whole, int code, const char *message)
{
    BUF_LOCAL out = BUF_INIT;

    if (code == INTERNAL_ERROR || code == OUT_OF_MEMORY) {
        BUF_LOCAL text = BUF_INIT;

        buf_printf(&text, SERVER_ERROR "\n\n(%s)", message);
        error_frame(&out, code, buf_str(&text));
    } else {
        error_frame(&out, code, message);
    }
    if (whole) {
        reply_buf(req, 200, &out);
        return;
    }
    if (http_stream_start(req, 200, NULL) >= 0)
        http_stream_write(req, buf_str(&out), out.len + 1);
    http_stream_end(req);
}

/* The body as an object; otherwise it was answered. */
static cJSON *read_body(struct http_request *req)
{
    cJSON *body = NULL;

    if (json_parse(req->body, req->body_len, NULL, &body, NULL) == 0 && cJSON_IsObject(body))
        return body;
    cJSON_Delete(body);
    reply_internal(req);
    return NULL;
}

static bool refused(struct http_request *req, const struct worker *w)
{
    const char *why = worker_refusal(w, NULL);

    if (why)
        reply_busy(req, why);
    return why;
}

/* For questions about the model, which a worker that drains still answers. */
static bool not_loaded(struct http_request *req, const struct worker *w)
{
    return !w->engine && refused(req, w);
}

/* ---- parameters (contract 2.2) ---- */

static int get_number(const cJSON *body, const char *key, double *v, struct err *err)
{
    int r = json_get_number(body, key, v, err);

    return r < 0 ? r : 0;
}

static double within(double v, double min, double max)
{
    return v < min ? min : v > max ? max : v;
}

static int read_sampling(const cJSON *body, struct engine_request *er, struct err *err)
{
    struct sample_params *p = &er->sample;
    double temperature = (double)p->temperature, top_p = (double)p->top_p, min_p = (double)p->min_p,
           top_k = p->top_k, repetition = (double)p->repetition_penalty,
           presence = (double)p->presence_penalty, frequency = (double)p->frequency_penalty;
    int64_t seed = 0;
    int r;

    if ((r = get_number(body, "temperature", &temperature, err)) < 0 ||
        (r = get_number(body, "top_p", &top_p, err)) < 0 ||
        (r = get_number(body, "min_p", &min_p, err)) < 0 ||
        (r = get_number(body, "top_k", &top_k, err)) < 0 ||
        (r = get_number(body, "repetition_penalty", &repetition, err)) < 0 ||
        (r = get_number(body, "presence_penalty", &presence, err)) < 0 ||
        (r = get_number(body, "frequency_penalty", &frequency, err)) < 0)
        return r;
    p->temperature = (float)within(temperature, 0, 100);
    p->top_p = (float)within(top_p, 0, 1);
    p->min_p = (float)within(min_p, 0, 1);
    p->top_k = (int32_t)within(top_k, -1, INT32_MAX);
    p->repetition_penalty = (float)within(repetition, 1, 100);  /* below 1 it has no effect there */
    p->presence_penalty = (float)within(presence, -2, 2);
    p->frequency_penalty = (float)within(frequency, -2, 2);
    r = json_get_int(body, "seed", -SEED_LIMIT, SEED_LIMIT, &seed, err);
    p->has_seed = r == 0;
    p->seed = (uint64_t)seed;
    return r < 0 ? r : 0;
}

static int read_stop(const cJSON *body, struct arena *a, struct engine_request *er, struct err *err)
{
    const cJSON *v = json_find(body, "stop"), *item;
    const char **list = arena_array(a, ENGINE_MAX_STOPS, sizeof list[0]);

    if (!list)
        return err_set(err, -ENOMEM, "out of memory");
    er->stop = list;
    if (v && !cJSON_IsString(v) && !cJSON_IsArray(v))
        return err_set(err, -EINVAL, "Invalid stop field type.");
    if (cJSON_IsString(v) && *v->valuestring)
        list[er->n_stop++] = v->valuestring;
    if (cJSON_IsArray(v))
        cJSON_ArrayForEach(item, v) {
            if (!cJSON_IsString(item))
                return err_set(err, -EINVAL, "Invalid stop field type.");
            if (er->n_stop == ENGINE_MAX_STOPS)
                return err_set(err, -EINVAL, "more than %d stop strings", ENGINE_MAX_STOPS);
            if (*item->valuestring)
                list[er->n_stop++] = item->valuestring;
        }
    return 0;
}

static int read_stop_tokens(const cJSON *body, struct arena *a, struct engine_request *er, struct err *err)
{
    const cJSON *list = NULL, *item;
    int32_t *ids;
    int r = json_get_array(body, "stop_token_ids", &list, err);

    if (r != 0)
        return r < 0 ? r : 0;
    ids = arena_array(a, (size_t)cJSON_GetArraySize(list) + 1, sizeof ids[0]);
    if (!ids)
        return err_set(err, -ENOMEM, "out of memory");
    er->stop_tokens = ids;
    cJSON_ArrayForEach(item, list) {
        if (!cJSON_IsNumber(item) || item->valuedouble != trunc(item->valuedouble))
            return err_set(err, -EINVAL, "'stop_token_ids' must hold integers");
        if (item->valuedouble >= 0 && item->valuedouble <= INT32_MAX)
            ids[er->n_stop_tokens++] = (int32_t)item->valuedouble;
    }
    return 0;
}

static int too_long(const struct worker *w, const char *least, size_t n, struct err *err)
{
    err_set(err, -EINVAL, "This model's maximum context length is %u tokens. However, your messages resulted "
            "in %s%zu tokens. Please reduce the length of the messages.",
            engine_info(w->engine)->context_length, least, n);
    return CONTEXT_OVERFLOW;
}

/* What may be generated, within what the context leaves: 0, or the error code
 * with a sentence. */
static int read_length(struct worker *w, const cJSON *body, struct engine_request *er, struct err *err)
{
    uint32_t context = engine_info(w->engine)->context_length, left;
    double max = w->set.max_tokens ? w->set.max_tokens : DEFAULT_MAX_NEW_TOKENS;

    if (get_number(body, "max_new_tokens", &max, err) < 0)
        return INTERNAL_ERROR;
    if (max < 1) {
        err_set(err, -EINVAL, "'max_new_tokens' must be at least 1, but is %g", max);
        return INTERNAL_ERROR;
    }
    if (er->n_tokens >= context)
        return too_long(w, "", er->n_tokens, err);
    left = context - (uint32_t)er->n_tokens;
    er->max_tokens = max > left ? left : (uint32_t)max;
    return 0;
}

static int code_of(int error)
{
    return error == -ENOMEM ? OUT_OF_MEMORY : INTERNAL_ERROR;
}

static int tokenize(struct worker *w, struct http_request *req, const char *prompt, int32_t **ret,
                    size_t *ret_n, struct err *err)
{
    struct text_span span = { .text = prompt, .len = strlen(prompt), .trusted = true };

    return engine_tokenize(w->engine, &span, 1, true, req->arena, ret, ret_n, err);
}

/* 0 or an error code with a sentence. */
static int read_request(struct worker *w, struct http_request *req, const cJSON *body, const char *prompt,
                        struct engine_request *er, struct err *err)
{
    size_t least = worker_surely_too_long(w, strlen(prompt));
    int32_t *tokens;
    int r;

    if (least)
        return too_long(w, "at least ", least, err);
    er->sample = w->set.sample;
    er->n_logprobs = json_find(body, "logprobs") ? 0 : -1;
    if ((r = read_sampling(body, er, err)) < 0 || (r = read_stop(body, req->arena, er, err)) < 0 ||
        (r = read_stop_tokens(body, req->arena, er, err)) < 0 ||
        (r = tokenize(w, req, prompt, &tokens, &er->n_tokens, err)) < 0)
        return code_of(r);
    er->tokens = tokens;
    return read_length(w, body, er, err);
}

/* ---- the answer (contract 2.3, 3.6) ---- */

static void comma(struct buf *b)
{
    if (b->len)
        buf_addc(b, ',');
}

/* One token of the logprobs object; value NULL for a token of the prompt. */
static void add_logprob(struct answer *a, int32_t id, const float *value)
{
    struct logprob_arrays *l = &a->arrays;
    size_t len;
    const char *text = engine_token_text(a->job.worker->engine, id, &len);
    struct json_writer w;

    comma(&l->offsets);
    buf_printf(&l->offsets, "%llu", (unsigned long long)l->chars);
    comma(&l->tokens);
    json_quote(&l->tokens, text, len);
    comma(&l->values);
    w = json_writer(&l->values);
    if (value)
        json_num(&w, (double)*value);
    else
        json_null(&w);
    comma(&l->tops);
    buf_adds(&l->tops, "{}");
    /* In characters, as the single token decodes: a stray byte counts as one. */
    while (len > 0) {
        uint32_t c;
        int n = utf8_decode(text, len, &c);
        size_t step = n == -2 ? len : n > 0 ? (size_t)n : 1;

        text += step;
        len -= step;
        l->chars++;
    }
}

static void write_logprobs(struct answer *a, struct json_writer *w)
{
    static const char *const keys[] = { "text_offset", "tokens", "token_logprobs", "top_logprobs" };
    const struct buf *const arrays[] = { &a->arrays.offsets, &a->arrays.tokens, &a->arrays.values,
                                         &a->arrays.tops };

    json_key(w, "logprobs");
    if (!a->logprobs) {
        json_null(w);
        return;
    }
    json_open(w, '{');
    for (size_t i = 0; i < 4; i++) {
        json_key(w, keys[i]);
        json_open(w, '[');
        if (arrays[i]->len)
            json_raw(w, buf_str(arrays[i]));
        json_close(w, ']');
        w->out->failed |= arrays[i]->failed;
    }
    json_close(w, '}');
}

static void text_frame(struct answer *a, const struct engine_event *ev)
{
    struct json_writer w = json_writer(&a->frame);

    buf_clear(&a->frame);
    json_open(&w, '{');
    json_key(&w, "text");
    json_strn(&w, buf_str(&a->text), a->text.len);
    json_key(&w, "usage");
    json_open(&w, '{');
    json_kint(&w, "prompt_tokens", ev->prompt_tokens);
    json_kint(&w, "completion_tokens", ev->completion_tokens);
    json_kint(&w, "total_tokens", (int64_t)ev->prompt_tokens + ev->completion_tokens);
    json_close(&w, '}');
    json_kstr(&w, "finish_reason", ev->kind == ENGINE_DONE ? ev->finish_reason : NULL);
    write_logprobs(a, &w);
    json_kint(&w, "error_code", 0);
    json_close(&w, '}');
    if (a->frame.failed || a->text.failed) {
        buf_clear(&a->frame);
        error_frame(&a->frame, OUT_OF_MEMORY, SERVER_ERROR "\n\n(out of memory)");
    }
}

static void failed_frame(struct answer *a, const struct engine_event *ev)
{
    BUF_LOCAL text = BUF_INIT;

    buf_printf(&text, SERVER_ERROR "\n\n(%s)", ev->message ? ev->message : "the engine failed");
    buf_clear(&a->frame);
    error_frame(&a->frame, code_of(ev->error), buf_str(&text));
}

/* The NUL behind the buffer's text is the frame's end. */
static void write_frame(struct answer *a)
{
    job_write(&a->job, NULL, buf_str(&a->frame), a->frame.len + 1);
}

static void finish(struct answer *a)
{
    if (a->whole) {
        job_reply_json(&a->job, 200, buf_str(&a->frame));
        return;
    }
    write_frame(a);
    job_end(&a->job);
}

static void take_output(struct answer *a, const struct engine_event *ev)
{
    buf_add(&a->text, ev->text, ev->len);
    if (a->logprobs)
        for (size_t i = 0; i < ev->n_tokens; i++)
            add_logprob(a, ev->tokens[i].id, &ev->tokens[i].logprob);
    if (a->whole || !ev->len)
        return;
    text_frame(a, ev);
    write_frame(a);
}

static void answer_event(struct job *j, const struct engine_event *ev)
{
    struct answer *a = (struct answer *)j;

    switch (ev->kind) {
    case ENGINE_STARTED:
        break;
    case ENGINE_OUTPUT:
        take_output(a, ev);
        break;
    case ENGINE_DONE:
        text_frame(a, ev);
        finish(a);
        break;
    case ENGINE_FAILED:
        failed_frame(a, ev);
        finish(a);
        break;
    }
}

static void answer_release(struct job *j)
{
    answer_free((struct answer *)j);
}

static void start(struct worker *w, struct http_request *req, struct answer *a, struct engine_request *er)
{
    struct err err = { 0 };
    int r = job_start(w, &a->job, req, er, &err);

    if (r == 0) {
        if (!a->whole)
            job_write(&a->job, NULL, "", 0);    /* the head at once, as there */
        return;
    }
    if (r == JOB_BUSY)
        reply_busy(req, "the model's queue is full");
    else
        refuse(req, a->whole, code_of(r), err_text(&err));
    answer_free(a);
}

static struct answer *answer_new(struct worker *w, const char *prompt, bool echo, bool whole,
                                 const struct engine_request *er)
{
    struct answer *a = calloc(1, sizeof *a);

    if (!a)
        return NULL;
    a->job.event = answer_event;
    a->job.release = answer_release;
    a->job.worker = w;
    a->whole = whole;
    a->logprobs = er->n_logprobs >= 0;
    if (echo)
        buf_adds(&a->text, prompt);
    if (echo && a->logprobs)
        for (size_t i = 0; i < er->n_tokens; i++)
            add_logprob(a, er->tokens[i], NULL);
    return a;
}

static void generate(struct http_request *req, struct worker *w, bool whole)
{
    CLEANUP(json_delete) cJSON *body = NULL;
    struct engine_request er = { 0 };
    struct err err = { 0 };
    const char *prompt = NULL;
    struct answer *a;
    bool echo = true;
    int code;

    if (refused(req, w) || !(body = read_body(req)))
        return;
    if (json_get_string(body, "prompt", &prompt, &err) == JSON_ABSENT) {
        reply_internal(req);
        return;
    }
    code = !prompt || json_get_bool(body, "echo", &echo, &err) < 0 ? INTERNAL_ERROR
           : read_request(w, req, body, prompt, &er, &err);
    if (code) {
        refuse(req, whole, code, err_text(&err));
        return;
    }
    a = answer_new(w, prompt, echo, whole, &er);
    if (a)
        start(w, req, a, &er);
    else
        refuse(req, whole, OUT_OF_MEMORY, "out of memory");
}

void contract_generate_stream(struct http_request *req, void *user)
{
    generate(req, user, false);
}

void contract_generate(struct http_request *req, void *user)
{
    generate(req, user, true);
}

/* ---- the other endpoints ---- */

void contract_status(struct http_request *req, void *user)
{
    BUF_LOCAL body = BUF_INIT;
    struct json_writer w = json_writer(&body);

    json_open(&w, '{');
    worker_status(user, &w);
    json_close(&w, '}');
    reply_buf(req, 200, &body);
}

void contract_count_token(struct http_request *req, void *user)
{
    CLEANUP(json_delete) cJSON *body = NULL;
    BUF_LOCAL out = BUF_INIT;
    struct json_writer w = json_writer(&out);
    struct worker *worker = user;
    const char *prompt;
    int32_t *tokens;
    size_t n;

    if (not_loaded(req, worker) || !(body = read_body(req)))
        return;
    if (json_get_string(body, "prompt", &prompt, NULL) != 0 ||
        tokenize(worker, req, prompt, &tokens, &n, NULL) < 0) {
        reply_internal(req);
        return;
    }
    json_open(&w, '{');
    json_kint(&w, "count", (int64_t)n);
    json_kint(&w, "error_code", 0);
    json_close(&w, '}');
    reply_buf(req, 200, &out);
}

void contract_conv_template(struct http_request *req, void *user)
{
    BUF_LOCAL out = BUF_INIT;
    struct json_writer w = json_writer(&out);
    struct worker *worker = user;
    const struct conv_template *row;

    if (not_loaded(req, worker))
        return;
    row = chat_wire(engine_info(worker->engine)->chat);
    if (!row) {
        reply_error(req, 501, INTERNAL_ERROR, "this model's chat template has no form of the contract");
        return;
    }
    json_open(&w, '{');
    json_key(&w, "conv");
    conv_to_json(row, &w);
    json_close(&w, '}');
    reply_buf(req, 200, &out);
}

void contract_model_details(struct http_request *req, void *user)
{
    BUF_LOCAL out = BUF_INIT;
    struct json_writer w = json_writer(&out);
    struct worker *worker = user;

    if (not_loaded(req, worker))
        return;
    json_open(&w, '{');
    json_kint(&w, "context_length", engine_info(worker->engine)->context_length);
    json_close(&w, '}');
    reply_buf(req, 200, &out);
}

void contract_embeddings(struct http_request *req, void *user)
{
    reply_error(req, 501, INTERNAL_ERROR, "this worker does not make embeddings");
}
