/* What is kept of the file: the bytes of every token, the merges as a hash table from a
 * pair of ids to its rank and result, and two sorted lists of the tokens that are matched whole.
 *
 * A piece is merged with a linked list over its symbols and a heap of candidate pairs, so that
 * its cost grows as n log n: one line of megabytes without a space is an ordinary text, not
 * an attack. A heap entry is (rank, position) in one number; it is stale when the pair that
 * now starts at its position has another rank, for a rank belongs to exactly one pair.
 *
 * Merging makes normal tokens only: a merge whose result is of another type is left out, and so is
 * a byte, so no text can be merged into one, whatever the file says.
 */
#include "loaders/tokenizer.h"

#include "base/err.h"
#include "base/id.h"
#include "base/utf8.h"
#include "loaders/gguf.h"
#include "loaders/pretok.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MAX_MERGES = 1 << 23, NAME = 64, INLINE_SYMBOLS = 128 };

enum kind { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };     /* numbers of the file */

struct merge { uint64_t pair; uint32_t rank; int32_t result; };
#define NO_PAIR UINT64_MAX

/* Tokens that are matched whole, sorted by their bytes. */
struct added {
    int32_t *ids;
    size_t n;
    bool first[256];                    /* bytes that one of them starts with */
};

/* Open addressing over ids of strings; -1 is free. */
struct names {
    int32_t *slots;
    uint32_t mask;
};

struct tokenizer {
    const struct pretok *pre;
    uint32_t n;
    char *bytes;                        /* of all tokens */
    struct gguf_str *tokens;            /* views into bytes */
    uint8_t *kinds;
    uint64_t seed;                      /* of the hashes: no file can choose its collisions */
    struct merge *merges;
    uint32_t merges_mask;
    struct names normal;                /* by bytes; only with ignore_merges */
    int32_t byte_id[256];               /* -1: the vocabulary lacks it */
    struct added user, all;             /* user-defined; these, control and unknown */
    int32_t bos, eos;
    bool add_bos, add_eos;
    int32_t *ends;
    size_t n_ends, longest;
};

void token_list_fini(struct token_list *l)
{
    free(l->ids);
    *l = (struct token_list){ 0 };
}

int token_list_add(struct token_list *l, int32_t id)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 64;
        int32_t *ids = reallocarray(l->ids, cap, sizeof *ids);

        if (!ids)
            return -ENOMEM;
        l->ids = ids;
        l->cap = cap;
    }
    l->ids[l->n++] = id;
    return 0;
}

/* Hashing. */

static uint64_t mix(uint64_t h)
{
    h ^= h >> 33;
    h *= 0xFF51AFD7ED558CCDu;           /* MurmurHash3's finaliser */
    h ^= h >> 33;
    h *= 0xC4CEB9FE1A85EC53u;
    return h ^ h >> 33;
}

static uint64_t hash_bytes(uint64_t h, const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)text[i]) * 0x100000001B3u;      /* FNV-1a, so that parts can be joined */
    return h;
}

/* A power of two that keeps a table at most half full. */
static uint32_t table_size(size_t n)
{
    uint32_t size = 16;

    while (size / 2 < n)
        size *= 2;
    return size;
}

static int names_init(struct names *m, size_t n)
{
    uint32_t size = table_size(n);

    m->slots = malloc(size * sizeof *m->slots);
    if (!m->slots)
        return -ENOMEM;
    memset(m->slots, 0xFF, size * sizeof *m->slots);
    m->mask = size - 1;
    return 0;
}

/* The slot of the string a + b: its id, or -1 where it would go. */
static int32_t *names_slot(const struct names *m, const struct gguf_str *strings, uint64_t seed,
                           struct gguf_str a, struct gguf_str b)
{
    uint64_t h = mix(hash_bytes(hash_bytes(seed, a.text, a.len), b.text, b.len));
    uint32_t i = (uint32_t)h & m->mask;

