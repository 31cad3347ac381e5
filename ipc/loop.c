#include "ipc/loop.h"

#include "base/clock.h"
#include "base/err.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>

/* Every io has a slot, and what epoll keeps for its descriptor is the slot's
 * number with the generation in which it was lent. Removing an io ends the
 * generation, so an event that was fetched before, for whatever then lay at
 * that address, no longer matches and is dropped.
 */
enum { BATCH = 256, ROUND = 32, ACCURACY_US = 1000 };

struct slot {
    struct loop_io *io;         /* NULL: free */
    uint32_t generation;
    uint32_t next_free;
};

struct post {
    struct post *next;
    loop_fn fn;
    void *user;
};

struct loop {
    sd_event *event;
    sd_event_source *data_source, *post_source;
    int epoll_fd, wake_fd;

    struct slot *slots;         /* [n_slots], the first is never lent */
    uint32_t n_slots, free_slot;
    loop_fn round_begins, round_ends;
    void *round_user;

    pthread_mutex_t lock;       /* of the two below */
    struct post *first_post, **last_post;

    bool stopped;
    int code;
};

/* sd-event fires a time up to its accuracy late, also one that has come
 * already; what is due at once is a deferred source of its own. */
struct loop_timer {
    sd_event_source *source, *at_once;
    loop_fn fn;
    void *user;
};

static void dispatch(struct loop *l, const struct epoll_event *event)
{
    uint32_t number = (uint32_t)event->data.u64;
    const struct slot *slot = &l->slots[number];
    struct loop_io *io = slot->io;
    uint32_t what;

    if (!io || slot->generation != (uint32_t)(event->data.u64 >> 32))
        return;
    what = event->events & (io->events | EPOLLERR | EPOLLHUP);
    if (what)
        io->fn(io, what);
}

static int on_data(sd_event_source *source, int fd, uint32_t revents, void *user)
{
    struct epoll_event events[BATCH];
    struct loop *l = user;
    int n = epoll_wait(l->epoll_fd, events, BATCH, 0);

    for (int i = 0; i < n;) {
        int end = i + ROUND < n ? i + ROUND : n;

        if (l->round_begins)
            l->round_begins(l->round_user);
        for (; i < end; i++)
            dispatch(l, &events[i]);
        if (l->round_ends)
            l->round_ends(l->round_user);
    }
    return 0;
}

void loop_rounds(struct loop *l, loop_fn begins, loop_fn ends, void *user)
{
    l->round_begins = begins;
    l->round_ends = ends;
    l->round_user = user;
}

static int on_post(sd_event_source *source, int fd, uint32_t revents, void *user)
{
    struct loop *l = user;
    struct post *posts;
    uint64_t count;

    if (read(l->wake_fd, &count, sizeof count) < 0 && errno != EAGAIN)
        return 0;
    pthread_mutex_lock(&l->lock);
    posts = l->first_post;
    l->first_post = NULL;
    l->last_post = &l->first_post;
    pthread_mutex_unlock(&l->lock);

    for (struct post *p = posts, *next; p; p = next) {
        next = p->next;
        p->fn(p->user);
        free(p);
    }
    return 0;
}

int loop_open(struct loop **ret, struct err *err)
{
    CLEANUP(loop_close) struct loop *l = calloc(1, sizeof *l);
    int r;

    if (!l)
        return err_set(err, -ENOMEM, "event loop: no memory");
    pthread_mutex_init(&l->lock, NULL);
    l->last_post = &l->first_post;
    l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    l->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (l->epoll_fd < 0 || l->wake_fd < 0)
        return err_errno(err, -errno, "event loop");
    r = sd_event_new(&l->event);
    if (r >= 0)
        r = sd_event_add_io(l->event, &l->data_source, l->epoll_fd, EPOLLIN, on_data, l);
    if (r >= 0)
        r = sd_event_add_io(l->event, &l->post_source, l->wake_fd, EPOLLIN, on_post, l);
    if (r < 0)
        return err_errno(err, r, "event loop");
    *ret = STEAL(l);
    return 0;
}

void loop_close(struct loop *l)
{
    if (!l)
        return;
    sd_event_source_disable_unref(l->data_source);
    sd_event_source_disable_unref(l->post_source);
    sd_event_unref(l->event);
    fd_close(l->epoll_fd);
    fd_close(l->wake_fd);
    for (struct post *p = l->first_post, *next; p; p = next) {
        next = p->next;
        free(p);
    }
    pthread_mutex_destroy(&l->lock);
    free(l->slots);
    free(l);
}

sd_event *loop_event(struct loop *l)
{
    return l->event;
}

int loop_run(struct loop *l)
{
    while (!l->stopped) {
        int r = sd_event_run(l->event, UINT64_MAX);

        if (r < 0 && r != -EINTR)
            return r;
    }
    l->stopped = false;
    return l->code;
}

void loop_stop(struct loop *l, int code)
{
    l->stopped = true;
    l->code = code;
}

