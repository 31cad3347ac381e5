/* A piece goes through the steps depth first: what a step cuts off goes at once to the next one, so that the last
 * one's pieces come in order and nothing is listed. A step that changes text does so in a buffer of its own.
 *
 * A step finds spans, which are matches or what lies between, and joins them as its behaviour says. Joining looks at most one span back, so
 * one is held.
 */
#include "loaders/tok/split.h"

#include "base/buf.h"
#include "base/err.h"
#include "base/unicode.h"
#include "base/utf8.h"
#include "loaders/tok/alphabet.h"
#include "loaders/tok/regex.h"
#include "loaders/tok/scan.h"

#include <errno.h>
#include <string.h>

/* The versions of Unicode that the tables of Hugging Face's parts have: what came later has no class there. */
enum { PUNCTUATION_VERSION = 8, SCRIPTS_VERSION = 9 };

struct steps {
    struct splitter base;
    size_t n;
    struct split_step steps[];
};

struct run {
    const struct steps *steps;
    piece_fn fn;
    void *user;
    struct err *err;
};

/* A piece on its way: behind step `next` - 1. */
struct at {
    const struct run *run;
    size_t next;
    bool at_start;              /* it begins at offset 0 of the whole */
};

static int run_from(const struct run *r, size_t i, const char *text, size_t len, bool at_start);

/* A piece of the text that `at` stands for, to the next step. */
static int hand_on(const struct at *at, const char *text, size_t start, size_t end)
{
    if (start == end)
        return 0;
    return run_from(at->run, at->next, text + start, end - start, at->at_start && start == 0);
}

/* Joins spans. */
struct join {
    const struct at *at;
    const char *text;
    enum split_behavior behavior;
    bool invert, held, match;   /* [start, end) is held and is a match */
    size_t start, end;
};

static int join_flush(struct join *j)
{
    if (!j->held)
        return 0;
    j->held = false;
    return hand_on(j->at, j->text, j->start, j->end);
}

static bool joins(const struct join *j, bool match)
{
    switch (j->behavior) {
    case SPLIT_CONTIGUOUS: return match == j->match;
    case SPLIT_MERGED_WITH_PREVIOUS: return match && !j->match;
    case SPLIT_MERGED_WITH_NEXT: return !match && j->match;
    case SPLIT_REMOVED: case SPLIT_ISOLATED: break;
    }
    return false;
}

static int join_span(struct join *j, size_t start, size_t end, bool match)
{
    int e;

    match = match != j->invert;
    if (j->behavior == SPLIT_REMOVED || j->behavior == SPLIT_ISOLATED)
        return match && j->behavior == SPLIT_REMOVED ? 0 : hand_on(j->at, j->text, start, end);
    if (j->held && joins(j, match)) {
        j->end = end;
        j->match = match;
        return 0;
    }
    if ((e = join_flush(j)) != 0)
        return e;
    j->held = true;
    j->match = match;
    j->start = start;
    j->end = end;
    return 0;
}

/* Spans by one character: each that counts is a match of its own. */
typedef bool (*character_fn)(const struct split_step *s, uint32_t c);

static int split_characters(const struct split_step *s, character_fn fn, struct join *j, size_t len)
{
    size_t from = 0;
    int e;

    for (size_t i = 0, n; i < len; i += n) {
        uint32_t c = 0;
        int decoded = utf8_decode(j->text + i, len - i, &c);

        n = decoded > 0 ? (size_t)decoded : 1;
        if (decoded <= 0 || !fn(s, c))
            continue;
        if ((from < i && (e = join_span(j, from, i, false)) != 0) || (e = join_span(j, i, i + n, true)) != 0)
            return e;
        from = i + n;
    }
    if (from < len && (e = join_span(j, from, len, false)) != 0)
        return e;
    return join_flush(j);
}

static bool is_space(const struct split_step *s, uint32_t c)
{
    return unicode_class(c) & UC_SPACE;
}

static bool is_punctuation(const struct split_step *s, uint32_t c)
{
    if (c < 0x80)
        return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126);
    if (c == 0x166D || c == 0x111C9)            /* have changed since */
        return true;
    return unicode_class(c) & UC_PUNCTUATION && unicode_age(c) <= PUNCTUATION_VERSION;
}

static bool is_number(const struct split_step *s, uint32_t c)
{
    return unicode_class(c) & UC_NUMBER;
}

