#include "loaders/tok/tok_config.h"

#include "base/err.h"
#include "base/json.h"

#include <errno.h>
#include <string.h>

const char *tok_config_token(const cJSON *config, const char *key)
{
    const cJSON *v = json_find(config, key);

    if (cJSON_IsObject(v))
        v = json_find(v, "content");
    return cJSON_IsString(v) ? v->valuestring : NULL;
}

bool tok_config_bool(const cJSON *config, const char *key, bool otherwise)
{
    const cJSON *v = json_find(config, key);

    return cJSON_IsBool(v) ? cJSON_IsTrue(v) : otherwise;
}

bool tok_config_class(const cJSON *config, const char *const *names, size_t n)
{
    const cJSON *v = json_find(config, "tokenizer_class");

    for (size_t i = 0; i < n && cJSON_IsString(v); i++) {
        size_t len = strlen(names[i]);

        if (strncmp(v->valuestring, names[i], len) == 0 &&
            (v->valuestring[len] == '\0' || strcmp(v->valuestring + len, "Fast") == 0))
            return true;
    }
    return false;
}

static bool read_id(const char *text, int64_t *ret)
{
    int64_t id = 0;

    for (size_t i = 0; text[i]; i++) {
        if (text[i] < '0' || text[i] > '9' || i > 9)
            return false;
        id = id * 10 + (text[i] - '0');
    }
    *ret = id;
    return text[0] != '\0';
}

/* What is no token with an id is passed over. */
bool tok_config_added(const cJSON *config, struct tok_config_added *next)
{
    const cJSON *list = json_find(config, "added_tokens_decoder");
    const cJSON *entry = next->entry ? next->entry->next : cJSON_IsObject(list) ? list->child : NULL;

    for (; entry; entry = entry->next) {
        const cJSON *content = json_find(entry, "content");
        int64_t id;

        if (!cJSON_IsString(content) || !content->valuestring[0] || !read_id(entry->string, &id))
            continue;
        *next = (struct tok_config_added){ .entry = entry, .id = id, .text = content->valuestring,
                                           .special = tok_config_bool(entry, "special", false),
                                           .lstrip = tok_config_bool(entry, "lstrip", false),
                                           .rstrip = tok_config_bool(entry, "rstrip", false),
                                           .single_word = tok_config_bool(entry, "single_word", false),
                                           .normalized = tok_config_bool(entry, "normalized", false) };
        return true;
    }
    return false;
}

/* Whether a vocabulary holds `text`: SentencePiece's has a space for each U+2581. */
static bool is_text(struct tok_str s, const char *text)
{
    uint32_t i = 0;

    for (; *text && i < s.len; i++) {
        bool mark = s.text[i] == ' ' && strncmp(text, "\xE2\x96\x81", 3) == 0;

        if (!mark && s.text[i] != *text)
            return false;
        text += mark ? 3 : 1;
    }
    return i == s.len && !*text;
}

static int fill_one(const struct tok_config_added *a, struct tokenizer *t, struct err *err)
{
    enum token_kind kind = a->special ? TOK_CONTROL : TOK_USER_DEFINED;
    struct tok_str s = a->id < TOKENIZER_MAX_VOCAB ? vocab_text(t->vocab, (int32_t)a->id) : (struct tok_str){ 0 };
    int r;

    if (s.text && !is_text(s, a->text))
        return err_set(err, -EINVAL, "added_tokens_decoder: token %lld is \"%s\", but \"%.*s\" in the vocabulary",
                       (long long)a->id, a->text,
                       (int)s.len, s.text);
    if (s.text) {
        if (a->special && vocab_kind(t->vocab, (int32_t)a->id) != TOK_UNKNOWN)
            vocab_set_kind(t->vocab, (int32_t)a->id, TOK_CONTROL);
        return 0;
    }
    r = a->id >= TOKENIZER_MAX_VOCAB ? -E2BIG : vocab_put(t->vocab, (int32_t)a->id, a->text, strlen(a->text), kind);
    return r < 0 ? err_set(err, r, "added_tokens_decoder: no room for token %lld", (long long)a->id) : 0;
}

int tok_config_fill(const cJSON *config, struct tokenizer *t, struct err *err)
{
    struct tok_config_added a = { 0 };
    int r = 0;

    while (r == 0 && tok_config_added(config, &a))
        r = fill_one(&a, t, err);
    return r;
}

/* The flags that tokens have there, for those that are listed; ids ascend. */
static void put_flags(const cJSON *config, struct added_token *tokens, size_t n)
{
    struct tok_config_added a = { 0 };

    while (tok_config_added(config, &a)) {
        size_t low = 0, high = n;

        while (low < high) {
            size_t mid = low + (high - low) / 2;

            if (tokens[mid].id < a.id)
                low = mid + 1;
            else
                high = mid;
        }
        if (low == n || tokens[low].id != a.id)
            continue;
        tokens[low].lstrip = a.lstrip;
        tokens[low].rstrip = a.rstrip;
        tokens[low].single_word = a.single_word;
    }
}

int added_of_vocab(const struct vocab *v, uint32_t own, const cJSON *config, struct added **ret)
{
    const uint32_t size = vocab_size(v);
    CLEANUP(mem_free) struct added_token *tokens = calloc((size_t)size + 1, sizeof *tokens);
    size_t n = 0;

    if (!tokens)
        return -ENOMEM;
    for (uint32_t id = 0; id < size; id++) {
        enum token_kind kind = vocab_kind(v, (int32_t)id);

        if (kind == TOK_CONTROL || kind == TOK_UNKNOWN || (kind == TOK_USER_DEFINED && id >= own))
            tokens[n++] = (struct added_token){ .text = vocab_text(v, (int32_t)id), .id = (int32_t)id,
                                                .special = kind != TOK_USER_DEFINED };
    }
    put_flags(config, tokens, n);
    return added_new(tokens, n, ret);
}

int tok_one_id(int32_t id, int32_t **ret, size_t *ret_n)
{
    if (id < 0)
        return 0;
    *ret = malloc(sizeof **ret);
    if (!*ret)
        return -ENOMEM;
    **ret = id;
    *ret_n = 1;
    return 0;
}

int tok_config_edges(const cJSON *config, struct tokenizer *t, bool adds_bos, bool adds_eos)
{
    int r = 0;

    if (tok_config_bool(config, "add_bos_token", adds_bos))
        r = tok_one_id(t->bos, &t->prefix, &t->n_prefix);
    if (r == 0 && tok_config_bool(config, "add_eos_token", adds_eos))
        r = tok_one_id(t->eos, &t->suffix, &t->n_suffix);
    return r;
}
