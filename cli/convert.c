/* Commands made into one service.
 *
 * Controller, workers and API server of one machine become one configuration: the
 * controller and the workers need no address of their own then, so a listening
 * address is written only where another machine is to reach it. Workers alone,
 * for a controller elsewhere, stay alone. Two workers with one file and one name
 * are replicas. A model whose file is not here, or is no GGUF file, is written as
 * a comment, so that the rest is a configuration that works.
 */
#include "cli/convert.h"

#include "base/arena.h"
#include "base/err.h"
#include "base/utf8.h"
#include "cli/convert_parts.h"
#include "daemon/model_name.h"
#include "ipc/address.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_MODELS = CONFIG_MAX_MODELS, MAX_ADDRESSES = CONFIG_MAX_LISTENERS, MAX_ALIASES = 64, MAX_BYTES = 64 << 20 };

struct model {
    const char *name, *path;
    const char *missing;        /* why its file cannot be used; NULL: it can */
    const char *aliases[MAX_ALIASES];
    size_t n_aliases;
    const char *values[CONFIG_N_KEYS];      /* as a file has them */
    int replicas;
    const char *listen, *advertise, *controller;
};

struct convert {
    struct arena *arena;
    struct model models[MAX_MODELS];
    size_t n_models;
    const char *listen[MAX_ADDRESSES];      /* of the api */
    size_t n_listen;
    const char *controller_listen, *dispatch, *processes, *ping, *folder;
    bool controller_waits;      /* its address is only of use if no worker is here */
    struct buf notes, warnings;
    size_t n_lost, n_taken;
};

struct convert *convert_new(void)
{
    struct convert *c = calloc(1, sizeof *c);

    if (c)
        c->arena = arena_new(MAX_BYTES);
    if (c && !c->arena) {
        free(c);
        return NULL;
    }
    return c;
}

void convert_free(struct convert *c)
{
    if (!c)
        return;
    arena_free(c->arena);
    buf_fini(&c->notes);
    buf_fini(&c->warnings);
    free(c);
}

const char *convert_warnings(const struct convert *c)
{
    return buf_str(&c->warnings);
}

size_t convert_lost(const struct convert *c)
{
    return c->n_lost;
}

size_t convert_count(const struct convert *c)
{
    return c->n_taken;
}

/* ---- values ---- */

/* "32k", "32K": vLLM has both, 1000 and 1024. NaN: no number. */
static double number(const char *text, bool suffixes)
{
    static const struct { char letter; double times; } units[] = {
        { 'k', 1e3 }, { 'K', 1024 }, { 'm', 1e6 }, { 'M', 1024.0 * 1024 }, { 'g', 1e9 }, { 'G', 1024.0 * 1024 * 1024 },
    };
    char *end;
    double v = strtod(text, &end);

    for (size_t i = 0; suffixes && end > text && i < sizeof units / sizeof units[0]; i++)
        if (*end == units[i].letter && !end[1])
            return v * units[i].times;
    return end > text && !*end ? v : NAN;
}

/* Writes a number of a row as a file has it; NULL when it is out of range. */
static const char *value_of(struct arena *a, const struct config_row *row, double v)
{
    if (isnan(v) || v < row->min || v > row->max || (row->type == CONFIG_INT && v != floor(v)))
        return NULL;
    return row->type == CONFIG_INT ? arena_printf(a, "%.0f", v) : arena_printf(a, strchr(arena_printf(a, "%.9g", v), '.') ? "%.9g" : "%.1f", v);
}

static void set_value(struct said *s, struct model *m, enum config_key k, const char *flag, const char *text)
{
    const struct config_row *row = &setting_rows[k];
    const char *value = value_of(s->arena, row, number(text, s->program == VLLM));

    if (value)
        m->values[k] = value;
    else
        said_note(s, flag, text, arena_printf(s->arena, "%s of a model takes a number from %.15g to %.15g", row->name, row->min, row->max));
}

