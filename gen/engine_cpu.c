/* The engine that computes: a model file, its tokenizer, pages of KV and one
 * thread that makes passes.
 *
 * A pass: under the lock sequences are admitted and the rows planned; without
 * it the model runs and the samplers pick; under it again each pick becomes
 * text, tokens and maybe an end. So the caller never waits for a pass, only
 * for the few microseconds around it. A sequence that is cancelled while its
 * rows are in the pass is marked and goes right after it; one whose prompt is being read
 * in a piece that takes several passes (sched.h) goes with that, at once if it is alone there.
 *
 * What a sequence has to say lies in its outbox until the caller polls. The
 * outbox has a fixed size: a sequence whose outbox is full is held, like one
 * that was paused, so a caller that does not poll costs nobody anything, and
 * nothing is allocated in a pass. A token is delivered with the last byte of
 * its text: what a possible stop string holds back keeps its tokens too.
 *
 * All tokens of a sequence are kept, the generated ones too: one that had to
 * give its pages away (sched.h) is fed them again. Its sampler and its text
 * know nothing of that, for nothing is picked a second time.
 *
 * With speculation (draft.h) proposals are made before the rows are filled in, and
 * each row of a sequence has logits: its sampler draws from one after the other
 * for as long as what it drew is what was proposed. The rows behind are void; the next pass writes over them.
 */
#include "gen/engine_cpu_in.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/err.h"
#include "conv/chat.h"

#include <errno.h>
#include <string.h>

enum { MAX_STOP_TOKENS = 256 };
_Static_assert((int)ENGINE_MAX_STOPS == (int)TEXTOUT_MAX_STOPS, "one limit");

/* ---- sequences ---- */

static void seq_free(struct engine_seq *q)
{
    if (!q)
        return;
    free(q->tokens);
    free(q->chain);
    free(q->sched.pages);
    sampler_close(q->sampler);
    textout_close(q->filter);
    free(q->stop_tokens);
    buf_fini(&q->text);
    free(q->slots);
    free(q->tops);
    free(q);
}
DEFINE_CLEANUP(struct engine_seq *, seq_free)

static void untell(struct cpu *e, struct engine_seq *q)
{
    struct engine_seq *before = NULL;

    if (!q->told)
        return;
    for (struct engine_seq *at = e->first_told; at != q; at = at->next_told)
        before = at;
    if (before)
        before->next_told = q->next_told;
    else
        e->first_told = q->next_told;
    if (e->last_told == q)
        e->last_told = before;
    q->told = false;
    e->n_told--;
}

static void tell(struct cpu *e, struct engine_seq *q)
{
    if (q->told)
        return;
    q->told = true;
    q->next_told = NULL;
    if (e->first_told)
        e->last_told->next_told = q;
    else
        e->first_told = q;
    e->last_told = q;
    e->n_told++;
}

static void stop_drafting(struct cpu *e, struct engine_seq *q)
{
    if (q->draft)
        draft_end(e->draft, q->draft);
    q->draft = NULL;
}

/* It runs no longer. */
static void seq_stop(struct cpu *e, struct engine_seq *q)
{
    sched_remove(e->sched, &q->sched);
    stop_drafting(e, q);
}

/* Out of every list, and gone. */
static void seq_drop(struct cpu *e, struct engine_seq *q)
{
    seq_stop(e, q);
    untell(e, q);
    e->n_deadlines -= q->deadline_us != 0;
    if (q->prev)
        q->prev->next = q->next;
    else
        e->all = q->next;
    if (q->next)
        q->next->prev = q->prev;
    seq_free(q);
}

static bool outbox_full(const struct cpu *e, const struct engine_seq *q)
{
    return q->n_slots == OUTBOX_TOKENS ||
           q->text.len + textout_most(q->filter, e->max_token_bytes) > q->text_cap;
}

static void hold(const struct cpu *e, struct engine_seq *q)
{
    q->sched.held = q->paused || outbox_full(e, q);
}

static void seq_end(struct cpu *e, struct engine_seq *q, const char *finish)
{
    if (textout_end(q->filter, &q->text) == TEXTOUT_STOPPED)
        finish = "stop";
    q->finish = finish;
    q->ended = true;
    seq_stop(e, q);
    tell(e, q);
}

static void seq_fail(struct cpu *e, struct engine_seq *q, int error, const char *message)
{
    q->error = error;
    q->message = message;
    q->ended = true;
    seq_stop(e, q);
    tell(e, q);
}

