#include "gen/sched.h"

#include "base/err.h"
#include "gen/kv.h"

#include <assert.h>
#include <errno.h>

struct list {
    struct sched_seq *first, *last;
    uint32_t n;
};

struct sched {
    struct kv *kv;
    uint32_t parallel, max_rows;
    struct list waiting, running;   /* oldest first */
    size_t n_plan;
    struct sched_rows plan[];       /* [parallel] */
};

static void list_add(struct list *l, struct sched_seq *seq)
{
    seq->prev = l->last;
    seq->next = NULL;
    if (l->last)
        l->last->next = seq;
    else
        l->first = seq;
    l->last = seq;
    l->n++;
}

static void list_remove(struct list *l, struct sched_seq *seq)
{
    if (seq->prev)
        seq->prev->next = seq->next;
    else
        l->first = seq->next;
    if (seq->next)
        seq->next->prev = seq->prev;
    else
        l->last = seq->prev;
    seq->prev = seq->next = NULL;
    l->n--;
}

uint32_t sched_pages_of(uint32_t n_positions)
{
    return n_positions / KV_PAGE + (n_positions % KV_PAGE != 0);
}

int sched_open(struct kv *kv, uint32_t parallel, uint32_t max_rows, struct sched **ret,
               struct err *err)
{
    struct sched *s = calloc(1, sizeof *s + parallel * sizeof s->plan[0]);

    if (!s)
        return err_set(err, -ENOMEM, "no memory to schedule %u sequences", parallel);
    s->kv = kv;
    s->parallel = parallel;
    s->max_rows = max_rows;
    *ret = s;
    return 0;
}

void sched_close(struct sched *s)
{
    free(s);
}

int sched_add(struct sched *s, struct sched_seq *seq)
{
    assert(seq->state == SCHED_OUT && seq->n_prompt && seq->n_total > seq->n_prompt);
    if (sched_pages_of(seq->n_total) > kv_pages(s->kv))
        return SCHED_TOO_LONG;
    seq->state = SCHED_WAITING;
    list_add(&s->waiting, seq);
    return 0;
}

void sched_remove(struct sched *s, struct sched_seq *seq)
{
    if (seq->state != SCHED_OUT)
        list_remove(seq->state == SCHED_WAITING ? &s->waiting : &s->running, seq);
    while (seq->n_pages)
        kv_give(s->kv, seq->pages[--seq->n_pages]);
    seq->state = SCHED_OUT;
}

struct sched_seq *sched_admit(struct sched *s)
{
    struct sched_seq *seq = s->waiting.first;
    uint32_t need;

    while (seq && seq->held)
        seq = seq->next;
    if (!seq || s->running.n == s->parallel)
        return NULL;
    need = sched_pages_of(seq->n_total);
    if (need > kv_free_pages(s->kv))
        return NULL;
    while (seq->n_pages < need && !kv_take(s->kv, &seq->pages[seq->n_pages]))
        seq->n_pages++;
    assert(seq->n_pages == need);
    list_remove(&s->waiting, seq);
    list_add(&s->running, seq);
    seq->state = SCHED_RUNNING;
    return seq;
}

static bool generates(const struct sched_seq *seq)
{
    return seq->n_done >= seq->n_prompt;
}

size_t sched_plan(struct sched *s, const struct sched_rows **ret)
{
    uint32_t rows = 0, left;

    s->n_plan = 0;
    for (struct sched_seq *q = s->running.first; q && rows < s->max_rows; q = q->next) {
        if (q->held || !generates(q) || q->n_done >= q->n_total)
            continue;
        s->plan[s->n_plan++] = (struct sched_rows){ q, q->n_done, 1, true };
        rows++;
    }
    left = rows + SCHED_MIN_PROMPT_ROWS < SCHED_ROWS ? SCHED_ROWS - rows : SCHED_MIN_PROMPT_ROWS;
    left = left < s->max_rows - rows ? left : s->max_rows - rows;
    for (struct sched_seq *q = s->running.first; q && left; q = q->next) {
        uint32_t n = q->n_prompt - q->n_done;

        if (q->held || generates(q))
            continue;
        n = n < left ? n : left;
        s->plan[s->n_plan++] = (struct sched_rows){ q, q->n_done, n, q->n_done + n == q->n_prompt };
        left -= n;
    }
    *ret = s->plan;
    return s->n_plan;
}

void sched_advance(struct sched *s)
{
    for (size_t i = 0; i < s->n_plan; i++)
        s->plan[i].seq->n_done += s->plan[i].n;
    s->n_plan = 0;
}

uint32_t sched_running(const struct sched *s) { return s->running.n; }

uint32_t sched_waiting(const struct sched *s) { return s->waiting.n; }
