/* jinja.h - a checkpoint's chat template, compiled once and rendered per request.
 *
 * The language is Jinja as transformers runs it: ImmutableSandboxedEnvironment(trim_blocks,
 * lstrip_blocks) with loop controls, its own tojson, raise_exception, strftime_now and the
 * tag {% generation %}. What that renders, this renders to the same bytes; what it refuses, this
 * refuses. Templates are hostile input: every limit below is an error with its place, no
 * input makes the C stack grow without one.
 *
 * The output is a list of spans: what the template's own text wrote is trusted, what came
 * out of the variables is not (base/span.h), also after slicing, stripping, joining, tojson.
 * Variables that the caller adds as trusted (bos_token) count as the template's text, and so does
 * the value of a key "role" that is one of the known roles: many templates write '<|' + role + '|>'. So do
 * digits, True and None, which the interpreter writes; brackets, commas and quotes around texts of which one
 * came from outside do not.
 *
 * Values are Python's: integers have up to 4300 digits (Python's own limit of printing them), floats are doubles,
 * strings are Unicode, dicts keep their order.
 *
 * Threads  a compiled template is constant: any number may render it at once, each with its vars
 * Source   jinja2 3.1.6; transformers utils/chat_template_utils.py
 */
#ifndef CONV_JINJA_H
#define CONV_JINJA_H

#include "base/cleanup.h"
#include "base/span.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct arena;
struct err;
struct jinja;
struct jinja_vars;

struct jinja_limits {
    size_t template_bytes;          /* of the source */
    uint32_t depth;                 /* of nesting: expressions, blocks, calls, values; 200 fit a stack of 256 KiB */
    size_t output_bytes;            /* rendered, captured blocks included */
    uint64_t steps;                 /* nodes evaluated and items looped over */
    size_t memory_bytes;            /* of one render, or of the compiled tree */
};
/* 1 MB, 200, 64 MB, 50 million, 512 MB */
extern const struct jinja_limits jinja_limits_default;

enum jinja_phase { JINJA_COMPILE, JINJA_RENDER };

/* What went wrong, beside the sentence in struct err ("NAME:12:5: …"). */
struct jinja_fault {
    enum jinja_phase phase;
    char type[32];                  /* Python's class: "TemplateSyntaxError", "TemplateError" (raise_exception), "UndefinedError",
                                     * "TypeError", "SecurityError", …; "LimitError" where a limit of ours ended it */
    char message[512];              /* as there, without the place; cut at a character's end */
    uint32_t line, column;          /* from 1; 0: not known */
};

/* 0 and a template that the caller frees. limits NULL: the default ones, kept for rendering too.
 * name is for messages (copied). -EINVAL: it does not compile; -E2BIG: over a limit; -ENOMEM; with
 * a sentence, and *fault (may be NULL) filled. An unknown filter or test is no error before it is
 * reached, where jinja2 has it so. */
int jinja_compile(const char *name, const char *text, size_t len, const struct jinja_limits *limits,
                  struct jinja **ret, struct jinja_fault *fault, struct err *err);
void jinja_free(struct jinja *t);                   /* NULL is fine */
DEFINE_CLEANUP(struct jinja *, jinja_free)

/* Whether the template reads a variable of that name that it does not set itself before. */
bool jinja_uses(const struct jinja *t, const char *variable);

/* The variables of one render; they hold at most the template's memory limit. */
int jinja_vars_new(const struct jinja_limits *limits, struct jinja_vars **ret, struct err *err);
void jinja_vars_free(struct jinja_vars *v);         /* NULL is fine */
DEFINE_CLEANUP(struct jinja_vars *, jinja_vars_free)

/* Sets a variable; a later one of the same name takes its place. json is one JSON value:
 * 1 is an integer, 1.0 a float, keys keep their order. 0, -EINVAL for what is no JSON (byte N),
 * -E2BIG, -ENOMEM. */
int jinja_set_json(struct jinja_vars *v, const char *name, const char *json, size_t len, struct err *err);
int jinja_set_text(struct jinja_vars *v, const char *name, const char *text, size_t len, bool trusted,
                   struct err *err);
int jinja_set_bool(struct jinja_vars *v, const char *name, bool value, struct err *err);
int jinja_set_none(struct jinja_vars *v, const char *name, struct err *err);

struct jinja_output {
    const char *text;               /* all spans joined, NUL behind len */
    size_t len;
    const struct text_span *spans;  /* none of them empty; point into text */
    size_t n_spans;
    const size_t (*generation)[2];  /* of {% generation %}: [from, to) in code points of text */
    size_t n_generation;
};

/* Renders into `a`. now: what strftime_now formats, as local time. 0; -EINVAL: the template refuses
 * (fault says how, err is a sentence); -E2BIG: over a limit; -ENOMEM. */
int jinja_render(const struct jinja *t, struct jinja_vars *v, time_t now, struct arena *a,
                 struct jinja_output *ret, struct jinja_fault *fault, struct err *err);

#endif
