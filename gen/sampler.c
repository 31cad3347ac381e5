#include "gen/sampler.h"

#include "base/err.h"
#include "base/id.h"
#include "gen/dry.h"
#include "gen/engine.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <string.h>

/* Weights are exp(x - max), so the best token weighs 1 and every weight is a
 * float in [0, 1], whose bits order like integers. Top-p and top-k keep
 * the first so many tokens of the descending order; only top-p looks at the sum, and it
 * comes first, so one search with two limits (how many, how much) finds where
 * to cut. Typical is the same search in another order; min-p is a threshold.
 *
 * The vector code below is GNU C's own, four lanes everywhere, so that a sum
 * has the same order of additions on every machine. */
typedef float f32x4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t i32x4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef uint32_t u32x4 __attribute__((vector_size(16), aligned(4), may_alias));

enum { BLOCK = 64, DIGIT_BITS = 10, DIGITS = 1 << DIGIT_BITS, MIROSTAT_BEST = 100 };

struct digit { double mass; uint32_t n; };

struct sampler_work {
    uint32_t vocab_size, n_blocks;
    float *x;                   /* [n_blocks * BLOCK]: scaled logits, then weights */
    double *mass;               /* [n_blocks]: sum of the weights of a block */
    float *best;                /* [n_blocks]: the greatest of them */
    uint32_t *ids;              /* [vocab_size]: candidates */
    float *key;                 /* [vocab_size]: how typical a candidate is */
    struct digit digits[DIGITS];
};

struct seen {
    int32_t token;
    uint32_t total, generated;  /* how often, of the tokens that count */
    uint32_t repeats;           /* while DRY looks: 1 + the length of the longest match */
};

struct sampler {
    struct sample_params params;
    struct sampler_plan plan;
    struct logit_bias *bias;    /* [params.n_bias] */
    uint64_t key, n_generated;
    size_t n_seen, cap, mask;
    struct seen *seen;          /* [cap], as they came; none when no penalty asks */
    uint32_t *slots;            /* [mask + 1]: 1 + index into seen, open addressing */
    int32_t *text;              /* [cap]: all tokens, where a window or DRY asks */
    size_t n_prompt, n_text;
    struct dry_breakers *breakers;
    size_t dry_most;            /* tokens that DRY looks at */
    double mu;                  /* mirostat: the surprise that is let through, in bits */
    int32_t picked;
    double surprise;            /* of the picked token among those that were kept */
    uint32_t *z;                /* [dry_most] */
    struct dry_match *matches;  /* [dry_most] */
};

struct sampler_plan sampler_plan(const struct sample_params *p)
{
    return (struct sampler_plan){
        .greedy = p->temperature < 1e-5f || p->top_p < 1e-8f,
        .bias = p->n_bias > 0,
        .temperature = p->temperature >= 1e-5f && p->temperature != 1,
        .repetition = p->repetition_penalty > 1,
        .counts = p->presence_penalty != 0 || p->frequency_penalty != 0,
        .top_p = p->top_p >= 1e-8f && p->top_p < 1,
        .top_k = p->top_k > 0,
        .typical = p->typical_p < 1,
        .min_p = p->min_p > 0,
        .sigma = p->top_n_sigma > 0,
        .mirostat = p->mirostat == 1 || p->mirostat == 2 ? p->mirostat : 0,
        .dry = p->dry_multiplier > 0 && p->dry_base >= 1 && p->dry_penalty_last_n != 0,
        .window = p->repeat_last_n >= 0,
        .xtc = p->xtc_probability > 0 && p->xtc_threshold <= 0.5f,
    };
}

static uint32_t blocks_of(uint32_t vocab_size) { return vocab_size / BLOCK + (vocab_size % BLOCK != 0); }

size_t sampler_work_bytes(uint32_t vocab_size)
{
    const struct sampler_work *w = NULL;

    return sizeof *w + blocks_of(vocab_size) * (BLOCK * sizeof w->x[0] + sizeof w->mass[0] + sizeof w->best[0]) +
           vocab_size * (sizeof w->ids[0] + sizeof w->key[0]);
}

int sampler_work_open(uint32_t vocab_size, struct sampler_work **ret, struct err *err)
{
    CLEANUP(sampler_work_close) struct sampler_work *w = calloc(1, sizeof *w);
    const uint32_t n_blocks = blocks_of(vocab_size);

    if (w) {
        w->vocab_size = vocab_size;
        w->n_blocks = n_blocks;
        w->x = calloc(n_blocks, BLOCK * sizeof w->x[0]);
        w->mass = calloc(n_blocks, sizeof w->mass[0]);
        w->best = calloc(n_blocks, sizeof w->best[0]);
        w->ids = calloc(vocab_size, sizeof w->ids[0]);
        w->key = calloc(vocab_size, sizeof w->key[0]);
    }
    if (!w || !w->x || !w->mass || !w->best || !w->ids || !w->key)
        return err_set(err, -ENOMEM, "no memory to sample from %u tokens", vocab_size);
    *ret = STEAL(w);
    return 0;
}

