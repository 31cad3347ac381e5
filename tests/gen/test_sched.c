#include "gen/sched.h"

#include "gen/budget.h"
#include "gen/kv.h"
#include "tests/gen/rand.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

struct rig {
    struct kv *kv;
    struct prefix *prefix;
    struct sched *s;
};

static struct rig rig_apart(uint32_t pages, uint32_t parallel, uint32_t max_rows, bool prefix, uint32_t layers)
{
    const struct kv_shape shape = { .n_layers = 1, .n_kv_heads = 1, .head_dim = 4, .n_pages = pages };
    struct rig r = { 0 };

    cr_assert(zero(int, kv_open(&shape, &r.kv, NULL)));
    if (prefix)
        cr_assert(zero(int, prefix_open(r.kv, &r.prefix, NULL)));
    cr_assert(zero(int, sched_open(&(struct sched_config){ .kv = r.kv, .prefix = r.prefix, .parallel = parallel,
                                                           .queue = 1000, .max_rows = max_rows, .layers = layers }, &r.s, NULL)));
    return r;
}

static struct rig rig_of(uint32_t pages, uint32_t parallel, uint32_t max_rows, bool prefix)
{
    return rig_apart(pages, parallel, max_rows, prefix, 0);
}

static struct rig rig(uint32_t pages, uint32_t parallel, uint32_t max_rows)
{
    return rig_of(pages, parallel, max_rows, false);
}

static void rig_close(struct rig *r)
{
    sched_close(r->s);
    prefix_close(r->prefix);
    kv_close(r->kv);
}
#define RIG __attribute__((cleanup(rig_close))) struct rig

static struct sched_stats stats(const struct rig *r)
{
    struct sched_stats st;

    sched_stats(r->s, &st);
    return st;
}

enum { MOST = 640 };            /* tokens of a sequence */

struct seq {
    struct sched_seq q;
    uint32_t pages[MOST / KV_PAGE];
    int32_t tokens[MOST];
    uint64_t chain[MOST / KV_PAGE];
    uint64_t values[MOST];      /* what the pages must hold */
};

static void init(struct seq *seq, uint32_t n_prompt, uint32_t n_more)
{
    cr_assert(le(u32, n_prompt + n_more, MOST));
    *seq = (struct seq){ .q = { .n_prompt = n_prompt, .n_total = n_prompt + n_more } };
    seq->q.pages = seq->pages;
}

static void put(struct rig *r, struct seq *seq)
{
    if (r->prefix) {
        prefix_chain(r->prefix, &seq->q.salt, seq->tokens, seq->q.n_prompt, seq->chain);
        seq->q.tokens = seq->tokens;
        seq->q.chain = seq->chain;
    }
    cr_assert(zero(int, sched_add(r->s, &seq->q)));
}

static void add(struct rig *r, struct seq *seq, uint32_t n_prompt, uint32_t n_more)
{
    init(seq, n_prompt, n_more);
    put(r, seq);
}

static size_t admit_all(struct rig *r)
{
    size_t n = 0;

    while (sched_admit(r->s))
        n++;
    return n;
}

/* One pass; each that wants logits has one token more. */
static size_t pass(struct rig *r)
{
    const struct sched_rows *plan;
    struct sched_rows done[64];
    size_t n;

    admit_all(r);
    n = sched_plan(r->s, &plan);
    cr_assert(le(sz, n, 64));
    memcpy(done, plan, n * sizeof done[0]);
    sched_advance(r->s);
    for (size_t i = 0; i < n; i++)
        done[i].seq->n_known += done[i].n_logits;
    return n;
}

/* ---- who gets in ---- */

Test(sched, who_has_no_pages_waits_and_gets_those_of_one_that_ends)
{
    RIG r = rig(6, 8, 512);
    static struct seq seq[8];

    for (int i = 0; i < 8; i++)
        add(&r, &seq[i], 20, 12);                   /* two pages each */
    cr_expect(eq(sz, admit_all(&r), 3));
    cr_expect(eq(u32, stats(&r).running, 3));
    cr_expect(eq(u32, stats(&r).waiting, 5));
    cr_expect(eq(u32, stats(&r).pages_free, 0));
    sched_remove(r.s, &seq[1].q);
    cr_expect(eq(ptr, sched_admit(r.s), &seq[3].q));
    cr_expect(eq(ptr, sched_admit(r.s), NULL));
}

Test(sched, no_more_than_parallel_run)
{
    RIG r = rig(100, 2, 512);
    static struct seq seq[3];

    for (int i = 0; i < 3; i++)
        add(&r, &seq[i], 4, 4);
    cr_expect(eq(sz, admit_all(&r), 2));
}

