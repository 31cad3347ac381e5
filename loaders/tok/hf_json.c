/* tokenizer.json: the file is read once from front to back. The model, which is nearly all of it, becomes lists of views; the
 * other sections are cut out as they stand and parsed into trees. Only then is it known how the vocabulary is held
 * (hf.h, split.h), and everything is built.
 *
 * `truncation` and `padding` are checked and left aside, as transformers does: a prompt is never cut silently.
 */
#include "loaders/tok/hf.h"

#include "base/buf.h"
#include "base/err.h"
#include "base/file.h"
#include "base/json.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum section { ADDED_TOKENS, DECODER, NORMALIZER, PADDING, POST_PROCESSOR, PRE_TOKENIZER, TRUNCATION, N_SECTIONS };
static const char *const section_names[N_SECTIONS] = {
    "added_tokens", "decoder", "normalizer", "padding", "post_processor", "pre_tokenizer", "truncation",
};

static const struct json_limits limits = { .bytes = TOKENIZER_MAX_FILE, .depth = JSON_PULL_DEPTH, .string_bytes = 1 << 26, .values = 1 << 23 };

struct file {
    const char *name;
    struct json_pull pull;
    struct tok_str slices[N_SECTIONS];
    cJSON *sections[N_SECTIONS];        /* NULL: null, or not there */
    cJSON *config;
    bool has_model, raw;
    struct hf_model model;
    struct hf_normalizer normalizer;
    struct hf_splitter splitter;
    struct hf_decoder decoder;
    struct hf_added added;
    struct token_list prefix, suffix;
    struct tokenizer *t;
    struct err *err;
};

static void file_fini(struct file *f)
{
    json_pull_fini(&f->pull);
    for (int i = 0; i < N_SECTIONS; i++)
        cJSON_Delete(f->sections[i]);
    cJSON_Delete(f->config);
    hf_model_fini(&f->model);
    hf_normalizer_fini(&f->normalizer);
    hf_splitter_fini(&f->splitter);
    hf_decoder_fini(&f->decoder);
    hf_added_fini(&f->added);
    token_list_fini(&f->prefix);
    token_list_fini(&f->suffix);
    tokenizer_close(f->t);
}

static int no_memory(struct file *f)
{
    return err_set(f->err, -ENOMEM, "%s: no memory for its tokenizer", f->name);
}

static int in_file(struct file *f, int e)
{
    if (e < 0)
        err_place(f->err, "%s", f->name);
    return e;
}

static bool str_is(struct tok_str s, const char *text)
{
    return s.len == strlen(text) && memcmp(s.text, text, s.len) == 0;
}

static struct tok_str str_of(const char *text)
{
    return (struct tok_str){ text, (uint32_t)strlen(text) };
}

/* Reading. */

static int read_version(struct file *f)
{
    struct tok_str version;
    int e = json_pull_string(&f->pull, &version);

    if (e == 0 && !str_is(version, "1.0"))
        return json_pull_refuse(&f->pull, -ENOTSUP, "version \"%.*s\" is not supported, only \"1.0\"",
                                (int)(version.len < 20 ? version.len : 20), version.text);
    return e;
}

static int read_member(struct file *f, struct tok_str key)
{
    if (str_is(key, "version"))
        return read_version(f);
    if (str_is(key, "model")) {
        if (f->has_model)
            return json_pull_refuse(&f->pull, -EINVAL, "a second model");
        f->has_model = true;
        return hf_model_read(&f->pull, &f->model);
    }
    for (int i = 0; i < N_SECTIONS; i++)
        if (str_is(key, section_names[i])) {
            if (f->slices[i].text)
                return json_pull_refuse(&f->pull, -EINVAL, "a second %s", section_names[i]);
            return json_pull_slice(&f->pull, &f->slices[i]);
        }
    return json_pull_skip(&f->pull);
}

static int parse_section(struct file *f, int i)
{
    int e = f->slices[i].text ? json_parse(f->slices[i].text, f->slices[i].len, &limits, &f->sections[i], f->err) : 0;

    if (e < 0) {
        err_place(f->err, "%s", section_names[i]);
        return in_file(f, e);
    }
    if (cJSON_IsNull(f->sections[i])) {
        cJSON_Delete(f->sections[i]);
        f->sections[i] = NULL;
    }
    return 0;
}

