/* Running a tree.
 *
 * Two functions recurse, eval() and exec(); their frames are kept small (work is in functions of their own, not inlined), and
 * every recursion counts, so that no template grows the C stack beyond what limits.depth allows.
 */
#include "conv/jinja/methods.h"
#include "conv/jinja/tree.h"

#include <errno.h>

#define NOINLINE __attribute__((noinline))

enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };

struct loop {
    const struct node *node;
    struct activation *outer;       /* of the function that the loop is in: what a recursive call continues from */
    struct activation *act;         /* where its own symbols are */
    struct val iterable, prev, cur, next;
    struct iter it;
    bool tested;                    /* the items that are left have passed the condition */
    bool has_next, ended;           /* next is there; there is none */
    int64_t index0, n;              /* n: -1 while not known */
    uint32_t depth0;
    struct val changed;
};

static struct val eval(struct rt *r, struct activation *a, const struct node *n);
static enum flow exec_list(struct rt *r, struct activation *a, const struct list *l);

static inline struct val *slot(struct activation *a, struct ref ref)
{
    for (uint32_t i = ref.hops; i > 0; i--)
        a = a->parent;
    return &a->slots[ref.slot];
}

static void scope_enter(struct rt *r, struct activation *a, const struct scope *s)
{
    for (const struct symbol *y = s->first; y; y = y->next) {
        if (y->load == LOAD_CONTEXT)
            a->slots[y->slot] = r->names[y->name_id];
        else if (y->load == LOAD_OUTER)
            a->slots[y->slot] = *slot(a, y->outer);
        else if (y->load == LOAD_NOTHING)
            a->slots[y->slot] = v_missing();
    }
}

/* What a function that outlives the scope would still see. */
static void scope_leave(struct activation *a, const struct scope *s)
{
    if (!s->function->captured)
        return;
    for (const struct symbol *y = s->first; y; y = y->next)
        a->slots[y->slot] = v_missing();
}

static struct activation *activate(struct rt *r, const struct function *f, struct activation *parent)
{
    struct activation *a = mem_array(r, 1, sizeof *a + f->n_slots * sizeof a->slots[0]);

    a->parent = parent;
    memset(a->slots, 0, f->n_slots * sizeof a->slots[0]);
    return a;
}

/* Assignment */

static NOINLINE void check_namespace(struct rt *r, struct activation *a, const struct node *target)
{
    if (target->kind == N_NSREF && slot(a, target->attr.of->name.ref)->t != V_NAMESPACE) {
        r->at = target;
        raise_error(r, "TemplateRuntimeError", "cannot assign attribute on non-namespace object");
    }
    if (target->kind == N_TUPLE)
        for (uint32_t i = 0; i < target->items.n; i++)
            check_namespace(r, a, target->items.items[i]);
}

static void assign(struct rt *r, struct activation *a, const struct node *target, struct val v);

static NOINLINE void unpack(struct rt *r, struct activation *a, const struct node *target, struct val v)
{
    uint32_t n = target->items.n;
    struct val list;

    r->at = target;
    if (!val_iterable(v))
        raise_error(r, "TypeError", "cannot unpack non-iterable %s object", val_type(v));
    list = val_list(r, v);
    if (list.seq->n > n)
        raise_error(r, "ValueError", "too many values to unpack (expected %u)", n);
    if (list.seq->n < n)
        raise_error(r, "ValueError", "not enough values to unpack (expected %u, got %u)", n, list.seq->n);
    for (uint32_t i = 0; i < n; i++)
        assign(r, a, target->items.items[i], list.seq->items[i]);
}

static void assign(struct rt *r, struct activation *a, const struct node *target, struct val v)
{
    if (target->kind == N_NAME) {
        *slot(a, target->name.ref) = v;
        if (target->name.export_)
            r->names[target->name.name_id] = v;
    } else if (target->kind == N_NSREF) {
        struct val ns = *slot(a, target->attr.of->name.ref);

        check_namespace(r, a, target);
        dict_set(r, ns.d, v_str(target->attr.name), v);
    } else {
        unpack(r, a, target, v);
    }
}

/* Calls */