Test(sched, pages_are_taken_for_what_is_known_and_one_is_left_to_each_to_grow_by)
{
    RIG r = rig(6, 8, 512);
    static struct seq seq[4];

    for (int i = 0; i < 4; i++)
        add(&r, &seq[i], 10, 600 / 16 * 2);         /* a page now, and up to five more later */
    cr_expect(eq(sz, admit_all(&r), 3));            /* 1; 1 and 2 spare; 1 and 3 spare */
    cr_expect(eq(u32, stats(&r).pages_free, 3));
}

Test(sched, a_small_one_does_not_overtake_a_large_one)
{
    RIG r = rig(4, 8, 512);
    static struct seq first, large, small;

    add(&r, &first, 16, 16);
    add(&r, &large, 32, 16);
    add(&r, &small, 4, 4);
    cr_expect(eq(sz, admit_all(&r), 1));
    sched_remove(r.s, &first.q);
    cr_expect(eq(ptr, sched_admit(r.s), &large.q));
    cr_expect(eq(ptr, sched_admit(r.s), &small.q));
}

Test(sched, one_that_can_never_fit_and_one_too_many_are_told)
{
    RIG r = rig(2, 8, 512);
    static struct seq seq, many[1009];

    init(&seq, 32, 1);
    cr_expect(eq(int, sched_add(r.s, &seq.q), SCHED_TOO_LONG));
    cr_expect(eq(u32, stats(&r).waiting, 0));
    cr_expect(eq(u32, sched_pages_of(32), 2));
    cr_expect(eq(u32, sched_pages_of(33), 3));
    for (int i = 0; i < 1008; i++)
        add(&r, &many[i], 1, 1);
    init(&many[1008], 1, 1);
    cr_expect(eq(int, sched_add(r.s, &many[1008].q), SCHED_BUSY));
    cr_expect(eq(int, many[1008].q.state, SCHED_OUT));
}

Test(sched, the_more_urgent_come_first_and_make_room_for_themselves)
{
    RIG r = rig(100, 2, 512);
    static struct seq late, normal[2], urgent;

    init(&late, 4, 40);
    late.q.priority = 5;
    put(&r, &late);
    for (int i = 0; i < 2; i++)
        add(&r, &normal[i], 4, 40);
    cr_expect(eq(ptr, sched_admit(r.s), &normal[0].q));
    cr_expect(eq(ptr, sched_admit(r.s), &normal[1].q));
    cr_expect(eq(ptr, sched_admit(r.s), NULL));
    sched_remove(r.s, &normal[0].q);
    cr_expect(eq(ptr, sched_admit(r.s), &late.q));
    pass(&r);
    pass(&r);
    init(&urgent, 4, 40);
    urgent.q.priority = -1;
    put(&r, &urgent);
    cr_expect(eq(ptr, sched_admit(r.s), &urgent.q));
    cr_expect(eq(int, late.q.state, SCHED_WAITING));
    cr_expect(eq(u32, late.q.n_pages, 0));
    cr_expect(eq(int, normal[1].q.state, SCHED_RUNNING));
    cr_expect(eq(u64, stats(&r).preemptions, 1));
}

Test(sched, one_of_the_same_priority_makes_no_room)
{
    RIG r = rig(100, 1, 512);
    static struct seq a, b;

    add(&r, &a, 4, 40);
    cr_expect(eq(ptr, sched_admit(r.s), &a.q));
    add(&r, &b, 4, 40);
    cr_expect(eq(ptr, sched_admit(r.s), NULL));
}

Test(sched, tenants_take_turns_however_many_requests_one_of_them_has)
{
    RIG r = rig(1000, 1, 512);
    static struct seq many[50], few[3];
    int n_many = 0, n_few = 0;

    for (int i = 0; i < 50; i++) {
        init(&many[i], 20, 20);
        many[i].q.tenant = 1;
        put(&r, &many[i]);
    }
    for (int i = 0; i < 3; i++) {
        init(&few[i], 20, 20);
        few[i].q.tenant = 2;
        put(&r, &few[i]);
    }
    for (int i = 0; i < 6; i++) {
        struct sched_seq *q = sched_admit(r.s);

        cr_assert(ne(ptr, q, NULL));
        n_many += q->tenant == 1;
        n_few += q->tenant == 2;
        for (int k = 0; k < 10; k++)
            pass(&r);
        sched_remove(r.s, q);
    }
    cr_expect(eq(int, n_few, 3));
    cr_expect(eq(int, n_many, 3));
}

/* ---- what a pass holds ---- */

