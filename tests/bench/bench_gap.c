/* bench_gap.c - how steady generation is while a long prompt enters.
 *
 *     bench-gap MODEL.gguf [ROUNDS [THREADS [PROMPT]]]
 *
 * Eight streams generate through the whole engine while a prompt of PROMPT tokens
 * (7500) is read; then eight new ones generate as many tokens undisturbed, for a
 * token takes longer the more there are before it. A gap is the time from one delivered
 * token of a stream to its next. Every round: median, 99th percentile and worst of
 * both, and how fast the prompt was read. The last lines are medians over the
 * rounds: the 99th percentile over the undisturbed one, and the median over the undisturbed one.
 *
 * Lines are CSV: what,round,value,unit.
 */
#include "base/clock.h"
#include "base/err.h"
#include "gen/engine.h"
#include "tests/bench/median.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

enum { STREAMS = 8, PROMPT = 32, LONGEST = 65536, TOKENS = 6000, WARM = 20, MAX_GAPS = 1 << 20, MAX_ROUNDS = 99 };

struct gaps {
    double ms[MAX_GAPS];
    size_t n;
};

struct stream {
    struct bench *bench;
    struct engine_seq *seq;
    uint64_t last_us;           /* of its last token; 0: none in this part */
    size_t n_tokens;
    bool is_long, over;
};

struct bench {
    struct engine *e;
    int event;
    struct gaps *into;          /* NULL: not counted now */
    struct stream streams[STREAMS + 1];
};

static struct gaps quiet, disturbed;

static void die(const char *what)
{
    fprintf(stderr, "bench-gap: %s\n", what);
    exit(1);
}

static void notify(void *user)
{
    eventfd_write(((struct bench *)user)->event, 1);
}

static void on_event(const struct engine_event *ev, void *poll_user)
{
    struct bench *b = poll_user;
    struct stream *s = ev->user;
    uint64_t now = clock_mono_us();

    if (ev->kind == ENGINE_FAILED)
        die(ev->message);
    s->over |= ev->kind == ENGINE_DONE;
    if (ev->kind != ENGINE_OUTPUT || !ev->n_tokens)
        return;
    if (s->last_us && b->into && !s->is_long && b->into->n < MAX_GAPS)
        b->into->ms[b->into->n++] = (double)(now - s->last_us) / 1000 / (double)ev->n_tokens;
    s->last_us = now;
    s->n_tokens += ev->n_tokens;
}

static void submit(struct bench *b, struct stream *s, uint32_t n_tokens, uint32_t max_tokens, uint32_t salt)
{
    static int32_t prompt[LONGEST];
    struct engine_request req = {
        .tokens = prompt, .n_tokens = n_tokens, .max_tokens = max_tokens, .sample = sample_defaults,
        .ignore_end = true, .n_logprobs = -1, .user = s,
    };
    struct err err = { 0 };

    for (uint32_t k = 0; k < n_tokens; k++)
        prompt[k] = (int32_t)((k * 977 + salt * 131) % 20000 + 300);
    req.sample.temperature = 0;
    *s = (struct stream){ .bench = b };
    if (engine_submit(b->e, &req, &s->seq, &err) != 0)
        die(err_text(&err));
}

static void turn(struct bench *b)
{
    struct pollfd fd = { .fd = b->event, .events = POLLIN };
    eventfd_t unused;

    if (poll(&fd, 1, -1) > 0)
        eventfd_read(b->event, &unused);
    engine_poll(b->e, on_event, b);
}

static void begin(struct bench *b, struct gaps *into)
{
    for (int i = 0; i < STREAMS; i++)
        b->streams[i].last_us = b->streams[i].n_tokens = 0;
    b->into = into;
    if (into)
        into->n = 0;
}

static void run_until(struct bench *b, size_t n_tokens)
{
    size_t least;

    do {
        turn(b);
        least = SIZE_MAX;
        for (int i = 0; i < STREAMS; i++)
            least = b->streams[i].n_tokens < least ? b->streams[i].n_tokens : least;
    } while (least < n_tokens);
}

static double at(const struct gaps *g, double part) { return g->ms[(size_t)((double)(g->n - 1) * part)]; }

static void start(struct bench *b, uint32_t salt)
{
    for (int i = 0; i < STREAMS; i++)
        submit(b, &b->streams[i], PROMPT, TOKENS, salt + (uint32_t)i);
    begin(b, NULL);
    run_until(b, WARM);
}

static void stop(struct bench *b)
{
    b->into = NULL;
    for (int i = 0; i < STREAMS; i++)
        if (b->streams[i].over)
            die("a stream ended too early");
        else
            engine_cancel(b->e, b->streams[i].seq);
}

static void say(const char *when, int round, struct gaps *g)
{
    sort_values(g->ms, g->n);
    printf("%s_p50,%d,%.3f,ms\n%s_p99,%d,%.3f,ms\n%s_worst,%d,%.3f,ms\n", when, round, at(g, 0.5), when, round, at(g, 0.99), when,
           round, at(g, 1));
}

struct ratios { double p99[MAX_ROUNDS], p50[MAX_ROUNDS]; };

static void do_round(struct bench *b, int round, uint32_t n_prompt, struct ratios *ret)
{
    struct stream *s = &b->streams[STREAMS];
    uint64_t began;
    size_t n;

    start(b, (uint32_t)round * 100);
    begin(b, &disturbed);
    began = clock_mono_us();
    submit(b, s, n_prompt, 1, (uint32_t)round * 100 + 50);
    s->is_long = true;
    while (!s->over)
        turn(b);
    printf("prompt_rate,%d,%.1f,tokens/s\n", round, n_prompt / ((double)(clock_mono_us() - began) / 1e6));
    n = b->streams[0].n_tokens;
    stop(b);
    start(b, (uint32_t)round * 100 + 60);
    begin(b, &quiet);
    run_until(b, n);
    stop(b);
    say("quiet", round, &quiet);
    say("disturbed", round, &disturbed);
    fflush(stdout);
    ret->p99[round] = at(&disturbed, 0.99) / at(&quiet, 0.99);
    ret->p50[round] = at(&disturbed, 0.5) / at(&quiet, 0.5);
}

int main(int argc, char **argv)
{
    int rounds = argc > 2 ? atoi(argv[2]) : 3;
    uint32_t n_prompt = argc > 4 ? (uint32_t)atoi(argv[4]) : 7500;
    struct bench b = { .event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) };
    struct engine_config config = {
        .name = "bench", .path = argc > 1 ? argv[1] : NULL, .device = "cpu", .parallel = STREAMS + 1, .chat_template = "chatml",
        .threads = argc > 3 ? (uint32_t)atoi(argv[3]) : 0, .notify = notify, .notify_user = &b,
    };
    static struct ratios ratios;
    struct err err = { 0 };

    if (argc < 2 || rounds < 1 || rounds > MAX_ROUNDS || n_prompt < 1 || n_prompt > LONGEST)
        die("bench-gap MODEL.gguf [ROUNDS [THREADS [PROMPT]]]");
    if (engine_open(&config, &b.e, &err) < 0)
        die(err_text(&err));
    for (int i = 0; i < rounds; i++)
        do_round(&b, i, n_prompt, &ratios);
    printf("p99_over_quiet,all,%.2f,ratio\np50_over_quiet,all,%.2f,ratio\n", median(ratios.p99, (size_t)rounds), median(ratios.p50, (size_t)rounds));
    engine_close(b.e);
    return 0;
}
