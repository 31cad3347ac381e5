/* model_info.h - `fastchat model info`: what a GGUF file is and what running it would take. */
#ifndef CLI_MODEL_INFO_H
#define CLI_MODEL_INFO_H

#include <stdbool.h>
#include <stdint.h>

struct model_info_ask {
    const char *path;
    const char *name;                   /* what the service calls it; NULL: nothing known */
    uint32_t context;                   /* 0: the model's own */
    uint32_t parallel, replicas;
    const char *isa;                    /* NULL: the best here */
    const char *kv_type;                /* NULL: f16 */
    uint64_t limit;                     /* memory of one replica; 0: no limit */
    bool json;
};

/* Prints it, or why it can not be read. An exit code: CLI_DONE also for a model that can not run; that is an answer. */
int model_info_show(const struct model_info_ask *ask);

#endif
