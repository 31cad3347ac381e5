/* Keys and values as every table keeps them, and attention over these: against the scalar twin and, for what a type
 * loses, against the numbers that were put there. */
#include "gen/cpu/half.h"
#include "gen/cpu/kernels.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { HEAD = 80, QUERIES = 7, PAGES = KERNEL_SPAN / KERNEL_PAGE, STRIDE = 4 * HEAD * KERNEL_PAGE + 64 };

static const char *const names[KV_TYPES] = { "f16", "bf16", "q8" };
static _Alignas(64) uint8_t cache[PAGES * STRIDE];
static const uint32_t pages[PAGES] = { 3, 1, 7, 0, 2, 6, 5, 4 };
static uint64_t seed;

static uint32_t random_bits(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33);
}

static float random_float(void) { return ((float)(random_bits() % 20001) - 10000) / 10000; }

static void put(const struct kernels *k, enum kv_type type, uint32_t head_dim, uint32_t t, const float *key, const float *value)
{
    uint8_t *page = cache + pages[t / KERNEL_PAGE] * STRIDE;

    for (uint32_t at = 0; at < head_dim; at += KERNEL_LANES) {
        k->put_k[type](page, head_dim, t % KERNEL_PAGE, at, key + at);
        k->put_v[type](page, head_dim, t % KERNEL_PAGE, at, value + at);
    }
}

static void fill(enum kv_type type, uint32_t head_dim)
{
    float x[2 * HEAD];

    for (uint32_t t = 0; t < KERNEL_SPAN; t++) {
        for (uint32_t i = 0; i < 2 * head_dim; i++)
            x[i] = random_float();
        put(&kernels_scalar, type, head_dim, t, x, x + head_dim);
    }
}

static struct kv_view view(enum kv_type type) { return (struct kv_view){ type, cache, STRIDE }; }

/* ---- storing ---------------------------------------------------------- */

static void expect_same_halves(const struct kernels *k, enum kv_type type, const float *x)
{
    uint16_t want[4 * KERNEL_LANES * KERNEL_PAGE], got[4 * KERNEL_LANES * KERNEL_PAGE];

    memset(want, 0, sizeof want);
    memset(got, 0, sizeof got);
    kernels_scalar.put_k[type]((uint8_t *)want, 32, 3, 16, x);
    k->put_k[type]((uint8_t *)got, 32, 3, 16, x);
    kernels_scalar.put_v[type]((uint8_t *)want, 32, 5, 16, x);
    k->put_v[type]((uint8_t *)got, 32, 5, 16, x);
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        const bool nan = type == KV_F16 && (want[i] & 0x7fff) > 0x7c00;

        cr_assert(nan ? (got[i] & 0x7fff) > 0x7c00 : got[i] == want[i], "%s, %s, %zu: %x instead of %x", k->name, names[type],
                  i, got[i], want[i]);
    }
}

Test(attend, every_table_stores_the_same_bits)
{
    for (size_t i = 0; kernels_at(i); i++)
        for (uint32_t bits = 0; bits < 0x10000; bits += KERNEL_LANES) {
            float of_half[KERNEL_LANES], near[KERNEL_LANES], any[KERNEL_LANES], plain[KERNEL_LANES];

            for (uint32_t j = 0; j < KERNEL_LANES; j++) {
                of_half[j] = f16_to_f32((uint16_t)(bits + j));
                near[j] = of_half[j] * (1 + (float)(random_bits() % 1024) / 1048576);
                any[j] = float_of_bits(random_bits() << 1 | (j & 1));
                plain[j] = random_float();
                if (!isnan(of_half[j]))
                    cr_assert(eq(u16, f16_of_f32(of_half[j]), bits + j));
                if (!isnan(bf16_to_f32((uint16_t)(bits + j))))
                    cr_assert(eq(u16, bf16_of_f32(bf16_to_f32((uint16_t)(bits + j))), bits + j));
            }
            for (enum kv_type type = 0; type < KV_TYPES; type++) {
                expect_same_halves(kernels_at(i), type, of_half);
                expect_same_halves(kernels_at(i), type, near);
                expect_same_halves(kernels_at(i), type, plain);
                if (type != KV_Q8)
                    expect_same_halves(kernels_at(i), type, any);
            }
        }
}

