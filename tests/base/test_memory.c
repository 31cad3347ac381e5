#include "base/arena.h"
#include "base/buf.h"
#include "base/cursor.h"
#include "base/id.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdint.h>

Test(buf, grows_and_keeps_a_nul_behind)
{
    BUF_LOCAL b = BUF_INIT;

    cr_expect(eq(str, (char *)buf_str(&b), ""));
    for (int i = 0; i < 1000; i++)
        buf_printf(&b, "%d,", i);
    cr_expect(eq(sz, b.len, strlen(b.data)));
    buf_drop(&b, 2);
    cr_expect(eq(int, strncmp(b.data, "1,2,3", 5), 0));
    buf_drop(&b, SIZE_MAX);
    cr_expect(eq(sz, b.len, 0));
    cr_expect(not(b.failed));
}

Test(buf, over_the_limit_it_remembers_and_hands_nothing_over)
{
    BUF_LOCAL b = { .limit = 5 };

    buf_adds(&b, "12345");
    cr_expect(not(b.failed));
    buf_addc(&b, '6');
    cr_expect(b.failed);
    cr_expect(eq(str, b.data, "12345"));
    cr_expect(eq(ptr, buf_take(&b), NULL));
    cr_expect(not(b.failed));
}

Test(buf, an_absurd_size_is_refused)
{
    BUF_LOCAL b = BUF_INIT;

    buf_addc(&b, 'x');
    cr_expect(eq(ptr, buf_room(&b, SIZE_MAX), NULL));
    cr_expect(b.failed);
}

Test(buf, an_empty_one_hands_over_an_empty_string)
{
    struct buf b = BUF_INIT;
    CLEANUP(mem_free) char *text = buf_take(&b);

    cr_assert(ne(ptr, text, NULL));
    cr_expect(eq(str, text, ""));
}

Test(arena, pieces_are_aligned_zeroed_and_apart)
{
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    char *last = NULL;

    for (size_t i = 1; i < 3000; i += 7) {
        char *p = arena_alloc(a, i);

        cr_assert(ne(ptr, p, NULL));
        cr_assert(eq(sz, (uintptr_t)p % 16, 0));
        for (size_t k = 0; k < i; k++)
            cr_assert(eq(chr, p[k], 0));
        memset(p, 0x55, i);
        cr_assert(ne(ptr, p, last));
        last = p;
    }
    cr_expect(eq(str, arena_printf(a, "%s-%d", "x", 3), "x-3"));
    cr_expect(eq(str, arena_strndup(a, "hello", 4), "hell"));
}

Test(arena, the_limit_and_absurd_sizes_give_null)
{
    CLEANUP(arena_free) struct arena *a = arena_new(64);

    cr_expect(ne(ptr, arena_alloc(a, 48), NULL));
    cr_expect(eq(ptr, arena_alloc(a, 32), NULL));
    cr_expect(ne(ptr, arena_alloc(a, 16), NULL));
    cr_expect(eq(ptr, arena_alloc(a, 1), NULL));
    cr_expect(eq(ptr, arena_array(a, SIZE_MAX, 2), NULL));
    cr_expect(eq(ptr, arena_alloc(a, SIZE_MAX), NULL));
}

Test(cursor, never_leaves_its_bytes)
{
    static const uint8_t bytes[] = { 1, 2, 0, 3, 0, 0, 0, 9 };
    struct cursor c = cursor_over(bytes, sizeof bytes);

    cr_expect(eq(u8, cursor_u8(&c), 1));
    cr_expect(eq(u16, cursor_u16(&c), 2));
    cr_expect(eq(u32, cursor_u32(&c), 3));
    cr_expect(not(c.bad));
    cr_expect(eq(u32, cursor_u32(&c), 0));
    cr_expect(c.bad);
    cr_expect(eq(u8, cursor_u8(&c), 0), "a bad cursor stays bad");
    cr_expect(eq(sz, cursor_left(&c), 0));
}

Test(cursor, counts_that_overflow_do_not_fit)
{
    struct cursor c = cursor_over("abcd", 4);

    cr_expect(cursor_fits(&c, 2, 2));
    cr_expect(not(cursor_fits(&c, 3, 2)));
    cr_expect(not(cursor_fits(&c, UINT64_MAX / 2 + 2, 2)));
    cr_expect(eq(ptr, (void *)cursor_bytes(&c, UINT64_MAX), NULL));
}

Test(id, is_22_symbols_without_look_alikes_and_never_twice)
{
    char a[32], b[32];

    id_short("req-", a, sizeof a);
    id_short("req-", b, sizeof b);
    cr_expect(eq(sz, strlen(a), 26));
    cr_expect(ne(str, a, b));
    cr_expect(eq(sz, strcspn(a + 4, "01OIl"), 22));
}
