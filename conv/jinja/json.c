/* JSON in: variables, with ints and floats apart and keys in order. JSON out: json.dumps. */
#include "conv/jinja/value.h"

#include "base/utf8.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct reader { struct rt *r; const char *text; size_t len, at; };

static _Noreturn void bad(struct reader *j, const char *what)
{
    raise_error(j->r, "JSONDecodeError", "byte %zu: %s", j->at, what);
}

static void space(struct reader *j)
{
    while (j->at < j->len && (j->text[j->at] == ' ' || j->text[j->at] == '\n' || j->text[j->at] == '\r' || j->text[j->at] == '\t'))
        j->at++;
}

static uint32_t hex4(struct reader *j)
{
    uint32_t c = 0;

    for (int i = 0; i < 4; i++, j->at++) {
        char h = j->at < j->len ? j->text[j->at] : '\0';

        if (h >= '0' && h <= '9')
            c = c << 4 | (uint32_t)(h - '0');
        else if ((h | 0x20) >= 'a' && (h | 0x20) <= 'f')
            c = c << 4 | (uint32_t)((h | 0x20) - 'a' + 10);
        else
            bad(j, "\\u wants four hexadecimal digits");
    }
    return c;
}

static void unescape(struct reader *j)
{
    static const char plain[] = "\"\\/bfnrt", value[] = "\"\\/\b\f\n\r\t";
    char c = j->at < j->len ? j->text[j->at] : '\0';
    const char *known = c ? strchr(plain, c) : NULL;
    uint32_t u, low;

    j->at++;
    if (known) {
        out_add(j->r, &value[known - plain], 1, false);
        return;
    }
    if (c != 'u')
        bad(j, "unknown escape in a string");
    u = hex4(j);
    if (u >= 0xd800 && u < 0xdc00 && j->at + 1 < j->len && j->text[j->at] == '\\' && j->text[j->at + 1] == 'u') {
        size_t back = j->at;

        j->at += 2;
        low = hex4(j);
        if (low >= 0xdc00 && low < 0xe000)
            u = 0x10000 + ((u - 0xd800) << 10) + (low - 0xdc00);
        else
            j->at = back;
    }
    out_char(j->r, u, false);
}

/* The cursor is behind the quote. Without escapes it is a view of the text; that lives as long as the value. */
static struct str *read_string(struct reader *j)
{
    size_t from = j->at, at = from;
    unsigned char bits = 0;
    struct mark m;

    while (at < j->len && j->text[at] != '"' && j->text[at] != '\\' && (unsigned char)j->text[at] >= 0x20)
        bits |= (unsigned char)j->text[at++];
    if (at < j->len && j->text[at] == '"') {
        struct str *s = str_view(j->r, j->text + from, at - from, false);

        if (bits < 0x80)
            s->chars = s->len;
        else if (!utf8_is_valid(j->text + from, at - from))
            bad(j, "a string is not UTF-8");
        j->at = at + 1;
        return s;
    }
    m = out_mark(j->r);
    for (;;) {
        for (at = j->at; at < j->len && j->text[at] != '"' && j->text[at] != '\\' && (unsigned char)j->text[at] >= 0x20; at++)
            ;
        if (!utf8_is_valid(j->text + j->at, at - j->at))
            bad(j, "a string is not UTF-8");
        out_add(j->r, j->text + j->at, at - j->at, false);
        j->at = at;
        if (at >= j->len)
            bad(j, "a string does not end");
        if ((unsigned char)j->text[at] < 0x20)
            bad(j, "a control character in a string");
        j->at++;
        if (j->text[at] == '"')
            return out_take(j->r, m);
        unescape(j);
    }
}

static struct val read_number(struct reader *j)
{
    size_t from = j->at, digits;
    bool negative = j->text[from] == '-', whole = true;
    char *copy;

    j->at += negative;
    digits = j->at;
    while (j->at < j->len && j->text[j->at] >= '0' && j->text[j->at] <= '9')
        j->at++;
    if (j->at == digits || (j->text[digits] == '0' && j->at > digits + 1))
        bad(j, "this is no number");
    if (j->at < j->len && j->text[j->at] == '.') {
        size_t fraction = ++j->at;

        whole = false;
        while (j->at < j->len && j->text[j->at] >= '0' && j->text[j->at] <= '9')
            j->at++;
        if (j->at == fraction)
            bad(j, "this is no number");
    }
    if (j->at < j->len && (j->text[j->at] | 0x20) == 'e') {
        size_t exponent;

        whole = false;
        j->at++;
        if (j->at < j->len && (j->text[j->at] == '+' || j->text[j->at] == '-'))
            j->at++;
        exponent = j->at;
        while (j->at < j->len && j->text[j->at] >= '0' && j->text[j->at] <= '9')
            j->at++;
        if (j->at == exponent)
            bad(j, "this is no number");
    }
    if (whole)
        return int_from_text(j->r, j->text + digits, j->at - digits, 10, negative);
    copy = mem(j->r, j->at - from + 1);
    memcpy(copy, j->text + from, j->at - from);
    copy[j->at - from] = '\0';
    return v_float(strtod(copy, NULL));
}

