/* SentencePiece's BPE: of all neighbours whose join is a token the pair with the best score is joined, the leftmost of
 * equals; again, until there is none. There is no list of merges.
 *
 * The text comes whole, with its spaces, not as words. A token that crosses a place holds the two characters beside it
 * next to each other: where no token of the vocabulary has that pair, no join can cross, and the text may be cut. So
 * nearly every text falls into words (the set of pairs is a filter of bits: one that is wrongly
 * found costs a cut, not the result), and words repeat: what a short one became is kept for the call.
 *
 * A pair that waits in the heap is (score, position) in one number; it is stale when the pair that now
 * starts there has another score. When it has the same, the pair waits under the same number anyway.
 *
 * Source   sentencepiece 0.1.97, bpe_model.cc
 */
#include "loaders/tok/tok.h"

#include "base/id.h"
#include "base/utf8.h"
#include "loaders/tok/hash.h"
#include "loaders/tok/scratch.h"
#include "loaders/tok/trie.h"

#include <errno.h>
#include <string.h>

enum { FEW_SYMBOLS = 24, CACHE_SIZE = 1024, CACHE_TEXT = 22, CACHE_IDS = 6, CACHE_FROM = 512 };

struct spm {
    struct tok_model base;
    const struct vocab *vocab;
    uint32_t *ranks;                    /* of an id: the smaller the better; by score */
    struct trie *whole;                 /* user-defined tokens; NULL: there are none */
    uint64_t *pairs, pairs_mask;        /* bits of hashes of neighbours within tokens */
    uint64_t seed;
    int32_t unk;
    bool byte_fallback, has_unused;
    int32_t byte_id[256];
};

struct symbol {
    uint32_t at, len;                   /* len 0: merged away */
    int32_t prev, next;                 /* -1: none */
    int32_t join;                       /* the token that it makes with the next; -1: none */
};

/* How a token that is not used came about: the length of its left half. The last time counts. */
struct split { int32_t id; uint32_t left; };

struct cached { uint8_t len, n; char text[CACHE_TEXT]; int32_t ids[CACHE_IDS]; };

struct run {
    const struct spm *m;
    struct tok_scratch *scratch;
    struct token_list *out;
    struct cached *cache;               /* NULL: the text is too short for one */
    bool after_unk;                     /* the last id is that of unknown characters */
    const char *word;
    struct symbol *symbols;
    uint64_t *heap;
    size_t n_heap;
    struct split *splits;
    size_t n_splits;
};

static uint64_t pair_hash(uint64_t seed, uint32_t a, uint32_t b)
{
    return hash_mix(((uint64_t)a << 32 | b) ^ seed, 0x9E3779B97F4A7C15u);
}

static bool may_join(const struct spm *m, uint32_t a, uint32_t b)
{
    uint64_t h = pair_hash(m->seed, a, b) & m->pairs_mask;

    return m->pairs[h / 64] >> h % 64 & 1;
}

/* A byte that is no character counts as one of its own, above all others. */
static size_t next_char(const char *text, size_t len, uint32_t *ret)
{
    int n = utf8_decode(text, len, ret);

    if (n > 0)
        return (size_t)n;
    *ret = 0x110000u + (unsigned char)text[0];
    return 1;
}

/* What a join can become: -1 for a text that is none of it. */
static int32_t token_of(const struct spm *m, const char *text, size_t len)
{
    int32_t id = vocab_find(m->vocab, text, len);
    enum token_kind kind = id >= 0 ? vocab_kind(m->vocab, id) : TOK_CONTROL;

    return kind == TOK_NORMAL || kind == TOK_USER_DEFINED || kind == TOK_UNUSED ? id : -1;
}

/* Output. */

static int add_unknown(struct run *r, const char *text, size_t len)
{
    const struct spm *m = r->m;
    bool bytes = m->byte_fallback;
    int e = 0;

    for (size_t i = 0; i < len && bytes; i++)
        bytes = m->byte_id[(unsigned char)text[i]] >= 0;
    if (!bytes) {
        bool again = r->after_unk;

        r->after_unk = true;
        return again || m->unk < 0 ? 0 : token_list_add(r->out, m->unk);
    }
    r->after_unk = false;
    for (size_t i = 0; i < len && e == 0; i++)
        e = token_list_add(r->out, m->byte_id[(unsigned char)text[i]]);
    return e;
}

