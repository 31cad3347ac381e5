#include "loaders/tok/gguf_tok.h"

#include "base/err.h"
#include "loaders/tok/tok_config.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { NAME = 64 };

static const struct row {
    const char *model;
    int (*read)(struct gguf_tok *g);
} rows[] = {
    { "bert", gguf_tok_bert },
    { "gemma4", gguf_tok_gemma4 },
    { "gpt2", gguf_tok_bpe },
    { "llama", gguf_tok_spm },
    { "t5", gguf_tok_t5 },
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

int gguf_tok_refuse(struct gguf_tok *g, int code, const char *fmt, ...)
{
    char text[ERR_TEXT];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return err_set(g->err, code, "%s: %s", gguf_path(g->file), text);
}

int gguf_tok_no_memory(struct gguf_tok *g)
{
    return gguf_tok_refuse(g, -ENOMEM, "no memory for its tokenizer");
}

int gguf_tok_need(struct gguf_tok *g, int r, const char *key)
{
    return r == GGUF_ABSENT ? gguf_tok_refuse(g, -EINVAL, "key \"%s\" is missing", key) : r;
}

static const struct row *find_row(const char *model)
{
    for (size_t i = 0; i < N_ROWS; i++)
        if (strcmp(rows[i].model, model) == 0)
            return &rows[i];
    return NULL;
}

static int read_texts(struct gguf_tok *g)
{
    static const char key[] = "tokenizer.ggml.tokens";
    struct gguf_array a;
    int r = gguf_tok_need(g, gguf_array(g->file, key, &a, g->err), key);

    if (r < 0)
        return r;
    if (a.type != GGUF_STRING || a.n == 0)
        return gguf_tok_refuse(g, -EINVAL, "%s must hold strings", key);
    if (a.n > TOKENIZER_MAX_VOCAB)
        return gguf_tok_refuse(g, -E2BIG, "a vocabulary of %llu tokens, at most %d are allowed", (unsigned long long)a.n,
                               TOKENIZER_MAX_VOCAB);
    g->n = (uint32_t)a.n;
    g->texts = calloc(g->n, sizeof *g->texts);
    if (!g->texts)
        return gguf_tok_no_memory(g);
    for (uint32_t i = 0; i < g->n && gguf_next_str(&a, &g->texts[i]); i++)
        continue;
    return 0;
}

static int read_kinds(struct gguf_tok *g)
{
    static const char key[] = "tokenizer.ggml.token_type";
    struct gguf_array a;
    int r = gguf_array(g->file, key, &a, g->err);

    if (r < 0)
        return r;
    g->kinds = malloc(g->n);
    if (!g->kinds)
        return gguf_tok_no_memory(g);
    memset(g->kinds, TOK_NORMAL, g->n);
    if (r == GGUF_ABSENT)
        return 0;
    if (!gguf_is_integer(a.type) || a.n != g->n)
        return gguf_tok_refuse(g, -EINVAL, "%s must hold %u integers, one a token", key, g->n);
    for (uint32_t i = 0; i < g->n; i++) {
        int64_t kind = gguf_array_i64(&a, i);

        if (kind < TOK_NORMAL || kind > TOK_BYTE)
            return gguf_tok_refuse(g, -EINVAL, "token %u has the unknown type %lld", i, (long long)kind);
        g->kinds[i] = (uint8_t)kind;
        if (kind == TOK_BYTE && gguf_tok_byte(g->texts[i]) < 0)
            return gguf_tok_refuse(g, -EINVAL, "token %u is of type byte, but not spelled <0x00> to <0xFF>", i);
    }
    return 0;
}

int gguf_tok_byte(struct gguf_str s)
{
    static const char digits[] = "0123456789ABCDEF";
    const char *a, *b;

    if (s.len != 6 || memcmp(s.text, "<0x", 3) != 0 || s.text[5] != '>' || !s.text[3] || !s.text[4])
        return -1;
    a = strchr(digits, s.text[3]);
    b = strchr(digits, s.text[4]);
    return a && b ? (int)((a - digits) * 16 + (b - digits)) : -1;
}

int gguf_tok_id(struct gguf_tok *g, const char *key, int32_t *ret)
{
    uint32_t id;
    int r = gguf_u32(g->file, key, &id, g->err);

    if (r != 0)
        return r < 0 ? r : 0;
    if (id >= g->n)
        return gguf_tok_refuse(g, -EINVAL, "%s is %u, but there are %u tokens", key, id, g->n);
    *ret = (int32_t)id;
    return 0;
}

int gguf_tok_merges(struct gguf_tok *g, struct gguf_array *ret)
{
    static const char key[] = "tokenizer.ggml.merges";
    int r = gguf_tok_need(g, gguf_array(g->file, key, ret, g->err), key);

    if (r < 0)
        return r;
    if (ret->n && ret->type != GGUF_STRING)
        return gguf_tok_refuse(g, -EINVAL, "%s must hold strings", key);
    if (ret->n > BPE_MAX_MERGES)
        return gguf_tok_refuse(g, -E2BIG, "%llu merges, at most %d are allowed", (unsigned long long)ret->n, BPE_MAX_MERGES);
    g->merges = malloc((ret->n + 1) * sizeof *g->merges);
    return g->merges ? 0 : gguf_tok_no_memory(g);
}

static int read_ends(struct gguf_tok *g)
{
    static const char *const keys[] = {
        "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id", "tokenizer.ggml.fim_pad_token_id",
        "tokenizer.ggml.fim_rep_token_id", "tokenizer.ggml.fim_sep_token_id",
    };
    int r = tokenizer_add_end(g->t, g->eos);

    for (size_t i = 0; i < sizeof keys / sizeof keys[0] && r == 0; i++) {
        int32_t id = -1;

        r = gguf_tok_id(g, keys[i], &id);
        if (r == 0)
            r = tokenizer_add_end(g->t, id);
    }
    return r < 0 ? r : tokenizer_find_ends(g->t, g->merges, g->n_merges);
}

int gguf_tok_finish(struct gguf_tok *g)
{
    struct tokenizer *t = g->t;
    int r;

    if ((r = gguf_tok_id(g, "tokenizer.ggml.bos_token_id", &g->bos)) < 0 ||
        (r = gguf_tok_id(g, "tokenizer.ggml.eos_token_id", &g->eos)) < 0 ||
        (r = gguf_tok_id(g, "tokenizer.ggml.unknown_token_id", &g->unk)) < 0 ||
        (r = gguf_bool(g->file, "tokenizer.ggml.add_bos_token", &g->adds_bos, g->err)) < 0 ||
        (r = gguf_bool(g->file, "tokenizer.ggml.add_eos_token", &g->adds_eos, g->err)) < 0)
        return r;
    t->bos = g->bos;
    t->eos = g->eos;
    if ((r = read_ends(g)) < 0 || (r = added_of_vocab(t->vocab, 0, NULL, &t->added_raw)) < 0 ||
        (g->adds_bos && (r = tok_one_id(g->bos, &t->prefix, &t->n_prefix)) < 0) ||
        (g->adds_eos && (r = tok_one_id(g->eos, &t->suffix, &t->n_suffix)) < 0))
        return r == -ENOMEM ? gguf_tok_no_memory(g) : r;
    return 0;
}

static int load(struct gguf_tok *g)
{
    char model[NAME];
    const struct row *row;
    int r = gguf_tok_need(g, gguf_text(g->file, "tokenizer.ggml.model", model, sizeof model, g->err), "tokenizer.ggml.model");

    if (r < 0)
        return r;
    g->model = model;
    row = find_row(model);
    if (!row)
        return gguf_tok_refuse(g, -ENOTSUP, "tokenizer.ggml.model \"%s\" is not supported", model);
    if ((r = read_texts(g)) < 0 || (r = read_kinds(g)) < 0)
        return r;
    return row->read(g);
}

int tokenizer_open(const struct gguf *file, struct tokenizer **ret, struct err *err)
{
    CLEANUP(tokenizer_close) struct tokenizer *t = NULL;
    struct gguf_tok g = { .file = file, .err = err, .bos = -1, .eos = -1, .unk = -1 };
    int r = tokenizer_new(&t);

    if (r < 0)
        return gguf_tok_no_memory(&g);
    g.t = t;
    r = load(&g);
    free(g.texts);
    free(g.kinds);
    free(g.merges);
    if (r < 0)
        return err_set(err, r, "%s: its tokenizer can not be read", gguf_path(file));
    *ret = STEAL(t);
    return 0;
}
