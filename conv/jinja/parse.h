/* parse.h - what reading expressions (parse.c) and statements (statements.c) share: the tokens in view and nodes in the making. */
#ifndef CONV_JINJA_PARSE_H
#define CONV_JINJA_PARSE_H

#include "conv/jinja/tree.h"

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

/* Tokens: the cursor is at p->cur, p->next is behind it. */
void parse_advance(struct parser *p);
bool parse_token_is(const struct tok *t, const struct parser *p, const char *name);
bool parse_at(const struct parser *p, const char *name);
bool parse_skip_name(struct parser *p, const char *name);
void parse_expect(struct parser *p, enum token t);
bool parse_skip(struct parser *p, enum token t);
_Noreturn void parse_unexpected(struct parser *p, const char *wanted);
void parse_describe(const struct parser *p, const struct tok *t, char out[96]);

/* Nodes. node_above counts what the evaluator will nest. */
struct node *node_new(struct parser *p, enum kind kind, uint32_t pos);
void nodes_push(struct parser *p, struct nodes *l, struct node *n);
void node_above(struct parser *p, struct node *n, const struct node *child);
struct str *text_constant(struct str *s);
struct str *node_text(struct parser *p, const struct tok *t);
struct node *node_name(struct parser *p, const struct tok *t, bool store);

/* Expressions, in order of the grammar. parentheses: an empty tuple is one; of NULL: the filters of a captured block. */
struct node *parse_expr(struct parser *p);
struct node *parse_tuple(struct parser *p, bool with_cond, const char *end_name, bool parentheses);
struct node *parse_filter(struct parser *p, struct node *of, bool inline_);
struct node *parse_primary(struct parser *p);
bool parse_tuple_ends(const struct parser *p, const char *end_name);

#endif
