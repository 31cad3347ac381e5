/* Tests: what may stand behind `is`. */
#include "conv/jinja/methods.h"
#include "conv/jinja/value.h"

#define TEST(name) static bool name(struct rt *r, struct val v, const struct val *p)

TEST(is_boolean) { return v.t == V_BOOL; }
TEST(is_callable) { return val_callable(v); }
TEST(is_defined) { return v.t != V_UNDEF; }
TEST(is_undefined) { return v.t == V_UNDEF; }
TEST(is_eq) { return val_equal(r, v, p[0]); }
TEST(is_ne) { return !val_equal(r, v, p[0]); }
TEST(is_lt) { return val_binary(r, OP_LT, v, p[0]).b; }
TEST(is_le) { return val_binary(r, OP_LE, v, p[0]).b; }
TEST(is_gt) { return val_binary(r, OP_GT, v, p[0]).b; }
TEST(is_ge) { return val_binary(r, OP_GE, v, p[0]).b; }
TEST(is_in) { return val_contains(r, p[0], v); }
TEST(is_escaped) { return v.t == V_STR && v.s->markup; }
TEST(is_false) { return v.t == V_BOOL && !v.i; }
TEST(is_true) { return v.t == V_BOOL && v.i; }
TEST(is_float) { return v.t == V_FLOAT; }
TEST(is_integer) { return v.t == V_INT || v.t == V_BIG; }
TEST(is_number_test) { return val_is_number(v); }
TEST(is_iterable) { return val_iterable(v); }
TEST(is_mapping) { return v.t == V_DICT; }
TEST(is_none) { return v.t == V_NONE; }
TEST(is_string) { return v.t == V_STR; }
TEST(is_sequence) { return val_has_length(v) && v.t != V_VIEW; }

static bool divides(struct rt *r, struct val v, struct val by)
{
    return val_equal(r, val_binary(r, OP_MOD, v, by), v_int(0));
}

TEST(is_divisible) { return divides(r, v, p[0]); }
TEST(is_even) { return divides(r, v, v_int(2)); }
TEST(is_odd) { return val_equal(r, val_binary(r, OP_MOD, v, v_int(2)), v_int(1)); }

TEST(is_lower) { return str_method(r, METHOD_ISLOWER, val_str(r, v), &(struct args){ 0 }).b; }
TEST(is_upper) { return str_method(r, METHOD_ISUPPER, val_str(r, v), &(struct args){ 0 }).b; }

TEST(is_sameas)
{
    if (v.t != p[0].t)
        return false;
    if (v.t == V_STR)
        return str_equal(v.s, p[0].s);
    return v.t == V_NONE || v.t == V_UNDEF || (v.aux == p[0].aux && v.i == p[0].i);
}

TEST(is_filter) { return v.t == V_STR && filter_find(v.s->text, v.s->len); }
TEST(is_test) { return v.t == V_STR && test_find(v.s->text, v.s->len); }

static const struct test tests[] = {
    { "!=", is_ne, "b", 1 }, { "<", is_lt, "b", 1 }, { "<=", is_le, "b", 1 }, { "==", is_eq, "b", 1 }, { ">", is_gt, "b", 1 },
    { ">=", is_ge, "b", 1 }, { "boolean", is_boolean, "", 0 }, { "callable", is_callable, "", 0 }, { "defined", is_defined, "", 0 },
    { "divisibleby", is_divisible, "num", 1 }, { "eq", is_eq, "b", 1 }, { "equalto", is_eq, "b", 1 }, { "escaped", is_escaped, "", 0 },
    { "even", is_even, "", 0 }, { "false", is_false, "", 0 }, { "filter", is_filter, "", 0 }, { "float", is_float, "", 0 },
    { "ge", is_ge, "b", 1 }, { "greaterthan", is_gt, "b", 1 }, { "gt", is_gt, "b", 1 }, { "in", is_in, "seq", 1 },
    { "integer", is_integer, "", 0 }, { "iterable", is_iterable, "", 0 }, { "le", is_le, "b", 1 }, { "lessthan", is_lt, "b", 1 },
    { "lower", is_lower, "", 0 }, { "lt", is_lt, "b", 1 }, { "mapping", is_mapping, "", 0 }, { "ne", is_ne, "b", 1 },
    { "none", is_none, "", 0 }, { "number", is_number_test, "", 0 }, { "odd", is_odd, "", 0 }, { "sameas", is_sameas, "other", 1 },
    { "sequence", is_sequence, "", 0 }, { "string", is_string, "", 0 }, { "test", is_test, "", 0 }, { "true", is_true, "", 0 },
    { "undefined", is_undefined, "", 0 }, { "upper", is_upper, "", 0 },
};

const struct test *test_find(const char *name, size_t len)
{
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++)
        if (strlen(tests[i].name) == len && memcmp(tests[i].name, name, len) == 0)
            return &tests[i];
    return NULL;
}

bool test_call(struct rt *r, const struct test *t, struct val v, const struct args *a)
{
    struct val p[MAX_PARAMS];

    args_bind(r, t->name, t->params, t->required, a, p);
    return t->call(r, v, p);
}
