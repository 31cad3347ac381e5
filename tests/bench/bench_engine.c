/* bench_engine.c - how fast the forward pass is, beside a peer on the same file.
 *
 *     bench-engine MODEL.gguf [ROUNDS [THREADS]]
 *     bench-engine --scale MODEL.gguf [ROUNDS [THREADS]]
 *
 * Every round measures the machine (read bandwidth of all threads), then ours,
 * then llama.cpp where $FASTCHAT_LLAMA_BENCH names its llama-bench (and
 * llama-batched-bench lies beside it). On a shared machine absolute numbers say
 * little; the ratio of a round, and the median of the ratios, say something.
 *
 * A peer that does not end within minutes has none of the figures of that round.
 *
 * --scale: ours alone over length and width. read-N: 256 tokens of a prompt behind N; decode-at-N: one stream behind N; streams-N:
 * N of them, each behind a prompt of 100. The best of the rounds.
 *
 * Lines are CSV: what,round,value,unit. Lines with # are for people.
 */
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "gen/cpu/pool.h"
#include "gen/kv.h"
#include "gen/model.h"
#include "loaders/gguf.h"
#include "tests/bench/machine.h"
#include "tests/bench/median.h"

#include <stdio.h>
#include <string.h>

enum {
    PROMPT = 512, DECODE = 128,         /* one sequence */
    CONTEXT = 100, STEPS = 32,          /* many: positions before, tokens of each */
    MAX_SEQUENCES = 64, MAX_ROUNDS = 99, PAGES = (CONTEXT + STEPS) / KV_PAGE + 1,
    LONGEST = 8192, PIECE = 256, LONG_PAGES = LONGEST / KV_PAGE + 2,        /* of sequence 0 */
};

enum what { READ_96M, READ_1G, PREFILL, DECODE_1, DECODE_8, DECODE_32, N_WHAT };
static const struct { const char *name, *unit; } whats[N_WHAT] = {
    { "read-96MiB", "GB/s" },   { "read-1GiB", "GB/s" },    { "prefill-512", "tok/s" },
    { "decode-1", "tok/s" },    { "decode-8", "tok/s" },    { "decode-32", "tok/s" },
};

static double ours[N_WHAT][MAX_ROUNDS], peer[N_WHAT][MAX_ROUNDS], ratio[N_WHAT][MAX_ROUNDS];

struct bench {
    struct model *model;
    struct kv *kv;
    float *logits;                      /* [MAX_SEQUENCES][vocab_size] */
    uint32_t long_pages[LONG_PAGES], pages[MAX_SEQUENCES][PAGES];
    uint32_t threads;
    const char *file, *peer;
    uint64_t hash;                      /* of logits: FNV-1a */
};

static void die(const char *what)
{
    fprintf(stderr, "bench-engine: %s\n", what);
    exit(1);
}

static double seconds_since(uint64_t start_ns) { return (double)(clock_mono_ns() - start_ns) / 1e9; }

/* ---- ours ------------------------------------------------------------ */

/* Takes some of a row's logits into the hash: bits that change elsewhere change them sooner or later. */
static void hash_logits(struct bench *b, const float *logits)
{
    const uint32_t n = model_shape(b->model)->vocab_size;

    for (uint32_t i = 0; i < n; i += 1024) {
        uint32_t bits;

        memcpy(&bits, &logits[i], sizeof bits);
        b->hash = (b->hash ^ bits) * 1099511628211u;
    }
}

static int32_t prompt_token(const struct bench *b, uint32_t i, uint32_t seq)
{
    return (int32_t)((300 + i * 7919 + 13 * seq) % model_shape(b->model)->vocab_size);
}

static const uint32_t *pages_of(const struct bench *b, uint32_t seq) { return seq ? b->pages[seq] : b->long_pages; }

