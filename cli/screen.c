#include "cli/screen.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#define ENTER "\033[?1049h\033[?25l\033[?7l"       /* another screen, no cursor, no wrapping */
#define LEAVE "\033[?7h\033[?25h\033[?1049l"

struct screen {
    struct termios before;      /* where there are keys */
    bool keys, broken;          /* broken: nobody reads what is drawn */
    int signals;
    sigset_t mask;              /* before */
    int columns, rows;
    int ended_by;               /* a signal; 0: none, or Ctrl-C */
    char *text;                 /* what is shown */
    size_t top;                 /* its first line on the screen */
};

/* ---- the terminal ---- */

static void put(struct screen *s, const char *text, size_t len)
{
    while (len > 0) {
        ssize_t n = write(STDOUT_FILENO, text, len);

        if (n < 0 && errno == EAGAIN) {
            poll(&(struct pollfd){ .fd = STDOUT_FILENO, .events = POLLOUT }, 1, -1);
        } else if (n < 0 && errno != EINTR) {
            s->broken = true;
            return;
        } else if (n > 0) {
            text += n;
            len -= (size_t)n;
        }
    }
}

static void measure(struct screen *s)
{
    struct winsize size = { 0 };

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) < 0)
        s->broken = true;
    s->columns = size.ws_col ? size.ws_col : 80;
    s->rows = size.ws_row ? size.ws_row : 24;
}

static void take(struct screen *s)
{
    struct termios raw = s->before;

    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    if (s->keys)
        tcsetattr(STDIN_FILENO, TCSAFLUSH, &raw);
    put(s, ENTER, strlen(ENTER));
    measure(s);
}

static void give_back(struct screen *s)
{
    put(s, LEAVE, strlen(LEAVE));
    if (s->keys)
        tcsetattr(STDIN_FILENO, TCSAFLUSH, &s->before);
}

static int catch_signals(struct screen *s, struct err *err)
{
    static const int numbers[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGTSTP, SIGCONT };
    sigset_t set;

    sigemptyset(&set);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        sigaddset(&set, numbers[i]);
    s->signals = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (s->signals < 0 || sigprocmask(SIG_BLOCK, &set, &s->mask) < 0)
        return err_errno(err, -errno, "signals");
    return 0;
}

int screen_open(struct screen **ret, struct err *err)
{
    struct screen *s = calloc(1, sizeof *s);
    int r;

    if (!s)
        return err_set(err, -ENOMEM, "no memory");
    fflush(stdout);
    s->keys = tcgetattr(STDIN_FILENO, &s->before) == 0;
    s->signals = -1;
    r = isatty(STDOUT_FILENO) ? catch_signals(s, err) : err_set(err, -ENOTTY, "standard output is no terminal");
    if (r < 0) {
        fd_close(s->signals);
        free(s);
        return r;
    }
    take(s);
    *ret = s;
    return 0;
}

void screen_close(struct screen *s)
{
    int signo;

    if (!s)
        return;
    give_back(s);
    close(s->signals);
    signo = s->ended_by;
    if (signo)
        raise(signo);       /* blocked until the mask is as before */
    sigprocmask(SIG_SETMASK, &s->mask, NULL);
    free(s->text);
    free(s);
}

int screen_width(const struct screen *s)
{
    return s->columns;
}

/* ---- drawing ---- */

/* The length of the escape sequence ESC [ … LETTER at `text`; 0: none. */
static size_t escape_length(const char *text, size_t len)
{
    size_t n = 2;

    if (len < 3 || text[0] != '\033' || text[1] != '[')
        return 0;
    while (n < len && (text[n] < '@' || text[n] > '~'))
        n++;
    return n < len ? n + 1 : 0;
}

void screen_clip(const char *text, size_t len, int columns, struct buf *out)
{
    for (size_t i = 0; i < len;) {
        size_t n = escape_length(text + i, len - i);

        if (n == 0) {
            n = 1;
            while (i + n < len && ((unsigned char)text[i + n] & 0xC0) == 0x80)
                n++;            /* the rest of a UTF-8 character */
            if (columns-- <= 0) {
                i += n;
                continue;       /* a colour may still end behind */
            }
        }
        if (text[i] == '\t')
            buf_addc(out, ' ');
        else
            buf_add(out, text + i, n);
        i += n;
    }
}

static size_t count_lines(const char *text)
{
    size_t n = 0;

    for (; *text; text++)
        n += *text == '\n';
    return n;
}

