#include "gen/cpu/dequant.h"

#include "gen/cpu/half.h"
#include "loaders/gguf.h"

#include <string.h>

enum { B = 32 };                /* elements of the small blocks */

const int8_t dequant_iq4_nl[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };
const int8_t dequant_mxfp4[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };

static uint16_t half_at(const uint8_t *at)
{
    uint16_t h;

    memcpy(&h, at, 2);
    return h;
}

static float scale_at(const uint8_t *at) { return f16_to_f32(half_at(at)); }

/* ---- blocks of 32: elements 0 to 15 in low nibbles, 16 to 31 in high ones ---- */

static int nibble(const uint8_t *q, int i) { return i < B / 2 ? q[i] & 15 : q[i - B / 2] >> 4; }

/* With bit i of a word as the fifth. */
static int five_bits(const uint8_t *high, const uint8_t *q, int i)
{
    return nibble(q, i) | (high[i / 8] >> i % 8 & 1) << 4;
}

static void q4_0(const uint8_t *b, float *out)
{
    const float d = scale_at(b);

    for (int i = 0; i < B; i++)
        out[i] = d * (float)(nibble(b + 2, i) - 8);
}

static void q4_1(const uint8_t *b, float *out)
{
    const float d = scale_at(b), m = scale_at(b + 2);

    for (int i = 0; i < B; i++)
        out[i] = d * (float)nibble(b + 4, i) + m;
}

static void q5_0(const uint8_t *b, float *out)
{
    const float d = scale_at(b);

    for (int i = 0; i < B; i++)
        out[i] = d * (float)(five_bits(b + 2, b + 6, i) - 16);
}

static void q5_1(const uint8_t *b, float *out)
{
    const float d = scale_at(b), m = scale_at(b + 2);

    for (int i = 0; i < B; i++)
        out[i] = d * (float)five_bits(b + 4, b + 8, i) + m;
}

static void q8_0(const uint8_t *b, float *out)
{
    const float d = scale_at(b);

    for (int i = 0; i < B; i++)
        out[i] = d * (float)(int8_t)b[2 + i];
}

static void iq4_nl(const uint8_t *b, float *out)
{
    const float d = scale_at(b);

    for (int i = 0; i < B; i++)
        out[i] = d * (float)dequant_iq4_nl[nibble(b + 2, i)];
}

