#include "loaders/tok/json_pull.h"

#include "base/err.h"
#include "base/utf8.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Strings that had escapes, in blocks, so that they stay where they are. */
enum { BLOCK = 1 << 16 };
struct json_block {
    struct json_block *next;
    size_t len, cap;
    char text[];
};

void json_pull_init(struct json_pull *p, const char *name, const char *text, size_t len, struct err *err)
{
    *p = (struct json_pull){ .name = name, .text = text, .len = len, .err = err };
}

void json_pull_fini(struct json_pull *p)
{
    while (p->blocks) {
        struct json_block *b = p->blocks;

        p->blocks = b->next;
        free(b);
    }
}

int json_pull_refuse(struct json_pull *p, int code, const char *fmt, ...)
{
    char text[ERR_TEXT];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return err_set(p->err, code, "%s: byte %zu: %s", p->name, p->at, text);
}

int json_pull_peek(struct json_pull *p)
{
    while (p->at < p->len) {
        char c = p->text[p->at];

        if (c != ' ' && c != '\n' && c != '\r' && c != '\t')
            return (unsigned char)c;
        p->at++;
    }
    return -1;
}

static int expected(struct json_pull *p, const char *what)
{
    int c = json_pull_peek(p);

    if (c < 0)
        return json_pull_refuse(p, -EINVAL, "the text ends where %s should be", what);
    return json_pull_refuse(p, -EINVAL, "%s should be here", what);
}

int json_pull_open(struct json_pull *p, char bracket)
{
    if (json_pull_peek(p) != (unsigned char)bracket)
        return expected(p, bracket == '{' ? "an object" : "an array");
    if (p->depth == JSON_PULL_DEPTH)
        return json_pull_refuse(p, -E2BIG, "more than %d levels", JSON_PULL_DEPTH);
    p->first[p->depth++] = true;
    p->at++;
    return 0;
}

int json_pull_item(struct json_pull *p)
{
    int c = json_pull_peek(p);

    if (c == ']') {
        p->at++;
        p->depth--;
        return 0;
    }
    if (!p->first[p->depth - 1]) {
        if (c != ',')
            return expected(p, "a comma or ]");
        p->at++;
    }
    p->first[p->depth - 1] = false;
    return 1;
}

int json_pull_key(struct json_pull *p, struct tok_str *ret)
{
    int c = json_pull_peek(p), e;

    if (c == '}') {
        p->at++;
        p->depth--;
        return 0;
    }
    if (!p->first[p->depth - 1]) {
        if (c != ',')
            return expected(p, "a comma or }");
        p->at++;
    }
    p->first[p->depth - 1] = false;
    if ((e = json_pull_string(p, ret)) < 0)
        return e;
    if (json_pull_peek(p) != ':')
        return expected(p, "a colon");
    p->at++;
    return 1;
}

/* Strings. */

static char *room(struct json_pull *p, size_t len)
{
    struct json_block *b = p->blocks;
    size_t cap = len > BLOCK ? len : BLOCK;

    if (!b || b->cap - b->len < len) {
        b = malloc(sizeof *b + cap);
        if (!b)
            return NULL;
        *b = (struct json_block){ .next = p->blocks, .cap = cap };
        p->blocks = b;
    }
    b->len += len;
    return b->text + b->len - len;
}

