/* From a file's tensors to packed matrices.
 *
 * What a family does is its row of arch.def, what a layer is made of a table of
 * rows here: slot, name in the file, shape. All of it is checked before any memory is asked for; then one slab takes all matrices in
 * the order in which a step reads them, and the pool packs them, each thread
 * the groups that it will read later. A tensor that the tables do not name is
 * refused: computing without it would give plausible nonsense.
 *
 * Kernels rotate pairs of neighbours and work on 16 elements at a time. So the rows
 * of queries and keys are packed in that order where the file has another, and
 * every head is padded with rows of zeros to a multiple of 16: scores are sums
 * over the elements of a head, whatever their order.
 */
#include "gen/model_in.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "gen/engine.h"
#include "gen/slab.h"
#include "loaders/gguf.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    MAX_LAYERS = 1024,
    MAX_HEADS = 4096,
    MAX_HEAD_DIM = 1024,
    MAX_WIDTH = 1 << 20,        /* of a row of activations */
    MAX_VOCAB = 1 << 24,
    NAME_SIZE = 64,
    WEIGHTS_OTHER = 1,          /* packed weights that came are not in use */
};

enum dim { DIM_MODEL, DIM_Q, DIM_KV, DIM_FFN, DIM_VOCAB, N_DIMS };

/* What a matrix's rows are. */
enum row_kind { ROWS_PLAIN, ROWS_HEADS, ROWS_TURNED };

static const struct { enum weight_id id; const char *name; enum dim rows, cols; enum row_kind kind; } layer_mats[] = {
    { W_Q, "attn_q", DIM_Q, DIM_MODEL, ROWS_TURNED },
    { W_K, "attn_k", DIM_KV, DIM_MODEL, ROWS_TURNED },
    { W_V, "attn_v", DIM_KV, DIM_MODEL, ROWS_HEADS },
    { W_O, "attn_output", DIM_MODEL, DIM_Q, ROWS_PLAIN },
    { W_GATE, "ffn_gate", DIM_FFN, DIM_MODEL, ROWS_PLAIN },
    { W_UP, "ffn_up", DIM_FFN, DIM_MODEL, ROWS_PLAIN },
    { W_DOWN, "ffn_down", DIM_MODEL, DIM_FFN, ROWS_PLAIN },
};

struct source {
    struct mat *mat;
    const struct gguf_tensor *tensor;
    enum row_kind kind;
};

struct loading {
    struct model *m;
    const struct gguf *file;
    struct err *err;
    uint32_t dims[N_DIMS];
    uint32_t turned;            /* elements of a head that rotary position turns */
    struct source *sources;     /* matrices to pack */
    const struct gguf_tensor **used;
    size_t n_sources, n_used, max_used;
};