static int read_file(struct file *f)
{
    struct tok_str key;
    int e = json_pull_open(&f->pull, '{');

    while (e == 0 && (e = json_pull_key(&f->pull, &key)) > 0)
        e = read_member(f, key);
    if (e == 0)
        e = json_pull_end(&f->pull);
    for (int i = 0; i < N_SECTIONS && e == 0; i++)
        e = parse_section(f, i);
    if (e == 0 && !f->has_model)
        e = err_set(f->err, -EINVAL, "%s: there is no model", f->name);
    return e;
}

static int check_object(struct file *f, enum section i)
{
    if (f->sections[i] && !cJSON_IsObject(f->sections[i]))
        return err_set(f->err, -EINVAL, "%s: %s must be an object, but is %s", f->name, section_names[i], json_type_name(f->sections[i]));
    return 0;
}

/* Whether text can stay bytes from the splitter through the model to the decoder. */
static bool stays_bytes(const struct file *f)
{
    const struct hf_splitter *s = &f->splitter;
    const struct hf_model *m = &f->model;

    if (m->kind != HF_BPE || m->byte_fallback || m->continuing_prefix.len || m->end_suffix.len)
        return false;
    for (size_t i = 0; i < f->normalizer.n; i++)
        if (f->normalizer.steps[i].op == NORMALIZE_BYTE_LEVEL)
            return false;
    for (size_t i = 0; i + 1 < s->n; i++)
        if (s->steps[i].op == SPLIT_ALPHABET)
            return false;
    return s->n && s->steps[s->n - 1].op == SPLIT_ALPHABET && f->decoder.n && f->decoder.steps[0].op == DECODE_BYTE_LEVEL;
}

static int read_parts(struct file *f)
{
    int e;

    if ((e = check_object(f, TRUNCATION)) < 0 || (e = check_object(f, PADDING)) < 0)
        return e;
    if ((e = hf_normalizer_read(f->sections[NORMALIZER], &f->normalizer, f->err)) < 0 ||
        (e = hf_splitter_read(f->sections[PRE_TOKENIZER], &f->splitter, f->err)) < 0 ||
        (e = hf_decoder_read(f->sections[DECODER], &f->decoder, f->err)) < 0 ||
        (e = hf_post_read(f->sections[POST_PROCESSOR], &f->prefix, &f->suffix, f->err)) < 0)
        return in_file(f, e);
    f->raw = stays_bytes(f);
    if (f->raw) {
        f->splitter.n--;
        f->decoder.steps[0].flag = true;
    }
    return 0;
}

/* Added tokens. */

static int read_flag(const cJSON *j, const char *key, bool required, bool *ret, struct err *err)
{
    int e = json_get_bool(j, key, ret, err);

    return e == JSON_ABSENT && required ? err_set(err, -EINVAL, "'%s' is missing", key) : e < 0 ? e : 0;
}

/* required: as tokenizer.json has them; else the flags have the defaults of transformers. */
static int read_token(const cJSON *j, bool required, struct hf_token *ret, struct err *err)
{
    const char *content;
    int e = cJSON_IsObject(j) ? json_get_string(j, "content", &content, err) : JSON_ABSENT;

    if (e == JSON_ABSENT)
        return err_set(err, -EINVAL, "a token without 'content'");
    *ret = (struct hf_token){ .content = str_of(e < 0 ? "" : content) };
    if (e < 0 || (e = read_flag(j, "special", required, &ret->special, err)) < 0)
        return e;
    ret->normalized = !ret->special;
    if ((e = read_flag(j, "single_word", required, &ret->single_word, err)) < 0 || (e = read_flag(j, "lstrip", required, &ret->lstrip, err)) < 0 ||
        (e = read_flag(j, "rstrip", required, &ret->rstrip, err)) < 0)
        return e;
    return read_flag(j, "normalized", required, &ret->normalized, err);
}

