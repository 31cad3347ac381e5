/* A child's life.
 *
 * Time: one deadline a unit, on the monotonic clock, moved by every frame that
 * comes. When it passes, what waits on the channel is read first, and when the
 * supervisor itself was held up (stopped, starved, suspended) the child gets
 * one more limit: silence that we slept through proves nothing.
 *
 * Mail: everything that is to be said to a child is a bit, sent in a fixed
 * order as long as its queue takes it and continued when it reads again. So
 * nothing is lost and nothing waits, and two changes of the models in a row
 * are one message.
 */
#include "daemon/supervisor/unit.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/id.h"
#include "base/json.h"
#include "base/log.h"
#include "daemon/roles.h"
#include "daemon/supervisor/supervisor_parts.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { BACKLOG = 1024, ACCURACY_US = 1000, STATS_MAX = 16384 };

static const struct json_limits frame_limits = {
    .bytes = CONTROL_PAYLOAD, .depth = 8, .string_bytes = 16384, .values = 1000,
};

const char *unit_state_name(enum unit_state state)
{
    static const char *const names[] = {
        [UNIT_STOPPED] = "stopped",   [UNIT_WAITING] = "restarting", [UNIT_LOADING] = "loading",
        [UNIT_READY] = "ready",       [UNIT_DRAINING] = "draining",  [UNIT_FAILED] = "failed",
    };

    return names[state];
}

const char *unit_role_name(enum unit_role role)
{
    static const char *const names[] = { [UNIT_CONTROLLER] = "controller", [UNIT_API] = "api", [UNIT_WORKER] = "worker" };

    return names[role];
}

bool unit_is_up(const struct unit *u)
{
    return u->pid && !u->stopping;
}

