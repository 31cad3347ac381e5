/* lanes.h - the kernels that look the same for every vector width, written over
 * sixteen lanes of float. An instruction set includes this after it has defined
 *
 *     v16              sixteen floats, and v16_* below on them
 *     V16_CHAINS       independent sums that hide the latency of an fma
 *     V16_TILE         rows at once in a product with float weights
 *     V16_HEADS        query heads that share one load of K or V
 *     V16_DIMS         v16 of the head's output kept in registers
 *
 * Every loop over a constant is unrolled, so arrays of v16 are registers.
 */
#include "gen/cpu/half.h"
#include "gen/cpu/kernels.h"

#include <math.h>
#include <string.h>

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define INLINE static inline __attribute__((always_inline))

enum { L = KERNEL_LANES, PAGE = KERNEL_PAGE };

static inline void prefetch(const void *p) { __builtin_prefetch(p, 0, 3); }
static inline void prefetch_far(const void *p) { __builtin_prefetch(p, 0, 2); }     /* into the second cache */

/* e^x: x = n ln 2 + r, a polynomial of degree 6 in r, exponent n. Within 2 ulp; 0 below
 * -87.3, a NaN stays one. */
INLINE v16 v16_exp(v16 x)
{
    const v16 low = v16_set1(-87.3f);
    v16 c = v16_max(low, v16_min(v16_set1(88.3f), x));
    v16 n = v16_round(v16_mul(c, v16_set1(1.44269504f)));
    v16 r = v16_fnma(n, v16_set1(-2.12194440e-4f), v16_fnma(n, v16_set1(0.693359375f), c));
    v16 p = v16_set1(1.0f / 720);

    p = v16_fma(p, r, v16_set1(1.0f / 120));
    p = v16_fma(p, r, v16_set1(1.0f / 24));
    p = v16_fma(p, r, v16_set1(1.0f / 6));
    p = v16_fma(p, r, v16_set1(0.5f));
    p = v16_fma(p, r, v16_set1(1.0f));
    p = v16_fma(p, r, v16_set1(1.0f));
    return v16_zero_below(x, low, v16_ldexp(p, n));
}

/* By e^x: off by some 1e-7, not by that share of a small result. */
INLINE v16 v16_tanh(v16 x)
{
    const v16 one = v16_set1(1);

    return v16_sub(one, v16_div(v16_set1(2), v16_add(one, v16_exp(v16_add(x, x)))));
}

static void softcap(float *x, float cap, uint32_t n)
{
    const v16 by = v16_set1(1 / cap), to = v16_set1(cap);

    for (uint32_t i = 0; i < n; i += L)
        v16_store(x + i, v16_mul(to, v16_tanh(v16_mul(v16_load(x + i), by))));
}

/* ---- products with float weights ------------------------------------- */

INLINE v16 load_weights(const enum mat_type type, const void *w, size_t i)
{
    return type == MAT_F32   ? v16_load((const float *)w + i)
           : type == MAT_F16 ? v16_load_f16((const uint16_t *)w + i)
                             : v16_load_bf16((const uint16_t *)w + i);
}

INLINE void float_tile(const struct mul *m, const enum mat_type type, const uint8_t *w, const uint8_t *next,
                       size_t at, uint32_t row, const int rows)
{
    const size_t element = type == MAT_F32 ? 4 : 2;
    const uint32_t k = m->x->k;
    const float *x = m->x->f + (size_t)row * k;
    v16 f[V16_TILE][V16_CHAINS];

    UNROLL for (int t = 0; t < rows; t++)
        UNROLL for (int c = 0; c < V16_CHAINS; c++)
            f[t][c] = v16_set1(0);
    for (uint32_t i = 0; i < k; i += V16_CHAINS) {
        for (size_t line = 0; next && line < V16_CHAINS * L * element; line += 64)
            prefetch(next + i * L * element + line);
        UNROLL for (int c = 0; c < V16_CHAINS; c++) {
            const v16 v = load_weights(type, w, (size_t)(i + c) * L);

            UNROLL for (int t = 0; t < rows; t++)
                f[t][c] = v16_fma(v, v16_set1(x[(size_t)t * k + i + c]), f[t][c]);
        }
    }
    UNROLL for (int t = 0; t < rows; t++) {
        v16 sum = v16_add(f[t][0], f[t][1]);

        for (int c = 2; c < V16_CHAINS; c += 2)
            sum = v16_add(sum, v16_add(f[t][c], f[t][c + 1]));
        v16_store(m->y[row + t] + at, sum);
    }
}

