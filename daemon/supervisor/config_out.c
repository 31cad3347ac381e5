/* The configuration as text: the dump, and what each child is told. */
#include "daemon/supervisor/config_parts.h"

#include "base/err.h"
#include "base/json.h"
#include "ipc/address.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { STEM = 32 };     /* bytes of a model's name in the id of its workers */

/* ---- values as libconfig reads them ---- */

static void put_float(struct buf *out, double v)
{
    struct json_writer w = json_writer(out);
    size_t before = out->len;

    json_num(&w, v);
    if (!out->failed && !strpbrk(out->data + before, ".e"))
        buf_adds(out, ".0");
}

static void put_strings(struct buf *out, const struct config_value *v)
{
    buf_addc(out, '(');
    for (size_t i = 0; i < v->n_list; i++) {
        buf_adds(out, i ? ", " : " ");
        buf_quote(out, v->list[i]);
    }
    buf_adds(out, v->n_list ? " )" : ")");
}

/* As libconfig escapes it; lines stay lines of the dump. */
static void put_text(struct buf *out, const char *text)
{
    buf_addc(out, '"');
    for (; *text; text++) {
        if (*text == '\n')
            buf_adds(out, "\\n");
        else if ((unsigned char)*text < 0x20 || *text == 0x7F)
            buf_printf(out, "\\x%02X", *text);
        else if (*text == '"' || *text == '\\')
            buf_printf(out, "\\%c", *text);
        else
            buf_addc(out, *text);
    }
    buf_addc(out, '"');
}

static void put_tree(struct buf *out, const cJSON *v)
{
    const cJSON *item;
    const char *sep = "( ";

    if (cJSON_IsString(v))
        put_text(out, v->valuestring);
    else if (cJSON_IsNumber(v) && v->valuedouble == (double)(int64_t)v->valuedouble)
        buf_printf(out, "%" PRIi64, (int64_t)v->valuedouble);
    else if (cJSON_IsNumber(v))
        put_float(out, v->valuedouble);
    if (!cJSON_IsArray(v))
        return;
    cJSON_ArrayForEach(item, v)
    {
        buf_adds(out, sep);
        put_tree(out, item);
        sep = ", ";
    }
    buf_adds(out, v->child ? " )" : "()");
}

static void put_field(struct buf *out, const char *json)
{
    CLEANUP(json_delete) cJSON *tree = NULL;

    if (json_parse(json, strlen(json), NULL, &tree, NULL) == 0)
        put_tree(out, tree);
}

void config_put_value(struct buf *out, const struct config_row *row, const struct config_value *v)
{
    switch (row->type) {
    case CONFIG_INT:
        buf_printf(out, "%lld", (long long)v->i);
        break;
    case CONFIG_FLOAT:
        put_float(out, v->f);
        break;
    case CONFIG_PATHS:
    case CONFIG_NAMES:
    case CONFIG_ADDRESSES:
        put_strings(out, v);
        break;
    case CONFIG_FIELD:
        put_field(out, v->s);
        break;
    default:
        buf_quote(out, v->s);
        break;
    }
}

/* ---- the dump ---- */

static void put_origin(struct buf *out, const struct config_value *v)
{
    if (!v->file)
        buf_adds(out, "# default\n");
    else if (v->line)
        buf_printf(out, "# %s:%d\n", v->file, v->line);
    else
        buf_printf(out, "# %s\n", v->file);
}

static void dump_row(struct buf *out, const char *indent, const struct config_row *row,
                     const struct config_value *v)
{
    if (v->set) {
        buf_printf(out, "%s%s = ", indent, row->name);
        config_put_value(out, row, v);
        buf_adds(out, ";    ");
        put_origin(out, v);
    } else {
        buf_printf(out, "%s# %s is not set\n", indent, row->name);
    }
}

