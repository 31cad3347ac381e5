/* An address as somebody wrote it. Its clean form is an address too, and the same one. */
#include "base/err.h"
#include "ipc/address.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    struct address a, again;
    struct err err = { 0 };

    memcpy(text, data, size);
    text[size] = 0;
    if (address_parse(text, &a, &err) < 0) {
        if (!err_is_set(&err))
            abort();
    } else if (address_parse(a.text, &again, NULL) < 0 || strcmp(a.text, again.text) != 0 || a.is_unix != again.is_unix ||
               a.port != again.port || (a.is_unix ? strcmp(a.path, again.path) : strcmp(a.host, again.host)) != 0) {
        abort();
    }
    free(text);
    return 0;
}
