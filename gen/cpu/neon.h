/* neon.h - Advanced SIMD of ARMv8, for its three tables: a group is four registers of four rows. What they do not have in
 * common is how a word of weights meets activations, dot_words() of quants.h: neon.c, neon_dotprod.c, neon_i8mm.c. Each of these
 * gives the same exact integers, and float steps are the same, so the three compute the same bits.
 *
 * Products of bytes are of signed ones here: codes above 127 lose their offset of 128 when they are loaded.
 *
 * Source   Arm Architecture Reference Manual for A-profile (DDI 0487); Arm C Language Extensions, ACLE Q2 2022
 */
#include "gen/cpu/pack.h"

#include <arm_neon.h>

typedef struct {
    float32x4_t a, b, c, d;
} v16;
#define V16_CHAINS 2
#define V16_TILE 3
#define V16_HEADS 2
#define V16_DIMS 2

#define EACH_1(f, x) ((v16){ f((x).a), f((x).b), f((x).c), f((x).d) })
#define EACH_2(f, x, y) ((v16){ f((x).a, (y).a), f((x).b, (y).b), f((x).c, (y).c), f((x).d, (y).d) })
#define EACH_3(f, x, y, z)                                                                         \
    ((v16){ f((x).a, (y).a, (z).a), f((x).b, (y).b, (z).b), f((x).c, (y).c, (z).c), f((x).d, (y).d, (z).d) })
#define EACH_AT(f, p) ((v16){ f(p), f((p) + 4), f((p) + 8), f((p) + 12) })

static inline v16 v16_load(const float *p) { return EACH_AT(vld1q_f32, p); }
static inline v16 v16_add(v16 x, v16 y) { return EACH_2(vaddq_f32, x, y); }
static inline v16 v16_sub(v16 x, v16 y) { return EACH_2(vsubq_f32, x, y); }
static inline v16 v16_mul(v16 x, v16 y) { return EACH_2(vmulq_f32, x, y); }
static inline v16 v16_div(v16 x, v16 y) { return EACH_2(vdivq_f32, x, y); }
static inline v16 v16_fma(v16 x, v16 y, v16 z) { return EACH_3(vfmaq_f32, z, x, y); }
static inline v16 v16_fnma(v16 x, v16 y, v16 z) { return EACH_3(vfmsq_f32, z, x, y); }
/* A NaN comes through both. */
static inline v16 v16_min(v16 x, v16 y) { return EACH_2(vminq_f32, x, y); }
static inline v16 v16_max(v16 x, v16 y) { return EACH_2(vmaxq_f32, x, y); }
static inline v16 v16_abs(v16 x) { return EACH_1(vabsq_f32, x); }
static inline v16 v16_round(v16 x) { return EACH_1(vrndnq_f32, x); }
static inline v16 v16_swap_pairs(v16 x) { return EACH_1(vrev64q_f32, x); }

static inline v16 v16_set1(float f)
{
    const float32x4_t x = vdupq_n_f32(f);

    return (v16){ x, x, x, x };
}

static inline void v16_store(float *p, v16 x)
{
    vst1q_f32(p, x.a);
    vst1q_f32(p + 4, x.b);
    vst1q_f32(p + 8, x.c);
    vst1q_f32(p + 12, x.d);
}

/* x * 2^n for -126 <= n <= 127. */
static inline float32x4_t ldexp_4(float32x4_t x, float32x4_t n)
{
    return vmulq_f32(x, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23)));
}

static inline v16 v16_ldexp(v16 x, v16 n) { return EACH_2(ldexp_4, x, n); }

static inline float v16_reduce_add(v16 x) { return vaddvq_f32(vaddq_f32(vaddq_f32(x.a, x.b), vaddq_f32(x.c, x.d))); }
static inline float v16_reduce_max(v16 x) { return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.a, x.b), vmaxq_f32(x.c, x.d))); }

static inline float32x4_t zero_below_4(float32x4_t x, float32x4_t low, float32x4_t y)
{
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(y), vcltq_f32(x, low)));
}

static inline v16 v16_zero_below(v16 x, v16 low, v16 y) { return EACH_3(zero_below_4, x, low, y); }

