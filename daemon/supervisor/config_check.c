/* What is wrong between values that are each right. */
#include "daemon/supervisor/config_parts.h"

#include "base/arena.h"
#include "base/err.h"
#include "base/reach.h"
#include "daemon/supervisor/cpu_list.h"
#include "ipc/address.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct check {
    struct config *c;
    struct config_faults *faults;
};

/* Something that must be said once: a name or an address. */
struct claim {
    const char *what;           /* the name, or the address's text */
    const char *label;          /* "models[1].name" */
    const char *file;           /* NULL: the default, or the service's own */
    int line;
    struct address address;
    const char *model;          /* of a worker's own socket: the model's name */
    size_t order;
};

static void origin(const struct claim *m, struct buf *out)
{
    if (m->file && m->line)
        buf_printf(out, "%s (%s:%d)", m->label, m->file, m->line);
    else
        buf_adds(out, m->label);
}

static void taken(struct check *k, const struct claim *first, const struct claim *second)
{
    BUF_LOCAL who = BUF_INIT;

    if (!second->file) {        /* the fault is shown where somebody wrote it */
        const struct claim *swap = first;

        first = second;
        second = swap;
    }
    origin(first, &who);
    config_fault(k->faults, second->file, second->line, "%s: \"%s\" is taken already by %s",
                 second->label, second->what, buf_str(&who));
}

/* ---- names ---- */

static int by_text(const void *a, const void *b)
{
    const struct claim *x = a, *y = b;
    int r = strcmp(x->what, y->what);

    return r ? r : x->order < y->order ? -1 : 1;
}

static void add_name(struct config *c, struct claim *to, size_t *n, const struct config_group *g,
                     enum config_key key, const char *name)
{
    to[*n] = (struct claim){ .what = name, .file = g->values[key].file,
                             .line = g->values[key].line, .order = *n,
                             .label = arena_printf(c->arena, "%s.%s", g->label, config_rows[key].name) };
    if (to[*n].label)
        ++*n;
}

static void check_names(struct check *k)
{
    CLEANUP(mem_free) struct claim *claims = NULL;
    size_t n = 0;

    for (size_t m = 0; m < k->c->n_models; m++)
        n += 1 + k->c->models[m]->values[MODEL_aliases].n_list;
    claims = calloc(n + 1, sizeof *claims);
    if (!claims)
        return;
    n = 0;
    for (size_t m = 0; m < k->c->n_models; m++) {
        const struct config_group *g = k->c->models[m];
        const struct config_value *aliases = &g->values[MODEL_aliases];

        if (g->values[MODEL_name].set)
            add_name(k->c, claims, &n, g, MODEL_name, g->values[MODEL_name].s);
        for (size_t i = 0; i < aliases->n_list; i++)
            add_name(k->c, claims, &n, g, MODEL_aliases, aliases->list[i]);
    }
    qsort(claims, n, sizeof *claims, by_text);
    for (size_t i = 1, first = 0; i < n; i++) {
        if (strcmp(claims[i].what, claims[first].what) == 0)
            taken(k, &claims[first], &claims[i]);
        else
            first = i;
    }
}

/* ---- files ---- */

static const char *own_folder(struct check *k, const char *file)
{
    const char *slash = strrchr(file, '/');
    const char *name = slash ? arena_strndup(k->c->arena, file, (size_t)(slash - file + 1)) : ".";
    CLEANUP(mem_free) char *folder = name ? realpath(name, NULL) : NULL;

    return folder ? arena_strdup(k->c->arena, folder) : NULL;
}

/* Is something there? Also where nobody lets us look: that is said later. */
static bool exists(const char *path)
{
    return path && (access(path, F_OK) == 0 || errno == EACCES);
}

/* NULL: nothing there. A path that begins with ~ or $ has been resolved. What can
 * be seen goes before what cannot. */
static const char *find_file(struct check *k, const struct config_value *v)
{
    const struct config_value *dirs =
        &k->c->sections[CONFIG_SUPERVISOR].values[SUPERVISOR_model_dirs];
    const char *folder = own_folder(k, v->file), *hidden = NULL;

    if (*v->s == '/')
        return exists(v->s) ? v->s : NULL;
    for (size_t i = 0; i <= dirs->n_list; i++) {
        const char *at = i == 0 ? folder : dirs->list[i - 1];
        const char *path = at ? arena_printf(k->c->arena, "%s/%s", at, v->s) : NULL;

        if (path && access(path, F_OK) == 0)
            return path;
        if (!hidden && exists(path))
            hidden = path;
    }
    return hidden;
}

/* Why a file that may be there cannot be used; NULL: it can. */
static const char *fault_of(const char *path, struct err *why)
{
    struct stat st;

    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return S_ISDIR(st.st_mode) ? "is a folder" : "is no regular file";
    if (access(path, R_OK) == 0)
        return NULL;
    if (errno != EACCES)
        return strerror(errno);
    reach_denied(path, why);
    return err_text(why);
}

