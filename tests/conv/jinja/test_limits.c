/* What a hostile template may cost. Each of these is an error of the class LimitError (or Python's own) with a place. */
#include "rig.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

static const struct jinja_limits small = { .template_bytes = 1 << 20, .depth = 200, .output_bytes = 1 << 20, .steps = 2000000,
                                           .memory_bytes = 32 << 20 };

static const char *limit_of(const char *template, const char *u)
{
    static char text[1024];
    RIG g;

    rig_run(&g, template, "u", u, &small);
    snprintf(text, sizeof text, "%d %s %s", g.rc, g.rc < 0 ? g.fault.type : "output", g.rc < 0 ? g.fault.message : g.out.text);
    return text;
}

#define MEMORY "-7 LimitError more than 33554432 bytes of memory are needed"
#define OUTPUT "-7 LimitError the output is longer than 1048576 bytes"
#define STEPS "-7 LimitError the template takes more than 2000000 steps"
#define DEPTH "-7 LimitError nested deeper than 200 levels"
#define LIMIT(template, u, want) cr_expect(eq(str, (char *)limit_of(template, u), want), "%s", template)

Test(limits, a_template_has_a_size)
{
    struct jinja_limits l = small;
    RIG g;

    l.template_bytes = 4;
    rig_run(&g, "abcde", "u", NULL, &l);
    cr_expect(eq(int, g.rc, -E2BIG));
    cr_expect(eq(str, g.err.text, "t: the template is longer than 4 bytes"));
}

Test(limits, a_text_can_not_be_multiplied_beyond_the_output)
{
    LIMIT("{{ 'x' * 10**9 }}", NULL, OUTPUT);
    LIMIT("{{ 'x' * 10**30 }}", NULL, OUTPUT);
    LIMIT("{{ '' * 10**30 }}", NULL, "0 output ");
    LIMIT("{{ [0] * 10**9 }}", NULL, MEMORY);
    LIMIT("{{ [0] * 10**30 }}", NULL, MEMORY);
    LIMIT("{{ [] * 10**30 }}", NULL, "0 output []");
}

Test(limits, a_width_can_not_be_wider_than_the_output)
{
    LIMIT("{{ '%999999999d' % 1 }}", NULL, OUTPUT);
    LIMIT("{{ '%-999999999s' % 1 }}", NULL, OUTPUT);
    LIMIT("{{ '%0999999999d' % 1 }}", NULL, OUTPUT);
    LIMIT("{{ '%.999999999d' % 1 }}", NULL, OUTPUT);
    LIMIT("{{ '%.999999999f' % 1 }}", NULL, OUTPUT);
    LIMIT("{{ '%*d' % (999999999, 1) }}", NULL, OUTPUT);
    LIMIT("{{ '%99999999999999999999d' % 1 }}", NULL, "-22 ValueError Too many decimal digits in format string");
    LIMIT("{{ '{:999999999}'.format('a') }}", NULL, OUTPUT);
    LIMIT("{{ '{:0999999999,}'.format(1) }}", NULL, OUTPUT);
    LIMIT("{{ '{:.999999999f}'.format(1) }}", NULL, OUTPUT);
    LIMIT("{{ 'a'.center(10**9) }}", NULL, OUTPUT);
    LIMIT("{{ 'a'.zfill(10**9) }}", NULL, OUTPUT);
    LIMIT("{{ 'a\\t'.expandtabs(10**9) }}", NULL, OUTPUT);
    LIMIT("{{ 'a'|indent(10**9) }}", NULL, OUTPUT);
    LIMIT("{{ [1]|tojson(indent=10**9) }}", NULL, OUTPUT);
    LIMIT("{{ 'a'|center(10**9) }}", NULL, OUTPUT);
    LIMIT("{{ [1]|batch(10**9, 0)|list }}", NULL, MEMORY);
    LIMIT("{{ [1]|slice(10**9)|list }}", NULL, MEMORY);
    LIMIT("{{ strftime_now('%99999999Y')|length }}", NULL, "0 output 40");
}

Test(limits, a_range_has_the_sandboxs_limit)
{
    LIMIT("{{ range(10**5 + 1) }}", NULL, "-22 OverflowError Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).");
    LIMIT("{{ range(-2**63, 2**63 - 1) }}", NULL, "-22 OverflowError Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).");
    LIMIT("{{ range(10**20) }}", NULL, "-22 OverflowError Python int too large to convert to C ssize_t");
}

