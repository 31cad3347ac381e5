/* score_jinja.c - renders of real models' templates, and the micro cases of the language.
 *
 * An error has to be one of the same phase and class, with the same words where a template or an undefined value speaks;
 * other words are Python's. The clock is that of the golden data: 2025-02-03 04:05:06, UTC. */
#include "base/arena.h"
#include "base/err.h"
#include "base/json.h"
#include "conv/jinja/jinja.h"
#include "score.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { NOW = 1738555506 };

struct work {
    struct score *score;
    const char *folder;
    char name[256];                 /* of the template that is compiled */
    struct jinja *t;
    struct jinja_fault fault;       /* of its compilation */
};

/* A field of a line as it is written. */
static struct json_slice field(const char *raw, size_t len, const char *key)
{
    struct json_slice name, value;

    for (struct json_walk w = json_walk(raw, len); json_next(&w, &name, &value);)
        if (name.len == strlen(key) + 2 && !strncmp(name.text + 1, key, name.len - 2))
            return value;
    return (struct json_slice){ NULL, 0 };
}

static struct jinja_vars *variables(const char *raw, size_t len, struct err *err)
{
    struct json_slice context = field(raw, len, "context"), key, value;
    CLEANUP(jinja_vars_free) struct jinja_vars *v = NULL;
    char name[128];

    if (jinja_vars_new(NULL, &v, err) < 0)
        return NULL;
    for (struct json_walk w = json_walk(context.text, context.len); json_next(&w, &key, &value);) {
        snprintf(name, sizeof name, "%.*s", (int)key.len - 2, key.text + 1);
        if (jinja_set_json(v, name, value.text, value.len, err) < 0)
            return NULL;
    }
    return STEAL(v);
}

static void compare_error(struct score *s, const char *name, struct json_slice error, const struct jinja_fault *f)
{
    BUF_LOCAL type = BUF_INIT, message = BUF_INIT, phase = BUF_INIT;
    const char *have = f->phase == JINJA_COMPILE ? "compile" : "render";
    bool limit;

    score_string(error.text, error.len, "type", &type);
    score_string(error.text, error.len, "message", &message);
    score_string(error.text, error.len, "phase", &phase);
    limit = !strcmp(buf_str(&type), "RecursionError") && !strcmp(f->type, "LimitError");
    if (strcmp(have, buf_str(&phase)) || (!limit && strcmp(f->type, buf_str(&type))))
        score_fail(s, name, "%s %s: %s; wanted %s %s: %s", have, f->type, f->message, buf_str(&phase), buf_str(&type), buf_str(&message));
    else if (!strcmp(f->type, "TemplateError") || !strcmp(f->type, "UndefinedError"))
        score_compare(s, name, buf_str(&message), message.len, f->message, strlen(f->message));
    else
        score_pass(s);
}

static bool same_generation(const struct jinja_output *out, struct json_slice spans)
{
    struct json_slice key, span, side;
    size_t n = 0;

    for (struct json_walk w = json_walk(spans.text, spans.len); json_next(&w, &key, &span); n++) {
        size_t i = 0;

        if (n >= out->n_generation)
            return false;
        for (struct json_walk p = json_walk(span.text, span.len); json_next(&p, &key, &side); i++)
            if (i > 1 || strtoull(side.text, NULL, 10) != out->generation[n][i])
                return false;
    }
    return n == out->n_generation;
}

static bool spans_join(const struct jinja_output *out)
{
    const char *at = out->text;

    for (size_t i = 0; i < out->n_spans; at += out->spans[i++].len)
        if (out->spans[i].text != at || !out->spans[i].len || (i && out->spans[i].trusted == out->spans[i - 1].trusted))
            return false;
    return at == out->text + out->len;
}

static void compare_render(struct work *w, const char *name, const char *raw, size_t len)
{
    struct score *s = w->score;
    struct json_slice error = field(raw, len, "error"), spans = field(raw, len, "generation_spans");
    struct err err = { 0 };
    struct jinja_fault fault = w->fault;
    struct jinja_output out = { 0 };
    CLEANUP(jinja_vars_free) struct jinja_vars *v = variables(raw, len, &err);
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    BUF_LOCAL want = BUF_INIT;
    int rc = -1;

    if (!v) {
        score_fail(s, name, "%s", err.text);
        return;
    }
    if (w->t)
        rc = jinja_render(w->t, v, NOW, a, &out, &fault, &err);
    score_string(raw, len, "output", &want);
    if (rc < 0 && error.text)
        compare_error(s, name, error, &fault);
    else if (rc < 0)
        score_fail(s, name, "%s: %s", fault.type, fault.message);
    else if (error.text)
        score_fail(s, name, "no error; wanted %.*s", (int)error.len, error.text);
    else if (spans.text && !same_generation(&out, spans))
        score_fail(s, name, "the spans of {%% generation %%} differ");
    else if (!spans_join(&out))
        score_fail(s, name, "the spans are not the text");
    else
        score_compare(s, name, buf_str(&want), want.len, out.text, out.len);
}

static void compile(struct work *w, const char *name, const char *text, size_t len)
{
    jinja_free(w->t);
    w->t = NULL;
    snprintf(w->name, sizeof w->name, "%s", name);
    jinja_compile(name, text, len, NULL, &w->t, &w->fault, NULL);
}

static void render(void *user, const cJSON *record, const char *raw, size_t len)
{
    struct work *w = user;
    BUF_LOCAL template = BUF_INIT, id = BUF_INIT, file = BUF_INIT;
    CLEANUP(mem_free) char *text = NULL;
    size_t text_len;

    score_string(raw, len, "template", &template);
    buf_printf(&id, "%s/", buf_str(&template));
    score_string(raw, len, "case", &id);
    if (!w->name[0] || strcmp(w->name, buf_str(&template))) {
        buf_printf(&file, "jinja/templates/%s.jinja", buf_str(&template));
        text = score_file(w->folder, buf_str(&file), &text_len);
        if (!text) {
            score_fail(w->score, buf_str(&id), "its template is not there");
            return;
        }
        compile(w, buf_str(&template), text, text_len);
    }
    compare_render(w, buf_str(&id), raw, len);
}

static void micro(void *user, const cJSON *record, const char *raw, size_t len)
{
    struct work *w = user;
    BUF_LOCAL id = BUF_INIT, text = BUF_INIT;

    score_string(raw, len, "id", &id);
    score_string(raw, len, "template", &text);
    compile(w, buf_str(&id), buf_str(&text), text.len);
    compare_render(w, buf_str(&id), raw, len);
}

static void score(struct score *s, const char *folder, const char *name, const char *file,
                  void (*fn)(void *, const cJSON *, const char *, size_t))
{
    struct work w = { .score = s, .folder = folder };

    setenv("TZ", "UTC", 1);
    tzset();
    score_begin(s, name);
    score_lines(folder, file, fn, &w);
    jinja_free(w.t);
}

void score_jinja(struct score *s, const char *folder) { score(s, folder, "jinja", "jinja/renders.jsonl", render); }
void score_micro(struct score *s, const char *folder) { score(s, folder, "micro", "jinja/micro.jsonl", micro); }
