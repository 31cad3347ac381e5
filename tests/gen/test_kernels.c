/* Every table against its scalar twin: integer parts exactly, floats within what
 * another order of the same sums may cost. */
#include "base/err.h"
#include "gen/cpu/half.h"
#include "gen/cpu/isa.h"
#include "gen/cpu/kernels.h"
#include "gen/cpu/pack.h"
#include "loaders/gguf.h"
#include "tests/gen/acts.h"
#include "tests/gen/blocks.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 70, MAX_K = 608, OUT = 48, WEIGHT_ROWS = 41, LONG_K = 1792 };

static uint64_t seed;

static uint32_t random_bits(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33);
}

static float random_float(void) { return ((float)(random_bits() % 20001) - 10000) / 10000; }

static uint32_t ggml_type_of(enum mat_type type)
{
    enum mat_type found;

    for (uint32_t t = 0; t < 64; t++)
        if (mat_type_of(t, &found) && found == type)
            return t;
    cr_fatal("type %d is none of the file's", (int)type);
}

/* A file's rows of random weights; unit: every scale is 1, of types with small scales a small integer, and every
 * minimum such a one * -2. */
static void random_weights(uint32_t type, uint8_t *file, size_t bytes, bool unit)
{
    const struct ggml_type_facts *f = ggml_type_facts(type);

    for (size_t i = 0; i < bytes; i++)
        file[i] = (uint8_t)random_bits();
    for (size_t at = 0; at < bytes; at += f->block_bytes) {
        const float x = unit ? (float)(random_bits() % 15) - 7 : random_float();
        const uint16_t half = f16_of_f32(x), brain = (uint16_t)(bits_of_float(x) >> 16);

        if (type == GGML_F32)
            memcpy(file + at, &x, 4);
        else if (type == GGML_F16 || type == GGML_BF16)
            memcpy(file + at, type == GGML_F16 ? &half : &brain, 2);
        else if (unit)
            block_set(type, file + at, 1, -2);
        else
            block_scale(type, file + at, x < 0 ? (double)x - 0.01 : (double)x + 0.01);
    }
}

struct product {
    struct mat mat;
    struct acts x;
    float *y[MAX_ROWS];
};

static void product_init(struct product *p, enum mat_type type, uint32_t cols, bool unit)
{
    const uint32_t ggml_type = ggml_type_of(type);
    const struct ggml_type_facts *f = ggml_type_facts(ggml_type);
    const size_t bytes = (size_t)WEIGHT_ROWS * (cols / f->block) * f->block_bytes;
    CLEANUP(mem_free) uint8_t *file = malloc(bytes);

    cr_assert(ne(ptr, file, NULL));
    cr_assert(mat_init(&p->mat, type, WEIGHT_ROWS, cols));
    p->mat.w = zeroed(mat_bytes(&p->mat));
    random_weights(ggml_type, file, bytes, unit);
    mat_pack(&p->mat, file, 0, 1);                  /* in two parts, as two threads do */
    mat_pack(&p->mat, file, 1, p->mat.n_groups);
    acts_open(&p->x, MAX_ROWS, p->mat.k);
    for (uint32_t r = 0; r < MAX_ROWS; r++) {
        float *row = p->x.f + (size_t)r * p->x.k;

        for (uint32_t i = 0; i < cols; i++)
            row[i] = unit ? (float)(random_bits() % 255) - 127 : random_float();
        for (uint32_t b = 0; unit && b < cols / KERNEL_BLOCK; b++)
            row[b * KERNEL_BLOCK] = 127;            /* so that every scale is 1 */
        acts_quantise(&p->x, r);
        p->y[r] = zeroed(sizeof(float) * OUT);
    }
}

static void product_fini(struct product *p)
{
    free(p->mat.w);
    acts_close(&p->x);
    for (uint32_t r = 0; r < MAX_ROWS; r++)
        free(p->y[r]);
}

static void multiply(struct product *p, const struct kernels *k, uint32_t n_rows)
{
    struct mul m = { .w = p->mat.w, .group_bytes = p->mat.group_bytes, .n_groups = p->mat.n_groups,
                     .x = &p->x, .n_rows = n_rows, .y = p->y };

    k->mul[p->mat.type](&m);
}

