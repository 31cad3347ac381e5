/* A walk over the tokens of a libconfig file that knows strings and comments,
 * so that what it looks for is never found inside them. Lines stay as they
 * are: libconfig's line numbers are those of the file.
 */
#include "daemon/supervisor/config_parts.h"

#include "base/err.h"
#include "base/utf8.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NESTING = 16, MAX_NUMBER = 64 };

struct scan {
    const char *at, *end;
    int line, depth;
    bool element;               /* the last token may end an element of a list */
    size_t comma;               /* the last token is a comma after one: its place in `out`, plus 1 */
    struct buf *out;
    struct err *err;
};

static bool ahead(const struct scan *s, const char *text)
{
    size_t n = strlen(text);

    return (size_t)(s->end - s->at) >= n && memcmp(s->at, text, n) == 0;
}

static void copy(struct scan *s)
{
    if (*s->at == '\n')
        s->line++;
    buf_addc(s->out, *s->at++);
}

static void copy_until(struct scan *s, const char *mark)
{
    while (s->at < s->end && !ahead(s, mark))
        copy(s);
    for (size_t i = strlen(mark); i && s->at < s->end; i--)
        copy(s);
}

static int scan_string(struct scan *s)
{
    int start = s->line;

    copy(s);
    while (s->at < s->end && *s->at != '"') {
        if (ahead(s, "\\x00"))
            return err_set(s->err, -EINVAL, "a string cannot hold a zero byte");
        if (*s->at == '\\' && s->at + 1 < s->end)
            copy(s);
        copy(s);
    }
    if (s->at == s->end) {
        s->line = start;
        return err_set(s->err, -EINVAL, "the string that begins here has no closing quote");
    }
    copy(s);
    return 0;
}

/* A number as written, without the suffix; digits, signs, dots, exponents and
 * hexadecimal alike. What it means is libconfig's business. */
static int scan_number(struct scan *s)
{
    char text[MAX_NUMBER + 1];
    size_t n = 0;
    bool hex, wide = false;
    long long v;
    char *end;

    while (s->at < s->end && n < MAX_NUMBER &&
           (isalnum((unsigned char)*s->at) || *s->at == '.' ||
            ((*s->at == '+' || *s->at == '-') && (n == 0 || (text[n - 1] | 32) == 'e'))))
        text[n++] = *s->at++;
    text[n] = 0;
    if (n == MAX_NUMBER)
        return err_set(s->err, -EINVAL, "number too long");
    while (n && text[n - 1] == 'L') {
        text[--n] = 0;
        wide = true;
    }
    buf_add(s->out, text, n);
    hex = text[0] == '0' && (text[1] | 32) == 'x';
    if (!hex && text[strspn(text, "+-0123456789")] != 0) {
        if (wide)
            buf_addc(s->out, 'L');
        return 0;
    }
    errno = 0;
    v = strtoll(text, &end, hex ? 16 : 10);
    if (errno == ERANGE)
        return err_set(s->err, -EINVAL, "%s is larger than any integer can be", text);
    if (wide || v > INT32_MAX || v < INT32_MIN)
        buf_addc(s->out, 'L');
    return 0;
}

static int scan_bracket(struct scan *s)
{
    if (strchr("({[", *s->at))
        s->depth++;
    else
        s->depth--;
    if (s->depth > MAX_NESTING)
        return err_set(s->err, -EINVAL, "nested more than %d deep", MAX_NESTING);
    copy(s);
    return 0;
}

static int scan_token(struct scan *s)
{
    char c = *s->at;

    if (c == '#' || ahead(s, "//"))
        copy_until(s, "\n");
    else if (ahead(s, "/*"))
        copy_until(s, "*/");
    else if (c == '"')
        return scan_string(s);
    else if (ahead(s, "@include"))
        return err_set(s->err, -EINVAL, "@include is not supported: use conf.d");
    else if (strchr("(){}[]", c))
        return scan_bracket(s);
    else if (isalpha((unsigned char)c) || c == '*')
        while (s->at < s->end && (isalnum((unsigned char)*s->at) || strchr("-_*", *s->at)))
            copy(s);
    else if (isdigit((unsigned char)c) || strchr("+-.", c))
        return scan_number(s);
    else
        copy(s);
    return 0;
}

/* Drops the comma after a list's last element: people who edit lists leave one,
 * and libconfig takes it from version 1.7 on only. */
static int scan_next(struct scan *s)
{
    char c = *s->at;
    bool blank = isspace((unsigned char)c) || c == '#' || ahead(s, "//") || ahead(s, "/*");
    size_t place = s->out->len + 1;

    if (!blank && s->comma && strchr(")]", c) && !s->out->failed)
        s->out->data[s->comma - 1] = ' ';
    if (!blank) {
        s->comma = c == ',' && s->element ? place : 0;
        s->element = !strchr("([{,", c);
    }
    return scan_token(s);
}

int config_scan(const char *text, size_t len, struct buf *out, int *ret_line, struct err *err)
{
    struct scan s = { .at = text, .end = text + len, .line = 1, .out = out, .err = err };
    size_t valid = utf8_valid_prefix(text, len);
    const char *nul = memchr(text, 0, valid);
    const char *bad = nul ? nul : valid < len ? text + valid : NULL;
    int r = 0;

    if (bad) {
        for (; s.at < bad; s.at++)
            s.line += *s.at == '\n';
        *ret_line = s.line;
        return err_set(err, -EINVAL, "the text is not UTF-8");
    }
    if (ahead(&s, "\xEF\xBB\xBF"))
        s.at += 3;
    while (r == 0 && s.at < s.end)
        r = scan_next(&s);
    *ret_line = s.line;
    if (r == 0 && out->failed)
        r = err_set(err, -ENOMEM, "no memory");
    return r;
}
