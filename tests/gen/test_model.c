/* The forward pass: against a plain double-precision one over tiny random files,
 * against itself bit by bit, and against what a real model must say. */
#include "base/err.h"
#include "base/json.h"
#include "gen/cpu/kernels.h"
#include "gen/cpu/pack.h"
#include "gen/engine.h"
#include "gen/kv.h"
#include "gen/model.h"
#include "tests/gen/blocks.h"
#include "tests/gen/tiny_model.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SEQUENCES = 4, PAGES = 128, VOCAB = 75, LONG = 300 };

/* ---- a model with a few sequences ------------------------------------ */

struct bed {
    struct buf file;
    struct gguf *gguf;
    struct model *model;
    struct kv *kv;
    uint32_t pages[SEQUENCES][PAGES];
};

static enum kv_type kv_kept;       /* what beds keep keys and values as */
static bool as_prompt;             /* rows are read, not generated */

static void bed_open_kv(struct bed *b)
{
    const struct model_shape *s = model_shape(b->model);
    struct kv_shape shape = { s->n_layers, s->n_kv_heads, s->head_dim, SEQUENCES * PAGES, kv_kept };

    cr_assert(zero(int, kv_open(&shape, &b->kv, NULL)));
    /* Pages of the sequences lie between one another. */
    for (int i = 0; i < SEQUENCES * PAGES; i++)
        cr_assert(zero(int, kv_take(b->kv, &b->pages[i % SEQUENCES][i / SEQUENCES])));
}

static void bed_make_file(struct bed *b, const struct tiny_model *t)
{
    struct gguf_build build = GGUF_BUILD_INIT;
    struct err err = { 0 };

    tiny_model_build(t, &build);
    gguf_build_finish(&build, &b->file);
    cr_assert(zero(int, gguf_open_memory("tiny.gguf", b->file.data, b->file.len, &b->gguf, &err)), "%s",
              err_text(&err));
}

static void bed_init(struct bed *b, const struct tiny_model *t, const char *isa, uint32_t threads)
{
    struct model_options options = { .threads = threads, .isa = isa };
    struct err err = { 0 };

    *b = (struct bed){ 0 };
    bed_make_file(b, t);
    cr_assert(zero(int, model_open(b->gguf, &options, &b->model, &err)), "%s", err_text(&err));
    bed_open_kv(b);
}

static void bed_fini(struct bed *b)
{
    kv_close(b->kv);
    model_close(b->model);
    gguf_close(b->gguf);
    buf_fini(&b->file);
}

static int32_t token(uint32_t seq, uint32_t i) { return (int32_t)((i * 31 + seq * 17 + i * i % 7) % VOCAB); }

/* Feeds positions [from, to) of a sequence as one pass; logits of all rows go
 * to logits[pos]. */
static void feed(struct bed *b, uint32_t seq, uint32_t from, uint32_t to, float (*logits)[VOCAB])
{
    static struct model_row rows[MODEL_MAX_ROWS];

    for (uint32_t i = from; i < to; i++)
        rows[i - from] = (struct model_row){ token(seq, i), i, b->pages[seq], logits ? logits[i] : NULL, as_prompt };
    model_forward(b->model, b->kv, rows, to - from);
}

/* ---- against double precision ---------------------------------------- */

static double spread(const double *x, uint32_t n)
{
    double mean = 0, var = 0;

    for (uint32_t i = 0; i < n; i++)
        mean += x[i] / n;
    for (uint32_t i = 0; i < n; i++)
        var += (x[i] - mean) * (x[i] - mean) / n;
    return sqrt(var);
}

/* The largest error over the spread of the logits, for prompts of 1, 20 and 140, the first n of them. */
static double worst_error_of(const struct tiny_model *t, const char *isa, int n)
{
    static const uint32_t lengths[] = { 1, 20, 140 };
    static float got[LONG][VOCAB];
    double want[VOCAB], worst = 0;
    int32_t tokens[140];
    struct bed b;

    bed_init(&b, t, isa, 2);
    feed(&b, 0, 0, 140, got);
    for (uint32_t i = 0; i < 140; i++)
        tokens[i] = token(0, i);
    for (int l = 0; l < n; l++) {
        tiny_model_logits(t, b.gguf, tokens, lengths[l], want);
        for (uint32_t i = 0; i < t->vocab_size; i++)
            worst = fmax(worst, fabs((double)got[lengths[l] - 1][i] - want[i]) / spread(want, t->vocab_size));
    }
    bed_fini(&b);
    return worst;
}

