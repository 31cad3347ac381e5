/* The forward pass against golden data: tiny checkpoints with the logits of
 * transformers, and the exact forward of SmolLM2. The README files of the golden
 * folders engine/tiny and engine/real say how they were made and what a
 * correct engine may miss. */
#include "base/err.h"
#include "base/json.h"
#include "gen/cpu/dequant.h"
#include "gen/cpu/pack.h"
#include "gen/kv.h"
#include "gen/model.h"
#include "loaders/gguf.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

enum { MAX_TOKENS = 512, TOP = 8 };

/* ---- files ----------------------------------------------------------- */

static bool in_ci(void)
{
    const char *ci = getenv("CI");

    return ci && strcmp(ci, "true") == 0;
}

static const char *golden(const char *rest, char *path)
{
    const char *root = getenv("FASTCHAT_GOLDEN"), *source = getenv("FASTCHAT_SOURCE");

    if (root && *root)
        snprintf(path, PATH_MAX, "%s/%s", root, rest);
    else
        snprintf(path, PATH_MAX, "%s/../shared/golden/%s", source ? source : ".", rest);
    return path;
}

static const char *smollm2(char *path)
{
    const char *file = getenv("FASTCHAT_SMOLLM2"), *cache = getenv("FASTCHAT_CACHE"), *home = getenv("HOME");
    const char *name = "models/SmolLM2-135M-Instruct.Q4_1.gguf";

    if (file && *file)
        snprintf(path, PATH_MAX, "%s", file);
    else if (cache && *cache)
        snprintf(path, PATH_MAX, "%s/%s", cache, name);
    else
        snprintf(path, PATH_MAX, "%s/.cache/fastchat/%s", home ? home : "", name);
    return path;
}

/* Golden data is not in the repository: without it there is nothing to test. */
static bool there(const char *path)
{
    if (access(path, R_OK) == 0)
        return true;
    fprintf(stderr, "skipped: %s is not there\n", path);
    return false;
}

static cJSON *parse(const char *text, size_t len)
{
    const struct json_limits limits = { .bytes = 64 << 20, .depth = 16, .string_bytes = 1 << 20, .values = 1 << 22 };
    struct err err = { 0 };
    cJSON *tree = NULL;

    cr_assert(zero(int, json_parse(text, len, &limits, &tree, &err)), "%s", err_text(&err));
    return tree;
}

static void read_whole(const char *path, struct buf *out)
{
    FILE *f = fopen(path, "re");
    size_t n;
    char *at;

    cr_assert(ne(ptr, f, NULL), "%s", path);
    do {
        at = buf_room(out, 1 << 16);
        cr_assert(ne(ptr, at, NULL));
        n = fread(at, 1, 1 << 16, f);
        buf_grew(out, n);
    } while (n);
    fclose(f);
}

/* ---- a model that scores one sequence -------------------------------- */

struct scorer {
    struct model *model;
    struct kv *kv;
    uint32_t pages[MAX_TOKENS / KV_PAGE], vocab;
    float *logits;                      /* [MAX_TOKENS][vocab] */
};

static void scorer_init(struct scorer *s, const char *path)
{
    CLEANUP(gguf_close) struct gguf *file = NULL;
    const struct model_options options = { .threads = 2 };
    const struct model_shape *shape;
    struct err err = { 0 };

    cr_assert(zero(int, gguf_open(path, &file, &err)), "%s", err_text(&err));
    cr_assert(zero(int, model_open(file, &options, &s->model, &err)), "%s", err_text(&err));
    shape = model_shape(s->model);
    s->vocab = shape->vocab_size;
    cr_assert(zero(int, kv_open(&(struct kv_shape){ shape->n_layers, shape->n_kv_heads, shape->head_dim,
                                                    MAX_TOKENS / KV_PAGE },
                                &s->kv, &err)));
    for (int i = 0; i < MAX_TOKENS / KV_PAGE; i++)
        cr_assert(zero(int, kv_take(s->kv, &s->pages[i])));
    s->logits = malloc(sizeof(float) * MAX_TOKENS * s->vocab);
    cr_assert(ne(ptr, s->logits, NULL));
}

static void scorer_fini(struct scorer *s)
{
    kv_close(s->kv);
    model_close(s->model);
    free(s->logits);
}

