/* hub_choose.h - which files of a repository are wanted, and what they are called
 * here.
 *
 * A repository of GGUF files holds the same model many times; one is taken, whole
 * if it is in several files: the quantisation that was asked for, else the first
 * of a table of those that the service runs well. Of a repository of safetensors
 * the weights, the configuration and the tokenizer are taken.
 */
#ifndef CLI_HUB_CHOOSE_H
#define CLI_HUB_CHOOSE_H

#include "cli/hub.h"

#include <stdbool.h>
#include <stddef.h>

struct err;

struct hub_wish {
    const struct hub_source *source;   /* its tag and path */
    const char *const *files;          /* names or patterns; fnmatch(3), "*" crosses "/" */
    size_t n_files;
    const char *include, *exclude;     /* comma-separated patterns, or NULL */
};

/* Marks in `chosen` ([listing->n_files], all false before) what is wanted: one file
 * at least, each with a safe path. 0; -ENOENT with a sentence that names what there is
 * instead; -EINVAL for an unsafe path. */
int hub_choose(const struct hub_listing *listing, const struct hub_wish *wish, bool *chosen, struct err *err);

/* True for weights as the service reads them. */
bool hub_is_gguf(const char *path);

/* True when the path speaks of `tag` as a word of its own, in upper or lower case. */
bool hub_has_tag(const char *path, const char *tag);
/* True when one of the comma-separated patterns fits. */
bool hub_matches(const char *patterns, const char *path);

/* The quantisation that a GGUF file's name speaks of, as the table spells it, or NULL. */
const char *hub_quantisation(const char *path);
/* True when the service's worker computes with it; all such, with commas between. */
bool hub_quantisation_runs(const char *quantisation);
void hub_quantisations_that_run(struct buf *out);

/* What a GGUF file is called here: its own name, or REPOSITORY-NAME where that says
 * nothing ("model.gguf", "Q4_K_M.gguf"). `name` replaces all but the "-00001-of-00003"
 * and the end when it is not NULL. False: too long. */
bool hub_local_name(const char *repo, const char *path, const char *name, char *ret, size_t size);

#endif
