#include "loaders/tok/regex.h"

#include "base/buf.h"
#include "base/err.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <string.h>

/* All matches as "0-2 3-3", or what went wrong. */
static void find_all(struct pattern *p, const char *text, size_t len, struct buf *out)
{
    struct pattern_walk w;
    size_t start, end;
    int e = pattern_begin(&w, p, text, len);

    while (e == 0 && (e = pattern_next(&w, &start, &end)) == 0)
        buf_printf(out, "%s%zu-%zu", out->len ? " " : "", start, end);
    if (e != PATTERN_END)
        buf_printf(out, "error %d", e);
    pattern_end(&w);
}

static void expect_matches(const char *regex, const char *text, const char *want)
{
    CLEANUP(pattern_free) struct pattern *p = NULL;
    BUF_LOCAL have = BUF_INIT;
    struct err err = { 0 };

    cr_assert(zero(int, pattern_regex(regex, strlen(regex), &p, &err)), "%s: %s", regex, err_text(&err));
    find_all(p, text, strlen(text), &have);
    cr_expect(eq(str, (char *)buf_str(&have), (char *)want), "%s in \"%s\"", regex, text);
}

static void expect_refused(const char *regex, int code, const char *part)
{
    CLEANUP(pattern_free) struct pattern *p = NULL;
    struct err err = { 0 };

    cr_expect(eq(int, pattern_regex(regex, strlen(regex), &p, &err), code), "%s", regex);
    cr_expect(strstr(err_text(&err), part) != NULL, "%s: %s", regex, err_text(&err));
}

Test(regex, plain_expressions_match_as_they_do_everywhere)
{
    expect_matches("a+|b", "aab", "0-2 2-3");
    expect_matches("(?i:'s)", "'S 's '\xC5\xBF", "0-2 3-5 6-9");
    expect_matches("a(?!b)", "abaac", "2-3 3-4");
    expect_matches("(?<=x)y", "xyy", "1-2");
    expect_matches("(a)\\1", "aaab", "0-2");
    expect_matches("(?<n>a)\\k<n>", "aa", "0-2");
    expect_matches("(?>a+)b|c", "aac", "2-3");
    expect_matches("x{2}", "xxxxx", "0-2 2-4");
    expect_matches("x{2,}?", "xxxxx", "0-2 2-4");
    expect_matches("x{,2}y", "xxxy", "1-4");
    expect_matches("a{b}", "a{b}", "0-4");
    expect_matches("a(?#no)b", "ab", "0-2");
}

Test(regex, an_interval_with_a_plus_repeats_and_does_not_possess)
{
    expect_matches("\\p{N}{1,3}+", "1234567", "0-7");
    expect_matches("a{2}?b", "b aab", "0-1 2-5");           /* {2}? may be left out */
    expect_matches("a?+a", "a", "");
    expect_matches("a++a|b", "aab", "2-3");
}

Test(regex, lines_are_what_the_anchors_mean)
{
    expect_matches("^a", "a\na", "0-1 2-3");
    expect_matches("a$", "a\na", "0-1 2-3");
    expect_matches("\\Aa", "a\na", "0-1");
    expect_matches("a\\z", "a\na", "2-3");
    expect_matches("a\\Z", "a\na\n", "2-3");
    expect_matches("a.b", "a\nb", "");
    expect_matches("(?m)a.b", "a\nb", "0-3");
    expect_matches("(?m:a.)b.", "a\nb\n", "");
}

Test(regex, an_option_alone_holds_to_the_end_of_its_group_and_over_its_alternatives)
{
    expect_matches("a(?i)b|c", "aB aC c", "0-2 3-5");
    expect_matches("(?:(?i)x)y", "XyXY", "0-2");
}

Test(regex, classes_hold_classes_and_intersections)
{
    expect_matches("[a[bc]]+", "abcd", "0-3");
    expect_matches("[^a[bc]]+", "xabcd", "0-1 4-5");
    expect_matches("[a-z&&[^aeiou]]+", "hello", "0-1 2-4");
    expect_matches("[^a-z&&[^aeiou]]+", "hello!", "1-2 4-6");
    expect_matches("[\\p{L}&&[^\\p{Han}]]+", "ab\xE4\xB8\xAD" "c", "0-2 5-6");
    expect_matches("[\\W]+", "a! b", "1-3");
    expect_matches("[^\\W]+", "a! b", "0-1 3-4");
    expect_matches("[a\\S]+", "a b\xC2\xA0" "c", "0-1 2-3 5-6");
    expect_matches("[[:alpha:]]+", "a1\xC3\xA9", "0-1 2-4");
    expect_matches("[[:^digit:]]+", "a1b", "0-1 2-3");
    expect_matches("[[:punct:]]+", "a$-\xE2\x82\xAC", "1-6");
    expect_matches("[]a]+", "]a", "0-2");
    expect_matches("[a-]+", "a-b", "0-2");
    expect_matches("[\\d-x]+", "1-x", "0-3");
    expect_matches("[\\x{4e00}-\\x{9fa5}]", "\xE4\xB8\xAD", "0-3");
    expect_matches(" ?[^(\\s|[.,!?])]+", "a b|c.d", "0-1 1-3 4-5 6-7");
}