static void score(struct scorer *s, const int32_t *ids, uint32_t n)
{
    static struct model_row rows[MAX_TOKENS];

    cr_assert(le(u32, n, MAX_TOKENS));
    for (uint32_t i = 0; i < n; i++)
        rows[i] = (struct model_row){ ids[i], i, s->pages, s->logits + (size_t)i * s->vocab };
    model_forward(s->model, s->kv, rows, n);
}

/* ---- expected values of tiny checkpoints -------------------------------- */

/* A tensor of a safetensors file: an 8-byte length, a JSON table, the data. */
static const void *tensor_of(const struct buf *file, const cJSON *table, const char *name)
{
    const cJSON *offsets = NULL, *entry = NULL;
    uint64_t header;

    cr_assert(zero(int, json_get_object(table, name, &entry, NULL)), "%s", name);
    cr_assert(zero(int, json_get_array(entry, "data_offsets", &offsets, NULL)));
    memcpy(&header, file->data, 8);
    return file->data + 8 + header + (size_t)cJSON_GetArrayItem(offsets, 0)->valuedouble;
}

static double spread(const float *x, uint32_t n)
{
    double mean = 0, var = 0;

    for (uint32_t i = 0; i < n; i++)
        mean += (double)x[i] / n;
    for (uint32_t i = 0; i < n; i++)
        var += ((double)x[i] - mean) * ((double)x[i] - mean) / n;
    return sqrt(var);
}

/* Expected values: the file and its table. */
struct expected {
    struct buf file;
    cJSON *table;
};

static void expected_init(struct expected *e, const char *rest)
{
    char path[PATH_MAX];
    uint64_t header;

    *e = (struct expected){ 0 };
    read_whole(golden(rest, path), &e->file);
    memcpy(&header, e->file.data, 8);
    e->table = parse(e->file.data + 8, header);
}

static void expected_fini(struct expected *e)
{
    buf_fini(&e->file);
    cJSON_Delete(e->table);
}

/* The largest error of n positions over the spread of the logits: over `std`, or that
 * of the expected logits when it is 0. */
static double error_of(struct scorer *s, const struct expected *e, uint32_t n, double std)
{
    char name[32];
    const float *want;
    double worst = 0;

    snprintf(name, sizeof name, "ids_%u", n);
    score(s, tensor_of(&e->file, e->table, name), n);
    snprintf(name, sizeof name, "logits_%u", n);
    want = tensor_of(&e->file, e->table, name);
    for (size_t i = 0; i < n * (size_t)s->vocab; i++)
        worst = fmax(worst, fabs((double)s->logits[i] - (double)want[i]));
    return worst / (std > 0 ? std : spread(want, n * s->vocab));
}

/* ---- quantised files -------------------------------------------------- */

#define QUANT "engine/tiny/quant-gguf/"

/* A tensor's elements as floats, the caller's to free. */
static float *values_of(const struct gguf_tensor *t, size_t *ret_n)
{
    float *out;

    cr_assert(dequant_knows(t->type));
    *ret_n = t->bytes / ggml_type_facts(t->type)->block_bytes * ggml_type_facts(t->type)->block;
    out = malloc(*ret_n * sizeof *out);
    cr_assert(ne(ptr, out, NULL));
    dequant(t->type, t->data, *ret_n, out);
    return out;
}

/* Every bit of a tensor, by its hash; and of its first elements by themselves. */
static void expect_values(const struct gguf *file, const struct expected *e, const cJSON *facts)
{
    const struct gguf_tensor *t = gguf_tensor(file, facts->string);
    unsigned char hash[32];
    char hex[65] = "", name[128];
    const char *want = NULL;
    size_t n;

    cr_assert(t != NULL, "%s", facts->string);
    CLEANUP(mem_free) float *values = values_of(t, &n);

    cr_assert(zero(int, json_get_string(facts, "sha256_f32", &want, NULL)));
    cr_assert(eq(int, EVP_Digest(values, n * sizeof *values, hash, NULL, EVP_sha256(), NULL), 1));
    for (size_t i = 0; i < sizeof hash; i++)
        snprintf(hex + 2 * i, 3, "%02x", hash[i]);
    cr_expect(eq(str, hex, (char *)want), "%s: %s", gguf_path(file), facts->string);
    snprintf(name, sizeof name, "first512.%s", facts->string);
    if (json_find(e->table, name))
        cr_expect(zero(int, memcmp(values, tensor_of(&e->file, e->table, name), 512 * sizeof *values)), "%s: %s",
                  gguf_path(file), name);
}

