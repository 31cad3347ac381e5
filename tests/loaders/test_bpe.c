/* BPE against a twin that does what Hugging Face's does, step by step: all pairs are looked at for every merge. */
#include "base/utf8.h"
#include "loaders/tok/scratch.h"
#include "loaders/tok/tok.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static uint64_t state;

static uint32_t random_below(uint32_t n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % n);
}

/* A vocabulary: characters of a small alphabet, then what random merges make. */
struct made {
    struct vocab *vocab;
    struct bpe_merge merges[512];
    size_t n_merges;
    struct bpe_spec spec;
};

static int32_t put(struct made *m, const char *text, size_t len, enum token_kind kind)
{
    int32_t id = (int32_t)vocab_size(m->vocab);

    cr_assert(eq(int, vocab_put(m->vocab, id, text, len, kind), 0));
    return id;
}

static void make_merge(struct made *m, const char *prefix)
{
    uint32_t n = vocab_size(m->vocab);
    struct tok_str a = vocab_text(m->vocab, (int32_t)random_below(n)), b = vocab_text(m->vocab, (int32_t)random_below(n));
    struct tok_str l, r;
    size_t skip = strlen(prefix), bad;
    char left[256], right[256], text[512];

    if (a.len + b.len > 40 || a.text[0] == '<' || b.text[0] == '<' || b.len < skip || memcmp(b.text, prefix, skip) != 0)
        return;
    memcpy(left, a.text, a.len);            /* putting moves what was handed out */
    memcpy(right, b.text, b.len);
    memcpy(text, left, a.len);
    memcpy(text + a.len, right + skip, b.len - skip);
    if (vocab_find(m->vocab, text, a.len + b.len - skip) < 0)
        put(m, text, a.len + b.len - skip, TOK_NORMAL);
    l = (struct tok_str){ left, a.len };
    r = (struct tok_str){ right, b.len };
    cr_assert(eq(int, bpe_merges_find(m->vocab, &l, &r, 1, skip, (int32_t)n - 1, &m->merges[m->n_merges++], &bad), 0));
}

/* It points into itself. */
static void make(struct made *m, const char *const *alphabet, size_t n, size_t n_merges, const char *prefix, const char *suffix)
{
    char text[32];

    *m = (struct made){ 0 };
    cr_assert(eq(int, vocab_new(0, 0, &m->vocab), 0));
    for (size_t i = 0; i < n; i++) {
        put(m, alphabet[i], strlen(alphabet[i]), TOK_NORMAL);
        snprintf(text, sizeof text, "%s%s", prefix, alphabet[i]);
        if (*prefix)
            put(m, text, strlen(text), TOK_NORMAL);
        snprintf(text, sizeof text, "%s%s%s", prefix, alphabet[i], suffix);
        if (*suffix && random_below(4))
            put(m, text, strlen(text), TOK_NORMAL);
    }
    for (size_t i = 0; i < n_merges * 8 && m->n_merges < n_merges; i++)
        make_merge(m, prefix);
    m->spec = (struct bpe_spec){ .vocab = m->vocab, .merges = m->merges, .n_merges = m->n_merges, .unk = -1, .last_counts = random_below(2),
                                .continuing_prefix = { prefix, (uint32_t)strlen(prefix) },
                                .end_suffix = { suffix, (uint32_t)strlen(suffix) } };
}

/* The twin. */

static int find_rank(const struct bpe_spec *s, int32_t left, int32_t right)
{
    int found = -1;

    for (size_t i = 0; i < s->n_merges; i++)
        if (s->merges[i].left == left && s->merges[i].right == right && (found < 0 || s->last_counts))
            found = (int)i;
    return found;
}

static int32_t find(const struct bpe_spec *s, const char *text, size_t len)
{
    int32_t id = vocab_find(s->vocab, text, len);

    return id >= 0 && vocab_kind(s->vocab, id) == TOK_NORMAL ? id : -1;
}