static bool is_the_character(const struct split_step *s, uint32_t c)
{
    return c == s->character;
}

static int split_pattern(const struct split_step *s, struct join *j, size_t len)
{
    struct pattern_walk w;
    size_t at = 0, start, end;
    int e = pattern_begin(&w, s->pattern, j->text, len), out = 0;

    for (; e == 0 && out == 0 && (e = pattern_next(&w, &start, &end)) == 0; at = end) {
        if (at != start)
            out = join_span(j, at, start, false);
        if (out == 0)
            out = join_span(j, start, end, true);
    }
    pattern_end(&w);
    if (out != 0)
        return out;
    if (e != PATTERN_END)
        return err_set(j->at->run->err, e, e == -ENOMEM ? "no memory for a text of %zu bytes" :
                       "the tokenizer's regular expression takes too long for a text of %zu bytes", len);
    if (at != len && (out = join_span(j, at, len, false)) != 0)
        return out;
    return join_flush(j);
}

/* Runs of word characters, and of what is neither that nor white space. */
static int split_words(const struct at *at, const char *text, size_t len)
{
    enum { SPACE, WORD, OTHER } kind = SPACE;
    size_t from = 0;
    int e;

    for (size_t i = 0, n; i < len; i += n) {
        uint32_t c = 0;
        int decoded = utf8_decode(text + i, len - i, &c), now = OTHER;

        n = decoded > 0 ? (size_t)decoded : 1;
        if (decoded > 0)
            now = unicode_is_word(c) ? WORD : unicode_class(c) & UC_SPACE ? SPACE : OTHER;
        if (now == (int)kind)
            continue;
        if (kind != SPACE && (e = hand_on(at, text, from, i)) != 0)
            return e;
        kind = now;
        from = i;
    }
    return kind == SPACE ? 0 : hand_on(at, text, from, len);
}

/* As SentencePiece's trainer sees them: kana is Han, a space belongs to what is before it. NULL: any. */
static const char *script_of(uint32_t c)
{
    const char *script = unicode_script(c);

    if (c == 0x30FC)
        return "Han";
    if (c == ' ' || strcmp(script, "Unknown") == 0 || unicode_age(c) > SCRIPTS_VERSION)
        return NULL;
    return strcmp(script, "Hiragana") == 0 || strcmp(script, "Katakana") == 0 ? "Han" : script;
}

/* What stands in front of the first character with a script is dropped, as in Hugging Face's. */
static int split_scripts(const struct at *at, const char *text, size_t len)
{
    const char *last = NULL;
    size_t from = 0;
    int e;

    for (size_t i = 0, n; i < len; i += n) {
        uint32_t c = 0;
        int decoded = utf8_decode(text + i, len - i, &c);
        const char *script = decoded > 0 ? script_of(c) : NULL;

        n = decoded > 0 ? (size_t)decoded : 1;
        if (!script)
            continue;
        if (!last || strcmp(last, script) != 0) {
            if (last && (e = hand_on(at, text, from, i)) != 0)
                return e;
            from = i;
        }
        last = script;
    }
    return last ? hand_on(at, text, from, len) : 0;
}

static int split_length(const struct split_step *s, const struct at *at, const char *text, size_t len)
{
    size_t from = 0, count = 0;
    int e;

    for (size_t i = 0, n; i < len; i += n) {
        uint32_t c;
        int decoded = utf8_decode(text + i, len - i, &c);

        n = decoded > 0 ? (size_t)decoded : 1;
        if (count++ % s->length != 0 || i == 0)
            continue;
        if ((e = hand_on(at, text, from, i)) != 0)
            return e;
        from = i;
    }
    return hand_on(at, text, from, len);
}

static int no_memory(const struct at *at, size_t len)
{
    return err_set(at->run->err, -ENOMEM, "no memory for a text of %zu bytes", len);
}

