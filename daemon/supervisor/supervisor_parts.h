/* supervisor_parts.h - what the files of the supervisor share. */
#ifndef DAEMON_SUPERVISOR_SUPERVISOR_PARTS_H
#define DAEMON_SUPERVISOR_SUPERVISOR_PARTS_H

#include "daemon/supervisor/config.h"
#include "daemon/supervisor/supervisor.h"
#include "daemon/supervisor/unit.h"
#include "ipc/control.h"

struct admin;

/* The order in which a service stops. */
enum stop_phase { STOP_NOT, STOP_API, STOP_WORKERS, STOP_CONTROLLER, STOP_DONE };

struct supervisor {
    const struct config *config;
    const struct supervisor_options *options;
    sd_event *event;
    struct unit **units;        /* in the order of their start: controller, workers, api */
    size_t n_units;
    struct unit *controller, *api;      /* two of them */
    uint64_t started_us;
    struct restart_limits restart_limits;
    struct admin *admin;
    sd_event_source *news;      /* one more turn of the loop, then all hear of it */
    struct buf told_models, told_line;      /* what they heard last */
    bool announced;             /* READY=1 is said */

    enum stop_phase phase;
    uint64_t drain_until_us;
    sd_event_source *stop_timer;
    bool hard;                  /* the time to drain is over */
    int exit_code;

    struct control_frame frame; /* one at a time is read; 64 kB */
};

/* A unit changed its state: the others, systemd and `fastchat status` want to
 * know. Gathered, so that ten changes in a turn are told once. */
void supervisor_news(struct supervisor *s);
/* A unit has no process any more and will get none by itself. */
void supervisor_down(struct supervisor *s, struct unit *u);
/* The service cannot go on: stop everything, exit with `code`. */
void supervisor_fail(struct supervisor *s, int code);
uint64_t supervisor_drain_left_ms(const struct supervisor *s);

/* status.c: JSON as docs/wire.md says, and systemd's STATUS line. */
void status_models(const struct supervisor *s, struct buf *out);
void status_reply(const struct supervisor *s, struct buf *out);
void status_line(const struct supervisor *s, struct buf *out);

/* spawn.c: a process of its own group, with `channel` as CONTROL_FD and nothing
 * else of ours, that dies with us. Its id, or -errno. */
pid_t spawn(const char *program, const char *const *argv, int channel);

/* admin.c: RUNTIME/control.sock. */
int admin_open(struct supervisor *s, struct admin **ret, struct err *err);
void admin_close(struct admin *a);                  /* NULL is fine */

#endif
