/* A model that plays a script (script.h) through the same interface, thread and
 * timing shape as a real one, so that everything around an engine can be
 * tested without weights.
 *
 * One thread serves any number of sequences. Each running sequence has a time
 * at which its next step is due and sits in a heap by that time; a turn takes
 * all that are due and advances each by one step, as a real engine's forward
 * does, so plays interleave and a turn with several counts as batched. What a
 * sequence has to say gathers in it until the caller polls: a caller that is
 * slow gets fewer and larger events, and memory stays bounded by what the
 * sequence may generate.
 *
 * An announced wait moves pulse->busy_until_us; a silent one does not, so the
 * pulse stands still exactly as in a step that takes too long.
 *
 * Locks: `lock` guards everything below it in struct scripted and what the
 * engine's thread touches of a sequence. What is above it belongs to the
 * caller's thread, as do `all` and `news` of a sequence. A poll takes the news
 * of many sequences under one lock, for with thousands of them the two threads
 * would otherwise do nothing but wait for each other. Only the engine's thread
 * beats and notifies. */
#include "adapters/adapters.h"
#include "base/arena.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "conv/chat.h"
#include "gen/engine_ops.h"
#include "gen/script.h"
#include "gen/textout.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    QUEUE = 1024,
    STEP_US = 1000,             /* waits end at its multiples, so that many take few turns, as in a real step */
    BATCH = 64,                 /* sequences that are heard under one lock */
};
enum { NOWHERE = UINT32_MAX };  /* heap slot of a sequence that is not in the heap */

struct node { struct node *prev, *next; };

struct place { const struct script_play *play; size_t at; uint32_t left; };

/* A token that waits for its text to leave the hold-back. */
struct pending { struct engine_token token; uint64_t seen; };

enum seq_state { QUEUED, ACTIVE, ENDED };

/* What a sequence had to say, taken out of it under the lock. Its storage is
 * lent by turns to sequences, so that delivering allocates nothing. */
struct news {
    struct engine_seq *seq;     /* NULL: cancelled meanwhile */
    bool start, output, end;
    struct buf text;
    struct engine_token *tokens;
    size_t n_tokens, cap_tokens;
    struct engine_event event;
};

struct engine_seq {
    struct node all;            /* every sequence; the caller's thread only */
    struct news *news;          /* being delivered */
    struct node run;            /* in waiting while QUEUED */
    struct node ready;          /* in a list of what the caller has to be told */
    enum seq_state state;
    bool paused, announced;     /* announced: its due time is in pulse->busy_until_us */
    uint64_t due_us;
    uint64_t waited_us;         /* when its last wait ends or should have ended; 0: it had none */
    uint32_t slot;

    struct place stack[SCRIPT_NESTING + 1];
    size_t depth;
    const struct script_play *play;
    bool played;                /* a token since the play began */

    void *user;
    uint32_t prompt_tokens, completion_tokens, max_tokens;
    bool usage_set;
    uint32_t usage_prompt, usage_completion;
    bool ignore_end;
    int n_logprobs;
    int32_t *stop_tokens;
    size_t n_stop_tokens;
    char **stop;
    size_t n_stop;
    struct textout *filter;

    /* to be told */
    bool tell_start, tell_end;
    struct buf text;
    struct pending *tokens;
    size_t n_tokens, cap_tokens;
    const char *finish, *stop_reason, *message;
    int error;
};

/* The keys lie in the heap itself: a step then touches no other sequence. */
struct due {
    uint64_t us, order;
    struct engine_seq *seq;
};

struct scripted {
    struct engine engine;
    struct script *script;
    struct engine_pulse *pulse;
    void (*notify)(void *user);
    void *notify_user;
    uint32_t parallel;
    pthread_t thread;
    struct node all;
    struct news news[BATCH];

    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool closing;
    struct node waiting, told;
    struct due *heap;
    uint32_t n_heap, cap_heap, n_active, n_waiting;
    uint64_t orders;
    struct engine_stats stats;
};

/* ---- lists ---- */

static void list_init(struct node *n) { n->prev = n->next = n; }
static bool list_empty(const struct node *n) { return n->next == n; }

static void list_remove(struct node *n)
{
    n->prev->next = n->next;
    n->next->prev = n->prev;
    list_init(n);
}

