/* listener.h - the listening sockets that outlive whoever accepts on them.
 *
 * They are bound once, from the configuration, and shared by all processes that
 * accept there: several api processes, or an old and a new one while the one
 * takes the other's place. Under systemd each is kept in its fd store too
 * (FDSTORE=1), so that a service that crashed finds its sockets again and no
 * client is refused meanwhile; a socket that somebody's .socket unit passed is
 * used when it listens on a configured address.
 *
 * Source  sd_listen_fds(3), sd_pid_notify_with_fds(3)
 */
#ifndef DAEMON_SUPERVISOR_LISTENER_H
#define DAEMON_SUPERVISOR_LISTENER_H

#include "ipc/address.h"

#include <stdbool.h>
#include <sys/types.h>

struct err;

/* Which file a path leads to. */
struct socket_file {
    dev_t dev;
    ino_t ino;
};

struct listener {
    struct address address;     /* as configured */
    struct address bound;       /* a port that was 0 is known here */
    int fd;
    struct socket_file file;    /* of a Unix address */
    bool hopeless;              /* its file is gone, and that it can not be made anew was said */
    mode_t mode;
    gid_t group;
    unsigned users;             /* 0: came from outside, nobody has asked for it yet */
    bool stored;                /* systemd has a copy */
    char name[200];             /* of that copy */
    struct listener *next;
};

struct listeners {
    struct listener *first;
    uint64_t patient_until_us;  /* whoever crashed before us may still hold an address */
    bool ending;                /* the service stops: what systemd keeps is kept */
};

/* The socket for an address: one that is there already, or a new one. The
 * caller gives it back with listener_put(). Mode and group are those of a Unix
 * socket, also of one that was there. -errno with a sentence. */
int listener_get(struct listeners *l, const struct address *address, mode_t mode, gid_t group,
                 struct listener **ret, struct err *err);
/* The last one closes it. NULL is fine. */
void listener_put(struct listeners *l, struct listener *k);
/* One more user of it. */
struct listener *listener_share(struct listener *k);

/* Does the path of a Unix socket lead to it no more? */
bool listener_is_lost(const struct listener *k);
/* Binds such a one anew: k->fd is another one then. */
int listener_mend(struct listener *k, struct err *err);

/* The file that a path leads to now, and whether it still is that one. */
void socket_file_note(const char *path, struct socket_file *ret);
bool socket_file_is(const char *path, const struct socket_file *file);

/* Takes over a descriptor that listens for `configured` (a text as in the
 * configuration; NULL: what it is bound to), under its name in the fd store
 * (NULL: none). It becomes ours, also on failure. */
int listener_adopt(struct listeners *l, int fd, const char *configured, const char *name, struct err *err);
/* The one for an address, if there is one. */
struct listener *listener_find(const struct listeners *l, const struct address *address);
/* Those that systemd passed at the start, once. */
void listeners_inherit(struct listeners *l);
/* Closes what nobody asked for. */
void listeners_trim(struct listeners *l);

#endif
