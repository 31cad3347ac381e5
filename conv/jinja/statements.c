/* Statements: tags, their bodies, and what a template is as a whole. */
#include "conv/jinja/parse.h"

#include <stdarg.h>
#include <stdio.h>

static struct node *target_item(struct parser *p, bool with_namespace);

/* What a value is assigned to: a name, a tuple of targets, an attribute of a namespace. */
static struct node *parse_target(struct parser *p, const char *end_name, bool with_namespace, bool parentheses)
{
    uint32_t pos = p->cur.pos;
    struct nodes l = { 0 };
    bool tuple = false;
    struct node *n;
    char got[96];

    enter(p->r);
    for (;;) {
        if (l.n > 0)
            parse_expect(p, T_COMMA);
        if (parse_tuple_ends(p, end_name))
            break;
        nodes_push(p, &l, target_item(p, with_namespace));
        if (p->cur.t != T_COMMA)
            break;
        tuple = true;
    }
    leave(p->r);
    if (!tuple && l.n > 0)
        return l.items[0];
    if (!tuple && !parentheses) {
        parse_describe(p, &p->cur, got);
        syntax_error(p->r, p->cur.pos, "Expected an expression, got '%s'", got);
    }
    n = node_new(p, N_TUPLE, pos);
    n->items.items = l.items;
    n->items.n = l.n;
    for (uint32_t i = 0; i < l.n; i++)
        node_above(p, n, l.items[i]);
    return n;
}

static struct node *target_item(struct parser *p, bool with_namespace)
{
    struct tok t = p->cur;
    struct node *n;

    if (t.t == T_NAME && with_namespace && p->next.t == T_DOT) {
        n = node_new(p, N_NSREF, t.pos);
        n->attr.of = node_name(p, &t, false);
        parse_advance(p);
        parse_advance(p);
        if (p->cur.t != T_NAME)
            parse_unexpected(p, "name");
        n->attr.name = node_text(p, &p->cur);
        parse_advance(p);
        return n;
    }
    if (t.t == T_LPAREN) {
        parse_advance(p);
        n = parse_target(p, NULL, with_namespace, true);
        parse_expect(p, T_RPAREN);
        return n;
    }
    n = t.t == T_NAME ? NULL : parse_primary(p);
    if (n || parse_at(p, "true") || parse_at(p, "false") || parse_at(p, "none") || parse_at(p, "True") || parse_at(p, "False") || parse_at(p, "None"))
        syntax_error(p->r, t.pos, "can't assign to '%s'",
                     !n || n->kind == N_CONST ? (n && n->value.t == V_LIST ? "list" : "const") : n->kind == N_LIST ? "list" : "dict");
    n = node_name(p, &t, true);
    parse_advance(p);
    return n;
}

static struct node *name_target(struct parser *p)
{
    struct tok t = p->cur;

    parse_expect(p, T_NAME);
    return node_name(p, &t, true);
}

static struct list parse_body(struct parser *p, const char *const *ends, const char *tag);

static const char *const end_if[] = { "elif", "else", "endif", NULL }, *const end_if_else[] = { "endif", NULL },
    *const end_for[] = { "endfor", "else", NULL }, *const end_for_else[] = { "endfor", NULL }, *const end_set[] = { "endset", NULL },
    *const end_with[] = { "endwith", NULL }, *const end_macro[] = { "endmacro", NULL }, *const end_call[] = { "endcall", NULL },
    *const end_filter[] = { "endfilter", NULL }, *const end_block[] = { "endblock", NULL },
    *const end_generation[] = { "endgeneration", NULL };

static struct node *parse_if(struct parser *p, uint32_t pos)
{
    struct node *n = node_new(p, N_IF, pos);
    struct branch *branches = NULL;
    uint32_t cap = 0;

    do {
        if (n->if_.n == cap) {
            struct branch *more = mem_array(p->r, cap ? cap * 2 : 1, sizeof *more);

            if (cap)
                memcpy(more, branches, cap * sizeof *more);
            branches = more;
            cap = cap ? cap * 2 : 1;
        }
        branches[n->if_.n].test = parse_tuple(p, false, NULL, false);
        branches[n->if_.n++].body = parse_body(p, end_if, "if");
    } while (parse_skip_name(p, "elif"));
    n->if_.branches = branches;
    if (parse_skip_name(p, "else"))
        n->if_.else_ = parse_body(p, end_if_else, "if");
    parse_advance(p);
    return n;
}

