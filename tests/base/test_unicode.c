/* What the standard says in examples; test_unicode.py compares all code points with Python. */
#include "base/buf.h"
#include "base/unicode.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

static const char *normal(struct buf *out, enum unicode_form form, const char *text)
{
    buf_clear(out);
    unicode_add_normal(out, form, text, strlen(text));
    return buf_str(out);
}

Test(unicode, a_class_is_one_bit_of_a_byte_and_0_for_what_has_none)
{
    cr_expect(eq(u8, unicode_class('A'), UC_LETTER_UPPER));
    cr_expect(eq(u8, unicode_class('z'), UC_LETTER_LOWER));
    cr_expect(eq(u8, unicode_class(0x01C5), UC_LETTER_UPPER));
    cr_expect(eq(u8, unicode_class(0x4E00), UC_LETTER_OTHER));
    cr_expect(eq(u8, unicode_class(0x0301), UC_MARK));
    cr_expect(eq(u8, unicode_class(0x0663), UC_NUMBER));
    cr_expect(eq(u8, unicode_class('!'), UC_PUNCTUATION));
    cr_expect(eq(u8, unicode_class('+'), UC_SYMBOL));
    cr_expect(eq(u8, unicode_class(0x3000), UC_SPACE));
    cr_expect(eq(u8, unicode_class(0x200B), 0));
    cr_expect(eq(u8, unicode_class(0x10FFFF), 0));
    cr_expect(eq(u8, unicode_class(0x110000), 0));
    cr_expect(eq(u8, unicode_class(UINT32_MAX), 0));
}

Test(unicode, characters_of_unicode_16_have_their_category_and_script)
{
    cr_expect(eq(str, (char *)unicode_category(0x10D50), "Lu"));
    cr_expect(eq(str, (char *)unicode_script(0x10D50), "Garay"));
    cr_expect(eq(str, (char *)unicode_category(0x323AF), "Lo"));
    cr_expect(unicode_is_han(0x323AF));
    cr_expect(not(unicode_is_han(0x3001)));             /* Common; Han only by its extensions */
    cr_expect(eq(str, (char *)unicode_category(0x0378), "Cn"));
    cr_expect(eq(str, (char *)unicode_script(UINT32_MAX), "Unknown"));
    cr_expect(unicode_is_word(0x24B6));                 /* a circled letter: Alphabetic, yet no letter */
    cr_expect(unicode_is_word(0x200D));
    cr_expect(not(unicode_is_word(0x00B2)));
}

/* Unicode 9.0: 128,172 graphic and format characters. */
Test(unicode, every_character_has_the_version_that_had_it_first)
{
    size_t n = 0;

    for (uint32_t c = 0; c < 0x110000; c++)
        n += unicode_age(c) > 0 && unicode_age(c) <= 9 && (*unicode_category(c) != 'C' || !strcmp(unicode_category(c), "Cf"));
    cr_expect(eq(sz, n, 128172));
    cr_expect(eq(int, unicode_age('a'), 1));
    cr_expect(eq(int, unicode_age(0x32FF), 12));
    cr_expect(eq(int, unicode_age(0x10D50), 16));
    cr_expect(eq(int, unicode_age(0x0378), 0));
}

Test(unicode, cases_may_grow_and_sigma_looks_around)
{
    BUF_LOCAL out = BUF_INIT;

    unicode_add_upper(&out, "straße ﬃ", strlen("straße ﬃ"));
    cr_expect(eq(str, (char *)buf_str(&out), "STRASSE FFI"));
    buf_clear(&out);
    unicode_add_lower(&out, "ὈΔΥΣΣΕΎΣ, Σ.", strlen("ὈΔΥΣΣΕΎΣ, Σ."));
    cr_expect(eq(str, (char *)buf_str(&out), "ὀδυσσεύς, σ."));
    buf_clear(&out);
    unicode_add_title(&out, "they're ǆ's", strlen("they're ǆ's"));
    cr_expect(eq(str, (char *)buf_str(&out), "They'Re ǅ'S"));
    buf_clear(&out);
    unicode_add_casefold(&out, "Maßstäbe", strlen("Maßstäbe"));
    cr_expect(eq(str, (char *)buf_str(&out), "massstäbe"));
}

