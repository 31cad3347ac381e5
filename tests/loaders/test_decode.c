/* Each step of a decoder, and that a stream gives what the whole gives. */
#include "base/buf.h"
#include "base/utf8.h"
#include "loaders/detok.h"
#include "loaders/tok/decode.h"
#include "loaders/tok/regex.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define FFFD "\xEF\xBF\xBD"
#define MARK "\xE2\x96\x81"
#define STR(s) ((struct tok_str){ s, sizeof s - 1 })
#define SAME(have, want) cr_expect(eq(str, (char *)(have), (char *)(want)))

struct word { const char *text; enum token_kind kind; };

static struct tokenizer tokenizer_of(const struct word *words, size_t n, const struct decode_step *steps, size_t n_steps)
{
    struct tokenizer t = { .bos = -1, .eos = -1 };

    cr_assert(zero(int, vocab_new(0, 0, &t.vocab)));
    for (size_t i = 0; i < n; i++)
        cr_assert(zero(int, vocab_put(t.vocab, (int32_t)i, words[i].text, strlen(words[i].text), words[i].kind ? words[i].kind : TOK_NORMAL)));
    if (n_steps) {
        cr_assert(zero(int, decoder_new(steps, n_steps, &t.decoder)));
        cr_assert(zero(int, decoder_bind(t.decoder, t.vocab)));
    }
    return t;
}

static void release(struct tokenizer *t)
{
    decoder_free(t->decoder);
    vocab_free(t->vocab);
}

static char whole_text[512], stream_text[512];

static const char *whole(const struct tokenizer *t, const int32_t *ids, size_t n)
{
    BUF_LOCAL out = BUF_INIT;

    cr_assert(zero(int, tokenizer_decode(t, ids, n, true, &out)));
    snprintf(whole_text, sizeof whole_text, "%s", buf_str(&out));
    return whole_text;
}

static const char *stream(const struct tokenizer *t, const int32_t *ids, size_t n)
{
    BUF_LOCAL out = BUF_INIT;
    struct detok d;

    detok_init(&d, t);
    for (size_t i = 0; i < n; i++) {
        detok_add(&d, ids[i], &out);
        cr_expect(utf8_is_valid(buf_str(&out), out.len));
    }
    detok_flush(&d, &out);
    snprintf(stream_text, sizeof stream_text, "%s", buf_str(&out));
    return stream_text;
}

#define IDS(...) (int32_t[]){ __VA_ARGS__ }, sizeof((int32_t[]){ __VA_ARGS__ }) / sizeof(int32_t)
#define BOTH(t, want, ...) do { SAME(whole(t, IDS(__VA_ARGS__)), want); SAME(stream(t, IDS(__VA_ARGS__)), want); } while (0)

Test(decode, byte_level_joins_bytes_and_maps_what_is_spelled)
{
    static const struct word words[] = { { "a\xC3", 0 }, { "\xA9", 0 }, { "<\xC4\xA0>", TOK_USER_DEFINED }, { "<|x|>", TOK_CONTROL }, { "\xE4\xBD", 0 },
                                         { "< >", TOK_USER_DEFINED } };
    struct decode_step step = { .op = DECODE_BYTE_LEVEL, .flag = true };
    struct tokenizer t = tokenizer_of(words, 6, &step, 1);

    BOTH(&t, "a\xC3\xA9< >", 0, 1, 2);
    BOTH(&t, "a\xC3\xA9", 0, 3, 1);
    BOTH(&t, "a" FFFD FFFD "a" FFFD, 0, 4, 0);
    BOTH(&t, "< >", 5, 99, -1);
    release(&t);
}

