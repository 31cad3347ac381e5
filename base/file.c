#include "base/file.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

int file_read_fd(int fd, const char *name, size_t limit, struct buf *ret, struct err *err)
{
    enum { PIECE = 65536 };
    size_t before = ret->len;
    ssize_t n;

    do {
        char *room = buf_room(ret, PIECE);

        if (!room)
            return err_set(err, -ENOMEM, "%s: no memory for it", name);
        n = read(fd, room, PIECE);
        if (n < 0 && errno != EINTR)
            return err_errno(err, -errno, "%s: can not be read", name);
        buf_grew(ret, n > 0 ? (size_t)n : 0);
        if (ret->len - before > limit)
            return err_set(err, -E2BIG, "%s: is above %zu bytes", name, limit);
    } while (n != 0);
    return 0;
}

int file_read(const char *path, size_t limit, struct buf *ret, struct err *err)
{
    /* Not blocking: a FIFO would wait for somebody who writes. */
    CLEANUP(fd_close) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;

    if (fd < 0)
        return err_errno(err, -errno, "%s: can not be opened", path);
    if (fstat(fd, &st) < 0)
        return err_errno(err, -errno, "%s: can not be read", path);
    if (!S_ISREG(st.st_mode))
        return err_set(err, -EINVAL, "%s: is no regular file", path);
    return file_read_fd(fd, path, limit, ret, err);
}
