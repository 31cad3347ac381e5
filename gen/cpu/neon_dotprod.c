/* ARMv8.2 with dot products of bytes. */
#include "gen/cpu/neon.h"
#include "gen/cpu/neon_sdot.h"

INLINE void dot_words(const enum mat_type type, struct block_words from, const int half, const int lane, const int8_t (*x)[B],
                      const int rows, ints *dot)
{
    const int n_words = pack_forms[type].halves ? 4 : 8;

    UNROLL for (int n = 0; n < n_words; n++) {
        const int j = word_at(type, half, n);
        const int8x16_t w = signed_word(type, from, lane, j);

        UNROLL for (int t = 0; t < rows; t++)
            dot[t] = sdot(dot[t], w, x[t], j);
    }
}

DEFINE_PANEL_MULS(LIKES)
MAT_QUANTISED(DEFINE_QUANT_MUL)

KERNELS_TABLE_AS(neon_dotprod, "neon-dotprod", MUL_ROW, NULL);
