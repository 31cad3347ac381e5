/* Bodies of POST /v1/chat/completions: what is refused, with which field, and
 * what a worker is sent for the rest. */
#include "base/arena.h"
#include "base/buf.h"
#include "daemon/api/api_error.h"
#include "daemon/api/chat_request.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <string.h>

#define MSGS "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define BODY(more) "{\"model\":\"m\"," MSGS more "}"

struct refusal {
    const char *body, *param, *text;    /* text: what the message holds */
};

static const struct refusal refusals[] = {
    /* not JSON, with the byte */
    { "", NULL, "byte 0" },
    { "{", NULL, "byte 1" },
    { "{:7}", NULL, "byte 1" },
    { "{,", NULL, "byte 1" },
    { "[]", NULL, "byte 0: the body must be a JSON object, but is an array" },
    { "\"x\"", NULL, "must be a JSON object" },
    { "nul", NULL, "byte 0" },
    { "{\"a\":1}x", NULL, "byte 7" },
    { "\xEF\xBB\xBF{}", NULL, "byte 0" },
    { "{\"model\":\"\\ud801 and more\"}", NULL, "surrogate" },
    { "{\"model\":\"\xff\"}", NULL, "UTF-8" },
    /* model */
    { "{" MSGS "}", "model", "'model' is required" },
    { "{\"model\":null," MSGS "}", "model", "'model' is required" },
    { "{\"model\":5," MSGS "}", "model", "'model' must be a string, but is a number" },
    /* messages */
    { "{\"model\":\"m\"}", "messages", "'messages' is required" },
    { "{\"model\":\"m\",\"messages\":[]}", "messages", "at least one" },
    { "{\"model\":\"m\",\"messages\":{\"role\":\"user\",\"content\":\"ok?\"}}", "messages",
      "must be a list of {\"role\",\"content\"} objects, but is an object" },
    { "{\"model\":\"m\",\"messages\":[7]}", "messages[0]", "must be an object, but is a number" },
    { "{\"model\":\"m\",\"messages\":[{\"content\":\"x\"}]}", "messages[0].role", "must be a string" },
    { "{\"model\":\"m\",\"messages\":[{\"role\":\"owl\",\"content\":\"x\"}]}", "messages[0].role",
      "but is 'owl'" },
    { "{\"model\":\"m\",\"messages\":[{\"role\":\"user\"}]}", "messages[0].content", "null or absent" },
    { "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":null}]}", "messages[0].content",
      "null or absent" },
    { "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":7}]}", "messages[0].content",
      "but is a number" },
    { "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[]}]}", "messages[0].content",
      "empty list" },
    { "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":["
      "{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image_url\",\"image_url\":{\"url\":\"http://x/\"}}]}]}",
      "messages[1].content[1]", "has the type 'image_url'" },
    { "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}",
      "messages[0].content[0]", "'messages[0].content[0].text' must be a string" },
    { "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[\"a\"]}]}",
      "messages[0].content[0]", "must be an object" },
    { "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"name\":7}]}",
      "messages[0].name", "must be a string" },
    { "{\"model\":\"m\",\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":7}]}",
      "messages[0].tool_calls", "must be an array, but is a number" },
    { "{\"model\":\"m\",\"messages\":[{\"role\":\"assistant\",\"content\":\"a\",\"function_call\":{}}]}",
      "messages[0].function_call", "say 'tool_calls' instead" },
    { "{\"model\":\"m\",\"messages\":[{\"role\":\"tool\",\"content\":\"a\",\"tool_call_id\":7}]}",
      "messages[0].tool_call_id", "must be a string" },
    /* what goes with them */
    { BODY(",\"documents\":{}"), "documents", "must be an array, but is an object" },
    { BODY(",\"chat_template_kwargs\":[1]"), "chat_template_kwargs", "must be an object, but is an array" },
    { BODY(",\"add_generation_prompt\":1"), "add_generation_prompt", "must be a boolean" },
    { BODY(",\"continue_final_message\":\"x\""), "continue_final_message", "must be a boolean" },
    { BODY(",\"continue_final_message\":true,\"add_generation_prompt\":true"), "continue_final_message",
      "can not both be true" },
    /* numbers */
    { BODY(",\"temperature\":\"hot\""), "temperature", "must be a number, but is a string" },
    { BODY(",\"temperature\":2.1"), "temperature", "at least 0 and at most 2, but is 2.1" },
    { BODY(",\"temperature\":-0.1"), "temperature", "at least 0" },
    { BODY(",\"temperature\":1e999"), "temperature", "too large" },
    { BODY(",\"top_p\":1.5"), "top_p", "at most 1" },
    { BODY(",\"min_p\":-1"), "min_p", "at least 0" },
    { BODY(",\"presence_penalty\":3"), "presence_penalty", "at most 2" },
    { BODY(",\"frequency_penalty\":[]"), "frequency_penalty", "but is an array" },
    { BODY(",\"repetition_penalty\":0"), "repetition_penalty", "above 0" },
    { BODY(",\"top_k\":-2"), "top_k", "between -1" },
    { BODY(",\"top_k\":1.5"), "top_k", "must be an integer, but is 1.5" },
    { BODY(",\"seed\":7.5"), "seed", "must be an integer" },
    { BODY(",\"seed\":9223372036854775808"), "seed", "must be between" },
    { BODY(",\"n\":0"), "n", "between 1 and 128" },
    { BODY(",\"n\":16384"), "n", "between 1 and 128" },
    { BODY(",\"n\":true"), "n", "but is a boolean" },
    { BODY(",\"max_tokens\":0"), "max_tokens", "between 1" },
    { BODY(",\"max_tokens\":4294971392"), "max_tokens", "between 1" },
    { BODY(",\"max_completion_tokens\":-1"), "max_completion_tokens", "between 1" },
    /* lists */
    { BODY(",\"stop\":5"), "stop", "a string or a list of strings, but is a number" },
    { BODY(",\"stop\":\"\""), "stop", "must not be empty" },
    { BODY(",\"stop\":[\"a\",\"\"]"), "stop[1]", "must not be empty" },
    { BODY(",\"stop\":[5]"), "stop[0]", "must be a string, but is a number" },
    { BODY(",\"stop\":[\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\",\"i\",\"j\",\"k\",\"l\",\"m\",\"n\","
           "\"o\",\"p\",\"q\"]"),
      "stop", "at most 16 strings" },
    { BODY(",\"stop_token_ids\":[-1]"), "stop_token_ids", "'stop_token_ids[0]' must be a token id" },
    { BODY(",\"logit_bias\":5"), "logit_bias", "must be an object, but is a number" },
    { BODY(",\"logit_bias\":{\"12\":400}"), "logit_bias", "'logit_bias.12' must be between -100 and 100, but is 400" },
    { BODY(",\"logit_bias\":{\"12\":\"x\"}"), "logit_bias", "'logit_bias.12' must be a number, but is a string" },
    { BODY(",\"logit_bias\":{\"\":1}"), "logit_bias", "'' is not a token id" },
    { BODY(",\"logit_bias\":{\"-1\":1}"), "logit_bias", "'-1' is not a token id" },
    { BODY(",\"logit_bias\":{\"01\":1}"), "logit_bias", "'01' is not a token id" },
    { BODY(",\"logit_bias\":{\"12345678901234567890123\":1}"), "logit_bias", "is not a token id" },
    { BODY(",\"typical_p\":1.5"), "typical_p", "at most 1, but is 1.5" },
    { BODY(",\"dry_sequence_breakers\":[]"), "dry_sequence_breakers", "must not be empty" },
    { BODY(",\"dry_sequence_breakers\":[\"\"]"), "dry_sequence_breakers", "strings of 1 to 40 bytes" },
    { BODY(",\"dry_sequence_breakers\":[1]"), "dry_sequence_breakers", "strings of 1 to 40 bytes" },
    { BODY(",\"dry_allowed_length\":-1"), "dry_allowed_length", "between 0 and 2147483647" },
    { BODY(",\"repeat_last_n\":1.5"), "repeat_last_n", "must be an integer" },
    { BODY(",\"mirostat\":3"), "mirostat", "between 0 and 2" },
    { BODY(",\"priority\":1001"), "priority", "between -1000 and 1000" },
    { BODY(",\"priority\":\"high\""), "priority", "must be an integer" },
    { BODY(",\"cache_salt\":\"\""), "cache_salt", "must have 1 to 256 bytes" },
    { BODY(",\"cache_salt\":7"), "cache_salt", "must be a string" },
    /* switches */
    { BODY(",\"stream\":\"yes\""), "stream", "must be a boolean, but is a string" },
    { BODY(",\"stream_options\":{}"), "stream_options", "only when 'stream' is true" },
    { BODY(",\"stream\":true,\"stream_options\":7"), "stream_options", "must be an object" },
    { BODY(",\"stream\":true,\"stream_options\":{\"include_usage\":1}"),
      "stream_options.include_usage", "must be a boolean" },
    { BODY(",\"logprobs\":3"), "logprobs", "must be a boolean" },
    { BODY(",\"logprobs\":true,\"top_logprobs\":21"), "top_logprobs", "between 0 and 20" },
    { BODY(",\"top_logprobs\":2"), "top_logprobs", "needs 'logprobs'" },
    { BODY(",\"user\":7"), "user", "must be a string" },
    /* not here yet */
    { BODY(",\"tools\":[{\"type\":\"function\"}]"), "tools", "not supported" },
    { BODY(",\"functions\":[{}]"), "functions", "not supported" },
    { BODY(",\"tool_choice\":\"required\""), "tool_choice", "not supported" },
    { BODY(",\"response_format\":{\"type\":\"json_object\"}"), "response_format", "supported" },
    { BODY(",\"response_format\":\"json\""), "response_format", "must be an object" },
    { BODY(",\"audio\":{\"voice\":\"x\"}"), "audio", "not supported" },
    { BODY(",\"modalities\":[\"text\",\"audio\"]"), "modalities", "only \"text\"" },
};

