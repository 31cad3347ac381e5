/* str's methods, on texts that know which of their bytes are trusted.
 *
 * Cutting shares bytes (str_sub); making goes through the output buffer. What a method puts between (fill
 * characters, spaces) has the provenance of its argument, or is the template's.
 */
#include "conv/jinja/methods.h"
#include "conv/jinja/value.h"

#include "base/unicode.h"

#include <errno.h>

bool str_is_space(uint32_t c)
{
    if (c < 0x80)
        return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x1f);
    return unicode_is_pyspace(c);
}

/* Provenance while a text is walked forward. */
struct walk { const struct str *s; uint32_t run; };

static bool walk_trusted(struct walk *w, size_t byte)
{
    if (w->s->prov != PROV_MIXED)
        return w->s->prov == PROV_TRUSTED;
    while (w->run + 1 < w->s->n_runs && w->s->runs[w->run].end <= byte)
        w->run++;
    return w->s->runs[w->run].trusted;
}

/* Case */

enum casing { CASE_UPPER, CASE_LOWER, CASE_CAPITAL, CASE_TITLE, CASE_SWAP, CASE_FOLD };

static char ascii_case(char c, enum casing how, bool first)
{
    bool up = c >= 'A' && c <= 'Z', low = c >= 'a' && c <= 'z';

    switch (how) {
    case CASE_UPPER: return low ? (char)(c - 32) : c;
    case CASE_LOWER: case CASE_FOLD: return up ? (char)(c + 32) : c;
    case CASE_SWAP: return low ? (char)(c - 32) : up ? (char)(c + 32) : c;
    default: return first ? (low ? (char)(c - 32) : c) : up ? (char)(c + 32) : c;
    }
}

static struct str *ascii_cased(struct rt *r, const struct str *s, enum casing how)
{
    struct str *c = mem(r, sizeof *c + s->len);
    char *text = (char *)(c + 1);
    bool word = false;

    step(r, s->len / 64);
    for (uint32_t i = 0; i < s->len; i++) {
        bool letter = (s->text[i] | 0x20) >= 'a' && (s->text[i] | 0x20) <= 'z';

        text[i] = ascii_case(s->text[i], how, how == CASE_TITLE ? !word : i == 0);
        word = letter;
    }
    *c = *s;
    c->text = text;
    c->hash = 0;
    return c;
}

/* Greek sigma at the end of a word: a cased letter before, none behind, marks and dots not counted. */
static bool final_sigma(const struct str *s, size_t here, size_t after)
{
    bool cased = false;

    while (here > 0) {
        uint32_t c = utf8_before(s->text, &here);

        if (unicode_is_case_ignorable(c))
            continue;
        cased = unicode_is_cased(c);
        break;
    }
    while (cased && after < s->len) {
        uint32_t c = utf8_next(s->text, s->len, &after);

        if (unicode_is_case_ignorable(c))
            continue;
        return !unicode_is_cased(c);
    }
    return cased;
}

static int lower_char(const struct str *s, size_t here, size_t after, uint32_t c, uint32_t to[3])
{
    if (c != 0x3a3)
        return unicode_lower(c, to);
    to[0] = final_sigma(s, here, after) ? 0x3c2 : 0x3c3;
    return 1;
}

static struct val cased(struct rt *r, struct str *s, enum casing how)
{
    struct walk w = { s, 0 };
    struct mark m;
    struct str *c;
    size_t at = 0;
    bool word = false;

    if (str_chars(s) == s->len)
        return v_str(ascii_cased(r, s, how));
    m = out_mark(r);
    while (at < s->len) {
        size_t here = at;
        uint32_t ch = utf8_next(s->text, s->len, &at), to[3] = { ch, 0, 0 };
        bool first = how == CASE_CAPITAL ? here == 0 : !word;
        int n;

        switch (how) {
        case CASE_UPPER: n = unicode_upper(ch, to); break;
        case CASE_LOWER: n = lower_char(s, here, at, ch, to); break;
        case CASE_FOLD: n = unicode_casefold(ch, to); break;
        case CASE_SWAP:
            n = unicode_is_upper(ch) ? lower_char(s, here, at, ch, to) : unicode_is_lower(ch) ? unicode_upper(ch, to) : 1;
            break;
        default:
            n = first ? unicode_title(ch, to) : lower_char(s, here, at, ch, to);
        }
        word = unicode_is_cased(ch);
        step(r, 1);
        for (int i = 0; i < n; i++)
            out_char(r, to[i], walk_trusted(&w, here));
    }
    c = out_take(r, m);
    c->markup = s->markup;
    return v_str(c);
}

