/* A row's bits depend on its own sequence only, for every table that this machine runs.
 *
 * The truth of a table is each sequence alone on one thread: its prompt in pieces as large as a pass takes, then what it
 * generates, a row at a time. Every other way has to give the same logits at every position: rows of one sequence or of many,
 * prompts in pieces of any length, generated tokens again many at a time (as after a preemption, or where they were proposed),
 * both kinds in one pass, on any number of threads, with every type of cache. What the model may choose by the number of rows
 * has a border at 8 and 9, at 47 and 48 rows, so these are tried. */
#include "base/err.h"
#include "gen/cpu/kernels.h"
#include "gen/kv.h"
#include "gen/model_in.h"
#include "tests/gen/rand.h"
#include "tests/gen/tiny_model.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <string.h>

enum {
    LINES = 48, VOCAB = 75,
    LONG_PROMPT = 530, LONG_GENERATED = 98,         /* of line 0 */
    SHORT_GENERATED = 4,
    MAX_POSITIONS = LONG_PROMPT + LONG_GENERATED, MAX_PAGES = (MAX_POSITIONS + KV_PAGE - 1) / KV_PAGE,
    SHORT_PAGES = 5,
};

/* A sequence. */
struct line {
    uint32_t n_prompt, n;                           /* positions: prompt, all */
    uint32_t done;
    uint32_t pages[MAX_PAGES];
    float want[MAX_POSITIONS][VOCAB];
};

struct bed {
    struct buf file;
    struct gguf *gguf;
    struct model *model;
    struct kv *kv;
    bool recording;
    uint64_t crews;                                 /* not 0: drawn from it, how many threads each pass takes, of either kind */
    bool apart;                                     /* prompts are read a layer at a time, and others generate in between */
    const char *way;                                /* what is tried */
};

static struct line lines[LINES];

struct piece { struct line *line; uint32_t n; };

static void bed_init(struct bed *b, const struct tiny_model *t, const char *isa, uint32_t threads, enum kv_type type)
{
    const struct model_options options = { .threads = threads, .isa = isa };
    struct gguf_build build = GGUF_BUILD_INIT;
    const struct model_shape *s;
    struct err err = { 0 };
    uint32_t next = 0;

    *b = (struct bed){ 0 };
    tiny_model_build(t, &build);
    gguf_build_finish(&build, &b->file);
    cr_assert(zero(int, gguf_open_memory("tiny.gguf", b->file.data, b->file.len, &b->gguf, &err)), "%s", err_text(&err));
    cr_assert(zero(int, model_open(b->gguf, &options, &b->model, &err)), "%s", err_text(&err));
    s = model_shape(b->model);
    cr_assert(zero(int, kv_open(&(struct kv_shape){ s->n_layers, s->n_kv_heads, s->head_dim, MAX_PAGES + LINES * SHORT_PAGES, type },
                                &b->kv, &err)));
    for (uint32_t i = 0; i < LINES; i++) {
        lines[i].n_prompt = i ? 3 + i * 11 % 60 : LONG_PROMPT;
        lines[i].n = lines[i].n_prompt + (i ? SHORT_GENERATED : LONG_GENERATED);
    }
    /* Pages of the sequences lie between one another. */
    for (uint32_t p = 0; p < MAX_PAGES; p++)
        for (uint32_t i = 0; i < (p < SHORT_PAGES ? LINES : 1); i++)
            lines[i].pages[p] = next++;
}

static void bed_fini(struct bed *b)
{
    kv_close(b->kv);
    model_close(b->model);
    gguf_close(b->gguf);
    buf_fini(&b->file);
}

static int32_t token(const struct line *l, uint32_t pos)
{
    const uint32_t seq = (uint32_t)(l - lines);

    return (int32_t)((pos * 31 + seq * 17 + pos * pos % 7) % VOCAB);
}

static bool generates(const struct line *l) { return l->done >= l->n_prompt; }

static uint32_t left(const struct line *l) { return (generates(l) ? l->n : l->n_prompt) - l->done; }

/* As they change where cores are taken away. */
static void change_crews(struct bed *b)
{
    crew_init(&b->model->reading, 1 + rand_below(&b->crews, model_threads(b->model)));
    crew_init(&b->model->generating, 1 + rand_below(&b->crews, model_threads(b->model)));
}

static void forward(struct bed *b, const struct model_row *rows, size_t n)
{
    const uint32_t n_layers = model_shape(b->model)->n_layers;
    size_t n_generated = 0, at = 0, to;

    while (n_generated < n && !rows[n_generated].prompt)
        n_generated++;
    if (b->crews)
        change_crews(b);
    if (!b->apart || !model_reads(b->model) || n_generated == n) {
        model_forward(b->model, b->kv, rows, n);
        return;
    }
    for (uint32_t i = 0; i < n_layers; i++, at = to) {
        to = n_generated * (i + 1) / n_layers;
        if (b->crews)
            change_crews(b);
        model_read(b->model, b->kv, rows + n_generated, n - n_generated, i, i + 1);
        model_forward(b->model, b->kv, rows + at, to - at);
    }
}

