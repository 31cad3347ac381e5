#include "gen/textout.h"

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/utf8.h"
#include "tests/gen/golden.h"
#include "tests/gen/rand.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <string.h>

static struct textout *open_stops(const char *const *stops, size_t n)
{
    struct textout *t = NULL;
    struct err err = { 0 };

    cr_assert(zero(int, textout_open(stops, n, &t, &err)), "%s", err_text(&err));
    return t;
}

/* Feeds `tokens` (NULL-ended) and returns the text; *ret_stop the stop. */
static char *play(const char *const *stops, size_t n_stops, const char *const *tokens, int *ret_stop)
{
    CLEANUP(textout_close) struct textout *t = open_stops(stops, n_stops);
    struct buf out = BUF_INIT;

    for (; *tokens; tokens++)
        textout_add(t, *tokens, strlen(*tokens), &out);
    textout_end(t, &out);
    *ret_stop = textout_stop(t);
    return buf_take(&out);
}

#define TOKENS(...) (const char *const[]){ __VA_ARGS__, NULL }
#define STOPS(...)                                                                                 \
    (const char *const[]){ __VA_ARGS__ }, sizeof((const char *const[]){ __VA_ARGS__ }) / sizeof(char *)

Test(textout, a_character_split_over_tokens_comes_out_whole)
{
    CLEANUP(textout_close) struct textout *t = open_stops(NULL, 0);
    BUF_LOCAL out = BUF_INIT;

    textout_add(t, "\xF0\x9F", 2, &out);
    cr_expect(eq(sz, out.len, 0));
    textout_add(t, "\xA6\x94", 2, &out);
    cr_expect(eq(str, (char *)buf_str(&out), "\U0001F994"));
}

Test(textout, the_stop_that_was_found_can_be_asked_for)
{
    CLEANUP(textout_close) struct textout *t = open_stops(STOPS("x", "yz"));
    BUF_LOCAL out = BUF_INIT;

    cr_expect(eq(int, textout_add(t, "ay", 2, &out), 0));
    cr_expect(eq(ptr, (void *)textout_stop_text(t), NULL));
    cr_expect(eq(int, textout_add(t, "zx", 2, &out), TEXTOUT_STOPPED));
    cr_expect(eq(str, (char *)textout_stop_text(t), "yz"));
}

Test(textout, a_stop_split_over_tokens_is_cut_and_the_rest_is_dropped)
{
    int stop;
    CLEANUP(mem_free) char *a = play(STOPS("\nQ:"), TOKENS("42", "\n", "Q", ": next", "more"), &stop);
    CLEANUP(mem_free) char *b = play(STOPS("amber"), TOKENS("rust, amber, jade, teal"), &stop);

    cr_expect(eq(str, a, "42"));
    cr_expect(eq(str, b, "rust, "));
    cr_expect(eq(int, stop, 0));
}

Test(textout, only_a_tail_that_can_become_a_stop_is_held)
{
    CLEANUP(textout_close) struct textout *t = open_stops(STOPS("<<<end of the report>>>", "\n\n"));
    BUF_LOCAL out = BUF_INIT;

    textout_add(t, "plain", 5, &out);
    cr_expect(eq(str, (char *)buf_str(&out), "plain"));
    textout_add(t, " <<", 3, &out);
    cr_expect(eq(str, (char *)buf_str(&out), "plain "));
    textout_add(t, "<<x\n", 4, &out);
    cr_expect(eq(str, (char *)buf_str(&out), "plain <<<<x"));
    cr_expect(eq(int, textout_end(t, &out), 0));
    cr_expect(eq(str, (char *)buf_str(&out), "plain <<<<x\n"));
    cr_expect(eq(int, textout_stop(t), -1));
}

Test(textout, the_stop_that_begins_first_wins_and_of_equals_the_shorter)
{
    int s1, s2, s3, s4;
    CLEANUP(mem_free) char *a = play(STOPS("bc", "abcd"), TOKENS("xabc", "d"), &s1);
    CLEANUP(mem_free) char *b = play(STOPS("bc", "abcd"), TOKENS("xabc", "e"), &s2);
    CLEANUP(mem_free) char *c = play(STOPS("bc", "abcd"), TOKENS("xabc"), &s3);
    CLEANUP(mem_free) char *d = play(STOPS("\n\n", "\n"), TOKENS("x\n", "\n"), &s4);

    cr_expect(eq(str, a, "x"));
    cr_expect(eq(int, s1, 1));
    cr_expect(eq(str, b, "xa"));
    cr_expect(eq(int, s2, 0));
    cr_expect(eq(str, c, "xa"));
    cr_expect(eq(int, s3, 0));
    cr_expect(eq(str, d, "x"));
    cr_expect(eq(int, s4, 1));
}

