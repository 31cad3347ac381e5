/* hf.h - tokenizer.json, as its reader's files share it.
 *
 * hf_json.c reads the file, hf_model.c the vocabulary and its merges, hf_parts.c the other sections, which are small and come as trees;
 * hf_added.c assigns the ids of added tokens as Hugging Face's does.
 *
 * Source   Hugging Face tokenizers 0.22, tokenizer/serialization.rs, added_vocabulary.rs, models/, normalizers/, pre_tokenizers/,
 *          processors/, decoders/
 */
#ifndef LOADERS_TOK_HF_H
#define LOADERS_TOK_HF_H

#include "loaders/tok/decode.h"
#include "loaders/tok/json_pull.h"
#include "loaders/tok/normalize.h"
#include "loaders/tok/split.h"
#include "loaders/tok/tok.h"

#include <cjson/cJSON.h>

/* With tokenizer_config.json (NULL: none), whose added tokens, names of special tokens and, for classes that build their own
 * post-processor (Llama, Gemma), add_bos_token and add_eos_token count as in transformers. Errors as tokenizer_open_json. */
int hf_open(const char *name, const char *json, size_t len, const char *config, size_t config_len, struct tokenizer **ret,
            struct err *err);
/* FOLDER/tokenizer.json with tokenizer_config.json beside it, where there is one. */
int hf_open_folder(const char *folder, struct tokenizer **ret, struct err *err);

enum hf_kind { HF_BPE, HF_UNIGRAM, HF_WORDPIECE, HF_WORDLEVEL };

struct hf_entry { const char *text; uint32_t len; int32_t id; };
struct hf_merge { struct tok_str left, right; };

/* The section "model" as it stands in the file; all texts are views into the reader. */
struct hf_model {
    enum hf_kind kind;
    struct hf_entry *entries; size_t n_entries;
    double *scores;                 /* of the entries; NULL: the vocabulary has none */
    struct hf_merge *merges; size_t n_merges;
    bool has_merges, byte_fallback, fuse_unk, ignore_merges;
    struct tok_str type, unk_token, continuing_prefix, end_suffix;
    int64_t unk_id, max_chars;      /* -1: not given */
};
int hf_model_read(struct json_pull *p, struct hf_model *ret);
void hf_model_fini(struct hf_model *m);
/* Fills t->vocab. raw: tokens spelled in GPT-2's alphabet become bytes. */
int hf_vocab_build(const struct hf_model *m, bool raw, const char *name, struct tokenizer *t, struct err *err);
/* Fills t->model, and t->ends by spelling; the kinds of tokens are known. */
int hf_model_build(const struct hf_model *m, bool raw, const char *name, struct tokenizer *t, struct err *err);
/* The id of a token of the model as the file spells it, or -1. */
int32_t hf_vocab_find(const struct tokenizer *t, bool raw, struct tok_str text);

/* The other sections; NULL is null. Errors name the part, not the file. */
enum { HF_MAX_STEPS = 64 };
struct hf_normalizer { struct normalize_step steps[HF_MAX_STEPS]; size_t n; };
struct hf_splitter { struct split_step steps[HF_MAX_STEPS]; size_t n; };
struct hf_decoder { struct decode_step steps[DECODE_MAX_STEPS]; size_t n; };
/* What they own is the caller's, also after a failure: _fini() unless handed on. */
int hf_normalizer_read(const cJSON *j, struct hf_normalizer *ret, struct err *err);
int hf_splitter_read(const cJSON *j, struct hf_splitter *ret, struct err *err);
int hf_decoder_read(const cJSON *j, struct hf_decoder *ret, struct err *err);
void hf_normalizer_fini(struct hf_normalizer *n);
void hf_splitter_fini(struct hf_splitter *s);
void hf_decoder_fini(struct hf_decoder *d);
/* Appends to what stands in front of and behind a text. */
int hf_post_read(const cJSON *j, struct token_list *prefix, struct token_list *suffix, struct err *err);

/* Added tokens. */
struct hf_token {
    struct tok_str content;
    bool single_word, lstrip, rstrip, normalized, special;
};
struct hf_added {
    struct hf_token *tokens; size_t n, cap;     /* all that were added, in order, also those that change one before */
    int32_t *ids;                               /* of them */
    uint32_t *slots; size_t mask;               /* by content: place of the last one, and one */
    int32_t max_id;
    bool repeats;                               /* a content is there more than once */
};
#define HF_ADDED_INIT { .max_id = -1 }
void hf_added_fini(struct hf_added *a);
/* One call of add_tokens(): those that the model lacks get new ids and go into t->vocab. */
int hf_added_add(struct hf_added *a, const struct hf_token *tokens, size_t n, size_t model_size, bool raw, struct tokenizer *t,
                 struct err *err);
/* The last one with this content, or NULL. */
const struct hf_token *hf_added_find(const struct hf_added *a, struct tok_str content);
/* Sets the kinds of tokens. */
void hf_added_kinds(const struct hf_added *a, struct tokenizer *t);
/* Fills t->added_raw and t->added_normalized. */
int hf_added_build(const struct hf_added *a, struct tokenizer *t, struct err *err);

#endif
