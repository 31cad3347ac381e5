/* conversation.h - what was said so far, and its file.
 *
 * The file is FastChat's: {"template_name","system_message","roles":[user,
 * assistant],"messages":[[role,text],…],"offset"}, so conversations move between
 * the two programs. A conversation that began here names the template that
 * FastChat uses for models behind an API.
 */
#ifndef CLI_CONVERSATION_H
#define CLI_CONVERSATION_H

#include <stdbool.h>
#include <stddef.h>

struct conversation;
struct err;
struct json_writer;

/* system may be NULL. NULL: no memory. */
struct conversation *conversation_new(const char *system);
void conversation_free(struct conversation *c);

/* 0 or -ENOMEM. */
int conversation_add(struct conversation *c, bool user, const char *text);
size_t conversation_count(const struct conversation *c);
/* The last message, or NULL; *ret_user says whose. */
const char *conversation_last(const struct conversation *c, bool *ret_user);
void conversation_drop(struct conversation *c);
/* Drops the last answer, if there is one, and its question: the question to
 * free(), or NULL when there was none. */
char *conversation_drop_pair(struct conversation *c);

/* Calls fn with each message. */
void conversation_each(const struct conversation *c, void (*fn)(bool user, const char *text));
/* The "messages" of a request. */
void conversation_write(const struct conversation *c, struct json_writer *w);

/* NAME gets ".json" when it has no dot (save) or when only that exists (load).
 * 0 and the name that was used in `used`; -errno with a sentence; load leaves
 * *ret untouched then. */
int conversation_save(const struct conversation *c, const char *name, char *used, size_t size,
                      struct err *err);
int conversation_load(const char *name, struct conversation **ret, char *used, size_t size,
                      struct err *err);

#endif
