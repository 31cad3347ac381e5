/* Plain HTTP to Unix sockets and numeric addresses, which is what streams go
 * over; the rest is http_curl.c's. libcurl looks at every connection for each
 * new request and takes some ten microseconds for each event, which is too
 * much for thousands of streams: here both cost the same however many there are.
 *
 * A connection has at most one call, and a call that runs has one connection.
 * Connections without a call wait at their peer, the newest in front; any byte
 * or end that comes then closes them. A call ends by leaving its connection,
 * then its lists, then by on_done. Only the connection whose bytes are being
 * parsed must outlive what callbacks do: it is `busy`, and freed behind that.
 *
 * What can not be told from inside http_call_start and http_call_pause (a call
 * that failed at once, bytes that came while paused) waits in `todo` for the loop.
 */
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "ipc/address.h"
#include "ipc/http_call.h"
#include "ipc/loop.h"

#include <arpa/inet.h>
#include <errno.h>
#include <llhttp/llhttp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>

enum {
    CONNECT_US = 5000000,
    AGAIN_US = 1000,            /* until a Unix socket with a full backlog is tried again */
    HEAD_BYTES = 65536,         /* headers of an answer */
    KEPT_CONNECTIONS = 1024,
    KEPT_US = 60000000,         /* below the 75 s of our server, so that a kept connection is rarely dead */
    SWEEP_US = 10000000,
    READ_BYTES = 65536,
};

struct peer {
    struct peer *next;
    union {
        struct sockaddr any;
        struct sockaddr_un un;
        struct sockaddr_in in;
        struct sockaddr_in6 in6;
    } to;
    socklen_t len;
    struct conn *idle;          /* newest first */
    size_t n_users;             /* connections and calls; the peer goes with the last */
};

struct conn {
    struct loop_io io;
    struct http_client *client;
    struct peer *peer;
    struct call *call;          /* NULL: idle */
    struct conn *next, **at;    /* in peer->idle */
    uint64_t idle_us;           /* since when */
    bool connected;
    bool busy, dead;
    llhttp_t parser;
};

struct call {
    struct http_call pub;
    struct http_client *client;
    struct call *next, **at;                    /* in client->calls */
    struct call *next_timed, **timed_at;        /* in client->timed; NULL: not */
    struct call *next_todo, **todo_at;
    struct peer *peer;
    struct conn *conn;          /* NULL: in todo, or at its end */
    struct buf request;         /* until the answer begins */
    size_t sent;
    struct buf headers;         /* of the answer: name, NUL, value, NUL, … */
    struct buf held;            /* of the body, come while paused */
    uint64_t start_us, last_byte_us;
    int error;                  /* in todo: it failed */
    int status;
    bool has_head, has_byte, connected, reused, send_failed, is_head, paused;
    bool complete, keep;        /* the answer is whole; its connection can be used again */
    bool ending;
};

struct http_client {
    struct loop *loop;
    struct curl_side *curl;     /* NULL: nobody needed it yet */
    struct peer *peers;
    struct call *calls, *timed, *todo;
    struct loop_timer *limits, *later, *sweep;
    uint64_t limits_us;         /* when `limits` fires; UINT64_MAX: not */
    size_t n_idle;
    char *body;                 /* of the read at hand, in `read` */
    size_t body_len;
    char read[READ_BYTES];
};

/* ---- lists ---- */

#define LINK(head, item, next_, at_)                                                               \
    do {                                                                                           \
        (item)->next_ = *(head);                                                                   \
        (item)->at_ = (head);                                                                      \
        if ((item)->next_)                                                                         \
            (item)->next_->at_ = &(item)->next_;                                                   \
        *(head) = (item);                                                                          \
    } while (0)

#define UNLINK(item, next_, at_)                                                                   \
    do {                                                                                           \
        if (!(item)->at_)                                                                          \
            break;                                                                                 \
        *(item)->at_ = (item)->next_;                                                              \
        if ((item)->next_)                                                                         \
            (item)->next_->at_ = (item)->at_;                                                      \
        (item)->at_ = NULL;                                                                        \
    } while (0)

