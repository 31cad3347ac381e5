#include "gen/arch.h"

#include <stddef.h>
#include <string.h>

static const struct arch rows[] = {
#define ARCH(row_name, ...) { .name = row_name, __VA_ARGS__ },
#include "gen/arch.def"
#undef ARCH
};

const struct arch *arch_at(unsigned i) { return i < sizeof rows / sizeof rows[0] ? &rows[i] : NULL; }

const struct arch *arch_find(const char *name)
{
    for (unsigned i = 0; arch_at(i); i++)
        if (strcmp(rows[i].name, name) == 0)
            return &rows[i];
    return NULL;
}
