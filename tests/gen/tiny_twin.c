#include "tests/gen/tiny_twin.h"

#include "base/err.h"
#include "base/file.h"
#include "base/json.h"
#include "gen/cpu/kernels.h"
#include "gen/kv.h"
#include "gen/model.h"
#include "loaders/gguf.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE = 16 << 20, MAX_TOKENS = 100, LAST = 8, PAGES = (MAX_TOKENS + KV_PAGE - 1) / KV_PAGE, PROMPT = 6 };

const uint32_t twin_lengths[TWIN_LENGTHS] = { 1, 7, 33, MAX_TOKENS };

struct twin {
    struct model *model;
    struct kv *kv;
    uint32_t pages[PAGES], vocab;
    bool prompt;
    float *logits;                      /* [MAX_TOKENS][vocab] */
    struct buf expected;                /* a safetensors file: length of the table, table, data */
    cJSON *table;
    uint64_t table_len;
};

static void twin_fini(struct twin *t)
{
    model_close(t->model);
    kv_close(t->kv);
    free(t->logits);
    buf_fini(&t->expected);
    cJSON_Delete(t->table);
}

static int read_table(const char *folder, struct twin *t, struct err *err)
{
    char path[PATH_MAX];
    int r;

    snprintf(path, sizeof path, "%s/expected.safetensors", folder);
    if ((r = file_read(path, MAX_FILE, &t->expected, err)))
        return r;
    if (t->expected.len >= 8)
        memcpy(&t->table_len, t->expected.data, 8);
    if (t->expected.len < 8 || t->table_len > t->expected.len - 8)
        return err_set(err, -EINVAL, "%s: its table ends past the end of the file", path);
    if ((r = json_parse(t->expected.data + 8, t->table_len, NULL, &t->table, err)))
        err_place(err, "%s", path);
    return r;
}

/* n elements of 4 bytes, or NULL with a sentence. */
static const void *tensor(const struct twin *t, const char *kind, uint32_t length, size_t n, struct err *err)
{
    const uint64_t room = t->expected.len - 8 - t->table_len;
    const cJSON *entry, *offsets;
    uint64_t from, to;
    char name[64];

    if (length)
        snprintf(name, sizeof name, "%s_%u", kind, length);
    else
        snprintf(name, sizeof name, "%s", kind);
    entry = json_find(t->table, name);
    offsets = json_find(entry, "data_offsets");
    if (cJSON_GetArraySize(offsets) != 2) {
        err_set(err, -EINVAL, "expected.safetensors: %s is not there", name);
        return NULL;
    }
    from = (uint64_t)cJSON_GetArrayItem(offsets, 0)->valuedouble;
    to = (uint64_t)cJSON_GetArrayItem(offsets, 1)->valuedouble;
    if (to > room || from > to || to - from != 4 * n || (8 + t->table_len + from) % 4) {
        err_set(err, -EINVAL, "expected.safetensors: %s is not %zu numbers", name, n);
        return NULL;
    }
    return t->expected.data + 8 + t->table_len + from;
}

static int open_model(const struct gguf *file, const struct twin_way *way, struct twin *t, struct err *err)
{
    const struct model_options options = { .threads = way->threads, .isa = way->isa };
    const struct model_shape *s;
    int r = model_open(file, &options, &t->model, err);

    if (r < 0)
        return r;
    s = model_shape(t->model);
    t->prompt = way->prompt;
    t->vocab = s->vocab_size;
    t->logits = calloc((size_t)MAX_TOKENS * t->vocab, sizeof *t->logits);
    if (!t->logits)
        return err_set(err, -ENOMEM, "%s: no memory", gguf_path(file));
    for (int i = 0; i < PAGES; i++)
        t->pages[i] = (uint32_t)i;
    return kv_open(&(struct kv_shape){ s->n_layers, s->n_kv_heads, s->head_dim, PAGES }, &t->kv, err);
}

/* Logits of n tokens from position `first` on: the last of all `wanted`. */
static int feed(struct twin *t, const int32_t *ids, uint32_t first, uint32_t n, uint32_t wanted, bool prompt, struct err *err)
{
    struct model_row rows[MAX_TOKENS];

    for (uint32_t i = 0; i < n; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= t->vocab)
            return err_set(err, -EINVAL, "token %d is not in the vocabulary of %u", ids[i], t->vocab);
        rows[i] = (struct model_row){
            .token = ids[i], .pos = first + i, .pages = t->pages, .prompt = prompt,
            .logits = i + wanted < n ? NULL : t->logits + (size_t)(i + wanted - n) * t->vocab,
        };
    }
    model_forward(t->model, t->kv, rows, n);
    return 0;
}

static int score_length(struct twin *t, uint32_t n, double *ret, struct err *err)
{
    const uint32_t wanted = n == MAX_TOKENS ? LAST : n;
    const int32_t *ids = tensor(t, "ids", n, n, err);
    const float *want = tensor(t, "logits", n, (size_t)wanted * t->vocab, err);
    int r;

    if (!ids || !want)
        return -EINVAL;
    if ((r = feed(t, ids, 0, n, wanted, t->prompt, err)))
        return r;
    *ret = 0;
    for (size_t i = 0; i < (size_t)wanted * t->vocab; i++) {
        const double d = fabs((double)t->logits[i] - (double)want[i]);

        *ret = d <= *ret ? *ret : d;        /* a NaN stays */
    }
    return 0;
}

