/* ARMv8.2 with products of byte matrices: smmla multiplies two rows of activations by two of weights, eight columns deep. Two
 * neighbouring words of four rows make two such pairs of rows when they are zipped; the layout stays as it is. An odd row of activations
 * is left to sdot, which adds the same integers.
 */
#include "gen/cpu/neon.h"
#include "gen/cpu/neon_sdot.h"

/* The first of the n-th two neighbouring words. Words that share a load are near each other. */
INLINE int words_at(const enum mat_type type, const int half, const int n)
{
    return pack_forms[type].halves ? half * 4 + n * 2 : pack_forms[type].bits == 4 ? n % 2 * 4 + n / 2 * 2 : n * 2;
}

INLINE void dot_words(const enum mat_type type, struct block_words from, const int half, const int lane, const int8_t (*x)[B],
                      const int rows, ints *dot)
{
    const int n_pairs = pack_forms[type].halves ? 2 : 4;
    int32x4_t w01[TILE / 2], w23[TILE / 2];         /* of two activation rows: with two weight rows, one after the other */

    UNROLL for (int t = 0; t < rows / 2; t++)
        w01[t] = w23[t] = vdupq_n_s32(0);
    UNROLL for (int n = 0; n < n_pairs; n++) {
        const int j = words_at(type, half, n);
        const int8x16_t first = signed_word(type, from, lane, j), second = signed_word(type, from, lane, j + 1);
        const int32x4_t a = vreinterpretq_s32_s8(first), c = vreinterpretq_s32_s8(second);

        UNROLL for (int t = 0; t < rows / 2; t++) {
            const int8_t *xt = x[2 * t] + j * 4;
            const int8x16_t two = vcombine_s8(vld1_s8(xt), vld1_s8(xt + B));

            w01[t] = vmmlaq_s32(w01[t], two, vreinterpretq_s8_s32(vzip1q_s32(a, c)));
            w23[t] = vmmlaq_s32(w23[t], two, vreinterpretq_s8_s32(vzip2q_s32(a, c)));
        }
        if (rows % 2) {
            const int8_t *last = x[rows - 1];

            dot[rows - 1] = sdot(sdot(dot[rows - 1], first, last, j), second, last, j + 1);
        }
    }
    UNROLL for (int t = 0; t < rows / 2; t++) {
        const int64x2_t low = vreinterpretq_s64_s32(w01[t]), high = vreinterpretq_s64_s32(w23[t]);

        dot[2 * t] = vaddq_s32(dot[2 * t], vreinterpretq_s32_s64(vzip1q_s64(low, high)));
        dot[2 * t + 1] = vaddq_s32(dot[2 * t + 1], vreinterpretq_s32_s64(vzip2q_s64(low, high)));
    }
}

DEFINE_PANEL_MULS(LIKES)
MAT_QUANTISED(DEFINE_QUANT_MUL)

KERNELS_TABLE_AS(neon_i8mm, "neon-i8mm", MUL_ROW, NULL);
