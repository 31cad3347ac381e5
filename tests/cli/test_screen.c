#include "cli/screen.h"

#include "base/buf.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

static const char *clip(const char *text, int columns)
{
    static struct buf out;

    buf_clear(&out);
    screen_clip(text, strlen(text), columns, &out);
    return buf_str(&out);
}

Test(screen, a_line_is_cut_after_so_many_characters)
{
    cr_expect(eq(str, (char *)clip("abcdef", 3), "abc"));
    cr_expect(eq(str, (char *)clip("abc", 3), "abc"));
    cr_expect(eq(str, (char *)clip("", 3), ""));
    cr_expect(eq(str, (char *)clip("abc", 0), ""));
}

Test(screen, a_character_of_several_bytes_is_one)
{
    cr_expect(eq(str, (char *)clip("grüße…x", 6), "grüße…"));
    cr_expect(eq(str, (char *)clip("\xc3", 6), "\xc3"));
}

Test(screen, colours_take_no_room_and_end_where_the_text_is_cut)
{
    cr_expect(eq(str, (char *)clip("\033[31mfailed\033[0m for", 4), "\033[31mfail\033[0m"));
    cr_expect(eq(str, (char *)clip("\033[", 4), "\033["));
}

Test(screen, a_tab_is_a_blank)
{
    cr_expect(eq(str, (char *)clip("a\tb", 9), "a b"));
}
