/* One pass over the file checks everything and notes where things are:
 *
 *     "GGUF" version n_tensors n_keys, keys, tensor table, padding, data
 *
 * The walk is a cursor that can not leave the mapping. What it keeps (a slot per
 * key, a slot and a name per tensor) comes from counts that were first held to the
 * bytes that remain, so a short file that claims a lot costs nothing. Names are found
 * by binary search in a sorted index and not by hashing: sorting also shows duplicates, and
 * no file can make it slow.
 */
#include "loaders/gguf.h"

#include "base/arena.h"
#include "base/cursor.h"
#include "base/err.h"
#include "base/reach.h"
#include "base/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum {
    KEY_MIN = 8 + 1 + 4 + 1,            /* bytes of the shortest key with its value */
    TENSOR_MIN = 8 + 1 + 4 + 8 + 4 + 8, /* bytes of the shortest line of the table */
    ALIGNMENT_DEFAULT = 32, ALIGNMENT_MIN = 8,
    SHOWN = 96,                         /* bytes of a name in an error */
    MAX_PARTS = 4096,                   /* of a split model */
};

struct key {
    const char *name;
    enum gguf_type type;
    const uint8_t *value;               /* of a string: its length; of an array: its type */
    size_t bytes;
};

struct gguf {
    char *path;
    const uint8_t *data;
    size_t len;
    bool mapped;
    uint64_t identity;                  /* of a mapped file alone */
    uint32_t version;
    struct arena *names;
    size_t n_keys, n_tensors;
    struct key *keys;
    struct gguf_tensor *tensors;
    uint64_t *tensor_at;                /* byte of each tensor's line, while opening */
    uint32_t *key_order, *tensor_order; /* by name */
    struct gguf **parts;                /* the others of a split model: their bytes and names */
    size_t n_parts;
};

static const struct ggml_type_facts type_facts[] = {
    [GGML_F32] = { "F32", 1, 4 },            [GGML_F16] = { "F16", 1, 2 },
    [GGML_Q4_0] = { "Q4_0", 32, 18 },        [GGML_Q4_1] = { "Q4_1", 32, 20 },
    [GGML_Q5_0] = { "Q5_0", 32, 22 },        [GGML_Q5_1] = { "Q5_1", 32, 24 },
    [GGML_Q8_0] = { "Q8_0", 32, 34 },        [GGML_Q8_1] = { "Q8_1", 32, 36 },
    [GGML_Q2_K] = { "Q2_K", 256, 84 },       [GGML_Q3_K] = { "Q3_K", 256, 110 },
    [GGML_Q4_K] = { "Q4_K", 256, 144 },      [GGML_Q5_K] = { "Q5_K", 256, 176 },
    [GGML_Q6_K] = { "Q6_K", 256, 210 },      [GGML_Q8_K] = { "Q8_K", 256, 292 },
    [GGML_IQ2_XXS] = { "IQ2_XXS", 256, 66 }, [GGML_IQ2_XS] = { "IQ2_XS", 256, 74 },
    [GGML_IQ3_XXS] = { "IQ3_XXS", 256, 98 }, [GGML_IQ1_S] = { "IQ1_S", 256, 50 },
    [GGML_IQ4_NL] = { "IQ4_NL", 32, 18 },    [GGML_IQ3_S] = { "IQ3_S", 256, 110 },
    [GGML_IQ2_S] = { "IQ2_S", 256, 82 },     [GGML_IQ4_XS] = { "IQ4_XS", 256, 136 },
    [GGML_I8] = { "I8", 1, 1 },              [GGML_I16] = { "I16", 1, 2 },
    [GGML_I32] = { "I32", 1, 4 },            [GGML_I64] = { "I64", 1, 8 },
    [GGML_F64] = { "F64", 1, 8 },            [GGML_IQ1_M] = { "IQ1_M", 256, 56 },
    [GGML_BF16] = { "BF16", 1, 2 },          [GGML_TQ1_0] = { "TQ1_0", 256, 54 },
    [GGML_TQ2_0] = { "TQ2_0", 256, 66 },     [GGML_MXFP4] = { "MXFP4", 32, 17 },
    [GGML_NVFP4] = { "NVFP4", 64, 36 },
};

/* of a metadata value; bytes 0: its length is in the file */
static const struct { const char *name; uint8_t bytes; } value_facts[] = {
    [GGUF_U8] = { "a u8", 1 },         [GGUF_I8] = { "an i8", 1 },
    [GGUF_U16] = { "a u16", 2 },       [GGUF_I16] = { "an i16", 2 },
    [GGUF_U32] = { "a u32", 4 },       [GGUF_I32] = { "an i32", 4 },
    [GGUF_F32] = { "an f32", 4 },      [GGUF_BOOL] = { "a boolean", 1 },
    [GGUF_STRING] = { "a string", 0 }, [GGUF_ARRAY] = { "an array", 0 },
    [GGUF_U64] = { "a u64", 8 },       [GGUF_I64] = { "an i64", 8 },
    [GGUF_F64] = { "an f64", 8 },
};

