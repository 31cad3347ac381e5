/* Normal forms, by segments: a segment begins at a character that nothing before it can combine with or be sorted among, and what
 * is in the form already is copied as it is. Within a segment characters are decomposed to their ends, runs of marks are sorted by
 * their classes, and for the composing forms pairs are put together again (UAX 15, D117).
 *
 * A segment may be as long as the text: a run of marks has no end but that of the text. Long ones are sorted by counting, so
 * that the whole stays linear. */
#include "base/unicode.h"

#include "base/buf.h"
#include "base/unicode_data.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

enum {
    S_BASE = 0xAC00, L_BASE = 0x1100, V_BASE = 0x1161, T_BASE = 0x11A7,
    L_COUNT = 19, V_COUNT = 21, T_COUNT = 28, S_COUNT = L_COUNT * V_COUNT * T_COUNT,
    SHORT_RUN = 32,                     /* marks that are sorted by insertion */
    NOT_A_CHARACTER = 0x110000,         /* added to a byte that is no part of one */
};

/* Flags that make a character worth looking at, by form. */
static const uint16_t suspects[] = {
    [UNICODE_NFC] = UNICODE_NFC_NO | UNICODE_MAYBE,
    [UNICODE_NFD] = UNICODE_CANONICAL,
    [UNICODE_NFKC] = UNICODE_NFKC_NO | UNICODE_MAYBE,
    [UNICODE_NFKD] = UNICODE_CANONICAL | UNICODE_COMPATIBLE,
};

static bool composes(enum unicode_form form) { return form == UNICODE_NFC || form == UNICODE_NFKC; }
static bool is_compatible(enum unicode_form form) { return form == UNICODE_NFKC || form == UNICODE_NFKD; }

/* Length of the prefix that is in the form, and that nothing behind it changes: it ends before the last character that may begin
 * a segment. The whole length when all is well. */
static size_t normal_prefix(enum unicode_form form, const char *text, size_t len)
{
    size_t pos = 0, segment = 0;
    uint8_t last = 0;

    while (pos < len) {
        const struct unicode_record *r;
        uint32_t c;
        int n;

        if (!(text[pos] & 0x80)) {              /* ASCII is in every form */
            segment = pos++;
            last = 0;
            continue;
        }
        n = utf8_decode(text + pos, len - pos, &c);
        if (n <= 0) {
            segment = pos++;
            last = 0;
            continue;
        }
        r = unicode_record(c);
        if (r->flags & suspects[form] || (r->combining && r->combining < last))
            return r->combining || r->flags & UNICODE_MAYBE || !pos ? segment : pos;
        if (!r->combining)
            segment = pos;
        last = r->combining;
        pos += (size_t)n;
    }
    return len;
}

bool unicode_is_normal(enum unicode_form form, const char *text, size_t len)
{
    return normal_prefix(form, text, len) == len;
}

/* ---- a segment ---- */

struct mark { uint32_t c; uint8_t combining; };

struct segment {
    struct mark *list, *sorted; /* `sorted`: as many, for sorting */
    size_t n, cap;
    bool failed;
    struct mark room[2 * SHORT_RUN];
};

static void segment_fini(struct segment *s)
{
    if (s->list != s->room)
        free(s->list);
    free(s->sorted);
}

static void put(struct segment *s, uint32_t c, uint8_t combining)
{
    struct mark *list;

    if (s->n == s->cap) {
        list = s->failed || s->cap > SIZE_MAX / (4 * sizeof *list) ? NULL : malloc(2 * s->cap * sizeof *list);
        if (!list) {
            s->failed = true;
            return;
        }
        memcpy(list, s->list, s->n * sizeof *list);
        if (s->list != s->room)
            free(s->list);
        s->list = list;
        s->cap *= 2;
    }
    s->list[s->n++] = (struct mark){ c, combining };
}

static void put_hangul(struct segment *s, uint32_t c)
{
    uint32_t i = c - S_BASE;

    put(s, L_BASE + i / (V_COUNT * T_COUNT), 0);
    put(s, V_BASE + i % (V_COUNT * T_COUNT) / T_COUNT, 0);
    if (i % T_COUNT)
        put(s, T_BASE + i % T_COUNT, 0);
}

static const uint32_t *decomposed(uint32_t c, bool compatible, unsigned *ret_n)
{
    const uint32_t *entry = &unicode_decomposed_texts[unicode_decomposed_blocks[unicode_decomposed_index[c >> 5] << 5 | (c & 31)]];
    unsigned plain = *entry & 255, wide = *entry >> 8;

    *ret_n = compatible && wide ? wide : plain;
    return entry + 1 + (compatible && wide ? plain : 0);
}

static void put_decomposed(struct segment *s, enum unicode_form form, uint32_t c, const struct unicode_record *r)
{
    const uint32_t *to;
    unsigned n;

    if (!(r->flags & (UNICODE_CANONICAL | (is_compatible(form) ? UNICODE_COMPATIBLE : 0)))) {
        put(s, c, r->combining);
    } else if (c - S_BASE < S_COUNT) {
        put_hangul(s, c);
    } else {
        to = decomposed(c, is_compatible(form), &n);
        for (unsigned i = 0; i < n; i++)
            put(s, to[i], unicode_record(to[i])->combining);
    }
}

