/* The sections of a tokenizer.json that are small: what is done to a text before and after the model. */
#include "loaders/tok/hf.h"

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/utf8.h"
#include "loaders/tok/charsmap.h"
#include "loaders/tok/regex.h"
#include "loaders/tok/scan.h"

#include <errno.h>
#include <string.h>

enum { MAX_DEPTH = 16 };

#define GPT2_REGEX "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* Getters for what must be there, or has a default. */

static int need(int e, const char *key, struct err *err)
{
    return e == JSON_ABSENT ? err_set(err, -EINVAL, "'%s' is missing", key) : e;
}

static int need_bool(const cJSON *j, const char *key, bool *ret, struct err *err)
{
    return need(json_get_bool(j, key, ret, err), key, err);
}

static int may_bool(const cJSON *j, const char *key, bool *ret, struct err *err)
{
    int e = json_get_bool(j, key, ret, err);

    return e < 0 ? e : 0;
}

static int need_text(const cJSON *j, const char *key, struct tok_str *ret, struct err *err)
{
    const char *text;
    int e = need(json_get_string(j, key, &text, err), key, err);

    if (e == 0)
        *ret = (struct tok_str){ text, (uint32_t)strlen(text) };
    return e;
}

static int need_int(const cJSON *j, const char *key, int64_t max, int64_t *ret, struct err *err)
{
    return need(json_get_int(j, key, 0, max, ret, err), key, err);
}

static int need_character(const cJSON *j, const char *key, uint32_t *ret, struct err *err)
{
    struct tok_str s;
    int e = need_text(j, key, &s, err);

    if (e < 0)
        return e;
    if (!s.len || utf8_decode(s.text, s.len, ret) != (int)s.len)
        return err_set(err, -EINVAL, "'%s' must be one character, but is \"%s\"", key, s.text);
    return 0;
}

static int type_of(const cJSON *j, const char **ret, struct err *err)
{
    if (!cJSON_IsObject(j))
        return err_set(err, -EINVAL, "must be an object, but is %s", json_type_name(j));
    return need(json_get_string(j, "type", ret, err), "type", err);
}

static int too_many(struct err *err)
{
    return err_set(err, -E2BIG, "too many steps");
}

/* {"String": …} or {"Regex": …}. */
static int read_pattern(const cJSON *j, struct pattern **ret, struct err *err)
{
    const cJSON *pattern;
    const char *text;
    int e = need(json_get_object(j, "pattern", &pattern, err), "pattern", err);

    if (e < 0)
        return e;
    if ((e = json_get_string(pattern, "String", &text, err)) == 0)
        return pattern_string(text, strlen(text), ret) < 0 ? err_set(err, -ENOMEM, "no memory for a pattern") : 0;
    if (e < 0 || (e = json_get_string(pattern, "Regex", &text, err)) < 0)
        return e;
    if (e == JSON_ABSENT)
        return err_set(err, -EINVAL, "'pattern' must have \"String\" or \"Regex\"");
    return pattern_regex(text, strlen(text), ret, err);
}

/* Calls read for each element of the array `key`. */
typedef int (*read_fn)(const cJSON *j, void *to, unsigned depth, struct err *err);

static int read_sequence(const cJSON *j, const char *key, read_fn read, void *to, unsigned depth, struct err *err)
{
    const cJSON *array, *item;
    size_t i = 0;
    int e = need(json_get_array(j, key, &array, err), key, err);

    if (e == 0 && depth > MAX_DEPTH)
        e = err_set(err, -E2BIG, "nested too deeply");
    if (e < 0)
        return e;
    cJSON_ArrayForEach(item, array) {
        if ((e = read(item, to, depth + 1, err)) < 0) {
            err_place(err, "%s[%zu]", key, i);
            return e;
        }
        i++;
    }
    return 0;
}

/* base64, as precompiled_charsmap is written. */

static int base64_value(char c)
{
    return c >= 'A' && c <= 'Z' ? c - 'A' : c >= 'a' && c <= 'z' ? c - 'a' + 26 : c >= '0' && c <= '9' ? c - '0' + 52 :
           c == '+' ? 62 : c == '/' ? 63 : -1;
}

