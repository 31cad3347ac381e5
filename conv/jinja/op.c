/* Operators, slices, attributes and items: what a.b, a[b] and a + b mean for each pair of types. */
#include "conv/jinja/value.h"

#include <errno.h>
#include <math.h>

static const char *const symbols[] = { "+", "-", "*", "/", "//", "%", "** or pow()", "==", "!=", "<", "<=", ">", ">=" };

static _Noreturn void unsupported(struct rt *r, enum op op, struct val a, struct val b)
{
    raise_error(r, "TypeError", "unsupported operand type(s) for %s: '%s' and '%s'", symbols[op], val_type(a), val_type(b));
}

static struct val concat_text(struct rt *r, struct str *a, struct str *b)
{
    bool markup = a->markup || b->markup;
    struct mark m;
    struct str *s;

    if (!markup && (a->len == 0 || b->len == 0))
        return v_str(a->len == 0 ? b : a);
    m = out_mark(r);
    (markup && !a->markup ? out_escaped : out_str)(r, a);
    (markup && !b->markup ? out_escaped : out_str)(r, b);
    s = out_take(r, m);
    s->markup = markup;
    return v_str(s);
}

static struct val concat_seq(struct rt *r, struct val a, struct val b)
{
    uint32_t n;
    struct val v;

    if (__builtin_add_overflow(a.seq->n, b.seq->n, &n))
        raise_limit(r, -E2BIG, "a list is too long");
    v = v_seq(r, a.t, n);
    if (a.seq->n)
        memcpy(v.seq->items, a.seq->items, a.seq->n * sizeof(struct val));
    if (b.seq->n)
        memcpy(v.seq->items + a.seq->n, b.seq->items, b.seq->n * sizeof(struct val));
    return v;
}

static struct val add(struct rt *r, struct val a, struct val b)
{
    if (a.t == V_STR && b.t == V_STR)
        return concat_text(r, a.s, b.s);
    if ((a.t == V_LIST || a.t == V_TUPLE) && a.t == b.t)
        return concat_seq(r, a, b);
    if ((a.t == V_STR && !a.s->markup) || a.t == V_LIST || a.t == V_TUPLE)
        raise_error(r, "TypeError", "can only concatenate %s (not \"%s\") to %s", val_type(a), val_type(b), val_type(a));
    unsupported(r, OP_ADD, a, b);
}

static struct val repeat(struct rt *r, struct val v, struct val times)
{
    int64_t n = times.t == V_BIG ? (int_negative(times) ? 0 : INT64_MAX) : times.i > 0 ? times.i : 0;
    size_t total;

    if (v.t == V_STR) {
        struct mark m = out_mark(r);
        struct str *s;

        if (v.s->len == 0)
            n = 0;
        if (__builtin_mul_overflow(v.s->len, (size_t)n, &total) || total > r->limits.output_bytes)
            raise_limit(r, -E2BIG, "the output is longer than %zu bytes", r->limits.output_bytes);
        for (int64_t i = 0; i < n; i++) {
            step(r, 1);
            out_str(r, v.s);
        }
        s = out_take(r, m);
        s->markup = v.s->markup;
        return v_str(s);
    }
    if (v.seq->n == 0)
        n = 0;
    if (__builtin_mul_overflow(v.seq->n, (size_t)n, &total) || total > r->limits.memory_bytes / sizeof(struct val))
        raise_limit(r, -E2BIG, "more than %zu bytes of memory are needed", r->limits.memory_bytes);
    struct val list = v_seq(r, v.t, (uint32_t)total);

    for (size_t i = 0; i < (size_t)n; i++)
        memcpy(list.seq->items + i * v.seq->n, v.seq->items, v.seq->n * sizeof(struct val));
    return list;
}

static bool sequence(struct val v) { return v.t == V_STR || v.t == V_LIST || v.t == V_TUPLE; }

static struct val multiply(struct rt *r, struct val a, struct val b)
{
    if (sequence(a) && val_is_int(b))
        return repeat(r, a, b);
    if (val_is_int(a) && sequence(b))
        return repeat(r, b, a);
    if (sequence(a) || sequence(b))
        raise_error(r, "TypeError", "can't multiply sequence by non-int of type '%s'", val_type(sequence(a) ? b : a));
    unsupported(r, OP_MUL, a, b);
}

static struct val power(struct rt *r, struct val a, struct val b)
{
    double x, y, f;

