/* Answers over time: pipelines, streams, clients that leave, the drain. */
#include "http_rig.h"

#include <linux/filter.h>

TestSuite(http_streams, .init = setup, .fini = teardown);

/* ---- order and later answers ---- */

Test(http_streams, pipelined_requests_are_answered_in_order_one_at_a_time)
{
    struct client *c = asks(GET("/later") POST("/echo", "Content-Length: 3\r\n", "one") GET("/later") GET("/hello"));

    wait_for(n_held == 1);
    for (int i = 0; i < 5; i++)
        turn(1000);
    cr_expect(zero(sz, c->got.len));
    cr_expect(eq(sz, http_server_active(server), 1));
    http_reply(held[0], 200, NULL, "first", 5);
    wait_for(n_held == 2);
    cr_expect(has(c, "one"));
    cr_expect(not(has(c, "hello")));
    http_reply(held[1], 202, NULL, "second", 6);
    wait_for(has(c, "hello"));
    cr_expect(eq(str, (char *)statuses(c), "200 200 202 200"));
    cr_expect(lt(ptr, strstr(c->got.data, "first"), strstr(c->got.data, "one")));
    cr_expect(lt(ptr, strstr(c->got.data, "one"), strstr(c->got.data, "second")));
    cr_expect(eq(int, n_done, 3));
    cr_expect(zero(int, n_gone));
}

Test(http_streams, a_thousand_pipelined_requests_are_all_answered)
{
    struct client *c = client_open();

    for (int i = 0; i < 1000; i++)
        client_says(c, GET("/hello"));
    client_says(c, LAST("/hello"));
    wait_for(c->eof);
    cr_expect(eq(sz, count_of(c, "HTTP/1.1 200 OK"), 1001));
}

Test(http_streams, a_client_that_ends_its_side_gets_what_it_had_asked)
{
    struct client *c = asks(GET("/hello") GET("/big") GET("/hello"));

    shutdown(c->fd, SHUT_WR);
    wait_for(c->eof);
    cr_expect(eq(str, (char *)statuses(c), "200 200 200"));
    cr_expect(gt(sz, c->got.len, 4 << 20));
    cr_expect(eq(int, n_done, 3));
}

/* ---- streams ---- */

Test(http_streams, a_stream_arrives_piece_by_piece_as_chunks)
{
    struct client *c = asks(GET("/stream") GET("/hello"));

    wait_for(n_held == 1 && has(c, "\r\n\r\n"));
    cr_expect(has(c, "Transfer-Encoding: chunked\r\n"));
    cr_expect(not(has(c, "Content-Length")));
    cr_expect(zero(int, http_stream_write(held[0], "data: 1\n\n", 9)));
    wait_for(has(c, "9\r\ndata: 1\n\n\r\n"));
    cr_expect(zero(int, http_stream_write(held[0], "", 0)));
    cr_expect(zero(int, http_stream_write(held[0], "0123456789abcdef", 16)));
    wait_for(has(c, "\r\n10\r\n0123456789abcdef\r\n"));
    cr_expect(not(has(c, "0\r\n\r\n")));
    http_stream_end(held[0]);
    wait_for(has(c, "hello"));
    cr_expect(has(c, "\r\n0\r\n\r\nHTTP/1.1 200 OK"));
    cr_expect(eq(int, n_done, 2));
    cr_expect(eq(str, last_path, "/hello"));
    cr_expect(eq(int, n_access, 2));
}

static void gathers(void)
{
    setup();
    http_server_gather(server);
}

Test(http_server_gathers, what_one_round_writes_is_one_chunk, .init = gathers, .fini = teardown)
{
    struct client *c = asks(GET("/burst") GET("/burst")), *old;

    wait_for(n_done == 2 && count_of(c, "\r\n0\r\n\r\n") == 2);
    cr_expect(eq(sz, count_of(c, "\r\n\r\n00000190\r\n0123456789"), 2));
    cr_expect(eq(sz, count_of(c, "0123456789\r\n0\r\n\r\n"), 2));
    cr_expect(eq(sz, count_of(c, "0123456789"), 80));
    cr_expect(eq(str, (char *)statuses(c), "200 200"));
    old = asks("GET /burst HTTP/1.0\r\n\r\n");
    wait_for(old->eof);
    cr_expect(eq(sz, count_of(old, "0123456789"), 40));
    cr_expect(zero(int, old->error));
}

