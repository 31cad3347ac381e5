/* AMX: what AVX-512 with VNNI does, and tiles where they pay.
 *
 * Generated rows, 9 and more: int8 tiles of one block each. Their sums are the exact integers of the VNNI products and are scaled
 * in the same order, so results are the same bits. Below 9 rows the products of VNNI are as fast, and take memory's time better.
 *
 * While block i is multiplied, the sums of i - 1 are stored and those of i - 2 scaled. Rows are cut into tiles of equal height.
 * What the loop reads lies ready: weights are unpacked, activations gathered, both for a chunk of k that fits in the first
 * cache. So nothing in it is called, which would cost the sums of all rows their registers, and every address is a constant
 * away. Tiles and vectors do not work at once, whatever their order: together they take as long as one behind the other.
 * Types with two scales in a block stay with VNNI.
 */
#include "gen/cpu/avx512.h"

#include "gen/cpu/prompt.h"
#include "gen/cpu/tile_attend.h"
#include "gen/cpu/tile_dequant.h"
#include "gen/cpu/tiles.h"

enum {
    MIN_ROWS = 9,               /* of int8 tiles */
    MAX_ROWS = 16,
    CHUNK = 24,                 /* blocks of a group at once: 15 KB of weights, and of a tile's activations as many */
    SLAB = 4,                   /* tiles that use them in turn */
};

/* ---- int8 ------------------------------------------------------------ */

/* Blocks of a group, unpacked once for all rows. */
struct int8_weights {
    uint8_t bytes[CHUNK][B * L];
    float d[CHUNK][L], min[CHUNK][L];
};

/* The same blocks of the activations of a tile. */
struct int8_rows {
    int8_t q[CHUNK][MAX_ROWS * B];
    float d[CHUNK][MAX_ROWS], s[CHUNK][MAX_ROWS];
};

/* A type whose blocks have one scale and perhaps one minimum each. What is around unpack() is compiled once for each height
 * of a tile, not for each type too. */
struct int8_type {
    bool has_min;
    uint32_t block_bytes;       /* on average */
    void (*unpack)(const uint8_t *group, uint32_t from, uint32_t n, struct int8_weights *to);
};

INLINE void unpack(const enum mat_type type, const uint8_t *group, uint32_t from, uint32_t n, struct int8_weights *to)
{
    for (uint32_t i = 0, b = from; i < n; i++, b++) {
        v16 d, min;

        UNROLL for (int w = 0; w < B / 4; w++) {
            const int j = word_at(type, 0, w);

            _mm512_store_si512(to->bytes[i] + j * 64, _mm512_sub_epi8(word(type, group, b, 0, j),
                                                                      _mm512_set1_epi8((char)pack_forms[type].offset)));
        }
        scales(type, group, b, 0, 0, &d, &min);
        v16_store(to->d[i], d);
        if (pack_forms[type].min)
            v16_store(to->min[i], min);
    }
}

/* Rows [row, row + rows), the last of all repeated where there are fewer. */
static void gather_rows(const struct mul *m, uint32_t row, uint32_t rows, uint32_t from, uint32_t n, struct int8_rows *to)
{
    const uint32_t n_blocks = m->x->k / B;

    for (uint32_t t = 0; t < rows; t++) {
        const size_t at = (size_t)(row + t < m->n_rows ? row + t : m->n_rows - 1) * n_blocks + from;

        for (uint32_t i = 0; i < n; i++) {
            memcpy(to->q[i] + t * B, m->x->q + (at + i) * B, B);
            to->d[i][t] = m->x->d[at + i];
            to->s[i][t] = m->x->d[at + i] * (float)m->x->sum[at + i];
        }
    }
}

/* n blocks of a group for the rows of a tile, of which the first n_rows are somebody's. */
struct int8_tile {
    const struct int8_weights *w;
    const struct int8_rows *x;
    uint32_t n, n_rows;
    bool first, has_min;        /* first: of their sums */
    const uint8_t *next;        /* to prefetch, next_bytes for each block */
    uint32_t next_bytes;
    float *const *y;
    size_t at;
};

#define MULTIPLY(i, c, a, b)                                                                                                      \
    do {                                                                                                                          \
        TILE_ZERO(c);                                                                                                             \
        TILE_LOAD(a, p->x->q[i], B);                                                                                              \
        TILE_LOAD(b, p->w->bytes[i], 64);                                                                                         \
        TILE_INT8(c, a, b);                                                                                                       \
    } while (0)

INLINE void scale_block(const struct int8_tile *p, uint32_t i, const int32_t *sums, const uint32_t rows, v16 *f)
{
    const v16 d = v16_load(p->w->d[i]);

    UNROLL for (uint32_t t = 0; t < rows; t++)
        f[t] = v16_fma(v16_mul(d, v16_set1(p->x->d[i][t])), _mm512_cvtepi32_ps(_mm512_load_si512(sums + t * L)), f[t]);
    if (p->has_min) {
        const v16 min = v16_load(p->w->min[i]);

        UNROLL for (uint32_t t = 0; t < rows; t++)
            f[t] = v16_fma(min, v16_set1(p->x->s[i][t]), f[t]);
    }
    for (uint32_t line = i * p->next_bytes / 64; line < (i + 1) * p->next_bytes / 64; line++)
        prefetch(p->next + (size_t)line * 64);
}

