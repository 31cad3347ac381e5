#include "gen/dry.h"

#include "base/buf.h"
#include "base/err.h"
#include "loaders/gguf.h"
#include "loaders/tokenizer.h"
#include "tests/loaders/gguf_build.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <string.h>

enum { MOST = 32 };

static uint32_t z[MOST];
static struct dry_match found[MOST];

/* How long the repetition is that `token` would go on with; -1: none. */
static int longest(const int32_t *text, size_t n, const struct dry_breakers *b, int32_t token)
{
    size_t n_found = dry_find(text, n, b, 1, z, found);
    int best = -1;

    for (size_t i = 0; i < n_found; i++)
        if (found[i].token == token && (int)found[i].length > best)
            best = (int)found[i].length;
    return best;
}

/* The bytes, then 256 "th", 257 "the", 258 "an", 259 ":\n". */
static struct tokenizer *vocabulary(void)
{
    static const char *const merges[] = { "t h", "th e", "a n", ": \xC4\x8A" };
    static _Alignas(64) unsigned char copy[1 << 16];
    CLEANUP(gguf_close) struct gguf *g = NULL;
    struct gguf_build b = GGUF_BUILD_INIT;
    struct tokenizer *t = NULL;
    BUF_LOCAL file = BUF_INIT;
    struct err err = { 0 };

    gguf_build_tokenizer(&b, NULL, merges, 4, NULL, NULL, 0);
    gguf_build_finish(&b, &file);
    cr_assert(file.len <= sizeof copy && !file.failed);
    memcpy(copy, file.data, file.len);
    cr_assert(zero(int, gguf_open_memory("vocabulary", copy, file.len, &g, &err)), "%s", err_text(&err));
    cr_assert(zero(int, tokenizer_open(g, &t, &err)), "%s", err_text(&err));
    return t;
}

static int32_t id_of(const struct tokenizer *t, const char *text)
{
    int32_t id = tokenizer_find(t, text, strlen(text));

    cr_assert(ge(i32, id, 0), "%s", text);
    return id;
}

/* The example of llama.cpp's source: a b c c b c y a b c. */
Test(dry, what_would_go_on_with_a_repetition_is_found_with_its_length)
{
    const int32_t text[] = { 'a', 'b', 'c', 'c', 'b', 'c', 'y', 'a', 'b', 'c' };

    cr_expect(eq(int, longest(text, 10, NULL, 'c'), 3));
    cr_expect(eq(int, longest(text, 10, NULL, 'b'), 1));
    cr_expect(eq(int, longest(text, 10, NULL, 'y'), 2));
    cr_expect(eq(int, longest(text, 10, NULL, 'a'), -1));
    cr_expect(zero(sz, dry_find(text, 10, NULL, 10, z, found)));
    cr_expect(zero(sz, dry_find(text, 1, NULL, 0, z, found)));
    cr_expect(zero(sz, dry_find(text, 0, NULL, 0, z, found)));
}

Test(dry, a_repetition_that_overlaps_itself_counts_whole)
{
    const int32_t text[] = { 7, 7, 7, 7, 7 };

    cr_expect(eq(int, longest(text, 5, NULL, 7), 4));
}

Test(dry, no_sequence_reaches_over_a_breaker)
{
    static const int32_t one[] = { 'b', -1, -1 }, two[] = { 'a', 'b', -1, -1 }, none[] = { -1 };
    const int32_t text[] = { 'x', 'a', 'b', 'c', 'd', 'x', 'a', 'b', 'c' };
    CLEANUP(dry_breakers_close) struct dry_breakers *b = NULL;

    cr_expect(eq(int, longest(text, 9, NULL, 'd'), 4));
    cr_assert(zero(int, dry_breakers_of_tokens(one, &b, NULL)));
    cr_expect(eq(int, longest(text, 9, b, 'd'), 1));
    cr_expect(dry_breakers_hold(b, 'b') && !dry_breakers_hold(b, 'a') && !dry_breakers_hold(NULL, 'b'));
    dry_breakers_close(b);
    cr_assert(zero(int, dry_breakers_of_tokens(two, &b, NULL)));
    cr_expect(eq(int, longest(text, 9, b, 'd'), 1));
    cr_expect(zero(int, dry_breakers_hold(b, 'a') + dry_breakers_hold(b, 'b')));
    dry_breakers_close(b);
    cr_assert(zero(int, dry_breakers_of_tokens(none, &b, NULL)));
    cr_expect(eq(int, longest(text, 9, b, 'd'), 4));
}

Test(dry, a_text_breaks_however_its_tokens_cut_it)
{
    static const char *const texts[] = { "he", "\n" };
    CLEANUP(tokenizer_close) struct tokenizer *t = vocabulary();
    CLEANUP(dry_breakers_close) struct dry_breakers *b = NULL;
    int32_t th = id_of(t, "th"), e = id_of(t, "e"), h = id_of(t, "h"), n = id_of(t, "n");
    const int32_t cut[] = { 'x', th, e, n, 'y', 'x', th, e, n }, other[] = { 'x', th, n, 'y', 'x', th, n };

    cr_assert(zero(int, dry_breakers_open(t, texts, 2, &b, NULL)));
    cr_expect(dry_breakers_hold(b, id_of(t, "the")));
    cr_expect(dry_breakers_hold(b, id_of(t, "\n")));
    cr_expect(dry_breakers_hold(b, id_of(t, ":\n")));
    cr_expect(zero(int, dry_breakers_hold(b, th) + dry_breakers_hold(b, e) + dry_breakers_hold(b, h)));
    cr_expect(eq(int, longest(cut, 9, NULL, 'y'), 4));
    cr_expect(eq(int, longest(cut, 9, b, 'y'), 1));
    cr_expect(eq(int, longest(other, 7, b, 'y'), 3));
    cr_expect(dry_breakers_are(b, texts, 2) && !dry_breakers_are(b, texts, 1) &&
              !dry_breakers_are(b, dry_default_breakers, 2));
}

Test(dry, breakers_that_are_none_are_refused)
{
    static const char *const empty[] = { "a", "" }, *const many[DRY_MAX_BREAKERS + 1] = { 0 };
    char text[DRY_MAX_BREAKER_BYTES + 2];
    const char *const most[] = { text + 1 }, *const over[] = { text };
    CLEANUP(tokenizer_close) struct tokenizer *t = vocabulary();
    CLEANUP(dry_breakers_close) struct dry_breakers *b = NULL;
    struct err err = { 0 };

    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = 0;
    cr_expect(eq(int, dry_breakers_open(t, empty, 2, &b, &err), -EINVAL));
    cr_expect(eq(str, (char *)err_text(&err), "sequence breaker 1 must have 1 to 40 bytes, but has 0"));
    cr_expect(eq(int, dry_breakers_open(t, over, 1, &b, NULL), -EINVAL));
    cr_expect(eq(int, dry_breakers_open(t, many, DRY_MAX_BREAKERS + 1, &b, NULL), -EINVAL));
    cr_expect(zero(int, dry_breakers_open(t, most, 1, &b, NULL)));
}
