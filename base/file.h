/* file.h - a file that is small enough to be had whole. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include <stddef.h>

struct buf;
struct err;

/* Appends the bytes of a regular file. 0; -ENOENT and other numbers of open(2) and read(2); -EINVAL: no regular
 * file; -E2BIG: over `limit` bytes, whatever it claims to have; -ENOMEM; with a sentence, the path in front. */
int file_read(const char *path, size_t limit, struct buf *ret, struct err *err);
/* The same of what is open and may be a pipe, to its end; `name` is for messages. */
int file_read_fd(int fd, const char *name, size_t limit, struct buf *ret, struct err *err);

#endif