    if (val_is_int(a) && val_is_int(b) && !int_negative(b)) {
        bool unit = a.t != V_BIG && a.i >= -1 && a.i <= 1;

        if (unit)
            return v_int(a.i == 0 ? int_compare(b, v_int(0)) == 0 : a.i == 1 || (b.t != V_BIG && b.i % 2 == 0) ? 1 : -1);
        if (b.t == V_BIG || b.i > 20000)
            raise_error(r, "ValueError", "Exceeds the limit (4300 digits) for integer string conversion");
        return int_pow(r, a, (uint64_t)b.i);
    }
    x = val_double(r, a);
    y = val_double(r, b);
    if (x == 0 && y < 0)
        raise_error(r, "ZeroDivisionError", "0.0 cannot be raised to a negative power");
    f = pow(x, y);
    if (isnan(f) && !isnan(x) && !isnan(y))
        raise_error(r, "TypeError", "complex numbers are not supported");
    if (isinf(f) && !isinf(x) && !isinf(y))
        raise_error(r, "OverflowError", "(34, 'Numerical result out of range')");
    return v_float(f);
}

static double float_mod(double a, double b)
{
    double m = fmod(a, b);

    if (m != 0 && (m < 0) != (b < 0))
        m += b;
    return m == 0 ? copysign(0, b) : m;
}

static double float_floor(double a, double b)
{
    double div = (a - float_mod(a, b)) / b, whole = floor(div);

    if (div == 0)
        return copysign(0, a / b);
    return div - whole > 0.5 ? whole + 1 : whole;
}

static struct val float_op(struct rt *r, enum op op, double a, double b)
{
    switch (op) {
    case OP_ADD: return v_float(a + b);
    case OP_SUB: return v_float(a - b);
    case OP_MUL: return v_float(a * b);
    case OP_DIV:
        if (b == 0)
            raise_error(r, "ZeroDivisionError", "float division by zero");
        return v_float(a / b);
    case OP_FLOORDIV:
        if (b == 0)
            raise_error(r, "ZeroDivisionError", "float floor division by zero");
        return v_float(float_floor(a, b));
    default:
        if (b == 0)
            raise_error(r, "ZeroDivisionError", "float modulo");
        return v_float(float_mod(a, b));
    }
}

static struct val int_op(struct rt *r, enum op op, struct val a, struct val b)
{
    struct val quot, rem;
    bool zero = b.t != V_BIG && b.i == 0;

    switch (op) {
    case OP_ADD: return int_add(r, a, b, false);
    case OP_SUB: return int_add(r, a, b, true);
    case OP_MUL: return int_mul(r, a, b);
    case OP_DIV:
        if (zero)
            raise_error(r, "ZeroDivisionError", "division by zero");
        return v_float(val_double(r, a) / val_double(r, b));
    default:
        if (zero)
            raise_error(r, "ZeroDivisionError", op == OP_MOD ? "integer modulo by zero" : "integer division or modulo by zero");
        int_divmod(r, a, b, &quot, &rem);
        return op == OP_MOD ? rem : quot;
    }
}

static bool ordered(struct rt *r, enum op op, struct val a, struct val b)
{
    int c = val_compare(r, a, b, symbols[op]);

    if (c == 2)
        return false;
    return op == OP_LT ? c < 0 : op == OP_LE ? c <= 0 : op == OP_GT ? c > 0 : c >= 0;
}

struct val val_binary(struct rt *r, enum op op, struct val a, struct val b)
{
    switch (op) {
    case OP_EQ: return v_bool(val_equal(r, a, b));
    case OP_NE: return v_bool(!val_equal(r, a, b));
    case OP_LT: case OP_LE: case OP_GT: case OP_GE: return v_bool(ordered(r, op, a, b));
    case OP_IN: return v_bool(val_contains(r, b, a));
    case OP_NOT_IN: return v_bool(!val_contains(r, b, a));
    default: break;
    }
    if (op == OP_MOD && a.t == V_STR)
        return format_percent(r, a.s, b);
    if (a.t == V_UNDEF)
        raise_undefined(r, a);
    if (b.t == V_UNDEF)
        raise_undefined(r, b);
    if (val_is_number(a) && val_is_number(b)) {
        if (op == OP_POW)
            return power(r, a, b);
        if (a.t != V_FLOAT && b.t != V_FLOAT)
            return int_op(r, op, a, b);
        return float_op(r, op, val_double(r, a), val_double(r, b));
    }
    if (op == OP_ADD)
        return add(r, a, b);
    if (op == OP_MUL)
        return multiply(r, a, b);
    unsupported(r, op, a, b);
}

