#include "cli/daemon.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_ARGS = 16, MAX_OUTPUT = 4 << 20, EXIT_NO_PROGRAM = 127 };

int daemon_find(char *ret, size_t size, struct err *err)
{
    static const char *const places[] = { "fastchatd", "../sbin/fastchatd" };
    char own[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", own, sizeof own - 1);
    char *slash;

    own[n > 0 ? n : 0] = 0;
    slash = strrchr(own, '/');
    if (slash)
        *slash = 0;
    for (size_t i = 0; slash && i < sizeof places / sizeof places[0]; i++)
        if (snprintf(ret, size, "%s/%s", own, places[i]) < (int)size && access(ret, X_OK) == 0)
            return 0;
    return err_set(err, -ENOENT, "%s/fastchatd: there is no such program, and it is needed for this", own);
}

static _Noreturn void become(const char *program, const char *const *args, int out)
{
    char *argv[MAX_ARGS + 2] = { (char *)program };

    for (size_t i = 0; args[i] && i < MAX_ARGS; i++)
        argv[i + 1] = (char *)args[i];
    process_fresh();
    if (out >= 0) {
        dup2(out, STDOUT_FILENO);
        dup2(out, STDERR_FILENO);
    }
    execv(program, argv);
    _exit(EXIT_NO_PROGRAM);
}

static void read_all(int fd, struct buf *out)
{
    char *room;
    ssize_t n = 1;

    while (n != 0 && out->len < MAX_OUTPUT && (room = buf_room(out, 65536))) {
        n = read(fd, room, 65536);
        if (n > 0)
            buf_grew(out, (size_t)n);
        if (n < 0 && errno != EINTR)
            return;
    }
}

int daemon_run(const char *const *args, struct buf *out, struct err *err)
{
    char program[PATH_MAX];
    CLEANUP(fd_close) int from = -1;
    CLEANUP(fd_close) int to = -1;
    int fds[2], status, r = daemon_find(program, sizeof program, err);
    pid_t child;

    if (r < 0)
        return r;
    if (out && pipe2(fds, O_CLOEXEC) < 0)
        return err_errno(err, -errno, "a pipe");
    if (out) {
        from = fds[0];
        to = fds[1];
    }
    fflush(stdout);
    child = fork();
    if (child < 0)
        return err_errno(err, -errno, "%s", program);
    if (child == 0)
        become(program, args, to);
    fd_close(STEAL_FD(to));
    if (out)
        read_all(from, out);
    fd_close(STEAL_FD(from));   /* whoever writes more than that ends by it */
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return err_errno(err, -errno, "%s", program);
    if (!WIFEXITED(status))
        return err_set(err, -ECHILD, "%s was ended by signal %d", program, WTERMSIG(status));
    if (WEXITSTATUS(status) == EXIT_NO_PROGRAM)
        return err_set(err, -ENOEXEC, "%s cannot be run", program);
    return WEXITSTATUS(status);
}