/* ---- a pass ---- */

static bool ends(const struct cpu *e, const struct engine_seq *q, int32_t token)
{
    for (size_t i = 0; i < q->n_stop_tokens; i++)
        if (q->stop_tokens[i] == token)
            return true;
    return !q->ignore_end && tokenizer_is_end(e->tokenizer, token);
}

static void put_in_outbox(struct engine_seq *q, const struct pick *pick)
{
    struct slot *slot = &q->slots[q->n_slots];

    *slot = (struct slot){ .token = { .id = pick->token }, .seen = textout_seen(q->filter) };
    if (q->n_logprobs >= 0)
        slot->token.logprob = pick->logprob;
    if (q->n_logprobs > 0) {
        slot->token.n_top = (size_t)q->n_logprobs;
        memcpy(q->tops + q->n_slots * slot->token.n_top, pick->top,
               slot->token.n_top * sizeof pick->top[0]);
    }
    q->n_slots++;
}

static void take_pick(struct cpu *e, struct engine_seq *q, const struct pick *pick)
{
    size_t len = 0, cap = q->text.cap;
    const char *bytes;
    int stopped;

    if (pick->error) {
        seq_fail(e, q, pick->error, "the model's output is not a number");
        return;
    }
    if (ends(e, q, pick->token)) {
        seq_end(e, q, "stop");
        return;
    }
    bytes = tokenizer_token(e->tokenizer, pick->token, &len);
    if (!bytes || tokenizer_is_control(e->tokenizer, pick->token))
        len = 0;
    q->tokens[q->sched.n_known++] = pick->token;
    q->n_generated++;
    e->stats.generated_tokens++;
    stopped = textout_add(q->filter, bytes, len, &q->text);
    put_in_outbox(q, pick);
    e->stats.allocations += q->text.cap != cap;
    if (stopped)
        seq_end(e, q, "stop");
    else if (q->n_generated == q->max_tokens)
        seq_end(e, q, "length");
    else
        hold(e, q);
    if (q->text.len || q->slots[0].seen <= textout_given(q->filter) || q->sched.held)
        tell(e, q);
}

/* Draws the next token, no more. */
static bool generates(const struct sched_rows *rows)
{
    return !rows->prompt && rows->n == 1 && rows->n_logits == 1;
}

/* Tokens that the outbox has room for in one pass, whatever they are. */
static uint32_t outbox_room(const struct cpu *e, const struct engine_seq *q)
{
    uint32_t n = OUTBOX_TOKENS - (uint32_t)q->n_slots;

    n = n < DRAFT_MAX_TOKENS + 1 ? n : DRAFT_MAX_TOKENS + 1;
    while (n && q->text.len + textout_most(q->filter, n * (e->max_token_bytes + 1)) > q->text_cap)
        n--;
    return n;
}

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* How many proposals an entry gets of those that the pass has left for n_generating. */
static uint32_t widen(struct cpu *e, const struct sched_rows *rows, size_t entry, uint32_t n_generating, uint32_t left)
{
    struct engine_seq *q = (struct engine_seq *)rows->seq;
    const uint32_t share = left < n_generating ? least(left, 1) : left / n_generating, room = outbox_room(e, q);
    uint32_t want = share && room ? least(draft_wants(e->draft, q->draft), share) : 0;

    /* The last token that it may generate is never fed. */
    want = least(want, least(room - 1, q->max_tokens - q->n_generated - 1));
    return want ? sched_widen(e->sched, entry, want) : 0;
}

/* Who gets proposals in this pass, and who only reads along. */
static void ask_for_drafts(struct cpu *e, const struct sched_rows *plan, size_t n)
{
    uint32_t n_generating = 0, left;

    for (size_t i = 0; i < n; i++)
        n_generating += generates(&plan[i]);
    left = n_generating < DRAFT_ROWS ? DRAFT_ROWS - n_generating : 0;
    for (size_t i = 0; i < n; i++) {
        struct engine_seq *q = (struct engine_seq *)plan[i].seq;
        struct draft_ask *a = &e->asks[e->n_asks];

        if (!q->draft)
            continue;
        *a = (struct draft_ask){ .seq = q->draft, .text = q->tokens, .n = q->sched.n_known };
        if (generates(&plan[i])) {
            a->want = widen(e, &plan[i], i, n_generating, left);
            e->parts[i].widened = a->want;
            left -= a->want;
        }
        e->parts[i].ask = a;
        e->n_asks++;
    }
    draft_prepare(e->draft, e->asks, e->n_asks);
}

