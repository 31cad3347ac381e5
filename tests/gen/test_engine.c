/* The CPU engine through its interface, on a tiny random model; with the real
 * one see test_engine_real.c. */
#include "gen/engine.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/utf8.h"
#include "conv/chat.h"
#include "gen/cpu/kernels.h"
#include "tests/gen/play.h"
#include "tests/gen/rand.h"
#include "tests/gen/tiny_file.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 8 };

static char folder[] = "/tmp/fastchat-engine-XXXXXX", path[64];

static void setup(void)
{
    cr_assert(ne(ptr, mkdtemp(folder), NULL));
    snprintf(path, sizeof path, "%s/tiny.gguf", folder);
    tiny_file_write(path, &(struct tiny_file){ .seed = 11 });
}

static void teardown(void)
{
    unlink(path);
    rmdir(folder);
}

TestSuite(engine, .init = setup, .fini = teardown, .timeout = 300);

static const struct engine_config tiny = {
    .path = path, .parallel = N, .threads = 2, .context = 512, .chat_template = "chatml",
};

static int32_t prompts[N][64];

/* Eight requests that differ in everything. */
static void fill(struct play *p, uint32_t max_tokens)
{
    for (int i = 0; i < N; i++) {
        size_t len = (size_t)(5 + 7 * i);

        for (size_t k = 0; k < len; k++)
            prompts[i][k] = (int32_t)((k * 31 + (size_t)i * 57) % 250);
        p[i] = (struct play){ .req = {
            .tokens = prompts[i], .n_tokens = len, .max_tokens = max_tokens,
            .sample = sample_defaults, .n_logprobs = -1, .ignore_end = true,
        } };
        p[i].req.sample.has_seed = true;
        p[i].req.sample.seed = (uint64_t)i;
        if (i % 3 == 0)
            p[i].req.sample.temperature = 0;
        if (i % 3 == 1)
            p[i].req.sample.top_p = 0.9f;
        if (i % 4 == 2)
            p[i].req.sample.repetition_penalty = 1.3f;
        if (i == 5 || i == 7)
            p[i].req.sample.dry_multiplier = 0.8f;
        if (i == 4)
            p[i].req.sample.typical_p = 0.8f;
        if (i == 7)
            p[i].req.sample.mirostat = 2;
        if (i == 2)
            p[i].req.sample.xtc_probability = 0.5f;
    }
}

static void submit(struct play_box *box, struct play *p)
{
    struct err err = { 0 };

    cr_assert(zero(int, play_submit(box, p, &err)), "%s", err_text(&err));
}

static void expect_same(const struct play *a, const struct play *b)
{
    cr_expect(eq(sz, a->n_tokens, b->n_tokens));
    cr_expect(eq(sz, a->text.len, b->text.len));
    cr_expect(zero(int, memcmp(buf_str(&a->text), buf_str(&b->text), a->text.len)));
    for (size_t i = 0; i < a->n_tokens && i < b->n_tokens; i++)
        cr_assert(eq(i32, a->tokens[i].id, b->tokens[i].id), "token %zu", i);
    cr_expect(eq(str, (char *)a->finish, (char *)b->finish));
}

static void run_alone(struct play *p)
{
    PLAY_OPEN(box, tiny);

    for (int i = 0; i < N; i++) {
        submit(&box, &p[i]);
        play_wait(&box, &p[i], 1);
    }
}

static struct play alone[N], many[N];

