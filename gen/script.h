/* script.h - a scripted model: what to play instead of computing.
 *
 * A script is a JSON file (docs/wire.md, part 5): plays chosen by a substring
 * of the prompt, each a list of steps. It is read once, checked whole, and
 * never changes afterwards. Its vocabulary has a token for every byte (the
 * byte's value), one end token, and one for every other text that the script
 * plays or names; the same text is always the same token.
 *
 * Limits  SCRIPT_* below; over one of them the script is refused, so that
 *         nobody has to bound a play again
 */
#ifndef GEN_SCRIPT_H
#define GEN_SCRIPT_H

#include "base/cleanup.h"
#include "conv/chat.h"
#include "gen/engine.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct script;

enum {
    SCRIPT_BYTES = 4 << 20,         /* of the file */
    SCRIPT_RULES = 1000,
    SCRIPT_NESTING = 8,             /* repeats within repeats */
    SCRIPT_REPEAT = 1000000,
    SCRIPT_STEPS = 10000000,        /* of one play, repeats multiplied out */
    SCRIPT_STEP_TOKENS = 1024,
    SCRIPT_TEMPLATES = 16, SCRIPT_SPECIALS = 256,
    SCRIPT_WAIT_MS = 86400000,
    SCRIPT_END = 256,               /* the end token */
    SCRIPT_TEXTS = 512,             /* tokens from here on are texts of the script */
};

enum script_kind {
    SCRIPT_TOKENS, SCRIPT_WAIT, SCRIPT_REPEATED, SCRIPT_FAIL, SCRIPT_HANG, SCRIPT_EXIT,
    SCRIPT_SIGNAL, SCRIPT_FINISH, SCRIPT_USAGE, SCRIPT_CLOCK,
};

struct script_play { const struct script_step *steps; size_t n; };

struct script_step {
    enum script_kind kind;
    union {
        struct { const struct engine_token *list; size_t n; } tokens;
        struct { uint64_t us; bool announced; } wait;
        struct { uint32_t times; struct script_play play; } repeat;
        struct { const char *message; int error; } fail;    /* error: -errno */
        struct { uint32_t prompt_tokens, completion_tokens; } usage;
        int number;                 /* exit code or signal */
        const char *finish;         /* "stop" or "length" */
    };
};

/* -ENOENT, -EACCES, -EINVAL, -ENOMEM; the sentence names the file and the place
 * in it ("x.json: rules[1].play[3]: …"). */
int script_open(const char *path, struct script **ret, struct err *err);
void script_close(struct script *s);                /* NULL is fine */
DEFINE_CLEANUP(struct script *, script_close)

/* The same from memory; `name` stands for the file in errors. */
int script_parse(const char *name, const char *text, size_t len, struct script **ret,
                 struct err *err);

uint32_t script_context(const struct script *s);    /* tokens */
uint32_t script_vocab(const struct script *s);      /* tokens, the ids without a text counted */
uint64_t script_load_us(const struct script *s);
/* Fails as the script wants loading to fail: 0 when it does not. */
int script_load_error(const struct script *s, struct err *err);

/* The first rule that matches, else the play without a rule. */
const struct script_play *script_choose(const struct script *s, const char *prompt, size_t len);
/* How its chats are written, as a checkpoint says it: Jinja texts and the map of special tokens; either may be empty. */
const struct chat_source *script_templates(const struct script *s, size_t *ret_n);
const struct chat_token *script_specials(const struct script *s, size_t *ret_n);
/* The special token that text begins with, the longest; -1: none. */
int32_t script_special_at(const struct script *s, const char *text, size_t len, size_t *ret_len);
size_t script_longest(const struct script *s);      /* bytes of the longest token that a text can have */
int32_t script_bos(const struct script *s);         /* the one that prompts begin with; -1: none does */

/* "" for ids that have no text. */
const char *script_token_text(const struct script *s, int32_t id, size_t *ret_len);

#endif
