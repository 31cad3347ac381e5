/* What a peer answers to a request of ours, in pieces of a size that the first byte gives. The second byte says what the
 * caller does meanwhile: 1 it pauses at the first data, 2 it cancels at the head, 4 at the first data. */
#include "ipc/address.h"
#include "ipc/http_client.h"
#include "ipc/loop.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PAUSES = 1, CANCELS_AT_HEAD = 2, CANCELS_AT_DATA = 4 };

static char folder[] = "/tmp/fastchat-fuzz-XXXXXX";
static struct address address;
static struct loop *loop;
static struct http_client *client;
static int listener;

struct asked {
    unsigned does;
    bool head, paused, ended;
};

static void on_head(struct http_call *call, int status, void *user)
{
    struct asked *a = user;

    if (a->head || a->ended || status < 200 || status > 999)
        abort();
    a->head = true;
    http_call_header(call, "retry-after");
    if (a->does & CANCELS_AT_HEAD) {
        http_call_cancel(call);
        a->ended = true;
    }
}

static void on_data(struct http_call *call, const char *data, size_t len, void *user)
{
    struct asked *a = user;

    if (!a->head || a->ended || len == 0)
        abort();
    if (a->does & CANCELS_AT_DATA) {
        http_call_cancel(call);
        a->ended = true;
    } else if (a->does & PAUSES && !a->paused) {
        a->paused = true;
        http_call_pause(call, true);
    }
}

static void on_done(struct http_call *call, const struct http_call_result *result, void *user)
{
    struct asked *a = user;

    if (a->ended || (result->error == 0 && !a->head) || (a->head && !result->status) || !result->text)
        abort();
    a->ended = true;
}

static void leave(void)
{
    unlink(address.path);
    rmdir(folder);
}

static void start(void)
{
    char text[128];

    if (!mkdtemp(folder))
        abort();
    atexit(leave);
    snprintf(text, sizeof text, "unix:%s/peer", folder);
    if (address_parse(text, &address, NULL) < 0 || address_listen(&address, 16, 0600, (gid_t)-1, &listener, NULL) < 0 ||
        loop_open(&loop, NULL) < 0 || http_client_open(loop, &client, NULL) < 0)
        abort();
}

static void turn(void)
{
    for (int i = 0; i < 4; i++)
        sd_event_run(loop_event(loop), 0);
}

static void answer(int fd, const uint8_t *data, size_t size, size_t step)
{
    for (size_t at = 0; at < size; at += step) {
        if (send(fd, data + at, size - at < step ? size - at : step, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
            break;
        turn();
    }
    shutdown(fd, SHUT_WR);
    turn();
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct asked a = { 0 };
    struct http_call *call;
    struct http_call_spec spec = {
        .unix_path = address.path, .url = "http://peer/", .method = "POST", .body = "{}", .body_len = 2, .total_us = 60000000,
        .user = &a, .on_head = on_head, .on_data = on_data, .on_done = on_done,
    };
    bool answered = false;

    if (size < 2)
        return 0;
    if (!loop)
        start();
    a.does = data[1];
    if (http_call_start(client, &spec, &call, NULL) < 0)
        abort();
    /* Whoever comes again, because the first answer was none, finds nobody. */
    while (!a.ended) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

        if (fd >= 0 && !answered)
            answer(fd, data + 2, size - 2, data[0] ? data[0] : size);
        else if (fd >= 0)
            close(fd);
        answered = answered || fd >= 0;
        if (a.paused && !a.ended)
            http_call_pause(call, false);
        sd_event_run(loop_event(loop), a.ended ? 0 : 1000);
    }
    return 0;
}
