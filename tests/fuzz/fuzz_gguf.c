/* Opens the input as a model file and, where that works, reads all of it in every way. */
#include "base/err.h"
#include "loaders/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink;

static void read_array(const struct gguf *g, const char *key)
{
    struct gguf_array a;
    struct gguf_str s;

    if (gguf_array(g, key, &a, NULL) != 0)
        return;
    if (gguf_is_integer(a.type) || gguf_is_float(a.type))
        for (uint64_t i = 0; i < a.n; i++)
            sink += (gguf_is_integer(a.type) ? (uint64_t)gguf_array_i64(&a, i) : 0) + (gguf_array_f64(&a, i) > 0);
    while (gguf_next_str(&a, &s))
        for (size_t i = 0; i < s.len; i++)
            sink += (uint8_t)s.text[i];
}

static void read_key(const struct gguf *g, const char *key)
{
    struct gguf_str s;
    uint64_t u = 0;
    uint32_t v = 0;
    float f = 0;
    bool b = false;
    char text[32];

    gguf_u32(g, key, &v, NULL);
    gguf_u64(g, key, &u, NULL);
    gguf_f32(g, key, &f, NULL);
    gguf_bool(g, key, &b, NULL);
    gguf_text(g, key, text, sizeof text, NULL);
    if (gguf_str(g, key, &s, NULL) == 0)
        for (size_t i = 0; i < s.len; i++)
            sink += (uint8_t)s.text[i];
    read_array(g, key);
    sink += u + v + b;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gguf *g;
    struct err err = { 0 };
    enum gguf_type type;
    const char *key;

    if (gguf_open_memory("fuzz.gguf", data, size, &g, &err) < 0) {
        if (!err_is_set(&err))
            __builtin_trap();
        return 0;
    }
    for (size_t i = 0; (key = gguf_key(g, i, &type)); i++)
        read_key(g, key);
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        const uint8_t *bytes = t->data;

        if (gguf_tensor(g, t->name) != t)
            __builtin_trap();
        sink += bytes[0] + bytes[t->bytes - 1];
    }
    gguf_close(g);
    return 0;
}
