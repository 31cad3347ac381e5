#include "loaders/tok/json_pull.h"

#include "base/err.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <string.h>

static struct json_pull begin(const char *text, struct err *err)
{
    struct json_pull p;

    *err = (struct err){ 0 };
    json_pull_init(&p, "t.json", text, strlen(text), err);
    return p;
}

static void expect_string(const char *json, const char *want, size_t want_len)
{
    struct err err;
    struct json_pull p = begin(json, &err);
    struct tok_str s;

    cr_assert(zero(int, json_pull_string(&p, &s)), "%s", err_text(&err));
    cr_expect(s.len == want_len && memcmp(s.text, want, want_len) == 0, "%s", json);
    json_pull_fini(&p);
}

Test(json_pull, strings_are_views_or_have_their_escapes_undone)
{
    expect_string("\"abc\"", "abc", 3);
    expect_string(" \"\"", "", 0);
    expect_string("\"a\\n\\\"\\\\\\/\\b\\f\\r\\t\"", "a\n\"\\/\b\f\r\t", 9);
    expect_string("\"\\u00e9\\uD83D\\ude00\\u0000\"", "\xC3\xA9\xF0\x9F\x98\x80\0", 7);
    expect_string("\"\xC3\xA9\"", "\xC3\xA9", 2);
}

static void expect_number(const char *json, double want)
{
    struct err err;
    struct json_pull p = begin(json, &err);
    double have;

    cr_assert(zero(int, json_pull_number(&p, &have)), "%s", err_text(&err));
    cr_expect(eq(dbl, have, want), "%s", json);
    json_pull_fini(&p);
}

Test(json_pull, numbers_are_those_of_the_library_that_the_scores_were_tuned_with)
{
    expect_number("0", 0);
    expect_number("-1.5e2", -150);
    expect_number("1E-2", 0.01);
    expect_number("123456789012345678901234567890", 1.2345678901234567e29);
    expect_number("-7.2570700645446777", -(72570700645446777.0 / 1e16));
    expect_number("1e-400", 0);
    expect_number("-13.296170234680176", -(13296170234680176.0 / 1e15));        /* by one division, not the nearest */
}

/* Reads all of it: 0 or the error. */
static int walk(const char *json, struct err *err)
{
    struct json_pull p = begin(json, err);
    int e = json_pull_skip(&p);

    if (e == 0)
        e = json_pull_end(&p);
    json_pull_fini(&p);
    return e;
}

Test(json_pull, any_value_is_skipped_whole)
{
    static const char *const good[] = {
        "null", "true", " false ", "1", "\"x\"", "[]", "{}", "[1,[2,[3]],{}]", "{\"a\":{\"b\":[1,2,\"]}\"]},\"c\":null}", "[[],[{}]]",
    };
    struct err err;

    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        cr_expect(zero(int, walk(good[i], &err)), "%s: %s", good[i], err_text(&err));
}

Test(json_pull, what_is_no_json_is_refused_at_its_byte)
{
    static const struct { const char *json, *error; } bad[] = {
        { "", "t.json: byte 0: the text ends where a value should be" },
        { "[", "t.json: byte 1: the text ends where a value should be" },
        { "[1", "t.json: byte 2: the text ends where a comma or ] should be" },
        { "[1,]", "t.json: byte 3: a number should be here" },
        { "[1 2]", "t.json: byte 3: a comma or ] should be here" },
        { "[1}", "t.json: byte 2: a comma or ] should be here" },
        { "{1:2}", "t.json: byte 1: a string should be here" },
        { "{\"a\" 1}", "t.json: byte 5: a colon should be here" },
        { "{\"a\":1,}", "t.json: byte 7: a string should be here" },
        { "\"abc", "t.json: byte 0: a string without an end" },
        { "\"a\\\"", "t.json: byte 0: a string without an end" },
        { "\"\\x\"", "t.json: byte 0: a string with a bad escape" },
        { "\"\\u12\"", "t.json: byte 0: a string with a bad escape" },
        { "\"\\ud800\"", "t.json: byte 0: a string with a bad escape" },
        { "\"\\udc00\"", "t.json: byte 0: a string with a bad escape" },
        { "\"\\ud800\\u0041\"", "t.json: byte 0: a string with a bad escape" },
        { "\"a\nb\"", "t.json: byte 2: a control character in a string" },
        { "\"\xFF\"", "t.json: byte 0: a string that is not UTF-8" },
        { "01", "t.json: byte 0: a number should be here" },
        { "1.", "t.json: byte 0: a number should be here" },
        { "-", "t.json: byte 0: a number should be here" },
        { "+1", "t.json: byte 0: a number should be here" },
        { "1e", "t.json: byte 0: a number should be here" },
        { "tru", "t.json: byte 0: true or false should be here" },
        { "nul", "t.json: byte 0: a value should be here" },
        { "1 x", "t.json: byte 2: something behind the end" },
    };
    struct err err;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_expect(eq(int, walk(bad[i].json, &err), -EINVAL), "%s", bad[i].json);
        cr_expect(eq(str, (char *)err_text(&err), (char *)bad[i].error), "%s", bad[i].json);
    }
}

Test(json_pull, depth_has_a_limit)
{
    char deep[JSON_PULL_DEPTH + 2];
    struct err err;

    memset(deep, '[', sizeof deep - 1);
    deep[sizeof deep - 1] = '\0';
    cr_expect(eq(int, walk(deep, &err), -E2BIG));
    cr_expect(strstr(err_text(&err), "more than 64 levels") != NULL);
}

Test(json_pull, integers_are_whole_and_bounded)
{
    static const char *const bad[] = { "1.5", "1e3", "", "-", "01", "9999999999999999999", "x" };
    struct err err;
    struct json_pull p = begin("-12", &err);
    int64_t n;

    cr_assert(zero(int, json_pull_integer(&p, &n)));
    cr_expect(eq(i64, n, -12));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        p = begin(bad[i], &err);
        cr_expect(eq(int, json_pull_integer(&p, &n), -EINVAL), "%s", bad[i]);
    }
}

Test(json_pull, a_slice_is_the_value_as_it_is_written)
{
    struct err err;
    struct json_pull p = begin("{\"a\": [1, {\"b\":2}] }", &err);
    struct tok_str key, slice;

    cr_assert(zero(int, json_pull_open(&p, '{')));
    cr_assert(eq(int, json_pull_key(&p, &key), 1));
    cr_assert(zero(int, json_pull_slice(&p, &slice)));
    cr_expect(slice.len == 12 && memcmp(slice.text, "[1, {\"b\":2}]", 12) == 0);
    cr_expect(zero(int, json_pull_key(&p, &key)));
    cr_expect(zero(int, json_pull_end(&p)));
}
