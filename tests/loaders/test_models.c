/* Unigram, WordPiece, WordLevel and the trie under them, over vocabularies of a few tokens. */
#include "base/buf.h"
#include "loaders/tok/scratch.h"
#include "loaders/tok/tok.h"
#include "loaders/tok/trie.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

struct word { const char *text; double score; enum token_kind kind; };

static struct vocab *vocab_of(const struct word *words, size_t n)
{
    struct vocab *v;

    cr_assert(zero(int, vocab_new(0, 0, &v)));
    for (size_t i = 0; i < n; i++)
        cr_assert(zero(int, vocab_put(v, (int32_t)i, words[i].text, strlen(words[i].text), words[i].kind ? words[i].kind : TOK_NORMAL)));
    return v;
}

/* The ids of a piece, with spaces between. */
static const char *ids_of(const struct tok_model *m, const char *piece)
{
    static char out[1024];
    TOKEN_LIST_LOCAL list = { 0 };
    SCRATCH_LOCAL s = { 0 };

    out[0] = '\0';
    cr_assert(zero(int, m->ops->encode(m, piece, strlen(piece), &s, &list)));
    for (size_t i = 0; i < list.n; i++)
        snprintf(out + strlen(out), sizeof out - strlen(out), "%s%d", i ? " " : "", list.ids[i]);
    return out;
}

#define SAME(m, piece, ids) cr_expect(eq(str, (char *)ids_of(m, piece), (char *)(ids)))

static struct tok_model *unigram_of(struct vocab *v, const struct word *words, size_t n, bool single, bool bytes, bool fuse)
{
    double scores[600];
    const struct unigram_spec spec = { .vocab = v, .scores = scores, .single = single, .byte_fallback = bytes, .fuse_unk = fuse, .unk = 0 };
    struct tok_model *m;

    for (size_t i = 0; i < n; i++)
        scores[i] = words[i].score;
    cr_assert(zero(int, unigram_new(&spec, &m)));
    return m;
}

static const struct word few[] = {
    { "<unk>", 0, TOK_UNKNOWN }, { "a", -1, 0 }, { "b", -1, 0 }, { "ab", -1.5, 0 }, { "abc", -9, 0 }, { "c", -1, 0 }, { "<s>", 0, TOK_CONTROL },
    { "<u>", 0, TOK_USER_DEFINED }, { "<", -1, 0 }, { "u", -1, 0 }, { ">", -1, 0 }, { "s", -1, 0 }, { "bc", -1, TOK_UNUSED },
};
enum { N_FEW = sizeof few / sizeof few[0] };

Test(unigram, the_likeliest_way_wins_and_control_tokens_are_never_made)
{
    struct vocab *v = vocab_of(few, N_FEW);
    struct tok_model *one = unigram_of(v, few, N_FEW, true, false, true), *two = unigram_of(v, few, N_FEW, false, false, true);

    SAME(one, "abc", "3 5");
    SAME(one, "aab", "1 3");
    SAME(one, "<s>", "8 11 10");
    SAME(two, "<s>", "8 11 10");
    SAME(one, "a<u>b", "1 7 2");        /* sentencepiece's own user-defined token goes first */
    SAME(two, "a<u>b", "1 8 9 10 2");   /* in a tokenizer.json it is beside the model */
    SAME(one, "abcbc", "3 5 2 5");      /* a token that is not used is not there */
    SAME(two, "abcbc", "1 12 12");
    tok_model_free(one);
    tok_model_free(two);
    vocab_free(v);
}

Test(unigram, what_has_no_token_is_unknown_alone_or_as_a_run)
{
    struct vocab *v = vocab_of(few, N_FEW);
    struct tok_model *fused = unigram_of(v, few, N_FEW, true, false, true), *single = unigram_of(v, few, N_FEW, true, false, false);

    SAME(fused, "a\xC3\xA9\xE4\xBD\xA0z" "b\xC3\xA9", "1 0 2 0");
    SAME(single, "a\xC3\xA9\xE4\xBD\xA0z" "b", "1 0 0 0 2");
    SAME(fused, "\xFF\xFE", "0");
    tok_model_free(fused);
    tok_model_free(single);
    vocab_free(v);
}

Test(unigram, unknown_text_becomes_bytes_only_if_all_of_them_are_there)
{
    static struct word words[260];
    static char names[256][8];
    struct vocab *v;
    struct tok_model *m;

    words[0] = (struct word){ "<unk>", 0, TOK_UNKNOWN };
    words[1] = (struct word){ "a", -1, 0 };
    for (int i = 0; i < 256; i++) {
        snprintf(names[i], sizeof names[i], i == 0xBD ? "<gap>" : "<0x%02X>", (unsigned)i);
        words[2 + i] = (struct word){ names[i], -1, TOK_BYTE };
    }
    v = vocab_of(words, 258);
    m = unigram_of(v, words, 258, true, true, true);
    SAME(m, "a\xC3\xA9" "a", "1 197 171 1");
    SAME(m, "\xE4\xBD\xA0", "0");
    tok_model_free(m);
    vocab_free(v);
}

