#include "base/process.h"
#include "daemon/supervisor/supervisor_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { EXIT_NO_PROGRAM = 127, CLOSE_MS = 1000 };

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

static _Noreturn void become(const char *program, const char *const *argv, int channel, pid_t parent)
{
    setpgid(0, 0);
    /* The signal comes when the parent's thread ends; it may have before this
     * line, and then nobody would ever end us. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    process_fresh();
    take_descriptors(channel);
    execv(program, (char *const *)argv);
    dprintf(2, "%s: %s\n", program, strerror(errno));
    _exit(EXIT_NO_PROGRAM);
}

/* Until the child has closed what it inherited, it holds a copy of every socket
 * of ours, and the address of one that we close meanwhile stays in use. It says
 * so by closing its end of a pipe like the rest. */
static void wait_until_closed(int fd)
{
    struct pollfd p = { .fd = fd };

    while (poll(&p, 1, CLOSE_MS) < 0 && errno == EINTR)
        continue;
}

pid_t spawn(const char *program, const char *const *argv, int channel)
{
    pid_t parent = getpid(), pid;
    int said[2], r;

    if (pipe2(said, O_CLOEXEC) < 0)
        return -errno;
    pid = fork();
    r = pid < 0 ? -errno : pid;
    if (pid == 0)
        become(program, argv, channel, parent);
    close(said[1]);
    if (pid > 0) {
        setpgid(pid, pid);      /* whoever comes first; a kill may follow at once */
        wait_until_closed(said[0]);
    }
    close(said[0]);
    return r;
}
