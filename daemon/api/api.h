/* api.h - what the files of the api share: the process, and the few things that
 * every answer has.
 */
#ifndef DAEMON_API_API_H
#define DAEMON_API_API_H

#include "base/buf.h"
#include "daemon/api/upstream.h"
#include "ipc/http_server.h"

#include <stdbool.h>
#include <stdint.h>

struct api_error;
struct ask;
struct catalog;
struct chat;
struct child;
struct http_client;
struct loop;

enum { API_REQUEST_ID = 128 };

/* What the access log says about a request beyond the server's own figures.
 * Every handled request has one, in req->user, at the front of whatever else
 * the handler keeps there, in the request's arena. */
struct note {
    char id[API_REQUEST_ID + 1];
    const char *model;          /* resolved name, in the arena; NULL: none */
    int64_t tokens_in, tokens_out;
    bool failed;                /* an error, maybe within a stream of status 200 */
};

struct api {
    struct child *child;
    struct loop *loop;
    struct http_server *server;
    struct http_client *client;
    struct catalog *catalog;

    char *controller;           /* path of its socket */
    uint64_t wait_us, ping_us;  /* 0: no limit, no pings */
    uint64_t load_wait_us;      /* 0: nobody waits for a model */
    bool draining;
    int64_t start_s;            /* wall clock, "created" of the models */
    uint64_t n_requests, n_failed;

    struct chat *chats, **chats_end;    /* running and waiting, in order of arrival */
    size_t n_chats;
    size_t n_waiting;           /* choices of them that wait for a worker */
    struct ask *asks;           /* questions to workers that run or wait */
    struct buf out, body;       /* scratch; `out` is empty between callbacks */
    struct upstream_scratch scratch;
};

/* Headers of every answer: the request's id, and who may read it. */
void api_add_headers(struct http_request *req, const char *id);
void api_reply_error(struct http_request *req, const struct api_error *e);

#endif
