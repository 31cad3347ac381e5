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

/* Which elements of a head rotary position turns against each other. */
enum arch_pairs {
    ARCH_NEIGHBOURS,            /* (2i, 2i + 1) */
    ARCH_HALVES,                /* (i, i + n / 2) of the n that turn */
};

struct arch {
    const char *name;           /* of general.architecture, and in front of its keys */
    enum arch_pairs pairs;
    bool qkv_bias;              /* must be there; every matrix may have one */
    bool qk_norm;               /* RMS norm over each head of queries and keys, before they turn */
};

/* NULL for a name that has no row. */
const struct arch *arch_find(const char *name);
/* By number, sorted by name: NULL past the end. */
const struct arch *arch_at(unsigned i);

#endif