/* The next rows of some sequences as one pass: those that generate come first. */
static void pass(struct bed *b, const struct piece *pieces, size_t n)
{
    static struct model_row rows[MODEL_MAX_ROWS];
    static float got[MODEL_MAX_ROWS][VOCAB];
    size_t n_rows = 0;

    for (size_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < pieces[i].n; k++, n_rows++) {
            const struct line *l = pieces[i].line;

            rows[n_rows] = (struct model_row){
                .token = token(l, l->done + k), .pos = l->done + k, .pages = l->pages, .logits = got[n_rows],
                .prompt = !generates(l),
            };
        }
    forward(b, rows, n_rows);
    n_rows = 0;
    for (size_t i = 0; i < n; i++) {
        struct line *l = pieces[i].line;

        for (uint32_t k = 0; k < pieces[i].n; k++, n_rows++, l->done++)
            if (b->recording)
                memcpy(l->want[l->done], got[n_rows], sizeof got[0]);
            else
                cr_assert(zero(int, memcmp(l->want[l->done], got[n_rows], sizeof got[0])), "%s, %s: sequence %td, position %u",
                          model_isa(b->model), b->way, l - lines, l->done);
    }
}

/* Rows of one sequence up to position `to`, `most` at a time. */
static void alone(struct bed *b, struct line *l, uint32_t to, uint32_t most)
{
    while (l->done < to) {
        uint32_t n = left(l) < most ? left(l) : most;

        n = n < to - l->done ? n : to - l->done;
        pass(b, &(struct piece){ l, n }, 1);
    }
}

static void record(struct bed *b, const struct tiny_model *t, const char *isa, enum kv_type type)
{
    bed_init(b, t, isa, 1, type);
    b->recording = true;
    for (uint32_t i = 0; i < LINES; i++) {
        lines[i].done = 0;
        alone(b, &lines[i], lines[i].n_prompt, MODEL_MAX_ROWS);
        alone(b, &lines[i], lines[i].n, 1);
    }
    b->recording = false;
}

static void rewind_all(uint32_t to)
{
    for (uint32_t i = 0; i < LINES; i++)
        lines[i].done = to < lines[i].n_prompt ? to : lines[i].n_prompt;
}

/* One row of each of n sequences. */
static void side_by_side(struct bed *b)
{
    static const uint32_t counts[] = { 1, 8, 9, 47, 48 };
    struct piece pieces[LINES];

    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        b->way = "side by side";
        rewind_all(MAX_POSITIONS);
        for (uint32_t step = 0; step < SHORT_GENERATED; step++) {
            for (uint32_t i = 0; i < counts[c]; i++)
                pieces[i] = (struct piece){ &lines[LINES - 1 - i], 1 };
            pass(b, pieces, counts[c]);
        }
    }
}

static void again(struct bed *b)
{
    static const uint32_t counts[] = { 1, 2, 8, 9, 47, 48, LONG_GENERATED };

    b->way = "generated rows again, many at a time";
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        lines[0].done = lines[0].n_prompt;
        alone(b, &lines[0], lines[0].n, counts[c]);
    }
}

static void in_pieces(struct bed *b)
{
    static const uint32_t chunks[] = { 1, 7, 16, 33, 128, 512 };

    for (size_t c = 0; c < sizeof chunks / sizeof chunks[0]; c++) {
        b->way = "a prompt in pieces";
        lines[0].done = 0;
        alone(b, &lines[0], LONG_PROMPT, chunks[c]);
        alone(b, &lines[0], LONG_PROMPT + 3, 1);    /* what it left in the cache */
    }
}

static uint32_t draw(uint64_t *rng, uint32_t most)
{
    static const uint32_t liked[] = { 1, 1, 1, 7, 8, 9, 16, 33, 47, 48, 64, 128, 400 };
    const uint32_t n = liked[rand_below(rng, sizeof liked / sizeof liked[0])];

    return n < most ? n : most;
}

