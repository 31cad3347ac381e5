/* AMX: what AVX-512 with VNNI does, and tiles where they pay. */
#include "gen/cpu/avx512.h"

KERNELS_TABLE(amx, mul, NULL);
