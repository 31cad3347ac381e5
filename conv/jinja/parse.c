/* Tokens to a tree, with jinja2's grammar; its traps are in the order of the functions below: `~` binds tighter
 * than + and looser than *, ** goes left, a unary minus binds tighter than ** and looser than what is
 * written behind its operand, a filter behind it takes the negated value.
 */
#include "conv/jinja/tree.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

struct parser {
    struct rt *r;
    struct jinja *t;
    struct lexer lex;
    struct tok cur, next;
    struct dict *ids;                           /* name: id */
    uint32_t cap_names;
    const char *const *ends[256]; uint32_t n_ends;         /* what each open block waits for */
    const char *tags[256];
    struct macro_def *macro;                    /* the innermost that is read, for caller, kwargs, varargs */
    struct { bool *uses_loop; } loops[256]; uint32_t n_loops;
    uint32_t in_loop;                           /* loops that break may leave */
    struct dict *blocks;
};

struct nodes { struct node **items; uint32_t n, cap; };

static void push(struct parser *p, struct nodes *l, struct node *n)
{
    if (l->n == l->cap) {
        uint32_t cap = l->cap ? l->cap * 2 : 4;
        struct node **items = mem_array(p->r, cap, sizeof *items);

        if (l->n > 0)
            memcpy(items, l->items, l->n * sizeof *items);
        l->items = items;
        l->cap = cap;
    }
    l->items[l->n++] = n;
}

static void advance(struct parser *p)
{
    p->cur = p->next;
    p->next = lex_next(&p->lex);
}

static bool is_name(const struct tok *t, const struct parser *p, const char *name)
{
    return t->t == T_NAME && t->len == strlen(name) && memcmp(p->lex.s + t->pos, name, t->len) == 0;
}
static bool at_name(const struct parser *p, const char *name) { return is_name(&p->cur, p, name); }

static bool skip_name(struct parser *p, const char *name)
{
    if (!at_name(p, name))
        return false;
    advance(p);
    return true;
}

static const char *const token_names[] = {
    [T_EOF] = "end of template", [T_DATA] = "template data / text", [T_VAR_BEGIN] = "begin of print statement",
    [T_VAR_END] = "end of print statement", [T_BLOCK_BEGIN] = "begin of statement block", [T_BLOCK_END] = "end of statement block",
    [T_NAME] = "name", [T_STRING] = "string", [T_INTEGER] = "integer", [T_FLOAT] = "float", [T_ADD] = "+", [T_SUB] = "-", [T_DIV] = "/",
    [T_FLOORDIV] = "//", [T_MUL] = "*", [T_MOD] = "%", [T_POW] = "**", [T_TILDE] = "~", [T_LBRACKET] = "[", [T_RBRACKET] = "]",
    [T_LPAREN] = "(", [T_RPAREN] = ")", [T_LBRACE] = "{", [T_RBRACE] = "}", [T_EQ] = "==", [T_NE] = "!=", [T_GT] = ">", [T_GE] = ">=",
    [T_LT] = "<", [T_LE] = "<=", [T_ASSIGN] = "=", [T_DOT] = ".", [T_COLON] = ":", [T_PIPE] = "|", [T_COMMA] = ",", [T_SEMICOLON] = ";",
};

/* As jinja2 describes a token: a name by itself, anything else by its kind. */
static void describe(const struct parser *p, const struct tok *t, char out[96])
{
    if (t->t == T_NAME)
        snprintf(out, 96, "%.*s", (int)(t->len < 90 ? t->len : 90), p->lex.s + t->pos);
    else
        snprintf(out, 96, "%s", token_names[t->t]);
}

static _Noreturn void unexpected(struct parser *p, const char *wanted)
{
    char got[96];

    describe(p, &p->cur, got);
    if (p->cur.t == T_EOF && wanted)
        syntax_error(p->r, p->cur.pos, "unexpected end of template, expected '%s'.", wanted);
    if (!wanted)
        syntax_error(p->r, p->cur.pos, "unexpected '%s'", got);
    syntax_error(p->r, p->cur.pos, "expected token '%s', got '%s'", wanted, got);
}

static void expect(struct parser *p, enum token t)
{
    if (p->cur.t != t)
        unexpected(p, token_names[t]);
    advance(p);
}

static bool skip(struct parser *p, enum token t)
{
    if (p->cur.t != t)
        return false;
    advance(p);
    return true;
}

static struct node *node(struct parser *p, enum kind kind, uint32_t pos)
{
    struct node *n = mem(p->r, sizeof *n);

    memset(n, 0, sizeof *n);
    n->kind = (uint8_t)kind;
    n->pos = pos;
    n->height = 1;
    return n;
}

