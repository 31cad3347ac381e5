/* One write() a line, so that lines of several processes on one terminal do
 * not mix.
 *
 * A line that has no place is lost and counted: who logs must never wait for
 * whoever reads, be it a full pipe or a terminal that was told to pause. A
 * description's flags belong to all who share it, so the pipe or terminal is
 * opened once more to be used without waiting. */
#include "base/log.h"

#include "base/buf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#define SD_JOURNAL_SUPPRESS_LOCATION
#include <systemd/sd-journal.h>
#include <time.h>

enum { LINE = 2048, FIELDS = 16 };

static const char *log_role = "fastchat", *log_model;
static int log_level = LOG_INFO;
static bool to_journal;
static int output = 2;
static bool is_socket;
static _Atomic unsigned n_lost;

static bool stderr_is_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    unsigned long long dev, ino;
    struct stat st;

    return stream && sscanf(stream, "%llu:%llu", &dev, &ino) == 2 && fstat(2, &st) == 0 &&
           st.st_dev == dev && st.st_ino == ino;
}

static void open_output(void)
{
    struct stat st = { 0 };
    int fd = -1;

    fstat(2, &st);
    is_socket = S_ISSOCK(st.st_mode);
    if (S_ISFIFO(st.st_mode) || S_ISCHR(st.st_mode))
        fd = open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (output > 2)
        close(output);
    output = fd >= 0 ? fd : 2;
}

void log_open(const char *role, int level)
{
    open_output();
    log_role = role;
    log_level = level;
    to_journal = stderr_is_journal();
}

void log_set_level(int level)
{
    log_level = level;
}

void log_set_model(const char *model)
{
    log_model = model;
}

int log_level_of(const char *name)
{
    static const char *const names[] = { [LOG_ERR] = "error", [LOG_WARNING] = "warning", [LOG_NOTICE] = "notice",
                                         [LOG_INFO] = "info", [LOG_DEBUG] = "debug" };

    for (int i = LOG_ERR; i <= LOG_DEBUG; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return -1;
}

static bool put(const char *line, size_t len)
{
    ssize_t n;

    do
        n = is_socket ? send(2, line, len, MSG_DONTWAIT | MSG_NOSIGNAL) : write(output, line, len);
    while (n < 0 && errno == EINTR);
    return n >= 0;
}

static void put_counting(const char *line, size_t len)
{
    char text[64];
    unsigned lost;

    if (!put(line, len)) {
        atomic_fetch_add(&n_lost, 1);
        return;
    }
    lost = atomic_exchange(&n_lost, 0);
    if (lost && !put(text, (size_t)snprintf(text, sizeof text, "(before this line %u were lost)\n", lost)))
        atomic_fetch_add(&n_lost, lost);
}

static void to_stderr(int level, const char *text)
{
    static const char *const names[] = { [LOG_ERR] = "error: ", [LOG_WARNING] = "warning: ",
                                         [LOG_DEBUG] = "debug: " };
    const char *name = level <= LOG_ERR ? names[LOG_ERR] : names[level];
    struct timespec now;
    struct tm tm;
    char stamp[32], line[LINE + 128];
    int n;

    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &tm);
    strftime(stamp, sizeof stamp, "%H:%M:%S", &tm);
    n = snprintf(line, sizeof line, "%s.%03ld %s: %s%s\n", stamp, now.tv_nsec / 1000000, log_role,
                 name ? name : "", text);
    if (n > (int)sizeof line - 1) {
        n = (int)sizeof line - 1;
        line[n - 1] = '\n';
    }
    put_counting(line, (size_t)n);
}

/* A line break or an escape that came with somebody's name or path must not
 * fake a line or paint a terminal. */
static void clean(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7F)
            *text = ' ';
}

/* By which the journal finds the catalog's text; NULL: a kind that has none. */
static const char *message_id(const char *event)
{
    static const struct { const char *name, *id; } events[] = {
#define EVENT(name, id) { name, id },
#include "base/events.def"
#undef EVENT
    };

    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++)
        if (strcmp(events[i].name, event) == 0)
            return events[i].id;
    return NULL;
}

static void emit(int level, const char *event, const char *const *fields, const char *text)
{
    char storage[FIELDS][256];
    struct iovec iov[FIELDS + 6];
    char message[LINE + 16], priority[16], role[128], kind[96], number[64], model[160];
    const char *id = event ? message_id(event) : NULL;
    int n = 0;

    if (!to_journal) {
        to_stderr(level, text);
        return;
    }
#define FIELD(to, ...)                                                                             \
    do {                                                                                           \
        int len_ = snprintf(to, sizeof to, __VA_ARGS__);                                           \
        iov[n].iov_base = to;                                                                      \
        iov[n++].iov_len = len_ < (int)sizeof to ? (size_t)len_ : sizeof to - 1;                   \
    } while (0)
    FIELD(message, "MESSAGE=%s", text);
    FIELD(priority, "PRIORITY=%d", level);
    FIELD(role, "FASTCHAT_ROLE=%s", log_role);
    if (event)
        FIELD(kind, "FASTCHAT_EVENT=%s", event);
    if (id)
        FIELD(number, "MESSAGE_ID=%s", id);
    if (log_model)
        FIELD(model, "FASTCHAT_MODEL=%s", log_model);
    for (int i = 0; fields && fields[i] && i / 2 < FIELDS; i += 2)
        FIELD(storage[i / 2], "%s=%s", fields[i], fields[i + 1] ? fields[i + 1] : "");
#undef FIELD
    if (sd_journal_sendv(iov, n) < 0)
        to_stderr(level, text);
}

void log_at(int level, const char *fmt, ...)
{
    char text[LINE];
    va_list ap;

    if (level > log_level)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    clean(text);
    emit(level, NULL, NULL, text);
}

void log_event(int level, const char *event, const char *const *fields, const char *fmt, ...)
{
    char text[LINE];
    va_list ap;

    if (level > log_level)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    clean(text);
    emit(level, event, fields, text);
}
