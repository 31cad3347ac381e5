#include "daemon/worker/settings.h"

#include "base/arena.h"
#include "base/err.h"
#include "base/json.h"
#include "conv/conv.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

static const struct { const char *key; size_t offset; double min, max; } floats[] = {
    { "dry_base", offsetof(struct sample_params, dry_base), 0, 100 },
    { "dry_multiplier", offsetof(struct sample_params, dry_multiplier), 0, 100 },
    { "frequency_penalty", offsetof(struct sample_params, frequency_penalty), -2, 2 },
    { "min_p", offsetof(struct sample_params, min_p), 0, 1 },
    { "mirostat_eta", offsetof(struct sample_params, mirostat_eta), 0, 100 },
    { "mirostat_tau", offsetof(struct sample_params, mirostat_tau), 0, 100 },
    { "presence_penalty", offsetof(struct sample_params, presence_penalty), -2, 2 },
    { "repetition_penalty", offsetof(struct sample_params, repetition_penalty), 0.01, 100 },
    { "temperature", offsetof(struct sample_params, temperature), 0, 100 },
    { "top_n_sigma", offsetof(struct sample_params, top_n_sigma), -1, 100 },
    { "top_p", offsetof(struct sample_params, top_p), 0, 1 },
    { "typical_p", offsetof(struct sample_params, typical_p), 0, 1 },
    { "xtc_probability", offsetof(struct sample_params, xtc_probability), 0, 1 },
    { "xtc_threshold", offsetof(struct sample_params, xtc_threshold), 0, 1 },
};

static const struct { const char *key; size_t offset; int64_t min, max; } integers[] = {
    { "dry_allowed_length", offsetof(struct sample_params, dry_allowed_length), 0, INT32_MAX },
    { "dry_penalty_last_n", offsetof(struct sample_params, dry_penalty_last_n), -1, INT32_MAX },
    { "mirostat", offsetof(struct sample_params, mirostat), 0, 2 },
    { "repeat_last_n", offsetof(struct sample_params, repeat_last_n), -1, INT32_MAX },
    { "top_k", offsetof(struct sample_params, top_k), -1, INT32_MAX },
};

int sampling_read(const cJSON *obj, struct sample_params *p, const char **ret_key, struct err *err)
{
    int r;

    for (size_t i = 0; i < sizeof floats / sizeof floats[0]; i++) {
        double v;

        *ret_key = floats[i].key;
        r = json_get_number(obj, floats[i].key, &v, err);
        if (r < 0)
            return r;
        if (r == JSON_ABSENT)
            continue;
        if (v < floats[i].min || v > floats[i].max)
            return err_set(err, -EINVAL, "'%s' must be between %g and %g, but is %g", floats[i].key,
                           floats[i].min, floats[i].max, v);
        *(float *)((char *)p + floats[i].offset) = (float)v;
    }
    for (size_t i = 0; i < sizeof integers / sizeof integers[0]; i++) {
        int64_t v;

        *ret_key = integers[i].key;
        r = json_get_int(obj, integers[i].key, integers[i].min, integers[i].max, &v, err);
        if (r < 0)
            return r;
        if (r == 0)
            *(int32_t *)((char *)p + integers[i].offset) = (int32_t)v;
    }
    return 0;
}

static int get_text(const cJSON *obj, const char *key, bool needed, const char **ret, struct err *err)
{
    int r = json_get_string(obj, key, ret, err);

    if (r == JSON_ABSENT)
        return needed ? err_set(err, -EINVAL, "'%s' is missing", key) : 0;
    return r;
}

static int get_u32(const cJSON *obj, const char *key, int64_t min, uint32_t *ret, struct err *err)
{
    int64_t v = *ret;
    int r = json_get_int(obj, key, min, UINT32_MAX, &v, err);

    *ret = (uint32_t)v;
    return r < 0 ? r : 0;
}

