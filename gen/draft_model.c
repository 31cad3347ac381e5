/* What a reader has in its pages: the first n_read tokens of the text, then the
 * proposals it fed itself, which may or may not have become text. propose()
 * begins with finding out: as far as they did, they are read. */
#include "gen/draft_model.h"

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "gen/kv.h"
#include "gen/model.h"
#include "gen/sched.h"
#include "loaders/gguf.h"
#include "loaders/tokenizer.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    CATCH_UP = DRAFT_MAX_TOKENS + 1,                /* tokens that are read at once before a proposal: those of a pass */
    DOUBT_TOKENS = 16,          /* logits that are compared at a time */
};
_Static_assert(DRAFT_ROWS * CATCH_UP + DRAFT_READ_ROWS <= MODEL_MAX_ROWS, "what a pass may hold");
/* The best token is taken while it is at least this much likelier than the
 * second best: twice. */
static const float certain = 0.69f;

struct draft_reader {
    uint32_t n_read, n_fed;
    int32_t fed[DRAFT_MAX_TOKENS];                  /* at n_read and on */
    uint32_t n_pages;
    uint32_t *pages;            /* [sched_pages_of(n_ctx)] */
    bool lost;                  /* read a token that is not in the model, or all that it can hold */
};

struct draft_model {
    struct model *model;
    struct kv *kv;
    uint32_t parallel, n_ctx, vocab_size;
    uint32_t n_tokens;          /* of the vocabulary; logits beyond are padding */
    float *logits;              /* [DRAFT_ROWS][vocab_size] */
    struct model_row *rows;     /* [MODEL_MAX_ROWS] */
    uint32_t *pages;            /* [parallel][sched_pages_of(n_ctx)] */
    size_t *drafting;           /* [parallel] asks that take part in a step */
    struct draft_reader readers[];                  /* [parallel] */
};

/* ---- opening ---- */

static void quote(struct buf *out, const struct tokenizer *t, uint32_t id)
{
    size_t len = 0;
    const char *text = tokenizer_token(t, (int32_t)id, &len);

    json_quote(out, text ? text : "", len < 60 ? len : 60);
}

int draft_model_same_vocabulary(const struct tokenizer *target, const char *target_name, const struct tokenizer *draft,
                                const char *draft_name, struct err *err)
{
    const uint32_t n = tokenizer_size(target);
    BUF_LOCAL theirs = BUF_INIT;
    BUF_LOCAL ours = BUF_INIT;

    if (tokenizer_size(draft) != n)
        return err_set(err, -EINVAL, "%s: a draft model has the vocabulary of its model, but this has %u tokens, and %s %u",
                       draft_name, tokenizer_size(draft), target_name, n);
    for (uint32_t i = 0; i < n; i++) {
        size_t a_len = 0, b_len = 0;
        const char *a = tokenizer_token(target, (int32_t)i, &a_len), *b = tokenizer_token(draft, (int32_t)i, &b_len);

        if (a_len != b_len || !a != !b || (a && memcmp(a, b, a_len))) {
            quote(&ours, target, i);
            quote(&theirs, draft, i);
            return err_set(err, -EINVAL,
                           "%s: a draft model has the vocabulary of its model, but token %u is %s here, and %s in %s",
                           draft_name, i, buf_str(&theirs), buf_str(&ours), target_name);
        }
        if (tokenizer_is_control(target, (int32_t)i) != tokenizer_is_control(draft, (int32_t)i))
            return err_set(err, -EINVAL,
                           "%s: a draft model has the vocabulary of its model, but token %u is %sa control token here, unlike in %s",
                           draft_name, i, tokenizer_is_control(draft, (int32_t)i) ? "" : "not ", target_name);
    }
    return 0;
}

static int check_vocabulary(const struct draft_options *o, struct err *err)
{
    CLEANUP(tokenizer_close) struct tokenizer *t = NULL;
    const char *path = gguf_path(o->file);
    struct model_size size;
    int r = tokenizer_open(o->file, &t, err);

    if (r == 0)
        r = draft_model_same_vocabulary(o->target_tokenizer, gguf_path(o->target_file), t, path, err);
    if (r == 0)
        r = model_measure(o->file, 1, model_isa(o->target), &size, err);
    if (r == 0 && size.shape.vocab_size < tokenizer_size(t))
        r = err_set(err, -EINVAL, "%s: %u tokens, but an embedding of %u", path, tokenizer_size(t), size.shape.vocab_size);
    return r;
}

