/* SSE4.1, for x86-64 without AVX2: a group is four registers of four rows. There is no fused multiply-add and no conversion of
 * halves: a product is rounded before it is added, in every tile alike, and halves are taken apart by integers.
 */
#include "gen/cpu/half.h"
#include "gen/cpu/pack.h"

#include <smmintrin.h>

typedef struct {
    __m128 a, b, c, d;
} v16;
#define V16_CHAINS 2
#define V16_TILE 2
#define V16_HEADS 2
#define V16_DIMS 1

#define EACH_1(f, x) ((v16){ f((x).a), f((x).b), f((x).c), f((x).d) })
#define EACH_2(f, x, y) ((v16){ f((x).a, (y).a), f((x).b, (y).b), f((x).c, (y).c), f((x).d, (y).d) })
#define EACH_3(f, x, y, z)                                                                         \
    ((v16){ f((x).a, (y).a, (z).a), f((x).b, (y).b, (z).b), f((x).c, (y).c, (z).c), f((x).d, (y).d, (z).d) })
#define EACH_AT(f, p) ((v16){ f(p), f((p) + 4), f((p) + 8), f((p) + 12) })

static inline v16 v16_load(const float *p) { return EACH_AT(_mm_loadu_ps, p); }
static inline v16 v16_add(v16 x, v16 y) { return EACH_2(_mm_add_ps, x, y); }
static inline v16 v16_sub(v16 x, v16 y) { return EACH_2(_mm_sub_ps, x, y); }
static inline v16 v16_mul(v16 x, v16 y) { return EACH_2(_mm_mul_ps, x, y); }
static inline v16 v16_div(v16 x, v16 y) { return EACH_2(_mm_div_ps, x, y); }
static inline v16 v16_fma(v16 x, v16 y, v16 z) { return v16_add(v16_mul(x, y), z); }
static inline v16 v16_fnma(v16 x, v16 y, v16 z) { return v16_sub(z, v16_mul(x, y)); }
/* A NaN in y comes through both. */
static inline v16 v16_min(v16 x, v16 y) { return EACH_2(_mm_min_ps, x, y); }
static inline v16 v16_max(v16 x, v16 y) { return EACH_2(_mm_max_ps, x, y); }

static inline v16 v16_set1(float f)
{
    const __m128 x = _mm_set1_ps(f);

    return (v16){ x, x, x, x };
}

static inline void v16_store(float *p, v16 x)
{
    _mm_storeu_ps(p, x.a);
    _mm_storeu_ps(p + 4, x.b);
    _mm_storeu_ps(p + 8, x.c);
    _mm_storeu_ps(p + 12, x.d);
}

static inline __m128 abs_4(__m128 x) { return _mm_andnot_ps(_mm_set1_ps(-0.0f), x); }
static inline v16 v16_abs(v16 x) { return EACH_1(abs_4, x); }

static inline __m128 round_4(__m128 x) { return _mm_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline v16 v16_round(v16 x) { return EACH_1(round_4, x); }

static inline __m128 swap_pairs_4(__m128 x) { return _mm_shuffle_ps(x, x, 0xb1); }
static inline v16 v16_swap_pairs(v16 x) { return EACH_1(swap_pairs_4, x); }

/* x * 2^n for -126 <= n <= 127. */
static inline __m128 ldexp_4(__m128 x, __m128 n)
{
    return _mm_mul_ps(x, _mm_castsi128_ps(_mm_slli_epi32(_mm_add_epi32(_mm_cvtps_epi32(n), _mm_set1_epi32(127)), 23)));
}

static inline v16 v16_ldexp(v16 x, v16 n) { return EACH_2(ldexp_4, x, n); }

static inline float v16_reduce_add(v16 x)
{
    __m128 s = _mm_add_ps(_mm_add_ps(x.a, x.b), _mm_add_ps(x.c, x.d));

    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

static inline float v16_reduce_max(v16 x)
{
    __m128 s = _mm_max_ps(_mm_max_ps(x.a, x.b), _mm_max_ps(x.c, x.d));

    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

static inline __m128 zero_below_4(__m128 x, __m128 low, __m128 y) { return _mm_and_ps(_mm_cmpnlt_ps(x, low), y); }
static inline v16 v16_zero_below(v16 x, v16 low, v16 y) { return EACH_3(zero_below_4, x, low, y); }

/* As f16_to_f32() of half.h. A subnormal one becomes 2^-14 more than it is, less that: subnormal floats would take an assist. */
static inline __m128 load_f16_4(const uint16_t *p)
{
    const __m128i h = _mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)p)), rest = _mm_and_si128(h, _mm_set1_epi32(0x7fff)),
                  bias = _mm_set1_epi32(112 << 23), sign = _mm_slli_epi32(_mm_xor_si128(h, rest), 16);
    const __m128i big = _mm_and_si128(_mm_cmpgt_epi32(rest, _mm_set1_epi32(0x7bff)), bias),
                  bits = _mm_add_epi32(_mm_add_epi32(_mm_slli_epi32(rest, 13), bias), big);
    const __m128 small = _mm_sub_ps(_mm_castsi128_ps(_mm_add_epi32(bits, _mm_set1_epi32(1 << 23))), _mm_set1_ps(0x1p-14f)),
                 is_small = _mm_castsi128_ps(_mm_cmpgt_epi32(_mm_set1_epi32(0x400), rest));

    return _mm_or_ps(_mm_blendv_ps(_mm_castsi128_ps(bits), small, is_small), _mm_castsi128_ps(sign));
}