static void dump_rows(struct buf *out, const char *indent, const struct config_group *g,
                      enum config_section section)
{
    for (size_t k = 0; k < CONFIG_N_KEYS; k++)
        if (config_rows[k].section == section && config_rows[k].type != CONFIG_LISTENERS)
            dump_row(out, indent, &config_rows[k], &g->values[k]);
}

static void dump_listeners(const struct config *c, struct buf *out)
{
    buf_adds(out, "  listen = (\n");
    for (size_t i = 0; i < c->n_listeners; i++) {
        buf_adds(out, "    {\n");
        dump_rows(out, "      ", c->listeners[i], CONFIG_LISTEN);
        buf_adds(out, i + 1 < c->n_listeners ? "    },\n" : "    }\n");
    }
    buf_adds(out, "  );\n");
}

void config_dump(const struct config *c, struct buf *out)
{
    for (size_t i = 0; i < c->n_files; i++)
        buf_printf(out, "# read: %s\n", c->files[i]);
    for (size_t s = 0; s < CONFIG_N_SECTIONS; s++) {
        if (s == CONFIG_LISTEN || s == CONFIG_MODEL || s == CONFIG_TEMPLATE)
            continue;
        buf_printf(out, "%s:\n{\n", config_section_names[s]);
        if (s == CONFIG_API)
            dump_listeners(c, out);
        dump_rows(out, "  ", &c->sections[s], s);
        buf_adds(out, "};\n");
    }
    buf_adds(out, "models:\n(\n");
    for (size_t m = 0; m < c->n_models; m++) {
        buf_adds(out, "  {\n");
        dump_rows(out, "    ", c->models[m], CONFIG_MODEL);
        dump_rows(out, "    ", c->models[m], CONFIG_DEFAULTS);
        buf_adds(out, m + 1 < c->n_models ? "  },\n" : "  }\n");
    }
    buf_adds(out, ");\ntemplates:\n(\n");
    for (size_t t = 0; t < c->n_template_groups; t++) {
        buf_adds(out, "  {\n");
        dump_rows(out, "    ", c->template_groups[t], CONFIG_TEMPLATE);
        buf_adds(out, t + 1 < c->n_template_groups ? "  },\n" : "  }\n");
    }
    buf_adds(out, ");\n");
}

/* ---- rows, for documents ---- */

void config_row_range(const struct config_row *row, struct buf *out)
{
    if (row->type == CONFIG_CHOICE) {
        for (const char *c = row->unit; *c; c++) {
            if (*c == '|')
                buf_adds(out, " or ");
            else
                buf_addc(out, *c);
        }
        return;
    }
    buf_adds(out, row->unit);
    if (row->type == CONFIG_INT || row->type == CONFIG_FLOAT)
        buf_printf(out, "%s%.15g to %.15g", *row->unit ? ", " : "", row->min, row->max);
}

static void default_list(const char *text, struct buf *out)
{
    const char *sep = "( ";

    while (*text) {
        size_t n = strcspn(text, ":");

        buf_printf(out, "%s\"%.*s\"", sep, (int)n, text);
        text += n + (text[n] == ':');
        sep = ", ";
    }
    buf_adds(out, " )");
}

void config_row_default(const struct config_row *row, struct buf *out)
{
    if (!row->def)
        return;
    buf_printf(out, "%s = ", row->name);
    if (row->type == CONFIG_INT || row->type == CONFIG_FLOAT)
        buf_adds(out, row->def);
    else if (row->type == CONFIG_PATHS)
        default_list(row->def, out);
    else if (row->type == CONFIG_LISTENERS)
        buf_printf(out, "( \"%s\" )", row->def);
    else
        buf_quote(out, row->def);
    buf_addc(out, ';');
}

/* ---- sockets ---- */

void config_socket_path(const struct config *c, const char *name, struct buf *out)
{
    buf_printf(out, "%s/%s", config_str(c, SUPERVISOR_runtime_dir), name);
}

