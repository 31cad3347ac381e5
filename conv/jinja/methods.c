/* Which type has which method, their calls, and attributes that are no methods. */
#include "conv/jinja/methods.h"

#include "conv/jinja/tree.h"

#include <math.h>
#include <stdio.h>

#define METHOD_ROW(id, name, types, unsafe) { name, types, unsafe },
static const struct { const char *name; uint16_t types, unsafe; } rows[] = { { "", 0, 0 }, JINJA_METHODS(METHOD_ROW) };

int method_id(const char *name, size_t len)
{
    int low = 1, high = METHOD_COUNT_ - 1;

    while (low <= high) {
        int middle = (low + high) / 2, c = strncmp(name, rows[middle].name, len);

        if (c == 0 && rows[middle].name[len] != '\0')
            c = -1;
        if (c == 0)
            return middle;
        if (c < 0)
            high = middle - 1;
        else
            low = middle + 1;
    }
    return 0;
}

const char *method_name(int id) { return rows[id].name; }

static unsigned type_bit(struct val v)
{
    switch ((enum vtype)v.t) {
    case V_STR: return OF_STR;
    case V_BYTES: return OF_BYTES;
    case V_LIST: return OF_LIST;
    case V_TUPLE: return OF_TUPLE;
    case V_DICT: return OF_DICT;
    case V_INT: case V_BIG: case V_BOOL: return OF_INT;
    case V_FLOAT: return OF_FLOAT;
    case V_RANGE: return OF_RANGE;
    case V_CYCLER: return OF_CYCLER;
    case V_LOOP: return OF_LOOP;
    default: return 0;
    }
}

bool method_of(int id, struct val v, bool *ret_unsafe)
{
    unsigned bit = type_bit(v);

    *ret_unsafe = (rows[id].unsafe & bit) != 0;
    return (rows[id].types & bit) != 0;
}

struct val method_value(struct rt *r, int id, struct val self)
{
    struct val *object = mem(r, sizeof *object);

    *object = self;
    return (struct val){ .t = V_METHOD, .aux = (uint32_t)id, .p = object };
}

void args_bind(struct rt *r, const char *function, const char *names, uint32_t required, const struct args *a, struct val *ret)
{
    uint32_t n = 0;
    const char *p = names;

    for (; *p; n++) {
        size_t len = strcspn(p, " ");
        bool given = n < a->n;

        ret[n] = given ? a->pos[n] : v_missing();
        for (uint32_t i = 0; i < a->n_named; i++) {
            if (a->names[i]->len != len || memcmp(a->names[i]->text, p, len) != 0)
                continue;
            if (given)
                raise_error(r, "TypeError", "%s() got multiple values for argument '%.*s'", function, (int)len, p);
            ret[n] = a->named[i];
            given = true;
        }
        if (!given && n < required)
            raise_error(r, "TypeError", "%s() missing 1 required positional argument: '%.*s'", function, (int)len, p);
        p += len;
        p += *p == ' ';
    }
    if (a->n > n)
        raise_error(r, "TypeError", "%s() takes at most %u arguments (%u given)", function, n, a->n);
    for (uint32_t i = 0; i < a->n_named; i++) {
        bool known = false;

        for (p = names; *p; ) {
            size_t len = strcspn(p, " ");

            known |= a->names[i]->len == len && memcmp(a->names[i]->text, p, len) == 0;
            p += len;
            p += *p == ' ';
        }
        if (!known)
            raise_error(r, "TypeError", "%s() got an unexpected keyword argument '%.*s'", function, (int)a->names[i]->len, a->names[i]->text);
    }
}

static struct val seq_index(struct rt *r, struct val v, struct val p[3])
{
    int64_t n = val_length(r, v), from = p[1].t == V_MISSING ? 0 : val_int64(r, p[1], ""), to = p[2].t == V_MISSING ? n : val_int64(r, p[2], "");
    struct str *text;

    from = from < 0 ? (from + n < 0 ? 0 : from + n) : from;
    to = to < 0 ? to + n : to < n ? to : n;
    for (int64_t i = from; i < to; i++)
        if (val_equal(r, v.t == V_RANGE ? range_item(v.range, i) : v.seq->items[i], p[0]))
            return v_int(i);
    if (v.t == V_TUPLE)
        raise_error(r, "ValueError", "tuple.index(x): x not in tuple");
    text = val_repr(r, p[0]);
    raise_error(r, "ValueError", "%.*s is not in %s", (int)(text->len < 400 ? text->len : 400), text->text, val_type(v));
}

static struct val seq_count(struct rt *r, struct val v, struct val item)
{
    int64_t n = 0, len = val_length(r, v);

    for (int64_t i = 0; i < len; i++)
        n += val_equal(r, v.t == V_RANGE ? range_item(v.range, i) : v.seq->items[i], item);
    return v_int(n);
}

