/* The CPU engine with the default model: what random weights can not show. */
#include "base/arena.h"
#include "base/err.h"
#include "base/buf.h"
#include "base/json.h"
#include "conv/chat.h"
#include "gen/engine.h"
#include "tests/gen/play.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
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
