#include "loaders/tok/normalize.h"

#include "base/buf.h"
#include "base/err.h"
#include "loaders/tok/charsmap.h"
#include "loaders/tok/regex.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <string.h>

/* Expectations are those of Hugging Face's tokenizers 0.22.2. */

static void expect(const struct normalize_step *steps, size_t n, const char *text, const char *want, bool want_at_start)
{
    CLEANUP(normalizer_free) struct normalizer *made = NULL;
    BUF_LOCAL out = BUF_INIT;
    struct err err = { 0 };
    bool at_start = true;

    cr_assert(zero(int, normalizer_new(steps, n, &made)));
    cr_assert(zero(int, normalizer_run(made, text, strlen(text), &at_start, &out, &err)), "%s", err_text(&err));
    cr_expect(eq(str, (char *)buf_str(&out), (char *)want), "\"%s\"", text);
    cr_expect(at_start == want_at_start, "\"%s\"", text);
}

static void expect_one(struct normalize_step step, const char *text, const char *want)
{
    expect(&step, 1, text, want, true);
}

static struct pattern *string(const char *s)
{
    struct pattern *p = NULL;

    cr_assert(zero(int, pattern_string(s, strlen(s), &p)));
    return p;
}

static struct pattern *regex(const char *s)
{
    struct pattern *p = NULL;

    cr_assert(zero(int, pattern_regex(s, strlen(s), &p, NULL)));
    return p;
}

#define TEXT(s) { s, sizeof s - 1 }

Test(normalize, forms_compose_and_decompose)
{
    expect_one((struct normalize_step){ .op = NORMALIZE_FORM, .form = UNICODE_NFC }, "e\xCC\x81", "\xC3\xA9");
    expect_one((struct normalize_step){ .op = NORMALIZE_FORM, .form = UNICODE_NFD }, "\xC3\xA9", "e\xCC\x81");
    expect_one((struct normalize_step){ .op = NORMALIZE_FORM, .form = UNICODE_NFKC }, "\xEF\xAC\x81\xC2\xBD", "fi1\xE2\x81\x84" "2");
    expect_one((struct normalize_step){ .op = NORMALIZE_FORM, .form = UNICODE_NFKD }, "\xE2\x91\xA1", "2");
}

Test(normalize, lower_case_goes_by_the_character)
{
    expect_one((struct normalize_step){ .op = NORMALIZE_LOWER }, "\xCE\x9F\xCE\x94\xCE\x9F\xCE\xA3 \xC4\xB0", "\xCE\xBF\xCE\xB4\xCE\xBF\xCF\x83 i\xCC\x87");
}

Test(normalize, strip_takes_white_space_and_says_that_the_start_has_moved)
{
    const struct normalize_step left = { .op = NORMALIZE_STRIP, .left = true }, right = { .op = NORMALIZE_STRIP, .right = true },
                                both = { .op = NORMALIZE_STRIP, .left = true, .right = true };

    expect(&left, 1, "\xE3\x80\x80 a ", "a ", false);
    expect(&right, 1, " a \xC2\x85", " a", true);
    expect(&both, 1, " \n ", "", false);
    expect(&both, 1, "a b", "a b", true);
}

Test(normalize, marks_go)
{
    const struct normalize_step step = { .op = NORMALIZE_STRIP_ACCENTS };

    expect(&step, 1, "e\xCC\x81\xCC\x84o", "eo", true);
    expect(&step, 1, "\xCC\x81" "a", "a", false);
}

Test(normalize, replace_takes_strings_and_expressions)
{
    const struct normalize_step spaces = { .op = NORMALIZE_REPLACE, .text = TEXT("\xE2\x96\x81"), .pattern = string(" ") };

    expect_one(spaces, " a b", "\xE2\x96\x81" "a\xE2\x96\x81" "b");
    expect_one((struct normalize_step){ .op = NORMALIZE_REPLACE, .text = TEXT("#"), .pattern = regex("[0-9]+") }, "a12b3", "a#b#");
    expect_one((struct normalize_step){ .op = NORMALIZE_REPLACE, .text = TEXT("-"), .pattern = string("") }, "ab", "-a-b-");
    expect_one((struct normalize_step){ .op = NORMALIZE_REPLACE, .text = TEXT(""), .pattern = string("x") }, "axb", "ab");
}

Test(normalize, a_replacement_of_several_characters_at_the_start_moves_it)
{
    const struct normalize_step two = { .op = NORMALIZE_REPLACE, .text = TEXT("_"), .pattern = regex(" {2,}") };

    expect(&two, 1, "  a", "_a", false);
}

Test(normalize, prepend_leaves_an_empty_text_empty)
{
    const struct normalize_step step = { .op = NORMALIZE_PREPEND, .text = TEXT(">") };

    expect(&step, 1, "a", ">a", true);
    expect(&step, 1, "", "", true);
}

