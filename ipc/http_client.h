/* http_client.h - HTTP requests to workers, the controller and providers.
 *
 * Over TCP or Unix sockets, with connections kept alive, on the loop's nested
 * epoll; what a call and an event cost does not depend on how many calls are
 * open. Names of hosts are looked up, and https is spoken, by libcurl. Proxy
 * variables of the environment are ignored. Redirects are not followed; only
 * http and https are spoken.
 *
 * Callbacks come from the loop only, never from inside a function of this
 * header. Any of them may start, cancel, pause or resume any call.
 *
 * A kept connection that the peer closed meanwhile is noticed and replaced; a
 * request that got no byte of an answer over a kept connection is sent once
 * more over a fresh one.
 *
 * Threads  one: the loop's
 */
#ifndef IPC_HTTP_CLIENT_H
#define IPC_HTTP_CLIENT_H

#include "base/cleanup.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct http_call;
struct http_client;
struct loop;

struct http_call_result {
    /* 0: an HTTP answer came whole (see status). Negative: -ECONNREFUSED (nobody
     * there, or no such socket file), -EHOSTUNREACH (no such host), -ETIMEDOUT,
     * -ECONNRESET (cut, before or within the answer), -EPROTO (no HTTP), … */
    int error;
    int status;                     /* 0 when no answer line came */
    bool connected;                 /* false: the request can not have been seen */
    bool reused;                    /* it went over a kept connection, which may have been dead */
    const char *text;               /* a sentence about `error` */
};

struct http_call_spec {
    const char *unix_path;          /* NULL: TCP to the URL's host */
    const char *url;                /* "http://host:port/path"; the host counts also with unix_path */
    const char *method;             /* NULL: POST when there is a body, else GET */
    const char *body;               /* copied; NULL: none */
    size_t body_len;
    const char *const *headers;     /* NULL-ended "Name: value" lines; may be NULL */
    uint64_t connect_us;            /* 0: 5 s */
    uint64_t total_us;              /* whole exchange; 0: no limit */
    uint64_t silence_us;            /* longest gap without a byte from the peer, to 1 s; 0: no limit */
    bool fresh;                     /* not over a kept connection, which may lead to an older process */

    void *user;
    /* The status line and headers are there; may be NULL. */
    void (*on_head)(struct http_call *c, int status, void *user);
    /* Bytes of the body as they come: what one read brought, in one piece. May
     * call http_call_pause or http_call_cancel. */
    void (*on_data)(struct http_call *c, const char *data, size_t len, void *user);
    /* Once, last; not after http_call_cancel. The call is gone when it returns. */
    void (*on_done)(struct http_call *c, const struct http_call_result *result, void *user);
};

int http_client_open(struct loop *l, struct http_client **ret, struct err *err);
/* Open calls are cancelled. Not inside a callback of the client. */
void http_client_close(struct http_client *c);
DEFINE_CLEANUP(struct http_client *, http_client_close)

/* Starts a call; calls set out in the order in which they were started. 0 and
 * the call, or -errno: -EINVAL for a URL or header that can not be sent. */
int http_call_start(struct http_client *c, const struct http_call_spec *spec,
                    struct http_call **ret, struct err *err);
/* Ends it at once without on_done: the peer sees a disconnect. The call is gone
 * for the caller. Inside its own on_done it does nothing. */
void http_call_cancel(struct http_call *call);
/* Stops and resumes reading, so that the peer's window fills. While paused
 * silence_us does not count, and the end of the peer goes unseen. */
void http_call_pause(struct http_call *call, bool pause);
/* A header of the answer by name (any case), from on_head on; NULL: not there.
 * Lives until the call ends. */
const char *http_call_header(struct http_call *call, const char *name);

#endif