static void args_init(struct rt *r, struct args *args, uint32_t n, uint32_t n_named)
{
    *args = (struct args){ .n = n, .n_named = n_named };
    args->pos = n ? mem_array(r, n, sizeof *args->pos) : NULL;
    if (n_named) {
        args->names = mem_array(r, n_named, sizeof *args->names);
        args->named = mem_array(r, n_named, sizeof *args->named);
    }
}

static NOINLINE void eval_star_args(struct rt *r, struct activation *a, const struct call_args *c, struct args *args)
{
    struct args more;
    struct val star = c->star ? val_list(r, eval(r, a, c->star)) : v_seq(r, V_LIST, 0);
    struct val stars = c->star_star ? eval(r, a, c->star_star) : v_none();
    uint32_t n_named = 0;

    if (stars.t != V_NONE && stars.t != V_DICT)
        raise_error(r, "TypeError", "argument after ** must be a mapping, not %s", val_type(stars));
    n_named = stars.t == V_DICT ? stars.d->n : 0;
    args_init(r, &more, args->n + star.seq->n, args->n_named + n_named);
    if (args->n)
        memcpy(more.pos, args->pos, args->n * sizeof *more.pos);
    if (star.seq->n)
        memcpy(more.pos + args->n, star.seq->items, star.seq->n * sizeof *more.pos);
    for (uint32_t i = 0; i < args->n_named; i++) {
        more.names[i] = args->names[i];
        more.named[i] = args->named[i];
    }
    for (uint32_t i = 0; i < n_named; i++) {
        if (stars.d->e[i].key.t != V_STR)
            raise_error(r, "TypeError", "keywords must be strings");
        more.names[args->n_named + i] = stars.d->e[i].key.s;
        more.named[args->n_named + i] = stars.d->e[i].value;
    }
    *args = more;
}

static void eval_args(struct rt *r, struct activation *a, const struct call_args *c, struct args *args)
{
    args_init(r, args, c->n, c->n_named);
    for (uint32_t i = 0; i < c->n; i++)
        args->pos[i] = eval(r, a, c->pos[i]);
    for (uint32_t i = 0; i < c->n_named; i++) {
        args->names[i] = c->named[i].name;
        args->named[i] = eval(r, a, c->named[i].value);
    }
    if (c->star || c->star_star)
        eval_star_args(r, a, c, args);
}

/* Takes the keyword argument `name` out of args; V_MISSING: it is not there. */
static struct val take_named(struct args *args, const struct str *name)
{
    for (uint32_t i = 0; i < args->n_named; i++) {
        struct val v = args->named[i];

        if (!str_equal(args->names[i], name))
            continue;
        args->n_named--;
        memmove(args->names + i, args->names + i + 1, (args->n_named - i) * sizeof *args->names);
        memmove(args->named + i, args->named + i + 1, (args->n_named - i) * sizeof *args->named);
        return v;
    }
    return v_missing();
}

static struct val name_or(struct rt *r, const struct macro_def *d)
{
    return d->name ? v_str(d->name) : v_text(r, "None");
}

/* What a call gives that no parameter takes. */
static NOINLINE void surplus(struct rt *r, struct activation *a, const struct macro_def *d, struct args *args)
{
    struct val name = name_or(r, d);
    const char *quote = d->name ? "'" : "";

    if (d->kwargs) {
        struct dict *kw = dict_new(r, args->n_named);

        for (uint32_t i = 0; i < args->n_named; i++)
            dict_set(r, kw, v_str(args->names[i]), args->named[i]);
        a->slots[d->kwargs->slot] = (struct val){ .t = V_DICT, .d = kw };
    } else if (args->n_named) {
        for (uint32_t i = 0; i < args->n_named; i++)
            if (str_is(args->names[i], "caller"))
                raise_error(r, "TypeError", "macro %s%.*s%s was invoked with two values for the special caller argument. "
                            "This is most likely a bug.", quote, (int)name.s->len, name.s->text, quote);
        raise_error(r, "TypeError", "macro %s%.*s%s takes no keyword argument '%.*s'", quote, (int)name.s->len, name.s->text, quote,
                    (int)args->names[0]->len, args->names[0]->text);
    }
    if (d->varargs) {
        struct val rest = v_seq(r, V_TUPLE, args->n > d->n_params ? args->n - d->n_params : 0);

        if (rest.seq->n)
            memcpy(rest.seq->items, args->pos + d->n_params, rest.seq->n * sizeof(struct val));
        a->slots[d->varargs->slot] = rest;
    } else if (args->n > d->n_params) {
        raise_error(r, "TypeError", "macro %s%.*s%s takes not more than %u argument(s)", quote, (int)name.s->len, name.s->text, quote,
                    d->n_params);
    }
}