/* ---- connections ---- */

static void peer_release(struct http_client *c, struct peer *peer)
{
    struct peer **at = &c->peers;

    if (--peer->n_users)
        return;
    while (*at != peer)
        at = &(*at)->next;
    *at = peer->next;
    free(peer);
}

/* From here on it is nobody's; its memory goes when its bytes are not being
 * parsed. */
static void conn_close(struct conn *conn)
{
    struct http_client *c = conn->client;

    if (conn->dead)
        return;
    if (conn->at) {
        UNLINK(conn, next, at);
        c->n_idle--;
    }
    loop_remove(c->loop, &conn->io);
    close(conn->io.fd);
    peer_release(c, conn->peer);
    conn->call = NULL;
    conn->dead = true;
    if (!conn->busy)
        free(conn);
}

static void conn_idle(struct conn *conn)
{
    struct http_client *c = conn->client;

    conn->call = NULL;
    if (c->n_idle >= KEPT_CONNECTIONS || loop_arm(c->loop, &conn->io, EPOLLIN) < 0) {
        conn_close(conn);
        return;
    }
    conn->idle_us = clock_mono_us();
    LINK(&conn->peer->idle, conn, next, at);
    if (c->n_idle++ == 0)
        loop_timer_set(c->sweep, SWEEP_US);
}

static void on_sweep(void *user)
{
    struct http_client *c = user;
    uint64_t now = clock_mono_us();

    for (struct peer *p = c->peers, *next; p; p = next) {
        next = p->next;
        p->n_users++;
        for (struct conn *conn = p->idle, *older; conn; conn = older) {
            older = conn->next;
            if (now - conn->idle_us > KEPT_US)
                conn_close(conn);
        }
        peer_release(c, p);
    }
    if (c->n_idle)
        loop_timer_set(c->sweep, SWEEP_US);
}

/* ---- limits ---- */

static uint64_t after(uint64_t start, uint64_t us)
{
    return us && start < UINT64_MAX - us ? start + us : UINT64_MAX;
}

/* The earliest of its limits. */
static uint64_t call_limit(const struct call *call)
{
    const struct http_call_spec *spec = &call->pub.spec;
    uint64_t least = after(call->start_us, spec->total_us), other = UINT64_MAX;

    if (!call->connected)
        other = after(call->start_us, spec->connect_us ? spec->connect_us : CONNECT_US);
    if (other < least)
        least = other;
    if (call->paused)
        return least;
    other = after(call->last_byte_us, spec->silence_us);
    return other < least ? other : least;
}

/* Its limits have come or changed. */
static void call_limited(struct call *call)
{
    struct http_client *c = call->client;
    uint64_t limit = call_limit(call), now;

    if (limit == UINT64_MAX) {
        UNLINK(call, next_timed, timed_at);
        return;
    }
    if (!call->timed_at)
        LINK(&c->timed, call, next_timed, timed_at);
    if (limit >= c->limits_us)
        return;
    now = clock_mono_us();
    c->limits_us = limit;
    loop_timer_set(c->limits, limit > now ? limit - now : 0);
}

/* ---- ends of calls ---- */

static void call_free(struct call *call)
{
    struct http_client *c = call->client;

    UNLINK(call, next, at);
    UNLINK(call, next_timed, timed_at);
    UNLINK(call, next_todo, todo_at);
    if (call->conn)
        conn_close(call->conn);
    if (call->peer)
        peer_release(c, call->peer);
    buf_fini(&call->request);
    buf_fini(&call->headers);
    buf_fini(&call->held);
    free(call);
}

static void call_end(struct call *call, int error, const char *text)
{
    struct http_call_result result = {
        .error = error, .status = call->has_head ? call->status : 0, .connected = call->connected,
        .reused = call->reused, .text = text,
    };

    if (call->conn)
        conn_close(STEAL(call->conn));
    call->ending = true;
    if (call->pub.spec.on_done)
        call->pub.spec.on_done(&call->pub, &result, call->pub.spec.user);
    call_free(call);
}

