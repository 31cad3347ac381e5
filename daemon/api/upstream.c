#include "daemon/api/upstream.h"

#include "base/err.h"
#include "base/json.h"
#include "base/utf8.h"

#include <errno.h>
#include <string.h>

/* A probability of zero has no logarithm that JSON can hold; OpenAI's API
 * writes it as this. */
static const double LOGPROB_NONE = -9999.0;

int upstream_lines_feed(struct upstream_lines *l, char end, const char *data, size_t len,
                        int (*on_line)(const char *line, size_t len, void *user), void *user)
{
    while (len) {
        const char *stop = memchr(data, end, len);
        size_t n = stop ? (size_t)(stop - data) : len;
        int r;

        if (l->rest.len + n > UPSTREAM_LINE)
            return -E2BIG;
        if (!stop || l->rest.len) {
            buf_add(&l->rest, data, n);
            if (l->rest.failed)
                return -ENOMEM;
        }
        if (!stop)
            return 0;
        if (l->rest.len) {
            BUF_LOCAL line = l->rest;   /* on_line may free l */

            l->rest = (struct buf)BUF_INIT;
            r = on_line(line.data, line.len, user);
            if (r)
                return r;
            buf_clear(&line);
            l->rest = line;
            line = (struct buf)BUF_INIT;
        } else {
            r = on_line(data, n, user);
            if (r)
                return r;
        }
        data += n + 1;
        len -= n + 1;
    }
    return 0;
}

void upstream_lines_fini(struct upstream_lines *l)
{
    buf_fini(&l->rest);
}

void upstream_scratch_fini(struct upstream_scratch *s)
{
    buf_fini(&s->text);
    buf_fini(&s->logprobs);
    buf_fini(&s->timings);
}

/* ---- the common line ---- */

/* The end of the JSON string that starts at p (behind its quote), or NULL when
 * it holds something that deserves the parser's attention. */
static const char *plain_string_end(const char *p, const char *end)
{
    const char *start = p;
    bool ascii = true;

    for (; p < end; p++) {
        unsigned char c = (unsigned char)*p;

        if (c == '"')
            return ascii || utf8_is_valid(start, (size_t)(p - start)) ? p : NULL;
        if (c < 0x20)
            return NULL;
        if (c >= 0x80)
            ascii = false;
        if (c == '\\' && (++p == end || !strchr("\"\\/bfnrt", *p) || !*p))
            return NULL;
    }
    return NULL;
}

/* {"text":"…","tokens":[1,2]} */
static bool parse_plain_text(const char *line, size_t len, struct upstream_event *ret)
{
    static const char start[] = "{\"text\":\"", middle[] = "\",\"tokens\":[";
    const char *end = line + len, *p, *text;
    unsigned n = 0;
    bool digit = false;

    if (len < sizeof start || memcmp(line, start, sizeof start - 1) != 0)
        return false;
    text = line + sizeof start - 1;
    p = plain_string_end(text, end);
    if (!p || (size_t)(end - p) < sizeof middle + 1 || memcmp(p, middle, sizeof middle - 1) != 0)
        return false;
    ret->text = text;
    ret->text_len = (size_t)(p - text);
    for (p += sizeof middle - 1; p < end && *p != ']'; p++) {
        if (*p >= '0' && *p <= '9') {
            n += !digit;
            digit = true;
        } else if (*p == ',' && digit) {
            digit = false;
        } else {
            return false;
        }
    }
    ret->n_tokens = n;
    ret->kind = UPSTREAM_TEXT;
    return end - p == 2 && p[1] == '}' && (digit || n == 0);
}

/* ---- every other line ---- */

static int odd(struct err *err, const char *what)
{
    return err_set(err, -EPROTO, "%s", what);
}

static double logprob_of(const cJSON *token)
{
    double v;

    if (json_get_number(token, "logprob", &v, NULL) != 0 || v < LOGPROB_NONE)
        return LOGPROB_NONE;
    return v;
}

static void write_token(const cJSON *token, struct json_writer *w)
{
    const cJSON *bytes = NULL;
    const char *text = "";

    json_get_string(token, "token", &text, NULL);
    json_kstr(w, "token", text);
    json_knum(w, "logprob", logprob_of(token));
    json_key(w, "bytes");
    if (json_get_array(token, "bytes", &bytes, NULL) == 0)
        json_tree(w, bytes);
    else
        json_null(w);
}

static int get_logprobs(const cJSON *tree, unsigned top, struct upstream_scratch *s,
                        struct upstream_event *ret, struct err *err)
{
    struct json_writer w = json_writer(&s->logprobs);
    const cJSON *list = NULL, *token, *best, *other;

