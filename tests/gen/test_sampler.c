#include "gen/sampler.h"

#include "base/err.h"
#include "base/json.h"
#include "gen/engine.h"
#include "tests/gen/golden.h"
#include "tests/gen/rand.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

static const struct sample_params plain = {
    .temperature = 1, .top_p = 1, .typical_p = 1, .repeat_last_n = -1, .repetition_penalty = 1, .has_seed = true, .seed = 7,
};

static struct sampler_work *work(uint32_t vocab)
{
    struct sampler_work *w = NULL;

    cr_assert(zero(int, sampler_work_open(vocab, &w, NULL)));
    return w;
}

static struct sampler *sampler(const struct sample_params *p, const int32_t *prompt, size_t n)
{
    struct sampler *s = NULL;

    cr_assert(zero(int, sampler_open(p, prompt, n, 64, &s, NULL)));
    return s;
}

static int32_t pick(const struct sample_params *p, const float *logits, uint32_t vocab)
{
    CLEANUP(sampler_work_close) struct sampler_work *w = work(vocab);
    CLEANUP(sampler_close) struct sampler *s = sampler(p, NULL, 0);
    int32_t token = -1;

    cr_assert(zero(int, sampler_pick(s, w, logits, &token)));
    return token;
}

Test(sampler, greedy_takes_the_best_and_of_equals_the_lowest_id)
{
    const float logits[7] = { 1, 3, 2, 3, -1, 3, 0 };
    struct sample_params p = plain;

    p.temperature = 0;
    cr_expect(eq(i32, pick(&p, logits, 7), 1));
    p.temperature = 9.9e-6f;
    cr_expect(eq(i32, pick(&p, logits, 7), 1));
    p.temperature = 1;
    p.top_p = 0;
    cr_expect(eq(i32, pick(&p, logits, 7), 1));
    p.top_p = 1;
    p.top_k = 1;
    cr_expect(eq(i32, pick(&p, logits, 7), 1));
}

Test(sampler, the_best_of_a_large_vocabulary_is_found_wherever_it_is)
{
    enum { N = 10003 };
    static const uint32_t places[] = { 0, 15, 4095, 4096, 8191, 8192, N - 4, N - 1 };
    static float logits[N];
    struct sample_params p = plain;

    p.temperature = 0;
    for (size_t i = sizeof places / sizeof places[0]; i-- > 0;) {       /* those behind are as good */
        logits[places[i]] = 1;
        cr_expect(eq(i32, pick(&p, logits, N), (int32_t)places[i]));
    }
}

Test(sampler, extreme_values_give_a_token)
{
    const float logits[5] = { -3, 40, 39, -INFINITY, 1e30f };
    struct sample_params p = plain;

    p.temperature = 1e-5f;
    cr_expect(eq(i32, pick(&p, logits, 4), 1));
    p.temperature = 100;
    cr_expect(lt(i32, pick(&p, logits, 4), 3));
    p.top_k = 1000;
    p.min_p = 1;
    cr_expect(eq(i32, pick(&p, logits, 4), 1));
    p = plain;
    p.min_p = 5;
    cr_expect(eq(i32, pick(&p, logits, 5), 4));
}

Test(sampler, logits_that_are_no_numbers_are_an_error)
{
    const float bad[][6] = {
        { 0, 1, NAN, 2, 3, 4 },
        { 0, 1, 2, 3, 4, NAN },
        { 0, INFINITY, 2, 3, 4, 5 },
        { -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY },
    };
    CLEANUP(sampler_work_close) struct sampler_work *w = work(6);

    for (size_t i = 0; i < 4; i++)
        for (int greedy = 0; greedy < 2; greedy++) {
            struct sample_params p = plain;
            CLEANUP(sampler_close) struct sampler *s = NULL;
            float logprob;
            int32_t token;

            p.temperature = greedy ? 0 : 1;
            s = sampler(&p, NULL, 0);
            cr_expect(eq(int, sampler_pick(s, w, bad[i], &token), -EDOM));
            cr_expect(eq(int, sampler_logprobs(w, bad[i], 0, &logprob, NULL, 0), -EDOM));
        }
}

