#include "base/arena.h"
#include "base/err.h"
#include "base/json.h"
#include "conv/chat.h"
#include "conv/conv.h"
#include "loaders/gguf.h"
#include "loaders/tokenizer.h"
#include "real_files.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* The prompt as text; NULL with err set when it is refused. In `a`. */
static char *rendered(const struct conv_template *t, const struct conv_message *m, size_t n, bool open,
                      struct arena *a, struct err *err)
{
    struct text_span *spans;
    size_t n_spans;
    char *text = arena_strdup(a, "");

    if (conv_render(t, m, n, open, a, &spans, &n_spans, err) < 0)
        return NULL;
    for (size_t i = 0; i < n_spans; i++) {
        cr_expect(gt(sz, spans[i].len, 0));
        text = arena_printf(a, "%s%.*s", text, (int)spans[i].len, spans[i].text);
    }
    return text;
}

static void prompt_is(const char *name, const struct conv_message *m, size_t n, bool open, const char *wanted)
{
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    struct err err = { 0 };
    char *text = rendered(conv_find(NULL, name), m, n, open, a, &err);

    cr_assert(ne(ptr, text, NULL), "%s", err.text);
    cr_expect(eq(str, text, (char *)wanted));
}

#define SMOL "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"

Test(conv, smollm2_brings_a_system_text_where_a_chat_has_none)
{
    const struct conv_message chat[] = { { "user", "hi" }, { "assistant", NULL }, { "user", "" } };
    const struct conv_message with[] = { { "system", "S" }, { "user", "q" }, { "system", "T" } };

    prompt_is("smollm2", chat, 3, true, SMOL "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n"
                                             "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n");
    prompt_is("smollm2", with, 3, false, "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nq<|im_end|>\n"
                                         "<|im_start|>system\nT<|im_end|>\n");
    prompt_is("smollm2", chat, 0, true, "<|im_start|>assistant\n");
    prompt_is("smollm2", chat, 0, false, "");
    prompt_is("chatml", chat, 1, true, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
}

Test(conv, what_people_wrote_is_not_trusted_and_stands_alone)
{
    const struct conv_message chat[] = {
        { "system", "<|im_start|>" }, { "user", "<|im_" }, { "user", "end|>" }, { "user", "" },
    };
    static const char *const wanted[] = {
        "<|im_start|>system\n", "<|im_start|>", "<|im_end|>\n<|im_start|>user\n", "<|im_",
        "<|im_end|>\n<|im_start|>user\n", "end|>",
        "<|im_end|>\n<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n",
    };
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    struct text_span *spans;
    size_t n;

    cr_assert(eq(int, conv_render(conv_find(NULL, "smollm2"), chat, 4, true, a, &spans, &n, NULL), 0));
    cr_assert(eq(sz, n, sizeof wanted / sizeof wanted[0]));
    for (size_t i = 0; i < n; i++) {
        cr_expect(eq(sz, spans[i].len, strlen(wanted[i])));
        cr_expect(eq(int, memcmp(spans[i].text, wanted[i], spans[i].len), 0), "span %zu", i);
        cr_expect(eq(int, spans[i].trusted, i % 2 == 0));
    }
}

Test(conv, a_role_that_a_template_lacks_is_named)
{
    static const char *const bad[] = { "tool", "function", "developer", "User", "" };
    CLEANUP(arena_free) struct arena *a = arena_new(0);

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const struct conv_message chat[] = { { "user", "hi" }, { bad[i], "x" } };
        struct err err = { 0 };
        char wanted[128];

        snprintf(wanted, sizeof wanted,
                 "the template smollm2 has no role '%s'; it has 'system', 'user' and 'assistant'", bad[i]);
        cr_expect(eq(ptr, rendered(conv_find(NULL, "smollm2"), chat, 2, true, a, &err), NULL));
        cr_expect(eq(int, err.code, -EINVAL));
        cr_expect(eq(str, err.text, wanted));
    }
}

Test(conv, an_arena_that_is_full_fails_the_render)
{
    CLEANUP(arena_free) struct arena *a = arena_new(256);
    const struct conv_message chat[] = { { "user", "hi" } };
    struct err err = { 0 };

    for (size_t limit = 0; limit < 2; limit++)
        cr_expect(eq(ptr, rendered(conv_find(NULL, "smollm2"), chat, 1, true, a, &err), NULL));
    cr_expect(eq(int, err.code, -ENOMEM));
}

