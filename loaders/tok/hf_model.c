/* The model of a tokenizer.json: read in one pass into lists of views, built when the other sections have said how. */
#include "loaders/tok/hf.h"

#include "base/err.h"
#include "base/utf8.h"
#include "loaders/tok/alphabet.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum { SHOWN = 60 };

static bool str_is(struct tok_str s, const char *text)
{
    return s.len == strlen(text) && memcmp(s.text, text, s.len) == 0;
}

/* For %.*s: a token in a sentence. */
static int shown(uint32_t len)
{
    return (int)(len < SHOWN ? len : SHOWN);
}

/* Room for one more in an array that doubles. */
static bool grow(void **array, size_t n, size_t *cap, size_t size)
{
    size_t more = *cap ? *cap * 2 : 1024;
    void *bigger;

    if (n < *cap)
        return true;
    bigger = reallocarray(*array, more, size);
    if (!bigger)
        return false;
    *array = bigger;
    *cap = more;
    return true;
}

void hf_model_fini(struct hf_model *m)
{
    free(m->entries);
    free(m->scores);
    free(m->merges);
}

/* Reading. */

static int read_object_vocab(struct json_pull *p, struct hf_model *m)
{
    size_t cap = 0;
    struct tok_str key;
    int e = json_pull_open(p, '{');

    while (e == 0 && (e = json_pull_key(p, &key)) > 0) {
        int64_t id;

        if (m->n_entries == TOKENIZER_MAX_VOCAB)
            return json_pull_refuse(p, -E2BIG, "a vocabulary of more than %d tokens", TOKENIZER_MAX_VOCAB);
        if (!grow((void **)&m->entries, m->n_entries, &cap, sizeof *m->entries))
            return json_pull_refuse(p, -ENOMEM, "no memory for a vocabulary");
        if ((e = json_pull_integer(p, &id)) < 0)
            return e;
        if (id < 0 || id >= TOKENIZER_MAX_VOCAB)
            return json_pull_refuse(p, id < 0 ? -EINVAL : -E2BIG, "token \"%.*s\" has the id %lld, ids are 0 to %d", shown(key.len), key.text,
                                    (long long)id, TOKENIZER_MAX_VOCAB - 1);
        m->entries[m->n_entries++] = (struct hf_entry){ key.text, key.len, (int32_t)id };
    }
    return e;
}

static int read_scored(struct json_pull *p, struct tok_str *text, double *score)
{
    int e = json_pull_open(p, '[');

    if (e < 0 || (e = json_pull_item(p)) < 0)
        return e;
    if (e == 0)
        return json_pull_refuse(p, -EINVAL, "a token and its score should be here");
    if ((e = json_pull_string(p, text)) < 0 || (e = json_pull_item(p)) < 0)
        return e;
    if (e == 0)
        return json_pull_refuse(p, -EINVAL, "a token without a score");
    if ((e = json_pull_number(p, score)) < 0 || (e = json_pull_item(p)) < 0)
        return e;
    if (e > 0 || !isfinite(*score))
        return json_pull_refuse(p, -EINVAL, "a token and its score should be here");
    return 0;
}

static int read_array_vocab(struct json_pull *p, struct hf_model *m)
{
    size_t cap = 0, scores_cap = 0;
    int e = json_pull_open(p, '[');

    while (e == 0 && (e = json_pull_item(p)) > 0) {
        struct tok_str text;

        if (m->n_entries == TOKENIZER_MAX_VOCAB)
            return json_pull_refuse(p, -E2BIG, "a vocabulary of more than %d tokens", TOKENIZER_MAX_VOCAB);
        if (!grow((void **)&m->entries, m->n_entries, &cap, sizeof *m->entries) ||
            !grow((void **)&m->scores, m->n_entries, &scores_cap, sizeof *m->scores))
            return json_pull_refuse(p, -ENOMEM, "no memory for a vocabulary");
        if ((e = read_scored(p, &text, &m->scores[m->n_entries])) < 0)
            return e;
        m->entries[m->n_entries] = (struct hf_entry){ text.text, text.len, (int32_t)m->n_entries };
        m->n_entries++;
    }
    return e;
}

static int read_vocab(struct json_pull *p, struct hf_model *m)
{
    if (m->entries)
        return json_pull_refuse(p, -EINVAL, "a second vocabulary");
    return json_pull_peek(p) == '[' ? read_array_vocab(p, m) : read_object_vocab(p, m);
}

