#include "gen/sched.h"

#include "gen/kv.h"
#include "tests/gen/rand.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

struct rig {
    struct kv *kv;
    struct sched *s;
};

static struct rig rig(uint32_t pages, uint32_t parallel, uint32_t max_rows)
{
    const struct kv_shape shape = { .n_layers = 1, .n_kv_heads = 1, .head_dim = 4, .n_pages = pages };
    struct rig r = { 0 };

    cr_assert(zero(int, kv_open(&shape, &r.kv, NULL)));
    cr_assert(zero(int, sched_open(r.kv, parallel, max_rows, &r.s, NULL)));
    return r;
}

static void rig_close(struct rig *r)
{
    sched_close(r->s);
    kv_close(r->kv);
}
#define RIG __attribute__((cleanup(rig_close))) struct rig

struct seq {
    struct sched_seq q;
    uint32_t pages[64];
};

static void add(struct rig *r, struct seq *seq, uint32_t n_prompt, uint32_t n_more)
{
    *seq = (struct seq){ .q = { .n_prompt = n_prompt, .n_total = n_prompt + n_more } };
    seq->q.pages = seq->pages;
    cr_assert(zero(int, sched_add(r->s, &seq->q)));
}

static size_t admit_all(struct rig *r)
{
    size_t n = 0;

    while (sched_admit(r->s))
        n++;
    return n;
}

Test(sched, who_has_no_pages_waits_and_gets_those_of_one_that_ends)
{
    RIG r = rig(6, 8, 512);
    struct seq seq[8];

    for (int i = 0; i < 8; i++)
        add(&r, &seq[i], 20, 12);                   /* two pages each */
    cr_expect(eq(sz, admit_all(&r), 3));
    cr_expect(eq(u32, sched_running(r.s), 3));
    cr_expect(eq(u32, sched_waiting(r.s), 5));
    cr_expect(eq(u32, kv_free_pages(r.kv), 0));
    sched_remove(r.s, &seq[1].q);
    cr_expect(eq(ptr, sched_admit(r.s), &seq[3].q));
    cr_expect(eq(ptr, sched_admit(r.s), NULL));
}

Test(sched, no_more_than_parallel_run)
{
    RIG r = rig(100, 2, 512);
    struct seq seq[3];

    for (int i = 0; i < 3; i++)
        add(&r, &seq[i], 4, 4);
    cr_expect(eq(sz, admit_all(&r), 2));
}

Test(sched, a_small_one_does_not_overtake_a_large_one)
{
    RIG r = rig(4, 8, 512);
    struct seq first, large, small;

    add(&r, &first, 16, 16);
    add(&r, &large, 32, 16);
    add(&r, &small, 4, 4);
    cr_expect(eq(sz, admit_all(&r), 1));
    sched_remove(r.s, &first.q);
    cr_expect(eq(ptr, sched_admit(r.s), &large.q));
    cr_expect(eq(ptr, sched_admit(r.s), &small.q));
}

Test(sched, one_that_can_never_fit_is_told)
{
    RIG r = rig(2, 8, 512);
    struct seq seq = { .q = { .n_prompt = 32, .n_total = 33 } };

    seq.q.pages = seq.pages;
    cr_expect(eq(int, sched_add(r.s, &seq.q), SCHED_TOO_LONG));
    cr_expect(eq(u32, sched_waiting(r.s), 0));
    cr_expect(eq(u32, sched_pages_of(32), 2));
    cr_expect(eq(u32, sched_pages_of(33), 3));
}

Test(sched, generation_goes_on_while_a_long_prompt_is_read)
{
    RIG r = rig(200, 8, 512);
    struct seq a, b, c;
    const struct sched_rows *plan;

    add(&r, &a, 4, 100);
    b.q.pages = NULL;
    admit_all(&r);
    cr_assert(eq(sz, sched_plan(r.s, &plan), 1));
    cr_expect(eq(u32, plan[0].n, 4));
    cr_expect(plan[0].logits);
    sched_advance(r.s);

    add(&r, &b, 600, 10);
    add(&r, &c, 30, 10);
    admit_all(&r);
    for (uint32_t pass = 0, at = 0; at < 600; pass++) {
        size_t n = sched_plan(r.s, &plan);

        cr_assert(ge(sz, n, 2));
        cr_assert(eq(ptr, plan[0].seq, &a.q));
        cr_assert(eq(u32, plan[0].pos, 4 + pass));
        cr_assert(eq(u32, plan[0].n, 1));
        cr_assert(eq(ptr, plan[1].seq, &b.q));
        cr_assert(eq(u32, plan[1].pos, at));
        at += plan[1].n;
        cr_assert(eq(int, plan[1].logits, at == 600));
        cr_assert(le(u32, plan[1].n, SCHED_ROWS - 1));
        sched_advance(r.s);
    }
    cr_expect(eq(u32, c.q.n_done, 30));             /* what the last piece of b left */
}

