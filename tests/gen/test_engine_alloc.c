/* A pass allocates nothing: malloc and its like are ours here and count calls
 * from other threads than the caller's. Not with sanitizers, which need them. */
#include "gen/engine.h"
#include "tests/gen/play.h"
#include "tests/gen/tiny_file.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

static pthread_t caller;
static _Atomic bool counting;
static _Atomic unsigned counted;

static void count(void)
{
    if (counting && !pthread_equal(pthread_self(), caller))
        counted++;
}

void *malloc(size_t size) { return count(), __libc_malloc(size); }
void *calloc(size_t n, size_t size) { return count(), __libc_calloc(n, size); }
void *realloc(void *p, size_t size) { return count(), __libc_realloc(p, size); }
void *aligned_alloc(size_t alignment, size_t size) { return count(), __libc_memalign(alignment, size); }

static struct play play[8];

/* Some of it equal, some of it not. */
static void run(struct play_box *box, unsigned seed)
{
    static const char *const stops[] = { "\n\n\n\n\n\n", "#####" };
    static int32_t prompt[100], other[100];

    for (int k = 0; k < 100; k++)
        other[k] = (int32_t)(k * seed) % 250;
    memset(prompt, 0, sizeof prompt);
    memcpy(prompt + 40, other, 60 * sizeof prompt[0]);

    for (int i = 0; i < 8; i++) {
        play[i] = (struct play){ .req = {
            .tokens = i % 3 ? prompt : other, .n_tokens = (size_t)(100 - i), .max_tokens = 150,
            .sample = sample_defaults, .stop = stops, .n_stop = 2, .n_logprobs = i % 2 ? 3 : -1,
            .ignore_end = true,
        } };
        play[i].req.sample.seed = seed + (unsigned)i;
        play[i].req.sample.has_seed = true;
        play[i].req.sample.top_p = 0.95f;
        play[i].req.sample.repetition_penalty = 1.1f;
        play[i].req.sample.dry_multiplier = i % 2 ? 0.8f : 0;
        play[i].req.sample.repeat_last_n = i % 3 ? -1 : 20;
        play[i].req.sample.typical_p = i % 4 ? 1 : 0.9f;
        play[i].req.sample.mirostat = i > 5 ? i - 5 : 0;
        play[i].req.sample.xtc_probability = i % 4 == 1 ? 0.5f : 0;
        cr_assert(zero(int, play_submit(box, &play[i], NULL)));
    }
    play_wait(box, play, 8);
    play_fini(play, 8);
}

static char folder[] = "/tmp/fastchat-alloc-XXXXXX", path[64];

static void setup(void)
{
    cr_assert(ne(ptr, mkdtemp(folder), NULL));
    snprintf(path, sizeof path, "%s/tiny.gguf", folder);
    tiny_file_write(path, &(struct tiny_file){ .seed = 3 });
}

static void teardown(void)
{
    unlink(path);
    rmdir(folder);
}

TestSuite(engine_alloc, .init = setup, .fini = teardown, .timeout = 300);

static void expect_none(const char *speculative)
{
    struct engine_stats stats;
    PLAY_BOX box;

    caller = pthread_self();
    cr_assert(zero(int, play_open(&box, (struct engine_config){ .path = path, .parallel = 8, .threads = 2, .kv_tokens = 1000,
                                                               .chat_template = "chatml", .speculative = speculative,
                                                               .draft_model = path }, NULL)));
    run(&box, 1);
    counting = true;
    run(&box, 100);
    counting = false;
    engine_stats(box.e, &stats);
    cr_expect(zero(uint, counted));
    cr_expect(eq(u64, stats.allocations, 0));
    cr_expect(gt(u64, stats.preemptions, 0));
    cr_expect(gt(u64, stats.cached_tokens, 0));
    cr_expect(eq(u64, stats.generated_tokens, 2 * 8 * 150));
    cr_expect(eq(int, stats.drafted_tokens > 0, strcmp(speculative, "off") != 0));
}

Test(engine_alloc, a_pass_allocates_nothing) { expect_none("off"); }

Test(engine_alloc, a_pass_with_a_lookup_allocates_nothing) { expect_none("ngram"); }

Test(engine_alloc, a_pass_with_a_draft_model_allocates_nothing) { expect_none("draft"); }