/* "left right", with exactly one space. */
static int split_merge(struct json_pull *p, struct tok_str s, struct hf_merge *ret)
{
    const char *space = memchr(s.text, ' ', s.len);
    uint32_t at = space ? (uint32_t)(space - s.text) : 0;

    if (!space || memchr(space + 1, ' ', s.len - at - 1))
        return json_pull_refuse(p, -EINVAL, "merge \"%.*s\" should be two tokens with one space between them", shown(s.len), s.text);
    *ret = (struct hf_merge){ { s.text, at }, { space + 1, s.len - at - 1 } };
    return 0;
}

static int read_pair(struct json_pull *p, struct hf_merge *ret)
{
    int e = json_pull_open(p, '[');

    if (e < 0)
        return e;
    for (int i = 0; i < 2; i++) {
        if ((e = json_pull_item(p)) < 0)
            return e;
        if (e == 0)
            return json_pull_refuse(p, -EINVAL, "a merge should be two tokens");
        if ((e = json_pull_string(p, i ? &ret->right : &ret->left)) < 0)
            return e;
    }
    e = json_pull_item(p);
    return e > 0 ? json_pull_refuse(p, -EINVAL, "a merge should be two tokens") : e;
}

static int read_merges(struct json_pull *p, struct hf_model *m)
{
    size_t cap = 0;
    int e = m->has_merges ? json_pull_refuse(p, -EINVAL, "a second list of merges") : json_pull_open(p, '[');

    m->has_merges = true;
    while (e == 0 && (e = json_pull_item(p)) > 0) {
        struct tok_str s;

        if (m->n_merges == BPE_MAX_MERGES)
            return json_pull_refuse(p, -E2BIG, "more than %d merges", BPE_MAX_MERGES);
        if (!grow((void **)&m->merges, m->n_merges, &cap, sizeof *m->merges))
            return json_pull_refuse(p, -ENOMEM, "no memory for merges");
        if (json_pull_peek(p) == '[') {
            e = read_pair(p, &m->merges[m->n_merges]);
        } else if ((e = json_pull_string(p, &s)) == 0) {
            if (s.len >= 8 && memcmp(s.text, "#version", 8) == 0)
                continue;
            e = split_merge(p, s, &m->merges[m->n_merges]);
        }
        m->n_merges++;
    }
    return e;
}

static int read_dropout(struct json_pull *p)
{
    double dropout = 0;
    int e = json_pull_null(p) ? 0 : json_pull_number(p, &dropout);

    if (e == 0 && dropout != 0)
        return json_pull_refuse(p, -ENOTSUP, "dropout %g, which makes ids random, is not supported", dropout);
    return e;
}

static int read_member(struct json_pull *p, struct tok_str key, struct hf_model *m)
{
    static const struct { const char *key; size_t at; } strings[] = {
        { "type", offsetof(struct hf_model, type) },
        { "unk_token", offsetof(struct hf_model, unk_token) },
        { "continuing_subword_prefix", offsetof(struct hf_model, continuing_prefix) },
        { "end_of_word_suffix", offsetof(struct hf_model, end_suffix) },
    };
    static const struct { const char *key; size_t at; } bools[] = {
        { "byte_fallback", offsetof(struct hf_model, byte_fallback) },
        { "fuse_unk", offsetof(struct hf_model, fuse_unk) },
        { "ignore_merges", offsetof(struct hf_model, ignore_merges) },
    };

    if (str_is(key, "vocab"))
        return read_vocab(p, m);
    if (str_is(key, "merges"))
        return read_merges(p, m);
    if (str_is(key, "dropout"))
        return read_dropout(p);
    if (json_pull_null(p))
        return 0;
    for (size_t i = 0; i < sizeof strings / sizeof strings[0]; i++)
        if (str_is(key, strings[i].key))
            return json_pull_string(p, (struct tok_str *)((char *)m + strings[i].at));
    for (size_t i = 0; i < sizeof bools / sizeof bools[0]; i++)
        if (str_is(key, bools[i].key))
            return json_pull_bool(p, (bool *)((char *)m + bools[i].at));
    if (str_is(key, "unk_id"))
        return json_pull_integer(p, &m->unk_id);
    if (str_is(key, "max_input_chars_per_word"))
        return json_pull_integer(p, &m->max_chars);
    return json_pull_skip(p);
}

