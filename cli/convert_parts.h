/* convert_parts.h - what the files of convert.h share: one command as it was said. */
#ifndef CLI_CONVERT_PARTS_H
#define CLI_CONVERT_PARTS_H

#include "base/buf.h"
#include "cli/setting_rows.h"

#include <stdbool.h>
#include <stddef.h>

struct arena;
struct err;

enum convert_program {
    FC_WORKER = 1, FC_MULTI = 2, FC_VLLM = 4, FC_CONTROLLER = 8, FC_API = 16, FC_LAUNCH = 32, VLLM = 64, LLAMA = 128,
};

/* What flags.def calls a target of ROLE. */
#define CONVERT_ROLES(X)                                                                           \
    X(controller) X(controller_host) X(controller_port) X(ctx) X(dispatch) X(folder) X(host)       \
    X(launch) X(model) X(names) X(np) X(ping) X(port) X(processes) X(repository) X(served) X(uds)  \
    X(unified) X(worker)

enum convert_role {
#define CONVERT_ROLE(name) SAID_##name,
    CONVERT_ROLES(CONVERT_ROLE)
#undef CONVERT_ROLE
    N_SAID,
};

enum { SAID_MAX = 64 };

/* Everything in it lives as long as the words, or the arena. */
struct said {
    enum convert_program program;
    const char *title;          /* "vllm serve" */
    struct {
        const char *value[SAID_MAX];
        size_t n;
    } roles[N_SAID];
    const char *values[CONFIG_N_KEYS];      /* of the model, as they were written; NULL: not */
    const char *flags[CONFIG_N_KEYS];       /* by which flag */
    struct arena *arena;
    struct buf notes;           /* "#   --flag value: why", a line each */
    size_t n_lost;
    struct buf *warnings;
};

/* The last value; `otherwise` where it was not said. */
const char *said_last(const struct said *s, enum convert_role role, const char *otherwise);
/* A note about something that is not taken over. value NULL: none to show. */
void said_note(struct said *s, const char *flag, const char *value, const char *why);

/* Which program the words start, and what they say to it. 0; 1 (CONVERT_FOREIGN)
 * with a sentence; -ENOMEM. */
int convert_parse(struct said *s, const char *const *words, size_t n, struct err *err);

#endif
