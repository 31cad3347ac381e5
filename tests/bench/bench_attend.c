/* bench_attend.c - how fast attention is on one core: of prompts by tiles, of generated rows by every table.
 *
 *     bench-attend [REPEATS]
 *
 * Lines are CSV: what,type,head_dim,group,positions,streams,value,unit. The best of all repeats: a shared machine only ever takes
 * away. Prompt: the last 128 rows of so many positions, 4 x head_dim operations for each row, head and position it sees. Generated:
 * one row of each stream, every key/value head of a layer, caches of all layers of all streams read in turn.
 */
#include "base/clock.h"
#include "gen/cpu/kernels.h"
#include "gen/cpu/prompt.h"
#include "gen/kv.h"
#include "gen/slab.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 30, HEADS = 3, MAX_STREAMS = 32, MAX_FLOATS = 256 * 8, MOST_PAGES = 8192 / KV_PAGE };

static uint32_t repeats = 200;

static float random_float(void)
{
    static uint64_t seed = 1;

    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return 3 * ((float)(seed >> 40) / (1 << 24) - 0.5f);
}

static void *need(void *p)
{
    if (p)
        return p;
    fprintf(stderr, "bench-attend: no memory\n");
    exit(1);
}

static struct kv *filled(const struct kernels *k, struct kv_shape shape)
{
    float x[256];
    struct kv *kv = NULL;

    if (kv_open(&shape, &kv, NULL) < 0)
        need(NULL);
    for (uint32_t i = 0; i < 256; i++)
        x[i] = random_float();
    for (uint32_t l = 0; l < shape.n_layers; l++)
        for (uint32_t p = 0; p < shape.n_pages; p++)
            for (uint32_t h = 0; h < shape.n_kv_heads; h++)
                for (uint32_t t = 0; t < KV_PAGE; t++)
                    for (uint32_t at = 0; at < shape.head_dim; at += KERNEL_LANES) {
                        x[(l + p + t + at) % 240] = random_float();
                        k->put_k[shape.type](kv_page(kv, l, p, h), shape.head_dim, t, at, x + (t + at) % 240);
                        k->put_v[shape.type](kv_page(kv, l, p, h), shape.head_dim, t, at, x + (t + at + 1) % 240);
                    }
    return kv;
}

static double best_of(void (*run)(void *), void *arg)
{
    double best = INFINITY;

    for (uint32_t i = 0; i < repeats; i++) {
        const uint64_t start = clock_mono_ns();
        double ns;

        run(arg);
        ns = (double)(clock_mono_ns() - start);
        best = ns < best ? ns : best;
    }
    return best;
}

/* ---- prompts ---------------------------------------------------------- */

struct prompt_run {
    const struct prompt_kernels *k;
    struct prompt_attend a;
    uint32_t calls;
};

static void run_prompt(void *arg)
{
    struct prompt_run *r = arg;

    r->k->enter();
    for (uint32_t i = 0; i < r->calls; i++)
        r->k->attend(&r->a);
    r->k->leave();
}

static void bench_prompt(const struct kernels *k, enum kv_type type, uint32_t hd, uint32_t group, uint32_t positions, uint32_t rows)
{
    const struct kv_shape shape = { 1, 1, hd, positions / KV_PAGE, type };
    struct kv *kv = filled(k, shape);
    const struct kv_view view = kv_view(kv, 0, 0);
    const size_t floats = (size_t)group * hd;
    float *q = need(aligned_alloc(64, rows * floats * sizeof *q)), *o = need(aligned_alloc(64, rows * floats * sizeof *o));
    uint32_t pages[MOST_PAGES];
    double pairs = 0, ns;
    struct prompt_run run = {
        .k = k->prompt,
        .calls = 1,
        .a = { .q = q, .q_stride = floats, .n = rows, .group = group, .head_dim = hd, .pos = positions - rows, .window = UINT32_MAX,
               .kv = &view, .pages = pages, .scale = 1 / sqrtf((float)hd), .o = o, .o_stride = floats,
               .scratch = need(aligned_alloc(64, k->prompt->attend_scratch(group, hd))) },
    };

    for (uint32_t i = 0; i < shape.n_pages; i++)
        pages[i] = i;
    for (size_t i = 0; i < rows * floats; i++)
        q[i] = random_float();
    for (uint32_t r = 0; r < rows; r++)
        pairs += (double)(positions - rows + r + 1) * group;
    run.calls = 1 + (uint32_t)(5e4 / pairs);          /* less than a turn on a busy core */
    ns = best_of(run_prompt, &run) / run.calls;
    printf("prompt-%u,%s,%u,%u,%u,1,%.0f,GFLOP/s\n", rows, kv_type_name(type), hd, group, positions, 4 * hd * pairs / ns);
    free(run.a.scratch);
    free(q);
    free(o);
    kv_close(kv);
}

