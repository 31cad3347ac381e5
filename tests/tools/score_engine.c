/* score-engine - holds this engine to what a model should compute.
 *
 *     score-engine MODEL.gguf FOLDER NAME [--out FILE] [--records N | --shortest N] [--threads N] [--isa PATH]
 *                  [--kv TYPE] [--path prompt | generated] [--hide N]
 *     score-engine --tiny FOLDER... [--threads N] [--isa PATH]
 *
 * FOLDER holds NAME.prompts.jsonl, NAME.greedy.jsonl, NAME.logprobs.jsonl and
 * summary.json; their README says how they were made and what the rules are:
 *
 *   1  mean kl8, over all positions, at most limits.mean_kl8
 *   2  share of positions with the right best token at least limits.top1_agreement
 *   3  every greedy record exactly, in ids and text; one may leave its line at a
 *      step whose gap is below gap_shift.max
 *
 * Prompts are tokenised and greedy records generated through the whole engine,
 * token by token and eight at a time; log-probabilities come from passes of the
 * model over pieces of the text. --out writes the latter for check_real.py.
 * --records takes the first N of each kind, --shortest the N shortest: rule 3 is held, the sums are shown.
 *
 * --isa     the table of kernels (gen/cpu/kernels.h) instead of the best
 * --kv      how keys and values are kept: f16 (the default), bf16 or q8. These two have bounds of their own
 * --path    what the rows of the passes are: read (the default) or generated; the two may take other kernels
 * --hide N  the text comes in pieces of random length, each among rows of up to N other sequences. These must not
 *           show: "logits" is a hash of all bits of the scored rows, the same with and without
 *
 * --tiny: each FOLDER is a tiny checkpoint of the golden data engine/tiny, scored from its token ids by the rows of
 * either path (tests/gen/tiny_twin.h).
 *
 * Exit status: 0 rules kept, 1 a rule broken, 2 it could not run, 77 this machine lacks what --isa needs. */
#include "base/arena.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "conv/chat.h"
#include "gen/cpu/kernels.h"
#include "gen/engine.h"
#include "gen/kv.h"
#include "gen/model.h"
#include "loaders/gguf.h"
#include "tests/gen/rand.h"
#include "tests/gen/tiny_twin.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

enum { BEST = 8, CHUNK = 128, PARALLEL = 8, MAX_HIDE = 64 };

struct options {
    const char *model, *folder, *name, *out;
    bool tiny, shortest, generated;
    size_t records;
    uint32_t threads, hide;
    enum kv_type kv;
};

/* What a coarser cache may cost beside the rules: the mean of kl8 over its limit, the share of positions with the right best
 * token below its limit, the share of greedy records that must still be equal. */
static const struct allowance { double kl8, top1, greedy; } allowances[KV_TYPES] = {
    [KV_F16] = { 1, 0, 1 },
    [KV_BF16] = { 1.25, 0.003, 0.95 },
    [KV_Q8] = { 1.5, 0.005, 0.9 },
};

struct limits { double mean_kl8, top1, gap_max; };

struct records {
    cJSON **list;
    size_t n;
};

static void die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

static void die(const char *fmt, ...)
{
    va_list ap;

    fflush(stdout);
    fputs("score-engine: ", stderr);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    exit(2);
}

static void *need(void *p)
{
    if (!p)
        die("no memory");
    return p;
}

/* ---- files ---- */

static FILE *open_file(const struct options *o, const char *name)
{
    char path[4096];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", o->folder, name);
    f = fopen(path, "re");
    if (!f)
        die("%s: %s", path, strerror(errno));
    return f;
}

static size_t length_of(const cJSON *rec)
{
    const cJSON *n_prompt = json_find(rec, "n_prompt");

    /* The ids of a greedy record are those behind its prompt. */
    return (size_t)cJSON_GetArraySize(json_find(rec, "ids")) +
           (json_find(rec, "gap") && n_prompt ? (size_t)n_prompt->valueint : 0);
}

static int by_length(const void *a, const void *b)
{
    const size_t x = length_of(*(cJSON *const *)a), y = length_of(*(cJSON *const *)b);

    return (x > y) - (x < y);
}

