#include "loaders/tok/ranks.h"

#include "base/buf.h"
#include "base/err.h"
#include "loaders/tok/normalize.h"
#include "loaders/tok/regex.h"
#include "loaders/tok/scan.h"
#include "loaders/tok/split.h"
#include "loaders/tok/tok_config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

bool ranks_base64(const char *text, size_t len, struct buf *out)
{
    uint32_t bits = 0;
    size_t pad = 0;

    if (len == 0 || len % 4)
        return false;
    pad = (text[len - 1] == '=') + (text[len - 1] == '=' && text[len - 2] == '=');
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        int v = c >= 'A' && c <= 'Z' ? c - 'A' : c >= 'a' && c <= 'z' ? c - 'a' + 26 : c >= '0' && c <= '9' ? c - '0' + 52 :
                c == '+' ? 62 : c == '/' ? 63 : i >= len - pad ? 0 : -1;

        if (v < 0)
            return false;
        bits = bits << 6 | (uint32_t)v;
        if (i % 4 == 3) {
            char three[3] = { (char)(bits >> 16), (char)(bits >> 8), (char)bits };

            buf_add(out, three, i + 1 == len ? 3 - pad : 3);
            bits = 0;
        }
    }
    return true;
}

int ranks_put(struct ranks *r, int64_t rank, const char *bytes, size_t len, struct err *err)
{
    int64_t next = r->tokens ? vocab_size(r->tokens) : 0;
    int code = r->tokens ? 0 : vocab_new(0, 0, &r->tokens);

    if (code < 0)
        return err_set(err, code, "%s: no memory", r->name);
    if (rank != next)
        return err_set(err, -EINVAL, "%s: rank %lld stands where %lld should", r->name, (long long)rank, (long long)next);
    if (len == 0)
        return err_set(err, -EINVAL, "%s: the token of rank %lld is empty", r->name, (long long)rank);
    if (len > RANKS_MAX_TOKEN)
        return err_set(err, -E2BIG, "%s: the token of rank %lld has %zu bytes, at most %d are allowed", r->name, 
                       (long long)rank, len, RANKS_MAX_TOKEN);
    if (vocab_find(r->tokens, bytes, len) >= 0)
        return err_set(err, -EINVAL, "%s: ranks %d and %lld have the same token", r->name, vocab_find(r->tokens, bytes, len),
                       (long long)rank);
    code = vocab_put(r->tokens, (int32_t)rank, bytes, len, TOK_NORMAL);
    return code < 0 ? err_set(err, code, "%s: rank %lld is too much", r->name, (long long)rank) : 0;
}

int ranks_fill(const struct ranks *r, struct tokenizer *t, struct err *err)
{
    uint32_t n = r->tokens ? vocab_size(r->tokens) : 0;

    for (uint32_t rank = 0; rank < n; rank++) {
        struct tok_str s = vocab_text(r->tokens, (int32_t)rank);
        int code = vocab_put(t->vocab, r->first + (int32_t)rank, s.text, s.len, TOK_NORMAL);

        if (code < 0)
            return err_set(err, code, "%s: no room for the token of rank %u", r->name, rank);
    }
    return 0;
}

int ranks_special(const struct ranks *r, struct tokenizer *t, int64_t id, const char *text, size_t len, bool control,
                  struct err *err)
{
    enum token_kind kind = control ? TOK_CONTROL : TOK_USER_DEFINED;
    int code = id < 0 || id >= TOKENIZER_MAX_VOCAB ? -E2BIG : vocab_put(t->vocab, (int32_t)id, text, len, kind);

    if (code < 0)
        return err_set(err, code == -EEXIST ? -EINVAL : code, "%s: special token \"%.*s\": its id %lld is %s", r->name,
                       (int)len, text, (long long)id, code == -EEXIST ? "taken" : code == -ENOMEM ? "too much for the memory" : "too big");
    return 0;
}

struct merges { struct bpe_merge *all; size_t n, cap; };