/* ---- generated rows --------------------------------------------------- */

struct generated_run {
    const struct kernels *k;
    struct kv *kv;
    uint32_t hd, group, positions, streams;
    uint32_t pages[MAX_STREAMS][MOST_PAGES];
    float q[MAX_FLOATS], o[MAX_FLOATS], max[8], sum[8];
};

/* Page i of what comes behind a span. */
static const uint8_t *next_page(const struct generated_run *r, uint32_t l, uint32_t s, uint32_t h, uint32_t at, uint32_t i)
{
    at += KERNEL_SPAN;
    if (at >= r->positions) {
        at = 0;
        h++;
    }
    if (h == HEADS) {
        h = 0;
        s++;
    }
    if (s == r->streams) {
        s = 0;
        l = (l + 1) % LAYERS;
    }
    at += i * KV_PAGE;
    return at < r->positions ? kv_page(r->kv, l, r->pages[s][at / KV_PAGE], h) : NULL;
}

static void run_generated(void *arg)
{
    struct generated_run *r = arg;

    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t s = 0; s < r->streams; s++)
            for (uint32_t h = 0; h < HEADS; h++)
                for (uint32_t at = 0; at < r->positions; at += KERNEL_SPAN)
                    r->k->attend(&(struct attend){
                        .q = r->q, .n_q = r->group, .head_dim = r->hd, .kv = kv_view(r->kv, l, h), .pages = r->pages[s] + at / KV_PAGE,
                        .next = { next_page(r, l, s, h, at, 0), next_page(r, l, s, h, at, 1) },
                        .n = r->positions - at < KERNEL_SPAN ? r->positions - at : KERNEL_SPAN, .scale = 0.1f,
                        .max = r->max, .sum = r->sum, .o = r->o });
}

static void bench_generated(const struct kernels *k, enum kv_type type, uint32_t hd, uint32_t group, uint32_t positions, uint32_t streams)
{
    static struct generated_run r;
    const uint32_t each = (positions + KV_PAGE - 1) / KV_PAGE;
    const struct kv_shape shape = { LAYERS, HEADS, hd, each * streams, type };
    double ns;

    r = (struct generated_run){ .k = k, .kv = filled(k, shape), .hd = hd, .group = group, .positions = positions, .streams = streams };
    for (uint32_t i = 0; i < MAX_FLOATS; i++)
        r.q[i] = random_float();
    for (uint32_t s = 0; s < streams; s++)
        for (uint32_t p = 0; p < each; p++)
            r.pages[s][p] = p * streams + s;
    ns = best_of(run_generated, &r) / LAYERS / HEADS / positions / streams;
    printf("generated-%s,%s,%u,%u,%u,%u,%.2f,ns a position\n", k->name, kv_type_name(type), hd, group, positions, streams, ns);
    kv_close(r.kv);
}

int main(int argc, char **argv)
{
    static const struct { uint32_t hd, group; } shapes[] = { { 64, 1 }, { 64, 3 }, { 64, 7 }, { 128, 4 }, { 256, 4 } };
    static const uint32_t positions[] = { 128, 512, 2048, 8192 };
    const struct kernels *k;

    if (argc > 1)
        repeats = (uint32_t)atoi(argv[1]);
    for (size_t i = 0; (k = kernels_at(i)); i++) {
        for (enum kv_type type = 0; i > 0 && type < KV_TYPES; type++)
            for (uint32_t streams = 1; streams <= MAX_STREAMS; streams *= streams == 1 ? 8 : 4)
                bench_generated(k, type, 64, 3, 130, streams);
        for (size_t s = 0; k->prompt && k->prompt->attend && s < sizeof shapes / sizeof shapes[0]; s++)
            for (size_t p = 0; p < sizeof positions / sizeof positions[0]; p++) {
                for (enum kv_type type = 0; type < KV_TYPES; type++)
                    bench_prompt(k, type, shapes[s].hd, shapes[s].group, positions[p], PROMPT_ATTEND_ROWS);
                bench_prompt(k, KV_F16, shapes[s].hd, shapes[s].group, positions[p], PROMPT_ROWS);
            }
    }
    return 0;
}