/* Those that --records and --shortest leave. */
static void take_some(const struct options *o, struct records *r)
{
    if (o->shortest)
        qsort(r->list, r->n, sizeof r->list[0], by_length);
    for (; r->n > o->records; r->n--)
        cJSON_Delete(r->list[r->n - 1]);
}

static struct records read_records(const struct options *o, const char *kind)
{
    CLEANUP(mem_free) char *line = NULL;
    struct records r = { 0 };
    char name[256];
    size_t cap = 0;
    ssize_t len;
    FILE *f;

    snprintf(name, sizeof name, "%s.%s.jsonl", o->name, kind);
    f = open_file(o, name);
    while ((len = getline(&line, &cap, f)) > 0) {
        struct err err = { 0 };

        r.list = need(realloc(r.list, (r.n + 1) * sizeof r.list[0]));
        if (json_parse(line, (size_t)len, NULL, &r.list[r.n], &err) < 0)
            die("%s: line %zu: %s", name, r.n + 1, err_text(&err));
        r.n++;
    }
    fclose(f);
    if (!r.n)
        die("%s is empty", name);
    return r;
}

static void free_records(struct records *r)
{
    for (size_t i = 0; i < r->n; i++)
        cJSON_Delete(r->list[i]);
    free(r->list);
}

static const cJSON *field(const cJSON *obj, const char *key)
{
    const cJSON *v = json_find(obj, key);

    if (!v)
        die("a record lacks \"%s\"", key);
    return v;
}

static const char *text_of(const cJSON *obj, const char *key)
{
    const char *text = cJSON_GetStringValue(field(obj, key));

    return text ? text : (die("\"%s\" is not a string", key), NULL);
}

static double number_of(const cJSON *obj, const char *key)
{
    const cJSON *v = field(obj, key);

    if (!cJSON_IsNumber(v))
        die("\"%s\" is not a number", key);
    return v->valuedouble;
}

static int32_t *ids_of(const cJSON *obj, const char *key, size_t *ret_n)
{
    const cJSON *list = field(obj, key), *v;
    size_t n = (size_t)cJSON_GetArraySize(list), i = 0;
    int32_t *ids = need(calloc(n + 1, sizeof ids[0]));

    cJSON_ArrayForEach(v, list)
        ids[i++] = v->valueint;
    *ret_n = n;
    return ids;
}

static struct limits read_limits(const struct options *o)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    BUF_LOCAL text = BUF_INIT;
    const cJSON *mine;
    FILE *f = open_file(o, "summary.json");
    char piece[4096];
    size_t n;

    while ((n = fread(piece, 1, sizeof piece, f)) > 0)
        buf_add(&text, piece, n);
    fclose(f);
    if (json_parse(buf_str(&text), text.len, NULL, &tree, NULL) < 0)
        die("summary.json is not JSON");
    mine = field(tree, o->name);
    return (struct limits){
        .mean_kl8 = number_of(field(mine, "limits"), "mean_kl8"),
        .top1 = number_of(field(mine, "limits"), "top1_agreement"),
        .gap_max = number_of(field(mine, "gap_shift"), "max"),
    };
}

/* ---- prompts and greedy records, through the engine ---- */

struct run {
    const cJSON *rec, *prompt;
    struct buf text;
    int32_t *ids;               /* generated */
    size_t n, n_want;
    bool failed;
    char finish[16];
};

struct greedy {
    struct engine *e;
    int event;
    size_t n_open;
};

static void notify(void *user)
{
    eventfd_write(((struct greedy *)user)->event, 1);
}

static void on_event(const struct engine_event *ev, void *poll_user)
{
    struct greedy *g = poll_user;
    struct run *run = ev->user;

    buf_add(&run->text, ev->text, ev->len);
    for (size_t i = 0; i < ev->n_tokens && run->n < run->n_want; i++)
        run->ids[run->n++] = ev->tokens[i].id;
    if (ev->kind == ENGINE_FAILED) {
        printf("%s: %s\n", text_of(run->rec, "id"), ev->message);
        run->failed = true;
    }
    if (ev->kind == ENGINE_DONE)
        snprintf(run->finish, sizeof run->finish, "%s", ev->finish_reason);
    if (ev->kind == ENGINE_DONE || ev->kind == ENGINE_FAILED)
        g->n_open--;
}

