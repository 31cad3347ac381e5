/* avx512.h - lanes and products of AVX-512 with VNNI, for the tables that are built on
 * them: vnni.c and amx.c. vpdpbusd multiplies unsigned weights by signed
 * activations, four columns of sixteen rows at a time, and never saturates.
 *
 * Offsets of Q4_0 and Q8_0 (8 and 128) go into the start value of the sum, from
 * the activations' own sums. A tile has up to 8 rows; below 4 a second
 * integer sum hides the latency of vpdpbusd (exact, so nothing depends on it).
 */
#ifndef GEN_CPU_AVX512_H
#define GEN_CPU_AVX512_H

#include "gen/cpu/pack.h"

#include <immintrin.h>

typedef __m512 v16;
#define V16_CHAINS 4
#define V16_TILE 5
#define V16_HEADS 4
#define V16_DIMS 4

static inline v16 v16_set1(float f) { return _mm512_set1_ps(f); }
static inline v16 v16_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void v16_store(float *p, v16 v) { _mm512_storeu_ps(p, v); }
static inline v16 v16_add(v16 a, v16 b) { return _mm512_add_ps(a, b); }
static inline v16 v16_sub(v16 a, v16 b) { return _mm512_sub_ps(a, b); }
static inline v16 v16_mul(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
static inline v16 v16_div(v16 a, v16 b) { return _mm512_div_ps(a, b); }
static inline v16 v16_fma(v16 a, v16 b, v16 c) { return _mm512_fmadd_ps(a, b, c); }
static inline v16 v16_fnma(v16 a, v16 b, v16 c) { return _mm512_fnmadd_ps(a, b, c); }
/* A NaN in b comes through both. */
static inline v16 v16_min(v16 a, v16 b) { return _mm512_min_ps(a, b); }
static inline v16 v16_max(v16 a, v16 b) { return _mm512_max_ps(a, b); }
static inline v16 v16_abs(v16 a) { return _mm512_abs_ps(a); }
static inline v16 v16_round(v16 a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT); }
static inline v16 v16_ldexp(v16 a, v16 n) { return _mm512_scalef_ps(a, n); }
static inline float v16_reduce_add(v16 a) { return _mm512_reduce_add_ps(a); }
static inline float v16_reduce_max(v16 a) { return _mm512_reduce_max_ps(a); }
static inline v16 v16_swap_pairs(v16 a) { return _mm512_permute_ps(a, 0xb1); }

static inline v16 v16_zero_below(v16 x, v16 low, v16 v)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, low, _CMP_NLT_UQ), v);
}

static inline v16 v16_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

static inline void v16_store_f16(uint16_t *p, v16 v)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

static inline v16 v16_load_bf16(const uint16_t *p)
{
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}