    for (; m->slots[i] >= 0; i = (i + 1) & m->mask) {
        const struct gguf_str *s = &strings[m->slots[i]];

        if (s->len == a.len + b.len && memcmp(s->text, a.text, a.len) == 0 &&
            memcmp(s->text + a.len, b.text, b.len) == 0)
            break;
    }
    return &m->slots[i];
}

static const struct gguf_str no_string = { "", 0 };

static struct merge *merge_slot(const struct tokenizer *t, uint64_t pair)
{
    uint32_t i = (uint32_t)mix(pair ^ t->seed) & t->merges_mask;

    while (t->merges[i].pair != pair && t->merges[i].pair != NO_PAIR)
        i = (i + 1) & t->merges_mask;
    return &t->merges[i];
}

static uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* Opening. */

struct load {
    struct tokenizer *t;
    const struct gguf *file;
    struct gguf_str *texts;             /* as the file spells them */
    struct names by_text;
    bool *made;                         /* is the result of a merge */
    struct err *err;
};

__attribute__((format(printf, 3, 4)))
static int refuse(struct load *l, int code, const char *fmt, ...)
{
    char text[ERR_TEXT];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return err_set(l->err, code, "%s: %s", gguf_path(l->file), text);
}

static int no_memory(struct load *l)
{
    return refuse(l, -ENOMEM, "no memory for its tokenizer");
}

/* A key that must be there. */
static int need(struct load *l, int r, const char *key)
{
    return r == GGUF_ABSENT ? refuse(l, -EINVAL, "key \"%s\" is missing", key) : r;
}

static int read_names(struct load *l)
{
    char model[NAME], pre[NAME] = "default";
    int r = need(l, gguf_text(l->file, "tokenizer.ggml.model", model, sizeof model, l->err),
                 "tokenizer.ggml.model");

    if (r < 0)
        return r;
    if (strcmp(model, "gpt2") != 0)
        return refuse(l, -ENOTSUP, "tokenizer.ggml.model \"%s\" is not supported, only \"gpt2\"", model);
    r = gguf_text(l->file, "tokenizer.ggml.pre", pre, sizeof pre, l->err);
    if (r < 0)
        return r;
    l->t->pre = pretok_find(pre);
    if (!l->t->pre)
        return refuse(l, -ENOTSUP, "tokenizer.ggml.pre \"%s\" is not supported", pre);
    return 0;
}

static int read_texts(struct load *l)
{
    struct tokenizer *t = l->t;
    struct gguf_array a;
    int r = need(l, gguf_array(l->file, "tokenizer.ggml.tokens", &a, l->err), "tokenizer.ggml.tokens");

    if (r < 0)
        return r;
    if (a.type != GGUF_STRING || a.n == 0)
        return refuse(l, -EINVAL, "tokenizer.ggml.tokens must hold strings");
    if (a.n > TOKENIZER_MAX_VOCAB)
        return refuse(l, -E2BIG, "a vocabulary of %llu tokens, at most %d are allowed",
                      (unsigned long long)a.n, TOKENIZER_MAX_VOCAB);
    t->n = (uint32_t)a.n;
    l->texts = calloc(t->n, sizeof *l->texts);
    if (!l->texts || names_init(&l->by_text, t->n) < 0)
        return no_memory(l);
    for (uint32_t i = 0; i < t->n && gguf_next_str(&a, &l->texts[i]); i++) {
        int32_t *slot = names_slot(&l->by_text, l->texts, t->seed, l->texts[i], no_string);

        if (l->texts[i].len == 0)
            continue;
        if (*slot >= 0)
            return refuse(l, -EINVAL, "tokens %d and %u have the same text", *slot, i);
        *slot = (int32_t)i;
    }
    return 0;
}