Test(sched, generation_goes_on_while_a_long_prompt_is_read)
{
    RIG r = rig(200, 8, 512);
    static struct seq a, b, c;
    const struct sched_rows *plan;
    uint32_t alone = 0, at = 0;

    add(&r, &a, 4, 100);
    admit_all(&r);
    cr_assert(eq(sz, sched_plan(r.s, &plan), 1));
    cr_expect(eq(u32, plan[0].n, 4));
    cr_expect(plan[0].prompt);
    cr_expect(eq(u32, plan[0].n_logits, 1));
    sched_advance(r.s);
    a.q.n_known++;

    add(&r, &b, 600, 10);
    add(&r, &c, 30, 10);
    admit_all(&r);
    for (uint32_t n_pass = 0; at < 600; n_pass++) {
        size_t n = sched_plan(r.s, &plan);
        uint32_t n_read = 0;

        cr_assert(ge(sz, n, 1));
        cr_assert(eq(ptr, plan[0].seq, &a.q));
        cr_assert(eq(u32, plan[0].pos, 4 + n_pass));
        cr_assert(eq(u32, plan[0].n, 1));
        cr_assert(not(plan[0].prompt));
        for (size_t i = 1; i < n; i++) {
            n_read += plan[i].prompt ? plan[i].n : 0;
            if (plan[i].seq != &b.q)
                continue;
            cr_assert(eq(u32, plan[i].pos, at));
            at += plan[i].n;
            cr_assert(eq(u32, plan[i].n_logits, at == 600));
        }
        cr_assert(le(u32, n_read, 120));
        for (size_t i = 1; i < n; i++)
            c.q.n_known += plan[i].seq == &c.q && plan[i].n_logits;
        alone += n_read == 0;
        sched_advance(r.s);
        a.q.n_known++;
        sched_took(r.s, 10000 + n_read * 200, 0);
    }
    cr_expect(eq(u32, alone, 1));                   /* to be timed */
    cr_expect(gt(u32, c.q.n_done, 0));              /* what the pieces of b left */
}

Test(sched, prompts_are_read_in_large_pieces_while_nobody_generates)
{
    RIG r = rig(200, 8, 512);
    static struct seq a, b;
    const struct sched_rows *plan;

    add(&r, &a, 600, 10);
    add(&r, &b, 20, 10);
    admit_all(&r);
    cr_assert(eq(sz, sched_plan(r.s, &plan), 1));
    cr_expect(eq(u32, plan[0].n, 512));
    sched_advance(r.s);
    cr_assert(eq(sz, sched_plan(r.s, &plan), 2));
    cr_expect(eq(u32, plan[0].n, 88));
    cr_expect(eq(u32, plan[1].n, 20));
    cr_expect(eq(u32, plan[1].n_logits, 1));
}

Test(sched, one_that_is_held_keeps_its_pages_and_takes_no_part)
{
    RIG r = rig(20, 8, 512);
    static struct seq a, b;
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
    cr_expect(eq(u32, stats(&r).pages_free, 18));
    a.q.held = true;
    cr_expect(eq(sz, sched_plan(r.s, &plan), 0));
    cr_expect(eq(u32, stats(&r).running, 2));
}

Test(sched, who_is_held_makes_room_for_one_that_waits_but_not_at_once)
{
    RIG r = rig(20, 2, 512);
    static struct seq slow, a, b;
    int n = 0;

    add(&r, &slow, 4, 100);
    add(&r, &a, 4, 200);
    pass(&r);
    slow.q.held = true;
    add(&r, &b, 4, 100);
    while (b.q.state == SCHED_WAITING) {
        cr_assert(lt(int, ++n, 100));
        pass(&r);
    }
    cr_expect(ge(int, n, SCHED_HELD_PASSES));
    cr_expect(eq(int, slow.q.state, SCHED_WAITING));
    cr_expect(eq(int, a.q.state, SCHED_RUNNING));
    a.q.held = b.q.held = true;                     /* nothing else runs: at once */
    slow.q.held = false;
    cr_expect(eq(ptr, sched_admit(r.s), &slow.q));
}

/* ---- growing and giving way ---- */

Test(sched, the_latest_gives_its_pages_to_the_first_and_comes_back_to_compute_them_again)
{
    RIG r = rig(4, 8, 512);
    static struct seq a, b;
    const struct sched_rows *plan;

    add(&r, &a, 16, 40);
    add(&r, &b, 16, 20);
    while (!b.q.n_preempted)
        cr_assert(gt(sz, pass(&r), 0));
    cr_expect(eq(u32, a.q.n_pages, 3));             /* three each were wanted */
    cr_expect(gt(u32, b.q.n_known, 17));
    cr_expect(eq(u32, b.q.n_preempted, 1));
    while (a.q.n_known < a.q.n_total)
        pass(&r);
    cr_expect(eq(int, b.q.state, SCHED_WAITING));
    sched_remove(r.s, &a.q);
    cr_expect(eq(ptr, sched_admit(r.s), &b.q));
    cr_assert(eq(sz, sched_plan(r.s, &plan), 1));
    cr_expect(eq(u32, plan[0].n, 16));
    cr_expect(plan[0].prompt);
    cr_expect(eq(u32, plan[0].n_logits, 0));        /* what follows the prompt is known */
    sched_advance(r.s);
    cr_assert(eq(sz, sched_plan(r.s, &plan), 1));
    cr_expect(eq(u32, plan[0].pos, 16));
    cr_expect(eq(u32, plan[0].n, b.q.n_known - 16));
    cr_expect(not(plan[0].prompt));
    cr_expect(eq(u32, plan[0].n_logits, 1));
}

