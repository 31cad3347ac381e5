/* template.h - what the files of this room share: a template's fields and the separator styles.
 */
#ifndef CONV_TEMPLATE_H
#define CONV_TEMPLATE_H

#include "conv/conv.h"

/* The contract's numbers, appendix A.1. */
enum conv_style {
    CONV_NO_STYLE,                          /* null on the wire: has no prompt */
    CONV_ADD_COLON_SINGLE, CONV_ADD_COLON_TWO, CONV_ADD_COLON_SPACE_SINGLE, CONV_NO_COLON_SINGLE,
    CONV_NO_COLON_TWO, CONV_ADD_NEW_LINE_SINGLE, CONV_LLAMA2, CONV_LLAMA3, CONV_CHATGLM, CONV_CHATML,
    CONV_CHATINTERN, CONV_DOLLY, CONV_RWKV, CONV_PHOENIX, CONV_ROBIN, CONV_FALCON_CHAT, CONV_CHATGLM3,
    CONV_DEEPSEEK_CHAT, CONV_METAMATH, CONV_YUAN2, CONV_GEMMA, CONV_CLLM, CONV_DEFAULT,
    CONV_N_STYLES,
};

enum { CONV_MAX_ROLES = 8 };

/* Where the system text may stand in; the rest of a system template is written as it is. */
#define CONV_SLOT "{system_message}"

struct conv_preset { const char *role, *text; };    /* text NULL: an open turn */

struct conv_template {
    const char *name;
    const char *system_template;            /* with CONV_SLOT */
    const char *system_message;
    const char *system_message_vision;      /* NULL: "" */
    const char *roles[CONV_MAX_ROLES];      /* user, assistant; the others have no use, and NULL ends them */
    const struct conv_preset *messages;     /* that every chat begins with */
    size_t n_messages, offset;              /* the first `offset` of them are examples */
    enum conv_style style;
    const char *sep, *sep2;                 /* NULL: null on the wire, "" in a prompt */
    const char *const *stops;               /* NULL-ended; NULL: none */
    bool stops_list;                        /* a list on the wire, even of one */
    const int32_t *stop_tokens;
    size_t n_stop_tokens;
    double max_image_size_mb;               /* 0: null */
    bool as_file;                           /* like a model file's ChatML: see conv_render() */
    struct arena *owner;                    /* of a template that came as JSON */
};

/* How a style writes the system text and a turn. {S} is the system text, {r} the role, {p} the
 * role by position, {t} the text, {s} sep, {z} sep2, {n} the number of the round; everything else stands
 * for itself. Turns at even and odd positions may differ. */
struct style {
    const char *name;
    enum { SYSTEM_ALWAYS, SYSTEM_IF_TEXT, SYSTEM_IF_MESSAGE, SYSTEM_NEVER } when;
    const char *begin, *system, *no_system;
    const char *turn[2], *open[2], *first;  /* first: the turn at position 0 */
    const char *end, *strip_end;            /* behind all turns; characters that go from their end before that */
    bool strip, one_blank_line, last_two;   /* texts trimmed; blank lines halved; only the last two turns */
};

/* NULL for a number that is no style. */
const struct style *conv_style_facts(int64_t number);

struct conv_text { const char *text; bool trusted; };      /* NULL: none */

struct conv_turn {
    const char *role;
    struct conv_text text;          /* none: left open */
};

/* What conv_render() does once it has the turns: those of the whole prompt, the template's own included. *ret_text is the
 * spans joined, NUL behind. */
int conv_render_turns(const struct conv_template *t, struct conv_text system, const struct conv_turn *turns, size_t n,
                      struct arena *a, struct text_span **ret, size_t *ret_n, const char **ret_text, struct err *err);

/* conv_from_json(); with a name it is not off the wire: the name is that, and numbers are the contract's. */
int conv_read(const cJSON *object, const char *name, struct conv_template **ret, struct err *err);
void conv_write_roles(const struct conv_template *t, struct json_writer *w);               /* "roles":[…] */
void conv_write_pair(const char *role, const char *text, struct json_writer *w);           /* [role,text] */

#endif
