/* From Oniguruma's expressions to PCRE2's. A recursive descent over the expression that writes as it reads; only classes are
 * collected first, for PCRE2 has no classes within classes: what it can not say inside one pair of brackets becomes a group of
 * alternatives, an intersection a lookahead, a complement a negative lookahead. All of these match exactly one character, so that a quantifier
 * behind them means the same.
 */
#include "loaders/tok/regex.h"

#include "base/buf.h"
#include "base/err.h"
#include "base/utf8.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { MAX_DEPTH = 64, MAX_REPEAT = 65535, MAX_OUT = 1 << 20, NAME = 64 };

/* The insides of classes. PCRE2's own \s has U+180E, its \w and \b are not those of UTS 18, and \h is another thing. */
#define SPACE "\\x{9}-\\x{d}\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define NOT_SPACE                                                                                                      \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}"           \
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"
#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
/* Outside a class their table of Latin-1 counts, in which superscripts and fractions are of words. */
#define WORD_ALONE WORD "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"
/* What got the property in Unicode 15 and 16; an older PCRE2 has that of 14. */
#define ALPHABETIC "\\p{Alphabetic}\\x{363}-\\x{36f}\\x{c04}\\x{f82}\\x{f83}\\x{1dd3}-\\x{1de6}\\x{11080}\\x{11081}"
#define LOWERCASE "\\p{Lowercase}\\x{10fc}\\x{a7f2}-\\x{a7f4}\\x{ab69}"
#define HEX "0-9A-Fa-f"
#define NOT_HEX "\\x{0}-\\x{2f}\\x{3a}-\\x{40}\\x{47}-\\x{60}\\x{67}-\\x{10ffff}"

struct rewrite {
    const char *text;
    size_t len, at;
    struct buf out;
    unsigned depth;
    struct err *err;
};

__attribute__((format(printf, 3, 4)))
static int refuse(struct rewrite *r, int code, const char *fmt, ...)
{
    char text[ERR_TEXT];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return err_set(r->err, code, "regular expression \"%.*s\"%s: byte %zu: %s", (int)(r->len < 200 ? r->len : 200), r->text,
                   r->len < 200 ? "" : "…", r->at, text);
}

static bool looking_at(const struct rewrite *r, const char *s)
{
    size_t n = strlen(s);

    return r->len - r->at >= n && memcmp(r->text + r->at, s, n) == 0;
}

static bool take(struct rewrite *r, const char *s)
{
    if (!looking_at(r, s))
        return false;
    r->at += strlen(s);
    return true;
}

static int peek(const struct rewrite *r)
{
    return r->at < r->len ? (unsigned char)r->text[r->at] : -1;
}

static int take_character(struct rewrite *r, uint32_t *ret)
{
    int n = utf8_decode(r->text + r->at, r->len - r->at, ret);

    if (n <= 0)
        return refuse(r, -EINVAL, n == 0 ? "it ends too early" : "not UTF-8");
    r->at += (size_t)n;
    return 0;
}

/* Properties. */

static const char *const categories[] = {
    "C", "Cc", "Cf", "Cn", "Co", "Cs", "L", "LC", "Ll", "Lm", "Lo", "Lt", "Lu", "M", "Mc", "Me", "Mn", "N", "Nd", "Nl", "No",
    "P", "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "S", "Sc", "Sk", "Sm", "So", "Z", "Zl", "Zp", "Zs",
};