static void keep(const struct product *p, float *to)
{
    for (uint32_t r = 0; r < MAX_ROWS; r++)
        memcpy(to + r * OUT, p->y[r], OUT * sizeof(float));
}

/* Number of columns number i, for blocks of 32 and of 256. */
static uint32_t some_cols(enum mat_type type, size_t i)
{
    static const uint32_t small[] = { 32, 96, 576, 608 }, large[] = { 256, 512, 256, 512 };

    return ggml_type_facts(ggml_type_of(type))->block > 32 ? large[i] : small[i];
}

Test(kernels, integer_parts_are_those_of_the_scalar_twin_to_the_bit)
{
    static float want[MAX_ROWS * OUT];

    for (size_t i = 0; kernels_at(i); i++)
        for (int type = 0; type < MAT_TYPES; type++)
            for (size_t c = 0; c < 3; c++) {
                const uint32_t cols = some_cols((enum mat_type)type, c);
                struct product p;

                product_init(&p, (enum mat_type)type, cols, true);
                multiply(&p, &kernels_scalar, MAX_ROWS);
                keep(&p, want);
                multiply(&p, kernels_at(i), MAX_ROWS);
                for (uint32_t r = 0; r < MAX_ROWS; r++)
                    cr_assert(zero(int, memcmp(p.y[r], want + r * OUT, OUT * sizeof(float))),
                              "%s type %d cols %u row %u", kernels_at(i)->name, type, cols, r);
                product_fini(&p);
            }
}

Test(kernels, products_are_close_to_the_scalar_twin)
{
    static float want[MAX_ROWS * OUT];

    for (size_t i = 0; kernels_at(i); i++)
        for (int type = 0; type < MAT_TYPES; type++)
            for (size_t c = 0; c < 4; c++) {
                const uint32_t cols = some_cols((enum mat_type)type, c);
                struct product p;

                product_init(&p, (enum mat_type)type, cols, false);
                multiply(&p, &kernels_scalar, MAX_ROWS);
                keep(&p, want);
                multiply(&p, kernels_at(i), MAX_ROWS);
                for (uint32_t r = 0; r < MAX_ROWS; r++)
                    for (int o = 0; o < OUT; o++)
                        cr_assert(le(dbl, fabs((double)p.y[r][o] - (double)want[r * OUT + o]), 2e-4),
                                  "%s type %d cols %u row %u out %d", kernels_at(i)->name, type,
                                  cols, r, o);
                product_fini(&p);
            }
}

/* The scalar twin itself against rows read back and summed in double precision. */
Test(kernels, the_scalar_twin_multiplies_what_the_rows_say)
{
    static float row[MAX_K];

    for (int type = 0; type < MAT_TYPES; type++) {
        struct product p;
        const bool quantised = mat_type_quantised((enum mat_type)type);
        const uint32_t cols = some_cols((enum mat_type)type, 1), n_blocks = cols / 32;

        product_init(&p, (enum mat_type)type, cols, false);
        multiply(&p, &kernels_scalar, 3);
        for (uint32_t o = 0; o < WEIGHT_ROWS; o++) {
            mat_row(&p.mat, o, row);
            for (uint32_t r = 0; r < 3; r++) {
                double sum = 0;

                for (uint32_t i = 0; i < cols; i++)
                    sum += (double)row[i] *
                           (quantised ? (double)p.x.q[r * cols + i] * (double)p.x.d[r * n_blocks + i / 32]
                                      : (double)p.x.f[r * cols + i]);
                cr_assert(le(dbl, fabs(sum - (double)p.y[r][o]), 1e-4), "type %d row %u", type, o);
            }
        }
        for (uint32_t o = WEIGHT_ROWS; o < OUT; o++)
            cr_assert(zero(flt, p.y[0][o]));
        product_fini(&p);
    }
}

