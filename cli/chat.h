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

/* Until the end of the input, Ctrl-C at the prompt, or term_ended(); the
 * program's exit code. */
int chat_with(const struct target *api, const char *model, const struct chat_args *args);

#endif
