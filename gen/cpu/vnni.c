#include "gen/cpu/avx512.h"

KERNELS_TABLE(avx512vnni, mul, NULL);