static int read_kinds(struct load *l)
{
    struct tokenizer *t = l->t;
    struct gguf_array a;
    int r = gguf_array(l->file, "tokenizer.ggml.token_type", &a, l->err);

    if (r < 0)
        return r;
    t->kinds = malloc(t->n);
    if (!t->kinds)
        return no_memory(l);
    memset(t->kinds, NORMAL, t->n);
    if (r == GGUF_ABSENT)
        return 0;
    if (!gguf_is_integer(a.type) || a.n != t->n)
        return refuse(l, -EINVAL, "tokenizer.ggml.token_type must hold %u integers, one a token", t->n);
    for (uint32_t i = 0; i < t->n; i++) {
        int64_t kind = gguf_array_i64(&a, i);

        if (kind < NORMAL || kind > BYTE)
            return refuse(l, -EINVAL, "token %u has the unknown type %lld", i, (long long)kind);
        t->kinds[i] = (uint8_t)kind;
    }
    return 0;
}

static int32_t find_text(const struct load *l, const char *text)
{
    const struct gguf_str s = { text, strlen(text) };

    return *names_slot(&l->by_text, l->texts, l->t->seed, s, no_string);
}

/* What ends an answer, by spelling: converters leave most of it out of the metadata, so
 * llama.cpp goes by the token's text, and a model that stops there must stop here. Some
 * are of fill-in-the-middle: behind them begins another file. A normal token that merges make is
 * text, not a mark (Qwen's vocabulary has such a "</s>"). */
static const char *const end_texts[] = {
    "</s>", "<EOT>", "<PAD>", "<REPO>", "<end_of_turn>", "<end_of_utterance>", "<eos>", "<fim-pad>",
    "<fim-repo>", "<fim_pad>", "<reponame>", "<turn|>", "<|call|>", "<|calls|>", "<|end_of_text|>",
    "<|endoftext|>", "<|end|>", "<|eom_id|>", "<|eot_id|>", "<|file_sep|>", "<|fim_pad|>",
    "<|fim_repo|>", "<|flush|>", "<|im_end|>", "<|repo_name|>", "<|return|>", "<|tool_response>",
    "<｜end▁of▁sentence｜>", "[EOS]", "[EOT]", "[PAD]", "[e~[", "_<EOT>",
};

static const char *const end_keys[] = {
    "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id",
    "tokenizer.ggml.fim_pad_token_id", "tokenizer.ggml.fim_rep_token_id",
    "tokenizer.ggml.fim_sep_token_id",
};

/* The id under a key: 0 and *ret, which stays -1 when the key is absent. */
static int read_id(struct load *l, const char *key, int32_t *ret)
{
    uint32_t id;
    int r = gguf_u32(l->file, key, &id, l->err);

    *ret = -1;
    if (r != 0)
        return r < 0 ? r : 0;
    if (id >= l->t->n)
        return refuse(l, -EINVAL, "%s is %u, but there are %u tokens", key, id, l->t->n);
    *ret = (int32_t)id;
    return 0;
}

static int by_number(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;

    return x < y ? -1 : x > y;
}

/* Harmony models (gpt-oss) end a message, not an answer, with <|end|>. */
static bool end_is_message_end(const struct load *l)
{
    bool call = find_text(l, "<|call|>") >= 0 || find_text(l, "<|calls|>") >= 0;

    return call && (find_text(l, "<|return|>") >= 0 || find_text(l, "<|flush|>") >= 0);
}

static int read_ends(struct load *l)
{
    const size_t n_texts = sizeof end_texts / sizeof end_texts[0];
    const size_t n_keys = sizeof end_keys / sizeof end_keys[0];
    struct tokenizer *t = l->t;
    size_t n = 0;

    t->ends = calloc(n_texts + n_keys, sizeof *t->ends);
    if (!t->ends)
        return no_memory(l);
    for (size_t i = 0; i < n_texts + n_keys; i++) {
        int32_t id;
        int r;

        if (i < n_keys) {
            r = read_id(l, end_keys[i], &id);
            if (r < 0)
                return r;
        } else {
            const char *text = end_texts[i - n_keys];

            id = find_text(l, text);
            if (id >= 0 && t->kinds[id] == NORMAL && l->made[id])
                id = -1;
            if (id >= 0 && strcmp(text, "<|end|>") == 0 && end_is_message_end(l))
                id = -1;
            if (id >= 0)
                t->kinds[id] = CONTROL;
        }
        if (id >= 0)
            t->ends[n++] = id;
    }
    qsort(t->ends, n, sizeof *t->ends, by_number);
    for (size_t i = 0; i < n; i++)
        if (t->n_ends == 0 || t->ends[t->n_ends - 1] != t->ends[i])
            t->ends[t->n_ends++] = t->ends[i];
    return 0;
}