Test(sampler, parameters_that_are_no_numbers_are_refused_by_name)
{
    struct sample_params p = plain;
    struct sampler *s = NULL;
    struct err err = { 0 };

    p.min_p = NAN;
    cr_expect(eq(int, sampler_open(&p, NULL, 0, 1, &s, &err), -EINVAL));
    cr_expect(eq(str, (char *)err_text(&err), "min_p is not a finite number"));
    p = plain;
    p.mirostat_tau = INFINITY;
    err = (struct err){ 0 };
    cr_expect(eq(int, sampler_open(&p, NULL, 0, 1, &s, &err), -EINVAL));
    cr_expect(eq(str, (char *)err_text(&err), "mirostat_tau is not a finite number"));
    cr_expect(eq(ptr, s, NULL));
}

/* The same stages with doubles and a sort. */
struct plain_token { uint32_t id; double w; };

static int better(const void *a, const void *b)
{
    const struct plain_token *x = a, *y = b;

    return x->w != y->w ? (x->w < y->w ? 1 : -1) : (x->id > y->id) - (x->id < y->id);
}

static size_t plain_filter(const struct sample_params *p, const float *weights, uint32_t vocab,
                           struct plain_token *t)
{
    double total = 0, sum = 0;
    size_t n = vocab, k = 0;

    for (uint32_t i = 0; i < vocab; i++) {
        t[i] = (struct plain_token){ i, (double)weights[i] };
        total += t[i].w;
    }
    qsort(t, n, sizeof t[0], better);
    if (p->top_p < 1) {
        while (k < n && (k == 0 || sum < (double)p->top_p * total))
            sum += t[k++].w;
        n = k;
    }
    if (p->top_k > 0 && (size_t)p->top_k < n)
        n = (size_t)p->top_k;
    while (n > 1 && t[n - 1].w < (double)p->min_p)
        n--;
    return n;
}

static int by_id(const void *a, const void *b)
{
    const struct plain_token *x = a, *y = b;

    return (x->id > y->id) - (x->id < y->id);
}

Test(sampler, filters_keep_what_a_sort_would_keep, .timeout = 120)
{
    enum { VOCAB = 3001 };
    CLEANUP(sampler_work_close) struct sampler_work *w = work(VOCAB);
    static struct plain_token want[VOCAB];
    static float logits[VOCAB];
    uint64_t rng = 1;

    for (int round = 0; round < 600; round++) {
        const float tops[] = { 1, 0.999f, 0.95f, 0.9f, 0.5f, 0.1f, 1e-7f };
        const int32_t ks[] = { 0, -1, 1, 2, 40, 1000, 5000 };
        const float mins[] = { 0, 0, 0.05f, 0.5f, 1 };
        struct sample_params p = plain;
        CLEANUP(sampler_close) struct sampler *s = NULL;
        const uint32_t *ids;
        const float *weights;
        double wide = rand_unit(&rng) * 8;
        size_t n, n_want;

        p.top_p = tops[rand_below(&rng, 7)];
        p.top_k = ks[rand_below(&rng, 7)];
        p.min_p = mins[rand_below(&rng, 5)];
        p.temperature = rand_below(&rng, 2) ? 1 : 0.3f + (float)rand_unit(&rng) * 2;
        for (uint32_t i = 0; i < VOCAB; i++) {
            logits[i] = (float)((rand_unit(&rng) + rand_unit(&rng) + rand_unit(&rng)) * wide);
            if (round % 3 == 0)
                logits[i] = roundf(logits[i]);      /* many equals */
            if (rand_below(&rng, 50) == 0)
                logits[i] = -INFINITY;
        }
        s = sampler(&p, NULL, 0);
        cr_assert(zero(int, sampler_candidates(s, w, logits, &ids, &n, &weights)));
        n_want = plain_filter(&p, weights, VOCAB, want);
        cr_assert(eq(sz, n, n_want), "round %d top_p %g top_k %d min_p %g", round,
                  (double)p.top_p, p.top_k, (double)p.min_p);
        qsort(want, n_want, sizeof want[0], by_id);
        for (size_t i = 0; i < n && ids; i++)
            cr_assert(eq(u32, ids[i], want[i].id), "round %d", round);
    }
}

