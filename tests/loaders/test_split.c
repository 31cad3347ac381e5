#include "loaders/tok/split.h"

#include "base/buf.h"
#include "base/err.h"
#include "loaders/tok/regex.h"
#include "loaders/tok/scan.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <string.h>

/* Expectations are those of Hugging Face's tokenizers 0.22.2. Pieces are written with a bar behind each. */

static int add_piece(void *user, const char *piece, size_t len)
{
    struct buf *out = user;

    buf_add(out, piece, len);
    buf_addc(out, '|');
    return 0;
}

static void expect_at(const struct split_step *steps, size_t n, const char *text, bool at_start, const char *want)
{
    CLEANUP(splitter_free) struct splitter *s = NULL;
    BUF_LOCAL out = BUF_INIT;
    struct err err = { 0 };

    cr_assert(zero(int, splitter_new(steps, n, &s)));
    cr_assert(zero(int, splitter_run(s, text, strlen(text), at_start, NULL, add_piece, &out, &err)), "%s", err_text(&err));
    cr_expect(eq(str, (char *)buf_str(&out), (char *)want), "\"%s\"", text);
}

static void expect(const struct split_step step, const char *text, const char *want)
{
    expect_at(&step, 1, text, true, want);
}

static struct pattern *regex(const char *s)
{
    struct pattern *p = NULL;

    cr_assert(zero(int, pattern_regex(s, strlen(s), &p, NULL)));
    return p;
}

static struct split_step at(const char *expression, enum split_behavior behavior, bool invert)
{
    return (struct split_step){ .op = SPLIT_PATTERN, .pattern = regex(expression), .behavior = behavior, .invert = invert };
}

Test(split, behaviours_keep_drop_and_join)
{
    const char *text = "the-final--countdown";

    expect(at("-", SPLIT_REMOVED, false), text, "the|final|countdown|");
    expect(at("-", SPLIT_ISOLATED, false), text, "the|-|final|-|-|countdown|");
    expect(at("-", SPLIT_MERGED_WITH_PREVIOUS, false), text, "the-|final-|-|countdown|");
    expect(at("-", SPLIT_MERGED_WITH_NEXT, false), text, "the|-final|-|-countdown|");
    expect(at("-", SPLIT_CONTIGUOUS, false), text, "the|-|final|--|countdown|");
}

Test(split, inverted_the_text_between_is_what_counts)
{
    const char *text = "ab12c--";

    expect(at("[a-z]+", SPLIT_REMOVED, true), text, "ab|c|");
    expect(at("[a-z]+", SPLIT_ISOLATED, true), text, "ab|12|c|--|");
    expect(at("[a-z]+", SPLIT_MERGED_WITH_PREVIOUS, true), text, "ab12|c--|");
    expect(at("[a-z]+", SPLIT_MERGED_WITH_NEXT, true), text, "ab|12c|--|");
    expect(at("[a-z]", SPLIT_CONTIGUOUS, true), text, "ab|12|c|--|");
}

Test(split, matches_at_both_ends_have_nothing_to_join)
{
    expect(at("-", SPLIT_MERGED_WITH_PREVIOUS, false), "-a-", "-|a-|");
    expect(at("-", SPLIT_MERGED_WITH_NEXT, false), "-a-", "-a|-|");
    expect(at("x", SPLIT_REMOVED, false), "xxx", "");
    expect(at("x", SPLIT_ISOLATED, false), "", "");
}

Test(split, an_empty_match_cuts)
{
    expect(at("(?=(\\d{3})+(?!\\d))", SPLIT_ISOLATED, false), "1234567", "1|234|567|");
    expect(at("(?=b)", SPLIT_MERGED_WITH_PREVIOUS, false), "abab", "a|ba|b|");
}

Test(split, digits_are_single_or_runs_and_all_numbers)
{
    expect((struct split_step){ .op = SPLIT_DIGITS, .behavior = SPLIT_ISOLATED }, "a12\xC2\xBD" "b", "a|1|2|\xC2\xBD|b|");
    expect((struct split_step){ .op = SPLIT_DIGITS, .behavior = SPLIT_CONTIGUOUS }, "a12\xC2\xBD" "b", "a|12\xC2\xBD|b|");
}

Test(split, punctuation_has_all_of_ascii)
{
    expect((struct split_step){ .op = SPLIT_PUNCTUATION, .behavior = SPLIT_ISOLATED }, "a$b+\xE3\x80\x82\xE2\x82\xAC", "a|$|b|+|\xE3\x80\x82|\xE2\x82\xAC|");
    expect((struct split_step){ .op = SPLIT_PUNCTUATION, .behavior = SPLIT_CONTIGUOUS }, "a...b", "a|...|b|");
}

/* Their tables are those of Unicode 8 and 9. */
Test(split, what_became_punctuation_or_a_script_later_is_none)
{
    expect((struct split_step){ .op = SPLIT_PUNCTUATION, .behavior = SPLIT_ISOLATED }, "a\xE2\xB9\x82" "b\xE2\xB9\x83" "c", "a|\xE2\xB9\x82|b\xE2\xB9\x83" "c|");
    expect((struct split_step){ .op = SPLIT_PUNCTUATION, .behavior = SPLIT_ISOLATED }, "a\xE1\x99\xAD" "b", "a|\xE1\x99\xAD|b|");    /* was one */
    expect((struct split_step){ .op = SPLIT_SCRIPTS }, "a\xE1\xB2\x80\xF0\x90\xB4\x80" "b", "a|\xE1\xB2\x80\xF0\x90\xB4\x80|b|");  /* U+10D00: 11.0 */
}

