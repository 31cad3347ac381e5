#include "base/err.h"
#include "ipc/address.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[64];
static struct err err;

static void setup(void)
{
    strcpy(folder, "/tmp/fastchat-address-XXXXXX");
    cr_assert(mkdtemp(folder) != NULL);
    memset(&err, 0, sizeof err);
}

static void teardown(void)
{
    char path[128];

    snprintf(path, sizeof path, "%s/s", folder);
    unlink(path);
    rmdir(folder);
}

TestSuite(address, .init = setup, .fini = teardown);

static struct address parsed(const char *text)
{
    struct address a = { 0 };

    cr_assert(zero(int, address_parse(text, &a, &err)), "%s: %s", text, err_text(&err));
    return a;
}

static struct address in_folder(void)
{
    char text[128];

    snprintf(text, sizeof text, "unix:%s/s", folder);
    return parsed(text);
}

Test(address, what_people_write_is_understood)
{
    static const struct { const char *text, *host; int port; const char *clean; } rows[] = {
        { "127.0.0.1:8000", "127.0.0.1", 8000, "127.0.0.1:8000" },
        { "  0.0.0.0:0 ", "0.0.0.0", 0, "0.0.0.0:0" },
        { "[::1]:80", "::1", 80, "[::1]:80" },
        { "[FE80::1]:00443", "fe80::1", 443, "[fe80::1]:443" },
        { "localhost:65535", "localhost", 65535, "localhost:65535" },
        { "Node-1.Example:1", "node-1.example", 1, "node-1.example:1" },
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct address a = parsed(rows[i].text);

        cr_expect(eq(str, a.host, (char *)rows[i].host));
        cr_expect(eq(int, a.port, rows[i].port));
        cr_expect(eq(str, a.text, (char *)rows[i].clean));
        cr_expect(not(a.is_unix));
    }
    struct address u = parsed("unix:/run/fastchat/api.sock");
    cr_expect(u.is_unix);
    cr_expect(eq(str, u.path, "/run/fastchat/api.sock"));
    cr_expect(eq(str, u.text, "unix:/run/fastchat/api.sock"));
}

Test(address, what_is_wrong_is_named)
{
    static const struct { const char *text, *why; } rows[] = {
        { "", "empty" }, { "   ", "empty" }, { "8000", "HOST:PORT" }, { ":8000", "host name" },
        { "localhost:", "port" }, { "localhost:65536", "port" }, { "localhost:-1", "port" },
        { "localhost:80a", "port" }, { "localhost:0000080", "port" }, { "1.2.3:80", "IPv4" },
        { "1.2.3.256:80", "IPv4" }, { "[::g]:80", "IPv6" }, { "[::1]80", "HOST:PORT" },
        { "[::1:80", "HOST:PORT" }, { "::1:80", "brackets" }, { "a b:80", "host name" },
        { "*:80", "host name" }, { "-x:80", "host name" }, { "http://x:80", "brackets" },
        { "unix:", "path" }, { "Unix:6", "lower case" },
        { "unix:/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
          "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "107" },
    };
    struct address a = { .port = 7 };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        err_clear(&err);
        cr_expect(eq(int, address_parse(rows[i].text, &a, &err), -EINVAL), "%s", rows[i].text);
        cr_expect(strstr(err_text(&err), rows[i].why) != NULL, "'%s': %s", rows[i].text, err_text(&err));
    }
    cr_expect(eq(int, a.port, 7));
}

static void round_trip(int listener, const struct address *to)
{
    int out = -1, in;
    char c = 0;

    cr_assert(zero(int, address_connect(to, &out, &err)), "%s", err_text(&err));
    in = accept(listener, NULL, NULL);
    cr_assert(ge(int, in, 0));
    cr_assert(eq(int, (int)write(out, "z", 1), 1));
    cr_assert(eq(int, (int)read(in, &c, 1), 1));
    cr_expect(eq(chr, c, 'z'));
    close(in);
    close(out);
}