Test(api_request, what_is_wrong_is_a_400_that_names_the_field)
{
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const struct refusal *row = &refusals[i];
        CLEANUP(arena_free) struct arena *a = arena_new(0);
        struct chat_request r;
        struct api_error e = { 0 };

        cr_assert(ne(int, chat_request_parse(row->body, strlen(row->body), a, &r, &e), 0), "%s",
                  row->body);
        cr_expect(eq(int, e.status, 400), "%s", row->body);
        cr_expect(eq(str, e.param, (char *)(row->param ? row->param : "")), "%s", row->body);
        cr_expect(strstr(e.message, row->text) != NULL, "%s: %s", row->body, e.message);
        chat_request_fini(&r);
    }
}

struct accepted {
    const char *body, *sent;            /* to the worker, for choice 0 */
};

#define SENT(more) "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]" more ",\"request_id\":\"req\"}"

static const struct accepted accepted[] = {
    { BODY(""), SENT("") },
    { BODY(",\"temperature\":null,\"top_p\":null,\"top_k\":null,\"n\":null,\"seed\":null,\"stop\":null,"
           "\"max_tokens\":null,\"stream\":null,\"stream_options\":null,\"logprobs\":null,"
           "\"top_logprobs\":null,\"tools\":null,\"response_format\":null,\"user\":null"),
      SENT("") },
    { BODY(",\"tools\":[],\"functions\":[],\"tool_choice\":\"none\",\"logit_bias\":{},"
           "\"response_format\":{\"type\":\"text\"},\"modalities\":[\"text\"],\"stop\":[],"
           "\"anything\":{\"goes\":[1]}"),
      SENT("") },
    { BODY(",\"logit_bias\":{\"50256\":-100, \"0\":1.5}"), SENT(",\"logit_bias\":{\"50256\":-100, \"0\":1.5}") },
    { BODY(",\"temperature\":0.5,\"top_p\":1,\"min_p\":0.05,\"presence_penalty\":-2,"
           "\"frequency_penalty\":2,\"repetition_penalty\":1.1,\"top_k\":0"),
      SENT(",\"frequency_penalty\":2,\"min_p\":0.05,\"presence_penalty\":-2,"
           "\"repetition_penalty\":1.1,\"temperature\":0.5,\"top_p\":1,\"top_k\":0") },
    { BODY(",\"top_n_sigma\":1.5"), SENT(",\"top_n_sigma\":1.5") },
    { BODY(",\"typical_p\":0.95,\"xtc_threshold\":0.2,\"xtc_probability\":0.5"),
      SENT(",\"typical_p\":0.95,\"xtc_probability\":0.5,\"xtc_threshold\":0.2") },
    { BODY(",\"dry_multiplier\":0.8,\"dry_base\":1.75,\"dry_allowed_length\":0,\"dry_penalty_last_n\":-1,"
           "\"dry_sequence_breakers\":[\"\\n\",\"x\"],\"repeat_last_n\":64"),
      SENT(",\"dry_base\":1.75,\"dry_multiplier\":0.8,\"dry_allowed_length\":0,\"dry_penalty_last_n\":-1,"
           "\"repeat_last_n\":64,\"dry_sequence_breakers\":[\"\\n\",\"x\"]") },
    { BODY(",\"mirostat\":2,\"mirostat_tau\":3,\"mirostat_eta\":0.5"),
      SENT(",\"mirostat_eta\":0.5,\"mirostat_tau\":3,\"mirostat\":2") },
    { BODY(",\"max_tokens\":3"), SENT(",\"max_tokens\":3") },
    { BODY(",\"priority\":-3,\"cache_salt\":\"x\""), SENT(",\"priority\":-3") },
    { BODY(",\"max_tokens\":3,\"max_completion_tokens\":7"), SENT(",\"max_tokens\":7") },
    { BODY(",\"max_completion_tokens\":7.0"), SENT(",\"max_tokens\":7") },
    { BODY(",\"stop\":\"###\""), SENT(",\"stop\":[\"###\"]") },
    { BODY(",\"stop\":[\"a\",\"\\n\"]"), SENT(",\"stop\":[\"a\",\"\\n\"]") },
    { BODY(",\"stop_token_ids\":[2,7],\"ignore_eos\":true"),
      SENT(",\"stop_token_ids\":[2,7],\"ignore_eos\":true") },
    { BODY(",\"seed\":-5"), SENT(",\"seed\":-5") },
    { BODY(",\"logprobs\":true"), SENT(",\"logprobs\":0") },
    { BODY(",\"logprobs\":true,\"top_logprobs\":2"), SENT(",\"logprobs\":2") },
    { BODY(",\"logprobs\":false,\"top_logprobs\":0"), SENT("") },
    { "{\"model\":\"m\",\"messages\":\"raw \\\"text\\\"\"}",
      "{\"prompt\":\"raw \\\"text\\\"\",\"request_id\":\"req\"}" },
    { "{\"model\":\"m\",\"messages\":[{\"role\":\"developer\",\"content\":\"\"},"
      "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[]},"
      "{\"role\":\"function\",\"name\":\"f\",\"content\":\"1\"},"
      "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"one \"},"
      "{\"type\":\"text\",\"text\":\"tw\xC3\xB6 \\ud83d\\ude80\"}]}]}",
      "{\"messages\":[{\"role\":\"system\",\"content\":\"\"},{\"role\":\"assistant\",\"content\":null},"
      "{\"role\":\"tool\",\"content\":\"1\",\"name\":\"f\"},{\"role\":\"user\",\"content\":["
      "{\"type\":\"text\",\"text\":\"one \"},{\"type\":\"text\",\"text\":\"tw\xC3\xB6 \\ud83d\\ude80\"}]}],"
      "\"request_id\":\"req\"}" },
    { "{\"model\":\"m\",\"messages\":[{\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1.0}}}],"
      "\"reasoning_content\":\"r\",\"role\":\"assistant\"},{\"role\":\"tool\",\"content\":\"1\",\"tool_call_id\":\"c\"}],"
      "\"documents\":[{\"text\":\"d\"}],\"chat_template_kwargs\":{\"t\":1.0,\"s\":1},\"continue_final_message\":false,"
      "\"add_generation_prompt\":false}",
      "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"r\",\"tool_calls\":[{\"function\":"
      "{\"name\":\"f\",\"arguments\":{\"a\":1.0}}}]},{\"role\":\"tool\",\"content\":\"1\",\"tool_call_id\":\"c\"}],"
      "\"documents\":[{\"text\":\"d\"}],\"chat_template_kwargs\":{\"t\":1.0,\"s\":1},\"add_generation_prompt\":false,"
      "\"request_id\":\"req\"}" },
    { BODY(",\"continue_final_message\":true,\"documents\":[],\"chat_template_kwargs\":{}"),
      SENT(",\"continue_final_message\":true") },
};

