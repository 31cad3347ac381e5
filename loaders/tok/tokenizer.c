/* The parts' owner, and what is known without running them. */
#include "loaders/tok/tok.h"

#include <errno.h>
#include <string.h>

void token_list_fini(struct token_list *l)
{
    free(l->ids);
    *l = (struct token_list){ 0 };
}

int token_list_add_all(struct token_list *l, const int32_t *ids, size_t n)
{
    if (n > l->cap - l->n) {
        size_t cap = l->cap * 2 > l->n + n ? l->cap * 2 : l->n + n < 64 ? 64 : l->n + n;
        int32_t *more = reallocarray(l->ids, cap, sizeof *more);

        if (!more)
            return -ENOMEM;
        l->ids = more;
        l->cap = cap;
    }
    for (size_t i = 0; i < n; i++)              /* mostly one: no call */
        l->ids[l->n + i] = ids[i];
    l->n += n;
    return 0;
}

int token_list_add(struct token_list *l, int32_t id)
{
    return token_list_add_all(l, &id, 1);
}

int tokenizer_new(struct tokenizer **ret)
{
    struct tokenizer *t = calloc(1, sizeof *t);

    if (!t)
        return -ENOMEM;
    t->bos = t->eos = -1;
    *ret = t;
    return 0;
}

void tokenizer_close(struct tokenizer *t)
{
    if (!t)
        return;
    tok_model_free(t->model);
    added_free(t->added_raw);
    added_free(t->added_normalized);
    normalizer_free(t->normalizer);
    splitter_free(t->splitter);
    decoder_free(t->decoder);
    vocab_free(t->vocab);
    free(t->prefix);
    free(t->suffix);
    free(t->ends);
    free(t);
}

uint32_t tokenizer_size(const struct tokenizer *t)
{
    return vocab_size(t->vocab);
}

const char *tokenizer_token(const struct tokenizer *t, int32_t id, size_t *ret_len)
{
    struct tok_str s;

    if (t->decoder)
        return t->decoder->ops->token(t->decoder, t->vocab, id, ret_len);
    s = vocab_text(t->vocab, id);
    *ret_len = s.len;
    return s.text;
}

size_t tokenizer_longest(const struct tokenizer *t)
{
    return t->longest;
}

bool tokenizer_is_control(const struct tokenizer *t, int32_t id)
{
    return vocab_kind(t->vocab, id) == TOK_CONTROL;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t len)
{
    if (!t->decoder)
        return vocab_find(t->vocab, text, len);
    for (uint32_t i = 0; len && i < vocab_size(t->vocab); i++) {
        size_t n;
        const char *s = tokenizer_token(t, (int32_t)i, &n);

        if (s && n == len && memcmp(s, text, len) == 0)
            return (int32_t)i;
    }
    return -1;
}

const int32_t *tokenizer_prefix(const struct tokenizer *t, size_t *ret_n)
{
    *ret_n = t->n_prefix;
    return t->prefix;
}

const int32_t *tokenizer_suffix(const struct tokenizer *t, size_t *ret_n)
{
    *ret_n = t->n_suffix;
    return t->suffix;
}

const char *tokenizer_kind(const struct tokenizer *t)
{
    return t->kind;
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->bos;
}

int32_t tokenizer_eos(const struct tokenizer *t)
{
    return t->eos;
}

bool tokenizer_adds_bos(const struct tokenizer *t)
{
    return t->bos >= 0 && t->n_prefix && t->prefix[0] == t->bos;
}

bool tokenizer_adds_eos(const struct tokenizer *t)
{
    return t->eos >= 0 && t->n_suffix && t->suffix[t->n_suffix - 1] == t->eos;
}
