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
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

enum { MAX_PEERS = ADMIN_MAX_PEERS, MAX_TEXT = 10000 };

struct peer {
    struct admin *admin;
    int fd;                     /* -1: a free place */
    uint64_t order;             /* of its arrival */
    sd_event_source *io;
    struct waiter waiter;
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
    command_forget(&p->waiter);
    p->io = sd_event_source_disable_unref(p->io);
    fd_close(STEAL_FD(p->fd));
}

int admin_say(int fd, enum control_type type, const char *text)
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
    return type == CONTROL_REPLY ? control_send_memfd(fd, type, buf_str(&json), json.len, NULL)
                                 : control_send_json(fd, type, buf_str(&json));
}

static void on_answer(struct waiter *w, int result, const char *text)
{
    struct peer *p = (struct peer *)((char *)w - offsetof(struct peer, waiter));

    if (admin_say(p->fd, result ? CONTROL_ERROR : CONTROL_REPLY, text))
        drop(p);
}

static int take_command(struct peer *p, const struct control_frame *f, struct err *err)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    const char *name = "", *model = "";
    BUF_LOCAL why = BUF_INIT;

    if (json_parse(f->payload, f->len, NULL, &tree, err) || json_get_string(tree, "command", &name, err) < 0 ||
        json_get_string(tree, "model", &model, err) < 0)
        return admin_say(p->fd, CONTROL_ERROR, err_text(err));
    if (p->waiter.command != COMMAND_NONE)
        return admin_say(p->fd, CONTROL_ERROR, "this connection waits for an earlier command");
    if (command_begin(p->admin->sup, &p->waiter, command_of(name), model, &why))
        return admin_say(p->fd, CONTROL_ERROR, buf_str(&why));
    return 0;
}

static int answer(struct peer *p, const struct control_frame *f)
{
    BUF_LOCAL text = BUF_INIT;
    struct err err = { 0 };

    if (f->type == CONTROL_COMMAND) {
        int r = question_answer(p->admin->sup, p->fd, f);

        return r == QUESTION_NONE ? take_command(p, f, &err) : r;
    }
    if (f->type != CONTROL_STATUS)
        return control_send_json(p->fd, CONTROL_ERROR, "{\"message\":\"unknown request\"}");
    status_reply(p->admin->sup, &text);
    if (text.failed)
        return -ENOMEM;
    return control_send_memfd(p->fd, CONTROL_REPLY, buf_str(&text), text.len, NULL);
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
        a->peers[i] = (struct peer){ .admin = a, .fd = -1, .waiter.answer = on_answer };
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

        if (p->fd >= 0 && p->waiter.command != COMMAND_NONE)
            ret[n++] = (struct admin_wait){ .fd = p->fd, .command = p->waiter.command, .model = p->waiter.model };
    }
    return n;
}

int admin_adopt(struct admin *a, const struct admin_wait *w, struct err *err)
{
    struct peer *p;
    int r = add_peer(a, w->fd, &p);

    if (r < 0)
        return err_errno(err, r, "control.sock");
    if (w->command != COMMAND_NONE)
        command_wait(a->sup, &p->waiter, w->command, w->model);
    return 0;
}
