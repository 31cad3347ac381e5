/* arch.h - what sets one family of transformers apart, as facts.
 *
 * The forward pass of model.c is one; which parts of it a file runs, and where the
 * file's own keys are silent, is a row of arch.def. A family whose facts fit the
 * fields here is a new row and nothing else.
 *
 * Source   llama.cpp's conventions for GGUF: keys, names of tensors and what each
 *          architecture does with them
 */
#ifndef GEN_ARCH_H
#define GEN_ARCH_H

#include <stdbool.h>
#include <stdint.h>

/* Which elements of a head rotary position turns against each other. */
enum arch_pairs {
    ARCH_NEIGHBOURS,            /* (2i, 2i + 1) */
    ARCH_HALVES,                /* (i, i + n / 2) of the n that turn */
};

enum arch_act { ARCH_SILU, ARCH_GELU_TANH };

struct arch {
    const char *name;           /* of general.architecture, and in front of its keys */
    enum arch_pairs pairs;
    bool qkv_bias;              /* must be there; every matrix may have one */
    bool qk_norm;               /* RMS norm over each head of queries and keys, before they turn */
    bool post_norms;            /* RMS norm also on what attention and feed-forward give */
    bool scaled_embedding;      /* by sqrt(embedding_length) */
    enum arch_act act;          /* of the feed-forward's gate */
    float attn_softcap, final_softcap;      /* when the key is absent; 0: none */
    /* Of `period` layers the last one sees everything, the others the newest attention.sliding_window positions;
     * `window` is that of a file without the key. 0: none slides. */
    uint32_t period, window;
    float local_rope_theta;     /* of layers that slide, when rope.freq_base_swa is absent; 0: that of the others */
    bool local_rope_unscaled;   /* the file's rope scaling is not for them */
    uint32_t wide_layers;       /* with this many layers scores are scaled by dim / n_heads, not by the head's length */
};

/* NULL for a name that has no row. */
const struct arch *arch_find(const char *name);
/* By number, sorted by name: NULL past the end. */
const struct arch *arch_at(unsigned i);

#endif
