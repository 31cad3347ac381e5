/* tokenizer.h - text to token ids and back, as the model file says.
 *
 * Byte-level BPE from GGUF metadata (tokenizer.ggml.model = "gpt2"): text is cut
 * at tokens that are matched whole (added tokens), the rest into pieces by the
 * scanner that tokenizer.ggml.pre names, each piece is merged pair by pair,
 * lowest rank first.
 *
 * Control tokens (<|im_start|>) are matched only where the caller vouches for the
 * text (`special`); user-defined ones in any text. So a person who types the
 * spelling of a control token gets ordinary tokens. Apart from bytes that the vocabulary has no
 * token for (SmolLM2 lacks a few control characters), ids give the text back.
 *
 * Threads  constant after open; any number may encode at once
 * Source   GPT-2's encoder.py; llama.cpp's llama-vocab.cpp for the metadata keys,
 *          the names of pre-tokenisers and which tokens end an answer
 */
#ifndef LOADERS_TOKENIZER_H
#define LOADERS_TOKENIZER_H

#include "base/cleanup.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct gguf;
struct tokenizer;

enum {
    TOKENIZER_MAX_VOCAB = 1 << 21,
    TOKENIZER_MAX_TEXT = 1 << 26,   /* bytes in one call */
};

/* Ids that grow; zero it to begin, token_list_fini() when done. */
struct token_list {
    int32_t *ids;
    size_t n, cap;
};
void token_list_fini(struct token_list *l);
static inline void token_list_fini_cleanup(struct token_list *l) { token_list_fini(l); }
#define TOKEN_LIST_LOCAL __attribute__((cleanup(token_list_fini_cleanup))) struct token_list
/* 0 or -ENOMEM */
int token_list_add(struct token_list *l, int32_t id);

/* 0 and a tokenizer that the caller closes; the file may be closed before it.
 * -ENOTSUP for a tokenizer model or a pre-tokeniser that is not supported, by
 * name; -EINVAL for metadata that is missing or does not fit together; -E2BIG;
 * -ENOMEM; always with a sentence that names the file. */
int tokenizer_open(const struct gguf *file, struct tokenizer **ret, struct err *err);
void tokenizer_close(struct tokenizer *t);          /* NULL is fine */
DEFINE_CLEANUP(struct tokenizer *, tokenizer_close)

/* Appends the ids of text[0..len), without BOS or EOS. `special`: control tokens
 * in the text count. Of tokens that are matched whole the leftmost wins, then the longest.
 * Bytes that are not UTF-8 are encoded byte by byte. 0; -E2BIG for a text over
 * TOKENIZER_MAX_TEXT; -ENOMEM; after a failure the list holds what it held before. */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, bool special,
                     struct token_list *out, struct err *err);

uint32_t tokenizer_size(const struct tokenizer *t);             /* ids are below */
/* The bytes of a token (a control token's: its spelling), may be a part of a
 * character; not NUL-ended; NULL for an id outside. Lives as long as t. */
const char *tokenizer_token(const struct tokenizer *t, int32_t id, size_t *ret_len);
/* Bytes of the longest token: n bytes of text become at least n / this many tokens, so a text that
 * can not fit a context can be refused before it is encoded. (Bytes without a token aside.) */
size_t tokenizer_longest(const struct tokenizer *t);
bool tokenizer_is_control(const struct tokenizer *t, int32_t id);
/* Whether it ends an answer: EOS, EOT, and tokens with the spelling of one. */
bool tokenizer_is_end(const struct tokenizer *t, int32_t id);
const int32_t *tokenizer_ends(const struct tokenizer *t, size_t *ret_n);    /* ascending */
/* The first id with exactly these bytes, or -1; looks at every token. */
int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t len);

int32_t tokenizer_bos(const struct tokenizer *t);               /* -1: there is none */
int32_t tokenizer_eos(const struct tokenizer *t);
bool tokenizer_adds_bos(const struct tokenizer *t);             /* in front of a plain text */
bool tokenizer_adds_eos(const struct tokenizer *t);

#endif
