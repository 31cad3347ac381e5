/* Which positions a layer that slides sees: over one layer, a position's logits are the
 * same bits when a token before its window changes, and others when one within does. */
#include "base/err.h"
#include "gen/kv.h"
#include "gen/model.h"
#include "tests/loaders/gguf_build.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { DIM = 32, FFN = 32, HEADS = 2, KV_HEADS = 1, HEAD = 16, VOCAB = 64, LONG = 420, PAGES = (LONG + KV_PAGE - 1) / KV_PAGE };

static uint64_t seed;

static void add(struct gguf_build *b, const char *name, uint32_t n_dims, uint64_t cols, uint64_t rows)
{
    static float data[VOCAB * DIM];

    for (uint64_t i = 0; i < cols * rows; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        data[i] = (float)(seed >> 40) / (1 << 24) - 0.5f + (n_dims == 1 ? 1 : 0);
    }
    gguf_build_tensor(b, name, GGML_F32, n_dims, (uint64_t[]){ cols, rows }, data, 4 * cols * rows);
}

/* Gemma 2 of one layer. */
static void build(struct gguf_build *b, uint32_t window)
{
    seed = 1;
    gguf_build_str(b, "general.architecture", "gemma2");
    gguf_build_u32(b, "gemma2.block_count", 1);
    gguf_build_u32(b, "gemma2.context_length", 1024);
    gguf_build_u32(b, "gemma2.embedding_length", DIM);
    gguf_build_u32(b, "gemma2.feed_forward_length", FFN);
    gguf_build_u32(b, "gemma2.attention.head_count", HEADS);
    gguf_build_u32(b, "gemma2.attention.head_count_kv", KV_HEADS);
    gguf_build_u32(b, "gemma2.attention.key_length", HEAD);
    gguf_build_u32(b, "gemma2.attention.value_length", HEAD);
    gguf_build_f32(b, "gemma2.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_build_u32(b, "gemma2.attention.sliding_window", window);
    add(b, "token_embd.weight", 2, DIM, VOCAB);
    add(b, "output_norm.weight", 1, DIM, 1);
    add(b, "blk.0.attn_norm.weight", 1, DIM, 1);
    add(b, "blk.0.attn_q.weight", 2, DIM, HEADS * HEAD);
    add(b, "blk.0.attn_k.weight", 2, DIM, KV_HEADS * HEAD);
    add(b, "blk.0.attn_v.weight", 2, DIM, KV_HEADS * HEAD);
    add(b, "blk.0.attn_output.weight", 2, HEADS * HEAD, DIM);
    add(b, "blk.0.post_attention_norm.weight", 1, DIM, 1);
    add(b, "blk.0.ffn_norm.weight", 1, DIM, 1);
    add(b, "blk.0.ffn_gate.weight", 2, DIM, FFN);
    add(b, "blk.0.ffn_up.weight", 2, DIM, FFN);
    add(b, "blk.0.ffn_down.weight", 2, FFN, DIM);
    add(b, "blk.0.post_ffw_norm.weight", 1, DIM, 1);
}

static int open_built(struct gguf_build *b, struct model **ret, struct err *err)
{
    CLEANUP(gguf_close) struct gguf *file = NULL;
    BUF_LOCAL bytes = BUF_INIT;

    gguf_build_finish(b, &bytes);
    cr_assert(zero(int, gguf_open_memory("window.gguf", bytes.data, bytes.len, &file, err)), "%s", err_text(err));
    return model_open(file, &(struct model_options){ .threads = 2 }, ret, err);
}

struct bed {
    struct model *model;
    struct kv *kv;
    uint32_t pages[PAGES];
    int32_t tokens[LONG];
    float logits[2][VOCAB];
};

static void bed_init(struct bed *b, uint32_t window)
{
    struct gguf_build build_ = GGUF_BUILD_INIT;
    struct err err = { 0 };

    *b = (struct bed){ 0 };
    build(&build_, window);
    cr_assert(zero(int, open_built(&build_, &b->model, &err)), "%s", err_text(&err));
    cr_assert(zero(int, kv_open(&(struct kv_shape){ 1, KV_HEADS, HEAD, PAGES }, &b->kv, &err)));
    for (uint32_t i = 0; i < PAGES; i++)
        b->pages[i] = PAGES - 1 - i;
    for (uint32_t i = 0; i < LONG; i++)
        b->tokens[i] = (int32_t)(i * 7 % VOCAB);
}

static void bed_fini(struct bed *b)
{
    kv_close(b->kv);
    model_close(b->model);
}

/* Logits of position `at`: in one pass from the start, or its row behind the others. */
static void run(struct bed *b, uint32_t at, bool alone, float *logits)
{
    static struct model_row rows[LONG];

    for (uint32_t i = 0; i <= at; i++)
        rows[i] = (struct model_row){ b->tokens[i], i, b->pages, i == at ? logits : NULL };
    if (alone)
        model_forward(b->model, b->kv, rows, at);
    model_forward(b->model, b->kv, alone ? rows + at : rows, alone ? 1 : at + 1);
}

static bool moved(struct bed *b, uint32_t at, uint32_t changed, bool alone)
{
    run(b, at, alone, b->logits[0]);
    b->tokens[changed] = (b->tokens[changed] + 1) % VOCAB;
    run(b, at, alone, b->logits[1]);
    b->tokens[changed] = (b->tokens[changed] + VOCAB - 1) % VOCAB;
    return memcmp(b->logits[0], b->logits[1], sizeof b->logits[0]) != 0;
}

Test(windows, a_position_sees_itself_and_so_many_before_it_less_one)
{
    static const uint32_t windows[] = { 1, 5, 16, 128, 130, 300 }, positions[] = { 17, 127, 128, 143, 144, 255, 256, 301, 419 };

    for (size_t w = 0; w < sizeof windows / sizeof windows[0]; w++) {
        struct bed b;

        bed_init(&b, windows[w]);
        for (size_t i = 0; i < sizeof positions / sizeof positions[0]; i++)
            for (int alone = 0; alone < 2; alone++) {
                const uint32_t at = positions[i], oldest = at + 1 - windows[w];

                if (at + 1 < windows[w])
                    continue;
                cr_expect(moved(&b, at, oldest, alone), "window %u position %u", windows[w], at);
                cr_expect(not(oldest > 0 && moved(&b, at, oldest - 1, alone)), "window %u position %u", windows[w], at);
            }
        bed_fini(&b);
    }
}

Test(windows, without_one_everything_is_seen)
{
    struct bed b;

    bed_init(&b, 0);
    cr_expect(moved(&b, 419, 0, false));
    bed_fini(&b);
}

Test(windows, a_list_of_layers_that_does_not_fit_is_refused)
{
    static const int32_t two[2] = { 1, 1 };
    struct gguf_build b = GGUF_BUILD_INIT;
    CLEANUP(model_close) struct model *m = NULL;
    struct err err = { 0 };

    build(&b, 16);
    gguf_build_i32s(&b, "gemma2.attention.sliding_window_pattern", two, 2);
    cr_expect(eq(int, open_built(&b, &m, &err), -EINVAL));
    cr_expect(eq(str, err.text, "window.gguf: gemma2.attention.sliding_window_pattern must be 1 truth values"));
    build(&b, 16);
    gguf_build_i32s(&b, "gemma2.attention.sliding_window_pattern", two, 1);
    err_clear(&err);
    cr_expect(zero(int, open_built(&b, &m, &err)), "%s", err_text(&err));
}
