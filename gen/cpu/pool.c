/* Two meeting points. A step begins when `epoch` grows: workers wait for that
 * and fall asleep on it. A barrier is all-to-all: every thread publishes how
 * many barriers it has reached in a cache line of its own and waits until the
 * others' lines say the same. That is one line transfer of latency, half of
 * what a central counter costs, and up to FLAT_THREADS cheap in traffic too;
 * above that thread 0 collects and releases.
 *
 * The end of a step is a barrier as well, so pool_run() needs nothing else.
 *
 * A step may take the first few threads only. Their number stands in `epoch`
 * too, so that a worker learns both at once. One that is left out sleeps at
 * once, on another word: the next steps do not wake it, its core is free. Its
 * count of barriers is set right by the caller before it is wanted again.
 */
#include "gen/cpu/pool.h"

#include "base/clock.h"
#include "base/err.h"
#include "gen/cpu/crew.h"

#include <assert.h>
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
#include <time.h>

enum {
    LINE = 64,
    FLAT_THREADS = 8,
    SPIN_STEPS = 64,            /* between two looks at the clock, about 3 µs */
    YIELD_NEAR_US = 5,          /* the peer was last seen on this very core */
    YIELD_FAR_US = 4000,        /* on another one */
    AWAY_US = 100,              /* between two such looks: this thread lost its core */
    SLEEP_AFTER_US = 100,
    LATE_US = 250,              /* a worker that begins later than it takes to wake had no core */
    STEP = 1 << 9,              /* of epoch: below are the threads that take part */
};

/* What a thread did in a step, up to the barrier at its end. */
struct shift {
    uint64_t began_us, cpu_us;
    uint64_t spun_us;
    uint64_t computed_us, away_us;
};

struct worker {
    _Alignas(LINE) _Atomic uint32_t reached;    /* barriers; wraps */
    _Atomic int cpu;                            /* where it was when it reached the last */
    _Alignas(LINE) struct shift shift;          /* read by others between steps only */
    struct pool *pool;
    pthread_t thread;
    uint32_t index;
};

