/* bench_batch.c - what batching gives: eight streams at once beside one.
 *
 *     bench-batch MODEL.gguf [ROUNDS [THREADS]]
 *
 * Through the whole engine: each stream reads a prompt of 32 tokens and
 * generates 128, seeded; a rate is all generated tokens over the time from the
 * first request to the last token. Every round measures one stream, then
 * eight, then llama.cpp's one stream where $FASTCHAT_LLAMA_BENCH names its
 * llama-bench. The last line is the median over the rounds of eight streams
 * over the slower of the two single ones.
 *
 * Lines are CSV: what,round,value,unit. Lines with # are for people.
 */
#include "base/clock.h"
#include "base/err.h"
#include "gen/engine.h"
#include "tests/bench/median.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

enum { STREAMS = 8, PROMPT = 32, TOKENS = 128, MAX_ROUNDS = 99 };

struct bench {
    struct engine *e;
    int event;
    size_t n_open;
    uint64_t hash[STREAMS];     /* of the tokens of each stream: FNV-1a */
};

static void die(const char *what)
{
    fprintf(stderr, "bench-batch: %s\n", what);
    exit(1);
}

static void notify(void *user)
{
    eventfd_write(((struct bench *)user)->event, 1);
}

static void on_event(const struct engine_event *ev, void *poll_user)
{
    struct bench *b = poll_user;
    uint64_t *hash = ev->user;

    for (size_t i = 0; i < ev->n_tokens; i++)
        *hash = (*hash ^ (uint64_t)ev->tokens[i].id) * 0x100000001B3u;
    if (ev->kind == ENGINE_FAILED)
        die(ev->message);
    if (ev->kind == ENGINE_DONE)
        b->n_open--;
}

/* Tokens a second of n streams. */
static double run(struct bench *b, size_t n)
{
    uint64_t begin = clock_mono_ns();
    int32_t prompt[PROMPT];

    for (size_t i = 0; i < n; i++) {
        struct engine_request req = {
            .tokens = prompt, .n_tokens = PROMPT, .max_tokens = TOKENS, .sample = sample_defaults,
            .ignore_end = true, .n_logprobs = -1, .user = &b->hash[i],
        };
        struct engine_seq *seq;
        struct err err = { 0 };

        for (int k = 0; k < PROMPT; k++)
            prompt[k] = (int32_t)((size_t)(k * 977) + i * 131) % 20000 + 300;
        req.sample.has_seed = true;
        req.sample.seed = i;
        b->hash[i] = 0xCBF29CE484222325u;
        if (engine_submit(b->e, &req, &seq, &err) != 0)
            die(err_text(&err));
        b->n_open++;
    }
    while (b->n_open) {
        struct pollfd fd = { .fd = b->event, .events = POLLIN };
        eventfd_t unused;

        if (poll(&fd, 1, -1) > 0)
            eventfd_read(b->event, &unused);
        engine_poll(b->e, on_event, b);
    }
    return (double)(n * TOKENS) / ((double)(clock_mono_ns() - begin) / 1e9);
}

/* llama-bench's decode rate of one stream, or 0. */
static double run_peer(const char *peer, const char *model, uint32_t threads)
{
    char command[4096], line[4096];
    double rate = 0;
    FILE *f;

    snprintf(command, sizeof command, "'%s' -m '%s' -p 0 -n %d -t %u -r 1 -o jsonl 2>/dev/null", peer, model,
             TOKENS, threads);
    f = popen(command, "r");
    while (f && fgets(line, sizeof line, f)) {
        const char *at = strstr(line, "\"avg_ts\":");

        if (at)
            rate = strtod(at + strlen("\"avg_ts\":"), NULL);
    }
    if (!f || pclose(f) || rate <= 0)
        die("llama-bench gave no rate");
    return rate;
}

int main(int argc, char **argv)
{
    int rounds = argc > 2 ? atoi(argv[2]) : 5;
    uint32_t threads = argc > 3 ? (uint32_t)atoi(argv[3]) : (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    const char *peer = getenv("FASTCHAT_LLAMA_BENCH");
    struct bench b = { .event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) };
    struct engine_pulse pulse = { 0 };
    double ratio[MAX_ROUNDS], slower[MAX_ROUNDS];
    struct err err = { 0 };
    uint64_t alone;

    if (argc < 2 || rounds < 1 || rounds > MAX_ROUNDS || !threads)
        die("usage: bench-batch MODEL.gguf [ROUNDS [THREADS]]");
    if (engine_open(&(struct engine_config){
            .name = "bench", .path = argv[1], .device = "cpu", .threads = threads, .parallel = STREAMS,
            .context = 512, .chat_template = "raw", .pulse = &pulse, .notify = notify, .notify_user = &b,
        }, &b.e, &err) < 0)
        die(err_text(&err));
    printf("# %s, %s, %u threads\nwhat,round,value,unit\n", engine_info(b.e)->model,
           engine_info(b.e)->backend, threads);
    run(&b, 1);
    for (int i = 0; i < rounds; i++) {
        double one = run(&b, 1), many, other = 0, least;

        alone = b.hash[0];
        many = run(&b, STREAMS);
        if (b.hash[0] != alone)
            die("a stream gave other tokens in a batch than alone");
        if (peer)
            other = run_peer(peer, argv[1], threads);
        least = other > 0 && other < one ? other : one;
        ratio[i] = many / one;
        slower[i] = many / least;
        printf("stream-1,%d,%.2f,tok/s\nstreams-8,%d,%.2f,tok/s\n", i, one, i, many);
        if (peer)
            printf("llama.cpp-1,%d,%.2f,tok/s\n", i, other);
        printf("ratio,%d,%.3f,x\n", i, ratio[i]);
        fflush(stdout);
    }
    printf("# eight streams over one: %.2f\n", median(ratio, (size_t)rounds));
    printf("eight-over-slower-one,median,%.3f,x\n", median(slower, (size_t)rounds));
    engine_close(b.e);
    close(b.event);
    return 0;
}
