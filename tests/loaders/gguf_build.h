/* gguf_build.h - writes GGUF files in memory, sound ones and others, for tests.
 *
 *     struct gguf_build b = GGUF_BUILD_INIT;
 *     gguf_build_str(&b, "general.architecture", "llama");
 *     gguf_build_tensor(&b, "token_embd.weight", GGML_F32, 2, (uint64_t[]){ 8, 4 }, data, bytes);
 *     BUF_LOCAL file = BUF_INIT;
 *     gguf_build_finish(&b, &file);           and b is empty again
 *
 * Nothing is checked; memory that runs out aborts.
 */
#ifndef TESTS_LOADERS_GGUF_BUILD_H
#define TESTS_LOADERS_GGUF_BUILD_H

#include "base/buf.h"
#include "loaders/gguf.h"

struct gguf_build {
    struct buf keys, table, data;
    uint64_t n_keys, n_tensors;     /* what the header says; may be set before finish */
    uint32_t version, alignment;    /* 0: 3 and 32 */
};
#define GGUF_BUILD_INIT { 0 }

void gguf_build_u8(struct gguf_build *b, const char *key, uint8_t v);
void gguf_build_u32(struct gguf_build *b, const char *key, uint32_t v);
void gguf_build_i32(struct gguf_build *b, const char *key, int32_t v);
void gguf_build_u64(struct gguf_build *b, const char *key, uint64_t v);
void gguf_build_f32(struct gguf_build *b, const char *key, float v);
void gguf_build_bool(struct gguf_build *b, const char *key, bool v);
void gguf_build_str(struct gguf_build *b, const char *key, const char *v);
void gguf_build_strs(struct gguf_build *b, const char *key, const char *const *v, size_t n);
void gguf_build_i32s(struct gguf_build *b, const char *key, const int32_t *v, size_t n);
void gguf_build_f32s(struct gguf_build *b, const char *key, const float *v, size_t n);
/* Any bytes as key, type number and value. */
void gguf_build_raw(struct gguf_build *b, const void *key, size_t key_len, uint32_t type,
                    const void *value, size_t len);
/* data NULL: zeros. Placed behind the one before, aligned. */
void gguf_build_tensor(struct gguf_build *b, const char *name, uint32_t type, uint32_t n_dims,
                       const uint64_t *dims, const void *data, size_t bytes);
/* Only a line of the table, with any offset. */
void gguf_build_line(struct gguf_build *b, const char *name, uint32_t type, uint32_t n_dims,
                     const uint64_t *dims, uint64_t offset);
void gguf_build_finish(struct gguf_build *b, struct buf *out);

/* A small byte-level BPE vocabulary under the keys of tokenizer.ggml: the 256 bytes as ids 0 to
 * 255, then `n_merges` tokens made by `merges`, then `added` with their types. pre NULL: "smollm". */
void gguf_build_tokenizer(struct gguf_build *b, const char *pre, const char *const *merges,
                          size_t n_merges, const char *const *added, const int32_t *added_types,
                          size_t n_added);

#endif