/* By its type, which old files do not give: then by what it holds. */
static int find_kind(struct json_pull *p, struct hf_model *m)
{
    static const char *const names[] = { [HF_BPE] = "BPE", [HF_UNIGRAM] = "Unigram", [HF_WORDPIECE] = "WordPiece", [HF_WORDLEVEL] = "WordLevel" };

    if (m->type.text) {
        for (m->kind = HF_BPE; m->kind <= HF_WORDLEVEL; m->kind++)
            if (str_is(m->type, names[m->kind]))
                return 0;
        return json_pull_refuse(p, -ENOTSUP, "model type \"%.*s\" is not supported", shown(m->type.len), m->type.text);
    }
    m->kind = m->has_merges ? HF_BPE : m->scores ? HF_UNIGRAM : m->max_chars >= 0 ? HF_WORDPIECE : HF_WORDLEVEL;
    return 0;
}

int hf_model_read(struct json_pull *p, struct hf_model *m)
{
    struct tok_str key;
    int e = json_pull_open(p, '{');

    m->unk_id = m->max_chars = -1;
    while (e == 0 && (e = json_pull_key(p, &key)) > 0)
        e = read_member(p, key, m);
    if (e < 0 || (e = find_kind(p, m)) < 0)
        return e;
    if (!m->n_entries)
        return json_pull_refuse(p, -EINVAL, "the model has no vocabulary");
    if ((m->kind == HF_UNIGRAM) != (m->scores != NULL))
        return json_pull_refuse(p, -EINVAL, m->scores ? "only Unigram has a vocabulary with scores" : "Unigram's vocabulary needs scores");
    if (m->kind == HF_BPE && !m->has_merges)
        return json_pull_refuse(p, -EINVAL, "the model has no merges");
    if (m->max_chars > INT32_MAX || m->max_chars < -1)
        return json_pull_refuse(p, -EINVAL, "max_input_chars_per_word is %lld", (long long)m->max_chars);
    return 0;
}

/* Building. */

/* The bytes that a text spells; false: a character is outside the alphabet, and the text stands for itself. */
static bool undo_alphabet(struct tok_str s, char *out, size_t *ret_len)
{
    size_t n = 0;

    for (size_t i = 0; i < s.len;) {
        unsigned char c = (unsigned char)s.text[i];
        uint32_t point;
        int len, byte;

        if (c > ' ' && c < 0x7F) {
            out[n++] = (char)c;
            i++;
            continue;
        }
        len = utf8_decode(s.text + i, s.len - i, &point);
        byte = len > 0 ? alphabet_byte(point) : -1;
        if (byte < 0)
            return false;
        out[n++] = (char)byte;
        i += (size_t)len;
    }
    *ret_len = n;
    return true;
}

struct build {
    const struct hf_model *m;
    const char *name;
    struct tokenizer *t;
    struct err *err;
    char *bytes;                    /* room for a token */
    size_t room;
};

/* A text as the vocabulary holds it; false: it is spelled outside the alphabet, and *ret is the text itself. */
static bool as_held(struct build *b, bool raw, struct tok_str s, struct tok_str *ret)
{
    size_t n;

    *ret = s;
    if (!raw || !undo_alphabet(s, b->bytes, &n))
        return !raw;
    *ret = (struct tok_str){ b->bytes, (uint32_t)n };
    return true;
}

static int put_entry(struct build *b, const struct hf_entry *entry, struct tok_str text)
{
    int e = vocab_put(b->t->vocab, entry->id, text.text, text.len, TOK_NORMAL);

    if (e == -EEXIST)
        return err_set(b->err, -EINVAL, "%s: token \"%.*s\" has the id %d, which another token has", b->name, shown(entry->len), entry->text,
                       entry->id);
    if (e < 0)
        return err_set(b->err, e, "%s: no memory for a vocabulary of %zu tokens", b->name, b->m->n_entries);
    b->t->longest = text.len > b->t->longest ? text.len : b->t->longest;
    return 0;
}

/* The texts that are bytes first, so that they are the ones found: nothing else is ever made of a text. */
static int put_entries(struct build *b, bool raw)
{
    size_t outside = 0;
    int e;

    for (size_t i = 0; i < b->m->n_entries; i++) {
        const struct hf_entry *entry = &b->m->entries[i];
        struct tok_str text;

        if (!as_held(b, raw, (struct tok_str){ entry->text, entry->len }, &text)) {
            outside++;
            continue;
        }
        if ((e = put_entry(b, entry, text)) < 0)
            return e;
        if (text.len && vocab_find(b->t->vocab, text.text, text.len) != entry->id)
            return err_set(b->err, -EINVAL, "%s: token \"%.*s\" is there twice", b->name, shown(entry->len), entry->text);
    }
    for (size_t i = 0; i < b->m->n_entries && outside; i++) {
        const struct hf_entry *entry = &b->m->entries[i];
        struct tok_str text;

        if (as_held(b, raw, (struct tok_str){ entry->text, entry->len }, &text))
            continue;
        if ((e = put_entry(b, entry, text)) < 0)
            return e;
        outside--;
    }
    return 0;
}

