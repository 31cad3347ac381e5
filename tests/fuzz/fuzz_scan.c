/* The input is a text, cut by every scanner: the pieces are not empty and together they are the text. */
#include "loaders/tok/scan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int follow(void *user, const char *piece, size_t len)
{
    const char **at = user;

    if (!len || piece != *at)
        __builtin_trap();
    *at += len;
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct scan_pre *pre;
    const struct scan *scan;
    const char *regex;

    for (size_t i = 0; (scan = scan_at(i, &regex)); i++) {
        const char *at = (const char *)data;

        if (scan->run(at, size, follow, &at) != 0 || at != (const char *)data + size)
            __builtin_trap();
    }
    for (size_t i = 0; (pre = scan_pre_at(i)); i++) {
        const char *at = (const char *)data;

        if (scan_all(pre->scans, at, size, follow, &at) != 0 || at != (const char *)data + size)
            __builtin_trap();
    }
    return 0;
}
