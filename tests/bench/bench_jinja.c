/* bench-jinja - what a chat template costs per request.
 *
 *     bench-jinja TEMPLATE CONTEXT.json SECONDS
 *
 * CSV: nanoseconds of CPU (the machine may have other work) for compiling, for reading the variables from JSON, for rendering, each
 * the median of batches within its share of the time; then bytes and a hash of the prompt. Rendering includes the arena that
 * holds the result. */
#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "conv/jinja/jinja.h"
#include "tests/bench/median.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_BATCHES = 4096, BATCH = 32, FILE_MAX = 16 << 20 };

static char *read_all(const char *path, size_t *ret_len)
{
    FILE *f = fopen(path, "rb");
    char *text = malloc(FILE_MAX);

    if (!f || !text) {
        fprintf(stderr, "bench-jinja: %s can not be read\n", path);
        exit(2);
    }
    *ret_len = fread(text, 1, FILE_MAX - 1, f);
    text[*ret_len] = '\0';
    fclose(f);
    return text;
}

static double cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

struct job { const char *template; size_t template_len; const char *context; size_t context_len; struct jinja *t; struct jinja_vars *v; };

static _Noreturn void give_up(const struct err *err)
{
    fprintf(stderr, "bench-jinja: %s\n", err->text);
    exit(2);
}

static void compile(struct job *j)
{
    struct err err = { 0 };

    jinja_free(j->t);
    if (jinja_compile("chat", j->template, j->template_len, NULL, &j->t, NULL, &err) < 0)
        give_up(&err);
}

static void variables(struct job *j)
{
    struct json_slice key, value;
    struct err err = { 0 };
    char name[128];

    jinja_vars_free(j->v);
    if (jinja_vars_new(NULL, &j->v, &err) < 0)
        give_up(&err);
    for (struct json_walk w = json_walk(j->context, j->context_len); json_next(&w, &key, &value);) {
        snprintf(name, sizeof name, "%.*s", (int)key.len - 2, key.text + 1);
        if (jinja_set_json(j->v, name, value.text, value.len, &err) < 0)
            give_up(&err);
    }
}

static void render(struct job *j)
{
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    struct jinja_output out;
    struct err err = { 0 };

    if (jinja_render(j->t, j->v, 1738555506, a, &out, NULL, &err) < 0)
        give_up(&err);
}

static double measure(struct job *j, void (*fn)(struct job *), double seconds)
{
    static double batch[MAX_BATCHES];
    double end = cpu_ns() + seconds * 1e9;
    size_t n = 0;

    while (n < 3 || (n < MAX_BATCHES && cpu_ns() < end)) {
        double from = cpu_ns();

        for (int i = 0; i < BATCH; i++)
            fn(j);
        batch[n++] = (cpu_ns() - from) / BATCH;
    }
    return median(batch, n);
}

int main(int argc, char **argv)
{
    struct job j = { 0 };
    struct jinja_output out;
    struct err err = { 0 };
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    double seconds, compile_ns, variables_ns, render_ns;
    unsigned hash = 2166136261u;

    if (argc != 4) {
        fprintf(stderr, "usage: bench-jinja TEMPLATE CONTEXT.json SECONDS\n");
        return 2;
    }
    j.template = read_all(argv[1], &j.template_len);
    j.context = read_all(argv[2], &j.context_len);
    seconds = atof(argv[3]) / 3;
    compile_ns = measure(&j, compile, seconds);
    variables_ns = measure(&j, variables, seconds);
    render_ns = measure(&j, render, seconds);
    if (jinja_render(j.t, j.v, 1738555506, a, &out, NULL, &err) < 0)
        give_up(&err);
    for (size_t i = 0; i < out.len; i++)
        hash = (hash ^ (unsigned char)out.text[i]) * 16777619u;
    printf("%.0f,%.0f,%.0f,%zu,%08x\n", compile_ns, variables_ns, render_ns, out.len, hash);
    jinja_vars_free(j.v);
    jinja_free(j.t);
    free((char *)j.template);
    free((char *)j.context);
    return 0;
}
