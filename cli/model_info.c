/* What can be read of a file is shown; what can not is named with its reason, in its place. */
#include "cli/model_info.h"

#include "adapters/adapters.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "cli/args.h"
#include "cli/progress.h"
#include "cli/term.h"
#include "conv/chat.h"
#include "gen/kv.h"
#include "gen/memory.h"
#include "gen/plan.h"
#include "loaders/gguf.h"
#include "loaders/template_files.h"
#include "loaders/tokenizer.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 256, LABEL_WIDTH = 14 };

struct info {
    const struct model_info_ask *ask;
    struct gguf *file;
    char name[NAME_BYTES], arch[64];    /* "": not said */
    uint64_t n_elements, tensor_bytes;
    struct plan_type types[PLAN_MAX_TYPES];
    size_t n_types;
    struct plan plan;                   /* with `refused` only what the keys say of size.shape */
    bool planned;
    struct err refused, no_tokenizer, no_template;      /* why not */
    struct tokenizer *tokenizer;
    struct template_choice template;
};

static void info_fini(struct info *f)
{
    tokenizer_close(f->tokenizer);
    chat_free(f->template.chat);
    gguf_close(f->file);
}

/* ---- reading ---- */

static void read_key(const struct info *f, const char *rest, uint32_t *ret)
{
    char key[NAME_BYTES];

    snprintf(key, sizeof key, "%s.%s", f->arch, rest);
    gguf_u32(f->file, key, ret, NULL);
}

/* Of a file that no plan can be made for: what its keys say, 0 where they are silent. */
static void read_keys(struct info *f)
{
    struct model_shape *s = &f->plan.size.shape;

    read_key(f, "block_count", &s->n_layers);
    read_key(f, "attention.head_count", &s->n_heads);
    read_key(f, "attention.head_count_kv", &s->n_kv_heads);
    read_key(f, "attention.key_length", &s->head_real);
    read_key(f, "context_length", &s->n_ctx_train);
    read_key(f, "embedding_length", &s->dim);
    if (s->head_real == 0 && s->n_heads)
        s->head_real = s->dim / s->n_heads;
}

static void read_template(struct info *f)
{
    CLEANUP(template_files_free) struct template_files *files = NULL;

    if (template_files_of_gguf(f->file, &files, &f->no_template) == 0)
        adapters_choose(&(struct template_question){ .path = f->ask->path, .model_name = f->ask->name, .files = files },
                        &f->template, &f->no_template);
}

static int read_file(struct info *f, struct err *err)
{
    const struct model_info_ask *a = f->ask;
    struct plan_ask plan = { .isa = a->isa, .context = a->context, .parallel = a->parallel, .replicas = a->replicas,
                             .room = memory_room(), .limit = a->limit };
    int r;

    if ((r = kv_type_read(a->kv_type, &plan.kv_type, err)) < 0 || (r = gguf_open(a->path, &f->file, err)) < 0)
        return r;
    gguf_text(f->file, "general.name", f->name, sizeof f->name, NULL);
    gguf_text(f->file, "general.architecture", f->arch, sizeof f->arch, NULL);
    f->n_types = plan_types(f->file, f->types);
    for (size_t i = 0; i < f->n_types; i++) {
        f->n_elements += f->types[i].elements;
        f->tensor_bytes += f->types[i].bytes;
    }
    f->planned = plan_make(f->file, &plan, &f->plan, &f->refused) == 0;
    if (!f->planned)
        read_keys(f);
    tokenizer_open(f->file, &f->tokenizer, &f->no_tokenizer);
    read_template(f);
    return 0;
}

/* ---- in words ---- */

static bool more_than_trained(const struct info *f)
{
    return f->planned && f->plan.size.shape.n_ctx_train && f->plan.ask.context > f->plan.size.shape.n_ctx_train;
}

/* Why it would not be loaded, or NULL. */
static const char *why_not(const struct info *f, char text[ERR_TEXT])
{
    if (!f->planned)
        return err_text(&f->refused);
    if (!f->tokenizer)
        return err_text(&f->no_tokenizer);
    if (!f->template.chat)
        return err_text(&f->no_template);
    if (tokenizer_size(f->tokenizer) > f->plan.size.shape.vocab_size)
        snprintf(text, ERR_TEXT, "%u tokens, but an embedding of %u", tokenizer_size(f->tokenizer), f->plan.size.shape.vocab_size);
    else if (more_than_trained(f))
        snprintf(text, ERR_TEXT, "a context of %u tokens is more than the model's %u", f->plan.ask.context, f->plan.size.shape.n_ctx_train);
    else
        return NULL;
    return text;
}

/* The type of most bytes. */
static const struct plan_type *main_type(const struct info *f)
{
    const struct plan_type *most = NULL;

    for (size_t i = 0; i < f->n_types; i++)
        if (!most || f->types[i].bytes > most->bytes)
            most = &f->types[i];
    return most;
}

