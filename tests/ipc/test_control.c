#include "base/err.h"
#include "ipc/control.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static int a, b;                        /* the two ends */
static struct control_frame frame;      /* 64 kB: too much for some stacks */
static struct err err;

static void setup(void)
{
    int pair[2];

    cr_assert(zero(int, socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)));
    a = pair[0];
    b = pair[1];
    memset(&err, 0, sizeof err);
}

static void teardown(void)
{
    close(a);
    if (b >= 0)
        close(b);
}

TestSuite(control, .init = setup, .fini = teardown);

static int count_fds(void)
{
    int n = 0;

    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

Test(control, a_frame_arrives_as_it_was_sent)
{
    cr_assert(zero(int, control_send_json(a, CONTROL_STATE, "{\"state\":\"ready\"}")));
    cr_assert(zero(int, control_send(a, CONTROL_STOP, NULL, 0, NULL, 0)));
    cr_assert(zero(int, control_recv(b, &frame, &err)));
    cr_expect(eq(int, frame.type, CONTROL_STATE));
    cr_expect(eq(str, frame.payload, "{\"state\":\"ready\"}"));
    cr_expect(eq(sz, frame.len, strlen(frame.payload)));
    cr_expect(eq(sz, frame.n_fds, 0));
    uint64_t seq = frame.seq;
    cr_assert(zero(int, control_recv(b, &frame, &err)));
    cr_expect(eq(int, frame.type, CONTROL_STOP));
    cr_expect(eq(str, frame.payload, ""));
    cr_expect(gt(u64, frame.seq, seq));
    cr_expect(eq(int, control_recv(b, &frame, &err), CONTROL_AGAIN));
}

Test(control, the_largest_payload_fits_and_one_byte_more_is_refused)
{
    static char big[CONTROL_PAYLOAD + 1];

    memset(big, 'x', sizeof big);
    cr_assert(zero(int, control_send(a, CONTROL_HELLO, big, CONTROL_PAYLOAD, NULL, 0)));
    cr_assert(zero(int, control_recv(b, &frame, &err)));
    cr_expect(eq(sz, frame.len, CONTROL_PAYLOAD));
    cr_expect(eq(int, frame.payload[CONTROL_PAYLOAD], 0));
    cr_expect(eq(int, control_send(a, CONTROL_HELLO, big, sizeof big, NULL, 0), -EMSGSIZE));
}

Test(control, descriptors_arrive_closed_on_exec)
{
    int pipes[2];
    char c = 0;

    cr_assert(zero(int, pipe(pipes)));
    cr_assert(zero(int, control_send(a, CONTROL_LISTEN, "{}", 2, pipes, 2)));
    cr_assert(zero(int, control_recv(b, &frame, &err)));
    cr_assert(eq(sz, frame.n_fds, 2));
    cr_expect(eq(int, frame.fds[2], -1));
    cr_expect(fcntl(frame.fds[0], F_GETFD) & FD_CLOEXEC);
    cr_assert(eq(int, (int)write(frame.fds[1], "y", 1), 1));
    cr_assert(eq(int, (int)read(pipes[0], &c, 1), 1));
    cr_expect(eq(chr, c, 'y'));
    control_close_fds(&frame);
    cr_expect(eq(int, frame.fds[0], -1));
    close(pipes[0]);
    close(pipes[1]);
}

Test(control, the_end_of_the_peer_is_told_from_silence)
{
    cr_expect(eq(int, control_recv(a, &frame, &err), CONTROL_AGAIN));
    close(b);
    b = -1;
    cr_expect(eq(int, control_recv(a, &frame, &err), CONTROL_EOF));
    cr_expect(eq(int, control_send_json(a, CONTROL_STOP, "{}"), CONTROL_EOF));
}

Test(control, a_full_queue_says_again)
{
    static char big[CONTROL_PAYLOAD];
    int r = 0;

    for (int i = 0; i < 1000 && r == 0; i++)
        r = control_send(a, CONTROL_HELLO, big, sizeof big, NULL, 0);
    cr_expect(eq(int, r, CONTROL_AGAIN));
}

struct wire {
    uint32_t magic;
    uint16_t version, type;
    uint64_t seq, mono_us;
    uint32_t len, reserved;
    char payload[8];
};

/* A good frame as raw bytes, taken from the sender itself. */
static struct wire good_frame(void)
{
    struct wire w = { 0 };

    cr_assert(zero(int, control_send(a, CONTROL_HELLO, "12345678", 8, NULL, 0)));
    cr_assert(eq(int, (int)recv(b, &w, sizeof w, 0), (int)sizeof w));
    return w;
}

static void send_with_fds(const void *data, size_t len, int n_fds)
{
    struct iovec part = { (void *)data, len };
    union {
        struct cmsghdr align;
        char data[CMSG_SPACE(64 * sizeof(int))];
    } space = { 0 };
    struct msghdr msg = { .msg_iov = &part, .msg_iovlen = 1 };
    int fds[64];

    if (n_fds) {
        msg.msg_control = space.data;
        msg.msg_controllen = CMSG_SPACE((size_t)n_fds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN((size_t)n_fds * sizeof(int));
        for (int i = 0; i < n_fds; i++)
            fds[i] = a;
        memcpy(CMSG_DATA(c), fds, (size_t)n_fds * sizeof(int));
    }
    cr_assert(ge(int, (int)sendmsg(a, &msg, 0), 0));
}

static void refused(const void *data, size_t len, int n_fds, const char *why)
{
    int before = count_fds();

    err_clear(&err);
    send_with_fds(data, len, n_fds);
    cr_expect(eq(int, control_recv(b, &frame, &err), -EPROTO), "%s", why);
    cr_expect(strstr(err_text(&err), why) != NULL, "'%s' lacks '%s'", err_text(&err), why);
    cr_expect(eq(sz, frame.n_fds, 0));
    /* qemu-user keeps those that were too many for it. */
    if (!getenv("FASTCHAT_EMULATED"))
        cr_expect(eq(int, count_fds(), before), "%s: descriptors leaked", why);
}

Test(control, every_kind_of_bad_frame_is_refused_and_leaks_nothing)
{
    static char huge[CONTROL_PAYLOAD + 33];
    struct wire w = good_frame(), bad;

    refused(&w, 31, 0, "no header");
    refused(&w, 1, 1, "no header");
    refused("", 0, 1, "no header");
    bad = w, bad.magic ^= 1;
    refused(&bad, sizeof bad, 1, "magic");
    bad = w, bad.version = 2;
    refused(&bad, sizeof bad, 1, "version");
    bad = w, bad.len = 9;
    refused(&bad, sizeof bad, 1, "says 9 bytes");
    bad = w, bad.len = 7;
    refused(&bad, sizeof bad, 0, "says 7 bytes");
    bad = w, bad.len = UINT32_MAX;
    refused(&bad, sizeof bad, 0, "payload");
    bad = w, bad.reserved = 1;
    refused(&bad, sizeof bad, 0, "reserved");
    w.len = CONTROL_PAYLOAD + 1;
    memcpy(huge, &w, 32);
    refused(huge, sizeof huge, 1, "over 65536");
    w.len = 8;
    refused(&w, sizeof w, CONTROL_FDS + 1, "descriptors");
    refused(&w, sizeof w, 60, "descriptors");
    /* and the channel itself still works */
    send_with_fds(&w, sizeof w, CONTROL_FDS);
    cr_assert(zero(int, control_recv(b, &frame, &err)));
    cr_expect(eq(sz, frame.n_fds, CONTROL_FDS));
    control_close_fds(&frame);
}

Test(control, a_memfd_brings_text_that_is_longer_than_a_frame)
{
    enum { LEN = 300000 };
    char *text = malloc(LEN + 1), *back = NULL;
    size_t len = 0;

    memset(text, 'j', LEN);
    text[LEN] = '\0';
    cr_assert(zero(int, control_send_memfd(a, CONTROL_SETTINGS, text, LEN, &err)));
    cr_assert(zero(int, control_recv(b, &frame, &err)));
    cr_assert(eq(sz, frame.n_fds, 1));
    cr_expect(lt(int, (int)write(frame.fds[0], "x", 1), 0));
    cr_assert(zero(int, control_read_memfd(frame.fds[0], &back, &len, &err)));
    cr_expect(eq(sz, len, LEN));
    cr_expect(eq(str, back, text));
    free(back);
    free(text);
    control_close_fds(&frame);
}

Test(control, a_descriptor_that_is_not_a_sealed_memory_file_is_refused)
{
    char *text = NULL;
    int fd = memfd_create("t", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    cr_assert(eq(int, (int)write(fd, "{}", 2), 2));
    cr_expect(eq(int, control_read_memfd(fd, &text, NULL, &err), -EINVAL));
    cr_expect(strstr(err_text(&err), "sealed") != NULL);
    cr_assert(zero(int, fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)));
    cr_expect(eq(int, control_read_memfd(fd, &text, NULL, NULL), -EINVAL));
    cr_assert(zero(int, fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE)));
    cr_assert(zero(int, control_read_memfd(fd, &text, NULL, NULL)));
    cr_expect(eq(str, text, "{}"));
    free(text);
    close(fd);

    fd = memfd_create("t", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    cr_assert(zero(int, ftruncate(fd, (64 << 20) + 1)));
    cr_assert(zero(int, fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)));
    cr_expect(eq(int, control_read_memfd(fd, &text, NULL, NULL), -EINVAL));
    close(fd);

    cr_expect(eq(int, control_read_memfd(a, &text, NULL, NULL), -EINVAL));
    fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    cr_expect(eq(int, control_read_memfd(fd, &text, NULL, NULL), -EINVAL));
    close(fd);
}
