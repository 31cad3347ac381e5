/* slab.h - large zeroed memory straight from the kernel: packed weights, the
 * key/value cache, scratch.
 *
 * Asked for in huge pages (4-KiB pages cost the weight stream 5-20 % where
 * address translation is virtualised); where there are none it is ordinary
 * memory. Pages appear when they are first written, so the thread that packs a
 * weight decides on which node it lives.
 */
#ifndef GEN_SLAB_H
#define GEN_SLAB_H

#include <stddef.h>

/* Zeroed, aligned to 64 bytes at least; NULL when the kernel refuses. bytes > 0. */
void *slab_map(size_t bytes);
void slab_unmap(void *slab, size_t bytes);          /* NULL is fine */

#endif