/* Half of 2^(e - 127), for the integers are doubled; subnormal below e = 2. */
float dequant_mxfp4_scale(uint8_t e)
{
    return float_of_bits(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

static void mxfp4(const uint8_t *b, float *out)
{
    const float d = dequant_mxfp4_scale(b[0]);

    for (int i = 0; i < B; i++)
        out[i] = d * (float)dequant_mxfp4[nibble(b + 1, i)];
}

/* ---- blocks of 256 ---------------------------------------------------- */

/* Two bits of element i: 32 bytes hold 128 elements, 32 of them in each pair of bits. */
static int two_bits(const uint8_t *q, int i) { return q[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3; }

/* Four bits: 32 bytes hold 64 elements, the second 32 in high nibbles. */
static int four_bits(const uint8_t *q, int i) { return q[i / 64 * 32 + i % 32] >> i % 64 / 32 * 4 & 15; }

/* One bit: 32 bytes hold all, 32 elements in each bit. */
static int one_bit(const uint8_t *q, int i) { return q[i % 32] >> i / 32 & 1; }

/* [16] scales and minima of 4 bits, [64] quants, d, dmin */
static void q2_k(const uint8_t *b, float *out)
{
    const float d = scale_at(b + 80), dmin = scale_at(b + 82);

    for (int i = 0; i < DEQUANT_MAX; i++) {
        const float scale = d * (float)(b[i / 16] & 15), min = dmin * (float)(b[i / 16] >> 4);
        const float value = scale * (float)two_bits(b + 16, i);

        out[i] = value - min;
    }
}

/* Scale j of 16: four low bits in [0, 8), two high bits in [8, 12). */
int dequant_q3_k_scale(const uint8_t *s, int j)
{
    return ((s[j % 8] >> j / 8 * 4 & 15) | (s[8 + j % 4] >> j / 4 * 2 & 3) << 4) - 32;
}

/* [32] high bits, inverted, [64] quants, [12] scales, d */
static void q3_k(const uint8_t *b, float *out)
{
    const float d = scale_at(b + 108);

    for (int i = 0; i < DEQUANT_MAX; i++) {
        const float scale = d * (float)dequant_q3_k_scale(b + 96, i / 16);

        out[i] = scale * (float)(two_bits(b + 32, i) - (one_bit(b, i) ? 0 : 4));
    }
}

/* Scale and minimum j of 8 for Q4_K and Q5_K, six bits each in 12 bytes. */
void dequant_six_bits(const uint8_t *s, int j, int *ret_scale, int *ret_min)
{
    if (j < 4) {
        *ret_scale = s[j] & 63;
        *ret_min = s[j + 4] & 63;
    } else {
        *ret_scale = (s[j + 4] & 15) | (s[j - 4] >> 2 & 0x30);
        *ret_min = s[j + 4] >> 4 | (s[j] >> 2 & 0x30);
    }
}

/* d, dmin, [12] scales and minima, [32] high bits or none, [128] quants */
static void q45_k(const uint8_t *b, const uint8_t *high, const uint8_t *q, float *out)
{
    const float d = scale_at(b), dmin = scale_at(b + 2);

    for (int j = 0; j < DEQUANT_MAX / B; j++) {
        int s, m;

        dequant_six_bits(b + 4, j, &s, &m);
        const float scale = d * (float)s, min = dmin * (float)m;

        for (int i = j * B; i < (j + 1) * B; i++) {
            const float value = scale * (float)(four_bits(q, i) | (high ? one_bit(high, i) << 4 : 0));

            out[i] = value - min;
        }
    }
}

static void q4_k(const uint8_t *b, float *out) { q45_k(b, NULL, b + 16, out); }
static void q5_k(const uint8_t *b, float *out) { q45_k(b, b + 16, b + 48, out); }

/* [128] low bits, [64] high bits, [16] scales, d. 64 bytes of low bits hold 128
 * elements, the second 64 in high nibbles. */
static void q6_k(const uint8_t *b, float *out)
{
    const float d = scale_at(b + 208);

    for (int i = 0; i < DEQUANT_MAX; i++) {
        const int low = b[i / 128 * 64 + i % 64] >> i % 128 / 64 * 4 & 15, high = two_bits(b + 128, i);
        const float scale = d * (float)(int8_t)b[192 + i / 16];

        out[i] = scale * (float)((low | high << 4) - 32);
    }
}

/* d, [8] of two high bits of scales, [4] of low ones, [128] codes */
static void iq4_xs(const uint8_t *b, float *out)
{
    const float d = scale_at(b);
    const uint16_t high = half_at(b + 2);

    for (int j = 0; j < DEQUANT_MAX / B; j++) {
        const float scale = d * (float)(((b[4 + j / 2] >> j % 2 * 4 & 15) | (high >> 2 * j & 3) << 4) - 32);

        for (int i = 0; i < B; i++)
            out[j * B + i] = scale * (float)dequant_iq4_nl[nibble(b + 8 + j * B / 2, i)];
    }
}

/* ---- all of them ------------------------------------------------------ */

static const struct type_row {
    void (*block)(const uint8_t *b, float *out);
    uint8_t n_scales, scales_at;    /* fp16, behind one another */
} types[] = {
    [GGML_Q4_0] = { q4_0, 1, 0 },     [GGML_Q4_1] = { q4_1, 2, 0 },   [GGML_Q5_0] = { q5_0, 1, 0 },
    [GGML_Q5_1] = { q5_1, 2, 0 },     [GGML_Q8_0] = { q8_0, 1, 0 },   [GGML_Q2_K] = { q2_k, 2, 80 },
    [GGML_Q3_K] = { q3_k, 1, 108 },   [GGML_Q4_K] = { q4_k, 2, 0 },   [GGML_Q5_K] = { q5_k, 2, 0 },
    [GGML_Q6_K] = { q6_k, 1, 208 },   [GGML_IQ4_NL] = { iq4_nl, 1, 0 }, [GGML_IQ4_XS] = { iq4_xs, 1, 0 },
    [GGML_MXFP4] = { mxfp4, 0, 0 },
};

bool dequant_knows(uint32_t ggml_type)
{
    return ggml_type < sizeof types / sizeof types[0] && types[ggml_type].block;
}

void dequant(uint32_t ggml_type, const void *blocks, size_t n, float *out)
{
    const struct ggml_type_facts *f = ggml_type_facts(ggml_type);
    const uint8_t *at = blocks;

    for (size_t i = 0; i < n; i += f->block, at += f->block_bytes)
        types[ggml_type].block(at, out + i);
}

bool dequant_finite(uint32_t ggml_type, const void *blocks, size_t n_blocks)
{
    enum { MXFP4_MAX = 252 };       /* 12 * 2^(252 - 128) is the last that a float holds; 255 is the format's NaN */
    const struct type_row *t = &types[ggml_type];
    const size_t block_bytes = ggml_type_facts(ggml_type)->block_bytes;
    const uint8_t *at = (const uint8_t *)blocks + t->scales_at;
    bool finite = true;

    for (size_t i = 0; i < n_blocks; i++, at += block_bytes) {
        if (ggml_type == GGML_MXFP4)
            finite &= at[0] <= MXFP4_MAX;
        for (int j = 0; j < t->n_scales; j++)
            finite &= (half_at(at + 2 * j) & 0x7c00) != 0x7c00;
    }
    return finite;
}
