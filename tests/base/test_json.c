#include "base/json.h"

#include "base/err.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

static int check(const char *text, struct err *err)
{
    return json_check(text, strlen(text), NULL, err);
}

Test(json, accepts_what_the_grammar_accepts)
{
    static const char *const good[] = {
        "null", " true ", "[]", "{}", "[1,2,[3]]", "{\"a\":{\"b\":[]}}", "-0", "1.5e-7", "0.25E+3",
        "\"\\u00e9 \\ud83d\\ude00 \\n\"", "\"\xC3\xA9\"", "[true,false,null]", "\t\r\n 7 \n",
    };

    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct err e = { 0 };

        cr_expect(eq(int, check(good[i], &e), 0), "%s: %s", good[i], e.text);
    }
}

Test(json, refuses_everything_else_with_place_and_reason)
{
    static const struct {
        const char *text, *reason;
    } bad[] = {
        { "", "byte 0: unexpected end" },
        { "[1,]", "byte 3: unexpected character" },
        { "{\"a\":1,}", "byte 7: expected a key in quotes" },
        { "{a:1}", "byte 1: expected a key in quotes" },
        { "{\"a\" 1}", "byte 5: expected ':'" },
        { "[1 2]", "byte 3: expected ',' or a bracket" },
        { "[1", "byte 2: unexpected end" },
        { "01", "byte 1: something follows the JSON value" },
        { "1.", "byte 2: number without digits behind the point" },
        { "1e", "byte 2: number without digits in its exponent" },
        { "+1", "byte 0: unexpected character" },
        { "NaN", "byte 0: unexpected character" },
        { "tru", "byte 0: unexpected character" },
        { "\"abc", "byte 4: unfinished string" },
        { "\"a\nb\"", "byte 2: control character in a string" },
        { "\"\\x\"", "byte 2: unknown escape in a string" },
        { "\"\\u12\"", "byte 3: unfinished \\u escape" },
        { "\"\\u12zz\"", "byte 5: \\u escape with a character that is not hexadecimal" },
        { "\"\\u0000\"", "byte 7: U+0000 in a string" },
        { "\"\\ud800x\"", "byte 7: high surrogate without a low one" },
        { "\"\\udc00\"", "byte 7: low surrogate without a high one" },
        { "\"\xFF\"", "byte 1: not valid UTF-8" },
        { "\"\xED\xA0\x80\"", "byte 1: not valid UTF-8" },
        { "{} {}", "byte 3: something follows the JSON value" },
        { "[}", "byte 1: unexpected character" },
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct err e = { 0 };

        cr_expect(eq(int, check(bad[i].text, &e), -EINVAL), "%s", bad[i].text);
        cr_expect(eq(str, e.text, (char *)bad[i].reason));
    }
}

Test(json, a_nul_byte_does_not_end_the_text)
{
    struct err e = { 0 };

    cr_expect(eq(int, json_check("1\0", 2, NULL, &e), -EINVAL));
}

Test(json, limits_hold_before_a_tree_is_made)
{
    const struct json_limits tight = { .bytes = 40, .depth = 3, .string_bytes = 8, .values = 5 };
    struct err e = { 0 };

    cr_expect(eq(int, json_check("[[[1]]]", 7, &tight, &e), 0));
    cr_expect(eq(int, json_check("[[[[1]]]]", 9, &tight, &e), -E2BIG));
    err_clear(&e);
    cr_expect(eq(int, json_check("[1,2,3,4,5]", 11, &tight, &e), -E2BIG));
    err_clear(&e);
    cr_expect(eq(int, json_check("\"123456789012\"", 14, &tight, &e), -E2BIG));
    err_clear(&e);
    cr_expect(eq(int, json_check("                                          1", 43, &tight, &e), -E2BIG));
}

Test(json, a_thousand_brackets_are_an_error_and_no_crash)
{
    char deep[2000];
    struct err e = { 0 };

    memset(deep, '[', sizeof deep);
    cr_expect(eq(int, json_check(deep, sizeof deep, NULL, &e), -E2BIG));
}

Test(json, getters_tell_absent_from_wrong)
{
    static const char text[] = "{\"s\":\"x\",\"n\":2.5,\"i\":3.0,\"b\":true,\"z\":null,\"a\":[],\"o\":{}}";
    CLEANUP(json_delete) cJSON *tree = NULL;
    struct err e = { 0 };
    const char *s = NULL;
    const cJSON *v = NULL;
    int64_t i = 0;
    double n = 0;
    bool b = false;

    cr_assert(eq(int, json_parse(text, strlen(text), NULL, &tree, &e), 0));
    cr_expect(eq(int, json_get_string(tree, "s", &s, &e), 0));
    cr_expect(eq(str, (char *)s, "x"));
    cr_expect(eq(int, json_get_string(tree, "z", &s, &e), JSON_ABSENT));
    cr_expect(eq(int, json_get_string(tree, "q", &s, &e), JSON_ABSENT));
    cr_expect(eq(int, json_get_number(tree, "n", &n, &e), 0));
    cr_expect(eq(int, json_get_int(tree, "i", 0, 9, &i, &e), 0));
    cr_expect(eq(i64, i, 3));
    cr_expect(eq(int, json_get_bool(tree, "b", &b, &e), 0));
    cr_expect(b);
    cr_expect(eq(int, json_get_array(tree, "a", &v, &e), 0));
    cr_expect(eq(int, json_get_object(tree, "o", &v, &e), 0));
    cr_expect(not(err_is_set(&e)));

    cr_expect(eq(int, json_get_string(tree, "n", &s, &e), -EINVAL));
    cr_expect(eq(str, e.text, "'n' must be a string, but is a number"));
    err_clear(&e);
    cr_expect(eq(int, json_get_int(tree, "n", 0, 9, &i, &e), -EINVAL));
    cr_expect(eq(str, e.text, "'n' must be an integer, but is 2.5"));
    err_clear(&e);
    cr_expect(eq(int, json_get_int(tree, "i", 4, 9, &i, &e), -EINVAL));
    cr_expect(eq(str, e.text, "'i' must be between 4 and 9, but is 3"));
}

