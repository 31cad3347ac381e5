#include "daemon/api/catalog.h"

#include "base/err.h"
#include "base/json.h"
#include "daemon/api/api_error.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct catalog {
    struct model *models;
    struct worker *workers;
    uint64_t turn;              /* equals share in turn */
    uint64_t serial;            /* of the newest worker */
    bool keep_missing;          /* see catalog_keep_missing() */
};

enum { MAX_NAMES = 1024, MAX_WORKERS = 4096 };

static const struct json_limits table_limits = {
    .bytes = 4u << 20, .depth = 16, .string_bytes = 4096, .values = 100000,
};

/* ---- lists of names ---- */

static void names_free(char **names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(names[i]);
    free(names);
}

static bool names_have(char *const *names, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

/* 0 and a list of the array's strings; -EINVAL; -ENOMEM. */
static int names_read(const cJSON *array, char ***ret, size_t *ret_n)
{
    int n = array ? cJSON_GetArraySize(array) : 0;
    const cJSON *item;
    char **names;
    size_t done = 0;

    if (n > MAX_NAMES)
        return -EINVAL;
    names = calloc((size_t)n + 1, sizeof *names);
    if (!names)
        return -ENOMEM;
    cJSON_ArrayForEach(item, array)
    {
        bool fine = cJSON_IsString(item) && item->valuestring[0];

        names[done] = fine ? strdup(item->valuestring) : NULL;
        if (!names[done]) {
            names_free(names, done);
            return fine ? -ENOMEM : -EINVAL;
        }
        done++;
    }
    *ret = names;
    *ret_n = done;
    return 0;
}

/* ---- models ---- */

static void model_free(struct model *m)
{
    if (!m)
        return;
    names_free(m->aliases, m->n_aliases);
    free(m->name);
    free(m);
}

DEFINE_CLEANUP(struct model *, model_free)

static void models_free(struct model *m)
{
    while (m) {
        struct model *next = m->next;

        model_free(m);
        m = next;
    }
}

DEFINE_CLEANUP(struct model *, models_free)

static void worker_free(struct worker *w)
{
    if (!w)
        return;
    names_free(w->models, w->n_models);
    free(w->name);
    free(w->unix_path);
    free(w->url);
    free(w);
}

DEFINE_CLEANUP(struct worker *, worker_free)

static void workers_free(struct worker *w)
{
    while (w) {
        struct worker *next = w->next;

        worker_free(w);
        w = next;
    }
}

DEFINE_CLEANUP(struct worker *, workers_free)

struct catalog *catalog_new(void)
{
    return calloc(1, sizeof(struct catalog));
}

void catalog_free(struct catalog *c)
{
    if (!c)
        return;
    models_free(c->models);
    workers_free(c->workers);
    free(c);
}

static bool model_answers_to(const struct model *m, const char *name)
{
    return strcmp(m->name, name) == 0 || names_have(m->aliases, m->n_aliases, name);
}

/* Of ours by the model's own name only: while an alias goes from one model to
 * another, workers of both may list it. */
static bool worker_serves(const struct worker *w, const struct model *m)
{
    bool own_name = m->configured && w->native;

    if (!w->listed)
        return false;
    for (size_t i = 0; i < w->n_models; i++)
        if (own_name ? strcmp(m->name, w->models[i]) == 0 : model_answers_to(m, w->models[i]))
            return true;
    return false;
}

bool catalog_serves(const struct catalog *c, const struct model *m)
{
    for (const struct worker *w = c->workers; w; w = w->next)
        if (worker_serves(w, m))
            return true;
    return false;
}

static struct model *find_configured(const struct catalog *c, const char *name)
{
    struct model *m = c->models;

    while (m && !(m->configured && model_answers_to(m, name)))
        m = m->next;
    return m;
}

/* The settings' word counts before the name that some worker came with. */
struct model *catalog_find(struct catalog *c, const char *name)
{
    struct model *m = find_configured(c, name);

    if (m)
        return m;
    for (m = c->models; m; m = m->next)
        if (model_answers_to(m, name) && catalog_serves(c, m))
            return m;
    return NULL;
}

/* Known from the table only, and wanted: served, and no alias of the settings. */
static bool is_found(const struct catalog *c, const struct model *m)
{
    return catalog_serves(c, m) && !find_configured(c, m->name);
}

static struct model *find_any(struct model *list, const char *name)
{
    while (list && strcmp(list->name, name) != 0)
        list = list->next;
    return list;
}

static int read_model(const cJSON *row, struct model **ret, struct err *err)
{
    CLEANUP(model_free) struct model *m = calloc(1, sizeof *m);
    const cJSON *aliases = NULL;
    const char *name = NULL;
    int r;

    if (!m)
        return -ENOMEM;
    if (json_get_string(row, "name", &name, err) != 0 || !name[0])
        return err_set(err, -EINVAL, "a model without a name");
    m->queue = CATALOG_FOREIGN_QUEUE;
    m->parallel = m->replicas = 1;
    if (json_get_int(row, "queue", 0, INT32_MAX, &m->queue, err) < 0 ||
        json_get_int(row, "parallel", 1, INT32_MAX, &m->parallel, err) < 0 ||
        json_get_int(row, "replicas", 0, INT32_MAX, &m->replicas, err) < 0 ||
        json_get_array(row, "aliases", &aliases, err) < 0) {
        err_place(err, "model '%s'", name);
        return -EINVAL;
    }
    r = names_read(aliases, &m->aliases, &m->n_aliases);
    if (r < 0)
        return err_set(err, r, "model '%s': aliases can not be read", name);
    m->name = strdup(name);
    if (!m->name)
        return -ENOMEM;
    m->configured = true;
    *ret = STEAL(m);
    return 0;
}

/* Drops what neither the settings nor a worker nor a lease speaks for. */
static void drop_unused_models(struct catalog *c)
{
    for (struct model **at = &c->models; *at;) {
        struct model *m = *at;

        if (m->configured || m->leases || is_found(c, m)) {
            at = &m->next;
            continue;
        }
        *at = m->next;
        model_free(m);
    }
}

int catalog_configure(struct catalog *c, const cJSON *rows, struct err *err)
{
    CLEANUP(models_free) struct model *fresh = NULL;
    struct model **end = &fresh, *old;
    const cJSON *row;
    int r;

    if (rows && !cJSON_IsArray(rows))
        return err_set(err, -EINVAL, "'models' must be an array, but is %s", json_type_name(rows));
    cJSON_ArrayForEach(row, rows)
    {
        r = read_model(row, end, err);
        if (r < 0)
            return r;
        end = &(*end)->next;
    }
    for (old = c->models; old; old = old->next)
        old->configured = false;
    /* A model that stays keeps its place in memory: leases point to it. */
    while (fresh) {
        struct model *m = fresh;

        fresh = m->next;
        m->next = NULL;
        old = find_any(c->models, m->name);
        if (!old) {
            m->next = c->models;
            c->models = m;
            continue;
        }
        names_free(old->aliases, old->n_aliases);
        old->aliases = STEAL(m->aliases);
        old->n_aliases = m->n_aliases;
        m->n_aliases = 0;
        old->configured = true;
        old->queue = m->queue;
        old->parallel = m->parallel;
        old->replicas = m->replicas;
        model_free(m);
    }
    drop_unused_models(c);
    return 0;
}

static void describe(struct model *m, const char *doing, const char *reason)
{
    snprintf(m->doing, sizeof m->doing, "%s", doing);
    snprintf(m->reason, sizeof m->reason, "%s", reason);
}

/* One replica that loads or runs outweighs failed ones, a failed one those
 * that are stopped. */
static void take_state(struct model *m, const cJSON *row, bool first)
{
    const char *state = "", *reason = "";
    bool on_demand = false;

    json_get_string(row, "state", &state, NULL);
    json_get_string(row, "reason", &reason, NULL);
    json_get_bool(row, "on_demand", &on_demand, NULL);
    m->on_demand |= on_demand;
    if (strcmp(state, "failed") == 0) {
        if (first || m->state == MODEL_STOPPED) {
            m->state = MODEL_FAILED;
            describe(m, state, reason);
        }
    } else if (strcmp(state, "stopped") == 0) {
        if (first) {
            m->state = MODEL_STOPPED;
            describe(m, state, reason);
        }
    } else if (first || m->state != MODEL_LOADING || (reason[0] && !m->reason[0])) {
        m->state = MODEL_LOADING;
        describe(m, state, reason);
    }
}

void catalog_states(struct catalog *c, const cJSON *rows)
{
    const cJSON *row;
    const char *name;

    if (!cJSON_IsArray(rows))
        return;
    for (struct model *m = c->models; m; m = m->next) {
        bool first = true;

        m->state = MODEL_LOADING;
        m->on_demand = false;
        describe(m, "", "");
        cJSON_ArrayForEach(row, rows)
        {
            if (json_get_string(row, "name", &name, NULL) != 0 || strcmp(name, m->name) != 0)
                continue;
            take_state(m, row, first);
            first = false;
        }
        if (first && m->known)
            m->state = MODEL_STOPPED;           /* its workers are gone for good */
        m->known |= !first;
        if (m->state != MODEL_STOPPED)
            m->want_us = 0;
    }
}

/* ---- the routing table ---- */

static int copy_string(const cJSON *row, const char *key, char **ret, struct err *err)
{
    const char *text;
    int r = json_get_string(row, key, &text, err);

    if (r == 0 && text[0]) {
        *ret = strdup(text);
        return *ret ? 0 : -ENOMEM;
    }
    return r < 0 ? r : 0;
}

static int read_worker(const cJSON *row, struct worker **ret, struct err *err)
{
    CLEANUP(worker_free) struct worker *w = calloc(1, sizeof *w);
    const cJSON *models = NULL;
    int r;

    if (!w)
        return -ENOMEM;
    w->speed = 1;
    w->listed = true;
    if (copy_string(row, "name", &w->name, err) < 0 ||
        copy_string(row, "unix", &w->unix_path, err) < 0 ||
        copy_string(row, "url", &w->url, err) < 0 ||
        json_get_bool(row, "native", &w->native, err) < 0 ||
        json_get_int(row, "version", 1, INT32_MAX, &w->version, err) < 0 ||
        json_get_number(row, "speed", &w->speed, err) < 0 ||
        json_get_int(row, "queue_length", 0, INT32_MAX, &w->queue_length, err) < 0 ||
        json_get_int(row, "context_length", 0, INT32_MAX, &w->context_length, err) < 0 ||
        json_get_int(row, "parallel", 0, INT32_MAX, &w->parallel, err) < 0 ||
        json_get_int(row, "instance", 0, INT64_MAX, &w->instance, err) < 0 ||
        json_get_array(row, "models", &models, err) < 0)
        return err_is_set(err) ? -EPROTO : -ENOMEM;
    if (!w->name || (!w->unix_path && !w->url))
        return err_set(err, -EPROTO, "a worker without a name or an address");
    if (!(w->speed > 0))
        w->speed = 1e-6;
    w->version = w->native ? w->version ? w->version : 1 : 0;
    r = names_read(models, &w->models, &w->n_models);
    if (r < 0)
        return err_set(err, r == -ENOMEM ? r : -EPROTO, "worker %s: 'models' is no list of names",
                       w->name);
    *ret = STEAL(w);
    return 0;
}

/* What the table says about a worker that is known already. */
static void refresh_worker(struct worker *to, struct worker *from)
{
    char **models = to->models;
    size_t n = to->n_models;

    to->models = from->models;
    to->n_models = from->n_models;
    from->models = models;
    from->n_models = n;
    free(to->unix_path);
    free(to->url);
    to->unix_path = STEAL(from->unix_path);
    to->url = STEAL(from->url);
    to->native = from->native;
    to->version = from->version;
    to->speed = from->speed;
    to->queue_length = from->queue_length;
    to->context_length = from->context_length;
    to->parallel = from->parallel;
    to->listed = true;
}

static void drop_unlisted_workers(struct catalog *c)
{
    for (struct worker **at = &c->workers; *at;) {
        struct worker *w = *at;

        if (w->listed || w->leases) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        worker_free(w);
    }
}

/* Models that only workers know of. */
static int adopt_models(struct catalog *c, const struct worker *w)
{
    for (size_t i = 0; i < w->n_models; i++) {
        CLEANUP(model_free) struct model *m = NULL;
        struct model *known = c->models;

        while (known && !model_answers_to(known, w->models[i]))
            known = known->next;
        if (known)
            continue;
        m = calloc(1, sizeof *m);
        if (!m || !(m->name = strdup(w->models[i])))
            return -ENOMEM;
        m->queue = CATALOG_FOREIGN_QUEUE;
        m->parallel = w->parallel > 0 ? w->parallel : 1;
        m->replicas = 1;
        m->next = c->models;
        c->models = STEAL(m);
    }
    return 0;
}

static void take_worker(struct catalog *c, struct worker *w)
{
    struct worker *old = c->workers;

    for (; old; old = old->next) {
        if (strcmp(old->name, w->name) != 0)
            continue;
        if (old->instance == w->instance) {
            refresh_worker(old, w);
            worker_free(w);
            return;
        }
        old->listed = false;    /* that process is gone, whatever still runs there */
    }
    w->serial = ++c->serial;
    w->next = c->workers;
    c->workers = w;
}

void catalog_keep_missing(struct catalog *c, bool keep)
{
    c->keep_missing = keep;
}

int catalog_table(struct catalog *c, const char *line, size_t len, struct err *err)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    CLEANUP(workers_free) struct worker *fresh = NULL;
    struct worker **end = &fresh;
    const cJSON *rows = NULL, *row;
    size_t n = 0;
    int r;

    r = json_parse(line, len, &table_limits, &tree, err);
    if (r < 0)
        return r == -ENOMEM ? r : -EPROTO;
    if (json_get_array(tree, "workers", &rows, err) != 0)
        return err_set(err, -EPROTO, "'workers' is missing");
    cJSON_ArrayForEach(row, rows)
    {
        if (n++ == MAX_WORKERS)
            return err_set(err, -EPROTO, "more than %d workers", MAX_WORKERS);
        r = read_worker(row, end, err);
        if (r < 0)
            return r;
        end = &(*end)->next;
    }
    for (struct worker *w = c->workers; w; w = w->next)
        w->listed = w->listed && c->keep_missing;
    while (fresh) {
        struct worker *w = fresh;

        fresh = w->next;
        w->next = NULL;
        take_worker(c, w);
    }
    drop_unlisted_workers(c);
    for (struct worker *w = c->workers; w; w = w->next)
        if (w->listed && adopt_models(c, w) < 0)
            return err_set(err, -ENOMEM, "no memory for the routing table");
    drop_unused_models(c);
    return 0;
}