static double worst_error(const struct tiny_model *t, const char *isa) { return worst_error_of(t, isa, 3); }

Test(model, float_weights_give_the_logits_of_double_precision)
{
    static const uint32_t types[] = { GGML_F32, GGML_F16, GGML_BF16 };

    /* What is left is the rounding of keys and values to fp16. */
    for (size_t i = 0; kernels_at(i); i++)
        for (int t = 0; t < 3; t++) {
            struct tiny_model tiny = tiny_model_default;

            tiny.types[0] = types[t];
            cr_expect(lt(dbl, worst_error(&tiny, kernels_at(i)->name), 4e-3), "%s type %u", kernels_at(i)->name,
                      types[t]);
        }
}

Test(model, quantised_weights_give_them_up_to_the_rounding_of_activations)
{
    static const uint32_t types[] = { GGML_Q4_0, GGML_Q4_1, GGML_Q8_0 };

    for (size_t i = 0; kernels_at(i); i++)
        for (int t = 0; t < 3; t++) {
            struct tiny_model tiny = tiny_model_default;

            tiny.types[0] = types[t];
            cr_expect(lt(dbl, worst_error(&tiny, kernels_at(i)->name), 0.15), "%s type %u", kernels_at(i)->name,
                      types[t]);
        }
}

/* Wide enough for blocks of 256. */
static const struct tiny_model wide = {
    .n_layers = 1, .n_heads = 4, .n_kv_heads = 1, .head_dim = 64, .dim = 256, .ffn_dim = 256,
    .vocab_size = VOCAB, .n_types = 1, .seed = 5,
};

Test(model, every_quantised_type_gives_them_up_to_the_rounding_of_activations)
{
    for (size_t i = 0; kernels_at(i); i++)
        for (int t = 0; t < BLOCK_TYPES; t++) {
            struct tiny_model tiny = wide;

            tiny.types[0] = block_types[t];
            cr_expect(lt(dbl, worst_error_of(&tiny, kernels_at(i)->name, 2), 0.15), "%s type %u", kernels_at(i)->name,
                      block_types[t]);
        }
}

Test(model, types_may_be_mixed_in_one_layer)
{
    struct tiny_model tiny = tiny_model_default;

    tiny.types[0] = GGML_Q8_0, tiny.types[1] = GGML_F32, tiny.types[2] = GGML_Q4_1, tiny.types[3] = GGML_F16;
    tiny.n_types = 4;
    cr_expect(lt(dbl, worst_error(&tiny, NULL), 0.15));
    tiny.n_types = 2;
    tiny.tied = false;
    cr_expect(lt(dbl, worst_error(&tiny, NULL), 0.15));
}

Test(model, biases_rope_factors_and_an_output_matrix_of_its_own_are_used)
{
    struct tiny_model tiny = tiny_model_default;

    tiny.tied = false;
    tiny.biases = tiny.rope_freqs = true;
    cr_expect(lt(dbl, worst_error(&tiny, NULL), 4e-3));
}

Test(model, heads_of_any_even_length_are_padded)
{
    static const uint32_t lengths[] = { 2, 8, 24, 40 };

    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        struct tiny_model tiny = tiny_model_default;

        tiny.head_dim = lengths[i];
        tiny.biases = true;
        cr_expect(lt(dbl, worst_error(&tiny, NULL), 4e-3), "heads of %u", lengths[i]);
        tiny.types[0] = GGML_Q8_0;
        tiny.n_heads = lengths[i] < 8 ? 16 : 4;
        cr_expect(lt(dbl, worst_error(&tiny, NULL), 0.15), "heads of %u in Q8_0", lengths[i]);
    }
}

Test(model, widths_that_are_no_whole_blocks_are_padded)
{
    struct tiny_model tiny = tiny_model_default;

    tiny.dim = 40, tiny.ffn_dim = 56, tiny.n_heads = 3, tiny.n_kv_heads = 1, tiny.vocab_size = VOCAB;
    tiny.types[0] = GGML_BF16;
    for (size_t i = 0; kernels_at(i); i++)
        cr_expect(lt(dbl, worst_error(&tiny, kernels_at(i)->name), 4e-3));
}

