/* A manifest beside a model: whatever the bytes, one that stays in its folder and that
 * is written as it is read, or a sentence. */
#include "base/err.h"
#include "cli/model_store.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct manifest m = { 0 }, again = { 0 };
    struct err err = { 0 };
    BUF_LOCAL out = BUF_INIT;
    BUF_LOCAL twice = BUF_INIT;

    if (manifest_parse((const char *)data, size, &m, &err) < 0) {
        if (m.name || m.files || !err_is_set(&err))
            abort();
        return 0;
    }
    for (size_t i = 0; i < m.n_files; i++)
        if (!hub_path_is_safe(m.files[i].path) || m.files[i].size < 0)
            abort();
    manifest_write(&m, &out);
    if (manifest_parse(buf_str(&out), out.len, &again, &err) < 0)
        abort();
    manifest_write(&again, &twice);
    if (out.len != twice.len || memcmp(out.data, twice.data, out.len) != 0)
        abort();
    manifest_fini(&m);
    manifest_fini(&again);
    return 0;
}