/* The sum is carried over the places where a stretch ends: the same ids in one piece of any length. */
Test(unigram, a_long_piece_has_the_ids_of_its_parts)
{
    struct vocab *v = vocab_of(few, N_FEW);
    struct tok_model *m = unigram_of(v, few, N_FEW, true, false, true);
    TOKEN_LIST_LOCAL list = { 0 };
    SCRATCH_LOCAL s = { 0 };
    enum { TIMES = 100000 };
    char *text = malloc(3 * TIMES);

    for (size_t i = 0; i < TIMES; i++)
        memcpy(text + 3 * i, "abc", 3);
    cr_assert(zero(int, m->ops->encode(m, text, 3 * TIMES, &s, &list)));
    cr_assert(eq(sz, list.n, 2 * TIMES));
    for (size_t i = 0; i < list.n; i++)
        cr_assert(eq(i32, list.ids[i], i % 2 ? 5 : 3));
    free(text);
    tok_model_free(m);
    vocab_free(v);
}

Test(wordpiece, the_longest_token_that_fits_is_taken_and_one_gap_makes_the_word_unknown)
{
    static const struct word words[] = {
        { "[UNK]", 0, TOK_UNKNOWN }, { "un", 0, 0 }, { "##aff", 0, 0 }, { "##able", 0, 0 }, { "##a", 0, 0 }, { "u", 0, 0 }, { "[CLS]", 0, TOK_CONTROL },
        { "##\xC3\xA9", 0, 0 }, { "##", 0, 0 },
    };
    struct vocab *v = vocab_of(words, 9);
    struct wordpiece_spec spec = { .vocab = v, .continuing_prefix = { "##", 2 }, .unk = 0, .max_chars = 9 };
    struct tok_model *m;

    cr_assert(zero(int, wordpiece_new(&spec, &m)));
    SAME(m, "unaffable", "1 2 3");
    SAME(m, "una", "1 4");
    SAME(m, "unb", "0");
    SAME(m, "u\xC3\xA9", "5 7");
    SAME(m, "u\xC3", "0");
    SAME(m, "uaaaaaaaa", "5 4 4 4 4 4 4 4 4");
    SAME(m, "uaaaaaaaaa", "0");         /* ten characters */
    SAME(m, "[CLS]", "0");
    tok_model_free(m);
    vocab_free(v);
}

Test(wordlevel, a_word_is_a_token_or_unknown)
{
    static const struct word words[] = { { "[UNK]", 0, TOK_UNKNOWN }, { "cat", 0, 0 }, { "[X]", 0, TOK_CONTROL } };
    struct vocab *v = vocab_of(words, 3);
    struct tok_model *m;

    cr_assert(zero(int, wordlevel_new(v, 0, &m)));
    SAME(m, "cat", "1");
    SAME(m, "cats", "0");
    SAME(m, "[X]", "0");
    tok_model_free(m);
    cr_assert(zero(int, wordlevel_new(v, -1, &m)));
    SAME(m, "dog", "");
    tok_model_free(m);
    vocab_free(v);
}

/* Many strings with shared beginnings, found again, and nothing else. */
Test(trie, finds_every_string_and_the_longest)
{
    enum { N = 20000 };
    static char texts[N][16];
    struct trie_key *keys = calloc(N + 1, sizeof *keys);
    struct trie *t;
    size_t len;

    for (int i = 0; i < N; i++) {
        uint32_t x = (uint32_t)i * 2654435761u;

        for (int k = 0; k < 3; k++, x >>= 8)
            texts[i][k] = (char)(x & (k ? 0xFF : 0x8F));
        snprintf(texts[i] + 3, 13, "%d", i);
        keys[i] = (struct trie_key){ texts[i], (uint32_t)(3 + strlen(texts[i] + 3)), i };
    }
    keys[N] = (struct trie_key){ texts[7], 4, N };
    cr_assert(zero(int, trie_new(keys, N + 1, &t)));
    for (int i = 0; i < N; i++) {
        char text[20];
        size_t n = 3 + strlen(texts[i] + 3);

        memcpy(text, texts[i], n);
        text[n] = '\x01';
        cr_assert(eq(i32, trie_longest(t, text, n + 1, &len), i));      /* of equal strings the least value */
        cr_assert(eq(sz, len, n));
        cr_assert(trie_longest(t, text, n - 1, &len) != i);
    }
    trie_free(t);
    keys[0] = (struct trie_key){ "x", TRIE_MAX_BYTES + 1, 0 };
    cr_expect(eq(int, trie_new(keys, 1, &t), -E2BIG));
    cr_assert(zero(int, trie_new(keys, 0, &t)));
    cr_expect(eq(i32, trie_longest(t, "a", 1, &len), -1));
    cr_expect(eq(sz, len, 0));
    trie_free(t);
    free(keys);
}
