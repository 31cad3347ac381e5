/* commands.h - the subcommands, one of each row of commands.def; each returns the
 * program's exit code. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include "cli/args.h"

#define COMMAND(id, name, operands, summary, details)                                              \
    int id##_run(const struct command *cmd, int argc, char **argv);
#include "cli/commands.def"

#endif