/* ---- what is asked ---- */

static int64_t context_of(const struct catalog *c, const struct model *m)
{
    int64_t least = 0;

    for (const struct worker *w = c->workers; w; w = w->next)
        if (w->context_length > 0 && worker_serves(w, m) &&
            (!least || w->context_length < least))
            least = w->context_length;
    return least;
}

static int by_id(const void *a, const void *b)
{
    return strcmp(((const struct catalog_entry *)a)->id, ((const struct catalog_entry *)b)->id);
}

static const char *status_of(const struct catalog *c, const struct model *m)
{
    static const char *const words[] = {
        [MODEL_LOADING] = "loading", [MODEL_FAILED] = "failed", [MODEL_STOPPED] = "stopped",
    };

    return catalog_serves(c, m) ? "loaded" : words[m->state];
}

int catalog_list(struct catalog *c, struct catalog_entry **ret, size_t *ret_n)
{
    struct catalog_entry *list;
    size_t n = 0, room = 1;

    for (const struct model *m = c->models; m; m = m->next)
        room += 1 + m->n_aliases;
    list = calloc(room, sizeof *list);
    if (!list)
        return -ENOMEM;
    for (struct model *m = c->models; m; m = m->next) {
        int64_t context = context_of(c, m);

        if (!m->configured && !is_found(c, m))
            continue;
        list[n++] = (struct catalog_entry){ m->name, m, context, status_of(c, m) };
        for (size_t i = 0; i < m->n_aliases; i++)
            list[n++] = (struct catalog_entry){ m->aliases[i], m, context, status_of(c, m) };
    }
    qsort(list, n, sizeof *list, by_id);
    *ret = list;
    *ret_n = n;
    return 0;
}

