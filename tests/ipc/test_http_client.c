#include "net.h"

#include "ipc/http_client.h"

/* ---- a server of ours as the peer ---- */

enum { MAX_CALLS = 1000 };

static struct http_request *held[MAX_CALLS];
static int n_held, n_gone, n_drained;

static void gone(struct http_request *req)
{
    n_gone++;
    for (int i = 0; i < n_held; i++)
        if (held[i] == req)
            held[i] = NULL;
}

static void drained(struct http_request *req)
{
    n_drained++;
}

static void keep(struct http_request *req)
{
    req->on_gone = gone;
    req->on_drain = drained;
    held[n_held++] = req;
}

static void show(struct http_request *req, void *user)
{
    const char *type = http_header(req, "content-type"), *own = http_header(req, "x-own");

    http_add_header(req, "X-Answer", "42");
    http_reply_json(req, 201, arena_printf(req->arena, "[%s|%s|%s|type=%s|own=%s|expect=%d]", req->method, req->path,
                                           req->body, type ? type : "-", own ? own : "-",
                                           http_header(req, "expect") != NULL));
}

static void stream(struct http_request *req, void *user)
{
    keep(req);
    http_stream_start(req, 200, "application/x-ndjson");
}

static void later(struct http_request *req, void *user)
{
    keep(req);
}

static const struct http_route routes[] = {
    { NULL, "/show", show },
    { NULL, "/stream", stream },
    { NULL, "/later", later },
};

static const struct http_config config = { .routes = routes, .n_routes = sizeof routes / sizeof routes[0] };

/* ---- the calls ---- */

struct call {
    struct http_call *call;
    struct buf data;
    int n_heads, status;
    bool done;
    struct http_call_result result;
    char text[256], answer[16];
    int pause_after, cancel_after;      /* pieces of data */
    int n_pieces;
    bool cancel_in_head;
};

static struct http_client *client;
static char url[3][64];

static void setup(void)
{
    net_open(&config);
    cr_assert(zero(int, http_client_open(loop, &client, &err)), "%s", err_text(&err));
    snprintf(url[0], sizeof url[0], "http://%s/show", tcp.text);
    snprintf(url[1], sizeof url[1], "http://%s/stream", tcp.text);
    snprintf(url[2], sizeof url[2], "http://%s/later", tcp.text);
}

static void teardown(void)
{
    http_client_close(client);
    net_close();
}

TestSuite(http_client, .init = setup, .fini = teardown);

static void on_head(struct http_call *c, int status, void *user)
{
    struct call *call = user;
    const char *answer = http_call_header(c, "x-answer");

    call->n_heads++;
    call->status = status;
    snprintf(call->answer, sizeof call->answer, "%s", answer ? answer : "-");
    if (call->cancel_in_head)
        http_call_cancel(c);
}

static void on_data(struct http_call *c, const char *data, size_t len, void *user)
{
    struct call *call = user;

    buf_add(&call->data, data, len);
    call->n_pieces++;
    if (call->n_pieces == call->pause_after)
        http_call_pause(c, true);
    if (call->n_pieces == call->cancel_after)
        http_call_cancel(c);
}

static void on_done(struct http_call *c, const struct http_call_result *result, void *user)
{
    struct call *call = user;

    cr_assert(not(call->done));
    call->done = true;
    call->result = *result;
    snprintf(call->text, sizeof call->text, "%s", result->text);
    call->call = NULL;
    http_call_cancel(c);                /* does nothing any more */
}

static void start_spec(struct call *call, struct http_call_spec spec)
{
    spec.user = call;
    spec.on_head = on_head;
    spec.on_data = on_data;
    spec.on_done = on_done;
    cr_assert(zero(int, http_call_start(client, &spec, &call->call, &err)), "%s", err_text(&err));
    cr_assert(not(call->done));
}

static void start(struct call *call, const char *to)
{
    start_spec(call, (struct http_call_spec){ .url = to });
}

