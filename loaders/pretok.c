#include "loaders/pretok.h"

#include "base/utf8.h"

#include <string.h>
#include <utf8proc.h>

enum class {
    LETTER = 1,             /* \p{L} */
    NUMBER = 2,             /* \p{N} */
    SPACE = 4,              /* \s: White_Space */
    PUNCT = 8,              /* \p{P} */
    OTHER = 16,
};

static bool is_white_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

static enum class class_of(uint32_t c)
{
    if (is_white_space(c))
        return SPACE;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return LETTER;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO: return NUMBER;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO: return PUNCT;
    default: return OTHER;
    }
}

/* Length and class of the character at text[0..len), len > 0. */
static size_t character(const char *text, size_t len, enum class *ret)
{
    uint32_t c;
    int n = utf8_decode(text, len, &c);

    *ret = n > 0 ? class_of(c) : OTHER;
    return n > 0 ? (size_t)n : 1;
}

/* Bytes from `at` that are characters of the classes in `mask`, or of none of them. */
static size_t run(const char *text, size_t len, size_t at, unsigned mask, bool inside)
{
    size_t end = at, n;
    enum class c;

    for (; end < len; end += n) {
        n = character(text + end, len - end, &c);
        if (((c & mask) != 0) != inside)
            break;
    }
    return end - at;
}

static bool newline(char c)
{
    return c == '\r' || c == '\n';
}

static char ascii_lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c | 32) : c;
}

/* 's 't 're 've 'm 'll 'd: the bytes it has, or 0. With `fold` in either case, and 's also with the
 * long s, U+017F, as (?i:…) has it. */
static size_t contraction(const char *text, size_t len, bool fold)
{
    static const char *const two[] = { "re", "ve", "ll" };
    char a, b;

    if (len < 2 || text[0] != '\'')
        return 0;
    a = fold ? ascii_lower(text[1]) : text[1];
    if (a && strchr("stmd", a))
        return 2;
    if (len < 3)
        return 0;
    b = fold ? ascii_lower(text[2]) : text[2];
    for (size_t i = 0; i < sizeof two / sizeof two[0]; i++)
        if (a == two[i][0] && b == two[i][1])
            return 3;
    return fold && memcmp(text + 1, "\xC5\xBF", 2) == 0 ? 3 : 0;
}

/* \s+(?!\S)|\s+ at a white space: a run of it but for its last character, which goes to the
 * word behind; all of it at the end. */
static size_t spaces(const char *text, size_t len)
{
    size_t end = 0, last = 0, n;
    enum class c;

    for (; end < len; end += n) {
        n = character(text + end, len - end, &c);
        if (c != SPACE)
            break;
        last = end;
    }
    return end < len && last > 0 ? last : end;
}

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static size_t scan_gpt2(const char *text, size_t len)
{
    size_t n = contraction(text, len, false), lead = text[0] == ' ' && len > 1;
    enum class c;

    if (n)
        return n;
    character(text + lead, len - lead, &c);
    if (c == SPACE)
        return spaces(text, len);
    if (c == LETTER || c == NUMBER)
        return lead + run(text, len, lead, c, true);
    return lead + run(text, len, lead, SPACE | LETTER | NUMBER, false);
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,max}| ?[^\s\p{L}\p{N}]+[\r\n]*|
 * \s*[\r\n]+|\s+(?!\S)|\s+ */
static size_t scan_llama3(const char *text, size_t len, unsigned max_digits)
{
    size_t n = contraction(text, len, true), first, end, lead = text[0] == ' ' && len > 1;
    enum class c, next = OTHER;

    if (n)
        return n;
    first = character(text, len, &c);
    if (first < len)
        character(text + first, len - first, &next);
    if (c == LETTER || (c != NUMBER && !newline(text[0]) && next == LETTER && first < len))
        return first + run(text, len, first, LETTER, true);
    if (c == NUMBER) {
        for (end = first; --max_digits && end < len; end += n) {
            n = character(text + end, len - end, &c);
            if (c != NUMBER)
                break;
        }
        return end;
    }
    character(text + lead, len - lead, &c);
    if (!(c & (SPACE | LETTER | NUMBER))) {
        end = lead + run(text, len, lead, SPACE | LETTER | NUMBER, false);
        while (end < len && newline(text[end]))
            end++;
        return end;
    }
    for (end = run(text, len, 0, SPACE, true); end > 0; end--)
        if (newline(text[end - 1]))
            return end;
    return spaces(text, len);
}

static size_t scan_llama3_3(const char *text, size_t len)
{
    return scan_llama3(text, len, 3);
}

