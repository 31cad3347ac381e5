/* value.h - Python's values as far as a template meets them, and the run that owns them.
 *
 * A value is 16 bytes; what it points to lies in a pool and is never freed alone: the pool of the
 * template (constants), of the variables, or of the render. Values do not change once made, but
 * for namespaces, loops and what is consumed by reading (generators).
 *
 * What fails raises: a jump to the entry of compile or render, which gives back the pool as a whole. Python's
 * semantics have an exception behind nearly every operation; nothing between a raise and the entry
 * owns anything, so there is nothing to unwind.
 *
 * Strings are UTF-8 that may hold lone surrogates (a template may write '\ud83e'); they are replaced
 * when the output leaves. Each knows which of its bytes are trusted.
 */
#ifndef CONV_JINJA_VALUE_H
#define CONV_JINJA_VALUE_H

#include "conv/jinja/jinja.h"
#include "conv/jinja/pool.h"

#include <setjmp.h>
#include <string.h>

enum vtype {
    V_MISSING,                      /* no value: an argument that was not given, a variable that is not set */
    V_UNDEF, V_NONE, V_BOOL, V_INT, V_BIG, V_FLOAT, V_STR, V_BYTES, V_LIST, V_TUPLE, V_DICT, V_VIEW, V_RANGE, V_GEN,
    V_SLICE, V_NAMESPACE, V_MACRO, V_METHOD, V_FUNC, V_LOOP, V_CYCLER, V_JOINER, V_SELF,
};

struct val {
    uint32_t t;                     /* enum vtype */
    uint32_t aux;                   /* of a method: which; of a view: its kind; of a function: which */
    union {
        int64_t i;
        double f;
        bool b;
        struct str *s;
        struct seq *seq;            /* list, tuple */
        struct dict *d;             /* dict, namespace, the dict of a view */
        struct undef *u;
        struct big *big;
        struct range *range;
        struct gen *gen;
        struct macro *macro;
        struct loop *loop;
        struct val *p;              /* of a method: its object; of a slice: [3] */
        struct cycler *cycler;
        struct joiner *joiner;
    };
};

struct run { uint32_t end; bool trusted; };        /* bytes up to `end` */

enum { PROV_OUTSIDE, PROV_TRUSTED, PROV_MIXED };
enum { CHARS_UNKNOWN = UINT32_MAX };

struct str {
    const char *text;               /* NUL behind it is not promised */
    uint32_t len;
    uint32_t chars;                 /* code points; == len: ASCII */
    uint32_t hash;                  /* 0: not computed */
    uint8_t prov;
    bool markup;                    /* Markup: `+` and methods escape what they meet */
    uint32_t n_runs;                /* of a mixed one */
    struct run *runs;
};

struct seq { uint32_t n; bool group; struct val *items; };         /* group: of groupby, with .grouper and .list */

struct entry { struct val key, value; uint32_t hash; };
struct dict { uint32_t n, cap, n_index; struct entry *e; uint32_t *index; };

enum { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS };
struct range { int64_t start, stop, step, n; };
struct cycler { struct seq *items; uint32_t at; };
struct joiner { struct str *sep; bool used; };

/* Why a value is undefined: what it raises when it is used. */
enum undef_kind { UNDEF_NAME, UNDEF_ATTRIBUTE, UNDEF_HINT, UNDEF_UNSAFE };
struct undef { enum undef_kind kind; struct val object, name; const char *hint; };

struct iter { struct val v; int64_t i; };
struct rt;
/* A lazy sequence: next says whether there was one more. */
struct gen {
    bool (*next)(struct rt *r, struct gen *g, struct val *ret);
    struct iter src;
    const char *type;               /* "generator" */
    const void *p, *q;
    struct val a, b, c;
    bool flag, done;
};

struct macro;
struct node;
struct activation;

struct args {
    struct val *pos; uint32_t n;
    struct str **names; struct val *named; uint32_t n_named;
};

struct out {
    char *text; size_t len, cap;
    struct run *runs; size_t n_runs, cap_runs;
};
struct mark { size_t len, n_runs; };

/* One compilation or one render. */
struct rt {
    struct pool *pool;
    struct jinja_limits limits;
    uint64_t steps;                 /* that are left */
    uint32_t depth, depth_max, calls;
    jmp_buf jump;
    int code;
    char type[32], message[512];
    const struct node *at;          /* what is evaluated: the place of an error */
    uint32_t pos; bool has_pos;     /* the place, once something failed (while compiling) */

