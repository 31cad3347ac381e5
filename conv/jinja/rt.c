/* What every part of a compilation or a render stands on: failing, memory, and text in the making.
 *
 * All text is made in one place, the output buffer: who makes a string marks its end, writes behind it and
 * takes what came. So a captured block, a join and a JSON text cost one copy each, and the bytes carry their
 * provenance as runs in the same way wherever they are made.
 */
#include "conv/jinja/tree.h"

#include "base/utf8.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>

static _Noreturn void fail(struct rt *r, int code, const char *type, const char *fmt, va_list ap)
{
    size_t n;

    r->code = code;
    snprintf(r->type, sizeof r->type, "%s", type);
    vsnprintf(r->message, sizeof r->message, fmt, ap);
    n = strlen(r->message);
    r->message[n - utf8_unfinished_tail(r->message, n)] = '\0';
    if (!r->has_pos && r->at) {
        r->pos = r->at->pos;
        r->has_pos = true;
    }
    longjmp(r->jump, 1);
}

void raise_error(struct rt *r, const char *type, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fail(r, -EINVAL, type, fmt, ap);
}

void raise_limit(struct rt *r, int code, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fail(r, code, code == -ENOMEM ? "MemoryError" : "LimitError", fmt, ap);
}

void syntax_error(struct rt *r, uint32_t pos, const char *fmt, ...)
{
    va_list ap;

    r->pos = pos;
    r->has_pos = true;
    va_start(ap, fmt);
    fail(r, -EINVAL, "TemplateSyntaxError", fmt, ap);
}

void raise_undefined(struct rt *r, struct val v)
{
    const struct undef *u = v.u;

    switch (u->kind) {
    case UNDEF_NAME:
        raise_error(r, "UndefinedError", "'%.*s' is undefined", (int)u->name.s->len, u->name.s->text);
    case UNDEF_HINT:
        raise_error(r, "UndefinedError", "%s", u->hint);
    case UNDEF_UNSAFE:
        raise_error(r, "SecurityError", "access to attribute '%.*s' of '%s' object is unsafe.", (int)u->name.s->len,
                    u->name.s->text, val_type(u->object));
    case UNDEF_ATTRIBUTE:
        break;
    }
    struct str *name = val_repr(r, u->name);

    if (u->name.t == V_STR)
        raise_error(r, "UndefinedError", "'%s' has no attribute %.*s", val_long_type(u->object), (int)name->len, name->text);
    raise_error(r, "UndefinedError", "%s has no element %.*s", val_long_type(u->object), (int)name->len, name->text);
}

void *mem_slow(struct rt *r, size_t size)
{
    void *p = pool_alloc(r->pool, size);

    if (p)
        return p;
    if (errno == E2BIG)
        raise_limit(r, -E2BIG, "more than %zu bytes of memory are needed", r->limits.memory_bytes);
    raise_limit(r, -ENOMEM, "no memory for %zu bytes", size);
}

void *mem_array(struct rt *r, size_t n, size_t size)
{
    size_t bytes;

    if (__builtin_mul_overflow(n, size, &bytes))
        raise_limit(r, -E2BIG, "more than %zu bytes of memory are needed", r->limits.memory_bytes);
    step(r, bytes / 256);
    return mem(r, bytes);
}

void steps_over(struct rt *r)
{
    raise_limit(r, -E2BIG, "the template takes more than %llu steps", (unsigned long long)r->limits.steps);
}

void depth_over(struct rt *r)
{
    raise_limit(r, -E2BIG, "nested deeper than %u levels", r->limits.depth);
}

/* Output */

struct mark out_mark(struct rt *r)
{
    if (r->n_marks++ == 0)
        r->root_len = r->out.len;
    return (struct mark){ r->out.len, r->out.n_runs };
}

static void out_cut(struct rt *r, struct mark m)
{
    r->out.len = m.len;
    r->out.n_runs = m.n_runs;
    if (m.n_runs > 0 && r->out.runs[m.n_runs - 1].end > m.len)
        r->out.runs[m.n_runs - 1].end = (uint32_t)m.len;
    r->n_marks--;
}

static void *grown(struct rt *r, void *p, size_t *cap, size_t need, size_t item)
{
    size_t n = *cap ? *cap : 512;

    while (n < need)
        n *= 2;
    p = realloc(p, n * item);
    if (!p)
        raise_limit(r, -ENOMEM, "no memory for the output");
    *cap = n;
    return p;
}

