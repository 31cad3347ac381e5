#include "conv/conv.h"

#include "base/arena.h"
#include "base/json.h"
#include "conv/template.h"

const char *conv_name(const struct conv_template *t)
{
    return t->name;
}

const char *conv_style(const struct conv_template *t)
{
    const struct style *s = conv_style_facts(t->style);

    return s ? s->name : NULL;
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

void conv_write_roles(const struct conv_template *t, struct json_writer *w)
{
    json_key(w, "roles");
    json_open(w, '[');
    for (size_t i = 0; i < CONV_MAX_ROLES && t->roles[i]; i++)
        json_str(w, t->roles[i]);
    json_close(w, ']');
}

void conv_write_pair(const char *role, const char *text, struct json_writer *w)
{
    json_open(w, '[');
    json_str(w, role);
    json_str(w, text);
    json_close(w, ']');
}

void conv_to_json(const struct conv_template *t, struct json_writer *w)
{
    json_open(w, '{');
    json_kstr(w, "name", t->name);
    json_kstr(w, "system_template", t->system_template);
    json_kstr(w, "system_message", t->system_message);
    json_kstr(w, "system_message_vision", t->system_message_vision ? t->system_message_vision : "");
    conv_write_roles(t, w);
    json_key(w, "messages");
    json_open(w, '[');
    for (size_t i = 0; i < t->n_messages; i++)
        conv_write_pair(t->messages[i].role, t->messages[i].text, w);
    json_close(w, ']');
    json_kint(w, "offset", (int64_t)t->offset);
    if (t->style == CONV_NO_STYLE)
        json_knull(w, "sep_style");
    else
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