Test(split, white_space_goes)
{
    expect((struct split_step){ .op = SPLIT_SPACE, .behavior = SPLIT_REMOVED }, " a\xE3\x80\x80" "b.\n", "a|b.|");
    expect((struct split_step){ .op = SPLIT_WORDS }, "Hi, you_2 +-", "Hi|,|you_2|+-|");
    expect((struct split_step){ .op = SPLIT_CHARACTER, .character = '-', .behavior = SPLIT_REMOVED }, "a-b--c", "a|b|c|");
}

Test(split, scripts_change_where_letters_do)
{
    expect((struct split_step){ .op = SPLIT_SCRIPTS }, "ab \xE3\x81\x82\xE6\xBC\xA2\xE3\x82\xAB\xE3\x83\xBC c", "ab |\xE3\x81\x82\xE6\xBC\xA2\xE3\x82\xAB\xE3\x83\xBC |c|");
    expect((struct split_step){ .op = SPLIT_SCRIPTS }, "  a", "a|");         /* as theirs: what has no script in front is dropped */
    expect((struct split_step){ .op = SPLIT_SCRIPTS }, "  ", "");
}

Test(split, length_counts_characters)
{
    expect((struct split_step){ .op = SPLIT_LENGTH, .length = 2 }, "a\xC3\xA9" "bcd", "a\xC3\xA9|bc|d|");
    expect((struct split_step){ .op = SPLIT_LENGTH, .length = 9 }, "abc", "abc|");
}

#define MARK "\xE2\x96\x81"

Test(split, metaspace_marks_the_start_as_it_is_told)
{
    struct split_step s = { .op = SPLIT_METASPACE, .character = 0x2581, .cut = true, .prepend = SPLIT_PREPEND_ALWAYS };

    expect_at(&s, 1, "a b", false, MARK "a|" MARK "b|");
    expect_at(&s, 1, " a  b", true, MARK "a|" MARK "|" MARK "b|");
    s.prepend = SPLIT_PREPEND_FIRST;
    expect_at(&s, 1, "a b", true, MARK "a|" MARK "b|");
    expect_at(&s, 1, "a b", false, "a|" MARK "b|");
    s.prepend = SPLIT_PREPEND_NEVER;
    expect_at(&s, 1, "a b", true, "a|" MARK "b|");
    s.cut = false;
    expect_at(&s, 1, "a b", true, "a" MARK "b|");
    s.prepend = SPLIT_PREPEND_ALWAYS;
    expect_at(&s, 1, MARK "a b", true, MARK "a" MARK "b|");
}

Test(split, each_step_cuts_what_the_one_before_made)
{
    const struct split_step steps[] = {
        { .op = SPLIT_SPACE, .behavior = SPLIT_REMOVED }, { .op = SPLIT_PUNCTUATION, .behavior = SPLIT_ISOLATED },
        { .op = SPLIT_PREFIX_SPACE }, { .op = SPLIT_ALPHABET },
    };

    expect_at(steps, 4, "Hi, b\xC3\xA9", true, "\xC4\xA0Hi|\xC4\xA0,|\xC4\xA0" "b\xC3\x83\xC2\xA9|");
    expect_at(steps, 0, "as it is", true, "as it is|");
}

Test(split, an_expression_sees_one_piece_only)
{
    const struct split_step steps[] = { { .op = SPLIT_CHARACTER, .character = 'x', .behavior = SPLIT_ISOLATED }, at("\\s+(?!\\S)|\\S+|\\s+", SPLIT_ISOLATED, false) };

    expect_at(steps, 2, "a  xb", true, "a|  |x|b|");
}

Test(split, a_known_expression_is_scanned)
{
    static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
    struct split_step s = { .op = SPLIT_SCAN, .scan = scan_of_regex(gpt2, strlen(gpt2)) };

    cr_assert(s.scan != NULL);
    expect(s, "it's  12!", "it|'s| | 12|!|");
}

static int stop(void *user, const char *piece, size_t len)
{
    return *piece == 'b' ? -EIO : 0;
}

Test(split, what_the_receiver_returns_is_handed_up)
{
    CLEANUP(splitter_free) struct splitter *s = NULL;
    const struct split_step step = { .op = SPLIT_SPACE, .behavior = SPLIT_REMOVED };

    cr_assert(zero(int, splitter_new(&step, 1, &s)));
    cr_expect(eq(int, splitter_run(s, "a b c", 5, true, NULL, stop, NULL, NULL), -EIO));
}

Test(split, an_expression_over_its_limits_is_an_error_with_a_sentence)
{
    CLEANUP(splitter_free) struct splitter *s = NULL;
    BUF_LOCAL out = BUF_INIT;
    struct err err = { 0 };
    const struct split_step step = at("(?:a|a)+$", SPLIT_ISOLATED, false);
    char text[64];

    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = '!';
    cr_assert(zero(int, splitter_new(&step, 1, &s)));
    cr_expect(eq(int, splitter_run(s, text, sizeof text, true, NULL, add_piece, &out, &err), -E2BIG));
    cr_expect(strstr(err_text(&err), "takes too long") != NULL, "%s", err_text(&err));
}
