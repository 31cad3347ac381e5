/* bench_draft.c - what speculation gains.
 *
 *     bench-draft MODEL.gguf [ROUNDS [STREAMS [DRAFT.gguf]]]
 *
 * Greedy answers to three texts (a list that repeats, code that resembles itself, prose), by engines
 * without speculation, with a lookup, and with a draft model where one is named. Every round runs all of
 * them one after the other, and the time counts from an answer's first token. Of each text and
 * engine: tokens a pass and stream, the share of proposals that were right, tokens a second, and the median over the
 * rounds of its speed over that of the same round without. Answers that differ end the program.
 *
 * Lines are CSV: text,engine,what,value,unit.
 */
#include "base/arena.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/span.h"
#include "gen/engine.h"
#include "tests/bench/median.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

enum { TOKENS = 128, MAX_ROUNDS = 99, MAX_STREAMS = 64, N_TEXTS = 3 };

#define LINE "one apple, two pears, three plums\n"
static const char *const names[N_TEXTS] = { "list", "code", "prose" };
static const char *const texts[N_TEXTS] = {
    LINE LINE LINE LINE LINE LINE LINE LINE "one apple,",
    "static int point_add(struct point *a, struct point *b)\n{\n    a->x += b->x;\n    a->y += b->y;\n    return 0;\n}\n\n"
    "static int point_sub(struct point *a, struct point *b)\n{\n    a->x -= b->x;\n    a->y -= b->y;\n    return 0;\n}\n\n"
    "static int point_mul(",
    "The history of the town begins with",
};

struct way {
    const char *speculative, *draft_model;
    struct engine *e;
    int event;
    double per_s[N_TEXTS][MAX_ROUNDS];
    struct engine_stats spent[N_TEXTS];             /* of the last round */
};

struct stream {
    int32_t tokens[TOKENS];
    size_t n;
    uint64_t first_us, last_us;
    bool over;
};

static struct stream streams[MAX_STREAMS];
static int32_t wanted[N_TEXTS][TOKENS];

static void die(const char *what)
{
    fprintf(stderr, "bench-draft: %s\n", what);
    exit(1);
}

static void notify(void *user)
{
    eventfd_write(((struct way *)user)->event, 1);
}

static void on_event(const struct engine_event *ev, void *unused)
{
    struct stream *s = ev->user;

    (void)unused;
    if (ev->kind == ENGINE_FAILED)
        die(ev->message);
    s->over |= ev->kind == ENGINE_DONE;
    if (ev->kind != ENGINE_OUTPUT || !ev->n_tokens)
        return;
    s->last_us = clock_mono_us();
    if (!s->n)
        s->first_us = s->last_us;
    for (size_t i = 0; i < ev->n_tokens && s->n < TOKENS; i++)
        s->tokens[s->n++] = ev->tokens[i].id;
}

static void open_way(struct way *w, const char *model, uint32_t n_streams)
{
    struct err err = { 0 };
    const struct engine_config config = {
        .name = "bench", .path = model, .device = "cpu", .context = 1024, .parallel = n_streams, .prefix = ENGINE_PREFIX_OFF,
        .speculative = w->speculative, .draft_model = w->draft_model, .chat_template = "auto", .notify = notify, .notify_user = w,
    };

    w->event = eventfd(0, EFD_CLOEXEC);
    if (engine_open(&config, &w->e, &err) < 0)
        die(err_text(&err));
}

static void submit(struct way *w, struct stream *s, const char *text)
{
    const struct text_span span = { .text = text, .len = strlen(text) };
    struct engine_request req = { .max_tokens = TOKENS, .sample = sample_defaults, .ignore_end = true, .n_logprobs = -1, .user = s };
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    struct engine_seq *seq;
    struct err err = { 0 };
    int32_t *ids;

    *s = (struct stream){ 0 };
    req.sample.temperature = 0;
    if (engine_tokenize(w->e, &span, 1, true, a, &ids, &req.n_tokens, &err) < 0)
        die(err_text(&err));
    req.tokens = ids;
    if (engine_submit(w->e, &req, &seq, &err) != 0)
        die(err_text(&err));
}