static struct node *parse_for(struct parser *p, uint32_t pos)
{
    struct node *n = node_new(p, N_FOR, pos);

    n->for_.target = parse_target(p, "in", false, false);
    if (!parse_skip_name(p, "in"))
        parse_unexpected(p, "in");
    n->for_.iter = parse_tuple(p, false, "recursive", false);
    if (p->n_loops == sizeof p->loops / sizeof p->loops[0])
        depth_over(p->r);
    p->loops[p->n_loops++].uses_loop = &n->for_.uses_loop;
    if (parse_skip_name(p, "if"))
        n->for_.test = parse_expr(p);
    n->for_.recursive = parse_skip_name(p, "recursive");
    p->in_loop++;
    n->for_.body = parse_body(p, end_for, "for");
    p->in_loop--;
    p->n_loops--;
    if (parse_skip_name(p, "else"))
        n->for_.else_ = parse_body(p, end_for_else, "for");
    parse_advance(p);
    if (n->for_.recursive)
        n->for_.uses_loop = true;
    return n;
}

static struct node *parse_set(struct parser *p, uint32_t pos)
{
    struct node *target = parse_target(p, NULL, true, false), *n;

    if (parse_skip(p, T_ASSIGN)) {
        n = node_new(p, N_SET, pos);
        n->set.target = target;
        n->set.value = parse_tuple(p, true, NULL, false);
        return n;
    }
    n = node_new(p, N_SETBLOCK, pos);
    n->block.target = target;
    n->block.filter = parse_filter(p, NULL, false);
    n->block.body = parse_body(p, end_set, "set");
    parse_advance(p);
    return n;
}

static struct node *parse_with(struct parser *p, uint32_t pos)
{
    struct node *n = node_new(p, N_WITH, pos);
    struct nodes targets = { 0 }, values = { 0 };

    while (p->cur.t != T_BLOCK_END) {
        if (targets.n > 0)
            parse_expect(p, T_COMMA);
        nodes_push(p, &targets, parse_target(p, NULL, false, false));
        parse_expect(p, T_ASSIGN);
        nodes_push(p, &values, parse_expr(p));
    }
    n->with.targets = targets.items;
    n->with.values = values.items;
    n->with.n = targets.n;
    n->with.body = parse_body(p, end_with, "with");
    parse_advance(p);
    return n;
}

static const char *param_hint(struct parser *p, const struct str *name)
{
    size_t size = name->len + 32;
    char *hint = mem(p->r, size);

    snprintf(hint, size, "parameter '%.*s' was not provided", (int)name->len, name->text);
    return hint;
}

static void parse_signature(struct parser *p, struct macro_def *d)
{
    uint32_t cap = 0;
    bool defaults = false;

    parse_expect(p, T_LPAREN);
    while (p->cur.t != T_RPAREN) {
        if (d->n_params > 0)
            parse_expect(p, T_COMMA);
        if (d->n_params == cap) {
            struct param *more = mem_array(p->r, cap ? cap * 2 : 4, sizeof *more);

            if (cap)
                memcpy(more, d->params, cap * sizeof *more);
            d->params = more;
            cap = cap ? cap * 2 : 4;
        }
        d->params[d->n_params] = (struct param){ .name = name_target(p) };
        d->params[d->n_params].hint = param_hint(p, d->params[d->n_params].name->name.name);
        if (parse_skip(p, T_ASSIGN)) {
            d->params[d->n_params].def = parse_expr(p);
            defaults = true;
        } else if (defaults) {
            syntax_error(p->r, p->cur.pos, "non-default argument follows default argument");
        }
        d->n_params++;
    }
    parse_expect(p, T_RPAREN);
}

