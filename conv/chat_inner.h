/* chat_inner.h - what the files of a chat template share; private to them.
 *
 * chat.c is what both kinds have in common, and the rows. chat_messages.c reads messages and writes them anew
 * in the form that a template wants. chat_jinja.c is the checkpoint's own templates, chat_twin.c which row says the same.
 */
#ifndef CONV_CHAT_INNER_H
#define CONV_CHAT_INNER_H

#include "base/buf.h"
#include "base/json.h"
#include "conv/chat.h"

/* One message as it came. */
struct chat_message {
    const cJSON *tree;
    struct json_slice text;
    const char *role;
    enum { CONTENT_NONE, CONTENT_TEXT, CONTENT_PARTS } kind;
    const cJSON *content;           /* NULL for none */
    bool calls;                     /* has tool calls */
};

struct chat_messages {
    cJSON *tree;
    struct chat_message *list;
    size_t n;
    const char *tail;               /* written behind the last message's text; NULL: nothing */
};

/* Where a failure is told: the field in *param, the sentence in err. */
struct chat_fault { const char **param; struct err *err; struct arena *a; };
int chat_refuse(struct chat_fault *f, const char *param, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Checks as far as every template needs it; chat_messages_fini() in either case. */
int chat_messages_read(const char *json, size_t len, struct chat_messages *ret, struct chat_fault *f);
void chat_messages_fini(struct chat_messages *m);
/* The text of a message, parts joined, "" for none; with the tail for the last one. NULL: no memory. */
const char *chat_message_text(const struct chat_messages *m, size_t i, struct arena *a);

/* How a template wants to see contents of a role. */
enum chat_content { CHAT_AS_IT_IS, CHAT_AS_TEXT, CHAT_AS_PARTS };
enum { CHAT_ROLES = 4 };            /* system, user, assistant, tool, and all others as user */
size_t chat_role_index(const char *role);

struct chat_habits {
    enum chat_content content[CHAT_ROLES];
    bool empty_for_null[2];         /* in a message without, with tool calls */
    bool raw_arguments;             /* of tool calls: as the string that they are */
    bool drops_calls, drops_results;
};

/* The messages as JSON. */
void chat_messages_write(const struct chat_messages *m, const struct chat_habits *h, struct buf *out);

/* What a kind of template does. */
struct chat_kind {
    void (*fini)(struct chat_template *t);
    /* *ret says that nothing stops an answer yet. */
    int (*render)(const struct chat_template *t, const struct chat_input *r, const struct chat_messages *m,
                  struct chat_prompt *ret, struct chat_fault *f);
    const char *(*text)(const struct chat_template *t, const char *name, size_t *ret_len);
    bool (*takes_tools)(const struct chat_template *t);
    /* The default template's text for these messages, a JSON array, with an open answer, under limits that keep it short; NULL: it refuses, or there is no
     * memory. NULL instead of a function: a row. *ret_bos: the text of its BOS, untouched when it has none. */
    const char *(*try)(const struct chat_template *t, const char *messages, struct arena *a, const char **ret_bos);
};

struct chat_template {
    const struct chat_kind *kind;
    struct arena *arena;            /* owns this too */
    const char *name;
    const struct conv_template *wire;
};

/* A template with an arena, of so many bytes. */
void *chat_template_new(const struct chat_kind *kind, size_t size, const char *name,
                        const struct conv_template *wire, struct err *err);

#endif