Test(http_client, a_call_brings_its_answer_and_the_next_reuses_the_connection)
{
    struct call get = { 0 }, post = { 0 }, typed = { 0 }, put = { 0 }, head = { 0 };

    start(&get, url[0]);
    wait_for(get.done);
    cr_expect(zero(int, get.result.error), "%s", get.text);
    cr_expect(eq(int, get.result.status, 201));
    cr_expect(eq(int, get.n_heads, 1));
    cr_expect(eq(str, get.answer, "42"));
    cr_expect(eq(str, (char *)buf_str(&get.data), "[GET|/show||type=-|own=-|expect=0]"));
    cr_expect(get.result.connected);
    cr_expect(not(get.result.reused));

    start_spec(&post, (struct http_call_spec){ .url = url[0], .body = "a body", .body_len = 6 });
    wait_for(post.done);
    cr_expect(eq(str, (char *)buf_str(&post.data), "[POST|/show|a body|type=-|own=-|expect=0]"));
    cr_expect(post.result.reused);

    start_spec(&typed, (struct http_call_spec){
        .url = url[0], .method = "PATCH", .body = "{}", .body_len = 2,
        .headers = (const char *const[]){ "content-type: application/json", "X-Own: yes", NULL },
    });
    wait_for(typed.done);
    cr_expect(eq(str, (char *)buf_str(&typed.data), "[PATCH|/show|{}|type=application/json|own=yes|expect=0]"));

    start_spec(&put, (struct http_call_spec){ .url = url[0], .method = "POST" });
    wait_for(put.done);
    cr_expect(eq(str, (char *)buf_str(&put.data), "[POST|/show||type=-|own=-|expect=0]"));

    start_spec(&head, (struct http_call_spec){ .url = url[0], .method = "HEAD" });
    wait_for(head.done);
    cr_expect(zero(int, head.result.error));
    cr_expect(zero(sz, head.data.len));
    cr_expect(eq(sz, http_server_conns(server), 1));
    buf_fini(&get.data), buf_fini(&post.data), buf_fini(&typed.data), buf_fini(&put.data);
}

Test(http_client, a_stream_comes_piece_by_piece)
{
    struct call call = { 0 };

    start(&call, url[1]);
    wait_for(call.n_heads == 1 && n_held == 1);
    cr_expect(zero(sz, call.data.len));
    http_stream_write(held[0], "one\n", 4);
    wait_for(call.data.len == 4);
    http_stream_write(held[0], "two\n", 4);
    wait_for(call.data.len == 8);
    cr_expect(not(call.done));
    http_stream_end(held[0]);
    wait_for(call.done);
    cr_expect(zero(int, call.result.error));
    cr_expect(eq(str, call.data.data, "one\ntwo\n"));
    buf_fini(&call.data);
}

Test(http_client, the_proxy_of_the_environment_is_not_asked)
{
    struct call call = { 0 };

    setenv("http_proxy", "http://127.0.0.1:1", 1);
    setenv("ALL_PROXY", "http://127.0.0.1:1", 1);
    start(&call, url[0]);
    wait_for(call.done);
    cr_expect(eq(int, call.result.status, 201), "%s", call.text);
    buf_fini(&call.data);
}

Test(http_client, a_cancelled_call_is_a_disconnect_for_the_peer)
{
    struct call outside = { 0 }, in_head = { .cancel_in_head = true }, in_data = { .cancel_after = 1 }, early = { 0 };

    start(&early, url[2]);
    http_call_cancel(early.call);           /* before anything was sent */
    start(&outside, url[2]);
    wait_for(n_held == 1);
    http_call_cancel(outside.call);
    wait_for(n_gone == 1);
    start(&in_head, url[1]);
    wait_for(n_held == 2);
    wait_for(n_gone == 2);
    start(&in_data, url[1]);
    wait_for(n_held == 3);
    http_stream_write(held[2], "x", 1);
    wait_for(n_gone == 3);
    cr_expect(zero(int, outside.done + in_head.done + in_data.done + early.done));
    wait_for(http_server_conns(server) == 0);
    buf_fini(&in_data.data);
}