/* Positions [from, from + n) of a sequence as parts of a prompt. */
static void prefill(struct bench *b, uint32_t seq, uint32_t from, uint32_t n, float *logits)
{
    static struct model_row rows[MODEL_MAX_ROWS];

    for (uint32_t i = 0; i < n; i++)
        rows[i] = (struct model_row){
            .token = prompt_token(b, from + i, seq), .pos = from + i, .pages = pages_of(b, seq),
            .logits = i + 1 == n ? logits : NULL, .prompt = true,
        };
    model_forward(b->model, b->kv, rows, n);
}

/* Tokens a second of n sequences that each grow by `steps` from `context`, which is in the cache. By tokens that are known
 * before, like those of the peer's programs: to choose one is the sampler's work. */
static double grow(struct bench *b, uint32_t n, uint32_t context, uint32_t steps)
{
    const uint32_t vocab = model_shape(b->model)->vocab_size;
    struct model_row rows[MAX_SEQUENCES];
    const uint64_t start = clock_mono_ns();

    for (uint32_t i = 0; i < steps; i++) {
        for (uint32_t s = 0; s < n; s++)
            rows[s] = (struct model_row){
                .token = prompt_token(b, context + i, s), .pos = context + i, .pages = pages_of(b, s),
                .logits = b->logits + (size_t)s * vocab,
            };
        model_forward(b->model, b->kv, rows, n);
        for (uint32_t s = 0; s < n; s++)
            hash_logits(b, rows[s].logits);
    }
    return (double)n * steps / seconds_since(start);
}

static double decode(struct bench *b, uint32_t n, uint32_t context, uint32_t steps)
{
    for (uint32_t s = 0; s < n && context; s++)
        prefill(b, s, 0, context, NULL);
    return grow(b, n, context, steps);
}

static void measure_ours(struct bench *b, int round)
{
    uint64_t start;

    b->hash = 14695981039346656037u;
    start = clock_mono_ns();
    prefill(b, 0, 0, PROMPT, b->logits);
    ours[PREFILL][round] = PROMPT / seconds_since(start);
    hash_logits(b, b->logits);
    ours[DECODE_1][round] = decode(b, 1, 0, DECODE);
    ours[DECODE_8][round] = decode(b, 8, CONTEXT, STEPS);
    ours[DECODE_32][round] = decode(b, 32, CONTEXT, STEPS);
}

static void print_best(const char *what, uint32_t n, double *best, double rate)
{
    *best = rate > *best ? rate : *best;
    printf("%s-%u,best,%.1f,tok/s\n", what, n, *best);
    fflush(stdout);
}

static void measure_scale(struct bench *b, int rounds)
{
    static const uint32_t lengths[] = { 512, 1024, 2048, 4096, 8192 - PIECE }, streams[] = { 1, 2, 4, 8, 16, 32, 64 };
    enum { LENGTHS = sizeof lengths / sizeof lengths[0], STREAMS = sizeof streams / sizeof streams[0] };
    double read[LENGTHS] = { 0 }, grown[LENGTHS] = { 0 }, wide[STREAMS] = { 0 };

    for (int r = 0; r < rounds; r++) {
        for (uint32_t i = 0, at = 0; i < LENGTHS; i++) {
            uint64_t start;

            for (; at < lengths[i]; at += PIECE)
                prefill(b, 0, at, PIECE, NULL);
            start = clock_mono_ns();
            prefill(b, 0, at, PIECE, b->logits);
            print_best("read", lengths[i], &read[i], PIECE / seconds_since(start));
            print_best("decode-at", lengths[i], &grown[i], grow(b, 1, lengths[i], STEPS));
        }
        for (uint32_t i = 0; i < STREAMS; i++)
            print_best("streams", streams[i], &wide[i], decode(b, streams[i], CONTEXT, STEPS));
    }
}

