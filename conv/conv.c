#include "conv/conv.h"

#include "base/arena.h"
#include "base/json.h"
#include "conv/template.h"

#include <string.h>

/* ChatML in the words of a simpler style, which writes the same: a style was put in before CHATML
 * once, so that a Python api server takes its number for another one, and this one's for what it is. */
#define CHATML                                                                                     \
    .system_template = "<|im_start|>system\n" CONV_SLOT "<|im_end|>\n",                            \
    .roles = { "<|im_start|>user\n", "<|im_start|>assistant\n" }, .style = CONV_NO_COLON_SINGLE,   \
    .sep = "<|im_end|>\n", .as_file = true

/* Sorted by name. */
static const struct conv_template rows[] = {
    { .name = "chatml", .system_message = "", CHATML },
    { .name = "raw", .system_template = CONV_SLOT, .system_message = "", .roles = { "", "" },
      .style = CONV_NO_COLON_SINGLE, .sep = "" },
    { .name = "smollm2",
      .system_message = "You are a helpful AI assistant named SmolLM, trained by Hugging Face", CHATML },
    { .name = "vicuna_v1.1", .system_template = CONV_SLOT,
      .system_message = "A chat between a curious user and an artificial intelligence assistant. "
                        "The assistant gives helpful, detailed, and polite answers to the user's questions.",
      .roles = { "USER", "ASSISTANT" }, .style = CONV_ADD_COLON_TWO, .sep = " ", .sep2 = "</s>" },
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

const struct conv_template *conv_find(const char *name)
{
    for (size_t i = 0; i < N_ROWS; i++)
        if (strcmp(rows[i].name, name) == 0)
            return &rows[i];
    return NULL;
}

const char *conv_name(const struct conv_template *t)
{
    return t->name;
}

static const char *names[N_ROWS + 1];

__attribute__((constructor)) static void fill_names(void)
{
    for (size_t i = 0; i < N_ROWS; i++)
        names[i] = rows[i].name;
}

const char *const *conv_names(void)
{
    return names;
}

const char *const *conv_stops(const struct conv_template *t)
{
    static const char *const none[] = { NULL };

    return t->stops ? t->stops : none;
}

const int32_t *conv_stop_tokens(const struct conv_template *t, size_t *ret_n)
{
    *ret_n = t->n_stop_tokens;
    return t->stop_tokens;
}

static void write_stops(const struct conv_template *t, struct json_writer *w)
{
    const char *const *stops = conv_stops(t);

    json_key(w, "stop_str");
    if (!t->stops_list) {
        json_str(w, stops[0]);
        return;
    }
    json_open(w, '[');
    for (; *stops; stops++)
        json_str(w, *stops);
    json_close(w, ']');
}

static void write_stop_tokens(const struct conv_template *t, struct json_writer *w)
{
    json_key(w, "stop_token_ids");
    if (!t->stop_tokens) {
        json_null(w);
        return;
    }
    json_open(w, '[');
    for (size_t i = 0; i < t->n_stop_tokens; i++)
        json_int(w, t->stop_tokens[i]);
    json_close(w, ']');
}

void conv_to_json(const struct conv_template *t, struct json_writer *w)
{
    json_open(w, '{');
    json_kstr(w, "name", t->name);
    json_kstr(w, "system_template", t->system_template);
    json_kstr(w, "system_message", t->system_message);
    json_kstr(w, "system_message_vision", t->system_message_vision ? t->system_message_vision : "");
    json_key(w, "roles");
    json_open(w, '[');
    json_str(w, t->roles[0]);
    json_str(w, t->roles[1]);
    json_close(w, ']');
    json_key(w, "messages");
    json_open(w, '[');
    for (size_t i = 0; i < t->n_messages; i++) {
        json_open(w, '[');
        json_str(w, t->messages[i].role);
        json_str(w, t->messages[i].text);
        json_close(w, ']');
    }
    json_close(w, ']');
    json_kint(w, "offset", (int64_t)t->offset);
    json_kint(w, "sep_style", t->style);
    json_kstr(w, "sep", t->sep);
    json_kstr(w, "sep2", t->sep2);
    write_stops(t, w);
    write_stop_tokens(t, w);
    if (t->max_image_size_mb > 0)
        json_knum(w, "max_image_size_mb", t->max_image_size_mb);
    else
        json_knull(w, "max_image_size_mb");
    json_close(w, '}');
}

void conv_free(struct conv_template *t)
{
    if (t)
        arena_free(t->owner);           /* which holds t too */
}
