/* Blocks of every type: by hand, at the edges, and kept as the types of the kernels. */
#include "base/cleanup.h"
#include "gen/cpu/dequant.h"
#include "gen/cpu/half.h"
#include "gen/cpu/pack.h"
#include "loaders/gguf.h"
#include "tests/gen/blocks.h"
#include "tests/gen/rand.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 256, ROWS = 21, COLS = 512 };

/* 0x3c is the upper byte of 1, 0x38 of 0.5, 0x40 of 2, in fp16. */
static const struct by_hand {
    uint32_t type;
    struct { uint8_t at, byte; } set[12];           /* all others are zero; ends with byte 0 */
    struct { uint8_t i; float value; } want[6];     /* those at 0 come last, or are all */
} by_hand[] = {
    { GGML_Q4_0, { { 1, 0x3c }, { 2, 0x9f } }, { { 16, 1 }, { 1, -8 }, { 0, 7 } } },
    { GGML_Q4_1, { { 1, 0x3c }, { 3, 0x40 }, { 4, 0x21 } }, { { 16, 4 }, { 1, 2 }, { 0, 3 } } },
    { GGML_Q5_0, { { 1, 0x3c }, { 2, 1 }, { 4, 1 }, { 6, 0x2f } }, { { 16, 2 }, { 1, -16 }, { 0, 15 } } },
    { GGML_Q5_1, { { 1, 0x3c }, { 3, 0x40 }, { 4, 1 }, { 6, 1 }, { 8, 0x2f } }, { { 16, 20 }, { 1, 2 }, { 0, 33 } } },
    { GGML_Q8_0, { { 1, 0x40 }, { 2, 0x80 }, { 33, 3 } }, { { 31, 6 }, { 1, 0 }, { 0, -256 } } },
    { GGML_Q2_K,
      { { 81, 0x40 }, { 83, 0x3c }, { 16, 0xe4 }, { 48, 1 }, { 0, 0x35 }, { 2, 1 }, { 4, 0x10 }, { 6, 2 }, { 8, 1 } },
      { { 32, 2 }, { 64, -1 }, { 96, 12 }, { 128, 2 }, { 0, -3 } } },
    { GGML_Q3_K,
      { { 109, 0x3c }, { 96, 0x21 }, { 104, 0x22 }, { 0, 0x11 }, { 32, 3 }, { 64, 2 } },
      { { 128, 4 }, { 1, -4 }, { 64, 128 }, { 0, 3 } } },
    { GGML_Q4_K,
      { { 1, 0x3c }, { 3, 0x40 }, { 4, 3 }, { 8, 1 }, { 5, 0x41 }, { 9, 0x80 }, { 13, 0x21 }, { 16, 0x25 }, { 80, 0x30 } },
      { { 32, 2 }, { 160, -17 }, { 1, -2 }, { 0, 13 } } },
    { GGML_Q5_K,
      { { 1, 0x3c }, { 3, 0x40 }, { 4, 3 }, { 8, 1 }, { 5, 0x41 }, { 9, 0x80 }, { 13, 0x21 }, { 16, 0x21 }, { 48, 0x25 },
        { 112, 0x30 } },
      { { 32, 2 }, { 160, 255 }, { 1, -2 }, { 0, 61 } } },
    { GGML_Q6_K,
      { { 209, 0x38 }, { 0, 0x4f }, { 128, 0xd2 }, { 192, 2 }, { 196, 0xff }, { 198, 1 } },
      { { 64, 6 }, { 96, 8 }, { 1, -32 }, { 0, 15 } } },
    { GGML_IQ4_NL, { { 1, 0x40 }, { 2, 0xf0 } }, { { 16, 226 }, { 1, -254 }, { 0, -254 } } },
    { GGML_IQ4_XS,
      { { 1, 0x3c }, { 2, 2 }, { 3, 0x0c }, { 4, 1 }, { 6, 0x20 }, { 8, 0x0f }, { 88, 0x98 } },
      { { 16, -127 }, { 160, 18 }, { 176, 234 }, { 32, 4064 }, { 0, 113 } } },
    { GGML_MXFP4, { { 0, 128 }, { 1, 0x9f } }, { { 16, -1 }, { 1, 0 }, { 0, -12 } } },
    { GGML_MXFP4, { { 1, 0x71 } }, { { 16, 0x1.8p-125f }, { 0, 0x1p-128f } } },
    { GGML_MXFP4, { { 0, 1 }, { 1, 0x71 } }, { { 16, 0x1.8p-124f }, { 0, 0x1p-127f } } },
};

