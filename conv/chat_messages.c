/* Messages are written anew from the text that they came in: a value that stays is copied as it was written,
 * so numbers keep their digits and objects the order of their keys.
 */
#include "conv/chat_inner.h"

#include "base/arena.h"
#include "base/err.h"

#include <errno.h>
#include <string.h>

static const struct json_limits limits = {
    .bytes = 64u << 20, .depth = 128, .string_bytes = 64u << 20, .values = 1000000,
};

int chat_refuse(struct chat_fault *f, const char *param, const char *fmt, ...)
{
    va_list ap;

    if (!*f->param)
        *f->param = param;
    va_start(ap, fmt);
    err_vset(f->err, -EINVAL, fmt, ap);
    va_end(ap);
    return -EINVAL;
}

/* "messages[3].content[1]"; what has no memory is told of the whole. */
static const char *place(struct chat_fault *f, size_t i, const char *member, size_t k)
{
    const char *text = k != SIZE_MAX ? arena_printf(f->a, "messages[%zu].%s[%zu]", i, member, k)
                       : member      ? arena_printf(f->a, "messages[%zu].%s", i, member)
                                     : arena_printf(f->a, "messages[%zu]", i);

    return text ? text : "messages";
}

/* ---- reading ---- */

static int read_part(const cJSON *part, size_t i, size_t k, struct chat_fault *f)
{
    const char *at = place(f, i, "content", k), *type = NULL, *text;

    if (!cJSON_IsObject(part))
        return chat_refuse(f, at, "'%s' must be an object, but is %s", at, json_type_name(part));
    if (json_get_string(part, "type", &type, NULL) != 0)
        return chat_refuse(f, at, "'%s.type' must be a string", at);
    if (strcmp(type, "text") != 0)
        return chat_refuse(f, at, "'%s' has the type '%.64s', but only parts of type 'text' are supported", at, type);
    if (json_get_string(part, "text", &text, NULL) != 0)
        return chat_refuse(f, at, "'%s.text' must be a string", at);
    return 0;
}

static int read_content(struct chat_message *m, size_t i, struct chat_fault *f)
{
    const cJSON *v = json_find(m->tree, "content"), *part;
    size_t k = 0;

    m->content = v;
    if (!v)
        return 0;
    if (cJSON_IsString(v)) {
        m->kind = CONTENT_TEXT;
        return 0;
    }
    m->kind = CONTENT_PARTS;
    if (!cJSON_IsArray(v))
        return chat_refuse(f, place(f, i, "content", SIZE_MAX), "'messages[%zu].content' must be a string or a list of parts, but is %s",
                           i, json_type_name(v));
    cJSON_ArrayForEach(part, v)
        if (read_part(part, i, k++, f) < 0)
            return -EINVAL;
    return 0;
}

static int read_calls(struct chat_message *m, size_t i, struct chat_fault *f)
{
    const cJSON *v = json_find(m->tree, "tool_calls"), *call;
    size_t k = 0;

    if (!v)
        return 0;
    if (!cJSON_IsArray(v))
        return chat_refuse(f, place(f, i, "tool_calls", SIZE_MAX), "'messages[%zu].tool_calls' must be an array, but is %s", i,
                           json_type_name(v));
    cJSON_ArrayForEach(call, v) {
        const char *at = place(f, i, "tool_calls", k++), *name;
        const cJSON *function = json_find(call, "function");

        if (!cJSON_IsObject(call))
            return chat_refuse(f, at, "'%s' must be an object, but is %s", at, json_type_name(call));
        if (!cJSON_IsObject(function) || json_get_string(function, "name", &name, NULL) != 0)
            return chat_refuse(f, at, "'%s.function' must be an object with a 'name'", at);
        m->calls = true;
    }
    return 0;
}

static int read_message(struct chat_message *m, size_t i, struct chat_fault *f)
{
    if (!cJSON_IsObject(m->tree))
        return chat_refuse(f, place(f, i, NULL, SIZE_MAX), "'messages[%zu]' must be an object, but is %s", i,
                           json_type_name(m->tree));
    if (json_get_string(m->tree, "role", &m->role, NULL) != 0)
        return chat_refuse(f, place(f, i, "role", SIZE_MAX), "'messages[%zu].role' must be a string", i);
    if (read_content(m, i, f) < 0)
        return -EINVAL;
    return read_calls(m, i, f);
}

