/* text.h - questions about text: llama-server's /tokenize, /detokenize and /apply-template, FastChat's
 * /api/v1/token_check.
 *
 * A worker of ours answers them all. One that speaks the FastChat contract only can count tokens and has a template:
 * so it answers token_check and apply-template; which tokens a text has it does not say (501).
 *
 * Source   llama.cpp tools/server/README.md; FastChat contract, 4.13
 */
#ifndef DAEMON_API_TEXT_H
#define DAEMON_API_TEXT_H

struct api;
struct http_request;

/* Handlers: take over the request, whose req->user is a struct note. `model` may be absent where there is but one. */
void text_tokenize(struct api *api, struct http_request *req);
void text_detokenize(struct api *api, struct http_request *req);
void text_apply_template(struct api *api, struct http_request *req);
void text_token_check(struct api *api, struct http_request *req);

#endif
