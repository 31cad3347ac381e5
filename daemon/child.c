/* The child's end of the control channel.
 *
 * Everything runs on the loop's thread. The start is a blocking conversation;
 * from then on the channel is an event source that comes before the others, so
 * that a busy child still hears DRAIN, and the beat is a timer of the same
 * loop, so that a loop that no longer turns sends none.
 *
 * What cannot be sent because the supervisor does not read is kept until the
 * next beat is due (state, answer to a reload and packed weights, which matter) or
 * dropped (a beat or a wish, which the next one replaces).
 */
#include "daemon/child.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "daemon/roles.h"
#include "ipc/control.h"
#include "ipc/loop.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_SOCKETS = 64, BEAT_MIN_MS = 10, BEAT_MAX_MS = 600000 };

struct child_socket {
    char name[64];
    int fd;
};

struct child {
    struct child_ops ops;
    struct loop *loop;
    struct loop_timer *beat;
    sd_event_source *channel;
    cJSON *settings;
    uint64_t beat_us;
    const char *state;          /* one of the words below; NULL: nothing said yet */
    char *state_text;
    bool replaced;              /* another process goes on in its place */
    bool state_waits;           /* it is not sent yet */
    char *reloaded;             /* answer to the last RELOAD that is not sent yet; else NULL */
    int weights;                /* that came, and nobody has taken; else -1 */
    int weights_made;           /* not sent yet; else -1 */
    struct child_socket sockets[MAX_SOCKETS];
    size_t n_sockets;
    int reserve;                /* given up while a frame is read, for the one that it may bring */
    struct control_frame frame; /* 64 kB: not on the stack */
};

DEFINE_CLEANUP(struct child *, child_close)

static const char *const states[] = { "loading", "ready", "draining", "failed" };

/* The supervisor is gone, and with it the reason to live. Nothing here may
 * wait: whoever starts the service anew needs the sockets. */
static _Noreturn void end_orphaned(void)
{
    log_notice("the supervisor is gone: ending");
    _exit(EXIT_FAILED);
}

static void send_state(struct child *c)
{
    BUF_LOCAL text = BUF_INIT;
    struct json_writer w = json_writer(&text);
    int r;

    json_open(&w, '{');
    json_kstr(&w, "state", c->state);
    if (c->state_text)
        json_kstr(&w, "text", c->state_text);
    json_close(&w, '}');
    if (text.failed)
        return;
    r = control_send_json(CONTROL_FD, CONTROL_STATE, buf_str(&text));
    c->state_waits = r == CONTROL_AGAIN;
    if (r < 0)
        log_warning("the state '%s' could not be sent: %s", c->state, strerror(-r));
}

static void send_weights(struct child *c)
{
    int r = control_send(CONTROL_FD, CONTROL_WEIGHTS_MADE, NULL, 0, &c->weights_made, 1);

    if (r == CONTROL_AGAIN)
        return;
    if (r < 0)
        log_warning("the packed weights could not be handed on: %s", strerror(-r));
    fd_close(STEAL_FD(c->weights_made));
}

static void send_reloaded(struct child *c)
{
    int r = control_send_json(CONTROL_FD, CONTROL_RELOADED, c->reloaded);

    if (r == CONTROL_AGAIN)
        return;
    if (r < 0)
        log_warning("the answer to a reload could not be sent: %s", strerror(-r));
    free(STEAL(c->reloaded));
}

static void send_beat(struct child *c, uint64_t busy_ms)
{
    BUF_LOCAL text = BUF_INIT;
    struct json_writer w = json_writer(&text);

    json_open(&w, '{');
    if (busy_ms > CONTROL_BUSY_MAX_MS)  /* a longer step is announced again before that is over */
        busy_ms = CONTROL_BUSY_MAX_MS;
    if (busy_ms)
        json_kint(&w, "busy_ms", (int64_t)busy_ms);
    if (c->ops.stats) {
        json_key(&w, "stats");
        json_open(&w, '{');
        c->ops.stats(&w, c->ops.user);
        json_close(&w, '}');
    }
    json_close(&w, '}');
    if (text.failed || text.len > CONTROL_PAYLOAD)
        control_send_json(CONTROL_FD, CONTROL_HEARTBEAT, "{}");
    else
        control_send_json(CONTROL_FD, CONTROL_HEARTBEAT, buf_str(&text));
}

