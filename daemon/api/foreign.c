#include "daemon/api/foreign.h"

#include "base/arena.h"
#include "base/err.h"
#include "base/json.h"
#include "conv/chat.h"
#include "conv/conv.h"
#include "daemon/api/api_error.h"
#include "daemon/api/chat_request.h"

#include <errno.h>
#include <string.h>

static const char REPLACEMENT[] = "\xEF\xBF\xBD";
enum { CONTEXT_OVERFLOW = 40303 };      /* contract 0.4 */

void foreign_fini(struct foreign *f)
{
    buf_fini(&f->prompt);
    buf_fini(&f->stops);
    buf_fini(&f->stop_tokens);
    buf_fini(&f->last);
}

/* ---- the prompt ---- */

static void write_stops(struct foreign *f, const struct chat_request *r,
                        const struct conv_template *t)
{
    struct json_writer stops = json_writer(&f->stops), tokens = json_writer(&f->stop_tokens);
    const int32_t *ids = NULL;
    size_t n = 0;

    json_open(&stops, '[');
    for (size_t i = 0; i < r->n_stops; i++)
        json_str(&stops, r->stops[i]);
    for (const char *const *s = t ? conv_stops(t) : NULL; s && *s; s++)
        json_str(&stops, *s);
    json_close(&stops, ']');
    if (t)
        ids = conv_stop_tokens(t, &n);
    if (n + r->n_stop_tokens == 0) {
        json_null(&tokens);             /* as from a Python api for a template without any */
        return;
    }
    json_open(&tokens, '[');
    for (size_t i = 0; i < r->n_stop_tokens; i++)
        json_int(&tokens, r->stop_tokens[i]);
    for (size_t i = 0; i < n; i++)
        json_int(&tokens, ids[i]);
    json_close(&tokens, ']');
}

static int render(struct foreign *f, const struct chat_request *r, const struct conv_template *t,
                  struct api_error *e)
{
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    CLEANUP(chat_free) struct chat_template *chat = NULL;
    BUF_LOCAL messages = BUF_INIT;
    struct chat_input input = {
        .tools = r->tools.text, .tools_len = r->tools.len, .documents = r->documents.text,
        .documents_len = r->documents.len, .kwargs = r->kwargs.text, .kwargs_len = r->kwargs.len,
        .add_generation_prompt = r->add_generation_prompt, .continue_final_message = r->continue_final_message,
    };
    const char *param = NULL;
    struct chat_prompt prompt;
    struct err err = { 0 };
    int got;

    chat_request_write_messages(r, &messages);
    if (!a || messages.failed || chat_from_row(t, &chat, &err) < 0)
        return api_error_set(e, 503, NULL, NULL, "No memory for this request.");
    input.messages = buf_str(&messages);
    input.messages_len = messages.len;
    got = chat_render(chat, &input, a, &prompt, &param, &err);
    if (got == -ENOMEM)
        return api_error_set(e, 503, NULL, NULL, "No memory for this request.");
    if (got < 0)
        return api_error_set(e, 400, "invalid_value", param ? param : "messages", "%s", err_text(&err));
    buf_add(&f->prompt, prompt.text, prompt.len);
    return 0;
}

int foreign_render(struct foreign *f, const struct chat_request *r, const cJSON *answer,
                   struct api_error *e)
{
    CLEANUP(conv_free) struct conv_template *t = NULL;
    const cJSON *conv = NULL;
    struct err err = { 0 };
    int got;

    if (r->logprobs)
        return api_error_set(e, 400, "not_supported", "logprobs",
                             "'logprobs': the worker of this model can not give them");
    if (r->logit_bias.text)
        return api_error_set(e, 400, "not_supported", "logit_bias",
                             "'logit_bias': the worker of this model does not take token biases");
    if (json_get_object(answer, "conv", &conv, NULL) != 0)
        return api_error_set(e, 502, "worker_error", NULL,
                             "The model's worker has no conversation template.");
    got = conv_from_json(conv, &t, &err);
    if (got < 0 && !r->prompt)
        return api_error_set(e, 502, "worker_error", NULL,
                             "The conversation template of the model's worker can not be used: %s",
                             err_text(&err));
    if (!r->prompt && !conv_style(t))
        return api_error_set(e, 501, "worker_error", NULL,
                             "The conversation template of the model's worker has no separator style, and "
                             "so no prompt.");
    if (r->prompt)
        buf_adds(&f->prompt, r->prompt);
    else if (render(f, r, t, e) < 0)
        return -EINVAL;
    write_stops(f, r, r->prompt ? NULL : t);
    if (f->prompt.failed || f->stops.failed || f->stop_tokens.failed)
        return api_error_set(e, 503, NULL, NULL, "No memory for this request.");
    return 0;
}