void sampler_work_close(struct sampler_work *w)
{
    if (!w)
        return;
    free(w->x);
    free(w->mass);
    free(w->best);
    free(w->ids);
    free(w->key);
    free(w);
}

static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* Uniform in [0, 1), one for each step and stream. */
enum stream { STREAM_TOKEN, STREAM_XTC };
static double draw(const struct sampler *s, enum stream stream)
{
    uint64_t key = stream ? mix(s->key ^ stream) : s->key;

    return (double)(mix(key + (s->n_generated + 1) * 0x9E3779B97F4A7C15u) >> 11) * 0x1p-53;
}

static int params_check(const struct sample_params *p, struct err *err)
{
    const struct { const char *name; float value; } all[] = {
        { "temperature", p->temperature },
        { "top_p", p->top_p },
        { "typical_p", p->typical_p },
        { "min_p", p->min_p },
        { "xtc_probability", p->xtc_probability },
        { "xtc_threshold", p->xtc_threshold },
        { "top_n_sigma", p->top_n_sigma },
        { "dry_multiplier", p->dry_multiplier },
        { "dry_base", p->dry_base },
        { "mirostat_tau", p->mirostat_tau },
        { "mirostat_eta", p->mirostat_eta },
        { "repetition_penalty", p->repetition_penalty },
        { "presence_penalty", p->presence_penalty },
        { "frequency_penalty", p->frequency_penalty },
    };

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (!isfinite(all[i].value))
            return err_set(err, -EINVAL, "%s is not a finite number", all[i].name);
    for (size_t i = 0; i < p->n_bias; i++)
        if (!(p->bias[i].bias < INFINITY))
            return err_set(err, -EINVAL, "the bias of token %d is not a number", p->bias[i].token);
    return 0;
}

/* The slot of a token that is there or could be put there. */
static size_t slot_of(const struct sampler *s, int32_t token)
{
    size_t i = mix((uint32_t)token) & s->mask;

    while (s->slots[i] && s->seen[s->slots[i] - 1].token != token)
        i = (i + 1) & s->mask;
    return i;
}

/* Of a token of the text. */
static struct seen *lookup(const struct sampler *s, int32_t token)
{
    return &s->seen[s->slots[slot_of(s, token)] - 1];
}

static struct seen *find(struct sampler *s, int32_t token)
{
    size_t i = slot_of(s, token);

    if (!s->slots[i]) {
        s->seen[s->n_seen++] = (struct seen){ .token = token };
        s->slots[i] = (uint32_t)s->n_seen;
    }
    return &s->seen[s->slots[i] - 1];
}

static bool penalises(const struct sampler_plan *plan)
{
    return plan->repetition || plan->counts;
}

static int open_table(struct sampler *s, size_t n_prompt, size_t max_tokens)
{
    const struct sample_params *p = &s->params;
    size_t n, n_slots = 16;

    if (__builtin_add_overflow(n_prompt, max_tokens, &n) || n > UINT32_MAX / 4)
        return -ENOMEM;
    while (n_slots < 2 * n)
        n_slots *= 2;
    s->cap = n;
    s->mask = n_slots - 1;
    n += n == 0;
    s->seen = calloc(n, sizeof s->seen[0]);
    s->slots = calloc(n_slots, sizeof s->slots[0]);
    s->text = calloc(n, sizeof s->text[0]);
    if (s->plan.dry) {
        s->dry_most = p->dry_penalty_last_n > 0 && (size_t)p->dry_penalty_last_n < n ? (size_t)p->dry_penalty_last_n : n;
        s->z = calloc(s->dry_most, sizeof s->z[0]);
        s->matches = calloc(s->dry_most, sizeof s->matches[0]);
    }
    return s->seen && s->slots && s->text && (!s->plan.dry || (s->z && s->matches)) ? 0 : -ENOMEM;
}

/* Takes a token in, and out again what the window leaves behind. */
static void count(struct sampler *s, int32_t token, bool generated)
{
    size_t window = s->plan.window ? (size_t)s->params.repeat_last_n : s->cap;
    struct seen *seen;

    if (s->n_text == s->cap)
        return;
    seen = find(s, token);
    s->text[s->n_text++] = token;
    seen->total++;
    seen->generated += generated;
    if (s->n_text > window) {
        size_t out = s->n_text - 1 - window;

        seen = find(s, s->text[out]);
        seen->total--;
        seen->generated -= out >= s->n_prompt;
    }
}