/* A line with the fields that searches go by. */
static void event(const struct unit *u, int level, const char *kind, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

static void event(const struct unit *u, int level, const char *kind, const char *fmt, ...)
{
    char text[1024], restarts[24];
    const char *fields[] = { "FASTCHAT_CHILD", u->name, "FASTCHAT_RESTARTS", restarts,
                             "FASTCHAT_MODEL", u->model, NULL };
    va_list ap;

    if (u->role != UNIT_WORKER)
        fields[4] = NULL;
    snprintf(restarts, sizeof restarts, "%" PRIu64, u->n_restarts);
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    log_event(level, kind, fields, "%s %s", u->name, text);
}

static void set_state(struct unit *u, enum unit_state state)
{
    if (u->state != state)
        u->since_us = clock_mono_us();
    u->state = state;
    u->ready_us = state == UNIT_READY ? u->since_us : 0;
    supervisor_news(u->sup);
}

static void set_deadline(struct unit *u, uint64_t in_us)
{
    u->deadline_us = clock_mono_us() + in_us;
    sd_event_source_set_time(u->deadline, u->deadline_us);
    sd_event_source_set_enabled(u->deadline, SD_EVENT_ONESHOT);
}

static uint64_t setting_us(const struct unit *u, enum config_key key, uint64_t unit_us)
{
    return (uint64_t)config_int(u->sup->config, key) * unit_us;
}

static uint64_t heartbeat_limit_us(const struct unit *u)
{
    return setting_us(u, SUPERVISOR_heartbeat_limit_ms, 1000);
}

static uint64_t start_limit_us(const struct unit *u)
{
    return setting_us(u, SUPERVISOR_start_s, 1000000);
}

/* ---- sockets ---- */

static int add_socket(struct unit *u, const char *name, const struct unit_socket *from, struct err *err)
{
    struct unit_socket *more = realloc(u->sockets, (u->n_sockets + 1) * sizeof *more);

    if (!more)
        return err_set(err, -ENOMEM, "no memory");
    u->sockets = more;
    more[u->n_sockets] = *from;
    snprintf(more[u->n_sockets].name, sizeof more->name, "%s", name);
    u->n_sockets++;
    return 0;
}

int unit_add_socket(struct unit *u, const char *name, const char *address, struct err *err)
{
    struct unit_socket k = { .fd = -1 };

    if (address_parse(address, &k.address, err))
        return -EINVAL;
    return add_socket(u, name, &k, err);
}

int unit_add_listener(struct unit *u, const char *name, struct listener *k, struct err *err)
{
    int r = add_socket(u, name, &(struct unit_socket){ .kept = k, .fd = -1 }, err);

    if (r)
        listener_put(&u->sup->listeners, k);
    return r;
}

const struct address *unit_socket_bound(const struct unit_socket *k)
{
    return k->kept ? &k->kept->bound : &k->bound;
}

int unit_bind_socket(struct unit_socket *k, struct err *err)
{
    int r = address_listen(&k->address, BACKLOG, 0660, (gid_t)-1, &k->fd, err);

    if (r == 0)
        r = address_local(k->fd, &k->bound, err);
    if (r) {
        fd_close(STEAL_FD(k->fd));
        return r;
    }
    if (k->address.is_unix) {
        k->bound = k->address;
        socket_file_note(k->address.path, &k->file);
    }
    return 0;
}

static int bind_sockets(struct unit *u, struct err *err)
{
    int r = 0;

    for (size_t i = 0; r == 0 && i < u->n_sockets; i++) {
        u->sockets[i].told = false;
        if (!u->sockets[i].kept && u->sockets[i].fd < 0)
            r = unit_bind_socket(&u->sockets[i], err);
    }
    return r;
}

static void close_sockets(struct unit *u)
{
    for (size_t i = 0; i < u->n_sockets; i++)
        fd_close(STEAL_FD(u->sockets[i].fd));
}

static void give_sockets_back(struct unit *u)
{
    close_sockets(u);
    for (size_t i = 0; i < u->n_sockets; i++) {
        listener_put(&u->sup->listeners, u->sockets[i].kept);
        if (u->sockets[i].bound.is_unix)
            unlink(u->sockets[i].address.path);
    }
    free(u->sockets);
}

/* ---- mail ---- */

/* The name under which a worker registers: as others reach it, with the port
 * that it really has. */
static void worker_name(const struct unit *u, size_t model, struct buf *out)
{
    const struct config *c = u->sup->config;
    BUF_LOCAL advertised = BUF_INIT;

    for (size_t i = 0; i < u->n_sockets; i++)
        if (strcmp(u->sockets[i].name, "worker.tcp") == 0) {
            config_worker_tcp(c, model, u->replica, MODEL_advertise, &advertised);
            buf_printf(out, "http://%s", advertised.len ? buf_str(&advertised) : u->sockets[i].bound.text);
            return;
        }
    buf_adds(out, u->sockets[0].address.text);
}

/* 0, or -ENOENT: a worker whose model is not in the configuration any more. */
static int settings(const struct unit *u, struct buf *out)
{
    const struct config *c = u->sup->config;
    int model = u->role == UNIT_WORKER ? config_find_model(c, u->model) : 0;
    BUF_LOCAL name = BUF_INIT;

    if (model < 0 || (u->role == UNIT_WORKER && !u->n_sockets))
        return -ENOENT;
    switch (u->role) {
    case UNIT_CONTROLLER:
        config_controller_settings(c, out);
        break;
    case UNIT_API:
        config_api_settings(c, out);
        break;
    case UNIT_WORKER:
        worker_name(u, (size_t)model, &name);
        config_worker_settings(c, (size_t)model, u->replica, buf_str(&name), u->sockets[0].address.path, out);
        break;
    }
    return out->failed ? -ENOMEM : 0;
}

/* SETTINGS or RELOAD */
static int send_settings(struct unit *u, enum control_type type)
{
    BUF_LOCAL text = BUF_INIT;
    int r = settings(u, &text);

    if (r)
        return r;
    r = control_send_memfd(u->channel, type, buf_str(&text), text.len, NULL);
    if (r)
        return r;
    u->reloading = type == CONTROL_RELOAD;
    free(u->settings);
    u->settings = buf_take(&text);
    return 0;
}

void unit_tell_settings(struct unit *u)
{
    BUF_LOCAL text = BUF_INIT;

    /* A request that waits in an api that drains ends when its model is no more. */
    if (!(unit_is_up(u) || (u->pid && u->role == UNIT_API)) || !u->greeted || u->mail & MAIL_SETTINGS)
        return;                 /* it will be told those of now anyway */
    if (settings(u, &text) == 0 && u->settings && strcmp(buf_str(&text), u->settings) == 0)
        return;
    event(u, LOG_INFO, "reload", "is told new settings");
    unit_post(u, MAIL_RELOAD);
}

static int send_sockets(struct unit *u)
{
    for (size_t i = 0; i < u->n_sockets; i++) {
        struct unit_socket *k = &u->sockets[i];
        char text[64];
        int r, n = snprintf(text, sizeof text, "{\"name\":\"%s\"}", k->name);

        if (k->told)
            continue;
        r = control_send(u->channel, CONTROL_LISTEN, text, (size_t)n, k->kept ? &k->kept->fd : &k->fd, 1);
        if (r)
            return r;
        k->told = true;
    }
    close_sockets(u);
    return 0;
}

static int send_start(struct unit *u)
{
    const struct packed *packed = u->role == UNIT_WORKER ? packed_find(u) : NULL;
    int r = packed ? control_send(u->channel, CONTROL_WEIGHTS, NULL, 0, &packed->fd, 1) : 0;

    if (r < 0)
        log_warning("%s gets no packed weights: %s", u->name, strerror(-r));
    if (r <= 0)
        r = control_send_json(u->channel, CONTROL_START, "{}");
    u->started = r == 0;
    return r;
}

static int send_models(struct unit *u)
{
    BUF_LOCAL text = BUF_INIT;

    status_models(u->sup, &text);
    if (text.failed)
        return -ENOMEM;
    return control_send_memfd(u->channel, CONTROL_MODELS, buf_str(&text), text.len, NULL);
}

static int send_drain(struct unit *u)
{
    uint64_t now = clock_mono_us();
    uint64_t left_ms = u->drain_until_us > now ? (u->drain_until_us - now) / 1000 : 0;
    char text[64];

    snprintf(text, sizeof text, "{\"limit_ms\":%" PRIu64 ",\"replaced\":%s}", left_ms,
             u->sup->phase == STOP_NOT ? "true" : "false");
    return control_send_json(u->channel, CONTROL_DRAIN, text);
}

static int send_one(struct unit *u, unsigned mail)
{
    switch (mail) {
    case MAIL_SETTINGS:
        return send_settings(u, CONTROL_SETTINGS);
    case MAIL_RELOAD:
        return send_settings(u, CONTROL_RELOAD);
    case MAIL_SOCKETS:
        return send_sockets(u);
    case MAIL_START:
        return send_start(u);
    case MAIL_MODELS:
        return send_models(u);
    case MAIL_DRAIN:
        return send_drain(u);
    default:
        return control_send_json(u->channel, CONTROL_STOP, "{}");
    }
}

/* The state of the models can be told later, when there are descriptors again. */
static bool can_wait(unsigned mail, int error)
{
    return mail == MAIL_MODELS && (error == -EMFILE || error == -ENFILE || error == -ENOMEM);
}

static void flush(struct unit *u)
{
    if (!u->greeted || u->killed || u->channel < 0)
        return;
    for (unsigned bit = 1; bit <= MAIL_STOP; bit <<= 1) {
        int r;

        if (!(u->mail & bit))
            continue;
        r = send_one(u, bit);
        if (can_wait(bit, r))
            continue;
        if (r == CONTROL_AGAIN) {
            sd_event_source_set_io_events(u->io, EPOLLIN | EPOLLOUT);
            return;
        }
        if (r < 0) {
            unit_kill(u, "could not be told something: %s", strerror(-r));
            return;
        }
        u->mail &= ~bit;        /* CONTROL_EOF: its end comes as an event of its own */
    }
    sd_event_source_set_io_events(u->io, EPOLLIN);
}

void unit_post(struct unit *u, unsigned mail)
{
    if (u->pid == 0)
        return;
    u->mail |= mail;
    flush(u);
}

/* ---- frames ---- */

/* A field that must be text or absent; NULL in the latter case. */
static int get_text(const cJSON *tree, const char *key, const char **ret, struct err *err)
{
    *ret = NULL;
    return json_get_string(tree, key, ret, err) < 0 ? -EPROTO : 0;
}

static int take_hello(struct unit *u, const cJSON *tree, struct err *err)
{
    const char *version;
    int64_t pid = 0;

    if (u->greeted)
        return err_set(err, -EPROTO, "HELLO came twice");
    if (json_get_int(tree, "pid", 1, INT32_MAX, &pid, err) < 0 || get_text(tree, "version", &version, err))
        return -EPROTO;
    if (pid != u->pid)
        return err_set(err, -EPROTO, "HELLO names process %" PRIi64, pid);
    if (!version || strcmp(version, FASTCHAT_VERSION) != 0)
        log_warning("%s is version %s, but this is %s", u->name, version ? version : "(none)",
                    FASTCHAT_VERSION);
    u->greeted = true;
    unit_post(u, MAIL_SETTINGS | MAIL_SOCKETS | MAIL_START |
                     (u->role == UNIT_WORKER ? 0 : MAIL_MODELS));
    return 0;
}

static void became_ready(struct unit *u)
{
    u->reason[0] = 0;
    event(u, LOG_INFO, "ready", "is ready after %.2f s", (double)(clock_mono_us() - u->spawned_us) / 1e6);
}

/* Its last words: it ends now, and its exit code says whether it is tried again. */
static void says_it_fails(struct unit *u, const char *text)
{
    event(u, LOG_ERR, "fault", "says that it fails: %s", text ? text : "no reason given");
    if (!text)
        return;
    snprintf(u->reason, sizeof u->reason, "%s", text);
    u->told = true;
}

static int take_state(struct unit *u, const cJSON *tree, struct err *err)
{
    static const enum unit_state known[] = { UNIT_LOADING, UNIT_READY, UNIT_DRAINING, UNIT_FAILED };
    const char *name, *text;

    if (get_text(tree, "state", &name, err) || get_text(tree, "text", &text, err))
        return -EPROTO;
    for (size_t i = 0; name && i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(unit_state_name(known[i]), name) != 0)
            continue;
        if (u->stopping && known[i] != UNIT_FAILED)
            return 0;           /* it does not know yet that it was told to stop */
        if (known[i] == UNIT_FAILED) {
            says_it_fails(u, text);
            return 0;
        }
        if (known[i] == UNIT_READY && u->state != UNIT_READY)
            became_ready(u);
        set_state(u, known[i]);
        return 0;
    }
    return err_set(err, -EPROTO, "STATE names no known state");
}

