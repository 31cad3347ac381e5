#include "tests/gen/acts.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdlib.h>
#include <string.h>

void *zeroed(size_t n)
{
    const size_t whole = (n + 63) & ~(size_t)63;
    void *p = aligned_alloc(64, whole);

    cr_assert(ne(ptr, p, NULL));
    memset(p, 0, whole);
    return p;
}

void acts_open(struct acts *a, uint32_t n_rows, uint32_t k)
{
    const size_t n = (size_t)n_rows * k, n_blocks = n / KERNEL_BLOCK;

    a->k = k;
    a->q = zeroed(n);
    a->d = zeroed(n_blocks * sizeof *a->d);
    a->sum = zeroed(n_blocks * sizeof *a->sum);
    a->half = zeroed(n_blocks * sizeof *a->half);
    a->f = zeroed(n * sizeof *a->f);
}

void acts_close(struct acts *a)
{
    free(a->q);
    free(a->d);
    free(a->sum);
    free(a->half);
    free(a->f);
}

void acts_quantise(struct acts *a, uint32_t r)
{
    const size_t at = (size_t)r * a->k, b = at / KERNEL_BLOCK;

    kernels_scalar.quantise(a->f + at, a->k, a->q + at, a->d + b, a->sum + b, a->half + b);
}
