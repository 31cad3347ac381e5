/* golden.h - where golden data lies: $FASTCHAT_GOLDEN, else beside the source. */
#ifndef TESTS_GEN_GOLDEN_H
#define TESTS_GEN_GOLDEN_H

#include <stdio.h>
#include <stdlib.h>

static inline FILE *golden_open(const char *name)
{
    const char *dir = getenv("FASTCHAT_GOLDEN"), *source = getenv("FASTCHAT_SOURCE");
    char path[4096];

    if (dir)
        snprintf(path, sizeof path, "%s/%s", dir, name);
    else
        snprintf(path, sizeof path, "%s/../shared/golden/%s", source ? source : ".", name);
    return fopen(path, "r");
}

#endif