static int read_charsmap(const cJSON *j, struct charsmap **ret, struct err *err)
{
    CLEANUP(mem_free) unsigned char *bytes = NULL;
    struct tok_str s;
    uint32_t bits = 0;
    size_t n = 0;
    int e = need_text(j, "precompiled_charsmap", &s, err);

    if (e < 0)
        return e;
    bytes = malloc(s.len / 4 * 3 + 3);
    if (!bytes)
        return err_set(err, -ENOMEM, "precompiled_charsmap: no memory for %u bytes", s.len);
    while (s.len && s.text[s.len - 1] == '=')
        s.len--;
    for (uint32_t i = 0; i < s.len; i++) {
        int value = base64_value(s.text[i]);

        if (value < 0)
            return err_set(err, -EINVAL, "precompiled_charsmap: character %u is not base64", i);
        bits = bits << 6 | (uint32_t)value;
        if (i % 4 != 0)
            bytes[n++] = (unsigned char)(bits >> (6 - i % 4 * 2));
    }
    return charsmap_new(bytes, n, ret, err);
}

/* Normalisers. */

void hf_normalizer_fini(struct hf_normalizer *n)
{
    for (size_t i = 0; i < n->n; i++) {
        pattern_free(n->steps[i].pattern);
        charsmap_free(n->steps[i].map);
    }
    n->n = 0;
}

static int read_bert_normalizer(const cJSON *j, struct normalize_step *s, struct err *err)
{
    int e;

    if ((e = need_bool(j, "clean_text", &s->clean, err)) < 0 || (e = need_bool(j, "handle_chinese_chars", &s->chinese, err)) < 0 ||
        (e = need_bool(j, "lowercase", &s->lower, err)) < 0)
        return e;
    s->accents = s->lower;
    return may_bool(j, "strip_accents", &s->accents, err);
}

static int read_normalize_step(const cJSON *j, struct normalize_step *s, struct err *err)
{
    int e;

    switch (s->op) {
    case NORMALIZE_STRIP:
        e = need_bool(j, "strip_left", &s->left, err);
        return e < 0 ? e : need_bool(j, "strip_right", &s->right, err);
    case NORMALIZE_REPLACE:
        e = need_text(j, "content", &s->text, err);
        return e < 0 ? e : read_pattern(j, &s->pattern, err);
    case NORMALIZE_PREPEND: return need_text(j, "prepend", &s->text, err);
    case NORMALIZE_PRECOMPILED: return read_charsmap(j, &s->map, err);
    case NORMALIZE_BERT: return read_bert_normalizer(j, s, err);
    case NORMALIZE_FORM: case NORMALIZE_LOWER: case NORMALIZE_STRIP_ACCENTS: case NORMALIZE_NMT: case NORMALIZE_BYTE_LEVEL: break;
    }
    return 0;
}

static int read_normalizer(const cJSON *j, void *to, unsigned depth, struct err *err)
{
    static const struct { const char *type; struct normalize_step step; } types[] = {
        { "Bert", { .op = NORMALIZE_BERT } },
        { "BertNormalizer", { .op = NORMALIZE_BERT } },
        { "ByteLevel", { .op = NORMALIZE_BYTE_LEVEL } },
        { "Lowercase", { .op = NORMALIZE_LOWER } },
        { "NFC", { .op = NORMALIZE_FORM, .form = UNICODE_NFC } },
        { "NFD", { .op = NORMALIZE_FORM, .form = UNICODE_NFD } },
        { "NFKC", { .op = NORMALIZE_FORM, .form = UNICODE_NFKC } },
        { "NFKD", { .op = NORMALIZE_FORM, .form = UNICODE_NFKD } },
        { "Nmt", { .op = NORMALIZE_NMT } },
        { "Precompiled", { .op = NORMALIZE_PRECOMPILED } },
        { "Prepend", { .op = NORMALIZE_PREPEND } },
        { "Replace", { .op = NORMALIZE_REPLACE } },
        { "Strip", { .op = NORMALIZE_STRIP } },
        { "StripAccents", { .op = NORMALIZE_STRIP_ACCENTS } },
    };
    struct hf_normalizer *n = to;
    const char *type;
    int e = type_of(j, &type, err);

    if (e < 0)
        return e;
    if (strcmp(type, "Sequence") == 0)
        return read_sequence(j, "normalizers", read_normalizer, n, depth, err);
    if (n->n == HF_MAX_STEPS)
        return too_many(err);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(types[i].type, type) == 0) {
            n->steps[n->n] = types[i].step;
            if ((e = read_normalize_step(j, &n->steps[n->n++], err)) < 0)
                err_place(err, "%s", type);
            return e;
        }
    return err_set(err, -ENOTSUP, "type \"%s\" is not supported", type);
}

