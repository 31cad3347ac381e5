#include "gen/cpu/pack.h"

#include "gen/cpu/dequant.h"
#include "gen/cpu/half.h"
#include "loaders/gguf.h"

#include <math.h>
#include <string.h>

enum { L = KERNEL_LANES, B = KERNEL_BLOCK };

/* One type. Blocks of the file are file_bytes long; a packed unit holds `unit`
 * blocks in unit_bytes. put() packs one block of one row, get() reads it back. */
struct type_row {
    uint32_t ggml_type;
    bool quantised;
    uint32_t file_bytes, unit, unit_bytes;
    void (*put)(uint8_t *group, uint32_t b, uint32_t lane, const uint8_t *block);
    void (*get)(const uint8_t *group, uint32_t b, uint32_t lane, float *out);
};

static void put_words(uint8_t *to, uint32_t lane, const uint8_t *from, int n_words, uint32_t flip)
{
    for (int j = 0; j < n_words; j++) {
        uint32_t word;

        memcpy(&word, from + j * 4, 4);
        word ^= flip;
        memcpy(to + j * 64 + lane * 4, &word, 4);
    }
}

static void put_q4_0(uint8_t *group, uint32_t b, uint32_t lane, const uint8_t *block)
{
    memcpy((uint16_t *)pack_q4_0_scales(group, b) + lane, block, 2);
    put_words((uint8_t *)pack_q4_0_quants(group, b), lane, block + 2, 4, 0);
}

static void put_q4_1(uint8_t *group, uint32_t b, uint32_t lane, const uint8_t *block)
{
    uint16_t *d = (uint16_t *)pack_q4_1_scales(group, b);

    memcpy(d + lane, block, 2);
    memcpy(d + L + lane, block + 2, 2);
    put_words((uint8_t *)pack_q4_1_quants(group, b), lane, block + 4, 4, 0);
}

static void put_q8_0(uint8_t *group, uint32_t b, uint32_t lane, const uint8_t *block)
{
    memcpy((uint16_t *)pack_q8_0_scales(group, b) + lane, block, 2);
    put_words((uint8_t *)pack_q8_0_quants(group, b), lane, block + 2, 8, 0x80808080);
}

static void get_q4(const uint8_t *quants, uint32_t lane, float d, float m, float *out)
{
    for (int i = 0; i < B / 2; i++) {
        uint8_t w = quants[i / 4 * 64 + lane * 4 + i % 4];

        out[i] = d * (float)(w & 15) + m;
        out[i + B / 2] = d * (float)(w >> 4) + m;
    }
}

static void get_q4_0(const uint8_t *group, uint32_t b, uint32_t lane, float *out)
{
    float d = f16_to_f32(pack_q4_0_scales(group, b)[lane]);

    get_q4(pack_q4_0_quants(group, b), lane, d, -8 * d, out);
}

static void get_q4_1(const uint8_t *group, uint32_t b, uint32_t lane, float *out)
{
    const uint16_t *d = pack_q4_1_scales(group, b);

    get_q4(pack_q4_1_quants(group, b), lane, f16_to_f32(d[lane]), f16_to_f32(d[L + lane]), out);
}

static void get_q8_0(const uint8_t *group, uint32_t b, uint32_t lane, float *out)
{
    const uint8_t *q = pack_q8_0_quants(group, b);
    float d = f16_to_f32(pack_q8_0_scales(group, b)[lane]);

    for (int i = 0; i < B; i++)
        out[i] = d * (float)(q[i / 4 * 64 + lane * 4 + i % 4] - 128);
}

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

static void get_f32(const uint8_t *group, uint32_t b, uint32_t lane, float *out)
{
    for (int i = 0; i < B; i++)
        out[i] = ((const float *)group)[(size_t)(b * B + i) * L + lane];
}

static void get_f16(const uint8_t *group, uint32_t b, uint32_t lane, float *out)
{
    for (int i = 0; i < B; i++)
        out[i] = f16_to_f32(((const uint16_t *)group)[(size_t)(b * B + i) * L + lane]);
}

static void get_bf16(const uint8_t *group, uint32_t b, uint32_t lane, float *out)
{
    for (int i = 0; i < B; i++)
        out[i] = bf16_to_f32(((const uint16_t *)group)[(size_t)(b * B + i) * L + lane]);
}

