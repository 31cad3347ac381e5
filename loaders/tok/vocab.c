/* Texts lie one behind the other in one block, ids are indices into an array of places, and a hash table leads from a text
 * to its id. A slot is the id with a few bits of the hash above it: a look-up that fails touches one cache line, one that finds, three.
 * Loading is part of a worker's start, so nothing is allocated per token.
 */
#include "loaders/tok/tok.h"

#include "base/id.h"
#include "loaders/tok/hash.h"
#include "loaders/tok/trie.h"

#include <errno.h>

struct place { uint32_t at, len; };
enum { ID_MASK = TOKENIZER_MAX_VOCAB - 1 };
#define FREE UINT32_MAX

struct vocab {
    uint64_t seed;
    char *bytes;
    size_t n_bytes, cap_bytes;
    struct place *places;
    uint8_t *kinds;                             /* 0: no such id */
    uint32_t n, cap;
    uint32_t *slots;
    uint32_t n_slots, n_used;
};

/* The bits of a hash that a slot keeps: never all ones. */
static uint32_t tag_of(uint64_t hash)
{
    uint32_t tag = (uint32_t)(hash >> 32) & ~(uint32_t)ID_MASK;

    return tag == ~(uint32_t)ID_MASK ? 0 : tag;
}

static int grow_slots(struct vocab *v, uint32_t n_slots)
{
    uint32_t *slots = malloc(n_slots * sizeof *slots);

    if (!slots)
        return -ENOMEM;
    memset(slots, 0xFF, n_slots * sizeof *slots);
    for (uint32_t i = 0; i < v->n_slots; i++) {
        const struct place *p;
        uint32_t at;

        if (v->slots[i] == FREE)
            continue;
        p = &v->places[v->slots[i] & ID_MASK];
        at = (uint32_t)hash_bytes(v->seed, v->bytes + p->at, p->len) & (n_slots - 1);
        while (slots[at] != FREE)
            at = (at + 1) & (n_slots - 1);
        slots[at] = v->slots[i];
    }
    free(v->slots);
    v->slots = slots;
    v->n_slots = n_slots;
    return 0;
}

static int grow_ids(struct vocab *v, uint32_t cap)
{
    struct place *places = reallocarray(v->places, cap, sizeof *places);
    uint8_t *kinds;

    if (!places)
        return -ENOMEM;
    v->places = places;
    kinds = realloc(v->kinds, cap);
    if (!kinds)
        return -ENOMEM;
    v->kinds = kinds;
    memset(kinds + v->cap, 0, cap - v->cap);
    v->cap = cap;
    return 0;
}

static int grow_bytes(struct vocab *v, size_t cap)
{
    char *bytes = realloc(v->bytes, cap);

    if (!bytes)
        return -ENOMEM;
    v->bytes = bytes;
    v->cap_bytes = cap;
    return 0;
}

int vocab_new(uint32_t n_hint, size_t bytes_hint, struct vocab **ret)
{
    CLEANUP(vocab_free) struct vocab *v = calloc(1, sizeof *v);

    n_hint = n_hint < 64 ? 64 : n_hint > TOKENIZER_MAX_VOCAB ? TOKENIZER_MAX_VOCAB : n_hint;
    bytes_hint = bytes_hint < 1024 ? 1024 : bytes_hint > TOKENIZER_MAX_FILE ? TOKENIZER_MAX_FILE : bytes_hint;
    if (!v || grow_slots(v, hash_size(n_hint)) < 0 || grow_ids(v, n_hint) < 0 || grow_bytes(v, bytes_hint) < 0)
        return -ENOMEM;
    v->seed = id_random_u64();
    *ret = STEAL(v);
    return 0;
}

void vocab_free(struct vocab *v)
{
    if (!v)
        return;
    free(v->bytes);
    free(v->places);
    free(v->kinds);
    free(v->slots);
    free(v);
}

/* The slot that holds the text, or the free one where it would go. */
static uint32_t *find_slot(const struct vocab *v, const char *text, size_t len, uint64_t hash)
{
    uint32_t tag = tag_of(hash);

    for (uint32_t i = (uint32_t)hash & (v->n_slots - 1);; i = (i + 1) & (v->n_slots - 1)) {
        uint32_t *s = &v->slots[i];
        const struct place *p;

        if (*s == FREE)
            return s;
        if ((*s & ~(uint32_t)ID_MASK) != tag)
            continue;
        p = &v->places[*s & ID_MASK];
        if (p->len == len && memcmp(v->bytes + p->at, text, len) == 0)
            return s;
    }
}

