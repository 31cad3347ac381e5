/* wordpiece.h - BERT's whole chain, where no tokenizer.json lists it: vocab.txt and GGUF.
 *
 * Source   tokenizers 0.22, BertNormalizer, BertPreTokenizer; BERT's tokenization.py
 */
#ifndef LOADERS_TOK_WORDPIECE_H
#define LOADERS_TOK_WORDPIECE_H

#include "loaders/tok/tok.h"

#include <cjson/cJSON.h>

struct wordpiece_chain {
    bool lower, accents;                /* lower-case; accents go */
    bool no_chinese;                    /* Chinese characters are not words of their own */
    int32_t unk;
};
/* Fills normaliser, splitter, model and decoder of a tokenizer whose vocabulary is complete. 0 or -ENOMEM. */
int wordpiece_chain(struct tokenizer *t, const struct wordpiece_chain *c);

/* A vocabulary file: a token a line, its line number is its id. `config` is tokenizer_config.json's tree or NULL: do_lower_case,
 * strip_accents, tokenize_chinese_chars, the names of [UNK], [CLS], [SEP] and others. 0; -EINVAL, -E2BIG, -ENOMEM with a sentence. */
int vocab_txt_open(const char *name, const char *text, size_t len, const cJSON *config, struct tokenizer **ret, struct err *err);
/* Whether one of the first lines is a token of BERT's. */
bool vocab_txt_looks_like(const char *text, size_t len);

#endif
