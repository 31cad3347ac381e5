/* Values as text: str(), repr(), and the two ways of formatting, % and {}. */
#include "conv/jinja/value.h"

#include "base/unicode.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The shortest digits that read back as the same double, laid out as Python does: with an exponent below 1e-4 and from 1e16. */
size_t format_double(double f, char buf[40])
{
    char digits[40];
    int precision, exponent, n;
    size_t len = 0;
    const char *e;

    if (isnan(f) || isinf(f))
        return (size_t)snprintf(buf, 40, "%s", isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
    for (precision = 15; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*e", precision - 1, fabs(f));
        if (strtod(digits, NULL) == fabs(f))
            break;
    }
    e = strchr(digits, 'e');
    exponent = atoi(e + 1);
    n = 0;
    for (const char *p = digits; p < e; p++)
        if (*p != '.')
            digits[n++] = *p;
    while (n > 1 && digits[n - 1] == '0')
        n--;
    if (signbit(f))
        buf[len++] = '-';
    if (exponent < -4 || exponent >= 16) {
        buf[len++] = digits[0];
        if (n > 1) {
            buf[len++] = '.';
            memcpy(buf + len, digits + 1, (size_t)n - 1);
            len += (size_t)n - 1;
        }
        return len + (size_t)snprintf(buf + len, 40 - len, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    }
    for (int i = exponent < 0 ? exponent : 0; i < n || i <= exponent + 1; i++) {
        if (i == exponent + 1)
            buf[len++] = '.';
        buf[len++] = i >= 0 && i < n ? digits[i] : '0';
    }
    return len;
}

void out_double(struct rt *r, double f)
{
    char text[40];

    out_add(r, text, format_double(f, text), r->literal);
}

static void repr_str(struct rt *r, const struct str *s)
{
    bool single = memchr(s->text, '\'', s->len) != NULL, other = memchr(s->text, '"', s->len) != NULL;
    char quote = single && !other ? '"' : '\'';
    size_t at = 0, from = 0;
    bool first = s->len == 0 || str_trusted_at(s, 0), last = s->len == 0 || str_trusted_at(s, s->len - 1);

    out_add(r, &quote, 1, first);
    while (at < s->len) {
        size_t here = at;
        uint32_t c = utf8_next(s->text, s->len, &at);
        char text[12];
        int n = 0;

        if (c >= 0x20 && c < 0x7f && c != '\\' && c != (uint32_t)quote)
            continue;
        if (c == '\\' || c == (uint32_t)quote)
            n = snprintf(text, sizeof text, "\\%c", (char)c);
        else if (c == '\n' || c == '\r' || c == '\t')
            n = snprintf(text, sizeof text, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (c < 0x20 || c == 0x7f || (c < 0x100 && !unicode_is_printable(c)))
            n = snprintf(text, sizeof text, "\\x%02x", c);
        else if (!unicode_is_printable(c))
            n = snprintf(text, sizeof text, c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
        if (n == 0)
            continue;
        out_sub(r, s, from, here);
        out_add(r, text, (size_t)n, str_trusted_at(s, here));
        from = at;
    }
    out_sub(r, s, from, s->len);
    out_add(r, &quote, 1, last);
}

static void repr_bytes(struct rt *r, const struct str *s)
{
    bool trusted = s->prov == PROV_TRUSTED;
    char quote = memchr(s->text, '\'', s->len) && !memchr(s->text, '"', s->len) ? '"' : '\'';

    out_add(r, "b", 1, trusted);
    out_add(r, &quote, 1, trusted);
    for (uint32_t i = 0; i < s->len; i++) {
        unsigned char c = (unsigned char)s->text[i];
        char text[8];
        int n = c == '\\' || c == quote ? snprintf(text, sizeof text, "\\%c", c) : c == '\n' ? snprintf(text, sizeof text, "\\n")
                : c == '\r' ? snprintf(text, sizeof text, "\\r") : c == '\t' ? snprintf(text, sizeof text, "\\t")
                : c < 0x20 || c >= 0x7f ? snprintf(text, sizeof text, "\\x%02x", c) : snprintf(text, sizeof text, "%c", c);

        out_add(r, text, (size_t)n, trusted);
    }
    out_add(r, &quote, 1, trusted);
}

static void repr_seq(struct rt *r, const struct seq *s, const char *brackets)
{
    out_add(r, &brackets[0], 1, r->literal);
    for (uint32_t i = 0; i < s->n; i++) {
        if (i > 0)
            out_adds(r, ", ");
        out_repr(r, s->items[i]);
    }
    if (brackets[0] == '(' && s->n == 1)
        out_adds(r, ",");
    out_add(r, &brackets[1], 1, r->literal);
}

static void repr_dict(struct rt *r, const struct dict *d)
{
    out_adds(r, "{");
    for (uint32_t i = 0; i < d->n; i++) {
        if (i > 0)
            out_adds(r, ", ");
        out_repr(r, d->e[i].key);
        out_adds(r, ": ");
        out_repr(r, d->e[i].value);
    }
    out_adds(r, "}");
}

static void repr_view(struct rt *r, struct val v)
{
    out_adds(r, val_type(v));
    out_adds(r, "([");
    for (uint32_t i = 0; i < v.d->n; i++) {
        out_adds(r, i > 0 ? ", " : "");
        if (v.aux == VIEW_ITEMS)
            out_adds(r, "(");
        if (v.aux != VIEW_VALUES)
            out_repr(r, v.d->e[i].key);
        out_adds(r, v.aux == VIEW_ITEMS ? ", " : "");
        if (v.aux != VIEW_KEYS)
            out_repr(r, v.d->e[i].value);
        if (v.aux == VIEW_ITEMS)
            out_adds(r, ")");
    }
    out_adds(r, "])");
}

static void container(struct rt *r, struct val v)
{
    bool literal = container_open(r, v);

    switch ((enum vtype)v.t) {
    case V_LIST: repr_seq(r, v.seq, "[]"); break;
    case V_TUPLE: repr_seq(r, v.seq, "()"); break;
    case V_DICT: repr_dict(r, v.d); break;
    case V_VIEW: repr_view(r, v); break;
    default:
        out_adds(r, "<Namespace ");
        repr_dict(r, v.d);
        out_adds(r, ">");
    }
    container_close(r, literal);
}

void out_repr(struct rt *r, struct val v)
{
    step(r, 1);
    switch ((enum vtype)v.t) {
    case V_STR:
        if (v.s->markup)
            out_adds(r, "Markup(");
        repr_str(r, v.s);
        if (v.s->markup)
            out_adds(r, ")");
        break;
    case V_UNDEF: case V_MISSING:
        out_adds(r, "Undefined");
        break;
    default:
        out_val(r, v);
    }
}

void out_val(struct rt *r, struct val v)
{
    switch ((enum vtype)v.t) {
    case V_MISSING: case V_UNDEF: break;
    case V_NONE: out_adds(r, "None"); break;
    case V_BOOL: out_adds(r, v.i ? "True" : "False"); break;
    case V_INT: case V_BIG: int_out(r, v); break;
    case V_FLOAT: out_double(r, v.f); break;
    case V_STR: out_str(r, v.s); break;
    case V_BYTES: repr_bytes(r, v.s); break;
    case V_LIST: case V_TUPLE: case V_DICT: case V_VIEW: case V_NAMESPACE: container(r, v); break;
    case V_RANGE:
        out_printf(r, v.range->step == 1 ? "range(%lld, %lld)" : "range(%lld, %lld, %lld)", (long long)v.range->start,
                   (long long)v.range->stop, (long long)v.range->step);
        break;
    case V_SLICE:
        out_adds(r, "slice(");
        for (int i = 0; i < 3; i++) {
            out_adds(r, i ? ", " : "");
            out_repr(r, v.p[i]);
        }
        out_adds(r, ")");
        break;
    /* Python prints an address in these; ours is always the same. */
    case V_GEN: out_printf(r, "<%s object at 0x7f0000000000>", v.gen->type); break;
    case V_METHOD:
        out_printf(r, "<built-in method %s of %s object at 0x7f0000000000>", method_name((int)v.aux), val_type(*v.p));
        break;
    case V_FUNC: out_printf(r, "<function %s at 0x7f0000000000>", function_name(v)); break;
    case V_MACRO: case V_LOOP: out_object(r, v); break;
    case V_CYCLER: case V_JOINER: out_printf(r, "<jinja2.utils.%s object at 0x7f0000000000>", val_type(v)); break;
    case V_SELF: out_adds(r, "<TemplateReference>"); break;
    }
}

struct str *val_str(struct rt *r, struct val v)
{
    struct mark m;

    if (v.t == V_STR)
        return v.s;
    m = out_mark(r);
    out_val(r, v);
    return out_take(r, m);
}

struct str *val_repr(struct rt *r, struct val v)
{
    struct mark m = out_mark(r);

    out_repr(r, v);
    return out_take(r, m);
}

void out_escaped(struct rt *r, const struct str *s)
{
    size_t from = 0;

    for (size_t i = 0; i < s->len; i++) {
        char c = s->text[i];
        const char *e = c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '\'' ? "&#39;" : c == '"' ? "&#34;" : NULL;

        if (!e)
            continue;
        out_sub(r, s, from, i);
        out_add(r, e, strlen(e), str_trusted_at(s, i));
        from = i + 1;
    }
    out_sub(r, s, from, s->len);
}

struct str *val_escape(struct rt *r, struct val v)
{
    struct mark m;
    struct str *s;

    if (v.t == V_STR && v.s->markup)
        return v.s;
    m = out_mark(r);
    out_escaped(r, val_str(r, v));
    s = out_take(r, m);
    s->markup = true;
    return s;
}

/* Formatting */

struct spec {
    uint32_t fill;
    char align, sign, type;         /* '\0': not given */
    bool alt, zero, left;
    char group;
    int64_t width, precision;       /* -1: not given */
};

static void pad(struct rt *r, uint32_t c, int64_t n, bool trusted)
{
    if (n > 0 && (uint64_t)n > r->limits.output_bytes)
        raise_limit(r, -E2BIG, "the output is longer than %zu bytes", r->limits.output_bytes);
    for (; n > 0; n--) {
        step(r, 1);
        out_char(r, c, trusted);
    }
}

static bool cut_number(struct rt *r, const struct str *s, size_t *at, int64_t *ret)
{
    size_t from = *at;
    int64_t n = 0;

    for (; *at < s->len && s->text[*at] >= '0' && s->text[*at] <= '9'; (*at)++)
        if (__builtin_mul_overflow(n, (int64_t)10, &n) || __builtin_add_overflow(n, (int64_t)(s->text[*at] - '0'), &n))
            raise_error(r, "ValueError", "Too many decimal digits in format string");
    *ret = n;
    return *at > from;
}

/* A number's digits without its sign, as `type` says. */
static struct str *number_text(struct rt *r, struct val v, const struct spec *f, bool *ret_negative)
{
    struct mark m = out_mark(r);
    char type = f->type;
    double d;

    if (val_is_int(v) && strchr("diuoxXb", type)) {
        *ret_negative = int_negative(v);
        if (*ret_negative)
            v = int_neg(r, v);
        if (strchr("diu", type)) {
            size_t from = r->out.len;
            struct str *digits;

            int_out(r, v.t == V_BOOL ? v_int(v.i) : v);
            if ((int64_t)(r->out.len - from) < f->precision) {
                digits = out_take(r, m);
                m = out_mark(r);
                pad(r, '0', f->precision - digits->len, true);
                out_str(r, digits);
            }
        } else {
            int base = type == 'o' ? 8 : type == 'b' ? 2 : 16;
            char *digits = mem(r, 16384);
            size_t at = 16384;
            struct val rem;

            do {
                int_divmod(r, v, v_int(base), &v, &rem);
                digits[--at] = (type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[rem.i];
            } while (int_compare(v, v_int(0)) != 0 && at > 0);
            pad(r, '0', f->precision - (int64_t)(16384 - at), true);
            out_add(r, digits + at, 16384 - at, true);
        }
        return out_take(r, m);
    }
    d = val_double(r, v);
    *ret_negative = signbit(d) && !isnan(d);
    d = fabs(d);
    if (isnan(d) || isinf(d)) {
        out_adds(r, isnan(d) ? (type == 'E' || type == 'F' || type == 'G' ? "NAN" : "nan")
                             : (type == 'E' || type == 'F' || type == 'G' ? "INF" : "inf"));
        if (type == '%')
            out_adds(r, "%");
    } else if (type == '\0') {
        out_double(r, d);
    } else {
        int64_t precision = f->precision < 0 ? 6 : f->precision;
        char fmt[8] = { '%', f->alt ? '#' : '.', f->alt ? '.' : '*', f->alt ? '*' : 0, 0 };
        size_t n;
        char *text;
        int len;

        if (precision > 4096)
            raise_limit(r, -E2BIG, "the output is longer than %zu bytes", r->limits.output_bytes);
        n = strlen(fmt);
        fmt[n] = type == '%' ? 'f' : type == 'n' ? 'g' : type;
        text = mem(r, 5000);
        len = snprintf(text, 5000, fmt, (int)precision, type == '%' ? d * 100 : d);
        out_add(r, text, (size_t)len, true);
        if (type == '%')
            out_adds(r, "%");
    }
    return out_take(r, m);
}

/* Digits with a separator every three (or four, for other bases), in front padded with zeros to `width`. */
static void out_grouped(struct rt *r, const struct str *digits, const struct spec *f, int64_t width)
{
    int every = strchr("xXob", f->type) && f->type ? 4 : 3;
    int64_t whole = 0, zeros = 0;

    while (whole < digits->len && ((digits->text[whole] >= '0' && digits->text[whole] <= '9') || (every == 4 && digits->text[whole] != '.')))
        whole++;
    if (!f->group) {
        pad(r, '0', width - digits->len, true);
        out_str(r, digits);
        return;
    }
    while (whole + zeros + (whole + zeros - 1) / every + (digits->len - whole) < width) {
        zeros++;
        step(r, 1);
    }
    for (int64_t i = 0; i < whole + zeros; i++) {
        if (i > 0 && (whole + zeros - i) % every == 0)
            out_add(r, &f->group, 1, true);
        out_add(r, i < zeros ? "0" : digits->text + i - zeros, 1, true);
    }
    out_sub(r, digits, (size_t)whole, digits->len);
}

static void out_number(struct rt *r, struct val v, const struct spec *f, bool fill_trusted)
{
    bool negative;
    struct str *digits = number_text(r, v, f, &negative), *body;
    char prefix[4] = "";
    struct mark m;
    int64_t left = 0, space, width;
    size_t n = 0;

    if (negative || f->sign == '+' || f->sign == ' ')
        prefix[n++] = negative ? '-' : f->sign;
    if (f->alt && f->type && strchr("oxXb", f->type)) {
        prefix[n++] = '0';
        prefix[n++] = f->type;
    }
    width = f->align == '=' || (f->zero && !f->align) ? f->width - (int64_t)n : 0;
    if (width > (int64_t)r->limits.output_bytes)
        raise_limit(r, -E2BIG, "the output is longer than %zu bytes", r->limits.output_bytes);
    m = out_mark(r);
    out_add(r, prefix, n, true);
    if (f->align == '=' && f->fill != '0') {
        pad(r, f->fill, width - digits->len, fill_trusted);
        width = 0;
    }
    out_grouped(r, digits, f, width);
    body = out_take(r, m);
    space = f->width - (int64_t)body->len;
    if (space > 0)
        left = f->align == '<' ? 0 : f->align == '^' ? space / 2 : space;
    pad(r, f->fill, left, fill_trusted);
    out_str(r, body);
    pad(r, f->fill, space - left, fill_trusted);
}

static void out_padded(struct rt *r, struct str *s, const struct spec *f, bool fill_trusted)
{
    size_t len = s->len;
    int64_t chars = str_chars(s), space, left;

    if (f->precision >= 0 && f->precision < chars) {
        len = str_offset(s, (size_t)f->precision);
        chars = f->precision;
    }
    space = f->width > chars ? f->width - chars : 0;
    left = f->align == '>' ? space : f->align == '^' ? space / 2 : 0;
    pad(r, f->fill, left, fill_trusted);
    out_sub(r, s, 0, len);
    pad(r, f->fill, space - left, fill_trusted);
}

/* "%…": the arguments in order, or a mapping. */
struct percent { struct val arg; bool mapping; uint32_t used; };

static struct val percent_next(struct rt *r, struct percent *p)
{
    if (p->arg.t == V_TUPLE) {
        if (p->used >= p->arg.seq->n)
            raise_error(r, "TypeError", "not enough arguments for format string");
        return p->arg.seq->items[p->used++];
    }
    if (p->used++ > 0)
        raise_error(r, "TypeError", "not enough arguments for format string");
    return p->arg;
}

static struct val percent_int(struct rt *r, struct val v, char type)
{
    if (v.t == V_UNDEF)
        raise_undefined(r, v);
    if (v.t == V_FLOAT && strchr("diu", type))
        return int_from_double(r, v.f);
    if (!val_is_int(v))
        raise_error(r, "TypeError", strchr("diu", type) ? "%%%c format: a real number is required, not %s"
                                                        : "%%%c format: an integer is required, not %s", type, val_type(v));
    return v.t == V_BOOL ? v_int(v.i) : v;
}

static void percent_value(struct rt *r, struct str *fmt, size_t pos, struct spec *f, struct val v)
{
    bool trusted = str_trusted_at(fmt, pos);
    struct str *s;

    f->fill = ' ';
    f->align = f->left ? '<' : '>';
    switch (f->type) {
    case 's': case 'r': case 'a':
        s = f->type == 's' ? val_str(r, v) : val_repr(r, v);
        if (fmt->markup && !(s->markup && f->type == 's'))
            s = val_escape(r, v_str(str_plain(r, s)));
        out_padded(r, s, f, trusted);
        return;
    case 'c':
        if (v.t == V_STR && str_chars(v.s) == 1) {
            out_padded(r, v.s, f, trusted);
        } else if (v.t == V_INT && v.i >= 0 && v.i < 0x110000) {
            struct mark m = out_mark(r);

            out_char(r, (uint32_t)v.i, false);  /* the number may come from outside, and spell anything */
            out_padded(r, out_take(r, m), f, trusted);
        } else {
            raise_error(r, "TypeError", "%%c requires int or char");
        }
        return;
    case 'd': case 'i': case 'u': case 'o': case 'x': case 'X':
        v = percent_int(r, v, f->type);
        break;
    case 'e': case 'E': case 'f': case 'F': case 'g': case 'G':
        if (v.t == V_UNDEF)
            raise_undefined(r, v);
        if (!val_is_number(v))
            raise_error(r, "TypeError", "must be real number, not %s", val_type(v));
        v = v_float(val_double(r, v));
        break;
    default:
        raise_error(r, "ValueError", "unsupported format character '%c' (0x%x) at index %zu", f->type, (unsigned char)f->type, pos);
    }
    if (f->zero && !f->left)
        f->align = '\0';
    out_number(r, v, f, trusted);
}

static int64_t percent_star(struct rt *r, struct percent *p)
{
    struct val v = percent_next(r, p);

    if (v.t != V_INT && v.t != V_BOOL)
        raise_error(r, "TypeError", "* wants int");
    return v.i;
}

/* A conversion behind its %; the cursor ends behind it. */
static void percent_one(struct rt *r, struct str *s, size_t *at, struct percent *p)
{
    struct spec f = { .width = -1, .precision = -1 };
    bool has_value = false;
    struct val v = v_none();

    if (*at < s->len && s->text[*at] == '(') {
        size_t from = ++*at, depth = 1;

        for (; *at < s->len; (*at)++) {
            depth += (s->text[*at] == '(') - (size_t)(s->text[*at] == ')');
            if (depth == 0)
                break;
        }
        if (*at >= s->len)
            raise_error(r, "ValueError", "incomplete format key");
        if (p->arg.t != V_DICT)
            raise_error(r, "TypeError", "format requires a mapping");
        struct str *key = str_sub(r, s, from, *at);
        struct val *found = dict_get_str(p->arg.d, key);

        if (!found)
            raise_error(r, "KeyError", "'%.*s'", (int)key->len, key->text);
        v = *found;
        has_value = true;
        p->mapping = true;
        ++*at;
    }
    for (; *at < s->len && s->text[*at] && strchr("-+ #0", s->text[*at]); ++*at) {
        char c = s->text[*at];

        if (c == '-')
            f.left = true;
        else if (c == '+' || (c == ' ' && f.sign != '+'))
            f.sign = c;
        else if (c == '#')
            f.alt = true;
        else if (c == '0')
            f.zero = true;
    }
    if (*at < s->len && s->text[*at] == '*') {
        f.width = percent_star(r, p);
        ++*at;
        if (f.width < 0) {
            f.left = true;
            f.width = f.width == INT64_MIN ? INT64_MAX : -f.width;
        }
    } else {
        cut_number(r, s, at, &f.width);
    }
    if (*at < s->len && s->text[*at] == '.') {
        ++*at;
        if (*at < s->len && s->text[*at] == '*') {
            f.precision = percent_star(r, p);
            f.precision = f.precision < 0 ? 0 : f.precision;
            ++*at;
        } else {
            cut_number(r, s, at, &f.precision);
        }
    }
    while (*at < s->len && s->text[*at] && strchr("hlL", s->text[*at]))
        ++*at;
    if (*at >= s->len)
        raise_error(r, "ValueError", "incomplete format");
    f.type = s->text[(*at)++];
    if (f.type == '%') {
        out_add(r, "%", 1, str_trusted_at(s, *at - 1));
        return;
    }
    percent_value(r, s, *at - 1, &f, has_value ? v : percent_next(r, p));
}

struct val format_percent(struct rt *r, struct str *fmt, struct val arg)
{
    struct percent p = { arg, false, 0 };
    struct mark m = out_mark(r);
    size_t at = 0;
    struct str *s;

    while (at < fmt->len) {
        const char *percent = memchr(fmt->text + at, '%', fmt->len - at);
        size_t to = percent ? (size_t)(percent - fmt->text) : fmt->len;

        out_sub(r, fmt, at, to);
        at = to;
        if (!percent)
            break;
        at++;
        percent_one(r, fmt, &at, &p);
        step(r, 1);
    }
    if (!p.mapping && ((arg.t == V_TUPLE && p.used < arg.seq->n) ||
                       (arg.t != V_TUPLE && arg.t != V_DICT && arg.t != V_LIST && arg.t != V_UNDEF && arg.t != V_NAMESPACE && p.used == 0)))
        raise_error(r, "TypeError", "not all arguments converted during string formatting");
    s = out_take(r, m);
    s->markup = fmt->markup;
    return v_str(s);
}

/* "{…}" */

struct braces { const struct args *a; int64_t automatic; bool manual; };        /* automatic: how many so far */

static void parse_spec(struct rt *r, struct str *s, struct spec *f)
{
    size_t at = 0, next = 0;
    uint32_t c = s->len ? utf8_next(s->text, s->len, &next) : 0;

    *f = (struct spec){ .fill = ' ', .width = -1, .precision = -1 };
    if (next > 0 && next < s->len && strchr("<>=^", s->text[next])) {
        f->fill = c;
        f->align = s->text[next];
        at = next + 1;
    } else if (s->len > 0 && s->text[0] && strchr("<>=^", s->text[0])) {
        f->align = s->text[0];
        at = 1;
    }
    if (at < s->len && s->text[at] && strchr("+- ", s->text[at]))
        f->sign = s->text[at++];
    if (at < s->len && s->text[at] == '#') {
        f->alt = true;
        at++;
    }
    if (at < s->len && s->text[at] == '0') {
        f->zero = true;
        if (!f->align) {
            f->fill = '0';
            f->align = '=';
        }
        at++;
    }
    if (!cut_number(r, s, &at, &f->width))
        f->width = -1;
    if (at < s->len && (s->text[at] == ',' || s->text[at] == '_'))
        f->group = s->text[at++];
    if (at < s->len && s->text[at] == '.') {
        at++;
        if (!cut_number(r, s, &at, &f->precision))
            raise_error(r, "ValueError", "Format specifier missing precision");
    }
    if (at < s->len)
        f->type = s->text[at++];
    if (at < s->len)
        raise_error(r, "ValueError", "Invalid format specifier");
}

static void format_value(struct rt *r, struct val v, struct str *spec_text)
{
    struct spec f;
    bool trusted = spec_text->prov == PROV_TRUSTED;

    if (spec_text->len == 0) {
        out_val(r, v);
        return;
    }
    if (v.t != V_STR && !val_is_number(v))
        raise_error(r, "TypeError", "unsupported format string passed to %s.__format__", val_type(v));
    parse_spec(r, spec_text, &f);
    if (v.t == V_STR) {
        if (f.type && f.type != 's')
            raise_error(r, "ValueError", "Unknown format code '%c' for object of type 'str'", f.type);
        if (f.align == '=' && !f.zero)
            raise_error(r, "ValueError", "'=' alignment not allowed in string format specifier");
        if (f.align == '=')
            f.align = '<';
        out_padded(r, v.s, &f, trusted);
        return;
    }
    if (val_is_int(v) && f.type == 'c') {
        out_char(r, v.t == V_INT && v.i >= 0 && v.i < 0x110000 ? (uint32_t)v.i : 0xfffd, false);
        return;
    }
    if (val_is_int(v) && (!f.type || f.type == 'n'))
        f.type = 'd';
    else if (v.t == V_FLOAT && !f.type && f.precision >= 0)
        f.type = 'g';
    if (v.t == V_FLOAT && f.type && !strchr("eEfFgG%n", f.type))
        raise_error(r, "ValueError", "Unknown format code '%c' for object of type 'float'", f.type);
    if (val_is_int(v) && f.precision >= 0 && strchr("dbouxX", f.type))
        raise_error(r, "ValueError", "Precision not allowed in integer format specifier");
    if (!f.type || strchr("dbouxXeEfFgGn%", f.type)) {
        if (!f.align)
            f.align = '>';
        out_number(r, val_is_int(v) && f.type && strchr("eEfFgG%", f.type) ? v_float(val_double(r, v)) : v, &f, trusted);
        return;
    }
    raise_error(r, "ValueError", "Unknown format code '%c' for object of type '%s'", f.type, val_type(v));
}

static bool all_digits(const struct str *s)
{
    for (uint32_t i = 0; i < s->len; i++)
        if (s->text[i] < '0' || s->text[i] > '9')
            return false;
    return s->len > 0;
}

/* "name.attr[key]…": looked up as the sandbox does. */
static struct val format_field(struct rt *r, struct str *field, struct braces *b)
{
    size_t at = 0, from;
    struct str *first;
    struct val v = v_missing();
    int64_t index = -1;

    while (at < field->len && field->text[at] != '.' && field->text[at] != '[')
        at++;
    first = str_sub(r, field, 0, at);
    if (first->len == 0 || all_digits(first)) {
        bool manual = first->len > 0;
        size_t digit = 0;

        if ((manual && b->automatic > 0) || (!manual && b->manual))
            raise_error(r, "ValueError", "cannot switch from manual field specification to automatic field numbering");
        b->manual = manual;
        if (manual)
            cut_number(r, first, &digit, &index);
        else
            index = b->automatic++;
        if (index >= b->a->n)
            raise_error(r, "IndexError", "Replacement index %lld out of range for positional args tuple", (long long)index);
        v = b->a->pos[index];
    } else {
        for (uint32_t i = 0; i < b->a->n_named; i++)
            if (str_equal(b->a->names[i], first))
                v = b->a->named[i];
        if (v.t == V_MISSING)
            raise_error(r, "KeyError", "'%.*s'", (int)first->len, first->text);
    }
    while (at < field->len) {
        bool item = field->text[at] == '[';
        struct str *key;

        from = ++at;
        while (at < field->len && (item ? field->text[at] != ']' : field->text[at] != '.' && field->text[at] != '['))
            at++;
        if (item && at >= field->len)
            raise_error(r, "ValueError", "expected '}' before end of string");
        key = str_sub(r, field, from, at);
        if (key->len == 0)
            raise_error(r, "ValueError", "Empty attribute in format string");
        if (item) {
            size_t digit = 0;

            at++;
            if (all_digits(key))
                cut_number(r, key, &digit, &index);
            v = val_item(r, v, all_digits(key) ? v_int(index) : v_str(key));
        } else {
            v = val_attr(r, v, key);
        }
    }
    return v;
}

static void braces_text(struct rt *r, struct str *s, struct braces *b, int level);

/* One field behind its '{'; the cursor ends behind its '}'. */
static void braces_field(struct rt *r, struct str *s, size_t *at, struct braces *b, int level)
{
    size_t from = *at, end, depth = 1, stop;
    char conversion = '\0';
    struct str *spec;
    struct val v;
    struct mark m;

    for (end = from; end < s->len; end++) {
        if (s->text[end] == '[' && depth == 1) {
            while (end < s->len && s->text[end] != ']')
                end++;
            continue;
        }
        depth += (s->text[end] == '{') - (size_t)(s->text[end] == '}');
        if (depth == 0)
            break;
    }
    if (end >= s->len)
        raise_error(r, "ValueError", from >= s->len ? "Single '{' encountered in format string" : "expected '}' before end of string");
    *at = end + 1;
    for (stop = from; stop < end && s->text[stop] != ':' && s->text[stop] != '!'; stop++)
        if (s->text[stop] == '[')
            while (stop < end && s->text[stop] != ']')
                stop++;
    v = format_field(r, str_sub(r, s, from, stop), b);
    if (stop < end && s->text[stop] == '!') {
        if (stop + 1 >= end || (stop + 2 < end && s->text[stop + 2] != ':'))
            raise_error(r, "ValueError", "expected ':' after conversion specifier");
        conversion = s->text[stop + 1];
        stop += 2;
    }
    m = out_mark(r);
    if (stop < end)
        braces_text(r, str_sub(r, s, stop + 1, end), b, level + 1);
    spec = out_take(r, m);
    if (conversion == 'r' || conversion == 'a')
        v = v_str(val_repr(r, v));
    else if (conversion == 's')
        v = v_str(str_plain(r, val_str(r, v)));
    else if (conversion)
        raise_error(r, "ValueError", "Unknown conversion specifier %c", conversion);
    if (!s->markup || level > 0 || (v.t == V_STR && v.s->markup)) {
        format_value(r, v, spec);
        return;
    }
    m = out_mark(r);
    format_value(r, v, spec);
    out_escaped(r, out_take(r, m));
}

static void braces_text(struct rt *r, struct str *s, struct braces *b, int level)
{
    size_t at = 0;

    if (level > 1)
        raise_error(r, "ValueError", "Max string recursion exceeded");
    while (at < s->len) {
        size_t from = at;

        while (at < s->len && s->text[at] != '{' && s->text[at] != '}')
            at++;
        out_sub(r, s, from, at);
        if (at >= s->len)
            break;
        if (at + 1 < s->len && s->text[at + 1] == s->text[at] && level == 0) {
            out_sub(r, s, at, at + 1);
            at += 2;
            continue;
        }
        if (s->text[at++] == '}')
            raise_error(r, "ValueError", "Single '}' encountered in format string");
        braces_field(r, s, &at, b, level);
        step(r, 1);
    }
}

struct val format_braces(struct rt *r, struct str *fmt, const struct args *a)
{
    struct braces b = { a, 0, false };
    struct mark m = out_mark(r);
    struct str *s;

    braces_text(r, fmt, &b, 0);
    s = out_take(r, m);
    s->markup = fmt->markup;
    return v_str(s);
}