struct val val_negate(struct rt *r, struct val a, bool plus)
{
    if (a.t == V_UNDEF)
        raise_undefined(r, a);
    if (a.t == V_FLOAT)
        return v_float(plus ? a.f : -a.f);
    if (!val_is_int(a))
        raise_error(r, "TypeError", "bad operand type for unary %c: '%s'", plus ? '+' : '-', val_type(a));
    if (plus)
        return a.t == V_BOOL ? v_int(a.i) : a;
    return int_neg(r, a);
}

/* Slices */

static int64_t slice_index(struct rt *r, struct val v, int64_t otherwise)
{
    if (v.t == V_NONE)
        return otherwise;
    if (v.t == V_BIG)
        return int_negative(v) ? INT64_MIN : INT64_MAX;
    if (v.t != V_INT && v.t != V_BOOL)
        raise_error(r, "TypeError", "slice indices must be integers or None or have an __index__ method");
    return v.i;
}

/* Python's rule: indices behind an end move to it; ret_n items from *ret_start. */
static void slice_bounds(struct rt *r, const struct val part[3], int64_t n, int64_t *ret_start, int64_t *ret_step, int64_t *ret_n)
{
    int64_t by = slice_index(r, part[2], 1), low, high, start, stop;

    if (by == 0)
        raise_error(r, "ValueError", "slice step cannot be zero");
    if (by < -INT64_MAX / 4)
        by = -INT64_MAX / 4;
    if (by > INT64_MAX / 4)
        by = INT64_MAX / 4;
    low = by < 0 ? -1 : 0;
    high = by < 0 ? n - 1 : n;
    start = slice_index(r, part[0], by < 0 ? INT64_MAX : 0);
    stop = slice_index(r, part[1], by < 0 ? INT64_MIN : INT64_MAX);
    if (start < 0 && !(by < 0 && part[0].t == V_NONE))
        start = start < -n ? low : start + n;
    if (start > high)
        start = high;
    if (stop < 0)
        stop = part[1].t == V_NONE || stop < -n ? low : stop + n;
    if (stop > high)
        stop = high;
    *ret_start = start;
    *ret_step = by;
    *ret_n = by > 0 ? (stop > start ? (stop - start - 1) / by + 1 : 0) : (start > stop ? (start - stop - 1) / -by + 1 : 0);
}

static struct val slice_text(struct rt *r, struct str *s, int64_t start, int64_t by, int64_t n)
{
    struct mark m;
    struct str *cut;
    bool ascii = str_chars(s) == s->len;
    size_t at;

    if (n == 0)
        return v_str(str_sub(r, s, 0, 0));
    if (by == 1) {
        size_t from = str_offset(s, (size_t)start);

        step(r, s->len / 64);
        return v_str(str_sub(r, s, from, ascii ? from + (size_t)n : str_offset(s, (size_t)(start + n))));
    }
    m = out_mark(r);
    at = str_offset(s, (size_t)start);
    for (int64_t i = 0; i < n; i++) {
        size_t end = at;

        step(r, 1);
        utf8_next(s->text, s->len, &end);
        out_sub(r, s, at, end);
        if (i + 1 == n)
            break;
        if (ascii) {
            at = (size_t)((int64_t)at + by);
            continue;
        }
        for (int64_t k = 0; k < (by < 0 ? -by : by); k++) {
            step(r, 1);
            by < 0 ? utf8_before(s->text, &at) : utf8_next(s->text, s->len, &at);
        }
    }
    cut = out_take(r, m);
    cut->markup = s->markup;
    return v_str(cut);
}

struct val val_slice(struct rt *r, struct val v, const struct val part[3])
{
    int64_t start, by, n;

    if (v.t == V_UNDEF)
        raise_undefined(r, v);
    if (v.t == V_DICT)
        raise_error(r, "TypeError", "unhashable type: 'slice'");
    if (v.t != V_STR && v.t != V_LIST && v.t != V_TUPLE && v.t != V_RANGE)
        raise_error(r, "TypeError", "'%s' object is not subscriptable", val_type(v));
    slice_bounds(r, part, val_length(r, v), &start, &by, &n);
    if (v.t == V_STR)
        return slice_text(r, v.s, start, by, n);
    if (v.t == V_RANGE) {
        struct range *g = mem(r, sizeof *g);

        *g = (struct range){ v.range->start + start * v.range->step, 0, v.range->step * by, n };
        g->stop = g->start + g->step * n;
        return (struct val){ .t = V_RANGE, .range = g };
    }
    struct val list = v_seq(r, v.t, (uint32_t)n);

