/* AVX2 with FMA and F16C: a group is two registers of eight rows. */
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

/* ---- products with quantised weights --------------------------------- */

typedef __m256i words;
typedef __m256i ints;
typedef __m256 floats;
#define LANES 8
#define EACH_PART UNROLL
#define TILE 4
#define FEW_TILE_ROWS 2
#define ONE_ROW_GROUPS 4
#define PANEL_ROWS 3

INLINE words words_load(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
INLINE void words_store(uint8_t *p, words w) { _mm256_storeu_si256((__m256i *)p, w); }
INLINE words words_and(words a, int byte) { return _mm256_and_si256(a, _mm256_set1_epi8((char)byte)); }
INLINE words words_or_and(words a, words b, int byte) { return _mm256_or_si256(a, words_and(b, byte)); }

INLINE words words_shift(words a, const int n)
{
    return n > 0 ? _mm256_srli_epi16(a, n) : n < 0 ? _mm256_slli_epi16(a, -n) : a;
}

INLINE words words_look_up(const int8_t *codebook, int offset, words a)
{
    const __m128i table = _mm_add_epi8(_mm_loadu_si128((const __m128i *)codebook), _mm_set1_epi8((char)offset));

    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), a);
}

INLINE words words_flip(words a) { return _mm256_xor_si256(a, _mm256_set1_epi8((char)0x80)); }
INLINE words words_abs(words a) { return _mm256_abs_epi8(a); }
INLINE words words_sign(words a, words sign) { return _mm256_sign_epi8(a, sign); }
INLINE ints pairs_of(words a, ints b) { return _mm256_maddubs_epi16(a, b); }
INLINE ints pairs_add(ints a, ints b) { return _mm256_add_epi16(a, b); }
INLINE ints ints_add_pairs(ints a, ints b) { return _mm256_add_epi32(a, _mm256_madd_epi16(b, _mm256_set1_epi16(1))); }

INLINE ints ints_set1(int32_t i) { return _mm256_set1_epi32(i); }
INLINE floats floats_set1(float f) { return _mm256_set1_ps(f); }
INLINE floats floats_mul(floats a, floats b) { return _mm256_mul_ps(a, b); }
INLINE floats floats_fma(floats a, floats b, floats c) { return _mm256_fmadd_ps(a, b, c); }
INLINE floats floats_of_ints(ints i) { return _mm256_cvtepi32_ps(i); }
INLINE floats floats_of_f16(const uint16_t *p) { return load_f16_half(p); }
INLINE floats floats_of_s8(const uint8_t *p) { return load_i8_half((const int8_t *)p); }
INLINE floats floats_load(const float *p) { return _mm256_loadu_ps(p); }
INLINE void floats_store(float *p, floats f) { _mm256_storeu_ps(p, f); }
INLINE ints ints_of_u8(const uint8_t *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)); }

INLINE floats floats_of_u8(const uint8_t *p, const int shift, const int mask)
{
    return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(ints_of_u8(p), shift), _mm256_set1_epi32(mask)));
}

/* As dequant_mxfp4_scale(). */
INLINE floats floats_of_e8m0(const uint8_t *p)
{
    const ints e = ints_of_u8(p), normal = _mm256_slli_epi32(_mm256_sub_epi32(e, ints_set1(1)), 23);

    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, _mm256_sllv_epi32(ints_set1(0x00200000), e),
                                                  _mm256_cmpgt_epi32(ints_set1(2), e)));
}

#include "gen/cpu/maddubs.h"

KERNELS_TABLE(avx2, MUL_ROW, NULL);