struct val str_upper(struct rt *r, struct str *s) { return cased(r, s, CASE_UPPER); }
struct val str_lower(struct rt *r, struct str *s) { return cased(r, s, CASE_LOWER); }
struct val str_capitalize(struct rt *r, struct str *s) { return cased(r, s, CASE_CAPITAL); }

/* Searching */

int64_t str_find(struct rt *r, const struct str *s, const struct str *part, size_t from, size_t to)
{
    const char *p;

    if (from > to || to - from < part->len)
        return -1;
    if (part->len == 0)
        return (int64_t)from;
    step(r, 1);
    p = memmem(s->text + from, to - from, part->text, part->len);
    return p ? p - s->text : -1;
}

static int64_t find_last(struct rt *r, const struct str *s, const struct str *part, size_t from, size_t to)
{
    if (from > to || to - from < part->len)
        return -1;
    for (size_t at = to - part->len + 1; at-- > from; ) {
        step(r, part->len / 64 + (at % 64 == 0));
        if (memcmp(s->text + at, part->text, part->len) == 0)
            return (int64_t)at;
    }
    return -1;
}

/* start and stop, in characters, as bytes; false: the range is empty for any text, the empty one too. */
static bool bounds(struct rt *r, struct str *s, struct val start, struct val stop, size_t *ret_from, size_t *ret_to)
{
    int64_t n = str_chars(s), a = start.t == V_MISSING || start.t == V_NONE ? 0 : val_int64(r, start, ""),
            b = stop.t == V_MISSING || stop.t == V_NONE ? n : val_int64(r, stop, "");

    a = a < 0 ? (a + n < 0 ? 0 : a + n) : a;
    b = b < 0 ? (b + n < 0 ? 0 : b + n) : b < n ? b : n;
    *ret_from = str_offset(s, a > n ? (size_t)n : (size_t)a);
    *ret_to = str_offset(s, (size_t)b);
    return a <= n && a <= b;
}

static struct str *want_str(struct rt *r, struct val v, const char *what)
{
    if (v.t == V_UNDEF)
        raise_undefined(r, v);
    if (v.t != V_STR)
        raise_error(r, "TypeError", "%smust be str, not %s", what, val_type(v));
    return v.s;
}

static struct val find_method(struct rt *r, int id, struct str *s, const struct val p[3])
{
    struct str *part = want_str(r, p[0], "");
    size_t from, to;
    bool backwards = id == METHOD_RFIND || id == METHOD_RINDEX;
    int64_t at = -1;

    step(r, s->len / 64);
    if (bounds(r, s, p[1], p[2], &from, &to))
        at = backwards ? find_last(r, s, part, from, to) : str_find(r, s, part, from, to);
    if (at < 0 && (id == METHOD_INDEX || id == METHOD_RINDEX))
        raise_error(r, "ValueError", "substring not found");
    return v_int(at < 0 ? -1 : (int64_t)utf8_count(s->text, (size_t)at));
}

static struct val count_method(struct rt *r, struct str *s, const struct val p[3])
{
    struct str *part = want_str(r, p[0], "");
    size_t from, to;
    int64_t n = 0, at;

    step(r, s->len / 64);
    if (!bounds(r, s, p[1], p[2], &from, &to))
        return v_int(0);
    if (part->len == 0)
        return v_int((int64_t)utf8_count(s->text + from, to - from) + 1);
    for (; (at = str_find(r, s, part, from, to)) >= 0; n++)
        from = (size_t)at + part->len;
    return v_int(n);
}

