#include "loaders/template_files.h"

#include "base/buf.h"
#include "base/err.h"
#include "gguf_build.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static const char *template_of(const struct template_files *t, const char *name)
{
    size_t n;
    const struct template_file *f = template_files_all(t, &n);

    for (size_t i = 0; i < n; i++)
        if (strcmp(f[i].name, name) == 0)
            return f[i].text;
    return "(none)";
}

static const char *token_of(const struct template_files *t, const char *name)
{
    size_t n;
    const struct template_token *k = template_files_tokens(t, &n);

    for (size_t i = 0; i < n; i++)
        if (strcmp(k[i].name, name) == 0)
            return k[i].text;
    return "(none)";
}

static size_t n_templates(const struct template_files *t)
{
    size_t n;

    template_files_all(t, &n);
    return n;
}

/* Pairs of a name and a text, NULL behind them. */
static int texts_of(const char *const *pairs, struct template_files **ret, struct err *err)
{
    struct template_text texts[8];
    size_t n = 0;

    for (; *pairs; pairs += 2)
        texts[n++] = (struct template_text){ pairs[0], pairs[1], strlen(pairs[1]) };
    return template_files_of_texts("m", texts, n, ret, err);
}

#define FILES(...) ((const char *const[]){ __VA_ARGS__, NULL })
#define CONFIG "tokenizer_config.json"

static struct template_files *files(const char *const *pairs)
{
    struct template_files *t = NULL;
    struct err err = { 0 };

    cr_assert(zero(int, texts_of(pairs, &t, &err)), "%s", err_text(&err));
    return t;
}

Test(template_files, a_folder_that_says_nothing_has_no_template)
{
    CLEANUP(template_files_free) struct template_files *t = files(FILES("README.md", "x"));

    cr_expect(zero(sz, n_templates(t)));
    cr_expect(zero(ptr, (void *)template_files_architecture(t)));
}

Test(template_files, a_list_gives_templates_by_name_the_default_first)
{
    CLEANUP(template_files_free) struct template_files *t = files(FILES(
        CONFIG, "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"r\"}, {\"name\": \"default\", \"template\": \"d\"},"
                "{\"name\": \"rag\", \"template\": \"r2\"}, {\"name\": \"empty\", \"template\": \"\"}]}"));
    size_t n;
    const struct template_file *f = template_files_all(t, &n);

    cr_assert(eq(sz, n, 2));
    cr_expect(eq(str, (char *)f[0].name, "default"));
    cr_expect(eq(str, (char *)f[0].from, CONFIG));
    cr_expect(eq(str, (char *)f[1].text, "r2"));
}

Test(template_files, files_of_jinja_go_before_what_the_configuration_says)
{
    CLEANUP(template_files_free) struct template_files *t = files(FILES(
        CONFIG, "{\"chat_template\": [{\"name\": \"default\", \"template\": \"old\"}, {\"name\": \"tool_use\", \"template\": \"old\"}]}",
        "chat_template.jinja", "new\n", "additional_chat_templates/rag.jinja", "r", "additional_chat_templates/.jinja", "x",
        "additional_chat_templates/x.txt", "x", "chat_template.json", "{\"chat_template\": \"j\"}"));

    cr_expect(eq(sz, n_templates(t), 2));
    cr_expect(eq(str, (char *)template_of(t, "default"), "new\n"));
    cr_expect(eq(str, (char *)template_of(t, "rag"), "r"));
}

Test(template_files, named_files_alone_keep_the_default_of_the_configuration)
{
    CLEANUP(template_files_free) struct template_files *t = files(FILES(
        CONFIG, "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"old\"}, {\"name\": \"default\", \"template\": \"d\"}]}",
        "additional_chat_templates/tool_use.jinja", "t"));

    cr_expect(eq(sz, n_templates(t), 2));
    cr_expect(eq(str, (char *)template_of(t, "default"), "d"));
    cr_expect(eq(str, (char *)template_of(t, "tool_use"), "t"));
}

Test(template_files, the_file_of_a_processor_counts_where_nothing_else_speaks)
{
    CLEANUP(template_files_free) struct template_files *t = files(FILES("chat_template.json", "{\"chat_template\": \"j\"}")), *u = NULL;

    cr_expect(eq(str, (char *)template_of(t, "default"), "j"));
    u = files(FILES("chat_template.json", "{\"chat_template\": \"j\"}", CONFIG, "{\"chat_template\": \"c\"}"));
    cr_expect(eq(str, (char *)template_of(u, "default"), "c"));
}