/* Under the lock. */
static void begin_parts(struct cpu *e, const struct sched_rows *plan, size_t n)
{
    e->n_asks = 0;
    for (size_t i = 0; i < n; i++) {
        e->parts[i] = (struct part){ 0 };
        ((struct engine_seq *)plan[i].seq)->in_pass = true;
    }
    if (e->draft)
        ask_for_drafts(e, plan, n);
}

static uint32_t n_drafted(const struct part *part) { return part->widened ? part->ask->n_drafted : 0; }

static int32_t token_at(const struct engine_seq *q, const struct part *part, uint32_t pos)
{
    return pos < q->sched.n_known ? q->tokens[pos] : part->ask->tokens[pos - q->sched.n_known];
}

/* Rows of the plan, of a widened entry as many as there are proposals; the logits that are wanted go one behind the
 * other, in its order. *ret_n_read: of prompts, behind all others. */
static size_t fill_rows(struct cpu *e, const struct sched_rows *plan, size_t n, size_t *ret_n_read)
{
    size_t n_rows = 0, n_logits = 0;

    *ret_n_read = 0;
    for (size_t i = 0; i < n; i++) {
        const struct engine_seq *q = (const struct engine_seq *)plan[i].seq;
        struct part *part = &e->parts[i];
        const uint32_t wanted = part->widened ? 1 + n_drafted(part) : plan[i].n_logits;

        part->first = n_logits;
        part->n_rows = part->widened ? wanted : plan[i].n;
        *ret_n_read += plan[i].prompt ? part->n_rows : 0;
        for (uint32_t k = 0; k < part->n_rows; k++) {
            struct model_row *row = &e->rows[n_rows++];

            *row = (struct model_row){
                .token = token_at(q, part, plan[i].pos + k),
                .pos = plan[i].pos + k,
                .pages = q->sched.pages,
                .prompt = plan[i].prompt,
            };
            if (k + wanted >= part->n_rows)
                row->logits = e->logits + n_logits++ * e->engine.info.vocab_size;
        }
    }
    return n_rows;
}

/* From one row's logits. */
static void pick_token(struct cpu *e, struct engine_seq *q, struct sampler_work *work, const float *logits, struct pick *pick)
{
    pick->error = sampler_pick(q->sampler, work, logits, &pick->token);
    if (!pick->error && q->n_logprobs >= 0)
        pick->error = sampler_logprobs(work, logits, pick->token, &pick->logprob, pick->top, (size_t)q->n_logprobs);
    beat(e);
}

/* From each row's logits, as long as the row behind holds what was drawn. */
static void pick_tokens_of(struct cpu *e, const struct sched_rows *rows, struct part *part, struct sampler_work *work)
{
    struct engine_seq *q = (struct engine_seq *)rows->seq;

    for (bool more = rows->n_logits; more; ) {
        const size_t at = part->first + part->n_picks;
        struct pick *pick = &e->picks[at];

        pick_token(e, q, work, e->logits + at * e->engine.info.vocab_size, pick);
        more = false;
        if (!pick->error && !ends(e, q, pick->token)) {
            sampler_accept(q->sampler, pick->token);
            more = part->n_picks < n_drafted(part) && part->ask->tokens[part->n_picks] == pick->token;
        }
        part->n_picks++;
    }
}

struct picking {
    struct cpu *e;
    const struct sched_rows *plan;
    size_t n;
    _Atomic size_t next;
};

static void pick_part(void *arg, uint32_t thread)
{
    struct picking *p = arg;
    size_t i;

    while (thread < p->e->n_works && (i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed)) < p->n)
        pick_tokens_of(p->e, &p->plan[i], &p->e->parts[i], p->e->works[thread]);
}

/* A sequence draws from its own sampler, so it does not matter where and when. */
static void pick_tokens(struct cpu *e, const struct sched_rows *plan, size_t n)
{
    struct picking p = { .e = e, .plan = plan, .n = n };
    size_t n_picking = 0;

    for (size_t i = 0; i < n; i++)
        n_picking += plan[i].n_logits > 0;
    if (n_picking > 1 && e->n_works > 1)
        model_on_threads(e->model, pick_part, &p);
    else
        pick_part(&p, 0);
}

