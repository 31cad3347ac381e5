/* fetch.h - one HTTP request at a time, over TCP or a Unix socket.
 *
 * libcurl, without the environment's proxies: what is asked here is ours.
 */
#ifndef CLI_FETCH_H
#define CLI_FETCH_H

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

struct target {
    char text[256];      /* as a person would name it */
    char unix_path[108]; /* "": TCP */
    char url[256];       /* "http://host:port", no slash at the end */
};

/* "http://host:port", "https://…", "host:port" or "unix:PATH"; a "/" or "/v1" at
 * the end of a URL is dropped. 0 or -EINVAL. */
int target_parse(const char *text, struct target *ret, struct err *err);

enum { FETCH_INTERRUPTED = 1 };

struct fetch {
    const struct target *target;
    const char *path;
    const char *body;    /* NULL: GET; else a JSON POST */
    uint64_t timeout_ms; /* of the whole exchange; 0: none */
    int interrupt_fd;    /* readable: give up; -1: none */
    /* A piece of a 200 answer; false ends the exchange (fetch gives 0). NULL: the
     * answer goes to `answer`. */
    bool (*on_data)(const char *data, size_t len, void *user);
    void *user;

    int status;        /* out */
    struct buf answer; /* out: an answer without on_data, or that is not 200; buf_fini it */
};

/* 0: an answer came whole (see status). FETCH_INTERRUPTED. -errno with a
 * sentence; -ECONNREFUSED: nobody is there. */
int fetch_run(struct fetch *f, struct err *err);

/* What an answer that is not 200 says: its error.message, message, detail or
 * text, else its number. */
int fetch_refusal(const struct fetch *f, struct err *err);

#endif