static const char *line_at(const char *text, size_t n)
{
    while (n-- > 0)
        text = strchr(text, '\n') + 1;
    return text;
}

static void show(struct screen *s)
{
    size_t n = count_lines(s->text), rows = (size_t)s->rows;
    size_t room = n > rows ? rows - 1 : rows;
    const char *line;
    BUF_LOCAL out = BUF_INIT;

    if (s->top + room > n)
        s->top = n > room ? n - room : 0;
    line = line_at(s->text, s->top);
    buf_adds(&out, "\033[H");
    for (size_t i = 0; i < room && *line; i++) {
        size_t len = strcspn(line, "\n");

        screen_clip(line, len, s->columns, &out);
        buf_adds(&out, i + 1 < rows ? "\033[K\r\n" : "\033[K");
        line += len + (line[len] == '\n');
    }
    if (n > rows)
        buf_printf(&out, "\033[7mlines %zu to %zu of %zu\033[0m\033[K", s->top + 1, s->top + room, n);
    else if (n < rows)
        buf_adds(&out, "\033[J");
    put(s, buf_str(&out), out.len);
}

void screen_draw(struct screen *s, const char *text)
{
    size_t len = strlen(text);
    char *copy = malloc(len + 2);

    if (!copy)
        return;
    memcpy(copy, text, len + 1);
    if (len > 0 && text[len - 1] != '\n')
        strcpy(copy + len, "\n");
    free(s->text);
    s->text = copy;
    show(s);
}

/* ---- keys and signals ---- */

static void scroll(struct screen *s, int by)
{
    if (by < 0 && s->top < (size_t)-by)
        s->top = 0;
    else
        s->top += (size_t)by;
    if (s->text)
        show(s);
}

/* False: it ends. A sequence that a slow line cuts in two does nothing. */
static bool take_keys(struct screen *s)
{
    static const struct { const char *key; int lines, pages; } keys[] = {
        { "j", 1, 0 }, { "k", -1, 0 }, { " ", 0, 1 }, { "b", 0, -1 }, { "\033[A", -1, 0 }, { "\033[B", 1, 0 },
        { "\033OA", -1, 0 }, { "\033OB", 1, 0 }, { "\033[5~", 0, -1 }, { "\033[6~", 0, 1 },
    };
    char read_[64];
    ssize_t n = read(STDIN_FILENO, read_, sizeof read_ - 1);

    if (n <= 0)
        return n < 0 && (errno == EINTR || errno == EAGAIN);
    read_[n] = '\0';
    if (memchr(read_, 'q', (size_t)n) || memchr(read_, 'Q', (size_t)n))
        return false;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (strcmp(read_, keys[i].key) == 0)
            scroll(s, keys[i].lines + keys[i].pages * (s->rows > 2 ? s->rows - 2 : 1));
    return true;
}

static void stop(struct screen *s)
{
    give_back(s);
    raise(SIGSTOP);
    take(s);
}

/* SCREEN_TIME: nothing happened. */
static enum screen_event take_signals(struct screen *s)
{
    enum screen_event event = SCREEN_TIME;
    struct signalfd_siginfo info;

    while (read(s->signals, &info, sizeof info) == sizeof info) {
        switch (info.ssi_signo) {
        case SIGTSTP:
            stop(s);
            event = SCREEN_RESIZED;
            break;
        case SIGWINCH:
        case SIGCONT:
            measure(s);
            event = SCREEN_RESIZED;
            break;
        case SIGINT:
            return SCREEN_END;
        default:
            s->ended_by = (int)info.ssi_signo;
            return SCREEN_END;
        }
    }
    return event;
}

enum screen_event screen_wait(struct screen *s, uint64_t until_ms)
{
    for (;;) {
        struct pollfd fds[] = { { .fd = s->signals, .events = POLLIN },
                                { .fd = s->keys ? STDIN_FILENO : -1, .events = POLLIN } };
        uint64_t now = clock_mono_ms();
        enum screen_event event;

        if (s->broken)
            return SCREEN_END;
        if (now >= until_ms)
            return SCREEN_TIME;
        if (poll(fds, 2, until_ms - now > 60000 ? 60000 : (int)(until_ms - now)) < 0 && errno != EINTR)
            return SCREEN_END;
        event = fds[0].revents ? take_signals(s) : SCREEN_TIME;
        if (event != SCREEN_TIME)
            return event;
        if (fds[1].revents && !take_keys(s))
            return SCREEN_END;
    }
}
