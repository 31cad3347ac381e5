#include "gen/slab.h"

#include <sys/mman.h>

void *slab_map(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        return NULL;
    madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

void slab_unmap(void *slab, size_t bytes)
{
    if (slab)
        munmap(slab, bytes);
}
