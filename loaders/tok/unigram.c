/* The likeliest segmentation of a piece: the best sum of scores over all ways to cut it into tokens.
 *
 * One pass forward over characters: at each the trie gives the tokens that begin there, and where one ends the best
 * sum so far is kept with the token that led to it. A character that no token of just that character
 * covers costs the least score less 10, and is unknown. Equal sums: the one found first stays.
 *
 * The way back begins wherever no token reaches over (at most words, in ordinary text), so that the memory is
 * that of the longest stretch without such a place; the sum goes on through it, for its rounding decides ties.
 *
 * Sums: sentencepiece keeps a float but compares before it rounds (0.1.97; later ones round first); Hugging Face keeps a
 * double. On repeated characters they give different ids, so both are here.
 *
 * Source   sentencepiece, unigram_model.cc:EncodeOptimized; tokenizers, models/unigram/model.rs:encode_optimized
 */
#include "loaders/tok/tok.h"

#include "base/utf8.h"
#include "loaders/tok/scratch.h"
#include "loaders/tok/trie.h"

#include <errno.h>
#include <float.h>
#include <stdio.h>
#include <string.h>

#define UNKNOWN_PENALTY 10.0

struct unigram {
    struct tok_model base;
    struct trie *trie;                  /* value: id */
    double *scores;                     /* by id */
    double unk_score;
    bool single, byte_fallback, fuse_unk;
    int32_t unk;
    int32_t byte_id[256];               /* -1: there is none */
};

/* Where a token ends, at an offset from the base of the stretch. */
struct node { double sum; int32_t id; uint32_t start; };
#define NOT_REACHED UINT32_MAX

struct run {
    const struct unigram *m;
    const char *text;
    struct tok_scratch *scratch;
    struct token_list *out;
    struct node *nodes;                 /* by offset in the stretch; those beyond what was seen are not reached */
    size_t n_nodes;
    size_t unk_from, unk_to;            /* unknown characters that wait for their neighbours; empty: none */
};

/* The ids of text[from..to), which is unknown. */
static int add_unknown(struct run *r, size_t from, size_t to)
{
    const struct unigram *m = r->m;
    bool bytes = m->byte_fallback;
    int e = 0;

    for (size_t i = from; i < to && bytes; i++)
        bytes = m->byte_id[(unsigned char)r->text[i]] >= 0;
    if (!bytes)
        return m->unk >= 0 ? token_list_add(r->out, m->unk) : 0;
    for (size_t i = from; i < to && e == 0; i++)
        e = token_list_add(r->out, m->byte_id[(unsigned char)r->text[i]]);
    return e;
}

static int flush_unknown(struct run *r)
{
    size_t from = r->unk_from, to = r->unk_to;

    r->unk_from = r->unk_to = 0;
    return from < to ? add_unknown(r, from, to) : 0;
}

static int add(struct run *r, int32_t id, size_t from, size_t to)
{
    int e;

    if (id != r->m->unk || !r->m->fuse_unk) {
        e = flush_unknown(r);
        if (e < 0)
            return e;
        return id == r->m->unk ? add_unknown(r, from, to) : token_list_add(r->out, id);
    }
    if (r->unk_from == r->unk_to)
        r->unk_from = from;
    r->unk_to = to;
    return 0;
}

/* Emits the best way through a stretch of n bytes that begins at `base` of the text. */
static int emit(struct run *r, size_t base, size_t n)
{
    const struct node *nodes = r->nodes;
    uint32_t *ends = scratch_room(r->scratch, SCRATCH_HEAP, (n + 1) * sizeof *ends);
    size_t n_ends = 0;
    int e = 0;

    if (!ends)
        return -ENOMEM;
    for (uint32_t at = (uint32_t)n; at > 0; at = nodes[at].start)
        ends[n_ends++] = at;
    while (n_ends-- > 0 && e == 0)
        e = add(r, nodes[ends[n_ends]].id, base + nodes[ends[n_ends]].start, base + ends[n_ends]);
    return e;
}

static void offer(const struct unigram *m, struct node *to, double sum, int32_t id, uint32_t start)
{
    if (to->start != NOT_REACHED && !(sum > to->sum))
        return;
    *to = (struct node){ m->single ? (double)(float)sum : sum, id, start };
}

static int room_for(struct run *r, size_t n)
{
    size_t n_nodes = n + n / 2 + 64;
    struct node *nodes;

    if (n <= r->n_nodes)
        return 0;
    nodes = scratch_room(r->scratch, SCRATCH_SYMBOLS, n_nodes * sizeof *nodes);
    if (!nodes)
        return -ENOMEM;
    for (size_t i = r->n_nodes; i < n_nodes; i++)
        nodes[i].start = NOT_REACHED;
    r->nodes = nodes;
    r->n_nodes = n_nodes;
    return 0;
}

static size_t char_len(const char *text, size_t len)
{
    uint32_t c;
    int n = utf8_decode(text, len, &c);

    return n > 0 ? (size_t)n : 1;
}

