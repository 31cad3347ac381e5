/* Whatever a registration says, the table stays writable and dispatch stays
 * within it. The first byte chooses the door; 'S': it is the answer of a worker
 * that was asked for its status. */
#include "base/buf.h"
#include "base/json.h"
#include "daemon/controller/registry.h"
#include "daemon/controller/worker.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void take_status(struct registry *r, const char *text, size_t len)
{
    static const char registration[] = "{\"worker_name\":\"http://h:1\",\"check_heart_beat\":false,"
                                       "\"worker_status\":{\"model_names\":[\"m\"],\"speed\":1,\"queue_length\":0}}";
    CLEANUP(json_delete) cJSON *body = NULL;
    CLEANUP(json_delete) cJSON *status = NULL;
    CLEANUP(worker_free) struct worker *w = NULL;
    BUF_LOCAL out = BUF_INIT;

    if (json_parse(registration, sizeof registration - 1, NULL, &body, NULL) < 0 ||
        worker_from_json(body, false, &w, NULL) != 0)
        abort();
    if (json_parse(text, len, NULL, &status, NULL) < 0)
        return;
    if (worker_apply_status(w, status, NULL) != 0 && !worker_serves(w, "m"))
        abort();                    /* untouched unless it is taken */
    if (registry_put(r, w, 0) == 0) {
        STEAL(w);
        registry_write_models(r, KIND_ALL, &out);
        registry_write_routes(r, &out);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    CLEANUP(json_delete) cJSON *body = NULL;
    CLEANUP(registry_free) struct registry *r = registry_new(1000);
    CLEANUP(worker_free) struct worker *w = NULL;
    BUF_LOCAL out = BUF_INIT;

    if (size && data[0] == 'S') {
        take_status(r, (const char *)data + 1, size - 1);
        return 0;
    }
    if (size == 0 || !r || json_parse((const char *)data + 1, size - 1, NULL, &body, NULL) < 0)
        return 0;
    if (worker_from_json(body, data[0] == 'L', &w, NULL) == 0 && registry_put(r, w, 0) == 0) {
        registry_dispatch(r, w->n_models ? w->models[0] : "", DISPATCH_SHORTEST_QUEUE, false, 0);
        registry_dispatch(r, w->n_models ? w->models[0] : "", DISPATCH_LOTTERY, true, 0.99);
        registry_write_models(r, KIND_ALL, &out);
        registry_write_routes(r, &out);
        registry_beat(r, w->name, data[0] == 'L', 3, 1);
        registry_expire(r, registry_next_expiry(r));
        w = NULL;
    }
    return 0;
}
