#include "base/arena.h"
#include "base/err.h"
#include "base/json.h"
#include "conv/conv.h"
#include "conv/dialogue.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <string.h>

/* Prompts and forms of all templates are compared by tests/tools/score_text/score_conv.c. */

static struct dialogue *of(const char *name)
{
    return dialogue_new(conv_find(NULL, name));
}

static void prompt_is(const struct dialogue *d, const char *wanted)
{
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    const char *prompt = NULL;
    struct err err = { 0 };

    cr_assert(eq(int, dialogue_prompt(d, a, &prompt, &err), 0), "%s", err.text);
    cr_expect(eq(str, (char *)prompt, (char *)wanted));
}

static void form_is(const struct dialogue *d, enum dialogue_form form, const char *wanted)
{
    BUF_LOCAL out = BUF_INIT;
    struct json_writer w = json_writer(&out);

    dialogue_write(d, form, &w);
    cr_expect(eq(str, (char *)buf_str(&out), (char *)wanted));
}

Test(dialogue, a_copy_changes_and_its_template_does_not)
{
    CLEANUP(dialogue_free) struct dialogue *d = of("rwkv"), *other = of("rwkv");
    char text[] = "q", role[] = "Bob";

    cr_assert(eq(sz, dialogue_n_messages(d), 2));
    cr_expect(eq(int, dialogue_set_last(d, "A"), 0));
    cr_expect(eq(int, dialogue_append(d, role, text), 0));
    memset(text, 'x', 1);
    memset(role, 'x', 3);
    cr_expect(eq(int, dialogue_append(d, dialogue_role(d, 1), NULL), 0));
    cr_expect(eq(int, dialogue_set_system(d, "S. "), 0));
    prompt_is(d, "S. Bob: hi\n\nAlice: A\n\nBob: q\n\nAlice:");
    cr_expect(eq(sz, dialogue_n_messages(other), 2));
    cr_expect(eq(str, (char *)dialogue_system(other, false), ""));
    cr_expect(eq(int, dialogue_set_last(d, "a"), 0));
    form_is(d, DIALOGUE_GRADIO, "[[\"q\",\"a\"]]");
    form_is(d, DIALOGUE_GEMINI, "[{\"role\":\"system\",\"content\":\"S. \"},{\"role\":\"user\",\"content\":\"q\"},"
                                "{\"role\":\"model\",\"content\":\"a\"}]");
}

Test(dialogue, roles_are_those_of_the_template)
{
    CLEANUP(dialogue_free) struct dialogue *d = of("llama2-chinese");

    cr_expect(eq(str, (char *)dialogue_role(d, 2), "System"));
    cr_expect(eq(ptr, (void *)dialogue_role(d, 3), NULL));
    cr_expect(eq(ptr, (void *)dialogue_role(d, 99), NULL));
    form_is(d, DIALOGUE_DICT, "{\"template_name\":\"llama2-chinese\",\"system_message\":\"\",\"roles\":[\"Human\","
                              "\"Assistant\",\"System\"],\"messages\":[],\"offset\":0}");
}

Test(dialogue, one_without_messages_has_no_last)
{
    CLEANUP(dialogue_free) struct dialogue *d = of("raw");

    cr_expect(eq(int, dialogue_set_last(d, "a"), -EINVAL));
    prompt_is(d, "");
    form_is(d, DIALOGUE_OPENAI, "[]");
    form_is(d, DIALOGUE_GRADIO, "[]");
}

Test(dialogue, those_like_a_model_file_close_their_turns)
{
    CLEANUP(dialogue_free) struct dialogue *d = of("chatml");

    dialogue_append(d, dialogue_role(d, 0), "q");
    dialogue_append(d, dialogue_role(d, 1), NULL);
    prompt_is(d, "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n");
    dialogue_set_system(d, "S");
    prompt_is(d, "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n");
}

Test(dialogue, a_template_without_a_style_has_no_prompt)
{
    CLEANUP(dialogue_free) struct dialogue *d = of("yandexgpt");
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    const char *prompt = NULL;
    struct err err = { 0 };

    cr_expect(eq(int, dialogue_prompt(d, a, &prompt, &err), -EINVAL));
    cr_expect(eq(str, err.text, "Invalid style: None"));
    dialogue_append(d, "user", "q");
    form_is(d, DIALOGUE_METAGEN, "[{\"role\":\"user\",\"text\":\"q\"}]");
}

Test(dialogue, texts_have_a_limit_in_all)
{
    CLEANUP(dialogue_free) struct dialogue *d = of("raw");
    CLEANUP(mem_free) char *text = malloc(DIALOGUE_MAX_BYTES / 2 + 1);

    memset(text, 'x', DIALOGUE_MAX_BYTES / 2);
    text[DIALOGUE_MAX_BYTES / 2] = 0;
    cr_expect(eq(int, dialogue_append(d, "", text), 0));
    cr_expect(eq(int, dialogue_append(d, "", text), -E2BIG));
    cr_expect(eq(int, dialogue_set_system(d, text), -E2BIG));
    cr_expect(eq(sz, dialogue_n_messages(d), 1));
    cr_expect(eq(int, dialogue_append(d, "", "small"), 0));
}
