/* What a server accepts and refuses: the wire, limits, shared sockets, other ways in. */
#include "http_rig.h"

#include <dirent.h>

TestSuite(http_server, .init = setup, .fini = teardown);

/* ---- the wire, rule by rule ---- */

struct row {
    const char *name, *bytes;
    const char *expected;           /* the status codes of all answers */
    bool stays;                     /* and the connection works on */
    size_t len;                     /* 0: strlen */
};

static const struct row rows[] = {
    { "one request", GET("/hello"), "200", true },
    { "two pipelined", GET("/hello") GET("/show"), "200 200", true },
    { "empty lines in front", "\r\n\r\n" GET("/hello"), "200", true },
    { "a body", POST("/echo", "Content-Length: 3\r\n", "abc"), "200", true },
    { "an empty body", POST("/echo", "Content-Length: 0\r\n", ""), "200", true },
    { "no length, no body", POST("/echo", "", ""), "200", true },
    { "GET with a body", "GET /hello HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc" GET("/hello"), "200 200", true },
    { "chunks", POST("/echo", CHUNKED, "3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n"), "200", true },
    { "chunks, other case", POST("/echo", "Transfer-encoding: CHUNKED\r\n", "A\r\n0123456789\r\n0\r\n\r\n"), "200", true },
    { "chunk extension", POST("/echo", CHUNKED, "3;a=b\r\nabc\r\n0\r\n\r\n"), "200", true },
    { "trailer", POST("/echo", CHUNKED, "3\r\nabc\r\n0\r\nX-T: 1\r\n\r\n"), "200", true },
    { "unknown path", GET("/none"), "404", true },
    { "unknown path, body", POST("/none", "Content-Length: 3\r\n", "abc") GET("/hello"), "404 200", true },
    { "other method", POST("/hello", "Content-Length: 3\r\n", "abc") GET("/hello"), "405 200", true },
    { "HEAD", "HEAD /hello HTTP/1.1\r\nHost: x\r\n\r\n", "200", true },
    { "OPTIONS", "OPTIONS /hello HTTP/1.1\r\nHost: x\r\n\r\n", "204", true },
    { "OPTIONS of the server", "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", "204", true },
    { "absolute form", "GET http://y:80/hello HTTP/1.1\r\nHost: x\r\n\r\n", "200", true },
    { "absolute form without path", "GET http://y HTTP/1.1\r\nHost: x\r\n\r\n", "404", true },
    { "upgrade is not taken", "GET /hello HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", "200", true },
    { "empty Host", "GET /hello HTTP/1.1\r\nHost:\r\n\r\n", "200", true },
    { "body within the route's limit", POST("/small", "Content-Length: 10\r\n", "0123456789"), "200", true },

    { "Connection: close", LAST("/hello") AND_ON, "200" },
    { "connection: Close among others", "GET /hello HTTP/1.1\r\nHost: x\r\nConnection: te, Close\r\n\r\n" AND_ON, "200" },
    { "HTTP/1.0", "GET /hello HTTP/1.0\r\n\r\n" AND_ON, "200" },
    { "HTTP/1.0 keep-alive", "GET /hello HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\n\r\n" AND_ON, "200" },

    { "no Host", "GET /hello HTTP/1.1\r\n\r\n" AND_ON, "400" },
    { "two Hosts", "GET /hello HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n" AND_ON, "400" },
    { "two Hosts, 1.0", "GET /hello HTTP/1.0\r\nHost: x\r\nHost: y\r\n\r\n" AND_ON, "400" },
    { "list in Host", "GET /hello HTTP/1.1\r\nHost: x, y\r\n\r\n" AND_ON, "400" },
    { "path in Host", "GET /hello HTTP/1.1\r\nHost: x/y\r\n\r\n" AND_ON, "400" },
    { "user in Host", "GET /hello HTTP/1.1\r\nHost: u@x\r\n\r\n" AND_ON, "400" },
    { "folded line", "GET /hello HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n" AND_ON, "400" },
    { "folded with tab", "GET /hello HTTP/1.1\r\nHost: x\r\nA: b\r\n\tc\r\n\r\n" AND_ON, "400" },
    { "space before the first name", "GET /hello HTTP/1.1\r\n Host: x\r\n\r\n" AND_ON, "400" },
    { "hidden length", "GET /hello HTTP/1.1\r\nHost: x\r\n Content-Length: 28\r\n\r\n" AND_ON, "400" },
    { "length and chunks", POST("/echo", "Content-Length: 4\r\n" CHUNKED, "0\r\n\r\n") AND_ON, "400" },
    { "chunks and length", POST("/echo", CHUNKED "Content-Length: 4\r\n", "0\r\n\r\n") AND_ON, "400" },
    { "length 0 and chunks", POST("/echo", "Content-Length: 0\r\n" CHUNKED, "0\r\n\r\n") AND_ON, "400" },
    { "chunked, gzip", POST("/echo", "Transfer-Encoding: chunked, gzip\r\n", "0\r\n\r\n") AND_ON, "400" },
    { "gzip, chunked", POST("/echo", "Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n") AND_ON, "501" },
    { "chunked, identity", POST("/echo", "Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\n") AND_ON, "400" },
    { "xchunked", POST("/echo", "Transfer-Encoding: xchunked\r\n", "0\r\n\r\n") AND_ON, "400" },
    { "chunked twice", POST("/echo", CHUNKED CHUNKED, "0\r\n\r\n") AND_ON, "400" },
    { "TE with space before colon", POST("/echo", "Transfer-Encoding : chunked\r\n", "0\r\n\r\n") AND_ON, "400" },
    { "chunks in 1.0", "POST /echo HTTP/1.0\r\nHost: x\r\n" CHUNKED "\r\n0\r\n\r\n" AND_ON, "400" },
    { "two lengths", POST("/echo", "Content-Length: 1\r\nContent-Length: 2\r\n", "a") AND_ON, "400" },
    { "two equal lengths", POST("/echo", "Content-Length: 1\r\nContent-Length: 1\r\n", "a") AND_ON, "400" },
    { "list of lengths", POST("/echo", "Content-Length: 1, 1\r\n", "a") AND_ON, "400" },
    { "negative length", POST("/echo", "Content-Length: -5\r\n", "") AND_ON, "400" },
    { "signed length", POST("/echo", "Content-Length: +5\r\n", "abcde") AND_ON, "400" },
    { "hex length", POST("/echo", "Content-Length: 0x5\r\n", "abcde") AND_ON, "400" },
    { "empty length", POST("/echo", "Content-Length:\r\n", "") AND_ON, "400" },
    { "length that overflows", POST("/echo", "Content-Length: 99999999999999999999\r\n", "") AND_ON, "400" },
    { "length over the limit", POST("/echo", "Content-Length: 34000000000\r\n", "") , "413" },
    { "length over the route's", POST("/small", "Content-Length: 11\r\n", "01234567890") AND_ON, "413" },
    { "chunks over the route's", POST("/small", CHUNKED, "6\r\n012345\r\n6\r\n012345\r\n0\r\n\r\n") AND_ON, "413" },
    { "chunk -2", POST("/echo", CHUNKED, "-2\r\nab\r\n0\r\n\r\n") AND_ON, "400" },
    { "chunk +5", POST("/echo", CHUNKED, "+5\r\nabcde\r\n0\r\n\r\n") AND_ON, "400" },
    { "chunk with leading space", POST("/echo", CHUNKED, " 5\r\nabcde\r\n0\r\n\r\n") AND_ON, "400" },
    { "chunk 0x5", POST("/echo", CHUNKED, "0x5\r\nabcde\r\n0\r\n\r\n") AND_ON, "400" },
    { "chunk without size", POST("/echo", CHUNKED, "\r\nabcde\r\n0\r\n\r\n") AND_ON, "400" },
    { "chunk that overflows", POST("/echo", CHUNKED, "fffffffffffffffff\r\nxx\r\n0\r\n\r\n") AND_ON, "400" },
    { "chunk line with bare LF", POST("/echo", CHUNKED, "2\nab\r\n0\r\n\r\n") AND_ON, "400" },
    { "chunk extension with bare LF", POST("/echo", CHUNKED, "2;\nxx\r\n0\r\n\r\n") AND_ON, "400" },
    { "chunk extension with a quoted CRLF", POST("/echo", CHUNKED, "5;x=\"a\r\nb\"\r\nabcde\r\n0\r\n\r\n") AND_ON, "400" },
    { "chunk data without CRLF", POST("/echo", CHUNKED, "2\r\nabX0\r\n\r\n") AND_ON, "400" },
    { "chunk data longer than said", POST("/echo", CHUNKED, "2\r\nabc\r\n0\r\n\r\n") AND_ON, "400" },
    { "trailer with bare LF", POST("/echo", CHUNKED, "0\r\nA: b\n\r\n") AND_ON, "400" },
    { "bare LF", "GET /hello HTTP/1.1\nHost: x\n\n" AND_ON, "400" },
    { "one bare LF", "GET /hello HTTP/1.1\r\nHost: x\nA: b\r\n\r\n" AND_ON, "400" },
    { "LF in front", "\n" AND_ON, "400" },
    { "bare CR in a value", "GET /hello HTTP/1.1\r\nHost: x\r\nA: b\rc\r\n\r\n" AND_ON, "400" },
    { "bare CR as delimiter", "GET /hello HTTP/1.1\r\nHost: x\rContent-Length: 30\r\n\r\n" AND_ON, "400" },
    { "bare CR hides chunked", POST("/echo", "X-Abc:\rxTransfer-Encoding: chunked\r\n", "1\r\nA\r\n0\r\n\r\n") AND_ON, "400" },
    { "control byte in a value", "GET /hello HTTP/1.1\r\nHost: x\r\nA: b\001c\r\n\r\n" AND_ON, "400" },
    { "DEL in a value", "GET /hello HTTP/1.1\r\nHost: x\r\nA: b\177c\r\n\r\n" AND_ON, "400" },
    { "NUL in a value", "GET /hello HTTP/1.1\r\nHost: x\r\nA: b\0c\r\n\r\n", "400", false, 40 },
    { "line without colon", "GET /hello HTTP/1.1\r\nHost: x\r\nABC\r\n\r\n" AND_ON, "400" },
    { "empty name", "GET /hello HTTP/1.1\r\nHost: x\r\n: b\r\n\r\n" AND_ON, "400" },
    { "space before colon", "GET /hello HTTP/1.1\r\nHost : x\r\n\r\n" AND_ON, "400" },
    { "unknown method", "BREW /hello HTTP/1.1\r\nHost: x\r\n\r\n" AND_ON, "400" },
    { "lower-case method", "get /hello HTTP/1.1\r\nHost: x\r\n\r\n" AND_ON, "400" },
    { "CONNECT", "CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n" AND_ON, "400" },
    { "no version", "GET /hello\r\n\r\n" AND_ON, "505" },
    { "version 2.0", "GET /hello HTTP/2.0\r\nHost: x\r\n\r\n" AND_ON, "505" },
    { "version 1.2", "GET /hello HTTP/1.2\r\nHost: x\r\n\r\n" AND_ON, "505" },
    { "preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "400" },
    { "target without slash", "GET hello HTTP/1.1\r\nHost: x\r\n\r\n" AND_ON, "400" },
    { "asterisk with GET", "GET * HTTP/1.1\r\nHost: x\r\n\r\n" AND_ON, "400" },
    { "other scheme", "GET ftp://x/hello HTTP/1.1\r\nHost: x\r\n\r\n" AND_ON, "400" },
    { "user in the target", "GET http://u@x/hello HTTP/1.1\r\nHost: x\r\n\r\n" AND_ON, "400" },
    { "fragment", "GET /hello#x HTTP/1.1\r\nHost: x\r\n\r\n" AND_ON, "400" },
    { "escaped NUL", "GET /hello%00 HTTP/1.1\r\nHost: x\r\n\r\n" AND_ON, "400" },
    { "escaped line break", "GET /hello%0d%0a HTTP/1.1\r\nHost: x\r\n\r\n" AND_ON, "400" },
    { "broken escape", "GET /hello%4 HTTP/1.1\r\nHost: x\r\n\r\n" AND_ON, "400" },
    { "no hex escape", "GET /hello%zz HTTP/1.1\r\nHost: x\r\n\r\n" AND_ON, "400" },
    { "other expectation", POST("/echo", "Expect: money\r\nContent-Length: 1\r\n", "a") AND_ON, "417" },
    { "a TLS hello", "\x16\x03\x01\0\xa5\x01\0\0", "400", false, 8 },
};

static void try_row(const struct row *row, size_t step)
{
    struct client *c = client_open();
    size_t len = row->len ? row->len : strlen(row->bytes);
    size_t n_answers = (strlen(row->expected) + 1) / 4;

    for (size_t at = 0; at < len; at += step) {
        client_send(c, row->bytes + at, at + step < len ? step : len - at);
        if (step < len)
            turn(0);
    }
    if (row->stays) {
        wait_for(count_of(c, "HTTP/1.1 ") >= n_answers || c->eof);
        cr_expect(eq(str, (char *)statuses(c), (char *)row->expected), "%s, step %zu", row->name, step);
        buf_clear(&c->got);
        client_says(c, LAST("/hello"));
        wait_for(c->eof);
        cr_expect(eq(str, (char *)statuses(c), "200"), "%s, step %zu: and on", row->name, step);
    } else {
        wait_for(c->eof);
        cr_expect(eq(str, (char *)statuses(c), (char *)row->expected), "%s, step %zu", row->name, step);
        cr_expect(has(c, "\r\nConnection: close\r\n"), "%s", row->name);
    }
    cr_expect(zero(int, c->error), "%s, step %zu: the answer was followed by a reset", row->name, step);
    client_close(c);
}

Test(http_server, every_rule_of_the_wire_holds_in_one_piece)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        try_row(&rows[i], SIZE_MAX / 2);
    wait_for(http_server_conns(server) == 0);
    cr_expect(zero(sz, http_server_active(server)));
}

