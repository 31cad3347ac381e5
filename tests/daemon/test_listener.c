/* Sockets that are shared, found again, and let go. */
#include "daemon/supervisor/listener.h"

#include "config_files.h"

#include "base/err.h"

#include <criterion/new/assert.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

TestSuite(listener, .init = config_folder_make, .fini = config_folder_remove, .timeout = 60);

static struct address unix_address(const char *name)
{
    struct address a;
    char text[128];

    snprintf(text, sizeof text, "unix:%s/%s", config_folder, name);
    cr_assert(zero(int, address_parse(text, &a, NULL)));
    return a;
}

static struct listener *get(struct listeners *l, const struct address *a, mode_t mode)
{
    struct listener *k = NULL;
    struct err err = { 0 };

    cr_assert(zero(int, listener_get(l, a, mode, (gid_t)-1, &k, &err)), "%s", err_text(&err));
    return k;
}

static bool accepts(const struct address *a)
{
    int fd = -1;
    bool ok = address_connect(a, &fd, NULL) == 0;

    if (ok)
        close(fd);
    return ok;
}

Test(listener, an_address_is_bound_once_and_closed_by_its_last_user)
{
    struct address a = unix_address("x.sock");
    struct listeners l = { 0 };
    struct listener *one = get(&l, &a, 0600), *two = get(&l, &a, 0660);
    struct stat st;

    cr_expect(one == two);
    cr_assert(zero(int, stat(a.path, &st)));
    cr_expect(eq(uint, st.st_mode & 0777, 0660), "the mode asked for last");
    listener_put(&l, one);
    cr_expect(accepts(&a));
    listener_put(&l, two);
    cr_expect(l.first == NULL && access(a.path, F_OK) != 0);
}

Test(listener, a_port_that_was_zero_is_known_and_found_again)
{
    struct listeners l = { 0 };
    struct address a, bound;
    struct listener *k;

    cr_assert(zero(int, address_parse("127.0.0.1:0", &a, NULL)));
    k = get(&l, &a, 0);
    bound = k->bound;
    cr_expect(gt(uint, bound.port, 0));
    cr_expect(accepts(&bound));
    cr_expect(get(&l, &bound, 0) == k);
    listener_put(&l, k);
    listener_put(&l, k);
}

Test(listener, an_adopted_descriptor_serves_its_address)
{
    struct address a = unix_address("y.sock");
    struct listeners l = { 0 };
    struct err err = { 0 };
    int fd = -1;

    cr_assert(zero(int, address_listen(&a, 5, 0600, (gid_t)-1, &fd, &err)));
    cr_assert(zero(int, listener_adopt(&l, fd, NULL, "unix-somewhere", &err)), "%s", err_text(&err));
    cr_expect(eq(int, get(&l, &a, 0600)->fd, fd));
    cr_expect(l.first->stored);
    l.ending = true;
    listener_put(&l, l.first);
    cr_expect(access(a.path, F_OK) == 0, "what systemd keeps stays");
}

Test(listener, one_whose_file_is_gone_is_bound_anew)
{
    struct address a = unix_address("z.sock");
    struct listeners l = { 0 };
    int fd = -1;

    cr_assert(zero(int, address_listen(&a, 5, 0600, (gid_t)-1, &fd, NULL)));
    cr_assert(zero(int, listener_adopt(&l, fd, NULL, "name", NULL)));
    unlink(a.path);
    cr_expect(not(accepts(&a)));
    get(&l, &a, 0600);
    cr_expect(accepts(&a));
    listener_put(&l, l.first);
    cr_expect(l.first == NULL);
}

Test(listener, what_nobody_asks_for_is_closed)
{
    struct address a = unix_address("a.sock"), b = unix_address("b.sock");
    struct listeners l = { 0 };
    int fd = -1;

    cr_assert(zero(int, address_listen(&a, 5, 0600, (gid_t)-1, &fd, NULL)));
    cr_assert(zero(int, listener_adopt(&l, fd, NULL, "a", NULL)));
    get(&l, &b, 0600);
    listeners_trim(&l);
    cr_expect(l.first != NULL && l.first->next == NULL);
    cr_expect(not(accepts(&a)));
    cr_expect(accepts(&b));
    listener_put(&l, l.first);
}

Test(listener, a_bad_descriptor_is_refused)
{
    struct listeners l = { 0 };
    struct err err = { 0 };

    cr_expect(lt(int, listener_adopt(&l, open("/dev/null", O_RDONLY), NULL, NULL, &err), 0));
    cr_expect(err_is_set(&err) && l.first == NULL);
}

Test(listener, variables_of_another_process_or_without_sense_pass_nothing)
{
    char own[16];
    struct { const char *pid, *fds, *names; } cases[] = {
        { own, NULL, NULL }, { NULL, "1", NULL }, { "1", "1", NULL }, { "1", NULL, "a:b" }, { own, "abc", NULL },
        { own, "-1", NULL }, { own, "0", "a:b" }, { "x", "1", NULL },
    };

    snprintf(own, sizeof own, "%d", (int)getpid());
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct listeners l = { 0 };

        cases[i].pid ? setenv("LISTEN_PID", cases[i].pid, 1) : unsetenv("LISTEN_PID");
        cases[i].fds ? setenv("LISTEN_FDS", cases[i].fds, 1) : unsetenv("LISTEN_FDS");
        cases[i].names ? setenv("LISTEN_FDNAMES", cases[i].names, 1) : unsetenv("LISTEN_FDNAMES");
        listeners_inherit(&l);
        cr_expect(l.first == NULL, "case %zu", i);
        cr_expect(getenv("LISTEN_PID") == NULL && !getenv("LISTEN_FDS") && !getenv("LISTEN_FDNAMES"), "case %zu", i);
    }
}
