/* A template of any bytes: it compiles or says why not, within its limits. */
#include "conv/jinja/jinja.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct jinja_limits limits = { .template_bytes = 1 << 16, .depth = 100, .output_bytes = 1 << 16, .steps = 1000000,
                                                .memory_bytes = 16 << 20 };
    struct jinja *t = NULL;
    struct jinja_fault fault = { 0 };
    int rc = jinja_compile("t", (const char *)data, size, &limits, &t, &fault, NULL);

    if ((rc == 0) != (t != NULL) || (rc < 0 && (!fault.type[0] || !fault.message[0])))
        abort();
    if (t)
        jinja_uses(t, "messages");
    jinja_free(t);
    return 0;
}
