/* bus_parts.h - what the files of org.fastchat.Manager1 share.
 *
 * bus.c has the connection, the name and the methods; bus_models.c the objects
 * of models and replicas, and what is told of them; polkit.c who may call what.
 * Nothing here waits for anybody: the bus, polkit and callers may be slow, gone
 * or frozen, and the service goes on.
 */
#ifndef DAEMON_SUPERVISOR_BUS_PARTS_H
#define DAEMON_SUPERVISOR_BUS_PARTS_H

#include "daemon/supervisor/supervisor_parts.h"

#include <systemd/sd-bus.h>

#define BUS_NAME "org.fastchat.Manager1"
#define BUS_PATH "/org/fastchat/Manager1"
#define BUS_ERROR "org.fastchat.Error."

struct bus_call;
struct bus_model;

struct bus {
    struct supervisor *sup;
    sd_bus *conn;               /* NULL: none */
    bool broken;                /* it ended, and is taken down in the next turn */
    bool named;                 /* BUS_NAME is ours */
    bool asking;                /* for the name: an answer is due, or our turn in the queue */
    bool complained;            /* that it does not work was said */
    uint64_t next_us;           /* no earlier attempt */
    struct bus_call *calls;     /* that are not answered yet */
    size_t n_calls;
    struct bus_model **models;  /* bus_models.c */
    size_t n_models;
    struct buf told_status;
    const char *told_state;     /* NULL: none */
};

/* Text of others as D-Bus allows it: what is not UTF-8 becomes U+FFFD. */
int bus_append_text(sd_bus_message *m, const char *text);

/* bus_models.c. 0 or -errno of sd-bus. */
int bus_models_offer(struct bus *b);
/* Makes the objects fit the units, and tells others if `tell`. */
void bus_models_turn(struct bus *b, bool tell);
void bus_models_free(struct bus *b);
/* Appends an a(sssuuo). */
int bus_models_list(struct bus *b, sd_bus_message *reply);

/* polkit.c: may the sender of a message do that? root and the service's own user
 * may; of others polkit knows. Without polkit they may not. */
struct polkit_question {
    sd_bus_message *message;
    const char *action;         /* "org.fastchat.reload" */
    const char *model;          /* "": of none */
    /* Called once, unless it is withdrawn. error: NULL: the sender may; else a
     * D-Bus error and what it says. May free the question. */
    void (*answer)(struct polkit_question *q, const char *error, const char *text);
    uint32_t uid;               /* the sender's, in an answer that is no error */
    sd_bus_slot *slot;
};
/* 0, and the answer will come; or -errno. */
int polkit_ask(struct polkit_question *q);
void polkit_withdraw(struct polkit_question *q);

#endif
