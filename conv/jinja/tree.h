/* tree.h - a template as it was read: nodes in one pool, names bound to slots.
 *
 * Scopes are jinja2's (idtracking): a loop's body, a macro, a captured block each have their own
 * symbols, `if` has none. A symbol of a scope begins as a parameter, as what the context holds
 * under its name, as a copy of an outer symbol, or as nothing; bind.c decides which. Symbols live in slots of the
 * activation of the function they are in (the template itself, a macro, a call block, a recursive loop);
 * a reference is how many functions out, and the slot.
 */
#ifndef CONV_JINJA_TREE_H
#define CONV_JINJA_TREE_H

#include "conv/jinja/value.h"

enum kind {
    /* expressions */
    N_CONST, N_NAME, N_TUPLE, N_LIST, N_DICT, N_COND, N_AND, N_OR, N_NOT, N_NEG, N_POS, N_BINARY, N_COMPARE, N_CONCAT,
    N_ATTR, N_ITEM, N_SLICE, N_CALL, N_FILTER, N_TEST, N_NSREF,
    /* statements */
    N_DATA, N_OUTPUT, N_IF, N_FOR, N_SET, N_SETBLOCK, N_WITH, N_MACRO, N_CALLBLOCK, N_GENERATION, N_FILTERBLOCK, N_BLOCK,
    N_BREAK, N_CONTINUE, N_NOLOADER,
};

struct ref { uint32_t hops, slot; };

enum load { LOAD_PARAM, LOAD_CONTEXT, LOAD_OUTER, LOAD_NOTHING };
struct symbol {
    struct symbol *next;            /* of its scope, in order of definition */
    struct str *name;
    uint32_t name_id;
    enum load load;
    struct ref outer;               /* LOAD_OUTER */
    uint32_t slot;
    bool stored;                    /* while binding */
    uint32_t mark;
};
struct scope {
    struct scope *parent;
    struct function *function;
    struct symbol *first, **last;
    struct symbol **table; uint32_t n_table, n;       /* by name_id, while binding */
};
struct function {
    struct function *parent;
    uint32_t n_slots;
    bool captured;                  /* a function within may outlive a call: its activation stays */
};

struct list { struct node **items; uint32_t n; };

struct keyword { struct str *name; struct node *value; };
struct call_args {
    struct node **pos; uint32_t n;
    struct keyword *named; uint32_t n_named;
    struct node *star, *star_star;
};

struct param { struct node *name; struct node *def; const char *hint; };      /* def: NULL without a default; hint: what is said then */
struct macro_def {
    struct str *name;
    struct param *params; uint32_t n_params;
    struct list body;
    struct scope *scope;
    struct function *function;
    struct symbol *caller, *kwargs, *varargs;              /* those mentioned in the body */
    bool uses_caller, uses_kwargs, uses_varargs, explicit_caller;
    struct seq *param_names;
};

struct compare_part { enum op op; struct node *value; };
struct branch { struct node *test; struct list body; };

struct node {
    uint8_t kind, op;
    uint16_t height;                /* of the expression below, at least 1 */
    uint32_t pos;                   /* byte of the source */
    union {
        struct val value;                                                   /* CONST */
        struct { struct str *name; uint32_t name_id; struct ref ref; struct undef *undef; struct symbol *export_; bool store, in_loop; } name;
        struct { struct node **items; uint32_t n; bool constant; } items;   /* TUPLE, LIST, CONCAT, OUTPUT; DICT: key, value, … */
        struct { struct node *a, *b, *c; } x;                               /* COND test, yes, no; BINARY; AND; OR; NOT; ITEM; SLICE */
        struct { struct node *first; struct compare_part *parts; uint32_t n; } compare;
        struct { struct node *of; struct str *name; int method; } attr;
        struct { struct node *f; struct call_args args; } call;
        struct { struct node *of; struct str *name; const struct filter *filter; struct call_args args; } filter;
        struct { struct node *of; struct str *name; const struct test *test; struct call_args args; } test;
        struct str *data;
        struct { struct branch *branches; uint32_t n; struct list else_; } if_;
        struct {
            struct node *target, *iter, *test, *test_target;
            struct list body, else_;
            struct scope *scope, *test_scope, *else_scope;
            struct symbol *loop;                                            /* NULL: nobody asks for it */
            struct function *function;                                      /* recursive */
            bool recursive, uses_loop;
        } for_;
        struct { struct node *target, *value; } set;
        struct { struct node *target, *filter; struct list body; struct scope *scope; } block;     /* SETBLOCK, FILTERBLOCK */
        struct { struct node **targets, **values; uint32_t n; struct list body; struct scope *scope; } with;
        struct { struct node *target; struct macro_def *def; } macro;
        struct { struct node *call; struct macro_def *def; } callblock;      /* GENERATION: call is NULL */
        struct { struct str *name; struct list body; struct scope *scope; struct function *function; bool scoped; } named_block;
        struct { struct node **stores; uint32_t n; struct node *value; } noloader;
    };
};

struct name_entry { struct str *name; struct val global; bool read; };

struct jinja {
    struct pool pool;
    struct jinja_limits limits;
    char *name;
    const char *source; size_t source_len;          /* newlines made one kind */
    struct list body;
    struct scope *scope;
    struct function *root;
    struct name_entry *names; uint32_t n_names;     /* every name that the template reads or sets */
    bool has_blocks;
};

/* lex.c */
enum token {
    T_EOF, T_DATA, T_VAR_BEGIN, T_VAR_END, T_BLOCK_BEGIN, T_BLOCK_END, T_NAME, T_STRING, T_INTEGER, T_FLOAT,
    T_ADD, T_SUB, T_DIV, T_FLOORDIV, T_MUL, T_MOD, T_POW, T_TILDE, T_LBRACKET, T_RBRACKET, T_LPAREN, T_RPAREN, T_LBRACE, T_RBRACE,
    T_EQ, T_NE, T_GT, T_GE, T_LT, T_LE, T_ASSIGN, T_DOT, T_COLON, T_PIPE, T_COMMA, T_SEMICOLON,
};
struct tok { enum token t; uint32_t pos, len; struct val v; };     /* v: of a string, a number, data */
struct lexer {
    struct rt *r;
    const char *s; size_t len, at;
    enum { IN_TEXT, IN_BLOCK, IN_VAR } state;
    bool line_starting;
    char *brackets; uint32_t n_brackets, cap_brackets;
    struct tok pending; bool has_pending;           /* the tag after a piece of text */
};
void lex_init(struct lexer *x, struct rt *r, const char *s, size_t len);
struct tok lex_next(struct lexer *x);
_Noreturn void syntax_error(struct rt *r, uint32_t pos, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* parse.c: fills body and names of t */
void parse_template(struct rt *r, struct jinja *t);
/* bind.c: scopes, slots, and what can only be said then (an unknown filter that is surely reached) */
void bind_template(struct rt *r, struct jinja *t);

/* eval.c */
struct activation { struct activation *parent; struct val slots[]; };
struct macro { struct macro_def *def; struct activation *outer; };
void run_template(struct rt *r);

#endif
