/* SentencePiece model files: the ids, pieces and decoded text, whole and streamed, of each record of tokenizers/ids/spm_reference.jsonl. */
#include "base/buf.h"
#include "base/err.h"
#include "loaders/detok.h"
#include "loaders/tok/sp_model.h"
#include "score.h"

#include <stdio.h>
#include <string.h>

struct spm_run {
    struct score *s;
    const char *folder;
    struct tokenizer *t;
    char model[128];
    size_t n;                           /* of the model's records */
    bool missing;
    struct err why;                     /* it did not open */
};

static void open_model(struct spm_run *r, const char *model)
{
    BUF_LOCAL file = BUF_INIT;
    char name[160];

    tokenizer_close(r->t);
    r->t = NULL;
    r->n = 0;
    r->why = (struct err){ 0 };
    snprintf(r->model, sizeof r->model, "%s", model);
    snprintf(name, sizeof name, "spm/%s", model);
    score_begin(r->s, name);
    r->missing = !score_spm_file(r->folder, model, &file);
    if (!r->missing)
        sp_tokenizer_open(model, buf_str(&file), file.len, NULL, &r->t, &r->why);
}

static void add_ids(struct buf *b, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        buf_printf(b, "%d ", ids[i]);
}

/* A record's pieces are the file's: U+2581 for a space, <0xHH> for a byte; an unknown one is its text, which no id has. */
static void add_pieces(const struct tokenizer *t, const cJSON *want, const int32_t *ids, size_t n, struct buf *want_out, struct buf *out)
{
    const cJSON *piece = want ? want->child : NULL;

    for (size_t i = 0; i < n; i++, piece = piece ? piece->next : NULL) {
        size_t len;
        const char *text = tokenizer_token(t, ids[i], &len);
        bool byte = piece && strncmp(piece->valuestring, "<0x", 3) == 0;

        if (vocab_kind(t->vocab, ids[i]) == TOK_UNKNOWN)
            continue;
        buf_adds(want_out, piece ? piece->valuestring : "(none)");
        buf_addc(want_out, '|');
        if (byte && len == 1)
            buf_printf(out, "<0x%02X>", (unsigned char)text[0]);
        for (size_t k = 0; k < len && !(byte && len == 1); k++) {
            if (text[k] == ' ')
                buf_adds(out, "\xE2\x96\x81");
            else
                buf_addc(out, text[k]);
        }
        buf_addc(out, '|');
    }
}

/* The same text token by token. */
static void add_stream(const struct tokenizer *t, const struct token_list *list, struct buf *out)
{
    struct detok d;

    detok_init(&d, t);
    for (size_t i = 0; i < list->n; i++)
        detok_add(&d, list->ids[i], out);
    detok_flush(&d, out);
}

static void check(void *user, const cJSON *record, const char *raw, size_t len)
{
    struct spm_run *r = user;
    const cJSON *model = cJSON_GetObjectItem(record, "model"), *ids = cJSON_GetObjectItem(record, "ids"), *id;
    TOKEN_LIST_LOCAL list = { 0 };
    BUF_LOCAL text = BUF_INIT;
    BUF_LOCAL decoded = BUF_INIT;
    BUF_LOCAL want = BUF_INIT;
    BUF_LOCAL have = BUF_INIT;
    struct err err = { 0 };
    char name[192];

    if (!cJSON_IsString(model) || !cJSON_IsArray(ids) || !score_string(raw, len, "text", &text) || !score_string(raw, len, "decoded", &decoded))
        score_die("%s: a record of spm_reference.jsonl lacks model, text, ids or decoded", r->folder);
    if (strcmp(model->valuestring, r->model) != 0)
        open_model(r, model->valuestring);
    snprintf(name, sizeof name, "%s #%zu", r->model, r->n++);
    if (r->missing) {
        score_leave_out(r->s, name, "its model is not here");
        return;
    }
    if (!r->t) {
        score_fail(r->s, name, "%s", err_text(&r->why));
        return;
    }
    if (tokenizer_encode(r->t, text.data, text.len, false, &list, &err) < 0) {
        score_fail(r->s, name, "%s", err_text(&err));
        return;
    }
    if (tokenizer_decode(r->t, list.ids, list.n, false, &have) < 0)
        score_die("no memory");
    buf_add(&want, decoded.data, decoded.len);
    buf_adds(&have, "\nstream ");
    add_stream(r->t, &list, &have);
    buf_adds(&want, "\nstream ");
    buf_add(&want, decoded.data, decoded.len);
    buf_adds(&want, "\nids ");
    cJSON_ArrayForEach(id, ids)
        buf_printf(&want, "%d ", id->valueint);
    buf_adds(&want, "\npieces ");
    buf_adds(&have, "\nids ");
    add_ids(&have, list.ids, list.n);
    buf_adds(&have, "\npieces ");
    add_pieces(r->t, cJSON_GetObjectItem(record, "pieces"), list.ids, list.n, &want, &have);
    score_compare(r->s, name, want.data, want.len, have.data, have.len);
}

void score_spm(struct score *s, const char *folder)
{
    struct spm_run r = { .s = s, .folder = folder };

    score_lines(folder, "tokenizers/ids/spm_reference.jsonl", check, &r);
    tokenizer_close(r.t);
}
