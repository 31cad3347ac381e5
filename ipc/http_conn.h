/* http_conn.h - what the three files of the HTTP server share; private to them.
 *
 * http_server.c owns connections, deadlines and the order of things;
 * http_parse.c turns a request's bytes into a struct request; http_reply.c
 * makes an answer's bytes.
 *
 * A head is parsed only once all of it is there: a scan that can be resumed at
 * any byte looks for its end and refuses what llhttp lets pass (folded lines,
 * bare CR or LF, NUL). So a request gives the same answer however its bytes
 * were cut, and an idle connection keeps no parser.
 */
#ifndef IPC_HTTP_CONN_H
#define IPC_HTTP_CONN_H

#include "base/buf.h"
#include "ipc/http_server.h"
#include "ipc/loop.h"

#include <llhttp/llhttp.h>
#include <sys/uio.h>

struct request {
    struct http_request pub;            /* the first member */

    /* http_parse.c */
    llhttp_t parser;
    char *url;
    size_t url_len;
    struct http_header *headers;
    size_t *value_lens;                 /* [n_header_room] */
    size_t n_header_room;
    bool head_done, complete;
    bool keep_alive, http10, chunked, has_length;
    uint64_t content_length;
    struct buf body;                    /* its limit is the request's */
    size_t body_fed;                    /* bytes on the wire, chunk framing included */
    bool too_large;                     /* the body's limit was in the way, not memory */
    const char *fault;                  /* what is wrong with it */

    /* http_server.c */
    const struct http_route *route;     /* NULL: route_status answers */
    int route_status;
    bool in_work;                       /* counted in n_active */

    /* http_reply.c */
    struct buf extra;                   /* header lines of the answer */
    bool answered, streaming, chunked_answer;
    bool full;                          /* a writer waits for on_drain */
    bool over;                          /* nothing more may be said to it */
};

struct head_scan {
    size_t seen;                        /* bytes looked at */
    size_t n_lines;
};

enum conn_state {
    CONN_IDLE,          /* no byte of a request yet */
    CONN_HEAD, CONN_BODY,
    CONN_WORK,          /* a handler has it */
    CONN_FLUSH,         /* answered, not all bytes taken by the socket */
    CONN_LINGER,        /* shut down; reads until the client has seen it */
    CONN_DEAD,          /* closed; freed when no function is using it */
};

struct http_conn {
    struct http_server *server;
    struct http_conn *next, *prev, *next_dead;
    struct loop_io io;
    enum conn_state state;
    bool close;                         /* behind the answer */
    bool asked;                         /* a request was answered here */
    bool broken;                        /* a write failed */
    bool kick;                          /* `in` may hold a whole request */
    bool mute_in, mute_hup;             /* seen while nobody wants to read */
    uint64_t deadline_us;               /* of the state; UINT64_MAX: none */
    uint64_t stall_us;                  /* of unsent bytes */
    uint64_t start_us;                  /* of the request's first byte */
    struct head_scan scan;
    struct buf in;                      /* received, not parsed */
    struct buf out;
    size_t out_done;                    /* of out, sent already */
    struct http_conn *next_gathered;    /* of the server's list, while on it */
    bool gathered;
    bool chunk_open;
    size_t chunk_at;                    /* where in out the size of the open chunk lies */
    struct request *req;
    char peer[56];
};

struct http_server {
    struct loop *loop;
    struct http_config config;          /* limits filled in */
    struct loop_timer *tick;
    struct listener *listeners;
    bool listeners_paused;
    uint64_t told_us;                   /* when `shortage` was called last; 0: never */
    int reserve_fd;                     /* given up to refuse a connection when out of descriptors */
    struct http_conn *conns, *dead, *gathered;
    bool gathers, gathering;            /* at all; a round of the loop is on */
    size_t n_conns, n_linger, n_active;
    unsigned depth;                     /* of our functions on the stack: nothing is freed above 0 */
    bool draining, closed;
    uint64_t grace_us;                  /* of the drain */
    void (*drain_done)(void *user);
    void *drain_user;
    struct buf head;                    /* scratch: head of an answer */
    int64_t date_s;
    char date[40];
    char read[65536];                   /* shared: connections keep only leftovers */
};

static inline struct request *request_of(const struct http_request *req)
{
    return (struct request *)req;
}

static inline size_t conn_waiting(const struct http_conn *c)
{
    return c->out.len - c->out_done;
}

/* ---- http_server.c ---- */

void server_enter(struct http_server *s);
void server_leave(struct http_server *s);       /* frees what died meanwhile */
/* Writes or queues; a failure is noted in c->broken and noticed by the loop. */
void conn_send(struct http_conn *c, struct iovec *parts, int n_parts);
/* Bytes of a chunked body, which share a chunk while the server gathers. */
void conn_send_chunk(struct http_conn *c, const void *data, size_t len);
/* The answer of c->req is complete. */
void conn_answered(struct http_conn *c);
/* It ends here, cut: the client sees no proper end. */
void conn_cut(struct http_conn *c);

/* ---- http_parse.c ---- */

struct request *request_new(struct http_conn *c);
void request_free(struct request *r);

enum { HEAD_MORE = 0 };
/* Length of the head that starts at data, HEAD_MORE, or minus the status to
 * answer with *fault. Leading empty lines are the caller's to skip. */
int head_scan(struct head_scan *scan, const char *data, size_t len, size_t limit, const char **fault);

enum { BODY_MORE = 0, BODY_DONE = 1 };
/* 0, or the status to answer and r->fault. */
int request_parse_head(struct request *r, const char *head, size_t len, size_t n_lines, size_t max_headers);
/* BODY_MORE, BODY_DONE, or minus the status; *used bytes belong to it. */
int request_parse_body(struct request *r, const char *data, size_t len, size_t *used);

/* ---- http_reply.c ---- */

void request_answer_error(struct request *r, int status, const char *detail);

#endif