Test(sched, the_least_urgent_only_waits_for_a_page_and_keeps_what_it_has)
{
    RIG r = rig(4, 8, 512);
    static struct seq a, b;

    add(&r, &a, 17, 15);                            /* two pages, and never more */
    add(&r, &b, 17, 31);
    cr_assert(eq(sz, admit_all(&r), 1));            /* one more was to be left for b to grow by */
    b.q.n_total = 32;
    cr_assert(eq(sz, admit_all(&r), 1));
    b.q.n_total = 48;
    while (b.q.n_known < 33 || a.q.n_known < 32)
        cr_assert(gt(sz, pass(&r), 0));
    pass(&r);
    cr_expect(eq(u32, b.q.n_known, 33));
    cr_expect(eq(int, b.q.state, SCHED_RUNNING));
    cr_expect(eq(u32, b.q.n_pages, 2));
    cr_expect(eq(u32, b.q.n_preempted, 0));
}

Test(sched, of_two_that_are_out_of_pages_the_first_goes_on)
{
    RIG r = rig(5, 8, 512);
    static struct seq a, b;
    size_t n;

    add(&r, &a, 16, 47);
    add(&r, &b, 16, 47);
    for (int i = 0; i < 200 && a.q.n_known < a.q.n_total; i++) {
        n = pass(&r);
        cr_assert(gt(sz, n, 0));
    }
    cr_expect(eq(u32, a.q.n_known, a.q.n_total));
    cr_expect(eq(u32, a.q.n_preempted, 0));
}

/* ---- prefixes ---- */

Test(sched, a_second_equal_prompt_takes_all_but_the_last_page)
{
    RIG r = rig_of(40, 8, 512, true);
    static struct seq a, b;

    init(&a, 48, 10);
    init(&b, 48, 10);
    put(&r, &a);
    pass(&r);
    sched_remove(r.s, &a.q);
    cr_expect(eq(u32, stats(&r).pages_free, 40));
    cr_expect(eq(u32, stats(&r).pages_cached, 3));
    put(&r, &b);
    cr_expect(eq(ptr, sched_admit(r.s), &b.q));
    cr_expect(eq(u32, b.q.n_cached, 32));
    cr_expect(eq(u32, b.q.n_done, 32));
    pass(&r);
    cr_expect(eq(u32, b.q.n_known, 49));
    cr_expect(eq(u64, stats(&r).cached_tokens, 32));
    cr_expect(eq(u32, stats(&r).pages_cached, 3));  /* its own third is the one that was there */
}

Test(sched, equal_prompts_in_flight_are_read_once)
{
    RIG r = rig_of(300, 8, 64, true);
    static struct seq seq[4];
    const struct sched_rows *plan;
    uint32_t n_rows = 0;

    for (int i = 0; i < 4; i++) {
        init(&seq[i], 200, 10);
        put(&r, &seq[i]);
    }
    cr_expect(eq(sz, admit_all(&r), 4));
    for (bool done = false; !done;) {
        size_t n = sched_plan(r.s, &plan);

        cr_assert(gt(sz, n, 0));
        for (size_t i = 0; i < n; i++)
            n_rows += plan[i].prompt ? plan[i].n : 0;
        struct sched_rows rows[8];

        memcpy(rows, plan, n * sizeof rows[0]);
        sched_advance(r.s);
        for (size_t i = 0; i < n; i++)
            rows[i].seq->n_known += rows[i].n_logits;
        done = true;
        for (int i = 0; i < 4; i++)
            done &= seq[i].q.n_known > 200;
    }
    cr_expect(eq(u32, n_rows, 200 + 3 * 8));
    cr_expect(eq(u32, seq[0].q.n_cached, 0));
    for (int i = 1; i < 4; i++)
        cr_expect(eq(u32, seq[i].q.n_cached, 192));
    cr_expect(ge(u32, stats(&r).pages_free, 300 - 12 - 4 - 4));
}