static int read_flags(struct load *l)
{
    struct tokenizer *t = l->t;
    int r;

    if ((r = read_id(l, "tokenizer.ggml.bos_token_id", &t->bos)) < 0 ||
        (r = read_id(l, "tokenizer.ggml.eos_token_id", &t->eos)) < 0)
        return r;
    t->add_bos = t->pre->add_bos;
    if ((r = gguf_bool(l->file, "tokenizer.ggml.add_bos_token", &t->add_bos, l->err)) < 0 ||
        (r = gguf_bool(l->file, "tokenizer.ggml.add_eos_token", &t->add_eos, l->err)) < 0)
        return r;
    t->add_bos = t->add_bos && t->bos >= 0;
    t->add_eos = t->add_eos && t->eos >= 0;
    return 0;
}

/* GPT-2 spells a byte as one printable character: 33-126, 161-172 and 174-255 as themselves, the
 * other 68 as U+0100 and up, in order. -1 for a character outside that alphabet. */
static int byte_of_character(uint32_t c)
{
    if ((c >= 33 && c <= 126) || (c >= 161 && c <= 172) || (c >= 174 && c <= 255))
        return (int)c;
    if (c < 0x100 || c >= 0x100 + 68)
        return -1;
    c -= 0x100;
    return c < 33 ? (int)c : c < 67 ? (int)(c - 33 + 127) : 173;
}

/* Spelling to bytes; a token with a character outside the alphabet stands for itself. */
static size_t decode_alphabet(struct gguf_str s, char *out)
{
    size_t n = 0;
    uint32_t c;

    for (size_t i = 0; i < s.len;) {
        int len = utf8_decode(s.text + i, s.len - i, &c);
        int byte = len > 0 ? byte_of_character(c) : -1;

        if (byte < 0) {
            memcpy(out, s.text, s.len);
            return s.len;
        }
        out[n++] = (char)byte;
        i += (size_t)len;
    }
    return n;
}

/* "<0x0A>" to its byte, or -1. */
static int byte_token(struct gguf_str s)
{
    static const char digits[] = "0123456789ABCDEF";
    const char *a, *b;

    if (s.len != 6 || memcmp(s.text, "<0x", 3) != 0 || s.text[5] != '>' || !s.text[3] || !s.text[4])
        return -1;
    a = strchr(digits, s.text[3]);
    b = strchr(digits, s.text[4]);
    return a && b ? (int)((a - digits) * 16 + (b - digits)) : -1;
}

static int make_bytes(struct load *l)
{
    struct tokenizer *t = l->t;
    size_t total = 1, n = 0;            /* decoding only ever shortens */

    for (uint32_t i = 0; i < t->n; i++)
        total += l->texts[i].len;
    t->bytes = malloc(total);
    t->tokens = calloc(t->n, sizeof *t->tokens);
    if (!t->bytes || !t->tokens)
        return no_memory(l);
    for (int i = 0; i < 256; i++)
        t->byte_id[i] = -1;
    for (uint32_t i = 0; i < t->n; i++) {
        struct gguf_str s = l->texts[i];
        char *at = t->bytes + n;
        size_t len;

        if (t->kinds[i] == BYTE) {
            int byte = byte_token(s);

            if (byte < 0)
                return refuse(l, -EINVAL, "token %u is of type byte, but not spelled <0x00> to <0xFF>", i);
            at[0] = (char)byte;
            len = 1;
        } else if (t->kinds[i] == NORMAL) {
            len = decode_alphabet(s, at);
        } else {
            memcpy(at, s.text, s.len);
            len = s.len;
        }
        if (len == 1 && (t->kinds[i] == NORMAL || t->kinds[i] == BYTE))
            t->byte_id[(unsigned char)at[0]] = (int32_t)i;
        t->tokens[i] = (struct gguf_str){ at, len };
        t->longest = len > t->longest ? len : t->longest;
        n += len;
    }
    return 0;
}