    for (int64_t i = 0; i < n; i++)
        list.seq->items[i] = v.seq->items[start + i * by];
    step(r, (uint64_t)n / 8);
    return list;
}

/* Attributes and items */

/* Names with underscores that every object of Python has, or that those of a template have. */
static bool dunder(const struct str *name)
{
    static const char *const names[] = {
        "__class__", "__init__", "__doc__", "__dict__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__repr__",
        "__str__", "__new__", "__dir__", "__format__", "__reduce__", "__reduce_ex__", "__getattribute__", "__setattr__", "__delattr__",
        "__init_subclass__", "__subclasshook__", "__sizeof__", "__len__", "__getitem__", "__iter__", "__contains__", "__module__",
        "__call__", "__add__", "__mul__", "__mod__",
    };

    if (name->len < 5 || name->text[0] != '_')
        return false;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (str_is(name, names[i]))
            return true;
    return false;
}

static struct val unsafe(struct rt *r, struct val object, struct str *name)
{
    struct val v = v_undef_attr(r, object, v_str(name));

    v.u->kind = UNDEF_UNSAFE;
    return v;
}

bool val_own_attribute(struct rt *r, struct val v, struct str *name, struct val *ret)
{
    int id = method_id(name->text, name->len);
    bool is_unsafe;

    if (id && method_of(id, v, &is_unsafe)) {
        *ret = is_unsafe ? unsafe(r, v, name) : method_value(r, id, v);
        return true;
    }
    if (val_other_attribute(r, v, name, ret))
        return true;
    if (!dunder(name))
        return false;
    *ret = unsafe(r, v, name);
    return true;
}

struct val val_attr(struct rt *r, struct val v, struct str *name)
{
    struct val ret, *item;

    if (v.t == V_UNDEF && (name->len < 2 || memcmp(name->text, "__", 2) != 0))
        raise_undefined(r, v);
    if (val_own_attribute(r, v, name, &ret))
        return ret;
    if (v.t == V_UNDEF)
        raise_undefined(r, v);
    if (v.t == V_DICT && (item = dict_get_str(v.d, name)) != NULL)
        return *item;
    return v_undef_attr(r, v, v_str(name));
}

static bool hashable(struct val v)
{
    if (v.t == V_TUPLE)
        for (uint32_t i = 0; i < v.seq->n; i++)
            if (!hashable(v.seq->items[i]))
                return false;
    return v.t != V_LIST && v.t != V_DICT && v.t != V_SLICE && !(v.t == V_VIEW && v.aux != VIEW_VALUES);
}

static bool item_at(struct rt *r, struct val v, struct val key, struct val *ret)
{
    int64_t n, i;
    size_t from, to;

    if (v.t == V_DICT) {
        struct val *item = key.t == V_STR ? dict_get_str(v.d, key.s) : hashable(key) ? dict_get(r, v.d, key) : NULL;

        if (item)
            *ret = *item;
        return item != NULL;
    }
    if (v.t != V_LIST && v.t != V_TUPLE && v.t != V_STR && v.t != V_RANGE)
        return false;
    if (key.t == V_SLICE) {
        *ret = val_slice(r, v, key.p);
        return true;
    }
    if (key.t != V_INT && key.t != V_BOOL)
        return false;
    n = val_length(r, v);
    i = key.i < 0 ? key.i + n : key.i;
    if (i < 0 || i >= n)
        return false;
    if (v.t == V_RANGE) {
        *ret = range_item(v.range, i);
    } else if (v.t == V_STR) {
        step(r, v.s->len / 64);
        from = to = str_offset(v.s, (size_t)i);
        utf8_next(v.s->text, v.s->len, &to);
        *ret = v_str(str_sub(r, v.s, from, to));
    } else {
        *ret = v.seq->items[i];
    }
    return true;
}

struct val val_item(struct rt *r, struct val v, struct val key)
{
    struct val ret;

    if (v.t == V_UNDEF)
        raise_undefined(r, v);
    if (item_at(r, v, key, &ret) || (key.t == V_STR && val_own_attribute(r, v, key.s, &ret)))
        return ret;
    return v_undef_attr(r, v, key);
}