Test(limits, what_doubles_each_time_ends_at_memory_or_output)
{
    LIMIT("{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}", NULL, OUTPUT);
    LIMIT("{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor %}", NULL, OUTPUT);
    LIMIT("{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}", NULL, MEMORY);
    LIMIT("{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x]|tojson %}{% endfor %}", NULL, OUTPUT);
    LIMIT("{% set ns = namespace(x=2) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}", NULL,
          "-22 ValueError Exceeds the limit (4300 digits) for integer string conversion");
    LIMIT("{% set ns = namespace(x=[1]) %}{% for i in range(30) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}", NULL, STEPS);
    LIMIT("{% set ns = namespace(x=[1], y=[1.0]) %}{% for i in range(30) %}{% set ns.x, ns.y = [ns.x, ns.x], [ns.y, ns.y] %}{% endfor %}"
          "{{ ns.x == ns.y }}", NULL, STEPS);
}

Test(limits, loops_within_loops_end_at_steps)
{
    LIMIT("{% for i in range(10**5) %}{% for j in range(10**5) %}{% endfor %}{% endfor %}", NULL, STEPS);
    LIMIT("{% for i in range(10**5) %}{{ range(10**5)|list|length }}{% endfor %}", NULL, MEMORY);
    LIMIT("{% set s = 'a' * 10**6 %}{% for i in range(10**5) %}{% set x = 'b' in s %}{% endfor %}", NULL, STEPS);
    LIMIT("{% set s = 'é' * 10**5 %}{% for i in range(10**5) %}{% set x = s[-1] %}{% endfor %}", NULL, STEPS);
    LIMIT("{% set s = 'a' * 10**6 %}{{ s.rfind('a' * 5 * 10**5 ~ 'b') }}", NULL, STEPS);
}

Test(limits, values_that_nest_deeply_end_at_depth)
{
    static const char deep[] = "{%% set ns = namespace(x=[]) %%}{%% for i in range(5000) %%}{%% set ns.x = %s %%}{%% endfor %%}{{ %s }}";
    static const char *const shapes[] = { "[ns.x]", "{'a': ns.x}", "(ns.x,)" }, *const uses[] = { "ns.x", "ns.x|tojson", "ns.x == [ns.x]",
                                                                                             "'%r' % ns.x", "ns.x|string" };
    char text[512];

    for (size_t i = 0; i < 3; i++) {
        for (size_t k = 0; k < 5; k++) {
            if (k == 2 && i > 0)
                continue;
            snprintf(text, sizeof text, deep, shapes[i], uses[k]);
            LIMIT(text, NULL, DEPTH);
        }
    }
    LIMIT("{% set ns = namespace(x=()) %}{% for i in range(5000) %}{% set ns.x = (ns.x,) %}{% endfor %}{{ {ns.x: 1} }}", NULL, DEPTH);
    LIMIT("{% set ns = namespace(x=[1]) %}{% for i in range(5000) %}{% set ns.x = ns.x|map('string') %}{% endfor %}{{ ns.x|list }}", NULL, DEPTH);
    LIMIT("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", NULL, DEPTH);
    LIMIT("{% set ns = namespace(x=[]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x < [ns.x] }}", NULL, DEPTH);
}

Test(limits, macros_and_loops_that_call_themselves_end_at_depth)
{
    LIMIT("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", NULL, DEPTH);
    LIMIT("{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}", NULL, DEPTH);
    LIMIT("{% macro m(x=m()) %}{% endmacro %}{{ m() }}", NULL, DEPTH);
    LIMIT("{% macro m() %}{% call m() %}{% endcall %}{{ caller }}{% endmacro %}{{ m() }}", NULL, DEPTH);
    LIMIT("{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}", NULL, DEPTH);
    LIMIT("{% macro m() %}{% for i in [1] %}{% if true %}{% set x %}{{ [m() ~ 1]|join|upper }}{% endset %}{% endif %}{% endfor %}{% endmacro %}{{ m() }}",
          NULL, DEPTH);
}

Test(limits, a_macro_may_call_itself_a_hundred_times)
{
    LIMIT("{% macro m(n) %}{% if n > 0 %}{{ m(n - 1) }}{% endif %}x{% endmacro %}{{ m(100)|length }}", NULL, "0 output 101");
}

/* `open` n times, then `close` n times. */
static char *nested(const char *open, const char *middle, const char *close, size_t n)
{
    size_t a = strlen(open), m = strlen(middle), b = strlen(close);
    char *text = malloc(n * (a + b) + m + 1), *p = text;

    for (size_t i = 0; i < n; i++, p += a)
        memcpy(p, open, a);
    memcpy(p, middle, m);
    p += m;
    for (size_t i = 0; i < n; i++, p += b)
        memcpy(p, close, b);
    *p = '\0';
    return text;
}

