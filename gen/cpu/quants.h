/* quants.h - products with quantised weights, written once for every width of vectors and every type of weights. What sets types apart
 * are the facts of pack_forms[] (pack.h): constants here, so that each type becomes a kernel of its own. A type with nothing
 * new to it is a row there and no line here.
 *
 * A word of codes is four columns of the lanes, a byte each, above zero: what vpdpbusd and pmaddubsw take on one side. An offset
 * goes into the start value of the sum, from the activations' own sums. An instruction set includes this after it has defined, for
 * LANES weight rows at once (16, or less where a group is several parts),
 *
 *     words            LANES words of four bytes
 *     words_load, words_store
 *     words_shift      bits to the right by n, to the left where it is negative, in elements of 8 bits or more: what
 *                      crosses the borders of bytes is masked out
 *     words_and        with one byte everywhere
 *     words_or_and     a | b with one byte everywhere
 *     words_look_up    each byte's low four bits in a codebook, + offset
 *     ints, floats     LANES numbers, and what ints_*, floats_* below do with them
 *     SIGNED_BYTES     1: codes that fill a byte lose their offset when they are loaded, in dot_words(); 0: they are like others
 *     EACH_PART        UNROLL, or nothing where vectors are so short that the code would be long
 *     TILE             activation rows at once
 *     FEW_TILE_ROWS    the same of rows that take their weights as they are packed, TILE at most: what each
 *                      adds to the compiler's work it adds for every type
 *     ONE_ROW_GROUPS   groups that one row of activations meets at once: as many streams from memory
 *     PANEL_ROWS       from so many on, weights are unpacked once for all, as a panel
 *
 * and defines behind it dot_words(), the products of a block or of a half of it.
 */
#include "gen/cpu/pack.h"

enum { B = KERNEL_BLOCK };

/* Word j of a block, as codes. */
INLINE words word(const enum mat_type type, const uint8_t *group, uint32_t b, const int lane, const int j)
{
    const struct pack_form *f = &pack_forms[type];
    const uint8_t *codes = pack_codes(type, group, b) + lane * 4, *high = pack_high(type, group, b) + lane * 4;
    words w;

    if (f->bits == 8)
        return words_load(codes + j * 64);
    if (f->bits == 4)
        w = words_and(words_shift(words_load(codes + j % 4 * 64), j / 4 * 4), 15);
    else
        w = words_and(words_shift(words_load(codes + j / 4 * 64), j % 4 * 2), 3);
    if (f->codebook)
        return words_look_up(f->codebook, f->offset, w);
    if (f->high == 1)
        w = words_or_and(w, words_shift(words_load(high), j - f->bits), 1 << f->bits);
    else if (f->high == 2)
        w = words_or_and(w, words_shift(words_load(high + j / 4 * 64), j % 4 * 2 - f->bits), 3 << f->bits);
    return w;
}

/* Scale and minimum of a half of a block, or of all of it; exact. */
INLINE void scales(const enum mat_type type, const uint8_t *group, uint32_t b, const int half, const int lane, floats *ret_d,
                   floats *ret_m)
{
    const struct pack_form *f = &pack_forms[type];
    const uint8_t *fine = pack_fine(type, group, b) + (f->halves ? half * L : 0) + lane;

    *ret_d = f->scale == PACK_E8M0 ? floats_of_e8m0(fine) : floats_of_f16(pack_d(type, group, b) + lane);
    *ret_m = f->min ? floats_of_f16(pack_m(type, group, b) + lane) : floats_set1(0);
    if (f->scale == PACK_S8) {
        *ret_d = floats_mul(*ret_d, floats_of_s8(fine));
    } else if (f->scale == PACK_U8) {
        *ret_d = floats_mul(*ret_d, floats_of_u8(fine, 0, 255));
        *ret_m = floats_mul(*ret_m, floats_of_u8(fine + L, 0, 255));
    } else if (f->scale == PACK_U4) {
        *ret_d = floats_mul(*ret_d, floats_of_u8(fine, 0, 15));
        *ret_m = floats_mul(*ret_m, floats_of_u8(fine, 4, 15));
    }
}

/* The n-th word that is multiplied. Words that share a load are neighbours. */
INLINE int word_at(const enum mat_type type, const int half, const int n)
{
    return pack_forms[type].halves ? half * 4 + n : pack_forms[type].bits == 4 ? n % 2 * 4 + n / 2 : n;
}

