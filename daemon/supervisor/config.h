/* config.h - fastchat.conf: what the administrator asked for, checked whole.
 *
 * The schema is closed and stands in config.def, one row a key. config_load()
 * reads the file and the conf.d/NAME.conf files beside it (in order of their
 * names; a later file overrides single settings and adds models), and either
 * gives back a configuration in which every value has its type and range, files
 * exist and nothing is said twice, or every fault it found:
 *
 *     fastchat.conf:12: models[1].paht: unknown key; did you mean "path"?
 *
 * A group (a section, a listener, a model) holds one value a row; a model also
 * holds the rows of `defaults`, with the values it inherits. Paths are absolute.
 *
 * Chat templates come from files of supervisor.template_dirs and from the list
 * `templates`; they are checked whole with the rest, and a wrong one is a fault.
 *
 * Syntax   libconfig 1.5, without @include
 * Limits   1 MB a file, 256 models, 256 workers in all, 64 listeners, 256 templates of 4 MB in all
 */
#ifndef DAEMON_SUPERVISOR_CONFIG_H
#define DAEMON_SUPERVISOR_CONFIG_H

#include "base/buf.h"
#include "base/cleanup.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

enum { CONFIG_MAX_MODELS = 256, CONFIG_MAX_WORKERS = 256, CONFIG_MAX_LISTENERS = 64, CONFIG_MAX_TEMPLATES = 256 };

enum config_section {
    CONFIG_SUPERVISOR, CONFIG_CONTROLLER, CONFIG_API, CONFIG_LISTEN, CONFIG_DEFAULTS, CONFIG_MODEL,
    CONFIG_TEMPLATE, CONFIG_N_SECTIONS,
};

enum config_type {
    CONFIG_INT, CONFIG_FLOAT, CONFIG_STRING, CONFIG_CHOICE, CONFIG_MODE,
    CONFIG_CPUS,            /* cpu_list.h */
    CONFIG_PATH,            /* of a folder or socket; made absolute */
    CONFIG_FILE,            /* a regular file that can be read */
    CONFIG_NAME,            /* of a model */
    CONFIG_GROUP,           /* a system group that exists */
    CONFIG_ADDRESS,         /* ipc/address.h */
    CONFIG_PATHS, CONFIG_NAMES, CONFIG_ADDRESSES,      /* lists of those */
    CONFIG_LISTENERS,       /* groups of section LISTEN, or their addresses */
    CONFIG_FIELD,           /* of a chat template: any text, number or list, kept as JSON; conv/ knows what it may be */
};

/* What a reload needs so that another value takes effect. */
enum config_applies {
    CONFIG_LIVE,            /* nothing: running processes are told */
    CONFIG_CHILD,           /* other processes in place of those concerned */
    CONFIG_SERVICE,         /* the service to be started anew: a reload refuses it */
};

/* SUPERVISOR_runtime_dir, DEFAULTS_device, … */
enum config_key {
#define CONFIG(section, key, type, applies, def, unit, min, max, doc) section##_##key,
#include "daemon/supervisor/config.def"
#undef CONFIG
    CONFIG_N_KEYS,
};

struct config_row {
    enum config_section section;
    const char *name;
    enum config_type type;
    enum config_applies applies;
    const char *def, *unit;
    double min, max;
    const char *doc;
};

extern const struct config_row config_rows[CONFIG_N_KEYS];
extern const char *const config_section_names[CONFIG_N_SECTIONS];

struct config_value {
    bool set;
    int64_t i;              /* INT, MODE; a GROUP's gid */
    double f;
    const char *s;
    const char *const *list;
    size_t n_list;
    const char *file;       /* where it was said; NULL: the default */
    int line;
};

struct config_group {
    const char *label;      /* "models[1]", for messages */
    const char *file;
    int line;
    struct config_value values[CONFIG_N_KEYS];      /* those of other sections are unset */
};

/* A chat template: a row (conv/conv.h) as JSON, a Jinja text, or both. */
struct config_template {
    const char *name;
    const char *row, *jinja;        /* NULL: it has none */
    const char *file;               /* that has it; the row's when there are two */
    int line;                       /* 0: the file is the template */
};