static int get_texts(const cJSON *obj, const char *key, struct arena *a, const char *const **ret,
                     size_t *ret_n, struct err *err)
{
    const cJSON *list = NULL, *item;
    const char **texts;
    size_t n = 0;
    int r = json_get_array(obj, key, &list, err);

    if (r < 0)
        return r;
    texts = arena_array(a, list ? (size_t)cJSON_GetArraySize(list) + 1 : 1, sizeof texts[0]);
    if (!texts)
        return err_set(err, -ENOMEM, "no memory for '%s'", key);
    cJSON_ArrayForEach(item, list) {
        if (!cJSON_IsString(item))
            return err_set(err, -EINVAL, "'%s' must hold strings, but holds %s", key,
                           json_type_name(item));
        texts[n++] = item->valuestring;
    }
    *ret = texts;
    *ret_n = n;
    return 0;
}

/* One of `names`, which are in the order of an enum; *ret is what is meant where it is absent. */
static int get_choice(const cJSON *obj, const char *key, const char *const *names, size_t n, unsigned *ret, struct err *err)
{
    const char *name = names[*ret];
    int r = get_text(obj, key, false, &name, err);

    for (size_t i = 0; r >= 0 && i < n; i++)
        if (strcmp(names[i], name) == 0) {
            *ret = (unsigned)i;
            return 0;
        }
    return r < 0 ? r : err_set(err, -EINVAL, "'%s' is unknown: %.40s", key, name);
}

/* Absent: whoever started this process would not know what to do with them. */
static int get_share(const cJSON *model, enum weights_want *ret, struct err *err)
{
    static const char *const names[] = {
        [WEIGHTS_PRIVATE] = "never", [WEIGHTS_FREE] = "free", [WEIGHTS_SHARED] = "always",
    };
    unsigned choice = WEIGHTS_PRIVATE;
    int r = get_choice(model, "share_weights", names, sizeof names / sizeof names[0], &choice, err);

    *ret = (enum weights_want)choice;
    return r;
}

static int get_prefix(const cJSON *model, enum engine_prefix *ret, struct err *err)
{
    static const char *const names[] = {
        [ENGINE_PREFIX_SALTED] = "per-key", [ENGINE_PREFIX_SHARED] = "shared", [ENGINE_PREFIX_OFF] = "off",
    };
    unsigned choice = ENGINE_PREFIX_SALTED;
    int r = get_choice(model, "prefix_cache", names, sizeof names / sizeof names[0], &choice, err);

    *ret = (enum engine_prefix)choice;
    return r;
}

static int read_model(const cJSON *model, struct arena *a, struct settings *s, struct err *err)
{
    const cJSON *sampling = NULL;
    const char *key;
    int64_t kv_tokens = 0;
    int r;

    if ((r = get_text(model, "name", true, &s->name, err)) < 0 ||
        (r = get_texts(model, "aliases", a, &s->aliases, &s->n_aliases, err)) < 0 ||
        (r = get_text(model, "path", true, &s->path, err)) < 0 ||
        (r = get_text(model, "device", false, &s->device, err)) < 0 ||
        (r = get_text(model, "isa", false, &s->isa, err)) < 0 ||
        (r = get_text(model, "kv_type", false, &s->kv_type, err)) < 0 ||
        (r = get_prefix(model, &s->prefix, err)) < 0 ||
        (r = get_text(model, "speculative", false, &s->speculative, err)) < 0 ||
        (r = get_text(model, "draft_model", false, &s->draft_model, err)) < 0 ||
        (r = get_u32(model, "draft_tokens", 1, &s->draft_tokens, err)) < 0 ||
        (r = get_text(model, "template", false, &s->chat_template, err)) < 0 ||
        (r = get_u32(model, "replica", 0, &s->replica, err)) < 0 ||
        (r = get_u32(model, "context", 0, &s->context, err)) < 0 ||
        (r = get_u32(model, "threads", 0, &s->threads, err)) < 0 ||
        (r = get_u32(model, "parallel", 1, &s->parallel, err)) < 0 ||
        (r = get_u32(model, "queue", 0, &s->queue, err)) < 0 ||
        (r = json_get_int(model, "kv_tokens", 0, (int64_t)1 << 40, &kv_tokens, err)) < 0 ||
        (r = get_share(model, &s->share_weights, err)) < 0 ||
        (r = json_get_object(model, "sampling", &sampling, err)) < 0 ||
        (r = sampling_read(sampling, &s->sample, &key, err)) < 0)
        return r;
    s->kv_tokens = (uint64_t)kv_tokens;
    return sampling ? get_u32(sampling, "max_tokens", 1, &s->max_tokens, err) : 0;
}

