/* chat.h - POST /v1/chat/completions, from the parsed request to the last byte.
 *
 * A request with n choices is n calls to workers. Until a worker's first line
 * came nothing has been promised: a call that can not be made, is refused with
 * 5xx or dies is made again on a replica that was not tried yet (and once more
 * on the same one when a kept connection turned out dead). From the first line
 * on a lost worker is an error.
 *
 * The head of a stream goes out with the first line of a worker, so that what
 * goes wrong before has its own HTTP status, or after one ping interval, so
 * that no proxy cuts a client that waits in a queue. A failure within a stream
 * is an event `data: {"error":{…}}`, and then the body ends, without a finish
 * chunk and without [DONE].
 *
 * When the client leaves, all its calls are cancelled within that callback.
 */
#ifndef DAEMON_API_CHAT_H
#define DAEMON_API_CHAT_H

struct api;
struct http_request;

/* A handler: takes over the request, whose req->user is a struct note. */
void chat_start(struct api *api, struct http_request *req);

/* Every now and then: pings, deadlines. */
void chat_tick(struct api *api);

#endif