/* Sequences that may run and wait. A model of foreign workers grows with
 * them. */
static uint64_t room_of(const struct catalog *c, const struct model *m)
{
    uint64_t slots = (uint64_t)m->parallel * (uint64_t)m->replicas, served = 0;

    for (const struct worker *w = c->workers; w; w = w->next)
        if (worker_serves(w, m))
            served += w->parallel > 0 ? (uint64_t)w->parallel : 1;
    return (uint64_t)m->queue + (served > slots ? served : slots);
}

bool catalog_sleeps(const struct model *m)
{
    return m->configured && m->on_demand && m->state == MODEL_STOPPED;
}

bool catalog_comes(const struct model *m, struct api_error *e)
{
    if (!m->configured) {
        api_error_set(e, 503, NULL, NULL, "No worker of the model '%s' could take the request.", m->name);
        e->retry_after_s = 1;
        return false;
    }
    if (m->state == MODEL_FAILED) {
        api_error_set(e, 503, NULL, NULL, "The model '%s' has failed%s%s", m->name,
                      m->reason[0] ? ": " : ".", m->reason);
        e->retry_after_s = 30;
        return false;
    }
    if (m->state == MODEL_STOPPED && !m->on_demand) {
        api_error_set(e, 503, NULL, NULL, "The model '%s' is not loaded; 'fastchat load %s' loads it.",
                      m->name, m->name);
        e->retry_after_s = 30;
        return false;
    }
    /* "ready" and yet nobody is there: it has not registered, or has just died. */
    api_error_set(e, 503, NULL, NULL, "Loading model: '%s' is not ready yet (it is %s%s%s).", m->name,
                  !m->doing[0] || strcmp(m->doing, "ready") == 0 ? "loading" : m->doing,
                  m->reason[0] ? ": " : "", m->reason);
    e->retry_after_s = 2;
    return true;
}