/* Whether activations are rounded to eight bits anywhere: then the logits tell. */
static bool rounds(const struct gguf *file)
{
    enum mat_type type;
    bool any = false;

    for (size_t i = 0; i < gguf_n_tensors(file); i++) {
        cr_assert(mat_type_of(gguf_tensor_at(file, i)->type, &type));
        any |= mat_type_quantised(type);
    }
    return any;
}

static void check_quantised(const char *name, const cJSON *facts, double std)
{
    CLEANUP(gguf_close) struct gguf *file = NULL;
    const cJSON *tensors = NULL, *tensor;
    char path[PATH_MAX], rest[128];
    struct scorer s = { 0 };
    struct expected e;
    double error = 0;

    snprintf(rest, sizeof rest, QUANT "%s.expected.safetensors", name);
    expected_init(&e, rest);
    snprintf(rest, sizeof rest, QUANT "%s.gguf", name);
    cr_assert(zero(int, gguf_open(golden(rest, path), &file, NULL)));
    cr_assert(zero(int, json_get_object(facts, "tensors", &tensors, NULL)));
    cJSON_ArrayForEach(tensor, tensors) expect_values(file, &e, tensor);
    scorer_init(&s, path);
    for (int i = 0; i < 3; i++)
        error = fmax(error, error_of(&s, &e, (const uint32_t[]){ 1, 7, 33 }[i], std));
    fprintf(stderr, "%s: logits off by %.4f of their spread (llama.cpp: %.4f)\n", name, error,
            json_find(facts, "llama_cpp_vs_expected")->valuedouble);
    cr_expect(lt(dbl, error, rounds(file) ? 0.2 : 4e-3), "%s", name);
    scorer_fini(&s);
    expected_fini(&e);
}

Test(golden_model, quantised_files_have_the_values_of_gguf_py_and_give_their_logits)
{
    const cJSON *files = NULL, *file;
    BUF_LOCAL text = BUF_INIT;
    char path[PATH_MAX];
    double std = 0;
    int n = 0;

    if (!there(golden(QUANT "expected.json", path)))
        return;
    read_whole(path, &text);
    CLEANUP(json_delete) cJSON *all = parse(text.data, text.len);
    cr_assert(zero(int, json_get_number(all, "logit_std", &std, NULL)));
    cr_assert(zero(int, json_get_object(all, "files", &files, NULL)));
    cJSON_ArrayForEach(file, files) check_quantised(file->string, file, std), n++;
    cr_expect(eq(int, n, 14));
}

/* ---- SmolLM2 --------------------------------------------------------- */

static bool have_smollm2(char *model, char *records)
{
    const bool ok = there(smollm2(model)) && there(records);

    cr_assert(ok || !in_ci());
    return ok;
}

static uint32_t ids_of(const cJSON *record, int32_t *ids)
{
    const cJSON *list = NULL, *item;
    uint32_t n = 0;

    cr_assert(zero(int, json_get_array(record, "ids", &list, NULL)));
    cJSON_ArrayForEach(item, list) if (n < MAX_TOKENS) ids[n++] = (int32_t)item->valuedouble;
    return n;
}

static double at(const cJSON *list, int i, int j)
{
    return cJSON_GetArrayItem(cJSON_GetArrayItem(list, i), j)->valuedouble;
}

Test(golden_model, smollm2_logits_are_near_the_trace_of_the_exact_forward)
{
    char model[PATH_MAX], path[PATH_MAX];
    BUF_LOCAL text = BUF_INIT;
    struct scorer s = { 0 };
    const cJSON *values = NULL, *want = NULL;
    int32_t ids[MAX_TOKENS];

    golden("engine/real/smollm2.trace.json", path);
    if (!have_smollm2(model, path))
        return;
    read_whole(path, &text);
    CLEANUP(json_delete) cJSON *trace = parse(text.data, text.len);
    cr_assert(zero(int, json_get_object(trace, "values", &values, NULL)));
    cr_assert(zero(int, json_get_array(values, "logits", &want, NULL)));
    scorer_init(&s, model);
    score(&s, ids, ids_of(trace, ids));
    for (int i = 0; i < 4; i++) {
        const float *got = s.logits + (size_t)i * s.vocab;
        const cJSON *row = cJSON_GetArrayItem(want, i);

        cr_expect(lt(dbl, fabs(spread(got, s.vocab) - cJSON_GetArrayItem(row, 1)->valuedouble), 0.1));
        for (int j = 0; j < 8; j++)
            cr_expect(lt(dbl, fabs((double)got[j] - at(row, 2, j)), 1), "token %d logit %d", i, j);
    }
    scorer_fini(&s);
}