static NOINLINE struct activation *macro_args(struct rt *r, const struct macro *m, const struct args *given)
{
    const struct macro_def *d = m->def;
    struct activation *a = activate(r, d->function, m->outer);
    struct args args = *given;
    struct val v;

    if (args.n_named > 0) {         /* they are taken out below: not from the caller's */
        struct str **names = mem_array(r, args.n_named, sizeof *names);
        struct val *named = mem_array(r, args.n_named, sizeof *named);

        memcpy(names, args.names, args.n_named * sizeof *names);
        memcpy(named, args.named, args.n_named * sizeof *named);
        args.names = names;
        args.named = named;
    }
    for (uint32_t i = 0; i < d->n_params; i++)
        a->slots[d->params[i].name->name.ref.slot] = i < args.n ? args.pos[i] : take_named(&args, d->params[i].name->name.name);
    if (d->caller) {
        v = take_named(&args, d->caller->name);
        a->slots[d->caller->slot] = v.t == V_MISSING ? v_hint(r, "No caller defined") : v;
    }
    surplus(r, a, d, &args);
    scope_enter(r, a, d->scope);
    for (uint32_t i = 0; i < d->n_params; i++) {
        struct val *to = &a->slots[d->params[i].name->name.ref.slot];

        if (to->t == V_MISSING && d->params[i].def)
            *to = eval(r, a, d->params[i].def);
        else if (to->t == V_MISSING)
            *to = v_hint(r, d->params[i].hint);
    }
    return a;
}

static struct val macro_call(struct rt *r, const struct macro *m, const struct args *args)
{
    struct activation *a;
    struct mark mark;
    struct val v;

    if (++r->calls > r->limits.depth)
        depth_over(r);
    enter(r);
    a = macro_args(r, m, args);
    mark = out_mark(r);
    exec_list(r, a, &m->def->body);
    v = out_take_val(r, mark);
    leave(r);
    r->calls--;
    return v;
}

static enum flow run_loop(struct rt *r, struct activation *outer, const struct node *n, struct val iterable, uint32_t depth0);

static struct val loop_call(struct rt *r, struct loop *l, const struct args *args)
{
    struct val p[MAX_PARAMS];
    struct mark m;

    if (!l->node->for_.recursive)
        raise_error(r, "TypeError", "The loop must have the 'recursive' marker to be called recursively.");
    args_bind(r, "loop", "iterable", 1, args, p);
    if (++r->calls > r->limits.depth)
        depth_over(r);
    m = out_mark(r);
    run_loop(r, l->outer, l->node, p[0], l->depth0 + 1);
    r->calls--;
    return out_take_val(r, m);
}

bool val_callable(struct val v)
{
    return v.t == V_MACRO || v.t == V_METHOD || v.t == V_FUNC || v.t == V_LOOP || v.t == V_JOINER || v.t == V_UNDEF;
}

struct val val_call(struct rt *r, struct val f, const struct args *args)
{
    step(r, 1);
    switch ((enum vtype)f.t) {
    case V_MACRO: return macro_call(r, f.macro, args);
    case V_METHOD: return method_call(r, (int)f.aux, *f.p, args);
    case V_FUNC: return function_call(r, f, args);
    case V_LOOP: return loop_call(r, f.loop, args);
    case V_JOINER:
        if (!f.joiner->used) {
            f.joiner->used = true;
            return v_text(r, "");
        }
        return v_str(f.joiner->sep);
    case V_UNDEF: raise_undefined(r, f);
    default: raise_error(r, "TypeError", "'%s' object is not callable", val_type(f));
    }
}