static void write_all(const struct chat_request *r, unsigned choice, struct buf *out)
{
    chat_request_write(r, CHAT_IN_FULL, out);
    chat_request_write_end(r, choice, "req", out);
}

Test(api_request, what_is_right_reaches_the_worker_and_null_means_absent)
{
    for (size_t i = 0; i < sizeof accepted / sizeof accepted[0]; i++) {
        CLEANUP(arena_free) struct arena *a = arena_new(0);
        BUF_LOCAL out = BUF_INIT;
        struct chat_request r;
        struct api_error e = { 0 };

        cr_assert(zero(int, chat_request_parse(accepted[i].body, strlen(accepted[i].body), a, &r, &e)),
                  "%s: %s", accepted[i].body, e.message);
        write_all(&r, 0, &out);
        cr_expect(eq(str, out.data, (char *)accepted[i].sent));
        cr_expect(eq(str, (char *)r.model, "m"));
        chat_request_fini(&r);
    }
}

Test(api_request, each_choice_has_its_own_seed_and_id)
{
    static const char body[] = BODY(",\"n\":2,\"seed\":9007199254740991,\"stream\":true,"
                                    "\"stream_options\":{\"include_usage\":true}");
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    BUF_LOCAL out = BUF_INIT;
    struct chat_request r;
    struct api_error e = { 0 };

    cr_assert(zero(int, chat_request_parse(body, strlen(body), a, &r, &e)));
    cr_expect(eq(uint, r.n, 2));
    cr_expect(r.stream && r.include_usage);
    write_all(&r, 1, &out);
    cr_expect(eq(str, out.data, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],"
                                "\"seed\":9007199254740992,\"request_id\":\"req/1\"}"));
    chat_request_fini(&r);
}

