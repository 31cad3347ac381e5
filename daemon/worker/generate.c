/* POST /fastchat/generate: our own form of generation (docs/wire.md, part 4).
 *
 * The whole request is checked before the engine hears of it, field by field,
 * and the first fault is the answer. From then on lines are written as events
 * come; the first one, when the sequence is admitted, is also what starts the
 * answer, so that a request that still waits can be refused or moved. */
#include "daemon/worker/reading.h"
#include "daemon/worker/worker.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "conv/chat.h"
#include "daemon/logit_bias.h"
#include "gen/dry.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { MAX_STOP_TOKENS = 1024 };

struct generation {
    struct job job;
    struct buf line;
    bool logprobs;
    uint64_t submit_us, start_us, first_us;
};

/* ---- reading ---- */

/* The prompt as token ids, from whichever of the three fields is there; of a chat also what ends its answers. */
static int read_prompt(struct reading *rd, struct chat_prompt *chat, bool *ret_chat)
{
    const cJSON *messages = NULL, *ids = NULL;
    const char *prompt = NULL;
    int r;

    if ((r = reading_fault(rd, "messages", json_get_array(rd->body, "messages", &messages, &rd->err))) < 0 ||
        (r = reading_fault(rd, "prompt", json_get_string(rd->body, "prompt", &prompt, &rd->err))) < 0 ||
        (r = reading_fault(rd, "token_ids", json_get_array(rd->body, "token_ids", &ids, &rd->err))) < 0)
        return r;
    if (!messages + !prompt + !ids != 2)
        return reading_fault(rd, "messages", err_set(&rd->err, -EINVAL, "exactly one of 'messages', 'prompt' and "
                                                     "'token_ids' must be given"));
    *ret_chat = messages;
    if (ids)
        return reading_ids(rd, "token_ids", ids, (size_t)1 << 24, &rd->er->tokens, &rd->er->n_tokens);
    if (messages) {
        if ((r = reading_chat(rd, chat)) < 0)
            return r;
        return reading_tokens(rd, "messages", chat->spans, chat->n_spans, &rd->er->tokens, &rd->er->n_tokens);
    }
    return reading_tokens(rd, "prompt", &(struct text_span){ prompt, strlen(prompt), true }, 1, &rd->er->tokens,
                          &rd->er->n_tokens);
}

static int add_stop(struct reading *rd, const char **list, size_t *n, const char *text)
{
    if (!*text)
        return reading_fault(rd, "stop", err_set(&rd->err, -EINVAL, "'stop' holds an empty string"));
    if (*n == ENGINE_MAX_STOPS)
        return reading_fault(rd, "stop", err_set(&rd->err, -EINVAL, "more than %d stop strings", ENGINE_MAX_STOPS));
    list[(*n)++] = text;
    return 0;
}

/* The request's, then, for a chat, those of the template. */
static int read_stops(struct reading *rd, const struct chat_prompt *chat)
{
    const cJSON *v = json_find(rd->body, "stop"), *item;
    const char **list = arena_array(rd->req->arena, ENGINE_MAX_STOPS, sizeof list[0]);
    size_t n = 0;
    int r = 0;

    if (!list)
        return reading_no_memory(rd);
    if (cJSON_IsString(v))
        r = add_stop(rd, list, &n, v->valuestring);
    else if (v && !cJSON_IsArray(v))
        r = reading_fault(rd, "stop", err_set(&rd->err, -EINVAL, "'stop' must be a string or an array of strings, "
                                      "but is %s", json_type_name(v)));
    else if (v)
        cJSON_ArrayForEach(item, v) {
            if (!cJSON_IsString(item))
                return reading_fault(rd, "stop", err_set(&rd->err, -EINVAL, "'stop[%zu]' must be a string, but is "
                                                 "%s", n, json_type_name(item)));
            if ((r = add_stop(rd, list, &n, item->valuestring)) < 0)
                return r;
        }
    if (chat)
        for (const char *const *t = chat->stops; r == 0 && *t; t++)
            r = add_stop(rd, list, &n, *t);
    rd->er->stop = list;
    rd->er->n_stop = n;
    return r;
}

