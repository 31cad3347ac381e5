/* Filters of sequences and numbers, and the table of all. Those that jinja2 makes lazy are lazy here: what they would raise
 * is raised when, and only if, their items are asked for.
 */
#include "conv/jinja/value.h"

#include "base/unicode.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define FILTER(name) static struct val name(struct rt *r, struct val v, const struct val *p)

static bool given(struct val v) { return v.t != V_MISSING; }
static bool flag(struct rt *r, struct val v) { return given(v) && val_truth(r, v); }

/* "a.b.0" or 0: items first, then attributes, part by part; `def` takes the place of what is undefined. */
static struct val path_get(struct rt *r, struct val v, struct val path, struct val def)
{
    size_t from = 0;

    if (path.t != V_STR)
        return path.t == V_MISSING || path.t == V_NONE ? v : val_item(r, v, path);
    for (;;) {
        const char *dot = memchr(path.s->text + from, '.', path.s->len - from);
        size_t to = dot ? (size_t)(dot - path.s->text) : path.s->len;
        struct str *part = str_sub(r, path.s, from, to);
        bool digits = part->len > 0 && part->len < 10;
        struct val key = v_str(part);

        for (uint32_t i = 0; i < part->len; i++)
            digits &= part->text[i] >= '0' && part->text[i] <= '9';
        if (digits)
            key = int_from_text(r, part->text, part->len, 10, false);
        v = val_item(r, v, key);
        if (v.t == V_UNDEF && given(def) && def.t != V_NONE)
            v = def;
        if (!dot)
            return v;
        from = to + 1;
    }
}

struct val lower_key(struct rt *r, struct val v) { return v.t == V_STR ? str_lower(r, v.s) : v; }

/* Sorting: merge sort, each step asking only `later < earlier`, as Python's does. */

static bool goes_before(struct rt *r, struct val later, struct val earlier, bool reverse)
{
    int c = reverse ? val_compare(r, earlier, later, "<") : val_compare(r, later, earlier, "<");

    return c < 0;
}

void sort_vals(struct rt *r, struct val *keys, struct val *items, uint32_t n, bool reverse)
{
    struct val *k2 = mem_array(r, n ? n : 1, sizeof *k2), *i2 = mem_array(r, n ? n : 1, sizeof *i2);

    for (uint32_t width = 1; width < n; width *= 2) {
        for (uint32_t from = 0; from < n; from += 2 * width) {
            uint32_t middle = n - from > width ? from + width : n, to = n - from > 2 * width ? from + 2 * width : n;
            uint32_t a = from, b = middle;

            for (uint32_t at = from; at < to; at++) {
                bool right = a >= middle || (b < to && goes_before(r, keys[b], keys[a], reverse));
                uint32_t take = right ? b++ : a++;

                k2[at] = keys[take];
                i2[at] = items[take];
            }
        }
        memcpy(keys, k2, n * sizeof *keys);
        memcpy(items, i2, n * sizeof *items);
    }
}

/* A list's own copy of its items, for what reorders them. */
static struct val fresh_list(struct rt *r, struct val v)
{
    struct val list = val_list(r, v), copy = v_seq(r, V_LIST, list.seq->n);

    if (list.seq->n > 0)
        memcpy(copy.seq->items, list.seq->items, list.seq->n * sizeof(struct val));
    return copy;
}

static struct val plain_key(struct rt *r, struct val item, struct val attribute, bool fold)
{
    item = path_get(r, item, attribute, v_missing());
    return fold ? lower_key(r, item) : item;
}

/* The key of sort: a list, of one attribute or of those between commas. (Equal items of a list are not asked for order.) */
static struct val sort_key(struct rt *r, struct val item, struct val attribute, bool fold)
{
    struct grow g = { 0 };
    size_t from = 0;

