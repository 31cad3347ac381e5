/* Text to tokens, with jinja2's rules about white space around tags: trim_blocks (a line feed behind a
 * block or comment tag goes), lstrip_blocks (so does what stands before it on its line), - and +.
 */
#include "conv/jinja/tree.h"

#include "base/unicode.h"
#include "base/utf8.h"

#include <errno.h>
#include <stdlib.h>

void lex_init(struct lexer *x, struct rt *r, const char *s, size_t len)
{
    *x = (struct lexer){ .r = r, .s = s, .len = len, .state = IN_TEXT, .line_starting = true };
}

static bool at_text(const struct lexer *x, size_t at, const char *text)
{
    size_t n = strlen(text);

    return x->len - at >= n && memcmp(x->s + at, text, n) == 0;
}

static size_t skip_space(const struct lexer *x, size_t at)
{
    while (at < x->len) {
        size_t next = at;

        if (!str_is_space(utf8_next(x->s, x->len, &next)))
            break;
        at = next;
    }
    return at;
}

static size_t before_space(const struct lexer *x, size_t from, size_t end)
{
    while (end > from) {
        size_t at = end;

        if (!str_is_space(utf8_before(x->s, &at)))
            break;
        end = at;
    }
    return end;
}

/* Where a line begins in [from, end) that ends in white space only, or `end`. */
static size_t before_indent(const struct lexer *x, size_t from, size_t end)
{
    size_t line = end;

    while (line > from && x->s[line - 1] != '\n')
        line--;
    if (line == from && !x->line_starting)
        return end;
    return before_space(x, line, end) == line ? line : end;
}

/* {%- raw -%}: 0, or where its content starts. */
static size_t raw_begin(const struct lexer *x, size_t at)
{
    at += 2;
    if (at < x->len && (x->s[at] == '-' || x->s[at] == '+'))
        at++;
    at = skip_space(x, at);
    if (!at_text(x, at, "raw"))
        return 0;
    at = skip_space(x, at + 3);
    if (at_text(x, at, "-%}"))
        return skip_space(x, at + 3);
    return at_text(x, at, "%}") ? at + 2 : 0;
}

/* {%- endraw -%}: 0, or where what follows starts. */
static size_t raw_end(const struct lexer *x, size_t at)
{
    at += 2;
    if (at < x->len && (x->s[at] == '-' || x->s[at] == '+'))
        at++;
    at = skip_space(x, at);
    if (!at_text(x, at, "endraw"))
        return 0;
    at = skip_space(x, at + 6);
    if (at_text(x, at, "+%}"))
        return at + 3;
    if (at_text(x, at, "-%}"))
        return skip_space(x, at + 3);
    if (!at_text(x, at, "%}"))
        return 0;
    return at + 2 < x->len && x->s[at + 2] == '\n' ? at + 3 : at + 2;
}

static void ended_at(struct lexer *x, size_t at)
{
    x->at = at;
    x->line_starting = at > 0 && x->s[at - 1] == '\n';
}

/* The end of text before a tag at `tag`, by its sign and kind. */
static size_t text_end(const struct lexer *x, size_t from, size_t tag, bool variable)
{
    char sign = tag + 2 < x->len ? x->s[tag + 2] : '\0';

    if (sign == '-')
        return before_space(x, from, tag);
    return sign == '+' || variable ? tag : before_indent(x, from, tag);
}

static struct tok data_token(struct lexer *x, size_t from, size_t to)
{
    struct tok t = { T_DATA, (uint32_t)from, (uint32_t)(to - from), v_none() };

    t.v = v_str(str_view(x->r, x->s + from, to - from, true));
    return t;
}

/* A raw block from its tag; false: it is empty. */
static bool lex_raw(struct lexer *x, size_t tag, size_t content, struct tok *ret)
{
    size_t end = content, next = 0, stop;

    ended_at(x, content);
    for (; end < x->len; end++)
        if (x->s[end] == '{' && at_text(x, end, "{%") && (next = raw_end(x, end)) != 0)
            break;
    if (content == x->len)              /* as jinja2 has it: nothing was opened */
        return false;
    if (!next)
        syntax_error(x->r, (uint32_t)tag, "Missing end of raw directive");
    stop = text_end(x, content, end, false);
    *ret = data_token(x, content, stop);
    ended_at(x, next);
    return stop > content;
}

static void skip_comment(struct lexer *x, size_t tag)
{
    size_t at = tag + 2, end;

    if (at < x->len && (x->s[at] == '-' || x->s[at] == '+'))
        at++;
    for (end = at; end < x->len; end++) {
        if (x->s[end] == '-' && at_text(x, end, "-#}")) {
            ended_at(x, skip_space(x, end + 3));
            return;
        }
        if (x->s[end] == '+' && at_text(x, end, "+#}")) {
            ended_at(x, end + 3);
            return;
        }
        if (x->s[end] == '#' && at_text(x, end, "#}")) {
            ended_at(x, end + 2 < x->len && x->s[end + 2] == '\n' ? end + 3 : end + 2);
            return;
        }
    }
    syntax_error(x->r, (uint32_t)tag, "Missing end of comment tag");
}