Test(address, a_tcp_listener_takes_connections_and_its_holder_is_named)
{
    struct address a = parsed("localhost:0"), bound;
    char me[32];
    int fd = -1, second = -1;

    cr_assert(zero(int, address_listen(&a, 16, 0, (gid_t)-1, &fd, &err)));
    cr_expect(ne(int, fcntl(fd, F_GETFD) & FD_CLOEXEC, 0));
    cr_expect(ne(int, fcntl(fd, F_GETFL) & O_NONBLOCK, 0));
    cr_assert(zero(int, address_local(fd, &bound, &err)));
    cr_expect(eq(str, bound.host, "127.0.0.1"));
    cr_assert(ne(int, bound.port, 0));
    round_trip(fd, &bound);

    cr_expect(eq(int, address_listen(&bound, 16, 0, (gid_t)-1, &second, &err), -EADDRINUSE));
    snprintf(me, sizeof me, "(pid %d)", (int)getpid());
    cr_expect(strstr(err_text(&err), bound.text) != NULL, "%s", err_text(&err));
    cr_expect(strstr(err_text(&err), me) != NULL, "%s", err_text(&err));

    /* the wildcard holds it too */
    err_clear(&err);
    snprintf(a.host, sizeof a.host, "0.0.0.0");
    a.port = bound.port;
    cr_expect(eq(int, address_listen(&a, 16, 0, (gid_t)-1, &second, &err), -EADDRINUSE));
    cr_expect(strstr(err_text(&err), me) != NULL, "%s", err_text(&err));
    close(fd);
    cr_expect(eq(int, address_connect(&bound, &second, NULL), -ECONNREFUSED));
}

Test(address, an_ipv6_listener_leaves_the_ipv4_port_alone)
{
    struct address a = parsed("[::]:0"), bound;
    int fd = -1, v4 = -1;

    if (address_listen(&a, 16, 0, (gid_t)-1, &fd, &err) < 0)
        cr_skip("no IPv6 here: %s", err_text(&err));
    cr_assert(zero(int, address_local(fd, &bound, &err)));
    cr_expect(eq(str, bound.host, "::"));
    a = parsed("0.0.0.0:0");
    a.port = bound.port;
    cr_expect(zero(int, address_listen(&a, 16, 0, (gid_t)-1, &v4, &err)), "%s", err_text(&err));
    snprintf(bound.host, sizeof bound.host, "::1");
    round_trip(fd, &bound);
    close(v4);
    close(fd);
}

Test(address, a_unix_listener_has_its_mode_and_replaces_a_stale_file)
{
    struct address a = in_folder(), bound;
    struct stat st;
    int fd = -1;

    umask(077);
    cr_assert(zero(int, address_listen(&a, 16, 0660, getgid(), &fd, &err)));
    cr_assert(zero(int, stat(a.path, &st)));
    cr_expect(eq(int, (int)(st.st_mode & 07777), 0660));
    cr_expect(eq(u32, st.st_gid, getgid()));
    cr_assert(zero(int, address_local(fd, &bound, &err)));
    cr_expect(eq(str, bound.text, a.text));
    round_trip(fd, &a);

    close(fd);                          /* the file stays: stale */
    cr_expect(eq(int, address_connect(&a, &fd, NULL), -ECONNREFUSED));
    cr_assert(zero(int, address_listen(&a, 16, 0600, (gid_t)-1, &fd, &err)));
    cr_assert(zero(int, stat(a.path, &st)));
    cr_expect(eq(int, (int)(st.st_mode & 07777), 0600));
    round_trip(fd, &a);
    close(fd);
}

Test(address, a_live_unix_socket_of_either_kind_is_not_replaced)
{
    struct address a = in_folder(), packets = a;
    char me[32];
    int fd = -1, second = -1;

    packets.seqpacket = true;
    snprintf(me, sizeof me, "(pid %d)", (int)getpid());
    for (int i = 0; i < 2; i++) {
        err_clear(&err);
        cr_assert(zero(int, address_listen(i ? &packets : &a, 0, 0600, (gid_t)-1, &fd, &err)));
        round_trip(fd, i ? &packets : &a);
        cr_expect(eq(int, address_listen(&a, 16, 0600, (gid_t)-1, &second, &err), -EADDRINUSE));
        cr_expect(strstr(err_text(&err), me) != NULL, "%s", err_text(&err));
        close(fd);
    }
}

Test(address, a_file_that_is_no_socket_is_left_alone)
{
    struct address a = in_folder();
    int fd = open(a.path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600), listener = -1;

    cr_assert(ge(int, fd, 0));
    close(fd);
    cr_expect(eq(int, address_listen(&a, 16, 0600, (gid_t)-1, &listener, &err), -EEXIST));
    cr_expect(zero(int, access(a.path, F_OK)));
}

Test(address, a_missing_folder_or_host_is_an_error_with_the_address)
{
    struct address a = parsed("unix:/nonexistent-folder/x"), h = parsed("no-such-host.invalid:1");
    int fd = -1;

    cr_expect(eq(int, address_listen(&a, 16, 0600, (gid_t)-1, &fd, &err), -ENOENT));
    cr_expect(strstr(err_text(&err), a.text) != NULL);
    cr_expect(eq(int, address_connect(&a, &fd, NULL), -ENOENT));
    cr_expect(lt(int, address_connect(&h, &fd, NULL), 0));
}