Test(sampler, weights_are_the_softmax_of_scaled_and_penalised_logits)
{
    enum { VOCAB = 70 };
    const int32_t prompt[] = { 3, 4, 3, -1, 5000 };
    CLEANUP(sampler_work_close) struct sampler_work *w = work(VOCAB);
    CLEANUP(sampler_close) struct sampler *s = NULL;
    struct sample_params p = plain;
    float logits[VOCAB], max = -INFINITY, want[VOCAB];
    const uint32_t *ids;
    const float *weights;
    uint64_t rng = 3;
    size_t n;

    p.temperature = 0.7f;
    p.repetition_penalty = 1.3f;
    p.presence_penalty = 0.5f;
    p.frequency_penalty = 0.25f;
    s = sampler(&p, prompt, 5);
    sampler_accept(s, 4);
    sampler_accept(s, 9);
    sampler_accept(s, 9);
    for (int i = 0; i < VOCAB; i++)
        logits[i] = (float)(rand_unit(&rng) * 10 - 5);
    logits[3] = 2;
    logits[4] = -2;
    for (int i = 0; i < VOCAB; i++)
        want[i] = logits[i] / 0.7f;
    want[3] /= 1.3f;                                /* in the prompt: repetition only */
    want[4] = want[4] * 1.3f - 0.5f - 0.25f;
    want[9] = (want[9] > 0 ? want[9] / 1.3f : want[9] * 1.3f) - 0.5f - 2 * 0.25f;
    for (int i = 0; i < VOCAB; i++)
        max = want[i] > max ? want[i] : max;
    cr_assert(zero(int, sampler_candidates(s, w, logits, &ids, &n, &weights)));
    cr_expect(eq(ptr, (void *)ids, NULL));
    cr_expect(eq(sz, n, VOCAB));
    for (int i = 0; i < VOCAB; i++)
        cr_expect(lt(dbl, fabs((double)weights[i] - exp((double)want[i] - (double)max)), 2e-6));
}

Test(sampler, greedy_looks_at_penalties)
{
    const float logits[4] = { 1, 3, 2.9f, 0 };
    const int32_t prompt[] = { 1 };
    CLEANUP(sampler_work_close) struct sampler_work *w = work(4);
    CLEANUP(sampler_close) struct sampler *s = NULL;
    struct sample_params p = plain;
    int32_t token;

    p.temperature = 0;
    p.repetition_penalty = 1.2f;
    s = sampler(&p, prompt, 1);
    cr_assert(zero(int, sampler_pick(s, w, logits, &token)));
    cr_expect(eq(i32, token, 2));
}

Test(sampler, biases_are_added_before_all_else)
{
    const struct logit_bias bias[] = { { 1, -100 }, { 2, 1.5f }, { 9, 5 }, { -1, 5 }, { 0, -INFINITY } };
    const float logits[4] = { 30, 3, 2, 3.2f };
    CLEANUP(sampler_work_close) struct sampler_work *w = work(4);
    CLEANUP(sampler_close) struct sampler *s = NULL;
    struct sample_params p = plain;
    const uint32_t *ids;
    const float *weights;
    int32_t token;
    size_t n;

    p.bias = bias;
    p.n_bias = 5;
    p.temperature = 0;
    s = sampler(&p, NULL, 0);
    cr_assert(zero(int, sampler_pick(s, w, logits, &token)));
    cr_expect(eq(i32, token, 2));
    sampler_close(s);
    p.temperature = 2;
    s = sampler(&p, NULL, 0);
    cr_assert(zero(int, sampler_candidates(s, w, logits, &ids, &n, &weights)));
    cr_expect(eq(flt, weights[0], 0));
    cr_expect(lt(flt, weights[1], 1e-20f));
    cr_expect(eq(flt, weights[2], 1));
    cr_expect(lt(dbl, fabs((double)weights[3] - exp((3.2 - 3.5) / 2)), 1e-6));
}

