/* Speculation in the CPU engine: it may only change how fast a text comes. */
#include "base/err.h"
#include "gen/draft.h"
#include "gen/engine.h"
#include "tests/gen/play.h"
#include "tests/gen/tiny_file.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { N = 8, LONG = 300 };

static char folder[] = "/tmp/fastchat-draft-XXXXXX", path[64], other[64];

static void setup(void)
{
    cr_assert(ne(ptr, mkdtemp(folder), NULL));
    snprintf(path, sizeof path, "%s/tiny.gguf", folder);
    snprintf(other, sizeof other, "%s/other.gguf", folder);
    tiny_file_write(path, &(struct tiny_file){ .seed = 11 });
    tiny_file_write(other, &(struct tiny_file){ .seed = 12 });
}

static void teardown(void)
{
    unlink(path);
    unlink(other);
    rmdir(folder);
}

TestSuite(engine_draft, .init = setup, .fini = teardown, .timeout = 600);

/* Off; its own text; a draft model that is always right where it is sure; one that is mostly wrong. */
static const struct { const char *speculative, *draft_model; uint32_t tokens; } ways[] = {
    { "off", NULL, 0 }, { "ngram", NULL, 0 }, { "ngram", NULL, 16 }, { "draft", path, 0 }, { "draft", path, 3 }, { "draft", other, 5 },
};
enum { N_WAYS = sizeof ways / sizeof ways[0] };

static const char *kv_type;

static struct engine_config config_of(int way)
{
    return (struct engine_config){
        .path = path, .parallel = N, .threads = 2, .context = 512, .kv_type = kv_type, .chat_template = "chatml",
        .speculative = ways[way].speculative, .draft_model = ways[way].draft_model, .draft_tokens = ways[way].tokens,
    };
}

static int32_t prompts[N][64];

/* Prompts that repeat, and samplers of every kind; those at low temperatures soon go round in circles. */
static void fill(struct play *p, uint32_t max_tokens)
{
    for (int i = 0; i < N; i++) {
        const size_t len = (size_t)(5 + 7 * i);

        for (size_t k = 0; k < len; k++)
            prompts[i][k] = (int32_t)((k % 9 * 31 + (size_t)i * 57) % 250);
        p[i] = (struct play){ .req = {
            .tokens = prompts[i], .n_tokens = len, .max_tokens = max_tokens, .sample = sample_defaults,
            .n_logprobs = i % 3 - 1, .ignore_end = i % 2,
        } };
        p[i].req.sample.has_seed = true;
        p[i].req.sample.seed = (uint64_t)i;
        p[i].req.sample.temperature = i % 3 == 0 ? 0 : i % 3 == 1 ? 0.3f : 0.8f;
        p[i].req.sample.top_p = i == 1 ? 0.9f : 1;
        p[i].req.sample.repetition_penalty = i == 2 ? 1.3f : 1;
        p[i].req.sample.frequency_penalty = i == 4 ? 0.5f : 0;
        p[i].req.sample.dry_multiplier = i == 5 ? 0.8f : 0;
        p[i].req.sample.mirostat = i == 7 ? 2 : i == 6 ? 1 : 0;
        p[i].req.sample.xtc_probability = i == 2 ? 0.5f : 0;
    }
}

static void submit(struct play_box *box, struct play *p)
{
    struct err err = { 0 };

    cr_assert(zero(int, play_submit(box, p, &err)), "%s", err_text(&err));
}

static void expect_same(const struct play *a, const struct play *b, int way)
{
    cr_assert(eq(sz, a->n_tokens, b->n_tokens), "way %d", way);
    for (size_t i = 0; i < a->n_tokens; i++) {
        cr_assert(eq(i32, a->tokens[i].id, b->tokens[i].id), "way %d, token %zu", way, i);
        cr_assert(zero(int, memcmp(&a->tokens[i].logprob, &b->tokens[i].logprob, sizeof(float))), "way %d, token %zu", way, i);
    }
    cr_assert(eq(sz, a->text.len, b->text.len));
    cr_expect(zero(int, memcmp(buf_str(&a->text), buf_str(&b->text), a->text.len)));
    cr_expect(eq(str, (char *)a->finish, (char *)b->finish));
    cr_expect(eq(str, (char *)a->stop, (char *)b->stop));
    cr_expect(eq(u32, a->completion_tokens, b->completion_tokens));
}

static struct play plain[N], sped[N];