    if (attribute.t != V_STR)
        grow_add(r, &g, plain_key(r, item, attribute, fold));
    while (attribute.t == V_STR) {
        const char *comma = memchr(attribute.s->text + from, ',', attribute.s->len - from);
        size_t to = comma ? (size_t)(comma - attribute.s->text) : attribute.s->len;

        grow_add(r, &g, plain_key(r, item, v_str(str_sub(r, attribute.s, from, to)), fold));
        if (!comma)
            break;
        from = to + 1;
    }
    return grow_take(r, &g, V_LIST);
}

FILTER(do_sort)
{
    struct val list = fresh_list(r, v), keys = v_seq(r, V_LIST, list.seq->n);

    for (uint32_t i = 0; i < list.seq->n; i++)
        keys.seq->items[i] = sort_key(r, list.seq->items[i], p[2], !flag(r, p[1]));
    sort_vals(r, keys.seq->items, list.seq->items, list.seq->n, flag(r, p[0]));
    return list;
}

FILTER(do_dictsort)
{
    bool by_value = given(p[1]) && p[1].t == V_STR && str_is(p[1].s, "value");
    struct grow pairs = { 0 }, keys = { 0 };

    if (given(p[1]) && !by_value && !(p[1].t == V_STR && str_is(p[1].s, "key")))
        raise_error(r, "FilterArgumentError", "You can only sort by either \"key\" or \"value\"");
    if (v.t == V_UNDEF)
        raise_undefined(r, v);
    if (v.t != V_DICT)
        raise_error(r, "AttributeError", "'%s' object has no attribute 'items'", val_type(v));
    for (uint32_t i = 0; i < v.d->n; i++) {
        struct val key = by_value ? v.d->e[i].value : v.d->e[i].key;

        grow_add(r, &pairs, v_pair(r, v.d->e[i].key, v.d->e[i].value));
        grow_add(r, &keys, flag(r, p[0]) ? key : lower_key(r, key));
    }
    sort_vals(r, keys.items, pairs.items, pairs.n, flag(r, p[2]));
    return grow_take(r, &pairs, V_LIST);
}

FILTER(do_groupby)
{
    bool fold = !flag(r, p[2]);
    struct val list = fresh_list(r, v), keys = v_seq(r, V_LIST, list.seq->n);
    struct grow groups = { 0 };
    uint32_t n = list.seq->n;

    for (uint32_t i = 0; i < n; i++) {
        struct val key = path_get(r, list.seq->items[i], p[0], p[1]);

        keys.seq->items[i] = fold ? lower_key(r, key) : key;
    }
    sort_vals(r, keys.seq->items, list.seq->items, n, false);
    for (uint32_t from = 0, to; from < n; from = to) {
        struct val items, group;

        for (to = from + 1; to < n && val_equal(r, keys.seq->items[to], keys.seq->items[from]); to++)
            ;
        items = v_seq(r, V_LIST, to - from);
        memcpy(items.seq->items, list.seq->items + from, (to - from) * sizeof(struct val));
        group = v_pair(r, fold ? path_get(r, items.seq->items[0], p[0], p[1]) : keys.seq->items[from], items);
        group.seq->group = true;
        grow_add(r, &groups, group);
    }
    return grow_take(r, &groups, V_LIST);
}

static struct val extreme(struct rt *r, struct val v, const struct val *p, bool largest)
{
    struct iter it;
    struct val best, item, best_key, key;

    iter_init(r, &it, v);
    if (!iter_next(r, &it, &best))
        return v_hint(r, "No aggregated item, sequence was empty.");
    best_key = plain_key(r, best, p[1], !flag(r, p[0]));
    while (iter_next(r, &it, &item)) {
        key = plain_key(r, item, p[1], !flag(r, p[0]));
        if (largest ? val_compare(r, key, best_key, ">") == 1 : val_compare(r, key, best_key, "<") < 0) {
            best = item;
            best_key = key;
        }
    }
    return best;
}

FILTER(do_min) { return extreme(r, v, p, false); }
FILTER(do_max) { return extreme(r, v, p, true); }

/* Lazy ones */

struct lazy { const struct args *args; const struct filter *filter; const struct test *test; struct val attribute, def; bool reject, looked_up, by_attribute; };

