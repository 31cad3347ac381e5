/* template.h - what the files of this room share: a template's fields and the separator styles.
 */
#ifndef CONV_TEMPLATE_H
#define CONV_TEMPLATE_H

#include "conv/conv.h"

/* The contract's numbers, appendix A.1. */
enum conv_style {
    CONV_ADD_COLON_SINGLE = 1, CONV_ADD_COLON_TWO, CONV_ADD_COLON_SPACE_SINGLE, CONV_NO_COLON_SINGLE,
    CONV_NO_COLON_TWO, CONV_ADD_NEW_LINE_SINGLE, CONV_LLAMA2, CONV_LLAMA3, CONV_CHATGLM, CONV_CHATML,
    CONV_CHATINTERN, CONV_DOLLY, CONV_RWKV, CONV_PHOENIX, CONV_ROBIN, CONV_FALCON_CHAT, CONV_CHATGLM3,
    CONV_DEEPSEEK_CHAT, CONV_METAMATH, CONV_YUAN2, CONV_GEMMA, CONV_CLLM, CONV_DEFAULT,
    CONV_N_STYLES,
};

/* Where the system text may stand in; the rest of a system template is written as it is. */
#define CONV_SLOT "{system_message}"

struct conv_preset { const char *role, *text; };    /* text NULL: an open turn */

struct conv_template {
    const char *name;
    const char *system_template;            /* with CONV_SLOT */
    const char *system_message, *system_message_vision;
    const char *roles[2];                   /* user, assistant */
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
    bool strip, one_blank_line, last_two;   /* texts trimmed; blank lines halved; only the last two turns */
};

/* NULL for a number that is no style or that is not supported. */
const struct style *conv_style_facts(int64_t number);
/* "CHATML", also of a style that is not supported; NULL for a number that is none. */
const char *conv_style_name(int64_t number);

#endif
