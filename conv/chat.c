/* What rows and Jinja have in common, and the rows.
 *
 * A last message that goes on (continue_final_message) is found as transformers finds it: a mark is put behind its text,
 * and the prompt ends before the last mark that was written. The mark ends in a space: where that is gone the template
 * trims texts, so the space at the message's end goes too.
 */
#include "conv/chat.h"

#include "base/arena.h"
#include "base/err.h"
#include "base/unicode.h"
#include "base/utf8.h"
#include "conv/chat_inner.h"
#include "conv/conv.h"

#include <errno.h>
#include <string.h>

#define MARK "CONTINUE_FINAL_MESSAGE_TAG"

static const char *const no_stops[] = { NULL };

/* ---- the last message goes on ---- */

/* The end of text[0..len) without Python's white space behind it. */
static size_t without_space(const char *text, size_t len)
{
    size_t end = 0, n;
    uint32_t c;

    for (size_t i = 0; i < len; i += n) {
        int got = utf8_decode(text + i, len - i, &c);

        n = got > 0 ? (size_t)got : 1;
        if (got <= 0 || !unicode_is_pyspace(c))
            end = i + n;
    }
    return end;
}

static struct json_slice stripped(const char *text, size_t len)
{
    size_t at = 0;
    uint32_t c;
    int n;

    len = without_space(text, len);
    while (at < len && (n = utf8_decode(text + at, len - at, &c)) > 0 && unicode_is_pyspace(c))
        at += (size_t)n;
    return (struct json_slice){ text + at, len - at };
}

static const char *last_mark(const char *text, size_t len)
{
    const char *found = NULL, *at = text;

    while ((at = memmem(at, len - (size_t)(at - text), MARK, sizeof MARK - 1)))
        found = at++;
    return found;
}

/* The prompt up to `len`. */
static int cut(struct chat_prompt *p, size_t len, struct chat_fault *f)
{
    struct text_span *spans = arena_array(f->a, p->n_spans + 1, sizeof *spans);
    char *text = arena_strndup(f->a, p->text, len);
    size_t n = 0;

    if (!spans || !text)
        return err_set(f->err, -ENOMEM, "no memory for a prompt of %zu bytes", len);
    for (size_t i = 0, at = 0; i < p->n_spans && at < len; at += p->spans[i++].len) {
        size_t some = p->spans[i].len < len - at ? p->spans[i].len : len - at;

        spans[n++] = (struct text_span){ text + at, some, p->spans[i].trusted };
    }
    p->spans = spans;
    p->n_spans = n;
    p->text = text;
    p->len = len;
    return 0;
}

static int end_in_last_message(struct chat_prompt *p, const struct chat_messages *m, struct chat_fault *f)
{
    const struct chat_message *last = &m->list[m->n - 1];
    const cJSON *part = last->kind == CONTENT_PARTS ? last->content->child : NULL;
    const char *mark = last_mark(p->text, p->len), *words;
    struct json_slice text;
    size_t len;

    while (part && part->next)
        part = part->next;
    words = part ? json_find(part, "text")->valuestring : last->content->valuestring;
    text = stripped(words, strlen(words));
    if (!mark || (text.len && !memmem(p->text, p->len, text.text, text.len)))
        return chat_refuse(f, "continue_final_message",
                           "'continue_final_message': the chat template does not write the last message as it is");
    len = (size_t)(mark - p->text);
    if (len + sizeof MARK - 1 == p->len || mark[sizeof MARK - 1] != ' ')
        len = without_space(p->text, len);
    return cut(p, len, f);
}

/* ---- rendering ---- */

static int check_json(struct chat_fault *f, const char *param, const char *json, size_t len, char bracket)
{
    int r;

    if (!json)
        return 0;
    r = json_check(json, len, NULL, f->err);
    if (r < 0) {
        *f->param = param;
        err_place(f->err, "%s", param);
        return r;
    }
    for (size_t i = 0; i < len; i++)
        if (!strchr(" \t\r\n", json[i]))
            return json[i] == bracket ? 0 : chat_refuse(f, param, "'%s' must be %s", param, bracket == '[' ? "an array" : "an object");
    return 0;
}

static int check_documents(struct chat_fault *f, const struct chat_input *r)
{
    struct json_walk w = json_walk(r->documents, r->documents_len);
    struct json_slice key, value;

    for (size_t i = 0; json_next(&w, &key, &value); i++)
        if (*value.text != '{')
            return chat_refuse(f, "documents", "'documents[%zu]' must be an object", i);
    return 0;
}

static int check_request(struct chat_fault *f, const struct chat_input *r)
{
    int rc;

    if (r->add_generation_prompt && r->continue_final_message)
        return chat_refuse(f, "continue_final_message",
                           "'continue_final_message' and 'add_generation_prompt' can not both be true");
    if ((rc = check_json(f, "tools", r->tools, r->tools_len, '[')) < 0 ||
        (rc = check_json(f, "documents", r->documents, r->documents_len, '[')) < 0 ||
        (rc = check_json(f, "chat_template_kwargs", r->kwargs, r->kwargs_len, '{')) < 0)
        return rc;
    return r->documents ? check_documents(f, r) : 0;
}