/* x.method(…): without making a value of x.method. extra: the caller of a call block. */
static NOINLINE struct val eval_call(struct rt *r, struct activation *a, const struct node *n, const struct val *extra)
{
    const struct node *f = n->call.f;
    struct val object, callee;
    struct args args;
    bool is_method = false, is_unsafe = false;

    if (f->kind == N_ATTR && f->attr.method) {
        object = eval(r, a, f->attr.of);
        is_method = method_of(f->attr.method, object, &is_unsafe);
        r->at = f;
        if (!is_method || is_unsafe)
            callee = val_attr(r, object, f->attr.name);
    } else {
        callee = eval(r, a, f);
    }
    eval_args(r, a, &n->call.args, &args);
    if (extra) {
        struct args more;

        args_init(r, &more, args.n, args.n_named + 1);
        if (args.n)
            memcpy(more.pos, args.pos, args.n * sizeof *args.pos);
        for (uint32_t i = 0; i < args.n_named; i++) {
            more.names[i] = args.names[i];
            more.named[i] = args.named[i];
        }
        more.names[args.n_named] = str_view(r, "caller", 6, true);
        more.named[args.n_named] = *extra;
        args = more;
    }
    r->at = n;
    step(r, 1);
    if (is_method && !is_unsafe)
        return method_call(r, f->attr.method, object, &args);
    return val_call(r, callee, &args);
}

/* Expressions */

static NOINLINE struct val eval_items(struct rt *r, struct activation *a, const struct node *n)
{
    struct val v;

    if (n->kind == N_DICT) {
        struct dict *d = dict_new(r, n->items.n / 2);

        for (uint32_t i = 0; i < n->items.n; i += 2) {
            struct val key = eval(r, a, n->items.items[i]);

            v = eval(r, a, n->items.items[i + 1]);
            r->at = n;
            dict_set(r, d, key, v);
        }
        return (struct val){ .t = V_DICT, .d = d };
    }
    v = v_seq(r, n->kind == N_LIST ? V_LIST : V_TUPLE, n->items.n);
    for (uint32_t i = 0; i < n->items.n; i++)
        v.seq->items[i] = eval(r, a, n->items.items[i]);
    return v;
}

static NOINLINE struct val eval_concat(struct rt *r, struct activation *a, const struct node *n)
{
    struct mark m = out_mark(r);

    for (uint32_t i = 0; i < n->items.n; i++) {
        struct val v = eval(r, a, n->items.items[i]);

        out_val(r, v);
    }
    return out_take_val(r, m);
}

static NOINLINE struct val eval_compare(struct rt *r, struct activation *a, const struct node *n)
{
    struct val left = eval(r, a, n->compare.first), right, v = v_none();

    for (uint32_t i = 0; i < n->compare.n; i++) {
        right = eval(r, a, n->compare.parts[i].value);
        r->at = n;
        v = val_binary(r, n->compare.parts[i].op, left, right);
        if (!v.b)
            break;
        left = right;
    }
    return v;
}

static NOINLINE void eval_slice_parts(struct rt *r, struct activation *a, const struct node *n, struct val part[3])
{
    part[0] = n->x.a ? eval(r, a, n->x.a) : v_none();
    part[1] = n->x.b ? eval(r, a, n->x.b) : v_none();
    part[2] = n->x.c ? eval(r, a, n->x.c) : v_none();
}

static NOINLINE struct val eval_item(struct rt *r, struct activation *a, const struct node *n)
{
    struct val object = eval(r, a, n->x.a), part[3], key;

    if (n->x.b->kind == N_SLICE) {
        eval_slice_parts(r, a, n->x.b, part);
        r->at = n;
        return val_slice(r, object, part);
    }
    key = eval(r, a, n->x.b);
    r->at = n;
    return val_item(r, object, key);
}

static NOINLINE struct val eval_filter(struct rt *r, struct activation *a, const struct node *n, struct val block)
{
    struct val v = block;
    struct args args;

    if (n->filter.of)
        v = n->filter.of->kind == N_FILTER ? eval_filter(r, a, n->filter.of, block) : eval(r, a, n->filter.of);
    eval_args(r, a, &n->filter.args, &args);
    r->at = n;
    if (!n->filter.filter)
        raise_error(r, "TemplateRuntimeError", "No filter named '%.*s' found.", (int)n->filter.name->len, n->filter.name->text);
    return filter_call(r, n->filter.filter, v, &args);
}