    if (json_get_array(tree, "logprobs", &list, err) != 0)
        return 0;
    cJSON_ArrayForEach(token, list)
    {
        unsigned n = 0;

        if (!cJSON_IsObject(token))
            return odd(err, "an entry of 'logprobs' is no object");
        json_open(&w, '{');
        write_token(token, &w);
        json_key(&w, "top_logprobs");
        json_open(&w, '[');
        best = json_find(token, "top");
        cJSON_ArrayForEach(other, best)
        {
            if (n++ == top)
                break;
            json_open(&w, '{');
            write_token(other, &w);
            json_close(&w, '}');
        }
        json_close(&w, ']');
        json_close(&w, '}');
    }
    ret->logprobs = s->logprobs.len ? s->logprobs.data : NULL;
    return 0;
}

static int get_text(const cJSON *tree, const char *text, unsigned top, struct upstream_scratch *s,
                    struct upstream_event *ret, struct err *err)
{
    const cJSON *tokens = NULL;

    json_quote(&s->text, text, strlen(text));
    if (!s->text.failed) {
        ret->text = s->text.data + 1;
        ret->text_len = s->text.len - 2;
    }
    if (json_get_array(tree, "tokens", &tokens, NULL) == 0)
        ret->n_tokens = (unsigned)cJSON_GetArraySize(tokens);
    ret->kind = UPSTREAM_TEXT;
    return get_logprobs(tree, top, s, ret, err);
}

static int get_finish(const cJSON *tree, const char *reason, struct upstream_scratch *s,
                      struct upstream_event *ret, struct err *err)
{
    static const char *const reasons[] = { "stop", "length", "content_filter", "tool_calls" };
    const cJSON *usage = NULL, *timings = NULL;
    struct json_writer w = json_writer(&s->timings);

    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++)
        if (strcmp(reason, reasons[i]) == 0)
            ret->finish_reason = reasons[i];
    if (!ret->finish_reason)
        return err_set(err, -EPROTO, "the answer ended with the reason '%.40s'", reason);
    if (json_get_object(tree, "usage", &usage, NULL) == 0) {
        json_get_int(usage, "prompt_tokens", 0, INT32_MAX, &ret->prompt_tokens, NULL);
        json_get_int(usage, "completion_tokens", 0, INT32_MAX, &ret->completion_tokens, NULL);
        json_get_int(usage, "cached_tokens", 0, INT32_MAX, &ret->cached_tokens, NULL);
    }
    if (json_get_object(tree, "timings", &timings, NULL) == 0) {
        json_tree(&w, timings);
        ret->timings = s->timings.data;
    }
    ret->kind = UPSTREAM_FINISH;
    return 0;
}

static int parse_tree(const cJSON *tree, unsigned top, struct upstream_scratch *s,
                      struct upstream_event *ret, struct err *err)
{
    const char *text;

    if (!cJSON_IsObject(tree))
        return odd(err, "a line is no JSON object");
    if (json_find(tree, "error")) {
        ret->kind = UPSTREAM_ERROR;
        api_error_of_worker(&ret->error, 500, tree);
        return 0;
    }
    if (json_get_string(tree, "text", &text, err) == 0)
        return get_text(tree, text, top, s, ret, err);
    if (json_get_string(tree, "finish_reason", &text, err) == 0)
        return get_finish(tree, text, s, ret, err);
    if (json_get_int(tree, "prompt_tokens", 0, INT32_MAX, &ret->prompt_tokens, err) == 0)
        ret->kind = UPSTREAM_ADMITTED;
    return err_is_set(err) ? -EPROTO : 0;
}

/* The sentence of the error, a kilobyte, needs no cleaning. */
void upstream_event_init(struct upstream_event *ev)
{
    ev->kind = UPSTREAM_OTHER;
    ev->text = ev->logprobs = ev->finish_reason = ev->timings = NULL;
    ev->text_len = 0;
    ev->n_tokens = 0;
    ev->prompt_tokens = ev->completion_tokens = ev->cached_tokens = -1;
    ev->error.status = 0;
    ev->error.retry_after_s = 0;
}

static bool is_blank(const char *line, size_t len)
{
    while (len && (line[len - 1] == ' ' || line[len - 1] == '\t' || line[len - 1] == '\r'))
        len--;
    return len == 0;
}

int upstream_parse(const char *line, size_t len, unsigned top, struct upstream_scratch *s,
                   struct upstream_event *ret, struct err *err)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    struct err local = { 0 };
    int r;

    upstream_event_init(ret);
    if (parse_plain_text(line, len, ret))
        return 0;
    upstream_event_init(ret);
    if (is_blank(line, len))
        return 0;
    buf_clear(&s->text);
    buf_clear(&s->logprobs);
    buf_clear(&s->timings);
    r = json_parse(line, len, NULL, &tree, &local);
    if (r == 0)
        r = parse_tree(tree, top, s, ret, &local);
    if (r == 0 && (s->text.failed || s->logprobs.failed || s->timings.failed))
        r = -ENOMEM;
    if (r < 0)
        err_set(err, r, "%s", err_text(&local));
    return r == -ENOMEM ? r : r < 0 ? -EPROTO : 0;
}
