/* A request's bytes. llhttp in strict mode knows the grammar of RFC 9112; the
 * rules that it leaves to its user are here.
 */
#include "ipc/http_conn.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

struct request *request_new(struct http_conn *c)
{
    struct arena *arena = arena_new(0);
    struct request *r = arena ? arena_alloc(arena, sizeof *r) : NULL;

    if (!r) {
        arena_free(arena);
        return NULL;
    }
    r->pub = (struct http_request){
        .method = "-", .path = "-", .query = "", .body = "", .peer = c->peer,
        .arena = arena, .start_us = c->start_us, .conn = c,
    };
    return r;
}

void request_free(struct request *r)
{
    if (!r)
        return;
    buf_fini(&r->body);
    buf_fini(&r->extra);
    arena_free(r->pub.arena);
}

/* ---- head ---- */

int head_scan(struct head_scan *scan, const char *data, size_t len, size_t limit, const char **fault)
{
    size_t n = len < limit ? len : limit;

    for (size_t i = scan->seen; i < n; i++) {
        char c = data[i], before = i ? data[i - 1] : '\0';

        if (c == '\n') {
            if (before != '\r') {
                *fault = "A line ends with a bare LF";
                return -400;
            }
            scan->n_lines++;
            if (i >= 3 && data[i - 2] == '\n')
                return (int)i + 1;
        } else if (before == '\r') {
            *fault = "A CR without LF";
            return -400;
        } else if (c == '\0') {
            *fault = "A NUL byte in the head";
            return -400;
        } else if (before == '\n' && (c == ' ' || c == '\t')) {
            *fault = "A folded header line";
            return -400;
        } else if (before == '\n' && c == ':') {
            *fault = "A header without a name";
            return -400;
        }
    }
    scan->seen = n;
    if (len < limit)
        return HEAD_MORE;
    *fault = scan->n_lines ? "Request header fields too large" : "URI too long";
    return scan->n_lines ? -431 : -414;
}

static int on_url(llhttp_t *p, const char *at, size_t len)
{
    struct request *r = p->data;

    if (!r->url_len)
        r->url = (char *)at;
    r->url_len += len;
    return 0;
}

static int on_field(llhttp_t *p, const char *at, size_t len)
{
    struct request *r = p->data;
    struct http_header *h;

    if (r->head_done)
        return 0;               /* a trailer: read and dropped */
    if (r->pub.n_headers >= r->n_header_room)
        return -1;
    h = &r->headers[r->pub.n_headers++];
    h->name = at;
    h->value = at + len;        /* unless on_value comes */
    for (size_t i = 0; i < len; i++)
        if (at[i] >= 'A' && at[i] <= 'Z')
            ((char *)at)[i] |= 0x20;
    return 0;
}

static int on_value(llhttp_t *p, const char *at, size_t len)
{
    struct request *r = p->data;

    if (r->head_done)
        return 0;
    if (!r->pub.n_headers || r->value_lens[r->pub.n_headers - 1])
        return -1;              /* the head is one piece, and so is each value */
    r->headers[r->pub.n_headers - 1].value = at;
    r->value_lens[r->pub.n_headers - 1] = len;
    return 0;
}

static int on_headers_complete(llhttp_t *p)
{
    struct request *r = p->data;

    r->head_done = true;
    r->http10 = p->http_minor == 0;
    r->keep_alive = !r->http10 && !(p->flags & F_CONNECTION_CLOSE);
    r->chunked = p->flags & F_CHUNKED;
    r->has_length = p->flags & F_CONTENT_LENGTH;
    r->content_length = r->has_length ? p->content_length : 0;
    p->upgrade = 0;             /* an offer that we do not take */
    return 0;
}

static int on_body(llhttp_t *p, const char *at, size_t len)
{
    struct request *r = p->data;

    r->too_large = r->body.limit && len > r->body.limit - r->body.len;
    buf_add(&r->body, at, len);
    return r->body.failed ? -1 : 0;
}