/* Codes that need all bits of a byte. */
INLINE bool is_bytes(const enum mat_type type) { return pack_forms[type].max > 127; }

/* What a sum has to lose of each code, for a type of this form whose codes are added up like those of `type`. */
INLINE int32_t start_offset(const enum mat_type type, const struct pack_form *form)
{
    return SIGNED_BYTES && is_bytes(type) ? 0 : form->offset;
}

/* Words whose sums of two products fit into 16 bits together. */
INLINE int words_in_16_bits(const enum mat_type type)
{
    const int pair = 2 * 127 * pack_forms[type].max;

    return 8 * pair <= INT16_MAX ? 8 : 4 * pair <= INT16_MAX ? 4 : 2 * pair <= INT16_MAX ? 2 : 1;
}

/* Four columns of an activation row in every lane. */
INLINE ints columns(const int8_t *x, int word)
{
    int32_t v;

    memcpy(&v, x + word * 4, 4);
    return ints_set1(v);
}

/* ---- panels: blocks that are unpacked once for many rows --------------- */

enum { PANEL = 16 };            /* blocks: 12 KB */

struct panel {
    uint8_t codes[PANEL][B * L];        /* [word][lane] */
    float d[PANEL][2][L], min[PANEL][2][L];         /* [half] */
} __attribute__((aligned(64)));

/* n blocks from b on. `next`: what to prefetch meanwhile, or NULL. */
INLINE void fill_panel(const enum mat_type type, const uint8_t *group, const uint8_t *next, uint32_t b, uint32_t n, struct panel *p)
{
    const uint32_t block_bytes = pack_unit_bytes(type) / pack_forms[type].unit;

    for (uint32_t i = 0; i < n; i++, b++) {
        for (uint32_t line = 0; next && line < block_bytes; line += 64)
            prefetch(next + (size_t)b * block_bytes + line);
        EACH_PART for (int lane = 0; lane < L; lane += LANES) {
            UNROLL for (int j = 0; j < B / 4; j++)
                words_store(p->codes[i] + j * 64 + lane * 4, word(type, group, b, lane, j));
            UNROLL for (int half = 0; half < 1 + pack_forms[type].halves; half++) {
                floats d, min;

                scales(type, group, b, half, lane, &d, &min);
                floats_store(p->d[i][half] + lane, d);
                floats_store(p->min[i][half] + lane, min);
            }
        }
    }
}

/* ---- products ---------------------------------------------------------- */

/* Where the words of a block come from. */
struct block_words {
    const uint8_t *group;
    uint32_t b;
    const uint8_t *codes;       /* of a panel, or NULL */
};

INLINE words word_of(const enum mat_type type, struct block_words from, const int lane, const int j)
{
    return from.codes ? words_load(from.codes + j * 64 + lane * 4) : word(type, from.group, from.b, lane, j);
}

/* One block of the activations of a tile of rows, where all that meets a block of weights is a constant away from one address. */
struct block_rows {
    int8_t q[TILE][B];
    float d[TILE];
    float s[2][TILE];           /* [half]: scale * sum */
    int32_t start[2][TILE];     /* [half]: -offset * sum, what a sum of codes begins with */
} __attribute__((aligned(64)));

/* dot[row] += words of a half of a block, or of all of it, * activations: x[row]. */
INLINE void dot_words(const enum mat_type type, struct block_words from, const int half, const int lane, const int8_t (*x)[B],
                      const int rows, ints *dot);

/* What a block of a row has but for q, as row t of a tile. */
INLINE void gather_scales(const struct acts *x, size_t b, const bool halves, int32_t offset, uint32_t t, struct block_rows *to)
{
    to->d[t] = x->d[b];
    UNROLL for (int half = 0; half < 1 + halves; half++) {
        const int32_t sum = !halves ? x->sum[b] : half ? x->sum[b] - x->half[b] : x->half[b];

        to->s[half][t] = x->d[b] * (float)sum;
        to->start[half][t] = -offset * sum;
    }
}

/* n blocks, from `from` on, of `rows` rows, from `row` on. */
static inline void gather(const struct acts *x, const struct pack_form *form, int32_t offset, uint32_t row, uint32_t rows,
                          uint32_t from, uint32_t n, struct block_rows *to)
{
    for (uint32_t t = 0; t < rows; t++)
        for (uint32_t i = 0; i < n; i++) {
            const size_t b = (size_t)(row + t) * (x->k / B) + from + i;

            memcpy(to[i].q[t], x->q + b * B, B);
            if (form->halves)
                gather_scales(x, b, true, offset, t, &to[i]);
            else
                gather_scales(x, b, false, offset, t, &to[i]);
        }
}

