/* template_files.h - what a checkpoint says about its chats: templates by name, the texts of special tokens, what it is.
 *
 * From a GGUF file: tokenizer.chat_template is "default", tokenizer.chat_template.NAME is NAME. From a folder
 * of Hugging Face's: chat_template.jinja is "default" and additional_chat_templates/NAME.jinja is NAME; where
 * there is none of them, chat_template of tokenizer_config.json, a text or a list of {name, template}; where that
 * says nothing, the one of chat_template.json. (Files beside each other count as transformers has it, but for one
 * thing: a folder with only named .jinja files keeps the default of its configuration.) A template of no text is none.
 *
 * Special tokens are those of tokenizer_config.json, each a text or {"content": text}; special_tokens_map.json goes
 * before, but only where the former has no added_tokens_decoder. Of a GGUF file, the texts of its token ids.
 *
 * Templates are not read further here: they may be no Jinja at all. Everything is copied.
 *
 * Limits   TEMPLATE_MAX_*; a file above them is refused, not cut
 * Threads  constant after opening: any
 * Source   transformers 4.57, tokenization_utils_base.py: _from_pretrained, special_tokens_map; gguf-py's constants
 */
#ifndef LOADERS_TEMPLATE_FILES_H
#define LOADERS_TEMPLATE_FILES_H

#include "base/cleanup.h"

#include <stddef.h>

struct err;
struct gguf;
struct template_files;

enum {
    TEMPLATE_MAX_FILE = 1 << 24,    /* bytes of a JSON file */
    TEMPLATE_MAX_TEXT = 1 << 20,    /* of a template */
    TEMPLATE_MAX_TOKEN = 1 << 10,   /* of a special token */
    TEMPLATE_MAX_NAME = 100,
    TEMPLATE_MAX_TEMPLATES = 64,
    TEMPLATE_MAX_TOKENS = 256,
};

struct template_file {
    const char *name;               /* "default", "tool_use" */
    const char *text;               /* UTF-8, NUL behind it */
    size_t len;
    const char *from;               /* "chat_template.jinja", "tokenizer.chat_template.tool_use" */
};

struct template_token {
    const char *name, *text;        /* "bos_token", "<s>" */
};

/* 0 and what the caller frees; a checkpoint that says nothing is no failure. -EINVAL: a file is wrong; -E2BIG: over a
 * limit; -ENOENT, -EACCES, -ENOMEM; with a sentence that names file and key. */
int template_files_open(const char *path, struct template_files **ret, struct err *err);       /* a GGUF file or a folder */
int template_files_of_gguf(const struct gguf *g, struct template_files **ret, struct err *err);
/* The files of a folder, by their names in it; others than those above are passed over. `place` is for messages. */
struct template_text { const char *name, *text; size_t len; };
int template_files_of_texts(const char *place, const struct template_text *texts, size_t n, struct template_files **ret,
                            struct err *err);
void template_files_free(struct template_files *t); /* NULL is fine */
DEFINE_CLEANUP(struct template_files *, template_files_free)

/* All of them, "default" first where there is one. */
const struct template_file *template_files_all(const struct template_files *t, size_t *ret_n);
const struct template_token *template_files_tokens(const struct template_files *t, size_t *ret_n);
/* general.architecture, or model_type of config.json; NULL: not said. */
const char *template_files_architecture(const struct template_files *t);
/* general.name of a GGUF file, which stays when the file is renamed; NULL: not said. */
const char *template_files_model_name(const struct template_files *t);

#endif