static int read_logit_bias(struct reading *rd)
{
    uint32_t vocab = engine_info(rd->w->engine)->vocab_size;
    struct sample_params *p = &rd->er->sample;
    const cJSON *obj = NULL, *member;
    struct logit_bias *list;
    int r;

    if ((r = json_get_object(rd->body, "logit_bias", &obj, &rd->err)) < 0 ||
        (r = logit_bias_check(obj, &rd->err)) < 0)
        return reading_fault(rd, "logit_bias", r);
    list = arena_array(rd->req->arena, obj ? (size_t)cJSON_GetArraySize(obj) + 1 : 1, sizeof list[0]);
    if (!list)
        return reading_no_memory(rd);
    p->bias = list;
    cJSON_ArrayForEach(member, obj) {
        struct logit_bias *b = &list[p->n_bias++];

        logit_bias_read(member, &b->token, &b->bias, NULL);
        if ((uint32_t)b->token >= vocab)
            return reading_fault(rd, "logit_bias",
                                 err_set(&rd->err, -EINVAL, "'logit_bias': token %d is not in the vocabulary of %u",
                                         b->token, vocab));
    }
    return 0;
}

static int read_breakers(struct reading *rd)
{
    static const char key[] = "dry_sequence_breakers";
    const cJSON *list = NULL, *item;
    const char **texts;
    size_t n = 0;
    int r = json_get_array(rd->body, key, &list, &rd->err);

    if (r != 0)
        return reading_fault(rd, key, r);
    texts = arena_array(rd->req->arena, DRY_MAX_BREAKERS, sizeof texts[0]);
    if (!texts)
        return reading_no_memory(rd);
    cJSON_ArrayForEach(item, list) {
        size_t len = cJSON_IsString(item) ? strlen(item->valuestring) : 0;

        if (n == DRY_MAX_BREAKERS || len == 0 || len > DRY_MAX_BREAKER_BYTES) {
            n = 0;
            break;
        }
        texts[n++] = item->valuestring;
    }
    if (n == 0)
        return reading_fault(rd, key, err_set(&rd->err, -EINVAL, "'%s' must hold 1 to %d strings of 1 to %d bytes", key,
                                              DRY_MAX_BREAKERS, DRY_MAX_BREAKER_BYTES));
    rd->er->sample.dry_breakers = texts;
    rd->er->sample.n_dry_breakers = n;
    return 0;
}

static int read_sampling(struct reading *rd)
{
    const char *key = NULL;
    int64_t seed = 0, logprobs = -1;
    int r;

    rd->er->sample = rd->w->set.sample;
    r = sampling_read(rd->body, &rd->er->sample, &key, &rd->err);
    if (r < 0)
        return reading_fault(rd, key, r);
    if ((r = read_logit_bias(rd)) < 0 || (r = read_breakers(rd)) < 0)
        return r;
    r = json_get_int(rd->body, "seed", -SEED_LIMIT, SEED_LIMIT, &seed, &rd->err);
    if (r < 0)
        return reading_fault(rd, "seed", r);
    rd->er->sample.has_seed = r == 0;
    rd->er->sample.seed = (uint64_t)seed;
    r = json_get_int(rd->body, "logprobs", 0, ENGINE_TOP_LOGPROBS, &logprobs, &rd->err);
    rd->er->n_logprobs = (int)logprobs;
    return reading_fault(rd, "logprobs", r);
}

