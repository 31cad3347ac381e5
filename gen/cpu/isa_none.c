#include "gen/cpu/isa.h"

static bool always(void) { return true; }

const struct isa isa_tables[] = {
    { &kernels_scalar, always, "nothing" },
    { NULL },
};