static size_t twin_symbols(const struct bpe_spec *s, const char *piece, size_t len, int32_t *ids)
{
    int32_t waits = -1;
    size_t n = 0;

    for (size_t i = 0, step; i < len; i += step) {
        char text[64], byte[8];
        size_t m = 0;
        uint32_t c;
        int32_t id;
        bool fallback = s->byte_fallback;

        step = s->byte_level || utf8_decode(piece + i, len - i, &c) <= 0 ? 1 : (size_t)utf8_decode(piece + i, len - i, &c);
        if (i)
            memcpy(text, s->continuing_prefix.text, m = s->continuing_prefix.len);
        memcpy(text + m, piece + i, step);
        m += step;
        if (i + step == len) {
            memcpy(text + m, s->end_suffix.text, s->end_suffix.len);
            m += s->end_suffix.len;
        }
        id = find(s, text, m);
        if (id >= 0) {
            if (waits >= 0)
                ids[n++] = waits;
            waits = -1;
            ids[n++] = id;
            continue;
        }
        for (size_t j = 0; j < m && fallback; j++)
            fallback = find(s, byte, (size_t)snprintf(byte, sizeof byte, "<0x%02X>", (unsigned char)text[j])) >= 0;
        for (size_t j = 0; j < m && fallback; j++)
            ids[n++] = find(s, byte, (size_t)snprintf(byte, sizeof byte, "<0x%02X>", (unsigned char)text[j]));
        if (fallback || s->unk < 0)
            continue;
        if (waits >= 0 && !s->fuse_unk)
            ids[n++] = waits;
        waits = s->unk;
    }
    if (waits >= 0)
        ids[n++] = waits;
    return n;
}

static size_t twin(const struct bpe_spec *s, const char *piece, size_t len, int32_t *ids)
{
    size_t n;

    if (s->ignore_merges && find(s, piece, len) >= 0) {
        ids[0] = find(s, piece, len);
        return 1;
    }
    n = twin_symbols(s, piece, len, ids);
    for (;;) {
        int best = -1;
        size_t at = 0;

        for (size_t i = 0; i + 1 < n; i++) {
            int rank = find_rank(s, ids[i], ids[i + 1]);

            if (rank >= 0 && (best < 0 || rank < best)) {
                best = rank;
                at = i;
            }
        }
        if (best < 0)
            return n;
        ids[at] = s->merges[best].result;
        n--;
        memmove(ids + at + 1, ids + at + 2, (n - at - 1) * sizeof *ids);
    }
}

static void compare(const struct bpe_spec *spec, const struct tok_model *m, const char *piece, size_t len)
{
    TOKEN_LIST_LOCAL have = { 0 };
    SCRATCH_LOCAL scratch = { 0 };
    static int32_t want[4096];
    size_t n = twin(spec, piece, len, want);

    for (int again = 0; again < 2; again++) {       /* the second time it is in the cache */
        have.n = 0;
        cr_assert(eq(int, m->ops->encode(m, piece, len, &scratch, &have), 0));
        cr_assert(eq(sz, have.n, n), "%.*s", (int)len, piece);
        cr_assert(n == 0 || memcmp(have.ids, want, n * sizeof *want) == 0, "%.*s", (int)len, piece);
    }
}

static void try_pieces(struct made *m, const char *const *alphabet, size_t n)
{
    struct tok_model *model = NULL;

    cr_assert(eq(int, bpe_new(&m->spec, &model), 0));
    for (int i = 0; i < 400; i++) {
        char piece[400];
        size_t len = 0, most = i % 8 == 0 ? 300 : 1 + random_below(40);

        while (len < most) {
            const char *c = alphabet[random_below((uint32_t)n)];

            memcpy(piece + len, c, strlen(c));
            len += strlen(c);
        }
        compare(&m->spec, model, piece, len);
    }
    tok_model_free(model);
    vocab_free(m->vocab);
}

