#include "tests/gen/play.h"

#include "base/clock.h"
#include "base/err.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static void notify(void *user)
{
    struct play_box *box = user;

    atomic_fetch_add(&box->notified, 1);
    eventfd_write(box->event, 1);
}

int play_open(struct play_box *box, struct engine_config config, struct err *err)
{
    *box = (struct play_box){ .event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) };
    config.pulse = &box->pulse;
    config.notify = notify;
    config.notify_user = box;
    if (!config.device)
        config.device = "cpu";
    if (!config.name)
        config.name = "test";
    return engine_open(&config, &box->e, err);
}

void play_close(struct play_box *box)
{
    engine_close(box->e);
    close(box->event);
}

int play_submit(struct play_box *box, struct play *p, struct err *err)
{
    p->box = box;
    p->req.user = p;
    return engine_submit(box->e, &p->req, &p->seq, err);
}

void play_cancel(struct play *p)
{
    engine_cancel(p->box->e, p->seq);
    p->cancelled = true;
}

static void on_event(const struct engine_event *ev, void *unused)
{
    struct play *p = ev->user;

    cr_assert(!p->cancelled && !p->n_done && !p->n_failed, "an event after the last");
    p->prompt_tokens = ev->prompt_tokens;
    p->completion_tokens = ev->completion_tokens;
    p->cached_tokens = ev->cached_tokens;
    switch (ev->kind) {
    case ENGINE_STARTED:
        cr_assert(!p->n_output && !p->n_started, "started late");
        p->n_started++;
        break;
    case ENGINE_OUTPUT:
        cr_assert(ev->len || ev->n_tokens, "an empty event");
        cr_assert(strnlen(ev->text, ev->len + 1) <= ev->len && !ev->text[ev->len], "no NUL");
        p->n_output++;
        buf_add(&p->text, ev->text, ev->len);
        for (size_t i = 0; i < ev->n_tokens; i++) {
            cr_assert(p->n_tokens < sizeof p->tokens / sizeof p->tokens[0]);
            p->tokens[p->n_tokens] = ev->tokens[i];
            if (ev->tokens[i].n_top) {
                /* Keep the best one's value where tests look for it. */
                p->n_top += ev->tokens[i].n_top;
                for (size_t k = 1; k < ev->tokens[i].n_top; k++)
                    cr_assert(ev->tokens[i].top[k - 1].logprob >= ev->tokens[i].top[k].logprob);
            }
            p->tokens[p->n_tokens++].top = NULL;
        }
        if (p->on_output)
            p->on_output(p);
        break;
    case ENGINE_DONE:
        p->n_done++;
        snprintf(p->finish, sizeof p->finish, "%s", ev->finish_reason);
        snprintf(p->stop, sizeof p->stop, "%s", ev->stop_reason ? ev->stop_reason : "");
        break;
    case ENGINE_FAILED:
        p->n_failed++;
        p->error = ev->error;
        snprintf(p->message, sizeof p->message, "%s", ev->message);
        break;
    }
}

void play_until(struct play_box *box, bool (*done)(struct play_box *, void *), void *user)
{
    uint64_t ceiling = clock_mono_ms() + 280000;

    for (;;) {
        struct pollfd fd = { .fd = box->event, .events = POLLIN };
        eventfd_t n;

        engine_poll(box->e, on_event, NULL);
        if (done(box, user))
            return;
        cr_assert(clock_mono_ms() < ceiling, "nothing came");
        poll(&fd, 1, 10);
        eventfd_read(box->event, &n);
    }
}

struct all { struct play *p; size_t n; };

static bool all_ended(struct play_box *box, void *user)
{
    struct all *all = user;

    for (size_t i = 0; i < all->n; i++)
        if (!all->p[i].n_done && !all->p[i].n_failed && !all->p[i].cancelled)
            return false;
    return true;
}

void play_wait(struct play_box *box, struct play *p, size_t n)
{
    play_until(box, all_ended, &(struct all){ p, n });
}

void play_fini(struct play *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        buf_fini(&p[i].text);
}
