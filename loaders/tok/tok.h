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

enum token_kind { TOK_NONE, TOK_NORMAL, TOK_UNKNOWN, TOK_CONTROL, TOK_USER_DEFINED, TOK_UNUSED, TOK_BYTE };     /* GGUF's numbers, SentencePiece's too */

/* A string of the vocabulary: a view. */
struct tok_str { const char *text; uint32_t len; };

/* vocab.c: id to text, text to id. Texts may repeat: the one put first is found. An empty text is kept, but not
 * found. */
struct vocab;
int vocab_new(uint32_t n_hint, size_t bytes_hint, struct vocab **ret);      /* -ENOMEM; the hints save growing */
void vocab_free(struct vocab *v);
DEFINE_CLEANUP(struct vocab *, vocab_free)
/* -ENOMEM; -E2BIG: an id that is negative or too big; -EEXIST: the id is taken. Texts that were handed out may move. */
int vocab_put(struct vocab *v, int32_t id, const char *text, size_t len, enum token_kind kind);
int32_t vocab_find(const struct vocab *v, const char *text, size_t len);    /* -1 */
enum { VOCAB_FIND_MANY = 64 };
/* The same for n, at most so many, texts; the waits for memory overlap, so a load takes a fraction of the time. */
void vocab_find_many(const struct vocab *v, const struct tok_str *texts, size_t n, int32_t *ret_ids);
struct tok_str vocab_text(const struct vocab *v, int32_t id);               /* { NULL, 0 }: no such id */
enum token_kind vocab_kind(const struct vocab *v, int32_t id);              /* TOK_NONE: no such id */
void vocab_set_kind(struct vocab *v, int32_t id, enum token_kind kind);
uint32_t vocab_size(const struct vocab *v);                                 /* greatest id + 1 */
/* A trie of the texts of these kinds (bits 1 << kind), to be freed by the caller. 0; -E2BIG; -ENOMEM. */
struct trie;
int vocab_trie(const struct vocab *v, uint32_t kinds, struct trie **ret);

/* A model: one piece to ids. Scratch is on the stack or in `scratch`, never in the model. */
struct tok_model;
struct tok_scratch;                     /* scratch.h */
struct tok_model_ops {
    const char *name;                   /* "BPE", "Unigram", "WordPiece", "WordLevel" */
    /* Appends the ids of one piece that is not empty. 0 or -ENOMEM. Time about linear in len, whatever the text. */
    int (*encode)(const struct tok_model *m, const char *piece, size_t len, struct tok_scratch *s,
                  struct token_list *out);
    void (*free)(struct tok_model *m);
};
struct tok_model { const struct tok_model_ops *ops; };
static inline void tok_model_free(struct tok_model *m) { if (m) m->ops->free(m); }
DEFINE_CLEANUP(struct tok_model *, tok_model_free)

/* bpe.c. Pairs by rank, lowest first, leftmost of equals. Text is only ever made into tokens of the kinds NORMAL,
 * BYTE and UNUSED (and `unk`, for what has no token), whatever the merges say. */
struct bpe_merge { int32_t left, right, result; };      /* its rank is its place */
struct bpe_spec {
    const struct vocab *vocab;          /* kept by reference: must outlive the model */
    const struct bpe_merge *merges; size_t n_merges;
    bool last_counts;                   /* of equal pairs the last one counts, as in Hugging Face's; else the first, as in llama.cpp */
    bool byte_level;                    /* pieces and tokens are raw bytes; else characters */
    bool ignore_merges;                 /* a piece that is a token is that token */
    bool byte_fallback;                 /* a character without a token becomes <0xHH> tokens, if all are there */
    bool fuse_unk;                      /* adjacent unknowns are one */
    int32_t unk;                        /* -1: what has no token is dropped */
    struct tok_str continuing_prefix, end_suffix;   /* "##", "</w>"; empty: none; copied */
};
enum { BPE_MAX_MERGES = 1 << 22 };
int bpe_new(const struct bpe_spec *spec, struct tok_model **ret);           /* -ENOMEM, -EINVAL, -E2BIG */
/* Merges from the texts of their halves; `skip` bytes of the right ones (a continuing prefix) are not in the results. `last` is the
 * result of the merge before them, or -1: files list merges in the order of their tokens, so that it or the next id is often the
 * next result. 0; -EINVAL: one of the three texts of merge *ret_bad is no token. */
int bpe_merges_find(const struct vocab *v, const struct tok_str *lefts, const struct tok_str *rights, size_t n, size_t skip, int32_t last,
                    struct bpe_merge *ret, size_t *ret_bad);

/* spm.c: merges by score, as SentencePiece's BPE: any two neighbours whose join is a token. Kind TOK_USER_DEFINED is matched
 * first, longest, and stays whole; what became a TOK_UNUSED is cut again; others are never made of text. */
struct spm_bpe_spec {
    const struct vocab *vocab;          /* kept by reference */
    const float *scores;                /* by id; copied */
    bool byte_fallback;
    int32_t unk;
};
int spm_bpe_new(const struct spm_bpe_spec *spec, struct tok_model **ret);        /* this and the next two: -ENOMEM; -E2BIG: too much text */

/* unigram.c: the likeliest segmentation. */
struct unigram_spec {
    const struct vocab *vocab;
    const double *scores;               /* by id */
    bool single;                        /* as sentencepiece: sums in float, TOK_USER_DEFINED first, others than TOK_NORMAL never;
                                         * else as Hugging Face: in double, all but TOK_CONTROL and TOK_USER_DEFINED */
    bool byte_fallback, fuse_unk;
    int32_t unk;
};
int unigram_new(const struct unigram_spec *spec, struct tok_model **ret);
/* The ids of <0x00> to <0xFF>; -1: there is none. */
void tok_byte_ids(const struct vocab *v, int32_t ret[256]);

