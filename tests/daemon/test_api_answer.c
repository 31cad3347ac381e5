#include "base/buf.h"
#include "daemon/api/api_error.h"
#include "daemon/api/catalog.h"
#include "daemon/api/chat_answer.h"
#include "daemon/api/models_answer.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

#define HEAD                                                                                       \
    "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":17,"            \
    "\"model\":\"a\\\"b\",\"choices\":["

Test(api_answer, a_stream_is_openais_byte_for_byte)
{
    BUF_LOCAL out = BUF_INIT;
    struct chat_usage usage = { 3, 4, -1 };
    struct chat_head h;

    chat_head_init(&h, "chatcmpl-1", "a\"b", 17, false);
    chat_chunk_role(&h, 0, &out);
    chat_chunk_text(&h, 12, "x\\n", 3, NULL, &out);
    chat_chunk_finish(&h, 0, "stop", &out);
    chat_chunk_usage(&h, &usage, &out);
    chat_event_done(&out);
    chat_event_ping(&out);
    cr_expect(eq(str, out.data,
                 HEAD "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                      "\"logprobs\":null,\"finish_reason\":null}]}\n\n"
                 HEAD "{\"index\":12,\"delta\":{\"content\":\"x\\n\"},\"logprobs\":null,"
                      "\"finish_reason\":null}]}\n\n"
                 HEAD "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\"}]}\n\n"
                 HEAD "],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4,"
                      "\"total_tokens\":7}}\n\n"
                      "data: [DONE]\n\n: ping\n\n"));
    chat_head_fini(&h);
}

Test(api_answer, chunks_say_usage_null_only_when_usage_was_asked_for)
{
    BUF_LOCAL out = BUF_INIT;
    struct chat_head h;

    chat_head_init(&h, "chatcmpl-1", "a\"b", 17, true);
    chat_chunk_text(&h, 0, "x", 1, "{\"token\":\"x\"}", &out);
    cr_expect(eq(str, out.data,
                 HEAD "{\"index\":0,\"delta\":{\"content\":\"x\"},\"logprobs\":{\"content\":"
                      "[{\"token\":\"x\"}],\"refusal\":null},\"finish_reason\":null}],"
                      "\"usage\":null}\n\n"));
    chat_head_fini(&h);
}

Test(api_answer, a_whole_answer_is_openais_byte_for_byte)
{
    BUF_LOCAL out = BUF_INIT;
    struct chat_usage usage = { 3, 4, 2 };
    const struct chat_choice choices[] = {
        { "a\\n", 3, NULL, "stop" }, { "", 0, "", "length" },
    };
    struct chat_head h;

    chat_head_init(&h, "chatcmpl-1", "m", 17, false);
    chat_answer_write(&h, choices, 2, &usage, "{\"queued_ms\":1}", &out);
    cr_expect(eq(str, out.data,
                 "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":17,\"model\":\"m\","
                 "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"a\\n\"},"
                 "\"logprobs\":null,\"finish_reason\":\"stop\"},{\"index\":1,\"message\":{\"role\":"
                 "\"assistant\",\"content\":\"\"},\"logprobs\":{\"content\":[],\"refusal\":null},"
                 "\"finish_reason\":\"length\"}],\"usage\":{\"prompt_tokens\":3,"
                 "\"completion_tokens\":4,\"total_tokens\":7,\"prompt_tokens_details\":{\"cached_tokens\":2}},\"timings\":{\"queued_ms\":1}}"));
    chat_head_fini(&h);
}

Test(api_answer, errors_have_openais_shape_and_a_type_by_status)
{
    static const struct { int status; const char *type; } rows[] = {
        { 400, "invalid_request_error" }, { 401, "authentication_error" },
        { 404, "not_found_error" },       { 413, "invalid_request_error" },
        { 429, "rate_limit_error" },      { 500, "server_error" },
        { 501, "not_supported_error" },   { 502, "server_error" },
        { 503, "unavailable_error" },
    };
    BUF_LOCAL out = BUF_INIT;
    struct api_error e = { 0 };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        cr_expect(eq(str, (char *)api_error_type(rows[i].status), (char *)rows[i].type));
    api_error_set(&e, 400, "invalid_value", "n", "'n' is \"%s\"", "odd");
    api_error_set(&e, 500, NULL, NULL, "the first one wins");
    api_error_write(&e, &out);
    cr_expect(eq(str, out.data,
                 "{\"error\":{\"message\":\"'n' is \\\"odd\\\"\",\"type\":\"invalid_request_error\","
                 "\"param\":\"n\",\"code\":\"invalid_value\"}}"));
    buf_clear(&out);
    e = (struct api_error){ 0 };
    api_error_set(&e, 503, NULL, NULL, "Loading model");
    api_error_write(&e, &out);
    cr_expect(eq(str, out.data, "{\"error\":{\"message\":\"Loading model\",\"type\":"
                                "\"unavailable_error\",\"param\":null,\"code\":503}}"));
}

Test(api_answer, models_carry_fastchats_permission_objects)
{
    const struct catalog_entry entries[] = { { "a", NULL, 2048, "loaded" }, { "org/b", NULL, 0, "loading" } };
    BUF_LOCAL out = BUF_INIT;
    char *id;

    models_write_list(entries, 2, 17, &out);
    while ((id = strstr(out.data, "modelperm-"))) {     /* the random part */
        cr_assert(eq(sz, strspn(id + 10, "23456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"), 22));
        memmove(id, id + 32, strlen(id + 32) + 1);
    }
#define PERM                                                                                       \
    "\"permission\":[{\"id\":\"\",\"object\":\"model_permission\",\"created\":17,"                 \
    "\"allow_create_engine\":false,\"allow_sampling\":true,\"allow_logprobs\":true,"               \
    "\"allow_search_indices\":true,\"allow_view\":true,\"allow_fine_tuning\":false,"               \
    "\"organization\":\"*\",\"group\":null,\"is_blocking\":false}]"
    cr_expect(eq(str, out.data,
                 "{\"object\":\"list\",\"data\":[{\"id\":\"a\",\"object\":\"model\",\"created\":17,"
                 "\"owned_by\":\"fastchat\",\"root\":\"a\",\"parent\":null," PERM
                 ",\"max_model_len\":2048,\"status\":{\"value\":\"loaded\"}},{\"id\":\"org/b\",\"object\":\"model\",\"created\":17,"
                 "\"owned_by\":\"fastchat\",\"root\":\"org/b\",\"parent\":null," PERM
                 ",\"status\":{\"value\":\"loading\"}}]}"));
}
