/* What one image of the program leaves to the next: a JSON object in a memory
 * file, and open descriptors under the numbers that it names. It is checked
 * whole before anything of it is used, and read by whatever version comes next,
 * so a field that is missing has a value that does no harm.
 *
 *     {"handover":1,"version","config","started_us","lock","control":FD,"announced",
 *      "peers":[{"fd","command","model"}],
 *      "listeners":[{"address","fd","name"|null}],
 *      "packed":[{"model","file","fd"}],
 *      "units":[{"role","model","replica","generation","state","since_us","reason","last_reason","restarts",
 *                "pid","channel","greeted","started","ready_us","spawned_us","deadline_us","mail","drain_until_us",
 *                "stopping","gone","wanted","always","rss_kb","leaf","ooms","oom_kills",
 *                "sockets":[{"name","address","kept","told","fd","bound"}]}]}
 */
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "daemon/supervisor/supervisor_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

enum { VERSION = 1, MAX_TEXT = 16 << 20, MAX_FD = 1 << 20 };

static const struct json_limits limits = { .bytes = MAX_TEXT, .depth = 8, .string_bytes = MAX_TEXT, .values = 100000 };

/* ---- writing ---- */

static int note(struct fd_list *list, int fd, struct err *err)
{
    int *more = realloc(list->fds, (list->n + 1) * sizeof *more);

    if (!more)
        return err_set(err, -ENOMEM, "no memory");
    list->fds = more;
    more[list->n++] = fd;
    return 0;
}

static int put_fd(struct json_writer *w, const char *key, int fd, struct fd_list *list, struct err *err)
{
    json_kint(w, key, fd);
    return fd < 0 ? 0 : note(list, fd, err);
}

static int put_sockets(struct json_writer *w, const struct unit *u, struct fd_list *list, struct err *err)
{
    int r = 0;

    json_key(w, "sockets");
    json_open(w, '[');
    for (size_t i = 0; r == 0 && i < u->n_sockets; i++) {
        const struct unit_socket *k = &u->sockets[i];

        json_open(w, '{');
        json_kstr(w, "name", k->name);
        json_kstr(w, "address", k->kept ? k->kept->address.text : k->address.text);
        json_kbool(w, "kept", k->kept != NULL);
        json_kbool(w, "told", k->told);
        r = put_fd(w, "fd", k->fd, list, err);
        json_kstr(w, "bound", k->bound.text);
        json_close(w, '}');
    }
    json_close(w, ']');
    return r;
}

static int put_unit(struct json_writer *w, const struct unit *u, struct fd_list *list, struct err *err)
{
    int r;

    json_open(w, '{');
    json_kstr(w, "role", unit_role_name(u->role));
    json_kstr(w, "model", u->model);
    json_kint(w, "replica", u->replica);
    json_kint(w, "generation", u->generation);
    json_kint(w, "state", u->state);
    json_kint(w, "since_us", (int64_t)u->since_us);
    json_kstr(w, "reason", u->reason);
    json_kstr(w, "last_reason", u->last_reason);
    json_kint(w, "restarts", (int64_t)u->n_restarts);
    json_kint(w, "pid", u->pid);
    r = put_fd(w, "channel", u->channel, list, err);
    json_kbool(w, "greeted", u->greeted);
    json_kbool(w, "started", u->started);
    json_kint(w, "ready_us", (int64_t)u->ready_us);
    json_kint(w, "spawned_us", (int64_t)u->spawned_us);
    json_kint(w, "deadline_us", (int64_t)u->deadline_us);
    json_kint(w, "mail", u->mail);
    json_kint(w, "drain_until_us", (int64_t)u->drain_until_us);
    json_kbool(w, "stopping", u->stopping);
    json_kbool(w, "gone", u->gone);
    json_kbool(w, "wanted", u->wanted || u->state == UNIT_WAITING);
    json_kbool(w, "always", u->always);
    json_kint(w, "rss_kb", u->rss_kb);
    json_kstr(w, "leaf", u->leaf);
    json_kint(w, "ooms", (int64_t)u->ooms);
    json_kint(w, "oom_kills", (int64_t)u->oom_kills);
    if (r == 0)
        r = put_sockets(w, u, list, err);
    json_close(w, '}');
    return r;
}

/* Who waits for the end of a command. */
static int put_peers(struct json_writer *w, const struct admin *a, struct fd_list *list, struct err *err)
{
    struct admin_wait peers[ADMIN_MAX_PEERS];
    size_t n = admin_waiting(a, peers);
    int r = 0;

    json_key(w, "peers");
    json_open(w, '[');
    for (size_t i = 0; r == 0 && i < n; i++) {
        json_open(w, '{');
        r = put_fd(w, "fd", peers[i].fd, list, err);
        json_kstr(w, "command", command_name(peers[i].command));
        json_kstr(w, "model", peers[i].model);
        json_close(w, '}');
    }
    json_close(w, ']');
    return r;
}

