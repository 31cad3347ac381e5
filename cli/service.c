#include "cli/service.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "cli/args.h"
#include "cli/fetch.h"
#include "cli/term.h"
#include "ipc/control.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { ANSWER_MS = 5000 };

static const char *from_env(const char *name)
{
    const char *v = getenv(name);

    return v && v[0] ? v : NULL;
}

static bool has_socket(const char *dir)
{
    BUF_LOCAL path = BUF_INIT;

    buf_printf(&path, "%s/control.sock", dir);
    return !path.failed && access(buf_str(&path), F_OK) == 0;
}

const char *service_runtime_dir(const struct service_args *args)
{
    static char dir[512];
    const char *name = args->runtime_dir;
    const char *xdg = from_env("XDG_RUNTIME_DIR");

    if (!name)
        name = from_env("FASTCHAT_RUNTIME_DIR");
    if (!name)
        name = from_env("RUNTIME_DIRECTORY");
    if (name) {
        /* systemd's variable may name several, with colons between them */
        snprintf(dir, sizeof dir, "%.*s", args->runtime_dir ? 511 : (int)strcspn(name, ":"), name);
        return dir;
    }
    if (xdg) {
        snprintf(dir, sizeof dir, "%s/fastchat", xdg);
        if (has_socket(dir))
            return dir;
    }
    snprintf(dir, sizeof dir, "/run/fastchat");
    return dir;
}

static int unreachable(const struct sockaddr_un *where, const char *also, int code, struct err *err)
{
    if (code == -EACCES)
        return err_set(err, code,
                       "%s: no permission to ask the service. Use sudo, or join the group that the "
                       "socket belongs to",
                       where->sun_path);
    return err_set(err, code,
                   "the service is not running: nobody answers at %s. Start it with 'systemctl "
                   "start fastchat' or './quickstart', or say where it is with --runtime-dir DIR%s",
                   where->sun_path, also);
}

static int connect_control(const char *dir, const char *also, int *ret, struct err *err)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    CLEANUP(fd_close) int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return err_errno(err, -errno, "a socket");
    if ((size_t)snprintf(a.sun_path, sizeof a.sun_path, "%s/control.sock", dir) >=
        sizeof a.sun_path)
        return err_set(err, -ENAMETOOLONG, "%s: the path is too long for a socket", dir);
    if (connect(fd, (const struct sockaddr *)&a, sizeof a) < 0)
        return unreachable(&a, also, -errno, err);
    *ret = STEAL_FD(fd);
    return 0;
}

/* 0, SERVICE_LEFT, -ETIMEDOUT, -errno. `until_ms` 0: as long as it takes. */
static int wait_readable(int fd, int interrupt_fd, uint64_t until_ms)
{
    for (;;) {
        struct pollfd p[] = { { .fd = fd, .events = POLLIN },
                              { .fd = interrupt_fd, .events = POLLIN } };
        uint64_t now = clock_mono_ms();
        int wait_ms = !until_ms ? -1 : now < until_ms ? (int)(until_ms - now) : 0;
        int r = poll(p, 2, wait_ms);

        if (r > 0)
            return p[0].revents ? 0 : SERVICE_LEFT;
        if (r == 0)
            return -ETIMEDOUT;
        if (errno != EINTR)
            return -errno;
    }
}

/* The text of an answer, whichever way it came. */
static int frame_text(const struct control_frame *frame, char **ret, struct err *err)
{
    if (frame->n_fds == 1)
        return control_read_memfd(frame->fds[0], ret, NULL, err);
    *ret = strdup(frame->payload);
    return *ret ? 0 : err_set(err, -ENOMEM, "no memory");
}

/* The next frame's text. 0, SERVICE_REFUSED (CONTROL_ERROR), SERVICE_LEFT. */
static int receive_reply(int fd, int interrupt_fd, uint64_t limit_ms, char **ret, struct err *err)
{
    CLEANUP(mem_free) struct control_frame *frame = malloc(sizeof *frame);
    uint64_t until_ms = limit_ms ? clock_mono_ms() + limit_ms : 0;
    int r;

    if (!frame)
        return err_set(err, -ENOMEM, "no memory");
    do {
        r = wait_readable(fd, interrupt_fd, until_ms);
        if (r == SERVICE_LEFT)
            return r;
        if (r == 0)
            r = control_recv(fd, frame, err);
    } while (r == CONTROL_AGAIN);
    if (r == CONTROL_EOF)
        return err_set(err, -ECONNRESET, "the supervisor closed the connection without an answer");
    if (r < 0)
        return err_errno(err, r, "the supervisor's answer");
    if (frame->type == CONTROL_REPLY || frame->type == CONTROL_ERROR)
        r = frame_text(frame, ret, err);
    else
        r = err_set(err, -EPROTO, "the supervisor answered with a frame of type %d", frame->type);
    if (r == 0 && frame->type == CONTROL_ERROR)
        r = SERVICE_REFUSED;
    control_close_fds(frame);
    return r;
}

/* The "message" of an answer, to free(). */
static char *message_of(const char *text)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    const char *message = text;

    json_parse(text, strlen(text), NULL, &tree, NULL);
    json_get_string(tree, "message", &message, NULL);
    return strdup(message);
}

