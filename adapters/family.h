/* family.h - rows of families.def: how chats of a family of checkpoints are written where the checkpoint does not say.
 *
 * Threads  any
 */
#ifndef ADAPTERS_FAMILY_H
#define ADAPTERS_FAMILY_H

#include <stddef.h>

struct chat_template;
struct conv_registry;
struct conv_template;
struct err;
struct template_files;

struct family {
    const char *name, *who;             /* "qwen3", "Qwen 3" */
    const char *names, *architectures, *ends;       /* rules (rule.h) of what their names say; NULL: none */
    const char *text;                   /* Jinja; NULL: the row */
    const char *row;                    /* of the registry, for a foreign api; NULL: none is near */
    const char *const *variables;       /* name, text, …, NULL */
};

const struct family *family_at(size_t index);               /* NULL past the end */
const struct family *family_named(const char *name);        /* NULL: none */
/* The first whose rule of names, of architectures, of end tokens takes the text; NULL: none does. */
const struct family *family_of_name(const char *name);
const struct family *family_of_architecture(const char *architecture);
const struct family *family_of_end(const char *token);

/* A template of the registry by name: its Jinja text with the special tokens of the checkpoint (may be NULL), else its row.
 * FAMILY_UNKNOWN: neither, *ret is untouched. */
enum { FAMILY_UNKNOWN = 1 };
int registry_chat(const char *name, const struct template_files *files, const struct conv_registry *registry,
                  struct chat_template **ret, struct err *err);
/* The family's template: what the registry has under its name, which an administrator may have put there, else its own, with
 * the special tokens of the checkpoint before its variables. wire: the row for a foreign api where the family has none; may be NULL. */
int family_chat(const struct family *f, const struct template_files *files, const struct conv_registry *registry,
                const struct conv_template *wire, struct chat_template **ret, struct err *err);

#endif