static void add_run(struct rt *r, bool trusted)
{
    struct out *o = &r->out;

    if (o->n_runs > 0 && o->runs[o->n_runs - 1].trusted == trusted) {
        o->runs[o->n_runs - 1].end = (uint32_t)o->len;
        return;
    }
    if (o->n_runs == o->cap_runs) {
        if ((o->cap_runs * 2 + 512) * sizeof *o->runs > r->limits.memory_bytes)
            raise_limit(r, -E2BIG, "more than %zu bytes of memory are needed", r->limits.memory_bytes);
        o->runs = grown(r, o->runs, &o->cap_runs, o->n_runs + 1, sizeof *o->runs);
    }
    o->runs[o->n_runs++] = (struct run){ (uint32_t)o->len, trusted };
}

static char *out_room(struct rt *r, size_t len)
{
    struct out *o = &r->out;

    if (len > r->limits.output_bytes - o->len)
        raise_limit(r, -E2BIG, "the output is longer than %zu bytes", r->limits.output_bytes);
    if (o->len + len > o->cap)
        o->text = grown(r, o->text, &o->cap, o->len + len, 1);
    return o->text + o->len;
}

void out_add(struct rt *r, const char *text, size_t len, bool trusted)
{
    if (len == 0)
        return;
    step(r, len / 64);
    memcpy(out_room(r, len), text, len);
    r->out.len += len;
    add_run(r, trusted);
}

void out_char(struct rt *r, uint32_t c, bool trusted)
{
    char text[4];

    out_add(r, text, (size_t)wtf8_encode(c, text), trusted);
}

void out_sub(struct rt *r, const struct str *s, size_t from, size_t to)
{
    uint32_t start = 0;

    if (s->prov != PROV_MIXED) {
        out_add(r, s->text + from, to - from, s->prov == PROV_TRUSTED);
        return;
    }
    for (uint32_t i = 0; i < s->n_runs && start < to; start = s->runs[i].end, i++) {
        size_t a = start > from ? start : from, b = s->runs[i].end < to ? s->runs[i].end : to;

        if (a < b)
            out_add(r, s->text + a, b - a, s->runs[i].trusted);
    }
}

void out_printf(struct rt *r, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    out_add(r, text, n < 0 ? 0 : (size_t)n < sizeof text ? (size_t)n : sizeof text - 1, r->literal);
}

/* The first run that reaches behind the mark. */
static size_t first_run(const struct rt *r, struct mark m)
{
    return m.n_runs > 0 && r->out.runs[m.n_runs - 1].end > m.len ? m.n_runs - 1 : m.n_runs;
}

static bool all_trusted(struct rt *r, struct val v)
{
    bool all = true;

    step(r, 1);
    enter(r);
    if (v.t == V_STR || v.t == V_BYTES)
        all = v.s->prov == PROV_TRUSTED || v.s->len == 0;
    else if (v.t == V_LIST || v.t == V_TUPLE)
        for (uint32_t i = 0; all && i < v.seq->n; i++)
            all = all_trusted(r, v.seq->items[i]);
    else if (v.t == V_DICT || v.t == V_NAMESPACE || v.t == V_VIEW)
        for (uint32_t i = 0; all && i < v.d->n; i++)
            all = all_trusted(r, v.d->e[i].key) && all_trusted(r, v.d->e[i].value);
    leave(r);
    return all;
}

bool container_open(struct rt *r, struct val v)
{
    bool literal = r->literal;

    enter(r);
    if (r->containers++ == 0)
        r->literal = literal && all_trusted(r, v);
    return literal;
}

void container_close(struct rt *r, bool literal)
{
    leave(r);
    if (--r->containers == 0)
        r->literal = literal;
}

struct str *out_take(struct rt *r, struct mark m)
{
    struct out *o = &r->out;
    size_t len = o->len - m.len, first = first_run(r, m), n = o->n_runs - first;
    struct str *s = mem(r, sizeof *s + len + 1);
    char *text = (char *)(s + 1);

    *s = (struct str){ .text = text, .len = (uint32_t)len, .chars = CHARS_UNKNOWN, .prov = PROV_TRUSTED };
    if (len > 0)
        memcpy(text, o->text + m.len, len);
    text[len] = '\0';
    step(r, len / 64);
    if (n == 1) {
        s->prov = o->runs[first].trusted ? PROV_TRUSTED : PROV_OUTSIDE;
    } else if (n > 1) {
        s->prov = PROV_MIXED;
        s->n_runs = (uint32_t)n;
        s->runs = mem_array(r, n, sizeof *s->runs);
        for (size_t i = 0; i < n; i++)
            s->runs[i] = (struct run){ o->runs[first + i].end - (uint32_t)m.len, o->runs[first + i].trusted };
    }
    out_cut(r, m);
    return s;
}

