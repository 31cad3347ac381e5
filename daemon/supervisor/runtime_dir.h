/* runtime_dir.h - the folder of sockets, owned by one service at a time. */
#ifndef DAEMON_SUPERVISOR_RUNTIME_DIR_H
#define DAEMON_SUPERVISOR_RUNTIME_DIR_H

struct err;

#include <stdbool.h>

/* Makes the folder if it is not there (its parent must be), refuses one that
 * somebody else could write to, and takes its lock. 0 and the lock's
 * descriptor, which holds until it is closed; -EBUSY with a sentence that names
 * the holder; -errno with a sentence. `ret_crashed`: the one before has not left
 * in order, and its children may be about to end. */
int runtime_dir_open(const char *path, int *ret_lock, bool *ret_crashed, struct err *err);
/* An end in order: nothing is left behind. Closes the lock; -1 is fine. */
void runtime_dir_leave(int lock);

#endif
