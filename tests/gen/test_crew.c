/* Passes of a machine that is made up here: how many threads a crew settles at, and how fast. */
#include "gen/cpu/crew.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

enum { PASS_US = 2000 };        /* of all threads, undisturbed */

/* A pass is as much work as `most` threads do in PASS_US. A thread that shares its core has a third of it, and the others
 * wait for that one; a scheduler gives threads cores of their own as long as there are some. */
struct machine {
    struct crew crew;
    uint32_t cores, busy;       /* of these, so many have a foreign process on them */
    bool claims;                /* nobody waits: who is faster does more */
    uint64_t now_us;
    uint32_t n_moves;
};

static struct machine machine(uint32_t cores)
{
    struct machine m = { .cores = cores };

    crew_init(&m.crew, cores);
    return m;
}

/* One pass; late_us: how long it was held up besides. */
static void pass(struct machine *m, uint64_t late_us)
{
    const uint32_t n = m->crew.n, free = m->cores - m->busy, shared = n > free ? n - free : 0;
    const uint64_t work_us = (uint64_t)PASS_US * m->cores;
    struct crew_pass p;

    p.took_us = m->claims ? work_us * 3 / (3 * (n - shared) + shared) : work_us / n * (shared ? 3 : 1);
    p.away_us = shared * p.took_us * 2 / 3 + late_us;
    p.took_us += late_us;
    p.computed_us = work_us;
    m->now_us += p.took_us;
    m->n_moves += crew_note(&m->crew, &p, m->now_us) != n;
    cr_assert(ge(u32, m->crew.n, 1));
    cr_assert(le(u32, m->crew.n, m->cores));
}

static void run(struct machine *m, uint32_t ms)
{
    const uint64_t end = m->now_us + ms * UINT64_C(1000);

    while (m->now_us < end)
        pass(m, 0);
}

/* The share of all time that goes by with `n` threads. */
static double share_with(struct machine *m, uint32_t n, uint32_t ms)
{
    const uint64_t begin = m->now_us;
    uint64_t with = 0;

    while (m->now_us < begin + ms * UINT64_C(1000)) {
        const bool counts = m->crew.n == n;
        const uint64_t at = m->now_us;

        pass(m, 0);
        with += counts ? m->now_us - at : 0;
    }
    return (double)with / (double)(m->now_us - begin);
}

/* Until n threads take part for more than a trial. */
static uint64_t us_until(struct machine *m, uint32_t n)
{
    const uint64_t begin = m->now_us;

    while (m->crew.home != n && m->now_us < begin + UINT64_C(60000000))
        pass(m, 0);
    return m->now_us - begin;
}

Test(crew, as_long_as_nobody_disturbs_all_take_part)
{
    for (uint32_t n = 1; n <= 64; n *= 2) {
        struct machine m = machine(n);

        run(&m, 10000);
        cr_expect(zero(u32, m.n_moves));
        cr_expect(eq(u32, m.crew.n, n));
    }
}

Test(crew, threads_that_wait_for_one_another_but_have_their_cores_all_take_part)
{
    struct machine m = machine(4);

    for (int i = 0; i < 5000; i++)
        crew_note(&m.crew, &(struct crew_pass){ 2000, 2500, 0 }, m.now_us += 2000);
    cr_expect(eq(u32, m.crew.n, 4));
}

Test(crew, one_of_two_steps_back_from_a_busy_core)
{
    struct machine m = machine(2);

    run(&m, 500);
    m.busy = 1;
    cr_expect(le(u64, us_until(&m, 1), 150000));
    run(&m, 2000);
    cr_expect(ge(dbl, share_with(&m, 1, 10000), 0.95));
}

Test(crew, delays_that_happen_once_move_nobody)
{
    for (uint32_t n = 2; n <= 8; n *= 2) {
        struct machine m = machine(n);

        for (int i = 0; i < 5000; i++)
            pass(&m, i % 50 == 7 ? 4000 : 0);
        cr_expect(zero(u32, m.n_moves), "%u threads", n);
    }
}

Test(crew, a_long_delay_now_and_then_moves_nobody_either)
{
    struct machine m = machine(2);

    for (int i = 0; i < 5000; i++)
        pass(&m, i % 100 == 7 ? 30000 : 0);
    cr_expect(zero(u32, m.n_moves));
}

Test(crew, a_core_that_becomes_free_is_used_again_soon)
{
    static const uint32_t lengths_ms[] = { 200, 500, 1000, 5000, 60000 };

    for (uint32_t i = 0; i < sizeof lengths_ms / sizeof lengths_ms[0]; i++) {
        struct machine m = machine(2);

        m.busy = 1;
        run(&m, lengths_ms[i]);
        m.busy = 0;
        cr_expect(le(u64, us_until(&m, 2), 500000), "after %u ms", lengths_ms[i]);
        m.n_moves = 0;
        run(&m, 10000);
        cr_expect(zero(u32, m.n_moves));
    }
}

/* Between two requests time goes by without a pass. */
Test(crew, a_pause_counts_as_time_too)
{
    struct machine m = machine(2);

    m.busy = 1;
    run(&m, 5000);
    m.busy = 0;
    m.now_us += 1000000;
    cr_expect(le(u64, us_until(&m, 2), 2 * CREW_WINDOW_US));
}

Test(crew, three_of_eight_step_back_and_return)
{
    struct machine m = machine(8);

    m.busy = 3;
    cr_expect(le(u64, us_until(&m, 5), 500000));
    run(&m, 2000);
    cr_expect(ge(dbl, share_with(&m, 5, 10000), 0.93));
    m.busy = 2;
    cr_expect(le(u64, us_until(&m, 6), 600000));
    m.busy = 4;
    cr_expect(le(u64, us_until(&m, 4), 600000));
    m.busy = 0;
    cr_expect(le(u64, us_until(&m, 8), 900000));
}

Test(crew, where_all_cores_are_busy_somebody_still_works)
{
    struct machine m = machine(2);

    m.busy = 2;
    run(&m, 5000);
    m.busy = 0;
    run(&m, 1000);
    cr_expect(eq(u32, m.crew.n, 2));
}

/* Work that is claimed goes on beside a busy process: a third of a core is more than none. */
Test(crew, who_does_not_hold_up_others_stays)
{
    struct machine m = machine(2);

    m.claims = true;
    m.busy = 1;
    run(&m, 500);
    cr_expect(ge(dbl, share_with(&m, 2, 10000), 0.9));
}

Test(crew, passes_longer_than_a_window_are_judged_one_by_one)
{
    struct machine m = machine(2);

    for (int i = 0; i < 5; i++)
        crew_note(&m.crew, &(struct crew_pass){ 900000, 600000, 600000 }, m.now_us += 900000);
    cr_expect(eq(u32, m.crew.n, 1));
    /* A trial of this length costs its share in holding off the next one. */
    for (int i = 0; i < 1000; i++) {
        const bool two = m.crew.n == 2;
        const uint64_t took = two ? 900000 : 600000;

        m.n_moves += two;
        crew_note(&m.crew, &(struct crew_pass){ took, 600000, two ? 600000 : 0 }, m.now_us += took);
    }
    cr_expect(ge(u32, m.n_moves, 5));
    cr_expect(le(u32, m.n_moves, 100));
}

Test(crew, one_thread_is_one_thread)
{
    struct machine m = machine(1);

    m.busy = 1;
    run(&m, 1000);
    crew_note(&m.crew, &(struct crew_pass){ 0 }, m.now_us);
    cr_expect(eq(u32, m.crew.n, 1));
    cr_expect(zero(u32, m.n_moves));
}
