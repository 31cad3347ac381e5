/* http_rig.h - a server with handlers of every kind, which the tests of the HTTP
 * server talk to in bytes (net.h).
 */
#ifndef TESTS_IPC_HTTP_RIG_H
#define TESTS_IPC_HTTP_RIG_H

#include "net.h"

#include <stdarg.h>

enum { MAX_HELD = 64 };
static __attribute__((unused)) struct http_request *held[MAX_HELD];     /* requests that a handler keeps */
static __attribute__((unused)) int n_held, n_gone, n_done, n_drained, n_access;
static __attribute__((unused)) int last_status;
static __attribute__((unused)) bool last_cut;
static __attribute__((unused)) char last_path[64];

static inline void gone(struct http_request *req)
{
    n_gone++;
    if (http_stream_write(req, "x", 1) != -ECONNRESET)
        n_gone += 1000;         /* a request that is over takes nothing */
    http_reply(req, 200, NULL, NULL, 0);
    http_stream_abort(req);
}

static inline void done(struct http_request *req)
{
    n_done++;
    http_reply(req, 200, NULL, NULL, 0);        /* too late, and ignored */
}

static inline void drained(struct http_request *req)
{
    n_drained++;
}

static inline void keep(struct http_request *req)
{
    cr_assert(lt(int, n_held, MAX_HELD));
    req->on_gone = gone;
    req->on_done = done;
    req->on_drain = drained;
    held[n_held++] = req;
}

static inline void hello(struct http_request *req, void *user)
{
    req->on_gone = gone;
    req->on_done = done;
    http_add_header(req, "X-Extra", "yes");
    http_add_header(req, "X-Evil", "a\r\nB: c");
    http_reply(req, 200, "text/plain", "hello", 5);
}

static inline void echo(struct http_request *req, void *user)
{
    http_reply(req, 200, "application/octet-stream", req->body, req->body_len);
}

static inline void show(struct http_request *req, void *user)
{
    const char *host = http_header(req, "host"), *q = http_query(req, "q"), *v = http_header(req, "x-v");

    http_reply_json(req, 200, arena_printf(req->arena, "[%s|%s|%s|q=%s|host=%s|x-v=%s]", req->method, req->path,
                                           req->query, q ? q : "-", host ? host : "-", v ? v : "-"));
}

static inline void later(struct http_request *req, void *user)
{
    keep(req);
}

static inline void stream(struct http_request *req, void *user)
{
    keep(req);
    http_stream_start(req, 200, "text/event-stream");
}

static inline void burst(struct http_request *req, void *user)
{
    req->on_done = done;
    http_stream_start(req, 200, NULL);
    for (int i = 0; i < 40; i++)
        http_stream_write(req, "0123456789", 10);
    http_stream_end(req);
}

static inline void big(struct http_request *req, void *user)
{
    size_t len = 4 << 20;
    char *body = malloc(len);

    memset(body, 'b', len);
    req->on_gone = gone;
    req->on_done = done;
    http_reply(req, 200, "text/plain", body, len);
    free(body);
}

static inline void ends_server(struct http_request *req, void *user)
{
    keep(req);
    http_server_close(server);
    server = NULL;
}

static inline void feeds(struct http_request *req, void *user)
{
    for (int i = 0; i < 10; i++)
        http_stream_write(held[0], "0123456789", 10);
    http_reply(req, 200, NULL, NULL, 0);
}

static inline void last_words(struct http_request *req, void *user)
{
    req->on_done = done;
    http_reply(req, 200, NULL, "last words", 10);
    http_server_close(server);
    server = NULL;
}

static inline void ends_others(struct http_request *req, void *user)
{
    while (n_held)
        http_stream_abort(held[--n_held]);
    http_reply(req, 200, NULL, "ended", 5);
}

static inline void drains(struct http_request *req, void *user)
{
    http_server_drain(server, 0, NULL, NULL);
    http_reply(req, 200, NULL, "last", 4);
}

static const struct http_route routes[] = {
    { "GET", "/hello", hello },
    { "POST", "/echo", echo },
    { "POST", "/small", echo, 10 },
    { "GET", "/show", show },
    { NULL, "/any", show },
    { "GET", "/v1/models/*", show },
    { "POST", "/v1/models/*", show },
    { "GET", "/later", later },
    { "POST", "/later", later },
    { "GET", "/stream", stream },
    { "GET", "/big", big },
    { "GET", "/burst", burst },
    { "GET", "/end", ends_server },
    { "GET", "/last", last_words },
    { "GET", "/feed", feeds },
    { "GET", "/others", ends_others },
    { "GET", "/drain", drains },
};

static inline void access_line(const struct http_request *req, void *user)
{
    n_access++;
    last_status = req->status;
    last_cut = req->cut;
    snprintf(last_path, sizeof last_path, "%s", req->path);
}

static __attribute__((unused)) struct http_config config = {
    .routes = routes, .n_routes = sizeof routes / sizeof routes[0], .access = access_line,
};

static inline void setup(void)
{
    net_open(&config);
}

static inline void teardown(void)
{
    net_close();
}

static inline struct client *asks(const char *fmt, ...)
{
    struct client *c = client_open();
    char text[4096];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    client_says(c, text);
    return c;
}

#define GET(path) "GET " path " HTTP/1.1\r\nHost: x\r\n\r\n"
#define LAST(path) "GET " path " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
#define POST(path, headers, body) "POST " path " HTTP/1.1\r\nHost: x\r\n" headers "\r\n" body
#define CHUNKED "Transfer-Encoding: chunked\r\n"
#define AND_ON GET("/hello")        /* must not be answered when the connection is spoiled */

#endif