/* Calls tile(rows) with a constant for each number of rows that is left, up to size. What is behind the comparisons with
 * size is not even compiled: of large tiles every case counts. */
#define TILE_IF(n, size, TILE_OF) if ((n) <= (size)) TILE_OF(n)
#define TILES(n, size, TILE_OF)                                                                    \
    for (uint32_t row = 0; row < (n); row += (size))                                               \
        switch ((n) - row < (size) ? (n) - row : (size)) {                                         \
        case 1: TILE_OF(1); break;                                                                 \
        case 2: TILE_OF(2); break;                                                                 \
        case 3: TILE_IF(3, size, TILE_OF); break;                                                  \
        case 4: TILE_IF(4, size, TILE_OF); break;                                                  \
        case 5: TILE_IF(5, size, TILE_OF); break;                                                  \
        case 6: TILE_IF(6, size, TILE_OF); break;                                                  \
        case 7: TILE_IF(7, size, TILE_OF); break;                                                  \
        case 8: TILE_IF(8, size, TILE_OF); break;                                                  \
        }

/* Group g of a call, or of what comes behind its last: to prefetch, so there need not be any. */
INLINE const uint8_t *group_at(const struct mul *m, uint32_t g)
{
    return g < m->n_groups || !m->next ? m->w + g * m->group_bytes : m->next + (g - m->n_groups) * m->group_bytes;
}

/* The first tile prefetches the next group; later ones would only repeat it. */
#define DEFINE_MUL(function, name, size, TILE_OF)                                                  \
    static void function(const struct mul *m)                                                      \
    {                                                                                              \
        const enum mat_type type = MAT_##name;                                                     \
                                                                                                   \
        for (uint32_t g = 0; g < m->n_groups; g++) {                                               \
            const uint8_t *w = m->w + g * m->group_bytes;                                          \
            const size_t at = m->at + (size_t)g * L;                                               \
                                                                                                   \
            TILES(m->n_rows, size, TILE_OF)                                                        \
        }                                                                                          \
    }
#define NEXT_IF_FIRST (row == 0 ? group_at(m, g + 1) : NULL)

#define FLOAT_TILE(n) float_tile(m, type, w, NEXT_IF_FIRST, at, row, n)
DEFINE_MUL(mul_F32, F32, V16_TILE, FLOAT_TILE)
DEFINE_MUL(mul_F16, F16, V16_TILE, FLOAT_TILE)
DEFINE_MUL(mul_BF16, BF16, V16_TILE, FLOAT_TILE)

/* ---- attention ------------------------------------------------------- */

/* Sixteen elements of a page of keys or values, from element `i` on, without the scale of KV_Q8. */
INLINE v16 load_kv(const enum kv_type type, const uint8_t *p, size_t i)
{
    return type == KV_F16    ? v16_load_f16((const uint16_t *)p + i)
           : type == KV_BF16 ? v16_load_bf16((const uint16_t *)p + i)
                             : v16_load_i8((const int8_t *)p + i);
}

/* Of 16 positions, for 16 dimensions from `at` on. */
INLINE v16 load_scales(const uint8_t *half, uint32_t head_dim, uint32_t at)
{
    return v16_load_bf16((const uint16_t *)(half + kv_elements_bytes(KV_Q8, head_dim)) + at);
}

INLINE const uint8_t *page_at(const struct attend *a, uint32_t t)
{
    return a->kv.page + a->pages[t / PAGE] * a->kv.page_stride;
}