static const struct args *keep_args(struct rt *r, const struct args *a, uint32_t skip)
{
    struct args *c = mem(r, sizeof *c);

    *c = (struct args){ .n = a->n > skip ? a->n - skip : 0, .n_named = a->n_named };
    c->pos = mem_array(r, c->n + 1, sizeof *c->pos);
    c->names = mem_array(r, c->n_named + 1, sizeof *c->names);
    c->named = mem_array(r, c->n_named + 1, sizeof *c->named);
    if (c->n > 0)
        memcpy(c->pos, a->pos + skip, c->n * sizeof *c->pos);
    if (c->n_named > 0) {
        memcpy(c->names, a->names, c->n_named * sizeof *c->names);
        memcpy(c->named, a->named, c->n_named * sizeof *c->named);
    }
    return c;
}

static struct val lazy(struct rt *r, struct val v, const struct args *a, bool (*next)(struct rt *, struct gen *, struct val *), bool reject,
                       bool by_attribute)
{
    struct lazy *l = mem(r, sizeof *l);
    struct val empty = v_seq(r, V_LIST, 0), g;

    *l = (struct lazy){ .args = keep_args(r, a, 0), .reject = reject, .by_attribute = by_attribute };
    g = v_gen(r, next, empty);
    g.gen->a = v;
    g.gen->p = l;
    return g;
}

/* The source is looked at when the first item is asked for; what is empty is not even iterated. */
static bool lazy_begin(struct rt *r, struct gen *g)
{
    if (g->flag)
        return true;
    g->flag = true;
    if (!val_truth(r, g->a))
        return false;
    iter_init(r, &g->src, g->a);
    return true;
}

static void map_prepare(struct rt *r, struct lazy *l)
{
    const struct args *a = l->args;
    uint32_t known = 0;

    l->looked_up = true;
    l->attribute = l->def = v_missing();
    if (a->n > 0) {
        struct str *name = val_str(r, a->pos[0]);

        l->filter = filter_find(name->text, name->len);
        if (!l->filter)
            raise_error(r, "TemplateRuntimeError", "No filter named '%.*s'.", (int)name->len, name->text);
        l->args = keep_args(r, a, 1);
        return;
    }
    for (uint32_t i = 0; i < a->n_named; i++) {
        if (str_is(a->names[i], "attribute"))
            l->attribute = a->named[i];
        else if (str_is(a->names[i], "default"))
            l->def = a->named[i];
        else
            known = i + 1;
    }
    if (!given(l->attribute))
        raise_error(r, "FilterArgumentError", "map requires a filter argument");
    if (known > 0)
        raise_error(r, "FilterArgumentError", "Unexpected keyword argument '%.*s'", (int)a->names[known - 1]->len, a->names[known - 1]->text);
}

static bool map_next(struct rt *r, struct gen *g, struct val *ret)
{
    struct lazy *l = (struct lazy *)g->p;
    struct val item;

    if (!lazy_begin(r, g))
        return false;
    if (!l->looked_up)
        map_prepare(r, l);
    if (!iter_next(r, &g->src, &item))
        return false;
    *ret = l->filter ? filter_call(r, l->filter, item, l->args) : path_get(r, item, l->attribute, l->def);
    return true;
}

static struct val do_map(struct rt *r, struct val v, const struct args *a) { return lazy(r, v, a, map_next, false, false); }

static void select_prepare(struct rt *r, struct lazy *l)
{
    uint32_t off = l->by_attribute;

    l->looked_up = true;
    l->attribute = v_missing();
    if (l->by_attribute) {
        if (l->args->n == 0)
            raise_error(r, "FilterArgumentError", "Missing parameter for attribute name");
        l->attribute = l->args->pos[0];
    }
    if (l->args->n > off) {
        struct str *name = val_str(r, l->args->pos[off]);

        l->test = test_find(name->text, name->len);
        if (!l->test)
            raise_error(r, "TemplateRuntimeError", "No test named '%.*s'.", (int)name->len, name->text);
        l->args = keep_args(r, l->args, off + 1);
    }
}