/* The height of a node above a child: what the evaluator will nest. */
static void above(struct parser *p, struct node *n, const struct node *child)
{
    if (!child || child->height < n->height)
        return;
    if (child->height >= p->r->limits.depth) {
        p->r->pos = n->pos;
        p->r->has_pos = true;
        raise_limit(p->r, -E2BIG, "nested deeper than %u levels", p->r->limits.depth);
    }
    n->height = (uint16_t)(child->height + 1);
}

/* A constant text: threads share it, so what is computed lazily is computed now. */
static struct str *constant(struct str *s)
{
    str_chars(s);
    str_hash(s);
    return s;
}

static struct str *name_text(struct parser *p, const struct tok *t)
{
    return constant(str_view(p->r, p->lex.s + t->pos, t->len, true));
}

static uint32_t name_id(struct parser *p, struct str *name)
{
    struct val *known = dict_get_str(p->ids, name);
    struct jinja *t = p->t;

    if (known)
        return (uint32_t)known->i;
    if (t->n_names == p->cap_names) {
        uint32_t cap = p->cap_names ? p->cap_names * 2 : 32;
        struct name_entry *names = mem_array(p->r, cap, sizeof *names);

        if (t->n_names > 0)
            memcpy(names, t->names, t->n_names * sizeof *names);
        t->names = names;
        p->cap_names = cap;
    }
    t->names[t->n_names] = (struct name_entry){ .name = name, .global = global_find(name->text, name->len) };
    dict_set(p->r, p->ids, v_str(name), v_int(t->n_names));
    return t->n_names++;
}

static struct node *name_node(struct parser *p, const struct tok *t, bool store)
{
    struct node *n = node(p, N_NAME, t->pos);
    struct undef *u = mem(p->r, sizeof *u);

    n->name.name = name_text(p, t);
    n->name.name_id = name_id(p, n->name.name);
    n->name.store = store;
    *u = (struct undef){ .kind = UNDEF_NAME, .name = v_str(n->name.name) };
    n->name.undef = u;
    n->name.in_loop = p->n_loops > 0;
    if (store)
        return n;
    if (p->macro) {
        p->macro->uses_caller |= str_is(n->name.name, "caller");
        p->macro->uses_kwargs |= str_is(n->name.name, "kwargs");
        p->macro->uses_varargs |= str_is(n->name.name, "varargs");
    }
    if (str_is(n->name.name, "loop"))
        for (uint32_t i = p->n_loops; i-- > 0; )
            *p->loops[i].uses_loop = true;
    return n;
}

static struct node *const_node(struct parser *p, uint32_t pos, struct val v)
{
    struct node *n = node(p, N_CONST, pos);

    n->value = v;
    return n;
}

static struct node *parse_expression(struct parser *p);
static struct node *parse_binary(struct parser *p, int level);
static struct node *parse_unary(struct parser *p, bool with_filter);
static struct node *parse_primary(struct parser *p);
static struct node *parse_tuple(struct parser *p, bool with_cond, const char *end_name, bool parentheses);

/* Calls */

static void parse_args(struct parser *p, struct call_args *a, struct node *n)
{
    struct nodes pos = { 0 };
    struct keyword *named = NULL;
    uint32_t cap = 0;
    bool comma = false;

    expect(p, T_LPAREN);
    while (p->cur.t != T_RPAREN) {
        struct tok t = p->cur;

        if (comma) {
            expect(p, T_COMMA);
            if (p->cur.t == T_RPAREN)
                break;
            t = p->cur;
        }
        if (t.t == T_MUL || t.t == T_POW) {
            struct node **to = t.t == T_MUL ? &a->star : &a->star_star;

            if (a->star_star || (t.t == T_MUL && a->star))
                syntax_error(p->r, t.pos, "invalid syntax for function call expression");
            advance(p);
            *to = parse_expression(p);
            above(p, n, *to);
        } else if (t.t == T_NAME && p->next.t == T_ASSIGN) {
            if (a->star_star)
                syntax_error(p->r, t.pos, "invalid syntax for function call expression");
            advance(p);
            advance(p);
            if (a->n_named == cap) {
                struct keyword *more = mem_array(p->r, cap ? cap * 2 : 4, sizeof *more);

                if (cap)
                    memcpy(more, named, cap * sizeof *more);
                named = more;
                cap = cap ? cap * 2 : 4;
            }
            named[a->n_named] = (struct keyword){ name_text(p, &t), parse_expression(p) };
            above(p, n, named[a->n_named++].value);
        } else {
            if (a->star || a->star_star || a->n_named)
                syntax_error(p->r, t.pos, "invalid syntax for function call expression");
            push(p, &pos, parse_expression(p));
            above(p, n, pos.items[pos.n - 1]);
        }
        comma = true;
    }
    expect(p, T_RPAREN);
    a->pos = pos.items;
    a->n = pos.n;
    a->named = named;
}

