/* tiny_model.h - a random Llama-shaped model file in memory, for tests. */
#ifndef TESTS_GEN_TINY_MODEL_H
#define TESTS_GEN_TINY_MODEL_H

#include "base/buf.h"
#include "loaders/gguf.h"
#include "tests/loaders/gguf_build.h"

#include <stdbool.h>
#include <stdint.h>

struct tiny_model {
    uint32_t n_layers, n_heads, n_kv_heads, head_dim, dim, ffn_dim, vocab_size;
    uint32_t types[4];          /* enum ggml_type of matrices, taken in turn; n_types of them */
    uint32_t n_types;
    bool tied, biases, rope_freqs;
    uint32_t rope_dim;          /* 0: head_dim */
    uint64_t seed;
};

/* Two layers, 4 heads on 2, a vocabulary that is no multiple of 16. */
extern const struct tiny_model tiny_model_default;

/* Keys and tensors of a sound file; the caller may add to them and finishes it. */
void tiny_model_build(const struct tiny_model *t, struct gguf_build *b);

/* Logits of the last token, in double precision and in the plainest way, over
 * the file's own weights: [vocab_size]. */
void tiny_model_logits(const struct tiny_model *t, const struct gguf *file, const int32_t *tokens,
                       uint32_t n, double *logits);

#endif
