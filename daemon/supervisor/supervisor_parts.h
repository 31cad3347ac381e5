/* supervisor_parts.h - what the files of the supervisor share. */
#ifndef DAEMON_SUPERVISOR_SUPERVISOR_PARTS_H
#define DAEMON_SUPERVISOR_SUPERVISOR_PARTS_H

#include "base/err.h"
#include "daemon/supervisor/config.h"
#include "daemon/supervisor/supervisor.h"
#include "daemon/supervisor/unit.h"
#include "ipc/control.h"

struct admin;
struct bus;
struct err;
struct packed;
struct upgrade;

/* The order in which a service stops. */
enum stop_phase { STOP_NOT, STOP_API, STOP_WORKERS, STOP_CONTROLLER, STOP_DONE };

/* The sockets that a new configuration needs, until its units have them. */
struct held {
    struct listener *kept[CONFIG_MAX_LISTENERS + 1];
    size_t n;
};

struct supervisor {
    struct config *config;      /* in force; a reload puts another one here */
    const struct supervisor_options *options;
    sd_event *event;
    struct unit **units;        /* controller, workers in the order of the models, api */
    size_t n_units, room;
    struct listeners listeners;
    uint64_t started_us;
    int lock;                   /* of the runtime folder */
    struct cgroup *cgroup;      /* NULL: none is ours */
    char no_cgroup[ERR_TEXT];   /* why */
    struct restart_limits restart_limits;
    struct admin *admin;
    struct bus *bus;
    struct waiter *waiters;     /* for the end of a command */
    struct upgrade *upgrade;    /* NULL: none is being tried */
    struct packed *packed;      /* weights that workers have packed */
    sd_event_source *news;      /* one more turn of the loop, then all hear of it */
    sd_event_source *tick;      /* once a second: what nobody says */
    struct buf told_models, told_line;      /* what they heard last */
    bool announced;             /* READY=1 is said */
    bool reloading;             /* RELOADING=1 is said, and READY=1 is due */
    struct held held;           /* while reloading */
    struct buf troubles;        /* of the reload that goes on, a line each */