static const char *how_computed(const struct plan_type *t, char text[NAME_BYTES])
{
    if (t->kept_bits <= 0)
        return "not supported";
    if (t->kept_bits <= t->bits)
        return "computed as it is";
    snprintf(text, NAME_BYTES, "kept in %.4g bits a weight", t->kept_bits);
    return text;
}

static double bits_each(const struct info *f)
{
    return f->n_elements ? 8.0 * (double)f->tensor_bytes / (double)f->n_elements : 0;
}

static void row(struct buf *out, const char *label, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static void row(struct buf *out, const char *label, const char *fmt, ...)
{
    char text[2 * ERR_TEXT];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    buf_printf(out, "%-*s %s\n", LABEL_WIDTH, label, text);
}

static void put_shape(struct buf *out, const struct info *f)
{
    const struct model_shape *s = &f->plan.size.shape;

    if (s->n_ctx_train)
        row(out, "context", "%u tokens", s->n_ctx_train);
    row(out, "layers", "%u", s->n_layers);
    row(out, "heads", "%u of %u, %u for keys and values", s->n_heads, s->head_real, s->n_kv_heads);
    if (f->plan.size.n_sliding)
        row(out, "sliding", "%u of %u layers see the newest %u tokens only", f->plan.size.n_sliding, s->n_layers, f->plan.size.window);
}

static void put_file(struct buf *out, const struct info *f)
{
    const struct plan_type *most = main_type(f);
    char size[SIZE_TEXT], text[NAME_BYTES], error[ERR_TEXT];
    const char *no = why_not(f, error);

    row(out, "file", "%s, %s", f->ask->path, size_text((int64_t)gguf_bytes(f->file), size));
    row(out, "name", "%s", f->name[0] ? f->name : "-");
    row(out, "architecture", "%s", f->arch[0] ? f->arch : "-");
    if (no)
        row(out, "not supported", "%s", no);
    row(out, "parameters", "%.1f million", (double)f->n_elements / 1e6);
    if (most)
        row(out, "quantisation", "mostly %s, %.2f bits a parameter", most->name, bits_each(f));
    put_shape(out, f);
    if (f->tokenizer)
        row(out, "tokenizer", "%s, %u tokens", tokenizer_kind(f->tokenizer), tokenizer_size(f->tokenizer));
    else
        row(out, "tokenizer", "can not be read: %s", err_text(&f->no_tokenizer));
    if (f->template.chat)
        row(out, "chat template", "%s: %s", chat_name(f->template.chat), f->template.reason);
    else
        row(out, "chat template", "can not be read: %s", err_text(&f->no_template));
    for (size_t i = 0; i < f->n_types; i++)
        row(out, i ? "" : "tensors", "%5llu %-8s %9s  %s", (unsigned long long)f->types[i].n, f->types[i].name,
            size_text((int64_t)f->types[i].bytes, size), how_computed(&f->types[i], text));
}

static const char *bytes_text(uint64_t bytes, char ret[SIZE_TEXT])
{
    return bytes > INT64_MAX ? "no bound" : size_text((int64_t)bytes, ret);
}

static void put_plan(struct buf *out, const struct info *f)
{
    const struct plan *p = &f->plan;
    char size[SIZE_TEXT], text[PLAN_TEXT];

    buf_printf(out, "\nTo run with a context of %u, parallel %u and %u replica%s:\n", p->ask.context, p->ask.parallel,
               p->ask.replicas, p->ask.replicas == 1 ? "" : "s");
    row(out, "weights", "%9s", bytes_text(p->size.weight_bytes, size));
    row(out, "scratch", "%9s  for %u threads, %s", bytes_text(p->size.scratch_bytes, size), p->size.threads, p->size.isa);
    row(out, "logits", "%9s", bytes_text(p->logits_bytes, size));
    row(out, "sampling", "%9s", bytes_text(p->sampler_bytes, size));
    row(out, "KV cache", "%9s  %llu bytes a token, %s", bytes_text(p->kv_bytes, size),
        (unsigned long long)plan_token_bytes(&p->size.shape, p->ask.kv_type), kv_type_name(p->ask.kv_type));
    row(out, "total", "%9s", bytes_text(p->total_bytes, size));
    row(out, "available", "%9s", bytes_text(p->ask.room, size));
    if (p->ask.limit)
        row(out, "limit", "%9s  a replica: memory_max_mb", bytes_text(p->ask.limit, size));
    row(out, "so", "%s", plan_text(p, text));
}

/* ---- as JSON ---- */

static void put_json_bytes(struct json_writer *w, const char *key, uint64_t bytes)
{
    if (bytes > INT64_MAX)
        json_knull(w, key);
    else
        json_kint(w, key, (int64_t)bytes);
}

static void put_json_plan(struct json_writer *w, const struct plan *p)
{
    static const char *const verdicts[] = { [PLAN_FITS] = "fits", [PLAN_WAITS] = "requests_wait",
                                            [PLAN_SHORTER] = "shorter_context", [PLAN_REFUSED] = "refused" };
    char text[PLAN_TEXT];

    json_open(w, '{');
    json_kint(w, "context", p->ask.context);
    json_kint(w, "parallel", p->ask.parallel);
    json_kint(w, "replicas", p->ask.replicas);
    json_kint(w, "threads", p->size.threads);
    json_kstr(w, "isa", p->size.isa);
    json_kint(w, "weight_bytes", (int64_t)p->size.weight_bytes);
    json_kint(w, "scratch_bytes", (int64_t)p->size.scratch_bytes);
    json_kint(w, "logits_bytes", (int64_t)p->logits_bytes);
    json_kint(w, "sampler_bytes", (int64_t)p->sampler_bytes);
    json_kstr(w, "kv_type", kv_type_name(p->ask.kv_type));
    json_kint(w, "kv_bytes_per_token", (int64_t)plan_token_bytes(&p->size.shape, p->ask.kv_type));
    put_json_bytes(w, "kv_bytes", p->kv_bytes);
    put_json_bytes(w, "total_bytes", p->total_bytes);
    put_json_bytes(w, "available_bytes", p->ask.room);
    if (p->ask.limit)
        json_kint(w, "limit_bytes", (int64_t)p->ask.limit);
    json_kstr(w, "verdict", verdicts[p->verdict]);
    json_kbool(w, "fits", p->verdict == PLAN_FITS);
    json_kstr(w, "reason", plan_text(p, text));
    json_kint(w, "most_context", p->most_context);
    json_kint(w, "most_parallel", p->most_parallel);
    json_close(w, '}');
}

static void put_json_types(struct json_writer *w, const struct info *f)
{
    json_open(w, '[');
    for (size_t i = 0; i < f->n_types; i++) {
        json_open(w, '{');
        json_kstr(w, "type", f->types[i].name);
        json_kint(w, "tensors", (int64_t)f->types[i].n);
        json_kint(w, "bytes", (int64_t)f->types[i].bytes);
        json_knum(w, "bits", f->types[i].bits);
        json_knum(w, "kept_bits", f->types[i].kept_bits);
        json_close(w, '}');
    }
    json_close(w, ']');
}

static void put_json(struct buf *out, const struct info *f)
{
    const struct model_shape *s = &f->plan.size.shape;
    struct json_writer w = json_writer(out);
    char error[ERR_TEXT];
    const char *no = why_not(f, error);

    json_open(&w, '{');
    json_kstr(&w, "path", f->ask->path);
    json_kint(&w, "bytes", (int64_t)gguf_bytes(f->file));
    json_kstr(&w, "name", f->name);
    json_kstr(&w, "architecture", f->arch);
    json_kbool(&w, "supported", !no);
    json_kstr(&w, "why_not", no);
    json_kint(&w, "parameters", (int64_t)f->n_elements);
    json_kstr(&w, "quantisation", main_type(f) ? main_type(f)->name : NULL);
    json_knum(&w, "bits_per_parameter", bits_each(f));
    json_kint(&w, "context_length", s->n_ctx_train);
    json_kint(&w, "layers", s->n_layers);
    json_kint(&w, "heads", s->n_heads);
    json_kint(&w, "kv_heads", s->n_kv_heads);
    json_kint(&w, "head_dim", s->head_real);
    json_kint(&w, "sliding_layers", f->plan.size.n_sliding);
    json_kint(&w, "sliding_window", f->plan.size.window);
    json_kstr(&w, "tokenizer", f->tokenizer ? tokenizer_kind(f->tokenizer) : NULL);
    json_kint(&w, "vocabulary", f->tokenizer ? tokenizer_size(f->tokenizer) : 0);
    json_kstr(&w, "chat_template", f->template.chat ? chat_name(f->template.chat) : NULL);
    json_kstr(&w, "chat_template_reason", f->template.chat ? f->template.reason : err_text(&f->no_template));
    json_key(&w, "tensors");
    put_json_types(&w, f);
    json_key(&w, "memory");
    if (f->planned)
        put_json_plan(&w, &f->plan);
    else
        json_null(&w);
    json_close(&w, '}');
    buf_addc(out, '\n');
}

int model_info_show(const struct model_info_ask *ask)
{
    struct info f = { .ask = ask };
    BUF_LOCAL out = BUF_INIT;
    struct err err = { 0 };
    int r = read_file(&f, &err);

    if (r < 0) {
        term_error("%s", err_text(&err));
    } else if (ask->json) {
        put_json(&out, &f);
        fwrite(buf_str(&out), 1, out.len, stdout);
    } else {
        put_file(&out, &f);
        if (f.planned)
            put_plan(&out, &f);
        term_write(buf_str(&out), out.len);
    }
    info_fini(&f);
    return r < 0 ? CLI_FAILED : CLI_DONE;
}