static int take_number(const cJSON *answer, const char *key, int64_t *ret, struct api_error *e)
{
    struct err err = { 0 };

    if (json_get_int(answer, key, 0, INT32_MAX, ret, &err) != 0)
        return api_error_set(e, 502, "worker_error", NULL,
                             "The model's worker did not say its '%s'.", key);
    return 0;
}

int foreign_take_window(struct foreign *f, const cJSON *answer, struct api_error *e)
{
    return take_number(answer, "context_length", &f->window, e);
}

int foreign_take_count(struct foreign *f, const cJSON *answer, struct api_error *e)
{
    if (take_number(answer, "count", &f->n_prompt, e) < 0)
        return -EINVAL;
    if (f->n_prompt < f->window)
        return 0;
    return api_error_set(e, 400, "context_length_exceeded", "messages",
                         "This model's maximum context length is %lld tokens. However, your "
                         "messages resulted in %lld tokens. Please reduce the length of the "
                         "messages.",
                         (long long)f->window, (long long)f->n_prompt);
}

/* ---- what is sent ---- */

void foreign_write_question(const struct foreign *f, const char *model, bool with_prompt,
                            struct buf *out)
{
    struct json_writer w = json_writer(out);

    json_open(&w, '{');
    json_kstr(&w, "model", model);
    if (with_prompt)
        json_kstr(&w, "prompt", buf_str(&f->prompt));
    json_close(&w, '}');
}

static double given(double v, double otherwise)
{
    return isnan(v) ? otherwise : v;
}

void foreign_write(const struct foreign *f, const struct chat_request *r, unsigned choice,
                   struct buf *out)
{
    struct json_writer w = json_writer(out);
    int64_t room = f->window - f->n_prompt;

    json_open(&w, '{');
    json_kstr(&w, "model", r->model);
    json_kstr(&w, "prompt", buf_str(&f->prompt));
    /* A Python api leaves none of these out, and workers were written against it. */
    json_knum(&w, "temperature", given(r->temperature, 1));
    json_knum(&w, "top_p", given(r->top_p, 1));
    json_kint(&w, "top_k", r->has_top_k && r->top_k > 0 ? r->top_k : -1);
    json_knum(&w, "presence_penalty", given(r->presence_penalty, 0));
    json_knum(&w, "frequency_penalty", given(r->frequency_penalty, 0));
    if (!isnan(r->repetition_penalty))
        json_knum(&w, "repetition_penalty", r->repetition_penalty);
    if (r->has_seed)
        json_kint(&w, "seed", r->seed + choice);
    json_kint(&w, "max_new_tokens",
              r->has_max_tokens && r->max_tokens < room ? r->max_tokens : room);
    json_kbool(&w, "echo", false);
    json_knull(&w, "logprobs");
    json_key(&w, "stop");
    json_raw(&w, buf_str(&f->stops));
    json_key(&w, "stop_token_ids");
    json_raw(&w, buf_str(&f->stop_tokens));
    json_close(&w, '}');
}

/* ---- what comes back ---- */

/* Length of the text without the U+FFFD at its end. */
static size_t settled(const char *text, size_t len)
{
    while (len >= 3 && memcmp(text + len - 3, REPLACEMENT, 3) == 0)
        len -= 3;
    return len;
}

static bool starts_character(char c)
{
    return ((unsigned char)c & 0xC0) != 0x80;
}