static const struct type_row types[MAT_TYPES] = {
    [MAT_F32] = { GGML_F32, false, 4 * B, 1, 4 * B * L, put_4, get_f32 },
    [MAT_F16] = { GGML_F16, false, 2 * B, 1, 2 * B * L, put_2, get_f16 },
    [MAT_BF16] = { GGML_BF16, false, 2 * B, 1, 2 * B * L, put_2, get_bf16 },
    [MAT_Q4_0] = { GGML_Q4_0, true, 18, 2, 576, put_q4_0, get_q4_0 },
    [MAT_Q4_1] = { GGML_Q4_1, true, 20, 1, 320, put_q4_1, get_q4_1 },
    [MAT_Q8_0] = { GGML_Q8_0, true, 34, 2, 1088, put_q8_0, get_q8_0 },
};

/* ---- types that are kept as another ----------------------------------- */

/* A block of the file as Q8_0: its scale and table[code] << shift. */
static void codes_to_q8_0(uint16_t d, const uint8_t *codes, const int8_t *table, int shift, uint8_t *out)
{
    memcpy(out, &d, 2);
    for (int i = 0; i < B / 2; i++) {
        out[2 + i] = (uint8_t)(table[codes[i] & 15] * (1 << shift));
        out[2 + B / 2 + i] = (uint8_t)(table[codes[i] >> 4] * (1 << shift));
    }
}

static void q5_0_to_q8_0(const uint8_t *block, uint8_t *out)
{
    uint32_t high;

    memcpy(out, block, 2);
    memcpy(&high, block + 2, 4);
    for (int i = 0; i < B / 2; i++) {
        out[2 + i] = (uint8_t)(((block[6 + i] & 15) | (high >> i & 1) << 4) - 16);
        out[2 + B / 2 + i] = (uint8_t)((block[6 + i] >> 4 | (high >> (i + B / 2) & 1) << 4) - 16);
    }
}

static void iq4_nl_to_q8_0(const uint8_t *block, uint8_t *out)
{
    uint16_t d;

    memcpy(&d, block, 2);
    codes_to_q8_0(d, block + 2, dequant_iq4_nl, 0, out);
}

/* Exponents whose scale 2^(e - 128) is an fp16 number, the last three of them with
 * integers that take up to three bits of it: 12 << 3 still is an int8. */
enum { MXFP4_MIN = 128 - 24, MXFP4_MID = 128 + 15, MXFP4_MAX = MXFP4_MID + 3 };

static bool mxfp4_is_zero(const uint8_t *block)
{
    for (int i = 1; i <= B / 2; i++)
        if (block[i] & 0x77)
            return false;
    return true;
}

static bool mxfp4_fits(const uint8_t *block)
{
    return (block[0] >= MXFP4_MIN && block[0] <= MXFP4_MAX) || mxfp4_is_zero(block);
}

static void mxfp4_to_q8_0(const uint8_t *block, uint8_t *out)
{
    const int e = block[0], shift = e > MXFP4_MID ? e - MXFP4_MID : 0;

    if (e < MXFP4_MIN || e > MXFP4_MAX)             /* all zeros, else it were not packed so */
        memset(out, 0, 2 + B);
    else
        codes_to_q8_0(f16_of_f32(ldexpf(1, e - shift - 128)), block + 1, dequant_mxfp4, shift, out);
}

/* The smallest type with kernels that holds all values exactly. */
static const struct kept_row {
    uint32_t ggml_type;
    enum mat_type type;
    void (*to_q8_0)(const uint8_t *block, uint8_t *out);
} kept[] = {
    { GGML_IQ4_NL, MAT_Q8_0, iq4_nl_to_q8_0 },
    { GGML_IQ4_XS, MAT_F32, NULL },
    { GGML_MXFP4, MAT_Q8_0, mxfp4_to_q8_0 },
    { GGML_Q2_K, MAT_F32, NULL },
    { GGML_Q3_K, MAT_F32, NULL },
    { GGML_Q4_K, MAT_F32, NULL },
    { GGML_Q5_0, MAT_Q8_0, q5_0_to_q8_0 },
    { GGML_Q5_1, MAT_F32, NULL },
    { GGML_Q5_K, MAT_F32, NULL },
    { GGML_Q6_K, MAT_F32, NULL },
};

static const struct kept_row *kept_as(uint32_t ggml_type)
{
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
        if (kept[i].ggml_type == ggml_type)
            return &kept[i];
    return NULL;
}

