/* The way in and out: compile, variables, render. */
#include "conv/jinja/tree.h"

#include "base/arena.h"
#include "base/err.h"
#include "base/utf8.h"

#include <errno.h>
#include <stdio.h>

const struct jinja_limits jinja_limits_default = {
    .template_bytes = 1 << 20, .depth = 200, .output_bytes = 64 << 20, .steps = 50000000, .memory_bytes = 512 << 20,
};

/* What is evaluated within one level of a block or call that counts as such: an expression's nodes. */
enum { NODES_PER_LEVEL = 4 };

static void rt_init(struct rt *r, struct pool *pool, const struct jinja_limits *limits)
{
    memset(r, 0, sizeof *r);
    r->pool = pool;
    r->limits = *limits;
    if (r->limits.output_bytes > INT32_MAX)
        r->limits.output_bytes = INT32_MAX;
    r->steps = limits->steps;
    r->depth_max = limits->depth;
    r->literal = true;
}

static void rt_fini(struct rt *r)
{
    free(r->out.text);
    free(r->out.runs);
}

/* Line and column (in characters), from 1. */
static void place(const char *source, size_t len, size_t pos, uint32_t *ret_line, uint32_t *ret_column)
{
    size_t start = 0;
    uint32_t line = 1;

    if (pos > len)
        pos = len;
    for (size_t i = 0; i < pos; i++) {
        if (source[i] == '\n') {
            line++;
            start = i + 1;
        }
    }
    *ret_line = line;
    *ret_column = (uint32_t)utf8_count(source + start, pos - start) + 1;
}

static int report(const struct rt *r, const struct jinja *t, enum jinja_phase phase, struct jinja_fault *fault, struct err *err)
{
    uint32_t line = 0, column = 0;

    if (r->has_pos)
        place(t->source, t->source_len, r->pos, &line, &column);
    if (fault) {
        *fault = (struct jinja_fault){ .phase = phase, .line = line, .column = column };
        snprintf(fault->type, sizeof fault->type, "%s", r->type);
        snprintf(fault->message, sizeof fault->message, "%s", r->message);
    }
    if (line)
        return err_set(err, r->code, "%s:%u:%u: %s", t->name, line, column, r->message);
    return err_set(err, r->code, "%s: %s", t->name, r->message);
}

/* Compile */

/* All kinds of line ends become \n, and the last one goes. */
static void set_source(struct rt *r, struct jinja *t, const char *text, size_t len)
{
    char *s = mem(r, len + 1);
    size_t n = 0;

    for (size_t i = 0; i < len; i++) {
        if (text[i] == '\r' && i + 1 < len && text[i + 1] == '\n')
            continue;
        s[n++] = text[i] == '\r' ? '\n' : text[i];
    }
    if (n > 0 && s[n - 1] == '\n')
        n--;
    s[n] = '\0';
    t->source = s;
    t->source_len = n;
}

static void compile(struct rt *r, struct jinja *t, const char *text, size_t len)
{
    size_t valid = utf8_valid_prefix(text, len);

    if (len > t->limits.template_bytes)
        raise_limit(r, -E2BIG, "the template is longer than %zu bytes", t->limits.template_bytes);
    set_source(r, t, text, len);
    if (valid < len)
        raise_error(r, "UnicodeDecodeError", "byte %zu is not UTF-8", valid);
    parse_template(r, t);
    bind_template(r, t);
}

/* What jumps out of these comes back here; they have no locals that it could harm. */
static int compile_or_fail(struct rt *r, struct jinja *t, const char *text, size_t len)
{
    if (_setjmp(r->jump) == 0)
        compile(r, t, text, len);
    return r->code;
}

int jinja_compile(const char *name, const char *text, size_t len, const struct jinja_limits *limits, struct jinja **ret,
                  struct jinja_fault *fault, struct err *err)
{
    CLEANUP(jinja_free) struct jinja *t = calloc(1, sizeof *t);
    struct rt r;
    int rc;

    if (t)
        t->name = strdup(name);
    if (!t || !t->name)
        return err_set(err, -ENOMEM, "%s: no memory", name);
    t->limits = limits ? *limits : jinja_limits_default;
    t->pool.limit = t->limits.memory_bytes;
    rt_init(&r, &t->pool, &t->limits);
    t->source = "";
    rc = compile_or_fail(&r, t, text, len);
    rt_fini(&r);
    if (rc < 0)
        return report(&r, t, JINJA_COMPILE, fault, err);
    *ret = STEAL(t);
    return 0;
}

void jinja_free(struct jinja *t)
{
    if (!t)
        return;
    pool_fini(&t->pool);
    free(t->name);
    free(t);
}

bool jinja_uses(const struct jinja *t, const char *variable)
{
    for (uint32_t i = 0; i < t->n_names; i++)
        if (t->names[i].read && str_is(t->names[i].name, variable))
            return true;
    return false;
}

/* Variables */

struct jinja_vars {
    struct pool pool;
    struct jinja_limits limits;
    struct dict *d;
};

static int dict_or_fail(struct rt *r, struct jinja_vars *v)
{
    if (_setjmp(r->jump) == 0)
        v->d = dict_new(r, 16);
    return r->code;
}

