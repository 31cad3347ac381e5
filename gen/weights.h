/* weights.h - memory for packed weights that other processes of the same model can map.
 *
 * Who packs first does so into a memory file, seals it (nobody can write or resize it any more) and hands its
 * descriptor on; whoever gets it maps it read-only, and the pages exist once. The file begins with a page that says
 * what it holds: the model's file (gguf_identity()) and how its matrices lie in it (a hash that model_load.c makes).
 * Nothing is taken on trust: seals, size and both numbers must be right, or it is refused with a reason.
 *
 * Weights are read whole for every token, and 4-KiB pages cost that 5-20 % (slab.h). Shared memory gets huge pages
 * only where an administrator switched them on, but MADV_COLLAPSE (Linux 6.1) makes some whatever that switch says,
 * and whoever maps the file later has them for nothing.
 *
 * Layout   head[4096], data[bytes]
 * Threads  one caller at a time; weights_make() uses the pool
 * Source   memfd_create(2), madvise(2)
 */
#ifndef GEN_WEIGHTS_H
#define GEN_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct engine_pulse;
struct err;
struct pool;

enum weights_want {
    WEIGHTS_PRIVATE,
    WEIGHTS_FREE,               /* shared where reading them is as fast as private ones */
    WEIGHTS_SHARED,             /* shared also where it is slower */
};

/* What a process of a model is given and gives. */
struct weights_share {
    enum weights_want want;
    int given;                  /* those of an earlier process, or -1; the caller's */
    bool taken;                 /* out: they are in use, nothing was packed */
    int made;                   /* out: new ones, sealed, the caller's to close; or -1 */
    char why[256];              /* out: why the given ones are not in use; "" */
};

struct weights_key { uint64_t file, layout; };

struct weights {
    uint8_t *data;              /* [bytes], aligned to 64; read-only once sealed */
    size_t bytes;
    int fd;                     /* -1: private memory, or given away */
    void *map;
    size_t map_bytes;           /* 0: a slab */
};

/* Zeroed memory to pack into; private where no other can be had. `pulse` may be NULL. -ENOMEM. */
int weights_make(enum weights_want want, size_t bytes, struct pool *pool, struct engine_pulse *pulse, struct weights *ret,
                 struct err *err);
/* They are packed: from now on nobody can change them. Their address stays. Nothing for private ones. On failure
 * they are gone. */
int weights_seal(struct weights *w, const struct weights_key *key, struct err *err);
/* Maps those of another process. -EINVAL with the reason: not sealed, of another size, of another file, laid out
 * otherwise. fd stays the caller's. */
int weights_take(int fd, const struct weights_key *key, size_t bytes, struct weights *ret, struct err *err);
void weights_free(struct weights *w);               /* zeroes are fine */

/* Memory that is there already if the given ones are taken; 0 where there are none. */
size_t weights_given_bytes(const struct weights_share *share);      /* NULL is fine */

/* FNV-1a, for keys; begins with WEIGHTS_HASH. */
#define WEIGHTS_HASH UINT64_C(0xcbf29ce484222325)
uint64_t weights_hash(uint64_t h, const void *data, size_t len);

#endif