static void set_values(struct said *s, struct model *m)
{
    for (size_t k = 0; k < CONFIG_N_KEYS; k++)
        if (s->values[k])
            set_value(s, m, (enum config_key)k, s->flags[k], s->values[k]);
    if (m->values[DEFAULTS_keep_alive])
        m->values[DEFAULTS_load] = "\"on-demand\"";
}

/* llama-server's context is that of all its slots together, unless they share it. */
static void set_llama_context(struct said *s, struct model *m)
{
    const char *ctx = said_last(s, SAID_ctx, NULL), *np = said_last(s, SAID_np, NULL);
    double tokens = ctx ? number(ctx, false) : 0, slots = np ? number(np, false) : 0;

    if (slots > 0)
        set_value(s, m, DEFAULTS_parallel, "-np", np);
    if (isnan(tokens) || isnan(slots)) {
        said_note(s, "-c", ctx, "it is no number");
        return;
    }
    if (tokens <= 0)
        return;                 /* what the model was made for, here too */
    set_value(s, m, DEFAULTS_kv_tokens, "-c", ctx);
    if (slots > 1 && s->roles[SAID_unified].n == 0)
        tokens = floor(tokens / slots);
    set_value(s, m, DEFAULTS_context, "-c", arena_printf(s->arena, "%.0f", tokens));
}

/* ---- addresses ---- */

static bool is_loopback(const char *host)
{
    return strcmp(host, "localhost") == 0 || strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0;
}

static bool is_wildcard(const char *host)
{
    return strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
}

/* NULL (with a note) when it is none. */
static const char *address(struct said *s, const char *host, const char *port)
{
    const char *text = arena_printf(s->arena, strchr(host, ':') && host[0] != '[' ? "[%s]:%s" : "%s:%s", host, port);
    struct address a;
    struct err err = { 0 };

    if (text && address_parse(text, &a, &err) == 0)
        return text;
    said_note(s, "--host", text, err_text(&err));
    return NULL;
}

/* "http://host:port" without its scheme and path; NULL when it is something else. */
static const char *of_url(struct said *s, const char *flag, const char *url)
{
    const char *text = strncmp(url, "http://", 7) == 0 ? url + 7 : url;
    struct address a;

    text = arena_strndup(s->arena, text, strcspn(text, "/"));
    if (text && address_parse(text, &a, NULL) == 0 && !a.is_unix)
        return text;
    said_note(s, flag, url, "it is no address of the form http://host:port");
    return NULL;
}

static bool is_loopback_address(const char *text)
{
    struct address a;

    return address_parse(text, &a, NULL) == 0 && is_loopback(a.host);
}

static void add_listen(struct convert *c, struct said *s, const char *text)
{
    for (size_t i = 0; text && i < c->n_listen; i++)
        if (strcmp(c->listen[i], text) == 0)
            return;
    if (text && c->n_listen < MAX_ADDRESSES)
        c->listen[c->n_listen++] = text;
    else if (text)
        said_note(s, "--host", text, "too many addresses");
}

/* ---- models ---- */

static bool is_taken(const struct convert *c, const char *name)
{
    for (size_t i = 0; i < c->n_models; i++) {
        const struct model *m = &c->models[i];

        if (strcmp(m->name, name) == 0)
            return true;
        for (size_t k = 0; k < m->n_aliases; k++)
            if (strcmp(m->aliases[k], name) == 0)
                return true;
    }
    return false;
}

/* What may be a name of it. */
static const char *clean_name(struct said *s, const char *text)
{
    bool changed = strlen(text) > MODEL_NAME_MAX;
    char *name = arena_strndup(s->arena, text, strnlen(text, MODEL_NAME_MAX));

    for (char *c = name; c && *c; c++)
        if (!model_name_char(*c)) {
            *c = '-';
            changed = true;
        }
    if (changed)
        said_note(s, "the name", text, arena_printf(s->arena, "a name has letters, digits and %s; it is %s here", MODEL_NAME_EXTRA, name));
    return name && *name ? name : "model";
}

