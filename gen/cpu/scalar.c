/* Plain C over the same packed bytes: the twin that every fast kernel is held
 * to, and what runs where nothing faster is known. */
#include "gen/cpu/half.h"
#include "gen/cpu/kernels.h"
#include "gen/cpu/pack.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { L = KERNEL_LANES };

/* 16 rows of a block, taken apart: integers, and scale and minimum of either half. */
struct block {
    int8_t q[L][KERNEL_BLOCK];
    float d[2][L], m[2][L];
};

PACK_INLINE void take_apart(enum mat_type type, const uint8_t *group, uint32_t b, struct block *w)
{
    for (uint32_t r = 0; r < L; r++) {
        for (uint32_t half = 0; half < 2; half++)
            pack_scales(type, group, b, half, r, &w->d[half][r], &w->m[half][r]);
        for (uint32_t i = 0; i < KERNEL_BLOCK; i++)
            w->q[r][i] = (int8_t)pack_integer(type, group, b, r, i);
    }
}

static int32_t dot(const int8_t *w, const int8_t *x, int n)
{
    int32_t sum = 0;

    for (int i = 0; i < n; i++)
        sum += w[i] * x[i];
    return sum;
}

/* Block b of one row of activations into y: a step for each scale. */
PACK_INLINE void add_block(enum mat_type type, const struct block *w, const struct acts *x, size_t b, float *y)
{
    const int n = pack_forms[type].halves ? KERNEL_BLOCK / 2 : KERNEL_BLOCK;

    for (int at = 0, half = 0; at < KERNEL_BLOCK; at += n, half++) {
        const int32_t sum = n == KERNEL_BLOCK ? x->sum[b] : half ? x->sum[b] - x->half[b] : x->half[b];

        for (int r = 0; r < L; r++) {
            y[r] += w->d[half][r] * x->d[b] * (float)dot(w->q[r] + at, x->q + b * KERNEL_BLOCK + at, n);
            if (pack_forms[type].min)
                y[r] += w->m[half][r] * (x->d[b] * (float)sum);
        }
    }
}

PACK_INLINE void mul_quantised(const struct mul *m, enum mat_type type)
{
    const uint32_t n_blocks = m->x->k / KERNEL_BLOCK;

    for (uint32_t g = 0; g < m->n_groups; g++) {
        const size_t at = m->at + (size_t)g * L;

        for (uint32_t row = 0; row < m->n_rows; row++)
            memset(m->y[row] + at, 0, L * sizeof(float));
        for (uint32_t b = 0; b < n_blocks; b++) {
            struct block w;

            take_apart(type, m->w + g * m->group_bytes, b, &w);
            for (uint32_t row = 0; row < m->n_rows; row++)
                add_block(type, &w, m->x, (size_t)row * n_blocks + b, m->y[row] + at);
        }
    }
}

#define DEFINE_MUL(name) static void mul_##name(const struct mul *m) { mul_quantised(m, MAT_##name); }
MAT_QUANTISED(DEFINE_MUL)

static float get_f32(const void *w, size_t i) { return ((const float *)w)[i]; }
static float get_f16(const void *w, size_t i) { return f16_to_f32(((const uint16_t *)w)[i]); }
static float get_bf16(const void *w, size_t i) { return bf16_to_f32(((const uint16_t *)w)[i]); }

static inline void mul_float(const struct mul *m, float (*get)(const void *, size_t))
{
    const uint32_t k = m->x->k;

    for (uint32_t g = 0; g < m->n_groups; g++)
        for (uint32_t row = 0; row < m->n_rows; row++) {
            const float *x = m->x->f + (size_t)row * k;
            float *y = m->y[row] + m->at + (size_t)g * L;
            float f[L] = { 0 };

            for (uint32_t i = 0; i < k; i++)
                for (int r = 0; r < L; r++)
                    f[r] += get(m->w + g * m->group_bytes, (size_t)i * L + r) * x[i];
            for (int r = 0; r < L; r++)
                y[r] = f[r];
        }
}

static void mul_f32(const struct mul *m) { mul_float(m, get_f32); }
static void mul_f16(const struct mul *m) { mul_float(m, get_f16); }
static void mul_bf16(const struct mul *m) { mul_float(m, get_bf16); }

static void softcap(float *x, float cap, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = cap * tanhf(x[i] / cap);
}

/* ---- keys and values -------------------------------------------------- */

