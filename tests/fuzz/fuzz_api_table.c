/* Lines of a routing table, one after the other, with a question between. */
#include "daemon/api/catalog.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    CLEANUP(catalog_free) struct catalog *c = catalog_new();
    const char *p = (const char *)data, *end = p + size;

    while (p < end) {
        CLEANUP(mem_free) struct catalog_entry *list = NULL;
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        size_t n = 0;

        stop = stop ? stop : end;
        catalog_table(c, p, (size_t)(stop - p), NULL);
        if (catalog_list(c, &list, &n) < 0)
            abort();
        for (size_t i = 0; i < n; i++)
            if (catalog_find(c, list[i].id) && !catalog_pick(c, list[i].model, NULL, 0, 0))
                abort();            /* nothing is configured: what is listed is served */
        p = stop + 1;
    }
    return 0;
}
