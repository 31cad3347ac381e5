#include "cli/words.h"

#include "base/buf.h"
#include "base/err.h"

#include <errno.h>
#include <string.h>

struct split {
    const char *at;
    struct words words;
    struct buf word;
    bool in_word;               /* also for an empty one: '' */
};

static int add_word(struct split *s, struct err *err)
{
    char **more;
    char *word;

    if (!s->in_word)
        return 0;
    s->in_word = false;
    if (s->words.n == WORDS_MAX)
        return err_set(err, -E2BIG, "a command of more than %d words", WORDS_MAX);
    more = realloc(s->words.word, (s->words.n + 1) * sizeof *more);
    if (!more)
        return err_set(err, -ENOMEM, "no memory");
    s->words.word = more;
    buf_add(&s->word, "", 0);
    word = s->word.len ? buf_take(&s->word) : strdup("");
    if (!word)
        return err_set(err, -ENOMEM, "no memory");
    s->words.word[s->words.n++] = word;
    buf_clear(&s->word);
    return 0;
}

/* `s->at` is behind a backslash. Before a newline both are nothing. */
static void take_escaped(struct split *s)
{
    if (*s->at == '\r' && s->at[1] == '\n')
        s->at++;
    if (*s->at == '\n') {
        s->at++;
        return;
    }
    s->in_word = true;
    if (*s->at)
        buf_addc(&s->word, *s->at++);
}

static int take_quoted(struct split *s, char quote, struct err *err)
{
    s->in_word = true;
    for (; *s->at && *s->at != quote; s->at++) {
        if (quote == '"' && *s->at == '\\' && s->at[1] && strchr("$`\"\\\n", s->at[1])) {
            s->at++;
            if (*s->at == '\n')
                continue;
        } else if (quote == '"' && (*s->at == '$' || *s->at == '`')) {
            s->words.expands = true;
        }
        buf_addc(&s->word, *s->at);
    }
    if (!*s->at)
        return err_set(err, -EINVAL, "a %c does not end", quote);
    s->at++;
    return 0;
}

/* '>', '>>', '2>&1', '<': with what stands in front if it is a number, and the
 * word behind. */
static int skip_redirection(struct split *s, struct err *err)
{
    if (s->in_word && strspn(buf_str(&s->word), "0123456789") == s->word.len) {
        buf_clear(&s->word);
        s->in_word = false;
    }
    if (add_word(s, err) < 0)
        return err->code;
    s->at += strspn(s->at, "<>&|");
    s->at += strspn(s->at, " \t");
    s->at += strcspn(s->at, " \t\r\n;&|");
    return 0;
}

/* One step. 0; WORDS_END: the command has ended; -errno. */
static int step(struct split *s, struct err *err)
{
    char c = *s->at;

    if (c == ' ' || c == '\t' || c == '\r') {
        s->at++;
        return add_word(s, err);
    }
    if (c == '\0' || c == '\n' || c == ';' || c == '&' || c == '|') {
        s->at += c != '\0';
        return add_word(s, err) < 0 ? err->code : WORDS_END;
    }
    if (c == '<' || c == '>')
        return skip_redirection(s, err);
    if (c == '#' && !s->in_word) {
        s->at += strcspn(s->at, "\n");
        return 0;
    }
    s->at++;
    if (c == '\'' || c == '"')
        return take_quoted(s, c, err);
    if (c == '\\') {
        take_escaped(s);
        return 0;
    }
    s->words.expands |= c == '$' || c == '`';
    s->in_word = true;
    buf_addc(&s->word, c);
    return 0;
}

int words_next(const char **at, struct words *ret, struct err *err)
{
    struct split s = { .at = *at, .word.limit = 1 << 20 };
    struct err own = { 0 };
    int r;

    do {
        r = step(&s, err ? err : &own);
    } while (r == 0 || (r == WORDS_END && s.words.n == 0 && *s.at));
    *at = s.at;
    if (r >= 0 && s.word.failed)
        r = err_set(err, -E2BIG, "a word of more than a megabyte");
    buf_fini(&s.word);
    if (r < 0 || s.words.n == 0) {
        words_fini(&s.words);
        return r < 0 ? r : WORDS_END;
    }
    *ret = s.words;
    return 0;
}

void words_fini(struct words *w)
{
    for (size_t i = 0; i < w->n; i++)
        free(w->word[i]);
    free(w->word);
    *w = (struct words){ 0 };
}
