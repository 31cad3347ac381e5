#include "base/process.h"
#include "daemon/supervisor/supervisor_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/mempolicy.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { EXIT_NO_PROGRAM = 127, CLOSE_MS = 5000, NODES = 1024, LONG_BITS = 8 * sizeof(long) };

static int result(long r)
{
    return r < 0 ? -errno : 0;
}

/* Preferred, not bound to: a model that is larger than its node still works. A
 * kernel that knows no nodes has one. */
static int prefer_node(int node)
{
    unsigned long mask[NODES / LONG_BITS] = { 0 };
    int r;

    mask[(size_t)node / LONG_BITS] = 1ul << (size_t)node % LONG_BITS;
    r = result(syscall(SYS_set_mempolicy, MPOL_PREFERRED, mask, NODES + 1));
    return r == -ENOSYS && node == 0 ? 0 : r;
}

static struct place_faults take_place(const struct place *p)
{
    struct place_faults f = { 0 };

    if (p->entrance >= 0)
        f.entrance = result(write(p->entrance, "0", 1));
    if (p->has_cpus)
        f.cpus = result(syscall(SYS_sched_setaffinity, 0, sizeof p->cpus, &p->cpus));
    if (p->numa_node >= 0)
        f.numa_node = prefer_node(p->numa_node);
    if (p->has_nice)
        f.nice = result(setpriority(PRIO_PROCESS, 0, p->nice));
    return f;
}

static void take_descriptors(int channel)
{
    int null = open("/dev/null", O_RDWR);

    if (null >= 0)
        dup2(null, 0);
    if (channel == CONTROL_FD)
        fcntl(channel, F_SETFD, 0);
    else
        dup2(channel, CONTROL_FD);
    close_range(CONTROL_FD + 1, ~0u, 0);
}

static _Noreturn void become(const char *program, const char *const *argv, int channel, const struct place *place, int said, pid_t parent)
{
    struct place_faults faults;

    setpgid(0, 0);
    /* The signal comes when the parent's thread ends; it may have before this
     * line, and then nobody would ever end us. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    process_fresh();
    faults = take_place(place);
    if (write(said, &faults, sizeof faults) < 0)
        _exit(1);
    take_descriptors(channel);
    execv(program, (char *const *)argv);
    dprintf(2, "%s: %s\n", program, strerror(errno));
    _exit(EXIT_NO_PROGRAM);
}

/* Until the child has closed what it inherited, it holds a copy of every socket
 * of ours, and the address of one that we close meanwhile stays in use. It says
 * so by closing its end of a pipe like the rest, and before that what came of
 * its place. */
static void wait_until_closed(int fd, struct place_faults *ret)
{
    struct pollfd p = { .fd = fd, .events = POLLIN };
    ssize_t n;

    do {
        while ((n = poll(&p, 1, CLOSE_MS)) < 0 && errno == EINTR)
            continue;
        if (n > 0)
            n = read(fd, ret, sizeof *ret);
    } while (n > 0);
}

pid_t spawn(const char *program, const char *const *argv, int channel, const struct place *place, struct place_faults *ret)
{
    pid_t parent = getpid(), pid;
    int said[2], r;

    *ret = (struct place_faults){ 0 };
    if (pipe2(said, O_CLOEXEC) < 0)
        return -errno;
    pid = fork();
    r = pid < 0 ? -errno : pid;
    if (pid == 0)
        become(program, argv, channel, place, said[1], parent);
    close(said[1]);
    if (pid > 0) {
        setpgid(pid, pid);      /* whoever comes first; a kill may follow at once */
        wait_until_closed(said[0], ret);
    }
    close(said[0]);
    return r;
}
