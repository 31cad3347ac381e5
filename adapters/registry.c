#include "adapters/registry.h"

#include <string.h>

static const struct row {
    struct model_info info;
    const char *models;             /* with spaces between */
} rows[] = {
#define MODELS(name, organisation, link, models) { { name, organisation, link }, models },
#include "adapters/registry.def"
};

enum { N_ROWS = sizeof rows / sizeof rows[0] };

/* The next name of a list, or NULL; *at moves behind it. */
static const char *next(const char **at, size_t *ret_len)
{
    const char *name = *at + strspn(*at, " ");

    *ret_len = strcspn(name, " ");
    *at = name + *ret_len;
    return *ret_len ? name : NULL;
}

bool model_info(const char *model, struct model_info *ret)
{
    size_t want = strlen(model), len;

    for (size_t i = N_ROWS; i-- > 0; ) {
        const char *at = rows[i].models, *name;

        while ((name = next(&at, &len)) != NULL)
            if (len == want && memcmp(name, model, len) == 0) {
                *ret = rows[i].info;
                return true;
            }
    }
    *ret = (struct model_info){ .name = model, .organisation = "", .link = "" };
    return false;
}

const char *model_info_at(size_t index, size_t *ret_len, struct model_info *ret)
{
    for (size_t i = 0; i < N_ROWS; i++) {
        const char *at = rows[i].models, *name;

        while ((name = next(&at, ret_len)) != NULL)
            if (index-- == 0) {
                *ret = rows[i].info;
                return name;
            }
    }
    return NULL;
}
