/* A model file brings its template as Jinja text. Most are one of a few in many spellings, so
 * both sides are brought into a normal form and compared: within tags no space outside of
 * quotes, no trim marks, single quotes, no escapes, attributes as items (message.role as
 * message['role']), neighbouring literals joined; behind a block tag no line feed
 * (trim_blocks). What is equal in that form renders equally; what is not may still, and is
 * then not recognised.
 */
#include "conv/conv.h"

#include "base/buf.h"

#include <ctype.h>
#include <string.h>

enum { MAX_TEMPLATE = 4096 };       /* bytes; a longer one is none of ours */

#define DEFAULT_FLAG                                                                               \
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
#define TURN "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
#define OPEN "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
#define SMOLLM2_SYSTEM                                                                             \
    "{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"              \
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
#define EACH(body) "{% for message in messages %}" body "{% endfor %}"

static const struct { const char *name, *text; } known[] = {
    { "chatml", EACH(TURN) OPEN },
    { "chatml", DEFAULT_FLAG EACH(TURN) OPEN },
    { "smollm2", EACH(SMOLLM2_SYSTEM TURN) OPEN },
};

struct scan {
    const char *at, *end;
    struct buf *out;
};

/* A literal, quotes included; an escape that is not known is kept. */
static void literal(struct scan *s)
{
    static const char from[] = "nt\\'\"", to[] = "\n\t\\'\"";
    char quote = *s->at++;
    size_t n = s->out->len;

    if (n >= 2 && memcmp(s->out->data + n - 2, "'+", 2) == 0)
        s->out->len -= 2;           /* 'a' + 'b' is 'ab' */
    else
        buf_addc(s->out, '\'');
    for (; s->at < s->end && *s->at != quote; s->at++) {
        const char *known_escape = s->at[0] == '\\' && s->at + 1 < s->end ? strchr(from, s->at[1]) : NULL;

        if (known_escape && *known_escape) {
            buf_addc(s->out, to[known_escape - from]);
            s->at++;
        } else {
            buf_addc(s->out, *s->at);
        }
    }
    s->at += s->at < s->end;
    buf_addc(s->out, '\'');
}

/* message.role, but not loop.first */
static bool attribute(struct scan *s)
{
    static const char *const names[] = { "role", "content" };

    for (size_t i = 0; i < 2; i++) {
        size_t n = strlen(names[i]);

        if ((size_t)(s->end - s->at) > n && memcmp(s->at + 1, names[i], n) == 0 &&
            (s->at + n + 1 == s->end || !(isalnum((unsigned char)s->at[n + 1]) || s->at[n + 1] == '_'))) {
            buf_printf(s->out, "['%s']", names[i]);
            s->at += n + 1;
            return true;
        }
    }
    return false;
}

/* From behind "{%" or "{{" to behind the tag's end. */
static void tag(struct scan *s, char kind)
{
    char close = kind == '%' ? '%' : '}';

    while (s->at < s->end) {
        const char *rest = s->at + (*s->at == '-');

        if (s->end - rest >= 2 && rest[0] == close && rest[1] == '}') {
            buf_addc(s->out, close);
            buf_addc(s->out, '}');
            s->at = rest + 2;
            s->at += kind == '%' && s->at < s->end && *s->at == '\n';
            return;
        }
        if (*s->at == '\'' || *s->at == '"')
            literal(s);
        else if (*s->at == '.' && attribute(s))
            continue;
        else if (isspace((unsigned char)*s->at))
            s->at++;
        else
            buf_addc(s->out, *s->at++);
    }
}

static void normalise(const char *text, size_t len, struct buf *out)
{
    struct scan s = { text, text + len, out };

    while (s.at < s.end) {
        if (s.end - s.at >= 2 && s.at[0] == '{' && (s.at[1] == '%' || s.at[1] == '{')) {
            char kind = s.at[1];

            buf_addc(out, '{');
            buf_addc(out, kind);
            s.at += 2;
            s.at += s.at < s.end && *s.at == '-';
            tag(&s, kind);
        } else {
            buf_addc(out, *s.at++);
        }
    }
}

const struct conv_template *conv_match(const char *chat_template)
{
    size_t len = strnlen(chat_template, MAX_TEMPLATE + 1);
    BUF_LOCAL theirs = BUF_INIT;

    if (len > MAX_TEMPLATE)
        return NULL;
    normalise(chat_template, len, &theirs);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        BUF_LOCAL ours = BUF_INIT;

        normalise(known[i].text, strlen(known[i].text), &ours);
        if (!ours.failed && !theirs.failed && ours.len == theirs.len &&
            memcmp(buf_str(&ours), buf_str(&theirs), ours.len) == 0)
            return conv_find(NULL, known[i].name);
    }
    return NULL;
}