static void answer(struct way *w, int text, int round, uint32_t n_streams)
{
    struct engine_stats before, *st = &w->spent[text];
    uint64_t first = UINT64_MAX, last = 0;
    bool over;

    engine_stats(w->e, &before);
    for (uint32_t i = 0; i < n_streams; i++)
        submit(w, &streams[i], texts[text]);
    do {
        struct pollfd fd = { .fd = w->event, .events = POLLIN };
        eventfd_t unused;

        if (poll(&fd, 1, -1) > 0)
            eventfd_read(w->event, &unused);
        engine_poll(w->e, on_event, NULL);
        over = true;
        for (uint32_t i = 0; i < n_streams; i++)
            over &= streams[i].over;
    } while (!over);
    engine_stats(w->e, st);
    st->forwards -= before.forwards;
    st->drafted_tokens -= before.drafted_tokens;
    st->accepted_tokens -= before.accepted_tokens;
    for (uint32_t i = 0; i < n_streams; i++) {
        first = streams[i].first_us < first ? streams[i].first_us : first;
        last = streams[i].last_us > last ? streams[i].last_us : last;
        if (!wanted[text][0] && !i)
            memcpy(wanted[text], streams[0].tokens, sizeof wanted[0]);
        if (memcmp(wanted[text], streams[i].tokens, sizeof wanted[0]))
            die("an answer is another one");
    }
    w->per_s[text][round] = n_streams * (TOKENS - 1.0) / ((double)(last - first) / 1e6);
}

static void print(const struct way *off, const struct way *w, int text, int rounds)
{
    const struct engine_stats *st = &w->spent[text];
    double ratio[MAX_ROUNDS], best = 0;

    for (int i = 0; i < rounds; i++) {
        ratio[i] = w->per_s[text][i] / off->per_s[text][i];
        best = w->per_s[text][i] > best ? w->per_s[text][i] : best;
    }
    printf("%s,%s,tokens a pass,%.2f,tokens\n", names[text], w->speculative, (double)TOKENS / (double)st->forwards);
    printf("%s,%s,right,%.1f,%%\n", names[text], w->speculative,
           st->drafted_tokens ? 100.0 * (double)st->accepted_tokens / (double)st->drafted_tokens : 0);
    printf("%s,%s,best,%.1f,tokens/s\n", names[text], w->speculative, best);
    printf("%s,%s,over off,%.3f,x\n", names[text], w->speculative, median(ratio, (size_t)rounds));
}

int main(int argc, char **argv)
{
    static struct way ways[3] = { { .speculative = "off" }, { .speculative = "ngram" }, { .speculative = "draft" } };
    const int rounds = argc > 2 ? atoi(argv[2]) : 5, n_ways = argc > 4 ? 3 : 2, n_streams = argc > 3 ? atoi(argv[3]) : 1;

    if (argc < 2 || rounds < 1 || rounds > MAX_ROUNDS || n_streams < 1 || n_streams > MAX_STREAMS) {
        fprintf(stderr, "bench-draft MODEL.gguf [ROUNDS [STREAMS [DRAFT.gguf]]]\n");
        return 2;
    }
    ways[2].draft_model = argc > 4 ? argv[4] : NULL;
    for (int k = 0; k < n_ways; k++)
        open_way(&ways[k], argv[1], (uint32_t)n_streams);
    for (int round = 0; round < rounds; round++)
        for (int text = 0; text < N_TEXTS; text++)
            for (int k = 0; k < n_ways; k++)
                answer(&ways[k], text, round, (uint32_t)n_streams);
    printf("text,engine,what,value,unit\n");
    for (int text = 0; text < N_TEXTS; text++)
        for (int k = 0; k < n_ways; k++)
            print(&ways[0], &ways[k], text, rounds);
    for (int k = 0; k < n_ways; k++)
        engine_close(ways[k].e);
    return 0;
}