static bool affix(const struct str *s, const struct str *part, size_t from, size_t to, bool end)
{
    return to - from >= part->len && memcmp(s->text + (end ? to - part->len : from), part->text, part->len) == 0;
}

static struct val affix_method(struct rt *r, struct str *s, const struct val p[3], bool end)
{
    size_t from, to;
    bool found = false, range = bounds(r, s, p[1], p[2], &from, &to);

    if (p[0].t == V_UNDEF)
        raise_undefined(r, p[0]);
    if (p[0].t == V_STR)
        return v_bool(range && affix(s, p[0].s, from, to, end));
    if (p[0].t != V_TUPLE)
        raise_error(r, "TypeError", "%s first arg must be str or a tuple of str, not %s", end ? "endswith" : "startswith", val_type(p[0]));
    for (uint32_t i = 0; i < p[0].seq->n; i++)
        found |= range && affix(s, want_str(r, p[0].seq->items[i], "tuple for startswith "), from, to, end);
    return v_bool(found);
}

/* Cutting */

static bool char_in(const struct str *chars, uint32_t c)
{
    for (size_t at = 0; at < chars->len; )
        if (utf8_next(chars->text, chars->len, &at) == c)
            return true;
    return false;
}

struct val str_strip(struct rt *r, struct str *s, struct str *chars, bool left, bool right)
{
    size_t from = 0, to = s->len;

    while (left && from < to) {
        size_t at = from;
        uint32_t c = utf8_next(s->text, to, &at);

        if (!(chars ? char_in(chars, c) : str_is_space(c)))
            break;
        step(r, chars ? 1 + chars->len / 16 : 0);
        from = at;
    }
    while (right && to > from) {
        size_t at = to;
        uint32_t c = utf8_before(s->text, &at);

        if (!(chars ? char_in(chars, c) : str_is_space(c)))
            break;
        step(r, chars ? 1 + chars->len / 16 : 0);
        to = at;
    }
    return v_str(str_sub(r, s, from, to));
}

struct val str_split_space(struct rt *r, struct str *s, int64_t max)
{
    struct grow g = { 0 };
    size_t at = 0;

    for (;;) {
        size_t from, next;

        for (next = at; at < s->len && str_is_space(utf8_next(s->text, s->len, &next)); at = next)
            ;
        if (at >= s->len)
            break;
        from = at;
        if (max >= 0 && g.n >= (uint64_t)max) {
            grow_add(r, &g, v_str(str_sub(r, s, from, s->len)));
            break;
        }
        for (next = at; at < s->len && !str_is_space(utf8_next(s->text, s->len, &next)); at = next)
            ;
        grow_add(r, &g, v_str(str_sub(r, s, from, at)));
    }
    return grow_take(r, &g, V_LIST);
}

static struct val reversed(struct rt *r, struct grow *g)
{
    for (uint32_t i = 0; i < g->n / 2; i++) {
        struct val v = g->items[i];

        g->items[i] = g->items[g->n - 1 - i];
        g->items[g->n - 1 - i] = v;
    }
    return grow_take(r, g, V_LIST);
}

static struct val rsplit_space(struct rt *r, struct str *s, int64_t max)
{
    struct grow g = { 0 };
    size_t at = s->len;

    for (;;) {
        size_t to, next;

        for (next = at; at > 0 && str_is_space(utf8_before(s->text, &next)); at = next)
            ;
        if (at == 0)
            break;
        to = at;
        if (max >= 0 && g.n >= (uint64_t)max) {
            grow_add(r, &g, v_str(str_sub(r, s, 0, to)));
            break;
        }
        for (next = at; at > 0 && !str_is_space(utf8_before(s->text, &next)); at = next)
            ;
        grow_add(r, &g, v_str(str_sub(r, s, at, to)));
    }
    return reversed(r, &g);
}

static struct val split_method(struct rt *r, struct str *s, const struct val p[2], bool backwards)
{
    int64_t max = p[1].t == V_MISSING ? -1 : val_int64(r, p[1], ""), at;
    struct grow g = { 0 };
    size_t from = 0, to = s->len;
    struct str *sep;

