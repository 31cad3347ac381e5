/* The scripted engine through the interface of engine.h, as a worker uses it. */
#include "base/arena.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "conv/conv.h"
#include "gen/engine.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { CEILING_MS = 120000 };

struct outcome {
    struct engine_seq *seq;
    struct buf text;
    unsigned started, outputs, tokens, ended;
    int32_t last_token;
    float last_logprob;
    size_t last_top;
    char finish[16], stop[64], message[128];
    int error;
    uint32_t prompt_tokens, completion_tokens;
};

static int wake = -1;
static struct engine_pulse pulse;
static struct engine *engine;

static void notify(void *user)
{
    uint64_t one = 1;

    cr_assert(eq(sz, (size_t)write(wake, &one, sizeof one), sizeof one));
}

static int open_script(const char *json, uint32_t parallel, struct err *err)
{
    char path[] = "/tmp/fastchat-script-XXXXXX";
    struct engine_config config = { .name = "test", .path = path, .device = "scripted", .parallel = parallel,
                                    .chat_template = "auto", .pulse = &pulse, .notify = notify };
    int fd = mkstemp(path), r;

    cr_assert(ge(int, fd, 0));
    cr_assert(eq(sz, (size_t)write(fd, json, strlen(json)), strlen(json)));
    close(fd);
    wake = eventfd(0, EFD_CLOEXEC);
    r = engine_open(&config, &engine, err);
    unlink(path);
    return r;
}

static void close_script(void)
{
    engine_close(engine);
    engine = NULL;
    close(wake);
}

static void on_event(const struct engine_event *ev, void *user)
{
    struct outcome *o = ev->user;

    cr_assert(zero(uint, o->ended), "nothing comes after the end");
    o->prompt_tokens = ev->prompt_tokens;
    o->completion_tokens = ev->completion_tokens;
    switch (ev->kind) {
    case ENGINE_STARTED:
        cr_expect(zero(uint, o->outputs));
        o->started++;
        break;
    case ENGINE_OUTPUT:
        cr_expect(eq(uint, o->started, 1));
        o->outputs++;
        o->tokens += ev->n_tokens;
        if (ev->n_tokens) {
            o->last_token = ev->tokens[ev->n_tokens - 1].id;
            o->last_logprob = ev->tokens[ev->n_tokens - 1].logprob;
            o->last_top = ev->tokens[ev->n_tokens - 1].n_top;
        }
        buf_add(&o->text, ev->text, ev->len);
        break;
    case ENGINE_DONE:
        snprintf(o->finish, sizeof o->finish, "%s", ev->finish_reason);
        snprintf(o->stop, sizeof o->stop, "%s", ev->stop_reason ? ev->stop_reason : "");
        o->ended++;
        break;
    case ENGINE_FAILED:
        o->error = ev->error;
        snprintf(o->message, sizeof o->message, "%s", ev->message);
        o->ended++;
        break;
    }
}

static void poll_once(void)
{
    struct pollfd p = { .fd = wake, .events = POLLIN };
    uint64_t n;

    cr_assert(eq(int, poll(&p, 1, CEILING_MS), 1), "no event came");
    cr_assert(eq(sz, (size_t)read(wake, &n, sizeof n), sizeof n));
    engine_poll(engine, on_event, NULL);
}

static void wait_for_end(struct outcome *o, size_t n)
{
    for (size_t i = 0; i < n; i++)
        while (!o[i].ended)
            poll_once();
}

static int submit(struct outcome *o, const char *prompt, struct engine_request *like, struct err *err)
{
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    struct text_span span = { .text = prompt, .len = strlen(prompt), .trusted = true };
    struct engine_request req = like ? *like : (struct engine_request){ .n_logprobs = -1 };
    int32_t *tokens;

    cr_assert(zero(int, engine_tokenize(engine, &span, 1, true, a, &tokens, &req.n_tokens, err)));
    req.tokens = tokens;
    req.user = o;
    req.sample = sample_defaults;
    if (!req.max_tokens)
        req.max_tokens = 1000;
    return engine_submit(engine, &req, &o->seq, err);
}

/* Opens, asks once, waits, closes; the text is freed by the caller. */
static struct outcome play(const char *json, const char *prompt, struct engine_request *like)
{
    struct outcome o = { 0 };
    struct err err = { 0 };

    cr_assert(zero(int, open_script(json, 4, &err)), "%s", err_text(&err));
    cr_assert(zero(int, submit(&o, prompt, like, &err)), "%s", err_text(&err));
    wait_for_end(&o, 1);
    close_script();
    return o;
}

#define TEXT(o) ((char *)buf_str(&(o).text))