/* Returns how long the next sign of life may take longer than usual. */
static int take_heartbeat(struct unit *u, const cJSON *tree, uint64_t *ret_busy_us, struct err *err)
{
    const cJSON *stats = NULL;
    int64_t busy_ms = 0, idle_ms = 0;
    BUF_LOCAL text = BUF_INIT;
    struct json_writer w = json_writer(&text);

    if (json_get_int(tree, "busy_ms", 0, CONTROL_BUSY_MAX_MS, &busy_ms, err) < 0 ||
        json_get_object(tree, "stats", &stats, err) < 0)
        return -EPROTO;
    *ret_busy_us = (uint64_t)busy_ms * 1000;
    if (!stats)
        return 0;
    text.limit = STATS_MAX;
    json_tree(&w, stats);
    if (text.failed)
        return err_set(err, -EPROTO, "statistics of more than %d bytes", STATS_MAX);
    free(u->stats);
    u->stats = buf_take(&text);
    u->idle_since_us = 0;
    if (json_get_int(stats, "idle_ms", 0, INT64_MAX / 1000, &idle_ms, err) < 0)
        return -EPROTO;
    if (idle_ms > 0)
        u->idle_since_us = clock_mono_us() - (uint64_t)idle_ms * 1000;
    return 0;
}

/* It uses its new settings, or can not. */
static int take_reloaded(struct unit *u, const cJSON *tree, struct err *err)
{
    const char *error;

    if (get_text(tree, "error", &error, err))
        return -EPROTO;
    u->reloading = false;
    if (error) {
        event(u, LOG_NOTICE, "reload", "can not take its new settings as it runs: %s", error);
        u->outdated = true;
    }
    supervisor_news(u->sup);
    return 0;
}

