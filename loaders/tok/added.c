/* The texts stand sorted by their bytes. Where the first two bytes of a place in the text are those of some token (a bit
 * in a table of 2^16, so that ordinary text passes at a load a byte), the list is narrowed byte by byte to the
 * tokens that agree so far, and the longest one that may match is taken. A walk is as long as what agrees, and behind a match
 * the search goes on at its end.
 */
#include "loaders/tok/tok.h"

#include "base/unicode.h"
#include "base/utf8.h"

#include <errno.h>
#include <string.h>

struct added {
    struct added_token *tokens;             /* sorted by text; of equal texts the first of the list stands first */
    size_t n;
    char *bytes;
    bool first[256];
    uint8_t pairs[1 << 13];                 /* a bit for each two bytes that some token begins with */
};

struct sorting { struct added_token t; size_t place; };

static int by_text(const void *a, const void *b)
{
    const struct sorting *x = a, *y = b;
    size_t n = x->t.text.len < y->t.text.len ? x->t.text.len : y->t.text.len;
    int order = memcmp(x->t.text.text, y->t.text.text, n);

    if (order == 0)
        order = (x->t.text.len > y->t.text.len) - (x->t.text.len < y->t.text.len);
    return order ? order : (x->place > y->place) - (x->place < y->place);
}

static bool same_text(struct tok_str a, struct tok_str b)
{
    return a.len == b.len && memcmp(a.text, b.text, a.len) == 0;
}

static void set_pair(struct added *a, unsigned pair)
{
    a->pairs[pair >> 3] |= (uint8_t)(1 << (pair & 7));
}

static void note_beginning(struct added *a, struct tok_str s)
{
    unsigned first = (unsigned char)s.text[0];

    a->first[first] = true;
    if (s.len > 1)
        set_pair(a, first << 8 | (unsigned char)s.text[1]);
    for (unsigned second = 0; s.len == 1 && second < 256; second++)
        set_pair(a, first << 8 | second);
}

int added_new(const struct added_token *tokens, size_t n, struct added **ret)
{
    CLEANUP(added_free) struct added *a = calloc(1, sizeof *a);
    CLEANUP(mem_free) struct sorting *order = calloc(n + 1, sizeof *order);
    size_t bytes = 0, m = 0;

    for (size_t i = 0; i < n; i++)
        bytes += tokens[i].text.len;
    if (!a || !order || !(a->tokens = calloc(n + 1, sizeof *a->tokens)) || !(a->bytes = malloc(bytes + 1)))
        return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        if (tokens[i].text.len)
            order[m++] = (struct sorting){ tokens[i], i };
    qsort(order, m, sizeof *order, by_text);
    bytes = 0;
    for (size_t i = 0; i < m; i++) {
        struct added_token *t = &a->tokens[a->n];

        if (a->n && same_text(t[-1].text, order[i].t.text))
            continue;
        *t = order[i].t;
        memcpy(a->bytes + bytes, t->text.text, t->text.len);
        t->text.text = a->bytes + bytes;
        bytes += t->text.len;
        note_beginning(a, t->text);
        a->n++;
    }
    *ret = STEAL(a);
    return 0;
}

void added_free(struct added *a)
{
    if (!a)
        return;
    free(a->tokens);
    free(a->bytes);
    free(a);
}

/* The first of tokens[low..high) whose byte at `depth` is not below `byte`. All of them are longer than depth. */
static size_t lower_bound(const struct added *a, size_t low, size_t high, size_t depth, unsigned byte)
{
    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if ((unsigned char)a->tokens[mid].text.text[depth] < byte)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

struct permission { bool special; const uint8_t *trusted; };

static bool may_match(const struct added_token *t, struct permission p, size_t at)
{
    return !t->special || (p.special && (!p.trusted || !memchr(p.trusted + at, 0, t->text.len)));
}

/* The longest token at text[at..len) that may match, or NULL. */
static const struct added_token *match_at(const struct added *a, const char *text, size_t len, size_t at, struct permission p)
{
    const struct added_token *found = NULL;
    size_t low = 0, high = a->n;

    for (size_t depth = 0; low < high; depth++) {
        unsigned byte;

        if (a->tokens[low].text.len == depth) {         /* the shortest sorts first */
            if (may_match(&a->tokens[low], p, at))
                found = &a->tokens[low];
            low++;
        }
        if (at + depth == len)
            break;
        byte = (unsigned char)text[at + depth];
        low = lower_bound(a, low, high, depth, byte);
        high = lower_bound(a, low, high, depth, byte + 1);
    }
    return found;
}

/* The character that ends before text[at], at > 0: its first byte; *ret U+FFFD where there is no whole one. */
static size_t character_before(const char *text, size_t at, uint32_t *ret)
{
    for (size_t back = 1; back <= 4 && back <= at; back++)
        if (utf8_decode(text + at - back, back, ret) == (int)back)
            return at - back;
    *ret = 0xFFFD;
    return at - 1;
}

static size_t character_after(const char *text, size_t len, size_t at, uint32_t *ret)
{
    int n = utf8_decode(text + at, len - at, ret);

    if (n > 0)
        return at + (size_t)n;
    *ret = 0xFFFD;
    return at + 1;
}

static bool is_space(uint32_t c)
{
    return unicode_class(c) & UC_SPACE;
}

static bool stands_alone(const char *text, size_t len, size_t start, size_t end)
{
    uint32_t c;

    if (start > 0) {
        character_before(text, start, &c);
        if (unicode_is_word(c))
            return false;
    }
    if (end == len)
        return true;
    character_after(text, len, end, &c);
    return !unicode_is_word(c);
}

static size_t space_before(const char *text, size_t from, size_t at)
{
    while (at > from) {
        uint32_t c;
        size_t before = character_before(text, at, &c);

        if (before < from || !is_space(c))
            break;
        at = before;
    }
    return at;
}

static size_t space_after(const char *text, size_t len, size_t at)
{
    while (at < len) {
        uint32_t c;
        size_t after = character_after(text, len, at, &c);

        if (!is_space(c))
            break;
        at = after;
    }
    return at;
}

bool added_next(const struct added *a, const char *text, size_t len, struct added_cursor *c, bool special, const uint8_t *trusted,
                struct added_match *ret)
{
    const struct permission p = { special, trusted };

    for (size_t i = c->at; i < len; i++) {
        const struct added_token *t;
        unsigned pair;
        size_t start = i, end;

        if (!a->first[(unsigned char)text[i]])
            continue;
        pair = (unsigned)(unsigned char)text[i] << 8 | (i + 1 < len ? (unsigned char)text[i + 1] : 0);
        if (i + 1 < len && !(a->pairs[pair >> 3] & 1 << (pair & 7)))
            continue;
        t = match_at(a, text, len, i, p);
        if (!t)
            continue;
        end = i + t->text.len;
        c->at = end;
        if (t->single_word && !stands_alone(text, len, start, end)) {
            i = end - 1;
            continue;
        }
        if (t->lstrip)
            start = start > c->done ? space_before(text, c->done, start) : c->done;
        if (t->rstrip)
            end = space_after(text, len, end);
        if (start >= end) {                     /* of white space, and all given away: it is nothing, as in Hugging Face's */
            i = c->at - 1;
            continue;
        }
        c->done = end;
        *ret = (struct added_match){ start, end, t->id };
        return true;
    }
    c->at = len;
    return false;
}
