/* AVX2 with FMA and F16C: a group is two registers of eight rows.
 *
 * vpmaddubsw adds two products into 16 bits and saturates. Nibbles can not reach
 * that: eight sums of two products of 15 * 127 are 30480. Bytes can, so Q8_0 takes
 * |w| and moves its sign to the activation: two products of 128 * 127 are 32512.
 */
#include "gen/cpu/pack.h"

#include <immintrin.h>

typedef struct {
    __m256 lo, hi;
} v16;
#define V16_CHAINS 2
#define V16_TILE 3
#define V16_HEADS 2
#define V16_DIMS 2

#define EACH_HALF(expression_lo, expression_hi) ((v16){ (expression_lo), (expression_hi) })

static inline v16 v16_set1(float f) { return EACH_HALF(_mm256_set1_ps(f), _mm256_set1_ps(f)); }
static inline v16 v16_load(const float *p) { return EACH_HALF(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
static inline v16 v16_add(v16 a, v16 b) { return EACH_HALF(_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)); }
static inline v16 v16_sub(v16 a, v16 b) { return EACH_HALF(_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)); }
static inline v16 v16_mul(v16 a, v16 b) { return EACH_HALF(_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)); }
static inline v16 v16_div(v16 a, v16 b) { return EACH_HALF(_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)); }
/* A NaN in b comes through both. */
static inline v16 v16_min(v16 a, v16 b) { return EACH_HALF(_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)); }
static inline v16 v16_max(v16 a, v16 b) { return EACH_HALF(_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)); }

static inline void v16_store(float *p, v16 v)
{
    _mm256_storeu_ps(p, v.lo);
    _mm256_storeu_ps(p + 8, v.hi);
}

static inline v16 v16_fma(v16 a, v16 b, v16 c)
{
    return EACH_HALF(_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi));
}

static inline v16 v16_fnma(v16 a, v16 b, v16 c)
{
    return EACH_HALF(_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi));
}

static inline v16 v16_abs(v16 a)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);

    return EACH_HALF(_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi));
}

static inline v16 v16_round(v16 a)
{
    enum { HOW = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };

    return EACH_HALF(_mm256_round_ps(a.lo, HOW), _mm256_round_ps(a.hi, HOW));
}

/* a * 2^n for -126 <= n <= 127. */
static inline __m256 ldexp_half(__m256 a, __m256 n)
{
    __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);

    return _mm256_mul_ps(a, _mm256_castsi256_ps(bits));
}

static inline v16 v16_ldexp(v16 a, v16 n) { return EACH_HALF(ldexp_half(a.lo, n.lo), ldexp_half(a.hi, n.hi)); }

static inline float v16_reduce_add(v16 a)
{
    __m256 s = _mm256_add_ps(a.lo, a.hi);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));

    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

static inline float v16_reduce_max(v16 a)
{
    __m256 s = _mm256_max_ps(a.lo, a.hi);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));

    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

static inline v16 v16_swap_pairs(v16 a)
{
    return EACH_HALF(_mm256_permute_ps(a.lo, 0xb1), _mm256_permute_ps(a.hi, 0xb1));
}

static inline v16 v16_zero_below(v16 x, v16 low, v16 v)
{
    return EACH_HALF(_mm256_and_ps(_mm256_cmp_ps(x.lo, low.lo, _CMP_NLT_UQ), v.lo),
                     _mm256_and_ps(_mm256_cmp_ps(x.hi, low.hi, _CMP_NLT_UQ), v.hi));
}

static inline __m256 load_f16_half(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

static inline v16 v16_load_f16(const uint16_t *p) { return EACH_HALF(load_f16_half(p), load_f16_half(p + 8)); }

static inline void v16_store_f16(uint16_t *p, v16 v)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(v.hi, _MM_FROUND_TO_NEAREST_INT));
}

static inline __m256 load_bf16_half(const uint16_t *p)
{
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}

static inline v16 v16_load_bf16(const uint16_t *p) { return EACH_HALF(load_bf16_half(p), load_bf16_half(p + 8)); }

static inline __m256 load_i8_half(const int8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

static inline v16 v16_load_i8(const int8_t *p) { return EACH_HALF(load_i8_half(p), load_i8_half(p + 8)); }

/* Rounds to int8, returns their sum. */
static inline int32_t v16_to_i8(v16 v, int8_t *out)
{
    const __m256i lo = _mm256_cvtps_epi32(v.lo), hi = _mm256_cvtps_epi32(v.hi);
    const __m256i sum8 = _mm256_add_epi32(lo, hi);
    /* packs works within 128-bit halves: bring the quarters back in order. */
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(lo, hi), 0xd8);
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(sum8), _mm256_extracti128_si256(sum8, 1));

    _mm_storeu_si128((__m128i *)out, _mm_packs_epi16(_mm256_castsi256_si128(words),
                                                     _mm256_extracti128_si256(words, 1)));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}

#include "gen/cpu/lanes.h"

enum { TILE = 4, B = KERNEL_BLOCK };