/* A chat goes through the template, other text is one span. */
static void tokenize(struct engine *e, const cJSON *prompt, struct arena *a, int32_t **ret, size_t *ret_n)
{
    const cJSON *messages = json_find(prompt, "messages");
    struct chat_input r = { .add_generation_prompt = true };
    struct chat_prompt chat = { 0 };
    BUF_LOCAL json = BUF_INIT;
    struct json_writer w = json_writer(&json);
    struct text_span whole;
    struct err err = { 0 };
    const char *param;

    if (messages) {
        json_tree(&w, messages);
        r.messages = buf_str(&json);
        r.messages_len = json.len;
        if (chat_render(engine_info(e)->chat, &r, a, &chat, &param, &err) < 0)
            die("%s: %s", text_of(prompt, "id"), err_text(&err));
    } else {
        const char *text = text_of(prompt, "text");

        whole = (struct text_span){ text, strlen(text), cJSON_IsTrue(field(prompt, "parse_special")) };
        chat = (struct chat_prompt){ .spans = &whole, .n_spans = 1 };
    }
    if (engine_tokenize(e, chat.spans, chat.n_spans, cJSON_IsTrue(field(prompt, "bos_added")), a, ret, ret_n, &err) < 0)
        die("%s: %s", text_of(prompt, "id"), err_text(&err));
}

static size_t check_prompts(struct engine *e, const struct records *prompts)
{
    size_t wrong = 0;

    for (size_t i = 0; i < prompts->n; i++) {
        CLEANUP(arena_free) struct arena *a = need(arena_new(0));
        CLEANUP(mem_free) int32_t *want = NULL;
        size_t n_want, n;
        int32_t *ids;

        want = ids_of(prompts->list[i], "ids", &n_want);
        tokenize(e, prompts->list[i], a, &ids, &n);
        if (n != n_want || memcmp(ids, want, n * sizeof ids[0])) {
            printf("prompt %s: its %zu tokens are not the record's %zu\n",
                   text_of(prompts->list[i], "id"), n, n_want);
            wrong++;
        }
    }
    printf("prompts: %zu of %zu have the record's tokens\n", prompts->n - wrong, prompts->n);
    return wrong;
}

static void submit(struct greedy *g, struct run *run)
{
    CLEANUP(arena_free) struct arena *a = need(arena_new(0));
    struct engine_request req = {
        .max_tokens = (uint32_t)number_of(run->rec, "n"),
        .sample = sample_defaults, .n_logprobs = -1, .user = run,
    };
    struct engine_seq *seq;
    struct err err = { 0 };
    int32_t *ids;

    req.sample.temperature = 0;
    tokenize(g->e, run->prompt, a, &ids, &req.n_tokens);
    req.tokens = ids;
    run->n_want = req.max_tokens;
    run->ids = need(calloc(run->n_want, sizeof run->ids[0]));
    if (engine_submit(g->e, &req, &seq, &err) != 0)
        die("%s: %s", text_of(run->rec, "id"), err_text(&err));
    g->n_open++;
}

/* True when it is the record; else prints where it is not and sets *ret_gap. */
static bool judge(const struct run *run, double *ret_gap)
{
    CLEANUP(mem_free) int32_t *want = NULL;
    const char *text = text_of(run->rec, "text");
    bool ends = !strcmp(text_of(run->rec, "stop"), "eog");
    size_t n, at = 0;
    const cJSON *gap;

    want = ids_of(run->rec, "ids", &n);
    n -= ends;                  /* the engine does not hand out the end token */
    while (at < n && at < run->n && run->ids[at] == want[at])
        at++;
    if (!run->failed && at == n && run->n == n && !strcmp(run->finish, ends ? "stop" : "length") &&
        run->text.len == strlen(text) && !memcmp(buf_str(&run->text), text, run->text.len))
        return true;
    gap = cJSON_GetArrayItem(field(run->rec, "gap"), (int)at);
    *ret_gap = gap ? gap->valuedouble : INFINITY;
    printf("greedy %s: differs at step %zu of %zu, where the gap is %.5f\n", text_of(run->rec, "id"), at,
           n + ends, *ret_gap);
    return false;
}