static int fail(const struct loading *l, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static int fail(const struct loading *l, int code, const char *fmt, ...)
{
    char text[ERR_TEXT];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return err_set(l->err, code, "%s: %s", gguf_path(l->file), text);
}

/* ---- metadata -------------------------------------------------------- */

static const char *key_of(const struct loading *l, const char *rest, char *buf)
{
    snprintf(buf, NAME_SIZE, "%s.%s", l->m->shape.arch, rest);
    return buf;
}

/* An integer within [min, max]; `absent` when the key is not there, or an error
 * when absent is 0. */
static int read_u32(const struct loading *l, const char *rest, uint32_t absent, uint32_t min,
                    uint32_t max, uint32_t *ret)
{
    char key[NAME_SIZE];
    uint32_t v = absent;
    int r = gguf_u32(l->file, key_of(l, rest, key), &v, l->err);

    if (r < 0)
        return r;
    if (r == GGUF_ABSENT && absent == 0)
        return fail(l, -EINVAL, "%s is missing", key);
    if (v < min || v > max)
        return fail(l, -ENOTSUP, "%s: %u is not between %u and %u", key, v, min, max);
    *ret = v;
    return 0;
}

static int read_f32(const struct loading *l, const char *rest, float absent, float *ret)
{
    char key[NAME_SIZE];
    float v = absent;
    int r = gguf_f32(l->file, key_of(l, rest, key), &v, l->err);

    if (r < 0)
        return r;
    if (r == GGUF_ABSENT && absent == 0)
        return fail(l, -EINVAL, "%s is missing", key);
    if (!isfinite(v) || v <= 0)
        return fail(l, -EINVAL, "%s: %g is not above 0", key, (double)v);
    *ret = v;
    return 0;
}

static int read_arch(struct loading *l)
{
    struct model_shape *s = &l->m->shape;
    int r = gguf_text(l->file, "general.architecture", s->arch, sizeof s->arch, l->err);

    if (r < 0)
        return r;
    if (r == GGUF_ABSENT)
        return fail(l, -EINVAL, "general.architecture is missing");
    l->m->arch = arch_find(s->arch);
    return l->m->arch ? 0 : fail(l, -ENOTSUP, "architecture \"%s\" is not supported", s->arch);
}

static int read_heads(struct loading *l)
{
    struct model_shape *s = &l->m->shape;
    uint32_t value_dim;
    int r;

    if ((r = read_u32(l, "attention.head_count", 0, 1, MAX_HEADS, &s->n_heads)) ||
        (r = read_u32(l, "attention.head_count_kv", s->n_heads, 1, MAX_HEADS, &s->n_kv_heads)))
        return r;
    if (s->n_heads % s->n_kv_heads)
        return fail(l, -EINVAL, "%u query heads can not share %u key/value heads evenly", s->n_heads,
                    s->n_kv_heads);
    if ((r = read_u32(l, "attention.key_length", s->dim / s->n_heads, 1, MAX_HEAD_DIM, &s->head_real)) ||
        (r = read_u32(l, "attention.value_length", s->head_real, 1, MAX_HEAD_DIM, &value_dim)) ||
        (r = read_u32(l, "rope.dimension_count", s->head_real, 1, s->head_real, &l->turned)))
        return r;
    if (value_dim != s->head_real)
        return fail(l, -ENOTSUP, "heads of %u with values of %u are not supported: both must be the same",
                    s->head_real, value_dim);
    if (l->turned % 2)
        return fail(l, -EINVAL, "%s.rope.dimension_count: %u is odd, but values turn in pairs", s->arch, l->turned);
    s->head_dim = (s->head_real + KERNEL_LANES - 1) / KERNEL_LANES * KERNEL_LANES;
    if ((uint64_t)s->n_heads * s->head_dim > MAX_WIDTH)
        return fail(l, -ENOTSUP, "%u heads of %u are wider than %d", s->n_heads, s->head_dim, MAX_WIDTH);
    return 0;
}

/* What a file may say of its architecture: keys that are read here, and some that change nothing. Any other might
 * change what is computed. */
static const struct { const char *rest; bool slides; } keys[] = {
    { "attention.head_count" },
    { "attention.head_count_kv" },
    { "attention.key_length" },
    { "attention.layer_norm_rms_epsilon" },
    { "attention.sliding_window", .slides = true },
    { "attention.sliding_window_pattern", .slides = true },
    { "attention.value_length" },
    { "attn_logit_softcapping" },
    { "block_count" },
    { "context_length" },
    { "embedding_length" },
    { "expert_count" },
    { "expert_used_count" },
    { "feed_forward_length" },
    { "final_logit_softcapping" },
    { "rope.dimension_count" },
    { "rope.freq_base" },
    { "rope.freq_base_swa", .slides = true },
    { "rope.scale_linear" },
    { "rope.scaling.factor" },
    { "rope.scaling.finetuned" },
    { "rope.scaling.original_context_length" },
    { "rope.scaling.type" },
    { "rope.scaling.yarn_attn_factor" },
    { "rope.scaling.yarn_beta_fast" },
    { "rope.scaling.yarn_beta_slow" },
    { "tensor_data_layout" },
    { "vocab_size" },
};

static bool known_key(const struct loading *l, const char *rest)
{
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (strcmp(rest, keys[i].rest) == 0)
            return !keys[i].slides || l->m->arch->period;
    return false;
}

static int refuse_unknown_keys(const struct loading *l)
{
    const size_t len = strlen(l->m->shape.arch);
    enum gguf_type type;
    const char *key;

    for (size_t i = 0; (key = gguf_key(l->file, i, &type)); i++)
        if (strncmp(key, l->m->shape.arch, len) == 0 && key[len] == '.' && !known_key(l, key + len + 1))
            return fail(l, -ENOTSUP, "key \"%.200s\" has no meaning in architecture \"%s\"", key, l->m->shape.arch);
    return 0;
}

static int read_shape(struct loading *l)
{
    struct model_shape *s = &l->m->shape;
    uint32_t experts;
    int r;

    if ((r = read_arch(l)) || (r = read_u32(l, "block_count", 0, 1, MAX_LAYERS, &s->n_layers)) ||
        (r = read_u32(l, "embedding_length", 0, 1, MAX_WIDTH, &s->dim)) ||
        (r = read_u32(l, "feed_forward_length", 0, 1, MAX_WIDTH, &s->ffn_dim)) ||
        (r = read_u32(l, "context_length", 0, 1, INT32_MAX, &s->n_ctx_train)) ||
        (r = read_f32(l, "attention.layer_norm_rms_epsilon", 0, &s->rms_eps)) ||
        (r = read_f32(l, "rope.freq_base", 10000, &s->rope_theta)) || (r = read_heads(l)))
        return r;
    if ((r = read_u32(l, "expert_count", 1, 0, UINT32_MAX, &experts)))
        return r;
    return experts > 1 ? fail(l, -ENOTSUP, "a model of %u experts is not supported", experts) : refuse_unknown_keys(l);
}

/* ---- tensors --------------------------------------------------------- */

static const struct gguf_tensor *take(struct loading *l, const char *name)
{
    const struct gguf_tensor *t = gguf_tensor(l->file, name);

    if (t && l->n_used < l->max_used)
        l->used[l->n_used++] = t;
    return t;
}

static int check_dims(const struct loading *l, const struct gguf_tensor *t, uint64_t rows, uint64_t cols)
{
    if (t->dims[0] == cols && t->dims[1] == rows && t->dims[2] == 1 && t->dims[3] == 1)
        return 0;
    return fail(l, -EINVAL, "tensor \"%s\" is %llu x %llu x %llu x %llu where %llu x %llu is expected",
                t->name, (unsigned long long)t->dims[0], (unsigned long long)t->dims[1],
                (unsigned long long)t->dims[2], (unsigned long long)t->dims[3],
                (unsigned long long)cols, (unsigned long long)rows);
}

static int refuse_type(const struct loading *l, const struct gguf_tensor *t)
{
    return fail(l, -ENOTSUP, "tensor \"%s\": type %s is not supported", t->name,
                ggml_type_facts(t->type)->name);
}

/* The file's row that is packed as `row`, or -1 for a row of zeros. */
static int64_t file_row(const struct loading *l, enum row_kind kind, uint32_t row)
{
    const uint32_t hd = l->m->shape.head_dim, real = l->m->shape.head_real;
    uint32_t i = row % hd;

    if (kind == ROWS_PLAIN)
        return row;
    if (i >= real)
        return -1;
    if (kind == ROWS_TURNED && l->m->arch->pairs == ARCH_HALVES && i < l->turned)
        i = i / 2 + i % 2 * (l->turned / 2);
    return (int64_t)(row / hd) * real + i;
}

/* Rows as they are packed for `rows` in the file. */
static uint32_t packed_rows(const struct loading *l, enum row_kind kind, uint32_t rows)
{
    return kind == ROWS_PLAIN ? rows : rows / l->m->shape.head_real * l->m->shape.head_dim;
}

/* True when rows are packed as they lie in the file. */
static bool in_order(const struct loading *l, enum row_kind kind)
{
    return kind == ROWS_PLAIN || (l->m->shape.head_dim == l->m->shape.head_real &&
                                  (kind == ROWS_HEADS || l->m->arch->pairs == ARCH_NEIGHBOURS));
}

static int take_mat(struct loading *l, const char *name, uint32_t rows, uint32_t cols, enum row_kind kind, struct mat *mat)
{
    const struct gguf_tensor *t = take(l, name);
    enum mat_type type;
    int r;

    if (!t)
        return fail(l, -EINVAL, "tensor \"%s\" is missing", name);
    if ((r = check_dims(l, t, rows, cols)))
        return r;
    if (!mat_type_of(t->type, &type))
        return refuse_type(l, t);
    if (!mat_init(mat, type, packed_rows(l, kind, rows), cols))
        return fail(l, -EINVAL, "tensor \"%s\": %u rows of %u are too many", name, rows, cols);
    l->sources[l->n_sources++] = (struct source){ mat, t, kind };
    return 0;
}

/* A vector of n, with zeros up to a whole block. GGUF_ABSENT when it is not there. */
static int take_vector(struct loading *l, const char *name, uint32_t n, float **ret)
{
    const struct gguf_tensor *t = take(l, name);
    enum mat_type type;
    int r;

    if (!t)
        return GGUF_ABSENT;
    if ((r = check_dims(l, t, 1, n)))
        return r;
    if (!mat_type_of(t->type, &type) || ggml_type_facts(t->type)->block > 1)
        return refuse_type(l, t);
    *ret = arena_array(l->m->arena, n + KERNEL_BLOCK, sizeof **ret);
    if (!*ret)
        return fail(l, -ENOMEM, "no memory for tensor \"%s\"", name);
    mat_floats(type, t->data, n, *ret);
    return 0;
}

/* A vector whose elements are packed like the rows of a matrix. */
static int take_vector_of(struct loading *l, const char *name, uint32_t n, enum row_kind kind, float **ret)
{
    const uint32_t n_packed = packed_rows(l, kind, n);
    float *v = NULL, *packed;
    int r = take_vector(l, name, n, &v);

    if (r || in_order(l, kind)) {
        *ret = v;
        return r;
    }
    packed = arena_array(l->m->arena, n_packed + KERNEL_BLOCK, sizeof *packed);
    if (!packed)
        return fail(l, -ENOMEM, "no memory for tensor \"%s\"", name);
    for (uint32_t i = 0; i < n_packed; i++)
        if (file_row(l, kind, i) >= 0)
            packed[i] = v[file_row(l, kind, i)];
    *ret = packed;
    return 0;
}

static int take_norm(struct loading *l, const char *name, float **ret)
{
    int r = take_vector(l, name, l->m->shape.dim, ret);

    return r == GGUF_ABSENT ? fail(l, -EINVAL, "tensor \"%s\" is missing", name) : r;
}

/* The norms of queries and keys: a head's elements are packed like its rows. */
static int take_head_norms(struct loading *l, uint32_t i, struct layer *layer)
{
    const uint32_t n = l->m->shape.head_real;
    char q[NAME_SIZE], k[NAME_SIZE];
    int r;

    snprintf(q, sizeof q, "blk.%u.attn_q_norm.weight", i);
    snprintf(k, sizeof k, "blk.%u.attn_k_norm.weight", i);
    if ((r = take_vector_of(l, q, n, ROWS_TURNED, &layer->q_norm)) < 0 ||
        (r = take_vector_of(l, k, n, ROWS_TURNED, &layer->k_norm)) < 0)
        return r;
    return layer->q_norm && layer->k_norm
               ? 0 : fail(l, -EINVAL, "tensor \"%s\" is missing", layer->q_norm ? k : q);
}

static int take_post_norms(struct loading *l, uint32_t i, struct layer *layer)
{
    char name[NAME_SIZE];
    int r;

    snprintf(name, sizeof name, "blk.%u.post_attention_norm.weight", i);
    if ((r = take_norm(l, name, &layer->post_attn_norm)))
        return r;
    snprintf(name, sizeof name, "blk.%u.post_ffw_norm.weight", i);
    return take_norm(l, name, &layer->post_ffn_norm);
}

static void want(struct need *need, const struct mat *mat)
{
    if (mat_type_quantised(mat->type))
        need->quantised = true;
    else
        need->floats = true;
}

static int take_layer(struct loading *l, uint32_t i, struct layer *layer)
{
    struct need *needs[N_WEIGHTS] = { &layer->attn, &layer->attn, &layer->attn, &layer->o,
                                      &layer->ffn,  &layer->ffn,  &layer->down };
    char name[NAME_SIZE];
    int r;

    snprintf(name, sizeof name, "blk.%u.attn_norm.weight", i);
    if ((r = take_norm(l, name, &layer->attn_norm)))
        return r;
    snprintf(name, sizeof name, "blk.%u.ffn_norm.weight", i);
    if ((r = take_norm(l, name, &layer->ffn_norm)))
        return r;
    if (l->m->arch->qk_norm && (r = take_head_norms(l, i, layer)))
        return r;
    if (l->m->arch->post_norms && (r = take_post_norms(l, i, layer)))
        return r;
    for (size_t w = 0; w < N_WEIGHTS; w++) {
        struct weight *weight = &layer->w[layer_mats[w].id];
        const enum row_kind kind = layer_mats[w].kind;
        uint32_t rows = l->dims[layer_mats[w].rows];

        snprintf(name, sizeof name, "blk.%u.%s.weight", i, layer_mats[w].name);
        if ((r = take_mat(l, name, rows, l->dims[layer_mats[w].cols], kind, &weight->mat)))
            return r;
        want(needs[layer_mats[w].id], &weight->mat);
        snprintf(name, sizeof name, "blk.%u.%s.bias", i, layer_mats[w].name);
        if ((r = take_vector_of(l, name, rows, kind, &weight->bias)) < 0)
            return r;
        if (r == GGUF_ABSENT && l->m->arch->qkv_bias && layer_mats[w].id <= W_V)
            return fail(l, -EINVAL, "tensor \"%s\" is missing", name);
    }
    return 0;
}

static int refuse_unknown_tensors(const struct loading *l)
{
    for (size_t i = 0; i < gguf_n_tensors(l->file); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(l->file, i);
        bool known = false;

        for (size_t j = 0; j < l->n_used && !known; j++)
            known = l->used[j] == t;
        if (!known)
            return fail(l, -ENOTSUP, "tensor \"%s\" has no place in architecture \"%s\"", t->name,
                        l->m->shape.arch);
    }
    return 0;
}

/* Embedding and output matrix. The vocabulary is as long as the embedding. */
static int take_ends(struct loading *l)
{
    const struct gguf_tensor *embd = gguf_tensor(l->file, "token_embd.weight");
    struct model *m = l->m;
    int r;

    if (!embd)
        return fail(l, -EINVAL, "tensor \"token_embd.weight\" is missing");
    if (embd->dims[1] > MAX_VOCAB)
        return fail(l, -ENOTSUP, "a vocabulary of %llu is above %d", (unsigned long long)embd->dims[1],
                    MAX_VOCAB);
    m->shape.vocab_size = (uint32_t)embd->dims[1];
    if ((r = take_mat(l, "token_embd.weight", m->shape.vocab_size, m->shape.dim, ROWS_PLAIN, &m->embd)) ||
        (r = take_norm(l, "output_norm.weight", &m->out_norm)))
        return r;
    if (gguf_tensor(l->file, "output.weight") &&
        (r = take_mat(l, "output.weight", m->shape.vocab_size, m->shape.dim, ROWS_PLAIN, &m->out)))
        return r;
    want(&m->out_need, m->out.rows ? &m->out : &m->embd);
    return 0;
}

static int take_tensors(struct loading *l)
{
    struct model *m = l->m;
    const struct model_shape *s = &m->shape;
    const size_t n_mats = (size_t)s->n_layers * N_WEIGHTS + 2;
    int r;

    l->dims[DIM_MODEL] = s->dim;
    l->dims[DIM_Q] = s->n_heads * s->head_real;
    l->dims[DIM_KV] = s->n_kv_heads * s->head_real;
    l->dims[DIM_FFN] = s->ffn_dim;
    l->max_used = 2 * n_mats + 6 * (size_t)s->n_layers + 4;
    l->sources = calloc(n_mats, sizeof *l->sources);
    l->used = calloc(l->max_used, sizeof *l->used);
    m->layers = arena_array(m->arena, s->n_layers, sizeof *m->layers);
    if (!l->sources || !l->used || !m->layers)
        return fail(l, -ENOMEM, "no memory for %u layers", s->n_layers);
    for (uint32_t i = 0; i < s->n_layers; i++)
        if ((r = take_layer(l, i, &m->layers[i])))
            return r;
    return take_ends(l);
}

/* ---- position -------------------------------------------------------- */

/* How rope is stretched for texts longer than the model was trained on first. */
struct stretch {
    float factor;               /* positions are divided by this; 1: not at all */
    /* YaRN: pairs below `low` turn as ever, those from `high` on are stretched, between both there is a ramp. */
    double low, high;           /* low < 0: no YaRN, all are stretched */
    float length;               /* of what turns, times this */
    const float *factors;       /* rope_freqs.weight, or NULL */
};

/* The pair that turns `turns` times within the length first trained on; arXiv:2309.00071, section 3.2. */
static double yarn_pair(const struct loading *l, double turns, double trained)
{
    return l->turned * log(trained / (turns * 2 * M_PI)) / (2 * log((double)l->m->shape.rope_theta));
}

/* Ends of the ramp are whole pairs, and what turns grows by 0.1 ln(factor) + 1 unless the file has its own number. */
static int read_yarn(const struct loading *l, struct stretch *s)
{
    float fast, slow;
    uint32_t trained;
    int r;

    if ((r = read_u32(l, "rope.scaling.original_context_length", l->m->shape.n_ctx_train, 1, INT32_MAX, &trained)) ||
        (r = read_f32(l, "rope.scaling.yarn_beta_fast", 32, &fast)) ||
        (r = read_f32(l, "rope.scaling.yarn_beta_slow", 1, &slow)) ||
        (r = read_f32(l, "rope.scaling.yarn_attn_factor", 1 + 0.1f * logf(s->factor), &s->length)))
        return r;
    s->low = fmax(0, floor(yarn_pair(l, (double)fast, trained)));
    s->high = fmin(l->turned - 1, ceil(yarn_pair(l, (double)slow, trained)));
    return 0;
}

static int read_stretch(struct loading *l, struct stretch *s)
{
    char key[NAME_SIZE], kind[32];
    int r = gguf_text(l->file, key_of(l, "rope.scaling.type", key), kind, sizeof kind, l->err);

    *s = (struct stretch){ .factor = 1, .low = -1, .length = 1 };
    if (r < 0)
        return r;
    if (r == GGUF_ABSENT)
        return read_f32(l, "rope.scale_linear", 1, &s->factor);
    if (strcmp(kind, "none") == 0)
        return 0;
    if (strcmp(kind, "linear") != 0 && strcmp(kind, "yarn") != 0)
        return fail(l, -ENOTSUP, "%s: \"%s\" is not supported", key, kind);
    r = read_f32(l, "rope.scaling.factor", 1, &s->factor);
    return r == 0 && kind[0] == 'y' ? read_yarn(l, s) : r;
}

/* Radians a position for each pair of a head; 0 for pairs that do not turn. */
static int make_freq(const struct loading *l, float theta, const struct stretch *s, double **ret)
{
    const uint32_t hd = l->m->shape.head_dim, turned = l->turned;
    double *freq = arena_array(l->m->arena, hd / 2, sizeof *freq);

    if (!freq)
        return fail(l, -ENOMEM, "no memory for %u frequencies", hd / 2);
    for (uint32_t i = 0; i < turned / 2; i++) {
        const double own = pow((double)theta, -2.0 * i / turned) / (s->factors ? (double)s->factors[i] : 1);
        const double ramp = s->low < 0 ? 1 : fmin(1, fmax(0, (i - s->low) / fmax(0.001, s->high - s->low)));

        freq[i] = own * (1 - ramp) + own / (double)s->factor * ramp;
    }
    *ret = freq;
    return 0;
}

/* Which layers slide: every `period`-th does not, or the file has a list. */
static int read_pattern(struct loading *l)
{
    struct layer *layers = l->m->layers;
    const uint32_t n = l->m->shape.n_layers;
    struct gguf_array list;
    uint32_t period;
    char key[NAME_SIZE];
    int r;

    if (gguf_array(l->file, key_of(l, "attention.sliding_window_pattern", key), &list, NULL) == 0) {
        if (list.n != n || !(gguf_is_integer(list.type) || list.type == GGUF_BOOL))
            return fail(l, -EINVAL, "%s must be %u truth values", key, n);
        for (uint32_t i = 0; i < n; i++)
            layers[i].sight = gguf_array_i64(&list, i) ? SIGHT_LOCAL : SIGHT_FULL;
        return 0;
    }
    if ((r = read_u32(l, "attention.sliding_window_pattern", l->m->arch->period, 1, MAX_LAYERS, &period)))
        return r;
    for (uint32_t i = 0; i < n; i++)
        layers[i].sight = (i + 1) % period ? SIGHT_LOCAL : SIGHT_FULL;
    return 0;
}

static int make_windows(struct loading *l)
{
    struct model *m = l->m;
    const struct arch *a = m->arch;
    uint32_t window = a->window;
    char key[NAME_SIZE];
    int r;

    m->sights[SIGHT_FULL].window = UINT32_MAX;
    m->n_sights = 1;
    if (a->period == 0)
        return 0;
    if ((r = gguf_u32(l->file, key_of(l, "attention.sliding_window", key), &window, l->err)) < 0)
        return r;
    if (window == 0)
        return 0;
    m->n_sights = N_SIGHTS;
    m->sights[SIGHT_LOCAL].window = window;
    return read_pattern(l);
}

static int make_sights(struct loading *l)
{
    struct model *m = l->m;
    const struct arch *a = m->arch;
    const float own = m->shape.rope_theta;
    struct sight *full = &m->sights[SIGHT_FULL], *local = &m->sights[SIGHT_LOCAL];
    struct stretch stretch, none = { .factor = 1, .low = -1, .length = 1 };
    float *factors = NULL, theta;
    int r;

    if ((r = make_windows(l)) || (r = read_stretch(l, &stretch)) ||
        (r = take_vector(l, "rope_freqs.weight", l->turned / 2, &factors)) < 0)
        return r;
    stretch.factors = factors;
    full->turn_length = stretch.length;
    if ((r = make_freq(l, own, &stretch, &full->freq)) || m->n_sights == 1)
        return r;
    if (a->local_rope_unscaled)
        stretch = none;
    local->turn_length = stretch.length;
    r = read_f32(l, "rope.freq_base_swa", a->local_rope_theta > 0 ? a->local_rope_theta : own, &theta);
    return r < 0 ? r : make_freq(l, theta, &stretch, &local->freq);
}

/* ---- numbers --------------------------------------------------------- */

/* A cap of 0 is none. */
static int read_cap(const struct loading *l, const char *rest, float absent, float *ret)
{
    char key[NAME_SIZE];
    int r;

    *ret = absent;
    r = gguf_f32(l->file, key_of(l, rest, key), ret, l->err);
    if (r < 0)
        return r;
    return isfinite(*ret) && *ret >= 0 ? 0 : fail(l, -EINVAL, "%s: %g is not a cap", key, (double)*ret);
}

static int read_numbers(struct loading *l)
{
    struct model *m = l->m;
    const struct model_shape *s = &m->shape;
    const uint32_t scaled_by = s->n_layers == m->arch->wide_layers ? s->dim / s->n_heads : s->head_real;
    int r;

    m->embd_scale = sqrtf((float)s->dim);
    m->attn_scale = 1.0f / sqrtf((float)scaled_by);
    return (r = read_cap(l, "attn_logit_softcapping", m->arch->attn_softcap, &m->attn_softcap)) ? r
           : read_cap(l, "final_logit_softcapping", m->arch->final_softcap, &m->final_softcap);
}

/* ---- packing --------------------------------------------------------- */

struct packing {
    const struct loading *l;
    const struct source *source;
    uint8_t *room;                  /* [threads][rows of a group] of the file's rows */
    struct engine_pulse *pulse;     /* may be NULL */
    uint32_t threads;
    atomic_bool not_finite;         /* a scale of a block */
};

/* Groups whose rows lie elsewhere in the file: they are brought together first. As mat_pack() otherwise. */
static bool pack_gathered(const struct packing *p, uint32_t thread, uint32_t from, uint32_t to)
{
    const struct source *s = p->source;
    const size_t row_bytes = s->tensor->bytes / s->tensor->dims[1];
    uint8_t *room = p->room + thread * KERNEL_LANES * row_bytes;
    struct mat one = *s->mat;
    bool finite = true;

    one.rows = KERNEL_LANES;
    one.n_groups = 1;
    for (uint32_t g = from; g < to; g++) {
        for (uint32_t i = 0; i < KERNEL_LANES; i++) {
            const int64_t row = file_row(p->l, s->kind, g * KERNEL_LANES + i);

            if (row < 0)
                memset(room + i * row_bytes, 0, row_bytes);
            else
                memcpy(room + i * row_bytes, (const uint8_t *)s->tensor->data + (size_t)row * row_bytes, row_bytes);
        }
        one.w = s->mat->w + g * one.group_bytes;
        finite = mat_pack(&one, room, 0, 1) && finite;
    }
    return finite;
}

/* With a beat for about each megabyte: a large matrix comes from a slow disk for longer than a process may be silent. */
static void pack_part(void *arg, uint32_t thread)
{
    enum { BYTES = 1 << 20 };
    struct packing *p = arg;
    const struct mat *mat = p->source->mat;
    const uint32_t most = mat->group_bytes >= BYTES ? 1 : (uint32_t)(BYTES / mat->group_bytes);
    uint32_t from, to;

    pool_range(mat->n_groups, thread, p->threads, &from, &to);
    for (uint32_t g = from, end; g < to; g = end) {
        end = to - g < most ? to : g + most;
        if (!(p->room ? pack_gathered(p, thread, g, end) : mat_pack(mat, p->source->tensor->data, g, end)))
            p->not_finite = true;
        if (p->pulse)
            atomic_fetch_add_explicit(&p->pulse->beats, 1, memory_order_relaxed);
    }
}

static int pack(struct loading *l, const struct source *s)
{
    struct packing p = { .l = l, .source = s, .pulse = l->m->pulse, .threads = pool_threads(l->m->pool) };

    if (!in_order(l, s->kind)) {
        p.room = malloc((size_t)p.threads * KERNEL_LANES * (s->tensor->bytes / s->tensor->dims[1]));
        if (!p.room)
            return fail(l, -ENOMEM, "no memory to pack tensor \"%s\"", s->tensor->name);
    }
    pool_run(l->m->pool, pack_part, &p);
    free(p.room);
    if (p.not_finite)
        return fail(l, -EINVAL, "tensor \"%s\": a scale of a %s block is not a finite number", s->tensor->name,
                    ggml_type_facts(s->tensor->type)->name);
    gguf_release(l->file, s->tensor);
    return 0;
}

static int count_weights(struct loading *l)
{
    size_t *bytes = &l->m->weights_bytes;

    for (size_t i = 0; i < l->n_sources; i++)
        if (__builtin_add_overflow(*bytes, mat_bytes(l->sources[i].mat), bytes))
            return fail(l, -EINVAL, "its matrices are too large to count");
    return 0;
}

static void place_mats(const struct loading *l, uint8_t *at)
{
    for (size_t i = 0; i < l->n_sources; i++) {
        l->sources[i].mat->w = at;
        at += mat_bytes(l->sources[i].mat);
    }
}

static int pack_all(struct loading *l)
{
    int r;

    for (size_t i = 0; i < l->n_sources; i++)
        if ((r = pack(l, &l->sources[i])))
            return r;
    return 0;
}

/* ---- sharing --------------------------------------------------------- */

/* What has to be equal for packed bytes to mean the same. */
static struct weights_key key_of_weights(const struct loading *l)
{
    const struct model_shape *s = &l->m->shape;
    const uint32_t order[] = { l->m->arch->pairs, l->turned, s->head_real, s->head_dim };
    struct weights_key key = { .file = gguf_identity(l->file), .layout = weights_hash(WEIGHTS_HASH, order, sizeof order) };

    for (size_t i = 0; i < l->n_sources; i++) {
        const struct source *from = &l->sources[i];
        const struct mat *mat = from->mat;
        const uint64_t facts[] = { from->kind, from->tensor->type, mat->type, mat->rows, mat->cols, mat->k, mat->n_groups,
                                   mat->group_bytes };

        key.layout = weights_hash(key.layout, from->tensor->name, strlen(from->tensor->name) + 1);
        key.layout = weights_hash(key.layout, facts, sizeof facts);
    }
    return key;
}

/* Does its first group hold what this program would put there? */
static int check_group(struct loading *l, struct source *s)
{
    const struct mat *mat = s->mat;
    CLEANUP(mem_free) uint8_t *twin = aligned_alloc(64, mat->group_bytes);
    CLEANUP(mem_free) uint8_t *room = malloc(KERNEL_LANES * (s->tensor->bytes / s->tensor->dims[1]));
    struct mat one = *mat;
    struct source from = { &one, s->tensor, s->kind };
    struct packing p = { .l = l, .source = &from, .room = room };

    if (!twin || !room)
        return fail(l, -ENOMEM, "no memory to check its packed weights");
    memset(twin, 0, mat->group_bytes);
    one.w = twin;
    if (!in_order(l, s->kind))
        pack_gathered(&p, 0, 0, 1);
    else
        mat_pack(&one, s->tensor->data, 0, 1);
    return memcmp(twin, mat->w, mat->group_bytes) == 0 ? 0 : WEIGHTS_OTHER;
}

/* One matrix of each kind, so that no other way of packing can go unnoticed. */
static int check_packed(struct loading *l)
{
    for (size_t i = 0; i < l->n_sources; i++) {
        struct source *s = &l->sources[i];
        size_t like = 0;
        int r;

        while (like < i && !(l->sources[like].kind == s->kind && l->sources[like].mat->type == s->mat->type &&
                             l->sources[like].tensor->type == s->tensor->type))
            like++;
        if (like == i && (r = check_group(l, s)))
            return r;
    }
    return 0;
}

/* 0, WEIGHTS_OTHER with the reason in share->why, or a failure. */
static int take_packed(struct loading *l, const struct weights_key *key, struct weights_share *share)
{
    struct model *m = l->m;
    struct err why = { 0 };
    int r;

    if (weights_take(share->given, key, m->weights_bytes, &m->weights, &why) == 0) {
        place_mats(l, m->weights.data);
        if ((r = check_packed(l)) <= 0)
            return r;
        weights_free(&m->weights);
        err_set(&why, -EINVAL, "they hold other bytes than this program would pack");
    }
    snprintf(share->why, sizeof share->why, "%s", err_text(&why));
    return WEIGHTS_OTHER;
}

static int make_packed(struct loading *l, const struct weights_key *key, struct weights_share *share)
{
    struct model *m = l->m;
    int r;

    if (weights_make(share ? share->want : WEIGHTS_PRIVATE, m->weights_bytes, m->pool, m->pulse, &m->weights, NULL))
        return fail(l, -ENOMEM, "no memory for %zu bytes of weights", m->weights_bytes);
    place_mats(l, m->weights.data);
    if ((r = pack_all(l)))
        return r;
    if ((r = weights_seal(&m->weights, key, l->err)))
        return err_place(l->err, "%s", gguf_path(l->file)), r;
    if (share)
        share->made = STEAL_FD(m->weights.fd);
    return 0;
}

static int get_weights(struct loading *l, struct weights_share *share)
{
    const struct weights_key key = key_of_weights(l);
    int r = share && share->given >= 0 ? take_packed(l, &key, share) : WEIGHTS_OTHER;

    if (r == 0)
        share->taken = true;
    if (r == WEIGHTS_OTHER)
        r = make_packed(l, &key, share);
    if (r == 0 && l->m->out.rows == 0)
        l->m->out = l->m->embd;
    return r;
}

/* ---- scratch --------------------------------------------------------- */

/* Lays out the scratch: first to count, then with a base. */
struct layout {
    uint8_t *base;
    size_t at;
};

static void *place(struct layout *l, size_t n, size_t size)
{
    void *p = l->base ? l->base + l->at : NULL;

    l->at += (n * size + 63) & ~(size_t)63;
    return p;
}

static void place_acts(struct layout *l, uint32_t rows, uint32_t k, struct acts *a)
{
    const size_t n_blocks = (size_t)rows * (k / KERNEL_BLOCK);

    a->k = k;
    a->q = place(l, (size_t)rows * k, 1);
    a->d = place(l, n_blocks, sizeof *a->d);
    a->sum = place(l, n_blocks, sizeof *a->sum);
    a->half = place(l, n_blocks, sizeof *a->half);
    a->f = place(l, (size_t)rows * k, sizeof *a->f);
}

static void place_rows(struct layout *l, const struct model *m, uint32_t n, struct rows *r)
{
    r->x = place(l, (size_t)n * m->dim, sizeof *r->x);
    for (uint32_t i = 0; i < m->n_sights; i++) {
        r->turns[i].c = place(l, (size_t)n * m->shape.head_dim, sizeof(float));
        r->turns[i].s = place(l, (size_t)n * m->shape.head_dim, sizeof(float));
    }
    place_acts(l, n, m->dim, &r->in);
    place_acts(l, n, m->attn, &r->att);
    r->heads = m->shape.head_dim == m->shape.head_real ? r->att.f : place(l, (size_t)n * m->heads_stride, sizeof *r->heads);
}

/* Of the kernels for rows of a prompt. */
static void place_prompt(struct model *m, struct layout *l)
{
    const struct prompt_kernels *k = m->k->prompt;
    struct prompt *p = &m->prompt;

    p->in = place(l, (size_t)MODEL_MAX_ROWS * m->dim, sizeof *p->in);
    p->att = place(l, (size_t)MODEL_MAX_ROWS * m->attn, sizeof *p->att);
    p->mid = place(l, (size_t)MODEL_MAX_ROWS * m->ffn, sizeof *p->mid);
    for (uint32_t t = 0; t < m->threads; t++) {
        struct worker_room unused, *room = l->base ? &m->rooms[t] : &unused;

        room->sums = place(l, PROMPT_ITEM * 2 * (size_t)KERNEL_LANES, sizeof *room->sums);
        room->tiles = place(l, PROMPT_ROOM, 1);
        room->attend = place(l, k->attend ? k->attend_scratch(m->group, m->shape.head_dim) : 0, 1);
        room->heads = place(l, k->attend ? (size_t)PROMPT_ATTEND_ROWS * m->group * m->shape.head_dim : 0, sizeof *room->heads);
    }
}

static void place_all(struct model *m, struct layout *l)
{
    const struct model_shape *s = &m->shape;
    const size_t rows = MODEL_MAX_ROWS, qkv = (size_t)(s->n_heads + 2 * s->n_kv_heads) * s->head_dim;
    size_t widest = m->ffn > m->dim ? m->ffn : m->dim;

    if (widest < m->slot_floats)
        widest = m->slot_floats;
    place_rows(l, m, MODEL_MAX_ROWS, &m->rows);
    place_acts(l, MODEL_MAX_ROWS, m->ffn, &m->mid);
    m->y = place(l, rows * m->dim, sizeof *m->y);
    m->qkv = place(l, rows * qkv, sizeof *m->qkv);
    m->gate = place(l, rows * m->ffn, sizeof *m->gate);
    m->up = place(l, rows * m->ffn, sizeof *m->up);
    m->tail = place(l, rows * KERNEL_LANES, sizeof *m->tail);
    m->slots = place(l, MODEL_SLOTS * m->slot_floats, sizeof *m->slots);
    m->rooms = place(l, m->threads, sizeof *m->rooms);
    for (uint32_t t = 0; t < m->threads; t++) {
        struct worker_room unused, *room = m->rooms ? &m->rooms[t] : &unused;

        place_rows(l, m, MODEL_COPIED_ROWS, &room->rows);
        room->row = place(l, widest, sizeof *room->row);
        room->part = place(l, m->slot_floats, sizeof *room->part);
    }
    if (m->k->prompt)
        place_prompt(m, l);
    for (size_t i = 0; l->base && i < rows; i++) {
        m->y_rows[i] = m->y + i * m->dim;
        m->qkv_rows[i] = m->qkv + i * qkv;
        m->gate_rows[i] = m->gate + i * m->ffn;
        m->up_rows[i] = m->up + i * m->ffn;
        m->tail_rows[i] = m->tail + i * KERNEL_LANES;
    }
}

static uint32_t padded(uint32_t n) { return (n + KERNEL_BLOCK - 1) / KERNEL_BLOCK * KERNEL_BLOCK; }

static void count_scratch(struct model *m)
{
    const struct model_shape *s = &m->shape;
    struct layout layout = { 0 };

    m->dim = padded(s->dim);
    m->attn = padded(s->n_heads * s->head_real);
    m->heads_stride = s->head_dim == s->head_real ? m->attn : s->n_heads * s->head_dim;
    m->ffn = padded(s->ffn_dim);
    m->group = s->n_heads / s->n_kv_heads;
    m->slot_floats = ((size_t)m->group * (s->head_dim + 2) + 15) & ~(size_t)15;
    place_all(m, &layout);
    m->scratch_bytes = layout.at;
}

static int make_scratch(struct loading *l)
{
    struct model *m = l->m;
    struct layout layout;

    m->scratch = slab_map(m->scratch_bytes);
    if (!m->scratch)
        return fail(l, -ENOMEM, "no memory for %zu bytes of scratch", m->scratch_bytes);
    layout = (struct layout){ .base = m->scratch };
    place_all(m, &layout);
    return 0;
}

/* Everything but memory for weights and scratch, whose sizes are known afterwards. */
static int read_all(struct loading *l)
{
    int r;

    l->m->arena = arena_new(0);
    if (!l->m->arena)
        return fail(l, -ENOMEM, "no memory");
    if ((r = read_shape(l)) || (r = take_tensors(l)) || (r = make_sights(l)) || (r = read_numbers(l)) ||
        (r = refuse_unknown_tensors(l)))
        return r;
    count_scratch(l->m);
    return count_weights(l);
}

int model_load(struct model *m, const struct gguf *file, struct weights_share *share, struct err *err)
{
    struct loading l = { .m = m, .file = file, .err = err };
    int r;

    if ((r = read_all(&l)) == 0 && (r = make_scratch(&l)) == 0)
        r = get_weights(&l, share);
    free(l.sources);
    free(l.used);
    return r;
}

int model_measure(const struct gguf *file, uint32_t threads, const char *isa, struct model_size *ret, struct err *err)
{
    struct model *m = calloc(1, sizeof *m);
    struct loading l = { .m = m, .file = file, .err = err };
    int r;

    if (!m)
        return err_set(err, -ENOMEM, "%s: no memory", gguf_path(file));
    m->threads = threads ? threads : pool_allowed();
    r = kernels_choose(isa, &m->k, err);
    if (r == 0)
        r = read_all(&l);
    if (r == 0) {
        *ret = (struct model_size){ .shape = m->shape, .threads = m->threads, .isa = m->k->name,
                                    .weight_bytes = m->weights_bytes, .scratch_bytes = m->scratch_bytes };
        for (uint32_t i = 0; i < m->shape.n_layers; i++)
            ret->n_sliding += m->layers[i].sight == SIGHT_LOCAL;
        ret->window = ret->n_sliding ? m->sights[SIGHT_LOCAL].window : 0;
    }
    free(l.sources);
    free(l.used);
    arena_free(m->arena);
    free(m);
    return r;
}