/* As many at once as asked. */
static void run(int way, struct play *p, int at_once, struct engine_stats *ret)
{
    PLAY_OPEN(box, config_of(way));

    for (int i = 0; i < N; i += at_once) {
        for (int k = i; k < i + at_once; k++)
            submit(&box, &p[k]);
        play_wait(&box, p + i, (size_t)at_once);
    }
    engine_stats(box.e, ret);
    cr_expect(eq(u32, ret->kv_pages, ret->kv_pages_free));
    cr_expect(eq(u64, ret->allocations, 0));
    cr_expect(le(u64, ret->accepted_tokens, ret->drafted_tokens));
}

static void expect_all_same(int way, int at_once, uint32_t max_tokens, struct engine_stats *stats)
{
    fill(sped, max_tokens);
    run(way, sped, at_once, stats);
    for (int i = 0; i < N; i++)
        expect_same(&plain[i], &sped[i], way);
    play_fini(sped, N);
}

Test(engine_draft, every_text_is_the_one_without_alone_and_with_others)
{
    struct engine_stats stats;

    fill(plain, LONG);
    run(0, plain, 1, &stats);
    cr_expect(zero(u64, stats.drafted_tokens));
    for (int way = 1; way < N_WAYS; way++) {
        for (int at_once = 1; at_once <= N; at_once *= 2) {
            expect_all_same(way, at_once, LONG, &stats);
            cr_expect(gt(u64, stats.drafted_tokens, 0));
            if (ways[way].draft_model != other)
                cr_expect(gt(u64, stats.accepted_tokens, stats.generated_tokens / 5), "way %d, %d at once", way, at_once);
            if (at_once == 1)
                cr_expect(lt(u64, stats.forwards, stats.generated_tokens + N + 1 - stats.accepted_tokens), "way %d", way);
        }
    }
    play_fini(plain, N);
}

Test(engine_draft, every_text_is_the_one_without_however_keys_and_values_are_kept)
{
    static const char *const types[] = { "bf16", "q8" };
    struct engine_stats stats;

    for (int t = 0; t < 2; t++) {
        kv_type = types[t];
        fill(plain, LONG);
        run(0, plain, 2, &stats);
        for (int way = 1; way < N_WAYS; way += 2)
            expect_all_same(way, 2, LONG, &stats);
        play_fini(plain, N);
    }
}

Test(engine_draft, short_answers_end_where_they_must)
{
    struct engine_stats stats;

    for (uint32_t most = 1; most <= 12; most += most < 4 ? 1 : 4) {
        fill(plain, most);
        run(0, plain, 2, &stats);
        for (int way = 1; way < N_WAYS; way++)
            expect_all_same(way, 2, most, &stats);
        play_fini(plain, N);
    }
}

/* One or two characters that stand in the text behind `at`, so that it stops in the middle of what was proposed. */
static void stop_from(const struct buf *text, size_t at, char ret[4])
{
    strcpy(ret, "###");
    for (; at + 1 < text->len; at++) {
        const char a = text->data[at], b = text->data[at + 1];

        if (a <= 0)
            continue;
        ret[0] = a;
        ret[1] = b > 0 ? b : 0;
        ret[2] = 0;
        return;
    }
}

static void add_stops(struct play *p, const char *stops[N])
{
    for (int i = 0; i < N; i++) {
        p[i].req.stop = &stops[i];
        p[i].req.n_stop = 1;
    }
}

Test(engine_draft, stop_strings_and_stop_tokens_end_an_answer_where_they_did)
{
    static char texts[N][4];
    const char *stops[N];
    struct engine_stats stats;
    int n_stopped = 0;

    for (int at = 20; at < 200; at += 60) {
        fill(plain, LONG);
        run(0, plain, N, &stats);
        for (int i = 0; i < N; i++) {
            stop_from(&plain[i].text, (size_t)at, texts[i]);
            stops[i] = texts[i];
        }
        play_fini(plain, N);
        fill(plain, LONG);
        add_stops(plain, stops);
        run(0, plain, N, &stats);
        for (int i = 0; i < N; i++)
            n_stopped += plain[i].stop[0] != 0;
        for (int way = 1; way < N_WAYS; way++) {
            fill(sped, LONG);
            add_stops(sped, stops);
            run(way, sped, 2, &stats);
            for (int i = 0; i < N; i++)
                expect_same(&plain[i], &sped[i], way);
            play_fini(sped, N);
        }
        play_fini(plain, N);
    }
    cr_expect(gt(int, n_stopped, N));
}

