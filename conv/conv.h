/* conv.h - messages to prompt, by the rows of a registry.
 *
 * A prompt is a list of spans: what the template wrote is trusted (its control
 * tokens count), what a person or a tool wrote is not and never becomes a
 * control token. A span list joined is the prompt as text.
 *
 * A template is a row of facts (name, system text, roles, separator style) in
 * the form of the FastChat contract, part 2.6 and appendix A; it never changes
 * and is shared. A chat that changes (messages added, another system message) is
 * a dialogue (dialogue.h), which starts as a copy of a row.
 *
 * A registry is what there is by name: the built-in rows (templates.def and a few of ours),
 * and what an administrator added, as a row or as a Jinja text (registry.c).
 *
 * Threads  any; a registry while nobody adds to it
 */
#ifndef CONV_CONV_H
#define CONV_CONV_H

#include "base/cleanup.h"
#include "base/span.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arena;
struct conv_registry;
struct conv_template;
struct err;
struct json_writer;

struct conv_message {
    const char *role;               /* "system", "user", "assistant" */
    const char *content;            /* NULL reads as "" */
};

/* The row of that name, or NULL; of the built-in ones when the registry is NULL. */
const struct conv_template *conv_find(const struct conv_registry *r, const char *name);
const char *conv_name(const struct conv_template *t);
/* The separator style in the contract's spelling ("ADD_COLON_TWO"); NULL: none, and so no prompt. */
const char *conv_style(const struct conv_template *t);

/* Spans in `a`, none of them empty. open_answer: ends with the start of an assistant turn.
 * -EINVAL with a sentence for a role that the template does not have, and for a template without a
 * style; -ENOMEM.
 *
 * In the templates of the contract a system message takes the place of the template's own,
 * wherever it stands (the last one wins), and a turn without text is left open; in those that
 * follow a model file (smollm2, chatml) it is a turn where it stands, and all turns end. */
int conv_render(const struct conv_template *t, const struct conv_message *messages, size_t n,
                bool open_answer, struct arena *a, struct text_span **ret, size_t *ret_n,
                struct err *err);
/* Strings that end an answer besides the model's end tokens; NULL-ended, may
 * be empty. */
const char *const *conv_stops(const struct conv_template *t);
/* Token ids of the same use; *ret_n may be 0. */
const int32_t *conv_stop_tokens(const struct conv_template *t, size_t *ret_n);

/* {"name":…,"system_template":…, …}: contract 2.6, the object inside "conv". */
void conv_to_json(const struct conv_template *t, struct json_writer *w);
/* The other way: a template that the caller frees. The style may be its number, its name or null.
 * -EINVAL for a field that is missing or wrong, by name; -E2BIG over a limit; -ENOMEM. */
int conv_from_json(const cJSON *object, struct conv_template **ret, struct err *err);
void conv_free(struct conv_template *t);            /* of conv_from_json(); NULL is fine */
DEFINE_CLEANUP(struct conv_template *, conv_free)

/* The built-in rows; NULL: no memory. */
struct conv_registry *conv_registry_new(void);
void conv_registry_free(struct conv_registry *r);   /* its rows with it; NULL is fine */
DEFINE_CLEANUP(struct conv_registry *, conv_registry_free)
/* Names: the built-in ones in their order, then those added. NULL behind the last. */
const char *conv_registry_name(const struct conv_registry *r, size_t i);
/* The Jinja text of that name, NUL behind it, or NULL. A row of the same name is then how it goes over the wire. */
const char *conv_registry_jinja(const struct conv_registry *r, const char *name, size_t *ret_len);

enum { CONV_REPLACED = 1 };         /* conv_registry_add: the name was there, and is now this */
enum { CONV_MAX_NAME = 100, CONV_MAX_TEMPLATE = 1 << 20, CONV_MAX_ADDED = 1000 };

/* Adds a template: a row in the wire form, a Jinja text, or both (either NULL, not both). What had the name
 * before is gone, Jinja and row. A name within the row does not count, numbers of styles are the contract's. -EINVAL with
 * a sentence for what is wrong, by key; -E2BIG; -ENOMEM; the registry is then as it was. */
int conv_registry_add(struct conv_registry *r, const char *name, const cJSON *row, const char *jinja,
                      size_t jinja_len, struct err *err);

#endif
