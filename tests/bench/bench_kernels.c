/* bench_kernels.c - products with weights of every type, on every thread, out of memory.
 *
 *     bench-kernels [THREADS [TYPE]]
 *
 * Weights are matrices of 3072 rows and 768 columns, as many as 64 MiB hold when they are packed, read one after the other; each
 * thread has its part of the rows of each, as in the engine. Generated rows: 1, 8 and 32 of them; rows of a prompt: 512, over fewer
 * matrices, by the tiles of the table where it has some. The best of some tries. Lines are CSV:
 *
 *     type,rows,path,GB/s,GOP/s
 *
 * GB/s counts packed weights as they are read, GOP/s two operations a weight and row.
 */
#include "base/clock.h"
#include "base/err.h"
#include "gen/cpu/kernels.h"
#include "gen/cpu/pack.h"
#include "gen/cpu/pool.h"
#include "gen/cpu/prompt.h"
#include "gen/slab.h"
#include "loaders/gguf.h"
#include "tests/gen/blocks.h"
#include "tests/gen/rand.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROWS = 3072, COLS = 768, MOST = 512, BYTES = 64 << 20, TRIES = 5, TILED = 4 /* matrices that a prompt reads */,
    BLOCKS = MOST / PROMPT_ROWS,
};

struct bench {
    const struct kernels *k;
    struct pool *pool;
    struct mat mats[64];
    uint32_t n_mats, used, n_rows;
    struct acts x;
    float *y[MOST];
    uint16_t *tiles;                    /* [BLOCKS][COLS / 32][2][PROMPT_TILE] */
    float *sums;                        /* [ROWS / 32][BLOCKS][PROMPT_SUMS] */
    uint8_t *room;                      /* [threads][PROMPT_ROOM] */
};

static void *need(size_t bytes)
{
    void *p = slab_map(bytes);

    if (p)
        return p;
    fprintf(stderr, "bench-kernels: no memory\n");
    exit(1);
}

static float random_float(uint64_t *rng) { return (float)(2 * rand_unit(rng) - 1); }

/* Rows as a file has them. */
static void fill(uint32_t type, uint8_t *data, uint64_t *rng)
{
    const struct ggml_type_facts *f = ggml_type_facts(type);

    for (uint64_t i = 0; i < (uint64_t)ROWS * COLS / f->block; i++, data += f->block_bytes) {
        const float x = random_float(rng);
        const uint16_t half = (uint16_t)(0x2800 | (rand_next(rng) & 0x83ff));       /* F16 and BF16 alike */

        if (type == GGML_F32)
            memcpy(data, &x, 4);
        else if (f->block == 1)
            memcpy(data, &half, 2);
        else {
            for (uint32_t j = 0; j < f->block_bytes; j++)
                data[j] = (uint8_t)rand_next(rng);
            block_scale(type, data, 1);
        }
    }
}

static void make_weights(struct bench *b, uint32_t ggml_type, enum mat_type type)
{
    const struct ggml_type_facts *f = ggml_type_facts(ggml_type);
    const size_t bytes = (size_t)ROWS * COLS / f->block * f->block_bytes;
    uint8_t *file = need(bytes);
    uint64_t rng = 1;
    struct mat m;

    fill(ggml_type, file, &rng);
    if (!mat_init(&m, type, ROWS, COLS))
        abort();
    b->n_mats = BYTES / (uint32_t)mat_bytes(&m) + 1;
    b->n_mats = b->n_mats < 64 ? b->n_mats : 64;
    for (uint32_t i = 0; i < b->n_mats; i++) {
        b->mats[i] = m;
        b->mats[i].w = need(mat_bytes(&m));
        if (i == 0)
            mat_pack(&b->mats[0], file, 0, m.n_groups);
        else
            memcpy(b->mats[i].w, b->mats[0].w, mat_bytes(&m));
    }
    slab_unmap(file, bytes);
}

static void free_weights(struct bench *b)
{
    for (uint32_t i = 0; i < b->n_mats; i++)
        slab_unmap(b->mats[i].w, mat_bytes(&b->mats[i]));
}

