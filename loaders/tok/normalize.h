/* normalize.h - what is done to a text before it is cut: normal forms, cases, accents, replacements.
 *
 * A list of steps, each from text to text, as the normalisers of tokenizer.json say. A text that is no UTF-8 keeps its
 * bad bytes.
 *
 * Threads  constant once built
 * Source   Hugging Face tokenizers 0.22, normalizers/
 */
#ifndef LOADERS_TOK_NORMALIZE_H
#define LOADERS_TOK_NORMALIZE_H

#include "base/unicode.h"
#include "loaders/tok/tok.h"

struct charsmap;
struct err;
struct pattern;

enum normalize_op {
    NORMALIZE_FORM,             /* .form */
    NORMALIZE_LOWER,            /* a character at a time, no final sigma */
    NORMALIZE_STRIP,            /* White_Space; .left, .right */
    NORMALIZE_STRIP_ACCENTS,    /* marks */
    NORMALIZE_REPLACE,          /* .pattern by .text */
    NORMALIZE_PREPEND,          /* .text, to a text that is not empty */
    NORMALIZE_NMT,              /* SentencePiece's: control characters go, some others become spaces */
    NORMALIZE_PRECOMPILED,      /* .map */
    NORMALIZE_BERT,             /* .clean, .chinese, .accents (they go), .lower */
    NORMALIZE_BYTE_LEVEL,       /* bytes to GPT-2's printable characters */
};

struct normalize_step {
    enum normalize_op op;
    enum unicode_form form;
    bool left, right;
    bool clean, chinese, accents, lower;
    struct tok_str text;        /* copied */
    struct pattern *pattern;    /* taken over */
    struct charsmap *map;       /* taken over */
};

enum { NORMALIZE_MAX_STEPS = 64 };

/* Of n steps, in order. 0; -ENOMEM; -E2BIG: too many steps. What it takes over is taken on failure too. */
int normalizer_new(const struct normalize_step *steps, size_t n, struct normalizer **ret);

#endif
