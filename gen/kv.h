/* kv.h - the paged key/value cache: which pages are lent and which are free.
 *
 * One slab, allocated once, cut into pages of KV_PAGE positions. A sequence
 * holds page numbers, not addresses, so growing it never moves attention
 * state. A page number names the same page in every layer. Who gets a page and
 * who waits is policy and lives in sched.h; what is in a page is model.h's.
 *
 * Layout   [n_pages][n_layers][n_kv_heads]{ K[head_dim][KV_PAGE], V[KV_PAGE][head_dim] }:
 *          a score kernel reads 16 positions of one dimension at once. All layers of a page
 *          lie together, so what a sequence is the first to write are few new pages of memory:
 *          with the layers apart its first pass asked for 2 MiB in each, 0.2 s in a virtual machine.
 *          KV_F16, KV_BF16: elements of 16 bits.
 *          KV_Q8: int8 from -127 to 127, then, behind K and behind V, their scales,
 *          bf16 [head_dim / 16][KV_PAGE]: one for 16 dimensions of a position. 9 bits an
 *          element, as fine as what one thread stores at once; a NaN among these
 *          dimensions makes the scale one.
 * Threads  taking and giving: one thread; reading and writing pages: whoever
 *          the forward pass says
 * Source   PagedAttention, arXiv:2309.06180, section 4
 */
#ifndef GEN_KV_H
#define GEN_KV_H

#include "base/cleanup.h"
#include "gen/cpu/kernels.h"

#include <stddef.h>
#include <stdint.h>

struct err;
struct kv;

enum { KV_PAGE = KERNEL_PAGE }; /* positions in a page */
enum { KV_FULL = 1 };           /* kv_take: nothing free, nothing changed */

/* KV_Q8, and all kernels: head_dim is a multiple of 16. */
struct kv_shape { uint32_t n_layers, n_kv_heads, head_dim, n_pages; enum kv_type type; };

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

enum kv_type kv_type(const struct kv *kv);

/* K and V of one head in one page, and in all pages. */
uint8_t *kv_page(struct kv *kv, uint32_t layer, uint32_t page, uint32_t head);
struct kv_view kv_view(struct kv *kv, uint32_t layer, uint32_t head);

/* Of K and V of one head in one page. */
size_t kv_page_bytes(enum kv_type type, uint32_t head_dim);

const char *kv_type_name(enum kv_type type);        /* "f16", "bf16", "q8" */
/* 0, or -EINVAL and the names that there are. NULL and "" are "f16". */
int kv_type_read(const char *name, enum kv_type *ret, struct err *err);

#endif
