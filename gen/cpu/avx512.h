/* avx512.h - lanes and products of AVX-512 with VNNI, for the tables that are built on
 * them: vnni.c and amx.c. vpdpbusd multiplies unsigned weights by signed
 * activations, four columns of sixteen rows at a time, and never saturates. A tile has up to
 * 8 rows.
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

/* ---- products with quantised weights --------------------------------- */

typedef __m512i words;
typedef __m512i ints;
typedef __m512 floats;
#define LANES 16
#define EACH_PART UNROLL
#define SIGNED_BYTES 0
#define TILE 8
#define FEW_TILE_ROWS 8
#define ONE_ROW_GROUPS 4
#define PANEL_ROWS 33

INLINE words words_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
INLINE void words_store(uint8_t *p, words w) { _mm512_storeu_si512(p, w); }
INLINE words words_and(words a, int byte) { return _mm512_and_si512(a, _mm512_set1_epi8((char)byte)); }

INLINE words words_or_and(words a, words b, int byte)
{
    return _mm512_ternarylogic_epi64(a, b, _mm512_set1_epi8((char)byte), 0xf8);
}

INLINE words words_shift(words a, const int n)
{
    return n > 0 ? _mm512_srli_epi16(a, n) : n < 0 ? _mm512_slli_epi16(a, -n) : a;
}

INLINE words words_look_up(const int8_t *codebook, int offset, words a)
{
    const __m128i table = _mm_add_epi8(_mm_loadu_si128((const __m128i *)codebook), _mm_set1_epi8((char)offset));

    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), a);
}

INLINE ints ints_set1(int32_t i) { return _mm512_set1_epi32(i); }
INLINE floats floats_set1(float f) { return _mm512_set1_ps(f); }
INLINE floats floats_mul(floats a, floats b) { return _mm512_mul_ps(a, b); }
INLINE floats floats_fma(floats a, floats b, floats c) { return _mm512_fmadd_ps(a, b, c); }
INLINE floats floats_of_ints(ints i) { return _mm512_cvtepi32_ps(i); }
INLINE floats floats_of_f16(const uint16_t *p) { return v16_load_f16(p); }
INLINE floats floats_of_s8(const uint8_t *p) { return v16_load_i8((const int8_t *)p); }
INLINE floats floats_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void floats_store(float *p, floats f) { _mm512_storeu_ps(p, f); }
INLINE ints ints_of_u8(const uint8_t *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); }

INLINE floats floats_of_u8(const uint8_t *p, const int shift, const int mask)
{
    return _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(ints_of_u8(p), shift), _mm512_set1_epi32(mask)));
}

/* As dequant_mxfp4_scale(). */
INLINE floats floats_of_e8m0(const uint8_t *p)
{
    const ints e = ints_of_u8(p), normal = _mm512_slli_epi32(_mm512_sub_epi32(e, ints_set1(1)), 23);
    const __mmask16 tiny = _mm512_cmplt_epi32_mask(e, ints_set1(2));

    return _mm512_castsi512_ps(_mm512_mask_sllv_epi32(normal, tiny, ints_set1(0x00200000), e));
}

#include "gen/cpu/quants.h"

typedef int32_t four_bytes __attribute__((may_alias, aligned(1)));

/* Below 4 rows a second sum hides the latency of vpdpbusd: integers, so nothing depends on it. In words of its own, because the
 * compiler makes two instructions of it, the load apart. */
INLINE void dot_words(const enum mat_type type, struct block_words from, const int half, const int lane, const int8_t (*x)[B],
                      const int rows, ints *dot)
{
    const int n_words = pack_forms[type].halves ? 4 : 8;
    ints second[TILE];

    UNROLL for (int t = 0; t < rows; t++)
        second[t] = _mm512_setzero_si512();
    UNROLL for (int n = 0; n < n_words; n++) {
        const int j = word_at(type, half, n);
        const words w = word_of(type, from, lane, j);

        UNROLL for (int t = 0; t < rows; t++) {
            ints *to = rows < 4 && n % 2 ? &second[t] : &dot[t];

            __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(*to) : "v"(w), "m"(*(const four_bytes *)(x[t] + j * 4)));
        }
    }
    if (rows < 4)
        UNROLL for (int t = 0; t < rows; t++)
            dot[t] = _mm512_add_epi32(dot[t], second[t]);
}

#endif