Test(decode, llama_strips_one_space_and_bytes_make_characters)
{
    static const struct word words[] = { { MARK "Hello", 0 }, { MARK MARK, 0 }, { "x", 0 }, { "<0xC3>", 0 }, { "<0xA9>", 0 }, { "<0x20>", 0 }, { "<s>", TOK_CONTROL } };
    struct pattern *mark;
    struct tokenizer t;

    cr_assert(zero(int, pattern_string(MARK, 3, &mark)));
    {
        struct decode_step steps[] = {
            { .op = DECODE_REPLACE, .pattern = mark, .with = STR(" ") }, { .op = DECODE_BYTE_FALLBACK }, { .op = DECODE_FUSE },
            { .op = DECODE_STRIP, .text = STR(" "), .start = 1 },
        };
        t = tokenizer_of(words, 7, steps, 4);
    }
    BOTH(&t, "Hello Hello", 0, 0);
    BOTH(&t, "Hello", 6, 0);
    BOTH(&t, " x", 1, 2);
    BOTH(&t, "x\xC3\xA9x", 2, 3, 4, 2);
    BOTH(&t, "\xC3\xA9 ", 3, 6, 4, 5);
    BOTH(&t, "x", 5, 2);
    BOTH(&t, FFFD "x" FFFD, 3, 2, 4);
    /* A run with a bad byte: the whole makes all of it bad, a stream has shown the good ones. */
    SAME(whole(&t, IDS(3, 4, 3)), FFFD FFFD FFFD);
    SAME(stream(&t, IDS(3, 4, 3)), "\xC3\xA9" FFFD);
    release(&t);
}

Test(decode, wordpiece_puts_spaces_and_cleans_up)
{
    static const struct word words[] = { { "i", 0 }, { "'", 0 }, { "m", 0 }, { "##ing", 0 }, { ".", 0 }, { "do", 0 }, { "[CLS]", TOK_CONTROL }, { "n't", 0 } };
    struct decode_step clean = { .op = DECODE_WORDPIECE, .text = STR("##"), .flag = true };
    struct tokenizer t = tokenizer_of(words, 8, &clean, 1);

    BOTH(&t, "i ' m doing.", 6, 0, 1, 2, 5, 3, 4);
    BOTH(&t, "don't", 5, 7);
    BOTH(&t, "##ing.", 3, 4);
    release(&t);
    clean.flag = false;
    t = tokenizer_of(words, 8, &clean, 1);
    BOTH(&t, "doing .", 5, 3, 4);
    release(&t);
}

Test(decode, metaspace_drops_marks_of_the_first_token_only)
{
    static const struct word words[] = { { MARK "a" MARK, 0 }, { MARK "b", 0 }, { "<s>", TOK_CONTROL } };
    struct decode_step step = { .op = DECODE_METASPACE, .text = STR(MARK), .flag = true };
    struct tokenizer t = tokenizer_of(words, 3, &step, 1);

    BOTH(&t, "a b", 0, 1);
    BOTH(&t, "b a  b", 2, 1, 0, 1);
    release(&t);
    step.flag = false;
    t = tokenizer_of(words, 3, &step, 1);
    BOTH(&t, " a  b", 0, 1);
    release(&t);
}

Test(decode, a_suffix_is_a_space_but_at_the_end)
{
    static const struct word words[] = { { "ab", 0 }, { "c</w>", 0 }, { "<e>", TOK_CONTROL } };
    struct decode_step step = { .op = DECODE_BPE, .text = STR("</w>") };
    struct tokenizer t = tokenizer_of(words, 3, &step, 1);

    BOTH(&t, "abc abc", 0, 1, 0, 1);
    BOTH(&t, "c c", 1, 2, 1);
    release(&t);
}

Test(decode, ctc_merges_equal_neighbours)
{
    static const struct word words[] = { { "<pad>", 0 }, { "h", 0 }, { "l", 0 }, { "|", 0 } };
    struct decode_step step = { .op = DECODE_CTC, .text = STR("<pad>"), .with = STR("|"), .flag = true };
    struct tokenizer t = tokenizer_of(words, 4, &step, 1);

    BOTH(&t, "hll h", 1, 1, 2, 2, 0, 2, 3, 3, 1);
    release(&t);
}

Test(decode, without_a_decoder_tokens_of_a_tokenizer_json_have_spaces_between)
{
    static const struct word words[] = { { "ab", 0 }, { "c", 0 }, { "<s>", TOK_CONTROL } };
    struct decode_step step = { .op = DECODE_JOIN };
    struct tokenizer t = tokenizer_of(words, 3, &step, 1);

    BOTH(&t, "ab c", 2, 0, 2, 1);
    release(&t);
}

Test(decode, strip_cuts_each_token_where_nothing_joined_them)
{
    static const struct word words[] = { { "__a__", 0 }, { "_", 0 } };
    struct decode_step step = { .op = DECODE_STRIP, .text = STR("_"), .start = 1, .stop = 2 };
    struct tokenizer t = tokenizer_of(words, 2, &step, 1);

    BOTH(&t, "_a_a", 0, 0);
    BOTH(&t, "", 1);
    release(&t);
}

