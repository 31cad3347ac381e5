#include "gen/cpu/avx512.h"

#define LIKES(X) X(Q4_0) X(Q6_K)

INLINE enum mat_type like(const enum mat_type type) { return pack_forms[type].halves ? MAT_Q6_K : MAT_Q4_0; }

DEFINE_PANEL_MULS(LIKES)
MAT_QUANTISED(DEFINE_QUANT_MUL)

KERNELS_TABLE(avx512vnni, MUL_ROW, NULL);