Test(http_server_gathers, a_round_that_closes_the_server_keeps_its_last_words, .init = gathers, .fini = teardown)
{
    struct client *c = asks(GET("/last"));

    wait_for(c->eof);
    cr_expect(has(c, "\r\n\r\nlast words"));
    cr_expect(eq(int, n_done, 1));
}

Test(http_streams, an_old_client_gets_a_stream_without_chunks)
{
    struct client *c = asks("GET /stream HTTP/1.0\r\n\r\n");

    wait_for(n_held == 1 && has(c, "\r\n\r\n"));
    http_stream_write(held[0], "plain", 5);
    http_stream_end(held[0]);
    wait_for(c->eof);
    cr_expect(has(c, "Connection: close\r\n\r\nplain"));
    cr_expect(not(has(c, "chunked")));
    cr_expect(zero(int, c->error));
    client_close(c);

    /* cut: nothing but a reset can tell */
    c = asks("GET /stream HTTP/1.0\r\n\r\n");
    wait_for(n_held == 2 && has(c, "\r\n\r\n"));
    http_stream_write(held[1], "part", 4);
    http_stream_abort(held[1]);
    wait_for(c->eof);
    cr_expect(eq(int, c->error, ECONNRESET));
}

Test(http_streams, a_head_request_of_a_stream_gets_its_head_only)
{
    struct client *c = asks("HEAD /stream HTTP/1.1\r\nHost: x\r\n\r\n");

    wait_for(n_held == 1);
    cr_expect(zero(int, http_stream_write(held[0], "data", 4)));
    http_stream_end(held[0]);
    client_says(c, GET("/hello"));
    wait_for(has(c, "hello"));
    cr_expect(not(has(c, "data")));
    cr_expect(eq(str, (char *)statuses(c), "200 200"));
}

/* A round may bring both a reader that takes bytes again and new ones for it. */
Test(http_server_gathers, a_slow_reader_gets_every_chunk_whole, .init = gathers, .fini = teardown)
{
    enum { FEEDS = 300 };
    struct client *c = client_open(), *other = client_open();

    c->deaf = true;
    client_says(c, GET("/stream"));
    wait_for(n_held == 1);
    for (int i = 0; i < 1000 && http_stream_waiting(held[0]) < 1 << 20; i++) {
        static char piece[65536];

        http_stream_write(held[0], memset(piece, 'p', sizeof piece), sizeof piece);
    }
    for (int i = 0; i < FEEDS; i++) {
        c->deaf = i % 3 != 0;
        client_says(other, GET("/feed"));
        turn(1000);
    }
    c->deaf = false;
    wait_for(count_of(c, "0123456789") == 10 * FEEDS);
    cr_expect(not(has(c, "\r\n00000000\r\n")));
    http_stream_end(held[0]);
    wait_for(has(c, "\r\n0\r\n\r\n"));
}

Test(http_streams, an_aborted_answer_has_no_proper_end)
{
    struct client *c = asks(GET("/stream")), *early = asks(GET("/later"));

    wait_for(n_held == 2 && has(c, "\r\n\r\n"));
    for (int i = 0; i < 2; i++) {
        if (last_path[0] == '\0' && strcmp(held[i]->path, "/stream") == 0)
            http_stream_write(held[i], "part", 4);
        http_stream_abort(held[i]);
    }
    wait_for(c->eof && early->eof);
    cr_expect(has(c, "part\r\n"));
    cr_expect(not(has(c, "0\r\n\r\n")));
    cr_expect(zero(sz, early->got.len));
    cr_expect(eq(int, n_done, 2));
    cr_expect(zero(int, n_gone));
    cr_expect(last_cut);
}

static size_t fill(struct http_request *req)
{
    static char piece[65536];
    size_t sent = 0;

    memset(piece, 'p', sizeof piece);
    for (int i = 0; i < 1000; i++) {
        int r = http_stream_write(req, piece, sizeof piece);

        sent += sizeof piece;
        if (r == HTTP_FULL)
            return sent;
        cr_assert(zero(int, r));
    }
    cr_fatal("never full");
}

