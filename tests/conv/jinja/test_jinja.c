#include "rig.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

static const char *output(const char *template, const char *u_json)
{
    static char text[4096];
    RIG g;

    rig_run(&g, template, "u", u_json, NULL);
    snprintf(text, sizeof text, "%s", g.rc < 0 ? g.err.text : g.out.text);
    return text;
}

#define RENDERS(template, u, want) cr_expect(eq(str, (char *)output(template, u), want))

/* Errors and their places */

Test(jinja, an_error_says_where_in_lines_and_characters)
{
    RENDERS("a\né {{ x.y }}", NULL, "t:2:8: 'x' is undefined");
    RENDERS("{% if u %}\n  {{ 'a' + u }}\n{% endif %}", "1", "t:2:10: can only concatenate str (not \"int\") to str");
    RENDERS("{% for i in u %}\n{{ i|int + 'a' }}{% endfor %}", "[1]", "t:2:10: unsupported operand type(s) for +: 'int' and 'str'");
    RENDERS("\n\n{{ raise_exception('roles must alternate') }}", NULL, "t:3:19: roles must alternate");
    RENDERS("{{ u[::0] }}", "[1]", "t:1:5: slice step cannot be zero");
    RENDERS("{% if %}", NULL, "t:1:7: Expected an expression, got 'end of statement block'");
    RENDERS("\r\n\r{{ 'a", NULL, "t:3:4: unexpected char \"'\" at 5");
    RENDERS("{% macro m(a) %}\n{{ a.b.c }}{% endmacro %}\n{{ m({}) }}", NULL, "t:2:8: 'dict object' has no attribute 'b'");
}

Test(jinja, a_fault_has_pythons_class_and_the_phase)
{
    RIG g;

    rig_run(&g, "{{ raise_exception('No.') }}", "u", NULL, NULL);
    cr_expect(eq(int, g.rc, -EINVAL));
    cr_expect(eq(str, g.fault.type, "TemplateError"));
    cr_expect(eq(str, g.fault.message, "No."));
    cr_expect(eq(int, (int)g.fault.phase, JINJA_RENDER));
    cr_expect(eq(u32, g.fault.line, 1));
    rig_fini(&g);
    rig_run(&g, "{% nosuch %}", "u", NULL, NULL);
    cr_expect(eq(str, g.fault.type, "TemplateSyntaxError"));
    cr_expect(eq(int, (int)g.fault.phase, JINJA_COMPILE));
}

Test(jinja, a_template_that_is_not_utf8_is_refused)
{
    RIG g;

    rig_run(&g, "a\xff", "u", NULL, NULL);
    cr_expect(eq(int, g.rc, -EINVAL));
    cr_expect(eq(str, g.err.text, "t: byte 1 is not UTF-8"));
}

Test(jinja, half_a_surrogate_pair_leaves_as_a_replacement_character)
{
    RENDERS("{{ '\\ud83e' }}|{{ u }}", "\"\\udc00x\"", "\xef\xbf\xbd|\xef\xbf\xbdx");
    RENDERS("{{ u }}", "\"\\ud83e\\udd99\"", "🦙");
}

/* Public cases of other engines */

Test(jinja, a_range_that_counts_down_visits_each_once)
{
    static const char template[] = "{% for i in range(u|length - 1, -1, -1) %}{{ i }}{% endfor %}";

    RENDERS(template, "[]", "");
    RENDERS(template, "[1]", "0");
    RENDERS(template, "[1,1,1,1]", "3210");
}

Test(jinja, the_clock_is_given_and_its_words_are_english)
{
    setenv("TZ", "UTC", 1);
    tzset();
    RENDERS("{{ strftime_now(\"%d %B %Y %H%M%S %%\") }}", NULL, "03 February 2025 040506 %");
    RENDERS("{% macro m(d=strftime_now('%-d %e')) %}{{ d }}{% endmacro %}{{ m() }}", NULL, "3  3");
}

Test(jinja, null_content_is_none_and_never_the_word_null)
{
    RENDERS("{% if u.content is none %}none{% endif %}", "{\"content\":null}", "none");
    RENDERS("{{ 'a' + u.content }}", "{\"content\":null}", "t:1:8: can only concatenate str (not \"NoneType\") to str");
}

