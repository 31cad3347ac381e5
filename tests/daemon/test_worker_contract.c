/* The FastChat endpoints of a worker: contract parts 2 and 3. */
#include "tests/daemon/worker_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SERVER_ERROR "**NETWORK ERROR DUE TO HIGH TRAFFIC. PLEASE REGENERATE OR REFRESH THIS PAGE.**"
#define STREAM "/worker_generate_stream"
#define POST_STREAM "POST /worker_generate_stream"

static const char hello[] = "{\"context_length\":64,\"play\":[\"Hello\",{\"wait_ms\":1},\" world\"]}";

static char *text_of(const cJSON *tree, const char *key)
{
    return cJSON_GetStringValue(cJSON_GetObjectItem(tree, key));
}

static int int_of(const cJSON *tree, const char *key)
{
    const cJSON *v = cJSON_GetObjectItem(tree, key);

    cr_assert(not(zero(ptr, (void *)v)), "no %s", key);
    return (int)cJSON_GetNumberValue(v);
}

/* The frames of a body as an array. */
static cJSON *frames_of(const struct buf *body)
{
    cJSON *list = cJSON_CreateArray();

    for (size_t at = 0; at < body->len;) {
        size_t len = strlen(body->data + at);
        cJSON *frame = cJSON_Parse(body->data + at);

        cr_assert(lt(sz, at + len, body->len), "the last frame has no NUL");
        cr_assert(not(zero(ptr, frame)), "no JSON: %s", body->data + at);
        cJSON_AddItemToArray(list, frame);
        at += len + 1;
    }
    return list;
}

static cJSON *ask_frames(struct rig *r, const char *body)
{
    struct reply reply = rig_ask(r, "POST", STREAM, body);
    cJSON *list;

    cr_assert(eq(int, reply.status, 200));
    cr_assert(not(reply.cut));
    cr_expect(zero(ptr, strcasestr(reply.head.data, "content-type")));
    list = frames_of(&reply.body);
    reply_fini(&reply);
    return list;
}

static cJSON *last_of(cJSON *list)
{
    return cJSON_GetArrayItem(list, cJSON_GetArraySize(list) - 1);
}

Test(worker_contract, status_names_the_model_and_its_aliases)
{
    struct rig r;
    struct reply reply;

    rig_ready(&r, hello, NULL);
    reply = rig_ask(&r, "POST", "/worker_get_status", NULL);
    cr_expect(eq(str, reply.body.data, "{\"model_names\":[\"test\",\"alias\"],\"speed\":1,\"queue_length\":0}"));
    reply_fini(&reply);
    rig_stop(&r);
}

Test(worker_contract, the_small_endpoints_answer_as_the_contract_says)
{
    static const struct { const char *method, *path, *body; int status; const char *want; } cases[] = {
        { "POST", "/count_token", "{\"prompt\":\"h\\u00e9\",\"model\":\"x\"}", 200, "{\"count\":3,\"error_code\":0}" },
        { "POST", "/model_details", "{}", 200, "{\"context_length\":64}" },
        { "POST", "/model_details", NULL, 200, "{\"context_length\":64}" },
        { "GET", "/health", NULL, 200, "{\"status\":\"ok\"}" },
        { "GET", "/model_details", NULL, 405, "{\"detail\":\"Method Not Allowed\"}" },
        { "GET", "/nothing", NULL, 404, "{\"detail\":\"Not Found\"}" },
        { "POST", "/worker_get_embeddings", "{\"input\":[\"a\"]}", 501,
          "{\"object\":\"error\",\"message\":\"this worker does not make embeddings\",\"code\":50001}" },
        { "POST", "/count_token", "{bad", 500, "Internal Server Error" },
        { "POST", "/count_token", "{}", 500, "Internal Server Error" },
        { "POST", "/worker_generate", "[]", 500, "Internal Server Error" },
        { "POST", "/worker_generate", "{}", 500, "Internal Server Error" },
        { "POST", "/worker_generate_stream", "nonsense", 500, "Internal Server Error" },
    };
    struct rig r;

    rig_ready(&r, hello, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct reply reply = rig_ask(&r, cases[i].method, cases[i].path, cases[i].body);

        cr_expect(eq(int, reply.status, cases[i].status), "%s", cases[i].path);
        cr_expect(eq(str, (char *)buf_str(&reply.body), (char *)cases[i].want));
        if (reply.status == 500)
            cr_expect(not(zero(ptr, strstr(reply.head.data, "text/plain; charset=utf-8"))));
        reply_fini(&reply);
    }
    rig_stop(&r);
}