Test(sched, who_followed_one_that_leaves_reads_itself)
{
    RIG r = rig_of(300, 8, 64, true);
    static struct seq a, b;

    init(&a, 200, 10);
    init(&b, 200, 10);
    put(&r, &a);
    put(&r, &b);
    cr_expect(eq(sz, pass(&r), 1));
    sched_remove(r.s, &a.q);
    while (b.q.n_known == 200)
        cr_assert(eq(sz, pass(&r), 1));
    cr_expect(eq(u32, b.q.n_cached, 64));
}

Test(sched, nothing_is_shared_between_salts)
{
    RIG r = rig_of(300, 8, 512, true);
    static struct seq seq[3];

    for (int i = 0; i < 3; i++) {
        init(&seq[i], 200, 10);
        seq[i].q.salt.part[i / 2] = 7;
        put(&r, &seq[i]);
        pass(&r);
        cr_expect(eq(u32, seq[i].q.n_cached, i == 1 ? 192 : 0));
    }
}

Test(sched, pages_of_prompts_go_when_others_need_them_and_not_before)
{
    RIG r = rig_of(6, 8, 512, true);
    static struct seq a, b, c;

    init(&a, 40, 4);
    put(&r, &a);
    pass(&r);
    sched_remove(r.s, &a.q);
    cr_expect(eq(u32, stats(&r).pages_cached, 2));
    init(&b, 50, 14);
    b.tokens[0] = 9;
    put(&r, &b);                                    /* four pages: all that are free */
    pass(&r);
    cr_expect(eq(u32, stats(&r).pages_cached, 2 + 3));
    init(&c, 20, 4);
    c.tokens[0] = 8;
    put(&r, &c);
    while (!c.q.n_done)
        pass(&r);
    cr_expect(eq(u32, stats(&r).pages_cached, 3 + 1));
    sched_remove(r.s, &b.q);
    sched_remove(r.s, &c.q);
    cr_expect(eq(u32, stats(&r).pages_free, 6));
}

/* ---- anything at all ---- */

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t state = a * 0x9E3779B97F4A7C15u + b;

    return rand_next(&state);
}

/* Prompts from three families, cut anywhere, a tail of their own, two salts, priorities, tenants;
 * and what each position must hold: a hash of all before it and of how it is computed. */
static void random_seq(struct seq *seq, uint64_t *rng, uint32_t most)
{
    uint32_t n_prompt = 1 + rand_below(rng, most - 40), n_more = 1 + rand_below(rng, 38), family, common;
    uint64_t value;

    init(seq, n_prompt, n_more);
    seq->q.priority = (int32_t)rand_below(rng, 12) / 10;
    seq->q.tenant = rand_below(rng, 3);
    seq->q.salt.part[1] = rand_below(rng, 2);
    family = rand_below(rng, 3);
    common = rand_below(rng, 3) ? rand_below(rng, n_prompt + 1) : n_prompt;
    value = mix(seq->q.salt.part[1], 77);
    for (uint32_t i = 0; i < n_prompt + n_more; i++) {
        seq->tokens[i] = (int32_t)(i < common ? family * 1000 + i : i < n_prompt ? rand_below(rng, 1000) : value % 1000);
        value = mix(value, (uint64_t)seq->tokens[i] * 2 + (i >= n_prompt));
        seq->values[i] = value;
    }
}

/* What is in the pages: [page][KV_PAGE]. */
static uint64_t held[64][KV_PAGE];

/* A model that looks at all that it is given. */
static void compute(const struct sched_rows *rows)
{
    const struct seq *seq = (const struct seq *)rows->seq;

    for (uint32_t pos = 0; pos < rows->pos; pos++)
        cr_assert(eq(u64, held[seq->pages[pos / KV_PAGE]][pos % KV_PAGE], seq->values[pos]));
    for (uint32_t pos = rows->pos; pos < rows->pos + rows->n; pos++) {
        cr_assert(eq(int, rows->prompt, pos < seq->q.n_prompt));
        held[seq->pages[pos / KV_PAGE]][pos % KV_PAGE] = seq->values[pos];
    }
}

static void check_plan(const struct sched_rows *plan, size_t n, uint32_t max_rows)
{
    uint32_t rows = 0;

    for (size_t i = 0; i < n; i++) {
        const struct sched_seq *q = plan[i].seq;

        cr_assert(q->in_piece || !q->held);
        cr_assert(eq(int, q->state, SCHED_RUNNING));
        cr_assert(eq(u32, plan[i].pos, q->n_done));
        cr_assert(le(u32, plan[i].pos + plan[i].n, q->n_known));
        cr_assert(le(u32, plan[i].pos + plan[i].n, q->n_pages * KV_PAGE));
        cr_assert(eq(u32, plan[i].n_logits, plan[i].pos + plan[i].n == q->n_known && !plan[i].goes_on));
        cr_assert(plan[i].prompt || !plan[i].goes_on);
        cr_assert(i == 0 || plan[i].prompt >= plan[i - 1].prompt);
        for (size_t k = 0; k < i; k++)
            cr_assert(ne(ptr, plan[k].seq, plan[i].seq));
        rows += plan[i].n;
    }
    cr_assert(le(u32, rows, max_rows));
}

