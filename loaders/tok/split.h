/* split.h - how a text is cut into the pieces that are encoded each on its own.
 *
 * A list of splitters: each cuts what the one before it made, so a regular expression sees one piece only. What a splitter
 * finds, and what lies between, is kept, dropped or joined by its behaviour.
 *
 * ByteLevel turns bytes into GPT-2's printable characters. Where no splitter behind it can see them, the pieces stay raw bytes,
 * else SPLIT_ALPHABET makes them.
 *
 * Threads  constant once built
 * Source   Hugging Face tokenizers 0.22, pre_tokenizers/
 */
#ifndef LOADERS_TOK_SPLIT_H
#define LOADERS_TOK_SPLIT_H

#include "loaders/tok/tok.h"

struct err;
struct pattern;
struct scan;

enum split_op {
    SPLIT_PATTERN,              /* .pattern, by .behavior, .invert */
    SPLIT_SCAN,                 /* .scan: its pieces */
    SPLIT_PREFIX_SPACE,         /* a space in front, unless one is there; no cut */
    SPLIT_ALPHABET,             /* bytes to GPT-2's printable characters; no cut */
    SPLIT_METASPACE,            /* " " to .character, one in front by .prepend, cut in front of each if .cut */
    SPLIT_SPACE,                /* at White_Space, by .behavior, as the next three */
    SPLIT_PUNCTUATION,          /* at ASCII's and P* */
    SPLIT_DIGITS,               /* at N* */
    SPLIT_CHARACTER,            /* at .character */
    SPLIT_WORDS,                /* \w+|[^\w\s]+ are the pieces */
    SPLIT_SCRIPTS,              /* where the script changes */
    SPLIT_LENGTH,               /* every .length characters */
};

enum split_behavior { SPLIT_REMOVED, SPLIT_ISOLATED, SPLIT_MERGED_WITH_PREVIOUS, SPLIT_MERGED_WITH_NEXT, SPLIT_CONTIGUOUS };
enum split_prepend { SPLIT_PREPEND_NEVER, SPLIT_PREPEND_FIRST, SPLIT_PREPEND_ALWAYS };

struct split_step {
    enum split_op op;
    enum split_behavior behavior;
    bool invert;                /* what is found and what lies between change places */
    bool cut;
    enum split_prepend prepend; /* FIRST: in front of what begins at offset 0 of the whole */
    uint32_t character;
    uint32_t length;            /* not 0 */
    struct pattern *pattern;    /* taken over */
    const struct scan *scan;
};

enum { SPLIT_MAX_STEPS = 64 };

/* Of n steps, in order. 0; -ENOMEM; -E2BIG: too many steps. What it takes over is taken on failure too. */
int splitter_new(const struct split_step *steps, size_t n, struct splitter **ret);

#endif