/* Element `i` of K or V, and in KV_Q8 the scale of its 16 dimensions, at this position. */
static float kv_get(enum kv_type type, uint32_t head_dim, const uint8_t *half, size_t i, uint32_t dim, uint32_t pos)
{
    const uint16_t *scales = (const uint16_t *)(half + kv_elements_bytes(KV_Q8, head_dim));

    if (type == KV_Q8)
        return bf16_to_f32(scales[dim / L * KERNEL_PAGE + pos]) * (float)(int8_t)half[i];
    return (type == KV_F16 ? f16_to_f32 : bf16_to_f32)(((const uint16_t *)half)[i]);
}

static float kv_get_k(const struct attend *a, uint32_t t, uint32_t dim)
{
    const uint8_t *page = a->kv.page + a->pages[t / KERNEL_PAGE] * a->kv.page_stride;
    const uint32_t pos = t % KERNEL_PAGE;

    return kv_get(a->kv.type, a->head_dim, page, (size_t)dim * KERNEL_PAGE + pos, dim, pos);
}

static float kv_get_v(const struct attend *a, uint32_t t, uint32_t dim)
{
    const uint8_t *page = a->kv.page + a->pages[t / KERNEL_PAGE] * a->kv.page_stride;
    const uint32_t pos = t % KERNEL_PAGE;

    return kv_get(a->kv.type, a->head_dim, page + kv_half_bytes(a->kv.type, a->head_dim),
                  (size_t)pos * a->head_dim + dim, dim, pos);
}

static void attend(const struct attend *a)
{
    const uint32_t hd = a->head_dim;

    for (uint32_t h = 0; h < a->n_q; h++) {
        const float *q = a->q + (size_t)h * hd;
        float p[KERNEL_SPAN], max = -INFINITY, sum = 0, *o = a->o + (size_t)h * hd;

        for (uint32_t t = a->skip; t < a->n; t++) {
            float score = 0;

            for (uint32_t i = 0; i < hd; i++)
                score += q[i] * kv_get_k(a, t, i);
            p[t] = score * a->scale;
            if (a->softcap > 0)
                softcap(&p[t], a->softcap, 1);
            max = fmaxf(max, p[t]);
        }
        for (uint32_t i = 0; i < hd; i++)
            o[i] = 0;
        for (uint32_t t = a->skip; t < a->n; t++) {
            float e = expf(p[t] - max);

            sum += e;
            for (uint32_t i = 0; i < hd; i++)
                o[i] += e * kv_get_v(a, t, i);
        }
        a->max[h] = max;
        a->sum[h] = sum;
    }
}

static void put_halves(uint16_t (*of)(float), const float *x, uint16_t *out, size_t step)
{
    for (int i = 0; i < L; i++)
        out[i * step] = of(x[i]);
}

static void put_k_f16(uint8_t *page, uint32_t head_dim, uint32_t pos, uint32_t at, const float *x)
{
    (void)head_dim;
    put_halves(f16_of_f32, x, (uint16_t *)page + (size_t)at * KERNEL_PAGE + pos, KERNEL_PAGE);
}

static void put_k_bf16(uint8_t *page, uint32_t head_dim, uint32_t pos, uint32_t at, const float *x)
{
    (void)head_dim;
    put_halves(bf16_of_f32, x, (uint16_t *)page + (size_t)at * KERNEL_PAGE + pos, KERNEL_PAGE);
}

static void put_v_f16(uint8_t *page, uint32_t head_dim, uint32_t pos, uint32_t at, const float *x)
{
    put_halves(f16_of_f32, x, (uint16_t *)(page + kv_half_bytes(KV_F16, head_dim)) + (size_t)pos * head_dim + at, 1);
}

static void put_v_bf16(uint8_t *page, uint32_t head_dim, uint32_t pos, uint32_t at, const float *x)
{
    put_halves(bf16_of_f32, x, (uint16_t *)(page + kv_half_bytes(KV_BF16, head_dim)) + (size_t)pos * head_dim + at, 1);
}

/* Where one number is not finite none of its 16 are, as the scale is a NaN. */
static void put_q8(uint8_t *half, uint32_t head_dim, uint32_t pos, uint32_t at, const float *x, int8_t *out, size_t step)
{
    uint16_t *scale = (uint16_t *)(half + kv_elements_bytes(KV_Q8, head_dim)) + (size_t)(at / L) * KERNEL_PAGE + pos;
    bool finite = true;
    float max = 0, by;

    for (int i = 0; i < L; i++) {
        finite = finite && isfinite(x[i]);
        max = fmaxf(max, fabsf(x[i]));
    }
    *scale = kv_q8_scale(finite ? max : NAN, &by);
    for (int i = 0; i < L; i++)
        out[i * step] = by > 0 ? (int8_t)lrintf(x[i] * by) : 0;
}

