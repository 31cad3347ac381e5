/* adapters.h - from what is known of a checkpoint to how its chats are written.
 *
 * Two tables. The contract's 101 adapters, in their order: a model's path to a template of the
 * registry and facts about loading. And families, from what the checkpoints themselves publish (GGUF architecture,
 * config.json's model_type, names), which the contract's table knows nothing of.
 *
 * The rule that a service uses is adapters_choose(): a configured name, else the
 * checkpoint's own chat template, else a family's, else the contract's adapter.
 *
 * Threads  constant: any
 * Source   fastchat/model/model_adapter.py of FastChat 0.2.36 (Apache-2.0), by its behaviour; the families' published formats
 */
#ifndef ADAPTERS_ADAPTERS_H
#define ADAPTERS_ADAPTERS_H

#include "base/cleanup.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct chat_template;
struct conv_registry;
struct err;
struct template_files;

struct adapter;                         /* a row; its facts: adapter_facts.h */

/* The adapter of a model's path, never NULL. Touches no file but PATH/adapter_config.json. */
const struct adapter *adapter_find(const char *path);
const char *adapter_class(const struct adapter *a);                 /* "VicunaAdapter" */
uint32_t adapter_index(const struct adapter *a);
/* The name of the template for the path; of a PEFT path that of its base model. -EINVAL with a sentence. */
int adapter_template(const struct adapter *a, const char *path, const char **ret, struct err *err);

enum template_why { TEMPLATE_CONFIGURED, TEMPLATE_OWN, TEMPLATE_FAMILY, TEMPLATE_ADAPTER, TEMPLATE_DEFAULT };

struct template_question {
    const char *configured;             /* the config's `template`; "auto" or NULL: nothing said */
    const char *path;                   /* of the checkpoint */
    const char *model_name;             /* what the service calls it, or NULL */
    const char *architecture;           /* general.architecture or model_type, or NULL */
    const struct template_files *files; /* loaders/template_files.h: the checkpoint's own, may be NULL */
    const struct conv_registry *registry;
};

struct template_choice {
    enum template_why why;
    char reason[256];                   /* for a person: "model.gguf has a chat template of its own" */
    struct chat_template *chat;         /* the caller frees it */
};

/* -EINVAL: a configured name that nothing has, with the nearest; or the checkpoint's own template does not compile. */
int adapters_choose(const struct template_question *q, struct template_choice *ret, struct err *err);

#endif
