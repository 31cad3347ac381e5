/* Tiles: int8 products against those of AVX-512 to the bit, bf16 products against sums in double precision. Where there is no AMX each test says so and is skipped. */
#include "gen/cpu/kernels.h"
#include "gen/cpu/half.h"
#include "gen/cpu/pack.h"
#include "gen/cpu/prompt.h"
#include "loaders/gguf.h"
#include "tests/gen/acts.h"
#include "tests/gen/blocks.h"
#include "tests/gen/rand.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <math.h>
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

static float random_float(void) { return (float)(rand_unit(&seed) * 2 - 1); }

static bool is_float(uint32_t ggml_type) { return ggml_type_facts(ggml_type)->block == 1; }

static void random_block(uint32_t ggml_type, uint8_t *block)
{
    const float x = random_float();
    const uint16_t half = f16_of_f32(x), brain = (uint16_t)(bits_of_float(x) >> 16);

    if (ggml_type == GGML_F32)
        memcpy(block, &x, 4);
    else if (is_float(ggml_type))
        memcpy(block, ggml_type == GGML_F16 ? &half : &brain, 2);
    else
        block_scale(ggml_type, block, 0.2 + rand_unit(&seed));
}

static void random_mat(struct mat *m, uint32_t ggml_type, uint32_t cols)
{
    const struct ggml_type_facts *f = ggml_type_facts(ggml_type);
    const size_t bytes = (size_t)WEIGHT_ROWS * (cols / f->block) * f->block_bytes;
    CLEANUP(mem_free) uint8_t *file = malloc(bytes);
    enum mat_type type;

    cr_assert(ne(ptr, file, NULL));
    cr_assert(mat_type_of(ggml_type, &type));
    cr_assert(mat_init(m, type, WEIGHT_ROWS, cols));
    m->w = zeroed(mat_bytes(m));
    for (size_t i = 0; i < bytes; i++)
        file[i] = (uint8_t)(rand_next(&seed) >> 40);
    for (size_t at = 0; at < bytes; at += f->block_bytes)
        random_block(ggml_type, file + at);
    cr_assert(mat_pack(m, file, 0, m->n_groups));
}

/* ---- int8 ------------------------------------------------------------ */

struct rows {
    struct acts x;
    float *y[MAX_ROWS];
};

static void rows_init(struct rows *r, uint32_t k)
{
    acts_open(&r->x, MAX_ROWS, k);
    for (size_t i = 0; i < (size_t)MAX_ROWS * k; i++)
        r->x.f[i] = random_float();
    for (uint32_t i = 0; i < MAX_ROWS; i++) {
        acts_quantise(&r->x, i);
        r->y[i] = zeroed(OUT * sizeof(float));
    }
}

