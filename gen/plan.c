#include "gen/plan.h"

#include "base/err.h"
#include "gen/cpu/pack.h"
#include "gen/kv.h"
#include "gen/ngram.h"
#include "gen/sampler.h"
#include "gen/sched.h"
#include "loaders/gguf.h"

#include <stdio.h>

uint32_t plan_context(const struct model_shape *s, uint32_t asked)
{
    return asked ? asked : s->n_ctx_train ? s->n_ctx_train : PLAN_DEFAULT_CONTEXT;
}

uint64_t plan_page_bytes(const struct model_shape *s, enum kv_type type)
{
    return (uint64_t)s->n_layers * s->n_kv_heads * kv_page_bytes(type, s->head_dim);
}

uint64_t plan_token_bytes(const struct model_shape *s, enum kv_type type) { return plan_page_bytes(s, type) / KV_PAGE; }

uint64_t plan_pages(uint32_t context, uint32_t parallel) { return (uint64_t)parallel * sched_pages_of(context); }

/* Half, so that the tokenizer, requests and others have some too. */
uint64_t plan_pages_within(uint64_t left, uint64_t page_bytes) { return left / 2 / page_bytes; }

uint32_t plan_samplers(uint32_t threads, uint32_t parallel)
{
    const uint32_t n = threads < parallel ? threads : parallel;

    return n < PLAN_SAMPLERS ? n : PLAN_SAMPLERS;
}

static uint64_t logits_bytes(const struct plan *p, uint32_t parallel)
{
    return (uint64_t)parallel * p->size.shape.vocab_size * sizeof(float);
}

static uint64_t sampler_bytes(const struct plan *p, uint32_t parallel)
{
    return plan_samplers(p->size.threads, parallel) * (uint64_t)sampler_work_bytes(p->size.shape.vocab_size);
}

/* Logits of proposals, and what makes them. */
static uint64_t draft_bytes(const struct plan *p, uint32_t parallel)
{
    const uint64_t logits = (uint64_t)DRAFT_ROWS * p->size.shape.vocab_size * sizeof(float);

    switch (p->ask.speculative) {
    case DRAFT_OFF: return 0;
    case DRAFT_NGRAM: return logits + parallel * (uint64_t)ngram_bytes(p->ask.context);
    case DRAFT_MODEL: break;
    }
    return logits + p->draft_size.weight_bytes + p->draft_size.scratch_bytes +
           (uint64_t)DRAFT_ROWS * p->draft_size.shape.vocab_size * sizeof(float);
}

static uint64_t fixed_bytes(const struct plan *p, uint32_t parallel)
{
    return p->size.weight_bytes + p->size.scratch_bytes + logits_bytes(p, parallel) + sampler_bytes(p, parallel) +
           draft_bytes(p, parallel);
}

/* All replicas have `own` for themselves and the weights together. False when it can not be counted. */
static bool of_all(const struct plan *p, uint64_t own, uint64_t *ret)
{
    return !__builtin_mul_overflow(own, (uint64_t)p->ask.replicas, ret) && !__builtin_add_overflow(*ret, p->size.weight_bytes, ret);
}

/* What the last replica has left, where those before it have as many pages as it takes. */
static uint64_t pages_most(const struct plan *p, uint32_t parallel)
{
    const uint64_t fixed = fixed_bytes(p, parallel), n = p->ask.replicas;
    uint64_t all, pages, one;

    if (!of_all(p, fixed - p->size.weight_bytes, &all) || all > p->ask.room)
        return 0;
    pages = n == 1 ? plan_pages_within(p->ask.room - all, p->page_bytes) : (p->ask.room - all) / (n + 1) / p->page_bytes;
    if (p->ask.limit == 0)
        return pages;
    one = p->ask.limit > fixed ? plan_pages_within(p->ask.limit - fixed, p->page_bytes) : 0;
    return one < pages ? one : pages;
}

static uint32_t most_parallel(const struct plan *p)
{
    uint32_t n = MODEL_MAX_ROWS;

    while (n && plan_pages(p->ask.context, n) > pages_most(p, n))
        n--;
    return n;
}

static uint32_t most_context(const struct plan *p)
{
    const uint64_t most = p->size.shape.n_ctx_train ? p->size.shape.n_ctx_train : UINT32_MAX;
    const uint64_t tokens = p->pages_most / p->ask.parallel * KV_PAGE;

    return (uint32_t)(tokens < most ? tokens : most);
}

static void count_kv_and_total(struct plan *p)
{
    if (__builtin_mul_overflow(p->pages_wanted, p->page_bytes, &p->kv_bytes))
        p->kv_bytes = UINT64_MAX;
    if (__builtin_add_overflow(p->kv_bytes, p->fixed_bytes, &p->total_bytes) ||
        !of_all(p, p->total_bytes - p->size.weight_bytes, &p->total_bytes))
        p->total_bytes = UINT64_MAX;
}