static void on_beat(void *user)
{
    struct child *c = user;
    uint64_t busy_ms = 0;

    if (c->state_waits)
        send_state(c);
    if (c->reloaded)
        send_reloaded(c);
    if (c->weights_made >= 0)
        send_weights(c);
    if (!c->ops.alive || c->ops.alive(&busy_ms, c->ops.user))
        send_beat(c, busy_ms);
    loop_timer_set(c->beat, c->beat_us);
}

void child_state(struct child *c, const char *state, const char *text)
{
    char *copy = text ? strdup(text) : NULL;

    c->state = NULL;
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++)
        if (strcmp(states[i], state) == 0)
            c->state = states[i];
    assert(c->state);
    free(c->state_text);
    /* A frame holds 64 kB, and escaping makes six bytes of one at worst. */
    if (copy && strlen(copy) > 4096)
        copy[4096] = 0;
    c->state_text = copy;
    send_state(c);
}

void child_want(struct child *c, const char *model)
{
    BUF_LOCAL text = BUF_INIT;
    struct json_writer w = json_writer(&text);

    json_open(&w, '{');
    json_kstr(&w, "model", model);
    json_close(&w, '}');
    if (!text.failed && text.len <= CONTROL_PAYLOAD)
        control_send_json(CONTROL_FD, CONTROL_WANT, buf_str(&text));
}

/* The tree of a payload or, for frames that carry one, of the memfd. */
static int frame_tree(const struct control_frame *f, bool memfd, cJSON **ret, struct err *err)
{
    CLEANUP(mem_free) char *text = NULL;
    size_t len;
    int r;

    if (!memfd)
        return f->len ? json_parse(f->payload, f->len, NULL, ret, err) : 0;
    if (f->n_fds != 1)
        return err_set(err, -EPROTO, "control frame %d brought %zu descriptors instead of one",
                       f->type, f->n_fds);
    r = control_read_memfd(f->fds[0], &text, &len, err);
    return r ? r : json_parse(text, len, NULL, ret, err);
}

static void drain(struct child *c, const cJSON *tree)
{
    int64_t limit_ms = 0;

    json_get_int(tree, "limit_ms", 0, INT64_MAX / 1000, &limit_ms, NULL);
    json_get_bool(tree, "replaced", &c->replaced, NULL);
    child_state(c, "draining", NULL);
    if (c->ops.drain)
        c->ops.drain((uint64_t)limit_ms, c->ops.user);
    else
        loop_stop(c->loop, EXIT_DONE);
}

/* ---- settings ---- */

/* What of the settings this file uses itself. */
struct own {
    int log_level;
    uint64_t beat_us;
};

static int own_read(const cJSON *settings, struct own *ret, struct err *err)
{
    const char *level = "info";
    int64_t beat_ms = 1000;

    if (json_get_string(settings, "log_level", &level, err) < 0 ||
        json_get_int(settings, "heartbeat_ms", BEAT_MIN_MS, BEAT_MAX_MS, &beat_ms, err) < 0)
        return -EINVAL;
    ret->log_level = log_level_of(level);
    ret->beat_us = (uint64_t)beat_ms * 1000;
    return ret->log_level < 0 ? err_set(err, -EINVAL, "'log_level' is unknown: %s", level) : 0;
}

static void own_use(struct child *c, const struct own *own)
{
    log_set_level(own->log_level);
    if (c->beat && own->beat_us < c->beat_us)
        loop_timer_set(c->beat, own->beat_us);
    c->beat_us = own->beat_us;
}

static int use_settings(struct child *c, const cJSON *settings, struct err *err)
{
    struct own own;
    int r;

    if (!c->ops.reload)
        return err_set(err, -ENOTSUP, "this child can not take new settings while it runs");
    if (!cJSON_IsObject(settings))
        return err_set(err, -EINVAL, "they must be an object, but are %s", json_type_name(settings));
    r = own_read(settings, &own, err);
    if (r == 0)
        r = c->ops.reload(settings, c->ops.user, err);
    if (r == 0)
        own_use(c, &own);
    return r;
}

static void reload(struct child *c, const cJSON *settings)
{
    BUF_LOCAL text = BUF_INIT;
    struct json_writer w = json_writer(&text);
    struct err err = { 0 };
    int r = use_settings(c, settings, &err);

    json_open(&w, '{');
    if (r < 0)
        json_kstr(&w, "error", err_text(&err));
    json_close(&w, '}');
    if (r < 0)
        log_warning("new settings are not used: %s", err_text(&err));
    else
        log_info("new settings are in use");
    free(c->reloaded);
    c->reloaded = buf_take(&text);
    if (c->reloaded)
        send_reloaded(c);
}

