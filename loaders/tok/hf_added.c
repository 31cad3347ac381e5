/* Added tokens get their ids by Hugging Face's rules, not by what the file says: a content that the model has keeps the model's id, any other gets
 * the next one behind both the model's tokens and those added before. A content that is added again changes the flags that count for its id,
 * and is found by both its forms.
 */
#include "loaders/tok/hf.h"

#include "base/buf.h"
#include "base/err.h"

#include <errno.h>
#include <string.h>

enum { SHOWN = 60 };

static bool same_text(struct tok_str a, struct tok_str b)
{
    return a.len == b.len && memcmp(a.text, b.text, a.len) == 0;
}

static bool same_token(const struct hf_token *a, const struct hf_token *b)
{
    return same_text(a->content, b->content) && a->single_word == b->single_word && a->lstrip == b->lstrip && a->rstrip == b->rstrip &&
           a->normalized == b->normalized && a->special == b->special;
}

void hf_added_fini(struct hf_added *a)
{
    free(a->tokens);
    free(a->ids);
    free(a->slots);
    *a = (struct hf_added){ .max_id = -1 };
}

/* Places of the last token with a content, by a hash of it; the table is never more than half full. */

static uint32_t *slot_of(const struct hf_added *a, struct tok_str content)
{
    uint64_t h = 0xCBF29CE484222325;
    size_t i;

    for (uint32_t k = 0; k < content.len; k++)
        h = (h ^ (unsigned char)content.text[k]) * 0x100000001B3;
    for (i = (h ^ h >> 32) & a->mask; a->slots[i] && !same_text(a->tokens[a->slots[i] - 1].content, content); i = (i + 1) & a->mask)
        ;
    return &a->slots[i];
}

const struct hf_token *hf_added_find(const struct hf_added *a, struct tok_str content)
{
    uint32_t slot = a->slots ? *slot_of(a, content) : 0;

    return slot ? &a->tokens[slot - 1] : NULL;
}

static int reserve(struct hf_added *a, size_t more)
{
    size_t cap = 16, slots;
    struct hf_token *tokens;
    int32_t *ids;

    while (cap < a->n + more)
        cap *= 2;
    if (cap <= a->cap)
        return 0;
    tokens = reallocarray(a->tokens, cap, sizeof *tokens);
    if (!tokens)
        return -ENOMEM;
    a->tokens = tokens;
    ids = reallocarray(a->ids, cap, sizeof *ids);
    if (!ids)
        return -ENOMEM;
    a->ids = ids;
    a->cap = cap;
    slots = 2 * cap;
    free(a->slots);
    a->slots = calloc(slots, sizeof *a->slots);
    if (!a->slots)
        return -ENOMEM;
    a->mask = slots - 1;
    for (size_t i = 0; i < a->n; i++)
        *slot_of(a, a->tokens[i].content) = (uint32_t)i + 1;
    return 0;
}

static bool was_added(const struct hf_added *a, const struct hf_token *token)
{
    const struct hf_token *last = hf_added_find(a, token->content);

    return last && same_token(last, token);
}

static int put_new(struct tokenizer *t, struct tok_str content, int64_t id, struct err *err)
{
    int e = id < TOKENIZER_MAX_VOCAB ? vocab_put(t->vocab, (int32_t)id, content.text, content.len, TOK_USER_DEFINED) : -E2BIG;
    int n = (int)(content.len < SHOWN ? content.len : SHOWN);

    if (e == -ENOMEM)
        return err_set(err, e, "no memory for added tokens");
    if (e == -EEXIST)
        return err_set(err, -ENOTSUP, "added token \"%.*s\" would get the id %lld of a token of the model", n, content.text, (long long)id);
    if (e < 0)
        return err_set(err, e, "added token \"%.*s\" would get the id %lld, which is too big", n, content.text, (long long)id);
    return 0;
}

int hf_added_add(struct hf_added *a, const struct hf_token *tokens, size_t n, size_t model_size, bool raw, struct tokenizer *t,
                 struct err *err)
{
    int64_t next = a->max_id >= (int64_t)model_size ? (int64_t)a->max_id + 1 : (int64_t)model_size;