static int build_begin(struct build *b, const struct hf_model *m, const char *name, struct tokenizer *t, struct err *err)
{
    *b = (struct build){ .m = m, .name = name, .t = t, .err = err };
    for (size_t i = 0; i < m->n_entries; i++)
        b->room = m->entries[i].len > b->room ? m->entries[i].len : b->room;
    b->bytes = malloc(b->room + 1);
    return b->bytes ? 0 : err_set(err, -ENOMEM, "%s: no memory for a token of %zu bytes", name, b->room);
}

int hf_vocab_build(const struct hf_model *m, bool raw, const char *name, struct tokenizer *t, struct err *err)
{
    struct build b;
    size_t bytes = 0;
    int e = build_begin(&b, m, name, t, err);

    for (size_t i = 0; i < m->n_entries; i++)
        bytes += m->entries[i].len;
    if (e == 0 && vocab_new((uint32_t)m->n_entries, bytes, &t->vocab) < 0)
        e = err_set(err, -ENOMEM, "%s: no memory for a vocabulary of %zu tokens", name, m->n_entries);
    if (e == 0)
        e = put_entries(&b, raw);
    free(b.bytes);
    return e;
}

int32_t hf_vocab_find(const struct tokenizer *t, bool raw, struct tok_str text)
{
    CLEANUP(mem_free) char *bytes = NULL;
    size_t n;

    if (!raw)
        return vocab_find(t->vocab, text.text, text.len);
    bytes = malloc(text.len + 1);
    if (bytes && undo_alphabet(text, bytes, &n))
        return vocab_find(t->vocab, bytes, n);
    return vocab_find(t->vocab, text.text, text.len);
}

static int no_such_merge(struct build *b, const struct hf_merge *merge)
{
    return err_set(b->err, -EINVAL, "%s: merge \"%.*s\" \"%.*s\": it, or what it makes, is not in the vocabulary", b->name,
                   shown(merge->left.len), merge->left.text, shown(merge->right.len), merge->right.text);
}

/* The texts of some merges as the vocabulary holds them; where one of the two halves can not be raw, neither is. */
static int merge_texts(struct build *b, bool raw, const struct hf_merge *merges, size_t n, struct tok_str *lefts, struct tok_str *rights)
{
    size_t need = 1;
    char *to;

    for (size_t i = 0; i < n; i++)
        need += merges[i].left.len + merges[i].right.len;
    to = realloc(b->bytes, need);
    if (!to)
        return err_set(b->err, -ENOMEM, "%s: no memory for merges of %zu bytes", b->name, need);
    b->bytes = to;
    for (size_t i = 0; i < n; i++) {
        size_t n_left, n_right;

        lefts[i] = merges[i].left;
        rights[i] = merges[i].right;
        if (!raw || !undo_alphabet(lefts[i], to, &n_left) || !undo_alphabet(rights[i], to + n_left, &n_right))
            continue;
        lefts[i] = (struct tok_str){ to, (uint32_t)n_left };
        rights[i] = (struct tok_str){ to + n_left, (uint32_t)n_right };
        to += n_left + n_right;
    }
    return 0;
}

static int find_merges(struct build *b, bool raw, struct bpe_merge *merges)
{
    struct tok_str lefts[VOCAB_FIND_MANY], rights[VOCAB_FIND_MANY];
    const struct hf_model *m = b->m;
    size_t bad;

    for (size_t i = 0, n; i < m->n_merges; i += n) {
        int e;

        n = m->n_merges - i < VOCAB_FIND_MANY ? m->n_merges - i : VOCAB_FIND_MANY;
        if ((e = merge_texts(b, raw, m->merges + i, n, lefts, rights)) < 0)
            return e;
        if (bpe_merges_find(b->t->vocab, lefts, rights, n, m->continuing_prefix.len, i ? merges[i - 1].result : -1, merges + i, &bad) < 0)
            return no_such_merge(b, &m->merges[i + bad]);
    }
    return 0;
}

