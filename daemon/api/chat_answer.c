#include "daemon/api/chat_answer.h"

#include "base/json.h"
#include "daemon/api/api_error.h"

#include <string.h>

#define ADD(out, literal) buf_add(out, literal, sizeof(literal) - 1)

static void add_ids(const struct chat_head *h, const char *object, struct json_writer *w)
{
    json_kstr(w, "id", h->id);
    json_kstr(w, "object", object);
    json_kint(w, "created", h->created);
    json_kstr(w, "model", h->model);
}

void chat_head_init(struct chat_head *h, const char *id, const char *model, int64_t created,
                    bool include_usage)
{
    struct json_writer w = json_writer(&h->start);

    *h = (struct chat_head){ .id = id, .model = model, .created = created,
                             .include_usage = include_usage };
    ADD(&h->start, "data: ");
    json_open(&w, '{');
    add_ids(h, "chat.completion.chunk", &w);
    json_key(&w, "choices");
    ADD(&h->start, "[");
}

void chat_head_fini(struct chat_head *h)
{
    buf_fini(&h->start);
}

/* printf is slow, and this runs for every chunk. */
static void add_index(unsigned v, struct buf *out)
{
    char digits[8];
    size_t n = sizeof digits;

    do
        digits[--n] = (char)('0' + v % 10);
    while ((v /= 10) && n);
    buf_add(out, digits + n, sizeof digits - n);
}

static void open_choice(const struct chat_head *h, unsigned index, struct buf *out)
{
    buf_add(out, h->start.data, h->start.len);
    ADD(out, "{\"index\":");
    add_index(index, out);
}

static void close_chunk(const struct chat_head *h, struct buf *out)
{
    if (h->include_usage)
        ADD(out, ",\"usage\":null");
    ADD(out, "}\n\n");
}

static void add_logprobs(const char *logprobs, struct buf *out)
{
    if (!logprobs) {
        ADD(out, ",\"logprobs\":null");
        return;
    }
    ADD(out, ",\"logprobs\":{\"content\":[");
    buf_adds(out, logprobs);
    ADD(out, "],\"refusal\":null}");
}

void chat_chunk_role(const struct chat_head *h, unsigned index, struct buf *out)
{
    open_choice(h, index, out);
    ADD(out, ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
             "\"finish_reason\":null}]");
    close_chunk(h, out);
}

void chat_chunk_text(const struct chat_head *h, unsigned index, const char *text, size_t len,
                     const char *logprobs, struct buf *out)
{
    open_choice(h, index, out);
    ADD(out, ",\"delta\":{\"content\":\"");
    buf_add(out, text, len);
    ADD(out, "\"}");
    add_logprobs(logprobs, out);
    ADD(out, ",\"finish_reason\":null}]");
    close_chunk(h, out);
}

void chat_chunk_finish(const struct chat_head *h, unsigned index, const char *reason,
                       struct buf *out)
{
    open_choice(h, index, out);
    ADD(out, ",\"delta\":{},\"logprobs\":null,\"finish_reason\":\"");
    buf_adds(out, reason);
    ADD(out, "\"}]");
    close_chunk(h, out);
}

static void add_usage(const struct chat_usage *u, struct json_writer *w)
{
    json_key(w, "usage");
    json_open(w, '{');
    json_kint(w, "prompt_tokens", u->prompt_tokens);
    json_kint(w, "completion_tokens", u->completion_tokens);
    json_kint(w, "total_tokens", u->prompt_tokens + u->completion_tokens);
    if (u->cached_tokens >= 0) {
        json_key(w, "prompt_tokens_details");
        json_open(w, '{');
        json_kint(w, "cached_tokens", u->cached_tokens);
        json_close(w, '}');
    }
    json_close(w, '}');
}

void chat_chunk_usage(const struct chat_head *h, const struct chat_usage *usage, struct buf *out)
{
    struct json_writer w = { .out = out, .comma = true };

    buf_add(out, h->start.data, h->start.len);
    ADD(out, "]");
    add_usage(usage, &w);
    ADD(out, "}\n\n");
}

void chat_event_done(struct buf *out)
{
    ADD(out, "data: [DONE]\n\n");
}

void chat_event_error(const struct api_error *e, struct buf *out)
{
    ADD(out, "data: ");
    api_error_write(e, out);
    ADD(out, "\n\n");
}

void chat_event_ping(struct buf *out)
{
    ADD(out, ": ping\n\n");
}

void chat_answer_write(const struct chat_head *h, const struct chat_choice *choices, unsigned n,
                       const struct chat_usage *usage, const char *timings, struct buf *out)
{
    struct json_writer w = json_writer(out);

    json_open(&w, '{');
    add_ids(h, "chat.completion", &w);
    json_key(&w, "choices");
    ADD(out, "[");
    for (unsigned i = 0; i < n; i++) {
        const struct chat_choice *c = &choices[i];

        if (i)
            ADD(out, ",");
        ADD(out, "{\"index\":");
        add_index(i, out);
        ADD(out, ",\"message\":{\"role\":\"assistant\",\"content\":\"");
        buf_add(out, c->content, c->content_len);
        ADD(out, "\"}");
        add_logprobs(c->logprobs, out);
        ADD(out, ",\"finish_reason\":\"");
        buf_adds(out, c->finish_reason);
        ADD(out, "\"}");
    }
    ADD(out, "]");
    w.comma = true;
    add_usage(usage, &w);
    if (timings) {
        json_key(&w, "timings");
        json_raw(&w, timings);
    }
    json_close(&w, '}');
}