INLINE void int8_tile(const struct int8_tile *p, const uint32_t rows)
{
    int32_t sums[2][L * MAX_ROWS] __attribute__((aligned(64)));
    const uint32_t n = p->n;
    v16 f[MAX_ROWS];

    UNROLL for (uint32_t t = 0; t < rows; t++)
        f[t] = p->first || t >= p->n_rows ? v16_set1(0) : v16_load(p->y[t] + p->at);
    for (uint32_t i = 0; i < n + 2; i += 2) {
        if (i < n)
            MULTIPLY(i, 0, 4, 6);
        if (i > 0 && i - 1 < n)
            TILE_STORE(1, sums[1], 64);
        if (i > 0)
            scale_block(p, i - 2, sums[0], rows, f);
        if (i + 1 < n)
            MULTIPLY(i + 1, 1, 5, 7);
        if (i < n)
            TILE_STORE(0, sums[0], 64);
        if (i > 0 && i - 1 < n)
            scale_block(p, i - 1, sums[1], rows, f);
    }
    UNROLL for (uint32_t t = 0; t < rows; t++)
        if (t < p->n_rows)
            v16_store(p->y[t] + p->at, f[t]);
}

/* By the height of tiles, so that their rows are registers. */
#define INT8_HEIGHTS(X) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16)
#define DEFINE_INT8_TILE(rows)                                                                                                    \
    static void int8_tile_##rows(const struct int8_tile *p)                                                                       \
    {                                                                                                                             \
        const struct int8_tile own = *p;            /* which no instruction on tiles seems to change */                           \
                                                                                                                                  \
        int8_tile(&own, rows);                                                                                                    \
    }
INT8_HEIGHTS(DEFINE_INT8_TILE)
#define INT8_TILE_ROW(rows) [rows] = int8_tile_##rows,
static void (*const int8_tiles[MAX_ROWS + 1])(const struct int8_tile *p) = { INT8_HEIGHTS(INT8_TILE_ROW) };

/* Activations in tiles 4 and 5, weights in 6 and 7, sums in 0 and 1. */
static void configure_int8(uint32_t rows)
{
    struct tile_config c = { .palette = 1 };

    for (int i = 0; i < 8; i++) {
        c.rows[i] = (uint8_t)(i < 6 ? rows : B / 4);
        c.row_bytes[i] = i == 4 || i == 5 ? B : 64;
    }
    tiles_configure(&c);
}

/* Rows from `row` on, SLAB tiles of them: a chunk of k at a time, for which they stay in the first cache. Each tile prefetches
 * its share of the next group: asked for at once it would keep the thread waiting. */
static void int8_slab(const struct int8_type *type, const struct mul *m, uint32_t row, uint32_t rows)
{
    const uint32_t n_blocks = m->x->k / B, n_chunks = (n_blocks + CHUNK - 1) / CHUNK, chunk = (n_blocks + n_chunks - 1) / n_chunks;
    const uint32_t left = (m->n_rows - row + rows - 1) / rows, n_tiles = left < SLAB ? left : SLAB;
    struct int8_weights w __attribute__((aligned(64)));
    struct int8_rows x[SLAB] __attribute__((aligned(64)));
    struct int8_tile p = { .w = &w, .has_min = type->has_min, .next_bytes = (type->block_bytes + n_tiles - 1) / n_tiles };

    for (uint32_t from = 0; from < n_blocks; from += chunk) {
        p.n = n_blocks - from < chunk ? n_blocks - from : chunk;
        p.first = from == 0;
        for (uint32_t i = 0; i < n_tiles; i++)
            gather_rows(m, row + i * rows, rows, from, p.n, &x[i]);
        for (uint32_t g = 0; g < m->n_groups; g++) {
            type->unpack(m->w + g * m->group_bytes, from, p.n, &w);
            p.next = group_at(m, g + 1) + (size_t)from * type->block_bytes;
            p.at = m->at + (size_t)g * L;
            for (uint32_t i = 0, r = row; i < n_tiles; i++, r += rows, p.next += p.n * p.next_bytes) {
                p.x = &x[i];
                p.y = m->y + r;
                p.n_rows = m->n_rows - r < rows ? m->n_rows - r : rows;
                int8_tiles[rows](&p);
            }
        }
    }
}

static void int8_mul(const struct int8_type *type, const struct mul *m, uint32_t rows)
{
    configure_int8(rows);
    for (uint32_t row = 0; row < m->n_rows; row += SLAB * rows)
        int8_slab(type, m, row, rows);
    tiles_release();
}

extern const struct kernels kernels_avx512vnni;

#define DEFINE_INT8_MUL(name)                                                                                                     \
    static void unpack_##name(const uint8_t *group, uint32_t from, uint32_t n, struct int8_weights *to)                           \
    {                                                                                                                             \
        unpack(MAT_##name, group, from, n, to);                                                                                   \
    }                                                                                                                             \
    static void tiles_##name(const struct mul *m)                                                                                 \
    {                                                                                                                             \
        const struct int8_type type = { pack_forms[MAT_##name].min, pack_unit_bytes(MAT_##name) / pack_forms[MAT_##name].unit,    \
                                        unpack_##name };                                                                          \
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