static void put_k_q8(uint8_t *page, uint32_t head_dim, uint32_t pos, uint32_t at, const float *x)
{
    put_q8(page, head_dim, pos, at, x, (int8_t *)page + (size_t)at * KERNEL_PAGE + pos, KERNEL_PAGE);
}

static void put_v_q8(uint8_t *page, uint32_t head_dim, uint32_t pos, uint32_t at, const float *x)
{
    uint8_t *v = page + kv_half_bytes(KV_Q8, head_dim);

    put_q8(v, head_dim, pos, at, x, (int8_t *)v + (size_t)pos * head_dim + at, 1);
}

static void fold(float *max, float *sum, float *o, const float *b_max, const float *b_sum,
                 const float *b_o, uint32_t n, uint32_t head_dim)
{
    for (uint32_t h = 0; h < n; h++, o += head_dim, b_o += head_dim) {
        float m = fmaxf(max[h], b_max[h]), ea = expf(max[h] - m), eb = expf(b_max[h] - m);

        max[h] = m;
        sum[h] = sum[h] * ea + b_sum[h] * eb;
        for (uint32_t i = 0; i < head_dim; i++)
            o[i] = o[i] * ea + b_o[i] * eb;
    }
}

static void quantise(const float *x, uint32_t n, int8_t *q, float *d, int32_t *sum, int32_t *half)
{
    for (uint32_t b = 0; b < n / KERNEL_BLOCK; b++, x += KERNEL_BLOCK, q += KERNEL_BLOCK) {
        float max = 0, by;
        int32_t total = 0;

        for (int i = 0; i < KERNEL_BLOCK; i++)
            max = fmaxf(max, fabsf(x[i]));
        by = max > 0 ? 127.0f / max : 0;
        for (int i = 0; i < KERNEL_BLOCK; i++) {
            long v = lrintf(x[i] * by);

            q[i] = (int8_t)v;
            total += (int32_t)v;
            if (i == KERNEL_BLOCK / 2 - 1)
                half[b] = total;
        }
        d[b] = max / 127.0f;
        sum[b] = total;
    }
}

static void rms_norm(const float *x, const float *w, uint32_t n, uint32_t n_real, float eps, float *out)
{
    float sum = 0, by;

    for (uint32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    by = 1.0f / sqrtf(sum / (float)n_real + eps);
    for (uint32_t i = 0; i < n; i++)
        out[i] = x[i] * by * w[i];
}

static void add(float *x, const float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] += y[i];
}

static void scale(float *x, float by, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] *= by;
}

static void silu_mul(const float *gate, const float *up, uint32_t n, float *out)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}

static void gelu_tanh_mul(const float *gate, const float *up, uint32_t n, float *out)
{
    for (uint32_t i = 0; i < n; i++) {
        const float x = gate[i], u = SQRT_2_OVER_PI * x * (1 + GELU_CUBE * x * x);

        out[i] = 0.5f * x * (1 + tanhf(u)) * up[i];
    }
}

static void rope(float *x, const float *c, const float *s, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 2) {
        float a = x[i], b = x[i + 1];

        x[i] = a * c[i] + b * s[i];
        x[i + 1] = b * c[i + 1] + a * s[i + 1];
    }
}


const struct kernels kernels_scalar = {
    .name = "scalar",
    .mul = {
        [MAT_F32] = mul_f32, [MAT_F16] = mul_f16, [MAT_BF16] = mul_bf16,
#define MUL_ROW(name) [MAT_##name] = mul_##name,
        MAT_QUANTISED(MUL_ROW)
#undef MUL_ROW
    },
    .attend = attend,
    .fold = fold,
    .quantise = quantise,
    .rms_norm = rms_norm,
    .add = add,
    .scale = scale,
    .silu_mul = silu_mul,
    .gelu_tanh_mul = gelu_tanh_mul,
    .softcap = softcap,
    .rope = rope,
    .put_k = { put_k_f16, put_k_bf16, put_k_q8 },
    .put_v = { put_v_f16, put_v_bf16, put_v_q8 },
};