INLINE __m256i columns(const int8_t *x, int word)
{
    int32_t v;

    memcpy(&v, x + word * 4, 4);
    return _mm256_set1_epi32(v);
}

/* dot[t] = eight rows of nibbles * activations. */
INLINE void dot_q4(const uint8_t *quants, const int8_t *x, uint32_t k, const int rows, __m256i *dot)
{
    const __m256i low = _mm256_set1_epi8(15);

    UNROLL for (int t = 0; t < rows; t++)
        dot[t] = _mm256_setzero_si256();
    UNROLL for (int j = 0; j < 4; j++) {
        const __m256i w = _mm256_loadu_si256((const __m256i *)(quants + j * 64)),
                      lo = _mm256_and_si256(w, low),
                      hi = _mm256_and_si256(_mm256_srli_epi16(w, 4), low);

        UNROLL for (int t = 0; t < rows; t++) {
            const int8_t *xt = x + (size_t)t * k;

            dot[t] = _mm256_add_epi16(dot[t], _mm256_maddubs_epi16(lo, columns(xt, j)));
            dot[t] = _mm256_add_epi16(dot[t], _mm256_maddubs_epi16(hi, columns(xt, j + 4)));
        }
    }
    UNROLL for (int t = 0; t < rows; t++)
        dot[t] = _mm256_madd_epi16(dot[t], _mm256_set1_epi16(1));
}

INLINE void dot_q8(const uint8_t *quants, const int8_t *x, uint32_t k, const int rows, __m256i *dot)
{
    const __m256i flip = _mm256_set1_epi8((char)0x80), ones = _mm256_set1_epi16(1);

    UNROLL for (int t = 0; t < rows; t++)
        dot[t] = _mm256_setzero_si256();
    UNROLL for (int j = 0; j < 8; j++) {
        const __m256i w = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)(quants + j * 64)), flip),
                      size = _mm256_abs_epi8(w);

        UNROLL for (int t = 0; t < rows; t++) {
            const __m256i pairs = _mm256_maddubs_epi16(
                size, _mm256_sign_epi8(columns(x + (size_t)t * k, j), w));

            dot[t] = _mm256_add_epi32(dot[t], _mm256_madd_epi16(pairs, ones));
        }
    }
}

INLINE void tile(const struct mul *m, const enum mat_type type, const uint8_t *w, const uint8_t *next,
                 size_t at, uint32_t row, const int rows)
{
    const struct acts *x = m->x;
    const uint32_t k = x->k, n_blocks = k / B, bytes = type == MAT_Q4_1 ? 320 : type == MAT_Q4_0 ? 288 : 544;
    const int8_t *q = x->q + (size_t)row * k;
    const float *d = x->d + (size_t)row * n_blocks, *s = x->s + (size_t)row * n_blocks;
    const int32_t *sum = x->sum + (size_t)row * n_blocks;
    __m256 f[2][TILE];

    UNROLL for (int t = 0; t < rows; t++)
        f[0][t] = f[1][t] = _mm256_setzero_ps();
    for (uint32_t b = 0; b < n_blocks; b++) {
        const uint8_t *quants = type == MAT_Q4_1   ? pack_q4_1_quants(w, b)
                                : type == MAT_Q4_0 ? pack_q4_0_quants(w, b)
                                                   : pack_q8_0_quants(w, b);
        const uint16_t *scales = type == MAT_Q4_1   ? pack_q4_1_scales(w, b)
                                 : type == MAT_Q4_0 ? pack_q4_0_scales(w, b)
                                                    : pack_q8_0_scales(w, b);

        for (uint32_t line = 0; next && line < bytes; line += 64)
            prefetch(next + (size_t)b * bytes + line);
        UNROLL for (int half = 0; half < 2; half++) {
            const __m256 wd = load_f16_half(scales + half * 8);
            __m256i dot[TILE];

            if (type == MAT_Q8_0)
                dot_q8(quants + half * 32, q + b * B, k, rows, dot);
            else
                dot_q4(quants + half * 32, q + b * B, k, rows, dot);
            UNROLL for (int t = 0; t < rows; t++) {
                const size_t at_b = (size_t)t * n_blocks + b;

                if (type == MAT_Q4_0)
                    dot[t] = _mm256_sub_epi32(dot[t], _mm256_set1_epi32(8 * sum[at_b]));
                f[half][t] = _mm256_fmadd_ps(_mm256_mul_ps(wd, _mm256_set1_ps(d[at_b])),
                                             _mm256_cvtepi32_ps(dot[t]), f[half][t]);
                if (type == MAT_Q4_1)
                    f[half][t] = _mm256_fmadd_ps(load_f16_half(scales + L + half * 8),
                                                 _mm256_set1_ps(s[at_b]), f[half][t]);
            }
        }
    }
    UNROLL for (int t = 0; t < rows; t++)
        v16_store(m->y[row + t] + at, EACH_HALF(f[0][t], f[1][t]));
}

DEFINE_QUANT_MUL(q4_0, TILE)
DEFINE_QUANT_MUL(q4_1, TILE)
DEFINE_QUANT_MUL(q8_0, TILE)

KERNELS_TABLE(avx2, mul, NULL);
