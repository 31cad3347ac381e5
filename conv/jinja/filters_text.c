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

static _Noreturn void no_splitlines(struct rt *r, struct val v)
{
    raise_error(r, "AttributeError", "'%s' object has no attribute 'splitlines'", val_type(v));
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
    if (v.t == V_LIST)
        no_splitlines(r, v);
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

    if (v.t != V_STR && val_length(r, v) <= len + leeway)
        return v;
    if (v.t != V_STR)
        return val_binary(r, OP_ADD, val_slice(r, v, (const struct val[]){ v_none(), v_int(len), v_none() }), v_str(end));
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

/* Lines as Python's textwrap breaks them: at white space, behind hyphens within words, and through words that are longer than a
 * line. White space goes where a line begins (but for the first) or ends. */

static bool wrap_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static bool letter_at(const struct str *s, size_t at)
{
    return at < s->len && (unicode_class(utf8_next(s->text, s->len, &at)) & UC_LETTER);
}

static bool letter_before(const struct str *s, size_t at)
{
    return at > 0 && (unicode_class(utf8_before(s->text, &at)) & UC_LETTER);
}

/* Whether a word may be broken behind the hyphen at `at`. */
static bool hyphen_breaks(const struct str *s, size_t at)
{
    size_t before = at, behind = at + 1;

    if (!letter_before(s, at) || !letter_at(s, behind))
        return false;
    utf8_before(s->text, &before);
    utf8_next(s->text, s->len, &behind);
    return letter_before(s, before) && (letter_at(s, behind) || (behind < s->len && s->text[behind] == '-' && letter_at(s, behind + 1)));
}

/* The end of the piece at `at`: white space, or a word or a part of one that ends in a hyphen. */
static size_t piece_end(const struct str *s, size_t at, bool hyphens)
{
    bool space = wrap_space(s->text[at]);

    do {
        if (hyphens && !space && s->text[at] == '-' && hyphen_breaks(s, at))
            return at + 1;
        at++;
    } while (at < s->len && wrap_space(s->text[at]) == space);
    return at;
}

struct wrapping { int64_t width; bool break_words, hyphens; struct str *between; };

/* How much of a piece that is longer than a line still goes on this one. */
static size_t long_word(struct str *s, size_t at, size_t end, int64_t left, const struct wrapping *w)
{
    struct str rest = { .text = s->text + at, .len = (uint32_t)(end - at), .chars = CHARS_UNKNOWN };
    size_t cut = str_offset(&rest, (size_t)left);

    for (size_t i = cut; w->hyphens && i-- > 1; )
        if (rest.text[i] == '-' && strspn(rest.text, "-") < i)
            return at + i + 1;
    return at + cut;
}

static void wrap_line(struct rt *r, struct str *s, const struct wrapping *w)
{
    bool first = true;

    for (size_t at = 0; at < s->len; ) {
        size_t start, stop;
        int64_t left = w->width;

        if (!first && wrap_space(s->text[at]))
            at = piece_end(s, at, w->hyphens);
        for (start = stop = at; at < s->len; ) {
            size_t end = piece_end(s, at, w->hyphens);
            int64_t chars = (int64_t)utf8_count(s->text + at, end - at);

            step(r, 1);
            if (chars > left && chars > w->width && (w->break_words || at == start))
                end = w->break_words ? long_word(s, at, end, left, w) : end;
            else if (chars > left)
                break;
            if (end == at) {            /* no room: the white space before a long word stays */
                stop = at;
                break;
            }
            left -= (int64_t)utf8_count(s->text + at, end - at);
            if (!wrap_space(s->text[at]))
                stop = end;
            at = end;
        }
        if (stop == start)
            continue;
        if (!first)
            out_str(r, w->between);
        first = false;
        out_sub(r, s, start, stop);
    }
}

FILTER(do_wordwrap)
{
    struct wrapping w = { given(p[0]) ? val_int64(r, p[0], "") : 79, !given(p[1]) || val_truth(r, p[1]), !given(p[3]) || val_truth(r, p[3]),
                          given(p[2]) && p[2].t != V_NONE ? val_str(r, p[2]) : str_view(r, "\n", 1, true) };
    struct mark m;
    struct val lines;

    if (v.t == V_UNDEF)
        raise_undefined(r, v);
    if (v.t != V_STR)
        no_splitlines(r, v);
    if (w.width < 1)
        raise_error(r, "ValueError", "invalid width %lld (must be > 0)", (long long)w.width);
    lines = val_call(r, val_attr(r, v, str_view(r, "splitlines", 10, true)), &(struct args){ 0 });
    m = out_mark(r);
    for (uint32_t i = 0; i < lines.seq->n; i++) {
        if (i > 0)
            out_str(r, w.between);
        wrap_line(r, lines.seq->items[i].s, &w);
    }
    return out_take_val(r, m);
}

FILTER(do_filesizeformat)
{
    static const char *const units[2][8] = { { "kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB" },
                                             { "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB" } };
    bool binary_units = flag(r, p[0]);
    struct val number = filter_call(r, filter_find("float", 5), v, &(struct args){ .pos = &(struct val){ .t = V_NONE }, .n = 1 });
    double bytes = number.t == V_NONE ? -1 : val_double(r, number) + 0.0, base = binary_units ? 1024 : 1000, unit = base;
    struct mark m = out_mark(r);
    int i = 0;

    if (number.t == V_NONE && v.t == V_STR)
        raise_error(r, "ValueError", "could not convert string to float: %.*s", (int)val_repr(r, v)->len, val_repr(r, v)->text);
    if (number.t == V_NONE)
        raise_error(r, "TypeError", "float() argument must be a string or a real number, not '%s'", val_type(v));
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
