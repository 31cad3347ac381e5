#include "adapters/rule.h"

#include "base/buf.h"

#include <string.h>
#include <unistd.h>

enum fold {
    FOLD_NONE = 0,
    FOLD_LOWER = 1,
    FOLD_BLIND = 2,
    FOLD_LOWER_BLIND = FOLD_LOWER | FOLD_BLIND,
};

/* Text, folded as it is read. All bytes of a character that folds to nothing of ASCII stay: no word has them. */
struct reader {
    const char *at;
    enum fold fold;
    const char *rest;               /* of a character that became several bytes */
};

static int fold_byte(struct reader *r)
{
    static const struct { const char *from, *lower, *blind; } others[] = {
        { "\xc4\xb0", "i\xcc\x87", "i" },           /* I with a dot above */
        { "\xc4\xb1", "\xc4\xb1", "i" },            /* dotless i */
        { "\xc5\xbf", "\xc5\xbf", "s" },            /* long s */
        { "\xe2\x84\xaa", "k", "k" },               /* Kelvin sign */
    };

    if (r->rest && *r->rest)
        return (unsigned char)*r->rest++;
    if (r->fold != FOLD_NONE && (unsigned char)*r->at >= 0x80) {
        for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
            const char *to = r->fold == FOLD_LOWER ? others[i].lower : others[i].blind;

            if (strncmp(r->at, others[i].from, strlen(others[i].from)) != 0)
                continue;
            /* Both: lower case comes first, and it has made two characters of the dotted one. */
            if (r->fold == FOLD_LOWER_BLIND && i == 0)
                to = others[i].lower;
            r->at += strlen(others[i].from);
            r->rest = to + 1;
            return (unsigned char)to[0];
        }
    }
    if (r->fold != FOLD_NONE && *r->at >= 'A' && *r->at <= 'Z')
        return *r->at++ - 'A' + 'a';
    return *r->at ? (unsigned char)*r->at++ : 0;
}

/* One character of a word, or one class; *at moves behind it. */
static bool takes(const char **at, int c)
{
    const char *w = *at;

    if (w[0] == '[') {
        *at += 5;
        return c >= w[1] && c <= w[3];
    }
    (*at)++;
    return c == (unsigned char)w[0];
}

static bool starts(const char *text, enum fold fold, const char *word, size_t len, bool whole)
{
    struct reader r = { .at = text, .fold = fold };

    for (const char *w = word; w < word + len; )
        if (!takes(&w, fold_byte(&r)))
            return false;
    return !whole || fold_byte(&r) == 0;
}

static bool has(const char *text, enum fold fold, const char *word, size_t len)
{
    for (;; text++) {
        if (starts(text, fold, word, len, false))
            return true;
        if (!*text)
            return false;
    }
}

static bool last_component_has(const char *text, const char *word, size_t len)
{
    BUF_LOCAL last = BUF_INIT;
    size_t n = strlen(text);
    const char *slash;

    if (n && text[n - 1] == '/')
        n--;
    slash = memrchr(text, '/', n);
    if (slash) {
        n -= (size_t)(slash + 1 - text);
        text = slash + 1;
    }
    buf_add(&last, text, n);
    return has(buf_str(&last), FOLD_NONE, word, len);
}

static bool folder_has(const char *folder, const char *name, size_t len)
{
    BUF_LOCAL path = BUF_INIT;

    if (!folder)
        return false;
    buf_printf(&path, "%s/%.*s", folder, (int)len, name);
    return !path.failed && access(buf_str(&path), F_OK) == 0;
}

static bool word_holds(const char *word, size_t len, const struct rule_subject *s)
{
    switch (word[0]) {
    case '!':
        return !has(s->text, FOLD_LOWER, word + 1, len - 1);
    case '\'':
        return has(s->text, FOLD_NONE, word + 1, len - 1);
    case '=':
        return starts(s->text, FOLD_NONE, word + 1, len - 1, true);
    case '~':
        return starts(s->text, FOLD_LOWER, word + 1, len - 1, true);
    case '*':
        return has(s->text, FOLD_BLIND, word + 1, len - 1);
    case '+':
        return has(s->text, FOLD_LOWER_BLIND, word + 1, len - 1);
    case '/':
        return last_component_has(s->text, word + 1, len - 1);
    case '@':
        return folder_has(s->folder, word + 1, len - 1);
    default:
        return has(s->text, FOLD_LOWER, word, len);
    }
}

bool rule_holds(const char *rule, const struct rule_subject *subject)
{
    bool all = true;

    while (*rule) {
        size_t len = strcspn(rule, " ");

        if (len == 1 && rule[0] == '|') {
            if (all)
                return true;
            all = true;
        } else if (all) {
            all = word_holds(rule, len, subject);
        }
        rule += len;
        rule += strspn(rule, " ");
    }
    return all;
}
