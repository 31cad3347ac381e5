/* The input as a foreign worker's template, as the chat template of a model file, and as a template in a registry. */
#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "conv/conv.h"
#include "conv/dialogue.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void render(const struct conv_template *t)
{
    static const struct conv_message chat[] = {
        { "system", "S \n\n\r\n" }, { "user", " \xE2\x80\xA8hi\xFF " }, { "assistant", NULL }, { "user", "" },
    };
    CLEANUP(arena_free) struct arena *a = arena_new(1 << 24);
    BUF_LOCAL out = BUF_INIT;
    struct json_writer w = json_writer(&out);
    struct text_span *spans;
    size_t n;

    for (size_t from = 0; from < 4; from++)
        if (conv_render(t, chat + from, 4 - from, from % 2, a, &spans, &n, NULL) == 0)
            for (size_t i = 0; i < n; i++)
                buf_add(&out, spans[i].text, spans[i].len);
    buf_clear(&out);
    conv_to_json(t, &w);
    if (json_check(buf_str(&out), out.len, NULL, NULL) < 0)
        __builtin_trap();
}

/* A chat of the template, in every form. */
static void speak(const struct conv_template *t)
{
    CLEANUP(arena_free) struct arena *a = arena_new(1 << 24);
    CLEANUP(dialogue_free) struct dialogue *d = dialogue_new(t);
    static const char *const texts[] = { "hi", NULL, "", "<n>" };
    BUF_LOCAL out = BUF_INIT;
    const char *prompt;

    if (!d)
        return;
    for (size_t i = 0; i < 5; i++) {
        dialogue_prompt(d, a, &prompt, NULL);
        for (int form = DIALOGUE_OPENAI; form <= DIALOGUE_DICT; form++) {
            struct json_writer w = json_writer(&out);

            buf_clear(&out);
            dialogue_write(d, (enum dialogue_form)form, &w);
            if (json_check(buf_str(&out), out.len, NULL, NULL) < 0)
                __builtin_trap();
        }
        if (i < 4)
            dialogue_append(d, dialogue_role(d, i), texts[i]);
    }
}

static void add(const cJSON *row, const char *text, size_t size)
{
    CLEANUP(conv_registry_free) struct conv_registry *r = conv_registry_new();
    struct err err = { 0 };
    size_t len;

    if (!r)
        return;
    if (conv_registry_add(r, "raw", row, text, size, &err) < 0 && !err_is_set(&err))
        __builtin_trap();
    if (!conv_registry_jinja(r, "raw", &len) != err_is_set(&err))
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    CLEANUP(conv_free) struct conv_template *t = NULL;
    CLEANUP(mem_free) char *text = malloc(size + 1);
    struct err err = { 0 };

    memcpy(text, data, size);
    text[size] = 0;
    json_parse(text, size, NULL, &tree, NULL);
    add(tree, text, size);
    if (!tree)
        return 0;
    if (conv_from_json(tree, &t, &err) < 0) {
        if (!err_is_set(&err))
            __builtin_trap();
        return 0;
    }
    render(t);
    speak(t);
    return 0;
}