Test(sampler, a_bias_that_is_no_number_is_refused_and_banning_all_an_error)
{
    const struct logit_bias nan = { 3, NAN }, inf = { 3, INFINITY }, ban = { 0, -INFINITY };
    const float logits[1] = { 1 };
    CLEANUP(sampler_work_close) struct sampler_work *w = work(1);
    CLEANUP(sampler_close) struct sampler *s = NULL;
    struct sample_params p = plain;
    struct err err = { 0 };
    int32_t token;

    p.n_bias = 1;
    p.bias = &nan;
    cr_expect(eq(int, sampler_open(&p, NULL, 0, 1, &s, &err), -EINVAL));
    cr_expect(eq(str, (char *)err_text(&err), "the bias of token 3 is not a number"));
    p.bias = &inf;
    cr_expect(eq(int, sampler_open(&p, NULL, 0, 1, &s, NULL), -EINVAL));
    p.bias = &ban;
    s = sampler(&p, NULL, 0);
    cr_expect(eq(int, sampler_pick(s, w, logits, &token), -EDOM));
}

Test(sampler, draws_come_in_proportion)
{
    enum { VOCAB = 130, DRAWS = 40000 };
    CLEANUP(sampler_work_close) struct sampler_work *w = work(VOCAB);
    float logits[VOCAB];
    uint64_t rng = 5;

    for (int i = 0; i < VOCAB; i++)
        logits[i] = (float)(rand_unit(&rng) * 4);
    for (int filtered = 0; filtered < 2; filtered++) {
        struct sample_params p = plain;
        CLEANUP(sampler_close) struct sampler *s = NULL;
        uint32_t count[VOCAB] = { 0 }, kinds = 0;
        const uint32_t *ids;
        const float *weights;
        double total = 0, chi = 0;
        size_t n;

        if (filtered)
            p.top_p = 0.8f;
        s = sampler(&p, NULL, 0);
        for (int i = 0; i < DRAWS; i++) {
            int32_t token;

            cr_assert(zero(int, sampler_pick(s, w, logits, &token)));
            sampler_accept(s, token);
            count[token]++;
        }
        cr_assert(zero(int, sampler_candidates(s, w, logits, &ids, &n, &weights)));
        for (size_t i = 0; i < n; i++)
            total += (double)weights[ids ? ids[i] : i];
        for (size_t i = 0; i < n; i++) {
            uint32_t id = ids ? ids[i] : (uint32_t)i;
            double want = (double)weights[id] / total * DRAWS, off = count[id] - want;

            chi += off * off / want;
            kinds += count[id];
        }
        cr_expect(eq(u32, kinds, DRAWS));           /* nothing outside */
        cr_expect(lt(dbl, chi, (double)n + 6 * sqrt(2 * (double)n)));
    }
}

Test(sampler, draw_n_depends_on_seed_and_n_alone)
{
    enum { VOCAB = 64 };
    CLEANUP(sampler_work_close) struct sampler_work *w = work(VOCAB);
    struct sample_params p = plain, other = plain;
    CLEANUP(sampler_close) struct sampler *a = sampler(&p, NULL, 0);
    CLEANUP(sampler_close) struct sampler *b = sampler(&p, NULL, 0);
    CLEANUP(sampler_close) struct sampler *c = NULL;
    const float logits[VOCAB] = { 0 };
    int same = 0;

    other.seed = 8;
    c = sampler(&other, NULL, 0);
    for (int i = 0; i < 60; i++) {
        int32_t x, y, z;

        cr_assert(zero(int, sampler_pick(a, w, logits, &x)));
        cr_assert(zero(int, sampler_pick(c, w, logits, &z)));
        cr_assert(zero(int, sampler_pick(b, w, logits, &y)));
        cr_assert(eq(i32, x, y));
        same += x == z;
        sampler_accept(a, x);
        sampler_accept(b, 1);
        sampler_accept(c, z);
    }
    cr_expect(lt(int, same, 15));
}

