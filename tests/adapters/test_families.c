/* The families' texts against renders of the templates that their makers publish, where the golden data is there.
 *
 * A test of its own in tests/golden would need those templates' outputs, which hold other people's texts; what is
 * ours is tested in the last case.
 */
#include "adapters/family.h"

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/file.h"
#include "base/json.h"
#include "conv/chat.h"
#include "loaders/template_files.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char cases[] = " user_gen user_nogen sys_user_gen multi_gen trailing_assistant_nogen unicode two_users whitespace system_middle many_turns "
                            "think_false think_true custom_tokens ";

/* Published default system texts of half a page are not ours to write. */
#define LONG_DEFAULT " user_gen user_nogen trailing_assistant_nogen two_users think_true system_middle "
/* Gemma 2 refuses system messages; ours says them where Gemma 3 does. */
#define NO_SYSTEM " sys_user_gen multi_gen unicode think_false custom_tokens whitespace many_turns "
/* Nemo's published template writes texts of a tool's description as they are, which is no JSON where they have quotes or
 * line feeds; ours is JSON always. */
#define TOOLS " tools_gen tool_call_result agentic_long schema_rich tool_pending "

static const struct pair {
    const char *family, *published, *not_these, *also;
} pairs[] = {
    { "command-r", "CohereLabs-c4ai-command-r-v01", "" },
    { "deepseek-v3", "axolotl-deepseek_v3", "" },
    { "deepseek-r1", "deepseek-ai-DeepSeek-R1-Distill-Llama-8B.v2", "" },
    { "gemma-3", "google-gemma-2-2b-it", NO_SYSTEM },
    { "gemma-3", "trl-gemma3", "" },
    { "gpt-oss", "openai-gpt-oss-120b", "" },
    { "granite-3.0", "ibm-granite-granite-3.0-1b-a400m-instruct", "" },
    { "granite-3", "ibm-granite-granite-3.1-3b-a800m-instruct", "" },
    { "granite-3.3", "ibm-granite-granite-3.3-2B-Instruct", " think_true " },
    { "granite-4", "ibm-granite-granite-4.0", "", TOOLS " tool_calls_parallel_none " },
    { "llama-3.2", "meta-llama-Llama-3.2-3B-Instruct", "", TOOLS },
    { "llama-3.3", "meta-llama-Llama-3.1-8B-Instruct", "", TOOLS },
    { "llama-4", "axolotl-llama4", "" },
    { "mistral-nemo", "mistralai-Mistral-Nemo-Instruct-2407", "", " tool_call_result tool_pending " },
    { "mistral-small", "axolotl-mistral_v7_tekken", LONG_DEFAULT },
    { "mistral-small", "Mistral-Small-3.2-24B-Instruct-2506", LONG_DEFAULT, " tools_gen agentic_long schema_rich tool_calls_parallel_none " },
    { "olmo-2", "ollama-olmo2-7b", "" },
    { "phi-3", "microsoft-Phi-3.5-mini-instruct", "" },
    { "phi-4", "microsoft-phi-4", "" },
    { "phi-4-mini", "microsoft-Phi-4-mini-instruct", "" },
    { "qwen2.5", "Qwen-Qwen2.5-7B-Instruct", "", TOOLS },
    { "qwen3", "Qwen-Qwen3-0.6B", "", TOOLS },
    { "qwen3-instruct", "trl-qwen3_instruct_2507", "", TOOLS },
    { "qwen3-thinking", "unsloth-qwen3_thinking_template", "", TOOLS },
    { "smollm2", "ollama-smollm2-135m", "" },
    { "smollm3", "HuggingFaceTB-SmolLM3-3B.v2", LONG_DEFAULT },
};
enum { N_PAIRS = sizeof pairs / sizeof pairs[0] };

static bool listed(const char *list, const char *name)
{
    char word[128];

    snprintf(word, sizeof word, " %s ", name);
    return strstr(list, word) != NULL;
}

static time_t golden_now(void)
{
    struct tm tm = { .tm_year = 125, .tm_mon = 1, .tm_mday = 3, .tm_hour = 4, .tm_min = 5, .tm_sec = 6, .tm_isdst = -1 };

    return mktime(&tm);
}

