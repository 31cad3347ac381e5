/* What Python does with values whatever their type: truth, length, equality, order, hashes, iteration, dicts. */
#include "conv/jinja/value.h"

#include <errno.h>
#include <math.h>

bool val_is_int(struct val v) { return v.t == V_INT || v.t == V_BOOL || v.t == V_BIG; }
bool val_is_number(struct val v) { return val_is_int(v) || v.t == V_FLOAT; }

bool val_truth(struct rt *r, struct val v)
{
    switch ((enum vtype)v.t) {
    case V_MISSING: case V_UNDEF: case V_NONE: return false;
    case V_BOOL: case V_INT: return v.i != 0;
    case V_FLOAT: return v.f != 0;
    case V_STR: case V_BYTES: return v.s->len > 0;
    case V_LIST: case V_TUPLE: return v.seq->n > 0;
    case V_DICT: case V_VIEW: return v.d->n > 0;
    case V_RANGE: return v.range->n > 0;
    default: return true;
    }
}

const char *val_type(struct val v)
{
    static const char *const views[] = { "dict_keys", "dict_values", "dict_items" };

    switch ((enum vtype)v.t) {
    case V_MISSING: case V_UNDEF: return "Undefined";
    case V_NONE: return "NoneType";
    case V_BOOL: return "bool";
    case V_INT: case V_BIG: return "int";
    case V_FLOAT: return "float";
    case V_STR: return v.s->markup ? "Markup" : "str";
    case V_BYTES: return "bytes";
    case V_LIST: return "list";
    case V_TUPLE: return v.seq->group ? "_GroupTuple" : "tuple";
    case V_DICT: return "dict";
    case V_VIEW: return views[v.aux];
    case V_RANGE: return "range";
    case V_GEN: return v.gen->type;
    case V_SLICE: return "slice";
    case V_NAMESPACE: return "Namespace";
    case V_MACRO: return "Macro";
    case V_METHOD: return "builtin_function_or_method";
    case V_FUNC: return "function";
    case V_LOOP: return "LoopContext";
    case V_CYCLER: return "Cycler";
    case V_JOINER: return "Joiner";
    case V_SELF: return "TemplateReference";
    }
    return "object";
}

const char *val_long_type(struct val v)
{
    switch ((enum vtype)v.t) {
    case V_NONE: return "None";
    case V_BOOL: return "bool object";
    case V_INT: case V_BIG: return "int object";
    case V_FLOAT: return "float object";
    case V_STR: return v.s->markup ? "markupsafe.Markup object" : "str object";
    case V_BYTES: return "bytes object";
    case V_LIST: return "list object";
    case V_TUPLE: return v.seq->group ? "jinja2.filters._GroupTuple object" : "tuple object";
    case V_DICT: return "dict object";
    case V_VIEW: return v.aux == VIEW_KEYS ? "dict_keys object" : v.aux == VIEW_VALUES ? "dict_values object" : "dict_items object";
    case V_RANGE: return "range object";
    case V_GEN: return "generator object";
    case V_NAMESPACE: return "jinja2.utils.Namespace object";
    case V_MACRO: return "jinja2.runtime.Macro object";
    case V_METHOD: return "builtin_function_or_method object";
    case V_FUNC: return "function object";
    case V_LOOP: return "jinja2.runtime.LoopContext object";
    case V_CYCLER: return "jinja2.utils.Cycler object";
    case V_JOINER: return "jinja2.utils.Joiner object";
    case V_SELF: return "jinja2.runtime.TemplateReference object";
    default: return "object";
    }
}

double val_double(struct rt *r, struct val v)
{
    double f = v.t == V_FLOAT ? v.f : int_double(v);

    if (v.t == V_BIG && isinf(f))
        raise_error(r, "OverflowError", "int too large to convert to float");
    return f;
}

int64_t val_int64(struct rt *r, struct val v, const char *what)
{
    if (v.t == V_INT || v.t == V_BOOL)
        return v.i;
    if (v.t == V_BIG)
        raise_error(r, "OverflowError", "Python int too large to convert to C ssize_t");
    raise_error(r, "TypeError", "%s'%s' object cannot be interpreted as an integer", what, val_type(v));
}

/* Equality and order */

static bool seq_equal(struct rt *r, const struct seq *a, const struct seq *b)
{
    bool same = a->n == b->n;

    enter(r);
    for (uint32_t i = 0; same && i < a->n; i++)
        same = val_equal(r, a->items[i], b->items[i]);
    leave(r);
    return same;
}

