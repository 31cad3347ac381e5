#include "gen/ngram.h"

#include "tests/gen/rand.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

/* What ngram.h says, by looking at every place of the text. */
static uint32_t twin(const int32_t *text, uint32_t n, uint32_t window, uint32_t most, int32_t *ret)
{
    uint32_t best = 0, best_end = 0, seen = 0;

    for (uint32_t end = n > 2 ? n - 2 : 0; end >= 1 && end + window >= n - 1 && seen < NGRAM_PLACES; end--) {
        uint32_t len = 0;

        while (len < NGRAM_LONGEST && len <= end && text[end - len] == text[n - 1 - len])
            len++;
        if (len < NGRAM_SHORTEST)
            continue;
        seen++;
        if (len > best) {
            best = len;
            best_end = end;
        }
    }
    if (!best)
        return 0;
    most = most < 2 * (best - 1) ? most : 2 * (best - 1);
    for (uint32_t i = 0; i < most; i++)
        ret[i] = best_end + 1 + i < n ? text[best_end + 1 + i] : ret[best_end + 1 + i - n];
    return most;
}

/* Random tokens that now and then repeat what stood before. */
static void make_text(int32_t *text, uint32_t n, uint32_t vocab, uint64_t *seed)
{
    for (uint32_t i = 0; i < n; ) {
        uint32_t len = 1 + rand_below(seed, 40), from = i ? rand_below(seed, i) : 0;
        bool again = i && rand_below(seed, 2);

        for (; len && i < n; len--, i++)
            text[i] = again ? text[from++] : (int32_t)rand_below(seed, vocab);
    }
}

static void compare(uint32_t n, uint32_t vocab, uint32_t n_ctx, uint32_t window, uint64_t seed)
{
    CLEANUP(mem_free) int32_t *text = calloc(n, sizeof text[0]);
    CLEANUP(ngram_close) struct ngram *g = NULL;
    int32_t want[16], got[16];
    size_t n_proposed = 0;

    cr_assert(zero(int, ngram_open(n_ctx, &g, NULL)));
    make_text(text, n, vocab, &seed);
    for (uint32_t at = 1; at <= n; at += 1 + rand_below(&seed, 3)) {
        const uint32_t most = 1 + rand_below(&seed, 16), n_want = twin(text, at, window, most, want);
        const uint32_t n_got = ngram_propose(g, text, at, most, got);

        cr_assert(eq(u32, n_got, n_want), "after %u tokens", at);
        cr_assert(zero(int, memcmp(got, want, n_got * sizeof got[0])), "after %u tokens", at);
        n_proposed += n_got;
    }
    cr_expect(gt(sz, n_proposed, n / 10));
}

Test(ngram, proposals_are_those_of_a_twin_that_reads_the_whole_text)
{
    for (uint64_t seed = 0; seed < 8; seed++) {
        compare(1500, 2, 1500, 2048, seed);
        compare(1500, 30, 1500, 2048, seed);
        compare(1500, 50000, 1500, 2048, seed);
    }
}

Test(ngram, of_a_text_beyond_the_window_its_end_counts)
{
    for (uint64_t seed = 0; seed < 8; seed++) {
        compare(1500, 3, 128, 128, seed);
        compare(1500, 30, 64, 64, seed);
        compare(1500, 5000, 200, 256, seed);
    }
}

Test(ngram, a_long_text_read_at_once_is_the_same_as_one_that_grew)
{
    CLEANUP(ngram_close) struct ngram *grown = NULL, *at_once = NULL;
    static int32_t text[700];
    int32_t a[16], b[16];
    uint64_t seed = 5;

    cr_assert(zero(int, ngram_open(100, &grown, NULL)));
    cr_assert(zero(int, ngram_open(100, &at_once, NULL)));
    make_text(text, 700, 20, &seed);
    for (uint32_t n = 1; n <= 700; n++) {
        uint32_t n_a = ngram_propose(grown, text, n, 16, a), n_b;

        ngram_reset(at_once);
        n_b = ngram_propose(at_once, text, n, 16, b);
        cr_assert(eq(u32, n_a, n_b));
        cr_assert(zero(int, memcmp(a, b, n_a * sizeof a[0])));
    }
}

Test(ngram, a_circle_is_gone_round_as_often_as_asked)
{
    static const int32_t text[] = { 9, 1, 2, 3, 1, 2, 3, 1, 2, 3 };
    CLEANUP(ngram_close) struct ngram *g = NULL;
    int32_t got[10];

    cr_assert(zero(int, ngram_open(100, &g, NULL)));
    cr_assert(eq(u32, ngram_propose(g, text, 10, 10, got), 10));
    for (int i = 0; i < 10; i++)
        cr_expect(eq(i32, got[i], 1 + i % 3));
}

Test(ngram, a_short_match_proposes_little)
{
    static const int32_t text[] = { 7, 1, 2, 30, 31, 32, 33, 34, 8, 1, 2 };
    CLEANUP(ngram_close) struct ngram *g = NULL;
    int32_t got[10];

    cr_assert(zero(int, ngram_open(100, &g, NULL)));
    cr_assert(eq(u32, ngram_propose(g, text, 11, 10, got), 2));
    cr_expect(eq(i32, got[0], 30));
    cr_expect(eq(i32, got[1], 31));
}

Test(ngram, nothing_is_proposed_where_nothing_stood_before)
{
    static const int32_t text[] = { 1, 2, 3, 4, 5, 6 };
    CLEANUP(ngram_close) struct ngram *g = NULL;
    int32_t got[10];

    cr_assert(zero(int, ngram_open(100, &g, NULL)));
    for (uint32_t n = 1; n <= 6; n++)
        cr_expect(zero(u32, ngram_propose(g, text, n, 10, got)));
}
