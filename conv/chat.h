/* chat.h - how the chats of one model are written, whoever says so.
 *
 * A checkpoint's own templates (Jinja, by name: "default", "tool_use", …) or a row of the
 * registry (conv.h). Either takes the messages of a request as JSON and gives the prompt as
 * spans, with the strings that end an answer.
 *
 * Before a template of Jinja sees the messages they are brought into the form that it is written
 * for, found out once by rendering small chats: `arguments` of a tool call that are JSON in a string become an object,
 * unless the template puts the string in; content in parts of text becomes one text where the template does not look
 * at parts, and a text one part where it looks at nothing else; null stays null unless the template fails with it or
 * would write "None". Members that are null, and empty lists of tool calls, are left out. What a template would
 * silently drop (tools, documents, tool calls, results of tools) is refused instead.
 *
 * A row takes texts of 'system', 'user' and 'assistant', and nothing else.
 *
 * Threads  constant after making; any number may render at once
 * Source   transformers 4.57: apply_chat_template, utils/chat_template_utils.py
 */
#ifndef CONV_CHAT_H
#define CONV_CHAT_H

#include "base/cleanup.h"
#include "base/span.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct arena;
struct chat_template;
struct conv_registry;
struct conv_template;
struct err;

enum { CHAT_MAX_MESSAGES = 10000 };

struct chat_source { const char *name, *text; size_t len; };       /* one Jinja template */
struct chat_token { const char *name, *text; };                    /* "bos_token", "<s>" */

/* From the registry; `row` must live as long. With a wire form that is itself. */
int chat_from_row(const struct conv_template *row, struct chat_template **ret, struct err *err);
/* From a checkpoint: at least one source; without one named "default" the first is it. Tokens are the
 * special tokens map (names as in transformers). wire: the row that stands for it where only the contract's form
 * is understood (/worker_get_conv_template), or NULL. All is copied but `wire`. -EINVAL: a template does not
 * compile, with its place. */
int chat_from_jinja(const char *name, const struct chat_source *sources, size_t n_sources,
                    const struct chat_token *tokens, size_t n_tokens, const struct conv_template *wire,
                    struct chat_template **ret, struct err *err);
void chat_free(struct chat_template *t);            /* NULL is fine */
DEFINE_CLEANUP(struct chat_template *, chat_free)

struct chat_input {
    const char *messages; size_t messages_len;      /* a JSON array of objects with at least "role" */
    const char *tools; size_t tools_len;            /* a JSON array, or NULL; the template "tool_use" is then used, where there is one */
    const char *documents; size_t documents_len;    /* a JSON array of objects, or NULL */
    /* Further variables, a JSON object, or NULL: chat_template_kwargs. It may set none of those above, no special token
     * (…_token) and none of the two switches below: that is -EINVAL. A row has no variables and passes over them. */
    const char *kwargs; size_t kwargs_len;
    bool add_generation_prompt;
    bool continue_final_message;                    /* the prompt ends with the last message's text; excludes the former */
    time_t now;
};

struct chat_prompt {
    const struct text_span *spans; size_t n_spans;  /* none of them empty */
    const char *text; size_t len;                   /* the spans joined, NUL behind len */
    const char *const *stops;                       /* NULL-ended, may be empty */
    const int32_t *stop_tokens; size_t n_stop_tokens;
};

/* 0 and a prompt in `a`. -EINVAL: the request does not fit the template; *ret_param ("messages", "messages[2].content", "tools", …, in `a`)
 * is the field at fault and err the sentence, of a template that raises exactly its own message. -E2BIG, -ENOMEM. */
int chat_render(const struct chat_template *t, const struct chat_input *r, struct arena *a,
                struct chat_prompt *ret, const char **ret_param, struct err *err);

/* The first row of the registry (NULL: the built-in ones) that writes chats of texts as `t` does, BOS in front aside; some are tried. NULL: none. */
const struct conv_template *chat_same_row(const struct chat_template *t, const struct conv_registry *registry);
void chat_set_wire(struct chat_template *t, const struct conv_template *wire);      /* or NULL */

const char *chat_name(const struct chat_template *t);
const struct conv_template *chat_wire(const struct chat_template *t);       /* or NULL */
const char *chat_jinja_text(const struct chat_template *t, const char *name, size_t *ret_len);     /* or NULL; name NULL: the default one */
bool chat_takes_tools(const struct chat_template *t);

#endif
