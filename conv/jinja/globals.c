/* What every template has without being given it: jinja2's globals, and those of transformers. */
#include "conv/jinja/value.h"

enum function { RANGE, DICT, LIPSUM, CYCLER, JOINER, NAMESPACE, RAISE_EXCEPTION, STRFTIME_NOW };
static const char *const names[] = { "range", "dict", "lipsum", "cycler", "joiner", "namespace", "raise_exception", "strftime_now" };

enum { MAX_RANGE = 100000 };

struct val global_find(const char *name, size_t len)
{
    for (uint32_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strlen(names[i]) == len && memcmp(names[i], name, len) == 0)
            return (struct val){ .t = V_FUNC, .aux = i };
    if (len == 4 && memcmp(name, "self", 4) == 0)
        return (struct val){ .t = V_SELF };
    return v_missing();
}

const char *function_name(struct val f) { return names[f.aux]; }

static struct val make_range(struct rt *r, const struct args *a)
{
    struct range *g = mem(r, sizeof *g);
    int64_t v[3] = { 0, 0, 1 }, span;
    uint64_t by;

    if (a->n < 1 || a->n > 3 || a->n_named)
        raise_error(r, "TypeError", "range expected at least 1 argument, got %u", a->n);
    for (uint32_t i = 0; i < a->n; i++)
        v[a->n == 1 ? 1 : i] = val_int64(r, a->pos[i], "");
    if (v[2] == 0)
        raise_error(r, "ValueError", "range() arg 3 must not be zero");
    *g = (struct range){ v[0], v[1], v[2], 0 };
    if (v[2] > 0 ? v[1] > v[0] : v[1] < v[0]) {
        by = v[2] > 0 ? (uint64_t)v[2] : 0 - (uint64_t)v[2];
        if (__builtin_sub_overflow(v[2] > 0 ? v[1] : v[0], v[2] > 0 ? v[0] : v[1], &span) || ((uint64_t)span - 1) / by + 1 > MAX_RANGE)
            raise_error(r, "OverflowError", "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", MAX_RANGE);
        g->n = (int64_t)(((uint64_t)span - 1) / by + 1);
    }
    return (struct val){ .t = V_RANGE, .range = g };
}

static struct dict *make_dict(struct rt *r, const struct args *a)
{
    struct dict *d = dict_new(r, a->n_named);
    struct iter it;
    struct val item;

    if (a->n > 1)
        raise_error(r, "TypeError", "dict expected at most 1 argument, got %u", a->n);
    if (a->n == 1 && a->pos[0].t == V_UNDEF)
        raise_undefined(r, a->pos[0]);
    if (a->n == 1 && a->pos[0].t == V_DICT) {
        for (uint32_t i = 0; i < a->pos[0].d->n; i++)
            dict_set(r, d, a->pos[0].d->e[i].key, a->pos[0].d->e[i].value);
    } else if (a->n == 1) {
        iter_init(r, &it, a->pos[0]);
        for (uint32_t i = 0; iter_next(r, &it, &item); i++) {
            struct val pair = val_list(r, item);

            if (pair.seq->n != 2)
                raise_error(r, "ValueError", "dictionary update sequence element #%u has length %u; 2 is required", i, pair.seq->n);
            dict_set(r, d, pair.seq->items[0], pair.seq->items[1]);
        }
    }
    for (uint32_t i = 0; i < a->n_named; i++)
        dict_set(r, d, v_str(a->names[i]), a->named[i]);
    return d;
}

static struct val make_cycler(struct rt *r, const struct args *a)
{
    struct cycler *c = mem(r, sizeof *c);
    struct val items = v_seq(r, V_TUPLE, a->n);

    if (a->n == 0)
        raise_error(r, "RuntimeError", "at least one item has to be provided");
    memcpy(items.seq->items, a->pos, a->n * sizeof *a->pos);
    *c = (struct cycler){ items.seq, 0 };
    return (struct val){ .t = V_CYCLER, .cycler = c };
}

struct val function_call(struct rt *r, struct val f, const struct args *a)
{
    struct val p[MAX_PARAMS];
    struct str *text;
    struct mark m;

    switch ((enum function)f.aux) {
    case RANGE:
        return make_range(r, a);
    case DICT:
        return (struct val){ .t = V_DICT, .d = make_dict(r, a) };
    case NAMESPACE:
        return (struct val){ .t = V_NAMESPACE, .d = make_dict(r, a) };
    case CYCLER:
        return make_cycler(r, a);
    case JOINER: {
        struct joiner *j = mem(r, sizeof *j);

        args_bind(r, "joiner", "sep", 0, a, p);
        *j = (struct joiner){ p[0].t == V_MISSING ? str_view(r, ", ", 2, true) : val_str(r, p[0]), false };
        return (struct val){ .t = V_JOINER, .joiner = j };
    }
    case LIPSUM:
        return v_text(r, "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt ut labore et dolore.");
    case RAISE_EXCEPTION:
        args_bind(r, "raise_exception", "message", 1, a, p);
        text = val_str(r, p[0]);
        raise_error(r, "TemplateError", "%.*s", (int)text->len, text->text);
    case STRFTIME_NOW:
        args_bind(r, "strftime_now", "format", 1, a, p);
        if (p[0].t == V_UNDEF)
            raise_undefined(r, p[0]);
        if (p[0].t != V_STR)
            raise_error(r, "TypeError", "strftime() argument 1 must be str, not %s", val_type(p[0]));
        m = out_mark(r);
        out_strftime(r, &r->now, p[0].s);
        return out_take_val(r, m);
    }
    return v_none();
}