static struct call chain[2];
static bool chained;

static void chain_done(struct http_call *c, const struct http_call_result *result, void *user)
{
    chained = true;
    http_call_cancel(chain[1].call);
    start(&chain[0], url[1]);
}

Test(http_client, on_done_may_cancel_others_and_start_anew)
{
    struct http_call_spec spec = { .url = url[0], .on_done = chain_done };
    struct http_call *call;

    start(&chain[1], url[2]);
    wait_for(n_held == 1);
    cr_assert(zero(int, http_call_start(client, &spec, &call, &err)));
    wait_for(chained);
    wait_for(n_gone == 1);
    wait_for(n_held == 2 && chain[0].n_heads == 1);
    http_stream_end(held[1]);
    wait_for(chain[0].done);
    cr_expect(not(chain[1].done));
}

enum { STARTED = 30 };
static struct call started[STARTED];

static void starting_data(struct http_call *c, const char *data, size_t len, void *user)
{
    for (int i = 0; i < STARTED; i++) {
        char to[96];

        snprintf(to, sizeof to, "%s?%d", url[2], i);
        start(&started[i], to);
        if (i == 7)
            http_call_pause(started[i].call, true);
        if (i % 10 == 9)
            http_call_cancel(started[i].call);      /* before anybody could hear of it */
    }
    http_call_cancel(c);
}

Test(http_client, on_data_may_start_calls_and_they_set_out_in_order)
{
    struct http_call_spec spec = { .url = url[1], .on_data = starting_data };
    struct http_call *call;
    int at = 0;

    cr_assert(zero(int, http_call_start(client, &spec, &call, &err)));
    wait_for(n_held == 1);
    http_stream_write(held[0], "go", 2);
    wait_for(n_held == 1 + STARTED - STARTED / 10);
    for (int i = 0; i < STARTED; i++) {
        if (i % 10 == 9)
            continue;
        at++;
        cr_expect(eq(int, atoi(held[at]->query), i));
        http_reply(held[at], 200, NULL, "ok", 2);
    }
    http_call_pause(started[7].call, false);
    for (int i = 0; i < STARTED; i++)
        if (i % 10 != 9)
            wait_for(started[i].done);
    cr_expect(eq(str, (char *)buf_str(&started[7].data), "ok"));
    for (int i = 0; i < STARTED; i++)
        buf_fini(&started[i].data);
}

static void fill(struct http_request *req)
{
    static char piece[65536];

    memset(piece, 'p', sizeof piece);
    for (int i = 0; i < 1000; i++)
        if (http_stream_write(req, piece, sizeof piece) == HTTP_FULL)
            return;
    cr_fatal("never full");
}

Test(http_client, a_paused_call_fills_the_peers_queue_and_goes_on_where_it_was)
{
    struct call call = { .pause_after = 1 };
    size_t got, sent;

    start_spec(&call, (struct http_call_spec){ .url = url[1], .silence_us = 500000 });
    wait_for(n_held == 1);
    http_stream_write(held[0], "first", 5);
    wait_for(call.n_pieces == 1);
    got = call.data.len;
    fill(held[0]);
    for (int i = 0; i < 50; i++)
        turn(1000);
    cr_expect(eq(sz, call.data.len, got));
    cr_expect(zero(int, n_drained));
    sent = held[0]->sent_bytes;
    call.pause_after = 3;                   /* and once more, from inside */
    http_call_pause(call.call, false);
    cr_expect(eq(sz, call.data.len, got));  /* not from inside the call */
    wait_for(call.n_pieces == 3);
    for (int i = 0; i < 10; i++)
        turn(1000);
    cr_expect(eq(int, call.n_pieces, 3));
    http_call_pause(call.call, false);
    wait_for(n_drained == 1);
    http_stream_end(held[0]);
    wait_for(call.done);
    cr_expect(zero(int, call.result.error), "%s", call.text);
    cr_expect(eq(sz, call.data.len, sent));
    buf_fini(&call.data);
}

