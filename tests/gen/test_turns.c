#include "gen/turns.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

static struct turns *turns;

static void setup(void) { cr_assert(zero(int, turns_open(3, &turns, NULL))); }
static void teardown(void) { turns_close(turns); }

TestSuite(turns, .init = setup, .fini = teardown);

Test(turns, requests_of_a_tenant_count_together)
{
    uint32_t a = turns_enter(turns, 10), b = turns_enter(turns, 11), again = turns_enter(turns, 10);

    cr_expect(eq(u32, a, again));
    cr_expect(ne(u32, a, b));
    turns_count(turns, a, 5);
    turns_count(turns, again, 6);
    cr_expect(eq(u64, turns_served(turns, a), 11));
    cr_expect(eq(u64, turns_served(turns, b), 0));
}

Test(turns, who_comes_later_has_no_turns_saved_up)
{
    uint32_t a = turns_enter(turns, 10), b = turns_enter(turns, 11);

    turns_count(turns, a, 1000);
    turns_count(turns, b, 700);
    cr_expect(eq(u64, turns_served(turns, turns_enter(turns, 12)), 700));
}

Test(turns, who_had_the_machine_alone_does_not_pay_for_it)
{
    uint32_t a = turns_enter(turns, 10), b;

    turns_count(turns, a, 1000);
    turns_leave(turns, a);
    b = turns_enter(turns, 11);
    a = turns_enter(turns, 10);
    cr_expect(eq(u64, turns_served(turns, a), turns_served(turns, b)));
}

Test(turns, leaving_for_a_moment_loses_no_debt)
{
    uint32_t a = turns_enter(turns, 10), b = turns_enter(turns, 11);

    turns_count(turns, a, 1000);
    turns_leave(turns, a);
    a = turns_enter(turns, 10);
    cr_expect(eq(u64, turns_served(turns, a), 1000));
    cr_expect(eq(u64, turns_served(turns, b), 0));
}

Test(turns, the_place_of_one_who_left_is_anothers)
{
    for (uint64_t id = 0; id < 100; id++) {
        uint32_t i = turns_enter(turns, id);

        cr_expect(lt(u32, i, 3));
        turns_count(turns, i, 1);
        turns_leave(turns, i);
    }
}
