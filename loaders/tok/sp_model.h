/* sp_model.h - SentencePiece: its model files, and the tokenizer that one describes.
 *
 * Source   sentencepiece 0.1.97, sentencepiece_model.proto (the numbers of fields and the defaults), model_interface.cc (what
 *          is refused)
 */
#ifndef LOADERS_TOK_SP_MODEL_H
#define LOADERS_TOK_SP_MODEL_H

#include "loaders/tok/tok.h"

#include <cjson/cJSON.h>

struct sp_piece { struct tok_str text; float score; enum token_kind kind; };

/* What a file says; views. */
struct sp_model {
    const char *name;                   /* of the file, for messages */
    struct sp_piece *pieces;            /* texts with U+2581 for spaces */
    uint32_t n_pieces;
    int32_t unk;                        /* the id of kind TOK_UNKNOWN, -1: none */
    bool bpe;                           /* else Unigram */
    bool byte_fallback, as_suffix, dummy_prefix, remove_extra;
    bool escape;                        /* the text's spaces are U+2581 to the model, and a space in a piece is none of them */
    struct tok_str charsmap, unk_surface, bos, eos;
};

/* Reads a file that the caller keeps as long as the model; sp_model_fini() either way. 0; -EINVAL with a sentence that names the
 * place: bytes that are no sound model; -ENOTSUP: a kind of model that is not supported; -E2BIG; -ENOMEM. */
int sp_model_read(const char *name, const void *data, size_t len, struct sp_model *ret, struct err *err);
void sp_model_fini(struct sp_model *m);

/* The vocabulary of an empty tokenizer; then, when the kinds of tokens are final, its normaliser, model and decoder. 0; -EINVAL;
 * -ENOMEM, with a sentence. */
int sp_model_vocab(const struct sp_model *m, struct tokenizer *t, struct err *err);
int sp_model_chain(const struct sp_model *m, struct tokenizer *t, struct err *err);

/* A tokenizer of a model file. config: tokenizer_config.json's tree, or NULL. It adds tokens, says which are special, which one is BOS
 * and EOS, and whether they stand in front and behind (as Llama's and Gemma's have it, T5's EOS, if it does not say; nothing
 * without a config). */
int sp_tokenizer_open(const char *name, const void *data, size_t len, const cJSON *config, struct tokenizer **ret, struct err *err);
/* Whether the bytes begin like a model file: cheap, for telling kinds of files apart. */
bool sp_model_looks_like(const void *data, size_t len);

#endif
