/* Names to slots, as jinja2's idtracking decides what a name means.
 *
 * A scope is walked twice: first what it reads and stores itself (not what scopes within it do), in order, which defines
 * its symbols; then its names are bound, and the scopes within it are walked, which see them. So a loop that
 * stores x reads its own x from the start, and one that only reads it finds the outer one or the
 * context. A name that only some branches of an `if` store begins as what it is outside.
 */
#include "conv/jinja/tree.h"

#include <errno.h>

struct binder {
    struct rt *r;
    struct jinja *t;
    struct scope *scope;
    bool soft;                      /* within an if: an unknown filter may never be reached */
    bool top;                       /* what is set here is in the context, too */
    struct symbol **log; uint32_t n_log, cap_log;      /* symbols newly stored in the branches that are open */
    uint32_t special[4];            /* ids of these names, or UINT32_MAX */
};

enum { CALLER, KWARGS, VARARGS, LOOP };
static const char *const special_names[] = { "caller", "kwargs", "varargs", "loop" };

/* Symbols */

static struct symbol **table_slot(struct scope *s, uint32_t id)
{
    uint32_t i = id * 2654435761u;

    for (;; i++) {
        struct symbol **slot = &s->table[i & (s->n_table - 1)];

        if (!*slot || (*slot)->name_id == id)
            return slot;
    }
}

static struct symbol *own(struct scope *s, uint32_t id) { return s->n_table ? *table_slot(s, id) : NULL; }

static struct symbol *define(struct binder *b, struct str *name, uint32_t id, enum load load)
{
    struct scope *s = b->scope;
    struct symbol *y = mem(b->r, sizeof *y);

    *y = (struct symbol){ .name = name, .name_id = id, .load = load, .slot = s->function->n_slots++ };
    *s->last = y;
    s->last = &y->next;
    if ((s->n + 1) * 2 > s->n_table) {
        uint32_t n = s->n_table ? s->n_table * 2 : 8;

        s->table = mem_array(b->r, n, sizeof *s->table);
        memset(s->table, 0, n * sizeof *s->table);
        s->n_table = n;
        for (struct symbol *old = s->first; old; old = old->next)
            *table_slot(s, old->name_id) = old;
    }
    *table_slot(s, id) = y;
    s->n++;
    return y;
}

/* Where a name is in the scopes around `s`, seen from function f. */
static struct symbol *find(struct binder *b, struct scope *s, const struct function *f, uint32_t id, struct ref *ret)
{
    uint32_t hops = 0;

    for (; s; s = s->parent) {
        struct symbol *y;

        for (; f != s->function; f = f->parent)
            hops++;
        step(b->r, 1);
        y = own(s, id);
        if (y) {
            *ret = (struct ref){ hops, y->slot };
            return y;
        }
    }
    return NULL;
}

static void load_name(struct binder *b, struct node *n)
{
    struct ref ref;

    if (!find(b, b->scope, b->scope->function, n->name.name_id, &ref))
        define(b, n->name.name, n->name.name_id, LOAD_CONTEXT);
}

static void mark_stored(struct binder *b, struct symbol *y)
{
    if (y->stored)
        return;
    y->stored = true;
    if (b->n_log == b->cap_log) {
        uint32_t cap = b->cap_log ? b->cap_log * 2 : 32;
        struct symbol **log = mem_array(b->r, cap, sizeof *log);

        if (b->n_log > 0)
            memcpy(log, b->log, b->n_log * sizeof *log);
        b->log = log;
        b->cap_log = cap;
    }
    b->log[b->n_log++] = y;
}

static void outer_load(struct binder *b, struct symbol *y, enum load otherwise)
{
    y->load = b->scope->parent && find(b, b->scope->parent, b->scope->function, y->name_id, &y->outer) ? LOAD_OUTER : otherwise;
}

static void store_name(struct binder *b, struct node *n)
{
    struct symbol *y = own(b->scope, n->name.name_id);

    if (!y) {
        y = define(b, n->name.name, n->name.name_id, LOAD_NOTHING);
        outer_load(b, y, LOAD_NOTHING);
    }
    mark_stored(b, y);
}

