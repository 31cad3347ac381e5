/* Stages that take out one thing: numbers, line ends, punctuation, scripts. What lies between the matches is a piece too. */
#include "loaders/tok/scan_in.h"

#include <string.h>

/* A class of characters, as a function: what is not in it lies between. */
typedef bool (*in_class)(uint32_t c, unsigned class);

SCAN_INLINE size_t class_at(const char *text, size_t len, in_class in, bool *ret)
{
    uint32_t c;
    size_t n = scan_decode(text, len, &c);

    *ret = c != SCAN_NO_CHARACTER && in(c, unicode_class(c));
    return n;
}

/* CLASS+ or, with `one`, CLASS: the next match or what lies before it. */
SCAN_INLINE size_t next_class(const char *text, size_t len, in_class in, bool one)
{
    bool first, here;
    size_t end = class_at(text, len, in, &first), n;

    for (; end < len && !(one && first); end += n) {
        n = class_at(text + end, len - end, in, &here);
        if (here != first)
            break;
    }
    return end;
}

/* \s?CLASS+ */
SCAN_INLINE size_t next_spaced(const char *text, size_t len, in_class in)
{
    size_t end = 0, n;

    while (end < len) {
        bool here, behind = false, space;
        unsigned class;

        n = class_at(text + end, len - end, in, &here);
        scan_class(text + end, len - end, &class);
        space = class & UC_SPACE;
        if (space && end + n < len)
            class_at(text + end + n, len - end - n, in, &behind);
        if (here || behind) {
            if (end)
                return end;
            for (end = n; end < len; end += n) {
                n = class_at(text + end, len - end, in, &here);
                if (!here)
                    break;
            }
            return end;
        }
        end += n;
    }
    return end;
}

SCAN_INLINE bool is_number(uint32_t c, unsigned class)
{
    return class & UC_NUMBER;
}

SCAN_INLINE bool is_newline(uint32_t c, unsigned class)
{
    return c == '\n' || c == '\r';
}

SCAN_INLINE bool is_line_feed(uint32_t c, unsigned class)
{
    return c == '\n';
}

SCAN_INLINE bool is_one_of(uint32_t c, const char *ascii)
{
    return c && c < 0x80 && strchr(ascii, (int)c);
}

SCAN_INLINE bool is_punctuation_falcon(uint32_t c, unsigned class)
{
    return (class & UC_PUNCTUATION) || is_one_of(c, "$+<=>^~|`");
}

SCAN_INLINE bool is_punctuation_default(uint32_t c, unsigned class)
{
    return (class & UC_PUNCTUATION) || is_one_of(c, "$+<=>^~|");
}

SCAN_INLINE bool is_letter(uint32_t c, unsigned class)
{
    return class & UC_LETTER;
}

SCAN_INLINE bool is_punctuation(uint32_t c, unsigned class)
{
    return class & UC_PUNCTUATION;
}

/* Ranges of characters, ascending. */
struct range { uint32_t first, last; };

static bool in_ranges(uint32_t c, const struct range *ranges, size_t n)
{
    size_t low = 0, high = n;

    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (ranges[mid].last < c)
            low = mid + 1;
        else
            high = mid;
    }
    return low < n && ranges[low].first <= c;
}
#define IN(c, ranges) in_ranges(c, ranges, sizeof(ranges) / sizeof(ranges)[0])

/* [一-龥぀-ゟ゠-ヿ] */
SCAN_INLINE bool is_cjk_deepseek3(uint32_t c, unsigned class)
{
    return (c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF);
}

/* [一-龥ࠀ-一가-퟿] */
SCAN_INLINE bool is_cjk_deepseek(uint32_t c, unsigned class)
{
    return (c >= 0x0800 && c <= 0x9FA5) || (c >= 0xAC00 && c <= 0xD7FF);
}

