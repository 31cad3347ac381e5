#include "base/arena.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { BLOCK = 4096, ALIGN = 16 };

struct block {
    struct block *next;
    size_t used, cap;
    _Alignas(ALIGN) char data[];
};

struct arena {
    struct block *blocks;
    size_t limit, used;
};

struct arena *arena_new(size_t limit)
{
    struct arena *a = calloc(1, sizeof *a);

    if (a)
        a->limit = limit;
    return a;
}

void arena_free(struct arena *a)
{
    if (!a)
        return;
    for (struct block *b = a->blocks, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    free(a);
}

void *arena_alloc(struct arena *a, size_t size)
{
    struct block *b = a->blocks;
    size_t cap;
    void *piece;

    if (size > SIZE_MAX / 2)
        return NULL;
    size = (size + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    if (a->limit && (size > a->limit || a->used > a->limit - size))
        return NULL;
    if (!b || b->cap - b->used < size) {
        cap = size > BLOCK ? size : BLOCK;
        b = malloc(sizeof *b + cap);
        if (!b)
            return NULL;
        b->used = 0;
        b->cap = cap;
        /* A block for one big piece goes behind the current one, which may
         * still have room for many small ones. */
        if (a->blocks && size > BLOCK) {
            b->next = a->blocks->next;
            a->blocks->next = b;
        } else {
            b->next = a->blocks;
            a->blocks = b;
        }
    }
    piece = b->data + b->used;
    b->used += size;
    a->used += size;
    return memset(piece, 0, size);
}

void *arena_array(struct arena *a, size_t n, size_t size)
{
    size_t bytes;

    return __builtin_mul_overflow(n, size, &bytes) ? NULL : arena_alloc(a, bytes);
}

char *arena_strndup(struct arena *a, const char *text, size_t len)
{
    char *copy = len == SIZE_MAX ? NULL : arena_alloc(a, len + 1);

    if (copy)
        memcpy(copy, text, len);
    return copy;
}

char *arena_strdup(struct arena *a, const char *text)
{
    return arena_strndup(a, text, strlen(text));
}

char *arena_printf(struct arena *a, const char *fmt, ...)
{
    va_list ap;
    char *text;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    text = n < 0 ? NULL : arena_alloc(a, (size_t)n + 1);
    if (text) {
        va_start(ap, fmt);
        vsnprintf(text, (size_t)n + 1, fmt, ap);
        va_end(ap);
    }
    return text;
}

size_t arena_used(const struct arena *a)
{
    return a->used;
}