static const struct { const char *begin, *open, *middle, *close, *end; } shapes[] = {
    { "{{ ", "(", "1", ")", " }}" },
    { "{{ ", "[", "1", "]", " }}" },
    { "{{ ", "{1:", "1", "}", " }}" },
    { "{{ ", "-", "1", "", " }}" },
    { "{{ ", "not ", "1", "", " }}" },
    { "{{ ", "1 if 1 else ", "1", "", " }}" },
    { "{{ ", "f(", "1", ")", " }}" },
    { "{{ ", "1+(", "1", ")", " }}" },
    { "{{ x", "[", "1", "]", " }}" },
    { "{{ x", "[x:x", "", "]", " }}" },
    { "{{ x", "|f(x", "", ")", " }}" },
    { "{{ x", "|default(x", "", ")", " }}" },
    { "{{ x", ".a", "", "", " }}" },
    { "{{ 1", "+1", "", "", " }}" },
    { "{{ 1", " and 1", "", "", " }}" },
    { "{{ x", "|string", "", "", " }}" },
    { "{{ x", "(1)", "", "", " }}" },
    { "{{ 1", " is eq (1", "", ")", " }}" },
    { "{{ ", "'a' ~ (", "1", ")", " }}" },
    { "{{ ", "1 == (", "1", ")", " }}" },
    { "", "{% if 1 %}", "x", "{% endif %}", "" },
    { "", "{% for i in [1] %}", "x", "{% endfor %}", "" },
    { "", "{% set x %}", "x", "{% endset %}", "" },
    { "", "{% with %}", "x", "{% endwith %}", "" },
    { "", "{% filter upper %}", "x", "{% endfilter %}", "" },
    { "", "{% macro m() %}", "x", "{% endmacro %}", "" },
    { "", "{% call f() %}", "x", "{% endcall %}", "" },
    { "", "{% generation %}", "x", "{% endgeneration %}", "" },
    { "{% set ", "(", "x", ",)", " = 1 %}" },
    { "{% for ", "(", "x", ",)", " in [] %}{% endfor %}" },
};

static void *shapes_on_a_small_stack(void *user)
{
    static const size_t depths[] = { 30, 60, 90, 120, 150, 199, 1000, 100000 };

    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (size_t k = 0; k < sizeof depths / sizeof depths[0]; k++) {
            CLEANUP(mem_free) char *inner = nested(shapes[i].open, shapes[i].middle, shapes[i].close, depths[k]);
            BUF_LOCAL text = BUF_INIT;
            CLEANUP(jinja_free) struct jinja *t = NULL;
            CLEANUP(arena_free) struct arena *a = arena_new(0);
            struct jinja_fault fault = { 0 };
            struct jinja_output out;
            int rc;

            buf_printf(&text, "%s%s%s", shapes[i].begin, inner, shapes[i].end);
            rc = jinja_compile("t", buf_str(&text), text.len, NULL, &t, &fault, NULL);
            if (!rc)
                rc = jinja_render(t, NULL, 0, a, &out, &fault, NULL);
            if (depths[k] >= 1000 && strcmp(fault.type, "LimitError"))
                ++*(int *)user;
        }
    }
    return NULL;
}

static void *recursion_on_a_small_stack(void *user)
{
    static const char *const templates[] = {
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro m() %}{% for i in [1] %}{% if true %}{% set x %}{{ [m() ~ 1]|join|upper }}{% endset %}{% endif %}{% endfor %}{% endmacro %}{{ m() }}",
        "{% macro m() %}{{ caller() if caller }}{% call m() %}{{ (((((m()))))) }}{% endcall %}{% endmacro %}{{ m() }}",
        "{% macro m(x) %}{{ [{'a': 1 + (2 if (m(x) and not x) else 3)}]|map(attribute='a')|list|tojson }}{% endmacro %}{{ m() }}",
        "{% for i in [1] recursive %}{% with %}{{ (loop([1]) ~ '')|trim|upper }}{% endwith %}{% endfor %}",
        "{% set ns = namespace(x=[]) %}{% for i in range(5000) %}{% set ns.x = [{'a': (ns.x,)}] %}{% endfor %}{{ ns.x|tojson(indent=2) }}",
        "{% set ns = namespace(x=[]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[]) %}{% for i in range(5000) %}{% set ns.x = ns.x|map('list')|select|unique %}{% endfor %}{{ ns.x|list }}",
    };

    for (size_t i = 0; i < sizeof templates / sizeof templates[0]; i++) {
        CLEANUP(jinja_free) struct jinja *t = NULL;
        CLEANUP(arena_free) struct arena *a = arena_new(0);
        struct jinja_fault fault = { 0 };
        struct jinja_output out;
        int rc = jinja_compile("t", templates[i], strlen(templates[i]), NULL, &t, &fault, NULL);

        if (!rc)
            rc = jinja_render(t, NULL, 0, a, &out, &fault, NULL);
        if (rc != -E2BIG)
            ++*(int *)user;
    }
    return NULL;
}

