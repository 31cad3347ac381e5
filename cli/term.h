/* term.h - standard output and input as a person sees them. */
#ifndef CLI_TERM_H
#define CLI_TERM_H

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Reads the environment and the kind of stdout, once. */
void term_open(void);
bool term_input_is_tty(void);

/* Escape sequences, or "" without colour (no terminal, NO_COLOR, TERM=dumb). */
const char *term_bold(void);
const char *term_red(void);
const char *term_yellow(void);
const char *term_green(void);
const char *term_plain(void);
/* Columns of the terminal that stdout is; 0: it is none, or does not say. */
int term_width(void);

/* Text that a model or another program wrote. On a terminal its control
 * characters other than newline and tab are shown as U+FFFD, so that an answer
 * cannot drive the terminal. Flushed. */
void term_write(const char *text, size_t len);

/* The same text, cleaned for stdout, into a buffer. */
void term_put(struct buf *out, const char *text);

/* "fastchat: " and a sentence on stderr, cleaned the same way. */
void term_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* What another program says is wrong: one line as term_error shows it, several
 * (each with its own place in front) as they are. */
void term_complain(const char *text);

/* Lines from stdin. SIGINT is blocked and comes through a descriptor instead,
 * which also interrupts requests in work (fetch.h). */
enum { LINE_EOF = 1, LINE_INTERRUPTED = 2 };

int term_interrupts(void); /* the descriptor; -1: none could be made */
/* Empties it; true when Ctrl-C was pressed, or the end came, since the last time. */
bool term_was_interrupted(void);

/* For a program that has to clean up: from here on SIGTERM, SIGHUP (unless it was
 * ignored) and the end of the child that term_end_with() names come through the
 * descriptor too. After the first of them term_ended() is true, and no line is
 * read any more. */
void term_catch_end(void);
void term_end_with(pid_t child); /* 0: of none */
bool term_ended(void);

/* The next line without its newline. 0, LINE_EOF, LINE_INTERRUPTED (ended too), -E2BIG for a
 * line over 8 MB, -errno. After LINE_EOF a terminal may be read again. */
int term_read_line(struct buf *ret);

#endif
