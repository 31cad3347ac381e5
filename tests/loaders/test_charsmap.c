#include "loaders/tok/charsmap.h"

#include "base/err.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <string.h>

/* A double array made by hand for "a" → "b", "ab" → "" and "\xC3\xA9" → "e": units are label | leaf | offset, by darts-clone's layout. */
enum { UNITS = 512 };

struct made { uint32_t bytes; uint32_t units[UNITS]; char texts[8]; };

static void put(struct made *m, uint32_t parent_offset, unsigned char c, uint32_t offset, bool leaf, uint32_t value)
{
    uint32_t at = parent_offset ^ c;

    m->units[at] = c | (leaf ? 1u << 8 : 0) | (at ^ offset) << 10;
    if (leaf)
        m->units[offset] = value | 1u << 31;
}

static struct made make(void)
{
    struct made m = { .bytes = sizeof m.units };

    memcpy(m.texts, "b\0\0e\0", 5);
    m.units[0] = 256u << 10;
    put(&m, 256, 'a', 16, true, 0);
    put(&m, 16, 'b', 17, true, 2);
    put(&m, 256, 0xC3, 128, false, 0);
    put(&m, 128, 0xA9, 18, true, 3);
    return m;
}

static void expect_first(const struct charsmap *m, const char *text, const char *want)
{
    struct tok_str s;

    cr_assert(charsmap_first(m, text, strlen(text), &s) == (want != NULL), "%s", text);
    if (want)
        cr_expect(s.len == strlen(want) && memcmp(s.text, want, s.len) == 0, "%s", text);
}

Test(charsmap, the_shortest_and_the_longest_entry_are_found)
{
    CLEANUP(charsmap_free) struct charsmap *m = NULL;
    struct made made = make();
    struct tok_str s;
    size_t taken;

    cr_assert(zero(int, charsmap_new(&made, sizeof made, &m, NULL)));
    expect_first(m, "abc", "b");
    expect_first(m, "\xC3\xA9", "e");
    expect_first(m, "\xC3", NULL);
    expect_first(m, "b", NULL);
    expect_first(m, "", NULL);
    cr_assert(charsmap_longest(m, "abc", 3, &s, &taken));
    cr_expect(eq(sz, taken, 2));
    cr_expect(zero(u32, s.len));
    cr_expect(not(charsmap_longest(m, "x", 1, &s, &taken)));
}

static void expect_refused(const void *data, size_t len, const char *part)
{
    struct charsmap *m = NULL;
    struct err err = { 0 };

    cr_expect(eq(int, charsmap_new(data, len, &m, &err), -EINVAL));
    cr_expect(strstr(err_text(&err), part) != NULL, "%s", err_text(&err));
    charsmap_free(m);
}

Test(charsmap, sizes_that_do_not_fit_are_refused)
{
    struct made made = make();

    expect_refused(&made, 3, "too few");
    made.bytes = sizeof made;
    expect_refused(&made, sizeof made, "a table of");
    made.bytes = 6;
    expect_refused(&made, sizeof made, "a table of");
    made.bytes = 0;
    expect_refused(&made, sizeof made, "a table of");
    made = make();
    made.texts[0] = (char)0xFF;
    expect_refused(&made, sizeof made, "no UTF-8");
}

Test(charsmap, an_array_that_points_outside_or_at_itself_finds_nothing_and_ends)
{
    CLEANUP(charsmap_free) struct charsmap *outside = NULL;
    CLEANUP(charsmap_free) struct charsmap *circle = NULL;
    struct made made = make();
    char as[4096];
    struct tok_str s;
    size_t taken;

    memset(as, 'a', sizeof as);
    made.units[256 ^ 'a'] = 'a' | 0xFFFFFu << 10;       /* its children lie behind the end */
    made.units[16] = 0;
    cr_assert(zero(int, charsmap_new(&made, sizeof made, &outside, NULL)));
    cr_expect(not(charsmap_longest(outside, as, sizeof as, &s, &taken)));
    made = make();
    made.units[256 ^ 'a'] = 'a' | 1u << 8 | 'a' << 10;  /* its child for an a is itself, and so on; the leaf's value is no text's */
    made.units[256] = 0x7FFFFFFF;
    cr_assert(zero(int, charsmap_new(&made, sizeof made, &circle, NULL)));
    cr_expect(not(charsmap_longest(circle, as, sizeof as, &s, &taken)));
}