/* After the prompt is known: what the context leaves bounds what may come. */
static int read_length(struct reading *rd)
{
    uint32_t context = engine_info(rd->w->engine)->context_length;
    size_t n = rd->er->n_tokens;
    int64_t max = 0;
    int r = reading_fault(rd, "max_tokens", json_get_int(rd->body, "max_tokens", 1, UINT32_MAX, &max, &rd->err));

    if (r < 0)
        return r;
    if (n == 0)
        return reading_fault(rd, "prompt", err_set(&rd->err, -EINVAL, "the prompt is empty"));
    if (n >= context)
        return reading_too_long(rd, "", n);
    if ((uint64_t)max > context - n) {
        rd->code = "context_length_exceeded";
        rd->param = json_find(rd->body, "messages") ? "messages" : "max_tokens";
        return err_set(&rd->err, -EINVAL, "This model's maximum context length is %u tokens. However, you "
                       "requested %llu tokens (%zu in the messages, %lld in the completion). Please reduce "
                       "the length of the messages or completion.", context,
                       (unsigned long long)(n + (uint64_t)max), n, (long long)max);
    }
    if (!max)
        max = rd->w->set.max_tokens ? rd->w->set.max_tokens : context;
    rd->er->max_tokens = (uint64_t)max > context - n ? context - (uint32_t)n : (uint32_t)max;
    return 0;
}

/* The request's, then, for a chat, those of the template that this model has. */
static int read_stop_tokens(struct reading *rd, const struct chat_prompt *chat)
{
    const struct engine_info *info = engine_info(rd->w->engine);
    const cJSON *list = NULL;
    const int32_t *own = NULL, *others = chat ? chat->stop_tokens : NULL;
    size_t n = 0, n_others = chat ? chat->n_stop_tokens : 0;
    int32_t *all;
    int r = reading_fault(rd, "stop_token_ids", json_get_array(rd->body, "stop_token_ids", &list, &rd->err));

    if (r == 0 && list)
        r = reading_ids(rd, "stop_token_ids", list, MAX_STOP_TOKENS, &own, &n);
    if (r < 0)
        return r;
    all = arena_array(rd->req->arena, n + n_others + 1, sizeof all[0]);
    if (!all)
        return reading_no_memory(rd);
    if (n)
        memcpy(all, own, n * sizeof all[0]);
    for (size_t i = 0; i < n_others; i++)
        if (others[i] >= 0 && (uint32_t)others[i] < info->vocab_size)
            all[n++] = others[i];
    rd->er->stop_tokens = all;
    rd->er->n_stop_tokens = n;
    return 0;
}

/* Hex digits of so many 64-bit numbers; absent: zeros. */
static int read_hex(struct reading *rd, const char *key, uint64_t *ret, size_t n)
{
    const char *text = NULL;
    int r = reading_fault(rd, key, json_get_string(rd->body, key, &text, &rd->err));

    if (r < 0 || !text)
        return r;
    if (strlen(text) != 16 * n || strspn(text, "0123456789abcdef") != 16 * n)
        return reading_fault(rd, key, err_set(&rd->err, -EINVAL, "'%s' must be %zu hexadecimal digits", key, 16 * n));
    for (size_t i = 0; i < 16 * n; i++)
        ret[i / 16] = ret[i / 16] << 4 | (uint64_t)(text[i] <= '9' ? text[i] - '0' : text[i] - 'a' + 10);
    return 0;
}

static int read_owner(struct reading *rd)
{
    int64_t priority = 0;
    int r = json_get_int(rd->body, "priority", -ENGINE_MAX_PRIORITY, ENGINE_MAX_PRIORITY, &priority, &rd->err);

    if (r < 0)
        return reading_fault(rd, "priority", r);
    rd->er->priority = (int32_t)priority;
    r = read_hex(rd, "tenant", &rd->er->tenant, 1);
    return r < 0 ? r : read_hex(rd, "cache_salt", rd->er->salt, 2);
}

static int read_request(struct reading *rd)
{
    struct chat_prompt prompt, *chat;
    bool is_chat = false;
    int r = read_prompt(rd, &prompt, &is_chat);

    chat = is_chat ? &prompt : NULL;
    if (r < 0 || (r = read_stops(rd, chat)) < 0 || (r = read_stop_tokens(rd, chat)) < 0 || (r = read_sampling(rd)) < 0 ||
        (r = read_owner(rd)) < 0 ||
        (r = reading_fault(rd, "ignore_eos",
                           json_get_bool(rd->body, "ignore_eos", &rd->er->ignore_end, &rd->err))) < 0)
        return r;
    return read_length(rd);
}

