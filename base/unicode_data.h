/* unicode_data.h - the generated tables, for unicode.c and unicode_normal.c; everybody else reads unicode.h.
 *
 * A record is all that characters have in common; a two-stage table gives each character's. What lies behind the last block is
 * record 0: not assigned. Combining classes, decompositions and compositions are those of characters of Unicode 9; later ones
 * have none.
 */
#ifndef BASE_UNICODE_DATA_H
#define BASE_UNICODE_DATA_H

#include <stddef.h>
#include <stdint.h>

enum { UNICODE_RECORD_BLOCKS = 8704, UNICODE_DECOMPOSED_BLOCKS = 6097, UNICODE_PAIRS = 940, UNICODE_SCRIPT_HAN = 50 };

/* unicode_record.flags, as tools/unicode.py has them */
enum {
    UNICODE_WORD = 1 << 0,
    UNICODE_PRINTABLE = 1 << 1,
    UNICODE_DIGIT = 1 << 2,
    UNICODE_NUMERIC = 1 << 3,
    UNICODE_CASED = 1 << 4,
    UNICODE_IGNORABLE = 1 << 5,
    UNICODE_UPPER = 1 << 6,
    UNICODE_LOWER = 1 << 7,
    UNICODE_XID_START = 1 << 8,
    UNICODE_XID_CONTINUE = 1 << 9,
    UNICODE_CANONICAL = 1 << 10,    /* has a canonical decomposition; Hangul too */
    UNICODE_COMPATIBLE = 1 << 11,   /* has one that only NFKC and NFKD make */
    UNICODE_NFC_NO = 1 << 12,       /* never in NFC */
    UNICODE_NFKC_NO = 1 << 13,
    UNICODE_MAYBE = 1 << 14,        /* may compose with, or be sorted among, what stands before it */
};

struct unicode_record {
    uint8_t category, script, combining, age;
    int8_t decimal;                 /* 0 to 9, or -1 */
    uint16_t mapping;               /* of unicode_cases */
    uint16_t flags;
};

/* Below 1 << 24 and negative: added to the character. Else (n << 24 | first): n characters of unicode_case_texts. */
struct unicode_case { int32_t upper, lower, title, fold; };

struct unicode_pair { uint32_t first, second, composed; };

extern const uint16_t unicode_record_index[UNICODE_RECORD_BLOCKS], unicode_record_blocks[];
extern const struct unicode_record unicode_records[];
extern const struct unicode_case unicode_cases[];
extern const uint32_t unicode_case_texts[];
extern const char *const unicode_category_names[], *const unicode_script_names[];

/* Where in unicode_decomposed_texts a character's decompositions are, both taken to their ends: (n | m << 8), n characters of the
 * canonical one, m of the other, where that differs. 0: there is none (or it is Hangul). */
extern const uint16_t unicode_decomposed_index[UNICODE_DECOMPOSED_BLOCKS], unicode_decomposed_blocks[];
extern const uint32_t unicode_decomposed_texts[];
extern const struct unicode_pair unicode_pairs[UNICODE_PAIRS];     /* by first, second; without Hangul */

static inline const struct unicode_record *unicode_record(uint32_t c)
{
    size_t block = c >> 7;

    return &unicode_records[block < UNICODE_RECORD_BLOCKS ? unicode_record_blocks[unicode_record_index[block] << 7 | (c & 127)] : 0];
}

#endif