Test(normalize, nmt_drops_controls_and_turns_marks_to_spaces)
{
    expect_one((struct normalize_step){ .op = NORMALIZE_NMT }, "a\x01\x0B" "b\tc\n\xE2\x80\x8B\xEF\xBB\xBF\xE2\x96\x81" "d", "ab c    d");
}

Test(normalize, bert_cleans_spaces_strips_and_lowers)
{
    const struct normalize_step all = { .op = NORMALIZE_BERT, .clean = true, .chinese = true, .accents = true, .lower = true };
    const struct normalize_step cased = { .op = NORMALIZE_BERT, .clean = true, .chinese = true };

    expect_one(all, "A\xC3\x89\xE4\xB8\xAD" "b\tc\xEF\xBF\xBD\xC2\xAD\xC2\x85", "ae \xE4\xB8\xAD b c");
    expect_one(cased, "A\xC3\x89", "A\xC3\x89");
    expect(&cased, 1, "\x01" "a", "a", false);
}

/* Their tables are those of Unicode 8 and 9. */
Test(normalize, what_became_a_mark_or_a_control_later_is_none)
{
    const struct normalize_step bert = { .op = NORMALIZE_BERT, .clean = true, .accents = true };

    expect_one(bert, "a\xCC\x81\xE0\xA3\x94" "b\xE0\xA2\x90" "c", "a\xE0\xA3\x94" "b\xE0\xA2\x90" "c");      /* U+08D4: 9.0, U+0890: 14.0 */
    expect_one((struct normalize_step){ .op = NORMALIZE_STRIP_ACCENTS }, "a\xE0\xA3\x94" "b\xDF\xBD", "ab\xDF\xBD");     /* U+07FD: 11.0 */
}

Test(normalize, bytes_become_the_printable_alphabet)
{
    expect_one((struct normalize_step){ .op = NORMALIZE_BYTE_LEVEL }, "a \xC3\xA9", "a\xC4\xA0\xC3\x83\xC2\xA9");
}

/* One entry: "a" → "b". */
static struct charsmap *map_of_a(void)
{
    struct { uint32_t bytes, units[512]; char texts[4]; } made = { .bytes = sizeof made.units, .texts = "b" };
    struct charsmap *m = NULL;

    made.units[0] = 256u << 10;
    made.units[256 ^ 'a'] = 'a' | 1u << 8 | ((256u ^ 'a') ^ 16u) << 10;
    made.units[16] = 1u << 31;
    cr_assert(zero(int, charsmap_new(&made, sizeof made, &m, NULL)));
    return m;
}

/* The oddity that models were trained with: what a short cluster begins with is found, and stands for all of it. */
Test(normalize, a_short_cluster_is_replaced_whole_and_a_long_one_by_the_character)
{
    expect_one((struct normalize_step){ .op = NORMALIZE_PRECOMPILED, .map = map_of_a() },
               "ax a\xCC\x81x a\xCC\x81\xCC\x81\xCC\x81x a\r\na", "bx bx b\xCC\x81\xCC\x81\xCC\x81x b\r\nb");
}

Test(normalize, steps_follow_each_other)
{
    const struct normalize_step steps[] = {
        { .op = NORMALIZE_FORM, .form = UNICODE_NFKD }, { .op = NORMALIZE_STRIP_ACCENTS }, { .op = NORMALIZE_LOWER },
    };

    expect(steps, 3, "\xE1\xBA\xAC\xE2\x80\xA6", "a...", true);
    expect(steps, 0, "as it is", "as it is", true);
}

Test(normalize, bad_bytes_stay)
{
    expect_one((struct normalize_step){ .op = NORMALIZE_LOWER }, "A\xFF" "B\xC3", "a\xFF" "b\xC3");
}

Test(normalize, the_number_of_steps_has_a_limit)
{
    static const struct normalize_step many[NORMALIZE_MAX_STEPS + 1] = { { .op = NORMALIZE_LOWER } };
    struct normalizer *n = NULL;

    cr_expect(eq(int, normalizer_new(many, NORMALIZE_MAX_STEPS + 1, &n), -E2BIG));
}

Test(normalize, an_expression_over_its_limits_is_an_error_with_a_sentence)
{
    CLEANUP(normalizer_free) struct normalizer *n = NULL;
    BUF_LOCAL out = BUF_INIT;
    struct err err = { 0 };
    bool at_start = true;
    const struct normalize_step step = { .op = NORMALIZE_REPLACE, .text = TEXT("x"), .pattern = regex("(?:a|a)+$") };
    char text[64];

    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = '!';
    cr_assert(zero(int, normalizer_new(&step, 1, &n)));
    cr_expect(eq(int, normalizer_run(n, text, sizeof text, &at_start, &out, &err), -E2BIG));
    cr_expect(strstr(err_text(&err), "takes too long") != NULL, "%s", err_text(&err));
}
