#include "gen/cpu/kernels.h"

#include "base/err.h"
#include "gen/cpu/isa.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int no_such_table(const char *name, struct err *err)
{
    char names[128] = "";
    size_t used = 0;

    for (const struct isa *i = isa_tables; i->kernels && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "",
                                 i->kernels->name);
    return err_set(err, -ENOTSUP, "instruction set \"%.32s\" is unknown; there are: %s", name, names);
}

int kernels_choose(const char *name, const struct kernels **ret, struct err *err)
{
    const struct kernels *best = NULL;

    if (!name || !*name)
        name = getenv("FASTCHAT_ISA");
    for (const struct isa *i = isa_tables; i->kernels; i++) {
        if (name && *name && strcmp(name, i->kernels->name) != 0)
            continue;
        if (i->runs())
            best = i->kernels;
        else if (name && *name)
            return err_set(err, -ENOTSUP, "instruction set \"%s\" needs %s, which this machine lacks",
                           name, i->needs);
    }
    if (!best)
        return no_such_table(name, err);
    *ret = best;
    return 0;
}

const struct kernels *kernels_at(size_t i)
{
    for (const struct isa *t = isa_tables; t->kernels; t++)
        if (t->runs() && i-- == 0)
            return t->kernels;
    return NULL;
}