static void list_append(struct node *head, struct node *n)
{
    n->prev = head->prev;
    n->next = head;
    head->prev->next = n;
    head->prev = n;
}

#define SEQ_OF(node, member) ((struct engine_seq *)((char *)(node)-offsetof(struct engine_seq, member)))

/* ---- the heap of due times ---- */

static bool sooner(const struct due *a, const struct due *b)
{
    return a->us != b->us ? a->us < b->us : a->order < b->order;
}

static void heap_put(struct scripted *s, uint32_t slot, struct due due)
{
    s->heap[slot] = due;
    due.seq->slot = slot;
}

static void heap_up(struct scripted *s, uint32_t slot, struct due due)
{
    for (; slot > 0 && sooner(&due, &s->heap[(slot - 1) / 2]); slot = (slot - 1) / 2)
        heap_put(s, slot, s->heap[(slot - 1) / 2]);
    heap_put(s, slot, due);
}

static void heap_down(struct scripted *s, uint32_t slot, struct due due)
{
    for (;;) {
        uint32_t child = 2 * slot + 1;

        if (child + 1 < s->n_heap && sooner(&s->heap[child + 1], &s->heap[child]))
            child++;
        if (child >= s->n_heap || sooner(&due, &s->heap[child]))
            break;
        heap_put(s, slot, s->heap[child]);
        slot = child;
    }
    heap_put(s, slot, due);
}

/* There is room: submit made it. */
static void heap_add(struct scripted *s, struct engine_seq *q)
{
    heap_up(s, s->n_heap++, (struct due){ .us = q->due_us, .order = s->orders++, .seq = q });
}

static void heap_remove(struct scripted *s, struct engine_seq *q)
{
    uint32_t slot = q->slot;
    struct due last;

    if (slot == NOWHERE)
        return;
    q->slot = NOWHERE;
    last = s->heap[--s->n_heap];
    if (last.seq == q)
        return;
    if (slot > 0 && sooner(&last, &s->heap[(slot - 1) / 2]))
        heap_up(s, slot, last);
    else
        heap_down(s, slot, last);
}

/* ---- pulse ---- */

static void announce(struct scripted *s, const struct engine_seq *q)
{
    if (q->announced && q->due_us > atomic_load(&s->pulse->busy_until_us))
        atomic_store(&s->pulse->busy_until_us, q->due_us);
}

/* q, which left the heap before its time, no longer counts. A scan, so only
 * when it was the latest; one that is over in time can stay, for it lies in
 * the past. */
static void retract(struct scripted *s, const struct engine_seq *q)
{
    uint64_t until = 0;

    if (!q->announced || q->due_us < atomic_load(&s->pulse->busy_until_us))
        return;
    for (uint32_t i = 0; i < s->n_heap; i++)
        if (s->heap[i].seq->announced && s->heap[i].us > until)
            until = s->heap[i].us;
    atomic_store(&s->pulse->busy_until_us, until);
}

static void beat(struct scripted *s)
{
    atomic_fetch_add(&s->pulse->beats, 1);
    atomic_store(&s->pulse->idle, s->n_heap == 0);
}

/* ---- sequences ---- */

static void seq_free(struct engine_seq *q)
{
    if (!q)
        return;
    textout_close(q->filter);
    buf_fini(&q->text);
    free(q->tokens);
    free(q->stop_tokens);
    for (size_t i = 0; i < q->n_stop; i++)
        free(q->stop[i]);
    free(q->stop);
    free(q);
}
DEFINE_CLEANUP(struct engine_seq *, seq_free)

static void tell(struct scripted *s, struct engine_seq *q)
{
    if (!list_empty(&q->ready))
        return;
    list_append(&s->told, &q->ready);
    if (s->told.next == &q->ready && s->notify)
        s->notify(s->notify_user);
}

static void seq_start(struct scripted *s, struct engine_seq *q)
{
    q->state = ACTIVE;
    q->due_us = 0;
    q->tell_start = true;
    s->n_active++;
    s->stats.prompt_tokens += q->prompt_tokens;
    if (!q->paused)
        heap_add(s, q);
    tell(s, q);
}

