/* The sampler against a plain twin: doubles, every stage as it is written down,
 * everything sorted. The twin works out the weights from the logits; from there
 * on it takes the sampler's own, so that both decide about the same numbers. */
#include "gen/dry.h"
#include "gen/engine.h"
#include "gen/sampler.h"
#include "tests/gen/rand.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB = 1777, HISTORY = 400 };

struct candidate {
    uint32_t id;
    double w, order;            /* ascending */
};

static struct candidate twin[VOCAB];
static size_t n_twin;
static bool close_call;         /* something was decided by less than rounding may be */

static int by_order(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    return x->order != y->order ? (x->order < y->order ? -1 : 1) : (x->id > y->id) - (x->id < y->id);
}

static int by_id(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    return (x->id > y->id) - (x->id < y->id);
}

static double total(void)
{
    double sum = 0;

    for (size_t i = 0; i < n_twin; i++)
        sum += twin[i].w;
    return sum;
}

static void sort_by_weight(void)
{
    for (size_t i = 0; i < n_twin; i++)
        twin[i].order = -twin[i].w;
    qsort(twin, n_twin, sizeof twin[0], by_order);
}

/* The first in order whose probabilities reach p, or exceed it. */
static void keep_mass(double p, bool above)
{
    double all = total(), sum = 0;
    size_t k = 0;

    while (k < n_twin && (k == 0 || (above ? sum <= p * all : sum < p * all)))
        sum += twin[k++].w;
    close_call |= fabs(sum / all - p) < 1e-7 || (k > 1 && fabs((sum - twin[k - 1].w) / all - p) < 1e-7);
    n_twin = k;
}

static void drop_weightless(void)
{
    size_t n = 0;

    for (size_t i = 0; i < n_twin; i++)
        if (twin[i].w > 0)
            twin[n++] = twin[i];
    n_twin = n;
}

static void twin_typical(double p)
{
    double all, entropy = 0;
    size_t before;

    drop_weightless();
    all = total();
    for (size_t i = 0; i < n_twin; i++)
        entropy -= twin[i].w / all * log(twin[i].w / all);
    for (size_t i = 0; i < n_twin; i++)
        twin[i].order = fabs(-log(twin[i].w / all) - entropy);
    qsort(twin, n_twin, sizeof twin[0], by_order);
    before = n_twin;
    keep_mass(p, true);
    /* Equal weights are told apart by their ids; others so near are not. */
    for (size_t i = 0; i < 4 && n_twin > i && n_twin < before; i++)
        close_call |= twin[n_twin - 1 - i].w != twin[n_twin].w &&
            twin[n_twin].order - twin[n_twin - 1 - i].order < 1e-5;
}

static void twin_xtc(double threshold)
{
    double all;
    size_t n = 0;

    drop_weightless();
    all = total();
    sort_by_weight();
    while (n < n_twin && twin[n].w >= threshold * all)
        n++;
    if (n < 2)
        return;
    n_twin -= n - 1;
    memmove(twin, twin + n - 1, n_twin * sizeof twin[0]);
}

static void twin_filters(const struct sample_params *p)
{
    sort_by_weight();
    if (p->top_p < 1)
        keep_mass((double)p->top_p, false);
    if (p->top_k > 0 && (size_t)p->top_k < n_twin)
        n_twin = (size_t)p->top_k;
    if (p->typical_p < 1)
        twin_typical((double)p->typical_p);
    sort_by_weight();
    while (p->min_p > 0 && n_twin > 1 && twin[n_twin - 1].w < (double)(float)((float)twin[0].w * p->min_p))
        n_twin--;
    if (p->xtc_probability > 0 && p->xtc_threshold <= 0.5f)
        twin_xtc((double)p->xtc_threshold);
}

/* Sequences that DRY does not reach over: the token 3, and 4 with 5 behind it. */
static const int32_t breakers[] = { 3, -1, 4, 5, -1, -1 };

