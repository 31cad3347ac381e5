/* commands.h - the subcommands; each returns the program's exit code. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include "cli/args.h"

int chat_run(const struct command *cmd, int argc, char **argv);
int control_run(const struct command *cmd, int argc, char **argv);
int models_run(const struct command *cmd, int argc, char **argv);
int run_run(const struct command *cmd, int argc, char **argv);
int status_run(const struct command *cmd, int argc, char **argv);
int test_message_run(const struct command *cmd, int argc, char **argv);

#endif
