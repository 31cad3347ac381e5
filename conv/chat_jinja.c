/* A checkpoint's own templates.
 *
 * How a template looks at messages is not written anywhere, so it is tried: small chats with a needle in them are rendered
 * once, when the template is made, in each of the forms that a message may have, and what comes out says which one it is
 * written for (as minja and llama.cpp do it; vLLM reads the syntax tree instead, and has to follow macros). A chat that the template
 * refuses says nothing; what is not known is left as it came. The probes run under limits of their own, for a template may
 * be made to take long.
 *
 * What fails with a null content, or with arguments in one form, is rendered once more with the other form.
 */
#include "conv/chat_inner.h"

#include "base/arena.h"
#include "base/err.h"
#include "conv/jinja/jinja.h"

#include <errno.h>
#include <string.h>

#define NEEDLE "Needle7Q"

struct source {
    const char *name, *text;
    size_t len;
    struct jinja *jinja;
    struct chat_habits habits;
};

struct jinja_chat {
    struct chat_template chat;
    struct source *sources;
    size_t n_sources;
    struct chat_token *tokens;
    size_t n_tokens;
};

/* ---- one render ---- */

struct variables {
    const struct jinja_chat *t;
    struct json_slice messages, tools, documents, kwargs;
    bool add_generation_prompt;
    time_t now;
};

static int set_slice(struct jinja_vars *v, const char *name, struct json_slice json, struct err *err)
{
    return json.text ? jinja_set_json(v, name, json.text, json.len, err) : jinja_set_none(v, name, err);
}

static int set_kwargs(struct jinja_vars *v, struct json_slice json, struct err *err)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    struct json_walk w = json_walk(json.text, json.len);
    struct json_slice key, value;
    int r = json.text ? json_parse(json.text, json.len, NULL, &tree, err) : 0;

    for (const cJSON *c = tree ? tree->child : NULL; r == 0 && c && json_next(&w, &key, &value); c = c->next)
        r = jinja_set_json(v, c->string, value.text, value.len, err);
    return r;
}

static int set_all(struct jinja_vars *v, const struct variables *in, struct err *err)
{
    int r = 0;

    for (size_t i = 0; r == 0 && i < in->t->n_tokens; i++)
        r = jinja_set_text(v, in->t->tokens[i].name, in->t->tokens[i].text, strlen(in->t->tokens[i].text), true, err);
    if (r < 0 || (r = set_kwargs(v, in->kwargs, err)) < 0 || (r = set_slice(v, "messages", in->messages, err)) < 0 ||
        (r = set_slice(v, "tools", in->tools, err)) < 0 || (r = set_slice(v, "documents", in->documents, err)) < 0)
        return r;
    return jinja_set_bool(v, "add_generation_prompt", in->add_generation_prompt, err);
}

static int render_once(const struct jinja *jinja, const struct jinja_limits *limits, const struct variables *in, struct arena *a,
                       struct jinja_output *out, struct jinja_fault *fault, struct err *err)
{
    CLEANUP(jinja_vars_free) struct jinja_vars *v = NULL;
    int r = jinja_vars_new(limits, &v, err);

    if (r == 0)
        r = set_all(v, in, err);
    return r < 0 ? r : jinja_render(jinja, v, in->now, a, out, fault, err);
}

/* ---- probes ---- */

static const struct jinja_limits probe_limits = {
    .template_bytes = 1 << 20, .depth = 200, .output_bytes = 4 << 20, .steps = 500000, .memory_bytes = 64 << 20,
};

struct probe {
    const struct jinja_chat *t;
    const struct jinja *jinja;
    struct arena *a;
};

/* What the chat is written as, or NULL. */
static const char *try(const struct probe *p, const char *messages)
{
    const struct variables in = { .t = p->t, .messages = { messages, strlen(messages) }, .add_generation_prompt = true };
    struct jinja_output out;

    return render_once(p->jinja, &probe_limits, &in, p->a, &out, NULL, NULL) == 0 ? out.text : NULL;
}

static bool holds(const char *text, const char *what)
{
    return text && strstr(text, what);
}

static size_t count(const char *text, const char *what)
{
    size_t n = 0;

    for (; text && (text = strstr(text, what)); text += strlen(what))
        n++;
    return n;
}

#define CALL(arguments)                                                                                          \
    "[{\"id\":\"abcdefghi\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":" arguments "}}]"
#define ASKED "[{\"role\":\"user\",\"content\":\"a\"},"
#define TEXT "\"" NEEDLE "\""
#define PARTS "[{\"type\":\"text\",\"text\":" TEXT "}]"