/* The context but for what chat_input has of its own and the special tokens, which the checkpoint says. */
static struct template_files *split(const cJSON *context, struct buf *kwargs)
{
    struct json_writer w = json_writer(kwargs), t;
    BUF_LOCAL config = BUF_INIT;
    struct template_text text = { "tokenizer_config.json", NULL, 0 };
    struct template_files *files = NULL;
    const cJSON *item;

    t = json_writer(&config);
    json_open(&w, '{');
    json_open(&t, '{');
    cJSON_ArrayForEach(item, context) {
        size_t len = strlen(item->string);
        bool token = len > 6 && strcmp(item->string + len - 6, "_token") == 0;

        if (listed(" messages tools documents add_generation_prompt ", item->string))
            continue;
        json_key(token ? &t : &w, item->string);
        json_tree(token ? &t : &w, item);
    }
    json_close(&w, '}');
    json_close(&t, '}');
    text.text = buf_str(&config);
    text.len = config.len;
    cr_assert(zero(int, template_files_of_texts("golden", &text, 1, &files, NULL)));
    return files;
}

static void compare(const struct pair *p, const cJSON *record)
{
    const cJSON *context = json_find(record, "context");
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    CLEANUP(chat_free) struct chat_template *chat = NULL;
    CLEANUP(template_files_free) struct template_files *files = NULL;
    CLEANUP(mem_free) char *messages = cJSON_PrintUnformatted(json_find(context, "messages"));
    CLEANUP(mem_free) char *tools = json_find(context, "tools") ? cJSON_PrintUnformatted(json_find(context, "tools")) : NULL;
    BUF_LOCAL kwargs = BUF_INIT;
    struct chat_input in = { .messages = messages, .messages_len = strlen(messages), .now = golden_now() };
    struct chat_prompt got = { 0 };
    const char *want = NULL, *name = "", *param;
    struct err err = { 0 };
    int r;

    json_get_string(record, "case", &name, NULL);
    files = split(context, &kwargs);
    if (tools && listed(p->also ? p->also : "", name)) {
        in.tools = tools;
        in.tools_len = strlen(tools);
    }
    in.kwargs = buf_str(&kwargs);
    in.kwargs_len = kwargs.len;
    json_get_bool(context, "add_generation_prompt", &in.add_generation_prompt, NULL);
    json_get_string(record, "output", &want, NULL);
    cr_assert(zero(int, family_chat(family_named(p->family), files, NULL, NULL, &chat, &err)), "%s: %s", p->family, err_text(&err));
    r = chat_render(chat, &in, a, &got, &param, &err);
    if (!want)
        cr_expect(lt(int, r, 0), "%s, %s of %s: is no error", p->family, name, p->published);
    else
        cr_expect(r == 0 && strcmp(got.text, want) == 0, "%s, %s of %s:\n%s\nnot\n%s", p->family, name, p->published,
                  r < 0 ? err_text(&err) : got.text, want);
}

Test(families, conversations_are_written_as_published)
{
    const char *folder = getenv("FASTCHAT_GOLDEN"), *source = getenv("FASTCHAT_SOURCE");
    size_t found[N_PAIRS] = { 0 }, n = 0;
    BUF_LOCAL path = BUF_INIT;
    BUF_LOCAL text = BUF_INIT;

    if (folder)
        buf_printf(&path, "%s/jinja/renders.jsonl", folder);
    else
        buf_printf(&path, "%s/../shared/golden/jinja/renders.jsonl", source ? source : ".");
    if (file_read(buf_str(&path), (size_t)1 << 30, &text, NULL) < 0) {
        cr_skip_test("the golden data is not there");
        return;
    }
    for (char *line = text.data, *end; line && *line; line = end) {
        CLEANUP(json_delete) cJSON *record = NULL;
        const char *template = NULL, *name = NULL;

        end = strchr(line, '\n');
        if (end)
            *end++ = '\0';
        /* Most records are of other templates: looked at before they are parsed. */
        for (size_t i = 0; i < N_PAIRS; i++) {
            char start[160];

            snprintf(start, sizeof start, "\"template\":\"%s\"", pairs[i].published);
            if (!record && strstr(line, start))
                cr_assert(zero(int, json_parse(line, strlen(line), NULL, &record, NULL)));
        }
        if (!record)
            continue;
        json_get_string(record, "template", &template, NULL);
        json_get_string(record, "case", &name, NULL);
        for (size_t i = 0; i < N_PAIRS; i++)
            if (strcmp(template, pairs[i].published) == 0 && !listed(pairs[i].not_these, name) &&
                (listed(cases, name) || listed(pairs[i].also ? pairs[i].also : "", name))) {
                compare(&pairs[i], record);
                found[i]++;
                n++;
            }
    }
    for (size_t i = 0; i < N_PAIRS; i++)
        cr_expect(gt(sz, found[i], 5), "%s", pairs[i].published);
    printf("%zu records of %s\n", n, buf_str(&path));
}

