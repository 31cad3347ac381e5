/* alphabet.h - GPT-2's spelling of bytes as printable characters.
 *
 * 33-126, 161-172 and 174-255 stand for themselves, the other 68 bytes are U+0100 and up, in order.
 *
 * Source   GPT-2's encoder.py:bytes_to_unicode
 */
#ifndef LOADERS_TOK_ALPHABET_H
#define LOADERS_TOK_ALPHABET_H

#include <stddef.h>
#include <stdint.h>

struct buf;

int alphabet_byte(uint32_t c);                      /* -1: c is not in the alphabet */
uint32_t alphabet_char(uint8_t byte);
/* The bytes that a text spells, into out[0..len): their number. A text with a character outside the alphabet stands for itself. */
size_t alphabet_decode(const char *text, size_t len, char *out);
void alphabet_encode(const char *bytes, size_t len, struct buf *out);

#endif
