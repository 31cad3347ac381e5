/* pool.h - threads that compute one step together.
 *
 * T threads, the caller among them. pool_run() runs one function on all of
 * them; inside it they meet at pool_barrier(). A futex round costs 20 µs, as
 * much as 1 % of a token of a small model, so inside a step nobody sleeps:
 * threads spin, with `pause`. A wait above half a millisecond means that a
 * peer lost its core; where spinning keeps it from getting one back, the wait
 * yields. Between steps workers spin 100 µs for the next one and then sleep.
 *
 * A thread that shares its core with a foreign process holds up the others at
 * every barrier, so a step may take fewer than all: crew.h says how many. Then
 * the kernel moves the rest to cores of their own.
 *
 * Threads  pool_run() by one caller at a time; workers block all signals
 * Source   measurements in README.md
 */
#ifndef GEN_CPU_POOL_H
#define GEN_CPU_POOL_H

#include "base/cleanup.h"

#include <stdint.h>

struct crew;
struct err;
struct pool;

enum { POOL_MAX_THREADS = 256 };

typedef void (*pool_fn)(void *arg, uint32_t thread);

/* A pool of `threads` (0: pool_allowed()). -EINVAL above POOL_MAX_THREADS,
 * -ENOMEM, or what pthread_create() said. */
int pool_open(uint32_t threads, struct pool **ret, struct err *err);
void pool_close(struct pool *pool);                 /* NULL is fine; joins the threads */
DEFINE_CLEANUP(struct pool *, pool_close)

uint32_t pool_threads(const struct pool *pool);

/* fn(arg, thread) on every thread, 0 on the caller's; returns when all have
 * returned. What one wrote before is seen by all after. */
void pool_run(struct pool *pool, pool_fn fn, void *arg);

/* The same on the first n threads, at least 1; the others sleep until they are
 * wanted. */
void pool_run_on(struct pool *pool, uint32_t n, pool_fn fn, void *arg);
/* On as many as `crew` says, which is told how it went. crew->n is theirs until
 * this returns. */
void pool_run_crew(struct pool *pool, struct crew *crew, pool_fn fn, void *arg);

/* Inside a run, by every thread that takes part, the same number of times. */
void pool_barrier(struct pool *pool, uint32_t thread);

/* The contiguous part of n that is `thread`'s: always the same one, so that
 * its lines stay in its caches. */
static inline void pool_range(uint32_t n, uint32_t thread, uint32_t threads, uint32_t *ret_from,
                              uint32_t *ret_to)
{
    *ret_from = (uint32_t)((uint64_t)n * thread / threads);
    *ret_to = (uint32_t)((uint64_t)n * (thread + 1) / threads);
}

/* How many threads the affinity mask and the CPU quotas of the cgroup and its
 * parents allow; at least 1. */
uint32_t pool_allowed(void);
/* The part of cgroups: whole CPUs that the quotas allow, 0 when there is none.
 * Reads cgroup membership from `membership` (as /proc/self/cgroup) and limits
 * below `root` (as /sys/fs/cgroup). */
uint32_t pool_cgroup_cpus(const char *membership, const char *root);

#endif