/* Those behind a stop string are none. */
static void take_picks(struct cpu *e, struct engine_seq *q, const struct part *part)
{
    const uint32_t drafted = n_drafted(part);
    uint32_t taken = 0;

    for (; taken < part->n_picks && !q->ended; taken++)
        take_pick(e, q, &e->picks[part->first + taken]);
    q->n_drafted += drafted;
    q->n_accepted += taken - 1;
    e->stats.drafted_tokens += drafted;
    e->stats.accepted_tokens += taken - 1;
}

static void take_results(struct cpu *e, const struct sched_rows *plan, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct part *part = &e->parts[i];

        if (part->widened)
            sched_keep(e->sched, i, part->n_rows, part->n_picks);
        if (part->ask)
            draft_learn(e->draft, part->ask, part->n_picks ? part->n_picks - 1 : 0);
    }
    sched_advance(e->sched);
    e->stats.forwards++;
    e->stats.forwards_batched += n > 1;
    for (size_t i = 0; i < n; i++) {
        struct engine_seq *q = (struct engine_seq *)plan[i].seq;

        if (plan[i].goes_on)
            continue;
        q->in_pass = false;
        if (plan[i].prompt)
            e->stats.prompt_tokens += plan[i].n;
        if (q->cancelled)
            seq_drop(e, q);
        else if (plan[i].n_logits)
            take_picks(e, q, &e->parts[i]);
    }
}

/* Lets the lock go. */
static void unlock_and_notify(struct cpu *e)
{
    bool now = e->first_told && !e->notified && e->notify;

    e->notified |= now;
    pthread_mutex_unlock(&e->lock);
    if (now)
        e->notify(e->notify_user);
}

static bool late(const struct engine_seq *q, uint64_t now) { return q->deadline_us && q->deadline_us <= now && !q->ended; }

/* A piece that goes on has an end that everybody in it can wait for, but not for nothing. */
static void drop_piece_of_none(struct cpu *e, uint64_t now)
{
    for (const struct engine_seq *q = e->all; q; q = q->next)
        if (q->in_pass && !q->cancelled && !late(q, now))
            return;
    sched_drop_piece(e->sched);
    for (struct engine_seq *q = e->all, *next; q; q = next) {
        next = q->next;
        q->in_pass = false;
        if (q->cancelled)
            seq_drop(e, q);
    }
}

/* Between passes: those that are in one still are in a piece. */
static void fail_the_late(struct cpu *e)
{
    uint64_t now = e->n_deadlines ? clock_mono_us() : 0;

    if (sched_goes_on(e->sched))
        drop_piece_of_none(e, now);
    for (struct engine_seq *q = e->n_deadlines ? e->all : NULL; q; q = q->next)
        if (late(q, now) && !q->in_pass)
            seq_fail(e, q, -ETIMEDOUT, "the request took longer than it was given");
}

/* Returns how long it took to read apart. */
static uint64_t compute(struct cpu *e, size_t n_rows, size_t n_read, struct sched_layers through)
{
    const bool apart = through.from < through.to;
    const size_t n = apart ? n_rows - n_read : n_rows;
    uint64_t took = 0;

    if (apart) {
        took = clock_mono_us();
        model_read(e->model, e->kv, e->rows + n, n_read, through.from, through.to);
        took = clock_mono_us() - took;
    }
    model_forward(e->model, e->kv, e->rows, n);
    return took;
}

/* One that had to give its pages away keeps its room for proposals until somebody else needs that. */
static void begin_drafting(struct cpu *e, struct engine_seq *q)
{
    if (!e->draft || q->draft || (q->draft = draft_begin(e->draft)))
        return;
    for (struct engine_seq *at = e->all; at; at = at->next)
        if (at->draft && at->sched.state != SCHED_RUNNING)
            stop_drafting(e, at);
    q->draft = draft_begin(e->draft);
}

static void admit(struct cpu *e)
{
    struct sched_seq *admitted;

    while ((admitted = sched_admit(e->sched))) {
        struct engine_seq *q = (struct engine_seq *)admitted;

        begin_drafting(e, q);
        if (q->admitted)
            continue;                               /* it comes back */
        q->admitted = q->started = true;
        tell(e, q);
    }
}