    step(r, s->len / 64);
    if (p[0].t == V_MISSING || p[0].t == V_NONE)
        return backwards ? rsplit_space(r, s, max) : str_split_space(r, s, max);
    sep = want_str(r, p[0], "");
    if (sep->len == 0)
        raise_error(r, "ValueError", "empty separator");
    while (max < 0 || g.n < (uint64_t)max) {
        at = backwards ? find_last(r, s, sep, 0, to) : str_find(r, s, sep, from, s->len);
        if (at < 0)
            break;
        if (backwards) {
            grow_add(r, &g, v_str(str_sub(r, s, (size_t)at + sep->len, to)));
            to = (size_t)at;
        } else {
            grow_add(r, &g, v_str(str_sub(r, s, from, (size_t)at)));
            from = (size_t)at + sep->len;
        }
    }
    grow_add(r, &g, v_str(str_sub(r, s, from, to)));
    return backwards ? reversed(r, &g) : grow_take(r, &g, V_LIST);
}

static bool line_end(uint32_t c)
{
    return (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

static struct val splitlines(struct rt *r, struct str *s, bool keep)
{
    struct grow g = { 0 };
    size_t from = 0, at = 0;

    while (at < s->len) {
        size_t here = at;
        uint32_t c = utf8_next(s->text, s->len, &at);

        if (!line_end(c))
            continue;
        if (c == '\r' && at < s->len && s->text[at] == '\n')
            at++;
        grow_add(r, &g, v_str(str_sub(r, s, from, keep ? at : here)));
        from = at;
    }
    if (from < s->len)
        grow_add(r, &g, v_str(str_sub(r, s, from, s->len)));
    return grow_take(r, &g, V_LIST);
}

static struct val partition(struct rt *r, struct str *s, struct val sep, bool backwards)
{
    struct str *part = want_str(r, sep, "");
    struct val v = v_seq(r, V_TUPLE, 3);
    int64_t at;

    if (part->len == 0)
        raise_error(r, "ValueError", "empty separator");
    at = backwards ? find_last(r, s, part, 0, s->len) : str_find(r, s, part, 0, s->len);
    v.seq->items[0] = v_str(at < 0 ? (backwards ? str_sub(r, s, 0, 0) : s) : str_sub(r, s, 0, (size_t)at));
    v.seq->items[1] = v_str(at < 0 ? str_sub(r, s, 0, 0) : str_sub(r, s, (size_t)at, (size_t)at + part->len));
    v.seq->items[2] = v_str(at < 0 ? (backwards ? s : str_sub(r, s, 0, 0)) : str_sub(r, s, (size_t)at + part->len, s->len));
    return v;
}

/* Making */

struct val str_replace(struct rt *r, struct str *s, struct str *old, struct str *new_, int64_t count)
{
    struct mark m;
    struct str *made;
    size_t from = 0;
    int64_t at, n = 0;

    step(r, s->len / 64);
    if (count == 0 || (old->len > 0 && str_find(r, s, old, 0, s->len) < 0))
        return v_str(s);
    m = out_mark(r);
    if (old->len == 0) {                /* between all characters, and at both ends */
        for (size_t next = 0; count < 0 || n < count; n++, from = next) {
            step(r, 1);
            out_str(r, new_);
            if (from >= s->len) {
                from = s->len;
                break;
            }
            utf8_next(s->text, s->len, &next);
            out_sub(r, s, from, next);
        }
    }
    while (old->len > 0 && (count < 0 || n < count) && (at = str_find(r, s, old, from, s->len)) >= 0) {
        out_sub(r, s, from, (size_t)at);
        out_str(r, new_);
        from = (size_t)at + old->len;
        n++;
    }
    out_sub(r, s, from, s->len);
    made = out_take(r, m);
    made->markup = s->markup;
    return v_str(made);
}

struct val str_join(struct rt *r, struct str *sep, struct val items)
{
    struct mark m = out_mark(r);
    struct iter it;
    struct val v;
    struct str *s;

    iter_init(r, &it, items);
    for (uint32_t i = 0; iter_next(r, &it, &v); i++) {
        if (v.t != V_STR)
            raise_error(r, "TypeError", "sequence item %u: expected str instance, %s found", i, val_type(v));
        if (i > 0)
            out_str(r, sep);
        out_str(r, sep->markup ? val_escape(r, v) : v.s);
    }
    s = out_take(r, m);
    s->markup = sep->markup;
    return v_str(s);
}

static void fill(struct rt *r, const struct str *with, int64_t n)
{
    if (n > 0 && (uint64_t)n > r->limits.output_bytes)
        raise_limit(r, -E2BIG, "the output is longer than %zu bytes", r->limits.output_bytes);
    for (; n > 0; n--) {
        step(r, 1);
        out_str(r, with);
    }
}

static struct val just(struct rt *r, int id, struct str *s, const struct val p[2])
{
    int64_t width = val_int64(r, p[0], ""), space = width - str_chars(s), left = 0;
    struct str *with = p[1].t == V_MISSING ? str_view(r, " ", 1, true) : want_str(r, p[1], "The fill character ");
    struct mark m;
    struct str *made;

    if (str_chars(with) != 1)
        raise_error(r, "TypeError", "The fill character must be exactly one character long");
    if (space <= 0)
        return v_str(s);
    if (id == METHOD_CENTER)
        left = space / 2 + (space & width & 1);
    else if (id == METHOD_RJUST)
        left = space;
    m = out_mark(r);
    fill(r, with, left);
    out_str(r, s);
    fill(r, with, space - left);
    made = out_take(r, m);
    made->markup = s->markup;
    return v_str(made);
}

static struct val zfill(struct rt *r, struct str *s, int64_t width)
{
    size_t sign = s->len > 0 && (s->text[0] == '+' || s->text[0] == '-');
    struct mark m = out_mark(r);

    out_sub(r, s, 0, sign);
    fill(r, str_view(r, "0", 1, true), width - str_chars(s));
    out_sub(r, s, sign, s->len);
    return out_take_val(r, m);
}

static struct val expandtabs(struct rt *r, struct str *s, int64_t size)
{
    struct mark m = out_mark(r);
    struct str *space = str_view(r, " ", 1, true);
    int64_t column = 0;

    for (size_t at = 0; at < s->len; ) {
        size_t here = at;
        uint32_t c = utf8_next(s->text, s->len, &at);

        step(r, 1);
        if (c == '\t' && size > 0) {
            fill(r, space, size - column % size);
            column += size - column % size;
            continue;
        }
        if (c == '\t')
            continue;
        column = c == '\n' || c == '\r' ? 0 : column + 1;
        out_sub(r, s, here, at);
    }
    return out_take_val(r, m);
}

/* Asking */

static bool alpha(uint32_t c) { return (unicode_class(c) & UC_LETTER) != 0; }
static bool alnum(uint32_t c) { return alpha(c) || unicode_is_decimal(c) || unicode_is_digit(c) || unicode_is_numeric(c); }

static bool all(const struct str *s, bool (*is)(uint32_t))
{
    for (size_t at = 0; at < s->len; )
        if (!is(utf8_next(s->text, s->len, &at)))
            return false;
    return s->len > 0;
}

static bool in_case(const struct str *s, bool upper)
{
    bool found = false;

    for (size_t at = 0; at < s->len; ) {
        uint32_t c = utf8_next(s->text, s->len, &at);

        if ((upper ? unicode_is_lower(c) : unicode_is_upper(c)) || unicode_is_title(c))
            return false;
        found |= upper ? unicode_is_upper(c) : unicode_is_lower(c);
    }
    return found;
}

static bool is_title(const struct str *s)
{
    bool word = false, found = false;

    for (size_t at = 0; at < s->len; ) {
        uint32_t c = utf8_next(s->text, s->len, &at);
        bool up = unicode_is_upper(c) || unicode_is_title(c), low = unicode_is_lower(c);

        if ((up && word) || (low && !word))
            return false;
        word = up || low;
        found |= word;
    }
    return found;
}

static bool is_identifier(const struct str *s)
{
    for (size_t at = 0; at < s->len; ) {
        bool first = at == 0;
        uint32_t c = utf8_next(s->text, s->len, &at);

        if (c != '_' && !(first ? unicode_is_identifier_start(c) : unicode_is_identifier_part(c)))
            return false;
    }
    return s->len > 0;
}

static bool asks(int id, struct str *s, bool *ret)
{
    switch (id) {
    case METHOD_ISALNUM: *ret = all(s, alnum); break;
    case METHOD_ISALPHA: *ret = all(s, alpha); break;
    case METHOD_ISASCII: *ret = str_chars(s) == s->len; break;
    case METHOD_ISDECIMAL: *ret = all(s, unicode_is_decimal); break;
    case METHOD_ISDIGIT: *ret = all(s, unicode_is_digit); break;
    case METHOD_ISIDENTIFIER: *ret = is_identifier(s); break;
    case METHOD_ISLOWER: *ret = in_case(s, false); break;
    case METHOD_ISNUMERIC: *ret = all(s, unicode_is_numeric); break;
    case METHOD_ISPRINTABLE: *ret = s->len == 0 || all(s, unicode_is_printable); break;
    case METHOD_ISSPACE: *ret = all(s, str_is_space); break;
    case METHOD_ISTITLE: *ret = is_title(s); break;
    case METHOD_ISUPPER: *ret = in_case(s, true); break;
    default: return false;
    }
    return true;
}

static const char *parameters(int id, uint32_t *ret_required)
{
    *ret_required = 1;
    switch (id) {
    case METHOD_FIND: case METHOD_RFIND: case METHOD_INDEX: case METHOD_RINDEX: case METHOD_COUNT: return "sub start end";
    case METHOD_STARTSWITH: case METHOD_ENDSWITH: return "prefix start end";
    case METHOD_CENTER: case METHOD_LJUST: case METHOD_RJUST: return "width fillchar";
    case METHOD_ZFILL: return "width";
    case METHOD_REPLACE: *ret_required = 2; return "old new count";
    case METHOD_JOIN: return "iterable";
    case METHOD_PARTITION: case METHOD_RPARTITION: return "sep";
    case METHOD_REMOVEPREFIX: case METHOD_REMOVESUFFIX: return "affix";
    case METHOD_FORMAT_MAP: return "mapping";
    default: break;
    }
    *ret_required = 0;
    switch (id) {
    case METHOD_SPLIT: case METHOD_RSPLIT: return "sep maxsplit";
    case METHOD_SPLITLINES: return "keepends";
    case METHOD_STRIP: case METHOD_LSTRIP: case METHOD_RSTRIP: return "chars";
    case METHOD_EXPANDTABS: return "tabsize";
    case METHOD_ENCODE: return "encoding errors";
    default: return "";
    }
}

static struct val format_map(struct rt *r, struct str *s, struct val map)
{
    struct args a = { 0 };

    if (map.t != V_DICT)
        raise_error(r, "TypeError", "format_map() wants a mapping");
    a.names = mem_array(r, map.d->n, sizeof *a.names);
    a.named = mem_array(r, map.d->n, sizeof *a.named);
    for (uint32_t i = 0; i < map.d->n; i++) {
        if (map.d->e[i].key.t != V_STR)
            continue;
        a.names[a.n_named] = map.d->e[i].key.s;
        a.named[a.n_named++] = map.d->e[i].value;
    }
    return format_braces(r, s, &a);
}

static struct val plain_method(struct rt *r, int id, struct str *s, const struct val *p)
{
    struct str *part;

    switch (id) {
    case METHOD_UPPER: return cased(r, s, CASE_UPPER);
    case METHOD_LOWER: return cased(r, s, CASE_LOWER);
    case METHOD_CAPITALIZE: return cased(r, s, CASE_CAPITAL);
    case METHOD_TITLE: return cased(r, s, CASE_TITLE);
    case METHOD_SWAPCASE: return cased(r, s, CASE_SWAP);
    case METHOD_CASEFOLD: return cased(r, s, CASE_FOLD);
    case METHOD_FIND: case METHOD_RFIND: case METHOD_INDEX: case METHOD_RINDEX: return find_method(r, id, s, p);
    case METHOD_COUNT: return count_method(r, s, p);
    case METHOD_STARTSWITH: return affix_method(r, s, p, false);
    case METHOD_ENDSWITH: return affix_method(r, s, p, true);
    case METHOD_STRIP: case METHOD_LSTRIP: case METHOD_RSTRIP:
        part = p[0].t == V_MISSING || p[0].t == V_NONE ? NULL : want_str(r, p[0], "strip arg must be None or str: ");
        return str_strip(r, s, part, id != METHOD_RSTRIP, id != METHOD_LSTRIP);
    case METHOD_SPLIT: return split_method(r, s, p, false);
    case METHOD_RSPLIT: return split_method(r, s, p, true);
    case METHOD_SPLITLINES: return splitlines(r, s, p[0].t != V_MISSING && val_truth(r, p[0]));
    case METHOD_PARTITION: return partition(r, s, p[0], false);
    case METHOD_RPARTITION: return partition(r, s, p[0], true);
    case METHOD_REPLACE:
        return str_replace(r, s, want_str(r, p[0], "replace() argument 1 "), want_str(r, p[1], "replace() argument 2 "),
                           p[2].t == V_MISSING ? -1 : val_int64(r, p[2], ""));
    case METHOD_JOIN: return str_join(r, s, p[0]);
    case METHOD_CENTER: case METHOD_LJUST: case METHOD_RJUST: return just(r, id, s, p);
    case METHOD_ZFILL: return zfill(r, s, val_int64(r, p[0], ""));
    case METHOD_EXPANDTABS: return expandtabs(r, s, p[0].t == V_MISSING ? 8 : val_int64(r, p[0], ""));
    case METHOD_REMOVEPREFIX:
        part = want_str(r, p[0], "removeprefix() argument ");
        return v_str(affix(s, part, 0, s->len, false) ? str_sub(r, s, part->len, s->len) : s);
    case METHOD_REMOVESUFFIX:
        part = want_str(r, p[0], "removesuffix() argument ");
        return v_str(part->len > 0 && affix(s, part, 0, s->len, true) ? str_sub(r, s, 0, s->len - part->len) : s);
    case METHOD_FORMAT_MAP: return format_map(r, s, p[0]);
    default: return (struct val){ .t = V_BYTES, .s = s };      /* encode: in UTF-8, whatever is asked for */
    }
}

static struct val marked(struct rt *r, struct val v)
{
    if (v.t == V_STR)
        return v_str(str_markup(r, v.s));
    if (v.t == V_LIST || v.t == V_TUPLE)
        for (uint32_t i = 0; i < v.seq->n; i++)
            v.seq->items[i] = v_str(str_markup(r, v.seq->items[i].s));
    return v;
}

struct val str_method(struct rt *r, int id, struct str *s, const struct args *a)
{
    struct val p[MAX_PARAMS];
    uint32_t required;
    const char *names = parameters(id, &required);
    bool answer, escapes = s->markup && id != METHOD_FIND && id != METHOD_RFIND && id != METHOD_INDEX && id != METHOD_RINDEX &&
                           id != METHOD_COUNT && id != METHOD_STARTSWITH && id != METHOD_ENDSWITH && id != METHOD_SPLIT &&
                           id != METHOD_RSPLIT && id != METHOD_PARTITION && id != METHOD_RPARTITION;

    if (id == METHOD_FORMAT)
        return format_braces(r, s, a);
    for (int i = 0; i < MAX_PARAMS; i++)
        p[i] = v_missing();
    if (a->n_named && id != METHOD_SPLIT && id != METHOD_RSPLIT && id != METHOD_SPLITLINES && id != METHOD_EXPANDTABS && id != METHOD_ENCODE)
        raise_error(r, "TypeError", "str.%s() takes no keyword arguments", method_name(id));
    args_bind(r, method_name(id), names, required, a, p);
    if (asks(id, s, &answer))
        return v_bool(answer);
    for (uint32_t i = 0; escapes && i < 2 && id != METHOD_JOIN; i++)
        if (p[i].t == V_STR)
            p[i] = v_str(val_escape(r, p[i]));
    return s->markup ? marked(r, plain_method(r, id, s, p)) : plain_method(r, id, s, p);
}