static void same_whatever_else(const struct kernels *k, enum mat_type type, uint32_t cols, const uint32_t *counts, size_t n)
{
    static float want[MAX_ROWS * OUT];
    struct product p;

    product_init(&p, type, cols, false);
    multiply(&p, k, MAX_ROWS);
    keep(&p, want);
    for (size_t c = 0; c < n; c++) {
        multiply(&p, k, counts[c]);
        for (uint32_t r = 0; r < counts[c]; r++)
            cr_assert(zero(int, memcmp(p.y[r], want + r * OUT, OUT * sizeof(float))), "%s type %d k %u: row %u of %u", k->name,
                      (int)type, cols, r, counts[c]);
    }
    product_fini(&p);
}

Test(kernels, a_row_is_the_same_to_the_bit_whatever_else_is_in_the_call)
{
    static const uint32_t counts[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 17, 32, 33, 65 };

    for (size_t i = 0; kernels_at(i); i++)
        for (int type = 0; type < MAT_TYPES; type++)
            same_whatever_else(kernels_at(i), (enum mat_type)type, some_cols((enum mat_type)type, 3), counts,
                               sizeof counts / sizeof counts[0]);
}

/* More blocks than are gathered at once of one tile of rows. */
Test(kernels, a_long_row_is_the_same_to_the_bit_too)
{
    static const uint32_t counts[] = { 1, 2, 8, 32, 69 };

    for (size_t i = 1; kernels_at(i); i++)
        for (int type = 0; type < MAT_TYPES; type++)
            same_whatever_else(kernels_at(i), (enum mat_type)type, LONG_K, counts, sizeof counts / sizeof counts[0]);
}

/* All codes of a group and its small scales, those to 1. */
static void fill_codes(const struct product *p, uint8_t byte)
{
    const enum mat_type type = p->mat.type;
    const struct pack_form *f = &pack_forms[type];

    for (uint32_t b = 0; b < p->mat.k / KERNEL_BLOCK; b++) {
        memset((uint8_t *)pack_codes(type, p->mat.w, b), byte, 64u * f->bits);
        memset((uint8_t *)pack_high(type, p->mat.w, b), byte, 64u * f->high);
        if (f->scale != PACK_E8M0)
            memset((uint8_t *)pack_fine(type, p->mat.w, b), f->scale == PACK_U4 ? 0x11 : 1, pack_fine_bytes(type));
    }
}

/* The lowest and the highest weight: bytes of 0x00 and 0xff, in MXFP4 of 0xff and 0x77. */
/* Their integers are exact and their float steps the same. */
Test(kernels, tables_of_arm_compute_the_same_bits)
{
    static float want[MAX_ROWS * OUT];

    for (int type = 0; type < MAT_TYPES; type++) {
        const struct kernels *first = NULL;
        struct product p;

        product_init(&p, (enum mat_type)type, some_cols((enum mat_type)type, 3), false);
        for (size_t i = 0; kernels_at(i); i++) {
            if (strncmp(kernels_at(i)->name, "neon", 4) != 0)
                continue;
            multiply(&p, kernels_at(i), MAX_ROWS);
            if (!first)
                keep(&p, want);
            first = first ? first : kernels_at(i);
            for (uint32_t r = 0; r < MAX_ROWS; r++)
                cr_assert(zero(int, memcmp(p.y[r], want + r * OUT, OUT * sizeof(float))), "%s type %d row %u",
                          kernels_at(i)->name, type, r);
        }
        product_fini(&p);
    }
}

Test(kernels, extreme_weights_and_activations_do_not_saturate)
{
    static const uint8_t bytes[] = { 0, 0x77, 0xff };

    for (size_t i = 0; kernels_at(i); i++)
        for (int type = MAT_BF16 + 1; type < MAT_TYPES; type++)
            for (int sign = -1; sign <= 1; sign += 2)
                for (size_t c = 0; c < sizeof bytes; c++) {
                    const uint32_t cols = some_cols((enum mat_type)type, 1);
                    struct product p;
                    float row[MAX_K];
                    double want = 0;

                    product_init(&p, (enum mat_type)type, cols, true);
                    fill_codes(&p, bytes[c]);
                    for (uint32_t k = 0; k < cols; k++)
                        p.x.f[k] = (float)(sign * 127);
                    kernels_at(i)->quantise(p.x.f, cols, p.x.q, p.x.d, p.x.sum, p.x.half);
                    multiply(&p, kernels_at(i), 1);
                    mat_row(&p.mat, 0, row);
                    for (uint32_t k = 0; k < cols; k++)
                        want += (double)row[k] * sign * 127;
                    cr_expect(eq(dbl, (double)p.y[0][0], want), "%s type %d", kernels_at(i)->name, type);
                    product_fini(&p);
                }
}