/* Bytes that both texts begin with, up to the end of a character. */
static size_t shared(const struct buf *a, const char *b, size_t len)
{
    size_t n = 0, max = a->len < len ? a->len : len;

    while (n < max && a->data[n] == b[n])
        n++;
    while (n > 0 && n < len && !starts_character(b[n]))
        n--;
    return n;
}

/* Sends what lies beyond the characters that were sent. */
static void send_beyond(struct foreign *f, const char *text, size_t len, struct upstream_scratch *s,
                        struct upstream_event *ret)
{
    size_t at = 0, n = 0;

    for (; at < len; at++)
        if (starts_character(text[at]) && n++ == f->n_sent)
            break;
    if (at == len)
        return;
    for (size_t i = at; i < len; i++)
        f->n_sent += starts_character(text[i]);
    json_quote(&s->text, text + at, len - at);
    if (s->text.failed)
        return;
    ret->text = s->text.data + 1;
    ret->text_len = s->text.len - 2;
}

static void take_text(struct foreign *f, const char *text, bool last, struct upstream_scratch *s,
                      struct upstream_event *ret)
{
    size_t len = strlen(text);

    if (last) {
        send_beyond(f, text, len, s, ret);
        return;
    }
    if (!f->whole)
        send_beyond(f, text, shared(&f->last, text, settled(text, len)), s, ret);
    buf_clear(&f->last);
    buf_add(&f->last, text, len);
}

static const char *reason_of(const char *name)
{
    static const struct { const char *name, *reason; } rows[] = {
        { "eos", "stop" }, { "length", "length" }, { "stop", "stop" },
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(rows[i].name, name) == 0)
            return rows[i].reason;
    return NULL;
}

static int parse_tree(struct foreign *f, const cJSON *tree, struct upstream_scratch *s,
                      struct upstream_event *ret, struct err *err)
{
    const char *text, *reason = NULL;
    const cJSON *usage = NULL;
    int64_t code = 0;

    if (json_get_string(tree, "text", &text, err) != 0)
        return err_set(err, -EPROTO, "a frame without 'text'");
    if (json_get_int(tree, "error_code", 0, INT32_MAX, &code, err) < 0 ||
        json_get_string(tree, "finish_reason", &reason, err) < 0)
        return -EPROTO;
    if (code) {
        ret->kind = UPSTREAM_ERROR;
        api_error_set(&ret->error, code == CONTEXT_OVERFLOW ? 400 : 500,
                      code == CONTEXT_OVERFLOW ? "context_length_exceeded" : "worker_error", NULL,
                      "%s", text);
        return 0;
    }
    if (json_get_object(tree, "usage", &usage, NULL) == 0) {
        json_get_int(usage, "prompt_tokens", 0, INT32_MAX, &ret->prompt_tokens, NULL);
        json_get_int(usage, "completion_tokens", 0, INT32_MAX, &ret->completion_tokens, NULL);
    }
    take_text(f, text, reason != NULL, s, ret);
    ret->kind = reason ? UPSTREAM_FINISH : UPSTREAM_TEXT;
    if (reason && !(ret->finish_reason = reason_of(reason)))
        return err_set(err, -EPROTO, "the answer ended with the reason '%.40s'", reason);
    return 0;
}

int foreign_end(struct foreign *f, struct upstream_scratch *s, struct upstream_event *ret)
{
    upstream_event_init(ret);
    buf_clear(&s->text);
    ret->kind = UPSTREAM_FINISH;
    ret->finish_reason = "stop";
    send_beyond(f, buf_str(&f->last), f->last.len, s, ret);
    return s->text.failed ? -ENOMEM : 0;
}

int foreign_parse(struct foreign *f, const char *frame, size_t len, struct upstream_scratch *s,
                  struct upstream_event *ret, struct err *err)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    int r;

    upstream_event_init(ret);
    buf_clear(&s->text);
    if (len == 0)
        return 0;
    r = json_parse(frame, len, NULL, &tree, err);
    if (r == 0)
        r = parse_tree(f, tree, s, ret, err);
    if (r == 0 && (s->text.failed || f->last.failed))
        r = -ENOMEM;
    return r == -ENOMEM || r == 0 ? r : -EPROTO;
}