static void check_file(struct check *k, struct config_group *g, enum config_key key)
{
    struct config_value *v = &g->values[key];
    const char *name = config_rows[key].name, *path, *fault;
    struct err why = { 0 };

    if (!v->set)
        return;
    path = find_file(k, v);
    if (!path) {
        config_fault(k->faults, v->file, v->line, "%s.%s: there is no file \"%s\"%s", g->label, name, v->s,
                     *v->s == '/' ? "" : " beside this one or in supervisor.model_dirs");
        return;
    }
    fault = fault_of(path, &why);
    if (fault)
        config_fault(k->faults, v->file, v->line, "%s.%s: %s: %s", g->label, name, path, fault);
    else
        v->s = path;
}

static void check_speculation(struct check *k, const struct config_group *g)
{
    const struct config_value *draft = &g->values[MODEL_draft_model];

    if (strcmp(g->values[DEFAULTS_speculative].s, "draft") == 0 && !draft->set && !draft->line)
        config_fault(k->faults, g->file, g->line, "%s: \"draft_model\" is missing, and speculative is \"draft\"", g->label);
}

/* ---- addresses ---- */

static bool wildcard(const struct address *a)
{
    return strcmp(a->host, "0.0.0.0") == 0 || strcmp(a->host, "::") == 0;
}

static bool v6(const struct address *a)
{
    return strchr(a->host, ':') != NULL;
}

static const char *host(const struct address *a)
{
    return strcmp(a->host, "localhost") == 0 ? "127.0.0.1" : a->host;
}

static bool collide(const struct address *a, const struct address *b)
{
    if (a->is_unix != b->is_unix)
        return false;
    if (a->is_unix)
        return strcmp(a->path, b->path) == 0;
    if (a->port == 0 || a->port != b->port)     /* port 0: any that is free */
        return false;
    return strcmp(host(a), host(b)) == 0 || ((wildcard(a) || wildcard(b)) && v6(a) == v6(b));
}

struct claims {
    struct check *k;
    struct claim *list;
    size_t n;
};

/* An address that does not parse at this point is a path too long. */
static void claim(struct claims *cs, const char *text, const char *label,
                  const struct config_value *v)
{
    struct claim *m = &cs->list[cs->n];
    struct err err = { 0 };

    *m = (struct claim){ .what = arena_strdup(cs->k->c->arena, text), .order = cs->n,
                         .label = arena_strdup(cs->k->c->arena, label),
                         .file = v ? v->file : NULL, .line = v ? v->line : 0 };
    if (!m->what || !m->label)
        return;
    if (address_parse(text, &m->address, &err))
        config_fault(cs->k->faults, m->file, m->line, "%s: %s", label, err_text(&err));
    else
        cs->n++;
}

static void claim_own(struct claims *cs, const char *name)
{
    const struct config_value *dir =
        &cs->k->c->sections[CONFIG_SUPERVISOR].values[SUPERVISOR_runtime_dir];
    BUF_LOCAL text = BUF_INIT;
    size_t before = cs->n;

    if (!dir->set)
        return;
    buf_adds(&text, "unix:");
    config_socket_path(cs->k->c, name, &text);
    claim(cs, buf_str(&text), "supervisor.runtime_dir", dir);
    if (cs->n > before)
        cs->list[before].label = "the service itself";
}

static void claim_replica(struct claims *cs, size_t m, int replica)
{
    const struct config_group *g = cs->k->c->models[m];
    const struct config_value *listen = &g->values[MODEL_listen];
    BUF_LOCAL text = BUF_INIT;
    char label[64];
    size_t before;

    snprintf(label, sizeof label, "%s.listen", g->label);
    config_worker_tcp(cs->k->c, m, replica, MODEL_listen, &text);
    if (text.len)
        claim(cs, buf_str(&text), label, listen);
    buf_clear(&text);
    buf_adds(&text, "unix:");
    config_worker_socket(cs->k->c, m, replica, 99, &text);
    snprintf(label, sizeof label, "%s.name", g->label);
    before = cs->n;
    claim(cs, buf_str(&text), label, &g->values[MODEL_name]);
    if (cs->n > before)
        cs->list[before].model = g->values[MODEL_name].s;
}

