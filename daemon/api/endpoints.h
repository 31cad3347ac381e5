/* endpoints.h - the front door's table of paths, and what every answer has in
 * common: request id, CORS headers, errors in OpenAI's shape, a log line.
 *
 * Each path also works without /v1. The table is closed: what it does not
 * name is 404, another method of what it names is 405. HEAD is GET without its
 * body. CORS is open to all origins, without credentials, as in FastChat.
 */
#ifndef DAEMON_API_ENDPOINTS_H
#define DAEMON_API_ENDPOINTS_H

struct api;
struct arena;
struct http_request;

/* The handler of every request; user is the api. */
void endpoints_handle(struct http_request *req, void *user);
/* http_config.error_body and .access */
const char *endpoints_error_body(int status, const char *detail, struct http_request *req,
                                 struct arena *arena);
void endpoints_access(const struct http_request *req, void *user);

#endif
