/* POST /fastchat/generate: docs/wire.md, part 4. */
#include "tests/daemon/worker_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GENERATE "/fastchat/generate"
#define POST_GENERATE "POST /fastchat/generate"

static char *text_of(const cJSON *tree, const char *key)
{
    return cJSON_GetStringValue(cJSON_GetObjectItem(tree, key));
}

/* What a stream said, put together. */
struct told {
    struct buf text;
    int n_lines, prompt_tokens, completion_tokens;
    struct buf tokens;              /* "97 98 " */
    char finish[16], stop[32];
};

/* The lines of a whole body, in their order: admission, output, the end. */
static struct told read_lines(const struct buf *body)
{
    struct told t = { .prompt_tokens = -1 };
    const char *at = buf_str(body);

    while (*at) {
        const char *end = strchr(at, '\n');
        cJSON *line, *item;

        cr_assert(not(zero(ptr, (void *)end)), "no end of line: %s", at);
        cr_assert(zero(int, (int)t.finish[0]), "something follows the end");
        line = cJSON_ParseWithLength(at, (size_t)(end - at));
        cr_assert(not(zero(ptr, line)), "no JSON: %s", at);
        at = end + 1;
        if (t.n_lines++ == 0) {
            cr_assert(cJSON_HasObjectItem(line, "prompt_tokens"));
            t.prompt_tokens = cJSON_GetObjectItem(line, "prompt_tokens")->valueint;
        } else if (cJSON_HasObjectItem(line, "text")) {
            buf_adds(&t.text, text_of(line, "text"));
            cJSON_ArrayForEach(item, cJSON_GetObjectItem(line, "tokens"))
                buf_printf(&t.tokens, "%d ", item->valueint);
        } else {
            cJSON *usage = cJSON_GetObjectItem(line, "usage"), *timings = cJSON_GetObjectItem(line, "timings");

            snprintf(t.finish, sizeof t.finish, "%s", text_of(line, "finish_reason"));
            if (text_of(line, "stop_reason"))
                snprintf(t.stop, sizeof t.stop, "%s", text_of(line, "stop_reason"));
            t.completion_tokens = cJSON_GetObjectItem(usage, "completion_tokens")->valueint;
            cr_expect(ge(int, cJSON_GetObjectItem(usage, "cached_tokens")->valueint, 0));
            cr_expect(ge(dbl, cJSON_GetObjectItem(timings, "prompt_ms")->valuedouble, 0));
            cr_expect(ge(dbl, cJSON_GetObjectItem(timings, "predicted_ms")->valuedouble, 0));
            cr_expect(ge(dbl, cJSON_GetObjectItem(timings, "queued_ms")->valuedouble, 0));
        }
        cJSON_Delete(line);
    }
    return t;
}

static void told_fini(struct told *t)
{
    buf_fini(&t->text);
    buf_fini(&t->tokens);
}

static struct told ask(struct rig *r, const char *body)
{
    struct reply reply = rig_ask(r, "POST", GENERATE, body);
    struct told t;

    cr_assert(eq(int, reply.status, 200), "%s", buf_str(&reply.body));
    cr_assert(not(reply.cut));
    cr_expect(not(zero(ptr, strstr(reply.head.data, "application/x-ndjson"))));
    t = read_lines(&reply.body);
    reply_fini(&reply);
    return t;
}

#define TEXT(t) ((char *)buf_str(&(t).text))

Test(worker_generate, admission_then_text_and_tokens_then_the_end)
{
    struct rig r;
    struct told t;

    rig_ready(&r, "{\"play\":[\"a\",{\"wait_ms\":1},\"b\",\"c\"]}", NULL);
    t = ask(&r, "{\"prompt\":\"four\",\"request_id\":\"r1\",\"unknown\":{}}");
    cr_expect(eq(int, t.prompt_tokens, 4));
    cr_expect(eq(str, TEXT(t), "abc"));
    cr_expect(eq(str, (char *)buf_str(&t.tokens), "97 98 99 "));
    cr_expect(eq(str, t.finish, "stop"));
    cr_expect(eq(int, t.completion_tokens, 3));
    told_fini(&t);
    t = ask(&r, "{\"token_ids\":[97,98]}");
    cr_expect(eq(int, t.prompt_tokens, 2));
    told_fini(&t);
    rig_stop(&r);
}

