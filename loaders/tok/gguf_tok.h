/* gguf_tok.h - what all kinds of tokenizers read from GGUF metadata in the same way; only for files of this folder.
 *
 * tokenizer_open() finds the row of tokenizer.ggml.model, reads the tokens and their types, calls the row's function, which fills the
 * tokenizer, and adds what is common: ends, BOS and EOS.
 *
 * Source   llama.cpp, src/llama-vocab.cpp
 */
#ifndef LOADERS_TOK_GGUF_TOK_H
#define LOADERS_TOK_GGUF_TOK_H

#include "loaders/gguf.h"
#include "loaders/tok/tok.h"

struct gguf_tok {
    struct tokenizer *t;
    const struct gguf *file;
    struct err *err;
    const char *model;                      /* tokenizer.ggml.model */
    uint32_t n;
    struct gguf_str *texts;                 /* [n], as the file spells them */
    uint8_t *kinds;                         /* [n], enum token_kind */
    bool adds_bos, adds_eos;                /* the kind's defaults; read over by the file's keys */
    int32_t bos, eos, unk;                  /* the kind's defaults, -1: none; read over by the file's keys */
    struct bpe_merge *merges; size_t n_merges;      /* of a kind that has some */
};

/* A failure with the file's name in front; returns code. */
int gguf_tok_refuse(struct gguf_tok *g, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int gguf_tok_no_memory(struct gguf_tok *g);
/* What a getter gave for a key that must be there. */
int gguf_tok_need(struct gguf_tok *g, int r, const char *key);
/* The id under a key, if it is there: else *ret is untouched. */
int gguf_tok_id(struct gguf_tok *g, const char *key, int32_t *ret);
/* The file's merges as they are written, and room for them in g->merges. */
int gguf_tok_merges(struct gguf_tok *g, struct gguf_array *ret);
/* "<0x0A>" to its byte, or -1. */
int gguf_tok_byte(struct gguf_str s);
/* To be called by a row's function when the vocabulary is complete and before it makes its model: BOS, EOS, unknown, ends, tokens
 * that are matched whole, prefix and suffix. */
int gguf_tok_finish(struct gguf_tok *g);

/* The rows. */
int gguf_tok_bert(struct gguf_tok *g);      /* gguf_bert.c */
int gguf_tok_bpe(struct gguf_tok *g);       /* gguf_bpe.c */
int gguf_tok_gemma4(struct gguf_tok *g);    /* gguf_gemma4.c */
int gguf_tok_spm(struct gguf_tok *g);       /* gguf_spm.c */
int gguf_tok_t5(struct gguf_tok *g);

#endif
