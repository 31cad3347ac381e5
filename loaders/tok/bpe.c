/* How a piece becomes ids, cheapest first:
 *
 *   1. the cache: pieces of up to 32 bytes with up to 6 ids, one line of memory each. It is shared by all threads and has no
 *      lock: a slot carries a number that is odd while somebody writes it, a reader that sees it change reads nothing, and
 *      a writer that finds it odd writes nothing.
 *   2. a piece that is a token: that token, where merging its text gives it back. Merging is asked once a token and the
 *      answer remembered; most vocabularies have tokens that no text reaches, so it is not assumed.
 *   3. merging. Up to FEW symbols: the lowest rank is found by looking at all, which is fastest. More: a linked list, and
 *      what can be merged in buckets by rank, so that time grows about as the text does: one line of megabytes without a
 *      space is an ordinary text, not an attack. An entry counts when the pair that now stands at its place makes the
 *      same token, as in Hugging Face's; what it was made for may be gone.
 *
 * A text of characters is often one piece (Llama 2, Gemma have no pre-tokeniser). It is cut first where two known characters meet that
 * stand side by side in no token: no merge can join them, so what lies between such places is a piece of its own (where a
 * piece is not taken whole: ignore_merges).
 *
 * Ranks are places in the table of merges. A hash table leads from a pair to its rank and holds the rank and a few bits of the hash
 * only, so that the usual answer, that two symbols do not merge, costs one line of memory; two bytes have a table of their own.
 */
#include "loaders/tok/tok.h"

#include "base/id.h"
#include "base/utf8.h"
#include "loaders/tok/hash.h"
#include "loaders/tok/scratch.h"

#include <errno.h>

enum { FEW = 48, CACHE_SLOTS = 1 << 14, CACHE_WORDS = 8, CACHE_KEY = 32, CACHE_IDS = 6, BMP = 1 << 16, AHEAD = 16, INNER_BITS = 20 };
#define NO_RANK UINT32_MAX

/* A slot of the table of pairs: the rank in its low bits, bits of the hash above; all ones: free. */
enum { RANK_BITS = 23, RANK_MASK = (1 << RANK_BITS) - 1 };
_Static_assert((int)BPE_MAX_MERGES <= (int)RANK_MASK, "a rank fits and is not all ones");

/* What is known of a token as a piece. */
enum memo { NOT_ASKED, ITSELF, NOT_ITSELF };

struct bpe {
    struct tok_model model;
    struct bpe_spec spec;
    uint64_t seed;
    struct bpe_merge *merges;                   /* by rank */
    uint32_t n_merges;
    uint32_t *pairs;
    uint32_t pairs_mask;
    uint32_t *byte_ranks;                       /* [256][256], only with byte_level */
    int32_t byte_ids[256];                      /* of a byte, or of <0xHH>; -1: none */
    bool all_bytes;
    int32_t *char_ids;                          /* [BMP], of characters; not with byte_level, nor with prefix or suffix */
    uint8_t *inner;                             /* a bit for each two characters within a token, by hash; where char_ids is */
    uint8_t *memo;                              /* enum memo, by id */
    uint64_t *cache, *cache_block;              /* [CACHE_SLOTS][CACHE_WORDS], aligned; what free() gets */
    char *decorations;
};

static bool is_text(const struct bpe *b, int32_t id)
{
    enum token_kind kind = vocab_kind(b->spec.vocab, id);

    return kind == TOK_NORMAL || kind == TOK_BYTE || kind == TOK_UNUSED;
}

static int32_t find_text(const struct bpe *b, const char *text, size_t len)
{
    int32_t id = vocab_find(b->spec.vocab, text, len);

    return id >= 0 && is_text(b, id) ? id : -1;
}

/* Pairs. */

static uint64_t pair_hash(const struct bpe *b, int32_t left, int32_t right)
{
    return hash_pair(b->seed, (uint32_t)left, (uint32_t)right);
}

static uint32_t *pair_slot(const struct bpe *b, int32_t left, int32_t right, uint64_t hash)
{
    uint32_t tag = (uint32_t)(hash >> 32) & ~(uint32_t)RANK_MASK;

    for (uint32_t i = (uint32_t)hash & b->pairs_mask;; i = (i + 1) & b->pairs_mask) {
        uint32_t slot = b->pairs[i];
        const struct bpe_merge *m;

        if (slot == NO_RANK)
            return &b->pairs[i];
        if ((slot & ~(uint32_t)RANK_MASK) != tag)
            continue;
        m = &b->merges[slot & RANK_MASK];
        if (m->left == left && m->right == right)
            return &b->pairs[i];
    }
}

