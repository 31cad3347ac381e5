#include "gen/cpu/isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

extern const struct kernels kernels_sse41, kernels_avx2, kernels_avx512vnni, kernels_amx;

static bool always(void) { return true; }

static bool has_sse41(void) { return __builtin_cpu_supports("ssse3") && __builtin_cpu_supports("sse4.1"); }

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

/* CPUID says what the processor has, XCR0 what the kernel saves; and it saves tiles only for a process that has asked
 * for them, once, on any thread: before that a tile instruction is SIGILL. It says no under some seccomp filters and to who
 * has an alternate signal stack too small for them. Asking again costs half a microsecond. */
static bool has_amx(void)
{
    enum { BF16 = 1 << 22, TILE = 1 << 24, INT8 = 1 << 25, AVX512_BF16 = 1 << 5, TILE_STATE = 3 << 17 };
    enum { REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
    unsigned a, b, c, d, more, low, high;

    if (!has_avx512vnni() || !__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE) ||
        !__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (BF16 | TILE | INT8)) != (BF16 | TILE | INT8) ||
        !__get_cpuid_count(7, 1, &more, &b, &c, &d) || !(more & AVX512_BF16))
        return false;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & TILE_STATE) == TILE_STATE && syscall(SYS_arch_prctl, REQ_XCOMP_PERM, XTILEDATA) == 0;
}

const struct isa isa_tables[] = {
    { &kernels_scalar, always, "nothing" },
    { &kernels_sse41, has_sse41, "SSSE3 and SSE4.1" },
    { &kernels_avx2, has_avx2, "AVX2, FMA and F16C" },
    { &kernels_avx512vnni, has_avx512vnni, "AVX-512 F, BW, VL, DQ and VNNI" },
    { &kernels_amx, has_amx, "AMX int8 and bf16, and the kernel's leave to use tiles" },
    { NULL },
};
