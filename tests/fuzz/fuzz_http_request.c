/* What clients send: the whole path from the socket to handlers and back. The
 * first byte says in pieces of which size the rest arrives.
 */
#include "ipc/http_server.h"
#include "ipc/loop.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void echo(struct http_request *req, void *user)
{
    const char *q = http_query(req, "q");

    for (size_t i = 0; i < req->n_headers; i++)
        if (!*req->headers[i].name || strpbrk(req->headers[i].value, "\r\n"))
            __builtin_trap();
    if (strlen(req->path) == 0 || req->body[req->body_len])
        __builtin_trap();
    if (q)
        http_add_header(req, "X-Query", q);
    http_reply(req, 200, "application/octet-stream", req->body, req->body_len);
}

static void stream(struct http_request *req, void *user)
{
    if (http_stream_start(req, 200, "text/plain") == 0)
        http_stream_write(req, req->path, strlen(req->path));
    http_stream_end(req);
}

static void never(struct http_request *req, void *user)
{
}

static const struct http_route routes[] = {
    { NULL, "/e", echo, 1000 },
    { "GET", "/s/*", stream },
    { "GET", "/n", never },
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct http_config config = {
        .routes = routes, .n_routes = sizeof routes / sizeof routes[0],
        .limits = { .header_bytes = 2000, .n_headers = 20, .high_water = 4000, .low_water = 1000 },
    };
    static struct loop *loop;
    static struct http_server *server;
    size_t step = size && data[0] ? data[0] : 100000;
    char answer[8192];
    int pair[2];

    if (!loop && (loop_open(&loop, NULL) < 0 || http_server_open(loop, &config, &server, NULL) < 0))
        return 0;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        return 0;
    http_server_adopt(server, pair[0], NULL);
    for (size_t at = 1; at < size; at += step) {
        ssize_t n;

        if (send(pair[1], data + at, at + step < size ? step : size - at, MSG_NOSIGNAL) < 0)
            break;
        for (int i = 0; i < 3; i++)
            sd_event_run(loop_event(loop), 0);
        n = recv(pair[1], answer, sizeof answer, 0);
        if (at == 1 && n >= 9 && memcmp(answer, "HTTP/1.1 ", 9) != 0)
            __builtin_trap();
        while (n > 0)
            n = recv(pair[1], answer, sizeof answer, 0);
    }
    close(pair[1]);
    for (int i = 0; i < 1000 && http_server_conns(server); i++)
        sd_event_run(loop_event(loop), 0);
    if (http_server_conns(server) || http_server_active(server))
        __builtin_trap();
    return 0;
}
