/* The input is a file of this kind; its tokenizer, where there is one, encodes the input itself. */
#include "base/err.h"
#include "loaders/tok/wordpiece.h"
#include "tok_run.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tokenizer *t = NULL;
    struct err err = { 0 };

    if (vocab_txt_open("vocab.txt", (const char *)data, size, NULL, &t, &err) == 0) {
        tok_run(t, data, size);
        tokenizer_close(t);
    } else if (!err_is_set(&err)) {
        __builtin_trap();
    }
    return 0;
}
