/* program.h - another program, run to its end. */
#ifndef CLI_PROGRAM_H
#define CLI_PROGRAM_H

struct buf;
struct err;

/* argv[0] is looked for in $PATH; NULL ends the list. Standard output and error are ours;
 * with `out`, standard output goes there, and standard error too, or nowhere. What is over
 * 4 MB ends it. Its exit code; -ENOENT when it cannot be run, another -errno,
 * each with a sentence. */
enum program_errors { PROGRAM_ERRORS_TOO, PROGRAM_ERRORS_NOWHERE };
int program_run(const char *const *argv, struct buf *out, enum program_errors errors, struct err *err);

#endif