static struct node *parse_call(struct parser *p, struct node *f)
{
    struct node *n = node(p, N_CALL, p->cur.pos);

    n->call.f = f;
    above(p, n, f);
    parse_args(p, &n->call.args, n);
    return n;
}

static struct str *dotted_name(struct parser *p)
{
    struct tok first = p->cur;

    expect(p, T_NAME);
    while (p->cur.t == T_DOT) {
        advance(p);
        if (p->cur.t != T_NAME)
            unexpected(p, "name");
        first.len = p->cur.pos + p->cur.len - first.pos;
        advance(p);
    }
    return name_text(p, &first);
}

/* node NULL: the value is a captured block. inline_: the cursor is at the first filter's name. */
static struct node *parse_filter(struct parser *p, struct node *of, bool inline_)
{
    while (inline_ || p->cur.t == T_PIPE) {
        struct node *n;

        if (!inline_)
            advance(p);
        inline_ = false;
        n = node(p, N_FILTER, p->cur.pos);
        n->filter.of = of;
        above(p, n, of);
        n->filter.name = dotted_name(p);
        n->filter.filter = filter_find(n->filter.name->text, n->filter.name->len);
        if (p->cur.t == T_LPAREN)
            parse_args(p, &n->filter.args, n);
        of = n;
    }
    return of;
}

static struct node *parse_postfix(struct parser *p, struct node *n);

static struct node *parse_test(struct parser *p, struct node *of)
{
    struct node *n = node(p, N_TEST, p->cur.pos), *not_;
    bool negated;
    enum token t;

    advance(p);
    negated = skip_name(p, "not");
    n->test.of = of;
    above(p, n, of);
    n->pos = p->cur.pos;
    n->test.name = dotted_name(p);
    n->test.test = test_find(n->test.name->text, n->test.name->len);
    t = p->cur.t;
    if (t == T_LPAREN) {
        parse_args(p, &n->test.args, n);
    } else if ((t == T_NAME || t == T_STRING || t == T_INTEGER || t == T_FLOAT || t == T_LBRACKET || t == T_LBRACE) &&
               !at_name(p, "else") && !at_name(p, "or") && !at_name(p, "and")) {
        if (at_name(p, "is"))
            syntax_error(p->r, p->cur.pos, "You cannot chain multiple tests with is");
        n->test.args.pos = mem(p->r, sizeof(struct node *));
        n->test.args.n = 1;
        n->test.args.pos[0] = parse_postfix(p, parse_primary(p));
        above(p, n, n->test.args.pos[0]);
    }
    if (!negated)
        return n;
    not_ = node(p, N_NOT, n->pos);
    not_->x.a = n;
    above(p, not_, n);
    return not_;
}

/* One part between the brackets of x[…]. */
static struct node *parse_subscribed(struct parser *p)
{
    uint32_t pos = p->cur.pos;
    struct node *part[3] = { NULL, NULL, NULL }, *n;

    if (p->cur.t != T_COLON) {
        part[0] = parse_expression(p);
        if (p->cur.t != T_COLON)
            return part[0];
    }
    advance(p);
    if (p->cur.t != T_COLON && p->cur.t != T_RBRACKET && p->cur.t != T_COMMA)
        part[1] = parse_expression(p);
    if (skip(p, T_COLON) && p->cur.t != T_RBRACKET && p->cur.t != T_COMMA)
        part[2] = parse_expression(p);
    n = node(p, N_SLICE, pos);
    n->x.a = part[0];
    n->x.b = part[1];
    n->x.c = part[2];
    for (int i = 0; i < 3; i++)
        above(p, n, part[i]);
    return n;
}

static struct node *items_node(struct parser *p, enum kind kind, uint32_t pos, const struct nodes *l);

static struct node *parse_subscript(struct parser *p, struct node *of)
{
    struct tok t = p->cur;
    struct nodes parts = { 0 };
    struct node *n;

    advance(p);
    if (t.t == T_DOT && p->cur.t == T_NAME) {
        n = node(p, N_ATTR, p->cur.pos);
        n->attr.of = of;
        n->attr.name = name_text(p, &p->cur);
        n->attr.method = method_id(n->attr.name->text, n->attr.name->len);
        above(p, n, of);
        advance(p);
        return n;
    }
    n = node(p, N_ITEM, t.pos);
    n->x.a = of;
    above(p, n, of);
    if (t.t == T_DOT) {
        if (p->cur.t != T_INTEGER)
            syntax_error(p->r, p->cur.pos, "expected name or number");
        n->x.b = const_node(p, p->cur.pos, p->cur.v);
        advance(p);
        return n;
    }
    while (p->cur.t != T_RBRACKET) {
        if (parts.n > 0)
            expect(p, T_COMMA);
        push(p, &parts, parse_subscribed(p));
    }
    expect(p, T_RBRACKET);
    n->x.b = parts.n == 1 ? parts.items[0] : items_node(p, N_TUPLE, t.pos, &parts);
    above(p, n, n->x.b);
    return n;
}

