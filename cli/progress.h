/* progress.h - how far a long piece of work is, on stderr: a bar that is drawn
 * again and again on a terminal, elsewhere a line at each tenth of it.
 */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct progress {
    bool quiet, tty;
    const char *verb, *label;
    int64_t total; /* -1: nobody knows */
    int64_t at;
    uint64_t drawn_ms, shown_ms;
    int64_t shown_at;
    double rate; /* bytes a second, smoothed; 0: not known yet */
    int tenths;
    bool drawn; /* a bar stands on the last line of the terminal */
};

void progress_init(struct progress *p, bool quiet);
/* `verb` and `label` ("fetching", "x.gguf") stay the caller's until progress_end(). */
void progress_begin(struct progress *p, const char *verb, const char *label, int64_t total, int64_t have);
void progress_total(struct progress *p, int64_t total, int64_t have);
void progress_at(struct progress *p, int64_t at);
/* Takes the bar away; `done` leaves a line that says how long it took. */
void progress_end(struct progress *p, bool done);
/* A sentence between; nothing with --quiet. */
void progress_note(struct progress *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

enum { SIZE_TEXT = 16 };
/* "98.4 MB": powers of 1000, as disks and hubs count. */
const char *size_text(int64_t bytes, char ret[SIZE_TEXT]);

#endif
