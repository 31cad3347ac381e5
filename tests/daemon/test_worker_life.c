/* A worker and its supervisor: loading, beats, failures, draining. */
#include "tests/daemon/worker_rig.h"

#include "base/clock.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define POST_GENERATE "POST /fastchat/generate"

static cJSON *wait_failed(struct rig *r)
{
    for (;;) {
        cJSON *tree = rig_next(r, CONTROL_STATE);

        if (strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(tree, "state")), "failed") == 0)
            return tree;
        cJSON_Delete(tree);
    }
}

Test(worker_life, while_loading_status_answers_and_generation_is_503)
{
    static const char *const paths[] = { "/fastchat/generate", "/worker_generate", "/worker_generate_stream",
                                         "/count_token", "/model_details", "/worker_get_conv_template" };
    struct rig r;
    struct reply reply;

    rig_start(&r, "{\"load_ms\":80000000}", NULL);
    rig_wait_state(&r, "loading");
    cr_expect(zero(int, rig_queue_length(&r)));
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        reply = rig_ask(&r, "POST", paths[i], "{\"prompt\":\"p\"}");
        cr_expect(eq(int, reply.status, 503), "%s", paths[i]);
        cr_expect(not(zero(ptr, strcasestr(reply.head.data, "retry-after:"))), "%s", paths[i]);
        cr_expect(not(zero(ptr, strstr(reply.body.data, "the model is loading"))), "%s", reply.body.data);
        cr_expect(i > 0 || strstr(reply.body.data, "\"code\":\"loading\""), "%s", reply.body.data);
        reply_fini(&reply);
    }
    reply = rig_ask(&r, "GET", "/health", NULL);
    cr_expect(eq(int, reply.status, 503));
    cr_expect(eq(str, reply.body.data, "{\"status\":\"loading\"}"));
    reply_fini(&reply);
    rig_stop(&r);
}

Test(worker_life, a_long_load_is_announced_in_the_beats)
{
    struct rig r;
    cJSON *beat = NULL, *busy = NULL;

    rig_start(&r, "{\"load_ms\":80000000}", NULL);
    while (!busy) {
        cJSON_Delete(beat);
        beat = rig_next(&r, CONTROL_HEARTBEAT);
        busy = cJSON_GetObjectItem(beat, "busy_ms");
    }
    cr_expect(eq(dbl, busy->valuedouble, CONTROL_BUSY_MAX_MS), "as long as may be announced");
    cJSON_Delete(beat);
    rig_stop(&r);
}

