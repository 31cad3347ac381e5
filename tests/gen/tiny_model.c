#include "tests/gen/tiny_model.h"

#include "gen/cpu/dequant.h"
#include "gen/cpu/half.h"
#include "tests/gen/blocks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct tiny_model tiny_model_default = {
    .n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .head_dim = 16, .dim = 64, .ffn_dim = 96,
    .vocab_size = 75, .types = { GGML_F32 }, .n_types = 1, .tied = true, .seed = 1,
};

enum { MAX_FLOATS = 1 << 16 };
static const double rope_theta = 5000, rms_eps = 1e-3;

static double next_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(*seed >> 33) / (1u << 30) - 1;
}

/* ---- writing --------------------------------------------------------- */

static void fill(uint32_t type, uint8_t *data, uint64_t n, double size, uint64_t *seed)
{
    const struct ggml_type_facts *f = ggml_type_facts(type);

    for (uint64_t i = 0; i < n / f->block; i++, data += f->block_bytes) {
        const float x = (float)(size * next_random(seed));
        const uint16_t half = f16_of_f32(x), brain = (uint16_t)(bits_of_float(x) >> 16);

        if (type == GGML_F32)
            memcpy(data, &x, 4);
        else if (type == GGML_F16)
            memcpy(data, &half, 2);
        else if (type == GGML_BF16)
            memcpy(data, &brain, 2);
        else {
            for (uint32_t j = 0; j < f->block_bytes; j++)
                data[j] = (uint8_t)(128 * (next_random(seed) + 1));
            block_scale(type, data, size);
        }
    }
}

struct writing {
    const struct tiny_model *t;
    struct gguf_build *b;
    uint64_t seed;
    uint32_t n_mats;
};

static void add_tensor(struct writing *w, const char *name, uint32_t type, uint32_t cols, uint32_t rows, double size)
{
    static uint8_t data[4 * MAX_FLOATS];
    const struct ggml_type_facts *f = ggml_type_facts(type);

    fill(type, data, (uint64_t)cols * rows, size, &w->seed);
    gguf_build_tensor(w->b, name, type, rows > 1 ? 2 : 1, (uint64_t[]){ cols, rows }, data,
                      (size_t)cols * rows / f->block * f->block_bytes);
}

static void add_mat(struct writing *w, const char *name, uint32_t cols, uint32_t rows)
{
    add_tensor(w, name, w->t->types[w->n_mats++ % w->t->n_types], cols, rows, 1.7 / sqrt(cols));
}

static void add_vector(struct writing *w, const char *name, uint32_t n, double size)
{
    add_tensor(w, name, GGML_F32, n, 1, size);
}

static void add_layer(struct writing *w, uint32_t i)
{
    const struct tiny_model *t = w->t;
    const uint32_t q = t->n_heads * t->head_dim, kv = t->n_kv_heads * t->head_dim;
    const struct { const char *name; uint32_t cols, rows; } mats[] = {
        { "attn_q", t->dim, q },        { "attn_k", t->dim, kv },         { "attn_v", t->dim, kv },
        { "attn_output", q, t->dim },   { "ffn_gate", t->dim, t->ffn_dim }, { "ffn_up", t->dim, t->ffn_dim },
        { "ffn_down", t->ffn_dim, t->dim },
    };
    char name[64];

    snprintf(name, sizeof name, "blk.%u.attn_norm.weight", i);
    add_vector(w, name, t->dim, 1.5);
    snprintf(name, sizeof name, "blk.%u.ffn_norm.weight", i);
    add_vector(w, name, t->dim, 1.5);
    for (size_t m = 0; m < sizeof mats / sizeof mats[0]; m++) {
        snprintf(name, sizeof name, "blk.%u.%s.weight", i, mats[m].name);
        add_mat(w, name, mats[m].cols, mats[m].rows);
        snprintf(name, sizeof name, "blk.%u.%s.bias", i, mats[m].name);
        if (t->biases)
            add_vector(w, name, mats[m].rows, 0.5);
    }
}