/* The letters with case of Latin, Greek, Cyrillic, Armenian, Georgian, Cherokee and others, as DeepSeek LLM lists them. */
static const struct range letters_deepseek_llm[] = {
    { 0x0041, 0x005A }, { 0x0061, 0x007A }, { 0x00B5, 0x00B5 }, { 0x00C0, 0x00D6 }, { 0x00D8, 0x00F6 }, { 0x00F8, 0x01BA },
    { 0x01BC, 0x01BF }, { 0x01C4, 0x0293 }, { 0x0295, 0x02AF }, { 0x0370, 0x0373 }, { 0x0376, 0x0377 }, { 0x037B, 0x037D },
    { 0x037F, 0x037F }, { 0x0386, 0x0386 }, { 0x0388, 0x038A }, { 0x038C, 0x038C }, { 0x038E, 0x03A1 }, { 0x03A3, 0x03F5 },
    { 0x03F7, 0x0481 }, { 0x048A, 0x052F }, { 0x0531, 0x0556 }, { 0x10A0, 0x10C5 }, { 0x13A0, 0x13F5 }, { 0x13F8, 0x13FD },
    { 0x1C90, 0x1CBA }, { 0x1CBD, 0x1CBF }, { 0x1D00, 0x1D2B }, { 0x1D6B, 0x1D77 }, { 0x1D79, 0x1D9A }, { 0x1E00, 0x1F15 },
    { 0x1F18, 0x1F1D }, { 0x1F20, 0x1F45 }, { 0x1F48, 0x1F4D }, { 0x1F50, 0x1F57 }, { 0x1F59, 0x1F59 }, { 0x1F5B, 0x1F5B },
    { 0x1F5D, 0x1F5D }, { 0x1F5F, 0x1F7D }, { 0x1F80, 0x1FB4 }, { 0x1FB6, 0x1FBC }, { 0x1FBE, 0x1FBE }, { 0x1FC2, 0x1FC4 },
    { 0x1FC6, 0x1FCC }, { 0x1FD0, 0x1FD3 }, { 0x1FD6, 0x1FDB }, { 0x1FE0, 0x1FEC }, { 0x1FF2, 0x1FF4 }, { 0x1FF6, 0x1FFC },
    { 0x2102, 0x2102 }, { 0x2107, 0x2107 }, { 0x210A, 0x2113 }, { 0x2115, 0x2115 }, { 0x2119, 0x211D }, { 0x2124, 0x2124 },
    { 0x2126, 0x2126 }, { 0x2128, 0x2128 }, { 0x212A, 0x212D }, { 0x212F, 0x2134 }, { 0x2139, 0x2139 }, { 0x213C, 0x213F },
    { 0x2145, 0x2149 }, { 0x214E, 0x214E }, { 0x2183, 0x2184 }, { 0x2C00, 0x2C7B }, { 0x2C7E, 0x2CE4 }, { 0x2CEB, 0x2CEE },
    { 0x2CF2, 0x2CF3 }, { 0xA640, 0xA66D }, { 0xA680, 0xA69B }, { 0xA722, 0xA76F }, { 0xA771, 0xA787 }, { 0xA78B, 0xA78E },
    { 0xAB70, 0xABBF }, { 0xFB00, 0xFB06 }, { 0xFB13, 0xFB17 }, { 0xFF21, 0xFF3A }, { 0xFF41, 0xFF5A }, { 0x10400, 0x1044F },
    { 0x104B0, 0x104D3 }, { 0x104D8, 0x104FB }, { 0x10C80, 0x10CB2 }, { 0x10CC0, 0x10CF2 }, { 0x118A0, 0x118DF },
    { 0x1E900, 0x1E943 },
};

static bool is_letter_deepseek_llm(uint32_t c, unsigned class)
{
    return IN(c, letters_deepseek_llm);
}

/* [!-/:-~！-／：-～‘-‟　-。] */
SCAN_INLINE bool is_punctuation_deepseek_llm(uint32_t c, unsigned class)
{
    return (c >= 0x21 && c <= 0x2F) || (c >= 0x3A && c <= 0x7E) || (c >= 0xFF01 && c <= 0xFF0F) || (c >= 0xFF1A && c <= 0xFF5E) ||
           (c >= 0x2018 && c <= 0x201F) || (c >= 0x3000 && c <= 0x3002);
}

static const struct range scripts_afmoe[] = {
    { 0x0E40, 0x0EFF }, { 0x1000, 0x109F }, { 0x1100, 0x11FF }, { 0x1780, 0x17FF }, { 0x2F00, 0x2FDF }, { 0x3040, 0x30FF },
    { 0x3400, 0x4DBF }, { 0x4E00, 0xFAFF }, { 0xFF65, 0xFF9F },
};

