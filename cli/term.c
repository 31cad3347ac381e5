#include "cli/term.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 8 << 20 };

static bool colour, out_tty, end_came;
static int interrupt_fd = -1;
static pid_t end_child;
static struct buf pending; /* read from stdin, not yet handed out */

static bool is_set(const char *name)
{
    const char *v = getenv(name);

    return v && v[0];
}

void term_open(void)
{
    const char *term = getenv("TERM");

    out_tty = isatty(STDOUT_FILENO);
    colour = out_tty && !is_set("NO_COLOR") && !(term && strcmp(term, "dumb") == 0);
}

bool term_input_is_tty(void)
{
    return isatty(STDIN_FILENO);
}
const char *term_bold(void)
{
    return colour ? "\033[1m" : "";
}
const char *term_red(void)
{
    return colour ? "\033[31m" : "";
}
const char *term_yellow(void)
{
    return colour ? "\033[33m" : "";
}
const char *term_green(void)
{
    return colour ? "\033[32m" : "";
}
const char *term_plain(void)
{
    return colour ? "\033[0m" : "";
}

int term_width(void)
{
    struct winsize size = { 0 };

    return out_tty && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

static bool is_control(const unsigned char *s, size_t left)
{
    if (s[0] < 0x20)
        return s[0] != '\n' && s[0] != '\t';
    return s[0] == 0x7f || (s[0] == 0xc2 && left > 1 && s[1] >= 0x80 && s[1] < 0xa0);
}

static void term_clean(const char *text, size_t len, bool tty, struct buf *out)
{
    const unsigned char *s = (const unsigned char *)text;

    for (size_t i = 0; i < len; i++) {
        if (!tty || !is_control(s + i, len - i)) {
            buf_addc(out, text[i]);
            continue;
        }
        buf_adds(out, "\xef\xbf\xbd");
        i += s[i] == 0xc2; /* a C1 control is two bytes */
    }
}

void term_write(const char *text, size_t len)
{
    BUF_LOCAL clean = BUF_INIT;

    term_clean(text, len, out_tty, &clean);
    fwrite(buf_str(&clean), 1, clean.len, stdout);
    fflush(stdout);
}

void term_put(struct buf *out, const char *text)
{
    term_clean(text, strlen(text), out_tty, out);
}

void term_error(const char *fmt, ...)
{
    BUF_LOCAL text = BUF_INIT;
    BUF_LOCAL clean = BUF_INIT;
    va_list ap;

    fflush(stdout);
    va_start(ap, fmt);
    buf_vprintf(&text, fmt, ap);
    va_end(ap);
    term_clean(buf_str(&text), text.len, isatty(STDERR_FILENO), &clean);
    fprintf(stderr, "fastchat: %s\n", buf_str(&clean));
}

void term_complain(const char *text)
{
    BUF_LOCAL clean = BUF_INIT;
    size_t len = strlen(text);

    while (len > 0 && text[len - 1] == '\n')
        len--;
    if (!memchr(text, '\n', len)) {
        term_error("%.*s", (int)len, text);
        return;
    }
    fflush(stdout);
    term_clean(text, len, isatty(STDERR_FILENO), &clean);
    fprintf(stderr, "%s\n", buf_str(&clean));
}

/* The same descriptor again where it is there: it watches more signals then. */
static void watch_signals(const int *numbers, size_t n)
{
    sigset_t set;

    sigemptyset(&set);
    for (size_t i = 0; i < n; i++)
        sigaddset(&set, numbers[i]);
    if (sigprocmask(SIG_BLOCK, &set, NULL) == 0)
        interrupt_fd = signalfd(interrupt_fd, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

int term_interrupts(void)
{
    if (interrupt_fd < 0)
        watch_signals((const int[]){ SIGINT }, 1);
    return interrupt_fd;
}

void term_catch_end(void)
{
    struct sigaction hangup;
    bool ignored = sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler == SIG_IGN;

    /* as nohup(1) wants it, SIGHUP stays ignored */
    watch_signals((const int[]){ SIGINT, SIGTERM, SIGCHLD, SIGHUP }, ignored ? 3 : 4);
}

void term_end_with(pid_t child)
{
    end_child = child;
}

/* One signal may stand for the ends of several children, so the child is asked
 * for; it is left to whoever waits for it. */
static bool child_has_ended(void)
{
    siginfo_t info = { 0 };

    return end_child && waitid(P_PID, (id_t)end_child, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid;
}

bool term_was_interrupted(void)
{
    struct signalfd_siginfo info;
    bool any = false;

    while (interrupt_fd >= 0 && read(interrupt_fd, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGCHLD && !child_has_ended())
            continue;
        any = true;
        end_came |= info.ssi_signo != SIGINT;
    }
    return any;
}

bool term_ended(void)
{
    return end_came;
}

/* A line that is whole in `pending`, or all of it when the input has ended. */
static bool take_line(struct buf *ret, bool ended)
{
    const char *newline = pending.len ? memchr(pending.data, '\n', pending.len) : NULL;
    size_t len = newline ? (size_t)(newline - pending.data) : pending.len;

    if (!newline && (!ended || pending.len == 0))
        return false;
    buf_clear(ret);
    buf_add(ret, pending.data, len);
    buf_drop(&pending, newline ? len + 1 : len);
    if (ret->len && ret->data[ret->len - 1] == '\r')
        ret->data[--ret->len] = '\0';
    return true;
}

static int wait_for_input(void)
{
    struct pollfd fds[] = { { .fd = STDIN_FILENO, .events = POLLIN },
                            { .fd = term_interrupts(), .events = POLLIN } };

    while (poll(fds, 2, -1) < 0)
        if (errno != EINTR)
            return -errno;
    return fds[1].revents && term_was_interrupted() ? LINE_INTERRUPTED : 0;
}

int term_read_line(struct buf *ret)
{
    if (end_came)
        return LINE_INTERRUPTED;
    while (!take_line(ret, false)) {
        char *room = buf_room(&pending, 65536);
        ssize_t n;
        int r;

        if (!room)
            return -ENOMEM;
        if (pending.len > LINE_MAX_BYTES)
            return -E2BIG;
        if ((r = wait_for_input()) != 0)
            return r;
        n = read(STDIN_FILENO, room, 65536);
        if (n < 0 && errno != EINTR && errno != EAGAIN)
            return -errno;
        if (n > 0)
            buf_grew(&pending, (size_t)n);
        if (n == 0)
            return take_line(ret, true) ? 0 : LINE_EOF;
    }
    return ret->failed ? -ENOMEM : 0;
}
