/* Which units there are, and how one takes another's place.
 *
 * fleet_fit() compares what is there with what the configuration names. A unit
 * knows by its fingerprint whether it fits; one that does not is outdated.
 * fleet_roll() then replaces the outdated ones, one at a time and in order, so
 * that at any moment at most one is on its way and its like go on serving:
 *
 *   ready, room for both    the heir starts; once it is ready the forerunner drains
 *   ready, no room          the forerunner drains; the heir starts at its end
 *   loading                 it is stopped, nothing depends on it yet; then as above
 *   no process              the heir takes its place as it is, whoever else is on the way
 *   ending, unloaded        nothing until it has no process
 *
 * There is no room beside the controller (one registry at a time), beside a
 * worker with a TCP port of its own, and where the memory is short. A heir that
 * fails for good is dropped, and its forerunner goes on.
 */
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "daemon/supervisor/supervisor_parts.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A reload does not wait for longer until there is memory for one. */
enum { ROOM_US = 10000000 };

/* ---- the list ---- */

int fleet_add(struct supervisor *s, struct unit *u, struct err *err)
{
    if (s->n_units == s->room) {
        size_t room = s->room ? 2 * s->room : 16;
        struct unit **more = realloc(s->units, room * sizeof(struct unit *));

        if (!more)
            return err_set(err, -ENOMEM, "no memory");
        s->units = more;
        s->room = room;
    }
    s->units[s->n_units++] = u;
    return 0;
}

/* Controller, workers as the configuration lists their models (those that it
 * does not name at the end), api; a replica's older process before its newer. */
static int order(const void *a, const void *b)
{
    static const int rank[] = { [UNIT_CONTROLLER] = 0, [UNIT_WORKER] = 1, [UNIT_API] = 2 };
    const struct unit *x = *(struct unit *const *)a, *y = *(struct unit *const *)b;
    int by = rank[x->role] - rank[y->role];

    if (by == 0 && x->role == UNIT_WORKER) {
        int i = config_find_model(x->sup->config, x->model), j = config_find_model(y->sup->config, y->model);

        by = (i < 0) - (j < 0);
        by = by ? by : i < 0 ? strcmp(x->model, y->model) : i - j;
    }
    if (by == 0)
        by = x->replica - y->replica;
    return by ? by : (x->forerunner != NULL) - (y->forerunner != NULL);
}

static void sort(struct supervisor *s)
{
    qsort(s->units, s->n_units, sizeof *s->units, order);
}

static void forget(struct supervisor *s)
{
    size_t kept = 0;

    for (size_t i = 0; i < s->n_units; i++) {
        struct unit *u = s->units[i];

        if (u->gone && u->pid == 0)
            unit_free(u);
        else
            s->units[kept++] = u;
    }
    s->n_units = kept;
}

struct unit *fleet_find(const struct supervisor *s, enum unit_role role, const char *model, int replica)
{
    for (size_t i = 0; i < s->n_units; i++) {
        struct unit *u = s->units[i];

        if (u->role == role && u->replica == replica && !u->gone && !u->forerunner && strcmp(u->model, model) == 0)
            return u;
    }
    return NULL;
}

bool fleet_is_shown(const struct unit *u)
{
    return !u->forerunner && !u->gone;
}

/* ---- making one ---- */

static unsigned free_generation(const struct supervisor *s, const char *model, int replica)
{
    unsigned generation = 0;

    for (size_t i = 0; i < s->n_units; i++) {
        const struct unit *u = s->units[i];

        if (u->role == UNIT_WORKER && u->replica == replica && u->generation == generation && strcmp(u->model, model) == 0) {
            generation++;
            i = (size_t)-1;     /* from the start again */
        }
    }
    return generation;
}

static int add_listener(struct unit *u, const char *name, const char *address, mode_t mode, gid_t group, struct err *err)
{
    struct listener *k;
    struct address a;

    if (address_parse(address, &a, err) || listener_get(&u->sup->listeners, &a, mode, group, &k, err))
        return err->code;
    return unit_add_listener(u, name, k, err);
}

static int add_controller_sockets(struct unit *u, struct err *err)
{
    const struct config *c = u->sup->config;
    const char *tcp = config_str(c, CONTROLLER_listen);
    BUF_LOCAL path = BUF_INIT;
    int r;

    buf_adds(&path, "unix:");
    config_socket_path(c, "controller.sock", &path);
    r = add_listener(u, "controller.unix", buf_str(&path), 0660, (gid_t)-1, err);
    return r == 0 && tcp ? add_listener(u, "controller.tcp", tcp, 0, (gid_t)-1, err) : r;
}