/* What a token takes at the least, for a roofline of the whole. */
static void print_facts(const struct bench *b)
{
    const struct model_shape *s = model_shape(b->model);
    const double attn = (double)s->head_real * s->n_heads, kv = (double)s->head_real * s->n_kv_heads;

    printf("weight-bytes,0,%zu,bytes\nlayer-parameters,0,%.0f,\n", model_weight_bytes(b->model),
           s->n_layers * (s->dim * (2 * attn + 2 * kv) + 3.0 * s->dim * s->ffn_dim));
}

/* ---- the peer -------------------------------------------------------- */

/* The number behind `"key":` in a line of JSON, or 0. */
static double number_of(const char *line, const char *key)
{
    char quoted[64];
    const char *at;

    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    at = strstr(line, quoted);
    return at ? strtod(at + strlen(quoted), NULL) : 0;
}

static void for_each_line(const char *command, void (*fn)(const char *line, int round), int round)
{
    char line[4096];
    FILE *f = popen(command, "r");

    if (!f)
        return;
    while (fgets(line, sizeof line, f))
        fn(line, round);
    if (pclose(f) != 0)
        printf("# the peer failed: %s\n", command);
}

static void single_line(const char *line, int round)
{
    if (number_of(line, "n_prompt") > 0)
        peer[PREFILL][round] = number_of(line, "avg_ts");
    else if (number_of(line, "n_gen") > 0)
        peer[DECODE_1][round] = number_of(line, "avg_ts");
}

static void batched_line(const char *line, int round)
{
    if (number_of(line, "pl") == 8)
        peer[DECODE_8][round] = number_of(line, "speed_tg");
    else if (number_of(line, "pl") == 32)
        peer[DECODE_32][round] = number_of(line, "speed_tg");
}

static void measure_peer(const struct bench *b, int round)
{
    BUF_LOCAL command = BUF_INIT;
    const char *slash = strrchr(b->peer, '/');

    buf_printf(&command, "timeout 120 '%s' -m '%s' -p %d -n %d -t %u -r 1 -o jsonl 2>/dev/null", b->peer, b->file,
               PROMPT, DECODE, b->threads);
    for_each_line(buf_str(&command), single_line, round);
    buf_clear(&command);
    buf_printf(&command,
               "timeout 240 '%.*sllama-batched-bench' -m '%s' -c 8192 -b 2048 -npp %d -ntg %d -npl 8,32 -t %u "
               "--output-format jsonl 2>/dev/null",
               slash ? (int)(slash + 1 - b->peer) : 0, b->peer, b->file, CONTEXT, STEPS, b->threads);
    for_each_line(buf_str(&command), batched_line, round);
}

/* ---- report ---------------------------------------------------------- */

static double middle(const double *values, int n)
{
    double sorted[MAX_ROUNDS];

    memcpy(sorted, values, (size_t)n * sizeof *sorted);
    return median(sorted, (size_t)n);
}

static void report(int rounds, bool with_peer)
{
    double batch[MAX_ROUNDS];

    for (int r = 0; r < rounds; r++)
        batch[r] = ours[DECODE_8][r] / ours[DECODE_1][r];
    printf("# medians of %d rounds: ours, peer, ratio (lowest to highest)\n", rounds);
    for (int w = 0; w < N_WHAT; w++) {
        printf("%s,median,%.1f,%s\n", whats[w].name, middle(ours[w], rounds), whats[w].unit);
        if (!with_peer || w < PREFILL)
            continue;
        double low = ratio[w][0], high = low;

        for (int r = 1; r < rounds; r++) {
            low = ratio[w][r] < low ? ratio[w][r] : low;
            high = ratio[w][r] > high ? ratio[w][r] : high;
        }
        printf("%s-peer,median,%.1f,tok/s\n", whats[w].name, middle(peer[w], rounds));
        printf("%s-ratio,median,%.2f,x\n", whats[w].name, middle(ratio[w], rounds));
        printf("# %-12s %8.1f %8.1f %6.2f (%.2f to %.2f)\n", whats[w].name, middle(ours[w], rounds),
               middle(peer[w], rounds), middle(ratio[w], rounds), low, high);
    }
    printf("decode-8-over-1,median,%.2f,x\n", middle(batch, rounds));
}