static struct symbol *param(struct binder *b, struct str *name, uint32_t id)
{
    struct symbol *y = own(b->scope, id);

    if (!y)
        y = define(b, name, id, LOAD_PARAM);
    y->load = LOAD_PARAM;
    mark_stored(b, y);
    return y;
}

/* First walk */

static void collect(struct binder *b, struct node *n);

static void collect_args(struct binder *b, const struct call_args *a)
{
    for (uint32_t i = 0; i < a->n; i++)
        collect(b, a->pos[i]);
    for (uint32_t i = 0; i < a->n_named; i++)
        collect(b, a->named[i].value);
    collect(b, a->star);
    collect(b, a->star_star);
}

static void collect_list(struct binder *b, const struct list *l)
{
    for (uint32_t i = 0; i < l->n; i++)
        collect(b, l->items[i]);
}

static void collect_target(struct binder *b, struct node *n, bool as_param)
{
    if (n->kind == N_NAME && as_param)
        param(b, n->name.name, n->name.name_id);
    else if (n->kind == N_NAME)
        store_name(b, n);
    else if (n->kind == N_NSREF)
        load_name(b, n->attr.of);
    else
        for (uint32_t i = 0; i < n->items.n; i++)
            collect_target(b, n->items.items[i], as_param);
}

/* The branches of an if, one after another on the same symbols: what one stores is not stored for the next. */
static void collect_if(struct binder *b, struct node *n)
{
    uint32_t start = b->n_log, at;

    collect(b, n->if_.branches[0].test);
    collect_list(b, &n->if_.branches[0].body);
    at = b->n_log;
    for (uint32_t i = start; i < at; i++)
        b->log[i]->stored = false;
    for (uint32_t i = 1; i < n->if_.n; i++) {
        collect(b, n->if_.branches[i].test);
        collect_list(b, &n->if_.branches[i].body);
    }
    for (uint32_t i = at; i < b->n_log; i++)
        b->log[i]->stored = false;
    collect_list(b, &n->if_.else_);
    for (uint32_t i = start; i < b->n_log; i++)
        b->log[i]->mark = 0;
    for (uint32_t i = start; i < b->n_log; i++)
        b->log[i]->mark++;
    at = start;
    for (uint32_t i = start; i < b->n_log; i++) {
        struct symbol *y = b->log[i];

        if (y->mark == 0)
            continue;
        if (y->mark < 3 && y->load != LOAD_PARAM)
            outer_load(b, y, LOAD_CONTEXT);
        y->mark = 0;
        y->stored = true;
        b->log[at++] = y;
    }
    b->n_log = at;
}

static void collect(struct binder *b, struct node *n)
{
    if (!n)
        return;
    switch ((enum kind)n->kind) {
    case N_NAME:
        load_name(b, n);
        break;
    case N_TUPLE: case N_LIST: case N_DICT: case N_CONCAT: case N_OUTPUT:
        for (uint32_t i = 0; i < n->items.n; i++)
            collect(b, n->items.items[i]);
        break;
    case N_COND: case N_AND: case N_OR: case N_NOT: case N_NEG: case N_POS: case N_BINARY: case N_ITEM: case N_SLICE:
        collect(b, n->x.a);
        collect(b, n->x.b);
        collect(b, n->x.c);
        break;
    case N_COMPARE:
        collect(b, n->compare.first);
        for (uint32_t i = 0; i < n->compare.n; i++)
            collect(b, n->compare.parts[i].value);
        break;
    case N_ATTR: case N_NSREF:
        collect(b, n->attr.of);
        break;
    case N_CALL:
        collect(b, n->call.f);
        collect_args(b, &n->call.args);
        break;
    case N_FILTER:
        collect(b, n->filter.of);
        collect_args(b, &n->filter.args);
        break;
    case N_TEST:
        collect(b, n->test.of);
        collect_args(b, &n->test.args);
        break;
    case N_IF:
        collect_if(b, n);
        break;
    case N_FOR:
        collect(b, n->for_.iter);
        break;
    case N_SET:
        collect(b, n->set.value);
        collect_target(b, n->set.target, false);
        break;
    case N_SETBLOCK:
        collect_target(b, n->block.target, false);
        break;
    case N_FILTERBLOCK:
        collect(b, n->block.filter);
        break;
    case N_WITH:
        for (uint32_t i = 0; i < n->with.n; i++)
            collect(b, n->with.values[i]);
        break;
    case N_MACRO:
        store_name(b, n->macro.target);
        break;
    case N_CALLBLOCK:
        collect(b, n->callblock.call);
        break;
    case N_NOLOADER:
        collect(b, n->noloader.value);
        for (uint32_t i = 0; i < n->noloader.n; i++)
            store_name(b, n->noloader.stores[i]);
        break;
    case N_CONST: case N_DATA: case N_GENERATION: case N_BLOCK: case N_BREAK: case N_CONTINUE:
        break;
    }
}

