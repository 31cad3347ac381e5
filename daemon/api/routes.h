/* routes.h - follows the controller's routing table.
 *
 * GET /routes is a stream without end, one line a table. When it breaks or
 * falls silent the last table stays and the connection is made again, after a
 * delay that doubles up to two seconds and starts over once a line has come.
 *
 * Source   docs/wire.md, part 3
 */
#ifndef DAEMON_API_ROUTES_H
#define DAEMON_API_ROUTES_H

#include "base/cleanup.h"

struct api;
struct err;
struct routes;

/* known() is called once, with the first table. */
int routes_open(struct api *api, void (*known)(void *user), void *user, struct routes **ret, struct err *err);
void routes_close(struct routes *r);                /* NULL is fine */
DEFINE_CLEANUP(struct routes *, routes_close)

#endif
