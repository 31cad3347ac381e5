/* Opens the engine that computes: checks what is asked, says the plan, loads the model and what goes with it, and starts its thread. */
#include "gen/engine_cpu_in.h"

#include "adapters/adapters.h"
#include "base/err.h"
#include "gen/memory.h"
#include "gen/plan.h"
#include "gen/weights.h"
#include "loaders/gguf.h"
#include "loaders/template_files.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { QUEUE = 1024 };          /* sequences that may wait */

static void cpu_free(struct cpu *e)
{
    engine_cpu_ops.close((struct engine *)e);
}
DEFINE_CLEANUP(struct cpu *, cpu_free)

static int choose_template(struct cpu *e, const struct gguf *file, const struct engine_config *config, struct err *err)
{
    CLEANUP(template_files_free) struct template_files *files = NULL;
    struct engine_info *info = &e->engine.info;
    struct template_question q = {
        .configured = config->chat_template, .path = config->path, .model_name = config->name, .registry = config->templates,
    };
    struct template_choice choice;
    int r = template_files_of_gguf(file, &files, err);

    if (r < 0)
        return r;
    q.files = files;
    r = adapters_choose(&q, &choice, err);
    if (r < 0)
        return err_place(err, "%s", gguf_path(file)), r;
    info->chat = choice.chat;
    snprintf(info->chat_reason, sizeof info->chat_reason, "%s", choice.reason);
    return 0;
}

/* Before anything large is asked for: where memory is promised and not there, the kernel would end the process. */
static int make_plan(const struct gguf *file, const struct gguf *draft, const struct engine_config *config,
                     const char *isa, enum kv_type kv_type, struct err *err)
{
    const uint64_t room = memory_room(), given = weights_given_bytes(config->share);
    const struct plan_ask ask = { .threads = config->threads, .isa = isa, .context = config->context, .parallel = config->parallel,
                                  .replicas = 1, .room = room < UINT64_MAX - given ? room + given : UINT64_MAX, .kv_type = kv_type,
                                  .speculative = (enum draft_kind)draft_kind_of(config->speculative), .draft = draft };
    struct plan plan;
    char text[2 * PLAN_TEXT];
    int r = plan_make(file, &ask, &plan, err);

    if (r < 0)
        return r;
    if (plan.verdict == PLAN_REFUSED)
        return err_set(err, -ENOMEM, "%s: %s", config->path, plan_text(&plan, text));
    if (config->say)
        config->say(config->say_user, plan_line(&plan, text));
    return 0;
}

static int choose_context(struct cpu *e, const struct engine_config *config, struct err *err)
{
    uint32_t own = model_shape(e->model)->n_ctx_train;

    if (config->context && own && config->context > own)
        return err_set(err, -EINVAL, "%s: a context of %u tokens is more than the model's %u",
                       config->path, config->context, own);
    e->engine.info.context_length = plan_context(model_shape(e->model), config->context);
    return 0;
}

static int check_speculation(const struct engine_config *config, struct err *err)
{
    const int kind = draft_kind_of(config->speculative);

    if (kind < 0)
        return err_set(err, -EINVAL, "%s: speculative \"%s\" is not known; it can be off, ngram or draft", config->path,
                       config->speculative);
    if (kind == DRAFT_MODEL && (!config->draft_model || !*config->draft_model))
        return err_set(err, -EINVAL, "%s: speculative \"draft\" needs a draft model", config->path);
    if (config->draft_tokens > DRAFT_MAX_TOKENS)
        return err_set(err, -EINVAL, "%s: %u draft tokens are above the limit of %d", config->path, config->draft_tokens,
                       DRAFT_MAX_TOKENS);
    return 0;
}

static int open_draft_file(const struct engine_config *config, struct gguf **ret, struct err *err)
{
    return draft_kind_of(config->speculative) == DRAFT_MODEL ? gguf_open(config->draft_model, ret, err) : 0;
}

static int open_draft(struct cpu *e, const struct gguf *file, const struct gguf *draft,
                      const struct engine_config *config, struct err *err)
{
    const struct draft_options options = {
        .kind = (enum draft_kind)draft_kind_of(config->speculative), .tokens = config->draft_tokens,
        .parallel = e->parallel, .n_ctx = e->engine.info.context_length, .file = draft, .target_file = file,
        .target_tokenizer = e->tokenizer, .target = e->model, .pulse = e->pulse,
    };

    return options.kind == DRAFT_OFF ? 0 : draft_open(&options, &e->draft, err);
}

