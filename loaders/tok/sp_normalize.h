/* sp_normalize.h - SentencePiece's normaliser.
 *
 * What comes out has spaces where SentencePiece writes U+2581, as the vocabularies here have: sp_space() makes
 * one of the other. (A U+2581 in a text is the same as a space to SentencePiece too.)
 *
 * Source   sentencepiece 0.1.97, normalizer.cc
 */
#ifndef LOADERS_TOK_SP_NORMALIZE_H
#define LOADERS_TOK_SP_NORMALIZE_H

#include "loaders/tok/tok.h"

struct sp_normalizer_spec {
    const char *charsmap; size_t charsmap_len;      /* precompiled_charsmap; len 0: there is none; copied */
    const struct tok_str *whole; size_t n_whole;    /* user-defined tokens as the file spells them: pass unchanged */
    bool dummy_prefix;                              /* a space in front */
    bool as_suffix;                                 /* or behind */
    bool remove_extra;                              /* no spaces at the ends, single ones within */
};
/* 0; -EINVAL: a map that does not fit together, with a sentence; -ENOMEM. */
int sp_normalizer_new(const struct sp_normalizer_spec *spec, struct normalizer **ret, struct err *err);

/* Appends text with a space for each U+2581. */
void sp_space(struct buf *out, const char *text, size_t len);

#endif
