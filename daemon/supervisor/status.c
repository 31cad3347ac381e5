#include "base/clock.h"
#include "base/json.h"
#include "daemon/supervisor/supervisor_parts.h"

#include <inttypes.h>
#include <stdio.h>

/* For clients of the model a worker that will be back is one that loads. */
static const char *public_state(const struct unit *u)
{
    bool returns = u->state == UNIT_WAITING || u->wanted || u->heir;

    return unit_state_name(u->state != UNIT_READY && u->state != UNIT_FAILED && returns ? UNIT_LOADING : u->state);
}

void status_models(const struct supervisor *s, struct buf *out)
{
    struct json_writer w = json_writer(out);

    json_open(&w, '{');
    json_key(&w, "models");
    json_open(&w, '[');
    for (size_t i = 0; i < s->n_units; i++) {
        const struct unit *u = s->units[i];

        if (u->role != UNIT_WORKER || !fleet_is_shown(u))
            continue;
        json_open(&w, '{');
        json_kstr(&w, "name", u->model);
        json_kint(&w, "replica", u->replica);
        json_kstr(&w, "state", public_state(u));
        json_kstr(&w, "reason", u->reason);
        json_kint(&w, "restarts", (int64_t)u->n_restarts);
        json_kbool(&w, "on_demand", models_is_on_demand(u));
        json_close(&w, '}');
    }
    json_close(&w, ']');
    json_close(&w, '}');
}

int64_t status_rss_kb(pid_t pid)
{
    char path[64];
    long pages = 0;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    f = fopen(path, "re");
    if (!f)
        return 0;
    if (fscanf(f, "%*d %ld", &pages) != 1)
        pages = 0;
    fclose(f);
    return (int64_t)pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* Of that, what is in memory that other processes may map too. */
static int64_t shared_kb(pid_t pid)
{
    char path[64], line[128];
    int64_t kb = 0;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "RssShmem: %" SCNd64, &kb) == 1)
            break;
    if (f)
        fclose(f);
    return kb;
}

static void put_child(struct json_writer *w, const struct unit *u, uint64_t now)
{
    json_open(w, '{');
    json_kstr(w, "role", unit_role_name(u->role));
    if (u->role == UNIT_WORKER)
        json_kstr(w, "model", u->model);
    if (u->role == UNIT_WORKER || u->replica)
        json_kint(w, "replica", u->replica);
    if (u->gone || u->forerunner)
        json_kstr(w, "change", u->gone ? "leaving" : "taking over");
    json_kint(w, "pid", u->pid);
    json_kstr(w, "state", unit_state_name(u->state));
    json_kint(w, "since_s", (int64_t)((now - u->since_us) / 1000000));
    json_kint(w, "restarts", (int64_t)u->n_restarts);
    json_kstr(w, "reason", u->reason);
    json_kstr(w, "last_reason", u->last_reason);
    json_kint(w, "rss_kb", u->pid ? status_rss_kb(u->pid) : 0);
    json_kint(w, "shared_kb", u->pid ? shared_kb(u->pid) : 0);
    limits_status(u, w);
    json_key(w, "stats");
    json_raw(w, u->stats ? u->stats : "{}");
    json_close(w, '}');
}

/* One of the api's processes: one that serves, if any does. */
static const struct unit *the_api(const struct supervisor *s)
{
    const struct unit *found = NULL;

    for (size_t i = 0; i < s->n_units; i++) {
        const struct unit *u = s->units[i];

        if (u->role == UNIT_API && !u->gone && (!found || (u->state == UNIT_READY && found->state != UNIT_READY)))
            found = u;
    }
    return found;
}

static void put_strings(struct json_writer *w, const char *key, const char *const *list, size_t n)
{
    json_key(w, key);
    json_open(w, '[');
    for (size_t i = 0; i < n; i++)
        json_str(w, list[i]);
    json_close(w, ']');
}

