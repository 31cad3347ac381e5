/* prefix.h - pages of prompts that were read before, for who begins alike.
 *
 * A page is known by what was before it and what is in it: its parent, which
 * is the page before, its KV_PAGE tokens, and a salt. A request whose prompt
 * begins with the same tokens under the same salt takes the pages instead of
 * computing them. Pages outlive the request that wrote them; one that nobody
 * uses stays until its place is needed, the one longest out of use first. A
 * page never goes before those that follow it: who uses a page uses its parent
 * too, so a parent is never longer out of use than they are.
 *
 * Only whole pages whose positions were all written as rows of a prompt may be
 * put here: with what a row of a prompt takes (cpu/prompt.h) they are the same
 * bits whoever computed them. Two of the same page therefore become one.
 *
 * A hash finds a page, it never decides: tokens, salt and parent are compared,
 * and the parent was compared before, so what is found is what was asked for.
 * The hash is keyed by a secret of the process: nobody makes chains long by choice.
 *
 * kv.h lends the pages; here is which of them are known and who uses them.
 *
 * Memory   128 bytes a page of the cache, all of it at prefix_open()
 * Threads  prefix_chain() from any; all else one at a time
 * Source   automatic prefix caching: vLLM, docs/design/prefix_caching.md; SipHash,
 *          Aumasson and Bernstein, 2012
 */
#ifndef GEN_PREFIX_H
#define GEN_PREFIX_H

#include "base/cleanup.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct kv;
struct prefix;

enum { PREFIX_ROOT = UINT32_MAX };      /* the parent of first pages */

struct prefix_salt { uint64_t part[2]; };

/* What page `parent` is followed by. */
struct prefix_key {
    uint32_t parent;                    /* a page that the caller uses, or PREFIX_ROOT */
    uint64_t hash;                      /* of prefix_chain() */
    struct prefix_salt salt;
    const int32_t *tokens;              /* [KV_PAGE] */
};

/* For the pages of `kv`, which outlives it. -ENOMEM. */
int prefix_open(struct kv *kv, struct prefix **ret, struct err *err);
void prefix_close(struct prefix *p);    /* NULL is fine; gives no page back */
DEFINE_CLEANUP(struct prefix *, prefix_close)

/* The hash of each whole page of a prompt: ret[n_tokens / KV_PAGE]. */
void prefix_chain(const struct prefix *p, const struct prefix_salt *salt, const int32_t *tokens,
                  size_t n_tokens, uint64_t *ret);

/* True: *ret_page is it, and has one more user. */
bool prefix_take(struct prefix *p, const struct prefix_key *key, uint32_t *ret_page);
/* Makes `page`, on loan to the caller, known, with the caller as its user. Returns the page to
 * go on with: this one, or the one that was known for it already, and then `page` was given back. */
uint32_t prefix_put(struct prefix *p, const struct prefix_key *key, uint32_t page);
/* One user less. A sequence leaves its last page first. */
void prefix_leave(struct prefix *p, uint32_t page);
/* Gives a page that nobody uses back to kv; false: there is none. */
bool prefix_evict(struct prefix *p);

uint32_t prefix_pages(const struct prefix *p);      /* known */
uint32_t prefix_idle(const struct prefix *p);       /* known, and used by nobody */

#endif