Test(worker_generate, messages_are_rendered_by_the_template)
{
    struct rig r;
    struct told t;

    rig_ready(&r, "{\"rules\":[{\"match\":\"<|im_start|>user\\nhi<|im_end|>\\n<|im_start|>assistant\\n\",\"play\":[\"yes\"]}],"
                  "\"play\":[\"no\"]}", NULL);
    t = ask(&r, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}");
    cr_expect(eq(str, TEXT(t), "yes"));
    told_fini(&t);
    rig_stop(&r);
}

Test(worker_generate, sampling_and_length_come_from_the_request_over_the_configuration)
{
    const struct rig_options options = { .sampling = "\"max_tokens\":2,\"temperature\":0.5" };
    struct rig r;
    struct told t;

    rig_ready(&r, "{\"context_length\":20,\"play\":[{\"repeat\":100,\"play\":[\"a\"]}]}", &options);
    t = ask(&r, "{\"prompt\":\"p\"}");
    cr_expect(eq(str, TEXT(t), "aa"));
    cr_expect(eq(str, t.finish, "length"));
    told_fini(&t);
    t = ask(&r, "{\"prompt\":\"p\",\"max_tokens\":3,\"temperature\":0,\"top_k\":5,\"seed\":1,\"min_p\":0.1,"
               "\"logit_bias\":{\"0\":-100,\"511\":0.5}}");
    cr_expect(eq(str, TEXT(t), "aaa"));
    told_fini(&t);
    rig_stop(&r);
}

Test(worker_generate, new_settings_count_for_requests_that_come_later)
{
    const struct rig_options first = { .sampling = "\"max_tokens\":5" },
        second = { .sampling = "\"max_tokens\":2", .path = "/nonexistent", .parallel = 77, .device = "cpu",
                   .model = ",\"context\":3,\"name\":\"other\"" },
        wrong = { .sampling = "\"max_tokens\":3,\"top_p\":7" };
    struct stream s;
    struct rig r;
    struct told t;

    rig_ready(&r, "{\"play\":[\"a\",{\"wait_ms\":500},{\"repeat\":100,\"play\":[\"a\"]}]}", &first);
    stream_open(&r, &s, POST_GENERATE, "{\"prompt\":\"p\"}");
    stream_wait(&s, "\"a\"");
    cr_expect(zero(ptr, (void *)rig_reload(&r, &second)));
    t = ask(&r, "{\"prompt\":\"p\"}");
    cr_expect(eq(str, TEXT(t), "aa"));
    told_fini(&t);
    while (stream_more(&s))
        ;
    t = read_lines(&s.body);
    cr_expect(eq(str, TEXT(t), "aaaaa"));
    told_fini(&t);
    stream_close(&s);
    cr_expect(not(zero(ptr, strstr(rig_reload(&r, &wrong), "model: 'top_p' must be between 0 and 1, but is 7"))));
    t = ask(&r, "{\"prompt\":\"p\"}");
    cr_expect(eq(str, TEXT(t), "aa"));
    told_fini(&t);
    rig_stop(&r);
}

Test(worker_generate, without_max_tokens_the_context_is_the_limit)
{
    struct rig r;
    struct told t;

    rig_ready(&r, "{\"context_length\":10,\"play\":[\"a\"]}", NULL);
    t = ask(&r, "{\"prompt\":\"1234\",\"ignore_eos\":true}");
    cr_expect(eq(str, TEXT(t), "aaaaaa"));
    cr_expect(eq(str, t.finish, "length"));
    told_fini(&t);
    rig_stop(&r);
}

/* As when the loop was behind and much came together. */
Test(worker_generate, a_long_text_is_cut_into_lines_between_characters)
{
    enum { PIECES = 40000 };
    BUF_LOCAL script = BUF_INIT;
    BUF_LOCAL want = BUF_INIT;
    struct rig r;
    struct told t;

    buf_addc(&want, 'x');
    for (int i = 0; i < PIECES; i++)
        buf_adds(&want, "\u20ac\xf0\x9f\x98\x80");
    buf_printf(&script, "{\"play\":[\"%s\"]}", buf_str(&want));
    rig_ready(&r, buf_str(&script), NULL);
    t = ask(&r, "{\"prompt\":\"p\"}");
    cr_expect(zero(int, strcmp(TEXT(t), buf_str(&want))));
    cr_expect(gt(int, t.n_lines, 5), "%d lines", t.n_lines);
    cr_expect(eq(int, t.completion_tokens, 1));
    cr_expect(zero(ptr, strchr(strchr(buf_str(&t.tokens), ' ') + 1, ' ')), "its token is in one line");
    told_fini(&t);
    rig_stop(&r);
}

