/* Tiles: int8 products against those of AVX-512 to the bit. Where there is no AMX each test says so and is skipped. */
#include "gen/cpu/kernels.h"
#include "gen/cpu/pack.h"
#include "loaders/gguf.h"
#include "tests/gen/blocks.h"
#include "tests/gen/rand.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

enum { MAX_ROWS = 100, WEIGHT_ROWS = 41, OUT = 48 };

static uint64_t seed = 1;

static const struct kernels *table(const char *name)
{
    const struct kernels *k = NULL;

    if (kernels_choose(name, &k, NULL))
        cr_skip_test("%s: this machine has none", name);
    return k;
}

static void *zeroed(size_t n)
{
    void *p = aligned_alloc(64, (n + 63) & ~(size_t)63);

    cr_assert(ne(ptr, p, NULL));
    memset(p, 0, (n + 63) & ~(size_t)63);
    return p;
}

static float random_float(void) { return (float)(rand_unit(&seed) * 2 - 1); }

/* A matrix of a quantised type of GGUF. */
static void random_mat(struct mat *m, uint32_t ggml_type, uint32_t cols)
{
    const struct ggml_type_facts *f = ggml_type_facts(ggml_type);
    const size_t bytes = (size_t)WEIGHT_ROWS * (cols / f->block) * f->block_bytes;
    CLEANUP(mem_free) uint8_t *file = malloc(bytes);
    enum mat_type type;

    cr_assert(ne(ptr, file, NULL));
    cr_assert(mat_type_of(ggml_type, &type));
    cr_assert(mat_init(m, type, WEIGHT_ROWS, cols));
    m->ggml_type = ggml_type;
    m->w = zeroed(mat_bytes(m));
    for (size_t i = 0; i < bytes; i++)
        file[i] = (uint8_t)(rand_next(&seed) >> 40);
    for (size_t at = 0; at < bytes; at += f->block_bytes)
        block_scale(ggml_type, file + at, 0.2 + rand_unit(&seed));
    cr_assert(mat_pack(m, file, 0, m->n_groups));
}

/* ---- int8 ------------------------------------------------------------ */

struct rows {
    struct acts x;
    float *y[MAX_ROWS];
};

static void rows_init(struct rows *r, uint32_t k)
{
    const size_t n_blocks = (size_t)MAX_ROWS * (k / KERNEL_BLOCK);

    r->x.k = k;
    r->x.q = zeroed((size_t)MAX_ROWS * k);
    r->x.d = zeroed(n_blocks * sizeof(float));
    r->x.s = zeroed(n_blocks * sizeof(float));
    r->x.sum = zeroed(n_blocks * sizeof(int32_t));
    r->x.f = zeroed((size_t)MAX_ROWS * k * sizeof(float));
    for (size_t i = 0; i < (size_t)MAX_ROWS * k; i++)
        r->x.f[i] = random_float();
    for (size_t i = 0; i < MAX_ROWS; i++) {
        const size_t at = i * k, b = at / KERNEL_BLOCK;

        kernels_scalar.quantise(r->x.f + at, k, r->x.q + at, r->x.d + b, r->x.s + b, r->x.sum + b);
        r->y[i] = zeroed(OUT * sizeof(float));
    }
}

static void rows_fini(struct rows *r)
{
    free(r->x.q);
    free(r->x.d);
    free(r->x.s);
    free(r->x.sum);
    free(r->x.f);
    for (int i = 0; i < MAX_ROWS; i++)
        free(r->y[i]);
}

static void multiply(const struct kernels *k, const struct mat *m, struct rows *r, uint32_t n_rows)
{
    for (uint32_t i = 0; i < n_rows; i++)
        memset(r->y[i], 0xff, OUT * sizeof(float));
    k->mul[m->type](&(struct mul){ .w = m->w, .group_bytes = m->group_bytes, .n_groups = m->n_groups, .x = &r->x,
                                   .n_rows = n_rows, .y = r->y });
}

Test(tiles, int8_products_are_those_of_avx512_to_the_bit_for_any_number_of_rows)
{
    static const uint32_t counts[] = { 1, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 31, 33, 47, 48, 64, 100 };
    static const uint32_t cols[] = { 32, 96, 256, 1024, 1056, 1568, 2304 };
    const struct kernels *amx = table("amx"), *plain = table("avx512vnni");
    static float want[MAX_ROWS][OUT];

    for (int t = 0; t < BLOCK_TYPES; t++)
        for (size_t c = 0; c < sizeof cols / sizeof cols[0]; c++) {
            struct mat m;
            struct rows r;

            if (cols[c] % ggml_type_facts(block_types[t])->block)
                continue;
            random_mat(&m, block_types[t], cols[c]);
            rows_init(&r, m.k);
            multiply(plain, &m, &r, MAX_ROWS);
            for (int i = 0; i < MAX_ROWS; i++)
                memcpy(want[i], r.y[i], sizeof want[i]);
            for (size_t n = 0; n < sizeof counts / sizeof counts[0]; n++) {
                multiply(amx, &m, &r, counts[n]);
                for (uint32_t i = 0; i < counts[n]; i++)
                    cr_assert(zero(int, memcmp(r.y[i], want[i], sizeof want[i])), "%s of %u columns: row %u of %u",
                              ggml_type_facts(block_types[t])->name, cols[c], i, counts[n]);
            }
            rows_fini(&r);
            free(m.w);
        }
}
