/* unicode.h - what characters are: classes, cases, normal forms.
 *
 * Classes and cases are those of Unicode 16, from generated tables (unicode_data.c: tools/unicode.py makes it from the PyPI
 * package unicodedataplus, and a test makes it again). Normal forms are those of Unicode 9, which Hugging Face's tokenizers have:
 * characters assigned later are left alone.
 *
 * Texts are UTF-8; a byte that is no part of a character is copied as it is and is like a character of no class.
 *
 * Threads  any
 * Source   Unicode 16.0: UnicodeData, SpecialCasing, CaseFolding, PropList, Scripts; UAX 15; Python 3's str for what bears its names
 */
#ifndef BASE_UNICODE_H
#define BASE_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;

/* One byte a character: bits, so that a class of a regular expression is one test. */
enum {
    UC_LETTER_UPPER = 1,            /* Lu, Lt */
    UC_LETTER_LOWER = 2,            /* Ll */
    UC_LETTER_OTHER = 4,            /* Lm, Lo */
    UC_LETTER = 7,
    UC_MARK = 8,                    /* Mn, Mc, Me */
    UC_NUMBER = 16,                 /* Nd, Nl, No */
    UC_PUNCTUATION = 32,            /* P* */
    UC_SYMBOL = 64,                 /* S* */
    UC_SPACE = 128,                 /* White_Space */
};
enum { UNICODE_CLASS_BLOCKS = 7172 };
extern const uint8_t unicode_ascii_class[128], unicode_class_index[UNICODE_CLASS_BLOCKS], unicode_class_blocks[];

/* 0 for what has none of these classes (controls, unassigned), and for what is no character. */
static inline uint8_t unicode_class(uint32_t c)
{
    uint32_t block = c >> 7;

    if (block == 0)
        return unicode_ascii_class[c];
    return block < UNICODE_CLASS_BLOCKS ? unicode_class_blocks[(uint32_t)unicode_class_index[block] << 7 | (c & 127)] : 0;
}

/* General category, two letters: "Lu", "Nd", "Cn". */
const char *unicode_category(uint32_t c);
int unicode_age(uint32_t c);                        /* major version of Unicode that had it first, 1 to 16; 0: not assigned */
bool unicode_is_han(uint32_t c);                    /* Script=Han, not its extensions */
const char *unicode_script(uint32_t c);             /* "Latin", "Han", "Common", …, "Unknown" */
bool unicode_is_word(uint32_t c);                   /* \w of UTS 18: Alphabetic, M, Nd, Pc, Join_Control */
bool unicode_is_pyspace(uint32_t c);                /* Python's str.isspace: White_Space and U+001C to U+001F */
bool unicode_is_printable(uint32_t c);              /* Python's str.isprintable */
bool unicode_is_decimal(uint32_t c);                /* Nd; str.isdecimal */
bool unicode_is_digit(uint32_t c);                  /* Numeric_Type Decimal or Digit; str.isdigit */
bool unicode_is_numeric(uint32_t c);                /* any Numeric_Type; str.isnumeric */
int unicode_decimal_value(uint32_t c);              /* 0 to 9, or -1 */
bool unicode_is_cased(uint32_t c);                  /* Cased, Case_Ignorable: for final sigma, title */
bool unicode_is_case_ignorable(uint32_t c);
bool unicode_is_upper(uint32_t c);                  /* Uppercase, Lowercase: str.isupper, str.islower */
bool unicode_is_lower(uint32_t c);
bool unicode_is_title(uint32_t c);                  /* Lt */
bool unicode_is_identifier_start(uint32_t c);       /* XID_Start, XID_Continue */
bool unicode_is_identifier_part(uint32_t c);

/* Full mappings of one character (SpecialCasing without conditions): writes 1 to 3 characters and returns how many. */
int unicode_upper(uint32_t c, uint32_t ret[3]);
int unicode_lower(uint32_t c, uint32_t ret[3]);
int unicode_title(uint32_t c, uint32_t ret[3]);
int unicode_casefold(uint32_t c, uint32_t ret[3]);

/* Text as Python's str methods of these names: a sigma at a word's end becomes the final one. Appended; linear in len. */
void unicode_add_upper(struct buf *out, const char *text, size_t len);
void unicode_add_lower(struct buf *out, const char *text, size_t len);
void unicode_add_title(struct buf *out, const char *text, size_t len);
void unicode_add_capitalize(struct buf *out, const char *text, size_t len);
void unicode_add_swapcase(struct buf *out, const char *text, size_t len);
void unicode_add_casefold(struct buf *out, const char *text, size_t len);

enum unicode_form { UNICODE_NFC, UNICODE_NFD, UNICODE_NFKC, UNICODE_NFKD };
/* Whether a text is surely in the form already (a quick check; false: it may be). */
bool unicode_is_normal(enum unicode_form form, const char *text, size_t len);
/* Appends the text in the form. Linear in len; what is in the form already is copied. */
void unicode_add_normal(struct buf *out, enum unicode_form form, const char *text, size_t len);

#endif
