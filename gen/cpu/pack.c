#include "gen/cpu/pack.h"

#include "gen/cpu/dequant.h"
#include "gen/cpu/half.h"
#include "loaders/gguf.h"

#include <string.h>

enum { L = KERNEL_LANES, B = KERNEL_BLOCK, SUPER = DEQUANT_MAX / B };

/* One type of the file. put() packs a block of the file, which is block b of the group and those behind it. */
struct type_row {
    uint32_t ggml_type;
    void (*put)(uint8_t *group, uint32_t b, uint32_t lane, const uint8_t *block);
};

PACK_INLINE void put_words(uint8_t *to, uint32_t lane, const uint8_t *from, int n_words, uint32_t flip)
{
    for (int j = 0; j < n_words; j++) {
        uint32_t word;

        memcpy(&word, from + j * 4, 4);
        word ^= flip;
        memcpy(to + j * 64 + lane * 4, &word, 4);
    }
}

/* Bits z, z + 4 … z + 28 of a word as byte z. */
static uint32_t bits_to_bytes(uint32_t bits)
{
    uint32_t bytes = 0;

    for (int z = 0; z < 4; z++) {
        uint32_t x = bits >> z & 0x11111111;

        x = (x | x >> 3) & 0x03030303;
        x = (x | x >> 6) & 0x000f000f;
        bytes |= ((x | x >> 12) & 0xff) << 8 * z;
    }
    return bytes;
}

/* Blocks of 32: fp16 numbers, a word of high bits or none, and codes in the order of the words. */
PACK_INLINE void put_32(enum mat_type type, uint8_t *group, uint32_t b, uint32_t lane, const uint8_t *block)
{
    const struct pack_form *f = &pack_forms[type];
    uint16_t *d = (uint16_t *)pack_d(type, group, b) + lane;

    for (int i = 0; i < 1 + f->min; i++, block += 2)
        memcpy(d + i * L, block, 2);
    if (f->high) {
        uint32_t bits;

        memcpy(&bits, block, 4);
        bits = bits_to_bytes(bits);
        memcpy((uint8_t *)pack_high(type, group, b) + lane * 4, &bits, 4);
        block += 4;
    }
    put_words((uint8_t *)pack_codes(type, group, b), lane, block, f->bits, f->bits == 8 ? 0x80808080 : 0);
}

PACK_INLINE void put_mxfp4(enum mat_type type, uint8_t *group, uint32_t b, uint32_t lane, const uint8_t *block)
{
    ((uint8_t *)pack_fine(type, group, b))[lane] = block[0];
    put_words((uint8_t *)pack_codes(type, group, b), lane, block + 1, 4, 0);
}

PACK_INLINE void put_iq4_xs(enum mat_type type, uint8_t *group, uint32_t b, uint32_t lane, const uint8_t *block)
{
    uint16_t high;

    memcpy((uint16_t *)pack_d(type, group, b) + lane, block, 2);
    memcpy(&high, block + 2, 2);
    for (uint32_t j = 0; j < SUPER; j++) {
        const int scale = ((block[4 + j / 2] >> j % 2 * 4 & 15) | (high >> 2 * j & 3) << 4) - 32;

        ((uint8_t *)pack_fine(type, group, b + j))[lane] = (uint8_t)scale;
        put_words((uint8_t *)pack_codes(type, group, b + j), lane, block + 8 + j * B / 2, 4, 0);
    }
}

/* ---- blocks of 256, taken apart and put together ---- */

struct super {
    uint8_t codes[SUPER * B];
    uint8_t fine[SUPER][2];     /* of a block: as lane's bytes in the two rows of `fine` */
    uint8_t d[2], m[2];         /* fp16 */
};

/* Two bits in each byte of 64: 32 bytes hold 128 elements. */
static void add_two_bits(const uint8_t *q, int shift, uint8_t *codes)
{
    for (int part = 0; part < 8; part++)
        for (int i = 0; i < B; i++)
            codes[part * B + i] |= (uint8_t)((q[part / 4 * B + i] >> part % 4 * 2 & 3) << shift);
}