/* Tokens at the end of t[0..n) behind the last breaker. */
static size_t since_breaker(const int32_t *t, size_t n)
{
    for (size_t i = n; i-- > 0; ) {
        if (t[i] == 3)
            return n - 1 - i;
        if (t[i] == 4 && i + 1 < n && t[i + 1] == 5)
            return n - 2 - i;
    }
    return n;
}

/* The longest end of t[0..n) that stands before `token` somewhere, or -1. */
static int longest_repeat(const int32_t *t, size_t n, int32_t token, size_t most)
{
    int longest = -1;

    for (size_t at = 1; at < n; at++) {
        size_t len = 0;

        while (len < at && t[at - 1 - len] == t[n - 1 - len])
            len++;
        len = len < most ? len : most;
        if (t[at] == token && (int)len > longest)
            longest = (int)len;
    }
    return longest;
}

static double dry_of(const struct sample_params *p, const int32_t *t, size_t n, int32_t token)
{
    size_t window = p->dry_penalty_last_n < 0 ? n : (size_t)p->dry_penalty_last_n, most;
    int repeat;

    if (n > window) {
        t += n - window;
        n = window;
    }
    most = since_breaker(t, n);
    repeat = longest_repeat(t, n, token, most);
    if (!(p->dry_multiplier > 0) || n <= (size_t)p->dry_allowed_length || repeat < p->dry_allowed_length || token == 3)
        return 0;
    return (double)p->dry_multiplier * pow((double)p->dry_base, repeat - p->dry_allowed_length);
}

/* The logits after what changes them. */
static void twin_logits(const struct sample_params *p, const float *logits, const int32_t *tokens, size_t n_prompt,
                        size_t n, double *x)
{
    for (uint32_t i = 0; i < VOCAB; i++)
        x[i] = (double)logits[i];
    for (size_t i = 0; i < p->n_bias; i++)
        if ((uint32_t)p->bias[i].token < VOCAB)
            x[p->bias[i].token] += (double)p->bias[i].bias;
    for (uint32_t i = 0; i < VOCAB; i++) {
        uint32_t all = 0, generated = 0;

        for (size_t k = p->repeat_last_n >= 0 && n > (size_t)p->repeat_last_n ? n - (size_t)p->repeat_last_n : 0; k < n; k++)
            if (tokens[k] == (int32_t)i) {
                all++;
                generated += k >= n_prompt;
            }
        x[i] /= (double)p->temperature;
        if (all && p->repetition_penalty > 1)
            x[i] = x[i] > 0 ? x[i] / (double)p->repetition_penalty : x[i] * (double)p->repetition_penalty;
        if (generated)
            x[i] -= (double)p->presence_penalty + generated * (double)p->frequency_penalty;
        x[i] -= dry_of(p, tokens, n, (int32_t)i) / (double)p->temperature;
    }
}

/* Out of reach: -infinity; too near to say: NAN. */
static void twin_sigma(double n, double *x)
{
    double max = -INFINITY, sum = 0, squares = 0, there = 0, bound;

    for (uint32_t i = 0; i < VOCAB; i++)
        if (x[i] > -INFINITY) {
            max = fmax(max, x[i]);
            sum += x[i];
            there++;
        }
    for (uint32_t i = 0; i < VOCAB; i++)
        if (x[i] > -INFINITY)
            squares += (x[i] - sum / there) * (x[i] - sum / there);
    bound = max - n * sqrt(squares / there);
    for (uint32_t i = 0; i < VOCAB; i++)
        x[i] = fabs(x[i] - bound) < 1e-4 ? NAN : x[i] < bound ? -INFINITY : x[i];
}

static float any(uint64_t *rng, const float *values, uint32_t n) { return values[rand_below(rng, n)]; }

#define ANY(rng, ...) any(rng, (const float[]){ __VA_ARGS__ }, sizeof (float[]){ __VA_ARGS__ } / sizeof(float))