Test(engine, eight_at_once_share_passes_and_each_gets_what_it_gets_alone)
{
    struct engine_stats stats;
    PLAY_OPEN(box, tiny);

    fill(alone, 60);
    fill(many, 60);
    run_alone(alone);
    for (int i = 0; i < N; i++)
        submit(&box, &many[i]);
    play_wait(&box, many, N);
    engine_stats(box.e, &stats);
    cr_expect(gt(u64, stats.forwards_batched, 0));
    cr_expect(eq(u64, stats.generated_tokens, N * 60));
    cr_expect(eq(u32, stats.kv_pages, stats.kv_pages_free));
    cr_expect(eq(u64, stats.allocations, 0));
    for (int i = 0; i < N; i++) {
        cr_expect(eq(int, many[i].n_started, 1));
        cr_expect(eq(int, many[i].n_done, 1));
        cr_expect(eq(str, (char *)many[i].finish, "length"));
        cr_expect(eq(u32, many[i].prompt_tokens, (uint32_t)many[i].req.n_tokens));
        cr_expect(eq(u32, many[i].completion_tokens, 60));
        cr_expect(eq(sz, many[i].n_tokens, 60));
        cr_expect(utf8_is_valid(buf_str(&many[i].text), many[i].text.len));
        expect_same(&alone[i], &many[i]);
    }
    play_fini(alone, N);
    play_fini(many, N);
}

struct most { uint32_t running, waiting; uint64_t preemptions; struct play *p; };

static bool watch_stats(struct play_box *box, void *user)
{
    struct most *most = user;
    struct engine_stats s;

    engine_stats(box->e, &s);
    most->running = s.running > most->running ? s.running : most->running;
    most->waiting = s.waiting > most->waiting ? s.waiting : most->waiting;
    most->preemptions = s.preemptions;
    for (int i = 0; i < N; i++)
        if (!most->p[i].n_done)
            return false;
    return true;
}

Test(engine, with_pages_for_three_more_begin_and_give_way_and_all_finish_as_alone)
{
    struct engine_config config = tiny;
    struct most most = { .p = many };

    /* 50 + 60 tokens are 7 pages. */
    config.kv_tokens = 3 * 7 * 16;
    fill(alone, 60);
    fill(many, 60);
    for (int i = 0; i < N; i++)
        many[i].req.n_tokens = alone[i].req.n_tokens = 50;
    run_alone(alone);
    {
        PLAY_OPEN(box, config);

        for (int i = 0; i < N; i++)
            submit(&box, &many[i]);
        watch_stats(&box, &most);
        play_until(&box, watch_stats, &most);
        for (int i = 0; i < N; i++)
            expect_same(&alone[i], &many[i]);
    }
    cr_expect(ge(u32, most.waiting, 4));
    cr_expect(ge(u32, most.running, 1));
    cr_expect(gt(u64, most.preemptions, 0));
    for (int i = 0; i < N; i++)
        cr_expect(eq(int, many[i].n_started, 1));
    play_fini(alone, N);
    play_fini(many, N);
}

Test(engine, a_seed_repeats_and_another_does_not)
{
    PLAY_OPEN(box, tiny);

    fill(many, 40);
    for (int i = 0; i < 3; i++) {
        many[i].req = many[2].req;
        many[i].req.sample = sample_defaults;
        many[i].req.sample.has_seed = true;
        many[i].req.sample.seed = i < 2 ? 99 : 100;
        submit(&box, &many[i]);
    }
    play_wait(&box, many, 3);
    expect_same(&many[0], &many[1]);
    cr_expect(ne(int, memcmp(buf_str(&many[0].text), buf_str(&many[2].text), 20), 0));
    play_fini(many, N);
}

/* Eight times the same prompt of 100 tokens, seeds 0 to 7. */
static void fill_equal(struct play *p)
{
    static int32_t prompt[100];

    for (int k = 0; k < 100; k++)
        prompt[k] = (k * 7) % 250;
    fill(p, 30);
    for (int i = 0; i < N; i++) {
        p[i].req.tokens = prompt;
        p[i].req.n_tokens = 100;
    }
}

