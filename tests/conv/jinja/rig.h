/* rig.h - a template rendered in one call, and its spans as one text: [trusted]{from outside}. */
#ifndef TESTS_CONV_JINJA_RIG_H
#define TESTS_CONV_JINJA_RIG_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "conv/jinja/jinja.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <string.h>

struct rig {
    struct arena *a;
    struct jinja_output out;
    struct jinja_fault fault;
    struct err err;
    int rc;
};

/* now: 2025-02-03 04:05:06 UTC; json: an object whose fields are the variables, or NULL. */
static inline void rig_run(struct rig *g, const char *template, const char *name, const char *json, const struct jinja_limits *limits)
{
    CLEANUP(jinja_free) struct jinja *t = NULL;
    CLEANUP(jinja_vars_free) struct jinja_vars *v = NULL;

    *g = (struct rig){ .a = arena_new(0) };
    cr_assert(zero(int, jinja_vars_new(limits, &v, NULL)));
    if (json)
        cr_assert(zero(int, jinja_set_json(v, name, json, strlen(json), &g->err)), "%s", g->err.text);
    g->rc = jinja_compile("t", template, strlen(template), limits, &t, &g->fault, &g->err);
    if (!g->rc)
        g->rc = jinja_render(t, v, 1738555506, g->a, &g->out, &g->fault, &g->err);
}

static inline void rig_fini(struct rig *g) { arena_free(g->a); }
#define RIG __attribute__((cleanup(rig_fini))) struct rig

/* The spans of a render with the variable `u`; "!Type: message" for an error. */
static inline const char *spans_of(const char *template, const char *u_json)
{
    static char text[1 << 16];
    RIG g;
    size_t n = 0;

    rig_run(&g, template, "u", u_json, NULL);
    if (g.rc < 0) {
        snprintf(text, sizeof text, "!%s: %s", g.fault.type, g.fault.message);
        return text;
    }
    text[0] = '\0';
    for (size_t i = 0; i < g.out.n_spans; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, g.out.spans[i].trusted ? "[%.*s]" : "{%.*s}", (int)g.out.spans[i].len,
                              g.out.spans[i].text);
    return text;
}

#endif
