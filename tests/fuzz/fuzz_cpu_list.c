/* A list of CPUs: any text is refused with a sentence, or prints as a text that
 * is read as the same set. */
#include "base/buf.h"
#include "base/err.h"
#include "daemon/supervisor/cpu_list.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    BUF_LOCAL text = BUF_INIT;
    BUF_LOCAL printed = BUF_INIT;
    struct cpu_list l, again;
    struct err err = { 0 };

    buf_add(&text, data, len);
    if (cpu_list_parse(buf_str(&text), &l, &err)) {
        if (!err_is_set(&err))
            abort();
        return 0;
    }
    cpu_list_print(&l, &printed);
    if (cpu_list_parse(buf_str(&printed), &again, NULL) || memcmp(&l, &again, sizeof l) != 0)
        abort();
    return 0;
}