Test(engine, equal_prompts_are_read_once_and_each_answer_is_its_own)
{
    struct engine_config config = tiny;
    struct engine_stats stats;

    fill_equal(alone);
    fill_equal(many);
    config.prefix = ENGINE_PREFIX_OFF;
    {
        PLAY_OPEN(box, config);

        for (int i = 0; i < N; i++) {
            submit(&box, &alone[i]);
            play_wait(&box, &alone[i], 1);
            cr_expect(eq(u32, alone[i].cached_tokens, 0));
        }
        engine_stats(box.e, &stats);
        cr_expect(eq(u64, stats.prompt_tokens, 100 * N));
        cr_expect(eq(u32, stats.kv_pages_cached, 0));
    }
    {
        PLAY_OPEN(box, tiny);

        for (int i = 0; i < N; i++)
            submit(&box, &many[i]);
        play_wait(&box, many, N);
        engine_stats(box.e, &stats);
        cr_expect(eq(u64, stats.prompt_tokens, 100 + (N - 1) * 4));
        cr_expect(eq(u64, stats.cached_tokens, (N - 1) * 96));
        cr_expect(eq(u32, stats.kv_pages_cached, 6));
        cr_expect(eq(u32, stats.kv_pages_free, stats.kv_pages));
        for (int i = 0; i < N; i++) {
            cr_expect(eq(u32, many[i].cached_tokens, i ? 96 : 0));
            expect_same(&alone[i], &many[i]);
        }
        play_fini(many, N);
        fill_equal(many);                           /* and they outlive their requests */
        submit(&box, &many[3]);
        play_wait(&box, &many[3], 1);
        cr_expect(eq(u32, many[3].cached_tokens, 96));
        expect_same(&alone[3], &many[3]);
    }
    play_fini(alone, N);
    play_fini(many, N);
}

Test(engine, what_one_salt_has_read_another_does_not_find_unless_all_share)
{
    struct engine_config config = tiny;

    for (int shared = 0; shared < 2; shared++) {
        config.prefix = shared ? ENGINE_PREFIX_SHARED : ENGINE_PREFIX_SALTED;
        PLAY_OPEN(box, config);

        fill_equal(many);
        for (int i = 0; i < 4; i++) {
            many[i].req.salt[i / 2] = 5;            /* 5,0  5,0  0,5  0,5 */
            submit(&box, &many[i]);
            play_wait(&box, &many[i], 1);
            cr_expect(eq(u32, many[i].cached_tokens, i % 2 || (shared && i) ? 96 : 0));
        }
        play_fini(many, N);
    }
}

Test(engine, a_request_that_is_late_fails_while_it_runs_and_while_it_waits)
{
    struct engine_config config = tiny;
    uint64_t now = clock_mono_us();

    config.parallel = 1;
    PLAY_OPEN(box, config);
    fill(many, 480);
    many[0].req.n_tokens = 10;
    submit(&box, &many[0]);
    engine_pause(box.e, many[0].seq, true);
    many[1].req.deadline_us = now + 1000;           /* waits */
    many[2].req.deadline_us = now + 600000000;
    many[1].req.max_tokens = many[2].req.max_tokens = 20;
    submit(&box, &many[1]);
    submit(&box, &many[2]);
    engine_pause(box.e, many[0].seq, false);
    play_wait(&box, many, 3);
    cr_expect(eq(int, many[0].n_done, 1));
    cr_expect(eq(int, many[1].error, -ETIMEDOUT));
    cr_expect(eq(str, (char *)many[1].message, "the request took longer than it was given"));
    cr_expect(eq(int, many[2].n_done, 1));
    play_fini(many, N);

    fill(many, 400);                                /* nothing happens but the clock */
    many[0].req.n_tokens = 10;
    many[0].req.deadline_us = clock_mono_us() + 20000;
    submit(&box, &many[0]);
    engine_pause(box.e, many[0].seq, true);
    play_wait(&box, many, 1);
    cr_expect(eq(int, many[0].error, -ETIMEDOUT));
    play_fini(many, N);
}

static bool pages_are_back(struct play_box *box, void *unused)
{
    struct engine_stats s;

    engine_stats(box->e, &s);
    return s.kv_pages_free == s.kv_pages && !s.running && !s.waiting;
}