/* The row that writes what a checkpoint's template writes. */
static const struct conv_template *row_like(const char *jinja)
{
    const struct chat_source source = { "default", jinja, strlen(jinja) };
    const struct chat_token bos = { "bos_token", "<s>" };
    CLEANUP(chat_free) struct chat_template *t = NULL;

    cr_assert(zero(int, chat_from_jinja("own", &source, 1, &bos, 1, NULL, &t, NULL)), "%s", jinja);
    return chat_same_row(t, NULL);
}

Test(conv, a_template_of_a_file_is_the_row_that_writes_the_same)
{
    static const char one_line[] =
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' "
        "+ '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
    static const char other_spelling[] =
        "{%- for message in messages -%}\n{{- \"<|im_start|>\" + message.role + \"\\n\" + message.content + "
        "\"<|im_end|>\\n\" -}}{%- endfor -%}{%- if add_generation_prompt -%}{{- \"<|im_start|>assistant\\n\" -}}{%- "
        "endif -%}";
    /* The row has no BOS of its own. */
    static const char with_bos[] =
        "{{ bos_token }}{% if messages[0].role == 'system' %}{{ messages[0].content }}{% set messages = messages[1:] %}{% else %}A chat between a "
        "curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, and polite answers to the user's "
        "questions.{% endif %} {% for m in messages %}{% if m.role == 'user' %}USER: {{ m.content }} {% else %}ASSISTANT: {{ m.content }}</s>"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}";
    static const char *const others[] = {
        "", "hello", "{{ messages }}", "{{ raise_exception('no') }}", "{{ range(10 ** 9) | join }}", "{% for message in messages %}{{ message.content | trim }}{% endfor %}",
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' "
        "+ '\n'}}{% endfor %}",
        /* a literal line between the tags is part of the prompt */
        "{% for message in messages %} {{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' "
        "+ '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    };

    static const char *const broken[] = { "{%", "{{ '", "{{ messages" };

    cr_expect(eq(ptr, (void *)row_like(one_line), (void *)conv_find(NULL, "chatml")));
    cr_expect(eq(ptr, (void *)row_like(other_spelling), (void *)conv_find(NULL, "chatml")));
    cr_expect(eq(ptr, (void *)row_like("{% for message in messages %}{{ message.content }}{% endfor %}"), (void *)conv_find(NULL, "raw")));
    cr_expect(eq(ptr, (void *)row_like(with_bos), (void *)conv_find(NULL, "vicuna_v1.1")));
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        cr_expect(eq(ptr, (void *)row_like(others[i]), NULL), "%s", others[i]);
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        const struct chat_source source = { "default", broken[i], strlen(broken[i]) };
        struct chat_template *t = NULL;

        cr_expect(eq(int, chat_from_jinja("own", &source, 1, NULL, 0, NULL, &t, NULL), -EINVAL), "%s", broken[i]);
        cr_expect(eq(ptr, t, NULL));
    }
}

/* A conv of the contract, as it would come over the wire. */
static struct conv_template *of_json(const char *json, struct err *err)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    struct conv_template *t = NULL;

    cr_assert(eq(int, json_parse(json, strlen(json), NULL, &tree, err), 0), "%s", err->text);
    conv_from_json(tree, &t, err);
    return t;
}