Test(worker_contract, the_conversation_template_has_every_key)
{
    static const char *const keys[] = { "name", "system_template", "system_message", "system_message_vision", "roles",
                                        "messages", "offset", "sep_style", "sep", "sep2", "stop_str",
                                        "stop_token_ids", "max_image_size_mb" };
    struct rig r;
    cJSON *tree, *conv;

    rig_ready(&r, hello, NULL);
    tree = rig_ask_json(&r, 200, "POST", "/worker_get_conv_template", "{}");
    conv = cJSON_GetObjectItem(tree, "conv");
    cr_assert(not(zero(ptr, conv)));
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        cr_expect(cJSON_HasObjectItem(conv, keys[i]), "%s", keys[i]);
    cr_expect(eq(str, text_of(conv, "name"), "chatml"));
    cJSON_Delete(tree);
    rig_stop(&r);
}

Test(worker_contract, frames_are_cumulative_and_the_last_repeats_the_text)
{
    struct rig r;
    cJSON *list, *frame;
    char *before = "";
    int n;

    rig_ready(&r, hello, NULL);
    list = ask_frames(&r, "{\"prompt\":\"abc\",\"echo\":false}");
    n = cJSON_GetArraySize(list);
    cr_assert(ge(int, n, 2));
    for (int i = 0; i < n; i++) {
        frame = cJSON_GetArrayItem(list, i);
        cr_expect(zero(int, int_of(frame, "error_code")));
        cr_expect(zero(int, strncmp(text_of(frame, "text"), before, strlen(before))));
        cr_expect(eq(int, cJSON_IsNull(cJSON_GetObjectItem(frame, "finish_reason")), i < n - 1));
        cr_expect(cJSON_IsNull(cJSON_GetObjectItem(frame, "logprobs")));
        if (i == n - 1)
            cr_expect(eq(str, text_of(frame, "text"), before));
        before = text_of(frame, "text");
    }
    frame = last_of(list);
    cr_expect(eq(str, text_of(frame, "text"), "Hello world"));
    cr_expect(eq(str, text_of(frame, "finish_reason"), "stop"));
    cr_expect(eq(int, int_of(cJSON_GetObjectItem(frame, "usage"), "prompt_tokens"), 3));
    cr_expect(eq(int, int_of(cJSON_GetObjectItem(frame, "usage"), "completion_tokens"), 2));
    cr_expect(eq(int, int_of(cJSON_GetObjectItem(frame, "usage"), "total_tokens"), 5));
    cJSON_Delete(list);
    rig_stop(&r);
}

Test(worker_contract, echo_is_on_unless_switched_off_and_null_is_absent)
{
    struct rig r;
    cJSON *tree;

    rig_ready(&r, hello, NULL);
    tree = rig_ask_json(&r, 200, "POST", "/worker_generate",
                        "{\"prompt\":\"abc\",\"echo\":null,\"stop\":null,\"temperature\":null,\"top_k\":-1.0,"
                        "\"stop_token_ids\":null,\"max_new_tokens\":null,\"best_of\":null,\"unknown\":[1]}");
    cr_expect(eq(str, text_of(tree, "text"), "abcHello world"));
    cr_expect(eq(str, text_of(tree, "finish_reason"), "stop"));
    cJSON_Delete(tree);
    rig_stop(&r);
}