/* Those that are set. */
static void put_limits(struct json_writer *w, const struct config_group *g)
{
    static const enum config_key counts[] = { DEFAULTS_memory_max_mb, DEFAULTS_cpu_quota, DEFAULTS_pids_max };
    const struct config_value *v = g->values;

    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        if (v[counts[i]].i)
            json_kint(w, config_rows[counts[i]].name, v[counts[i]].i);
    if (v[DEFAULTS_nice].set)
        json_kint(w, "nice", v[DEFAULTS_nice].i);
    if (v[DEFAULTS_cpus].set)
        json_kstr(w, "cpus", v[DEFAULTS_cpus].s);
    if (v[DEFAULTS_numa_node].i >= 0)
        json_kint(w, "numa_node", v[DEFAULTS_numa_node].i);
    if (v[DEFAULTS_kv_type].set)
        json_kstr(w, "kv_type", v[DEFAULTS_kv_type].s);
    if (v[DEFAULTS_isa].set)
        json_kstr(w, "isa", v[DEFAULTS_isa].s);
}

static void put_model(struct json_writer *w, const struct config_group *g)
{
    const struct config_value *aliases = &g->values[MODEL_aliases];

    json_open(w, '{');
    json_kstr(w, "name", g->values[MODEL_name].s);
    put_strings(w, "aliases", aliases->list, aliases->n_list);
    json_kstr(w, "path", g->values[MODEL_path].s);
    json_kint(w, "replicas", g->values[DEFAULTS_replicas].i);
    json_kstr(w, "load", g->values[DEFAULTS_load].s);
    put_limits(w, g);
    json_close(w, '}');
}

/* What the configuration says and is not so. */
static void put_notes(struct json_writer *w, const struct supervisor *s)
{
    json_key(w, "config_notes");
    json_open(w, '[');
    for (size_t i = 0; i < s->config->n_notes; i++)
        json_str(w, s->config->notes[i]);
    for (size_t i = 0; i < s->n_units; i++)
        limits_notes(s->units[i], w);
    json_close(w, ']');
}

void status_reply(const struct supervisor *s, struct buf *out)
{
    struct json_writer w = json_writer(out);
    uint64_t now = clock_mono_us();
    const struct unit *api = the_api(s);
    const struct config_value *folders = &s->config->sections[CONFIG_SUPERVISOR].values[SUPERVISOR_model_folders];

    json_open(&w, '{');
    json_kstr(&w, "version", FASTCHAT_VERSION);
    json_kint(&w, "pid", getpid());
    json_kint(&w, "uptime_s", (int64_t)((now - s->started_us) / 1000000));
    json_kstr(&w, "config", s->config->path);
    put_strings(&w, "config_files", s->config->files, s->config->n_files);
    put_notes(&w, s);
    put_strings(&w, "model_folders", folders->list, folders->n_list);
    json_key(&w, "listeners");
    json_open(&w, '[');
    for (size_t i = 0; api && i < api->n_sockets; i++)
        json_str(&w, unit_socket_bound(&api->sockets[i])->text);
    json_close(&w, ']');
    json_key(&w, "models");
    json_open(&w, '[');
    for (size_t m = 0; m < s->config->n_models; m++)
        put_model(&w, s->config->models[m]);
    json_close(&w, ']');
    json_key(&w, "children");
    json_open(&w, '[');
    for (size_t i = 0; i < s->n_units; i++)
        put_child(&w, s->units[i], now);
    json_close(&w, ']');
    json_close(&w, '}');
}

static const char *serving_word(const struct supervisor *s)
{
    const struct unit *api = the_api(s);
    bool serving = config_only_workers(s->config) || (api && api->state == UNIT_READY);

    return s->phase != STOP_NOT ? "stopping" : serving ? "serving" : "starting";
}

const char *status_state(const struct supervisor *s)
{
    return s->phase == STOP_NOT && s->reloading ? "reloading" : serving_word(s);
}

void status_line(const struct supervisor *s, struct buf *out)
{
    size_t n = 0, ready = 0, n_failed = 0;

    for (size_t i = 0; i < s->n_units; i++) {
        const struct unit *u = s->units[i];

        if (u->role != UNIT_WORKER || !fleet_is_shown(u))
            continue;
        n++;
        ready += u->state == UNIT_READY;
    }
    buf_adds(out, serving_word(s));
    if (s->config->n_models)
        buf_printf(out, ", %zu of %zu workers ready", ready, n);
    else
        buf_adds(out, ", but there is no model: 'fastchat status' says what to do");
    for (size_t i = 0; i < s->n_units; i++)
        if (s->units[i]->state == UNIT_FAILED && fleet_is_shown(s->units[i]) && n_failed++ < 5)
            buf_printf(out, "%s%s", n_failed == 1 ? "; failed: " : ", ", s->units[i]->name);
    if (n_failed > 5)
        buf_printf(out, " and %zu more", n_failed - 5);
}
