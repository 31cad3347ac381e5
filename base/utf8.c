#include "base/utf8.h"

int utf8_decode(const char *text, size_t len, uint32_t *ret)
{
    const uint8_t *s = (const uint8_t *)text;
    uint32_t c;
    uint8_t low = 0x80, high = 0xBF;
    int more;

    if (!len)
        return 0;
    if (s[0] < 0x80) {
        *ret = s[0];
        return 1;
    }
    if (s[0] >= 0xC2 && s[0] <= 0xDF) {
        more = 1;
        c = s[0] & 0x1F;
    } else if ((s[0] & 0xF0) == 0xE0) {
        more = 2;
        c = s[0] & 0x0F;
        if (s[0] == 0xE0)
            low = 0xA0;             /* overlong below */
        if (s[0] == 0xED)
            high = 0x9F;            /* surrogates above */
    } else if (s[0] >= 0xF0 && s[0] <= 0xF4) {
        more = 3;
        c = s[0] & 0x07;
        if (s[0] == 0xF0)
            low = 0x90;
        if (s[0] == 0xF4)
            high = 0x8F;
    } else {
        return -1;
    }
    for (int i = 1; i <= more; i++) {
        if ((size_t)i == len)
            return -2;
        if (s[i] < low || s[i] > high)
            return -1;
        low = 0x80;
        high = 0xBF;
        c = c << 6 | (s[i] & 0x3F);
    }
    *ret = c;
    return more + 1;
}

int utf8_encode(uint32_t c, char out[4])
{
    if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF))
        c = 0xFFFD;
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xC0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3F));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xE0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3F));
        out[2] = (char)(0x80 | (c & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3F));
    out[2] = (char)(0x80 | (c >> 6 & 0x3F));
    out[3] = (char)(0x80 | (c & 0x3F));
    return 4;
}

size_t utf8_valid_prefix(const char *text, size_t len)
{
    size_t pos = 0;
    uint32_t c;
    int n;

    while (pos < len && (n = utf8_decode(text + pos, len - pos, &c)) > 0)
        pos += (size_t)n;
    return pos;
}

bool utf8_is_valid(const char *text, size_t len)
{
    return utf8_valid_prefix(text, len) == len;
}

size_t utf8_unfinished_tail(const char *text, size_t len)
{
    uint32_t c;

    for (size_t n = 1; n <= 3 && n <= len; n++)
        if (((unsigned char)text[len - n] & 0xC0) == 0xC0)
            return utf8_decode(text + len - n, n, &c) == -2 ? n : 0;
    return 0;
}
