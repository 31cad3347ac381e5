/* web.h - requests to servers that are not ours: a hub, its content network, any
 * web server.
 *
 * Unlike fetch.h, which speaks to the service, this uses TLS with the system's
 * authorities, the proxies of the environment (https_proxy, no_proxy …), follows
 * redirects, and gives up on a transfer that stands still. The token goes to the
 * hub's own scheme, host and port and nowhere else, whatever a redirect says.
 */
#ifndef CLI_WEB_H
#define CLI_WEB_H

#include "base/buf.h"
#include "base/cleanup.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct progress;
struct web;

struct web_options {
    const char *cacert;   /* file of authorities; NULL: $CURL_CA_BUNDLE, $SSL_CERT_FILE, $REQUESTS_CA_BUNDLE, the system's */
    const char *home;     /* the hub's address, for whose origin the token is */
    const char *token;    /* NULL: none */
    unsigned timeout_s;   /* without a byte */
    unsigned retries;     /* of a request without any progress in between */
    int interrupt_fd;     /* readable: give up; -1: none */
    struct progress *progress; /* says why it waits */
};

int web_open(const struct web_options *o, struct web **ret, struct err *err);
void web_close(struct web *w); /* NULL is fine */
DEFINE_CLEANUP(struct web *, web_close)

enum { WEB_HEADER_BYTES = 4096, WEB_TEXT_BYTES = 256 };

/* What an answer's headers say; "" and -1: nothing. The three in front are the
 * hub's and stay known over the redirect to its content network. */
struct web_answer {
    char linked_etag[WEB_TEXT_BYTES];   /* without quotes */
    char commit[WEB_TEXT_BYTES];
    int64_t linked_size;

    int status;
    char error_code[WEB_TEXT_BYTES], error_message[WEB_TEXT_BYTES];
    char etag[WEB_TEXT_BYTES];          /* as it came: W/"…" is a weak one */
    char last_modified[WEB_TEXT_BYTES];
    char encoding[WEB_TEXT_BYTES];
    char location[WEB_HEADER_BYTES], link[WEB_HEADER_BYTES];
    int64_t length;                     /* Content-Length */
    int64_t range_from, range_total;    /* Content-Range */
    int64_t retry_after_s, limit_reset_s;
    bool foreign;                       /* it came from another host than the one asked */
};

struct web_request {
    const char *url;
    int64_t from;          /* first byte that is wanted */
    const char *if_range;  /* validator of what is there already; NULL or "": none */
    size_t limit;          /* of the body; 0: none (on_data decides) */
    /* Of a 2xx answer: 0, or -errno with a sentence, which ends it. on_begin comes once. */
    int (*on_begin)(const struct web_answer *a, void *user, struct err *err);
    int (*on_data)(const char *data, size_t len, void *user, struct err *err);
    void *user;
};

enum { WEB_INTERRUPTED = 1 };

/* One request with its redirects. 0: an answer came whole, see ret->status.
 * WEB_INTERRUPTED. -EAGAIN: the network or the server broke off, another try may
 * help. Other -errno: it does not. */
int web_run(struct web *w, const struct web_request *r, struct web_answer *ret, struct err *err);

/* The same, with the body of a 2xx answer as text, tried again as often as it makes sense. */
int web_text(struct web *w, const char *url, size_t limit, struct buf *ret_body, struct web_answer *ret, struct err *err);

/* True for a status that another try may change. */
bool web_is_passing(const struct web_answer *a);

/* Waits before another try: longer each time, or as long as the server says. 0: try again;
 * WEB_INTERRUPTED; -ETIMEDOUT: enough of it (`why` is kept in err). *tries counts. */
int web_wait(struct web *w, unsigned *tries, int64_t retry_after_s, const char *why, struct err *err);

/* scheme://host[:port] of both is the same. */
bool web_same_origin(const char *a, const char *b);
/* True where a token may be sent: https, or this machine. */
bool web_is_private(const char *url);

#endif