Test(worker_contract, stop_is_a_string_or_a_list_and_anything_else_is_50001)
{
    static const struct { const char *stop, *want; } cases[] = {
        { "\"\\nQ:\"", "42" }, { "[\"\\nQ:\"]", "42" }, { "[]", "42\nQ: next" }, { "null", "42\nQ: next" },
        { "[\"zz\",\"next\"]", "42\nQ: " },
    };
    static const char *const wrong[] = { "5", "{}", "true", "[5]", "[\"a\",null]" };
    struct rig r;
    char body[128];

    rig_ready(&r, "{\"play\":[\"42\",\"\\n\",\"Q\",\": n\",\"ext\"]}", NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cJSON *tree;

        snprintf(body, sizeof body, "{\"prompt\":\"p\",\"echo\":false,\"stop\":%s}", cases[i].stop);
        tree = rig_ask_json(&r, 200, "POST", "/worker_generate", body);
        cr_expect(eq(str, text_of(tree, "text"), (char *)cases[i].want), "%s", cases[i].stop);
        cJSON_Delete(tree);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        cJSON *list;

        snprintf(body, sizeof body, "{\"prompt\":\"p\",\"stop\":%s}", wrong[i]);
        list = ask_frames(&r, body);
        cr_assert(eq(int, cJSON_GetArraySize(list), 1));
        cr_expect(eq(int, int_of(last_of(list), "error_code"), 50001));
        cr_expect(eq(str, text_of(last_of(list), "text"), SERVER_ERROR "\n\n(Invalid stop field type.)"));
        cJSON_Delete(list);
    }
    rig_stop(&r);
}

/* Contract 3.3, its golden table, as far as something is to be seen: each
 * output is one token, so the frame with its text shows what is held back. */
Test(worker_contract, a_partial_stop_is_held_back_and_nothing_else)
{
    static const struct { const char *output, *stop, *shown; } cases[] = {
        { "hello", "###", "hello" }, { "hello #", "###", "hello " }, { "xab", "abc", "x" },
        { "x\\n", "\\nUser", "x" },  { "x#", "#y", "x" },             { "abx", "abc", "abx" },
    };
    struct rig r;
    BUF_LOCAL script = BUF_INIT;

    buf_adds(&script, "{\"rules\":[");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        buf_printf(&script, "%s{\"match\":\"case%zu\",\"play\":[\"%s\",{\"wait_ms\":80000000}]}", i ? "," : "", i,
                   cases[i].output);
    buf_adds(&script, "]}");
    rig_ready(&r, buf_str(&script), NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct stream s;
        char body[128];

        snprintf(body, sizeof body, "{\"prompt\":\"case%zu\",\"echo\":false,\"stop\":[\"%s\",\"@@@\"]}", i,
                 cases[i].stop);
        stream_open(&r, &s, POST_STREAM, body);
        snprintf(body, sizeof body, "{\"text\":\"%s\",", cases[i].shown);
        stream_wait(&s, body);
        stream_close(&s);
    }
    rig_wait_queue_length(&r, 0);
    rig_stop(&r);
}