static void add_one_bit(const uint8_t *q, int shift, uint8_t *codes)
{
    for (int part = 0; part < 8; part++)
        for (int i = 0; i < B; i++)
            codes[part * B + i] |= (uint8_t)((q[i] >> part & 1) << shift);
}

/* n bytes hold 2n elements, the second n of them in high nibbles. */
static void set_nibbles(const uint8_t *q, int n, uint8_t *codes)
{
    for (int part = 0; part < SUPER * B; part += 2 * n, q += n)
        for (int i = 0; i < n; i++) {
            codes[part + i] = q[i] & 15;
            codes[part + n + i] = q[i] >> 4;
        }
}

static void take_q2_k(const uint8_t *block, struct super *s)
{
    memcpy(s->fine, block, sizeof s->fine);
    add_two_bits(block + 16, 0, s->codes);
    memcpy(s->d, block + 80, 2);
    memcpy(s->m, block + 82, 2);
}

static void take_q3_k(const uint8_t *block, struct super *s)
{
    add_one_bit(block, 2, s->codes);
    add_two_bits(block + 32, 0, s->codes);
    for (int j = 0; j < 2 * SUPER; j++)
        s->fine[j / 2][j % 2] = (uint8_t)dequant_q3_k_scale(block + 96, j);
    memcpy(s->d, block + 108, 2);
}

static void take_q45_k(const uint8_t *block, const uint8_t *q, struct super *s)
{
    memcpy(s->d, block, 2);
    memcpy(s->m, block + 2, 2);
    for (int j = 0; j < SUPER; j++) {
        int scale, min;

        dequant_six_bits(block + 4, j, &scale, &min);
        s->fine[j][0] = (uint8_t)scale;
        s->fine[j][1] = (uint8_t)min;
    }
    set_nibbles(q, B, s->codes);
}

static void take_q4_k(const uint8_t *block, struct super *s) { take_q45_k(block, block + 16, s); }

static void take_q5_k(const uint8_t *block, struct super *s)
{
    take_q45_k(block, block + 48, s);
    add_one_bit(block + 16, 4, s->codes);
}

static void take_q6_k(const uint8_t *block, struct super *s)
{
    set_nibbles(block, 2 * B, s->codes);
    add_two_bits(block + 128, 4, s->codes);
    memcpy(s->fine, block + 192, sizeof s->fine);
    memcpy(s->d, block + 208, 2);
}

/* Fields of `mask` in word 0 to n - 1, each word's `step` bits above the one before. */
PACK_INLINE uint32_t gather(const uint32_t *words, int n, int shift, uint32_t mask, int step)
{
    uint32_t all = 0;

    for (int j = 0; j < n; j++)
        all |= (words[j] >> shift & mask) << j * step;
    return all;
}

PACK_INLINE void put_codes(enum mat_type type, uint8_t *group, uint32_t b, uint32_t lane, const uint8_t *codes)
{
    const struct pack_form *f = &pack_forms[type];
    uint8_t *at = (uint8_t *)pack_codes(type, group, b) + lane * 4, *high = (uint8_t *)pack_high(type, group, b) + lane * 4;
    uint32_t words[B / 4], out;

    memcpy(words, codes, B);
    for (int j = 0; j < f->bits; j++) {
        out = f->bits == 4 ? (words[j] & 0x0f0f0f0f) | (words[j + 4] & 0x0f0f0f0f) << 4
                           : gather(words + 4 * j, 4, 0, 0x03030303, 2);
        memcpy(at + j * 64, &out, 4);
    }
    for (int j = 0; j < f->high; j++) {
        out = f->high == 1 ? gather(words, 8, f->bits, 0x01010101, 1)
                           : gather(words + 4 * j, 4, f->bits, 0x03030303, 2);
        memcpy(high + j * 64, &out, 4);
    }
}

