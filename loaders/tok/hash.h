/* hash.h - hashes of short byte strings and of pairs, seeded, so that no file and no text can choose its collisions.
 *
 * Source   the folded multiplication of wyhash (public domain)
 */
#ifndef LOADERS_TOK_HASH_H
#define LOADERS_TOK_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t hash_mix(uint64_t a, uint64_t b)
{
    unsigned __int128 r = (unsigned __int128)a * b;

    return (uint64_t)r ^ (uint64_t)(r >> 64);
}

static inline uint64_t hash_load64(const char *p) { uint64_t v; memcpy(&v, p, sizeof v); return v; }
static inline uint32_t hash_load32(const char *p) { uint32_t v; memcpy(&v, p, sizeof v); return v; }

static inline uint64_t hash_bytes(uint64_t seed, const char *p, size_t len)
{
    const uint64_t k0 = 0xA0761D6478BD642Fu, k1 = 0xE7037ED1A0B428DBu;
    uint64_t a, b, h = seed ^ k0;

    if (len > 16) {
        for (size_t i = 0; i + 16 < len; i += 16)
            h = hash_mix(hash_load64(p + i) ^ k1, hash_load64(p + i + 8) ^ h);
        a = hash_load64(p + len - 16);
        b = hash_load64(p + len - 8);
    } else if (len >= 8) {
        a = hash_load64(p);
        b = hash_load64(p + len - 8);
    } else if (len >= 4) {
        a = hash_load32(p);
        b = hash_load32(p + len - 4);
    } else {
        a = len ? (uint64_t)(unsigned char)p[0] << 16 | (uint64_t)(unsigned char)p[len / 2] << 8 | (unsigned char)p[len - 1] : 0;
        b = 0;
    }
    return hash_mix(k1 ^ len, hash_mix(a ^ k1, b ^ h));
}

static inline uint64_t hash_pair(uint64_t seed, uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) ^ seed;

    return hash_mix(h, 0x9E3779B97F4A7C15u);
}

/* A power of two that n entries fill to two thirds at most. */
static inline uint32_t hash_size(size_t n)
{
    uint32_t size = 16;

    while (size / 3 * 2 < n)
        size *= 2;
    return size;
}

#endif
