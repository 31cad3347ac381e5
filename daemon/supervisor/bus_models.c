/* Models and their replicas as objects of the bus:
 *
 *     /org/fastchat/Manager1/model/NAME        org.fastchat.Manager1.Model
 *     /org/fastchat/Manager1/model/NAME/0      org.fastchat.Manager1.Replica
 *
 * with NAME as sd_bus_path_encode() writes it. There is an object for what the
 * table here holds, which follows the units once a turn. So a reader sees the
 * state that the last signal told, however many changes a turn brought; figures
 * that move all the time (memory, queues) are read when they are asked for, and
 * not told of.
 */
#include "base/err.h"
#include "base/json.h"
#include "daemon/supervisor/bus_parts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODELS_PATH BUS_PATH "/model"
#define MODEL_INTERFACE BUS_NAME ".Model"
#define REPLICA_INTERFACE BUS_NAME ".Replica"

/* What of a replica is told when it changes. */
struct replica_news {
    enum unit_state state;
    pid_t pid;
    uint64_t n_restarts;
    char reason[512], last_reason[512];
};

struct bus_replica {
    struct bus_model *model;
    int number;
    char *path;
    bool there, added;          /* in this turn */
    struct replica_news news;
};

struct bus_model {
    struct bus *bus;
    char name[132];
    char *path;
    bool there, added;
    struct bus_replica **replicas;
    size_t n_replicas;
    bool list, pids, restarts;          /* changed in this turn */
    size_t n_ready;
    const char *state;
    char reason[512];
};

/* ---- the table ---- */

static void replica_free(struct bus_replica *r)
{
    free(r->path);
    free(r);
}

static void model_free(struct bus_model *m)
{
    for (size_t i = 0; i < m->n_replicas; i++)
        replica_free(m->replicas[i]);
    free(m->replicas);
    free(m->path);
    free(m);
}

void bus_models_free(struct bus *b)
{
    for (size_t i = 0; i < b->n_models; i++)
        model_free(b->models[i]);
    free(b->models);
    b->models = NULL;
    b->n_models = 0;
}

static struct bus_model *find_model(const struct bus *b, const char *name)
{
    for (size_t i = 0; i < b->n_models; i++)
        if (strcmp(b->models[i]->name, name) == 0)
            return b->models[i];
    return NULL;
}

static struct bus_replica *find_replica(const struct bus_model *m, int number)
{
    for (size_t i = 0; i < m->n_replicas; i++)
        if (m->replicas[i]->number == number)
            return m->replicas[i];
    return NULL;
}

/* Room for one more at the end of a list of pointers. */
static bool room(void *list, size_t n)
{
    void **more = reallocarray(*(void **)list, n + 1, sizeof(void *));

    if (more)
        *(void **)list = more;
    return more != NULL;
}

/* NULL: no memory; the object comes with a later turn. */
static struct bus_model *add_model(struct bus *b, const char *name)
{
    struct bus_model *m = calloc(1, sizeof *m);

    if (!m || !room(&b->models, b->n_models) || sd_bus_path_encode(MODELS_PATH, name, &m->path) < 0) {
        free(m);
        return NULL;
    }
    m->bus = b;
    snprintf(m->name, sizeof m->name, "%s", name);
    m->added = true;
    m->state = unit_state_name(UNIT_STOPPED);
    b->models[b->n_models++] = m;
    return m;
}

static struct bus_replica *add_replica(struct bus_model *m, int number)
{
    struct bus_replica *r = calloc(1, sizeof *r);

    if (!r || !room(&m->replicas, m->n_replicas) || asprintf(&r->path, "%s/%d", m->path, number) < 0) {
        free(r);
        return NULL;
    }
    r->model = m;
    r->number = number;
    r->added = true;
    m->replicas[m->n_replicas++] = r;
    return r;
}