/* By chat_role_index(): a chat around one message of the role, with its content as text and in parts. */
#define AROUND(before, after) { before TEXT after, before PARTS after }
static const char *const contents[CHAT_ROLES][2] = {
    AROUND("[{\"role\":\"user\",\"content\":", "}]"),
    AROUND("[{\"role\":\"system\",\"content\":", "},{\"role\":\"user\",\"content\":\"b\"}]"),
    AROUND(ASKED "{\"role\":\"assistant\",\"content\":", "},{\"role\":\"user\",\"content\":\"b\"}]"),
    AROUND(ASKED "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":" CALL("{}") "},"
           "{\"role\":\"tool\",\"tool_call_id\":\"abcdefghi\",\"name\":\"f\",\"content\":", "}]"),
};

/* Without and with tool calls, its content null and empty. */
static const char *const nulls[2][2] = {
    { ASKED "{\"role\":\"assistant\",\"content\":null},{\"role\":\"user\",\"content\":\"b\"}]",
      ASKED "{\"role\":\"assistant\",\"content\":\"\"},{\"role\":\"user\",\"content\":\"b\"}]" },
    { ASKED "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":" CALL("{}") "}]",
      ASKED "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":" CALL("{}") "}]" },
};

/* As an object and as a string. */
static const char *const arguments[2] = {
    ASKED "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":" CALL("{\"" NEEDLE "\":\"" NEEDLE "\"}") "}]",
    ASKED "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":" CALL("\"{\\\"" NEEDLE "\\\": \\\"" NEEDLE "\\\"}\"") "}]",
};

static enum chat_content probe_content(const char *text, const char *parts)
{
    bool seen = holds(text, NEEDLE), looks = holds(parts, NEEDLE);

    /* A list that was written whole: as Python writes it, or as JSON. */
    if (looks && (holds(parts, "'text': '" NEEDLE) || holds(parts, "\"text\": \"" NEEDLE)) && !(seen && strcmp(text, parts) == 0))
        looks = false;
    if (looks)
        return seen ? CHAT_AS_IT_IS : CHAT_AS_PARTS;
    return CHAT_AS_TEXT;
}

static void probe(struct probe *p, struct chat_habits *h)
{
    const char *object = try(p, arguments[0]), *string = try(p, arguments[1]);
    const char *result[2];

    for (size_t i = 0; i < CHAT_ROLES; i++) {
        for (size_t k = 0; k < 2; k++)
            result[k] = try(p, contents[i][k]);
        h->content[i] = probe_content(result[0], result[1]);
    }
    h->drops_results = result[0] && result[1] && !holds(result[0], NEEDLE) && !holds(result[1], NEEDLE);
    for (size_t i = 0; i < 2; i++) {
        const char *null = try(p, nulls[i][0]), *empty = try(p, nulls[i][1]);

        h->empty_for_null[i] = empty && (!null || count(null, "None") > count(empty, "None"));
    }
    /* A string is wanted where it comes out as it is, but an object as Python writes it. */
    h->raw_arguments = holds(string, "\"" NEEDLE "\"") && (!object || holds(object, "{'" NEEDLE "':"));
    h->drops_calls = object && string && !holds(object, NEEDLE) && !holds(string, NEEDLE);
}

/* Never fails: what can not be tried stays as it comes. */
static void learn(const struct jinja_chat *t, struct source *s)
{
    CLEANUP(jinja_free) struct jinja *jinja = NULL;
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    struct probe p = { .t = t, .a = a };

    if (!a || jinja_compile(t->chat.name, s->text, s->len, &probe_limits, &jinja, NULL, NULL) < 0)
        return;
    p.jinja = jinja;
    probe(&p, &s->habits);
}

/* ---- rendering ---- */

static const struct source *find(const struct jinja_chat *t, const char *name)
{
    for (size_t i = 0; i < t->n_sources; i++)
        if (strcmp(t->sources[i].name, name) == 0)
            return &t->sources[i];
    return NULL;
}

static const struct source *default_source(const struct jinja_chat *t)
{
    const struct source *s = find(t, "default");

    return s ? s : &t->sources[0];
}

static const struct source *choose(const struct jinja_chat *t, bool tools)
{
    const struct source *s = tools ? find(t, "tool_use") : NULL;

    return s ? s : default_source(t);
}

static bool is_reserved(const char *name)
{
    static const char *const names[] = { "messages", "tools", "documents", "add_generation_prompt", "continue_final_message",
                                         "chat_template" };
    size_t len = strlen(name);

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return len > 6 && strcmp(name + len - 6, "_token") == 0;
}