static void pause_and_cancel(struct play *p)
{
    if (p->n_tokens % 5 == 0) {
        engine_pause(p->box->e, p->seq, true);
        engine_pause(p->box->e, p->seq, false);
    }
    if (p->req.sample.seed == 3 && p->n_tokens > 40)
        play_cancel(p);
}

Test(engine_draft, pauses_and_cancellations_disturb_nobody)
{
    struct engine_stats stats;

    fill(plain, LONG);
    run(0, plain, N, &stats);
    for (int way = 1; way < N_WAYS; way++) {
        PLAY_OPEN(box, config_of(way));

        fill(sped, LONG);
        for (int i = 0; i < N; i++) {
            sped[i].on_output = pause_and_cancel;
            submit(&box, &sped[i]);
        }
        play_wait(&box, sped, N);
        for (int i = 0; i < N; i++)
            if (!sped[i].cancelled)
                expect_same(&plain[i], &sped[i], way);
        play_fini(sped, N);
    }
    play_fini(plain, N);
}

Test(engine_draft, with_few_pages_sequences_give_way_and_the_texts_are_the_same)
{
    struct engine_stats stats;

    fill(plain, LONG);
    run(0, plain, N, &stats);
    for (int way = 1; way < N_WAYS; way++) {
        struct engine_config config = config_of(way);

        config.kv_tokens = 800;
        PLAY_OPEN(box, config);
        fill(sped, LONG);
        for (int i = 0; i < N; i++)
            submit(&box, &sped[i]);
        play_wait(&box, sped, N);
        engine_stats(box.e, &stats);
        cr_expect(gt(u64, stats.preemptions, 0), "way %d", way);
        cr_expect(gt(u64, stats.accepted_tokens, 0), "way %d", way);
        cr_expect(eq(u32, stats.kv_pages, stats.kv_pages_free));
        for (int i = 0; i < N; i++)
            expect_same(&plain[i], &sped[i], way);
        play_fini(sped, N);
    }
    play_fini(plain, N);
}

Test(engine_draft, with_prompts_that_are_known_the_texts_are_the_same)
{
    struct engine_stats stats;

    fill(plain, LONG);
    run(0, plain, N, &stats);
    for (int way = 1; way < N_WAYS; way++) {
        PLAY_OPEN(box, config_of(way));

        for (int round = 0; round < 2; round++) {
            fill(sped, LONG);
            for (int i = 0; i < N; i++)
                submit(&box, &sped[i]);
            play_wait(&box, sped, N);
            for (int i = 0; i < N; i++)
                expect_same(&plain[i], &sped[i], way);
            play_fini(sped, N);
        }
        engine_stats(box.e, &stats);
        cr_expect(gt(u64, stats.cached_tokens, 50), "way %d", way);
    }
    play_fini(plain, N);
}

static bool full(struct play_box *box, void *user)
{
    struct engine_stats *s = user;
    const uint64_t before = s->generated_tokens;

    engine_stats(box->e, s);
    return s->generated_tokens >= 64 && s->generated_tokens == before;
}

/* play_until() polls; this one looks only. */
static void wait_unpolled(struct play_box *box, struct engine_stats *s)
{
    while (!full(box, s) || !atomic_load(&box->pulse.idle))
        usleep(1000);
}

Test(engine_draft, who_does_not_read_gets_the_same_text_later)
{
    struct engine_stats stats;

    fill(plain, LONG);
    run(0, plain, N, &stats);
    for (int way = 1; way < N_WAYS; way++) {
        struct engine_stats now = { 0 };
        PLAY_OPEN(box, config_of(way));

        fill(sped, LONG);
        submit(&box, &sped[3]);
        wait_unpolled(&box, &now);
        cr_expect(le(u64, now.generated_tokens, 64));
        play_wait(&box, &sped[3], 1);
        expect_same(&plain[3], &sped[3], way);
        play_fini(sped, N);
    }
    play_fini(plain, N);
}

/* ---- the distribution ------------------------------------------------ */

enum { ANSWERS = 1200, TOKENS = 10, VOCAB = 264 };

/* Mostly these, so that pairs come again. */
static const struct logit_bias few[] = { { 40, 5 }, { 41, 5 }, { 42, 5 }, { 43, 5 }, { 44, 5 } };

