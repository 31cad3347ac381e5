/* daemon.h - fastchatd, the program beside this one. */
#ifndef CLI_DAEMON_H
#define CLI_DAEMON_H

#include <stddef.h>

struct buf;
struct err;

#define DAEMON_CONFIG "/etc/fastchat/fastchat.conf" /* what it reads when nobody says otherwise */

/* Its path: beside this program, or where sbin is beside bin. 0 or -ENOENT with a
 * sentence. */
int daemon_find(char *ret, size_t size, struct err *err);

/* Runs it with these arguments (argv[0] is put in front, NULL ends them). Its
 * stdout and stderr are ours, or with `out` both go there. Its exit code, or
 * -errno with a sentence. */
int daemon_run(const char *const *args, struct buf *out, struct err *err);

#endif
