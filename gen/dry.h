/* dry.h - DRY ("don't repeat yourself"): which tokens would go on with a
 * sequence that stands in the text before, and how long it is.
 *
 * The end of the text is looked for in the text itself: where its last n
 * tokens stand already, the token that followed them there would make the
 * repetition n + 1 long. Sequences do not reach over a breaker (the end of a
 * line, a quotation mark), else a form that has to repeat would be penalised.
 *
 * Breakers are texts, tokens are not: a token that holds a breaker is one, and
 * one that ends with the beginning of a breaker is one where the rest of it
 * follows as the tokenizer would write it.
 *
 * Cost     linear in the tokens looked at (Z algorithm); making breakers of
 *          texts goes once over the vocabulary
 * Threads  breakers are shared and do not change
 * Source   llama.cpp, src/llama-sampler.cpp, DRY
 */
#ifndef GEN_DRY_H
#define GEN_DRY_H

#include "base/cleanup.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dry_breakers;
struct err;
struct tokenizer;

enum { DRY_MAX_BREAKERS = 16, DRY_MAX_BREAKER_BYTES = 40 };

/* The breakers that count when nobody names others; DRY_N_DEFAULT of them. */
enum { DRY_N_DEFAULT = 4 };
extern const char *const dry_default_breakers[DRY_N_DEFAULT];

/* -EINVAL for too many, an empty or a long one; -ENOMEM. */
int dry_breakers_open(const struct tokenizer *t, const char *const *texts, size_t n, struct dry_breakers **ret,
                      struct err *err);
/* From token sequences, each ended by -1, all together by a second -1. -ENOMEM. */
int dry_breakers_of_tokens(const int32_t *sequences, struct dry_breakers **ret, struct err *err);
struct dry_breakers *dry_breakers_ref(struct dry_breakers *b);
void dry_breakers_close(struct dry_breakers *b);    /* the last one frees; NULL is fine */
DEFINE_CLEANUP(struct dry_breakers *, dry_breakers_close)
/* Whether it was made of these texts. */
bool dry_breakers_are(const struct dry_breakers *b, const char *const *texts, size_t n);
/* Whether the token alone is a breaker; b may be NULL: there are none. */
bool dry_breakers_hold(const struct dry_breakers *b, int32_t token);

struct dry_match {
    int32_t token;
    uint32_t length;            /* tokens that stood in front of it and stand at the end */
};

/* The matches of at least `shortest` tokens in text[0..n), one token maybe more than once. z and ret have
 * room for n. Returns their number. */
size_t dry_find(const int32_t *text, size_t n, const struct dry_breakers *b, uint32_t shortest, uint32_t *z,
                struct dry_match *ret);

#endif