Test(engine, a_cancel_frees_the_pages_in_prefill_in_decode_and_in_the_queue)
{
    struct engine_config config = tiny;
    static int32_t prompt[1000];
    struct play *p = many;

    config.parallel = 2;
    config.context = 2048;
    {
        PLAY_OPEN(box, config);

        fill(p, 1000);
        p[0].req.tokens = prompt;
        p[0].req.n_tokens = 1000;
        for (int i = 0; i < 4; i++)
            submit(&box, &p[i]);
        p[1].on_output = play_cancel;               /* while it generates */
        p[2].on_output = play_cancel;
        play_cancel(&p[0]);                         /* while its prompt is read */
        play_cancel(&p[3]);                         /* while it waits */
        play_wait(&box, p, 4);
        play_until(&box, pages_are_back, NULL);
        cr_expect(eq(int, p[1].n_output, 1));
        cr_expect(eq(int, p[1].n_done, 0));
        play_fini(p, N);

        /* And it goes on serving. */
        fill(p, 10);
        submit(&box, &p[0]);
        play_wait(&box, p, 1);
        cr_expect(eq(int, p[0].n_done, 1));
    }
    play_fini(p, N);
}

static bool has_begun(struct play_box *box, void *user)
{
    struct engine_stats s;
    struct play *p = user;

    engine_stats(box->e, &s);
    return p->n_output >= 1 || (p->req.n_tokens > 1000 && s.forwards >= 1);
}

Test(engine, a_cancelled_sequence_is_in_no_pass_but_the_one_that_runs)
{
    struct engine_config config = tiny;
    static int32_t prompt[1900];
    struct engine_stats at_cancel, end;

    config.context = 2048;
    for (size_t n = 10; n <= 1900; n += 1890) {         /* while it generates, while its prompt is read */
        PLAY_OPEN(box, config);

        fill(many, 100);
        many[0].req.tokens = prompt;
        many[0].req.n_tokens = n;
        submit(&box, &many[0]);
        play_until(&box, has_begun, &many[0]);
        if (!many[0].n_done)                            /* a test that was stopped for long comes too late */
            play_cancel(&many[0]);
        engine_stats(box.e, &at_cancel);
        play_until(&box, pages_are_back, NULL);
        engine_stats(box.e, &end);
        cr_expect(le(u64, end.forwards, at_cancel.forwards + 1));
        play_fini(many, N);
    }
}

static void pause_myself(struct play *p)
{
    if (p->n_output == 1)
        engine_pause(p->box->e, p->seq, true);
}

Test(engine, one_that_is_paused_keeps_its_pages_and_goes_on_where_it_was)
{
    struct engine_stats stats;
    PLAY_OPEN(box, tiny);

    fill(alone, 200);
    fill(many, 200);
    submit(&box, &alone[1]);
    play_wait(&box, &alone[1], 1);

    many[1].on_output = pause_myself;
    submit(&box, &many[1]);
    submit(&box, &many[4]);
    play_wait(&box, &many[4], 1);
    engine_stats(box.e, &stats);
    cr_expect(lt(u32, stats.kv_pages_free, stats.kv_pages));
    cr_expect(eq(u32, stats.running, 1));
    cr_expect(eq(int, many[1].n_done, 0));
    cr_expect(lt(sz, many[1].n_tokens, 200));
    engine_pause(box.e, many[1].seq, false);
    play_wait(&box, &many[1], 1);
    expect_same(&alone[1], &many[1]);
    play_fini(alone, N);
    play_fini(many, N);
}

static void never(const struct engine_event *ev, void *unused) { cr_assert(0); }

Test(engine, a_caller_that_does_not_poll_stops_its_sequences_and_loses_nothing)
{
    struct engine_stats stats, later;
    PLAY_OPEN(box, tiny);

    fill(alone, 300);
    fill(many, 300);
    submit(&box, &alone[1]);
    play_wait(&box, &alone[1], 1);
    submit(&box, &many[1]);
    /* No poll: it runs until its outbox is full, then the thread sleeps. */
    while (!atomic_load(&box.pulse.idle))
        sched_yield();
    engine_stats(box.e, &stats);
    cr_expect(eq(u32, stats.running, 1));
    cr_expect(lt(u64, stats.generated_tokens, 300 + 300));
    engine_stats(box.e, &later);
    cr_expect(eq(u64, later.generated_tokens, stats.generated_tokens));
    cr_expect(eq(u64, later.allocations, 0));
    play_wait(&box, &many[1], 1);
    expect_same(&alone[1], &many[1]);
    cr_expect(zero(sz, engine_poll(box.e, never, NULL)));
    play_fini(alone, N);
    play_fini(many, N);
}

