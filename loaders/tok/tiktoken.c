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
#define ONE(at, text) { at, text, 1, 0 }
static const struct family families[] = {
    { "cl100k_base", 100256, LLAMA3, NULL, "<|endoftext|>", false, false,
      { ONE(1, "<|endoftext|>"), ONE(2, "<|fim_prefix|>"), ONE(3, "<|fim_middle|>"), ONE(4, "<|fim_suffix|>"), ONE(20, "<|endofprompt|>") } },
    { "glm4", 151329, LLAMA3, NULL, "<|endoftext|>", false, false,
      { ONE(0, "<|endoftext|>"), ONE(1, "[MASK]"), ONE(2, "[gMASK]"), ONE(3, "[sMASK]"), ONE(4, "<sop>"), ONE(5, "<eop>"), ONE(6, "<|system|>"),
        ONE(7, "<|user|>"), ONE(8, "<|assistant|>"), ONE(9, "<|observation|>") } },
    { "kimi", 163584, KIMI, "[BOS]", "[EOS]", false, false, { ONE(0, "[BOS]"), ONE(1, "[EOS]") } },
    { "llama3", 128000, LLAMA3, "<|begin_of_text|>", "<|end_of_text|>", true, false,
      { ONE(0, "<|begin_of_text|>"), ONE(1, "<|end_of_text|>"), { 2, "<|reserved_special_token_%u|>", 2, 0 }, ONE(4, "<|finetune_right_pad_id|>"),
        { 5, "<|reserved_special_token_%u|>", 1, 2 }, ONE(6, "<|start_header_id|>"), ONE(7, "<|end_header_id|>"), ONE(8, "<|eom_id|>"),
        ONE(9, "<|eot_id|>"), ONE(10, "<|python_tag|>"), { 11, "<|reserved_special_token_%u|>", 245, 3 } } },
    { "o200k_base", 199998, O200K, NULL, "<|endoftext|>", false, false, { ONE(1, "<|endoftext|>"), ONE(20, "<|endofprompt|>") } },
    { "o200k_harmony", 199998, O200K, "<|startoftext|>", "<|return|>", false, false,
      { ONE(0, "<|startoftext|>"), ONE(1, "<|endoftext|>"), { 2, "<|reserved_%u|>", 2, 200000 }, ONE(4, "<|return|>"), ONE(5, "<|constrain|>"),
        { 6, "<|reserved_%u|>", 1, 200004 }, ONE(7, "<|channel|>"), ONE(8, "<|start|>"), ONE(9, "<|end|>"), ONE(10, "<|message|>"),
        { 11, "<|reserved_%u|>", 3, 200009 }, ONE(14, "<|call|>"), { 15, "<|reserved_%u|>", 1075, 200013 } } },
    { "qwen", 151643, QWEN, NULL, "<|endoftext|>", false, true,
      { ONE(0, "<|endoftext|>"), ONE(1, "<|im_start|>"), ONE(2, "<|im_end|>"), { 3, "<|extra_%u|>", 205, 0 } } },
    { "r50k_base", 50256, GPT2, NULL, "<|endoftext|>", false, false, { ONE(0, "<|endoftext|>") } },
};
#undef ONE

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
                snprintf(text, sizeof text, "%.*s%u%s", (int)(mark - f->special[i].text), f->special[i].text,
                         f->special[i].from + k, mark + 2);
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
        return err_set(err, -ENOTSUP, "%s: a tiktoken file does not say how text is cut, and none with %u ranks is known",
                       r->name, vocab_size(r->tokens));
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
