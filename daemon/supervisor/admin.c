/* RUNTIME/control.sock: whoever may open it asks, one frame, and is answered,
 * one frame. Who may is the file's mode and group. A peer that says something
 * wrong, or does not read its answer, is dropped.
 */
#include "base/err.h"
#include "base/log.h"
#include "daemon/supervisor/supervisor_parts.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

enum { MAX_PEERS = 32 };

struct peer {
    struct admin *admin;
    int fd;                     /* -1: a free place */
    uint64_t order;             /* of its arrival */
    sd_event_source *io;
};

struct admin {
    struct supervisor *sup;
    int listener;
    sd_event_source *io;
    uint64_t n_arrived;
    struct peer peers[MAX_PEERS];
    char path[sizeof ((struct address *)0)->path];
};

static void drop(struct peer *p)
{
    p->io = sd_event_source_disable_unref(p->io);
    fd_close(STEAL_FD(p->fd));
}

static int answer(struct peer *p, const struct control_frame *f)
{
    BUF_LOCAL text = BUF_INIT;

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

static int on_listener(sd_event_source *source, int fd, uint32_t events, void *user)
{
    struct admin *a = user;
    int conn = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct peer *p;

    if (conn < 0)
        return 0;
    p = place(a);
    p->fd = conn;
    p->order = a->n_arrived++;
    if (sd_event_add_io(a->sup->event, &p->io, conn, EPOLLIN, on_peer, p) < 0)
        drop(p);
    return 0;
}

int admin_open(struct supervisor *s, struct admin **ret, struct err *err)
{
    const struct config_value *group = &s->config->sections[CONFIG_SUPERVISOR].values[SUPERVISOR_group];
    struct admin *a = calloc(1, sizeof *a);
    BUF_LOCAL text = BUF_INIT;
    struct address address;
    int r;

    if (!a)
        return err_set(err, -ENOMEM, "no memory");
    *ret = a;                   /* closed by the caller, also half done */
    a->sup = s;
    a->listener = -1;
    for (size_t i = 0; i < MAX_PEERS; i++)
        a->peers[i] = (struct peer){ .admin = a, .fd = -1 };
    buf_adds(&text, "unix:");
    config_socket_path(s->config, "control.sock", &text);
    r = address_parse(buf_str(&text), &address, err);
    if (r)
        return r;
    address.seqpacket = true;
    r = address_listen(&address, MAX_PEERS, 0660, group->set ? (gid_t)group->i : (gid_t)-1, &a->listener, err);
    if (r)
        return r;
    strcpy(a->path, address.path);
    r = sd_event_add_io(s->event, &a->io, a->listener, EPOLLIN, on_listener, a);
    return r < 0 ? err_errno(err, r, "control.sock") : 0;
}

void admin_close(struct admin *a)
{
    if (!a)
        return;
    for (size_t i = 0; i < MAX_PEERS; i++)
        drop(&a->peers[i]);
    sd_event_source_disable_unref(a->io);
    if (a->listener >= 0)
        unlink(a->path);
    fd_close(a->listener);
    free(a);
}