Test(kernels, activations_are_quantised_alike_everywhere)
{
    float x[MAX_K];

    for (size_t i = 0; kernels_at(i); i++)
        for (int pass = 0; pass < 50; pass++) {
            int8_t q[2][MAX_K];
            float d[2][MAX_K / 32];
            int32_t sum[2][MAX_K / 32], half[2][MAX_K / 32];

            for (int k = 0; k < MAX_K; k++)
                x[k] = k / 32 == 3 ? 0 : random_float() * powf(10, (float)(pass % 9) - 4);
            kernels_scalar.quantise(x, MAX_K, q[0], d[0], sum[0], half[0]);
            kernels_at(i)->quantise(x, MAX_K, q[1], d[1], sum[1], half[1]);
            cr_assert(zero(int, memcmp(q[0], q[1], sizeof q[0])));
            cr_assert(zero(int, memcmp(d[0], d[1], sizeof d[0])));
            cr_assert(zero(int, memcmp(sum[0], sum[1], sizeof sum[0])));
            cr_assert(zero(int, memcmp(half[0], half[1], sizeof half[0])));
            cr_assert(zero(int, sum[1][3]));
        }
}

static void expect_close(const char *what, const struct kernels *k, const float *a, const float *b, uint32_t n,
                         double by)
{
    for (uint32_t i = 0; i < n; i++)
        cr_assert(le(dbl, fabs((double)a[i] - (double)b[i]), by * (1 + fabs((double)b[i]))), "%s of %s at %u: %g %g",
                  what, k->name, i, (double)a[i], (double)b[i]);
}

Test(kernels, work_on_rows_is_close_to_the_scalar_twin)
{
    float x[MAX_K], y[MAX_K], a[MAX_K], b[MAX_K], c[MAX_K], s[MAX_K];

    for (int i = 0; i < MAX_K; i++) {
        x[i] = 30 * random_float();
        y[i] = random_float();
        c[i] = cosf((float)(i / 2));
        s[i] = (i % 2 ? 1 : -1) * sinf((float)(i / 2));
    }
    for (size_t i = 0; kernels_at(i); i++) {
        const struct kernels *k = kernels_at(i);

        kernels_scalar.rms_norm(x, y, MAX_K, MAX_K - 20, 1e-5f, a);
        k->rms_norm(x, y, MAX_K, MAX_K - 20, 1e-5f, b);
        expect_close("rms_norm", k, b, a, MAX_K, 1e-5);
        kernels_scalar.silu_mul(x, y, MAX_K, a);
        k->silu_mul(x, y, MAX_K, b);
        expect_close("silu_mul", k, b, a, MAX_K, 1e-5);
        kernels_scalar.gelu_tanh_mul(x, y, MAX_K, a);
        k->gelu_tanh_mul(x, y, MAX_K, b);
        expect_close("gelu_tanh_mul", k, b, a, MAX_K, 1e-5);
        memcpy(a, x, sizeof a);
        memcpy(b, x, sizeof b);
        kernels_scalar.softcap(a, 20, MAX_K);
        k->softcap(b, 20, MAX_K);
        expect_close("softcap", k, b, a, MAX_K, 4e-6);
        memcpy(a, x, sizeof a);
        memcpy(b, x, sizeof b);
        kernels_scalar.rope(a, c, s, MAX_K);
        k->rope(b, c, s, MAX_K);
        expect_close("rope", k, b, a, MAX_K, 1e-5);
        kernels_scalar.add(a, y, MAX_K);
        k->add(b, y, MAX_K);
        kernels_scalar.scale(a, 0.3f, MAX_K);
        k->scale(b, 0.3f, MAX_K);
        expect_close("add and scale", k, b, a, MAX_K, 1e-5);
    }
}