/* Every known field with a value of every type: refused or taken, never more. */
Test(api_request, no_type_of_any_field_does_harm)
{
    static const char *const fields[] = {
        "model", "messages", "temperature", "top_p", "top_k", "min_p", "presence_penalty",
        "frequency_penalty", "repetition_penalty", "typical_p", "xtc_probability", "xtc_threshold", "dry_base", "dry_multiplier",
        "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers", "repeat_last_n", "mirostat", "mirostat_tau",
        "mirostat_eta", "top_n_sigma", "max_tokens", "max_completion_tokens", "stop",
        "seed", "n", "stream", "stream_options", "logprobs", "top_logprobs", "user", "tools",
        "tool_choice", "functions", "function_call", "response_format", "audio", "modalities",
        "logit_bias", "stop_token_ids", "ignore_eos", "documents", "chat_template_kwargs",
        "add_generation_prompt", "continue_final_message", "priority", "cache_salt",
    };
    static const char *const values[] = { "\"x\"", "1", "true", "null", "[]", "{}", "[[]]", "[null]" };

    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        for (size_t j = 0; j < sizeof values / sizeof values[0]; j++) {
            CLEANUP(arena_free) struct arena *a = arena_new(0);
            BUF_LOCAL out = BUF_INIT;
            struct chat_request r;
            struct api_error e = { 0 };
            char body[256];

            /* The first of equal keys counts. */
            snprintf(body, sizeof body, "{\"%s\":%s,\"model\":\"m\"," MSGS "}", fields[i], values[j]);
            if (chat_request_parse(body, strlen(body), a, &r, &e) == 0)
                write_all(&r, 0, &out);
            else
                cr_expect(e.status == 400 && e.param[0], "%s", body);
            chat_request_fini(&r);
        }
}

