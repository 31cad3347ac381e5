/* tokenizer.ggml.model "gpt2": byte-level BPE. Normal tokens are spelled in GPT-2's printable alphabet; here they become the bytes
 * that they stand for, and come first in the vocabulary, so that a user-defined token with the same bytes does not
 * hide one that merges need.
 */
#include "loaders/tok/gguf_tok.h"

#include "loaders/tok/alphabet.h"
#include "loaders/tok/scan.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { NAME = 64 };

/* Spelling to bytes in out, which has room for s.len. */
static struct tok_str decode_alphabet(struct gguf_str s, char *out)
{
    return (struct tok_str){ out, (uint32_t)alphabet_decode(s.text, s.len, out) };
}

static bool same(struct gguf_str a, struct gguf_str b)
{
    return a.len == b.len && memcmp(a.text, b.text, a.len) == 0;
}

/* A text twice would make one of the two out of reach; llama.cpp refuses it too. */
static int put(struct gguf_tok *g, uint32_t i, const char *text, size_t len)
{
    int32_t other = vocab_find(g->t->vocab, text, len);
    int r;

    if (other >= 0 && same(g->texts[other], g->texts[i]))
        return gguf_tok_refuse(g, -EINVAL, "tokens %d and %u have the same text", other, i);
    r = vocab_put(g->t->vocab, (int32_t)i, text, len, g->kinds[i]);
    if (r < 0)
        return r == -ENOMEM ? gguf_tok_no_memory(g) : gguf_tok_refuse(g, r, "token %u does not fit", i);
    g->t->longest = len > g->t->longest ? len : g->t->longest;
    return 0;
}

static size_t longest_text(const struct gguf_tok *g)
{
    size_t longest = 0;

    for (uint32_t i = 0; i < g->n; i++)
        longest = g->texts[i].len > longest ? g->texts[i].len : longest;
    return longest;
}

static int read_vocab(struct gguf_tok *g, char *room)
{
    int r = 0;

    for (uint32_t i = 0; i < g->n && r == 0; i++) {
        struct tok_str s;

        if (g->kinds[i] != TOK_NORMAL)
            continue;
        s = decode_alphabet(g->texts[i], room);
        r = put(g, i, s.text, s.len);
    }
    for (uint32_t i = 0; i < g->n && r == 0; i++) {
        if (g->kinds[i] == TOK_BYTE) {
            room[0] = (char)gguf_tok_byte(g->texts[i]);
            r = put(g, i, room, 1);
        } else if (g->kinds[i] != TOK_NORMAL) {
            r = put(g, i, g->texts[i].text, g->texts[i].len);
        }
    }
    return r;
}

/* Some merges of the file, cut in two and decoded. */
struct halves {
    struct tok_str lefts[VOCAB_FIND_MANY], rights[VOCAB_FIND_MANY];
    size_t n;
    char *room;                         /* grows */
    size_t cap;
};

static int cut_merge(struct gguf_tok *g, struct halves *h, struct gguf_str m, size_t used)
{
    const char *gap = m.len > 1 ? memchr(m.text + 1, ' ', m.len - 1) : NULL;
    size_t at;

    if (!gap)
        return gguf_tok_refuse(g, -EINVAL, "merge %zu is not two texts with a space between", g->n_merges + h->n);
    at = (size_t)(gap - m.text);
    h->lefts[h->n] = decode_alphabet((struct gguf_str){ m.text, at }, h->room + used);
    h->rights[h->n] = decode_alphabet((struct gguf_str){ gap + 1, m.len - at - 1 }, h->room + used + at);
    h->n++;
    return 0;
}

/* The next of them: GGUF_ABSENT when there are no more. */
static int next_merges(struct gguf_tok *g, struct halves *h, struct gguf_array *a)
{
    struct gguf_array walk = *a;
    struct gguf_str m;
    size_t bytes = 0, n = 0;
    int r = 0;

    while (n < VOCAB_FIND_MANY && gguf_next_str(&walk, &m)) {
        bytes += m.len;
        n++;
    }
    if (bytes > h->cap) {
        char *room = realloc(h->room, 2 * bytes);

        if (!room)
            return gguf_tok_no_memory(g);
        h->room = room;
        h->cap = 2 * bytes;
    }
    bytes = h->n = 0;
    while (r == 0 && h->n < n && gguf_next_str(a, &m)) {
        r = cut_merge(g, h, m, bytes);
        bytes += m.len;
    }
    return r == 0 && n == 0 ? GGUF_ABSENT : r;
}

static int find_merges(struct gguf_tok *g, struct gguf_array *a)
{
    struct halves h = { .n = 0 };
    size_t bad;
    int r;

    while ((r = next_merges(g, &h, a)) == 0) {
        struct bpe_merge *at = g->merges + g->n_merges;

        r = bpe_merges_find(g->t->vocab, h.lefts, h.rights, h.n, 0, g->n_merges ? at[-1].result : -1, at, &bad);
        if (r < 0) {
            r = gguf_tok_refuse(g, r, "merge %zu is of texts that are no tokens", g->n_merges + bad);
            break;
        }
        g->n_merges += h.n;
    }
    free(h.room);
    return r < 0 ? r : 0;
}

static int read_merges(struct gguf_tok *g)
{
    struct gguf_array a;
    int r = gguf_tok_merges(g, &a);

    return r < 0 ? r : find_merges(g, &a);
}

int gguf_tok_bpe(struct gguf_tok *g)
{
    CLEANUP(mem_free) char *room = NULL;
    char name[NAME] = "default";
    struct tokenizer *t = g->t;
    const struct scan_pre *pre;
    struct bpe_spec spec;
    int r = gguf_text(g->file, "tokenizer.ggml.pre", name, sizeof name, g->err);

    if (r < 0)
        return r;
    pre = scan_of_name(name);
    if (!pre)
        return gguf_tok_refuse(g, -ENOTSUP, "tokenizer.ggml.pre \"%s\" is not supported", name);
    memcpy(t->scans, pre->scans, sizeof t->scans);
    snprintf(t->kind, sizeof t->kind, "byte-level BPE, %s", name);
    g->adds_bos = pre->add_bos;
    room = malloc(longest_text(g) + 1);
    if (!room || vocab_new(g->n, (size_t)g->n * 8, &t->vocab) < 0)
        return gguf_tok_no_memory(g);
    if ((r = read_vocab(g, room)) < 0 || (r = read_merges(g)) < 0 || (r = gguf_tok_finish(g)) < 0)
        return r;
    spec = (struct bpe_spec){ .vocab = t->vocab, .merges = g->merges, .n_merges = g->n_merges, .byte_level = true,
                              .ignore_merges = pre->ignore_merges, .unk = -1 };
    r = bpe_new(&spec, &t->model);
    return r == -ENOMEM ? gguf_tok_no_memory(g) : r;
}