Test(kernels, what_is_not_a_number_stays_visible)
{
    float x[KERNEL_BLOCK], one[KERNEL_BLOCK], out[KERNEL_BLOCK];

    for (int i = 0; i < KERNEL_BLOCK; i++) {
        x[i] = i == 3 ? NAN : -1000;
        one[i] = 1;
    }
    for (size_t i = 0; kernels_at(i); i++) {
        kernels_at(i)->silu_mul(x, one, KERNEL_BLOCK, out);
        cr_expect(isnan(out[3]));
        cr_expect(le(dbl, fabs((double)out[4]), 1e-30));
        kernels_at(i)->gelu_tanh_mul(x, one, KERNEL_BLOCK, out);
        cr_expect(isnan(out[3]));
        cr_expect(le(dbl, fabs((double)out[4]), 1e-30));
        memcpy(out, x, sizeof out);
        kernels_at(i)->softcap(out, 5, KERNEL_BLOCK);
        cr_expect(isnan(out[3]));
        cr_expect(eq(flt, out[4], -5));
    }
}

/* Gemma's two own pieces against the definition, in double precision. */
Test(kernels, gelu_and_the_soft_cap_are_what_their_definitions_say)
{
    float x[KERNEL_BLOCK], one[KERNEL_BLOCK], gelu[KERNEL_BLOCK], cap[KERNEL_BLOCK];

    for (int i = 0; i < KERNEL_BLOCK; i++) {
        x[i] = cap[i] = (float)(i - 16) / 2;
        one[i] = 1;
    }
    for (size_t i = 0; kernels_at(i); i++) {
        memcpy(cap, x, sizeof cap);
        kernels_at(i)->gelu_tanh_mul(x, one, KERNEL_BLOCK, gelu);
        kernels_at(i)->softcap(cap, 3, KERNEL_BLOCK);
        for (int j = 0; j < KERNEL_BLOCK; j++) {
            const double v = (double)x[j];

            cr_expect(le(dbl, fabs((double)gelu[j] - v / 2 * (1 + tanh(sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)))), 2e-6));
            cr_expect(le(dbl, fabs((double)cap[j] - 3 * tanh(v / 3)), 2e-6));
        }
    }
}

Test(kernels, spans_that_are_joined_give_what_one_would)
{
    for (size_t i = 0; kernels_at(i); i++) {
        float max[2] = { 1, -3 }, sum[2] = { 2, 1 }, o[32], b_max[2] = { 3, -3 }, b_sum[2] = { 4, 5 }, b_o[32];

        for (int j = 0; j < 32; j++) {
            o[j] = 1;
            b_o[j] = (float)j;
        }
        kernels_at(i)->fold(max, sum, o, b_max, b_sum, b_o, 2, 16);
        cr_expect(eq(flt, max[0], 3));
        cr_expect(le(dbl, fabs((double)sum[0] - (2 * exp(-2) + 4)), 1e-5));
        cr_expect(le(dbl, fabs((double)o[4] - (exp(-2) + 4)), 1e-5));
        cr_expect(eq(flt, max[1], -3));
        cr_expect(eq(flt, sum[1], 6));
        cr_expect(eq(flt, o[20], 21));
    }
}

/* ---- choice ---------------------------------------------------------- */

Test(kernels, every_table_multiplies_every_type)
{
    for (size_t i = 0; kernels_at(i); i++)
        for (int type = 0; type < MAT_TYPES; type++)
            cr_expect(kernels_at(i)->mul[type] != NULL, "%s type %d", kernels_at(i)->name, type);
}

/* tools/cross-arm64.sh knows what the processor is that it emulates. */
Test(kernels, the_best_table_is_the_one_that_whoever_knows_the_processor_expects)
{
    const char *want = getenv("FASTCHAT_BEST_ISA");
    const struct kernels *k;

    unsetenv("FASTCHAT_ISA");
    cr_assert(zero(int, kernels_choose(NULL, &k, NULL)));
    cr_expect(eq(str, (char *)k->name, (char *)(want ? want : k->name)));
}

