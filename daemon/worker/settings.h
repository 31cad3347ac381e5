/* settings.h - what the supervisor tells a worker (docs/wire.md, part 1), read
 * into a struct at the start; of what comes later, only what can change while
 * requests run.
 */
#ifndef DAEMON_WORKER_SETTINGS_H
#define DAEMON_WORKER_SETTINGS_H

#include "gen/engine.h"
#include "gen/weights.h"

#include <cjson/cJSON.h>

struct arena;
struct conv_registry;
struct err;

struct settings {
    const char *worker_name;            /* its identity for controllers */
    const char *unix_path;              /* NULL: none */
    const char *const *controllers;     /* [n_controllers] */
    size_t n_controllers;
    const char *name;                   /* of the model */
    const char *const *aliases;         /* [n_aliases] */
    size_t n_aliases;
    const char *path, *device, *isa, *kv_type, *chat_template;
    const char *speculative, *draft_model;  /* NULL: none */
    struct conv_registry *registry;     /* the built-in chat templates and those that came; NULL: no others came */
    uint32_t replica, context, threads, parallel, queue, draft_tokens;
    uint64_t kv_tokens;
    enum weights_want share_weights;
    enum engine_prefix prefix;
    struct sample_params sample;        /* the configured values over sample_defaults */
    uint32_t max_tokens;                /* 0: nobody set it */
};

/* 0 or -EINVAL with the key's name. Strings point into `tree`, lists are in `a`. */
int settings_read(const cJSON *tree, struct arena *a, struct settings *ret, struct err *err);
void settings_fini(struct settings *s);             /* of settings_read() or zeroes */

/* From new settings: aliases, queue, sampling values and max_tokens into *s; all
 * else of it stays. Nothing points into `tree` afterwards, the aliases lie in
 * `a`. 0, or -EINVAL/-ENOMEM and *s is untouched. */
int settings_renew(const cJSON *tree, struct arena *a, struct settings *s, struct err *err);

#define SEED_LIMIT ((int64_t)1 << 53)   /* what a JSON number holds exactly */

/* The sampling fields of `obj` that are there, each within its range, into *p.
 * 0, or -EINVAL and the field's name in *ret_key. */
int sampling_read(const cJSON *obj, struct sample_params *p, const char **ret_key, struct err *err);

#endif
