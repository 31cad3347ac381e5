/* A prompt is built as a list of pieces that point into the template and the messages; at the
 * end the pieces are copied into one text and neighbours of equal trust become one span. So a
 * run of template text is tokenised as a whole, and a user's text is never joined with it.
 */
#include "conv/conv.h"

#include "base/arena.h"
#include "base/err.h"
#include "base/utf8.h"
#include "conv/template.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct piece { const char *text; size_t len; bool trusted; };

struct render {
    const struct conv_template *t;
    const struct style *style;
    struct arena *a;
    struct piece *pieces;
    size_t n, cap, bytes;
    bool failed;                    /* memory */
};

static void add(struct render *r, const char *text, size_t len, bool trusted)
{
    if (len == 0 || r->failed)
        return;
    if (r->n == r->cap) {
        size_t cap = r->cap ? r->cap * 2 : 32;
        struct piece *more = arena_array(r->a, cap, sizeof *more);

        if (!more) {
            r->failed = true;
            return;
        }
        if (r->n)
            memcpy(more, r->pieces, r->n * sizeof *more);
        r->pieces = more;
        r->cap = cap;
    }
    r->pieces[r->n++] = (struct piece){ text, len, trusted };
    r->failed = __builtin_add_overflow(r->bytes, len, &r->bytes);
}

static void add_text(struct render *r, const char *text)
{
    if (text)
        add(r, text, strlen(text), true);
}

/* The system template with the message in its slot. */
static void add_system(struct render *r, struct conv_text message)
{
    const char *at = r->t->system_template, *slot;

    for (; (slot = strstr(at, CONV_SLOT)); at = slot + sizeof CONV_SLOT - 1) {
        add(r, at, (size_t)(slot - at), true);
        add(r, message.text, strlen(message.text), message.trusted);
    }
    add_text(r, at);
}

/* Python's str.isspace() */
static bool is_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

static void add_stripped(struct render *r, struct conv_text text)
{
    size_t len = strlen(text.text), start = len, end = 0, n;
    uint32_t c;

    for (size_t i = 0; i < len; i += n) {
        int got = utf8_decode(text.text + i, len - i, &c);

        n = got > 0 ? (size_t)got : 1;
        if (got > 0 && is_space(c))
            continue;
        start = i < start ? i : start;
        end = i + n;
    }
    if (end > start)
        add(r, text.text + start, end - start, text.trusted);
}

/* "\r\n" to "\n", then each "\n\n" to "\n", once. */
static void add_without_blank_lines(struct render *r, struct conv_text text)
{
    size_t len = strlen(text.text), n = 0;
    char *out = arena_alloc(r->a, len + 1);
    bool pair = false;

    if (!out) {
        r->failed = true;
        return;
    }
    for (const char *s = text.text; *s; s++) {
        if (s[0] == '\r' && s[1] == '\n')
            continue;
        pair = *s == '\n' && !pair && n && out[n - 1] == '\n';
        if (!pair)
            out[n++] = *s;
    }
    add(r, out, n, text.trusted);
}

static void add_number(struct render *r, size_t n)
{
    char *text = arena_printf(r->a, "%zu", n);

    if (text)
        add_text(r, text);
    else
        r->failed = true;
}

static void add_slot(struct render *r, char slot, const struct conv_turn *turn, size_t position)
{
    switch (slot) {
    case 'S': add_system(r, turn->text); break;
    case 'r': add_text(r, turn->role); break;
    case 'p': add_text(r, r->t->roles[position % 2]); break;
    case 's': add_text(r, r->t->sep); break;
    case 'z': add_text(r, r->t->sep2); break;
    /* Rounds count from 0, in ChatGLM2 from 1. */
    case 'n': add_number(r, position / 2 + (strcmp(r->t->name, "chatglm2") == 0)); break;
    case 't':
        if (r->style->strip)
            add_stripped(r, turn->text);
        else if (r->style->one_blank_line)
            add_without_blank_lines(r, turn->text);
        else
            add(r, turn->text.text, strlen(turn->text.text), turn->text.trusted);
        break;
    }
}

static void add_pattern(struct render *r, const char *pattern, const struct conv_turn *turn, size_t position)
{
    while (*pattern) {
        size_t plain = strcspn(pattern, "{");

        add(r, pattern, plain, true);
        pattern += plain;
        if (*pattern) {
            add_slot(r, pattern[1], turn, position);
            pattern += 3;
        }
    }
}

static void add_turn(struct render *r, const struct conv_turn *turn, size_t position)
{
    const struct style *s = r->style;

    if (!turn->text.text || (!*turn->text.text && !r->t->as_file))
        add_pattern(r, s->open[position % 2], turn, position);
    else
        add_pattern(r, position == 0 && s->first ? s->first : s->turn[position % 2], turn, position);
}

static void begin(struct render *r, struct conv_text message)
{
    const struct style *s = r->style;
    const struct conv_turn turn = { .text = message };
    bool slot_only = strcmp(r->t->system_template, CONV_SLOT) == 0;
    bool text = *r->t->system_template && (*message.text || !slot_only);

    add_text(r, s->begin);
    if (s->when == SYSTEM_ALWAYS || (s->when == SYSTEM_IF_TEXT && text) ||
        (s->when == SYSTEM_IF_MESSAGE && *message.text))
        add_pattern(r, s->system, &turn, 0);
    else
        add_text(r, s->no_system);
}

