/* log.h - what the programs say to their owner.
 *
 * Under systemd (stderr is the journal's stream, see JOURNAL_STREAM in
 * systemd.exec(5)) a line goes to the journal with fields; otherwise it is one
 * readable line on stderr: time, role, level when it is not info, text. Fields
 * are FASTCHAT_EVENT (the kind, for queries), its MESSAGE_ID, FASTCHAT_ROLE and
 * what the caller adds. Only programs (levels 4 and 5) log; libraries hand
 * errors up. Text of users is never logged.
 *
 * Nobody waits for the log: a line that stderr does not take at once (a full
 * disk, a pipe that nobody reads) is lost, and how many were is said once one
 * is taken again.
 *
 * Levels are those of syslog(3): LOG_ERR, LOG_WARNING, LOG_NOTICE, LOG_INFO,
 * LOG_DEBUG.
 *
 * Threads  any, after log_open
 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <syslog.h>

/* Once, early in main. `role` is kept, not copied: "supervisor",
 * "worker smollm2/0". Lines above `level` are dropped. */
void log_open(const char *role, int level);
void log_set_level(int level);
/* Every line of this process is about this model (FASTCHAT_MODEL); kept, not
 * copied. */
void log_set_model(const char *model);
/* LOG_ERR … of "error", "warning", "notice", "info", "debug"; -1: none of them. */
int log_level_of(const char *name);

void log_at(int level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_at(LOG_ERR, __VA_ARGS__)
#define log_warning(...) log_at(LOG_WARNING, __VA_ARGS__)
#define log_notice(...) log_at(LOG_NOTICE, __VA_ARGS__)
#define log_info(...) log_at(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_at(LOG_DEBUG, __VA_ARGS__)

/* A line of a kind that somebody may search for: a row of events.def. `fields` is a NULL-ended list
 * of names and values in turn ("FASTCHAT_MODEL", model, NULL), or NULL. */
void log_event(int level, const char *event, const char *const *fields, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif
