#include "base/clock.h"
#include "base/err.h"
#include "gen/cpu/crew.h"
#include "gen/cpu/pool.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct count {
    struct pool *pool;
    uint32_t n, rounds;
    uint32_t cells[64];
    uint32_t wrong[64];
};

/* Each thread raises its own cell, meets, and checks everybody's. */
static void count_rounds(void *arg, uint32_t thread)
{
    struct count *c = arg;

    for (uint32_t i = 1; i <= c->rounds; i++) {
        c->cells[thread]++;
        pool_barrier(c->pool, thread);
        for (uint32_t t = 0; t < c->n; t++)
            c->wrong[thread] += c->cells[t] % c->rounds != i % c->rounds;
        pool_barrier(c->pool, thread);
    }
}

static void meet_in(uint32_t threads, uint32_t steps)
{
    struct count c = { .n = threads, .rounds = 20 };

    cr_assert(zero(int, pool_open(threads, &c.pool, NULL)));
    cr_assert(eq(u32, pool_threads(c.pool), threads));
    for (uint32_t i = 0; i < steps; i++)
        pool_run(c.pool, count_rounds, &c);
    for (uint32_t t = 0; t < threads; t++) {
        cr_expect(eq(u32, c.cells[t], c.rounds * steps));
        cr_expect(zero(u32, c.wrong[t]));
    }
    pool_close(c.pool);
}

Test(pool, one_thread_is_the_caller_alone) { meet_in(1, 3); }

Test(pool, few_threads_see_what_the_others_wrote_before_a_barrier) { meet_in(3, 20); }

Test(pool, many_threads_meet_too) { meet_in(12, 3); }

Test(pool, workers_that_fell_asleep_wake_for_the_next_step)
{
    struct count c = { .n = 2, .rounds = 1 };

    cr_assert(zero(int, pool_open(2, &c.pool, NULL)));
    for (uint32_t i = 0; i < 20; i++) {
        const uint64_t start = clock_mono_us();

        while (clock_mono_us() - start < 1000)
            ;                                       /* longer than they spin */
        pool_run(c.pool, count_rounds, &c);
        cr_assert(eq(u32, c.cells[1], i + 1));
    }
    pool_close(c.pool);
}

/* Of a run on n of them: the others stay away. */
static void meet_on(struct count *c, uint32_t n)
{
    uint32_t before[64];

    memcpy(before, c->cells, sizeof before);
    c->n = n;
    pool_run_on(c->pool, n, count_rounds, c);
    for (uint32_t t = 0; t < pool_threads(c->pool); t++)
        cr_assert(eq(u32, c->cells[t] - before[t], t < n ? c->rounds : 0));
}

static void meet_in_turns(uint32_t threads, uint32_t steps)
{
    struct count c = { .rounds = 3 };
    uint32_t n = 1;

    cr_assert(zero(int, pool_open(threads, &c.pool, NULL)));
    for (uint32_t i = 0; i < steps; i++, n = 1 + (n * 7 + i) % threads) {
        /* A thread is not asked for longer than it spins, now and then. */
        const uint64_t start = clock_mono_us();

        while (i % 16 == 0 && clock_mono_us() - start < 500)
            ;
        meet_on(&c, n);
    }
    pool_run(c.pool, count_rounds, &(struct count){ .pool = c.pool, .n = threads, .rounds = 2 });
    for (uint32_t t = 0; t < threads; t++)
        cr_expect(zero(u32, c.wrong[t]));
    meet_on(&c, 1);                                 /* nobody waits for the end in a run */
    pool_close(c.pool);
}

Test(pool, a_run_may_take_some_of_the_threads) { meet_in_turns(2, 400); }

Test(pool, and_other_ones_each_time) { meet_in_turns(5, 200); }

Test(pool, and_some_of_many) { meet_in_turns(12, 40); }

static void raise_cell(void *arg, uint32_t thread) { ((uint32_t *)arg)[thread]++; }

Test(pool, a_crew_says_who_takes_part_and_learns_how_it_went)
{
    struct pool *pool = NULL;
    struct crew crew, two;
    uint32_t cells[3] = { 0 };

    cr_assert(zero(int, pool_open(3, &pool, NULL)));
    crew_init(&crew, 3);
    crew_init(&two, 2);
    pool_run_crew(pool, &crew, raise_cell, cells);
    pool_run_crew(pool, &two, raise_cell, cells);
    cr_expect(eq(u32, cells[0], 2));
    cr_expect(eq(u32, cells[1], 2));
    cr_expect(eq(u32, cells[2], 1));
    while (two.window.took_us == 0 && two.home_rate == 0)       /* shorter than the clock shows */
        pool_run_crew(pool, &two, raise_cell, cells);
    pool_close(pool);
}