/* What a family begins an answer with, and what of its variables a request may turn. */
static const char *rendered(const char *family, const char *kwargs, struct arena *a)
{
    static const char messages[] = "[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\"<think>\\nso\\n</think>\\n\\nHo\"},"
                                   "{\"role\":\"user\",\"content\":\"Hm\"}]";
    CLEANUP(chat_free) struct chat_template *chat = NULL;
    struct chat_input in = { .messages = messages, .messages_len = strlen(messages), .kwargs = kwargs, .kwargs_len = kwargs ? strlen(kwargs) : 0,
                             .add_generation_prompt = true, .now = golden_now() };
    struct chat_prompt got;
    const char *param;
    struct err err = { 0 };

    cr_assert(zero(int, family_chat(family_named(family), NULL, NULL, NULL, &chat, &err)), "%s", err_text(&err));
    cr_assert(zero(int, chat_render(chat, &in, a, &got, &param, &err)), "%s: %s", family, err_text(&err));
    return got.text;
}

Test(families, thinking_is_dropped_opened_or_turned_off)
{
    CLEANUP(arena_free) struct arena *a = arena_new(0);

    cr_expect(eq(str, (char *)rendered("qwen3", NULL, a),
                 "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHo<|im_end|>\n<|im_start|>user\nHm<|im_end|>\n<|im_start|>assistant\n"));
    cr_expect_not_null(strstr(rendered("qwen3", "{\"enable_thinking\": false}", a), "assistant\n<think>\n\n</think>\n\n"));
    cr_expect_not_null(strstr(rendered("qwen3-thinking", NULL, a), "<|im_start|>assistant\n<think>\n"));
    cr_expect_not_null(strstr(rendered("deepseek-r1", NULL, a), "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜>\n\nHo<｜end▁of▁sentence｜><｜User｜>Hm<｜Assistant｜><think>\n"));
    cr_expect_not_null(strstr(rendered("gpt-oss", "{\"reasoning_effort\": \"high\"}", a), "\nReasoning: high\n"));
    cr_expect_not_null(strstr(rendered("smollm3", "{\"enable_thinking\": false}", a), "Reasoning Mode: /no_think\n"));
}

Test(families, what_a_family_says_of_itself_comes_first)
{
    CLEANUP(arena_free) struct arena *a = arena_new(0);

    cr_expect_not_null(strstr(rendered("qwen2", NULL, a), "system\nYou are a helpful assistant.<|im_end|>"));
    cr_expect_not_null(strstr(rendered("llama-3.3", NULL, a), "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: "
                                                              "December 2023\nToday Date: 26 Jul 2024\n\n<|eot_id|>"));
    cr_expect_not_null(strstr(rendered("llama-3.2", NULL, a), "\nToday Date: 03 Feb 2025\n"));
    cr_expect_not_null(strstr(rendered("gemma-3", NULL, a), "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n"));
    cr_expect_not_null(strstr(rendered("granite-3.3", NULL, a), "Knowledge Cutoff Date: April 2024. Today's Date: February 03, 2025. You are Granite"));
}