int jinja_vars_new(const struct jinja_limits *limits, struct jinja_vars **ret, struct err *err)
{
    CLEANUP(jinja_vars_free) struct jinja_vars *v = calloc(1, sizeof *v);
    struct rt r;

    if (!v)
        return err_set(err, -ENOMEM, "no memory");
    v->limits = limits ? *limits : jinja_limits_default;
    v->pool.limit = v->limits.memory_bytes;
    rt_init(&r, &v->pool, &v->limits);
    if (dict_or_fail(&r, v) < 0)
        return err_set(err, r.code, "%s", r.message);
    *ret = STEAL(v);
    return 0;
}

void jinja_vars_free(struct jinja_vars *v)
{
    if (!v)
        return;
    pool_fini(&v->pool);
    free(v);
}

enum what { SET_JSON, SET_TEXT, SET_VALUE };

static void set(struct rt *r, struct jinja_vars *v, const char *name, enum what what, const char *text, size_t len, struct val value,
                bool trusted)
{
    struct str *key = str_new(r, name, strlen(name), true), *copy;

    if (what != SET_VALUE) {
        copy = str_new(r, text, len, trusted);
        value = what == SET_JSON ? json_read(r, copy->text, len) : v_str(copy);
    }
    if (what == SET_TEXT && !utf8_is_valid(text, len))
        raise_error(r, "UnicodeDecodeError", "it is not UTF-8");
    dict_set(r, v->d, v_str(key), value);
}

static int set_variable(struct jinja_vars *v, const char *name, enum what what, const char *text, size_t len, struct val value, bool trusted,
                        struct err *err)
{
    struct rt r;

    rt_init(&r, &v->pool, &v->limits);
    if (_setjmp(r.jump) == 0)
        set(&r, v, name, what, text, len, value, trusted);
    rt_fini(&r);
    return r.code < 0 ? err_set(err, r.code, "%s: %s", name, r.message) : 0;
}

int jinja_set_json(struct jinja_vars *v, const char *name, const char *json, size_t len, struct err *err)
{
    return set_variable(v, name, SET_JSON, json, len, v_none(), false, err);
}

int jinja_set_text(struct jinja_vars *v, const char *name, const char *text, size_t len, bool trusted, struct err *err)
{
    return set_variable(v, name, SET_TEXT, text, len, v_none(), trusted, err);
}

int jinja_set_bool(struct jinja_vars *v, const char *name, bool value, struct err *err)
{
    return set_variable(v, name, SET_VALUE, NULL, 0, v_bool(value), false, err);
}

int jinja_set_none(struct jinja_vars *v, const char *name, struct err *err)
{
    return set_variable(v, name, SET_VALUE, NULL, 0, v_none(), false, err);
}

/* Render */

static void context(struct rt *r, struct jinja_vars *v)
{
    const struct jinja *t = r->t;

    r->names = mem_array(r, t->n_names + 1, sizeof *r->names);
    for (uint32_t i = 0; i < t->n_names; i++) {
        struct val *given = v ? dict_get_str(v->d, t->names[i].name) : NULL;

        r->names[i] = given ? *given : t->names[i].global;
    }
}

/* A lone surrogate, which UTF-8 does not have, becomes U+FFFD: three bytes too. */
static void replace_surrogates(char *text, size_t len)
{
    char *p = text, *end = text + len;

    while ((p = memchr(p, 0xed, (size_t)(end - p))) != NULL) {
        if (end - p >= 3 && (unsigned char)p[1] >= 0xa0)
            memcpy(p, "\xef\xbf\xbd", 3);
        p++;
    }
}

static int hand_over(const struct rt *r, struct arena *a, struct jinja_output *ret, struct err *err)
{
    const struct out *o = &r->out;
    char *text = arena_strndup(a, o->len ? o->text : "", o->len);
    struct text_span *spans = arena_array(a, o->n_runs, sizeof *spans);
    size_t (*generation)[2] = arena_array(a, r->n_generation, sizeof *generation);
    size_t from = 0, counted = 0, chars = 0;

    if (!text || !spans || !generation)
        return err_set(err, -ENOMEM, "%s: no memory for a prompt of %zu bytes", r->t->name, o->len);
    replace_surrogates(text, o->len);
    for (size_t i = 0; i < o->n_runs; from = o->runs[i++].end)
        spans[i] = (struct text_span){ text + from, o->runs[i].end - from, o->runs[i].trusted };
    for (size_t i = 0; i < r->n_generation; i++) {
        chars += utf8_count(text + counted, r->generation[i][0] - counted);
        counted = r->generation[i][0];
        generation[i][0] = chars;
        generation[i][1] = chars + r->generation[i][1];
    }
    *ret = (struct jinja_output){ text, o->len, spans, o->n_runs, (const size_t (*)[2])generation, r->n_generation };
    return 0;
}

int jinja_render(const struct jinja *t, struct jinja_vars *v, time_t now, struct arena *a, struct jinja_output *ret,
                 struct jinja_fault *fault, struct err *err)
{
    struct pool pool = { .limit = t->limits.memory_bytes };
    struct rt r;
    int rc;

    rt_init(&r, &pool, &t->limits);
    r.depth_max = t->limits.depth > UINT32_MAX / NODES_PER_LEVEL ? UINT32_MAX : t->limits.depth * NODES_PER_LEVEL;
    r.t = t;
    localtime_r(&now, &r.now);
    if (_setjmp(r.jump) == 0) {
        context(&r, v);
        run_template(&r);
    }
    rc = r.code < 0 ? report(&r, t, JINJA_RENDER, fault, err) : hand_over(&r, a, ret, err);
    rt_fini(&r);
    pool_fini(&pool);
    return rc;
}