INLINE void prefetch_bytes(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i += 64)
        prefetch(p + i);
}

/* Adds `n` dimensions of 16 positions, from `at` on: dimension i is one load, shared by the heads. V is fetched meanwhile, and
 * the keys of a page to come. */
INLINE void score_dims(const enum kv_type type, const float *q, uint32_t hd, const uint8_t *k, const uint8_t *ahead, uint32_t at,
                       uint32_t n, const int heads, v16 *even, v16 *odd)
{
    const size_t half = kv_half_bytes(type, hd), dim = kv_elements_bytes(type, 1);

    for (uint32_t i = at; i < at + n; i += 2) {
        const v16 k0 = load_kv(type, k, (size_t)i * PAGE), k1 = load_kv(type, k, (size_t)(i + 1) * PAGE);

        if (i * dim % 64 == 0) {
            prefetch(k + half + i * dim);
            prefetch(ahead + i * dim);
        }
        UNROLL for (int h = 0; h < heads; h++) {
            even[h] = v16_fma(k0, v16_set1(q[(size_t)h * hd + i]), even[h]);
            odd[h] = v16_fma(k1, v16_set1(q[(size_t)h * hd + i + 1]), odd[h]);
        }
    }
}

/* Scores of one page; two sums each hide latency. */
INLINE void score_page(const struct attend *a, const enum kv_type type, const float *q, const uint8_t *k, const uint8_t *ahead,
                       const int heads, float *p)
{
    const uint32_t hd = a->head_dim;
    v16 even[V16_HEADS], odd[V16_HEADS], score[V16_HEADS];

    UNROLL for (int h = 0; h < heads; h++)
        even[h] = odd[h] = score[h] = v16_set1(0);
    if (type == KV_Q8) {
        for (uint32_t at = 0; at < hd; at += L) {
            score_dims(type, q, hd, k, ahead, at, L, heads, even, odd);
            UNROLL for (int h = 0; h < heads; h++) {
                score[h] = v16_fma(load_scales(k, hd, at), v16_add(even[h], odd[h]), score[h]);
                even[h] = odd[h] = v16_set1(0);
            }
        }
        prefetch_bytes(k + kv_half_bytes(type, hd) + kv_elements_bytes(type, hd), 2 * (size_t)hd);
        prefetch_bytes(ahead + kv_elements_bytes(type, hd), 2 * (size_t)hd);
    } else {
        score_dims(type, q, hd, k, ahead, 0, hd, heads, even, odd);
        UNROLL for (int h = 0; h < heads; h++)
            score[h] = v16_add(even[h], odd[h]);
    }
    UNROLL for (int h = 0; h < heads; h++)
        v16_store(p + h * KERNEL_SPAN, v16_mul(score[h], v16_set1(a->scale)));
}

/* Scores to exponentials less their maximum; what lies behind n is not there, nor what is skipped. */
static void soften(const struct attend *a, float *p, float *ret_max, float *ret_sum)
{
    const uint32_t n = a->n, n_lanes = (n + L - 1) / L * L;
    v16 max, sum = v16_set1(0);

    if (a->softcap > 0)
        softcap(p, a->softcap, n_lanes);
    for (uint32_t t = 0; t < a->skip; t++)
        p[t] = -INFINITY;
    for (uint32_t t = n; t < n_lanes; t++)
        p[t] = -INFINITY;
    max = v16_load(p);
    for (uint32_t t = L; t < n_lanes; t += L)
        max = v16_max(max, v16_load(p + t));
    *ret_max = v16_reduce_max(max);
    max = v16_set1(*ret_max);
    for (uint32_t t = 0; t < n_lanes; t += L) {
        const v16 e = v16_exp(v16_sub(v16_load(p + t), max));

        v16_store(p + t, e);
        sum = v16_add(sum, e);
    }
    *ret_sum = v16_reduce_add(sum);
}

