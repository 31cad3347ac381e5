/* tok_config.h - tokenizer_config.json, for the kinds of files beside which it says what they do not.
 *
 * All take the file's tree, or NULL: everything is absent.
 */
#ifndef LOADERS_TOK_TOK_CONFIG_H
#define LOADERS_TOK_TOK_CONFIG_H

#include "loaders/tok/tok.h"

#include <cjson/cJSON.h>

/* The spelling under "bos_token" and the like, a string or an object with "content"; NULL: there is none. */
const char *tok_config_token(const cJSON *config, const char *key);
/* A boolean, or what stands for it where it is absent. */
bool tok_config_bool(const cJSON *config, const char *key, bool otherwise);
/* Whether "tokenizer_class" is one of these, with or without "Fast" behind. */
bool tok_config_class(const cJSON *config, const char *const *names, size_t n);

/* The entries of "added_tokens_decoder", one after the other, from { 0 } on: false past the end. 0 <= id. */
struct tok_config_added { const cJSON *entry; int64_t id; const char *text; bool special, lstrip, rstrip, single_word, normalized; };
bool tok_config_added(const cJSON *config, struct tok_config_added *next);
/* Gives t's vocabulary what "added_tokens_decoder" lists: a token that is not there is put, one that is there by its id becomes
 * TOK_CONTROL if it is special. 0; -EINVAL: an id that holds another text; -E2BIG; -ENOMEM; with a sentence. */
int tok_config_fill(const cJSON *config, struct tokenizer *t, struct err *err);

/* The added tokens of a vocabulary, those that are no text: control and unknown ones, which are special, and user-defined
 * ones, but for those below `own`, which the model matches itself. The config's flags count. -ENOMEM */
int added_of_vocab(const struct vocab *v, uint32_t own, const cJSON *config, struct added **ret);

/* A list of one id, or none for -1. 0 or -ENOMEM. */
int tok_one_id(int32_t id, int32_t **ret, size_t *ret_n);
/* BOS and EOS in front and behind, by "add_bos_token" and "add_eos_token". 0 or -ENOMEM. */
int tok_config_edges(const cJSON *config, struct tokenizer *t, bool adds_bos, bool adds_eos);

#endif