static int split_metaspace(const struct split_step *s, const struct at *at, const char *text, size_t len)
{
    BUF_LOCAL out = BUF_INIT;
    char mark[4];
    size_t n = (size_t)utf8_encode(s->character, mark);
    bool marked = *text == ' ' || (len >= n && memcmp(text, mark, n) == 0);

    if (!marked && (s->prepend == SPLIT_PREPEND_ALWAYS || (s->prepend == SPLIT_PREPEND_FIRST && at->at_start)))
        buf_add(&out, mark, n);
    for (const char *end = text + len; text < end;) {
        const char *space = memchr(text, ' ', (size_t)(end - text));

        buf_add(&out, text, (size_t)((space ? space : end) - text));
        if (space)
            buf_add(&out, mark, n);
        text = space ? space + 1 : end;
    }
    if (out.failed)
        return no_memory(at, len);
    if (!s->cut)
        return hand_on(at, out.data, 0, out.len);
    return split_characters(s, is_the_character,
                            &(struct join){ .at = at, .text = out.data, .behavior = SPLIT_MERGED_WITH_NEXT }, out.len);
}

static int prefix_space(const struct at *at, const char *text, size_t len)
{
    BUF_LOCAL out = BUF_INIT;

    if (*text == ' ')
        return hand_on(at, text, 0, len);
    buf_addc(&out, ' ');
    buf_add(&out, text, len);
    return out.failed ? no_memory(at, len) : hand_on(at, out.data, 0, out.len);
}

static int to_alphabet(const struct at *at, const char *text, size_t len)
{
    BUF_LOCAL out = BUF_INIT;

    alphabet_encode(text, len, &out);
    return out.failed ? no_memory(at, len) : hand_on(at, out.data, 0, out.len);
}

struct scanned {
    const struct at *at;
    const char *text;
};

static int scanned_piece(void *user, const char *piece, size_t len)
{
    const struct scanned *s = user;
    size_t start = (size_t)(piece - s->text);

    return hand_on(s->at, s->text, start, start + len);
}

static int run_step(const struct split_step *s, const struct at *at, const char *text, size_t len)
{
    struct join j = { .at = at, .text = text, .behavior = s->behavior, .invert = s->invert };

    switch (s->op) {
    case SPLIT_PATTERN: return split_pattern(s, &j, len);
    case SPLIT_SCAN: return s->scan->run(text, len, scanned_piece, &(struct scanned){ at, text });
    case SPLIT_PREFIX_SPACE: return prefix_space(at, text, len);
    case SPLIT_ALPHABET: return to_alphabet(at, text, len);
    case SPLIT_METASPACE: return split_metaspace(s, at, text, len);
    case SPLIT_SPACE: return split_characters(s, is_space, &j, len);
    case SPLIT_PUNCTUATION: return split_characters(s, is_punctuation, &j, len);
    case SPLIT_DIGITS: return split_characters(s, is_number, &j, len);
    case SPLIT_CHARACTER: return split_characters(s, is_the_character, &j, len);
    case SPLIT_WORDS: return split_words(at, text, len);
    case SPLIT_SCRIPTS: return split_scripts(at, text, len);
    case SPLIT_LENGTH: return split_length(s, at, text, len);
    }
    return 0;
}

/* Step i on a piece that is not empty, and all behind it. */
static int run_from(const struct run *r, size_t i, const char *text, size_t len, bool at_start)
{
    const struct at at = { .run = r, .next = i + 1, .at_start = at_start };

    return i == r->steps->n ? r->fn(r->user, text, len) : run_step(&r->steps->steps[i], &at, text, len);
}

static int steps_run(const struct splitter *s, const char *text, size_t len, bool at_start, struct tok_scratch *scratch, piece_fn fn,
                     void *user, struct err *err)
{
    const struct run r = { .steps = (const struct steps *)s, .fn = fn, .user = user, .err = err };

    return len ? run_from(&r, 0, text, len, at_start) : 0;
}

static void steps_free(struct splitter *s)
{
    struct steps *steps = (struct steps *)s;

    for (size_t i = 0; i < steps->n; i++)
        pattern_free(steps->steps[i].pattern);
    free(steps);
}

static const struct splitter_ops steps_ops = { .run = steps_run, .free = steps_free };

int splitter_new(const struct split_step *steps, size_t n, struct splitter **ret)
{
    struct steps *s = n <= SPLIT_MAX_STEPS ? calloc(1, sizeof *s + n * sizeof s->steps[0]) : NULL;

    if (!s) {
        for (size_t i = 0; i < n; i++)
            pattern_free(steps[i].pattern);
        return n <= SPLIT_MAX_STEPS ? -ENOMEM : -E2BIG;
    }
    s->base.ops = &steps_ops;
    s->n = n;
    memcpy(s->steps, steps, n * sizeof *steps);
    *ret = &s->base;
    return 0;
}