    struct out out;
    bool literal;                   /* whether what the interpreter writes itself (brackets, digits) is trusted */
    uint32_t containers;            /* lists and dicts that are being written */
    uint32_t n_marks;               /* captures that are open */
    size_t root_len;                /* output before the outermost of them */
    bool root_written;

    const struct jinja *t;
    struct val *names;              /* [n_names] the context: variables, globals, what the top level has set */
    struct tm now;
    size_t (*generation)[2];        /* byte offset of the start, code points */
    size_t n_generation, cap_generation;
};

/* rt.c: failing, memory, output */
_Noreturn void raise_error(struct rt *r, const char *type, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
_Noreturn void raise_limit(struct rt *r, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
_Noreturn void raise_undefined(struct rt *r, struct val v);
void *mem_slow(struct rt *r, size_t size);
static inline void *mem(struct rt *r, size_t size)     /* not zeroed */
{
    void *p = pool_alloc(r->pool, size);

    return __builtin_expect(p != NULL, 1) ? p : mem_slow(r, size);
}
void *mem_array(struct rt *r, size_t n, size_t size);
void steps_over(struct rt *r);
static inline void step(struct rt *r, uint64_t n)
{
    if (__builtin_expect(r->steps < n, 0))
        steps_over(r);
    r->steps -= n;
}
void depth_over(struct rt *r);
static inline void enter(struct rt *r)
{
    if (__builtin_expect(++r->depth > r->depth_max, 0))
        depth_over(r);
}
static inline void leave(struct rt *r) { r->depth--; }

struct mark out_mark(struct rt *r);
struct str *out_take(struct rt *r, struct mark m);
static inline struct val out_take_val(struct rt *r, struct mark m);
void out_add(struct rt *r, const char *text, size_t len, bool trusted);
static inline void out_adds(struct rt *r, const char *text) { out_add(r, text, strlen(text), r->literal); }
void out_char(struct rt *r, uint32_t c, bool trusted);
void out_sub(struct rt *r, const struct str *s, size_t from, size_t to);       /* bytes of a string, as they are trusted */
static inline void out_str(struct rt *r, const struct str *s);
void out_printf(struct rt *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Begins and ends a list or dict: what is written around its items is trusted when all of them are. */
bool container_open(struct rt *r, struct val v);
void container_close(struct rt *r, bool literal);

struct str *str_new(struct rt *r, const char *text, size_t len, bool trusted);         /* copies */
struct str *str_view(struct rt *r, const char *text, size_t len, bool trusted);        /* does not */
struct str *str_sub(struct rt *r, struct str *s, size_t from, size_t to);              /* bytes; shares the text */
struct str *str_plain(struct rt *r, struct str *s);    /* the same without Markup */
struct str *str_markup(struct rt *r, struct str *s);
uint32_t str_chars(struct str *s);
uint32_t str_hash(struct str *s);
bool str_trusted_at(const struct str *s, size_t byte);
size_t str_offset(struct str *s, size_t chars);        /* byte offset of a code point's index, at most len */
static inline bool str_is(const struct str *s, const char *text)
{
    size_t n = strlen(text);

    return s->len == n && memcmp(s->text, text, n) == 0;
}
static inline bool str_equal(const struct str *a, const struct str *b)
{
    return a == b || (a->len == b->len && memcmp(a->text, b->text, a->len) == 0);
}
uint32_t utf8_next(const char *text, size_t len, size_t *at);  /* of text known to be good; moves *at */
uint32_t utf8_before(const char *text, size_t *at);
size_t utf8_count(const char *text, size_t len);
int wtf8_encode(uint32_t c, char out[4]);                      /* surrogates too */

/* Constructors */
static inline struct val v_none(void) { return (struct val){ .t = V_NONE }; }
static inline struct val v_missing(void) { return (struct val){ .t = V_MISSING }; }
static inline struct val v_bool(bool b) { return (struct val){ .t = V_BOOL, .i = b }; }
static inline struct val v_int(int64_t i) { return (struct val){ .t = V_INT, .i = i }; }
static inline struct val v_float(double f) { return (struct val){ .t = V_FLOAT, .f = f }; }
static inline struct val v_str(struct str *s) { return (struct val){ .t = V_STR, .s = s }; }
static inline struct val v_text(struct rt *r, const char *s) { return v_str(str_view(r, s, strlen(s), true)); }
static inline struct val out_take_val(struct rt *r, struct mark m) { return v_str(out_take(r, m)); }
static inline void out_str(struct rt *r, const struct str *s) { out_sub(r, s, 0, s->len); }
struct val v_hint(struct rt *r, const char *hint);             /* undefined, for a reason (not copied) */
struct val v_undef_attr(struct rt *r, struct val object, struct val name);
struct val v_seq(struct rt *r, enum vtype t, uint32_t n);      /* items not set */
struct val v_gen(struct rt *r, bool (*next)(struct rt *, struct gen *, struct val *), struct val src);
struct val v_pair(struct rt *r, struct val a, struct val b);

/* A list that grows while it is made. */
struct grow { struct val *items; uint32_t n, cap; };
void grow_add(struct rt *r, struct grow *g, struct val v);
struct val grow_take(struct rt *r, struct grow *g, enum vtype t);

/* value.c */
bool val_truth(struct rt *r, struct val v);
const char *val_type(struct val v);                           /* Python's: "str", "NoneType" */
const char *val_long_type(struct val v);                      /* as an undefined attribute names it: "dict object" */
bool val_is_number(struct val v);                                  /* int, float, bool */
bool val_is_int(struct val v);                                     /* int, bool */
bool val_equal(struct rt *r, struct val a, struct val b);
int val_compare(struct rt *r, struct val a, struct val b, const char *op);         /* <0, 0, >0, 2: unordered (NaN) */
bool val_contains(struct rt *r, struct val in, struct val item);
int64_t val_length(struct rt *r, struct val v);                    /* raises */
bool val_has_length(struct val v);
uint32_t val_hash(struct rt *r, struct val v);                     /* raises for what has none */
bool val_iterable(struct val v);
void iter_init(struct rt *r, struct iter *it, struct val v);   /* raises TypeError */
bool iter_next(struct rt *r, struct iter *it, struct val *ret);
struct val val_list(struct rt *r, struct val v);                /* a list of its items; of a list: itself */
double val_double(struct rt *r, struct val v);
int64_t val_int64(struct rt *r, struct val v, const char *what);        /* an int's value; TypeError, OverflowError */

struct dict *dict_new(struct rt *r, uint32_t cap);
struct val *dict_get(struct rt *r, const struct dict *d, struct val key);
struct val *dict_get_str(const struct dict *d, struct str *key);
void dict_set(struct rt *r, struct dict *d, struct val key, struct val v);
struct val range_item(const struct range *g, int64_t i);

/* big.c: integers beyond 64 bits */
struct val int_from_text(struct rt *r, const char *digits, size_t len, int base, bool negative);
struct val int_from_double(struct rt *r, double f);
struct val int_add(struct rt *r, struct val a, struct val b, bool subtract);
struct val int_mul(struct rt *r, struct val a, struct val b);
void int_divmod(struct rt *r, struct val a, struct val b, struct val *quot, struct val *rem);  /* floors; b is not 0 */
struct val int_pow(struct rt *r, struct val a, uint64_t n);
struct val int_neg(struct rt *r, struct val a);
int int_compare(struct val a, struct val b);
double int_double(struct val a);
uint32_t int_hash(struct val a);
void int_out(struct rt *r, struct val a);
bool int_negative(struct val a);

/* op.c */
enum op { OP_ADD, OP_SUB, OP_MUL, OP_DIV, OP_FLOORDIV, OP_MOD, OP_POW, OP_EQ, OP_NE, OP_LT, OP_LE, OP_GT, OP_GE, OP_IN, OP_NOT_IN };
struct val val_binary(struct rt *r, enum op op, struct val a, struct val b);
struct val val_negate(struct rt *r, struct val a, bool plus);
struct val val_slice(struct rt *r, struct val v, const struct val part[3]);
struct val val_attr(struct rt *r, struct val v, struct str *name);
struct val val_item(struct rt *r, struct val v, struct val key);
bool val_own_attribute(struct rt *r, struct val v, struct str *name, struct val *ret);     /* no item; false: there is none */

/* format.c */
void out_val(struct rt *r, struct val v);                      /* str(v) */
void out_repr(struct rt *r, struct val v);                     /* repr(v) */
void out_double(struct rt *r, double f);                       /* repr */
size_t format_double(double f, char buf[40]);
struct str *val_str(struct rt *r, struct val v);                /* str(v); Markup stays Markup */
struct str *val_repr(struct rt *r, struct val v);
struct val format_percent(struct rt *r, struct str *fmt, struct val arg);
struct val format_braces(struct rt *r, struct str *fmt, const struct args *a);
void out_escaped(struct rt *r, const struct str *s);           /* HTML */
struct str *val_escape(struct rt *r, struct val v);                /* markupsafe.escape */

/* json.c */
struct val json_read(struct rt *r, const char *text, size_t len);
struct json_style { bool ascii, sort_keys, indented; struct str *indent, *item_sep, *key_sep; };
void out_json(struct rt *r, struct val v, const struct json_style *style);

/* strftime.c */
void out_strftime(struct rt *r, const struct tm *tm, struct str *fmt);

/* methods.c: attributes of values and what can be called. attr_method: 0 or which method a name is of a type. */
int method_id(const char *name, size_t len);                   /* 0: of no type */
const char *method_name(int id);
bool method_of(int id, struct val v, bool *ret_unsafe);
struct val method_call(struct rt *r, int id, struct val self, const struct args *a);
bool val_other_attribute(struct rt *r, struct val v, struct str *name, struct val *ret);  /* neither a method nor an item */
struct val method_value(struct rt *r, int id, struct val self);
/* Arguments by position or name into ret[n]: names are "a b c"; the first `required` must be there. Absent: V_MISSING. */
void args_bind(struct rt *r, const char *function, const char *names, uint32_t required, const struct args *a, struct val *ret);

/* str.c: str's methods */
struct val str_method(struct rt *r, int id, struct str *s, const struct args *a);
struct val str_upper(struct rt *r, struct str *s);
struct val str_lower(struct rt *r, struct str *s);
struct val str_capitalize(struct rt *r, struct str *s);
struct val str_replace(struct rt *r, struct str *s, struct str *old, struct str *new_, int64_t count);
struct val str_strip(struct rt *r, struct str *s, struct str *chars, bool left, bool right);
struct val str_split_space(struct rt *r, struct str *s, int64_t max);
struct val str_join(struct rt *r, struct str *sep, struct val items);
bool str_is_space(uint32_t c);
int64_t str_find(struct rt *r, const struct str *s, const struct str *part, size_t from, size_t to);   /* byte, or -1 */

/* filters.c, filters_text.c, tests.c */
/* call gets its parameters bound (params: "a b"; absent ones are V_MISSING), call_args those that take any. */
struct filter {
    const char *name;
    struct val (*call)(struct rt *r, struct val v, const struct val *p);
    const char *params; uint32_t required;
    struct val (*call_args)(struct rt *r, struct val v, const struct args *a);
};
enum { MAX_PARAMS = 8 };
const struct filter *filter_find(const char *name, size_t len);
struct val filter_call(struct rt *r, const struct filter *f, struct val v, const struct args *a);
extern const struct filter text_filters[];                     /* ends with a row without a name */
struct test { const char *name; bool (*call)(struct rt *r, struct val v, const struct val *p); const char *params; uint32_t required; };
const struct test *test_find(const char *name, size_t len);
bool test_call(struct rt *r, const struct test *t, struct val v, const struct args *a);
struct val lower_key(struct rt *r, struct val v);              /* a string in lower case, anything else itself */
void sort_vals(struct rt *r, struct val *keys, struct val *items, uint32_t n, bool reverse);   /* stable, by keys */

/* globals.c */
struct val global_find(const char *name, size_t len);
struct val function_call(struct rt *r, struct val f, const struct args *a);
const char *function_name(struct val f);

/* eval.c */
struct val val_call(struct rt *r, struct val f, const struct args *a);
bool val_callable(struct val v);
struct loop;
bool loop_attribute(struct rt *r, struct loop *l, struct str *name, struct val *ret);
struct val loop_method(struct rt *r, int id, struct loop *l, const struct args *a);
bool macro_attribute(struct rt *r, struct macro *m, struct str *name, struct val *ret);
void out_object(struct rt *r, struct val v);                   /* repr of a macro, a loop */

#endif
