/* Connections, their deadlines, and the order of things.
 *
 * A connection is in one state at a time (enum conn_state), and its request
 * lives from the end of its head until its answer is out. A connection that
 * closes is only unlinked; its memory goes once no function of the server is
 * on the stack, so any callback may end any request.
 *
 * One sweep every 250 ms holds all deadlines: they are absolute, so a client
 * that sends a byte now and then gains nothing.
 */
#include "ipc/http_server.h"

#include "base/clock.h"
#include "base/err.h"
#include "ipc/address.h"
#include "ipc/http_conn.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>

enum {
    SWEEP_US = 250000,
    LINGER_US = 2000000,
    ACCEPT_BUDGET = 64,         /* connections a turn, so that those there are served too */
    REFUSED_MAX = 256,          /* connections over max_conns that are being told so */
    TELL_US = 60000000,
    UNROUTED_BODY = 65536,      /* what is read of a body that nobody wants, to keep the connection */
};

struct listener {
    struct listener *next;
    struct loop_io io;
    struct http_server *server;
};

static void conn_done(struct http_conn *c);

/* ---- life of a connection ---- */

void server_enter(struct http_server *s)
{
    s->depth++;
}

static void server_free(struct http_server *s)
{
    loop_timer_free(s->tick);
    fd_close(s->reserve_fd);
    buf_fini(&s->head);
    free(s);
}

void server_leave(struct http_server *s)
{
    if (--s->depth)
        return;
    while (s->dead) {
        struct http_conn *c = s->dead;

        s->dead = c->next_dead;
        free(c);
    }
    if (s->closed)
        server_free(s);
}

static void listeners_arm(struct http_server *s, bool pause)
{
    s->listeners_paused = pause;
    for (struct listener *l = s->listeners; l; l = l->next)
        loop_arm(s->loop, &l->io, pause ? 0 : EPOLLIN);
}

/* A drain is over once only lingering connections are left. */
static void check_drained(struct http_server *s)
{
    if (s->draining && s->drain_done && s->n_conns == s->n_linger)
        loop_timer_set(s->tick, 0);
}

static void conn_close(struct http_conn *c)
{
    struct http_server *s = c->server;

    if (c->state == CONN_DEAD)
        return;
    loop_remove(s->loop, &c->io);
    close(c->io.fd);
    buf_fini(&c->in);
    buf_fini(&c->out);
    c->out_done = 0;
    s->n_linger -= c->state == CONN_LINGER;
    s->n_conns--;
    c->state = CONN_DEAD;
    /* c->next stays: a walk over the list may stand here */
    if (c->prev)
        c->prev->next = c->next;
    else
        s->conns = c->next;
    if (c->next)
        c->next->prev = c->prev;
    c->next_dead = s->dead;
    s->dead = c;
    check_drained(s);
}

/* Ends with a reset: nothing waits in the kernel for a client that does not
 * read, and one that reads an unframed stream can tell that it was cut. */