/* Pages for what was asked, or for all sequences at full length if that fits in
 * half of the memory that is left. A context that does not fit shrinks. */
static int open_kv(struct cpu *e, const struct engine_config *config, struct err *err)
{
    const struct model_shape *m = model_shape(e->model);
    const struct model_shape *draft = e->draft ? draft_shape(e->draft) : NULL;
    const uint64_t page_bytes = plan_page_bytes(m, e->kv_type) + (draft ? plan_page_bytes(draft, e->kv_type) : 0);
    uint64_t pages = config->kv_tokens / KV_PAGE, room = plan_pages_within(memory_room(), page_bytes);
    struct engine_info *info = &e->engine.info;
    struct kv_shape shape = { m->n_layers, m->n_kv_heads, m->head_dim, 0, e->kv_type };
    int r;

    if (!config->kv_tokens) {
        pages = plan_pages(info->context_length, e->parallel);
        pages = pages < room ? pages : room;
    }
    shape.n_pages = pages < UINT32_MAX ? (uint32_t)pages : UINT32_MAX;
    if (!shape.n_pages)
        return err_set(err, config->kv_tokens ? -EINVAL : -ENOMEM,
                       "%s: no room for a single page of KV (%llu bytes for %d tokens)", config->path,
                       (unsigned long long)page_bytes, KV_PAGE);
    r = kv_open(&shape, &e->kv, err);
    if (r == 0 && e->draft)
        r = draft_open_kv(e->draft, shape.n_pages, e->kv_type, err);
    if (r < 0)
        return err_place(err, "%s", config->path), r;
    if (info->context_length > shape.n_pages * (uint64_t)KV_PAGE)
        info->context_length = shape.n_pages * KV_PAGE;
    info->kv_bytes = kv_bytes(e->kv) + (e->draft ? draft_kv_bytes(e->draft) : 0);
    return 0;
}

static int open_samplers(struct cpu *e, struct err *err)
{
    const uint32_t n = plan_samplers(model_threads(e->model), e->parallel);
    int r = 0;

    e->works = calloc(n, sizeof e->works[0]);
    if (!e->works)
        return err_set(err, -ENOMEM, "no memory for %u samplers", n);
    while (e->n_works < n && (r = sampler_work_open(e->engine.info.vocab_size, &e->works[e->n_works], err)) == 0)
        e->n_works++;
    return r;
}

static int open_work(struct cpu *e, const struct engine_config *config, struct err *err)
{
    const uint32_t vocab = e->engine.info.vocab_size, most_picks = e->parallel + (e->draft ? DRAFT_ROWS : 0);
    int r;

    for (uint32_t i = 0; i < tokenizer_size(e->tokenizer); i++) {
        size_t len = 0;

        tokenizer_token(e->tokenizer, (int32_t)i, &len);
        e->max_token_bytes = len > e->max_token_bytes ? (uint32_t)len : e->max_token_bytes;
    }
    e->rows = calloc(MODEL_MAX_ROWS, sizeof e->rows[0]);
    e->logits = calloc((size_t)most_picks * vocab, sizeof e->logits[0]);
    e->picks = calloc(most_picks, sizeof e->picks[0]);
    e->asks = calloc(e->parallel, sizeof e->asks[0]);
    e->parts = calloc(e->parallel, sizeof e->parts[0]);
    e->tokens = calloc(OUTBOX_TOKENS, sizeof e->tokens[0]);
    e->tops = calloc(OUTBOX_TOKENS * ENGINE_TOP_LOGPROBS, sizeof e->tops[0]);
    if (!e->rows || !e->logits || !e->picks || !e->asks || !e->parts || !e->tokens || !e->tops)
        return err_set(err, -ENOMEM, "%s: no memory for %u sequences at once", config->path,
                       e->parallel);
    r = open_samplers(e, err);
    if (r == 0 && config->prefix != ENGINE_PREFIX_OFF)
        r = prefix_open(e->kv, &e->prefix, err);
    if (r < 0)
        return r;
    return sched_open(&(struct sched_config){ .kv = e->kv, .prefix = e->prefix, .parallel = e->parallel,
                                              .queue = QUEUE, .max_rows = MODEL_MAX_ROWS,
                                              .layers = model_reads(e->model) ? model_shape(e->model)->n_layers : 0 },
                      &e->sched, err);
}