/* Everything from the start, in passes of random rows of random sequences. */
static void mixed(struct bed *b, uint64_t seed)
{
    uint64_t rng = seed;
    bool more = true;

    b->way = b->apart ? "prompts apart" : "mixed passes";
    rewind_all(0);
    while (more) {
        const uint32_t first = rand_below(&rng, LINES), among = 1 + rand_below(&rng, LINES);
        struct piece pieces[LINES];
        uint32_t room = MODEL_MAX_ROWS;
        size_t n = 0;

        for (int prompts = 0; prompts < 2; prompts++)
            for (uint32_t k = 0; k < among; k++) {
                struct line *l = &lines[(first + k) % LINES];
                const uint32_t most = left(l) < room ? left(l) : room;

                if (generates(l) == prompts || !most || rand_below(&rng, 4) == 0)
                    continue;
                pieces[n] = (struct piece){ l, draw(&rng, most) };
                room -= pieces[n++].n;
            }
        if (n)
            pass(b, pieces, n);
        more = false;
        for (uint32_t i = 0; i < LINES; i++)
            more |= lines[i].done < lines[i].n;
    }
}

static void all_ways(struct bed *b)
{
    in_pieces(b);
    again(b);
    mixed(b, 1);                        /* leaves every prompt in the cache */
    side_by_side(b);
    b->apart = true;
    mixed(b, 2);
    b->apart = false;
}

/* Passes that differ in the number of threads, in one model. */
static void change_threads(struct bed *b)
{
    b->crews = 3;
    in_pieces(b);
    again(b);
    mixed(b, 4);
    side_by_side(b);
    b->apart = true;
    mixed(b, 5);
    b->apart = false;
    b->crews = 0;
}

/* Wide enough for blocks of 256. */
static const struct tiny_model wide = {
    .n_layers = 1, .n_heads = 4, .n_kv_heads = 1, .head_dim = 64, .dim = 256, .ffn_dim = 256,
    .vocab_size = VOCAB, .n_types = 1, .seed = 5,
};

static void try_model(const struct tiny_model *t, const char *isa, uint32_t max_threads, enum kv_type type)
{
    struct bed b;

    record(&b, t, isa, type);
    for (uint32_t threads = 1; threads <= max_threads; threads++) {
        if (threads > 1)
            bed_init(&b, t, isa, threads, type);
        cr_assert(eq(u32, model_threads(b.model), threads));
        /* More threads than cores take turns, which is slow: they meet often enough in these. */
        if (threads <= 2) {
            all_ways(&b);
            if (threads == 2 && type == KV_F16)
                change_threads(&b);
        } else {
            b.way = "threads";
            lines[0].done = 0;
            alone(&b, &lines[0], LONG_PROMPT, 128);
            alone(&b, &lines[0], LONG_PROMPT + LONG_GENERATED, 9);
            b.crews = threads;
            lines[0].done = 0;
            alone(&b, &lines[0], LONG_PROMPT, 128);
            alone(&b, &lines[0], LONG_PROMPT + LONG_GENERATED, 9);
        }
        bed_fini(&b);
    }
}

Test(determinism, a_row_depends_on_its_own_sequence_only)
{
    static const uint32_t types[] = { GGML_Q4_1, GGML_Q8_0, GGML_BF16, GGML_F16, GGML_F32, GGML_Q5_0 };

    for (size_t i = 0; kernels_at(i); i++)
        for (size_t t = 0; t < (i ? sizeof types / sizeof types[0] : 1); t++) {     /* plain C is slow: one type is enough */
            struct tiny_model tiny = tiny_model_default;

            tiny.types[0] = types[t];
            try_model(&tiny, kernels_at(i)->name, t == 0 ? 4 : 2, KV_F16);
        }
}

Test(determinism, so_it_is_with_types_of_large_blocks)
{
    static const uint32_t types[] = { GGML_Q4_K, GGML_Q6_K, GGML_IQ4_XS };

    for (size_t i = 1; kernels_at(i); i++)
        for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
            struct tiny_model tiny = wide;

            tiny.types[0] = types[t];
            try_model(&tiny, kernels_at(i)->name, 1, KV_F16);
        }
}

Test(determinism, so_it_is_with_every_type_of_cache)
{
    for (size_t i = 1; kernels_at(i); i++)
        for (enum kv_type type = KV_BF16; type < KV_TYPES; type++) {
            struct tiny_model tiny = tiny_model_default;

            tiny.types[0] = GGML_Q4_1;
            try_model(&tiny, kernels_at(i)->name, 2, type);
        }
}

/* What is read and what is generated may be other bits, for other kernels computed it; where a table has one way only they are the same. */
Test(determinism, without_kernels_for_prompts_both_ways_are_one)
{
    for (size_t i = 1; kernels_at(i); i++) {
        struct tiny_model tiny = tiny_model_default;
        struct bed b;

        if (kernels_at(i)->prompt)
            continue;
        tiny.types[0] = GGML_Q4_1;
        record(&b, &tiny, kernels_at(i)->name, KV_F16);
        b.way = "all of it as generated rows";
        lines[0].n_prompt = 0;
        lines[0].done = 0;
        alone(&b, &lines[0], MAX_POSITIONS, 48);
        bed_fini(&b);
    }
}
