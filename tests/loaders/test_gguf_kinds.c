/* Tokenizers of GGUF files that are no byte-level BPE. */
#include "base/buf.h"
#include "base/err.h"
#include "gguf_build.h"
#include "ids_of.h"
#include "loaders/detok.h"
#include "loaders/tokenizer.h"
#include "real_files.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define MARK "\xE2\x96\x81"
#define SAME(have, want) cr_expect(eq(str, (char *)(have), (char *)(want)))

static int open_built(struct gguf_build *b, struct tokenizer **ret, struct err *err)
{
    BUF_LOCAL file = BUF_INIT;
    CLEANUP(gguf_close) struct gguf *g = NULL;

    gguf_build_finish(b, &file);
    cr_assert(eq(int, gguf_open_memory("m.gguf", file.data, file.len, &g, err), 0), "%s", err_text(err));
    return tokenizer_open(g, ret, err);
}

static struct tokenizer *opened(struct gguf_build b)
{
    struct tokenizer *t = NULL;
    struct err err = { 0 };

    cr_assert(zero(int, open_built(&b, &t, &err)), "%s", err_text(&err));
    return t;
}

static const char *text_of(const struct tokenizer *t, const int32_t *ids, size_t n)
{
    static char out[512];
    BUF_LOCAL b = BUF_INIT;

    cr_assert(zero(int, tokenizer_decode(t, ids, n, true, &b)));
    snprintf(out, sizeof out, "%s", buf_str(&b));
    return out;
}

enum { N_LLAMA = 11 };
static const char *const llama[N_LLAMA] = { "<unk>", "<s>", "</s>", MARK "a", "a", MARK, "b", "<0xC3>", "<0xA9>", "<|user|>", "ab" };
static const int32_t llama_types[N_LLAMA] = { 2, 3, 3, 1, 1, 1, 1, 6, 6, 4, 1 };
static const float llama_scores[N_LLAMA] = { 0, 0, 0, -1, -2, -3, -4, 0, 0, 0, -0.5f };

static struct gguf_build llama_file(const char *model, const float *scores, size_t n_scores)
{
    struct gguf_build b = GGUF_BUILD_INIT;

    gguf_build_str(&b, "general.architecture", "llama");
    gguf_build_str(&b, "tokenizer.ggml.model", model);
    gguf_build_strs(&b, "tokenizer.ggml.tokens", llama, N_LLAMA);
    gguf_build_i32s(&b, "tokenizer.ggml.token_type", llama_types, N_LLAMA);
    if (scores)
        gguf_build_f32s(&b, "tokenizer.ggml.scores", scores, n_scores);
    return b;
}

Test(gguf_kinds, llama_merges_by_score_and_has_its_defaults)
{
    CLEANUP(tokenizer_close) struct tokenizer *t = opened(llama_file("llama", llama_scores, N_LLAMA));

    SAME(ids_of(t, "ab", false), "5 10");
    SAME(ids_of(t, "a b", false), "3 5 6");
    SAME(ids_of(t, "b\xC3\xA9", false), "5 6 7 8");
    SAME(ids_of(t, "z", false), "5 0");
    SAME(ids_of(t, "a<|user|>a", false), "3 9 3");              /* its own space behind a token that is matched whole */
    SAME(ids_of(t, "<s>a", true), "1 3");
    cr_expect(eq(i32, tokenizer_bos(t), 1));
    cr_expect(eq(i32, tokenizer_eos(t), 2));
    cr_expect(tokenizer_adds_bos(t));
    cr_expect(not(tokenizer_adds_eos(t)));
    SAME(text_of(t, (int32_t[]){ 1, 3, 3, 7, 8, 0 }, 6), "a a\xC3\xA9");
    cr_expect(tokenizer_is_end(t, 2));
}

Test(gguf_kinds, llama_without_a_space_in_front_says_so)
{
    struct gguf_build b = llama_file("llama", llama_scores, N_LLAMA);
    CLEANUP(tokenizer_close) struct tokenizer *t = NULL;

    gguf_build_bool(&b, "tokenizer.ggml.add_space_prefix", false);
    gguf_build_bool(&b, "tokenizer.ggml.add_bos_token", false);
    t = opened(b);
    SAME(ids_of(t, "ab", false), "10");
    SAME(ids_of(t, " a", false), "3");
    SAME(text_of(t, (int32_t[]){ 3, 4 }, 2), " aa");
    cr_expect(not(tokenizer_adds_bos(t)));
}

/* An empty token keeps its place and is met by no text, also as the first one. */
Test(gguf_kinds, a_token_without_text_is_never_met)
{
    static const char *const tokens[] = { "", "<s>", "</s>", MARK, "a", "" };
    static const int32_t types[] = { 2, 3, 3, 1, 1, 1 };
    static const char *const models[] = { "llama", "bert", "t5" };

    for (size_t i = 0; i < 3; i++) {
        struct gguf_build b = GGUF_BUILD_INIT;
        CLEANUP(tokenizer_close) struct tokenizer *t = NULL;

        gguf_build_str(&b, "tokenizer.ggml.model", models[i]);
        gguf_build_strs(&b, "tokenizer.ggml.tokens", tokens, 6);
        gguf_build_i32s(&b, "tokenizer.ggml.token_type", types, 6);
        gguf_build_u32(&b, "tokenizer.ggml.unknown_token_id", 0);
        t = opened(b);
        cr_expect(eq(u32, tokenizer_size(t), 6));
        ids_of(t, "a b  c", false);
        SAME(text_of(t, (int32_t[]){ 0, 5, 1 }, 3), "");
    }
}