static int read_merge(struct load *l, struct gguf_str m, uint32_t rank)
{
    struct tokenizer *t = l->t;
    const char *gap = m.len > 1 ? memchr(m.text + 1, ' ', m.len - 1) : NULL;
    struct gguf_str a, b;
    int32_t left, right, result;
    struct merge *slot;

    if (!gap)
        return refuse(l, -EINVAL, "merge %u is not two texts with a space between", rank);
    a = (struct gguf_str){ m.text, (size_t)(gap - m.text) };
    b = (struct gguf_str){ gap + 1, m.len - a.len - 1 };
    left = *names_slot(&l->by_text, l->texts, t->seed, a, no_string);
    right = *names_slot(&l->by_text, l->texts, t->seed, b, no_string);
    result = *names_slot(&l->by_text, l->texts, t->seed, a, b);
    if (left < 0 || right < 0 || result < 0)
        return refuse(l, -EINVAL, "merge %u is of texts that are no tokens", rank);
    if (t->kinds[result] != NORMAL)
        return 0;
    l->made[result] = true;
    slot = merge_slot(t, pair_of(left, right));
    if (slot->pair == NO_PAIR)          /* of equal merges the first counts */
        *slot = (struct merge){ pair_of(left, right), rank, result };
    return 0;
}

static int read_merges(struct load *l)
{
    struct tokenizer *t = l->t;
    struct gguf_array a;
    struct gguf_str m;
    uint32_t size;
    int r = need(l, gguf_array(l->file, "tokenizer.ggml.merges", &a, l->err), "tokenizer.ggml.merges");

    if (r < 0)
        return r;
    if (a.n && a.type != GGUF_STRING)
        return refuse(l, -EINVAL, "tokenizer.ggml.merges must hold strings");
    if (a.n > MAX_MERGES)
        return refuse(l, -E2BIG, "%llu merges, at most %d are allowed", (unsigned long long)a.n, MAX_MERGES);
    size = table_size((size_t)a.n);
    t->merges = malloc(size * sizeof *t->merges);
    l->made = calloc(t->n, sizeof *l->made);
    if (!t->merges || !l->made)
        return no_memory(l);
    for (uint32_t i = 0; i < size; i++)
        t->merges[i].pair = NO_PAIR;
    t->merges_mask = size - 1;
    for (uint32_t rank = 0; gguf_next_str(&a, &m) && r == 0; rank++)
        r = read_merge(l, m, rank);
    return r;
}

static int by_bytes(const void *a, const void *b, void *tokens)
{
    const struct gguf_str *x = (const struct gguf_str *)tokens + *(const int32_t *)a;
    const struct gguf_str *y = (const struct gguf_str *)tokens + *(const int32_t *)b;
    int order = memcmp(x->text, y->text, x->len < y->len ? x->len : y->len);

    return order ? order : x->len < y->len ? -1 : x->len > y->len;
}

/* "<unk>" in text that is vouched for is that token, as control tokens are. */
static bool is_added(const struct tokenizer *t, uint32_t i, bool control)
{
    enum kind kind = t->kinds[i];

    return t->tokens[i].len &&
           (kind == USER_DEFINED || (control && (kind == CONTROL || kind == UNKNOWN)));
}

