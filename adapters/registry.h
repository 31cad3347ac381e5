/* registry.h - models that people know by name: what they are called, who made them, where to read about them.
 *
 * A table for what shows models (a list, a page); nothing is decided by it. Threads: any.
 */
#ifndef ADAPTERS_REGISTRY_H
#define ADAPTERS_REGISTRY_H

#include <stdbool.h>
#include <stddef.h>

struct model_info {
    const char *name;               /* "Llama 3.1" */
    const char *organisation;       /* "Meta"; "": not known */
    const char *link;               /* "": none */
};

/* By the name that a service gives a model, as it is written. false: not known, and the name is the one given. */
bool model_info(const char *model, struct model_info *ret);

/* By number, in the table's order: one model of it, its length, and what that row says of it (which need not be the last
 * word); NULL past the end. */
const char *model_info_at(size_t index, size_t *ret_len, struct model_info *ret);

#endif