Test(json, what_is_written_is_valid_whatever_the_bytes)
{
    BUF_LOCAL b = BUF_INIT;
    struct json_writer w = json_writer(&b);

    json_open(&w, '{');
    json_kstr(&w, "a\"b", "x\xFFy\xE2\x82\x01\n\x7F");
    json_knum(&w, "n", NAN);
    json_knum(&w, "t", 0.1);
    json_kint(&w, "i", -5);
    json_kint(&w, "least", INT64_MIN);
    json_kint(&w, "most", INT64_MAX);
    json_kint(&w, "none", 0);
    json_key(&w, "l");
    json_open(&w, '[');
    json_bool(&w, true);
    json_null(&w);
    json_close(&w, ']');
    json_close(&w, '}');
    cr_expect(eq(str, b.data,
                 "{\"a\\\"b\":\"x\xEF\xBF\xBDy\xEF\xBF\xBD\xEF\xBF\xBD\\u0001\\n\\u007f\",\"n\":null,"
                 "\"t\":0.1,\"i\":-5,\"least\":-9223372036854775808,\"most\":9223372036854775807,\"none\":0,"
                 "\"l\":[true,null]}"));
    cr_expect(eq(int, json_check(b.data, b.len, NULL, NULL), 0));
}

Test(json, a_tree_survives_writing_and_reading)
{
    static const char text[] = "{\"a\":[1,2.5,\"\xC3\xA9\",null,true],\"b\":{\"c\":1e+20}}";
    CLEANUP(json_delete) cJSON *tree = NULL;
    BUF_LOCAL b = BUF_INIT;
    struct json_writer w = json_writer(&b);

    cr_assert(eq(int, json_parse(text, strlen(text), NULL, &tree, NULL), 0));
    json_tree(&w, tree);
    cr_expect(eq(str, b.data, (char *)text));
}

Test(json, numbers_read_back_equal)
{
    static const double v[] = { 0.1, 1.0 / 3, 1e300, -2.2250738585072014e-308, 123456789.125 };

    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) {
        BUF_LOCAL b = BUF_INIT;
        struct json_writer w = json_writer(&b);

        json_num(&w, v[i]);
        cr_expect(eq(dbl, strtod(b.data, NULL), v[i]));
    }
}

static bool is_written(struct json_slice slice, const char *text)
{
    return slice.len == strlen(text) && memcmp(slice.text, text, slice.len) == 0;
}

Test(json, values_can_be_had_as_they_are_written)
{
    static const char text[] = " { \"a\" : 1.0 ,\"b\\\"]\":[1,{\"x\":\"}\\\\\"}, 2],\"\":\"q\\\"\",\"c\":-12345678901234567890e1 , \"d\":{}}\n";
    static const char *const keys[] = { "\"a\"", "\"b\\\"]\"", "\"\"", "\"c\"", "\"d\"" };
    static const char *const values[] = { "1.0", "[1,{\"x\":\"}\\\\\"}, 2]", "\"q\\\"\"", "-12345678901234567890e1", "{}" };
    struct json_walk w = json_walk(text, sizeof text - 1);
    CLEANUP(json_delete) cJSON *tree = NULL;
    struct json_slice key, value;
    size_t n = 0;

    cr_assert(zero(int, json_parse(text, sizeof text - 1, NULL, &tree, NULL)));
    for (; json_next(&w, &key, &value); n++) {
        cr_assert(lt(sz, n, 5));
        cr_expect(is_written(key, keys[n]));
        cr_expect(is_written(value, values[n]), "%.*s", (int)value.len, value.text);
    }
    cr_expect(eq(sz, n, 5));
    value = json_slice_of(text, sizeof text - 1, tree, json_find(tree, "c"));
    cr_expect(is_written(value, values[3]));
    value = json_slice_of(text, sizeof text - 1, tree, NULL);
    cr_expect(eq(sz, value.len, 0));

    w = json_walk("[ \"a\", [], true]", 16);
    for (n = 0; json_next(&w, &key, &value); n++)
        cr_expect(eq(sz, key.len, 0));
    cr_expect(eq(sz, n, 3));
    w = json_walk("7", 1);
    cr_expect(not(json_next(&w, &key, &value)));
    w = json_walk("[]", 2);
    cr_expect(not(json_next(&w, &key, &value)));
}
