/* trie.h - strings to numbers, walked byte by byte: which strings begin here, and which is the longest.
 *
 * A double array: the child of node n for byte c is base(n) ^ c, and is one when it says that n is its parent.
 * So a step costs one look at memory. Children of a node lie within one block of 256 slots.
 *
 * Threads  constant once made
 * Source   Aoe, "An efficient digital search algorithm by using a double-array structure", 1989; the
 *          choice of base by exclusive or: S. Yata's darts-clone
 */
#ifndef LOADERS_TOK_TRIE_H
#define LOADERS_TOK_TRIE_H

#include "base/cleanup.h"

#include <stddef.h>
#include <stdint.h>

struct trie_key { const char *text; uint32_t len; int32_t value; };

struct trie_node { uint32_t base, parent; int32_t value; };      /* value -1: no string ends here */
struct trie { struct trie_node *nodes; uint32_t n_nodes; };

enum { TRIE_ROOT = 0, TRIE_NONE = -1 };
enum { TRIE_MAX_BYTES = 1 << 25 };      /* of all keys: a node can cost 12 bytes a byte, and more at the edges */

/* Of keys that are not empty; sorts them. Of equal strings the least value counts. 0; -E2BIG; -ENOMEM. */
int trie_new(struct trie_key *keys, size_t n, struct trie **ret);
void trie_free(struct trie *t);                     /* NULL is fine */
DEFINE_CLEANUP(struct trie *, trie_free)

/* The node behind node `from` for byte c, or TRIE_NONE. */
static inline int64_t trie_step(const struct trie *t, uint32_t from, unsigned char c)
{
    uint32_t to = t->nodes[from].base ^ c;

    return t->nodes[to].parent == from ? (int64_t)to : TRIE_NONE;
}

/* The longest string at text, its length in *ret_len (0: none). */
int32_t trie_longest(const struct trie *t, const char *text, size_t len, size_t *ret_len);

#endif