static const cJSON *prompt_of(const struct records *prompts, const char *id)
{
    for (size_t i = 0; i < prompts->n; i++)
        if (!strcmp(text_of(prompts->list[i], "id"), id))
            return prompts->list[i];
    die("no prompt \"%s\"", id);
}

/* True when rule 3 holds. */
static bool score_greedy(struct greedy *g, const struct records *prompts, const struct records *records,
                         double gap_max, double share)
{
    struct run *runs = need(calloc(records->n, sizeof runs[0]));
    uint64_t begin = clock_mono_ms();
    size_t wrong = 0, tokens = 0;
    double worst = 0, gap;

    for (size_t next = 0; next < records->n || g->n_open;) {
        struct pollfd fd = { .fd = g->event, .events = POLLIN };
        eventfd_t unused;

        for (; next < records->n && g->n_open < PARALLEL; next++) {
            runs[next].rec = records->list[next];
            runs[next].prompt = prompt_of(prompts, text_of(runs[next].rec, "id"));
            submit(g, &runs[next]);
        }
        if (engine_poll(g->e, on_event, g) == 0 && poll(&fd, 1, -1) > 0)
            eventfd_read(g->event, &unused);
    }
    for (size_t i = 0; i < records->n; i++) {
        if (!judge(&runs[i], &gap)) {
            wrong++;
            worst = gap > worst ? gap : worst;
        }
        tokens += runs[i].n;
        buf_fini(&runs[i].text);
        free(runs[i].ids);
    }
    free(runs);
    printf("greedy: %zu of %zu records equal, %zu tokens, %.1f s\n", records->n - wrong, records->n,
           tokens, (double)(clock_mono_ms() - begin) / 1000);
    if (share < 1)
        printf("greedy: at least %.0f %% with this cache\n", 100 * share);
    return wrong == 0 || (wrong == 1 && worst < gap_max) || (double)wrong <= (1 - share) * (double)records->n;
}

static bool through_the_engine(const struct options *o, const struct limits *limits)
{
    struct greedy g = { .event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) };
    struct records prompts = read_records(o, "prompts");
    struct records records = read_records(o, "greedy");
    struct engine_pulse pulse = { 0 };
    struct engine_config config = {
        .name = o->name, .path = o->model, .device = "cpu", .threads = o->threads,
        .kv_type = kv_type_name(o->kv), .parallel = PARALLEL, .chat_template = "auto", .pulse = &pulse,
        .notify = notify, .notify_user = &g,
    };
    struct err err = { 0 };
    bool fine;
    int r;

    take_some(o, &records);
    r = engine_open(&config, &g.e, &err);

    if (r == -ENOTSUP) {                            /* a base model, maybe: its records have no chats */
        struct err again = { 0 };

        config.chat_template = "raw";
        r = engine_open(&config, &g.e, &again);
    }
    if (r < 0)
        die("%s", err_text(&err));
    printf("%s: %s\n", engine_info(g.e)->model, engine_info(g.e)->backend);
    fine = check_prompts(g.e, &prompts) == 0;
    fine = score_greedy(&g, &prompts, &records, limits->gap_max, allowances[o->kv].greedy) && fine;
    engine_close(g.e);
    close(g.event);
    free_records(&prompts);
    free_records(&records);
    return fine;
}

/* ---- log-probabilities, by passes of the model ---- */

struct sums {
    double kl8;
    size_t n, agree;
    double *each;               /* [n]: of the positions */
};

/* Another sequence, of random tokens. */
struct other { uint32_t pos, n; bool prompt; uint32_t pages[CHUNK / KV_PAGE]; };

struct scorer {
    const struct options *o;
    struct model *model;
    struct kv *kv;
    uint32_t vocab;
    uint32_t *pages;
    float *logits;              /* [CHUNK][vocab] */
    struct model_row rows[MODEL_MAX_ROWS];
    uint64_t hash;              /* of all logits, 64 bits at a time: FNV-1a */
    uint64_t rng;
    struct other others[MAX_HIDE];
    float *other_logits;        /* [vocab] of each */
    FILE *out;
};

