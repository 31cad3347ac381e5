/* unit.h - one child as the supervisor sees it: its process, its channel, its
 * sockets, and what becomes of it.
 *
 *     STOPPED ──start──▶ LOADING ──▶ READY ──▶ DRAINING ──▶ STOPPED
 *        ▲                  │  ▲        │
 *        │             down ▼  │ delay  ▼ down
 *        │                 WAITING ◀────┘            over budget, exit 78: FAILED
 *
 * A unit that is told to stop ends in STOPPED however its process ends.
 *
 * To take another one's place (new settings, a new program) a unit of its own
 * is made, the heir: it starts beside its forerunner, which drains once the
 * heir is ready, or, where there is no room for both, at its forerunner's end.
 */
#ifndef DAEMON_SUPERVISOR_UNIT_H
#define DAEMON_SUPERVISOR_UNIT_H

#include "daemon/supervisor/listener.h"
#include "daemon/supervisor/restart.h"
#include "daemon/supervisor/unit_limits.h"
#include "ipc/address.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <systemd/sd-event.h>

struct control_frame;
struct err;
struct supervisor;

enum unit_role { UNIT_CONTROLLER, UNIT_API, UNIT_WORKER };
enum unit_state { UNIT_STOPPED, UNIT_WAITING, UNIT_LOADING, UNIT_READY, UNIT_DRAINING, UNIT_FAILED };

/* What is still to be sent once the peer reads again; in this order. */
enum unit_mail {
    MAIL_SETTINGS = 1, MAIL_SOCKETS = 2, MAIL_START = 4, MAIL_RELOAD = 8, MAIL_MODELS = 16, MAIL_DRAIN = 32,
    MAIL_STOP = 64,
};

struct unit_socket {
    char name[16];              /* "api.0" */
    bool told;                  /* the child that runs has it */
    struct listener *kept;      /* shared with others; NULL: made anew for each start, by what follows */
    struct address address;
    struct socket_file file;    /* of a Unix address */
    bool hopeless;              /* its file is gone, and that it can not be made anew was said */
    int fd;                     /* -1: not bound */
    struct address bound;       /* where it really is: a port that was 0 is known then */
};

struct unit {
    struct supervisor *sup;
    enum unit_role role;
    char model[132];            /* of a worker */
    int replica;                /* of a worker; number of an api process */
    unsigned generation;        /* tells processes apart that serve one replica for a while */
    char name[160];             /* "api", "worker smollm2/0" */
    char *fingerprint;          /* what of the configuration it can not change while it runs */
    char *settings;             /* as it was told last */

    enum unit_state state;
    uint64_t since_us;          /* when it came into that state */
    char reason[512];           /* why it is down, or was last; "" once ready */
    char last_reason[512];      /* why it was last started anew; "": it never was */
    bool stopping;              /* it was told to */

    struct unit *heir, *forerunner;     /* see above */
    bool outdated;              /* another one is to take its place */
    bool gone;                  /* to be forgotten when it has no process any more */
    bool awaited;               /* a reload waits for it */
    bool reloading;             /* RELOAD went out, RELOADED has not come */
    bool always;                /* loaded with the service, not on demand */
    bool wanted;                /* to be started once it is STOPPED and there is room */

    pid_t pid;                  /* 0: no process */
    int channel;                /* -1 without one */
    bool greeted, started;      /* HELLO came; START is sent */
    bool killed;
    bool told;                  /* the child itself has said why it fails */
    uint64_t ready_us;          /* since when it is ready; 0: it is not */
    uint64_t spawned_us, deadline_us;
    uint64_t drain_until_us;
    unsigned mail;
    char *stats;                /* of its last heartbeat that brought some: JSON */
    uint64_t idle_since_us;     /* of a worker without requests; 0: it has some, or nobody knows */
    int64_t rss_kb;             /* as measured last while it was ready */
    char leaf[CGROUP_NAME];     /* its control group; "": none of its own */
    uint64_t ooms, oom_kills;   /* of that, before its process */
    struct limits limits, said; /* of its process; of which faults the log knows */
    sd_event_source *io, *exit, *deadline, *delay, *limit;

    struct restart restart;
    uint64_t n_restarts;

    struct unit_socket *sockets;
    size_t n_sockets;
};

/* A unit without sockets, STOPPED. model: NULL for other roles than workers. */
int unit_new(struct supervisor *s, enum unit_role role, const char *model, int replica, unsigned generation,
             struct unit **ret, struct err *err);
/* Kills what still runs. */
void unit_free(struct unit *u);
/* A socket that is bound for each start (a Unix one with mode 0660). */
int unit_add_socket(struct unit *u, const char *name, const char *address, struct err *err);
/* A kept one; the unit takes the caller's use of it over. */
int unit_add_listener(struct unit *u, const char *name, struct listener *k, struct err *err);
const struct address *unit_socket_bound(const struct unit_socket *k);

/* Binds one that is made anew for each start. */
int unit_bind_socket(struct unit_socket *k, struct err *err);

/* Starts its process. What goes wrong counts as a child that went down. */
void unit_start(struct unit *u);
/* Goes on with a process that another image of this program started; pid and
 * channel are set. */
int unit_adopt(struct unit *u, struct err *err);
/* Adds to its mail and sends what can be sent. */
void unit_post(struct unit *u, unsigned mail);
/* What its child says, one frame. 0, or -EPROTO and others with a sentence: a
 * child that says such a thing is killed. Its descriptors stay the caller's. */
int unit_take_frame(struct unit *u, const struct control_frame *f, struct err *err);
/* Tells it to stop: MAIL_DRAIN or MAIL_STOP; one that is not up yet is killed. */
void unit_stop(struct unit *u, enum unit_mail mail);
/* Tells it to drain and sees to it that it ends: after limit_us it is told to
 * stop, and killed if that does not help. */
void unit_retire(struct unit *u, uint64_t limit_us);
/* Tells a running one, or an api that drains, its settings of now, if they are
 * others than it has. */
void unit_tell_settings(struct unit *u);
/* Makes one without a process FAILED, for this reason. */
void unit_refuse(struct unit *u, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* A new account for one that went down too often. */
void unit_forgive(struct unit *u);
bool unit_is_up(const struct unit *u);      /* a process that is not about to end */
/* SIGKILL for its whole process group. */
void unit_kill(struct unit *u, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Once in a while: has its process ended, and nobody said so? */
void unit_look(struct unit *u);

/* "loading", "restarting", … */
const char *unit_state_name(enum unit_state state);
/* "controller", "api", "worker" */
const char *unit_role_name(enum unit_role role);

#endif