Test(worker_life, a_bad_model_is_reported_and_never_tried_again)
{
    static const struct { const char *script, *path, *device, *model, *want; } cases[] = {
        { "{\"load_error\":\"tensor 7 is bad\"}", NULL, NULL, NULL, "script.json: tensor 7 is bad" },
        { "{\"plays\":[]}", NULL, NULL, NULL, "script.json: unknown key 'plays'" },
        { "{}", "/nonexistent/model", NULL, NULL, "/nonexistent/model: can not be opened: No such file or directory" },
        { "{}", NULL, "abacus", NULL, "device \"abacus\" is not known" },
        { "{}", NULL, NULL, ",\"template\":\"nobody's\"", "test: there is no chat template 'nobody's'" },
        { "{}", "m.gguf", "cpu", ",\"isa\":\"mmx\"", "m.gguf: instruction set \"mmx\" is not known here; this machine has: scalar" },
        { "{}", "m.gguf", "cpu", ",\"isa\":7", "settings: model: 'isa' must be a string" },
        { "{}", NULL, NULL, ",\"context\":-1", "settings: model: 'context' must be between" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct rig_options options = { .path = cases[i].path, .device = cases[i].device, .model = cases[i].model };
        struct rig r;
        cJSON *tree;

        rig_start(&r, cases[i].script, &options);
        tree = wait_failed(&r);
        cr_expect(not(zero(ptr, strstr(cJSON_GetStringValue(cJSON_GetObjectItem(tree, "text")), cases[i].want))),
                  "%s", r.frame.payload);
        cJSON_Delete(tree);
        cr_expect(eq(int, rig_wait_exit(&r), 78));
        rig_clean(&r);
    }
}

Test(worker_life, want_of_memory_may_be_tried_again)
{
    struct rig r;
    cJSON *tree;

    rig_start(&r, "{\"load_error\":\"no room\",\"load_code\":\"oom\"}", NULL);
    tree = wait_failed(&r);
    cr_expect(not(zero(ptr, strstr(cJSON_GetStringValue(cJSON_GetObjectItem(tree, "text")), "no room"))), "%s", r.frame.payload);
    cJSON_Delete(tree);
    cr_expect(eq(int, rig_wait_exit(&r), 1));
    rig_clean(&r);
}

Test(worker_life, a_bad_controller_address_is_a_configuration_error)
{
    const struct rig_options options = { .controllers = "\"ftp://x\"" };
    struct rig r;
    cJSON *tree;

    rig_start(&r, "{}", &options);
    tree = wait_failed(&r);
    cr_expect(not(zero(ptr, strstr(r.frame.payload, "controller \\\"ftp://x\\\": is neither"))), "%s", r.frame.payload);
    cJSON_Delete(tree);
    cr_expect(eq(int, rig_wait_exit(&r), 78));
    rig_clean(&r);
}

Test(worker_life, beats_carry_the_statistics)
{
    struct rig r;
    struct stream s;
    double running = 0;

    rig_ready(&r, "{\"play\":[\"a\",{\"wait_ms\":80000000}]}", NULL);
    stream_open(&r, &s, POST_GENERATE, "{\"prompt\":\"abc\"}");
    stream_wait(&s, "\"a\"");
    while (running < 1) {
        cJSON *beat = rig_next(&r, CONTROL_HEARTBEAT), *stats = cJSON_GetObjectItem(beat, "stats");

        running = cJSON_GetNumberValue(cJSON_GetObjectItem(stats, "running"));
        if (running >= 1) {
            cr_expect(eq(dbl, cJSON_GetNumberValue(cJSON_GetObjectItem(stats, "queue_length")), 1));
            cr_expect(eq(dbl, cJSON_GetNumberValue(cJSON_GetObjectItem(stats, "prompt_tokens")), 3));
            cr_expect(eq(dbl, cJSON_GetNumberValue(cJSON_GetObjectItem(stats, "generated_tokens")), 1));
            cr_expect(gt(dbl, cJSON_GetNumberValue(cJSON_GetObjectItem(stats, "forwards")), 0));
            cr_expect(cJSON_HasObjectItem(stats, "waiting"));
            cr_expect(cJSON_HasObjectItem(stats, "kv_pages"));
            cr_expect(cJSON_HasObjectItem(stats, "kv_pages_free"));
            cr_expect(cJSON_HasObjectItem(stats, "forwards_batched"));
        }
        cJSON_Delete(beat);
    }
    stream_close(&s);
    rig_stop(&r);
}

/* Reads beats until this statistic is above 0; gives that beat. */
static cJSON *beat_with(struct rig *r, const char *key)
{
    for (;;) {
        cJSON *beat = rig_next(r, CONTROL_HEARTBEAT);

        if (cJSON_GetNumberValue(cJSON_GetObjectItem(cJSON_GetObjectItem(beat, "stats"), key)) > 0)
            return beat;
        cJSON_Delete(beat);
    }
}

static double stat_of(const cJSON *beat, const char *key)
{
    return cJSON_GetNumberValue(cJSON_GetObjectItem(cJSON_GetObjectItem(beat, "stats"), key));
}

Test(worker_life, beats_say_how_fast_it_is_how_long_requests_wait_and_for_how_long_none_came)
{
    const struct rig_options one = { .parallel = 1 };
    struct rig r;
    struct stream s, waits;
    cJSON *beat;

    rig_ready(&r, "{\"play\":[\"a\",{\"wait_ms\":80000000}]}", &one);
    beat = beat_with(&r, "idle_ms");
    cr_expect(eq(str, cJSON_GetStringValue(cJSON_GetObjectItem(cJSON_GetObjectItem(beat, "stats"), "engine")), "scripted"));
    cr_expect(zero(dbl, stat_of(beat, "prompt_per_s")));
    cr_expect(zero(dbl, stat_of(beat, "wait_max_ms")));
    cJSON_Delete(beat);
    stream_open(&r, &s, POST_GENERATE, "{\"prompt\":\"abc\"}");
    stream_wait(&s, "\"a\"");
    beat = beat_with(&r, "generated_per_s");
    cr_expect(gt(dbl, stat_of(beat, "prompt_per_s"), 0));
    cr_expect(zero(dbl, stat_of(beat, "idle_ms")));
    cr_expect(zero(dbl, stat_of(beat, "oldest_wait_ms")));
    cJSON_Delete(beat);
    stream_open(&r, &waits, POST_GENERATE, "{\"prompt\":\"abc\"}");
    beat = beat_with(&r, "oldest_wait_ms");
    cr_expect(eq(dbl, stat_of(beat, "queue_length"), 2));
    cJSON_Delete(beat);
    stream_close(&s);
    stream_wait(&waits, "\"a\"");
    beat = beat_with(&r, "wait_max_ms");
    cr_expect(gt(dbl, stat_of(beat, "wait_ms"), 0));
    cr_expect(zero(dbl, stat_of(beat, "oldest_wait_ms")));
    cJSON_Delete(beat);
    stream_close(&waits);
    cJSON_Delete(beat_with(&r, "idle_ms"));
    rig_stop(&r);
}

Test(worker_life, an_announced_step_is_in_the_beats)
{
    struct rig r;
    struct stream s;
    double busy = 0;

    rig_ready(&r, "{\"play\":[\"a\",{\"wait_ms\":80000000}]}", NULL);
    stream_open(&r, &s, POST_GENERATE, "{\"prompt\":\"p\"}");
    while (!(busy > 0)) {
        cJSON *beat = rig_next(&r, CONTROL_HEARTBEAT);

        busy = cJSON_GetNumberValue(cJSON_GetObjectItem(beat, "busy_ms"));
        cJSON_Delete(beat);
    }
    cr_expect(eq(dbl, busy, CONTROL_BUSY_MAX_MS), "as long as may be announced");
    stream_close(&s);
    /* and when it is gone there is nothing to announce any more */
    while (busy > 0) {
        cJSON *beat = rig_next(&r, CONTROL_HEARTBEAT), *item = cJSON_GetObjectItem(beat, "busy_ms");

        busy = item ? item->valuedouble : 0;
        cJSON_Delete(beat);
    }
    rig_stop(&r);
}

/* The loop still turns, as its answers prove; the engine does not. A worker
 * without beats is known by the answers that come while none does: many times
 * the heartbeat's interval is spent in asking. */
static void expect_no_beats(const char *script)
{
    struct rig r;
    struct stream s;
    int silent = 0;

    rig_ready(&r, script, NULL);
    stream_open(&r, &s, POST_GENERATE, "{\"prompt\":\"p\"}");
    stream_wait(&s, "\"a\"");
    for (uint64_t end = clock_mono_ms() + RIG_CEILING_MS; silent < 5;) {
        uint64_t until = clock_mono_ms() + 100;

        while (clock_mono_ms() < until)
            rig_queue_length(&r);
        silent = rig_seen(&r, CONTROL_HEARTBEAT) ? 0 : silent + 1;
        cr_assert(lt(u64, clock_mono_ms(), end), "the beats do not stop");
    }
    kill(r.pid, SIGKILL);
    cr_expect(eq(int, rig_wait_exit(&r), -SIGKILL));
    stream_close(&s);
    rig_clean(&r);
}

Test(worker_life, a_hung_engine_stops_the_beats)
{
    expect_no_beats("{\"play\":[\"a\",{\"hang\":true}]}");
}

Test(worker_life, a_silent_step_stops_the_beats)
{
    expect_no_beats("{\"play\":[\"a\",{\"silent_ms\":80000000}]}");
}

Test(worker_life, an_idle_worker_beats)
{
    struct rig r;

    rig_ready(&r, "{\"play\":[\"a\"]}", NULL);
    for (int i = 0; i < 5; i++)
        cJSON_Delete(rig_next(&r, CONTROL_HEARTBEAT));
    rig_stop(&r);
}

Test(worker_life, a_worker_with_a_tcp_address_answers_there_too)
{
    const struct rig_options options = { .tcp = true };
    struct rig r;
    struct stream s;

    rig_ready(&r, "{\"play\":[\"a\"]}", &options);
    stream_open(&r, &s, POST_GENERATE, "{\"prompt\":\"p\"}");
    stream_wait(&s, "finish_reason");
    stream_close(&s);
    r.tcp_port = 0;
    cr_expect(zero(int, rig_queue_length(&r)));
    rig_stop(&r);
}

Test(worker_life, exit_and_signal_end_the_process)
{
    static const struct { const char *script; int end; } cases[] = {
        { "{\"play\":[\"a\",{\"wait_ms\":1},{\"exit\":3}]}", 3 },
        { "{\"play\":[\"a\",{\"wait_ms\":1},{\"signal\":9}]}", -SIGKILL },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct rig r;
        struct stream s;

        rig_ready(&r, cases[i].script, NULL);
        stream_open(&r, &s, POST_GENERATE, "{\"prompt\":\"p\"}");
        while (stream_more(&s))
            ;
        cr_expect(s.cut);
        stream_close(&s);
        cr_expect(eq(int, rig_wait_exit(&r), cases[i].end));
        rig_clean(&r);
    }
}

Test(worker_life, draining_finishes_what_runs_and_refuses_the_rest)
{
    struct rig r;
    struct stream endless, s;
    struct reply reply;

    rig_ready(&r, "{\"rules\":[{\"match\":\"endless\",\"play\":[\"a\",{\"wait_ms\":80000000}]}],"
                  "\"play\":[\"a\",{\"repeat\":100,\"play\":[{\"wait_ms\":5},\"c\"]}]}", NULL);
    stream_open(&r, &endless, POST_GENERATE, "{\"prompt\":\"endless\"}");
    stream_wait(&endless, "\"a\"");
    stream_open(&r, &s, POST_GENERATE, "{\"prompt\":\"p\"}");
    stream_wait(&s, "\"text\":\"a");
    rig_send(&r, CONTROL_DRAIN, "{\"limit_ms\":60000}");
    rig_wait_state(&r, "draining");
    reply = rig_ask(&r, "POST", "/fastchat/generate", "{\"prompt\":\"p\"}");
    cr_expect(eq(int, reply.status, 503));
    cr_expect(not(zero(ptr, strcasestr(reply.head.data, "retry-after:"))));
    cr_expect(not(zero(ptr, strstr(reply.body.data, "\"code\":\"draining\""))), "%s", reply.body.data);
    reply_fini(&reply);
    reply = rig_ask(&r, "POST", "/model_details", "{}");
    cr_expect(eq(int, reply.status, 200));
    reply_fini(&reply);
    while (stream_more(&s))
        ;
    cr_expect(not(s.cut));
    cr_expect(not(zero(ptr, strstr(s.body.data, "\"finish_reason\":\"stop\""))));
    stream_close(&s);
    stream_close(&endless);
    cr_expect(zero(int, rig_wait_exit(&r)));
    rig_clean(&r);
}

Test(worker_life, an_idle_or_a_loading_worker_drains_by_itself)
{
    struct rig r;

    rig_ready(&r, "{}", NULL);
    rig_send(&r, CONTROL_DRAIN, "{\"limit_ms\":60000}");
    cr_expect(zero(int, rig_wait_exit(&r)));
    rig_clean(&r);
    rig_start(&r, "{\"load_ms\":80000000}", NULL);
    rig_wait_state(&r, "loading");
    rig_send(&r, CONTROL_DRAIN, "{\"limit_ms\":60000}");
    cr_expect(zero(int, rig_wait_exit(&r)));
    rig_clean(&r);
}

Test(worker_life, stopping_ends_running_streams_so_that_they_look_cut)
{
    struct rig r;
    struct stream s;

    rig_ready(&r, "{\"play\":[\"a\",{\"wait_ms\":80000000}]}", NULL);
    stream_open(&r, &s, POST_GENERATE, "{\"prompt\":\"p\"}");
    stream_wait(&s, "\"a\"");
    rig_send(&r, CONTROL_STOP, "{}");
    while (stream_more(&s))
        ;
    cr_expect(s.cut);
    stream_close(&s);
    cr_expect(zero(int, rig_wait_exit(&r)));
    rig_clean(&r);
}

Test(worker_life, the_end_of_the_supervisor_ends_it)
{
    struct rig r;
    int status;
    bool exited;

    rig_ready(&r, "{}", NULL);
    close(r.control);
    cr_assert(eq(int, waitpid(r.pid, &status, 0), r.pid));
    exited = WIFEXITED(status);
    cr_expect(exited);
    rig_clean(&r);
}