Test(dequant, blocks_read_as_they_do_by_hand)
{
    for (size_t t = 0; t < sizeof by_hand / sizeof by_hand[0]; t++) {
        const struct by_hand *h = &by_hand[t];
        uint8_t block[BLOCK_BYTES] = { 0 };
        float got[DEQUANT_MAX];

        for (int i = 0; h->set[i].byte; i++)
            block[h->set[i].at] = h->set[i].byte;
        cr_assert(dequant_knows(h->type));
        dequant(h->type, block, ggml_type_facts(h->type)->block, got);
        for (int i = 0;; i++) {
            cr_expect(eq(flt, got[h->want[i].i], h->want[i].value), "%s element %u: %g", ggml_type_facts(h->type)->name,
                      h->want[i].i, (double)got[h->want[i].i]);
            if (h->want[i].i == 0)
                break;
        }
    }
}

Test(dequant, every_type_that_has_blocks_is_here_or_has_no_place_at_all)
{
    size_t n = 0;

    for (uint32_t t = 0; t < 64; t++) {
        enum mat_type type;

        n += dequant_knows(t);
        if (dequant_knows(t))
            cr_expect(mat_type_of(t, &type), "%u", t);
        else
            cr_expect(eq(int, mat_type_of(t, &type), t == GGML_F32 || t == GGML_F16 || t == GGML_BF16), "%u", t);
    }
    cr_expect(eq(sz, n, BLOCK_TYPES));
}

Test(dequant, random_blocks_with_finite_scales_have_finite_values)
{
    uint64_t seed = 7;

    for (int t = 0; t < BLOCK_TYPES; t++) {
        const struct ggml_type_facts *f = ggml_type_facts(block_types[t]);
        int finite = 0, not_finite = 0;

        for (int n = 0; n < 3000; n++) {
            uint8_t block[BLOCK_BYTES];
            float out[DEQUANT_MAX];

            for (uint32_t i = 0; i < f->block_bytes; i++)
                block[i] = (uint8_t)rand_next(&seed);
            if (!dequant_finite(block_types[t], block, 1)) {
                not_finite++;
                continue;
            }
            finite++;
            dequant(block_types[t], block, f->block, out);
            for (uint32_t i = 0; i < f->block; i++)
                cr_assert(isfinite(out[i]), "%s", f->name);
        }
        cr_expect(gt(int, finite, 2000), "%s", f->name);
        cr_expect(gt(int, not_finite, 5), "%s", f->name);
    }
}

/* ---- packed ----------------------------------------------------------- */

struct packed {
    uint32_t type;              /* enum ggml_type */
    uint8_t *file;
    size_t row_bytes;
    struct mat mat;
};

static void packed_init(struct packed *p, uint32_t type, uint32_t cols, double size, uint64_t *seed)
{
    const struct ggml_type_facts *f = ggml_type_facts(type);
    enum mat_type kept;

    p->type = type;
    p->row_bytes = cols / f->block * f->block_bytes;
    p->file = malloc(ROWS * p->row_bytes);
    cr_assert(ne(ptr, p->file, NULL));
    for (size_t i = 0; i < ROWS * p->row_bytes; i++)
        p->file[i] = (uint8_t)rand_next(seed);
    for (size_t i = 0; i < ROWS * p->row_bytes; i += f->block_bytes)
        block_scale(type, p->file + i, size * (0.25 + rand_unit(seed)));
    cr_assert(mat_type_of(type, &kept));
    cr_assert(mat_init(&p->mat, kept, ROWS, cols));
    p->mat.w = aligned_alloc(64, mat_bytes(&p->mat));
    cr_assert(ne(ptr, p->mat.w, NULL));
    memset(p->mat.w, 0, mat_bytes(&p->mat));
}

static void packed_fini(struct packed *p)
{
    free(p->file);
    free(p->mat.w);
}

