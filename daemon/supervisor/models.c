/* Which models are loaded: by command, with the first request, and as long as
 * they are used and memory lasts.
 *
 * A worker is STOPPED while its model is not loaded; `wanted` marks one that is
 * to be. models_turn() starts what is wanted: the replicas of a model together,
 * once the first of them has packed the weights that they share (packed.c).
 * With a memory budget it first looks whether they fit beside what runs; if
 * not, models on demand that nobody uses are unloaded, the longest unused
 * first, one after the other. While all of them are in use, what is wanted
 * waits; what can not fit at all fails. What a model needs is what it took
 * when it was loaded last, or the size of its file, and no more than its limit;
 * weights that its processes share count once.
 */
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "daemon/supervisor/supervisor_parts.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { LEAST_IDLE_US = 1000000 };

const struct config_group *models_group(const struct unit *u)
{
    int m = config_find_model(u->sup->config, u->model);

    return m < 0 ? NULL : u->sup->config->models[m];
}

static bool is_of(const struct unit *u, const char *model)
{
    return u->role == UNIT_WORKER && fleet_is_shown(u) && strcmp(u->model, model) == 0;
}

const char *models_name(const struct supervisor *s, const char *name)
{
    for (size_t m = 0; config_find_model(s->config, name) < 0 && m < s->config->n_models; m++) {
        const struct config_value *v = s->config->models[m]->values, *aliases = &v[MODEL_aliases];

        for (size_t i = 0; i < aliases->n_list; i++)
            if (strcmp(aliases->list[i], name) == 0)
                return v[MODEL_name].s;
    }
    return name;
}

bool models_is_on_demand(const struct unit *u)
{
    const struct config_group *g = models_group(u);

    return g && strcmp(g->values[DEFAULTS_load].s, "on-demand") == 0;
}

bool models_is_unloaded(const struct unit *u)
{
    return u->pid ? u->stopping && !u->heir : u->state == UNIT_STOPPED;
}

bool models_is_loaded(const struct supervisor *s, const char *model)
{
    for (size_t i = 0; i < s->n_units; i++) {
        const struct unit *u = s->units[i];

        if (is_of(u, model) && (u->wanted || (!models_is_unloaded(u) && u->state != UNIT_FAILED)))
            return true;
    }
    return false;
}

/* ---- memory ---- */

static int64_t need_kb(const struct unit *u)
{
    const struct config_group *g = models_group(u);
    int64_t need = u->rss_kb, most = limits_memory_kb(u);
    struct stat st;

    if (!need && g && stat(g->values[MODEL_path].s, &st) == 0)
        need = st.st_size / 1024;
    return most && most < need ? most : need;
}

static int64_t taken_kb(const struct unit *u)
{
    int64_t now = status_rss_kb(u->pid);

    return u->state == UNIT_LOADING && need_kb(u) > now ? need_kb(u) : now;
}

static void measure(struct supervisor *s)
{
    for (size_t i = 0; i < s->n_units; i++)
        if (s->units[i]->role == UNIT_WORKER && s->units[i]->state == UNIT_READY)
            s->units[i]->rss_kb = status_rss_kb(s->units[i]->pid);
}

static int64_t available_kb(void)
{
    FILE *f = fopen("/proc/meminfo", "re");
    char line[128];
    int64_t kb = INT64_MAX;

    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %" SCNd64, &kb) == 1)
            break;
    if (f)
        fclose(f);
    return kb;
}

/* Does another process of its model take what this one shares with it? */
static bool is_counted_elsewhere(const struct unit *u)
{
    const struct supervisor *s = u->sup;

    for (size_t i = 0; i < s->n_units; i++) {
        const struct unit *other = s->units[i];

        if (other == u && u->pid)
            return false;
        if (other != u && other->role == UNIT_WORKER && other->pid && strcmp(other->model, u->model) == 0)
            return true;
    }
    return false;
}

/* Of `kb`, what is its own. */
static int64_t own_kb(const struct unit *u, int64_t kb)
{
    int64_t shared = is_counted_elsewhere(u) ? packed_kb(u) : 0;

    return kb > shared ? kb - shared : 0;
}