/* Roles that templates write into control tokens: '<|' + message.role + '|>'. They are spelled by the caller of the
 * API, not by who wrote the content, and none of them is more than a word. */
static bool known_role(const struct str *s)
{
    static const char *const roles[] = {
        "assistant", "available_tools", "bot", "chatbot", "context", "critic", "developer", "document", "documents", "environment", "function",
        "gpt", "human", "instruction", "ipython", "model", "observation", "response", "system", "think", "tool", "tool_call", "tool_calls",
        "tool_response", "tool_result", "tool_results", "tools", "user",
    };

    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++)
        if (str_is(s, roles[i]))
            return true;
    return false;
}

static struct val read_value(struct reader *j);

static struct val read_array(struct reader *j)
{
    struct grow g = { 0 };

    space(j);
    if (j->at < j->len && j->text[j->at] == ']') {
        j->at++;
        return grow_take(j->r, &g, V_LIST);
    }
    for (;;) {
        grow_add(j->r, &g, read_value(j));
        space(j);
        if (j->at < j->len && j->text[j->at] == ']') {
            j->at++;
            return grow_take(j->r, &g, V_LIST);
        }
        if (j->at >= j->len || j->text[j->at] != ',')
            bad(j, "an array wants ',' or ']' here");
        j->at++;
    }
}

static struct val read_object(struct reader *j)
{
    struct dict *d = dict_new(j->r, 4);

    space(j);
    if (j->at < j->len && j->text[j->at] == '}') {
        j->at++;
        return (struct val){ .t = V_DICT, .d = d };
    }
    for (;;) {
        struct str *key;
        struct val v;

        space(j);
        if (j->at >= j->len || j->text[j->at] != '"')
            bad(j, "an object wants a key here");
        j->at++;
        key = read_string(j);
        space(j);
        if (j->at >= j->len || j->text[j->at] != ':')
            bad(j, "an object wants ':' here");
        j->at++;
        v = read_value(j);
        if (v.t == V_STR && str_is(key, "role") && known_role(v.s))
            v.s->prov = PROV_TRUSTED;
        dict_set(j->r, d, v_str(key), v);
        space(j);
        if (j->at < j->len && j->text[j->at] == '}') {
            j->at++;
            return (struct val){ .t = V_DICT, .d = d };
        }
        if (j->at >= j->len || j->text[j->at] != ',')
            bad(j, "an object wants ',' or '}' here");
        j->at++;
    }
}

static bool word(struct reader *j, const char *text)
{
    size_t n = strlen(text);

    if (j->len - j->at < n || memcmp(j->text + j->at, text, n) != 0)
        return false;
    j->at += n;
    return true;
}

static struct val read_value(struct reader *j)
{
    struct val v;
    char c;

    space(j);
    if (j->at >= j->len)
        bad(j, "the text ends where a value is wanted");
    c = j->text[j->at];
    if (c == '"') {
        j->at++;
        return v_str(read_string(j));
    }
    if (c == '{' || c == '[') {
        enter(j->r);
        j->at++;
        v = c == '{' ? read_object(j) : read_array(j);
        leave(j->r);
        return v;
    }
    if (c == '-' || (c >= '0' && c <= '9'))
        return read_number(j);
    if (word(j, "true"))
        return v_bool(true);
    if (word(j, "false"))
        return v_bool(false);
    if (word(j, "null"))
        return v_none();
    bad(j, "this is no value");
}

struct val json_read(struct rt *r, const char *text, size_t len)
{
    struct reader j = { r, text, len, 0 };
    struct val v = read_value(&j);

    space(&j);
    if (j.at < len)
        bad(&j, "something stands behind the value");
    return v;
}

/* Out */

