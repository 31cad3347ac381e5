/* controller.h - the controller on a loop: who serves which model.
 *
 * FastChat's controller contract over HTTP, on any number of Unix and TCP
 * sockets, and beside it what our own parts use: /routes and /worker_watch
 * (docs/wire.md, parts 2 and 3). All state is in memory; workers register again
 * after a restart.
 *
 * Nothing here ever waits: polls of workers run beside everything else, all at
 * once, for at most five seconds each.
 *
 * Threads  one: the loop's
 * Source   FastChat contract, controller part
 */
#ifndef CONTROLLER_CONTROLLER_H
#define CONTROLLER_CONTROLLER_H

#include "base/cleanup.h"
#include "daemon/controller/registry.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct controller;
struct err;
struct loop;

struct controller_config {
    enum registry_dispatch dispatch;
    uint64_t lease_ms;                        /* 0: 90000; of workers that announce none */
    uint64_t request_timeout_ms;              /* 0: 100000; longest silence of a proxied stream */
    void (*log)(int level, const char *text); /* NULL: silent */
};

int controller_open(struct loop *l, const struct controller_config *config, struct controller **ret,
                    struct err *err);
void controller_close(struct controller *c); /* NULL is fine */
DEFINE_CLEANUP(struct controller *, controller_close)

/* Another configuration from now on; proxied streams that run keep their limit. */
void controller_configure(struct controller *c, const struct controller_config *config);

/* Takes over a listening socket. `local`: it is a Unix socket of this machine
 * (see worker.h on doors). */
int controller_listen(struct controller *c, int fd, bool local, struct err *err);
/* Ends the endless streams, finishes what runs, then calls done(user). */
void controller_drain(struct controller *c, void (*done)(void *user), void *user);
size_t controller_workers(const struct controller *c);

#endif
