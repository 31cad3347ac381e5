#include "gen/weights.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "gen/cpu/pool.h"
#include "gen/engine.h"
#include "gen/slab.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  /* Linux 5.14 */
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25        /* Linux 6.1 */
#endif

enum {
    HEAD = 4096,
    SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL,
};
static const size_t HUGE_PAGE = 2 << 20, MANY = 64 << 20;
static const char MAGIC[8] = "FCHWGHT1";

struct head {
    char magic[8];
    uint64_t bytes, file, layout;
};

uint64_t weights_hash(uint64_t h, const void *data, size_t len)
{
    const uint8_t *p = data;

    for (size_t i = 0; i < len; i++)
        h = (h ^ p[i]) * UINT64_C(0x100000001b3);
    return h;
}

/* ---- mapping ---- */

/* In place of what is mapped there. Before Linux 6.7 what is sealed can not be mapped shared, only private, which
 * shares its pages as well. */
static int map_at(void *at, int fd, size_t bytes, int prot)
{
    if (mmap(at, bytes, prot, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED ||
        (errno == EPERM && !(prot & PROT_WRITE) && mmap(at, bytes, prot, MAP_PRIVATE | MAP_FIXED, fd, 0) != MAP_FAILED))
        return 0;
    return -errno;
}

/* A huge page needs an address that its place in the file fits. NULL: no memory. */
static uint8_t *map_file(int fd, size_t bytes, int prot)
{
    uint8_t *room = mmap(NULL, bytes + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0), *at;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page;
    size_t before;

    if (room == MAP_FAILED)
        return NULL;
    at = (uint8_t *)(((uintptr_t)room + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
    before = (size_t)(at - room);
    if (map_at(at, fd, bytes, prot)) {
        munmap(room, bytes + HUGE_PAGE);
        return NULL;
    }
    if (before)
        munmap(room, before);
    munmap(at + whole, bytes + HUGE_PAGE - before - whole);
    return at;
}

/* ---- making ---- */

struct filling {
    uint8_t *map;
    size_t bytes;
    uint32_t threads;
    struct engine_pulse *pulse;
    atomic_bool no_memory;
};

/* Pages for [at, at + n), of which the first is enough for a whole huge one. False: there is no memory, which
 * would be a signal later. */
static bool fill(uint8_t *at, size_t n)
{
    bool huge = n >= HUGE_PAGE;

    for (size_t i = 0; huge && i + HUGE_PAGE <= n; i += HUGE_PAGE)
        huge = madvise(at + i, HEAD, MADV_POPULATE_WRITE) == 0;
    if (huge && madvise(at, n / HUGE_PAGE * HUGE_PAGE, MADV_COLLAPSE) == 0 && n % HUGE_PAGE == 0)
        return true;
    return madvise(at, n, MADV_POPULATE_WRITE) == 0 || errno == EINVAL;
}

static void fill_part(void *arg, uint32_t thread)
{
    struct filling *f = arg;
    const size_t parts = (f->bytes + HUGE_PAGE - 1) / HUGE_PAGE;
    uint32_t from, to;

    pool_range((uint32_t)parts, thread, f->threads, &from, &to);
    for (size_t at = from * HUGE_PAGE, end = to * HUGE_PAGE, n; at < end; at += n) {
        n = end - at < MANY ? end - at : MANY;
        if (!fill(f->map + at, f->bytes - at < n ? f->bytes - at : n))
            f->no_memory = true;
        if (f->pulse)
            atomic_fetch_add_explicit(&f->pulse->beats, 1, memory_order_relaxed);
    }
}

/* Are there huge pages to be had here? */
static bool is_fast(uint8_t *map, size_t bytes)
{
    if (bytes < HUGE_PAGE)
        return true;
    return madvise(map, HEAD, MADV_POPULATE_WRITE) == 0 && madvise(map, HUGE_PAGE, MADV_COLLAPSE) == 0;
}

/* False: private memory is what remains. */
static bool make_shared(enum weights_want want, size_t bytes, struct pool *pool, struct engine_pulse *pulse, struct weights *w)
{
    struct filling f = { .bytes = bytes + HEAD, .threads = pool_threads(pool), .pulse = pulse };
    CLEANUP(fd_close) int fd = memfd_create("fastchat-weights", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0 || ftruncate(fd, (off_t)f.bytes) < 0)
        return false;
    f.map = map_file(fd, f.bytes, PROT_READ | PROT_WRITE);
    if (!f.map)
        return false;
    madvise(f.map, f.bytes, MADV_HUGEPAGE);
    if (is_fast(f.map, f.bytes) || want == WEIGHTS_SHARED)
        pool_run(pool, fill_part, &f);
    else
        f.no_memory = true;
    if (f.no_memory) {
        munmap(f.map, f.bytes);
        return false;
    }
    *w = (struct weights){ .data = f.map + HEAD, .bytes = bytes, .fd = STEAL_FD(fd), .map = f.map, .map_bytes = f.bytes };
    return true;
}

int weights_make(enum weights_want want, size_t bytes, struct pool *pool, struct engine_pulse *pulse, struct weights *ret,
                 struct err *err)
{
    void *slab;

    if (want != WEIGHTS_PRIVATE && bytes <= INT64_MAX - HEAD - HUGE_PAGE && make_shared(want, bytes, pool, pulse, ret))
        return 0;
    slab = slab_map(bytes);
    if (!slab)
        return err_set(err, -ENOMEM, "no memory for %zu bytes of weights", bytes);
    *ret = (struct weights){ .data = slab, .bytes = bytes, .fd = -1 };
    return 0;
}

/* ---- sealing ---- */

int weights_seal(struct weights *w, const struct weights_key *key, struct err *err)
{
    struct head head = { .bytes = w->bytes, .file = key->file, .layout = key->layout };
    int r = 0;

    if (w->fd < 0)
        return 0;
    memcpy(head.magic, MAGIC, sizeof head.magic);
    memcpy(w->map, &head, sizeof head);
    /* As long as it could be written through a mapping the seal is refused. What takes its place keeps the address. */
    if (mmap(w->map, w->map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED ||
        fcntl(w->fd, F_ADD_SEALS, SEALS) < 0)
        r = -errno;
    if (r == 0)
        r = map_at(w->map, w->fd, w->map_bytes, PROT_READ);
    if (r) {
        weights_free(w);
        return err_errno(err, r, "sealing %zu bytes of weights", head.bytes);
    }
    return 0;
}

/* ---- taking ---- */

static int check_head(const struct head *h, const struct weights_key *key, size_t bytes, struct err *err)
{
    if (memcmp(h->magic, MAGIC, sizeof h->magic) != 0)
        return err_set(err, -EINVAL, "they are not packed weights of this version");
    if (h->file != key->file)
        return err_set(err, -EINVAL, "they were made from another file, or from this one before it changed");
    if (h->bytes != bytes || h->layout != key->layout)
        return err_set(err, -EINVAL, "they are laid out otherwise than this program would");
    return 0;
}

int weights_take(int fd, const struct weights_key *key, size_t bytes, struct weights *ret, struct err *err)
{
    const int seals = fcntl(fd, F_GET_SEALS), needed = SEALS & ~F_SEAL_SEAL;
    struct stat st;
    uint8_t *map;
    int r;

    if (seals < 0 || fstat(fd, &st) < 0)
        return err_set(err, -EINVAL, "the descriptor is no memory file");
    if ((seals & needed) != needed)
        return err_set(err, -EINVAL, "they are not sealed against change");
    if (st.st_size < 0 || (uint64_t)st.st_size != (uint64_t)bytes + HEAD)
        return err_set(err, -EINVAL, "they have %jd bytes instead of %zu", (intmax_t)st.st_size - HEAD, bytes);
    map = map_file(fd, bytes + HEAD, PROT_READ);
    if (!map)
        return err_errno(err, -errno, "mapping %zu bytes", bytes);
    r = check_head((const struct head *)map, key, bytes, err);
    if (r) {
        munmap(map, bytes + HEAD);
        return r;
    }
    *ret = (struct weights){ .data = map + HEAD, .bytes = bytes, .fd = -1, .map = map, .map_bytes = bytes + HEAD };
    return 0;
}

size_t weights_given_bytes(const struct weights_share *share)
{
    struct stat st;

    return share && share->given >= 0 && fstat(share->given, &st) == 0 && st.st_size > 0 ? (size_t)st.st_size : 0;
}

void weights_free(struct weights *w)
{
    if (w->map_bytes) {
        munmap(w->map, w->map_bytes);
        fd_close(w->fd);
    } else {
        slab_unmap(w->data, w->bytes);
    }
    *w = (struct weights){ .fd = -1 };
}