static bool dict_equal(struct rt *r, const struct dict *a, const struct dict *b)
{
    bool same = a->n == b->n;

    enter(r);
    for (uint32_t i = 0; same && i < a->n; i++) {
        struct val *other = dict_get(r, b, a->e[i].key);

        same = other && val_equal(r, a->e[i].value, *other);
    }
    leave(r);
    return same;
}

static int double_compare(double a, double b) { return isnan(a) || isnan(b) ? 2 : a < b ? -1 : a > b; }

static int number_compare(struct val a, struct val b)
{
    if (a.t != V_FLOAT && b.t != V_FLOAT)
        return int_compare(a, b);
    if (a.t == V_FLOAT && b.t == V_FLOAT)
        return double_compare(a.f, b.f);
    /* An int beyond 2^53 is not what its double is. */
    if (a.t == V_FLOAT) {
        int c = number_compare(b, a);

        return c == 2 ? 2 : -c;
    }
    if (isnan(b.f))
        return 2;
    if (a.t != V_BIG && fabs(b.f) < 9e18) {
        int64_t whole = (int64_t)b.f;

        return a.i != whole ? (a.i < whole ? -1 : 1) : double_compare(0, b.f - (double)whole);
    }
    return double_compare(int_double(a), b.f);
}

bool val_equal(struct rt *r, struct val a, struct val b)
{
    step(r, 1);
    if (val_is_number(a) && val_is_number(b))
        return number_compare(a, b) == 0;
    if (a.t != b.t)
        return a.t == V_MISSING && b.t == V_UNDEF;
    switch ((enum vtype)a.t) {
    case V_NONE: case V_UNDEF: case V_MISSING: return true;
    case V_STR: case V_BYTES:
        step(r, a.s->len / 64);
        return str_equal(a.s, b.s);
    case V_LIST: case V_TUPLE: return a.seq == b.seq || seq_equal(r, a.seq, b.seq);
    case V_DICT: return a.d == b.d || dict_equal(r, a.d, b.d);
    case V_VIEW: {
        if (a.aux == VIEW_VALUES || a.aux != b.aux)
            return a.d == b.d && a.aux == b.aux;
        if (a.aux == VIEW_ITEMS)
            return dict_equal(r, a.d, b.d);
        bool same = a.d->n == b.d->n;

        for (uint32_t i = 0; same && i < a.d->n; i++)
            same = dict_get(r, b.d, a.d->e[i].key) != NULL;
        return same;
    }
    case V_RANGE:
        return a.range->n == b.range->n && (a.range->n == 0 || (a.range->start == b.range->start &&
               (a.range->n == 1 || a.range->step == b.range->step)));
    case V_FUNC: return a.aux == b.aux;
    default: return a.p == b.p && a.aux == b.aux;
    }
}

static int seq_compare(struct rt *r, const struct seq *a, const struct seq *b, const char *op)
{
    enter(r);
    for (uint32_t i = 0; i < a->n && i < b->n; i++) {
        if (!val_equal(r, a->items[i], b->items[i])) {
            int c = val_compare(r, a->items[i], b->items[i], op);

            leave(r);
            return c;
        }
    }
    leave(r);
    return a->n < b->n ? -1 : a->n > b->n;
}

int val_compare(struct rt *r, struct val a, struct val b, const char *op)
{
    step(r, 1);
    if (val_is_number(a) && val_is_number(b))
        return number_compare(a, b);
    if (a.t == V_UNDEF)
        raise_undefined(r, a);
    if (b.t == V_UNDEF)
        raise_undefined(r, b);
    if (a.t == V_STR && b.t == V_STR) {
        size_t n = a.s->len < b.s->len ? a.s->len : b.s->len;
        int c = n ? memcmp(a.s->text, b.s->text, n) : 0;

        step(r, n / 64);
        return c ? (c < 0 ? -1 : 1) : a.s->len < b.s->len ? -1 : a.s->len > b.s->len;
    }
    if ((a.t == V_LIST && b.t == V_LIST) || (a.t == V_TUPLE && b.t == V_TUPLE))
        return seq_compare(r, a.seq, b.seq, op);
    raise_error(r, "TypeError", "'%s' not supported between instances of '%s' and '%s'", op, val_type(a), val_type(b));
}

/* Hashes */

