#include "loaders/tok/scratch.h"

#include <stdlib.h>

void *scratch_room(struct tok_scratch *s, unsigned slot, size_t bytes)
{
    size_t cap = s->slots[slot].cap;
    void *p;

    if (bytes <= cap && cap)
        return s->slots[slot].p;
    cap = bytes < 2 * cap ? 2 * cap : bytes < 256 ? 256 : bytes;
    p = realloc(s->slots[slot].p, cap);
    if (!p)
        return NULL;
    s->slots[slot].p = p;
    s->slots[slot].cap = cap;
    return p;
}

void scratch_fini(struct tok_scratch *s)
{
    for (unsigned i = 0; i < SCRATCH_SLOTS; i++)
        free(s->slots[i].p);
    *s = (struct tok_scratch){ 0 };
}
