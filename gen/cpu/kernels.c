#include "gen/cpu/kernels.h"

#include "base/err.h"
#include "gen/cpu/isa.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_named(const char *name) { return name && *name && strcmp(name, "auto") != 0; }

/* Those that can be named instead are in the sentence, for a person who knows only another machine. */
static int refuse(const char *name, const struct isa *known, struct err *err)
{
    char names[128] = "";
    size_t used = 0;

    for (size_t i = 0; kernels_at(i) && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", kernels_at(i)->name);
    if (known)
        return err_set(err, -ENOTSUP, "instruction set \"%s\" needs %s, which this machine lacks; it has: %s", name, known->needs, names);
    return err_set(err, -ENOTSUP, "instruction set \"%.32s\" is not known here; this machine has: %s", name, names);
}

static int choose_named(const char *name, const struct kernels **ret, struct err *err)
{
    const struct isa *i = isa_tables;

    while (i->kernels && strcmp(name, i->kernels->name) != 0)
        i++;
    if (!i->kernels || !i->runs())
        return refuse(name, i->kernels ? i : NULL, err);
    *ret = i->kernels;
    return 0;
}

int kernels_choose(const char *name, const struct kernels **ret, struct err *err)
{
    const char *env = getenv("FASTCHAT_ISA");
    int r;

    if (is_named(name))
        return choose_named(name, ret, err);
    if (is_named(env)) {
        r = choose_named(env, ret, err);
        if (r < 0)
            err_place(err, "FASTCHAT_ISA");
        return r;
    }
    for (const struct isa *i = isa_tables; i->kernels; i++)
        if (i->runs())
            *ret = i->kernels;
    return 0;
}

const struct kernels *kernels_at(size_t i)
{
    for (const struct isa *t = isa_tables; t->kernels; t++)
        if (t->runs() && i-- == 0)
            return t->kernels;
    return NULL;
}
