/* half.h - fp16 and bf16 in plain C: round to nearest even, as F16C does. */
#ifndef GEN_CPU_HALF_H
#define GEN_CPU_HALF_H

#include <stdint.h>
#include <string.h>

static inline float float_of_bits(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t bits_of_float(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;

    if (rest >= 0x7c00)                             /* infinity, or a NaN made quiet */
        return float_of_bits(sign | 0x7f800000 | (rest & 0x3ff ? 0x400000 : 0) | (rest & 0x3ff) << 13);
    if (rest < 0x0400)                              /* subnormal: rest * 2^-24, exact */
        return float_of_bits(sign | bits_of_float((float)rest * 0x1p-24f));
    return float_of_bits(sign | ((rest << 13) + (112u << 23)));
}

static inline uint16_t f16_of_f32(float f)
{
    const uint32_t bits = bits_of_float(f), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;

    if (rest > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (rest >> 13 & 0x3ff));
    if (rest >= 0x47800000)                         /* 65536 and more */
        return (uint16_t)(sign | 0x7c00);
    if (rest < 0x38800000)                          /* below 2^-14: the addition rounds */
        return (uint16_t)(sign | (bits_of_float(float_of_bits(rest) + 0.5f) - 0x3f000000));
    return (uint16_t)(sign | ((rest - (112u << 23) + 0xfff + (rest >> 13 & 1)) >> 13));
}

static inline float bf16_to_f32(uint16_t h) { return float_of_bits((uint32_t)h << 16); }

/* A NaN is made quiet, so that its rounding does not reach the exponent. */
static inline uint16_t bf16_of_f32(float f)
{
    const uint32_t bits = bits_of_float(f);

    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* The scale that KV_Q8 keeps for 16 numbers of which the greatest is `max`, and what they are multiplied by. Rounded
 * to bf16 it is off by a 512th at most: the greatest still rounds to 127. A NaN gives the one NaN; by is 0 where all become 0. */
static inline uint16_t kv_q8_scale(float max, float *ret_by)
{
    const uint16_t scale = max == max ? bf16_of_f32(max / 127.0f) : 0x7fc0;

    *ret_by = max > 1e-34f ? 1.0f / bf16_to_f32(scale) : 0;
    return scale;
}

#endif
