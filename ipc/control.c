#include "ipc/control.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

static const uint32_t MAGIC = 0x46434831;       /* "FCH1" */
static const size_t MEMFD_MAX = 64u << 20;
enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL };

struct head {
    uint32_t magic;
    uint16_t version, type;
    uint64_t seq, mono_us;
    uint32_t len, reserved;
};
_Static_assert(sizeof(struct head) == 32, "the wire format has no holes");

int control_send(int sock, enum control_type type, const char *payload, size_t len, const int *fds,
                 size_t n_fds)
{
    static _Atomic uint64_t last_seq;
    struct head head = { .magic = MAGIC, .version = CONTROL_VERSION, .type = (uint16_t)type };
    struct iovec parts[2] = { { &head, sizeof head }, { (void *)payload, len } };
    union {
        struct cmsghdr align;
        char data[CMSG_SPACE(CONTROL_FDS * sizeof(int))];
    } space = { 0 };
    struct msghdr msg = { .msg_iov = parts, .msg_iovlen = len ? 2 : 1 };
    ssize_t n;

    if (len > CONTROL_PAYLOAD)
        return -EMSGSIZE;
    if (n_fds > CONTROL_FDS)
        return -EINVAL;
    head.seq = atomic_fetch_add(&last_seq, 1) + 1;
    head.mono_us = clock_mono_us();
    head.len = (uint32_t)len;
    if (n_fds) {
        struct cmsghdr *c;

        msg.msg_control = space.data;
        msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
    }
    do
        n = sendmsg(sock, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n >= 0)
        return 0;
    if (errno == EAGAIN)
        return CONTROL_AGAIN;
    if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN)
        return CONTROL_EOF;
    return -errno;
}

int control_send_json(int sock, enum control_type type, const char *json)
{
    return control_send(sock, type, json, strlen(json), NULL, 0);
}

static int write_all(int fd, const char *data, size_t len)
{
    while (len) {
        ssize_t n = write(fd, data, len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        data += n;
        len -= (size_t)n;
    }
    return 0;
}

int control_make_memfd(const char *json, size_t len, int *ret, struct err *err)
{
    CLEANUP(fd_close) int fd = -1;
    int r;

    if (len > MEMFD_MAX)
        return err_set(err, -EMSGSIZE, "memfd: %zu bytes are over the limit of %zu", len, MEMFD_MAX);
    fd = memfd_create("fastchat-control", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return err_errno(err, -errno, "memfd");
    r = write_all(fd, json, len);
    if (r == 0 && fcntl(fd, F_ADD_SEALS, SEALS) < 0)
        r = -errno;
    if (r < 0)
        return err_errno(err, r, "memfd: writing %zu bytes", len);
    *ret = STEAL_FD(fd);
    return 0;
}

int control_send_memfd(int sock, enum control_type type, const char *json, size_t len,
                       struct err *err)
{
    CLEANUP(fd_close) int fd = -1;
    int r = control_make_memfd(json, len, &fd, err);

    if (r == 0)
        r = control_send(sock, type, NULL, 0, &fd, 1);
    return r < 0 ? err_errno(err, r, "control channel: sending %zu bytes", len) : r;
}

/* Moves the descriptors of every SCM_RIGHTS block into the frame. What does
 * not fit is closed and makes the answer false. */
static bool take_fds(struct msghdr *msg, struct control_frame *f)
{
    bool fit = true;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
        size_t n;

        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            if (f->n_fds < CONTROL_FDS) {
                f->fds[f->n_fds++] = fd;
            } else {
                close(fd);
                fit = false;
            }
        }
    }
    return fit && !(msg->msg_flags & MSG_CTRUNC);
}

