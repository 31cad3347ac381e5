/* tiny_twin.h - a tiny checkpoint as GGUF, scored against what transformers computes.
 *
 * A folder of the golden data engine/tiny holds model.gguf, expected.safetensors and
 * expected.json; the README there says how they were made and what an engine may miss.
 */
#ifndef TESTS_GEN_TINY_TWIN_H
#define TESTS_GEN_TINY_TWIN_H

#include <stdbool.h>
#include <stdint.h>

struct err;
struct gguf;

enum { TWIN_LENGTHS = 4, TWIN_GREEDY = 24 };
extern const uint32_t twin_lengths[TWIN_LENGTHS];

/* Products here are float32 over BF16 or F16 weights, but the cache is F16 and rounds as much as such a product does: so
 * the README's row for an F16 file, 1e-2, and half of it, for no twin comes near. */
#define TWIN_MAX_ERROR 5e-3
/* Where prompts have kernels of their own, these round activations and weights to BF16: the README's row for that. */
#define TWIN_MAX_ERROR_BF16 6e-2

/* How it is computed. */
struct twin_way {
    const char *isa;                    /* NULL: the best there is */
    uint32_t threads;
    bool prompt;                        /* prompts are fed as rows that are read, else as generated ones */
};

struct twin_score {
    double error[TWIN_LENGTHS];         /* max |d| of the logits over their standard deviation */
    double worst, limit;                /* of these; TWIN_MAX_ERROR or _BF16 */
    double logit_std, min_gap;          /* of expected.json */
    uint32_t n_moved;                   /* logits of 33 tokens that are other bits when these come in pieces */
    uint32_t n_greedy;                  /* tokens before the first that differs, at most TWIN_GREEDY */
};

/* file NULL: the folder's model.gguf. 0, or -errno and a sentence. */
int twin_score(const char *folder, const struct gguf *file, const struct twin_way *way, struct twin_score *ret,
               struct err *err);
/* Within the limits. Greedy tokens must all be equal where the error is below half of the smallest gap. */
bool twin_fine(const struct twin_score *s);

#endif
