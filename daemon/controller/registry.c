#include "daemon/controller/registry.h"

#include "base/buf.h"
#include "base/json.h"
#include "daemon/controller/worker.h"

#include <errno.h>
#include <math.h>
#include <string.h>

struct registry {
    uint64_t lease_us, serial, version;
    struct worker *workers[2 * REGISTRY_LIMIT];
    size_t n;
};

struct registry *registry_new(uint64_t lease_us)
{
    struct registry *r = calloc(1, sizeof *r);

    if (r)
        r->lease_us = lease_us;
    return r;
}

void registry_free(struct registry *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->n; i++)
        worker_free(r->workers[i]);
    free(r);
}

void registry_set_lease(struct registry *r, uint64_t lease_us)
{
    r->lease_us = lease_us;
}

size_t registry_count(const struct registry *r)
{
    return r->n;
}

struct worker *registry_at(const struct registry *r, size_t i)
{
    return r->workers[i];
}

uint64_t registry_version(const struct registry *r)
{
    return r->version;
}

static size_t find(const struct registry *r, const char *name)
{
    size_t i = 0;

    while (i < r->n && strcmp(r->workers[i]->name, name) != 0)
        i++;
    return i;
}

struct worker *registry_find(const struct registry *r, const char *name)
{
    size_t i = find(r, name);

    return i < r->n ? r->workers[i] : NULL;
}

struct worker *registry_find_serial(const struct registry *r, const char *name, uint64_t serial)
{
    struct worker *w = registry_find(r, name);

    return w && w->serial == serial ? w : NULL;
}

/* Whether the door of w has room for it beside all others but `old`. */
static bool has_room(const struct registry *r, const struct worker *w, const struct worker *old)
{
    size_t n = 1, bytes = w->model_bytes;

    for (size_t i = 0; i < r->n; i++)
        if (r->workers[i] != old && r->workers[i]->local == w->local) {
            n++;
            bytes += r->workers[i]->model_bytes;
        }
    return n <= REGISTRY_LIMIT && bytes <= REGISTRY_MODEL_BYTES;
}

int registry_put(struct registry *r, struct worker *w, uint64_t now_us)
{
    size_t i = find(r, w->name);
    struct worker *old = i < r->n ? r->workers[i] : NULL;

    if (old && old->local && !w->local)
        return REGISTRY_HELD;
    if (!has_room(r, w, old))
        return REGISTRY_FULL;
    w->serial = ++r->serial;
    w->beat_us = now_us;
    w->unreachable = false;
    r->workers[i] = w;
    r->version++;
    if (old)
        worker_free(old);
    else
        r->n++;
    return 0;
}

static void remove_at(struct registry *r, size_t i)
{
    worker_free(r->workers[i]);
    r->n--;
    memmove(&r->workers[i], &r->workers[i + 1], (r->n - i) * sizeof r->workers[0]);
    r->version++;
}

void registry_remove(struct registry *r, struct worker *w)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->workers[i] == w) {
            remove_at(r, i);
            return;
        }
}

bool registry_touched(struct registry *r, struct worker *w, uint64_t now_us)
{
    if (!has_room(r, w, w)) {
        registry_remove(r, w);
        return false;
    }
    w->beat_us = now_us;
    w->unreachable = false;
    r->version++;
    return true;
}

bool registry_beat(struct registry *r, const char *name, bool local, int64_t queue_length,
                   uint64_t now_us)
{
    struct worker *w = registry_find(r, name);

    if (!w || (w->local && !local))
        return false;
    w->beat_us = now_us;
    if (w->unreachable || w->queue_length != queue_length) {
        w->unreachable = false;
        w->queue_length = queue_length;
        r->version++;
    }
    return true;
}

void registry_unreachable(struct registry *r, struct worker *w)
{
    if (!w->unreachable)
        r->version++;
    w->unreachable = true;
}

static uint64_t lease_end(const struct registry *r, const struct worker *w)
{
    if (!w->check_heart_beat)
        return UINT64_MAX;
    return w->beat_us + (w->lease_us ? w->lease_us : r->lease_us);
}

size_t registry_expire(struct registry *r, uint64_t now_us)
{
    size_t gone = 0;

    for (size_t i = r->n; i-- > 0;)
        if (lease_end(r, r->workers[i]) <= now_us) {
            remove_at(r, i);
            gone++;
        }
    return gone;
}

uint64_t registry_next_expiry(const struct registry *r)
{
    uint64_t first = UINT64_MAX;

    for (size_t i = 0; i < r->n; i++) {
        uint64_t end = lease_end(r, r->workers[i]);

        if (end < first)
            first = end;
    }
    return first;
}

static bool is_candidate(const struct worker *w, const char *model, bool url_only)
{
    return !w->unreachable && (w->has_url || !url_only) && worker_serves(w, model);
}

/* A worker that says it has no speed at all comes after every other. */
static double load_of(const struct worker *w)
{
    return w->speed > 0 ? (double)w->queue_length / w->speed : INFINITY;
}

static struct worker *shortest_queue(struct registry *r, const char *model, bool url_only)
{
    struct worker *best = NULL;