static bool is_script_afmoe(uint32_t c, unsigned class)
{
    return IN(c, scripts_afmoe);
}

/* [\p{P}!-/:-@\[-`{-~] */
SCAN_INLINE bool is_punctuation_chameleon(uint32_t c, unsigned class)
{
    return (class & UC_PUNCTUATION) || (c < 0x80 && (class & UC_SYMBOL));
}

/* [^(\s|[.,!?…。，、।۔،])] */
SCAN_INLINE bool is_bloom(uint32_t c, unsigned class)
{
    return !(class & UC_SPACE) && !is_one_of(c, "(|.,!?)") && c != 0x2026 && c != 0x3002 && c != 0xFF0C && c != 0x3001 && c != 0x0964 &&
           c != 0x06D4 && c != 0x060C;
}

#define STAGE(id, expression)                                                                      \
    SCAN_INLINE size_t next_##id(const char *text, size_t len)                                     \
    {                                                                                              \
        return expression;                                                                         \
    }                                                                                              \
    SCAN_BY_NEXT(run_##id, next_##id)                                                              \
    const struct scan scan_##id

/* \p{N}; \p{N}+ */
STAGE(number, next_class(text, len, is_number, true)) = { "number", run_number };
STAGE(numbers, next_class(text, len, is_number, false)) = { "numbers", run_numbers };
/* [\r\n]; [^\n]+|[\n]+ */
STAGE(newlines_one, next_class(text, len, is_newline, true)) = { "line end", run_newlines_one };
STAGE(lines, next_class(text, len, is_line_feed, false)) = { "lines", run_lines };
/* [\p{P}…]+ with some ASCII symbols */
STAGE(punctuation_falcon, next_class(text, len, is_punctuation_falcon, false)) = { "punctuation, falcon", run_punctuation_falcon };
STAGE(punctuation_default, next_class(text, len, is_punctuation_default, false)) = { "punctuation", run_punctuation_default };
STAGE(punctuation_deepseek_coder, next_spaced(text, len, is_punctuation)) = { "punctuation, deepseek-coder", run_punctuation_deepseek_coder };
STAGE(punctuation_deepseek_llm, next_spaced(text, len, is_punctuation_deepseek_llm)) = { "punctuation, deepseek-llm",
                                                                                          run_punctuation_deepseek_llm };
STAGE(chameleon_punctuation, next_class(text, len, is_punctuation_chameleon, true)) = { "punctuation, chameleon", run_chameleon_punctuation };
STAGE(letters_deepseek_coder, next_spaced(text, len, is_letter)) = { "letters", run_letters_deepseek_coder };
STAGE(letters_deepseek_llm, next_spaced(text, len, is_letter_deepseek_llm)) = { "letters, deepseek-llm", run_letters_deepseek_llm };
STAGE(cjk_deepseek3, next_class(text, len, is_cjk_deepseek3, false)) = { "CJK, deepseek-v3", run_cjk_deepseek3 };
STAGE(cjk_deepseek, next_class(text, len, is_cjk_deepseek, false)) = { "CJK, deepseek", run_cjk_deepseek };
STAGE(afmoe_scripts, next_class(text, len, is_script_afmoe, false)) = { "scripts, afmoe", run_afmoe_scripts };

/* \p{N}{1,3} */
SCAN_INLINE size_t next_numbers_3(const char *text, size_t len)
{
    size_t end = 0, n, numbers = 0;
    unsigned class;

    for (; end < len && numbers < 3; end += n) {
        n = scan_class(text + end, len - end, &class);
        if (!(class & UC_NUMBER)) {
            if (numbers)
                break;
            return scan_run_not(text, len, end, UC_NUMBER);
        }
        numbers++;
    }
    return end;
}
SCAN_BY_NEXT(run_numbers_3, next_numbers_3)
const struct scan scan_numbers_3 = { "numbers by three", run_numbers_3 };

/* [0-9][0-9][0-9] */
SCAN_INLINE size_t next_digits_3(const char *text, size_t len)
{
    size_t digits = 0;

    for (size_t i = 0; i < len; i++) {
        digits = text[i] >= '0' && text[i] <= '9' ? digits + 1 : 0;
        if (digits == 3)
            return i == 2 ? 3 : i - 2;
    }
    return len;
}
SCAN_BY_NEXT(run_digits_3, next_digits_3)
const struct scan scan_digits_3 = { "three digits", run_digits_3 };

/* Runs of digits that are cut from their right end, three at a time: a run is measured once. */

struct digits {
    bool numbers;               /* \p{N}, else \d */
    bool no_word_behind;        /* a run before a word character stays whole, with what is around it */
    bool only_groups;           /* what stands before the first group of three stays with the text before it */
};

SCAN_INLINE bool is_digit(uint32_t c, struct digits d)
{
    if (c == SCAN_NO_CHARACTER)
        return false;
    if (c < 0x80)
        return c >= '0' && c <= '9';
    return d.numbers ? unicode_class(c) & UC_NUMBER : unicode_is_decimal(c);
}

/* \w of Oniguruma, which has no joiners */
SCAN_INLINE bool is_word(uint32_t c)
{
    return c != SCAN_NO_CHARACTER && unicode_is_word(c) && c != 0x200C && c != 0x200D;
}

/* Number of digits at text, where they end, and whether a word goes on behind. */
SCAN_INLINE size_t digits_at(const char *text, size_t len, struct digits d, size_t *ret_end, bool *ret_word)
{
    size_t count = 0, end = 0, n;
    uint32_t c = SCAN_NO_CHARACTER;

    for (; end < len; end += n, count++) {
        n = scan_decode(text + end, len - end, &c);
        if (!is_digit(c, d))
            break;
    }
    *ret_end = end;
    *ret_word = end < len && is_word(c);
    return count;
}

SCAN_INLINE int run_grouped(const char *text, size_t len, piece_fn fn, void *user, struct digits d)
{
    size_t from = 0, at = 0;    /* text[from..at) lies between */
    int r = 0;

    while (at < len && r == 0) {
        size_t end, count, group;
        uint32_t c;
        bool word;

        count = digits_at(text + at, len - at, d, &end, &word);
        if (!count) {
            at += scan_decode(text + at, len - at, &c);
            continue;
        }
        end += at;
        if (d.no_word_behind && word) {
            at = end;
            continue;
        }
        for (group = count % 3 ? count % 3 : 3; count && r == 0; count -= group, group = 3) {
            bool kept = d.only_groups && group < 3;

            if (at > from && !kept)
                r = fn(user, text + from, at - from);
            if (!kept)
                from = at;
            for (size_t i = 0; i < group; i++)
                at += scan_decode(text + at, len - at, &c);
            if (r == 0 && !d.only_groups) {
                r = fn(user, text + from, at - from);
                from = at;
            }
        }
    }
    return r == 0 && len > from ? fn(user, text + from, len - from) : r;
}

/* \d{1,3}(?=(?:\d{3})*\b) */
static int run_digits_grouped(const char *text, size_t len, piece_fn fn, void *user)
{
    return run_grouped(text, len, fn, user, (struct digits){ .no_word_behind = true });
}
const struct scan scan_digits_grouped = { "digits from the right", run_digits_grouped };

/* (?=(\d{3})+(?!\d)) : matches nothing, where a multiple of three digits follows, and cuts there. */
static int run_digits_right(const char *text, size_t len, piece_fn fn, void *user)
{
    return run_grouped(text, len, fn, user, (struct digits){ .only_groups = true });
}
const struct scan scan_digits_right = { "before three digits", run_digits_right };

/* As llama.cpp's \p{AFMoE_digits}. */
static int run_numbers_right(const char *text, size_t len, piece_fn fn, void *user)
{
    return run_grouped(text, len, fn, user, (struct digits){ .numbers = true });
}
const struct scan scan_numbers_right = { "numbers from the right", run_numbers_right };

/* \s+$ : white space up to the end of the text, or of a line: the last line feed of a run is not in the match. */
SCAN_INLINE size_t next_spaces_at_end(const char *text, size_t len)
{
    size_t at = 0;

    while (at < len) {
        size_t from = scan_run_not(text, len, at, UC_SPACE), end = 0, n;

        for (n = from; n < len; n++) {
            unsigned class;
            size_t more = scan_class(text + n, len - n, &class);

            if (!(class & UC_SPACE))
                break;
            end = text[n] == '\n' && n > from ? n : end;
            n += more - 1;
        }
        end = n == len && n > from ? n : end;
        if (end)
            return from ? from : end;
        at = n;
    }
    return len;
}
SCAN_BY_NEXT(run_spaces_at_end, next_spaces_at_end)
const struct scan scan_spaces_at_end = { "spaces at the end", run_spaces_at_end };

/*  ?[^(\s|[.,!?…。，、।۔،])]+ */
SCAN_INLINE size_t next_bloom(const char *text, size_t len)
{
    size_t end = 0, n;
    bool in;

    while (end < len) {
        size_t lead = text[end] == ' ';

        in = false;
        if (end + lead < len)
            class_at(text + end + lead, len - end - lead, is_bloom, &in);
        if (in && end)
            return end;
        if (in) {
            for (end = lead; end < len; end += n) {
                n = class_at(text + end, len - end, is_bloom, &in);
                if (!in)
                    break;
            }
            return end;
        }
        end += class_at(text + end, len - end, is_bloom, &in);
    }
    return end;
}
SCAN_BY_NEXT(run_bloom, next_bloom)
const struct scan scan_bloom = { "bloom", run_bloom };

/* [가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+ : 1 to 4, 0: none of them. */
static unsigned youtu_script(uint32_t c)
{
    if ((c >= 0xAC00 && c <= 0xD7A3) || (c >= 0x3131 && c <= 0x318E))
        return 1;
    if (c == 0xFF01 || c == 0x2026 || c == 0x201C || c == 0x201D || c == 0x2018 || c == 0x2019 || c == 0x2014 || c == 0xFF1A ||
        c == 0xFF1B || c == 0xFF0C || (c >= 0x3001 && c <= 0x303F) || (c >= 0xFE30 && c <= 0xFE4F))
        return 2;
    if (c >= 0x3105 && c <= 0x312F)
        return 3;
    return (c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF) ? 4 : 0;
}

SCAN_INLINE size_t next_youtu_scripts(const char *text, size_t len)
{
    uint32_t c;
    size_t end = scan_decode(text, len, &c), n;
    unsigned script = youtu_script(c);

    for (; end < len; end += n) {
        n = scan_decode(text + end, len - end, &c);
        if (youtu_script(c) != script)
            break;
    }
    return end;
}
SCAN_BY_NEXT(run_youtu_scripts, next_youtu_scripts)
const struct scan scan_youtu_scripts = { "scripts, youtu", run_youtu_scripts };

/* Chameleon's marks of images. A match, or what lies before the next one. */

/* <sentinel:[0-9]+> */
SCAN_INLINE size_t match_sentinel(const char *text, size_t len)
{
    static const char begin[] = "<sentinel:";
    size_t n = sizeof begin - 1, digits;

    if (len <= n || memcmp(text, begin, n) != 0)
        return 0;
    for (digits = n; n < len && text[n] >= '0' && text[n] <= '9';)
        n++;
    return n > digits && n < len && text[n] == '>' ? n + 1 : 0;
}

/* (IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z */
SCAN_INLINE size_t match_image(const char *text, size_t len)
{
    static const char begin[] = "IMGIMG";
    size_t n = sizeof begin - 1, letters;

    if (len <= n || memcmp(text, begin, n) != 0)
        return 0;
    for (letters = n; n < len && n < letters + 4 && text[n] >= 'A' && text[n] <= 'I';)
        n++;
    return n > letters && n < len && text[n] == 'Z' ? n + 1 : 0;
}

/* ([\t\n]|    |  ) */
SCAN_INLINE size_t match_blanks(const char *text, size_t len)
{
    if (text[0] == '\t' || text[0] == '\n')
        return 1;
    if (len >= 4 && memcmp(text, "    ", 4) == 0)
        return 4;
    return len >= 2 && memcmp(text, "  ", 2) == 0 ? 2 : 0;
}

SCAN_INLINE size_t next_match(const char *text, size_t len, size_t (*match)(const char *text, size_t len))
{
    size_t n = match(text, len);

    if (n)
        return n;
    for (n = 1; n < len && !match(text + n, len - n);)
        n++;
    return n;
}

STAGE(chameleon_sentinel, next_match(text, len, match_sentinel)) = { "sentinel", run_chameleon_sentinel };
STAGE(chameleon_image, next_match(text, len, match_image)) = { "image", run_chameleon_image };
STAGE(chameleon_spaces, next_match(text, len, match_blanks)) = { "blanks", run_chameleon_spaces };