Test(pool, ranges_cover_everything_once_and_in_order)
{
    for (uint32_t n = 0; n < 40; n++)
        for (uint32_t threads = 1; threads < 9; threads++) {
            uint32_t at = 0, from, to;

            for (uint32_t t = 0; t < threads; t++, at = to) {
                pool_range(n, t, threads, &from, &to);
                cr_assert(eq(u32, from, at));
                cr_assert(le(u32, to - from, n / threads + 1));
            }
            cr_assert(eq(u32, at, n));
        }
}

Test(pool, absurd_numbers_of_threads_are_refused)
{
    struct pool *pool = NULL;
    struct err err = { 0 };

    cr_expect(eq(int, pool_open(POOL_MAX_THREADS + 1, &pool, &err), -EINVAL));
    cr_expect(eq(str, err.text, "257 threads are above the limit of 256"));
    cr_expect(eq(ptr, pool, NULL));
    cr_expect(ge(u32, pool_allowed(), 1));
}

/* ---- cgroups --------------------------------------------------------- */

static char root[] = "/tmp/fastchat-pool-XXXXXX";

static void make_root(void) { cr_assert(ne(ptr, mkdtemp(root), NULL)); }

static void remove_root(void)
{
    char command[128];

    snprintf(command, sizeof command, "rm -rf '%s'", root);
    cr_expect(zero(int, system(command)));
}

static void write_file(const char *path, const char *text)
{
    char whole[256], folder[256];
    FILE *f;

    snprintf(whole, sizeof whole, "%s/%s", root, path);
    for (char *slash = strchr(whole + sizeof root, '/'); slash; slash = strchr(slash + 1, '/')) {
        snprintf(folder, sizeof folder, "%.*s", (int)(slash - whole), whole);
        mkdir(folder, 0700);
    }
    f = fopen(whole, "w");
    cr_assert(ne(ptr, f, NULL));
    fputs(text, f);
    fclose(f);
}

static uint32_t cpus(void)
{
    char membership[64];

    snprintf(membership, sizeof membership, "%s/cgroup", root);
    return pool_cgroup_cpus(membership, root);
}

TestSuite(cgroup, .init = make_root, .fini = remove_root);

Test(cgroup, version_2_takes_the_tightest_of_a_group_and_its_parents)
{
    write_file("cgroup", "0::/a.slice/b.service\n");
    write_file("a.slice/cpu.max", "350000 100000\n");
    write_file("a.slice/b.service/cpu.max", "max 100000\n");
    cr_expect(eq(u32, cpus(), 3));
    write_file("a.slice/b.service/cpu.max", "200000 100000\n");
    cr_expect(eq(u32, cpus(), 2));
}

Test(cgroup, a_part_of_a_cpu_counts_as_one)
{
    write_file("cgroup", "0::/x\n");
    write_file("x/cpu.max", "20000 100000\n");
    cr_expect(eq(u32, cpus(), 1));
}

Test(cgroup, version_1_reads_the_cpu_controller)
{
    write_file("cgroup", "5:memory:/m\n4:cpu,cpuacct:/docker/1\n");
    write_file("cpu,cpuacct/docker/1/cpu.cfs_quota_us", "400000\n");
    write_file("cpu,cpuacct/docker/1/cpu.cfs_period_us", "100000\n");
    cr_expect(eq(u32, cpus(), 4));
    write_file("cpu,cpuacct/docker/1/cpu.cfs_quota_us", "-1\n");
    cr_expect(eq(u32, cpus(), 0));
}

Test(cgroup, a_path_of_the_host_falls_back_to_the_root_of_the_container)
{
    write_file("cgroup", "0::/not/here\n");
    write_file("cpu.max", "500000 100000\n");
    cr_expect(eq(u32, cpus(), 5));
}

Test(cgroup, nothing_to_read_is_no_limit)
{
    cr_expect(eq(u32, cpus(), 0));
    write_file("cgroup", "nonsense\n::\n0::/x\n");
    write_file("x/cpu.max", "garbage\n");
    cr_expect(eq(u32, cpus(), 0));
    write_file("x/cpu.max", "-5 0\n");
    cr_expect(eq(u32, cpus(), 0));
}