static void start_waiting(struct scripted *s)
{
    while (s->n_active < s->parallel && !list_empty(&s->waiting)) {
        struct engine_seq *q = SEQ_OF(s->waiting.next, run);

        list_remove(&q->run);
        s->n_waiting--;
        seq_start(s, q);
    }
}

/* Takes it out of the run; the caller tells or frees it. */
static void seq_leave(struct scripted *s, struct engine_seq *q)
{
    if (q->state == QUEUED) {
        list_remove(&q->run);
        s->n_waiting--;
    } else if (q->state == ACTIVE) {
        heap_remove(s, q);
        s->n_active--;
        retract(s, q);
    }
    q->state = ENDED;
}

static void seq_end(struct scripted *s, struct engine_seq *q, const char *finish)
{
    if (textout_end(q->filter, &q->text) == TEXTOUT_STOPPED && !q->stop_reason) {
        finish = "stop";
        q->stop_reason = q->stop[textout_stop(q->filter)];
    }
    q->finish = finish;
    q->tell_end = true;
    seq_leave(s, q);
    tell(s, q);
}

static void seq_fail(struct scripted *s, struct engine_seq *q, int error, const char *message)
{
    q->error = error;
    q->message = message;
    q->tell_end = true;
    seq_leave(s, q);
    tell(s, q);
}

/* ---- playing ---- */

static void play_from_the_top(struct engine_seq *q)
{
    q->stack[0] = (struct place){ .play = q->play, .left = 1 };
    q->depth = 1;
    q->played = false;
}

static const struct script_step *next_step(struct engine_seq *q)
{
    while (q->depth) {
        struct place *p = &q->stack[q->depth - 1];

        if (p->at < p->play->n)
            return &p->play->steps[p->at++];
        if (--p->left > 0)
            p->at = 0;
        else
            q->depth--;
    }
    return NULL;
}

static bool is_stop_token(const struct engine_seq *q, int32_t id)
{
    for (size_t i = 0; i < q->n_stop_tokens; i++)
        if (q->stop_tokens[i] == id)
            return true;
    return false;
}

static int keep_token(struct engine_seq *q, const struct engine_token *token)
{
    struct pending *kept;

    if (q->n_tokens == q->cap_tokens) {
        size_t cap = q->cap_tokens ? 2 * q->cap_tokens : 16;
        struct pending *grown = realloc(q->tokens, cap * sizeof grown[0]);

        if (!grown)
            return -ENOMEM;
        q->tokens = grown;
        q->cap_tokens = cap;
    }
    kept = &q->tokens[q->n_tokens++];
    kept->token = (struct engine_token){ .id = token->id };
    if (q->n_logprobs >= 0) {
        kept->token.logprob = token->logprob;
        kept->token.top = token->top;
        kept->token.n_top = token->n_top < (size_t)q->n_logprobs ? token->n_top : (size_t)q->n_logprobs;
    }
    kept->seen = textout_seen(q->filter);
    return 0;
}

/* True when the sequence ended with it. */
static bool play_token(struct scripted *s, struct engine_seq *q, const struct engine_token *token)
{
    const char *text;
    size_t len;
    int stopped;

    if (is_stop_token(q, token->id)) {
        seq_end(s, q, "stop");
        return true;
    }
    text = script_token_text(s->script, token->id, &len);
    stopped = textout_add(q->filter, text, len, &q->text);
    q->completion_tokens++;
    q->played = true;
    s->stats.generated_tokens++;
    if (keep_token(q, token) < 0 || q->text.failed) {
        seq_fail(s, q, -ENOMEM, "out of memory");
        return true;
    }
    if (stopped == TEXTOUT_STOPPED) {
        q->stop_reason = q->stop[textout_stop(q->filter)];
        seq_end(s, q, "stop");
        return true;
    }
    if (q->completion_tokens == q->max_tokens) {
        seq_end(s, q, "length");
        return true;
    }
    return false;
}

static void play_tokens(struct scripted *s, struct engine_seq *q, const struct script_step *step)
{
    for (size_t i = 0; i < step->tokens.n; i++)
        if (play_token(s, q, &step->tokens.list[i]))
            return;
    heap_add(s, q);
    tell(s, q);
}