static struct sample_params random_params(uint64_t *rng, const struct logit_bias *bias, size_t n_bias)
{
    struct sample_params p = sample_defaults;

    p.has_seed = true;
    p.seed = rand_next(rng);
    p.temperature = ANY(rng, 1, 1, 0.3f, 0.7f, 1.5f);
    p.top_p = ANY(rng, 1, 1, 1, 0.99f, 0.9f, 0.5f, 0.01f);
    p.top_k = (int32_t)ANY(rng, 0, 0, 0, 1, 2, 40, 1000, VOCAB);
    p.typical_p = ANY(rng, 1, 1, 0.95f, 0.5f, 0.2f, 0);
    p.min_p = ANY(rng, 0, 0, 0.02f, 0.3f, 1);
    p.top_n_sigma = ANY(rng, 0, 0, -1, 1, 0.3f, 2.5f);
    p.xtc_probability = ANY(rng, 0, 0, 1);
    p.xtc_threshold = ANY(rng, 0.1f, 0.01f, 0.3f, 0, 0.5f, 0.51f);
    p.dry_multiplier = ANY(rng, 0, 0, 0.8f, 3);
    p.dry_base = ANY(rng, 1.75f, 1);
    p.dry_allowed_length = (int32_t)ANY(rng, 2, 1, 0, 5);
    p.dry_penalty_last_n = (int32_t)ANY(rng, 64, -1, 1, 7);
    p.repeat_last_n = (int32_t)ANY(rng, -1, -1, 64, 0, 7, HISTORY);
    p.mirostat_tau = ANY(rng, 5, 1, 3, 9);
    p.mirostat_eta = ANY(rng, 0.1f, 0.5f);
    p.repetition_penalty = ANY(rng, 1, 1, 1.2f);
    p.presence_penalty = ANY(rng, 0, 0, 0.7f, -0.5f);
    p.frequency_penalty = ANY(rng, 0, 0, 0.3f);
    p.bias = bias;
    p.n_bias = rand_below(rng, 2) ? n_bias : 0;
    return p;
}

static void random_logits(uint64_t *rng, int round, float *logits)
{
    double wide = 0.5 + rand_unit(rng) * 8;

    for (uint32_t i = 0; i < VOCAB; i++) {
        logits[i] = (float)((rand_unit(rng) + rand_unit(rng) + rand_unit(rng) - 1.5) * wide);
        if (round % 4 == 0)
            logits[i] = roundf(logits[i]);          /* many equals */
        if (round % 3 == 0 && rand_below(rng, 20) == 0)
            logits[i] = -INFINITY;
    }
    logits[rand_below(rng, VOCAB)] = (float)(wide * 1.6);
}

/* A text of a few tokens with repetitions in it. */
static void random_text(uint64_t *rng, uint32_t kinds, int32_t *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++)
        tokens[i] = i > 12 && rand_below(rng, 8) ? tokens[i - 11] : (int32_t)rand_below(rng, kinds);
}

static void compare_weights(const double *x, const float *weights, int round)
{
    double max = -INFINITY;

    for (uint32_t i = 0; i < VOCAB; i++)
        max = fmax(max, x[i]);
    for (uint32_t i = 0; i < VOCAB; i++)
        if (!isnan(x[i]))
            cr_assert(lt(dbl, fabs((double)weights[i] - exp(x[i] - max)), 4e-6), "round %d, token %u", round, i);
}

static void compare_candidates(const uint32_t *ids, size_t n, int round)
{
    if (close_call)
        return;
    cr_assert(eq(sz, n, n_twin), "round %d", round);
    qsort(twin, n_twin, sizeof twin[0], by_id);
    for (size_t i = 0; i < n && ids; i++)
        cr_assert(eq(u32, ids[i], twin[i].id), "round %d", round);
}