Test(conv, a_template_goes_to_json_and_back)
{
    static const char wanted[] =
        "{\"name\":\"vicuna_v1.1\",\"system_template\":\"{system_message}\",\"system_message\":\"A chat between a "
        "curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, and polite "
        "answers to the user's questions.\",\"system_message_vision\":\"\",\"roles\":[\"USER\",\"ASSISTANT\"],"
        "\"messages\":[],\"offset\":0,\"sep_style\":2,\"sep\":\" \",\"sep2\":\"</s>\",\"stop_str\":null,"
        "\"stop_token_ids\":null,\"max_image_size_mb\":null}";
    static const char rich[] =
        "{\"name\":\"n\",\"system_template\":\"<{system_message}>\",\"system_message\":\"S\",\"system_message_vision\":"
        "\"V\",\"roles\":[\"a\",\"b\"],\"messages\":[[\"a\",\"x\"],[\"b\",null]],\"offset\":2,\"sep_style\":1,\"sep\":"
        "null,\"sep2\":null,\"stop_str\":[\"p\",\"q\"],\"stop_token_ids\":[7,2],\"max_image_size_mb\":3.5}";
    BUF_LOCAL out = BUF_INIT;
    struct json_writer w = json_writer(&out);
    struct err err = { 0 };
    CLEANUP(conv_free) struct conv_template *t = NULL;
    const int32_t *ids;
    size_t n;

    conv_to_json(conv_find(NULL, "vicuna_v1.1"), &w);
    cr_expect(eq(str, (char *)buf_str(&out), (char *)wanted));
    t = of_json(rich, &err);
    cr_assert(ne(ptr, t, NULL), "%s", err.text);
    buf_clear(&out);
    w = json_writer(&out);
    conv_to_json(t, &w);
    cr_expect(eq(str, (char *)buf_str(&out), (char *)rich));
    cr_expect(eq(str, (char *)conv_stops(t)[1], "q"));
    cr_expect(eq(ptr, (void *)conv_stops(t)[2], NULL));
    ids = conv_stop_tokens(t, &n);
    cr_expect(n == 2 && ids[0] == 7);
    cr_expect(eq(ptr, (void *)conv_stops(conv_find(NULL, "smollm2"))[0], NULL));
}

#define FIELDS(style)                                                                              \
    "{\"name\":\"n\",\"system_template\":\"{system_message}\",\"system_message\":\"SYS\",\"roles\":[\"U\",\"A\"]," \
    "\"messages\":[],\"offset\":0,\"sep_style\":" style ",\"sep\":\"|\",\"sep2\":null,\"stop_str\":null,"              \
    "\"stop_token_ids\":null"

Test(conv, a_template_of_the_older_package_has_its_style_by_the_older_number)
{
    static const struct { const char *json, *prompt; } rows[] = {
        { FIELDS("9") "}", "SYS|\nU\nhi|\nA\n" },                               /* CHATML there */
        { FIELDS("10") ",\"system_message_vision\":\"\",\"max_image_size_mb\":null}", "SYS|\nU\nhi|\nA\n" },
        { FIELDS("16") "}", "SYSU\nhiA" },                                        /* CHATGLM3 there */
        { FIELDS("4") "}", "SYSUhi|A" },
    };
    const struct conv_message chat[] = { { "user", "hi" } };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        CLEANUP(arena_free) struct arena *a = arena_new(0);
        struct err err = { 0 };
        CLEANUP(conv_free) struct conv_template *t = of_json(rows[i].json, &err);

        cr_assert(ne(ptr, t, NULL), "%s", err.text);
        cr_expect(eq(str, rendered(t, chat, 1, true, a, &err), (char *)rows[i].prompt), "row %zu", i);
    }
}

/* A Python api server fills in the template that a worker announces, whatever its version. */
Test(conv, what_chatml_announces_renders_like_it)
{
    static const char wanted[] =
        "{\"name\":\"smollm2\",\"system_template\":\"<|im_start|>system\\n{system_message}<|im_end|>\\n\",\"system_message\":"
        "\"You are a helpful AI assistant named SmolLM, trained by Hugging Face\",\"system_message_vision\":\"\",\"roles\":"
        "[\"<|im_start|>user\\n\",\"<|im_start|>assistant\\n\"],\"messages\":[],\"offset\":0,\"sep_style\":4,\"sep\":"
        "\"<|im_end|>\\n\",\"sep2\":null,\"stop_str\":null,\"stop_token_ids\":null,\"max_image_size_mb\":null}";
    const struct conv_message chat[] = {
        { "system", "S" }, { "user", "hi" }, { "assistant", "yo" }, { "user", "q" },
    };
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    CLEANUP(conv_free) struct conv_template *t = of_json(wanted, NULL);
    BUF_LOCAL out = BUF_INIT;
    struct json_writer w = json_writer(&out);
    struct err err = { 0 };

    conv_to_json(conv_find(NULL, "smollm2"), &w);
    cr_expect(eq(str, (char *)buf_str(&out), (char *)wanted));
    for (size_t skip = 0; skip < 2; skip++)
        cr_expect(eq(str, rendered(t, chat + skip, 4 - skip, true, a, &err),
                     rendered(conv_find(NULL, "smollm2"), chat + skip, 4 - skip, true, a, &err)));
}