static uint32_t rank_of(const struct bpe *b, int32_t left, int32_t right)
{
    uint32_t slot = *pair_slot(b, left, right, pair_hash(b, left, right));

    return slot == NO_RANK ? NO_RANK : slot & RANK_MASK;
}

static int fill_pairs(struct bpe *b, const struct bpe_spec *spec)
{
    uint32_t size = hash_size(spec->n_merges), n_ids = vocab_size(spec->vocab);

    b->merges = malloc((spec->n_merges + 1) * sizeof *b->merges);
    b->pairs = malloc(size * sizeof *b->pairs);
    if (!b->merges || !b->pairs)
        return -ENOMEM;
    memset(b->pairs, 0xFF, size * sizeof *b->pairs);
    b->pairs_mask = size - 1;
    b->n_merges = (uint32_t)spec->n_merges;
    for (size_t rank = 0; rank < spec->n_merges; rank++) {
        const struct bpe_merge m = spec->merges[rank], *ahead = &spec->merges[rank + AHEAD < spec->n_merges ? rank + AHEAD : rank];
        uint64_t hash = pair_hash(b, m.left, m.right);
        uint32_t *slot;

        __builtin_prefetch(&b->pairs[(uint32_t)pair_hash(b, ahead->left, ahead->right) & b->pairs_mask]);
        if ((uint32_t)m.left >= n_ids || (uint32_t)m.right >= n_ids || (uint32_t)m.result >= n_ids)
            return -EINVAL;
        b->merges[rank] = m;
        if (!is_text(b, m.result))
            continue;
        slot = pair_slot(b, m.left, m.right, hash);
        if (*slot == NO_RANK || spec->last_counts)
            *slot = ((uint32_t)(hash >> 32) & ~(uint32_t)RANK_MASK) | (uint32_t)rank;
    }
    return 0;
}

static int fill_byte_ranks(struct bpe *b)
{
    b->byte_ranks = malloc(256 * 256 * sizeof *b->byte_ranks);
    if (!b->byte_ranks)
        return -ENOMEM;
    for (size_t i = 0; i < 256 * 256; i++) {
        int32_t left = b->byte_ids[i / 256], right = b->byte_ids[i % 256];

        b->byte_ranks[i] = left >= 0 && right >= 0 ? rank_of(b, left, right) : NO_RANK;
    }
    return 0;
}

static void fill_byte_ids(struct bpe *b)
{
    static const char digits[] = "0123456789ABCDEF";

    b->all_bytes = true;
    for (int i = 0; i < 256; i++) {
        char text[6] = { '<', '0', 'x', digits[i >> 4], digits[i & 15], '>' };

        if (b->spec.byte_level) {
            text[0] = (char)i;
            b->byte_ids[i] = find_text(b, text, 1);
        } else {
            b->byte_ids[i] = find_text(b, text, sizeof text);
        }
        b->all_bytes = b->all_bytes && b->byte_ids[i] >= 0;
    }
}

static int fill_char_ids(struct bpe *b)
{
    const struct vocab *v = b->spec.vocab;

    b->char_ids = malloc(BMP * sizeof *b->char_ids);
    if (!b->char_ids)
        return -ENOMEM;
    memset(b->char_ids, 0xFF, BMP * sizeof *b->char_ids);
    for (uint32_t i = 0; i < vocab_size(v); i++) {
        struct tok_str s = vocab_text(v, (int32_t)i);
        uint32_t c;

        if (s.len && s.len <= 3 && utf8_decode(s.text, s.len, &c) == (int)s.len)
            b->char_ids[c] = find_text(b, s.text, s.len);
    }
    return 0;
}

static uint32_t inner_bit(uint32_t a, uint32_t c)
{
    return (uint32_t)(hash_pair(0, a, c) >> (64 - INNER_BITS));
}

static int fill_inner(struct bpe *b)
{
    const struct vocab *v = b->spec.vocab;

    b->inner = calloc(1, (1 << INNER_BITS) / 8);
    if (!b->inner)
        return -ENOMEM;
    for (uint32_t i = 0; i < vocab_size(v); i++) {
        struct tok_str s = vocab_text(v, (int32_t)i);
        uint32_t before = BMP, c;

        for (size_t at = 0, n; at < s.len; at += n, before = c) {
            int r = utf8_decode(s.text + at, s.len - at, &c);
            uint32_t bit;

            n = r > 0 ? (size_t)r : 1;
            c = r > 0 ? c : BMP;
            bit = inner_bit(before, c);
            b->inner[bit >> 3] |= (uint8_t)(1 << (bit & 7));
        }
    }
    return 0;
}

