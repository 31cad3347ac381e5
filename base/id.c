#include "base/id.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static const char alphabet[] = "23456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";

/* getrandom() of a few bytes fails only where the kernel has no entropy
 * source at all; nothing sensible can go on there. */
static void fill(void *to, size_t len)
{
    if (getrandom(to, len, 0) != (ssize_t)len)
        abort();
}

uint64_t id_random_u64(void)
{
    uint64_t v;

    fill(&v, sizeof v);
    return v;
}

void id_short(const char *prefix, char *out, size_t size)
{
    size_t n = strlen(prefix);
    uint8_t bytes[ID_SHORT * 2];

    if (n + ID_SHORT + 1 > size)
        abort();
    memcpy(out, prefix, n);
    fill(bytes, sizeof bytes);
    for (size_t i = 0; i < ID_SHORT; i++)   /* two bytes a symbol: the bias is below 0.1 % */
        out[n + i] = alphabet[(bytes[2 * i] | bytes[2 * i + 1] << 8) % (sizeof alphabet - 1)];
    out[n + ID_SHORT] = '\0';
}
