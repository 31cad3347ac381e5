#include "base/buf.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { FIRST = 256 };

void buf_fini(struct buf *b)
{
    free(b->data);
    *b = (struct buf){ .limit = b->limit };
}

char *buf_room(struct buf *b, size_t len)
{
    size_t need, cap;
    char *data;

    if (__builtin_add_overflow(b->len, len, &need) || need == SIZE_MAX ||
        (b->limit && need > b->limit)) {
        b->failed = true;
        return NULL;
    }
    if (need + 1 > b->cap) {
        cap = b->cap ? b->cap : FIRST;
        while (cap < need + 1)
            cap = cap > SIZE_MAX / 2 ? need + 1 : cap * 2;
        data = realloc(b->data, cap);
        if (!data) {
            b->failed = true;
            return NULL;
        }
        b->data = data;
        b->cap = cap;
    }
    return b->data + b->len;
}

void buf_grew(struct buf *b, size_t len)
{
    b->len += len;
    b->data[b->len] = '\0';
}

void buf_add(struct buf *b, const void *data, size_t len)
{
    char *room = buf_room(b, len);

    if (!room)
        return;
    if (len)
        memcpy(room, data, len);
    buf_grew(b, len);
}

void buf_adds(struct buf *b, const char *text)
{
    buf_add(b, text, strlen(text));
}

void buf_addc(struct buf *b, char c)
{
    buf_add(b, &c, 1);
}

void buf_vprintf(struct buf *b, const char *fmt, va_list ap)
{
    va_list again;
    char *room;
    int n;

    va_copy(again, ap);
    n = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    room = n < 0 ? NULL : buf_room(b, (size_t)n);
    if (!room) {
        b->failed = true;
        return;
    }
    vsnprintf(room, (size_t)n + 1, fmt, ap);
    buf_grew(b, (size_t)n);
}

void buf_quote(struct buf *b, const char *text)
{
    buf_addc(b, '"');
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            buf_addc(b, '\\');
        buf_addc(b, *text);
    }
    buf_addc(b, '"');
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    buf_vprintf(b, fmt, ap);
    va_end(ap);
}

void buf_drop(struct buf *b, size_t len)
{
    if (!len)
        return;
    if (len > b->len)
        len = b->len;
    memmove(b->data, b->data + len, b->len - len);
    b->len -= len;
    b->data[b->len] = '\0';
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->data)
        b->data[0] = '\0';
}

const char *buf_str(const struct buf *b)
{
    return b->data ? b->data : "";
}

char *buf_take(struct buf *b)
{
    char *data;

    if (!b->failed && !b->data && buf_room(b, 0))
        buf_grew(b, 0);
    if (b->failed) {
        buf_fini(b);
        return NULL;
    }
    data = STEAL(b->data);
    buf_fini(b);
    return data;
}