int catalog_admit(struct catalog *c, const struct model *m, unsigned n, struct api_error *e)
{
    uint64_t room = room_of(c, m);

    if (n > room)
        return api_error_set(e, 400, "invalid_value", "n",
                             "'n' must be at most %llu for the model '%s', but is %u",
                             (unsigned long long)room, m->name, n);
    if (m->leases + (uint64_t)n > room) {
        api_error_set(e, 503, NULL, NULL,
                      "The queue of the model '%s' is full: %u requests run or wait.", m->name,
                      m->leases);
        e->retry_after_s = 1;
        return -EINVAL;
    }
    return 0;
}

static double load_of(const struct worker *w)
{
    double n = (double)w->queue_length;

    return (w->leases > n ? (double)w->leases : n) / w->speed;
}

struct worker *catalog_pick(struct catalog *c, const struct model *m, const uint64_t *tried,
                            size_t n_tried, uint64_t now_us)
{
    struct worker *best = NULL;
    bool best_suspect = false;
    double best_load = 0;
    uint64_t equals = 0;

    for (struct worker *w = c->workers; w; w = w->next) {
        bool suspect = w->suspect_until_us > now_us, known = false;
        double load = load_of(w);

        for (size_t i = 0; i < n_tried; i++)
            known |= tried[i] == w->serial;
        if (known || !worker_serves(w, m))
            continue;
        if (best && suspect == best_suspect && load == best_load) {
            if (++equals && (c->turn % (equals + 1)) == 0)
                best = w;
            continue;
        }
        if (best && (suspect != best_suspect ? suspect : load > best_load))
            continue;
        best = w;
        best_suspect = suspect;
        best_load = load;
        equals = 0;
    }
    c->turn++;
    return best;
}

