/* What a reload would do.
 *
 * The file is read and checked as a reload does it, by this process, with its
 * user, its environment and its folders, so that the answer is the service's
 * and not that of whoever asks. What becomes of the processes follows the rules of
 * fleet.c, from the same fingerprints. Nothing is bound: that an address is in use
 * comes out at the reload.
 */
#include "base/err.h"
#include "base/json.h"
#include "daemon/supervisor/supervisor_parts.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct plan {
    const struct supervisor *s;
    const struct config *is;
    struct json_writer w;
};

/* ---- settings ---- */

static void put_change(const struct config_change *c, void *user)
{
    static const char *const applies[] = {
        [CONFIG_LIVE] = "live", [CONFIG_CHILD] = "child", [CONFIG_SERVICE] = "service",
    };
    struct json_writer *w = user;

    json_open(w, '{');
    if (c->model)
        json_kstr(w, "model", c->model);
    if (c->template)
        json_kstr(w, "template", c->template);
    if (c->row) {
        if (!c->model)
            json_kstr(w, "section", config_section_names[c->row->section]);
        json_kstr(w, "key", c->row->name);
        json_kstr(w, "applies", applies[c->row->applies]);
    }
    json_kstr(w, "was", c->was);
    json_kstr(w, "is", c->is);
    if (c->file)
        json_kstr(w, "file", c->file);
    if (c->line)
        json_kint(w, "line", c->line);
    json_close(w, '}');
}

/* ---- processes ---- */

static void put_process(struct plan *p, const char *name, const char *what)
{
    json_open(&p->w, '{');
    json_kstr(&p->w, "name", name);
    json_kstr(&p->w, "change", what);
    json_close(&p->w, '}');
}

static void put_settings(const struct config *c, const struct unit *u, struct buf *out)
{
    switch (u->role) {
    case UNIT_CONTROLLER: config_controller_settings(c, out); break;
    case UNIT_API: config_api_settings(c, out); break;
    case UNIT_WORKER: config_worker_settings(c, (size_t)config_find_model(c, u->model), u->replica, "", "", out); break;
    }
}

static bool is_told(const struct plan *p, const struct unit *u)
{
    BUF_LOCAL was = BUF_INIT;
    BUF_LOCAL is = BUF_INIT;

    if (u->role == UNIT_WORKER && config_find_model(p->s->config, u->model) < 0)
        return false;
    put_settings(p->s->config, u, &was);
    put_settings(p->is, u, &is);
    return strcmp(buf_str(&was), buf_str(&is)) != 0;
}

/* One that stays: what happens to its process; NULL: nothing. */
static const char *change_of(const struct plan *p, const struct unit *u)
{
    size_t model = u->role == UNIT_WORKER ? (size_t)config_find_model(p->is, u->model) : 0;
    bool always = u->role != UNIT_WORKER || fleet_is_always(p->is->models[model]);
    BUF_LOCAL print = BUF_INIT;

    fleet_fingerprint(p->is, u->role, model, &print);
    if (u->state == UNIT_FAILED)
        return models_is_on_demand(u) ? NULL : "start";
    if (models_is_unloaded(u))
        return always && !u->always ? "start" : NULL;
    if (!u->fingerprint || strcmp(buf_str(&print), u->fingerprint) != 0)
        return "replace";
    return is_told(p, u) ? "tell" : NULL;
}

static void put_there(struct plan *p)
{
    for (size_t i = 0; i < p->s->n_units; i++) {
        const struct unit *u = p->s->units[i];
        const char *what;

        if (!fleet_is_shown(u))
            continue;
        if (fleet_is_named(p->is, u))
            what = change_of(p, u);
        else
            what = u->pid ? "stop" : NULL;
        if (what)
            put_process(p, u->name, what);
    }
}

static void put_new_worker(struct plan *p, size_t m, int replica)
{
    const char *model = p->is->models[m]->values[MODEL_name].s;
    BUF_LOCAL name = BUF_INIT;

    if (fleet_find(p->s, UNIT_WORKER, model, replica) || !(fleet_is_always(p->is->models[m]) || models_is_loaded(p->s, model)))
        return;
    buf_printf(&name, "worker %s/%d", model, replica);
    put_process(p, buf_str(&name), "start");
}

static void put_new(struct plan *p)
{
    for (size_t m = 0; m < p->is->n_models; m++)
        for (int i = 0; i < p->is->models[m]->values[DEFAULTS_replicas].i; i++)
            put_new_worker(p, m, i);
    for (int i = 0; i < config_int(p->is, API_processes); i++) {
        char name[32];

        snprintf(name, sizeof name, "api/%d", i);
        if (!fleet_find(p->s, UNIT_API, "", i))
            put_process(p, name, "start");
    }
}

/* ---- all of it ---- */

int plan_write(const struct supervisor *s, const char *path, struct buf *out, struct buf *text)
{
    CLEANUP(config_free) struct config *is = NULL;
    struct plan p = { .s = s, .w = json_writer(out) };
    const struct config_row *row;
    struct err err = { 0 };

    if (config_load(path ? path : s->config->path, &is, text))
        return -EINVAL;
    p.is = is;
    row = config_needs_restart(s->config, is);
    json_open(&p.w, '{');
    json_kstr(&p.w, "config", is->path);
    if (row && config_restart_fault(is, row, &err))
        json_kstr(&p.w, "refused", err_text(&err));
    json_key(&p.w, "changes");
    json_open(&p.w, '[');
    config_diff(s->config, is, put_change, &p.w);
    json_close(&p.w, ']');
    json_key(&p.w, "processes");
    json_open(&p.w, '[');
    put_there(&p);
    put_new(&p);
    json_close(&p.w, ']');
    json_close(&p.w, '}');
    return 0;
}
