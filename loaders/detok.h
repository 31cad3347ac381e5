/* detok.h - a stream of token ids to text that is whole characters at any time.
 *
 * A token may hold a part of a character: up to three bytes that can still become
 * a valid one wait for the next token. Bytes that cannot become one give U+FFFD, one
 * for each longest ill-formed part (Unicode 15, section 3.9), so that a stream cut anywhere
 * gives the same text as the whole. Control tokens give nothing, and a character may go on
 * behind one.
 *
 * Storage is the caller's and holds nothing to release; copying it copies the state.
 */
#ifndef LOADERS_DETOK_H
#define LOADERS_DETOK_H

#include <stddef.h>
#include <stdint.h>

struct buf;
struct tokenizer;

struct detok {
    const struct tokenizer *t;
    char held[4];
    uint8_t n_held;
};

void detok_init(struct detok *d, const struct tokenizer *t);
/* Appends what became certain with this token; an id outside the vocabulary
 * gives nothing. */
void detok_add(struct detok *d, int32_t id, struct buf *out);
/* The same for bytes from elsewhere. */
void detok_add_bytes(struct detok *d, const char *bytes, size_t len, struct buf *out);
/* The end: an unfinished character becomes U+FFFD. */
void detok_flush(struct detok *d, struct buf *out);

#endif
