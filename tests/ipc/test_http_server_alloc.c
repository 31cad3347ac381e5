/* Each allocation of the server fails once, and from each on a hundred do: a
 * client may then be refused or cut, but never gets a wrong answer, and the
 * next one is served. malloc and its like are ours here; not with sanitizers,
 * which need them. */
#include "net.h"

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t size);

static unsigned counted, first, last;       /* allocations first..last fail */

static bool fails(void)
{
    if (!in_loop)
        return false;
    counted++;
    if (counted < first || counted > last)
        return false;
    errno = ENOMEM;
    return true;
}

void *malloc(size_t size) { return fails() ? NULL : __libc_malloc(size); }
void *calloc(size_t n, size_t size) { return fails() ? NULL : __libc_calloc(n, size); }
void *realloc(void *p, size_t size) { return fails() ? NULL : __libc_realloc(p, size); }

static void echo(struct http_request *req, void *user)
{
    http_add_header(req, "X-Long", "a value that takes some room in the buffer of further lines");
    http_reply(req, 200, "text/plain", req->body, req->body_len);
}

static void stream(struct http_request *req, void *user)
{
    static char piece[300000];

    memset(piece, 's', sizeof piece);
    http_stream_start(req, 200, "text/plain");
    for (int i = 0; i < 20; i++)
        http_stream_write(req, piece, sizeof piece);    /* more than the socket takes */
    http_stream_end(req);
}

static const struct http_route routes[] = { { "POST", "/echo", echo }, { "GET", "/stream", stream } };

static const struct http_config config = {
    .routes = routes, .n_routes = sizeof routes / sizeof routes[0],
    .limits = { .header_us = 2000000, .body_us = 2000000, .idle_us = 2000000 },
};

#define HOST " HTTP/1.1\r\nHost: x\r\n"
#define CLOSE "Connection: close\r\n"

static struct client *says(const char *text)
{
    struct client *c = client_open();

    client_says(c, text);
    return c;
}

/* An answer that says it is 200 and whole is the right one. */
static void check_echo(struct client *c, const char *body)
{
    const char *at = strstr(buf_str(&c->got), "\r\n\r\n");

    if (has(c, "HTTP/1.1 200 OK") && at)
        cr_expect(zero(int, strncmp(body, at + 4, strlen(at + 4))), "%s", buf_str(&c->got));
}

static void check_stream(struct client *c)
{
    if (has(c, "\r\n0\r\n\r\n"))
        cr_expect(ge(sz, c->got.len, 20 * 300000));
}

/* Every kind of request at once; all ends, well or not. */
static void exchange(void)
{
    struct client *whole = says("POST /echo" HOST CLOSE "Content-Length: 3\r\n\r\nabc"), *chunks, *long_stream, *refused, *lost, *pieces;
    struct client *all[6];

    chunks = says("POST /echo" HOST CLOSE "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n");
    long_stream = says("GET /stream" HOST CLOSE "\r\n");
    refused = says("POST /echo" HOST "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc");
    lost = says("DELETE /echo" HOST "\r\nGET /nowhere" HOST CLOSE "\r\n");
    pieces = says("POST /echo" HOST CLOSE "Content-Len");
    turn(0);
    client_says(pieces, "gth: 5\r\n\r\npi");
    turn(0);
    client_says(pieces, "ece");
    memcpy(all, (struct client *[]){ whole, chunks, long_stream, refused, lost, pieces }, sizeof all);
    for (int i = 0; i < 6; i++)
        wait_for(all[i]->eof);
    check_echo(whole, "abc");
    check_echo(chunks, "hello world");
    check_echo(pieces, "piece");
    check_stream(long_stream);
    cr_expect(not(has(refused, "200 OK")));
    cr_expect(not(has(lost, "200 OK")));
    for (int i = 0; i < 6; i++)
        client_close(all[i]);
}

static void still_serves(void)
{
    struct client *c;

    first = last = 0;
    c = says("POST /echo" HOST CLOSE "Content-Length: 2\r\n\r\nok");
    wait_for(c->eof);
    cr_expect(has(c, "200 OK"));
    cr_expect(has(c, "\r\n\r\nok"));
    client_close(c);
    wait_for(http_server_conns(server) == 0);
    cr_expect(zero(sz, http_server_active(server)));
}

static void fail_each(unsigned n)
{
    unsigned at = 0;
    bool reached;

    net_open(&config);
    exchange();                 /* the event loop makes its own room at its first turn */
    do {
        counted = 0;
        first = ++at;
        last = at + n - 1;
        exchange();
        reached = counted >= at;
        still_serves();
    } while (reached && at < 1000);
    cr_expect(gt(uint, at, 20));
    cr_expect(lt(uint, at, 1000));
    net_close();
}

Test(http_server_alloc, whichever_allocation_fails_the_next_client_is_served, .timeout = 300)
{
    fail_each(1);
}

Test(http_server_alloc, whenever_memory_is_short_for_a_while_the_next_client_is_served, .timeout = 300)
{
    fail_each(100);
}