/* Second walk */

static void bind_node(struct binder *b, struct node *n);

static void bind_list(struct binder *b, const struct list *l)
{
    for (uint32_t i = 0; i < l->n; i++)
        bind_node(b, l->items[i]);
}

static _Noreturn void fail_at(struct binder *b, const struct node *n, const char *type, const char *what, const struct str *name, const char *rest)
{
    b->r->at = n;
    raise_error(b->r, type, "%s'%.*s'%s", what, (int)name->len, name->text, rest);
}

static _Noreturn void loop_assigned(struct binder *b, const struct node *n)
{
    b->r->at = n;
    raise_error(b->r, "TemplateAssertionError", "Can't assign to special loop variable in for-loop target");
}

static void bind_name(struct binder *b, struct node *n)
{
    struct symbol *y = find(b, b->scope, b->scope->function, n->name.name_id, &n->name.ref);

    if (!y) {                       /* read by a scope's own head, such as a macro's name in its default */
        y = define(b, n->name.name, n->name.name_id, LOAD_CONTEXT);
        n->name.ref = (struct ref){ 0, y->slot };
    }
    if (y->load == LOAD_CONTEXT && !n->name.store)
        b->t->names[n->name.name_id].read = true;
    if (n->name.store && n->name.in_loop && str_is(n->name.name, "loop"))
        loop_assigned(b, n);
    if (n->name.store && b->top)
        n->name.export_ = y;
}

static void bind_target(struct binder *b, struct node *n)
{
    if (n->kind == N_NAME)
        bind_name(b, n);
    else if (n->kind == N_NSREF)
        bind_name(b, n->attr.of);
    else
        for (uint32_t i = 0; i < n->items.n; i++)
            bind_target(b, n->items.items[i]);
}

static void bind_args(struct binder *b, const struct call_args *a)
{
    for (uint32_t i = 0; i < a->n; i++)
        bind_node(b, a->pos[i]);
    for (uint32_t i = 0; i < a->n_named; i++)
        bind_node(b, a->named[i].value);
    bind_node(b, a->star);
    bind_node(b, a->star_star);
}

struct outside { struct scope *scope; bool soft, top; uint32_t n_log; };

static struct outside scope_open(struct binder *b, struct scope **ret, struct function *function, struct scope *parent)
{
    struct outside o = { b->scope, b->soft, b->top, b->n_log };
    struct scope *s = mem(b->r, sizeof *s);

    *s = (struct scope){ .parent = parent, .function = function ? function : b->scope->function };
    s->last = &s->first;
    *ret = b->scope = s;
    b->soft = b->top = false;
    return o;
}

static void scope_close(struct binder *b, struct outside o)
{
    b->scope = o.scope;
    b->soft = o.soft;
    b->top = o.top;
    b->n_log = o.n_log;
}

static struct function *function_new(struct binder *b)
{
    struct function *f = mem(b->r, sizeof *f);

    *f = (struct function){ .parent = b->scope ? b->scope->function : NULL };
    if (f->parent)
        f->parent->captured = true;
    return f;
}