/* dims * 16 dimensions of the output, from `at` on. The scales of KV_Q8 are of a position: they go into its weight. */
INLINE void weigh(const struct attend *a, const enum kv_type type, float *o, uint32_t at, const int heads, const int dims,
                  const float *p)
{
    const uint32_t hd = a->head_dim;
    v16 sum[V16_HEADS][V16_DIMS];
    float scaled[V16_HEADS][V16_DIMS][PAGE];

    UNROLL for (int h = 0; h < heads; h++)
        UNROLL for (int d = 0; d < dims; d++)
            sum[h][d] = v16_set1(0);
    for (uint32_t t0 = 0, skip = a->skip; t0 < a->n; t0 += PAGE, skip = 0) {
        const uint8_t *v = page_at(a, t0) + kv_half_bytes(type, hd);
        const uint32_t n = a->n - t0 < PAGE ? a->n - t0 : PAGE;

        if (at == 0 && t0 < 2 * PAGE && a->next[t0 / PAGE])
            prefetch_bytes(a->next[t0 / PAGE], kv_half_bytes(type, hd));
        if (type == KV_Q8)
            UNROLL for (int d = 0; d < dims; d++) {
                const v16 s = load_scales(v, hd, at + d * L);

                UNROLL for (int h = 0; h < heads; h++)
                    v16_store(scaled[h][d], v16_mul(s, v16_load(p + h * KERNEL_SPAN + t0)));
            }
        for (uint32_t t = skip; t < n; t++)
            UNROLL for (int d = 0; d < dims; d++) {
                const v16 x = load_kv(type, v, (size_t)t * hd + at + d * L);

                UNROLL for (int h = 0; h < heads; h++)
                    sum[h][d] = v16_fma(x, v16_set1(type == KV_Q8 ? scaled[h][d][t] : p[h * KERNEL_SPAN + t0 + t]), sum[h][d]);
            }
    }
    UNROLL for (int h = 0; h < heads; h++)
        UNROLL for (int d = 0; d < dims; d++)
            v16_store(o + (size_t)h * hd + at + d * L, sum[h][d]);
}

INLINE void attend_heads(const struct attend *a, const enum kv_type type, uint32_t first, const int heads)
{
    const uint32_t hd = a->head_dim;
    float p[V16_HEADS * KERNEL_SPAN] __attribute__((aligned(64)));
    float *o = a->o + (size_t)first * hd;
    uint32_t at = 0, t = 0;

    do {                        /* two pages ahead: one is read faster than memory answers */
        score_page(a, type, a->q + (size_t)first * hd, page_at(a, t), page_at(a, t + 2 * PAGE < a->n ? t + 2 * PAGE : t), heads, p + t);
        t += PAGE;
    } while (t < a->n);
    for (int h = 0; h < heads; h++)
        soften(a, p + h * KERNEL_SPAN, &a->max[first + h], &a->sum[first + h]);
    for (; at + V16_DIMS * L <= hd; at += V16_DIMS * L)
        weigh(a, type, o, at, heads, V16_DIMS, p);
    for (; at < hd; at += L)
        weigh(a, type, o, at, heads, 1, p);
}

#define DEFINE_ATTEND(type)                                                                        \
    static void attend_##type(const struct attend *a) { TILES(a->n_q, V16_HEADS, ATTEND_##type) }
#define ATTEND_f16(n) attend_heads(a, KV_F16, row, n)
#define ATTEND_bf16(n) attend_heads(a, KV_BF16, row, n)
#define ATTEND_q8(n) attend_heads(a, KV_Q8, row, n)
DEFINE_ATTEND(f16)
DEFINE_ATTEND(bf16)
DEFINE_ATTEND(q8)

static void attend(const struct attend *a)
{
    switch (a->kv.type) {
    case KV_F16: attend_f16(a); break;
    case KV_BF16: attend_bf16(a); break;
    case KV_Q8: attend_q8(a); break;
    case KV_TYPES: break;
    }
}