static const char *expand(struct said *s, const char *path)
{
    const char *home = getenv("HOME");

    return strncmp(path, "~/", 2) == 0 && home ? arena_printf(s->arena, "%s%s", home, path + 1) : path;
}

/* The same path from anywhere; links stay as they are. */
static const char *absolute(struct said *s, const char *path)
{
    char here[PATH_MAX];
    const char *full = expand(s, path);

    while (full && strncmp(full, "./", 2) == 0)
        full += 2;
    return !full || full[0] == '/' || !getcwd(here, sizeof here) ? full : arena_printf(s->arena, "%s/%s", here, full);
}

/* A file that is here; else why not. */
static void find_file(struct said *s, struct model *m, const char *path)
{
    const char *full = absolute(s, path);
    const char *slash = strchr(path, '/');
    struct stat st;
    bool is_there = full && stat(full, &st) == 0;

    m->path = is_there ? full : path;
    if (is_there && S_ISREG(st.st_mode))
        return;
    if (is_there)
        m->missing = "it is a folder, or no file: one GGUF file is needed; 'fastchat pull' fetches some, or convert it with llama.cpp";
    else if (path[0] != '/' && path[0] != '.' && path[0] != '~' && slash && !strchr(slash + 1, '/'))
        m->missing = "it is a repository: fetch a GGUF file of this model, for example with 'fastchat pull', and give its path";
    else
        m->missing = "there is no such file";
}

static bool is_replica(const struct model *a, const struct model *b)
{
    return strcmp(a->name, b->name) == 0 && strcmp(a->path, b->path) == 0 && !a->listen && !b->listen;
}

static void add_alias(struct convert *c, struct said *s, struct model *m, const char *text)
{
    const char *name = clean_name(s, text);

    if (strcmp(name, m->name) == 0)
        return;
    if (is_taken(c, name))
        said_note(s, "the name", name, "another model has it already");
    else if (m->n_aliases < MAX_ALIASES)
        m->aliases[m->n_aliases++] = name;
}

/* `names`: one text with commas, or several. The model that was made, or NULL: it is one more
 * of another, or there is no room. */
static struct model *add_model(struct convert *c, struct said *s, const char *path, const char *const *names, size_t n_names, const char *otherwise)
{
    struct model *m = &c->models[c->n_models];
    const char *all[MAX_ALIASES];
    size_t n = 0;

    if (c->n_models == MAX_MODELS) {
        said_note(s, "the model", path, "too many models");
        return NULL;
    }
    *m = (struct model){ .replicas = 1 };
    for (size_t i = 0; i < n_names; i++)
        for (const char *at = names[i]; *at && n < MAX_ALIASES;) {
            size_t len = strcspn(at, ",");

            if (len)
                all[n++] = arena_strndup(s->arena, at, len);
            at += len + (at[len] == ',');
        }
    m->name = clean_name(s, n ? all[0] : otherwise);
    find_file(s, m, path);
    for (size_t i = 0; i < c->n_models; i++)
        if (is_replica(&c->models[i], m)) {
            c->models[i].replicas++;
            return NULL;
        }
    if (is_taken(c, m->name))
        m->missing = "another model has this name already";
    set_values(s, m);
    for (size_t i = 1; i < n; i++)
        add_alias(c, s, m, all[i]);
    c->n_models++;
    return m;
}

static const char *base_name(struct said *s, const char *path)
{
    size_t n = strlen(path);
    const char *slash;

    while (n > 1 && path[n - 1] == '/')
        n--;
    path = arena_strndup(s->arena, path, n);
    slash = path ? strrchr(path, '/') : NULL;
    return slash && slash[1] ? slash + 1 : path;
}

/* ---- programs ---- */

