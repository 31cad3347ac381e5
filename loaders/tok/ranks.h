/* ranks.h - byte-level BPE by rank, as tiktoken has it: a list of byte strings, the place of each is when it is made.
 *
 * There is no list of merges: any two neighbours whose join is in the list are a pair, and the one of the least rank is joined
 * first. So each token gives a merge for each way to cut it into two others, in the order of ranks.
 *
 * Source   tiktoken 0.14, src/lib.rs:byte_pair_merge
 */
#ifndef LOADERS_TOK_RANKS_H
#define LOADERS_TOK_RANKS_H

#include "loaders/tok/tok.h"

#include <cjson/cJSON.h>

enum { RANKS_MAX_TOKEN = 1024 };        /* bytes of a token */

struct ranks {
    const char *name;                   /* of the file, for messages */
    struct vocab *tokens;               /* rank to bytes, from 0 on */
    int32_t first;                      /* the id of rank 0 */
    struct tok_str pattern;             /* what cuts the text */
    bool nfc;                           /* which is brought into that form first */
};
/* The next rank's token. 0; -EINVAL: it is empty, there already, or not the next; -E2BIG; -ENOMEM; with a sentence that begins with
 * the name. */
int ranks_put(struct ranks *r, int64_t rank, const char *bytes, size_t len, struct err *err);
/* Puts the tokens into t's vocabulary. */
int ranks_fill(const struct ranks *r, struct tokenizer *t, struct err *err);
/* A special token: kind TOK_CONTROL or TOK_USER_DEFINED. */
int ranks_special(const struct ranks *r, struct tokenizer *t, int64_t id, const char *text, size_t len, bool control, struct err *err);
/* Splitter, model, and the tokens that are matched whole, when the vocabulary is complete; ends by spelling. */
int ranks_chain(const struct ranks *r, struct tokenizer *t, struct err *err);
void ranks_fini(struct ranks *r);

/* Base64 with padding, nothing else in it. false: it is not. */
bool ranks_base64(const char *text, size_t len, struct buf *out);

/* A *.tiktoken file: lines of base64, a space, the rank. The pattern and the special tokens are not in it: they go by `base`, the
 * file's own name (cl100k_base.tiktoken), else by the number of ranks, which is another for each known family; config
 * (tokenizer_config.json, may be NULL) names special tokens, and wins. 0; -EINVAL; -ENOTSUP: a family that is not known; -E2BIG; -ENOMEM. */
int tiktoken_open(const char *name, const char *text, size_t len, const cJSON *config, struct tokenizer **ret, struct err *err);
bool tiktoken_looks_like(const char *text, size_t len);

/* Mistral's tekken.json, versions v3 and later. 0; -EINVAL; -ENOTSUP; -E2BIG; -ENOMEM. */
int tekken_open(const char *name, const char *text, size_t len, struct tokenizer **ret, struct err *err);

#endif
