/* Whatever a registration says, the table stays writable and dispatch stays
 * within it. The first byte chooses the door. */
#include "base/buf.h"
#include "base/json.h"
#include "daemon/controller/registry.h"
#include "daemon/controller/worker.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    CLEANUP(json_delete) cJSON *body = NULL;
    CLEANUP(registry_free) struct registry *r = registry_new(1000);
    CLEANUP(worker_free) struct worker *w = NULL;
    BUF_LOCAL out = BUF_INIT;

    if (size == 0 || !r || json_parse((const char *)data + 1, size - 1, NULL, &body, NULL) < 0)
        return 0;
    if (worker_from_json(body, data[0] == 'L', &w, NULL) == 0 && registry_put(r, w, 0) == 0) {
        registry_dispatch(r, w->n_models ? w->models[0] : "", DISPATCH_SHORTEST_QUEUE, false, 0);
        registry_dispatch(r, w->n_models ? w->models[0] : "", DISPATCH_LOTTERY, true, 0.99);
        registry_write_models(r, KIND_ALL, &out);
        registry_write_routes(r, &out);
        registry_expire(r, registry_next_expiry(r));
        w = NULL;
    }
    return 0;
}
