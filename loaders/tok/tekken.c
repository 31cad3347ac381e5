#include "loaders/tok/ranks.h"

#include "base/buf.h"
#include "base/err.h"
#include "loaders/tok/json_pull.h"
#include "loaders/tok/tok_config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Files up to v7 may lack the list of special tokens. */
static const char *const old_special[] = {
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
    "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
};
enum { N_OLD_SPECIAL = sizeof old_special / sizeof old_special[0], OLDEST = 3, LAST_WITHOUT_LIST = 7 };

struct special { char *text; int64_t rank; bool control; };

struct tekken {
    struct ranks ranks;
    struct json_pull *json;                         /* NULL: between two passes over the file */
    int64_t version, n_special, n_vocab;            /* n_vocab: special ones and others; -1: not seen */
    char *pattern;
    struct special *special;
    size_t n_listed, cap_listed;
    bool has_list;
    struct err *err;
};

static bool is_key(struct tok_str key, const char *text)
{
    return key.len == strlen(text) && memcmp(key.text, text, key.len) == 0;
}

static int read_size(struct json_pull *p, int64_t *ret)
{
    int r = json_pull_integer(p, ret);

    if (r == 0 && (*ret < 0 || *ret > TOKENIZER_MAX_VOCAB))
        r = json_pull_refuse(p, -EINVAL, "%lld is not between 0 and %d", (long long)*ret, TOKENIZER_MAX_VOCAB);
    return r;
}

static int read_copy(struct json_pull *p, char **ret)
{
    struct tok_str s;
    int r = json_pull_string(p, &s);

    if (r < 0)
        return r;
    if (memchr(s.text, '\0', s.len))
        return json_pull_refuse(p, -EINVAL, "U+0000 in a text");
    free(*ret);
    *ret = strndup(s.text, s.len);
    return *ret ? 0 : json_pull_refuse(p, -ENOMEM, "no memory for a text");
}

static int read_config(struct tekken *k)
{
    struct json_pull *p = k->json;
    struct tok_str key, version = { "", 0 };
    int r = json_pull_open(p, '{');

    while (r == 0 && (r = json_pull_key(p, &key)) > 0) {
        if (is_key(key, "pattern"))
            r = read_copy(p, &k->pattern);
        else if (is_key(key, "version"))
            r = json_pull_string(p, &version);
        else if (is_key(key, "default_vocab_size"))
            r = read_size(p, &k->n_vocab);
        else if (is_key(key, "default_num_special_tokens"))
            r = read_size(p, &k->n_special);
        else
            r = json_pull_skip(p);
    }
    k->version = 0;
    for (uint32_t i = 1; r == 0 && i < version.len && i < 5 && version.text[0] == 'v'; i++)
        k->version = version.text[i] >= '0' && version.text[i] <= '9' ? k->version * 10 + (version.text[i] - '0') : 0;
    if (r == 0 && k->version < OLDEST)
        return json_pull_refuse(p, -ENOTSUP, "version \"%.*s\" is not supported, only v3 and later", (int)version.len,
                                version.text);
    return r;
}

static int read_special(struct tekken *k)
{
    struct json_pull *p = k->json;
    struct special *s;
    struct tok_str key;
    int r;

    if (k->n_listed == k->cap_listed) {
        size_t cap = k->cap_listed ? k->cap_listed * 2 : 64;
        struct special *more = cap > TOKENIZER_MAX_VOCAB ? NULL : reallocarray(k->special, cap, sizeof *more);

        if (!more)
            return json_pull_refuse(p, -ENOMEM, "no memory for special tokens");
        k->special = more;
        k->cap_listed = cap;
    }
    s = &k->special[k->n_listed++];
    *s = (struct special){ .rank = -1, .control = true };
    r = json_pull_open(p, '{');
    while (r == 0 && (r = json_pull_key(p, &key)) > 0)
        r = is_key(key, "rank") ? read_size(p, &s->rank) : is_key(key, "token_str") ? read_copy(p, &s->text) :
            is_key(key, "is_control") ? json_pull_bool(p, &s->control) : json_pull_skip(p);
    if (r == 0 && (s->rank < 0 || !s->text || !s->text[0]))
        return json_pull_refuse(p, -EINVAL, "a special token without 'rank' or 'token_str'");
    return r;
}

