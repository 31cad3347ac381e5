#include "gen/cpu/pack.h"

#include "gen/cpu/half.h"
#include "loaders/gguf.h"

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

bool mat_type_of(uint32_t ggml_type, enum mat_type *ret)
{
    for (int i = 0; i < MAT_TYPES; i++)
        if (types[i].ggml_type == ggml_type) {
            *ret = (enum mat_type)i;
            return true;
        }
    return false;
}

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

void mat_pack(const struct mat *m, const void *file_rows, uint32_t from, uint32_t to)
{
    const struct type_row *t = &types[m->type];
    const uint32_t whole = m->cols / B, rest = m->cols % B;
    const size_t row_bytes = (size_t)whole * t->file_bytes + rest * (size_t)(t->file_bytes / B);

    for (uint32_t g = from; g < to; g++) {
        uint8_t *group = m->w + g * m->group_bytes;

        for (uint32_t b = 0; b < whole; b++)
            for (uint32_t lane = 0; lane < L && g * L + lane < m->rows; lane++)
                t->put(group, b, lane,
                       (const uint8_t *)file_rows + (size_t)(g * L + lane) * row_bytes +
                           (size_t)b * t->file_bytes);
        for (uint32_t lane = 0; rest && lane < L && g * L + lane < m->rows; lane++)
            put_part(m, group, lane,
                     (const uint8_t *)file_rows + (size_t)(g * L + lane) * row_bytes +
                         (size_t)whole * t->file_bytes);
    }
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