static int take_want(struct unit *u, const cJSON *tree, struct err *err)
{
    const char *model;

    if (get_text(tree, "model", &model, err))
        return -EPROTO;
    if (!model || u->role != UNIT_API)
        return err_set(err, -EPROTO, "WANT needs a model, and comes from the api");
    models_want(u->sup, model);
    return 0;
}

static int take_weights(struct unit *u, const struct control_frame *f, struct err *err)
{
    if (u->role != UNIT_WORKER || f->n_fds != 1)
        return err_set(err, -EPROTO, "packed weights are one descriptor, and come from a worker");
    return packed_keep(u, f->fds[0], err);
}

int unit_take_frame(struct unit *u, const struct control_frame *f, struct err *err)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    uint64_t busy_us = 0;
    int r;

    if (f->n_fds && f->type != CONTROL_WEIGHTS_MADE)
        return err_set(err, -EPROTO, "a frame of type %d brought descriptors", f->type);
    if (!u->greeted && f->type != CONTROL_HELLO)
        return err_set(err, -EPROTO, "a frame of type %d came before HELLO", f->type);
    r = f->len ? json_parse(f->payload, f->len, &frame_limits, &tree, err) : 0;
    if (r)
        return r;
    if (tree && !cJSON_IsObject(tree))
        return err_set(err, -EPROTO, "a frame of type %d holds no object", f->type);
    switch (f->type) {
    case CONTROL_HELLO:
        r = take_hello(u, tree, err);
        break;
    case CONTROL_STATE:
        r = take_state(u, tree, err);
        break;
    case CONTROL_HEARTBEAT:
        r = take_heartbeat(u, tree, &busy_us, err);
        if (r == 0 && u->mail)
            flush(u);           /* what could not be sent for want of a descriptor */
        break;
    case CONTROL_RELOADED:
        r = take_reloaded(u, tree, err);
        break;
    case CONTROL_WANT:
        r = take_want(u, tree, err);
        break;
    case CONTROL_WEIGHTS_MADE:
        r = take_weights(u, f, err);
        break;
    default:
        return err_set(err, -EPROTO, "a child cannot send frames of type %d", f->type);
    }
    if (r == 0)
        set_deadline(u, heartbeat_limit_us(u) + busy_us);
    return r;
}

