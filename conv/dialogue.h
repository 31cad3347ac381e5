/* dialogue.h - one chat that goes on: a copy of a template's facts that may change, with its messages.
 *
 * A message is a role's text ("USER"; any text is taken) and a text, or NULL for a turn that waits to be
 * filled. The messages that a template begins with are there from the start.
 *
 * The forms are those in which FastChat hands a chat to other services (contract 5 and 6.2). In all but
 * DIALOGUE_DICT the template's examples (the first `offset` messages) are left out, who speaks is told by position, not by
 * role, and an assistant's turn without text is left out.
 *
 * Threads  one at a time
 */
#ifndef CONV_DIALOGUE_H
#define CONV_DIALOGUE_H

#include "base/cleanup.h"

#include <stdbool.h>
#include <stddef.h>

struct arena;
struct conv_template;
struct dialogue;
struct err;
struct json_writer;

enum dialogue_form {
    DIALOGUE_OPENAI,                /* [{"role":"system"|"user"|"assistant","content":text}, …] */
    DIALOGUE_OPENAI_VISION,         /* the same where a chat has only text */
    DIALOGUE_ANTHROPIC_VISION,      /* "content" a list of one text; the system message always, even empty */
    DIALOGUE_GEMINI,                /* "model" for "assistant" */
    DIALOGUE_METAGEN,               /* "text" for "content", "ai" for "assistant" */
    DIALOGUE_GRADIO,                /* [[user's text, assistant's text or null], …] */
    DIALOGUE_DICT,                  /* {"template_name", "system_message", "roles", "messages", "offset"} */
};

enum { DIALOGUE_MAX_BYTES = 64 << 20, DIALOGUE_MAX_MESSAGES = 1 << 20 };

/* `t` must live as long. NULL: no memory. */
struct dialogue *dialogue_new(const struct conv_template *t);
void dialogue_free(struct dialogue *d);             /* NULL is fine */
DEFINE_CLEANUP(struct dialogue *, dialogue_free)

/* Texts are copied. 0, -E2BIG over the limits, or -ENOMEM; the dialogue is then as it was. */
int dialogue_set_system(struct dialogue *d, const char *message);
int dialogue_append(struct dialogue *d, const char *role, const char *text);
/* Of the last message; -EINVAL when there is none. */
int dialogue_set_last(struct dialogue *d, const char *text);

size_t dialogue_n_messages(const struct dialogue *d);
const char *dialogue_role(const struct dialogue *d, size_t i);          /* of the template: 0 user, 1 assistant; NULL: none */
/* vision: the template's own text for chats with images, where it has one. */
const char *dialogue_system(const struct dialogue *d, bool vision);

/* The prompt, in `a`, by the same renderer as conv_render(). -EINVAL "Invalid style: None"; -ENOMEM. */
int dialogue_prompt(const struct dialogue *d, struct arena *a, const char **ret, struct err *err);
void dialogue_write(const struct dialogue *d, enum dialogue_form form, struct json_writer *w);

#endif