Test(http_client, nobody_there_is_told_from_an_answer_cut_short)
{
    struct call refused = { 0 }, no_file = { 0 }, cut = { 0 }, unanswered = { 0 }, no_host = { 0 };
    struct address a;
    int fd = -1;

    /* a port that was free a moment ago */
    cr_assert(zero(int, address_parse("127.0.0.1:0", &a, &err)));
    cr_assert(zero(int, address_listen(&a, 1, 0, (gid_t)-1, &fd, &err)));
    cr_assert(zero(int, address_local(fd, &a, &err)));
    close(fd);
    char to[64];
    snprintf(to, sizeof to, "http://%s/", a.text);
    start(&refused, to);
    wait_for(refused.done);
    cr_expect(eq(int, refused.result.error, -ECONNREFUSED));
    cr_expect(not(refused.result.connected));
    cr_expect(ne(int, refused.text[0], 0));

    start_spec(&no_file, (struct http_call_spec){ .url = "http://x/", .unix_path = "/nonexistent-folder/s" });
    wait_for(no_file.done);
    cr_expect(eq(int, no_file.result.error, -ECONNREFUSED), "%s", no_file.text);

    start(&no_host, "http://no-such-host.invalid/");
    wait_for(no_host.done);
    cr_expect(eq(int, no_host.result.error, -EHOSTUNREACH), "%s", no_host.text);

    start(&cut, url[1]);
    wait_for(n_held == 1);
    http_stream_write(held[0], "part", 4);
    http_stream_abort(held[0]);
    wait_for(cut.done);
    cr_expect(eq(int, cut.result.error, -ECONNRESET), "%s", cut.text);
    cr_expect(eq(int, cut.result.status, 200));
    cr_expect(eq(str, cut.data.data, "part"));

    start(&unanswered, url[2]);
    wait_for(n_held == 2);
    http_stream_abort(held[1]);
    wait_for(unanswered.done);
    cr_expect(eq(int, unanswered.result.error, -ECONNRESET), "%s", unanswered.text);
    cr_expect(zero(int, unanswered.result.status));
    cr_expect(unanswered.result.connected);
    buf_fini(&cut.data);
}

Test(http_client, silence_and_the_whole_exchange_have_their_limits)
{
    struct call silent = { 0 }, talking = { 0 }, total = { 0 };

    start_spec(&silent, (struct http_call_spec){ .url = url[1], .silence_us = 300000 });
    wait_for(n_held == 1);
    start_spec(&total, (struct http_call_spec){ .url = url[2], .total_us = 300000 });
    wait_for(n_held == 2);
    start_spec(&talking, (struct http_call_spec){ .url = url[1], .silence_us = 60000000 });
    wait_for(n_held == 3);
    wait_for(silent.done && total.done);
    cr_expect(eq(int, silent.result.error, -ETIMEDOUT));
    cr_expect(eq(int, silent.result.status, 200));
    cr_expect(eq(int, total.result.error, -ETIMEDOUT));
    cr_expect(not(talking.done));
    wait_for(n_gone == 2);
    http_stream_end(held[2]);
    wait_for(talking.done);
    cr_expect(zero(int, talking.result.error));
}

Test(http_client, what_cannot_be_sent_is_refused_at_once)
{
    struct http_call *call;
    static const char *const evil[] = { "A: b\r\nC: d", NULL };

    cr_expect(eq(int, http_call_start(client, &(struct http_call_spec){ .url = url[0], .headers = evil }, &call, &err), -EINVAL));
    cr_expect(ne(int, err.code, 0));
}

static void ends_in_error(const char *to, int error)
{
    struct call call = { 0 };

    start(&call, to);
    wait_for(call.done);
    cr_expect(eq(int, call.result.error, error), "%s: %s", to, call.text);
    buf_fini(&call.data);
}