static void refused(struct gguf_build b, int code, const char *words)
{
    struct tokenizer *t = NULL;
    struct err err = { 0 };

    cr_expect(eq(int, open_built(&b, &t, &err), code));
    SAME(err_text(&err), words);
    cr_expect(eq(ptr, t, NULL));
}

Test(gguf_kinds, scores_that_make_no_sense_are_refused)
{
    float bad[N_LLAMA] = { 0 };
    struct gguf_build b;

    refused(llama_file("llama", llama_scores, 5), -EINVAL, "m.gguf: tokenizer.ggml.scores must hold 11 numbers, one a token");
    bad[3] = NAN;
    refused(llama_file("llama", bad, N_LLAMA), -EINVAL, "m.gguf: the score of token 3 is no finite number");
    b = llama_file("llama", NULL, 0);
    gguf_build_strs(&b, "tokenizer.ggml.scores", llama, N_LLAMA);
    refused(b, -EINVAL, "m.gguf: tokenizer.ggml.scores must hold 11 numbers, one a token");
}

Test(gguf_kinds, kinds_that_are_not_supported_are_refused_by_name)
{
    refused(llama_file("hybriddna", llama_scores, N_LLAMA), -ENOTSUP, "m.gguf: tokenizer.ggml.model \"hybriddna\" is not supported");
    refused(llama_file("plamo2", llama_scores, N_LLAMA), -ENOTSUP, "m.gguf: tokenizer.ggml.model \"plamo2\" is not supported");
}

static struct gguf_build t5_file(void)
{
    static const char *const tokens[] = { "<pad>", "</s>", "<unk>", MARK, "a", MARK "ab", "b" };
    static const int32_t types[] = { 3, 3, 2, 1, 1, 1, 1 };
    static const float scores[] = { 0, 0, 0, -2, -2, -3, -2 };
    struct gguf_build b = GGUF_BUILD_INIT;

    gguf_build_str(&b, "general.architecture", "t5");
    gguf_build_str(&b, "tokenizer.ggml.model", "t5");
    gguf_build_strs(&b, "tokenizer.ggml.tokens", tokens, 7);
    gguf_build_i32s(&b, "tokenizer.ggml.token_type", types, 7);
    gguf_build_f32s(&b, "tokenizer.ggml.scores", scores, 7);
    gguf_build_bool(&b, "tokenizer.ggml.add_space_prefix", true);
    gguf_build_bool(&b, "tokenizer.ggml.remove_extra_whitespaces", true);
    return b;
}

Test(gguf_kinds, t5_takes_the_likeliest_way_and_ends_with_eos)
{
    CLEANUP(tokenizer_close) struct tokenizer *t = opened(t5_file());
    size_t n;

    SAME(ids_of(t, "  ab   ba ", false), "5 3 6 4");
    SAME(ids_of(t, "xy", false), "3 2");
    cr_expect(eq(i32, tokenizer_eos(t), 1));
    cr_expect(eq(i32, tokenizer_bos(t), -1));
    cr_expect(tokenizer_adds_eos(t));
    cr_expect(eq(i32, tokenizer_suffix(t, &n)[0], 1));
    SAME(text_of(t, (int32_t[]){ 0, 5, 3, 6 }, 4), "ab b");
}

Test(gguf_kinds, a_map_of_characters_that_does_not_fit_is_refused)
{
    struct gguf_build b = t5_file();
    struct tokenizer *t = NULL;
    struct err err = { 0 };

    gguf_build_i32s(&b, "tokenizer.ggml.precompiled_charsmap", llama_types, 4);
    refused(b, -EINVAL, "m.gguf: tokenizer.ggml.precompiled_charsmap must hold bytes");
    b = t5_file();
    gguf_build_raw(&b, "tokenizer.ggml.precompiled_charsmap", 35, GGUF_ARRAY, "\0\0\0\0\4\0\0\0\0\0\0\0\xFF\xFF\xFF\xFF", 16);
    cr_expect(eq(int, open_built(&b, &t, &err), -EINVAL));
    cr_expect(strstr(err_text(&err), "precompiled_charsmap") != NULL, "%s", err_text(&err));
}

enum { N_GEMMA = 14 };
static const char *const gemma[N_GEMMA] = { "<pad>", "<eos>", "<bos>", MARK, "a", "b", MARK "a", "ab", "\n", "\n\n", "  ", "<0xC3>", "<0xA9>", MARK "ab" };
static const char *const gemma_merges[] = { "a b", MARK " a", MARK " " MARK, MARK "a b" };

