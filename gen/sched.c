#include "gen/sched.h"

#include "base/err.h"
#include "gen/budget.h"
#include "gen/kv.h"
#include "gen/turns.h"

#include <assert.h>
#include <errno.h>

struct list {
    struct sched_seq *first, *last;
    uint32_t n;
};

struct sched {
    struct kv *kv;
    struct prefix *prefix;
    struct turns *turns;
    struct budget budget;
    uint32_t parallel, queue, max_rows;
    struct list waiting;            /* as they came */
    struct list running;            /* most urgent first */
    uint64_t n_came, n_places, n_preempted, n_cached;
    uint32_t layers;                /* 0: prompts are not read apart */
    struct sched_layers through;    /* of the piece */
    struct sched_rows *piece;       /* [parallel] */
    size_t n_piece;                 /* 0: there is none */
    uint32_t n_generated, n_read;   /* rows of the pass */
    size_t n_plan;
    struct sched_rows plan[];       /* [parallel] */
};

/* ---- lists ---- */

static void list_add_before(struct list *l, struct sched_seq *seq, struct sched_seq *next)
{
    seq->next = next;
    seq->prev = next ? next->prev : l->last;
    if (seq->prev)
        seq->prev->next = seq;
    else
        l->first = seq;
    if (next)
        next->prev = seq;
    else
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

static void run(struct sched *s, struct sched_seq *seq)
{
    struct sched_seq *at = s->running.first;

    if (!seq->place)
        seq->place = ++s->n_places;
    while (at && (at->priority < seq->priority || (at->priority == seq->priority && at->place < seq->place)))
        at = at->next;
    list_add_before(&s->running, seq, at);
    seq->state = SCHED_RUNNING;
}

static bool comes_before(const struct sched *s, const struct sched_seq *a, const struct sched_seq *b)
{
    uint64_t served_a = turns_served(s->turns, a->turn), served_b = turns_served(s->turns, b->turn);

    if (a->priority != b->priority)
        return a->priority < b->priority;
    if (a->place || b->place)
        return a->place && (!b->place || a->place < b->place);
    if (served_a != served_b)
        return served_a < served_b;
    return a->came < b->came;
}

static struct sched_seq *first_waiting(const struct sched *s)
{
    struct sched_seq *first = NULL;

    for (struct sched_seq *q = s->waiting.first; q; q = q->next)
        if (!q->held && (!first || comes_before(s, q, first)))
            first = q;
    return first;
}

/* ---- opening ---- */

uint32_t sched_pages_of(uint32_t n_positions)
{
    return n_positions / KV_PAGE + (n_positions % KV_PAGE != 0);
}

int sched_open(const struct sched_config *config, struct sched **ret, struct err *err)
{
    CLEANUP(sched_close) struct sched *s = calloc(1, sizeof *s + config->parallel * sizeof s->plan[0]);
    int r;

    if (!s)
        return err_set(err, -ENOMEM, "no memory to schedule %u sequences", config->parallel);
    r = turns_open(config->parallel + config->queue, &s->turns, err);
    if (r < 0)
        return r;
    s->kv = config->kv;
    s->prefix = config->prefix;
    s->parallel = config->parallel;
    s->queue = config->queue;
    s->max_rows = config->max_rows;
    s->layers = config->layers;
    s->piece = calloc(config->parallel, sizeof s->piece[0]);
    if (!s->piece)
        return err_set(err, -ENOMEM, "no memory to schedule %u sequences", config->parallel);
    budget_init(&s->budget, s->max_rows);
    *ret = STEAL(s);
    return 0;
}

void sched_close(struct sched *s)
{
    if (!s)
        return;
    turns_close(s->turns);
    free(s->piece);
    free(s);
}

/* ---- pages ---- */

static bool take_page(struct sched *s, struct sched_seq *seq)
{
    uint32_t page;

    if (kv_take(s->kv, &page) && (!s->prefix || !prefix_evict(s->prefix) || kv_take(s->kv, &page)))
        return false;
    seq->pages[seq->n_pages++] = page;
    return true;
}

/* All of them, and what was computed goes with them. */
static void give_pages(struct sched *s, struct sched_seq *seq)
{
    while (seq->n_pages) {
        uint32_t page = seq->pages[--seq->n_pages];

        if (seq->n_pages >= seq->n_shared) {
            kv_give(s->kv, page);
        } else {
            prefix_leave(s->prefix, page);
            seq->n_shared--;
        }
    }
    seq->n_done = 0;
}

static uint32_t pages_to_have(const struct sched *s)
{
    return kv_free_pages(s->kv) + (s->prefix ? prefix_idle(s->prefix) : 0);
}

static struct prefix_key key_of(const struct sched_seq *seq, uint32_t i)
{
    return (struct prefix_key){
        .parent = i ? seq->pages[i - 1] : PREFIX_ROOT,
        .hash = seq->chain[i],
        .salt = seq->salt,
        .tokens = seq->tokens + (size_t)i * KV_PAGE,
    };
}

/* Pages that it need not read itself, if somebody did. The last token's logits say how it goes
 * on; once something is generated that is known. */
static uint32_t pages_to_share(const struct sched *s, const struct sched_seq *seq)
{
    if (!s->prefix || !seq->chain)
        return 0;
    return (seq->n_known > seq->n_prompt ? seq->n_prompt : seq->n_prompt - 1) / KV_PAGE;
}

static void count_cached(struct sched *s, struct sched_seq *seq)
{
    if (seq->n_done <= seq->n_read)
        return;
    seq->n_cached += seq->n_done - seq->n_read;
    s->n_cached += seq->n_done - seq->n_read;
    seq->n_read = seq->n_done;
}

/* Takes what others have read, in place of pages of its own where it has them already. */
static void take_shared(struct sched *s, struct sched_seq *seq)
{
    uint32_t n = pages_to_share(s, seq), page;

    while (seq->n_shared < n && seq->n_done == seq->n_shared * KV_PAGE) {
        struct prefix_key key = key_of(seq, seq->n_shared);

        if (!prefix_take(s->prefix, &key, &page))
            break;
        if (seq->n_shared < seq->n_pages)
            kv_give(s->kv, seq->pages[seq->n_shared]);
        else
            seq->n_pages++;
        seq->pages[seq->n_shared++] = page;
        seq->n_done += KV_PAGE;
    }
}

/* Lets others have what it has read. */
static void put_shared(struct sched *s, struct sched_seq *seq)
{
    uint32_t n = (seq->n_done < seq->n_prompt ? seq->n_done : seq->n_prompt) / KV_PAGE;

    if (!s->prefix || !seq->chain)
        return;
    for (; seq->n_shared < n; seq->n_shared++) {
        struct prefix_key key = key_of(seq, seq->n_shared);

        seq->pages[seq->n_shared] = prefix_put(s->prefix, &key, seq->pages[seq->n_shared]);
    }
}

/* ---- in and out ---- */

int sched_add(struct sched *s, struct sched_seq *seq)
{
    assert(seq->state == SCHED_OUT && seq->n_prompt && seq->n_total > seq->n_prompt);
    if (sched_pages_of(seq->n_total) > kv_pages(s->kv))
        return SCHED_TOO_LONG;
    if (s->running.n + s->waiting.n >= s->parallel + s->queue)
        return SCHED_BUSY;
    seq->n_known = seq->n_prompt;
    seq->came = ++s->n_came;
    seq->turn = turns_enter(s->turns, seq->tenant);
    seq->state = SCHED_WAITING;
    list_add_before(&s->waiting, seq, NULL);
    return 0;
}

bool sched_goes_on(const struct sched *s) { return s->n_piece; }

void sched_drop_piece(struct sched *s)
{
    for (size_t i = 0; i < s->n_piece; i++)
        s->piece[i].seq->in_piece = false;
    s->n_piece = 0;
}

void sched_remove(struct sched *s, struct sched_seq *seq)
{
    if (seq->state == SCHED_OUT)
        return;
    if (seq->in_piece)
        sched_drop_piece(s);
    list_remove(seq->state == SCHED_WAITING ? &s->waiting : &s->running, seq);
    give_pages(s, seq);
    turns_leave(s->turns, seq->turn);
    seq->state = SCHED_OUT;
}

static void preempt(struct sched *s, struct sched_seq *seq)
{
    give_pages(s, seq);
    seq->n_preempted++;
    s->n_preempted++;
    list_remove(&s->running, seq);
    list_add_before(&s->waiting, seq, NULL);
    seq->state = SCHED_WAITING;
}

static struct sched_seq *least_urgent(const struct sched *s)
{
    struct sched_seq *q = s->running.last;

    while (q && q->in_piece)
        q = q->prev;
    return q;
}

/* Whose pages go so that `seq`, which runs, gets one: somebody who does not use them now, else the
 * least urgent. NULL: that is itself. */
static struct sched_seq *victim_for_growth(const struct sched *s, const struct sched_seq *seq)
{
    struct sched_seq *last = least_urgent(s);

    for (struct sched_seq *q = s->running.last; q; q = q->prev)
        if (q->held && q != seq && q->n_pages && !q->in_piece)
            return q;
    return last != seq ? last : NULL;
}

static bool grow(struct sched *s, struct sched_seq *seq)
{
    struct sched_seq *victim;

    while (!take_page(s, seq)) {
        victim = victim_for_growth(s, seq);
        if (!victim)
            return false;
        preempt(s, victim);
    }
    return true;
}

/* Who makes room for one that waits: who was held for long, or while nothing else runs, else the
 * least urgent if its priority is a lesser one. */
static struct sched_seq *victim_for_entry(const struct sched *s, const struct sched_seq *seq)
{
    struct sched_seq *held = NULL, *last = least_urgent(s);
    bool all_held = true;

    for (struct sched_seq *q = s->running.last; q; q = q->prev) {
        all_held &= q->held;
        if (q->in_piece)
            continue;
        if (q->held && !held)
            held = q;
        if (q->held && q->n_passes_held >= SCHED_HELD_PASSES)
            return q;
    }
    if (held && all_held)
        return held;
    return last && last->priority > seq->priority ? last : NULL;
}

/* Pages that victims could give at most. */
static uint64_t pages_of_victims(const struct sched *s, const struct sched_seq *seq)
{
    uint64_t n = 0;

    for (const struct sched_seq *q = s->running.first; q; q = q->next)
        if (!q->in_piece && (q->held || q->priority > seq->priority))
            n += q->n_pages;
    return n;
}

static bool may_grow(const struct sched_seq *seq)
{
    return sched_pages_of(seq->n_total) > (seq->state == SCHED_RUNNING ? seq->n_pages : sched_pages_of(seq->n_known));
}

/* For all to grow by; nobody else needs any where it runs alone. */
static uint64_t reserve_for(const struct sched *s, const struct sched_seq *seq)
{
    uint32_t again = seq->n_preempted < 4 ? seq->n_preempted : 4;
    uint64_t n = s->running.n && may_grow(seq);

    for (const struct sched_seq *q = s->running.first; q; q = q->next)
        n += may_grow(q);
    return n << again;
}

static uint64_t pages_missing(const struct sched *s, const struct sched_seq *seq)
{
    return sched_pages_of(seq->n_known) - seq->n_pages + reserve_for(s, seq);
}

/* Before anybody is thrown out for it. */
static bool could_enter(const struct sched *s, const struct sched_seq *seq)
{
    return pages_missing(s, seq) <= pages_to_have(s) + pages_to_share(s, seq) + pages_of_victims(s, seq);
}

static bool take_pages(struct sched *s, struct sched_seq *seq)
{
    struct sched_seq *victim;

    take_shared(s, seq);
    while (pages_missing(s, seq) > pages_to_have(s)) {
        victim = pages_missing(s, seq) <= pages_to_have(s) + pages_of_victims(s, seq) ? victim_for_entry(s, seq) : NULL;
        if (!victim) {
            give_pages(s, seq);
            return false;
        }
        preempt(s, victim);
    }
    while (seq->n_pages < sched_pages_of(seq->n_known) && take_page(s, seq))
        ;
    assert(seq->n_pages == sched_pages_of(seq->n_known));
    return true;
}

struct sched_seq *sched_admit(struct sched *s)
{
    struct sched_seq *seq = first_waiting(s), *victim;

    if (!seq || !could_enter(s, seq))
        return NULL;
    if (s->running.n == s->parallel) {
        victim = victim_for_entry(s, seq);
        if (!victim)
            return NULL;
        preempt(s, victim);
    }
    if (!take_pages(s, seq))
        return NULL;
    count_cached(s, seq);
    turns_count(s->turns, seq->turn, TURNS_PROMPT * (uint64_t)(seq->n_known - seq->n_done));
    list_remove(&s->waiting, seq);
    run(s, seq);
    return seq;
}

/* ---- a pass ---- */

static bool generates(const struct sched_seq *seq)
{
    return seq->n_done >= seq->n_prompt && seq->n_known - seq->n_done == 1;
}

static void plan_rows(struct sched *s, struct sched_seq *seq, uint32_t n, uint32_t n_logits)
{
    s->plan[s->n_plan++] = (struct sched_rows){ .seq = seq, .pos = seq->n_done, .n = n, .n_logits = n_logits,
                                                .prompt = seq->n_done < seq->n_prompt };
}

static uint32_t room_of(const struct sched *s) { return s->max_rows - s->n_generated - s->n_read; }

static void plan_generated(struct sched *s)
{
    for (struct sched_seq *q = s->running.first, *next; q && room_of(s); q = next) {
        if (!q->held && generates(q) && q->n_done < q->n_total && (q->n_pages > q->n_done / KV_PAGE || grow(s, q))) {
            plan_rows(s, q, 1, 1);
            s->n_generated++;
        }
        next = q->next;             /* not before: one that was to come may have made room */
    }
}

/* Somebody more urgent is about to read the page that it needs next. */
static bool follows(const struct sched *s, const struct sched_seq *seq)
{
    uint32_t i = seq->n_shared;

    if (i >= pages_to_share(s, seq) || seq->n_done != i * KV_PAGE)
        return false;
    for (const struct sched_seq *q = s->running.first; q != seq; q = q->next)
        if (!q->held && q->chain && q->n_shared <= i && i < q->n_prompt / KV_PAGE && q->chain[i] == seq->chain[i])
            return true;
    return false;
}

/* What was not read yet, or is to be computed again: of prompts, or of what was generated. */
static void plan_read(struct sched *s, uint32_t *left, bool prompts)
{
    for (struct sched_seq *q = s->running.first; q && *left; q = q->next) {
        uint32_t end = prompts ? q->n_prompt : q->n_known, to;

        if (q->held || generates(q) || (q->n_done < q->n_prompt) != prompts)
            continue;
        if (prompts && follows(s, q))
            continue;
        to = end - q->n_done <= *left ? end : q->n_done + *left;
        /* Whole pages: they are what others can take. */
        if (to < end && to / KV_PAGE * KV_PAGE > q->n_done)
            to = to / KV_PAGE * KV_PAGE;
        *left -= to - q->n_done;
        s->n_read += to - q->n_done;
        plan_rows(s, q, to - q->n_done, to == q->n_known);
    }
}

/* What changed since the last pass. */
static void look_around(struct sched *s)
{
    for (struct sched_seq *q = s->running.first; q; q = q->next) {
        q->n_passes_held = q->held ? q->n_passes_held + 1 : 0;
        if (q->n_done < q->n_prompt && !q->in_piece) {
            take_shared(s, q);
            count_cached(s, q);
        }
    }
}

static bool anything_to_read(const struct sched *s)
{
    for (const struct sched_seq *q = s->running.first; q; q = q->next)
        if (!q->held && !generates(q))
            return true;
    return false;
}

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* Prompts are rows of the pass. */
static void plan_beside(struct sched *s)
{
    uint32_t left;

    if (!anything_to_read(s))
        return;
    left = least(budget_rows(&s->budget, s->n_generated), room_of(s));
    plan_read(s, &left, false);
    plan_read(s, &left, true);
}

static void begin_piece(struct sched *s)
{
    const size_t first = s->n_plan;
    const uint32_t others = s->running.n < s->max_rows - KV_PAGE ? s->running.n : s->max_rows - KV_PAGE;
    uint32_t left = least(least(budget_piece(&s->budget, s->n_generated), s->max_rows - others), room_of(s));

    plan_read(s, &left, true);
    for (size_t i = first; i < s->n_plan; i++) {
        s->plan[i].seq->in_piece = true;
        s->piece[s->n_piece++] = s->plan[i];
    }
    s->n_plan = first;
}

/* Prompts are read apart: what is generated again comes first, in rows that make the pass little longer. */
static void plan_apart(struct sched *s)
{
    const uint32_t n_generated = s->n_generated, before = s->n_read;
    uint32_t left = least(n_generated ? BUDGET_AGAIN : s->max_rows, room_of(s)), n_layers;

    plan_read(s, &left, false);
    s->n_generated += s->n_read - before;
    s->n_read = before;
    if (!s->n_piece)
        begin_piece(s);
    n_layers = s->n_piece ? budget_layers(&s->budget, s->n_generated, s->n_read, s->layers - s->through.to) : 0;
    s->through.from = s->through.to;
    s->through.to += n_layers;
    for (size_t i = 0; i < s->n_piece && n_layers; i++) {
        struct sched_rows *rows = &s->plan[s->n_plan++];

        *rows = s->piece[i];
        rows->goes_on = s->through.to < s->layers;
        rows->n_logits = rows->goes_on ? 0 : rows->n_logits;
    }
}

size_t sched_plan(struct sched *s, const struct sched_rows **ret)
{
    s->n_plan = 0;
    s->n_generated = s->n_read = 0;             /* a piece that stands keeps its rows of the model */
    if (!s->n_piece)
        s->through = (struct sched_layers){ 0 };
    for (size_t i = 0; i < s->n_piece; i++)
        s->n_read += s->piece[i].n;
    look_around(s);
    plan_generated(s);
    if (s->layers)
        plan_apart(s);
    else
        plan_beside(s);
    *ret = s->plan;
    return s->n_plan;
}

struct sched_layers sched_layers(const struct sched *s) { return s->through; }

/* A page for what may turn out not to stand: only one that nobody uses, and that nobody who runs will need at once. */
static bool take_spare_page(struct sched *s, struct sched_seq *seq)
{
    return pages_to_have(s) > s->running.n && take_page(s, seq);
}

uint32_t sched_widen(struct sched *s, size_t entry, uint32_t more)
{
    struct sched_rows *rows = &s->plan[entry];
    struct sched_seq *q = rows->seq;
    const uint32_t left = q->n_total - rows->pos - rows->n;
    uint32_t end;

    assert(entry < s->n_plan && generates(q) && rows->n == 1);
    more = least(least(more, left), room_of(s));
    end = rows->pos + 1 + more;
    while (q->n_pages < sched_pages_of(end) && take_spare_page(s, q))
        ;
    if (q->n_pages < sched_pages_of(end))
        more = q->n_pages * KV_PAGE - rows->pos - 1;
    rows->n += more;
    rows->n_logits = rows->n;
    s->n_generated += more;
    return more;
}

void sched_keep(struct sched *s, size_t entry, uint32_t n_computed, uint32_t n)
{
    struct sched_rows *rows = &s->plan[entry];

    assert(entry < s->n_plan && n <= n_computed && n_computed <= rows->n);
    s->n_generated -= rows->n - n_computed;
    rows->n = rows->n_logits = n;
}

void sched_advance(struct sched *s)
{
    for (size_t i = 0; i < s->n_plan; i++) {
        const struct sched_rows *rows = &s->plan[i];
        struct sched_seq *q = rows->seq;

        if (rows->goes_on)
            continue;
        q->n_done = rows->pos + rows->n;
        if (q->n_done > q->n_read)
            q->n_read = q->n_done;
        if (rows->prompt)
            put_shared(s, q);
        turns_count(s->turns, q->turn, TURNS_GENERATED * (uint64_t)rows->n_logits);
    }
    s->n_plan = 0;
    if (s->n_piece && s->through.to == s->layers)
        sched_drop_piece(s);
}

void sched_took(struct sched *s, uint64_t us, uint64_t read_us)
{
    if (!s->layers) {
        budget_took(&s->budget, s->n_generated, s->n_read, us);
        return;
    }
    if (s->through.from < s->through.to)
        budget_took_layers(&s->budget, s->n_read, s->through.to - s->through.from, read_us, s->n_generated, us - read_us);
    else
        budget_took(&s->budget, s->n_generated, 0, us);
}

void sched_stats(const struct sched *s, struct sched_stats *ret)
{
    *ret = (struct sched_stats){
        .running = s->running.n,
        .waiting = s->waiting.n,
        .preemptions = s->n_preempted,
        .cached_tokens = s->n_cached,
        .pages_free = pages_to_have(s),
        .pages_cached = s->prefix ? prefix_pages(s->prefix) : 0,
    };
}