/* The body of a macro, a call block or {% generation %}, to its end tag. */
static void macro_body(struct parser *p, struct macro_def *d, const char *const *ends, const char *tag)
{
    struct macro_def *outer = p->macro;
    uint32_t in_loop = p->in_loop;
    struct val names;

    p->macro = d;
    p->in_loop = 0;
    d->body = parse_body(p, ends, tag);
    parse_advance(p);
    p->macro = outer;
    p->in_loop = in_loop;
    if (outer) {
        outer->uses_caller |= d->uses_caller;
        outer->uses_kwargs |= d->uses_kwargs;
        outer->uses_varargs |= d->uses_varargs;
    }
    names = v_seq(p->r, V_TUPLE, d->n_params);
    for (uint32_t i = 0; i < d->n_params; i++) {
        struct str *name = d->params[i].name->name.name;

        names.seq->items[i] = v_str(name);
        if (str_is(name, "caller")) {
            d->explicit_caller = true;
            if (!d->params[i].def && d->uses_caller)
                syntax_error(p->r, d->params[i].name->pos,
                             "When defining macros or call blocks the special \"caller\" argument must be omitted or be given a default.");
        }
        if (str_is(name, "caller"))
            d->uses_caller = false;
        if (str_is(name, "kwargs"))
            d->uses_kwargs = false;
        if (str_is(name, "varargs"))
            d->uses_varargs = false;
    }
    d->param_names = names.seq;
}

static struct macro_def *macro_def(struct parser *p)
{
    struct macro_def *d = mem(p->r, sizeof *d);

    memset(d, 0, sizeof *d);
    return d;
}

static struct node *parse_macro(struct parser *p, uint32_t pos)
{
    struct node *n = node_new(p, N_MACRO, pos);

    n->macro.def = macro_def(p);
    n->macro.target = name_target(p);
    n->macro.def->name = n->macro.target->name.name;
    parse_signature(p, n->macro.def);
    macro_body(p, n->macro.def, end_macro, "macro");
    return n;
}

static struct node *parse_call_block(struct parser *p, uint32_t pos)
{
    struct node *n = node_new(p, N_CALLBLOCK, pos);

    n->callblock.def = macro_def(p);
    if (p->cur.t == T_LPAREN)
        parse_signature(p, n->callblock.def);
    n->callblock.call = parse_expr(p);
    if (n->callblock.call->kind != N_CALL)
        syntax_error(p->r, n->callblock.call->pos, "expected call");
    macro_body(p, n->callblock.def, end_call, "call");
    return n;
}

static struct node *parse_generation(struct parser *p, uint32_t pos)
{
    struct node *n = node_new(p, N_GENERATION, pos);

    n->callblock.def = macro_def(p);
    macro_body(p, n->callblock.def, end_generation, "generation");
    return n;
}

static struct node *parse_filter_block(struct parser *p, uint32_t pos)
{
    struct node *n = node_new(p, N_FILTERBLOCK, pos);

    n->block.filter = parse_filter(p, NULL, true);
    n->block.body = parse_body(p, end_filter, "filter");
    parse_advance(p);
    return n;
}

static struct node *parse_print(struct parser *p, uint32_t pos)
{
    struct node *n = node_new(p, N_OUTPUT, pos);
    struct nodes l = { 0 };

    while (p->cur.t != T_BLOCK_END) {
        if (l.n > 0)
            parse_expect(p, T_COMMA);
        nodes_push(p, &l, parse_expr(p));
    }
    n->items.items = l.items;
    n->items.n = l.n;
    return n;
}

static _Noreturn __attribute__((format(printf, 3, 4))) void assertion_error(struct parser *p, uint32_t pos, const char *fmt, ...)
{
    char text[256];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    p->r->pos = pos;
    p->r->has_pos = true;
    raise_error(p->r, "TemplateAssertionError", "%s", text);
}

static struct node *parse_named_block(struct parser *p, uint32_t pos)
{
    struct node *n = node_new(p, N_BLOCK, pos);
    uint32_t in_loop = p->in_loop;
    struct str *name;
    struct tok t = p->cur;

    parse_expect(p, T_NAME);
    name = node_text(p, &t);
    if (dict_get_str(p->blocks, name))
        assertion_error(p, t.pos, "block '%.*s' defined twice", (int)name->len, name->text);
    dict_set(p->r, p->blocks, v_str(name), v_none());
    n->named_block.scoped = parse_skip_name(p, "scoped");
    parse_skip_name(p, "required");
    n->named_block.name = name;
    p->in_loop = 0;
    n->named_block.body = parse_body(p, end_block, "block");
    p->in_loop = in_loop;
    parse_advance(p);
    if (p->cur.t == T_NAME && p->cur.len == name->len && memcmp(p->lex.s + p->cur.pos, name->text, name->len) == 0)
        parse_advance(p);
    return n;
}

