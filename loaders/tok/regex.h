/* regex.h - what is looked for in a text: a string, or a regular expression of Hugging Face's tokenizers.
 *
 * Their expressions are Oniguruma's, and are rewritten for PCRE2 where the two differ: what \s, \w, \b, \d and \h
 * mean, classes within classes and &&, {2,3}+ (again and again, not possessive), ^ and $ (at every line), \p{Han}. What can not be
 * rewritten is refused by name. PCRE2 runs without its compiler to machine code, which would need writable code, and under limits: an
 * expression that tries for too long is an error and no hang.
 *
 * Threads  constant once made; a walk belongs to one thread
 * Source   Oniguruma 6.9, doc/RE and doc/SYNTAX.md; pcre2pattern(3); the order of matches is that of the Rust crate onig
 */
#ifndef LOADERS_TOK_REGEX_H
#define LOADERS_TOK_REGEX_H

#include "base/cleanup.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct pattern;

enum {
    PATTERN_MAX = 16384,            /* bytes of an expression */
    PATTERN_END = 1,                /* pattern_next: there is no more */
};

/* 0; -ENOMEM. An empty string matches between any two characters. */
int pattern_string(const char *text, size_t len, struct pattern **ret);
/* 0; -EINVAL: no regular expression, -ENOTSUP: one that can not be rewritten, -E2BIG; -ENOMEM; err quotes it. */
int pattern_regex(const char *text, size_t len, struct pattern **ret, struct err *err);
void pattern_free(struct pattern *p);               /* NULL is fine */
DEFINE_CLEANUP(struct pattern *, pattern_free)

/* The matches in a text, from its start; they may be empty. Where the text is no UTF-8, a bad byte is like a control character. */
struct pattern_walk {
    const struct pattern *pattern;
    const char *text;
    size_t len, at, last_end;
    bool any;                       /* last_end counts */
    uint64_t budget, tries;         /* steps that are left, places that were tried */
    int64_t began_ms;
    void *match;                    /* of PCRE2 */
    char *masked;                   /* the text with its bad bytes replaced, where it has some */
};
/* 0 or -ENOMEM; pattern_end() either way. The text is not copied. */
int pattern_begin(struct pattern_walk *w, const struct pattern *p, const char *text, size_t len);
/* 0 and a match, PATTERN_END, or -E2BIG: over the limits, -ENOMEM. */
int pattern_next(struct pattern_walk *w, size_t *ret_start, size_t *ret_end);
void pattern_end(struct pattern_walk *w);

/* The expression as PCRE2 gets it, for tests: 0 and a string that the caller frees, or as pattern_regex. */
int regex_rewrite(const char *text, size_t len, char **ret, struct err *err);

#endif