/* One frame. False when there is none, or none can be read any more. */
static bool read_frame(struct unit *u)
{
    struct control_frame *f = &u->sup->frame;
    struct err err = { 0 };
    int r;

    if (u->killed || u->channel < 0)
        return false;
    r = control_recv(u->channel, f, &err);
    if (r == CONTROL_AGAIN)
        return false;
    if (r == CONTROL_EOF) {
        /* Its exit follows; if it does not, the deadline will. What it says
         * after an empty packet, which looks the same, counts no more. */
        u->io = sd_event_source_disable_unref(u->io);
        fd_close(STEAL_FD(u->channel));
        return false;
    }
    if (r == 0) {
        r = unit_take_frame(u, f, &err);
        control_close_fds(f);
    }
    if (r < 0)
        unit_kill(u, "sent something wrong: %s", err_text(&err));
    return r == 0;
}

static int on_channel(sd_event_source *s, int fd, uint32_t events, void *user)
{
    struct unit *u = user;

    if (u->killed)
        sd_event_source_set_enabled(s, SD_EVENT_OFF);
    else if (!read_frame(u) || events & EPOLLOUT)
        flush(u);
    return 0;
}

static int on_deadline(sd_event_source *s, uint64_t usec, void *user)
{
    struct unit *u = user;
    uint64_t planned = u->deadline_us, now = clock_mono_us();

    while (read_frame(u))
        continue;
    if (u->killed || u->deadline_us > planned)
        return 0;
    if (now - planned > heartbeat_limit_us(u) / 2) {
        log_notice("the supervisor was held up for %.1f s: %s gets more time", (double)(now - planned) / 1e6,
                   u->name);
        set_deadline(u, heartbeat_limit_us(u));
        return 0;
    }
    if (u->greeted)
        unit_kill(u, "gave no sign of life in time");
    else
        unit_kill(u, "gave no sign of life within %.1f s of its start", (double)start_limit_us(u) / 1e6);
    return 0;
}