static int make_added(struct load *l, struct added *set, bool control)
{
    struct tokenizer *t = l->t;
    size_t n = 0;

    for (uint32_t i = 0; i < t->n; i++)
        n += is_added(t, i, control);
    set->ids = calloc(n ? n : 1, sizeof *set->ids);
    if (!set->ids)
        return no_memory(l);
    for (uint32_t i = 0; i < t->n; i++) {
        if (!is_added(t, i, control))
            continue;
        set->ids[set->n++] = (int32_t)i;
        set->first[(unsigned char)t->tokens[i].text[0]] = true;
    }
    qsort_r(set->ids, set->n, sizeof *set->ids, by_bytes, t->tokens);
    return 0;
}

/* Normal tokens by their bytes, for models that take a piece whole where it is a token. */
static int make_normal(struct load *l)
{
    struct tokenizer *t = l->t;

    if (!t->pre->ignore_merges)
        return 0;
    if (names_init(&t->normal, t->n) < 0)
        return no_memory(l);
    for (uint32_t i = 0; i < t->n; i++) {
        int32_t *slot = names_slot(&t->normal, t->tokens, t->seed, t->tokens[i], no_string);

        if (t->kinds[i] == NORMAL && t->tokens[i].len && *slot < 0)
            *slot = (int32_t)i;
    }
    return 0;
}

static int load(struct load *l)
{
    int r;

    if ((r = read_names(l)) < 0 || (r = read_texts(l)) < 0 || (r = read_kinds(l)) < 0 ||
        (r = read_merges(l)) < 0 || (r = read_ends(l)) < 0 || (r = read_flags(l)) < 0 ||
        (r = make_bytes(l)) < 0 || (r = make_added(l, &l->t->user, false)) < 0 ||
        (r = make_added(l, &l->t->all, true)) < 0 || (r = make_normal(l)) < 0)
        return r;
    return 0;
}

int tokenizer_open(const struct gguf *file, struct tokenizer **ret, struct err *err)
{
    CLEANUP(tokenizer_close) struct tokenizer *t = calloc(1, sizeof *t);
    struct load l = { .t = t, .file = file, .err = err };
    int r;

    if (!t)
        return no_memory(&l);
    t->seed = id_random_u64();
    r = load(&l);
    free(l.texts);
    free(l.by_text.slots);
    free(l.made);
    if (r < 0)
        return r;
    *ret = STEAL(t);
    return 0;
}

void tokenizer_close(struct tokenizer *t)
{
    if (!t)
        return;
    free(t->bytes);
    free(t->tokens);
    free(t->kinds);
    free(t->merges);
    free(t->normal.slots);
    free(t->user.ids);
    free(t->all.ids);
    free(t->ends);
    free(t);
}

/* Encoding. */

struct symbol {
    int32_t id;                         /* -1: merged away, or a byte without a token */
    int32_t prev, next;                 /* -1: none */
};

struct encoder {
    const struct tokenizer *t;
    struct token_list *out;
    struct symbol *symbols;
    size_t cap_symbols;
    uint64_t *heap;                     /* rank << 32 | position, smallest first */
    size_t n_heap, cap_heap;
    struct symbol few[INLINE_SYMBOLS];
    uint64_t few_heap[INLINE_SYMBOLS];
};

/* Room for n elements of `size` bytes in an array that began as `few`, or NULL. */
static void *grown(void *array, const void *few, size_t *cap, size_t n, size_t size)
{
    size_t more = *cap * 2 > n ? *cap * 2 : n;
    void *p;

    if (n <= *cap)
        return array;
    p = array == few ? malloc(more * size) : realloc(array, more * size);
    if (!p)
        return NULL;
    if (array == few)
        memcpy(p, few, *cap * size);
    *cap = more;
    return p;
}

static void sift_down(uint64_t *heap, size_t n, size_t i)
{
    uint64_t v = heap[i];

    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        child += child + 1 < n && heap[child + 1] < heap[child];
        if (v <= heap[child])
            break;
        heap[i] = heap[child];
    }
    heap[i] = v;
}