/* Text up to a tag, and the tag. */
static struct tok lex_text(struct lexer *x)
{
    for (;;) {
        size_t from = x->at, tag = from, end, content;
        struct tok t, raw;
        bool has_raw = false;

        while (tag < x->len) {
            const char *brace = memchr(x->s + tag, '{', x->len - tag);

            tag = brace ? (size_t)(brace - x->s) : x->len;
            if (tag + 1 < x->len && (x->s[tag + 1] == '{' || x->s[tag + 1] == '%' || x->s[tag + 1] == '#'))
                break;
            tag = tag < x->len ? tag + 1 : x->len;
        }
        if (tag >= x->len) {
            x->at = x->len;
            return from < x->len ? data_token(x, from, x->len) : (struct tok){ T_EOF, (uint32_t)x->len, 0, v_none() };
        }
        end = text_end(x, from, tag, x->s[tag + 1] == '{');
        t = data_token(x, from, end);
        if (x->s[tag + 1] == '#') {
            skip_comment(x, tag);
        } else if (x->s[tag + 1] == '%' && (content = raw_begin(x, tag)) != 0) {
            has_raw = lex_raw(x, tag, content, &raw);
        } else {
            bool variable = x->s[tag + 1] == '{';
            size_t at = tag + 2;

            if (at < x->len && (x->s[at] == '-' || x->s[at] == '+'))
                at++;
            ended_at(x, at);
            x->state = variable ? IN_VAR : IN_BLOCK;
            x->n_brackets = 0;
            x->pending = (struct tok){ variable ? T_VAR_BEGIN : T_BLOCK_BEGIN, (uint32_t)tag, (uint32_t)(at - tag), v_none() };
            x->has_pending = true;
        }
        if (has_raw && end > from) {
            x->pending = raw;
            x->has_pending = true;
        } else if (has_raw) {
            return raw;
        }
        if (end > from)
            return t;
        if (x->has_pending) {
            x->has_pending = false;
            return x->pending;
        }
    }
}

/* Literals */