/* A peer that says the same few bytes to everybody and closes. */
static int raw_listener = -1, raw_fds[64], n_raw;
static const char *raw_answer;
static struct loop_io raw_io;

/* The sockets stay open, for unread bytes of the request would make a close a
 * reset. */
static void raw_accept(struct loop_io *io, uint32_t events)
{
    int fd = accept(io->fd, NULL, NULL);

    cr_assert(lt(int, n_raw, 64));
    raw_fds[n_raw++] = fd;
    cr_assert(eq(int, (int)send(fd, raw_answer, strlen(raw_answer), MSG_NOSIGNAL), (int)strlen(raw_answer)));
    shutdown(fd, SHUT_WR);
}

Test(http_client, what_is_no_http_or_another_protocol_is_an_error)
{
    static const struct { const char *answer; int error; } rows[] = {
        { "", -ECONNRESET },
        { "hello, I am a telnet server\r\n", -EPROTO },
        { "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", -ECONNRESET },
        { "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhal", -ECONNRESET },
        { "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", -ECONNRESET },
        { "HTTP/1.1 200 OK\r\nContent-Le", -ECONNRESET },
        { "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\nabc", -EPROTO },
        { "HTTP/1.1 101 Switching Protocols\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", -EPROTO },
        { "HTTP/1.1 10 Continue\r\n\r\nhello", -EPROTO },
        { "HTTP/1.1 100 Continue\r\nContent-Length: 5\r\n\r\nhello", -EPROTO },
    };
    struct address a;
    char to[64];

    cr_assert(zero(int, address_parse("127.0.0.1:0", &a, &err)));
    cr_assert(zero(int, address_listen(&a, 16, 0, (gid_t)-1, &raw_listener, &err)));
    cr_assert(zero(int, address_local(raw_listener, &a, &err)));
    raw_io = (struct loop_io){ .fd = raw_listener, .fn = raw_accept };
    cr_assert(zero(int, loop_add(loop, &raw_io, EPOLLIN)));
    snprintf(to, sizeof to, "http://%s/", a.text);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        raw_answer = rows[i].answer;
        ends_in_error(to, rows[i].error);
    }
    loop_remove(loop, &raw_io);
    close(raw_listener);
    while (n_raw)
        close(raw_fds[--n_raw]);
    ends_in_error("ftp://127.0.0.1/x", -EPROTO);
    ends_in_error("file:///etc/passwd", -EPROTO);
}

Test(http_client, a_kept_connection_that_the_peer_closed_is_replaced)
{
    struct http_config quick = config;
    struct call call;

    teardown();
    quick.limits.idle_us = 1000;
    net_open(&quick);
    cr_assert(zero(int, http_client_open(loop, &client, &err)));
    snprintf(url[0], sizeof url[0], "http://%s/show", tcp.text);
    for (int i = 0; i < 3; i++) {
        call = (struct call){ 0 };
        start_spec(&call, (struct http_call_spec){ .url = url[0], .body = "x", .body_len = 1 });
        wait_for(call.done);
        cr_expect(zero(int, call.result.error), "%s", call.text);
        cr_expect(eq(int, call.result.status, 201));
        wait_for(http_server_conns(server) == 0);
        buf_fini(&call.data);
    }
}

Test(http_client, a_thousand_streams_over_a_unix_socket_at_once)
{
    static struct call calls[MAX_CALLS];
    char folder[] = "/tmp/fastchat-http-XXXXXX", text[128];
    struct rlimit limit;
    struct address a;
    int fd = -1, n_calls = MAX_CALLS, n_done = 0;

    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < 2 * MAX_CALLS + 200)
        n_calls = (int)limit.rlim_cur / 2 - 100;
    cr_assert(mkdtemp(folder) != NULL);
    snprintf(text, sizeof text, "unix:%s/s", folder);
    cr_assert(zero(int, address_parse(text, &a, &err)));
    cr_assert(zero(int, address_listen(&a, 4096, 0600, (gid_t)-1, &fd, &err)));
    cr_assert(zero(int, http_server_listen(server, fd, &err)));

    for (int i = 0; i < n_calls; i++)
        start_spec(&calls[i], (struct http_call_spec){ .url = "http://worker/stream", .unix_path = a.path });
    wait_for(n_held == n_calls);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < n_calls; i++)
            cr_assert(zero(int, http_stream_write(held[i], "0123456789", 10)));
        turn(0);
    }
    for (int i = 0; i < n_calls; i++)
        http_stream_end(held[i]);
    for (int i = 0; i < n_calls; i++) {
        wait_for(calls[i].done);
        n_done += calls[i].result.error == 0 && calls[i].data.len == 30;
        buf_fini(&calls[i].data);
    }
    cr_expect(eq(int, n_done, n_calls));
    unlink(a.path);
    rmdir(folder);
}