/* docs/wire.md, part 4: a worker of version 1 knows texts only. */
Test(api_request, an_older_worker_gets_texts_and_is_not_asked_for_more)
{
    static const char parts[] = "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"name\":\"n\",\"content\":["
                                "{\"type\":\"text\",\"text\":\"one \"},{\"type\":\"text\",\"text\":\"two\"}]}]}";
    static const char *const more[] = {
        BODY(",\"documents\":[{}]"), BODY(",\"chat_template_kwargs\":{\"a\":1}"), BODY(",\"continue_final_message\":true"),
        BODY(",\"logit_bias\":{\"1\":1}"),
        BODY(",\"add_generation_prompt\":false"),
        "{\"model\":\"m\",\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{}]}]}",
    };
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    BUF_LOCAL out = BUF_INIT;
    struct chat_request r;
    struct api_error e = { 0 };

    cr_assert(zero(int, chat_request_parse(parts, strlen(parts), a, &r, &e)));
    cr_expect(r.parts && !r.in_full_only);
    chat_request_write(&r, CHAT_TEXTS_ONLY, &out);
    cr_expect(eq(str, out.data, "{\"messages\":[{\"role\":\"user\",\"content\":\"one two\"}]"));
    chat_request_fini(&r);
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++) {
        cr_assert(zero(int, chat_request_parse(more[i], strlen(more[i]), a, &r, &e)), "%s", e.message);
        cr_expect(r.in_full_only, "%s", more[i]);
        chat_request_fini(&r);
    }
}

Test(api_request, a_prompt_to_be_rendered_may_have_tools_and_no_model)
{
    static const char body[] = "{" MSGS ",\"tools\":[{\"type\":\"function\",\"x\":1.0}],\"temperature\":\"any\"}";
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    BUF_LOCAL out = BUF_INIT;
    struct chat_request r;
    struct api_error e = { 0 };

    cr_assert(zero(int, chat_request_parse_prompt(body, strlen(body), a, &r, &e)), "%s", e.message);
    cr_expect(eq(ptr, (void *)r.model, NULL));
    write_all(&r, 0, &out);
    cr_expect(eq(str, out.data, SENT(",\"tools\":[{\"type\":\"function\",\"x\":1.0}]")));
    chat_request_fini(&r);
}