const struct ggml_type_facts *ggml_type_facts(uint32_t type)
{
    if (type >= sizeof type_facts / sizeof type_facts[0] || !type_facts[type].name)
        return NULL;
    return &type_facts[type];
}

static bool value_type_known(uint32_t type)
{
    return type < sizeof value_facts / sizeof value_facts[0];
}

const char *gguf_type_name(enum gguf_type type)
{
    return value_type_known(type) ? value_facts[type].name : "of an unknown type";
}

bool gguf_is_integer(enum gguf_type type)
{
    return type <= GGUF_I32 || type == GGUF_U64 || type == GGUF_I64;
}

bool gguf_is_float(enum gguf_type type)
{
    return type == GGUF_F32 || type == GGUF_F64;
}

/* Keys and tensors both begin with their name; `order` sorts them by it. */
static const void *find_row(const void *rows, size_t size, const uint32_t *order, size_t n,
                            const char *name)
{
    size_t low = 0, high = n;

    while (low < high) {
        size_t mid = low + (high - low) / 2;
        const void *row = (const char *)rows + order[mid] * size;
        int c = strcmp(name, *(const char *const *)row);

        if (c == 0)
            return row;
        if (c < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return NULL;
}

static const struct key *find_key(const struct gguf *g, const char *name)
{
    return find_row(g->keys, sizeof *g->keys, g->key_order, g->n_keys, name);
}

const struct gguf_tensor *gguf_tensor(const struct gguf *g, const char *name)
{
    return find_row(g->tensors, sizeof *g->tensors, g->tensor_order, g->n_tensors, name);
}

/* Opening: the walk. */

struct walk {
    struct gguf *g;
    struct cursor c;
    const char *key;        /* whose value is being read, for errors */
    struct err *err;
};

__attribute__((format(printf, 4, 5)))
static int refuse(struct walk *w, int code, uint64_t at, const char *fmt, ...)
{
    char text[ERR_TEXT];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return err_set(w->err, code, "%s: byte %llu: %s", w->g->path, (unsigned long long)at, text);
}

static int truncated(struct walk *w, const char *what)
{
    return refuse(w, -EINVAL, w->c.pos, "the file ends within %s", what);
}

/* A name that errors and logs can show: UTF-8, no control characters. */
static int read_name(struct walk *w, const char *what, const char **ret)
{
    size_t at = w->c.pos;
    uint64_t len = cursor_u64(&w->c);
    const char *text;

    if (w->c.bad)
        return truncated(w, what);
    if (len == 0 || len > GGUF_MAX_NAME)
        return refuse(w, len ? -E2BIG : -EINVAL, at, "%s has %llu bytes, must be 1 to %d", what,
                      (unsigned long long)len, GGUF_MAX_NAME);
    text = cursor_bytes(&w->c, len);
    if (!text)
        return truncated(w, what);
    if (!utf8_is_valid(text, (size_t)len))
        return refuse(w, -EINVAL, at, "%s is not valid UTF-8", what);
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7F)
            return refuse(w, -EINVAL, at, "%s has a control character", what);
    *ret = arena_strndup(w->g->names, text, (size_t)len);
    return *ret ? 0 : refuse(w, -ENOMEM, at, "no memory for %s", what);
}

static int skip_string(struct walk *w)
{
    size_t at = w->c.pos;
    uint64_t len = cursor_u64(&w->c);

    if (w->c.bad)
        return truncated(w, "metadata");
    if (!cursor_bytes(&w->c, len))
        return refuse(w, -EINVAL, at, "key \"%.*s\": a string of %llu bytes does not fit in the file",
                      SHOWN, w->key, (unsigned long long)len);
    return 0;
}

static int skip_booleans(struct walk *w, uint64_t n)
{
    size_t at = w->c.pos;
    const uint8_t *b = cursor_bytes(&w->c, n);

    for (uint64_t i = 0; b && i < n; i++)
        if (b[i] > 1)
            return refuse(w, -EINVAL, at + i, "key \"%.*s\": a boolean is %u", SHOWN, w->key, b[i]);
    return b ? 0 : truncated(w, "metadata");
}

static int skip_array(struct walk *w, int depth);

/* n values of one type */
static int skip_values(struct walk *w, uint32_t type, uint64_t n, int depth)
{
    int r = 0;

    switch (type) {
    case GGUF_STRING:
    case GGUF_ARRAY:
        for (uint64_t i = 0; i < n && r == 0; i++)
            r = type == GGUF_STRING ? skip_string(w) : skip_array(w, depth + 1);
        return r;
    case GGUF_BOOL:
        return skip_booleans(w, n);
    default:
        return cursor_bytes(&w->c, n * value_facts[type].bytes) ? 0 : truncated(w, "metadata");
    }
}

static int skip_array(struct walk *w, int depth)
{
    size_t at = w->c.pos;
    uint32_t type = cursor_u32(&w->c);
    uint64_t n = cursor_u64(&w->c);
    size_t least;

    if (w->c.bad)
        return truncated(w, "metadata");
    if (depth > GGUF_MAX_DEPTH)
        return refuse(w, -E2BIG, at, "key \"%.*s\": arrays are nested deeper than %d", SHOWN, w->key,
                      GGUF_MAX_DEPTH);
    if (!value_type_known(type))
        return refuse(w, -EINVAL, at, "key \"%.*s\": an array of the unknown type %u", SHOWN, w->key,
                      type);
    least = type == GGUF_STRING ? 8 : type == GGUF_ARRAY ? 12 : value_facts[type].bytes;
    if (!cursor_fits(&w->c, n, least))
        return refuse(w, -EINVAL, at, "key \"%.*s\": an array of %llu elements does not fit in the file",
                      SHOWN, w->key, (unsigned long long)n);
    return skip_values(w, type, n, depth);
}

static int read_key(struct walk *w, struct key *k)
{
    size_t at;
    uint32_t type;
    int r = read_name(w, "a key", &k->name);

    if (r < 0)
        return r;
    at = w->c.pos;
    type = cursor_u32(&w->c);
    if (w->c.bad)
        return truncated(w, "metadata");
    if (!value_type_known(type))
        return refuse(w, -EINVAL, at, "key \"%.*s\": a value of the unknown type %u", SHOWN, k->name,
                      type);
    k->type = type;
    k->value = w->c.data + w->c.pos;
    w->key = k->name;
    at = w->c.pos;
    r = type == GGUF_ARRAY ? skip_array(w, 1) : skip_values(w, type, 1, 0);
    k->bytes = w->c.pos - at;
    return r;
}

static int read_tensor(struct walk *w, struct gguf_tensor *t)
{
    const struct ggml_type_facts *f;
    uint64_t elements = 1, rows;
    size_t at = w->c.pos;
    int r = read_name(w, "a tensor's name", &t->name);

    if (r < 0)
        return r;
    t->n_dims = cursor_u32(&w->c);
    if (!w->c.bad && (t->n_dims < 1 || t->n_dims > GGUF_MAX_DIMS))
        return refuse(w, -EINVAL, at, "tensor \"%.*s\": %u dimensions, must be 1 to %d", SHOWN, t->name,
                      t->n_dims, GGUF_MAX_DIMS);
    for (uint32_t i = 0; i < GGUF_MAX_DIMS; i++)
        t->dims[i] = i < t->n_dims && !w->c.bad ? cursor_u64(&w->c) : 1;
    t->type = cursor_u32(&w->c);
    t->offset = cursor_u64(&w->c);
    if (w->c.bad)
        return truncated(w, "the tensor table");

    f = ggml_type_facts(t->type);
    if (!f)
        return refuse(w, -ENOTSUP, at, "tensor \"%.*s\": type number %u is not known", SHOWN, t->name,
                      t->type);
    for (uint32_t i = 0; i < t->n_dims; i++) {
        if (t->dims[i] == 0)
            return refuse(w, -EINVAL, at, "tensor \"%.*s\": dimension %u is zero", SHOWN, t->name, i);
        if (__builtin_mul_overflow(elements, t->dims[i], &elements) || elements > INT64_MAX)
            return refuse(w, -EINVAL, at, "tensor \"%.*s\": its number of elements overflows", SHOWN,
                          t->name);
    }
    if (t->dims[0] % f->block)
        return refuse(w, -EINVAL, at,
                      "tensor \"%.*s\": rows of %llu elements are not whole %s blocks of %u", SHOWN,
                      t->name, (unsigned long long)t->dims[0], f->name, f->block);
    rows = elements / t->dims[0];
    if (__builtin_mul_overflow(t->dims[0] / f->block * rows, (uint64_t)f->block_bytes, &t->bytes))
        return refuse(w, -EINVAL, at, "tensor \"%.*s\": its size overflows", SHOWN, t->name);
    return 0;
}

/* Sorting an index needs to see what it points into. */
static int by_key_name(const void *a, const void *b, void *g)
{
    const struct key *keys = ((struct gguf *)g)->keys;

    return strcmp(keys[*(const uint32_t *)a].name, keys[*(const uint32_t *)b].name);
}

static int by_tensor_name(const void *a, const void *b, void *g)
{
    const struct gguf_tensor *t = ((struct gguf *)g)->tensors;

    return strcmp(t[*(const uint32_t *)a].name, t[*(const uint32_t *)b].name);
}

static int by_tensor_offset(const void *a, const void *b, void *g)
{
    const struct gguf_tensor *t = ((struct gguf *)g)->tensors;
    uint64_t x = t[*(const uint32_t *)a].offset, y = t[*(const uint32_t *)b].offset;

    return x < y ? -1 : x > y;
}

static int no_memory(struct walk *w, uint64_t n, const char *what)
{
    return err_set(w->err, -ENOMEM, "%s: no memory for %llu %s", w->g->path, (unsigned long long)n,
                   what);
}

static int sorted(struct walk *w, size_t n, int (*order)(const void *, const void *, void *),
                  uint32_t **ret)
{
    uint32_t *index = calloc(n ? n : 1, sizeof *index);

    if (!index)
        return no_memory(w, n, "names");
    for (size_t i = 0; i < n; i++)
        index[i] = (uint32_t)i;
    qsort_r(index, n, sizeof *index, order, w->g);
    *ret = index;
    return 0;
}

static int read_keys(struct walk *w)
{
    struct gguf *g = w->g;
    int r;

    g->keys = calloc(g->n_keys ? g->n_keys : 1, sizeof *g->keys);
    if (!g->keys)
        return no_memory(w, g->n_keys, "keys");
    for (size_t i = 0; i < g->n_keys; i++) {
        r = read_key(w, &g->keys[i]);
        if (r < 0)
            return r;
    }
    r = sorted(w, g->n_keys, by_key_name, &g->key_order);
    for (size_t i = 1; i < g->n_keys && r == 0; i++) {
        const struct key *k = &g->keys[g->key_order[i]];

        if (strcmp(g->keys[g->key_order[i - 1]].name, k->name) == 0)
            r = refuse(w, -EINVAL, (uint64_t)(k->value - g->data), "key \"%.*s\" is there twice",
                       SHOWN, k->name);
    }
    return r;
}

static int read_alignment(struct walk *w, uint64_t *ret)
{
    uint32_t v = ALIGNMENT_DEFAULT;
    int r = gguf_u32(w->g, "general.alignment", &v, w->err);

    if (r < 0)
        return r;
    if (v < ALIGNMENT_MIN || v > GGUF_MAX_ALIGNMENT || (v & (v - 1)))
        return refuse(w, -EINVAL, (uint64_t)(find_key(w->g, "general.alignment")->value - w->g->data),
                      "general.alignment is %u, must be a power of two between %d and %d", v,
                      ALIGNMENT_MIN, GGUF_MAX_ALIGNMENT);
    *ret = v;
    return 0;
}

static int check_place(struct walk *w, struct gguf_tensor *t, uint64_t at, uint64_t base,
                       uint64_t alignment)
{
    uint64_t end;

    if (t->offset % alignment)
        return refuse(w, -EINVAL, at, "tensor \"%.*s\": offset %llu is not aligned to %llu", SHOWN,
                      t->name, (unsigned long long)t->offset, (unsigned long long)alignment);
    if (__builtin_add_overflow(t->offset, base, &t->offset) ||
        __builtin_add_overflow(t->offset, t->bytes, &end))
        return refuse(w, -EINVAL, at, "tensor \"%.*s\": its end overflows", SHOWN, t->name);
    if (end > w->g->len)
        return refuse(w, -EINVAL, at,
                      "tensor \"%.*s\": data ends at byte %llu, past the end of the file at %zu", SHOWN,
                      t->name, (unsigned long long)end, w->g->len);
    t->data = w->g->data + t->offset;
    return 0;
}

static int check_overlaps(struct walk *w)
{
    struct gguf *g = w->g;
    CLEANUP(mem_free) uint32_t *order = NULL;
    int r = sorted(w, g->n_tensors, by_tensor_offset, &order);

    for (size_t i = 1; i < g->n_tensors && r == 0; i++) {
        const struct gguf_tensor *a = &g->tensors[order[i - 1]], *b = &g->tensors[order[i]];

        if (a->offset + a->bytes > b->offset)
            r = refuse(w, -EINVAL, g->tensor_at[order[i]],
                       "tensor \"%.*s\": data overlaps that of tensor \"%.*s\"", SHOWN, b->name, SHOWN,
                       a->name);
    }
    return r;
}

static int read_tensors(struct walk *w)
{
    struct gguf *g = w->g;
    uint64_t alignment = 0, base;
    int r;

    if (!cursor_fits(&w->c, g->n_tensors, TENSOR_MIN))
        return refuse(w, -EINVAL, w->c.pos, "%zu tensors do not fit in the file", g->n_tensors);
    g->tensors = calloc(g->n_tensors ? g->n_tensors : 1, sizeof *g->tensors);
    g->tensor_at = calloc(g->n_tensors ? g->n_tensors : 1, sizeof *g->tensor_at);
    if (!g->tensors || !g->tensor_at)
        return no_memory(w, g->n_tensors, "tensors");
    for (size_t i = 0; i < g->n_tensors; i++) {
        g->tensor_at[i] = w->c.pos;
        r = read_tensor(w, &g->tensors[i]);
        if (r < 0)
            return r;
    }
    r = sorted(w, g->n_tensors, by_tensor_name, &g->tensor_order);
    for (size_t i = 1; i < g->n_tensors && r == 0; i++) {
        uint32_t a = g->tensor_order[i - 1], b = g->tensor_order[i];

        if (strcmp(g->tensors[a].name, g->tensors[b].name) == 0)
            r = refuse(w, -EINVAL, g->tensor_at[b], "tensor \"%.*s\" is there twice", SHOWN,
                       g->tensors[b].name);
    }
    if (r == 0)
        r = read_alignment(w, &alignment);
    if (r < 0)
        return r;
    base = (w->c.pos + alignment - 1) & ~(alignment - 1);
    for (size_t i = 0; i < g->n_tensors; i++) {
        r = check_place(w, &g->tensors[i], g->tensor_at[i], base, alignment);
        if (r < 0)
            return r;
    }
    return check_overlaps(w);
}

static int read_header(struct walk *w)
{
    struct gguf *g = w->g;
    const void *magic = cursor_bytes(&w->c, 4);
    uint64_t n_tensors, n_keys;

    if (!magic || memcmp(magic, "GGUF", 4) != 0)
        return refuse(w, -EINVAL, 0, "not a GGUF file: it does not begin with \"GGUF\"");
    g->version = cursor_u32(&w->c);
    if (w->c.bad)
        return truncated(w, "the header");
    if (g->version && !(g->version & 0xFFFF))
        return refuse(w, -ENOTSUP, 4, "a big-endian file is not supported");
    if (g->version < 2 || g->version > 3)
        return refuse(w, -ENOTSUP, 4, "GGUF version %u is not supported, only 2 and 3", g->version);
    n_tensors = cursor_u64(&w->c);
    n_keys = cursor_u64(&w->c);
    if (w->c.bad)
        return truncated(w, "the header");
    if (n_tensors > GGUF_MAX_TENSORS)
        return refuse(w, -E2BIG, 8, "%llu tensors, at most %d are allowed",
                      (unsigned long long)n_tensors, GGUF_MAX_TENSORS);
    if (n_keys > GGUF_MAX_KEYS)
        return refuse(w, -E2BIG, 16, "%llu keys, at most %d are allowed",
                      (unsigned long long)n_keys, GGUF_MAX_KEYS);
    if (!cursor_fits(&w->c, n_keys, KEY_MIN))
        return refuse(w, -EINVAL, 16, "%llu keys do not fit in the file", (unsigned long long)n_keys);
    if (!cursor_fits(&w->c, n_tensors, TENSOR_MIN))
        return refuse(w, -EINVAL, 8, "%llu tensors do not fit in the file",
                      (unsigned long long)n_tensors);
    g->n_keys = (size_t)n_keys;
    g->n_tensors = (size_t)n_tensors;
    return 0;
}

static int walk_file(struct gguf *g, struct err *err)
{
    struct walk w = { .g = g, .c = cursor_over(g->data, g->len), .err = err };
    int r;

    if ((r = read_header(&w)) < 0 || (r = read_keys(&w)) < 0 || (r = read_tensors(&w)) < 0)
        return r;
    free(g->tensor_at);
    g->tensor_at = NULL;
    return 0;
}

static struct gguf *new_file(const char *path)
{
    CLEANUP(gguf_close) struct gguf *g = calloc(1, sizeof *g);

    if (!g)
        return NULL;
    g->path = strdup(path);
    g->names = arena_new(0);
    return g->path && g->names ? STEAL(g) : NULL;
}

/* Which part of how many the file is: 0 of 1 when it does not say. */
static int read_split(const struct gguf *g, uint32_t *ret_number, uint32_t *ret_count, struct err *err)
{
    int r;

    *ret_number = 0;
    *ret_count = 1;
    if ((r = gguf_u32(g, "split.count", ret_count, err)) < 0 || (r = gguf_u32(g, "split.no", ret_number, err)) < 0)
        return r;
    if (*ret_count > MAX_PARTS)
        return err_set(err, -E2BIG, "%s: %u parts of a split model, at most %d are allowed", g->path, *ret_count, MAX_PARTS);
    return 0;
}

int gguf_open_memory(const char *name, const void *data, size_t len, struct gguf **ret,
                     struct err *err)
{
    CLEANUP(gguf_close) struct gguf *g = new_file(name);
    uint32_t number, count;
    int r;

    if (!g)
        return err_set(err, -ENOMEM, "%s: no memory", name);
    g->data = data;
    g->len = len;
    if ((r = walk_file(g, err)) < 0 || (r = read_split(g, &number, &count, err)) < 0)
        return r;
    if (count > 1)
        return err_set(err, -ENOTSUP, "%s: one of the %u parts of a split model, which can only be opened as files", name,
                       count);
    *ret = STEAL(g);
    return 0;
}

/* FNV-1a */
static uint64_t hash(uint64_t h, const void *data, size_t len)
{
    for (size_t i = 0; i < len; i++)
        h = (h ^ ((const uint8_t *)data)[i]) * UINT64_C(0x100000001b3);
    return h;
}

static uint64_t identity(const char *path, const struct stat *st)
{
    const uint64_t facts[] = { (uint64_t)st->st_dev, (uint64_t)st->st_ino, (uint64_t)st->st_size,
                               (uint64_t)st->st_mtim.tv_sec, (uint64_t)st->st_mtim.tv_nsec };

    return hash(hash(UINT64_C(0xcbf29ce484222325), path, strlen(path)), facts, sizeof facts);
}

static int map_file(struct gguf *g, struct err *err)
{
    /* O_NONBLOCK: a named pipe must not hold us up before fstat() tells what it is. */
    CLEANUP(fd_close) int fd = open(g->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    void *at;

    if (fd < 0 && errno == EACCES) {
        reach_denied(g->path, err);
        err_place(err, "%s: can not open it", g->path);
        return -EACCES;
    }
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_errno(err, -errno, "%s: can not open it", g->path);
    if (S_ISDIR(st.st_mode))
        return err_set(err, -EISDIR, "%s: is a directory, not a GGUF file", g->path);
    if (!S_ISREG(st.st_mode))
        return err_set(err, -EINVAL, "%s: is not a regular file", g->path);
    if (st.st_size == 0)
        return err_set(err, -EINVAL, "%s: byte 0: the file is empty", g->path);
    at = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (at == MAP_FAILED)
        return err_errno(err, -errno, "%s: can not map %lld bytes", g->path, (long long)st.st_size);
    g->data = at;
    g->len = (size_t)st.st_size;
    g->mapped = true;
    g->identity = identity(g->path, &st);
    return 0;
}

/* ---- split models ----------------------------------------------------- */

/* Part i of n goes by NAME-00002-of-00003.gguf, counted from one. */
static int open_part(struct gguf *g, size_t stem, uint32_t i, uint32_t n, struct err *err)
{
    CLEANUP(mem_free) char *path = NULL;
    CLEANUP(gguf_close) struct gguf *part = NULL;
    uint32_t number, count;
    int r;

    if (asprintf(&path, "%.*s-%05u-of-%05u.gguf", (int)stem, g->path, i + 1, n) < 0) {
        path = NULL;
        return err_set(err, -ENOMEM, "%s: no memory", g->path);
    }
    part = new_file(path);
    if (!part)
        return err_set(err, -ENOMEM, "%s: no memory", path);
    if ((r = map_file(part, err)) < 0) {
        err_place(err, "%s: part %u of %u", g->path, i + 1, n);
        return r;
    }
    if ((r = walk_file(part, err)) < 0 || (r = read_split(part, &number, &count, err)) < 0)
        return r;
    if (number != i || count != n)
        return err_set(err, -EINVAL, "%s: says it is part %llu of %u, its name says %u of %u", path,
                       (unsigned long long)number + 1, count, i + 1, n);
    g->parts[g->n_parts++] = STEAL(part);
    return 0;
}

/* All tensors in one table, in the order of the parts. */
static int join_tensors(struct gguf *g, struct err *err)
{
    struct walk w = { .g = g, .err = err };
    struct gguf_tensor *all;
    size_t n = g->n_tensors;
    uint64_t want;
    int r;

    for (size_t i = 0; i < g->n_parts; i++)
        n += g->parts[i]->n_tensors;
    want = n;
    if ((r = gguf_u64(g, "split.tensors.count", &want, err)) < 0)
        return r;
    if (n != want || n > GGUF_MAX_TENSORS)
        return err_set(err, -EINVAL, "%s: its %zu parts hold %zu tensors, split.tensors.count is %llu", g->path,
                       g->n_parts + 1, n, (unsigned long long)want);
    all = realloc(g->tensors, (n ? n : 1) * sizeof *all);
    if (!all)
        return no_memory(&w, n, "tensors");
    g->tensors = all;
    for (size_t i = 0; i < g->n_parts; i++) {
        memcpy(g->tensors + g->n_tensors, g->parts[i]->tensors, g->parts[i]->n_tensors * sizeof *all);
        g->n_tensors += g->parts[i]->n_tensors;
    }
    free(g->tensor_order);
    g->tensor_order = NULL;
    r = sorted(&w, n, by_tensor_name, &g->tensor_order);
    for (size_t i = 1; i < n && r == 0; i++)
        if (strcmp(all[g->tensor_order[i - 1]].name, all[g->tensor_order[i]].name) == 0)
            r = err_set(err, -EINVAL, "%s: tensor \"%.*s\" is in two parts", g->path, SHOWN,
                        all[g->tensor_order[i]].name);
    return r;
}

static int open_parts(struct gguf *g, struct err *err)
{
    uint32_t number, count;
    char end[32];
    size_t stem, len = strlen(g->path);
    int r = read_split(g, &number, &count, err);

    if (r < 0 || count <= 1)
        return r;
    snprintf(end, sizeof end, "-00001-of-%05u.gguf", count);
    if (number != 0)
        return err_set(err, -EINVAL, "%s: part %llu of %u of a split model: open the first, whose name ends in %s",
                       g->path, (unsigned long long)number + 1, count, end);
    stem = len > strlen(end) ? len - strlen(end) : 0;
    if (stem == 0 || strcmp(g->path + stem, end) != 0)
        return err_set(err, -EINVAL, "%s: the first of %u parts of a split model: the others can only be found when its name ends in %s",
                       g->path, count, end);
    g->parts = calloc(count - 1, sizeof *g->parts);
    if (!g->parts)
        return err_set(err, -ENOMEM, "%s: no memory", g->path);
    for (uint32_t i = 1; i < count; i++)
        if ((r = open_part(g, stem, i, count, err)) < 0)
            return r;
    return join_tensors(g, err);
}

int gguf_open(const char *path, struct gguf **ret, struct err *err)
{
    CLEANUP(gguf_close) struct gguf *g = new_file(path);
    int r;

    if (!g)
        return err_set(err, -ENOMEM, "%s: no memory", path);
    if ((r = map_file(g, err)) < 0 || (r = walk_file(g, err)) < 0 || (r = open_parts(g, err)) < 0)
        return r;
    *ret = STEAL(g);
    return 0;
}

void gguf_close(struct gguf *g)
{
    if (!g)
        return;
    for (size_t i = 0; i < g->n_parts; i++)
        gguf_close(g->parts[i]);
    free(g->parts);
    if (g->mapped)
        munmap((void *)(uintptr_t)g->data, g->len);
    arena_free(g->names);
    free(g->keys);
    free(g->tensors);
    free(g->tensor_at);
    free(g->key_order);
    free(g->tensor_order);
    free(g->path);
    free(g);
}

const char *gguf_path(const struct gguf *g)
{
    return g->path;
}

uint32_t gguf_version(const struct gguf *g)
{
    return g->version;
}

uint64_t gguf_bytes(const struct gguf *g)
{
    uint64_t sum = g->len;

    for (size_t i = 0; i < g->n_parts; i++)
        sum += g->parts[i]->len;
    return sum;
}

/* Metadata. */

static int wrong_type(const struct gguf *g, const struct key *k, const char *wanted, struct err *err)
{
    return err_set(err, -EINVAL, "%s: key \"%.*s\" must be %s, but is %s", g->path, SHOWN, k->name,
                   wanted, gguf_type_name(k->type));
}

/* An integer as its bits, and whether they are a negative number. */
static uint64_t integer_at(enum gguf_type type, const uint8_t *at, bool *ret_negative)
{
    struct cursor c = cursor_over(at, value_facts[type].bytes);
    int64_t v;

    *ret_negative = false;
    switch (type) {
    case GGUF_U8:
    case GGUF_BOOL: return cursor_u8(&c);
    case GGUF_U16: return cursor_u16(&c);
    case GGUF_U32: return cursor_u32(&c);
    case GGUF_U64: return cursor_u64(&c);
    case GGUF_I8: v = (int8_t)cursor_u8(&c); break;
    case GGUF_I16: v = (int16_t)cursor_u16(&c); break;
    case GGUF_I32: v = cursor_i32(&c); break;
    default: v = (int64_t)cursor_u64(&c); break;
    }
    *ret_negative = v < 0;
    return (uint64_t)v;
}

static double float_at(enum gguf_type type, const uint8_t *at)
{
    struct cursor c = cursor_over(at, value_facts[type].bytes);

    return type == GGUF_F32 ? (double)cursor_f32(&c) : cursor_f64(&c);
}

static int get_unsigned(const struct gguf *g, const char *key, uint64_t max, uint64_t *ret,
                        struct err *err)
{
    const struct key *k = find_key(g, key);
    bool negative;
    uint64_t v;

    if (!k)
        return GGUF_ABSENT;
    if (!gguf_is_integer(k->type))
        return wrong_type(g, k, "an integer", err);
    v = integer_at(k->type, k->value, &negative);
    if (negative || v > max)
        return err_set(err, -EINVAL, "%s: key \"%s\" is %s%llu, must be between 0 and %llu", g->path,
                       key, negative ? "-" : "", (unsigned long long)(negative ? -v : v),
                       (unsigned long long)max);
    *ret = v;
    return 0;
}

int gguf_u32(const struct gguf *g, const char *key, uint32_t *ret, struct err *err)
{
    uint64_t v;
    int r = get_unsigned(g, key, UINT32_MAX, &v, err);

    if (r == 0)
        *ret = (uint32_t)v;
    return r;
}

int gguf_u64(const struct gguf *g, const char *key, uint64_t *ret, struct err *err)
{
    return get_unsigned(g, key, UINT64_MAX, ret, err);
}

int gguf_f32(const struct gguf *g, const char *key, float *ret, struct err *err)
{
    const struct key *k = find_key(g, key);
    double v;

    if (!k)
        return GGUF_ABSENT;
    if (!gguf_is_float(k->type))
        return wrong_type(g, k, "a float", err);
    v = float_at(k->type, k->value);
    if (!isfinite(v) || fabs(v) > FLT_MAX)
        return err_set(err, -EINVAL, "%s: key \"%s\" is %g, which is no number to use", g->path, key, v);
    *ret = (float)v;
    return 0;
}

int gguf_bool(const struct gguf *g, const char *key, bool *ret, struct err *err)
{
    const struct key *k = find_key(g, key);

    if (!k)
        return GGUF_ABSENT;
    if (k->type != GGUF_BOOL)
        return wrong_type(g, k, "a boolean", err);
    *ret = k->value[0] != 0;
    return 0;
}

static struct gguf_str string_from(struct cursor *c)
{
    uint64_t len = cursor_u64(c);

    return (struct gguf_str){ .text = cursor_bytes(c, len), .len = (size_t)len };
}

int gguf_str(const struct gguf *g, const char *key, struct gguf_str *ret, struct err *err)
{
    const struct key *k = find_key(g, key);
    struct cursor c;

    if (!k)
        return GGUF_ABSENT;
    if (k->type != GGUF_STRING)
        return wrong_type(g, k, "a string", err);
    c = cursor_over(k->value, k->bytes);
    *ret = string_from(&c);
    return 0;
}

int gguf_text(const struct gguf *g, const char *key, char *ret, size_t size, struct err *err)
{
    struct gguf_str s;
    int r = gguf_str(g, key, &s, err);

    if (r != 0)
        return r;
    if (memchr(s.text, 0, s.len))
        return err_set(err, -EINVAL, "%s: key \"%s\" holds a NUL", g->path, key);
    if (s.len >= size)
        return err_set(err, -EINVAL, "%s: key \"%s\" has %zu bytes, at most %zu are allowed", g->path,
                       key, s.len, size - 1);
    memcpy(ret, s.text, s.len);
    ret[s.len] = 0;
    return 0;
}

int gguf_array(const struct gguf *g, const char *key, struct gguf_array *ret, struct err *err)
{
    const struct key *k = find_key(g, key);
    struct cursor c;

    if (!k)
        return GGUF_ABSENT;
    if (k->type != GGUF_ARRAY)
        return wrong_type(g, k, "an array", err);
    c = cursor_over(k->value, k->bytes);
    ret->type = cursor_u32(&c);
    ret->n = cursor_u64(&c);
    ret->data = k->value + c.pos;
    ret->bytes = k->bytes - c.pos;
    return 0;
}

const char *gguf_key(const struct gguf *g, size_t i, enum gguf_type *ret_type)
{
    if (i >= g->n_keys)
        return NULL;
    *ret_type = g->keys[i].type;
    return g->keys[i].name;
}

bool gguf_next_str(struct gguf_array *a, struct gguf_str *ret)
{
    struct cursor c = cursor_over(a->data, a->bytes);

    if (a->n == 0 || a->type != GGUF_STRING)
        return false;
    *ret = string_from(&c);
    a->n--;
    a->data += c.pos;
    a->bytes -= c.pos;
    return true;
}

int64_t gguf_array_i64(const struct gguf_array *a, uint64_t i)
{
    bool negative;
    uint64_t v = integer_at(a->type, a->data + i * value_facts[a->type].bytes, &negative);

    return !negative && v > INT64_MAX ? INT64_MAX : (int64_t)v;
}

double gguf_array_f64(const struct gguf_array *a, uint64_t i)
{
    if (gguf_is_float(a->type))
        return float_at(a->type, a->data + i * value_facts[a->type].bytes);
    return (double)gguf_array_i64(a, i);
}

uint64_t gguf_identity(const struct gguf *g)
{
    uint64_t h = g->identity;

    for (size_t i = 0; i < g->n_parts; i++)
        h = hash(h, &g->parts[i]->identity, sizeof h);
    return h;
}

/* Tensors. */

size_t gguf_n_tensors(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i)
{
    return i < g->n_tensors ? &g->tensors[i] : NULL;
}

void gguf_release(const struct gguf *g, const struct gguf_tensor *t)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)t->data;
    const uintptr_t first = (from + page - 1) / page * page, end = (from + t->bytes) / page * page;

    if (g->mapped && first < end)
        madvise((void *)first, end - first, MADV_DONTNEED);
}