/* What a record says of a position, and what the model says. */
struct position { double lp, top_lp[BEST]; int32_t argmax; };

static double kl8(const double *e, const double *l)
{
    double s = 0, rest_e = 1, rest_l = 1;

    for (int i = 0; i < BEST; i++) {
        s += exp(e[i]) * (e[i] - l[i]);
        rest_e -= exp(e[i]);
        rest_l -= exp(l[i]);
    }
    rest_l = rest_l > 1e-9 ? rest_l : 1e-9;
    return rest_e > 1e-9 ? s + rest_e * log(rest_e / rest_l) : s;
}

static void look(const float *logits, uint32_t vocab, int32_t next, const int32_t *top, struct position *p)
{
    double sum = 0, zero;

    p->argmax = 0;
    for (uint32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[p->argmax])
            p->argmax = (int32_t)i;
    for (uint32_t i = 0; i < vocab; i++)
        sum += (double)expf(logits[i] - logits[p->argmax]);
    zero = (double)logits[p->argmax] + log(sum);
    p->lp = (double)logits[next] - zero;
    for (int i = 0; i < BEST; i++)
        p->top_lp[i] = (double)logits[top[i]] - zero;
}

static int32_t id_in(const struct scorer *s, const cJSON *v)
{
    if (!cJSON_IsNumber(v) || v->valuedouble < 0 || v->valuedouble >= s->vocab)
        die("a token of a record is not in the vocabulary of %u", s->vocab);
    return v->valueint;
}

/* ---- rows of other sequences in the passes ---- */

/* What each of them has in the next pass: nothing, a generated row or a piece of a prompt; n_rows at most. */
static void draw_others(struct scorer *s, size_t n_rows)
{
    for (uint32_t i = 0; i < s->o->hide; i++) {
        struct other *o = &s->others[i];
        const uint32_t kind = rand_below(&s->rng, 3), most = CHUNK - o->pos;

        o->prompt = kind == 2;
        o->n = kind == 2 ? 1 + rand_below(&s->rng, 16) : kind;
        o->n = o->n < most ? o->n : most;
        o->n = o->n < n_rows ? o->n : (uint32_t)n_rows;
        n_rows -= o->n;
    }
}

static size_t add_other(struct scorer *s, uint32_t i, struct model_row *rows)
{
    struct other *o = &s->others[i];

    for (uint32_t k = 0; k < o->n; k++)
        rows[k] = (struct model_row){
            .token = (int32_t)rand_below(&s->rng, s->vocab), .pos = o->pos + k, .pages = o->pages,
            .logits = k + 1 == o->n && rand_below(&s->rng, 2) ? s->other_logits + (size_t)i * s->vocab : NULL,
            .prompt = o->prompt,
        };
    o->pos = (o->pos + o->n) % CHUNK;
    return o->n;
}

static size_t add_scored(struct scorer *s, const int32_t *ids, size_t from, size_t n, struct model_row *rows)
{
    for (size_t i = 0; i < n; i++)
        rows[i] = (struct model_row){
            .token = ids[from + i], .pos = (uint32_t)(from + i), .pages = s->pages,
            .logits = s->logits + i * s->vocab, .prompt = !s->o->generated,
        };
    return n;
}

static void add_hash(struct scorer *s, size_t n)
{
    for (size_t i = 0; i + 2 <= n * s->vocab; i += 2) {
        uint64_t word;

        memcpy(&word, s->logits + i, sizeof word);
        s->hash = (s->hash ^ word) * 0x100000001B3u;
    }
}