static inline v16 v16_load_i8(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

/* Rounds to int8, returns their sum. */
static inline int32_t v16_to_i8(v16 v, int8_t *out)
{
    __m512i i = _mm512_cvtps_epi32(v);

    _mm_storeu_si128((__m128i *)out, _mm512_cvtepi32_epi8(i));
    return _mm512_reduce_add_epi32(i);
}

#include "gen/cpu/lanes.h"

enum { TILE = 8, B = KERNEL_BLOCK };

/* Four columns of an activation row in every lane. */
INLINE __m512i columns(const int8_t *x, int word)
{
    int32_t v;

    memcpy(&v, x + word * 4, 4);
    return _mm512_set1_epi32(v);
}

INLINE void prefetch_lines(const uint8_t *p, int lines)
{
    UNROLL for (int i = 0; i < lines; i++)
        prefetch(p + i * 64);
}

/* dot[t] += nibbles of a block * activations. */
INLINE void dot_q4(const uint8_t *quants, const int8_t *x, uint32_t k, const int rows, __m512i *dot)
{
    const __m512i low = _mm512_set1_epi8(15);
    __m512i second[TILE];

    UNROLL for (int t = 0; t < rows; t++)
        second[t] = _mm512_setzero_si512();
    UNROLL for (int j = 0; j < 4; j++) {
        const __m512i w = _mm512_loadu_si512(quants + j * 64), lo = _mm512_and_si512(w, low),
                      hi = _mm512_and_si512(_mm512_srli_epi16(w, 4), low);

        UNROLL for (int t = 0; t < rows; t++) {
            const int8_t *xt = x + (size_t)t * k;

            dot[t] = _mm512_dpbusd_epi32(dot[t], lo, columns(xt, j));
            if (rows < 4)
                second[t] = _mm512_dpbusd_epi32(second[t], hi, columns(xt, j + 4));
            else
                dot[t] = _mm512_dpbusd_epi32(dot[t], hi, columns(xt, j + 4));
        }
    }
    if (rows < 4)
        UNROLL for (int t = 0; t < rows; t++)
            dot[t] = _mm512_add_epi32(dot[t], second[t]);
}

INLINE void dot_q8(const uint8_t *quants, const int8_t *x, uint32_t k, const int rows, __m512i *dot)
{
    __m512i second[TILE];

    UNROLL for (int t = 0; t < rows; t++)
        second[t] = _mm512_setzero_si512();
    UNROLL for (int j = 0; j < 8; j += 2) {
        const __m512i w0 = _mm512_loadu_si512(quants + j * 64), w1 = _mm512_loadu_si512(quants + j * 64 + 64);

        UNROLL for (int t = 0; t < rows; t++) {
            const int8_t *xt = x + (size_t)t * k;

            dot[t] = _mm512_dpbusd_epi32(dot[t], w0, columns(xt, j));
            if (rows < 4)
                second[t] = _mm512_dpbusd_epi32(second[t], w1, columns(xt, j + 1));
            else
                dot[t] = _mm512_dpbusd_epi32(dot[t], w1, columns(xt, j + 1));
        }
    }
    if (rows < 4)
        UNROLL for (int t = 0; t < rows; t++)
            dot[t] = _mm512_add_epi32(dot[t], second[t]);
}

/* One group times `rows` rows. */
INLINE void tile(const struct mul *m, const enum mat_type type, const uint8_t *w, const uint8_t *next,
                 size_t at, uint32_t row, const int rows)
{
    const struct acts *x = m->x;
    const uint32_t k = x->k, n_blocks = k / B;
    const int8_t *q = x->q + (size_t)row * k;
    const float *d = x->d + (size_t)row * n_blocks, *s = x->s + (size_t)row * n_blocks;
    const int32_t *sum = x->sum + (size_t)row * n_blocks;
    v16 f[TILE];

    UNROLL for (int t = 0; t < rows; t++)
        f[t] = v16_set1(0);
    for (uint32_t b = 0; b < n_blocks; b++) {
        __m512i dot[TILE];
        v16 wd, wm = v16_set1(0);

        UNROLL for (int t = 0; t < rows; t++)
            dot[t] = type == MAT_Q4_1 ? _mm512_setzero_si512()
                                      : _mm512_set1_epi32((type == MAT_Q4_0 ? -8 : -128) *
                                                          sum[(size_t)t * n_blocks + b]);
        if (type == MAT_Q4_1) {
            if (next)
                prefetch_lines(next + (size_t)b * 320, 5);
            dot_q4(pack_q4_1_quants(w, b), q + b * B, k, rows, dot);
            wd = v16_load_f16(pack_q4_1_scales(w, b));
            wm = v16_load_f16(pack_q4_1_scales(w, b) + L);
        } else if (type == MAT_Q4_0) {
            if (next)
                prefetch_lines(next + (size_t)b * 288, 5);
            dot_q4(pack_q4_0_quants(w, b), q + b * B, k, rows, dot);
            wd = v16_load_f16(pack_q4_0_scales(w, b));
        } else {
            if (next)
                prefetch_lines(next + (size_t)b * 544, 9);
            dot_q8(pack_q8_0_quants(w, b), q + b * B, k, rows, dot);
            wd = v16_load_f16(pack_q8_0_scales(w, b));
        }
        UNROLL for (int t = 0; t < rows; t++) {
            f[t] = v16_fma(v16_mul(wd, v16_set1(d[(size_t)t * n_blocks + b])), _mm512_cvtepi32_ps(dot[t]),
                           f[t]);
            if (type == MAT_Q4_1)
                f[t] = v16_fma(wm, v16_set1(s[(size_t)t * n_blocks + b]), f[t]);
        }
    }
    UNROLL for (int t = 0; t < rows; t++)
        v16_store(m->y[row + t] + at, f[t]);
}

DEFINE_QUANT_MUL(q4_0, TILE)
DEFINE_QUANT_MUL(q4_1, TILE)
DEFINE_QUANT_MUL(q8_0, TILE)

#endif