void tiny_model_build(const struct tiny_model *t, struct gguf_build *b)
{
    struct writing w = { .t = t, .b = b, .seed = t->seed };

    gguf_build_str(b, "general.architecture", "llama");
    gguf_build_u32(b, "llama.block_count", t->n_layers);
    gguf_build_u32(b, "llama.context_length", 2048);
    gguf_build_u32(b, "llama.embedding_length", t->dim);
    gguf_build_u32(b, "llama.feed_forward_length", t->ffn_dim);
    gguf_build_u32(b, "llama.attention.head_count", t->n_heads);
    gguf_build_u32(b, "llama.attention.head_count_kv", t->n_kv_heads);
    gguf_build_u32(b, "llama.attention.key_length", t->head_dim);
    gguf_build_u32(b, "llama.attention.value_length", t->head_dim);
    gguf_build_f32(b, "llama.attention.layer_norm_rms_epsilon", (float)rms_eps);
    gguf_build_f32(b, "llama.rope.freq_base", (float)rope_theta);
    gguf_build_u32(b, "llama.rope.dimension_count", t->rope_dim ? t->rope_dim : t->head_dim);
    add_tensor(&w, "token_embd.weight", t->types[0], t->dim, t->vocab_size, 1);
    for (uint32_t i = 0; i < t->n_layers; i++)
        add_layer(&w, i);
    add_vector(&w, "output_norm.weight", t->dim, 1.5);
    if (!t->tied)
        add_mat(&w, "output.weight", t->dim, t->vocab_size);
    if (t->rope_freqs) {
        float factors[512];

        for (uint32_t i = 0; i < t->head_dim / 2; i++)
            factors[i] = 1 + 0.25f * (float)i;
        gguf_build_tensor(b, "rope_freqs.weight", GGML_F32, 1, (uint64_t[]){ t->head_dim / 2 }, factors,
                          t->head_dim / 2 * sizeof(float));
    }
}

/* ---- reading back and computing -------------------------------------- */

/* All elements of a tensor; of the types with kernels straight from the block layouts of GGUF. */
static double *values_of(const struct gguf *file, const char *name, const char *suffix)
{
    const struct gguf_tensor *t;
    const struct ggml_type_facts *f;
    const uint8_t *at;
    char whole[64];
    double *out;
    uint64_t n;

    snprintf(whole, sizeof whole, "%s.%s", name, suffix);
    t = gguf_tensor(file, whole);
    if (!t)
        return NULL;
    n = t->dims[0] * t->dims[1];
    f = ggml_type_facts(t->type);
    out = malloc(n * sizeof *out);
    at = t->data;
    for (uint64_t i = 0; i < n; i++) {
        const uint8_t *block = at + i / f->block * f->block_bytes;
        const uint32_t j = (uint32_t)(i % f->block);
        const uint8_t *q = block + (t->type == GGML_Q4_1 ? 4 : 2);
        const int nibble = t->type == GGML_Q4_0 || t->type == GGML_Q4_1
                               ? (j < 16 ? q[j] & 15 : q[j - 16] >> 4) : 0;
        uint16_t d = 0, m = 0;
        float x = 0;

        memcpy(&d, block, 2);
        switch (t->type) {
        case GGML_F32:
            memcpy(&x, block, 4);
            out[i] = x;
            break;
        case GGML_F16: out[i] = f16_to_f32(d); break;
        case GGML_BF16: out[i] = bf16_to_f32(d); break;
        case GGML_Q4_0: out[i] = (double)f16_to_f32(d) * (nibble - 8); break;
        case GGML_Q4_1:
            memcpy(&m, block + 2, 2);
            out[i] = (double)f16_to_f32(d) * nibble + (double)f16_to_f32(m);
            break;
        case GGML_Q8_0: out[i] = (double)f16_to_f32(d) * (int8_t)q[j]; break;
        default: {
            static float all[DEQUANT_MAX];

            if (j == 0)
                dequant(t->type, block, f->block, all);
            out[i] = (double)all[j];
        }
        }
    }
    return out;
}

static void rms(const struct gguf *file, const char *name, const double *x, uint32_t n, double *out)
{
    double *w = values_of(file, name, "weight"), sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (uint32_t i = 0; i < n; i++)
        out[i] = x[i] / sqrt(sum / n + rms_eps) * w[i];
    free(w);
}

/* out[rows] = W x + b, or added to what is there. */
static void times(const struct gguf *file, const char *name, const double *x, uint32_t cols, uint32_t rows,
                  double *out, bool add)
{
    double *w = values_of(file, name, "weight"), *b = values_of(file, name, "bias");

    for (uint32_t r = 0; r < rows; r++) {
        double sum = b ? b[r] : 0;

        for (uint32_t c = 0; c < cols; c++)
            sum += w[(size_t)r * cols + c] * x[c];
        out[r] = add ? out[r] + sum : sum;
    }
    free(w);
    free(b);
}