/* A worker for a controller elsewhere is reached by it. */
static void set_remote(struct said *s, struct model *m)
{
    const char *url = said_last(s, SAID_controller, "http://localhost:21001"), *controller = of_url(s, "--controller-address", url);
    const char *host = said_last(s, SAID_host, "localhost"), *port = said_last(s, SAID_port, "21002");
    const char *own = s->roles[SAID_worker].n ? of_url(s, "--worker-address", said_last(s, SAID_worker, "")) : NULL;
    bool advertised = own && !is_loopback_address(own);

    if (!controller || is_loopback_address(controller))
        return;
    if (is_wildcard(host) && !advertised) {
        said_note(s, "--controller-address", url, "that controller has to know how to reach this worker: give --worker-address with the name of this machine");
        return;
    }
    m->listen = address(s, host, port);
    m->controller = m->listen ? controller : NULL;
    m->advertise = m->listen && advertised ? own : NULL;
}

static void take_worker(struct convert *c, struct said *s)
{
    const char *path = said_last(s, SAID_model, "lmsys/vicuna-7b-v1.5");
    struct model *m = add_model(c, s, path, s->roles[SAID_names].value, s->roles[SAID_names].n ? 1 : 0, base_name(s, path));

    if (m)
        set_remote(s, m);
}

static void take_several(struct convert *c, struct said *s)
{
    for (size_t i = 0; i < s->roles[SAID_model].n; i++) {
        const char *path = s->roles[SAID_model].value[i];
        struct model *m = add_model(c, s, path, &s->roles[SAID_names].value[i], i < s->roles[SAID_names].n, base_name(s, path));

        if (m && i == 0)
            set_remote(s, m);
    }
    if (s->roles[SAID_model].n > 1)
        said_note(s, "several --model-path", NULL, "each model has workers of its own");
}

/* model-path@host@port */
static void take_launch(struct convert *c, struct said *s)
{
    for (size_t i = 0; i < s->roles[SAID_launch].n; i++) {
        const char *text = s->roles[SAID_launch].value[i], *path = arena_strndup(s->arena, text, strcspn(text, "@"));

        if (path)
            add_model(c, s, path, NULL, 0, base_name(s, path));
    }
    if (s->roles[SAID_launch].n == 0)
        take_worker(c, s);
}

static void take_controller(struct convert *c, struct said *s, const char *host, const char *port)
{
    const char *dispatch = said_last(s, SAID_dispatch, NULL);

    c->controller_listen = address(s, host, port);
    c->controller_waits = is_loopback(host);
    if (dispatch && (strcmp(dispatch, "lottery") == 0 || strcmp(dispatch, "shortest_queue") == 0))
        c->dispatch = dispatch;
    else if (dispatch)
        said_note(s, "--dispatch-method", dispatch, "it is neither lottery nor shortest_queue");
}

static void take_api(struct convert *c, struct said *s)
{
    const char *url = said_last(s, SAID_controller, "http://localhost:21001"), *controller = of_url(s, "--controller-address", url);

    if (controller && !is_loopback_address(controller))
        said_note(s, "--controller-address", url, "the API asks the controller of its own service: have the workers there register with controller.listen of this one");
    add_listen(c, s, address(s, said_last(s, SAID_host, "localhost"), said_last(s, SAID_port, s->program == FC_LAUNCH ? "8001" : "8000")));
}

/* A number of the api, or NULL with a note. */
static const char *api_value(struct said *s, enum config_key k, enum convert_role role, const char *flag)
{
    const char *text = said_last(s, role, NULL), *value;

    if (!text)
        return NULL;
    value = value_of(s->arena, &setting_rows[k], number(text, false));
    if (!value)
        said_note(s, flag, text, arena_printf(s->arena, "%s of api takes a number from %.15g to %.15g", setting_rows[k].name, setting_rows[k].min, setting_rows[k].max));
    return value;
}