static int read_list(struct tekken *k)
{
    int r;

    if (json_pull_null(k->json))
        return 0;
    k->has_list = true;
    r = json_pull_open(k->json, '[');
    while (r == 0 && (r = json_pull_item(k->json)) > 0)
        r = read_special(k);
    return r;
}

static int read_token(struct tekken *k, struct buf *bytes, bool wanted)
{
    struct json_pull *p = k->json;
    struct tok_str key, text = { NULL, 0 };
    int64_t rank = -1;
    int r = json_pull_open(p, '{');

    while (r == 0 && (r = json_pull_key(p, &key)) > 0)
        r = is_key(key, "rank") ? json_pull_integer(p, &rank) : is_key(key, "token_bytes") ? json_pull_string(p, &text) :
            json_pull_skip(p);
    if (r < 0 || !wanted)
        return r;
    buf_clear(bytes);
    if (!text.text || !ranks_base64(text.text, text.len, bytes))
        return json_pull_refuse(p, -EINVAL, "token_bytes of rank %lld are no base64", (long long)rank);
    if (bytes->failed)
        return json_pull_refuse(p, -ENOMEM, "no memory for a token");
    return ranks_put(&k->ranks, rank, bytes->data, bytes->len, k->err);
}

/* The list may be longer than what counts. */
static int read_vocab(struct tekken *k)
{
    int64_t n = 0, wanted = k->n_vocab - k->n_special;
    BUF_LOCAL bytes = BUF_INIT;
    int r = json_pull_open(k->json, '[');

    for (; r == 0 && (r = json_pull_item(k->json)) > 0; n++)
        r = read_token(k, &bytes, n < wanted);
    if (r == 0 && n < wanted)
        r = json_pull_refuse(k->json, -EINVAL, "%lld tokens in 'vocab', but %lld are wanted", (long long)n, (long long)wanted);
    return r;
}

/* One pass over the file for what counts on the rest, one for the rest: the order of its keys means nothing. */
static int pass(struct tekken *k, const char *text, size_t len, bool vocab)
{
    struct json_pull p;
    struct tok_str key;
    bool seen = false;
    int r;

    json_pull_init(&p, k->ranks.name, text, len, k->err);
    k->json = &p;
    r = json_pull_open(&p, '{');
    while (r == 0 && (r = json_pull_key(&p, &key)) > 0) {
        if (is_key(key, vocab ? "vocab" : "config")) {
            seen = true;
            r = vocab ? read_vocab(k) : read_config(k);
        } else if (!vocab && is_key(key, "special_tokens")) {
            r = read_list(k);
        } else {
            r = json_pull_skip(&p);
        }
    }
    if (r == 0)
        r = json_pull_end(&p);
    if (r == 0 && !seen)
        r = json_pull_refuse(&p, -EINVAL, "'%s' is missing", vocab ? "vocab" : "config");
    json_pull_fini(&p);
    k->json = NULL;
    return r;
}

static int check_config(struct tekken *k)
{
    if (!k->pattern)
        return err_set(k->err, -EINVAL, "%s: config has no pattern", k->ranks.name);
    if (k->n_vocab < 0 || k->n_special < 0 || k->n_special >= k->n_vocab)
        return err_set(k->err, -EINVAL, "%s: config: %lld special tokens of %lld", k->ranks.name, (long long)k->n_special,
                       (long long)k->n_vocab);
    if (!k->has_list && k->version > LAST_WITHOUT_LIST)
        return err_set(k->err, -EINVAL, "%s: version v%lld without 'special_tokens'", k->ranks.name, (long long)k->version);
    k->ranks.pattern = (struct tok_str){ k->pattern, (uint32_t)strlen(k->pattern) };
    k->ranks.first = (int32_t)k->n_special;
    return 0;
}