Test(scripted, plays_its_steps_and_counts_bytes_as_prompt_tokens)
{
    struct outcome o = play("{\"play\":[\"Hello\",\" wor\",\"ld\"]}", "abc\xc3\xa9", NULL);

    cr_expect(eq(str, TEXT(o), "Hello world"));
    cr_expect(eq(str, o.finish, "stop"));
    cr_expect(eq(u32, o.prompt_tokens, 5));
    cr_expect(eq(u32, o.completion_tokens, 3));
    cr_expect(eq(uint, o.tokens, 3));
    buf_fini(&o.text);
}

Test(scripted, the_first_rule_that_matches_the_prompt_is_played)
{
    const char *json = "{\"rules\":[{\"match\":\"cat\",\"play\":[\"meow\"]},{\"match\":\"ca\",\"play\":[\"x\"]}],"
                       "\"play\":[\"?\"]}";
    struct outcome a = play(json, "a cat", NULL), b = play(json, "a car", NULL), c = play(json, "dog", NULL);

    cr_expect(eq(str, TEXT(a), "meow"));
    cr_expect(eq(str, TEXT(b), "x"));
    cr_expect(eq(str, TEXT(c), "?"));
    buf_fini(&a.text);
    buf_fini(&b.text);
    buf_fini(&c.text);
}

Test(scripted, repeats_nest)
{
    struct outcome o = play("{\"play\":[{\"repeat\":2,\"play\":[\"a\",{\"repeat\":3,\"play\":[\"b\"]}]},\"c\"]}", "p", NULL);

    cr_expect(eq(str, TEXT(o), "abbbabbbc"));
    buf_fini(&o.text);
}

Test(scripted, a_character_over_several_tokens_comes_whole)
{
    struct outcome o = play("{\"play\":[{\"bytes\":[240,159]},{\"wait_ms\":5},{\"bytes\":[166,148]},\"!\"]}", "p", NULL),
                   s = play("{\"play\":[{\"text\":\"\xf0\x9f\xa6\x94\",\"tokens\":4}]}", "p", NULL),
                   bad = play("{\"play\":[{\"bytes\":[195]},{\"bytes\":[40]},{\"bytes\":[255]}]}", "p", NULL);

    cr_expect(eq(str, TEXT(o), "\xf0\x9f\xa6\x94!"));
    cr_expect(eq(uint, o.tokens, 3));
    cr_expect(eq(str, TEXT(s), "\xf0\x9f\xa6\x94"));
    cr_expect(eq(u32, s.completion_tokens, 4));
    cr_expect(eq(str, TEXT(bad), "\xef\xbf\xbd(\xef\xbf\xbd"));
    buf_fini(&o.text);
    buf_fini(&s.text);
    buf_fini(&bad.text);
}

Test(scripted, a_stop_string_over_several_tokens_ends_it_and_is_not_in_the_text)
{
    const char *stops[] = { "zzz", "\nQ:" };
    struct engine_request like = { .stop = stops, .n_stop = 2, .n_logprobs = -1 };
    struct outcome o = play("{\"play\":[\"42\",\"\\n\",\"Q\",\": next\",\" and more\"]}", "p", &like);

    cr_expect(eq(str, TEXT(o), "42"));
    cr_expect(eq(str, o.finish, "stop"));
    cr_expect(eq(str, o.stop, "\nQ:"));
    buf_fini(&o.text);
}

Test(scripted, a_held_part_of_a_stop_is_released_at_the_end)
{
    const char *stops[] = { "\n\n" };
    struct engine_request like = { .stop = stops, .n_stop = 1, .n_logprobs = -1 };
    struct outcome o = play("{\"play\":[\"line one\\n\"]}", "p", &like);

    cr_expect(eq(str, TEXT(o), "line one\n"));
    cr_expect(eq(str, o.stop, ""));
    buf_fini(&o.text);
}

Test(scripted, max_tokens_stop_tokens_and_finish_are_honoured)
{
    const int32_t x = 'x';
    struct engine_request three = { .max_tokens = 3, .n_logprobs = -1 };
    struct engine_request at_x = { .stop_tokens = &x, .n_stop_tokens = 1, .n_logprobs = -1 };
    struct outcome a = play("{\"play\":[{\"repeat\":9,\"play\":[\"ab\"]}]}", "p", &three),
                   b = play("{\"play\":[\"ab\",\"x\",\"cd\"]}", "p", &at_x),
                   c = play("{\"play\":[\"ab\",{\"finish\":\"length\"},\"cd\"]}", "p", NULL);

    cr_expect(eq(str, TEXT(a), "ababab"));
    cr_expect(eq(str, a.finish, "length"));
    cr_expect(eq(u32, a.completion_tokens, 3));
    cr_expect(eq(str, TEXT(b), "ab"));
    cr_expect(eq(str, b.finish, "stop"));
    cr_expect(eq(u32, b.completion_tokens, 1));
    cr_expect(eq(str, TEXT(c), "ab"));
    cr_expect(eq(str, c.finish, "length"));
    buf_fini(&a.text);
    buf_fini(&b.text);
    buf_fini(&c.text);
}