/* The unit behind it; NULL: it has none in this moment. */
static const struct unit *unit_of(const struct bus_replica *r)
{
    const struct supervisor *s = r->model->bus->sup;

    for (size_t i = 0; i < s->n_units; i++) {
        const struct unit *u = s->units[i];

        if (u->role == UNIT_WORKER && fleet_is_shown(u) && u->replica == r->number && strcmp(u->model, r->model->name) == 0)
            return u;
    }
    return NULL;
}

static const struct config_value *config_of(const struct bus_model *m)
{
    const struct config *c = m->bus->sup->config;
    int i = config_find_model(c, m->name);

    return i < 0 ? NULL : c->models[i]->values;
}

/* ---- properties ---- */

static int64_t stat_of(const struct bus_replica *r, const char *key)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    const struct unit *u = unit_of(r);
    int64_t v = 0;

    if (!u || !u->pid || !u->stats || json_parse(u->stats, strlen(u->stats), NULL, &tree, NULL))
        return 0;
    json_get_int(tree, key, 0, INT32_MAX, &v, NULL);
    return v;
}

static uint64_t memory_of(const struct bus_replica *r)
{
    const struct unit *u = unit_of(r);

    return u && u->pid ? (uint64_t)status_rss_kb(u->pid) * 1024 : 0;
}

static int get_replica(sd_bus *bus, const char *path, const char *interface, const char *property, sd_bus_message *reply,
                       void *user, sd_bus_error *error)
{
    const struct bus_replica *r = user;

    if (strcmp(property, "Number") == 0)
        return sd_bus_message_append(reply, "u", (uint32_t)r->number);
    if (strcmp(property, "Model") == 0)
        return sd_bus_message_append(reply, "o", r->model->path);
    if (strcmp(property, "State") == 0)
        return sd_bus_message_append(reply, "s", unit_state_name(r->news.state));
    if (strcmp(property, "Reason") == 0)
        return bus_append_text(reply, r->news.reason);
    if (strcmp(property, "LastReason") == 0)
        return bus_append_text(reply, r->news.last_reason);
    if (strcmp(property, "Pid") == 0)
        return sd_bus_message_append(reply, "u", (uint32_t)r->news.pid);
    if (strcmp(property, "Restarts") == 0)
        return sd_bus_message_append(reply, "t", r->news.n_restarts);
    if (strcmp(property, "Memory") == 0)
        return sd_bus_message_append(reply, "t", memory_of(r));
    if (strcmp(property, "QueueLength") == 0)
        return sd_bus_message_append(reply, "u", (uint32_t)stat_of(r, "queue_length"));
    if (strcmp(property, "Running") == 0)
        return sd_bus_message_append(reply, "u", (uint32_t)stat_of(r, "running"));
    return sd_bus_message_append(reply, "u", (uint32_t)stat_of(r, "waiting"));
}

static const sd_bus_vtable replica_vtable[] = {
    SD_BUS_VTABLE_START(0),
    SD_BUS_PROPERTY("Number", "u", get_replica, 0, SD_BUS_VTABLE_PROPERTY_CONST),
    SD_BUS_PROPERTY("Model", "o", get_replica, 0, SD_BUS_VTABLE_PROPERTY_CONST),
    SD_BUS_PROPERTY("State", "s", get_replica, 0, SD_BUS_VTABLE_PROPERTY_EMITS_CHANGE),
    SD_BUS_PROPERTY("Reason", "s", get_replica, 0, SD_BUS_VTABLE_PROPERTY_EMITS_CHANGE),
    SD_BUS_PROPERTY("LastReason", "s", get_replica, 0, SD_BUS_VTABLE_PROPERTY_EMITS_CHANGE),
    SD_BUS_PROPERTY("Pid", "u", get_replica, 0, SD_BUS_VTABLE_PROPERTY_EMITS_CHANGE),
    SD_BUS_PROPERTY("Restarts", "t", get_replica, 0, SD_BUS_VTABLE_PROPERTY_EMITS_CHANGE),
    SD_BUS_PROPERTY("Memory", "t", get_replica, 0, 0),
    SD_BUS_PROPERTY("QueueLength", "u", get_replica, 0, 0),
    SD_BUS_PROPERTY("Running", "u", get_replica, 0, 0),
    SD_BUS_PROPERTY("Waiting", "u", get_replica, 0, 0),
    SD_BUS_VTABLE_END,
};