/* How often each token came at each place, over many seeds. */
static void count_tokens(int way, uint64_t first_seed, unsigned counts[TOKENS][VOCAB], struct engine_stats *stats)
{
    PLAY_OPEN(box, config_of(way));

    memset(counts, 0, TOKENS * sizeof counts[0]);
    for (int from = 0; from < ANSWERS; from += N) {
        fill(sped, TOKENS);
        for (int i = 0; i < N; i++) {
            sped[i].req.tokens = prompts[7];
            sped[i].req.n_tokens = 20;
            sped[i].req.ignore_end = true;
            sped[i].req.n_logprobs = -1;
            sped[i].req.sample = sample_defaults;
            sped[i].req.sample.temperature = 0.8f;
            sped[i].req.sample.bias = few;
            sped[i].req.sample.n_bias = 5;
            sped[i].req.sample.has_seed = true;
            sped[i].req.sample.seed = first_seed + (uint64_t)(from + i);
            submit(&box, &sped[i]);
            if (i % 2)                              /* two at a time, so that there is room for proposals */
                play_wait(&box, &sped[i - 1], 2);
        }
        for (int i = 0; i < N; i++)
            for (int k = 0; k < TOKENS; k++)
                counts[k][sped[i].tokens[k].id]++;
        play_fini(sped, N);
    }
    engine_stats(box.e, stats);
}

/* Of two samples of the same size; tokens that are rare in both count as one. */
static double chi_square(const unsigned *a, const unsigned *b, unsigned *ret_freedom)
{
    double sum = 0, rare_a = 0, rare_b = 0;

    *ret_freedom = 0;
    for (int i = 0; i < VOCAB; i++) {
        const double x = a[i], y = b[i];

        if (x + y < 20) {
            rare_a += x;
            rare_b += y;
            continue;
        }
        sum += (x - y) * (x - y) / (x + y);
        ++*ret_freedom;
    }
    if (rare_a + rare_b > 0)
        sum += (rare_a - rare_b) * (rare_a - rare_b) / (rare_a + rare_b);
    return sum;
}

/* One in 100,000 is above (Wilson and Hilferty's approximation, 4.26 deviations). */
static double bound(double freedom)
{
    const double v = 2 / (9 * freedom), root = 1 - v + 4.26 * sqrt(v);

    return freedom * root * root * root;
}

Test(engine_draft, over_many_seeds_the_distribution_of_tokens_is_the_same)
{
    static unsigned off[TOKENS][VOCAB], on[TOKENS][VOCAB];
    struct engine_stats stats;

    count_tokens(0, 0, off, &stats);
    for (int way = 1; way <= 3; way += 2) {         /* one of each kind */
        count_tokens(way, 1000000, on, &stats);
        cr_expect(gt(u64, stats.drafted_tokens, ANSWERS / 4), "way %d", way);
        cr_expect(gt(u64, stats.accepted_tokens, ANSWERS / 10), "way %d", way);
        cr_expect(lt(u64, stats.accepted_tokens, stats.drafted_tokens), "way %d", way);
        for (int k = 0; k < TOKENS; k++) {
            unsigned freedom;
            const double chi = chi_square(off[k], on[k], &freedom);

            cr_expect(gt(uint, freedom, 1));
            cr_expect(lt(dbl, chi, bound(freedom)), "way %d, token %d: %g of %u", way, k, chi, freedom);
        }
    }
}

/* ---- what is refused ------------------------------------------------- */

static void expect_refused(struct engine_config config, int error, const char *why)
{
    PLAY_BOX box;
    struct err err = { 0 };

    cr_expect(eq(int, play_open(&box, config, &err), error));
    cr_expect(ne(ptr, strstr(err_text(&err), why), NULL), "%s", err_text(&err));
}

Test(engine_draft, settings_that_make_no_sense_are_refused)
{
    struct engine_config config = config_of(0);

    config.speculative = "medusa";
    expect_refused(config, -EINVAL, "speculative \"medusa\" is not known");
    config.speculative = "draft";
    expect_refused(config, -EINVAL, "needs a draft model");
    config.draft_model = "/nonexistent/draft.gguf";
    expect_refused(config, -ENOENT, "/nonexistent/draft.gguf");
    config.draft_model = path;
    config.draft_tokens = DRAFT_MAX_TOKENS + 1;
    expect_refused(config, -EINVAL, "17 draft tokens are above the limit of 16");
}