static void expect_pick_among(struct sampler *s, struct sampler_work *w, const float *logits, const uint32_t *ids,
                              size_t n, const float *weights, int round)
{
    int32_t token = -1;
    size_t i = 0;

    cr_assert(zero(int, sampler_pick(s, w, logits, &token)));
    cr_assert(0 <= token && token < VOCAB && weights[token] > 0, "round %d", round);
    while (ids && i < n && (int32_t)ids[i] != token)
        i++;
    cr_assert(lt(sz, i, n), "round %d", round);
}

Test(sampler_twin, random_stages_leave_the_same_candidates_and_weights, .timeout = 240)
{
    const struct logit_bias bias[] = { { 5, -100 }, { 6, 2.5f }, { 700, -3 }, { VOCAB, 9 }, { 8, -INFINITY } };
    CLEANUP(sampler_work_close) struct sampler_work *w = NULL;
    CLEANUP(dry_breakers_close) struct dry_breakers *b = NULL;
    static float logits[VOCAB];
    static double x[VOCAB];
    int32_t tokens[HISTORY];
    uint64_t rng = 11;
    int n_close = 0;

    cr_assert(zero(int, sampler_work_open(VOCAB, &w, NULL)));
    cr_assert(zero(int, dry_breakers_of_tokens(breakers, &b, NULL)));
    for (int round = 0; round < 1500; round++) {
        struct sample_params p = random_params(&rng, bias, sizeof bias / sizeof bias[0]);
        CLEANUP(sampler_close) struct sampler *s = NULL;
        size_t n_prompt = rand_below(&rng, HISTORY / 2), n_tokens = n_prompt + rand_below(&rng, HISTORY / 2), n;
        const uint32_t *ids;
        const float *weights;

        random_text(&rng, round % 2 ? 30 : 8, tokens, n_tokens);
        random_logits(&rng, round, logits);
        cr_assert(zero(int, sampler_open(&p, tokens, n_prompt, HISTORY, &s, NULL)));
        sampler_set_breakers(s, b);
        for (size_t i = n_prompt; i < n_tokens; i++)
            sampler_accept(s, tokens[i]);
        cr_assert(zero(int, sampler_candidates(s, w, logits, &ids, &n, &weights)));
        twin_logits(&p, logits, tokens, n_prompt, n_tokens, x);
        if (p.top_n_sigma > 0)
            twin_sigma((double)p.top_n_sigma, x);
        compare_weights(x, weights, round);
        close_call = false;
        n_twin = VOCAB;
        for (uint32_t i = 0; i < VOCAB; i++)
            twin[i] = (struct candidate){ .id = i, .w = (double)weights[i] };
        twin_filters(&p);
        compare_candidates(ids, n, round);
        n_close += close_call;
        expect_pick_among(s, w, logits, ids, n, weights, round);
    }
    cr_expect(lt(int, n_close, 150));
}

/* Of two tokens above the threshold the better one is left out in so many steps. */
Test(sampler_twin, xtc_comes_as_often_as_it_is_asked_to)
{
    enum { STEPS = 20000 };
    const float logits[4] = { 2, 1.9f, -8, -9 };
    CLEANUP(sampler_work_close) struct sampler_work *w = NULL;
    CLEANUP(sampler_close) struct sampler *s = NULL;
    struct sample_params p = sample_defaults;
    double share = 1 / (1 + exp((double)(1.9f - 2.f))), want;
    int first = 0;

    p.has_seed = true;
    p.seed = 4;
    p.xtc_probability = 0.3f;
    cr_assert(zero(int, sampler_work_open(4, &w, NULL)));
    cr_assert(zero(int, sampler_open(&p, NULL, 0, STEPS, &s, NULL)));
    for (int i = 0; i < STEPS; i++) {
        int32_t token = -1;

        cr_assert(zero(int, sampler_pick(s, w, logits, &token)));
        sampler_accept(s, token);
        first += token == 0;
    }
    want = STEPS * 0.7 * share;
    cr_expect(lt(dbl, fabs(first - want), 5 * sqrt(want)));
}