Test(worker_generate, stops_are_named_and_split_ones_are_found)
{
    struct rig r;
    struct told t;

    rig_ready(&r, "{\"play\":[\"42\",\"\\n\",{\"wait_ms\":1},\"Q\",\": next\",\"!\"]}", NULL);
    t = ask(&r, "{\"prompt\":\"p\",\"stop\":[\"zz\",\"\\nQ:\"]}");
    cr_expect(eq(str, TEXT(t), "42"));
    cr_expect(eq(str, t.stop, "\nQ:"));
    told_fini(&t);
    t = ask(&r, "{\"prompt\":\"p\",\"stop_token_ids\":[33]}");
    cr_expect(eq(str, TEXT(t), "42\nQ: next"));
    cr_expect(eq(str, t.stop, ""));
    told_fini(&t);
    rig_stop(&r);
}

Test(worker_generate, logprobs_hold_bytes_and_the_best_when_asked)
{
    struct rig r;
    struct reply reply;

    rig_ready(&r, "{\"play\":[{\"text\":\"x\",\"logprob\":-0.5,\"top\":[{\"text\":\"x\",\"logprob\":-0.5},{\"text\":\"\\u00e9\","
                  "\"logprob\":-1}]}]}", NULL);
    reply = rig_ask(&r, "POST", GENERATE, "{\"prompt\":\"p\",\"logprobs\":2}");
    cr_expect(not(zero(ptr, strstr(reply.body.data,
              "{\"text\":\"x\",\"tokens\":[120],\"logprobs\":[{\"token\":\"x\",\"bytes\":[120],\"logprob\":-0.5,\"top\":["
              "{\"token\":\"x\",\"bytes\":[120],\"logprob\":-0.5},{\"token\":\"\xc3\xa9\",\"bytes\":[195,169],\"logprob\":-1}]}]}\n"))),
              "%s", reply.body.data);
    reply_fini(&reply);
    reply = rig_ask(&r, "POST", GENERATE, "{\"prompt\":\"p\",\"logprobs\":0}");
    cr_expect(not(zero(ptr, strstr(reply.body.data, "\"logprob\":-0.5,\"top\":[]}]}"))), "%s", reply.body.data);
    reply_fini(&reply);
    rig_stop(&r);
}

