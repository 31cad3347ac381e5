/* ngram.h - what may come next in a text, guessed from the text itself: where
 * its last tokens stood before, what followed them there is likely to follow
 * again. Code that is changed, a document that is quoted, a form that repeats:
 * there it is right most of the time, and it costs next to nothing.
 *
 * Every pair of neighbours is in a table, with a link to where the same pair
 * stood before. To propose, the newest places of the last pair are compared
 * backwards with the end of the text: the longest match wins, the newest of
 * equals. A short match says little, so it proposes little. What followed may reach into the
 * end of the text itself (the text goes round in a circle): then the proposal
 * goes on with its own beginning, as LZ77 copies.
 *
 * Cost     a step: as many tokens as are new, at most NGRAM_PLACES * NGRAM_LONGEST to compare, and
 *          what it proposes. Memory is of the window alone and is taken at open.
 * Threads  one at a time
 * Source   prompt lookup decoding (Saxena, 2023); "Inference with reference",
 *          arXiv:2304.04487; LZ77's chains as zlib's deflate.c keeps them
 */
#ifndef GEN_NGRAM_H
#define GEN_NGRAM_H

#include "base/cleanup.h"

#include <stddef.h>
#include <stdint.h>

struct err;
struct ngram;

enum {
    NGRAM_SHORTEST = 2,         /* tokens that must match */
    NGRAM_LONGEST = 32,         /* tokens that are compared */
    NGRAM_PLACES = 16,          /* the newest ones that are looked at */
    NGRAM_MAX_WINDOW = 1 << 15, /* the newest places that are remembered */
};

/* For texts of n_ctx tokens; the window is n_ctx, up to NGRAM_MAX_WINDOW. -ENOMEM. */
int ngram_open(uint32_t n_ctx, struct ngram **ret, struct err *err);
void ngram_close(struct ngram *g);                  /* NULL is fine */
DEFINE_CLEANUP(struct ngram *, ngram_close)
size_t ngram_bytes(uint32_t n_ctx);                 /* what open takes */

/* Another text begins. */
void ngram_reset(struct ngram *g);
/* Up to `most` tokens that may follow text[0..n), into ret; returns their number. Since reset
 * the text is the same one, and has only grown. */
uint32_t ngram_propose(struct ngram *g, const int32_t *text, uint32_t n, uint32_t most, int32_t *ret);

#endif
