/* sha256.h - SHA-256 of short texts, for what must not be guessed or collide by
 * choice and may not need a library. Files are cli/digest.h's.
 *
 * Source   FIPS 180-4, sections 5 and 6.2
 */
#ifndef BASE_SHA256_H
#define BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { SHA256_BYTES = 32, SHA256_BLOCK = 64 };

struct sha256 {
    uint32_t h[8];
    uint64_t n;                     /* bytes so far */
    uint8_t block[SHA256_BLOCK];
};

void sha256_begin(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *data, size_t len);
void sha256_end(struct sha256 *s, uint8_t ret[SHA256_BYTES]);

#endif
