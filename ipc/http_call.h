/* http_call.h - what the two files of the HTTP client share; private to them.
 *
 * http_client.c speaks plain HTTP to Unix sockets and numeric addresses itself;
 * http_curl.c does the rest (https, names of hosts) with libcurl.
 */
#ifndef IPC_HTTP_CALL_H
#define IPC_HTTP_CALL_H

#include "ipc/http_client.h"

struct curl_side;

/* The first member of each file's own kind of call. */
struct http_call {
    struct http_call_spec spec;         /* its pointers other than the callbacks are not ours */
    bool by_curl;
};

/* The same as the functions of http_client.h. */
int curl_side_open(struct loop *l, struct curl_side **ret, struct err *err);
void curl_side_close(struct curl_side *c);          /* NULL is fine */
int curl_call_start(struct curl_side *c, const struct http_call_spec *spec, struct http_call **ret,
                    struct err *err);
void curl_call_cancel(struct http_call *call);
void curl_call_pause(struct http_call *call, bool pause);
const char *curl_call_header(struct http_call *call, const char *name);

#endif