static NOINLINE struct val eval_test(struct rt *r, struct activation *a, const struct node *n)
{
    struct val v = eval(r, a, n->test.of);
    struct args args;

    eval_args(r, a, &n->test.args, &args);
    r->at = n;
    if (!n->test.test)
        raise_error(r, "TemplateRuntimeError", "No test named '%.*s' found.", (int)n->test.name->len, n->test.name->text);
    return v_bool(test_call(r, n->test.test, v, &args));
}

static NOINLINE struct val eval_slice_value(struct rt *r, struct activation *a, const struct node *n)
{
    struct val *part = mem(r, 3 * sizeof *part);

    eval_slice_parts(r, a, n, part);
    return (struct val){ .t = V_SLICE, .p = part };
}

static NOINLINE struct val eval_binary(struct rt *r, struct activation *a, const struct node *n)
{
    struct val left = eval(r, a, n->x.a), right = eval(r, a, n->x.b);

    r->at = n;
    return val_binary(r, (enum op)n->op, left, right);
}

static NOINLINE struct val eval_attr(struct rt *r, struct activation *a, const struct node *n)
{
    struct val v = eval(r, a, n->attr.of), *item;

    r->at = n;
    if (v.t == V_DICT && !n->attr.method && n->attr.name->text[0] != '_') {
        item = dict_get_str(v.d, n->attr.name);
        return item ? *item : v_undef_attr(r, v, v_str(n->attr.name));
    }
    return val_attr(r, v, n->attr.name);
}

static NOINLINE struct val eval_unary(struct rt *r, struct activation *a, const struct node *n)
{
    struct val v = eval(r, a, n->x.a);

    r->at = n;
    return n->kind == N_NOT ? v_bool(!val_truth(r, v)) : val_negate(r, v, n->kind == N_POS);
}

static NOINLINE struct val eval_nested(struct rt *r, struct activation *a, const struct node *n)
{
    struct val v;

    switch ((enum kind)n->kind) {
    case N_TUPLE: case N_LIST: case N_DICT: return eval_items(r, a, n);
    case N_COND:
        v = eval(r, a, n->x.a);
        if (val_truth(r, v))
            return eval(r, a, n->x.b);
        if (n->x.c)
            return eval(r, a, n->x.c);
        return v_hint(r, "the inline if-expression evaluated to false and no else section was defined.");
    case N_AND:
        v = eval(r, a, n->x.a);
        return val_truth(r, v) ? eval(r, a, n->x.b) : v;
    case N_OR:
        v = eval(r, a, n->x.a);
        return val_truth(r, v) ? v : eval(r, a, n->x.b);
    case N_NOT: case N_NEG: case N_POS: return eval_unary(r, a, n);
    case N_BINARY: return eval_binary(r, a, n);
    case N_COMPARE: return eval_compare(r, a, n);
    case N_CONCAT: return eval_concat(r, a, n);
    case N_ATTR: return eval_attr(r, a, n);
    case N_ITEM: return eval_item(r, a, n);
    case N_SLICE: return eval_slice_value(r, a, n);
    case N_CALL: return eval_call(r, a, n, NULL);
    case N_FILTER: return eval_filter(r, a, n, v_none());
    default: return eval_test(r, a, n);
    }
}

static struct val eval(struct rt *r, struct activation *a, const struct node *n)
{
    struct val v;

    if (n->kind == N_CONST)
        return n->value;
    step(r, 1);
    if (n->kind == N_NAME) {
        v = *slot(a, n->name.ref);
        if (v.t == V_MISSING)
            v = (struct val){ .t = V_UNDEF, .u = n->name.undef };
        return v;
    }
    enter(r);
    v = eval_nested(r, a, n);
    leave(r);
    return v;
}

/* Loops */

/* The next item that passes the condition, not looking at what was peeked at. */
static bool loop_fetch(struct rt *r, struct loop *l, struct val *ret)
{
    const struct node *n = l->node;

    while (iter_next(r, &l->it, ret)) {
        if (!n->for_.test || l->tested)
            return true;
        scope_enter(r, l->act, n->for_.test_scope);
        assign(r, l->act, n->for_.test_target, *ret);
        if (val_truth(r, eval(r, l->act, n->for_.test)))
            return true;
    }
    return false;
}