static bool select_next(struct rt *r, struct gen *g, struct val *ret)
{
    struct lazy *l = (struct lazy *)g->p;

    if (!lazy_begin(r, g))
        return false;
    if (!l->looked_up)
        select_prepare(r, l);
    while (iter_next(r, &g->src, ret)) {
        struct val v = l->by_attribute ? path_get(r, *ret, l->attribute, v_missing()) : *ret;

        if ((l->test ? test_call(r, l->test, v, l->args) : val_truth(r, v)) != l->reject)
            return true;
    }
    return false;
}

static struct val do_select(struct rt *r, struct val v, const struct args *a) { return lazy(r, v, a, select_next, false, false); }
static struct val do_reject(struct rt *r, struct val v, const struct args *a) { return lazy(r, v, a, select_next, true, false); }
static struct val do_selectattr(struct rt *r, struct val v, const struct args *a) { return lazy(r, v, a, select_next, false, true); }
static struct val do_rejectattr(struct rt *r, struct val v, const struct args *a) { return lazy(r, v, a, select_next, true, true); }

static bool unique_next(struct rt *r, struct gen *g, struct val *ret)
{
    struct dict *seen = (struct dict *)g->p;

    while (iter_next(r, &g->src, ret)) {
        struct val key = plain_key(r, *ret, g->a, g->flag);

        if (dict_get(r, seen, key))
            continue;
        dict_set(r, seen, key, v_none());
        return true;
    }
    return false;
}

FILTER(do_unique)
{
    struct val g = v_gen(r, unique_next, v);

    g.gen->a = p[1];
    g.gen->flag = !flag(r, p[0]);
    g.gen->p = dict_new(r, 8);
    return g;
}

static bool items_next(struct rt *r, struct gen *g, struct val *ret)
{
    if (!g->flag) {
        g->flag = true;
        if (g->a.t == V_UNDEF)
            return false;
        if (g->a.t != V_DICT)
            raise_error(r, "TypeError", "Can only get item pairs from a mapping.");
        iter_init(r, &g->src, (struct val){ .t = V_VIEW, .aux = VIEW_ITEMS, .d = g->a.d });
    }
    return iter_next(r, &g->src, ret);
}

FILTER(do_items)
{
    struct val g = v_gen(r, items_next, v_seq(r, V_LIST, 0));

    g.gen->a = v;
    return g;
}

/* A batch ends when the item behind it comes, and only then is its length looked at. */
static bool batch_next(struct rt *r, struct gen *g, struct val *ret)
{
    struct grow l = { 0 };
    struct val item;

    if (given(g->c))
        grow_add(r, &l, g->c);
    g->c = v_missing();
    while (iter_next(r, &g->src, &item)) {
        if (val_equal(r, v_int(l.n), g->a)) {
            g->c = item;
            *ret = grow_take(r, &l, V_LIST);
            return true;
        }
        grow_add(r, &l, item);
    }
    if (l.n == 0)
        return false;
    if (given(g->b) && g->b.t != V_NONE)
        while (val_compare(r, v_int(l.n), g->a, "<") < 0)
            grow_add(r, &l, g->b);
    *ret = grow_take(r, &l, V_LIST);
    return true;
}

FILTER(do_batch)
{
    struct val g = v_gen(r, batch_next, v);

    g.gen->a = p[0];
    g.gen->b = p[1];
    return g;
}

static bool slice_next(struct rt *r, struct gen *g, struct val *ret)
{
    const struct seq *s = g->p;
    int64_t slices = g->a.i, i = g->c.i++, each, more, from, to;
    struct grow l = { 0 };

    if (slices == 0)
        raise_error(r, "ZeroDivisionError", "integer division or modulo by zero");
    if (i >= slices)
        return false;
    each = s->n / slices;
    more = s->n % slices;
    from = i * each + (i < more ? i : more);
    to = from + each + (i < more);
    for (int64_t k = from; k < to; k++)
        grow_add(r, &l, s->items[k]);
    if (given(g->b) && g->b.t != V_NONE && i >= more)
        grow_add(r, &l, g->b);
    *ret = grow_take(r, &l, V_LIST);
    return true;
}

