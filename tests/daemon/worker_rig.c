#include "tests/daemon/worker_rig.h"

#include "base/clock.h"
#include "base/err.h"
#include "ipc/address.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");

    cr_assert(not(zero(ptr, f)));
    cr_assert(ge(int, fputs(text, f), 0));
    cr_assert(zero(int, fclose(f)));
}

static void spawn(struct rig *r, int child_end)
{
    const char *build = getenv("FASTCHAT_BUILD");
    char program[512];

    cr_assert(not(zero(ptr, (void *)build)), "FASTCHAT_BUILD is not set: run this by meson test");
    snprintf(program, sizeof program, "%s/fastchat-worker", build);
    r->pid = fork();
    cr_assert(ge(int, r->pid, 0));
    if (r->pid == 0) {
        if (child_end != CONTROL_FD)
            dup2(child_end, CONTROL_FD);
        else
            fcntl(child_end, F_SETFD, 0);
        execl(program, "fastchat-worker", "test", "0", (char *)NULL);
        _exit(127);
    }
}

static void send_settings(struct rig *r, enum control_type type, const struct rig_options *o)
{
    BUF_LOCAL text = BUF_INIT;
    struct err err = { 0 };

    buf_printf(&text,
               "{\"role\":\"worker\",\"log_level\":\"info\",\"runtime_dir\":\"%s\",\"heartbeat_ms\":20,"
               "\"worker_name\":\"unix:%s\",\"unix\":\"%s\",\"controllers\":[%s],\"model\":{\"name\":\"test\","
               "\"aliases\":[%s],\"replica\":0,\"path\":\"%s\",\"device\":\"%s\",\"parallel\":%u,"
               "\"queue\":%u,\"sampling\":{%s}%s}}",
               r->dir, r->sock, r->sock, o->controllers ? o->controllers : "",
               o->aliases ? o->aliases : "\"alias\"", o->path ? o->path : r->script,
               o->device ? o->device : "scripted", o->parallel ? o->parallel : 4, o->queue ? o->queue : 1000,
               o->sampling ? o->sampling : "", o->model ? o->model : "");
    cr_assert(zero(int, control_send_memfd(r->control, type, buf_str(&text), text.len, &err)),
              "%s", err_text(&err));
}

/* Returns the port, for a TCP address. */
static unsigned send_socket(struct rig *r, const char *name, const char *listen_on)
{
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    struct address a;
    struct err err = { 0 };
    char json[64];
    int fd, n = snprintf(json, sizeof json, "{\"name\":\"%s\"}", name);

    cr_assert(zero(int, address_parse(listen_on, &a, &err)), "%s", err_text(&err));
    cr_assert(zero(int, address_listen(&a, 512, 0600, (gid_t)-1, &fd, &err)), "%s", err_text(&err));
    cr_assert(zero(int, getsockname(fd, (struct sockaddr *)&at, &len)));
    cr_assert(zero(int, control_send(r->control, CONTROL_LISTEN, json, (size_t)n, &fd, 1)));
    close(fd);
    return a.is_unix ? 0 : ntohs(((struct sockaddr_in *)&at)->sin_port);
}

void rig_start(struct rig *r, const char *script, const struct rig_options *options)
{
    static const struct rig_options none;
    char unix_socket[128];
    int pair[2];

    signal(SIGPIPE, SIG_IGN);
    *r = (struct rig){ .pid = -1 };
    strcpy(r->dir, "/tmp/fastchat-worker-XXXXXX");
    cr_assert(not(zero(ptr, mkdtemp(r->dir))));
    snprintf(r->script, sizeof r->script, "%s/script.json", r->dir);
    snprintf(r->sock, sizeof r->sock, "%s/sock", r->dir);
    write_file(r->script, script);
    cr_assert(zero(int, socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair)));
    r->control = pair[0];
    spawn(r, pair[1]);
    close(pair[1]);
    send_settings(r, CONTROL_SETTINGS, options ? options : &none);
    snprintf(unix_socket, sizeof unix_socket, "unix:%s", r->sock);
    send_socket(r, "worker.unix", unix_socket);
    if (options && options->tcp)
        r->tcp_port = send_socket(r, "worker.tcp", "127.0.0.1:0");
    rig_send(r, CONTROL_START, "{}");
}

void rig_send(struct rig *r, int type, const char *json)
{
    cr_assert(zero(int, control_send_json(r->control, type, json)));
}