/* Names in small letters without spaces, hyphens and underscores, and what stands for them inside a class. */
static const struct { const char *name, *inside; } properties[] = {
    { "alnum", ALPHABETIC "\\p{Nd}" },
    { "alpha", ALPHABETIC },
    { "alphabetic", ALPHABETIC },
    { "any", "\\x{0}-\\x{10ffff}" },
    { "ascii", "\\x{0}-\\x{7f}" },
    { "blank", "\\x{9}\\p{Zs}" },
    { "casedletter", "\\p{Lu}\\p{Ll}\\p{Lt}" },
    { "cntrl", "\\p{Cc}" },
    { "connectorpunctuation", "\\p{Pc}" },
    { "control", "\\p{Cc}" },
    { "currencysymbol", "\\p{Sc}" },
    { "dashpunctuation", "\\p{Pd}" },
    { "decimalnumber", "\\p{Nd}" },
    { "digit", "\\p{Nd}" },
    { "emoji", "\\p{Emoji}" },
    { "emojipresentation", "\\p{Emoji_Presentation}" },
    { "extendedpictographic", "\\p{Extended_Pictographic}" },
    { "format", "\\p{Cf}" },
    { "ideographic", "\\p{Ideographic}" },
    { "lc", "\\p{Lu}\\p{Ll}\\p{Lt}" },
    { "letter", "\\p{L}" },
    { "lower", LOWERCASE },
    { "lowercase", LOWERCASE },
    { "lowercaseletter", "\\p{Ll}" },
    { "mark", "\\p{M}" },
    { "mathsymbol", "\\p{Sm}" },
    { "modifierletter", "\\p{Lm}" },
    { "nonspacingmark", "\\p{Mn}" },
    { "number", "\\p{N}" },
    { "otherletter", "\\p{Lo}" },
    { "punct", "\\p{P}\\p{S}" },
    { "punctuation", "\\p{P}" },
    { "separator", "\\p{Z}" },
    { "space", SPACE },
    { "spaceseparator", "\\p{Zs}" },
    { "spacingmark", "\\p{Mc}" },
    { "symbol", "\\p{S}" },
    { "titlecaseletter", "\\p{Lt}" },
    { "upper", "\\p{Uppercase}" },
    { "uppercase", "\\p{Uppercase}" },
    { "uppercaseletter", "\\p{Lu}" },
    { "whitespace", SPACE },
    { "word", WORD },
    { "xdigit", HEX },
};

/* What stands for a property inside a class; another name is a script's, which PCRE2 knows or refuses. */
static void add_property(struct buf *out, const char *name)
{
    for (size_t i = 0; i < sizeof properties / sizeof properties[0]; i++)
        if (strcmp(properties[i].name, name) == 0) {
            buf_adds(out, properties[i].inside);
            return;
        }
    for (size_t i = 0; i < sizeof categories / sizeof categories[0]; i++)
        if (strcasecmp(categories[i], name) == 0) {
            buf_printf(out, "\\p{%s}", categories[i]);
            return;
        }
    buf_printf(out, "\\p{sc:%s}", name);
}

/* "{Lu}", "{^Script}", "L" behind \p: the name in small letters, and whether it is turned round. */
static int take_property_name(struct rewrite *r, const char *close, char ret[NAME], bool *negated)
{
    size_t n = 0;

    if (take(r, "^"))
        *negated = !*negated;
    while (!take(r, close)) {
        int c = peek(r);

        if (c < 0 || n + 1 >= NAME)
            return refuse(r, -EINVAL, "a property without an end");
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == ' '))
            return refuse(r, -ENOTSUP, "a property with the character 0x%02x in its name", (unsigned)c);
        r->at++;
        if (c != '_' && c != '-' && c != ' ')
            ret[n++] = (char)(c >= 'A' && c <= 'Z' ? c + 32 : c);
    }
    ret[n] = '\0';
    return n ? 0 : refuse(r, -EINVAL, "a property without a name");
}

/* Escapes. */

/* What an escape stands for: one character, or a class. */
struct escape {
    bool is_class, negated;
    uint32_t c;
    char inside[512];           /* of a class, already turned round unless `negated` says that it still has to be */
};