PACK_INLINE void put_super(enum mat_type type, uint8_t *group, uint32_t b, uint32_t lane, const struct super *s)
{
    const struct pack_form *f = &pack_forms[type];
    uint8_t *d = (uint8_t *)((uint16_t *)pack_d(type, group, b) + lane);

    memcpy(d, s->d, 2);
    if (f->min) {
        d[2 * L] = s->m[0];
        d[2 * L + 1] = s->m[1] ^ 0x80;
    }
    for (uint32_t j = 0; j < SUPER; j++) {
        uint8_t *fine = (uint8_t *)pack_fine(type, group, b + j) + lane;

        fine[0] = s->fine[j][0];
        fine[L] = s->fine[j][1];
        put_codes(type, group, b + j, lane, s->codes + j * B);
    }
}

/* A function for each type, to which the form is constant. */
#define DEFINE_PUT(name, put_as)                                                                   \
    static void put_##name(uint8_t *group, uint32_t b, uint32_t lane, const uint8_t *block)        \
    {                                                                                              \
        put_as(MAT_##name, group, b, lane, block);                                                 \
    }
#define DEFINE_PUT_K(name, take)                                                                   \
    static void put_##name(uint8_t *group, uint32_t b, uint32_t lane, const uint8_t *block)        \
    {                                                                                              \
        struct super s = { 0 };                                                                    \
                                                                                                   \
        take(block, &s);                                                                           \
        put_super(MAT_##name, group, b, lane, &s);                                                 \
    }
DEFINE_PUT(IQ4_NL, put_32)
DEFINE_PUT(IQ4_XS, put_iq4_xs)
DEFINE_PUT(MXFP4, put_mxfp4)
DEFINE_PUT_K(Q2_K, take_q2_k)
DEFINE_PUT_K(Q3_K, take_q3_k)
DEFINE_PUT(Q4_0, put_32)
DEFINE_PUT(Q4_1, put_32)
DEFINE_PUT_K(Q4_K, take_q4_k)
DEFINE_PUT(Q5_0, put_32)
DEFINE_PUT(Q5_1, put_32)
DEFINE_PUT_K(Q5_K, take_q5_k)
DEFINE_PUT_K(Q6_K, take_q6_k)
DEFINE_PUT(Q8_0, put_32)

/* ---- floats ---- */

static void put_2(uint8_t *group, uint32_t b, uint32_t lane, const uint8_t *block)
{
    for (int i = 0; i < B; i++)
        memcpy(group + ((size_t)(b * B + i) * L + lane) * 2, block + i * 2, 2);
}

static void put_4(uint8_t *group, uint32_t b, uint32_t lane, const uint8_t *block)
{
    for (int i = 0; i < B; i++)
        memcpy(group + ((size_t)(b * B + i) * L + lane) * 4, block + i * 4, 4);
}

/* ---- all of them ---- */

static const struct type_row types[MAT_TYPES] = {
    [MAT_BF16] = { GGML_BF16, put_2 },
    [MAT_F16] = { GGML_F16, put_2 },
    [MAT_F32] = { GGML_F32, put_4 },
#define TYPE_ROW(name) [MAT_##name] = { GGML_##name, put_##name },
    MAT_QUANTISED(TYPE_ROW)
#undef TYPE_ROW
};

bool mat_type_of(uint32_t ggml_type, enum mat_type *ret)
{
    for (int i = 0; i < MAT_TYPES; i++)
        if (types[i].ggml_type == ggml_type) {
            *ret = (enum mat_type)i;
            return true;
        }
    return false;
}

const char *mat_type_name(enum mat_type type) { return ggml_type_facts(types[type].ggml_type)->name; }

bool mat_type_quantised(enum mat_type type) { return pack_forms[type].bits != 0; }

bool mat_init(struct mat *m, enum mat_type type, uint32_t rows, uint32_t cols)
{
    const bool quantised = mat_type_quantised(type);
    const uint32_t unit = quantised ? pack_forms[type].unit : 1;
    const uint64_t n_blocks = ((uint64_t)cols + B - 1) / B,
                   unit_bytes = quantised ? pack_unit_bytes(type) : B * L * ggml_type_facts(types[type].ggml_type)->block_bytes;
    size_t bytes;

    if (rows == 0 || cols == 0 || n_blocks * B > UINT32_MAX)
        return false;
    *m = (struct mat){
        .type = type,
        .rows = rows,
        .cols = cols,
        .k = (uint32_t)(n_blocks * B),
        .n_groups = (uint32_t)(((uint64_t)rows + L - 1) / L),
        .group_bytes = (size_t)((n_blocks + unit - 1) / unit * unit_bytes + 63) & ~(size_t)63,
    };
    return !__builtin_mul_overflow(m->group_bytes, (size_t)m->n_groups, &bytes);
}

size_t mat_bytes(const struct mat *m) { return m->group_bytes * m->n_groups; }

/* The last block of a row whose length is no multiple of 32: only types
 * without scales have such rows. */
static void put_part(const struct mat *m, uint8_t *group, uint32_t lane, const uint8_t *at)
{
    const uint32_t whole = m->cols / B, rest = m->cols % B;
    uint8_t block[4 * B] = { 0 };

    memcpy(block, at, rest * ggml_type_facts(types[m->type].ggml_type)->block_bytes);
    types[m->type].put(group, whole, lane, block);
}

bool mat_pack(const struct mat *m, const void *file_rows, uint32_t from, uint32_t to)
{
    const struct type_row *t = &types[m->type];
    const struct ggml_type_facts *f = ggml_type_facts(t->ggml_type);
    const uint32_t step = f->block > B ? f->block / B : 1, rest = m->cols % B, whole = m->cols / B;
    const size_t step_bytes = (size_t)step * B / f->block * f->block_bytes;
    const size_t row_bytes = (size_t)m->cols / f->block * f->block_bytes;
    bool finite = true;

    for (uint32_t g = from; g < to; g++) {
        const uint8_t *rows = (const uint8_t *)file_rows + (size_t)g * L * row_bytes;
        const uint32_t n = m->rows - g * L < L ? m->rows - g * L : L;
        uint8_t *group = m->w + g * m->group_bytes;

        for (uint32_t lane = 0; f->block > 1 && lane < n; lane++)
            finite &= dequant_finite(t->ggml_type, rows + lane * row_bytes, m->cols / f->block);
        for (uint32_t b = 0; b < whole; b += step)
            for (uint32_t lane = 0; lane < n; lane++)
                t->put(group, b, lane, rows + lane * row_bytes + b / step * step_bytes);
        for (uint32_t lane = 0; rest && lane < n; lane++)
            put_part(m, group, lane, rows + lane * row_bytes + whole * step_bytes);
    }
    return finite;
}

/* Half a block. Steps are rounded as those of dequant() are. */
static void get_half(enum mat_type type, const uint8_t *group, uint32_t b, uint32_t half, uint32_t lane, float *out)
{
    float d, m;

    pack_scales(type, group, b, half, lane, &d, &m);
    for (uint32_t i = 0; i < B / 2; i++) {
        out[i] = d * (float)pack_integer(type, group, b, lane, half * (B / 2) + i);
        if (pack_forms[type].min)
            out[i] += m;
    }
}

void mat_row(const struct mat *m, uint32_t row, float *out)
{
    const uint8_t *group = m->w + row / L * m->group_bytes;
    const uint32_t lane = row % L;

    for (uint32_t i = 0; i < m->k; i++)
        if (m->type == MAT_F32)
            out[i] = ((const float *)group)[(size_t)i * L + lane];
        else if (m->type == MAT_F16)
            out[i] = f16_to_f32(((const uint16_t *)group)[(size_t)i * L + lane]);
        else if (m->type == MAT_BF16)
            out[i] = bf16_to_f32(((const uint16_t *)group)[(size_t)i * L + lane]);
        else if (i % B == 0)
            for (uint32_t half = 0; half < 2; half++)
                get_half(m->type, group, i / B, half, lane, out + i + half * (B / 2));
}

void mat_floats(enum mat_type type, const void *file_row, size_t n, float *out)
{
    const uint8_t *at = file_row;

    for (size_t i = 0; i < n; i++) {
        uint16_t half;

        if (type == MAT_F32) {
            memcpy(&out[i], at + i * 4, 4);
            continue;
        }
        memcpy(&half, at + i * 2, 2);
        out[i] = type == MAT_F16 ? f16_to_f32(half) : bf16_to_f32(half);
    }
}
