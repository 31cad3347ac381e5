/* Questions are answered by one record a character; mappings of whole texts need what stands around a character only for the
 * capital sigma, whose lower case differs at the end of a word. */
#include "base/unicode.h"

#include "base/buf.h"
#include "base/unicode_data.h"
#include "base/utf8.h"

enum { CAPITAL_SIGMA = 0x03A3, SIGMA = 0x03C3, FINAL_SIGMA = 0x03C2 };

static bool has(uint32_t c, uint16_t flag)
{
    return unicode_record(c)->flags & flag;
}

const char *unicode_category(uint32_t c) { return unicode_category_names[unicode_record(c)->category]; }
const char *unicode_script(uint32_t c) { return unicode_script_names[unicode_record(c)->script]; }
int unicode_age(uint32_t c) { return unicode_record(c)->age; }
bool unicode_is_word(uint32_t c) { return has(c, UNICODE_WORD); }
bool unicode_is_printable(uint32_t c) { return has(c, UNICODE_PRINTABLE); }
bool unicode_is_decimal(uint32_t c) { return unicode_record(c)->decimal >= 0; }
bool unicode_is_digit(uint32_t c) { return has(c, UNICODE_DIGIT); }
bool unicode_is_numeric(uint32_t c) { return has(c, UNICODE_NUMERIC); }
int unicode_decimal_value(uint32_t c) { return unicode_record(c)->decimal; }
bool unicode_is_cased(uint32_t c) { return has(c, UNICODE_CASED); }
bool unicode_is_case_ignorable(uint32_t c) { return has(c, UNICODE_IGNORABLE); }
bool unicode_is_upper(uint32_t c) { return has(c, UNICODE_UPPER); }
bool unicode_is_lower(uint32_t c) { return has(c, UNICODE_LOWER); }
bool unicode_is_identifier_start(uint32_t c) { return has(c, UNICODE_XID_START); }
bool unicode_is_identifier_part(uint32_t c) { return has(c, UNICODE_XID_CONTINUE); }

bool unicode_is_title(uint32_t c)
{
    const char *category = unicode_category(c);

    return category[0] == 'L' && category[1] == 't';
}

bool unicode_is_pyspace(uint32_t c)
{
    return (unicode_class(c) & UC_SPACE) || (c >= 0x1C && c <= 0x1F);
}

bool unicode_is_han(uint32_t c)
{
    return c >= 0x2E80 && unicode_record(c)->script == UNICODE_SCRIPT_HAN;
}

/* ---- cases of one character ---- */

static int mapped(uint32_t c, int32_t value, uint32_t ret[3])
{
    int n = value >> 24;

    if (n <= 0) {
        ret[0] = (uint32_t)((int32_t)c + value);
        return 1;
    }
    for (int i = 0; i < n; i++)
        ret[i] = unicode_case_texts[(value & 0xFFFFFF) + i];
    return n;
}

int unicode_upper(uint32_t c, uint32_t ret[3]) { return mapped(c, unicode_cases[unicode_record(c)->mapping].upper, ret); }
int unicode_lower(uint32_t c, uint32_t ret[3]) { return mapped(c, unicode_cases[unicode_record(c)->mapping].lower, ret); }
int unicode_title(uint32_t c, uint32_t ret[3]) { return mapped(c, unicode_cases[unicode_record(c)->mapping].title, ret); }
int unicode_casefold(uint32_t c, uint32_t ret[3]) { return mapped(c, unicode_cases[unicode_record(c)->mapping].fold, ret); }

/* ---- cases of a text ---- */

struct reader {
    const char *text;
    size_t len, pos;
    uint32_t c;
    size_t start;               /* where c begins; it ends at pos */
    bool character;             /* false: c is a byte that is no part of one */
};

