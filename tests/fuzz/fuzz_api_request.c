/* A chat request body. What is taken makes a body for the worker that is JSON;
 * what is refused has a status and a sentence. */
#include "base/arena.h"
#include "base/buf.h"
#include "base/json.h"
#include "daemon/api/api_error.h"
#include "daemon/api/chat_request.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    struct chat_request r;
    struct api_error e = { 0 };
    BUF_LOCAL out = BUF_INIT;

    if (chat_request_parse((const char *)data, size, a, &r, &e) == 0) {
        chat_request_write(&r, CHAT_TEXTS_ONLY, &out);
        chat_request_write_end(&r, 0, "id", &out);
        if (json_check(out.data, out.len, NULL, NULL) < 0)
            abort();
        buf_clear(&out);
        chat_request_write(&r, CHAT_IN_FULL, &out);
        chat_request_write_end(&r, r.n - 1, "id", &out);
        if (json_check(out.data, out.len, NULL, NULL) < 0)
            abort();
    } else {
        if (!e.status || !e.message[0])
            abort();
        api_error_write(&e, &out);
        if (json_check(out.data, out.len, NULL, NULL) < 0)
            abort();
    }
    chat_request_fini(&r);
    return 0;
}
