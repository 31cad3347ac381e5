/* chat.h - a conversation with a model that somebody serves. */
#ifndef CLI_CHAT_H
#define CLI_CHAT_H

#include "cli/args.h"

struct target;

struct chat_args {
    const char *system;  /* NULL: none */
    const char *message; /* say this alone; NULL: converse */
    struct arg_number temperature, top_p, max_tokens; /* of each request */
    bool multiline, no_history;
};

/* Options of every subcommand that leads to a conversation. */
#define CHAT_ARG_MESSAGE(c)                                                                        \
    {                                                                                              \
        "message", ARG_TEXT, &(c).message, "TEXT", "say this, print the answer, end"               \
    }
#define CHAT_ARG_MULTILINE(c)                                                                      \
    {                                                                                              \
        "multiline", ARG_FLAG, &(c).multiline, NULL, "a message ends with Ctrl-D on an empty line" \
    }
#define CHAT_ARG_NO_HISTORY(c)                                                                     \
    {                                                                                              \
        "no-history", ARG_FLAG, &(c).no_history, NULL, "each message begins a new conversation"    \
    }
#define CHAT_ARG_SYSTEM(c)                                                                         \
    {                                                                                              \
        "system", ARG_TEXT, &(c).system, "TEXT", "the system message"                              \
    }

/* Until the end of the input, Ctrl-C at the prompt, or term_ended(); the
 * program's exit code. */
int chat_with(const struct target *api, const char *model, const struct chat_args *args);

#endif