static int32_t id_in(uint32_t slot)
{
    return slot == FREE ? -1 : (int32_t)(slot & ID_MASK);
}

int vocab_put(struct vocab *v, int32_t id, const char *text, size_t len, enum token_kind kind)
{
    uint32_t i = (uint32_t)id;
    uint64_t hash;
    uint32_t *s;

    if (id < 0 || id >= TOKENIZER_MAX_VOCAB || len > UINT32_MAX - v->n_bytes)
        return -E2BIG;
    if (i < v->n && v->kinds[i])
        return -EEXIST;
    if (i >= v->cap && grow_ids(v, i < v->cap * 2 ? v->cap * 2 : i + 1) < 0)
        return -ENOMEM;
    if (len > v->cap_bytes - v->n_bytes && grow_bytes(v, (v->n_bytes + len) * 2) < 0)
        return -ENOMEM;
    if (v->n_used >= v->n_slots / 3 * 2 && grow_slots(v, v->n_slots * 2) < 0)
        return -ENOMEM;
    if (len)
        memcpy(v->bytes + v->n_bytes, text, len);
    v->places[i] = (struct place){ (uint32_t)v->n_bytes, (uint32_t)len };
    v->kinds[i] = (uint8_t)kind;
    v->n_bytes += len;
    v->n = i >= v->n ? i + 1 : v->n;
    if (!len)
        return 0;
    hash = hash_bytes(v->seed, text, len);
    s = find_slot(v, text, len, hash);
    if (*s == FREE) {
        *s = tag_of(hash) | i;
        v->n_used++;
    }
    return 0;
}

int32_t vocab_find(const struct vocab *v, const char *text, size_t len)
{
    return len ? id_in(*find_slot(v, text, len, hash_bytes(v->seed, text, len))) : -1;
}

void vocab_find_many(const struct vocab *v, const struct tok_str *texts, size_t n, int32_t *ret_ids)
{
    uint64_t hashes[VOCAB_FIND_MANY];

    for (size_t i = 0; i < n; i++) {
        hashes[i] = hash_bytes(v->seed, texts[i].text, texts[i].len);
        __builtin_prefetch(&v->slots[(uint32_t)hashes[i] & (v->n_slots - 1)]);
    }
    for (size_t i = 0; i < n; i++) {
        ret_ids[i] = id_in(v->slots[(uint32_t)hashes[i] & (v->n_slots - 1)]);
        if (ret_ids[i] >= 0)
            __builtin_prefetch(&v->places[ret_ids[i]]);
    }
    for (size_t i = 0; i < n; i++)
        if (ret_ids[i] >= 0)
            __builtin_prefetch(v->bytes + v->places[ret_ids[i]].at);
    for (size_t i = 0; i < n; i++)
        ret_ids[i] = texts[i].len ? id_in(*find_slot(v, texts[i].text, texts[i].len, hashes[i])) : -1;
}

static bool is_id(const struct vocab *v, int32_t id)
{
    return id >= 0 && (uint32_t)id < v->n && v->kinds[id];
}

struct tok_str vocab_text(const struct vocab *v, int32_t id)
{
    if (!is_id(v, id))
        return (struct tok_str){ NULL, 0 };
    return (struct tok_str){ v->bytes + v->places[id].at, v->places[id].len };
}

enum token_kind vocab_kind(const struct vocab *v, int32_t id)
{
    return is_id(v, id) ? v->kinds[id] : TOK_NONE;
}

void vocab_set_kind(struct vocab *v, int32_t id, enum token_kind kind)
{
    if (is_id(v, id))
        v->kinds[id] = (uint8_t)kind;
}

uint32_t vocab_size(const struct vocab *v)
{
    return v->n;
}

int vocab_trie(const struct vocab *v, uint32_t kinds, struct trie **ret)
{
    CLEANUP(mem_free) struct trie_key *keys = calloc((size_t)v->n + 1, sizeof *keys);
    size_t n = 0;

    if (!keys)
        return -ENOMEM;
    for (uint32_t id = 0; id < v->n; id++) {
        struct tok_str s = vocab_text(v, (int32_t)id);

        if (s.len && kinds >> v->kinds[id] & 1)
            keys[n++] = (struct trie_key){ s.text, s.len, (int32_t)id };
    }
    return trie_new(keys, n, ret);
}