static void wait_readable(int fd, const char *what)
{
    struct pollfd p = { .fd = fd, .events = POLLIN };
    int n;

    while ((n = poll(&p, 1, RIG_CEILING_MS)) < 0 && errno == EINTR)
        ;
    cr_assert(eq(int, n, 1), "%s did not come", what);
}

cJSON *rig_next(struct rig *r, int type)
{
    for (;;) {
        struct err err = { 0 };
        int n = control_recv(r->control, &r->frame, &err);

        if (n == CONTROL_AGAIN) {
            wait_readable(r->control, "a control frame");
            continue;
        }
        cr_assert(zero(int, n), "control channel: %s", n == CONTROL_EOF ? "ended" : err_text(&err));
        if (r->frame.type == type)
            return cJSON_Parse(r->frame.payload);
    }
}

const char *rig_reload(struct rig *r, const struct rig_options *options)
{
    static const char error[] = "{\"error\":\"";

    send_settings(r, CONTROL_RELOAD, options);
    cJSON_Delete(rig_next(r, CONTROL_RELOADED));
    if (strcmp(r->frame.payload, "{}") == 0)
        return NULL;
    cr_assert(zero(int, strncmp(r->frame.payload, error, sizeof error - 1)), "%s", r->frame.payload);
    return r->frame.payload + sizeof error - 1;
}

bool rig_seen(struct rig *r, int type)
{
    bool seen = false;

    while (control_recv(r->control, &r->frame, NULL) == 0)
        seen = seen || r->frame.type == type;
    return seen;
}

void rig_wait_state(struct rig *r, const char *state)
{
    for (bool done = false; !done;) {
        cJSON *tree = rig_next(r, CONTROL_STATE);
        const char *now = cJSON_GetStringValue(cJSON_GetObjectItem(tree, "state"));

        cr_assert(not(zero(ptr, (void *)now)));
        done = strcmp(now, state) == 0;
        cr_assert(done || strcmp(now, "failed") != 0, "the worker failed: %s", r->frame.payload);
        cJSON_Delete(tree);
    }
}

void rig_ready(struct rig *r, const char *script, const struct rig_options *options)
{
    rig_start(r, script, options);
    rig_wait_state(r, "ready");
}