static void take_vllm(struct convert *c, struct said *s)
{
    const char *path = said_last(s, SAID_model, NULL), *uds = said_last(s, SAID_uds, NULL), *processes;

    if (path)
        add_model(c, s, path, s->roles[SAID_served].value, s->roles[SAID_served].n, path);
    else
        said_note(s, "--model", NULL, "no model is named");
    add_listen(c, s, uds ? arena_printf(s->arena, "unix:%s", uds) : address(s, said_last(s, SAID_host, "0.0.0.0"), said_last(s, SAID_port, "8000")));
    processes = api_value(s, API_processes, SAID_processes, "--api-server-count");
    c->processes = processes ? processes : c->processes;
}

static void take_llama(struct convert *c, struct said *s)
{
    const char *path = said_last(s, SAID_model, NULL), *repository = said_last(s, SAID_repository, NULL), *folder = said_last(s, SAID_folder, NULL);
    const char *host = said_last(s, SAID_host, "127.0.0.1"), *ping = api_value(s, API_ping_s, SAID_ping, "--sse-ping-interval");
    size_t len = strlen(host);
    char name[MODEL_NAME_MAX + 1];
    struct model *m = NULL;

    if (path && model_name_of_file(path, name))
        m = add_model(c, s, path, s->roles[SAID_names].value, s->roles[SAID_names].n, arena_strdup(s->arena, name));
    else if (repository)
        m = add_model(c, s, repository, s->roles[SAID_names].value, s->roles[SAID_names].n, base_name(s, repository));
    else if (!folder)
        said_note(s, "-m", path, "no model is named");
    if (m)
        set_llama_context(s, m);
    if (folder)
        c->folder = absolute(s, folder);
    c->ping = ping ? ping : c->ping;
    add_listen(c, s, len > 5 && strcmp(host + len - 5, ".sock") == 0 ? arena_printf(s->arena, "unix:%s", host) : address(s, host, said_last(s, SAID_port, "8080")));
}

static void take(struct convert *c, struct said *s)
{
    switch (s->program) {
    case FC_WORKER:
    case FC_VLLM: take_worker(c, s); break;
    case FC_MULTI: take_several(c, s); break;
    case FC_CONTROLLER: take_controller(c, s, said_last(s, SAID_host, "localhost"), said_last(s, SAID_port, "21001")); break;
    case FC_API: take_api(c, s); break;
    case FC_LAUNCH:
        take_launch(c, s);
        take_controller(c, s, said_last(s, SAID_controller_host, "localhost"), said_last(s, SAID_controller_port, "21001"));
        take_api(c, s);
        break;
    case VLLM: take_vllm(c, s); break;
    case LLAMA: take_llama(c, s); break;
    }
}

/* A copy that can stand in a configuration: one line of UTF-8. */
static const char *copy_word(struct arena *a, const char *word)
{
    char *own = arena_strdup(a, word);
    bool valid = utf8_is_valid(word, strlen(word));

    for (char *c = own; c && *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7F)
            *c = ' ';
        else if (!valid && (unsigned char)*c >= 0x80)
            *c = '?';
    return own;
}

int convert_take(struct convert *c, const char *const *words, size_t n, struct err *err)
{
    const char **own = arena_array(c->arena, n + 1, sizeof *own);
    CLEANUP(mem_free) struct said *s = calloc(1, sizeof *s);
    int r;

    if (!own || !s)
        return err_set(err, -ENOMEM, "no memory");
    for (size_t i = 0; i < n; i++)
        if (!(own[i] = copy_word(c->arena, words[i])))
            return err_set(err, -ENOMEM, "no memory");
    s->arena = c->arena;
    s->warnings = &c->warnings;
    r = convert_parse(s, own, n, err);
    if (r == 0) {
        take(c, s);
        c->n_taken++;
        c->n_lost += s->n_lost;
        if (s->notes.len)
            buf_printf(&c->notes, "# %s:\n%s", s->title, buf_str(&s->notes));
    }
    buf_fini(&s->notes);
    return r;
}