Test(regex, shorthands_are_those_of_the_other_engine)
{
    expect_matches("\\h+", "xAf0", "1-4");
    expect_matches("\\s", "\xE1\xA0\x8E \xE2\x80\xA8", "3-4 4-7");         /* U+180E is none */
    expect_matches("\\w+", "a_\xCC\x81-b", "0-4 5-6");                      /* U+0301 is one */
    expect_matches("\\w|[^\\w]", "\xC2\xB2", "0-2");                        /* a superscript is one outside a class only */
    expect_matches("[\\w]|\\W", "\xC2\xB2", "");
    expect_matches("\\b", "ab c", "0-0 2-2 3-3 4-4");
    expect_matches("\\B.", "ab", "1-2");
    expect_matches("\\d{1,3}(?=(?:\\d{3})*\\b)", "1234567", "0-1 1-4 4-7");
    expect_matches("\\p{Han}", "\xE3\x80\x81\xE4\xB8\xAD", "3-6");         /* U+3001 only extends it */
    expect_matches("\\p{^Lu}\\P{Lu}", "aB cd", "2-4");
    expect_matches("\\R", "a\r\nb", "1-3");
    expect_matches("\\v", "\x0B\n", "0-1");
    expect_matches("\\p{Letter}\\p{Uppercase_Letter}", "aB", "0-2");
}

Test(regex, empty_matches_come_between_characters_and_not_behind_another_match)
{
    expect_matches("(?=(\\d{3})+(?!\\d))", "1234567", "1-1 4-4");
    expect_matches("x*", "axb", "0-0 1-2 3-3");
    expect_matches("", "\xC3\xA9", "0-0 2-2");
    expect_matches("", "", "");
}

Test(regex, a_string_is_found_as_it_stands)
{
    CLEANUP(pattern_free) struct pattern *dot = NULL;
    CLEANUP(pattern_free) struct pattern *empty = NULL;
    BUF_LOCAL have = BUF_INIT;

    cr_assert(zero(int, pattern_string("..", 2, &dot)));
    find_all(dot, "a.....", 6, &have);
    cr_expect(eq(str, (char *)buf_str(&have), "1-3 3-5"));
    buf_clear(&have);
    cr_assert(zero(int, pattern_string("", 0, &empty)));
    find_all(empty, "a\xC3\xA9", 3, &have);
    cr_expect(eq(str, (char *)buf_str(&have), "0-0 1-1 3-3"));
}

Test(regex, bad_bytes_are_characters_of_no_class_and_keep_their_places)
{
    expect_matches("\\p{L}+", "a\xFF" "b\xC3", "0-1 2-3");
    expect_matches("[^\\s\\p{L}]+", "a\xFF\xC3", "1-3");
}

Test(regex, what_is_no_expression_says_where)
{
    expect_refused("a)", -EINVAL, "byte 1: a ) without its (");
    expect_refused("(a", -EINVAL, "a group without its )");
    expect_refused("[a", -EINVAL, "a class without its ]");
    expect_refused("*a", -EINVAL, "nothing to repeat");
    expect_refused("[b-a]", -EINVAL, "a range that ends before it begins");
    expect_refused("a\\", -EINVAL, "a backslash at the end");
    expect_refused("\\p{Klingon}", -EINVAL, "\\p{Klingon}");
    expect_refused("\\x{110000}", -EINVAL, "hexadecimal");
    expect_refused("\\x{d800}", -EINVAL, "hexadecimal");
    expect_refused("\xFF", -EINVAL, "not UTF-8");
    expect_refused("(?#", -EINVAL, "a comment without its )");
}

Test(regex, what_can_not_be_rewritten_is_refused_by_name)
{
    expect_refused("\\X", -ENOTSUP, "\\X");
    expect_refused("(?x)a", -ENOTSUP, "(?x");
    expect_refused("(*FAIL)", -ENOTSUP, "(*");
    expect_refused("(?~a)", -ENOTSUP, "(?~");
    expect_refused("\\xE3", -ENOTSUP, "\\xE3");
    expect_refused("\\012", -ENOTSUP, "octal");
    expect_refused("[&&a]", -ENOTSUP, "an empty class");
    expect_refused("a{3,1}", -ENOTSUP, "ends before it begins");
}

Test(regex, size_and_depth_have_limits)
{
    char deep[300], long_one[PATTERN_MAX + 2];

    memset(deep, '(', sizeof deep - 1);
    deep[sizeof deep - 1] = '\0';
    expect_refused(deep, -E2BIG, "nested too deeply");
    memset(deep, '[', sizeof deep - 1);
    expect_refused(deep, -E2BIG, "nested too deeply");
    memset(long_one, 'a', sizeof long_one - 1);
    long_one[sizeof long_one - 1] = '\0';
    expect_refused(long_one, -E2BIG, "bytes, at most");
    expect_refused("a{99999}", -E2BIG, "repetitions");
    expect_refused("(?:(?:a{60000}){60000}){60000}", -EINVAL, "too large");
    memset(deep, '+', sizeof deep - 1);
    deep[0] = 'a';
    deep[sizeof deep - 1] = '\0';
    {
        CLEANUP(pattern_free) struct pattern *p = NULL;
        struct err err = { 0 };
        int e = pattern_regex(deep, strlen(deep), &p, &err);

        cr_expect(e == 0 || err_is_set(&err));
    }
}

Test(regex, an_expression_that_tries_for_ever_is_an_error)
{
    char text[64];

    memset(text, 'a', sizeof text - 2);
    text[sizeof text - 2] = '!';
    text[sizeof text - 1] = '\0';
    expect_matches("(?:a|aa)+b|(?:a|a)+$", text, "error -7");
}
