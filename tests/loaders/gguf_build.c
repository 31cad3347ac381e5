#include "gguf_build.h"

#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

#define ADD(buf, type, v) buf_add(buf, &(type){ v }, sizeof(type))

static void add_string(struct buf *b, const void *text, size_t len)
{
    ADD(b, uint64_t, len);
    buf_add(b, text, len);
}

void gguf_build_raw(struct gguf_build *b, const void *key, size_t key_len, uint32_t type,
                    const void *value, size_t len)
{
    add_string(&b->keys, key, key_len);
    ADD(&b->keys, uint32_t, type);
    buf_add(&b->keys, value, len);
    b->n_keys++;
}

#define SCALAR(name, type, number)                                                                 \
    void gguf_build_##name(struct gguf_build *b, const char *key, type v)                          \
    {                                                                                              \
        gguf_build_raw(b, key, strlen(key), number, &v, sizeof v);                                 \
    }
SCALAR(u8, uint8_t, GGUF_U8)
SCALAR(u32, uint32_t, GGUF_U32)
SCALAR(i32, int32_t, GGUF_I32)
SCALAR(u64, uint64_t, GGUF_U64)
SCALAR(f32, float, GGUF_F32)
SCALAR(bool, bool, GGUF_BOOL)

void gguf_build_str(struct gguf_build *b, const char *key, const char *v)
{
    BUF_LOCAL value = BUF_INIT;

    add_string(&value, v, strlen(v));
    gguf_build_raw(b, key, strlen(key), GGUF_STRING, value.data, value.len);
}

static void add_array(struct gguf_build *b, const char *key, uint32_t type, size_t n,
                      const void *elements, size_t bytes)
{
    BUF_LOCAL value = BUF_INIT;

    ADD(&value, uint32_t, type);
    ADD(&value, uint64_t, n);
    buf_add(&value, elements, bytes);
    gguf_build_raw(b, key, strlen(key), GGUF_ARRAY, value.data, value.len);
}

void gguf_build_strs(struct gguf_build *b, const char *key, const char *const *v, size_t n)
{
    BUF_LOCAL all = BUF_INIT;

    for (size_t i = 0; i < n; i++)
        add_string(&all, v[i], strlen(v[i]));
    add_array(b, key, GGUF_STRING, n, all.data, all.len);
}

void gguf_build_i32s(struct gguf_build *b, const char *key, const int32_t *v, size_t n)
{
    add_array(b, key, GGUF_I32, n, v, n * sizeof *v);
}

void gguf_build_f32s(struct gguf_build *b, const char *key, const float *v, size_t n)
{
    add_array(b, key, GGUF_F32, n, v, n * sizeof *v);
}

static void pad(struct buf *b, size_t alignment)
{
    while (b->len % alignment)
        buf_addc(b, 0);
}

void gguf_build_line(struct gguf_build *b, const char *name, uint32_t type, uint32_t n_dims,
                     const uint64_t *dims, uint64_t offset)
{
    add_string(&b->table, name, strlen(name));
    ADD(&b->table, uint32_t, n_dims);
    buf_add(&b->table, dims, n_dims * sizeof *dims);
    ADD(&b->table, uint32_t, type);
    ADD(&b->table, uint64_t, offset);
    b->n_tensors++;
}

void gguf_build_tensor(struct gguf_build *b, const char *name, uint32_t type, uint32_t n_dims,
                       const uint64_t *dims, const void *data, size_t bytes)
{
    char *to;

    pad(&b->data, b->alignment ? b->alignment : 32);
    gguf_build_line(b, name, type, n_dims, dims, b->data.len);
    to = buf_room(&b->data, bytes);
    if (!to)
        abort();
    if (data)
        memcpy(to, data, bytes);
    else
        memset(to, 0, bytes);
    buf_grew(&b->data, bytes);
}

void gguf_build_finish(struct gguf_build *b, struct buf *out)
{
    buf_adds(out, "GGUF");
    ADD(out, uint32_t, b->version ? b->version : 3);
    ADD(out, uint64_t, b->n_tensors);
    ADD(out, uint64_t, b->n_keys);
    buf_add(out, b->keys.data, b->keys.len);
    buf_add(out, b->table.data, b->table.len);
    if (b->data.len)
        pad(out, b->alignment ? b->alignment : 32);
    buf_add(out, b->data.data, b->data.len);
    if (out->failed || b->keys.failed || b->table.failed || b->data.failed)
        abort();
    buf_fini(&b->keys);
    buf_fini(&b->table);
    buf_fini(&b->data);
    *b = (struct gguf_build)GGUF_BUILD_INIT;
}

/* GPT-2's spelling of byte i. */
static void spell_byte(int i, char out[8])
{
    static const int shown[][2] = { { 33, 126 }, { 161, 172 }, { 174, 255 } };
    int c = -1, skipped = 0;

    for (int b = 0; b <= i; b++) {
        bool printable = false;

        for (size_t k = 0; k < 3; k++)
            printable |= b >= shown[k][0] && b <= shown[k][1];
        c = printable ? b : 256 + skipped;
        skipped += !printable;
    }
    out[utf8_encode((uint32_t)c, out)] = 0;
}

void gguf_build_tokenizer(struct gguf_build *b, const char *pre, const char *const *merges,
                          size_t n_merges, const char *const *added, const int32_t *added_types,
                          size_t n_added)
{
    size_t n = 256 + n_merges + n_added;
    char (*spelled)[64] = calloc(256 + n_merges, sizeof *spelled);
    const char **texts = calloc(n, sizeof *texts);
    int32_t *types = calloc(n, sizeof *types);

    if (!spelled || !texts || !types)
        abort();
    for (size_t i = 0; i < n; i++) {
        types[i] = i < 256 + n_merges ? 1 : added_types[i - 256 - n_merges];
        texts[i] = i < 256 + n_merges ? spelled[i] : added[i - 256 - n_merges];
        if (i < 256) {
            spell_byte((int)i, spelled[i]);
        } else if (i < 256 + n_merges) {
            const char *gap = strchr(merges[i - 256] + 1, ' ');

            snprintf(spelled[i], sizeof *spelled, "%.*s%s", (int)(gap - merges[i - 256]),
                     merges[i - 256], gap + 1);
        }
    }
    gguf_build_str(b, "tokenizer.ggml.model", "gpt2");
    gguf_build_str(b, "tokenizer.ggml.pre", pre ? pre : "smollm");
    gguf_build_strs(b, "tokenizer.ggml.tokens", texts, n);
    gguf_build_i32s(b, "tokenizer.ggml.token_type", types, n);
    gguf_build_strs(b, "tokenizer.ggml.merges", merges, n_merges);
    free(spelled);
    free(texts);
    free(types);
}
