#include "gen/cpu/isa.h"

#include <asm/hwcap.h>
#include <sys/auxv.h>

extern const struct kernels kernels_neon, kernels_neon_dotprod, kernels_neon_i8mm;

static bool always(void) { return true; }

static bool has(unsigned long type, unsigned long flags) { return (getauxval(type) & flags) == flags; }

static bool has_neon(void) { return has(AT_HWCAP, HWCAP_ASIMD); }

/* The flags of these files let a compiler use all that ARMv8.2 demands, not only what they are about. */
static bool has_dotprod(void)
{
    return has(AT_HWCAP, HWCAP_ASIMD | HWCAP_ASIMDDP | HWCAP_ASIMDRDM | HWCAP_ATOMICS | HWCAP_CRC32);
}

static bool has_i8mm(void) { return has_dotprod() && has(AT_HWCAP2, HWCAP2_I8MM); }

const struct isa isa_tables[] = {
    { &kernels_scalar, always, "nothing" },
    { &kernels_neon, has_neon, "Advanced SIMD" },
    { &kernels_neon_dotprod, has_dotprod, "ARMv8.2 with dot products (asimddp)" },
    { &kernels_neon_i8mm, has_i8mm, "ARMv8.2 with dot products and products of byte matrices (i8mm)" },
    { NULL },
};