Test(http_streams, a_client_that_does_not_read_fills_to_the_mark_and_drains_again)
{
    struct client *c = client_open();
    size_t sent = 0;

    c->deaf = true;
    client_says(c, GET("/stream"));
    wait_for(n_held == 1);
    sent += fill(held[0]);
    cr_expect(gt(sz, http_stream_waiting(held[0]), 256 << 10));
    cr_expect(lt(sz, http_stream_waiting(held[0]), (256 << 10) + 2 * 65536));
    for (int i = 0; i < 5; i++)
        turn(1000);
    cr_expect(zero(int, n_drained));
    c->deaf = false;
    wait_for(n_drained == 1);
    cr_expect(le(sz, http_stream_waiting(held[0]), 64 << 10));
    c->deaf = true;
    sent += fill(held[0]);
    http_stream_end(held[0]);
    cr_expect(zero(int, n_done));           /* not before the socket has it all */
    c->deaf = false;
    wait_for(n_done == 1);
    wait_for(count_of(c, "\r\n0\r\n\r\n") == 1);
    cr_expect(gt(sz, c->got.len, sent));
    cr_expect(zero(int, n_gone));
}

static void short_stall(void)
{
    struct http_config quick = config;

    quick.limits.stall_us = 300000;
    net_open(&quick);
}

Test(http_server_stall, a_client_that_never_reads_again_is_gone, .init = short_stall, .fini = teardown)
{
    struct client *c = client_open(), *answered = client_open();

    c->deaf = answered->deaf = true;
    client_says(c, GET("/stream"));
    client_says(answered, GET("/big"));
    wait_for(n_held == 1);
    fill(held[0]);
    wait_for(n_gone == 2);
    wait_for(http_server_conns(server) == 0);
    cr_expect(zero(int, n_done));
}

/* A host that is switched off: from here on its socket drops every segment, so
 * nothing is acknowledged and no end ever comes. */
static int fall_silent(int fd)
{
    struct sock_filter drop = BPF_STMT(BPF_RET | BPF_K, 0);
    const struct sock_fprog program = { .len = 1, .filter = &drop };

    return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) < 0 ? errno : 0;
}

/* Some kernels leave it to root. */
static bool may_fall_silent(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), r = fall_silent(fd);

    close(fd);
    return geteuid() == 0 || r != EPERM;
}

Test(http_server_stall, a_host_that_is_gone_in_the_middle_of_a_stream_is_noticed, .init = short_stall, .fini = teardown)
{
    if (getenv("FASTCHAT_EMULATED"))
        cr_skip_test("qemu-user has no packet filters");
    if (!may_fall_silent())
        cr_skip_test("this kernel gives packet filters to root only");

    struct client *c = asks(GET("/stream")), *other = asks(GET("/stream"));

    wait_for(n_held == 2 && has(c, "\r\n\r\n"));
    cr_assert(zero(int, fall_silent(c->fd)));
    http_stream_write(held[0], "x", 1);
    http_stream_write(held[1], "x", 1);
    wait_for(n_gone == 1);
    wait_for(http_server_conns(server) == 1);
    cr_expect(not(other->eof));
}

/* ---- clients that leave ---- */

static void leave_by(struct client *c, int how)
{
    const struct linger reset = { .l_onoff = 1 };

    if (how == 1) {
        shutdown(c->fd, SHUT_WR);
        return;
    }
    if (how == 2)
        setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    client_close(c);
}

Test(http_streams, a_client_that_leaves_is_noticed_while_nothing_is_written)
{
    for (int how = 0; how < 3; how++) {
        struct client *silent = asks(GET("/later")), *streaming = asks(GET("/stream"));
        struct client *pipelining = asks(GET("/stream") GET("/hello") GET("/hello"));

        n_held = n_gone = 0;
        wait_for(n_held == 3);
        turn(1000);
        leave_by(silent, how);
        wait_for(n_gone == 1);
        cr_expect(eq(int, last_status, 499));
        leave_by(streaming, how);
        wait_for(n_gone == 2);
        cr_expect(eq(int, last_status, 200));
        cr_expect(last_cut);
        leave_by(pipelining, how);
        wait_for(n_gone == 3);
        wait_for(http_server_conns(server) == 0);
    }
    cr_expect(zero(int, n_done));
    cr_expect(zero(sz, http_server_active(server)));
}

Test(http_streams, writing_to_a_client_that_left_says_so_and_on_gone_comes_from_the_loop)
{
    struct client *c = asks(GET("/stream"));
    int r = 0;

    wait_for(n_held == 1);
    leave_by(c, 2);
    for (int i = 0; i < 100 && r >= 0; i++)
        r = http_stream_write(held[0], "x", 1);
    cr_expect(eq(int, r, -ECONNRESET));
    cr_expect(zero(int, n_gone));
    http_stream_end(held[0]);               /* a caller that does not look */
    cr_expect(zero(int, n_gone));
    wait_for(n_gone == 1);
    cr_expect(zero(int, n_done));
}

