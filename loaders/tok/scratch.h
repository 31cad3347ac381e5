/* scratch.h - memory that one call of encode needs and keeps to its end.
 *
 *     SCRATCH_LOCAL s = { 0 };                            released at the end of scope
 *     uint32_t *ranks = scratch_room(&s, SCRATCH_RANKS, n * sizeof *ranks);
 */
#ifndef LOADERS_TOK_SCRATCH_H
#define LOADERS_TOK_SCRATCH_H

#include <stddef.h>

enum scratch_slot {                     /* whoever runs at the same time has slots of his own */
    SCRATCH_SYMBOLS, SCRATCH_HEAP,      /* models */
    SCRATCH_MODEL_2, SCRATCH_MODEL_3, SCRATCH_MODEL_4, SCRATCH_MODEL_5, SCRATCH_MODEL_6,
    SCRATCH_SPLIT, SCRATCH_SPLIT_2,     /* splitters */
    SCRATCH_TEXT, SCRATCH_TEXT_2,       /* normalisers and whoever runs the chain */
    SCRATCH_SLOTS
};

struct tok_scratch {
    struct { void *p; size_t cap; } slots[SCRATCH_SLOTS];
};

/* At least so many bytes; what the slot held is kept when it grows. NULL: no memory, and the slot is as it was. */
void *scratch_room(struct tok_scratch *s, unsigned slot, size_t bytes);
void scratch_fini(struct tok_scratch *s);
static inline void scratch_fini_cleanup(struct tok_scratch *s) { scratch_fini(s); }
#define SCRATCH_LOCAL __attribute__((cleanup(scratch_fini_cleanup))) struct tok_scratch

#endif