/* What SentencePiece's own decoder does with the space in front, unknown tokens and bytes. */
Test(decode, sentencepiece_takes_the_first_space_and_keeps_good_characters_of_a_run)
{
    static const struct word words[] = { { " a", 0 }, { " ", 0 }, { "b", 0 }, { "<s>", TOK_CONTROL }, { "<unk>", TOK_UNKNOWN }, { "<0xC3>", TOK_BYTE },
                                         { "<0xA9>", TOK_BYTE }, { "<0x20>", TOK_BYTE }, { "<0xE4>", TOK_BYTE }, { "<0xBD>", TOK_BYTE } };
    struct decode_step step = { .op = DECODE_SENTENCEPIECE, .text = STR(" ? "), .start = 1 };
    struct tokenizer t = tokenizer_of(words, 10, &step, 1);

    BOTH(&t, "a a", 0, 0);
    BOTH(&t, "a", 3, 3, 0);
    BOTH(&t, " a", 1, 0);
    BOTH(&t, "b a", 2, 0);
    BOTH(&t, " ?   a", 4, 1, 0);
    BOTH(&t, "\xC3\xA9" FFFD "b", 5, 6, 5, 2);
    BOTH(&t, FFFD FFFD "b" FFFD FFFD, 8, 9, 2, 8, 9);
    BOTH(&t, "\xC3\xA9", 5, 3, 6);
    BOTH(&t, "  a", 7, 3, 0);
    release(&t);
    step.flag = true;
    t = tokenizer_of(words, 10, &step, 1);
    BOTH(&t, "a", 1, 1, 0);
    BOTH(&t, "a a", 1, 0, 0);
    release(&t);
}

Test(decode, a_stream_that_goes_on_behind_text_keeps_its_first_space)
{
    static const struct word words[] = { { " a", 0 }, { "<s>", TOK_CONTROL } };
    struct decode_step step = { .op = DECODE_SENTENCEPIECE, .start = 1 };
    struct tokenizer t = tokenizer_of(words, 2, &step, 1);
    BUF_LOCAL out = BUF_INIT;
    struct detok d;

    detok_init_behind(&d, &t);
    detok_add(&d, 1, &out);
    detok_add(&d, 0, &out);
    d.keep_special = true;
    detok_add(&d, 1, &out);
    detok_flush(&d, &out);
    SAME(buf_str(&out), " a<s>");
    release(&t);
}

Test(decode, offsets_are_where_each_token_begins_in_characters)
{
    static const struct word words[] = { { " a\xC3\xA9", 0 }, { "<0xE4>", TOK_BYTE }, { "<0xBD>", TOK_BYTE }, { "<0xA0>", TOK_BYTE }, { " b", 0 }, { "<s>", TOK_CONTROL } };
    struct decode_step step = { .op = DECODE_SENTENCEPIECE, .start = 1 };
    struct tokenizer t = tokenizer_of(words, 6, &step, 1);
    static const int32_t ids[] = { 5, 0, 1, 2, 3, 4, 1, 2, 0 };
    static const size_t want[] = { 0, 0, 2, 2, 2, 3, 5, 5, 7 };
    size_t have[9];
    BUF_LOCAL out = BUF_INIT;

    cr_assert(zero(int, detok_offsets(&t, ids, 9, false, have, &out)));
    SAME(buf_str(&out), "a\xC3\xA9\xE4\xBD\xA0 b" FFFD FFFD " a\xC3\xA9");
    for (size_t i = 0; i < 9; i++)
        cr_expect(eq(sz, have[i], want[i]), "token %zu", i);
    release(&t);
}

Test(decode, too_many_steps_or_none_are_refused_and_their_patterns_released)
{
    struct decode_step steps[DECODE_MAX_STEPS + 1] = { { .op = DECODE_FUSE } };
    struct decoder *d = NULL;

    cr_assert(zero(int, pattern_string("a", 1, &steps[DECODE_MAX_STEPS].pattern)));
    cr_expect(eq(int, decoder_new(steps, DECODE_MAX_STEPS + 1, &d), -E2BIG));
    cr_expect(eq(int, decoder_new(steps, 0, &d), -E2BIG));
    cr_expect(eq(ptr, d, NULL));
}
