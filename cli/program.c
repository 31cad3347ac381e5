#include "cli/program.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_OUTPUT = 4 << 20, READ = 65536, EXIT_NO_PROGRAM = 127 };

static _Noreturn void become(const char *const *argv, int out, enum program_errors errors)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    process_fresh();
    if (out >= 0 && (null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0 ||
                     dup2(errors == PROGRAM_ERRORS_TOO ? out : null, STDERR_FILENO) < 0))
        _exit(EXIT_NO_PROGRAM);
    execvp(argv[0], (char *const *)argv);
    _exit(EXIT_NO_PROGRAM);
}

static void read_all(int fd, struct buf *out)
{
    ssize_t n = 1;
    char *room;

    while (n != 0 && out->len < MAX_OUTPUT && (room = buf_room(out, READ))) {
        n = read(fd, room, READ);
        if (n > 0)
            buf_grew(out, (size_t)n);
        if (n < 0 && errno != EINTR)
            return;
    }
}

int program_run(const char *const *argv, struct buf *out, enum program_errors errors, struct err *err)
{
    CLEANUP(fd_close) int from = -1;
    CLEANUP(fd_close) int to = -1;
    int fds[2], status;
    pid_t child;

    if (out && pipe2(fds, O_CLOEXEC) < 0)
        return err_errno(err, -errno, "a pipe");
    if (out) {
        from = fds[0];
        to = fds[1];
    }
    fflush(stdout);
    child = fork();
    if (child < 0)
        return err_errno(err, -errno, "%s", argv[0]);
    if (child == 0)
        become(argv, to, errors);
    fd_close(STEAL_FD(to));
    if (out)
        read_all(from, out);
    fd_close(STEAL_FD(from));
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return err_errno(err, -errno, "%s", argv[0]);
    if (!WIFEXITED(status))
        return err_set(err, -ECHILD, "%s was ended by signal %d", argv[0], WTERMSIG(status));
    if (WEXITSTATUS(status) == EXIT_NO_PROGRAM)
        return err_set(err, -ENOENT, "%s cannot be run", argv[0]);
    return WEXITSTATUS(status);
}