bool mat_type_of(uint32_t ggml_type, enum mat_type *ret)
{
    const struct kept_row *k = kept_as(ggml_type);

    if (k) {
        *ret = k->type;
        return true;
    }
    for (int i = 0; i < MAT_TYPES; i++)
        if (types[i].ggml_type == ggml_type) {
            *ret = (enum mat_type)i;
            return true;
        }
    return false;
}

bool mat_fits(uint32_t ggml_type, const void *blocks, size_t n)
{
    const struct ggml_type_facts *f = ggml_type_facts(ggml_type);

    for (size_t i = 0; ggml_type == GGML_MXFP4 && i < n; i++)
        if (!mxfp4_fits((const uint8_t *)blocks + i * f->block_bytes))
            return false;
    return true;
}

const char *mat_type_name(enum mat_type type) { return ggml_type_facts(types[type].ggml_type)->name; }

bool mat_type_quantised(enum mat_type type) { return types[type].quantised; }

bool mat_init(struct mat *m, enum mat_type type, uint32_t rows, uint32_t cols)
{
    const struct type_row *t = &types[type];
    const uint64_t n_blocks = ((uint64_t)cols + B - 1) / B;
    size_t bytes;

    if (rows == 0 || cols == 0 || n_blocks * B > UINT32_MAX)
        return false;
    *m = (struct mat){
        .type = type,
        .ggml_type = t->ggml_type,
        .rows = rows,
        .cols = cols,
        .k = (uint32_t)(n_blocks * B),
        .n_groups = (uint32_t)(((uint64_t)rows + L - 1) / L),
        .group_bytes = (size_t)((n_blocks + t->unit - 1) / t->unit * t->unit_bytes),
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

    memcpy(block, at, rest * (types[m->type].file_bytes / B));
    types[m->type].put(group, whole, lane, block);
}

/* A block of the file, which is kept as one or as several of another type. */
static void put_kept(const struct mat *m, const struct kept_row *k, uint32_t elements, uint8_t *group, uint32_t b,
                     uint32_t lane, const uint8_t *at)
{
    const struct type_row *t = &types[m->type];
    uint8_t q8_0[2 + B];
    float floats[DEQUANT_MAX];

    if (m->type == MAT_Q8_0) {
        k->to_q8_0(at, q8_0);
        t->put(group, b, lane, q8_0);
        return;
    }
    dequant(m->ggml_type, at, elements, floats);
    for (uint32_t i = 0; i < elements / B; i++)
        t->put(group, b + i, lane, (const uint8_t *)(floats + (size_t)i * B));
}

bool mat_pack(const struct mat *m, const void *file_rows, uint32_t from, uint32_t to)
{
    const struct ggml_type_facts *f = ggml_type_facts(m->ggml_type);
    const struct kept_row *k = kept_as(m->ggml_type);
    const uint32_t step = f->block > B ? f->block / B : 1, rest = m->cols % B, whole = m->cols / B;
    const size_t step_bytes = (size_t)step * B / f->block * f->block_bytes;
    const size_t row_bytes = (size_t)m->cols / f->block * f->block_bytes;
    void (*const put)(uint8_t *, uint32_t, uint32_t, const uint8_t *) = types[m->type].put;
    bool finite = true;

    for (uint32_t g = from; g < to; g++) {
        const uint8_t *rows = (const uint8_t *)file_rows + (size_t)g * L * row_bytes;
        const uint32_t n = m->rows - g * L < L ? m->rows - g * L : L;
        uint8_t *group = m->w + g * m->group_bytes;

        for (uint32_t lane = 0; f->block > 1 && lane < n; lane++)
            finite &= dequant_finite(m->ggml_type, rows + lane * row_bytes, m->cols / f->block);
        for (uint32_t b = 0; b < whole; b += step)
            for (uint32_t lane = 0; lane < n; lane++) {
                const uint8_t *at = rows + lane * row_bytes + b / step * step_bytes;

                if (k)
                    put_kept(m, k, f->block, group, b, lane, at);
                else
                    put(group, b, lane, at);
            }
        for (uint32_t lane = 0; rest && lane < n; lane++)
            put_part(m, group, lane, rows + lane * row_bytes + whole * step_bytes);
    }
    return finite;
}

void mat_row(const struct mat *m, uint32_t row, float *out)
{
    const uint8_t *group = m->w + row / L * m->group_bytes;

    for (uint32_t b = 0; b < m->k / B; b++)
        types[m->type].get(group, b, row % L, out + (size_t)b * B);
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