static int append_aliases(sd_bus_message *reply, const struct bus_model *m)
{
    const struct config_value *v = config_of(m);
    int r = sd_bus_message_open_container(reply, 'a', "s");

    for (size_t i = 0; r >= 0 && v && i < v[MODEL_aliases].n_list; i++)
        r = bus_append_text(reply, v[MODEL_aliases].list[i]);
    return r < 0 ? r : sd_bus_message_close_container(reply);
}

static int append_pids(sd_bus_message *reply, const struct bus_model *m)
{
    int r = sd_bus_message_open_container(reply, 'a', "u");

    for (size_t i = 0; r >= 0 && i < m->n_replicas; i++)
        r = sd_bus_message_append(reply, "u", (uint32_t)m->replicas[i]->news.pid);
    return r < 0 ? r : sd_bus_message_close_container(reply);
}

static int append_replicas(sd_bus_message *reply, const struct bus_model *m)
{
    int r = sd_bus_message_open_container(reply, 'a', "o");

    for (size_t i = 0; r >= 0 && i < m->n_replicas; i++)
        r = sd_bus_message_append(reply, "o", m->replicas[i]->path);
    return r < 0 ? r : sd_bus_message_close_container(reply);
}

static int append_setting(sd_bus_message *reply, const struct bus_model *m, enum config_key key)
{
    const struct config_value *v = config_of(m);

    return bus_append_text(reply, v && v[key].s ? v[key].s : "");
}

/* Of all replicas together. */
static uint64_t sum(const struct bus_model *m, const char *property)
{
    uint64_t n = 0;

    for (size_t i = 0; i < m->n_replicas; i++)
        n += strcmp(property, "Restarts") == 0 ? m->replicas[i]->news.n_restarts
             : strcmp(property, "Memory") == 0 ? memory_of(m->replicas[i])
                                               : (uint64_t)stat_of(m->replicas[i], "queue_length");
    return n;
}

static int get_model(sd_bus *bus, const char *path, const char *interface, const char *property, sd_bus_message *reply,
                     void *user, sd_bus_error *error)
{
    const struct bus_model *m = user;

    if (strcmp(property, "Name") == 0)
        return bus_append_text(reply, m->name);
    if (strcmp(property, "Aliases") == 0)
        return append_aliases(reply, m);
    if (strcmp(property, "Path") == 0)
        return append_setting(reply, m, MODEL_path);
    if (strcmp(property, "Load") == 0)
        return append_setting(reply, m, DEFAULTS_load);
    if (strcmp(property, "State") == 0)
        return sd_bus_message_append(reply, "s", m->state);
    if (strcmp(property, "Reason") == 0)
        return bus_append_text(reply, m->reason);
    if (strcmp(property, "Ready") == 0)
        return sd_bus_message_append(reply, "u", (uint32_t)m->n_ready);
    if (strcmp(property, "Replicas") == 0)
        return append_replicas(reply, m);
    if (strcmp(property, "Pid") == 0)
        return append_pids(reply, m);
    if (strcmp(property, "QueueLength") == 0)
        return sd_bus_message_append(reply, "u", (uint32_t)sum(m, property));
    return sd_bus_message_append(reply, "t", sum(m, property));
}