static void quote(struct rt *r, const struct str *s, bool ascii)
{
    static const char named[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
    bool first = s->len == 0 ? r->literal : str_trusted_at(s, 0), last = s->len == 0 ? r->literal : str_trusted_at(s, s->len - 1);
    size_t at = 0, from = 0;

    out_add(r, "\"", 1, first);
    while (at < s->len) {
        size_t here = at;
        unsigned char byte = (unsigned char)s->text[at];
        const char *known;
        char text[16];
        uint32_t c;
        int n;

        if (byte >= 0x20 && byte != '"' && byte != '\\' && (byte < 0x80 || !ascii)) {
            at++;
            continue;
        }
        c = utf8_next(s->text, s->len, &at);
        known = c && c < 0x80 ? strchr(named, (int)c) : NULL;
        if (known)
            n = snprintf(text, sizeof text, "\\%c", letter[known - named]);
        else if (c < 0x10000)
            n = snprintf(text, sizeof text, "\\u%04x", c);
        else
            n = snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10), 0xdc00 + ((c - 0x10000) & 0x3ff));
        out_sub(r, s, from, here);
        out_add(r, text, (size_t)n, str_trusted_at(s, here));
        from = at;
    }
    out_sub(r, s, from, s->len);
    out_add(r, "\"", 1, last);
}

static void number(struct rt *r, double f)
{
    if (isnan(f) || isinf(f))
        out_adds(r, isnan(f) ? "NaN" : f < 0 ? "-Infinity" : "Infinity");
    else
        out_double(r, f);
}

static void key(struct rt *r, struct val k, const struct json_style *style)
{
    switch ((enum vtype)k.t) {
    case V_STR:
        quote(r, k.s, style->ascii);
        return;
    case V_INT: case V_BIG: case V_FLOAT: case V_BOOL: case V_NONE:
        out_adds(r, "\"");
        out_json(r, k, style);
        out_adds(r, "\"");
        return;
    default:
        raise_error(r, "TypeError", "keys must be str, int, float, bool or None, not %s", val_type(k));
    }
}

static void line(struct rt *r, const struct json_style *style, uint32_t level)
{
    if (!style->indented)
        return;
    out_adds(r, "\n");
    for (uint32_t i = 0; i < level; i++)
        out_add(r, style->indent->text, style->indent->len, r->literal);
}

static void write_value(struct rt *r, struct val v, const struct json_style *style, uint32_t level);

/* Python sorts the keys themselves, before they become text. */
static const struct entry *sorted(struct rt *r, const struct dict *d)
{
    struct val *keys = mem_array(r, d->n ? d->n : 1, sizeof *keys), *at = mem_array(r, d->n ? d->n : 1, sizeof *at);
    struct entry *e = mem_array(r, d->n ? d->n : 1, sizeof *e);

    for (uint32_t i = 0; i < d->n; i++) {
        keys[i] = d->e[i].key;
        at[i] = v_int(i);
    }
    sort_vals(r, keys, at, d->n, false);
    for (uint32_t i = 0; i < d->n; i++)
        e[i] = d->e[at[i].i];
    return e;
}

static void write_dict(struct rt *r, const struct dict *d, const struct json_style *style, uint32_t level)
{
    const struct entry *e = style->sort_keys ? sorted(r, d) : d->e;

    out_adds(r, "{");
    for (uint32_t i = 0; i < d->n; i++) {
        if (i > 0)
            out_add(r, style->item_sep->text, style->item_sep->len, r->literal);
        line(r, style, level + 1);
        key(r, e[i].key, style);
        out_add(r, style->key_sep->text, style->key_sep->len, r->literal);
        write_value(r, e[i].value, style, level + 1);
    }
    if (d->n > 0)
        line(r, style, level);
    out_adds(r, "}");
}

static void write_list(struct rt *r, const struct seq *s, const struct json_style *style, uint32_t level)
{
    out_adds(r, "[");
    for (uint32_t i = 0; i < s->n; i++) {
        if (i > 0)
            out_add(r, style->item_sep->text, style->item_sep->len, r->literal);
        line(r, style, level + 1);
        write_value(r, s->items[i], style, level + 1);
    }
    if (s->n > 0)
        line(r, style, level);
    out_adds(r, "]");
}

static void write_value(struct rt *r, struct val v, const struct json_style *style, uint32_t level)
{
    bool literal;

    step(r, 1);
    switch ((enum vtype)v.t) {
    case V_STR: quote(r, v.s, style->ascii); return;
    case V_NONE: out_adds(r, "null"); return;
    case V_BOOL: out_adds(r, v.i ? "true" : "false"); return;
    case V_INT: case V_BIG: int_out(r, v); return;
    case V_FLOAT: number(r, v.f); return;
    case V_DICT: case V_LIST: case V_TUPLE:
        literal = container_open(r, v);
        if (v.t == V_DICT)
            write_dict(r, v.d, style, level);
        else
            write_list(r, v.seq, style, level);
        container_close(r, literal);
        return;
    default:
        raise_error(r, "TypeError", "Object of type %s is not JSON serializable", val_type(v));
    }
}

void out_json(struct rt *r, struct val v, const struct json_style *style) { write_value(r, v, style, 0); }
