#include "loaders/tok/wordpiece.h"

#include "base/err.h"
#include "base/json.h"
#include "base/utf8.h"
#include "loaders/tok/decode.h"
#include "loaders/tok/normalize.h"
#include "loaders/tok/split.h"
#include "loaders/tok/tok_config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define STR(s) ((struct tok_str){ s, sizeof s - 1 })
enum { MAX_CHARS = 100, MAX_TOKEN = 1 << 16 };

int wordpiece_chain(struct tokenizer *t, const struct wordpiece_chain *c)
{
    const struct normalize_step bert = { .op = NORMALIZE_BERT, .clean = true, .chinese = !c->no_chinese, .accents = c->accents,
                                         .lower = c->lower };
    const struct split_step split[] = { { .op = SPLIT_SPACE, .behavior = SPLIT_REMOVED },
                                        { .op = SPLIT_PUNCTUATION, .behavior = SPLIT_ISOLATED } };
    const struct decode_step decode = { .op = DECODE_WORDPIECE, .text = STR("##"), .flag = true };
    const struct wordpiece_spec spec = { .vocab = t->vocab, .continuing_prefix = STR("##"), .unk = c->unk, .max_chars = MAX_CHARS };
    int r = normalizer_new(&bert, 1, &t->normalizer);

    if (r == 0)
        r = splitter_new(split, 2, &t->splitter);
    if (r == 0)
        r = wordpiece_new(&spec, &t->model);
    if (r == 0)
        r = decoder_new(&decode, 1, &t->decoder);
    return r < 0 ? r : decoder_bind(t->decoder, t->vocab);
}

static int read_lines(const char *name, const char *text, size_t len, struct tokenizer *t, struct err *err)
{
    int32_t id = 0;
    int r = vocab_new(0, 0, &t->vocab);

    for (size_t at = 0, end; at < len && r == 0; at = end + 1, id++) {
        const char *nl = memchr(text + at, '\n', len - at);
        size_t n;

        end = nl ? (size_t)(nl - text) : len;
        n = end - at;
        if (n && text[at + n - 1] == '\r')
            n--;
        if (n > MAX_TOKEN || !utf8_is_valid(text + at, n) || memchr(text + at, '\0', n))
            return err_set(err, n > MAX_TOKEN ? -E2BIG : -EINVAL, "%s:%d: %s", name, id + 1,
                           n > MAX_TOKEN ? "the token is too long" : "the token is no UTF-8 text");
        if (id == TOKENIZER_MAX_VOCAB)
            return err_set(err, -E2BIG, "%s: more than %d tokens", name, TOKENIZER_MAX_VOCAB);
        r = vocab_put(t->vocab, id, text + at, n, TOK_NORMAL);
    }
    if (r == 0 && id == 0)
        return err_set(err, -EINVAL, "%s: no tokens", name);
    return r < 0 ? err_set(err, r, "%s: no memory for its tokens", name) : 0;
}

/* The id of a token with a part to play. */
static int32_t role(struct tokenizer *t, const cJSON *config, const char *key, const char *otherwise, enum token_kind kind)
{
    const char *text = tok_config_token(config, key);
    int32_t id;

    text = text ? text : otherwise;
    id = vocab_find(t->vocab, text, strlen(text));
    if (id >= 0)
        vocab_set_kind(t->vocab, id, kind);
    return id;
}

static int make(const char *name, const cJSON *config, struct tokenizer *t, struct err *err)
{
    struct wordpiece_chain chain = { .lower = tok_config_bool(config, "do_lower_case", true),
                                     .no_chinese = !tok_config_bool(config, "tokenize_chinese_chars", true) };
    int32_t cls, sep;
    int r = tok_config_fill(config, t, err);

    if (r < 0)
        return r;
    chain.accents = tok_config_bool(config, "strip_accents", chain.lower);
    chain.unk = role(t, config, "unk_token", "[UNK]", TOK_UNKNOWN);
    if (chain.unk < 0)
        return err_set(err, -EINVAL, "%s: no unknown token", name);
    cls = role(t, config, "cls_token", "[CLS]", TOK_CONTROL);
    sep = role(t, config, "sep_token", "[SEP]", TOK_CONTROL);
    role(t, config, "pad_token", "[PAD]", TOK_CONTROL);
    role(t, config, "mask_token", "[MASK]", TOK_CONTROL);
    if ((r = tok_one_id(cls, &t->prefix, &t->n_prefix)) < 0 || (r = tok_one_id(sep, &t->suffix, &t->n_suffix)) < 0 ||
        (r = added_of_vocab(t->vocab, 0, config, &t->added_raw)) < 0 || (r = wordpiece_chain(t, &chain)) < 0)
        return err_set(err, r, "%s: no memory for its tokenizer", name);
    snprintf(t->kind, sizeof t->kind, "WordPiece%s", chain.lower ? ", lower-case" : "");
    return 0;
}

int vocab_txt_open(const char *name, const char *text, size_t len, const cJSON *config, struct tokenizer **ret, struct err *err)
{
    CLEANUP(tokenizer_close) struct tokenizer *t = NULL;
    int r = len > TOKENIZER_MAX_FILE ? -E2BIG : tokenizer_new(&t);

    if (r < 0)
        return err_set(err, r, r == -E2BIG ? "%s: the file is too big" : "%s: no memory for its tokenizer", name);
    if ((r = read_lines(name, text, len, t, err)) < 0 || (r = make(name, config, t, err)) < 0)
        return r;
    *ret = STEAL(t);
    return 0;
}

bool vocab_txt_looks_like(const char *text, size_t len)
{
    static const char *const known[] = { "[PAD]", "[UNK]", "[CLS]", "[SEP]", "<s>", "<unk>", "<pad>" };

    for (size_t at = 0, end, i = 0; at < len && i < 256; at = end + 1, i++) {
        const char *nl = memchr(text + at, '\n', len - at);
        size_t n;

        end = nl ? (size_t)(nl - text) : len;
        n = end - at - (end > at && text[end - 1] == '\r');
        for (size_t k = 0; k < sizeof known / sizeof known[0]; k++)
            if (n == strlen(known[k]) && memcmp(text + at, known[k], n) == 0)
                return true;
    }
    return false;
}