static const struct split *split_of(const struct run *r, int32_t id)
{
    for (size_t i = r->n_splits; i-- > 0;)
        if (r->splits[i].id == id)
            return &r->splits[i];
    return NULL;
}

/* A symbol's ids. One that is not used falls into what it was made of; the right halves that wait need no more room than
 * the characters of the symbol, and take it from the end of the heap, which is empty by now. */
static int add_symbol(struct run *r, const char *text, size_t len)
{
    struct { uint32_t at, len; } now = { 0, (uint32_t)len };
    uint64_t *waiting = r->heap;
    size_t n_waiting = 0;

    for (;;) {
        int32_t id = token_of(r->m, text + now.at, now.len);
        const struct split *s = id >= 0 && r->m->has_unused && vocab_kind(r->m->vocab, id) == TOK_UNUSED ? split_of(r, id) : NULL;
        int e = 0;

        if (s) {
            waiting[n_waiting++] = (uint64_t)(now.at + s->left) << 32 | (now.len - s->left);
            now.len = s->left;
            continue;
        }
        if (id >= 0) {
            r->after_unk = false;
            e = token_list_add(r->out, id);
        } else {
            e = add_unknown(r, text + now.at, now.len);
        }
        if (e < 0 || n_waiting == 0)
            return e;
        n_waiting--;
        now.at = (uint32_t)(waiting[n_waiting] >> 32);
        now.len = (uint32_t)waiting[n_waiting];
    }
}

/* Merging. */

static void push(struct run *r, uint64_t v)
{
    size_t i = r->n_heap++;

    for (size_t up; i && v < r->heap[up = (i - 1) / 2]; i = up)
        r->heap[i] = r->heap[up];
    r->heap[i] = v;
}

static uint64_t pop(struct run *r)
{
    uint64_t top = r->heap[0], v = r->heap[--r->n_heap];
    size_t i = 0;

    for (size_t child; (child = 2 * i + 1) < r->n_heap; i = child) {
        child += child + 1 < r->n_heap && r->heap[child + 1] < r->heap[child];
        if (v <= r->heap[child])
            break;
        r->heap[i] = r->heap[child];
    }
    r->heap[i] = v;
    return top;
}

static uint64_t key(const struct run *r, int32_t at)
{
    return (uint64_t)r->m->ranks[r->symbols[at].join] << 32 | (uint32_t)at;
}

/* Finds what symbol `at` makes with the next. */
static int look(struct run *r, int32_t at)
{
    struct symbol *s = &r->symbols[at];

    s->join = -1;
    if (s->next < 0)
        return 0;
    s->join = token_of(r->m, r->word + s->at, s->len + r->symbols[s->next].len);
    if (s->join < 0 || !r->m->has_unused || vocab_kind(r->m->vocab, s->join) != TOK_UNUSED)
        return 0;
    r->splits = scratch_room(r->scratch, SCRATCH_MODEL_3, (r->n_splits + 1) * sizeof *r->splits);
    if (!r->splits)
        return -ENOMEM;
    r->splits[r->n_splits++] = (struct split){ s->join, s->len };
    return 0;
}

static int join(struct run *r, int32_t at)
{
    struct symbol *s = &r->symbols[at], *gone = &r->symbols[s->next];
    int e;

    s->len += gone->len;
    s->next = gone->next;
    gone->len = 0;
    if (s->next >= 0)
        r->symbols[s->next].prev = at;
    e = s->prev >= 0 ? look(r, s->prev) : 0;
    return e < 0 ? e : look(r, at);
}

/* Few symbols: the best pair is found by looking at all. */
static int merge_few(struct run *r)
{
    for (;;) {
        uint64_t best = UINT64_MAX;
        int e;

        for (int32_t i = 0; i >= 0; i = r->symbols[i].next)
            if (r->symbols[i].join >= 0 && key(r, i) < best)
                best = key(r, i);
        if (best == UINT64_MAX)
            return 0;
        e = join(r, (int32_t)(uint32_t)best);
        if (e < 0)
            return e;
    }
}