/* Sanitizers put guards around every variable: their frames are several times as large. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STACK = 4 << 20 };
#else
enum { STACK = 256 << 10 };
#endif

static int on_a_small_stack(void *(*fn)(void *))
{
    pthread_attr_t attr;
    pthread_t thread;
    int wrong = 0;

    pthread_attr_init(&attr);
    cr_assert(zero(int, pthread_attr_setstacksize(&attr, STACK)));
    cr_assert(zero(int, pthread_create(&thread, &attr, fn, &wrong)));
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attr);
    return wrong;
}

Test(limits, what_nests_in_a_template_fits_a_stack_of_256_kib_or_is_refused)
{
    cr_expect(zero(int, on_a_small_stack(shapes_on_a_small_stack)));
}

Test(limits, what_recurses_at_run_time_does_too)
{
    cr_expect(zero(int, on_a_small_stack(recursion_on_a_small_stack)));
}

Test(limits, json_that_nests_too_deep_is_refused_on_a_small_stack_too)
{
    CLEANUP(mem_free) char *fits = nested("[", "1", "]", 199), *deep = nested("[{\"a\":", "1", "}]", 100000);
    CLEANUP(jinja_vars_free) struct jinja_vars *v = NULL;
    struct err err = { 0 };

    cr_assert(zero(int, jinja_vars_new(NULL, &v, NULL)));
    cr_expect(zero(int, jinja_set_json(v, "u", fits, strlen(fits), NULL)));
    cr_expect(eq(int, jinja_set_json(v, "u", deep, strlen(deep), &err), -E2BIG));
    cr_expect(eq(str, err.text, "u: nested deeper than 200 levels"));
}

Test(limits, variables_have_the_memory_limit)
{
    struct jinja_limits l = small;
    CLEANUP(jinja_vars_free) struct jinja_vars *v = NULL;
    CLEANUP(mem_free) char *text = nested("1,", "1", "", 100000), *json = NULL;

    l.memory_bytes = 100000;
    cr_assert(zero(int, jinja_vars_new(&l, &v, NULL)));
    cr_expect(eq(int, jinja_set_text(v, "u", text, strlen(text), false, NULL), -E2BIG));
    cr_expect(gt(int, asprintf(&json, "[%.20000s1]", text), 0));
    cr_expect(eq(int, jinja_set_json(v, "u", json, strlen(json), NULL), -E2BIG));
}

Test(limits, a_large_template_takes_a_time_in_proportion)
{
    static const struct { const char *begin, *piece, *end; } rows[] = {
        { "", "{{ a }}", "" },
        { "", "{% if a %}{% set b = 1 %}{% endif %}", "" },
        { "", "{% macro m(a) %}{{ caller() }}{{ b }}{% endmacro %}", "" },
        { "", "{% for i in [1] %}{{ loop.index }}{% endfor %}", "" },
        { "{{ [", "1,", "] }}" },
        { "{% set x = {", "1:2,", "} %}" },
        { "{{ f(", "a,", ") }}" },
        { "{{ ", "'a' ", "}}" },
        { "{{ 1", " ~ 1", " }}" },
        { "{# ", "{{ ", "#}" },
        { "", "{", "" },
        { "", "a\n  ", "{% if a %}{% endif %}" },
        { "{% macro m(", "a=1,", "b=1) %}{% endmacro %}" },
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        CLEANUP(mem_free) char *many = nested(rows[i].piece, "", "", 900000 / strlen(rows[i].piece));
        CLEANUP(jinja_free) struct jinja *t = NULL;
        BUF_LOCAL text = BUF_INIT;
        struct jinja_fault fault = { 0 };
        int rc;

        buf_printf(&text, "%s%s%s", rows[i].begin, many, rows[i].end);
        rc = jinja_compile("t", buf_str(&text), text.len, NULL, &t, &fault, NULL);
        cr_expect(rc == 0 || rc == -E2BIG || strstr(fault.message, "duplicate argument"), "%s: %s", rows[i].piece, fault.message);
    }
}