static int read_added(const cJSON *array, struct hf_token *tokens, struct err *err)
{
    const cJSON *j;
    size_t i = 0;
    int64_t id;

    cJSON_ArrayForEach(j, array) {
        int e = read_token(j, true, &tokens[i], err);

        if (e == 0 && (e = json_get_int(j, "id", 0, INT32_MAX, &id, err)) == JSON_ABSENT)
            e = err_set(err, -EINVAL, "'id' is missing");
        if (e < 0) {
            err_place(err, "added_tokens[%zu]", i);
            return e;
        }
        i++;
    }
    return 0;
}

static int add_tokens(struct file *f, const struct hf_token *tokens, size_t n)
{
    return hf_added_add(&f->added, tokens, n, f->model.n_entries, f->raw, f->t, f->err);
}

static int add_file_tokens(struct file *f)
{
    const cJSON *array = f->sections[ADDED_TOKENS];
    size_t n = array ? (size_t)cJSON_GetArraySize(array) : 0;
    CLEANUP(mem_free) struct hf_token *tokens = calloc(n + 1, sizeof *tokens);
    int e;

    if (!tokens)
        return no_memory(f);
    if (array && !cJSON_IsArray(array))
        return err_set(f->err, -EINVAL, "%s: added_tokens must be an array, but is %s", f->name, json_type_name(array));
    if ((e = read_added(array, tokens, f->err)) < 0 || (e = add_tokens(f, tokens, n)) < 0)
        return in_file(f, e);
    return 0;
}

/* tokenizer_config.json. */

static const char *const special_keys[] = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
};
enum { N_SPECIAL_KEYS = sizeof special_keys / sizeof special_keys[0], MAX_CONFIG_TOKENS = 1 << 17 };

/* A token's name is a text or an object with 'content'. NULL: not given. */
static const char *content_of(const cJSON *j)
{
    if (cJSON_IsObject(j))
        j = cJSON_GetObjectItemCaseSensitive(j, "content");
    return cJSON_GetStringValue(j);
}

static const char *config_token(const struct file *f, const char *key)
{
    return content_of(cJSON_GetObjectItemCaseSensitive(f->config, key));
}

static bool is_named_special(const struct file *f, struct tok_str content)
{
    const cJSON *more = cJSON_GetObjectItemCaseSensitive(f->config, "additional_special_tokens"), *j;

    for (int i = 0; i < N_SPECIAL_KEYS; i++) {
        const char *name = config_token(f, special_keys[i]);

        if (name && str_is(content, name))
            return true;
    }
    cJSON_ArrayForEach(j, more) {
        const char *name = content_of(j);

        if (name && str_is(content, name))
            return true;
    }
    return false;
}

struct numbered { int64_t id; struct hf_token token; };

static int by_id(const void *a, const void *b)
{
    const struct numbered *x = a, *y = b;

    return x->id < y->id ? -1 : x->id > y->id;
}

static bool is_added_so(const struct file *f, const struct hf_token *token)
{
    const struct hf_token *last = hf_added_find(&f->added, token->content);

    return last && last->single_word == token->single_word && last->lstrip == token->lstrip && last->rstrip == token->rstrip &&
           last->normalized == token->normalized && last->special == token->special;
}

static int read_config_tokens(struct file *f, const cJSON *object, struct numbered *tokens)
{
    const cJSON *j;
    size_t i = 0;

    cJSON_ArrayForEach(j, object) {
        char *end;
        int e = read_token(j, false, &tokens[i].token, f->err);

        tokens[i].id = strtoll(j->string, &end, 10);
        if (e == 0 && (*end || end == j->string || tokens[i].id < 0 || tokens[i].id > INT32_MAX))
            e = err_set(f->err, -EINVAL, "\"%s\" is no id", j->string);
        if (e < 0) {
            err_place(f->err, "tokenizer_config.json: added_tokens_decoder");
            return in_file(f, e);
        }
        i++;
    }
    return 0;
}