bool catalog_has_others(const struct catalog *c, const struct model *m)
{
    for (const struct worker *w = c->workers; w; w = w->next)
        if (w->version < CATALOG_VERSION && worker_serves(w, m))
            return true;
    return false;
}

struct model *catalog_only(struct catalog *c, struct api_error *e)
{
    struct model *only = NULL;

    for (struct model *m = c->models; m; m = m->next) {
        if (!m->configured && !is_found(c, m))
            continue;
        if (only) {
            api_error_set(e, 400, "missing_required_parameter", "model", "'model' is required where there is more than one");
            return NULL;
        }
        only = m;
    }
    if (!only)
        api_error_set(e, 404, "model_not_found", "model", "There is no model.");
    return only;
}

void catalog_lease_model(struct catalog *c, struct model *m, unsigned n)
{
    m->leases += n;
}

void catalog_release_model(struct catalog *c, struct model *m, unsigned n)
{
    m->leases -= n;
    if (!m->leases && !m->configured)
        drop_unused_models(c);
}

void catalog_lease_worker(struct worker *w)
{
    w->leases++;
}

void catalog_release_worker(struct catalog *c, struct worker *w)
{
    w->leases--;
    if (!w->leases && !w->listed)
        drop_unlisted_workers(c);
}

enum catalog_health catalog_health(struct catalog *c)
{
    enum catalog_health health = CATALOG_OK;

    for (const struct model *m = c->models; m; m = m->next) {
        if (catalog_serves(c, m))
            return CATALOG_OK;
        if (!m->configured)
            continue;
        if (m->on_demand && m->state != MODEL_FAILED)
            return CATALOG_OK;
        if (m->state == MODEL_LOADING)
            health = CATALOG_LOADING;
        else if (health == CATALOG_OK)
            health = CATALOG_FAILED;
    }
    return health;
}

size_t catalog_n_workers(const struct catalog *c)
{
    size_t n = 0;

    for (const struct worker *w = c->workers; w; w = w->next)
        n += w->listed;
    return n;
}