Test(template_files, special_tokens_are_texts_or_objects_with_content)
{
    CLEANUP(template_files_free) struct template_files *t = files(FILES(
        CONFIG, "{\"bos_token\": {\"content\": \"<s>\", \"lstrip\": false}, \"eos_token\": \"</s>\", \"pad_token\": null, \"add_bos_token\": true,"
                "\"_token\": \"x\", \"extra_special_tokens\": {\"image_token\": \"<img>\"}}",
        "special_tokens_map.json", "{\"eos_token\": \"<|end|>\", \"additional_special_tokens\": [\"<a>\"]}",
        "config.json", "{\"model_type\": \"qwen2\"}"));

    cr_expect(eq(str, (char *)token_of(t, "bos_token"), "<s>"));
    cr_expect(eq(str, (char *)token_of(t, "eos_token"), "<|end|>"), "the map goes before");
    cr_expect(eq(str, (char *)token_of(t, "image_token"), "<img>"));
    cr_expect(eq(str, (char *)token_of(t, "pad_token"), "(none)"));
    cr_expect(eq(str, (char *)token_of(t, "add_bos_token"), "(none)"));
    cr_expect(eq(str, (char *)token_of(t, "_token"), "(none)"));
    cr_expect(eq(str, (char *)template_files_architecture(t), "qwen2"));
}

Test(template_files, a_configuration_with_its_added_tokens_needs_no_map)
{
    CLEANUP(template_files_free) struct template_files *t = files(FILES(
        CONFIG, "{\"eos_token\": \"</s>\", \"added_tokens_decoder\": {}}", "special_tokens_map.json", "{\"eos_token\": \"<|end|>\"}"));

    cr_expect(eq(str, (char *)token_of(t, "eos_token"), "</s>"));
}

Test(template_files, what_is_wrong_is_named)
{
    static const struct { const char *file, *text, *why; } bad[] = {
        { CONFIG, "{", "m: " CONFIG ": byte 1" },
        { CONFIG, "[]", "m: " CONFIG ": is an array" },
        { CONFIG, "{\"chat_template\": 7}", CONFIG ": chat_template is a number" },
        { CONFIG, "{\"chat_template\": [{\"name\": \"x\"}]}", "has no name or no template" },
        { CONFIG, "{\"chat_template\": [7]}", "has no name or no template" },
        { CONFIG, "{\"chat_template\": [{\"name\": \"\", \"template\": \"x\"}]}", "the name of a chat template" },
        { CONFIG, "{\"bos_token\": {\"content\": 7}}", CONFIG ": bos_token" },
        { "special_tokens_map.json", "7", "special_tokens_map.json: is a number" },
        { "chat_template.json", "{\"chat_template\": {}}", "chat_template.json: chat_template is an object" },
        { "chat_template.jinja", "x\xff", "chat_template.jinja: the chat template is no text: byte 1" },
        { "config.json", "", "config.json: " },
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct template_files *t = NULL;
        struct err err = { 0 };

        cr_expect(eq(int, texts_of(FILES(bad[i].file, bad[i].text), &t, &err), -EINVAL), "%s", bad[i].text);
        cr_expect_not_null(strstr(err.text, bad[i].why), "%s: %s", bad[i].text, err.text);
    }
}

Test(template_files, a_template_above_the_limit_is_refused)
{
    char *text = malloc(TEMPLATE_MAX_TEXT + 2);
    struct template_files *t = NULL;
    struct err err = { 0 };

    memset(text, 'x', TEMPLATE_MAX_TEXT + 1);
    text[TEMPLATE_MAX_TEXT + 1] = '\0';
    cr_expect(eq(int, texts_of(FILES("chat_template.jinja", text), &t, &err), -E2BIG));
    text[TEMPLATE_MAX_TEXT] = '\0';
    cr_assert(zero(int, texts_of(FILES("chat_template.jinja", text), &t, NULL)));
    template_files_free(t);
    free(text);
}

/* ---- folders ---- */

static char top[] = "/tmp/fastchat-template-XXXXXX";

static void put(const char *name, const char *text)
{
    char path[256];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", top, name);
    f = fopen(path, "w");
    cr_assert_not_null(f);
    fputs(text, f);
    fclose(f);
}

