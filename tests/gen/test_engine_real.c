/* The CPU engine with the default model: what random weights can not show. */
#include "base/arena.h"
#include "base/err.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "conv/chat.h"
#include "gen/engine.h"
#include "tests/gen/play.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { N = 8, MOST = 24 };

static const char *model(void)
{
    static char path[4096];
    const char *given = getenv("FASTCHAT_SMOLLM2"), *cache = getenv("FASTCHAT_CACHE");
    const char *home = getenv("HOME"), *ci = getenv("CI");
    const char *file = "models/SmolLM2-135M-Instruct.Q4_1.gguf";

    if (given)
        snprintf(path, sizeof path, "%s", given);
    else if (cache)
        snprintf(path, sizeof path, "%s/%s", cache, file);
    else
        snprintf(path, sizeof path, "%s/.cache/fastchat/%s", home ? home : "", file);
    if (access(path, R_OK) == 0)
        return path;
    if (ci && !strcmp(ci, "true"))
        cr_assert(0, "the model is not there: %s", path);
    cr_skip_test("the model is not there: %s (./quickstart fetches it)", path);
}

static void open_real(struct play_box *box, uint64_t kv_tokens)
{
    struct err err = { 0 };

    cr_assert(zero(int, play_open(box, (struct engine_config){
        .path = model(), .parallel = N, .context = 512, .kv_tokens = kv_tokens, .chat_template = "auto",
    }, &err)), "%s", err_text(&err));
}

static const char *const questions[N] = {
    "What is the capital of France?",
    "Count from one to five.",
    "Name three colours.",
    "Write a line of Python that prints 'hi'.",
    "What do bees make?",
    "Say hello in Spanish.",
    "What is 2 + 2?",
    "Give me a word that rhymes with cat.",
};

static void ask(struct play_box *box, struct arena *a, struct play *p, int i)
{
    struct chat_input r = { .add_generation_prompt = true };
    struct chat_prompt prompt;
    BUF_LOCAL messages = BUF_INIT;
    struct err err = { 0 };
    const char *param;
    int32_t *ids;
    size_t n;

    buf_adds(&messages, "[{\"role\":\"user\",\"content\":");
    json_quote(&messages, questions[i], strlen(questions[i]));
    buf_adds(&messages, "}]");
    r.messages = buf_str(&messages);
    r.messages_len = messages.len;
    cr_assert(zero(int, chat_render(engine_info(box->e)->chat, &r, a, &prompt, &param, &err)));
    cr_assert(zero(int, engine_tokenize(box->e, prompt.spans, prompt.n_spans, true, a, &ids, &n, &err)));
    *p = (struct play){ .req = {
        .tokens = ids, .n_tokens = n, .max_tokens = MOST, .sample = sample_defaults, .n_logprobs = -1,
    } };
    p->req.sample.temperature = i % 2 ? 0.8f : 0;
    p->req.sample.has_seed = true;
    p->req.sample.seed = (uint64_t)i;
    cr_assert(zero(int, play_submit(box, p, &err)), "%s", err_text(&err));
}

static struct play alone[N], many[N];

static void expect_same_as_alone(struct play_box *box, struct arena *a)
{
    for (int i = 0; i < N; i++) {
        ask(box, a, &alone[i], i);
        play_wait(box, &alone[i], 1);
    }
    for (int i = 0; i < N; i++) {
        cr_expect(eq(str, (char *)buf_str(&alone[i].text), (char *)buf_str(&many[i].text)));
        cr_expect(eq(str, (char *)alone[i].finish, (char *)many[i].finish));
        cr_expect(eq(u32, alone[i].completion_tokens, many[i].completion_tokens));
    }
}

Test(engine_real, eight_at_once_get_the_text_they_get_alone, .timeout = 1200)
{
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    struct engine_stats stats;
    PLAY_BOX box;

    open_real(&box, 0);
    for (int i = 0; i < N; i++)
        ask(&box, a, &many[i], i);
    play_wait(&box, many, N);
    engine_stats(box.e, &stats);
    cr_expect(gt(u64, stats.forwards_batched, 10));
    cr_expect(eq(u64, stats.allocations, 0));
    cr_expect(eq(u32, stats.kv_pages, stats.kv_pages_free));
    expect_same_as_alone(&box, a);
    play_fini(many, N);
    play_fini(alone, N);
}

static uint32_t most_waiting, most_running;