int sampler_open(const struct sample_params *p, const int32_t *prompt, size_t n_prompt,
                 size_t max_tokens, struct sampler **ret, struct err *err)
{
    CLEANUP(sampler_close) struct sampler *s = NULL;
    int r = params_check(p, err);

    if (r < 0)
        return r;
    s = calloc(1, sizeof *s);
    if (!s)
        return err_set(err, -ENOMEM, "no memory for a sampler");
    s->params = *p;
    s->params.bias = NULL;
    s->params.dry_breakers = NULL;
    s->plan = sampler_plan(p);
    s->mu = 2 * (double)p->mirostat_tau;
    s->picked = -1;
    if (s->plan.bias) {
        s->bias = calloc(p->n_bias, sizeof s->bias[0]);
        if (!s->bias)
            return err_set(err, -ENOMEM, "no memory for %zu biases", p->n_bias);
        memcpy(s->bias, p->bias, p->n_bias * sizeof s->bias[0]);
    }
    /* Twice mixed, so that the draws of neighbouring seeds have nothing in common. */
    s->key = mix(mix((p->has_seed ? p->seed : id_random_u64()) ^ 0x6A09E667F3BCC909u));
    if (penalises(&s->plan) || s->plan.dry) {
        s->n_prompt = n_prompt;
        r = open_table(s, n_prompt, max_tokens);
        if (r < 0)
            return err_set(err, r, "no memory to count %zu tokens", n_prompt + max_tokens);
        for (size_t i = 0; i < n_prompt; i++)
            count(s, prompt[i], false);
    }
    *ret = STEAL(s);
    return 0;
}

void sampler_close(struct sampler *s)
{
    if (!s)
        return;
    free(s->bias);
    free(s->seen);
    free(s->slots);
    free(s->text);
    dry_breakers_close(s->breakers);
    free(s->z);
    free(s->matches);
    free(s);
}

void sampler_set_breakers(struct sampler *s, struct dry_breakers *b)
{
    dry_breakers_close(s->breakers);
    s->breakers = dry_breakers_ref(b);
}

static void *copy(const void *from, size_t n, size_t size, bool *failed)
{
    void *to = from ? malloc(n * size + 1) : NULL;

    if (to)
        memcpy(to, from, n * size);
    *failed |= from && !to;
    return to;
}

int sampler_copy(const struct sampler *s, struct sampler **ret, struct err *err)
{
    CLEANUP(sampler_close) struct sampler *c = malloc(sizeof *c);
    bool failed = false;

    if (!c)
        return err_set(err, -ENOMEM, "no memory for a sampler");
    *c = *s;
    c->bias = copy(s->bias, s->params.n_bias, sizeof c->bias[0], &failed);
    c->seen = copy(s->seen, s->cap, sizeof c->seen[0], &failed);
    c->slots = copy(s->slots, s->mask + 1, sizeof c->slots[0], &failed);
    c->text = copy(s->text, s->cap, sizeof c->text[0], &failed);
    c->breakers = dry_breakers_ref(s->breakers);
    c->z = copy(s->z, s->dry_most, sizeof c->z[0], &failed);
    c->matches = copy(s->matches, s->dry_most, sizeof c->matches[0], &failed);
    if (failed)
        return err_set(err, -ENOMEM, "no memory for a sampler");
    *ret = STEAL(c);
    return 0;
}

void sampler_accept(struct sampler *s, int32_t token)
{
    if (s->text)
        count(s, token, true);
    if (s->plan.mirostat && token == s->picked)
        s->mu -= (double)s->params.mirostat_eta * (s->surprise - (double)s->params.mirostat_tau);
    s->picked = -1;
    s->n_generated++;
}

/* exp(x) for x <= 0, 0 below -87; within 2 ulp (Cephes, expf.c). */
static inline f32x4 exp4(f32x4 x)
{
    const f32x4 magic = { 12582912.f, 12582912.f, 12582912.f, 12582912.f };    /* 1.5 * 2^23 */
    i32x4 keep = x > -87.f;
    f32x4 t = x * 1.44269504088896341f + magic;
    f32x4 n = t - magic;
    u32x4 scale = ((u32x4)t - (u32x4)magic + 127) << 23;       /* unsigned: what is not kept may be anything */
    f32x4 r = x - n * 0.693359375f + n * 2.12194440e-4f;
    f32x4 y = r * 1.9875691500e-4f + 1.3981999507e-3f;

    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.f;
    return (f32x4)((i32x4)(y * (f32x4)scale) & keep);
}

/* ln(x) for x > 0 that is not subnormal; within 2 ulp (Cephes, logf.c). */
static inline f32x4 log4(f32x4 x)
{
    i32x4 bits = (i32x4)x, low;
    f32x4 m = (f32x4)((bits & 0x007FFFFF) | 0x3F000000), e, z, y;

    low = m < 0.70710678118654752f;
    e = __builtin_convertvector((bits >> 23) - 126 + low, f32x4);   /* low is -1 where it holds */
    m = m + (f32x4)((i32x4)m & low) - 1.f;
    z = m * m;
    y = m * 7.0376836292e-2f - 1.1514610310e-1f;
    y = y * m + 1.1676998740e-1f;
    y = y * m - 1.2420140846e-1f;
    y = y * m + 1.4249322787e-1f;
    y = y * m - 1.6668057665e-1f;
    y = y * m + 2.0000714765e-1f;
    y = y * m - 2.4999993993e-1f;
    y = y * m + 3.3333331174e-1f;
    y = y * m * z - e * 2.12194440e-4f - z * 0.5f;
    return m + y + e * 0.693359375f;
}