static int check_kwargs(const struct jinja_chat *t, const struct chat_input *r, struct chat_fault *f)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    int rc = r->kwargs ? json_parse(r->kwargs, r->kwargs_len, NULL, &tree, f->err) : 0;

    for (const cJSON *c = tree ? tree->child : NULL; c && rc == 0; c = c->next) {
        bool reserved = is_reserved(c->string);

        for (size_t i = 0; i < t->n_tokens; i++)
            reserved |= strcmp(t->tokens[i].name, c->string) == 0;
        if (reserved)
            rc = chat_refuse(f, "chat_template_kwargs", "'chat_template_kwargs' may not set '%.64s'", c->string);
    }
    return rc;
}

/* What would be missing in the prompt, and nobody would be told. */
static int check_drops(const struct source *s, const struct chat_input *r, const struct chat_messages *m, const char *name,
                       struct chat_fault *f)
{
    if (r->tools && !jinja_uses(s->jinja, "tools"))
        return chat_refuse(f, "tools", "the chat template %s takes no tools", name);
    if (r->documents && !jinja_uses(s->jinja, "documents"))
        return chat_refuse(f, "documents", "the chat template %s takes no documents", name);
    for (size_t i = 0; i < m->n; i++) {
        bool calls = m->list[i].calls && s->habits.drops_calls;
        bool result = strcmp(m->list[i].role, "tool") == 0 && s->habits.drops_results;
        const char *param = calls ? arena_printf(f->a, "messages[%zu].tool_calls", i) : arena_printf(f->a, "messages[%zu].role", i);

        if (calls || result)
            return chat_refuse(f, param ? param : "messages", "the chat template %s takes no %s", name,
                               calls ? "tool calls" : "messages of the role 'tool'");
    }
    return 0;
}

static int render_as(const struct jinja_chat *t, const struct source *s, const struct chat_input *r, const struct chat_messages *m,
                     const struct chat_habits *habits, struct jinja_output *out, struct jinja_fault *fault, struct chat_fault *f)
{
    BUF_LOCAL messages = BUF_INIT;
    struct variables in = {
        .t = t, .tools = { r->tools, r->tools_len }, .documents = { r->documents, r->documents_len },
        .kwargs = { r->kwargs, r->kwargs_len }, .add_generation_prompt = r->add_generation_prompt, .now = r->now,
    };

    chat_messages_write(m, habits, &messages);
    if (messages.failed)
        return err_set(f->err, -ENOMEM, "no memory for %zu messages", m->n);
    in.messages = (struct json_slice){ buf_str(&messages), messages.len };
    return render_once(s->jinja, NULL, &in, f->a, out, fault, f->err);
}

/* Another form of what the messages hold; false: there is none left. Bit 0 of the attempt is nulls, bit 1 arguments. */
static bool vary(const struct chat_messages *m, const struct chat_habits *first, unsigned *attempt, struct chat_habits *ret)
{
    bool nulls_there = false, calls = false;

    for (size_t i = 0; i < m->n; i++) {
        nulls_there |= m->list[i].kind == CONTENT_NONE && !first->empty_for_null[m->list[i].calls];
        calls |= m->list[i].calls;
    }
    do {
        if (++*attempt == 4)
            return false;
    } while (((*attempt & 1) && !nulls_there) || ((*attempt & 2) && !calls));
    *ret = *first;
    if (*attempt & 1)
        ret->empty_for_null[0] = ret->empty_for_null[1] = true;
    if (*attempt & 2)
        ret->raw_arguments = !ret->raw_arguments;
    return true;
}

static int render(const struct chat_template *chat, const struct chat_input *r, const struct chat_messages *m,
                  struct chat_prompt *ret, struct chat_fault *f)
{
    const struct jinja_chat *t = (const struct jinja_chat *)chat;
    const struct source *s = choose(t, r->tools);
    struct jinja_fault fault = { 0 };
    struct jinja_output out = { 0 };
    struct chat_habits habits;
    unsigned attempt = 0;
    int rc, again;

    if ((rc = check_kwargs(t, r, f)) < 0 || (rc = check_drops(s, r, m, chat->name, f)) < 0)
        return rc;
    rc = again = render_as(t, s, r, m, &s->habits, &out, &fault, f);
    while (again == -EINVAL && vary(m, &s->habits, &attempt, &habits)) {
        struct chat_fault quiet = { f->param, NULL, f->a };

        again = render_as(t, s, r, m, &habits, &out, NULL, &quiet);
    }
    rc = again == 0 ? 0 : rc;
    if (rc < 0) {
        *f->param = "messages";
        if (rc == -EINVAL && strcmp(fault.type, "TemplateError") == 0) {
            err_clear(f->err);
            err_set(f->err, rc, "%s", fault.message);
        }
        return rc;
    }
    err_clear(f->err);
    ret->spans = out.spans;
    ret->n_spans = out.n_spans;
    ret->text = out.text;
    ret->len = out.len;
    return 0;
}

