/* models.h - what the api says it serves. */
#ifndef CLI_MODELS_H
#define CLI_MODELS_H

#include <stdbool.h>

struct err;
struct target;

/* The id of the first model, to free(), or NULL when there is none. 0 or -errno
 * with a sentence. */
int models_first(const struct target *api, char **ret, struct err *err);

/* 0 when every model is loaded; -EAGAIN with one that is not; -errno. */
int models_ready(const struct target *api, struct err *err);

/* Is there a model of this name? False too when the api does not answer. */
bool models_has(const struct target *api, const char *name);

#endif