int chat_messages_read(const char *json, size_t len, struct chat_messages *ret, struct chat_fault *f)
{
    struct json_walk w = json_walk(json, len);
    struct json_slice key;
    size_t n;
    int r;

    *ret = (struct chat_messages){ 0 };
    r = json_parse(json, len, &limits, &ret->tree, f->err);
    if (r < 0) {
        *f->param = "messages";
        err_place(f->err, "messages");
        return r;
    }
    if (!cJSON_IsArray(ret->tree))
        return chat_refuse(f, "messages", "'messages' must be an array, but is %s", json_type_name(ret->tree));
    n = (size_t)cJSON_GetArraySize(ret->tree);
    if (n == 0 || n > CHAT_MAX_MESSAGES)
        return chat_refuse(f, "messages", "'messages' must hold 1 to %d messages, but holds %zu", CHAT_MAX_MESSAGES, n);
    ret->list = arena_array(f->a, n, sizeof ret->list[0]);
    if (!ret->list)
        return err_set(f->err, -ENOMEM, "no memory for %zu messages", n);
    for (const cJSON *c = ret->tree->child; c && json_next(&w, &key, &ret->list[ret->n].text); c = c->next) {
        ret->list[ret->n].tree = c;
        if (read_message(&ret->list[ret->n], ret->n, f) < 0)
            return -EINVAL;
        ret->n++;
    }
    return 0;
}

void chat_messages_fini(struct chat_messages *m)
{
    cJSON_Delete(m->tree);
    m->tree = NULL;
}

/* ---- writing ---- */

size_t chat_role_index(const char *role)
{
    static const char *const roles[CHAT_ROLES] = { "user", "system", "assistant", "tool" };

    for (size_t i = 0; i < CHAT_ROLES; i++)
        if (strcmp(roles[i], role) == 0)
            return i;
    return 0;
}

static const char *tail_of(const struct chat_messages *m, size_t i)
{
    return m->tail && i + 1 == m->n ? m->tail : "";
}

static void join_text(const struct chat_messages *m, size_t i, struct buf *out)
{
    const struct chat_message *message = &m->list[i];
    const cJSON *part;

    if (message->kind == CONTENT_TEXT)
        buf_adds(out, message->content->valuestring);
    if (message->kind == CONTENT_PARTS)
        cJSON_ArrayForEach(part, message->content)
            buf_adds(out, json_find(part, "text")->valuestring);
    buf_adds(out, tail_of(m, i));
}

const char *chat_message_text(const struct chat_messages *m, size_t i, struct arena *a)
{
    const struct chat_message *message = &m->list[i];
    BUF_LOCAL text = BUF_INIT;

    if (message->kind == CONTENT_TEXT && !*tail_of(m, i))
        return message->content->valuestring;
    join_text(m, i, &text);
    return text.failed ? NULL : arena_strndup(a, buf_str(&text), text.len);
}

static void write_key(struct json_writer *w, struct json_slice key)
{
    json_slice(w, key);
    buf_addc(w->out, ':');
    w->comma = false;
}

/* A part, its text with the tail behind it. */
static void write_last_part(struct json_writer *w, const cJSON *part, struct json_slice text, const char *tail)
{
    struct json_walk walk = json_walk(text.text, text.len);
    const cJSON *words = json_find(part, "text");
    struct json_slice key, value;

    json_open(w, '{');
    for (const cJSON *c = part->child; c && json_next(&walk, &key, &value); c = c->next) {
        write_key(w, key);
        if (c == words) {
            BUF_LOCAL whole = BUF_INIT;

            buf_adds(&whole, words->valuestring);
            buf_adds(&whole, tail);
            w->out->failed |= whole.failed;
            json_strn(w, buf_str(&whole), whole.len);
        } else {
            json_slice(w, value);
        }
    }
    json_close(w, '}');
}

static void write_parts(struct json_writer *w, const struct chat_message *m, struct json_slice text, const char *tail)
{
    struct json_walk walk = json_walk(text.text, text.len);
    struct json_slice key, value;

    json_open(w, '[');
    for (const cJSON *c = m->content->child; c && json_next(&walk, &key, &value); c = c->next) {
        if (c->next)
            json_slice(w, value);
        else
            write_last_part(w, c, value, tail);
    }
    json_close(w, ']');
}

