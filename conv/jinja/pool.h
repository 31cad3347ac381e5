/* pool.h - memory that is given back as a whole; the fast path is an addition.
 *
 * base/arena.h zeroes every piece and counts per call; a render makes some thousands of pieces of
 * 16 to 64 bytes, most of them written at once.
 */
#ifndef CONV_JINJA_POOL_H
#define CONV_JINJA_POOL_H

#include <stddef.h>
#include <stdint.h>

struct pool_chunk;
struct pool {
    char *at, *end;
    struct pool_chunk *chunks;
    size_t used, limit;             /* bytes of all chunks */
};

/* NULL: over the limit, or no memory (errno tells: E2BIG, ENOMEM). */
void *pool_grow(struct pool *p, size_t size);
void pool_fini(struct pool *p);

static inline void *pool_alloc(struct pool *p, size_t size)    /* aligned to 8 */
{
    char *piece = p->at;

    if (__builtin_expect(size > (size_t)(p->end - piece), 0))
        return pool_grow(p, size);
    size = (size + 7) & ~(size_t)7;             /* chunks are multiples of 8 */
    p->at = piece + size;
    return piece;
}

#endif
