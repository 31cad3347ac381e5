/* utf8.h - what is and what is not UTF-8 (Unicode 15, table 3-7: no surrogates,
 * no overlong forms, nothing above U+10FFFF).
 */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decodes the character at text[0..len). Returns its length in bytes and sets
 * *ret; 0 for an empty text; -1 for a byte that starts no valid character;
 * -2 when the text ends within a character that is valid so far. */
int utf8_decode(const char *text, size_t len, uint32_t *ret);

/* Writes code point c (replaced by U+FFFD when it is none) to out[0..4) and
 * returns the number of bytes. */
int utf8_encode(uint32_t c, char out[4]);

/* Length of the longest prefix that consists of whole valid characters. */
size_t utf8_valid_prefix(const char *text, size_t len);
bool utf8_is_valid(const char *text, size_t len);

/* Number of bytes at the end that are an unfinished but so far valid
 * character: 0 to 3. */
size_t utf8_unfinished_tail(const char *text, size_t len);

#endif