static int push(struct encoder *e, uint64_t v)
{
    uint64_t *heap = grown(e->heap, e->few_heap, &e->cap_heap, e->n_heap + 1, sizeof *heap);
    size_t i = e->n_heap;

    if (!heap)
        return -ENOMEM;
    e->heap = heap;
    e->n_heap++;
    for (size_t up; i && v < heap[up = (i - 1) / 2]; i = up)
        heap[i] = heap[up];
    heap[i] = v;
    return 0;
}

static uint64_t pop(struct encoder *e)
{
    uint64_t v = e->heap[0];

    e->heap[0] = e->heap[--e->n_heap];
    if (e->n_heap)
        sift_down(e->heap, e->n_heap, 0);
    return v;
}

/* The merge of the symbol at i with the one behind it, or NULL. */
static const struct merge *merge_at(const struct encoder *e, int32_t i)
{
    int32_t next = i < 0 || e->symbols[i].id < 0 ? -1 : e->symbols[i].next;
    const struct merge *m;

    if (next < 0 || e->symbols[next].id < 0)
        return NULL;
    m = merge_slot(e->t, pair_of(e->symbols[i].id, e->symbols[next].id));
    return m->pair == NO_PAIR ? NULL : m;
}

static int offer(struct encoder *e, int32_t i)
{
    const struct merge *m = merge_at(e, i);

    return m ? push(e, (uint64_t)m->rank << 32 | (uint32_t)i) : 0;
}

static int fill(struct encoder *e, const char *piece, size_t len)
{
    struct symbol *s = grown(e->symbols, e->few, &e->cap_symbols, len, sizeof *s);
    int r = 0;

    if (!s)
        return -ENOMEM;
    e->symbols = s;
    for (size_t i = 0; i < len; i++)
        s[i] = (struct symbol){ .id = e->t->byte_id[(unsigned char)piece[i]],
                               .prev = (int32_t)i - 1,
                               .next = i + 1 < len ? (int32_t)i + 1 : -1 };
    e->n_heap = 0;
    for (size_t i = 0; i + 1 < len && r == 0; i++)
        r = offer(e, (int32_t)i);
    return r;
}

static int merge_piece(struct encoder *e, const char *piece, size_t len)
{
    int r = fill(e, piece, len);
    struct symbol *s = e->symbols;

    while (r == 0 && e->n_heap) {
        uint64_t top = pop(e);
        int32_t at = (int32_t)(uint32_t)top, gone;
        const struct merge *m = merge_at(e, at);

        if (!m || m->rank != top >> 32)
            continue;
        gone = s[at].next;
        s[at].id = m->result;
        s[at].next = s[gone].next;
        s[gone].id = -1;
        if (s[at].next >= 0)
            s[s[at].next].prev = at;
        r = offer(e, s[at].prev);
        if (r == 0)
            r = offer(e, at);
    }
    for (int32_t i = 0; i >= 0 && r == 0; i = s[i].next)
        if (s[i].id >= 0)
            r = token_list_add(e->out, s[i].id);
    return r;
}

static int encode_piece(void *user, const char *piece, size_t len)
{
    struct encoder *e = user;
    const struct tokenizer *t = e->t;
    const struct gguf_str s = { piece, len };
    int32_t id;

    if (len == 1) {
        id = t->byte_id[(unsigned char)piece[0]];
        return id >= 0 ? token_list_add(e->out, id) : 0;
    }
    if (t->pre->ignore_merges) {
        id = *names_slot(&t->normal, t->tokens, t->seed, s, no_string);
        if (id >= 0)
            return token_list_add(e->out, id);
    }
    return merge_piece(e, piece, len);
}

/* The longest token of the set that text starts with, or -1: the sorted list is narrowed byte by
 * byte to those that agree so far. */
