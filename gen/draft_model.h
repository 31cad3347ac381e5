/* draft_model.h - proposals of a smaller model that has the same vocabulary.
 *
 * It takes the token that it finds most likely, again and again, for all
 * sequences at once: one row each in a pass of its own. Where it is in
 * doubt itself, which is where the second best comes near, it stops. After a pass of the large model
 * its cache holds some tokens that did not stand: the positions from there on are computed again. A prompt
 * is read along in pieces, beside the large model's, and until that is done nothing is proposed.
 *
 * Threads  as draft.h says
 */
#ifndef GEN_DRAFT_MODEL_H
#define GEN_DRAFT_MODEL_H

#include "gen/draft.h"

struct draft_model;
struct draft_reader;            /* one sequence */

enum { DRAFT_READ_ROWS = 128 };                     /* of prompts in a pass */

int draft_model_open(const struct draft_options *options, struct draft_model **ret, struct err *err);
int draft_model_open_kv(struct draft_model *m, uint32_t n_pages, enum kv_type type, struct err *err);
void draft_model_close(struct draft_model *m);      /* NULL is fine */
DEFINE_CLEANUP(struct draft_model *, draft_model_close)

const struct model_shape *draft_model_shape(const struct draft_model *m);
uint64_t draft_model_kv_bytes(const struct draft_model *m);
/* The one of place i, below `parallel`. */
struct draft_reader *draft_model_reader(struct draft_model *m, uint32_t i);
/* Its pages are free and it has read nothing. */
void draft_model_forget(struct draft_model *m, struct draft_reader *r);
void draft_model_prepare(struct draft_model *m, struct draft_reader *r, struct draft_ask *ask);
/* readers[i] is asks[i]'s. */
void draft_model_propose(struct draft_model *m, struct draft_reader *const *readers, struct draft_ask *asks, size_t n);

/* -EINVAL and the first difference, if two vocabularies are not the same. */
int draft_model_same_vocabulary(const struct tokenizer *target, const char *target_name, const struct tokenizer *draft,
                                const char *draft_name, struct err *err);

#endif