int plan_make(const struct gguf *file, const struct plan_ask *ask, struct plan *ret, struct err *err)
{
    struct plan p = { .ask = *ask };
    int r = model_measure(file, ask->threads, ask->isa, &p.size, err);

    if (r == 0 && ask->speculative == DRAFT_MODEL)
        r = model_measure(ask->draft, ask->threads, ask->isa, &p.draft_size, err);
    if (r < 0)
        return r;
    p.ask.threads = p.size.threads;
    p.ask.isa = p.size.isa;
    p.ask.context = plan_context(&p.size.shape, ask->context);
    p.logits_bytes = logits_bytes(&p, ask->parallel);
    p.sampler_bytes = sampler_bytes(&p, ask->parallel);
    p.fixed_bytes = fixed_bytes(&p, ask->parallel);
    p.draft_bytes = draft_bytes(&p, ask->parallel);
    p.page_bytes = plan_page_bytes(&p.size.shape, ask->kv_type);
    if (ask->speculative == DRAFT_MODEL)
        p.page_bytes += plan_page_bytes(&p.draft_size.shape, ask->kv_type);
    p.pages_wanted = plan_pages(p.ask.context, ask->parallel);
    p.pages_most = pages_most(&p, ask->parallel);
    count_kv_and_total(&p);
    p.most_context = most_context(&p);
    p.most_parallel = most_parallel(&p);
    p.verdict = p.pages_most >= p.pages_wanted                      ? PLAN_FITS
                : p.pages_most >= sched_pages_of(p.ask.context)     ? PLAN_WAITS
                : p.pages_most > 0                                  ? PLAN_SHORTER
                                                                    : PLAN_REFUSED;
    *ret = p;
    return 0;
}

/* ---- in words ---- */

static double mb(uint64_t bytes) { return (double)bytes / 1e6; }

/* "1000.0 MB of memory", or both bounds where a replica has its own. */
static const char *bounds(const struct plan *p, char *buf, size_t size)
{
    if (p->ask.limit && p->ask.room != UINT64_MAX)
        snprintf(buf, size, "%.1f MB of memory and a limit of %.1f MB a replica", mb(p->ask.room), mb(p->ask.limit));
    else
        snprintf(buf, size, "%.1f MB of memory", mb(p->ask.limit ? p->ask.limit : p->ask.room));
    return buf;
}

const char *plan_text(const struct plan *p, char ret[PLAN_TEXT])
{
    char has[120], would[160] = "";

    bounds(p, has, sizeof has);
    if (p->most_context && p->most_parallel)
        snprintf(would, sizeof would, ": a context of %u with parallel %u fits, or parallel %u with a context of %u",
                 p->most_context, p->ask.parallel, p->most_parallel, p->ask.context);
    else if (p->most_context)
        snprintf(would, sizeof would, ": a context of %u with parallel %u fits", p->most_context, p->ask.parallel);
    switch (p->verdict) {
    case PLAN_FITS:
        snprintf(ret, PLAN_TEXT, "it fits; with this context up to parallel %u does", p->most_parallel);
        break;
    case PLAN_WAITS:
        snprintf(ret, PLAN_TEXT, "it runs, but the cache holds %llu tokens instead of %llu, and requests wait for one another; there are %s%s",
                 (unsigned long long)p->pages_most * KV_PAGE, (unsigned long long)p->pages_wanted * KV_PAGE, has, would);
        break;
    case PLAN_SHORTER:
        snprintf(ret, PLAN_TEXT, "it runs, but a request has %llu tokens instead of %u; there are %s%s",
                 (unsigned long long)p->pages_most * KV_PAGE, p->ask.context, has, would);
        break;
    case PLAN_REFUSED:
        snprintf(ret, PLAN_TEXT,
                 "it does not fit: %.1f MB of weights and %u x %.1f MB to compute in, and there are %s. A smaller or more quantised file is needed%s",
                 mb(p->size.weight_bytes), p->ask.replicas, mb(p->fixed_bytes - p->size.weight_bytes), has,
                 p->ask.replicas > 1 ? ", or fewer replicas" : "");
        break;
    }
    return ret;
}

const char *plan_line(const struct plan *p, char ret[2 * PLAN_TEXT])
{
    char text[PLAN_TEXT];

    snprintf(ret, 2 * PLAN_TEXT, "%.1f MB of weights, %.1f MB to compute in, %.1f MB of KV in %s for parallel %u with a context of %u: %s",
             mb(p->size.weight_bytes), mb(p->fixed_bytes - p->size.weight_bytes), mb(p->kv_bytes), kv_type_name(p->ask.kv_type),
             p->ask.parallel, p->ask.context, plan_text(p, text));
    return ret;
}

/* ---- types ---- */

static void fill_type(uint32_t type, const struct ggml_type_facts *facts, struct plan_type *t)
{
    enum { ROWS = KERNEL_LANES, COLS = 1024 };
    enum mat_type kept;
    struct mat mat;

    *t = (struct plan_type){ .name = facts->name, .bits = 8.0 * facts->block_bytes / facts->block };
    if (mat_type_of(type, &kept) && mat_init(&mat, kept, ROWS, COLS))
        t->kept_bits = 8.0 * (double)mat_bytes(&mat) / (ROWS * COLS);
}

size_t plan_types(const struct gguf *file, struct plan_type ret[PLAN_MAX_TYPES])
{
    uint32_t types[PLAN_MAX_TYPES];
    size_t n = 0, at;

    for (size_t i = 0; i < gguf_n_tensors(file); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(file, i);

        for (at = 0; at < n && types[at] != t->type; at++)
            ;
        if (at == PLAN_MAX_TYPES)
            continue;
        if (at == n) {
            types[n] = t->type;
            fill_type(t->type, ggml_type_facts(t->type), &ret[n++]);
        }
        ret[at].n++;
        ret[at].elements += t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3];
        ret[at].bytes += t->bytes;
    }
    return n;
}