static const char *const letters[] = { "a", "b", "c", "d", "e" };
static const char *const characters[] = { "a", "\xC3\xA9", "\xE4\xB8\xAD", "\xF0\x9F\x8C\x8D", "\xE2\x96\x81", "\xFF" };
enum { N_LETTERS = 5, N_CHARACTERS = 6 };

Test(bpe, bytes_merge_as_the_twin_says)
{
    for (state = 1; state % 1000 < 30; ) {
        uint64_t seed = state;
        struct made m;

        make(&m, letters, N_LETTERS, 1 + random_below(60), "", "");
        m.spec.byte_level = true;
        m.spec.ignore_merges = random_below(2);
        try_pieces(&m, letters, N_LETTERS);
        state = seed + 1;
    }
}

Test(bpe, bytes_without_tokens_are_unknown_or_dropped)
{
    for (state = 1; state % 1000 < 20; ) {
        uint64_t seed = state;
        struct made m;

        make(&m, letters, N_LETTERS - 2, 1 + random_below(40), "", "");
        m.spec.byte_level = true;
        m.spec.unk = random_below(2) ? put(&m, "<unk>", 5, TOK_UNKNOWN) : -1;
        m.spec.fuse_unk = random_below(2);
        try_pieces(&m, letters, N_LETTERS);
        state = seed + 1;
    }
}

Test(bpe, characters_fall_back_to_bytes_all_or_none)
{
    for (state = 1; state % 1000 < 40; ) {
        uint64_t seed = state;
        struct made m;

        make(&m, characters, 1 + random_below(5), 1 + random_below(60), "", "");
        m.spec.unk = random_below(3) ? put(&m, "<unk>", 5, TOK_UNKNOWN) : -1;
        m.spec.fuse_unk = random_below(2);
        m.spec.byte_fallback = random_below(4);
        for (int i = 0; i < 256; i++) {
            char text[8];

            if (i != 0xE4 || random_below(2))
                put(&m, text, (size_t)snprintf(text, sizeof text, "<0x%02X>", i), TOK_NORMAL);
        }
        try_pieces(&m, characters, N_CHARACTERS);
        state = seed + 1;
    }
}

Test(bpe, a_prefix_continues_and_a_suffix_ends)
{
    for (state = 1; state % 1000 < 30; ) {
        uint64_t seed = state;
        struct made m;

        make(&m, letters, N_LETTERS - 1, 1 + random_below(60), seed % 3 ? "##" : "", seed % 3 != 1 ? "</w>" : "");
        m.spec.unk = random_below(2) ? put(&m, "<unk>", 5, TOK_UNKNOWN) : -1;
        m.spec.fuse_unk = random_below(2);
        try_pieces(&m, letters, N_LETTERS);
        state = seed + 1;
    }
}

Test(bpe, no_text_becomes_a_token_of_another_kind)
{
    struct made m;
    TOKEN_LIST_LOCAL ids = { 0 };
    SCRATCH_LOCAL scratch = { 0 };
    struct tok_model *model = NULL;
    struct bpe_merge ab = { 0, 1, N_LETTERS };

    make(&m, letters, N_LETTERS, 0, "", "");
    put(&m, "ab", 2, TOK_CONTROL);
    m.spec.merges = &ab;
    m.spec.n_merges = 1;
    m.spec.byte_level = m.spec.ignore_merges = true;
    vocab_set_kind(m.vocab, 2, TOK_USER_DEFINED);
    cr_assert(eq(int, bpe_new(&m.spec, &model), 0));
    cr_assert(eq(int, model->ops->encode(model, "ab", 2, &scratch, &ids), 0));
    cr_assert(eq(int, model->ops->encode(model, "cd", 2, &scratch, &ids), 0));
    cr_expect(ids.n == 3 && ids.ids[0] == 0 && ids.ids[1] == 1 && ids.ids[2] == 3);
    tok_model_free(model);
    vocab_free(m.vocab);
}