Test(unicode, bytes_that_are_no_utf8_are_copied)
{
    static const char text[] = "A\xFF\xC3 \xED\xA0\x80" "B\xE2\x82";
    BUF_LOCAL out = BUF_INIT;

    unicode_add_lower(&out, text, sizeof text - 1);
    cr_expect(eq(str, (char *)buf_str(&out), "a\xFF\xC3 \xED\xA0\x80" "b\xE2\x82"));
    for (enum unicode_form form = UNICODE_NFC; form <= UNICODE_NFKD; form++) {
        cr_expect(eq(str, (char *)normal(&out, form, text), (char *)text));
        cr_expect(unicode_is_normal(form, text, sizeof text - 1));
    }
    cr_expect(eq(str, (char *)normal(&out, UNICODE_NFC, "e\xFF\xCC\x81"), "e\xFF\xCC\x81"));       /* nothing composes over it */
}

Test(unicode, normal_forms_compose_decompose_and_sort)
{
    BUF_LOCAL out = BUF_INIT;

    cr_expect(eq(str, (char *)normal(&out, UNICODE_NFC, "e\u0301\u0323"), "\u1EB9\u0301"));
    cr_expect(eq(str, (char *)normal(&out, UNICODE_NFD, "\u1EB9\u0301\uAC01"), "e\u0323\u0301\u1100\u1161\u11A8"));
    cr_expect(eq(str, (char *)normal(&out, UNICODE_NFC, "\u1100\u1161\u11A8"), "\uAC01"));
    cr_expect(eq(str, (char *)normal(&out, UNICODE_NFC, "\u0958\u212B"), "\u0915\u093C\u00C5"));   /* excluded; singleton */
    cr_expect(eq(str, (char *)normal(&out, UNICODE_NFKC, "ﬁ²①\uFF76\uFF9E"), "fi21\u30AC"));
    cr_expect(eq(str, (char *)normal(&out, UNICODE_NFKD, "\u1E9B\u0323"), "s\u0323\u0307"));
}

Test(unicode, what_came_after_unicode_9_is_left_alone)
{
    BUF_LOCAL out = BUF_INIT;

    cr_expect(eq(str, (char *)normal(&out, UNICODE_NFC, "\U00011935\U00011930"), "\U00011935\U00011930"));
    cr_expect(eq(str, (char *)normal(&out, UNICODE_NFKC, "\u32FF\U0001F16C"), "\u32FF\U0001F16C"));
    cr_expect(eq(str, (char *)normal(&out, UNICODE_NFD, "a\u1DF6\u0323"), "a\u1DF6\u0323"));
}

/* Marks without end, in the order that costs a sort the most, and marks between starters. The work is linear: the test ends. */
Test(unicode, four_megabytes_of_marks_are_sorted_and_kept)
{
    BUF_LOCAL text = BUF_INIT, out = BUF_INIT;
    size_t first;

    buf_adds(&text, "a");
    while (text.len < 4u << 20)
        buf_adds(&text, "\u0301\u0327\u0315\u0323");
    for (enum unicode_form form = UNICODE_NFC; form <= UNICODE_NFKD; form++) {
        buf_clear(&out);
        unicode_add_normal(&out, form, text.data, text.len);
        cr_assert(not(out.failed));
        cr_expect(unicode_is_normal(form, out.data, out.len) || form == UNICODE_NFC || form == UNICODE_NFKC);
    }
    cr_assert(eq(sz, out.len, text.len));
    first = (text.len - 1) / 8 * 2;
    cr_expect(eq(int, memcmp(out.data + 1, "\u0327\u0327", 4), 0));
    cr_expect(eq(int, memcmp(out.data + 1 + first - 2, "\u0327\u0323", 4), 0));

    buf_clear(&text);
    while (text.len < 1u << 20)
        buf_adds(&text, "\u03A3\u0301\u0301");
    buf_clear(&out);
    unicode_add_lower(&out, text.data, text.len);
    cr_expect(eq(sz, out.len, text.len));
    buf_clear(&text);
    buf_adds(&text, "\u03A3");
    while (text.len < 1u << 20)
        buf_adds(&text, "\u0301");
    buf_adds(&text, "\u03A3");
    buf_clear(&out);
    unicode_add_lower(&out, text.data, text.len);
    cr_expect(eq(int, memcmp(out.data + out.len - 2, "\u03C2", 2), 0));
}