static inline f32x4 max4(f32x4 a, f32x4 b)
{
    i32x4 more = b > a;

    return (f32x4)(((i32x4)b & more) | ((i32x4)a & ~more));
}

/* The largest of x, or -infinity; false for logits that are no logits. Four sums hide the latency of max4(). */
static bool max_part(const float *x, uint32_t n, float *ret)
{
    enum { SUMS = 4, STEP = 4 * SUMS };
    const f32x4 none = { -INFINITY, -INFINITY, -INFINITY, -INFINITY };
    f32x4 max[SUMS] = { none, none, none, none };
    i32x4 fine = { -1, -1, -1, -1 };
    float best = -INFINITY;
    uint32_t i = 0;

    for (; i + STEP <= n; i += STEP)
        for (int k = 0; k < SUMS; k++) {
            const f32x4 v = *(const f32x4 *)(x + i + 4 * k);

            fine &= v < INFINITY;                   /* not for NaN either */
            max[k] = max4(max[k], v);
        }
    max[0] = max4(max4(max[0], max[1]), max4(max[2], max[3]));
    for (int k = 0; k < 4; k++) {
        if (!fine[k])
            return false;
        best = max[0][k] > best ? max[0][k] : best;
    }
    for (; i < n; i++) {
        if (!(x[i] < INFINITY))
            return false;
        best = x[i] > best ? x[i] : best;
    }
    *ret = best;
    return true;
}

/* The same of all that there are; -EDOM where none is above -infinity either. */
static int max_of(const float *x, uint32_t n, float *ret)
{
    float best;

    if (!max_part(x, n, &best) || best == -INFINITY)
        return -EDOM;
    *ret = best;
    return 0;
}

/* The lowest id of the best, which is looked for where the best of a part is. */
static int argmax(const float *x, uint32_t n, uint32_t *ret)
{
    enum { PART = 4096 };
    float best = -INFINITY;
    uint32_t at = 0;

    for (uint32_t i = 0; i < n; i += PART) {
        float max;

        if (!max_part(x + i, n - i < PART ? n - i : PART, &max))
            return -EDOM;
        if (max > best) {
            best = max;
            at = i;
        }
    }
    if (best == -INFINITY)
        return -EDOM;
    while (x[at] != best)
        at++;
    *ret = at;
    return 0;
}

/* What fills the last block weighs nothing. */
static void pad(struct sampler_work *w)
{
    for (uint32_t i = w->vocab_size; i < w->n_blocks * BLOCK; i++)
        w->x[i] = -INFINITY;
}

/* x to weights in place, with sum and greatest of each block. Returns the sum of all. */
static double weigh(struct sampler_work *w, float max)
{
    double total = 0;

    pad(w);
    for (uint32_t b = 0; b < w->n_blocks; b++) {
        f32x4 *x = (f32x4 *)(w->x + (size_t)b * BLOCK);
        f32x4 sum[2] = { { 0 }, { 0 } }, best = { 0 };

        for (int i = 0; i < BLOCK / 4; i += 2) {
            x[i] = exp4(x[i] - max);
            x[i + 1] = exp4(x[i + 1] - max);
            sum[0] += x[i];
            sum[1] += x[i + 1];
            best = max4(best, max4(x[i], x[i + 1]));
        }
        sum[0] += sum[1];
        w->mass[b] = ((double)sum[0][0] + sum[0][1]) + ((double)sum[0][2] + sum[0][3]);
        w->best[b] = fmaxf(fmaxf(best[0], best[1]), fmaxf(best[2], best[3]));
        total += w->mass[b];
    }
    return total;
}

static void add_bias(const struct sampler *s, struct sampler_work *w, float scale)
{
    for (size_t i = 0; i < s->params.n_bias; i++)
        if ((uint32_t)s->bias[i].token < w->vocab_size)
            w->x[s->bias[i].token] += s->bias[i].bias * scale;
}

static void penalise(const struct sampler *s, struct sampler_work *w)
{
    const struct sample_params *p = &s->params;

    for (size_t i = 0; i < s->n_seen && penalises(&s->plan); i++) {
        const struct seen *seen = &s->seen[i];
        float *x;

        if (!seen->total || (uint32_t)seen->token >= w->vocab_size)
            continue;
        x = &w->x[seen->token];
        if (s->plan.repetition)
            *x = *x > 0 ? *x / p->repetition_penalty : *x * p->repetition_penalty;
        if (seen->generated)
            *x -= p->presence_penalty + (float)seen->generated * p->frequency_penalty;
    }
}

/* m * b^(n - a), with the exponent kept where a float can follow. */
static float dry_penalty(const struct sample_params *p, uint32_t length)
{
    double n = (double)length - p->dry_allowed_length;

    if (p->dry_base > 1.000001f)
        n = fmin(n, floor(88.7228391 / log((double)p->dry_base)));
    return p->dry_multiplier * (float)pow((double)p->dry_base, n);
}

