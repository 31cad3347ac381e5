/* tiny_hub.h - a tiny checkpoint as the hub has it, written as a GGUF file.
 *
 * For checkpoints of Llama's form without a twin of their own. Rows of queries and keys
 * stay in the hub's order, which is Qwen2's: so that is what the file says it is, with
 * biases of zeros.
 */
#ifndef TESTS_GEN_TINY_HUB_H
#define TESTS_GEN_TINY_HUB_H

#include "tests/loaders/gguf_build.h"

struct err;

/* folder holds config.json and model.safetensors, or three shards of it. 0, or -errno and a sentence. */
int tiny_hub_build(const char *folder, struct gguf_build *b, struct err *err);

#endif