static void call_todo(struct call *call, uint64_t in_us)
{
    if (!call->todo_at)
        LINK(&call->client->todo, call, next_todo, todo_at);
    loop_timer_set(call->client->later, in_us);
}

static void on_limits(void *user)
{
    struct http_client *c = user;
    uint64_t now = clock_mono_us(), next;
    struct call *late;

    /* Each end calls back, which may end others: so the list is walked anew. */
    do {
        next = UINT64_MAX;
        for (late = c->timed; late; late = late->next_timed) {
            uint64_t limit = call_limit(late);

            if (limit <= now)
                break;
            if (limit < next)
                next = limit;
        }
        if (late)
            call_end(late, -ETIMEDOUT, !late->connected ? "nobody took the connection in time"
                                       : after(late->start_us, late->pub.spec.total_us) <= now
                                           ? "the exchange took too long"
                                           : "the peer said nothing for too long");
    } while (late);
    c->limits_us = next;
    if (next != UINT64_MAX)
        loop_timer_set(c->limits, next - now);
}

/* ---- sending ---- */

static void on_conn(struct loop_io *io, uint32_t events);

static void call_send(struct call *call)
{
    struct conn *conn = call->conn;
    uint32_t events = EPOLLIN;

    while (call->sent < call->request.len && !call->send_failed) {
        ssize_t n = send(conn->io.fd, call->request.data + call->sent, call->request.len - call->sent,
                         MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n >= 0) {
            call->sent += (size_t)n;
        } else if (errno == EAGAIN) {
            events |= EPOLLOUT;
            break;
        } else if (errno != EINTR) {
            call->send_failed = true;   /* what the peer had to say may be there yet */
        }
    }
    if (!call->paused)
        loop_arm(call->client->loop, &conn->io, events);
}

static void call_connected(struct call *call)
{
    call->connected = call->conn->connected = true;
    call_limited(call);
    call_send(call);
}

/* A worker may be silent for minutes; that its host is there the kernel says. */
enum { AWAY_MS = 40000 };