static int hex_value(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static uint32_t hex_escape(struct lexer *x, uint32_t pos, const char *p, const char *end, int digits, const char *name)
{
    uint32_t c = 0;

    for (int i = 0; i < digits; i++) {
        if (p + i >= end || hex_value(p[i]) < 0)
            syntax_error(x->r, pos, "truncated %s escape", name);
        c = c << 4 | (uint32_t)hex_value(p[i]);
    }
    if (c > 0x10ffff)
        syntax_error(x->r, pos, "illegal Unicode character");
    return c;
}

/* One escape behind its backslash; Python's, in a text whose other characters were made \x, \u and \U first. */
static const char *unescape(struct lexer *x, uint32_t pos, const char *p, const char *end)
{
    static const char plain[] = "\\'\"abfnrtv", value[] = "\\'\"\a\b\f\n\r\t\v";
    const char *known = *p ? strchr(plain, *p) : NULL;
    struct rt *r = x->r;
    size_t at = 0;
    uint32_t c;

    if (known) {
        out_add(r, &value[known - plain], 1, true);
        return p + 1;
    }
    if (*p == '\n')
        return p + 1;
    if (*p == 'x' || *p == 'u' || *p == 'U') {
        int n = *p == 'x' ? 2 : *p == 'u' ? 4 : 8;

        out_char(r, hex_escape(x, pos, p + 1, end, n, n == 2 ? "\\xXX" : n == 4 ? "\\uXXXX" : "\\UXXXXXXXX"), true);
        return p + 1 + n;
    }
    if (*p >= '0' && *p <= '7') {
        for (c = 0; at < 3 && p + at < end && p[at] >= '0' && p[at] <= '7'; at++)
            c = c << 3 | (uint32_t)(p[at] - '0');
        out_char(r, c, true);
        return p + at;
    }
    if (*p == 'N')
        syntax_error(r, pos, "\\N{...} escapes are not supported");
    out_add(r, "\\", 1, true);
    if (!((unsigned char)*p & 0x80))
        return p;
    c = utf8_next(p, (size_t)(end - p), &at);
    out_printf(r, c < 0x100 ? "x%02x" : c < 0x10000 ? "u%04x" : "U%08x", c);
    return p + at;
}

static struct tok lex_string(struct lexer *x)
{
    size_t from = x->at, end = from + 1;
    char quote = x->s[from];
    struct tok t = { T_STRING, (uint32_t)from, 0, v_none() };
    const char *p, *stop;
    struct mark m;

    while (end < x->len && x->s[end] != quote)
        end += x->s[end] == '\\' ? 2 : 1;
    if (end >= x->len)
        syntax_error(x->r, t.pos, "unexpected char %s at %zu", quote == '"' ? "'\"'" : "\"'\"", from);
    t.len = (uint32_t)(end + 1 - from);
    p = x->s + from + 1;
    stop = x->s + end;
    ended_at(x, end + 1);
    if (!memchr(p, '\\', (size_t)(stop - p))) {
        t.v = v_str(str_view(x->r, p, (size_t)(stop - p), true));
        return t;
    }
    m = out_mark(x->r);
    while (p < stop) {
        const char *back = memchr(p, '\\', (size_t)(stop - p));

        out_add(x->r, p, (size_t)((back ? back : stop) - p), true);
        p = back ? unescape(x, t.pos, back + 1, stop) : stop;
    }
    t.v = v_str(out_take(x->r, m));
    return t;
}

static bool is_digit(const struct lexer *x, size_t at) { return at < x->len && x->s[at] >= '0' && x->s[at] <= '9'; }

/* (\d+_)*\d+ */
static size_t digits(const struct lexer *x, size_t at)
{
    while (is_digit(x, at) || (at < x->len && x->s[at] == '_' && is_digit(x, at - 1) && is_digit(x, at + 1)))
        at++;
    return at;
}

static size_t float_end(const struct lexer *x)
{
    size_t at = digits(x, x->at), exponent;
    bool fraction = false;

    if (x->at > 0 && x->s[x->at - 1] == '.')
        return 0;
    if (at < x->len && x->s[at] == '.' && is_digit(x, at + 1)) {
        at = digits(x, at + 1);
        fraction = true;
    }
    if (at < x->len && (x->s[at] == 'e' || x->s[at] == 'E')) {
        exponent = at + 1;
        if (exponent < x->len && (x->s[exponent] == '+' || x->s[exponent] == '-'))
            exponent++;
        if (is_digit(x, exponent))
            return digits(x, exponent);
    }
    return fraction ? at : 0;
}

static bool digit_of(char c, int base)
{
    int v = hex_value(c);

    return v >= 0 && v < base;
}

static size_t integer_end(const struct lexer *x, int *ret_base)
{
    size_t at = x->at;
    int base = 10;
    char mark = at + 1 < x->len ? (char)(x->s[at + 1] | 0x20) : '\0';

    if (x->s[at] == '0')
        base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
    if (base != 10) {
        size_t p = at + 2, first = p + (p < x->len && x->s[p] == '_');

        if (first < x->len && digit_of(x->s[first], base)) {
            for (p = first; p < x->len; p++)
                if (!digit_of(x->s[p], base) && !(x->s[p] == '_' && p + 1 < x->len && digit_of(x->s[p + 1], base)))
                    break;
            *ret_base = base;
            return p;
        }
        base = 10;
    }
    *ret_base = base;
    if (x->s[at] != '0')
        return digits(x, at);
    at++;                               /* 0 is only followed by zeros: 007 is 00 and 7 */
    while (at < x->len && (x->s[at] == '0' || (x->s[at] == '_' && at + 1 < x->len && x->s[at + 1] == '0')))
        at++;
    return at;
}

static struct tok lex_number(struct lexer *x)
{
    struct tok t = { T_INTEGER, (uint32_t)x->at, 0, v_none() };
    size_t end = float_end(x), n = 0, from = x->at;
    int base;
    char *copy;

    if (end)
        t.t = T_FLOAT;
    else
        end = integer_end(x, &base);
    copy = mem(x->r, end - from + 1);
    for (size_t i = from; i < end; i++)
        if (x->s[i] != '_')
            copy[n++] = x->s[i];
    copy[n] = '\0';
    t.len = (uint32_t)(end - from);
    if (t.t == T_FLOAT)
        t.v = v_float(strtod(copy, NULL));
    else
        t.v = base == 10 ? int_from_text(x->r, copy, n, 10, false) : int_from_text(x->r, copy + 2, n - 2, base, false);
    ended_at(x, end);
    return t;
}

static struct tok lex_name(struct lexer *x)
{
    struct tok t = { T_NAME, (uint32_t)x->at, 0, v_none() };
    size_t at = x->at, next = at;
    bool first = true;

    while (next < x->len) {
        uint32_t c = utf8_next(x->s, x->len, &next);
        bool ascii = c < 0x80 && (c == '_' || (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'));

        if (!ascii && (c < 0x80 || !unicode_is_word(c)))
            break;
        if (!ascii && !(first ? unicode_is_identifier_start(c) : unicode_is_identifier_part(c)))
            syntax_error(x->r, t.pos, "Invalid character in identifier");
        first = false;
        at = next;
    }
    if (at == x->at) {
        next = at;
        utf8_next(x->s, x->len, &next);
        syntax_error(x->r, t.pos, "unexpected char '%.*s' at %zu", (int)(next - at), x->s + at, at);
    }
    t.len = (uint32_t)(at - x->at);
    ended_at(x, at);
    return t;
}

static void open_bracket(struct lexer *x, char closing)
{
    if (x->n_brackets == x->cap_brackets) {
        uint32_t cap = x->cap_brackets ? x->cap_brackets * 2 : 32;
        char *more = mem(x->r, cap);

        if (x->n_brackets > 0)
            memcpy(more, x->brackets, x->n_brackets);
        x->brackets = more;
        x->cap_brackets = cap;
    }
    x->brackets[x->n_brackets++] = closing;
}

/* T_EOF: there is none here. Two characters before one. */
static enum token operator_at(const struct lexer *x, uint32_t *ret_len)
{
    char next = x->at + 1 < x->len ? x->s[x->at + 1] : '\0';

    *ret_len = 2;
    switch (x->s[x->at]) {
    case '/': if (next == '/') return T_FLOORDIV; break;
    case '*': if (next == '*') return T_POW; break;
    case '=': if (next == '=') return T_EQ; break;
    case '!': return next == '=' ? T_NE : T_EOF;
    case '>': if (next == '=') return T_GE; break;
    case '<': if (next == '=') return T_LE; break;
    default: break;
    }
    *ret_len = 1;
    switch (x->s[x->at]) {
    case '+': return T_ADD;
    case '-': return T_SUB;
    case '/': return T_DIV;
    case '*': return T_MUL;
    case '%': return T_MOD;
    case '~': return T_TILDE;
    case '[': return T_LBRACKET;
    case ']': return T_RBRACKET;
    case '(': return T_LPAREN;
    case ')': return T_RPAREN;
    case '{': return T_LBRACE;
    case '}': return T_RBRACE;
    case '>': return T_GT;
    case '<': return T_LT;
    case '=': return T_ASSIGN;
    case '.': return T_DOT;
    case ':': return T_COLON;
    case '|': return T_PIPE;
    case ',': return T_COMMA;
    case ';': return T_SEMICOLON;
    default: return T_EOF;
    }
}

static struct tok lex_operator(struct lexer *x)
{
    struct tok t = { .pos = (uint32_t)x->at };
    char c = x->s[x->at];

    t.t = operator_at(x, &t.len);
    if (t.t == T_EOF)
        return t;
    if (c == '(' || c == '[' || c == '{')
        open_bracket(x, c == '(' ? ')' : c == '[' ? ']' : '}');
    if (c == ')' || c == ']' || c == '}') {
        if (x->n_brackets == 0)
            syntax_error(x->r, t.pos, "unexpected '%c'", c);
        if (x->brackets[--x->n_brackets] != c)
            syntax_error(x->r, t.pos, "unexpected '%c', expected '%c'", c, x->brackets[x->n_brackets]);
    }
    ended_at(x, x->at + t.len);
    return t;
}

/* The end of a tag at the cursor: its length with the white space that goes with it, or 0. */
static size_t tag_end(const struct lexer *x)
{
    size_t at = x->at;

    if (x->n_brackets > 0)
        return 0;
    if (x->state == IN_VAR)
        return at_text(x, at, "-}}") ? skip_space(x, at + 3) - at : at_text(x, at, "}}") ? 2 : 0;
    if (at_text(x, at, "+%}"))
        return 3;
    if (at_text(x, at, "-%}"))
        return skip_space(x, at + 3) - at;
    if (!at_text(x, at, "%}"))
        return 0;
    return at + 2 < x->len && x->s[at + 2] == '\n' ? 3 : 2;
}

struct tok lex_next(struct lexer *x)
{
    size_t n;
    struct tok t;
    char c;

    step(x->r, 1);
    if (x->has_pending) {
        x->has_pending = false;
        return x->pending;
    }
    if (x->state == IN_TEXT)
        return lex_text(x);
    n = tag_end(x);
    if (!n) {
        x->at = skip_space(x, x->at);
        n = x->at < x->len ? tag_end(x) : 0;
    }
    if (n) {
        t = (struct tok){ x->state == IN_VAR ? T_VAR_END : T_BLOCK_END, (uint32_t)x->at, 2, v_none() };
        x->state = IN_TEXT;
        ended_at(x, x->at + n);
        return t;
    }
    if (x->at >= x->len)
        return (struct tok){ T_EOF, (uint32_t)x->len, 0, v_none() };
    c = x->s[x->at];
    if (c == '\'' || c == '"')
        return lex_string(x);
    if (is_digit(x, x->at))
        return lex_number(x);
    t = lex_operator(x);
    return t.t != T_EOF ? t : lex_name(x);
}