Test(worker_contract, stop_tokens_and_max_new_tokens_end_it)
{
    struct rig r;
    cJSON *tree;

    rig_ready(&r, "{\"context_length\":16,\"play\":[{\"repeat\":50,\"play\":[\"a\",\"b\"]}]}", NULL);
    tree = rig_ask_json(&r, 200, "POST", "/worker_generate",
                        "{\"prompt\":\"p\",\"echo\":false,\"stop_token_ids\":[98,100000]}");
    cr_expect(eq(str, text_of(tree, "text"), "a"));
    cr_expect(eq(str, text_of(tree, "finish_reason"), "stop"));
    cJSON_Delete(tree);
    tree = rig_ask_json(&r, 200, "POST", "/worker_generate", "{\"prompt\":\"p\",\"echo\":false,\"max_new_tokens\":3}");
    cr_expect(eq(str, text_of(tree, "text"), "aba"));
    cr_expect(eq(str, text_of(tree, "finish_reason"), "length"));
    cr_expect(eq(int, int_of(cJSON_GetObjectItem(tree, "usage"), "completion_tokens"), 3));
    cJSON_Delete(tree);
    /* prompt and answer together over the context: less is generated, nothing of the prompt is cut */
    tree = rig_ask_json(&r, 200, "POST", "/worker_generate", "{\"prompt\":\"0123456789\",\"max_new_tokens\":1000}");
    cr_expect(eq(str, text_of(tree, "text"), "0123456789ababab"));
    cr_expect(eq(int, int_of(cJSON_GetObjectItem(tree, "usage"), "prompt_tokens"), 10));
    cJSON_Delete(tree);
    rig_stop(&r);
}

Test(worker_contract, a_prompt_that_does_not_fit_is_40303_in_a_frame)
{
    struct rig r;
    cJSON *list;

    rig_ready(&r, "{\"context_length\":8,\"play\":[\"a\"]}", NULL);
    list = ask_frames(&r, "{\"prompt\":\"12345678\"}");
    cr_assert(eq(int, cJSON_GetArraySize(list), 1));
    cr_expect(eq(int, int_of(last_of(list), "error_code"), 40303));
    cr_expect(eq(str, text_of(last_of(list), "text"),
                 "This model's maximum context length is 8 tokens. However, your messages resulted in 8 tokens. "
                 "Please reduce the length of the messages."));
    cJSON_Delete(list);
    rig_stop(&r);
}

Test(worker_contract, what_can_not_fit_is_refused_before_it_is_tokenised)
{
    enum { BYTES = 4 << 20 };
    struct rig r;
    cJSON *tree;
    BUF_LOCAL body = BUF_INIT;

    rig_ready(&r, "{\"context_length\":8,\"special_tokens\":{\"eos_token\":\"</s>\"},\"play\":[\"abcd\"]}", NULL);
    buf_adds(&body, "{\"prompt\":\"");
    for (int i = 0; i < BYTES; i++)
        buf_addc(&body, 'a');
    buf_adds(&body, "\"}");
    tree = rig_ask_json(&r, 200, "POST", "/worker_generate", buf_str(&body));
    cr_expect(eq(int, int_of(tree, "error_code"), 40303));
    cr_expect(not(zero(ptr, strstr(text_of(tree, "text"), "resulted in at least 1048576 tokens"))));
    cJSON_Delete(tree);
    tree = rig_ask_json(&r, 400, "POST", "/fastchat/generate", buf_str(&body));
    cr_expect(not(zero(ptr, strstr(text_of(cJSON_GetObjectItem(tree, "error"), "message"), "at least 1048576"))));
    cJSON_Delete(tree);
    rig_stop(&r);
}

Test(worker_contract, a_failure_is_a_frame_with_its_code)
{
    struct rig r;
    cJSON *list, *tree;

    rig_ready(&r, "{\"rules\":[{\"match\":\"oom\",\"play\":[\"so\",{\"fail\":\"no room\",\"code\":\"oom\"}]}],"
                  "\"play\":[{\"fail\":\"broken\"}]}", NULL);
    list = ask_frames(&r, "{\"prompt\":\"oom\"}");
    cr_expect(eq(int, int_of(last_of(list), "error_code"), 50002));
    cr_expect(eq(str, text_of(last_of(list), "text"), SERVER_ERROR "\n\n(no room)"));
    cr_expect(eq(int, cJSON_GetArraySize(last_of(list)), 2));
    cJSON_Delete(list);
    tree = rig_ask_json(&r, 200, "POST", "/worker_generate", "{\"prompt\":\"p\"}");
    cr_expect(eq(int, int_of(tree, "error_code"), 50001));
    cr_expect(eq(str, text_of(tree, "text"), SERVER_ERROR "\n\n(broken)"));
    cJSON_Delete(tree);
    tree = rig_ask_json(&r, 200, "POST", "/worker_generate", "{\"prompt\":\"p\",\"temperature\":\"hot\"}");
    cr_expect(eq(int, int_of(tree, "error_code"), 50001));
    cr_expect(eq(str, text_of(tree, "text"), SERVER_ERROR "\n\n('temperature' must be a number, but is a string)"));
    cJSON_Delete(tree);
    rig_stop(&r);
}

