/* ARMv8 as every 64-bit ARM has it: bytes are multiplied into 16 bits, where those of several words are added before they are
 * widened. The largest that neighbours and words make together stays below 2^15: words_in_16_bits().
 */
#include "gen/cpu/neon.h"

INLINE void dot_words(const enum mat_type type, struct block_words from, const int half, const int lane, const int8_t (*x)[B],
                      const int rows, ints *dot)
{
    const int n_words = pack_forms[type].halves ? 4 : 8, most = words_in_16_bits(type);
    int16x8_t low[TILE], high[TILE];                /* two rows of weights each, four columns apart */

    UNROLL for (int n = 0; n < n_words; n++) {
        const int j = word_at(type, half, n);
        const int8x16_t w = signed_word(type, from, lane, j);

        UNROLL for (int t = 0; t < rows; t++) {
            const int8x16_t c = vreinterpretq_s8_s32(columns(x[t], j));

            low[t] = n % most == 0 ? vmull_s8(vget_low_s8(w), vget_low_s8(c)) : vmlal_s8(low[t], vget_low_s8(w), vget_low_s8(c));
            high[t] = n % most == 0 ? vmull_high_s8(w, c) : vmlal_high_s8(high[t], w, c);
            if (n % most == most - 1 || n == n_words - 1)
                dot[t] = vpadalq_s16(dot[t], vpaddq_s16(low[t], high[t]));
        }
    }
}

#define LIKES LIKES_IN_16_BITS

INLINE enum mat_type like(const enum mat_type type) { return like_in_16_bits(type); }

DEFINE_PANEL_MULS(LIKES)
MAT_QUANTISED(DEFINE_QUANT_MUL)

KERNELS_TABLE_AS(neon, "neon", MUL_ROW, NULL);