/* With exact weights, so that little else is lost. */
Test(model, what_keys_and_values_are_kept_as_costs_what_their_digits_say)
{
    static const double bounds[KV_TYPES] = { [KV_F16] = 2e-3, [KV_BF16] = 1e-2, [KV_Q8] = 2.5e-2 };

    for (size_t i = 0; kernels_at(i); i++)
        for (kv_kept = 0; kv_kept < KV_TYPES; kv_kept++) {
            struct tiny_model tiny = tiny_model_default, broad = wide;
            double error;

            tiny.types[0] = broad.types[0] = GGML_F32;
            error = fmax(worst_error(&tiny, kernels_at(i)->name), worst_error_of(&broad, kernels_at(i)->name, 2));
            printf("%s, %s: %.2g of the spread of the logits at worst\n", kernels_at(i)->name, kv_type_name(kv_kept), error);
            cr_expect(lt(dbl, error, bounds[kv_kept]), "%s %s: %g", kernels_at(i)->name, kv_type_name(kv_kept), error);
        }
}

/* Where prompts have kernels of their own, those round all that is multiplied to bf16. */
Test(model, what_keys_and_values_of_prompts_are_kept_as_costs_little_beside_bf16_tiles)
{
    as_prompt = true;
    for (size_t i = 0; kernels_at(i); i++)
        for (kv_kept = 0; kernels_at(i)->prompt && kv_kept < KV_TYPES; kv_kept++) {
            struct tiny_model tiny = tiny_model_default, broad = wide;
            double error;

            tiny.types[0] = broad.types[0] = GGML_F32;
            error = fmax(worst_error(&tiny, kernels_at(i)->name), worst_error_of(&broad, kernels_at(i)->name, 2));
            printf("%s, prompts, %s: %.2g of the spread of the logits at worst\n", kernels_at(i)->name, kv_type_name(kv_kept), error);
            cr_expect(lt(dbl, error, 3e-2), "%s %s: %g", kernels_at(i)->name, kv_type_name(kv_kept), error);
        }
}

/* ---- bit by bit ------------------------------------------------------ */

static float whole[LONG][VOCAB], other[LONG][VOCAB], third[SEQUENCES][LONG][VOCAB];

static void expect_same(float (*a)[VOCAB], float (*b)[VOCAB], uint32_t from, uint32_t to, const char *what)
{
    for (uint32_t i = from; i < to; i++)
        cr_assert(zero(int, memcmp(a[i], b[i], sizeof a[i])), "%s: position %u", what, i);
}

/* The last rows, which have three spans behind them, in chunks of every size. */
static void all_ways_agree(const struct tiny_model *t, const char *isa, uint32_t max_threads)
{
    static const uint32_t chunks[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 64 };
    const uint32_t before = LONG - 40;
    struct bed b;

    bed_init(&b, t, isa, 1);
    feed(&b, 0, 0, LONG, whole);
    bed_fini(&b);
    for (uint32_t threads = 1; threads <= max_threads; threads++) {
        bed_init(&b, t, isa, threads);
        cr_assert(eq(u32, model_threads(b.model), threads));
        feed(&b, 1, 0, LONG, NULL);                 /* so that the slab is not clean */
        feed(&b, 0, 0, 64, other);
        feed(&b, 0, 64, before, other);
        expect_same(whole, other, 0, before, "threads");
        for (size_t c = 0; c < sizeof chunks / sizeof chunks[0]; c++) {
            for (uint32_t at = before; at < LONG; at += chunks[c])
                feed(&b, 0, at, at + chunks[c] < LONG ? at + chunks[c] : LONG, other);
            expect_same(whole, other, before, LONG, "chunks");
        }
        bed_fini(&b);
    }
}

Test(model, a_row_is_the_same_to_the_bit_for_any_number_of_rows_and_threads)
{
    static const uint32_t types[] = { GGML_Q4_1, GGML_Q8_0, GGML_BF16 };

    for (size_t i = 0; kernels_at(i); i++)
        for (int t = 0; t < 3; t++) {
            struct tiny_model tiny = tiny_model_default;

            tiny.types[0] = types[t];
            if (i > 0 || t == 0)                    /* plain C is slow: one type is enough */
                all_ways_agree(&tiny, kernels_at(i)->name, i == 1 && t == 0 ? 3 : 2);
        }
}

Test(model, a_row_is_the_same_whatever_keys_and_values_are_kept_as)
{
    for (size_t i = 1; kernels_at(i); i++)
        for (kv_kept = KV_BF16; kv_kept < KV_TYPES; kv_kept++) {
            struct tiny_model tiny = tiny_model_default;

            tiny.types[0] = GGML_Q4_1;
            all_ways_agree(&tiny, kernels_at(i)->name, 2);
        }
}