int hf_normalizer_read(const cJSON *j, struct hf_normalizer *ret, struct err *err)
{
    int e = j ? read_normalizer(j, ret, 0, err) : 0;

    err_place(err, "normalizer");
    return e;
}

/* Pre-tokenisers. */

void hf_splitter_fini(struct hf_splitter *s)
{
    for (size_t i = 0; i < s->n; i++)
        pattern_free(s->steps[i].pattern);
    s->n = 0;
}

static int add_split(struct hf_splitter *s, struct split_step step, struct err *err)
{
    if (s->n == HF_MAX_STEPS) {
        pattern_free(step.pattern);
        return too_many(err);
    }
    s->steps[s->n++] = step;
    return 0;
}

/* An isolated expression: the one that is known by its text, or as it is. */
static int add_isolated(struct hf_splitter *s, const char *regex, struct err *err)
{
    struct split_step step = { .op = SPLIT_SCAN, .behavior = SPLIT_ISOLATED, .scan = scan_of_regex(regex, strlen(regex)) };
    int e;

    if (!step.scan) {
        step.op = SPLIT_PATTERN;
        if ((e = pattern_regex(regex, strlen(regex), &step.pattern, err)) < 0)
            return e;
    }
    return add_split(s, step, err);
}

static int read_byte_level(const cJSON *j, struct hf_splitter *s, struct err *err)
{
    bool prefix, use_regex = true;
    int e;

    if ((e = need_bool(j, "add_prefix_space", &prefix, err)) < 0 || (e = may_bool(j, "use_regex", &use_regex, err)) < 0)
        return e;
    if (prefix && (e = add_split(s, (struct split_step){ .op = SPLIT_PREFIX_SPACE }, err)) < 0)
        return e;
    if (use_regex && (e = add_isolated(s, GPT2_REGEX, err)) < 0)
        return e;
    return add_split(s, (struct split_step){ .op = SPLIT_ALPHABET }, err);
}

static int read_behavior(const cJSON *j, enum split_behavior *ret, struct err *err)
{
    static const char *const names[] = { "Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous" };
    const char *name;
    int e = json_get_string(j, "behavior", &name, err);

    if (e != 0)
        return e;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i], name) == 0) {
            *ret = (enum split_behavior)i;
            return 0;
        }
    return err_set(err, -ENOTSUP, "behavior \"%s\" is not supported", name);
}

static int read_split(const cJSON *j, struct hf_splitter *s, struct err *err)
{
    struct split_step step = { .op = SPLIT_PATTERN };
    const cJSON *pattern;
    const char *regex;
    int e = need(read_behavior(j, &step.behavior, err), "behavior", err);

    if (e < 0 || (e = need_bool(j, "invert", &step.invert, err)) < 0)
        return e;
    if (step.behavior == SPLIT_ISOLATED && json_get_object(j, "pattern", &pattern, NULL) == 0 &&
        json_get_string(pattern, "Regex", &regex, NULL) == 0)
        return add_isolated(s, regex, err);
    if ((e = read_pattern(j, &step.pattern, err)) < 0)
        return e;
    return add_split(s, step, err);
}

/* Also the decoder's: whether the text begins with one. */
static int read_prepend(const cJSON *j, enum split_prepend *ret, struct err *err)
{
    static const char *const names[] = { "never", "first", "always" };
    const char *name = "always";
    bool prefix = true;
    int e = json_get_string(j, "prepend_scheme", &name, err);

    if (e < 0 || (e = may_bool(j, "add_prefix_space", &prefix, err)) < 0)
        return e;
    for (int i = 0; i < 3; i++)
        if (strcmp(names[i], name) == 0) {
            *ret = (enum split_prepend)i;
            if (!prefix && *ret != SPLIT_PREPEND_NEVER)
                return err_set(err, -EINVAL, "add_prefix_space does not fit prepend_scheme \"%s\"", name);
            return 0;
        }
    return err_set(err, -ENOTSUP, "prepend_scheme \"%s\" is not supported", name);
}

static int read_metaspace(const cJSON *j, struct hf_splitter *s, struct err *err)
{
    struct split_step step = { .op = SPLIT_METASPACE, .cut = true };
    int e;

    if ((e = need_character(j, "replacement", &step.character, err)) < 0 || (e = read_prepend(j, &step.prepend, err)) < 0 ||
        (e = may_bool(j, "split", &step.cut, err)) < 0)
        return e;
    return add_split(s, step, err);
}