/* ---- start ---- */

static void went_down(struct unit *u, bool for_good);

static int on_delay(sd_event_source *s, uint64_t usec, void *user)
{
    struct unit *u = user;

    u->n_restarts++;
    memcpy(u->last_reason, u->reason, sizeof u->last_reason);
    unit_start(u);
    return 0;
}

static void describe_exit(struct unit *u, const siginfo_t *si)
{
    const char *name = si->si_code == CLD_EXITED ? NULL : sigabbrev_np(si->si_status);

    if (u->killed || u->told)
        return;                 /* a better reason is there */
    if (limits_ran_out(u, si, u->reason, sizeof u->reason))
        event(u, LOG_ERR, "oom", "(pid %d) %s", (int)u->pid, u->reason);
    else if (si->si_code != CLD_EXITED)
        snprintf(u->reason, sizeof u->reason, "was ended by signal %d (SIG%s)", si->si_status,
                 name ? name : "?");
    else if (si->si_status == 0)
        snprintf(u->reason, sizeof u->reason, "ended, which nobody had asked for");
    else if (si->si_status == EXIT_CONFIG)
        snprintf(u->reason, sizeof u->reason, "cannot work with this configuration (exit code %d)", EXIT_CONFIG);
    else
        snprintf(u->reason, sizeof u->reason, "ended with exit code %d", si->si_status);
}

static void forget_process(struct unit *u)
{
    u->io = sd_event_source_disable_unref(u->io);
    u->exit = sd_event_source_disable_unref(u->exit);
    u->deadline = sd_event_source_disable_unref(u->deadline);
    fd_close(STEAL_FD(u->channel));
    u->limit = sd_event_source_disable_unref(u->limit);
    free(STEAL(u->stats));
    free(STEAL(u->settings));
    u->idle_since_us = 0;
    u->reloading = false;
    u->mail = 0;
    u->pid = 0;
    limits_leave(u);
}

static int on_exit_event(sd_event_source *s, const siginfo_t *si, void *user)
{
    struct unit *u = user;
    pid_t pid = u->pid;
    bool config = si->si_code == CLD_EXITED && si->si_status == EXIT_CONFIG;

    while (read_frame(u))       /* its last words */
        continue;
    /* The leader is still a zombie here, so its number names its group alone. */
    kill(-pid, SIGKILL);
    describe_exit(u, si);
    limits_explain(u, u->reason, sizeof u->reason);
    forget_process(u);
    close_sockets(u);
    if (u->stopping)
        event(u, LOG_INFO, "exit", "(pid %d) has stopped", (int)pid);
    else
        event(u, LOG_WARNING, "exit", "(pid %d) is down: %s", (int)pid, u->reason);
    went_down(u, config);
    return 0;
}

/* The kernel may wake sd-event by the pidfd before waitid() finds the zombie, and
 * sd-event looks once only (seen with systemd 252 on Linux 6.18). */
void unit_look(struct unit *u)
{
    siginfo_t si = { 0 };
    pid_t pid = u->pid;

    if (pid == 0 || waitid(P_PID, (id_t)pid, &si, WEXITED | WNOHANG | WNOWAIT) < 0 || si.si_pid != pid)
        return;
    on_exit_event(NULL, &si, u);
    waitpid(pid, NULL, WNOHANG);
}

static void wait_and_start(struct unit *u, uint64_t delay_us)
{
    event(u, LOG_NOTICE, "restart", "starts again in %.3f s (restart %" PRIu64 ")", (double)delay_us / 1e6,
          u->n_restarts + 1);
    set_state(u, UNIT_WAITING);
    u->delay = sd_event_source_disable_unref(u->delay);
    if (sd_event_add_time(u->sup->event, &u->delay, CLOCK_MONOTONIC, clock_mono_us() + delay_us,
                          ACCURACY_US, on_delay, u) < 0) {
        set_state(u, UNIT_FAILED);
        supervisor_fail(u->sup, EXIT_FAILED);
    }
}

static void failed(struct unit *u, int code)
{
    event(u, LOG_ERR, "failed", "is failed and will not be started again: %s", u->reason);
    set_state(u, UNIT_FAILED);
    if (!fleet_keeps_forerunner(u) && u->role != UNIT_WORKER)
        supervisor_fail(u->sup, code);
}

