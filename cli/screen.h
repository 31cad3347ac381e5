/* screen.h - the whole terminal, drawn again in place, as top(1) has it.
 *
 * The alternate screen, so that what was there before comes back at the end;
 * keys without Enter. Lines are cut at the right edge; what is longer than the
 * screen scrolls (arrows, j, k, Page Up and Down, Space, b). A stop with Ctrl-Z gives
 * the terminal back and takes it again. One screen at a time.
 */
#ifndef CLI_SCREEN_H
#define CLI_SCREEN_H

#include "base/cleanup.h"

#include <stdint.h>

struct err;
struct screen;

/* 0 or -errno with a sentence; standard output must be a terminal. Without one
 * as standard input there are no keys. */
int  screen_open(struct screen **ret, struct err *err);
/* Gives the terminal back. If a signal asked this program to end, that signal
 * does so now. NULL is fine. */
void screen_close(struct screen *s);
DEFINE_CLEANUP(struct screen *, screen_close)

int  screen_width(const struct screen *s);

/* Lines, cleaned by the caller (term.h); colours may be in them. */
void screen_draw(struct screen *s, const char *text);

/* Waits, at most until the monotonic clock shows until_ms. */
enum screen_event {
    SCREEN_TIME,        /* it does */
    SCREEN_RESIZED,     /* the terminal has another size, or is ours again: draw */
    SCREEN_END,         /* q, Ctrl-C, a signal, or the terminal is gone */
};
enum screen_event screen_wait(struct screen *s, uint64_t until_ms);

/* For whoever has no terminal to draw on: one line of at most `columns`
 * characters from text[0..len), escape sequences not counted. */
struct buf;
void screen_clip(const char *text, size_t len, int columns, struct buf *out);

#endif
