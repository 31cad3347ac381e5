#include "conv/jinja/pool.h"

#include <errno.h>
#include <stdlib.h>

enum { CHUNK_FIRST = 16 << 10, CHUNK_MAX = 1 << 20 };

struct pool_chunk { struct pool_chunk *next; _Alignas(16) char data[]; };

void *pool_grow(struct pool *p, size_t size)
{
    size_t want = p->used < CHUNK_FIRST ? CHUNK_FIRST : p->used < CHUNK_MAX ? p->used : CHUNK_MAX;
    struct pool_chunk *c;

    if (size > SIZE_MAX / 4) {
        errno = E2BIG;
        return NULL;
    }
    size = (size + 7) & ~(size_t)7;
    if (want < size)
        want = size;
    if (want > p->limit - p->used)
        want = size;                    /* near the limit: only what is needed */
    if (p->used > p->limit || want > p->limit - p->used) {
        errno = E2BIG;
        return NULL;
    }
    c = malloc(sizeof *c + want);
    if (!c) {
        errno = ENOMEM;
        return NULL;
    }
    p->used += want;
    c->next = p->chunks;
    p->chunks = c;
    if (want == size && p->end - p->at > CHUNK_FIRST / 4)
        return c->data;                 /* a big piece of its own; the chunk in use goes on */
    p->at = c->data + size;
    p->end = c->data + want;
    return c->data;
}

void pool_fini(struct pool *p)
{
    for (struct pool_chunk *c = p->chunks, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    *p = (struct pool){ .limit = p->limit };
}