/* ---- answering ---- */

static void write_line(struct generation *g)
{
    if (g->line.failed) {
        buf_clear(&g->line);
        buf_adds(&g->line, "{\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\","
                           "\"code\":\"out_of_memory\"}}");
    }
    buf_addc(&g->line, '\n');
    job_write(&g->job, "application/x-ndjson", buf_str(&g->line), g->line.len);
    buf_clear(&g->line);
}

static void write_started(struct generation *g, const struct engine_event *ev)
{
    struct json_writer w = json_writer(&g->line);

    g->start_us = clock_mono_us();
    json_open(&w, '{');
    json_kint(&w, "prompt_tokens", ev->prompt_tokens);
    json_close(&w, '}');
    write_line(g);
}

static void write_token(struct json_writer *w, struct engine *e, int32_t id, float logprob)
{
    size_t len;
    const char *text = engine_token_text(e, id, &len);

    json_key(w, "token");
    json_strn(w, text, len);
    json_key(w, "bytes");
    json_open(w, '[');
    for (size_t i = 0; i < len; i++)
        json_int(w, (unsigned char)text[i]);
    json_close(w, ']');
    json_knum(w, "logprob", (double)logprob);
}

static void write_logprobs(struct json_writer *w, struct engine *e, const struct engine_token *tokens, size_t n)
{
    json_key(w, "logprobs");
    json_open(w, '[');
    for (size_t i = 0; i < n; i++) {
        const struct engine_token *t = &tokens[i];

        json_open(w, '{');
        write_token(w, e, t->id, t->logprob);
        json_key(w, "top");
        json_open(w, '[');
        for (size_t k = 0; k < t->n_top; k++) {
            json_open(w, '{');
            write_token(w, e, t->top[k].token, t->top[k].logprob);
            json_close(w, '}');
        }
        json_close(w, ']');
        json_close(w, '}');
    }
    json_close(w, ']');
}

/* What fits a line that everybody reads: where this loop was behind, much may
 * have come together. */
enum { LINE_TEXT = 65536, LINE_TOKENS = 128 };

static size_t whole_characters(const char *text, size_t len, size_t most)
{
    size_t n = len < most ? len : most;

    while (n < len && n > most - 4 && ((unsigned char)text[n] & 0xc0) == 0x80)
        n--;
    return n;
}

static void write_part(struct generation *g, const char *text, size_t len, const struct engine_token *tokens, size_t n)
{
    struct json_writer w = json_writer(&g->line);

    json_open(&w, '{');
    json_key(&w, "text");
    json_strn(&w, text, len);
    json_key(&w, "tokens");
    json_open(&w, '[');
    for (size_t i = 0; i < n; i++)
        json_int(&w, tokens[i].id);
    json_close(&w, ']');
    if (g->logprobs)
        write_logprobs(&w, g->job.worker->engine, tokens, n);
    json_close(&w, '}');
    write_line(g);
}

static void write_output(struct generation *g, const struct engine_event *ev)
{
    const struct engine_token *tokens = ev->tokens;
    const char *text = ev->text;
    size_t len = ev->len, n = ev->n_tokens;

    if (!g->first_us)
        g->first_us = clock_mono_us();
    do {
        size_t some = whole_characters(text, len, LINE_TEXT), few = n < LINE_TOKENS ? n : LINE_TOKENS;

        write_part(g, text, some, tokens, few);
        text += some;
        len -= some;
        n -= few;
        tokens = n ? tokens + few : NULL;
    } while (len || n);
}

static double ms_between(uint64_t from_us, uint64_t to_us)
{
    return to_us > from_us ? (double)(to_us - from_us) / 1000 : 0;
}