Test(jinja, json_keeps_ints_floats_and_the_order_of_keys)
{
    RENDERS("{{ u }}", "{\"b\":1,\"a\":1.0,\"c\":-0.0,\"d\":1e2,\"e\":123456789012345678901234567890}",
            "{'b': 1, 'a': 1.0, 'c': -0.0, 'd': 100.0, 'e': 123456789012345678901234567890}");
    RENDERS("{{ u|tojson }}", "[1, 1.0, 9223372036854775807, 9223372036854775808]", "[1, 1.0, 9223372036854775807, 9223372036854775808]");
    RENDERS("{{ u.a }}", "{\"a\":1,\"a\":2}", "2");
}

Test(jinja, integers_beyond_64_bits_count_as_python_counts)
{
    RENDERS("{{ u + 1 }} {{ u * 2 }} {{ -u - 2 }} {{ u // -10 }} {{ (u + 5) % 7 }}", "9223372036854775807",
            "9223372036854775808 18446744073709551614 -9223372036854775809 -922337203685477581 5");
    RENDERS("{{ 10**20 // 3 }} {{ -10**21 // 7 }} {{ 10**20 % -7 }} {{ 10**20 - 10**20 }} {{ 10**20 == 1e20 }}", NULL,
            "33333333333333333333 -142857142857142857143 -5 0 True");
    RENDERS("{{ 10**5000 }}", NULL, "t:1:6: Exceeds the limit (4300 digits) for integer string conversion");
}

/* Variables */

static const char *json_error(const char *json)
{
    static struct err err;
    CLEANUP(jinja_vars_free) struct jinja_vars *v = NULL;

    err = (struct err){ 0 };
    cr_assert(zero(int, jinja_vars_new(NULL, &v, NULL)));
    cr_expect(lt(int, jinja_set_json(v, "u", json, strlen(json), &err), 0), "%s", json);
    return err.text;
}

