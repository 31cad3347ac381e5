/* Each step reads one text and appends another; between steps two buffers take turns.
 *
 * Beside the text goes one bit: whether its first byte still stems from the first byte of the whole text, for a Metaspace that
 * marks the start asks that. Hugging Face's keeps an offset for every byte; the bit is what is used of it here.
 */
#include "loaders/tok/normalize.h"

#include "base/buf.h"
#include "base/err.h"
#include "base/utf8.h"
#include "loaders/tok/alphabet.h"
#include "loaders/tok/charsmap.h"
#include "loaders/tok/regex.h"

#include <errno.h>
#include <string.h>

/* The versions of Unicode that the tables of Hugging Face's parts have: what came later has no class there. */
enum { BERT_VERSION = 8, MARKS_VERSION = 9 };

struct steps {
    struct normalizer base;
    size_t n;
    struct normalize_step steps[];
};

static void release(const struct normalize_step *s)
{
    free((char *)s->text.text);
    pattern_free(s->pattern);
    charsmap_free(s->map);
}

static void steps_free(struct normalizer *n)
{
    struct steps *s = (struct steps *)n;

    for (size_t i = 0; i < s->n; i++)
        release(&s->steps[i]);
    free(s);
}

/* The next character; a byte that is none comes as itself with *bad. */
static size_t character(const char *text, size_t len, uint32_t *ret, bool *bad)
{
    int n = utf8_decode(text, len, ret);

    *bad = n <= 0;
    return n > 0 ? (size_t)n : 1;
}

static void add_character(struct buf *out, uint32_t c)
{
    char bytes[4];

    buf_add(out, bytes, (size_t)utf8_encode(c, bytes));
}

/* Steps that look at one character at a time: appends what it becomes; false: it goes. */
typedef bool (*character_fn)(const struct normalize_step *s, uint32_t c, struct buf *out);

static void run_characters(const struct normalize_step *s, character_fn fn, const char *text, size_t len, bool *at_start, struct buf *out)
{
    bool first = true, bad;
    uint32_t c;

    for (size_t i = 0, n; i < len; i += n) {
        n = character(text + i, len - i, &c, &bad);
        if (bad)
            buf_addc(out, text[i]);
        else if (!fn(s, c, out) && first)
            *at_start = false;
        else
            first = false;
    }
}

static bool lower(const struct normalize_step *s, uint32_t c, struct buf *out)
{
    uint32_t to[3];

    if (c < 0x80) {
        buf_addc(out, (char)(c >= 'A' && c <= 'Z' ? c + 32 : c));
        return true;
    }
    for (int i = 0, n = unicode_lower(c, to); i < n; i++)
        add_character(out, to[i]);
    return true;
}

static bool strip_accent(const struct normalize_step *s, uint32_t c, struct buf *out)
{
    bool mark = unicode_class(c) & UC_MARK && unicode_age(c) <= MARKS_VERSION && c != 0x111C9;

    if (mark || c == 0x1CF2 || c == 0x1CF3)     /* these three have changed since */
        return false;
    add_character(out, c);
    return true;
}

/* Mn, as it was. */
static bool is_nonspacing(uint32_t c)
{
    static const uint32_t changed[] = { 0x1734, 0x1885, 0x1886, 0xA9BD, 0x111C9, 0x1171E };
    bool is = unicode_class(c) & UC_MARK && unicode_age(c) <= BERT_VERSION && strcmp(unicode_category(c), "Mn") == 0;

    for (size_t i = 0; i < sizeof changed / sizeof changed[0]; i++)
        if (changed[i] == c)
            return !is;
    return is;
}

static bool strip_nonspacing(const struct normalize_step *s, uint32_t c, struct buf *out)
{
    if (c >= 0x300 && is_nonspacing(c))
        return false;
    add_character(out, c);
    return true;
}

