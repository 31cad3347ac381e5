/* pull_plan.h - what a pull fetches, what it is called here, and what of it is
 * there already.
 *
 * Files that make one model here share a manifest: the parts of a GGUF, or all
 * files of another kind of repository. A file that is there and is not what is
 * wanted is replaced only where a manifest says that it came from the same source.
 */
#ifndef CLI_PULL_PLAN_H
#define CLI_PULL_PLAN_H

#include "cli/hub.h"
#include "cli/model_store.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

struct plan_file {
    const struct hub_file *of; /* what the hub says of it */
    char path[HUB_PATH_BYTES]; /* in the folder */
    size_t model;
    bool there;                /* and right: nothing is to be fetched */
    int64_t size;              /* of what is there */
    char sha256[SHA256_HEX + 1];
};

struct plan_model {
    char name[NAME_MAX];
    struct manifest old; /* as it was before; no name: there was none */
};

struct plan {
    const struct store *store;
    char source[STORE_SOURCE_BYTES]; /* as a manifest names it */
    struct plan_file *files;
    size_t n_files;
    struct plan_model *models;
    size_t n_models;
};

void plan_fini(struct plan *p);

/* A file more. `name` (NULL: none was given) replaces the model's. 0, -EINVAL where two
 * files would have one name here, -ENOMEM. */
int plan_add(struct plan *p, const char *repo, const struct hub_file *of, const char *name, struct err *err);

/* Looks at the folder: marks what is there by the manifests, and refuses models of
 * another source, unless `force`. 0, -EEXIST, -errno. */
int plan_look(struct plan *p, bool force, struct err *err);

/* True when the manifest of its model names the file: it may be replaced. */
bool plan_is_ours(const struct plan *p, const struct plan_file *f);

/* Bytes that are still to come; parts that are there do not count. */
int64_t plan_missing(const struct plan *p);

/* Writes the manifest of a model whose files are all there; what the old one names
 * beside them stays in it. */
int plan_record(const struct plan *p, size_t model, const char *revision, const char *commit, struct err *err);

#endif