static void bind_macro(struct binder *b, struct macro_def *d)
{
    const bool used[] = { d->uses_caller, d->uses_kwargs, d->uses_varargs };
    struct symbol **const symbols[] = { &d->caller, &d->kwargs, &d->varargs };
    struct outside o;

    d->function = function_new(b);
    o = scope_open(b, &d->scope, d->function, b->scope);
    for (uint32_t i = 0; i < d->n_params; i++) {
        struct node *name = d->params[i].name;

        if (own(b->scope, name->name.name_id))
            fail_at(b, name, "SyntaxError", "duplicate argument ", name->name.name, " in function definition");
        param(b, name->name.name, name->name.name_id);
    }
    for (uint32_t i = 0; i < d->n_params; i++)
        collect(b, d->params[i].def);
    for (int i = CALLER; i <= VARARGS; i++)
        if (used[i])
            *symbols[i] = param(b, b->t->names[b->special[i]].name, b->special[i]);
    collect_list(b, &d->body);
    for (uint32_t i = 0; i < d->n_params; i++) {
        bind_name(b, d->params[i].name);
        bind_node(b, d->params[i].def);
    }
    bind_list(b, &d->body);
    scope_close(b, o);
}

static bool names_loop(const struct node *target)
{
    if (target->kind == N_NAME)
        return str_is(target->name.name, "loop");
    for (uint32_t i = 0; i < target->items.n; i++)
        if (names_loop(target->items.items[i]))
            return true;
    return false;
}

/* A target once more, to bind it in a second scope. */
static struct node *copy_target(struct binder *b, const struct node *n)
{
    struct node *c = mem(b->r, sizeof *c);

    *c = *n;
    if (n->kind != N_TUPLE)
        return c;
    c->items.items = mem_array(b->r, n->items.n, sizeof *c->items.items);
    for (uint32_t i = 0; i < n->items.n; i++)
        c->items.items[i] = copy_target(b, n->items.items[i]);
    return c;
}

static void bind_for(struct binder *b, struct node *n)
{
    struct outside o;
    struct function *f = NULL;

    if (names_loop(n->for_.target))
        loop_assigned(b, n);
    bind_node(b, n->for_.iter);
    if (n->for_.recursive)
        f = n->for_.function = function_new(b);
    if (n->for_.test) {
        n->for_.test_target = copy_target(b, n->for_.target);
        o = scope_open(b, &n->for_.test_scope, f, b->scope);
        collect_target(b, n->for_.test_target, true);
        collect(b, n->for_.test);
        bind_target(b, n->for_.test_target);
        bind_node(b, n->for_.test);
        scope_close(b, o);
    }
    o = scope_open(b, &n->for_.scope, f, b->scope);
    if (n->for_.uses_loop && b->special[LOOP] != UINT32_MAX)
        n->for_.loop = param(b, b->t->names[b->special[LOOP]].name, b->special[LOOP]);
    collect_target(b, n->for_.target, true);
    collect_list(b, &n->for_.body);
    bind_target(b, n->for_.target);
    bind_list(b, &n->for_.body);
    scope_close(b, o);
    o = scope_open(b, &n->for_.else_scope, f, b->scope);
    collect_list(b, &n->for_.else_);
    bind_list(b, &n->for_.else_);
    scope_close(b, o);
}

static void bind_block(struct binder *b, struct node *n)
{
    struct outside o;

    if (n->kind == N_SETBLOCK)
        bind_target(b, n->block.target);
    o = scope_open(b, &n->block.scope, NULL, b->scope);
    collect_list(b, &n->block.body);
    bind_list(b, &n->block.body);
    bind_node(b, n->block.filter);
    scope_close(b, o);
}

static void bind_with(struct binder *b, struct node *n)
{
    struct outside o;

    for (uint32_t i = 0; i < n->with.n; i++)
        bind_node(b, n->with.values[i]);
    o = scope_open(b, &n->with.scope, NULL, b->scope);
    for (uint32_t i = 0; i < n->with.n; i++)
        collect_target(b, n->with.targets[i], true);
    collect_list(b, &n->with.body);
    for (uint32_t i = 0; i < n->with.n; i++)
        bind_target(b, n->with.targets[i]);
    bind_list(b, &n->with.body);
    scope_close(b, o);
}

