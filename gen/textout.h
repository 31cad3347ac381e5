/* textout.h - from the bytes of tokens to text that may be sent.
 *
 * What comes out is whole UTF-8 characters, never shrinks, and never holds a
 * stop string or a part of one that a later token completes. So two things are
 * held back: the bytes of an unfinished character, and the longest tail that
 * begins a stop string. Nothing else is: text that can not become a stop goes
 * out with its token. At the end of the generation what is held is released.
 *
 * Which stop  the one that begins first in the whole text ends it; of two that
 *             begin at the same byte, the shorter one, which is complete first.
 *             The result is the same however the text is cut into tokens.
 * Bytes       what is not UTF-8 becomes U+FFFD, one for each longest piece that
 *             could have begun a character (Unicode 15, section 3.9, "U+FFFD
 *             substitution of maximal subparts"). Stops are matched after that.
 * Cost        one automaton step per byte and stop (Knuth, Morris and Pratt);
 *             independent of the text so far; nothing is allocated after
 *             textout_open() but what `out` needs to grow
 */
#ifndef GEN_TEXTOUT_H
#define GEN_TEXTOUT_H

#include "base/cleanup.h"

#include <stddef.h>
#include <stdint.h>

struct buf;
struct err;
struct textout;

enum { TEXTOUT_MAX_STOPS = 64, TEXTOUT_MAX_STOP_BYTES = 1024 };
enum { TEXTOUT_STOPPED = 1 };   /* a stop string was found; the text is complete */

/* A filter for one text. Stops are copied; n_stops may be 0. -EINVAL with a
 * sentence for an empty or too long stop, one that is not UTF-8, or too many;
 * -ENOMEM. On failure *ret is untouched. */
int textout_open(const char *const *stops, size_t n_stops, struct textout **ret, struct err *err);
void textout_close(struct textout *t);              /* NULL is fine */
DEFINE_CLEANUP(struct textout *, textout_close)

/* Takes the bytes of a token and appends the text that is free to go to `out`
 * (at most textout_most(t, len) bytes). 0, or TEXTOUT_STOPPED, after which
 * everything is ignored. Memory that `out` lacks shows in out->failed. */
int textout_add(struct textout *t, const char *bytes, size_t len, struct buf *out);
/* The generation ended: releases what is held. 0, or TEXTOUT_STOPPED when a
 * stop string ends the text (also when it was found before). */
int textout_end(struct textout *t, struct buf *out);

/* The stop string that ended the text: its index, or -1; itself, or NULL. */
int textout_stop(const struct textout *t);
const char *textout_stop_text(const struct textout *t);
/* The most that one call can append after `len` more bytes. */
size_t textout_most(const struct textout *t, size_t len);

/* Positions in the text, to tell which tokens have come out in full: a token
 * is out when textout_given() has reached what textout_seen() was after it was
 * added. Both count bytes of text; a character that has begun counts as seen. */
uint64_t textout_seen(const struct textout *t);
uint64_t textout_given(const struct textout *t);

#endif
