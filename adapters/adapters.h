/* adapters.h - from what is known of a checkpoint to how its chats are written.
 *
 * Two tables. The contract's 101 adapters, in their order: a model's path to a template of the
 * registry and facts about loading. And families, from what the checkpoints themselves publish (GGUF architecture,
 * config.json's model_type, names), which the contract's table knows nothing of.
 *
 * The rule that a service uses is adapters_choose(): a configured name, else the
 * checkpoint's own chat template, else a family's, else the contract's adapter (choose.c has the reasons).
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

struct buf;
struct chat_template;
struct conv_registry;
struct err;
struct template_files;

struct adapter;                         /* a row of adapters.def */

/* Which text of a path decided. */
enum adapter_matched { ADAPTER_BASENAME, ADAPTER_FULL_PATH, ADAPTER_DEFAULT };

/* The adapter of a model's path, never NULL: the first that takes the path's last component (dots and slashes resolved),
 * else the first that takes the path as it is, else the last row. ret_matched may be NULL. Touches no file but
 * PATH/adapter_config.json. The contract also looks for the last component's alone, in whatever
 * folder the process happens to be; here that counts only where it is the path. */
const struct adapter *adapter_find(const char *path, enum adapter_matched *ret_matched);
/* The first adapter that takes a text as it is; a folder of it is not looked into. */
const struct adapter *adapter_of_text(const char *text);
const char *adapter_class(const struct adapter *a);                 /* "VicunaAdapter" */
uint32_t adapter_index(const struct adapter *a);
/* By number, for listings: NULL past the end. */
const struct adapter *adapter_at(uint32_t index);
/* The name of the template for the path; for a PEFT path that of its base model, which PATH/adapter_config.json names. 0;
 * -EINVAL with a sentence when that file is missing or wrong, or names one that itself holds "peft"; -ELOOP: bases of bases. */
int adapter_template(const struct adapter *a, const char *path, const char **ret, struct err *err);
/* The base model that PATH/adapter_config.json names, appended. -ENOENT without such a file, -EINVAL for a wrong one. */
int adapter_base_model(const char *path, struct buf *ret, struct err *err);

/* How the contract loads a model with it: loading.def has the words. */
struct adapter_loading {
    const char *class;                  /* whose way of loading it is */
    bool fast_tokenizer;                /* what "use_fast" among the tokenizer's words is */
    const char *tokenizer, *model;      /* NULL: nothing is read */
    const char *after;                  /* NULL: nothing */
    const char *loop;                   /* "chatglm": the generation loop of the usual model class, or NULL */
};
struct adapter_loading adapter_loading(const struct adapter *a);
/* The loop that the contract generates with ("chatglm", …; NULL: the common one), by the model's class
 * ("transformers.models.llama.modeling_llama.LlamaForCausalLM", with its module) and path; share: PEFT adapters share one base. */
const char *adapter_loop(const char *model_class, const char *path, bool share);

enum template_why { TEMPLATE_CONFIGURED, TEMPLATE_OWN, TEMPLATE_FAMILY, TEMPLATE_ADAPTER, TEMPLATE_DEFAULT };

struct template_question {
    const char *configured;             /* the config's `template`; "auto" or NULL: nothing said */
    const char *path;                   /* of the checkpoint */
    const char *model_name;             /* what the service calls it */
    const char *architecture;           /* NULL: what the files say */
    const struct template_files *files; /* loaders/template_files.h: the checkpoint's own */
    const struct conv_registry *registry;           /* must live as long as what comes of it; NULL: the built-in rows */
};                                      /* each may be NULL */

struct template_choice {
    enum template_why why;
    char reason[256];                   /* for a person: "its own, tokenizer.chat_template; also tool_use" */
    struct chat_template *chat;         /* the caller frees it */
};

/* 0, or -EINVAL: a configured name that nothing has, with the nearest; the checkpoint's own template does not
 * compile; its adapter_config.json is wrong. -E2BIG, -ENOMEM. On failure *ret is untouched. */
int adapters_choose(const struct template_question *q, struct template_choice *ret, struct err *err);

#endif