static bool loop_peek(struct rt *r, struct loop *l)
{
    if (!l->has_next && !l->ended) {
        l->has_next = loop_fetch(r, l, &l->next);
        l->ended = !l->has_next;
    }
    return l->has_next;
}

static bool loop_advance(struct rt *r, struct loop *l)
{
    struct val v;

    if (l->has_next) {
        v = l->next;
        l->has_next = false;
    } else if (l->ended || !loop_fetch(r, l, &v)) {
        l->ended = true;
        return false;
    }
    l->prev = l->cur;
    l->cur = v;
    l->index0++;
    return true;
}

static int64_t loop_length(struct rt *r, struct loop *l)
{
    struct grow g = { 0 };
    struct val v;

    if (l->n >= 0)
        return l->n;
    if (!l->node->for_.test && val_has_length(l->iterable))
        return l->n = val_length(r, l->iterable);
    while (loop_fetch(r, l, &v))
        grow_add(r, &g, v);
    l->tested = true;
    l->n = g.n + l->index0 + 1 + l->has_next;
    iter_init(r, &l->it, grow_take(r, &g, V_LIST));
    return l->n;
}

bool loop_attribute(struct rt *r, struct loop *l, struct str *name, struct val *ret)
{
    if (str_is(name, "last"))
        *ret = v_bool(!loop_peek(r, l));
    else if (str_is(name, "first"))
        *ret = v_bool(l->index0 == 0);
    else if (str_is(name, "index0"))
        *ret = v_int(l->index0);
    else if (str_is(name, "index"))
        *ret = v_int(l->index0 + 1);
    else if (str_is(name, "previtem"))
        *ret = l->index0 == 0 ? v_hint(r, "there is no previous item") : l->prev;
    else if (str_is(name, "nextitem"))
        *ret = loop_peek(r, l) ? l->next : v_hint(r, "there is no next item");
    else if (str_is(name, "length"))
        *ret = v_int(loop_length(r, l));
    else if (str_is(name, "revindex"))
        *ret = v_int(loop_length(r, l) - l->index0);
    else if (str_is(name, "revindex0"))
        *ret = v_int(loop_length(r, l) - l->index0 - 1);
    else if (str_is(name, "depth"))
        *ret = v_int(l->depth0 + 1);
    else if (str_is(name, "depth0"))
        *ret = v_int(l->depth0);
    else
        return false;
    return true;
}

struct val loop_method(struct rt *r, int id, struct loop *l, const struct args *args)
{
    struct val v;

    if (args->n_named)
        raise_error(r, "TypeError", "%s() got an unexpected keyword argument '%.*s'", method_name(id), (int)args->names[0]->len, args->names[0]->text);
    if (id == METHOD_CYCLE) {
        if (args->n == 0)
            raise_error(r, "TypeError", "no items for cycling given");
        return args->pos[l->index0 % args->n];
    }
    v = v_seq(r, V_TUPLE, args->n);
    if (args->n)
        memcpy(v.seq->items, args->pos, args->n * sizeof *args->pos);
    if (l->changed.t == V_TUPLE && val_equal(r, l->changed, v))
        return v_bool(false);
    l->changed = v;
    return v_bool(true);
}

static NOINLINE enum flow run_loop(struct rt *r, struct activation *outer, const struct node *n, struct val iterable, uint32_t depth0)
{
    struct loop *l = mem(r, sizeof *l);
    struct activation *a = n->for_.function ? activate(r, n->for_.function, outer) : outer;
    enum flow flow = FLOW_NEXT;
    bool any = false;

    memset(l, 0, sizeof *l);
    l->node = n;
    l->outer = outer;
    l->act = a;
    l->iterable = iterable;
    l->index0 = l->n = -1;
    l->depth0 = depth0;
    r->at = n->for_.iter;
    iter_init(r, &l->it, iterable);
    enter(r);
    while (loop_advance(r, l)) {
        if (n->for_.loop)
            a->slots[n->for_.loop->slot] = (struct val){ .t = V_LOOP, .loop = l };
        assign(r, a, n->for_.target, l->cur);
        scope_enter(r, a, n->for_.scope);
        flow = exec_list(r, a, &n->for_.body);
        any |= flow == FLOW_NEXT;   /* as jinja2 counts: an iteration that came to its end */
        if (flow == FLOW_BREAK)
            break;
    }
    scope_leave(a, n->for_.scope);
    if (!any && n->for_.else_.n > 0) {
        scope_enter(r, a, n->for_.else_scope);
        flow = exec_list(r, a, &n->for_.else_);
        scope_leave(a, n->for_.else_scope);
    } else {
        flow = FLOW_NEXT;
    }
    leave(r);
    return flow;
}