/* A copy and the original say the same from there on, and do not share what they count. */
Test(sampler_twin, a_copy_goes_on_as_the_original_does)
{
    CLEANUP(sampler_work_close) struct sampler_work *w = NULL;
    CLEANUP(dry_breakers_close) struct dry_breakers *b = NULL;
    static float logits[VOCAB];
    uint64_t rng = 23;

    cr_assert(zero(int, sampler_work_open(VOCAB, &w, NULL)));
    cr_assert(zero(int, dry_breakers_of_tokens(breakers, &b, NULL)));
    for (int round = 0; round < 60; round++) {
        struct sample_params p = random_params(&rng, NULL, 0);
        CLEANUP(sampler_close) struct sampler *s = NULL;
        CLEANUP(sampler_close) struct sampler *copy = NULL;
        int32_t prompt[20], said[20], token, again;

        p.mirostat = round % 3;
        random_text(&rng, 8, prompt, 20);
        cr_assert(zero(int, sampler_open(&p, prompt, 20, 40, &s, NULL)));
        sampler_set_breakers(s, b);
        for (int i = 0; i < 40; i++) {
            uint64_t seed = (uint64_t)(round * 100 + i);

            if (i == 20)
                cr_assert(zero(int, sampler_copy(s, &copy, NULL)));
            random_logits(&seed, round, logits);
            cr_assert(zero(int, sampler_pick(s, w, logits, &token)));
            cr_assert(zero(int, sampler_pick(s, w, logits, &again)));
            cr_assert(eq(i32, token, again));
            sampler_accept(s, token);
            if (i >= 20)
                said[i - 20] = token;
        }
        for (int i = 20; i < 40; i++) {
            uint64_t seed = (uint64_t)(round * 100 + i);

            random_logits(&seed, round, logits);
            cr_assert(zero(int, sampler_pick(copy, w, logits, &token)));
            cr_assert(eq(i32, token, said[i - 20]), "round %d, step %d", round, i);
            sampler_accept(copy, token);
        }
    }
}

static size_t twin_k(double mu)
{
    double products = 0, squares = 0, zipf, e, k;

    for (size_t i = 0; i < 99 && i + 1 < n_twin; i++) {
        double t = log((i + 2.0) / (i + 1.0));

        products += t * log(twin[i].w / twin[i + 1].w);
        squares += t * t;
    }
    zipf = products / squares;
    e = zipf - 1;
    k = pow(e * pow(2, mu) / (1 - pow(VOCAB, -e)), 1 / zipf);
    close_call |= fabs(k - round(k)) < 1e-5;
    return k >= 1 ? (size_t)fmin(k, VOCAB) : 1;
}

static void twin_mirostat(const struct sample_params *p, double mu)
{
    double all;
    size_t n = 1;

    drop_weightless();
    sort_by_weight();
    all = total();
    if (p->mirostat == 1) {
        n = twin_k(mu);
    } else {
        while (n < n_twin && -log2(twin[n].w / all) <= mu)
            n++;
        close_call |= fabs(-log2(twin[n - 1].w / all) - mu) < 1e-6 ||
            (n < n_twin && fabs(-log2(twin[n].w / all) - mu) < 1e-6);
    }
    n_twin = n < n_twin ? n : n_twin;
}

