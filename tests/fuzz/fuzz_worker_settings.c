/* A worker's settings: what is taken is within the ranges that the engine relies on. */
#include "base/arena.h"
#include "base/err.h"
#include "base/json.h"
#include "daemon/worker/settings.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    CLEANUP(json_delete) cJSON *tree = NULL;
    struct settings s;
    struct err err = { 0 };

    if (json_parse((const char *)data, size, NULL, &tree, NULL) < 0)
        return 0;
    if (settings_read(tree, a, &s, &err) < 0) {
        if (!err_is_set(&err))
            abort();
        return 0;
    }
    if (!s.worker_name || !s.name || !s.path || !s.device || !s.chat_template || s.parallel < 1 ||
        !(s.sample.top_p >= 0 && s.sample.top_p <= 1) || !(s.sample.temperature >= 0))
        abort();
    for (size_t i = 0; i < s.n_aliases; i++)
        if (strlen(s.aliases[i]) > size)
            abort();
    settings_fini(&s);
    return 0;
}
