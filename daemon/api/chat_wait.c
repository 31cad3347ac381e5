/* Requests that wait for a model: it loads, its worker is started again, or it
 * is loaded because they ask.
 *
 * Whoever changes what is known (the routing table, the states, the settings)
 * has all that wait looked at, in order of arrival: a request goes on as soon
 * as somebody can be asked, and ends as soon as nobody will come. Nothing is
 * promised to a worker that was just found dead or busy with its end: it is
 * passed over until its time as a suspect is up, so a stale table makes no
 * loop. */
#include "base/clock.h"
#include "base/log.h"
#include "daemon/api/ask.h"
#include "daemon/api/catalog.h"
#include "daemon/api/chat.h"
#include "daemon/api/chat_parts.h"
#include "daemon/child.h"

/* A little less than the second of docs/wire.md: ticks come so often at least. */
enum { WANT_US = 900000 };

static void wish(struct api *api, struct model *m, uint64_t now)
{
    if (!catalog_sleeps(m) || (m->want_us && now - m->want_us < WANT_US))
        return;
    if (!m->want_us)
        log_info("the model '%s' is asked for", m->name);
    m->want_us = now;
    child_want(api->child, m->name);
}

/* Whether waiting makes sense at all; *e says why not, or what is waited for. */
static bool may_wait(struct api *api, struct model *m, struct api_error *e)
{
    if (!catalog_comes(m, e))
        return false;
    if (api->draining) {
        *e = (struct api_error){ 0 };
        api_error_set(e, 503, NULL, NULL, "The server is stopping.");
        e->retry_after_s = 1;
        return false;
    }
    wish(api, m, clock_mono_us());
    return api->load_wait_us > 0;
}

bool wait_may(struct api *api, struct model *m, struct api_error *e)
{
    struct api_error why = { 0 };

    if (catalog_serves(api->catalog, m) || may_wait(api, m, &why))
        return true;
    *e = why;
    return false;
}

static bool is_late(const struct chat *chat, uint64_t now)
{
    return chat->wait_us && now - chat->wait_us >= chat->api->load_wait_us;
}

bool wait_begin(struct choice *c)
{
    struct chat *chat = c->chat;
    uint64_t now = clock_mono_us();
    struct api_error e = { 0 };
    bool comes;

    if (c->n_tried && c->n_tried == c->n_refused)
        return false;
    comes = may_wait(chat->api, chat->model, &e) && !is_late(chat, now);
    if (!comes) {               /* of a worker that nobody starts again the failure itself says most */
        if (chat->model->configured || !chat->last.status)
            chat->last = e;
        return false;
    }
    if (!chat->wait_us)
        chat->wait_us = now;
    c->waiting = true;
    chat->n_waiting++;
    chat->api->n_waiting++;
    return true;
}

void wait_end(struct choice *c)
{
    if (!c->waiting)
        return;
    c->waiting = false;
    c->n_tried = c->n_refused;
    c->chat->n_waiting--;
    c->chat->api->n_waiting--;
    c->chat->ask_us = clock_mono_us();
}

bool wait_is_over(struct chat *chat, uint64_t now)
{
    struct api_error e = { 0 };

    if (!chat->n_waiting || !is_late(chat, now))
        return false;
    catalog_comes(chat->model, &e);
    chat_fail(chat, &e);
    return true;
}

static bool somebody_is_there(const struct choice *c, uint64_t now)
{
    const struct chat *chat = c->chat;
    const struct worker *w = catalog_pick(chat->api->catalog, chat->model, c->tried, c->n_refused, now);

    return w && w->suspect_until_us <= now;
}

static void look(struct chat *chat, uint64_t now)
{
    struct api_error e = { 0 };
    bool comes = may_wait(chat->api, chat->model, &e);

    for (unsigned i = 0, n = chat->spec.n; i < n; i++) {
        struct choice *c = &chat->choices[i];

        if (!c->waiting)
            continue;
        if (somebody_is_there(c, now)) {
            wait_end(c);
            if (choice_start(c) != 0)
                return;
        } else if (!comes) {
            chat_fail(chat, &e);
            return;
        }
    }
}

void chat_look(struct api *api)
{
    uint64_t now = clock_mono_us();

    for (struct chat *chat = api->chats, *next; chat && api->n_waiting; chat = next) {
        next = chat->next;
        if (chat->n_waiting)
            look(chat, now);
    }
    ask_look(api);
}

void chat_drain(struct api *api)
{
    api->draining = true;
    chat_look(api);
}