/* Strings */

uint32_t utf8_next(const char *text, size_t len, size_t *at)
{
    const unsigned char *p = (const unsigned char *)text + *at;
    size_t left = len - *at;

    if (p[0] < 0x80 || left < 2) {
        *at += 1;
        return p[0];
    }
    if (p[0] < 0xe0 || left < 3) {
        *at += 2;
        return (uint32_t)(p[0] & 0x1f) << 6 | (p[1] & 0x3f);
    }
    if (p[0] < 0xf0 || left < 4) {
        *at += 3;
        return (uint32_t)(p[0] & 0x0f) << 12 | (uint32_t)(p[1] & 0x3f) << 6 | (p[2] & 0x3f);
    }
    *at += 4;
    return (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3f) << 12 | (uint32_t)(p[2] & 0x3f) << 6 | (p[3] & 0x3f);
}

uint32_t utf8_before(const char *text, size_t *at)
{
    size_t from = *at - 1, end = *at;

    while (from > 0 && ((unsigned char)text[from] & 0xc0) == 0x80)
        from--;
    *at = from;
    return utf8_next(text, end, &from);
}

size_t utf8_count(const char *text, size_t len)
{
    size_t n = 0;

    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

int wtf8_encode(uint32_t c, char out[4])
{
    if (c >= 0xd800 && c <= 0xdfff) {
        out[0] = (char)0xed;
        out[1] = (char)(0x80 | (c >> 6 & 0x3f));
        out[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    return utf8_encode(c, out);
}

struct str *str_view(struct rt *r, const char *text, size_t len, bool trusted)
{
    struct str *s = mem(r, sizeof *s);

    if (len > INT32_MAX)
        raise_limit(r, -E2BIG, "a text is longer than %d bytes", INT32_MAX);
    *s = (struct str){ .text = text, .len = (uint32_t)len, .chars = CHARS_UNKNOWN,
                       .prov = trusted ? PROV_TRUSTED : PROV_OUTSIDE };
    return s;
}

struct str *str_new(struct rt *r, const char *text, size_t len, bool trusted)
{
    char *copy = mem(r, len + 1);

    if (len > 0)
        memcpy(copy, text, len);
    copy[len] = '\0';
    return str_view(r, copy, len, trusted);
}

static struct str *copy_of(struct rt *r, const struct str *s, bool markup)
{
    struct str *c = mem(r, sizeof *c);

    *c = *s;
    c->markup = markup;
    return c;
}

struct str *str_plain(struct rt *r, struct str *s) { return s->markup ? copy_of(r, s, false) : s; }
struct str *str_markup(struct rt *r, struct str *s) { return s->markup ? s : copy_of(r, s, true); }

struct str *str_sub(struct rt *r, struct str *s, size_t from, size_t to)
{
    struct str *c;
    uint32_t first = 0, n = 0;

    if (from >= to)
        from = to = 0;
    if (from == 0 && to == s->len)
        return s;
    c = mem(r, sizeof *c);
    *c = (struct str){ .text = s->text + from, .len = (uint32_t)(to - from),
                       .chars = s->chars == s->len ? (uint32_t)(to - from) : CHARS_UNKNOWN, .prov = s->prov, .markup = s->markup };
    if (s->prov != PROV_MIXED)
        return c;
    while (first < s->n_runs && s->runs[first].end <= from)
        first++;
    while (first + n < s->n_runs && (n == 0 || s->runs[first + n - 1].end < to))
        n++;
    step(r, (first + n) / 16);
    if (n <= 1 || from == to) {
        c->prov = from < to && !s->runs[first].trusted ? PROV_OUTSIDE : PROV_TRUSTED;
        return c;
    }
    c->n_runs = n;
    c->runs = mem_array(r, n, sizeof *c->runs);
    for (uint32_t i = 0; i < n; i++) {
        size_t end = s->runs[first + i].end < to ? s->runs[first + i].end : to;

        c->runs[i] = (struct run){ (uint32_t)(end - from), s->runs[first + i].trusted };
    }
    return c;
}

uint32_t str_chars(struct str *s)
{
    if (s->chars == CHARS_UNKNOWN)
        s->chars = (uint32_t)utf8_count(s->text, s->len);
    return s->chars;
}

/* Keys come from outside: which of them collide must not be known there. */
static uint64_t hash_seed(void)
{
    static uint64_t seed;
    uint64_t s = __atomic_load_n(&seed, __ATOMIC_RELAXED);

    if (s == 0) {
        const void *random = (const void *)getauxval(AT_RANDOM);        /* 16 bytes of the kernel's */

        if (random)
            memcpy(&s, random, sizeof s);
        s |= 1;
        __atomic_store_n(&seed, s, __ATOMIC_RELAXED);
    }
    return s;
}

static uint64_t mix(uint64_t a, uint64_t b)
{
    __uint128_t m = (__uint128_t)a * b;

    return (uint64_t)m ^ (uint64_t)(m >> 64);
}

uint32_t str_hash(struct str *s)
{
    uint64_t h = hash_seed() ^ s->len, word;
    size_t i = 0;

    if (s->hash)
        return s->hash;
    for (; i + 8 <= s->len; i += 8) {
        memcpy(&word, s->text + i, 8);
        h = mix(h ^ word, 0x9e3779b97f4a7c15u);
    }
    word = 0;
    memcpy(&word, s->text + i, s->len - i);
    h = mix(h ^ word, 0xa0761d6478bd642fu);
    s->hash = (uint32_t)(h ^ h >> 32);
    if (s->hash == 0)
        s->hash = 1;
    return s->hash;
}

bool str_trusted_at(const struct str *s, size_t byte)
{
    if (s->prov != PROV_MIXED)
        return s->prov == PROV_TRUSTED;
    for (uint32_t i = 0; i < s->n_runs; i++)
        if (byte < s->runs[i].end)
            return s->runs[i].trusted;
    return true;
}

size_t str_offset(struct str *s, size_t chars)
{
    size_t at = 0;

    if (str_chars(s) == s->len)
        return chars < s->len ? chars : s->len;
    while (chars > 0 && at < s->len) {
        at++;
        while (at < s->len && ((unsigned char)s->text[at] & 0xc0) == 0x80)
            at++;
        chars--;
    }
    return at;
}

/* Values */

struct val v_hint(struct rt *r, const char *hint)
{
    struct undef *u = mem(r, sizeof *u);

    *u = (struct undef){ .kind = UNDEF_HINT, .hint = hint };
    return (struct val){ .t = V_UNDEF, .u = u };
}

struct val v_undef_attr(struct rt *r, struct val object, struct val name)
{
    struct undef *u = mem(r, sizeof *u);

    *u = (struct undef){ .kind = UNDEF_ATTRIBUTE, .object = object, .name = name };
    return (struct val){ .t = V_UNDEF, .u = u };
}

struct val v_seq(struct rt *r, enum vtype t, uint32_t n)
{
    struct seq *s = mem_array(r, 1, sizeof *s + (size_t)n * sizeof(struct val));

    *s = (struct seq){ .n = n, .items = (struct val *)(s + 1) };
    return (struct val){ .t = t, .seq = s };
}

struct val v_pair(struct rt *r, struct val a, struct val b)
{
    struct val t = v_seq(r, V_TUPLE, 2);

    t.seq->items[0] = a;
    t.seq->items[1] = b;
    return t;
}

struct val v_gen(struct rt *r, bool (*next)(struct rt *, struct gen *, struct val *), struct val src)
{
    struct gen *g = mem(r, sizeof *g);

    *g = (struct gen){ .next = next, .type = "generator" };
    iter_init(r, &g->src, src);
    return (struct val){ .t = V_GEN, .gen = g };
}

void grow_add(struct rt *r, struct grow *g, struct val v)
{
    if (g->n == g->cap) {
        uint32_t cap = g->cap ? g->cap * 2 : 8;
        struct val *items = mem_array(r, cap, sizeof *items);

        if (g->n > 0)
            memcpy(items, g->items, g->n * sizeof *items);
        g->items = items;
        g->cap = cap;
    }
    step(r, 1);
    g->items[g->n++] = v;
}

struct val grow_take(struct rt *r, struct grow *g, enum vtype t)
{
    struct seq *s = mem(r, sizeof *s);

    *s = (struct seq){ .n = g->n, .items = g->items };
    return (struct val){ .t = t, .seq = s };
}