static void stop_repeating(const struct sampler *s, struct sampler_work *w, float scale)
{
    size_t n = s->n_text < s->dry_most ? s->n_text : s->dry_most;

    if (!s->plan.dry)
        return;
    n = dry_find(s->text + s->n_text - n, n, s->breakers, (uint32_t)s->params.dry_allowed_length, s->z, s->matches);
    for (size_t i = 0; i < n; i++) {
        struct seen *seen = lookup(s, s->matches[i].token);

        if (s->matches[i].length >= seen->repeats)
            seen->repeats = s->matches[i].length + 1;
    }
    for (size_t i = 0; i < n; i++) {
        struct seen *seen = lookup(s, s->matches[i].token);

        /* Once for each token: the longest. */
        if (seen->repeats != s->matches[i].length + 1)
            continue;
        seen->repeats = 0;
        if ((uint32_t)seen->token < w->vocab_size && !dry_breakers_hold(s->breakers, seen->token))
            w->x[seen->token] -= dry_penalty(&s->params, s->matches[i].length) * scale;
    }
}

static uint32_t bits_of(float weight)
{
    uint32_t bits;

    memcpy(&bits, &weight, sizeof bits);
    return bits;
}

struct cut_limits {
    size_t most;                /* tokens */
    double mass;
    bool above;                 /* the mass must be exceeded, not reached */
};

static bool enough(const struct cut_limits *l, double sum)
{
    return l->above ? sum > l->mass : sum >= l->mass;
}

/* How many tokens of `each` it takes. */
static double needed(const struct cut_limits *l, double sum, double each)
{
    double n = (l->mass - sum) / each;

    return l->above ? floor(n) + 1 : ceil(n);
}

/* Where the descending order by key of w->ids[0..n) is cut: after `most` tokens, or
 * as soon as the sum of their weights is enough. Three digits of ten bits from the top
 * (keys are at most 1, so the two bits above them are 0). *ret_bits is the
 * last key that stays, and the first *ret_n_equal tokens of that key do. */
static void cut_find(struct sampler_work *w, const float *key, size_t n, const struct cut_limits *l,
                     uint32_t *ret_bits, size_t *ret_n_equal)
{
    uint32_t prefix = 0;
    double sum = 0;
    size_t count = 0;

    for (int shift = 20; shift >= 0; shift -= DIGIT_BITS) {
        uint32_t d = DIGITS - 1;

        memset(w->digits, 0, sizeof w->digits);
        for (size_t i = 0; i < n; i++) {
            uint32_t bits = bits_of(key[w->ids[i]]);
            struct digit *to = &w->digits[bits >> shift & (DIGITS - 1)];

            if (shift < 20 && bits >> (shift + DIGIT_BITS) != prefix)
                continue;
            to->n++;
            to->mass += (double)w->x[w->ids[i]];
        }
        while (d && !(count + w->digits[d].n >= l->most ||
                      (w->digits[d].n && enough(l, sum + w->digits[d].mass)))) {
            count += w->digits[d].n;
            sum += w->digits[d].mass;
            d--;
        }
        /* Rounding may leave the sum short of the mass: then all stay. */
        prefix = prefix << DIGIT_BITS | d;
        if (shift == 0) {
            double each = w->digits[d].n ? w->digits[d].mass / w->digits[d].n : 0;
            double need = each > 0 ? needed(l, sum, each) : w->digits[d].n;
            size_t left = l->most - count;

            need = need < 1 ? 1 : need;
            *ret_n_equal = need < (double)left ? (size_t)need : left;
        }
    }
    *ret_bits = prefix;
}

/* Keeps the first candidates of the order, ids ascending; returns their number. */
static size_t cut(struct sampler_work *w, const float *key, size_t n, const struct cut_limits *l)
{
    size_t kept = 0, equal;
    uint32_t last;

    cut_find(w, key, n, l, &last, &equal);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = bits_of(key[w->ids[i]]);

        if (bits > last || (bits == last && equal && equal--))
            w->ids[kept++] = w->ids[i];
    }
    return kept;
}

/* Fills w->ids with the tokens of at least this weight. */
static size_t collect(struct sampler_work *w, float least)
{
    size_t n = 0;

    for (uint32_t b = 0; b < w->n_blocks; b++) {
        uint32_t end = (b + 1) * BLOCK < w->vocab_size ? (b + 1) * BLOCK : w->vocab_size;

        for (uint32_t i = b * BLOCK; i < end && w->best[b] >= least; i++) {
            w->ids[n] = i;
            n += w->x[i] >= least;
        }
    }
    return n;
}

/* A weight that the k best reach: so many blocks hold one of it. */
static float least_of_best(struct sampler_work *w, size_t k)
{
    size_t equal;
    uint32_t bits;
    float least;

    if (k > w->n_blocks)
        return 0;
    for (uint32_t b = 0; b < w->n_blocks; b++)
        w->ids[b] = b;
    cut_find(w, w->best, w->n_blocks, &(struct cut_limits){ .most = k, .mass = INFINITY }, &bits, &equal);
    memcpy(&least, &bits, sizeof least);
    return least;
}