/* A name may hold slashes and be long; then what is left of it is told apart by
 * a hash of the whole (FNV-1a). It does not depend on the model's place in the
 * list, so that a worker keeps its identity when others come and go. */
void config_worker_id(const char *name, int replica, unsigned generation, struct buf *out)
{
    char stem[STEM + 1];
    uint32_t hash = 2166136261u;
    bool changed = strlen(name) > STEM;
    size_t n = 0;

    for (const char *p = name; *p; p++) {
        bool plain = isalnum((unsigned char)*p) || *p == '-' || *p == '_' || (*p == '.' && p > name);

        hash = (hash ^ (unsigned char)*p) * 16777619u;
        changed |= !plain;
        if (n < STEM)
            stem[n++] = plain ? *p : '_';
    }
    stem[n] = 0;
    buf_printf(out, "worker-%s-", stem);
    if (changed)
        buf_printf(out, "%08x-", hash);
    buf_printf(out, "%d", replica);
    if (generation)
        buf_printf(out, ".%u", generation);
}

void config_worker_socket(const struct config *c, size_t model, int replica, unsigned generation, struct buf *out)
{
    buf_printf(out, "%s/", config_str(c, SUPERVISOR_runtime_dir));
    config_worker_id(c->models[model]->values[MODEL_name].s, replica, generation, out);
    buf_adds(out, ".sock");
}

void config_worker_tcp(const struct config *c, size_t model, int replica, enum config_key key,
                       struct buf *out)
{
    const struct config_value *v = &c->models[model]->values[key];
    struct address a;

    if (!v->set || address_parse(v->s, &a, NULL) || a.port + replica > UINT16_MAX)
        return;
    buf_printf(out, strchr(a.host, ':') ? "[%s]:%d" : "%s:%d", a.host,
               a.port ? a.port + replica : 0);
}

/* ---- settings ---- */

static void put_common(struct json_writer *w, const struct config *c, const char *role)
{
    json_kstr(w, "role", role);
    json_kstr(w, "log_level", config_str(c, SUPERVISOR_log_level));
    json_kstr(w, "runtime_dir", config_str(c, SUPERVISOR_runtime_dir));
    json_kint(w, "heartbeat_ms", config_int(c, SUPERVISOR_heartbeat_ms));
}

void config_controller_settings(const struct config *c, struct buf *out)
{
    struct json_writer w = json_writer(out);

    json_open(&w, '{');
    put_common(&w, c, "controller");
    json_kstr(&w, "dispatch", config_str(c, CONTROLLER_dispatch));
    json_kint(&w, "lease_ms", config_int(c, CONTROLLER_lease_s) * 1000);
    json_kint(&w, "request_timeout_ms", config_int(c, CONTROLLER_request_timeout_s) * 1000);
    json_close(&w, '}');
}

static void put_list(struct json_writer *w, const char *key, const struct config_value *v)
{
    json_key(w, key);
    json_open(w, '[');
    for (size_t i = 0; i < v->n_list; i++)
        json_str(w, v->list[i]);
    json_close(w, ']');
}

/* Numbers under their own names. */
static void put_ints(struct json_writer *w, const struct config_group *g,
                     const enum config_key *keys, size_t n)
{
    for (size_t i = 0; i < n; i++)
        json_kint(w, config_rows[keys[i]].name, g->values[keys[i]].i);
}

#define PUT_INTS(w, g, ...)                                                                        \
    put_ints(w, g, (const enum config_key[]){ __VA_ARGS__ },                                       \
             sizeof((const enum config_key[]){ __VA_ARGS__ }) / sizeof(enum config_key))