static int check_frame(const struct head *head, size_t len, bool fds_fit, int flags, struct err *err)
{
    if (!fds_fit)
        return err_set(err, -EPROTO, "control frame: more than %d descriptors", CONTROL_FDS);
    if (flags & MSG_TRUNC)
        return err_set(err, -EPROTO, "control frame: payload is over %d bytes", CONTROL_PAYLOAD);
    if (len < sizeof *head)
        return err_set(err, -EPROTO, "control frame: %zu bytes are no header", len);
    if (head->magic != MAGIC)
        return err_set(err, -EPROTO, "control frame: magic %08x is not ours", head->magic);
    if (head->version != CONTROL_VERSION)
        return err_set(err, -EPROTO, "control frame: version %u, but this is %d", head->version, CONTROL_VERSION);
    if (head->len != len - sizeof *head)
        return err_set(err, -EPROTO, "control frame: says %u bytes of payload, but has %zu", head->len,
                       len - sizeof *head);
    if (head->reserved)
        return err_set(err, -EPROTO, "control frame: reserved field is %u", head->reserved);
    return 0;
}

int control_recv(int sock, struct control_frame *f, struct err *err)
{
    struct head head = { 0 };
    struct iovec parts[2] = { { &head, sizeof head }, { f->payload, CONTROL_PAYLOAD } };
    union {
        struct cmsghdr align;
        char data[CMSG_SPACE(CONTROL_FDS * sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))];
    } space;
    struct msghdr msg = {
        .msg_iov = parts, .msg_iovlen = 2,
        .msg_control = space.data, .msg_controllen = sizeof space.data,
    };
    bool fds_fit;
    ssize_t n;
    int r;

    f->n_fds = 0;
    f->len = 0;
    f->payload[0] = '\0';
    for (size_t i = 0; i < CONTROL_FDS; i++)
        f->fds[i] = -1;

    do
        n = recvmsg(sock, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN)
        return CONTROL_AGAIN;
    if (n < 0 && (errno == ECONNRESET || errno == ENOTCONN))
        return CONTROL_EOF;
    if (n < 0)
        return err_errno(err, -errno, "control channel");

    fds_fit = take_fds(&msg, f);
    if (n == 0 && f->n_fds == 0)
        return CONTROL_EOF;
    r = check_frame(&head, (size_t)n, fds_fit, msg.msg_flags, err);
    if (r < 0) {
        control_close_fds(f);
        return r;
    }
    f->type = head.type;
    f->seq = head.seq;
    f->mono_us = head.mono_us;
    f->len = head.len;
    f->payload[f->len] = '\0';
    return 0;
}

void control_close_fds(struct control_frame *f)
{
    for (size_t i = 0; i < f->n_fds; i++)
        fd_close(STEAL_FD(f->fds[i]));
    f->n_fds = 0;
}

int control_read_memfd(int fd, char **ret, size_t *ret_len, struct err *err)
{
    enum { NEEDED = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE };
    CLEANUP(mem_free) char *text = NULL;
    struct stat st;
    size_t size, done = 0;
    int seals;

    if (fstat(fd, &st) < 0)
        return err_errno(err, -errno, "memfd");
    seals = fcntl(fd, F_GET_SEALS);
    if (!S_ISREG(st.st_mode) || seals < 0)
        return err_set(err, -EINVAL, "memfd: the descriptor is no memory file");
    if ((seals & NEEDED) != NEEDED)
        return err_set(err, -EINVAL, "memfd: it is not sealed against change");
    if (st.st_size < 0 || (uint64_t)st.st_size > MEMFD_MAX)
        return err_set(err, -EINVAL, "memfd: %jd bytes are over the limit of %zu", (intmax_t)st.st_size, MEMFD_MAX);

    size = (size_t)st.st_size;
    text = malloc(size + 1);
    if (!text)
        return err_set(err, -ENOMEM, "memfd: no memory for %zu bytes", size);
    while (done < size) {
        ssize_t n = pread(fd, text + done, size - done, (off_t)done);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return err_errno(err, n < 0 ? -errno : -EIO, "memfd");
        done += (size_t)n;
    }
    text[size] = '\0';
    *ret = STEAL(text);
    if (ret_len)
        *ret_len = size;
    return 0;
}