uint32_t val_hash(struct rt *r, struct val v)
{
    uint64_t h = 0x345678;

    switch ((enum vtype)v.t) {
    case V_STR: case V_BYTES:
        return str_hash(v.s);
    case V_INT: case V_BOOL: case V_BIG:
        return int_hash(v);
    case V_FLOAT:
        if (v.f == floor(v.f) && fabs(v.f) < 9e18)
            return int_hash(v_int((int64_t)v.f));
        memcpy(&h, &v.f, sizeof h);
        return (uint32_t)(h ^ h >> 32);
    case V_TUPLE:
        enter(r);
        for (uint32_t i = 0; i < v.seq->n; i++)
            h = (h ^ val_hash(r, v.seq->items[i])) * 1000003;
        leave(r);
        return (uint32_t)(h ^ h >> 32);
    case V_VIEW:
        if (v.aux == VIEW_VALUES)
            return (uint32_t)((uintptr_t)v.d >> 4);
        /* fall through */
    case V_LIST: case V_DICT: case V_SLICE:
        raise_error(r, "TypeError", "unhashable type: '%s'", val_type(v));
    case V_RANGE:
        return (uint32_t)v.range->n;
    case V_NONE:
        return 0xca11;
    case V_UNDEF: case V_MISSING:
        return 0xdef;
    default:
        return (uint32_t)((uintptr_t)v.p >> 4);
    }
}

/* Dicts: entries in order; beyond eight, an index of open addressing over them. */

enum { DICT_LINEAR = 8 };

struct dict *dict_new(struct rt *r, uint32_t cap)
{
    struct dict *d = mem(r, sizeof *d);

    *d = (struct dict){ .cap = cap, .e = cap ? mem_array(r, cap, sizeof(struct entry)) : NULL };
    return d;
}

static bool key_equal(struct rt *r, const struct entry *e, struct val key, uint32_t h)
{
    if (e->hash != h)
        return false;
    if (e->key.t == V_STR && key.t == V_STR)
        return str_equal(e->key.s, key.s);
    return val_equal(r, e->key, key);
}

static int64_t lookup(struct rt *r, const struct dict *d, struct val key, uint32_t h)
{
    if (!d->n_index) {
        for (uint32_t i = 0; i < d->n; i++)
            if (key_equal(r, &d->e[i], key, h))
                return i;
        return -1;
    }
    for (uint32_t i = h;; i++) {
        uint32_t at = d->index[i & (d->n_index - 1)];

        if (at == 0)
            return -1;
        if (key_equal(r, &d->e[at - 1], key, h))
            return at - 1;
    }
}

struct val *dict_get(struct rt *r, const struct dict *d, struct val key)
{
    int64_t i = lookup(r, d, key, val_hash(r, key));

    return i < 0 ? NULL : &d->e[i].value;
}

struct val *dict_get_str(const struct dict *d, struct str *key)
{
    uint32_t h = str_hash(key);

    if (!d->n_index) {
        for (uint32_t i = 0; i < d->n; i++)
            if (d->e[i].hash == h && d->e[i].key.t == V_STR && str_equal(d->e[i].key.s, key))
                return &d->e[i].value;
        return NULL;
    }
    for (uint32_t i = h;; i++) {
        uint32_t at = d->index[i & (d->n_index - 1)];

        if (at == 0)
            return NULL;
        if (d->e[at - 1].hash == h && d->e[at - 1].key.t == V_STR && str_equal(d->e[at - 1].key.s, key))
            return &d->e[at - 1].value;
    }
}

static void index_add(struct dict *d, uint32_t h, uint32_t entry)
{
    uint32_t i = h;

    while (d->index[i & (d->n_index - 1)])
        i++;
    d->index[i & (d->n_index - 1)] = entry + 1;
}

static void dict_grow(struct rt *r, struct dict *d)
{
    uint32_t cap = d->cap ? d->cap * 2 : 4;
    struct entry *e = mem_array(r, cap, sizeof *e);

    if (d->n > 0)
        memcpy(e, d->e, d->n * sizeof *e);
    d->e = e;
    d->cap = cap;
}

void dict_set(struct rt *r, struct dict *d, struct val key, struct val v)
{
    uint32_t h = val_hash(r, key);
    int64_t i = lookup(r, d, key, h);

    step(r, 1);
    if (i >= 0) {
        d->e[i].value = v;
        return;
    }
    if (d->n == d->cap)
        dict_grow(r, d);
    d->e[d->n] = (struct entry){ key, v, h };
    if (d->n >= DICT_LINEAR && d->n_index < (d->n + 1) * 2) {
        uint32_t n = d->n_index ? d->n_index * 4 : DICT_LINEAR * 8;

        d->index = mem_array(r, n, sizeof *d->index);
        memset(d->index, 0, n * sizeof *d->index);
        d->n_index = n;
        for (uint32_t k = 0; k < d->n; k++)
            index_add(d, d->e[k].hash, k);
    }
    if (d->n_index)
        index_add(d, h, d->n);
    d->n++;
}

/* Sequences */

