/* One write() a line, so that lines of several processes on one terminal do
 * not mix. */
#include "base/log.h"

#include "base/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#define SD_JOURNAL_SUPPRESS_LOCATION
#include <systemd/sd-journal.h>
#include <time.h>

enum { LINE = 2048, FIELDS = 16 };

static const char *log_role = "fastchat";
static int log_level = LOG_INFO;
static bool to_journal;

static bool stderr_is_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    unsigned long long dev, ino;
    struct stat st;

    return stream && sscanf(stream, "%llu:%llu", &dev, &ino) == 2 && fstat(2, &st) == 0 &&
           st.st_dev == dev && st.st_ino == ino;
}

void log_open(const char *role, int level)
{
    log_role = role;
    log_level = level;
    to_journal = stderr_is_journal();
}

void log_set_level(int level)
{
    log_level = level;
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
    if (write(2, line, (size_t)n) < 0)
        return;                 /* nowhere left to say it */
}

/* A line break or an escape that came with somebody's name or path must not
 * fake a line or paint a terminal. */
static void clean(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7F)
            *text = ' ';
}

static void emit(int level, const char *event, const char *const *fields, const char *text)
{
    char storage[FIELDS][256];
    struct iovec iov[FIELDS + 4];
    char message[LINE + 16], priority[16], role[128], kind[96];
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