static int32_t match_added(const struct tokenizer *t, const struct added *set, const char *text,
                           size_t len)
{
    size_t low = 0, high = set->n;
    int32_t found = -1;

    for (size_t depth = 0; low < high; depth++) {
        size_t a = low, b = high;
        const struct gguf_str *s = &t->tokens[set->ids[low]];

        if (s->len == depth) {          /* the shortest sorts first */
            found = set->ids[low++];
            a = low;
        }
        if (depth == len)
            break;
        for (size_t end = high; a < end;) {
            size_t mid = a + (end - a) / 2;

            if ((unsigned char)t->tokens[set->ids[mid]].text[depth] < (unsigned char)text[depth])
                a = mid + 1;
            else
                end = mid;
        }
        low = a;
        for (size_t end = b; a < end;) {
            size_t mid = a + (end - a) / 2;

            if ((unsigned char)t->tokens[set->ids[mid]].text[depth] <= (unsigned char)text[depth])
                a = mid + 1;
            else
                end = mid;
        }
        high = a;
    }
    return found;
}

static int encode_text(struct encoder *e, const struct added *set, const char *text, size_t len)
{
    const struct tokenizer *t = e->t;
    size_t start = 0, i = 0;
    int r = 0;

    while (i < len && r == 0) {
        int32_t id = set->first[(unsigned char)text[i]] ? match_added(t, set, text + i, len - i) : -1;

        if (id < 0) {
            i++;
            continue;
        }
        r = pretok_split(t->pre, text + start, i - start, encode_piece, e);
        if (r == 0)
            r = token_list_add(e->out, id);
        i += t->tokens[id].len;
        start = i;
    }
    return r ? r : pretok_split(t->pre, text + start, len - start, encode_piece, e);
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, bool special,
                     struct token_list *out, struct err *err)
{
    struct encoder e = { .t = t, .out = out, .cap_symbols = INLINE_SYMBOLS, .cap_heap = INLINE_SYMBOLS };
    size_t before = out->n;
    int r;

    if (len > TOKENIZER_MAX_TEXT)
        return err_set(err, -E2BIG, "a text of %zu bytes is over the limit of %d", len, TOKENIZER_MAX_TEXT);
    e.symbols = e.few;
    e.heap = e.few_heap;
    r = encode_text(&e, special ? &t->all : &t->user, text, len);
    if (e.symbols != e.few)
        free(e.symbols);
    if (e.heap != e.few_heap)
        free(e.heap);
    if (r < 0) {
        out->n = before;
        return err_set(err, r, "no memory to tokenize %zu bytes", len);
    }
    return 0;
}

/* Facts. */

uint32_t tokenizer_size(const struct tokenizer *t)
{
    return t->n;
}

static bool is_id(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && (uint32_t)id < t->n;
}

const char *tokenizer_token(const struct tokenizer *t, int32_t id, size_t *ret_len)
{
    if (!is_id(t, id)) {
        *ret_len = 0;
        return NULL;
    }
    *ret_len = t->tokens[id].len;
    return t->tokens[id].text;
}

size_t tokenizer_longest(const struct tokenizer *t)
{
    return t->longest;
}

bool tokenizer_is_control(const struct tokenizer *t, int32_t id)
{
    return is_id(t, id) && t->kinds[id] == CONTROL;
}

bool tokenizer_is_end(const struct tokenizer *t, int32_t id)
{
    return bsearch(&id, t->ends, t->n_ends, sizeof id, by_number) != NULL;
}

const int32_t *tokenizer_ends(const struct tokenizer *t, size_t *ret_n)
{
    *ret_n = t->n_ends;
    return t->ends;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t len)
{
    for (uint32_t i = 0; i < t->n; i++)
        if (t->tokens[i].len == len && len && memcmp(t->tokens[i].text, text, len) == 0)
            return (int32_t)i;
    return -1;
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->bos;
}

int32_t tokenizer_eos(const struct tokenizer *t)
{
    return t->eos;
}

bool tokenizer_adds_bos(const struct tokenizer *t)
{
    return t->add_bos;
}

bool tokenizer_adds_eos(const struct tokenizer *t)
{
    return t->add_eos;
}
