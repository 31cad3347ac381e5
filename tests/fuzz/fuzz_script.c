/* Script files (gen/script.h): whatever the bytes, a script or a sentence. */
#include "base/err.h"
#include "gen/script.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct script *s = NULL;
    struct err err = { 0 };

    if (script_parse("fuzz", (const char *)data, size, &s, &err) == 0)
        script_choose(s, "prompt", 6);
    else if (!err_is_set(&err))
        abort();
    script_close(s);
    return 0;
}