static struct node *parse_postfix(struct parser *p, struct node *n)
{
    for (;;) {
        if (p->cur.t == T_DOT || p->cur.t == T_LBRACKET)
            n = parse_subscript(p, n);
        else if (p->cur.t == T_LPAREN)
            n = parse_call(p, n);
        else
            return n;
    }
}

static struct node *parse_filter_expr(struct parser *p, struct node *n)
{
    for (;;) {
        if (p->cur.t == T_PIPE)
            n = parse_filter(p, n, false);
        else if (at_name(p, "is"))
            n = parse_test(p, n);
        else if (p->cur.t == T_LPAREN)
            n = parse_call(p, n);
        else
            return n;
    }
}

/* A list, tuple or dict; one of constants only is a constant. */
static struct node *items_node(struct parser *p, enum kind kind, uint32_t pos, const struct nodes *l)
{
    struct node *n = node(p, kind, pos);
    bool constants = true;

    n->items.items = l->items;
    n->items.n = l->n;
    for (uint32_t i = 0; i < l->n; i++) {
        constants &= l->items[i]->kind == N_CONST;
        above(p, n, l->items[i]);
    }
    if (constants && (kind == N_LIST || kind == N_TUPLE)) {
        struct val v = v_seq(p->r, kind == N_LIST ? V_LIST : V_TUPLE, l->n);

        for (uint32_t i = 0; i < l->n; i++)
            v.seq->items[i] = l->items[i]->value;
        n->kind = N_CONST;
        n->value = v;
    }
    return n;
}

static struct node *parse_list(struct parser *p)
{
    uint32_t pos = p->cur.pos;
    struct nodes l = { 0 };

    expect(p, T_LBRACKET);
    while (p->cur.t != T_RBRACKET) {
        if (l.n > 0)
            expect(p, T_COMMA);
        if (p->cur.t == T_RBRACKET)
            break;
        push(p, &l, parse_expression(p));
    }
    expect(p, T_RBRACKET);
    return items_node(p, N_LIST, pos, &l);
}

static struct node *parse_dict(struct parser *p)
{
    uint32_t pos = p->cur.pos;
    struct nodes l = { 0 };

    expect(p, T_LBRACE);
    while (p->cur.t != T_RBRACE) {
        if (l.n > 0)
            expect(p, T_COMMA);
        if (p->cur.t == T_RBRACE)
            break;
        push(p, &l, parse_expression(p));
        expect(p, T_COLON);
        push(p, &l, parse_expression(p));
    }
    expect(p, T_RBRACE);
    return items_node(p, N_DICT, pos, &l);
}

static struct node *parse_string(struct parser *p)
{
    struct tok t = p->cur;
    struct mark m;

    advance(p);
    if (p->cur.t == T_STRING) {
        m = out_mark(p->r);
        out_str(p->r, t.v.s);
        for (; p->cur.t == T_STRING; advance(p))
            out_str(p->r, p->cur.v.s);
        t.v = out_take_val(p->r, m);
    }
    constant(t.v.s);
    return const_node(p, t.pos, t.v);
}

static struct node *parse_primary(struct parser *p)
{
    struct tok t = p->cur;
    struct node *n;

    switch (t.t) {
    case T_NAME:
        if (at_name(p, "true") || at_name(p, "True") || at_name(p, "false") || at_name(p, "False"))
            n = const_node(p, t.pos, v_bool(at_name(p, "true") || at_name(p, "True")));
        else if (at_name(p, "none") || at_name(p, "None"))
            n = const_node(p, t.pos, v_none());
        else
            n = name_node(p, &t, false);
        advance(p);
        return n;
    case T_STRING:
        return parse_string(p);
    case T_INTEGER:
    case T_FLOAT:
        advance(p);
        return const_node(p, t.pos, t.v);
    case T_LPAREN:
        advance(p);
        n = parse_tuple(p, true, NULL, true);
        expect(p, T_RPAREN);
        return n;
    case T_LBRACKET:
        return parse_list(p);
    case T_LBRACE:
        return parse_dict(p);
    default:
        unexpected(p, NULL);
    }
}

static struct node *parse_unary(struct parser *p, bool with_filter)
{
    struct tok t = p->cur;
    struct node *n;

    enter(p->r);
    if (t.t == T_SUB || t.t == T_ADD) {
        advance(p);
        n = node(p, t.t == T_SUB ? N_NEG : N_POS, t.pos);
        n->x.a = parse_unary(p, false);
        above(p, n, n->x.a);
    } else {
        n = parse_primary(p);
    }
    n = parse_postfix(p, n);
    if (with_filter)
        n = parse_filter_expr(p, n);
    leave(p->r);
    return n;
}

