/* AMX: what AVX-512 with VNNI does, and tiles where they pay.
 *
 * Generated rows, 9 and more: int8 tiles of one block each. Their sums are the exact integers of the VNNI products and are scaled
 * in the same order, so results are the same bits. Below 9 rows the products of VNNI are as fast.
 *
 * A step works on two blocks in four stages, for nothing of a tile's way overlaps by itself: while blocks i are multiplied,
 * i + 1 are unpacked, the sums of i - 1 stored, those of i - 2 scaled. Rows are cut into tiles of equal height; where they do not
 * divide evenly the last one begins early and computes some rows again. Types with two scales in a block stay with VNNI.
 */
#include "gen/cpu/avx512.h"

#include "gen/cpu/prompt.h"
#include "gen/cpu/tile_attend.h"
#include "gen/cpu/tile_dequant.h"
#include "gen/cpu/tiles.h"

enum {
    MIN_ROWS = 9,               /* of int8 tiles */
    MAX_ROWS = 16,
    WEIGHTS = B * L,            /* of a block: bytes as int8 */
    CHUNK = 32,                 /* blocks that are kept unpacked for the next rows: 16 KB */
};

/* ---- int8 ------------------------------------------------------------ */

/* A type whose blocks have one scale and perhaps one minimum each. Functions, not constants: what is around them is
 * compiled once for each height of a tile, not for each type too. */
struct int8_type {
    uint32_t bytes;             /* of a packed block, on average */
    bool has_min;
    void (*unpack)(const uint8_t *group, uint32_t b, uint8_t *out);         /* its integers as bytes */
    void (*scales)(const uint8_t *group, uint32_t b, v16 *ret_d, v16 *ret_m);
};

INLINE void unpack(const enum mat_type type, const uint8_t *group, uint32_t b, uint8_t *out)
{
    UNROLL for (int n = 0; n < B / 4; n++) {
        const int j = word_at(type, 0, n);

        _mm512_storeu_si512(out + j * 64, _mm512_sub_epi8(word(type, group, b, 0, j),
                                                          _mm512_set1_epi8((char)pack_forms[type].offset)));
    }
}

/* Where the rows of a tile and the blocks of a chunk are. */
struct int8_place {
    const struct mul *m;
    const uint8_t *w, *next;
    uint32_t row, from, to;     /* blocks [from, to) */
    uint8_t *bytes;             /* [CHUNK][WEIGHTS] */
    bool unpacked;              /* they are in it already */
    float *y[MAX_ROWS];         /* where each row's sums go */
};

INLINE void unpack_pair(const struct int8_type *type, const struct int8_place *p, uint32_t b)
{
    if (p->next)
        for (uint32_t line = 0; line < 2 * type->bytes; line += 64)
            prefetch(p->next + (size_t)b * type->bytes + line);
    type->unpack(p->w, b, p->bytes + (size_t)(b - p->from) * WEIGHTS);
    if (b + 1 < p->to)
        type->unpack(p->w, b + 1, p->bytes + (size_t)(b + 1 - p->from) * WEIGHTS);
}

/* Sums of blocks b and b + 1 in tiles 0 and 1, or 2 and 3. */
#define MULTIPLY_PAIR(c0, c1)                                                                                                     \
    do {                                                                                                                          \
        TILE_ZERO(c0);                                                                                                            \
        TILE_LOAD(4, q + b * B, k);                                                                                               \
        TILE_LOAD(6, p->bytes + (size_t)(b - p->from) * WEIGHTS, 64);                                                             \
        TILE_INT8(c0, 4, 6);                                                                                                      \
        if (b + 1 < p->to) {                                                                                                      \
            TILE_ZERO(c1);                                                                                                        \
            TILE_LOAD(5, q + b * B + B, k);                                                                                       \
            TILE_LOAD(7, p->bytes + (size_t)(b - p->from) * WEIGHTS + WEIGHTS, 64);                                               \
            TILE_INT8(c1, 5, 7);                                                                                                  \
        }                                                                                                                         \
    } while (0)

INLINE void scale_block(const struct int8_type *type, const struct int8_place *p, uint32_t b, const int rows,
                        const int32_t *sums, v16 *f)
{
    const uint32_t n_blocks = p->m->x->k / B;
    const float *d = p->m->x->d + (size_t)p->row * n_blocks + b, *s = p->m->x->s + (size_t)p->row * n_blocks + b;
    v16 wd, wm;

    type->scales(p->w, b, &wd, &wm);
    UNROLL for (int t = 0; t < rows; t++) {
        f[t] = v16_fma(v16_mul(wd, v16_set1(d[(size_t)t * n_blocks])),
                       _mm512_cvtepi32_ps(_mm512_load_si512(sums + t * L)), f[t]);
        if (type->has_min)
            f[t] = v16_fma(wm, v16_set1(s[(size_t)t * n_blocks]), f[t]);
    }
}

