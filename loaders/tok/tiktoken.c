#include "loaders/tok/ranks.h"

#include "base/buf.h"
#include "base/err.h"
#include "loaders/tok/tok_config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Patterns are spelled as the tokenizer.json files of the same models do: tiktoken's own are possessive, and cut the same. */
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define LLAMA3 "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define QWEN "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define O200K "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|" \
              "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|" \
              "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define KIMI "[\\p{Han}]+|" \
             "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|" \
             "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|" \
             "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

enum { MAX_DIGITS = 9 };            /* of a rank */

/* Special tokens: ids count from the end of the ranks. One with %u in it stands for n, their numbers from `from` on. */
struct special { uint32_t at; const char *text; uint32_t n, from; };

struct family {
    const char *name;                   /* of the file, without ".tiktoken" */
    uint32_t n_ranks;
    const char *pattern;
    const char *bos, *eos;              /* NULL: none */
    bool adds_bos, nfc;
    struct special special[16];
};

/* Names of Llama's are those of 3.1 and later; 3.0 had only other words for the reserved ones. */
static const struct family families[] = {
    { "cl100k_base", 100256, LLAMA3, NULL, "<|endoftext|>", false, false,
      { { 1, "<|endoftext|>", 1, 0 }, { 2, "<|fim_prefix|>", 1, 0 }, { 3, "<|fim_middle|>", 1, 0 }, { 4, "<|fim_suffix|>", 1, 0 }, { 20, "<|endofprompt|>", 1, 0 } } },
    { "glm4", 151329, LLAMA3, NULL, "<|endoftext|>", false, false,
      { { 0, "<|endoftext|>", 1, 0 }, { 1, "[MASK]", 1, 0 }, { 2, "[gMASK]", 1, 0 }, { 3, "[sMASK]", 1, 0 }, { 4, "<sop>", 1, 0 }, { 5, "<eop>", 1, 0 },
        { 6, "<|system|>", 1, 0 }, { 7, "<|user|>", 1, 0 }, { 8, "<|assistant|>", 1, 0 }, { 9, "<|observation|>", 1, 0 } } },
    { "kimi", 163584, KIMI, "[BOS]", "[EOS]", false, false, { { 0, "[BOS]", 1, 0 }, { 1, "[EOS]", 1, 0 } } },
    { "llama3", 128000, LLAMA3, "<|begin_of_text|>", "<|end_of_text|>", true, false,
      { { 0, "<|begin_of_text|>", 1, 0 }, { 1, "<|end_of_text|>", 1, 0 }, { 2, "<|reserved_special_token_%u|>", 2, 0 }, { 4, "<|finetune_right_pad_id|>", 1, 0 },
        { 5, "<|reserved_special_token_%u|>", 1, 2 }, { 6, "<|start_header_id|>", 1, 0 }, { 7, "<|end_header_id|>", 1, 0 }, { 8, "<|eom_id|>", 1, 0 },
        { 9, "<|eot_id|>", 1, 0 }, { 10, "<|python_tag|>", 1, 0 },
        { 11, "<|reserved_special_token_%u|>", 245, 3 } } },
    { "o200k_base", 199998, O200K, NULL, "<|endoftext|>", false, false, { { 1, "<|endoftext|>", 1, 0 }, { 20, "<|endofprompt|>", 1, 0 } } },
    { "o200k_harmony", 199998, O200K, "<|startoftext|>", "<|return|>", false, false,
      { { 0, "<|startoftext|>", 1, 0 }, { 1, "<|endoftext|>", 1, 0 }, { 2, "<|reserved_%u|>", 2, 200000 }, { 4, "<|return|>", 1, 0 }, { 5, "<|constrain|>", 1, 0 },
        { 6, "<|reserved_%u|>", 1, 200004 }, { 7, "<|channel|>", 1, 0 }, { 8, "<|start|>", 1, 0 }, { 9, "<|end|>", 1, 0 }, { 10, "<|message|>", 1, 0 },
        { 11, "<|reserved_%u|>", 3, 200009 }, { 14, "<|call|>", 1, 0 }, { 15, "<|reserved_%u|>", 1075, 200013 } } },
    { "p50k_base", 50280, GPT2, NULL, "<|endoftext|>", false, false, { { 0 } } },
    { "qwen", 151643, QWEN, NULL, "<|endoftext|>", false, true,
      { { 0, "<|endoftext|>", 1, 0 }, { 1, "<|im_start|>", 1, 0 }, { 2, "<|im_end|>", 1, 0 }, { 3, "<|extra_%u|>", 205, 0 } } },
    { "r50k_base", 50256, GPT2, NULL, "<|endoftext|>", false, false, { { 0, "<|endoftext|>", 1, 0 } } },
};

static const struct family *find_family(const char *name, uint32_t n_ranks)
{
    const char *base = strrchr(name, '/') ? strrchr(name, '/') + 1 : name;
    size_t len = strcspn(base, ".");

    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (strlen(families[i].name) == len && strncmp(families[i].name, base, len) == 0)
            return &families[i];
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (families[i].n_ranks == n_ranks)
            return &families[i];
    return NULL;
}