static void parse_context_words(struct parser *p)
{
    if ((parse_at(p, "with") || parse_at(p, "without")) && parse_token_is(&p->next, p, "context")) {
        parse_advance(p);
        parse_advance(p);
    }
}

/* extends, include, import and from: there is nothing to load from, so they fail when they are reached. */
static struct node *parse_noloader(struct parser *p, uint32_t pos, const char *tag)
{
    struct node *n = node_new(p, N_NOLOADER, pos);
    struct nodes stores = { 0 };

    n->noloader.value = parse_expr(p);
    if (strcmp(tag, "include") == 0) {
        if (parse_at(p, "ignore") && parse_token_is(&p->next, p, "missing")) {
            parse_advance(p);
            parse_advance(p);
        }
        parse_context_words(p);
    } else if (strcmp(tag, "import") == 0) {
        if (!parse_skip_name(p, "as"))
            parse_unexpected(p, "as");
        nodes_push(p, &stores, name_target(p));
        parse_context_words(p);
    } else if (strcmp(tag, "from") == 0) {
        if (!parse_skip_name(p, "import"))
            parse_unexpected(p, "import");
        if (p->cur.t == T_BLOCK_END)
            parse_unexpected(p, "name");
        while (p->cur.t != T_BLOCK_END && !parse_at(p, "with") && !parse_at(p, "without")) {
            struct tok t = p->cur;

            if (stores.n > 0) {
                parse_expect(p, T_COMMA);
                t = p->cur;
                if (p->cur.t == T_BLOCK_END)
                    break;
            }
            parse_expect(p, T_NAME);
            nodes_push(p, &stores, parse_skip_name(p, "as") ? name_target(p) : node_name(p, &t, true));
        }
        parse_context_words(p);
    }
    n->noloader.stores = stores.items;
    n->noloader.n = stores.n;
    return n;
}

static struct node *parse_loop_control(struct parser *p, uint32_t pos, bool leaves)
{
    if (!p->in_loop) {
        p->r->pos = pos;
        p->r->has_pos = true;
        raise_error(p->r, "SyntaxError", leaves ? "'break' outside loop" : "'continue' not properly in loop");
    }
    return node_new(p, leaves ? N_BREAK : N_CONTINUE, pos);
}

static _Noreturn void unknown_tag(struct parser *p)
{
    char wanted[160] = "", hint[512] = "";
    bool of_outer = false;
    size_t n = 0;
    int len = (int)(p->cur.len < 60 ? p->cur.len : 60);
    const char *tag = p->lex.s + p->cur.pos;

    if (p->n_ends > 0) {
        const char *const *ends = p->ends[p->n_ends - 1];

        for (size_t i = 0; ends[i] && n < sizeof wanted; i++)
            n += (size_t)snprintf(wanted + n, sizeof wanted - n, "%s'%s'", i ? " or " : "", ends[i]);
        for (uint32_t i = 0; i + 1 < p->n_ends; i++)
            for (size_t k = 0; p->ends[i][k]; k++)
                of_outer |= parse_at(p, p->ends[i][k]);
        snprintf(hint, sizeof hint, " %s %s. The innermost block that needs to be closed is '%s'.",
                 of_outer ? "You probably made a nesting mistake. Jinja is expecting this tag, but currently looking for"
                          : "Jinja was looking for the following tags:", wanted, p->tags[p->n_ends - 1]);
    }
    syntax_error(p->r, p->cur.pos, "Encountered unknown tag '%.*s'.%s", len, tag, hint);
}

static struct node *parse_statement(struct parser *p)
{
    static const struct { const char *name; struct node *(*parse)(struct parser *, uint32_t); } tags[] = {
        { "if", parse_if }, { "for", parse_for }, { "set", parse_set }, { "macro", parse_macro }, { "call", parse_call_block },
        { "generation", parse_generation }, { "filter", parse_filter_block }, { "with", parse_with }, { "print", parse_print },
        { "block", parse_named_block },
    };
    uint32_t pos = p->cur.pos;

