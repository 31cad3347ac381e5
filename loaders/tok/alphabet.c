#include "loaders/tok/alphabet.h"

#include "base/buf.h"
#include "base/utf8.h"

#include <stdbool.h>
#include <string.h>

enum { FIRST_MOVED = 0x100, N_MOVED = 68 };

int alphabet_byte(uint32_t c)
{
    if ((c >= 33 && c <= 126) || (c >= 161 && c <= 172) || (c >= 174 && c <= 255))
        return (int)c;
    if (c < FIRST_MOVED || c >= FIRST_MOVED + N_MOVED)
        return -1;
    c -= FIRST_MOVED;
    return c < 33 ? (int)c : c < 67 ? (int)(c - 33 + 127) : 173;
}

uint32_t alphabet_char(uint8_t byte)
{
    if (byte < 33)
        return FIRST_MOVED + byte;
    if (byte >= 127 && byte <= 160)
        return FIRST_MOVED + 33 + (uint32_t)(byte - 127);
    return byte == 173 ? FIRST_MOVED + 67 : byte;
}

size_t alphabet_decode(const char *text, size_t len, char *out)
{
    size_t n = 0;
    uint32_t c;

    for (size_t i = 0; i < len;) {
        unsigned char first = (unsigned char)text[i];
        bool plain = first >= 33 && first <= 126;       /* nearly all */
        int step = plain ? 1 : utf8_decode(text + i, len - i, &c);
        int byte = plain ? first : step > 0 ? alphabet_byte(c) : -1;

        if (byte < 0) {
            memcpy(out, text, len);
            return len;
        }
        out[n++] = (char)byte;
        i += (size_t)step;
    }
    return n;
}

void alphabet_encode(const char *bytes, size_t len, struct buf *out)
{
    for (size_t i = 0; i < len; i++) {
        char c[4];

        buf_add(out, c, (size_t)utf8_encode(alphabet_char((uint8_t)bytes[i]), c));
    }
}
