/* cursor.h - reads little-endian values from bytes that may be hostile.
 *
 * A cursor never leaves its bytes: a read that does not fit sets `bad`, gives
 * zero and moves nothing further, so a parser may read a group of fields and
 * ask once. Counts are checked with cursor_fits() *before* memory is asked
 * for.
 */
#ifndef BASE_CURSOR_H
#define BASE_CURSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct cursor {
    const uint8_t *data;
    size_t len, pos;
    bool bad;
};

static inline struct cursor cursor_over(const void *data, size_t len)
{
    return (struct cursor){ .data = data, .len = len };
}

static inline size_t cursor_left(const struct cursor *c)
{
    return c->bad ? 0 : c->len - c->pos;
}

/* True when n pieces of `size` bytes each lie ahead. */
static inline bool cursor_fits(const struct cursor *c, uint64_t n, size_t size)
{
    uint64_t bytes;

    return !c->bad && !__builtin_mul_overflow(n, (uint64_t)size, &bytes) &&
           bytes <= c->len - c->pos;
}

/* The next n bytes in place, or NULL. */
static inline const void *cursor_bytes(struct cursor *c, uint64_t n)
{
    const uint8_t *at = c->data + c->pos;

    if (!cursor_fits(c, n, 1)) {
        c->bad = true;
        return NULL;
    }
    c->pos += (size_t)n;
    return at;
}

static inline void cursor_copy(struct cursor *c, void *to, size_t n)
{
    const void *at = cursor_bytes(c, n);

    if (at)
        memcpy(to, at, n);
    else
        memset(to, 0, n);
}

#define CURSOR_READ(name, type)                                                                    \
    static inline type cursor_##name(struct cursor *c)                                             \
    {                                                                                              \
        type v;                                                                                    \
        cursor_copy(c, &v, sizeof v);                                                              \
        return v;                                                                                  \
    }

CURSOR_READ(u8, uint8_t)
CURSOR_READ(u16, uint16_t)
CURSOR_READ(u32, uint32_t)
CURSOR_READ(u64, uint64_t)
CURSOR_READ(i32, int32_t)
CURSOR_READ(f32, float)
CURSOR_READ(f64, double)
#undef CURSOR_READ

#endif
