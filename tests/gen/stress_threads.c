/* stress_threads.c - whatever one thread may call while another computes, all at once: the pool with its barriers, and
 * both engines with a caller who submits, cancels, pauses and polls while others look.
 *
 * A plain main, because Criterion does not start under TSan, for which this is made; it runs in every build.
 */
#include "base/arena.h"
#include "base/clock.h"
#include "base/err.h"
#include "conv/conv.h"
#include "gen/cpu/crew.h"
#include "gen/cpu/pool.h"
#include "gen/engine.h"
#include "tests/gen/rand.h"
#include "tests/gen/tiny_file.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { ROUNDS = 20, STEPS = 40, SEQS = 8, TURNS = 400, LOOKERS = 2, CEILING_MS = 600000 };

static unsigned n_passed;

#define MUST(what)                                                                                 \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);                             \
            printf("%u passed, 1 failed\n", n_passed);                                             \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* ---- the pool ---- */

struct count { struct pool *pool; uint32_t n, cells[16]; };

/* Each thread raises its own cell, meets, and reads everybody's. */
static void count_rounds(void *arg, uint32_t thread)
{
    struct count *c = arg;

    for (uint32_t i = 0; i < ROUNDS; i++) {
        c->cells[thread]++;
        pool_barrier(c->pool, thread);
        for (uint32_t t = 0; t < c->n; t++)
            MUST(c->cells[t] == c->cells[thread]);
        pool_barrier(c->pool, thread);
    }
}

static void meet(uint32_t threads)
{
    struct count c = { .n = threads };

    MUST(pool_open(threads, &c.pool, NULL) == 0);
    for (uint32_t i = 0; i < STEPS; i++)
        pool_run(c.pool, count_rounds, &c);
    for (uint32_t t = 0; t < threads; t++)
        MUST(c.cells[t] == ROUNDS * STEPS);
    pool_close(c.pool);
    n_passed++;
}

/* Runs on other numbers of threads each, some of them timed; one that is left out may still be on its way out of the run before. */
static void meet_changing(uint32_t threads)
{
    struct count c = { 0 };
    struct crew crew;

    MUST(pool_open(threads, &c.pool, NULL) == 0);
    for (uint32_t i = 0; i < STEPS; i++) {
        c = (struct count){ .pool = c.pool, .n = 1 + i * 7 % threads };
        crew_init(&crew, c.n);
        if (i % 3)
            pool_run_crew(c.pool, &crew, count_rounds, &c);
        else
            pool_run_on(c.pool, c.n, count_rounds, &c);
        for (uint32_t t = 0; t < threads; t++)
            MUST(c.cells[t] == (t < c.n ? ROUNDS : 0));
    }
    pool_close(c.pool);
    n_passed++;
}

/* ---- the engines ---- */

struct seq { struct engine_seq *seq; bool alive, paused; };

struct bench {
    struct engine *e;
    struct engine_pulse pulse;
    int event;                  /* eventfd */
    struct seq seqs[SEQS];
    uint64_t random;
    uint32_t n_failed;
    _Atomic bool stop;          /* for those who look */
};

static uint32_t next_random(struct bench *b, uint32_t below)
{
    return rand_below(&b->random, below);
}

static void notify(void *user)
{
    eventfd_write(((struct bench *)user)->event, 1);
}

static void on_event(const struct engine_event *ev, void *user)
{
    struct bench *b = user;
    struct seq *s = ev->user;

    MUST(s->alive);
    s->alive = ev->kind != ENGINE_DONE && ev->kind != ENGINE_FAILED;
    b->n_failed += ev->kind == ENGINE_FAILED;
}

static void collect(struct bench *b)
{
    struct pollfd fd = { .fd = b->event, .events = POLLIN };
    eventfd_t n;

    poll(&fd, 1, 1);
    eventfd_read(b->event, &n);
    engine_poll(b->e, on_event, b);
}

static void submit(struct bench *b, struct seq *s)
{
    static const int32_t prompt[40] = { 104, 105, 32, 116, 104, 101, 114, 101 };
    static const char *const stops[] = { "never said" };
    struct engine_request req = {
        .tokens = prompt, .n_tokens = 1 + next_random(b, 40), .max_tokens = 1 + next_random(b, 30), .sample = sample_defaults,
        .stop = stops, .n_stop = 1, .ignore_end = true, .n_logprobs = (int)next_random(b, 3) - 1, .user = s,
    };
    struct err err = { 0 };
    int r = engine_submit(b->e, &req, &s->seq, &err);

    MUST(r == 0 || r == ENGINE_BUSY);
    s->alive = r == 0;
    s->paused = false;
}