Test(sampler, logprobs_are_of_the_raw_logits_best_first)
{
    const float logits[6] = { 1, 5, 3, 5, -2, -INFINITY };
    CLEANUP(sampler_work_close) struct sampler_work *w = work(6);
    struct engine_logprob top[3];
    double zero = log(exp(1) + 2 * exp(5) + exp(3) + exp(-2));
    float lp;

    cr_assert(zero(int, sampler_logprobs(w, logits, 2, &lp, top, 3)));
    cr_expect(lt(dbl, fabs((double)lp - (3 - zero)), 1e-5));
    cr_expect(eq(i32, top[0].token, 1));
    cr_expect(eq(i32, top[1].token, 3));
    cr_expect(eq(i32, top[2].token, 2));
    cr_expect(lt(dbl, fabs((double)top[2].logprob - (3 - zero)), 1e-5));
}

/* The processors that a plan has, in the order of the pipeline, against the reference's list. */
static bool same_processors(const struct sample_params *p, const cJSON *list)
{
    struct sampler_plan plan = sampler_plan(p);
    const struct { bool on; const char *class; float value; } stages[] = {
        { plan.temperature, "TemperatureLogitsWarper", p->temperature },
        { plan.repetition, "RepetitionPenaltyLogitsProcessor", p->repetition_penalty },
        { plan.top_p, "TopPLogitsWarper", p->top_p },
        { plan.top_k, "TopKLogitsWarper", (float)p->top_k },
    };
    const cJSON *item = list->child;

    for (size_t i = 0; i < sizeof stages / sizeof stages[0]; i++) {
        if (!stages[i].on)
            continue;
        if (!item || strcmp(json_find(item, "class")->valuestring, stages[i].class) != 0 ||
            (float)json_find(item, "value")->valuedouble != stages[i].value)
            return false;
        item = item->next;
    }
    return !item;
}

static size_t check_processors(FILE *f)
{
    char line[4096];
    size_t n = 0;

    while (fgets(line, sizeof line, f)) {
        CLEANUP(json_delete) cJSON *rec = NULL;
        struct sample_params p = plain;

        cr_assert(zero(int, json_parse(line, strlen(line), NULL, &rec, NULL)));
        p.temperature = (float)json_find(rec, "temperature")->valuedouble;
        p.top_p = (float)json_find(rec, "top_p")->valuedouble;
        p.top_k = json_find(rec, "top_k")->valueint;
        p.repetition_penalty = (float)json_find(rec, "repetition_penalty")->valuedouble;
        cr_expect(eq(int, sampler_plan(&p).greedy, cJSON_IsTrue(json_find(rec, "greedy"))), "%s", line);
        cr_expect(same_processors(&p, json_find(rec, "processors")), "%s", line);
        n++;
    }
    fclose(f);
    return n;
}

Test(sampler, stages_take_part_where_the_reference_has_processors)
{
    const char *source = getenv("FASTCHAT_SOURCE");
    char path[4096];
    FILE *own, *whole = golden_open("unit_logits_processors.jsonl");

    snprintf(path, sizeof path, "%s/tests/golden/unit_logits_processors.jsonl", source ? source : ".");
    own = fopen(path, "r");
    cr_assert(own != NULL);
    cr_expect(eq(sz, check_processors(own), 87));
    if (whole)
        cr_expect(ge(sz, check_processors(whole), 87));
}
