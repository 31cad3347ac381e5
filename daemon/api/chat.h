/* chat.h - POST /v1/chat/completions, from the parsed request to the last byte.
 *
 * A request with n choices is n calls to workers. Until a worker's first token
 * came nothing has been promised: a call that can not be made, is refused with
 * 5xx or dies is made again on a replica that was not tried yet (and once more
 * on the same one when a kept connection led nowhere). From the first token on
 * a lost worker is an error.
 *
 * When nobody is left to ask, but somebody will come (the model loads, its
 * worker is started again or replaced, or it is loaded on demand), the request
 * waits: at most load_wait_s in all, in order of arrival, within the model's
 * queue. Two workers may end under a request; then it is refused, since it may
 * be what ends them.
 *
 * The head of a stream goes out with the first line of a worker, so that what
 * goes wrong before has its own HTTP status, or after one ping interval, so
 * that no proxy cuts a client that waits in a queue or for a model. A failure within a stream
 * is an event `data: {"error":{…}}`, and then the body ends, without a finish
 * chunk and without [DONE].
 *
 * When the client leaves, all its calls are cancelled within that callback.
 */
#ifndef DAEMON_API_CHAT_H
#define DAEMON_API_CHAT_H

#include <stdbool.h>

struct api;
struct api_error;
struct http_request;
struct model;

/* A handler: takes over the request, whose req->user is a struct note. */
void chat_start(struct api *api, struct http_request *req);

/* Every now and then: pings, deadlines. */
void chat_tick(struct api *api);
/* After a change of what is known about models and workers: for those that wait. */
void chat_look(struct api *api);
/* Whether somebody can be asked for the model or a request may wait for it; else *e says why not. */
bool wait_may(struct api *api, struct model *m, struct api_error *e);
/* From now on nobody waits for a model. */
void chat_drain(struct api *api);

#endif
