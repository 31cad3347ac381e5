/* Where the sliding window of a real model ends. In the statistics of whole texts an edge that is off by one does not show
 * (README of the golden folder engine/real, "Things to know"), so the attention of layer 0 is looked at itself: the rows in question
 * are the last of a pass over a model whose layers end there, and what its output matrix was given still lies in its room. */
#include "base/buf.h"
#include "base/err.h"
#include "base/file.h"
#include "base/json.h"
#include "gen/cpu/half.h"
#include "gen/cpu/prompt.h"
#include "gen/kv.h"
#include "gen/model_in.h"
#include "loaders/gguf.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WINDOW = 512, ROWS = 2, WIDTH = 1024, PAGES = WINDOW / KV_PAGE + 1, MOST = 64 << 20 };

static const char *const windows[] = { "512", "511", "513" };       /* the right one first */

static const char *source(void)
{
    const char *s = getenv("FASTCHAT_SOURCE");

    return s && *s ? s : ".";
}

static void golden_path(char *path, const char *name)
{
    const char *root = getenv("FASTCHAT_GOLDEN");

    if (root && *root)
        snprintf(path, PATH_MAX, "%s/engine/real/%s", root, name);
    else
        snprintf(path, PATH_MAX, "%s/../shared/golden/engine/real/%s", source(), name);
}

/* False where it can not be had. */
static bool model_path(char *path)
{
    const char *given = getenv("FASTCHAT_GEMMA3");
    char command[PATH_MAX + 64];
    FILE *f;

    if (given && *given) {
        snprintf(path, PATH_MAX, "%s", given);
        return true;
    }
    snprintf(command, sizeof command, "'%s/tools/fetch-model.sh' gemma3", source());
    f = popen(command, "r");
    if (!f || !fgets(path, PATH_MAX, f))
        path[0] = '\0';
    path[strcspn(path, "\n")] = '\0';
    return f && pclose(f) == 0 && path[0];
}

