/* Attention of prompts on tiles: against that of plain C, and against itself bit by bit however rows are cut into calls.
 * Where there is no AMX each test says so and is skipped. */
#include "gen/cpu/half.h"
#include "gen/cpu/kernels.h"
#include "gen/cpu/prompt.h"
#include "gen/kv.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_HEAD = 256, MAX_GROUP = 8, MAX_POS = 700, PAGES = (MAX_POS + KV_PAGE - 1) / KV_PAGE };

struct shape {
    enum kv_type type;
    uint32_t head_dim, group, window;
    float softcap;
};

static uint8_t *cache;
static uint32_t pages[PAGES];
static float *queries, *got, *want;             /* [MAX_POS][group][head_dim] */
static uint64_t seed = 1;

static float random_float(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(seed >> 40) / (1 << 23) - 1;
}

/* Three of them: near enough to a normal distribution of variance 1. */
static float random_normal(void) { return random_float() + random_float() + random_float(); }

static const struct kernels *tiles(void)
{
    const struct kernels *k = NULL;

    if (kernels_choose("amx", &k, NULL) || !k->prompt || !k->prompt->attend)
        cr_skip_test("this machine has no AMX");
    return k;
}

static size_t stride(const struct shape *s) { return kv_page_bytes(s->type, s->head_dim); }

static void *room(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) & ~(size_t)63);

    cr_assert(ne(ptr, p, NULL));
    return p;
}

static void put(const struct shape *s, uint32_t pos, const float *key, const float *value)
{
    uint8_t *page = cache + pages[pos / KV_PAGE] * stride(s);

    for (uint32_t at = 0; at < s->head_dim; at += KERNEL_LANES) {
        kernels_scalar.put_k[s->type](page, s->head_dim, pos % KV_PAGE, at, key + at);
        kernels_scalar.put_v[s->type](page, s->head_dim, pos % KV_PAGE, at, value + at);
    }
}

/* What is behind n was never written: NaNs. */
static void bed(const struct shape *s, uint32_t n)
{
    const size_t floats = (size_t)MAX_POS * s->group * s->head_dim;
    float key[MAX_HEAD], value[MAX_HEAD];

    if (!cache) {
        cache = room(PAGES * kv_page_bytes(KV_F16, MAX_HEAD));
        queries = room((size_t)MAX_POS * MAX_GROUP * MAX_HEAD * sizeof(float));
        got = room((size_t)MAX_POS * MAX_GROUP * MAX_HEAD * sizeof(float));
        want = room((size_t)MAX_POS * MAX_GROUP * MAX_HEAD * sizeof(float));
        for (uint32_t i = 0; i < PAGES; i++)
            pages[i] = i * 5 % PAGES;
    }
    memset(cache, 0xff, PAGES * stride(s));
    for (uint32_t pos = 0; pos < n; pos++) {
        for (uint32_t i = 0; i < s->head_dim; i++) {
            key[i] = 1.5f * random_normal();
            value[i] = random_normal();
        }
        put(s, pos, key, value);
    }
    for (size_t i = 0; i < floats; i++)
        queries[i] = 1.5f * random_normal();
}

static void bed_fini(void)
{
    free(cache);
    free(queries);
    free(got);
    free(want);
}

TestSuite(tile_attend, .fini = bed_fini);

static float scale_of(const struct shape *s) { return 1 / sqrtf((float)s->head_dim); }

static size_t row_floats(const struct shape *s) { return (size_t)s->group * s->head_dim; }

/* Rows [from, to) in calls of `most`. */
static void attend(const struct kernels *k, const struct shape *s, uint32_t from, uint32_t to, uint32_t most, float *out)
{
    const struct kv_view view = { s->type, cache, stride(s) };
    void *scratch = room(k->prompt->attend_scratch(s->group, s->head_dim));

    k->prompt->enter();
    for (uint32_t at = from; at < to; at += most)
        k->prompt->attend(&(struct prompt_attend){
            .q = queries + at * row_floats(s), .q_stride = row_floats(s), .n = to - at < most ? to - at : most, .group = s->group,
            .head_dim = s->head_dim, .pos = at, .window = s->window, .kv = &view, .pages = pages, .scale = scale_of(s),
            .softcap = s->softcap, .o = out + at * row_floats(s), .o_stride = row_floats(s), .scratch = scratch });
    k->prompt->leave();
    free(scratch);
}