FILTER(do_slice)
{
    struct val list = val_list(r, v), g = v_gen(r, slice_next, list);

    g.gen->a = v_int(val_int64(r, p[0], ""));
    g.gen->b = p[1];
    g.gen->c = v_int(0);
    g.gen->p = list.seq;
    return g;
}

/* Items */

static bool reversed_next(struct rt *r, struct gen *g, struct val *ret)
{
    const struct seq *s = g->p;

    if (g->c.i == 0)
        return false;
    *ret = s->items[--g->c.i];
    return true;
}

FILTER(do_reverse)
{
    static const struct val back[3] = { { .t = V_NONE }, { .t = V_NONE }, { .t = V_INT, .i = -1 } };
    struct val list, g;

    if (v.t == V_STR)
        return val_slice(r, v, back);
    if (!val_iterable(v))
        raise_error(r, "FilterArgumentError", "argument must be iterable");
    list = val_list(r, v);
    if (v.t == V_GEN)
        return val_slice(r, list, back);
    g = v_gen(r, reversed_next, list);
    g.gen->type = v.t == V_LIST ? "list_reverseiterator" : "reversed";
    g.gen->p = list.seq;
    g.gen->c = v_int(list.seq->n);
    return g;
}

FILTER(do_first)
{
    struct iter it;
    struct val item;

    iter_init(r, &it, v);
    return iter_next(r, &it, &item) ? item : v_hint(r, "No first item, sequence was empty.");
}

FILTER(do_last)
{
    struct val list;

    if (v.t == V_STR) {
        size_t from = v.s->len;

        if (from == 0)
            return v_hint(r, "No last item, sequence was empty.");
        utf8_before(v.s->text, &from);
        return v_str(str_sub(r, v.s, from, v.s->len));
    }
    if (!val_has_length(v))
        raise_error(r, "TypeError", "'%s' object is not reversible", val_type(v));
    list = val_list(r, v);
    return list.seq->n ? list.seq->items[list.seq->n - 1] : v_hint(r, "No last item, sequence was empty.");
}

FILTER(do_random)
{
    struct val list = val_list(r, v);

    if (list.seq->n == 0)
        return v_hint(r, "No random item, sequence was empty.");
    return list.seq->items[(r->steps * 2654435761u >> 8) % list.seq->n];
}

FILTER(do_length) { return v_int(val_length(r, v)); }
FILTER(do_list) { return fresh_list(r, v); }

FILTER(do_sum)
{
    struct val sum = given(p[1]) ? p[1] : v_int(0), item;
    struct iter it;

    if (sum.t == V_STR)
        raise_error(r, "TypeError", "sum() can't sum strings [use ''.join(seq) instead]");
    iter_init(r, &it, v);
    while (iter_next(r, &it, &item))
        sum = val_binary(r, OP_ADD, sum, path_get(r, item, p[0], v_missing()));
    return sum;
}

FILTER(do_default)
{
    if (v.t == V_UNDEF || (flag(r, p[1]) && !val_truth(r, v)))
        return given(p[0]) ? p[0] : v_text(r, "");
    return v;
}

FILTER(do_attr)
{
    struct val ret;
    struct str *name = val_str(r, p[0]);

    if (v.t == V_UNDEF)
        raise_undefined(r, v);
    return val_own_attribute(r, v, name, &ret) ? ret : v_undef_attr(r, v, v_str(name));
}

/* Numbers */

FILTER(do_abs)
{
    if (v.t == V_FLOAT)
        return v_float(fabs(v.f));
    if (!val_is_int(v))
        raise_error(r, "TypeError", "bad operand type for abs(): '%s'", val_type(v));
    return int_negative(v) ? int_neg(r, v) : v.t == V_BOOL ? v_int(v.i) : v;
}

