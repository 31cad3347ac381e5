/* convert.h - other servers' command lines as one configuration of ours.
 *
 * Several commands (a controller, workers, an API server) make one service.
 * Whatever has no equivalent is a comment in the configuration, whatever nobody
 * knows is also a warning; nothing is dropped in silence. Facts about flags are
 * rows of flags.def. No output.
 */
#ifndef CLI_CONVERT_H
#define CLI_CONVERT_H

#include <stddef.h>

struct buf;
struct convert;
struct err;

/* NULL: no memory. */
struct convert *convert_new(void);
void convert_free(struct convert *c);               /* NULL is fine */

/* Takes one command. 0; CONVERT_FOREIGN with a sentence when it starts no server
 * that is known here; -ENOMEM, -E2BIG. */
enum { CONVERT_FOREIGN = 1 };
int convert_take(struct convert *c, const char *const *words, size_t n, struct err *err);

/* The configuration. */
void convert_write(const struct convert *c, struct buf *out);
/* A line for each flag that nobody knows; "" when there is none. */
const char *convert_warnings(const struct convert *c);
/* How many flags are only in comments. */
size_t convert_lost(const struct convert *c);
size_t convert_count(const struct convert *c);      /* of commands taken */

#endif
