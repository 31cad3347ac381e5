/* score_adapters.c - adapter_paths, adapter_peft, adapters, generate_stream, model_registry. */
#include "tests/tools/score_text/score.h"

#include "adapters/adapters.h"
#include "adapters/registry.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *text_of(const cJSON *obj, const char *key)
{
    const char *v = NULL;

    json_get_string(obj, key, &v, NULL);
    return v;
}

static bool bool_of(const cJSON *obj, const char *key)
{
    bool v = false;

    json_get_bool(obj, key, &v, NULL);
    return v;
}

static bool same(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

static void show_loop(struct buf *out, const char *loop)
{
    buf_printf(out, "generate_stream%s%s", loop ? "_" : "", loop ? loop : "");
}

/* ---- paths ---- */

static void path_record(void *user, const cJSON *r, const char *raw, size_t raw_len)
{
    static const char *const matched_names[] = { "basename", "full_path", "default" };
    struct score *s = user;
    const char *path = text_of(r, "path"), *template = NULL, *full = text_of(r, "full_path_only");
    enum adapter_matched matched;
    const struct adapter *a = adapter_find(path, &matched);
    int64_t index = -1;
    BUF_LOCAL loop = BUF_INIT;

    json_get_int(r, "adapter_index", 0, 1000, &index, NULL);
    show_loop(&loop, adapter_loop("transformers.models.llama.modeling_llama.LlamaForCausalLM", path, false));
    if (adapter_template(a, path, &template, NULL) < 0)
        template = NULL;
    if (!same(adapter_class(a), text_of(r, "adapter")) || adapter_index(a) != index)
        score_fail(s, path, "%s, not %s", adapter_class(a), text_of(r, "adapter"));
    else if (!same(matched_names[matched], text_of(r, "matched_on")))
        score_fail(s, path, "decided by %s", matched_names[matched]);
    else if (!same(adapter_class(adapter_of_text(path)), full))
        score_fail(s, path, "its text alone gives %s, not %s", adapter_class(adapter_of_text(path)), full);
    else if (!same(template, text_of(r, "template")))
        score_fail(s, path, "template %s, not %s", template ? template : "none", text_of(r, "template"));
    else if (!same(buf_str(&loop), text_of(r, "generate_stream")))
        score_fail(s, path, "%s", buf_str(&loop));
    else
        score_pass(s);
}

/* ---- PEFT: the files that a case speaks of are made, in a folder that goes with it ---- */

static void make_folders(char *path)
{
    for (char *p = path + 1; *p; p++)
        if (*p == '/') {
            *p = '\0';
            if (mkdir(path, 0700) < 0 && errno != EEXIST)
                score_die("%s: %s", path, strerror(errno));
            *p = '/';
        }
}

static void make_config(const char *folder, const char *base)
{
    char path[512];
    FILE *f;

    snprintf(path, sizeof path, "%s/adapter_config.json", folder);
    make_folders(path);
    f = fopen(path, "w");
    if (!f)
        score_die("%s: %s", path, strerror(errno));
    fprintf(f, "{\"base_model_name_or_path\": \"%s\"}\n", base);
    fclose(f);
}

static void remove_tree(int at, const char *name)
{
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *e;

    if (!d) {
        unlinkat(at, name, 0);
        return;
    }
    while ((e = readdir(d)) != NULL)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            remove_tree(dirfd(d), e->d_name);
    closedir(d);
    unlinkat(at, name, AT_REMOVEDIR);
}

static void peft_record(void *user, const cJSON *r, const char *raw, size_t raw_len)
{
    struct score *s = user;
    const char *path = text_of(r, "path"), *base = text_of(r, "base_model"), *in = text_of(r, "adapter_config_in");
    const char *template = NULL;
    const cJSON *more = json_find(r, "more_hub_configs"), *item;
    char top[] = "/tmp/fastchat-peft-XXXXXX", name[600];
    int here = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const struct adapter *a;

    if (here < 0 || !mkdtemp(top) || chdir(top) < 0 || mkdir("work", 0700) < 0 || chdir("work") < 0)
        score_die("%s: %s", top, strerror(errno));
    /* What a hub would say lies in a folder of the name. */
    if (base)
        make_config(in ? in : path, base);
    cJSON_ArrayForEach(item, more)
        make_config(item->string, item->valuestring);

    a = adapter_find(path, NULL);
    if (adapter_template(a, path, &template, NULL) < 0)
        template = NULL;
    snprintf(name, sizeof name, "%s: %s on %s", text_of(r, "case"), path, base ? base : "nothing");
    if (!same(adapter_class(a), text_of(r, "adapter")))
        score_fail(s, name, "%s, not %s", adapter_class(a), text_of(r, "adapter"));
    else if (!same(template, text_of(r, "template")))
        score_fail(s, name, "template %s", template ? template : "none");
    else
        score_pass(s);

    if (fchdir(here) < 0)
        score_die("the folder that was left: %s", strerror(errno));
    close(here);
    remove_tree(AT_FDCWD, top);
}

/* ---- the table ---- */

static void add_value(struct buf *out, const cJSON *v)
{
    if (cJSON_IsString(v))
        buf_adds(out, v->valuestring);
    else if (cJSON_IsBool(v))
        buf_adds(out, cJSON_IsTrue(v) ? "true" : "false");
    else
        buf_printf(out, "%.0f", v->valuedouble);
}

/* The words of loading.def for a recorded call. */
static void show_call(struct buf *out, const cJSON *call)
{
    const cJSON *item, *fast = json_find(call, "use_fast");
    static const struct { const char *key, *word; } flags[] = {
        { "trust_remote_code", " trust_remote_code" },
        { "revision_passed", " revision" },
        { "low_cpu_mem_usage", " low_cpu_mem_usage" },
        { "kwargs_passed_on", " kwargs" },
    };

    if (!call)
        return;
    buf_printf(out, "%s%s", text_of(call, "class"), fast ? " use_fast" : "");
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if (bool_of(call, flags[i].key))
            buf_adds(out, flags[i].word);
    cJSON_ArrayForEach(item, json_find(call, "other")) {
        buf_printf(out, " %s=", item->string);
        add_value(out, item);
    }
}

static void show_after(struct buf *out, const cJSON *steps)
{
    const cJSON *step, *arg, *word;

    cJSON_ArrayForEach(step, steps) {
        if (out->len)
            buf_adds(out, "; ");
        if (text_of(step, "set")) {
            buf_printf(out, "%s = ", text_of(step, "set"));
            add_value(out, json_find(step, "to"));
            continue;
        }
        buf_printf(out, "%s(", text_of(step, "call"));
        cJSON_ArrayForEach(arg, json_find(step, "args")) {
            if (cJSON_IsString(arg))
                buf_adds(out, arg->valuestring);
            cJSON_ArrayForEach(word, arg)               /* nothing of a string */
                buf_printf(out, "%s%s", word == arg->child ? "" : " ", word->valuestring);
        }
        buf_addc(out, ')');
    }
}

static bool shows(const char *have, const cJSON *want, void (*show)(struct buf *, const cJSON *))
{
    BUF_LOCAL text = BUF_INIT;

    show(&text, want);
    return strcmp(buf_str(&text), have ? have : "") == 0;
}

/* The words of a row hold for a record of the table; a rule is proved by paths. */
static void adapter_record(struct score *s, const cJSON *r, uint32_t index)
{
    const struct adapter *a = adapter_at(index);
    struct adapter_loading l = a ? adapter_loading(a) : (struct adapter_loading){ 0 };
    const char *class = text_of(r, "class"), *loop = text_of(r, "own_generate_stream"), *template = NULL;
    const cJSON *tokenizer = json_find(r, "tokenizer"), *path = cJSON_GetArrayItem(json_find(r, "minimal_paths"), 0);
    bool wants_fast = bool_of(tokenizer, "use_fast");

    adapter_template(a ? a : adapter_at(0), "/", &template, NULL);
    if (!a || !same(adapter_class(a), class))
        score_fail(s, class, "is not number %u", (unsigned)index);
    else if (!same(template, text_of(r, "default_template")))
        score_fail(s, class, "template %s", template ? template : "none");
    else if (!same(l.class, text_of(r, "load_model_from")))
        score_fail(s, class, "is loaded as %s", l.class);
    else if (json_find(r, "use_fast_tokenizer") && l.fast_tokenizer != bool_of(r, "use_fast_tokenizer"))
        score_fail(s, class, "kind of tokenizer");
    else if (json_find(tokenizer, "use_fast") && l.fast_tokenizer != wants_fast)
        score_fail(s, class, "kind of tokenizer that is asked for");
    else if (!shows(l.tokenizer, tokenizer, show_call))
        score_fail(s, class, "tokenizer: %s", l.tokenizer ? l.tokenizer : "none");
    else if (!shows(l.model, json_find(r, "model"), show_call))
        score_fail(s, class, "model: %s", l.model ? l.model : "none");
    else if (!shows(l.after, json_find(r, "after_load"), show_after))
        score_fail(s, class, "after: %s", l.after ? l.after : "nothing");
    else if (!same(l.loop, loop ? loop + strlen("generate_stream_") : NULL))
        score_fail(s, class, "loop: %s", l.loop ? l.loop : "the common one");
    else if (path && !same(adapter_class(adapter_find(text_of(path, "path"), NULL)), text_of(path, "resolves_to")))
        score_fail(s, class, "%s is not %s", text_of(path, "path"), text_of(path, "resolves_to"));
    else
        score_pass(s);
}

/* ---- generation loops ---- */

static void loop_record(void *user, const cJSON *r, const char *raw, size_t raw_len)
{
    const char *class = text_of(r, "model_type"), *path = text_of(r, "path"), *want = text_of(r, "function");
    BUF_LOCAL have = BUF_INIT;

    show_loop(&have, adapter_loop(class, path, bool_of(r, "peft_share_base_weights")));
    score_compare(user, class, want, strlen(want), buf_str(&have), have.len);
}

/* ---- model registry ---- */

static bool is_info(struct model_info have, const cJSON *want)
{
    const char *link = text_of(want, "link");

    return same(have.name, text_of(want, "simple_name")) && same(have.link, link ? link : "");
}

static void registration_records(struct score *s, const cJSON *registrations)
{
    const cJSON *r, *name;
    size_t i = 0;

    cJSON_ArrayForEach(r, registrations)
        cJSON_ArrayForEach(name, json_find(r, "names")) {
            struct model_info info;
            size_t len = 0;
            const char *at = model_info_at(i++, &len, &info);

            if (at && len == strlen(name->valuestring) && memcmp(at, name->valuestring, len) == 0 && is_info(info, r))
                score_pass(s);
            else
                score_fail(s, name->valuestring, "is not registration %zu", i - 1);
        }
}

static void name_record(struct score *s, const cJSON *r)
{
    const char *name = text_of(r, "name");
    struct model_info info;

    model_info(name, &info);
    if (is_info(info, r))
        score_pass(s);
    else
        score_fail(s, name, "%s, %s", info.name, info.link);
}

static cJSON *tree_of(const char *folder, const char *file)
{
    size_t len = 0;
    char *text = score_file(folder, file, &len);
    cJSON *tree = NULL;
    struct err err = { 0 };

    if (text && json_parse(text, len, NULL, &tree, &err) < 0)
        score_die("%s/%s: %s", folder, file, err_text(&err));
    free(text);
    return tree;
}

void score_adapters(struct score *s, const char *folder)
{
    CLEANUP(json_delete) cJSON *table = tree_of(folder, "adapters.json"), *registry = tree_of(folder, "model_registry.json");
    const cJSON *item;
    uint32_t index = 0;

    score_begin(s, "adapters/paths");
    score_lines(folder, "adapter_paths.jsonl", path_record, s);
    score_begin(s, "adapters/peft");
    score_lines(folder, "adapter_peft.jsonl", peft_record, s);
    score_begin(s, "adapters/table");
    cJSON_ArrayForEach(item, json_find(table, "adapters"))
        adapter_record(s, item, index++);
    score_begin(s, "adapters/loops");
    score_lines(folder, "generate_stream.jsonl", loop_record, s);
    score_begin(s, "adapters/registry");
    registration_records(s, json_find(registry, "registrations"));
    cJSON_ArrayForEach(item, json_find(registry, "names"))
        name_record(s, item);
    if (registry)
        name_record(s, json_find(registry, "unknown_name"));
}
