#include "gen/draft.h"

#include "base/buf.h"
#include "base/err.h"
#include "gen/draft_model.h"
#include "gen/kv.h"
#include "gen/model.h"
#include "loaders/tokenizer.h"
#include "tests/gen/rand.h"
#include "tests/gen/tiny_model.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

Test(draft, kinds_have_names)
{
    cr_expect(eq(int, draft_kind_of(NULL), DRAFT_OFF));
    cr_expect(eq(int, draft_kind_of(""), DRAFT_OFF));
    cr_expect(eq(int, draft_kind_of("off"), DRAFT_OFF));
    cr_expect(eq(int, draft_kind_of("ngram"), DRAFT_NGRAM));
    cr_expect(eq(int, draft_kind_of("draft"), DRAFT_MODEL));
    cr_expect(eq(int, draft_kind_of("on"), -1));
}

/* ---- how many -------------------------------------------------------- */

static struct draft *open_ngram(uint32_t tokens, uint32_t parallel)
{
    const struct draft_options options = { .kind = DRAFT_NGRAM, .tokens = tokens, .parallel = parallel, .n_ctx = 256 };
    struct draft *d;

    cr_assert(zero(int, draft_open(&options, &d, NULL)));
    cr_assert(zero(int, draft_open_kv(d, 0, KV_F16, NULL)));
    return d;
}

static void learn(struct draft *d, struct draft_seq *s, uint32_t n_drafted, uint32_t n_accepted)
{
    draft_learn(d, &(struct draft_ask){ .seq = s, .n_drafted = n_drafted, .tried = true }, n_accepted);
}

Test(draft, what_is_right_throughout_doubles_up_to_the_most)
{
    CLEANUP(draft_close) struct draft *d = open_ngram(10, 1);
    struct draft_seq *s = draft_begin(d);

    for (int i = 0; i < 3; i++) {
        static const uint32_t most[] = { 4, 8, 10 };
        const uint32_t n = draft_wants(d, s);

        cr_expect(eq(u32, n, most[i]));
        learn(d, s, n, n);
    }
    cr_expect(eq(u32, draft_wants(d, s), 10));
    learn(d, s, 10, 3);
    cr_expect(eq(u32, draft_wants(d, s), 7));
}

Test(draft, who_is_always_wrong_is_asked_ever_more_rarely_and_never_given_up)
{
    CLEANUP(draft_close) struct draft *d = open_ngram(8, 1);
    struct draft_seq *s = draft_begin(d);
    unsigned asked[3] = { 0 };

    for (int i = 0; i < 3000; i++) {
        const uint32_t n = draft_wants(d, s);

        asked[i / 1000] += n > 0;
        if (n)
            learn(d, s, n, 0);
    }
    cr_expect(lt(uint, asked[0], 30));
    cr_expect(lt(uint, asked[2], 6));
    cr_expect(gt(uint, asked[2], 0));
    /* From the first time it is right on it is asked again. */
    for (uint32_t n = 0; !n; ) {
        n = draft_wants(d, s);
        if (n)
            learn(d, s, n, n);
    }
    for (int i = 0; i < 20; i++) {
        const uint32_t n = draft_wants(d, s);

        cr_expect(gt(u32, n, 0));
        learn(d, s, n, n);
    }
    cr_expect(eq(u32, draft_wants(d, s), 8));
}

Test(draft, what_was_not_tried_teaches_nothing_and_doubt_does)
{
    CLEANUP(draft_close) struct draft *d = open_ngram(8, 1);
    struct draft_seq *s = draft_begin(d);

    for (int i = 0; i < 50; i++)
        draft_learn(d, &(struct draft_ask){ .seq = s }, 0);
    cr_expect(eq(u32, draft_wants(d, s), 4));
    for (int i = 0; i < 50; i++)
        learn(d, s, 0, 0);
    cr_expect(zero(u32, draft_wants(d, s)));
}

