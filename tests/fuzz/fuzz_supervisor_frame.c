/* What the supervisor says to a child, frame by frame: a byte for the type, a byte for the descriptors that come along (a
 * memory file with the payload, two of them, a socket), two for the length of the payload, the payload. Frames up to the
 * first START are those of the start. The frames that end a process at once are left out, and so is the end of the channel. */
#include "base/err.h"
#include "base/log.h"
#include "daemon/child.h"
#include "ipc/control.h"
#include "ipc/loop.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Little enough for the socket's queue: what does not fit would be waited for. */
enum { NO_FRAME = 99, MAX_FRAMES = 20, MAX_PAYLOAD = 2000 };

static int control[2];

static int sealed(const void *text, size_t len)
{
    int fd = memfd_create("payload", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0 || write(fd, text, len) != (ssize_t)len ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        abort();
    return fd;
}

static void send_frame(int type, unsigned descriptors, const void *payload, size_t len)
{
    int fds[2] = { -1, -1 };
    size_t n = descriptors % 4;

    if (n == 1 || n == 2)
        fds[0] = sealed(payload, len);
    if (n == 2)
        fds[1] = dup(fds[0]);
    if (n == 3)
        fds[0] = dup(control[0]);
    control_send(control[0], (enum control_type)type, payload, len, fds, n == 3 ? 1 : n);
    for (size_t i = 0; i < 2; i++)
        fd_close(fds[i]);
}

/* Sends the frames, at most up to the first of type `last`. */
static void send_frames(const uint8_t **data, size_t *size, int last)
{
    for (int type = -1, i = 0; *size >= 4 && type != last && i < MAX_FRAMES; i++) {
        size_t len = (*data)[2] | (size_t)(*data)[3] << 8, left = *size - 4;

        type = (*data)[0];
        len = len < left ? len : left;
        len = len < MAX_PAYLOAD ? len : MAX_PAYLOAD;
        if (last != CONTROL_START || (type != CONTROL_STOP && type != CONTROL_DRAIN))
            send_frame(type, (*data)[1], *data + 4, len);
        *data += 4 + len;
        *size -= 4 + len;
    }
}

static void on_drain(uint64_t limit_ms, void *user)
{
}

static void on_models(const cJSON *models, void *user)
{
}

static void play(const uint8_t *data, size_t size)
{
    const struct child_ops ops = { .drain = on_drain, .models = on_models };
    struct child *c = NULL;
    struct err err = { 0 };
    int r;

    send_frames(&data, &size, CONTROL_START);
    send_frame(NO_FRAME, 0, "", 0);         /* ends a start that did not end by itself */
    r = child_open("fuzz", &ops, &c, &err);
    log_set_level(LOG_EMERG);
    signal(SIGINT, SIG_DFL);                /* whoever fuzzes may want to stop */
    signal(SIGTERM, SIG_DFL);
    if (r < 0 && !err_is_set(&err))
        abort();
    if (r < 0)
        return;
    send_frames(&data, &size, -2);
    for (int i = 0; i < 2 * MAX_FRAMES; i++)
        sd_event_run(loop_event(child_loop(c)), 0);
    fd_close(child_take_socket(c, "api.0"));
    child_close(c);
}

/* The child's end has a number of its own; what the process has there comes back. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int kept = fcntl(CONTROL_FD, F_DUPFD_CLOEXEC, 10);

    if (kept < 0)                           /* nobody else may get it */
        dup2(STDERR_FILENO, CONTROL_FD);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, control) == 0 &&
        dup2(control[1], CONTROL_FD) == CONTROL_FD) {
        play(data, size);
        close(control[0]);
        close(control[1]);
    }
    if (kept >= 0) {
        dup2(kept, CONTROL_FD);
        close(kept);
    } else {
        close(CONTROL_FD);
    }
    return 0;
}