/* What a tile multiplies: blocks [from, to) of a group, as they are packed or as a panel from `from` on. */
struct tile_weights {
    const struct pack_form *form;
    const uint8_t *group;
    const struct panel *panel;          /* or NULL */
    const struct block_rows *x;         /* from `from` on */
    uint32_t from, to;
    uint32_t n_groups;          /* that there are, if fewer than are multiplied at once */
    const uint8_t *fetch[2];    /* groups to prefetch these blocks of, from `ahead` bytes on, one and then the other; or NULL */
    size_t ahead;
    bool far;                   /* into the second cache */
};

/* How many bytes ahead of what is read to prefetch. What comes from memory at some 17 GB/s a core is more than the first cache has
 * requests for; the second has. One row reads several groups at once, a little of each: where it may come from a cache, the first one is
 * best, and the same page of 4 KB. */
enum { ONE_ROW_AHEAD = 2048, ONE_ROW_FAR = 4096, FEW_ROWS_FAR = 16384, FROM_MEMORY = 32 << 20 };

/* Adds block b of a group, times `rows` rows: q, and the rest in x. With a panel, type is one whose codes are added up alike. */
INLINE void add_block(const enum mat_type type, const struct tile_weights *w, const uint8_t *group, uint32_t b,
                      const int8_t (*q)[B], const struct block_rows *x, const int rows, floats f[L / LANES][TILE])
{
    const bool halves = pack_forms[type].halves;
    const struct panel *panel = w->panel;
    const struct block_words from = { group, b, panel ? panel->codes[b - w->from] : NULL };
    const bool starts = panel || start_offset(type, w->form);       /* what a panel's type is, is not known here */

    EACH_PART for (int part = 0; part < L / LANES; part++)
        UNROLL for (int half = 0; half < 1 + halves; half++) {
            ints dot[TILE];
            floats d, min;

            UNROLL for (int t = 0; t < rows; t++)
                dot[t] = ints_set1(starts ? x->start[half][t] : 0);
            dot_words(type, from, half, part * LANES, q, rows, dot);
            if (panel) {
                d = floats_load(panel->d[b - w->from][half] + part * LANES);
                min = floats_load(panel->min[b - w->from][half] + part * LANES);
            } else {
                scales(type, group, b, half, part * LANES, &d, &min);
            }
            UNROLL for (int t = 0; t < rows; t++)
                f[part][t] = floats_fma(floats_mul(d, floats_set1(x->d[t])), floats_of_ints(dot[t]), f[part][t]);
            if (w->form->min)
                UNROLL for (int t = 0; t < rows; t++)
                    f[part][t] = floats_fma(min, floats_set1(x->s[half][t]), f[part][t]);
        }
}

/* Times `rows` rows, `groups` neighbouring groups at once: more than one for m->x itself, which is one row then. */
INLINE void tile(const struct mul *m, const enum mat_type type, const struct tile_weights *w, size_t at, uint32_t row, const int rows,
                 const int groups)
{
    const uint32_t block_bytes = pack_unit_bytes(type) / pack_forms[type].unit;
    const size_t end = (size_t)w->to * block_bytes, begin = (size_t)w->from * block_bytes;
    floats f[ONE_ROW_GROUPS][L / LANES][TILE];
    size_t group[ONE_ROW_GROUPS];               /* the last one again where there are none left */

    UNROLL for (int g = 0; g < groups; g++) {
        group[g] = (uint32_t)g < w->n_groups ? (size_t)g : w->n_groups - 1;
        EACH_PART for (int part = 0; part < L / LANES; part++)
            UNROLL for (int t = 0; t < rows; t++)
                f[g][part][t] = w->from ? floats_load(m->y[row + t] + at + part * LANES) : floats_set1(0);
    }
    for (uint32_t b = w->from; b < w->to; b++) {
        struct block_rows one;
        const struct block_rows *x = groups > 1 ? &one : &w->x[b - w->from];
        const int8_t (*q)[B] = groups > 1 ? (const int8_t (*)[B])(m->x->q + (size_t)b * B) : x->q;

        if (groups > 1)
            gather_scales(m->x, b, pack_forms[type].halves, start_offset(type, w->form), 0, &one);
        UNROLL for (int g = 0; g < groups; g++) {
            const size_t offset = group[g] * m->group_bytes;

            if (w->fetch[0]) {
                const size_t in = (size_t)b * block_bytes + w->ahead;
                const uint8_t *p = offset + (in < end ? w->fetch[0] + in : w->fetch[1] + begin + (in - end));

                UNROLL for (uint32_t line = 0; line < block_bytes; line += 64)
                    if (w->far)
                        prefetch_far(p + line);
                    else
                        prefetch(p + line);
            }
            add_block(type, w, w->group + offset, b, q, x, rows, f[g]);
        }
    }
    UNROLL for (int g = 0; g < groups; g++)
        EACH_PART for (int part = 0; part < L / LANES; part++)
            UNROLL for (int t = 0; t < rows; t++)
                floats_store(m->y[row + t] + at + group[g] * L + part * LANES, f[g][part][t]);
}