Test(sampler_twin, mirostat_keeps_what_its_surprise_lets_through_and_learns, .timeout = 120)
{
    CLEANUP(sampler_work_close) struct sampler_work *w = NULL;
    static float logits[VOCAB];
    uint64_t rng = 31;

    cr_assert(zero(int, sampler_work_open(VOCAB, &w, NULL)));
    for (int round = 0; round < 60; round++) {
        struct sample_params p = random_params(&rng, NULL, 0);
        CLEANUP(sampler_close) struct sampler *s = NULL;
        double mu = 2 * (double)p.mirostat_tau;

        p.mirostat = 1 + round % 2;
        cr_assert(zero(int, sampler_open(&p, NULL, 0, 30, &s, NULL)));
        for (int step = 0; step < 30; step++) {
            const uint32_t *ids;
            const float *weights;
            double all, surprise = -1;
            int32_t token;
            size_t n;

            random_logits(&rng, step, logits);
            cr_assert(zero(int, sampler_candidates(s, w, logits, &ids, &n, &weights)));
            n_twin = VOCAB;
            for (uint32_t i = 0; i < VOCAB; i++)
                twin[i] = (struct candidate){ .id = i, .w = (double)weights[i] };
            close_call = false;
            twin_mirostat(&p, mu);
            if (close_call)
                break;
            compare_candidates(ids, n, round);
            all = total();
            cr_assert(zero(int, sampler_pick(s, w, logits, &token)));
            for (size_t i = 0; i < n_twin; i++)
                if ((int32_t)twin[i].id == token)
                    surprise = log2(all / twin[i].w);
            cr_assert(ge(dbl, surprise, 0), "round %d: a token that was not kept", round);
            mu -= (double)p.mirostat_eta * (surprise - (double)p.mirostat_tau);
            sampler_accept(s, token);
        }
    }
}

/* One token, one possible token, all equal: something is left, whatever the stages. */
Test(sampler_twin, no_stage_leaves_nothing)
{
    enum { N = 70 };
    float equal[N] = { 0 }, only[N];
    uint64_t rng = 5;

    for (int i = 0; i < N; i++)
        only[i] = i == 66 ? -3 : -INFINITY;
    for (int round = 0; round < 3000; round++) {
        struct sample_params p = random_params(&rng, NULL, 0);
        CLEANUP(sampler_work_close) struct sampler_work *one = NULL;
        CLEANUP(sampler_work_close) struct sampler_work *many = NULL;
        CLEANUP(sampler_close) struct sampler *s = NULL;
        int32_t token = -1, prompt[3] = { 0, 0, 66 };

        p.mirostat = round % 3;
        cr_assert(zero(int, sampler_work_open(1, &one, NULL)));
        cr_assert(zero(int, sampler_work_open(N, &many, NULL)));
        cr_assert(zero(int, sampler_open(&p, prompt, 3, 3, &s, NULL)));
        cr_assert(zero(int, sampler_pick(s, one, equal, &token)));
        cr_assert(eq(i32, token, 0));
        sampler_accept(s, token);
        cr_assert(zero(int, sampler_pick(s, many, only, &token)));
        cr_assert(eq(i32, token, 66));
        sampler_accept(s, token);
        cr_assert(zero(int, sampler_pick(s, many, equal, &token)));
        cr_assert(lt(i32, token, N));
    }
}

Test(sampler_twin, of_equals_the_lower_ids_stay)
{
    enum { N = 200 };
    const float logits[N] = { 0 };
    CLEANUP(sampler_work_close) struct sampler_work *w = NULL;
    const struct sample_params all[] = {
        { .temperature = 1, .typical_p = 1, .repetition_penalty = 1, .top_p = 0.5f, .repeat_last_n = -1 },
        { .temperature = 1, .typical_p = 1, .repetition_penalty = 1, .top_p = 1, .top_k = 100, .repeat_last_n = -1 },
        { .temperature = 1, .typical_p = 0.4999f, .repetition_penalty = 1, .top_p = 1, .repeat_last_n = -1 },
    };

    cr_assert(zero(int, sampler_work_open(N, &w, NULL)));
    for (size_t k = 0; k < sizeof all / sizeof all[0]; k++) {
        CLEANUP(sampler_close) struct sampler *s = NULL;
        const uint32_t *ids;
        const float *weights;
        size_t n;

        cr_assert(zero(int, sampler_open(&all[k], NULL, 0, 1, &s, NULL)));
        cr_assert(zero(int, sampler_candidates(s, w, logits, &ids, &n, &weights)));
        cr_assert(eq(sz, n, 100), "%zu", k);
        for (uint32_t i = 0; i < n; i++)
            cr_assert(eq(u32, ids[i], i), "%zu", k);
    }
}