static void sort_short(struct mark *list, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        struct mark m = list[i];
        size_t at = i;

        for (; at > 0 && list[at - 1].combining > m.combining; at--)
            list[at] = list[at - 1];
        list[at] = m;
    }
}

static void sort_long(struct segment *s, struct mark *list, size_t n)
{
    size_t first[257] = { 0 };

    if (!s->sorted)
        s->sorted = malloc(s->n * sizeof s->sorted[0]);
    if (!s->sorted) {
        s->failed = true;
        return;
    }
    for (size_t i = 0; i < n; i++)
        first[list[i].combining + 1]++;
    for (size_t i = 1; i < 257; i++)
        first[i] += first[i - 1];
    for (size_t i = 0; i < n; i++)
        s->sorted[first[list[i].combining]++] = list[i];
    memcpy(list, s->sorted, n * sizeof *list);
}

/* Marks between two starters, by class, equal ones as they are. */
static void sort_marks(struct segment *s)
{
    size_t end;

    for (size_t i = 0; i < s->n; i = end) {
        for (end = i + 1; s->list[i].combining && end < s->n && s->list[end].combining; )
            end++;
        if (end - i <= SHORT_RUN)
            sort_short(s->list + i, end - i);
        else
            sort_long(s, s->list + i, end - i);
    }
    free(s->sorted);
    s->sorted = NULL;
}

/* 0: they do not compose. */
static uint32_t compose(uint32_t first, uint32_t second)
{
    size_t low = 0, high = UNICODE_PAIRS;

    if (first - L_BASE < L_COUNT && second - V_BASE < V_COUNT)
        return S_BASE + ((first - L_BASE) * V_COUNT + (second - V_BASE)) * T_COUNT;
    if (first - S_BASE < S_COUNT && (first - S_BASE) % T_COUNT == 0 && second > T_BASE && second < T_BASE + T_COUNT)
        return first + (second - T_BASE);
    while (low < high) {
        size_t mid = (low + high) / 2;
        const struct unicode_pair *p = &unicode_pairs[mid];

        if (p->first == first && p->second == second)
            return p->composed;
        if (p->first < first || (p->first == first && p->second < second))
            low = mid + 1;
        else
            high = mid;
    }
    return 0;
}

/* Each character is put together with the last starter, unless one that stays between them has its class or a higher one. */
static void compose_all(struct segment *s)
{
    struct mark *starter = NULL;
    size_t out = 0;
    int last = -1;                      /* class of what stays before this one, behind the starter; -1: nothing */

    for (size_t i = 0; i < s->n; i++) {
        struct mark m = s->list[i];
        uint32_t whole = starter && last < m.combining ? compose(starter->c, m.c) : 0;

        if (whole) {
            starter->c = whole;
            continue;
        }
        s->list[out] = m;
        if (m.combining == 0)
            starter = &s->list[out];
        last = m.combining ? m.combining : -1;
        out++;
    }
    s->n = out;
}

static void finish(struct buf *out, struct segment *s, enum unicode_form form)
{
    char bytes[4];

    sort_marks(s);
    if (composes(form))
        compose_all(s);
    for (size_t i = 0; i < s->n; i++)
        if (s->list[i].c >= NOT_A_CHARACTER)
            buf_addc(out, (char)(s->list[i].c - NOT_A_CHARACTER));
        else
            buf_add(out, bytes, (size_t)utf8_encode(s->list[i].c, bytes));
    s->n = 0;
}

/* One segment, from its first character to before the next one's; returns its length in bytes. */
static size_t read_segment(struct segment *s, enum unicode_form form, const char *text, size_t len)
{
    size_t pos = 0;

    while (pos < len) {
        uint32_t c;
        int n = utf8_decode(text + pos, len - pos, &c);
        const struct unicode_record *r = n > 0 ? unicode_record(c) : NULL;

        if (pos > 0 && (!r || (!r->combining && !(r->flags & UNICODE_MAYBE))))
            break;
        if (r)
            put_decomposed(s, form, c, r);
        else
            put(s, NOT_A_CHARACTER + (unsigned char)text[pos], 0);
        pos += n > 0 ? (size_t)n : 1;
    }
    return pos;
}

void unicode_add_normal(struct buf *out, enum unicode_form form, const char *text, size_t len)
{
    struct segment s = { .cap = sizeof s.room / sizeof s.room[0] };

    s.list = s.room;
    while (len > 0 && !s.failed) {
        size_t n = normal_prefix(form, text, len);

        buf_add(out, text, n);
        text += n;
        len -= n;
        if (!len)
            break;
        n = read_segment(&s, form, text, len);
        finish(out, &s, form);
        text += n;
        len -= n;
    }
    if (s.failed)
        out->failed = true;
    segment_fini(&s);
}