/* Generated rows come before those of prompts; among their kind the scored ones have a random place. */
static void run_chunk(struct scorer *s, const int32_t *ids, size_t from, size_t n)
{
    const uint32_t hide = s->o->hide, place = rand_below(&s->rng, hide + 1);
    size_t n_rows = 0;

    draw_others(s, MODEL_MAX_ROWS - n);
    for (int prompt = 0; prompt < 2; prompt++)
        for (uint32_t i = 0; i <= hide; i++) {
            if (i == place && prompt != s->o->generated)
                n_rows += add_scored(s, ids, from, n, s->rows + n_rows);
            if (i < hide && s->others[i].prompt == prompt)
                n_rows += add_other(s, i, s->rows + n_rows);
        }
    model_forward(s->model, s->kv, s->rows, n_rows);
    add_hash(s, n);
}

/* ---- a record ---- */

static void write_record(FILE *out, const char *id, const struct position *p, size_t m)
{
    fprintf(out, "{\"id\":\"%s\",\"lp\":[", id);
    for (size_t i = 0; i < m; i++)
        fprintf(out, "%s%.6f", i ? "," : "", p[i].lp);
    fputs("],\"top_lp\":[", out);
    for (size_t i = 0; i < m; i++) {
        fputs(i ? ",[" : "[", out);
        for (int k = 0; k < BEST; k++)
            fprintf(out, "%s%.6f", k ? "," : "", p[i].top_lp[k]);
        fputc(']', out);
    }
    fputs("],\"argmax\":[", out);
    for (size_t i = 0; i < m; i++)
        fprintf(out, "%s%d", i ? "," : "", p[i].argmax);
    fputs("]}\n", out);
}

static void score_record(struct scorer *s, const cJSON *rec, struct sums *all)
{
    CLEANUP(mem_free) struct position *at = NULL;
    CLEANUP(mem_free) int32_t *ids = NULL;
    const cJSON *tops = field(rec, "top")->child, *lps = field(rec, "top_lp")->child, *id;
    struct sums mine = { 0 };
    double nll = 0;
    size_t n, m;

    ids = ids_of(rec, "ids", &n);
    if (n < 2 || n > (size_t)kv_pages(s->kv) * KV_PAGE)
        die("%s: %zu tokens", text_of(rec, "id"), n);
    cJSON_ArrayForEach(id, field(rec, "ids"))
        id_in(s, id);
    m = n - 1;
    at = need(calloc(m, sizeof at[0]));
    all->each = need(realloc(all->each, (all->n + m) * sizeof all->each[0]));
    for (size_t from = 0, len; from < m; from += len) {
        len = s->o->hide ? 1 + rand_below(&s->rng, CHUNK) : CHUNK;
        len = m - from < len ? m - from : len;
        run_chunk(s, ids, from, len);
        for (size_t i = from; i < from + len; i++) {
            const cJSON *t = tops ? tops->child : NULL, *l = lps ? lps->child : NULL;
            double want[BEST];
            int32_t top[BEST];

            for (int k = 0; k < BEST; k++) {
                if (!t || !l)
                    die("%s: position %zu has fewer than %d best tokens", text_of(rec, "id"), i, BEST);
                top[k] = id_in(s, t);
                want[k] = l->valuedouble;
                t = t->next;
                l = l->next;
            }
            look(s->logits + (i - from) * s->vocab, s->vocab, ids[i + 1], top, &at[i]);
            all->each[all->n + i] = kl8(want, at[i].top_lp);
            mine.kl8 += all->each[all->n + i];
            mine.agree += at[i].argmax == top[0];
            nll -= at[i].lp;
            tops = tops->next;
            lps = lps->next;
        }
    }
    printf("%-24s %5zu positions  mean kl8 %.6f  top-1 %.4f  perplexity %.5f\n", text_of(rec, "id"), m,
           mine.kl8 / (double)m, (double)mine.agree / (double)m, exp(nll / (double)m));
    fflush(stdout);
    if (s->out)
        write_record(s->out, text_of(rec, "id"), at, m);
    all->kl8 += mine.kl8;
    all->agree += mine.agree;
    all->n += m;
}