/* What begins at the character of n bytes at `at`; moves *reach, the furthest end so far. */
static int tokens_at(struct run *r, size_t len, size_t at, size_t n, size_t base, size_t *reach)
{
    const struct unigram *m = r->m;
    double sum = r->nodes[at - base].sum;
    int64_t state = TRIE_ROOT;
    bool single = false;

    for (size_t i = at; i < len; i++) {
        int32_t id;

        state = trie_step(m->trie, (uint32_t)state, (unsigned char)r->text[i]);
        if (state < 0)
            break;
        id = m->trie->nodes[state].value;
        if (id < 0)
            continue;
        if (room_for(r, i + 2 - base) < 0)
            return -ENOMEM;
        offer(m, &r->nodes[i + 1 - base], sum + m->scores[id], id, (uint32_t)(at - base));
        *reach = i + 1 > *reach ? i + 1 : *reach;
        single = single || i + 1 == at + n;
    }
    if (single)
        return 0;
    if (room_for(r, at + n + 1 - base) < 0)
        return -ENOMEM;
    offer(m, &r->nodes[at + n - base], sum + m->unk_score, m->unk, (uint32_t)(at - base));
    *reach = at + n > *reach ? at + n : *reach;
    return 0;
}

static int unigram_encode(const struct tok_model *model, const char *text, size_t len, struct tok_scratch *scratch,
                          struct token_list *out)
{
    const struct unigram *m = (const struct unigram *)model;
    struct run r = { .m = m, .text = text, .scratch = scratch, .out = out };
    size_t base = 0, reach = 0;
    int e = room_for(&r, 1);

    if (e < 0)
        return e;
    r.nodes[0] = (struct node){ 0 };
    for (size_t at = 0, n; at < len; at += n) {
        double sum;

        n = char_len(text + at, len - at);
        e = tokens_at(&r, len, at, n, base, &reach);
        if (e < 0)
            return e;
        if (at + n != reach)
            continue;
        e = emit(&r, base, reach - base);
        if (e < 0)
            return e;
        sum = r.nodes[reach - base].sum;
        for (size_t i = 0; i <= reach - base; i++)
            r.nodes[i].start = NOT_REACHED;
        base = reach;
        r.nodes[0] = (struct node){ .sum = sum };
    }
    return flush_unknown(&r);
}

static void unigram_free(struct tok_model *model)
{
    struct unigram *m = (struct unigram *)model;

    trie_free(m->trie);
    free(m->scores);
    free(m);
}

static const struct tok_model_ops unigram_ops = { "Unigram", unigram_encode, unigram_free };

/* Which tokens a text can become: those of text. Sentencepiece's own user-defined tokens are of its model, those of a
 * tokenizer.json are beside it. */
static uint32_t kinds_of_text(const struct unigram_spec *spec)
{
    return spec->single ? 1u << TOK_NORMAL | 1u << TOK_USER_DEFINED : ~(1u << TOK_CONTROL | 1u << TOK_USER_DEFINED);
}

/* Sentencepiece gives a user-defined token its length times the best score less 0.1: the best score begins at
 * the smallest float, so that this is -0.1, above what log-probabilities sum to. */
static void fill_scores(struct unigram *m, const struct unigram_spec *spec, uint32_t n)
{
    double least = spec->single ? (double)FLT_MAX : DBL_MAX;
    float best = FLT_MIN;

    for (uint32_t id = 0; id < n; id++) {
        bool counts = vocab_text(spec->vocab, (int32_t)id).text != NULL;

        m->scores[id] = spec->scores[id];
        if (spec->single)
            counts = counts && vocab_kind(spec->vocab, (int32_t)id) == TOK_NORMAL;
        if (!counts)
            continue;
        least = m->scores[id] < least ? m->scores[id] : least;
        best = (float)m->scores[id] > best ? (float)m->scores[id] : best;
    }
    m->unk_score = spec->single ? (double)((float)least - (float)UNKNOWN_PENALTY) : least - UNKNOWN_PENALTY;
    if (!spec->single)
        return;
    for (uint32_t id = 0; id < n; id++)
        if (vocab_kind(spec->vocab, (int32_t)id) == TOK_USER_DEFINED)
            m->scores[id] = (double)((float)vocab_text(spec->vocab, (int32_t)id).len * best) - 0.1;
}

void tok_byte_ids(const struct vocab *v, int32_t ret[256])
{
    char name[8];

    for (int i = 0; i < 256; i++) {
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)i);
        ret[i] = vocab_find(v, name, 6);
    }
}

int unigram_new(const struct unigram_spec *spec, struct tok_model **ret)
{
    struct unigram *m = calloc(1, sizeof *m);
    uint32_t n = vocab_size(spec->vocab);
    int r;

    if (!m)
        return -ENOMEM;
    m->base.ops = &unigram_ops;
    m->single = spec->single;
    m->byte_fallback = spec->byte_fallback;
    m->fuse_unk = spec->fuse_unk;
    m->unk = spec->unk;
    m->scores = calloc((size_t)n + 1, sizeof *m->scores);
    r = m->scores ? vocab_trie(spec->vocab, kinds_of_text(spec), &m->trie) : -ENOMEM;
    if (r < 0) {
        unigram_free(&m->base);
        return r;
    }
    fill_scores(m, spec, n);
    tok_byte_ids(spec->vocab, m->byte_id);
    *ret = &m->base;
    return 0;
}