static void write_content(struct json_writer *w, const struct chat_messages *m, size_t i, struct json_slice text,
                          const struct chat_habits *h)
{
    const struct chat_message *message = &m->list[i];
    enum chat_content as = h->content[chat_role_index(message->role)];
    const char *tail = tail_of(m, i);

    if (message->kind == CONTENT_NONE) {
        json_raw(w, h->empty_for_null[message->calls] ? "\"\"" : "null");
    } else if (message->kind == CONTENT_PARTS && as != CHAT_AS_TEXT) {
        if (*tail)
            write_parts(w, message, text, tail);
        else
            json_slice(w, text);
    } else {
        BUF_LOCAL words = BUF_INIT;
        struct json_slice quoted = text;

        if (message->kind == CONTENT_PARTS || *tail) {
            BUF_LOCAL plain = BUF_INIT;

            join_text(m, i, &plain);
            json_quote(&words, buf_str(&plain), plain.len);
            quoted = (struct json_slice){ buf_str(&words), words.len };
            w->out->failed |= plain.failed || words.failed;
        }
        if (as != CHAT_AS_PARTS) {
            json_slice(w, quoted);
            return;
        }
        json_raw(w, "[{\"type\":\"text\",\"text\":");
        buf_add(w->out, quoted.text, quoted.len);
        buf_adds(w->out, "}]");
    }
}

static void write_arguments(struct json_writer *w, const cJSON *v, struct json_slice text, bool raw)
{
    const char *words = cJSON_IsString(v) ? v->valuestring : NULL;

    if (words && !raw && words[strspn(words, " \t\r\n")] == '{' && json_check(words, strlen(words), &limits, NULL) == 0)
        json_raw(w, words);
    else if (!words && raw && !cJSON_IsNull(v))
        json_strn(w, text.text, text.len);
    else
        json_slice(w, text);
}

static void write_function(struct json_writer *w, const cJSON *function, struct json_slice text, bool raw)
{
    struct json_walk walk = json_walk(text.text, text.len);
    struct json_slice key, value;

    json_open(w, '{');
    for (const cJSON *c = function->child; c && json_next(&walk, &key, &value); c = c->next) {
        write_key(w, key);
        if (strcmp(c->string, "arguments") == 0)
            write_arguments(w, c, value, raw);
        else
            json_slice(w, value);
    }
    json_close(w, '}');
}

static void write_calls(struct json_writer *w, const cJSON *calls, struct json_slice text, bool raw)
{
    struct json_walk walk = json_walk(text.text, text.len);
    struct json_slice key, value;

    json_open(w, '[');
    for (const cJSON *call = calls->child; call && json_next(&walk, &key, &value); call = call->next) {
        struct json_walk inner = json_walk(value.text, value.len);
        struct json_slice member;

        json_open(w, '{');
        for (const cJSON *c = call->child; c && json_next(&inner, &key, &member); c = c->next) {
            write_key(w, key);
            if (cJSON_IsObject(c) && strcmp(c->string, "function") == 0)
                write_function(w, c, member, raw);
            else
                json_slice(w, member);
        }
        json_close(w, '}');
    }
    json_close(w, ']');
}

static void write_message(struct json_writer *w, const struct chat_messages *m, size_t i, const struct chat_habits *h)
{
    const struct chat_message *message = &m->list[i];
    struct json_walk walk = json_walk(message->text.text, message->text.len);
    struct json_slice key, value;
    bool content = false;

    json_open(w, '{');
    for (const cJSON *c = message->tree->child; c && json_next(&walk, &key, &value); c = c->next) {
        bool is_content = strcmp(c->string, "content") == 0, is_calls = strcmp(c->string, "tool_calls") == 0;

        if (is_content ? content || (message->content && c != message->content)
                       : cJSON_IsNull(c) || (is_calls && !c->child))
            continue;
        write_key(w, key);
        if (is_content)
            write_content(w, m, i, value, h);
        else if (is_calls)
            write_calls(w, c, value, h->raw_arguments);
        else
            json_slice(w, value);
        content |= is_content;
    }
    if (!content) {
        json_key(w, "content");
        write_content(w, m, i, (struct json_slice){ 0 }, h);
    }
    json_close(w, '}');
}

void chat_messages_write(const struct chat_messages *m, const struct chat_habits *h, struct buf *out)
{
    struct json_writer w = json_writer(out);

    json_open(&w, '[');
    for (size_t i = 0; i < m->n; i++)
        write_message(&w, m, i, h);
    json_close(&w, ']');
}
