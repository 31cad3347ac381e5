/* RUNTIME/control.sock: whoever may open it asks, one frame, and is answered,
 * one frame. Who may is the file's mode and group. A peer that says something
 * wrong, or does not read its answer, is dropped. Commands are answered when
 * what they ask for is done, or can not be; several peers may wait.
 */
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "daemon/supervisor/supervisor_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

enum { MAX_PEERS = ADMIN_MAX_PEERS, MAX_TEXT = 10000 };

struct peer {
    struct admin *admin;
    int fd;                     /* -1: a free place */
    uint64_t order;             /* of its arrival */
    sd_event_source *io;
    enum admin_command waits;   /* for the end of this */
    char model[132];
};

struct admin {
    struct supervisor *sup;
    int listener;
    sd_event_source *io;
    int reserve;                /* given up where there are no more descriptors */
    bool hopeless;              /* that the socket can not be made anew was said */
    struct address address;
    struct socket_file file;
    uint64_t n_arrived;
    struct peer peers[MAX_PEERS];
};

static void drop(struct peer *p)
{
    p->waits = ADMIN_NONE;
    p->io = sd_event_source_disable_unref(p->io);
    fd_close(STEAL_FD(p->fd));
}

static const struct { const char *name; enum admin_command command; bool model; } commands[] = {
    { "load", ADMIN_LOAD, true },       { "reload", ADMIN_RELOAD, false },
    { "unload", ADMIN_UNLOAD, true },   { "upgrade", ADMIN_UPGRADE, false },
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

const char *admin_command_name(enum admin_command command)
{
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (commands[i].command == command)
            return commands[i].name;
    return "";
}

enum admin_command admin_command_of(const char *name)
{
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(commands[i].name, name) == 0)
            return commands[i].command;
    return ADMIN_NONE;
}

static int say(struct peer *p, enum control_type type, const char *text)
{
    BUF_LOCAL json = BUF_INIT;
    struct json_writer w = json_writer(&json);
    size_t len = strlen(text);

    json_open(&w, '{');
    json_key(&w, "message");
    json_strn(&w, text, len < MAX_TEXT ? len : MAX_TEXT);
    json_close(&w, '}');
    if (json.failed)
        return -ENOMEM;
    return type == CONTROL_REPLY ? control_send_memfd(p->fd, type, buf_str(&json), json.len, NULL)
                                 : control_send_json(p->fd, type, buf_str(&json));
}

static int begin(struct peer *p, enum admin_command command, struct err *err)
{
    struct supervisor *s = p->admin->sup;
    BUF_LOCAL faults = BUF_INIT;

    switch (command) {
    case ADMIN_RELOAD:
        if (reload(s, &faults)) {
            buf_adds(&faults, "nothing has changed: the configuration in force stays\n");
            return say(p, CONTROL_ERROR, buf_str(&faults));
        }
        break;
    case ADMIN_LOAD:
        if (models_load(s, p->model, err))
            return say(p, CONTROL_ERROR, err_text(err));
        break;
    case ADMIN_UNLOAD:
        if (models_unload(s, p->model, err))
            return say(p, CONTROL_ERROR, err_text(err));
        break;
    case ADMIN_UPGRADE:
        if (upgrade_begin(s, err))
            return say(p, CONTROL_ERROR, err_text(err));
        break;
    case ADMIN_NONE:
        break;
    }
    p->waits = command;
    supervisor_news(s);
    return 0;
}

static int take_command(struct peer *p, const struct control_frame *f, struct err *err)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    const char *name = "", *model = "";

    if (json_parse(f->payload, f->len, NULL, &tree, err) || json_get_string(tree, "command", &name, err) < 0 ||
        json_get_string(tree, "model", &model, err) < 0)
        return say(p, CONTROL_ERROR, err_text(err));
    if (p->waits != ADMIN_NONE || p->admin->sup->phase != STOP_NOT)
        return say(p, CONTROL_ERROR, p->waits ? "this connection waits for an earlier command" : "the service is stopping");
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(commands[i].name, name) == 0) {
            model = commands[i].model ? models_name(p->admin->sup, model) : "";
            if (commands[i].model && (!*model || strlen(model) >= sizeof p->model))
                return say(p, CONTROL_ERROR, "this command needs the name of a model");
            strcpy(p->model, model);
            return begin(p, commands[i].command, err);
        }
    return say(p, CONTROL_ERROR, "unknown command");
}