/* A new connection to the call's peer; -EAGAIN: its backlog is full. */
static int call_connect(struct call *call)
{
    struct http_client *c = call->client;
    struct peer *peer = call->peer;
    struct conn *conn = calloc(1, sizeof *conn);
    int r = 0;

    if (!conn)
        return -ENOMEM;
    conn->client = c;
    conn->peer = peer;
    conn->call = call;
    conn->io = (struct loop_io){ .fn = on_conn, .user = conn };
    conn->io.fd = socket(peer->to.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (conn->io.fd < 0 || (connect(conn->io.fd, &peer->to.any, peer->len) < 0 && errno != EINPROGRESS))
        r = -errno;
    else
        address_watch(conn->io.fd, AWAY_MS, AWAY_MS);
    if (r == 0)
        r = loop_add(c->loop, &conn->io, EPOLLIN | EPOLLOUT);
    if (r < 0) {
        fd_close(conn->io.fd);
        free(conn);
        return r;
    }
    peer->n_users++;
    call->conn = conn;
    if (peer->to.any.sa_family == AF_UNIX)
        call_connected(call);           /* there is no "in progress" */
    return 0;
}

/* Over a kept connection or a new one; what fails waits for the loop. */
static void call_begin(struct call *call, bool fresh)
{
    struct conn *conn = fresh ? NULL : call->peer->idle;
    int r;

    call->reused = conn != NULL;
    call->sent = 0;
    call->send_failed = false;
    if (conn) {
        UNLINK(conn, next, at);
        call->client->n_idle--;
        conn->call = call;
        call->conn = conn;
        call_connected(call);
        return;
    }
    r = call_connect(call);
    if (r == -EAGAIN)
        call_todo(call, AGAIN_US);
    else if (r < 0)
        call->error = r == -ENOENT ? -ECONNREFUSED : r, call_todo(call, 0);
    if (!call->connected)
        call_limited(call);
}

/* ---- the answer ---- */

static struct call *call_of(llhttp_t *p)
{
    return ((struct conn *)p->data)->call;
}

static int add_to_headers(llhttp_t *p, const char *at, size_t len)
{
    struct call *call = call_of(p);

    if (!call->has_head)                /* else a trailer: read and dropped */
        buf_add(&call->headers, at, len);
    return call->headers.failed ? -1 : 0;
}

static int end_in_headers(llhttp_t *p)
{
    return add_to_headers(p, "", 1);
}

static int on_headers_complete(llhttp_t *p)
{
    struct conn *conn = p->data;
    struct call *call = conn->call;
    bool is_head = call->is_head;

    if (p->status_code < 100 || p->status_code == 101)
        return -1;                      /* no status; a switch that nobody asked for */
    if (p->status_code < 200) {         /* not yet the answer, and never with a body */
        buf_clear(&call->headers);
        return 1;
    }
    call->has_head = true;
    call->status = p->status_code;
    if (call->pub.spec.on_head)
        call->pub.spec.on_head(&call->pub, call->status, call->pub.spec.user);
    return conn->call ? is_head : -1;   /* cancelled: no further */
}

/* The pieces of one read are moved together, over the framing between them: a
 * caller that is behind then gets what came as one piece, and passes it on as
 * one. */
static int on_body(llhttp_t *p, const char *data, size_t len)
{
    struct http_client *c = ((struct conn *)p->data)->client;

    if (!c->body_len)
        c->body = (char *)data;
    else
        memmove(c->body + c->body_len, data, len);
    c->body_len += len;
    return 0;
}

/* Nothing may be taken for granted of the call afterwards. */
static void give_body(struct call *call)
{
    struct http_client *c = call->client;

    if (call->paused)
        buf_add(&call->held, c->body, c->body_len);
    else if (call->pub.spec.on_data)
        call->pub.spec.on_data(&call->pub, c->body, c->body_len, call->pub.spec.user);
}

static int on_message_complete(llhttp_t *p)
{
    struct call *call = call_of(p);

    if (p->status_code < 200)
        return 0;
    call->complete = true;
    call->keep = llhttp_should_keep_alive(p) && call->sent == call->request.len;
    return HPE_PAUSED;                  /* nothing may follow */
}

static const llhttp_settings_t settings = {
    .on_header_field = add_to_headers, .on_header_field_complete = end_in_headers,
    .on_header_value = add_to_headers, .on_header_value_complete = end_in_headers,
    .on_headers_complete = on_headers_complete, .on_body = on_body,
    .on_message_complete = on_message_complete,
};

static void call_complete(struct call *call)
{
    struct conn *conn = STEAL(call->conn);

    if (conn && call->keep)
        conn_idle(conn);
    else if (conn)
        conn_close(conn);
    call_end(call, 0, "");
}

/* The connection ended or can not be understood. A kept one that had died
 * meanwhile is replaced. */
static void call_lost(struct call *call, int error, const char *text)
{
    if (call->reused && !call->has_byte && error == -ECONNRESET) {
        conn_close(STEAL(call->conn));
        call->connected = false;
        call_begin(call, true);
        return;
    }
    call_end(call, error, text);
}

/* What was parsed last, of a connection that its callbacks may have ended. */
static void conn_parsed(struct conn *conn, bool fine, bool more)
{
    struct call *call = conn->call;

    conn->busy = false;
    if (conn->dead) {
        free(conn);
        return;
    }
    call->keep = call->keep && !more;
    if (call->held.failed)
        call_end(call, -ENOMEM, "no memory for the answer");
    else if (call->complete && !call->paused)
        call_complete(call);
    else if (call->complete)
        loop_remove(call->client->loop, &conn->io);
    else if (!fine)
        call_lost(call, call->has_head ? -ECONNRESET : -EPROTO,
                  call->has_head ? "the rest of the answer is not as HTTP has it" : "this is no HTTP");
    else if (call->paused)
        loop_remove(call->client->loop, &conn->io);
}

static void conn_feed(struct conn *conn, const char *data, size_t len)
{
    struct call *call = conn->call;
    enum llhttp_errno r;

    if (!call->has_byte) {
        llhttp_init(&conn->parser, HTTP_RESPONSE, &settings);
        conn->parser.data = conn;
        call->has_byte = true;
        call->headers.limit = HEAD_BYTES;
        if (call->sent == call->request.len) {
            call->sent = 0;             /* thousands of streams need not keep what they asked */
            buf_fini(&call->request);
        }
    }
    if (call->pub.spec.silence_us)
        call->last_byte_us = clock_mono_us();
    conn->busy = true;
    conn->client->body_len = 0;
    r = llhttp_execute(&conn->parser, data, len);
    if (!conn->dead && conn->client->body_len)
        give_body(call);
    conn_parsed(conn, r == HPE_OK, r == HPE_PAUSED && llhttp_get_error_pos(&conn->parser) != data + len);
}

static void conn_ended(struct conn *conn, const char *text)
{
    struct call *call = conn->call;

    conn->busy = true;
    if (call->has_byte)
        llhttp_finish(&conn->parser);   /* an answer without a length is whole now */
    conn->busy = false;
    call->keep = false;
    if (call->complete)
        call_complete(call);
    else
        call_lost(call, -ECONNRESET, call->has_byte && !call->has_head ? "the answer ended within its head" : text);
}

static void conn_read(struct conn *conn)
{
    struct http_client *c = conn->client;
    ssize_t n = recv(conn->io.fd, c->read, sizeof c->read, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n > 0)
        conn_feed(conn, c->read, (size_t)n);
    else
        conn_ended(conn, n < 0 ? strerror(errno)
                         : conn->call->has_byte ? "the peer ended the connection within the answer"
                                                : "the peer ended the connection without an answer");
}

static void on_conn(struct loop_io *io, uint32_t events)
{
    struct conn *conn = io->user;
    struct call *call = conn->call;
    int error = 0;
    socklen_t len = sizeof error;

    if (!call) {
        conn_close(conn);               /* idle: the peer left, or talks unasked */
        return;
    }
    if (!conn->connected) {
        getsockopt(io->fd, SOL_SOCKET, SO_ERROR, &error, &len);
        if (error)
            call_end(call, -error, strerror(error));
        else
            call_connected(call);
        return;
    }
    if (events & EPOLLOUT)
        call_send(call);
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        conn_read(conn);
}

/* ---- what waits for the loop ---- */

static void call_resume(struct call *call)
{
    struct http_client *c = call->client;
    struct conn *conn = call->conn;
    BUF_LOCAL held = call->held;

    call->held = (struct buf)BUF_INIT;
    call->last_byte_us = clock_mono_us();
    call_limited(call);
    conn->busy = true;
    if (held.len && call->pub.spec.on_data)
        call->pub.spec.on_data(&call->pub, held.data, held.len, call->pub.spec.user);
    conn->busy = false;
    if (conn->dead)
        free(conn);
    else if (call->complete && !call->paused)
        call_complete(call);
    else if (!call->paused && !conn->io.slot && loop_add(c->loop, &conn->io, EPOLLIN | EPOLLOUT) < 0)
        call_end(call, -ENOMEM, "no memory");
}

static void on_later(void *user)
{
    struct http_client *c = user;
    struct call *call, *list = c->todo;

    /* A list of its own: what is put there meanwhile is the next round's. */
    c->todo = NULL;
    if (list)
        list->todo_at = &list;
    while ((call = list)) {
        UNLINK(call, next_todo, todo_at);
        if (call->error)
            call_end(call, call->error, strerror(-call->error));
        else if (!call->conn)
            call_begin(call, call->pub.spec.fresh);
        else if (!call->paused)
            call_resume(call);
    }
}

/* ---- starting ---- */

struct url {
    const char *host, *path;            /* host: with the port, host_len bytes */
    size_t host_len;
};

/* 1: not for us. */
static int url_split(const struct http_call_spec *spec, struct url *ret)
{
    static const char scheme[] = "http://";

    for (const char *p = spec->url; *p; p++)
        if ((unsigned char)*p <= ' ' || *p == 0x7f)
            return -EINVAL;
    if (strncmp(spec->url, scheme, sizeof scheme - 1) != 0)
        return 1;
    ret->host = spec->url + sizeof scheme - 1;
    ret->host_len = strcspn(ret->host, "/?#");
    ret->path = ret->host + ret->host_len;
    if (!ret->host_len || memchr(ret->host, '@', ret->host_len) || strchr(ret->path, '#') ||
        (*ret->path && *ret->path != '/'))
        return 1;
    if (!*ret->path)
        ret->path = "/";
    return 0;
}

/* False: a name, which somebody has to look up. */
static bool peer_address(const struct http_call_spec *spec, const struct url *url, struct peer *ret)
{
    char host[64];
    const char *colon = memrchr(url->host, ':', url->host_len), *end = url->host + url->host_len;
    bool six = *url->host == '[';
    unsigned long port = 80;
    char *rest;

    if (spec->unix_path) {
        ret->to.un.sun_family = AF_UNIX;
        ret->len = sizeof ret->to.un;
        return snprintf(ret->to.un.sun_path, sizeof ret->to.un.sun_path, "%s", spec->unix_path) <
               (int)sizeof ret->to.un.sun_path;
    }
    if (colon && !(six && end[-1] == ']')) {
        port = strtoul(colon + 1, &rest, 10);
        if (rest != end || rest == colon + 1 || port == 0 || port > 65535 || colon[1] == '-' || colon[1] == '+')
            return false;
        end = colon;
    }
    if (six && end[-1] != ']')
        return false;
    if (snprintf(host, sizeof host, "%.*s", (int)(end - url->host) - 2 * six, url->host + six) >= (int)sizeof host)
        return false;
    if (six) {
        ret->to.in6.sin6_family = AF_INET6;
        ret->to.in6.sin6_port = htons((uint16_t)port);
        ret->len = sizeof ret->to.in6;
        return inet_pton(AF_INET6, host, &ret->to.in6.sin6_addr) == 1;
    }
    ret->to.in.sin_family = AF_INET;
    ret->to.in.sin_port = htons((uint16_t)port);
    ret->len = sizeof ret->to.in;
    return inet_pton(AF_INET, host, &ret->to.in.sin_addr) == 1;
}

static struct peer *peer_get(struct http_client *c, const struct peer *like)
{
    struct peer *p = c->peers;

    while (p && (p->len != like->len || memcmp(&p->to, &like->to, like->len) != 0))
        p = p->next;
    if (!p) {
        p = malloc(sizeof *p);
        if (!p)
            return NULL;
        *p = *like;
        p->next = c->peers;
        c->peers = p;
    }
    p->n_users++;
    return p;
}

/* A line "Name: value" that can stand in a head; "Name:" alone says nothing. */
static bool add_header(struct buf *out, const char *line)
{
    const char *colon = strchr(line, ':');

    if (!colon || colon == line || strpbrk(line, "\r\n"))
        return false;
    if (colon[1 + strspn(colon + 1, " \t")]) {
        buf_adds(out, line);
        buf_adds(out, "\r\n");
    }
    return true;
}

static int write_request(const struct http_call_spec *spec, const struct url *url, struct buf *out)
{
    const char *method = spec->method ? spec->method : spec->body ? "POST" : "GET";
    bool has_body = spec->body || strcmp(method, "POST") == 0 || strcmp(method, "PUT") == 0;

    if (!*method || strpbrk(method, " \t\r\n"))
        return -EINVAL;
    buf_printf(out, "%s %s HTTP/1.1\r\nHost: %.*s\r\nAccept: */*\r\n", method, url->path,
               (int)url->host_len, url->host);
    if (has_body)
        buf_printf(out, "Content-Length: %zu\r\n", spec->body ? spec->body_len : 0);
    for (const char *const *line = spec->headers; line && *line; line++)
        if (!add_header(out, *line))
            return -EINVAL;
    buf_adds(out, "\r\n");
    buf_add(out, spec->body, spec->body ? spec->body_len : 0);
    return out->failed ? -ENOMEM : 0;
}

static int call_new(struct http_client *c, const struct http_call_spec *spec, const struct url *url,
                    const struct peer *like, struct call **ret, struct err *err)
{
    struct call *call = calloc(1, sizeof *call);
    int r;

    if (!call)
        return err_set(err, -ENOMEM, "%s: no memory", spec->url);
    call->client = c;
    call->pub.spec = *spec;
    call->is_head = spec->method && strcmp(spec->method, "HEAD") == 0;
    call->start_us = call->last_byte_us = clock_mono_us();
    LINK(&c->calls, call, next, at);
    r = write_request(spec, url, &call->request);
    if (r == 0 && !(call->peer = peer_get(c, like)))
        r = -ENOMEM;
    if (r < 0) {
        call_free(call);
        return r == -ENOMEM ? err_set(err, r, "%s: no memory", spec->url)
                            : err_set(err, r, "%s: a header that cannot be sent", spec->url);
    }
    *ret = call;
    return 0;
}

int http_call_start(struct http_client *c, const struct http_call_spec *spec, struct http_call **ret,
                    struct err *err)
{
    struct url url = { 0 };
    struct peer like = { 0 };
    struct call *call = NULL;
    int r = url_split(spec, &url);

    if (r < 0)
        return err_set(err, -EINVAL, "%s: no URL", spec->url);
    if (r == 0 && !peer_address(spec, &url, &like))
        r = 1;
    if (r == 1) {
        if (!c->curl && (r = curl_side_open(c->loop, &c->curl, err)) < 0)
            return r;
        return curl_call_start(c->curl, spec, ret, err);
    }
    r = call_new(c, spec, &url, &like, &call, err);
    if (r < 0)
        return r;
    *ret = &call->pub;
    call_begin(call, spec->fresh);
    return 0;
}

void http_call_cancel(struct http_call *pub)
{
    struct call *call = (struct call *)pub;

    if (pub->by_curl)
        curl_call_cancel(pub);
    else if (!call->ending)
        call_free(call);
}

void http_call_pause(struct http_call *pub, bool pause)
{
    struct call *call = (struct call *)pub;

    if (pub->by_curl) {
        curl_call_pause(pub, pause);
        return;
    }
    if (call->paused == pause || call->ending)
        return;
    call->paused = pause;
    if (!call->conn)
        return;
    if (!pause)
        call_todo(call, 0);
    else if (!call->conn->busy && call->connected)
        loop_remove(call->client->loop, &call->conn->io);   /* else its end would be told without end */
}

const char *http_call_header(struct http_call *pub, const char *name)
{
    const struct call *call = (struct call *)pub;
    const char *at, *end;

    if (pub->by_curl)
        return curl_call_header(pub, name);
    at = call->has_head ? buf_str(&call->headers) : "";
    end = at + (call->has_head ? call->headers.len : 0);
    while (at < end) {
        const char *value = at + strlen(at) + 1;

        if (strcasecmp(at, name) == 0)
            return value;
        at = value + strlen(value) + 1;
    }
    return NULL;
}

/* ---- the client ---- */

int http_client_open(struct loop *l, struct http_client **ret, struct err *err)
{
    CLEANUP(http_client_close) struct http_client *c = calloc(1, sizeof *c);

    if (c) {
        c->loop = l;
        c->limits_us = UINT64_MAX;
    }
    if (!c || loop_timer_new(l, on_limits, c, &c->limits) < 0 ||
        loop_timer_new(l, on_later, c, &c->later) < 0 || loop_timer_new(l, on_sweep, c, &c->sweep) < 0)
        return err_set(err, -ENOMEM, "HTTP client: no memory");
    *ret = STEAL(c);
    return 0;
}

void http_client_close(struct http_client *c)
{
    if (!c)
        return;
    while (c->calls)
        call_free(c->calls);
    while (c->peers)                    /* only idle connections are left, and a peer goes with its last */
        conn_close(c->peers->idle);
    curl_side_close(c->curl);
    loop_timer_free(c->limits);
    loop_timer_free(c->later);
    loop_timer_free(c->sweep);
    free(c);
}