int draft_model_open(const struct draft_options *o, struct draft_model **ret, struct err *err)
{
    const struct model_options options = { .isa = model_isa(o->target), .threads_of = o->target, .pulse = o->pulse };
    CLEANUP(draft_model_close) struct draft_model *m = NULL;
    const struct model_shape *s;
    size_t n_pages;
    int r = check_vocabulary(o, err);

    if (r < 0)
        return r;
    m = calloc(1, sizeof *m + o->parallel * sizeof m->readers[0]);
    if (!m)
        return err_set(err, -ENOMEM, "%s: no memory", gguf_path(o->file));
    r = model_open(o->file, &options, &m->model, err);
    if (r < 0)
        return r;
    s = model_shape(m->model);
    m->parallel = o->parallel;
    m->n_ctx = s->n_ctx_train && s->n_ctx_train < o->n_ctx ? s->n_ctx_train : o->n_ctx;
    m->vocab_size = s->vocab_size;
    m->n_tokens = tokenizer_size(o->target_tokenizer);
    n_pages = sched_pages_of(m->n_ctx);
    m->logits = calloc((size_t)DRAFT_ROWS * m->vocab_size, sizeof m->logits[0]);
    m->rows = calloc(MODEL_MAX_ROWS, sizeof m->rows[0]);
    m->pages = calloc(o->parallel * n_pages, sizeof m->pages[0]);
    m->drafting = calloc(o->parallel, sizeof m->drafting[0]);
    if (!m->logits || !m->rows || !m->pages || !m->drafting)
        return err_set(err, -ENOMEM, "%s: no memory for %u sequences at once", gguf_path(o->file), o->parallel);
    for (uint32_t i = 0; i < o->parallel; i++)
        m->readers[i].pages = m->pages + i * n_pages;
    *ret = STEAL(m);
    return 0;
}

int draft_model_open_kv(struct draft_model *m, uint32_t n_pages, enum kv_type type, struct err *err)
{
    const struct model_shape *s = model_shape(m->model);

    return kv_open(&(struct kv_shape){ s->n_layers, s->n_kv_heads, s->head_dim, n_pages, type }, &m->kv, err);
}

void draft_model_close(struct draft_model *m)
{
    if (!m)
        return;
    kv_close(m->kv);
    model_close(m->model);
    free(m->logits);
    free(m->rows);
    free(m->pages);
    free(m->drafting);
    free(m);
}

const struct model_shape *draft_model_shape(const struct draft_model *m) { return model_shape(m->model); }

uint64_t draft_model_kv_bytes(const struct draft_model *m) { return m->kv ? kv_bytes(m->kv) : 0; }

struct draft_reader *draft_model_reader(struct draft_model *m, uint32_t i) { return &m->readers[i]; }

/* ---- sequences ---- */

static void give_pages(struct draft_model *m, struct draft_reader *r)
{
    while (r->n_pages)
        kv_give(m->kv, r->pages[--r->n_pages]);
}

void draft_model_forget(struct draft_model *m, struct draft_reader *r)
{
    give_pages(m, r);
    r->n_read = r->n_fed = 0;
    r->lost = false;
}

void draft_model_prepare(struct draft_model *m, struct draft_reader *r, struct draft_ask *a)
{
    const uint32_t most = a->n + (a->want ? a->want - 1 : 0);   /* the last proposal is not fed */
    const uint32_t need = sched_pages_of(most);

    r->lost |= most > m->n_ctx;
    if (r->lost)
        give_pages(m, r);
    while (!r->lost && r->n_pages < need && !kv_take(m->kv, &r->pages[r->n_pages]))
        r->n_pages++;
    /* Without room it reads no further: another sequence may end. */
    if (r->lost || r->n_pages < need)
        a->want = 0;
}

/* What stands of what it fed itself. */
static void settle(struct draft_reader *r, const struct draft_ask *a)
{
    for (uint32_t i = 0; i < r->n_fed && r->n_read < a->n - 1 && a->text[r->n_read] == r->fed[i]; i++)
        r->n_read++;
    r->n_fed = 0;
    /* The last token's logits are wanted, also of a text that has not grown since. */
    if (r->n_read >= a->n)
        r->n_read = a->n - 1;
}

