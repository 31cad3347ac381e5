/* http_server.h - HTTP/1.1 for the front door and for every hop inside.
 *
 * llhttp in strict mode parses; the rules it leaves open are added here (one
 * Host, no folded headers, limits, deadlines). Connections sit in the loop's
 * nested epoll. One request a connection is in work at a time; pipelined ones
 * wait their turn, so answers leave in order.
 *
 * A handler gets the request once its body is whole. It answers at once or
 * later, either whole (http_reply) or as a stream (http_stream_*), chunked.
 *
 * Life of a request: it is the handler's until the handler calls http_reply,
 * http_stream_end or http_stream_abort, or until on_gone is called. Behind
 * those three calls the handler must not touch it any more (it may be freed
 * already). Exactly one of on_done and on_gone is called for each request, and
 * req->user is best released there. on_done may come from inside those three
 * calls, or later from the loop once a slow client has taken the bytes; on_gone
 * and on_drain only ever come from the loop (or http_server_close), never from
 * inside a function that writes. A failing http_stream_write just says
 * -ECONNRESET, and on_gone follows. Any callback may answer, write to or abort
 * other requests, and may close the server.
 *
 * Disconnects are noticed at once, also while nothing is being written; a
 * client that shuts down its writing side while its request is in work counts
 * as gone, as with nginx. What it sent in one piece with its end is still
 * answered if the handler answers at once.
 *
 * Slow readers: http_stream_write() gives HTTP_FULL once more than
 * `high_water` bytes wait; the bytes are taken all the same, and the source
 * should pause until `on_drain`. A client that takes nothing for `stall_us`
 * is gone, also one whose host does not acknowledge what was sent, and so is
 * one for which 64 MB of a stream wait.
 *
 * The server itself answers HEAD through GET routes (the handler sees "HEAD";
 * no body is sent), OPTIONS where no route takes it (204 with Allow), and
 * HTTP/1.0 clients (streams without chunks, the connection closes).
 *
 * Limits   struct http_limits; over them: 431, 414, 413, 408, or close
 * Threads  one: the loop's
 * Source   RFC 9110, RFC 9112; server-sent events: WHATWG HTML 9.2
 */
#ifndef IPC_HTTP_SERVER_H
#define IPC_HTTP_SERVER_H

#include "base/arena.h"
#include "base/cleanup.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct http_conn;
struct http_server;
struct loop;

enum { HTTP_FULL = 1 };

struct http_limits {
    uint32_t max_conns;             /* 0: 10000 */
    uint32_t header_bytes;          /* 0: 16384, request line and headers */
    uint32_t n_headers;             /* 0: 100 */
    size_t body_bytes;              /* 0: 32 MB; a route may allow less or more */
    uint64_t header_us, body_us;    /* absolute deadlines; 0: 10 s, 60 s */
    uint64_t idle_us;               /* keep-alive; 0: 75 s */
    uint64_t stall_us;              /* unsent bytes without progress; 0: 60 s */
    size_t high_water, low_water;   /* 0: 256 kB, 64 kB */
    /* Other processes accept from the same sockets: connections are taken one a
     * turn, so that all get their share, and a server at max_conns leaves them
     * to the others; what nobody has taken after 250 ms is told 503. */
    bool shared;
};

struct http_header { const char *name, *value; };       /* name in lower case */

struct http_request {
    const char *method;             /* "GET" */
    const char *path;               /* percent-decoded, without the query */
    const char *query;              /* behind '?', raw; "" when none */
    const struct http_header *headers;
    size_t n_headers;
    const char *body;               /* NUL behind body_len */
    size_t body_len;
    const char *peer;               /* "127.0.0.1:4711", "unix" */
    struct arena *arena;            /* lives as long as the request */
    uint64_t start_us;              /* monotonic, when the first byte came */

    /* the handler's */
    void *user;
    void (*on_gone)(struct http_request *req);      /* the client left; free user here */
    void (*on_drain)(struct http_request *req);     /* below the low mark again */
    /* The answer is complete and given to the socket, or was aborted. */
    void (*on_done)(struct http_request *req);

    /* what became of it, for the access log */
    int status;                     /* 499: the client left before an answer */
    uint64_t sent_bytes;            /* of the body */
    bool cut;                       /* the answer is not whole: aborted, or the client left */

    struct http_conn *conn;         /* the server's */
};

typedef void (*http_handler)(struct http_request *req, void *user);