/* Σ w ln w over candidates of weight above 0, and their sum. */
static double sum_of_logs(const struct sampler_work *w, size_t n, double *ret_total)
{
    double sum = 0, total = 0;

    for (size_t i = 0; i < n; i += 4) {
        f32x4 x = { 1, 1, 1, 1 }, y;
        size_t m = n - i < 4 ? n - i : 4;

        for (size_t k = 0; k < m; k++)
            x[k] = w->x[w->ids[i + k]];
        y = x * log4(x);
        sum += ((double)y[0] + (double)y[1]) + ((double)y[2] + (double)y[3]);
        total += ((double)x[0] + (double)x[1]) + ((double)x[2] + (double)x[3]) - (double)(4 - m);
    }
    *ret_total = total;
    return sum;
}

/* The same over the whole vocabulary. */
static double sum_of_all_logs(const struct sampler_work *w)
{
    const f32x4 tiny = { FLT_MIN, FLT_MIN, FLT_MIN, FLT_MIN };
    double sum = 0;

    for (uint32_t b = 0; b < w->n_blocks; b++) {
        const f32x4 *x = (const f32x4 *)(w->x + (size_t)b * BLOCK);
        f32x4 y = { 0 };

        for (int i = 0; i < BLOCK / 4; i++)
            y += x[i] * log4(max4(x[i], tiny));
        sum += ((double)y[0] + (double)y[1]) + ((double)y[2] + (double)y[3]);
    }
    return sum;
}

/* Of n candidates. A token's surprise is off the entropy by |ln(weight / typical
 * weight)|, which the ratio, turned so that it is at most 1, orders without a logarithm. */
static size_t cut_typical(struct sampler_work *w, size_t n, float typical, double mass)
{
    for (size_t i = 0; i < n; i++) {
        float x = w->x[w->ids[i]];

        w->key[w->ids[i]] = fminf(x / typical, typical / x);
    }
    return cut(w, w->key, n, &(struct cut_limits){ .most = n, .mass = mass, .above = true });
}

static size_t keep_typical(struct sampler_work *w, size_t n, double p)
{
    double total, sum = sum_of_logs(w, n, &total);

    return cut_typical(w, n, (float)exp(sum / total), p * total);
}

static size_t keep_typical_of_all(struct sampler_work *w, double total, double p)
{
    double typical = exp(sum_of_all_logs(w) / total), rest = (1 - p) * total / w->vocab_size * 0.999;

    /* All tokens below `rest` weigh less than what is left out. They come last,
     * unless the best, which weighs 1, is further off than they are. */
    if (typical * typical < rest)
        rest = 0;
    return cut_typical(w, collect(w, fmaxf((float)rest, FLT_MIN)), (float)typical, p * total);
}

static size_t keep_min_p(struct sampler_work *w, size_t n, float min_p)
{
    size_t kept = 0;
    float best = 0;

    for (size_t i = 0; i < n; i++)
        best = fmaxf(best, w->x[w->ids[i]]);
    for (size_t i = 0; i < n; i++)
        if (w->x[w->ids[i]] >= best * fminf(min_p, 1))
            w->ids[kept++] = w->ids[i];
    return kept;
}

/* Of those that reach the threshold only the last in descending order stays:
 * there is then a choice, and nothing unlikely takes the place of the best. */
static size_t exclude_top(struct sampler_work *w, size_t n, float threshold)
{
    float least = INFINITY;
    uint32_t last = 0;
    double total = 0, bound;
    size_t kept = 0;

    for (size_t i = 0; i < n; i++)
        total += (double)w->x[w->ids[i]];
    bound = (double)threshold * total;
    for (size_t i = 0; i < n; i++) {
        float x = w->x[w->ids[i]];

        if ((double)x >= bound && x <= least) {
            least = x;
            last = w->ids[i];
        }
    }
    for (size_t i = 0; i < n; i++)
        if ((double)w->x[w->ids[i]] < bound || w->ids[i] == last)
            w->ids[kept++] = w->ids[i];
    return kept;
}

/* Fills w->ids with the tokens that the filters keep; returns their number. */
static size_t filter(const struct sampler *s, struct sampler_work *w, double total, bool xtc)
{
    const struct sample_params *p = &s->params;
    struct cut_limits l = { .most = s->plan.top_k ? (size_t)p->top_k : w->vocab_size,
                            .mass = s->plan.top_p ? (double)p->top_p * total : INFINITY };
    float least = s->plan.typical || xtc ? FLT_MIN : 0;
    size_t n;

    if (s->plan.top_k)
        least = fmaxf(least, least_of_best(w, l.most));
    /* All tokens below this weigh less than what top-p leaves out. */
    if (s->plan.top_p)
        least = fmaxf(least, (float)((1 - (double)p->top_p) * total / w->vocab_size * 0.999));
    /* After typical the best may be another. */
    if (s->plan.min_p && !s->plan.typical)
        least = fmaxf(least, fminf(p->min_p, 1));
    if (s->plan.typical && !s->plan.top_p && !s->plan.top_k) {
        n = keep_typical_of_all(w, total, (double)p->typical_p);
    } else {
        n = collect(w, least);
        if (l.most < n || s->plan.top_p) {
            l.most = l.most < n ? l.most : n;
            n = cut(w, w->x, n, &l);
        }
        n = s->plan.typical ? keep_typical(w, n, (double)p->typical_p) : n;
    }
    if (s->plan.min_p && s->plan.typical)
        n = keep_min_p(w, n, p->min_p);
    return xtc ? exclude_top(w, n, p->xtc_threshold) : n;
}