static int copy_decorations(struct bpe *b)
{
    struct tok_str *p = &b->spec.continuing_prefix, *s = &b->spec.end_suffix;

    b->decorations = malloc((size_t)p->len + s->len + 1);
    if (!b->decorations)
        return -ENOMEM;
    if (p->len)
        memcpy(b->decorations, p->text, p->len);
    if (s->len)
        memcpy(b->decorations + p->len, s->text, s->len);
    p->text = b->decorations;
    s->text = b->decorations + p->len;
    return 0;
}

/* Its pages are the system's zeros until a slot is written. */
static int make_cache(struct bpe *b)
{
    const size_t line = CACHE_WORDS * sizeof *b->cache;
    char *p;

    b->cache_block = calloc(CACHE_SLOTS + 1, line);
    if (!b->cache_block)
        return -ENOMEM;
    p = (char *)b->cache_block;
    b->cache = (uint64_t *)(p + (line - (uintptr_t)p % line) % line);
    return 0;
}

static void bpe_free(struct tok_model *m)
{
    struct bpe *b = (struct bpe *)m;

    free(b->merges);
    free(b->pairs);
    free(b->byte_ranks);
    free(b->char_ids);
    free(b->inner);
    free(b->memo);
    free(b->cache_block);
    free(b->decorations);
    free(b);
}

/* The cache. A slot's first word: a number that grows, odd while the slot is being written (high half), how many bytes the
 * key has (second byte) and how many ids there are (lowest byte). Then the key, zeros behind it, then the ids. */

struct key { uint64_t words[CACHE_KEY / 8]; };

/* len is 1 to 32; nothing outside of the piece is read. Bytes that are loaded twice are equal, so "or" joins them. */
static struct key key_of(const char *p, size_t len)
{
    struct key k = { 0 };
    size_t whole = len / 8, rest = len % 8;

    if (len >= 8) {
        for (size_t i = 0; i < whole; i++)
            k.words[i] = hash_load64(p + 8 * i);
        if (rest)
            k.words[whole] = hash_load64(p + len - 8) >> 8 * (8 - rest);
    } else if (len >= 4) {
        k.words[0] = hash_load32(p) | (uint64_t)hash_load32(p + len - 4) << 8 * (len - 4);
    } else {
        k.words[0] = (unsigned char)p[0] | (uint64_t)(unsigned char)p[len / 2] << 8 * (len / 2) |
                     (uint64_t)(unsigned char)p[len - 1] << 8 * (len - 1);
    }
    return k;
}

static uint64_t *cache_slot(const struct bpe *b, const struct key *k, size_t len)
{
    uint64_t h = hash_mix(k->words[0] ^ b->seed, k->words[1] ^ 0xE7037ED1A0B428DBu ^ len);

    if (len > 16)
        h = hash_mix(k->words[2] ^ h, k->words[3] ^ 0xA0761D6478BD642Fu);
    return b->cache + (h & (CACHE_SLOTS - 1)) * CACHE_WORDS;
}

/* The number of ids, or 0. Loads that acquire stay in order before the last one, so that a slot that changed meanwhile is seen to. */
static unsigned cache_read(const uint64_t *slot, const struct key *k, size_t len, int32_t ids[CACHE_IDS])
{
    uint64_t head = __atomic_load_n(&slot[0], __ATOMIC_ACQUIRE), differ = 0;

    if ((head >> 8 & 0xFF) != len || head >> 32 & 1)
        return 0;
    for (size_t i = 0; i < CACHE_KEY / 8; i++)
        differ |= __atomic_load_n(&slot[1 + i], __ATOMIC_ACQUIRE) ^ k->words[i];
    if (differ)
        return 0;
    for (size_t i = 0; i < CACHE_IDS / 2; i++) {
        uint64_t two = __atomic_load_n(&slot[1 + CACHE_KEY / 8 + i], __ATOMIC_ACQUIRE);

        ids[2 * i] = (int32_t)(uint32_t)two;
        ids[2 * i + 1] = (int32_t)(two >> 32);
    }
    return __atomic_load_n(&slot[0], __ATOMIC_RELAXED) == head ? head & 0xFF : 0;
}

