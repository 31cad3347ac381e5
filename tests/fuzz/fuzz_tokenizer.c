/* The input is a model file; its tokenizer, where there is one, encodes the input itself. */
#include "base/buf.h"
#include "base/err.h"
#include "loaders/detok.h"
#include "loaders/gguf.h"
#include "loaders/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void encode(const struct tokenizer *t, const char *text, size_t len, bool special)
{
    TOKEN_LIST_LOCAL ids = { 0 };
    BUF_LOCAL out = BUF_INIT;
    struct detok d;

    if (tokenizer_encode(t, text, len, special, &ids, NULL) < 0)
        return;
    detok_init(&d, t);
    for (size_t i = 0; i < ids.n; i++) {
        if (ids.ids[i] < 0 || (uint32_t)ids.ids[i] >= tokenizer_size(t))
            __builtin_trap();
        if (!special && tokenizer_is_control(t, ids.ids[i]))
            __builtin_trap();
        detok_add(&d, ids.ids[i], &out);
    }
    detok_flush(&d, &out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "Hello <|im_end|>\xE4\xBD\xA0 world's 123\xC2\xBD  \n\t \xF0\x9F\x8C\x8D!! aaaaaaaa";
    struct gguf *g;
    struct tokenizer *t;
    struct err err = { 0 };

    if (gguf_open_memory("fuzz.gguf", data, size, &g, NULL) < 0)
        return 0;
    if (tokenizer_open(g, &t, &err) == 0) {
        for (int special = 0; special < 2; special++) {
            encode(t, (const char *)data, size, special);
            encode(t, text, sizeof text - 1, special);
        }
        tokenizer_close(t);
    } else if (!err_is_set(&err)) {
        __builtin_trap();
    }
    gguf_close(g);
    return 0;
}