/* A pass of everything against passes of 1, 2, 3 … rows. */
static int score_pieces(struct twin *t, uint32_t n, uint32_t *ret, struct err *err)
{
    const int32_t *ids = tensor(t, "ids", n, n, err);
    float *whole = malloc((size_t)n * t->vocab * sizeof *whole);
    int r = !ids ? -EINVAL : !whole ? err_set(err, -ENOMEM, "no memory") : feed(t, ids, 0, n, n, t->prompt, err);

    if (r == 0)
        memcpy(whole, t->logits, (size_t)n * t->vocab * sizeof *whole);
    for (uint32_t at = 0, len = 1; r == 0 && at < n; at += len, len++) {
        len = len < n - at ? len : n - at;
        r = feed(t, ids + at, at, len, len, t->prompt, err);
        for (size_t i = 0; i < (size_t)len * t->vocab; i++)
            *ret += memcmp(&t->logits[i], &whole[(size_t)at * t->vocab + i], sizeof(float)) != 0;
    }
    free(whole);
    return r;
}

static int32_t best(const struct twin *t)
{
    uint32_t at = 0;

    for (uint32_t i = 1; i < t->vocab; i++)
        if (t->logits[i] > t->logits[at])
            at = i;
    return (int32_t)at;
}

/* One token at a time behind the prompt. */
static int score_greedy(struct twin *t, uint32_t *ret, struct err *err)
{
    const int32_t *prompt = tensor(t, "greedy_prompt", 0, PROMPT, err);
    const int32_t *ids = tensor(t, "greedy_ids", 0, TWIN_GREEDY, err);
    int r;

    if (!prompt || !ids)
        return -EINVAL;
    r = feed(t, prompt, 0, PROMPT, 1, t->prompt, err);
    for (*ret = 0; r == 0 && *ret < TWIN_GREEDY && best(t) == ids[*ret]; ++*ret)
        r = feed(t, &ids[*ret], PROMPT + *ret, 1, 1, false, err);
    return r;
}

static int read_facts(const char *folder, struct twin_score *ret, struct err *err)
{
    CLEANUP(json_delete) cJSON *facts = NULL;
    BUF_LOCAL text = BUF_INIT;
    char path[PATH_MAX];
    int r;

    snprintf(path, sizeof path, "%s/expected.json", folder);
    if ((r = file_read(path, MAX_FILE, &text, err)))
        return r;
    if ((r = json_parse(buf_str(&text), text.len, NULL, &facts, err)) ||
        (r = json_get_number(facts, "logit_std", &ret->logit_std, err)) ||
        (r = json_get_number(facts, "greedy_min_gap", &ret->min_gap, err)) || ret->logit_std <= 0)
        return err_place(err, "%s", path), r < 0 ? r : err_set(err, -EINVAL, "%s lacks logit_std", path);
    return 0;
}

static int find_limit(const struct twin_way *way, double *ret, struct err *err)
{
    const struct kernels *k;
    int r = kernels_choose(way->isa, &k, err);

    if (r == 0)
        *ret = way->prompt && k->prompt ? TWIN_MAX_ERROR_BF16 : TWIN_MAX_ERROR;
    return r;
}

int twin_score(const char *folder, const struct gguf *file, const struct twin_way *way, struct twin_score *ret, struct err *err)
{
    CLEANUP(gguf_close) struct gguf *own = NULL;
    struct twin t = { .expected = BUF_INIT };
    struct twin_score s = { 0 };
    char path[PATH_MAX];
    int r;

    snprintf(path, sizeof path, "%s/model.gguf", folder);
    if ((r = find_limit(way, &s.limit, err)) || (r = read_facts(folder, &s, err)) || (r = read_table(folder, &t, err)) ||
        (!file && (r = gguf_open(path, &own, err))) || (r = open_model(file ? file : own, way, &t, err)))
        goto out;
    for (int i = 0; i < TWIN_LENGTHS; i++) {
        if ((r = score_length(&t, twin_lengths[i], &s.error[i], err)))
            goto out;
        s.error[i] /= s.logit_std;
        s.worst = s.error[i] <= s.worst ? s.worst : s.error[i];
    }
    if ((r = score_pieces(&t, twin_lengths[2], &s.n_moved, err)) == 0 && (r = score_greedy(&t, &s.n_greedy, err)) == 0)
        *ret = s;
out:
    twin_fini(&t);
    return r;
}

bool twin_fine(const struct twin_score *s)
{
    const bool clear = s->worst * s->logit_std < s->min_gap / 2 || s->limit <= TWIN_MAX_ERROR;

    return s->worst <= s->limit && s->n_moved == 0 && (s->n_greedy == TWIN_GREEDY || !clear);
}