/* A number's text in ASCII, without spaces around it and underscores between digits; NULL: it is none, or too long. */
static char *number_text(struct rt *r, struct str *s)
{
    struct str *cut = str_strip(r, s, NULL, true, true).s;
    char *text;
    size_t n = 0;

    if (cut->len > 5000)
        return NULL;
    text = mem(r, cut->len + 1);
    for (size_t at = 0; at < cut->len; ) {
        size_t here = at;
        uint32_t c = utf8_next(cut->text, cut->len, &at);

        if (c == '_' && (here == 0 || at == cut->len || cut->text[here - 1] == '_' || cut->text[at] == '_'))
            return NULL;
        if (c >= 0x80 && unicode_decimal_value(c) < 0)
            return NULL;
        if (c != '_')
            text[n++] = c < 0x80 ? (char)c : (char)('0' + unicode_decimal_value(c));
    }
    text[n] = '\0';
    return text;
}

static bool parse_double(struct rt *r, struct str *s, double *ret)
{
    char *text = number_text(r, s), *end;

    if (!text || !*text || strpbrk(text, "xX(") || (*text && memchr(" \t\n\r\f\v", *text, 6)))
        return false;
    *ret = strtod(text, &end);
    return *end == '\0';
}

static bool parse_int(struct rt *r, struct str *s, int64_t base, struct val *ret)
{
    char *text = number_text(r, s), *p = text;
    bool negative;

    if (!p || (base != 0 && (base < 2 || base > 36)))
        return false;
    negative = *p == '-';
    p += *p == '-' || *p == '+';
    if (p[0] == '0' && p[1]) {
        char mark = (char)(p[1] | 0x20);
        int marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;

        if (marked && (base == 0 || base == marked)) {
            base = marked;
            p += 2;
        }
    }
    if (base == 0)
        base = 10;
    if (!*p)
        return false;
    for (char *d = p; *d; d++) {
        int v = *d >= '0' && *d <= '9' ? *d - '0' : (*d | 0x20) >= 'a' && (*d | 0x20) <= 'z' ? (*d | 0x20) - 'a' + 10 : 99;

        if (v >= base)
            return false;
    }
    *ret = int_from_text(r, p, strlen(p), (int)base, negative);
    return true;
}

FILTER(do_int)
{
    struct val def = given(p[0]) ? p[0] : v_int(0), n;
    double f;

    if (v.t == V_UNDEF)
        raise_undefined(r, v);
    if (val_is_int(v))
        return v.t == V_BOOL ? v_int(v.i) : v;
    if (v.t == V_FLOAT)
        return isnan(v.f) ? def : int_from_double(r, v.f);
    if (v.t != V_STR)
        return def;
    if (parse_int(r, v.s, given(p[1]) ? val_int64(r, p[1], "") : 10, &n))
        return n;
    return parse_double(r, v.s, &f) && isfinite(f) ? int_from_double(r, f) : def;
}

FILTER(do_float)
{
    double f;

    if (v.t == V_UNDEF)
        raise_undefined(r, v);
    if (val_is_number(v))
        return v_float(val_double(r, v));
    if (v.t == V_STR && parse_double(r, v.s, &f))
        return v_float(f);
    return given(p[0]) ? p[0] : v_float(0);
}

static struct val round_int(struct rt *r, struct val v, int64_t precision)
{
    struct val unit, quot, rem, twice;
    int c;

    if (precision >= 0)
        return v.t == V_BOOL ? v_int(v.i) : v;
    if (precision < -4000)
        return v_int(0);
    unit = int_pow(r, v_int(10), (uint64_t)-precision);
    int_divmod(r, v, unit, &quot, &rem);
    twice = int_mul(r, rem, v_int(2));
    c = int_compare(twice, unit);
    if (c == 0) {
        struct val half, odd;

        int_divmod(r, quot, v_int(2), &half, &odd);
        c = int_compare(odd, v_int(0)) != 0 ? 1 : -1;
    }
    return int_mul(r, c > 0 ? int_add(r, quot, v_int(1), false) : quot, unit);
}