static size_t scan_llama3_1(const char *text, size_t len)
{
    return scan_llama3(text, len, 1);
}

/* \p{N} */
static size_t scan_number(const char *text, size_t len)
{
    enum class c;
    size_t n = character(text, len, &c);

    return c == NUMBER ? n : run(text, len, 0, NUMBER, false);
}

/* \p{N}+ */
static size_t scan_numbers(const char *text, size_t len)
{
    enum class c;

    character(text, len, &c);
    return run(text, len, 0, NUMBER, c == NUMBER);
}

/* [0-9][0-9][0-9] */
static size_t scan_three_digits(const char *text, size_t len)
{
    size_t digits = 0;

    for (size_t i = 0; i < len; i++) {
        digits = text[i] >= '0' && text[i] <= '9' ? digits + 1 : 0;
        if (digits == 3)
            return i == 2 ? 3 : i - 2;
    }
    return len;
}

/* [\p{P}…]+ with some ASCII symbols */
static size_t scan_punctuation(const char *text, size_t len, const char *symbols)
{
    bool first = false;
    size_t end = 0, n;
    enum class c;

    for (; end < len; end += n) {
        bool in;

        n = character(text + end, len - end, &c);
        in = c == PUNCT || (text[end] && strchr(symbols, text[end]));
        if (end == 0)
            first = in;
        else if (in != first)
            break;
    }
    return end;
}

static size_t scan_punctuation_falcon(const char *text, size_t len)
{
    return scan_punctuation(text, len, "$+<=>^~|`");
}

static size_t scan_punctuation_default(const char *text, size_t len)
{
    return scan_punctuation(text, len, "$+<=>^~|");
}

#define GPT2 { scan_gpt2 }
#define DIGITS_GPT2 { scan_number, scan_gpt2 }
#define LLAMA3 { scan_llama3_3 }
#define QWEN2 { scan_llama3_1 }
#define FALCON { scan_punctuation_falcon, scan_gpt2, scan_three_digits }
#define DEFAULT { scan_punctuation_default, scan_gpt2, scan_numbers, scan_three_digits }

static const struct pretok rows[] = {
    { "chatglm-bpe", LLAMA3 },
    { "codeshell", DIGITS_GPT2 },
    { "command-r", DIGITS_GPT2 },
    { "dbrx", LLAMA3 },
    { "deepseek-r1-qwen", QWEN2 },
    { "default", DEFAULT },
    { "exaone", DIGITS_GPT2 },
    { "exaone4", GPT2 },
    { "falcon", FALCON },
    { "falcon3", LLAMA3, .ignore_merges = true, .add_bos = true },
    { "gigachat", GPT2 },
    { "glm4", LLAMA3 },
    { "gpt-2", GPT2 },
    { "granite-docling", GPT2 },
    { "hunyuan", QWEN2 },
    { "jais", GPT2 },
    { "lfm2", LLAMA3, .ignore_merges = true, .add_bos = true },
    { "llama-bpe", LLAMA3, .ignore_merges = true, .add_bos = true },
    { "llama-v3", LLAMA3, .ignore_merges = true, .add_bos = true },
    { "llama3", LLAMA3, .ignore_merges = true, .add_bos = true },
    { "megrez", QWEN2 },
    { "mellum", GPT2 },
    { "minerva-7b", DIGITS_GPT2 },
    { "mpt", GPT2 },
    { "olmo", GPT2 },
    { "phi-2", GPT2 },
    { "pixtral", LLAMA3, .ignore_merges = true, .add_bos = true },
    { "qwen2", QWEN2 },
    { "refact", DIGITS_GPT2 },
    { "smaug-bpe", LLAMA3 },
    { "smollm", DIGITS_GPT2 },
    { "stablelm2", QWEN2 },
    { "starcoder", DIGITS_GPT2 },
};

const struct pretok *pretok_find(const char *name)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(rows[i].name, name) == 0)
            return &rows[i];
    return NULL;
}

static int split(const struct pretok *p, size_t stage, const char *text, size_t len,
                 int (*fn)(void *, const char *, size_t), void *user)
{
    int r = 0;

    if (stage == PRETOK_MAX_STAGES || !p->stage[stage])
        return fn(user, text, len);
    for (size_t n; len && r == 0; text += n, len -= n) {
        n = p->stage[stage](text, len);
        r = split(p, stage + 1, text, n, fn, user);
    }
    return r;
}

int pretok_split(const struct pretok *p, const char *text, size_t len,
                 int (*fn)(void *user, const char *piece, size_t len), void *user)
{
    return split(p, 0, text, len, fn, user);
}