Test(template_files, a_folder_is_read_with_its_named_templates)
{
    char path[256], command[128];
    struct template_files *t = NULL;
    struct err err = { 0 };

    cr_assert_not_null(mkdtemp(top));
    put("tokenizer_config.json", "{\"eos_token\": \"</s>\"}");
    put("chat_template.jinja", "d");
    snprintf(path, sizeof path, "%s/additional_chat_templates", top);
    mkdir(path, 0700);
    put("additional_chat_templates/tool_use.jinja", "t");
    put("additional_chat_templates/notes.txt", "n");
    cr_assert(zero(int, template_files_open(top, &t, &err)), "%s", err_text(&err));
    cr_expect(eq(sz, n_templates(t), 2));
    cr_expect(eq(str, (char *)template_of(t, "tool_use"), "t"));
    cr_expect(eq(str, (char *)token_of(t, "eos_token"), "</s>"));
    template_files_free(t);

    put("config.json", "{");
    cr_expect(eq(int, template_files_open(top, &t, &err), -EINVAL));
    cr_expect_not_null(strstr(err.text, top));
    snprintf(command, sizeof command, "rm -r '%s'", top);
    cr_assert(zero(int, system(command)));
    err_clear(&err);
    cr_expect(eq(int, template_files_open(top, &t, &err), -ENOENT));
}

/* ---- GGUF ---- */

static int of_gguf(struct gguf_build *b, struct template_files **ret, struct err *err)
{
    BUF_LOCAL file = BUF_INIT;
    CLEANUP(gguf_close) struct gguf *g = NULL;

    gguf_build_finish(b, &file);
    cr_assert(zero(int, gguf_open_memory("m.gguf", file.data, file.len, &g, err)), "%s", err_text(err));
    return template_files_of_gguf(g, ret, err);
}

Test(template_files, gguf_metadata_has_templates_and_tokens)
{
    static const char *const tokens[] = { "<unk>", "<s>", "</s>", "[PAD]" };
    struct gguf_build b = GGUF_BUILD_INIT;
    CLEANUP(template_files_free) struct template_files *t = NULL;
    struct err err = { 0 };

    gguf_build_str(&b, "general.architecture", "llama");
    gguf_build_str(&b, "general.name", "Some Model");
    gguf_build_str(&b, "tokenizer.ggml.model", "llama");
    gguf_build_strs(&b, "tokenizer.ggml.tokens", tokens, 4);
    gguf_build_u32(&b, "tokenizer.ggml.padding_token_id", 3);
    gguf_build_u32(&b, "tokenizer.ggml.mask_token_id", 4);
    gguf_build_str(&b, "tokenizer.chat_template.tool_use", "t");
    gguf_build_str(&b, "tokenizer.chat_template", "d");
    gguf_build_str(&b, "tokenizer.chat_templates_of_somebody", "x");
    cr_assert(zero(int, of_gguf(&b, &t, &err)), "%s", err_text(&err));
    cr_expect(eq(sz, n_templates(t), 2));
    cr_expect(eq(str, (char *)template_of(t, "default"), "d"));
    cr_expect(eq(str, (char *)template_of(t, "tool_use"), "t"));
    cr_expect(eq(str, (char *)token_of(t, "bos_token"), "<s>"), "a SentencePiece vocabulary's own");
    cr_expect(eq(str, (char *)token_of(t, "pad_token"), "[PAD]"));
    cr_expect(eq(str, (char *)token_of(t, "mask_token"), "(none)"), "an id beyond the tokens");
    cr_expect(eq(str, (char *)template_files_architecture(t), "llama"));
    cr_expect(eq(str, (char *)template_files_model_name(t), "Some Model"));
}

Test(template_files, a_template_that_is_no_text_is_refused)
{
    struct gguf_build b = GGUF_BUILD_INIT;
    struct template_files *t = NULL;
    struct err err = { 0 };

    gguf_build_u32(&b, "tokenizer.chat_template", 7);
    cr_expect(eq(int, of_gguf(&b, &t, &err), -EINVAL));
    err_clear(&err);
    gguf_build_str(&b, "tokenizer.chat_template", "\xff");
    cr_expect(eq(int, of_gguf(&b, &t, &err), -EINVAL));
    cr_expect_not_null(strstr(err.text, "m.gguf: tokenizer.chat_template: "), "%s", err.text);
}
