/* rand.h - repeatable random numbers for tests (splitmix64). */
#ifndef TESTS_GEN_RAND_H
#define TESTS_GEN_RAND_H

#include <stdint.h>

static inline uint64_t rand_next(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;

    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static inline uint32_t rand_below(uint64_t *state, uint32_t n)
{
    return (uint32_t)((rand_next(state) >> 32) * n >> 32);
}

static inline double rand_unit(uint64_t *state)
{
    return (double)(rand_next(state) >> 11) * 0x1p-53;
}

#endif