static struct node *two(struct parser *p, enum kind kind, enum op op, uint32_t pos, struct node *a, struct node *b)
{
    struct node *n = node(p, kind, pos);

    n->op = (uint8_t)op;
    n->x.a = a;
    n->x.b = b;
    above(p, n, a);
    above(p, n, b);
    return n;
}

/* Binary operators from loose to tight. */
enum { LEVEL_OR, LEVEL_AND, LEVEL_NOT, LEVEL_COMPARE, LEVEL_SUM, LEVEL_CONCAT, LEVEL_PRODUCT, LEVEL_POWER, LEVEL_UNARY };

static bool arithmetic(enum token t, int level, enum op *ret)
{
    static const struct { enum token t; int level; enum op op; } table[] = {
        { T_ADD, LEVEL_SUM, OP_ADD }, { T_SUB, LEVEL_SUM, OP_SUB }, { T_MUL, LEVEL_PRODUCT, OP_MUL },
        { T_DIV, LEVEL_PRODUCT, OP_DIV }, { T_FLOORDIV, LEVEL_PRODUCT, OP_FLOORDIV }, { T_MOD, LEVEL_PRODUCT, OP_MOD },
        { T_POW, LEVEL_POWER, OP_POW },
    };

    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (table[i].t == t && table[i].level == level) {
            *ret = table[i].op;
            return true;
        }
    }
    return false;
}

static bool comparison(struct parser *p, enum op *ret)
{
    switch (p->cur.t) {
    case T_EQ: *ret = OP_EQ; break;
    case T_NE: *ret = OP_NE; break;
    case T_LT: *ret = OP_LT; break;
    case T_LE: *ret = OP_LE; break;
    case T_GT: *ret = OP_GT; break;
    case T_GE: *ret = OP_GE; break;
    default:
        if (at_name(p, "not") && is_name(&p->next, p, "in")) {
            advance(p);
            *ret = OP_NOT_IN;
            break;
        }
        if (!at_name(p, "in"))
            return false;
        *ret = OP_IN;
    }
    advance(p);
    return true;
}

static struct node *parse_compare(struct parser *p)
{
    struct node *first = parse_binary(p, LEVEL_SUM), *n;
    struct compare_part *parts = NULL;
    uint32_t count = 0, cap = 0, pos = p->cur.pos;
    enum op op;

    while (comparison(p, &op)) {
        if (count == cap) {
            struct compare_part *more = mem_array(p->r, cap ? cap * 2 : 1, sizeof *more);

            if (cap)
                memcpy(more, parts, cap * sizeof *more);
            parts = more;
            cap = cap ? cap * 2 : 1;
        }
        parts[count++] = (struct compare_part){ op, parse_binary(p, LEVEL_SUM) };
    }
    if (!count)
        return first;
    n = node(p, N_COMPARE, pos);
    n->compare.first = first;
    n->compare.parts = parts;
    n->compare.n = count;
    above(p, n, first);
    for (uint32_t i = 0; i < count; i++)
        above(p, n, parts[i].value);
    return n;
}

static struct node *parse_concat(struct parser *p)
{
    struct node *n = parse_binary(p, LEVEL_PRODUCT), *joined;
    struct nodes l = { 0 };
    uint32_t pos = p->cur.pos;

    if (p->cur.t != T_TILDE)
        return n;
    push(p, &l, n);
    while (skip(p, T_TILDE))
        push(p, &l, parse_binary(p, LEVEL_PRODUCT));
    joined = node(p, N_CONCAT, pos);
    joined->items.items = l.items;
    joined->items.n = l.n;
    for (uint32_t i = 0; i < l.n; i++)
        above(p, joined, l.items[i]);
    return joined;
}

static struct node *parse_not(struct parser *p)
{
    struct node *n;

    if (!at_name(p, "not"))
        return parse_compare(p);
    enter(p->r);
    n = node(p, N_NOT, p->cur.pos);
    advance(p);
    n->x.a = parse_not(p);
    above(p, n, n->x.a);
    leave(p->r);
    return n;
}

static struct node *parse_binary(struct parser *p, int level)
{
    struct node *n;
    enum op op;

    if (level == LEVEL_NOT)
        return parse_not(p);
    if (level == LEVEL_CONCAT)
        return parse_concat(p);
    if (level == LEVEL_UNARY)
        return parse_unary(p, true);
    if (level == LEVEL_OR || level == LEVEL_AND) {
        const char *word = level == LEVEL_OR ? "or" : "and";

        n = parse_binary(p, level + 1);
        while (at_name(p, word)) {
            uint32_t pos = p->cur.pos;

            advance(p);
            n = two(p, level == LEVEL_OR ? N_OR : N_AND, OP_ADD, pos, n, parse_binary(p, level + 1));
        }
        return n;
    }
    n = parse_binary(p, level + 1);
    while (arithmetic(p->cur.t, level, &op)) {
        uint32_t pos = p->cur.pos;

        advance(p);
        n = two(p, N_BINARY, op, pos, n, parse_binary(p, level + 1));
    }
    return n;
}

