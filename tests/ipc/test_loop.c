#include "base/clock.h"
#include "ipc/loop.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <pthread.h>
#include <sys/socket.h>

static struct loop *loop;

static void setup(void)
{
    cr_assert(zero(int, loop_open(&loop, NULL)));
}

static void teardown(void)
{
    loop_close(loop);
}

TestSuite(loop, .init = setup, .fini = teardown);

struct end {
    struct loop_io io;
    int peer;
    int n_calls;
    struct end *other;
};

static void end_open(struct end *e, loop_io_fn fn)
{
    int pair[2];

    cr_assert(zero(int, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair)));
    *e = (struct end){ .io = { .fd = pair[0], .fn = fn, .user = e }, .peer = pair[1] };
    cr_assert(zero(int, loop_add(loop, &e->io, EPOLLIN)));
}

static void end_close(struct end *e)
{
    loop_remove(loop, &e->io);
    close(e->io.fd);
    close(e->peer);
}

static void stop_seven(void *user)
{
    loop_stop(loop, 7);
}

Test(loop, a_stop_before_the_run_ends_it_and_the_loop_runs_again)
{
    loop_stop(loop, 3);
    cr_expect(eq(int, loop_run(loop), 3));
    cr_assert(zero(int, loop_post(loop, stop_seven, NULL)));
    cr_expect(eq(int, loop_run(loop), 7));
}

/* Two descriptors have news at once; whoever is told first, in `fn`, takes the
 * other's event away. */
static void one_of_two_is_told(loop_io_fn fn)
{
    struct end a, b;

    end_open(&a, fn);
    end_open(&b, fn);
    a.other = &b;
    b.other = &a;
    cr_assert(eq(int, (int)write(a.peer, "x", 1), 1));
    cr_assert(eq(int, (int)write(b.peer, "x", 1), 1));
    loop_run(loop);
    cr_expect(eq(int, a.n_calls + b.n_calls, 1));
    end_close(&a);
    end_close(&b);
}

static void removes_other(struct loop_io *io, uint32_t events)
{
    struct end *e = io->user;

    e->n_calls++;
    loop_remove(loop, &e->other->io);
    loop_remove(loop, &e->io);
    loop_post(loop, stop_seven, NULL);
}

Test(loop, an_event_already_fetched_for_a_removed_io_is_dropped)
{
    one_of_two_is_told(removes_other);
}

static void counts(struct loop_io *io, uint32_t events)
{
    struct end *e = io->user;

    e->n_calls++;
}

static void reuses_other(struct loop_io *io, uint32_t events)
{
    struct end *e = io->user;

    e->n_calls++;
    end_close(e->other);
    end_open(e->other, counts);     /* most likely the same descriptor and slot */
    e->other->other = e;
    loop_remove(loop, &e->io);
    loop_post(loop, stop_seven, NULL);
}

Test(loop, an_event_fetched_for_a_reused_io_is_dropped)
{
    one_of_two_is_told(reuses_other);
}

static void disarms_other(struct loop_io *io, uint32_t events)
{
    struct end *e = io->user;

    e->n_calls++;
    loop_arm(loop, &e->io, EPOLLRDHUP);
    loop_arm(loop, &e->other->io, EPOLLRDHUP);
    loop_post(loop, stop_seven, NULL);
}

Test(loop, an_event_that_is_no_longer_armed_is_dropped)
{
    one_of_two_is_told(disarms_other);
}

Test(loop, removing_what_is_not_there_is_fine)
{
    struct loop_io io = { .fd = -1 };

    loop_remove(loop, &io);
    cr_expect(eq(int, loop_arm(loop, &io, EPOLLIN), -ENOENT));
    cr_expect(eq(int, loop_add(loop, &io, EPOLLIN), -EBADF));
    loop_remove(loop, &io);
}

