/* score_conv.c - every template's prompts, message lists and other forms, and its fields. */
#include "base/arena.h"
#include "base/err.h"
#include "base/json.h"
#include "conv/conv.h"
#include "conv/dialogue.h"
#include "score.h"

#include <stdio.h>
#include <string.h>

static const char *string_of(const cJSON *record, const char *key)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(record, key));
}

/* "raw/one_user" */
static const char *record_name(const cJSON *record, const char *what, char out[256])
{
    snprintf(out, 256, "%s/%s%s%s", string_of(record, "template"), string_of(record, "case"), what ? " " : "",
             what ? what : "");
    return out;
}

static struct dialogue *begin(struct score *s, const cJSON *record, const char *name)
{
    const cJSON *message;
    const char *template = string_of(record, "template"), *system = string_of(record, "system");
    const struct conv_template *t = template ? conv_find(NULL, template) : NULL;
    struct dialogue *d = t ? dialogue_new(t) : NULL;

    if (!d) {
        score_fail(s, name, "no such template");
        return NULL;
    }
    if (system)
        dialogue_set_system(d, system);
    cJSON_ArrayForEach(message, cJSON_GetObjectItemCaseSensitive(record, "messages"))
        dialogue_append(d, dialogue_role(d, (size_t)cJSON_GetArrayItem(message, 0)->valueint),
                        cJSON_GetStringValue(cJSON_GetArrayItem(message, 1)));
    return d;
}

static void prompt(void *user, const cJSON *record, const char *raw, size_t len)
{
    struct score *s = user;
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    char id[256];
    const char *name = record_name(record, NULL, id), *have = NULL, *error = string_of(record, "error_text");
    CLEANUP(dialogue_free) struct dialogue *d = begin(s, record, name);
    BUF_LOCAL want = BUF_INIT;
    struct err err = { 0 };
    int rc;

    if (!d)
        return;
    rc = dialogue_prompt(d, a, &have, &err);
    if (error && rc < 0)
        score_compare(s, name, error, strlen(error), err.text, strlen(err.text));
    else if (error || rc < 0)
        score_fail(s, name, "%s", rc < 0 ? err_text(&err) : "rendered where there is an error");
    else if (score_string(raw, len, "prompt", &want))
        score_compare(s, name, buf_str(&want), want.len, have, strlen(have));
    else
        score_fail(s, name, "no prompt in the record");
}

/* Equal as JSON; 0 and a reason of its own when it is not JSON at all. */
static bool same_form(const struct dialogue *d, enum dialogue_form form, const cJSON *want, struct buf *out)
{
    struct json_writer w = json_writer(out);
    CLEANUP(json_delete) cJSON *have = NULL;

    buf_clear(out);
    dialogue_write(d, form, &w);
    return json_parse(buf_str(out), out->len, NULL, &have, NULL) == 0 && cJSON_Compare(have, want, true);
}

static void openai(void *user, const cJSON *record, const char *raw, size_t len)
{
    struct score *s = user;
    char id[256];
    const char *name = record_name(record, NULL, id);
    CLEANUP(dialogue_free) struct dialogue *d = begin(s, record, name);
    BUF_LOCAL out = BUF_INIT;

    if (d && same_form(d, DIALOGUE_OPENAI, cJSON_GetObjectItemCaseSensitive(record, "openai"), &out))
        score_pass(s);
    else if (d)
        score_fail(s, name, "%s", buf_str(&out));
}

static bool same_system(const struct dialogue *d, const cJSON *record, const char **ret_what)
{
    static const char *const keys[] = { "system_message_text", "system_message_vision" };

    for (int vision = 0; vision < 2; vision++) {
        const char *want = string_of(record, keys[vision]);

        *ret_what = keys[vision];
        if (!want || strcmp(want, dialogue_system(d, vision)) != 0)
            return false;
    }
    return true;
}

static void other(void *user, const cJSON *record, const char *raw, size_t len)
{
    static const struct { const char *key; enum dialogue_form form; } forms[] = {
        { "openai_vision", DIALOGUE_OPENAI_VISION }, { "anthropic_vision", DIALOGUE_ANTHROPIC_VISION },
        { "gemini", DIALOGUE_GEMINI }, { "metagen", DIALOGUE_METAGEN },
        { "gradio_chatbot", DIALOGUE_GRADIO }, { "dict", DIALOGUE_DICT },
    };
    struct score *s = user;
    char id[256];
    const char *name = record_name(record, NULL, id), *what;
    CLEANUP(dialogue_free) struct dialogue *d = begin(s, record, name);
    BUF_LOCAL out = BUF_INIT;

    if (!d)
        return;
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        if (!same_form(d, forms[i].form, cJSON_GetObjectItemCaseSensitive(record, forms[i].key), &out)) {
            score_fail(s, record_name(record, forms[i].key, id), "%s", buf_str(&out));
            return;
        }
    }
    if (same_system(d, record, &what))
        score_pass(s);
    else
        score_fail(s, record_name(record, what, id), "differs");
}

/* A row's fields as it goes over the wire, and once more after it came back. */
static void fields(struct score *s, const cJSON *row)
{
    const char *name = string_of(row, "name"), *style = string_of(row, "sep_style");
    const struct conv_template *t = conv_find(NULL, name);
    CLEANUP(json_delete) cJSON *want = cJSON_Duplicate(row, true), *have = NULL, *again = NULL;
    CLEANUP(conv_free) struct conv_template *back = NULL;
    BUF_LOCAL out = BUF_INIT;
    BUF_LOCAL out_again = BUF_INIT;
    struct json_writer w = json_writer(&out), w_again = json_writer(&out_again);

    cJSON_DeleteItemFromObject(want, "index");
    cJSON_DeleteItemFromObject(want, "sep_style");
    cJSON_AddItemToObject(want, "sep_style", cJSON_DetachItemFromObject(want, "sep_style_value"));
    if (!t || (style == NULL) != (conv_style(t) == NULL) || (style && strcmp(style, conv_style(t)) != 0)) {
        score_fail(s, name, "no such template, or of another style");
        return;
    }
    conv_to_json(t, &w);
    if (json_parse(buf_str(&out), out.len, NULL, &have, NULL) == 0 && conv_from_json(have, &back, NULL) == 0)
        conv_to_json(back, &w_again);
    if (back && json_parse(buf_str(&out_again), out_again.len, NULL, &again, NULL) == 0 &&
        cJSON_Compare(have, want, true) && cJSON_Compare(again, want, true))
        score_pass(s);
    else
        score_fail(s, name, "%s", buf_str(&out));
}

void score_conv(struct score *s, const char *folder)
{
    size_t len;
    CLEANUP(mem_free) char *text = score_file(folder, "conv_templates.json", &len);
    CLEANUP(json_delete) cJSON *tree = NULL;
    const cJSON *row;
    struct err err = { 0 };

    score_begin(s, "conv/prompts");
    score_lines(folder, "conv_prompts.jsonl", prompt, s);
    score_begin(s, "conv/openai");
    score_lines(folder, "conv_openai.jsonl", openai, s);
    score_begin(s, "conv/other");
    score_lines(folder, "conv_other.jsonl", other, s);
    if (!text)
        return;
    score_begin(s, "templates");
    if (json_parse(text, len, NULL, &tree, &err) < 0)
        score_die("conv_templates.json: %s", err_text(&err));
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(tree, "templates"))
        fields(s, row);
}