static void rows_fini(struct rows *r)
{
    acts_close(&r->x);
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

/* ---- bf16 ------------------------------------------------------------ */

enum { PANELS = 2, BLOCKS = (MAX_ROWS + PROMPT_ROWS - 1) / PROMPT_ROWS };

static const uint32_t all_types[BLOCK_TYPES + 3] = {
    GGML_Q4_0, GGML_Q4_1, GGML_Q5_0, GGML_Q5_1,   GGML_Q8_0,   GGML_Q2_K,  GGML_Q3_K, GGML_F32,
    GGML_Q4_K, GGML_Q5_K, GGML_Q6_K, GGML_IQ4_NL, GGML_IQ4_XS, GGML_MXFP4, GGML_F16,  GGML_BF16,
};

/* Rows of activations as tiles, from row `place` of a block on, and the sums. */
struct tiles {
    float *f, *c;
    uint16_t *x;
    void *room;
    uint32_t k;
};

static void tiles_init(struct tiles *t, uint32_t k)
{
    t->k = k;
    t->f = zeroed((size_t)MAX_ROWS * k * sizeof *t->f);
    t->x = zeroed((size_t)(BLOCKS + 1) * PROMPT_ROWS * k * sizeof *t->x);
    t->c = zeroed((size_t)PANELS * (BLOCKS + 1) * PROMPT_SUMS * sizeof *t->c);
    t->room = zeroed(PROMPT_ROOM);
    for (size_t i = 0; i < (size_t)MAX_ROWS * k; i++)
        t->f[i] = random_float();
}

static void tiles_fini(struct tiles *t)
{
    free(t->f);
    free(t->c);
    free(t->x);
    free(t->room);
}

static float *y_of(float (*y)[OUT], uint32_t r, uint32_t panel) { return y[r] + panel * 2 * KERNEL_LANES; }

/* The first n_rows rows, at `place`, times the matrix. */
static void multiply_tiles(const struct prompt_kernels *k, const struct mat *m, struct tiles *t, uint32_t place, uint32_t n_rows,
                           float (*y)[OUT])
{
    const uint32_t n = place + n_rows, n_blocks = (n + PROMPT_ROWS - 1) / PROMPT_ROWS;
    float all[MAX_ROWS + PROMPT_ROWS][OUT];

    memset(t->x, 0x7f, (size_t)(BLOCKS + 1) * PROMPT_ROWS * t->k * sizeof *t->x);    /* NaNs */
    for (uint32_t r = 0; r < n_rows; r++)
        k->to_tiles(t->f + (size_t)r * t->k, t->k, 0, (place + r) % PROMPT_ROWS,
                    t->x + (size_t)((place + r) / PROMPT_ROWS) * PROMPT_ROWS * t->k);
    k->enter();
    k->mul(&(struct prompt_mul){ .type = m->type, .w = m->w, .group_bytes = m->group_bytes, .n_groups = m->n_groups,
                                 .k = m->k, .x = t->x, .n_rows = n, .c = t->c, .room = t->room });
    k->leave();
    for (uint32_t p = 0; p < PANELS; p++)
        k->out(&(struct prompt_out){ .c = t->c + (size_t)p * n_blocks * PROMPT_SUMS, .n_rows = n,
                                     .n_groups = p == 0 ? 2 : 1, .y = y_of(all, 0, p), .y_stride = OUT });
    memcpy(y, all[place], n_rows * sizeof *y);
}

static const struct prompt_kernels *prompt_table(void)
{
    const struct kernels *k = table("amx");

    cr_assert(ne(ptr, (void *)k->prompt, NULL));
    return k->prompt;
}

/* An activation is rounded by at most 2^-8 of itself, a weight cut by 2^-7: together below 1.2e-2 of what is added up. Both are
 * random, so the sum is much closer. */
Test(tiles, bf16_products_are_sums_of_rounded_factors)
{
    static const uint32_t cols[] = { 32, 96, 256, 320, 576, 2304 };
    static float y[MAX_ROWS][OUT], w[2304];
    const struct prompt_kernels *k = prompt_table();

    for (size_t type = 0; type < BLOCK_TYPES + 3; type++)
        for (size_t c = 0; c < sizeof cols / sizeof cols[0]; c++) {
            const char *name = ggml_type_facts(all_types[type])->name;
            double off = 0, all = 0;
            struct mat m;
            struct tiles t;

            if (cols[c] % ggml_type_facts(all_types[type])->block)
                continue;
            random_mat(&m, all_types[type], cols[c]);
            tiles_init(&t, m.k);
            multiply_tiles(k, &m, &t, 0, 40, y);
            for (uint32_t o = 0; o < WEIGHT_ROWS; o++) {
                mat_row(&m, o, w);
                for (uint32_t r = 0; r < 40; r++) {
                    double sum = 0, size = 0;

                    for (uint32_t i = 0; i < m.k; i++) {
                        const double part = (double)w[i] * (double)t.f[r * m.k + i];

                        sum += part;
                        size += fabs(part);
                    }
                    cr_assert(le(dbl, fabs(sum - (double)y[r][o]), 1.2e-2 * size), "%s of %u columns: row %u, %u", name, cols[c],
                              r, o);
                    off += pow(sum - (double)y[r][o], 2);
                    all += sum * sum;
                }
            }
            cr_expect(le(dbl, sqrt(off / all), 4e-3), "%s of %u columns", name, cols[c]);
            for (uint32_t o = WEIGHT_ROWS; o < OUT; o++)
                cr_expect(zero(flt, y[39][o]), "%s", name);
            tiles_fini(&t);
            free(m.w);
        }
}

Test(tiles, a_bf16_row_is_the_same_to_the_bit_wherever_it_is_and_whatever_is_beside_it)
{
    static const uint32_t counts[] = { 1, 15, 16, 17, 32, 33, 100 }, places[] = { 0, 1, 16, 31 };
    static float want[MAX_ROWS][OUT], y[MAX_ROWS][OUT];
    const struct prompt_kernels *k = prompt_table();

    for (size_t type = 0; type < BLOCK_TYPES + 3; type++) {
        struct mat m;
        struct tiles t;

        random_mat(&m, all_types[type], 768);
        tiles_init(&t, m.k);
        multiply_tiles(k, &m, &t, 0, MAX_ROWS, want);
        for (size_t n = 0; n < sizeof counts / sizeof counts[0]; n++)
            for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
                multiply_tiles(k, &m, &t, places[p], counts[n], y);
                cr_assert(zero(int, memcmp(y, want, counts[n] * sizeof *y)), "%s: %u rows from %u on",
                          ggml_type_facts(all_types[type])->name, counts[n], places[p]);
            }
        tiles_fini(&t);
        free(m.w);
    }
}

Test(tiles, sums_get_a_bias_and_are_added_to_what_is_there)
{
    const struct prompt_kernels *k = prompt_table();
    static float c[2 * PROMPT_SUMS], y[40][64], bias[32];

    for (int i = 0; i < 2 * PROMPT_SUMS; i++)
        c[i] = (float)i;
    for (int i = 0; i < 32; i++)
        bias[i] = (float)i / 64;
    for (int r = 0; r < 40; r++)
        for (int i = 0; i < 64; i++)
            y[r][i] = 3;
    k->out(&(struct prompt_out){ .c = c, .n_rows = 39, .n_groups = 2, .bias = bias, .add = true, .y = &y[0][16], .y_stride = 64 });
    for (int r = 0; r < 40; r++)
        for (int i = 0; i < 64; i++) {
            const int col = i - 16, at = r / 32 * PROMPT_SUMS + r % 32 / 16 * 512 + col / 16 * 256 + r % 16 * 16 + col % 16;
            const bool in = r < 39 && col >= 0 && col < 32;

            cr_assert(eq(flt, y[r][i], in ? 3 + (float)at + (float)col / 64 : 3), "row %d, %d", r, i);
        }
}

