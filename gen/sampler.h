/* sampler.h - from logits to the next token of one sequence.
 *
 * The logits pass, in this order (contract, part 3.2; what it does not name
 * stands where llama.cpp's server has it, as far as that order allows):
 *
 *     logit bias           x + b                  given tokens
 *     temperature          x / T                  T >= 1e-5 and not 1
 *     repetition penalty   x > 0: x / r, else x * r      r > 1; prompt and generated tokens
 *     presence, frequency  x - p - n * f          tokens generated before, n times
 *                          (all three only of the last so many tokens, if so asked)
 *     DRY                  x - m * b^(n - a) / T  tokens that would make a repetition of n > a
 *                          tokens n + 1 long (dry.h)      m > 0
 *     top-n-sigma          at least the greatest - n standard deviations   n > 0
 *     top-p                fewest tokens, best first, whose probabilities reach p    p < 1
 *     top-k                the k best             k > 0
 *     typical              fewest tokens, the nearest to the entropy of what is left in their
 *                          surprise first, whose probabilities exceed t      t < 1
 *     min-p                at least m times the best one's probability               m > 0
 *     XTC                  in some steps (a draw of its own): of the tokens of a probability of
 *                          at least x only the least likely one     chance > 0, x <= 0.5
 *
 * or, in place of those from top-n-sigma on,
 *
 *     mirostat 1           the k best, k from mu and how steep the best 100 fall (Zipf)
 *     mirostat 2           of a surprise of at most mu bits, or else the best
 *
 * where mu begins at 2 tau and each token moves it by eta (tau - its surprise).
 *
 * Then one token is drawn in proportion to what is left. Below T = 1e-5 or
 * p = 1e-8 there is no draw: the best token is taken (greedy). Of tokens that
 * are equal the lower id comes first, everywhere.
 *
 * llama.cpp's server has: logit bias, penalties, DRY, top-n-sigma, top-k,
 * typical, top-p, min-p, XTC, temperature; a temperature that comes first
 * changes what those from top-k on keep. Its mirostat takes the place
 * of the penalties too; here they stay.
 *
 * Draw n of a sequence is a function of the seed and n alone (splitmix64 as a
 * counter; XTC's chance is another such function), so a seeded request gives
 * the same tokens whatever else runs, and a sequence can go on elsewhere from
 * its tokens; with mirostat only from a copy, for mu is not in them.
 *
 * Cost     a few passes over the vocabulary and never a sort of it: what top-p,
 *          top-k and typical keep is found digit by digit in the bits of the
 *          weights (radix selection). Nothing is allocated after open.
 * Threads  a sampler and a sampler_work are used by one thread at a time
 * Source   FastChat 0.2.36, prepare_logits_processor; llama.cpp,
 *          src/llama-sampler.cpp and common/sampling.cpp; typical
 *          arXiv:2202.00666; mirostat arXiv:2007.14966; top-n-sigma
 *          arXiv:2411.07641
 */
#ifndef GEN_SAMPLER_H
#define GEN_SAMPLER_H

#include "base/cleanup.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dry_breakers;
struct engine_logprob;
struct err;
struct sample_params;
struct sampler;
struct sampler_work;

/* Which stages take part. */
struct sampler_plan { bool greedy, bias, temperature, repetition, counts, top_p, top_k, typical, min_p, xtc, dry, window, sigma; int mirostat; };
struct sampler_plan sampler_plan(const struct sample_params *p);

/* Scratch for a vocabulary, shared by the samplers of a thread: sampler_work_bytes() of it. -ENOMEM. */
size_t sampler_work_bytes(uint32_t vocab_size);
int sampler_work_open(uint32_t vocab_size, struct sampler_work **ret, struct err *err);
void sampler_work_close(struct sampler_work *w);    /* NULL is fine */
DEFINE_CLEANUP(struct sampler_work *, sampler_work_close)

/* A sampler for a sequence of a prompt and at most max_tokens more. -EINVAL
 * with a sentence for a parameter that is not a finite number (a bias may be
 * -infinity); -ENOMEM. */
int sampler_open(const struct sample_params *p, const int32_t *prompt, size_t n_prompt,
                 size_t max_tokens, struct sampler **ret, struct err *err);
void sampler_close(struct sampler *s);              /* NULL is fine */
DEFINE_CLEANUP(struct sampler *, sampler_close)

/* What DRY stops at; taken a reference to. Without it: nowhere. */
void sampler_set_breakers(struct sampler *s, struct dry_breakers *b);
/* One that goes on from here as `s` does. -ENOMEM. */
int sampler_copy(const struct sampler *s, struct sampler **ret, struct err *err);

/* The next token; the same again until accept. 0; -EDOM when the logits hold NaN or
 * +infinity, or nothing above -infinity. */
int sampler_pick(struct sampler *s, struct sampler_work *w, const float *logits,
                 int32_t *ret);
/* The sequence goes on with this token: counts it and moves to the next draw; mu moves
 * if it is the one that was picked. */
void sampler_accept(struct sampler *s, int32_t token);

/* What pick would draw from: ids ascending (NULL: the whole vocabulary) and the
 * weight of each id of the vocabulary, up to the next call. Not when greedy. */
int sampler_candidates(const struct sampler *s, struct sampler_work *w, const float *logits,
                       const uint32_t **ret_ids, size_t *ret_n, const float **ret_weights);

/* Natural log-probabilities of the raw logits: of `token`, and of the n best
 * with their ids, best first. 0 or -EDOM. */
int sampler_logprobs(struct sampler_work *w, const float *logits, int32_t token, float *ret,
                     struct engine_logprob *ret_top, size_t n_top);

#endif
