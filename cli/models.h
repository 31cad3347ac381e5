/* models.h - what the api says it serves. */
#ifndef CLI_MODELS_H
#define CLI_MODELS_H

struct err;
struct target;

/* The id of the first model, to free(), or NULL when there is none. 0 or -errno
 * with a sentence. */
int models_first(const struct target *api, char **ret, struct err *err);

#endif
