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

/* dot[row] += words of a half of a block, or of all of it, * activations: x is the first row's block, rows are k apart. */
INLINE void dot_words(const enum mat_type type, struct block_words from, const int half, const int lane, const int8_t *x,
                      uint32_t k, const int rows, ints *dot);

/* One row of activations at one block, by the half of it that is meant, or all. */
INLINE int32_t sum_of(const struct acts *x, size_t i, const bool halves, const int half)
{
    return !halves ? x->sum[i] : half ? x->sum[i] - x->half[i] : x->half[i];
}

/* What a tile multiplies: blocks [from, to) of a group, as they are packed or as a panel from `from` on. */
struct tile_weights {
    const struct pack_form *form;
    const uint8_t *group, *next;        /* next: to prefetch, or NULL */
    const struct panel *panel;          /* or NULL */
    uint32_t from, to;
    uint32_t n_groups;          /* that there are, if fewer than are multiplied at once */
    size_t ahead;               /* bytes */
};

/* How far ahead of what is read to prefetch. What comes from memory wants it in the same page of 4 KB: from another page it comes no
 * sooner than without. One row reads several groups at once, a little of each. Several rows take their time with one; where it may come
 * from a cache, all of the next group on its way is worth more. */
enum { ONE_ROW_AHEAD = 2048, FEW_ROWS_AHEAD = 3584, FROM_MEMORY = 32 << 20 };

INLINE size_t few_rows_ahead(const struct mul *m)
{
    return (size_t)m->n_groups * m->group_bytes < FROM_MEMORY ? m->group_bytes : FEW_ROWS_AHEAD;
}

/* Adds block b of a group, times `rows` rows from `row` on. With a panel, type is one whose codes are added up alike. */
INLINE void add_block(const struct acts *x, const enum mat_type type, const struct tile_weights *w, const uint8_t *group, uint32_t b,
                      uint32_t row, const int rows, floats f[L / LANES][TILE])
{
    const bool halves = pack_forms[type].halves;
    const uint32_t k = x->k, n_blocks = k / B;
    const size_t first = (size_t)row * n_blocks + b;
    const struct panel *panel = w->panel;
    const struct block_words from = { group, b, panel ? panel->codes[b - w->from] : NULL };

    EACH_PART for (int part = 0; part < L / LANES; part++)
        UNROLL for (int half = 0; half < 1 + halves; half++) {
            ints dot[TILE];
            floats d, min;

            UNROLL for (int t = 0; t < rows; t++)
                dot[t] = ints_set1(-start_offset(type, w->form) * sum_of(x, first + (size_t)t * n_blocks, halves, half));
            dot_words(type, from, half, part * LANES, x->q + (size_t)row * k + (size_t)b * B, k, rows, dot);
            if (panel) {
                d = floats_load(panel->d[b - w->from][half] + part * LANES);
                min = floats_load(panel->min[b - w->from][half] + part * LANES);
            } else {
                scales(type, group, b, half, part * LANES, &d, &min);
            }
            UNROLL for (int t = 0; t < rows; t++)
                f[part][t] = floats_fma(floats_mul(d, floats_set1(x->d[first + (size_t)t * n_blocks])), floats_of_ints(dot[t]),
                                        f[part][t]);
            if (w->form->min)
                UNROLL for (int t = 0; t < rows; t++) {
                    const size_t i = first + (size_t)t * n_blocks;
                    const float s = halves ? x->d[i] * (float)sum_of(x, i, halves, half) : x->s[i];

                    f[part][t] = floats_fma(min, floats_set1(s), f[part][t]);
                }
        }
}