static int add_api_sockets(struct unit *u, struct err *err)
{
    const struct config *c = u->sup->config;
    int r = 0;

    for (size_t i = 0; r == 0 && i < c->n_listeners; i++) {
        const struct config_value *v = c->listeners[i]->values;
        char name[16];

        snprintf(name, sizeof name, "api.%zu", i);
        r = add_listener(u, name, v[LISTEN_address].s, (mode_t)v[LISTEN_mode].i,
                         v[LISTEN_group].set ? (gid_t)v[LISTEN_group].i : (gid_t)-1, err);
    }
    return r;
}

/* Made anew for each start: while a worker is down, whoever tries it is refused
 * instead of kept waiting. */
static int add_worker_sockets(struct unit *u, size_t model, struct err *err)
{
    BUF_LOCAL text = BUF_INIT;
    int r;

    buf_adds(&text, "unix:");
    config_worker_socket(u->sup->config, model, u->replica, u->generation, &text);
    r = unit_add_socket(u, "worker.unix", buf_str(&text), err);
    buf_clear(&text);
    config_worker_tcp(u->sup->config, model, u->replica, MODEL_listen, &text);
    return r == 0 && text.len ? unit_add_socket(u, "worker.tcp", buf_str(&text), err) : r;
}

void fleet_put_file(const char *path, struct buf *out)
{
    struct stat st;

    buf_adds(out, path);
    if (stat(path, &st) == 0)
        buf_printf(out, "\n%ju:%ju:%jd:%jd.%09ld", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino, (intmax_t)st.st_size,
                   (intmax_t)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
}

void fleet_fingerprint(const struct config *c, enum unit_role role, size_t model, struct buf *out)
{
    static const enum config_section sections[] = {
        [UNIT_CONTROLLER] = CONFIG_CONTROLLER, [UNIT_API] = CONFIG_API, [UNIT_WORKER] = CONFIG_MODEL,
    };

    config_fingerprint(c, sections[role], model, out);
    /* A file that was replaced is another model. */
    if (role == UNIT_WORKER)
        fleet_put_file(c->models[model]->values[MODEL_path].s, out);
}

static int make(struct supervisor *s, enum unit_role role, size_t model, int replica, struct unit **ret, struct err *err)
{
    const char *name = role == UNIT_WORKER ? s->config->models[model]->values[MODEL_name].s : "";
    struct unit *u;
    BUF_LOCAL print = BUF_INIT;
    int r = unit_new(s, role, name, replica, role == UNIT_WORKER ? free_generation(s, name, replica) : 0, &u, err);

    if (r)
        return r;
    fleet_fingerprint(s->config, role, model, &print);
    u->fingerprint = buf_take(&print);
    switch (role) {
    case UNIT_CONTROLLER: r = add_controller_sockets(u, err); break;
    case UNIT_API: r = add_api_sockets(u, err); break;
    case UNIT_WORKER: r = add_worker_sockets(u, model, err); break;
    }
    if (r == 0)
        r = fleet_add(s, u, err);
    if (r) {
        unit_free(u);
        return r;
    }
    *ret = u;
    return 0;
}

/* ---- fitting ---- */

static void let_go(struct unit *u)
{
    if (u->gone)
        return;
    u->gone = true;
    u->wanted = false;
    fleet_drop_heir(u);
    unit_retire(u, fleet_replace_us(u->sup));
}

void fleet_drop_heir(struct unit *u)
{
    if (!u->heir)
        return;
    u->heir->forerunner = NULL;
    let_go(STEAL(u->heir));
    u->outdated = true;
}

/* For another one; it is due even when its forerunner has drained for the first. */
static void drop_heir_for_another(struct unit *u)
{
    if (u->heir && u->stopping)
        u->wanted = u->awaited = true;
    fleet_drop_heir(u);
}

bool fleet_is_named(const struct config *c, const struct unit *u)
{
    int m;

    switch (u->role) {
    case UNIT_API:
        return u->replica < config_int(c, API_processes);
    case UNIT_WORKER:
        m = config_find_model(c, u->model);
        return m >= 0 && u->replica < c->models[m]->values[DEFAULTS_replicas].i;
    default:
        return true;
    }
}

bool fleet_is_always(const struct config_group *model)
{
    return strcmp(model->values[DEFAULTS_load].s, "always") == 0;
}

/* One that is there: does it fit, and does it know? */
static void check(struct unit *u, size_t model)
{
    bool always = u->role != UNIT_WORKER || fleet_is_always(u->sup->config->models[model]);
    BUF_LOCAL print = BUF_INIT;

    fleet_fingerprint(u->sup->config, u->role, model, &print);
    if (!u->fingerprint || strcmp(buf_str(&print), u->fingerprint) != 0 || u->state == UNIT_FAILED)
        u->outdated = true;
    if (!u->outdated && !limits_renew(u))
        u->outdated = true;
    drop_heir_for_another(u);   /* made for an earlier configuration, and not up yet */
    if (!u->outdated)
        unit_tell_settings(u);
    if (always && !u->always && models_is_unloaded(u))
        u->wanted = u->awaited = true;
    u->always = always;
}

static int fit_one(struct supervisor *s, enum unit_role role, size_t model, int replica, struct err *err)
{
    const struct config_group *g = role == UNIT_WORKER ? s->config->models[model] : NULL;
    struct unit *u = fleet_find(s, role, g ? g->values[MODEL_name].s : "", replica);
    int r;

    if (u) {
        check(u, model);
        return 0;
    }
    r = make(s, role, model, replica, &u, err);
    if (r)
        return r;
    u->always = !g || fleet_is_always(g);
    /* Started below, when all sockets are bound. */
    u->wanted = u->awaited = u->always || models_is_loaded(s, u->model);
    return 0;
}

int fleet_fit(struct supervisor *s, struct err *err)
{
    const struct config *c = s->config;
    int r = 0;

    for (size_t i = 0; i < s->n_units; i++) {
        if (!fleet_is_named(c, s->units[i]))
            let_go(s->units[i]);
        if (s->units[i]->gone && s->units[i]->role == UNIT_API)
            unit_tell_settings(s->units[i]);
    }
    if (!config_only_workers(c))
        r = fit_one(s, UNIT_CONTROLLER, 0, 0, err);
    for (size_t m = 0; r == 0 && m < c->n_models; m++)
        for (int i = 0; r == 0 && i < c->models[m]->values[DEFAULTS_replicas].i; i++)
            r = fit_one(s, UNIT_WORKER, m, i, err);
    for (int i = 0; r == 0 && !config_only_workers(c) && i < config_int(c, API_processes); i++)
        r = fit_one(s, UNIT_API, 0, i, err);
    sort(s);
    if (r == 0)
        models_turn(s);
    supervisor_news(s);
    return r;
}

void fleet_drop_heirs(struct supervisor *s)
{
    for (size_t i = 0; i < s->n_units; i++)
        drop_heir_for_another(s->units[i]);
}

void fleet_outdate(struct supervisor *s)
{
    for (size_t i = 0; i < s->n_units; i++)
        s->units[i]->outdated = !s->units[i]->gone;
}

/* ---- replacing ---- */

uint64_t fleet_replace_us(const struct supervisor *s)
{
    return (uint64_t)config_int(s->config, SUPERVISOR_replace_s) * 1000000;
}

static bool has_room_beside(const struct unit *u)
{
    if (u->role == UNIT_CONTROLLER)
        return false;
    for (size_t i = 0; i < u->n_sockets; i++)
        if (strcmp(u->sockets[i].name, "worker.tcp") == 0)
            return false;
    return u->role == UNIT_API || models_has_room_beside(u);
}

static void link_heir(struct unit *u, struct unit *heir)
{
    u->heir = heir;
    heir->forerunner = u;
    heir->awaited = true;
}

/* In place of one without a process, at once. What waits for its next start or
 * failed is tried anew; a model on demand that failed, with its next request. */
static void succeed(struct unit *u, struct unit *heir)
{
    heir->wanted = u->wanted || u->state == UNIT_WAITING || (u->state == UNIT_FAILED && !models_is_on_demand(u));
    heir->awaited = heir->wanted;
    u->gone = true;
    u->wanted = false;
    unit_stop(u, MAIL_STOP);
}

static void replace(struct supervisor *s, struct unit *u)
{
    int model = u->role == UNIT_WORKER ? config_find_model(s->config, u->model) : 0;
    struct err err = { 0 };
    struct unit *heir;

    u->outdated = false;
    if (model < 0)
        return;
    if (make(s, u->role, (size_t)model, u->replica, &heir, &err)) {
        log_event(LOG_ERR, "replace", NULL, "%s goes on as it is: %s", u->name, err_text(&err));
        reload_trouble(s, "%s goes on as it is: %s", u->name, err_text(&err));
        return;
    }
    heir->always = u->always;
    heir->rss_kb = u->rss_kb;
    heir->n_restarts = u->n_restarts;
    memcpy(heir->last_reason, u->last_reason, sizeof heir->last_reason);
    if (u->pid == 0) {
        succeed(u, heir);
    } else if (u->state != UNIT_READY) {
        link_heir(u, heir);
        log_info("%s is stopped: another one takes its place", u->name);
        unit_retire(u, 0);
    } else if (has_room_beside(u)) {
        link_heir(u, heir);
        log_info("%s: another one starts, to take its place", u->name);
        unit_start(heir);
    } else {
        link_heir(u, heir);
        log_info("%s drains: another one takes its place then", u->name);
        unit_retire(u, fleet_replace_us(s));
    }
    sort(s);
    supervisor_news(s);
}

/* Heirs that are ready take over. True while one is on its way. */
static bool take_over(struct supervisor *s)
{
    bool waiting = false;

    for (size_t i = 0; i < s->n_units; i++) {
        struct unit *u = s->units[i], *old = u->forerunner;

        if (!old)
            continue;
        if (u->state != UNIT_READY) {
            waiting = true;
            continue;
        }
        u->forerunner = old->heir = NULL;
        old->gone = true;
        unit_retire(old, fleet_replace_us(s));
    }
    return waiting;
}

/* Those that a reload waits for: they are up, or it is known that they are not. */
static void stop_waiting(struct supervisor *s)
{
    uint64_t now = clock_mono_us();

    for (size_t i = 0; i < s->n_units; i++) {
        struct unit *u = s->units[i];
        bool no_room = u->wanted && u->pid == 0 && now - u->since_us > ROOM_US && !packed_are_due(u);

        if (!u->awaited || (u->state == UNIT_LOADING && !u->gone) || (u->wanted && !no_room) || u->forerunner)
            continue;
        u->awaited = false;
        if (no_room)
            reload_trouble(s, "%s waits for memory that other models use", u->name);
        else if ((u->state == UNIT_FAILED || u->state == UNIT_WAITING) && !u->gone)
            reload_trouble(s, "%s: %s", u->name, u->reason);
    }
}

/* One that ends anyway is replaced at its end. */
static struct unit *next_outdated(const struct supervisor *s, bool running)
{
    for (size_t i = 0; i < s->n_units; i++) {
        struct unit *u = s->units[i];

        if (u->outdated && !u->gone && (running ? u->pid && !u->stopping : !u->pid))
            return u;
    }
    return NULL;
}

void fleet_roll(struct supervisor *s)
{
    struct unit *u;

    stop_waiting(s);
    forget(s);
    while ((u = next_outdated(s, false)))
        replace(s, u);
    while (!take_over(s) && (u = next_outdated(s, true)))
        replace(s, u);
}

bool fleet_is_settled(const struct supervisor *s)
{
    for (size_t i = 0; i < s->n_units; i++) {
        const struct unit *u = s->units[i];
        bool ends = u->gone || (u->pid && u->stopping);

        if (u->heir || u->awaited || (!ends && (u->outdated || u->reloading || u->mail & MAIL_RELOAD)))
            return false;
    }
    return true;
}

void fleet_went_down(struct unit *u)
{
    struct unit *heir = u->heir;

    if (!heir || u->sup->phase != STOP_NOT)
        return;
    u->heir = NULL;
    u->gone = true;
    heir->forerunner = NULL;
    if (heir->state == UNIT_STOPPED)
        unit_start(heir);
}

bool fleet_keeps_forerunner(struct unit *u)
{
    struct unit *old = u->forerunner;

    if (!old || !unit_is_up(old))
        return false;
    u->forerunner = old->heir = NULL;
    u->gone = true;
    log_event(LOG_WARNING, "replace", NULL, "%s goes on as it is: the one that was to take its place failed: %s", old->name, u->reason);
    reload_trouble(u->sup, "%s goes on as it is: the one that was to take its place failed: %s", old->name, u->reason);
    return true;
}