/* ---- a peer of bytes ---- */

static int peer_listener = -1, peer_fd = -1;
static char peer_url[64];

static void peer_open(void)
{
    struct address a;

    cr_assert(zero(int, address_parse("127.0.0.1:0", &a, &err)));
    cr_assert(zero(int, address_listen(&a, 16, 0, (gid_t)-1, &peer_listener, &err)));
    cr_assert(zero(int, address_local(peer_listener, &a, &err)));
    snprintf(peer_url, sizeof peer_url, "http://%s/", a.text);
}

/* The next connection, once the head of a request has come over it. */
static void peer_accept(void)
{
    char bytes[4096] = "";
    size_t n = 0;

    if (peer_fd >= 0)
        close(peer_fd);
    peer_fd = -1;
    wait_for((peer_fd = accept4(peer_listener, NULL, NULL, SOCK_NONBLOCK)) >= 0);
    while (!memmem(bytes, n, "\r\n\r\n", 4)) {
        ssize_t more = recv(peer_fd, bytes + n, sizeof bytes - n, MSG_DONTWAIT);

        n += more > 0 ? (size_t)more : 0;
        turn(1000);
    }
}

static void peer_says(const char *text)
{
    cr_assert(eq(int, (int)send(peer_fd, text, strlen(text), MSG_NOSIGNAL), (int)strlen(text)));
}

static void peer_close(void)
{
    close(peer_fd);
    close(peer_listener);
    peer_fd = peer_listener = -1;
}

Test(http_client, what_one_read_brings_is_one_piece_and_an_answer_may_come_byte_by_byte)
{
    static const char text[] = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nX-Answer: 7\r\nEmpty:\r\n"
                               "Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n1\r\n,\r\n3;x=y\r\ntwo\r\n0\r\nX-Answer: 8\r\n\r\n";
    struct call whole = { 0 }, bytes = { 0 };
    struct http_call *call;

    peer_open();
    start(&whole, peer_url);
    peer_accept();
    peer_says(text);
    wait_for(whole.done);
    cr_expect(zero(int, whole.result.error), "%s", whole.text);
    cr_expect(eq(int, whole.n_pieces, 1));
    cr_expect(eq(int, whole.n_heads, 1));
    cr_expect(eq(str, (char *)buf_str(&whole.data), "one,two"));
    cr_expect(eq(str, whole.answer, "7"));

    start(&bytes, peer_url);
    call = bytes.call;
    for (const char *p = text; *p; p++) {
        char one[2] = { *p };

        peer_says(one);
        turn(0);
        turn(0);
        if (bytes.n_heads && !bytes.done) {
            cr_expect(eq(str, (char *)http_call_header(call, "EMPTY"), ""));
            cr_expect(http_call_header(call, "absent") == NULL);
        }
    }
    wait_for(bytes.done);
    cr_expect(zero(int, bytes.result.error), "%s", bytes.text);
    cr_expect(bytes.result.reused);
    cr_expect(eq(str, (char *)buf_str(&bytes.data), "one,two"));
    cr_expect(eq(str, bytes.answer, "7"));
    peer_close();
    buf_fini(&whole.data), buf_fini(&bytes.data);
}