static void watch(struct play *p)
{
    struct engine_stats stats;

    engine_stats(p->box->e, &stats);
    most_waiting = stats.waiting > most_waiting ? stats.waiting : most_waiting;
    most_running = stats.running > most_running ? stats.running : most_running;
}

Test(engine_real, with_kv_for_three_others_wait_or_give_way_and_all_get_their_text, .timeout = 1200)
{
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    PLAY_BOX box;

    open_real(&box, 3 * 80);                        /* each takes 55 to 75 positions: 4 or 5 pages */
    for (int i = 0; i < N; i++) {
        ask(&box, a, &many[i], i);
        many[i].on_output = watch;
    }
    play_wait(&box, many, N);
    cr_expect(gt(u32, most_waiting, 0));
    cr_expect(lt(u32, most_running, N));
    expect_same_as_alone(&box, a);
    play_fini(many, N);
    play_fini(alone, N);
}

/* ---- prompts that are read over many passes ---- */

enum { N_STREAMS = 2, N_READERS = 6, READ_TOKENS = 100 };

static struct play streams[N_STREAMS], readers[N_READERS];
static int32_t numbers[N_STREAMS + N_READERS][READ_TOKENS];

static void send(struct play_box *box, struct play *p, const int32_t *tokens, size_t n, uint32_t max_tokens, uint64_t deadline_us)
{
    struct err err = { 0 };

    *p = (struct play){ .on_output = p->on_output, .req = {
        .tokens = tokens, .n_tokens = n, .max_tokens = max_tokens, .sample = sample_defaults, .n_logprobs = -1, .ignore_end = true,
        .deadline_us = deadline_us,
    } };
    p->req.sample.temperature = 0;
    cr_assert(zero(int, play_submit(box, p, &err)), "%s", err_text(&err));
}

static void send_stream(struct play_box *box, int i) { send(box, &streams[i], numbers[i], 20, 150, 0); }

static void send_reader(struct play_box *box, int i, uint64_t deadline_us)
{
    send(box, &readers[i], numbers[N_STREAMS + i], READ_TOKENS, 8, deadline_us);
}

/* Three share a piece, and two of them leave it between the layers; another leaves one that is its own, and is followed by
 * one that stays. */
static void come_and_go(struct play *p)
{
    switch (p->n_output) {
    case 5:
        send_reader(p->box, 0, 0);
        send_reader(p->box, 1, 0);
        send_reader(p->box, 2, clock_mono_us() + 2000);
        break;
    case 6:
        play_cancel(&readers[1]);
        break;
    case 60:
        send_reader(p->box, 3, 0);
        break;
    case 61:
        play_cancel(&readers[3]);
        send_reader(p->box, 4, 0);
        send_reader(p->box, 5, 0);
        break;
    case 62:
        play_cancel(&readers[5]);
        break;
    }
}

static void expect_again(struct play_box *box, struct play *p, int i, bool reader)
{
    struct play first = p[i];

    p[i].on_output = NULL;
    if (reader)
        send_reader(box, i, 0);
    else
        send_stream(box, i);
    play_wait(box, &p[i], 1);
    cr_expect(eq(u32, first.completion_tokens, p[i].completion_tokens));
    cr_expect(eq(str, (char *)buf_str(&first.text), (char *)buf_str(&p[i].text)));
    play_fini(&first, 1);
}

Test(engine_real, who_leaves_while_a_prompt_is_between_layers_changes_nothing_for_others, .timeout = 1200)
{
    struct engine_stats stats;
    PLAY_BOX box;

    open_real(&box, 0);
    for (int i = 0; i < N_STREAMS + N_READERS; i++)
        for (int k = 0; k < READ_TOKENS; k++)
            numbers[i][k] = (k * 977 + i * 131) % 20000 + 300;
    streams[0].on_output = come_and_go;
    for (int i = 0; i < N_STREAMS; i++)
        send_stream(&box, i);
    play_wait(&box, streams, N_STREAMS);
    play_wait(&box, readers, N_READERS);
    engine_stats(box.e, &stats);
    cr_expect(eq(u32, stats.running + stats.waiting, 0));
    cr_expect(eq(u32, stats.kv_pages, stats.kv_pages_free));
    cr_expect(eq(u64, stats.allocations, 0));
    cr_expect(eq(int, readers[2].error, -ETIMEDOUT));
    for (int i = 0; i < N_STREAMS; i++)
        expect_again(&box, streams, i, false);
    expect_again(&box, readers, 0, true);
    expect_again(&box, readers, 4, true);
    play_fini(streams, N_STREAMS);
    play_fini(readers, N_READERS);
}

