/* worker.h - one worker as it described itself, checked.
 *
 * A registration comes from anybody who can reach a socket, so everything in it
 * is measured here before it is kept: the address, the number and length of
 * model names, the numbers. What passes is owned by the struct alone.
 *
 * A door is where a request came in. Whoever comes through the Unix socket is
 * of this machine and may name a Unix path to be called at; over TCP only a
 * plain http://host:port counts, so that nobody makes the controller or its
 * clients call anything else.
 *
 * Source   FastChat contract: POST /register_worker, /worker_get_status;
 *          docs/wire.md, part 2
 */
#ifndef CONTROLLER_WORKER_H
#define CONTROLLER_WORKER_H

#include "base/cleanup.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

enum {
    WORKER_NAME = 160,         /* bytes of an address */
    WORKER_MODELS = 64,        /* names of one worker */
    WORKER_MODEL_NAME = 256,   /* bytes of one name */
    WORKER_MODEL_BYTES = 4096, /* bytes of all names of one worker */
    WORKER_QUEUE_MAX = 1000000000,
    WORKER_LEASE_MIN_MS = 500,
    WORKER_LEASE_MAX_MS = 600000,
};

enum { WORKER_REFUSED = 1, WORKER_NEEDS_STATUS = 2 };

struct worker {
    char *name;      /* the identity: http://host:port or unix:PATH */
    char *unix_path; /* NULL: none */
    bool has_url;    /* the name is an http:// address */
    char **models;
    size_t n_models, model_bytes; /* bytes of all names together */
    double speed;
    int64_t queue_length;
    bool check_heart_beat, multimodal;
    bool local;                        /* registered over the Unix socket */
    bool native;                       /* speaks the richer form */
    int64_t version;                   /* of that form; 0: does not speak it */
    uint64_t lease_us;                 /* 0: the controller's default */
    uint32_t context_length, parallel; /* 0: not said */
    int64_t instance;                  /* of its process; 0: not said */

    /* the registry's */
    uint64_t serial; /* differs after each registration */
    uint64_t beat_us;
    uint64_t round;   /* of the last poll that it answered */
    bool unreachable; /* a call found nobody; until the next beat */
};

/* From the body of a registration. 0; WORKER_NEEDS_STATUS when the status has to
 * be asked for (*ret is set, its models are not); WORKER_REFUSED with a sentence
 * for one that is well formed and not acceptable; -EINVAL for a missing key or a
 * wrong type; -ENOMEM. */
int worker_from_json(const cJSON *body, bool local, struct worker **ret, struct err *err);
void worker_free(struct worker *w);
DEFINE_CLEANUP(struct worker *, worker_free)

/* Takes models, speed and queue length from a status. 0; WORKER_REFUSED; -EINVAL;
 * -ENOMEM. The worker is untouched unless 0 comes back. */
int worker_apply_status(struct worker *w, const cJSON *status, struct err *err);

bool worker_serves(const struct worker *w, const char *model);

/* http://host:port and nothing behind it. */
bool worker_url_is_plain(const char *text);

#endif
