/* arena.h - many small allocations, one free.
 *
 * What a request needs comes from its arena and goes with it. Memory comes in
 * blocks; a piece is aligned to 16 bytes and is never moved or freed alone.
 *
 * Threads  one at a time
 */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include "base/cleanup.h"

#include <stdarg.h>
#include <stddef.h>

struct arena;

/* An arena that holds at most `limit` bytes in all (0: no limit of its own),
 * or NULL when memory is gone. */
struct arena *arena_new(size_t limit);
void arena_free(struct arena *a);                   /* NULL is fine */
DEFINE_CLEANUP(struct arena *, arena_free)

/* NULL when memory or the limit ran out; zeroed otherwise. arena_array checks
 * the product. */
void *arena_alloc(struct arena *a, size_t size);
void *arena_array(struct arena *a, size_t n, size_t size);
char *arena_strdup(struct arena *a, const char *text);
char *arena_strndup(struct arena *a, const char *text, size_t len);
char *arena_printf(struct arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

size_t arena_used(const struct arena *a);           /* bytes handed out */

#endif