Test(engine, a_stop_string_ends_the_text_before_it_however_tokens_cut_it)
{
    char stop[8] = { 0 };
    const char *stops[] = { "never in it, surely", stop }, *at;
    size_t cut = 0;
    PLAY_OPEN(box, tiny);

    fill(alone, 100);
    submit(&box, &alone[0]);
    play_wait(&box, &alone[0], 1);
    /* Two characters somewhere behind the tenth token. */
    for (size_t i = 20; i + 2 < alone[0].text.len && !cut; i++)
        if (alone[0].text.data[i] > ' ' && alone[0].text.data[i + 1] > ' ')
            cut = i;
    cr_assert(gt(sz, cut, 0));
    memcpy(stop, alone[0].text.data + cut, 2);
    at = strstr(alone[0].text.data, stop);
    cut = (size_t)(at - alone[0].text.data);

    fill(many, 100);
    many[0].req.stop = stops;
    many[0].req.n_stop = 2;
    submit(&box, &many[0]);
    play_wait(&box, &many[0], 1);
    cr_expect(eq(str, (char *)many[0].finish, "stop"));
    cr_expect(eq(str, (char *)many[0].stop, (char *)stop));
    cr_expect(eq(sz, many[0].text.len, cut));
    cr_expect(zero(int, memcmp(buf_str(&many[0].text), alone[0].text.data, cut)));
    cr_expect(eq(u32, many[0].completion_tokens, (uint32_t)many[0].n_tokens));
    cr_expect(lt(sz, many[0].n_tokens, 100));
    play_fini(alone, N);
    play_fini(many, N);
}

Test(engine, an_end_token_ends_it_and_is_not_counted)
{
    size_t at = 0;
    int32_t end;
    PLAY_OPEN(box, tiny);

    fill(alone, 100);
    fill(many, 100);
    submit(&box, &alone[1]);
    play_wait(&box, &alone[1], 1);
    end = alone[1].tokens[30].id;
    while (alone[1].tokens[at].id != end)
        at++;
    many[1].req.stop_tokens = &end;
    many[1].req.n_stop_tokens = 1;
    submit(&box, &many[1]);
    play_wait(&box, &many[1], 1);
    cr_expect(eq(str, (char *)many[1].finish, "stop"));
    cr_expect(eq(str, (char *)many[1].stop, ""));
    cr_expect(eq(u32, many[1].completion_tokens, (uint32_t)at));
    cr_expect(eq(sz, many[1].n_tokens, at));
    play_fini(alone, N);
    play_fini(many, N);
}

Test(engine, log_probabilities_come_with_their_tokens_when_asked)
{
    PLAY_OPEN(box, tiny);

    fill(many, 50);
    many[0].req.n_logprobs = 5;                     /* greedy */
    many[1].req.n_logprobs = 0;
    submit(&box, &many[0]);
    submit(&box, &many[1]);
    play_wait(&box, many, 2);
    cr_expect(eq(sz, many[0].n_top, 5 * 50));
    cr_expect(eq(sz, many[1].n_top, 0));
    for (size_t i = 0; i < 50; i++) {
        cr_expect(lt(flt, many[0].tokens[i].logprob, 0));
        cr_expect(gt(flt, many[0].tokens[i].logprob, -10));
        cr_expect(lt(flt, many[1].tokens[i].logprob, 0));
    }
    play_fini(many, N);
}

