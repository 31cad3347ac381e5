#include "gen/draft.h"

#include "base/err.h"
#include "gen/draft_model.h"
#include "gen/ngram.h"

#include <errno.h>
#include <string.h>

/* How many proposals a sequence gets. A row more costs 2 to 7 % of a pass of one row, up to eight
 * rows (SmolLM2 135M Q4_1, AVX-512 VNNI), 14 % up to sixteen; a proposal of a draft model a pass of its
 * own. Where fewer are right than this, there is nothing to win. */
static const float worth[] = { [DRAFT_NGRAM] = 0.12f, [DRAFT_MODEL] = 0.25f };
static const float weight = 0.125f, hope = 0.5f;
enum { FIRST_TOKENS = 4, PROBE_TOKENS = 2, FIRST_PAUSE = 8, LAST_PAUSE = 256 };

struct pace {
    uint32_t tokens;            /* the next proposals */
    float rate;                 /* of those that were right, of late */
    uint32_t wait, pause;       /* passes without any: left, and the next time */
};

struct draft_seq {
    struct draft_seq *next;     /* free */
    struct pace pace;
    struct ngram *ngram;
    struct draft_reader *reader;
};

struct draft {
    enum draft_kind kind;
    uint32_t tokens, parallel;
    struct draft_model *model;
    struct draft_reader **readers;                  /* [parallel] of a call */
    struct draft_seq *free;
    struct draft_seq seqs[];    /* [parallel] */
};

int draft_kind_of(const char *name)
{
    static const char *const names[] = { "off", "ngram", "draft" };

    if (!name || !*name)
        return DRAFT_OFF;
    for (int i = 0; i < 3; i++)
        if (strcmp(name, names[i]) == 0)
            return i;
    return -1;
}

static int open_seq(struct draft *d, uint32_t i, uint32_t n_ctx, struct err *err)
{
    struct draft_seq *s = &d->seqs[i];

    s->next = d->free;
    d->free = s;
    if (d->kind == DRAFT_NGRAM)
        return ngram_open(n_ctx, &s->ngram, err);
    s->reader = draft_model_reader(d->model, i);
    return 0;
}

int draft_open(const struct draft_options *options, struct draft **ret, struct err *err)
{
    CLEANUP(draft_close) struct draft *d = calloc(1, sizeof *d + options->parallel * sizeof d->seqs[0]);
    int r = 0;

    if (!d || !(d->readers = calloc(options->parallel, sizeof d->readers[0])))
        return err_set(err, -ENOMEM, "no memory for proposals of %u sequences", options->parallel);
    d->kind = options->kind;
    d->tokens = options->tokens ? options->tokens : DRAFT_DEFAULT_TOKENS;
    d->tokens = d->tokens < DRAFT_MAX_TOKENS ? d->tokens : DRAFT_MAX_TOKENS;
    d->parallel = options->parallel;
    if (d->kind == DRAFT_MODEL)
        r = draft_model_open(options, &d->model, err);
    for (uint32_t i = options->parallel; r == 0 && i-- > 0; )
        r = open_seq(d, i, options->n_ctx, err);
    if (r < 0)
        return r;
    *ret = STEAL(d);
    return 0;
}

int draft_open_kv(struct draft *d, uint32_t n_pages, enum kv_type type, struct err *err)
{
    return d->model ? draft_model_open_kv(d->model, n_pages, type, err) : 0;
}

void draft_close(struct draft *d)
{
    if (!d)
        return;
    for (uint32_t i = 0; i < d->parallel; i++)
        ngram_close(d->seqs[i].ngram);
    draft_model_close(d->model);
    free(d->readers);
    free(d);
}

const struct model_shape *draft_shape(const struct draft *d) { return d->model ? draft_model_shape(d->model) : NULL; }

uint64_t draft_kv_bytes(const struct draft *d) { return d->model ? draft_model_kv_bytes(d->model) : 0; }

struct draft_seq *draft_begin(struct draft *d)
{
    struct draft_seq *s = d->free;

    if (!s)
        return NULL;
    d->free = s->next;
    s->pace = (struct pace){
        .tokens = d->tokens < FIRST_TOKENS ? d->tokens : FIRST_TOKENS, .rate = hope, .pause = FIRST_PAUSE,
    };
    if (s->ngram)
        ngram_reset(s->ngram);
    return s;
}

void draft_end(struct draft *d, struct draft_seq *s)
{
    if (!s)
        return;
    if (s->reader)
        draft_model_forget(d->model, s->reader);
    s->next = d->free;
    d->free = s;
}

uint32_t draft_wants(struct draft *d, struct draft_seq *s)
{
    (void)d;
    if (!s->pace.wait)
        return s->pace.tokens;
    s->pace.wait--;
    return 0;
}

void draft_learn(struct draft *d, const struct draft_ask *ask, uint32_t n_accepted)
{
    /* One that was in doubt and proposed nothing has cost as much as one that was wrong. */
    const uint32_t n_drafted = ask->n_drafted ? ask->n_drafted : 1;
    struct pace *p = &ask->seq->pace;

    if (!ask->tried)
        return;
    p->rate += weight * ((float)n_accepted / (float)n_drafted - p->rate);
    if (n_accepted == n_drafted)
        p->tokens = 2 * p->tokens < d->tokens ? 2 * p->tokens : d->tokens;
    else
        p->tokens = (p->tokens + n_accepted + 1) / 2;
    if (p->rate >= hope)
        p->pause = FIRST_PAUSE;
    if (p->rate >= worth[d->kind])
        return;
    p->wait = p->pause;
    p->pause = 2 * p->pause < LAST_PAUSE ? 2 * p->pause : LAST_PAUSE;
    /* A probe that is wrong stops it at once, one that is right goes on. */
    p->rate = worth[d->kind];
    p->tokens = d->tokens < PROBE_TOKENS ? d->tokens : PROBE_TOKENS;
}

void draft_prepare(struct draft *d, struct draft_ask *asks, size_t n)
{
    for (size_t i = 0; d->model && i < n; i++)
        draft_model_prepare(d->model, asks[i].seq->reader, &asks[i]);
}

void draft_propose(struct draft *d, struct draft_ask *asks, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct draft_ask *a = &asks[i];

        d->readers[i] = a->seq->reader;
        a->n_drafted = d->model || !a->want ? 0 : ngram_propose(a->seq->ngram, a->text, a->n, a->want, a->tokens);
        a->tried = a->n_drafted;
    }
    if (d->model)
        draft_model_propose(d->model, d->readers, asks, n);
}