static struct gguf_build gemma_file(const char *const *merges, size_t n)
{
    static const int32_t types[N_GEMMA] = { 3, 3, 3, 1, 1, 1, 1, 1, 1, 1, 4, 6, 6, 1 };
    struct gguf_build b = GGUF_BUILD_INIT;

    gguf_build_str(&b, "tokenizer.ggml.model", "gemma4");
    gguf_build_strs(&b, "tokenizer.ggml.tokens", gemma, N_GEMMA);
    gguf_build_i32s(&b, "tokenizer.ggml.token_type", types, N_GEMMA);
    gguf_build_u32(&b, "tokenizer.ggml.bos_token_id", 2);
    gguf_build_u32(&b, "tokenizer.ggml.eos_token_id", 1);
    if (merges)
        gguf_build_strs(&b, "tokenizer.ggml.merges", merges, n);
    return b;
}

Test(gguf_kinds, gemma4_merges_characters_and_keeps_line_ends_together)
{
    CLEANUP(tokenizer_close) struct tokenizer *t = opened(gemma_file(gemma_merges, 4));

    SAME(ids_of(t, " ab", false), "3 7");
    SAME(ids_of(t, " a a", false), "6 6");
    SAME(ids_of(t, "a\n\nb\n\n\n", false), "4 9 5 8 8 8");
    SAME(ids_of(t, "a  b", false), "4 10 5");
    SAME(ids_of(t, "\xC3\xA9z", false), "11 12");
    SAME(text_of(t, (int32_t[]){ 2, 6, 13, 11, 12, 9, 10, 1 }, 8), " a ab\xC3\xA9\n\n  ");
    cr_expect(tokenizer_adds_bos(t));
    cr_expect(eq(i32, tokenizer_bos(t), 2));
}

Test(gguf_kinds, gemma4_files_that_make_no_sense_are_refused)
{
    static const char *const whole[] = { "ab" };
    struct gguf_build b = gemma_file(NULL, 0);

    refused(b, -EINVAL, "m.gguf: key \"tokenizer.ggml.merges\" is missing");
    refused(gemma_file(whole, 1), -EINVAL, "m.gguf: merge 0 is not two texts with a space between");
    b = gemma_file(NULL, 0);
    gguf_build_f32s(&b, "tokenizer.ggml.merges", llama_scores, 3);
    refused(b, -EINVAL, "m.gguf: tokenizer.ggml.merges must hold strings");
}

Test(gguf_kinds, bert_is_word_piece_again)
{
    static const char *const tokens[] = { "[PAD]", "[UNK]", "[CLS]", "[SEP]", MARK "hello", MARK "wor", "ld", MARK "!" };
    static const int32_t types[] = { 3, 3, 3, 3, 1, 1, 1, 1 };
    struct gguf_build b = GGUF_BUILD_INIT;
    CLEANUP(tokenizer_close) struct tokenizer *t = NULL;
    size_t n;

    gguf_build_str(&b, "tokenizer.ggml.model", "bert");
    gguf_build_strs(&b, "tokenizer.ggml.tokens", tokens, 8);
    gguf_build_i32s(&b, "tokenizer.ggml.token_type", types, 8);
    gguf_build_u32(&b, "tokenizer.ggml.unknown_token_id", 1);
    gguf_build_u32(&b, "tokenizer.ggml.cls_token_id", 2);
    gguf_build_u32(&b, "tokenizer.ggml.seperator_token_id", 3);
    t = opened(b);
    SAME(ids_of(t, "Hello, WORLD!", false), "4 1 5 6 7");
    SAME(ids_of(t, "[SEP]", true), "3");
    cr_expect(eq(i32, tokenizer_prefix(t, &n)[0], 2));
    cr_expect(eq(i32, tokenizer_suffix(t, &n)[0], 3));
    SAME(text_of(t, (int32_t[]){ 2, 4, 5, 6, 7, 3 }, 6), "hello world!");
}

/* llama.cpp has no list of ids for this one: the text must come back. */
Test(gguf_kinds, baichuan_gives_every_text_back)
{
    CLEANUP(gguf_close) struct gguf *g = NULL;
    CLEANUP(tokenizer_close) struct tokenizer *t = NULL;
    static const char *const texts[] = { "Hello, world!", " two  spaces ", "\n\n\t", "\xE4\xBB\x8A\xE5\xA4\xA9", "\xF0\x9F\x98\x80 \xEA\x99\xAE", "int main(void) { return 0; }" };

    cr_assert(zero(int, gguf_open(real_golden("tokenizers/ggml-vocab/ggml-vocab-baichuan.gguf"), &g, NULL)));
    cr_assert(zero(int, tokenizer_open(g, &t, NULL)));
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        TOKEN_LIST_LOCAL ids = { 0 };
        BUF_LOCAL out = BUF_INIT;

        cr_assert(zero(int, tokenizer_encode(t, texts[i], strlen(texts[i]), false, &ids, NULL)));
        cr_assert(zero(int, tokenizer_decode(t, ids.ids, ids.n, true, &out)));
        SAME(buf_str(&out), texts[i]);
    }
}
