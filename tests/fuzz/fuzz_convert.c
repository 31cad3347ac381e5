/* A script with other servers' command lines: any text is split, every command is
 * refused with a sentence or taken, and what comes out has no line that a value began. */
#include "base/buf.h"
#include "base/err.h"
#include "cli/convert.h"
#include "cli/words.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    struct convert *c = convert_new();
    BUF_LOCAL text = BUF_INIT;
    BUF_LOCAL out = BUF_INIT;
    struct words w;
    const char *at;

    if (!c)
        return 0;
    buf_add(&text, data, len);
    at = buf_str(&text);
    while (words_next(&at, &w, NULL) == 0) {
        struct err err = { 0 };

        if (convert_take(c, (const char *const *)w.word, w.n, &err) != 0 && !err_is_set(&err))
            abort();
        words_fini(&w);
    }
    convert_write(c, &out);
    if (!strstr(buf_str(&out), "\nmodels:\n(\n"))
        abort();
    convert_free(c);
    return 0;
}
