/* Whatever comes when: each request gets what it gets alone.
 *
 * Random schedules on a tiny model. Requests arrive at random moments of each
 * other's answers, are cancelled and paused in the middle, share beginnings,
 * have priorities, tenants and salts, and there are so few pages that they
 * throw each other out. The reference is the same request alone, in an engine
 * that knows no prefixes. FASTCHAT_SCHEDULES says how many schedules; ./check
 * --all runs many. */
#include "gen/engine.h"

#include "base/err.h"
#include "tests/gen/play.h"
#include "tests/gen/rand.h"
#include "tests/gen/tiny_file.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <string.h>

enum { N = 24, LONGEST = 330, MOST = 60 };

static char folder[] = "/tmp/fastchat-schedules-XXXXXX", path[64];

static void setup(void)
{
    cr_assert(ne(ptr, mkdtemp(folder), NULL));
    snprintf(path, sizeof path, "%s/tiny.gguf", folder);
    tiny_file_write(path, &(struct tiny_file){ .seed = 23 });
}

static void teardown(void)
{
    unlink(path);
    rmdir(folder);
}

TestSuite(schedules, .init = setup, .fini = teardown, .timeout = 3000);

static struct play alone[N], many[N];
static int32_t prompts[N][LONGEST];

/* What happens to request i on its way. */
static struct fate {
    int cancel_at, pause_at;        /* its output event; 0: never */
    int after;                      /* it comes with the so-manieth output event of all */
} fates[N];

struct traffic {
    uint64_t *rng;
    int n_events, n_sent;
    struct play *paused[N];
    int n_paused;
};

static struct traffic traffic;

static void fill_prompt(uint64_t *rng, int32_t *prompt, size_t n)
{
    uint32_t family = rand_below(rng, 3), common = rand_below(rng, 4) ? rand_below(rng, (uint32_t)n + 1) : (uint32_t)n;

    for (size_t i = 0; i < n; i++)
        prompt[i] = (int32_t)(i < common ? (i * (family + 3)) % 250 : rand_below(rng, 250));
}

static void random_request(uint64_t *rng, int i)
{
    size_t n = 1 + (rand_below(rng, 3) ? rand_below(rng, 100) : rand_below(rng, LONGEST - 1));
    struct engine_request *req = &many[i].req;

    fill_prompt(rng, prompts[i], n);
    many[i] = (struct play){ .req = {
        .tokens = prompts[i], .n_tokens = n, .max_tokens = 1 + rand_below(rng, MOST), .sample = sample_defaults,
        .n_logprobs = rand_below(rng, 3) ? -1 : 2, .ignore_end = true,
        .priority = (int32_t)rand_below(rng, 6) / 5 - (int32_t)rand_below(rng, 6) / 5,
        .tenant = rand_below(rng, 3), .salt = { 0, rand_below(rng, 3) },
    } };
    req->sample.temperature = rand_below(rng, 3) ? 1 : 0;
    req->sample.has_seed = true;
    req->sample.seed = rand_next(rng);
    if (rand_below(rng, 3) == 0)
        req->sample.repetition_penalty = 1.2f;
    if (rand_below(rng, 4) == 0)
        req->sample.dry_multiplier = 0.8f;
    if (rand_below(rng, 5) == 0)
        req->sample.mirostat = 2;
    alone[i] = (struct play){ .req = *req };
    fates[i] = (struct fate){
        .cancel_at = rand_below(rng, 6) ? 0 : 1 + (int)rand_below(rng, 20),
        .pause_at = rand_below(rng, 4) ? 0 : 1 + (int)rand_below(rng, 20),
        .after = (int)rand_below(rng, 200),
    };
}

static void submit(struct play_box *box, struct play *p)
{
    struct err err = { 0 };

    cr_assert(zero(int, play_submit(box, p, &err)), "%s", err_text(&err));
}

static void go_on(int i)
{
    struct play *p = traffic.paused[i];

    traffic.paused[i] = traffic.paused[--traffic.n_paused];
    if (!p->n_done)                                 /* it may have ended with the output that paused it */
        engine_pause(p->box->e, p->seq, false);
}

static void send_due(struct play_box *box)
{
    for (int i = 0; i < N; i++)
        if (many[i].box == NULL && fates[i].after <= traffic.n_events)
            submit(box, &many[i]), traffic.n_sent++;
}