INLINE void int8_rows(const struct int8_type *type, const struct int8_place *p, const int rows)
{
    const uint32_t k = p->m->x->k, n = (p->to - p->from + 1) / 2;
    const int8_t *q = p->m->x->q + (size_t)p->row * k;
    int32_t sums[4][L * MAX_ROWS] __attribute__((aligned(64)));
    v16 f[MAX_ROWS];

    UNROLL for (int t = 0; t < rows; t++)
        f[t] = p->from ? v16_load(p->y[t]) : v16_set1(0);
    if (!p->unpacked)
        unpack_pair(type, p, p->from);
    for (uint32_t i = 0, b = p->from; i < n + 2; i++, b += 2) {
        if (!p->unpacked && i + 1 < n)
            unpack_pair(type, p, b + 2);
        if (i % 2 == 0) {
            if (i < n)
                MULTIPLY_PAIR(0, 1);
            if (i > 0 && i <= n) {
                TILE_STORE(2, sums[2], 64);
                TILE_STORE(3, sums[3], 64);
            }
        } else {
            if (i < n)
                MULTIPLY_PAIR(2, 3);
            if (i <= n) {
                TILE_STORE(0, sums[0], 64);
                TILE_STORE(1, sums[1], 64);
            }
        }
        if (i >= 2) {
            scale_block(type, p, b - 4, rows, sums[i % 2 * 2], f);
            if (b - 3 < p->to)
                scale_block(type, p, b - 3, rows, sums[i % 2 * 2 + 1], f);
        }
    }
    UNROLL for (int t = 0; t < rows; t++)
        v16_store(p->y[t], f[t]);
}

/* Activations rows x 32 in tiles 4 and 5, weights 8 x 64 in 6 and 7, sums rows x 16 in the others. */
static void configure_int8(int rows)
{
    struct tile_config c = { .palette = 1 };

    for (int i = 0; i < 8; i++) {
        c.rows[i] = (uint8_t)(i < 6 ? rows : B / 4);
        c.row_bytes[i] = i == 4 || i == 5 ? B : 64;
    }
    tiles_configure(&c);
}

INLINE void int8_groups(const struct int8_type *type, const struct mul *m, const uint32_t rows)
{
    const uint32_t n_blocks = m->x->k / B;
    uint8_t bytes[CHUNK * WEIGHTS] __attribute__((aligned(64)));
    float spare[MAX_ROWS][L];                       /* sums of rows that are the tile's before too */

    for (uint32_t g = 0; g < m->n_groups; g++)
        for (uint32_t from = 0; from < n_blocks; from += CHUNK) {
            struct int8_place p = {
                .m = m,
                .w = m->w + g * m->group_bytes,
                .next = next_group(m, g),
                .from = from,
                .to = n_blocks - from < CHUNK ? n_blocks : from + CHUNK,
                .bytes = bytes,
            };

            for (uint32_t row = 0; row < m->n_rows; row += rows, p.unpacked = true) {
                p.row = row + rows > m->n_rows ? m->n_rows - rows : row;
                for (uint32_t t = 0; t < rows; t++)
                    p.y[t] = p.row + t < row ? spare[t] : m->y[p.row + t] + m->at + (size_t)g * L;
                int8_rows(type, &p, (int)rows);
            }
        }
}

/* By the height of tiles, so that their rows are registers. */
static void int8_mul(const struct int8_type *type, const struct mul *m, uint32_t rows)
{
    configure_int8((int)rows);
    switch (rows) {
    case 9: int8_groups(type, m, 9); break;
    case 10: int8_groups(type, m, 10); break;
    case 11: int8_groups(type, m, 11); break;
    case 12: int8_groups(type, m, 12); break;
    case 13: int8_groups(type, m, 13); break;
    case 14: int8_groups(type, m, 14); break;
    case 15: int8_groups(type, m, 15); break;
    case 16: int8_groups(type, m, 16); break;
    }
    tiles_release();
}

extern const struct kernels kernels_avx512vnni;