static void turn(const struct tiny_model *t, double *head, uint32_t pos)
{
    for (uint32_t i = 0; i < t->head_dim / 2; i++) {
        const double by = pos * pow(rope_theta, -2.0 * i / t->head_dim) / (t->rope_freqs ? 1 + 0.25 * i : 1);
        const double a = head[2 * i], b = head[2 * i + 1];

        head[2 * i] = a * cos(by) - b * sin(by);
        head[2 * i + 1] = a * sin(by) + b * cos(by);
    }
}

static void attend(const struct tiny_model *t, const double *q, const double *k, const double *v, uint32_t pos,
                   uint32_t head, double *out)
{
    const uint32_t hd = t->head_dim, kv = t->n_kv_heads * hd, shared = head / (t->n_heads / t->n_kv_heads);
    double *p = malloc((pos + 1) * sizeof *p), max = -INFINITY, sum = 0;

    for (uint32_t j = 0; j <= pos; j++) {
        p[j] = 0;
        for (uint32_t i = 0; i < hd; i++)
            p[j] += q[head * hd + i] * k[(size_t)j * kv + shared * hd + i];
        p[j] /= sqrt(hd);
        max = fmax(max, p[j]);
    }
    for (uint32_t j = 0; j <= pos; j++)
        sum += p[j] = exp(p[j] - max);
    for (uint32_t i = 0; i < hd; i++) {
        out[head * hd + i] = 0;
        for (uint32_t j = 0; j <= pos; j++)
            out[head * hd + i] += p[j] / sum * v[(size_t)j * kv + shared * hd + i];
    }
    free(p);
}

static void one_layer(const struct tiny_model *t, const struct gguf *file, uint32_t layer, double *x, uint32_t n)
{
    const uint32_t kv = t->n_kv_heads * t->head_dim, qd = t->n_heads * t->head_dim;
    double *k = malloc((size_t)n * kv * sizeof *k), *v = malloc((size_t)n * kv * sizeof *v);
    double in[512], q[512], heads[512], gate[512], up[512];
    char name[9][32];
    static const char *const names[9] = { "attn_norm", "attn_q",   "attn_k", "attn_v",  "attn_output",
                                          "ffn_norm",  "ffn_gate", "ffn_up", "ffn_down" };

    for (int i = 0; i < 9; i++)
        snprintf(name[i], sizeof name[i], "blk.%u.%s", layer, names[i]);
    for (uint32_t pos = 0; pos < n; pos++) {
        double *row = x + (size_t)pos * t->dim;

        rms(file, name[0], row, t->dim, in);
        times(file, name[1], in, t->dim, qd, q, false);
        times(file, name[2], in, t->dim, kv, k + (size_t)pos * kv, false);
        times(file, name[3], in, t->dim, kv, v + (size_t)pos * kv, false);
        for (uint32_t h = 0; h < t->n_kv_heads; h++)
            turn(t, k + (size_t)pos * kv + h * t->head_dim, pos);
        for (uint32_t h = 0; h < t->n_heads; h++) {
            turn(t, q + h * t->head_dim, pos);
            attend(t, q, k, v, pos, h, heads);
        }
        times(file, name[4], heads, qd, t->dim, row, true);
        rms(file, name[5], row, t->dim, in);
        times(file, name[6], in, t->dim, t->ffn_dim, gate, false);
        times(file, name[7], in, t->dim, t->ffn_dim, up, false);
        for (uint32_t i = 0; i < t->ffn_dim; i++)
            gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
        times(file, name[8], gate, t->ffn_dim, t->dim, row, true);
    }
    free(k);
    free(v);
}

void tiny_model_logits(const struct tiny_model *t, const struct gguf *file, const int32_t *tokens, uint32_t n,
                       double *logits)
{
    double *embd = values_of(file, "token_embd", "weight"), *x = malloc((size_t)n * t->dim * sizeof *x), in[512];

    for (uint32_t i = 0; i < n; i++)
        memcpy(x + (size_t)i * t->dim, embd + (size_t)tokens[i] * t->dim, t->dim * sizeof *x);
    for (uint32_t i = 0; i < t->n_layers; i++)
        one_layer(t, file, i, x, n);
    rms(file, "output_norm", x + (size_t)(n - 1) * t->dim, t->dim, in);
    times(file, t->tied ? "token_embd" : "output", in, t->dim, t->vocab_size, logits, false);
    free(embd);
    free(x);
}
