/* The lock is a POSIX record lock: the kernel says who holds it, drops it
 * however that process ends, and no child inherits it. */
#include "daemon/supervisor/runtime_dir.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Open to all below /run for root, as other services' folders are: what is in
 * it has modes of its own. Elsewhere it may lie in a shared place. */
static mode_t folder_mode(const char *path)
{
    return geteuid() == 0 && strncmp(path, "/run/", 5) == 0 ? 0755 : 0700;
}

static int check_folder(const char *path, struct err *err)
{
    struct stat st;

    if (lstat(path, &st) < 0)
        return err_errno(err, -errno, "%s", path);
    if (!S_ISDIR(st.st_mode))
        return err_set(err, -ENOTDIR, "%s: is no folder", path);
    if (st.st_uid != geteuid())
        return err_set(err, -EPERM, "%s: belongs to user %d, but this service runs as user %d", path,
                       (int)st.st_uid, (int)geteuid());
    if (st.st_mode & 0022)
        return err_set(err, -EPERM, "%s: others may write to it (mode %04o)", path,
                       (unsigned)st.st_mode & 07777);
    return 0;
}

static int held(const char *path, int fd, struct err *err)
{
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    char text[16] = "";
    int pid = 0;

    if (fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK)
        pid = lock.l_pid;
    /* A holder in another PID namespace has no number here; it wrote its own. */
    if (pid <= 0 && pread(fd, text, sizeof text - 1, 0) > 0)
        sscanf(text, "%d", &pid);
    return err_set(err, -EBUSY, "fastchatd runs already in %s (pid %d)", path, pid);
}

void runtime_dir_leave(int lock)
{
    /* Before the lock goes: afterwards the file may be another's. */
    if (lock >= 0 && ftruncate(lock, 0) < 0)
        log_warning("supervisor.lock: %s", strerror(errno));
    fd_close(lock);
}

int runtime_dir_open(const char *path, int *ret_lock, bool *ret_crashed, struct err *err)
{
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    CLEANUP(fd_close) int fd = -1;
    char name[PATH_MAX];
    struct stat st;
    int r;

    if (mkdir(path, folder_mode(path)) < 0 && errno != EEXIST)
        return err_errno(err, -errno, "%s", path);
    r = check_folder(path, err);
    if (r)
        return r;
    if (snprintf(name, sizeof name, "%s/supervisor.lock", path) >= (int)sizeof name)
        return err_set(err, -ENAMETOOLONG, "%s: too long", path);
    fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0)
        return err_errno(err, -errno, "%s", name);
    if (fcntl(fd, F_SETLK, &lock) < 0)
        return errno == EAGAIN || errno == EACCES ? held(path, fd, err) : err_errno(err, -errno, "%s", name);
    *ret_crashed = fstat(fd, &st) == 0 && st.st_size > 0;
    if (ftruncate(fd, 0) < 0 || dprintf(fd, "%d\n", (int)getpid()) < 0)
        return err_errno(err, -errno, "%s", name);
    *ret_lock = STEAL_FD(fd);
    return 0;
}
