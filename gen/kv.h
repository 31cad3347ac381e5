/* kv.h - the paged key/value cache: which pages are lent and which are free.
 *
 * One slab, allocated once, cut into pages of KV_PAGE positions. A sequence
 * holds page numbers, not addresses, so growing it never moves attention
 * state. A page number names the same page in every layer. Who gets a page and
 * who waits is policy and lives in sched.h; what is in a page is model.h's.
 *
 * Layout   [n_layers][n_pages][n_kv_heads]{ K[head_dim][KV_PAGE], V[KV_PAGE][head_dim] } fp16:
 *          one sequence's part of a layer is a few long runs, and a score
 *          kernel reads 16 positions of one dimension at once
 * Threads  taking and giving: one thread; reading and writing pages: whoever
 *          the forward pass says
 * Source   PagedAttention, arXiv:2309.06180, section 4
 */
#ifndef GEN_KV_H
#define GEN_KV_H

#include "base/cleanup.h"

#include <stddef.h>
#include <stdint.h>

struct err;
struct kv;

enum { KV_PAGE = 16 };          /* positions in a page */
enum { KV_FULL = 1 };           /* kv_take: nothing free, nothing changed */

struct kv_shape { uint32_t n_layers, n_kv_heads, head_dim, n_pages; };

/* 0 and a cache the caller closes; -EINVAL for a shape that is empty or too
 * large to count; -ENOMEM. On failure *ret is untouched and err says why. */
int kv_open(const struct kv_shape *shape, struct kv **ret, struct err *err);
void kv_close(struct kv *kv);                       /* NULL is fine */
DEFINE_CLEANUP(struct kv *, kv_close)

int kv_take(struct kv *kv, uint32_t *ret_page);     /* 0 or KV_FULL */
void kv_give(struct kv *kv, uint32_t page);         /* page is on loan */
uint32_t kv_pages(const struct kv *kv);
uint32_t kv_free_pages(const struct kv *kv);
size_t kv_bytes(const struct kv *kv);               /* of the slab */

/* K[head_dim][KV_PAGE] and V[KV_PAGE][head_dim] of one head. */
uint16_t *kv_k(struct kv *kv, uint32_t layer, uint32_t page, uint32_t head);
uint16_t *kv_v(struct kv *kv, uint32_t layer, uint32_t page, uint32_t head);
/* From a head in one page to the same head in the next, in elements. */
size_t kv_page_stride(const struct kv *kv);

#endif
