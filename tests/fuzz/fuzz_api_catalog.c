/* What the api hears of models, in any order, a line each: 'C' the settings' list, 'S' the supervisor's word on their
 * state, else the controller's table. */
#include "base/json.h"
#include "daemon/api/api_error.h"
#include "daemon/api/catalog.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void take(struct catalog *c, const char *line, size_t len)
{
    CLEANUP(json_delete) cJSON *tree = NULL;

    if (len == 0)
        return;
    if (*line != 'C' && *line != 'S') {
        catalog_table(c, line, len, NULL);
        return;
    }
    if (json_parse(line + 1, len - 1, NULL, &tree, NULL) < 0)
        return;
    if (*line == 'C')
        catalog_configure(c, tree, NULL);
    else
        catalog_states(c, tree);
}

static void ask(struct catalog *c)
{
    CLEANUP(mem_free) struct catalog_entry *list = NULL;
    size_t n = 0;

    if (catalog_list(c, &list, &n) < 0)
        abort();
    for (size_t i = 0; i < n; i++) {
        struct api_error e = { 0 };
        struct model *m = catalog_find(c, list[i].id);
        struct worker *w = m ? catalog_pick(c, m, NULL, 0, 0) : NULL;

        if (!m || !list[i].status)
            abort();
        if (catalog_admit(c, m, 1, &e) < 0 && (!e.status || !e.message[0]))
            abort();
        catalog_lease_model(c, m, 1);
        if (w) {
            catalog_lease_worker(w);
            catalog_release_worker(c, w);
        }
        catalog_release_model(c, m, 1);
    }
    catalog_health(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    CLEANUP(catalog_free) struct catalog *c = catalog_new();
    const char *p = (const char *)data, *end = p + size;

    while (p < end) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));

        stop = stop ? stop : end;
        take(c, p, (size_t)(stop - p));
        ask(c);
        p = stop + 1;
    }
    return 0;
}