static struct http_request *victim;

static void gone_ends_another(struct http_request *req)
{
    n_gone++;
    http_stream_abort(victim);
}

Test(http_streams, any_callback_may_end_any_other_request)
{
    struct client *a = asks(GET("/stream")), *b;

    wait_for(n_held == 1);
    b = asks(GET("/later"));
    wait_for(n_held == 2);
    held[0]->on_gone = gone_ends_another;
    victim = held[1];
    client_close(a);
    wait_for(b->eof);
    cr_expect(eq(int, n_gone, 1));
    cr_expect(eq(int, n_done, 1));
}

/* What is still to be parsed of one connection must survive what a handler does
 * to others that have unread bytes. */
Test(http_streams, ending_others_leaves_pipelined_requests_whole)
{
    struct client *a = asks(GET("/later") "POST /other/request HTTP/1.1\r\nHost: y\r\nA: bcdefghijklmnop\r\n\r\n");
    struct client *c;

    wait_for(n_held == 1);
    turn(1000);
    client_says(a, GET("/none") GET("/none") GET("/none"));
    c = asks(GET("/others") GET("/show") GET("/hello") LAST("/show"));
    wait_for(c->eof && a->eof);
    cr_expect(eq(str, (char *)statuses(c), "200 200 200 200"));
    cr_expect(eq(str, (char *)statuses(a), ""));
}

Test(http_streams, a_handler_may_start_the_drain)
{
    struct client *a = asks(GET("/later") GET("/none")), *idle = client_open(), *c;

    wait_for(n_held == 1 && http_server_conns(server) == 2);
    c = asks(GET("/drain") GET("/hello"));
    wait_for(c->eof && idle->eof);
    cr_expect(eq(str, (char *)statuses(c), "200"));
    cr_expect(has(c, "Connection: close\r\n"));
    http_reply(held[0], 200, NULL, "ok", 2);
    wait_for(a->eof);
    cr_expect(eq(str, (char *)statuses(a), "200"));
}

Test(http_streams, a_handler_may_close_the_server)
{
    struct client *c = asks(GET("/end")), *other = asks(GET("/later"));

    wait_for(c->eof && other->eof);
    cr_expect(server == NULL);
    cr_expect(eq(int, n_gone, n_held));
}

static void done_closes(struct http_request *req)
{
    n_done++;
    http_server_close(server);
    server = NULL;
}

Test(http_streams, closing_the_server_from_on_done_is_safe)
{
    struct client *c = asks(GET("/later") GET("/hello"));

    wait_for(n_held == 1);
    held[0]->on_done = done_closes;
    http_reply(held[0], 200, NULL, "bye", 3);
    wait_for(c->eof);
    cr_expect(has(c, "bye"));
    cr_expect(eq(int, n_done, 1));
}

/* ---- drain ---- */

static bool drained_all;

static void on_drained(void *user)
{
    drained_all = true;
}

Test(http_streams, a_drain_finishes_what_runs_and_takes_nothing_new)
{
    struct client *running = asks(GET("/stream")), *idle = asks(GET("/hello")), *partial = asks(POST("/echo", "Content-Length: 2\r\n", "o"));
    int fd = -1;

    wait_for(n_held == 1 && has(idle, "hello") && http_server_conns(server) == 3);
    turn(1000);
    http_server_drain(server, 0, on_drained, NULL);
    cr_expect(not(drained_all));
    wait_for(idle->eof);
    cr_expect(eq(int, address_connect(&tcp, &fd, NULL), -ECONNREFUSED));
    client_says(partial, "k");
    wait_for(partial->eof);
    cr_expect(has(partial, "Connection: close\r\n\r\nok"));
    cr_expect(not(drained_all));
    http_stream_write(held[0], "more", 4);
    http_stream_end(held[0]);
    wait_for(drained_all);
    wait_for(running->eof);
    cr_expect(has(running, "more\r\n0\r\n\r\n"));
    cr_expect(zero(int, n_gone));
}

