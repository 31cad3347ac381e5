/* registry.h - the table of workers: who is there, until when, who is next.
 *
 * Nothing here does any I/O or reads a clock: the caller passes the monotonic
 * time, so that expiry is a matter of numbers. A worker leaves when its lease
 * has run out since its last beat; the caller keeps a timer at the earliest
 * such moment, so a dead worker is never listed longer than its lease.
 *
 * Entries keep the order of their first registration, which decides ties. A
 * worker that a call could not reach stays in the table but is neither listed
 * nor dispatched to until its next beat.
 *
 * Two doors lead in (worker.h). A worker that came through the Unix socket can
 * only be replaced or kept alive through it, and each door has room of its
 * own: nobody on the network can push this machine's workers out.
 */
#ifndef CONTROLLER_REGISTRY_H
#define CONTROLLER_REGISTRY_H

#include "base/cleanup.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct registry;
struct worker;

/* Through each door: workers, and bytes of all their model names. Together they
 * keep a line of the routing table under 4 MB, which is what its readers take. */
enum { REGISTRY_LIMIT = 1024, REGISTRY_MODEL_BYTES = 512 << 10 };
enum { REGISTRY_FULL = 1, REGISTRY_HELD = 2 };
enum registry_dispatch { DISPATCH_SHORTEST_QUEUE, DISPATCH_LOTTERY };
enum registry_kind { KIND_ALL, KIND_MULTIMODAL, KIND_LANGUAGE };

/* lease_us: of workers that did not announce their own. NULL: no memory. */
struct registry *registry_new(uint64_t lease_us);
void registry_free(struct registry *r);
/* Another lease, from their last beats on, for those that did not announce theirs. */
void registry_set_lease(struct registry *r, uint64_t lease_us);
DEFINE_CLEANUP(struct registry *, registry_free)

/* Adds the worker or replaces the one of the same name, and takes it over; its
 * lease begins now. REGISTRY_FULL, REGISTRY_HELD (the name belongs to a worker
 * of the Unix socket), -ENOMEM: the worker stays the caller's. */
int registry_put(struct registry *r, struct worker *w, uint64_t now_us);
void registry_remove(struct registry *r, struct worker *w);

size_t registry_count(const struct registry *r);
struct worker *registry_at(const struct registry *r, size_t i);
struct worker *registry_find(const struct registry *r, const char *name);
/* The same, only when it has not registered anew since it had this serial. */
struct worker *registry_find_serial(const struct registry *r, const char *name, uint64_t serial);

/* Stamps the time and the queue length; false: there is no such worker (for
 * whoever comes through this door). */
bool registry_beat(struct registry *r, const char *name, bool local, int64_t queue_length,
                   uint64_t now_us);
/* Models, speed or queue length were just asked for and changed in place: counts
 * as a beat. False: its names no longer fit, and it was removed. */
bool registry_touched(struct registry *r, struct worker *w, uint64_t now_us);
void registry_unreachable(struct registry *r, struct worker *w);

/* Removes every worker whose lease is over; how many. */
size_t registry_expire(struct registry *r, uint64_t now_us);
/* When the next lease ends; UINT64_MAX: never. */
uint64_t registry_next_expiry(const struct registry *r);

/* Who gets the next request for the model, or NULL. `url_only` leaves out who
 * cannot be called over TCP. shortest_queue counts the request into the chosen
 * worker's queue, until its next beat says better; `chance` in [0, 1) draws the
 * lottery. */
struct worker *registry_dispatch(struct registry *r, const char *model, enum registry_dispatch how,
                                 bool url_only, double chance);

/* Goes up with every change of what the writers below would write. */
uint64_t registry_version(const struct registry *r);

/* {"models":[…]}, sorted, each once */
void registry_write_models(const struct registry *r, enum registry_kind kind, struct buf *out);
/* {"model_names":[…],"speed":N,"queue_length":N}, the sums of all workers that
 * answered in this round of polls */
void registry_write_status(const struct registry *r, uint64_t round, struct buf *out);
/* The line of docs/wire.md part 3, with its newline. */
void registry_write_routes(const struct registry *r, struct buf *out);

#endif