static inline float32x4_t load_f16_4(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
static inline v16 v16_load_f16(const uint16_t *p) { return EACH_AT(load_f16_4, p); }

static inline uint16x8_t to_f16_8(float32x4_t x, float32x4_t y)
{
    return vcombine_u16(vreinterpret_u16_f16(vcvt_f16_f32(x)), vreinterpret_u16_f16(vcvt_f16_f32(y)));
}

static inline void v16_store_f16(uint16_t *p, v16 x)
{
    vst1q_u16(p, to_f16_8(x.a, x.b));
    vst1q_u16(p + 8, to_f16_8(x.c, x.d));
}

static inline float32x4_t load_bf16_4(const uint16_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
static inline v16 v16_load_bf16(const uint16_t *p) { return EACH_AT(load_bf16_4, p); }

static inline v16 v16_load_i8(const int8_t *p)
{
    const int8x16_t x = vld1q_s8(p);
    const int16x8_t low = vmovl_s8(vget_low_s8(x)), high = vmovl_high_s8(x);

    return (v16){ vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
                  vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_high_s16(high)) };
}

/* Rounds to int8, returns their sum. */
static inline int32_t v16_to_i8(v16 x, int8_t *out)
{
    const int32x4_t a = vcvtnq_s32_f32(x.a), b = vcvtnq_s32_f32(x.b), c = vcvtnq_s32_f32(x.c), d = vcvtnq_s32_f32(x.d);
    const int16x8_t low = vqmovn_high_s32(vqmovn_s32(a), b), high = vqmovn_high_s32(vqmovn_s32(c), d);

    vst1q_s8(out, vqmovn_high_s16(vqmovn_s16(low), high));
    return vaddvq_s32(vaddq_s32(vaddq_s32(a, b), vaddq_s32(c, d)));
}

#include "gen/cpu/lanes.h"

/* ---- products with quantised weights --------------------------------- */

typedef uint8x16_t words;
typedef int32x4_t ints;
typedef float32x4_t floats;
#define LANES 4
#define EACH_PART
#define SIGNED_BYTES 1
#define TILE 4
#define FEW_TILE_ROWS 2
#define ONE_ROW_GROUPS 4
#define PANEL_ROWS 3

INLINE words words_load(const uint8_t *p) { return vld1q_u8(p); }
INLINE void words_store(uint8_t *p, words w) { vst1q_u8(p, w); }
INLINE words words_and(words a, int byte) { return vandq_u8(a, vdupq_n_u8((uint8_t)byte)); }
INLINE words words_or_and(words a, words b, int byte) { return vorrq_u8(a, words_and(b, byte)); }
INLINE words words_shift(words a, const int n) { return n >= 0 ? a >> n : a << -n; }

INLINE words words_look_up(const int8_t *codebook, int offset, words a)
{
    return vqtbl1q_u8(vreinterpretq_u8_s8(vaddq_s8(vld1q_s8(codebook), vdupq_n_s8((int8_t)offset))), a);
}

INLINE ints ints_set1(int32_t i) { return vdupq_n_s32(i); }
INLINE floats floats_set1(float f) { return vdupq_n_f32(f); }
INLINE floats floats_mul(floats a, floats b) { return vmulq_f32(a, b); }
INLINE floats floats_fma(floats a, floats b, floats c) { return vfmaq_f32(c, a, b); }
INLINE floats floats_of_ints(ints i) { return vcvtq_f32_s32(i); }
INLINE floats floats_of_f16(const uint16_t *p) { return load_f16_4(p); }
INLINE floats floats_load(const float *p) { return vld1q_f32(p); }
INLINE void floats_store(float *p, floats f) { vst1q_f32(p, f); }

INLINE uint32x4_t widen_4(const uint8_t *p)
{
    uint32_t bytes;

    memcpy(&bytes, p, 4);
    return vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(bytes))));
}

INLINE floats floats_of_s8(const uint8_t *p)
{
    return vcvtq_f32_s32(vshrq_n_s32(vshlq_n_s32(vreinterpretq_s32_u32(widen_4(p)), 24), 24));
}

INLINE floats floats_of_u8(const uint8_t *p, const int shift, const int mask)
{
    return vcvtq_f32_u32(vandq_u32(widen_4(p) >> shift, vdupq_n_u32((uint32_t)mask)));
}

/* As dequant_mxfp4_scale(). */
INLINE floats floats_of_e8m0(const uint8_t *p)
{
    const uint32x4_t e = widen_4(p), normal = vshlq_n_u32(vsubq_u32(e, vdupq_n_u32(1)), 23),
                     tiny = vshlq_u32(vdupq_n_u32(0x00200000), vreinterpretq_s32_u32(e));

    return vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(e, vdupq_n_u32(2)), tiny, normal));
}

#include "gen/cpu/quants.h"

INLINE int8x16_t signed_word(const enum mat_type type, struct block_words from, const int lane, const int j)
{
    const words w = word_of(type, from, lane, j);

    return vreinterpretq_s8_u8(is_bytes(type) ? veorq_u8(w, vdupq_n_u8(0x80)) : w);
}
