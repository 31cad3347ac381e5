/* tokenizer.h - text to token ids and back, as the model's files say.
 *
 * One interface over every kind: byte-level BPE, SentencePiece (BPE, Unigram), WordPiece, WordLevel. A
 * tokenizer comes from GGUF metadata, tokenizer.json, a SentencePiece model, a WordPiece vocabulary, a
 * tiktoken or a tekken file, and gives the ids of the program that the file is made for.
 *
 * Text is cut at tokens that are matched whole (added tokens), the rest is normalised, cut into
 * pieces, and each piece is merged or looked up. Control tokens (<|im_start|>) are matched only where the
 * caller vouches for the text; user-defined ones in any text. So a person who types the spelling
 * of a control token gets ordinary tokens.
 *
 * Threads  constant after open; any number may encode and decode at once
 * Source   GPT-2's encoder.py; Hugging Face tokenizers 0.22; sentencepiece 0.1.97; llama.cpp's llama-vocab.cpp for the metadata
 *          keys, the names of pre-tokenisers and which tokens end an answer
 */
#ifndef LOADERS_TOKENIZER_H
#define LOADERS_TOKENIZER_H

#include "base/cleanup.h"
#include "base/span.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct err;
struct gguf;
struct tokenizer;

enum {
    TOKENIZER_MAX_VOCAB = 1 << 21,
    TOKENIZER_MAX_TEXT = 1 << 26,   /* bytes in one call */
    TOKENIZER_MAX_FILE = 1 << 28,   /* bytes of a tokenizer file */
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
int token_list_add_all(struct token_list *l, const int32_t *ids, size_t n);

/* All opens: 0 and a tokenizer that the caller closes; nothing of the file is needed after. -ENOTSUP for a part
 * that is not supported, by name; -EINVAL for what is missing or does not fit together; -E2BIG; -ENOENT, -EACCES;
 * -ENOMEM; always with a sentence that names the file and the place. */
int tokenizer_open(const struct gguf *file, struct tokenizer **ret, struct err *err);
/* By content: tokenizer.json, tekken.json, a SentencePiece model, a *.tiktoken file, vocab.txt, a GGUF file; or
 * a folder of a checkpoint, where tokenizer.json is preferred, and tokenizer_config.json counts. */
int tokenizer_open_path(const char *path, struct tokenizer **ret, struct err *err);
/* tokenizer.json that is in memory; name is for messages. */
int tokenizer_open_json(const char *name, const char *json, size_t len, struct tokenizer **ret, struct err *err);
void tokenizer_close(struct tokenizer *t);          /* NULL is fine */
DEFINE_CLEANUP(struct tokenizer *, tokenizer_close)

/* Appends the ids of text[0..len), without BOS or EOS. `special`: control tokens
 * in the text count. Of tokens that are matched whole the leftmost wins, then the longest.
 * Bytes that are not UTF-8 are encoded byte by byte where the kind can, else as U+FFFD. 0; -E2BIG for a text over
 * TOKENIZER_MAX_TEXT; -ENOMEM; after a failure the list holds what it held before. */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, bool special,
                     struct token_list *out, struct err *err);
/* The ids of the spans joined: the same as of the whole text, but that a control token counts only where all
 * of its bytes are trusted. So a prompt has the ids that its text has, and none that a person forged, be it in one message
 * or over the seam of two. */
int tokenizer_encode_spans(const struct tokenizer *t, const struct text_span *spans, size_t n_spans,
                           struct token_list *out, struct err *err);
/* What the file wants in front of and behind a plain text (BOS, [CLS]; EOS, [SEP]). */
const int32_t *tokenizer_prefix(const struct tokenizer *t, size_t *ret_n);
const int32_t *tokenizer_suffix(const struct tokenizer *t, size_t *ret_n);

/* Appends the text of ids as the file's program decodes them; ids outside give nothing. skip_special: control tokens give
 * nothing. What is no UTF-8 is U+FFFD. 0 or -ENOMEM. A stream that grows is detok.h's. */
int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special, struct buf *out);

uint32_t tokenizer_size(const struct tokenizer *t);             /* ids are below */
/* The bytes of a token as they stand in a text (a control token's: its spelling; a word's mark for a space: the space), may be a part of a
 * character; not NUL-ended; NULL for an id outside. Lives as long as t. */
const char *tokenizer_token(const struct tokenizer *t, int32_t id, size_t *ret_len);
/* At least so many bytes of text a token on average can stand for: n bytes of text become at least n / this many tokens, so a text that
 * can not fit a context can be refused before it is encoded. 0: not known. */
size_t tokenizer_longest(const struct tokenizer *t);
bool tokenizer_is_control(const struct tokenizer *t, int32_t id);
/* Whether it ends an answer: EOS, EOT, and tokens with the spelling of one. */
bool tokenizer_is_end(const struct tokenizer *t, int32_t id);
const int32_t *tokenizer_ends(const struct tokenizer *t, size_t *ret_n);    /* ascending */
/* The first id with exactly these bytes, or -1. */
int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t len);
const char *tokenizer_kind(const struct tokenizer *t);          /* "byte-level BPE, llama-bpe", "Unigram", … for listings */

int32_t tokenizer_bos(const struct tokenizer *t);               /* -1: there is none */
int32_t tokenizer_eos(const struct tokenizer *t);
bool tokenizer_adds_bos(const struct tokenizer *t);             /* in front of a plain text */
bool tokenizer_adds_eos(const struct tokenizer *t);

#endif