Test(scripted, without_an_end_token_the_play_begins_again)
{
    struct engine_request like = { .max_tokens = 5, .ignore_end = true, .n_logprobs = -1 };
    struct outcome o = play("{\"play\":[\"a\",\"b\",{\"finish\":\"stop\"}]}", "p", &like),
                   mute = play("{\"play\":[]}", "p", &like);

    cr_expect(eq(str, TEXT(o), "ababa"));
    cr_expect(eq(str, o.finish, "length"));
    cr_expect(eq(str, mute.finish, "stop"));
    buf_fini(&o.text);
    buf_fini(&mute.text);
}

Test(scripted, reports_the_log_probabilities_and_the_usage_of_the_script)
{
    struct engine_request like = { .n_logprobs = 1 };
    struct outcome o = play("{\"play\":[{\"text\":\"x\",\"logprob\":-0.5,\"top\":[{\"text\":\"x\",\"logprob\":-0.5},"
                            "{\"text\":\"yy\",\"logprob\":-1}]},{\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":9}}]}",
                            "p", &like);

    cr_expect(eq(i32, o.last_token, 'x'));
    cr_expect(epsilon_eq(flt, o.last_logprob, -0.5f, 1e-6f));
    cr_expect(eq(sz, o.last_top, 1));
    cr_expect(eq(u32, o.prompt_tokens, 7));
    cr_expect(eq(u32, o.completion_tokens, 9));
    buf_fini(&o.text);
}

Test(scripted, fails_as_the_script_says_after_its_text)
{
    struct outcome o = play("{\"play\":[\"so far\",{\"fail\":\"no room\",\"code\":\"oom\"}]}", "p", NULL);

    cr_expect(eq(str, TEXT(o), "so far"));
    cr_expect(eq(int, o.error, -ENOMEM));
    cr_expect(eq(str, o.message, "no room"));
    buf_fini(&o.text);
}

Test(scripted, ten_thousand_sequences_run_at_once)
{
    enum { N = 10000 };
    struct outcome *o = calloc(N, sizeof *o);
    struct engine_stats stats;
    struct err err = { 0 };

    cr_assert(zero(int, open_script("{\"play\":[{\"repeat\":3,\"play\":[{\"wait_ms\":1},\"a\"]}]}", N, &err)));
    for (size_t i = 0; i < N; i++) {
        int r;

        while ((r = submit(&o[i], "p", NULL, &err)) == ENGINE_BUSY)
            poll_once();
        cr_assert(zero(int, r));
    }
    wait_for_end(o, N);
    for (size_t i = 0; i < N; i++) {
        cr_assert(eq(str, TEXT(o[i]), "aaa"));
        buf_fini(&o[i].text);
    }
    engine_stats(engine, &stats);
    cr_expect(eq(u64, stats.generated_tokens, 3 * N));
    cr_expect(gt(u64, stats.forwards_batched, 0));
    cr_expect(zero(u32, stats.running));
    close_script();
    free(o);
}

Test(scripted, what_does_not_run_waits_and_a_full_queue_says_so)
{
    enum { N = 1 + 1024 };
    struct outcome *o = calloc(N + 1, sizeof *o);
    struct engine_stats stats;
    struct err err = { 0 };
    size_t n = 0;

    cr_assert(zero(int, open_script("{\"play\":[{\"wait_ms\":80000000},\"a\"]}", 1, &err)));
    cr_assert(zero(int, submit(&o[n++], "p", NULL, &err)));
    while (!o[0].started)
        poll_once();
    for (; n < N; n++)
        cr_assert(zero(int, submit(&o[n], "p", NULL, &err)));
    cr_expect(eq(int, submit(&o[n], "p", NULL, &err), ENGINE_BUSY));
    engine_stats(engine, &stats);
    cr_expect(eq(u32, stats.running, 1));
    cr_expect(eq(u32, stats.waiting, 1024));
    engine_cancel(engine, o[0].seq);
    while (!o[1].started)
        poll_once();
    for (size_t i = 1; i < N; i++)
        engine_cancel(engine, o[i].seq);
    engine_stats(engine, &stats);
    cr_expect(zero(u32, stats.running + stats.waiting));
    close_script();
    free(o);
}