static void cache_write(uint64_t *slot, const struct key *k, size_t len, const int32_t *ids, size_t n)
{
    uint64_t head = __atomic_load_n(&slot[0], __ATOMIC_RELAXED), number = head >> 32;

    if (number & 1 || !__atomic_compare_exchange_n(&slot[0], &head, (uint64_t)(uint32_t)(number + 1) << 32, false, __ATOMIC_ACQUIRE,
                                                   __ATOMIC_RELAXED))
        return;
    for (size_t i = 0; i < CACHE_KEY / 8; i++)
        __atomic_store_n(&slot[1 + i], k->words[i], __ATOMIC_RELEASE);
    for (size_t i = 0; i < CACHE_IDS / 2; i++) {
        uint32_t low = 2 * i < n ? (uint32_t)ids[2 * i] : 0, high = 2 * i + 1 < n ? (uint32_t)ids[2 * i + 1] : 0;

        __atomic_store_n(&slot[1 + CACHE_KEY / 8 + i], (uint64_t)high << 32 | low, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&slot[0], (uint64_t)(uint32_t)(number + 2) << 32 | len << 8 | n, __ATOMIC_RELEASE);
}

/* A piece to symbols. */

struct symbols {
    const struct bpe *b;
    int32_t *ids;                               /* room for what the piece can become */
    size_t n;
    bool unk_waits;                             /* an unknown that the next one may join */
};

static void add_unknown(struct symbols *s)
{
    const struct bpe_spec *spec = &s->b->spec;

    if (spec->unk < 0)
        return;
    if (s->unk_waits && !spec->fuse_unk)
        s->ids[s->n++] = spec->unk;
    s->unk_waits = true;
}

/* An unknown waits until a known character comes; bytes pass it, as in Hugging Face's. */
static void add_known(struct symbols *s, int32_t id)
{
    if (s->unk_waits)
        s->ids[s->n++] = s->b->spec.unk;
    s->unk_waits = false;
    s->ids[s->n++] = id;
}

static void add_character(struct symbols *s, int32_t id, const char *text, size_t len)
{
    bool fallback = s->b->spec.byte_fallback;

    if (id >= 0) {
        add_known(s, id);
        return;
    }
    for (size_t i = 0; i < len && fallback; i++)
        fallback = s->b->byte_ids[(unsigned char)text[i]] >= 0;
    for (size_t i = 0; i < len && fallback; i++)
        s->ids[s->n++] = s->b->byte_ids[(unsigned char)text[i]];
    if (!fallback)
        add_unknown(s);
}

static void add_bytes(struct symbols *s, const char *piece, size_t len)
{
    const struct bpe *b = s->b;

    if (b->all_bytes) {
        for (size_t i = 0; i < len; i++)
            s->ids[i] = b->byte_ids[(unsigned char)piece[i]];
        s->n = len;
        return;
    }
    for (size_t i = 0; i < len; i++) {
        int32_t id = b->byte_ids[(unsigned char)piece[i]];

        if (id >= 0)
            add_known(s, id);
        else
            add_unknown(s);
    }
}

/* Character by character; a byte that is no UTF-8 is one. */
static void add_characters(struct symbols *s, const char *piece, size_t len)
{
    const struct bpe *b = s->b;

    for (size_t i = 0, n; i < len; i += n) {
        uint32_t c = BMP;
        int r = utf8_decode(piece + i, len - i, &c);

        n = r > 0 ? (size_t)r : 1;
        c = r > 0 ? c : 0xFFFD;
        add_character(s, c < BMP ? b->char_ids[c] : find_text(b, piece + i, n), piece + i, n);
    }
}

/* With a prefix on all but the first character and a suffix on the last; `room` holds both and a character. */
static void add_decorated(struct symbols *s, const char *piece, size_t len, char *room)
{
    const struct tok_str prefix = s->b->spec.continuing_prefix, suffix = s->b->spec.end_suffix;

    for (size_t i = 0, n; i < len; i += n) {
        uint32_t c;
        int r = utf8_decode(piece + i, len - i, &c);
        size_t m = i ? prefix.len : 0;

        n = r > 0 ? (size_t)r : 1;
        memcpy(room, prefix.text, m);
        memcpy(room + m, piece + i, n);
        m += n;
        if (i + n == len) {
            memcpy(room + m, suffix.text, suffix.len);
            m += suffix.len;
        }
        add_character(s, find_text(s->b, room, m), room, m);
    }
}

/* Merging. */

/* Few symbols: ids and the ranks of each with the one behind it. Gives how many are left. */
static size_t merge_few(const struct bpe *b, int32_t *ids, size_t n, uint32_t ranks[FEW])
{
    while (n > 1) {
        uint32_t lowest = NO_RANK;
        size_t at = 0;

        for (size_t i = 0; i + 1 < n; i++) {
            if (ranks[i] < lowest) {
                lowest = ranks[i];
                at = i;
            }
        }
        if (lowest == NO_RANK)
            break;
        ids[at] = b->merges[lowest].result;
        n--;
        memmove(ids + at + 1, ids + at + 2, (n - at - 1) * sizeof *ids);
        memmove(ranks + at, ranks + at + 1, (n - at - 1) * sizeof *ranks);
        if (at)
            ranks[at - 1] = rank_of(b, ids[at - 1], ids[at]);
        if (at + 1 < n)
            ranks[at] = rank_of(b, ids[at], ids[at + 1]);
    }
    return n;
}

/* Many symbols: a list of nodes, and what may be merged, by rank. Entries of one rank lie in a bucket and are all taken at once, in order
 * of their places, so that memory is walked from front to back, rank by rank; only what a merge offers at the rank at work or
 * below it goes to a heap, which stays small. */

struct node { int32_t id, prev, next; uint32_t rank; };     /* id -1: merged away; rank: with the next one */
struct entry { uint32_t at; int32_t next; };                /* of a bucket, or free; -1: the last */
struct bucket { uint32_t rank, n; int32_t first; };         /* rank NO_RANK: free */

struct many {
    const struct bpe *b;
    struct tok_scratch *scratch;
    struct node *nodes;
    struct entry *entries;
    struct bucket *buckets;                     /* open addressing by rank */
    uint32_t n_entries, buckets_mask;
    int32_t free;                               /* entries that can be used again */
    uint64_t *waiting, *urgent;                 /* heaps, four below each: ranks of buckets; rank << 32 | place */
    size_t n_waiting, n_urgent;
    uint32_t *places;                           /* of the rank at work, ascending */
    uint32_t rank;                              /* at work */
};

static void heap_push(uint64_t *heap, size_t *n, uint64_t v)
{
    size_t i = (*n)++;

    for (size_t up; i && v < heap[up = (i - 1) / 4]; i = up)
        heap[i] = heap[up];
    heap[i] = v;
}

static uint64_t heap_pop(uint64_t *heap, size_t *n)
{
    uint64_t top = heap[0], v = heap[--*n];
    size_t i = 0;

    for (size_t child; (child = 4 * i + 1) < *n; i = child) {
        size_t end = child + 4 < *n ? child + 4 : *n;

        for (size_t j = child + 1; j < end; j++)
            child = heap[j] < heap[child] ? j : child;
        if (v <= heap[child])
            break;
        heap[i] = heap[child];
    }
    heap[i] = v;
    return top;
}

static struct bucket *bucket_of(const struct many *m, uint32_t rank)
{
    uint32_t i = (uint32_t)hash_pair(m->b->seed, rank, 0) & m->buckets_mask;

    while (m->buckets[i].rank != rank && m->buckets[i].rank != NO_RANK)
        i = (i + 1) & m->buckets_mask;
    return &m->buckets[i];
}

static int put_in_bucket(struct many *m, uint32_t rank, uint32_t at)
{
    struct bucket *k = bucket_of(m, rank);
    int32_t e = m->free;

    if (e >= 0) {
        m->free = m->entries[e].next;
    } else {
        e = (int32_t)m->n_entries++;
        m->entries = scratch_room(m->scratch, SCRATCH_MODEL_3, m->n_entries * sizeof *m->entries);
        if (!m->entries)
            return -ENOMEM;
    }
    if (k->rank == NO_RANK || !k->n) {
        *k = (struct bucket){ rank, 0, -1 };
        heap_push(m->waiting, &m->n_waiting, rank);
    }
    m->entries[e] = (struct entry){ at, k->first };
    k->first = e;
    k->n++;
    return 0;
}

/* The pair that now begins at a node. */
static int offer(struct many *m, int32_t at)
{
    struct node *node = &m->nodes[at];

    node->rank = node->next < 0 ? NO_RANK : rank_of(m->b, node->id, m->nodes[node->next].id);
    if (node->rank == NO_RANK)
        return 0;
    if (node->rank > m->rank || m->rank == NO_RANK)
        return put_in_bucket(m, node->rank, (uint32_t)at);
    m->urgent = scratch_room(m->scratch, SCRATCH_HEAP, (m->n_urgent + 1) * sizeof *m->urgent);
    if (!m->urgent)
        return -ENOMEM;
    heap_push(m->urgent, &m->n_urgent, (uint64_t)node->rank << 32 | (uint32_t)at);
    return 0;
}

/* An entry for a pair that made `result`. It counts when the pair that is there now makes the same. */
static int merge_at(struct many *m, uint32_t at, int32_t result)
{
    struct node *node = &m->nodes[at];
    int32_t gone = node->next;

    if (node->id < 0 || node->rank == NO_RANK || m->b->merges[node->rank].result != result)
        return 0;
    node->id = result;
    node->next = m->nodes[gone].next;
    m->nodes[gone].id = -1;
    if (node->next >= 0)
        m->nodes[node->next].prev = (int32_t)at;
    if (node->prev >= 0 && offer(m, node->prev) < 0)
        return -ENOMEM;
    return offer(m, (int32_t)at);
}

static int by_place(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

/* Takes the places of a bucket out of it, in order. What was put in last comes first, and most come in order. */
static int take_bucket(struct many *m, uint32_t rank, uint32_t *ret_n)
{
    struct bucket *k = bucket_of(m, rank);
    uint32_t n = k->n;
    bool in_order = true;

    m->places = scratch_room(m->scratch, SCRATCH_MODEL_4, n * sizeof *m->places);
    if (!m->places)
        return -ENOMEM;
    for (uint32_t i = n; i-- > 0;) {
        int32_t e = k->first;

        m->places[i] = m->entries[e].at;
        in_order = in_order && (i + 1 == n || m->places[i] <= m->places[i + 1]);
        k->first = m->entries[e].next;
        m->entries[e].next = m->free;
        m->free = e;
    }
    k->n = 0;
    if (!in_order)
        qsort(m->places, n, sizeof *m->places, by_place);
    *ret_n = n;
    return 0;
}

/* All entries of the lowest rank, and what they make urgent, in order of rank and place. */
static int merge_rank(struct many *m)
{
    uint32_t rank = (uint32_t)heap_pop(m->waiting, &m->n_waiting), n, i = 0;
    int r = take_bucket(m, rank, &n);

    m->rank = rank;
    while (r == 0 && (i < n || m->n_urgent)) {
        uint64_t next = i < n ? (uint64_t)rank << 32 | m->places[i] : UINT64_MAX;

        if (m->n_urgent && m->urgent[0] < next)
            next = heap_pop(m->urgent, &m->n_urgent);
        else
            i++;
        r = merge_at(m, (uint32_t)next, m->b->merges[next >> 32].result);
    }
    return r;
}

static int begin_many(struct many *m, const int32_t *ids, size_t n)
{
    uint32_t n_merges = m->b->n_merges;
    size_t ranks = 3 * n < n_merges ? 3 * n : n_merges;         /* n pairs at first, and two more a merge */
    uint32_t size = hash_size(ranks);

    m->nodes = scratch_room(m->scratch, SCRATCH_MODEL_2, n * sizeof *m->nodes);
    m->buckets = scratch_room(m->scratch, SCRATCH_MODEL_5, size * sizeof *m->buckets);
    m->waiting = scratch_room(m->scratch, SCRATCH_MODEL_6, (ranks + 1) * sizeof *m->waiting);
    if (!m->nodes || !m->buckets || !m->waiting)
        return -ENOMEM;
    memset(m->buckets, 0xFF, size * sizeof *m->buckets);
    m->buckets_mask = size - 1;
    for (size_t i = 0; i < n; i++)
        m->nodes[i] = (struct node){ ids[i], (int32_t)i - 1, i + 1 < n ? (int32_t)i + 1 : -1, NO_RANK };
    for (size_t i = 0; i + 1 < n; i++)
        if (offer(m, (int32_t)i) < 0)
            return -ENOMEM;
    return 0;
}

static int merge_many(const struct bpe *b, struct tok_scratch *scratch, int32_t *ids, size_t *io_n)
{
    struct many m = { .b = b, .scratch = scratch, .free = -1, .rank = NO_RANK };
    size_t n = 0;
    int r = *io_n < INT32_MAX / 4 ? begin_many(&m, ids, *io_n) : -ENOMEM;

    while (r == 0 && m.n_waiting)
        r = merge_rank(&m);
    if (r < 0)
        return r;
    for (int32_t i = 0; i >= 0; i = m.nodes[i].next)
        ids[n++] = m.nodes[i].id;
    *io_n = n;
    return 0;
}

static int merge(const struct bpe *b, struct tok_scratch *scratch, int32_t *ids, size_t *io_n)
{
    uint32_t ranks[FEW];
    size_t n = *io_n;

    if (n > FEW)
        return merge_many(b, scratch, ids, io_n);
    for (size_t i = 0; i + 1 < n; i++)
        ranks[i] = rank_of(b, ids[i], ids[i + 1]);
    *io_n = merge_few(b, ids, n, ranks);
    return 0;
}

/* A short piece of bytes that all have tokens. */
static size_t merge_short(const struct bpe *b, const char *piece, size_t len, int32_t ids[FEW])
{
    const unsigned char *p = (const unsigned char *)piece;
    uint32_t ranks[FEW];

    ids[0] = b->byte_ids[p[0]];
    for (size_t i = 1; i < len; i++) {
        ids[i] = b->byte_ids[p[i]];
        ranks[i - 1] = b->byte_ranks[p[i - 1] * 256 + p[i]];
    }
    return merge_few(b, ids, len, ranks);
}

/* Any piece. *ret lies in scratch, or is `few`. */
static int merge_piece(const struct bpe *b, const char *piece, size_t len, struct tok_scratch *scratch, int32_t few[FEW],
                       int32_t **ret, size_t *ret_n)
{
    const size_t prefix = b->spec.continuing_prefix.len, suffix = b->spec.end_suffix.len;
    struct symbols s = { .b = b };
    size_t most = len * (1 + prefix) + suffix + 1;
    int r;

    *ret = few;
    if (b->spec.byte_level && b->all_bytes && len <= FEW) {
        *ret_n = merge_short(b, piece, len, few);
        return 0;
    }
    s.ids = *ret = scratch_room(scratch, SCRATCH_SYMBOLS, most * sizeof *s.ids + prefix + suffix + 4);
    if (!s.ids)
        return -ENOMEM;
    if (b->spec.byte_level)
        add_bytes(&s, piece, len);
    else if (prefix || suffix)
        add_decorated(&s, piece, len, (char *)(s.ids + most));
    else
        add_characters(&s, piece, len);
    if (s.unk_waits)
        s.ids[s.n++] = b->spec.unk;
    r = merge(b, scratch, s.ids, &s.n);
    *ret_n = s.n;
    return r;
}

/* Whether the piece, which is token id's text, may be taken whole. *ret, *ret_n: as merge_piece(), when it had to be asked. */
static enum memo ask(const struct bpe *b, int32_t id, const char *piece, size_t len, struct tok_scratch *scratch, int32_t few[FEW],
                     int32_t **ret, size_t *ret_n, int *ret_r)
{
    enum memo memo = __atomic_load_n(&b->memo[id], __ATOMIC_RELAXED);

    *ret_r = 0;
    if (memo != NOT_ASKED)
        return memo;
    *ret_r = merge_piece(b, piece, len, scratch, few, ret, ret_n);
    if (*ret_r < 0)
        return NOT_ASKED;
    memo = *ret_n == 1 && (*ret)[0] == id ? ITSELF : NOT_ITSELF;
    __atomic_store_n(&b->memo[id], (uint8_t)memo, __ATOMIC_RELAXED);
    return NOT_ASKED;
}

static int encode_piece(const struct bpe *b, const char *piece, size_t len, struct tok_scratch *scratch, int32_t few[FEW],
                        int32_t **ret, size_t *ret_n)
{
    int32_t id = find_text(b, piece, len);
    enum memo memo;
    int r;

    *ret = few;
    if (id >= 0 && b->spec.ignore_merges) {
        few[0] = id;
        *ret_n = 1;
        return 0;
    }
    if (id >= 0) {
        memo = ask(b, id, piece, len, scratch, few, ret, ret_n, &r);
        if (memo == NOT_ASKED)
            return r;
        if (memo == ITSELF) {
            few[0] = id;
            *ret_n = 1;
            return 0;
        }
    }
    return merge_piece(b, piece, len, scratch, few, ret, ret_n);
}

/* A piece, through the cache where it fits. */
static int encode_cached(const struct bpe *b, const char *piece, size_t len, struct tok_scratch *scratch, struct token_list *out)
{
    int32_t few[FEW], *ids = few;
    uint64_t *slot = NULL;
    struct key key;
    size_t n = 0;
    int r;

    if (len <= CACHE_KEY) {
        key = key_of(piece, len);
        slot = cache_slot(b, &key, len);
        n = cache_read(slot, &key, len, few);
        if (n)
            return token_list_add_all(out, few, n);
    }
    r = encode_piece(b, piece, len, scratch, few, &ids, &n);
    if (r < 0)
        return r;
    if (slot && n && n <= CACHE_IDS)
        cache_write(slot, &key, len, ids, n);
    return token_list_add_all(out, ids, n);
}

/* Where the part of a long piece that begins at `from` ends: the next place that no merge can cross, and that no unknown waits at. */
static size_t next_cut(const struct bpe *b, const char *piece, size_t len, size_t from)
{
    uint32_t before = BMP;

    for (size_t at = from, n; at < len; at += n) {
        uint32_t c = 0;
        int r = utf8_decode(piece + at, len - at, &c);
        bool known = r > 0 && c < BMP && b->char_ids[c] >= 0;

        n = r > 0 ? (size_t)r : 1;
        if (known && before < BMP) {
            uint32_t bit = inner_bit(before, c);

            if (!(b->inner[bit >> 3] & 1 << (bit & 7)))
                return at;
        }
        before = known ? c : BMP;
    }
    return len;
}

static int bpe_encode(const struct tok_model *m, const char *piece, size_t len, struct tok_scratch *scratch, struct token_list *out)
{
    const struct bpe *b = (const struct bpe *)m;
    int r = 0;

    if (!b->inner || len <= CACHE_KEY || b->spec.ignore_merges)
        return encode_cached(b, piece, len, scratch, out);
    for (size_t from = 0, end; from < len && r == 0; from = end) {
        end = next_cut(b, piece, len, from);
        r = encode_cached(b, piece + from, end - from, scratch, out);
    }
    return r;
}

static const struct tok_model_ops bpe_ops = { "BPE", bpe_encode, bpe_free };

static struct tok_model *model_of(struct bpe *b)
{
    return b ? &b->model : NULL;
}

int bpe_new(const struct bpe_spec *spec, struct tok_model **ret)
{
    struct bpe *b = calloc(1, sizeof *b);
    CLEANUP(tok_model_free) struct tok_model *m = model_of(b);
    bool decorated = spec->continuing_prefix.len || spec->end_suffix.len;
    int r;

    if (!b)
        return -ENOMEM;
    b->model.ops = &bpe_ops;
    b->spec = *spec;
    b->spec.merges = NULL;                      /* the caller's */
    b->spec.n_merges = 0;
    b->seed = id_random_u64();
    if (spec->n_merges > BPE_MAX_MERGES)
        return -E2BIG;
    b->memo = calloc(vocab_size(spec->vocab) + 1, 1);
    if (!b->memo || copy_decorations(b) < 0 || make_cache(b) < 0)
        return -ENOMEM;
    r = fill_pairs(b, spec);
    if (r < 0)
        return r;
    fill_byte_ids(b);
    if (spec->byte_level && fill_byte_ranks(b) < 0)
        return -ENOMEM;
    if (!spec->byte_level && !decorated && (fill_char_ids(b) < 0 || fill_inner(b) < 0))
        return -ENOMEM;
    *ret = STEAL(m);
    return 0;
}

/* The result's text, for a look-up: in `few` where it fits. */
static int32_t find_joined(const struct vocab *v, struct tok_str a, struct tok_str b)
{
    char few[256], *text = few;
    size_t len = (size_t)a.len + b.len;
    int32_t id;

    if (len > sizeof few && !(text = malloc(len)))
        return -1;
    memcpy(text, a.text, a.len);
    memcpy(text + a.len, b.text, b.len);
    id = vocab_find(v, text, len);
    if (text != few)
        free(text);
    return id;
}

static bool is_joined(struct tok_str s, struct tok_str left, struct tok_str right)
{
    return s.text && s.len == left.len + right.len && memcmp(s.text, left.text, left.len) == 0 &&
           memcmp(s.text + left.len, right.text, right.len) == 0;
}

/* At most VOCAB_FIND_MANY. */
static int find_merges(const struct vocab *v, const struct tok_str *lefts, const struct tok_str *rights, size_t n, size_t skip, int32_t last,
                       struct bpe_merge *ret, size_t *ret_bad)
{
    int32_t left_ids[VOCAB_FIND_MANY], right_ids[VOCAB_FIND_MANY];

    vocab_find_many(v, lefts, n, left_ids);
    vocab_find_many(v, rights, n, right_ids);
    for (size_t i = 0; i < n; i++) {
        struct tok_str rest = rights[i];

        *ret_bad = i;
        if (left_ids[i] < 0 || right_ids[i] < 0 || skip > rest.len)
            return -EINVAL;
        rest = (struct tok_str){ rest.text + skip, rest.len - (uint32_t)skip };
        if (!is_joined(vocab_text(v, last), lefts[i], rest) && !is_joined(vocab_text(v, ++last), lefts[i], rest))
            last = find_joined(v, lefts[i], rest);
        if (last < 0)
            return -EINVAL;
        ret[i] = (struct bpe_merge){ left_ids[i], right_ids[i], last };
    }
    return 0;
}

int bpe_merges_find(const struct vocab *v, const struct tok_str *lefts, const struct tok_str *rights, size_t n, size_t skip, int32_t last,
                    struct bpe_merge *ret, size_t *ret_bad)
{
    int r = 0;

    for (size_t i = 0, some; i < n && r == 0; i += some) {
        some = n - i < VOCAB_FIND_MANY ? n - i : VOCAB_FIND_MANY;
        r = find_merges(v, lefts + i, rights + i, some, skip, i ? ret[i - 1].result : last, ret + i, ret_bad);
        *ret_bad += i;
    }
    return r;
}
