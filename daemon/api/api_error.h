/* api_error.h - an answer that says no: a status, a sentence, the field.
 *
 *     {"error":{"message":…,"type":…,"param":…,"code":…}}
 *
 * The type follows from the status (OpenAI's names, and `unavailable_error` of
 * llama-server for 503). `code` is a string, or null; with 503 it is the
 * number 503, which clients of llama-server poll for.
 */
#ifndef DAEMON_API_API_ERROR_H
#define DAEMON_API_API_ERROR_H

#include <cjson/cJSON.h>

struct buf;

struct api_error {
    int status;                 /* 0: nothing was set */
    char code[48];              /* "": null */
    char param[96];             /* "": null */
    char message[768];
    unsigned retry_after_s;     /* 0: no such header */
};

/* The first sentence wins, as in base/err.h. code and param may be NULL.
 * Returns -EINVAL, so that `return api_error_set(…)` reads well. */
int api_error_set(struct api_error *e, int status, const char *code, const char *param,
                  const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* What a worker answered, or an error line of its stream, for the client:
 * the `error` object of `body` (NULL or odd: a general sentence). `status` is
 * the worker's; one that means nothing to a client becomes 502. */
void api_error_of_worker(struct api_error *e, int status, const cJSON *body);

const char *api_error_type(int status);
/* Appends the object above, nothing behind it. */
void api_error_write(const struct api_error *e, struct buf *out);

/* What a worker's Retry-After asks for (NULL: it has none), in seconds: 1 for what is no sensible number. */
unsigned api_retry_after_s(const char *header);

#endif