static void write_done(struct generation *g, const struct engine_event *ev)
{
    struct json_writer w = json_writer(&g->line);
    uint64_t now = clock_mono_us(), first = g->first_us ? g->first_us : now;

    json_open(&w, '{');
    json_kstr(&w, "finish_reason", ev->finish_reason);
    json_kstr(&w, "stop_reason", ev->stop_reason);
    json_key(&w, "usage");
    json_open(&w, '{');
    json_kint(&w, "prompt_tokens", ev->prompt_tokens);
    json_kint(&w, "completion_tokens", ev->completion_tokens);
    json_kint(&w, "cached_tokens", ev->cached_tokens);
    json_close(&w, '}');
    json_key(&w, "timings");
    json_open(&w, '{');
    json_knum(&w, "prompt_ms", ms_between(g->start_us, first));
    json_knum(&w, "predicted_ms", ms_between(first, now));
    json_knum(&w, "queued_ms", ms_between(g->submit_us, g->start_us));
    if (ev->drafted_tokens) {
        json_kint(&w, "draft_n", ev->drafted_tokens);
        json_kint(&w, "draft_n_accepted", ev->accepted_tokens);
    }
    json_close(&w, '}');
    json_close(&w, '}');
    write_line(g);
    job_end(&g->job);
}

static void write_failed(struct generation *g, const struct engine_event *ev)
{
    struct json_writer w = json_writer(&g->line);

    json_open(&w, '{');
    json_key(&w, "error");
    json_open(&w, '{');
    json_kstr(&w, "message", ev->message ? ev->message : "the engine failed");
    json_kstr(&w, "type", "server_error");
    if (!g->job.streaming)
        json_knull(&w, "param");
    json_kstr(&w, "code", ev->error == -ENOMEM ? "out_of_memory" : "internal_error");
    json_close(&w, '}');
    json_close(&w, '}');
    if (g->job.streaming) {
        write_line(g);
        job_end(&g->job);
    } else {
        job_reply_json(&g->job, 500, buf_str(&g->line));
    }
}

static void generation_event(struct job *j, const struct engine_event *ev)
{
    struct generation *g = (struct generation *)j;

    switch (ev->kind) {
    case ENGINE_STARTED: write_started(g, ev); break;
    case ENGINE_OUTPUT: write_output(g, ev); break;
    case ENGINE_DONE: write_done(g, ev); break;
    case ENGINE_FAILED: write_failed(g, ev); break;
    }
}

static void generation_release(struct job *j)
{
    struct generation *g = (struct generation *)j;

    buf_fini(&g->line);
    free(g);
}

static void start(struct reading *rd)
{
    struct generation *g = calloc(1, sizeof *g);
    int r;

    if (!g) {
        reading_busy(rd, "overloaded", "out of memory");
        return;
    }
    g->job.event = generation_event;
    g->job.release = generation_release;
    g->logprobs = rd->er->n_logprobs >= 0;
    g->submit_us = clock_mono_us();
    r = job_start(rd->w, &g->job, rd->req, rd->er, &rd->err);
    if (r == 0)
        return;
    free(g);
    if (r == JOB_BUSY)
        reading_busy(rd, "overloaded", "the model's queue is full");
    else
        reading_refuse(rd, r);
}

void generate_handle(struct http_request *req, void *user)
{
    struct engine_request er = { 0 };
    struct reading rd = { .w = user, .req = req, .er = &er };
    const char *code, *why = worker_refusal(rd.w, &code), *request_id = "-";
    int r;

    if (why) {
        reading_busy(&rd, code, why);
        return;
    }
    r = reading_parse(&rd);
    if (r == 0)
        r = reading_fault(&rd, "request_id", json_get_string(rd.body, "request_id", &request_id, &rd.err));
    if (r == 0)
        r = read_request(&rd);
    if (r < 0) {
        reading_refuse(&rd, r);
    } else {
        log_debug("request %.64s: %zu prompt tokens, at most %u more", request_id, er.n_tokens, er.max_tokens);
        start(&rd);
    }
    reading_fini(&rd);
}