/* What the workers take, in kB; what several share counts once. */
struct memory {
    int64_t budget;             /* 0: no limit */
    int64_t need;               /* of those of the model that are to be started */
    int64_t taken, leaving;     /* by those that stay, by those that end */
    int64_t fixed;              /* of `taken`: not to be unloaded */
};

static struct memory count(const struct supervisor *s, const char *model)
{
    struct memory m = { .budget = config_int(s->config, SUPERVISOR_memory_mb) * 1024 };

    for (size_t i = 0; i < s->n_units; i++) {
        const struct unit *u = s->units[i];

        if (u->role != UNIT_WORKER)
            continue;
        if (u->pid == 0)
            m.need += u->wanted && is_of(u, model) ? own_kb(u, need_kb(u)) : 0;
        else if (u->stopping)
            m.leaving += own_kb(u, taken_kb(u));
        else
            m.taken += own_kb(u, taken_kb(u));
        if (u->pid && !u->stopping && !models_is_on_demand(u))
            m.fixed += own_kb(u, taken_kb(u));
    }
    return m;
}

bool models_has_room_beside(const struct unit *u)
{
    struct memory m = count(u->sup, "");
    const int64_t shared = packed_kb(u), need = need_kb(u) > shared ? need_kb(u) - shared : 0;

    if (!m.budget)
        return need + need / 4 < available_kb();
    return m.taken + m.leaving + need <= m.budget;
}

/* ---- use ---- */

/* Since when the whole model is not used; 0: it is, or is not loaded. */
static uint64_t unused_since(const struct supervisor *s, const char *model)
{
    uint64_t since = 0;

    for (size_t i = 0; i < s->n_units; i++) {
        const struct unit *u = s->units[i];

        if (!is_of(u, model) || u->state == UNIT_STOPPED || u->state == UNIT_FAILED)
            continue;
        if (u->state != UNIT_READY || u->stopping || u->heir || !u->idle_since_us)
            return 0;
        if (u->idle_since_us > since)
            since = u->idle_since_us;
        if (u->ready_us > since)
            since = u->ready_us;
    }
    return since;
}

static void unload(struct supervisor *s, const char *model)
{
    for (size_t i = 0; i < s->n_units; i++) {
        struct unit *u = s->units[i];

        if (!is_of(u, model))
            continue;
        u->wanted = u->awaited = false;
        fleet_drop_heir(u);
        if (u->state == UNIT_FAILED || u->state == UNIT_WAITING)
            unit_forgive(u);
        if (unit_is_up(u))
            unit_retire(u, fleet_replace_us(s));
    }
    supervisor_news(s);
}

static void unload_unused(struct supervisor *s)
{
    uint64_t now = clock_mono_us();

    for (size_t i = 0; i < s->n_units; i++) {
        struct unit *u = s->units[i];
        const struct config_group *g = u->role == UNIT_WORKER && u->state == UNIT_READY ? models_group(u) : NULL;
        uint64_t since, limit;

        if (!g || !models_is_on_demand(u) || g->values[DEFAULTS_keep_alive].i < 0)
            continue;
        limit = (uint64_t)g->values[DEFAULTS_keep_alive].i * 1000000;
        since = unused_since(s, u->model);
        if (!since || now - since < (limit > LEAST_IDLE_US ? limit : LEAST_IDLE_US))
            continue;
        log_event(LOG_NOTICE, "unload", (const char *[]){ "FASTCHAT_MODEL", u->model, NULL },
                  "%s is unloaded: not used for %.0f s", u->model, (double)(now - since) / 1e6);
        unload(s, u->model);
    }
}

/* The model on demand that nobody has used for the longest time; NULL: none. */
static const char *longest_unused(const struct supervisor *s)
{
    const char *found = NULL;
    uint64_t first = UINT64_MAX;

    for (size_t i = 0; i < s->n_units; i++) {
        const struct unit *u = s->units[i];
        uint64_t since;

        if (u->role != UNIT_WORKER || u->state != UNIT_READY || !models_is_on_demand(u))
            continue;
        since = unused_since(s, u->model);
        if (since && since < first) {
            first = since;
            found = u->model;
        }
    }
    return found;
}

/* ---- what is wanted ---- */

/* One that does not fit the configuration is replaced first. The replicas of a
 * model wait for the first to pack what all of them use. */