Test(model, sequences_in_one_pass_do_not_see_one_another)
{
    struct tiny_model tiny = tiny_model_default;
    struct model_row rows[SEQUENCES + 40];
    struct bed b;

    tiny.types[0] = GGML_Q4_0;
    bed_init(&b, &tiny, NULL, 2);
    for (uint32_t s = 0; s < SEQUENCES; s++)
        feed(&b, s, 0, 200, third[s]);              /* alone */
    /* Again: three decode steps beside a prompt chunk of 40, in one pass. */
    for (uint32_t step = 0; step < 5; step++) {
        size_t n = 0;

        for (uint32_t s = 0; s < 3; s++) {
            const uint32_t pos = 60 * s + step;

            rows[n++] = (struct model_row){ token(s, pos), pos, b.pages[s], other[s] };
        }
        for (uint32_t i = 0; i < 40; i++) {
            const uint32_t pos = step * 40 + i;

            rows[n++] = (struct model_row){ token(3, pos), pos, b.pages[3], i == 39 ? other[3] : NULL };
        }
        model_forward(b.model, b.kv, rows, n);
        for (uint32_t s = 0; s < 3; s++)
            cr_assert(zero(int, memcmp(other[s], third[s][60 * s + step], sizeof other[s])));
        cr_assert(zero(int, memcmp(other[3], third[3][step * 40 + 39], sizeof other[3])));
    }
    bed_fini(&b);
}

/* Part 1 of 2 has the metadata, part 2 the tensors. */
static void part_write(const char *path, const struct tiny_model *t, uint32_t number)
{
    struct gguf_build b = GGUF_BUILD_INIT;
    BUF_LOCAL file = BUF_INIT;
    FILE *f = fopen(path, "w");

    tiny_model_build(t, &b);
    if (number == 0) {
        b.table.len = b.data.len = 0;
        b.n_tensors = 0;
    } else {
        b.keys.len = 0;
        b.n_keys = 0;
    }
    gguf_build_u32(&b, "split.no", number);
    gguf_build_u32(&b, "split.count", 2);
    gguf_build_finish(&b, &file);
    cr_assert(f != NULL && fwrite(file.data, 1, file.len, f) == file.len && fclose(f) == 0);
}

Test(model, a_split_file_computes_as_the_whole_one)
{
    const struct model_options options = { .threads = 2 };
    char dir[] = "/tmp/fastchat-model-XXXXXX", path[2][64];
    static float split[LONG][VOCAB];
    struct bed a, b = { 0 };

    cr_assert(mkdtemp(dir) != NULL);
    for (uint32_t i = 0; i < 2; i++) {
        snprintf(path[i], sizeof path[i], "%s/t-%05u-of-00002.gguf", dir, i + 1);
        part_write(path[i], &tiny_model_default, i);
    }
    cr_assert(zero(int, gguf_open(path[0], &b.gguf, NULL)));
    cr_assert(zero(int, model_open(b.gguf, &options, &b.model, NULL)));
    bed_open_kv(&b);
    bed_init(&a, &tiny_model_default, NULL, 2);
    feed(&a, 0, 0, 20, whole);
    feed(&b, 0, 0, 20, split);
    cr_expect(zero(int, memcmp(whole, split, 20 * sizeof split[0])));
    bed_fini(&a);
    bed_fini(&b);
    unlink(path[0]);
    unlink(path[1]);
    rmdir(dir);
}

Test(model, a_pass_allocates_nothing)
{
    struct mallinfo2 before, after;
    struct bed b;

    bed_init(&b, &tiny_model_default, NULL, 2);
    feed(&b, 0, 0, 10, whole);
    before = mallinfo2();
    for (uint32_t i = 10; i < 200; i++)
        feed(&b, 0, i, i + 1, whole);
    feed(&b, 1, 0, LONG, NULL);
    after = mallinfo2();
    cr_expect(eq(sz, after.uordblks + after.hblkhd, before.uordblks + before.hblkhd));
    bed_fini(&b);
}