static struct node *parse_expression(struct parser *p)
{
    struct node *n, *c;

    enter(p->r);
    n = parse_binary(p, LEVEL_OR);
    while (at_name(p, "if")) {
        c = node(p, N_COND, p->cur.pos);
        advance(p);
        c->x.b = n;
        c->x.a = parse_binary(p, LEVEL_OR);
        if (skip_name(p, "else"))
            c->x.c = parse_expression(p);
        above(p, c, c->x.a);
        above(p, c, c->x.b);
        above(p, c, c->x.c);
        n = c;
    }
    leave(p->r);
    return n;
}

static bool tuple_ends(const struct parser *p, const char *end_name)
{
    return p->cur.t == T_VAR_END || p->cur.t == T_BLOCK_END || p->cur.t == T_RPAREN || (end_name && at_name(p, end_name));
}

static struct node *parse_tuple(struct parser *p, bool with_cond, const char *end_name, bool parentheses)
{
    uint32_t pos = p->cur.pos;
    struct nodes l = { 0 };
    bool tuple = false;
    char got[96];

    for (;;) {
        if (l.n > 0)
            expect(p, T_COMMA);
        if (tuple_ends(p, end_name))
            break;
        push(p, &l, with_cond ? parse_expression(p) : parse_binary(p, LEVEL_OR));
        if (p->cur.t != T_COMMA)
            break;
        tuple = true;
    }
    if (!tuple && l.n > 0)
        return l.items[0];
    if (!tuple && !parentheses) {
        describe(p, &p->cur, got);
        syntax_error(p->r, p->cur.pos, "Expected an expression, got '%s'", got);
    }
    return items_node(p, N_TUPLE, pos, &l);
}

/* Statements */

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
            expect(p, T_COMMA);
        if (tuple_ends(p, end_name))
            break;
        push(p, &l, target_item(p, with_namespace));
        if (p->cur.t != T_COMMA)
            break;
        tuple = true;
    }
    leave(p->r);
    if (!tuple && l.n > 0)
        return l.items[0];
    if (!tuple && !parentheses) {
        describe(p, &p->cur, got);
        syntax_error(p->r, p->cur.pos, "Expected an expression, got '%s'", got);
    }
    n = node(p, N_TUPLE, pos);
    n->items.items = l.items;
    n->items.n = l.n;
    for (uint32_t i = 0; i < l.n; i++)
        above(p, n, l.items[i]);
    return n;
}

static struct node *target_item(struct parser *p, bool with_namespace)
{
    struct tok t = p->cur;
    struct node *n;

    if (t.t == T_NAME && with_namespace && p->next.t == T_DOT) {
        n = node(p, N_NSREF, t.pos);
        n->attr.of = name_node(p, &t, false);
        advance(p);
        advance(p);
        if (p->cur.t != T_NAME)
            unexpected(p, "name");
        n->attr.name = name_text(p, &p->cur);
        advance(p);
        return n;
    }
    if (t.t == T_LPAREN) {
        advance(p);
        n = parse_target(p, NULL, with_namespace, true);
        expect(p, T_RPAREN);
        return n;
    }
    n = t.t == T_NAME ? NULL : parse_primary(p);
    if (n || at_name(p, "true") || at_name(p, "false") || at_name(p, "none") || at_name(p, "True") || at_name(p, "False") || at_name(p, "None"))
        syntax_error(p->r, t.pos, "can't assign to '%s'",
                     !n || n->kind == N_CONST ? (n && n->value.t == V_LIST ? "list" : "const") : n->kind == N_LIST ? "list" : "dict");
    n = name_node(p, &t, true);
    advance(p);
    return n;
}

static struct node *name_target(struct parser *p)
{
    struct tok t = p->cur;

    expect(p, T_NAME);
    return name_node(p, &t, true);
}

static struct list parse_body(struct parser *p, const char *const *ends, const char *tag);

static const char *const end_if[] = { "elif", "else", "endif", NULL }, *const end_if_else[] = { "endif", NULL },
    *const end_for[] = { "endfor", "else", NULL }, *const end_for_else[] = { "endfor", NULL }, *const end_set[] = { "endset", NULL },
    *const end_with[] = { "endwith", NULL }, *const end_macro[] = { "endmacro", NULL }, *const end_call[] = { "endcall", NULL },
    *const end_filter[] = { "endfilter", NULL }, *const end_block[] = { "endblock", NULL },
    *const end_generation[] = { "endgeneration", NULL };