Test(http_server, every_rule_of_the_wire_holds_byte_by_byte_and_in_odd_pieces)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        try_row(&rows[i], 1);
        try_row(&rows[i], 7);
    }
}

Test(http_server, a_handler_sees_decoded_paths_queries_and_headers)
{
    static const struct { const char *request, *seen; } shown[] = {
        { "GET /show?q=a+b%26c&r=1 HTTP/1.1\r\nHost: h:1\r\nX-V: \t two words \t \r\n\r\n",
          "[GET|/show|q=a+b%26c&r=1|q=a b&c|host=h:1|x-v=two words]" },
        { "GET /v1/models/a%2Fb%20c HTTP/1.1\r\nHost: x\r\nX-V:\r\n\r\n", "[GET|/v1/models/a/b c||q=-|host=x|x-v=]" },
        { "GET /show?%71=1&q=2 HTTP/1.1\r\nHost: x\r\n\r\n", "|q=1|" },
        { "GET /show?q HTTP/1.1\r\nHost: x\r\n\r\n", "|q=|" },
        { "GET /show?q=%zz HTTP/1.1\r\nHost: x\r\n\r\n", "|q=-|" },
        { "GET HTTP://h/show?q=1 HTTP/1.1\r\nHost: x\r\n\r\n", "[GET|/show|q=1|q=1|" },
        { "PUT /any HTTP/1.1\r\nHost: x\r\nx-v: \xc3\xa9\r\n\r\n", "[PUT|/any||q=-|host=x|x-v=\xc3\xa9]" },
        { "HEAD /any HTTP/1.1\r\nHost: x\r\n\r\n", "Content-Length: " },
    };

    for (size_t i = 0; i < sizeof shown / sizeof shown[0]; i++) {
        struct client *c = asks("%s", shown[i].request);

        wait_for(has(c, "\r\n\r\n"));
        turn(0);
        cr_expect(has(c, shown[i].seen), "%s\n%s", shown[i].request, buf_str(&c->got));
        client_close(c);
    }
}

