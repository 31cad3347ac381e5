/* inner.h - what the files of the controller share; nobody else includes it. */
#ifndef CONTROLLER_INNER_H
#define CONTROLLER_INNER_H

#include "daemon/controller/controller.h"

#include "base/buf.h"
#include "base/json.h"

struct gather;
struct http_client;
struct http_request;
struct http_server;
struct loop_timer;
struct poll;
struct route_reader;
struct watch;
struct worker;

/* One of the two ways in; the user pointer of every handler. */
struct door {
    struct controller *c;
    struct http_server *server;
    bool local;
};

enum gather_kind { GATHER_PROBE, GATHER_REFRESH, GATHER_STATUS, N_GATHERS };

struct controller {
    struct loop *loop;
    struct controller_config config;
    struct registry *registry;
    struct http_client *client;
    struct door unix_door, tcp_door;
    struct loop_timer *expiry; /* at the earliest end of a lease */
    uint64_t expiry_at_us;

    struct poll *polls;                /* in flight */
    size_t n_registering;              /* polls for registrations */
    struct gather *gathers[N_GATHERS]; /* running, at most one of a kind */
    uint64_t round;

    struct watch *watches;
    struct route_reader *readers;
    struct loop_timer *push, *sign; /* the table is due; a sign of life is due */
    bool push_due;
    uint64_t pushed_version;

    void (*drained)(void *user);
    void *drained_user;
    unsigned draining; /* servers that still have requests */
};

void controller_say(struct controller *c, int level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* After any change of the table: sets the expiry timer, ends watches of workers
 * that are gone, and has the table pushed to its readers. */
void controller_changed(struct controller *c);
/* Drops leases that are over; before every look at the table. */
void controller_sweep(struct controller *c);
/* Who gets the next request for this model, or NULL (registry_dispatch). */
const struct worker *controller_dispatch(struct controller *c, const char *model, bool url_only);
/* A call to this worker found nobody there. */
void controller_unreachable(struct controller *c, const char *name, uint64_t serial);

/* Answers. reply_error is the contract's bare 500 for a body that is no use. */
void reply_buf(struct http_request *req, const struct buf *json);
void reply_error(struct http_request *req);
/* The body as an object, or NULL after the error was answered. */
cJSON *body_object(struct http_request *req);

/* poll.c: asking workers for their status */
void poll_registration(struct controller *c, struct worker *w, struct http_request *req);
void poll_gather(struct controller *c, enum gather_kind kind, struct http_request *req);
/* Asks again those that sent no beats even before they became unreachable. */
void poll_probe(struct controller *c);
void poll_close(struct controller *c);

/* streams.c: the endless ones */
int streams_open(struct controller *c);
void streams_close(struct controller *c);
void streams_changed(struct controller *c);
void streams_end(struct controller *c); /* before a drain */
void handle_watch(struct http_request *req, void *user);
void handle_routes(struct http_request *req, void *user);

/* proxy.c */
void handle_generate_stream(struct http_request *req, void *user);

/* Where the worker is called: a specification of a call to `path` (text lives in
 * `url`). */
struct http_call_spec;
void worker_call_spec(const struct worker *w, const char *path, char *url, size_t size,
                      struct http_call_spec *spec);

/* What a registration is answered: null to foreign workers, always. */
void reply_registered(struct http_request *req, bool native, bool done);
/* Puts it into the table; false (and a line in the log) when it is refused. */
bool controller_register(struct controller *c, struct worker *w);

#endif