struct val range_item(const struct range *g, int64_t i) { return v_int(g->start + i * g->step); }

bool val_has_length(struct val v)
{
    return v.t == V_STR || v.t == V_BYTES || v.t == V_LIST || v.t == V_TUPLE || v.t == V_DICT || v.t == V_VIEW ||
           v.t == V_RANGE || v.t == V_UNDEF;
}

int64_t val_length(struct rt *r, struct val v)
{
    switch ((enum vtype)v.t) {
    case V_STR:
        step(r, v.s->chars == CHARS_UNKNOWN ? v.s->len / 64 : 0);
        return str_chars(v.s);
    case V_BYTES: return v.s->len;
    case V_LIST: case V_TUPLE: return v.seq->n;
    case V_DICT: case V_VIEW: return v.d->n;
    case V_RANGE: return v.range->n;
    case V_UNDEF: return 0;
    default:
        raise_error(r, "TypeError", "object of type '%s' has no len()", val_type(v));
    }
}

bool val_iterable(struct val v)
{
    return val_has_length(v) || v.t == V_GEN || v.t == V_LOOP;
}

void iter_init(struct rt *r, struct iter *it, struct val v)
{
    if (!val_iterable(v) || v.t == V_LOOP)
        raise_error(r, "TypeError", "'%s' object is not iterable", val_type(v));
    *it = (struct iter){ .v = v };
}

bool iter_next(struct rt *r, struct iter *it, struct val *ret)
{
    struct val v = it->v;

    step(r, 1);
    switch ((enum vtype)v.t) {
    case V_LIST: case V_TUPLE:
        if (it->i >= v.seq->n)
            return false;
        *ret = v.seq->items[it->i++];
        return true;
    case V_DICT: case V_VIEW:
        if (it->i >= v.d->n)
            return false;
        if (v.t == V_VIEW && v.aux == VIEW_ITEMS)
            *ret = v_pair(r, v.d->e[it->i].key, v.d->e[it->i].value);
        else
            *ret = v.t == V_VIEW && v.aux == VIEW_VALUES ? v.d->e[it->i].value : v.d->e[it->i].key;
        it->i++;
        return true;
    case V_STR: {
        size_t from = (size_t)it->i, to = from;

        if (from >= v.s->len)
            return false;
        utf8_next(v.s->text, v.s->len, &to);
        it->i = (int64_t)to;
        *ret = v_str(str_plain(r, str_sub(r, v.s, from, to)));          /* the characters of a Markup are plain */
        return true;
    }
    case V_BYTES:
        if (it->i >= v.s->len)
            return false;
        *ret = v_int((unsigned char)v.s->text[it->i++]);
        return true;
    case V_RANGE:
        if (it->i >= v.range->n)
            return false;
        *ret = range_item(v.range, it->i++);
        return true;
    case V_GEN: {
        bool more;

        if (v.gen->done)
            return false;
        enter(r);
        more = v.gen->next(r, v.gen, ret);
        leave(r);
        v.gen->done = !more;
        return more;
    }
    default:
        return false;
    }
}

struct val val_list(struct rt *r, struct val v)
{
    struct iter it;
    struct grow g = { 0 };
    struct val item;

    if (v.t == V_LIST || v.t == V_TUPLE)
        return v;
    iter_init(r, &it, v);
    while (iter_next(r, &it, &item))
        grow_add(r, &g, item);
    return grow_take(r, &g, V_LIST);
}

static bool seq_contains(struct rt *r, const struct seq *s, struct val item)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (val_equal(r, s->items[i], item))
            return true;
    return false;
}

bool val_contains(struct rt *r, struct val in, struct val item)
{
    struct iter it;
    struct val v;

    switch ((enum vtype)in.t) {
    case V_STR:
        if (item.t != V_STR)
            raise_error(r, "TypeError", "'in <string>' requires string as left operand, not %s", val_type(item));
        step(r, in.s->len / 64);
        return str_find(r, in.s, item.s, 0, in.s->len) >= 0;
    case V_LIST: case V_TUPLE:
        return seq_contains(r, in.seq, item);
    case V_DICT:
        return dict_get(r, in.d, item) != NULL;
    case V_VIEW:
        if (in.aux == VIEW_KEYS)
            return dict_get(r, in.d, item) != NULL;
        break;
    case V_UNDEF:
        return false;
    case V_RANGE: case V_GEN: case V_BYTES:
        break;
    default:
        raise_error(r, "TypeError", "argument of type '%s' is not iterable", val_type(in));
    }
    iter_init(r, &it, in);
    while (iter_next(r, &it, &v))
        if (val_equal(r, v, item))
            return true;
    return false;
}
