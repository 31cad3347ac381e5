/* Plain C over the same packed bytes: the twin that every fast kernel is held
 * to, and what runs where nothing faster is known. */
#include "gen/cpu/half.h"
#include "gen/cpu/kernels.h"
#include "gen/cpu/pack.h"

#include <math.h>

enum { L = KERNEL_LANES };

struct block {
    int32_t dot[L];
    const uint16_t *d, *m;      /* m: NULL when the type has no minimum */
};

static void block_q4(const uint8_t *at, const int8_t *x, int32_t start, int32_t *dot)
{
    for (int r = 0; r < L; r++) {
        int32_t sum = start;

        for (int j = 0; j < 4; j++)
            for (int z = 0; z < 4; z++) {
                uint8_t w = at[j * 64 + r * 4 + z];

                sum += (w & 15) * x[j * 4 + z] + (w >> 4) * x[16 + j * 4 + z];
            }
        dot[r] = sum;
    }
}

static void block_q8(const uint8_t *at, const int8_t *x, int32_t start, int32_t *dot)
{
    for (int r = 0; r < L; r++) {
        int32_t sum = start;

        for (int j = 0; j < 8; j++)
            for (int z = 0; z < 4; z++)
                sum += at[j * 64 + r * 4 + z] * x[j * 4 + z];
        dot[r] = sum;
    }
}

static void get_q4_0(const uint8_t *group, uint32_t b, const int8_t *x, int32_t sum, struct block *ret)
{
    block_q4(pack_q4_0_quants(group, b), x, -8 * sum, ret->dot);
    ret->d = pack_q4_0_scales(group, b);
    ret->m = NULL;
}

static void get_q4_1(const uint8_t *group, uint32_t b, const int8_t *x, int32_t sum, struct block *ret)
{
    block_q4(pack_q4_1_quants(group, b), x, 0, ret->dot);
    ret->d = pack_q4_1_scales(group, b);
    ret->m = ret->d + L;
}

static void get_q8_0(const uint8_t *group, uint32_t b, const int8_t *x, int32_t sum, struct block *ret)
{
    block_q8(pack_q8_0_quants(group, b), x, -128 * sum, ret->dot);
    ret->d = pack_q8_0_scales(group, b);
    ret->m = NULL;
}

static inline void mul_quantised(const struct mul *m,
                                 void (*get)(const uint8_t *, uint32_t, const int8_t *, int32_t,
                                             struct block *))
{
    const uint32_t n_blocks = m->x->k / KERNEL_BLOCK;

    for (uint32_t g = 0; g < m->n_groups; g++)
        for (uint32_t row = 0; row < m->n_rows; row++) {
            const size_t first = (size_t)row * n_blocks;
            float *y = m->y[row] + m->at + (size_t)g * L;
            float f[L] = { 0 };

            for (uint32_t b = 0; b < n_blocks; b++) {
                struct block w;

                get(m->w + g * m->group_bytes, b, m->x->q + (first + b) * KERNEL_BLOCK,
                    m->x->sum[first + b], &w);
                for (int r = 0; r < L; r++) {
                    f[r] += f16_to_f32(w.d[r]) * m->x->d[first + b] * (float)w.dot[r];
                    if (w.m)
                        f[r] += f16_to_f32(w.m[r]) * m->x->s[first + b];
                }
            }
            for (int r = 0; r < L; r++)
                y[r] = f[r];
        }
}

static void mul_q4_0(const struct mul *m) { mul_quantised(m, get_q4_0); }
static void mul_q4_1(const struct mul *m) { mul_quantised(m, get_q4_1); }
static void mul_q8_0(const struct mul *m) { mul_quantised(m, get_q8_0); }

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

static void attend(const struct attend *a)
{
    const uint32_t hd = a->head_dim;

    for (uint32_t h = 0; h < a->n_q; h++) {
        const float *q = a->q + (size_t)h * hd;
        float p[KERNEL_SPAN], max = -INFINITY, sum = 0, *o = a->o + (size_t)h * hd;

        for (uint32_t t = a->skip; t < a->n; t++) {
            const uint16_t *k = a->kv + a->pages[t / KERNEL_PAGE] * a->page_stride + t % KERNEL_PAGE;
            float score = 0;

            for (uint32_t i = 0; i < hd; i++)
                score += q[i] * f16_to_f32(k[(size_t)i * KERNEL_PAGE]);
            p[t] = score * a->scale;
            if (a->softcap > 0)
                softcap(&p[t], a->softcap, 1);
            max = fmaxf(max, p[t]);
        }
        for (uint32_t i = 0; i < hd; i++)
            o[i] = 0;
        for (uint32_t t = a->skip; t < a->n; t++) {
            const uint16_t *v = a->kv + a->pages[t / KERNEL_PAGE] * a->page_stride +
                                (size_t)hd * (KERNEL_PAGE + t % KERNEL_PAGE);
            float e = expf(p[t] - max);

            sum += e;
            for (uint32_t i = 0; i < hd; i++)
                o[i] += e * f16_to_f32(v[i]);
        }
        a->max[h] = max;
        a->sum[h] = sum;
    }
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

static void quantise(const float *x, uint32_t n, int8_t *q, float *d, float *s, int32_t *sum)
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
        }
        d[b] = max / 127.0f;
        s[b] = d[b] * (float)total;
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

static void to_f16(const float *x, uint32_t n, uint16_t *out)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = f16_of_f32(x[i]);
}

const struct kernels kernels_scalar = {
    .name = "scalar",
    .mul = {
        [MAT_F32] = mul_f32,   [MAT_F16] = mul_f16,   [MAT_BF16] = mul_bf16,
        [MAT_Q4_0] = mul_q4_0, [MAT_Q4_1] = mul_q4_1, [MAT_Q8_0] = mul_q8_0,
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
    .to_f16 = to_f16,
};