static int put_packed(struct json_writer *w, const struct supervisor *s, struct fd_list *list, struct err *err)
{
    int r = 0;

    json_key(w, "packed");
    json_open(w, '[');
    for (const struct packed *p = s->packed; r == 0 && p; p = p->next) {
        json_open(w, '{');
        json_kstr(w, "model", p->model);
        json_kstr(w, "file", p->file);
        r = put_fd(w, "fd", p->fd, list, err);
        json_close(w, '}');
    }
    json_close(w, ']');
    return r;
}

int handover_write(struct supervisor *s, struct buf *out, struct fd_list *fds, struct err *err)
{
    BUF_LOCAL config = BUF_INIT;
    struct json_writer w = json_writer(out);
    int r;

    json_open(&w, '{');
    json_kint(&w, "handover", VERSION);
    json_kstr(&w, "version", FASTCHAT_VERSION);
    config_dump(s->config, &config);
    json_kstr(&w, "config", config.failed ? NULL : buf_str(&config));
    json_kint(&w, "started_us", (int64_t)s->started_us);
    json_kbool(&w, "announced", s->announced);
    r = put_fd(&w, "lock", s->lock, fds, err);
    if (r == 0)
        r = put_fd(&w, "control", admin_listener(s->admin), fds, err);
    if (r == 0)
        r = put_peers(&w, s->admin, fds, err);
    json_key(&w, "listeners");
    json_open(&w, '[');
    for (const struct listener *k = s->listeners.first; r == 0 && k; k = k->next) {
        json_open(&w, '{');
        json_kstr(&w, "address", k->address.text);
        r = put_fd(&w, "fd", k->fd, fds, err);
        json_kstr(&w, "name", k->stored ? k->name : NULL);
        json_close(&w, '}');
    }
    json_close(&w, ']');
    if (r == 0)
        r = put_packed(&w, s, fds, err);
    json_key(&w, "units");
    json_open(&w, '[');
    for (size_t i = 0; r == 0 && i < s->n_units; i++)
        r = put_unit(&w, s->units[i], fds, err);
    json_close(&w, ']');
    json_close(&w, '}');
    return r ? r : out->failed ? err_set(err, -ENOMEM, "no memory") : 0;
}

/* ---- reading ---- */

/* Everything below fails the same way: a field that is not what it must be. */
struct reader {
    struct supervisor *s;       /* NULL: only a check */
    struct err *err;
    bool bad;
};

static int64_t get_int(struct reader *r, const cJSON *obj, const char *key, int64_t min, int64_t max, int64_t def)
{
    int64_t v = def;

    if (json_get_int(obj, key, min, max, &v, r->err) < 0)
        r->bad = true;
    return v;
}

static bool get_bool(struct reader *r, const cJSON *obj, const char *key)
{
    bool v = false;

    if (json_get_bool(obj, key, &v, r->err) < 0)
        r->bad = true;
    return v;
}

static const char *get_text(struct reader *r, const cJSON *obj, const char *key)
{
    const char *v = NULL;

    if (json_get_string(obj, key, &v, r->err) < 0)
        r->bad = true;
    return v ? v : "";
}

static const cJSON *get_list(struct reader *r, const cJSON *obj, const char *key)
{
    const cJSON *v = NULL;

    if (json_get_array(obj, key, &v, r->err) < 0)
        r->bad = true;
    return v;
}

/* An open descriptor, or -1 where there is none. */
static int get_fd(struct reader *r, const cJSON *obj, const char *key)
{
    int fd = (int)get_int(r, obj, key, -1, MAX_FD, -1);

    if (fd >= 0 && r->s && fcntl(fd, F_SETFD, FD_CLOEXEC) < 0) {
        r->bad = true;
        err_errno(r->err, -errno, "'%s' names descriptor %d", key, fd);
    }
    return fd;
}

static void read_listener(struct reader *r, const cJSON *obj)
{
    const char *address = get_text(r, obj, "address"), *name = get_text(r, obj, "name");
    int fd = get_fd(r, obj, "fd");
    struct address a;

    r->bad |= address_parse(address, &a, r->err) != 0;
    if (!r->bad && r->s && listener_adopt(&r->s->listeners, fd, address, *name ? name : NULL, r->err))
        r->bad = true;
}