struct config {
    const char *path;       /* absolute */
    const char *const *files;       /* all that were read, in order */
    size_t n_files;
    struct config_group sections[CONFIG_N_SECTIONS];        /* not LISTEN, MODEL and TEMPLATE */
    struct config_group **listeners;
    size_t n_listeners;
    struct config_group **models;
    size_t n_models;            /* those of model_folders last; their `line` is 0 */
    struct config_group **template_groups;          /* as said; what they come to is in templates */
    size_t n_template_groups;
    struct config_template *templates;              /* [n_templates], by name */
    size_t n_templates;
    const char *const *notes;   /* sentences: what was left out and is no fault */
    size_t n_notes;
    struct arena *arena;
};

/* 0 and a configuration the caller frees, or -EINVAL and in `errors` one line
 * for each fault; -ENOENT when there is no such file (one line too). */
int config_load(const char *path, struct config **ret, struct buf *errors);
void config_free(struct config *c);                 /* NULL is fine */
/* From which file it will be read again. 0 or -ENOMEM. */
int config_set_path(struct config *c, const char *path);
DEFINE_CLEANUP(struct config *, config_free)

/* Values of a section: config_int(c, SUPERVISOR_drain_s). */
int64_t config_int(const struct config *c, enum config_key key);
const char *config_str(const struct config *c, enum config_key key);       /* NULL: unset */
/* supervisor.parts = "workers": no controller and no api, whatever their sections say. */
bool config_only_workers(const struct config *c);

/* The settings as a file that loads to the same settings, each with a comment
 * that says where it comes from. */
void config_dump(const struct config *c, struct buf *out);
/* One setting that differs: `was` and `is` as a file would have them, "" where
 * it is not set. row NULL: the model or template as a whole is new (`is`: its file) or gone; a template
 * that changed has both. */
struct config_change {
    const char *model;          /* NULL: of a section */
    const char *template;       /* a chat template; NULL: none */
    const struct config_row *row;
    const char *was, *is;
    const char *file;           /* where it is said now; NULL: the default */
    int line;
};
typedef void config_change_fn(const struct config_change *change, void *user);
/* Calls fn with each, in the order of the documentation, models and templates last. */
void config_diff(const struct config *was, const struct config *is, config_change_fn *fn, void *user);
/* "ms, 50 to 60000", as etc/fastchat.conf and the manual say it. */
void config_row_range(const struct config_row *row, struct buf *out);
/* `key = default;` as it could stand in a file; nothing for a row without one. */
void config_row_default(const struct config_row *row, struct buf *out);

/* What a child is told (docs/wire.md, part 1). The worker's own address is
 * `worker_name`; `replica` counts from 0. */
void config_controller_settings(const struct config *c, struct buf *out);
void config_api_settings(const struct config *c, struct buf *out);
void config_worker_settings(const struct config *c, size_t model, int replica,
                            const char *worker_name, const char *unix_path, struct buf *out);

/* The place of a model among c->models, or -1. */
int config_find_model(const struct config *c, const char *name);
/* What a running process can not change (rows marked CHILD) as text: two equal
 * texts, and the process fits. `model` counts for CONFIG_MODEL only; sections
 * are CONTROLLER, API (with the listeners) and MODEL, each with SUPERVISOR's. */
void config_fingerprint(const struct config *c, enum config_section section, size_t model, struct buf *out);
/* The first setting that differs between the two and would need the service to
 * be started anew (rows marked SERVICE); NULL: none. */
const struct config_row *config_needs_restart(const struct config *a, const struct config *b);
/* -EINVAL with the sentence that refuses `c` for such a row. */
int config_restart_fault(const struct config *c, const struct config_row *row, struct err *err);

/* Paths of sockets in the runtime folder. */
void config_socket_path(const struct config *c, const char *name, struct buf *out);
/* "worker-m-0": the process that serves a replica, as a name for a file; the
 * model's name is cut and cleaned, and told apart by a hash then. `generation`
 * tells processes apart that serve the same replica for a while, when one takes
 * the other's place. */
void config_worker_id(const char *model, int replica, unsigned generation, struct buf *out);
void config_worker_socket(const struct config *c, size_t model, int replica, unsigned generation, struct buf *out);
/* The address of a replica that `key` (MODEL_listen or MODEL_advertise) names,
 * with the port counted upward; empty when it is not set or above 65535. */
void config_worker_tcp(const struct config *c, size_t model, int replica, enum config_key key,
                       struct buf *out);

#endif