/* Under the lock, which it lets go meanwhile. False: there is nothing to do. */
static bool pass(struct cpu *e)
{
    const struct sched_rows *plan;
    struct sched_layers through;
    size_t n, n_rows, n_read;
    uint64_t began, read_us;

    fail_the_late(e);
    admit(e);
    n = sched_plan(e->sched, &plan);
    if (!n)
        return false;
    begin_parts(e, plan, n);
    through = sched_layers(e->sched);
    unlock_and_notify(e);                           /* of those that start with this pass */

    if (e->n_asks)
        draft_propose(e->draft, e->asks, e->n_asks);
    n_rows = fill_rows(e, plan, n, &n_read);
    began = clock_mono_us();
    read_us = compute(e, n_rows, n_read, through);
    pick_tokens(e, plan, n);

    pthread_mutex_lock(&e->lock);
    take_results(e, plan, n);
    sched_took(e->sched, clock_mono_us() - began, read_us);
    return true;
}

/* Until something comes, or is late. */
static void wait_for_news(struct cpu *e)
{
    uint64_t next = UINT64_MAX;
    struct timespec at;

    for (const struct engine_seq *q = e->n_deadlines ? e->all : NULL; q; q = q->next)
        if (q->deadline_us && !q->ended && q->deadline_us < next)
            next = q->deadline_us;
    if (next == UINT64_MAX) {
        pthread_cond_wait(&e->wake, &e->lock);
        return;
    }
    at = (struct timespec){ .tv_sec = (time_t)(next / 1000000), .tv_nsec = (long)(next % 1000000) * 1000 };
    pthread_cond_timedwait(&e->wake, &e->lock, &at);
}

