/* The family of GPT-2 and cl100k: contractions, words, numbers, symbols, white space. */
#include "loaders/tok/scan_in.h"

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
SCAN_INLINE size_t next_gpt2(const char *text, size_t len)
{
    size_t n, lead = text[0] == ' ' && len > 1;
    struct scan_spaces s;
    unsigned class;

    if (text[0] == '\'' && (n = scan_contraction(text, len, false)))
        return n;
    n = lead + scan_class(text + lead, len - lead, &class);
    if (class & UC_LETTER)
        return scan_run_of(text, len, n, UC_LETTER);
    if (class & UC_NUMBER)
        return scan_run_of(text, len, n, UC_NUMBER);
    if (!(class & UC_SPACE))
        return scan_run_not(text, len, n, SCAN_WORD);
    s = scan_spaces(text, len);
    return scan_plain_spaces(&s, len);
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?LETTERS+|\p{N}{1,MAX}| ?[^\s LETTERS \p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 *
 * A character that is neither line end, letter nor number goes with the letters behind it. What is in LETTERS and may stand
 * in front as well (marks) changes nothing: the run is the same. */
struct words {
    unsigned letters;
    size_t max_digits;          /* 0: no limit */
    bool newlines;              /* symbols take the line ends behind them */
};

/* A number at text[0..first). */
SCAN_INLINE size_t next_digits(const char *text, size_t len, size_t first, size_t max_digits)
{
    size_t end = first, n;
    unsigned class;

    if (!max_digits)
        return scan_run_of(text, len, first, UC_NUMBER);
    for (size_t i = 1; i < max_digits && end < len; i++, end += n) {
        n = scan_class(text + end, len - end, &class);
        if (!(class & UC_NUMBER))
            break;
    }
    return end;
}

SCAN_INLINE size_t next_words(const char *text, size_t len, struct words w)
{
    size_t n, first, lead;
    unsigned class, next;

    if (text[0] == '\'' && (n = scan_contraction(text, len, true)))
        return n;
    first = scan_class(text, len, &class);
    if (class & w.letters)
        return scan_run_of(text, len, first, w.letters);
    if (class & UC_NUMBER)
        return next_digits(text, len, first, w.max_digits);
    next = scan_class_at(text, len, first);
    if ((next & w.letters) && !scan_newline(text[0]))
        return scan_run_of(text, len, first, w.letters);
    lead = text[0] == ' ';
    if (!(class & UC_SPACE) || (lead && first < len && !(next & (UC_SPACE | UC_NUMBER)))) {
        n = scan_run_not(text, len, first, UC_SPACE | UC_NUMBER | UC_LETTER | w.letters);
        return w.newlines ? scan_newlines(text, len, n) : n;
    }
    return scan_line_spaces(text, len);
}

#define WORDS(name, ...)                                                                           \
    SCAN_INLINE size_t next_##name(const char *text, size_t len)                                   \
    {                                                                                              \
        return next_words(text, len, (struct words){ __VA_ARGS__ });                               \
    }

WORDS(llama3, UC_LETTER, 3, true)
WORDS(qwen2, UC_LETTER, 1, true)
WORDS(minicpm5, UC_LETTER, 0, true)
WORDS(seed_coder, UC_LETTER, 1, false)
WORDS(qwen35, UC_LETTER | UC_MARK, 1, true)

/* As tiktoken writes cl100k, read by Oniguruma, where {1,3}+ is "one or more of {1,3}", with \s++$ before the line ends: white space that
 * ends the text is one piece. */
SCAN_INLINE size_t next_cl100k_onig(const char *text, size_t len)
{
    unsigned class;

    scan_class(text, len, &class);
    if (class & UC_SPACE) {
        struct scan_spaces s = scan_spaces(text, len);

        if (s.end == len)
            return len;
    }
    return next_minicpm5(text, len);
}

/* …|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+
 *
 * Words with single spaces between them are one piece. */
SCAN_INLINE size_t next_exaone_moe(const char *text, size_t len)
{
    size_t n = scan_contraction(text, len, true), first, lead;
    unsigned class, next;

    if (n)
        return n;
    first = scan_class(text, len, &class);
    next = scan_class_at(text, len, first);
    if ((class & UC_LETTER) || ((next & UC_LETTER) && !scan_newline(text[0]) && !(class & UC_NUMBER))) {
        for (n = first;;) {
            n = scan_run_of(text, len, n, UC_LETTER | UC_MARK);
            if (n + 1 >= len || text[n] != ' ' || !(scan_class_at(text, len, n + 1) & UC_LETTER))
                return n;
            n++;
        }
    }
    if (class & UC_NUMBER)
        return first;
    lead = text[0] == ' ';
    if (!(class & UC_SPACE) || (lead && first < len && !(next & (UC_SPACE | UC_NUMBER)))) {
        n = scan_run_not(text, len, first, SCAN_WORD);
        return n < len && (scan_newline(text[n]) || text[n] == '/') ? n + 1 : n;
    }
    return scan_line_spaces(text, len);
}

/* [!"#…~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 *
 * Numbers and control characters are in no match: they lie between. */
enum { WORD_3 = UC_LETTER | UC_MARK, SIGN_3 = UC_PUNCTUATION | UC_SYMBOL };

SCAN_INLINE bool ascii_letter(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

/* The match at text, or 0. */
SCAN_INLINE size_t match_deepseek3(const char *text, size_t len)
{
    unsigned class, next;
    size_t first = scan_class(text, len, &class), n;

    if (class & UC_LETTER)
        return scan_run_of(text, len, first, WORD_3);
    if ((class & SIGN_3) && first == 1 && len > 1 && ascii_letter(text[1])) {
        for (n = 2; n < len && ascii_letter(text[n]);)
            n++;
        return n;
    }
    next = scan_class_at(text, len, first);
    if ((next & WORD_3) && !(class & SIGN_3) && !scan_newline(text[0]))
        return scan_run_of(text, len, first, WORD_3);
    if (class & UC_MARK)
        return first;
    if ((class & SIGN_3) || (text[0] == ' ' && (next & SIGN_3)))
        return scan_newlines(text, len, scan_run_of(text, len, first, SIGN_3));
    return class & UC_SPACE ? scan_line_spaces(text, len) : 0;
}

SCAN_INLINE size_t next_deepseek3(const char *text, size_t len)
{
    size_t n = match_deepseek3(text, len), more;
    uint32_t c;

    if (n)
        return n;
    do
        n += scan_decode(text + n, len - n, &c);
    while (n < len && !(more = match_deepseek3(text + n, len - n)));
    return n;
}

/* As Llama 3's, but a run of white space is cut into pieces of 512, 256, …, 4, 1 to 2. How far the run goes without a line end is
 * looked at once. */
static size_t jais2_spaces(size_t left, bool at_end)
{
    for (size_t n = 512; n >= 4; n /= 2)
        if (left > n || (left == n && at_end))
            return n;
    return left > 2 || (left == 2 && at_end) ? 2 : 1;
}

static int run_jais2(const char *text, size_t len, piece_fn fn, void *user)
{
    int r = 0;

    while (len && r == 0) {
        size_t n = next_llama3(text, len), left = 0, end;
        unsigned class;

        scan_class(text, len, &class);
        end = class & UC_SPACE ? scan_run_of(text, n, 0, UC_SPACE) : 0;
        if (!end || end < n || scan_newline(text[n - 1])) {
            r = fn(user, text, n);
            text += n;
            len -= n;
            continue;
        }
        end = scan_run_of(text, len, 0, UC_SPACE);
        for (size_t i = 0; i < end; left++)
            i += scan_class(text + i, end - i, &class);
        while (left && r == 0) {
            size_t chars = jais2_spaces(left, end == len);

            /* The last one goes to what stands behind it, if that takes it. */
            if (left == 1 && next_llama3(text, len) > end)
                break;
            for (n = 0; chars--; left--)
                n += scan_class(text + n, len - n, &class);
            r = fn(user, text, n);
            text += n;
            len -= n;
            end -= n;
        }
    }
    return r;
}

SCAN_BY_NEXT(run_gpt2, next_gpt2)
SCAN_BY_NEXT(run_llama3, next_llama3)
SCAN_BY_NEXT(run_qwen2, next_qwen2)
SCAN_BY_NEXT(run_qwen35, next_qwen35)
SCAN_BY_NEXT(run_minicpm5, next_minicpm5)
SCAN_BY_NEXT(run_seed_coder, next_seed_coder)
SCAN_BY_NEXT(run_exaone_moe, next_exaone_moe)
SCAN_BY_NEXT(run_deepseek3, next_deepseek3)
SCAN_BY_NEXT(run_cl100k_onig, next_cl100k_onig)

const struct scan scan_gpt2 = { "gpt2", run_gpt2 };
const struct scan scan_llama3 = { "llama3", run_llama3 };
const struct scan scan_qwen2 = { "qwen2", run_qwen2 };
const struct scan scan_qwen35 = { "qwen35", run_qwen35 };
const struct scan scan_minicpm5 = { "minicpm5", run_minicpm5 };
const struct scan scan_seed_coder = { "seed-coder", run_seed_coder };
const struct scan scan_exaone_moe = { "exaone-moe", run_exaone_moe };
const struct scan scan_jais2 = { "jais-2", run_jais2 };
const struct scan scan_deepseek3 = { "deepseek-v3", run_deepseek3 };
const struct scan scan_cl100k_onig = { "cl100k-onig", run_cl100k_onig };