static struct val fromkeys(struct rt *r, struct val keys, struct val value)
{
    struct dict *d = dict_new(r, 4);
    struct iter it;
    struct val k;

    iter_init(r, &it, keys);
    while (iter_next(r, &it, &k))
        dict_set(r, d, k, value.t == V_MISSING ? v_none() : value);
    return (struct val){ .t = V_DICT, .d = d };
}

static struct val dict_method(struct rt *r, int id, struct val self, const struct args *a)
{
    struct val p[MAX_PARAMS], *found;

    if (a->n_named)
        raise_error(r, "TypeError", "dict.%s() takes no keyword arguments", method_name(id));
    switch (id) {
    case METHOD_GET:
        args_bind(r, "get", "key default", 1, a, p);
        found = dict_get(r, self.d, p[0]);
        return found ? *found : p[1].t == V_MISSING ? v_none() : p[1];
    case METHOD_FROMKEYS:
        args_bind(r, "fromkeys", "iterable value", 1, a, p);
        return fromkeys(r, p[0], p[1]);
    default:
        break;
    }
    args_bind(r, method_name(id), "", 0, a, p);
    if (id == METHOD_COPY)
        return self;
    return (struct val){ .t = V_VIEW, .aux = id == METHOD_KEYS ? VIEW_KEYS : id == METHOD_VALUES ? VIEW_VALUES : VIEW_ITEMS, .d = self.d };
}

static struct val number_method(struct rt *r, int id, struct val self, const struct args *a)
{
    struct val p[MAX_PARAMS], rem;
    int64_t bits = 0;

    args_bind(r, method_name(id), "", 0, a, p);
    if (id == METHOD_IS_INTEGER)
        return v_bool(isfinite(self.f) && floor(self.f) == self.f);
    if (int_negative(self))
        self = int_neg(r, self);
    while (int_compare(self, v_int(0)) > 0) {
        int_divmod(r, self, v_int(2), &self, &rem);
        bits++;
    }
    return v_int(bits);
}

static struct val cycler_method(struct rt *r, int id, struct cycler *c, const struct args *a)
{
    struct val p[MAX_PARAMS], v;

    args_bind(r, method_name(id), "", 0, a, p);
    if (id == METHOD_RESET) {
        c->at = 0;
        return v_none();
    }
    v = c->items->items[c->at];
    c->at = (c->at + 1) % c->items->n;
    return v;
}

struct val method_call(struct rt *r, int id, struct val self, const struct args *a)
{
    struct val p[MAX_PARAMS];

    switch ((enum vtype)self.t) {
    case V_STR:
        return str_method(r, id, self.s, a);
    case V_BYTES:
        return v_str(str_view(r, self.s->text, self.s->len, self.s->prov == PROV_TRUSTED));
    case V_DICT:
        return dict_method(r, id, self, a);
    case V_LIST: case V_TUPLE: case V_RANGE:
        if (id == METHOD_COPY)
            return self;
        args_bind(r, method_name(id), id == METHOD_COUNT ? "value" : "value start stop", 1, a, p);
        return id == METHOD_COUNT ? seq_count(r, self, p[0]) : seq_index(r, self, p);
    case V_CYCLER:
        return cycler_method(r, id, self.cycler, a);
    case V_LOOP:
        return loop_method(r, id, self.loop, a);
    default:
        return number_method(r, id, self, a);
    }
}

bool val_other_attribute(struct rt *r, struct val v, struct str *name, struct val *ret)
{
    struct val *found;

    switch ((enum vtype)v.t) {
    case V_NAMESPACE:
        found = dict_get_str(v.d, name);
        if (found)
            *ret = *found;
        return found != NULL;
    case V_LOOP:
        return loop_attribute(r, v.loop, name, ret);
    case V_MACRO:
        return macro_attribute(r, v.macro, name, ret);
    case V_INT: case V_BOOL: case V_BIG: case V_FLOAT:
        if (str_is(name, "real") || (str_is(name, "numerator") && v.t != V_FLOAT))
            *ret = v.t == V_BOOL ? v_int(v.i) : v;
        else if (str_is(name, "imag"))
            *ret = v.t == V_FLOAT ? v_float(0) : v_int(0);
        else if (str_is(name, "denominator") && v.t != V_FLOAT)
            *ret = v_int(1);
        else
            return false;
        return true;
    case V_RANGE:
        if (!str_is(name, "start") && !str_is(name, "stop") && !str_is(name, "step"))
            return false;
        *ret = v_int(str_is(name, "start") ? v.range->start : str_is(name, "stop") ? v.range->stop : v.range->step);
        return true;
    case V_TUPLE:
        if (!v.seq->group || (!str_is(name, "grouper") && !str_is(name, "list")))
            return false;
        *ret = v.seq->items[str_is(name, "list")];
        return true;
    case V_CYCLER:
        if (!str_is(name, "current"))
            return false;
        *ret = v.cycler->items->items[v.cycler->at];
        return true;
    default:
        return false;
    }
}