    if (p->cur.t != T_NAME)
        syntax_error(p->r, pos, "tag name expected");
    for (size_t i = 0; i < sizeof tags / sizeof tags[0]; i++)
        if (parse_skip_name(p, tags[i].name))
            return tags[i].parse(p, pos);
    if (parse_skip_name(p, "break"))
        return parse_loop_control(p, pos, true);
    if (parse_skip_name(p, "continue"))
        return parse_loop_control(p, pos, false);
    if (parse_skip_name(p, "extends"))
        return parse_noloader(p, pos, "extends");
    if (parse_skip_name(p, "include"))
        return parse_noloader(p, pos, "include");
    if (parse_skip_name(p, "import"))
        return parse_noloader(p, pos, "import");
    if (parse_skip_name(p, "from"))
        return parse_noloader(p, pos, "from");
    if (parse_at(p, "autoescape"))
        syntax_error(p->r, pos, "the tag 'autoescape' is not supported");
    unknown_tag(p);
}

static bool at_end_tag(const struct parser *p)
{
    if (p->n_ends == 0)
        return false;
    for (const char *const *e = p->ends[p->n_ends - 1]; *e; e++)
        if (parse_at(p, *e))
            return true;
    return false;
}

/* Statements and text up to an end tag of the innermost block (the cursor is then at its name), or to the end. */
static struct list parse_statements(struct parser *p)
{
    struct nodes l = { 0 };
    struct node *n;

    for (;;) {
        uint32_t pos = p->cur.pos;

        switch (p->cur.t) {
        case T_DATA:
            n = node_new(p, N_DATA, pos);
            n->data = text_constant(p->cur.v.s);
            nodes_push(p, &l, n);
            parse_advance(p);
            break;
        case T_VAR_BEGIN:
            parse_advance(p);
            n = node_new(p, N_OUTPUT, pos);
            n->items.items = mem(p->r, sizeof(struct node *));
            n->items.items[0] = parse_tuple(p, true, NULL, false);
            n->items.n = 1;
            nodes_push(p, &l, n);
            parse_expect(p, T_VAR_END);
            break;
        case T_BLOCK_BEGIN:
            parse_advance(p);
            if (at_end_tag(p))
                return (struct list){ l.items, l.n };
            nodes_push(p, &l, parse_statement(p));
            parse_expect(p, T_BLOCK_END);
            break;
        case T_EOF:
            return (struct list){ l.items, l.n };
        default:
            parse_unexpected(p, NULL);
        }
    }
}

static _Noreturn void missing_end(struct parser *p, const char *const *ends, const char *tag)
{
    char wanted[160] = "";
    size_t n = 0;

    for (size_t i = 0; ends[i] && n < sizeof wanted; i++)
        n += (size_t)snprintf(wanted + n, sizeof wanted - n, "%s'%s'", i ? " or " : "", ends[i]);
    syntax_error(p->r, p->cur.pos, "Unexpected end of template. Jinja was looking for the following tags: %s. "
                 "The innermost block that needs to be closed is '%s'.", wanted, tag);
}

static struct list parse_body(struct parser *p, const char *const *ends, const char *tag)
{
    struct list body;

    enter(p->r);
    parse_skip(p, T_COLON);
    parse_expect(p, T_BLOCK_END);
    if (p->n_ends == sizeof p->ends / sizeof p->ends[0])
        depth_over(p->r);
    p->ends[p->n_ends] = ends;
    p->tags[p->n_ends++] = tag;
    body = parse_statements(p);
    p->n_ends--;
    if (p->cur.t == T_EOF)
        missing_end(p, ends, tag);
    leave(p->r);
    return body;
}

void parse_template(struct rt *r, struct jinja *t)
{
    struct parser *p = mem(r, sizeof *p);

    memset(p, 0, sizeof *p);
    p->r = r;
    p->t = t;
    p->ids = dict_new(r, 64);
    p->blocks = dict_new(r, 8);
    lex_init(&p->lex, r, t->source, t->source_len);
    parse_advance(p);
    parse_advance(p);
    t->body = parse_statements(p);
    t->has_blocks = p->blocks->n > 0;
}
