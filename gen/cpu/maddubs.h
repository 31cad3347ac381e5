/* maddubs.h - products with quantised weights for sets whose instruction (pmaddubsw) multiplies unsigned bytes by signed ones,
 * adds two neighbours into 16 bits, and saturates there.
 *
 * So sums stay in 16 bits only as far as the largest codes allow, words_in_16_bits(): eight words of nibbles are 30480 at most, four of
 * 5 bits 31496, two of 6 bits 32004. Codes that fill a byte can not be multiplied so at all: they go in as |w|, with the sign of w on
 * the activation; two products of 128 * 127 are 32512.
 *
 * A set includes this, in place of quants.h, after it has defined what that asks for, but for SIGNED_BYTES, and
 *
 *     words_flip, words_abs, words_sign    the top bit of each byte turned; |a|; a with the sign of the second, 0 where that is
 *     pairs_of, pairs_add                  the instruction; sums in 16 bits
 *     ints_add_pairs                       a + both halves of each number of b
 */
#define SIGNED_BYTES 1

#include "gen/cpu/quants.h"

INLINE void dot_words(const enum mat_type type, struct block_words from, const int half, const int lane, const int8_t (*x)[B],
                      const int rows, ints *dot)
{
    const int n_words = pack_forms[type].halves ? 4 : 8, most = words_in_16_bits(type);
    ints sum[TILE];

    UNROLL for (int n = 0; n < n_words; n++) {
        const int j = word_at(type, half, n);
        words w = word_of(type, from, lane, j), size = w;

        if (is_bytes(type)) {
            w = words_flip(w);
            size = words_abs(w);
        }
        UNROLL for (int t = 0; t < rows; t++) {
            const words c = columns(x[t], j);
            const ints pairs = pairs_of(size, is_bytes(type) ? words_sign(c, w) : c);

            sum[t] = n % most == 0 ? pairs : pairs_add(sum[t], pairs);
            if (n % most == most - 1 || n == n_words - 1)
                dot[t] = ints_add_pairs(dot[t], sum[t]);
        }
    }
}

#define LIKES LIKES_IN_16_BITS

INLINE enum mat_type like(const enum mat_type type) { return like_in_16_bits(type); }

DEFINE_PANEL_MULS(LIKES)
MAT_QUANTISED(DEFINE_QUANT_MUL)
