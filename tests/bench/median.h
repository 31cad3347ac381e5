/* median.h - what stands in the middle of measurements. */
#ifndef TESTS_BENCH_MEDIAN_H
#define TESTS_BENCH_MEDIAN_H

#include <stddef.h>
#include <stdlib.h>

static inline int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static inline void sort_values(double *values, size_t n) { qsort(values, n, sizeof *values, by_value); }

/* Of n values, at least one; sorts them. */
static inline double median(double *values, size_t n)
{
    sort_values(values, n);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

#endif