Test(engine, logits_that_are_no_numbers_fail_the_sequence_and_nothing_else)
{
    tiny_file_write(path, &(struct tiny_file){ .seed = 1, .not_finite = true });
    PLAY_OPEN(box, tiny);

    fill(many, 5);
    submit(&box, &many[0]);
    submit(&box, &many[1]);
    play_wait(&box, many, 2);
    cr_expect(eq(int, many[0].n_failed, 1));
    cr_expect(eq(int, many[1].error, -EDOM));
    cr_expect(eq(str, (char *)many[1].message, "the model's output is not a number"));
    play_until(&box, pages_are_back, NULL);
    play_fini(many, N);
}

static void refuse(struct play_box *box, const struct engine_request *req, const char *sentence)
{
    struct engine_seq *seq = NULL;
    struct err err = { 0 };

    cr_expect(eq(int, engine_submit(box->e, req, &seq, &err), -EINVAL));
    cr_expect(eq(str, (char *)err_text(&err), (char *)sentence));
    cr_expect(eq(ptr, seq, NULL));
}

Test(engine, requests_that_can_never_run_are_refused_with_a_sentence)
{
    const int32_t bad[] = { 1, -7, 3 };
    const char *const empty[] = { "" };
    struct engine_request good, req;
    PLAY_OPEN(box, tiny);

    fill(many, 10);
    good = req = many[0].req;
    req.n_tokens = 0;
    refuse(&box, &req, "the prompt is empty");
    req = good;
    req.max_tokens = 508;
    refuse(&box, &req, "the prompt has 5 tokens and max_tokens is 508: together more than the context "
                       "of 512 tokens");
    req.max_tokens = 0;
    refuse(&box, &req, "max_tokens must be at least 1");
    req = good;
    req.tokens = bad;
    req.n_tokens = 3;
    refuse(&box, &req, "token 1 of the prompt, -7, is not in the vocabulary of 264");
    req = good;
    req.n_logprobs = 21;
    refuse(&box, &req, "21 log-probabilities are more than 20");
    req = good;
    req.priority = -1001;
    refuse(&box, &req, "a priority of -1001 is not between -1000 and 1000");
    req = good;
    req.stop = empty;
    req.n_stop = 1;
    refuse(&box, &req, "stop string 1 is empty");
    req = good;
    req.sample.temperature = NAN;
    refuse(&box, &req, "temperature is not a finite number");
    play_fini(many, N);
}

Test(engine, the_last_token_that_the_context_holds_is_generated)
{
    PLAY_OPEN(box, tiny);

    fill(many, 507);
    submit(&box, &many[0]);
    play_wait(&box, many, 1);
    cr_expect(eq(u32, many[0].completion_tokens, 507));
    cr_expect(eq(str, (char *)many[0].finish, "length"));
    play_fini(many, N);
}

Test(engine, a_full_queue_is_busy)
{
    struct engine_config config = tiny;
    struct engine_seq *seq[1025], *one_more = NULL;

    config.parallel = 1;
    PLAY_OPEN(box, config);
    fill(many, 10);
    for (int i = 0; i < 1025; i++) {
        cr_assert(zero(int, engine_submit(box.e, &many[0].req, &seq[i], NULL)));
        engine_pause(box.e, seq[i], true);
        /* One that was quicker than its pause waits for a poll that never comes. */
    }
    if (atomic_load(&box.notified) == 0)
        cr_expect(eq(int, engine_submit(box.e, &many[0].req, &one_more, NULL), ENGINE_BUSY));
    for (int i = 0; i < 1025; i++)
        engine_cancel(box.e, seq[i]);
    play_until(&box, pages_are_back, NULL);
}

enum { MANY = 60, AT_ONCE = 20 };

/* One of those at once: what it is and how far it came. */
struct wild { struct play_box *box; struct engine_seq *seq; uint64_t *rng; bool live, paused; int *n_ended; };

static void on_wild(const struct engine_event *ev, void *unused)
{
    struct wild *w = ev->user;

    cr_assert(w->live);
    if (ev->kind == ENGINE_DONE || ev->kind == ENGINE_FAILED) {
        cr_assert(eq(int, ev->kind, ENGINE_DONE));
        w->live = false;
        ++*w->n_ended;
    } else if (rand_below(w->rng, 20) == 0) {
        engine_cancel(w->box->e, w->seq);
        w->live = false;
        ++*w->n_ended;
    }
}