Test(model, loading_and_stepping_beat_the_pulse)
{
    struct engine_pulse pulse = { 0 };
    struct model_options options = { .threads = 2, .pulse = &pulse };
    struct bed b = { 0 };
    uint64_t loaded;

    bed_make_file(&b, &tiny_model_default);
    cr_assert(zero(int, model_open(b.gguf, &options, &b.model, NULL)));
    bed_open_kv(&b);
    loaded = pulse.beats;
    cr_expect(ge(u64, loaded, 15));
    feed(&b, 0, 0, 3, NULL);
    cr_expect(ge(u64, pulse.beats, loaded + 2));
    bed_fini(&b);
}

Test(model, it_says_what_it_is)
{
    struct bed b;
    const struct model_shape *s;

    bed_init(&b, &tiny_model_default, "scalar", 1);
    s = model_shape(b.model);
    cr_expect(eq(str, (char *)model_isa(b.model), "scalar"));
    cr_expect(eq(str, (char *)s->arch, "llama"));
    cr_expect(eq(u32, s->vocab_size, VOCAB));
    cr_expect(eq(u32, s->n_ctx_train, 2048));
    cr_expect(gt(sz, model_weight_bytes(b.model), 4 * 64 * VOCAB));
    bed_fini(&b);
}

/* ---- files that do not fit ------------------------------------------- */

static int open_built(struct gguf_build *build, const struct model_options *options, struct err *err)
{
    static const struct model_options plain = { .threads = 1 };
    BUF_LOCAL file = BUF_INIT;
    CLEANUP(gguf_close) struct gguf *gguf = NULL;
    CLEANUP(model_close) struct model *model = NULL;
    int r;

    gguf_build_finish(build, &file);
    r = gguf_open_memory("bad.gguf", file.data, file.len, &gguf, err);
    cr_assert(zero(int, r), "%s", err_text(err));
    return model_open(gguf, options ? options : &plain, &model, err);
}

static void refused(struct gguf_build *build, int code, const char *text)
{
    struct err err = { 0 };

    cr_expect(eq(int, open_built(build, NULL, &err), code));
    cr_expect(eq(str, err.text, (char *)text));
}

Test(model, what_can_not_be_computed_is_refused_by_name)
{
    struct tiny_model t = tiny_model_default;
    struct gguf_build b = GGUF_BUILD_INIT;

    gguf_build_u32(&b, "llama.block_count", 1);
    refused(&b, -EINVAL, "bad.gguf: general.architecture is missing");
    gguf_build_str(&b, "general.architecture", "mamba");
    refused(&b, -ENOTSUP, "bad.gguf: architecture \"mamba\" is not supported");
    gguf_build_str(&b, "general.architecture", "llama");
    refused(&b, -EINVAL, "bad.gguf: llama.block_count is missing");

    tiny_model_build(&t, &b);
    gguf_build_u32(&b, "llama.expert_count", 8);
    refused(&b, -ENOTSUP, "bad.gguf: a model of 8 experts is not supported");
    t.rope_dim = 15;
    tiny_model_build(&t, &b);
    refused(&b, -EINVAL, "bad.gguf: llama.rope.dimension_count: 15 is odd, but values turn in pairs");
    t.rope_dim = 0;
    tiny_model_build(&t, &b);
    gguf_build_str(&b, "llama.rope.scaling.type", "longrope");
    refused(&b, -ENOTSUP, "bad.gguf: llama.rope.scaling.type: \"longrope\" is not supported");
    tiny_model_build(&t, &b);
    gguf_build_f32(&b, "llama.logit_scale", 0.5f);
    refused(&b, -ENOTSUP, "bad.gguf: key \"llama.logit_scale\" has no meaning in architecture \"llama\"");
    tiny_model_build(&t, &b);
    gguf_build_u32(&b, "llama.attention.sliding_window", 16);
    refused(&b, -ENOTSUP, "bad.gguf: key \"llama.attention.sliding_window\" has no meaning in architecture \"llama\"");
    tiny_model_build(&t, &b);
    gguf_build_f32(&b, "llama.final_logit_softcapping", -1);
    refused(&b, -EINVAL, "bad.gguf: llama.final_logit_softcapping: -1 is not a cap");
    tiny_model_build(&t, &b);
    gguf_build_tensor(&b, "blk.0.attn_q_norm.weight", GGML_F32, 1, (uint64_t[]){ 16 }, NULL, 64);
    refused(&b, -ENOTSUP, "bad.gguf: tensor \"blk.0.attn_q_norm.weight\" has no place in architecture \"llama\"");
    tiny_model_build(&t, &b);
    gguf_build_tensor(&b, "output.weight", GGML_Q8_1, 2, (uint64_t[]){ 64, VOCAB }, NULL, 64 * VOCAB / 32 * 36);
    refused(&b, -ENOTSUP, "bad.gguf: tensor \"output.weight\": type Q8_1 is not supported");
    tiny_model_build(&t, &b);
    gguf_build_tensor(&b, "blk.0.attn_q.bias", GGML_Q5_1, 1, (uint64_t[]){ 64 }, NULL, 2 * 24);
    refused(&b, -ENOTSUP, "bad.gguf: tensor \"blk.0.attn_q.bias\": type Q5_1 is not supported");
}