static int read_template(const cJSON *item, struct conv_registry *registry, struct err *err)
{
    const cJSON *row = NULL;
    const char *name = NULL, *jinja = NULL;
    int r;

    if ((r = get_text(item, "name", true, &name, err)) < 0 ||
        (r = json_get_object(item, "row", &row, err)) < 0 ||
        (r = get_text(item, "jinja", false, &jinja, err)) < 0)
        return r;
    if (!row && !jinja)
        return err_set(err, -EINVAL, "'row' is missing");
    r = conv_registry_add(registry, name, row, jinja, jinja ? strlen(jinja) : 0, err);
    return r < 0 ? r : 0;
}

static int read_templates(const cJSON *tree, struct settings *s, struct err *err)
{
    CLEANUP(conv_registry_free) struct conv_registry *registry = NULL;
    const cJSON *list = NULL, *item;
    int r = json_get_array(tree, "templates", &list, err), i = 0;

    if (r != 0)
        return r < 0 ? r : 0;
    registry = conv_registry_new();
    if (!registry)
        return err_set(err, -ENOMEM, "no memory for 'templates'");
    cJSON_ArrayForEach(item, list) {
        r = read_template(item, registry, err);
        if (r < 0) {
            err_place(err, "templates[%d]", i);
            return r;
        }
        i++;
    }
    s->registry = STEAL(registry);
    return 0;
}

void settings_fini(struct settings *s)
{
    conv_registry_free(s->registry);
    s->registry = NULL;
}

int settings_read(const cJSON *tree, struct arena *a, struct settings *ret, struct err *err)
{
    struct settings s = { .device = "cpu", .chat_template = "auto", .parallel = 1, .queue = 64,
                          .sample = sample_defaults };
    const cJSON *model = NULL;
    int r;

    if ((r = get_text(tree, "worker_name", true, &s.worker_name, err)) < 0 ||
        (r = get_text(tree, "unix", false, &s.unix_path, err)) < 0 ||
        (r = get_texts(tree, "controllers", a, &s.controllers, &s.n_controllers, err)) < 0 ||
        (r = json_get_object(tree, "model", &model, err)) < 0)
        return r;
    if (!model)
        return err_set(err, -EINVAL, "'model' is missing");
    r = read_model(model, a, &s, err);
    if (r < 0) {
        err_place(err, "model");
        return r;
    }
    r = read_templates(tree, &s, err);
    if (r < 0)
        return r;
    *ret = s;
    return 0;
}

int settings_renew(const cJSON *tree, struct arena *a, struct settings *s, struct err *err)
{
    struct settings fresh;
    const char **aliases;
    int r = settings_read(tree, a, &fresh, err);

    if (r < 0)
        return r;
    settings_fini(&fresh);                  /* a model keeps the templates that it was loaded with */
    aliases = arena_array(a, fresh.n_aliases + 1, sizeof aliases[0]);
    for (size_t i = 0; aliases && i < fresh.n_aliases; i++) {
        aliases[i] = arena_strdup(a, fresh.aliases[i]);
        if (!aliases[i])
            aliases = NULL;
    }
    if (!aliases)
        return err_set(err, -ENOMEM, "no memory for 'aliases'");
    s->aliases = aliases;
    s->n_aliases = fresh.n_aliases;
    s->queue = fresh.queue;
    s->sample = fresh.sample;
    s->max_tokens = fresh.max_tokens;
    return 0;
}
