#include "daemon/api/routes.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "daemon/api/api.h"
#include "daemon/api/catalog.h"
#include "daemon/api/chat.h"
#include "ipc/http_client.h"
#include "ipc/loop.h"

#include <errno.h>
#include <string.h>

enum {
    DELAY_MIN_US = 50000,
    DELAY_MAX_US = 2000000,
    SILENCE_US = 20000000,      /* the controller says something every 5 s */
    GRACE_US = 3000000,         /* in which workers find a controller that has started anew */
    LINE_BYTES = 4 << 20,
};

struct routes {
    struct api *api;
    struct http_call *call;
    struct loop_timer *timer;
    struct buf line;
    uint64_t delay_us, grace_until_us;
    int status;
    void (*known)(void *user);  /* NULL: was called */
    void *user;
    bool silent;                /* the trouble was said once */
};

static void trouble(struct routes *r, const char *what)
{
    r->grace_until_us = UINT64_MAX;     /* until it is there again, and a while longer */
    if (!r->silent)
        log_warning("routing table: %s; the last one stays in use", what);
    r->silent = true;
    buf_clear(&r->line);
    loop_timer_set(r->timer, r->delay_us);
    r->delay_us = r->delay_us * 2 > DELAY_MAX_US ? DELAY_MAX_US : r->delay_us * 2;
}

static void on_head(struct http_call *call, int status, void *user)
{
    struct routes *r = user;

    r->status = status;
    if (r->grace_until_us)
        r->grace_until_us = clock_mono_us() + GRACE_US;
}

static int take_line(struct routes *r, size_t len)
{
    void (*known)(void *) = r->known;
    struct err err = { 0 };

    if (len == 0)
        return 0;
    catalog_keep_missing(r->api->catalog, clock_mono_us() < r->grace_until_us);
    if (catalog_table(r->api->catalog, r->line.data, len, &err) < 0) {
        log_warning("routing table: %s", err_text(&err));
        return -EPROTO;
    }
    if (r->silent)
        log_info("routing table: connected again, %zu workers",
                 catalog_n_workers(r->api->catalog));
    r->silent = false;
    r->delay_us = DELAY_MIN_US;
    chat_look(r->api);
    r->known = NULL;
    if (known)
        known(r->user);
    return 0;
}

static void on_data(struct http_call *call, const char *data, size_t len, void *user)
{
    struct routes *r = user;
    const char *end;
    size_t n;

    if (r->status != 200)
        return;
    buf_add(&r->line, data, len);
    while (!r->line.failed && r->line.len && (end = memchr(r->line.data, '\n', r->line.len))) {
        n = (size_t)(end - r->line.data);
        if (take_line(r, n) < 0)
            break;
        buf_drop(&r->line, n + 1);
    }
    if (r->line.failed || (r->line.len && memchr(r->line.data, '\n', r->line.len))) {
        http_call_cancel(STEAL(r->call));
        trouble(r, "the controller sent what is no table");
    }
}

static void on_done(struct http_call *call, const struct http_call_result *result, void *user)
{
    struct routes *r = user;

    r->call = NULL;
    trouble(r, result->error ? result->text : "the controller ended its stream");
}

static void connect_now(void *user)
{
    struct routes *r = user;
    const struct http_call_spec spec = {
        .unix_path = r->api->controller, .url = "http://controller/routes",
        .silence_us = SILENCE_US,
        .user = r, .on_head = on_head, .on_data = on_data, .on_done = on_done,
    };
    struct err err = { 0 };

    r->status = 0;
    if (http_call_start(r->api->client, &spec, &r->call, &err) < 0)
        trouble(r, err_text(&err));
}

int routes_open(struct api *api, void (*known)(void *user), void *user, struct routes **ret, struct err *err)
{
    CLEANUP(routes_close) struct routes *r = calloc(1, sizeof *r);
    int got;

    if (!r)
        return err_set(err, -ENOMEM, "no memory for the routing table");
    r->api = api;
    r->known = known;
    r->user = user;
    r->delay_us = DELAY_MIN_US;
    r->line.limit = LINE_BYTES;
    got = loop_timer_new(api->loop, connect_now, r, &r->timer);
    if (got < 0)
        return err_errno(err, got, "routing table: no timer");
    connect_now(r);
    *ret = STEAL(r);
    return 0;
}

void routes_close(struct routes *r)
{
    if (!r)
        return;
    if (r->call)
        http_call_cancel(r->call);
    loop_timer_free(r->timer);
    buf_fini(&r->line);
    free(r);
}
