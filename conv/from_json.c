/* A template as a foreign worker describes it (contract 2.6). Everything is copied into an arena
 * of the template's own, which has a limit; what a prompt repeats (roles, separators, slots of the
 * system template) has a smaller one, so that a prompt grows with its messages and not with the
 * template. */
#include "conv/conv.h"

#include "base/arena.h"
#include "base/err.h"
#include "base/json.h"
#include "conv/template.h"

#include <errno.h>
#include <string.h>

enum { MAX_REPEATED = 256, MAX_SLOTS = 4, MAX_MESSAGES = 256, MAX_STOPS = 256 };

struct reader {
    const cJSON *object;
    const char *name;               /* NULL: that of the object */
    struct conv_template *t;
    struct err *err;
};

static int too_big(struct reader *r)
{
    return err_set(r->err, -E2BIG, "a conversation template has more than %d bytes", CONV_MAX_TEMPLATE);
}

static int copy(struct reader *r, const char *text, const char **ret)
{
    *ret = arena_strdup(r->t->owner, text);
    return *ret ? 0 : too_big(r);
}

/* absent NULL: null is a value */
static int read_text(struct reader *r, const char *key, bool needed, const char *absent, const char **ret)
{
    const char *text = NULL;
    int rc = json_get_string(r->object, key, &text, r->err);

    if (rc < 0)
        return rc;
    if (rc == JSON_ABSENT && needed)
        return err_set(r->err, -EINVAL, "'%s' is missing", key);
    *ret = absent;
    return text ? copy(r, text, ret) : 0;
}

/* The package that PyPI has (0.2.36) was made before the style with the number 8, and counts those behind
 * it from there. Its templates are told by their fields: all but the two that came still later. */
static bool has_old_numbers(const cJSON *object)
{
    static const char *const old[] = { "name", "system_template", "system_message", "roles", "messages", "offset",
                                       "sep_style", "sep", "sep2", "stop_str", "stop_token_ids" };

    for (size_t i = 0; i < sizeof old / sizeof old[0]; i++)
        if (!cJSON_GetObjectItemCaseSensitive(object, old[i]))
            return false;
    return !cJSON_GetObjectItemCaseSensitive(object, "system_message_vision") &&
           !cJSON_GetObjectItemCaseSensitive(object, "max_image_size_mb");
}

static int style_by_name(const char *name, enum conv_style *ret, struct err *err)
{
    for (int i = CONV_NO_STYLE + 1; i < CONV_N_STYLES; i++) {
        if (strcmp(conv_style_facts(i)->name, name) == 0) {
            *ret = (enum conv_style)i;
            return 0;
        }
    }
    return err_set(err, -EINVAL, "'sep_style' has no style '%.40s'; there are 'ADD_COLON_SINGLE', 'CHATML' and others",
                   name);
}

static int read_style(struct reader *r)
{
    const cJSON *style = cJSON_GetObjectItemCaseSensitive(r->object, "sep_style");
    int64_t number = 0;
    int rc;

    if (!style)
        return err_set(r->err, -EINVAL, "'sep_style' is missing");
    if (cJSON_IsString(style))
        return style_by_name(style->valuestring, &r->t->style, r->err);
    rc = json_get_int(r->object, "sep_style", INT32_MIN, INT32_MAX, &number, r->err);
    if (rc < 0)
        return rc;
    if (rc == JSON_ABSENT)
        return 0;                           /* null: CONV_NO_STYLE */
    if (number >= CONV_LLAMA3 && number < CONV_YUAN2 && !r->name && has_old_numbers(r->object))
        number++;
    if (!conv_style_facts(number))
        return err_set(r->err, -EINVAL, "'sep_style' %lld is none of the styles 1 to %d", (long long)number,
                       CONV_N_STYLES - 1);
    r->t->style = (enum conv_style)number;
    return 0;
}

static int read_roles(struct reader *r)
{
    const cJSON *roles = NULL, *role;
    size_t n = 0;
    int rc = json_get_array(r->object, "roles", &roles, r->err);

    if (rc < 0)
        return rc;
    if (cJSON_GetArraySize(roles) > CONV_MAX_ROLES)
        return err_set(r->err, -E2BIG, "'roles' has more than %d entries", CONV_MAX_ROLES);
    cJSON_ArrayForEach(role, roles)
    {
        if (!cJSON_IsString(role))
            break;
        if (copy(r, role->valuestring, &r->t->roles[n++]) < 0)
            return -E2BIG;
    }
    return n >= 2 && !role ? 0 : err_set(r->err, -EINVAL, "'roles' must be a list of two strings");
}

static int read_messages(struct reader *r)
{
    const cJSON *list, *item;
    struct conv_preset *m;
    int rc = json_get_array(r->object, "messages", &list, r->err);

    if (rc != 0)
        return rc < 0 ? rc : 0;
    if (cJSON_GetArraySize(list) > MAX_MESSAGES)
        return err_set(r->err, -E2BIG, "'messages' has more than %d entries", MAX_MESSAGES);
    r->t->messages = m = arena_array(r->t->owner, (size_t)cJSON_GetArraySize(list), sizeof *m);
    if (!m)
        return too_big(r);
    cJSON_ArrayForEach(item, list)
    {
        const cJSON *role = cJSON_IsArray(item) ? cJSON_GetArrayItem(item, 0) : NULL;
        const cJSON *text = cJSON_IsArray(item) ? cJSON_GetArrayItem(item, 1) : NULL;

        if (!cJSON_IsString(role) || !(cJSON_IsString(text) || cJSON_IsNull(text)))
            return err_set(r->err, -EINVAL, "'messages' must hold pairs of a role and a text or null");
        if (copy(r, role->valuestring, &m->role) < 0 ||
            (cJSON_IsString(text) && copy(r, text->valuestring, &m->text) < 0))
            return -E2BIG;
        m++;
        r->t->n_messages++;
    }
    return 0;
}