/* ---- frames ---- */

/* The name and, in the frame, the one descriptor of a LISTEN frame. */
static int read_listen(const struct child *c, const cJSON *tree, const char **ret_name, struct err *err)
{
    const char *name;
    int r = json_get_string(tree, "name", &name, err);

    if (r < 0)
        return r;
    if (r == JSON_ABSENT || c->frame.n_fds != 1 || strlen(name) >= sizeof c->sockets[0].name)
        return err_set(err, -EPROTO, "a LISTEN frame needs a name and one descriptor");
    fcntl(c->frame.fds[0], F_SETFD, FD_CLOEXEC);
    fcntl(c->frame.fds[0], F_SETFL, O_NONBLOCK);
    *ret_name = name;
    return 0;
}

static int listen_anew(struct child *c, const cJSON *tree, struct err *err)
{
    const char *name;
    int r = read_listen(c, tree, &name, err);

    if (r == 0 && c->ops.listen)
        c->ops.listen(name, STEAL_FD(c->frame.fds[0]), c->ops.user);
    return r;
}

static int handle(struct child *c, struct err *err)
{
    bool memfd = c->frame.type == CONTROL_MODELS || c->frame.type == CONTROL_RELOAD;
    CLEANUP(json_delete) cJSON *tree = NULL;
    int r = frame_tree(&c->frame, memfd, &tree, err);

    if (r)
        return r;
    switch (c->frame.type) {
    case CONTROL_DRAIN:
        drain(c, tree);
        return 0;
    case CONTROL_STOP:
        loop_stop(c->loop, EXIT_DONE);
        return 0;
    case CONTROL_LISTEN:
        return listen_anew(c, tree, err);
    case CONTROL_MODELS:
        if (c->ops.models)
            c->ops.models(json_find(tree, "models"), c->ops.user);
        return 0;
    case CONTROL_RELOAD:
        reload(c, tree);
        return 0;
    default:
        return err_set(err, -EPROTO, "the supervisor sent an unexpected frame of type %d",
                       c->frame.type);
    }
}

static int on_channel(sd_event_source *s, int fd, uint32_t events, void *user)
{
    struct child *c = user;
    struct err err = { 0 };
    int r;

    fd_close(STEAL_FD(c->reserve));
    r = control_recv(fd, &c->frame, &err);
    if (r == CONTROL_EOF)
        end_orphaned();
    if (r == 0) {
        r = handle(c, &err);
        control_close_fds(&c->frame);
    }
    c->reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (r < 0) {
        log_error("control channel: %s", err_text(&err));
        sd_event_source_set_enabled(s, SD_EVENT_OFF);
        loop_stop(c->loop, EXIT_FAILED);
    }
    return 0;
}

/* ---- the start ---- */

static int check_channel(struct err *err)
{
    socklen_t len = sizeof(int);
    int type = 0;

    if (getsockopt(CONTROL_FD, SOL_SOCKET, SO_TYPE, &type, &len) < 0 || type != SOCK_SEQPACKET)
        return err_set(err, -EINVAL,
                       "descriptor %d is no control channel: this program is started by fastchatd",
                       CONTROL_FD);
    fcntl(CONTROL_FD, F_SETFD, FD_CLOEXEC);
    return 0;
}

/* The next frame, however long it takes. */
static int next_frame(struct child *c, struct err *err)
{
    for (;;) {
        struct pollfd p = { .fd = CONTROL_FD, .events = POLLIN };
        int r = control_recv(CONTROL_FD, &c->frame, err);

        if (r == CONTROL_EOF)
            end_orphaned();
        if (r != CONTROL_AGAIN)
            return r;
        if (poll(&p, 1, -1) < 0 && errno != EINTR)
            return err_errno(err, -errno, "poll");
    }
}

static int take_socket_frame(struct child *c, struct err *err)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    struct child_socket *s = &c->sockets[c->n_sockets];
    const char *name;
    int r = frame_tree(&c->frame, false, &tree, err);

    if (r == 0)
        r = read_listen(c, tree, &name, err);
    if (r < 0)
        return r;
    if (c->n_sockets == MAX_SOCKETS)
        return err_set(err, -EPROTO, "more than %d listening sockets", MAX_SOCKETS);
    strcpy(s->name, name);
    s->fd = STEAL_FD(c->frame.fds[0]);
    c->n_sockets++;
    return 0;
}

static int take_weights_frame(struct child *c, struct err *err)
{
    if (c->frame.n_fds != 1)
        return err_set(err, -EPROTO, "a WEIGHTS frame needs one descriptor");
    fd_close(c->weights);
    c->weights = STEAL_FD(c->frame.fds[0]);
    return 0;
}

