#include "base/utf8.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

Test(utf8, every_code_point_goes_out_and_comes_back)
{
    for (uint32_t c = 0; c <= 0x10FFFF; c++) {
        char text[4];
        uint32_t back = 0;
        int n = utf8_encode(c, text);

        if (c >= 0xD800 && c <= 0xDFFF)
            continue;
        cr_assert(eq(int, utf8_decode(text, (size_t)n, &back), n));
        cr_assert(eq(u32, back, c));
        if (n > 1)
            cr_assert(eq(int, utf8_decode(text, (size_t)n - 1, &back), -2));
    }
}

Test(utf8, overlong_forms_surrogates_and_stray_bytes_are_refused)
{
    static const char *const bad[] = { "\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xED\xA0\x80",
                                       "\xF0\x80\x80\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xC3(" };
    uint32_t c;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_expect(eq(int, utf8_decode(bad[i], strlen(bad[i]), &c), -1), "case %zu", i);
}

Test(utf8, the_unfinished_tail_is_what_may_still_become_a_character)
{
    cr_expect(eq(sz, utf8_unfinished_tail("a\xC3", 2), 1));
    cr_expect(eq(sz, utf8_unfinished_tail("a\xF0\x9F\x98", 4), 3));
    cr_expect(eq(sz, utf8_unfinished_tail("a\xC3\xA9", 3), 0));
    cr_expect(eq(sz, utf8_unfinished_tail("\x80\x80", 2), 0));
    cr_expect(eq(sz, utf8_unfinished_tail("", 0), 0));
    cr_expect(eq(sz, utf8_valid_prefix("ab\xC3\xA9\xFFz", 6), 4));
}