/* Token ids of long-essay, as many as are needed. */
static void read_ids(int32_t *ids)
{
    BUF_LOCAL text = BUF_INIT;
    char path[PATH_MAX];
    char *line, *rest;

    golden_path(path, "gemma3.logprobs.jsonl");
    cr_assert(zero(int, file_read(path, MOST, &text, NULL)));
    buf_str(&text);
    for (line = strtok_r(text.data, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        CLEANUP(json_delete) cJSON *rec = NULL;
        const cJSON *list;

        if (!strstr(line, "\"long-essay\""))
            continue;
        cr_assert(zero(int, json_parse(line, strlen(line), NULL, &rec, NULL)));
        list = json_find(rec, "ids");
        cr_assert(gt(int, cJSON_GetArraySize(list), WINDOW));
        for (int i = 0; i <= WINDOW; i++)
            ids[i] = cJSON_GetArrayItem(list, i)->valueint;
        return;
    }
    cr_assert(false, "long-essay is not there");
}

/* What W_O was given for row r of the last pass: generated, and alone in it; or of a prompt, which tables with kernels for
 * prompts keep in tiles. */
static void look(const struct model *m, uint32_t r, bool prompt, float *out)
{
    const bool tiles = prompt && m->k->prompt;

    for (uint32_t i = 0; i < WIDTH; i++) {
        const uint16_t *block = m->prompt.att + (size_t)(r / PROMPT_ROWS) * PROMPT_ROWS * m->attn;

        if (tiles)
            out[i] = bf16_to_f32(block[(i / 32 * 2 + r % 32 / 16) * PROMPT_TILE + r % 16 * 32 + i % 32]);
        else
            out[i] = (m->step.copied ? m->rooms[0].rows.att.f : m->rows.att.f)[(size_t)r * m->attn + i];
    }
}

static double distance(const float *got, const cJSON *want)
{
    double d = 0, size = 0;
    int i = 0;
    const cJSON *v;

    cJSON_ArrayForEach(v, want) {
        d += pow((double)got[i++] - v->valuedouble, 2);
        size += v->valuedouble * v->valuedouble;
    }
    cr_assert(eq(int, i, WIDTH));
    return sqrt(d / size);
}

static void expect_right(const float *got, const cJSON *trace, int row, const char *way)
{
    double off[3];

    for (int w = 0; w < 3; w++)
        off[w] = distance(got, cJSON_GetArrayItem(json_find(trace, windows[w]), row));
    printf("row %d, %s: %.4f from a window of 512, %.4f of 511, %.4f of 513\n", WINDOW - 1 + row, way, off[0], off[1], off[2]);
    /* 511 shows in the first row only, 513 in the second; by 2 to 3 %, and generated rows are off by up to 1.5 for their
     * activations are rounded to 8 bits. */
    cr_expect(lt(dbl, off[0], 0.02));
    cr_expect(lt(dbl, off[0], 0.75 * off[row ? 2 : 1]));
}

Test(window_real, gemma_sees_512_positions_in_layer_0)
{
    CLEANUP(gguf_close) struct gguf *file = NULL;
    CLEANUP(model_close) struct model *m = NULL;
    CLEANUP(kv_close) struct kv *kv = NULL;
    CLEANUP(json_delete) cJSON *tree = NULL;
    CLEANUP(mem_free) float *logits = NULL;
    static struct model_row rows[WINDOW + 1];
    static float got[WIDTH];
    BUF_LOCAL text = BUF_INIT;
    int32_t ids[WINDOW + 1];
    uint32_t pages[PAGES], n_layers;
    char path[PATH_MAX];
    struct err err = { 0 };

    golden_path(path, "gemma3.trace.json");
    if (file_read(path, MOST, &text, NULL) < 0 || !model_path(path)) {
        fprintf(stderr, "skipped: the reference data or the model is not there\n");
        cr_assert(not(getenv("CI") && !strcmp(getenv("CI"), "true") && text.len), "the model can not be fetched");
        return;
    }
    cr_assert(zero(int, json_parse(buf_str(&text), text.len, NULL, &tree, &err)), "%s", err_text(&err));
    read_ids(ids);
    cr_assert(zero(int, gguf_open(path, &file, &err)), "%s", err_text(&err));
    cr_assert(zero(int, model_open(file, &(struct model_options){ 0 }, &m, &err)), "%s", err_text(&err));
    cr_assert(eq(u32, m->attn, WIDTH));
    cr_assert(zero(int, kv_open(&(struct kv_shape){ m->shape.n_layers, m->shape.n_kv_heads, m->shape.head_dim, PAGES, KV_F16 }, &kv, &err)));
    logits = malloc(m->shape.vocab_size * sizeof *logits);
    cr_assert(ne(ptr, logits, NULL));
    for (uint32_t i = 0; i < PAGES; i++)
        pages[i] = i;
    n_layers = m->shape.n_layers;
    m->shape.n_layers = 1;
    for (int prompt = 0; prompt < 2; prompt++) {
        for (uint32_t i = 0; i <= WINDOW; i++)
            rows[i] = (struct model_row){ .token = ids[i], .pos = i, .pages = pages, .prompt = prompt,
                                          .logits = i + 1 >= WINDOW ? logits : NULL };
        if (prompt) {
            model_forward(m, kv, rows, WINDOW);
            look(m, WINDOW - 1, true, got);
        } else {
            model_forward(m, kv, rows, WINDOW - 1);
            model_forward(m, kv, rows + WINDOW - 1, 1);
            look(m, 0, false, got);
        }
        expect_right(got, json_find(tree, "window"), 0, prompt ? "prompt" : "generated");
        model_forward(m, kv, rows + WINDOW, 1);
        look(m, 0, prompt, got);
        expect_right(got, json_find(tree, "window"), 1, prompt ? "prompt" : "generated");
    }
    m->shape.n_layers = n_layers;
}
