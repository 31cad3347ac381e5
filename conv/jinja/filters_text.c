/* Filters that make text. */
#include "conv/jinja/value.h"

#include "base/unicode.h"

#include <errno.h>
#include <stdio.h>

#define FILTER(name) static struct val name(struct rt *r, struct val v, const struct val *p)

static bool given(struct val v) { return v.t != V_MISSING; }
static bool flag(struct rt *r, struct val v) { return given(v) && val_truth(r, v); }

FILTER(do_upper) { return str_upper(r, val_str(r, v)); }
FILTER(do_lower) { return str_lower(r, val_str(r, v)); }
FILTER(do_capitalize) { return str_capitalize(r, val_str(r, v)); }
FILTER(do_string) { return v_str(val_str(r, v)); }
FILTER(do_safe) { return v_str(str_markup(r, val_str(r, v))); }
FILTER(do_escape) { return v_str(val_escape(r, v)); }
FILTER(do_forceescape) { return v_str(val_escape(r, v_str(str_plain(r, val_str(r, v))))); }
FILTER(do_pprint) { return v_str(val_repr(r, v)); }

FILTER(do_trim)
{
    struct str *chars = given(p[0]) && p[0].t != V_NONE ? val_str(r, p[0]) : NULL;

    return str_strip(r, val_str(r, v), chars, true, true);
}

FILTER(do_replace)
{
    int64_t count = given(p[2]) && p[2].t != V_NONE ? val_int64(r, p[2], "") : -1;

    return str_replace(r, str_plain(r, val_str(r, v)), val_str(r, p[0]), val_str(r, p[1]), count);
}

static bool word_break(uint32_t c) { return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || str_is_space(c); }

/* Words begin behind spaces, dashes and opening brackets, not behind an apostrophe. */
FILTER(do_title)
{
    struct str *s = str_plain(r, val_str(r, v)), *first, *rest;
    struct mark m = out_mark(r);
    size_t at = 0;

    while (at < s->len) {
        size_t from = at, begin, next;
        bool breaks = word_break(utf8_next(s->text, s->len, &at));

        begin = at;
        for (next = at; at < s->len && word_break(utf8_next(s->text, s->len, &next)) == breaks; at = next)
            ;
        first = str_upper(r, str_sub(r, s, from, begin)).s;
        out_str(r, first);
        rest = str_lower(r, str_sub(r, s, begin, at)).s;
        if (begin < at)
            out_str(r, rest);
    }
    return out_take_val(r, m);
}

static void spaces(struct rt *r, int64_t n)
{
    if (n > 0 && (uint64_t)n > r->limits.output_bytes)
        raise_limit(r, -E2BIG, "the output is longer than %zu bytes", r->limits.output_bytes);
    for (; n > 0; n--) {
        step(r, 1);
        out_add(r, " ", 1, true);
    }
}

FILTER(do_center)
{
    struct str *s = val_str(r, v), *made;
    int64_t width = given(p[0]) ? val_int64(r, p[0], "") : 80, space = width - str_chars(s), left;
    struct mark m;

    if (space <= 0)
        return v_str(s);
    left = space / 2 + (space & width & 1);
    m = out_mark(r);
    spaces(r, left);
    out_str(r, s);
    spaces(r, space - left);
    made = out_take(r, m);
    made->markup = s->markup;
    return v_str(made);
}

FILTER(do_join)
{
    struct str *sep = given(p[0]) ? str_plain(r, val_str(r, p[0])) : NULL;
    struct val attribute = p[1], item, mapped = v;
    struct mark m;
    struct iter it;

    if (given(attribute) && attribute.t != V_NONE) {
        static const char name[] = "attribute";
        struct str *names[1] = { str_view(r, name, sizeof name - 1, true) };

        mapped = filter_call(r, filter_find("map", 3), v, &(struct args){ .names = names, .named = &attribute, .n_named = 1 });
    }
    iter_init(r, &it, mapped);
    m = out_mark(r);
    for (bool first = true; iter_next(r, &it, &item); first = false) {
        if (!first && sep)
            out_str(r, sep);
        out_val(r, item);
    }
    return out_take_val(r, m);
}

static struct val do_format(struct rt *r, struct val v, const struct args *a)
{
    struct val arg;