static void refused_json(const char *json, int code, const char *words)
{
    struct err err = { 0 };
    struct conv_template *t = of_json(json, &err);

    cr_expect(eq(ptr, t, NULL), "%s", json);
    cr_expect(eq(int, err.code, code));
    cr_expect(eq(str, err.text, (char *)words));
}

Test(conv, a_foreign_template_that_is_wrong_is_refused_by_field)
{
    refused_json("[]", -EINVAL, "a conversation template must be an object, but is an array");
    refused_json("{}", -EINVAL, "'name' is missing");
    refused_json("{\"name\":1}", -EINVAL, "'name' must be a string, but is a number");
    refused_json("{\"name\":\"y\"}", -EINVAL, "'sep_style' is missing");
    refused_json("{\"name\":\"y\",\"sep_style\":true}", -EINVAL, "'sep_style' must be an integer, but is a boolean");
    refused_json("{\"name\":\"y\",\"sep_style\":0}", -EINVAL, "'sep_style' 0 is none of the styles 1 to 23");
    refused_json("{\"name\":\"y\",\"sep_style\":99}", -EINVAL, "'sep_style' 99 is none of the styles 1 to 23");
    refused_json("{\"name\":\"y\",\"sep_style\":\"chatml\"}", -EINVAL,
                 "'sep_style' has no style 'chatml'; there are 'ADD_COLON_SINGLE', 'CHATML' and others");
    refused_json("{\"name\":\"y\",\"sep_style\":1}", -EINVAL, "'roles' must be a list of two strings");
    refused_json("{\"name\":\"y\",\"sep_style\":1,\"roles\":[\"a\"]}", -EINVAL, "'roles' must be a list of two strings");
    refused_json("{\"name\":\"y\",\"sep_style\":1,\"roles\":[\"a\",\"b\",3]}", -EINVAL,
                 "'roles' must be a list of two strings");
    refused_json("{\"name\":\"y\",\"sep_style\":1,\"roles\":[\"a\",\"b\",\"\",\"\",\"\",\"\",\"\",\"\",\"\"]}", -E2BIG,
                 "'roles' has more than 8 entries");
    refused_json("{\"name\":\"y\",\"sep_style\":1,\"roles\":[\"a\",\"b\"],\"messages\":[1]}", -EINVAL,
                 "'messages' must hold pairs of a role and a text or null");
    refused_json("{\"name\":\"y\",\"sep_style\":1,\"roles\":[\"a\",\"b\"],\"stop_str\":5}", -EINVAL,
                 "'stop_str' must be a string or a list of strings, but is a number");
    refused_json("{\"name\":\"y\",\"sep_style\":1,\"roles\":[\"a\",\"b\"],\"stop_str\":[5]}", -EINVAL,
                 "'stop_str' must be a string or a list of strings");
    refused_json("{\"name\":\"y\",\"sep_style\":1,\"roles\":[\"a\",\"b\"],\"stop_token_ids\":[-1]}", -EINVAL,
                 "'stop_token_ids' must hold token ids");
}

Test(conv, a_foreign_template_has_a_size)
{
    BUF_LOCAL json = BUF_INIT;
    struct err err = { 0 };

    buf_adds(&json, "{\"sep_style\":1,\"roles\":[\"a\",\"b\"],\"name\":\"");
    for (int i = 0; i < 2 << 20; i++)
        buf_addc(&json, 'x');
    buf_adds(&json, "\"}");
    cr_expect(eq(ptr, of_json(buf_str(&json), &err), NULL));
    cr_expect(eq(int, err.code, -E2BIG));
    refused_json("{\"name\":\"y\",\"sep_style\":1,\"roles\":[\"a\",\"b\"],\"system_template\":\""
                 "{system_message}{system_message}{system_message}{system_message}{system_message}\"}",
                 -E2BIG, "'system_template' has the system message more than 4 times");
    buf_clear(&json);
    buf_adds(&json, "{\"name\":\"y\",\"sep_style\":1,\"roles\":[\"a\",\"b\"],\"sep\":\"");
    for (int i = 0; i < 300; i++)
        buf_addc(&json, 'x');
    buf_adds(&json, "\"}");
    refused_json(buf_str(&json), -E2BIG, "'sep' has more than 256 bytes");
}