Test(worker_generate, each_bad_field_is_a_400_that_names_it)
{
    static const struct { const char *body, *param, *message; } cases[] = {
        { "[]", NULL, "the body must be an object, but is an array" },
        { "{\"prompt\":\"a\"", NULL, "byte 13: unexpected end" },
        { "{\"prompt\":\"\\ud801\"}", NULL, NULL },
        { "{}", "messages", "exactly one of 'messages', 'prompt' and 'token_ids' must be given" },
        { "{\"prompt\":\"a\",\"token_ids\":[1]}", "messages", NULL },
        { "{\"prompt\":7}", "prompt", "'prompt' must be a string, but is a number" },
        { "{\"prompt\":\"\"}", "prompt", "the prompt is empty" },
        { "{\"messages\":\"hi\"}", "messages", "'messages' must be an array, but is a string" },
        { "{\"messages\":[]}", "messages", "'messages' must hold 1 to 10000 messages, but holds 0" },
        { "{\"messages\":[7]}", "messages[0]", "'messages[0]' must be an object, but is a number" },
        { "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"content\":\"a\"}]}", "messages[1].role",
          "'messages[1].role' must be a string" },
        { "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}", "messages[0].content[0]",
          "'messages[0].content[0].text' must be a string" },
        { "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{\"type\":\"function\"}]}", "tools",
          "the chat template chatml takes no tools" },
        { "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"add_generation_prompt\":true,\"continue_final_message\":true}",
          "continue_final_message", "'continue_final_message' and 'add_generation_prompt' can not both be true" },
        { "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"chat_template_kwargs\":7}", "chat_template_kwargs",
          "'chat_template_kwargs' must be an object" },
        { "{\"token_ids\":[\"a\"]}", "token_ids", "'token_ids[0]' must be a token between 0 and 511" },
        { "{\"token_ids\":[1,512]}", "token_ids", "'token_ids[1]' must be a token between 0 and 511" },
        { "{\"prompt\":\"a\",\"temperature\":-1}", "temperature", "'temperature' must be between 0 and 100, but is -1" },
        { "{\"prompt\":\"a\",\"temperature\":\"hot\"}", "temperature", "'temperature' must be a number, but is a string" },
        { "{\"prompt\":\"a\",\"top_p\":1.5}", "top_p", "'top_p' must be between 0 and 1, but is 1.5" },
        { "{\"prompt\":\"a\",\"typical_p\":-0.5}", "typical_p", "'typical_p' must be between 0 and 1, but is -0.5" },
        { "{\"prompt\":\"a\",\"xtc_threshold\":2}", "xtc_threshold", "'xtc_threshold' must be between 0 and 1, but is 2" },
        { "{\"prompt\":\"a\",\"dry_base\":-1}", "dry_base", "'dry_base' must be between 0 and 100, but is -1" },
        { "{\"prompt\":\"a\",\"dry_sequence_breakers\":[\"\"]}", "dry_sequence_breakers",
          "'dry_sequence_breakers' must hold 1 to 16 strings of 1 to 40 bytes" },
        { "{\"prompt\":\"a\",\"mirostat\":3}", "mirostat", "'mirostat' must be between 0 and 2, but is 3" },
        { "{\"prompt\":\"a\",\"top_k\":1.5}", "top_k", "'top_k' must be an integer, but is 1.5" },
        { "{\"prompt\":\"a\",\"seed\":true}", "seed", "'seed' must be an integer, but is a boolean" },
        { "{\"prompt\":\"a\",\"stop\":5}", "stop", "'stop' must be a string or an array of strings, but is a number" },
        { "{\"prompt\":\"a\",\"stop\":[5]}", "stop", "'stop[0]' must be a string, but is a number" },
        { "{\"prompt\":\"a\",\"stop\":[\"\"]}", "stop", "'stop' holds an empty string" },
        { "{\"prompt\":\"a\",\"stop_token_ids\":5}", "stop_token_ids", "'stop_token_ids' must be an array, but is a number" },
        { "{\"prompt\":\"a\",\"ignore_eos\":1}", "ignore_eos", "'ignore_eos' must be a boolean, but is a number" },
        { "{\"prompt\":\"a\",\"max_tokens\":0}", "max_tokens", "'max_tokens' must be between 1 and 4294967295, but is 0" },
        { "{\"prompt\":\"a\",\"priority\":2000}", "priority", "'priority' must be between -1000 and 1000, but is 2000" },
        { "{\"prompt\":\"a\",\"tenant\":\"0123\"}", "tenant", "'tenant' must be 16 hexadecimal digits" },
        { "{\"prompt\":\"a\",\"cache_salt\":\"0123456789ABCDEF0123456789ABCDEF\"}", "cache_salt", "'cache_salt' must be 32 hexadecimal digits" },
        { "{\"prompt\":\"a\",\"cache_salt\":7}", "cache_salt", "'cache_salt' must be a string, but is a number" },
        { "{\"prompt\":\"a\",\"logprobs\":21}", "logprobs", "'logprobs' must be between 0 and 20, but is 21" },
        { "{\"prompt\":\"a\",\"logit_bias\":[1]}", "logit_bias", "'logit_bias' must be an object, but is an array" },
        { "{\"prompt\":\"a\",\"logit_bias\":{\"x\":1}}", "logit_bias", "'logit_bias': 'x' is not a token id" },
        { "{\"prompt\":\"a\",\"logit_bias\":{\"511\":1,\"512\":1}}", "logit_bias",
          "'logit_bias': token 512 is not in the vocabulary of 512" },
        { "{\"prompt\":\"a\",\"request_id\":1}", "request_id", "'request_id' must be a string, but is a number" },
    };
    struct rig r;

    rig_ready(&r, "{\"play\":[\"a\"]}", NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cJSON *tree = rig_ask_json(&r, 400, "POST", GENERATE, cases[i].body),
              *error = cJSON_GetObjectItem(tree, "error");

        cr_expect(eq(str, text_of(error, "type"), "invalid_request_error"));
        cr_expect(cJSON_HasObjectItem(error, "code"));
        if (cases[i].param)
            cr_expect(eq(str, text_of(error, "param"), (char *)cases[i].param), "%s", cases[i].body);
        else
            cr_expect(cJSON_IsNull(cJSON_GetObjectItem(error, "param")));
        if (cases[i].message)
            cr_expect(eq(str, text_of(error, "message"), (char *)cases[i].message));
        cJSON_Delete(tree);
    }
    rig_stop(&r);
}