static int ends_and_kinds(struct tokenizer *t, const struct bpe_merge *merges, size_t n_merges, const char *name, struct err *err)
{
    uint8_t *kinds = malloc(vocab_size(t->vocab) + 1);
    int e = kinds ? 0 : -ENOMEM;

    for (uint32_t i = 0; e == 0 && i < vocab_size(t->vocab); i++)
        kinds[i] = (uint8_t)vocab_kind(t->vocab, (int32_t)i);
    if (e == 0)
        e = tokenizer_find_ends(t, merges, n_merges);
    /* What is control is the file's to say: skipped when decoding is what it calls special. */
    for (size_t i = 0; e == 0 && i < t->n_ends; i++)
        vocab_set_kind(t->vocab, t->ends[i], kinds[t->ends[i]]);
    free(kinds);
    return e < 0 ? err_set(err, e, "%s: no memory for its tokens", name) : 0;
}

static int build_bpe(struct build *b, bool raw)
{
    const struct hf_model *m = b->m;
    CLEANUP(mem_free) struct bpe_merge *merges = calloc(m->n_merges + 1, sizeof *merges);
    struct bpe_spec spec = {
        .vocab = b->t->vocab, .merges = merges, .n_merges = m->n_merges, .last_counts = true, .byte_level = raw,
        .ignore_merges = m->ignore_merges, .byte_fallback = m->byte_fallback, .fuse_unk = m->fuse_unk, .unk = -1,
        .continuing_prefix = m->continuing_prefix, .end_suffix = m->end_suffix,
    };
    int e;

    if (!merges)
        return err_set(b->err, -ENOMEM, "%s: no memory for %zu merges", b->name, m->n_merges);
    if ((e = find_merges(b, raw, merges)) < 0 || (e = ends_and_kinds(b->t, merges, m->n_merges, b->name, b->err)) < 0)
        return e;
    if (m->unk_token.text)
        spec.unk = hf_vocab_find(b->t, raw, m->unk_token);
    e = bpe_new(&spec, &b->t->model);
    return e < 0 ? err_set(b->err, e, "%s: the merges can not be used", b->name) : 0;
}

static int build_unigram(struct build *b)
{
    const struct hf_model *m = b->m;
    const struct unigram_spec spec = {
        .vocab = b->t->vocab, .scores = m->scores, .byte_fallback = m->byte_fallback, .fuse_unk = true, .unk = (int32_t)m->unk_id,
    };
    int e;

    if (m->unk_id >= (int64_t)m->n_entries || m->unk_id < -1)
        return err_set(b->err, -EINVAL, "%s: unk_id is %lld, but there are %zu tokens", b->name, (long long)m->unk_id, m->n_entries);
    if ((e = ends_and_kinds(b->t, NULL, 0, b->name, b->err)) < 0)
        return e;
    e = unigram_new(&spec, &b->t->model);
    return e < 0 ? err_set(b->err, e, "%s: the vocabulary can not be used", b->name) : 0;
}

static int build_words(struct build *b)
{
    const struct hf_model *m = b->m;
    int32_t unk = m->unk_token.text ? vocab_find(b->t->vocab, m->unk_token.text, m->unk_token.len) : -1;
    const struct wordpiece_spec spec = {
        .vocab = b->t->vocab, .continuing_prefix = m->continuing_prefix, .unk = unk, .max_chars = m->max_chars < 0 ? 100 : (uint32_t)m->max_chars,
    };
    int e;

    if (unk < 0)
        return err_set(b->err, -EINVAL, "%s: unk_token is not in the vocabulary", b->name);
    if ((e = ends_and_kinds(b->t, NULL, 0, b->name, b->err)) < 0)
        return e;
    e = m->kind == HF_WORDPIECE ? wordpiece_new(&spec, &b->t->model) : wordlevel_new(b->t->vocab, unk, &b->t->model);
    return e < 0 ? err_set(b->err, e, "%s: the vocabulary can not be used", b->name) : 0;
}

int hf_model_build(const struct hf_model *m, bool raw, const char *name, struct tokenizer *t, struct err *err)
{
    struct build b;
    int e = build_begin(&b, m, name, t, err);

    if (e == 0)
        e = m->kind == HF_BPE ? build_bpe(&b, raw) : m->kind == HF_UNIGRAM ? build_unigram(&b) : build_words(&b);
    free(b.bytes);
    return e;
}
