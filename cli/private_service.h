/* private_service.h - a service that lives as long as this program.
 *
 * `fastchatd`, found beside this program, in a runtime folder of its own that
 * also holds its configuration and its log. It ends with private_stop(), and by
 * the kernel's hand when this program is killed. Signals that ask this program
 * to end, and the end of the service, are seen through term_catch_end(), which
 * the caller has called.
 */
#ifndef CLI_PRIVATE_SERVICE_H
#define CLI_PRIVATE_SERVICE_H

#include "base/cleanup.h"

#include <stdbool.h>

struct err;
struct private_service;

/* An empty folder for it. 0 or -errno with a sentence. */
int private_open(struct private_service **ret, struct err *err);
/* Ends what runs, waits for it, removes the folder; NULL is fine. */
void private_stop(struct private_service *p);
DEFINE_CLEANUP(struct private_service *, private_stop)

/* The runtime folder: what service_args want. */
const char *private_dir(const struct private_service *p);

/* Starts it with this text as its configuration; `show_log`: what it logs goes to
 * stderr. 0 or -errno with a sentence. */
int private_start(struct private_service *p, const char *config, bool show_log, struct err *err);

/* Waits until the api offers every model, with a line of progress about `name` on
 * a terminal. 0; PRIVATE_INTERRUPTED; -errno with the reason of the service. */
enum { PRIVATE_INTERRUPTED = 1 };
int private_wait(struct private_service *p, const char *name, struct err *err);

/* 0 while it runs; after it ended by itself -ECHILD with the reason. */
int private_check(struct private_service *p, struct err *err);

#endif
