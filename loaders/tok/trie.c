/* Built from sorted keys, a node at a time: the keys that share what was read so far are one range, and
 * the ranges that still wait lie on a stack, so depth costs no recursion. Only the last few blocks are looked at
 * for room, and one that was tried in vain often enough no more: that keeps the search for a
 * base short at the price of some empty slots.
 *
 * Slot 0 is the root. A slot without a parent is free; no node's base reaches a slot that is not there,
 * for slots come in whole blocks.
 */
#include "loaders/tok/trie.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

enum { BLOCK = 256, OPEN_BLOCKS = 16, MAX_VAIN = 32 };
#define FREE UINT32_MAX

struct range { size_t low, high; uint32_t depth, node; };

/* The free slots of one of the last blocks. */
struct room { uint64_t free[BLOCK / 64]; unsigned vain; };

struct build {
    struct trie *t;
    struct room rooms[OPEN_BLOCKS];     /* of block i at i % OPEN_BLOCKS */
    const struct trie_key *keys;
    size_t cap;
    struct range *stack;
    size_t n_stack, cap_stack;
};

static int by_text(const void *a, const void *b)
{
    const struct trie_key *x = a, *y = b;
    uint32_t len = x->len < y->len ? x->len : y->len;
    int r = memcmp(x->text, y->text, len);

    if (r || x->len != y->len)
        return r ? r : x->len < y->len ? -1 : 1;
    return x->value < y->value ? -1 : x->value > y->value;
}

static int add_block(struct build *b)
{
    struct trie *t = b->t;
    struct room *room;

    if (t->n_nodes + BLOCK > b->cap) {
        size_t cap = b->cap ? b->cap * 2 : 16 * BLOCK;
        struct trie_node *nodes = reallocarray(t->nodes, cap, sizeof *nodes);

        if (!nodes)
            return -ENOMEM;
        t->nodes = nodes;
        b->cap = cap;
    }
    for (uint32_t i = 0; i < BLOCK; i++)
        t->nodes[t->n_nodes + i] = (struct trie_node){ .parent = FREE, .value = -1 };
    room = &b->rooms[t->n_nodes / BLOCK % OPEN_BLOCKS];
    memset(room->free, 0xFF, sizeof room->free);
    room->vain = 0;
    t->n_nodes += BLOCK;
    return 0;
}

static bool is_free(const struct room *r, unsigned slot)
{
    return r->free[slot / 64] >> slot % 64 & 1;
}

/* A slot for the first label that leaves the others free too, or -1. Labels ascend. */
static int fit(const struct room *r, const unsigned char *labels, size_t n)
{
    for (unsigned word = 0; word < BLOCK / 64; word++)
        for (uint64_t bits = r->free[word]; bits; bits &= bits - 1) {
            unsigned base = (word * 64 + (unsigned)__builtin_ctzll(bits)) ^ labels[0];
            size_t i = 1;

            while (i < n && is_free(r, base ^ labels[i]))
                i++;
            if (i == n)
                return (int)base;
        }
    return -1;
}

static int find_base(struct build *b, const unsigned char *labels, size_t n, uint32_t *ret)
{
    uint32_t n_blocks = b->t->n_nodes / BLOCK, first = n_blocks > OPEN_BLOCKS ? n_blocks - OPEN_BLOCKS : 0;

    for (uint32_t block = first; block < n_blocks; block++) {
        struct room *r = &b->rooms[block % OPEN_BLOCKS];
        int base = r->vain < MAX_VAIN ? fit(r, labels, n) : -1;

        if (base >= 0) {
            *ret = block * BLOCK + (uint32_t)base;
            return 0;
        }
        r->vain++;
    }
    *ret = b->t->n_nodes;
    return add_block(b);
}

static int push(struct build *b, struct range r)
{
    if (b->n_stack == b->cap_stack) {
        size_t cap = b->cap_stack ? b->cap_stack * 2 : 256;
        struct range *stack = reallocarray(b->stack, cap, sizeof *stack);

        if (!stack)
            return -ENOMEM;
        b->stack = stack;
        b->cap_stack = cap;
    }
    b->stack[b->n_stack++] = r;
    return 0;
}

static void take(struct build *b, uint32_t slot, uint32_t parent)
{
    b->t->nodes[slot].parent = parent;
    b->rooms[slot / BLOCK % OPEN_BLOCKS].free[slot % BLOCK / 64] &= ~(UINT64_C(1) << slot % 64);
}

static int expand(struct build *b, struct range r)
{
    unsigned char labels[BLOCK];
    size_t starts[BLOCK + 1], n = 0;
    uint32_t base;
    int e;

    for (; r.low < r.high && b->keys[r.low].len == r.depth; r.low++)
        if (b->t->nodes[r.node].value < 0)
            b->t->nodes[r.node].value = b->keys[r.low].value;
    for (size_t i = r.low; i < r.high; i++) {
        unsigned char c = (unsigned char)b->keys[i].text[r.depth];

        if (n == 0 || labels[n - 1] != c) {
            labels[n] = c;
            starts[n++] = i;
        }
    }
    if (n == 0)
        return 0;
    starts[n] = r.high;
    e = find_base(b, labels, n, &base);
    if (e < 0)
        return e;
    b->t->nodes[r.node].base = base;
    for (size_t i = 0; i < n; i++)
        take(b, base ^ labels[i], r.node);
    for (size_t i = n; i-- > 0 && e == 0;)
        e = push(b, (struct range){ starts[i], starts[i + 1], r.depth + 1, base ^ labels[i] });
    return e;
}

int trie_new(struct trie_key *keys, size_t n, struct trie **ret)
{
    CLEANUP(trie_free) struct trie *t = calloc(1, sizeof *t);
    struct build b = { .t = t, .keys = keys };
    uint64_t bytes = 0;
    int r;

    if (!t)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        bytes += keys[i].len;
    if (bytes > TRIE_MAX_BYTES)
        return -E2BIG;
    if (n)
        qsort(keys, n, sizeof *keys, by_text);
    r = add_block(&b);
    if (r == 0) {
        take(&b, TRIE_ROOT, FREE - 1);              /* no node's child */
        r = push(&b, (struct range){ 0, n, 0, TRIE_ROOT });
    }
    while (r == 0 && b.n_stack)
        r = expand(&b, b.stack[--b.n_stack]);
    free(b.stack);
    if (r < 0)
        return r;
    *ret = STEAL(t);
    return 0;
}

void trie_free(struct trie *t)
{
    if (!t)
        return;
    free(t->nodes);
    free(t);
}

int32_t trie_longest(const struct trie *t, const char *text, size_t len, size_t *ret_len)
{
    int32_t found = -1;
    int64_t node = TRIE_ROOT;

    *ret_len = 0;
    for (size_t i = 0; i < len && (node = trie_step(t, (uint32_t)node, (unsigned char)text[i])) >= 0; i++)
        if (t->nodes[node].value >= 0) {
            found = t->nodes[node].value;
            *ret_len = i + 1;
        }
    return found;
}