Test(jinja, what_is_no_json_is_refused_with_its_byte)
{
    static const struct { const char *json, *error; } rows[] = {
        { "", "u: byte 0: the text ends where a value is wanted" },
        { "[1,]", "u: byte 3: this is no value" },
        { "[1 2]", "u: byte 3: an array wants ',' or ']' here" },
        { "{\"a\" 1}", "u: byte 5: an object wants ':' here" },
        { "{\"a\":1,}", "u: byte 7: an object wants a key here" },
        { "{\"a\":1", "u: byte 6: an object wants ',' or '}' here" },
        { "\"a", "u: byte 2: a string does not end" },
        { "\"\\q\"", "u: byte 3: unknown escape in a string" },
        { "\"\\u12g4\"", "u: byte 5: \\u wants four hexadecimal digits" },
        { "\"\x01\"", "u: byte 1: a control character in a string" },
        { "\"\xff\"", "u: byte 1: a string is not UTF-8" },
        { "01", "u: byte 2: this is no number" },
        { "1.", "u: byte 2: this is no number" },
        { "1e", "u: byte 2: this is no number" },
        { "-", "u: byte 1: this is no number" },
        { "1 1", "u: byte 2: something stands behind the value" },
        { "nul", "u: byte 0: this is no value" },
        { "NaN", "u: byte 0: this is no value" },
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        cr_expect(eq(str, (char *)json_error(rows[i].json), (char *)rows[i].error), "%s", rows[i].json);
}

Test(jinja, a_later_variable_takes_the_place_of_one_of_its_name)
{
    CLEANUP(jinja_vars_free) struct jinja_vars *v = NULL;
    CLEANUP(jinja_free) struct jinja *t = NULL;
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    struct jinja_output out;
    const char *text = "{{ a }}{{ b }}{{ c is none }}{{ range is defined }}";

    cr_assert(zero(int, jinja_vars_new(NULL, &v, NULL)));
    cr_assert(zero(int, jinja_set_json(v, "a", "1", 1, NULL)));
    cr_assert(zero(int, jinja_set_text(v, "a", "x", 1, true, NULL)));
    cr_assert(zero(int, jinja_set_bool(v, "b", true, NULL)));
    cr_assert(zero(int, jinja_set_none(v, "c", NULL)));
    cr_assert(zero(int, jinja_compile("t", text, strlen(text), NULL, &t, NULL, NULL)));
    cr_assert(zero(int, jinja_render(t, v, 0, a, &out, NULL, NULL)));
    cr_expect(eq(str, (char *)out.text, "xTrueTrueTrue"));
    cr_expect(eq(int, jinja_set_text(v, "d", "\xff", 1, true, NULL), -EINVAL));
}

Test(jinja, a_template_without_variables_renders_too)
{
    CLEANUP(jinja_free) struct jinja *t = NULL;
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    struct jinja_output out;

    cr_assert(zero(int, jinja_compile("t", "{{ x }}a", 8, NULL, &t, NULL, NULL)));
    cr_assert(zero(int, jinja_render(t, NULL, 0, a, &out, NULL, NULL)));
    cr_expect(eq(str, (char *)out.text, "a"));
}

static bool uses(const char *text, const char *name)
{
    CLEANUP(jinja_free) struct jinja *t = NULL;

    cr_assert(zero(int, jinja_compile("t", text, strlen(text), NULL, &t, NULL, NULL)), "%s", text);
    return jinja_uses(t, name);
}

Test(jinja, it_knows_which_variables_a_template_reads)
{
    cr_expect(uses("{{ tools }}", "tools"));
    cr_expect(uses("{% for t in tools %}{% endfor %}", "tools"));
    cr_expect(uses("{% macro m() %}{% if tools %}{% endif %}{% endmacro %}", "tools"));
    cr_expect(uses("{% if x %}{% set tools = 1 %}{% endif %}{{ tools }}", "tools"));
    cr_expect(uses("{% set tools = tools or [] %}", "tools"));
    cr_expect(uses("{{ x if tools is defined }}", "tools"));
    cr_expect(not(uses("{{ 'tools' }}{{ x.tools }}", "tools")));
    cr_expect(not(uses("{% set tools = [] %}{{ tools }}", "tools")));
    cr_expect(not(uses("{% for tools in x %}{{ tools }}{% endfor %}", "tools")));
    cr_expect(not(uses("{% macro m(tools) %}{{ tools }}{% endmacro %}", "tools")));
}

Test(jinja, spans_of_generation_count_characters_once_something_was_written)
{
    RIG g;

    rig_run(&g, "é{% generation %}ab{% endgeneration %}{% for i in u %}{% generation %}ü{{ i }}{% endgeneration %}{% endfor %}", "u", "[1]", NULL);
    cr_assert(eq(sz, g.out.n_generation, 2));
    cr_expect(eq(sz, g.out.generation[0][0], 1));
    cr_expect(eq(sz, g.out.generation[0][1], 3));
    cr_expect(eq(sz, g.out.generation[1][0], 3));
    cr_expect(eq(sz, g.out.generation[1][1], 5));
}

struct shared { struct jinja *t; bool good; };

static void *render_often(void *user)
{
    struct shared *s = user;

    for (int i = 0; i < 200; i++) {
        CLEANUP(jinja_vars_free) struct jinja_vars *v = NULL;
        CLEANUP(arena_free) struct arena *a = arena_new(0);
        struct jinja_output out;

        if (jinja_vars_new(NULL, &v, NULL) < 0 || jinja_set_json(v, "u", "[\"b\",\"ä\"]", 10, NULL) < 0 ||
            jinja_render(s->t, v, 0, a, &out, NULL, NULL) < 0 || strcmp(out.text, "bx,äx{'k': 1}É3"))
            s->good = false;
    }
    return NULL;
}

Test(jinja, threads_render_one_template_at_once)
{
    static const char text[] = "{% macro m(a) %}{{ a ~ 'x' }}{% endmacro %}{% for i in u %}{{ m(i) }}{{ ',' if not loop.last }}{% endfor %}"
                               "{{ {'k': 1} }}{{ 'é'|upper }}{{ 'éäu'|length }}";
    CLEANUP(jinja_free) struct jinja *t = NULL;
    struct shared s[4];
    pthread_t threads[4];

    cr_assert(zero(int, jinja_compile("t", text, strlen(text), NULL, &t, NULL, NULL)));
    for (int i = 0; i < 4; i++) {
        s[i] = (struct shared){ t, true };
        cr_assert(zero(int, pthread_create(&threads[i], NULL, render_often, &s[i])));
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        cr_expect(s[i].good);
    }
}
