/* bench_foreign.c - what a busy process costs, and how soon it is forgotten.
 *
 *     bench-foreign MODEL.gguf [ROUNDS [THREADS [PROCESSES]]]
 *
 * Each round measures all threads alone, one thread alone, then all threads while PROCESSES (default 1) others keep a core each
 * busy: first bound to the first cores that this one may use, then free to move. They are sessions of their own, as another user's or
 * another service's would be: a kernel that shares cores among groups gives each as much as all our threads together.
 *
 * decode-1, decode-8: streams from an empty context; read-512: a prompt. Tokens a second. after-MS: from the end of these processes until
 * 20 tokens of decode-1 come at 0.8 of its speed alone.
 */
#include "base/clock.h"
#include "base/err.h"
#include "gen/kv.h"
#include "gen/model.h"
#include "loaders/gguf.h"
#include "tests/bench/median.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    STREAMS = 8, CONTEXT = 512, PAGES = CONTEXT / KV_PAGE, MAX_ROUNDS = 99, MAX_PROCESSES = 64,
    PIECE_MS = 1500,            /* of one kind of work in one state */
    MOST_WAIT_MS = 5000, FEW_TOKENS = 20,
};

enum kind { DECODE_1, DECODE_8, READ, N_KINDS };
enum state { ALL, ONE, BOUND, MOVING, N_STATES };
static const char *const kinds[N_KINDS] = { "decode-1", "decode-8", "read-512" };
static const char *const states[N_STATES] = { "alone", "one-thread", "beside-bound", "beside-moving" };

struct bench {
    struct model *all, *one;
    struct kv *kv;
    float *logits;              /* [STREAMS][vocab_size] */
    uint32_t pages[STREAMS][PAGES];
};

static double rates[N_STATES][N_KINDS][MAX_ROUNDS], after[MAX_ROUNDS];
static pid_t processes[MAX_PROCESSES];

static void die(const char *what)
{
    fprintf(stderr, "bench-foreign: %s\n", what);
    exit(1);
}

/* ---- the others ------------------------------------------------------- */

/* The core number i of those that this process may use. */
static int core(int i)
{
    cpu_set_t may;
    int c = 0;

    sched_getaffinity(0, sizeof may, &may);
    for (; c < CPU_SETSIZE; c++)
        if (CPU_ISSET(c, &may) && i-- == 0)
            return c;
    die("more processes than cores");
    return -1;
}

/* A new session begins without the priority that ours may have been given. */
static int nice_of_session(void)
{
    FILE *f = fopen("/proc/self/autogroup", "r");
    int nice = 0;

    if (f && fscanf(f, "%*s nice %d", &nice) != 1)
        nice = 0;
    if (f)
        fclose(f);
    return nice;
}

static void be_busy(int bound_to)
{
    const int nice = nice_of_session();
    cpu_set_t set;
    FILE *f;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setsid();
    f = nice ? fopen("/proc/self/autogroup", "w") : NULL;
    if (f) {
        fprintf(f, "%d", nice);
        fclose(f);
    }
    CPU_ZERO(&set);
    if (bound_to >= 0)
        CPU_SET(bound_to, &set);
    if (bound_to >= 0 && sched_setaffinity(0, sizeof set, &set))
        _exit(1);
    for (volatile uint64_t i = 0;; i++)
        ;
}

static void start_others(int n, bool bound)
{
    for (int i = 0; i < n; i++) {
        const int on = bound ? core(i) : -1;

        processes[i] = fork();
        if (processes[i] < 0)
            die("cannot fork");
        if (processes[i] == 0)
            be_busy(on);
    }
}

static void end_others(int n)
{
    for (int i = 0; i < n; i++) {
        kill(processes[i], SIGKILL);
        waitpid(processes[i], NULL, 0);
    }
}

/* ---- ours ------------------------------------------------------------- */

static uint32_t pass(struct bench *b, struct model *m, enum kind kind, uint32_t pos)
{
    const uint32_t n = kind == READ ? CONTEXT : kind == DECODE_8 ? STREAMS : 1, vocab = model_shape(m)->vocab_size;
    static struct model_row rows[MODEL_MAX_ROWS];

    for (uint32_t i = 0; i < n; i++) {
        const bool prompt = kind == READ;
        const uint32_t seq = prompt ? 0 : i, at = prompt ? i : pos % CONTEXT;

        rows[i] = (struct model_row){
            .token = (int32_t)((300 + at * 7919 + 13 * seq) % vocab), .pos = at, .pages = b->pages[seq],
            .logits = prompt && i + 1 < n ? NULL : b->logits + (size_t)seq * vocab, .prompt = prompt,
        };
    }
    model_forward(m, b->kv, rows, n);
    return n;
}