static const sd_bus_vtable model_vtable[] = {
    SD_BUS_VTABLE_START(0),
    SD_BUS_PROPERTY("Name", "s", get_model, 0, SD_BUS_VTABLE_PROPERTY_CONST),
    SD_BUS_PROPERTY("Aliases", "as", get_model, 0, 0),
    SD_BUS_PROPERTY("Path", "s", get_model, 0, 0),
    SD_BUS_PROPERTY("Load", "s", get_model, 0, 0),
    SD_BUS_PROPERTY("State", "s", get_model, 0, SD_BUS_VTABLE_PROPERTY_EMITS_CHANGE),
    SD_BUS_PROPERTY("Reason", "s", get_model, 0, SD_BUS_VTABLE_PROPERTY_EMITS_CHANGE),
    SD_BUS_PROPERTY("Ready", "u", get_model, 0, SD_BUS_VTABLE_PROPERTY_EMITS_CHANGE),
    SD_BUS_PROPERTY("Replicas", "ao", get_model, 0, SD_BUS_VTABLE_PROPERTY_EMITS_CHANGE),
    SD_BUS_PROPERTY("Pid", "au", get_model, 0, SD_BUS_VTABLE_PROPERTY_EMITS_CHANGE),
    SD_BUS_PROPERTY("Restarts", "t", get_model, 0, SD_BUS_VTABLE_PROPERTY_EMITS_CHANGE),
    SD_BUS_PROPERTY("Memory", "t", get_model, 0, 0),
    SD_BUS_PROPERTY("QueueLength", "u", get_model, 0, 0),
    SD_BUS_VTABLE_END,
};

int bus_models_list(struct bus *b, sd_bus_message *reply)
{
    int r = sd_bus_message_open_container(reply, 'a', "(sssuuo)");

    for (size_t i = 0; r >= 0 && i < b->n_models; i++) {
        const struct bus_model *m = b->models[i];

        r = sd_bus_message_open_container(reply, 'r', "sssuuo");
        if (r >= 0)
            r = sd_bus_message_append(reply, "ss", m->name, m->state);
        if (r >= 0)
            r = bus_append_text(reply, m->reason);
        if (r >= 0)
            r = sd_bus_message_append(reply, "uuo", (uint32_t)m->n_ready, (uint32_t)m->n_replicas, m->path);
        if (r >= 0)
            r = sd_bus_message_close_container(reply);
    }
    return r < 0 ? r : sd_bus_message_close_container(reply);
}

/* ---- objects ---- */

static int on_find_model(sd_bus *bus, const char *path, const char *interface, void *user, void **ret, sd_bus_error *error)
{
    const struct bus *b = user;

    for (size_t i = 0; i < b->n_models; i++)
        if (strcmp(b->models[i]->path, path) == 0) {
            *ret = b->models[i];
            return 1;
        }
    return 0;
}

static int on_find_replica(sd_bus *bus, const char *path, const char *interface, void *user, void **ret, sd_bus_error *error)
{
    const struct bus *b = user;

    for (size_t i = 0; i < b->n_models; i++)
        for (size_t k = 0; strncmp(b->models[i]->path, path, strlen(b->models[i]->path)) == 0 && k < b->models[i]->n_replicas; k++)
            if (strcmp(b->models[i]->replicas[k]->path, path) == 0) {
                *ret = b->models[i]->replicas[k];
                return 1;
            }
    return 0;
}

/* The paths of all objects; sd-bus frees them. */
static int on_nodes(sd_bus *bus, const char *prefix, void *user, char ***ret, sd_bus_error *error)
{
    const struct bus *b = user;
    size_t n = 0, max = 0;
    bool failed = false;
    char **paths;

    for (size_t i = 0; i < b->n_models; i++)
        max += 1 + b->models[i]->n_replicas;
    paths = calloc(max + 1, sizeof *paths);
    if (!paths)
        return -ENOMEM;
    for (size_t i = 0; i < b->n_models; i++) {
        const struct bus_model *m = b->models[i];

        for (size_t k = 0; k <= m->n_replicas && !failed; k++) {
            paths[n] = strdup(k ? m->replicas[k - 1]->path : m->path);
            failed = !paths[n++];
        }
    }
    if (failed) {
        while (n)
            free(paths[--n]);
        free(paths);
        return -ENOMEM;
    }
    *ret = paths;
    return 0;
}