static void expect_rows(const struct packed *p)
{
    float want[COLS], got[COLS];

    for (uint32_t r = 0; r < ROWS; r++) {
        dequant(p->type, p->file + r * p->row_bytes, p->mat.cols, want);
        mat_row(&p->mat, r, got);
        for (uint32_t i = 0; i < p->mat.cols; i++)
            cr_assert(eq(u32, bits_of_float(got[i]), bits_of_float(want[i])), "%s row %u column %u: %a, not %a",
                      mat_type_name(p->mat.type), r, i, (double)got[i], (double)want[i]);
    }
}

Test(pack, every_type_keeps_each_value)
{
    uint64_t seed = 1;

    for (int t = 0; t < BLOCK_TYPES; t++)
        for (uint32_t cols = ggml_type_facts(block_types[t])->block; cols <= COLS; cols += 256) {
            struct packed p;

            packed_init(&p, block_types[t], cols, 0.5, &seed);
            cr_expect(mat_pack(&p.mat, p.file, 0, 1));
            cr_expect(mat_pack(&p.mat, p.file, 1, p.mat.n_groups));
            expect_rows(&p);
            packed_fini(&p);
        }
}

/* Scales of any bits: subnormal ones, negative ones, zeros. */
Test(pack, values_are_kept_to_the_bit_whatever_the_scales_are)
{
    uint64_t seed = 3;

    for (int t = 0; t < BLOCK_TYPES; t++) {
        const struct ggml_type_facts *f = ggml_type_facts(block_types[t]);
        struct packed p;

        packed_init(&p, block_types[t], COLS, 0.5, &seed);
        for (size_t i = 0; i < ROWS * p.row_bytes; i += f->block_bytes)
            do
                for (uint32_t j = 0; j < f->block_bytes; j++)
                    p.file[i + j] = (uint8_t)(rand_below(&seed, 4) ? rand_next(&seed) : 0);
            while (!dequant_finite(block_types[t], p.file + i, 1));
        cr_expect(mat_pack(&p.mat, p.file, 0, p.mat.n_groups));
        expect_rows(&p);
        packed_fini(&p);
    }
}

Test(pack, each_exponent_of_mxfp4_is_exact)
{
    for (int e = 0; e <= 252; e++) {
        uint8_t block[17] = { (uint8_t)e };
        struct mat mat;
        float want[32], got[32];

        for (int i = 0; i < 16; i++)
            block[1 + i] = (uint8_t)(17 * i);
        cr_assert(mat_init(&mat, MAT_MXFP4, 1, 32));
        mat.w = calloc(1, mat_bytes(&mat));
        cr_assert(ne(ptr, mat.w, NULL));
        cr_expect(mat_pack(&mat, block, 0, 1));
        dequant(GGML_MXFP4, block, 32, want);
        mat_row(&mat, 0, got);
        cr_assert(zero(int, memcmp(want, got, sizeof want)), "exponent %d", e);
        free(mat.w);
    }
}

Test(pack, types_take_about_what_they_take_in_the_file)
{
    for (int t = 0; t < BLOCK_TYPES; t++) {
        const struct ggml_type_facts *f = ggml_type_facts(block_types[t]);
        enum mat_type type;
        struct mat mat;

        cr_assert(mat_type_of(block_types[t], &type));
        cr_assert(mat_init(&mat, type, 16, 1024));
        cr_expect(le(dbl, (double)mat_bytes(&mat), 1.04 * 16 * (1024.0 / f->block * f->block_bytes)), "%s", f->name);
        cr_expect(zero(sz, mat.group_bytes % 64));
    }
}

Test(pack, a_scale_that_is_no_number_is_seen_wherever_it_is)
{
    uint64_t seed = 5;

    for (int t = 0; t < BLOCK_TYPES; t++) {
        const struct ggml_type_facts *f = ggml_type_facts(block_types[t]);
        struct packed p;

        packed_init(&p, block_types[t], COLS, 0.5, &seed);
        block_scale(block_types[t], p.file + ROWS * p.row_bytes - f->block_bytes, INFINITY);
        if (block_types[t] == GGML_MXFP4)
            p.file[ROWS * p.row_bytes - f->block_bytes] = 255;
        cr_expect(mat_pack(&p.mat, p.file, 0, 1), "%s", f->name);
        cr_expect(not(mat_pack(&p.mat, p.file, 1, p.mat.n_groups)), "%s", f->name);
        packed_fini(&p);
    }
}