static int read_bert_splitter(const cJSON *j, struct hf_splitter *s, struct err *err)
{
    int e = add_split(s, (struct split_step){ .op = SPLIT_SPACE, .behavior = SPLIT_REMOVED }, err);

    return e < 0 ? e : add_split(s, (struct split_step){ .op = SPLIT_PUNCTUATION, .behavior = SPLIT_ISOLATED }, err);
}

static int read_words(const cJSON *j, struct hf_splitter *s, struct err *err)
{
    return add_split(s, (struct split_step){ .op = SPLIT_WORDS }, err);
}

static int read_space(const cJSON *j, struct hf_splitter *s, struct err *err)
{
    return add_split(s, (struct split_step){ .op = SPLIT_SPACE, .behavior = SPLIT_REMOVED }, err);
}

static int read_punctuation(const cJSON *j, struct hf_splitter *s, struct err *err)
{
    struct split_step step = { .op = SPLIT_PUNCTUATION, .behavior = SPLIT_ISOLATED };
    int e = read_behavior(j, &step.behavior, err);

    return e < 0 ? e : add_split(s, step, err);
}

static int read_digits(const cJSON *j, struct hf_splitter *s, struct err *err)
{
    bool individual;
    int e = need_bool(j, "individual_digits", &individual, err);

    if (e < 0)
        return e;
    if (individual && scan_of_regex("\\p{N}", 5))
        return add_isolated(s, "\\p{N}", err);
    return add_split(s, (struct split_step){ .op = SPLIT_DIGITS, .behavior = individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS }, err);
}

static int read_delimiter(const cJSON *j, struct hf_splitter *s, struct err *err)
{
    struct split_step step = { .op = SPLIT_CHARACTER, .behavior = SPLIT_REMOVED };
    int e = need_character(j, "delimiter", &step.character, err);

    return e < 0 ? e : add_split(s, step, err);
}

static int read_scripts(const cJSON *j, struct hf_splitter *s, struct err *err)
{
    return add_split(s, (struct split_step){ .op = SPLIT_SCRIPTS }, err);
}

static int read_length(const cJSON *j, struct hf_splitter *s, struct err *err)
{
    int64_t length = 5;
    int e = json_get_int(j, "length", 1, UINT32_MAX, &length, err);

    return e < 0 ? e : add_split(s, (struct split_step){ .op = SPLIT_LENGTH, .length = (uint32_t)length }, err);
}

static int read_splitter(const cJSON *j, void *to, unsigned depth, struct err *err)
{
    static const struct { const char *type; int (*read)(const cJSON *, struct hf_splitter *, struct err *); } types[] = {
        { "BertPreTokenizer", read_bert_splitter },
        { "ByteLevel", read_byte_level },
        { "CharDelimiterSplit", read_delimiter },
        { "Delimiter", read_delimiter },
        { "Digits", read_digits },
        { "FixedLength", read_length },
        { "Metaspace", read_metaspace },
        { "Punctuation", read_punctuation },
        { "Split", read_split },
        { "UnicodeScripts", read_scripts },
        { "Whitespace", read_words },
        { "WhitespaceSplit", read_space },
    };
    struct hf_splitter *s = to;
    const char *type;
    int e = type_of(j, &type, err);

    if (e < 0)
        return e;
    if (strcmp(type, "Sequence") == 0)
        return read_sequence(j, "pretokenizers", read_splitter, s, depth, err);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(types[i].type, type) == 0) {
            if ((e = types[i].read(j, s, err)) < 0)
                err_place(err, "%s", type);
            return e;
        }
    return err_set(err, -ENOTSUP, "type \"%s\" is not supported", type);
}

int hf_splitter_read(const cJSON *j, struct hf_splitter *ret, struct err *err)
{
    int e = j ? read_splitter(j, ret, 0, err) : 0;

    err_place(err, "pre_tokenizer");
    return e;
}

/* Decoders. */

void hf_decoder_fini(struct hf_decoder *d)
{
    for (size_t i = 0; i < d->n; i++)
        pattern_free(d->steps[i].pattern);
    d->n = 0;
}