    if (a->n && a->n_named)
        raise_error(r, "FilterArgumentError", "can't handle positional and keyword arguments at the same time");
    if (a->n_named) {
        arg = (struct val){ .t = V_DICT, .d = dict_new(r, a->n_named) };
        for (uint32_t i = 0; i < a->n_named; i++)
            dict_set(r, arg.d, v_str(a->names[i]), a->named[i]);
    } else {
        arg = v_seq(r, V_TUPLE, a->n);
        for (uint32_t i = 0; i < a->n; i++)
            arg.seq->items[i] = a->pos[i];
    }
    return format_percent(r, val_str(r, v), arg);
}

FILTER(do_indent)
{
    struct str *s = val_str(r, v), *with;
    struct mark m = out_mark(r);
    struct val lines;
    static const char newline[] = "\n";

    if (given(p[0]) && p[0].t == V_STR)
        out_str(r, p[0].s);
    else
        spaces(r, given(p[0]) ? val_int64(r, p[0], "") : 4);
    with = out_take(r, m);
    if (v.t == V_UNDEF)
        raise_undefined(r, v);
    if (v.t != V_STR)
        raise_error(r, "TypeError", "unsupported operand type(s) for +=: '%s' and 'str'", val_type(v));
    lines = val_binary(r, OP_ADD, v_str(s), v_str(str_view(r, newline, 1, true)));
    lines = val_attr(r, lines, str_view(r, "splitlines", 10, true));
    lines = val_call(r, lines, &(struct args){ 0 });
    m = out_mark(r);
    if (flag(r, p[1]))
        out_str(r, with);
    for (uint32_t i = 0; i < lines.seq->n; i++) {
        struct str *line = lines.seq->items[i].s;

        if (i > 0)
            out_add(r, newline, 1, line->len ? str_trusted_at(line, 0) : s->prov == PROV_TRUSTED);
        if (i > 0 && (line->len > 0 || flag(r, p[2])))
            out_str(r, with);
        out_str(r, line);
    }
    s = out_take(r, m);
    s->markup = v.s->markup;
    return v_str(s);
}

FILTER(do_truncate)
{
    struct str *s = val_str(r, v), *end = given(p[2]) ? val_str(r, p[2]) : str_view(r, "...", 3, true);
    int64_t len = given(p[0]) ? val_int64(r, p[0], "") : 255, leeway = given(p[3]) && p[3].t != V_NONE ? val_int64(r, p[3], "") : 5;
    size_t cut;

    if (len < str_chars(end))
        raise_error(r, "AssertionError", "expected length >= %u, got %lld", str_chars(end), (long long)len);
    if (leeway < 0)
        raise_error(r, "AssertionError", "expected leeway >= 0, got %lld", (long long)leeway);
    if (str_chars(s) <= len + leeway)
        return v_str(s);
    cut = str_offset(s, (size_t)(len - str_chars(end)));
    if (!flag(r, p[1])) {
        size_t at = cut;

        while (at > 0 && s->text[at - 1] != ' ')
            at--;
        if (at > 0)
            cut = at - 1;
    }
    return val_binary(r, OP_ADD, v_str(str_sub(r, s, 0, cut)), v_str(end));
}

FILTER(do_wordcount)
{
    struct str *s = val_str(r, v);
    int64_t n = 0;
    bool word = false;

    for (size_t at = 0; at < s->len; ) {
        bool now = unicode_is_word(utf8_next(s->text, s->len, &at));

        n += now && !word;
        word = now;
    }
    return v_int(n);
}

/* One line broken where words end, so that no part has more than `width` characters. */
static void wrap_line(struct rt *r, struct str *line, int64_t width, bool break_words, const struct str *wrap)
{
    struct val words = str_split_space(r, line, -1);
    int64_t column = 0;

    for (uint32_t i = 0; i < words.seq->n; i++) {
        struct str *word = words.seq->items[i].s;
        int64_t len = str_chars(word);

        if (column > 0 && column + 1 + len > width) {
            out_str(r, wrap);
            column = 0;
        }
        if (column > 0) {
            out_add(r, " ", 1, line->prov == PROV_TRUSTED);
            column++;
        }
        while (break_words && len > width) {
            size_t at = str_offset(word, (size_t)width);

            out_sub(r, word, 0, at);
            out_str(r, wrap);
            word = str_sub(r, word, at, word->len);
            len -= width;
        }
        out_str(r, word);
        column += len;
    }
}

