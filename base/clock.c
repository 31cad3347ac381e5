#include "base/clock.h"

#include <time.h>

uint64_t clock_mono_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t clock_mono_us(void)
{
    return clock_mono_ns() / 1000;
}

uint64_t clock_mono_ms(void)
{
    return clock_mono_ns() / 1000000;
}

int64_t clock_wall_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec;
}