/* Times `rows` rows, `groups` neighbouring groups at once. */
INLINE void tile(const struct mul *m, const enum mat_type type, const struct tile_weights *w, size_t at, uint32_t row, const int rows,
                 const int groups)
{
    const uint32_t block_bytes = pack_unit_bytes(type) / pack_forms[type].unit;
    floats f[ONE_ROW_GROUPS][L / LANES][TILE];
    size_t group[ONE_ROW_GROUPS];               /* the last one again where there are none left */

    UNROLL for (int g = 0; g < groups; g++) {
        group[g] = (uint32_t)g < w->n_groups ? (size_t)g : w->n_groups - 1;
        EACH_PART for (int part = 0; part < L / LANES; part++)
            UNROLL for (int t = 0; t < rows; t++)
                f[g][part][t] = w->from ? floats_load(m->y[row + t] + at + part * LANES) : floats_set1(0);
    }
    for (uint32_t b = w->from; b < w->to; b++)
        UNROLL for (int g = 0; g < groups; g++) {
            const size_t offset = group[g] * m->group_bytes;

            if (w->next) {
                const size_t in = (size_t)b * block_bytes + w->ahead;
                const uint8_t *p = offset + (in < m->group_bytes ? w->group + in : w->next + (in - m->group_bytes));

                UNROLL for (uint32_t line = 0; line < block_bytes; line += 64)
                    prefetch(p + line);
            }
            add_block(m->x, type, w, w->group + offset, b, row, rows, f[g]);
        }
    UNROLL for (int g = 0; g < groups; g++)
        EACH_PART for (int part = 0; part < L / LANES; part++)
            UNROLL for (int t = 0; t < rows; t++)
                floats_store(m->y[row + t] + at + group[g] * L + part * LANES, f[g][part][t]);
}

typedef void (*fill_panel_fn)(const uint8_t *group, const uint8_t *next, uint32_t b, uint32_t n, struct panel *p);

/* Many rows. Compiled not for each type, only for each way of adding codes up. */
#define PANEL_TILE(n) tile(m, type, &w, at, row, n, 1)
#define DEFINE_PANEL_MUL(name)                                                                     \
    static void panel_mul_##name(const struct pack_form *form, fill_panel_fn fill, const struct mul *m) \
    {                                                                                              \
        const enum mat_type type = MAT_##name;                                                     \
        const uint32_t n_blocks = m->x->k / B;                                                     \
        struct panel panel;                                                                        \
                                                                                                   \
        for (uint32_t g = 0; g < m->n_groups; g++) {                                               \
            const uint8_t *group = m->w + g * m->group_bytes;                                      \
            const size_t at = m->at + (size_t)g * L;                                               \
                                                                                                   \
            for (uint32_t from = 0; from < n_blocks; from += PANEL) {                              \
                const uint32_t to = n_blocks - from < PANEL ? n_blocks : from + PANEL;             \
                const struct tile_weights w = { form, group, NULL, &panel, from, to, 1, 0 };       \
                                                                                                   \
                fill(group, next_group(m, g), from, to - from, &panel);                            \
                TILES(m->n_rows, TILE, PANEL_TILE)                                                 \
            }                                                                                      \
        }                                                                                          \
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

#define FEW_WEIGHTS(next, n_groups, ahead) &(struct tile_weights){ &pack_forms[type], w, next, NULL, 0, m->x->k / B, n_groups, ahead }
#define FEW_TILE(n) tile(m, type, FEW_WEIGHTS(NEXT_IF_FIRST, 1, few_rows_ahead(m)), at, row, n, 1)
#define DEFINE_QUANT_MUL(name)                                                                     \
    DEFINE_MUL(few_##name, name, FEW_TILE_ROWS, FEW_TILE)                                          \
    static void one_##name(const struct mul *m)                                                    \
    {                                                                                              \
        const enum mat_type type = MAT_##name;                                                     \
                                                                                                   \
        for (uint32_t g = 0, n; g < m->n_groups; g += n) {                                         \
            const uint8_t *w = m->w + g * m->group_bytes;                                          \
                                                                                                   \
            n = m->n_groups - g < ONE_ROW_GROUPS ? m->n_groups - g : ONE_ROW_GROUPS;               \
            tile(m, type, FEW_WEIGHTS(next_group(m, g + n - 1), n, ONE_ROW_AHEAD), m->at + (size_t)g * L, 0, 1, ONE_ROW_GROUPS); \
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