void config_api_settings(const struct config *c, struct buf *out)
{
    const struct config_group *api = &c->sections[CONFIG_API];
    struct json_writer w = json_writer(out);
    BUF_LOCAL path = BUF_INIT;

    config_socket_path(c, "controller.sock", &path);
    json_open(&w, '{');
    put_common(&w, c, "api");
    json_kstr(&w, "controller", buf_str(&path));
    json_key(&w, "limits");
    json_open(&w, '{');
    PUT_INTS(&w, api, API_max_connections, API_header_kb, API_body_mb, API_header_s, API_body_s,
             API_idle_s, API_stall_s);
    json_close(&w, '}');
    PUT_INTS(&w, api, API_processes, API_wait_s, API_load_wait_s, API_ping_s);
    json_key(&w, "models");
    json_open(&w, '[');
    for (size_t m = 0; m < c->n_models; m++) {
        json_open(&w, '{');
        json_kstr(&w, "name", c->models[m]->values[MODEL_name].s);
        put_list(&w, "aliases", &c->models[m]->values[MODEL_aliases]);
        PUT_INTS(&w, c->models[m], DEFAULTS_queue, DEFAULTS_parallel, DEFAULTS_replicas);
        json_close(&w, '}');
    }
    json_close(&w, ']');
    json_close(&w, '}');
}

static void put_sampling(struct json_writer *w, const struct config_group *g)
{
    json_key(w, "sampling");
    json_open(w, '{');
    for (size_t k = DEFAULTS_temperature; k <= DEFAULTS_max_tokens; k++) {
        const struct config_value *v = &g->values[k];

        if (v->set && config_rows[k].type == CONFIG_FLOAT)
            json_knum(w, config_rows[k].name, v->f);
        else if (v->set)
            json_kint(w, config_rows[k].name, v->i);
    }
    json_close(w, '}');
}

static void put_controllers(struct json_writer *w, const struct config *c,
                            const struct config_group *g)
{
    const struct config_value *v = &g->values[MODEL_controllers];
    BUF_LOCAL text = BUF_INIT;

    json_key(w, "controllers");
    json_open(w, '[');
    if (!config_only_workers(c)) {
        buf_adds(&text, "unix:");
        config_socket_path(c, "controller.sock", &text);
        json_str(w, buf_str(&text));
    }
    for (size_t i = 0; i < v->n_list; i++) {
        buf_clear(&text);
        buf_printf(&text, "%s%s", strncmp(v->list[i], "unix:", 5) == 0 ? "" : "http://", v->list[i]);
        json_str(w, buf_str(&text));
    }
    json_close(w, ']');
}

/* As a worker hears it: "free" is where that costs nothing. */
static const char *share_weights(const struct config_group *g)
{
    const char *asked = g->values[DEFAULTS_share_weights].s;

    if (strcmp(asked, "auto") != 0)
        return asked;
    return g->values[DEFAULTS_replicas].i > 1 ? "always" : "free";
}

void config_worker_settings(const struct config *c, size_t model, int replica,
                            const char *worker_name, const char *unix_path, struct buf *out)
{
    const struct config_group *g = c->models[model];
    struct json_writer w = json_writer(out);

    json_open(&w, '{');
    put_common(&w, c, "worker");
    json_kstr(&w, "worker_name", worker_name);
    json_kstr(&w, "unix", unix_path);
    put_controllers(&w, c, g);
    json_key(&w, "model");
    json_open(&w, '{');
    json_kstr(&w, "name", g->values[MODEL_name].s);
    put_list(&w, "aliases", &g->values[MODEL_aliases]);
    json_kint(&w, "replica", replica);
    json_kstr(&w, "path", g->values[MODEL_path].s);
    json_kstr(&w, "device", g->values[DEFAULTS_device].s);
    PUT_INTS(&w, g, DEFAULTS_context, DEFAULTS_threads, DEFAULTS_parallel, DEFAULTS_queue,
             DEFAULTS_kv_tokens);
    json_kstr(&w, "kv_type", g->values[DEFAULTS_kv_type].s);
    json_kstr(&w, "isa", g->values[DEFAULTS_isa].s);
    json_kstr(&w, "share_weights", share_weights(g));
    json_kstr(&w, "prefix_cache", g->values[DEFAULTS_prefix_cache].s);
    json_kstr(&w, "speculative", g->values[DEFAULTS_speculative].s);
    if (g->values[MODEL_draft_model].set)
        json_kstr(&w, "draft_model", g->values[MODEL_draft_model].s);
    PUT_INTS(&w, g, DEFAULTS_draft_tokens);
    json_kstr(&w, "template", g->values[DEFAULTS_template].s);
    put_sampling(&w, g);
    json_close(&w, '}');
    config_put_templates(c, g->values[DEFAULTS_template].s, &w);
    json_close(&w, '}');
}