/* A piece goes through all layers in their order, with the same rows in the same pages. */
struct watch {
    uint32_t layers, at;
    size_t n;
    struct sched_rows rows[12];
    uint32_t pages[12];
};

static void watch(struct watch *w, const struct sched *s, const struct sched_rows *plan, size_t n)
{
    const struct sched_layers through = sched_layers(s);
    size_t k = 0;

    if (!w->layers || n == 0 || !plan[n - 1].prompt)
        return;
    while (!plan[k].prompt)
        k++;
    cr_assert(eq(u32, through.from, w->at));
    cr_assert(lt(u32, through.from, through.to));
    cr_assert(le(u32, through.to, w->layers));
    if (w->at == 0)
        w->n = n - k;
    cr_assert(eq(sz, w->n, n - k));
    for (size_t i = 0; i < w->n; i++) {
        const struct sched_rows *rows = &plan[k + i];
        const uint32_t page = rows->seq->pages[rows->pos / KV_PAGE];

        if (w->at == 0) {
            w->rows[i] = *rows;
            w->pages[i] = page;
        }
        cr_assert(eq(ptr, w->rows[i].seq, rows->seq));
        cr_assert(eq(u32, w->rows[i].pos, rows->pos));
        cr_assert(eq(u32, w->rows[i].n, rows->n));
        cr_assert(eq(u32, w->pages[i], page));
        cr_assert(eq(int, rows->goes_on, through.to < w->layers));
    }
    w->at = through.to < w->layers ? through.to : 0;
    cr_assert(eq(int, sched_goes_on(s), 1));
}

/* Guesses behind those that generate: some of them stand, and in the place of the others is what must never be looked at. */
static void guess(struct rig *r, const struct sched_rows *plan, size_t n, uint64_t *rng)
{
    for (size_t i = 0; i < n; i++) {
        const struct seq *seq = (const struct seq *)plan[i].seq;
        uint32_t n_rows = 1, n_kept;

        if (plan[i].prompt || plan[i].n != 1 || plan[i].n_logits != 1)
            continue;
        if (rand_below(rng, 2))
            n_rows += sched_widen(r->s, i, rand_below(rng, 20));
        cr_assert(eq(u32, plan[i].n, n_rows));
        cr_assert(eq(u32, plan[i].n_logits, n_rows));
        cr_assert(le(u32, plan[i].pos + n_rows, seq->q.n_total));
        cr_assert(le(u32, plan[i].pos + n_rows, seq->q.n_pages * KV_PAGE));
        n_rows = 1 + rand_below(rng, n_rows);
        n_kept = 1 + rand_below(rng, n_rows);
        compute(&plan[i]);
        for (uint32_t pos = plan[i].pos + n_kept; pos < plan[i].pos + n_rows; pos++)
            held[seq->pages[pos / KV_PAGE]][pos % KV_PAGE] = 0;
        sched_keep(r->s, i, n_rows, n_kept);
    }
}

static void random_traffic(uint64_t seed)
{
    uint64_t rng = seed;
    uint32_t pages = 8 + rand_below(&rng, 50), parallel = 1 + rand_below(&rng, 12), n_added = 0, n_ended = 0, n_passes = 0;
    uint32_t most = pages * KV_PAGE < 200 ? pages * KV_PAGE : 200;
    struct watch w = { .layers = rand_below(&rng, 2) ? 1 + rand_below(&rng, 5) : 0 };
    RIG r = rig_apart(pages, parallel, 64, rand_below(&rng, 4) != 0, w.layers);
    static struct seq seq[40];

    while (n_ended < 40) {
        const struct sched_rows *plan;
        size_t n;

        cr_assert(lt(u32, ++n_passes, 20000), "seed %llu does not end", (unsigned long long)seed);
        if (n_added < 40 && rand_below(&rng, 2)) {
            random_seq(&seq[n_added], &rng, most);
            put(&r, &seq[n_added++]);
        }
        admit_all(&r);
        for (uint32_t i = 0; i < n_added; i++)
            seq[i].q.held = rand_below(&rng, 5) == 0;
        n = sched_plan(r.s, &plan);
        check_plan(plan, n, 64);
        watch(&w, r.s, plan, n);
        guess(&r, plan, n, &rng);
        for (size_t i = 0; i < n; i++)
            compute(&plan[i]);
        cr_assert(le(u32, stats(&r).running, parallel));
        struct sched_rows done[12];

        memcpy(done, plan, n * sizeof done[0]);
        sched_advance(r.s);
        sched_took(r.s, 100 + rand_below(&rng, 100000), rand_below(&rng, 100));
        for (size_t i = 0; i < n; i++)
            done[i].seq->n_known += done[i].n_logits;
        for (uint32_t i = 0; i < n_added; i++) {
            struct sched_seq *q = &seq[i].q;
            bool cancel = q->state != SCHED_OUT && rand_below(&rng, 200) == 0;

            if (cancel || (q->state != SCHED_OUT && q->n_known >= q->n_total)) {
                sched_remove(r.s, q);
                n_ended++;
            }
        }
        if (!sched_goes_on(r.s))
            w.at = 0;
    }
    cr_assert(eq(u32, stats(&r).pages_free, pages));
    while (r.prefix && prefix_evict(r.prefix))
        ;
    cr_assert(eq(u32, kv_free_pages(r.kv), pages));
}