int bus_models_offer(struct bus *b)
{
    int r = sd_bus_add_fallback_vtable(b->conn, NULL, MODELS_PATH, MODEL_INTERFACE, model_vtable, on_find_model, b);

    if (r >= 0)
        r = sd_bus_add_fallback_vtable(b->conn, NULL, MODELS_PATH, REPLICA_INTERFACE, replica_vtable, on_find_replica, b);
    if (r >= 0)
        r = sd_bus_add_node_enumerator(b->conn, NULL, MODELS_PATH, on_nodes, b);
    return r;
}

/* ---- what changed ---- */

enum { MAX_CHANGED = 8 };

struct changed {
    char *names[MAX_CHANGED + 1];
    size_t n;
};

static void note(struct changed *c, bool is, const char *property)
{
    if (is)
        c->names[c->n++] = (char *)property;
}

static void tell_changed(struct bus *b, const char *path, const char *interface, struct changed *c)
{
    if (c->n)
        sd_bus_emit_properties_changed_strv(b->conn, path, interface, c->names);
}

static void tell_restart(struct bus *b, const struct bus_replica *r)
{
    sd_bus_message *m = NULL;

    if (sd_bus_message_new_signal(b->conn, &m, BUS_PATH, BUS_NAME, "WorkerRestarted") >= 0 &&
        sd_bus_message_append(m, "suut", r->model->name, (uint32_t)r->number, (uint32_t)r->news.pid, r->news.n_restarts) >= 0 &&
        bus_append_text(m, r->news.last_reason) >= 0)
        sd_bus_send(b->conn, m, NULL);
    sd_bus_message_unref(m);
}

/* True: it is started again. */
static bool take_news(struct bus_replica *r, const struct unit *u, struct changed *c)
{
    struct replica_news old = r->news;

    r->news = (struct replica_news){ .state = u->state, .pid = u->pid, .n_restarts = u->n_restarts };
    memcpy(r->news.reason, u->reason, sizeof r->news.reason);
    memcpy(r->news.last_reason, u->last_reason, sizeof r->news.last_reason);
    note(c, r->news.state != old.state, "State");
    note(c, strcmp(r->news.reason, old.reason) != 0, "Reason");
    note(c, strcmp(r->news.last_reason, old.last_reason) != 0, "LastReason");
    note(c, r->news.pid != old.pid, "Pid");
    note(c, r->news.n_restarts != old.n_restarts, "Restarts");
    r->model->pids |= r->news.pid != old.pid;
    r->model->restarts |= r->news.n_restarts != old.n_restarts;
    return r->news.n_restarts > old.n_restarts;
}

static void replica_turn(struct bus_model *m, const struct unit *u, bool tell)
{
    struct bus_replica *r = find_replica(m, u->replica);
    struct changed c = { 0 };
    bool again;

    if (!r)
        r = add_replica(m, u->replica);
    if (!r)
        return;
    r->there = true;
    again = take_news(r, u, &c);
    if (!tell || r->added)
        return;
    tell_changed(m->bus, r->path, REPLICA_INTERFACE, &c);
    if (again)
        tell_restart(m->bus, r);
}

/* What others care for first. */
static int rank(enum unit_state state)
{
    static const int ranks[] = {
        [UNIT_STOPPED] = 0, [UNIT_FAILED] = 1, [UNIT_DRAINING] = 2, [UNIT_WAITING] = 3, [UNIT_LOADING] = 4, [UNIT_READY] = 5,
    };

    return ranks[state];
}

/* The model's state is that of its best replica. */
static void sum_up(struct bus_model *m, struct changed *c)
{
    const struct bus_replica *best = NULL;
    size_t n_ready = 0;
    const char *state, *reason;

    for (size_t i = 0; i < m->n_replicas; i++) {
        const struct bus_replica *r = m->replicas[i];

        n_ready += r->news.state == UNIT_READY;
        if (!best || rank(r->news.state) > rank(best->news.state))
            best = r;
    }
    state = unit_state_name(best ? best->news.state : UNIT_STOPPED);
    reason = best ? best->news.reason : "";
    note(c, strcmp(state, m->state) != 0, "State");
    note(c, strcmp(reason, m->reason) != 0, "Reason");
    note(c, n_ready != m->n_ready, "Ready");
    note(c, m->list, "Replicas");
    note(c, m->pids || m->list, "Pid");
    note(c, m->restarts || m->list, "Restarts");
    m->state = state;
    m->n_ready = n_ready;
    snprintf(m->reason, sizeof m->reason, "%s", reason);
}