static void open_all(struct bench *b, uint32_t threads)
{
    CLEANUP(gguf_close) struct gguf *file = NULL;
    struct model_options options = { .threads = threads };
    const struct model_shape *s;
    struct err err = { 0 };
    uint64_t start = clock_mono_ns();

    if (gguf_open(b->file, &file, &err) || model_open(file, &options, &b->model, &err))
        die(err_text(&err));
    s = model_shape(b->model);
    b->threads = model_threads(b->model);
    printf("load,0,%.3f,s\n", seconds_since(start));
    if (kv_open(&(struct kv_shape){ s->n_layers, s->n_kv_heads, s->head_dim, MAX_SEQUENCES * PAGES + LONG_PAGES, KV_F16 },
                &b->kv, &err))
        die(err_text(&err));
    b->logits = malloc((size_t)MAX_SEQUENCES * s->vocab_size * sizeof *b->logits);
    if (!b->logits)
        die("no memory for logits");
    for (int i = 0; i < MAX_SEQUENCES * PAGES; i++)
        kv_take(b->kv, &b->pages[i / PAGES][i % PAGES]);
    for (int i = 0; i < LONG_PAGES; i++)
        kv_take(b->kv, &b->long_pages[i]);
    printf("# %s, %s, %s kernels, %u threads, %.1f MB packed\n", b->file, s->arch, model_isa(b->model),
           b->threads, (double)model_weight_bytes(b->model) / 1e6);
    printf("# prefill: %d tokens at once; decode-1: %d tokens from an empty context;\n"
           "# decode-8, decode-32: %d tokens of each sequence behind a prompt of %d\n",
           PROMPT, DECODE, STEPS, CONTEXT);
}

int main(int argc, char **argv)
{
    static struct bench b;
    CLEANUP(pool_close) struct pool *pool = NULL;
    const bool scale = argc > 1 && !strcmp(argv[1], "--scale");
    int rounds;

    argc -= scale;
    argv += scale;
    rounds = argc > 2 ? atoi(argv[2]) : 5;
    if (argc < 2 || rounds < 1 || rounds > MAX_ROUNDS)
        die("usage: bench-engine [--scale] MODEL.gguf [ROUNDS (1 to 99) [THREADS]]");
    b.file = argv[1];
    b.peer = scale ? NULL : getenv("FASTCHAT_LLAMA_BENCH");
    open_all(&b, argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0);
    print_facts(&b);
    decode(&b, 1, 0, 8);                            /* warm up */
    if (scale) {
        measure_scale(&b, rounds);
        goto out;
    }
    if (!b.peer || !*b.peer)
        printf("# peer absent: $FASTCHAT_LLAMA_BENCH does not name a llama-bench\n");
    if (pool_open(b.threads, &pool, NULL))
        die("no threads to measure bandwidth with");
    for (int r = 0; r < rounds; r++) {
        ours[READ_96M][r] = machine_read(pool, (size_t)96 << 20);
        ours[READ_1G][r] = machine_read(pool, (size_t)1 << 30);
        measure_ours(&b, r);
        if (b.peer && *b.peer)
            measure_peer(&b, r);
        for (int w = 0; w < N_WHAT; w++) {
            printf("%s,%d,%.1f,%s\n", whats[w].name, r, ours[w][r], whats[w].unit);
            if (peer[w][r] > 0) {
                ratio[w][r] = ours[w][r] / peer[w][r];
                printf("%s-peer,%d,%.1f,%s\n", whats[w].name, r, peer[w][r], whats[w].unit);
            }
        }
        printf("logits-hash,%d,%016llx,\n", r, (unsigned long long)b.hash);
        fflush(stdout);
    }
    report(rounds, b.peer && *b.peer);
out:
    kv_close(b.kv);
    model_close(b.model);
    free(b.logits);
    return 0;
}
