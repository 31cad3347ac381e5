/* The family of o200k: words are cut where a small letter is followed by a capital one.
 *
 *     [^\r\n\p{L}\p{N}]?U*L+TAIL?|[^\r\n\p{L}\p{N}]?U+L*TAIL?|…        U: [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]   L: [\p{Ll}\p{Lm}\p{Lo}\p{M}]
 *
 * without going back: after the longest run of U, a small letter begins L+, which then takes all it can. If none is there, a matcher
 * that goes back gives U characters to L+ until one is in both classes: the match ends behind the last such one. If there is
 * none either, the first alternative fails and the second takes the run.
 */
#include "loaders/tok/scan_in.h"

enum { BOTH = UC_LETTER_OTHER | UC_MARK };

struct cased {
    bool tails;                         /* 's and so on belong to the word */
    size_t max_digits;
    bool slashes;                       /* symbols take slashes behind them, as line ends */
    bool no_han;                        /* Han is in neither class: it stands alone */
};

SCAN_INLINE size_t cased_class(const char *text, size_t len, struct cased c, unsigned *ret)
{
    uint32_t character;
    size_t n;

    if (!c.no_han || (unsigned char)text[0] < 0x80)
        return scan_class(text, len, ret);
    n = scan_decode(text, len, &character);
    *ret = character == SCAN_NO_CHARACTER ? 0 : unicode_class(character);
    if (character != SCAN_NO_CHARACTER && unicode_is_han(character))
        *ret |= 1 << 8;
    return n;
}
enum { HAN = 1 << 8 };

SCAN_INLINE bool is_in(unsigned class, unsigned mask)
{
    return (class & mask) && !(class & HAN);
}

SCAN_INLINE size_t cased_run(const char *text, size_t len, size_t at, struct cased c, unsigned mask)
{
    unsigned class;
    size_t n;

    for (; at < len; at += n) {
        n = cased_class(text + at, len - at, c, &class);
        if (!is_in(class, mask))
            break;
    }
    return at;
}

/* U*L+ from `at`: where it ends, or 0. *ret_upper: where the run of U ends. */
SCAN_INLINE size_t lower_word(const char *text, size_t len, size_t at, struct cased c, size_t *ret_upper)
{
    size_t both = 0, n;
    unsigned class = 0;

    for (; at < len; at += n) {
        n = cased_class(text + at, len - at, c, &class);
        if (!is_in(class, SCAN_UPPER))
            break;
        if (class & BOTH)
            both = at + n;
    }
    *ret_upper = at;
    if (at < len && is_in(class, UC_LETTER_LOWER))
        return cased_run(text, len, at, c, SCAN_LOWER);
    return both;
}

SCAN_INLINE size_t with_tail(const char *text, size_t len, size_t end, struct cased c)
{
    return c.tails && end < len ? end + scan_contraction(text + end, len - end, true) : end;
}

/* A word at text, whose first character ends at `first`, or 0. */
SCAN_INLINE size_t match_word(const char *text, size_t len, size_t first, unsigned class, struct cased c)
{
    bool may_lead = !(class & (UC_LETTER | UC_NUMBER)) && !scan_newline(text[0]);
    bool is_word = is_in(class, UC_LETTER | UC_MARK);
    size_t end = 0, upper = 0, upper_behind = 0;

    if (may_lead)
        end = lower_word(text, len, first, c, &upper_behind);
    if (!end && is_word)
        end = lower_word(text, len, 0, c, &upper);
    if (!end && may_lead && upper_behind > first)
        end = upper_behind;
    if (!end && is_word)
        end = upper;
    return end ? with_tail(text, len, end, c) : 0;
}

SCAN_INLINE size_t next_cased(const char *text, size_t len, struct cased c)
{
    unsigned class, next;
    size_t first = cased_class(text, len, c, &class), end, n;

    if (class & HAN) {
        for (end = first; end < len; end += n) {
            n = cased_class(text + end, len - end, c, &class);
            if (!(class & HAN))
                break;
        }
        return end;
    }
    if (class & UC_NUMBER) {
        for (end = first; --c.max_digits && end < len; end += n) {
            n = scan_class(text + end, len - end, &class);
            if (!(class & UC_NUMBER))
                break;
        }
        return end;
    }
    end = match_word(text, len, first, class, c);
    if (end)
        return end;
    next = scan_class_at(text, len, first);
    if (!(class & UC_SPACE) || (text[0] == ' ' && first < len && !(next & SCAN_WORD))) {
        end = scan_run_not(text, len, first, SCAN_WORD);
        while (end < len && (scan_newline(text[end]) || (c.slashes && text[end] == '/')))
            end++;
        return end;
    }
    return scan_line_spaces(text, len);
}

SCAN_INLINE size_t next_o200k(const char *text, size_t len)
{
    return next_cased(text, len, (struct cased){ .tails = true, .max_digits = 3, .slashes = true });
}

SCAN_INLINE size_t next_tekken(const char *text, size_t len)
{
    return next_cased(text, len, (struct cased){ .max_digits = 1, .slashes = true });
}

SCAN_INLINE size_t next_youtu(const char *text, size_t len)
{
    return next_cased(text, len, (struct cased){ .tails = true, .max_digits = 1, .slashes = true });
}

SCAN_INLINE size_t next_kimi(const char *text, size_t len)
{
    return next_cased(text, len, (struct cased){ .tails = true, .max_digits = 3, .no_han = true });
}

SCAN_BY_NEXT(run_o200k, next_o200k)
SCAN_BY_NEXT(run_tekken, next_tekken)
SCAN_BY_NEXT(run_youtu, next_youtu)
SCAN_BY_NEXT(run_kimi, next_kimi)

const struct scan scan_o200k = { "o200k", run_o200k };
const struct scan scan_tekken = { "tekken", run_tekken };
const struct scan scan_youtu = { "youtu", run_youtu };
const struct scan scan_kimi = { "kimi-k2", run_kimi };