    enum stop_phase phase;
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
/* Nothing new is taken, what runs may end, then the service ends: as SIGTERM. */
void supervisor_drain(struct supervisor *s);
/* Mail for every process of a role. */
void supervisor_post(struct supervisor *s, enum unit_role role, unsigned mail);
/* What follows from s->config and is kept elsewhere. */
void supervisor_use_config(struct supervisor *s);

/* fleet.c: which units there are. It makes them fit s->config: adds and starts
 * what is missing, lets go what is not named any more, tells new settings to
 * those that can take them and lets heirs take the place of the others. At the
 * start it finds no unit at all. 0 or -errno with a sentence. */
int fleet_fit(struct supervisor *s, struct err *err);
/* All of them run an old program. */
void fleet_outdate(struct supervisor *s);
/* One step further, if one can be taken: one unit at a time is replaced. */
void fleet_roll(struct supervisor *s);
/* Nothing is under way any more. */
bool fleet_is_settled(const struct supervisor *s);
/* A unit has no process any more. */
void fleet_went_down(struct unit *u);
/* The one that is to take its place goes; another one will be made, unless it is
 * unloaded. */
void fleet_drop_heir(struct unit *u);
/* The same for all; those that end for their heirs will be started again. */
void fleet_drop_heirs(struct supervisor *s);
/* Is the failure of this one without consequence, since the one whose place it
 * was to take goes on? */
bool fleet_keeps_forerunner(struct unit *u);
int fleet_add(struct supervisor *s, struct unit *u, struct err *err);
/* Is it one that others are told of? Not one that waits to take over, or whose
 * place is taken. */
bool fleet_is_shown(const struct unit *u);
/* The one that serves a replica now, or NULL. */
struct unit *fleet_find(const struct supervisor *s, enum unit_role role, const char *model, int replica);
/* Does a configuration have it? */
bool fleet_is_named(const struct config *c, const struct unit *u);
/* Is it loaded with the service? */
bool fleet_is_always(const struct config_group *model);
/* A file as it is now: path, device, inode, size, time of its last change. */
void fleet_put_file(const char *path, struct buf *out);
/* What makes a process another one: config_fingerprint() and the model's file. */
void fleet_fingerprint(const struct config *c, enum unit_role role, size_t model, struct buf *out);
uint64_t fleet_replace_us(const struct supervisor *s);

/* models.c: which of them are loaded. */
enum models_progress { MODELS_PENDING, MODELS_DONE, MODELS_FAILED };
/* The name of the model that has this alias, else what was given. */
const char *models_name(const struct supervisor *s, const char *name);
/* 0 or -errno with a sentence; models_progress() says how it goes on. */
int models_load(struct supervisor *s, const char *model, struct err *err);
int models_unload(struct supervisor *s, const char *model, struct err *err);
enum models_progress models_progress(const struct supervisor *s, const char *model, bool load, struct err *err);
/* A request came for it. */
void models_want(struct supervisor *s, const char *model);
/* Loads what is wanted and fits, unloads what was not used for long. */
void models_turn(struct supervisor *s);
const struct config_group *models_group(const struct unit *u);      /* NULL: not in the configuration */
bool models_is_on_demand(const struct unit *u);
/* It has no process and waits for none, or its process is on its way out. */
bool models_is_unloaded(const struct unit *u);
/* A replica of it is there or will be. */
bool models_is_loaded(const struct supervisor *s, const char *model);
/* Is there memory for one more like it? */
bool models_has_room_beside(const struct unit *u);

/* packed.c: what a worker packed, for the next processes of its model: its
 * replicas, restarts and heirs, also of the next image of this program. One a
 * model, as long as a process of it is there or will be. */
struct packed {
    struct packed *next;
    char *model;
    char *file;                 /* which it was made of: fleet_put_file() */
    int fd;
    int64_t kb;
};
/* From this worker; fd stays the caller's. 0, also when there is no room to keep them; -EPROTO: it is no sealed memory file. */
int packed_keep(struct unit *u, int fd, struct err *err);
/* The same of an earlier image; fd becomes ours, also on failure. */
int packed_adopt(struct supervisor *s, const char *model, const char *file, int fd, struct err *err);
/* For this worker: NULL: there are none, or the model's file is another one now. */
const struct packed *packed_find(const struct unit *u);
/* What is kept of its model takes that much. */
int64_t packed_kb(const struct unit *u);
/* A process of its model is about to have some: better to wait for them. */
bool packed_are_due(const struct unit *u);
/* Lets go what nobody will need. */
void packed_turn(struct supervisor *s);
void packed_free(struct supervisor *s);

/* reload.c: a new configuration in place of the one in force. 0; or -EINVAL with
 * all that is wrong with it in `text`, and nothing has changed. In the former
 * case fleet_is_settled() says when it is done, and s->troubles what failed. */
int reload(struct supervisor *s, struct buf *text);
/* A line for whoever waits for a reload. */
void reload_trouble(struct supervisor *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Says READY=1 when a reload is done. */
void reload_turn(struct supervisor *s);
void reload_let_go(struct supervisor *s, struct held *h);

/* plan.c: what a reload would do, without doing it (docs/wire.md). Of the
 * configuration in `path`, NULL: the service's own. 0 and JSON in `out`; -EINVAL and
 * in `text` all that is wrong with it. */
int plan_write(const struct supervisor *s, const char *path, struct buf *out, struct buf *text);

/* question.c: a CONTROL_COMMAND that asks and changes nothing, answered at once:
 * 0, QUESTION_NONE when it is another one, or whoever asked is to be dropped. */
enum { QUESTION_NONE = 1000 };
int question_answer(const struct supervisor *s, int fd, const struct control_frame *f);

/* upgrade.c: the program of now in place of the one that runs. It is tried in
 * a process of its own first. 0 or -errno with a sentence; when it succeeds this
 * image is gone, and otherwise who waits hears of it. */
int upgrade_begin(struct supervisor *s, struct err *err);
void upgrade_free(struct upgrade *u);               /* NULL is fine */
/* As unit_look(), for the trial. NULL is fine. */
void upgrade_look(struct upgrade *u);

/* handover.c: the state of a service as JSON with descriptors, which outlives
 * execv(). handover_write() notes every descriptor in `fds` too. */
struct fd_list {
    int *fds;
    size_t n;
};
int handover_write(struct supervisor *s, struct buf *out, struct fd_list *fds, struct err *err);
/* Reads what is in that file: with s == NULL it is only checked. */
int handover_read(int fd, struct supervisor *s, struct err *err);

/* status.c: JSON as docs/wire.md says, and systemd's STATUS line. */
void status_models(const struct supervisor *s, struct buf *out);
void status_reply(const struct supervisor *s, struct buf *out);
void status_line(const struct supervisor *s, struct buf *out);
/* "starting", "serving", "reloading", "stopping" */
const char *status_state(const struct supervisor *s);
int64_t status_rss_kb(pid_t pid);

/* spawn.c: a process of its own group, with `channel` as CONTROL_FD and nothing
 * else of ours, that dies with us. Its id, or -errno. */
pid_t spawn(const char *program, const char *const *argv, int channel, const struct place *place, struct place_faults *ret);

/* mend.c: makes socket files anew that are gone. */
void sockets_mend(struct supervisor *s);

/* command.c: what an administrator asks for, and who waits for the end of it.
 * DRAIN of a model is UNLOAD; without one it is the end of the service. */
enum command { COMMAND_NONE, COMMAND_RELOAD, COMMAND_LOAD, COMMAND_UNLOAD, COMMAND_UPGRADE, COMMAND_DRAIN };
struct waiter {
    enum command command;       /* NONE: it waits for nothing */
    char model[132];
    /* Called once, when it waits no more. result: 0 or -errno. May free it. */
    void (*answer)(struct waiter *w, int result, const char *text);
    struct waiter *next, **link;
};
/* 0, and w waits; or -errno, and `why` says why: -ENOENT no such model, -ESHUTDOWN
 * the service stops, -EINVAL a configuration that is not used (a line a fault). */
int command_begin(struct supervisor *s, struct waiter *w, enum command command, const char *model, struct buf *why);
/* It waits for a command that has begun already. */
void command_wait(struct supervisor *s, struct waiter *w, enum command command, const char *model);
/* It waits for nothing, and is not told. */
void command_forget(struct waiter *w);
/* Tells those who wait for something that is done. */
void commands_settle(struct supervisor *s);
/* Tells those who wait for what will not be; COMMAND_NONE: for anything. */
void commands_give_up(struct supervisor *s, enum command what, int result, const char *why);
/* Their names in frames; "" and COMMAND_NONE for what has none. */
const char *command_name(enum command command);
enum command command_of(const char *name);

/* admin.c: RUNTIME/control.sock. listener: the socket, -1: it is bound. */
int admin_open(struct supervisor *s, int listener, struct admin **ret, struct err *err);
void admin_close(struct admin *a);                  /* NULL is fine */
/* A sentence for whoever is at the other end; one that is very long is cut. */
int admin_say(int fd, enum control_type type, const char *text);
/* Makes the socket's file anew if it is gone. */
void admin_mend(struct admin *a);
/* For an upgrade: the socket, and who waits for the end of something. */
enum { ADMIN_MAX_PEERS = 32 };
struct admin_wait {
    int fd;
    enum command command;
    const char *model;
};
int admin_listener(const struct admin *a);
size_t admin_waiting(const struct admin *a, struct admin_wait *ret /* [ADMIN_MAX_PEERS] */);
/* The descriptor becomes the admin's, also on failure. */
int admin_adopt(struct admin *a, const struct admin_wait *w, struct err *err);

/* bus.c: org.fastchat.Manager1. Nothing here fails or waits. NULL is fine: no
 * memory, and no bus. */
struct bus *bus_new(struct supervisor *s);
void bus_free(struct bus *b);
/* Once a second and after news: finds the bus again, tells others. */
void bus_turn(struct bus *b);
/* Answers all calls: another image of the program goes on. */
void bus_leave(struct bus *b);

#endif
