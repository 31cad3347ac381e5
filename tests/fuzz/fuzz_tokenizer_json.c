/* The input is a tokenizer.json, behind a NUL a tokenizer_config.json, behind another NUL a text, which the tokenizer, where there is one,
 * encodes and decodes. */
#include "base/buf.h"
#include "base/err.h"
#include "loaders/tok/hf.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_TEXT = 1000 };

static void use(const struct tokenizer *t, const char *text, size_t len, bool special)
{
    TOKEN_LIST_LOCAL ids = { 0 };
    BUF_LOCAL out = BUF_INIT;
    struct err err = { 0 };

    if (tokenizer_encode(t, text, len, special, &ids, &err) < 0) {
        if (!err_is_set(&err))
            __builtin_trap();
        return;
    }
    for (size_t i = 0; i < ids.n; i++)
        if (ids.ids[i] < 0 || (uint32_t)ids.ids[i] >= tokenizer_size(t))
            __builtin_trap();
    if (tokenizer_longest(t) && len > ids.n * tokenizer_longest(t))
        __builtin_trap();
    tokenizer_decode(t, ids.ids, ids.n, special, &out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *json = (const char *)data, *end = json + size, *config, *text;
    struct tokenizer *t = NULL;
    struct err err = { 0 };

    config = size ? memchr(json, 0, size) : NULL;
    text = config ? memchr(config + 1, 0, (size_t)(end - config - 1)) : NULL;
    if (hf_open("fuzz.json", json, config ? (size_t)(config - json) : size, text && text > config + 1 ? config + 1 : NULL,
                text && text > config + 1 ? (size_t)(text - config - 1) : 0, &t, &err) == 0) {
        size_t len = text ? (size_t)(end - text - 1) : 0;

        for (int special = 0; special < 2; special++)
            use(t, text ? text + 1 : "", len < MAX_TEXT ? len : MAX_TEXT, special);
        tokenizer_close(t);
    } else if (!err_is_set(&err) || t) {
        __builtin_trap();
    }
    return 0;
}