Test(loop, hundreds_of_ios_are_all_served)
{
    enum { N = 400 };
    static struct end ends[N];
    int n_calls = 0;

    for (int i = 0; i < N; i++) {
        end_open(&ends[i], counts);
        cr_assert(eq(int, (int)write(ends[i].peer, "x", 1), 1));
    }
    for (int turn = 0; turn < 100 && n_calls < N; turn++) {
        cr_assert(ge(int, sd_event_run(loop_event(loop), 0), 0));
        n_calls = 0;
        for (int i = 0; i < N; i++) {
            if (ends[i].n_calls)
                loop_remove(loop, &ends[i].io);
            n_calls += ends[i].n_calls;
        }
    }
    cr_expect(eq(int, n_calls, N));
    for (int i = 0; i < N; i++)
        end_close(&ends[i]);
}

static struct loop_timer *timer;
static int n_fired;

static void fires(void *user)
{
    n_fired++;
    if (n_fired == 1)
        loop_timer_set(timer, 1000);
    else if (n_fired == 2)
        loop_stop(loop, 0);
}

Test(loop, a_timer_fires_once_a_setting_and_never_early)
{
    uint64_t start = clock_mono_us();

    cr_assert(zero(int, loop_timer_new(loop, fires, NULL, &timer)));
    loop_timer_set(timer, UINT64_MAX);      /* never; moved by the next line */
    loop_timer_set(timer, 20000);
    loop_run(loop);
    cr_expect(eq(int, n_fired, 2));
    cr_expect(ge(u64, clock_mono_us() - start, 21000));
    loop_timer_free(timer);
}

static void fires_at_once(void *user)
{
    if (++n_fired < 3)
        loop_timer_set(timer, 0);
}

/* Pending before any wait; a time, also one that has come, is something to wait for. */
Test(loop, a_timer_that_is_set_to_zero_fires_without_any_wait)
{
    sd_event *e = loop_event(loop);

    cr_assert(zero(int, loop_timer_new(loop, fires_at_once, NULL, &timer)));
    loop_timer_set(timer, UINT64_MAX);
    loop_timer_set(timer, 0);
    for (int i = 1; i <= 3; i++) {
        cr_assert(gt(int, sd_event_prepare(e), 0));
        cr_assert(gt(int, sd_event_dispatch(e), 0));
        cr_expect(eq(int, n_fired, i));
    }
    loop_timer_set(timer, 0);
    loop_timer_set(timer, UINT64_MAX);      /* moved away again */
    cr_assert(zero(int, sd_event_run(e, 0)));
    cr_expect(eq(int, n_fired, 3));
    loop_timer_free(timer);
}

static void frees_itself(void *user)
{
    loop_timer_free(timer);
    loop_stop(loop, 0);
}

Test(loop, a_timer_may_be_freed_inside_itself_and_when_off)
{
    struct loop_timer *off;

    cr_assert(zero(int, loop_timer_new(loop, fires, NULL, &off)));
    loop_timer_set(off, 0);
    loop_timer_off(off);
    cr_assert(zero(int, loop_timer_new(loop, frees_itself, NULL, &timer)));
    loop_timer_set(timer, 1000);
    loop_run(loop);
    cr_expect(eq(int, n_fired, 0));
    loop_timer_free(off);
}

enum { POSTS = 2000 };
static int n_posted;

static void posted(void *user)
{
    if (++n_posted == 4 * POSTS)
        loop_stop(loop, 0);
}

static void *poster(void *user)
{
    for (int i = 0; i < POSTS; i++)
        if (loop_post(loop, posted, NULL) < 0)
            break;
    return NULL;
}

Test(loop, posts_of_other_threads_all_run_on_the_loop)
{
    pthread_t threads[4];

    for (int i = 0; i < 4; i++)
        cr_assert(zero(int, pthread_create(&threads[i], NULL, poster, NULL)));
    loop_run(loop);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    cr_expect(eq(int, n_posted, 4 * POSTS));
}

Test(loop, posts_that_did_not_run_are_dropped_with_the_loop)
{
    cr_assert(zero(int, loop_post(loop, posted, NULL)));
    cr_expect(eq(int, n_posted, 0));
}