void unit_refuse(struct unit *u, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(u->reason, sizeof u->reason, fmt, ap);
    va_end(ap);
    u->wanted = false;
    failed(u, EXIT_FAILED);
}

/* It has no process (any more). */
static void went_down(struct unit *u, bool for_good)
{
    uint64_t now = clock_mono_us(), delay;
    uint64_t ready_us = u->ready_us ? now - u->ready_us : 0;

    if (u->stopping || u->heir) {
        u->reason[0] = 0;
        set_state(u, UNIT_STOPPED);
    } else if (for_good)
        failed(u, EXIT_CONFIG);
    else if (restart_next(&u->restart, &u->sup->restart_limits, now, ready_us, id_random_u64(), &delay) ==
             RESTART_OVER_BUDGET)
        failed(u, EXIT_FAILED);
    else
        wait_and_start(u, delay);
    fleet_went_down(u);
    if (u->state != UNIT_WAITING)
        supervisor_down(u->sup, u);
}

void unit_forgive(struct unit *u)
{
    u->restart = (struct restart){ 0 };
    u->delay = sd_event_source_disable_unref(u->delay);
    if (u->pid == 0)
        set_state(u, UNIT_STOPPED);
}

static int watch(struct unit *u, struct err *err)
{
    sd_event *e = u->sup->event;
    int r = sd_event_add_child(e, &u->exit, u->pid, WEXITED, on_exit_event, u);

    if (r >= 0 && u->channel >= 0)
        r = sd_event_add_io(e, &u->io, u->channel, EPOLLIN, on_channel, u);
    if (r >= 0 && u->io)        /* what a child said comes before what its silence means */
        r = sd_event_source_set_priority(u->io, SD_EVENT_PRIORITY_IMPORTANT);
    if (r >= 0)
        r = sd_event_add_time(e, &u->deadline, CLOCK_MONOTONIC, UINT64_MAX, ACCURACY_US, on_deadline, u);
    return r < 0 ? err_errno(err, r, "event source") : 0;
}

static int make_process(struct unit *u, struct err *err)
{
    const struct supervisor_options *o = u->sup->options;
    const char *program = u->role == UNIT_WORKER ? o->worker_program : o->program;
    char replica[16];
    const char *worker[] = { "fastchat-worker", u->model, replica, NULL };
    const char *other[] = { "fastchatd", unit_role_name(u->role), NULL };
    CLEANUP(fd_close) int theirs = -1;
    struct place_faults faults;
    struct place place;
    int pair[2];
    pid_t pid;

    snprintf(replica, sizeof replica, "%d", u->replica);
    if (access(program, X_OK) < 0)
        return err_errno(err, -errno, "%s", program);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return err_errno(err, -errno, "socketpair");
    u->channel = pair[0];
    theirs = pair[1];
    limits_place(u, &place);
    pid = spawn(program, u->role == UNIT_WORKER ? worker : other, theirs, &place, &faults);
    limits_placed(u, &place, &faults, pid);
    if (pid < 0)
        return err_errno(err, (int)pid, "fork");
    u->pid = pid;
    return watch(u, err);
}

void unit_start(struct unit *u)
{
    struct err err = { 0 };
    int r;

    u->greeted = u->started = u->killed = u->told = u->stopping = u->wanted = false;
    u->mail = 0;
    u->drain_until_us = 0;
    r = bind_sockets(u, &err);
    if (r == 0)
        r = make_process(u, &err);
    if (r) {
        if (u->pid) {           /* nobody would hear of its end: wait here */
            kill(-u->pid, SIGKILL);
            waitpid(u->pid, NULL, 0);
        }
        forget_process(u);
        snprintf(u->reason, sizeof u->reason, "could not be started: %s", err_text(&err));
        event(u, LOG_ERR, "exit", "%s", u->reason);
        went_down(u, false);
        return;
    }
    u->spawned_us = clock_mono_us();
    set_deadline(u, start_limit_us(u));
    event(u, LOG_INFO, "start", "starts (pid %d)", (int)u->pid);
    set_state(u, UNIT_LOADING);
}