struct http_route {
    const char *method;             /* NULL: any */
    const char *path;               /* exact, or a prefix when it ends in "/" + "*" */
    http_handler fn;
    size_t body_bytes;              /* 0: the server's limit */
};

/* `routes` must outlive the server. No match: 404, another method: 405 with
 * Allow, both through `error_body`. */
struct http_config {
    const struct http_route *routes;
    size_t n_routes;
    void *user;                     /* given to every handler */
    struct http_limits limits;
    /* Body of an answer that the server makes itself (400, 404, 405, 408, 413,
     * 431, 503); the default is {"detail":"Not Found"} and the like. `req`
     * may not be whole, but takes headers. The text lives in `arena`. */
    const char *(*error_body)(int status, const char *detail, struct http_request *req,
                              struct arena *arena);
    /* Every answered or abandoned request, also those the server answered; comes
     * before on_done or on_gone. Method and path are "-" when none was read. */
    void (*access)(const struct http_request *req, void *user);
    /* Connections are refused because descriptors or memory (error: -EMFILE, …)
     * are short; at most once a minute. May not close the server. */
    void (*shortage)(int error, void *user);
};

int http_server_open(struct loop *l, const struct http_config *config, struct http_server **ret,
                     struct err *err);
/* Closes listeners and connections; on_gone is called for requests in work.
 * Allowed inside a handler or another callback; its request is then gone like
 * the others. */
void http_server_close(struct http_server *s);
DEFINE_CLEANUP(struct http_server *, http_server_close)

/* Takes over a listening socket (it is made non-blocking). On failure it stays
 * the caller's. One that has the Unix path of an older one takes its place: who
 * waits there is served, and it is closed. A server that drains takes none:
 * the socket is closed. */
int http_server_listen(struct http_server *s, int fd, struct err *err);
/* Takes over a connected socket as if it had been accepted; on failure it is
 * closed. */
int http_server_adopt(struct http_server *s, int fd, struct err *err);
/* Other limits, in connections that are open too: for each head, body and idle
 * time that begins from now on. What has begun keeps its deadline, and a body
 * its size. */
void http_server_set_limits(struct http_server *s, const struct http_limits *limits);
enum { HTTP_FRESH_GRACE = 5 };

/* Accepts nothing more: listeners are closed at once (what waits in a shared
 * socket's queue is for whoever shares it). Every request that comes or runs on
 * an open connection is answered, with "Connection: close" if its head is not
 * out yet, and its connection is closed behind it. A kept connection that was
 * not told so may bring another request for grace_us, from the drain's
 * beginning or from the end of its last answer; one that has not asked anything
 * yet for HTTP_FRESH_GRACE times as long, since its client is about to. `done`
 * is called (later, from the loop) once no connection is left. */
void http_server_drain(struct http_server *s, uint64_t grace_us, void (*done)(void *user),
                       void *user);
/* From now on what is written within one round of the loop (loop_rounds()) goes
 * out at its end, in one piece a connection, and as one chunk of a stream. For
 * programs whose streams get many small writes in a row; one server a loop. */
void http_server_gather(struct http_server *s);
size_t http_server_conns(const struct http_server *s);
size_t http_server_active(const struct http_server *s);     /* requests in work */

/* Value of a header (lower-case name), or NULL. */
const char *http_header(const struct http_request *req, const char *name);
/* Value of a query parameter, percent-decoded into the arena, or NULL. */
const char *http_query(struct http_request *req, const char *name);

/* Adds a header to the answer; before http_reply or http_stream_start. Values
 * with line breaks are dropped. */
void http_add_header(struct http_request *req, const char *name, const char *value);

/* A whole answer. type NULL: no Content-Type. */
void http_reply(struct http_request *req, int status, const char *type, const void *body,
                size_t len);
void http_reply_json(struct http_request *req, int status, const char *json);

/* A streamed answer. After http_stream_end the request is gone. Writes of zero
 * bytes do nothing. 0, HTTP_FULL, or -ECONNRESET after the client has left. */
int http_stream_start(struct http_request *req, int status, const char *type);
int http_stream_write(struct http_request *req, const void *data, size_t len);
void http_stream_end(struct http_request *req);
/* Ends an answer (or none yet) so that the client can tell it was cut: no
 * final chunk, the connection is closed. */
void http_stream_abort(struct http_request *req);
size_t http_stream_waiting(const struct http_request *req);     /* bytes not yet sent */


#endif
