/* scan_in.h - what scanners are made of; only for scan*.c. All of it is inlined, so that masks are constants.
 */
#ifndef LOADERS_TOK_SCAN_IN_H
#define LOADERS_TOK_SCAN_IN_H

#include "base/unicode.h"
#include "base/utf8.h"
#include "loaders/tok/scan.h"

#define SCAN_INLINE static inline __attribute__((always_inline, unused))

enum {
    SCAN_LETTER = UC_LETTER,                                /* \p{L} */
    SCAN_UPPER = UC_LETTER_UPPER | UC_LETTER_OTHER | UC_MARK,   /* [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] */
    SCAN_LOWER = UC_LETTER_LOWER | UC_LETTER_OTHER | UC_MARK,   /* [\p{Ll}\p{Lm}\p{Lo}\p{M}] */
    SCAN_WORD = UC_SPACE | UC_LETTER | UC_NUMBER,           /* [\s\p{L}\p{N}] */
};
#define SCAN_NO_CHARACTER UINT32_MAX

/* The character at text[0..len), len > 0: its bytes, and *ret; SCAN_NO_CHARACTER and one byte for what is no UTF-8. */
SCAN_INLINE size_t scan_decode(const char *text, size_t len, uint32_t *ret)
{
    const unsigned char *p = (const unsigned char *)text;
    int n;

    if (p[0] < 0x80) {
        *ret = p[0];
        return 1;
    }
    /* The commonest three-byte characters here, the rest by the book. */
    if (p[0] > 0xE0 && p[0] < 0xED && len >= 3 && (p[1] & 0xC0) == 0x80 && (p[2] & 0xC0) == 0x80) {
        *ret = (uint32_t)(p[0] & 15) << 12 | (uint32_t)(p[1] & 63) << 6 | (p[2] & 63);
        return 3;
    }
    n = utf8_decode(text, len, ret);
    if (n > 0)
        return (size_t)n;
    *ret = SCAN_NO_CHARACTER;
    return 1;
}

/* Bytes and class of the character at text[0..len), len > 0. */
SCAN_INLINE size_t scan_class(const char *text, size_t len, unsigned *ret)
{
    unsigned char first = (unsigned char)text[0];
    uint32_t c;
    size_t n;

    if (first < 0x80) {
        *ret = unicode_ascii_class[first];
        return 1;
    }
    n = scan_decode(text, len, &c);
    *ret = c == SCAN_NO_CHARACTER ? 0 : unicode_class(c);
    return n;
}

/* The class at `at`, or 0 at the end. */
SCAN_INLINE unsigned scan_class_at(const char *text, size_t len, size_t at)
{
    unsigned class = 0;

    if (at < len)
        scan_class(text + at, len - at, &class);
    return class;
}

/* Where a run of characters of the classes in `mask` that goes on at `at` ends. */
SCAN_INLINE size_t scan_run_of(const char *text, size_t len, size_t at, unsigned mask)
{
    unsigned class;
    size_t n;

    for (; at < len; at += n) {
        n = scan_class(text + at, len - at, &class);
        if (!(class & mask))
            break;
    }
    return at;
}

/* The same of characters of none of the classes. */
SCAN_INLINE size_t scan_run_not(const char *text, size_t len, size_t at, unsigned mask)
{
    unsigned class;
    size_t n;

    for (; at < len; at += n) {
        n = scan_class(text + at, len - at, &class);
        if (class & mask)
            break;
    }
    return at;
}

SCAN_INLINE bool scan_newline(char c)
{
    return c == '\r' || c == '\n';
}

SCAN_INLINE size_t scan_newlines(const char *text, size_t len, size_t at)
{
    while (at < len && scan_newline(text[at]))
        at++;
    return at;
}

/* A run of white space at text[0]: where it ends, where its last character begins, and the end of its last \r or \n (0: none). */
struct scan_spaces { size_t end, last, newline; };
SCAN_INLINE struct scan_spaces scan_spaces(const char *text, size_t len)
{
    struct scan_spaces s = { 0 };
    unsigned class;

    for (size_t n; s.end < len; s.end += n) {
        n = scan_class(text + s.end, len - s.end, &class);
        if (!(class & UC_SPACE))
            break;
        s.last = s.end;
        if (scan_newline(text[s.end]))
            s.newline = s.end + 1;
    }
    return s;
}

/* \s+(?!\S)|\s+ : a run of white space but for its last character, which goes to what stands behind; all of it at the end. */
SCAN_INLINE size_t scan_plain_spaces(const struct scan_spaces *s, size_t len)
{
    return s->end < len && s->last > 0 ? s->last : s->end;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ : up to the last line end of the run; without one as above. */
SCAN_INLINE size_t scan_line_spaces(const char *text, size_t len)
{
    struct scan_spaces s = scan_spaces(text, len);

    return s.newline ? s.newline : scan_plain_spaces(&s, len);
}

/* 's 't 're 've 'm 'll 'd: the bytes it has, or 0. With `fold` in either case, and 's also with the long s,
 * U+017F, as (?i:…) has it. */
SCAN_INLINE size_t scan_contraction(const char *text, size_t len, bool fold)
{
    unsigned char a, b;

    if (len < 2 || text[0] != '\'')
        return 0;
    a = (unsigned char)text[1];
    if (fold && a == 0xC5)
        return len > 2 && (unsigned char)text[2] == 0xBF ? 3 : 0;
    a = fold ? a | 0x20 : a;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    if (len < 3 || (a != 'r' && a != 'v' && a != 'l'))
        return 0;
    b = (unsigned char)text[2];
    b = fold ? b | 0x20 : b;
    return b == (a == 'l' ? 'l' : 'e') ? 3 : 0;
}

/* Defines a scanner over a function that gives the length of the next piece of a text that is not empty. */
#define SCAN_BY_NEXT(id, next)                                                                     \
    static int id(const char *text, size_t len, piece_fn fn, void *user)                           \
    {                                                                                              \
        int r = 0;                                                                                 \
                                                                                                   \
        for (size_t n; len && r == 0; text += n, len -= n) {                                       \
            n = next(text, len);                                                                   \
            r = fn(user, text, n);                                                                 \
        }                                                                                          \
        return r;                                                                                  \
    }

/* scan_words.c */
extern const struct scan scan_gpt2, scan_llama3, scan_qwen2, scan_qwen35, scan_minicpm5, scan_seed_coder, scan_exaone_moe, scan_jais2,
    scan_deepseek3, scan_cl100k_onig;
/* scan_cased.c */
extern const struct scan scan_o200k, scan_tekken, scan_kimi, scan_youtu;
/* scan_parts.c */
extern const struct scan scan_number, scan_numbers, scan_numbers_3, scan_digits_3, scan_digits_grouped, scan_digits_right,
    scan_numbers_right, scan_newlines_one, scan_lines, scan_punctuation_falcon, scan_punctuation_default, scan_cjk_deepseek3,
    scan_cjk_deepseek, scan_letters_deepseek_coder, scan_letters_deepseek_llm, scan_punctuation_deepseek_coder,
    scan_punctuation_deepseek_llm, scan_spaces_at_end, scan_bloom, scan_youtu_scripts, scan_afmoe_scripts, scan_chameleon_sentinel,
    scan_chameleon_image, scan_chameleon_spaces, scan_chameleon_punctuation;

#endif