    if (reserve(a, n) < 0)
        return err_set(err, -ENOMEM, "no memory for added tokens");
    for (size_t i = 0; i < n; i++) {
        const struct hf_token *token = &tokens[i], *before = hf_added_find(a, token->content);
        int32_t id;
        int e;

        if (!token->content.len || was_added(a, token))
            continue;
        id = before ? a->ids[before - a->tokens] : hf_vocab_find(t, raw, token->content);
        if (id < 0) {
            if ((e = put_new(t, token->content, next, err)) < 0)
                return e;
            id = (int32_t)next++;
        }
        a->repeats = a->repeats || before;
        a->max_id = id > a->max_id ? id : a->max_id;
        a->tokens[a->n] = *token;
        a->ids[a->n] = id;
        *slot_of(a, token->content) = (uint32_t)++a->n;
    }
    return 0;
}

void hf_added_kinds(const struct hf_added *a, struct tokenizer *t)
{
    for (size_t i = 0; i < a->n; i++)
        if (a->tokens[i].special)
            vocab_set_kind(t->vocab, a->ids[i], TOK_CONTROL);
}

/* What is looked for: the content, or what the normaliser makes of it. */
static int pattern_of(const struct tokenizer *t, const struct hf_token *token, struct buf *out, struct err *err)
{
    bool at_start = true;

    if (token->normalized && t->normalizer)
        return normalizer_run(t->normalizer, token->content.text, token->content.len, &at_start, out, err);
    buf_add(out, token->content.text, token->content.len);
    return out->failed ? err_set(err, -ENOMEM, "no memory for added tokens") : 0;
}

/* The texts of all patterns stand in one buffer while the lists are made. */
struct lists {
    struct buf texts;
    struct added_token *of[2];          /* [normalized] */
    size_t n[2];
};

static void lists_fini(struct lists *l)
{
    buf_fini(&l->texts);
    free(l->of[0]);
    free(l->of[1]);
}

static int list_token(const struct hf_added *a, size_t i, const struct tokenizer *t, struct lists *l, struct err *err)
{
    const struct hf_token *token = &a->tokens[i], *flags = hf_added_find(a, token->content);
    size_t from = l->texts.len;
    int which = token->normalized, e = pattern_of(t, token, &l->texts, err);

    if (e < 0)
        return e;
    l->of[which][l->n[which]++] = (struct added_token){
        .text = { (const char *)from, (uint32_t)(l->texts.len - from) }, .id = a->ids[i], .normalized = token->normalized,
        .special = vocab_kind(t->vocab, a->ids[i]) == TOK_CONTROL || tokenizer_is_end(t, a->ids[i]),
        .lstrip = flags->lstrip, .rstrip = flags->rstrip, .single_word = flags->single_word,
    };
    return 0;
}

static int make_added(struct lists *l, int which, struct added **ret)
{
    for (size_t i = 0; i < l->n[which]; i++)
        l->of[which][i].text.text = buf_str(&l->texts) + (size_t)l->of[which][i].text.text;
    return l->n[which] ? added_new(l->of[which], l->n[which], ret) : 0;
}

/* Whether an earlier one with the same content was special: only the first such one is looked for. */
static bool was_special(const struct hf_added *a, size_t place)
{
    for (size_t i = 0; a->repeats && i < place; i++)
        if (a->tokens[i].special && same_text(a->tokens[i].content, a->tokens[place].content))
            return true;
    return false;
}

int hf_added_build(const struct hf_added *a, struct tokenizer *t, struct err *err)
{
    __attribute__((cleanup(lists_fini))) struct lists l = { 0 };
    int e = 0;

    l.of[0] = calloc(a->n + 1, sizeof *l.of[0]);
    l.of[1] = calloc(a->n + 1, sizeof *l.of[1]);
    if (!l.of[0] || !l.of[1])
        e = err_set(err, -ENOMEM, "no memory for added tokens");
    for (int special = 1; special >= 0; special--)
        for (size_t i = 0; i < a->n && e == 0; i++)
            if (a->tokens[i].special == special && (special ? !was_special(a, i) : vocab_kind(t->vocab, a->ids[i]) != TOK_CONTROL))
                e = list_token(a, i, t, &l, err);
    if (e == 0 && (make_added(&l, 0, &t->added_raw) < 0 || make_added(&l, 1, &t->added_normalized) < 0))
        e = err_set(err, -ENOMEM, "no memory for added tokens");
    return e;
}