Test(worker_contract, logprobs_are_one_object_that_grows)
{
    struct rig r;
    struct reply reply;

    rig_ready(&r, "{\"play\":[{\"text\":\"h\\u00e9\",\"logprob\":-0.5},{\"text\":\"y\",\"logprob\":-1}]}", NULL);
    reply = rig_ask(&r, "POST", "/worker_generate", "{\"prompt\":\"ab\",\"logprobs\":0}");
    cr_expect(not(zero(ptr, strstr(reply.body.data,
              "\"logprobs\":{\"text_offset\":[0,1,2,4],\"tokens\":[\"a\",\"b\",\"h\xc3\xa9\",\"y\"],"
              "\"token_logprobs\":[null,null,-0.5,-1],\"top_logprobs\":[{},{},{},{}]}"))), "%s", reply.body.data);
    reply_fini(&reply);
    reply = rig_ask(&r, "POST", "/worker_generate", "{\"prompt\":\"ab\",\"logprobs\":1,\"echo\":false}");
    cr_expect(not(zero(ptr, strstr(reply.body.data, "\"tokens\":[\"h\xc3\xa9\",\"y\"],\"token_logprobs\":[-0.5,-1]"))),
              "%s", reply.body.data);
    reply_fini(&reply);
    rig_stop(&r);
}

Test(worker_contract, a_character_over_two_tokens_never_shows_in_halves)
{
    struct rig r;
    cJSON *list;

    rig_ready(&r, "{\"play\":[\"x\",{\"wait_ms\":2},{\"bytes\":[240,159]},{\"wait_ms\":2},{\"bytes\":[166,148]}]}", NULL);
    list = ask_frames(&r, "{\"prompt\":\"p\",\"echo\":false}");
    for (int i = 0; i < cJSON_GetArraySize(list); i++) {
        char *text = text_of(cJSON_GetArrayItem(list, i), "text");

        cr_expect(strcmp(text, "x") == 0 || strcmp(text, "x\xf0\x9f\xa6\x94") == 0, "%s", text);
    }
    cr_expect(eq(str, text_of(last_of(list), "text"), "x\xf0\x9f\xa6\x94"));
    cJSON_Delete(list);
    rig_stop(&r);
}

Test(worker_contract, a_full_queue_is_503_with_retry_after)
{
    const struct rig_options one = { .parallel = 1, .queue = 1 };
    struct stream running, waiting;
    struct reply reply;
    struct rig r;

    rig_ready(&r, "{\"play\":[\"a\",{\"wait_ms\":80000000}]}", &one);
    stream_open(&r, &running, POST_STREAM, "{\"prompt\":\"p\"}");
    stream_wait(&running, "pa");
    stream_open(&r, &waiting, POST_STREAM, "{\"prompt\":\"p\"}");
    rig_wait_queue_length(&r, 2);
    reply = rig_ask(&r, "POST", STREAM, "{\"prompt\":\"p\"}");
    cr_expect(eq(int, reply.status, 503));
    cr_expect(not(zero(ptr, strcasestr(reply.head.data, "retry-after: 1"))));
    cr_expect(not(zero(ptr, strstr(reply.body.data, "\"code\":42903"))));
    reply_fini(&reply);
    stream_close(&running);
    stream_wait(&waiting, "pa");
    stream_close(&waiting);
    rig_wait_queue_length(&r, 0);
    rig_stop(&r);
}