/* The same by plain C, one position after another. */
static void attend_plainly(const struct shape *s, uint32_t pos, float *out)
{
    const uint32_t hd = s->head_dim, first = pos + 1 > s->window ? pos + 1 - s->window : 0;
    float max[MAX_GROUP], sum[MAX_GROUP], span_max[MAX_GROUP], span_sum[MAX_GROUP], span[MAX_GROUP * MAX_HEAD];
    struct attend a = { .q = queries + pos * row_floats(s), .n_q = s->group, .head_dim = hd, .kv = { s->type, cache, stride(s) },
                        .scale = scale_of(s), .softcap = s->softcap, .max = max, .sum = sum, .o = out };

    for (uint32_t at = first / KV_PAGE * KV_PAGE; at <= pos; at += KERNEL_SPAN) {
        a.pages = pages + at / KV_PAGE;
        a.n = pos + 1 - at < KERNEL_SPAN ? pos + 1 - at : KERNEL_SPAN;
        a.skip = at < first ? first - at : 0;
        kernels_scalar.attend(&a);
        if (a.o == span)
            kernels_scalar.fold(max, sum, out, span_max, span_sum, span, s->group, hd);
        a.max = span_max, a.sum = span_sum, a.o = span;
    }
    for (uint32_t h = 0; h < s->group; h++)
        for (uint32_t i = 0; i < hd; i++)
            out[h * hd + i] /= sum[h];
}

/* ---- against plain C --------------------------------------------------- */

/* Scores are off by the rounding of q and k: Σ |q k| / 256 x scale at most, for normal numbers √hd times less than hd terms;
 * weights are off by as much, and weights and values are rounded by 1/512 themselves. So, for numbers of these sizes, less
 * than a 50th of a value (in any of 10^5 results) and of all results less than 8e-3 of their size. */
static void expect_close(const struct kernels *k, const struct shape *s, uint32_t from, uint32_t to)
{
    double error = 0, size = 0, worst = 0;

    attend(k, s, from, to, PROMPT_ATTEND_ROWS, got);
    for (uint32_t pos = from; pos < to; pos += pos + 1 < to && pos + 8 > to ? 1 : 7) {
        attend_plainly(s, pos, want);
        for (size_t i = 0; i < row_floats(s); i++) {
            const double by = (double)got[pos * row_floats(s) + i] - (double)want[i];

            cr_assert(isfinite(by), "%u dimensions, %u heads, position %u: %g %g", s->head_dim, s->group, pos,
                      (double)got[pos * row_floats(s) + i], (double)want[i]);
            error += by * by;
            size += (double)want[i] * (double)want[i];
            worst = fmax(worst, fabs(by));
        }
    }
    cr_assert(lt(dbl, sqrt(error / size), 8e-3), "%s, %u dimensions, %u heads, window %u, cap %g, rows %u to %u", kv_type_name(s->type),
              s->head_dim, s->group, s->window, (double)s->softcap, from, to);
    cr_assert(lt(dbl, worst, 0.05), "%s, %u dimensions", kv_type_name(s->type), s->head_dim);
    if (from == 0 && to > 256)
        printf("%s, %u dimensions, window %u, cap %g: error %.1e, at worst %.1e\n", kv_type_name(s->type), s->head_dim, s->window,
               (double)s->softcap, sqrt(error / size), worst);
}

Test(tile_attend, every_size_of_head_and_type_is_close_to_plain_c)
{
    static const uint32_t heads[] = { 16, 64, 80, 96, 128, 256 };
    const struct kernels *k = tiles();

    for (enum kv_type type = 0; type < KV_TYPES; type++)
        for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
            const struct shape s = { type, heads[i], 1 + (uint32_t)i % 4, UINT32_MAX, 0 };

            bed(&s, 300);
            expect_close(k, &s, 0, 300);
        }
}

Test(tile_attend, every_group_of_heads_is_close_to_plain_c)
{
    const struct kernels *k = tiles();

    for (uint32_t group = 1; group <= MAX_GROUP; group++) {
        const struct shape s = { KV_F16, 64, group, UINT32_MAX, 0 };

        bed(&s, 150);
        expect_close(k, &s, 0, 150);
    }
}

Test(tile_attend, windows_and_soft_caps_are_kept)
{
    static const uint32_t windows[] = { 1, 2, 15, 16, 17, 100, 128, 129, 300, 512 };
    const struct kernels *k = tiles();

    for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++)
        for (int capped = 0; capped < 2; capped++) {
            const struct shape s = { i % 2 ? KV_Q8 : KV_F16, 64, 2, windows[i], capped ? 4 : 0 };

            bed(&s, 600);
            expect_close(k, &s, 0, 600);
        }
}