static int take_slot(struct loop *l, uint32_t *ret)
{
    if (!l->free_slot) {
        uint32_t n = l->n_slots ? l->n_slots * 2 : 64;
        struct slot *slots = reallocarray(l->slots, n, sizeof *slots);

        if (!slots)
            return -ENOMEM;
        l->slots = slots;
        for (uint32_t i = n; i-- > l->n_slots;) {
            slots[i] = (struct slot){ .next_free = l->free_slot };
            if (i)
                l->free_slot = i;
        }
        l->n_slots = n;
    }
    *ret = l->free_slot;
    l->free_slot = l->slots[*ret].next_free;
    return 0;
}

static void give_slot(struct loop *l, uint32_t number)
{
    struct slot *slot = &l->slots[number];

    slot->io = NULL;
    slot->generation++;
    slot->next_free = l->free_slot;
    l->free_slot = number;
}

static int control(struct loop *l, int op, struct loop_io *io, uint32_t number, uint32_t events)
{
    struct epoll_event e = {
        .events = events,
        .data.u64 = (uint64_t)l->slots[number].generation << 32 | number,
    };

    return epoll_ctl(l->epoll_fd, op, io->fd, &e) < 0 ? -errno : 0;
}

int loop_add(struct loop *l, struct loop_io *io, uint32_t events)
{
    uint32_t number;
    int r = take_slot(l, &number);

    if (r < 0)
        return r;
    r = control(l, EPOLL_CTL_ADD, io, number, events);
    if (r < 0) {
        give_slot(l, number);
        return r;
    }
    l->slots[number].io = io;
    io->slot = number;
    io->events = events;
    return 0;
}

int loop_arm(struct loop *l, struct loop_io *io, uint32_t events)
{
    int r;

    if (!io->slot)
        return -ENOENT;
    if (io->events == events)
        return 0;
    r = control(l, EPOLL_CTL_MOD, io, io->slot, events);
    if (r == 0)
        io->events = events;
    return r;
}

void loop_remove(struct loop *l, struct loop_io *io)
{
    if (!io->slot)
        return;
    control(l, EPOLL_CTL_DEL, io, io->slot, 0);
    give_slot(l, io->slot);
    io->slot = 0;
    io->events = 0;
}

static int on_timer(sd_event_source *source, uint64_t when, void *user)
{
    struct loop_timer *t = user;

    t->fn(t->user);             /* may free t */
    return 0;
}

static int on_at_once(sd_event_source *source, void *user)
{
    struct loop_timer *t = user;

    t->fn(t->user);             /* may free t */
    return 0;
}

int loop_timer_new(struct loop *l, loop_fn fn, void *user, struct loop_timer **ret)
{
    struct loop_timer *t = calloc(1, sizeof *t);
    int r;

    if (!t)
        return -ENOMEM;
    t->fn = fn;
    t->user = user;
    r = sd_event_add_time(l->event, &t->source, CLOCK_MONOTONIC, UINT64_MAX, ACCURACY_US, on_timer, t);
    if (r >= 0)
        r = sd_event_source_set_enabled(t->source, SD_EVENT_OFF);
    if (r >= 0)
        r = sd_event_add_defer(l->event, &t->at_once, on_at_once, t);
    if (r >= 0)
        r = sd_event_source_set_enabled(t->at_once, SD_EVENT_OFF);
    if (r < 0) {
        loop_timer_free(t);
        return r;
    }
    *ret = t;
    return 0;
}

void loop_timer_free(struct loop_timer *t)
{
    if (!t)
        return;
    sd_event_source_disable_unref(t->source);
    sd_event_source_disable_unref(t->at_once);
    free(t);
}

void loop_timer_set(struct loop_timer *t, uint64_t in_us)
{
    uint64_t when;

    sd_event_source_set_enabled(t->at_once, in_us ? SD_EVENT_OFF : SD_EVENT_ONESHOT);
    if (!in_us) {
        sd_event_source_set_enabled(t->source, SD_EVENT_OFF);
        return;
    }
    if (__builtin_add_overflow(clock_mono_us(), in_us, &when))
        when = UINT64_MAX;
    sd_event_source_set_time(t->source, when);
    sd_event_source_set_enabled(t->source, SD_EVENT_ONESHOT);
}

void loop_timer_off(struct loop_timer *t)
{
    sd_event_source_set_enabled(t->source, SD_EVENT_OFF);
    sd_event_source_set_enabled(t->at_once, SD_EVENT_OFF);
}

int loop_post(struct loop *l, loop_fn fn, void *user)
{
    struct post *p = malloc(sizeof *p);
    uint64_t one = 1;

    if (!p)
        return -ENOMEM;
    *p = (struct post){ .fn = fn, .user = user };
    pthread_mutex_lock(&l->lock);
    *l->last_post = p;
    l->last_post = &p->next;
    /* Inside the lock: a loop that is closed after its thread was joined must
     * not lose the descriptor under a writer. A full counter wakes as well. */
    if (write(l->wake_fd, &one, sizeof one) < 0) { }
    pthread_mutex_unlock(&l->lock);
    return 0;
}