static inline v16 v16_load_f16(const uint16_t *p) { return EACH_AT(load_f16_4, p); }

static inline void v16_store_f16(uint16_t *p, v16 x)
{
    float f[16];

    v16_store(f, x);
    for (int i = 0; i < 16; i++)
        p[i] = f16_of_f32(f[i]);
}

static inline __m128 load_bf16_4(const uint16_t *p)
{
    return _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)p)), 16));
}

static inline v16 v16_load_bf16(const uint16_t *p) { return EACH_AT(load_bf16_4, p); }

static inline __m128i load_4(const void *p)
{
    int32_t bytes;

    memcpy(&bytes, p, 4);
    return _mm_cvtsi32_si128(bytes);
}

static inline __m128 load_i8_4(const int8_t *p) { return _mm_cvtepi32_ps(_mm_cvtepi8_epi32(load_4(p))); }
static inline v16 v16_load_i8(const int8_t *p) { return EACH_AT(load_i8_4, p); }

/* Rounds to int8, returns their sum. */
static inline int32_t v16_to_i8(v16 x, int8_t *out)
{
    const __m128i a = _mm_cvtps_epi32(x.a), b = _mm_cvtps_epi32(x.b), c = _mm_cvtps_epi32(x.c), d = _mm_cvtps_epi32(x.d);
    __m128i sum = _mm_add_epi32(_mm_add_epi32(a, b), _mm_add_epi32(c, d));

    _mm_storeu_si128((__m128i *)out, _mm_packs_epi16(_mm_packs_epi32(a, b), _mm_packs_epi32(c, d)));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}

#include "gen/cpu/lanes.h"

/* ---- products with quantised weights --------------------------------- */

typedef __m128i words;
typedef __m128i ints;
typedef __m128 floats;
#define LANES 4
#define EACH_PART
#define TILE 4
#define FEW_TILE_ROWS 2
#define PANEL_ROWS 3
#define ONE_ROW_GROUPS 4

INLINE words words_load(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)p); }
INLINE void words_store(uint8_t *p, words w) { _mm_storeu_si128((__m128i *)p, w); }
INLINE words words_and(words a, int byte) { return _mm_and_si128(a, _mm_set1_epi8((char)byte)); }
INLINE words words_or_and(words a, words b, int byte) { return _mm_or_si128(a, words_and(b, byte)); }

INLINE words words_shift(words a, const int n)
{
    return n > 0 ? _mm_srli_epi16(a, n) : n < 0 ? _mm_slli_epi16(a, -n) : a;
}

INLINE words words_look_up(const int8_t *codebook, int offset, words a)
{
    return _mm_shuffle_epi8(_mm_add_epi8(_mm_loadu_si128((const __m128i *)codebook), _mm_set1_epi8((char)offset)), a);
}

INLINE words words_flip(words a) { return _mm_xor_si128(a, _mm_set1_epi8((char)0x80)); }
INLINE words words_abs(words a) { return _mm_abs_epi8(a); }
INLINE words words_sign(words a, words sign) { return _mm_sign_epi8(a, sign); }
INLINE ints pairs_of(words a, words b) { return _mm_maddubs_epi16(a, b); }
INLINE ints pairs_add(ints a, ints b) { return _mm_add_epi16(a, b); }
INLINE ints ints_add_pairs(ints a, ints b) { return _mm_add_epi32(a, _mm_madd_epi16(b, _mm_set1_epi16(1))); }

INLINE ints ints_set1(int32_t i) { return _mm_set1_epi32(i); }
INLINE floats floats_set1(float f) { return _mm_set1_ps(f); }
INLINE floats floats_mul(floats a, floats b) { return _mm_mul_ps(a, b); }
INLINE floats floats_fma(floats a, floats b, floats c) { return _mm_add_ps(_mm_mul_ps(a, b), c); }
INLINE floats floats_of_ints(ints i) { return _mm_cvtepi32_ps(i); }
INLINE floats floats_of_f16(const uint16_t *p) { return load_f16_4(p); }
INLINE floats floats_load(const float *p) { return _mm_loadu_ps(p); }
INLINE void floats_store(float *p, floats f) { _mm_storeu_ps(p, f); }
INLINE floats floats_of_s8(const uint8_t *p) { return load_i8_4((const int8_t *)p); }

INLINE floats floats_of_u8(const uint8_t *p, const int shift, const int mask)
{
    return _mm_cvtepi32_ps(_mm_and_si128(_mm_srli_epi32(_mm_cvtepu8_epi32(load_4(p)), shift), _mm_set1_epi32(mask)));
}

/* As dequant_mxfp4_scale(): from an exponent of 2 on it is a normal number, below half of that with a bit of its own. */
INLINE floats floats_of_e8m0(const uint8_t *p)
{
    const __m128i e = _mm_cvtepu8_epi32(load_4(p)), one = _mm_set1_epi32(1);
    const __m128i normal = _mm_slli_epi32(_mm_sub_epi32(e, one), 23),
                  tiny = _mm_add_epi32(_mm_set1_epi32(0x00200000), _mm_slli_epi32(_mm_and_si128(e, one), 21));

    return _mm_castsi128_ps(_mm_blendv_epi8(normal, tiny, _mm_cmpgt_epi32(_mm_set1_epi32(2), e)));
}

#include "gen/cpu/maddubs.h"

KERNELS_TABLE(sse41, MUL_ROW, NULL);