Test(worker_generate, over_the_context_both_numbers_are_named)
{
    struct rig r;
    cJSON *tree, *error;

    rig_ready(&r, "{\"context_length\":8,\"play\":[\"a\"]}", NULL);
    tree = rig_ask_json(&r, 400, "POST", GENERATE, "{\"prompt\":\"123456789\"}");
    error = cJSON_GetObjectItem(tree, "error");
    cr_expect(eq(str, text_of(error, "code"), "context_length_exceeded"));
    cr_expect(eq(str, text_of(error, "message"),
                 "This model's maximum context length is 8 tokens. However, your messages resulted in 9 tokens. "
                 "Please reduce the length of the messages."));
    cJSON_Delete(tree);
    tree = rig_ask_json(&r, 400, "POST", GENERATE, "{\"prompt\":\"1234\",\"max_tokens\":5}");
    error = cJSON_GetObjectItem(tree, "error");
    cr_expect(eq(str, text_of(error, "code"), "context_length_exceeded"));
    cr_expect(eq(str, text_of(error, "param"), "max_tokens"));
    cr_expect(eq(str, text_of(error, "message"),
                 "This model's maximum context length is 8 tokens. However, you requested 9 tokens (4 in the messages, "
                 "5 in the completion). Please reduce the length of the messages or completion."));
    cJSON_Delete(tree);
    rig_stop(&r);
}

Test(worker_generate, a_failure_in_the_stream_is_its_last_line)
{
    struct rig r;
    struct reply reply;

    rig_ready(&r, "{\"play\":[\"so\",{\"fail\":\"no room\",\"code\":\"oom\"}]}", NULL);
    reply = rig_ask(&r, "POST", GENERATE, "{\"prompt\":\"p\"}");
    cr_expect(eq(int, reply.status, 200));
    cr_expect(not(reply.cut));
    cr_expect(not(zero(ptr, strstr(reply.body.data,
              "\n{\"error\":{\"message\":\"no room\",\"type\":\"server_error\",\"code\":\"out_of_memory\"}}\n"))));
    reply_fini(&reply);
    rig_wait_queue_length(&r, 0);
    rig_stop(&r);
}

Test(worker_generate, two_hundred_streams_at_once_each_in_order)
{
    enum { N = 200 };
    const struct rig_options options = { .parallel = N };
    struct stream *s = calloc(N, sizeof *s);
    BUF_LOCAL script = BUF_INIT;
    BUF_LOCAL want = BUF_INIT;
    struct rig r;

    buf_adds(&script, "{\"play\":[");
    for (int i = 0; i < 50; i++) {
        buf_printf(&script, "%s\"%d,\",{\"wait_ms\":1}", i ? "," : "", i);
        buf_printf(&want, "%d,", i);
    }
    buf_adds(&script, "]}");
    rig_ready(&r, buf_str(&script), &options);
    for (int i = 0; i < N; i++)
        stream_open(&r, &s[i], POST_GENERATE, "{\"prompt\":\"p\"}");
    for (int i = 0; i < N; i++) {
        struct told t;

        while (stream_more(&s[i]))
            ;
        cr_assert(eq(int, s[i].status, 200));
        cr_assert(not(s[i].cut));
        t = read_lines(&s[i].body);
        cr_expect(eq(str, TEXT(t), (char *)buf_str(&want)));
        cr_expect(eq(int, t.completion_tokens, 50));
        told_fini(&t);
        stream_close(&s[i]);
    }
    cr_expect(zero(int, rig_queue_length(&r)));
    rig_stop(&r);
    free(s);
}