Test(sched, any_traffic_ends_computes_on_what_it_must_and_every_page_comes_back, .timeout = 240)
{
    for (uint64_t seed = 0; seed < 300; seed++)
        random_traffic(seed);
}

/* ---- pieces ---- */

/* One that generates, and a prompt that is in the middle of a piece of a model of 4 layers. */
static void begin_a_piece(struct rig *r, struct seq *a, uint32_t n_more, struct seq *b, uint32_t n_prompt)
{
    const struct sched_rows *plan;

    add(r, a, 4, n_more);
    pass(r);
    sched_took(r->s, 1000, 0);
    add(r, b, n_prompt, 10);
    do {
        admit_all(r);
        if (sched_plan(r->s, &plan) == 2) {
            cr_assert(eq(ptr, plan[1].seq, &b->q));
            cr_assert(plan[1].goes_on);
        }
        sched_advance(r->s);
        a->q.n_known++;
        sched_took(r->s, 1000000, sched_layers(r->s).to ? 999000 : 0);
    } while (!sched_goes_on(r->s) || !sched_layers(r->s).to);
    cr_assert(b->q.in_piece);
    cr_assert(eq(u32, b->q.n_done, 0));
}

Test(sched, a_piece_that_is_slow_goes_through_a_layer_a_pass_beside_what_generates)
{
    RIG r = rig_apart(100, 4, 512, true, 4);
    static struct seq a, b, c;
    const struct sched_rows *plan;
    uint32_t at = 1, n_alone = 0;

    begin_a_piece(&r, &a, 600, &b, 200);
    add(&r, &c, 50, 10);                            /* is not read before the piece is through */
    admit_all(&r);
    while (at < 4) {
        size_t n = sched_plan(r.s, &plan);

        cr_assert(eq(ptr, plan[0].seq, &a.q));
        cr_assert(eq(u32, plan[0].n, 1));
        n_alone += n == 1;
        if (n == 2) {
            cr_assert(eq(ptr, plan[1].seq, &b.q));
            cr_expect(eq(u32, sched_layers(r.s).from, at));
            cr_expect(eq(u32, sched_layers(r.s).to, ++at));
            cr_expect(eq(u32, plan[1].n_logits, at == 4));
        }
        sched_advance(r.s);
        a.q.n_known++;
        sched_took(r.s, 1000000, 999000);
    }
    cr_expect(le(u32, n_alone, 1));
    cr_expect(eq(u32, b.q.n_done, 200));
    cr_expect(not(sched_goes_on(r.s)));
    b.q.n_known++;
    cr_assert(eq(sz, sched_plan(r.s, &plan), 2));   /* two that generate are timed alone first */
    sched_advance(r.s);
    a.q.n_known++;
    b.q.n_known++;
    sched_took(r.s, 1000, 0);
    cr_assert(eq(sz, sched_plan(r.s, &plan), 3));
    cr_expect(eq(ptr, plan[2].seq, &c.q));
}

Test(sched, who_is_in_a_piece_is_not_thrown_out_and_one_that_grows_waits_for_it)
{
    RIG r = rig_apart(16, 4, 512, false, 4);
    static struct seq a, b, urgent;
    const struct sched_rows *plan;

    begin_a_piece(&r, &a, 100, &b, 190);                 /* 12 of the pages */
    init(&urgent, 30, 10);
    urgent.q.priority = -1;
    put(&r, &urgent);
    cr_expect(eq(ptr, sched_admit(r.s), NULL));
    b.q.held = true;
    cr_expect(eq(ptr, sched_admit(r.s), NULL));
    for (int i = 0; i < 100 && b.q.in_piece; i++) {
        sched_plan(r.s, &plan);
        sched_advance(r.s);
        sched_took(r.s, 1000000, 999000);
    }
    cr_expect(eq(u32, b.q.n_done, 190));
    cr_expect(eq(ptr, sched_admit(r.s), &urgent.q));
    cr_expect(eq(int, b.q.state, SCHED_WAITING));
}

