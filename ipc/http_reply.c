/* An answer's bytes: RFC 9112, 6 (what frames a body) and 7.1 (chunks). */
#include "base/clock.h"
#include "base/json.h"
#include "ipc/http_conn.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

static const char *reason_of(int status)
{
    static const struct { int status; const char *text; } rows[] = {
        { 200, "OK" }, { 201, "Created" }, { 202, "Accepted" }, { 204, "No Content" },
        { 206, "Partial Content" }, { 301, "Moved Permanently" }, { 302, "Found" },
        { 304, "Not Modified" }, { 307, "Temporary Redirect" }, { 308, "Permanent Redirect" },
        { 400, "Bad Request" }, { 401, "Unauthorized" }, { 403, "Forbidden" }, { 404, "Not Found" },
        { 405, "Method Not Allowed" }, { 408, "Request Timeout" }, { 409, "Conflict" },
        { 413, "Content Too Large" }, { 414, "URI Too Long" }, { 415, "Unsupported Media Type" },
        { 417, "Expectation Failed" }, { 422, "Unprocessable Content" }, { 429, "Too Many Requests" },
        { 431, "Request Header Fields Too Large" }, { 500, "Internal Server Error" },
        { 501, "Not Implemented" }, { 502, "Bad Gateway" }, { 503, "Service Unavailable" },
        { 504, "Gateway Timeout" }, { 505, "HTTP Version Not Supported" }, { 507, "Insufficient Storage" },
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].status == status)
            return rows[i].text;
    return "Status";
}

/* "Date: …" of this second; RFC 9110, 5.6.7. */
static const char *date_line(struct http_server *s)
{
    int64_t now = clock_wall_s();

    if (now != s->date_s) {
        time_t t = (time_t)now;
        struct tm tm;

        /* The C locale's names: these programs never call setlocale(). */
        gmtime_r(&t, &tm);
        strftime(s->date, sizeof s->date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
        s->date_s = now;
    }
    return s->date;
}

static bool has_no_body(int status)
{
    return status < 200 || status == 204 || status == 304;
}

static bool is_head(const struct request *r)
{
    return r->pub.method[0] == 'H' && strcmp(r->pub.method, "HEAD") == 0;
}

/* Leaves the head of the answer in the server's scratch buffer. */
static void make_head(struct request *r, int status, const char *type, bool stream, size_t len)
{
    struct http_conn *c = r->pub.conn;
    struct buf *head = &c->server->head;
    char line[160];

    r->pub.status = status;
    if (!r->keep_alive || c->server->draining || (stream && !r->chunked_answer))
        c->close = true;
    buf_clear(head);
    snprintf(line, sizeof line, "HTTP/1.1 %d %s\r\nDate: %s\r\n", status, reason_of(status),
             date_line(c->server));
    buf_adds(head, line);
    if (type) {
        buf_adds(head, "Content-Type: ");
        buf_adds(head, type);
        buf_adds(head, "\r\n");
    }
    if (stream && r->chunked_answer) {
        buf_adds(head, "Transfer-Encoding: chunked\r\n");
    } else if (!stream && !has_no_body(status)) {
        snprintf(line, sizeof line, "Content-Length: %zu\r\n", len);
        buf_adds(head, line);
    }
    if (c->close)
        buf_adds(head, "Connection: close\r\n");
    buf_add(head, r->extra.data, r->extra.len);
    buf_adds(head, "\r\n");
    if (head->failed || r->extra.failed)
        c->broken = true;
}

void http_add_header(struct http_request *req, const char *name, const char *value)
{
    struct request *r = request_of(req);

    if (strpbrk(value, "\r\n"))
        return;
    buf_adds(&r->extra, name);
    buf_adds(&r->extra, ": ");
    buf_adds(&r->extra, value);
    buf_adds(&r->extra, "\r\n");
}

void http_reply(struct http_request *req, int status, const char *type, const void *body, size_t len)
{
    struct request *r = request_of(req);
    struct http_conn *c = req->conn;
    struct http_server *s = c->server;
    struct iovec parts[2];
    bool bodyless = has_no_body(status) || is_head(r);

    if (r->over)
        return;
    assert(!r->answered && !r->streaming);
    server_enter(s);
    make_head(r, status, type, false, len);
    parts[0] = (struct iovec){ s->head.data, s->head.len };
    parts[1] = (struct iovec){ (void *)body, len };
    if (!bodyless)
        req->sent_bytes = len;
    conn_send(c, parts, bodyless || !len ? 1 : 2);
    conn_answered(c);
    server_leave(s);
}

void http_reply_json(struct http_request *req, int status, const char *json)
{
    http_reply(req, status, "application/json", json, strlen(json));
}

int http_stream_start(struct http_request *req, int status, const char *type)
{
    struct request *r = request_of(req);
    struct http_conn *c = req->conn;

    if (r->over)
        return -ECONNRESET;
    assert(!r->answered && !r->streaming);
    r->streaming = true;
    r->chunked_answer = !r->http10;
    make_head(r, status, type, true, 0);
    conn_send(c, &(struct iovec){ c->server->head.data, c->server->head.len }, 1);
    return c->broken ? -ECONNRESET : 0;
}

int http_stream_write(struct http_request *req, const void *data, size_t len)
{
    /* A source that does not care about HTTP_FULL ends its own stream here. */
    static const size_t too_much = 64u << 20;
    struct request *r = request_of(req);
    struct http_conn *c = req->conn;

    if (r->over || c->broken)
        return -ECONNRESET;
    assert(r->streaming && !r->answered);
    if (len == 0 || is_head(r))
        return 0;
    req->sent_bytes += len;
    if (r->chunked_answer)
        conn_send_chunk(c, data, len);
    else
        conn_send(c, &(struct iovec){ (void *)data, len }, 1);
    if (conn_waiting(c) > too_much + c->server->config.limits.high_water)
        c->broken = true;
    if (c->broken)
        return -ECONNRESET;
    if (conn_waiting(c) <= c->server->config.limits.high_water)
        return 0;
    r->full = true;
    return HTTP_FULL;
}

void http_stream_end(struct http_request *req)
{
    struct request *r = request_of(req);
    struct http_conn *c = req->conn;
    struct http_server *s = c->server;

    if (r->over)
        return;
    assert(r->streaming && !r->answered);
    server_enter(s);
    if (r->chunked_answer && !is_head(r))
        conn_send(c, &(struct iovec){ "0\r\n\r\n", 5 }, 1);
    conn_answered(c);
    server_leave(s);
}

void http_stream_abort(struct http_request *req)
{
    struct http_server *s = req->conn->server;

    if (request_of(req)->over)
        return;
    server_enter(s);
    conn_cut(req->conn);
    server_leave(s);
}

size_t http_stream_waiting(const struct http_request *req)
{
    return conn_waiting(req->conn);
}

static const char *default_error_body(const char *detail, struct arena *arena)
{
    BUF_LOCAL text = BUF_INIT;
    struct json_writer w = json_writer(&text);

    json_open(&w, '{');
    json_kstr(&w, "detail", detail);
    json_close(&w, '}');
    return arena_strdup(arena, buf_str(&text));
}

void request_answer_error(struct request *r, int status, const char *detail)
{
    const struct http_config *config = &r->pub.conn->server->config;
    const char *text = config->error_body
                           ? config->error_body(status, detail, &r->pub, r->pub.arena)
                           : default_error_body(detail, r->pub.arena);

    http_reply_json(&r->pub, status, text ? text : "{}");
}