Test(http_server, answers_carry_what_they_should)
{
    struct client *c = asks(LAST("/hello"));

    wait_for(c->eof);
    cr_expect(has(c, "HTTP/1.1 200 OK\r\nDate: "));
    cr_expect(has(c, " GMT\r\nContent-Type: text/plain\r\nContent-Length: 5\r\nConnection: close\r\nX-Extra: yes\r\n\r\nhello"));
    cr_expect(not(has(c, "X-Evil")));
    client_close(c);

    c = asks("HEAD /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    wait_for(c->eof);
    cr_expect(has(c, "Content-Length: 5\r\n"));
    cr_expect(not(has(c, "hello")));
    client_close(c);

    c = asks("DELETE /v1/models/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    wait_for(c->eof);
    cr_expect(has(c, "Allow: GET, HEAD, POST, OPTIONS\r\n"), "%s", buf_str(&c->got));
    cr_expect(has(c, "\r\n\r\n{\"detail\":\"Method Not Allowed\"}"));
    client_close(c);

    c = asks("OPTIONS /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    wait_for(c->eof);
    cr_expect(has(c, "Allow: GET, HEAD, OPTIONS\r\n"));
    cr_expect(not(has(c, "Content-Length")));
    client_close(c);
}

Test(http_server, the_body_is_asked_for_only_when_it_is_wanted)
{
    struct client *c = asks(POST("/echo", "Expect: 100-continue\r\nContent-Length: 3\r\n", ""));

    wait_for(has(c, "HTTP/1.1 100 Continue\r\n\r\n"));
    client_says(c, "abc");
    wait_for(has(c, "abc"));
    cr_expect(eq(str, (char *)statuses(c), "100 200"));
    client_close(c);

    c = asks(POST("/small", "Expect: 100-continue\r\nContent-Length: 11\r\n", ""));
    wait_for(c->eof);
    cr_expect(eq(str, (char *)statuses(c), "413"));
    client_close(c);

    c = asks(POST("/none", "Expect: 100-continue\r\nContent-Length: 11\r\n", ""));
    wait_for(c->eof);
    cr_expect(eq(str, (char *)statuses(c), "404"));
    client_close(c);

    /* a body that is there already needs no invitation */
    c = asks(POST("/echo", "Expect: 100-continue\r\nContent-Length: 3\r\n", "abc"));
    wait_for(has(c, "abc"));
    cr_expect(eq(str, (char *)statuses(c), "200"));
    client_close(c);
}

/* ---- limits ---- */

Test(http_server, heads_over_the_limits_are_refused_by_what_is_too_long)
{
    static char text[80000];
    struct client *c;
    int at;

    at = sprintf(text, "GET /");
    memset(text + at, 'a', 20000);
    strcpy(text + at + 20000, " HTTP/1.1\r\nHost: x\r\n\r\n");
    c = client_open();
    client_says(c, text);
    wait_for(c->eof);
    cr_expect(eq(str, (char *)statuses(c), "414"));
    client_close(c);

    at = sprintf(text, "GET /hello HTTP/1.1\r\nHost: x\r\nA: ");
    memset(text + at, 'b', 40000);
    strcpy(text + at + 40000, "\r\n\r\n");
    c = client_open();
    client_says(c, text);
    wait_for(c->eof);
    cr_expect(eq(str, (char *)statuses(c), "431"));
    client_close(c);

    for (int n = 100; n <= 101; n++) {
        at = sprintf(text, "GET /hello HTTP/1.1\r\nConnection: close\r\nHost: x\r\n");
        for (int i = 2; i < n; i++)
            at += sprintf(text + at, "A%d: %d\r\n", i, i);
        strcpy(text + at, "\r\n");
        c = client_open();
        client_says(c, text);
        wait_for(c->eof);
        cr_expect(eq(str, (char *)statuses(c), n == 100 ? "200" : "431"), "%d headers", n);
        client_close(c);
    }
}

Test(http_server, a_large_body_comes_back_whole_and_a_chunked_one_too)
{
    enum { LEN = 3000000 };
    char *body = malloc(LEN);
    struct client *c = client_open();

    for (int i = 0; i < LEN; i++)
        body[i] = (char)(i * 7 + i / 251);
    client_says(c, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n");
    client_send(c, body, LEN);
    wait_for(c->got.len > LEN);
    cr_expect(zero(int, memcmp(c->got.data + c->got.len - LEN, body, LEN)));

    buf_clear(&c->got);
    client_says(c, "POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (int at = 0; at < LEN; at += 100000) {
        client_says(c, "186a0\r\n");
        client_send(c, body + at, 100000);
        client_says(c, "\r\n");
    }
    client_says(c, "0\r\n\r\n");
    wait_for(c->eof);
    cr_assert(gt(sz, c->got.len, LEN));
    cr_expect(zero(int, memcmp(c->got.data + c->got.len - LEN, body, LEN)));
    free(body);
}

Test(http_server, an_endless_trailer_ends)
{
    struct client *c = asks(POST("/echo", CHUNKED, "1\r\na\r\n0\r\n"));

    for (int i = 0; i < 20000 && !c->eof; i++) {
        client_says(c, "X-Trailer: and so on and so on\r\n");
        turn(0);
    }
    wait_for(c->eof);
    cr_expect(eq(str, (char *)statuses(c), "400"));
}

Test(http_server, a_refused_upload_still_sees_its_answer)
{
    static char junk[1 << 20];
    struct client *c = asks(POST("/small", "Content-Length: 20000000\r\n", ""));

    for (int i = 0; i < 8; i++)
        client_send(c, junk, sizeof junk);
    wait_for(c->eof);
    cr_expect(eq(str, (char *)statuses(c), "413"));
    cr_expect(zero(int, c->error));
}

static void short_deadlines(void)
{
    struct http_config quick = config;

    quick.limits.header_us = quick.limits.body_us = quick.limits.idle_us = 300000;
    net_open(&quick);
}

Test(http_server_deadlines, a_slow_head_a_slow_body_and_an_idle_connection_end, .init = short_deadlines, .fini = teardown)
{
    struct client *head = asks("GET /hello HTTP/1.1\r\n"), *body = asks(POST("/echo", "Content-Length: 9999\r\n", "a"));
    uint64_t next = 0;
    struct client *idle = asks(GET("/hello")), *fresh = client_open(), *chunk = asks(POST("/echo", CHUNKED, "1\r\n"));

    while (!head->eof || !body->eof || !chunk->eof || !idle->eof || !fresh->eof) {
        /* absolute: a byte now and then does not help */
        if (clock_mono_us() > next) {
            next = clock_mono_us() + 20000;
            if (!head->eof)
                client_says(head, "A");
            if (!body->eof)
                client_says(body, "b");
        }
        turn(20000);
    }
    cr_expect(eq(str, (char *)statuses(head), "408"));
    cr_expect(eq(str, (char *)statuses(body), "408"));
    cr_expect(eq(str, (char *)statuses(chunk), "408"));
    cr_expect(eq(str, (char *)statuses(idle), "200"));
    cr_expect(eq(str, (char *)statuses(fresh), ""));
    wait_for(http_server_conns(server) == 0);
}

Test(http_server_deadlines, a_request_in_work_has_no_deadline, .init = short_deadlines, .fini = teardown)
{
    struct client *c = asks(GET("/later")), *clock = client_open();

    wait_for(n_held == 1);
    wait_for(clock->eof);           /* a fresh connection's time is the same */
    client_close(clock);
    clock = client_open();
    wait_for(clock->eof);
    cr_expect(not(c->eof));
    http_reply(held[0], 200, NULL, "ok", 2);
    wait_for(has(c, "ok"));
}

static void few_conns(void)
{
    struct http_config few = config;

    few.limits.max_conns = 4;
    net_open(&few);
}

Test(http_server_conns, one_more_than_allowed_is_told_503_and_later_ones_are_served, .init = few_conns, .fini = teardown)
{
    struct client *c[4], *over;

    for (int i = 0; i < 4; i++)
        c[i] = asks(GET("/hello"));
    for (int i = 0; i < 4; i++)
        wait_for(has(c[i], "hello"));
    over = asks(GET("/hello"));
    wait_for(over->eof);
    cr_expect(eq(str, (char *)statuses(over), "503"));
    cr_expect(has(over, "Retry-After: 1\r\n"));
    cr_expect(zero(int, over->error));
    client_close(over);
    client_close(c[0]);
    wait_for(http_server_conns(server) == 3);
    over = asks(GET("/hello"));
    wait_for(has(over, "hello"));
}

/* ---- sockets that several accept from ---- */

static struct loop *partner_loop;
static struct http_server *partner;

static void share(uint32_t max_conns)
{
    struct http_config shared = config;
    struct address any;
    int fd = -1;

    shared.limits.shared = true;
    shared.limits.max_conns = max_conns;
    for (int i = 0; i < MAX_CLIENTS; i++)
        clients[i].fd = -1;
    cr_assert(zero(int, address_parse("127.0.0.1:0", &any, &err)));
    cr_assert(zero(int, address_listen(&any, 1024, 0, (gid_t)-1, &fd, &err)), "%s", err_text(&err));
    cr_assert(zero(int, address_local(fd, &tcp, &err)));
    cr_assert(zero(int, loop_open(&loop, &err)));
    cr_assert(zero(int, loop_open(&partner_loop, &err)));
    cr_assert(zero(int, http_server_open(loop, &shared, &server, &err)));
    cr_assert(zero(int, http_server_open(partner_loop, &shared, &partner, &err)));
    cr_assert(zero(int, http_server_listen(server, dup(fd), &err)));
    cr_assert(zero(int, http_server_listen(partner, fd, &err)));
}

static void share_end(void)
{
    http_server_close(partner);
    loop_close(partner_loop);
    partner = NULL;
    net_close();
}

static void turn_both(void)
{
    turn(1000);
    cr_assert(ge(int, sd_event_run(loop_event(partner_loop), 1000), 0));
}

#define wait_for_both(condition)                                                                   \
    do {                                                                                           \
        uint64_t until_ = clock_mono_us() + 120000000;                                             \
        while (!(condition)) {                                                                     \
            turn_both();                                                                           \
            cr_assert(lt(u64, clock_mono_us(), until_), "never: %s", #condition);                  \
        }                                                                                          \
    } while (0)

Test(http_server_conns, those_who_share_a_socket_take_turns_and_one_may_leave, .fini = share_end)
{
    struct client *c[40], *later;
    size_t n;

    share(0);
    for (int i = 0; i < 40; i++)
        c[i] = asks(GET("/hello"));
    for (int i = 0; i < 40; i++)
        wait_for_both(has(c[i], "hello"));
    cr_expect(ge(sz, http_server_conns(server), 10));
    cr_expect(ge(sz, http_server_conns(partner), 10));
    cr_expect(eq(sz, http_server_conns(server) + http_server_conns(partner), 40));
    n = http_server_conns(server);
    http_server_drain(partner, 0, NULL, NULL);
    for (int i = 0; i < 40; i++) {
        later = asks(GET("/hello"));
        wait_for_both(has(later, "hello"));
    }
    cr_expect(eq(sz, http_server_conns(server), n + 40));
}

Test(http_server_conns, a_full_one_leaves_connections_to_who_shares_them_and_only_all_refuse, .fini = share_end)
{
    struct client *c[8], *over[4];
    int n_here = 0;

    share(4);
    /* all that come are the first one's, until it is full */
    for (int i = 0; i < 4; i++) {
        c[i] = asks(GET("/hello"));
        wait_for(has(c[i], "hello"));
        n_here++;
    }
    cr_assert(eq(sz, http_server_conns(server), (size_t)n_here));
    for (int i = 4; i < 8; i++)
        c[i] = asks(GET("/hello"));
    for (int i = 4; i < 8; i++)
        wait_for_both(has(c[i], "hello"));
    cr_expect(eq(sz, http_server_conns(partner), 4));
    for (int i = 0; i < 4; i++)
        over[i] = asks(GET("/hello"));
    for (int i = 0; i < 4; i++) {
        wait_for_both(over[i]->eof);
        cr_expect(eq(str, (char *)statuses(over[i]), "503"));
        client_close(over[i]);
    }
    client_close(c[0]);
    over[0] = asks(GET("/hello"));
    wait_for_both(has(over[0], "hello") || over[0]->eof);
    if (over[0]->eof)           /* it came before the room was seen */
        client_close(over[0]);
    wait_for_both(http_server_conns(server) <= 4);
}

Test(http_server_conns, running_out_of_descriptors_refuses_and_recovers)
{
    struct rlimit limit, low;
    struct client *c, *over;
    int fds[256], n = 0;

    setup();
    c = asks(GET("/hello"));
    wait_for(has(c, "hello"));
    getrlimit(RLIMIT_NOFILE, &limit);
    low = limit;
    low.rlim_cur = 200;
    cr_assert(zero(int, setrlimit(RLIMIT_NOFILE, &low)));
    over = client_open();
    while (n < 256 && (fds[n] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
        n++;
    client_says(over, GET("/hello"));
    wait_for(over->eof);
    cr_expect(eq(str, (char *)statuses(over), "503"));
    /* what is connected works on */
    buf_clear(&c->got);
    client_says(c, GET("/hello"));
    wait_for(has(c, "hello"));
    while (n)
        close(fds[--n]);
    setrlimit(RLIMIT_NOFILE, &limit);
    client_close(over);
    over = asks(GET("/hello"));
    wait_for(has(over, "hello"));
    teardown();
}

/* ---- other limits while it runs ---- */

Test(http_server, new_limits_count_for_what_begins_from_then_on)
{
    const struct http_limits tight = { .max_conns = 2, .header_bytes = 200, .body_bytes = 4 };
    struct client *reading = asks(POST("/echo", "Content-Length: 8\r\n", "1234")), *kept = asks(GET("/hello")), *more;

    wait_for(has(kept, "hello") && http_server_conns(server) == 2);
    turn(1000);
    http_server_set_limits(server, &tight);
    client_says(reading, "5678");
    wait_for(has(reading, "12345678"));
    client_says(kept, POST("/echo", "Content-Length: 5\r\n", "12345"));
    wait_for(kept->eof);
    cr_expect(eq(str, (char *)statuses(kept), "200 413"));
    wait_for(http_server_conns(server) == 1);
    client_says(reading, "GET /hello HTTP/1.1\r\nHost: x\r\nX-Long: ");
    for (int i = 0; i < 20; i++)
        client_says(reading, "0123456789");
    wait_for(reading->eof);
    cr_expect(eq(str, (char *)statuses(reading), "200 431"));
    wait_for(http_server_conns(server) == 0);
    kept = asks(GET("/later"));
    reading = asks(GET("/later"));
    wait_for(n_held == 2);
    more = client_open();
    wait_for(more->eof);
    cr_expect(eq(str, (char *)statuses(more), "503"));
    http_server_set_limits(server, &config.limits);
    more = asks(GET("/hello"));
    wait_for(has(more, "hello"));
}

/* ---- other ways in ---- */

static int count_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

Test(http_server, a_new_socket_of_the_same_path_takes_the_place_of_the_old_one)
{
    char folder[] = "/tmp/fastchat-http-XXXXXX", text[128];
    struct client *before, *waiting, *after;
    struct address a;
    int fd = -1, n_fds;

    cr_assert(mkdtemp(folder) != NULL);
    snprintf(text, sizeof text, "unix:%s/s", folder);
    cr_assert(zero(int, address_parse(text, &a, &err)));
    cr_assert(zero(int, address_listen(&a, 16, 0600, (gid_t)-1, &fd, &err)));
    cr_assert(zero(int, http_server_listen(server, fd, &err)));
    tcp = a;
    before = asks(GET("/hello") GET("/later"));
    wait_for(n_held == 1);
    n_fds = count_fds();
    waiting = asks(GET("/hello"));      /* in the old socket's queue */
    unlink(a.path);
    cr_assert(zero(int, address_listen(&a, 16, 0600, (gid_t)-1, &fd, &err)));
    cr_assert(zero(int, http_server_listen(server, fd, &err)));
    after = asks(GET("/hello"));
    wait_for(has(waiting, "hello") && has(after, "hello"));
    http_reply(held[0], 200, NULL, "still here", 10);
    wait_for(has(before, "still here"));
    client_close(waiting);
    client_close(after);
    wait_for(http_server_conns(server) == 1);
    cr_expect(eq(int, count_fds(), n_fds));
    client_close(before);
    unlink(a.path);
    rmdir(folder);
}

Test(http_server, unix_sockets_and_adopted_ones_work_alike)
{
    char folder[] = "/tmp/fastchat-http-XXXXXX", text[128];
    struct address a;
    int fd = -1, pair[2];
    struct client *c;

    cr_assert(mkdtemp(folder) != NULL);
    snprintf(text, sizeof text, "unix:%s/s", folder);
    cr_assert(zero(int, address_parse(text, &a, &err)));
    cr_assert(zero(int, address_listen(&a, 16, 0600, (gid_t)-1, &fd, &err)));
    cr_assert(zero(int, http_server_listen(server, fd, &err)), "%s", err_text(&err));
    tcp = a;
    c = asks(GET("/hello") GET("/later"));
    wait_for(n_held == 1);
    cr_expect(has(c, "hello"));
    cr_expect(eq(str, (char *)held[0]->peer, "unix"));
    client_close(c);
    wait_for(n_gone == 1);
    unlink(a.path);
    rmdir(folder);

    cr_assert(zero(int, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair)));
    cr_assert(zero(int, http_server_adopt(server, pair[0], &err)));
    c = &clients[0];
    *c = (struct client){ .fd = pair[1] };
    client_says(c, LAST("/hello"));
    wait_for(c->eof);
    cr_expect(has(c, "hello"));
}

static const char *shaped(int status, const char *detail, struct http_request *req, struct arena *arena)
{
    http_add_header(req, "X-Own", req->path);
    return arena_printf(arena, "{\"error\":%d}", status);
}

Test(http_server_errors, the_shape_of_errors_is_the_programs)
{
    struct http_config own = config;
    struct client *c;

    own.error_body = shaped;
    net_open(&own);
    c = asks(GET("/none"));
    wait_for(has(c, "{\"error\":404}"));
    cr_expect(has(c, "X-Own: /none\r\n"));
    client_says(c, "nonsense\r\n\r\n");
    wait_for(c->eof);
    cr_expect(has(c, "{\"error\":400}"));
    cr_expect(has(c, "X-Own: -\r\n"));
    cr_expect(eq(int, last_status, 400));
    cr_expect(eq(str, last_path, "-"));
    net_close();
}