#define DEFINE_INT8_MUL(name)                                                                                                     \
    static void unpack_##name(const uint8_t *group, uint32_t b, uint8_t *out) { unpack(MAT_##name, group, b, out); }              \
    static void scales_##name(const uint8_t *group, uint32_t b, v16 *ret_d, v16 *ret_m)                                           \
    {                                                                                                                             \
        scales(MAT_##name, group, b, 0, 0, ret_d, ret_m);                                                                         \
    }                                                                                                                             \
    static void tiles_##name(const struct mul *m)                                                                                 \
    {                                                                                                                             \
        const struct int8_type type = { pack_unit_bytes(MAT_##name) / pack_forms[MAT_##name].unit, pack_forms[MAT_##name].min,    \
                                        unpack_##name, scales_##name };                                                           \
        const uint32_t n_tiles = (m->n_rows + MAX_ROWS - 1) / MAX_ROWS;                                                           \
        const uint32_t rows = n_tiles ? (m->n_rows + n_tiles - 1) / n_tiles : 0;                                                  \
                                                                                                                                  \
        if (rows < MIN_ROWS || pack_forms[MAT_##name].halves)                                                                     \
            kernels_avx512vnni.mul[MAT_##name](m);                                                                                \
        else                                                                                                                      \
            int8_mul(&type, m, rows);                                                                                             \
    }
MAT_QUANTISED(DEFINE_INT8_MUL)

/* ---- bf16 ------------------------------------------------------------ */

/* Registers: sums of 32 x 32 in 0 to 3, activations in 4 and 5, weights in 6 and 7. */
static void enter(void)
{
    struct tile_config c = { .palette = 1 };

    for (int i = 0; i < 8; i++) {
        c.rows[i] = 16;
        c.row_bytes[i] = 64;
    }
    tiles_configure(&c);
}

static void leave(void) { tiles_release(); }

/* Blocks of k whose weights of a panel stay in the first cache while all rows pass by: at most 9 are 18 KB, with more it
 * overflows. As even as can be, and whole blocks of 256 where those are what has a scale. */
static uint32_t chunk_of(uint32_t n_blocks)
{
    const uint32_t n = (n_blocks + 8) / 9;

    return n_blocks % 8 == 0 ? 8 : (n_blocks + n - 1) / n;
}

/* What is unpacked next comes from memory between products, `lines` of it for each block of k. */
struct ahead {
    const uint8_t *at, *end;
    uint32_t lines;
};

/* n blocks of k of 32 rows, or with `half` of the first 16. */
INLINE void multiply_block(const uint16_t *x, const uint16_t *w, uint32_t n, float *c, bool first, bool half, struct ahead *ahead)
{
    if (first) {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
    } else {
        TILE_LOAD(0, c, 64);
        TILE_LOAD(1, c + 256, 64);
        if (!half) {
            TILE_LOAD(2, c + 512, 64);
            TILE_LOAD(3, c + 768, 64);
        }
    }
    for (uint32_t i = 0; i < n; i++, x += 2 * PROMPT_TILE, w += 2 * TILE_ELEMENTS) {
        for (uint32_t l = 0; l < ahead->lines && ahead->at < ahead->end; l++, ahead->at += 64)
            prefetch(ahead->at);
        TILE_LOAD(4, x, 64);
        TILE_LOAD(6, w, 64);
        TILE_BF16(0, 4, 6);
        TILE_LOAD(7, w + TILE_ELEMENTS, 64);
        TILE_BF16(1, 4, 7);
        if (half)
            continue;
        TILE_LOAD(5, x + PROMPT_TILE, 64);
        TILE_BF16(2, 5, 6);
        TILE_BF16(3, 5, 7);
    }
    TILE_STORE(0, c, 64);
    TILE_STORE(1, c + 256, 64);
    if (half)
        return;
    TILE_STORE(2, c + 512, 64);
    TILE_STORE(3, c + 768, 64);
}

static void prompt_mul(const struct prompt_mul *m)
{
    const uint32_t n_k = m->k / B, most = chunk_of(n_k), n_panels = (m->n_groups + 1) / 2;
    const uint32_t n_blocks = (m->n_rows + PROMPT_ROWS - 1) / PROMPT_ROWS;
    const size_t x_stride = (size_t)n_k * 2 * PROMPT_TILE;
    uint16_t *tiles = m->room;
    const size_t bytes = m->next ? m->n_groups * m->group_bytes : 0, steps = (size_t)n_blocks * n_panels * n_k;
    struct ahead ahead = { m->next, bytes ? m->next + bytes : NULL, (uint32_t)((bytes / 64 + steps - 1) / steps) };

    for (uint32_t k = 0, n; k < n_k; k += n) {
        n = n_k - k < most ? n_k - k : most;
        for (uint32_t p = 0; p < n_panels; p++) {
            const uint8_t *w = m->w + (size_t)p * 2 * m->group_bytes;
            float *c = m->c + (size_t)p * n_blocks * PROMPT_SUMS;

            tile_dequant[m->type](w, k, n, tiles, 2 * TILE_ELEMENTS);
            if (2 * p + 1 < m->n_groups)
                tile_dequant[m->type](w + m->group_bytes, k, n, tiles + TILE_ELEMENTS, 2 * TILE_ELEMENTS);
            else
                for (uint32_t i = 0; i < n; i++)
                    memset(tiles + (2 * (size_t)i + 1) * TILE_ELEMENTS, 0, TILE_ELEMENTS * sizeof *tiles);
            for (uint32_t r = 0; r < n_blocks; r++)
                multiply_block(m->x + r * x_stride + (size_t)k * 2 * PROMPT_TILE, tiles, n, c + (size_t)r * PROMPT_SUMS,
                               k == 0, m->n_rows - r * PROMPT_ROWS <= PROMPT_ROWS / 2, &ahead);
        }
    }
}

/* Where the sums of row r are, the second sixteen columns 256 floats behind. */
INLINE const float *sums_of(const float *c, uint32_t r)
{
    return c + (size_t)(r / PROMPT_ROWS) * PROMPT_SUMS + r % PROMPT_ROWS / 16 * 512 + r % 16 * 16;
}

/* Rows are far apart, so both groups of one go out together. */
INLINE void out_rows(const struct prompt_out *o, const int n_groups, const bool turned)
{
    v16 bias[2];

    UNROLL for (int g = 0; g < n_groups; g++)
        bias[g] = o->bias ? v16_load(o->bias + g * L) : v16_set1(0);
    for (uint32_t r = 0; r < o->n_rows; r++) {
        float *y = o->y + r * o->y_stride;
        const float *c = sums_of(o->c, r);

        UNROLL for (int g = 0; g < n_groups; g++) {
            v16 v = v16_load(c + g * 256);

            if (o->bias)
                v = v16_add(v, bias[g]);
            if (turned) {
                const size_t at = r * o->turn_stride + o->turn_at[g];

                v = v16_fma(v, v16_load(o->cos + at), v16_mul(v16_swap_pairs(v), v16_load(o->sin + at)));
            }
            v16_store(y + g * L, o->add ? v16_add(v16_load(y + g * L), v) : v);
        }
    }
}

static void prompt_out(const struct prompt_out *o)
{
    if (o->n_groups == 1)
        out_rows(o, 1, o->cos != NULL);
    else if (o->cos)
        out_rows(o, 2, true);
    else
        out_rows(o, 2, false);
}

INLINE v16 exp2_rough(v16 x) { return exp2_cubic(v16_max(v16_min(x, v16_set1(126)), v16_set1(-125))); }

/* x / (1 + e^-x), and GELU's tanh form, which is x / (1 + e^-2u). */
INLINE v16 act(v16 x, bool gelu)
{
    const float log2_e = 1.44269504f;
    v16 u = v16_mul(x, v16_set1(-log2_e));

    if (gelu)
        u = v16_mul(v16_mul(x, v16_set1(-2 * log2_e * SQRT_2_OVER_PI)),
                    v16_fma(v16_mul(v16_set1(GELU_CUBE), x), x, v16_set1(1)));
    return v16_mul(x, _mm512_rcp14_ps(v16_add(v16_set1(1), exp2_rough(u))));
}

INLINE v16 biased(v16 x, const float *bias, int g) { return bias ? v16_add(x, v16_load(bias + g * L)) : x; }

static void prompt_gate(const struct prompt_gate *o)
{
    for (uint32_t r = 0; r < o->n_rows; r++) {
        const float *gate = sums_of(o->gate, r), *up = sums_of(o->up, r);
        uint16_t *x = o->x + (size_t)(r / PROMPT_ROWS) * o->x_stride + r % PROMPT_ROWS * B;

        UNROLL for (int g = 0; g < 2; g++) {
            const v16 a = biased(v16_load(gate + g * 256), o->gate_bias, g), b = biased(v16_load(up + g * 256), o->up_bias, g);

            put_bf16(x + g * L, v16_mul(act(a, o->gelu), b));
        }
    }
}

static void to_tiles(const float *f, uint32_t n, uint32_t at, uint32_t row, uint16_t *x)
{
    uint32_t i = 0, to;

    for (; at % B == 0 && i + B <= n; i += B)
        _mm512_storeu_si512(x + (size_t)(at + i) / B * 2 * PROMPT_TILE + row * B,
                            (__m512i)_mm512_cvtne2ps_pbh(v16_load(f + i + L), v16_load(f + i)));
    for (; i < n; i += to) {
        const uint32_t c = at + i, left = L - c % L;    /* sixteen columns, or what there is of them */
        const __mmask16 mask = (__mmask16)((1u << (to = n - i < left ? n - i : left)) - 1);
        const __m256i v = (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, f + i));

        _mm256_mask_storeu_epi16(x + (size_t)(c / B) * 2 * PROMPT_TILE + row * B + c % B, mask, v);
    }
}

static const struct prompt_kernels prompt = {
    .enter = enter,
    .leave = leave,
    .mul = prompt_mul,
    .out = prompt_out,
    .gate = prompt_gate,
    .to_tiles = to_tiles,
    .attend = prompt_attend,
    .attend_scratch = attend_scratch,
};

#define TILES_ROW(name) [MAT_##name] = tiles_##name,
KERNELS_TABLE(amx, TILES_ROW, &prompt);
