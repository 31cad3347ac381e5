/* conv.h - messages to prompt.
 *
 * A prompt is a list of spans: what the template wrote is trusted (its control
 * tokens count), what a person or a tool wrote is not and never becomes a
 * control token. A span list joined is the prompt as text.
 *
 * A template is a row of facts (name, system text, roles, separator style) in
 * the form of the FastChat contract, part 2.6 and appendix A; it never changes
 * and is shared. Templates of conv_find() live as long as the program, one that
 * came as JSON until conv_free().
 *
 * Threads  any
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
struct conv_template;
struct err;
struct json_writer;

struct conv_message {
    const char *role;               /* "system", "user", "assistant" */
    const char *content;            /* NULL reads as "" */
};

/* NULL when there is none of that name. */
const struct conv_template *conv_find(const char *name);
/* The known template that renders like this text of a `tokenizer.chat_template`,
 * or NULL. Spaces within tags, trim marks, kinds of quotes and joined literals make no
 * difference; anything else does. */
const struct conv_template *conv_match(const char *chat_template);
const char *conv_name(const struct conv_template *t);
/* Names of all templates, NULL-ended. */
const char *const *conv_names(void);

/* Spans in `a`, none of them empty. open_answer: ends with the start of an assistant turn.
 * -EINVAL with a sentence for a role that the template does not have; -ENOMEM.
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
/* The other way: a template that the caller frees. -EINVAL for a field that is
 * missing or wrong, by name; -E2BIG over a limit; -ENOTSUP for a separator style that is not
 * supported, by number; -ENOMEM. */
int conv_from_json(const cJSON *object, struct conv_template **ret, struct err *err);
void conv_free(struct conv_template *t);            /* of conv_from_json(); NULL is fine */
DEFINE_CLEANUP(struct conv_template *, conv_free)

#endif