static NOINLINE enum flow exec_for(struct rt *r, struct activation *a, const struct node *n)
{
    struct val iterable = eval(r, a, n->for_.iter);

    return run_loop(r, a, n, iterable, 0);
}

/* Statements */

static NOINLINE struct val capture(struct rt *r, struct activation *a, const struct scope *scope, const struct list *body, enum flow *ret_flow)
{
    struct mark m = out_mark(r);

    scope_enter(r, a, scope);
    *ret_flow = exec_list(r, a, body);
    scope_leave(a, scope);
    return out_take_val(r, m);
}

static NOINLINE enum flow exec_block(struct rt *r, struct activation *a, const struct node *n)
{
    enum flow flow;
    struct val v;

    if (n->kind == N_SETBLOCK)
        check_namespace(r, a, n->block.target);
    v = capture(r, a, n->block.scope, &n->block.body, &flow);
    if (flow != FLOW_NEXT)          /* left by break or continue: nothing is assigned or written */
        return flow;
    if (n->block.filter)
        v = eval_filter(r, a, n->block.filter, v);
    if (n->kind == N_SETBLOCK) {
        assign(r, a, n->block.target, v);
    } else {
        r->root_written |= r->n_marks == 0;
        out_val(r, v);
    }
    return FLOW_NEXT;
}

static NOINLINE enum flow exec_if(struct rt *r, struct activation *a, const struct node *n)
{
    for (uint32_t i = 0; i < n->if_.n; i++) {
        struct val v = eval(r, a, n->if_.branches[i].test);

        if (val_truth(r, v))
            return exec_list(r, a, &n->if_.branches[i].body);
    }
    return exec_list(r, a, &n->if_.else_);
}

static NOINLINE enum flow exec_with(struct rt *r, struct activation *a, const struct node *n)
{
    struct val *values = mem_array(r, n->with.n, sizeof *values);
    enum flow flow;

    for (uint32_t i = 0; i < n->with.n; i++)
        values[i] = eval(r, a, n->with.values[i]);
    scope_enter(r, a, n->with.scope);
    for (uint32_t i = 0; i < n->with.n; i++)
        assign(r, a, n->with.targets[i], values[i]);
    flow = exec_list(r, a, &n->with.body);
    scope_leave(a, n->with.scope);
    return flow;
}

static struct val macro_value(struct rt *r, struct activation *a, struct macro_def *d)
{
    struct macro *m = mem(r, sizeof *m);

    *m = (struct macro){ d, a };
    return (struct val){ .t = V_MACRO, .macro = m };
}

static NOINLINE void exec_call_block(struct rt *r, struct activation *a, const struct node *n)
{
    struct val caller = macro_value(r, a, n->callblock.def), v = eval_call(r, a, n->callblock.call, &caller);

    r->root_written |= r->n_marks == 0;
    out_val(r, v);
}

/* A span is kept once something was written before it, and counted from what has left the template by then: not what
 * a macro or captured block around it is still collecting. */
static NOINLINE void exec_generation(struct rt *r, struct activation *a, const struct node *n)
{
    struct macro m = { n->callblock.def, a };
    struct val v = macro_call(r, &m, &(struct args){ 0 });

    if (r->root_written || r->n_generation > 0) {
        if (r->n_generation == r->cap_generation) {
            size_t cap = r->cap_generation ? r->cap_generation * 2 : 8;
            size_t (*more)[2] = mem_array(r, cap, sizeof *more);

            if (r->n_generation)
                memcpy(more, r->generation, r->n_generation * sizeof *more);
            r->generation = more;
            r->cap_generation = cap;
        }
        r->generation[r->n_generation][0] = r->n_marks ? r->root_len : r->out.len;
        r->generation[r->n_generation++][1] = str_chars(v.s);
    }
    r->root_written |= r->n_marks == 0;
    out_str(r, v.s);
}