FILTER(do_wordwrap)
{
    struct str *s = val_str(r, v), *wrap = given(p[2]) && p[2].t != V_NONE ? val_str(r, p[2]) : str_view(r, "\n", 1, true);
    int64_t width = given(p[0]) ? val_int64(r, p[0], "") : 79;
    struct mark m;
    struct val lines;

    if (v.t == V_UNDEF)
        raise_undefined(r, v);
    if (width < 1)
        raise_error(r, "ValueError", "invalid width %lld (must be > 0)", (long long)width);
    lines = val_call(r, val_attr(r, v_str(s), str_view(r, "splitlines", 10, true)), &(struct args){ 0 });
    m = out_mark(r);
    for (uint32_t i = 0; i < lines.seq->n; i++) {
        if (i > 0)
            out_str(r, wrap);
        wrap_line(r, lines.seq->items[i].s, width, !given(p[1]) || val_truth(r, p[1]), wrap);
    }
    return out_take_val(r, m);
}

FILTER(do_filesizeformat)
{
    static const char *const units[2][8] = { { "kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB" },
                                             { "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB" } };
    bool binary_units = flag(r, p[0]);
    struct val number = filter_call(r, filter_find("float", 5), v, &(struct args){ 0 });
    double bytes = val_double(r, number), base = binary_units ? 1024 : 1000, unit = base;
    struct mark m = out_mark(r);
    int i = 0;

    if (bytes == 1)
        out_adds(r, "1 Byte");
    else if (bytes < base)
        out_printf(r, "%.0f Bytes", bytes);
    else {
        while (i < 7 && bytes >= unit * base) {
            unit *= base;
            i++;
        }
        out_printf(r, "%.1f %s", bytes / unit, units[binary_units][i]);
    }
    return out_take_val(r, m);
}

static void quote_url(struct rt *r, const struct str *s, const char *safe, bool plus)
{
    for (uint32_t i = 0; i < s->len; i++) {
        unsigned char c = (unsigned char)s->text[i];
        char text[4];
        bool plain = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || (c && strchr("_.-~", c)) || (c && strchr(safe, c));

        snprintf(text, sizeof text, plain ? "%c" : c == ' ' && plus ? "+" : "%%%02X", c);
        out_add(r, text, strlen(text), str_trusted_at(s, i));
    }
}

FILTER(do_urlencode)
{
    struct mark m;
    struct iter it;
    struct val pair;
    bool first = true;

    if (v.t == V_DICT)
        v = (struct val){ .t = V_VIEW, .aux = VIEW_ITEMS, .d = v.d };
    m = out_mark(r);
    if (v.t == V_STR || !val_iterable(v)) {
        quote_url(r, val_str(r, v), "/", false);
        return out_take_val(r, m);
    }
    iter_init(r, &it, v);
    for (; iter_next(r, &it, &pair); first = false) {
        struct val list = val_list(r, pair);

        if (list.seq->n != 2)
            raise_error(r, "ValueError", "not enough values to unpack (expected 2, got %u)", list.seq->n);
        out_adds(r, first ? "" : "&");
        quote_url(r, val_str(r, list.seq->items[0]), "", true);
        out_adds(r, "=");
        quote_url(r, val_str(r, list.seq->items[1]), "", true);
    }
    return out_take_val(r, m);
}

FILTER(do_xmlattr)
{
    struct mark m = out_mark(r);
    bool any = false;

    if (v.t == V_UNDEF)
        raise_undefined(r, v);
    if (v.t != V_DICT)
        raise_error(r, "AttributeError", "'%s' object has no attribute 'items'", val_type(v));
    for (uint32_t i = 0; i < v.d->n; i++) {
        struct str *key = val_str(r, v.d->e[i].key);
        struct val value = v.d->e[i].value;

        if (value.t == V_NONE || value.t == V_UNDEF)
            continue;
        for (uint32_t k = 0; k < key->len; k++)
            if (strchr(" \t\n\r\f\v/>=", key->text[k]))
                raise_error(r, "ValueError", "Invalid character in attribute name: '%.*s'", (int)key->len, key->text);
        if (any || !given(p[0]) || val_truth(r, p[0]))
            out_adds(r, " ");
        any = true;
        out_str(r, val_escape(r, v_str(key)));
        out_adds(r, "=\"");
        out_str(r, val_escape(r, value));
        out_adds(r, "\"");
    }
    return out_take_val(r, m);
}