/* ---- what a change needs ---- */

int config_find_model(const struct config *c, const char *name)
{
    for (size_t i = 0; i < c->n_models; i++)
        if (strcmp(c->models[i]->values[MODEL_name].s, name) == 0)
            return (int)i;
    return -1;
}

/* Whatever type it has: the fields that it does not use are zero. */
static void put_raw(struct buf *out, const struct config_row *row, const struct config_value *v)
{
    struct json_writer w = json_writer(out);

    buf_printf(out, "%s=%" PRIi64 ",", row->name, v->i);
    json_num(&w, v->f);
    if (v->s)
        json_quote(out, v->s, strlen(v->s));
    for (size_t i = 0; i < v->n_list; i++)
        json_quote(out, v->list[i], strlen(v->list[i]));
    buf_addc(out, ';');
}

/* The values of a group that rows of `section` hold. */
static void put_rows(struct buf *out, const struct config_group *g, enum config_section section)
{
    for (size_t k = 0; k < CONFIG_N_KEYS; k++)
        if (config_rows[k].section == section && config_rows[k].applies == CONFIG_CHILD)
            put_raw(out, &config_rows[k], &g->values[k]);
}

/* They may be megabytes: FNV-1a. */
static void put_templates_hash(struct buf *out, const struct config *c, const char *template)
{
    BUF_LOCAL text = BUF_INIT;
    struct json_writer w = json_writer(&text);
    uint64_t hash = 14695981039346656037u;

    config_put_templates(c, template, &w);
    for (size_t i = 0; i < text.len; i++)
        hash = (hash ^ (unsigned char)text.data[i]) * 1099511628211u;
    if (text.len)
        buf_printf(out, "templates=%016" PRIx64 ";", hash);
}

void config_fingerprint(const struct config *c, enum config_section section, size_t model, struct buf *out)
{
    put_rows(out, &c->sections[CONFIG_SUPERVISOR], CONFIG_SUPERVISOR);
    if (section == CONFIG_MODEL) {
        put_templates_hash(out, c, c->models[model]->values[DEFAULTS_template].s);
        put_rows(out, c->models[model], CONFIG_DEFAULTS);
        put_rows(out, c->models[model], CONFIG_MODEL);
        return;
    }
    put_rows(out, &c->sections[section], section);
    for (size_t i = 0; section == CONFIG_API && i < c->n_listeners; i++)
        put_rows(out, c->listeners[i], CONFIG_LISTEN);
}

const struct config_row *config_needs_restart(const struct config *a, const struct config *b)
{
    for (size_t k = 0; k < CONFIG_N_KEYS; k++) {
        const struct config_row *row = &config_rows[k];
        BUF_LOCAL was = BUF_INIT;
        BUF_LOCAL is = BUF_INIT;

        if (row->applies != CONFIG_SERVICE)
            continue;
        put_raw(&was, row, &a->sections[row->section].values[k]);
        put_raw(&is, row, &b->sections[row->section].values[k]);
        if (strcmp(buf_str(&was), buf_str(&is)) != 0)
            return row;
    }
    return NULL;
}

int config_restart_fault(const struct config *c, const struct config_row *row, struct err *err)
{
    return err_set(err, -EINVAL, "%s: %s.%s is another one, which needs the service to be started anew", c->path,
                   config_section_names[row->section], row->name);
}