static int read_stops(struct reader *r)
{
    const cJSON *stop = json_find(r->object, "stop_str"), *item;
    const char **to;
    size_t n = 0;

    if (!stop)
        return 0;
    r->t->stops_list = cJSON_IsArray(stop);
    if (!cJSON_IsString(stop) && !cJSON_IsArray(stop))
        return err_set(r->err, -EINVAL, "'stop_str' must be a string or a list of strings, but is %s",
                       json_type_name(stop));
    if (cJSON_GetArraySize(stop) > MAX_STOPS)
        return err_set(r->err, -E2BIG, "'stop_str' has more than %d entries", MAX_STOPS);
    to = arena_array(r->t->owner, (size_t)cJSON_GetArraySize(stop) + 2, sizeof *to);
    if (!to)
        return too_big(r);
    r->t->stops = to;
    if (cJSON_IsString(stop))
        return copy(r, stop->valuestring, to);
    cJSON_ArrayForEach(item, stop)
    {
        if (!cJSON_IsString(item))
            return err_set(r->err, -EINVAL, "'stop_str' must be a string or a list of strings");
        if (copy(r, item->valuestring, &to[n++]) < 0)
            return -E2BIG;
    }
    return 0;
}

static int read_stop_tokens(struct reader *r)
{
    const cJSON *list, *item;
    int32_t *to;
    int rc = json_get_array(r->object, "stop_token_ids", &list, r->err);

    if (rc != 0)
        return rc < 0 ? rc : 0;
    if (cJSON_GetArraySize(list) > MAX_STOPS)
        return err_set(r->err, -E2BIG, "'stop_token_ids' has more than %d entries", MAX_STOPS);
    r->t->stop_tokens = to = arena_array(r->t->owner, (size_t)cJSON_GetArraySize(list) + 1, sizeof *to);
    if (!to)
        return too_big(r);
    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsNumber(item) || item->valuedouble < 0 || item->valuedouble > INT32_MAX ||
            item->valuedouble != (double)(int32_t)item->valuedouble)
            return err_set(r->err, -EINVAL, "'stop_token_ids' must hold token ids");
        to[r->t->n_stop_tokens++] = (int32_t)item->valuedouble;
    }
    return 0;
}

static int check_repeated(struct reader *r)
{
    const struct conv_template *t = r->t;
    const struct { const char *key, *text; } repeated[] = {
        { "roles", t->roles[0] }, { "roles", t->roles[1] }, { "sep", t->sep }, { "sep2", t->sep2 },
    };
    size_t n = 0;

    for (size_t i = 0; i < sizeof repeated / sizeof repeated[0]; i++)
        if (repeated[i].text && strlen(repeated[i].text) > MAX_REPEATED)
            return err_set(r->err, -E2BIG, "'%s' has more than %d bytes", repeated[i].key, MAX_REPEATED);
    for (const char *at = t->system_template; (at = strstr(at, CONV_SLOT)); at++)
        if (++n > MAX_SLOTS)
            return err_set(r->err, -E2BIG,
                           "'system_template' has the system message more than %d times", MAX_SLOTS);
    return 0;
}

static int read_all(struct reader *r)
{
    struct conv_template *t = r->t;
    int64_t offset = 0;
    int rc;

    rc = r->name ? copy(r, r->name, &t->name) : read_text(r, "name", true, NULL, &t->name);
    if (rc < 0 ||
        (rc = read_text(r, "system_template", false, CONV_SLOT, &t->system_template)) < 0 ||
        (rc = read_text(r, "system_message", false, "", &t->system_message)) < 0 ||
        (rc = read_text(r, "system_message_vision", false, "", &t->system_message_vision)) < 0 ||
        (rc = read_text(r, "sep", false, NULL, &t->sep)) < 0 ||
        (rc = read_text(r, "sep2", false, NULL, &t->sep2)) < 0 || (rc = read_style(r)) < 0 ||
        (rc = read_roles(r)) < 0 || (rc = read_messages(r)) < 0 || (rc = read_stops(r)) < 0 ||
        (rc = read_stop_tokens(r)) < 0 ||
        (rc = json_get_int(r->object, "offset", 0, MAX_MESSAGES, &offset, r->err)) < 0 ||
        (rc = json_get_number(r->object, "max_image_size_mb", &t->max_image_size_mb, r->err)) < 0)
        return rc;
    t->offset = (size_t)offset;
    return check_repeated(r);
}

int conv_read(const cJSON *object, const char *name, struct conv_template **ret, struct err *err)
{
    CLEANUP(arena_free) struct arena *a = arena_new(CONV_MAX_TEMPLATE);
    struct reader r = { .object = object, .name = name, .err = err };
    int rc;

    if (!cJSON_IsObject(object))
        return err_set(err, -EINVAL, "a conversation template must be an object, but is %s",
                       json_type_name(object));
    r.t = a ? arena_alloc(a, sizeof *r.t) : NULL;
    if (!r.t)
        return err_set(err, -ENOMEM, "no memory for a conversation template");
    r.t->owner = a;
    rc = read_all(&r);
    if (rc < 0)
        return rc;
    *ret = r.t;
    a = NULL;
    return 0;
}

int conv_from_json(const cJSON *object, struct conv_template **ret, struct err *err)
{
    return conv_read(object, NULL, ret, err);
}