Test(model, a_scale_that_is_no_number_is_refused_with_its_tensor)
{
    for (int i = 0; i < BLOCK_TYPES; i++) {
        const struct ggml_type_facts *f = ggml_type_facts(block_types[i]);
        const size_t bytes = 256 / f->block * f->block_bytes * VOCAB;
        CLEANUP(mem_free) uint8_t *data = calloc(1, bytes);
        struct gguf_build b = GGUF_BUILD_INIT;
        struct tiny_model t = wide;
        char text[128];

        cr_assert(ne(ptr, data, NULL));
        t.tied = true;
        t.types[0] = GGML_F16;
        block_scale(block_types[i], data + 40 * bytes / VOCAB, i % 2 ? INFINITY : NAN);
        if (block_types[i] == GGML_MXFP4)
            data[40 * bytes / VOCAB] = 254;
        tiny_model_build(&t, &b);
        gguf_build_tensor(&b, "output.weight", block_types[i], 2, (uint64_t[]){ 256, VOCAB }, data, bytes);
        snprintf(text, sizeof text, "bad.gguf: tensor \"output.weight\": a scale of a %s block is not a finite number",
                 f->name);
        refused(&b, -EINVAL, text);
    }
}

Test(model, tensors_that_do_not_fit_together_are_refused_with_numbers)
{
    struct tiny_model t = tiny_model_default;
    struct gguf_build b = GGUF_BUILD_INIT;

    tiny_model_build(&t, &b);
    gguf_build_tensor(&b, "output.weight", GGML_F32, 2, (uint64_t[]){ 64, 70 }, NULL, 4 * 64 * 70);
    refused(&b, -EINVAL,
            "bad.gguf: tensor \"output.weight\" is 64 x 70 x 1 x 1 where 64 x 75 is expected");
    t.n_heads = 5;
    tiny_model_build(&t, &b);
    refused(&b, -EINVAL, "bad.gguf: 5 query heads can not share 2 key/value heads evenly");
    gguf_build_str(&b, "general.architecture", "llama");
    gguf_build_u32(&b, "llama.block_count", 1);
    gguf_build_u32(&b, "llama.context_length", 64);
    gguf_build_u32(&b, "llama.embedding_length", 64);
    gguf_build_u32(&b, "llama.feed_forward_length", 64);
    gguf_build_f32(&b, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_build_u32(&b, "llama.attention.head_count", 4);
    gguf_build_u32(&b, "llama.attention.value_length", 32);
    refused(&b, -ENOTSUP, "bad.gguf: heads of 16 with values of 32 are not supported: both must be the same");
}

Test(model, a_missing_tensor_is_named)
{
    struct gguf_build b = GGUF_BUILD_INIT;

    gguf_build_str(&b, "general.architecture", "llama");
    gguf_build_u32(&b, "llama.block_count", 1);
    gguf_build_u32(&b, "llama.context_length", 64);
    gguf_build_u32(&b, "llama.embedding_length", 64);
    gguf_build_u32(&b, "llama.feed_forward_length", 64);
    gguf_build_u32(&b, "llama.attention.head_count", 4);
    gguf_build_f32(&b, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    refused(&b, -EINVAL, "bad.gguf: tensor \"blk.0.attn_norm.weight\" is missing");
}

Test(model, a_wrong_instruction_set_or_number_of_threads_is_an_error)
{
    struct model_options isa = { .isa = "sse9" }, threads = { .threads = 100000 };
    struct gguf_build b = GGUF_BUILD_INIT;
    struct err err = { 0 };

    tiny_model_build(&tiny_model_default, &b);
    cr_expect(eq(int, open_built(&b, &isa, &err), -ENOTSUP));
    err_clear(&err);
    tiny_model_build(&tiny_model_default, &b);
    cr_expect(eq(int, open_built(&b, &threads, &err), -EINVAL));
    cr_expect(eq(str, err.text, "100000 threads are above the limit of 256"));
}
