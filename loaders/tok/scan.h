/* scan.h - the known pre-tokenisers: what cuts text into the pieces that byte-level BPE merges within.
 *
 * A model's pre-tokeniser is one or more regular expressions, each of which cuts the pieces of the one before into matches and
 * what lies between them. The known ones are written out here as scanners: one pass, no backtracking, constant stack, time
 * linear in the text, over the classes of base/unicode.h. A byte that is no UTF-8 counts as a character of no class.
 *
 * Threads  any
 * Source   the expressions: the tokenizer.json files of the models; the names that GGUF gives them: llama.cpp,
 *          src/llama-vocab.cpp
 */
#ifndef LOADERS_TOK_SCAN_H
#define LOADERS_TOK_SCAN_H

#include "loaders/tok/tok.h"

struct scan {
    const char *name;
    /* Gives every piece of a text in order: together they are the text. Stops when fn() gives something else than 0 and hands it up. */
    int (*run)(const char *text, size_t len, piece_fn fn, void *user);
};

/* The scanner of exactly this expression, in Oniguruma's syntax, as tokenizer.json has it for a Split that is Isolated; NULL: not
 * known. */
const struct scan *scan_of_regex(const char *regex, size_t len);

/* What a name under tokenizer.ggml.pre stands for. */
struct scan_pre {
    const char *name;
    const struct scan *scans[SCAN_MAX_STAGES];      /* ends at a NULL */
    bool ignore_merges;
    bool add_bos;                                   /* where the file does not say */
};
const struct scan_pre *scan_of_name(const char *name);      /* NULL: not known, or not supported */

/* Every scanner over the pieces of the one before; none: the text is one piece. */
int scan_all(const struct scan *const *scans, const char *text, size_t len, piece_fn fn, void *user);

/* By number, for tests and listings; NULL past the end. *ret_regex: the expression. */
const struct scan *scan_at(size_t i, const char **ret_regex);
const struct scan_pre *scan_pre_at(size_t i);

#endif