static void read_socket(struct reader *r, const cJSON *obj, struct unit *u)
{
    const char *name = get_text(r, obj, "name"), *address = get_text(r, obj, "address"), *bound = get_text(r, obj, "bound");
    bool kept = get_bool(r, obj, "kept"), told = get_bool(r, obj, "told");
    int fd = get_fd(r, obj, "fd");
    struct listener *k = NULL;
    struct address a;

    r->bad |= address_parse(address, &a, r->err) != 0;
    if (r->bad || !u)
        return;
    if (kept) {
        k = listener_find(&r->s->listeners, &a);
        if (!k)
            err_set(r->err, -EINVAL, "nobody listens on %s", address);
        r->bad = !k || unit_add_listener(u, name, listener_share(k), r->err) != 0;
    } else {
        r->bad = unit_add_socket(u, name, address, r->err) != 0;
    }
    if (r->bad)
        return;
    u->sockets[u->n_sockets - 1].told = told;
    if (kept)
        return;
    u->sockets[u->n_sockets - 1].fd = fd;
    if (a.is_unix)
        socket_file_note(a.path, &u->sockets[u->n_sockets - 1].file);
    if (*bound && address_parse(bound, &u->sockets[u->n_sockets - 1].bound, r->err))
        r->bad = true;
}

static bool get_role(struct reader *r, const cJSON *obj, enum unit_role *ret)
{
    const char *name = get_text(r, obj, "role");

    for (int i = UNIT_CONTROLLER; i <= UNIT_WORKER; i++)
        if (strcmp(unit_role_name((enum unit_role)i), name) == 0) {
            *ret = (enum unit_role)i;
            return true;
        }
    err_set(r->err, -EINVAL, "the role '%s' is unknown", name);
    r->bad = true;
    return false;
}

static void get_leaf(struct reader *r, const cJSON *obj, char leaf[CGROUP_NAME])
{
    const char *name = get_text(r, obj, "leaf");

    if (*name && !cgroup_is_name(name)) {
        err_set(r->err, -EINVAL, "'leaf' names no control group of a child");
        r->bad = true;
        return;
    }
    snprintf(leaf, CGROUP_NAME, "%s", name);
}

static void read_unit(struct reader *r, const cJSON *obj)
{
    int replica = (int)get_int(r, obj, "replica", 0, 1000000, 0);
    unsigned generation = (unsigned)get_int(r, obj, "generation", 0, 1000000, 0);
    const cJSON *sockets = get_list(r, obj, "sockets"), *item;
    struct unit scratch = { .channel = -1 }, *u = NULL;
    const char *model = get_text(r, obj, "model");
    enum unit_role role;

    scratch.state = (enum unit_state)get_int(r, obj, "state", UNIT_STOPPED, UNIT_FAILED, UNIT_STOPPED);
    scratch.pid = (pid_t)get_int(r, obj, "pid", 0, INT32_MAX, 0);
    scratch.channel = get_fd(r, obj, "channel");
    scratch.since_us = (uint64_t)get_int(r, obj, "since_us", 0, INT64_MAX, 0);
    scratch.ready_us = (uint64_t)get_int(r, obj, "ready_us", 0, INT64_MAX, 0);
    scratch.spawned_us = (uint64_t)get_int(r, obj, "spawned_us", 0, INT64_MAX, 0);
    scratch.deadline_us = (uint64_t)get_int(r, obj, "deadline_us", 0, INT64_MAX, 0);
    scratch.drain_until_us = (uint64_t)get_int(r, obj, "drain_until_us", 0, INT64_MAX, 0);
    scratch.n_restarts = (uint64_t)get_int(r, obj, "restarts", 0, INT64_MAX, 0);
    scratch.mail = (unsigned)get_int(r, obj, "mail", 0, 2 * MAIL_STOP - 1, 0);
    scratch.rss_kb = get_int(r, obj, "rss_kb", 0, INT64_MAX, 0);
    get_leaf(r, obj, scratch.leaf);
    scratch.ooms = (uint64_t)get_int(r, obj, "ooms", 0, INT64_MAX, 0);
    scratch.oom_kills = (uint64_t)get_int(r, obj, "oom_kills", 0, INT64_MAX, 0);
    scratch.greeted = get_bool(r, obj, "greeted");
    scratch.started = get_bool(r, obj, "started");
    scratch.stopping = get_bool(r, obj, "stopping");
    scratch.gone = get_bool(r, obj, "gone");
    scratch.wanted = get_bool(r, obj, "wanted");
    scratch.always = get_bool(r, obj, "always");
    snprintf(scratch.reason, sizeof scratch.reason, "%s", get_text(r, obj, "reason"));
    snprintf(scratch.last_reason, sizeof scratch.last_reason, "%s", get_text(r, obj, "last_reason"));
    if (!get_role(r, obj, &role) || r->bad)
        return;
    if (r->s) {
        if (unit_new(r->s, role, model, replica, generation, &u, r->err) || fleet_add(r->s, u, r->err)) {
            unit_free(u);
            r->bad = true;
            return;
        }
        scratch.sup = u->sup;
        scratch.role = role;
        scratch.replica = replica;
        scratch.generation = generation;
        memcpy(scratch.model, u->model, sizeof u->model);
        memcpy(scratch.name, u->name, sizeof u->name);
        *u = scratch;
    }
    cJSON_ArrayForEach(item, sockets) {
        read_socket(r, item, u);
    }
    if (r->bad || !u)
        return;
    if (u->pid)
        r->bad = unit_adopt(u, r->err) != 0;
    else if (u->state == UNIT_WAITING)
        unit_forgive(u);        /* its time to wait is forgotten; it is wanted */
}

