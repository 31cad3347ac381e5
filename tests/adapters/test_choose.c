#include "adapters/adapters.h"

#include "adapters/family.h"
#include "base/err.h"
#include "conv/chat.h"
#include "conv/conv.h"
#include "loaders/template_files.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static struct template_files *files_of(const char *config)
{
    const struct template_text text = { "tokenizer_config.json", config, strlen(config) };
    struct template_files *t = NULL;

    cr_assert(zero(int, template_files_of_texts("m", &text, 1, &t, NULL)));
    return t;
}

/* What is chosen, as "why name wire". */
static const char *chosen(struct template_question q, struct template_choice *ret)
{
    static const char *const whys[] = { "configured", "own", "family", "adapter", "default" };
    static char text[300];
    struct template_choice c = { 0 };
    struct err err = { 0 };

    if (adapters_choose(&q, &c, &err) < 0) {
        snprintf(text, sizeof text, "error: %s", err_text(&err));
        return text;
    }
    snprintf(text, sizeof text, "%s %s %s", whys[c.why], chat_name(c.chat), chat_wire(c.chat) ? conv_name(chat_wire(c.chat)) : "-");
    chat_free(c.chat);
    c.chat = NULL;
    if (ret)
        *ret = c;
    return text;
}

#define CHOSEN(...) ((char *)chosen((struct template_question){ __VA_ARGS__ }, NULL))

Test(choose, a_configured_name_wins_over_all)
{
    CLEANUP(template_files_free) struct template_files *own = files_of("{\"chat_template\": \"own\"}");

    cr_expect(eq(str, CHOSEN(.configured = "vicuna_v1.1", .path = "/m/qwen3.gguf", .files = own), "configured vicuna_v1.1 vicuna_v1.1"));
    cr_expect(eq(str, CHOSEN(.configured = "qwen3", .files = own), "configured qwen3 chatml"));
    cr_expect(eq(str, CHOSEN(.configured = "vicuna_v1.0"), "error: there is no chat template 'vicuna_v1.0'; did you mean 'vicuna_v1.1'?"));
    cr_expect(eq(str, CHOSEN(.configured = "gema-3"), "error: there is no chat template 'gema-3'; did you mean 'gemma-3'?"));
    cr_expect(eq(str, CHOSEN(.configured = "nothing-like-it"), "error: there is no chat template 'nothing-like-it'"));
}

Test(choose, a_jinja_text_that_an_administrator_added_is_found_by_name)
{
    CLEANUP(conv_registry_free) struct conv_registry *r = conv_registry_new();

    cr_assert(zero(int, conv_registry_add(r, "house", NULL, "{{ messages }}", 14, NULL)));
    cr_expect(eq(str, CHOSEN(.configured = "house", .registry = r), "configured house -"));
}

Test(choose, what_an_administrator_added_takes_the_place_of_a_familys_and_a_row)
{
    CLEANUP(conv_registry_free) struct conv_registry *r = conv_registry_new();
    CLEANUP(chat_free) struct chat_template *t = NULL;
    size_t len;

    cr_assert(zero(int, conv_registry_add(r, "qwen3", NULL, "{{ 1 }}", 7, NULL)));
    cr_assert(ge(int, conv_registry_add(r, "vicuna_v1.1", NULL, "{{ 2 }}", 7, NULL), 0));
    cr_expect(eq(str, CHOSEN(.path = "/m/Qwen3-8B", .registry = r), "family qwen3 -"));
    cr_expect(eq(str, CHOSEN(.path = "/m/vicuna-7b", .registry = r), "adapter vicuna_v1.1 -"));
    cr_assert(zero(int, family_chat(family_named("qwen3"), NULL, r, NULL, &t, NULL)));
    cr_expect(eq(str, (char *)chat_jinja_text(t, NULL, &len), "{{ 1 }}"));
}