Test(textout, invalid_bytes_become_replacement_characters)
{
    int stop;
    CLEANUP(mem_free) char *a = play(NULL, 0, TOKENS("\xC3", "\x28", "\xFF"), &stop);
    CLEANUP(mem_free) char *b = play(NULL, 0, TOKENS("a\xF0\x9F", "\xA6"), &stop);
    CLEANUP(mem_free) char *c = play(STOPS("\xEF\xBF\xBD"), TOKENS("a\xF0\x9F", "b"), &stop);

    cr_expect(eq(str, a, "\xEF\xBF\xBD(\xEF\xBF\xBD"));
    cr_expect(eq(str, b, "a\xEF\xBF\xBD"));
    cr_expect(eq(str, c, "a"));
    cr_expect(eq(int, stop, 0));
}

Test(textout, a_zero_byte_is_text_like_any_other)
{
    CLEANUP(textout_close) struct textout *t = open_stops(STOPS("ab"));
    BUF_LOCAL out = BUF_INIT;

    textout_add(t, "a\0b", 3, &out);
    cr_assert(eq(sz, out.len, 3));
    cr_expect(zero(int, memcmp(out.data, "a\0b", 3)));
}

Test(textout, stops_that_can_not_be_are_refused_with_a_sentence)
{
    static const char *const many[TEXTOUT_MAX_STOPS + 1] = { 0 };
    char long_stop[TEXTOUT_MAX_STOP_BYTES + 2];
    struct textout *t = NULL;
    struct err err = { 0 };

    memset(long_stop, 'a', sizeof long_stop - 1);
    long_stop[sizeof long_stop - 1] = '\0';
    cr_expect(eq(int, textout_open(STOPS("x", ""), &t, &err), -EINVAL));
    cr_expect(eq(str, (char *)err_text(&err), "stop string 2 is empty"));
    cr_expect(eq(int, textout_open(STOPS("\xFFx"), &t, NULL), -EINVAL));
    cr_expect(eq(int, textout_open(STOPS((const char *)long_stop), &t, NULL), -EINVAL));
    cr_expect(eq(int, textout_open(many, TEXTOUT_MAX_STOPS + 1, &t, NULL), -EINVAL));
    cr_expect(eq(ptr, t, NULL));
}

Test(textout, a_token_is_out_when_given_reaches_what_was_seen)
{
    CLEANUP(textout_close) struct textout *t = open_stops(STOPS("##"));
    BUF_LOCAL out = BUF_INIT;
    uint64_t half, hash;

    textout_add(t, "a\xC3", 2, &out);
    half = textout_seen(t);
    cr_expect(lt(u64, textout_given(t), half));
    textout_add(t, "\xA9#", 2, &out);
    hash = textout_seen(t);
    cr_expect(ge(u64, textout_given(t), half));
    cr_expect(lt(u64, textout_given(t), hash));
    textout_add(t, "b", 1, &out);
    cr_expect(ge(u64, textout_given(t), hash));
}

/* The plain way: replace what is not UTF-8, find every stop, cut. */
static void one_shot(const char *bytes, size_t len, const char *const *stops, size_t n_stops,
                     struct buf *text, int *ret_stop)
{
    const char *best = NULL;
    size_t i = 0;

    *ret_stop = -1;
    while (i < len) {
        uint32_t c;
        int n = utf8_decode(bytes + i, len - i, &c);

        if (n > 0) {
            buf_add(text, bytes + i, (size_t)n);
            i += (size_t)n;
            continue;
        }
        buf_adds(text, "\xEF\xBF\xBD");
        n = 1;
        while (i + (size_t)n < len && utf8_decode(bytes + i, (size_t)n, &c) == -2 &&
               utf8_decode(bytes + i, (size_t)n + 1, &c) == -2)
            n++;
        i += (size_t)n;
    }
    for (size_t k = 0; k < n_stops; k++) {
        const char *at = memmem(buf_str(text), text->len, stops[k], strlen(stops[k]));

        if (at && (!best || at < best ||
                   (at == best && strlen(stops[k]) < strlen(stops[*ret_stop])))) {
            best = at;
            *ret_stop = (int)k;
        }
    }
    if (best) {
        text->len = (size_t)(best - text->data);
        text->data[text->len] = '\0';
    }
}