/* One query that is a unit vector reads a key back: its score is the element. The sum of exponentials is a NaN where that is not finite. */
static float key_back(enum kv_type type, uint32_t dim, float *ret_sum)
{
    float q[KERNEL_LANES] = { 0 }, o[KERNEL_LANES], max;

    q[dim] = 1;
    kernels_scalar.attend(&(struct attend){ .q = q, .n_q = 1, .head_dim = KERNEL_LANES, .kv = view(type), .pages = pages,
                                            .n = 1, .scale = 1, .max = &max, .sum = ret_sum, .o = o });
    return max;
}

Test(attend, what_a_type_loses_of_a_number_is_its_last_bit_or_half_a_step)
{
    for (int n = 0; n < 2000; n++) {
        const float size = ldexpf(1, (int)(random_bits() % 40) - 30);
        float x[KERNEL_LANES], max = 0, sum;

        for (int i = 0; i < KERNEL_LANES; i++) {
            x[i] = size * random_float();
            max = fmaxf(max, fabsf(x[i]));
        }
        for (enum kv_type type = 0; type < KV_TYPES; type++) {
            put(&kernels_scalar, type, KERNEL_LANES, 0, x, x);
            for (uint32_t i = 0; i < KERNEL_LANES; i++) {
                const float bound = type == KV_F16    ? fmaxf(fabsf(x[i]) / 2048, 0x1p-25f)
                                    : type == KV_BF16 ? fabsf(x[i]) / 256
                                                      : max / 127 * 0.504f;

                cr_assert(le(flt, fabsf(key_back(type, i, &sum) - x[i]), bound), "%s: %g", names[type], (double)x[i]);
            }
        }
    }
}

Test(attend, a_number_that_is_not_finite_is_not_hidden)
{
    for (size_t i = 0; kernels_at(i); i++)
        for (enum kv_type type = 0; type < KV_TYPES; type++)
            for (int what = 0; what < 2; what++) {
                float x[KERNEL_LANES] = { 1, 2, what ? NAN : INFINITY, 4 }, sum;

                put(kernels_at(i), type, KERNEL_LANES, 0, x, x);
                key_back(type, 2, &sum);
                cr_expect(isnan(sum), "%s %s", kernels_at(i)->name, names[type]);
            }
}

/* ---- attention ------------------------------------------------------- */

static void expect_close(const char *what, const struct kernels *k, enum kv_type type, const float *a, const float *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        cr_assert(le(dbl, fabs((double)a[i] - (double)b[i]), 1e-5 * (1 + fabs((double)b[i]))), "%s of %s, %s, at %u: %g %g",
                  what, k->name, names[type], i, (double)a[i], (double)b[i]);
}

Test(attend, over_any_number_of_positions_it_is_close_to_the_scalar_twin)
{
    static float q[QUERIES * HEAD], o[2][QUERIES * HEAD], max[2][QUERIES], sum[2][QUERIES];
    const float twos[HEAD] = { [0] = 2 };

    for (int i = 0; i < QUERIES * HEAD; i++)
        q[i] = 3 * random_float();
    for (enum kv_type type = 0; type < KV_TYPES; type++)
        for (uint32_t n = 1; n <= KERNEL_SPAN; n++) {
            struct attend a = { .q = q, .n_q = 1 + n % QUERIES, .head_dim = n % 3 ? HEAD : 64, .kv = view(type),
                                .pages = pages, .n = n, .scale = 0.2f,
                                .skip = n % 4 ? 0 : n % (n < KERNEL_PAGE ? n : KERNEL_PAGE), .softcap = n % 5 ? 0 : 1.5f };

            fill(type, a.head_dim);
            put(&kernels_scalar, type, a.head_dim, n - 1, twos, twos);
            a.max = max[0], a.sum = sum[0], a.o = o[0];
            kernels_scalar.attend(&a);
            for (size_t i = 0; kernels_at(i); i++) {
                a.max = max[1], a.sum = sum[1], a.o = o[1];
                kernels_at(i)->attend(&a);
                expect_close("max", kernels_at(i), type, max[1], max[0], a.n_q);
                expect_close("sum", kernels_at(i), type, sum[1], sum[0], a.n_q);
                expect_close("o", kernels_at(i), type, o[1], o[0], a.n_q * a.head_dim);
            }
        }
}

