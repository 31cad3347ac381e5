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

static bool same(const struct token_list *a, const struct token_list *b)
{
    for (size_t i = 0; i < a->n && i < b->n; i++)
        if (a->ids[i] != b->ids[i])
            return false;
    return a->n == b->n;
}

/* Spans of one trust are the text; of two, they have no more control tokens than the text has with all of it trusted. */
static void encode_spans(const struct tokenizer *t, const char *text, size_t len, size_t a, size_t b, unsigned trust)
{
    TOKEN_LIST_LOCAL ids = { 0 };
    TOKEN_LIST_LOCAL whole = { 0 };
    size_t first = len ? a % len : 0, second = first + (len - first ? b % (len - first) : 0);
    const struct text_span spans[] = {
        { text, first, trust & 1 }, { text + first, second - first, trust & 2 }, { text + second, len - second, trust & 4 },
    };

    if (tokenizer_encode_spans(t, spans, 3, &ids, NULL) < 0 || tokenizer_encode(t, text, len, trust == 7, &whole, NULL) < 0)
        return;
    if ((trust == 0 || trust == 7) && !same(&ids, &whole))
        __builtin_trap();
    for (size_t i = 0; i < ids.n; i++)
        if (ids.ids[i] < 0 || (uint32_t)ids.ids[i] >= tokenizer_size(t))
            __builtin_trap();
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
        for (unsigned trust = 0; trust < 8; trust++) {
            encode_spans(t, (const char *)data, size, size / 3, size / 5, trust);
            encode_spans(t, text, sizeof text - 1, 9, trust, trust);
        }
        tokenizer_close(t);
    } else if (!err_is_set(&err)) {
        __builtin_trap();
    }
    gguf_close(g);
    return 0;
}