static struct node *parse_if(struct parser *p, uint32_t pos)
{
    struct node *n = node(p, N_IF, pos);
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
    } while (skip_name(p, "elif"));
    n->if_.branches = branches;
    if (skip_name(p, "else"))
        n->if_.else_ = parse_body(p, end_if_else, "if");
    advance(p);
    return n;
}

static struct node *parse_for(struct parser *p, uint32_t pos)
{
    struct node *n = node(p, N_FOR, pos);

    n->for_.target = parse_target(p, "in", false, false);
    if (!skip_name(p, "in"))
        unexpected(p, "in");
    n->for_.iter = parse_tuple(p, false, "recursive", false);
    p->loops[p->n_loops++].uses_loop = &n->for_.uses_loop;
    if (skip_name(p, "if"))
        n->for_.test = parse_expression(p);
    n->for_.recursive = skip_name(p, "recursive");
    p->in_loop++;
    n->for_.body = parse_body(p, end_for, "for");
    p->in_loop--;
    p->n_loops--;
    if (skip_name(p, "else"))
        n->for_.else_ = parse_body(p, end_for_else, "for");
    advance(p);
    if (n->for_.recursive)
        n->for_.uses_loop = true;
    return n;
}

static struct node *parse_set(struct parser *p, uint32_t pos)
{
    struct node *target = parse_target(p, NULL, true, false), *n;

    if (skip(p, T_ASSIGN)) {
        n = node(p, N_SET, pos);
        n->set.target = target;
        n->set.value = parse_tuple(p, true, NULL, false);
        return n;
    }
    n = node(p, N_SETBLOCK, pos);
    n->block.target = target;
    n->block.filter = parse_filter(p, NULL, false);
    n->block.body = parse_body(p, end_set, "set");
    advance(p);
    return n;
}

static struct node *parse_with(struct parser *p, uint32_t pos)
{
    struct node *n = node(p, N_WITH, pos);
    struct nodes targets = { 0 }, values = { 0 };

    while (p->cur.t != T_BLOCK_END) {
        if (targets.n > 0)
            expect(p, T_COMMA);
        push(p, &targets, parse_target(p, NULL, false, false));
        expect(p, T_ASSIGN);
        push(p, &values, parse_expression(p));
    }
    n->with.targets = targets.items;
    n->with.values = values.items;
    n->with.n = targets.n;
    n->with.body = parse_body(p, end_with, "with");
    advance(p);
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

    expect(p, T_LPAREN);
    while (p->cur.t != T_RPAREN) {
        if (d->n_params > 0)
            expect(p, T_COMMA);
        if (d->n_params == cap) {
            struct param *more = mem_array(p->r, cap ? cap * 2 : 4, sizeof *more);

            if (cap)
                memcpy(more, d->params, cap * sizeof *more);
            d->params = more;
            cap = cap ? cap * 2 : 4;
        }
        d->params[d->n_params] = (struct param){ .name = name_target(p) };
        d->params[d->n_params].hint = param_hint(p, d->params[d->n_params].name->name.name);
        if (skip(p, T_ASSIGN)) {
            d->params[d->n_params].def = parse_expression(p);
            defaults = true;
        } else if (defaults) {
            syntax_error(p->r, p->cur.pos, "non-default argument follows default argument");
        }
        d->n_params++;
    }
    expect(p, T_RPAREN);
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
    advance(p);
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
    struct node *n = node(p, N_MACRO, pos);

    n->macro.def = macro_def(p);
    n->macro.target = name_target(p);
    n->macro.def->name = n->macro.target->name.name;
    parse_signature(p, n->macro.def);
    macro_body(p, n->macro.def, end_macro, "macro");
    return n;
}

static struct node *parse_call_block(struct parser *p, uint32_t pos)
{
    struct node *n = node(p, N_CALLBLOCK, pos);

    n->callblock.def = macro_def(p);
    if (p->cur.t == T_LPAREN)
        parse_signature(p, n->callblock.def);
    n->callblock.call = parse_expression(p);
    if (n->callblock.call->kind != N_CALL)
        syntax_error(p->r, n->callblock.call->pos, "expected call");
    macro_body(p, n->callblock.def, end_call, "call");
    return n;
}

static struct node *parse_generation(struct parser *p, uint32_t pos)
{
    struct node *n = node(p, N_GENERATION, pos);

    n->callblock.def = macro_def(p);
    macro_body(p, n->callblock.def, end_generation, "generation");
    return n;
}

static struct node *parse_filter_block(struct parser *p, uint32_t pos)
{
    struct node *n = node(p, N_FILTERBLOCK, pos);

    n->block.filter = parse_filter(p, NULL, true);
    n->block.body = parse_body(p, end_filter, "filter");
    advance(p);
    return n;
}

static struct node *parse_print(struct parser *p, uint32_t pos)
{
    struct node *n = node(p, N_OUTPUT, pos);
    struct nodes l = { 0 };