/* Pieces of few kinds, so that stops, near misses and broken characters are
 * frequent. */
static const char *const pieces[] = { "a", "b", "ab", "\n", "\xC3\xA9", "\xE2\x82\xAC", "\U0001F994",
                                      "\xF0\x9F", "\x80", "\xFF", "\xC3", "#" };

Test(textout, any_split_gives_the_one_shot_result, .timeout = 120)
{
    uint64_t rng = 42;

    for (int round = 0; round < 20000; round++) {
        char stop_text[4][32], bytes[512];
        const char *stops[4];
        size_t n_stops = rand_below(&rng, 5), len = 0;
        CLEANUP(textout_close) struct textout *t = NULL;
        BUF_LOCAL want = BUF_INIT;
        BUF_LOCAL got = BUF_INIT;
        int want_stop, r = 0;

        for (size_t k = 0; k < n_stops; k++) {
            stop_text[k][0] = '\0';
            for (size_t i = 0, n = 1 + rand_below(&rng, 5); i < n; i++)
                strcat(stop_text[k], pieces[rand_below(&rng, 6)]);
            stops[k] = stop_text[k];
        }
        for (size_t i = 0, n = rand_below(&rng, 40); i < n; i++) {
            const char *p = pieces[rand_below(&rng, rand_below(&rng, 2) ? 12 : 5)];

            memcpy(bytes + len, p, strlen(p));
            len += strlen(p);
        }
        one_shot(bytes, len, stops, n_stops, &want, &want_stop);
        t = open_stops(stops, n_stops);
        for (size_t at = 0; at < len && !r;) {
            size_t n = 1 + rand_below(&rng, 6), before = got.len, most;

            n = n > len - at ? len - at : n;
            most = textout_most(t, n);
            r = textout_add(t, bytes + at, n, &got);
            at += n;
            cr_assert(le(sz, got.len - before, most));
            cr_assert(utf8_is_valid(buf_str(&got), got.len));
            cr_assert(le(sz, got.len, want.len));
        }
        r = textout_end(t, &got);
        cr_assert(eq(int, r, want_stop >= 0));
        cr_assert(eq(int, textout_stop(t), want_stop), "round %d", round);
        cr_assert(eq(sz, got.len, want.len), "round %d", round);
        cr_assert(zero(int, memcmp(buf_str(&got), buf_str(&want), got.len)));
    }
}

/* Contract 3.3: the frame is withheld where the output is partial. The cases
 * whose output already holds the stop are decided differently on purpose: such
 * a text has ended. */
Test(textout, holds_back_where_the_contract_withholds)
{
    FILE *f = golden_open("unit_is_partial_stop.jsonl");
    char line[65536];
    size_t n = 0;

    if (!f)
        cr_skip_test("the golden data is not there");
    while (fgets(line, sizeof line, f)) {
        CLEANUP(json_delete) cJSON *rec = NULL;
        CLEANUP(textout_close) struct textout *t = NULL;
        BUF_LOCAL out = BUF_INIT;
        const char *text = NULL, *stop = NULL;
        const cJSON *result;

        cr_assert(zero(int, json_parse(line, strlen(line), NULL, &rec, NULL)));
        result = json_find(rec, "result");
        json_get_string(rec, "output", &text, NULL);
        if (!cJSON_IsString(json_find(rec, "stop")))
            continue;
        json_get_string(rec, "stop", &stop, NULL);
        if (!*stop || strstr(text, stop))
            continue;
        t = open_stops(&stop, 1);
        textout_add(t, text, strlen(text), &out);
        cr_expect(eq(int, out.len < strlen(text), cJSON_IsTrue(result)), "%s", line);
        n++;
    }
    fclose(f);
    cr_expect(gt(sz, n, 20));
}
