/* child.h - what every child of the supervisor does the same way.
 *
 * child_open() speaks the start of the control protocol (docs/wire.md, part 1):
 * HELLO, SETTINGS, LISTEN…, START. Afterwards the child reports its state and
 * this file sends a heartbeat from the loop every heartbeat_ms; a child that
 * works elsewhere too (the engine's thread) says through `alive` whether that
 * part lives, and no beat is sent while it does not.
 *
 * SIGTERM and SIGINT in a child are ignored: the supervisor says DRAIN or STOP.
 * EOF on the control channel ends the process at once. SIGPIPE is ignored.
 */
#ifndef DAEMON_CHILD_H
#define DAEMON_CHILD_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

struct child;
struct err;
struct json_writer;
struct loop;

struct child_ops {
    /* Stop taking new work and call loop_stop(…, 0) when what runs is done; the
     * supervisor's limit ends it otherwise. */
    void (*drain)(uint64_t limit_ms, void *user);
    /* The state of all models (CONTROL_MODELS); NULL: not interested. */
    void (*models)(const cJSON *models, void *user);
    /* A listening socket that takes the place of the one of that name (its file was
     * deleted), to keep; NULL: not supported, it is closed. */
    void (*listen)(const char *name, int fd, void *user);
    /* New settings (CONTROL_RELOAD), which are gone when it returns. 0: they are in
     * use; -errno with a sentence: nothing changed. NULL: not supported. The
     * log level and the time between beats are this file's own business. */
    int (*reload)(const cJSON *settings, void *user, struct err *err);
    /* May a beat be sent? *busy_ms > 0: the next one may take that long. NULL: yes. */
    bool (*alive)(uint64_t *busy_ms, void *user);
    /* Members of the "stats" object of a heartbeat; NULL: none. */
    void (*stats)(struct json_writer *w, void *user);
    void *user;
};

/* Blocks until START. `role` names the process in the log ("api", "worker
 * smollm2/0") and must live on. -EPROTO and others with a sentence. */
int child_open(const char *role, const struct child_ops *ops, struct child **ret, struct err *err);
void child_close(struct child *c);

struct loop *child_loop(struct child *c);
/* Those of the start; they live as long as the child. */
const cJSON *child_settings(struct child *c);
/* The listening socket of that name, handed over to the caller; -1: none. */
int child_take_socket(struct child *c, const char *name);
/* The packed weights that an earlier process of its model left, handed over to the caller; -1: none. */
int child_take_weights(struct child *c);
/* Such, for the next one; fd becomes the child's. */
void child_give_weights(struct child *c, int fd);
/* While it drains: does another process go on in its place? */
bool child_is_replaced(const struct child *c);
/* "loading", "ready", "draining", "failed"; text may be NULL. */
void child_state(struct child *c, const char *state, const char *text);
/* A request waits for this model (CONTROL_WANT). Said again while it waits:
 * nothing is kept when the supervisor does not read. */
void child_want(struct child *c, const char *model);

#endif