    while (p->cur.t != T_BLOCK_END) {
        if (l.n > 0)
            expect(p, T_COMMA);
        push(p, &l, parse_expression(p));
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
    struct node *n = node(p, N_BLOCK, pos);
    uint32_t in_loop = p->in_loop;
    struct str *name;
    struct tok t = p->cur;

    expect(p, T_NAME);
    name = name_text(p, &t);
    if (dict_get_str(p->blocks, name))
        assertion_error(p, t.pos, "block '%.*s' defined twice", (int)name->len, name->text);
    dict_set(p->r, p->blocks, v_str(name), v_none());
    n->named_block.scoped = skip_name(p, "scoped");
    skip_name(p, "required");
    n->named_block.name = name;
    p->in_loop = 0;
    n->named_block.body = parse_body(p, end_block, "block");
    p->in_loop = in_loop;
    advance(p);
    if (p->cur.t == T_NAME && p->cur.len == name->len && memcmp(p->lex.s + p->cur.pos, name->text, name->len) == 0)
        advance(p);
    return n;
}

static void parse_context_words(struct parser *p)
{
    if ((at_name(p, "with") || at_name(p, "without")) && is_name(&p->next, p, "context")) {
        advance(p);
        advance(p);
    }
}

/* extends, include, import and from: there is nothing to load from, so they fail when they are reached. */
static struct node *parse_noloader(struct parser *p, uint32_t pos, const char *tag)
{
    struct node *n = node(p, N_NOLOADER, pos);
    struct nodes stores = { 0 };

    n->noloader.value = parse_expression(p);
    if (strcmp(tag, "include") == 0) {
        if (at_name(p, "ignore") && is_name(&p->next, p, "missing")) {
            advance(p);
            advance(p);
        }
        parse_context_words(p);
    } else if (strcmp(tag, "import") == 0) {
        if (!skip_name(p, "as"))
            unexpected(p, "as");
        push(p, &stores, name_target(p));
        parse_context_words(p);
    } else if (strcmp(tag, "from") == 0) {
        if (!skip_name(p, "import"))
            unexpected(p, "import");
        if (p->cur.t == T_BLOCK_END)
            unexpected(p, "name");
        while (p->cur.t != T_BLOCK_END && !at_name(p, "with") && !at_name(p, "without")) {
            struct tok t = p->cur;

            if (stores.n > 0) {
                expect(p, T_COMMA);
                t = p->cur;
                if (p->cur.t == T_BLOCK_END)
                    break;
            }
            expect(p, T_NAME);
            push(p, &stores, skip_name(p, "as") ? name_target(p) : name_node(p, &t, true));
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
    return node(p, leaves ? N_BREAK : N_CONTINUE, pos);
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
                of_outer |= at_name(p, p->ends[i][k]);
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
        if (skip_name(p, tags[i].name))
            return tags[i].parse(p, pos);
    if (skip_name(p, "break"))
        return parse_loop_control(p, pos, true);
    if (skip_name(p, "continue"))
        return parse_loop_control(p, pos, false);
    if (skip_name(p, "extends"))
        return parse_noloader(p, pos, "extends");
    if (skip_name(p, "include"))
        return parse_noloader(p, pos, "include");
    if (skip_name(p, "import"))
        return parse_noloader(p, pos, "import");
    if (skip_name(p, "from"))
        return parse_noloader(p, pos, "from");
    if (at_name(p, "autoescape"))
        syntax_error(p->r, pos, "the tag 'autoescape' is not supported");
    unknown_tag(p);
}

static bool at_end_tag(const struct parser *p)
{
    if (p->n_ends == 0)
        return false;
    for (const char *const *e = p->ends[p->n_ends - 1]; *e; e++)
        if (at_name(p, *e))
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
            n = node(p, N_DATA, pos);
            n->data = constant(p->cur.v.s);
            push(p, &l, n);
            advance(p);
            break;
        case T_VAR_BEGIN:
            advance(p);
            n = node(p, N_OUTPUT, pos);
            n->items.items = mem(p->r, sizeof(struct node *));
            n->items.items[0] = parse_tuple(p, true, NULL, false);
            n->items.n = 1;
            push(p, &l, n);
            expect(p, T_VAR_END);
            break;
        case T_BLOCK_BEGIN:
            advance(p);
            if (at_end_tag(p))
                return (struct list){ l.items, l.n };
            push(p, &l, parse_statement(p));
            expect(p, T_BLOCK_END);
            break;
        case T_EOF:
            return (struct list){ l.items, l.n };
        default:
            unexpected(p, NULL);
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
    skip(p, T_COLON);
    expect(p, T_BLOCK_END);
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
    advance(p);
    advance(p);
    t->body = parse_statements(p);
    t->has_blocks = p->blocks->n > 0;
}