Test(choose, the_checkpoints_own_wins_over_its_name)
{
    CLEANUP(template_files_free) struct template_files *own = files_of(
        "{\"chat_template\": [{\"name\": \"default\", \"template\": \"d\"}, {\"name\": \"tool_use\", \"template\": \"t\"}]}");
    struct template_choice c;

    cr_expect(eq(str, (char *)chosen((struct template_question){ .path = "/m/vicuna-7b", .files = own, .configured = "auto" }, &c),
                 "own tokenizer_config.json vicuna_v1.1"));
    cr_expect(eq(str, c.reason, "its own, tokenizer_config.json; also tool_use"));
    cr_expect(eq(str, CHOSEN(.path = "/m/Qwen3-8B", .files = own), "own tokenizer_config.json chatml"), "the family's row");
}

Test(choose, one_that_does_not_compile_is_an_error_that_says_what_to_do)
{
    CLEANUP(template_files_free) struct template_files *own = files_of("{\"chat_template\": \"{% if\"}");
    const char *text = CHOSEN(.path = "/m/vicuna-7b", .files = own);

    cr_expect_not_null(strstr(text, "the checkpoint's own chat template (`template` in the configuration sets another): "), "%s", text);
    cr_expect(eq(str, CHOSEN(.configured = "vicuna_v1.1", .files = own), "configured vicuna_v1.1 vicuna_v1.1"));
}

Test(choose, a_family_is_known_by_name_architecture_or_end)
{
    CLEANUP(template_files_free) struct template_files *end = files_of("{\"eos_token\": \"<|im_end|>\"}");

    cr_expect(eq(str, CHOSEN(.path = "/m/Qwen3-8B-Q4_K_M.gguf"), "family qwen3 chatml"));
    cr_expect(eq(str, CHOSEN(.path = "/m/model.gguf", .model_name = "phi-4"), "family phi-4 one_shot"));
    cr_expect(eq(str, CHOSEN(.path = "/m/Llama-3.3-70B-Instruct/model.gguf"), "family llama-3.3 meta-llama-3.1"));
    cr_expect(eq(str, CHOSEN(.path = "/m/model.gguf", .architecture = "olmo2"), "family olmo-2 tulu"));
    cr_expect(eq(str, CHOSEN(.path = "/m/model.gguf", .architecture = "llama"), "default one_shot one_shot"));
    cr_expect(eq(str, CHOSEN(.path = "/m/model.gguf", .files = end), "family chatml chatml"));
    cr_expect(eq(str, CHOSEN(.path = "/m/SmolLM2-135M"), "family smollm2 smollm2"));
}