static void on_output(struct play *p)
{
    const struct fate *fate = &fates[p - many];

    traffic.n_events++;
    if (p->n_output == fate->cancel_at) {
        play_cancel(p);
        return;
    }
    if (p->n_output == fate->pause_at) {
        engine_pause(p->box->e, p->seq, true);
        traffic.paused[traffic.n_paused++] = p;
    }
    if (traffic.n_paused && rand_below(traffic.rng, 4) == 0) {
        int i = (int)rand_below(traffic.rng, (uint32_t)traffic.n_paused);

        if (traffic.paused[i] != p)
            go_on(i);
    }
    send_due(p->box);
}

/* What is left when nothing moves: the next comes, or a paused one goes on. */
static bool all_over(struct play_box *box, void *unused)
{
    struct engine_stats s;
    bool over = true;

    engine_stats(box->e, &s);
    for (int i = 0; i < N; i++)
        over &= many[i].n_done || many[i].cancelled;
    if (over)
        return s.running + s.waiting == 0;
    if (s.running + s.waiting <= (uint32_t)traffic.n_paused) {
        traffic.n_events += 20;
        if (traffic.n_paused)
            go_on(0);
        send_due(box);
    }
    return false;
}

/* Of a cancelled one: as far as it got. */
static void expect_same(int i)
{
    const struct play *a = &alone[i], *b = &many[i];

    cr_assert(b->cancelled ? b->n_tokens <= a->n_tokens : b->n_tokens == a->n_tokens);
    cr_assert(zero(int, memcmp(buf_str(&a->text), buf_str(&b->text), b->text.len)));
    for (size_t k = 0; k < b->n_tokens; k++) {
        cr_assert(eq(i32, a->tokens[k].id, b->tokens[k].id), "request %d, token %zu", i, k);
        cr_assert(zero(int, memcmp(&a->tokens[k].logprob, &b->tokens[k].logprob, sizeof(float))));
    }
    cr_assert(eq(int, b->n_started, b->cancelled ? b->n_started : 1));
    cr_assert(le(u32, b->cached_tokens, (uint32_t)b->req.n_tokens - 1));
}

static struct engine_stats total;

static void run_one(uint64_t seed)
{
    uint64_t rng = seed;
    struct engine_config config = {
        .path = path, .parallel = 1 + rand_below(&rng, 10), .threads = 1 + rand_below(&rng, 2), .context = 400,
        .chat_template = "chatml", .kv_tokens = 400 + rand_below(&rng, 800),
        .prefix = rand_below(&rng, 4) ? ENGINE_PREFIX_SALTED : ENGINE_PREFIX_OFF,
    };
    const struct engine_config plain = { .path = path, .parallel = 1, .threads = 2, .context = 400, .chat_template = "chatml",
                                         .prefix = ENGINE_PREFIX_OFF };
    struct engine_stats s;
    PLAY_BOX box;

    for (int i = 0; i < N; i++) {
        random_request(&rng, i);
        many[i].on_output = on_output;
    }
    traffic = (struct traffic){ .rng = &rng };
    cr_assert(zero(int, play_open(&box, config, NULL)));
    send_due(&box);
    play_until(&box, all_over, NULL);
    engine_stats(box.e, &s);
    cr_assert(eq(u32, s.kv_pages_free, s.kv_pages));
    cr_assert(eq(u64, s.allocations, 0));
    total.preemptions += s.preemptions;
    total.cached_tokens += s.cached_tokens;
    {
        PLAY_BOX quiet;

        cr_assert(zero(int, play_open(&quiet, plain, NULL)));
        for (int i = 0; i < N; i++) {
            submit(&quiet, &alone[i]);
            play_wait(&quiet, &alone[i], 1);
            expect_same(i);
        }
    }
    play_fini(many, N);
    play_fini(alone, N);
}

Test(schedules, whatever_comes_when_each_request_gets_what_it_gets_alone)
{
    const char *given = getenv("FASTCHAT_SCHEDULES");
    int n = given ? atoi(given) : 12;

    for (int i = 0; i < n; i++)
        run_one(1000 + (uint64_t)i);
    printf("%d schedules, %llu preemptions, %llu tokens from the cache\n", n, (unsigned long long)total.preemptions,
           (unsigned long long)total.cached_tokens);
    if (n >= 12) {
        cr_expect(gt(u64, total.preemptions, 0));
        cr_expect(gt(u64, total.cached_tokens, 0));
    }
}
