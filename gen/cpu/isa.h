/* isa.h - which tables were built for this processor family: isa_x86.c,
 * isa_arm.c, or isa_none.c where only plain C is known. */
#ifndef GEN_CPU_ISA_H
#define GEN_CPU_ISA_H

#include "gen/cpu/kernels.h"

#include <stdbool.h>

struct isa {
    const struct kernels *kernels;
    bool (*runs)(void);         /* does this machine have what it needs? */
    const char *needs;
};

/* The plainest first; ends with a row without kernels. */
extern const struct isa isa_tables[];

#endif
