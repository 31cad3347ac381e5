/* worker_rig.h - a real fastchat-worker under a supervisor that a test plays.
 *
 * The worker serves a scripted model on a Unix socket in a folder of its own.
 * Every wait here is for an event, under one generous ceiling.
 */
#ifndef TESTS_DAEMON_WORKER_RIG_H
#define TESTS_DAEMON_WORKER_RIG_H

#include "base/buf.h"
#include "ipc/control.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum { RIG_CEILING_MS = 120000 };

struct rig {
    char dir[64], script[96], sock[96];
    pid_t pid;
    int control;                    /* the supervisor's end */
    unsigned tcp_port;
    struct control_frame frame;     /* the last one read */
};

/* What a test may change; zeros give the defaults in brackets. */
struct rig_options {
    unsigned parallel, queue;       /* [4], [1000] */
    const char *controllers;        /* members of the list as JSON ["" ] */
    const char *sampling;           /* members of the object as JSON ["" ] */
    const char *aliases;            /* members of the list as JSON ["\"alias\""] */
    const char *path;               /* of the model [the script] */
    const char *device;             /* ["scripted"] */
    bool tcp;                       /* listens on TCP too, on r->tcp_port */
    const char *model;              /* more members of "model", each with a comma in front */
};

/* Starts it and waits for nothing. */
void rig_start(struct rig *r, const char *script, const struct rig_options *options);
/* Reads frames until STATE says so. */
void rig_wait_state(struct rig *r, const char *state);
/* rig_start() and "ready". */
void rig_ready(struct rig *r, const char *script, const struct rig_options *options);
/* The next frame of this type, in r->frame; its payload parsed (cJSON_Delete). */
cJSON *rig_next(struct rig *r, int type);
/* Reads whatever waits now, without waiting; true when a frame of the type was there. */
bool rig_seen(struct rig *r, int type);
void rig_send(struct rig *r, int type, const char *json);
/* Sends new settings and returns the answer's error, or NULL; it lives in r->frame. */
const char *rig_reload(struct rig *r, const struct rig_options *options);
/* Waits for its end: exit code, or minus the signal. */
int rig_wait_exit(struct rig *r);
/* STOP, end, and the folder is removed. Expects exit code 0. */
void rig_stop(struct rig *r);
/* Only removes the folder, for a worker that has ended. */
void rig_clean(struct rig *r);

/* One exchange over its own connection. */
struct reply {
    int status;
    struct buf head, body;          /* body without chunks */
    bool cut;                       /* a stream that ended without its last chunk */
};
struct reply rig_ask(struct rig *r, const char *method, const char *path, const char *body);
/* The same, the body parsed as JSON; fails the test when it is none or has another status. */
cJSON *rig_ask_json(struct rig *r, int status, const char *method, const char *path, const char *body);
void reply_fini(struct reply *reply);

/* A connection with its answer still coming. */
struct stream {
    int fd, status;
    struct buf raw, head, body;     /* body without chunks, as far as it came */
    bool chunked, done, cut;        /* cut: it ended before its end */
    size_t left;                    /* of the chunk, or of the whole */
};
void stream_open(struct rig *r, struct stream *s, const char *path, const char *body);
/* Waits for more bytes of the answer, takes them in; false once it is done. */
bool stream_more(struct stream *s);
/* Waits until the body holds `text`. */
void stream_wait(struct stream *s, const char *text);
void stream_close(struct stream *s);

/* The queue length that the worker states. */
int rig_queue_length(struct rig *r);
/* Asks until it is n. */
void rig_wait_queue_length(struct rig *r, int n);

#endif