/* added_tokens_decoder, in the order of its ids; what tokenizer.json says alike is passed over. */
static int add_config_tokens(struct file *f)
{
    const cJSON *object = cJSON_GetObjectItemCaseSensitive(f->config, "added_tokens_decoder");
    size_t n = cJSON_IsObject(object) ? (size_t)cJSON_GetArraySize(object) : 0;
    CLEANUP(mem_free) struct numbered *tokens = calloc(n + 1, sizeof *tokens);
    int e = 0;

    if (!tokens)
        return no_memory(f);
    if (n > MAX_CONFIG_TOKENS)
        return err_set(f->err, -E2BIG, "%s: tokenizer_config.json: more than %d added tokens", f->name, MAX_CONFIG_TOKENS);
    if (n && (e = read_config_tokens(f, object, tokens)) < 0)
        return e;
    qsort(tokens, n, sizeof *tokens, by_id);
    for (size_t i = 0; i < n && e == 0; i++) {
        if (is_added_so(f, &tokens[i].token))
            continue;
        tokens[i].token.special = tokens[i].token.special || is_named_special(f, tokens[i].token.content);
        e = add_tokens(f, &tokens[i].token, 1);
    }
    return in_file(f, e);
}

static int add_named(struct file *f, const char *name)
{
    const struct hf_token token = { .content = str_of(name ? name : ""), .special = true };

    return !name || hf_added_find(&f->added, token.content) ? 0 : in_file(f, add_tokens(f, &token, 1));
}

static int add_named_tokens(struct file *f)
{
    const cJSON *more = cJSON_GetObjectItemCaseSensitive(f->config, "additional_special_tokens"), *j;
    int e = 0;

    for (int i = 0; i < N_SPECIAL_KEYS && e == 0; i++)
        e = add_named(f, config_token(f, special_keys[i]));
    if (cJSON_IsArray(more))
        cJSON_ArrayForEach(j, more)
            if (e == 0)
                e = add_named(f, content_of(j));
    return e;
}

static int32_t find_token(const struct file *f, const char *name)
{
    const struct hf_token *added = name ? hf_added_find(&f->added, str_of(name)) : NULL;

    return added ? f->added.ids[added - f->added.tokens] : name ? hf_vocab_find(f->t, f->raw, str_of(name)) : -1;
}

/* The first of these that is a special token, for files that name none. */
static int32_t guess(const struct file *f, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int32_t id = find_token(f, names[i]);

        if (id >= 0 && vocab_kind(f->t->vocab, id) == TOK_CONTROL)
            return id;
    }
    return -1;
}

