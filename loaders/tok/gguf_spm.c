/* SentencePiece's models in GGUF metadata: "llama" is its BPE, "t5" its Unigram. The file's defaults are llama.cpp's.
 *
 * User-defined tokens are matched in the raw text first, as llama.cpp does, and the text behind each gets its own
 * space in front. Unknown text of a file without byte tokens is the unknown token.
 */
#include "base/err.h"
#include "loaders/tok/gguf_tok.h"
#include "loaders/tok/sp_model.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>

/* A piece of an empty text is never matched; it keeps its id. */
static int make_pieces(struct gguf_tok *g, struct sp_model *m)
{
    static const char key[] = "tokenizer.ggml.scores";
    struct gguf_array scores = { 0 };
    int r = gguf_array(g->file, key, &scores, g->err);

    if (r < 0)
        return r;
    if (r == 0 && ((!gguf_is_float(scores.type) && !gguf_is_integer(scores.type)) || scores.n != g->n))
        return gguf_tok_refuse(g, -EINVAL, "%s must hold %u numbers, one a token", key, g->n);
    m->pieces = calloc(g->n, sizeof *m->pieces);
    if (!m->pieces)
        return gguf_tok_no_memory(g);
    m->n_pieces = g->n;
    for (uint32_t i = 0; i < g->n; i++) {
        float score = r == 0 ? (float)gguf_array_f64(&scores, i) : 0;

        if (!isfinite(score))
            return gguf_tok_refuse(g, -EINVAL, "the score of token %u is no finite number", i);
        if (g->texts[i].len > UINT32_MAX)
            return gguf_tok_refuse(g, -E2BIG, "token %u has %zu bytes", i, g->texts[i].len);
        m->pieces[i] = (struct sp_piece){ { g->texts[i].text, (uint32_t)g->texts[i].len }, score, (enum token_kind)g->kinds[i] };
        m->byte_fallback = m->byte_fallback || g->kinds[i] == TOK_BYTE;
    }
    return 0;
}

/* A default that the vocabulary does not reach is none. */
static int32_t within(const struct gguf_tok *g, int32_t id)
{
    return id < 0 || (uint32_t)id < g->n ? id : -1;
}

static int make(struct gguf_tok *g, struct sp_model *m)
{
    int r;

    g->bos = within(g, g->bos);
    g->eos = within(g, g->eos);
    g->unk = within(g, g->unk);
    if ((r = gguf_bool(g->file, "tokenizer.ggml.add_space_prefix", &m->dummy_prefix, g->err)) < 0 || (r = make_pieces(g, m)) < 0 ||
        (r = sp_model_vocab(m, g->t, g->err)) < 0 || (r = gguf_tok_finish(g)) < 0)
        return r;
    m->unk = g->unk;
    return sp_model_chain(m, g->t, g->err);
}

int gguf_tok_spm(struct gguf_tok *g)
{
    struct sp_model m = { .name = gguf_path(g->file), .bpe = true, .dummy_prefix = true, .unk_surface = { "", 0 } };
    int r;

    g->bos = 1;
    g->eos = 2;
    g->unk = 0;
    g->adds_bos = true;
    r = make(g, &m);
    sp_model_fini(&m);
    return r;
}

static int read_charsmap(struct gguf_tok *g, struct sp_model *m)
{
    static const char key[] = "tokenizer.ggml.precompiled_charsmap";
    struct gguf_array a;
    int r = gguf_array(g->file, key, &a, g->err);

    if (r != 0)
        return r < 0 ? r : 0;
    if ((a.type != GGUF_U8 && a.type != GGUF_I8) || a.n > UINT32_MAX)
        return gguf_tok_refuse(g, -EINVAL, "%s must hold bytes", key);
    m->charsmap = (struct tok_str){ (const char *)a.data, (uint32_t)a.n };
    return 0;
}

int gguf_tok_t5(struct gguf_tok *g)
{
    struct sp_model m = { .name = gguf_path(g->file), .unk_surface = { "", 0 } };
    int r;

    g->eos = 1;
    g->unk = 2;
    g->adds_eos = true;
    if ((r = gguf_bool(g->file, "tokenizer.ggml.remove_extra_whitespaces", &m.remove_extra, g->err)) < 0 ||
        (r = read_charsmap(g, &m)) < 0)
        return r;
    r = make(g, &m);
    sp_model_fini(&m);
    return r;
}