static bool nmt(const struct normalize_step *s, uint32_t c, struct buf *out)
{
    if ((c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F)
        return false;
    if (c == 9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 || (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 ||
        c == 0x2581 || c == 0xFEFF || c == 0xFFFD)
        c = ' ';
    add_character(out, c);
    return true;
}

static bool clean(const struct normalize_step *s, uint32_t c, struct buf *out)
{
    const char *category;

    if (c == '\t' || c == '\n' || c == '\r' || c == ' ') {
        buf_addc(out, ' ');
        return true;
    }
    if (c >= 0x20 && c < 0x7F) {
        buf_addc(out, (char)c);
        return true;
    }
    category = unicode_category(c);
    if (c == 0 || c == 0xFFFD || (category[0] == 'C' && category[1] != 'n' && category[1] != 's' && unicode_age(c) <= BERT_VERSION))
        return false;
    add_character(out, unicode_class(c) & UC_SPACE ? ' ' : c);
    return true;
}

/* U+2B920, not U+2B820, is what Hugging Face's has. */
static bool is_chinese(uint32_t c)
{
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
           (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
           (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

static bool space_chinese(const struct normalize_step *s, uint32_t c, struct buf *out)
{
    bool chinese = is_chinese(c);

    if (chinese)
        buf_addc(out, ' ');
    add_character(out, c);
    if (chinese)
        buf_addc(out, ' ');
    return true;
}

/* Strip. */

static size_t leading_space(const char *text, size_t len)
{
    size_t i = 0;
    uint32_t c;
    bool bad;

    while (i < len) {
        size_t n = character(text + i, len - i, &c, &bad);

        if (bad || !(unicode_class(c) & UC_SPACE))
            break;
        i += n;
    }
    return i;
}

/* The length without the white space at the end. */
static size_t without_trailing_space(const char *text, size_t len)
{
    while (len) {
        size_t from = len - 1;
        uint32_t c;

        while (from > 0 && len - from < 4 && ((unsigned char)text[from] & 0xC0) == 0x80)
            from--;
        if (utf8_decode(text + from, len - from, &c) != (int)(len - from) || !(unicode_class(c) & UC_SPACE))
            break;
        len = from;
    }
    return len;
}

static void run_strip(const struct normalize_step *s, const char *text, size_t len, bool *at_start, struct buf *out)
{
    size_t from = s->left ? leading_space(text, len) : 0;

    if (s->right)
        len = from + without_trailing_space(text + from, len - from);
    if (from)
        *at_start = false;
    buf_add(out, text + from, len - from);
}

/* Replace. */

static bool is_one_character(const char *text, size_t len)
{
    uint32_t c;

    return len && utf8_decode(text, len, &c) == (int)len;
}

static int run_replace(const struct normalize_step *s, const char *text, size_t len, bool *at_start, struct buf *out, struct err *err)
{
    struct pattern_walk w;
    size_t at = 0, start, end;
    int e = pattern_begin(&w, s->pattern, text, len);

    for (; e == 0 && (e = pattern_next(&w, &start, &end)) == 0; at = end) {
        if (start == 0 && end && (!s->text.len || !is_one_character(text, end)))
            *at_start = false;
        buf_add(out, text + at, start - at);
        buf_add(out, s->text.text, s->text.len);
    }
    pattern_end(&w);
    if (e == PATTERN_END) {
        buf_add(out, text + at, len - at);
        return 0;
    }
    return err_set(err, e, e == -ENOMEM ? "no memory for a text of %zu bytes" :
                   "the tokenizer's regular expression takes too long for a text of %zu bytes", len);
}

/* Precompiled: whole grapheme clusters of fewer than 6 bytes are looked up first. Only those clusters matter, so the rules that need
 * more bytes (Hangul, flags, emoji sequences, Indic conjuncts) are not here. UAX 29, Unicode 16. */

/* Prepended_Concatenation_Mark, and consonants in front of their base. */
static bool is_prepended(uint32_t c)
{
    static const uint32_t marks[] = { 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0xD4E, 0x110BD, 0x110CD, 0x111C2, 0x111C3, 0x113D1, 0x1193F,
                                      0x11941, 0x11A3A, 0x11A84, 0x11A85, 0x11A86, 0x11A87, 0x11A88, 0x11A89, 0x11D46, 0x11F02 };

    if (c >= 0x600 && c <= 0x605)
        return true;
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++)
        if (marks[i] == c)
            return true;
    return false;
}

/* Spacing marks that are a cluster of their own. */
static bool is_loose_mark(uint32_t c)
{
    static const uint32_t ranges[][2] = {
        { 0x102B, 0x102C }, { 0x1038, 0x1038 }, { 0x1062, 0x1064 }, { 0x1067, 0x106D }, { 0x1083, 0x1083 }, { 0x1087, 0x108C },
        { 0x108F, 0x108F }, { 0x109A, 0x109C }, { 0x1A61, 0x1A61 }, { 0x1A63, 0x1A64 }, { 0xAA7B, 0xAA7B }, { 0xAA7D, 0xAA7D },
        { 0x11720, 0x11721 },
    };

    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        if (c >= ranges[i][0] && c <= ranges[i][1])
            return true;
    return false;
}

/* Extend, SpacingMark, ZWJ: never the first of a cluster that has another in front. */
static bool is_extending(uint32_t c)
{
    if (c < 0x300)
        return false;
    if (unicode_class(c) & UC_MARK)
        return !is_loose_mark(c);
    return c == 0x200C || c == 0x200D || c == 0xE33 || c == 0xEB3 || c == 0xFF9E || c == 0xFF9F || (c >= 0x1F3FB && c <= 0x1F3FF) ||
           (c >= 0xE0020 && c <= 0xE007F);
}

/* Control: a cluster of its own, whatever follows; format characters are, but for the two sorts above, and unassigned ones that
 * are ignored by default. */
static bool is_control(uint32_t c)
{
    const char *category = unicode_category(c);

    if (strcmp(category, "Cc") == 0 || strcmp(category, "Zl") == 0 || strcmp(category, "Zp") == 0)
        return true;
    if (strcmp(category, "Cf") == 0)
        return !is_extending(c) && !is_prepended(c);
    return strcmp(category, "Cn") == 0 && (c == 0x2065 || (c >= 0xFFF0 && c <= 0xFFF8) || (c >= 0xE0000 && c <= 0xE0FFF));
}

static size_t cluster_length(const char *text, size_t len)
{
    uint32_t c, next;
    bool bad;
    size_t at = character(text, len, &c, &bad);

    if (bad || is_control(c))
        return c == '\r' && !bad && at < len && text[at] == '\n' ? 2 : at;
    while (at < len) {
        size_t n = character(text + at, len - at, &next, &bad);

        if (bad || (!is_extending(next) && !(is_prepended(c) && !is_control(next))))
            break;
        at += n;
        c = next;
    }
    return at;
}

static void add_mapped(const struct charsmap *m, const char *text, size_t len, struct buf *out)
{
    struct tok_str to = { text, (uint32_t)len };

    charsmap_first(m, text, len, &to);
    buf_add(out, to.text, to.len);
}

static void run_precompiled(const struct charsmap *m, const char *text, size_t len, struct buf *out)
{
    enum { LOOKED_UP_WHOLE = 6 };
    struct tok_str to;

    for (size_t i = 0, n; i < len; i += n) {
        n = cluster_length(text + i, len - i);
        if (n < LOOKED_UP_WHOLE && charsmap_first(m, text + i, n, &to)) {
            buf_add(out, to.text, to.len);
            continue;
        }
        for (size_t j = i, one; j < i + n; j += one) {
            uint32_t c;
            bool bad;

            one = character(text + j, i + n - j, &c, &bad);
            add_mapped(m, text + j, one, out);
        }
    }
}

/* BertNormalizer: up to four of the steps above, one behind the other. */
static void run_bert(const struct normalize_step *s, const char *text, size_t len, bool *at_start, struct buf *out)
{
    BUF_LOCAL a = BUF_INIT;
    BUF_LOCAL b = BUF_INIT;

    buf_add(&a, text, len);
    if (s->clean) {
        run_characters(s, clean, a.data, a.len, at_start, &b);
        buf_clear(&a);
        buf_add(&a, b.data, b.len);
    }
    if (s->chinese) {
        buf_clear(&b);
        run_characters(s, space_chinese, a.data, a.len, at_start, &b);
        buf_clear(&a);
        buf_add(&a, b.data, b.len);
    }
    if (s->accents) {
        buf_clear(&b);
        unicode_add_normal(&b, UNICODE_NFD, a.data, a.len);
        buf_clear(&a);
        run_characters(s, strip_nonspacing, b.data, b.len, at_start, &a);
    }
    if (s->lower)
        run_characters(s, lower, a.data, a.len, at_start, out);
    else
        buf_add(out, a.data, a.len);
    if (a.failed || b.failed)
        out->failed = true;
}

static int run_step(const struct normalize_step *s, const char *text, size_t len, bool *at_start, struct buf *out, struct err *err)
{
    switch (s->op) {
    case NORMALIZE_FORM:
        if (unicode_is_normal(s->form, text, len))
            buf_add(out, text, len);
        else
            unicode_add_normal(out, s->form, text, len);
        break;
    case NORMALIZE_LOWER: run_characters(s, lower, text, len, at_start, out); break;
    case NORMALIZE_STRIP: run_strip(s, text, len, at_start, out); break;
    case NORMALIZE_STRIP_ACCENTS: run_characters(s, strip_accent, text, len, at_start, out); break;
    case NORMALIZE_REPLACE: return run_replace(s, text, len, at_start, out, err);
    case NORMALIZE_PREPEND:
        if (len)
            buf_add(out, s->text.text, s->text.len);
        buf_add(out, text, len);
        break;
    case NORMALIZE_NMT: run_characters(s, nmt, text, len, at_start, out); break;
    case NORMALIZE_PRECOMPILED: run_precompiled(s->map, text, len, out); break;
    case NORMALIZE_BERT: run_bert(s, text, len, at_start, out); break;
    case NORMALIZE_BYTE_LEVEL: alphabet_encode(text, len, out); break;
    }
    return 0;
}

static int steps_run(const struct normalizer *n, const char *text, size_t len, bool *at_start, struct buf *out, struct err *err)
{
    const struct steps *s = (const struct steps *)n;
    BUF_LOCAL a = BUF_INIT;
    BUF_LOCAL b = BUF_INIT;

    if (s->n == 0)
        buf_add(out, text, len);
    for (size_t i = 0; i < s->n; i++) {
        bool last = i + 1 == s->n;
        struct buf *next = last ? out : i % 2 ? &b : &a;
        int e;

        if (!last)
            buf_clear(next);
        if ((e = run_step(&s->steps[i], text, len, at_start, next, err)) < 0)
            return e;
        if (next->failed)
            return err_set(err, -ENOMEM, "no memory for a text of %zu bytes", len);
        text = buf_str(next);
        len = next->len;
    }
    return out->failed ? err_set(err, -ENOMEM, "no memory for a text of %zu bytes", len) : 0;
}

static char *copy_text(struct tok_str s)
{
    char *copy = malloc(s.len);

    if (copy)
        memcpy(copy, s.text, s.len);
    return copy;
}

static const struct normalizer_ops steps_ops = { .run = steps_run, .free = steps_free };

int normalizer_new(const struct normalize_step *steps, size_t n, struct normalizer **ret)
{
    CLEANUP(normalizer_free) struct normalizer *made = NULL;
    struct steps *s = n <= NORMALIZE_MAX_STEPS ? calloc(1, sizeof *s + n * sizeof s->steps[0]) : NULL;
    int e = s ? 0 : n <= NORMALIZE_MAX_STEPS ? -ENOMEM : -E2BIG;

    if (s) {
        s->base.ops = &steps_ops;
        s->n = n;
        made = &s->base;
    }
    for (size_t i = 0; i < n; i++) {
        struct normalize_step step = steps[i];

        step.text.text = NULL;
        if (s && steps[i].text.len) {
            step.text.text = copy_text(steps[i].text);
            if (!step.text.text)
                e = -ENOMEM;
        }
        if (s)
            s->steps[i] = step;
        else
            release(&step);
    }
    if (e < 0)
        return e;
    *ret = STEAL(made);
    return 0;
}
