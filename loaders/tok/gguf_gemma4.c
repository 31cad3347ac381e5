/* tokenizer.ggml.model "gemma4": BPE by merges over characters, with U+2581 for spaces and <0xHH> for what has no token. Text is cut at
 * line ends: a run of them that is a token is that token, whatever the merges say.
 *
 * User-defined runs of spaces stand in the file as spaces and are matched in the raw text, so the merges that would make them are of texts
 * that the vocabulary lacks: those are left out.
 *
 * Source   llama.cpp, src/llama-vocab.cpp; the expression: its pre-tokeniser "gemma4"
 */
#include "base/buf.h"
#include "base/err.h"
#include "loaders/tok/decode.h"
#include "loaders/tok/gguf_tok.h"
#include "loaders/tok/normalize.h"
#include "loaders/tok/regex.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define STR(s) ((struct tok_str){ s, sizeof s - 1 })
#define MARK "\xE2\x96\x81"

struct gemma4 {
    struct tok_model base;
    const struct vocab *vocab;
    struct tok_model *bpe;
};

static size_t line_ends(const char *text, size_t len)
{
    size_t n = 0;

    while (n < len && text[n] == '\n')
        n++;
    return n;
}

static int encode(const struct tok_model *model, const char *text, size_t len, struct tok_scratch *s, struct token_list *out)
{
    const struct gemma4 *m = (const struct gemma4 *)model;
    int r = 0;

    for (size_t at = 0, n; at < len && r == 0; at += n) {
        const char *nl = memchr(text + at, '\n', len - at);
        int32_t id = -1;

        n = line_ends(text + at, len - at);
        if (n)
            id = vocab_find(m->vocab, text + at, n);
        else
            n = nl ? (size_t)(nl - text) - at : len - at;
        if (id >= 0 && vocab_kind(m->vocab, id) == TOK_NORMAL)
            r = token_list_add(out, id);
        else
            r = m->bpe->ops->encode(m->bpe, text + at, n, s, out);
    }
    return r;
}

static void gemma4_free(struct tok_model *model)
{
    struct gemma4 *m = (struct gemma4 *)model;

    tok_model_free(m->bpe);
    free(m);
}

static const struct tok_model_ops gemma4_ops = { "BPE", encode, gemma4_free };

static int read_vocab(struct gguf_tok *g)
{
    int r = vocab_new(g->n, (size_t)g->n * 8, &g->t->vocab);

    for (uint32_t i = 0; i < g->n && r == 0; i++) {
        int32_t other = vocab_find(g->t->vocab, g->texts[i].text, g->texts[i].len);

        if (other >= 0)
            return gguf_tok_refuse(g, -EINVAL, "tokens %d and %u have the same text", other, i);
        r = vocab_put(g->t->vocab, (int32_t)i, g->texts[i].text, g->texts[i].len, g->kinds[i]);
    }
    return r < 0 ? gguf_tok_no_memory(g) : 0;
}

static int read_merge(struct gguf_tok *g, struct gguf_str s, size_t rank, struct buf *joined)
{
    const struct vocab *v = g->t->vocab;
    const char *gap = s.len > 1 ? memchr(s.text + 1, ' ', s.len - 1) : NULL;
    struct bpe_merge m;
    size_t left;

    if (!gap)
        return gguf_tok_refuse(g, -EINVAL, "merge %zu is not two texts with a space between", rank);
    left = (size_t)(gap - s.text);
    buf_clear(joined);
    buf_add(joined, s.text, left);
    buf_add(joined, gap + 1, s.len - left - 1);
    if (joined->failed)
        return gguf_tok_no_memory(g);
    m.left = vocab_find(v, joined->data, left);
    m.right = vocab_find(v, joined->data + left, joined->len - left);
    m.result = vocab_find(v, joined->data, joined->len);
    if (m.left >= 0 && m.right >= 0 && m.result >= 0)
        g->merges[g->n_merges++] = m;
    return 0;
}

static int read_merges(struct gguf_tok *g)
{
    BUF_LOCAL joined = BUF_INIT;
    struct gguf_array a;
    struct gguf_str s;
    int r = gguf_tok_merges(g, &a);

    if (r < 0)
        return r;
    for (size_t rank = 0; gguf_next_str(&a, &s); rank++)
        if ((r = read_merge(g, s, rank, &joined)) < 0)
            return r;
    return 0;
}

static int make_model(struct gguf_tok *g)
{
    struct bpe_spec spec = { .vocab = g->t->vocab, .merges = g->merges, .n_merges = g->n_merges, .byte_fallback = true, .unk = -1 };
    struct gemma4 *m = calloc(1, sizeof *m);
    int r;

    if (!m)
        return -ENOMEM;
    *m = (struct gemma4){ .base.ops = &gemma4_ops, .vocab = g->t->vocab };
    r = bpe_new(&spec, &m->bpe);
    g->t->model = &m->base;
    return r;
}

static int make_chain(struct gguf_tok *g)
{
    struct normalize_step normalize = { .op = NORMALIZE_REPLACE, .text = STR(MARK) };
    struct decode_step steps[] = { { .op = DECODE_REPLACE, .with = STR(" ") }, { .op = DECODE_BYTE_FALLBACK },
                                   { .op = DECODE_FUSE } };
    int r = pattern_string(" ", 1, &normalize.pattern);

    if (r == 0)
        r = normalizer_new(&normalize, 1, &g->t->normalizer);
    if (r == 0)
        r = pattern_string(MARK, 3, &steps[0].pattern);
    if (r == 0)
        r = decoder_new(steps, 3, &g->t->decoder);
    if (r == 0)
        r = decoder_bind(g->t->decoder, g->t->vocab);
    return r < 0 ? r : make_model(g);
}

int gguf_tok_gemma4(struct gguf_tok *g)
{
    int r;

    g->adds_bos = true;
    if ((r = read_vocab(g)) < 0 || (r = read_merges(g)) < 0 || (r = gguf_tok_finish(g)) < 0)
        return r;
    snprintf(g->t->kind, sizeof g->t->kind, "BPE, gemma4, byte fallback");
    r = make_chain(g);
    return r < 0 ? gguf_tok_refuse(g, r, r == -ENOMEM ? "no memory for its tokenizer" : "its tokens are too much text") : 0;
}
