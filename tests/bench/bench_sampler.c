/* What a token's sampling costs, by stage and size of vocabulary, beside one
 * pass that finds the greatest logit and one that sums exp(x - max): what any
 * sampler does at the least. Logits are drawn so that a few tokens hold most of
 * the probability, as a model's do. Prints CSV: vocabulary, stage, nanoseconds
 * a token (the fastest of some rounds), times the passes. The last column is a hash of the
 * tokens: the same everywhere.
 *
 *     bench-sampler [rounds]
 */
#include "base/clock.h"
#include "gen/engine.h"
#include "gen/sampler.h"
#include "tests/gen/rand.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { TEXT = 4096, TOKENS = 20 };

static const uint32_t vocabularies[] = { 49152, 151936, 262144 };

/* What is not named is off. */
struct stage {
    const char *name;
    float temperature, repetition, top_p, typical_p, min_p, sigma, xtc, dry;
    int32_t top_k, dry_last_n, mirostat;
    bool greedy;
};

static const struct stage stages[] = {
    { "greedy", .greedy = true },
    { "plain" },
    { "temperature", .temperature = 0.7f },
    { "repetition", .repetition = 1.1f },
    { "top_p", .top_p = 0.95f },
    { "top_k", .top_k = 40 },
    { "top_p+top_k", .top_p = 0.95f, .top_k = 40 },
    { "typical", .typical_p = 0.95f },
    { "top_k+typical", .top_k = 40, .typical_p = 0.95f },
    { "min_p", .min_p = 0.05f },
    { "top_n_sigma", .sigma = 1 },
    { "xtc", .xtc = 1 },
    { "dry 64", .dry = 0.8f },
    { "dry 4096", .dry = 0.8f, .dry_last_n = TEXT },
    { "mirostat 1", .mirostat = 1 },
    { "mirostat 2", .mirostat = 2 },
    { "all", .temperature = 0.8f, .repetition = 1.1f, .top_p = 0.95f, .top_k = 100, .typical_p = 0.95f, .min_p = 0.02f,
      .xtc = 0.5f, .dry = 0.8f },
};

static struct sample_params params_of(const struct stage *st)
{
    struct sample_params p = sample_defaults;

    p.has_seed = true;
    p.seed = 7;
    p.temperature = st->greedy ? 0 : st->temperature > 0 ? st->temperature : 1;
    p.repetition_penalty = st->repetition > 0 ? st->repetition : 1;
    p.top_p = st->top_p > 0 ? st->top_p : 1;
    p.typical_p = st->typical_p > 0 ? st->typical_p : 1;
    p.min_p = st->min_p;
    p.top_k = st->top_k;
    p.top_n_sigma = st->sigma;
    p.xtc_probability = st->xtc;
    p.dry_multiplier = st->dry;
    p.dry_penalty_last_n = st->dry_last_n ? st->dry_last_n : p.dry_penalty_last_n;
    p.mirostat = st->mirostat;
    return p;
}

static void make_logits(float *x, uint32_t n)
{
    uint64_t rng = 3;

    for (uint32_t i = 0; i < n; i++) {
        double u = rand_unit(&rng) + rand_unit(&rng) + rand_unit(&rng) + rand_unit(&rng);

        x[i] = (float)((u - 2) * 3 - (rand_below(&rng, 5000) ? 0 : log(rand_unit(&rng) + 1e-9) * 4));
    }
}

static int32_t text[TEXT];

static double measure(const struct stage *st, struct sampler_work *w, const float *logits, int rounds, uint64_t *hash)
{
    struct sample_params p = params_of(st);
    double best = INFINITY;

    *hash = 0;
    for (int r = 0; r < rounds; r++) {
        CLEANUP(sampler_close) struct sampler *s = NULL;
        int32_t token = 0;
        uint64_t from;

        if (sampler_open(&p, text, TEXT, TOKENS, &s, NULL) < 0)
            abort();
        from = clock_mono_us();
        for (int i = 0; i < TOKENS; i++) {
            if (sampler_pick(s, w, logits, &token) < 0)
                abort();
            sampler_accept(s, token);
            *hash = (*hash ^ (uint64_t)token) * 0x100000001B3u;
        }
        best = fmin(best, (double)(clock_mono_us() - from) * 1000 / TOKENS);
    }
    return best;
}

/* sampler_logprobs() without any best: a pass for the greatest, one copy, one of exp. */
static double passes(struct sampler_work *w, const float *logits, int rounds)
{
    double best = INFINITY;

    for (int r = 0; r < rounds; r++) {
        uint64_t from = clock_mono_us();
        float p;

        for (int i = 0; i < TOKENS; i++)
            if (sampler_logprobs(w, logits, 5, &p, NULL, 0) < 0)
                abort();
        best = fmin(best, (double)(clock_mono_us() - from) * 1000 / TOKENS);
    }
    return best;
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 20;
    uint64_t rng = 9;

    for (size_t i = 0; i < TEXT; i++)
        text[i] = i > 100 && rand_below(&rng, 10) ? text[i - 97] : (int32_t)rand_below(&rng, 40000);
    printf("vocabulary,stage,ns_per_token,times_the_passes,tokens\n");
    for (size_t v = 0; v < sizeof vocabularies / sizeof vocabularies[0]; v++) {
        CLEANUP(sampler_work_close) struct sampler_work *w = NULL;
        uint32_t n = vocabularies[v];
        float *logits = malloc(n * sizeof logits[0]);
        double least;

        if (!logits || sampler_work_open(n, &w, NULL) < 0)
            abort();
        make_logits(logits, n);
        least = passes(w, logits, rounds);
        printf("%u,max+exp,%.0f,1.00,\n", n, least);
        for (size_t i = 0; i < sizeof stages / sizeof stages[0]; i++) {
            uint64_t hash;
            double ns = measure(&stages[i], w, logits, rounds, &hash);

            printf("%u,%s,%.0f,%.2f,%016llx\n", n, stages[i].name, ns, ns / least, (unsigned long long)hash);
        }
        free(logits);
    }
    return 0;
}