/* ---- speculation ---- */

/* Texts that repeat, and ones that do not: as they are, without a template. */
static const char *const texts[] = {
    "static int point_add(struct point *a, struct point *b)\n{\n    a->x += b->x;\n    a->y += b->y;\n    return 0;\n}\n\n"
    "static int point_sub(struct point *a, struct point *b)\n{\n    a->x -= b->x;\n    a->y -= b->y;\n    return 0;\n}\n\nstatic int point_mul(",
    "one apple, two pears, three plums\none apple, two pears, three plums\none apple, two pears, three plums\none apple,",
    "The history of the town begins with",
    "The history of the town begins with",
};
enum { N_TEXTS = sizeof texts / sizeof texts[0] };

static void go_on(struct play_box *box, struct arena *a, struct play *p, int i)
{
    const struct text_span span = { .text = texts[i], .len = strlen(texts[i]) };
    struct err err = { 0 };
    int32_t *ids;
    size_t n;

    cr_assert(zero(int, engine_tokenize(box->e, &span, 1, true, a, &ids, &n, &err)));
    *p = (struct play){ .req = {
        .tokens = ids, .n_tokens = n, .max_tokens = 64, .sample = sample_defaults, .n_logprobs = i % 2 ? 2 : -1,
    } };
    p->req.sample.temperature = i % 3 ? 0.7f : 0;
    p->req.sample.repetition_penalty = i == 3 ? 1.1f : 1;
    p->req.sample.has_seed = true;
    p->req.sample.seed = (uint64_t)i;
    cr_assert(zero(int, play_submit(box, p, &err)), "%s", err_text(&err));
}

/* One after the other, then all at once. */
static void go_on_with(const char *speculative, struct play *one, struct play *all, struct engine_stats *stats)
{
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    struct err err = { 0 };
    PLAY_BOX box;

    cr_assert(zero(int, play_open(&box, (struct engine_config){
        .path = model(), .parallel = N_TEXTS, .context = 512, .chat_template = "auto", .speculative = speculative, .draft_model = model(),
    }, &err)), "%s", err_text(&err));
    for (int i = 0; i < N_TEXTS; i++) {
        go_on(&box, a, &one[i], i);
        play_wait(&box, &one[i], 1);
    }
    for (int i = 0; i < N_TEXTS; i++)
        go_on(&box, a, &all[i], i);
    play_wait(&box, all, N_TEXTS);
    engine_stats(box.e, stats);
    cr_expect(eq(u64, stats->allocations, 0));
    cr_expect(eq(u32, stats->kv_pages, stats->kv_pages_free));
}

static void expect_same_text(const struct play *want, const struct play *got)
{
    cr_expect(eq(str, (char *)buf_str(&want->text), (char *)buf_str(&got->text)));
    cr_expect(eq(str, (char *)want->finish, (char *)got->finish));
    cr_assert(eq(sz, want->n_tokens, got->n_tokens));
    for (size_t k = 0; k < want->n_tokens; k++) {
        cr_assert(eq(i32, want->tokens[k].id, got->tokens[k].id));
        cr_assert(zero(int, memcmp(&want->tokens[k].logprob, &got->tokens[k].logprob, sizeof(float))));
    }
}

Test(engine_real, with_speculation_every_text_is_the_one_without, .timeout = 1200)
{
    static const char *const ways[] = { "ngram", "draft" };
    static struct play off[N_TEXTS], off_all[N_TEXTS], on[N_TEXTS], on_all[N_TEXTS];
    struct engine_stats stats;

    go_on_with("off", off, off_all, &stats);
    for (int way = 0; way < 2; way++) {
        go_on_with(ways[way], on, on_all, &stats);
        for (int i = 0; i < N_TEXTS; i++) {
            expect_same_text(&off[i], &on[i]);
            expect_same_text(&off[i], &on_all[i]);
        }
        cr_expect(gt(u64, stats.accepted_tokens, stats.generated_tokens / 10), "%s", ways[way]);
        play_fini(on, N_TEXTS);
        play_fini(on_all, N_TEXTS);
    }
    for (int i = 0; i < N_TEXTS; i++)
        expect_same_text(&off[i], &off_all[i]);
    play_fini(off, N_TEXTS);
    play_fini(off_all, N_TEXTS);
}