static int on_message_complete(llhttp_t *p)
{
    struct request *r = p->data;

    r->complete = true;
    return HPE_PAUSED;          /* so that the rest of the bytes is left alone */
}

static const llhttp_settings_t settings = {
    .on_url = on_url,
    .on_header_field = on_field,
    .on_header_value = on_value,
    .on_headers_complete = on_headers_complete,
    .on_body = on_body,
    .on_message_complete = on_message_complete,
};

/* llhttp's spans lie in our copy of the head; what follows each is a delimiter
 * that has done its work and becomes the NUL. */
static void end_strings(struct request *r)
{
    r->url[r->url_len] = '\0';
    for (size_t i = 0; i < r->pub.n_headers; i++) {
        struct http_header *h = &r->headers[i];
        char *value = (char *)h->value;
        size_t len = r->value_lens[i];

        while (len && (value[len - 1] == ' ' || value[len - 1] == '\t'))
            len--;
        *strchr(h->name, ':') = '\0';
        if (len)
            value[len] = '\0';
        else
            h->value = "";
    }
}

static int fault(struct request *r, int status, const char *text)
{
    r->fault = text;
    return status;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Decodes in place. False for a broken escape or one that hides a control
 * character. */
static bool percent_decode(char *text, bool plus_is_space)
{
    char *to = text;

    for (const char *from = text; *from; from++) {
        int c = (unsigned char)*from;

        if (c == '%') {
            int high = hex_digit(from[1]), low = high < 0 ? -1 : hex_digit(from[2]);

            if (low < 0)
                return false;
            c = high << 4 | low;
            from += 2;
            if (c == 0 || (!plus_is_space && (c < ' ' || c == 0x7f)))
                return false;
        } else if (c == '+' && plus_is_space) {
            c = ' ';
        }
        *to++ = (char)c;
    }
    *to = '\0';
    return true;
}

static bool is_host_value(const char *host)
{
    return strspn(host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~:[]%!$&'()*+;=") ==
           strlen(host);
}

/* RFC 9112, 3.2: origin-form, absolute-form, and the asterisk of OPTIONS. */
static int split_target(struct request *r)
{
    char *path = r->url, *query;

    if (strncasecmp(path, "http://", 7) == 0 || strncasecmp(path, "https://", 8) == 0) {
        char *host = strchr(path, ':') + 3;
        size_t len = strcspn(host, "/?");

        if (len == 0 || memchr(host, '@', len))
            return fault(r, 400, "Bad host in the request target");
        path = host + len;
        if (*path != '/') {             /* http://host?query */
            if (*path == '?')
                r->pub.query = path + 1;
            r->pub.path = "/";
            return 0;
        }
    } else if (*path != '/' && !(strcmp(path, "*") == 0 && strcmp(r->pub.method, "OPTIONS") == 0)) {
        return fault(r, 400, "Bad request target");
    }
    if (strchr(path, '#'))
        return fault(r, 400, "A fragment in the request target");
    query = strchr(path, '?');
    if (query) {
        *query = '\0';
        r->pub.query = query + 1;
    }
    if (!percent_decode(path, false))
        return fault(r, 400, "Bad percent-encoding in the path");
    r->pub.path = path;
    return 0;
}

static int check_head(struct request *r)
{
    const char *host = NULL, *coding = NULL;
    size_t n_hosts = 0, n_codings = 0;

    for (size_t i = 0; i < r->pub.n_headers; i++) {
        const struct http_header *h = &r->pub.headers[i];

        if (strcmp(h->name, "host") == 0) {
            host = h->value;
            n_hosts++;
        } else if (strcmp(h->name, "transfer-encoding") == 0) {
            coding = h->value;
            n_codings++;
        }
    }
    if (r->parser.http_major != 1 || r->parser.http_minor > 1)
        return fault(r, 505, "HTTP version not supported");
    if (n_hosts > 1)
        return fault(r, 400, "More than one Host header");
    if (n_hosts == 0 && !r->http10)
        return fault(r, 400, "No Host header");
    if (host && !is_host_value(host))
        return fault(r, 400, "Bad Host header");
    if (n_codings && (r->http10 || r->has_length || n_codings > 1))
        return fault(r, 400, "Transfer-Encoding does not go with the rest of the head");
    if (coding && strcasecmp(coding, "chunked") != 0)
        return fault(r, 501, "Transfer coding not supported");
    if (r->parser.method == HTTP_CONNECT)
        return fault(r, 400, "CONNECT is not supported");
    return split_target(r);
}

int request_parse_head(struct request *r, const char *head, size_t len, size_t n_lines, size_t max_headers)
{
    struct arena *arena = r->pub.arena;
    char *copy = arena_strndup(arena, head, len);
    llhttp_errno_t e;

    if (n_lines > max_headers + 2)
        return fault(r, 431, "Too many header fields");
    r->n_header_room = n_lines;
    r->headers = arena_array(arena, n_lines, sizeof *r->headers);
    r->value_lens = arena_array(arena, n_lines, sizeof *r->value_lens);
    if (!copy || !r->headers || !r->value_lens)
        return fault(r, 503, "Out of memory");
    r->pub.headers = r->headers;

    llhttp_init(&r->parser, HTTP_REQUEST, &settings);
    r->parser.data = r;
    e = llhttp_execute(&r->parser, copy, len);
    if (e == HPE_PAUSED && r->complete)
        e = HPE_OK;
    if (e != HPE_OK || !r->head_done || !r->url_len) {
        r->pub.n_headers = 0;           /* their strings have no ends */
        if (e == HPE_INVALID_VERSION || e == HPE_PAUSED_H2_UPGRADE)
            return fault(r, 505, "HTTP version not supported");
        return fault(r, 400, e != HPE_OK && r->parser.reason ? r->parser.reason : "Malformed request");
    }
    r->pub.method = llhttp_method_name(r->parser.method);
    end_strings(r);
    return check_head(r);
}

/* ---- body ---- */

int request_parse_body(struct request *r, const char *data, size_t len, size_t *used)
{
    /* A body of one-byte chunks is six times its size; extensions and trailers
     * may add this much to it. */
    enum { FRAMING = 16384 };
    llhttp_errno_t e = llhttp_execute(&r->parser, data, len);

    *used = len;
    if (e == HPE_PAUSED && r->complete) {
        *used = (size_t)(llhttp_get_error_pos(&r->parser) - data);
        return BODY_DONE;
    }
    r->body_fed += len;
    if (r->body.failed)
        return r->too_large ? -fault(r, 413, "Request body too large") : -fault(r, 503, "Out of memory");
    if (e != HPE_OK)
        return -fault(r, 400, r->parser.reason ? r->parser.reason : "Malformed body");
    if (r->chunked && r->body_fed > 6 * r->body.len + FRAMING)
        return -fault(r, 400, "Too much chunk framing");
    return BODY_MORE;
}

/* ---- what handlers ask ---- */

const char *http_header(const struct http_request *req, const char *name)
{
    for (size_t i = 0; i < req->n_headers; i++)
        if (strcmp(req->headers[i].name, name) == 0)
            return req->headers[i].value;
    return NULL;
}

const char *http_query(struct http_request *req, const char *name)
{
    for (const char *at = req->query; *at;) {
        size_t len = strcspn(at, "&");
        char *pair = arena_strndup(req->arena, at, len), *value;

        at += len + (at[len] == '&');
        if (!pair)
            return NULL;
        value = pair + strcspn(pair, "=");
        if (*value)
            *value++ = '\0';
        if (percent_decode(pair, true) && strcmp(pair, name) == 0)
            return percent_decode(value, true) ? value : NULL;
    }
    return NULL;
}
