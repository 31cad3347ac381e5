/* unit.h - one child as the supervisor sees it: its process, its channel, its
 * sockets, and what becomes of it.
 *
 *     STOPPED ──start──▶ LOADING ──▶ READY ──▶ DRAINING ──▶ STOPPED
 *        ▲                  │  ▲        │
 *        │             down ▼  │ delay  ▼ down
 *        │                 WAITING ◀────┘            over budget, exit 78: FAILED
 *
 * A unit that is told to stop ends in STOPPED however its process ends.
 */
#ifndef DAEMON_SUPERVISOR_UNIT_H
#define DAEMON_SUPERVISOR_UNIT_H

#include "daemon/supervisor/restart.h"
#include "ipc/address.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <systemd/sd-event.h>

struct err;
struct supervisor;

enum unit_role { UNIT_CONTROLLER, UNIT_API, UNIT_WORKER };
enum unit_state { UNIT_STOPPED, UNIT_WAITING, UNIT_LOADING, UNIT_READY, UNIT_DRAINING, UNIT_FAILED };

/* What is still to be sent once the peer reads again; in this order. */
enum unit_mail {
    MAIL_SETTINGS = 1, MAIL_SOCKETS = 2, MAIL_START = 4, MAIL_MODELS = 8, MAIL_DRAIN = 16,
    MAIL_STOP = 32,
};

struct unit_socket {
    char name[16];              /* "api.0" */
    struct address address;
    mode_t mode;
    gid_t group;
    bool keep;                  /* over the child's restarts */
    int fd;                     /* -1: not bound */
    struct address bound;       /* where it really is: a port that was 0 is known then */
};

struct unit {
    struct supervisor *sup;
    enum unit_role role;
    size_t model;               /* of a worker: its place in the configuration */
    int replica;
    char name[160];             /* "api", "worker smollm2/0" */

    enum unit_state state;
    uint64_t since_us;          /* when it came into that state */
    char reason[512];           /* why it is down, or was last; "" once ready */
    bool stopping;              /* it was told to */

    pid_t pid;                  /* 0: no process */
    int channel;                /* -1 without one */
    bool greeted, started;      /* HELLO came; START is sent */
    bool killed;
    bool told;                  /* the child itself has said why it fails */
    uint64_t ready_us;          /* since when it is ready; 0: it is not */
    uint64_t spawned_us, deadline_us;
    unsigned mail;
    size_t next_socket;
    char *stats;                /* of its last heartbeat that brought some: JSON */
    sd_event_source *io, *exit, *deadline, *delay;

    struct restart restart;
    uint64_t n_restarts;

    struct unit_socket *sockets;
    size_t n_sockets;
};

/* A unit without sockets, STOPPED. */
int unit_new(struct supervisor *s, enum unit_role role, size_t model, int replica,
             struct unit **ret, struct err *err);
/* Kills what still runs. */
void unit_free(struct unit *u);
/* `mode` and `group` count for Unix addresses. */
int unit_add_socket(struct unit *u, const char *name, const char *address, mode_t mode, gid_t group,
                    bool keep, struct err *err);
/* Binds what is not bound. */
int unit_bind(struct unit *u, struct err *err);

/* Starts its process. What goes wrong counts as a child that went down. */
void unit_start(struct unit *u);
/* Adds to its mail and sends what can be sent. */
void unit_post(struct unit *u, unsigned mail);
/* Tells it to stop: MAIL_DRAIN or MAIL_STOP; one that is not up yet is killed. */
void unit_stop(struct unit *u, enum unit_mail mail);
/* SIGKILL for its whole process group. */
void unit_kill(struct unit *u, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* "loading", "restarting", … */
const char *unit_state_name(enum unit_state state);

#endif