static int by_halves(const void *a, const void *b)
{
    const struct bpe_merge *x = a, *y = b;

    if (x->left != y->left)
        return x->left < y->left ? -1 : 1;
    return x->right < y->right ? -1 : x->right > y->right;
}

static int add_merges(const struct ranks *r, int32_t rank, struct merges *m)
{
    struct tok_str s = vocab_text(r->tokens, rank);
    size_t before = m->n;

    if (m->cap - m->n < s.len) {
        size_t cap = m->cap * 2 + s.len + 1024;
        struct bpe_merge *all = cap > BPE_MAX_MERGES * 2u ? NULL : reallocarray(m->all, cap, sizeof *all);

        if (!all)
            return cap > BPE_MAX_MERGES * 2u ? -E2BIG : -ENOMEM;
        m->all = all;
        m->cap = cap;
    }
    for (uint32_t i = 1; i < s.len; i++) {
        int32_t left = vocab_find(r->tokens, s.text, i), right = left < 0 ? -1 : vocab_find(r->tokens, s.text + i, s.len - i);

        if (right >= 0)
            m->all[m->n++] = (struct bpe_merge){ left, right, rank };
    }
    qsort(m->all + before, m->n - before, sizeof *m->all, by_halves);
    return 0;
}

/* By rank; with ids in place of ranks. */
static int all_merges(const struct ranks *r, struct merges *m)
{
    uint32_t n = r->tokens ? vocab_size(r->tokens) : 0;
    int code = 0;

    for (uint32_t rank = 0; rank < n && code == 0; rank++)
        code = add_merges(r, (int32_t)rank, m);
    for (size_t i = 0; i < m->n; i++)
        m->all[i] = (struct bpe_merge){ m->all[i].left + r->first, m->all[i].right + r->first, m->all[i].result + r->first };
    return code;
}

static int make_splitter(const struct ranks *r, struct tokenizer *t, struct err *err)
{
    struct split_step step = { .op = SPLIT_PATTERN, .behavior = SPLIT_ISOLATED };
    struct err why = { 0 };
    int code;

    t->scans[0] = scan_of_regex(r->pattern.text, r->pattern.len);
    if (t->scans[0])
        return 0;
    code = pattern_regex(r->pattern.text, r->pattern.len, &step.pattern, &why);
    if (code == 0)
        code = splitter_new(&step, 1, &t->splitter);
    return code < 0 ? err_set(err, code, "%s: its pattern: %s", r->name, err_text(&why)) : 0;
}

static int make_model(const struct ranks *r, struct tokenizer *t)
{
    const struct normalize_step nfc = { .op = NORMALIZE_FORM, .form = UNICODE_NFC };
    struct bpe_spec spec = { .vocab = t->vocab, .byte_level = true, .ignore_merges = true, .unk = -1 };
    struct merges m = { 0 };
    int code = all_merges(r, &m);

    spec.merges = m.all;
    spec.n_merges = m.n;
    if (code == 0 && (code = tokenizer_add_end(t, t->eos)) == 0 && (code = tokenizer_find_ends(t, m.all, m.n)) == 0 &&
        (code = added_of_vocab(t->vocab, 0, NULL, &t->added_raw)) == 0)
        code = bpe_new(&spec, &t->model);
    if (code == 0 && r->nfc)
        code = normalizer_new(&nfc, 1, &t->normalizer);
    free(m.all);
    return code;
}

int ranks_chain(const struct ranks *r, struct tokenizer *t, struct err *err)
{
    int code = make_splitter(r, t, err);

    if (code < 0)
        return code;
    code = make_model(r, t);
    if (code < 0)
        return err_set(err, code, code == -ENOMEM ? "%s: no memory for its tokenizer" : "%s: too many ways to make its tokens",
                       r->name);
    for (uint32_t id = 0; id < vocab_size(t->vocab) && !r->nfc; id++) {
        size_t len = vocab_text(t->vocab, (int32_t)id).len;

        t->longest = len > t->longest ? len : t->longest;
    }
    return 0;
}

void ranks_fini(struct ranks *r)
{
    vocab_free(r->tokens);
    r->tokens = NULL;
}