/* ---- stop ---- */

void unit_kill(struct unit *u, const char *fmt, ...)
{
    va_list ap;

    if (u->pid == 0 || u->killed)
        return;
    va_start(ap, fmt);
    vsnprintf(u->reason, sizeof u->reason, fmt, ap);
    va_end(ap);
    u->killed = true;
    sd_event_source_set_enabled(u->deadline, SD_EVENT_OFF);
    event(u, u->stopping ? LOG_NOTICE : LOG_WARNING, "kill", "(pid %d) is killed: it %s", (int)u->pid, u->reason);
    kill(-u->pid, SIGKILL);
}

void unit_stop(struct unit *u, enum unit_mail mail)
{
    bool again = u->stopping && u->state == UNIT_DRAINING;

    u->stopping = true;
    u->delay = sd_event_source_disable_unref(u->delay);
    if (u->pid == 0) {
        if (u->state != UNIT_FAILED)
            set_state(u, UNIT_STOPPED);
        return;
    }
    if (!u->greeted) {
        unit_kill(u, "had not begun when it was told to stop");
        return;
    }
    if (u->state != UNIT_FAILED)
        set_state(u, UNIT_DRAINING);
    if (mail != MAIL_DRAIN || !again)
        unit_post(u, mail);
}

/* First it is asked to stop, then it is made to. */
static int on_limit(sd_event_source *s, uint64_t usec, void *user)
{
    struct unit *u = user;
    uint64_t stop_us = setting_us(u, SUPERVISOR_stop_s, 1000000);

    if (u->drain_until_us == 0) {
        unit_kill(u, "did not stop in time");
        return 0;
    }
    event(u, LOG_NOTICE, "stop", "has had its time to finish what runs");
    u->drain_until_us = 0;
    unit_stop(u, MAIL_STOP);
    sd_event_source_set_time(s, clock_mono_us() + stop_us);
    return sd_event_source_set_enabled(s, SD_EVENT_ONESHOT);
}

void unit_retire(struct unit *u, uint64_t limit_us)
{
    u->drain_until_us = clock_mono_us() + limit_us;
    unit_stop(u, MAIL_DRAIN);
    if (u->pid == 0 || u->limit)
        return;
    if (sd_event_add_time(u->sup->event, &u->limit, CLOCK_MONOTONIC, u->drain_until_us, ACCURACY_US, on_limit, u) < 0)
        unit_kill(u, "could not be given time to finish");
}

int unit_adopt(struct unit *u, struct err *err)
{
    uint64_t now = clock_mono_us(), had = u->deadline_us > now ? u->deadline_us - now : 0;
    int r = watch(u, err);

    if (r == 0) {
        set_deadline(u, had > start_limit_us(u) ? had : start_limit_us(u));
        flush(u);
    }
    if (r == 0 && u->stopping)
        unit_retire(u, u->drain_until_us > clock_mono_us() ? u->drain_until_us - clock_mono_us() : 0);
    return r;
}

int unit_new(struct supervisor *s, enum unit_role role, const char *model, int replica, unsigned generation,
             struct unit **ret, struct err *err)
{
    struct unit *u = calloc(1, sizeof *u);

    if (!u)
        return err_set(err, -ENOMEM, "no memory");
    u->sup = s;
    u->role = role;
    u->replica = replica;
    u->generation = generation;
    u->channel = -1;
    u->since_us = clock_mono_us();
    snprintf(u->model, sizeof u->model, "%s", model ? model : "");
    if (role == UNIT_WORKER)
        snprintf(u->name, sizeof u->name, "worker %s/%d", u->model, replica);
    else
        snprintf(u->name, sizeof u->name, replica ? "%s/%d" : "%s", unit_role_name(role), replica);
    *ret = u;
    return 0;
}

void unit_free(struct unit *u)
{
    if (!u)
        return;
    if (u->pid) {
        kill(-u->pid, SIGKILL);
        waitpid(u->pid, NULL, 0);
    }
    forget_process(u);
    sd_event_source_disable_unref(u->delay);
    give_sockets_back(u);
    free(u->fingerprint);
    free(u);
}