static void check_style(const cJSON *line, void *user)
{
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    CLEANUP(conv_free) struct conv_template *t = NULL;
    const struct conv_message chat[] = {
        { "system", "SYS" }, { "user", "hi" }, { "assistant", "yo" }, { "user", "q" },
    };
    const char *filled = NULL, *empty = NULL, *json;
    int64_t style = 0;
    struct err err = { 0 };

    cr_assert(json_get_int(line, "style", 1, 23, &style, NULL) == 0 &&
              json_get_string(line, "filled", &filled, NULL) == 0 &&
              json_get_string(line, "empty", &empty, NULL) == 0);
    json = arena_printf(a, "{\"name\":\"n\",\"roles\":[\"U\",\"A\"],\"sep\":\"|\",\"sep2\":\"#\",\"sep_style\":%d}",
                        (int)style);
    t = of_json(json, &err);
    cr_assert(ne(ptr, t, NULL), "%s", err.text);
    cr_expect(eq(str, rendered(t, chat, 4, true, a, &err), (char *)filled), "style %d", (int)style);
    cr_expect(eq(str, rendered(t, chat + 1, 3, true, a, &err), (char *)empty), "style %d", (int)style);
    ++*(size_t *)user;
}

Test(conv, every_style_renders_as_the_contract_says)
{
    size_t n = 0;

    real_lines(real_committed("conv/styles.jsonl"), check_style, &n);
    cr_expect(eq(sz, n, 23));
}

/* The template as the other side of the wire has it. */
static struct conv_template *over_the_wire(const struct conv_template *t)
{
    BUF_LOCAL out = BUF_INIT;
    struct json_writer w = json_writer(&out);

    conv_to_json(t, &w);
    return of_json(buf_str(&out), NULL);
}

/* A golden line's messages are a role's number and a text or null. An open turn at the end of the
 * assistant's is open_answer. */
static void check_prompt(const cJSON *line, void *user)
{
    static const char *const roles[] = { "user", "assistant" };
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    CLEANUP(conv_free) struct conv_template *there = NULL;
    const struct conv_template *t;
    struct conv_message chat[64];
    const cJSON *messages = NULL, *item;
    const char *name = NULL, *kase = NULL, *system = NULL, *prompt = NULL, *error = NULL;
    struct err err = { 0 };
    size_t n = 0;
    bool open = false;

    cr_assert(json_get_string(line, "template", &name, NULL) == 0 &&
              json_get_string(line, "case", &kase, NULL) == 0 &&
              json_get_array(line, "messages", &messages, NULL) == 0);
    t = conv_find(NULL, name);
    cr_assert(ne(ptr, (void *)t, NULL), "%s", name);
    if (json_get_string(line, "system", &system, NULL) == 0)
        chat[n++] = (struct conv_message){ "system", system };
    cJSON_ArrayForEach(item, messages)
    {
        int role = cJSON_GetArrayItem(item, 0)->valueint;
        const char *text = cJSON_GetArrayItem(item, 1)->valuestring;

        if (!item->next && role == 1 && !text)
            open = true;
        else
            chat[n++] = (struct conv_message){ roles[role], text };
    }
    ++*(size_t *)user;
    if (json_get_string(line, "prompt", &prompt, NULL) == 0) {
        there = over_the_wire(t);
        cr_expect(eq(str, rendered(t, chat, n, open, a, &err), (char *)prompt), "%s, %s", name, kase);
        cr_expect(eq(str, rendered(there, chat, n, open, a, &err), (char *)prompt), "%s, %s", name, kase);
    } else {
        json_get_string(line, "error_text", &error, NULL);
        cr_expect(eq(ptr, rendered(t, chat, n, open, a, &err), NULL));
        cr_expect(eq(str, err.text, (char *)error));
    }
}

Test(conv, prompts_of_every_template_here_and_over_the_wire)
{
    size_t n = 0;

    real_lines(real_committed("conv_prompts/1.jsonl"), check_prompt, &n);
    real_lines(real_committed("conv_prompts/2.jsonl"), check_prompt, &n);
    real_lines(real_committed("conv_prompts/3.jsonl"), check_prompt, &n);
    cr_expect(eq(sz, n, 102 * 24));
}