Test(kernels, tables_are_chosen_by_name_by_environment_or_by_what_runs_best)
{
    const struct kernels *k = NULL;
    struct err err = { 0 };
    size_t n = 0;

    unsetenv("FASTCHAT_ISA");
    while (kernels_at(n + 1))
        n++;
    cr_assert(zero(int, kernels_choose(NULL, &k, NULL)));
    cr_expect(eq(ptr, (void *)k, (void *)kernels_at(n)));
    cr_assert(zero(int, kernels_choose("scalar", &k, NULL)));
    cr_expect(eq(str, (char *)k->name, "scalar"));
    setenv("FASTCHAT_ISA", "scalar", 1);
    cr_assert(zero(int, kernels_choose("", &k, NULL)));
    cr_expect(eq(str, (char *)k->name, "scalar"));
    cr_assert(zero(int, kernels_choose("auto", &k, NULL)));
    cr_expect(eq(str, (char *)k->name, "scalar"));
    cr_assert(zero(int, kernels_choose(kernels_at(n)->name, &k, NULL)));
    cr_expect(eq(ptr, (void *)k, (void *)kernels_at(n)), "what is named wins over the environment");
    setenv("FASTCHAT_ISA", "auto", 1);
    cr_assert(zero(int, kernels_choose("auto", &k, NULL)));
    cr_expect(eq(ptr, (void *)k, (void *)kernels_at(n)));
    setenv("FASTCHAT_ISA", "mmx", 1);
    cr_expect(eq(int, kernels_choose(NULL, &k, &err), -ENOTSUP));
    cr_expect(eq(ptr, strstr(err.text, "FASTCHAT_ISA: instruction set \"mmx\" is not known here; this machine has: scalar"), err.text));
    cr_expect(zero(int, kernels_choose("scalar", &k, NULL)), "nobody asked the environment");
}

/* The names of those that run, as a sentence has them. */
static void names_here(char *names, size_t size)
{
    size_t used = 0;

    for (size_t i = 0; kernels_at(i); i++)
        used += (size_t)snprintf(names + used, size - used, "%s%s", i ? ", " : "", kernels_at(i)->name);
}

Test(kernels, what_the_machine_lacks_is_refused_with_what_it_has)
{
    static char small[4096];
    const stack_t stack = { .ss_sp = small, .ss_size = sizeof small };
    char names[256], want[512];

    /* With it the kernel gives no leave to use tiles, so that one is missing wherever there is AMX. */
    cr_assert(zero(int, sigaltstack(&stack, NULL)));
    names_here(names, sizeof names);
    for (const struct isa *i = isa_tables; i->kernels; i++) {
        const struct kernels *k = NULL;
        struct err err = { 0 };

        if (i->runs()) {
            cr_expect(zero(int, kernels_choose(i->kernels->name, &k, NULL)));
            cr_expect(eq(ptr, (void *)k, (void *)i->kernels));
            continue;
        }
        cr_expect(eq(int, kernels_choose(i->kernels->name, &k, &err), -ENOTSUP));
        snprintf(want, sizeof want, "instruction set \"%s\" needs %s, which this machine lacks; it has: %s", i->kernels->name, i->needs, names);
        cr_expect(eq(str, err.text, want));
    }
}

/* A row's choices, as text. */
static const char *choices_of(const char *key)
{
    static const struct { const char *key, *unit; } rows[] = {
#define CONFIG(section, key, type, applies, def, unit, min, max, help) { #key, unit },
#include "daemon/supervisor/config.def"
#undef CONFIG
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(rows[i].key, key) == 0)
            return rows[i].unit;
    return "";
}

Test(kernels, every_table_can_be_named_in_the_configuration)
{
    const char *choices = choices_of("isa");

    for (const struct isa *i = isa_tables; i->kernels; i++) {
        const size_t len = strlen(i->kernels->name);
        const char *at = choices;

        while (*at && !(strncmp(at, i->kernels->name, len) == 0 && (at[len] == '|' || !at[len])))
            at += strcspn(at, "|"), at += *at == '|';
        cr_expect(ne(chr, *at, '\0'), "%s is none of %s", i->kernels->name, choices);
    }
}