static int read_decode_step(const cJSON *j, struct decode_step *s, struct err *err)
{
    enum split_prepend prepend;
    int64_t start, stop;
    uint32_t c;
    int e = 0;

    switch (s->op) {
    case DECODE_WORDPIECE:
        e = need_text(j, "prefix", &s->text, err);
        return e < 0 ? e : need_bool(j, "cleanup", &s->flag, err);
    case DECODE_METASPACE:
        if ((e = need_character(j, "replacement", &c, err)) < 0 || (e = read_prepend(j, &prepend, err)) < 0)
            return e;
        s->flag = prepend != SPLIT_PREPEND_NEVER;
        return need_text(j, "replacement", &s->text, err);
    case DECODE_STRIP:
        if ((e = need_character(j, "content", &c, err)) < 0 || (e = need_int(j, "start", INT32_MAX, &start, err)) < 0 ||
            (e = need_int(j, "stop", INT32_MAX, &stop, err)) < 0)
            return e;
        s->start = (uint32_t)start;
        s->stop = (uint32_t)stop;
        return need_text(j, "content", &s->text, err);
    case DECODE_REPLACE:
        e = need_text(j, "content", &s->with, err);
        return e < 0 ? e : read_pattern(j, &s->pattern, err);
    case DECODE_BPE: return need_text(j, "suffix", &s->text, err);
    case DECODE_CTC:
        if ((e = need_text(j, "pad_token", &s->text, err)) < 0 || (e = need_text(j, "word_delimiter_token", &s->with, err)) < 0)
            return e;
        return need_bool(j, "cleanup", &s->flag, err);
    case DECODE_BYTE_LEVEL: case DECODE_BYTE_FALLBACK: case DECODE_FUSE: case DECODE_JOIN: case DECODE_SENTENCEPIECE: break;
    }
    return 0;
}

static int read_decoder(const cJSON *j, void *to, unsigned depth, struct err *err)
{
    static const struct { const char *type; enum decode_op op; } types[] = {
        { "BPEDecoder", DECODE_BPE },
        { "ByteFallback", DECODE_BYTE_FALLBACK },
        { "ByteLevel", DECODE_BYTE_LEVEL },
        { "CTC", DECODE_CTC },
        { "Fuse", DECODE_FUSE },
        { "Metaspace", DECODE_METASPACE },
        { "Replace", DECODE_REPLACE },
        { "Strip", DECODE_STRIP },
        { "WordPiece", DECODE_WORDPIECE },
    };
    struct hf_decoder *d = to;
    const char *type;
    int e = type_of(j, &type, err);

    if (e < 0)
        return e;
    if (strcmp(type, "Sequence") == 0)
        return read_sequence(j, "decoders", read_decoder, d, depth, err);
    if (d->n == DECODE_MAX_STEPS)
        return too_many(err);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(types[i].type, type) == 0) {
            d->steps[d->n] = (struct decode_step){ .op = types[i].op };
            if ((e = read_decode_step(j, &d->steps[d->n++], err)) < 0)
                err_place(err, "%s", type);
            return e;
        }
    return err_set(err, -ENOTSUP, "type \"%s\" is not supported", type);
}

int hf_decoder_read(const cJSON *j, struct hf_decoder *ret, struct err *err)
{
    int e = 0;

    if (j)
        e = read_decoder(j, ret, 0, err);
    else
        ret->steps[ret->n++] = (struct decode_step){ .op = DECODE_JOIN };
    err_place(err, "decoder");
    return e;
}

/* Post-processors. */

static int add_id(struct token_list *list, int64_t id, struct err *err)
{
    return token_list_add(list, (int32_t)id) < 0 ? err_set(err, -ENOMEM, "no memory for its ids") : 0;
}

/* ["[CLS]", 101] */
static int read_named_id(const cJSON *j, const char *key, int64_t *ret, struct err *err)
{
    const cJSON *pair, *id;
    int e = need(json_get_array(j, key, &pair, err), key, err);

    if (e < 0)
        return e;
    id = cJSON_GetArrayItem(pair, 1);
    if (cJSON_GetArraySize(pair) != 2 || !cJSON_IsString(cJSON_GetArrayItem(pair, 0)) || !cJSON_IsNumber(id) || id->valuedouble < 0 ||
        id->valuedouble > INT32_MAX || id->valuedouble != (double)(int64_t)id->valuedouble)
        return err_set(err, -EINVAL, "'%s' must be a token and its id", key);
    *ret = (int64_t)id->valuedouble;
    return 0;
}

