/* Questions about text in our own form (docs/wire.md, part 4), answered without the engine's thread: the tokens of a
 * text, the text of tokens, the prompt of a chat. Fields and answers of the first two are those of llama-server's
 * endpoints, so that the api can hand them through. */
#include "daemon/worker/reading.h"
#include "daemon/worker/worker.h"

#include "base/arena.h"
#include "base/buf.h"
#include "base/utf8.h"
#include "conv/chat.h"

#include <errno.h>
#include <string.h>

enum { MAX_TOKENS = 1 << 22 };          /* in a question */

/* Reads the body and lets `answer` write what belongs into it; a model that drains still answers. */
static void reply(struct http_request *req, void *user, int (*answer)(struct reading *rd, struct json_writer *out))
{
    struct reading rd = { .w = user, .req = req };
    BUF_LOCAL body = BUF_INIT;
    struct json_writer out = json_writer(&body);
    const char *code, *why = worker_refusal(rd.w, &code);
    int r;

    if (why && !rd.w->engine) {
        reading_busy(&rd, code, why);
        return;
    }
    json_open(&out, '{');
    r = reading_parse(&rd);
    if (r == 0)
        r = answer(&rd, &out);
    json_close(&out, '}');
    if (r < 0)
        reading_refuse(&rd, r);
    else
        reply_buf(req, 200, &body);
    reading_fini(&rd);
}

static int get_bool(struct reading *rd, const char *key, bool *ret)
{
    return reading_fault(rd, key, json_get_bool(rd->body, key, ret, &rd->err));
}

/* ---- tokens of a text ---- */

struct ids { int32_t *list; size_t n, cap; };

static int add_ids(struct reading *rd, struct ids *ids, const int32_t *more, size_t n)
{
    if (n > ids->cap - ids->n) {
        size_t cap = ids->n + n > 2 * ids->cap ? ids->n + n : 2 * ids->cap;
        int32_t *grown = arena_array(rd->req->arena, cap, sizeof grown[0]);

        if (!grown)
            return reading_no_memory(rd);
        if (ids->n)
            memcpy(grown, ids->list, ids->n * sizeof grown[0]);
        ids->list = grown;
        ids->cap = cap;
    }
    if (n)
        memcpy(ids->list + ids->n, more, n * sizeof more[0]);
    ids->n += n;
    return 0;
}

/* A text, or in a list also a token. */
static int add_content(struct reading *rd, const cJSON *v, bool whole, bool add_special, bool parse_special,
                       struct ids *ids)
{
    uint32_t vocab = engine_info(rd->w->engine)->vocab_size;
    struct text_span span = { .trusted = parse_special };
    int32_t *tokens, id;
    size_t n;
    int r;

    if (cJSON_IsNumber(v) && !whole) {
        if (!(v->valuedouble >= 0 && v->valuedouble < vocab) || v->valuedouble != (double)(int32_t)v->valuedouble)
            return reading_fault(rd, "content", err_set(&rd->err, -EINVAL, "'content': a token must be between 0 and %u",
                                                        vocab - 1));
        id = (int32_t)v->valuedouble;
        return add_ids(rd, ids, &id, 1);
    }
    if (!cJSON_IsString(v))
        return reading_fault(rd, "content", err_set(&rd->err, -EINVAL, "'content' must be a string or a list of strings and tokens, "
                                                    "but is %s", json_type_name(v)));
    span.text = v->valuestring;
    span.len = strlen(span.text);
    r = engine_tokenize(rd->w->engine, &span, 1, add_special, rd->req->arena, &tokens, &n, &rd->err);
    return r < 0 ? reading_fault(rd, "content", r) : add_ids(rd, ids, tokens, n);
}

static void write_piece(struct json_writer *out, struct engine *e, int32_t id)
{
    size_t len;
    const char *text = engine_token_text(e, id, &len);

    json_open(out, '{');
    json_kint(out, "id", id);
    json_key(out, "piece");
    if (utf8_is_valid(text, len)) {
        json_strn(out, text, len);
    } else {
        json_open(out, '[');
        for (size_t i = 0; i < len; i++)
            json_int(out, (unsigned char)text[i]);
        json_close(out, ']');
    }
    json_close(out, '}');
}

static int tokenize(struct reading *rd, struct json_writer *out)
{
    const cJSON *content = json_find(rd->body, "content"), *item;
    bool add_special = false, parse_special = true, pieces = false;
    struct ids ids = { 0 };
    int r;

    if ((r = get_bool(rd, "add_special", &add_special)) < 0 || (r = get_bool(rd, "parse_special", &parse_special)) < 0 ||
        (r = get_bool(rd, "with_pieces", &pieces)) < 0)
        return r;
    if (cJSON_IsArray(content)) {
        cJSON_ArrayForEach(item, content)   /* what the model wants in front stands in front of the first */
            if ((r = add_content(rd, item, false, add_special && item == content->child, parse_special, &ids)) < 0)
                return r;
    } else if (content && (r = add_content(rd, content, true, add_special, parse_special, &ids)) < 0) {
        return r;
    }
    json_key(out, "tokens");
    json_open(out, '[');
    for (size_t i = 0; i < ids.n; i++) {
        if (pieces)
            write_piece(out, rd->w->engine, ids.list[i]);
        else
            json_int(out, ids.list[i]);
    }
    json_close(out, ']');
    return 0;
}

void text_tokenize(struct http_request *req, void *user)
{
    reply(req, user, tokenize);
}

/* ---- text of tokens ---- */

static int detokenize(struct reading *rd, struct json_writer *out)
{
    const cJSON *list = NULL;
    const int32_t *ids = NULL;
    BUF_LOCAL text = BUF_INIT;
    size_t n = 0;
    int r = reading_fault(rd, "tokens", json_get_array(rd->body, "tokens", &list, &rd->err));

    if (r == 0 && list)
        r = reading_ids(rd, "tokens", list, MAX_TOKENS, &ids, &n);
    if (r < 0)
        return r;
    if (engine_detokenize(rd->w->engine, ids, n, &text) < 0)
        return reading_no_memory(rd);
    json_key(out, "content");
    json_strn(out, buf_str(&text), text.len);
    return 0;
}

void text_detokenize(struct http_request *req, void *user)
{
    reply(req, user, detokenize);
}

/* ---- the prompt of a chat ---- */

static void write_ids(struct json_writer *out, const char *key, const int32_t *ids, size_t n)
{
    json_key(out, key);
    json_open(out, '[');
    for (size_t i = 0; i < n; i++)
        json_int(out, ids[i]);
    json_close(out, ']');
}

static int render(struct reading *rd, struct json_writer *out)
{
    struct chat_prompt prompt;
    const int32_t *ids = NULL;
    bool with_ids = false;
    size_t n = 0;
    int r;

    if ((r = get_bool(rd, "token_ids", &with_ids)) < 0 || (r = reading_chat(rd, &prompt)) < 0)
        return r;
    if (with_ids && (r = reading_tokens(rd, "messages", prompt.spans, prompt.n_spans, &ids, &n)) < 0)
        return r;
    json_key(out, "prompt");
    json_strn(out, prompt.text, prompt.len);
    json_key(out, "stop");
    json_open(out, '[');
    for (const char *const *s = prompt.stops; *s; s++)
        json_str(out, *s);
    json_close(out, ']');
    write_ids(out, "stop_token_ids", prompt.stop_tokens, prompt.n_stop_tokens);
    if (with_ids)
        write_ids(out, "token_ids", ids, n);
    return 0;
}

void text_render(struct http_request *req, void *user)
{
    reply(req, user, render);
}
