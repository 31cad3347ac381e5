/* WordPiece in GGUF metadata ("bert"). The file's spelling is llama.cpp's own: a token that begins a word has U+2581 in front, one
 * that goes on has nothing, [CLS] and the like are as they were. Here they are what they were in vocab.txt. */
#include "base/buf.h"
#include "base/err.h"
#include "loaders/tok/gguf_tok.h"
#include "loaders/tok/tok_config.h"
#include "loaders/tok/wordpiece.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static int put(struct gguf_tok *g, uint32_t id, struct buf *text)
{
    static const char mark[] = "\xE2\x96\x81";
    struct gguf_str s = g->texts[id];

    buf_clear(text);
    if (s.len > 3 && memcmp(s.text, mark, 3) == 0) {
        s.text += 3;
        s.len -= 3;
    } else if (s.len && g->kinds[id] == TOK_NORMAL && !(s.text[0] == '[' && s.text[s.len - 1] == ']')) {
        buf_adds(text, "##");
    }
    buf_add(text, s.text, s.len);
    if (text->failed)
        return -ENOMEM;
    return vocab_put(g->t->vocab, (int32_t)id, buf_str(text), text->len, g->kinds[id]);
}

static int make_vocab(struct gguf_tok *g)
{
    BUF_LOCAL text = BUF_INIT;
    int r = vocab_new(g->n, 0, &g->t->vocab);

    for (uint32_t id = 0; id < g->n && r == 0; id++)
        r = put(g, id, &text);
    return r < 0 ? gguf_tok_no_memory(g) : 0;
}

int gguf_tok_bert(struct gguf_tok *g)
{
    struct wordpiece_chain chain = { .lower = true };
    int32_t sep = 102;
    int r;

    g->bos = g->n > 101 ? 101 : -1;             /* [CLS] */
    g->unk = g->n > 100 ? 100 : -1;
    g->adds_bos = true;
    if ((r = gguf_tok_id(g, "tokenizer.ggml.cls_token_id", &g->bos)) < 0 ||
        (r = gguf_tok_id(g, "tokenizer.ggml.seperator_token_id", &sep)) < 0 ||
        (r = gguf_bool(g->file, "tokenizer.ggml.normalizer.lowercase", &chain.lower, g->err)) < 0)
        return r;
    chain.accents = chain.lower;
    if ((r = gguf_bool(g->file, "tokenizer.ggml.normalizer.strip_accents", &chain.accents, g->err)) < 0 ||
        (r = make_vocab(g)) < 0 || (r = gguf_tok_finish(g)) < 0)
        return r;
    if (tok_one_id(sep >= 0 && (uint32_t)sep < g->n ? sep : -1, &g->t->suffix, &g->t->n_suffix) < 0)
        return gguf_tok_no_memory(g);
    chain.unk = g->unk;
    if (chain.unk >= 0)
        vocab_set_kind(g->t->vocab, chain.unk, TOK_UNKNOWN);        /* any text may become it */
    r = wordpiece_chain(g->t, &chain);
    return r < 0 ? gguf_tok_no_memory(g) : 0;
}