static int hex_value(int c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static int take_hex(struct rewrite *r, unsigned min, unsigned max, uint32_t *ret)
{
    unsigned n = 0;

    for (*ret = 0; n < max && hex_value(peek(r)) >= 0; n++, r->at++)
        *ret = *ret << 4 | (uint32_t)hex_value(peek(r));
    if (n < min || *ret > 0x10FFFF || (*ret >= 0xD800 && *ret <= 0xDFFF))
        return refuse(r, -EINVAL, "a bad hexadecimal number");
    return 0;
}

static int take_code_point(struct rewrite *r, int kind, uint32_t *ret)
{
    int e;

    if (kind == 'u')
        return take_hex(r, 4, 4, ret);
    if (take(r, "{")) {
        if ((e = take_hex(r, 1, 8, ret)) < 0)
            return e;
        return take(r, "}") ? 0 : refuse(r, -EINVAL, "\\x{ without }");
    }
    if ((e = take_hex(r, 1, 2, ret)) < 0)
        return e;
    return *ret < 0x80 ? 0 : refuse(r, -ENOTSUP, "\\x%02X, a byte of a character", *ret);
}

static void set_class(struct escape *e, const char *inside)
{
    e->is_class = true;
    snprintf(e->inside, sizeof e->inside, "%s", inside);
}

static int take_property(struct rewrite *r, bool negated, struct escape *ret)
{
    BUF_LOCAL inside = BUF_INIT;
    char name[NAME];
    int e;

    if (!take(r, "{"))
        return refuse(r, -EINVAL, "\\p without {");
    if ((e = take_property_name(r, "}", name, &negated)) < 0)
        return e;
    add_property(&inside, name);
    if (inside.failed)
        return -ENOMEM;
    set_class(ret, buf_str(&inside));
    /* One \p is turned round by \P, which may stand in a class; a longer list may not. */
    if (negated && strncmp(ret->inside, "\\p{", 3) == 0 && !strchr(ret->inside + 3, '\\') && ret->inside[strlen(ret->inside) - 1] == '}')
        ret->inside[1] = 'P';
    else
        ret->negated = negated;
    return 0;
}

/* Behind the backslash, what means the same inside and outside a class. PATTERN_END: it is none of these, nothing is taken. */
static int take_escape(struct rewrite *r, struct escape *ret)
{
    static const char plain[] = "t\tn\nr\rf\fv\va\ae\033";
    int c = peek(r);
    const char *p;

    *ret = (struct escape){ 0 };
    if (c < 0)
        return refuse(r, -EINVAL, "a backslash at the end");
    if (c >= 0x80 || !((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')))
        return take_character(r, &ret->c);
    r->at++;
    for (p = plain; *p; p += 2)
        if (*p == c) {
            ret->c = (uint32_t)p[1];
            return 0;
        }
    switch (c) {
    case 'd': set_class(ret, "\\p{Nd}"); return 0;
    case 'D': set_class(ret, "\\P{Nd}"); return 0;
    case 's': set_class(ret, SPACE); return 0;
    case 'S': set_class(ret, NOT_SPACE); return 0;
    case 'w': set_class(ret, WORD); return 0;
    case 'W': set_class(ret, WORD); ret->negated = true; return 0;
    case 'h': set_class(ret, HEX); return 0;
    case 'H': set_class(ret, NOT_HEX); return 0;
    case 'p': return take_property(r, false, ret);
    case 'P': return take_property(r, true, ret);
    case 'x': case 'u': return take_code_point(r, c, &ret->c);
    case '0':
        if (peek(r) >= '0' && peek(r) <= '9')
            return refuse(r, -ENOTSUP, "an octal number");
        return 0;
    }
    r->at--;
    return PATTERN_END;
}

/* Classes. */

/* One side of &&: what PCRE2 can have inside brackets, and what must be an alternative beside them. */
struct operand {
    struct buf inside, beside;      /* beside: "|x|y" */
};

struct class_result {
    bool simple;                    /* text is the inside of brackets */
    struct buf text;
};

static void operand_fini(struct operand *o)
{
    buf_fini(&o->inside);
    buf_fini(&o->beside);
}

static void class_result_fini(struct class_result *c)
{
    buf_fini(&c->text);
}

static void add_code_point(struct buf *out, uint32_t c)
{
    buf_printf(out, "\\x{%x}", c);
}

static void operand_add_escape(struct operand *o, const struct escape *e)
{
    if (e->negated)
        buf_printf(&o->beside, "|[^%s]", e->inside);
    else
        buf_adds(&o->inside, e->inside);
}

/* The operand as an expression for one character. */
static void add_operand(struct buf *out, const struct operand *o)
{
    if (!o->beside.len)
        buf_printf(out, "[%s]", buf_str(&o->inside));
    else if (!o->inside.len)
        buf_printf(out, "(?:%s)", buf_str(&o->beside) + 1);
    else
        buf_printf(out, "(?:[%s]%s)", buf_str(&o->inside), buf_str(&o->beside));
}

static int take_class(struct rewrite *r, struct class_result *ret);

static int take_nested(struct rewrite *r, struct operand *o)
{
    __attribute__((cleanup(class_result_fini))) struct class_result nested = { 0 };
    int e = take_class(r, &nested);

    if (e < 0)
        return e;
    if (nested.simple)
        buf_add(&o->inside, nested.text.data, nested.text.len);
    else
        buf_printf(&o->beside, "|%s", buf_str(&nested.text));
    return 0;
}

static int take_posix(struct rewrite *r, struct operand *o)
{
    struct escape esc = { .is_class = true };
    BUF_LOCAL inside = BUF_INIT;
    char name[NAME];
    int e = take_property_name(r, ":]", name, &esc.negated);

    if (e < 0)
        return e;
    add_property(&inside, name);
    set_class(&esc, buf_str(&inside));
    operand_add_escape(o, &esc);
    return inside.failed ? -ENOMEM : 0;
}

/* A character of a class, or a class by escape. */
static int take_member(struct rewrite *r, struct escape *ret)
{
    int e;

    *ret = (struct escape){ 0 };
    if (!take(r, "\\"))
        return take_character(r, &ret->c);
    e = take_escape(r, ret);
    if (e == PATTERN_END && peek(r) == 'b') {
        r->at++;
        ret->c = 8;
        return 0;
    }
    return e == PATTERN_END ? refuse(r, -ENOTSUP, "\\%c in a class", peek(r)) : e;
}

static int take_range(struct rewrite *r, struct operand *o)
{
    struct escape from, to;
    size_t back;
    int e = take_member(r, &from);

    if (e < 0)
        return e;
    if (from.is_class) {
        operand_add_escape(o, &from);
        return 0;
    }
    back = r->at;
    if (!looking_at(r, "-]") && !looking_at(r, "-&&") && !looking_at(r, "-[") && take(r, "-")) {
        if ((e = take_member(r, &to)) < 0)
            return e;
        if (!to.is_class) {
            if (to.c < from.c)
                return refuse(r, -EINVAL, "a range that ends before it begins");
            add_code_point(&o->inside, from.c);
            buf_addc(&o->inside, '-');
            add_code_point(&o->inside, to.c);
            return 0;
        }
        r->at = back;               /* [a-\d]: the hyphen is one */
    }
    add_code_point(&o->inside, from.c);
    return 0;
}

/* Up to && or ], which is left. */
static int take_operand(struct rewrite *r, bool first, struct operand *o)
{
    for (; !looking_at(r, "]") || first; first = false) {
        int e;

        if (peek(r) < 0)
            return refuse(r, -EINVAL, "a class without its ]");
        if (looking_at(r, "&&"))
            break;
        if (take(r, "[:"))
            e = take_posix(r, o);
        else if (take(r, "["))
            e = take_nested(r, o);
        else
            e = take_range(r, o);
        if (e < 0)
            return e;
    }
    if (!o->inside.len && !o->beside.len)
        return refuse(r, -ENOTSUP, "an empty class");
    return o->inside.failed || o->beside.failed ? -ENOMEM : 0;
}

static int take_operands(struct rewrite *r, bool negated, struct class_result *ret)
{
    bool first = true;

    for (;;) {
        __attribute__((cleanup(operand_fini))) struct operand o = { 0 };
        int e = take_operand(r, first, &o);
        bool last;

        if (e < 0)
            return e;
        last = !take(r, "&&");
        if (first && last && !o.beside.len) {
            ret->simple = !negated;
            buf_printf(&ret->text, negated ? "[^%s]" : "%s", buf_str(&o.inside));
            return 0;
        }
        if (first)
            buf_adds(&ret->text, negated ? "(?:(?!" : "(?:");
        if (!last)
            buf_adds(&ret->text, "(?=");
        add_operand(&ret->text, &o);
        if (!last)
            buf_addc(&ret->text, ')');
        first = false;
        if (last)
            break;
    }
    buf_adds(&ret->text, negated ? ")(?s:.))" : ")");
    return 0;
}

/* Behind the bracket. */
static int take_class(struct rewrite *r, struct class_result *ret)
{
    bool negated = take(r, "^");
    int e;

    if (++r->depth > MAX_DEPTH)
        return refuse(r, -E2BIG, "nested too deeply");
    if ((e = take_operands(r, negated, ret)) < 0)
        return e;
    r->depth--;
    if (!take(r, "]"))
        return refuse(r, -EINVAL, "a class without its ]");
    return ret->text.failed ? -ENOMEM : 0;
}

/* Outside classes. */

static int rewrite_alternatives(struct rewrite *r);

static int rewrite_class(struct rewrite *r)
{
    __attribute__((cleanup(class_result_fini))) struct class_result c = { 0 };
    int e = take_class(r, &c);

    if (e < 0)
        return e;
    buf_printf(&r->out, c.simple ? "[%s]" : "%s", buf_str(&c.text));
    return 0;
}

static int rewrite_reference(struct rewrite *r, char kind)
{
    buf_printf(&r->out, "\\%c<", kind);
    for (int c; (c = peek(r)) != '>'; r->at++) {
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'))
            return refuse(r, -ENOTSUP, "this reference");
        buf_addc(&r->out, (char)c);
    }
    r->at++;
    buf_addc(&r->out, '>');
    return 0;
}

static int rewrite_escape(struct rewrite *r)
{
    struct escape esc;
    int e, c;

    if (take(r, "w") || take(r, "W")) {
        buf_printf(&r->out, r->text[r->at - 1] == 'w' ? "[%s]" : "[^%s]", WORD_ALONE);
        return 0;
    }
    if ((e = take_escape(r, &esc)) < 0)
        return e;
    if (e == 0) {
        if (esc.is_class)
            buf_printf(&r->out, esc.negated ? "[^%s]" : "[%s]", esc.inside);
        else
            add_code_point(&r->out, esc.c);
        return 0;
    }
    c = r->text[r->at++];
    switch (c) {
    case 'b': buf_adds(&r->out, "(?:(?<=[" WORD_ALONE "])(?![" WORD_ALONE "])|(?<![" WORD_ALONE "])(?=[" WORD_ALONE "]))"); return 0;
    case 'B': buf_adds(&r->out, "(?:(?<=[" WORD_ALONE "])(?=[" WORD_ALONE "])|(?<![" WORD_ALONE "])(?![" WORD_ALONE "]))"); return 0;
    case 'R': buf_adds(&r->out, "(?>\\r\\n|[\\x{a}-\\x{d}\\x{85}\\x{2028}\\x{2029}])"); return 0;
    case 'A': case 'G': case 'Z': case 'z': buf_printf(&r->out, "\\%c", c); return 0;
    case 'k': case 'g':
        if (take(r, "<"))
            return rewrite_reference(r, (char)c);
        break;
    }
    if (c >= '1' && c <= '9' && !(peek(r) >= '0' && peek(r) <= '9')) {
        buf_printf(&r->out, "(?:\\%c)", c);
        return 0;
    }
    r->at--;
    return refuse(r, -ENOTSUP, "\\%c", c);
}

/* "i", "m-i" …: Oniguruma's m is what PCRE2 calls s. */
static int rewrite_options(struct rewrite *r)
{
    for (int c; (c = peek(r)) != ':' && c != ')'; r->at++) {
        if (c != 'i' && c != 'm' && c != '-')
            return c < 0 ? refuse(r, -EINVAL, "a group without its )") : refuse(r, -ENOTSUP, "(?%c", c);
        buf_addc(&r->out, (char)(c == 'm' ? 's' : c));
    }
    return 0;
}

static int rewrite_name(struct rewrite *r)
{
    buf_adds(&r->out, "(?<");
    for (int c; (c = peek(r)) != '>'; r->at++) {
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'))
            return refuse(r, -ENOTSUP, "this name of a group");
        buf_addc(&r->out, (char)c);
    }
    r->at++;
    buf_addc(&r->out, '>');
    return 0;
}

/* Behind the parenthesis. *open: the group goes on to the end of the one around it: a(?i)b|c is a(?i:b|c). */
static int rewrite_group_head(struct rewrite *r, bool *open)
{
    static const char *const heads[] = { "?:", "?=", "?!", "?>", "?<=", "?<!" };
    int e;

    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++)
        if (take(r, heads[i])) {
            buf_printf(&r->out, "(%s", heads[i]);
            return 0;
        }
    if (take(r, "?<"))
        return rewrite_name(r);
    if (!take(r, "?")) {
        if (peek(r) == '*')
            return refuse(r, -ENOTSUP, "(*");
        buf_addc(&r->out, '(');
        return 0;
    }
    buf_adds(&r->out, "(?");
    if ((e = rewrite_options(r)) < 0)
        return e;
    *open = take(r, ")");
    if (!*open)
        r->at++;
    buf_addc(&r->out, ':');
    return 0;
}

/* *open: as above; there is nothing to repeat then. */
static int rewrite_group(struct rewrite *r, bool *open)
{
    int e;

    if (++r->depth > MAX_DEPTH)
        return refuse(r, -E2BIG, "nested too deeply");
    if ((e = rewrite_group_head(r, open)) < 0 || (e = rewrite_alternatives(r)) < 0)
        return e;
    r->depth--;
    if (!*open && !take(r, ")"))
        return refuse(r, -EINVAL, "a group without its )");
    buf_addc(&r->out, ')');
    return 0;
}

static int skip_comment(struct rewrite *r)
{
    const char *end = memchr(r->text + r->at, ')', r->len - r->at);

    if (!end)
        return refuse(r, -EINVAL, "a comment without its )");
    r->at = (size_t)(end - r->text) + 1;
    return 0;
}

static int rewrite_atom(struct rewrite *r, bool *nothing)
{
    uint32_t c;
    int e;

    if (take(r, "\\"))
        return rewrite_escape(r);
    if (take(r, "["))
        return rewrite_class(r);
    if (take(r, "(?#")) {
        *nothing = true;
        return skip_comment(r);
    }
    if (take(r, "("))
        return rewrite_group(r, nothing);
    if ((e = take_character(r, &c)) < 0)
        return e;
    if (c == '*' || c == '+' || c == '?')
        return refuse(r, -EINVAL, "nothing to repeat");
    if (c == '.' || c == '^' || c == '$')
        buf_addc(&r->out, (char)c);
    else if (c < 0x80 && !((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')))
        add_code_point(&r->out, c);
    else
        buf_add(&r->out, r->text + r->at - (c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4), c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4);
    return 0;
}

static int take_count(struct rewrite *r, unsigned *ret)
{
    unsigned n = 0;

    for (*ret = 0; peek(r) >= '0' && peek(r) <= '9'; n++, r->at++)
        if ((*ret = *ret * 10 + (unsigned)(peek(r) - '0')) > MAX_REPEAT)
            return refuse(r, -E2BIG, "more than %d repetitions", MAX_REPEAT);
    return n ? 0 : PATTERN_END;
}

/* {2}, {2,}, {,3}, {2,3}: PATTERN_END: it is none, but characters, and nothing is taken. */
static int take_interval(struct rewrite *r, char ret[32])
{
    size_t back = r->at;
    unsigned from, to = 0;
    int no_from, no_to = PATTERN_END;
    bool comma;

    if (!take(r, "{"))
        return PATTERN_END;
    if ((no_from = take_count(r, &from)) < 0)
        return no_from;
    comma = take(r, ",");
    if (comma && (no_to = take_count(r, &to)) < 0)
        return no_to;
    if (!take(r, "}") || (no_from && no_to)) {
        r->at = back;
        return PATTERN_END;
    }
    if (!no_to && to < from)
        return refuse(r, -ENOTSUP, "a repetition that ends before it begins");
    if (!comma)
        snprintf(ret, 32, "{%u}", from);
    else if (no_to)
        snprintf(ret, 32, "{%u,}", from);
    else
        snprintf(ret, 32, "{%u,%u}", from, to);
    return 0;
}

/* The quantifier here and what it becomes; PATTERN_END: there is none. A + behind an interval is another quantifier, as is a ? behind a
 * fixed one. */
static int take_quantifier(struct rewrite *r, char ret[32])
{
    int e, c = peek(r);

    if (c == '*' || c == '+' || c == '?') {
        r->at++;
        snprintf(ret, 32, "%c%s", c, take(r, "?") ? "?" : take(r, "+") ? "+" : "");
        return 0;
    }
    if ((e = take_interval(r, ret)) != 0)
        return e;
    if (strchr(ret, ',') && take(r, "?"))
        strcat(ret, "?");
    return 0;
}

static void wrap(struct buf *out, size_t from)
{
    BUF_LOCAL atom = BUF_INIT;

    buf_add(&atom, out->data + from, out->len - from);
    if (atom.failed) {
        out->failed = true;
        return;
    }
    out->len = from;
    buf_printf(out, "(?:%s)", buf_str(&atom));
}

static int rewrite_piece(struct rewrite *r)
{
    size_t from = r->out.len;
    bool nothing = false;
    char quantifier[32];
    int e = rewrite_atom(r, &nothing), n = 0;

    if (e < 0 || nothing)
        return e;
    for (; (e = take_quantifier(r, quantifier)) == 0; n++) {
        if (r->out.failed || r->out.len > MAX_OUT)
            return refuse(r, -E2BIG, "too long");
        if (n)
            wrap(&r->out, from);
        buf_adds(&r->out, quantifier);
    }
    return e == PATTERN_END ? 0 : e;
}

/* Up to a ) or the end. */
static int rewrite_alternatives(struct rewrite *r)
{
    while (r->at < r->len && peek(r) != ')') {
        int e = 0;

        if (take(r, "|"))
            buf_addc(&r->out, '|');
        else
            e = rewrite_piece(r);
        if (e < 0)
            return e;
    }
    return 0;
}

int regex_rewrite(const char *text, size_t len, char **ret, struct err *err)
{
    struct rewrite r = { .text = text, .len = len, .out = { .limit = 2 * MAX_OUT }, .err = err };
    int e;

    if (len > PATTERN_MAX)
        return err_set(err, -E2BIG, "a regular expression of %zu bytes, at most %d are allowed", len, PATTERN_MAX);
    e = rewrite_alternatives(&r);
    if (e == 0 && r.at < r.len)
        e = refuse(&r, -EINVAL, "a ) without its (");
    if (e == 0 && r.out.failed)
        e = refuse(&r, -E2BIG, "too long");
    if (e == 0 && !r.out.len)
        buf_adds(&r.out, "(?:)");
    if (e == 0 && !(*ret = buf_take(&r.out)))
        e = err_set(err, -ENOMEM, "no memory for a regular expression");
    buf_fini(&r.out);
    return e;
}