/* KL divergence over nine classes, the eight best tokens and the rest: kl8() of
 * the folder's check_real.py. */
static double kl8(const cJSON *record, int i, const float *logits, uint32_t vocab, uint32_t best)
{
    const cJSON *top = cJSON_GetArrayItem(json_find(record, "top"), i),
                *lp = cJSON_GetArrayItem(json_find(record, "top_lp"), i);
    double sum = 0, kl = 0, rest_e = 1, rest_l = 1;

    for (uint32_t t = 0; t < vocab; t++)
        sum += exp((double)logits[t] - (double)logits[best]);
    for (int j = 0; j < TOP; j++) {
        const double e = cJSON_GetArrayItem(lp, j)->valuedouble;
        const double l = (double)logits[(int)cJSON_GetArrayItem(top, j)->valuedouble] - (double)logits[best] - log(sum);

        kl += exp(e) * (e - l);
        rest_e -= exp(e);
        rest_l -= exp(l);
    }
    return rest_e > 1e-9 ? kl + rest_e * log(rest_e / fmax(rest_l, 1e-9)) : kl;
}

static uint32_t best_of(const float *logits, uint32_t n)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

static void limits_of(const char *name, double *ret_kl8, double *ret_top1)
{
    char path[PATH_MAX];
    BUF_LOCAL text = BUF_INIT;
    const cJSON *of_model = NULL, *limits = NULL;

    read_whole(golden("engine/real/summary.json", path), &text);
    CLEANUP(json_delete) cJSON *summary = parse(text.data, text.len);
    cr_assert(zero(int, json_get_object(summary, name, &of_model, NULL)));
    cr_assert(zero(int, json_get_object(of_model, "limits", &limits, NULL)));
    cr_assert(zero(int, json_get_number(limits, "mean_kl8", ret_kl8, NULL)));
    cr_assert(zero(int, json_get_number(limits, "top1_agreement", ret_top1, NULL)));
}

Test(golden_model, smollm2_keeps_the_distance_that_its_golden_records_allow)
{
    enum { RECORDS = 7, EVERY = 7 };
    char model[PATH_MAX], path[PATH_MAX];
    CLEANUP(mem_free) char *line = NULL;
    double total = 0, max_kl8 = 0, min_top1 = 0;
    uint32_t positions = 0, agreed = 0;
    struct scorer s = { 0 };
    size_t size = 0;
    int done = 0, seen = 0;
    FILE *f;

    golden("engine/real/smollm2.logprobs.jsonl", path);
    if (!have_smollm2(model, path))
        return;
    limits_of("smollm2", &max_kl8, &min_top1);
    scorer_init(&s, model);
    f = fopen(path, "re");
    cr_assert(ne(ptr, f, NULL));
    while (done < RECORDS && getline(&line, &size, f) > 0) {
        if (seen++ % EVERY)
            continue;                               /* all of them take minutes under a sanitizer */

        CLEANUP(json_delete) cJSON *record = parse(line, strlen(line));
        int32_t ids[MAX_TOKENS];
        const uint32_t n = ids_of(record, ids);

        if (n > 300)
            continue;
        score(&s, ids, n - 1);
        for (uint32_t i = 0; i + 1 < n; i++, positions++) {
            const float *logits = s.logits + (size_t)i * s.vocab;
            const uint32_t best = best_of(logits, s.vocab);

            total += kl8(record, (int)i, logits, s.vocab, best);
            agreed += best == (uint32_t)at(json_find(record, "top"), (int)i, 0);
        }
        done++;
    }
    fclose(f);
    fprintf(stderr, "%d records, %u positions: mean kl8 %.6f (limit %.6f), top-1 %.5f (limit %.5f)\n", done,
            positions, total / positions, max_kl8, (double)agreed / positions, min_top1);
    cr_expect(le(dbl, total / positions, max_kl8));
    cr_expect(ge(dbl, (double)agreed / positions, min_top1));
    scorer_fini(&s);
}