/* Every join makes at most two new pairs and takes one symbol away, so three a symbol is room enough. */
static int merge_many(struct run *r, size_t n)
{
    int e = 0;

    r->n_heap = 0;
    for (size_t i = 0; i + 1 < n; i++)
        if (r->symbols[i].join >= 0)
            push(r, key(r, (int32_t)i));
    while (r->n_heap && e == 0) {
        uint64_t top = pop(r);
        int32_t at = (int32_t)(uint32_t)top, prev = r->symbols[at].prev;

        if (r->symbols[at].len == 0 || r->symbols[at].join < 0 || key(r, at) != top)
            continue;
        e = join(r, at);
        if (e == 0 && prev >= 0 && r->symbols[prev].join >= 0)
            push(r, key(r, prev));
        if (e == 0 && r->symbols[at].join >= 0)
            push(r, key(r, at));
    }
    return e;
}

static int merge_word(struct run *r, const char *word, size_t len)
{
    size_t n = 0, e_at;
    int e = 0;

    r->symbols = scratch_room(r->scratch, SCRATCH_SYMBOLS, len * sizeof *r->symbols);
    r->heap = scratch_room(r->scratch, SCRATCH_HEAP, 3 * len * sizeof *r->heap);
    if (!r->symbols || !r->heap)
        return -ENOMEM;
    r->word = word;
    r->n_splits = 0;
    for (size_t at = 0; at < len; at = e_at, n++) {
        uint32_t c;

        e_at = at + next_char(word + at, len - at, &c);
        r->symbols[n] = (struct symbol){ .at = (uint32_t)at, .len = (uint32_t)(e_at - at), .prev = (int32_t)n - 1,
                                         .next = e_at < len ? (int32_t)n + 1 : -1 };
    }
    for (size_t i = 0; i < n && e == 0; i++)
        e = look(r, (int32_t)i);
    if (e == 0)
        e = n <= FEW_SYMBOLS ? merge_few(r) : merge_many(r, n);
    for (int32_t i = 0; i >= 0 && e == 0; i = r->symbols[i].next)
        e = add_symbol(r, word + r->symbols[i].at, r->symbols[i].len);
    return e;
}

/* Words. */

static int add_word(struct run *r, const char *word, size_t len)
{
    struct cached *c;
    size_t before = r->out->n;
    int e = 0;

    if (!r->cache || len > CACHE_TEXT)
        return merge_word(r, word, len);
    c = &r->cache[hash_bytes(r->m->seed, word, len) % CACHE_SIZE];
    if (c->len == len && memcmp(c->text, word, len) == 0) {
        r->after_unk = false;
        for (size_t i = 0; i < c->n && e == 0; i++)
            e = token_list_add(r->out, c->ids[i]);
        return e;
    }
    e = merge_word(r, word, len);
    if (e < 0 || r->out->n == before || r->out->n - before > CACHE_IDS)
        return e;
    for (size_t i = before; i < r->out->n; i++)
        if (r->out->ids[i] == r->m->unk)            /* its neighbours decide */
            return 0;
    c->len = (uint8_t)len;
    c->n = (uint8_t)(r->out->n - before);
    memcpy(c->text, word, len);
    memcpy(c->ids, r->out->ids + before, c->n * sizeof c->ids[0]);
    return 0;
}

/* The cache is the call's: a slot that is new is empty. */
static struct cached *cache_of(struct tok_scratch *s)
{
    bool is_new = !s->slots[SCRATCH_MODEL_2].p;
    struct cached *c = scratch_room(s, SCRATCH_MODEL_2, CACHE_SIZE * sizeof *c);

    for (size_t i = 0; c && is_new && i < CACHE_SIZE; i++)
        c[i].len = 0;
    return c;
}

static int spm_encode(const struct tok_model *model, const char *text, size_t len, struct tok_scratch *scratch,
                      struct token_list *out)
{
    const struct spm *m = (const struct spm *)model;
    struct run r = { .m = m, .scratch = scratch, .out = out };
    size_t from = 0, step;
    uint32_t c, before = 0;
    int e = 0;

