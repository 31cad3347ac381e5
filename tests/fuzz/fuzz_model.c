/* A model file all the way to the weights and, where that works, one pass over two tokens. */
#include "base/err.h"
#include "gen/kv.h"
#include "gen/model.h"
#include "loaders/gguf.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_LOGITS = 1 << 20, MAX_KV_BYTES = 1 << 26 };

static void pass(struct model *m)
{
    const struct model_shape *s = model_shape(m);
    const struct kv_shape shape = { s->n_layers, s->n_kv_heads, s->head_dim, 1 };
    CLEANUP(mem_free) float *logits = NULL;
    CLEANUP(kv_close) struct kv *kv = NULL;
    uint32_t page;

    if (s->vocab_size > MAX_LOGITS ||
        (uint64_t)s->n_layers * s->n_kv_heads * s->head_dim * KV_PAGE * 4 > MAX_KV_BYTES || kv_open(&shape, &kv, NULL) < 0)
        return;
    logits = malloc(s->vocab_size * sizeof *logits);
    if (!logits || kv_take(kv, &page) != 0)
        abort();
    model_forward(m, kv, (const struct model_row[]){
        { .token = 0, .pos = 0, .pages = &page },
        { .token = (int32_t)s->vocab_size - 1, .pos = 1, .pages = &page, .logits = logits },
    }, 2);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct model_options options = { .threads = 1, .isa = "scalar" };
    CLEANUP(gguf_close) struct gguf *g = NULL;
    CLEANUP(model_close) struct model *m = NULL;
    struct err err = { 0 };

    if (gguf_open_memory("fuzz.gguf", data, size, &g, NULL) < 0)
        return 0;
    if (model_open(g, &options, &m, &err) == 0)
        pass(m);
    else if (m || !err_is_set(&err))
        abort();
    return 0;
}
