/* Two meeting points. A step begins when `epoch` grows: workers wait for that
 * and fall asleep on it. A barrier is all-to-all: every thread publishes how
 * many barriers it has reached in a cache line of its own and waits until the
 * others' lines say the same. That is one line transfer of latency, half of
 * what a central counter costs, and up to FLAT_THREADS cheap in traffic too;
 * above that thread 0 collects and releases.
 *
 * The end of a step is a barrier as well, so pool_run() needs nothing else.
 */
#include "gen/cpu/pool.h"

#include "base/clock.h"
#include "base/err.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>

enum {
    LINE = 64,
    FLAT_THREADS = 8,
    SPIN_STEPS = 64,            /* between two looks at the clock, about 3 µs */
    YIELD_NEAR_US = 5,          /* the peer was last seen on this very core */
    YIELD_FAR_US = 4000,        /* on another one */
    AWAY_US = 100,              /* between two such looks: this thread lost its core */
    SLEEP_AFTER_US = 100,
};

struct worker {
    _Alignas(LINE) _Atomic uint32_t reached;    /* barriers; wraps */
    _Atomic int cpu;                            /* where it was when it reached the last */
    struct pool *pool;
    pthread_t thread;
    uint32_t index;
};

struct pool {
    uint32_t n_threads, n_started;
    pool_fn fn;
    void *arg;
    bool quit;
    _Alignas(LINE) _Atomic uint32_t epoch;
    _Alignas(LINE) _Atomic uint32_t sleepers;
    _Alignas(LINE) _Atomic uint32_t released;
    struct worker workers[];
};

static inline void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* How long a wait has spun, asked often and answered from the clock rarely. Time
 * in which this thread itself was away does not count: it says nothing about the
 * peer, and a thread that gave its core away again as soon as it came back would
 * never meet the other one. */
struct wait {
    uint32_t steps;
    uint64_t last_us, spun_us;
};

static uint64_t wait_step(struct wait *w)
{
    uint64_t now, since;

    pause_cpu();
    if (++w->steps % SPIN_STEPS)
        return w->spun_us;
    now = clock_mono_us();
    since = w->last_us ? now - w->last_us : 0;
    w->last_us = now;
    if (since < AWAY_US)
        w->spun_us += since;
    return w->spun_us;
}

/* One step of a wait for `peer`. A core is given away only where that can help:
 * at once to a peer that shares it. A peer that waits for another core gets
 * nothing from us; should we then give ours to a stranger for a time slice, the
 * two of us would take turns in being away. What a peer's line says may be
 * old, so a very long wait gives way too. */
static void wait_for_peer(struct wait *w, const struct worker *peer)
{
    const uint64_t us = wait_step(w);

    if (us < YIELD_NEAR_US ||
        (us < YIELD_FAR_US &&
         atomic_load_explicit(&peer->cpu, memory_order_relaxed) != sched_getcpu()))
        return;
    sched_yield();
    w->spun_us = 0;
}

static void wait_for(_Atomic uint32_t *mark_at, uint32_t mark, const struct worker *peer)
{
    struct wait w = { 0 };

    /* It may be one barrier ahead already, never two. */
    while ((int32_t)(atomic_load_explicit(mark_at, memory_order_acquire) - mark) < 0)
        wait_for_peer(&w, peer);
}

void pool_barrier(struct pool *pool, uint32_t thread)
{
    struct worker *me = &pool->workers[thread];
    const uint32_t n = pool->n_threads;
    uint32_t mark = atomic_load_explicit(&me->reached, memory_order_relaxed) + 1;

    if (n == 1)
        return;
    atomic_store_explicit(&me->cpu, sched_getcpu(), memory_order_relaxed);
    atomic_store_explicit(&me->reached, mark, memory_order_release);
    if (n <= FLAT_THREADS || thread == 0) {
        for (uint32_t i = 0; i < n; i++)
            wait_for(&pool->workers[i].reached, mark, &pool->workers[i]);
        if (n > FLAT_THREADS)
            atomic_store_explicit(&pool->released, mark, memory_order_release);
    } else {
        wait_for(&pool->released, mark, &pool->workers[0]);
    }
}

static void wait_for_step(struct pool *pool, uint32_t seen)
{
    struct wait w = { 0 };

    while (atomic_load_explicit(&pool->epoch, memory_order_acquire) == seen) {
        if (wait_step(&w) <= SLEEP_AFTER_US)
            continue;
        /* The caller raises epoch, then looks for sleepers; a worker counts
         * itself, then looks at epoch (in the kernel). One of them sees the
         * other. */
        atomic_fetch_add(&pool->sleepers, 1);
        syscall(SYS_futex, &pool->epoch, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
        atomic_fetch_sub(&pool->sleepers, 1);
    }
}

static void *worker_main(void *arg)
{
    struct worker *me = arg;
    struct pool *pool = me->pool;

    for (uint32_t seen = 0;; seen++) {
        wait_for_step(pool, seen);
        if (pool->quit)
            return NULL;
        pool->fn(pool->arg, me->index);
        pool_barrier(pool, me->index);
    }
}

static void start_step(struct pool *pool)
{
    atomic_fetch_add(&pool->epoch, 1);
    if (atomic_load(&pool->sleepers))
        syscall(SYS_futex, &pool->epoch, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void pool_run(struct pool *pool, pool_fn fn, void *arg)
{
    if (pool->n_threads > 1) {
        pool->fn = fn;
        pool->arg = arg;
        start_step(pool);
    }
    fn(arg, 0);
    pool_barrier(pool, 0);
}

static int start_workers(struct pool *pool, struct err *err)
{
    sigset_t all, old;
    int r = 0;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (uint32_t i = 1; i < pool->n_threads && r == 0; i++) {
        struct worker *w = &pool->workers[i];
        char name[16];

        r = -pthread_create(&w->thread, NULL, worker_main, w);
        if (r == 0) {
            pool->n_started++;
            snprintf(name, sizeof name, "pool-%u", i);
            pthread_setname_np(w->thread, name);
        }
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return r ? err_errno(err, r, "cannot start %u threads", pool->n_threads) : 0;
}

int pool_open(uint32_t threads, struct pool **ret, struct err *err)
{
    CLEANUP(pool_close) struct pool *pool = NULL;
    size_t size;
    int r;

    if (threads == 0)
        threads = pool_allowed();
    if (threads > POOL_MAX_THREADS)
        return err_set(err, -EINVAL, "%u threads are above the limit of %d", threads,
                       POOL_MAX_THREADS);
    size = sizeof *pool + threads * sizeof pool->workers[0];
    pool = aligned_alloc(LINE, size);
    if (!pool)
        return err_set(err, -ENOMEM, "no memory for a pool of %u threads", threads);
    memset(pool, 0, size);
    pool->n_threads = threads;
    for (uint32_t i = 0; i < threads; i++) {
        pool->workers[i].pool = pool;
        pool->workers[i].index = i;
    }
    r = start_workers(pool, err);
    if (r)
        return r;
    *ret = STEAL(pool);
    return 0;
}

void pool_close(struct pool *pool)
{
    if (!pool)
        return;
    pool->quit = true;
    start_step(pool);
    for (uint32_t i = 1; i <= pool->n_started; i++)
        pthread_join(pool->workers[i].thread, NULL);
    free(pool);
}

uint32_t pool_threads(const struct pool *pool) { return pool->n_threads; }
