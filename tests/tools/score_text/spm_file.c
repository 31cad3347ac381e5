/* A SentencePiece model is a protobuf message (ModelProto); what the reference data keeps of one is readable: the settings that
 * matter when it is used, and a piece a line. */
#include "tests/tools/score_text/score.h"

#include "base/json.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { NUMBER, TEXT, HEX };

static const struct field {
    const char *message, *name;
    unsigned number;
    enum kind kind;
} fields[] = {
    { "trainer", "model_type", 3, NUMBER },
    { "trainer", "treat_whitespace_as_suffix", 24, NUMBER },
    { "trainer", "byte_fallback", 35, NUMBER },
    { "trainer", "unk_id", 40, NUMBER },
    { "trainer", "bos_id", 41, NUMBER },
    { "trainer", "eos_id", 42, NUMBER },
    { "trainer", "pad_id", 43, NUMBER },
    { "trainer", "unk_surface", 44, TEXT },
    { "normalizer", "precompiled_charsmap", 2, HEX },
    { "normalizer", "add_dummy_prefix", 3, NUMBER },
    { "normalizer", "remove_extra_whitespaces", 4, NUMBER },
    { "normalizer", "escape_whitespaces", 5, NUMBER },
};

static void add_varint(struct buf *out, uint64_t n)
{
    for (; n > 127; n >>= 7)
        buf_addc(out, (char)((n & 127) | 128));
    buf_addc(out, (char)n);
}

static void add_number(struct buf *out, unsigned field, int64_t n)
{
    add_varint(out, field << 3);
    add_varint(out, (uint64_t)n);
}

static void add_bytes(struct buf *out, unsigned field, const void *data, size_t len)
{
    add_varint(out, field << 3 | 2);
    add_varint(out, len);
    buf_add(out, data, len);
}

static void add_hex(struct buf *out, unsigned field, const char *text)
{
    BUF_LOCAL bytes = BUF_INIT;

    for (; text[0] && text[1]; text += 2) {
        const char digits[3] = { text[0], text[1] };

        buf_addc(&bytes, (char)strtoul(digits, NULL, 16));
    }
    add_bytes(out, field, buf_str(&bytes), bytes.len);
}

static void add_settings(struct buf *out, unsigned number, const char *message, const cJSON *settings)
{
    BUF_LOCAL body = BUF_INIT;

    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        const struct field *f = &fields[i];
        const cJSON *v = strcmp(f->message, message) ? NULL : cJSON_GetObjectItemCaseSensitive(settings, f->name);

        if (!v)
            continue;
        if (f->kind == NUMBER)
            add_number(&body, f->number, cJSON_IsBool(v) ? cJSON_IsTrue(v) : v->valueint);
        else if (f->kind == TEXT)
            add_bytes(&body, f->number, v->valuestring, strlen(v->valuestring));
        else
            add_hex(&body, f->number, v->valuestring);
    }
    add_bytes(out, number, buf_str(&body), body.len);
}

static void add_piece(struct buf *out, const cJSON *piece)
{
    const char *text = cJSON_GetStringValue(cJSON_GetArrayItem(piece, 0));
    float score = (float)cJSON_GetNumberValue(cJSON_GetArrayItem(piece, 1));
    BUF_LOCAL body = BUF_INIT;

    add_bytes(&body, 1, text ? text : "", text ? strlen(text) : 0);
    add_varint(&body, 2 << 3 | 5);
    buf_add(&body, &score, sizeof score);               /* little-endian, as the machines are that this runs on */
    add_number(&body, 3, (int64_t)cJSON_GetNumberValue(cJSON_GetArrayItem(piece, 2)));
    add_bytes(out, 1, buf_str(&body), body.len);
}

bool score_spm_file(const char *folder, const char *model, struct buf *out)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    CLEANUP(mem_free) char *text = NULL;
    char path[512];
    const cJSON *piece;
    size_t len;

    snprintf(path, sizeof path, "tokenizers/spm/%s", model);
    text = score_file(folder, path, &len);
    if (text) {
        buf_add(out, text, len);
        return true;
    }
    snprintf(path, sizeof path, "tokenizers/spm/%s.json", model);
    text = score_file(folder, path, &len);
    if (!text)
        return false;
    tree = cJSON_ParseWithLength(text, len);
    if (!tree)
        score_die("%s/%s is no JSON", folder, path);
    cJSON_ArrayForEach(piece, cJSON_GetObjectItemCaseSensitive(tree, "pieces"))
        add_piece(out, piece);
    add_settings(out, 2, "trainer", cJSON_GetObjectItemCaseSensitive(tree, "trainer"));
    add_settings(out, 3, "normalizer", cJSON_GetObjectItemCaseSensitive(tree, "normalizer"));
    if (out->failed)
        score_die("no memory");
    return true;
}
