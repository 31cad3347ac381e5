/* charsmap.h - SentencePiece's map from characters to characters (precompiled_charsmap).
 *
 * Threads  constant once made
 * Source   sentencepiece, normalizer.cc; darts-clone, darts.h; the crate spm_precompiled
 */
#ifndef LOADERS_TOK_CHARSMAP_H
#define LOADERS_TOK_CHARSMAP_H

#include "base/cleanup.h"
#include "loaders/tok/tok.h"

struct charsmap;
struct err;

/* Copies it. 0; -EINVAL: its sizes do not fit, or its texts are no UTF-8; -ENOMEM. */
int charsmap_new(const void *data, size_t len, struct charsmap **ret, struct err *err);
void charsmap_free(struct charsmap *m);             /* NULL is fine */
DEFINE_CLEANUP(struct charsmap *, charsmap_free)

/* What the shortest entry that the text begins with becomes; false: none does. */
bool charsmap_first(const struct charsmap *m, const char *text, size_t len, struct tok_str *ret);
/* The same of the longest entry, and its length. */
bool charsmap_longest(const struct charsmap *m, const char *text, size_t len, struct tok_str *ret, size_t *ret_taken);

#endif