/* Tokens that say when they were made. */
static void play_clock(struct scripted *s, struct engine_seq *q)
{
    char text[32];
    int len = snprintf(text, sizeof text, "@%llu ", (unsigned long long)clock_mono_us());

    for (int i = 0; i < len; i++)
        if (play_token(s, q, &(struct engine_token){ .id = (unsigned char)text[i] }))
            return;
    heap_add(s, q);
    tell(s, q);
}

static void play_wait(struct scripted *s, struct engine_seq *q, const struct script_step *step)
{
    uint64_t now = clock_mono_us(), late = q->waited_us ? now - q->waited_us : 0;

    /* From when the last wait should have ended, unless that is long ago: else
     * sequences that were late together once would be due together ever after. */
    q->waited_us = now + step->wait.us - (late < step->wait.us / 2 ? late : 0);
    q->due_us = (q->waited_us + STEP_US - 1) / STEP_US * STEP_US;
    q->announced = step->wait.announced;
    announce(s, q);
    heap_add(s, q);
}

/* Stops this thread, as a frozen kernel would; only the end of the engine frees it. */
static void play_hang(struct scripted *s, struct engine_seq *q)
{
    heap_add(s, q);
    atomic_store(&s->pulse->idle, false);
    atomic_store(&s->pulse->busy_until_us, 0);
    while (!s->closing)
        pthread_cond_wait(&s->wake, &s->lock);
}

/* The play is over. A model told to ignore its end token would go on, so this
 * one begins again, unless its play has nothing to say. */
static bool play_again(struct engine_seq *q)
{
    if (!q->ignore_end || !q->played)
        return false;
    play_from_the_top(q);
    return true;
}

/* One step of one sequence, which is not in the heap and goes back there unless
 * it ended. Repeats and usage take no time of their own. */
static void seq_step(struct scripted *s, struct engine_seq *q)
{
    const struct script_step *step;

    for (;;) {
        step = next_step(q);
        if (!step) {
            if (play_again(q))
                continue;
            seq_end(s, q, "stop");
            return;
        }
        switch (step->kind) {
        case SCRIPT_TOKENS: play_tokens(s, q, step); return;
        case SCRIPT_CLOCK: play_clock(s, q); return;
        case SCRIPT_WAIT: play_wait(s, q, step); return;
        case SCRIPT_FAIL: seq_fail(s, q, step->fail.error, step->fail.message); return;
        case SCRIPT_HANG: play_hang(s, q); return;
        case SCRIPT_EXIT: _exit(step->number);
        case SCRIPT_SIGNAL: raise(step->number); break;
        case SCRIPT_REPEATED:
            q->stack[q->depth++] = (struct place){ .play = &step->repeat.play, .left = step->repeat.times };
            break;
        case SCRIPT_USAGE:
            q->usage_set = true;
            q->usage_prompt = step->usage.prompt_tokens;
            q->usage_completion = step->usage.completion_tokens;
            break;
        case SCRIPT_FINISH:
            if (strcmp(step->finish, "stop") == 0 && play_again(q))
                break;
            seq_end(s, q, step->finish);
            return;
        }
    }
}

/* Advances what was due when the turn began, each once. */
static void turn(struct scripted *s)
{
    uint64_t now = clock_mono_us(), last = s->orders;
    uint32_t n = 0;

    while (!s->closing && s->n_heap && s->heap[0].us <= now && s->heap[0].order < last) {
        struct engine_seq *q = s->heap[0].seq;

        heap_remove(s, q);
        q->announced = false;
        q->due_us = now;
        seq_step(s, q);
        n++;
    }
    if (n) {
        s->stats.forwards++;
        s->stats.forwards_batched += n > 1;
    }
    beat(s);
}