Test(engine, any_mix_of_submit_cancel_and_pause_ends_with_every_page_back)
{
    static struct wild wild[AT_ONCE];
    struct engine_config config = tiny;
    int n_begun = 0, n_ended = 0;
    uint64_t rng = 77;

    config.parallel = 5;
    config.kv_tokens = 700;
    PLAY_OPEN(box, config);
    fill(many, 100);
    while (n_ended < MANY) {
        struct wild *w = &wild[rand_below(&rng, AT_ONCE)];

        if (!w->live && n_begun < MANY) {
            struct engine_request req = many[rand_below(&rng, N)].req;

            *w = (struct wild){ .box = &box, .rng = &rng, .live = true, .n_ended = &n_ended };
            req.user = w;
            req.n_logprobs = (int)rand_below(&rng, 4) - 1;
            cr_assert(zero(int, engine_submit(box.e, &req, &w->seq, NULL)));
            n_begun++;
        } else if (w->live && rand_below(&rng, 300) == 0) {
            engine_cancel(box.e, w->seq);
            w->live = false;
            n_ended++;
        } else if (w->live) {
            w->paused = !w->paused && rand_below(&rng, 4) == 0;
            engine_pause(box.e, w->seq, w->paused);
        }
        if (rand_below(&rng, 3) == 0)
            engine_poll(box.e, on_wild, NULL);
    }
    play_until(&box, pages_are_back, NULL);
}

Test(engine, closing_ends_what_runs)
{
    PLAY_OPEN(box, tiny);

    fill(many, 400);
    for (int i = 0; i < N; i++)
        submit(&box, &many[i]);
    play_fini(many, N);
}

Test(engine, it_says_what_it_is_and_beats_and_is_idle)
{
    const struct engine_info *info;
    struct engine_config config = tiny;
    uint64_t beats;

    config.context = 256;
    PLAY_OPEN(box, config);
    info = engine_info(box.e);
    cr_expect(eq(str, (char *)info->model, "Tiny"));
    cr_expect(zero(int, strncmp(info->backend, "cpu ", 4)));
    cr_expect(eq(u32, info->context_length, 256));
    cr_expect(eq(u32, info->vocab_size, 264));
    cr_expect(gt(u64, info->weight_bytes, 0));
    cr_expect(gt(u64, info->kv_bytes, 0));
    cr_expect(eq(str, (char *)chat_name(info->chat), "chatml"));
    while (!atomic_load(&box.pulse.idle))
        sched_yield();
    beats = atomic_load(&box.pulse.beats);
    fill(many, 10);
    submit(&box, &many[0]);
    play_wait(&box, many, 1);
    cr_expect(ge(u64, atomic_load(&box.pulse.beats), beats + 10));
    play_fini(many, N);
}

Test(engine, kv_that_is_smaller_than_the_context_makes_the_context_smaller)
{
    struct engine_config config = tiny;

    config.kv_tokens = 100;
    PLAY_OPEN(box, config);
    cr_expect(eq(u32, engine_info(box.e)->context_length, 96));
}

static void open_fails(struct engine_config config, int code, const char *sentence)
{
    struct err err = { 0 };
    PLAY_BOX box;

    cr_expect(eq(int, play_open(&box, config, &err), code));
    cr_expect(strstr(err_text(&err), sentence) != NULL, "%s", err_text(&err));
}