/* A block sees the context only, unless it is `scoped`. */
static void bind_named_block(struct binder *b, struct node *n)
{
    struct outside o;

    n->named_block.function = function_new(b);
    o = scope_open(b, &n->named_block.scope, n->named_block.function, n->named_block.scoped ? b->scope : NULL);
    collect_list(b, &n->named_block.body);
    bind_list(b, &n->named_block.body);
    scope_close(b, o);
}

static void bind_node(struct binder *b, struct node *n)
{
    bool soft = b->soft;

    if (!n)
        return;
    switch ((enum kind)n->kind) {
    case N_NAME:
        bind_name(b, n);
        break;
    case N_TUPLE: case N_LIST: case N_DICT: case N_CONCAT: case N_OUTPUT:
        for (uint32_t i = 0; i < n->items.n; i++)
            bind_node(b, n->items.items[i]);
        break;
    case N_COND:
        b->soft = true;
        bind_node(b, n->x.a);
        bind_node(b, n->x.b);
        bind_node(b, n->x.c);
        break;
    case N_AND: case N_OR: case N_NOT: case N_NEG: case N_POS: case N_BINARY: case N_ITEM: case N_SLICE:
        bind_node(b, n->x.a);
        bind_node(b, n->x.b);
        bind_node(b, n->x.c);
        break;
    case N_COMPARE:
        bind_node(b, n->compare.first);
        for (uint32_t i = 0; i < n->compare.n; i++)
            bind_node(b, n->compare.parts[i].value);
        break;
    case N_ATTR: case N_NSREF:
        bind_node(b, n->attr.of);
        break;
    case N_CALL:
        bind_node(b, n->call.f);
        bind_args(b, &n->call.args);
        break;
    case N_FILTER:
        bind_node(b, n->filter.of);
        bind_args(b, &n->filter.args);
        if (!n->filter.filter && !b->soft)
            fail_at(b, n, "TemplateAssertionError", "No filter named ", n->filter.name, ".");
        break;
    case N_TEST:
        bind_node(b, n->test.of);
        bind_args(b, &n->test.args);
        if (!n->test.test && !b->soft)
            fail_at(b, n, "TemplateAssertionError", "No test named ", n->test.name, ".");
        break;
    case N_IF:
        b->soft = true;
        for (uint32_t i = 0; i < n->if_.n; i++) {
            bind_node(b, n->if_.branches[i].test);
            bind_list(b, &n->if_.branches[i].body);
        }
        bind_list(b, &n->if_.else_);
        break;
    case N_FOR:
        bind_for(b, n);
        break;
    case N_SET:
        bind_node(b, n->set.value);
        bind_target(b, n->set.target);
        break;
    case N_SETBLOCK: case N_FILTERBLOCK:
        bind_block(b, n);
        break;
    case N_WITH:
        bind_with(b, n);
        break;
    case N_MACRO:
        bind_name(b, n->macro.target);
        bind_macro(b, n->macro.def);
        break;
    case N_CALLBLOCK:
        bind_node(b, n->callblock.call);
        bind_macro(b, n->callblock.def);
        break;
    case N_GENERATION:
        bind_macro(b, n->callblock.def);
        break;
    case N_BLOCK:
        bind_named_block(b, n);
        break;
    case N_NOLOADER:
        bind_node(b, n->noloader.value);
        for (uint32_t i = 0; i < n->noloader.n; i++)
            bind_name(b, n->noloader.stores[i]);
        break;
    case N_CONST: case N_DATA: case N_BREAK: case N_CONTINUE:
        break;
    }
    b->soft = soft;
}

void bind_template(struct rt *r, struct jinja *t)
{
    struct binder b = { .r = r, .t = t };

    for (int i = CALLER; i <= LOOP; i++) {
        b.special[i] = UINT32_MAX;
        for (uint32_t k = 0; k < t->n_names; k++)
            if (str_is(t->names[k].name, special_names[i]))
                b.special[i] = k;
    }
    t->root = function_new(&b);
    scope_open(&b, &t->scope, t->root, NULL);
    b.top = true;
    collect_list(&b, &t->body);
    bind_list(&b, &t->body);
}