/* ---- the file ---- */

static void put_text(struct buf *out, const char *indent, const char *key, const char *text)
{
    if (!text)
        return;
    buf_printf(out, "%s%s = ", indent, key);
    buf_quote(out, text);
    buf_adds(out, ";\n");
}

static void put_list(struct buf *out, const char *indent, const char *key, const char *const *list, size_t n)
{
    if (n == 0)
        return;
    buf_printf(out, "%s%s = ( ", indent, key);
    for (size_t i = 0; i < n; i++) {
        buf_adds(out, i ? ", " : "");
        buf_quote(out, list[i]);
    }
    buf_adds(out, " );\n");
}

static void put_model(const struct model *m, struct buf *out)
{
    const char *in = m->missing ? "  #   " : "    ";

    if (m->missing)
        buf_printf(out, "  # %s. Without the # in front it is a model.\n  # {\n", m->missing);
    else
        buf_adds(out, "  {\n");
    put_text(out, in, "name", m->name);
    put_list(out, in, "aliases", m->aliases, m->n_aliases);
    put_text(out, in, "path", m->path);
    put_text(out, in, "listen", m->listen);
    put_text(out, in, "advertise", m->advertise);
    put_list(out, in, "controllers", &m->controller, m->controller != NULL);
    if (m->replicas > 1)
        buf_printf(out, "%sreplicas = %d;\n", in, m->replicas);
    for (size_t k = 0; k < CONFIG_N_KEYS; k++)
        if (m->values[k] && !(k == DEFAULTS_replicas && m->replicas > 1))
            buf_printf(out, "%s%s = %s;\n", in, setting_rows[k].name, m->values[k]);
    buf_adds(out, m->missing ? "  # },\n" : "  },\n");
}

/* Workers for controllers of other machines and nothing else: then no controller and no api are wanted here. */
static bool only_workers(const struct convert *c)
{
    if (c->controller_listen || c->dispatch || c->n_listen)
        return false;
    for (size_t i = 0; i < c->n_models; i++)
        if (!c->models[i].controller)
            return false;
    return c->n_models > 0;
}

void convert_write(const struct convert *c, struct buf *out)
{
    bool controller = c->controller_listen && !(c->controller_waits && c->n_models);
    bool workers = only_workers(c);

    buf_printf(out, "# Made by 'fastchat convert-flags' of %zu command%s; 'fastchat config check FILE' checks it.\n", c->n_taken, c->n_taken == 1 ? "" : "s");
    if (c->notes.len)
        buf_printf(out, "#\n# What is different, or has no equivalent here:\n#\n%s", buf_str(&c->notes));
    buf_addc(out, '\n');
    if (c->folder || workers) {
        buf_adds(out, "supervisor:\n{\n");
        put_text(out, "  ", "parts", workers ? "workers" : NULL);
        put_list(out, "  ", "model_folders", &c->folder, c->folder != NULL);
        buf_adds(out, "};\n\n");
    }
    if (controller || c->dispatch) {
        buf_adds(out, "controller:\n{\n");
        put_text(out, "  ", "listen", controller ? c->controller_listen : NULL);
        put_text(out, "  ", "dispatch", c->dispatch);
        buf_adds(out, "};\n\n");
    }
    if (c->n_listen || c->processes || c->ping) {
        buf_adds(out, "api:\n{\n");
        put_list(out, "  ", "listen", c->listen, c->n_listen);
        if (c->processes)
            buf_printf(out, "  processes = %s;\n", c->processes);
        if (c->ping)
            buf_printf(out, "  ping_s = %s;\n", c->ping);
        buf_adds(out, "};\n\n");
    }
    buf_adds(out, "models:\n(\n");
    for (size_t i = 0; i < c->n_models; i++)
        put_model(&c->models[i], out);
    buf_adds(out, ");\n");
}
