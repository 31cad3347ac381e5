#include "conv/dialogue.h"

#include "base/arena.h"
#include "base/err.h"
#include "base/json.h"
#include "conv/template.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct message { const char *role, *text; bool trusted; };

struct dialogue {
    const struct conv_template *t;
    struct arena *a;                /* of the texts */
    struct conv_text system;
    struct message *messages;       /* [cap] */
    size_t n, cap;
};

static int grow(struct dialogue *d)
{
    size_t cap = d->cap ? d->cap * 2 : 16;
    struct message *more;

    if (d->n < d->cap)
        return 0;
    if (d->n >= DIALOGUE_MAX_MESSAGES)
        return -E2BIG;
    more = realloc(d->messages, cap * sizeof *more);
    if (!more)
        return -ENOMEM;
    d->messages = more;
    d->cap = cap;
    return 0;
}

struct dialogue *dialogue_new(const struct conv_template *t)
{
    CLEANUP(dialogue_free) struct dialogue *d = calloc(1, sizeof *d);

    if (!d || !(d->a = arena_new(DIALOGUE_MAX_BYTES)))
        return NULL;
    d->t = t;
    d->system = (struct conv_text){ t->system_message, true };
    for (size_t i = 0; i < t->n_messages; i++) {
        if (grow(d) < 0)
            return NULL;
        d->messages[d->n++] = (struct message){ t->messages[i].role, t->messages[i].text, true };
    }
    return STEAL(d);
}

void dialogue_free(struct dialogue *d)
{
    if (!d)
        return;
    arena_free(d->a);
    free(d->messages);
    free(d);
}

/* The arena gives nothing over its limit, and then it is the texts that are too big. */
static int copy(struct dialogue *d, const char *text, const char **ret)
{
    *ret = text ? arena_strdup(d->a, text) : NULL;
    return !text || *ret ? 0 : strlen(text) + arena_used(d->a) >= DIALOGUE_MAX_BYTES ? -E2BIG : -ENOMEM;
}

int dialogue_set_system(struct dialogue *d, const char *message)
{
    const char *text;
    int rc = copy(d, message, &text);

    if (rc == 0)
        d->system = (struct conv_text){ text, false };
    return rc;
}

int dialogue_append(struct dialogue *d, const char *role, const char *text)
{
    struct message m = { 0 };
    int rc;

    if ((rc = grow(d)) < 0 || (rc = copy(d, role, &m.role)) < 0 || (rc = copy(d, text, &m.text)) < 0)
        return rc;
    d->messages[d->n++] = m;
    return 0;
}

int dialogue_set_last(struct dialogue *d, const char *text)
{
    const char *copied;
    int rc = d->n ? copy(d, text, &copied) : -EINVAL;

    if (rc < 0)
        return rc;
    d->messages[d->n - 1].text = copied;
    d->messages[d->n - 1].trusted = false;
    return 0;
}

size_t dialogue_n_messages(const struct dialogue *d)
{
    return d->n;
}

const char *dialogue_role(const struct dialogue *d, size_t i)
{
    return i < CONV_MAX_ROLES ? d->t->roles[i] : NULL;
}

const char *dialogue_system(const struct dialogue *d, bool vision)
{
    const char *of_vision = d->t->system_message_vision;

    return vision && of_vision && *of_vision ? of_vision : d->system.text;
}

int dialogue_prompt(const struct dialogue *d, struct arena *a, const char **ret, struct err *err)
{
    struct conv_turn *turns = arena_array(a, d->n + 1, sizeof *turns);
    struct text_span *spans;
    size_t n;

    if (!turns)
        return err_set(err, -ENOMEM, "no memory for a prompt of %zu messages", d->n);
    for (size_t i = 0; i < d->n; i++)
        turns[i] = (struct conv_turn){ d->messages[i].role, { d->messages[i].text, d->messages[i].trusted } };
    return conv_render_turns(d->t, d->system, turns, d->n, a, &spans, &n, ret, err);
}

/* How a form names things, and when it has a system message. */
struct form {
    const char *assistant, *text_key;
    bool parts, empty_system;
};

static const struct form forms[] = {
    [DIALOGUE_OPENAI] = { "assistant", "content" },
    [DIALOGUE_OPENAI_VISION] = { "assistant", "content" },
    [DIALOGUE_ANTHROPIC_VISION] = { "assistant", "content", .parts = true, .empty_system = true },
    [DIALOGUE_GEMINI] = { "model", "content" },
    [DIALOGUE_METAGEN] = { "ai", "text" },
};

static void write_message(const struct form *f, const char *role, const char *text, struct json_writer *w)
{
    json_open(w, '{');
    json_kstr(w, "role", role);
    json_key(w, f->text_key);
    if (f->parts) {
        json_open(w, '[');
        json_open(w, '{');
        json_kstr(w, "type", "text");
        json_kstr(w, "text", text);
        json_close(w, '}');
        json_close(w, ']');
    } else {
        json_str(w, text);
    }
    json_close(w, '}');
}

static void write_messages(const struct dialogue *d, const struct form *f, struct json_writer *w)
{
    json_open(w, '[');
    if (f->empty_system || *d->system.text)
        write_message(f, "system", d->system.text, w);
    for (size_t i = d->t->offset; i < d->n; i++) {
        bool user = (i - d->t->offset) % 2 == 0;

        if (user || d->messages[i].text)
            write_message(f, user ? "user" : f->assistant, d->messages[i].text, w);
    }
    json_close(w, ']');
}

static void write_pairs(const struct dialogue *d, struct json_writer *w)
{
    json_open(w, '[');
    for (size_t i = d->t->offset; i < d->n; i += 2) {
        json_open(w, '[');
        json_str(w, d->messages[i].text);
        json_str(w, i + 1 < d->n ? d->messages[i + 1].text : NULL);
        json_close(w, ']');
    }
    json_close(w, ']');
}

static void write_dict(const struct dialogue *d, struct json_writer *w)
{
    json_open(w, '{');
    json_kstr(w, "template_name", d->t->name);
    json_kstr(w, "system_message", d->system.text);
    conv_write_roles(d->t, w);
    json_key(w, "messages");
    json_open(w, '[');
    for (size_t i = 0; i < d->n; i++)
        conv_write_pair(d->messages[i].role, d->messages[i].text, w);
    json_close(w, ']');
    json_kint(w, "offset", (int64_t)d->t->offset);
    json_close(w, '}');
}

void dialogue_write(const struct dialogue *d, enum dialogue_form form, struct json_writer *w)
{
    if (form == DIALOGUE_GRADIO)
        write_pairs(d, w);
    else if (form == DIALOGUE_DICT)
        write_dict(d, w);
    else
        write_messages(d, &forms[form], w);
}