Test(http_streams, a_drain_with_nothing_to_do_is_done_from_the_loop)
{
    http_server_drain(server, 0, on_drained, NULL);
    cr_expect(not(drained_all));
    wait_for(drained_all);
}

enum { LONG_US = 600000000, SHORT_US = 1000 };

Test(http_streams, a_drain_with_grace_answers_what_still_comes_on_open_connections)
{
    struct client *kept = asks(GET("/hello")), *fresh = client_open(), *partial = asks("GET /hello HT");

    wait_for(has(kept, "hello") && http_server_conns(server) == 3);
    http_server_drain(server, LONG_US, on_drained, NULL);
    for (int i = 0; i < 10; i++)
        turn(1000);
    cr_expect(zero(int, kept->eof + fresh->eof + drained_all));
    cr_expect(zero(sz, count_of(kept, "Connection: close")));
    client_says(kept, GET("/show"));
    client_says(fresh, GET("/hello"));
    client_says(partial, "TP/1.1\r\nHost: x\r\n\r\n");
    wait_for(kept->eof && fresh->eof && partial->eof);
    cr_expect(eq(str, (char *)statuses(kept), "200 200"));
    cr_expect(eq(str, (char *)statuses(fresh), "200"));
    cr_expect(eq(str, (char *)statuses(partial), "200"));
    cr_expect(eq(sz, count_of(kept, "Connection: close"), 1));
    cr_expect(eq(sz, count_of(fresh, "Connection: close"), 1));
    cr_expect(zero(int, kept->error + fresh->error + partial->error));
    wait_for(drained_all);
}

/* Its head went out before the drain and promised that the connection stays. */
Test(http_streams, a_drain_keeps_the_promise_of_a_stream_that_ends_in_it)
{
    struct client *c = asks(GET("/stream")), *pipelined = asks(GET("/stream") GET("/hello"));

    wait_for(n_held == 2);
    http_server_drain(server, LONG_US, on_drained, NULL);
    http_stream_end(held[0]);
    http_stream_end(held[1]);
    wait_for(has(c, "0\r\n\r\n") && pipelined->eof);
    cr_expect(eq(str, (char *)statuses(pipelined), "200 200"));
    cr_expect(zero(int, c->eof + drained_all));
    client_says(c, GET("/hello"));
    wait_for(c->eof);
    cr_expect(eq(str, (char *)statuses(c), "200 200"));
    cr_expect(eq(sz, count_of(c, "Connection: close"), 1));
    wait_for(drained_all);
}

Test(http_streams, a_grace_has_an_end)
{
    struct client *kept = asks(GET("/hello")), *fresh = client_open(), *late = asks(GET("/stream"));

    wait_for(has(kept, "hello") && http_server_conns(server) == 3 && n_held == 1);
    http_server_drain(server, SHORT_US, on_drained, NULL);
    wait_for(kept->eof && fresh->eof);
    cr_expect(zero(int, kept->error + fresh->error));
    cr_expect(zero(int, late->eof + drained_all));
    http_stream_end(held[0]);
    wait_for(late->eof);
    cr_expect(zero(int, late->error));
    wait_for(drained_all);
}

/* As when a new process takes over from one that drains. */
Test(http_streams, a_shared_socket_refuses_nobody_while_its_first_user_drains)
{
    struct client *queued[40];
    struct http_server *second;
    struct address local;
    int fd, again;

    cr_assert(zero(int, address_parse("127.0.0.1:0", &local, &err)));
    cr_assert(zero(int, address_listen(&local, 1024, 0, (gid_t)-1, &fd, &err)));
    cr_assert(zero(int, address_local(fd, &tcp, &err)));
    again = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    cr_assert(zero(int, http_server_listen(server, fd, &err)));
    for (int i = 0; i < 40; i++) {          /* nobody turns the loop: they wait in the queue */
        queued[i] = i % 2 ? client_open() : asks(GET("/hello"));
        if (i == 20)
            http_server_drain(server, LONG_US, on_drained, NULL);
    }
    wait_for(drained_all);
    cr_assert(zero(int, http_server_open(loop, &config, &second, &err)));
    cr_assert(zero(int, http_server_listen(second, again, &err)));
    for (int i = 1; i < 40; i += 2)
        client_says(queued[i], GET("/hello"));
    for (int i = 0; i < 40; i++) {
        wait_for(has(queued[i], "hello"));
        cr_expect(eq(str, (char *)statuses(queued[i]), "200"));
    }
    http_server_close(second);
}