/* ---- making ---- */

static void fini(struct chat_template *chat)
{
    struct jinja_chat *t = (struct jinja_chat *)chat;

    for (size_t i = 0; i < t->n_sources; i++)
        jinja_free(t->sources[i].jinja);
}

static const char *text_of(const struct chat_template *chat, const char *name, size_t *ret_len)
{
    const struct jinja_chat *t = (const struct jinja_chat *)chat;
    const struct source *s = name ? find(t, name) : default_source(t);

    if (!s)
        return NULL;
    *ret_len = s->len;
    return s->text;
}

static bool takes_tools(const struct chat_template *chat)
{
    const struct jinja_chat *t = (const struct jinja_chat *)chat;

    return jinja_uses(choose(t, true)->jinja, "tools");
}

static const char *try_text(const struct chat_template *chat, const char *messages, struct arena *a, const char **ret_bos)
{
    const struct jinja_chat *t = (const struct jinja_chat *)chat;
    const struct source *s = default_source(t);
    CLEANUP(jinja_free) struct jinja *jinja = NULL;

    for (size_t i = 0; i < t->n_tokens; i++)
        if (strcmp(t->tokens[i].name, "bos_token") == 0)
            *ret_bos = t->tokens[i].text;
    if (jinja_compile(chat->name, s->text, s->len, &probe_limits, &jinja, NULL, NULL) < 0)
        return NULL;
    return try(&(struct probe){ .t = t, .jinja = jinja, .a = a }, messages);
}

static const struct chat_kind jinja_kind = { fini, render, text_of, takes_tools, try_text };

static int add_source(struct jinja_chat *t, const struct chat_source *source, struct err *err)
{
    struct source *s = &t->sources[t->n_sources];
    const char *where;
    int r;

    s->name = arena_strdup(t->chat.arena, source->name);
    s->text = arena_strndup(t->chat.arena, source->text, source->len);
    where = strcmp(source->name, "default") == 0 ? t->chat.name : arena_printf(t->chat.arena, "%s (%s)", t->chat.name, source->name);
    if (!s->name || !s->text || !where)
        return err_set(err, -ENOMEM, "%s: no memory for its chat template", t->chat.name);
    s->len = source->len;
    r = jinja_compile(where, s->text, s->len, NULL, &s->jinja, NULL, err);
    if (r < 0)
        return r == -ENOMEM ? r : -EINVAL;
    t->n_sources++;
    learn(t, s);
    return 0;
}

static int add_tokens(struct jinja_chat *t, const struct chat_token *tokens, size_t n, struct err *err)
{
    t->tokens = arena_array(t->chat.arena, n + 1, sizeof t->tokens[0]);
    for (size_t i = 0; t->tokens && i < n; i++) {
        t->tokens[i] = (struct chat_token){ arena_strdup(t->chat.arena, tokens[i].name), arena_strdup(t->chat.arena, tokens[i].text) };
        if (!t->tokens[i].name || !t->tokens[i].text)
            t->tokens = NULL;
    }
    t->n_tokens = n;
    return t->tokens ? 0 : err_set(err, -ENOMEM, "%s: no memory for its special tokens", t->chat.name);
}

int chat_from_jinja(const char *name, const struct chat_source *sources, size_t n_sources, const struct chat_token *tokens,
                    size_t n_tokens, const struct conv_template *wire, struct chat_template **ret, struct err *err)
{
    CLEANUP(chat_free) struct chat_template *chat = chat_template_new(&jinja_kind, sizeof(struct jinja_chat), name, wire, err);
    struct jinja_chat *t = (struct jinja_chat *)chat;
    int r;

    if (!t)
        return -ENOMEM;
    if (n_sources == 0)
        return err_set(err, -EINVAL, "%s: no chat template", name);
    t->sources = arena_array(chat->arena, n_sources, sizeof t->sources[0]);
    if (!t->sources)
        return err_set(err, -ENOMEM, "%s: no memory for its chat template", name);
    r = add_tokens(t, tokens, n_tokens, err);
    for (size_t i = 0; r == 0 && i < n_sources; i++)
        r = add_source(t, &sources[i], err);
    if (r < 0)
        return r;
    *ret = STEAL(chat);
    return 0;
}