Test(sched, a_piece_that_stands_for_a_pass_keeps_its_rows)
{
    RIG r = rig_apart(100, 4, 64, false, 4);
    static struct seq a, b, c;
    const struct sched_rows *plan;
    uint32_t n;

    add(&r, &c, 4, 100);
    pass(&r);
    sched_took(r.s, 1000, 0);
    c.q.held = true;
    begin_a_piece(&r, &a, 100, &b, 150);
    c.q.held = false;
    cr_assert(eq(sz, sched_plan(r.s, &plan), 2));   /* two that generate are timed alone */
    cr_assert(sched_goes_on(r.s));
    cr_expect(eq(u32, sched_layers(r.s).from, sched_layers(r.s).to));
    n = sched_widen(r.s, 0, 100);
    n += sched_widen(r.s, 1, 100);
    cr_expect(eq(u32, n + 2 + 48, 64));             /* b has three pages in it */
}

Test(sched, one_that_leaves_a_piece_ends_it_and_nothing_of_it_counts)
{
    RIG r = rig_apart(100, 4, 512, true, 4);
    static struct seq a, b;
    const struct sched_rows *plan;

    begin_a_piece(&r, &a, 600, &b, 200);
    sched_remove(r.s, &b.q);
    cr_expect(not(sched_goes_on(r.s)));
    cr_expect(not(b.q.in_piece));
    cr_assert(eq(sz, sched_plan(r.s, &plan), 1));
    cr_expect(eq(ptr, plan[0].seq, &a.q));
    sched_advance(r.s);
    cr_expect(eq(u32, stats(&r).pages_cached, 0));
}

Test(sched, an_entry_that_generates_is_widened_as_far_as_there_is_room)
{
    RIG r = rig(16, 4, 24);
    const struct sched_rows *plan;
    struct seq seq;

    add(&r, &seq, 8, 10);
    pass(&r);
    cr_assert(eq(sz, sched_plan(r.s, &plan), 1));
    cr_expect(eq(u32, sched_widen(r.s, 0, 100), 9));            /* 18 positions in all */
    cr_expect(eq(u32, plan[0].n, 10));
    cr_expect(eq(u32, plan[0].n_logits, 10));
}

Test(sched, a_pass_is_widened_to_its_most_rows)
{
    RIG r = rig(16, 4, 6);
    const struct sched_rows *plan;
    struct seq seq[2];

    add(&r, &seq[0], 4, 30);
    pass(&r);
    add(&r, &seq[1], 2, 30);
    while (seq[1].q.n_known == 2)
        pass(&r);
    cr_assert(eq(sz, sched_plan(r.s, &plan), 2));
    cr_expect(eq(u32, sched_widen(r.s, 0, 3), 3));
    cr_expect(eq(u32, sched_widen(r.s, 1, 3), 1));
}

Test(sched, a_guess_takes_no_page_that_others_need)
{
    RIG r = rig(3, 4, 64);
    const struct sched_rows *plan;
    struct seq seq[2];

    add(&r, &seq[0], 12, 30);
    pass(&r);
    cr_assert(eq(sz, sched_plan(r.s, &plan), 1));
    cr_expect(eq(u32, sched_widen(r.s, 0, 15), 15));            /* one page more */
    cr_expect(eq(u32, seq[0].q.n_pages, 2));
    sched_keep(r.s, 0, 16, 1);
    sched_advance(r.s);
    seq[0].q.n_known++;

    add(&r, &seq[1], 6, 20);
    pass(&r);
    cr_assert(eq(u32, stats(&r).running, 1));       /* the last page is to grow by */
    cr_assert(eq(sz, sched_plan(r.s, &plan), 1));
    cr_expect(eq(u32, sched_widen(r.s, 0, 100), 32 - plan[0].pos - 1));
    cr_expect(eq(u32, seq[0].q.n_pages, 2));
}

Test(sched, of_a_widened_entry_what_is_kept_is_done)
{
    RIG r = rig(16, 4, 64);
    const struct sched_rows *plan;
    struct seq seq;

    add(&r, &seq, 8, 30);
    pass(&r);
    for (uint32_t done = 8; done < 20; done += 3) {
        cr_assert(eq(sz, sched_plan(r.s, &plan), 1));
        cr_expect(eq(u32, plan[0].pos, done));
        cr_expect(eq(u32, sched_widen(r.s, 0, 5), 5));
        sched_keep(r.s, 0, 5, 3);
        sched_advance(r.s);
        seq.q.n_known += 3;
        cr_expect(eq(u32, seq.q.n_done, done + 3));
    }
}