static void gather(struct claims *cs)
{
    struct config *c = cs->k->c;
    const struct config_value *tcp = &c->sections[CONFIG_CONTROLLER].values[CONTROLLER_listen];

    claim_own(cs, "control.sock");
    if (!config_only_workers(c)) {
        claim_own(cs, "controller.sock");
        if (tcp->set)
            claim(cs, tcp->s, "controller.listen", tcp);
        for (size_t i = 0; i < c->n_listeners; i++) {
            const struct config_value *v = &c->listeners[i]->values[LISTEN_address];

            if (v->set)
                claim(cs, v->s, c->listeners[i]->label, v);
        }
    }
    for (size_t m = 0; m < c->n_models; m++)
        for (int i = 0; c->models[m]->values[MODEL_name].set &&
                        i < c->models[m]->values[DEFAULTS_replicas].i; i++)
            claim_replica(cs, m, i);
}

/* Models of one name have sockets of one name: check_names has said so. */
static bool same_model(const struct claim *a, const struct claim *b)
{
    return a->model && b->model && strcmp(a->model, b->model) == 0;
}

static void check_addresses(struct check *k, size_t n_workers)
{
    CLEANUP(mem_free) struct claim *list =
        calloc(3 + CONFIG_MAX_LISTENERS + 2 * n_workers, sizeof *list);
    struct claims cs = { .k = k, .list = list };

    if (!list)
        return;
    gather(&cs);
    for (size_t i = 1; i < cs.n; i++)
        for (size_t j = 0; j < i; j++)
            if (collide(&list[i].address, &list[j].address) && !same_model(&list[i], &list[j])) {
                taken(k, &list[j], &list[i]);
                break;
            }
}

static void check_model_address(struct check *k, const struct config_group *g)
{
    static const enum config_key keys[] = { MODEL_listen, MODEL_advertise };
    const struct config_value *listen = &g->values[MODEL_listen];
    const struct config_value *advertise = &g->values[MODEL_advertise];
    const struct config_value *controllers = &g->values[MODEL_controllers];
    struct address a;

    for (size_t i = 0; i < 2; i++) {
        const struct config_value *v = &g->values[keys[i]];

        if (v->set && address_parse(v->s, &a, NULL) == 0 && a.port &&
            a.port + g->values[DEFAULTS_replicas].i - 1 > 65535)
            config_fault(k->faults, v->file, v->line, "%s.%s: the ports of %lld replicas end above 65535",
                         g->label, config_rows[keys[i]].name, (long long)g->values[DEFAULTS_replicas].i);
    }
    if (advertise->set && !listen->set)
        config_fault(k->faults, advertise->file, advertise->line,
                     "%s.advertise: needs \"listen\" too", g->label);
    for (size_t i = 0; i < controllers->n_list; i++)
        if (strncmp(controllers->list[i], "unix:", 5) != 0 && !listen->set && !listen->line) {
            config_fault(k->faults, controllers->file, controllers->line,
                         "%s.controllers: \"%s\" can use a worker that it reaches only: \"listen\" is missing", g->label, controllers->list[i]);
            break;
        }
    if (listen->set && !advertise->set && !advertise->line &&
        address_parse(listen->s, &a, NULL) == 0 && wildcard(&a))
        config_fault(k->faults, listen->file, listen->line,
                     "%s.listen: others cannot reach \"%s\" under that name; say how in \"advertise\"",
                     g->label, listen->s);
}

/* ---- CPUs ---- */

/* What it has of `defaults` is checked there. */
static bool is_own(const struct check *k, const struct config_group *g, enum config_key key)
{
    const struct config_group *defaults = &k->c->sections[CONFIG_DEFAULTS];
    const struct config_value *v = &g->values[key], *d = &defaults->values[key];

    return v->set && (g == defaults || v->file != d->file || v->line != d->line);
}

static void check_node(struct check *k, const struct config_group *g)
{
    const struct config_value *node = &g->values[DEFAULTS_numa_node], *cpus = &g->values[DEFAULTS_cpus];
    struct cpu_list own, listed;

    if (node->i < 0 || !(is_own(k, g, DEFAULTS_numa_node) || is_own(k, g, DEFAULTS_cpus)))
        return;
    if (cpu_list_of_node((int)node->i, &own)) {
        config_fault(k->faults, node->file, node->line, "%s.numa_node: this machine has no node %lld", g->label, (long long)node->i);
        return;
    }
    if (!cpus->set || cpu_list_is_empty(&own) || cpu_list_parse(cpus->s, &listed, NULL))
        return;
    listed = cpu_list_and(&listed, &own);
    if (cpu_list_is_empty(&listed))
        config_fault(k->faults, node->file, node->line, "%s.numa_node: node %lld has none of the CPUs %s", g->label,
                     (long long)node->i, cpus->s);
}