    for (size_t i = 0; i < r->n; i++) {
        struct worker *w = r->workers[i];

        if (is_candidate(w, model, url_only) && (!best || load_of(w) < load_of(best)))
            best = w;
    }
    if (best && best->queue_length < WORKER_QUEUE_MAX) {
        best->queue_length++;
        r->version++;
    }
    return best;
}

static struct worker *lottery(struct registry *r, const char *model, bool url_only, double chance)
{
    struct worker *last = NULL;
    double sum = 0;

    for (size_t i = 0; i < r->n; i++)
        if (is_candidate(r->workers[i], model, url_only))
            sum += r->workers[i]->speed;
    if (sum < 1e-4)
        return NULL;
    chance *= sum;
    for (size_t i = 0; i < r->n; i++) {
        struct worker *w = r->workers[i];

        if (!is_candidate(w, model, url_only) || w->speed <= 0)
            continue;
        last = w;
        chance -= w->speed;
        if (chance < 0)
            break;
    }
    return last; /* rounding may leave a little of the chance: the last one has it */
}

struct worker *registry_dispatch(struct registry *r, const char *model, enum registry_dispatch how,
                                 bool url_only, double chance)
{
    return how == DISPATCH_LOTTERY ? lottery(r, model, url_only, chance)
                                   : shortest_queue(r, model, url_only);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The sorted union of the names of all workers that `want` accepts. */
static void write_names(const struct registry *r,
                        bool (*want)(const struct worker *w, const void *user), const void *user,
                        struct json_writer *w)
{
    CLEANUP(mem_free) const char **names = NULL;
    size_t n = 0, at = 0;

    for (size_t i = 0; i < r->n; i++)
        n += r->workers[i]->n_models;
    names = calloc(n + 1, sizeof *names);
    if (!names) {
        w->out->failed = true;
        return;
    }
    for (size_t i = 0; i < r->n; i++)
        if (want(r->workers[i], user))
            for (size_t k = 0; k < r->workers[i]->n_models; k++)
                names[at++] = r->workers[i]->models[k];
    qsort(names, at, sizeof *names, by_text);
    json_open(w, '[');
    for (size_t i = 0; i < at; i++)
        if (i == 0 || strcmp(names[i - 1], names[i]) != 0)
            json_str(w, names[i]);
    json_close(w, ']');
}

static bool want_listed(const struct worker *w, const void *user)
{
    const enum registry_kind *kind = user;

    return !w->unreachable && (*kind == KIND_ALL || w->multimodal == (*kind == KIND_MULTIMODAL));
}

void registry_write_models(const struct registry *r, enum registry_kind kind, struct buf *out)
{
    struct json_writer w = json_writer(out);

    json_open(&w, '{');
    json_key(&w, "models");
    write_names(r, want_listed, &kind, &w);
    json_close(&w, '}');
}

static bool want_round(const struct worker *w, const void *user)
{
    const uint64_t *round = user;

    return w->round == *round;
}

void registry_write_status(const struct registry *r, uint64_t round, struct buf *out)
{
    struct json_writer w = json_writer(out);
    double speed = 0;
    int64_t queue_length = 0;

    for (size_t i = 0; i < r->n; i++)
        if (want_round(r->workers[i], &round)) {
            speed += r->workers[i]->speed;
            queue_length += r->workers[i]->queue_length;
        }
    json_open(&w, '{');
    json_key(&w, "model_names");
    write_names(r, want_round, &round, &w);
    json_knum(&w, "speed", speed);
    json_kint(&w, "queue_length", queue_length);
    json_close(&w, '}');
}

static void write_route(const struct worker *worker, struct json_writer *w)
{
    json_open(w, '{');
    json_kstr(w, "name", worker->name);
    json_key(w, "models");
    json_open(w, '[');
    for (size_t i = 0; i < worker->n_models; i++)
        json_str(w, worker->models[i]);
    json_close(w, ']');
    json_kstr(w, "unix", worker->unix_path);
    json_kstr(w, "url", worker->has_url ? worker->name : NULL);
    json_kbool(w, "native", worker->native);
    json_kint(w, "queue_length", worker->queue_length);
    json_knum(w, "speed", worker->speed);
    json_kint(w, "context_length", worker->context_length);
    json_kint(w, "parallel", worker->parallel);
    if (worker->instance)
        json_kint(w, "instance", worker->instance);
    if (worker->version > 1)
        json_kint(w, "version", worker->version);
    json_kbool(w, "multimodal", worker->multimodal);
    json_close(w, '}');
}

void registry_write_routes(const struct registry *r, struct buf *out)
{
    struct json_writer w = json_writer(out);

    json_open(&w, '{');
    json_kint(&w, "version", (int64_t)r->version);
    json_key(&w, "workers");
    json_open(&w, '[');
    for (size_t i = 0; i < r->n; i++)
        if (!r->workers[i]->unreachable)
            write_route(r->workers[i], &w);
    json_close(&w, ']');
    json_close(&w, '}');
    buf_addc(out, '\n');
}