static void *thread_main(void *user)
{
    struct scripted *s = user;

    pthread_mutex_lock(&s->lock);
    while (!s->closing) {
        uint64_t now = clock_mono_us();

        start_waiting(s);
        if (s->n_heap && s->heap[0].us <= now) {
            turn(s);
            /* Without waits a play would hold the lock for its whole length. */
            pthread_mutex_unlock(&s->lock);
            sched_yield();
            pthread_mutex_lock(&s->lock);
        } else if (s->n_heap) {
            struct timespec at = { .tv_sec = (time_t)(s->heap[0].us / 1000000),
                                   .tv_nsec = (long)(s->heap[0].us % 1000000) * 1000 };

            pthread_cond_timedwait(&s->wake, &s->lock, &at);
        } else {
            atomic_store(&s->pulse->busy_until_us, 0);
            beat(s);
            pthread_cond_wait(&s->wake, &s->lock);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- the interface ---- */

static void scripted_stats(struct engine *e, struct engine_stats *ret)
{
    struct scripted *s = (struct scripted *)e;

    pthread_mutex_lock(&s->lock);
    *ret = s->stats;
    ret->running = s->n_active;
    ret->waiting = s->n_waiting;
    pthread_mutex_unlock(&s->lock);
}

/* The spans joined, and for each byte where the trusted text that it lies in ends. */
static int join(const struct text_span *spans, size_t n_spans, struct arena *a, char **ret, size_t **ret_ends, size_t *ret_n)
{
    size_t n = 0, end = 0;

    for (size_t i = 0; i < n_spans; i++)
        n += spans[i].len;
    *ret = arena_alloc(a, n + 1);
    *ret_ends = arena_array(a, n + 1, sizeof **ret_ends);
    *ret_n = n;
    if (!*ret || !*ret_ends)
        return -ENOMEM;
    for (size_t i = n_spans; i-- > 0;) {
        end = spans[i].trusted && i + 1 < n_spans && spans[i + 1].trusted ? end : n;
        n -= spans[i].len;
        memcpy(*ret + n, spans[i].text, spans[i].len);
        for (size_t k = n; k < n + spans[i].len; k++)
            (*ret_ends)[k] = spans[i].trusted ? end : 0;
    }
    return 0;
}

static int scripted_tokenize(struct engine *e, const struct text_span *spans, size_t n_spans,
                             bool add_special, struct arena *a, int32_t **ret, size_t *ret_n,
                             struct err *err)
{
    const struct script *s = ((struct scripted *)e)->script;
    int32_t bos = add_special ? script_bos(s) : -1, *ids, *begin;
    size_t n = 0, n_ids = 0, *ends = NULL;
    char *text = NULL;
    int r = join(spans, n_spans, a, &text, &ends, &n);

    begin = arena_array(a, n + 2, sizeof begin[0]);
    if (r < 0 || !begin)
        return err_set(err, -ENOMEM, "no memory for %zu tokens", n);
    ids = begin + 1;
    for (size_t at = 0, len; at < n; at += len) {
        int32_t id = ends[at] ? script_special_at(s, text + at, ends[at] - at, &len) : -1;

        len = id < 0 ? 1 : len;
        ids[n_ids++] = id < 0 ? (unsigned char)text[at] : id;
    }
    /* A template may have written it already. */
    if (bos >= 0 && !(n_ids && ids[0] == bos)) {
        *--ids = bos;
        n_ids++;
    }
    *ret = ids;
    *ret_n = n_ids;
    return 0;
}

static int scripted_detokenize(struct engine *e, const int32_t *ids, size_t n, struct buf *out)
{
    for (size_t i = 0; i < n; i++) {
        size_t len;
        const char *text = script_token_text(((struct scripted *)e)->script, ids[i], &len);

        buf_add(out, text, len);
    }
    return out->failed ? -ENOMEM : 0;
}

static const char *scripted_token_text(struct engine *e, int32_t id, size_t *ret_len)
{
    return script_token_text(((struct scripted *)e)->script, id, ret_len);
}

static int check_request(struct scripted *s, const struct engine_request *req, struct err *err)
{
    uint32_t context = s->engine.info.context_length;

    if (req->n_tokens == 0)
        return err_set(err, -EINVAL, "the prompt is empty");
    if (req->max_tokens == 0)
        return err_set(err, -EINVAL, "no token may be generated");
    if (req->n_tokens > context || req->max_tokens > context - req->n_tokens)
        return err_set(err, -EINVAL, "%zu prompt tokens and %u more are over the context of %u",
                       req->n_tokens, req->max_tokens, context);
    for (size_t i = 0; i < req->n_tokens; i++)
        if (req->tokens[i] < 0 || (uint32_t)req->tokens[i] >= s->engine.info.vocab_size)
            return err_set(err, -EINVAL, "token %d is not in the vocabulary of %u", req->tokens[i],
                           s->engine.info.vocab_size);
    return 0;
}

static int copy_stops(struct engine_seq *q, const struct engine_request *req)
{
    q->stop = calloc(req->n_stop + 1, sizeof q->stop[0]);
    q->stop_tokens = calloc(req->n_stop_tokens + 1, sizeof q->stop_tokens[0]);
    if (!q->stop || !q->stop_tokens)
        return -ENOMEM;
    if (req->n_stop_tokens)
        memcpy(q->stop_tokens, req->stop_tokens, req->n_stop_tokens * sizeof q->stop_tokens[0]);
    q->n_stop_tokens = req->n_stop_tokens;
    for (; q->n_stop < req->n_stop; q->n_stop++)
        if (!(q->stop[q->n_stop] = strdup(req->stop[q->n_stop])))
            return -ENOMEM;
    return 0;
}

static int choose_play(struct scripted *s, struct engine_seq *q, const struct engine_request *req)
{
    BUF_LOCAL prompt = BUF_INIT;

    scripted_detokenize(&s->engine, req->tokens, req->n_tokens, &prompt);
    q->play = script_choose(s->script, buf_str(&prompt), prompt.len);
    return prompt.failed ? -ENOMEM : 0;
}

static int seq_new(struct scripted *s, const struct engine_request *req, struct engine_seq **ret,
                   struct err *err)
{
    CLEANUP(seq_free) struct engine_seq *q = calloc(1, sizeof *q);
    int r;

    if (!q || copy_stops(q, req) < 0 || choose_play(s, q, req) < 0)
        return err_set(err, -ENOMEM, "no memory for a sequence");
    r = textout_open(req->stop, req->n_stop, &q->filter, err);
    if (r < 0)
        return r;
    list_init(&q->all);
    list_init(&q->run);
    list_init(&q->ready);
    q->slot = NOWHERE;
    q->user = req->user;
    q->prompt_tokens = (uint32_t)req->n_tokens;
    q->max_tokens = req->max_tokens;
    q->ignore_end = req->ignore_end;
    q->n_logprobs = req->n_logprobs;
    play_from_the_top(q);
    *ret = STEAL(q);
    return 0;
}

static int heap_room(struct scripted *s)
{
    if (s->n_active + s->n_waiting >= s->cap_heap) {
        uint32_t cap = 2 * s->cap_heap + 64;
        struct due *grown = realloc(s->heap, cap * sizeof grown[0]);

        if (!grown)
            return -ENOMEM;
        s->heap = grown;
        s->cap_heap = cap;
    }
    return 0;
}

static int scripted_submit(struct engine *e, const struct engine_request *req, struct engine_seq **ret,
                           struct err *err)
{
    CLEANUP(seq_free) struct engine_seq *q = NULL;
    struct scripted *s = (struct scripted *)e;
    int r = check_request(s, req, err);

    if (r < 0)
        return r;
    r = seq_new(s, req, &q, err);
    if (r < 0)
        return r;
    pthread_mutex_lock(&s->lock);
    if (s->n_waiting >= QUEUE) {
        r = ENGINE_BUSY;
    } else if (heap_room(s) < 0) {
        r = err_set(err, -ENOMEM, "no memory for a sequence");
    } else {
        *ret = q;
        list_append(&s->waiting, &q->run);
        s->n_waiting++;
        list_append(&s->all, &q->all);
        atomic_store(&s->pulse->idle, false);
        pthread_cond_signal(&s->wake);
        q = NULL;
    }
    pthread_mutex_unlock(&s->lock);
    return r;
}

static void scripted_cancel(struct engine *e, struct engine_seq *q)
{
    struct scripted *s = (struct scripted *)e;

    pthread_mutex_lock(&s->lock);
    seq_leave(s, q);
    list_remove(&q->ready);
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    if (q->news)
        q->news->seq = NULL;
    list_remove(&q->all);
    seq_free(q);
}

static void scripted_pause(struct engine *e, struct engine_seq *q, bool paused)
{
    struct scripted *s = (struct scripted *)e;

    pthread_mutex_lock(&s->lock);
    if (q->paused != paused) {
        q->paused = paused;
        if (q->state == ACTIVE && paused) {
            heap_remove(s, q);
            retract(s, q);
        } else if (q->state == ACTIVE) {
            heap_add(s, q);
            announce(s, q);
            atomic_store(&s->pulse->idle, false);
        }
        pthread_cond_signal(&s->wake);
    }
    pthread_mutex_unlock(&s->lock);
}

/* The tokens whose text is out; all, at the end. */
static void take_tokens(struct engine_seq *q, struct news *news)
{
    uint64_t given = textout_given(q->filter);
    size_t n = q->tell_end ? q->n_tokens : 0;

    while (n < q->n_tokens && q->tokens[n].seen <= given)
        n++;
    if (n > news->cap_tokens) {
        struct engine_token *grown = realloc(news->tokens, q->cap_tokens * sizeof grown[0]);

        if (!grown)
            return;
        news->tokens = grown;
        news->cap_tokens = q->cap_tokens;
    }
    for (size_t i = 0; i < n; i++)
        news->tokens[i] = q->tokens[i].token;
    news->n_tokens = n;
    q->n_tokens -= n;
    if (q->n_tokens)
        memmove(q->tokens, q->tokens + n, q->n_tokens * sizeof q->tokens[0]);
}

static void take_news(struct engine_seq *q, struct news *news)
{
    struct buf text = news->text;

    news->seq = q;
    q->news = news;
    news->start = q->tell_start;
    news->end = q->tell_end;
    q->tell_start = false;
    news->text = q->text;
    buf_clear(&text);
    q->text = text;
    news->n_tokens = 0;
    take_tokens(q, news);
    news->output = news->text.len || news->n_tokens;
    news->event = (struct engine_event){
        .user = q->user,
        .prompt_tokens = q->usage_set ? q->usage_prompt : q->prompt_tokens,
        .completion_tokens = q->usage_set ? q->usage_completion : q->completion_tokens,
    };
}

/* Up to three events; each callback may cancel this sequence and any other. */
static size_t deliver(struct news *news, engine_event_fn fn, void *poll_user)
{
    struct engine_event ev = news->event;
    struct engine_seq *q;
    size_t n = 0;

    if (news->seq && news->start) {
        ev.kind = ENGINE_STARTED;
        fn(&ev, poll_user);
        n++;
    }
    if (news->seq && news->output) {
        ev.kind = ENGINE_OUTPUT;
        ev.text = buf_str(&news->text);
        ev.len = news->text.len;
        ev.tokens = news->tokens;
        ev.n_tokens = news->n_tokens;
        fn(&ev, poll_user);
        n++;
    }
    q = news->seq;
    if (!q)
        return n;
    q->news = NULL;
    if (!news->end)
        return n;
    ev = news->event;
    ev.kind = q->error ? ENGINE_FAILED : ENGINE_DONE;
    ev.finish_reason = q->finish;
    ev.stop_reason = q->stop_reason;
    ev.error = q->error;
    ev.message = q->message;
    fn(&ev, poll_user);
    list_remove(&q->all);
    seq_free(q);
    return n + 1;
}

static size_t scripted_poll(struct engine *e, engine_event_fn fn, void *poll_user)
{
    struct scripted *s = (struct scripted *)e;
    struct node batch;          /* what comes meanwhile is the next poll's */
    size_t n = 0;

    list_init(&batch);
    pthread_mutex_lock(&s->lock);
    if (!list_empty(&s->told)) {
        batch = s->told;
        batch.next->prev = batch.prev->next = &batch;
        list_init(&s->told);
    }
    while (!list_empty(&batch)) {
        size_t taken = 0;

        for (; taken < BATCH && !list_empty(&batch); taken++) {
            struct engine_seq *q = SEQ_OF(batch.next, ready);

            list_remove(&q->ready);
            take_news(q, &s->news[taken]);
        }
        pthread_mutex_unlock(&s->lock);
        for (size_t i = 0; i < taken; i++)
            n += deliver(&s->news[i], fn, poll_user);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return n;
}

static void scripted_close(struct engine *e)
{
    struct scripted *s = (struct scripted *)e;

    pthread_mutex_lock(&s->lock);
    s->closing = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    while (!list_empty(&s->all)) {
        struct engine_seq *q = SEQ_OF(s->all.next, all);

        list_remove(&q->all);
        seq_free(q);
    }
    for (size_t i = 0; i < BATCH; i++) {
        buf_fini(&s->news[i].text);
        free(s->news[i].tokens);
    }
    free(s->heap);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    chat_free(s->engine.info.chat);
    script_close(s->script);
    free(s);
}

static const struct engine_ops scripted_ops = {
    .close = scripted_close,
    .stats = scripted_stats,
    .tokenize = scripted_tokenize,
    .detokenize = scripted_detokenize,
    .token_text = scripted_token_text,
    .submit = scripted_submit,
    .cancel = scripted_cancel,
    .pause = scripted_pause,
    .poll = scripted_poll,
};

/* Loading takes as long as the script says, announced like a long step. */
static int load(const struct engine_config *config, struct script **ret, struct err *err)
{
    CLEANUP(script_close) struct script *script = NULL;
    uint64_t until;
    int r = script_open(config->path, &script, err);

    if (r < 0)
        return r;
    until = clock_mono_us() + script_load_us(script);
    atomic_store(&config->pulse->busy_until_us, until);
    for (uint64_t now; (now = clock_mono_us()) < until;)
        usleep(until - now < 100000 ? (useconds_t)(until - now) : 100000);
    atomic_fetch_add(&config->pulse->beats, 1);
    r = script_load_error(script, err);
    if (r < 0)
        return err_place(err, "%s", config->path), r;
    *ret = STEAL(script);
    return 0;
}

/* The script's own templates, else ChatML, unless another was named. */
static int choose_template(struct scripted *s, const struct engine_config *config, struct err *err)
{
    bool named = config->chat_template && strcmp(config->chat_template, "auto") != 0;
    struct template_question q = {
        .configured = named ? config->chat_template : "chatml", .model_name = config->name, .registry = config->templates,
    };
    struct engine_info *info = &s->engine.info;
    struct template_choice choice;
    size_t n_templates, n_tokens;
    const struct chat_source *templates = script_templates(s->script, &n_templates);
    const struct chat_token *tokens = script_specials(s->script, &n_tokens);
    int r;

    if (!named && n_templates) {
        snprintf(info->chat_reason, sizeof info->chat_reason, "the script's own");
        return chat_from_jinja(config->name, templates, n_templates, tokens, n_tokens, NULL, &info->chat, err);
    }
    r = adapters_choose(&q, &choice, err);
    if (r < 0)
        return err_place(err, "%s", config->name), r;
    info->chat = choice.chat;
    snprintf(info->chat_reason, sizeof info->chat_reason, "%s", named ? choice.reason : "scripted");
    return 0;
}

static int describe(struct scripted *s, const struct engine_config *config, struct err *err)
{
    struct engine_info *info = &s->engine.info;

    snprintf(info->model, sizeof info->model, "%s", config->name);
    snprintf(info->backend, sizeof info->backend, "scripted");
    info->context_length = script_context(s->script);
    if (config->context && config->context < info->context_length)
        info->context_length = config->context;
    info->vocab_size = script_vocab(s->script);
    info->longest_token = script_longest(s->script);
    return choose_template(s, config, err);
}

static int thread_start(struct scripted *s, struct err *err)
{
    pthread_condattr_t attr;
    int r;

    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->wake, &attr);
    pthread_condattr_destroy(&attr);
    r = pthread_create(&s->thread, NULL, thread_main, s);
    if (r == 0)
        return 0;
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    return err_errno(err, -r, "no thread for the engine");
}

int engine_scripted_open(const struct engine_config *config, struct engine **ret, struct err *err)
{
    CLEANUP(script_close) struct script *script = NULL;
    CLEANUP(mem_free) struct scripted *s = NULL;
    int r = load(config, &script, err);

    if (r < 0)
        return r;
    s = calloc(1, sizeof *s);
    if (!s)
        return err_set(err, -ENOMEM, "%s: no memory", config->name);
    s->engine.ops = &scripted_ops;
    s->script = script;
    s->pulse = config->pulse;
    s->notify = config->notify;
    s->notify_user = config->notify_user;
    s->parallel = config->parallel;
    list_init(&s->all);
    list_init(&s->waiting);
    list_init(&s->told);
    r = describe(s, config, err);
    if (r == 0)
        r = thread_start(s, err);
    if (r < 0) {
        chat_free(s->engine.info.chat);
        return r;
    }
    script = NULL;
    *ret = &STEAL(s)->engine;
    return 0;
}
