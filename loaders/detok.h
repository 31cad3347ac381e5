/* detok.h - a stream of token ids to text that is whole characters at any time.
 *
 * A token may hold a part of a character: up to three bytes that can still become a valid one wait for the
 * next token; nothing else waits (but the space of a "</w>", which the last token has not). So a stream cut anywhere gives
 * the text of the whole, tokenizer_decode(), with these bounds:
 *
 * - Byte-level: bytes that can not become a character give one U+FFFD for each longest ill-formed
 *   part (Unicode 15, section 3.9), the same in both.
 * - <0xHH> tokens: a run of them ends with any other token. Bad bytes give a U+FFFD each, and valid characters
 *   around them stay. SentencePiece's own decoder does the same; tokenizer.json's ByteFallback makes every byte of such a run a
 *   U+FFFD, which a stream can not do, for it has shown the valid ones.
 * - A decoder that strips the end of the text, or replaces over the seam of two tokens: only the whole does.
 *
 * At the start of a text the space that a tokenizer puts in front of it goes, once, as its decoder says. Control tokens give nothing and
 * change nothing: a character or a run goes on behind one, and the start is still to come.
 *
 * Storage is the caller's and holds nothing to release; copying it copies the state.
 */
#ifndef LOADERS_DETOK_H
#define LOADERS_DETOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct tokenizer;

struct detok {
    const struct tokenizer *t;
    bool keep_special;              /* control tokens give their spelling; the caller may set it */
    char held[4];
    uint8_t n_held;
    bool started;                   /* a token came */
    bool space;                     /* one waits for the next token */
    uint32_t n_strip;               /* how much may still go at the start */
    int32_t last;
};

void detok_init(struct detok *d, const struct tokenizer *t);
/* The same for tokens that go on behind others: the first one has its space. */
void detok_init_behind(struct detok *d, const struct tokenizer *t);
/* Appends what became certain with this token; an id outside the vocabulary
 * gives nothing. */
void detok_add(struct detok *d, int32_t id, struct buf *out);
/* The same for bytes from elsewhere. */
void detok_add_bytes(struct detok *d, const char *bytes, size_t len, struct buf *out);
/* The end: an unfinished character becomes U+FFFD. */
void detok_flush(struct detok *d, struct buf *out);

/* For each of n ids the offset, in characters of the text that a stream of all gives, at which its own text begins;
 * a token that goes on with a character begins where that character does. Appends the text to out (not NULL). 0 or -ENOMEM. */
int detok_offsets(const struct tokenizer *t, const int32_t *ids, size_t n, bool keep_special, size_t *ret_offsets, struct buf *out);

#endif