static void fold(float *max, float *sum, float *o, const float *b_max, const float *b_sum,
                 const float *b_o, uint32_t n, uint32_t head_dim)
{
    for (uint32_t h = 0; h < n; h++, o += head_dim, b_o += head_dim) {
        const float m = fmaxf(max[h], b_max[h]), ea = expf(max[h] - m), eb = expf(b_max[h] - m);

        max[h] = m;
        sum[h] = sum[h] * ea + b_sum[h] * eb;
        for (uint32_t i = 0; i < head_dim; i += L)
            v16_store(o + i, v16_fma(v16_load(o + i), v16_set1(ea),
                                     v16_mul(v16_load(b_o + i), v16_set1(eb))));
    }
}

/* ---- rows ------------------------------------------------------------ */

static void quantise(const float *x, uint32_t n, int8_t *q, float *d, int32_t *sum, int32_t *half)
{
    for (uint32_t b = 0; b < n / KERNEL_BLOCK; b++, x += KERNEL_BLOCK, q += KERNEL_BLOCK) {
        const v16 lo = v16_load(x), hi = v16_load(x + L);
        const float max = v16_reduce_max(v16_max(v16_abs(lo), v16_abs(hi)));
        const v16 by = v16_set1(max > 0 ? 127.0f / max : 0);

        half[b] = v16_to_i8(v16_mul(lo, by), q);
        sum[b] = half[b] + v16_to_i8(v16_mul(hi, by), q + L);
        d[b] = max / 127.0f;
    }
}

static void rms_norm(const float *x, const float *w, uint32_t n, uint32_t n_real, float eps, float *out)
{
    v16 even = v16_set1(0), odd = v16_set1(0), by;

    for (uint32_t i = 0; i < n; i += 2 * L) {
        const v16 a = v16_load(x + i), b = v16_load(x + i + L);

        even = v16_fma(a, a, even);
        odd = v16_fma(b, b, odd);
    }
    by = v16_set1(1.0f / sqrtf(v16_reduce_add(v16_add(even, odd)) / (float)n_real + eps));
    for (uint32_t i = 0; i < n; i += L)
        v16_store(out + i, v16_mul(v16_mul(v16_load(x + i), by), v16_load(w + i)));
}

static void add(float *x, const float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += L)
        v16_store(x + i, v16_add(v16_load(x + i), v16_load(y + i)));
}

static void scale(float *x, float by, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += L)
        v16_store(x + i, v16_mul(v16_load(x + i), v16_set1(by)));
}

static void silu_mul(const float *gate, const float *up, uint32_t n, float *out)
{
    for (uint32_t i = 0; i < n; i += L) {
        const v16 g = v16_load(gate + i), e = v16_exp(v16_sub(v16_set1(0), g));

        v16_store(out + i, v16_mul(v16_div(g, v16_add(v16_set1(1), e)), v16_load(up + i)));
    }
}

/* x / (1 + e^-2u) is 0.5 x (1 + tanh(u)). */
static void gelu_tanh_mul(const float *gate, const float *up, uint32_t n, float *out)
{
    const v16 one = v16_set1(1), cube = v16_set1(GELU_CUBE), by = v16_set1(-2 * SQRT_2_OVER_PI);

    for (uint32_t i = 0; i < n; i += L) {
        const v16 x = v16_load(gate + i), u = v16_mul(v16_mul(by, x), v16_fma(v16_mul(cube, x), x, one));

        v16_store(out + i, v16_mul(v16_div(x, v16_add(one, v16_exp(u))), v16_load(up + i)));
    }
}

static void rope(float *x, const float *c, const float *s, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += L) {
        const v16 v = v16_load(x + i);

        v16_store(x + i, v16_fma(v, v16_load(c + i), v16_mul(v16_swap_pairs(v), v16_load(s + i))));
    }
}

/* ---- keys and values -------------------------------------------------- */

static void put_v_f16(uint8_t *page, uint32_t head_dim, uint32_t pos, uint32_t at, const float *x)
{
    v16_store_f16((uint16_t *)(page + kv_half_bytes(KV_F16, head_dim)) + (size_t)pos * head_dim + at, v16_load(x));
}