static void open_scorer(const struct options *o, const struct records *records, struct scorer *s)
{
    CLEANUP(gguf_close) struct gguf *file = NULL;
    struct model_options options = { .threads = o->threads };
    struct kv_shape shape;
    struct err err = { 0 };
    uint32_t n_pages = 0;

    *s = (struct scorer){ .o = o, .hash = 0xCBF29CE484222325u, .rng = 1 };
    if (gguf_open(o->model, &file, &err) < 0 || model_open(file, &options, &s->model, &err) < 0)
        die("%s", err_text(&err));
    for (size_t i = 0; i < records->n; i++) {
        size_t pages = (size_t)cJSON_GetArraySize(field(records->list[i], "ids")) / KV_PAGE + 1;

        n_pages = pages > n_pages ? (uint32_t)pages : n_pages;
    }
    shape = (struct kv_shape){
        .n_layers = model_shape(s->model)->n_layers,
        .n_kv_heads = model_shape(s->model)->n_kv_heads,
        .head_dim = model_shape(s->model)->head_dim,
        .n_pages = n_pages + o->hide * (CHUNK / KV_PAGE),
        .type = o->kv,
    };
    if (kv_open(&shape, &s->kv, &err) < 0)
        die("%s", err_text(&err));
    s->vocab = model_shape(s->model)->vocab_size;
    s->logits = need(calloc((size_t)CHUNK * s->vocab, sizeof s->logits[0]));
    s->other_logits = need(calloc((size_t)(o->hide + 1) * s->vocab, sizeof s->logits[0]));
    s->pages = need(calloc(n_pages, sizeof s->pages[0]));
    for (uint32_t i = 0; i < n_pages; i++)
        s->pages[i] = i;
    for (uint32_t i = 0; i < o->hide * (CHUNK / KV_PAGE); i++)
        s->others[i % o->hide].pages[i / o->hide] = n_pages + i;
    if (o->out) {
        s->out = fopen(o->out, "we");
        if (!s->out)
            die("%s: %s", o->out, strerror(errno));
    }
}

