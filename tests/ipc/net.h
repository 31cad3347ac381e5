/* net.h - a loop, a server on it and raw clients, all driven by the test's own
 * thread: wait_for(condition) turns the loop and reads the clients until the
 * condition holds.
 */
#ifndef TESTS_IPC_NET_H
#define TESTS_IPC_NET_H

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "ipc/address.h"
#include "ipc/http_server.h"
#include "ipc/loop.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

enum { MAX_CLIENTS = 512 };

struct client {
    int fd;                     /* -1: not open */
    struct buf got;
    bool eof;
    int error;                  /* errno of the read that ended it */
    bool deaf;                  /* does not read */
};

static struct loop *loop;
static struct http_server *server;
static struct address tcp;
static struct client clients[MAX_CLIENTS];
static struct err err;
static bool in_loop;            /* what runs is not the test itself */

static inline void client_pump(struct client *c)
{
    char bytes[65536];
    ssize_t n;

    while (c->fd >= 0 && !c->eof && !c->deaf && (n = recv(c->fd, bytes, sizeof bytes, MSG_DONTWAIT)) != -1) {
        if (n == 0)
            c->eof = true;
        else
            buf_add(&c->got, bytes, (size_t)n);
    }
    if (c->fd >= 0 && !c->eof && !c->deaf && errno != EAGAIN) {
        c->eof = true;
        c->error = errno;
    }
}

static inline void turn(uint64_t us)
{
    int r;

    in_loop = true;
    r = sd_event_run(loop_event(loop), us);
    in_loop = false;
    cr_assert(ge(int, r, 0));
    for (int i = 0; i < MAX_CLIENTS; i++)
        if (clients[i].fd > 0)
            client_pump(&clients[i]);
}

#define wait_for(condition)                                                                        \
    do {                                                                                           \
        uint64_t until_ = clock_mono_us() + 120000000;                                             \
        while (!(condition)) {                                                                     \
            turn(5000);                                                                            \
            cr_assert(lt(u64, clock_mono_us(), until_), "never: %s", #condition);                  \
        }                                                                                          \
    } while (0)

static inline struct client *client_open(void)
{
    for (int i = 0; i < MAX_CLIENTS; i++) {
        struct client *c = &clients[i];

        if (c->fd > 0)
            continue;
        *c = (struct client){ .fd = -1 };
        cr_assert(zero(int, address_connect(&tcp, &c->fd, &err)), "%s", err_text(&err));
        return c;
    }
    cr_fatal("too many clients");
}

static inline void client_close(struct client *c)
{
    close(c->fd);
    buf_fini(&c->got);
    *c = (struct client){ .fd = -1 };
}

static inline void client_send(struct client *c, const char *data, size_t len)
{
    while (len) {
        ssize_t n = send(c->fd, data, len, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0 && errno == EAGAIN) {
            turn(1000);
            continue;
        }
        if (n < 0)
            return;             /* the server closed: the test looks at what it said */
        data += n;
        len -= (size_t)n;
    }
}

static inline void client_says(struct client *c, const char *text)
{
    client_send(c, text, strlen(text));
}

static inline size_t count_of(const struct client *c, const char *what)
{
    size_t n = 0;
    const char *at = c->got.len ? c->got.data : "", *end = at + c->got.len;

    while ((at = memmem(at, (size_t)(end - at), what, strlen(what)))) {
        n++;
        at += strlen(what);
    }
    return n;
}

static inline bool has(const struct client *c, const char *what)
{
    return count_of(c, what) > 0;
}

/* "200 404": the status codes that a client has got. */
static inline const char *statuses(const struct client *c)
{
    static char text[256];
    const char *at = buf_str(&c->got), *end = at + c->got.len;
    size_t len = 0;

    text[0] = '\0';
    while ((at = memmem(at, (size_t)(end - at), "HTTP/1.1 ", 9)) && len < sizeof text - 8) {
        len += (size_t)sprintf(text + len, "%s%.3s", len ? " " : "", at + 9);
        at += 9;
    }
    return text;
}

static inline void net_open(const struct http_config *config)
{
    struct address any;
    int fd = -1;

    for (int i = 0; i < MAX_CLIENTS; i++)
        clients[i].fd = -1;
    cr_assert(zero(int, loop_open(&loop, &err)));
    cr_assert(zero(int, http_server_open(loop, config, &server, &err)), "%s", err_text(&err));
    if (getenv("TEST_GATHERS"))
        http_server_gather(server);
    cr_assert(zero(int, address_parse("127.0.0.1:0", &any, &err)));
    cr_assert(zero(int, address_listen(&any, 1024, 0, (gid_t)-1, &fd, &err)), "%s", err_text(&err));
    cr_assert(zero(int, address_local(fd, &tcp, &err)));
    cr_assert(zero(int, http_server_listen(server, fd, &err)), "%s", err_text(&err));
}

static inline void net_close(void)
{
    for (int i = 0; i < MAX_CLIENTS; i++)
        if (clients[i].fd > 0)
            client_close(&clients[i]);
    http_server_close(server);
    server = NULL;
    loop_close(loop);
}

#endif
