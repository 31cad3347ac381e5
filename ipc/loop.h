/* loop.h - one thread's event loop: sd-event with one nested epoll.
 *
 * Timers, signals, children and control channels are sd-event sources
 * (loop_event() gives the sd_event to add them to). Data connections are
 * loop_io: all of them sit in one epoll that is a single sd-event source,
 * because sd-event dispatches one source an iteration and is twenty times
 * slower with one source a connection.
 *
 * An io may be removed, and its storage reused by its owner, from inside any
 * callback: an event already fetched for it is dropped, never delivered.
 *
 * Threads  a loop and all its ios belong to one thread; loop_post() may be
 *          called from any.
 */
#ifndef IPC_LOOP_H
#define IPC_LOOP_H

#include "base/cleanup.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <systemd/sd-event.h>

struct err;
struct loop;
struct loop_io;
struct loop_timer;

typedef void (*loop_io_fn)(struct loop_io *io, uint32_t events);
typedef void (*loop_fn)(void *user);

/* Embedded in what owns the descriptor; fill fd, fn, user, then loop_add. */
struct loop_io {
    int fd;
    loop_io_fn fn;
    void *user;
    uint32_t events;            /* what is armed */
    uint32_t slot;              /* the loop's own; 0: not in the loop */
};

int loop_open(struct loop **ret, struct err *err);
/* NULL is fine. Ios and timers must be gone; posts that did not run are dropped. */
void loop_close(struct loop *l);
DEFINE_CLEANUP(struct loop *, loop_close)

sd_event *loop_event(struct loop *l);

/* Runs until loop_stop(), returns its code, and may run again. A stop that
 * came before ends the next run at once. -errno when the loop itself fails. */
int loop_run(struct loop *l);
void loop_stop(struct loop *l, int code);

/* events: EPOLLIN, EPOLLOUT, EPOLLRDHUP, … level-triggered; EPOLLERR and EPOLLHUP
 * come unasked. Remove an io before its descriptor is closed. 0 or -errno. */
int loop_add(struct loop *l, struct loop_io *io, uint32_t events);
int loop_arm(struct loop *l, struct loop_io *io, uint32_t events);   /* changes them */
void loop_remove(struct loop *l, struct loop_io *io);                /* not added: fine */

/* Calls begins(user) and ends(user) around every few ios that are told of their
 * events in a row, for who gathers what they do. One pair a loop; it may be
 * changed at any time, NULL for none. */
void loop_rounds(struct loop *l, loop_fn begins, loop_fn ends, void *user);

/* A timer on the monotonic clock with 1 ms accuracy, off until set. Setting it
 * again moves it; it fires once a setting, and one that is set to 0 in the
 * loop's next round. */
int loop_timer_new(struct loop *l, loop_fn fn, void *user, struct loop_timer **ret);
void loop_timer_free(struct loop_timer *t);         /* NULL is fine; also inside its own fn */
void loop_timer_set(struct loop_timer *t, uint64_t in_us);
void loop_timer_off(struct loop_timer *t);

/* Runs fn(user) on the loop's thread, soon. From any thread. -ENOMEM or 0. */
int loop_post(struct loop *l, loop_fn fn, void *user);

#endif