FILTER(do_round)
{
    int64_t precision = given(p[0]) ? val_int64(r, p[0], "") : 0;
    const char *method = "common";
    char text[800];
    double f, scale;

    if (given(p[1])) {
        method = NULL;
        for (int i = 0; i < 3 && p[1].t == V_STR; i++)
            if (str_is(p[1].s, (const char *const[]){ "common", "ceil", "floor" }[i]))
                method = (const char *const[]){ "common", "ceil", "floor" }[i];
    }
    if (!method)
        raise_error(r, "FilterArgumentError", "method must be common, ceil or floor");
    if (!val_is_number(v))
        raise_error(r, "TypeError", "type %s doesn't define __round__ method", val_type(v));
    if (*method != 'c' || method[1] != 'o') {
        scale = pow(10, (double)precision);
        f = val_double(r, v) * scale;
        return v_float((*method == 'c' ? ceil(f) : floor(f)) / scale);
    }
    if (val_is_int(v))
        return round_int(r, v, precision);
    if (!isfinite(v.f) || precision > 300)
        return v;
    if (precision >= 0) {
        snprintf(text, sizeof text, "%.*f", (int)precision, v.f);
        return v_float(strtod(text, NULL));
    }
    if (precision < -308)
        return v_float(copysign(0, v.f));
    scale = pow(10, (double)-precision);
    return v_float(rint(v.f / scale) * scale);
}

static const struct filter sequence_filters[] = {
    { "abs", do_abs, "", 0, NULL },
    { "attr", do_attr, "name", 1, NULL },
    { "batch", do_batch, "linecount fill_with", 1, NULL },
    { "count", do_length, "", 0, NULL },
    { "d", do_default, "default_value boolean", 0, NULL },
    { "default", do_default, "default_value boolean", 0, NULL },
    { "dictsort", do_dictsort, "case_sensitive by reverse", 0, NULL },
    { "first", do_first, "", 0, NULL },
    { "float", do_float, "default", 0, NULL },
    { "groupby", do_groupby, "attribute default case_sensitive", 1, NULL },
    { "int", do_int, "default base", 0, NULL },
    { "items", do_items, "", 0, NULL },
    { "last", do_last, "", 0, NULL },
    { "length", do_length, "", 0, NULL },
    { "list", do_list, "", 0, NULL },
    { "map", NULL, "", 0, do_map },
    { "max", do_max, "case_sensitive attribute", 0, NULL },
    { "min", do_min, "case_sensitive attribute", 0, NULL },
    { "random", do_random, "", 0, NULL },
    { "reject", NULL, "", 0, do_reject },
    { "rejectattr", NULL, "", 0, do_rejectattr },
    { "reverse", do_reverse, "", 0, NULL },
    { "round", do_round, "precision method", 0, NULL },
    { "select", NULL, "", 0, do_select },
    { "selectattr", NULL, "", 0, do_selectattr },
    { "slice", do_slice, "slices fill_with", 1, NULL },
    { "sort", do_sort, "reverse case_sensitive attribute", 0, NULL },
    { "sum", do_sum, "attribute start", 0, NULL },
    { "unique", do_unique, "case_sensitive attribute", 0, NULL },
    { NULL, NULL, NULL, 0, NULL },
};

static const struct filter *find_in(const struct filter *table, const char *name, size_t len)
{
    for (; table->name; table++)
        if (strlen(table->name) == len && memcmp(table->name, name, len) == 0)
            return table;
    return NULL;
}

const struct filter *filter_find(const char *name, size_t len)
{
    const struct filter *f = find_in(sequence_filters, name, len);

    return f ? f : find_in(text_filters, name, len);
}

struct val filter_call(struct rt *r, const struct filter *f, struct val v, const struct args *a)
{
    struct val p[MAX_PARAMS];

    step(r, 1);
    if (f->call_args)
        return f->call_args(r, v, a);
    args_bind(r, f->name, f->params, f->required, a, p);
    return f->call(r, v, p);
}
