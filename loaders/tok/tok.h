/* tok.h - what a tokenizer is made of; only for files of this folder.
 *
 * A chain: added tokens cut the raw text; what lies between is normalised, cut again at the added
 * tokens that want that, split into pieces, and a model turns each piece into ids. On the way back
 * ids become texts, and a decoder joins them.
 *
 * Whoever reads a kind of file (gguf_bpe.c, hf_json.c, spm.c, tiktoken.c …) fills a struct tokenizer;
 * encode.c and decode.c run it and know no file. A NULL part does nothing.
 *
 * Byte-level vocabularies are held as raw bytes: the printable alphabet of GPT-2 is undone at
 * load, so that a piece of text is looked up as it is. (A chain whose splitters look at the alphabet
 * itself, such as Digits behind ByteLevel, keeps it: see split.h.)
 */
#ifndef LOADERS_TOK_TOK_H
#define LOADERS_TOK_TOK_H

#include "loaders/tokenizer.h"

enum token_kind { TOK_NORMAL = 1, TOK_UNKNOWN, TOK_CONTROL, TOK_USER_DEFINED, TOK_UNUSED, TOK_BYTE };     /* GGUF's numbers, SentencePiece's too */

/* A string of the vocabulary: a view. */
struct tok_str { const char *text; uint32_t len; };

/* vocab.c: id to text, text to id. Texts are unique but for ids that a file repeats (the first is found). Freed with
 * its texts. */
struct vocab;
int vocab_new(uint32_t n_hint, size_t bytes_hint, struct vocab **ret);      /* -ENOMEM */
void vocab_free(struct vocab *v);
int vocab_put(struct vocab *v, int32_t id, const char *text, size_t len, enum token_kind kind);    /* -ENOMEM, -E2BIG, -EEXIST: id taken */
int32_t vocab_find(const struct vocab *v, const char *text, size_t len);    /* -1 */
struct tok_str vocab_text(const struct vocab *v, int32_t id);               /* { NULL, 0 }: no such id */
enum token_kind vocab_kind(const struct vocab *v, int32_t id);
void vocab_set_kind(struct vocab *v, int32_t id, enum token_kind kind);
uint32_t vocab_size(const struct vocab *v);                                 /* greatest id + 1 */

/* A model: one piece to ids. Scratch is on the stack or in `scratch`, never in the model. */
struct tok_model;
struct tok_scratch;                     /* grows, freed at the end of a call; scratch.c */
struct tok_model_ops {
    const char *name;                   /* "BPE", "Unigram", "WordPiece", "WordLevel" */
    /* Appends the ids of one piece that is not empty. 0 or -ENOMEM. Time about linear in len, whatever the text. */
    int (*encode)(const struct tok_model *m, const char *piece, size_t len, struct tok_scratch *s,
                  struct token_list *out);
    void (*free)(struct tok_model *m);
};
struct tok_model { const struct tok_model_ops *ops; };

/* bpe.c. Pairs by rank, lowest first, leftmost of equals. */
struct bpe_merge { int32_t left, right, result; uint32_t rank; };
struct bpe_spec {
    const struct vocab *vocab;          /* kept by reference: must outlive the model */
    const struct bpe_merge *merges; size_t n_merges;
    bool byte_level;                    /* pieces and tokens are raw bytes; else characters */
    bool ignore_merges;                 /* a piece that is a token is that token */
    bool byte_fallback;                 /* a character without a token becomes <0xHH> tokens, if all are there */
    bool fuse_unk;                      /* adjacent unknowns are one */
    int32_t unk;                        /* -1: what has no token is dropped */
    struct tok_str continuing_prefix, end_suffix;   /* "##", "</w>"; empty: none */
};
int bpe_new(const struct bpe_spec *spec, struct tok_model **ret);           /* -ENOMEM, -EINVAL */

/* spm.c: merges by score, as SentencePiece's BPE: any two neighbours whose join is a piece. */
struct spm_bpe_spec { const struct vocab *vocab; const float *scores; int32_t unk; bool byte_fallback; };
int spm_bpe_new(const struct spm_bpe_spec *spec, struct tok_model **ret);

/* unigram.c: the likeliest segmentation. */
struct unigram_spec {
    const struct vocab *vocab;
    const double *scores;               /* by id */
    bool single;                        /* sums in float, as sentencepiece; else double, as Hugging Face */
    bool byte_fallback, fuse_unk;
    int32_t unk;
};
int unigram_new(const struct unigram_spec *spec, struct tok_model **ret);

/* wordpiece.c, wordlevel in it: greedy longest match. */
struct wordpiece_spec { const struct vocab *vocab; struct tok_str continuing_prefix; int32_t unk; uint32_t max_chars; };
int wordpiece_new(const struct wordpiece_spec *spec, struct tok_model **ret);
int wordlevel_new(const struct vocab *vocab, int32_t unk, struct tok_model **ret);

/* added.c: tokens that are matched whole: leftmost, then longest. */
struct added;
struct added_token { struct tok_str text; int32_t id; bool special, normalized, lstrip, rstrip, single_word; };
int added_new(const struct added_token *tokens, size_t n, struct added **ret);
void added_free(struct added *a);
/* The next match at or after `from`: false: none. [start, end) has what lstrip and rstrip swallow, not before `from`.
 * trusted: per byte whether special ones may match there, NULL: see `special`. */
struct added_match { size_t start, end; int32_t id; };
bool added_next(const struct added *a, const char *text, size_t len, size_t from, bool special, const uint8_t *trusted,
                struct added_match *ret);

/* normalize.c: text to text. */
struct normalizer;
void normalizer_free(struct normalizer *n);
/* Appends; at_start: the text begins at offset 0 of the whole. 0 or -ENOMEM. */
int normalizer_run(const struct normalizer *n, const char *text, size_t len, bool at_start, struct buf *out);

/* split.c: text to pieces. fn gets each in order; what it does not return 0 for is handed up. */
struct splitter;
typedef int (*piece_fn)(void *user, const char *piece, size_t len);
void splitter_free(struct splitter *s);
int splitter_run(const struct splitter *s, const char *text, size_t len, bool at_start, struct tok_scratch *scratch, piece_fn fn, void *user);

/* decode.c: texts of tokens to text. */
struct decoder;
void decoder_free(struct decoder *d);

struct tokenizer {
    struct vocab *vocab;
    struct tok_model *model;
    struct added *added_raw, *added_normalized;
    struct normalizer *normalizer;
    struct splitter *splitter;
    struct decoder *decoder;
    int32_t *prefix, *suffix; size_t n_prefix, n_suffix;
    int32_t bos, eos;
    int32_t *ends; size_t n_ends;
    size_t longest;
    char kind[64];
};

#endif