static void find_bos_eos(struct file *f)
{
    static const char *const bos[] = { "<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "<｜begin▁of▁sentence｜>", "[CLS]" };
    static const char *const eos[] = { "</s>", "<eos>", "<|eot_id|>", "<|im_end|>", "<|end_of_text|>", "<|endoftext|>", "<｜end▁of▁sentence｜>", "[SEP]" };
    struct tokenizer *t = f->t;

    t->bos = find_token(f, config_token(f, "bos_token"));
    t->eos = find_token(f, config_token(f, "eos_token"));
    if (f->config)
        return;
    t->bos = t->n_prefix ? t->prefix[0] : guess(f, bos, sizeof bos / sizeof bos[0]);
    t->eos = t->n_suffix ? t->suffix[t->n_suffix - 1] : guess(f, eos, sizeof eos / sizeof eos[0]);
}

/* The classes that put their own post-processor in the place of the file's. */
static bool builds_own_post(const char *class)
{
    static const char *const classes[] = { "CodeLlamaTokenizer", "GemmaTokenizer", "LlamaTokenizer" };

    for (size_t i = 0; class && i < sizeof classes / sizeof classes[0]; i++)
        if (strncmp(class, classes[i], strlen(classes[i])) == 0)
            return true;
    return false;
}

static int apply_config_post(struct file *f)
{
    const char *class = NULL;
    bool bos = true, eos = false;
    int32_t id;
    int e = json_get_string(f->config, "tokenizer_class", &class, f->err);

    if (e < 0 || !builds_own_post(class))
        return e < 0 ? in_file(f, e) : 0;
    if ((e = json_get_bool(f->config, "add_bos_token", &bos, f->err)) < 0 || (e = json_get_bool(f->config, "add_eos_token", &eos, f->err)) < 0)
        return in_file(f, e);
    f->prefix.n = f->suffix.n = 0;
    id = find_token(f, config_token(f, "bos_token"));
    if (bos && id >= 0 && token_list_add(&f->prefix, id) < 0)
        return no_memory(f);
    id = find_token(f, config_token(f, "eos_token"));
    return eos && id >= 0 && token_list_add(&f->suffix, id) < 0 ? no_memory(f) : 0;
}

/* Building. */

static int build_normalizer(struct file *f)
{
    size_t n = f->normalizer.n;

    f->normalizer.n = 0;                /* its steps are taken over, whatever comes of it */
    return n && normalizer_new(f->normalizer.steps, n, &f->t->normalizer) < 0 ? no_memory(f) : 0;
}

static int build_splitter(struct file *f)
{
    struct hf_splitter *s = &f->splitter;
    size_t n = s->n, known = 0;

    while (known < n && s->steps[known].op == SPLIT_SCAN)
        known++;
    if (known == n && n < SCAN_MAX_STAGES) {
        for (size_t i = 0; i < n; i++)
            f->t->scans[i] = s->steps[i].scan;
        return 0;
    }
    s->n = 0;
    return splitter_new(s->steps, n, &f->t->splitter) < 0 ? no_memory(f) : 0;
}

static int build_decoder(struct file *f)
{
    size_t n = f->decoder.n;
    int e;

    if (n == 0)                         /* an empty sequence joins */
        return 0;
    f->decoder.n = 0;
    e = decoder_new(f->decoder.steps, n, &f->t->decoder);
    if (e == 0)
        e = decoder_bind(f->t->decoder, f->t->vocab);
    return e < 0 ? err_set(f->err, e, "%s: its decoder can not be made", f->name) : 0;
}

static int check_ids(struct file *f, const struct token_list *list)
{
    for (size_t i = 0; i < list->n; i++)
        if (!vocab_text(f->t->vocab, list->ids[i]).text)
            return err_set(f->err, -EINVAL, "%s: post_processor: id %d is no token", f->name, list->ids[i]);
    return 0;
}

static int build_post(struct file *f)
{
    int e = f->config ? apply_config_post(f) : 0;

    if (e < 0 || (e = check_ids(f, &f->prefix)) < 0 || (e = check_ids(f, &f->suffix)) < 0)
        return e;
    f->t->n_prefix = f->prefix.n;
    f->t->n_suffix = f->suffix.n;
    f->t->prefix = STEAL(f->prefix.ids);
    f->t->suffix = STEAL(f->suffix.ids);
    find_bos_eos(f);
    if (tokenizer_add_end(f->t, f->t->eos) < 0)
        return no_memory(f);
    return 0;
}

/* Whether no byte of a text is dropped, or is one unknown with its neighbours. */
static bool has_all_bytes(const struct file *f)
{
    for (int i = 0; i < 256; i++) {
        const char byte = (char)i;
        int32_t id = f->raw ? vocab_find(f->t->vocab, &byte, 1) : -1;

        if (id < 0 || vocab_kind(f->t->vocab, id) != TOK_NORMAL)
            return false;
    }
    return true;
}

/* By how much a text may shrink before it is cut; 0: to nothing. */
static size_t shrinks(const struct file *f)
{
    enum { COMPOSED = 3 };              /* three letters of Hangul are one syllable */
    size_t by = 1;

    for (size_t i = 0; i < f->normalizer.n; i++) {
        if (f->normalizer.steps[i].op == NORMALIZE_FORM)
            by *= COMPOSED;
        else if (f->normalizer.steps[i].op != NORMALIZE_PREPEND && f->normalizer.steps[i].op != NORMALIZE_BYTE_LEVEL)
            return 0;
    }
    for (size_t i = 0; i < f->splitter.n; i++) {
        const struct split_step *s = &f->splitter.steps[i];

        if (s->behavior == SPLIT_REMOVED && s->op != SPLIT_PREFIX_SPACE && s->op != SPLIT_ALPHABET && s->op != SPLIT_METASPACE)
            return 0;
    }
    for (size_t i = 0; i < f->added.n; i++)
        if (f->added.tokens[i].lstrip || f->added.tokens[i].rstrip)
            return 0;
    return has_all_bytes(f) ? by : 0;
}

static int build(struct file *f)
{
    size_t by;
    int e;

    if (tokenizer_new(&f->t) < 0)
        return no_memory(f);
    if ((e = hf_vocab_build(&f->model, f->raw, f->name, f->t, f->err)) < 0 || (e = add_file_tokens(f)) < 0 ||
        (f->config && ((e = add_config_tokens(f)) < 0 || (e = add_named_tokens(f)) < 0)))
        return e;
    hf_added_kinds(&f->added, f->t);
    for (size_t i = 0; i < f->added.n; i++)
        if (f->added.tokens[i].content.len > f->t->longest)
            f->t->longest = f->added.tokens[i].content.len;
    by = shrinks(f);
    f->t->longest = by && f->t->longest <= SIZE_MAX / by ? f->t->longest * by : 0;
    snprintf(f->t->kind, sizeof f->t->kind, "%s", f->raw ? "byte-level BPE" : f->model.kind == HF_BPE ? "BPE" :
             f->model.kind == HF_UNIGRAM ? "Unigram" : f->model.kind == HF_WORDPIECE ? "WordPiece" : "WordLevel");
    if ((e = build_normalizer(f)) < 0 || (e = hf_model_build(&f->model, f->raw, f->name, f->t, f->err)) < 0 ||
        (e = build_post(f)) < 0)
        return e;
    if ((e = hf_added_build(&f->added, f->t, f->err)) < 0)
        return in_file(f, e);
    return (e = build_splitter(f)) < 0 ? e : build_decoder(f);
}

static int parse_config(struct file *f, const char *config, size_t len)
{
    int e = json_parse(config, len, &limits, &f->config, f->err);

    if (e == 0 && !cJSON_IsObject(f->config))
        e = err_set(f->err, -EINVAL, "must be an object, but is %s", json_type_name(f->config));
    if (e < 0)
        err_place(f->err, "tokenizer_config.json");
    return in_file(f, e);
}

int hf_open(const char *name, const char *json, size_t len, const char *config, size_t config_len, struct tokenizer **ret,
            struct err *err)
{
    __attribute__((cleanup(file_fini))) struct file f = { .name = name, .err = err, .added = HF_ADDED_INIT };
    int e;

    json_pull_init(&f.pull, name, json, len, err);
    if (len > TOKENIZER_MAX_FILE)
        return err_set(err, -E2BIG, "%s: a file of %zu bytes, at most %d are allowed", name, len, TOKENIZER_MAX_FILE);
    if ((config && (e = parse_config(&f, config, config_len)) < 0) || (e = read_file(&f)) < 0 || (e = read_parts(&f)) < 0 ||
        (e = build(&f)) < 0)
        return e;
    *ret = STEAL(f.t);
    return 0;
}

int tokenizer_open_json(const char *name, const char *json, size_t len, struct tokenizer **ret, struct err *err)
{
    return hf_open(name, json, len, NULL, 0, ret, err);
}

int hf_open_folder(const char *folder, struct tokenizer **ret, struct err *err)
{
    BUF_LOCAL path = BUF_INIT;
    BUF_LOCAL json = BUF_INIT;
    BUF_LOCAL config = BUF_INIT;
    struct err absent = { 0 };
    int e;

    buf_printf(&path, "%s/tokenizer_config.json", folder);
    e = file_read(buf_str(&path), TOKENIZER_MAX_FILE, &config, &absent);
    if (e < 0 && e != -ENOENT)
        return err_set(err, e, "%s", err_text(&absent));
    buf_clear(&path);
    buf_printf(&path, "%s/tokenizer.json", folder);
    if (path.failed)
        return err_set(err, -ENOMEM, "%s: no memory for its path", folder);
    if ((e = file_read(buf_str(&path), TOKENIZER_MAX_FILE, &json, err)) < 0)
        return e;
    return hf_open(buf_str(&path), json.data, json.len, config.data, config.len, ret, err);
}