typedef void (*fill_panel_fn)(const uint8_t *group, const uint8_t *next, uint32_t b, uint32_t n, struct panel *p);

/* Blocks of tiles that are gathered at once: what stays in the first cache beside weights, and with panels, which take
 * longer, in the second. */
enum { FEW_BLOCKS = 48, PANEL_TILES = 8 };

/* Many rows. Compiled not for each type, only for each way of adding codes up. */
#define PANEL_TILE(n) (w.x = x[row / TILE], tile(m, type, &w, at, first + row, n, 1))
#define DEFINE_PANEL_MUL(name)                                                                     \
    static void panel_slab_##name(const struct pack_form *form, fill_panel_fn fill, const struct mul *m, uint32_t first, uint32_t n) \
    {                                                                                              \
        const enum mat_type type = MAT_##name;                                                     \
        const uint32_t n_blocks = m->x->k / B;                                                     \
        struct block_rows x[PANEL_TILES][PANEL];                                                   \
        struct panel panel;                                                                        \
                                                                                                   \
        for (uint32_t from = 0; from < n_blocks; from += PANEL) {                                  \
            const uint32_t to = n_blocks - from < PANEL ? n_blocks : from + PANEL;                 \
                                                                                                   \
            for (uint32_t row = 0; row < n; row += TILE)                                           \
                gather(m->x, form, start_offset(type, form), first + row, n - row < TILE ? n - row : TILE, from, to - from, \
                       x[row / TILE]);                                                             \
            for (uint32_t g = 0; g < m->n_groups; g++) {                                           \
                const uint8_t *group = m->w + g * m->group_bytes;                                  \
                const size_t at = m->at + (size_t)g * L;                                           \
                struct tile_weights w = { .form = form, .group = group, .panel = &panel, .from = from, .to = to, .n_groups = 1 }; \
                                                                                                   \
                fill(group, group_at(m, g + 1), from, to - from, &panel);                            \
                TILES(n, TILE, PANEL_TILE)                                                         \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    static void panel_mul_##name(const struct pack_form *form, fill_panel_fn fill, const struct mul *m) \
    {                                                                                              \
        const uint32_t most = PANEL_TILES * TILE;                                                  \
                                                                                                   \
        for (uint32_t row = 0; row < m->n_rows; row += most)                                       \
            panel_slab_##name(form, fill, m, row, m->n_rows - row < most ? m->n_rows - row : most); \
    }

/* LIKES(X): the types whose codes are added up in ways of their own; like(): which of them stands for a type. */

/* These, where words_in_16_bits() are added up at once and bytes are taken apart. */
#define LIKES_IN_16_BITS(X) X(Q2_K) X(Q4_0) X(Q5_0) X(Q6_K) X(Q8_0)

INLINE enum mat_type like_in_16_bits(const enum mat_type type)
{
    const int most = words_in_16_bits(type);

    if (pack_forms[type].halves)
        return most >= 4 ? MAT_Q2_K : MAT_Q6_K;
    return is_bytes(type) ? MAT_Q8_0 : most == 8 ? MAT_Q4_0 : MAT_Q5_0;
}

#define LIKE_ROW(name) [MAT_##name] = panel_mul_##name,
#define DEFINE_PANEL_MULS(LIKES)                                                                   \
    LIKES(DEFINE_PANEL_MUL)                                                                        \
    static void (*const panel_mul[MAT_TYPES])(const struct pack_form *, fill_panel_fn, const struct mul *) = { LIKES(LIKE_ROW) };

/* What to prefetch while `bytes` of group g meet rows from `row` on: the first tile does, later ones would only repeat it. */
INLINE void fetch_ahead(struct tile_weights *w, const struct mul *m, uint32_t g, size_t bytes, uint32_t row)
{
    const uint32_t to = g + (uint32_t)(FEW_ROWS_FAR / bytes);

    w->fetch[0] = row == 0 ? group_at(m, to) : NULL;
    w->fetch[1] = group_at(m, to + 1);
    w->ahead = FEW_ROWS_FAR % bytes;
}

/* Rows that take weights as they are packed: as many blocks of k at a time as can be gathered of all of them, as even as can be. */
#define FEW_TILE(n)                                                                                \
    (fetch_ahead(&w, m, g, (size_t)n_read * block_bytes, row), w.x = x + row / FEW_TILE_ROWS * chunk, \
     tile(m, type, &w, at, row, n, 1))
#define DEFINE_QUANT_MUL(name)                                                                     \
    static void few_##name(const struct mul *m)                                                    \
    {                                                                                              \
        const enum mat_type type = MAT_##name;                                                     \
        const struct pack_form *form = &pack_forms[type];                                          \
        const uint32_t block_bytes = pack_unit_bytes(type) / form->unit, n_blocks = m->x->k / B;   \
        const uint32_t most = FEW_BLOCKS / ((m->n_rows + FEW_TILE_ROWS - 1) / FEW_TILE_ROWS);      \
        const uint32_t n_chunks = (n_blocks + most - 1) / most, chunk = (n_blocks + n_chunks - 1) / n_chunks; \
        struct block_rows x[FEW_BLOCKS];                                                           \
                                                                                                   \
        for (uint32_t from = 0, n_read; from < n_blocks; from += n_read) {                         \
            n_read = n_blocks - from < chunk ? n_blocks - from : chunk;                            \
            for (uint32_t row = 0; row < m->n_rows; row += FEW_TILE_ROWS)                          \
                gather(m->x, form, start_offset(type, form), row,                                  \
                       m->n_rows - row < FEW_TILE_ROWS ? m->n_rows - row : FEW_TILE_ROWS, from, n_read, \
                       x + row / FEW_TILE_ROWS * chunk);                                           \
            for (uint32_t g = 0; g < m->n_groups; g++) {                                           \
                const size_t at = m->at + (size_t)g * L;                                           \
                struct tile_weights w = {                                                          \
                    .form = form, .group = group_at(m, g), .from = from, .to = from + n_read, .n_groups = 1, .far = true, \
                };                                                                                 \
                                                                                                   \
                TILES(m->n_rows, FEW_TILE_ROWS, FEW_TILE)                                          \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    static void one_##name(const struct mul *m)                                                    \
    {                                                                                              \
        const enum mat_type type = MAT_##name;                                                     \
        const bool far = m->n_groups * m->group_bytes >= FROM_MEMORY;                              \
                                                                                                   \
        for (uint32_t g = 0, n; g < m->n_groups; g += n) {                                         \
            n = m->n_groups - g < ONE_ROW_GROUPS ? m->n_groups - g : ONE_ROW_GROUPS;               \
            tile(m, type,                                                                          \
                 &(struct tile_weights){                                                           \
                     .form = &pack_forms[type], .group = group_at(m, g), .to = m->x->k / B, .n_groups = n, \
                     .fetch = { group_at(m, g), group_at(m, g + n) },                              \
                     .ahead = far ? ONE_ROW_FAR : ONE_ROW_AHEAD, .far = far,                       \
                 },                                                                                \
                 m->at + (size_t)g * L, 0, 1, ONE_ROW_GROUPS);                                     \
        }                                                                                          \
    }                                                                                              \
    static void fill_##name(const uint8_t *group, const uint8_t *next, uint32_t b, uint32_t n, struct panel *p) \
    {                                                                                              \
        fill_panel(MAT_##name, group, next, b, n, p);                                              \
    }                                                                                              \
    static void mul_##name(const struct mul *m)                                                    \
    {                                                                                              \
        if (m->n_rows == 1)                                                                        \
            one_##name(m);                                                                         \
        else if (m->n_rows < PANEL_ROWS)                                                           \
            few_##name(m);                                                                         \
        else                                                                                       \
            panel_mul[like(MAT_##name)](&pack_forms[MAT_##name], fill_##name, m);                  \
    }