static int check_last(struct chat_fault *f, const struct chat_messages *m)
{
    const struct chat_message *last = &m->list[m->n - 1];

    if (last->kind == CONTENT_NONE || (last->kind == CONTENT_PARTS && !last->content->child))
        return chat_refuse(f, "continue_final_message", "'continue_final_message': the last message has no text");
    return 0;
}

int chat_render(const struct chat_template *t, const struct chat_input *r, struct arena *a, struct chat_prompt *ret,
                const char **ret_param, struct err *err)
{
    struct chat_fault f = { ret_param, err, a };
    struct chat_messages messages;
    struct chat_prompt prompt = { .stops = no_stops };
    int rc;

    *ret_param = NULL;
    rc = chat_messages_read(r->messages, r->messages_len, &messages, &f);
    if (rc == 0)
        rc = check_request(&f, r);
    if (rc == 0 && r->continue_final_message) {
        messages.tail = MARK " ";
        rc = check_last(&f, &messages);
    }
    if (rc == 0)
        rc = t->kind->render(t, r, &messages, &prompt, &f);
    if (rc == 0 && r->continue_final_message)
        rc = end_in_last_message(&prompt, &messages, &f);
    chat_messages_fini(&messages);
    if (rc == 0)
        *ret = prompt;
    return rc;
}

/* ---- rows ---- */

static int row_refuses(const struct chat_template *t, const struct chat_input *r, const struct chat_messages *m,
                       struct chat_fault *f)
{
    if (r->tools)
        return chat_refuse(f, "tools", "the chat template %s takes no tools", t->name);
    if (r->documents)
        return chat_refuse(f, "documents", "the chat template %s takes no documents", t->name);
    for (size_t i = 0; i < m->n; i++)
        if (m->list[i].calls) {
            const char *param = arena_printf(f->a, "messages[%zu].tool_calls", i);

            return chat_refuse(f, param ? param : "messages", "the chat template %s takes no tool calls", t->name);
        }
    return 0;
}

static int row_render(const struct chat_template *t, const struct chat_input *r, const struct chat_messages *m,
                      struct chat_prompt *ret, struct chat_fault *f)
{
    struct conv_message *list = arena_array(f->a, m->n, sizeof *list);
    struct text_span *spans = NULL;
    int rc = row_refuses(t, r, m, f);

    if (rc < 0)
        return rc;
    for (size_t i = 0; i < m->n && list; i++) {
        list[i] = (struct conv_message){ m->list[i].role, chat_message_text(m, i, f->a) };
        if (!list[i].content)
            list = NULL;
    }
    if (!list)
        return err_set(f->err, -ENOMEM, "no memory for %zu messages", m->n);
    rc = conv_render(t->wire, list, m->n, r->add_generation_prompt, f->a, &spans, &ret->n_spans, f->err);
    if (rc < 0) {
        *f->param = "messages";
        return rc;
    }
    ret->spans = spans;
    ret->text = ret->n_spans ? spans[0].text : "";
    for (size_t i = 0; i < ret->n_spans; i++)
        ret->len += spans[i].len;
    ret->stops = conv_stops(t->wire);
    ret->stop_tokens = conv_stop_tokens(t->wire, &ret->n_stop_tokens);
    return 0;
}

static void row_fini(struct chat_template *t) {}

static const char *row_text(const struct chat_template *t, const char *name, size_t *ret_len)
{
    return NULL;
}

static bool row_takes_tools(const struct chat_template *t)
{
    return false;
}

static const struct chat_kind row_kind = { row_fini, row_render, row_text, row_takes_tools };

int chat_from_row(const struct conv_template *row, struct chat_template **ret, struct err *err)
{
    *ret = chat_template_new(&row_kind, sizeof **ret, conv_name(row), row, err);
    return *ret ? 0 : -ENOMEM;
}

/* ---- both ---- */

void *chat_template_new(const struct chat_kind *kind, size_t size, const char *name, const struct conv_template *wire,
                        struct err *err)
{
    CLEANUP(arena_free) struct arena *arena = arena_new(0);
    struct chat_template *t = arena ? arena_alloc(arena, size) : NULL;

    if (!t || !(t->name = arena_strdup(arena, name))) {
        err_set(err, -ENOMEM, "%s: no memory for its chat template", name);
        return NULL;
    }
    t->kind = kind;
    t->wire = wire;
    t->arena = STEAL(arena);
    return t;
}

void chat_free(struct chat_template *t)
{
    if (!t)
        return;
    t->kind->fini(t);
    arena_free(t->arena);
}

const char *chat_name(const struct chat_template *t) { return t->name; }
const struct conv_template *chat_wire(const struct chat_template *t) { return t->wire; }
void chat_set_wire(struct chat_template *t, const struct conv_template *wire) { t->wire = wire; }

const char *chat_jinja_text(const struct chat_template *t, const char *name, size_t *ret_len)
{
    return t->kind->text(t, name, ret_len);
}

bool chat_takes_tools(const struct chat_template *t)
{
    return t->kind->takes_tools(t);
}
