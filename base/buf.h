/* buf.h - a byte buffer that grows.
 *
 * Writers never fail in place: when memory or the limit runs out, the buffer
 * drops what does not fit, remembers it in `failed`, and the caller asks once
 * at the end. `data` always has a NUL behind its `len` bytes (not counted), so
 * that a buffer of text is a C string; an empty buffer that never grew has
 * data == NULL, and buf_str() gives "".
 *
 *     BUF_LOCAL b = BUF_INIT;                       released at the end of scope
 */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include "base/cleanup.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

struct buf {
    char *data;
    size_t len, cap;
    size_t limit;           /* bytes it may hold; 0: no limit of its own */
    bool failed;
};

#define BUF_INIT { 0 }

/* Releases the storage and leaves an empty buffer. */
void buf_fini(struct buf *b);
static inline void buf_fini_cleanup(struct buf *b) { buf_fini(b); }
#define BUF_LOCAL __attribute__((cleanup(buf_fini_cleanup))) struct buf

void buf_add(struct buf *b, const void *data, size_t len);
void buf_adds(struct buf *b, const char *text);
void buf_addc(struct buf *b, char c);
/* In double quotes, with a backslash before each quote and backslash, as a
 * configuration file has it (JSON is json.h's). */
void buf_quote(struct buf *b, const char *text);
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_vprintf(struct buf *b, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));

/* Room for `len` more bytes at data + len, or NULL (and failed is set). The
 * caller writes them and adds what it wrote to b->len with buf_grew(). */
char *buf_room(struct buf *b, size_t len);
void buf_grew(struct buf *b, size_t len);

/* Drops `len` bytes from the front. */
void buf_drop(struct buf *b, size_t len);
/* Empties it, keeps the storage, forgets `failed`. */
void buf_clear(struct buf *b);

/* The bytes as a C string that lives as long as the buffer is not touched. */
const char *buf_str(const struct buf *b);

/* Hands over the storage (free() it) and leaves an empty buffer; NULL when the
 * buffer failed or memory ran out. */
char *buf_take(struct buf *b);

#endif