static void disturb(struct bench *b, struct seq *s)
{
    if (!s->alive) {
        submit(b, s);
    } else if (next_random(b, 4) == 0) {
        engine_cancel(b->e, s->seq);
        s->alive = false;
    } else {
        s->paused = !s->paused;
        engine_pause(b->e, s->seq, s->paused);
    }
}

static bool all_over(struct bench *b)
{
    struct engine_stats st;

    for (int i = 0; i < SEQS; i++)
        if (b->seqs[i].alive)
            return false;
    engine_stats(b->e, &st);
    return st.running == 0 && st.waiting == 0 && st.kv_pages == st.kv_pages_free;
}

/* What the loop's thread and the heartbeat may ask at any time. */
static void *look(void *user)
{
    struct bench *b = user;
    struct text_span span = { .text = "hi there <|im_end|>", .len = 19, .trusted = true };

    while (!atomic_load(&b->stop)) {
        CLEANUP(arena_free) struct arena *a = arena_new(0);
        struct engine_stats st;
        int32_t *ids;
        size_t n, len;

        engine_stats(b->e, &st);
        MUST(st.kv_pages_free <= st.kv_pages);
        MUST(engine_tokenize(b->e, &span, 1, true, a, &ids, &n, NULL) == 0 && n > 0);
        MUST(engine_token_text(b->e, ids[0], &len) && engine_info(b->e)->context_length);
        (void)(atomic_load(&b->pulse.beats) + atomic_load(&b->pulse.busy_until_us) + atomic_load(&b->pulse.idle));
    }
    return NULL;
}

static void play(const char *device, const char *path, const char *speculative)
{
    static struct bench b;
    const struct engine_config config = {
        .name = "m", .path = path, .device = device, .context = 256, .threads = 2, .parallel = 4, .kv_tokens = 512,
        .speculative = speculative, .draft_model = path, .chat_template = "chatml", .pulse = &b.pulse, .notify = notify, .notify_user = &b,
    };
    pthread_t lookers[LOOKERS];
    struct err err = { 0 };
    uint64_t ceiling = clock_mono_ms() + CEILING_MS;

    b = (struct bench){ .event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .random = 7 };
    if (engine_open(&config, &b.e, &err) < 0)
        fprintf(stderr, "%s\n", err_text(&err));
    MUST(b.e);
    for (int i = 0; i < LOOKERS; i++)
        MUST(pthread_create(&lookers[i], NULL, look, &b) == 0);
    for (int i = 0; i < TURNS; i++) {
        disturb(&b, &b.seqs[next_random(&b, SEQS)]);
        collect(&b);
    }
    for (int i = 0; i < SEQS; i++)
        if (b.seqs[i].alive)
            engine_pause(b.e, b.seqs[i].seq, false);
    while (!all_over(&b)) {
        MUST(clock_mono_ms() < ceiling);
        collect(&b);
    }
    MUST(b.n_failed == 0);
    atomic_store(&b.stop, true);
    for (int i = 0; i < LOOKERS; i++)
        pthread_join(lookers[i], NULL);
    for (int i = 0; i < SEQS; i++)
        submit(&b, &b.seqs[i]);
    engine_close(b.e);          /* with all of them under way */
    close(b.event);
    n_passed++;
}

int main(void)
{
    static const char script[] = "{\"play\":[\"a\",{\"text\":\"bcd\",\"tokens\":2},{\"repeat\":5,\"play\":[\"x\",\"y\"]}]}";
    char folder[] = "/tmp/fastchat-threads-XXXXXX", model[64], plays[64];
    FILE *f;

    MUST(mkdtemp(folder));
    snprintf(model, sizeof model, "%s/tiny.gguf", folder);
    snprintf(plays, sizeof plays, "%s/plays.json", folder);
    tiny_file_write(model, &(struct tiny_file){ .seed = 11 });
    f = fopen(plays, "w");
    MUST(f && fputs(script, f) >= 0 && fclose(f) == 0);

    meet(2);
    meet(3);
    meet(9);                    /* meets in another way from here on */
    meet_changing(2);
    meet_changing(4);
    meet_changing(11);
    play("scripted", plays, NULL);
    play("cpu", model, "off");
    play("cpu", model, "ngram");
    play("cpu", model, "draft");

    unlink(model);
    unlink(plays);
    rmdir(folder);
    printf("%u passed, 0 failed\n", n_passed);
    return 0;
}