/* Names of the checkpoints as their makers publish them. */
Test(choose, published_names_find_their_family)
{
    static const struct { const char *path, *family; } names[] = {
        { "meta-llama/Llama-3.2-1B-Instruct", "llama-3.2" },
        { "meta-llama/Llama-3.3-70B-Instruct", "llama-3.3" },
        { "meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama-4" },
        { "Qwen/Qwen2-7B-Instruct", "qwen2" },
        { "Qwen/Qwen2.5-Coder-32B-Instruct", "qwen2.5" },
        { "Qwen/Qwen3-0.6B", "qwen3" },
        { "Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-instruct" },
        { "Qwen/Qwen3-4B-Thinking-2507", "qwen3-thinking" },
        { "google/gemma-2-9b-it", "gemma-3" },
        { "google/gemma-3-27b-it", "gemma-3" },
        { "microsoft/Phi-3-mini-4k-instruct", "phi-3" },
        { "microsoft/Phi-3.5-mini-instruct", "phi-3" },
        { "microsoft/phi-4", "phi-4" },
        { "microsoft/Phi-4-mini-instruct", "phi-4-mini" },
        { "mistralai/Mistral-Nemo-Instruct-2407", "mistral-nemo" },
        { "mistralai/Mistral-Small-24B-Instruct-2501", "mistral-small" },
        { "mistralai/Mistral-Small-3.1-24B-Instruct-2503", "mistral-small" },
        { "deepseek-ai/DeepSeek-V3", "deepseek-v3" },
        { "deepseek-ai/DeepSeek-R1", "deepseek-r1" },
        { "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "deepseek-r1" },
        { "CohereForAI/c4ai-command-r-v01", "command-r" },
        { "HuggingFaceTB/SmolLM2-1.7B-Instruct", "smollm2" },
        { "HuggingFaceTB/SmolLM3-3B", "smollm3" },
        { "ibm-granite/granite-3.0-8b-instruct", "granite-3.0" },
        { "ibm-granite/granite-3.1-8b-instruct", "granite-3" },
        { "ibm-granite/granite-3.3-8b-instruct", "granite-3.3" },
        { "ibm-granite/granite-4.0-h-small", "granite-4" },
        { "allenai/OLMo-2-1124-7B-Instruct", "olmo-2" },
        { "openai/gpt-oss-20b", "gpt-oss" },
    };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const struct family *f = family_of_name(strrchr(names[i].path, '/') + 1);

        cr_expect(f && strcmp(f->name, names[i].family) == 0, "%s: %s", names[i].path, f ? f->name : "none");
    }
    cr_expect(eq(str, CHOSEN(.path = "lmsys/vicuna-7b-v1.5"), "adapter vicuna_v1.1 vicuna_v1.1"));
    cr_expect(eq(str, CHOSEN(.path = "mistralai/Mistral-7B-Instruct-v0.2"), "adapter mistral mistral"));
    cr_expect(eq(str, CHOSEN(.path = "teknium/OpenHermes-2.5-Mistral-7B"),
                 "adapter OpenHermes-2.5-Mistral-7B OpenHermes-2.5-Mistral-7B"));
}

Test(choose, every_family_makes_a_template)
{
    for (size_t i = 0; family_at(i); i++) {
        const struct family *f = family_at(i);
        CLEANUP(chat_free) struct chat_template *t = NULL;
        struct err err = { 0 };

        cr_expect(zero(int, family_chat(f, NULL, NULL, NULL, &t, &err)), "%s: %s", f->name, err_text(&err));
        cr_expect(eq(ptr, (void *)family_named(f->name), (void *)f), "%s: two rows of this name", f->name);
        cr_expect(f->row == NULL || conv_find(NULL, f->row), "%s: its row is none of the registry", f->name);
    }
}

Test(choose, nothing_known_is_the_contracts_last_word)
{
    struct template_choice c;

    cr_expect(eq(str, CHOSEN(.path = NULL), "default one_shot one_shot"));
    cr_expect(eq(str, CHOSEN(.path = "/m/some-peft.gguf"), "default one_shot one_shot"), "no adapter, whatever it is called");
    chosen((struct template_question){ .path = "/m/model.gguf" }, &c);
    cr_expect_not_null(strstr(c.reason, "nothing is known of /m/model.gguf"));
}

Test(choose, an_adapters_base_model_decides)
{
    char top[] = "/tmp/fastchat-choose-XXXXXX", path[64];
    FILE *f;

    cr_assert_not_null(mkdtemp(top));
    snprintf(path, sizeof path, "%s/adapter_config.json", top);
    f = fopen(path, "w");
    fputs("{\"base_model_name_or_path\": \"Qwen/Qwen2.5-7B-Instruct\"}", f);
    fclose(f);
    cr_expect(eq(str, CHOSEN(.path = top), "family qwen2.5 qwen-7b-chat"));
    f = fopen(path, "w");
    fputs("{\"base_model_name_or_path\": \"lmsys/vicuna-7b-v1.5\"}", f);
    fclose(f);
    cr_expect(eq(str, CHOSEN(.path = top), "adapter vicuna_v1.1 vicuna_v1.1"));
    f = fopen(path, "w");
    fputs("[", f);
    fclose(f);
    cr_expect_not_null(strstr(CHOSEN(.path = top), "adapter_config.json: "));
    remove(path);
    rmdir(top);
}