static NOINLINE void exec_named_block(struct rt *r, struct activation *a, const struct node *n)
{
    struct activation *own = activate(r, n->named_block.function, a);

    scope_enter(r, own, n->named_block.scope);
    exec_list(r, own, &n->named_block.body);
}

static NOINLINE void exec_output(struct rt *r, struct activation *a, const struct node *n)
{
    for (uint32_t i = 0; i < n->items.n; i++) {
        struct val v = eval(r, a, n->items.items[i]);

        r->at = n;
        out_val(r, v);
        r->root_written |= r->n_marks == 0;
    }
}

static NOINLINE enum flow exec(struct rt *r, struct activation *a, const struct node *n)
{
    struct val v;

    switch ((enum kind)n->kind) {
    case N_OUTPUT: exec_output(r, a, n); return FLOW_NEXT;
    case N_IF: return exec_if(r, a, n);
    case N_FOR: return exec_for(r, a, n);
    case N_SET:
        check_namespace(r, a, n->set.target);
        v = eval(r, a, n->set.value);
        assign(r, a, n->set.target, v);
        return FLOW_NEXT;
    case N_SETBLOCK: case N_FILTERBLOCK: return exec_block(r, a, n);
    case N_WITH: return exec_with(r, a, n);
    case N_MACRO: assign(r, a, n->macro.target, macro_value(r, a, n->macro.def)); return FLOW_NEXT;
    case N_CALLBLOCK: exec_call_block(r, a, n); return FLOW_NEXT;
    case N_GENERATION: exec_generation(r, a, n); return FLOW_NEXT;
    case N_BLOCK: exec_named_block(r, a, n); return FLOW_NEXT;
    case N_BREAK: return FLOW_BREAK;
    case N_CONTINUE: return FLOW_CONTINUE;
    default:
        eval(r, a, n->noloader.value);
        r->at = n;
        raise_error(r, "TypeError", "no loader for this environment specified");
    }
}

static enum flow exec_list(struct rt *r, struct activation *a, const struct list *l)
{
    enum flow flow = FLOW_NEXT;

    enter(r);
    for (uint32_t i = 0; i < l->n && flow == FLOW_NEXT; i++) {
        const struct node *n = l->items[i];

        step(r, 1);
        if (n->kind == N_DATA) {
            out_str(r, n->data);
            r->root_written |= r->n_marks == 0;
        } else {
            flow = exec(r, a, n);
        }
    }
    leave(r);
    return flow;
}

/* Objects of the evaluator's own */

bool macro_attribute(struct rt *r, struct macro *m, struct str *name, struct val *ret)
{
    const struct macro_def *d = m->def;

    if (str_is(name, "name"))
        *ret = d->name ? v_str(d->name) : v_none();
    else if (str_is(name, "arguments"))
        *ret = (struct val){ .t = V_TUPLE, .seq = d->param_names };
    else if (str_is(name, "catch_varargs"))
        *ret = v_bool(d->varargs);
    else if (str_is(name, "catch_kwargs"))
        *ret = v_bool(d->kwargs);
    else if (str_is(name, "caller"))
        *ret = v_bool(d->caller || d->explicit_caller);
    else if (str_is(name, "explicit_caller"))
        *ret = v_bool(d->explicit_caller);
    else
        return false;
    return true;
}

void out_object(struct rt *r, struct val v)
{
    struct str *name;

    if (v.t == V_LOOP) {
        out_printf(r, "<LoopContext %lld/%lld>", (long long)v.loop->index0 + 1, (long long)loop_length(r, v.loop));
        return;
    }
    name = v.macro->def->name;
    out_adds(r, name ? "<Macro '" : "<Macro ");
    out_str(r, name ? name : str_view(r, "anonymous", 9, true));
    out_adds(r, name ? "'>" : ">");
}

void run_template(struct rt *r)
{
    struct activation *a = activate(r, r->t->root, NULL);

    scope_enter(r, a, r->t->scope);
    exec_list(r, a, &r->t->body);
}
