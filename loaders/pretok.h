/* pretok.h - cuts text into the pieces that byte-level BPE merges within.
 *
 * A model's pre-tokeniser is a sequence of regular expressions: each cuts the
 * pieces of the one before into matches and what lies between them. The known ones are
 * scanners of our own here: one pass, no backtracking, no stack, over the classes of
 * Unicode 14 (utf8proc of Debian 12). A byte that is no UTF-8 counts as a character that is neither
 * letter, number nor space.
 *
 * Source   the names and what they stand for: llama.cpp, src/llama-vocab.cpp; the
 *          expressions: the tokenizer.json files of the models
 */
#ifndef LOADERS_PRETOK_H
#define LOADERS_PRETOK_H

#include <stdbool.h>
#include <stddef.h>

enum { PRETOK_MAX_STAGES = 4 };

struct pretok {
    const char *name;
    /* Each gives the length of the next piece of a text that is not empty. */
    size_t (*stage[PRETOK_MAX_STAGES])(const char *text, size_t len);
    bool ignore_merges;             /* a piece that is a token is not merged */
    bool add_bos;                   /* where the file does not say */
};

/* NULL when the name is not known. */
const struct pretok *pretok_find(const char *name);

/* Gives every piece of text[0..len) in order; stops when fn() gives something else than 0
 * and hands it up. */
int pretok_split(const struct pretok *p, const char *text, size_t len,
                 int (*fn)(void *user, const char *piece, size_t len), void *user);

#endif