static void make_rows(struct bench *b)
{
    struct acts *x = &b->x;
    uint64_t rng = 2;

    x->k = COLS;
    x->q = need((size_t)MOST * COLS);
    x->d = need(sizeof(float) * MOST * COLS / KERNEL_BLOCK);
    x->sum = need(sizeof(int32_t) * MOST * COLS / KERNEL_BLOCK);
    x->half = need(sizeof(int32_t) * MOST * COLS / KERNEL_BLOCK);
    x->f = need(sizeof(float) * MOST * COLS);
    for (size_t i = 0; i < (size_t)MOST * COLS; i++)
        x->f[i] = random_float(&rng);
    for (uint32_t r = 0; r < MOST; r++) {
        const size_t at = (size_t)r * COLS, blk = at / KERNEL_BLOCK;

        b->k->quantise(x->f + at, COLS, x->q + at, x->d + blk, x->sum + blk, x->half + blk);
        b->y[r] = need(sizeof(float) * ROWS);
    }
    if (!b->k->prompt)
        return;
    b->tiles = need(sizeof(uint16_t) * MOST * COLS);
    b->sums = need(sizeof(float) * ROWS / PROMPT_ROWS * BLOCKS * PROMPT_SUMS);
    b->room = need((size_t)pool_threads(b->pool) * PROMPT_ROOM);
    for (uint32_t r = 0; r < MOST; r++)
        b->k->prompt->to_tiles(x->f + (size_t)r * COLS, COLS, 0, r % PROMPT_ROWS,
                               b->tiles + (size_t)(r / PROMPT_ROWS) * PROMPT_ROWS * COLS);
}

static void multiply(void *arg, uint32_t thread)
{
    struct bench *b = arg;
    uint32_t from, to;

    for (uint32_t i = 0; i < b->used; i++) {
        const struct mat *m = &b->mats[i], *next = &b->mats[(i + 1) % b->used];

        pool_range(m->n_groups, thread, pool_threads(b->pool), &from, &to);
        b->k->mul[m->type](&(struct mul){
            .w = m->w + from * m->group_bytes, .next = next->w + from * m->group_bytes, .group_bytes = m->group_bytes,
            .n_groups = to - from, .x = &b->x, .n_rows = b->n_rows, .y = b->y, .at = (size_t)from * KERNEL_LANES,
        });
        pool_barrier(b->pool, thread);
    }
}

static void multiply_tiles(void *arg, uint32_t thread)
{
    struct bench *b = arg;
    uint32_t from, to;

    b->k->prompt->enter();
    for (uint32_t i = 0; i < b->used; i++) {
        const struct mat *m = &b->mats[i];

        pool_range(m->n_groups / 2, thread, pool_threads(b->pool), &from, &to);
        b->k->prompt->mul(&(struct prompt_mul){
            .type = m->type, .w = m->w + 2 * from * m->group_bytes, .group_bytes = m->group_bytes, .n_groups = 2 * (to - from),
            .k = m->k, .x = b->tiles, .n_rows = b->n_rows, .c = b->sums + (size_t)from * BLOCKS * PROMPT_SUMS,
            .room = b->room + (size_t)thread * PROMPT_ROOM,
        });
        pool_barrier(b->pool, thread);
    }
    b->k->prompt->leave();
}

static void measure(struct bench *b, const char *type, uint32_t n_rows)
{
    const bool prompt = n_rows == MOST, tiled = prompt && b->k->prompt;
    double best = 0, weights;

    b->n_rows = n_rows;
    b->used = prompt && b->n_mats > TILED ? TILED : b->n_mats;
    weights = (double)b->used * ROWS * COLS;
    for (int i = 0; i < TRIES; i++) {
        const uint64_t start = clock_mono_ns();
        double rate;

        pool_run(b->pool, tiled ? multiply_tiles : multiply, b);
        rate = 1e9 / (double)(clock_mono_ns() - start);
        best = rate > best ? rate : best;
    }
    printf("%s,%u,%s,%.1f,%.0f\n", type, n_rows, prompt ? "prompt" : "generated",
           best * b->used * (double)mat_bytes(&b->mats[0]) / 1e9, best * 2 * weights * n_rows / 1e9);
    fflush(stdout);
}

static void measure_type(struct bench *b, uint32_t ggml_type, const char *only)
{
    static const uint32_t counts[] = { 1, 8, 32, MOST };
    const char *name = ggml_type_facts(ggml_type)->name;
    enum mat_type type;

    if ((only && strcmp(only, name) != 0) || !mat_type_of(ggml_type, &type))
        return;
    make_weights(b, ggml_type, type);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        measure(b, name, counts[i]);
    free_weights(b);
}

int main(int argc, char **argv)
{
    static const uint32_t floats[] = { GGML_F32, GGML_F16, GGML_BF16 };
    static struct bench b;
    const char *only = argc > 2 ? argv[2] : NULL;
    struct err err = { 0 };

    if (kernels_choose(NULL, &b.k, &err) < 0 || pool_open(argc > 1 ? (uint32_t)atoi(argv[1]) : 0, &b.pool, &err) < 0) {
        fprintf(stderr, "bench-kernels: %s\n", err_text(&err));
        return 1;
    }
    make_rows(&b);
    printf("# %s kernels, %u threads\ntype,rows,path,GB/s,GOP/s\n", b.k->name, pool_threads(b.pool));
    for (size_t i = 0; i < 3; i++)
        measure_type(&b, floats[i], only);
    for (size_t i = 0; i < BLOCK_TYPES; i++)
        measure_type(&b, block_types[i], only);
    pool_close(b.pool);
    return 0;
}