struct pool {
    uint32_t n_threads, n_started;
    uint32_t n;                                 /* take part in this step */
    pool_fn fn;
    void *arg;
    bool quit, timed;
    uint64_t began_us;                          /* where it is timed */
    _Alignas(LINE) _Atomic uint32_t epoch;      /* steps, times STEP, + n; wraps */
    _Alignas(LINE) _Atomic uint32_t sleepers;
    _Atomic uint32_t raised;                    /* how often more were wanted than before; those who are left out sleep on it */
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
    uint64_t last_us, spun_us, all_us;          /* since the last yield, and all */
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
    if (since < AWAY_US) {
        w->spun_us += since;
        w->all_us += since;
    }
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

/* How long it spun. */
static uint64_t wait_for(_Atomic uint32_t *mark_at, uint32_t mark, const struct worker *peer)
{
    struct wait w = { 0 };

    /* It may be one barrier ahead already, never two. */
    while ((int32_t)(atomic_load_explicit(mark_at, memory_order_acquire) - mark) < 0)
        wait_for_peer(&w, peer);
    return w.all_us;
}

void pool_barrier(struct pool *pool, uint32_t thread)
{
    struct worker *me = &pool->workers[thread];
    const uint32_t n = pool->n;
    uint64_t spun_us = 0;
    uint32_t mark = atomic_load_explicit(&me->reached, memory_order_relaxed) + 1;

    if (n == 1)
        return;
    atomic_store_explicit(&me->cpu, sched_getcpu(), memory_order_relaxed);
    atomic_store_explicit(&me->reached, mark, memory_order_release);
    if (n <= FLAT_THREADS || thread == 0) {
        for (uint32_t i = 0; i < n; i++)
            spun_us += wait_for(&pool->workers[i].reached, mark, &pool->workers[i]);
        if (n > FLAT_THREADS)
            atomic_store_explicit(&pool->released, mark, memory_order_release);
    } else {
        spun_us = wait_for(&pool->released, mark, &pool->workers[0]);
    }
    if (spun_us)                                /* its line may have come along with the others' marks */
        me->shift.spun_us += spun_us;
}

static void sleep_on(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

/* Of one that is left out: until a step wants it. The caller writes epoch, then
 * raised; it reads them the other way round. */
static uint32_t wait_for_turn(struct pool *pool, uint32_t thread)
{
    for (;;) {
        const uint32_t raised = atomic_load(&pool->raised), epoch = atomic_load(&pool->epoch);

        if (thread < epoch % STEP)
            return epoch;
        sleep_on(&pool->raised, raised);
    }
}

/* The next step that `thread` takes part in. */
static uint32_t wait_for_step(struct pool *pool, uint32_t thread, uint32_t seen)
{
    struct wait w = { 0 };
    uint32_t epoch;

    while ((epoch = atomic_load_explicit(&pool->epoch, memory_order_acquire)) == seen) {
        if (wait_step(&w) <= SLEEP_AFTER_US)
            continue;
        /* The caller raises epoch, then looks for sleepers; a worker counts
         * itself, then looks at epoch (in the kernel). One of them sees the
         * other. */
        atomic_fetch_add(&pool->sleepers, 1);
        sleep_on(&pool->epoch, seen);
        atomic_fetch_sub(&pool->sleepers, 1);
    }
    return thread < epoch % STEP ? epoch : wait_for_turn(pool, thread);
}

static uint64_t cpu_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static uint64_t less(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

static void begin_shift(struct shift *s) { *s = (struct shift){ .began_us = clock_mono_us(), .cpu_us = cpu_us() }; }

/* Nobody sleeps in a step: who does not run has no core. */
static void end_shift(struct shift *s, uint64_t step_began_us)
{
    const uint64_t cpu = cpu_us() - s->cpu_us, late = less(s->began_us, step_began_us);

    s->computed_us = less(cpu, s->spun_us);
    s->away_us = less(clock_mono_us() - s->began_us, cpu) + (late > LATE_US ? late : 0);
}

static void take_part(struct pool *pool, struct worker *me)
{
    if (pool->timed)
        begin_shift(&me->shift);
    pool->fn(pool->arg, me->index);
    if (pool->timed)
        end_shift(&me->shift, pool->began_us);
    pool_barrier(pool, me->index);
}

static void *worker_main(void *arg)
{
    struct worker *me = arg;
    struct pool *pool = me->pool;

    for (uint32_t seen = 0;;) {
        seen = wait_for_step(pool, me->index, seen);
        if (pool->quit)
            return NULL;
        take_part(pool, me);
    }
}

/* Those that were left out have reached fewer barriers. */
static void call_in(struct pool *pool, uint32_t from, uint32_t to)
{
    const uint32_t reached = atomic_load_explicit(&pool->workers[0].reached, memory_order_relaxed);

    atomic_store_explicit(&pool->released, reached, memory_order_relaxed);
    for (uint32_t i = from; i < to; i++)
        atomic_store_explicit(&pool->workers[i].reached, reached, memory_order_relaxed);
}

static void start_step(struct pool *pool, uint32_t n)
{
    const uint32_t before = pool->n, epoch = atomic_load_explicit(&pool->epoch, memory_order_relaxed);

    if (n > before)
        call_in(pool, before, n);
    pool->n = n;
    if (n == 1)
        return;                                 /* nobody needs to know */
    atomic_store(&pool->epoch, (epoch / STEP + 1) * STEP + n);
    if (atomic_load(&pool->sleepers))
        syscall(SYS_futex, &pool->epoch, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    if (n > before) {
        atomic_fetch_add(&pool->raised, 1);
        syscall(SYS_futex, &pool->raised, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    }
}

void pool_run_on(struct pool *pool, uint32_t n, pool_fn fn, void *arg)
{
    assert(n && n <= pool->n_threads);
    pool->fn = fn;
    pool->arg = arg;
    start_step(pool, n);
    take_part(pool, &pool->workers[0]);
}

void pool_run(struct pool *pool, pool_fn fn, void *arg) { pool_run_on(pool, pool->n_threads, fn, arg); }

void pool_run_crew(struct pool *pool, struct crew *crew, pool_fn fn, void *arg)
{
    const uint32_t n = crew->n;
    struct crew_pass pass = { 0 };
    uint64_t now;

    pool->timed = crew->most > 1;
    pool->began_us = clock_mono_us();
    pool_run_on(pool, n, fn, arg);
    pool->timed = false;
    now = clock_mono_us();
    pass.took_us = now - pool->began_us;
    for (uint32_t i = 0; i < n; i++) {
        pass.computed_us += pool->workers[i].shift.computed_us;
        pass.away_us += pool->workers[i].shift.away_us;
    }
    crew_note(crew, &pass, now);
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
    pool->n_threads = pool->n = threads;
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
    start_step(pool, pool->n_threads);
    for (uint32_t i = 1; i <= pool->n_started; i++)
        pthread_join(pool->workers[i].thread, NULL);
    free(pool);
}

uint32_t pool_threads(const struct pool *pool) { return pool->n_threads; }