/* Fills w->ids with the best tokens of at least this weight. */
static size_t keep_best(struct sampler_work *w, float least, size_t most)
{
    size_t n = collect(w, fmaxf(least, least_of_best(w, most)));

    return most < n ? cut(w, w->x, n, &(struct cut_limits){ .most = most, .mass = INFINITY }) : n;
}

/* The exponent of Zipf's law that fits the best tokens, by least squares. */
static double zipf_exponent(struct sampler_work *w)
{
    float best[MIROSTAT_BEST];
    size_t n = keep_best(w, FLT_MIN, MIROSTAT_BEST);
    double products = 0, squares = 0;

    for (size_t i = 0; i < n; i++) {
        float x = w->x[w->ids[i]];
        size_t at = i;

        for (; at && best[at - 1] < x; at--)
            best[at] = best[at - 1];
        best[at] = x;
    }
    for (size_t i = 0; i + 1 < n; i++) {
        double t = log((double)(i + 2) / (double)(i + 1)), b = log((double)best[i] / (double)best[i + 1]);

        products += t * b;
        squares += t * t;
    }
    return products / squares;
}

static size_t mirostat_one(const struct sampler *s, struct sampler_work *w)
{
    double zipf = zipf_exponent(w), e = zipf - 1;
    double k = pow(e * exp2(s->mu) / (1 - pow(w->vocab_size, -e)), 1 / zipf);

    /* Not a number where the fall is no law: one token, then. */
    return keep_best(w, FLT_MIN, k >= 1 ? (size_t)fmin(k, w->vocab_size) : 1);
}

static size_t mirostat_two(const struct sampler *s, struct sampler_work *w, double total)
{
    double least = total * exp2(-s->mu);

    /* The best weighs 1. */
    return keep_best(w, fmaxf((float)fmin(least, 1), FLT_MIN), least > 1 ? 1 : w->vocab_size);
}

static void note_surprise(struct sampler *s, const struct sampler_work *w, size_t n, int32_t token)
{
    double total = 0;

    for (size_t i = 0; i < n; i++)
        total += (double)w->x[w->ids[i]];
    s->picked = token;
    s->surprise = log2(total / (double)w->x[token]);
}

/* Sum of the logits above -infinity, of their squared distances from `mean`, and
 * their number. Those that are no logits are left for max_of() to find. */
static void moments(const struct sampler_work *w, float mean, double *ret_sum, double *ret_squares, double *ret_n)
{
    double sums[3] = { 0 };

    for (uint32_t b = 0; b < w->n_blocks; b++) {
        const f32x4 *x = (const f32x4 *)(w->x + (size_t)b * BLOCK);
        f32x4 sum = { 0 }, squares = { 0 };
        i32x4 n = { 0 };

        for (int i = 0; i < BLOCK / 4; i++) {
            i32x4 there = x[i] > -FLT_MAX;
            f32x4 off = (f32x4)((i32x4)(x[i] - mean) & there);

            sum += (f32x4)((i32x4)x[i] & there);
            squares += off * off;
            n -= there;
        }
        sums[0] += ((double)sum[0] + (double)sum[1]) + ((double)sum[2] + (double)sum[3]);
        sums[1] += ((double)squares[0] + (double)squares[1]) + ((double)squares[2] + (double)squares[3]);
        sums[2] += n[0] + n[1] + n[2] + n[3];
    }
    *ret_sum = sums[0];
    *ret_squares = sums[1];
    *ret_n = sums[2];
}

static void keep_sigma(const struct sampler *s, struct sampler_work *w)
{
    double sum, squares, n;
    float max, bound;

    if (max_of(w->x, w->vocab_size, &max) < 0)
        return;
    pad(w);
    moments(w, 0, &sum, &squares, &n);
    moments(w, (float)(sum / n), &sum, &squares, &n);
    bound = (float)((double)max - (double)s->params.top_n_sigma * sqrt(squares / n));
    for (uint32_t i = 0; i < w->vocab_size; i++)
        w->x[i] = w->x[i] < bound ? -INFINITY : w->x[i];
}