Test(draft, as_many_propose_as_run_and_each_begins_anew)
{
    CLEANUP(draft_close) struct draft *d = open_ngram(8, 2);
    static const int32_t text[] = { 1, 2, 3, 4, 1, 2, 3 }, other[] = { 5, 6, 1, 2, 3, 5, 6 };
    struct draft_seq *a = draft_begin(d), *b = draft_begin(d);
    struct draft_ask asks[] = { { .seq = a, .text = text, .n = 7, .want = 3 }, { .seq = b, .text = other, .n = 7, .want = 1 } };

    cr_assert(ne(ptr, a, NULL));
    cr_assert(ne(ptr, b, NULL));
    cr_expect(eq(ptr, draft_begin(d), NULL));
    draft_prepare(d, asks, 2);
    draft_propose(d, asks, 2);
    cr_expect(eq(u32, asks[0].n_drafted, 3));
    cr_expect(eq(i32, asks[0].tokens[0], 4));
    cr_expect(eq(i32, asks[0].tokens[1], 1));
    cr_expect(eq(u32, asks[1].n_drafted, 1));
    cr_expect(eq(i32, asks[1].tokens[0], 1));
    draft_end(d, a);
    draft_end(d, NULL);
    a = draft_begin(d);
    asks[0] = (struct draft_ask){ .seq = a, .text = other, .n = 7, .want = 3 };
    draft_propose(d, asks, 1);
    cr_expect(eq(u32, asks[0].n_drafted, 2));
    cr_expect(eq(i32, asks[0].tokens[1], 2));
}

/* ---- a draft model --------------------------------------------------- */

enum { VOCAB = 256 + 2 + 1, LONGEST = 400, N_TEXTS = 3 };

struct file {
    struct buf bytes;
    struct gguf *gguf;
    struct tokenizer *tokenizer;
};

static void make_file(struct file *f, uint64_t seed, uint32_t vocab, const char *second_merge, const char *added)
{
    const char *const merges[] = { "t h", second_merge };
    struct tiny_model t = tiny_model_default;
    struct gguf_build b = GGUF_BUILD_INIT;
    struct err err = { 0 };

    t.seed = seed;
    t.vocab_size = vocab;
    *f = (struct file){ 0 };
    tiny_model_build(&t, &b);
    gguf_build_tokenizer(&b, NULL, merges, 2, &added, (const int32_t[]){ 3 }, 1);
    gguf_build_u32(&b, "tokenizer.ggml.eos_token_id", 258);
    gguf_build_finish(&b, &f->bytes);
    cr_assert(zero(int, gguf_open_memory("tiny.gguf", f->bytes.data, f->bytes.len, &f->gguf, &err)), "%s", err_text(&err));
    cr_assert(zero(int, tokenizer_open(f->gguf, &f->tokenizer, &err)), "%s", err_text(&err));
}

static void file_fini(struct file *f)
{
    tokenizer_close(f->tokenizer);
    gguf_close(f->gguf);
    buf_fini(&f->bytes);
}
#define FILE_LOCAL __attribute__((cleanup(file_fini))) struct file

struct rig {
    struct model *target;
    struct draft *draft;
    struct model *twin;         /* the draft model, alone */
    struct kv *kv;
    uint32_t pages[LONGEST / KV_PAGE + 1];
};

static void rig_open(struct rig *r, const struct file *target, const struct file *draft, uint32_t n_pages)
{
    const struct model_options options = { .threads = 2, .isa = "scalar" };
    struct draft_options o = {
        .kind = DRAFT_MODEL, .parallel = N_TEXTS, .n_ctx = LONGEST, .file = draft->gguf, .target_file = target->gguf,
        .target_tokenizer = target->tokenizer,
    };
    const struct model_shape *s;
    struct err err = { 0 };

    *r = (struct rig){ 0 };
    cr_assert(zero(int, model_open(target->gguf, &options, &r->target, &err)), "%s", err_text(&err));
    cr_assert(zero(int, model_open(draft->gguf, &options, &r->twin, &err)), "%s", err_text(&err));
    o.target = r->target;
    cr_assert(zero(int, draft_open(&o, &r->draft, &err)), "%s", err_text(&err));
    cr_assert(zero(int, draft_open_kv(r->draft, n_pages, KV_F16, &err)), "%s", err_text(&err));
    s = model_shape(r->twin);
    cr_assert(zero(int, kv_open(&(struct kv_shape){ s->n_layers, s->n_kv_heads, s->head_dim, LONGEST / KV_PAGE + 1 }, &r->kv, NULL)));
    for (uint32_t i = 0; i <= LONGEST / KV_PAGE; i++)
        cr_assert(zero(int, kv_take(r->kv, &r->pages[i])));
}

static void rig_close(struct rig *r)
{
    draft_close(r->draft);
    kv_close(r->kv);
    model_close(r->twin);
    model_close(r->target);
}
#define RIG __attribute__((cleanup(rig_close))) struct rig

