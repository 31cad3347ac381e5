#include "base/log.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int reader;
static char text[1 << 17];

/* stderr becomes one end of `pair`, the other is read by the test. */
static void redirect(int write_end, int read_end)
{
    reader = read_end;
    cr_assert(eq(int, dup2(write_end, 2), 2));
    close(write_end);
    fcntl(reader, F_SETFL, O_NONBLOCK);
    log_open("tester", LOG_INFO);
}

/* What was logged so far. */
static char *logged(void)
{
    size_t len = 0;
    ssize_t n;

    while ((n = read(reader, text + len, sizeof text - 1 - len)) > 0)
        len += (size_t)n;
    text[len] = 0;
    return text;
}

static void log_until_full(void)
{
    for (int i = 0; i < 10000; i++)
        log_info("line %d of a log that nobody reads", i);
}

Test(log, a_line_has_its_role_and_level)
{
    int pair[2];

    cr_assert(zero(int, pipe(pair)));
    redirect(pair[1], pair[0]);
    log_warning("something\nis odd");
    cr_expect(ne(ptr, strstr(logged(), " tester: warning: something is odd\n"), NULL));
}

Test(log, a_pipe_that_nobody_reads_holds_nobody_up_and_losses_are_counted)
{
    char *first, *lost;
    int pair[2];

    cr_assert(zero(int, pipe(pair)));
    redirect(pair[1], pair[0]);
    log_until_full();
    first = logged();
    cr_expect(ne(ptr, strstr(first, "line 0 of"), NULL));
    cr_expect(eq(ptr, strstr(first, "line 9999 of"), NULL));
    log_info("heard");
    lost = strstr(logged(), "(before this line ");
    cr_expect(ne(ptr, strstr(text, " tester: heard\n"), NULL));
    cr_expect(ne(ptr, lost, NULL));
    log_info("and on");
    cr_expect(eq(ptr, strstr(logged(), "were lost"), NULL));
}

Test(log, neither_does_a_socket)
{
    int pair[2];

    cr_assert(zero(int, socketpair(AF_UNIX, SOCK_STREAM, 0, pair)));
    redirect(pair[1], pair[0]);
    log_until_full();
    logged();
    log_info("heard");
    cr_expect(ne(ptr, strstr(logged(), " tester: heard\n"), NULL));
}

Test(log, a_device_without_space_and_a_reader_that_left_do_no_harm)
{
    int full = open("/dev/full", O_WRONLY);
    int pair[2];

    cr_assert(eq(int, dup2(full, 2), 2));
    log_open("tester", LOG_INFO);
    log_until_full();
    cr_assert(zero(int, pipe(pair)));
    signal(SIGPIPE, SIG_IGN);
    redirect(pair[1], pair[0]);
    close(reader);
    log_until_full();
}