static double work(struct bench *b, struct model *m, enum kind kind)
{
    const uint64_t start = clock_mono_us();
    uint64_t took = 0;
    double tokens = 0;

    for (uint32_t i = 0; took < PIECE_MS * 1000; i++) {
        tokens += pass(b, m, kind, i);
        took = clock_mono_us() - start;
    }
    return tokens * 1e6 / (double)took;
}

static double recover(struct bench *b, double alone)
{
    const uint64_t start = clock_mono_us();
    uint64_t piece = start, now = start;

    for (uint32_t i = 1; now - start < MOST_WAIT_MS * 1000; i++) {
        pass(b, b->all, DECODE_1, i);
        now = clock_mono_us();
        if (i % FEW_TOKENS)
            continue;
        if (FEW_TOKENS * 1e6 / (double)(now - piece) > 0.8 * alone)
            return (double)(piece - start) / 1e3;
        piece = now;
    }
    return MOST_WAIT_MS;
}

static void measure(struct bench *b, int round, int others)
{
    for (enum state s = ALL; s < N_STATES; s++) {
        if (s >= BOUND)
            start_others(others, s == BOUND);
        for (enum kind k = N_KINDS; k-- > 0; )
            rates[s][k][round] = work(b, s == ONE ? b->one : b->all, k);
        if (s >= BOUND)
            end_others(others);
        if (s == BOUND)
            after[round] = recover(b, rates[ALL][DECODE_1][round]);
        for (enum kind k = 0; k < N_KINDS; k++)
            printf("%s-%s,%d,%.1f,tok/s\n", kinds[k], states[s], round, rates[s][k][round]);
    }
    printf("after-MS,%d,%.0f,ms\n", round, after[round]);
    fflush(stdout);
}

/* ---- report ----------------------------------------------------------- */

static void report(int rounds)
{
    for (enum kind k = 0; k < N_KINDS; k++)
        for (enum state s = ALL; s < N_STATES; s++)
            printf("%s-%s,median,%.1f,tok/s\n", kinds[k], states[s], median(rates[s][k], (size_t)rounds));
    printf("after-MS,median,%.0f,ms\n", median(after, rounds));
}

static void open_all(struct bench *b, const char *path, uint32_t threads)
{
    CLEANUP(gguf_close) struct gguf *file = NULL;
    const struct model_options all = { .threads = threads }, one = { .threads = 1 };
    const struct model_shape *s;
    struct err err = { 0 };

    if (gguf_open(path, &file, &err) || model_open(file, &all, &b->all, &err) || model_open(file, &one, &b->one, &err))
        die(err_text(&err));
    s = model_shape(b->all);
    if (kv_open(&(struct kv_shape){ s->n_layers, s->n_kv_heads, s->head_dim, STREAMS * PAGES, KV_F16 }, &b->kv, &err))
        die(err_text(&err));
    b->logits = malloc((size_t)STREAMS * s->vocab_size * sizeof *b->logits);
    if (!b->logits)
        die("no memory for logits");
    for (int i = 0; i < STREAMS * PAGES; i++)
        kv_take(b->kv, &b->pages[i / PAGES][i % PAGES]);
    printf("# %s, %s kernels, %u threads\nwhat,round,value,unit\n", path, model_isa(b->all), model_threads(b->all));
}

int main(int argc, char **argv)
{
    static struct bench b;
    const int rounds = argc > 2 ? atoi(argv[2]) : 5, others = argc > 4 ? atoi(argv[4]) : 1;

    if (argc < 2 || rounds < 1 || rounds > MAX_ROUNDS || others < 1 || others > MAX_PROCESSES)
        die("usage: bench-foreign MODEL.gguf [ROUNDS (1 to 99) [THREADS [PROCESSES]]]");
    open_all(&b, argv[1], argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0);
    for (int r = 0; r < rounds; r++)
        measure(&b, r, others);
    report(rounds);
    kv_close(b.kv);
    model_close(b.all);
    model_close(b.one);
    free(b.logits);
    return 0;
}
