#include "daemon/worker/reading.h"

#include "base/arena.h"
#include "base/buf.h"
#include "conv/chat.h"
#include "daemon/worker/worker.h"

#include <errno.h>
#include <string.h>
#include <time.h>

/* ---- answers ---- */

static void reply_error(struct reading *rd, int status, const char *type, const char *code, const char *message)
{
    BUF_LOCAL body = BUF_INIT;
    struct json_writer w = json_writer(&body);

    json_open(&w, '{');
    json_key(&w, "error");
    json_open(&w, '{');
    json_kstr(&w, "message", message);
    json_kstr(&w, "type", type);
    json_kstr(&w, "param", status == 400 ? rd->param : NULL);
    json_kstr(&w, "code", code);
    json_close(&w, '}');
    json_close(&w, '}');
    reply_buf(rd->req, status, &body);
}

void reading_busy(struct reading *rd, const char *code, const char *message)
{
    http_add_header(rd->req, "Retry-After", "1");
    reply_error(rd, 503, "overloaded_error", code, message);
}

void reading_refuse(struct reading *rd, int r)
{
    if (r == -ENOMEM)
        reading_busy(rd, "overloaded", err_text(&rd->err));
    else
        reply_error(rd, 400, "invalid_request_error", rd->code, err_text(&rd->err));
}

int reading_fault(struct reading *rd, const char *param, int r)
{
    if (r < 0 && !rd->param)
        rd->param = param;
    return r < 0 ? r : 0;
}

int reading_no_memory(struct reading *rd)
{
    return err_set(&rd->err, -ENOMEM, "the request is too large");
}

int reading_too_long(struct reading *rd, const char *least, size_t n)
{
    rd->code = "context_length_exceeded";
    rd->param = json_find(rd->body, "messages") ? "messages" : "prompt";
    return err_set(&rd->err, -EINVAL, "This model's maximum context length is %u tokens. However, your "
                   "messages resulted in %s%zu tokens. Please reduce the length of the messages.",
                   engine_info(rd->w->engine)->context_length, least, n);
}

/* ---- the body ---- */

int reading_parse(struct reading *rd)
{
    int r = json_parse(rd->req->body, rd->req->body_len, NULL, &rd->body, &rd->err);

    if (r == 0 && !cJSON_IsObject(rd->body))
        r = err_set(&rd->err, -EINVAL, "the body must be an object, but is %s", json_type_name(rd->body));
    return r;
}

void reading_fini(struct reading *rd)
{
    cJSON_Delete(rd->body);
    rd->body = NULL;
}

/* A field as it is written, or nothing. */
static struct json_slice written(const struct reading *rd, const char *key)
{
    return json_slice_of(rd->req->body, rd->req->body_len, rd->body, json_find(rd->body, key));
}

int reading_chat(struct reading *rd, struct chat_prompt *ret)
{
    const struct json_slice messages = written(rd, "messages"), tools = written(rd, "tools"),
                            documents = written(rd, "documents"), kwargs = written(rd, "chat_template_kwargs");
    struct chat_input r = {
        .messages = messages.text, .messages_len = messages.len, .tools = tools.text, .tools_len = tools.len,
        .documents = documents.text, .documents_len = documents.len, .kwargs = kwargs.text, .kwargs_len = kwargs.len,
        .add_generation_prompt = true, .now = time(NULL),
    };
    const char *param = NULL;
    int rc;

    if (!messages.text)
        return reading_fault(rd, "messages", err_set(&rd->err, -EINVAL, "'messages' is missing"));
    rc = json_get_bool(rd->body, "continue_final_message", &r.continue_final_message, &rd->err);
    if (rc < 0)
        return reading_fault(rd, "continue_final_message", rc);
    r.add_generation_prompt = !r.continue_final_message;
    rc = json_get_bool(rd->body, "add_generation_prompt", &r.add_generation_prompt, &rd->err);
    if (rc < 0)
        return reading_fault(rd, "add_generation_prompt", rc);
    rc = chat_render(engine_info(rd->w->engine)->chat, &r, rd->req->arena, ret, &param, &rd->err);
    return reading_fault(rd, param ? param : "messages", rc);
}

int reading_tokens(struct reading *rd, const char *param, const struct text_span *spans, size_t n_spans,
                   const int32_t **ret, size_t *ret_n)
{
    size_t bytes = 0, least;
    int32_t *tokens = NULL;
    int r;

    for (size_t i = 0; i < n_spans; i++)
        bytes += spans[i].len;
    least = worker_surely_too_long(rd->w, bytes);
    if (least)
        return reading_too_long(rd, "at least ", least);
    r = engine_tokenize(rd->w->engine, spans, n_spans, true, rd->req->arena, &tokens, ret_n, &rd->err);
    *ret = tokens;
    return reading_fault(rd, param, r);
}

int reading_ids(struct reading *rd, const char *key, const cJSON *list, size_t max, const int32_t **ret, size_t *ret_n)
{
    uint32_t vocab = engine_info(rd->w->engine)->vocab_size;
    size_t n = (size_t)cJSON_GetArraySize(list), i = 0;
    const cJSON *item;
    int32_t *ids;

    if (n > max)
        return reading_fault(rd, key, err_set(&rd->err, -EINVAL, "'%s' holds %zu tokens, at most %zu are possible",
                                              key, n, max));
    ids = arena_array(rd->req->arena, n + 1, sizeof ids[0]);
    if (!ids)
        return reading_no_memory(rd);
    cJSON_ArrayForEach(item, list) {
        double v = cJSON_IsNumber(item) ? item->valuedouble : -1;

        if (!(v >= 0 && v < vocab) || v != (double)(int32_t)v)
            return reading_fault(rd, key, err_set(&rd->err, -EINVAL, "'%s[%zu]' must be a token between 0 and %u",
                                                  key, i, vocab - 1));
        ids[i++] = (int32_t)v;
    }
    *ret = ids;
    *ret_n = n;
    return 0;
}