static int start(struct cpu *e, const struct engine_config *config, struct err *err)
{
    pthread_condattr_t monotonic;
    sigset_t every, before;
    int r;

    pthread_mutex_init(&e->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&e->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    e->locks = true;
    sigfillset(&every);
    pthread_sigmask(SIG_BLOCK, &every, &before);
    r = pthread_create(&e->thread, NULL, engine_cpu_main, e);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (r)
        return err_errno(err, -r, "%s: no thread for the engine", config->path);
    pthread_setname_np(e->thread, "engine");
    e->threaded = true;
    return 0;
}

static void describe(struct cpu *e, const struct gguf *file, const struct engine_config *config)
{
    struct engine_info *info = &e->engine.info;

    if (gguf_text(file, "general.name", info->model, sizeof info->model, NULL) || !info->model[0])
        snprintf(info->model, sizeof info->model, "%s", config->name);
    snprintf(info->backend, sizeof info->backend, "cpu %s", model_isa(e->model));
    info->vocab_size = model_shape(e->model)->vocab_size;
    info->longest_token = tokenizer_longest(e->tokenizer);
    info->weight_bytes = model_weight_bytes(e->model);
}

int engine_cpu_open(const struct engine_config *config, struct engine **ret, struct err *err)
{
    CLEANUP(gguf_close) struct gguf *file = NULL, *draft = NULL;
    CLEANUP(cpu_free) struct cpu *e = calloc(1, sizeof *e);
    struct model_options options = { .threads = config->threads, .share = config->share };
    const struct kernels *kernels;
    int r;

    if (!e)
        return err_set(err, -ENOMEM, "%s: no memory", config->path);
    if (!config->parallel || config->parallel > MODEL_MAX_ROWS)
        return err_set(err, -EINVAL, "%s: %u sequences at once; it must be 1 to %d", config->path,
                       config->parallel, MODEL_MAX_ROWS);
    e->engine.ops = &engine_cpu_ops;
    e->parallel = config->parallel;
    e->salted = config->prefix == ENGINE_PREFIX_SALTED;
    e->notify = config->notify;
    e->notify_user = config->notify_user;
    e->pulse = options.pulse = config->pulse ? config->pulse : &e->own_pulse;

    r = check_speculation(config, err);
    if (r < 0)
        return r;
    r = kernels_choose(config->isa, &kernels, err);
    if (r < 0)
        return err_place(err, "%s", config->path), r;
    options.isa = kernels->name;
    r = gguf_open(config->path, &file, err);
    if (r < 0)
        return r;
    r = open_draft_file(config, &draft, err);
    if (r < 0)
        return r;
    r = kv_type_read(config->kv_type, &e->kv_type, err);
    if (r < 0)
        return err_place(err, "%s", config->path), r;
    beat(e);
    r = tokenizer_open(file, &e->tokenizer, err);
    if (r < 0)
        return r;
    beat(e);
    r = choose_template(e, file, config, err);
    if (r < 0)
        return r;
    r = make_plan(file, draft, config, options.isa, e->kv_type, err);
    if (r < 0)
        return r;
    beat(e);
    r = model_open(file, &options, &e->model, err);
    if (r < 0)
        return r;
    describe(e, file, config);
    if (tokenizer_size(e->tokenizer) > e->engine.info.vocab_size)
        return err_set(err, -EINVAL, "%s: %u tokens, but an embedding of %u", config->path,
                       tokenizer_size(e->tokenizer), e->engine.info.vocab_size);
    r = choose_context(e, config, err);
    if (r < 0)
        return r;
    r = open_draft(e, file, draft, config, err);
    if (r < 0)
        return r;
    r = open_kv(e, config, err);
    if (r < 0)
        return r;
    r = open_work(e, config, err);
    if (r < 0)
        return r;
    r = start(e, config, err);
    if (r < 0)
        return r;
    *ret = &STEAL(e)->engine;
    return 0;
}