static int hex4(const char *s)
{
    int value = 0;

    for (int i = 0; i < 4; i++) {
        char c = s[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;

        if (digit < 0)
            return -1;
        value = value << 4 | digit;
    }
    return value;
}

/* \uXXXX at text, two of them for a character above U+FFFF: the number of bytes, or 0. */
static size_t decode_u(const char *text, const char *end, uint32_t *ret)
{
    int high = end - text >= 6 ? hex4(text + 2) : -1, low;

    if (high < 0)
        return 0;
    *ret = (uint32_t)high;
    if (high < 0xD800 || high > 0xDFFF)
        return 6;
    if (high > 0xDBFF || end - text < 12 || text[6] != '\\' || text[7] != 'u')
        return 0;
    low = hex4(text + 8);
    if (low < 0xDC00 || low > 0xDFFF)
        return 0;
    *ret = 0x10000 + ((uint32_t)(high - 0xD800) << 10 | (uint32_t)(low - 0xDC00));
    return 12;
}

/* text[0..len) with its escapes undone into out, which has len bytes: the number of bytes, or -1. */
static int64_t unescape(const char *text, size_t len, char *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *end = text + len;
    char *at = out;

    while (text < end) {
        const char *backslash = memchr(text, '\\', (size_t)(end - text)), *known;
        size_t n = (size_t)((backslash ? backslash : end) - text);
        uint32_t c;

        memcpy(at, text, n);
        at += n;
        text += n;
        if (!backslash)
            break;
        known = text[1] ? strchr(from, text[1]) : NULL;
        if (known) {
            *at++ = to[known - from];
            text += 2;
        } else {
            n = text[1] == 'u' ? decode_u(text, end, &c) : 0;
            if (!n)
                return -1;
            at += utf8_encode(c, at);
            text += n;
        }
    }
    return at - out;
}

int json_pull_string(struct json_pull *p, struct tok_str *ret)
{
    bool escapes = false;
    unsigned char high = 0;
    size_t from, len;
    int64_t n;
    char *out;

    if (json_pull_peek(p) != '"')
        return expected(p, "a string");
    from = p->at + 1;
    for (size_t i = from;; i++) {
        unsigned char c;

        if (i >= p->len)
            return json_pull_refuse(p, -EINVAL, "a string without an end");
        c = (unsigned char)p->text[i];
        high |= c;
        if (c == '"') {
            len = i - from;
            break;
        }
        if (c == '\\') {
            escapes = true;
            i++;
        } else if (c < 0x20) {
            p->at = i;
            return json_pull_refuse(p, -EINVAL, "a control character in a string");
        }
    }
    if (high & 0x80 && !utf8_is_valid(p->text + from, len))
        return json_pull_refuse(p, -EINVAL, "a string that is not UTF-8");
    *ret = (struct tok_str){ p->text + from, (uint32_t)len };
    if (escapes) {
        out = room(p, len);
        if (!out)
            return json_pull_refuse(p, -ENOMEM, "no memory for a string of %zu bytes", len);
        n = unescape(p->text + from, len, out);
        if (n < 0)
            return json_pull_refuse(p, -EINVAL, "a string with a bad escape");
        *ret = (struct tok_str){ out, (uint32_t)n };
    }
    p->at = from + len + 1;
    return 0;
}

/* Numbers. */

static bool is_number_byte(char c)
{
    return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}

/* By the grammar: strtod takes more. */
static bool is_number(const char *s)
{
    if (*s == '-')
        s++;
    if (*s == '0')
        s++;
    else if (*s >= '1' && *s <= '9')
        s += strspn(s, "0123456789");
    else
        return false;
    if (*s == '.') {
        size_t n = strspn(++s, "0123456789");

        if (!n)
            return false;
        s += n;
    }
    if (*s == 'e' || *s == 'E') {
        size_t n;

        s++;
        if (*s == '+' || *s == '-')
            s++;
        n = strspn(s, "0123456789");
        if (!n)
            return false;
        s += n;
    }
    return *s == '\0';
}

static double pow10_of(long n)
{
    static const double exact[] = { 1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18,
                                    1e19, 1e20, 1e21, 1e22 };
    char text[16];

    if (n < (long)(sizeof exact / sizeof exact[0]))
        return exact[n];
    snprintf(text, sizeof text, "1e%ld", n);
    return strtod(text, NULL);
}

/* As serde_json reads a number, which is not always the nearest double: the digits as one integer, then one multiplication or division by a power
 * of ten. The last bit decides between segmentations of equal score. */
static double value_of(const char *s)
{
    bool negative = *s == '-', point = false;
    uint64_t digits = 0;
    long exponent = 0;
    double value;

    for (s += negative; (*s >= '0' && *s <= '9') || *s == '.'; s++) {
        unsigned digit = (unsigned)(*s - '0');

        if (*s == '.') {
            point = true;
        } else if (digits > UINT64_MAX / 10 || (digits == UINT64_MAX / 10 && digit > UINT64_MAX % 10)) {
            exponent += !point;
            while (s[1] >= '0' && s[1] <= '9') {    /* what does not fit is dropped */
                s++;
                exponent += !point;
            }
        } else {
            digits = digits * 10 + digit;
            exponent -= point;
        }
    }
    if (*s == 'e' || *s == 'E')
        exponent += strtol(s + 1, NULL, 10);
    value = (double)digits;
    for (; exponent < -308 && value != 0; exponent += 308)
        value /= 1e308;
    if (value != 0 && exponent != 0)
        value = exponent > 308 ? INFINITY : exponent > 0 ? value * pow10_of(exponent) : value / pow10_of(-exponent);
    return negative ? -value : value;
}

int json_pull_number(struct json_pull *p, double *ret)
{
    char text[64];
    size_t n = 0;

    json_pull_peek(p);
    while (p->at + n < p->len && n + 1 < sizeof text && is_number_byte(p->text[p->at + n])) {
        text[n] = p->text[p->at + n];
        n++;
    }
    text[n] = '\0';
    if (!is_number(text))
        return expected(p, "a number");
    *ret = value_of(text);
    p->at += n;
    return 0;
}

int json_pull_integer(struct json_pull *p, int64_t *ret)
{
    size_t at;
    int64_t value = 0;
    bool negative = json_pull_peek(p) == '-';
    int digits = 0;

    for (at = p->at + negative; at < p->len && p->text[at] >= '0' && p->text[at] <= '9' && digits < 18; at++, digits++)
        value = value * 10 + (p->text[at] - '0');
    if (!digits || (at < p->len && is_number_byte(p->text[at])) || (digits > 1 && p->text[p->at + negative] == '0'))
        return expected(p, "an integer");
    p->at = at;
    *ret = negative ? -value : value;
    return 0;
}

/* The rest. */

static bool take_word(struct json_pull *p, const char *word)
{
    size_t n = strlen(word);

    json_pull_peek(p);
    if (p->len - p->at < n || memcmp(p->text + p->at, word, n) != 0)
        return false;
    p->at += n;
    return true;
}

bool json_pull_null(struct json_pull *p)
{
    return take_word(p, "null");
}

int json_pull_bool(struct json_pull *p, bool *ret)
{
    if (take_word(p, "true"))
        *ret = true;
    else if (take_word(p, "false"))
        *ret = false;
    else
        return expected(p, "true or false");
    return 0;
}

static int skip_scalar(struct json_pull *p)
{
    struct tok_str s;
    double number;
    bool b;

    switch (json_pull_peek(p)) {
    case '"': return json_pull_string(p, &s);
    case 't': case 'f': return json_pull_bool(p, &b);
    case 'n': return json_pull_null(p) ? 0 : expected(p, "a value");
    case -1: return expected(p, "a value");
    default: return json_pull_number(p, &number);
    }
}

int json_pull_skip(struct json_pull *p)
{
    unsigned depth = p->depth;
    bool is_object[JSON_PULL_DEPTH];
    struct tok_str key;
    int e;

    do {
        int c = json_pull_peek(p);

        if (c == '{' || c == '[') {
            if ((e = json_pull_open(p, (char)c)) < 0)
                return e;
            is_object[p->depth - 1] = c == '{';
        } else if ((e = skip_scalar(p)) < 0) {
            return e;
        }
        while (p->depth > depth) {      /* to the next value, out of what has ended */
            e = is_object[p->depth - 1] ? json_pull_key(p, &key) : json_pull_item(p);
            if (e != 0)
                break;
        }
        if (e < 0)
            return e;
    } while (p->depth > depth);
    return 0;
}

int json_pull_slice(struct json_pull *p, struct tok_str *ret)
{
    size_t from;
    int e;

    json_pull_peek(p);
    from = p->at;
    if ((e = json_pull_skip(p)) < 0)
        return e;
    *ret = (struct tok_str){ p->text + from, (uint32_t)(p->at - from) };
    return 0;
}

int json_pull_end(struct json_pull *p)
{
    return json_pull_peek(p) < 0 ? 0 : json_pull_refuse(p, -EINVAL, "something behind the end");
}