static void put_k_f16(uint8_t *page, uint32_t head_dim, uint32_t pos, uint32_t at, const float *x)
{
    uint16_t half[L], *k = (uint16_t *)page + (size_t)at * PAGE + pos;

    (void)head_dim;
    v16_store_f16(half, v16_load(x));
    for (int i = 0; i < L; i++)
        k[i * PAGE] = half[i];
}

static void put_v_bf16(uint8_t *page, uint32_t head_dim, uint32_t pos, uint32_t at, const float *x)
{
    uint16_t *v = (uint16_t *)(page + kv_half_bytes(KV_BF16, head_dim)) + (size_t)pos * head_dim + at;

    for (int i = 0; i < L; i++)
        v[i] = bf16_of_f32(x[i]);
}

static void put_k_bf16(uint8_t *page, uint32_t head_dim, uint32_t pos, uint32_t at, const float *x)
{
    uint16_t *k = (uint16_t *)page + (size_t)at * PAGE + pos;

    (void)head_dim;
    for (int i = 0; i < L; i++)
        k[i * PAGE] = bf16_of_f32(x[i]);
}

/* Sixteen numbers as int8 and the scale of all. Where one is not finite, the scale is a NaN. */
INLINE void put_q8(uint8_t *half, uint32_t head_dim, uint32_t pos, uint32_t at, v16 x, int8_t *q)
{
    const float nan = v16_reduce_add(v16_mul(x, v16_set1(0)));
    float by;

    ((uint16_t *)(half + kv_elements_bytes(KV_Q8, head_dim)))[at + pos] =
        kv_q8_scale(isnan(nan) ? nan : v16_reduce_max(v16_abs(x)), &by);
    if (by > 0)
        v16_to_i8(v16_mul(x, v16_set1(by)), q);
    else
        memset(q, 0, L);
}

static void put_v_q8(uint8_t *page, uint32_t head_dim, uint32_t pos, uint32_t at, const float *x)
{
    uint8_t *v = page + kv_half_bytes(KV_Q8, head_dim);

    put_q8(v, head_dim, pos, at, v16_load(x), (int8_t *)v + (size_t)pos * head_dim + at);
}

static void put_k_q8(uint8_t *page, uint32_t head_dim, uint32_t pos, uint32_t at, const float *x)
{
    int8_t q[L], *k = (int8_t *)page + (size_t)at * PAGE + pos;

    put_q8(page, head_dim, pos, at, v16_load(x), q);
    for (int i = 0; i < L; i++)
        k[i * PAGE] = q[i];
}

#define MUL_ROW(name) [MAT_##name] = mul_##name,
/* QUANT_ROW: as MUL_ROW, for the products with quantised weights. */
#define KERNELS_TABLE(isa, QUANT_ROW, prompt_kernels) KERNELS_TABLE_AS(isa, #isa, QUANT_ROW, prompt_kernels)
#define KERNELS_TABLE_AS(isa, title, QUANT_ROW, prompt_kernels)                                    \
    extern const struct kernels kernels_##isa;                                                     \
    const struct kernels kernels_##isa = {                                                         \
        .name = title,                                                                             \
        .mul = {                                                                                   \
            MUL_ROW(F32) MUL_ROW(F16) MUL_ROW(BF16) MAT_QUANTISED(QUANT_ROW)                       \
        },                                                                                         \
        .attend = attend,                                                                          \
        .fold = fold,                                                                              \
        .quantise = quantise,                                                                      \
        .rms_norm = rms_norm,                                                                      \
        .add = add,                                                                                \
        .scale = scale,                                                                            \
        .silu_mul = silu_mul,                                                                      \
        .gelu_tanh_mul = gelu_tanh_mul,                                                            \
        .softcap = softcap,                                                                        \
        .rope = rope,                                                                              \
        .put_k = { put_k_f16, put_k_bf16, put_k_q8 },                                              \
        .put_v = { put_v_f16, put_v_bf16, put_v_q8 },                                              \
        .prompt = prompt_kernels,                                                                  \
    }