static int read_cls_sep(const cJSON *j, struct token_list *prefix, struct token_list *suffix, struct err *err)
{
    int64_t cls, sep;
    int e;

    if ((e = read_named_id(j, "cls", &cls, err)) < 0 || (e = read_named_id(j, "sep", &sep, err)) < 0 || (e = add_id(prefix, cls, err)) < 0)
        return e;
    return add_id(suffix, sep, err);
}

static int add_special(const cJSON *specials, const char *name, struct token_list *list, struct err *err)
{
    const cJSON *token = cJSON_GetObjectItemCaseSensitive(specials, name), *ids, *id;
    int e;

    if (!token)
        return err_set(err, -EINVAL, "the template has \"%s\", which is not in special_tokens", name);
    if ((e = need(json_get_array(token, "ids", &ids, err), "ids", err)) < 0)
        return e;
    cJSON_ArrayForEach(id, ids) {
        if (!cJSON_IsNumber(id) || id->valuedouble < 0 || id->valuedouble > INT32_MAX || id->valuedouble != (double)(int64_t)id->valuedouble)
            return err_set(err, -EINVAL, "special_tokens: \"%s\" has an id that is none", name);
        if ((e = add_id(list, (int64_t)id->valuedouble, err)) < 0)
            return e;
    }
    return 0;
}

static int read_template(const cJSON *j, struct token_list *prefix, struct token_list *suffix, struct err *err)
{
    const cJSON *single, *specials, *piece, *part;
    const char *id;
    bool seen = false;
    int e;

    if ((e = need(json_get_array(j, "single", &single, err), "single", err)) < 0 ||
        (e = need(json_get_object(j, "special_tokens", &specials, err), "special_tokens", err)) < 0)
        return e;
    cJSON_ArrayForEach(piece, single) {
        if ((e = json_get_object(piece, "Sequence", &part, err)) < 0)
            return e;
        if (e == 0) {
            if ((e = need(json_get_string(part, "id", &id, err), "id", err)) < 0)
                return e;
            if (seen || strcmp(id, "A") != 0)
                return err_set(err, -ENOTSUP, "a template for one text that has not the text exactly once is not supported");
            seen = true;
            continue;
        }
        if ((e = need(json_get_object(piece, "SpecialToken", &part, err), "SpecialToken", err)) < 0 ||
            (e = need(json_get_string(part, "id", &id, err), "id", err)) < 0 ||
            (e = add_special(specials, id, seen ? suffix : prefix, err)) < 0)
            return e;
    }
    return seen ? 0 : err_set(err, -ENOTSUP, "a template for one text that has not the text exactly once is not supported");
}

struct post { struct token_list *prefix, *suffix; };

/* What a processor adds stands outside of what those before it added. */
static int add_outside(struct post *to, const struct token_list *prefix, const struct token_list *suffix)
{
    TOKEN_LIST_LOCAL joined = { 0 };
    int e = token_list_add_all(&joined, prefix->ids, prefix->n);

    if (e == 0)
        e = token_list_add_all(&joined, to->prefix->ids, to->prefix->n);
    if (e == 0)
        e = token_list_add_all(to->suffix, suffix->ids, suffix->n);
    if (e == 0) {
        struct token_list old = *to->prefix;

        *to->prefix = joined;
        joined = old;
    }
    return e;
}

static int read_post(const cJSON *j, void *user, unsigned depth, struct err *err)
{
    TOKEN_LIST_LOCAL prefix = { 0 };
    TOKEN_LIST_LOCAL suffix = { 0 };
    struct post *to = user;
    const char *type;
    int e = type_of(j, &type, err);

    if (e < 0)
        return e;
    if (strcmp(type, "Sequence") == 0)
        return read_sequence(j, "processors", read_post, to, depth, err);
    if (strcmp(type, "ByteLevel") == 0)
        return 0;
    if (strcmp(type, "TemplateProcessing") == 0)
        e = read_template(j, &prefix, &suffix, err);
    else if (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0)
        e = read_cls_sep(j, &prefix, &suffix, err);
    else
        return err_set(err, -ENOTSUP, "type \"%s\" is not supported", type);
    if (e < 0) {
        err_place(err, "%s", type);
        return e;
    }
    return add_outside(to, &prefix, &suffix) < 0 ? err_set(err, -ENOMEM, "no memory for its ids") : 0;
}

int hf_post_read(const cJSON *j, struct token_list *prefix, struct token_list *suffix, struct err *err)
{
    int e = j ? read_post(j, &(struct post){ prefix, suffix }, 0, err) : 0;

    err_place(err, "post_processor");
    return e;
}