int rig_wait_exit(struct rig *r)
{
    uint64_t end = clock_mono_ms() + RIG_CEILING_MS;
    int status = 0;

    /* Its end of the channel closes as it ends; what is in it is read away. */
    for (;;) {
        int n = control_recv(r->control, &r->frame, NULL);

        if (n == CONTROL_AGAIN)
            wait_readable(r->control, "the end of the worker");
        else if (n != 0)
            break;
        cr_assert(lt(u64, clock_mono_ms(), end), "the worker does not end");
    }
    cr_assert(eq(int, waitpid(r->pid, &status, 0), r->pid));
    r->pid = -1;
    close(r->control);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void rig_clean(struct rig *r)
{
    unlink(r->script);
    unlink(r->sock);
    rmdir(r->dir);
}

void rig_stop(struct rig *r)
{
    rig_send(r, CONTROL_STOP, "{}");
    cr_expect(zero(int, rig_wait_exit(r)));
    rig_clean(r);
}

/* ---- HTTP ---- */

void stream_open(struct rig *r, struct stream *s, const char *path, const char *body)
{
    BUF_LOCAL text = BUF_INIT;
    struct address a;
    struct err err = { 0 };
    char address[128];

    *s = (struct stream){ .fd = -1 };
    if (r->tcp_port)
        snprintf(address, sizeof address, "127.0.0.1:%u", r->tcp_port);
    else
        snprintf(address, sizeof address, "unix:%s", r->sock);
    cr_assert(zero(int, address_parse(address, &a, &err)));
    cr_assert(zero(int, address_connect(&a, &s->fd, &err)), "%s", err_text(&err));
    buf_printf(&text, "%s HTTP/1.1\r\nHost: x\r\n", path);
    if (body)
        buf_printf(&text, "Content-Length: %zu\r\n\r\n%s", strlen(body), body);
    else
        buf_adds(&text, "\r\n");
    for (size_t at = 0; at < text.len;) {
        ssize_t n = write(s->fd, text.data + at, text.len - at);

        cr_assert(gt(long, (long)n, 0));
        at += (size_t)n;
    }
}

static void take_head(struct stream *s)
{
    char *end = s->raw.len ? strstr(s->raw.data, "\r\n\r\n") : NULL, *at;

    if (!end)
        return;
    *end = 0;
    s->status = atoi(s->raw.data + strlen("HTTP/1.1 "));
    at = strcasestr(s->raw.data, "\r\ncontent-length:");
    s->chunked = strcasestr(s->raw.data, "\r\ntransfer-encoding: chunked");
    s->left = at ? strtoul(at + strlen("\r\ncontent-length:"), NULL, 10) : 0;
    s->done = !s->chunked && s->left == 0;
    buf_adds(&s->head, s->raw.data);
    buf_adds(&s->head, "\r\n");
    buf_drop(&s->raw, (size_t)(end + 4 - s->raw.data));
}

static void take_body(struct stream *s)
{
    while (!s->done && s->raw.len) {
        size_t n;

        if (s->left == 0) {
            /* a size line; but for the first, behind the end of the chunk before it */
            size_t skip = s->raw.data[0] == '\r' ? 2 : 0;
            char *line = s->raw.len > skip ? strstr(s->raw.data + skip, "\r\n") : NULL;

            if (!line)
                return;
            s->left = strtoul(s->raw.data + skip, NULL, 16);
            s->done = s->left == 0;
            buf_drop(&s->raw, (size_t)(line + 2 - s->raw.data));
            continue;
        }
        n = s->raw.len < s->left ? s->raw.len : s->left;
        buf_add(&s->body, s->raw.data, n);
        buf_drop(&s->raw, n);
        s->left -= n;
        s->done = !s->chunked && s->left == 0;
    }
}

bool stream_more(struct stream *s)
{
    char *room;
    ssize_t n;

    if (s->done)
        return false;
    wait_readable(s->fd, "an answer");
    room = buf_room(&s->raw, 65536);
    cr_assert(not(zero(ptr, room)));
    n = read(s->fd, room, 65536);
    if (n <= 0) {
        s->done = s->cut = true;
        return false;
    }
    buf_grew(&s->raw, (size_t)n);
    if (!s->head.len)
        take_head(s);
    if (s->head.len)
        take_body(s);
    return !s->done;
}

void stream_wait(struct stream *s, const char *text)
{
    while (!s->body.len || !memmem(s->body.data, s->body.len, text, strlen(text)))
        cr_assert(stream_more(s) || (s->body.len && memmem(s->body.data, s->body.len, text, strlen(text))),
                  "'%s' did not come, but: %s", text, buf_str(&s->body));
}

void stream_close(struct stream *s)
{
    close(s->fd);
    buf_fini(&s->raw);
    buf_fini(&s->head);
    buf_fini(&s->body);
}

struct reply rig_ask(struct rig *r, const char *method, const char *path, const char *body)
{
    struct reply reply = { 0 };
    struct stream s;
    char line[256];

    snprintf(line, sizeof line, "%s %s", method, path);
    stream_open(r, &s, line, body);
    while (stream_more(&s))
        ;
    reply.status = s.status;
    reply.cut = s.cut;
    reply.head = s.head;
    reply.body = s.body;
    s.head = s.body = (struct buf)BUF_INIT;
    stream_close(&s);
    return reply;
}

void reply_fini(struct reply *reply)
{
    buf_fini(&reply->head);
    buf_fini(&reply->body);
}

cJSON *rig_ask_json(struct rig *r, int status, const char *method, const char *path, const char *body)
{
    struct reply reply = rig_ask(r, method, path, body);
    cJSON *tree = cJSON_Parse(buf_str(&reply.body));

    cr_assert(eq(int, reply.status, status), "%s: %s", path, buf_str(&reply.body));
    cr_assert(not(zero(ptr, tree)), "%s: no JSON: %s", path, buf_str(&reply.body));
    reply_fini(&reply);
    return tree;
}

int rig_queue_length(struct rig *r)
{
    cJSON *tree = rig_ask_json(r, 200, "POST", "/worker_get_status", NULL);
    int n = (int)cJSON_GetNumberValue(cJSON_GetObjectItem(tree, "queue_length"));

    cJSON_Delete(tree);
    return n;
}

void rig_wait_queue_length(struct rig *r, int n)
{
    uint64_t end = clock_mono_ms() + RIG_CEILING_MS;

    while (rig_queue_length(r) != n)
        cr_assert(lt(u64, clock_mono_ms(), end), "the queue length never becomes %d", n);
}