Test(tile_attend, rows_around_the_borders_of_rounds_and_pages_are_close)
{
    static const uint32_t borders[] = { 1, 15, 16, 17, 31, 32, 33, 127, 128, 129, 255, 256, 257, 383, 384, 385 };
    const struct shape s = { KV_F16, 64, 1, UINT32_MAX, 0 };
    const struct kernels *k = tiles();

    for (size_t i = 0; i < sizeof borders / sizeof borders[0]; i++) {
        bed(&s, borders[i]);                    /* behind it nothing was written */
        for (uint32_t from = 0; from < borders[i]; from += 1 + borders[i] / 5)
            expect_close(k, &s, from, borders[i]);
    }
}

/* ---- bit by bit ------------------------------------------------------- */

Test(tile_attend, a_row_has_the_same_bits_however_rows_are_cut_into_calls)
{
    static const uint32_t sizes[] = { 1, 2, 7, 16, 31, 32, 33, 64, 100, 127 };
    static const struct shape shapes[] = {
        { KV_F16, 64, 3, UINT32_MAX, 0 }, { KV_BF16, 80, 1, 100, 0 }, { KV_Q8, 128, 2, UINT32_MAX, 5 }, { KV_F16, 16, 1, 17, 3 },
    };
    const struct kernels *k = tiles();
    enum { N = 420 };

    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const struct shape *s = &shapes[i];

        bed(s, N);
        attend(k, s, 0, N, PROMPT_ATTEND_ROWS, want);
        for (size_t j = 0; j < sizeof sizes / sizeof sizes[0]; j++)
            for (uint32_t from = 0; from < N; from += 131) {
                memset(got, 0, N * row_floats(s) * sizeof(float));
                attend(k, s, from, N, sizes[j], got);
                cr_assert(zero(int, memcmp(got + from * row_floats(s), want + from * row_floats(s), (N - from) * row_floats(s) * sizeof(float))),
                          "%u at a time from %u", sizes[j], from);
            }
    }
}

/* What grows from round to round raises the maximum, again and again, at other rows than those of its block. */
Test(tile_attend, scores_that_grow_without_end_are_close_and_the_same_in_any_call)
{
    const struct shape s = { KV_F16, 64, 1, UINT32_MAX, 0 };
    const struct kernels *k = tiles();
    float key[64], value[64];
    enum { N = 500 };

    bed(&s, N);
    for (uint32_t pos = 0; pos < N; pos++) {
        for (int i = 0; i < 64; i++) {
            key[i] = (float)pos / 8 * (1 + random_float() / 64);
            value[i] = random_normal();
        }
        put(&s, pos, key, value);
        for (int i = 0; i < 64; i++)
            queries[pos * 64 + i] = (float)(pos % 5) / 4;
    }
    attend(k, &s, 0, N, PROMPT_ATTEND_ROWS, got);
    for (uint32_t pos = 0; pos < N; pos += 5) {             /* queries of zeros: the mean */
        attend_plainly(&s, pos, want);
        for (int i = 0; i < 64; i++)
            cr_assert(le(flt, fabsf(got[pos * 64 + i] - want[i]), 0.01f));
    }
    attend(k, &s, 0, N, 9, want);
    cr_assert(zero(int, memcmp(got, want, N * 64 * sizeof(float))));
    for (int i = 0; i < N * 64; i++)
        cr_assert(isfinite(got[i]));
}

Test(tile_attend, a_value_that_is_not_finite_spoils_the_rows_that_see_it_and_no_others)
{
    const struct kernels *k = tiles();

    for (enum kv_type type = 0; type < KV_TYPES; type++)
        for (int of_key = 0; of_key < 2; of_key++) {
            const struct shape s = { type, 64, 2, 90, 0 };
            float key[64] = { 0 }, value[64] = { 0 };

            bed(&s, 300);
            attend(k, &s, 0, 300, PROMPT_ATTEND_ROWS, want);
            (of_key ? key : value)[5] = NAN;
            put(&s, 137, key, value);
            attend(k, &s, 0, 300, PROMPT_ATTEND_ROWS, got);
            cr_expect(zero(int, memcmp(got, want, 137 * row_floats(&s) * sizeof(float))));
            cr_expect(zero(int, memcmp(got + 227 * row_floats(&s), want + 227 * row_floats(&s), 73 * row_floats(&s) * sizeof(float))));
            for (size_t i = 137 * row_floats(&s); i < 227 * row_floats(&s); i++)
                cr_assert(isnan(got[i]), "%s", kv_type_name(type));
        }
}
