/* catalog.h - which models there are, who serves them, and who gets the next
 * request. No I/O.
 *
 * Three sources meet here: the models of the settings, the supervisor's word on
 * their state (CONTROL_MODELS), and the controller's routing table. A model
 * that only a foreign worker registered is in the catalog as long as that
 * worker is. Names and aliases are equal everywhere: both resolve, both are
 * listed, and an answer repeats the name that was asked for.
 *
 * A worker's load is what it reported or what this process has running on it,
 * whichever is more (the report is older, but counts other askers too), over
 * its speed. Worker and model stay alive while somebody holds a lease.
 *
 * Threads  one
 * Source   docs/wire.md, parts 1 and 3
 */
#ifndef DAEMON_API_CATALOG_H
#define DAEMON_API_CATALOG_H

#include "base/cleanup.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct api_error;
struct catalog;
struct err;

enum { CATALOG_VERSION = 2 };           /* of part 4: messages in full */
enum { CATALOG_FOREIGN_QUEUE = 256 };   /* queue of a model that the settings do not name */

struct worker {
    uint64_t serial;            /* never used twice, unlike its address in memory */
    char *name;                 /* its identity */
    char *unix_path, *url;      /* either may be NULL, not both */
    bool native;                /* speaks /fastchat/generate */
    int64_t version;            /* of it, docs/wire.md, part 4; 0: does not */
    double speed;
    int64_t queue_length, context_length, parallel;
    int64_t instance;           /* another one is another process, also of the same name */
    char **models;              /* names and aliases */
    size_t n_models;

    unsigned leases;            /* sequences that we have running there */
    uint64_t suspect_until_us;  /* could not be reached: others first */
    bool listed;                /* is in the last table */
    struct worker *next;
};

struct model {
    char *name;
    char **aliases;
    size_t n_aliases;
    bool configured;            /* false: known from the routing table only */
    bool known;                 /* the supervisor has named a worker of it */
    int64_t queue, parallel, replicas;

    enum { MODEL_LOADING, MODEL_FAILED, MODEL_STOPPED } state;  /* when no worker serves it */
    char doing[16];             /* the supervisor's word for it; "": none came yet */
    char reason[256];           /* of a failure, or of its restart */
    bool on_demand;             /* is loaded when a request comes */
    uint64_t want_us;           /* when it was last asked for; 0: not since it stopped */
    unsigned leases;            /* sequences running and waiting */
    struct model *next;
};

/* A name under which a model can be asked for. */
struct catalog_entry {
    const char *id;
    struct model *model;
    int64_t context_length;     /* smallest of its workers'; 0: unknown */
    const char *status;         /* "loaded", "loading", "failed", "stopped" */
};

struct catalog *catalog_new(void);
void catalog_free(struct catalog *c);
DEFINE_CLEANUP(struct catalog *, catalog_free)

/* `models` of the settings; may be called again. 0, or -EINVAL and nothing
 * changed; -ENOMEM. */
int catalog_configure(struct catalog *c, const cJSON *models, struct err *err);
/* The array of models of CONTROL_MODELS. */
void catalog_states(struct catalog *c, const cJSON *rows);
/* One line of the routing table. 0, or -EPROTO/-ENOMEM and the last table
 * stays. */
int catalog_table(struct catalog *c, const char *line, size_t len, struct err *err);
/* While true, a table takes nobody out: a controller that has just started
 * knows only the workers that have found it again. */
void catalog_keep_missing(struct catalog *c, bool keep);

struct model *catalog_find(struct catalog *c, const char *name);
/* All names, sorted; free() the array. 0 or -ENOMEM. */
int catalog_list(struct catalog *c, struct catalog_entry **ret, size_t *ret_n);

/* Does a worker that is listed serve it? */
bool catalog_serves(const struct catalog *c, const struct model *m);
/* Whether a worker may come that serves it although none does, or none that can
 * be reached: it loads, is started again, or is loaded on demand. *e says what
 * it does, for a request that does not wait (any more). */
bool catalog_comes(const struct model *m, struct api_error *e);
/* True when the supervisor must be told that a request waits for it. */
bool catalog_sleeps(const struct model *m);

/* Have n more sequences of this model room to wait or run? 0, or -EINVAL and 503
 * (queue full) or 400 (more than could ever run). */
int catalog_admit(struct catalog *c, const struct model *m, unsigned n, struct api_error *e);

/* The least loaded worker of a model whose serial is not among `tried`, or
 * NULL. */
struct worker *catalog_pick(struct catalog *c, const struct model *m, const uint64_t *tried,
                            size_t n_tried, uint64_t now_us);

/* Does a worker serve it that is not native, or speaks an older version than the one that is known here? */
bool catalog_has_others(const struct catalog *c, const struct model *m);
/* The model when there is but one, else NULL and *e says what has to be named. */
struct model *catalog_only(struct catalog *c, struct api_error *e);

/* A lease is one sequence; release may free a worker or model that is listed
 * no more. */
void catalog_lease_model(struct catalog *c, struct model *m, unsigned n);
void catalog_release_model(struct catalog *c, struct model *m, unsigned n);
void catalog_lease_worker(struct worker *w);
void catalog_release_worker(struct catalog *c, struct worker *w);

enum catalog_health { CATALOG_OK, CATALOG_LOADING, CATALOG_FAILED };
/* OK: a model is served or on demand, or there is none to serve. */
enum catalog_health catalog_health(struct catalog *c);
size_t catalog_n_workers(const struct catalog *c);

#endif