Test(engine, what_can_not_be_opened_is_refused_by_name)
{
    struct engine_config config = tiny;

    config.path = "/nonexistent/model.gguf";
    open_fails(config, -ENOENT, "/nonexistent/model.gguf");
    config = tiny;
    config.chat_template = "no such";
    open_fails(config, -EINVAL, "tiny.gguf: there is no chat template 'no such'");
    config = tiny;
    config.context = 3000;
    open_fails(config, -EINVAL, "a context of 3000 tokens is more than the model's 2048");
    config = tiny;
    config.parallel = 0;
    open_fails(config, -EINVAL, "0 sequences at once");
    config = tiny;
    config.kv_type = "q4";
    open_fails(config, -EINVAL, "keys and values as 'q4' are not known: there are f16, bf16 and q8");
    config = tiny;
    config.isa = "mmx";
    open_fails(config, -ENOTSUP, "tiny.gguf: instruction set \"mmx\" is not known here; this machine has: scalar");
    tiny_file_write(path, &(struct tiny_file){ .seed = 1, .chat_template = "{{ messages }}\n{% if %}" });
    config = tiny;
    config.chat_template = "auto";
    open_fails(config, -EINVAL, "tokenizer.chat_template:2:");
}

/* With a draft model, so that one that asked the environment itself would fail. */
Test(engine, it_computes_by_the_instruction_set_that_it_is_told)
{
    struct engine_config config = tiny;

    config.speculative = "draft";
    config.draft_model = path;
    setenv("FASTCHAT_ISA", "mmx", 1);
    for (size_t i = 0; kernels_at(i); i++) {
        char backend[64];

        config.isa = kernels_at(i)->name;
        PLAY_OPEN(box, config);

        snprintf(backend, sizeof backend, "cpu %s", config.isa);
        cr_expect(eq(str, (char *)engine_info(box.e)->backend, backend));
        fill(alone, 8);
        submit(&box, &alone[0]);
        play_wait(&box, alone, 1);
        play_fini(alone, 1);
    }
    config.isa = "auto";
    open_fails(config, -ENOTSUP, "tiny.gguf: FASTCHAT_ISA: instruction set \"mmx\" is not known here");
}

/* Some text for one message of a person. */
static char *written(struct engine *e, struct arena *a)
{
    static const char messages[] = "[{\"role\":\"user\",\"content\":\"a\"}]";
    const struct chat_input in = { .messages = messages, .messages_len = sizeof messages - 1, .add_generation_prompt = true };
    struct chat_prompt prompt;
    const char *param;
    struct err err = { 0 };

    cr_assert(zero(int, chat_render(engine_info(e)->chat, &in, a, &prompt, &param, &err)), "%s", err_text(&err));
    return arena_strdup(a, prompt.text);
}

Test(engine, chats_are_written_by_the_files_own_template_or_a_guess)
{
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    struct engine_config config = tiny;

    config.chat_template = "auto";
    tiny_file_write(path, &(struct tiny_file){ .seed = 1, .chat_template = "{{ bos_token }}[{{ messages[0].content }}]" });
    {
        PLAY_OPEN(box, config);

        cr_expect(eq(str, (char *)engine_info(box.e)->chat_reason, "its own, tokenizer.chat_template"));
        cr_expect(strstr(written(box.e, a), "[a]") != NULL);
    }
    tiny_file_write(path, &(struct tiny_file){ .seed = 1 });
    {
        PLAY_OPEN(box, config);

        cr_expect(strncmp(engine_info(box.e)->chat_reason, "no chat template of its own", 27) == 0);
        cr_expect(strstr(written(box.e, a), "a") != NULL);
    }
}

Test(engine, only_trusted_spans_hold_control_tokens)
{
    const struct text_span spans[] = {
        { "<|im_start|>", 12, true },
        { "the<|im_end|>", 13, false },
        { "<|im_end|>", 10, true },
    };
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    const char *text;
    int32_t *ids;
    size_t n, len;
    PLAY_OPEN(box, tiny);

    cr_assert(zero(int, engine_tokenize(box.e, spans, 3, true, a, &ids, &n, NULL)));
    cr_expect(eq(i32, ids[0], 261));
    cr_expect(eq(i32, ids[n - 1], 262));
    for (size_t i = 1; i + 1 < n; i++)
        cr_expect(lt(i32, ids[i], 261));
    text = engine_token_text(box.e, 257, &len);
    cr_expect(eq(sz, len, 3));
    cr_expect(zero(int, memcmp(text, "the", 3)));
    text = engine_token_text(box.e, 9999, &len);
    cr_expect(eq(sz, len, 0));
}