static void close_scorer(struct scorer *s)
{
    if (s->out && fclose(s->out))
        die("%s: %s", s->o->out, strerror(errno));
    free(s->logits);
    free(s->other_logits);
    free(s->pages);
    kv_close(s->kv);
    model_close(s->model);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* True when rules 1 and 2 hold, or are not to be held. */
static bool by_passes(const struct options *o, const struct limits *limits)
{
    static struct scorer s;
    const struct allowance *a = &allowances[o->kv];
    struct records records = read_records(o, "logprobs");
    uint64_t begin = clock_mono_ms();
    struct sums all = { 0 };
    double mean, top1;

    take_some(o, &records);
    open_scorer(o, &records, &s);
    printf("log-probabilities: %s kernels, %s rows, %s cache, beside up to %u other sequences\n", model_isa(s.model),
           o->generated ? "generated" : "prompt", kv_type_name(o->kv), o->hide);
    for (size_t i = 0; i < records.n; i++)
        score_record(&s, records.list[i], &all);
    mean = all.kl8 / (double)all.n;
    top1 = (double)all.agree / (double)all.n;
    qsort(all.each, all.n, sizeof all.each[0], by_value);
    printf("all: %zu positions, %.1f s, logits %016llx\nmean kl8 %.6f (limit %.6f)\n99th percentile of kl8 %.6f\n"
           "top-1 agreement %.5f (limit %.5f)\n",
           all.n, (double)(clock_mono_ms() - begin) / 1000, (unsigned long long)s.hash, mean, a->kl8 * limits->mean_kl8,
           all.each[(all.n - 1) * 99 / 100], top1, limits->top1 - a->top1);
    close_scorer(&s);
    free(all.each);
    free_records(&records);
    return o->records != SIZE_MAX || (mean <= a->kl8 * limits->mean_kl8 && top1 >= limits->top1 - a->top1);
}

/* ---- a tiny checkpoint ---- */

static bool score_tiny(const struct options *o, const char *folder, bool prompt)
{
    const struct twin_way way = { .threads = o->threads, .prompt = prompt };
    struct twin_score s;
    struct err err = { 0 };
    bool fine;

    if (twin_score(folder, NULL, &way, &s, &err) < 0)
        die("%s", err_text(&err));
    printf("%s, %s rows: off by at most", folder, prompt ? "prompt" : "generated");
    for (int i = 0; i < TWIN_LENGTHS; i++)
        printf(" %.2e (%u)", s.error[i], twin_lengths[i]);
    fine = twin_fine(&s);
    printf(" of the logits' deviation, limit %.0e; greedy %u of %d (smallest gap %.4f); in pieces %u logits differ: %s\n",
           s.limit, s.n_greedy, TWIN_GREEDY, s.min_gap, s.n_moved, fine ? "pass" : "FAIL");
    return fine;
}

static uint32_t count_of(const char *text)
{
    char *end;
    unsigned long n = strtoul(text, &end, 10);

    if (*end || end == text || !n || n > 1000000)
        die("\"%s\" is not a number from 1 to 1000000", text);
    return (uint32_t)n;
}

static const char usage[] =
    "score-engine MODEL.gguf FOLDER NAME [--out FILE] [--records N | --shortest N] [--threads N] [--isa PATH]\n"
    "                    [--kv TYPE] [--path prompt | generated] [--hide N]\n"
    "       score-engine --tiny FOLDER... [--threads N] [--isa PATH]";

/* For all that opens a model here: the engine has no other way to be told. */
static void use_isa(const char *name)
{
    const struct kernels *k;
    struct err err = { 0 };

    setenv("FASTCHAT_ISA", name, 1);
    if (kernels_choose(name, &k, &err) == 0)
        return;
    fprintf(stderr, "score-engine: %s\n", err_text(&err));
    exit(strstr(err_text(&err), "lacks") ? 77 : 2);
}

static struct options read_options(int argc, char **argv)
{
    static const struct option longs[] = {
        { "hide", required_argument, NULL, 'b' },
        { "isa", required_argument, NULL, 'i' },
        { "kv", required_argument, NULL, 'k' },
        { "out", required_argument, NULL, 'o' },
        { "path", required_argument, NULL, 'p' },
        { "records", required_argument, NULL, 'r' },
        { "shortest", required_argument, NULL, 's' },
        { "threads", required_argument, NULL, 't' },
        { "tiny", no_argument, NULL, 'y' },
        { "help", no_argument, NULL, 'h' },
        { 0 },
    };
    struct options o = { .records = SIZE_MAX };
    struct err err = { 0 };
    int c;

    while ((c = getopt_long(argc, argv, "o:r:t:h", longs, NULL)) != -1)
        switch (c) {
        case 'b': o.hide = count_of(optarg); break;
        case 'i': use_isa(optarg); break;
        case 'k':
            if (kv_type_read(optarg, &o.kv, &err) < 0)
                die("%s", err_text(&err));
            break;
        case 'o': o.out = optarg; break;
        case 'p':
            o.generated = !strcmp(optarg, "generated");
            if (!o.generated && strcmp(optarg, "prompt") != 0)
                die("usage: %s", usage);
            break;
        case 's': o.shortest = true; /* fallthrough */
        case 'r': o.records = count_of(optarg); break;
        case 't': o.threads = count_of(optarg); break;
        case 'y': o.tiny = true; break;
        case 'h': puts(usage); exit(0);
        default: die("usage: %s", usage);
        }
    if (o.hide > MAX_HIDE)
        die("--hide: at most %d", MAX_HIDE);
    if (o.tiny ? argc == optind : argc - optind != 3)
        die("usage: %s", usage);
    if (o.tiny)
        return o;
    o.model = argv[optind];
    o.folder = argv[optind + 1];
    o.name = argv[optind + 2];
    return o;
}

int main(int argc, char **argv)
{
    struct options o = read_options(argc, argv);
    struct limits limits;
    bool greedy, sums, tiny = true;

    for (int i = optind; o.tiny && i < argc; i++)
        for (int prompt = 0; prompt < 2; prompt++)
            tiny = score_tiny(&o, argv[i], prompt) && tiny;
    if (o.tiny)
        return tiny ? 0 : 1;
    limits = read_limits(&o);
    greedy = through_the_engine(&o, &limits);
    sums = by_passes(&o, &limits);
    printf("greedy records: %s; sums: %s\n", greedy ? "pass" : "FAIL",
           !sums ? "FAIL" : o.records == SIZE_MAX ? "pass" : "not held, for these are not all records");
    return greedy && sums ? 0 : 1;
}
