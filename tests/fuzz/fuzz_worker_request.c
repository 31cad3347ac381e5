/* The body of a request to a worker, from the socket to the engine and back; the first byte chooses the endpoint. Every
 * request is answered whole, and afterwards nothing is left of it. */
#include "base/arena.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "daemon/worker/worker.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_BODY = 60000, ANSWER_US = 60000000 };

static const struct http_route routes[] = {
    { "POST", "/count_token", contract_count_token, 0 },
    { "POST", "/fastchat/generate", generate_handle, 0 },
    { "POST", "/worker_generate", contract_generate, 0 },
    { "POST", "/worker_generate_stream", contract_generate_stream, 0 },
    { "POST", "/fastchat/render", text_render, 0 },
    { "POST", "/fastchat/tokenize", text_tokenize, 0 },
    { "POST", "/fastchat/detokenize", text_detokenize, 0 },
    { "POST", "/worker_get_conv_template", contract_conv_template, 0 },
};
enum { N_ROUTES = sizeof routes / sizeof routes[0] };

static struct worker worker;

static void notify(void *user)
{
    uint64_t one = 1;

    if (write(worker.wake.fd, &one, sizeof one) < 0 && errno != EAGAIN)
        abort();
}

static void on_wake(struct loop_io *io, uint32_t events)
{
    uint64_t count;

    if (read(io->fd, &count, sizeof count) == sizeof count)
        engine_poll(worker.engine, job_event, NULL);
}

static struct engine *open_engine(struct worker *w)
{
    static const char script[] =
        "{\"context_length\":300,\"rules\":[{\"match\":\"fail\",\"play\":[\"a\",{\"fail\":\"x\",\"code\":\"oom\"}]}],\"play\":"
        "[\"a\",{\"text\":\"bcd\",\"tokens\":2,\"logprob\":-0.5,\"top\":[{\"text\":\"x\",\"logprob\":-1}]},{\"bytes\":[240,159]},"
        "{\"bytes\":[146,150]},{\"repeat\":3,\"play\":[\"stop \"]},{\"finish\":\"stop\"}]}";
    CLEANUP(fd_close) int fd = memfd_create("script", MFD_CLOEXEC);
    struct engine_config config = {
        .name = "m", .device = "scripted", .parallel = 2, .chat_template = "chatml", .pulse = &w->pulse, .notify = notify,
    };
    struct engine *e = NULL;
    struct err err = { 0 };
    char path[64];

    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    config.path = path;
    if (write(fd, script, sizeof script - 1) < 0 || engine_open(&config, &e, &err) < 0) {
        fprintf(stderr, "%s\n", err_text(&err));
        abort();
    }
    return e;
}

static void start(struct worker *w)
{
    const struct http_config config = { .routes = routes, .n_routes = N_ROUTES, .user = w };

    w->set = (struct settings){
        .worker_name = "unix:/w", .name = "m", .path = "m", .parallel = 2, .queue = 2, .sample = sample_defaults,
    };
    w->phase = WORKER_READY;
    if (loop_open(&w->loop, NULL) < 0 || http_server_open(w->loop, &config, &w->server, NULL) < 0)
        abort();
    w->wake = (struct loop_io){ .fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .fn = on_wake, .user = w };
    if (w->wake.fd < 0 || loop_add(w->loop, &w->wake, EPOLLIN) < 0)
        abort();
    w->engine = open_engine(w);
}

/* Waits for the answer's end, which the server makes by closing. */
static void receive(int fd, struct buf *out)
{
    uint64_t until = clock_mono_us() + ANSWER_US;

    for (;;) {
        char *room = buf_room(out, 65536);
        ssize_t n = room ? recv(fd, room, 65536, 0) : 0;

        if (n == 0)
            return;
        if (n > 0) {
            buf_grew(out, (size_t)n);
            continue;
        }
        if (errno != EAGAIN || clock_mono_us() > until)
            abort();
        sd_event_run(loop_event(worker.loop), 10000);
    }
}

/* Chunks that end as they must, where the answer is a stream. */
static void check_whole(const struct buf *answer)
{
    static const char status[] = "HTTP/1.1 ", last[] = "0\r\n\r\n";
    const char *head = buf_str(answer), *end = strstr(head, "\r\n\r\n");

    if (strncmp(head, status, sizeof status - 1) != 0 || !end)
        abort();
    if (memmem(head, (size_t)(end - head), "chunked", strlen("chunked")) &&
        strcmp(head + answer->len - (sizeof last - 1), last) != 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    BUF_LOCAL request = BUF_INIT;
    BUF_LOCAL answer = BUF_INIT;
    struct engine_stats stats;
    int pair[2];

    if (size == 0 || size > MAX_BODY)
        return 0;
    if (!worker.loop)
        start(&worker);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        return 0;
    buf_printf(&request, "POST %s HTTP/1.1\r\nHost: w\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n",
               routes[data[0] % N_ROUTES].path, size - 1);
    buf_add(&request, data + 1, size - 1);
    http_server_adopt(worker.server, pair[0], NULL);
    if (send(pair[1], request.data, request.len, MSG_NOSIGNAL) != (ssize_t)request.len)
        abort();
    receive(pair[1], &answer);
    close(pair[1]);
    check_whole(&answer);
    engine_stats(worker.engine, &stats);
    if (worker.n_jobs || stats.running || stats.waiting || http_server_active(worker.server))
        abort();
    return 0;
}
