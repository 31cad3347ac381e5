/* Control frames as they come from a child that went wrong. The first byte is
 * the number of descriptors that ride along, the rest one packet.
 */
#include "base/err.h"
#include "ipc/control.h"

#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct control_frame frame;
    int n_fds = size ? data[0] % 12 : 0, fds[12], pair[2];
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof fds)];
    } space = { 0 };
    struct iovec part = { (void *)(size ? data + 1 : data), size ? size - 1 : 0 };
    struct msghdr msg = { .msg_iov = &part, .msg_iovlen = 1 };
    struct err err = { 0 };
    char *text;
    int r;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return 0;
    if (n_fds) {
        struct cmsghdr *c;

        msg.msg_control = space.bytes;
        msg.msg_controllen = CMSG_SPACE((size_t)n_fds * sizeof(int));
        c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN((size_t)n_fds * sizeof(int));
        for (int i = 0; i < n_fds; i++)
            fds[i] = pair[0];
        memcpy(CMSG_DATA(c), fds, (size_t)n_fds * sizeof(int));
    }
    if (sendmsg(pair[0], &msg, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) {
        r = control_recv(pair[1], &frame, &err);
        if ((r != 0 && frame.n_fds) || (r < 0 && !err_is_set(&err)) || (r == 0 && strlen(frame.payload) > frame.len))
            __builtin_trap();
        if (r == 0 && frame.n_fds && control_read_memfd(frame.fds[0], &text, NULL, NULL) == 0)
            __builtin_trap();               /* a socket is no memory file */
        control_close_fds(&frame);
    }
    close(pair[0]);
    close(pair[1]);
    return 0;
}