Test(sched, one_that_is_held_keeps_its_pages_and_takes_no_part)
{
    RIG r = rig(20, 8, 512);
    struct seq a, b;
    const struct sched_rows *plan;

    add(&r, &a, 4, 10);
    add(&r, &b, 4, 10);
    a.q.held = true;
    cr_expect(eq(ptr, sched_admit(r.s), &b.q));     /* and is passed over while it waits */
    cr_expect(eq(ptr, sched_admit(r.s), NULL));
    a.q.held = false;
    cr_expect(eq(ptr, sched_admit(r.s), &a.q));
    b.q.held = true;
    cr_expect(eq(sz, sched_plan(r.s, &plan), 1));
    cr_expect(eq(ptr, plan[0].seq, &a.q));
    cr_expect(eq(u32, kv_free_pages(r.kv), 18));
    a.q.held = true;
    cr_expect(eq(sz, sched_plan(r.s, &plan), 0));
}

Test(sched, prompts_get_rows_also_when_generation_fills_the_budget)
{
    RIG r = rig(600, 300, 512);
    static struct seq seq[300];
    const struct sched_rows *plan;
    size_t n;

    for (int i = 0; i < 280; i++)
        add(&r, &seq[i], 1, 8);
    admit_all(&r);
    while (seq[279].q.n_done == 0) {
        cr_assert(gt(sz, sched_plan(r.s, &plan), 0));
        sched_advance(r.s);
    }
    add(&r, &seq[280], 100, 8);
    admit_all(&r);
    n = sched_plan(r.s, &plan);
    cr_expect(eq(ptr, plan[n - 1].seq, &seq[280].q));
    cr_expect(eq(u32, plan[n - 1].n, SCHED_MIN_PROMPT_ROWS));
}

Test(sched, any_traffic_ends_and_every_page_comes_back, .timeout = 120)
{
    uint64_t rng = 9;

    for (int round = 0; round < 200; round++) {
        uint32_t pages = 8 + rand_below(&rng, 40), parallel = 1 + rand_below(&rng, 12);
        RIG r = rig(pages, parallel, 64);
        static struct seq seq[40];
        uint32_t n_added = 0, n_ended = 0;
        const struct sched_rows *plan;

        for (int pass = 0; n_ended < 40; pass++) {
            uint32_t rows = 0;
            size_t n;

            cr_assert(lt(int, pass, 20000));
            if (n_added < 40 && rand_below(&rng, 2)) {
                add(&r, &seq[n_added++], 1 + rand_below(&rng, 90), 1 + rand_below(&rng, 38));
            }
            admit_all(&r);
            for (uint32_t i = 0; i < n_added; i++)
                seq[i].q.held = rand_below(&rng, 5) == 0;
            n = sched_plan(r.s, &plan);
            for (size_t i = 0; i < n; i++) {
                cr_assert(not(plan[i].seq->held));
                cr_assert(eq(u32, plan[i].pos, plan[i].seq->n_done));
                cr_assert(le(u32, plan[i].pos + plan[i].n, plan[i].seq->n_pages * KV_PAGE));
                for (size_t k = 0; k < i; k++)
                    cr_assert(ne(ptr, plan[k].seq, plan[i].seq));
                rows += plan[i].n;
            }
            cr_assert(le(u32, rows, 64));
            cr_assert(le(u32, sched_running(r.s), parallel));
            sched_advance(r.s);
            for (uint32_t i = 0; i < n_added; i++) {
                struct sched_seq *q = &seq[i].q;
                bool cancel = q->state != SCHED_OUT && rand_below(&rng, 200) == 0;

                if (cancel || (q->state == SCHED_RUNNING && q->n_done + 1 >= q->n_total)) {
                    sched_remove(r.s, q);
                    n_ended++;
                }
            }
        }
        cr_assert(eq(u32, kv_free_pages(r.kv), pages));
    }
}