static int take_settings(struct child *c, struct err *err)
{
    struct own own;
    int r;

    if (c->settings)
        return err_set(err, -EPROTO, "the settings came twice");
    r = frame_tree(&c->frame, true, &c->settings, err);
    if (r == 0)
        r = own_read(c->settings, &own, err);
    if (r < 0) {
        err_place(err, "settings");
        return r;
    }
    own_use(c, &own);
    return 0;
}

/* 0: more to come; 1: started. */
static int start_frame(struct child *c, struct err *err)
{
    switch (c->frame.type) {
    case CONTROL_SETTINGS:
        return take_settings(c, err);
    case CONTROL_LISTEN:
        return take_socket_frame(c, err);
    case CONTROL_WEIGHTS:
        return take_weights_frame(c, err);
    case CONTROL_START:
        return c->settings ? 1 : err_set(err, -EPROTO, "START came before the settings");
    case CONTROL_STOP:
    case CONTROL_DRAIN:
        _exit(EXIT_DONE);
    default:
        return err_set(err, -EPROTO, "the supervisor sent an unexpected frame of type %d",
                       c->frame.type);
    }
}

static int handshake(struct child *c, struct err *err)
{
    char hello[128];
    int r;

    snprintf(hello, sizeof hello, "{\"pid\":%d,\"version\":\"%s\"}", (int)getpid(),
             FASTCHAT_VERSION);
    r = control_send_json(CONTROL_FD, CONTROL_HELLO, hello);
    if (r == CONTROL_EOF)
        end_orphaned();
    if (r)
        return err_set(err, r < 0 ? r : -EAGAIN, "HELLO could not be sent");
    do {
        r = next_frame(c, err);
        if (r < 0)
            break;
        r = start_frame(c, err);
        control_close_fds(&c->frame);
    } while (r == 0);
    if (r < 0)
        err_place(err, "control channel");
    return r < 0 ? r : 0;
}

static int join_loop(struct child *c, struct err *err)
{
    int r = loop_open(&c->loop, err);

    if (r)
        return r;
    r = loop_timer_new(c->loop, on_beat, c, &c->beat);
    if (r == 0)
        r = sd_event_add_io(loop_event(c->loop), &c->channel, CONTROL_FD, EPOLLIN, on_channel, c);
    if (r >= 0)
        r = sd_event_source_set_priority(c->channel, SD_EVENT_PRIORITY_IMPORTANT);
    if (r < 0)
        return err_errno(err, r, "control channel");
    loop_timer_set(c->beat, 0);
    return 0;
}

int child_open(const char *role, const struct child_ops *ops, struct child **ret, struct err *err)
{
    CLEANUP(child_close) struct child *c = NULL;
    int r;

    log_open(role, LOG_INFO);
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    r = check_channel(err);
    if (r)
        return r;
    c = calloc(1, sizeof *c);
    if (!c)
        return err_set(err, -ENOMEM, "no memory");
    c->weights = c->weights_made = -1;
    c->reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (ops)
        c->ops = *ops;
    r = handshake(c, err);
    if (r == 0)
        r = join_loop(c, err);
    if (r)
        return r;
    child_state(c, "loading", NULL);
    *ret = STEAL(c);
    return 0;
}

void child_close(struct child *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->n_sockets; i++)
        fd_close(c->sockets[i].fd);
    fd_close(c->reserve);
    fd_close(c->weights);
    fd_close(c->weights_made);
    sd_event_source_disable_unref(c->channel);
    loop_timer_free(c->beat);
    loop_close(c->loop);
    cJSON_Delete(c->settings);
    free(c->state_text);
    free(c->reloaded);
    free(c);
}

struct loop *child_loop(struct child *c)
{
    return c->loop;
}

int child_take_weights(struct child *c)
{
    return STEAL_FD(c->weights);
}

void child_give_weights(struct child *c, int fd)
{
    fd_close(c->weights_made);
    c->weights_made = fd;
    send_weights(c);
}

bool child_is_replaced(const struct child *c)
{
    return c->replaced;
}

const cJSON *child_settings(struct child *c)
{
    return c->settings;
}

int child_take_socket(struct child *c, const char *name)
{
    for (size_t i = 0; i < c->n_sockets; i++)
        if (strcmp(c->sockets[i].name, name) == 0)
            return STEAL_FD(c->sockets[i].fd);
    return -1;
}
