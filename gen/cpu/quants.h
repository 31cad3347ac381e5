/* quants.h - products with quantised weights, written once for every width of vectors and every type of weights. What sets types apart
 * are the facts of pack_forms[] (pack.h): constants here, so that each type becomes a kernel of its own. A type with nothing
 * new to it is a row there and no line here.
 *
 * A word of codes is four columns of the lanes, a byte each, above zero: what vpdpbusd and vpmaddubsw take on one side. An offset
 * goes into the start value of the sum, from the activations' own sums. An instruction set includes this after it has defined, for
 * LANES weight rows at once (16, or 8 where a group is two parts),
 *
 *     words            LANES words of four bytes
 *     words_load       from memory
 *     words_shift      16-bit elements to the right by n, to the left where it is negative
 *     words_and        with one byte everywhere
 *     words_or_and     a | b with one byte everywhere
 *     words_look_up    each byte's low four bits in a codebook, + offset
 *     ints, floats     LANES numbers, and what ints_*, floats_* below do with them
 *     dot_words        adds the products of a block, or of a half of it
 *     TILE             activation rows at once
 */
#include "gen/cpu/pack.h"

enum { B = KERNEL_BLOCK };

/* Word j of a block, as codes. */
INLINE words word(const enum mat_type type, const uint8_t *group, uint32_t b, const int lane, const int j)
{
    const struct pack_form *f = &pack_forms[type];
    const uint8_t *codes = pack_codes(type, group, b) + lane * 4, *high = pack_high(type, group, b) + lane * 4;
    words w;

    if (f->bits == 8)
        return words_load(codes + j * 64);
    if (f->bits == 4)
        w = words_and(words_shift(words_load(codes + j % 4 * 64), j / 4 * 4), 15);
    else
        w = words_and(words_shift(words_load(codes + j / 4 * 64), j % 4 * 2), 3);
    if (f->codebook)
        return words_look_up(f->codebook, f->offset, w);
    if (f->high == 1)
        w = words_or_and(w, words_shift(words_load(high), j - f->bits), 1 << f->bits);
    else if (f->high == 2)
        w = words_or_and(w, words_shift(words_load(high + j / 4 * 64), j % 4 * 2 - f->bits), 3 << f->bits);
    return w;
}

/* Scale and minimum of a half of a block, or of all of it; exact. */
INLINE void scales(const enum mat_type type, const uint8_t *group, uint32_t b, const int half, const int lane, floats *ret_d,
                   floats *ret_m)
{
    const struct pack_form *f = &pack_forms[type];
    const uint8_t *fine = pack_fine(type, group, b) + (f->halves ? half * L : 0) + lane;

    *ret_d = f->scale == PACK_E8M0 ? floats_of_e8m0(fine) : floats_of_f16(pack_d(type, group, b) + lane);
    *ret_m = f->min ? floats_of_f16(pack_m(type, group, b) + lane) : floats_set1(0);
    if (f->scale == PACK_S8) {
        *ret_d = floats_mul(*ret_d, floats_of_s8(fine));
    } else if (f->scale == PACK_U8) {
        *ret_d = floats_mul(*ret_d, floats_of_u8(fine, 0, 255));
        *ret_m = floats_mul(*ret_m, floats_of_u8(fine + L, 0, 255));
    } else if (f->scale == PACK_U4) {
        *ret_d = floats_mul(*ret_d, floats_of_u8(fine, 0, 15));
        *ret_m = floats_mul(*ret_m, floats_of_u8(fine, 4, 15));
    }
}

/* The n-th word that is multiplied. Words that share a load are neighbours. */
INLINE int word_at(const enum mat_type type, const int half, const int n)
{
    return pack_forms[type].halves ? half * 4 + n : pack_forms[type].bits == 4 ? n % 2 * 4 + n / 2 : n;
}

/* Four columns of an activation row in every lane. */
INLINE ints columns(const int8_t *x, int word)
{
    int32_t v;

    memcpy(&v, x + word * 4, 4);
    return ints_set1(v);
}

/* dot[row] += words of a half of a block, or of all of it, * activations: x is the first row's block, rows are k apart. */
INLINE void dot_words(const enum mat_type type, const uint8_t *group, uint32_t b, const int half, const int lane, const int8_t *x,
                      uint32_t k, const int rows, ints *dot);

/* One group times `rows` rows. */
INLINE void tile(const struct mul *m, const enum mat_type type, const uint8_t *w, const uint8_t *next,
                 size_t at, uint32_t row, const int rows)
{
    const struct pack_form *form = &pack_forms[type];
    const struct acts *x = m->x;
    const uint32_t k = x->k, n_blocks = k / B, block_bytes = pack_unit_bytes(type) / form->unit;
    const int8_t *q = x->q + (size_t)row * k;
    const size_t first = (size_t)row * n_blocks;
    floats f[L / LANES][TILE];

    UNROLL for (int part = 0; part < L / LANES; part++)
        UNROLL for (int t = 0; t < rows; t++)
            f[part][t] = floats_set1(0);
    for (uint32_t b = 0; b < n_blocks; b++) {
        if (next)
            UNROLL for (uint32_t line = 0; line < block_bytes; line += 64)
                prefetch(next + (size_t)b * block_bytes + line);
        UNROLL for (int part = 0; part < L / LANES; part++)
            UNROLL for (int half = 0; half < 1 + form->halves; half++) {
                ints dot[TILE];
                floats d, min;

                UNROLL for (int t = 0; t < rows; t++) {
                    const size_t i = first + (size_t)t * n_blocks + b;
                    const int32_t sum = !form->halves ? x->sum[i] : half ? x->sum[i] - x->half[i] : x->half[i];

                    dot[t] = ints_set1(-START_OFFSET(type) * sum);
                }
                dot_words(type, w, b, half, part * LANES, q + (size_t)b * B, k, rows, dot);
                scales(type, w, b, half, part * LANES, &d, &min);
                UNROLL for (int t = 0; t < rows; t++) {
                    const size_t i = first + (size_t)t * n_blocks + b;

                    f[part][t] = floats_fma(floats_mul(d, floats_set1(x->d[i])), floats_of_ints(dot[t]), f[part][t]);
                    if (form->min && !form->halves)
                        f[part][t] = floats_fma(min, floats_set1(x->s[i]), f[part][t]);
                    else if (form->min)
                        f[part][t] = floats_fma(
                            min, floats_set1(x->d[i] * (float)(half ? x->sum[i] - x->half[i] : x->half[i])), f[part][t]);
                }
            }
    }
    UNROLL for (int part = 0; part < L / LANES; part++)
        UNROLL for (int t = 0; t < rows; t++)
            floats_store(m->y[row + t] + at + part * LANES, f[part][t]);
}

#define QUANT_TILE(n) tile(m, type, w, NEXT_IF_FIRST, at, row, n)
#define DEFINE_QUANT_MUL(name) DEFINE_MUL(name, TILE, QUANT_TILE)