static int answer(struct peer *p, const struct control_frame *f)
{
    BUF_LOCAL text = BUF_INIT;
    struct err err = { 0 };

    if (f->type == CONTROL_COMMAND)
        return take_command(p, f, &err);
    if (f->type != CONTROL_STATUS)
        return control_send_json(p->fd, CONTROL_ERROR, "{\"message\":\"unknown request\"}");
    status_reply(p->admin->sup, &text);
    if (text.failed)
        return -ENOMEM;
    return control_send_memfd(p->fd, CONTROL_REPLY, buf_str(&text), text.len, NULL);
}

/* Is what it waits for over? And if so, how: CONTROL_REPLY or CONTROL_ERROR. */
static bool is_over(const struct peer *p, enum control_type *ret, struct err *text)
{
    const struct supervisor *s = p->admin->sup;
    enum models_progress progress;

    *ret = s->troubles.len && (p->waits == ADMIN_RELOAD || p->waits == ADMIN_UPGRADE) ? CONTROL_ERROR : CONTROL_REPLY;
    switch (p->waits) {
    case ADMIN_RELOAD:
        err_set(text, 1, "%s", s->troubles.len ? buf_str(&s->troubles) : "the configuration is in force");
        return !s->reloading;
    case ADMIN_LOAD:
    case ADMIN_UNLOAD:
        progress = models_progress(s, p->model, p->waits == ADMIN_LOAD, text);
        if (progress == MODELS_FAILED)
            *ret = CONTROL_ERROR;
        err_set(text, 1, "%s is %s", p->model, p->waits == ADMIN_LOAD ? "loaded" : "unloaded");
        return progress != MODELS_PENDING;
    case ADMIN_UPGRADE:
        err_set(text, 1, "the service runs fastchatd %s%s%s", FASTCHAT_VERSION, s->troubles.len ? ", but\n" : "",
                buf_str(&s->troubles));
        return !s->upgrade && fleet_is_settled(s);
    default:
        return false;
    }
}

static void tell(struct peer *p, enum control_type type, const char *text)
{
    p->waits = ADMIN_NONE;
    if (say(p, type, text))
        drop(p);
}

void admin_settle(struct admin *a)
{
    for (size_t i = 0; i < MAX_PEERS; i++) {
        struct err text = { 0 };
        enum control_type type;

        if (a->peers[i].fd >= 0 && is_over(&a->peers[i], &type, &text))
            tell(&a->peers[i], type, err_text(&text));
    }
}

void admin_give_up(struct admin *a, enum admin_command what, const char *why)
{
    for (size_t i = 0; a && i < MAX_PEERS; i++) {
        struct peer *p = &a->peers[i];

        if (p->fd >= 0 && p->waits != ADMIN_NONE && (what == ADMIN_NONE || what == p->waits))
            tell(p, CONTROL_ERROR, why);
    }
}

static int on_peer(sd_event_source *source, int fd, uint32_t events, void *user)
{
    struct peer *p = user;
    struct control_frame *f = &p->admin->sup->frame;
    struct err err = { 0 };
    int r = control_recv(fd, f, &err);

    if (r == CONTROL_AGAIN)
        return 0;
    if (r < 0)
        log_debug("control.sock: a peer was dropped: %s", err_text(&err));
    if (r == 0) {
        r = answer(p, f);
        control_close_fds(f);
    }
    if (r)
        drop(p);
    return 0;
}

/* A free place; that of the peer that has been here longest if there is none. */
static struct peer *place(struct admin *a)
{
    struct peer *oldest = &a->peers[0];

    for (size_t i = 0; i < MAX_PEERS; i++) {
        if (a->peers[i].fd < 0)
            return &a->peers[i];
        if (a->peers[i].order < oldest->order)
            oldest = &a->peers[i];
    }
    drop(oldest);
    return oldest;
}

/* Out of descriptors: whoever waits is turned away, for a socket with somebody
 * waiting would wake us again at once. */
