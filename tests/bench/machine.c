#include "tests/bench/machine.h"

#include "base/clock.h"
#include "gen/cpu/kernels.h"
#include "gen/cpu/tiles.h"
#include "gen/slab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TRIES = 5, BARRIERS = 2000 };

static double best_of(double best, double x) { return x > best ? x : best; }

static double since(uint64_t start_ns) { return (double)(clock_mono_ns() - start_ns) / 1e9; }

struct reading {
    const uint64_t *data;
    size_t n;                           /* words of all threads */
    uint32_t threads;
    uint64_t sum[POOL_MAX_THREADS];
};

enum { AHEAD = 2048 };          /* bytes; most of it in the page that is read */
typedef uint64_t words __attribute__((vector_size(64)));

static void read_part(void *arg, uint32_t thread)
{
    struct reading *r = arg;
    const size_t n = r->n / r->threads / 64 * 64;
    const words *at = (const words *)(r->data + thread * n);
    words a = { 0 }, b = { 0 }, c = { 0 }, d = { 0 };

    for (size_t i = 0; i < n / 8; i += 4) {
        for (int line = 0; line < 4; line++)
            __builtin_prefetch(at + i + line + AHEAD / sizeof *at);
        a += at[i];
        b += at[i + 1];
        c += at[i + 2];
        d += at[i + 3];
    }
    a += b + c + d;
    r->sum[thread] += a[0];
}

double machine_read(struct pool *pool, size_t bytes)
{
    static struct reading r;
    double best = 0;
    void *data = slab_map(bytes);

    if (!data) {
        fprintf(stderr, "no memory to measure bandwidth with\n");
        exit(1);
    }
    memset(data, 1, bytes);
    r = (struct reading){ data, bytes / sizeof(uint64_t), pool_threads(pool), { 0 } };
    for (int i = 0; i < TRIES; i++) {
        const uint64_t start = clock_mono_ns();

        pool_run(pool, read_part, &r);
        best = best_of(best, (double)bytes / since(start) / 1e9);
    }
    slab_unmap(data, bytes);
    return best;
}

static void meet(void *arg, uint32_t thread)
{
    for (int i = 0; i < BARRIERS; i++)
        pool_barrier(arg, thread);
}

double machine_barrier(struct pool *pool)
{
    double best = 0;

    for (int i = 0; i < TRIES; i++) {
        const uint64_t start = clock_mono_ns();

        pool_run(pool, meet, pool);
        best = best_of(best, BARRIERS / since(start));
    }
    return 1e9 / best;
}

#ifdef __x86_64__

/* Twelve chains hide the latency; two run in a cycle at best. */
__attribute__((target("avx512f"))) static void int8_chains(uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        __asm__ volatile("vpdpbusd %%zmm30, %%zmm31, %%zmm0\n\tvpdpbusd %%zmm30, %%zmm31, %%zmm1\n\t"
                         "vpdpbusd %%zmm30, %%zmm31, %%zmm2\n\tvpdpbusd %%zmm30, %%zmm31, %%zmm3\n\t"
                         "vpdpbusd %%zmm30, %%zmm31, %%zmm4\n\tvpdpbusd %%zmm30, %%zmm31, %%zmm5\n\t"
                         "vpdpbusd %%zmm30, %%zmm31, %%zmm6\n\tvpdpbusd %%zmm30, %%zmm31, %%zmm7\n\t"
                         "vpdpbusd %%zmm30, %%zmm31, %%zmm8\n\tvpdpbusd %%zmm30, %%zmm31, %%zmm9\n\t"
                         "vpdpbusd %%zmm30, %%zmm31, %%zmm10\n\tvpdpbusd %%zmm30, %%zmm31, %%zmm11"
                         : : : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11");
}

double machine_int8(void)
{
    enum { N = 100000, CHAINS = 12, OPS = 128 };
    double best = 0;

    if (!__builtin_cpu_supports("avx512vnni"))
        return 0;
    for (int i = 0; i < TRIES; i++) {
        const uint64_t start = clock_mono_ns();

        int8_chains(N);
        best = best_of(best, (double)N * CHAINS * OPS / since(start) / 1e9);
    }
    return best;
}

double machine_tiles(void)
{
    enum { N = 50000, CHAINS = 4, OPS = 16 * 16 * 32 * 2 };
    static uint16_t data[4][512];
    struct tile_config config = { .palette = 1 };
    const struct kernels *k;
    uint64_t seed = 1;
    double best = 0;

    if (kernels_choose("amx", &k, NULL) < 0)        /* which asks the system for its permission */
        return 0;
    for (int t = 0; t < 8; t++) {
        config.rows[t] = 16;
        config.row_bytes[t] = 64;
    }
    for (uint16_t *p = data[0]; p < data[0] + 4 * 512; p++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        *p = (uint16_t)(0x3f00 | (seed >> 40 & 0x80ff));        /* about 1, of either sign */
    }
    tiles_configure(&config);
    TILE_LOAD(4, data[0], 64);
    TILE_LOAD(5, data[1], 64);
    TILE_LOAD(6, data[2], 64);
    TILE_LOAD(7, data[3], 64);
    for (int i = 0; i < TRIES; i++) {
        const uint64_t start = clock_mono_ns();

        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
        for (int j = 0; j < N; j++) {
            TILE_BF16(0, 4, 6);
            TILE_BF16(1, 4, 7);
            TILE_BF16(2, 5, 6);
            TILE_BF16(3, 5, 7);
        }
        TILE_STORE(0, data[0], 64);                 /* which waits for the products */
        best = best_of(best, (double)N * CHAINS * OPS / since(start) / 1e9);
    }
    tiles_release();
    return best;
}

#else

double machine_int8(void) { return 0; }
double machine_tiles(void) { return 0; }

#endif