static int read_line(struct ranks *r, const char *line, size_t len, size_t number, struct buf *bytes, struct err *err)
{
    const char *gap = memchr(line, ' ', len);
    size_t n_digits = gap ? len - (size_t)(gap + 1 - line) : 0;
    int64_t rank = 0;
    int code;

    buf_clear(bytes);
    if (!gap || !ranks_base64(line, (size_t)(gap - line), bytes))
        return err_set(err, -EINVAL, "%s:%zu: no base64 with a space behind", r->name, number);
    if (bytes->failed)
        return err_set(err, -ENOMEM, "%s:%zu: no memory for a token", r->name, number);
    for (size_t i = 0; i < n_digits && n_digits <= MAX_DIGITS; i++) {
        if (gap[1 + i] < '0' || gap[1 + i] > '9')
            return err_set(err, -EINVAL, "%s:%zu: the rank is no number", r->name, number);
        rank = rank * 10 + (gap[1 + i] - '0');
    }
    if (n_digits == 0 || n_digits > MAX_DIGITS)
        return err_set(err, -EINVAL, "%s:%zu: the rank is no number below %d", r->name, number, TOKENIZER_MAX_VOCAB);
    code = ranks_put(r, rank, bytes->data, bytes->len, err);
    return code;
}

static int read_lines(struct ranks *r, const char *text, size_t len, struct err *err)
{
    BUF_LOCAL bytes = BUF_INIT;
    size_t number = 1;
    int code = 0;

    for (size_t at = 0, end; at < len && code == 0; at = end + 1, number++) {
        const char *nl = memchr(text + at, '\n', len - at);

        end = nl ? (size_t)(nl - text) : len;
        if (end > at && text[end - 1] == '\r')
            return err_set(err, -EINVAL, "%s:%zu: a carriage return", r->name, number);
        if (end > at)
            code = read_line(r, text + at, end - at, number, &bytes, err);
    }
    if (code == 0 && !r->tokens)
        return err_set(err, -EINVAL, "%s: no ranks", r->name);
    return code;
}

static int add_special(const struct ranks *r, const struct family *f, struct tokenizer *t, struct err *err)
{
    int64_t first = vocab_size(r->tokens);
    char text[64];
    int code = 0;

    for (size_t i = 0; i < sizeof f->special / sizeof f->special[0] && f->special[i].text; i++)
        for (uint32_t k = 0; k < f->special[i].n && code == 0; k++) {
            const char *mark = strstr(f->special[i].text, "%u");

            if (mark)
                snprintf(text, sizeof text, "%.*s%u%s", (int)(mark - f->special[i].text), f->special[i].text, f->special[i].from + k, mark + 2);
            else
                snprintf(text, sizeof text, "%s", f->special[i].text);
            code = ranks_special(r, t, first + f->special[i].at + k, text, strlen(text), true, err);
        }
    return code;
}

/* The id of a special token's spelling. */
static int32_t special_id(const struct tokenizer *t, const char *text)
{
    int32_t id = text ? vocab_find(t->vocab, text, strlen(text)) : -1;

    return id >= 0 && vocab_kind(t->vocab, id) == TOK_CONTROL ? id : -1;
}

static int make(struct ranks *r, const cJSON *config, struct tokenizer *t, struct err *err)
{
    const struct family *f = find_family(r->name, vocab_size(r->tokens));
    const char *bos = tok_config_token(config, "bos_token"), *eos = tok_config_token(config, "eos_token");
    struct tok_config_added any = { 0 };
    int code;

    if (!f)
        return err_set(err, -ENOTSUP, "%s: a tiktoken file does not say how text is cut, and none with %u ranks is known", r->name, vocab_size(r->tokens));
    r->nfc = f->nfc;
    r->pattern = (struct tok_str){ f->pattern, (uint32_t)strlen(f->pattern) };
    if ((code = vocab_new(vocab_size(r->tokens), 0, &t->vocab)) < 0)
        return err_set(err, code, "%s: no memory for its tokenizer", r->name);
    if ((code = ranks_fill(r, t, err)) < 0 ||
        (code = tok_config_added(config, &any) ? tok_config_fill(config, t, err) : add_special(r, f, t, err)) < 0)
        return code;
    t->bos = special_id(t, bos ? bos : f->bos);
    t->eos = special_id(t, eos ? eos : f->eos);
    if ((code = tok_config_edges(config, t, f->adds_bos, false)) < 0)
        return err_set(err, code, "%s: no memory for its tokenizer", r->name);
    snprintf(t->kind, sizeof t->kind, "byte-level BPE, tiktoken, %s", f->name);
    return ranks_chain(r, t, err);
}

int tiktoken_open(const char *name, const char *text, size_t len, const cJSON *config, struct tokenizer **ret, struct err *err)
{
    CLEANUP(tokenizer_close) struct tokenizer *t = NULL;
    struct ranks r = { .name = name };
    int code = len > TOKENIZER_MAX_FILE ? -E2BIG : tokenizer_new(&t);

    if (code < 0)
        return err_set(err, code, code == -E2BIG ? "%s: the file is too big" : "%s: no memory for its tokenizer", name);
    code = read_lines(&r, text, len, err);
    if (code == 0)
        code = make(&r, config, t, err);
    ranks_fini(&r);
    if (code < 0)
        return code;
    *ret = STEAL(t);
    return 0;
}

bool tiktoken_looks_like(const char *text, size_t len)
{
    const char *nl = memchr(text, '\n', len < 4096 ? len : 4096), *gap;
    BUF_LOCAL bytes = BUF_INIT;

    len = nl ? (size_t)(nl - text) : len;
    gap = memchr(text, ' ', len);
    return gap && gap + 2 == text + len && gap[1] == '0' && ranks_base64(text, (size_t)(gap - text), &bytes);
}