Test(worker_generate, who_vanishes_while_streaming_or_waiting_leaves_nothing)
{
    enum { N = 20 };
    const struct rig_options two = { .parallel = 2 };
    struct stream s[N];
    struct rig r;

    rig_ready(&r, "{\"play\":[\"a\",{\"silent_ms\":80000000}]}", &two);
    for (int i = 0; i < N; i++)
        stream_open(&r, &s[i], i % 2 ? POST_GENERATE : "POST /worker_generate", "{\"prompt\":\"p\"}");
    rig_wait_queue_length(&r, N);
    stream_close(&s[0]);
    stream_close(&s[2]);
    stream_wait(&s[1], "\"a\"");
    for (int i = 1; i < N; i++)
        if (i != 2)
            stream_close(&s[i]);
    rig_wait_queue_length(&r, 0);
    rig_stop(&r);
}

Test(worker_generate, a_reader_that_does_not_read_pauses_its_own_sequence_only)
{
    struct stream slow;
    struct told t;
    struct rig r;

    rig_ready(&r, "{\"context_length\":4000000,\"rules\":[{\"match\":\"slow\",\"play\":[{\"repeat\":1000000,\"play\":"
                  "[\"0123456789abcdef\"]}]}],\"play\":[\"quick\"]}", NULL);
    stream_open(&r, &slow, POST_GENERATE, "{\"prompt\":\"slow\",\"max_tokens\":200000}");
    rig_wait_queue_length(&r, 1);
    t = ask(&r, "{\"prompt\":\"other\"}");
    cr_expect(eq(str, TEXT(t), "quick"));
    told_fini(&t);
    cr_expect(eq(int, rig_queue_length(&r), 1));
    while (stream_more(&slow))
        ;
    cr_expect(not(slow.cut));
    t = read_lines(&slow.body);
    cr_expect(eq(int, t.completion_tokens, 200000));
    cr_expect(eq(sz, t.text.len, 3200000));
    told_fini(&t);
    stream_close(&slow);
    rig_stop(&r);
}

Test(worker_generate, a_full_queue_is_503_with_retry_after)
{
    const struct rig_options one = { .parallel = 1, .queue = 1 };
    struct stream a, b;
    struct reply reply;
    struct rig r;

    rig_ready(&r, "{\"play\":[{\"wait_ms\":80000000}]}", &one);
    stream_open(&r, &a, POST_GENERATE, "{\"prompt\":\"p\"}");
    stream_wait(&a, "prompt_tokens");
    stream_open(&r, &b, POST_GENERATE, "{\"prompt\":\"p\"}");
    rig_wait_queue_length(&r, 2);
    reply = rig_ask(&r, "POST", GENERATE, "{\"prompt\":\"p\"}");
    cr_expect(eq(int, reply.status, 503));
    cr_expect(not(zero(ptr, strcasestr(reply.head.data, "retry-after:"))));
    cr_expect(not(zero(ptr, strstr(reply.body.data, "\"type\":\"overloaded_error\""))));
    reply_fini(&reply);
    stream_close(&a);
    stream_close(&b);
    rig_stop(&r);
}

Test(worker_generate, another_queue_counts_at_once_and_throws_nobody_out)
{
    const struct rig_options two = { .parallel = 1, .queue = 2 }, one = { .parallel = 1, .queue = 1 };
    struct stream running, waiting[2];
    struct reply reply;
    struct rig r;

    rig_ready(&r, "{\"play\":[{\"wait_ms\":80000000}]}", &two);
    stream_open(&r, &running, POST_GENERATE, "{\"prompt\":\"p\"}");
    stream_wait(&running, "prompt_tokens");
    for (int i = 0; i < 2; i++)
        stream_open(&r, &waiting[i], POST_GENERATE, "{\"prompt\":\"p\"}");
    rig_wait_queue_length(&r, 3);
    cr_expect(zero(ptr, (void *)rig_reload(&r, &one)));
    cr_expect(eq(int, rig_queue_length(&r), 3));
    stream_close(&waiting[1]);
    rig_wait_queue_length(&r, 2);
    reply = rig_ask(&r, "POST", GENERATE, "{\"prompt\":\"p\"}");
    cr_expect(eq(int, reply.status, 503));
    reply_fini(&reply);
    stream_close(&running);
    stream_close(&waiting[0]);
    rig_stop(&r);
}
