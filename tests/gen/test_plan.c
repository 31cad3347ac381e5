/* What a plan says of a model is what an engine takes. */
#include "base/err.h"
#include "gen/engine.h"
#include "gen/kv.h"
#include "gen/ngram.h"
#include "gen/plan.h"
#include "gen/sampler.h"
#include "loaders/gguf.h"
#include "tests/gen/play.h"
#include "tests/gen/tiny_file.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[64], path[PATH_MAX];

static void tiny(void)
{
    snprintf(folder, sizeof folder, "/tmp/plan-XXXXXX");
    cr_assert(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/tiny.gguf", folder);
    tiny_file_write(path, &(struct tiny_file){ .seed = 5 });
}

static void gone(void)
{
    unlink(path);
    rmdir(folder);
}

TestSuite(plan, .init = tiny, .fini = gone, .timeout = 600);

static struct plan plan_of(const char *file, struct plan_ask ask)
{
    CLEANUP(gguf_close) struct gguf *g = NULL;
    struct err err = { 0 };
    struct plan p;

    cr_assert(zero(int, gguf_open(file, &g, &err)), "%s", err_text(&err));
    cr_assert(zero(int, plan_make(g, &ask, &p, &err)), "%s", err_text(&err));
    return p;
}

/* With room for everything. */
static struct plan_ask ample(uint32_t context, uint32_t parallel)
{
    return (struct plan_ask){ .threads = 2, .context = context, .parallel = parallel, .replicas = 1, .room = UINT64_MAX };
}

/* Room for what one replica has beside KV, and so many pages after the engine's half. */
static uint64_t room_for(const struct plan *p, uint64_t pages) { return p->fixed_bytes + 2 * pages * p->page_bytes; }

static void hear(void *user, const char *text) { snprintf(user, 2 * PLAN_TEXT, "%s", text); }

static void expect_as_loaded(const char *file, uint32_t context, uint32_t parallel, enum kv_type kv_type)
{
    char heard[2 * PLAN_TEXT] = "", line[2 * PLAN_TEXT];
    struct plan_ask ask = ample(context, parallel);
    struct err err = { 0 };
    struct plan p;
    PLAY_BOX box;

    ask.kv_type = kv_type;
    p = plan_of(file, ask);
    cr_assert(zero(int, play_open(&box, (struct engine_config){
        .path = file, .context = context, .parallel = parallel, .threads = 2, .kv_type = kv_type_name(kv_type),
        .chat_template = "auto", .say = hear, .say_user = heard,
    }, &err)), "%s", err_text(&err));
    plan_line(&p, line);
    cr_expect(eq(int, strncmp(heard, line, strcspn(line, ":")), 0), "an engine says its plan before it loads: \"%s\"", heard);
    cr_expect(eq(u64, p.size.weight_bytes, engine_info(box.e)->weight_bytes));
    cr_expect(eq(u64, p.kv_bytes, engine_info(box.e)->kv_bytes));
    cr_expect(eq(u32, p.ask.context, engine_info(box.e)->context_length));
    cr_expect(eq(u32, p.size.shape.vocab_size, engine_info(box.e)->vocab_size));
    cr_expect(eq(int, p.verdict, PLAN_FITS));
}

Test(plan, its_figures_are_those_of_an_engine) { expect_as_loaded(path, 512, 3, KV_F16); }

Test(plan, its_figures_are_those_of_an_engine_with_keys_and_values_in_8_bits)
{
    struct plan_ask ask = ample(512, 3);
    const uint64_t halves = plan_of(path, ask).kv_bytes;

    ask.kv_type = KV_Q8;
    cr_expect(eq(u64, plan_of(path, ask).kv_bytes, halves / 16 * 9));
    expect_as_loaded(path, 512, 3, KV_Q8);
}

Test(plan, a_context_that_nobody_asked_for_is_the_models_own) { expect_as_loaded(path, 0, 2, KV_F16); }

Test(plan, its_figures_are_those_of_an_engine_with_the_default_model)
{
    const char *given = getenv("FASTCHAT_SMOLLM2"), *cache = getenv("FASTCHAT_CACHE"), *home = getenv("HOME"), *ci = getenv("CI");
    char real[PATH_MAX];

    if (given)
        snprintf(real, sizeof real, "%s", given);
    else
        snprintf(real, sizeof real, "%s%s/models/SmolLM2-135M-Instruct.Q4_1.gguf", cache ? cache : home ? home : "",
                 cache ? "" : "/.cache/fastchat");
    if (access(real, R_OK) != 0) {
        cr_assert(not(ci && strcmp(ci, "true") == 0), "the model is not there: %s", real);
        cr_skip_test("the model is not there: %s (./quickstart fetches it)", real);
    }
    expect_as_loaded(real, 512, 4, KV_F16);
}

Test(plan, scratch_and_weights_are_counted_as_they_are_taken)
{
    const struct plan one = plan_of(path, ample(64, 1)), two = plan_of(path, ample(64, 2));
    struct plan_ask ask = ample(64, 1);

    const uint32_t vocab = one.size.shape.vocab_size, samplers = plan_samplers(two.size.threads, 2) - 1;

    cr_expect(eq(u64, two.fixed_bytes - one.fixed_bytes, 4ull * vocab + samplers * sampler_work_bytes(vocab)));
    cr_expect(eq(u64, one.total_bytes, one.fixed_bytes + 4 * one.page_bytes));
    ask.threads = 8;
    cr_expect(gt(u64, plan_of(path, ask).size.scratch_bytes, one.size.scratch_bytes));
}

/* Some have kernels of their own for prompts, and those take scratch. */
Test(plan, it_is_one_for_an_instruction_set)
{
    struct plan_ask ask = ample(64, 1);
    uint64_t plain, scratch;

    setenv("FASTCHAT_ISA", "mmx", 1);
    ask.isa = "scalar";
    plain = plan_of(path, ask).size.scratch_bytes;
    for (size_t i = 0; kernels_at(i); i++) {
        ask.isa = kernels_at(i)->name;
        cr_expect(eq(str, (char *)plan_of(path, ask).ask.isa, (char *)ask.isa));
        scratch = plan_of(path, ask).size.scratch_bytes;
        cr_expect(eq(int, scratch > plain, kernels_at(i)->prompt != NULL), "%s", ask.isa);
    }
}

Test(plan, speculation_takes_logits_and_a_lookup_or_a_model_with_its_own_pages)
{
    CLEANUP(gguf_close) struct gguf *draft = NULL;
    struct plan_ask ask = ample(64, 2);
    const struct plan off = plan_of(path, ask);
    const uint64_t logits = 4ull * DRAFT_ROWS * off.size.shape.vocab_size;
    struct plan p;

    ask.speculative = DRAFT_NGRAM;
    p = plan_of(path, ask);
    cr_expect(eq(u64, p.draft_bytes, logits + 2 * ngram_bytes(64)));
    cr_expect(eq(u64, p.fixed_bytes, off.fixed_bytes + p.draft_bytes));
    cr_expect(eq(u64, p.page_bytes, off.page_bytes));

    cr_assert(zero(int, gguf_open(path, &draft, NULL)));
    ask.speculative = DRAFT_MODEL;
    ask.draft = draft;
    p = plan_of(path, ask);
    cr_expect(eq(u64, p.draft_bytes, 2 * logits + off.size.weight_bytes + off.size.scratch_bytes));
    cr_expect(eq(u64, p.page_bytes, 2 * off.page_bytes));
    cr_expect(eq(u64, p.total_bytes, p.fixed_bytes + 8 * p.page_bytes));
}

Test(plan, what_room_there_is_decides)
{
    struct plan_ask ask = ample(64, 2);
    const struct plan all = plan_of(path, ask);
    struct plan p;

    ask.room = room_for(&all, 8);
    p = plan_of(path, ask);
    cr_expect(eq(int, p.verdict, PLAN_FITS));
    cr_expect(eq(u32, p.most_context, 64));
    cr_expect(eq(u32, p.most_parallel, 2));

    ask.room--;
    p = plan_of(path, ask);
    cr_expect(eq(int, p.verdict, PLAN_WAITS));
    cr_expect(eq(u32, p.most_context, 3 * KV_PAGE));
    cr_expect(eq(u32, p.most_parallel, 1));

    ask.room = room_for(&all, 3);
    p = plan_of(path, ask);
    cr_expect(eq(int, p.verdict, PLAN_SHORTER));
    cr_expect(eq(u64, p.pages_most, 3));

    ask.room = room_for(&all, 1) - 1;
    cr_expect(eq(int, plan_of(path, ask).verdict, PLAN_REFUSED));
    ask.room = 0;
    cr_expect(eq(int, plan_of(path, ask).verdict, PLAN_REFUSED));
}

Test(plan, a_limit_is_each_replicas_own_and_room_that_of_all)
{
    struct plan_ask ask = ample(64, 1);
    const struct plan one = plan_of(path, ask);

    ask.replicas = 3;
    ask.limit = room_for(&one, 4);
    cr_expect(eq(int, plan_of(path, ask).verdict, PLAN_FITS));
    ask.limit--;
    cr_expect(eq(int, plan_of(path, ask).verdict, PLAN_SHORTER));
    ask.limit = 0;
    ask.room = 3 * one.fixed_bytes - 2 * one.size.weight_bytes + 4 * 4 * one.page_bytes;
    cr_expect(eq(int, plan_of(path, ask).verdict, PLAN_FITS));
    cr_expect(eq(u64, plan_of(path, ask).total_bytes, 3 * one.total_bytes - 2 * one.size.weight_bytes));
    ask.room--;
    cr_expect(eq(int, plan_of(path, ask).verdict, PLAN_SHORTER));
}

Test(plan, what_it_says_would_fit_does)
{
    struct plan_ask ask = ample(512, 16);
    const struct plan all = plan_of(path, ask);
    char text[PLAN_TEXT];
    struct plan p;

    ask.room = room_for(&all, 100);
    p = plan_of(path, ask);
    cr_assert(eq(int, p.verdict, PLAN_WAITS));
    cr_expect(strstr(plan_text(&p, text), "a context of 96 with parallel 16 fits, or parallel 3 with a context of 512") != NULL, "%s", text);
    ask.context = p.most_context;
    cr_expect(eq(int, plan_of(path, ask).verdict, PLAN_FITS));
    ask.context++;
    cr_expect(ne(int, plan_of(path, ask).verdict, PLAN_FITS));
    ask.context = 512;
    ask.parallel = p.most_parallel;
    cr_expect(eq(int, plan_of(path, ask).verdict, PLAN_FITS));
    ask.parallel++;
    cr_expect(ne(int, plan_of(path, ask).verdict, PLAN_FITS));
}

Test(plan, tensors_are_counted_by_type)
{
    CLEANUP(gguf_close) struct gguf *g = NULL;
    struct plan_type types[PLAN_MAX_TYPES];
    uint64_t n = 0, bytes = 0;
    size_t n_types;

    cr_assert(zero(int, gguf_open(path, &g, NULL)));
    n_types = plan_types(g, types);
    for (size_t i = 0; i < n_types; i++) {
        n += types[i].n;
        bytes += types[i].bytes;
        cr_expect(gt(dbl, types[i].kept_bits, 0.0));
    }
    cr_expect(eq(u64, n, gguf_n_tensors(g)));
    cr_expect(lt(u64, bytes, gguf_bytes(g)));
}