    if (len >= CACHE_FROM)
        r.cache = cache_of(scratch);
    for (size_t at = 0; at < len && e == 0; at += step, before = c) {
        size_t whole = 0;
        int32_t id = m->whole ? trie_longest(m->whole, text + at, len - at, &whole) : -1;

        step = whole ? whole : next_char(text + at, len - at, &c);
        if (at > from && (id >= 0 || !may_join(m, before, c))) {
            e = add_word(&r, text + from, at - from);
            from = at;
        }
        if (id < 0 || e < 0)
            continue;
        r.after_unk = false;
        e = token_list_add(out, id);
        from = at + step;
        c = 0;
    }
    return e == 0 && from < len ? add_word(&r, text + from, len - from) : e;
}

/* Making. */

static void spm_free(struct tok_model *model)
{
    struct spm *m = (struct spm *)model;

    free(m->ranks);
    free(m->pairs);
    trie_free(m->whole);
    free(m);
}

static const struct tok_model_ops spm_ops = { "SentencePiece BPE", spm_encode, spm_free };

/* A float as a number of the same order, the greatest first. */
static uint32_t rank_of(float score)
{
    uint32_t bits;

    score += 0.0f;                      /* the two zeros are one */
    memcpy(&bits, &score, sizeof bits);
    return ~(bits & 0x80000000u ? ~bits : bits | 0x80000000u);
}

static int fill_pairs(struct spm *m, uint32_t n)
{
    uint64_t n_bits = 1024;
    size_t total = 0;

    for (uint32_t id = 0; id < n; id++)
        total += vocab_text(m->vocab, (int32_t)id).len;
    while (n_bits < total * 4)          /* most pairs repeat: one bit in eight or so is set */
        n_bits *= 2;
    m->pairs = calloc(n_bits / 64, sizeof *m->pairs);
    if (!m->pairs)
        return -ENOMEM;
    m->pairs_mask = n_bits - 1;
    for (uint32_t id = 0; id < n; id++) {
        struct tok_str s = vocab_text(m->vocab, (int32_t)id);
        enum token_kind kind = vocab_kind(m->vocab, (int32_t)id);
        uint32_t c, before = 0;

        if (kind != TOK_NORMAL && kind != TOK_USER_DEFINED && kind != TOK_UNUSED)
            continue;
        for (size_t at = 0, step; at < s.len; at += step, before = c) {
            step = next_char(s.text + at, s.len - at, &c);
            if (at) {
                uint64_t h = pair_hash(m->seed, before, c) & m->pairs_mask;

                m->pairs[h / 64] |= UINT64_C(1) << h % 64;
            }
        }
    }
    return 0;
}

static int fill_whole(struct spm *m, uint32_t n)
{
    struct trie_key *keys = calloc((size_t)n + 1, sizeof *keys);
    size_t n_keys = 0;
    int r = 0;

    if (!keys)
        return -ENOMEM;
    for (uint32_t id = 0; id < n; id++) {
        struct tok_str s = vocab_text(m->vocab, (int32_t)id);
        enum token_kind kind = vocab_kind(m->vocab, (int32_t)id);

        m->has_unused = m->has_unused || (s.text && kind == TOK_UNUSED);
        if (s.len && kind == TOK_USER_DEFINED)
            keys[n_keys++] = (struct trie_key){ s.text, s.len, (int32_t)id };
    }
    if (n_keys)
        r = trie_new(keys, n_keys, &m->whole);
    free(keys);
    return r;
}

int spm_bpe_new(const struct spm_bpe_spec *spec, struct tok_model **ret)
{
    struct spm *m = calloc(1, sizeof *m);
    uint32_t n = vocab_size(spec->vocab);
    int r;

    if (!m)
        return -ENOMEM;
    m->base.ops = &spm_ops;
    m->vocab = spec->vocab;
    m->seed = id_random_u64();
    m->unk = spec->unk;
    m->byte_fallback = spec->byte_fallback;
    m->ranks = calloc((size_t)n + 1, sizeof *m->ranks);
    r = m->ranks ? fill_pairs(m, n) : -ENOMEM;
    if (r == 0)
        r = fill_whole(m, n);
    if (r < 0) {
        spm_free(&m->base);
        return r;
    }
    for (uint32_t id = 0; id < n; id++)
        m->ranks[id] = rank_of(spec->scores[id]);
    tok_byte_ids(spec->vocab, m->byte_id);
    *ret = &m->base;
    return 0;
}
