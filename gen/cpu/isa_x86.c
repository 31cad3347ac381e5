#include "gen/cpu/isa.h"

#include <cpuid.h>

extern const struct kernels kernels_avx2, kernels_avx512vnni;

static bool always(void) { return true; }

/* Not every compiler's __builtin_cpu_supports() knows this one. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;

    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

/* __builtin_cpu_supports() reads XCR0 too: it says no where the kernel does not
 * save the registers. */
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

static bool has_avx512vnni(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}

const struct isa isa_tables[] = {
    { &kernels_scalar, always, "nothing" },
    { &kernels_avx2, has_avx2, "AVX2, FMA and F16C" },
    { &kernels_avx512vnni, has_avx512vnni, "AVX-512 F, BW, VL, DQ and VNNI" },
    { NULL },
};
