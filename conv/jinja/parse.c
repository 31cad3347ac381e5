/* Tokens to a tree, with jinja2's grammar; its traps are in the order of the functions below: `~` binds tighter
 * than + and looser than *, ** goes left, a unary minus binds tighter than ** and looser than what is
 * written behind its operand, a filter behind it takes the negated value.
 */
#include "conv/jinja/parse.h"

#include <errno.h>
#include <stdio.h>

void nodes_push(struct parser *p, struct nodes *l, struct node *n)
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

void parse_advance(struct parser *p)
{
    p->cur = p->next;
    p->next = lex_next(&p->lex);
}

bool parse_token_is(const struct tok *t, const struct parser *p, const char *name)
{
    return t->t == T_NAME && t->len == strlen(name) && memcmp(p->lex.s + t->pos, name, t->len) == 0;
}
bool parse_at(const struct parser *p, const char *name) { return parse_token_is(&p->cur, p, name); }

bool parse_skip_name(struct parser *p, const char *name)
{
    if (!parse_at(p, name))
        return false;
    parse_advance(p);
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
void parse_describe(const struct parser *p, const struct tok *t, char out[96])
{
    if (t->t == T_NAME)
        snprintf(out, 96, "%.*s", (int)(t->len < 90 ? t->len : 90), p->lex.s + t->pos);
    else
        snprintf(out, 96, "%s", token_names[t->t]);
}

_Noreturn void parse_unexpected(struct parser *p, const char *wanted)
{
    char got[96];

    parse_describe(p, &p->cur, got);
    if (p->cur.t == T_EOF && wanted)
        syntax_error(p->r, p->cur.pos, "unexpected end of template, expected '%s'.", wanted);
    if (!wanted)
        syntax_error(p->r, p->cur.pos, "unexpected '%s'", got);
    syntax_error(p->r, p->cur.pos, "expected token '%s', got '%s'", wanted, got);
}

void parse_expect(struct parser *p, enum token t)
{
    if (p->cur.t != t)
        parse_unexpected(p, token_names[t]);
    parse_advance(p);
}

bool parse_skip(struct parser *p, enum token t)
{
    if (p->cur.t != t)
        return false;
    parse_advance(p);
    return true;
}

struct node *node_new(struct parser *p, enum kind kind, uint32_t pos)
{
    struct node *n = mem(p->r, sizeof *n);

    memset(n, 0, sizeof *n);
    n->kind = (uint8_t)kind;
    n->pos = pos;
    n->height = 1;
    return n;
}

/* The height of a node above a child: what the evaluator will nest. */
void node_above(struct parser *p, struct node *n, const struct node *child)
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
struct str *text_constant(struct str *s)
{
    str_chars(s);
    str_hash(s);
    return s;
}

struct str *node_text(struct parser *p, const struct tok *t)
{
    return text_constant(str_view(p->r, p->lex.s + t->pos, t->len, true));
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

struct node *node_name(struct parser *p, const struct tok *t, bool store)
{
    struct node *n = node_new(p, N_NAME, t->pos);
    struct undef *u = mem(p->r, sizeof *u);

    n->name.name = node_text(p, t);
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
    struct node *n = node_new(p, N_CONST, pos);

    n->value = v;
    return n;
}

static struct node *parse_level(struct parser *p, int level);
static struct node *parse_unary(struct parser *p, bool with_filter);

/* Calls */

static void parse_args(struct parser *p, struct call_args *a, struct node *n)
{
    struct nodes pos = { 0 };
    struct keyword *named = NULL;
    uint32_t cap = 0;
    bool comma = false;

    parse_expect(p, T_LPAREN);
    while (p->cur.t != T_RPAREN) {
        struct tok t = p->cur;

        if (comma) {
            parse_expect(p, T_COMMA);
            if (p->cur.t == T_RPAREN)
                break;
            t = p->cur;
        }
        if (t.t == T_MUL || t.t == T_POW) {
            struct node **to = t.t == T_MUL ? &a->star : &a->star_star;

            if (a->star_star || (t.t == T_MUL && a->star))
                syntax_error(p->r, t.pos, "invalid syntax for function call expression");
            parse_advance(p);
            *to = parse_expr(p);
            node_above(p, n, *to);
        } else if (t.t == T_NAME && p->next.t == T_ASSIGN) {
            if (a->star_star)
                syntax_error(p->r, t.pos, "invalid syntax for function call expression");
            parse_advance(p);
            parse_advance(p);
            if (a->n_named == cap) {
                struct keyword *more = mem_array(p->r, cap ? cap * 2 : 4, sizeof *more);

                if (cap)
                    memcpy(more, named, cap * sizeof *more);
                named = more;
                cap = cap ? cap * 2 : 4;
            }
            named[a->n_named] = (struct keyword){ node_text(p, &t), parse_expr(p) };
            node_above(p, n, named[a->n_named++].value);
        } else {
            if (a->star || a->star_star || a->n_named)
                syntax_error(p->r, t.pos, "invalid syntax for function call expression");
            nodes_push(p, &pos, parse_expr(p));
            node_above(p, n, pos.items[pos.n - 1]);
        }
        comma = true;
    }
    parse_expect(p, T_RPAREN);
    a->pos = pos.items;
    a->n = pos.n;
    a->named = named;
}

static struct node *parse_call(struct parser *p, struct node *f)
{
    struct node *n = node_new(p, N_CALL, p->cur.pos);

    n->call.f = f;
    node_above(p, n, f);
    parse_args(p, &n->call.args, n);
    return n;
}

static struct str *dotted_name(struct parser *p)
{
    struct tok first = p->cur;

    parse_expect(p, T_NAME);
    while (p->cur.t == T_DOT) {
        parse_advance(p);
        if (p->cur.t != T_NAME)
            parse_unexpected(p, "name");
        first.len = p->cur.pos + p->cur.len - first.pos;
        parse_advance(p);
    }
    return node_text(p, &first);
}

/* node NULL: the value is a captured block. inline_: the cursor is at the first filter's name. */
struct node *parse_filter(struct parser *p, struct node *of, bool inline_)
{
    while (inline_ || p->cur.t == T_PIPE) {
        struct node *n;

        if (!inline_)
            parse_advance(p);
        inline_ = false;
        n = node_new(p, N_FILTER, p->cur.pos);
        n->filter.of = of;
        node_above(p, n, of);
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
    struct node *n = node_new(p, N_TEST, p->cur.pos), *not_;
    bool negated;
    enum token t;

    parse_advance(p);
    negated = parse_skip_name(p, "not");
    n->test.of = of;
    node_above(p, n, of);
    n->pos = p->cur.pos;
    n->test.name = dotted_name(p);
    n->test.test = test_find(n->test.name->text, n->test.name->len);
    t = p->cur.t;
    if (t == T_LPAREN) {
        parse_args(p, &n->test.args, n);
    } else if ((t == T_NAME || t == T_STRING || t == T_INTEGER || t == T_FLOAT || t == T_LBRACKET || t == T_LBRACE) &&
               !parse_at(p, "else") && !parse_at(p, "or") && !parse_at(p, "and")) {
        if (parse_at(p, "is"))
            syntax_error(p->r, p->cur.pos, "You cannot chain multiple tests with is");
        n->test.args.pos = mem(p->r, sizeof(struct node *));
        n->test.args.n = 1;
        n->test.args.pos[0] = parse_postfix(p, parse_primary(p));
        node_above(p, n, n->test.args.pos[0]);
    }
    if (!negated)
        return n;
    not_ = node_new(p, N_NOT, n->pos);
    not_->x.a = n;
    node_above(p, not_, n);
    return not_;
}

/* One part between the brackets of x[…]. */
static struct node *parse_subscribed(struct parser *p)
{
    uint32_t pos = p->cur.pos;
    struct node *part[3] = { NULL, NULL, NULL }, *n;

    if (p->cur.t != T_COLON) {
        part[0] = parse_expr(p);
        if (p->cur.t != T_COLON)
            return part[0];
    }
    parse_advance(p);
    if (p->cur.t != T_COLON && p->cur.t != T_RBRACKET && p->cur.t != T_COMMA)
        part[1] = parse_expr(p);
    if (parse_skip(p, T_COLON) && p->cur.t != T_RBRACKET && p->cur.t != T_COMMA)
        part[2] = parse_expr(p);
    n = node_new(p, N_SLICE, pos);
    n->x.a = part[0];
    n->x.b = part[1];
    n->x.c = part[2];
    for (int i = 0; i < 3; i++)
        node_above(p, n, part[i]);
    return n;
}

static struct node *items_node(struct parser *p, enum kind kind, uint32_t pos, const struct nodes *l);

static struct node *parse_subscript(struct parser *p, struct node *of)
{
    struct tok t = p->cur;
    struct nodes parts = { 0 };
    struct node *n;

    parse_advance(p);
    if (t.t == T_DOT && p->cur.t == T_NAME) {
        n = node_new(p, N_ATTR, p->cur.pos);
        n->attr.of = of;
        n->attr.name = node_text(p, &p->cur);
        n->attr.method = method_id(n->attr.name->text, n->attr.name->len);
        node_above(p, n, of);
        parse_advance(p);
        return n;
    }
    n = node_new(p, N_ITEM, t.pos);
    n->x.a = of;
    node_above(p, n, of);
    if (t.t == T_DOT) {
        if (p->cur.t != T_INTEGER)
            syntax_error(p->r, p->cur.pos, "expected name or number");
        n->x.b = const_node(p, p->cur.pos, p->cur.v);
        parse_advance(p);
        return n;
    }
    while (p->cur.t != T_RBRACKET) {
        if (parts.n > 0)
            parse_expect(p, T_COMMA);
        nodes_push(p, &parts, parse_subscribed(p));
    }
    parse_expect(p, T_RBRACKET);
    n->x.b = parts.n == 1 ? parts.items[0] : items_node(p, N_TUPLE, t.pos, &parts);
    node_above(p, n, n->x.b);
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
        else if (parse_at(p, "is"))
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
    struct node *n = node_new(p, kind, pos);
    bool constants = true;

    n->items.items = l->items;
    n->items.n = l->n;
    for (uint32_t i = 0; i < l->n; i++) {
        constants &= l->items[i]->kind == N_CONST;
        node_above(p, n, l->items[i]);
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

    parse_expect(p, T_LBRACKET);
    while (p->cur.t != T_RBRACKET) {
        if (l.n > 0)
            parse_expect(p, T_COMMA);
        if (p->cur.t == T_RBRACKET)
            break;
        nodes_push(p, &l, parse_expr(p));
    }
    parse_expect(p, T_RBRACKET);
    return items_node(p, N_LIST, pos, &l);
}

static struct node *parse_dict(struct parser *p)
{
    uint32_t pos = p->cur.pos;
    struct nodes l = { 0 };

    parse_expect(p, T_LBRACE);
    while (p->cur.t != T_RBRACE) {
        if (l.n > 0)
            parse_expect(p, T_COMMA);
        if (p->cur.t == T_RBRACE)
            break;
        nodes_push(p, &l, parse_expr(p));
        parse_expect(p, T_COLON);
        nodes_push(p, &l, parse_expr(p));
    }
    parse_expect(p, T_RBRACE);
    return items_node(p, N_DICT, pos, &l);
}

static struct node *parse_string(struct parser *p)
{
    struct tok t = p->cur;
    struct mark m;

    parse_advance(p);
    if (p->cur.t == T_STRING) {
        m = out_mark(p->r);
        out_str(p->r, t.v.s);
        for (; p->cur.t == T_STRING; parse_advance(p))
            out_str(p->r, p->cur.v.s);
        t.v = out_take_val(p->r, m);
    }
    text_constant(t.v.s);
    return const_node(p, t.pos, t.v);
}

struct node *parse_primary(struct parser *p)
{
    struct tok t = p->cur;
    struct node *n;

    switch (t.t) {
    case T_NAME:
        if (parse_at(p, "true") || parse_at(p, "True") || parse_at(p, "false") || parse_at(p, "False"))
            n = const_node(p, t.pos, v_bool(parse_at(p, "true") || parse_at(p, "True")));
        else if (parse_at(p, "none") || parse_at(p, "None"))
            n = const_node(p, t.pos, v_none());
        else
            n = node_name(p, &t, false);
        parse_advance(p);
        return n;
    case T_STRING:
        return parse_string(p);
    case T_INTEGER:
    case T_FLOAT:
        parse_advance(p);
        return const_node(p, t.pos, t.v);
    case T_LPAREN:
        parse_advance(p);
        n = parse_tuple(p, true, NULL, true);
        parse_expect(p, T_RPAREN);
        return n;
    case T_LBRACKET:
        return parse_list(p);
    case T_LBRACE:
        return parse_dict(p);
    default:
        parse_unexpected(p, NULL);
    }
}

static struct node *parse_unary(struct parser *p, bool with_filter)
{
    struct tok t = p->cur;
    struct node *n;

    enter(p->r);
    if (t.t == T_SUB || t.t == T_ADD) {
        parse_advance(p);
        n = node_new(p, t.t == T_SUB ? N_NEG : N_POS, t.pos);
        n->x.a = parse_unary(p, false);
        node_above(p, n, n->x.a);
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
    struct node *n = node_new(p, kind, pos);

    n->op = (uint8_t)op;
    n->x.a = a;
    n->x.b = b;
    node_above(p, n, a);
    node_above(p, n, b);
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
        if (parse_at(p, "not") && parse_token_is(&p->next, p, "in")) {
            parse_advance(p);
            *ret = OP_NOT_IN;
            break;
        }
        if (!parse_at(p, "in"))
            return false;
        *ret = OP_IN;
    }
    parse_advance(p);
    return true;
}

static struct node *parse_compare(struct parser *p)
{
    struct node *first = parse_level(p, LEVEL_SUM), *n;
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
        parts[count++] = (struct compare_part){ op, parse_level(p, LEVEL_SUM) };
    }
    if (!count)
        return first;
    n = node_new(p, N_COMPARE, pos);
    n->compare.first = first;
    n->compare.parts = parts;
    n->compare.n = count;
    node_above(p, n, first);
    for (uint32_t i = 0; i < count; i++)
        node_above(p, n, parts[i].value);
    return n;
}

static struct node *parse_concat(struct parser *p)
{
    struct node *n = parse_level(p, LEVEL_PRODUCT), *joined;
    struct nodes l = { 0 };
    uint32_t pos = p->cur.pos;

    if (p->cur.t != T_TILDE)
        return n;
    nodes_push(p, &l, n);
    while (parse_skip(p, T_TILDE))
        nodes_push(p, &l, parse_level(p, LEVEL_PRODUCT));
    joined = node_new(p, N_CONCAT, pos);
    joined->items.items = l.items;
    joined->items.n = l.n;
    for (uint32_t i = 0; i < l.n; i++)
        node_above(p, joined, l.items[i]);
    return joined;
}

static struct node *parse_not(struct parser *p)
{
    struct node *n;

    if (!parse_at(p, "not"))
        return parse_compare(p);
    enter(p->r);
    n = node_new(p, N_NOT, p->cur.pos);
    parse_advance(p);
    n->x.a = parse_not(p);
    node_above(p, n, n->x.a);
    leave(p->r);
    return n;
}

static struct node *parse_level(struct parser *p, int level)
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

        n = parse_level(p, level + 1);
        while (parse_at(p, word)) {
            uint32_t pos = p->cur.pos;

            parse_advance(p);
            n = two(p, level == LEVEL_OR ? N_OR : N_AND, OP_ADD, pos, n, parse_level(p, level + 1));
        }
        return n;
    }
    n = parse_level(p, level + 1);
    while (arithmetic(p->cur.t, level, &op)) {
        uint32_t pos = p->cur.pos;

        parse_advance(p);
        n = two(p, N_BINARY, op, pos, n, parse_level(p, level + 1));
    }
    return n;
}

struct node *parse_expr(struct parser *p)
{
    struct node *n, *c;

    enter(p->r);
    n = parse_level(p, LEVEL_OR);
    while (parse_at(p, "if")) {
        c = node_new(p, N_COND, p->cur.pos);
        parse_advance(p);
        c->x.b = n;
        c->x.a = parse_level(p, LEVEL_OR);
        if (parse_skip_name(p, "else"))
            c->x.c = parse_expr(p);
        node_above(p, c, c->x.a);
        node_above(p, c, c->x.b);
        node_above(p, c, c->x.c);
        n = c;
    }
    leave(p->r);
    return n;
}

bool parse_tuple_ends(const struct parser *p, const char *end_name)
{
    return p->cur.t == T_VAR_END || p->cur.t == T_BLOCK_END || p->cur.t == T_RPAREN || (end_name && parse_at(p, end_name));
}

struct node *parse_tuple(struct parser *p, bool with_cond, const char *end_name, bool parentheses)
{
    uint32_t pos = p->cur.pos;
    struct nodes l = { 0 };
    bool tuple = false;
    char got[96];

    for (;;) {
        if (l.n > 0)
            parse_expect(p, T_COMMA);
        if (parse_tuple_ends(p, end_name))
            break;
        nodes_push(p, &l, with_cond ? parse_expr(p) : parse_level(p, LEVEL_OR));
        if (p->cur.t != T_COMMA)
            break;
        tuple = true;
    }
    if (!tuple && l.n > 0)
        return l.items[0];
    if (!tuple && !parentheses) {
        parse_describe(p, &p->cur, got);
        syntax_error(p->r, p->cur.pos, "Expected an expression, got '%s'", got);
    }
    return items_node(p, N_TUPLE, pos, &l);
}