/* One that can not be taken over loses no more than its answer. */
static void read_peer(struct reader *r, const cJSON *obj)
{
    struct admin_wait w = { .command = command_of(get_text(r, obj, "command")), .model = get_text(r, obj, "model") };
    struct err err = { 0 };

    w.fd = get_fd(r, obj, "fd");
    if (r->bad || !r->s || w.fd < 0)
        return;
    if (admin_adopt(r->s->admin, &w, &err))
        log_warning("%s", err_text(&err));
}

/* Losing them costs the next process the time to pack. */
static void read_packed(struct reader *r, const cJSON *obj)
{
    const char *model = get_text(r, obj, "model"), *file = get_text(r, obj, "file");
    int fd = get_fd(r, obj, "fd");
    struct err err = { 0 };

    if (r->bad || !r->s || fd < 0)
        return;
    if (packed_adopt(r->s, model, file, fd, &err))
        log_warning("the packed weights of %s: %s", model, err_text(&err));
}

static void read_all(struct reader *r, const cJSON *tree)
{
    const cJSON *item, *list;
    int control = get_fd(r, tree, "control");

    if (r->s) {
        r->s->started_us = (uint64_t)get_int(r, tree, "started_us", 0, INT64_MAX, 0);
        r->s->lock = get_fd(r, tree, "lock");
        r->s->announced = get_bool(r, tree, "announced");
        r->bad |= admin_open(r->s, control, &r->s->admin, r->err) != 0;
    }
    list = get_list(r, tree, "peers");
    cJSON_ArrayForEach(item, list) {
        if (!r->bad)
            read_peer(r, item);
    }
    list = get_list(r, tree, "listeners");
    cJSON_ArrayForEach(item, list) {
        if (!r->bad)
            read_listener(r, item);
    }
    list = get_list(r, tree, "packed");
    cJSON_ArrayForEach(item, list) {
        if (!r->bad)
            read_packed(r, item);
    }
    list = get_list(r, tree, "units");
    cJSON_ArrayForEach(item, list) {
        if (!r->bad)
            read_unit(r, item);
    }
}

int handover_read(int fd, struct supervisor *s, struct err *err)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    CLEANUP(mem_free) char *text = NULL;
    struct reader r = { .s = s, .err = err };
    size_t len;

    if (control_read_memfd(fd, &text, &len, err) || json_parse(text, len, &limits, &tree, err)) {
        err_place(err, "handover");
        return -EINVAL;
    }
    if (get_int(&r, tree, "handover", 0, INT32_MAX, 0) != VERSION)
        return err_set(err, -EINVAL, "handover: its form is not known to fastchatd %s", FASTCHAT_VERSION);
    if (s) {                    /* all of it, before a part of it is used */
        int bad = handover_read(fd, NULL, err);

        if (bad)
            return bad;
    }
    read_all(&r, tree);
    if (r.bad)
        err_place(err, "handover");
    return r.bad ? -EINVAL : 0;
}

int supervisor_handover_config(int fd, struct buf *out, struct err *err)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    CLEANUP(mem_free) char *text = NULL;
    const char *config = NULL;
    size_t len;

    if (control_read_memfd(fd, &text, &len, err) || json_parse(text, len, &limits, &tree, err) ||
        json_get_string(tree, "config", &config, err) < 0)
        return -EINVAL;
    if (!config)
        return err_set(err, -EINVAL, "handover: it holds no configuration");
    buf_adds(out, config);
    return out->failed ? err_set(err, -ENOMEM, "no memory") : 0;
}