Test(conv, what_yuan2_strips_off_the_end_is_trusted_no_more_and_no_less)
{
    const struct conv_message chat[] = { { "user", "<eod>" }, { "assistant", "London<n" } };
    static const struct { const char *text; bool trusted; } wanted[] = {
        { "<eod>", false }, { "<n>", true }, { "Londo", false }, { "<sep>", true },
    };
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    struct text_span *spans;
    size_t n;

    cr_assert(eq(int, conv_render(conv_find(NULL, "yuan2"), chat, 2, true, a, &spans, &n, NULL), 0));
    cr_assert(eq(sz, n, 4));
    for (size_t i = 0; i < n; i++) {
        cr_expect(eq(str, arena_strndup(a, spans[i].text, spans[i].len), (char *)wanted[i].text));
        cr_expect(eq(int, spans[i].trusted, wanted[i].trusted));
    }
}

struct chats {
    const struct tokenizer *tokenizer;      /* NULL: compare text only */
    size_t n;
};

static void check_ids(const struct chats *c, const char *id, const struct text_span *spans, size_t n,
                      const cJSON *wanted)
{
    TOKEN_LIST_LOCAL ids = { 0 };

    for (size_t i = 0; i < n; i++)
        cr_assert(eq(int, tokenizer_encode(c->tokenizer, spans[i].text, spans[i].len, spans[i].trusted, &ids, NULL), 0));
    cr_expect(eq(sz, ids.n, (size_t)cJSON_GetArraySize(wanted)), "%s", id);
    for (size_t i = 0; i < ids.n && wanted; i++)
        cr_assert(eq(int, ids.ids[i], cJSON_GetArrayItem(wanted, (int)i)->valueint), "%s: token %zu", id, i);
}

static void check_chat(const cJSON *line, void *user)
{
    struct chats *c = user;
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    struct conv_message chat[64];
    const cJSON *messages = NULL, *ids = NULL, *item;
    const char *text = NULL, *id = NULL;
    struct text_span *spans;
    size_t n = 0, n_spans;

    if (json_get_array(line, "messages", &messages, NULL) != 0)
        return;
    cr_assert(json_get_string(line, "text", &text, NULL) == 0 && json_get_string(line, "id", &id, NULL) == 0 &&
              json_get_array(line, "ids", &ids, NULL) == 0);
    cJSON_ArrayForEach(item, messages)
    {
        json_get_string(item, "role", &chat[n].role, NULL);
        json_get_string(item, "content", &chat[n++].content, NULL);
    }
    cr_expect(eq(str, rendered(conv_find(NULL, "smollm2"), chat, n, true, a, NULL), (char *)text), "%s", id);
    if (c->tokenizer) {
        cr_assert(eq(int, conv_render(conv_find(NULL, "smollm2"), chat, n, true, a, &spans, &n_spans, NULL), 0));
        check_ids(c, id, spans, n_spans, ids);
    }
    c->n++;
}

Test(conv, smollm2_renders_the_golden_chats)
{
    struct chats c = { 0 };

    real_lines(real_golden("engine/real/smollm2.prompts.jsonl"), check_chat, &c);
    cr_expect(eq(sz, c.n, 26));
}

Test(conv, smollm2_chats_have_the_golden_ids_span_by_span_and_the_file_is_recognised)
{
    CLEANUP(gguf_close) struct gguf *g = NULL;
    CLEANUP(tokenizer_close) struct tokenizer *t = NULL;
    char text[4096];
    struct chats c;

    cr_assert(eq(int, gguf_open(real_smollm2(), &g, NULL), 0));
    cr_assert(eq(int, tokenizer_open(g, &t, NULL), 0));
    cr_assert(eq(int, gguf_text(g, "tokenizer.chat_template", text, sizeof text, NULL), 0));
    cr_expect(eq(ptr, (void *)row_like(text), (void *)conv_find(NULL, "smollm2")));
    c = (struct chats){ .tokenizer = t };
    real_lines(real_golden("engine/real/smollm2.prompts.jsonl"), check_chat, &c);
    cr_expect(eq(sz, c.n, 26));
}