static int ask(const struct service_args *args, const char *also, enum control_type type, const char *json, cJSON **ret,
               char **ret_text, char **ret_message, struct err *err)
{
    CLEANUP(mem_free) char *text = NULL;
    CLEANUP(fd_close) int fd = -1;
    int r = connect_control(service_runtime_dir(args), also, &fd, err);

    if (r < 0)
        return r;
    if (control_send_json(fd, type, json) != 0)
        return err_set(err, -ECONNRESET, "the supervisor takes no question");
    r = receive_reply(fd, -1, ANSWER_MS, &text, err);
    if (r == SERVICE_REFUSED) {
        *ret_message = message_of(text);
        return *ret_message ? r : err_set(err, -ENOMEM, "no memory");
    }
    if (r == 0)
        r = json_parse(text, strlen(text), NULL, ret, err);
    if (r == 0 && ret_text)
        *ret_text = STEAL(text);
    return r;
}

int service_ask(const struct service_args *args, const char *json, cJSON **ret, char **ret_text, char **ret_message,
                struct err *err)
{
    return ask(args, "", CONTROL_COMMAND, json, ret, ret_text, ret_message, err);
}

static int ask_status(const struct service_args *args, const char *also, cJSON **ret,
                      char **ret_text, struct err *err)
{
    CLEANUP(mem_free) char *refusal = NULL;
    int r = ask(args, also, CONTROL_STATUS, "{}", ret, ret_text, &refusal, err);

    return r == SERVICE_REFUSED ? err_set(err, -EPROTO, "the supervisor refused: %s", refusal) : r;
}

int service_status(const struct service_args *args, cJSON **ret, char **ret_text, struct err *err)
{
    return ask_status(args, "", ret, ret_text, err);
}

int service_command(const struct service_args *args, const char *json, int interrupt_fd,
                    char **ret_message, struct err *err)
{
    CLEANUP(mem_free) char *text = NULL;
    CLEANUP(fd_close) int fd = -1;
    int r = connect_control(service_runtime_dir(args), "", &fd, err);

    if (r < 0)
        return r;
    if (control_send_json(fd, CONTROL_COMMAND, json) != 0)
        return err_set(err, -ECONNRESET, "the supervisor takes no command");
    if (!ret_message)
        return 0;
    r = receive_reply(fd, interrupt_fd, 0, &text, err);
    if (r < 0 || r == SERVICE_LEFT)
        return r;
    *ret_message = message_of(text);
    return *ret_message ? r : err_set(err, -ENOMEM, "no memory");
}

void service_reachable(const char *text, char *address, size_t size)
{
    const char *port = strrchr(text, ':');

    if (strncmp(text, "0.0.0.0:", 8) == 0)
        snprintf(address, size, "127.0.0.1%s", port);
    else if (strncmp(text, "[::]:", 5) == 0)
        snprintf(address, size, "[::1]%s", port);
    else
        snprintf(address, size, "%s", text);
}

/* Where the api can be called, Unix sockets first. */
static int pick_listener(const cJSON *status, struct target *ret, struct err *err)
{
    const cJSON *list = NULL, *item;
    const char *best = NULL;
    char address[256];

    json_get_array(status, "listeners", &list, NULL);
    cJSON_ArrayForEach(item, list)
    {
        const char *text = cJSON_IsString(item) ? item->valuestring : "";
        bool is_unix = strncmp(text, "unix:", 5) == 0;

        if (!text[0] || (is_unix && access(text + 5, W_OK) < 0))
            continue;
        if (!best || (is_unix && strncmp(best, "unix:", 5) != 0))
            best = text;
    }
    if (!best)
        return err_set(err, -ENOENT, "the service listens nowhere that can be called from here");
    service_reachable(best, address, sizeof address);
    return target_parse(address, ret, err);
}

int service_api(const struct service_args *args, struct target *ret, struct err *err)
{
    CLEANUP(json_delete) cJSON *status = NULL;
    int r;

    if (args->api)
        return target_parse(args->api, ret, err);
    r = ask_status(args, " or --api http://host:port", &status, NULL, err);
    return r < 0 ? r : pick_listener(status, ret, err);
}

int service_url(const struct service_args *args, struct buf *ret, struct err *err)
{
    CLEANUP(json_delete) cJSON *status = NULL;
    const cJSON *list = NULL, *item;
    const char *best = NULL;
    char address[256];
    int r = service_status(args, &status, NULL, err);

    if (r < 0)
        return r;
    json_get_array(status, "listeners", &list, NULL);
    cJSON_ArrayForEach(item, list)
    {
        const char *text = cJSON_IsString(item) ? item->valuestring : "";

        if (text[0] && (!best || (strncmp(best, "unix:", 5) == 0 && strncmp(text, "unix:", 5) != 0)))
            best = text;
    }
    if (!best)
        return err_set(err, -ENOENT, "the service listens nowhere");
    service_reachable(best, address, sizeof address);
    if (strncmp(best, "unix:", 5) == 0)
        buf_adds(ret, best);
    else
        buf_printf(ret, "http://%s/v1", address);
    return 0;
}

int service_controller(const struct service_args *args, struct target *ret, struct err *err)
{
    CLEANUP(json_delete) cJSON *status = NULL;
    char address[600];
    int r = service_status(args, &status, NULL, err);

    if (r < 0)
        return r;
    snprintf(address, sizeof address, "unix:%s/controller.sock", service_runtime_dir(args));
    return target_parse(address, ret, err);
}

int service_failed(const struct err *err)
{
    term_error("%s", err_text(err));
    if (err->code == -ECONNRESET || err->code == -ETIMEDOUT)
        fprintf(stderr, "'fastchat status' shows the parts of the service and how they are.\n");
    return CLI_FAILED;
}