Test(scripted, a_paused_sequence_waits_and_the_others_go_on)
{
    struct outcome o[2] = { 0 };
    struct err err = { 0 };

    cr_assert(zero(int, open_script("{\"play\":[\"a\",{\"wait_ms\":1},\"b\"]}", 2, &err)));
    cr_assert(zero(int, submit(&o[0], "p", NULL, &err)));
    engine_pause(engine, o[0].seq, true);
    cr_assert(zero(int, submit(&o[1], "p", NULL, &err)));
    wait_for_end(&o[1], 1);
    cr_expect(zero(uint, o[0].ended));
    engine_pause(engine, o[0].seq, false);
    wait_for_end(&o[0], 1);
    cr_expect(eq(str, TEXT(o[0]), "ab"));
    buf_fini(&o[0].text);
    buf_fini(&o[1].text);
    close_script();
}

static void cancel_itself(const struct engine_event *ev, void *user)
{
    struct outcome *o = ev->user;

    o->outputs++;
    engine_cancel(engine, o->seq);
}

Test(scripted, a_callback_may_cancel_its_own_sequence)
{
    struct outcome o = { 0 };
    struct err err = { 0 };
    struct engine_stats stats;
    struct pollfd p = { .events = POLLIN };

    cr_assert(zero(int, open_script("{\"play\":[\"a\"]}", 2, &err)));
    cr_assert(zero(int, submit(&o, "p", NULL, &err)));
    p.fd = wake;
    cr_assert(eq(int, poll(&p, 1, CEILING_MS), 1));
    cr_expect(eq(sz, engine_poll(engine, cancel_itself, NULL), 1));
    cr_expect(eq(uint, o.outputs, 1));
    engine_stats(engine, &stats);
    cr_expect(zero(u32, stats.running));
    close_script();
}

Test(scripted, an_announced_wait_is_in_the_pulse_and_a_silent_one_is_not)
{
    struct outcome o[2] = { 0 };
    struct err err = { 0 };
    uint64_t now;

    cr_assert(zero(int, open_script("{\"rules\":[{\"match\":\"loud\",\"play\":[{\"wait_ms\":70000000},\"a\"]}],"
                                    "\"play\":[\"a\",{\"silent_ms\":70000000}]}", 2, &err)));
    cr_assert(zero(int, submit(&o[0], "silent", NULL, &err)));
    while (!o[0].outputs)
        poll_once();
    now = clock_mono_us();
    cr_expect(lt(u64, atomic_load(&pulse.busy_until_us), now));
    cr_expect(not(atomic_load(&pulse.idle)));
    cr_assert(zero(int, submit(&o[1], "loud", NULL, &err)));
    while (atomic_load(&pulse.busy_until_us) < now + 60000000)
        cr_assert(lt(u64, clock_mono_us(), now + CEILING_MS * 1000ull));
    engine_cancel(engine, o[1].seq);
    cr_expect(zero(u64, atomic_load(&pulse.busy_until_us)));
    engine_cancel(engine, o[0].seq);
    while (!atomic_load(&pulse.idle))
        cr_assert(lt(u64, clock_mono_us(), now + CEILING_MS * 1000ull));
    buf_fini(&o[0].text);
    close_script();
}

Test(scripted, a_hung_engine_stands_still_and_can_be_closed)
{
    struct outcome o = { 0 };
    struct err err = { 0 };

    cr_assert(zero(int, open_script("{\"play\":[\"a\",{\"hang\":true}]}", 2, &err)));
    cr_assert(zero(int, submit(&o, "p", NULL, &err)));
    while (!o.outputs)
        poll_once();
    cr_expect(not(atomic_load(&pulse.idle)));
    engine_cancel(engine, o.seq);
    buf_fini(&o.text);
    close_script();
}

Test(scripted, a_request_over_the_context_is_refused)
{
    struct engine_request like = { .max_tokens = 8, .n_logprobs = -1 };
    struct outcome o = { 0 };
    struct err err = { 0 };

    cr_assert(zero(int, open_script("{\"context_length\":10,\"play\":[\"a\"]}", 2, &err)));
    cr_expect(eq(int, submit(&o, "abc", &like, &err), -EINVAL));
    cr_expect(eq(str, (char *)err_text(&err), "3 prompt tokens and 8 more are over the context of 10"));
    close_script();
}

Test(scripted, loading_fails_as_the_script_says)
{
    struct err err = { 0 };

    cr_expect(eq(int, open_script("{\"load_error\":\"tensor 7 is bad\"}", 1, &err), -EINVAL));
    cr_expect(not(zero(ptr, strstr(err_text(&err), ": tensor 7 is bad"))));
    err_clear(&err);
    cr_expect(eq(int, open_script("{\"load_ms\":1,\"load_error\":\"no room\",\"load_code\":\"oom\"}", 1, &err), -ENOMEM));
}
