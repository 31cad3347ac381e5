/* decode.h - what makes text of tokens: a chain of steps, as tokenizer.json lists them, or SentencePiece's own.
 *
 * Each step takes the list of the tokens' texts and gives another; at the end they are joined. In a stream there is
 * no list: decoder_bind() runs the chain over each token once, as if it stood in the middle of a text, and what depends on
 * the start, on the end or on the neighbours is left to a few rules that detok.c holds (see detok.h).
 *
 * Tokens of a byte-level vocabulary are raw bytes if they are of kind TOK_NORMAL; all others are spelled.
 *
 * Source   tokenizers 0.22, decoders/; sentencepiece 0.1.97, sentencepiece_processor.cc:Decode
 */
#ifndef LOADERS_TOK_DECODE_H
#define LOADERS_TOK_DECODE_H

#include "loaders/tok/tok.h"

struct detok;
struct pattern;

enum decode_op {
    DECODE_BYTE_LEVEL,          /* GPT-2's alphabet to bytes, and they to characters; flag: tokens of kind TOK_NORMAL are bytes already */
    DECODE_BYTE_FALLBACK,       /* runs of <0xHH>: their bytes; a U+FFFD a byte where the run is not UTF-8 */
    DECODE_WORDPIECE,           /* a space in front of tokens without the prefix `text`; flag: clean up */
    DECODE_METASPACE,           /* the character `text` to a space; flag: in the first token to nothing */
    DECODE_FUSE,                /* joins */
    DECODE_STRIP,               /* up to `start` and `stop` times the character `text` at the ends */
    DECODE_REPLACE,             /* what `pattern` finds becomes `with` */
    DECODE_BPE,                 /* `text` ("</w>") to a space, in the last token to nothing */
    DECODE_CTC,                 /* equal neighbours are one, `text` (padding) is nothing; flag: clean up, and `with` is a space */
    DECODE_JOIN,                /* joins with spaces: a tokenizer.json without a decoder */
    DECODE_SENTENCEPIECE,       /* alone: kind TOK_BYTE is a byte, TOK_UNKNOWN is `text`; start: a space at the start of the text goes;
                                 * flag: so it does of all tokens that come first */
};

struct decode_step {
    enum decode_op op;
    struct tok_str text, with;  /* copied */
    bool flag;
    uint32_t start, stop;
    struct pattern *pattern;    /* taken over, also on failure */
};
enum { DECODE_MAX_STEPS = 16 };

/* 0; -ENOMEM; -E2BIG: too many steps. */
int decoder_new(const struct decode_step *steps, size_t n, struct decoder **ret);
/* Once, when the vocabulary is complete and has its kinds. 0; -ENOMEM; -E2BIG: a pattern ran over its limits, or texts of gigabytes. */
int decoder_bind(struct decoder *d, const struct vocab *v);

/* For detok.c: what a token stands for. */
struct decode_form { const char *text; uint32_t len; bool is_byte, uncut; };       /* uncut: nothing of it goes at the start */
struct decode_form decoder_form(const struct decoder *d, int32_t id, bool first);
struct decode_rules {
    struct tok_str strip;       /* at the start of a text this goes, up to `n_strip` times */
    uint32_t n_strip;
    bool strip_tokens;          /* once a token at most, and not of bytes: SentencePiece; else the text counts */
    bool strip_once;            /* the first of these is the only one */
    bool by_run;                /* bytes of a character stand in tokens that are bytes; any other ends it, and each bad byte is a U+FFFD */
    bool hold_space;            /* a space at a token's end comes with the next token */
    bool merge_equal;           /* equal neighbours are one */
    bool shows_unknown;         /* kind TOK_UNKNOWN is text; else it goes where control tokens go */
};
const struct decode_rules *decoder_rules(const struct decoder *d);       /* NULL is fine */
/* Whether skip_special drops it. */
bool decoder_skips(const struct decoder *d, const struct vocab *v, int32_t id);

#endif