/* The best token behind a text, read from its beginning, and how far the second best is. */
static int32_t best_after(struct rig *r, const int32_t *text, uint32_t n, float *ret_gap)
{
    static struct model_row rows[LONGEST];
    static float logits[VOCAB];
    int32_t best = 0;

    for (uint32_t i = 0; i < n; i++)
        rows[i] = (struct model_row){ .token = text[i], .pos = i, .pages = r->pages };
    rows[n - 1].logits = logits;
    model_forward(r->twin, r->kv, rows, n);
    for (int32_t i = 1; i < VOCAB; i++)
        best = logits[i] > logits[best] ? i : best;
    *ret_gap = INFINITY;
    for (int32_t i = 0; i < VOCAB; i++)
        if (i != best && logits[best] - logits[i] < *ret_gap)
            *ret_gap = logits[best] - logits[i];
    return best;
}

/* Up to `want`, as long as the best is twice as likely as the second. */
static uint32_t twin(struct rig *r, const int32_t *text, uint32_t n, uint32_t want, int32_t *ret)
{
    int32_t more[LONGEST];
    uint32_t k = 0;

    memcpy(more, text, n * sizeof text[0]);
    for (float gap; k < want; k++) {
        more[n + k] = ret[k] = best_after(r, more, n + k, &gap);
        if (gap < 0.69f)
            break;
    }
    return k;
}

struct text {
    int32_t tokens[LONGEST];
    uint32_t n;
    struct draft_seq *seq;
};

static void text_begin(struct rig *r, struct text *t, uint32_t n, uint64_t *seed)
{
    for (t->n = 0; t->n < n; t->n++)
        t->tokens[t->n] = (int32_t)rand_below(seed, VOCAB);
    t->seq = draft_begin(r->draft);
    cr_assert(ne(ptr, t->seq, NULL));
}

static void expect_twin(struct rig *r, const struct draft_ask *a)
{
    int32_t want[DRAFT_MAX_TOKENS];
    uint32_t n = a->tried ? twin(r, a->text, a->n, a->want, want) : 0;

    cr_assert(eq(u32, a->n_drafted, n), "after %u tokens", a->n);
    cr_assert(zero(int, memcmp(a->tokens, want, n * sizeof want[0])), "after %u tokens", a->n);
}

/* Some of what was proposed stands, then comes a token of ours. */
static void go_on(struct text *t, const struct draft_ask *a, uint64_t *seed)
{
    uint32_t stands = rand_below(seed, a->n_drafted + 1);

    if (rand_below(seed, 3) == 0)
        stands = a->n_drafted;
    for (uint32_t i = 0; i < stands; i++)
        t->tokens[t->n++] = a->tokens[i];
    t->tokens[t->n++] = (int32_t)rand_below(seed, VOCAB);
}

Test(draft, a_draft_model_proposes_what_it_would_write_whatever_stood_before, .timeout = 500)
{
    FILE_LOCAL target, draft;
    static struct text texts[N_TEXTS];
    struct draft_ask asks[N_TEXTS];
    unsigned n_tried = 0, n_drafted = 0;
    uint64_t seed = 1;
    RIG r;

    make_file(&target, 1, VOCAB, "i n", "<|end|>");
    make_file(&draft, 2, VOCAB, "i n", "<|end|>");
    rig_open(&r, &target, &draft, 100);
    for (uint32_t i = 0; i < N_TEXTS; i++)
        text_begin(&r, &texts[i], 1 + 70 * i, &seed);
    for (int round = 0; round < 60; round++) {
        size_t n = 0;
        uint32_t of[N_TEXTS];

        for (uint32_t i = 0; i < N_TEXTS; i++) {
            const uint32_t want = rand_below(&seed, 7);

            if (rand_below(&seed, 4) == 0 || texts[i].n + 8 > LONGEST)
                continue;
            of[n] = i;
            asks[n++] = (struct draft_ask){ .seq = texts[i].seq, .text = texts[i].tokens, .n = texts[i].n, .want = want };
        }
        draft_prepare(r.draft, asks, n);
        draft_propose(r.draft, asks, n);
        for (size_t k = 0; k < n; k++) {
            expect_twin(&r, &asks[k]);
            n_tried += asks[k].tried;
            n_drafted += asks[k].n_drafted;
            go_on(&texts[of[k]], &asks[k], &seed);
        }
        /* One ends and another begins in its place. */
        if (round % 20 == 19) {
            draft_end(r.draft, texts[round / 20].seq);
            text_begin(&r, &texts[round / 20], 40, &seed);
        }
    }
    cr_expect(gt(uint, n_tried, 60));
    cr_expect(gt(uint, n_drafted, 60));
}

