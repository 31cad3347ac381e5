/* args.h - options of a subcommand: the rows of commands.def feed the parser and
 * --help.
 *
 *     --name VALUE   --name=VALUE   --na VALUE (an unambiguous beginning)   --
 *     -n VALUE   -nVALUE   -f (each by itself)
 */
#ifndef CLI_ARGS_H
#define CLI_ARGS_H

#include <stdbool.h>
#include <stddef.h>

enum arg_kind { ARG_FLAG, ARG_TEXT, ARG_NUMBER, ARG_COUNT };

/* Exit codes of the program. */
enum { CLI_DONE = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

struct arg_number {
    bool given;
    double value;
};

/* OPT_runtime_dir, … */
enum arg_option {
#define OPTION(id, name, letter, kind, value, min, max, help) OPT_##id,
#include "cli/commands.def"
    N_OPTIONS,
};

struct arg_row {
    const char *name; /* without dashes */
    char letter;      /* of a short form; 0: none */
    enum arg_kind kind;
    const char *value; /* what help calls it; NULL for flags */
    double min, max;   /* of a number */
    const char *help;
};

extern const struct arg_row arg_rows[N_OPTIONS];

struct arg {
    const struct arg_row *row;
    void *to; /* bool, const char *, struct arg_number */
};

#define ARG(id, where)                                                                             \
    {                                                                                              \
        &arg_rows[OPT_##id], (where)                                                               \
    }

struct command {
    const char *name;
    const char *operands; /* "[MODEL]" or "" */
    const char *summary;  /* one line */
    const char *details;  /* further lines of help, or NULL */
    int (*run)(const struct command *self, int argc, char **argv);
};

enum { ARGS_RUN = -1 };

/* Fills what the table points to, and up to max_operands into `operands`.
 * ARGS_RUN: go on; otherwise the exit code (help was asked for, or a mistake was
 * shown). argv[0] is the command's name. */
int args_parse(const struct command *cmd, const struct arg *args, size_t n_args, int argc,
               char **argv, const char **operands, size_t max_operands);

/* A mistake in the command line; gives CLI_USAGE. */
int args_mistake(const struct command *cmd, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#endif