/* 0 for system, 1 for user, 2 for assistant. */
static int role_of(const struct conv_template *t, const struct conv_message *m, int *ret, struct err *err)
{
    static const char *const known[] = { "system", "user", "assistant" };

    for (int i = 0; m->role && i < 3; i++) {
        if (strcmp(m->role, known[i]) == 0) {
            *ret = i;
            return 0;
        }
    }
    return err_set(err, -EINVAL,
                   "the template %s has no role '%.40s'; it has 'system', 'user' and 'assistant'", t->name,
                   m->role ? m->role : "");
}

/* All turns in order, the template's own and an open one included; there is room for them. */
static int list_turns(const struct conv_template *t, const struct conv_message *messages, size_t n, bool open_answer,
                      struct conv_text *system, struct conv_turn *turns, size_t *ret_n, struct err *err)
{
    size_t n_turns = 0;
    int role = 0, rc;

    for (size_t i = 0; i < t->n_messages; i++)
        turns[n_turns++] = (struct conv_turn){ t->messages[i].role, { t->messages[i].text, true } };
    for (size_t i = 0; i < n; i++) {
        struct conv_text text = { messages[i].content ? messages[i].content : "", false };

        rc = role_of(t, &messages[i], &role, err);
        if (rc < 0)
            return rc;
        if (role == 0 && t->as_file)
            turns[n_turns++] = (struct conv_turn){ NULL, text };
        else if (role == 0)
            *system = text;
        else
            turns[n_turns++] = (struct conv_turn){ t->roles[role - 1], text };
    }
    if (open_answer)
        turns[n_turns++] = (struct conv_turn){ t->roles[1], { NULL, true } };
    *ret_n = n_turns;
    return 0;
}

/* The ChatML of model files: a system message is a turn where it stands, and the template's own comes
 * first when the chat does not begin with one. */
static void add_turns_as_file(struct render *r, struct conv_text system, const struct conv_turn *turns, size_t n)
{
    if (n && turns[0].role && turns[0].text.text && *system.text)
        begin(r, system);
    for (size_t i = 0; i < n; i++) {
        if (turns[i].role)
            add_turn(r, &turns[i], i);
        else
            add_pattern(r, r->style->system, &turns[i], i);
    }
}

static void add_turns(struct render *r, struct conv_text system, const struct conv_turn *turns, size_t n)
{
    size_t from = r->style->last_two && n > 2 ? n - 2 : 0;

    begin(r, system);
    for (size_t i = from; i < n; i++)
        add_turn(r, &turns[i], i - from);
}

static void strip_end(struct render *r, const char *set)
{
    while (r->n) {
        struct piece *p = &r->pieces[r->n - 1];

        while (p->len && strchr(set, p->text[p->len - 1])) {
            p->len--;
            r->bytes--;
        }
        if (p->len)
            return;
        r->n--;
    }
}

static int join(struct render *r, struct text_span **ret, size_t *ret_n, const char **ret_text)
{
    struct text_span *spans = arena_array(r->a, r->n + 1, sizeof *spans);
    char *text = arena_alloc(r->a, r->bytes + 1);
    size_t n = 0;

    if (r->failed || !spans || !text)
        return -ENOMEM;
    *ret_text = text;
    for (size_t i = 0; i < r->n; i++) {
        const struct piece *p = &r->pieces[i];

        memcpy(text, p->text, p->len);
        if (n && spans[n - 1].trusted == p->trusted && p->trusted)
            spans[n - 1].len += p->len;
        else
            spans[n++] = (struct text_span){ text, p->len, p->trusted };
        text += p->len;
    }
    *text = 0;
    *ret = spans;
    *ret_n = n;
    return 0;
}

int conv_render_turns(const struct conv_template *t, struct conv_text system, const struct conv_turn *turns, size_t n,
                      struct arena *a, struct text_span **ret, size_t *ret_n, const char **ret_text, struct err *err)
{
    struct render r = { .t = t, .style = conv_style_facts(t->style), .a = a };

    if (!r.style)
        return err_set(err, -EINVAL, "Invalid style: None");
    if (t->as_file)
        add_turns_as_file(&r, system, turns, n);
    else
        add_turns(&r, system, turns, n);
    if (r.style->strip_end)
        strip_end(&r, r.style->strip_end);
    if (r.style->end)
        add_pattern(&r, r.style->end, NULL, 0);
    if (join(&r, ret, ret_n, ret_text) < 0)
        return err_set(err, -ENOMEM, "no memory for a prompt of %zu messages", n);
    return 0;
}

int conv_render(const struct conv_template *t, const struct conv_message *messages, size_t n,
                bool open_answer, struct arena *a, struct text_span **ret, size_t *ret_n,
                struct err *err)
{
    struct conv_text system = { t->system_message, true };
    struct conv_turn *turns;
    const char *text;
    size_t n_turns = 0;
    int rc;

    turns = arena_array(a, t->n_messages + n + 1, sizeof *turns);
    if (!turns)
        return err_set(err, -ENOMEM, "no memory for a prompt of %zu messages", n);
    rc = list_turns(t, messages, n, open_answer, &system, turns, &n_turns, err);
    return rc < 0 ? rc : conv_render_turns(t, system, turns, n_turns, a, ret, ret_n, &text, err);
}