/* Text without tags and comments, white space made single, the five entities of val_escape() made characters. */
FILTER(do_striptags)
{
    static const struct { const char *name; char c; } entities[] = { { "&amp;", '&' }, { "&lt;", '<' }, { "&gt;", '>' }, { "&#39;", '\'' },
                                                                      { "&#34;", '"' }, { "&quot;", '"' } };
    struct str *s = val_str(r, v);
    struct mark m = out_mark(r);
    struct val words;

    for (size_t at = 0; at < s->len; ) {
        const char *p2 = s->text + at, *end;
        bool done = false;

        step(r, 1);
        if (*p2 == '<') {
            bool comment = s->len - at >= 4 && memcmp(p2, "<!--", 4) == 0;

            end = comment ? memmem(p2, s->len - at, "-->", 3) : memchr(p2, '>', s->len - at);
            if (end) {
                at = (size_t)(end - s->text) + (comment ? 3 : 1);
                continue;
            }
        }
        for (size_t i = 0; *p2 == '&' && !done && i < sizeof entities / sizeof entities[0]; i++) {
            size_t n = strlen(entities[i].name);

            done = s->len - at >= n && memcmp(p2, entities[i].name, n) == 0;
            if (done) {
                out_add(r, &entities[i].c, 1, str_trusted_at(s, at));
                at += n;
            }
        }
        if (!done) {
            out_sub(r, s, at, at + 1);
            at++;
        }
    }
    words = str_split_space(r, out_take(r, m), -1);
    return str_join(r, str_view(r, " ", 1, true), words);
}

FILTER(do_tojson)
{
    struct json_style style = { .ascii = flag(r, p[0]), .sort_keys = flag(r, p[3]) };
    struct mark m = out_mark(r);

    if (given(p[1]) && p[1].t != V_NONE) {
        style.indented = true;
        if (p[1].t == V_STR)
            out_str(r, p[1].s);
        else
            spaces(r, val_int64(r, p[1], ""));
    }
    style.indent = out_take(r, m);
    style.item_sep = style.indented ? str_view(r, ",", 1, true) : str_view(r, ", ", 2, true);
    style.key_sep = str_view(r, ": ", 2, true);
    if (given(p[2]) && p[2].t != V_NONE) {
        struct val list = val_list(r, p[2]);

        if (list.seq->n != 2 || list.seq->items[0].t != V_STR || list.seq->items[1].t != V_STR)
            raise_error(r, "TypeError", "separators must be two strings");
        style.item_sep = list.seq->items[0].s;
        style.key_sep = list.seq->items[1].s;
    }
    m = out_mark(r);
    out_json(r, v, &style);
    return out_take_val(r, m);
}

const struct filter text_filters[] = {
    { "capitalize", do_capitalize, "", 0, NULL },
    { "center", do_center, "width", 0, NULL },
    { "e", do_escape, "", 0, NULL },
    { "escape", do_escape, "", 0, NULL },
    { "filesizeformat", do_filesizeformat, "binary", 0, NULL },
    { "forceescape", do_forceescape, "", 0, NULL },
    { "format", NULL, "", 0, do_format },
    { "indent", do_indent, "width first blank", 0, NULL },
    { "join", do_join, "d attribute", 0, NULL },
    { "lower", do_lower, "", 0, NULL },
    { "pprint", do_pprint, "", 0, NULL },
    { "replace", do_replace, "old new count", 2, NULL },
    { "safe", do_safe, "", 0, NULL },
    { "string", do_string, "", 0, NULL },
    { "striptags", do_striptags, "", 0, NULL },
    { "title", do_title, "", 0, NULL },
    { "tojson", do_tojson, "ensure_ascii indent separators sort_keys", 0, NULL },
    { "trim", do_trim, "chars", 0, NULL },
    { "truncate", do_truncate, "length killwords end leeway", 0, NULL },
    { "upper", do_upper, "", 0, NULL },
    { "urlencode", do_urlencode, "", 0, NULL },
    { "wordcount", do_wordcount, "", 0, NULL },
    { "wordwrap", do_wordwrap, "width break_long_words wrapstring break_on_hyphens", 0, NULL },
    { "xmlattr", do_xmlattr, "autospace", 0, NULL },
    { NULL, NULL, NULL, 0, NULL },
};