static void tell_state(const struct bus_model *m)
{
    sd_bus *conn = m->bus->conn;
    sd_bus_message *signal = NULL;

    if (sd_bus_message_new_signal(conn, &signal, BUS_PATH, BUS_NAME, "ModelStateChanged") >= 0 &&
        sd_bus_message_append(signal, "ss", m->name, m->state) >= 0 && bus_append_text(signal, m->reason) >= 0)
        sd_bus_send(conn, signal, NULL);
    sd_bus_message_unref(signal);
}

static void model_turn(struct bus_model *m, bool tell)
{
    struct changed c = { 0 };
    const char *before = m->state;
    sd_bus *conn = m->bus->conn;

    sum_up(m, &c);
    if (tell && m->added) {
        sd_bus_emit_interfaces_added(conn, m->path, MODEL_INTERFACE, NULL);
    } else if (tell) {
        tell_changed(m->bus, m->path, MODEL_INTERFACE, &c);
        if (m->state != before)
            tell_state(m);
    }
    for (size_t i = 0; i < m->n_replicas; i++) {
        if (tell && m->replicas[i]->added)
            sd_bus_emit_interfaces_added(conn, m->replicas[i]->path, REPLICA_INTERFACE, NULL);
        m->replicas[i]->added = false;
    }
    m->added = false;
}

/* Replicas that are gone; all of them go with their model. */
static void trim(struct bus_model *m, bool tell)
{
    size_t kept = 0;

    for (size_t i = 0; i < m->n_replicas; i++) {
        struct bus_replica *r = m->replicas[i];

        if (m->there && r->there) {
            m->list |= r->added;
            m->replicas[kept++] = r;
            continue;
        }
        m->list = true;
        if (tell)
            sd_bus_emit_interfaces_removed(m->bus->conn, r->path, REPLICA_INTERFACE, NULL);
        replica_free(r);
    }
    m->n_replicas = kept;
}

static void trim_all(struct bus *b, bool tell)
{
    size_t kept = 0;

    for (size_t i = 0; i < b->n_models; i++) {
        struct bus_model *m = b->models[i];

        trim(m, tell);
        if (m->there) {
            b->models[kept++] = m;
            continue;
        }
        if (tell)
            sd_bus_emit_interfaces_removed(b->conn, m->path, MODEL_INTERFACE, NULL);
        model_free(m);
    }
    b->n_models = kept;
}

static void begin_turn(struct bus *b)
{
    const struct config *c = b->sup->config;

    for (size_t i = 0; i < b->n_models; i++) {
        struct bus_model *m = b->models[i];

        m->there = m->list = m->pids = m->restarts = false;
        for (size_t k = 0; k < m->n_replicas; k++)
            m->replicas[k]->there = false;
    }
    for (size_t i = 0; i < c->n_models; i++) {
        const char *name = c->models[i]->values[MODEL_name].s;
        struct bus_model *m = find_model(b, name);

        if (!m)
            m = add_model(b, name);
        if (m)
            m->there = true;
    }
}

void bus_models_turn(struct bus *b, bool tell)
{
    const struct supervisor *s = b->sup;

    begin_turn(b);
    for (size_t i = 0; i < s->n_units; i++) {
        const struct unit *u = s->units[i];
        struct bus_model *m = u->role == UNIT_WORKER && fleet_is_shown(u) ? find_model(b, u->model) : NULL;

        if (m)
            replica_turn(m, u, tell);
    }
    trim_all(b, tell);
    for (size_t i = 0; i < b->n_models; i++)
        model_turn(b->models[i], tell);
}