Test(bpe, merges_of_ids_that_are_none_are_refused)
{
    struct made m;
    struct bpe_merge bad[] = { { 0, 1, 500 }, { -1, 1, 2 }, { 0, 77, 2 } };
    struct tok_model *model = NULL;

    make(&m, letters, N_LETTERS, 0, "", "");
    m.spec.n_merges = 1;
    for (size_t i = 0; i < 3; i++) {
        m.spec.merges = &bad[i];
        cr_expect(eq(int, bpe_new(&m.spec, &model), -EINVAL));
    }
    cr_expect(eq(ptr, model, NULL));
    vocab_free(m.vocab);
}

struct job { const struct tok_model *model; const struct bpe_spec *spec; int wrong; };

static void *encode_many(void *user)
{
    struct job *j = user;
    SCRATCH_LOCAL scratch = { 0 };
    TOKEN_LIST_LOCAL ids = { 0 };

    for (uint32_t i = 0; i < 60000; i++) {
        int32_t want[64];
        char piece[8];
        size_t len = 1 + i % 8, n;

        for (size_t k = 0; k < len; k++)
            piece[k] = (char)('a' + (i >> k) * 2654435761u % 5);
        n = twin(j->spec, piece, len, want);
        ids.n = 0;
        j->wrong += j->model->ops->encode(j->model, piece, len, &scratch, &ids) != 0 || ids.n != n || memcmp(ids.ids, want, n * sizeof *want) != 0;
    }
    return NULL;
}

/* All threads meet in the same slots of the cache. */
Test(bpe, threads_share_the_cache, .timeout = 300)
{
    struct job jobs[4];
    pthread_t threads[4];
    struct tok_model *model = NULL;
    struct made m;

    state = 7;
    make(&m, letters, N_LETTERS, 20, "", "");
    m.spec.byte_level = true;
    cr_assert(eq(int, bpe_new(&m.spec, &model), 0));
    for (int i = 0; i < 4; i++) {
        jobs[i] = (struct job){ model, &m.spec, 0 };
        cr_assert(eq(int, pthread_create(&threads[i], NULL, encode_many, &jobs[i]), 0));
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        cr_expect(eq(int, jobs[i].wrong, 0));
    }
    tok_model_free(model);
    vocab_free(m.vocab);
}

Test(vocab, texts_are_found_by_the_first_id_that_has_them)
{
    CLEANUP(vocab_free) struct vocab *v = NULL;

    cr_assert(eq(int, vocab_new(0, 0, &v), 0));
    for (int32_t i = 0; i < 5000; i++) {
        char text[16];

        cr_assert(eq(int, vocab_put(v, i * 3, text, (size_t)snprintf(text, sizeof text, "%d", i % 4000), TOK_NORMAL), 0));
    }
    cr_expect(eq(int, vocab_find(v, "3999", 4), 3999 * 3));
    cr_expect(eq(int, vocab_find(v, "17", 2), 17 * 3));
    cr_expect(eq(int, vocab_find(v, "4000", 4), -1));
    cr_expect(eq(int, vocab_find(v, "", 0), -1));
    cr_expect(eq(u32, vocab_size(v), 4999 * 3 + 1));
    cr_expect(vocab_text(v, 3).len == 1 && vocab_text(v, 4).text == NULL && vocab_text(v, -1).text == NULL);
    cr_expect(vocab_kind(v, 4) == TOK_NONE && vocab_kind(v, 3) == TOK_NORMAL);
    cr_expect(eq(int, vocab_put(v, 3, "x", 1, TOK_NORMAL), -EEXIST));
    cr_expect(eq(int, vocab_put(v, -1, "x", 1, TOK_NORMAL), -E2BIG));
    cr_expect(eq(int, vocab_put(v, TOKENIZER_MAX_VOCAB, "x", 1, TOK_NORMAL), -E2BIG));
    cr_expect(eq(int, vocab_put(v, 4, "", 0, TOK_NORMAL), 0));
    cr_expect(vocab_text(v, 4).text != NULL && vocab_text(v, 4).len == 0);
}