/* wordpiece.c, wordlevel in it: greedy longest match. */
struct wordpiece_spec { const struct vocab *vocab; struct tok_str continuing_prefix; int32_t unk; uint32_t max_chars; };
int wordpiece_new(const struct wordpiece_spec *spec, struct tok_model **ret);
int wordlevel_new(const struct vocab *vocab, int32_t unk, struct tok_model **ret);

/* added.c: tokens that are matched whole: leftmost, then longest. */
struct added;
struct added_token { struct tok_str text; int32_t id; bool special, normalized, lstrip, rstrip, single_word; };
/* Copies the texts; empty ones are left out, of equal ones the first counts. -ENOMEM */
int added_new(const struct added_token *tokens, size_t n, struct added **ret);
void added_free(struct added *a);
DEFINE_CLEANUP(struct added *, added_free)
/* Where a search stands: `at`, where it goes on, and `done`, before which everything is given away. Begins as { 0 }. */
struct added_cursor { size_t at, done; };
/* [start, end) has the white space that lstrip and rstrip swallow, not before `done`. Ids of matches are in order; the end may lie
 * behind the start of the next match (rstrip swallows what is itself a token: both count, as in Hugging Face's). */
struct added_match { size_t start, end; int32_t id; };
/* The next match: false: none. `special`: special ones may match, and where `trusted` (a byte a byte of text) is not NULL, only
 * those whose bytes are all non-zero there. What may not match is not there: a shorter one at its place may. */
bool added_next(const struct added *a, const char *text, size_t len, struct added_cursor *c, bool special, const uint8_t *trusted,
                struct added_match *ret);

/* Text to text. */
struct normalizer;
struct normalizer_ops {
    /* Appends. *at_start: the text begins at offset 0 of the whole; and so does what was appended, on return. 0, -ENOMEM; -E2BIG
     * with a sentence, where an expression took more than its limits. */
    int (*run)(const struct normalizer *n, const char *text, size_t len, bool *at_start, struct buf *out, struct err *err);
    void (*free)(struct normalizer *n);
};
struct normalizer { const struct normalizer_ops *ops; };
static inline int normalizer_run(const struct normalizer *n, const char *text, size_t len, bool *at_start, struct buf *out,
                                 struct err *err)
{
    return n->ops->run(n, text, len, at_start, out, err);
}
static inline void normalizer_free(struct normalizer *n) { if (n) n->ops->free(n); }
DEFINE_CLEANUP(struct normalizer *, normalizer_free)

/* Text to pieces. */
typedef int (*piece_fn)(void *user, const char *piece, size_t len);
struct splitter;
struct splitter_ops {
    /* fn gets each piece in order, none of them empty; what it does not return 0 for is handed up. Else as a normaliser's. */
    int (*run)(const struct splitter *s, const char *text, size_t len, bool at_start, struct tok_scratch *scratch, piece_fn fn, void *user,
               struct err *err);
    void (*free)(struct splitter *s);
};
struct splitter { const struct splitter_ops *ops; };
static inline int splitter_run(const struct splitter *s, const char *text, size_t len, bool at_start, struct tok_scratch *scratch,
                               piece_fn fn, void *user, struct err *err)
{
    return s->ops->run(s, text, len, at_start, scratch, fn, user, err);
}
static inline void splitter_free(struct splitter *s) { if (s) s->ops->free(s); }
DEFINE_CLEANUP(struct splitter *, splitter_free)

/* decode.c: texts of tokens to text. */
struct decoder;
struct decoder_ops {
    /* What tokenizer_token() gives. */
    const char *(*token)(const struct decoder *d, const struct vocab *v, int32_t id, size_t *ret_len);
    void (*free)(struct decoder *d);
};
struct decoder { const struct decoder_ops *ops; };
static inline void decoder_free(struct decoder *d) { if (d) d->ops->free(d); }
DEFINE_CLEANUP(struct decoder *, decoder_free)

/* Made by tokenizer_new(), released by tokenizer_close(), which frees everything in it that is a pointer. */
enum { SCAN_MAX_STAGES = 8 };
struct scan;
struct tokenizer {
    struct vocab *vocab;
    struct tok_model *model;
    struct added *added_raw, *added_normalized;
    struct normalizer *normalizer;
    const struct scan *scans[SCAN_MAX_STAGES];      /* scan.h: each cuts the pieces of the one before; ends at a NULL; */
    struct splitter *splitter;                      /* or this, when not NULL */
    struct decoder *decoder;                        /* NULL: the bytes of the tokens, joined */
    int32_t *prefix, *suffix; size_t n_prefix, n_suffix;
    int32_t bos, eos;                               /* -1: none */
    int32_t *ends; size_t n_ends;                   /* ascending */
    size_t longest;
    char kind[64];
};
int tokenizer_new(struct tokenizer **ret);          /* empty, bos and eos -1; -ENOMEM */

/* ends.c. Adds id to t->ends; -1 is nothing. 0 or -ENOMEM. */
int tokenizer_add_end(struct tokenizer *t, int32_t id);
/* Adds what ends an answer by its spelling, and makes it TOK_CONTROL. A normal token that one of the merges makes is text, not a
 * mark. To be called before the parts that look at kinds are made. 0 or -ENOMEM. */
int tokenizer_find_ends(struct tokenizer *t, const struct bpe_merge *merges, size_t n_merges);

#endif
