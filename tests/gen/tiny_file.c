#include "tests/gen/tiny_file.h"

#include "base/buf.h"
#include "tests/gen/tiny_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The last norm multiplies every logit. */
static void spoil(struct buf *file)
{
    CLEANUP(gguf_close) struct gguf *g = NULL;
    CLEANUP(mem_free) void *copy = aligned_alloc(64, (file->len + 63) / 64 * 64);
    const float nan = NAN;

    if (!copy)
        abort();
    memcpy(copy, file->data, file->len);
    if (gguf_open_memory("tiny", copy, file->len, &g, NULL) < 0)
        abort();
    memcpy(file->data + gguf_tensor(g, "output_norm.weight")->offset, &nan, sizeof nan);
}

void tiny_file_write(const char *path, const struct tiny_file *t)
{
    static const char *const merges[] = { "t h", "th e", "i n", "a n", "an d" };
    static const char *const added[] = { "<|im_start|>", "<|im_end|>", "<|extra|>" };
    static const int32_t types[] = { 3, 3, 3 };
    struct tiny_model model = tiny_model_default;
    struct gguf_build b = GGUF_BUILD_INIT;
    BUF_LOCAL file = BUF_INIT;
    FILE *f;

    model.seed = t->seed;
    model.vocab_size = 256 + 5 + 3;
    gguf_build_str(&b, "general.name", "Tiny");
    tiny_model_build(&model, &b);
    gguf_build_tokenizer(&b, NULL, merges, 5, added, types, 3);
    gguf_build_u32(&b, "tokenizer.ggml.eos_token_id", 262);
    if (t->chat_template)
        gguf_build_str(&b, "tokenizer.chat_template", t->chat_template);
    gguf_build_finish(&b, &file);
    if (file.failed)
        abort();
    if (t->not_finite)
        spoil(&file);
    f = fopen(path, "wb");
    if (!f || fwrite(file.data, 1, file.len, f) != file.len || fclose(f))
        abort();
}