/* Heads of 48, so that the second group is the first of the next head. */
Test(tiles, sums_are_turned_as_rope_turns_rows)
{
    enum { HD = 48, ROWS = 37 };
    const struct prompt_kernels *k = prompt_table();
    static float c[2 * PROMPT_SUMS], cosines[ROWS][HD], sines[ROWS][HD], y[ROWS][32], want[ROWS][32];

    for (int i = 0; i < 2 * PROMPT_SUMS; i++)
        c[i] = sinf((float)i);
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < HD; i++) {
            cosines[r][i] = cosf((float)(r * (i / 2 + 1)));
            sines[r][i] = sinf((float)(r * (i / 2 + 1))) * (i % 2 ? 1 : -1);
        }
    k->out(&(struct prompt_out){ .c = c, .n_rows = ROWS, .n_groups = 2, .y = &want[0][0], .y_stride = 32 });
    k->out(&(struct prompt_out){ .c = c, .n_rows = ROWS, .n_groups = 2, .cos = &cosines[0][0], .sin = &sines[0][0],
                                 .turn_at = { 32, 0 }, .turn_stride = HD, .y = &y[0][0], .y_stride = 32 });
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < 32; i++) {
            const int at = i < 16 ? 32 + i : i - 16;

            cr_assert(ieee_ulp_eq(flt, y[r][i], fmaf(want[r][i], cosines[r][at], want[r][i ^ 1] * sines[r][at]), 1), "row %d, %d", r, i);
        }
}

Test(tiles, gates_are_applied_as_the_scalar_twin_does_up_to_rounding)
{
    const struct prompt_kernels *k = prompt_table();
    static float gate[2 * PROMPT_SUMS], up[2 * PROMPT_SUMS], bias[32];
    static uint16_t x[2 * PROMPT_ROWS * 64];

    for (int i = 0; i < 2 * PROMPT_SUMS; i++) {
        gate[i] = random_float() * (i % 3 ? 4 : 100);
        up[i] = random_float();
    }
    for (int i = 0; i < 32; i++)
        bias[i] = random_float();
    for (int gelu = 0; gelu < 2; gelu++) {
        k->gate(&(struct prompt_gate){ .gate = gate, .up = up, .gate_bias = gelu ? bias : NULL, .up_bias = gelu ? NULL : bias,
                                       .n_rows = 50, .gelu = gelu, .x = x, .x_stride = PROMPT_ROWS * 64 });
        for (int r = 0; r < 50; r++)
            for (int i = 0; i < 32; i++) {
                const int at = r / 32 * PROMPT_SUMS + r % 32 / 16 * 512 + i / 16 * 256 + r % 16 * 16 + i % 16;
                float a = gate[at] + (gelu ? bias[i] : 0), b = up[at] + (gelu ? 0 : bias[i]), want;
                const float got = bf16_to_f32(x[r / 32 * PROMPT_ROWS * 64 + r % 32 * 32 + i]);

                if (gelu)
                    kernels_scalar.gelu_tanh_mul(&a, &b, 1, &want);
                else
                    kernels_scalar.silu_mul(&a, &b, 1, &want);
                cr_assert(le(dbl, fabs((double)(got - want)), 4.1e-3 * fabs((double)want) + 1e-6 * fabs((double)b)),
                          "gelu %d row %d, %d: %g %g", gelu, r, i, (double)got, (double)want);
            }
    }
}

Test(tiles, any_part_of_a_row_is_rounded_to_its_place)
{
    const struct prompt_kernels *k = prompt_table();
    static uint16_t x[PROMPT_ROWS * 128];
    float f[128];

    for (int i = 0; i < 128; i++)
        f[i] = random_float();
    for (uint32_t at = 0; at < 128; at += 5)
        for (uint32_t n = 1; at + n <= 128; n += 7) {
            memset(x, 0x55, sizeof x);
            k->to_tiles(f, n, at, 19, x);
            for (uint32_t i = 0; i < 128; i++)
                for (uint32_t r = 0; r < PROMPT_ROWS; r++) {
                    const uint16_t got = x[i / 32 * 1024 + r * 32 + i % 32];
                    const uint32_t bits = i >= at && i < at + n ? bits_of_float(f[i - at]) : 0;

                    if (r != 19 || i < at || i >= at + n)
                        cr_assert(eq(u16, got, 0x5555));
                    else
                        cr_assert(eq(u16, got, (bits + 0x7fff + (bits >> 16 & 1)) >> 16));
                }
        }
}
