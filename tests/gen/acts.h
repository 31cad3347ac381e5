/* acts.h - rows of activations for tests of products. */
#ifndef TESTS_GEN_ACTS_H
#define TESTS_GEN_ACTS_H

#include "gen/cpu/kernels.h"

/* n bytes of zeros, aligned to 64 and up to a multiple of that; fails the test without memory. free() it. */
void *zeroed(size_t n);

/* Rows of k zeros; k a multiple of KERNEL_BLOCK. */
void acts_open(struct acts *a, uint32_t n_rows, uint32_t k);
void acts_close(struct acts *a);
/* Row r in all forms, from its floats. */
void acts_quantise(struct acts *a, uint32_t r);

#endif