static bool can_start(const struct unit *u)
{
    return u->wanted && u->pid == 0 && !u->gone && !u->outdated && !packed_are_due(u);
}

static void start_all(struct supervisor *s, const char *model)
{
    for (size_t i = 0; i < s->n_units; i++)
        if (is_of(s->units[i], model) && can_start(s->units[i]))
            unit_start(s->units[i]);
}

static void cannot_fit(struct supervisor *s, const char *model, int64_t need, int64_t room)
{
    for (size_t i = 0; i < s->n_units; i++)
        if (is_of(s->units[i], model) && s->units[i]->wanted)
            unit_refuse(s->units[i], "needs about %" PRIi64 " MB, and the models that stay loaded leave %" PRIi64
                        " MB of supervisor.memory_mb", need / 1024, room / 1024);
}

/* False: it has to wait. */
static bool make_room(struct supervisor *s, const char *model)
{
    struct memory m = count(s, model);
    const char *victim;

    if (!m.budget || m.taken + m.leaving + m.need <= m.budget)
        return true;
    if (m.fixed + m.need > m.budget) {
        cannot_fit(s, model, m.need, m.budget > m.fixed ? m.budget - m.fixed : 0);
        return false;
    }
    victim = m.taken + m.need > m.budget ? longest_unused(s) : NULL;
    if (victim) {
        log_event(LOG_NOTICE, "unload", (const char *[]){ "FASTCHAT_MODEL", victim, NULL },
                  "%s is unloaded to make room for %s", victim, model);
        unload(s, victim);
    }
    return false;
}

static void start_wanted(struct supervisor *s)
{
    for (size_t i = 0; i < s->n_units; i++) {
        struct unit *u = s->units[i];

        if (!can_start(u))
            continue;
        if (u->role != UNIT_WORKER)
            unit_start(u);
        else if (make_room(s, u->model))
            start_all(s, u->model);
    }
}

void models_turn(struct supervisor *s)
{
    measure(s);
    unload_unused(s);
    start_wanted(s);
}

static bool want(struct supervisor *s, const char *model, bool again)
{
    bool found = false;

    for (size_t i = 0; i < s->n_units; i++) {
        struct unit *u = s->units[i];

        if (!is_of(u, model))
            continue;
        found = true;
        if (again && u->pid == 0)
            unit_forgive(u);
        if (!u->wanted && models_is_unloaded(u)) {
            u->wanted = true;   /* one that stops is started again */
            supervisor_news(s);
        }
    }
    return found;
}

void models_want(struct supervisor *s, const char *model)
{
    for (size_t i = 0; i < s->n_units; i++)
        if (is_of(s->units[i], model) && models_is_on_demand(s->units[i])) {
            want(s, model, false);
            return;
        }
}

int models_load(struct supervisor *s, const char *model, struct err *err)
{
    return want(s, model, true) ? 0 : err_set(err, -ENOENT, "there is no model '%s' in the configuration", model);
}

int models_unload(struct supervisor *s, const char *model, struct err *err)
{
    if (config_find_model(s->config, model) < 0)
        return err_set(err, -ENOENT, "there is no model '%s' in the configuration", model);
    unload(s, model);
    return 0;
}

enum models_progress models_progress(const struct supervisor *s, const char *model, bool load, struct err *err)
{
    bool found = false;

    for (size_t i = 0; i < s->n_units; i++) {
        const struct unit *u = s->units[i];

        if (!is_of(u, model))
            continue;
        found = true;
        if (load && (u->state == UNIT_FAILED || u->state == UNIT_WAITING)) {
            err_set(err, -EIO, "%s: %s%s", u->name, u->reason, u->state == UNIT_WAITING ? "; it is tried again" : "");
            return MODELS_FAILED;
        }
        if (load ? !u->wanted && models_is_unloaded(u) : unit_is_up(u)) {
            err_set(err, -ECANCELED, "%s was %s again meanwhile", model, load ? "unloaded" : "loaded");
            return MODELS_FAILED;
        }
        if (load ? u->state != UNIT_READY : u->pid != 0 || u->state == UNIT_WAITING)
            return MODELS_PENDING;
    }
    if (!found) {
        err_set(err, -ENOENT, "the model '%s' is gone from the configuration", model);
        return MODELS_FAILED;
    }
    return MODELS_DONE;
}