static bool next(struct reader *r)
{
    int n;

    if (r->pos == r->len)
        return false;
    r->start = r->pos;
    n = utf8_decode(r->text + r->pos, r->len - r->pos, &r->c);
    r->character = n > 0;
    r->pos += n > 0 ? (size_t)n : 1;
    return true;
}

static void add(struct buf *out, const uint32_t *c, int n)
{
    char bytes[12];
    size_t len = 0;

    for (int i = 0; i < n; i++)
        len += (size_t)utf8_encode(c[i], bytes + len);
    buf_add(out, bytes, len);
}

/* The character that ends before `end`; its start in *ret. 0 for a byte that is no part of one. */
static uint32_t before(const char *text, size_t end, size_t *ret)
{
    size_t start = end - 1;
    uint32_t c;

    while (start > 0 && end - start < 4 && ((unsigned char)text[start] & 0xC0) == 0x80)
        start--;
    *ret = start;
    if (utf8_decode(text + start, end - start, &c) == (int)(end - start))
        return c;
    *ret = end - 1;
    return 0;
}

/* Whether the sigma at [start, end) ends a word: something cased before it, nothing cased behind it, but for what is ignored. */
static bool is_final(const struct reader *r)
{
    struct reader behind = *r;
    size_t at = r->start;
    bool cased = false;

    while (at > 0) {
        uint32_t c = before(r->text, at, &at);

        if (!unicode_is_case_ignorable(c)) {
            cased = unicode_is_cased(c);
            break;
        }
    }
    if (!cased)
        return false;
    while (next(&behind))
        if (!behind.character || !unicode_is_case_ignorable(behind.c))
            return !behind.character || !unicode_is_cased(behind.c);
    return true;
}

static int lower_in_text(const struct reader *r, uint32_t ret[3])
{
    if (r->c != CAPITAL_SIGMA)
        return unicode_lower(r->c, ret);
    ret[0] = is_final(r) ? FINAL_SIGMA : SIGMA;
    return 1;
}

enum how { UPPER, LOWER, TITLE, CAPITALIZE, SWAP, FOLD };

static int map_character(enum how how, const struct reader *r, bool after_cased, uint32_t ret[3])
{
    switch (how) {
    case UPPER:
        return unicode_upper(r->c, ret);
    case LOWER:
        return lower_in_text(r, ret);
    case TITLE:
        return after_cased ? lower_in_text(r, ret) : unicode_title(r->c, ret);
    case CAPITALIZE:
        return r->start > 0 ? lower_in_text(r, ret) : unicode_title(r->c, ret);
    case SWAP:
        if (unicode_is_upper(r->c))
            return lower_in_text(r, ret);
        if (unicode_is_lower(r->c))
            return unicode_upper(r->c, ret);
        ret[0] = r->c;
        return 1;
    case FOLD:
    default:
        return unicode_casefold(r->c, ret);
    }
}

static void map_text(enum how how, struct buf *out, const char *text, size_t len)
{
    struct reader r = { .text = text, .len = len };
    bool after_cased = false;
    uint32_t to[3];

    while (next(&r)) {
        if (r.character)
            add(out, to, map_character(how, &r, after_cased, to));
        else
            buf_add(out, text + r.start, 1);
        after_cased = r.character && unicode_is_cased(r.c);
    }
}

void unicode_add_upper(struct buf *out, const char *text, size_t len) { map_text(UPPER, out, text, len); }
void unicode_add_lower(struct buf *out, const char *text, size_t len) { map_text(LOWER, out, text, len); }
void unicode_add_title(struct buf *out, const char *text, size_t len) { map_text(TITLE, out, text, len); }
void unicode_add_capitalize(struct buf *out, const char *text, size_t len) { map_text(CAPITALIZE, out, text, len); }
void unicode_add_swapcase(struct buf *out, const char *text, size_t len) { map_text(SWAP, out, text, len); }
void unicode_add_casefold(struct buf *out, const char *text, size_t len) { map_text(FOLD, out, text, len); }