/* Positions [from, to) hold keys of 0.5 and values that are their numbers, all others were never written, or hold NaNs. */
static void expect_seen(const struct kernels *k, enum kv_type type, uint32_t from, uint32_t to)
{
    const uint32_t page = pages[0];
    float q[16], o[16], key[16], value[16], max, sum, mean = 0;

    memset(cache, 0xff, sizeof cache);
    for (uint32_t t = from; t < to; t++) {
        for (int i = 0; i < 16; i++) {
            q[i] = 1;
            key[i] = 0.5f;
            value[i] = (float)t;
        }
        put(k, type, 16, t, key, value);
        mean += (float)t / (float)(to - from);
    }
    k->attend(&(struct attend){ .q = q, .n_q = 1, .head_dim = 16, .kv = view(type), .pages = &page, .n = to, .skip = from,
                                .scale = 1, .max = &max, .sum = &sum, .o = o });
    cr_expect(le(flt, fabsf(max - 8), 0.04f), "%s %s: %g", k->name, names[type], (double)max);
    cr_expect(eq(flt, sum, (float)(to - from)));
    cr_expect(le(flt, fabsf(o[5] / sum - mean), 0.01f * mean), "%s %s: %g", k->name, names[type], (double)o[5]);
}

Test(attend, positions_that_are_not_there_are_not_seen)
{
    for (size_t i = 0; kernels_at(i); i++)
        for (enum kv_type type = 0; type < KV_TYPES; type++)
            expect_seen(kernels_at(i), type, 0, 2);
}

Test(attend, positions_before_a_window_are_not_seen)
{
    for (size_t i = 0; kernels_at(i); i++)
        for (enum kv_type type = 0; type < KV_TYPES; type++)
            expect_seen(kernels_at(i), type, 3, 5);
}

Test(attend, a_head_has_the_same_bits_whatever_heads_are_beside_it)
{
    static float q[QUERIES * HEAD], o[2][QUERIES * HEAD], max[2][QUERIES], sum[2][QUERIES];

    for (int i = 0; i < QUERIES * HEAD; i++)
        q[i] = 3 * random_float();
    for (enum kv_type type = 0; type < KV_TYPES; type++) {
        fill(type, HEAD);
        for (size_t i = 0; kernels_at(i); i++) {
            struct attend a = { .q = q, .n_q = QUERIES, .head_dim = HEAD, .kv = view(type), .pages = pages, .n = 93,
                                .scale = 0.2f, .max = max[0], .sum = sum[0], .o = o[0] };

            kernels_at(i)->attend(&a);
            a.n_q = 1;
            for (uint32_t h = 0; h < QUERIES; h++) {
                a.q = q + h * HEAD, a.max = max[1] + h, a.sum = sum[1] + h, a.o = o[1] + h * HEAD;
                kernels_at(i)->attend(&a);
            }
            cr_expect(zero(int, memcmp(o[0], o[1], sizeof o[0])), "%s %s", kernels_at(i)->name, names[type]);
            cr_expect(zero(int, memcmp(sum[0], sum[1], sizeof sum[0])));
        }
    }
}
