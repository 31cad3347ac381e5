/* words.h - a shell's command line as words.
 *
 * As POSIX sh splits it: quotes, backslashes, a backslash at the end of a line, comments. A
 * line, ';', '&', '|' and '&&' end a command; redirections are dropped. Nothing
 * is expanded or run: a '$' or '`' stays as it is written and is noted.
 *
 * Source   POSIX.1-2017, XCU 2.2 and 2.3
 */
#ifndef CLI_WORDS_H
#define CLI_WORDS_H

#include <stdbool.h>
#include <stddef.h>

struct err;

enum { WORDS_MAX = 4096 };
enum { WORDS_END = 1 };

struct words {
    char **word;
    size_t n;
    bool expands;               /* the shell would put something else in somewhere */
};

/* The next command that has a word; *at goes behind it. 0 and words for
 * words_fini(); WORDS_END; -EINVAL (a quote that does not end), -E2BIG, -ENOMEM
 * with a sentence. */
int words_next(const char **at, struct words *ret, struct err *err);
void words_fini(struct words *w);

#endif