/* Biased, scaled and penalised logits in w->x. */
static void prepare(const struct sampler *s, struct sampler_work *w, const float *logits)
{
    float scale = s->plan.temperature ? 1 / s->params.temperature : 1;
    uint32_t i = 0;

    for (; i + 4 <= w->vocab_size; i += 4)
        *(f32x4 *)(w->x + i) = *(const f32x4 *)(logits + i) * scale;
    for (; i < w->vocab_size; i++)
        w->x[i] = logits[i] * scale;
    add_bias(s, w, scale);
    penalise(s, w);
    stop_repeating(s, w, scale);
    if (s->plan.sigma && !s->plan.greedy && !s->plan.mirostat)
        keep_sigma(s, w);
}

int sampler_candidates(const struct sampler *s, struct sampler_work *w, const float *logits,
                       const uint32_t **ret_ids, size_t *ret_n, const float **ret_weights)
{
    bool xtc = s->plan.xtc && draw(s, STREAM_XTC) < (double)s->params.xtc_probability;
    double total;
    float max;
    int r;

    prepare(s, w, logits);
    r = max_of(w->x, w->vocab_size, &max);
    if (r < 0)
        return r;
    total = weigh(w, max);
    *ret_ids = NULL;
    *ret_n = w->vocab_size;
    *ret_weights = w->x;
    if (s->plan.mirostat) {
        *ret_n = s->plan.mirostat == 1 ? mirostat_one(s, w) : mirostat_two(s, w, total);
        *ret_ids = w->ids;
    } else if (s->plan.top_p || s->plan.top_k || s->plan.typical || s->plan.min_p || xtc) {
        *ret_n = filter(s, w, total, xtc);
        *ret_ids = w->ids;
    }
    return 0;
}

static int32_t draw_any(const struct sampler *s, const struct sampler_work *w)
{
    double total = 0, at;
    uint32_t last = 0;

    for (uint32_t b = 0; b < w->n_blocks; b++)
        total += w->mass[b];
    at = draw(s, STREAM_TOKEN) * total;
    for (uint32_t b = 0; b < w->n_blocks; b++) {
        if (at >= w->mass[b]) {
            at -= w->mass[b];
            continue;
        }
        for (uint32_t i = b * BLOCK; i < (b + 1) * BLOCK; i++) {
            if (w->x[i] <= 0)
                continue;
            last = i;
            if (at < (double)w->x[i])
                return (int32_t)i;
            at -= (double)w->x[i];
        }
        /* A block's mass and its weights one by one may round differently. */
        return (int32_t)last;
    }
    for (uint32_t i = 0; i < w->vocab_size; i++)
        last = w->x[i] > 0 ? i : last;
    return (int32_t)last;
}

static int32_t draw_of(const struct sampler *s, const struct sampler_work *w, size_t n)
{
    double total = 0, at;
    uint32_t last = w->ids[0];

    for (size_t i = 0; i < n; i++)
        total += (double)w->x[w->ids[i]];
    at = draw(s, STREAM_TOKEN) * total;
    for (size_t i = 0; i < n; i++) {
        if (w->x[w->ids[i]] <= 0)
            continue;
        last = w->ids[i];
        at -= (double)w->x[last];
        if (at < 0)
            break;
    }
    return (int32_t)last;       /* also where rounding left the sum short */
}

int sampler_pick(struct sampler *s, struct sampler_work *w, const float *logits,
                 int32_t *ret)
{
    const uint32_t *ids;
    const float *weights;
    uint32_t best;
    size_t n;
    int r;

    if (s->plan.greedy) {
        if (s->plan.bias || s->slots) {
            prepare(s, w, logits);
            logits = w->x;
        }
        r = argmax(logits, w->vocab_size, &best);
        if (r >= 0)
            *ret = (int32_t)best;
        return r;
    }
    r = sampler_candidates(s, w, logits, &ids, &n, &weights);
    if (r < 0)
        return r;
    *ret = ids ? draw_of(s, w, n) : draw_any(s, w);
    if (s->plan.mirostat)
        note_surprise(s, w, n, *ret);
    return 0;
}

int sampler_logprobs(struct sampler_work *w, const float *logits, int32_t token, float *ret,
                     struct engine_logprob *ret_top, size_t n_top)
{
    size_t n = 0;
    double zero;
    float max;
    int r = max_of(logits, w->vocab_size, &max);

    if (r < 0)
        return r;
    memcpy(w->x, logits, w->vocab_size * sizeof w->x[0]);
    zero = (double)max + log(weigh(w, max));
    *ret = (float)((double)logits[token] - zero);
    for (uint32_t i = 0; n_top && i < w->vocab_size; i++) {
        size_t at = n < n_top ? n : n_top - 1;

        if (n == n_top && !(logits[i] > ret_top[at].logprob))
            continue;
        for (; at && ret_top[at - 1].logprob < logits[i]; at--)
            ret_top[at] = ret_top[at - 1];
        ret_top[at] = (struct engine_logprob){ (int32_t)i, logits[i] };
        n += n < n_top;
    }
    for (size_t i = 0; i < n; i++)
        ret_top[i].logprob = (float)((double)ret_top[i].logprob - zero);
    return 0;
}