/* Rows of the next k tokens of the text. */
static size_t add_rows(struct draft_model *m, struct draft_reader *r, const struct draft_ask *a, uint32_t k, bool prompt,
                       size_t n_rows)
{
    for (uint32_t i = 0; i < k && !r->lost; i++) {
        const int32_t token = a->text[r->n_read];

        if (token < 0 || (uint32_t)token >= m->vocab_size) {
            r->lost = true;
            break;
        }
        m->rows[n_rows++] = (struct model_row){ .token = token, .pos = r->n_read++, .pages = r->pages, .prompt = prompt };
    }
    return n_rows;
}

/* Of those that are ready to propose: rows up to the last token, with its logits. */
static size_t add_drafting(struct draft_model *m, struct draft_reader *const *readers, struct draft_ask *asks, size_t n,
                           size_t *ret_n_drafting)
{
    size_t n_rows = 0, n_drafting = 0;

    for (size_t i = 0; i < n; i++) {
        struct draft_reader *r = readers[i];

        settle(r, &asks[i]);
        if (r->lost || !asks[i].want || asks[i].n - r->n_read > CATCH_UP || n_drafting == DRAFT_ROWS)
            continue;
        n_rows = add_rows(m, r, &asks[i], asks[i].n - r->n_read, false, n_rows);
        if (r->lost)
            continue;
        m->rows[n_rows - 1].logits = m->logits + n_drafting * m->vocab_size;
        m->drafting[n_drafting++] = i;
        asks[i].tried = true;
    }
    *ret_n_drafting = n_drafting;
    return n_rows;
}

/* A piece of what others have not read, but for the last tokens: those come with the first proposal. */
static size_t add_reading(struct draft_model *m, struct draft_reader *const *readers, const struct draft_ask *asks, size_t n,
                          size_t n_rows)
{
    uint32_t left = DRAFT_READ_ROWS;

    for (size_t i = 0; i < n; i++) {
        struct draft_reader *r = readers[i];
        const uint32_t room = r->n_pages * KV_PAGE, end = asks[i].n - 1 < room ? asks[i].n - 1 : room;
        uint32_t k = end > r->n_read ? end - r->n_read : 0;

        k = k < left ? k : left;
        n_rows = add_rows(m, r, &asks[i], k, true, n_rows);
        left -= k;
    }
    return n_rows;
}

static float greater(float a, float b) { return a > b ? a : b; }

/* The best token; *ret_sure: whether the second best is far. */
static int32_t best_of(const float *x, uint32_t n, bool *ret_sure)
{
    float best = -INFINITY, second = -INFINITY;
    uint32_t at = 0;

    for (uint32_t i = 0; i < n; i += DOUBT_TOKENS) {
        const uint32_t end = i + DOUBT_TOKENS < n ? i + DOUBT_TOKENS : n;
        float most = -INFINITY;

        for (uint32_t j = i; j < end; j++)
            most = greater(x[j], most);
        if (most <= second)
            continue;
        for (uint32_t j = i; j < end; j++) {
            if (x[j] > best) {
                second = best;
                best = x[j];
                at = j;
            } else {
                second = greater(x[j], second);
            }
        }
    }
    *ret_sure = best - second >= certain;
    return (int32_t)at;
}

/* Takes the proposals of a pass and makes the rows of the next one. */
static size_t take_proposals(struct draft_model *m, struct draft_reader *const *readers, struct draft_ask *asks,
                             size_t *n_drafting)
{
    size_t n_rows = 0;

    for (size_t k = 0; k < *n_drafting; k++) {
        struct draft_ask *a = &asks[m->drafting[k]];
        struct draft_reader *r = readers[m->drafting[k]];
        bool sure;
        const int32_t token = best_of(m->logits + k * m->vocab_size, m->n_tokens, &sure);

        if (!sure)
            continue;
        a->tokens[a->n_drafted++] = token;
        if (a->n_drafted == a->want)
            continue;
        m->rows[n_rows] = (struct model_row){
            .token = token, .pos = r->n_read + r->n_fed, .pages = r->pages, .logits = m->logits + n_rows * m->vocab_size,
        };
        r->fed[r->n_fed++] = token;
        m->drafting[n_rows++] = m->drafting[k];
    }
    *n_drafting = n_rows;
    return n_rows;
}

void draft_model_propose(struct draft_model *m, struct draft_reader *const *readers, struct draft_ask *asks, size_t n)
{
    size_t n_drafting, n_rows = add_drafting(m, readers, asks, n, &n_drafting);

    n_rows = add_reading(m, readers, asks, n, n_rows);
    while (n_rows) {
        model_forward(m->model, m->kv, m->rows, n_rows);
        n_rows = take_proposals(m, readers, asks, &n_drafting);
    }
}