static void conn_reset(struct http_conn *c)
{
    const struct linger now = { .l_onoff = 1 };

    if (c->state == CONN_DEAD)
        return;
    setsockopt(c->io.fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    conn_close(c);
}

/* What the loop should tell: reading only where bytes are wanted, but the
 * client's end always. While a request is in work reading stays armed until a
 * byte really comes, which saves two system calls for each request. */
static void conn_arm(struct http_conn *c)
{
    uint32_t events = EPOLLIN | EPOLLRDHUP;

    if (c->state == CONN_DEAD)
        return;
    if (c->broken) {
        events |= EPOLLOUT;             /* comes at once, and ends it */
    } else {
        if (c->mute_in || c->kick)
            events &= ~(uint32_t)EPOLLIN;
        if (c->mute_hup || c->kick)
            events &= ~(uint32_t)EPOLLRDHUP;
        if ((conn_waiting(c) && !c->gathered) || c->kick)
            events |= EPOLLOUT;
    }
    loop_arm(c->server->loop, &c->io, events);
}

static void request_end(struct http_conn *c, bool gone)
{
    struct http_server *s = c->server;
    struct request *r = c->req;
    void (*callback)(struct http_request *) = gone ? r->pub.on_gone : r->pub.on_done;

    c->req = NULL;
    r->over = true;
    r->pub.cut = r->pub.cut || gone;
    if (gone && !r->pub.status)
        r->pub.status = 499;
    s->n_active -= r->in_work;
    if (s->config.access)
        s->config.access(&r->pub, s->config.user);
    if (callback)
        callback(&r->pub);
    request_free(r);
}

static void conn_gone(struct http_conn *c)
{
    if (c->state == CONN_DEAD)
        return;
    if (c->req)
        request_end(c, true);
    conn_close(c);
}

/* Closing a socket with unread bytes sends a reset, which can destroy the
 * answer on its way: so the end is sent first, and the rest is read until the
 * client has closed or its time is up. */
static void conn_linger(struct http_conn *c)
{
    struct http_server *s = c->server;
    char junk[4096];            /* s->read may hold what another connection is at */
    ssize_t n;

    buf_fini(&c->in);
    c->kick = c->mute_in = c->mute_hup = false;
    if (shutdown(c->io.fd, SHUT_WR) < 0) {
        conn_close(c);
        return;
    }
    c->state = CONN_LINGER;
    s->n_linger++;
    check_drained(s);
    c->deadline_us = clock_mono_us() + LINGER_US;
    n = recv(c->io.fd, junk, sizeof junk, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        conn_close(c);
    else
        conn_arm(c);
}

static void conn_idle(struct http_conn *c)
{
    struct http_server *s = c->server;

    c->state = CONN_IDLE;
    c->asked = true;
    c->deadline_us = clock_mono_us() + (s->draining ? s->grace_us : s->config.limits.idle_us);
    c->kick = c->in.len > 0;
    c->mute_in = c->mute_hup = false;
    c->scan = (struct head_scan){ 0 };
    conn_arm(c);
}

/* ---- writing ---- */

/* What is written while the server gathers lies in c->out until the round
 * ends. A chunk stays open for more; its size then takes the place of the zeros
 * in front of it, of which those that are left may lead it (RFC 9112, 7.1). */
static const char open_size[] = "00000000\r\n";

static void chunk_end(struct http_conn *c)
{
    size_t size = c->out.len - c->chunk_at - (sizeof open_size - 1);

    if (!c->chunk_open)
        return;
    c->chunk_open = false;
    buf_adds(&c->out, "\r\n");
    if (c->out.failed) {
        c->broken = true;
        return;
    }
    for (char *digit = c->out.data + c->chunk_at + 8; size; size >>= 4)
        *--digit = "0123456789abcdef"[size & 15];
}

static void drop_sent(struct http_conn *c)
{
    if (c->out_done <= c->out.len / 2)
        return;
    buf_drop(&c->out, c->out_done);
    c->out_done = 0;
}

static void conn_gather(struct http_conn *c)
{
    struct http_server *s = c->server;

    if (!conn_waiting(c))
        c->stall_us = clock_mono_us() + s->config.limits.stall_us;
    if (c->gathered)
        return;
    drop_sent(c);
    c->gathered = true;
    c->next_gathered = s->gathered;
    s->gathered = c;
}

/* The size line of a chunk, at the end of the 18 bytes; printf would be a tenth
 * of what an event costs. */
static struct iovec chunk_size(char line[18], size_t len)
{
    char *at = line + 18;

    *--at = '\n';
    *--at = '\r';
    do
        *--at = "0123456789abcdef"[len & 15];
    while (len >>= 4);
    return (struct iovec){ at, (size_t)(line + 18 - at) };
}

void conn_send_chunk(struct http_conn *c, const void *data, size_t len)
{
    char size[18];

    if (c->server->gathering && !c->broken && c->state != CONN_DEAD) {
        conn_gather(c);
        if (!c->chunk_open) {
            c->chunk_open = true;
            c->chunk_at = c->out.len;
            buf_adds(&c->out, open_size);
        }
        buf_add(&c->out, data, len);
        c->broken = c->out.failed;
        return;
    }
    conn_send(c, (struct iovec[]){ chunk_size(size, len), { (void *)data, len }, { "\r\n", 2 } }, 3);
}

void conn_send(struct http_conn *c, struct iovec *parts, int n_parts)
{
    struct msghdr msg = { .msg_iov = parts, .msg_iovlen = (size_t)n_parts };
    ssize_t n = 0;

    if (c->broken || c->state == CONN_DEAD)
        return;
    if (c->server->gathering) {
        conn_gather(c);
        chunk_end(c);
    } else if (!conn_waiting(c)) {
        do
            n = sendmsg(c->io.fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
        while (n < 0 && errno == EINTR);
        if (n < 0 && errno != EAGAIN)
            c->broken = true;
        if (n < 0)
            n = 0;
        c->stall_us = clock_mono_us() + c->server->config.limits.stall_us;
    }
    if (!c->gathered)
        drop_sent(c);
    for (int i = 0; i < n_parts && !c->broken; i++) {
        size_t sent = (size_t)n < parts[i].iov_len ? (size_t)n : parts[i].iov_len;

        n -= (ssize_t)sent;
        if (sent < parts[i].iov_len)
            buf_add(&c->out, (char *)parts[i].iov_base + sent, parts[i].iov_len - sent);
    }
    if (c->out.failed)
        c->broken = true;
    if (c->broken || (conn_waiting(c) && !c->gathered))
        conn_arm(c);
}

/* Sends what waits; tells the writer and ends the answer when it is time. */
static void conn_flush(struct http_conn *c)
{
    struct http_server *s = c->server;

    chunk_end(c);
    while (conn_waiting(c) && !c->broken) {
        ssize_t n = send(c->io.fd, c->out.data + c->out_done, conn_waiting(c), MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            c->broken = errno != EAGAIN;
            break;
        }
        c->out_done += (size_t)n;
        c->stall_us = clock_mono_us() + s->config.limits.stall_us;
    }
    if (c->broken)
        return;
    if (!conn_waiting(c)) {
        buf_fini(&c->out);
        c->out_done = 0;
        if (c->state == CONN_FLUSH) {
            conn_done(c);
            return;
        }
    }
    if (c->req && c->req->full && conn_waiting(c) <= s->config.limits.low_water) {
        c->req->full = false;
        if (c->req->pub.on_drain)
            c->req->pub.on_drain(&c->req->pub);
    }
}

/* The last byte of an answer is with the socket. */
static void conn_done(struct http_conn *c)
{
    if (c->req)
        request_end(c, false);
    if (c->state == CONN_DEAD)
        return;
    if (c->close || (c->server->draining && !c->server->grace_us))
        conn_linger(c);
    else
        conn_idle(c);
}

void conn_answered(struct http_conn *c)
{
    c->req->answered = true;
    c->req->full = false;
    c->state = CONN_FLUSH;
    c->deadline_us = UINT64_MAX;
    if (c->gathered && !c->broken)
        return;
    if (c->broken || conn_waiting(c))
        conn_arm(c);
    else
        conn_done(c);
}

static void round_begins(void *user)
{
    struct http_server *s = user;

    server_enter(s);            /* nothing that is gathered is freed */
    s->gathering = true;
}

static void round_ends(void *user)
{
    struct http_server *s = user;
    struct http_conn *c = s->gathered;

    if (!s->gathering)
        return;
    s->gathering = false;
    s->gathered = NULL;
    while (c) {
        struct http_conn *next = c->next_gathered;

        c->gathered = false;
        if (c->state != CONN_DEAD) {
            if (!(c->io.events & EPOLLOUT))     /* else the loop will tell */
                conn_flush(c);
            chunk_end(c);
            conn_arm(c);
        }
        c = next;
    }
    server_leave(s);
}

void http_server_gather(struct http_server *s)
{
    s->gathers = true;
    loop_rounds(s->loop, round_begins, round_ends, s);
}

void conn_cut(struct http_conn *c)
{
    bool reset = c->req->streaming && !c->req->chunked_answer;

    c->req->pub.cut = true;
    c->close = true;
    request_end(c, false);
    if (c->state == CONN_DEAD)
        return;
    c->state = CONN_FLUSH;
    c->deadline_us = UINT64_MAX;
    if (reset || c->broken)
        conn_reset(c);
    else if (conn_waiting(c))
        conn_arm(c);
    else
        conn_linger(c);
}

/* ---- requests ---- */

static void conn_error(struct http_conn *c, int status, const char *detail)
{
    c->close = true;
    if (!c->req)
        c->req = request_new(c);
    if (c->req)
        request_answer_error(c->req, status, detail);
    else
        conn_close(c);
}

static bool path_matches(const char *pattern, const char *path)
{
    size_t len = strlen(pattern);

    if (len >= 2 && pattern[len - 2] == '/' && pattern[len - 1] == '*')
        return strncmp(pattern, path, len - 1) == 0;
    return strcmp(pattern, path) == 0;
}

static bool method_matches(const char *allowed, const char *method)
{
    return !allowed || strcmp(allowed, method) == 0 ||
           (strcmp(method, "HEAD") == 0 && strcmp(allowed, "GET") == 0);
}

static void allow_method(struct buf *allow, const char *method)
{
    const char *at = allow->len ? strstr(allow->data, method) : NULL;

    if (at)
        return;
    buf_printf(allow, "%s%s", allow->len ? ", " : "", method);
}

/* Finds who answers r, or with which status the server does it itself. */
static void find_route(struct http_server *s, struct request *r)
{
    BUF_LOCAL allow = BUF_INIT;
    bool all = strcmp(r->pub.path, "*") == 0;       /* OPTIONS * asks about the server */

    for (size_t i = 0; i < s->config.n_routes; i++) {
        const struct http_route *route = &s->config.routes[i];

        if (!all && !path_matches(route->path, r->pub.path))
            continue;
        if (!all && method_matches(route->method, r->pub.method)) {
            r->route = route;
            return;
        }
        if (route->method)
            allow_method(&allow, route->method);
        if (route->method && strcmp(route->method, "GET") == 0)
            allow_method(&allow, "HEAD");
    }
    if (!allow.len && !all) {
        r->route_status = 404;
        return;
    }
    allow_method(&allow, "OPTIONS");
    r->route_status = strcmp(r->pub.method, "OPTIONS") == 0 ? 204 : 405;
    http_add_header(&r->pub, "Allow", buf_str(&allow));
}

static void answer_unrouted(struct http_conn *c)
{
    struct request *r = c->req;

    if (r->route_status == 204)
        http_reply(&r->pub, 204, NULL, NULL, 0);
    else
        request_answer_error(r, r->route_status, r->route_status == 404 ? "Not Found" : "Method Not Allowed");
}

static void dispatch(struct http_conn *c)
{
    struct http_server *s = c->server;
    struct request *r = c->req;

    r->pub.body = buf_str(&r->body);
    r->pub.body_len = r->body.len;
    c->state = CONN_WORK;
    c->deadline_us = UINT64_MAX;
    r->in_work = true;
    s->n_active++;
    if (r->route)
        r->route->fn(&r->pub, s->config.user);      /* may free r */
    else
        answer_unrouted(c);
}

/* The head is parsed: decides what happens to the body before a byte of it is
 * taken. `more` says whether bytes of it are there already. */
static void begin_request(struct http_conn *c, bool more)
{
    static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
    struct http_server *s = c->server;
    struct request *r = c->req;
    const char *expect = http_header(&r->pub, "expect");
    size_t limit = s->config.limits.body_bytes;

    find_route(s, r);
    if (r->route && r->route->body_bytes)
        limit = r->route->body_bytes;
    else if (!r->route && limit > UNROUTED_BODY)
        limit = UNROUTED_BODY;
    r->body.limit = limit;

    if (expect && strcasecmp(expect, "100-continue") != 0) {
        conn_error(c, 417, "Expectation not supported");
    } else if (r->complete) {
        dispatch(c);
    } else if (!r->route && (r->content_length > limit || (expect && !more))) {
        c->close = true;
        answer_unrouted(c);
    } else if (r->content_length > limit) {
        conn_error(c, 413, "Request body too large");
    } else {
        c->state = CONN_BODY;
        c->deadline_us = clock_mono_us() + s->config.limits.body_us;
        if (expect && !more && !r->http10)
            conn_send(c, &(struct iovec){ (void *)go_on, sizeof go_on - 1 }, 1);
    }
}

static bool is_reading(const struct http_conn *c)
{
    return c->state == CONN_IDLE || c->state == CONN_HEAD || c->state == CONN_BODY;
}

/* Takes a head from the bytes; *used counts up. False: more bytes are needed. */
static bool take_head(struct http_conn *c, const char *data, size_t len, size_t *used)
{
    const struct http_limits *limits = &c->server->config.limits;
    const char *fault = NULL;
    int n, status;

    if (c->state == CONN_IDLE) {
        /* RFC 9112, 2.2: an empty line in front of a request is forgiven. */
        if (data[0] == '\r' && (len == 1 || data[1] == '\n')) {
            *used += len == 1 ? 0 : 2;
            return len > 2;
        }
        c->state = CONN_HEAD;
        c->start_us = clock_mono_us();
        c->deadline_us = c->start_us + limits->header_us;
        c->scan = (struct head_scan){ 0 };
    }
    n = head_scan(&c->scan, data, len, limits->header_bytes, &fault);
    if (n == HEAD_MORE)
        return false;
    if (n < 0) {
        conn_error(c, -n, fault);
        return true;
    }
    *used += (size_t)n;
    c->req = request_new(c);
    if (!c->req) {
        conn_close(c);
        return true;
    }
    status = request_parse_head(c->req, data, (size_t)n, c->scan.n_lines, limits->n_headers);
    if (status)
        conn_error(c, status, c->req->fault);
    else
        begin_request(c, len > (size_t)n);
    return true;
}

static void take_body(struct http_conn *c, const char *data, size_t len, size_t *used)
{
    size_t n;
    int r = request_parse_body(c->req, data, len, &n);

    *used += n;
    if (r == BODY_DONE)
        dispatch(c);
    else if (r < 0)
        conn_error(c, -r, c->req->fault);
}

/* Works through bytes until they end or a request is in work; returns how many
 * are done with. */
static size_t conn_parse(struct http_conn *c, const char *data, size_t len)
{
    size_t used = 0;

    while (used < len && is_reading(c) && !c->broken) {
        if (c->state == CONN_BODY)
            take_body(c, data + used, len - used, &used);
        else if (!take_head(c, data + used, len - used, &used))
            break;
    }
    return used;
}

static void conn_feed(struct http_conn *c, const char *data, size_t len)
{
    bool kept = c->in.len > 0;
    size_t used;

    c->kick = false;
    if (kept) {
        buf_add(&c->in, data, len);
        if (c->in.failed) {
            conn_gone(c);
            return;
        }
        data = c->in.data;
        len = c->in.len;
    }
    used = conn_parse(c, data, len);
    if (c->state == CONN_DEAD || c->state == CONN_LINGER)
        return;
    if (kept)
        buf_drop(&c->in, used);
    else if (used < len)
        buf_add(&c->in, data + used, len - used);
    if (c->in.failed)
        c->broken = true;
    if (!c->in.len)
        buf_fini(&c->in);
    conn_arm(c);
}

/* ---- events ---- */

/* From the loop only: s->read is shared. */
static void conn_read(struct http_conn *c)
{
    struct http_server *s = c->server;
    ssize_t n = recv(c->io.fd, s->read, sizeof s->read, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0)
        conn_gone(c);
    else if (c->state != CONN_LINGER)
        conn_feed(c, s->read, (size_t)n);
}

static void on_conn(struct loop_io *io, uint32_t events)
{
    struct http_conn *c = io->user;
    struct http_server *s = c->server;

    server_enter(s);
    if (c->broken || (events & (EPOLLERR | EPOLLHUP) && !(is_reading(c) && events & EPOLLIN))) {
        conn_gone(c);
        goto out;
    }
    if (events & EPOLLOUT) {
        conn_flush(c);
        if (c->state != CONN_DEAD && c->kick && is_reading(c) && !c->broken)
            conn_feed(c, NULL, 0);
    }
    if (c->state == CONN_DEAD)
        goto out;
    if (events & (EPOLLIN | EPOLLRDHUP)) {
        if ((is_reading(c) && !c->kick) || c->state == CONN_LINGER) {
            conn_read(c);
        } else if (c->state == CONN_WORK && events & EPOLLRDHUP) {
            conn_gone(c);
        } else {
            /* A whole answer is on its way also to who has said all it will. */
            c->mute_in = true;
            c->mute_hup = c->state == CONN_FLUSH;
        }
    }
    conn_arm(c);
out:
    server_leave(s);
}

static void describe_peer(int fd, char *text, size_t size)
{
    union {
        struct sockaddr any;
        struct sockaddr_in in;
        struct sockaddr_in6 in6;
        struct sockaddr_un un;
    } sa = { 0 };
    socklen_t len = sizeof sa;
    char host[INET6_ADDRSTRLEN];

    if (getpeername(fd, &sa.any, &len) == 0 && sa.any.sa_family == AF_INET &&
        inet_ntop(AF_INET, &sa.in.sin_addr, host, sizeof host))
        snprintf(text, size, "%s:%u", host, ntohs(sa.in.sin_port));
    else if (sa.any.sa_family == AF_INET6 && inet_ntop(AF_INET6, &sa.in6.sin6_addr, host, sizeof host))
        snprintf(text, size, "[%s]:%u", host, ntohs(sa.in6.sin6_port));
    else
        snprintf(text, size, "unix");
}

/* Takes over fd; NULL and fd closed when memory is gone. */
static struct http_conn *conn_new(struct http_server *s, int fd)
{
    struct http_conn *c = calloc(1, sizeof *c);

    if (!c) {
        close(fd);
        return NULL;
    }
    c->server = s;
    c->io = (struct loop_io){ .fd = fd, .fn = on_conn, .user = c };
    c->start_us = clock_mono_us();
    c->deadline_us = c->start_us + s->config.limits.header_us;
    describe_peer(fd, c->peer, sizeof c->peer);
    if (loop_add(s->loop, &c->io, EPOLLIN | EPOLLRDHUP) < 0) {
        close(fd);
        free(c);
        return NULL;
    }
    c->next = s->conns;
    if (c->next)
        c->next->prev = c;
    s->conns = c;
    if (s->n_conns++ == 0)
        loop_timer_set(s->tick, SWEEP_US);
    return c;
}

static bool is_full(const struct http_server *s)
{
    return s->n_conns - s->n_linger >= s->config.limits.max_conns;
}

static void conn_accepted(struct http_server *s, int fd)
{
    bool refuse = is_full(s);
    struct http_conn *c = conn_new(s, fd);

    if (!c || !refuse)
        return;
    c->req = request_new(c);
    if (c->req)
        http_add_header(&c->req->pub, "Retry-After", "1");
    conn_error(c, 503, "Too many connections");
}

static void tell_short(struct http_server *s, int error)
{
    uint64_t now = clock_mono_us();

    if (!s->config.shortage || (s->told_us && now - s->told_us < TELL_US))
        return;
    s->told_us = now;
    s->config.shortage(error, s->config.user);
}

/* Out of descriptors: the one kept for this is given up for a moment, so that
 * the client is told instead of left waiting. False: even so it could not be
 * accepted. */
static bool refuse_without_fd(struct http_server *s, int listen_fd)
{
    static const char busy[] = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n"
                               "Content-Length: 0\r\nConnection: close\r\n\r\n";
    int fd;

    fd_close(STEAL_FD(s->reserve_fd));
    fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
        if (send(fd, busy, sizeof busy - 1, MSG_NOSIGNAL) > 0)
            shutdown(fd, SHUT_WR);
        while (recv(fd, s->read, sizeof s->read, MSG_DONTWAIT) > 0) { }    /* else the close is a reset */
        close(fd);
    }
    s->reserve_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return fd >= 0;
}

static void accept_some(struct http_server *s, int listen_fd, int most)
{
    for (int i = 0; i < most && !s->draining && !s->closed; i++) {
        int fd;

        if (s->n_conns >= (size_t)s->config.limits.max_conns + REFUSED_MAX) {
            listeners_arm(s, true);
            break;
        }
        fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            conn_accepted(s, fd);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            tell_short(s, -errno);
            if (refuse_without_fd(s, listen_fd))
                continue;
            listeners_arm(s, true);             /* until the next sweep */
            loop_timer_set(s->tick, SWEEP_US);
            break;
        } else if (errno == EAGAIN) {
            break;
        }
    }
}

/* Of a shared socket EPOLLEXCLUSIVE would wake one process only, but not through
 * an epoll that lies within another: so all that have time look, the first one
 * gets the connection, and the others' look costs them some microseconds. */
static void on_listener(struct loop_io *io, uint32_t events)
{
    struct listener *l = io->user;
    struct http_server *s = l->server;
    bool shared = s->config.limits.shared;

    server_enter(s);
    if (shared && is_full(s))
        listeners_arm(s, true);         /* until a sweep finds that it has room */
    else
        accept_some(s, io->fd, shared ? 1 : ACCEPT_BUDGET);
    server_leave(s);
}

/* Its time is up, but a request may have arrived that nobody has read yet. */
static void conn_retire(struct http_conn *c)
{
    if (!c->kick)
        conn_read(c);
    if (c->state == CONN_IDLE && !c->kick)
        conn_gone(c);
}

static void conn_sweep(struct http_conn *c, uint64_t now)
{
    if (c->broken) {
        conn_gone(c);
    } else if (conn_waiting(c) && now > c->stall_us) {
        if (c->req)
            request_end(c, true);
        conn_reset(c);
    } else if (now <= c->deadline_us) {
        return;
    } else if (c->state == CONN_HEAD) {
        conn_error(c, 408, "Request header timed out");
    } else if (c->state == CONN_BODY) {
        conn_error(c, 408, "Request body timed out");
    } else if (c->state == CONN_IDLE) {
        conn_retire(c);
    } else {
        conn_gone(c);
    }
}

/* What others who share the sockets have left as well. */
static void accept_left(struct http_server *s)
{
    for (struct listener *l = s->listeners, *next; l && !s->closed && !s->draining; l = next) {
        next = l->next;
        accept_some(s, l->io.fd, ACCEPT_BUDGET);
    }
}

static void on_tick(void *user)
{
    struct http_server *s = user;
    uint64_t now = clock_mono_us();

    server_enter(s);
    for (struct http_conn *c = s->conns; c; c = c->next)
        if (c->state != CONN_DEAD)
            conn_sweep(c, now);
    if (s->listeners_paused && s->config.limits.shared && is_full(s))
        accept_left(s);
    else if (s->listeners_paused && !s->closed)
        listeners_arm(s, false);
    if (s->draining && s->drain_done && s->n_conns == s->n_linger && !s->closed) {
        void (*done)(void *) = s->drain_done;

        s->drain_done = NULL;
        done(s->drain_user);
    }
    if (s->n_conns && !s->closed)
        loop_timer_set(s->tick, SWEEP_US);
    server_leave(s);
}

/* ---- the server ---- */

static void fill_limits(struct http_limits *l)
{
#define DEFAULT(field, value) if (!l->field) l->field = (value)
    DEFAULT(max_conns, 10000);
    DEFAULT(header_bytes, 16384);
    DEFAULT(n_headers, 100);
    DEFAULT(body_bytes, 32u << 20);
    DEFAULT(header_us, 10000000);
    DEFAULT(body_us, 60000000);
    DEFAULT(idle_us, 75000000);
    DEFAULT(stall_us, 60000000);
    DEFAULT(high_water, 256u << 10);
    DEFAULT(low_water, 64u << 10);
#undef DEFAULT
}

void http_server_set_limits(struct http_server *s, const struct http_limits *limits)
{
    s->config.limits = *limits;
    fill_limits(&s->config.limits);
}

int http_server_open(struct loop *l, const struct http_config *config, struct http_server **ret,
                     struct err *err)
{
    struct http_server *s = calloc(1, sizeof *s);
    int r = -ENOMEM;

    if (s) {
        s->loop = l;
        s->config = *config;
        fill_limits(&s->config.limits);
        s->reserve_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        r = loop_timer_new(l, on_tick, s, &s->tick);
    }
    if (r < 0) {
        if (s)
            server_free(s);
        return err_errno(err, r, "HTTP server");
    }
    *ret = s;
    return 0;
}

static void close_listeners(struct http_server *s)
{
    while (s->listeners) {
        struct listener *l = s->listeners;

        s->listeners = l->next;
        loop_remove(s->loop, &l->io);
        close(l->io.fd);
        free(l);
    }
}

void http_server_close(struct http_server *s)
{
    if (!s || s->closed)
        return;
    server_enter(s);
    if (s->gathers) {
        loop_rounds(s->loop, NULL, NULL, NULL);
        round_ends(s);          /* the last words of this one */
    }
    s->closed = true;
    close_listeners(s);
    for (struct http_conn *c = s->conns; c; c = c->next)
        conn_gone(c);
    server_leave(s);
}

static socklen_t unix_path(int fd, struct sockaddr_un *ret)
{
    socklen_t len = sizeof *ret;

    if (getsockname(fd, (struct sockaddr *)ret, &len) < 0 || ret->sun_family != AF_UNIX)
        return 0;
    return len;
}

/* Ends the listener whose path now leads to `fd`. */
static void replace_listener(struct http_server *s, int fd)
{
    struct sockaddr_un ours, theirs;
    socklen_t len = unix_path(fd, &ours);

    for (struct listener **at = &s->listeners, *l; len && (l = *at); at = &l->next) {
        if (unix_path(l->io.fd, &theirs) != len || memcmp(&ours, &theirs, len) != 0)
            continue;
        on_listener(&l->io, EPOLLIN);
        *at = l->next;
        loop_remove(s->loop, &l->io);
        close(l->io.fd);
        free(l);
        return;
    }
}

enum { SILENT_MS = 120000 };

int http_server_listen(struct http_server *s, int fd, struct err *err)
{
    struct listener *l = NULL;
    int r;

    if (s->draining) {
        close(fd);
        return 0;
    }
    replace_listener(s, fd);
    l = calloc(1, sizeof *l);
    if (!l)
        return err_set(err, -ENOMEM, "HTTP server: no memory");
    l->server = s;
    l->io = (struct loop_io){ .fd = fd, .fn = on_listener, .user = l };
    r = fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) < 0 ? -errno : loop_add(s->loop, &l->io, EPOLLIN);
    if (r < 0) {
        free(l);
        return err_errno(err, r, "HTTP server: listening socket %d", fd);
    }
    address_watch(fd, SILENT_MS, (unsigned)(s->config.limits.stall_us / 1000));
    l->next = s->listeners;
    s->listeners = l;
    return 0;
}

int http_server_adopt(struct http_server *s, int fd, struct err *err)
{
    return conn_new(s, fd) ? 0 : err_set(err, -ENOMEM, "HTTP server: cannot take connection %d", fd);
}

/* Idle ones end with their grace at the latest. */
static void shorten_idle(struct http_server *s)
{
    uint64_t now = clock_mono_us();

    for (struct http_conn *c = s->conns; c; c = c->next) {
        uint64_t end = now + s->grace_us * (c->asked ? 1 : HTTP_FRESH_GRACE);

        if (c->state == CONN_IDLE && (c->deadline_us > end || !s->grace_us))
            c->deadline_us = s->grace_us ? end : 0;
    }
}

void http_server_drain(struct http_server *s, uint64_t grace_us, void (*done)(void *user),
                       void *user)
{
    if (s->draining)
        return;
    s->draining = true;
    s->grace_us = grace_us;
    s->drain_done = done;
    s->drain_user = user;
    close_listeners(s);
    shorten_idle(s);
    loop_timer_set(s->tick, 0);
}

size_t http_server_conns(const struct http_server *s)
{
    return s->n_conns;
}

size_t http_server_active(const struct http_server *s)
{
    return s->n_active;
}