static void refuse_without_fd(struct admin *a)
{
    fd_close(STEAL_FD(a->reserve));
    fd_close(accept4(a->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
    a->reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static int add_peer(struct admin *a, int conn, struct peer **ret)
{
    struct peer *p = place(a);
    int r;

    p->fd = conn;
    p->order = a->n_arrived++;
    r = sd_event_add_io(a->sup->event, &p->io, conn, EPOLLIN, on_peer, p);
    if (r < 0)
        drop(p);
    *ret = p;
    return r;
}

static int on_listener(sd_event_source *source, int fd, uint32_t events, void *user)
{
    struct admin *a = user;
    int conn = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct peer *p;

    if (conn < 0 && (errno == EMFILE || errno == ENFILE))
        refuse_without_fd(a);
    if (conn >= 0)
        add_peer(a, conn, &p);
    return 0;
}

static int bind_there(struct admin *a, struct err *err)
{
    const struct config_value *group = &a->sup->config->sections[CONFIG_SUPERVISOR].values[SUPERVISOR_group];

    return address_listen(&a->address, MAX_PEERS, 0660, group->set ? (gid_t)group->i : (gid_t)-1, &a->listener, err);
}

static int hear(struct admin *a, struct err *err)
{
    int r = sd_event_add_io(a->sup->event, &a->io, a->listener, EPOLLIN, on_listener, a);

    socket_file_note(a->address.path, &a->file);
    return r < 0 ? err_errno(err, r, "control.sock") : 0;
}

void admin_mend(struct admin *a)
{
    struct err err = { 0 };
    int r;

    if (socket_file_is(a->address.path, &a->file))
        return;
    a->io = sd_event_source_disable_unref(a->io);
    fd_close(STEAL_FD(a->listener));
    r = bind_there(a, &err);
    if (r == 0)
        r = hear(a, &err);
    if (r == 0)
        log_event(LOG_WARNING, "socket", NULL, "%s was gone and is made anew", a->address.text);
    else if (!a->hopeless)
        log_event(LOG_ERR, "socket", NULL, "%s is gone and can not be made anew: %s", a->address.text, err_text(&err));
    a->hopeless = r != 0;
}

int admin_open(struct supervisor *s, int listener, struct admin **ret, struct err *err)
{
    struct admin *a = calloc(1, sizeof *a);
    BUF_LOCAL text = BUF_INIT;
    int r;

    if (!a)
        return err_set(err, -ENOMEM, "no memory");
    *ret = a;                   /* closed by the caller, also half done */
    a->sup = s;
    a->listener = listener;
    a->reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
    for (size_t i = 0; i < MAX_PEERS; i++)
        a->peers[i] = (struct peer){ .admin = a, .fd = -1 };
    buf_adds(&text, "unix:");
    config_socket_path(s->config, "control.sock", &text);
    r = address_parse(buf_str(&text), &a->address, err);
    a->address.seqpacket = true;
    if (r == 0 && listener < 0)
        r = bind_there(a, err);
    return r ? r : hear(a, err);
}

void admin_close(struct admin *a)
{
    if (!a)
        return;
    for (size_t i = 0; i < MAX_PEERS; i++)
        drop(&a->peers[i]);
    sd_event_source_disable_unref(a->io);
    if (a->listener >= 0)
        unlink(a->address.path);
    fd_close(a->listener);
    fd_close(a->reserve);
    free(a);
}

/* ---- over an upgrade ---- */

int admin_listener(const struct admin *a)
{
    return a->listener;
}

size_t admin_waiting(const struct admin *a, struct admin_wait *ret)
{
    size_t n = 0;

    for (size_t i = 0; i < MAX_PEERS; i++) {
        const struct peer *p = &a->peers[i];

        if (p->fd >= 0 && p->waits != ADMIN_NONE)
            ret[n++] = (struct admin_wait){ .fd = p->fd, .command = p->waits, .model = p->model };
    }
    return n;
}

int admin_adopt(struct admin *a, const struct admin_wait *w, struct err *err)
{
    struct peer *p;
    int r = add_peer(a, w->fd, &p);

    if (r < 0)
        return err_errno(err, r, "control.sock");
    p->waits = w->command;
    snprintf(p->model, sizeof p->model, "%s", w->model);
    return 0;
}