Test(draft, a_long_prompt_is_read_in_pieces_before_anything_is_proposed)
{
    FILE_LOCAL target;
    static struct text t;
    struct draft_ask a;
    uint64_t seed = 3;
    int passes = 0;
    RIG r;

    make_file(&target, 1, VOCAB, "i n", "<|end|>");
    rig_open(&r, &target, &target, 100);
    text_begin(&r, &t, 300, &seed);
    do {
        a = (struct draft_ask){ .seq = t.seq, .text = t.tokens, .n = t.n, .want = 4 };
        draft_prepare(r.draft, &a, 1);
        draft_propose(r.draft, &a, 1);
        passes++;
    } while (!a.tried && passes < 10);
    cr_expect(eq(int, passes, 1 + (300 + DRAFT_READ_ROWS - 1) / DRAFT_READ_ROWS));
    expect_twin(&r, &a);
}

Test(draft, without_pages_a_sequence_gets_no_proposals_until_another_ends)
{
    FILE_LOCAL target;
    static struct text first, second;
    struct draft_ask a;
    uint64_t seed = 3;
    RIG r;

    make_file(&target, 1, VOCAB, "i n", "<|end|>");
    rig_open(&r, &target, &target, 3);
    text_begin(&r, &first, 30, &seed);
    text_begin(&r, &second, 17, &seed);
    for (int i = 0; i < 6; i++) {
        struct text *t = i % 2 ? &second : &first;

        a = (struct draft_ask){ .seq = t->seq, .text = t->tokens, .n = t->n, .want = 3 };
        draft_prepare(r.draft, &a, 1);
        draft_propose(r.draft, &a, 1);
        cr_expect(eq(u32, a.want, i % 2 ? 0 : 3));
        cr_expect(eq(int, a.tried, i > 1 && !(i % 2)));
    }
    draft_end(r.draft, first.seq);
    for (int i = 0; i < 2; i++) {
        a = (struct draft_ask){ .seq = second.seq, .text = second.tokens, .n = second.n, .want = 3 };
        draft_prepare(r.draft, &a, 1);
        draft_propose(r.draft, &a, 1);
    }
    cr_expect(a.tried);
    expect_twin(&r, &a);
}

Test(draft, a_text_longer_than_the_draft_model_holds_gets_no_proposals)
{
    FILE_LOCAL target;
    static struct text t;
    static int32_t longer[LONGEST + 1];
    struct draft_ask a;
    uint64_t seed = 3;
    RIG r;

    make_file(&target, 1, VOCAB, "i n", "<|end|>");
    rig_open(&r, &target, &target, 100);
    text_begin(&r, &t, 5, &seed);
    a = (struct draft_ask){ .seq = t.seq, .text = longer, .n = LONGEST + 1, .want = 3 };
    draft_prepare(r.draft, &a, 1);
    draft_propose(r.draft, &a, 1);
    cr_expect(zero(u32, a.n_drafted));
    cr_expect(zero(u32, a.want));
}

static void expect_refused(const struct file *target, const struct file *draft, const char *why)
{
    const struct model_options options = { .threads = 1, .isa = "scalar" };
    CLEANUP(model_close) struct model *m = NULL;
    struct draft_options o = {
        .kind = DRAFT_MODEL, .parallel = 1, .n_ctx = 64, .file = draft->gguf, .target_file = target->gguf,
        .target_tokenizer = target->tokenizer,
    };
    struct err err = { 0 };
    struct draft *d = NULL;

    cr_assert(zero(int, model_open(target->gguf, &options, &m, NULL)));
    o.target = m;
    cr_expect(eq(int, draft_open(&o, &d, &err), -EINVAL));
    cr_expect(eq(ptr, d, NULL));
    cr_expect(ne(ptr, strstr(err_text(&err), why), NULL), "%s", err_text(&err));
}

Test(draft, a_draft_model_of_another_vocabulary_is_refused_with_the_first_difference)
{
    FILE_LOCAL target, merge, control, shorter;

    make_file(&target, 1, VOCAB, "i n", "<|end|>");
    make_file(&merge, 1, VOCAB, "i s", "<|end|>");
    make_file(&control, 1, VOCAB, "i n", "<|eos|>");
    make_file(&shorter, 1, VOCAB - 1, "i n", "<|end|>");
    expect_refused(&target, &merge, "token 257 is \"is\" here, and \"in\" in tiny.gguf");
    expect_refused(&target, &control, "token 258 is \"<|eos|>\" here, and \"<|end|>\" in tiny.gguf");
    expect_refused(&target, &shorter, "259 tokens, but an embedding of 258");
}