void *engine_cpu_main(void *user)
{
    struct cpu *e = user;

    pthread_mutex_lock(&e->lock);
    while (!e->closing) {
        bool busy = pass(e);

        unlock_and_notify(e);
        beat(e);
        pthread_mutex_lock(&e->lock);
        /* What came while the lock was open changes the plan. */
        if (!busy && !e->closing && !e->woken) {
            atomic_store(&e->pulse->idle, true);
            wait_for_news(e);
            atomic_store(&e->pulse->idle, false);
        }
        e->woken = false;
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

static void wake(struct cpu *e)
{
    e->woken = true;
    atomic_store(&e->pulse->idle, false);
    pthread_cond_signal(&e->wake);
}

/* ---- the interface ---- */

static void cpu_stats(struct engine *engine, struct engine_stats *ret)
{
    struct cpu *e = (struct cpu *)engine;
    struct sched_stats s;

    pthread_mutex_lock(&e->lock);
    sched_stats(e->sched, &s);
    *ret = e->stats;
    ret->running = s.running;
    ret->waiting = s.waiting;
    ret->kv_pages = kv_pages(e->kv);
    ret->kv_pages_free = s.pages_free;
    ret->kv_pages_cached = s.pages_cached;
    ret->cached_tokens = s.cached_tokens;
    ret->preemptions = s.preemptions;
    pthread_mutex_unlock(&e->lock);
}

static int cpu_tokenize(struct engine *engine, const struct text_span *spans, size_t n_spans,
                        bool add_special, struct arena *a, int32_t **ret, size_t *ret_n,
                        struct err *err)
{
    const struct tokenizer *t = ((struct cpu *)engine)->tokenizer;
    TOKEN_LIST_LOCAL list = { 0 };
    size_t n_front = 0;
    const int32_t *front = tokenizer_prefix(t, &n_front);
    int32_t *ids;
    int r = tokenizer_encode_spans(t, spans, n_spans, &list, err);

    if (r < 0)
        return r == -E2BIG ? -EINVAL : r;
    /* A template may have written it already. */
    if (!add_special || (n_front <= list.n && n_front && memcmp(list.ids, front, n_front * sizeof front[0]) == 0))
        n_front = 0;
    ids = arena_array(a, n_front + list.n + 1, sizeof ids[0]);
    if (!ids)
        return err_set(err, -ENOMEM, "no memory for %zu tokens", list.n);
    if (n_front)
        memcpy(ids, front, n_front * sizeof ids[0]);
    if (list.n)
        memcpy(ids + n_front, list.ids, list.n * sizeof ids[0]);
    *ret = ids;
    *ret_n = n_front + list.n;
    return 0;
}

static int cpu_detokenize(struct engine *engine, const int32_t *ids, size_t n, struct buf *out)
{
    return tokenizer_decode(((struct cpu *)engine)->tokenizer, ids, n, false, out);
}

static const char *cpu_token_text(struct engine *engine, int32_t id, size_t *ret_len)
{
    const char *text = tokenizer_token(((struct cpu *)engine)->tokenizer, id, ret_len);

    if (!text)
        *ret_len = 0;
    return text ? text : "";
}

static int check_request(const struct cpu *e, const struct engine_request *req, struct err *err)
{
    const struct engine_info *info = &e->engine.info;

    if (!req->n_tokens)
        return err_set(err, -EINVAL, "the prompt is empty");
    if (!req->max_tokens)
        return err_set(err, -EINVAL, "max_tokens must be at least 1");
    if (req->n_tokens > info->context_length ||
        req->max_tokens > info->context_length - req->n_tokens)
        return err_set(err, -EINVAL,
                       "the prompt has %zu tokens and max_tokens is %u: together more than the "
                       "context of %u tokens",
                       req->n_tokens, req->max_tokens, info->context_length);
    for (size_t i = 0; i < req->n_tokens; i++)
        if (req->tokens[i] < 0 || (uint32_t)req->tokens[i] >= info->vocab_size)
            return err_set(err, -EINVAL, "token %zu of the prompt, %d, is not in the vocabulary of %u",
                           i, req->tokens[i], info->vocab_size);
    if (req->n_stop_tokens > MAX_STOP_TOKENS)
        return err_set(err, -EINVAL, "%zu stop tokens are more than %d", req->n_stop_tokens,
                       MAX_STOP_TOKENS);
    if (req->n_logprobs > ENGINE_TOP_LOGPROBS || req->n_logprobs > (int64_t)info->vocab_size)
        return err_set(err, -EINVAL, "%d log-probabilities are more than %u", req->n_logprobs,
                       info->vocab_size < ENGINE_TOP_LOGPROBS ? info->vocab_size : ENGINE_TOP_LOGPROBS);
    if (req->priority < -ENGINE_MAX_PRIORITY || req->priority > ENGINE_MAX_PRIORITY)
        return err_set(err, -EINVAL, "a priority of %d is not between %d and %d", req->priority,
                       -ENGINE_MAX_PRIORITY, ENGINE_MAX_PRIORITY);
    return 0;
}

static void *copy(const void *data, size_t n, size_t size)
{
    void *to = calloc(n ? n : 1, size);

    if (to && n)
        memcpy(to, data, n * size);
    return to;
}

/* Making them goes over the whole vocabulary, and most requests name the same ones or none. */
static int take_breakers(struct cpu *e, const struct sample_params *p, struct sampler *s, struct err *err)
{
    const char *const *texts = p->dry_breakers ? p->dry_breakers : dry_default_breakers;
    size_t n = p->dry_breakers ? p->n_dry_breakers : DRY_N_DEFAULT;
    struct dry_breakers *b;
    int r;

    if (!sampler_plan(p).dry)
        return 0;
    if (!e->breakers || !dry_breakers_are(e->breakers, texts, n)) {
        r = dry_breakers_open(e->tokenizer, texts, n, &b, err);
        if (r < 0)
            return r;
        dry_breakers_close(e->breakers);
        e->breakers = b;
    }
    sampler_set_breakers(s, e->breakers);
    return 0;
}

static int seq_new(struct cpu *e, const struct engine_request *req, struct engine_seq **ret,
                   struct err *err)
{
    CLEANUP(seq_free) struct engine_seq *q = calloc(1, sizeof *q);
    uint32_t n_total = (uint32_t)req->n_tokens + req->max_tokens;
    int r;

    if (!q)
        return err_set(err, -ENOMEM, "no memory for a sequence");
    q->sched.n_prompt = (uint32_t)req->n_tokens;
    q->sched.n_total = n_total;
    q->sched.priority = req->priority;
    q->sched.tenant = req->tenant;
    if (e->salted)
        q->sched.salt = (struct prefix_salt){ { req->salt[0], req->salt[1] } };
    q->deadline_us = req->deadline_us;
    q->max_tokens = req->max_tokens;
    q->ignore_end = req->ignore_end;
    q->n_logprobs = req->n_logprobs;
    q->user = req->user;
    r = textout_open(req->stop, req->n_stop, &q->filter, err);
    if (r < 0)
        return r;
    r = sampler_open(&req->sample, req->tokens, req->n_tokens, req->max_tokens, &q->sampler, err);
    if (r < 0 || (r = take_breakers(e, &req->sample, q->sampler, err)) < 0)
        return r;
    q->tokens = calloc(n_total, sizeof q->tokens[0]);
    q->chain = calloc(req->n_tokens / KV_PAGE + 1, sizeof q->chain[0]);
    q->stop_tokens = copy(req->stop_tokens, req->n_stop_tokens, sizeof q->stop_tokens[0]);
    q->n_stop_tokens = req->n_stop_tokens;
    q->sched.pages = calloc(sched_pages_of(n_total), sizeof q->sched.pages[0]);
    q->slots = calloc(OUTBOX_TOKENS, sizeof q->slots[0]);
    if (q->n_logprobs > 0)
        q->tops = calloc((size_t)OUTBOX_TOKENS * (size_t)q->n_logprobs, sizeof q->tops[0]);
    /* Room for one more token, whatever it is, when it is not full. */
    q->text_cap = OUTBOX_BYTES + TEXTOUT_MAX_STOP_BYTES + textout_most(q->filter, e->max_token_bytes);
    if (e->draft)
        q->text_cap += textout_most(q->filter, DRAFT_MAX_TOKENS * (e->max_token_bytes + 1));
    if (!buf_room(&q->text, q->text_cap) || !q->tokens || !q->chain || !q->stop_tokens ||
        !q->sched.pages || !q->slots || (q->n_logprobs > 0 && !q->tops))
        return err_set(err, -ENOMEM, "no memory for a sequence of %u tokens", n_total);
    memcpy(q->tokens, req->tokens, req->n_tokens * sizeof q->tokens[0]);
    if (e->prefix) {
        prefix_chain(e->prefix, &q->sched.salt, q->tokens, req->n_tokens, q->chain);
        q->sched.tokens = q->tokens;
        q->sched.chain = q->chain;
    }
    *ret = STEAL(q);
    return 0;
}

static int cpu_submit(struct engine *engine, const struct engine_request *req,
                      struct engine_seq **ret, struct err *err)
{
    CLEANUP(seq_free) struct engine_seq *q = NULL;
    struct cpu *e = (struct cpu *)engine;
    int r = check_request(e, req, err);

    if (r < 0)
        return r;
    r = seq_new(e, req, &q, err);
    if (r < 0)
        return r;
    pthread_mutex_lock(&e->lock);
    r = sched_add(e->sched, &q->sched);
    if (r == SCHED_BUSY) {
        r = ENGINE_BUSY;
    } else if (r == SCHED_TOO_LONG) {
        /* The context is never above what the pages hold, so this is ours. */
        r = err_set(err, -EINVAL, "a sequence of %u tokens does not fit in the KV cache",
                    q->sched.n_total);
    } else {
        e->n_deadlines += q->deadline_us != 0;
        *ret = q;
        q->next = e->all;
        if (e->all)
            e->all->prev = q;
        e->all = q;
        q = NULL;
        wake(e);
    }
    pthread_mutex_unlock(&e->lock);
    return r;
}

static void cpu_cancel(struct engine *engine, struct engine_seq *q)
{
    struct cpu *e = (struct cpu *)engine;

    pthread_mutex_lock(&e->lock);
    if (e->delivering == q)
        e->delivering = NULL;
    if (q->in_pass) {
        q->cancelled = true;
        untell(e, q);
    } else {
        seq_drop(e, q);
        wake(e);                                    /* its pages may be another's */
    }
    pthread_mutex_unlock(&e->lock);
}

static void cpu_pause(struct engine *engine, struct engine_seq *q, bool paused)
{
    struct cpu *e = (struct cpu *)engine;

    pthread_mutex_lock(&e->lock);
    q->paused = paused;
    hold(e, q);
    if (!paused)
        wake(e);
    pthread_mutex_unlock(&e->lock);
}

/* What a sequence has to say, taken from its outbox under the lock. */
struct news {
    bool started, ended;
    struct engine_event event;
};

static void take_news(struct cpu *e, struct engine_seq *q, struct news *news)
{
    bool all = q->ended || q->n_slots == OUTBOX_TOKENS;
    size_t width = q->n_logprobs > 0 ? (size_t)q->n_logprobs : 0, n = 0;

    for (; n < q->n_slots && (all || q->slots[n].seen <= textout_given(q->filter)); n++) {
        e->tokens[n] = q->slots[n].token;
        e->tokens[n].top = e->tops + n * ENGINE_TOP_LOGPROBS;
        if (width)
            memcpy(e->tops + n * ENGINE_TOP_LOGPROBS, q->tops + n * width, width * sizeof e->tops[0]);
    }
    q->n_slots -= n;
    memmove(q->slots, q->slots + n, q->n_slots * sizeof q->slots[0]);
    if (width)
        memmove(q->tops, q->tops + n * width, q->n_slots * width * sizeof q->tops[0]);
    buf_clear(&e->text);
    buf_add(&e->text, buf_str(&q->text), q->text.len);
    buf_clear(&q->text);
    *news = (struct news){
        .started = q->started,
        .ended = q->ended,
        .event = {
            .user = q->user,
            .text = buf_str(&e->text),
            .len = e->text.len,
            .tokens = e->tokens,
            .n_tokens = n,
            .prompt_tokens = q->sched.n_prompt,
            .completion_tokens = q->n_generated,
            .drafted_tokens = q->n_drafted,
            .accepted_tokens = q->n_accepted,
            .cached_tokens = q->sched.n_cached,
        },
    };
    q->started = false;
    if (!q->ended && q->sched.held) {
        hold(e, q);
        if (!q->sched.held)
            wake(e);
    }
}

static void tell_caller(const struct news *news, enum engine_event_kind kind, engine_event_fn fn,
                        void *poll_user)
{
    struct engine_event ev = news->event;

    ev.kind = kind;
    if (kind != ENGINE_OUTPUT) {
        ev.text = "";
        ev.len = ev.n_tokens = 0;
    }
    fn(&ev, poll_user);
}

/* Up to three events; the callback may cancel the sequence after each. */
static size_t deliver(struct cpu *e, struct engine_seq *q, struct news *news, engine_event_fn fn,
                      void *poll_user)
{
    size_t n = 0;

    e->delivering = q;
    if (news->started) {
        tell_caller(news, ENGINE_STARTED, fn, poll_user);
        n++;
    }
    if (e->delivering && (news->event.len || news->event.n_tokens)) {
        tell_caller(news, ENGINE_OUTPUT, fn, poll_user);
        n++;
    }
    if (e->delivering && news->ended) {
        news->event.finish_reason = q->finish;
        news->event.stop_reason = textout_stop_text(q->filter);
        news->event.error = q->error;
        news->event.message = q->message;
        e->delivering = NULL;
        tell_caller(news, q->error ? ENGINE_FAILED : ENGINE_DONE, fn, poll_user);
        pthread_mutex_lock(&e->lock);
        seq_drop(e, q);
        pthread_mutex_unlock(&e->lock);
        n++;
    }
    e->delivering = NULL;
    return n;
}

static size_t cpu_poll(struct engine *engine, engine_event_fn fn, void *poll_user)
{
    struct cpu *e = (struct cpu *)engine;
    size_t n = 0, left;

    pthread_mutex_lock(&e->lock);
    e->notified = false;
    left = e->n_told;           /* what comes meanwhile is the next poll's */
    while (left-- && e->first_told) {
        struct engine_seq *q = e->first_told;
        struct news news;

        untell(e, q);
        take_news(e, q, &news);
        pthread_mutex_unlock(&e->lock);
        n += deliver(e, q, &news, fn, poll_user);
        pthread_mutex_lock(&e->lock);
    }
    pthread_mutex_unlock(&e->lock);
    return n;
}

static void cpu_close(struct engine *engine)
{
    struct cpu *e = (struct cpu *)engine;

    if (!e)
        return;
    if (e->threaded) {
        pthread_mutex_lock(&e->lock);
        e->closing = true;
        pthread_cond_signal(&e->wake);
        pthread_mutex_unlock(&e->lock);
        pthread_join(e->thread, NULL);
    }
    while (e->all)
        seq_drop(e, e->all);
    if (e->locks) {
        pthread_cond_destroy(&e->wake);
        pthread_mutex_destroy(&e->lock);
    }
    draft_close(e->draft);
    sched_close(e->sched);
    prefix_close(e->prefix);
    for (uint32_t i = 0; i < e->n_works; i++)
        sampler_work_close(e->works[i]);
    free(e->works);
    dry_breakers_close(e->breakers);
    kv_close(e->kv);
    model_close(e->model);
    chat_free(e->engine.info.chat);
    tokenizer_close(e->tokenizer);
    buf_fini(&e->text);
    free(e->tokens);
    free(e->tops);
    free(e->rows);
    free(e->logits);
    free(e->picks);
    free(e->asks);
    free(e->parts);
    free(e);
}

const struct engine_ops engine_cpu_ops = {
    .close = cpu_close,
    .stats = cpu_stats,
    .tokenize = cpu_tokenize,
    .detokenize = cpu_detokenize,
    .token_text = cpu_token_text,
    .submit = cpu_submit,
    .cancel = cpu_cancel,
    .pause = cpu_pause,
    .poll = cpu_poll,
};