Test(http_client, an_answer_without_a_length_ends_with_its_connection)
{
    struct call call = { 0 };

    peer_open();
    start(&call, peer_url);
    peer_accept();
    peer_says("HTTP/1.0 200 OK\r\n\r\nall of it");
    wait_for(call.data.len == 9);
    cr_expect(not(call.done));
    shutdown(peer_fd, SHUT_WR);
    wait_for(call.done);
    cr_expect(zero(int, call.result.error), "%s", call.text);
    peer_close();
    buf_fini(&call.data);
}

Test(http_client, a_connection_is_used_again_only_when_its_answer_was_the_last_word)
{
    static const struct { const char *answer; bool kept; } rows[] = {
        { "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", true },
        { "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n", false },
        { "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok", false },
        { "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", false },
        { "HTTP/1.1 204 No Content\r\n\r\n", true },
    };

    peer_open();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct call first = { 0 }, second = { 0 };

        start(&first, peer_url);
        peer_accept();
        peer_says(rows[i].answer);
        wait_for(first.done);
        cr_expect(zero(int, first.result.error), "%s", first.text);
        start(&second, peer_url);
        if (!rows[i].kept)
            peer_accept();
        peer_says("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        wait_for(second.done);
        cr_expect(eq(int, second.result.reused, rows[i].kept), "%zu", i);
        cr_expect(zero(int, second.result.error), "%s", second.text);
        buf_fini(&first.data);
    }
    peer_close();
}

Test(http_client, a_full_backlog_of_a_unix_socket_is_waited_for)
{
    char folder[] = "/tmp/fastchat-http-XXXXXX", text[128];
    struct call calls[8] = { 0 };
    struct address a;
    int fd = -1, n_fds = 0, fds[8];

    cr_assert(mkdtemp(folder) != NULL);
    snprintf(text, sizeof text, "unix:%s/s", folder);
    cr_assert(zero(int, address_parse(text, &a, &err)));
    cr_assert(zero(int, address_listen(&a, 1, 0600, (gid_t)-1, &fd, &err)));
    for (int i = 0; i < 8; i++)
        start_spec(&calls[i], (struct http_call_spec){ .url = "http://worker/", .unix_path = a.path });
    for (int i = 0; i < 20; i++)
        turn(2000);
    while (n_fds < 8) {
        fds[n_fds] = accept4(fd, NULL, NULL, SOCK_NONBLOCK);
        n_fds += fds[n_fds] >= 0;
        turn(1000);
    }
    for (int i = 0; i < 8; i++) {
        static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

        cr_assert(eq(int, (int)send(fds[i], answer, sizeof answer - 1, MSG_NOSIGNAL), (int)sizeof answer - 1));
    }
    for (int i = 0; i < 8; i++) {
        wait_for(calls[i].done);
        cr_expect(zero(int, calls[i].result.error), "%s", calls[i].text);
        close(fds[i]);
    }
    close(fd);
    unlink(a.path);
    rmdir(folder);
}

Test(http_client, a_name_is_looked_up)
{
    struct call call = { 0 };

    snprintf(url[0], sizeof url[0], "http://localhost:%u/show", tcp.port);
    start_spec(&call, (struct http_call_spec){ .url = url[0], .body = "hi", .body_len = 2 });
    wait_for(call.done);
    cr_expect(zero(int, call.result.error), "%s", call.text);
    cr_expect(eq(str, (char *)buf_str(&call.data), "[POST|/show|hi|type=-|own=-|expect=0]"));
    buf_fini(&call.data);

    call = (struct call){ .cancel_in_head = true };
    start_spec(&call, (struct http_call_spec){ .url = url[0] });
    wait_for(call.n_heads);
    cr_expect(not(call.done));
}

Test(http_client, closing_the_client_cancels_what_is_open)
{
    struct call call = { 0 };

    start(&call, url[1]);
    wait_for(n_held == 1);
    http_client_close(client);
    client = NULL;
    wait_for(n_gone == 1);
    cr_expect(not(call.done));
}
