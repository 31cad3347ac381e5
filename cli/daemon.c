#include "cli/daemon.h"

#include "base/err.h"
#include "cli/program.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MAX_ARGS = 16 };

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

int daemon_run(const char *const *args, struct buf *out, struct err *err)
{
    char program[PATH_MAX];
    const char *argv[MAX_ARGS + 2] = { program };
    int r = daemon_find(program, sizeof program, err);

    for (size_t i = 0; args[i] && i < MAX_ARGS; i++)
        argv[i + 1] = args[i];
    return r < 0 ? r : program_run(argv, out, PROGRAM_ERRORS_TOO, err);
}