static int put_special(struct tekken *k, struct tokenizer *t, int64_t rank, const char *text, bool control)
{
    if (rank >= k->n_special)
        return err_set(k->err, -EINVAL, "%s: special token \"%s\" has rank %lld, but there are %lld", k->ranks.name, text,
                       (long long)rank,
                       (long long)k->n_special);
    if (vocab_find(t->vocab, text, strlen(text)) >= 0)
        return err_set(k->err, -EINVAL, "%s: special token \"%s\" is there twice", k->ranks.name, text);
    return ranks_special(&k->ranks, t, rank, text, strlen(text), control, k->err);
}

static int put_all_special(struct tekken *k, struct tokenizer *t)
{
    int r = 0;

    for (int i = 0; !k->has_list && i < N_OLD_SPECIAL && i < k->n_special && r == 0; i++)
        r = put_special(k, t, i, old_special[i], true);
    for (size_t i = 0; i < k->n_listed && r == 0; i++)
        r = put_special(k, t, k->special[i].rank, k->special[i].text, k->special[i].control);
    for (int64_t i = 0; i < k->n_special && r == 0; i++) {
        char text[32];

        if (vocab_text(t->vocab, (int32_t)i).text)
            continue;
        snprintf(text, sizeof text, "<SPECIAL_%lld>", (long long)i);
        r = put_special(k, t, i, text, true);
    }
    return r;
}

static int32_t control(const struct tokenizer *t, const char *text)
{
    int32_t id = vocab_find(t->vocab, text, strlen(text));

    return id >= 0 && vocab_kind(t->vocab, id) == TOK_CONTROL ? id : -1;
}

static int make(struct tekken *k, const char *text, size_t len, struct tokenizer *t)
{
    int r;

    if ((r = pass(k, text, len, false)) < 0 || (r = check_config(k)) < 0 || (r = pass(k, text, len, true)) < 0)
        return r;
    if (vocab_new((uint32_t)k->n_vocab, 0, &t->vocab) < 0)
        return err_set(k->err, -ENOMEM, "%s: no memory for its tokenizer", k->ranks.name);
    if ((r = put_all_special(k, t)) < 0 || (r = ranks_fill(&k->ranks, t, k->err)) < 0)
        return r;
    t->bos = control(t, "<s>");
    t->eos = control(t, "</s>");
    if ((r = tok_config_edges(NULL, t, true, false)) < 0)
        return err_set(k->err, r, "%s: no memory for its tokenizer", k->ranks.name);
    snprintf(t->kind, sizeof t->kind, "byte-level BPE, tekken v%lld", (long long)k->version);
    return ranks_chain(&k->ranks, t, k->err);
}

static void tekken_fini(struct tekken *k)
{
    for (size_t i = 0; i < k->n_listed; i++)
        free(k->special[i].text);
    free(k->special);
    free(k->pattern);
    ranks_fini(&k->ranks);
}

int tekken_open(const char *name, const char *text, size_t len, struct tokenizer **ret, struct err *err)
{
    CLEANUP(tokenizer_close) struct tokenizer *t = NULL;
    struct tekken k = { .ranks.name = name, .n_special = -1, .n_vocab = -1, .err = err };
    int r = len > TOKENIZER_MAX_FILE ? -E2BIG : tokenizer_new(&t);

    if (r < 0)
        return err_set(err, r, r == -E2BIG ? "%s: the file is too big" : "%s: no memory for its tokenizer", name);
    r = make(&k, text, len, t);
    tekken_fini(&k);
    if (r < 0)
        return r;
    *ret = STEAL(t);
    return 0;
}