/* A list for a larger machine is fine as long as some of it is here. */
static void check_cpus(struct check *k, const struct config_group *g)
{
    const struct config_value *v = &g->values[DEFAULTS_cpus];
    struct cpu_list listed, online, missing;
    BUF_LOCAL text = BUF_INIT;

    if (!is_own(k, g, DEFAULTS_cpus) || cpu_list_parse(v->s, &listed, NULL) || cpu_list_online(&online))
        return;
    missing = cpu_list_without(&listed, &online);
    if (cpu_list_is_empty(&missing))
        return;
    listed = cpu_list_and(&listed, &online);
    cpu_list_print(cpu_list_is_empty(&listed) ? &online : &missing, &text);
    if (cpu_list_is_empty(&listed))
        config_fault(k->faults, v->file, v->line, "%s.cpus: none of %s is on this machine, which has %s", g->label, v->s, buf_str(&text));
    else
        config_note(k->c, "%s:%d: %s.cpus: not on this machine: %s", v->file, v->line, g->label, buf_str(&text));
}

/* ---- all of it ---- */

static void require(struct check *k, const struct config_group *g, enum config_key key)
{
    const struct config_value *v = &g->values[key];

    if (!v->set && !v->line)
        config_fault(k->faults, g->file, g->line, "%s: \"%s\" is missing", g->label,
                     config_rows[key].name);
}

/* a must not be above b; both of section SUPERVISOR. */
static void check_order(struct check *k, enum config_key a, enum config_key b, int64_t times)
{
    const struct config_value *va = &k->c->sections[CONFIG_SUPERVISOR].values[a];
    const struct config_value *vb = &k->c->sections[CONFIG_SUPERVISOR].values[b];
    const struct config_value *at = vb->file ? vb : va;

    if (va->i * times <= vb->i)
        return;
    if (times > 1)
        config_fault(k->faults, at->file, at->line, "supervisor.%s: %lld is below %lld times %s (%lld)",
                     config_rows[b].name, (long long)vb->i, (long long)times, config_rows[a].name,
                     (long long)va->i);
    else
        config_fault(k->faults, at->file, at->line, "supervisor.%s: %lld is below %s (%lld)",
                     config_rows[b].name, (long long)vb->i, config_rows[a].name, (long long)va->i);
}

/* Where there are only workers, somebody else must be told of them and ask for them. */
static void check_is_reached(struct check *k, const struct config_group *g)
{
    const struct config_value *load = &g->values[DEFAULTS_load];
    const struct config_value *controllers = &g->values[MODEL_controllers];

    if (controllers->n_list == 0 && (controllers->set || !controllers->line))
        config_fault(k->faults, g->file, g->line, "%s: \"controllers\" is missing, and with supervisor.parts = \"workers\" there is none here", g->label);
    if (strcmp(load->s, "on-demand") == 0)
        config_fault(k->faults, load->file, load->line, "%s.load: with supervisor.parts = \"workers\" nobody here asks for a model; it can be always or manual", g->label);
}

static void check_models(struct check *k)
{
    struct config *c = k->c;
    size_t n_workers = 0;

    for (size_t m = 0; m < c->n_models; m++) {
        struct config_group *g = c->models[m];

        require(k, g, MODEL_name);
        require(k, g, MODEL_path);
        check_file(k, g, MODEL_path);
        check_file(k, g, MODEL_draft_model);
        check_speculation(k, g);
        check_model_address(k, g);
        if (config_only_workers(c))
            check_is_reached(k, g);
        check_cpus(k, g);
        check_node(k, g);
    }
    config_add_folders(c);
    for (size_t m = 0; m < c->n_models; m++)
        n_workers += (size_t)c->models[m]->values[DEFAULTS_replicas].i;
    check_names(k);
    if (n_workers > CONFIG_MAX_WORKERS)
        config_fault(k->faults, c->path, 0, "models: %zu workers in all are more than %d", n_workers,
                     CONFIG_MAX_WORKERS);
    else
        check_addresses(k, n_workers);
}

void config_check(struct config *c, struct config_faults *faults)
{
    struct check k = { .c = c, .faults = faults };
    const struct config_value *listen = &c->sections[CONFIG_API].values[API_listen];
    const struct config_value *folders = &c->sections[CONFIG_SUPERVISOR].values[SUPERVISOR_model_folders];

    check_order(&k, SUPERVISOR_heartbeat_ms, SUPERVISOR_heartbeat_limit_ms, 2);
    check_order(&k, SUPERVISOR_restart_delay_ms, SUPERVISOR_restart_delay_max_ms, 1);
    if (config_only_workers(c) && folders->n_list)
        config_fault(faults, folders->file, folders->line, "supervisor.model_folders: with parts = \"workers\" each model must be listed, with its controllers");
    if (c->n_listeners == 0 && !config_only_workers(c))
        config_fault(faults, listen->file, listen->line, "api.listen: needs at least one address");
    for (size_t i = 0; i < c->n_listeners; i++)
        require(&k, c->listeners[i], LISTEN_address);
    check_cpus(&k, &c->sections[CONFIG_DEFAULTS]);
    check_node(&k, &c->sections[CONFIG_DEFAULTS]);
    check_models(&k);
}
