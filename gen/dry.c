#include "gen/dry.h"

#include "base/err.h"
#include "loaders/tokenizer.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TAIL = 20 };         /* tokens behind the first one of a breaker that count */

const char *const dry_default_breakers[DRY_N_DEFAULT] = { "\n", ":", "\"", "*" };

struct sequence {
    int32_t head;
    uint32_t at, n;             /* what follows, in tails */
};

struct dry_breakers {
    atomic_uint refs;
    struct sequence *sequences; /* by head, the shortest first */
    size_t n_sequences, cap;
    int32_t *tails;
    size_t n_tails;
    size_t n_texts;
    char texts[DRY_MAX_BREAKERS][DRY_MAX_BREAKER_BYTES + 1];
};

static int by_head(const void *a, const void *b)
{
    const struct sequence *x = a, *y = b;

    return x->head != y->head ? (x->head > y->head) - (x->head < y->head) : (x->n > y->n) - (x->n < y->n);
}

static int add_sequence(struct dry_breakers *b, struct sequence s)
{
    if (b->n_sequences == b->cap) {
        size_t cap = b->cap ? 2 * b->cap : 64;
        struct sequence *more = reallocarray(b->sequences, cap, sizeof more[0]);

        if (!more)
            return -ENOMEM;
        b->sequences = more;
        b->cap = cap;
    }
    b->sequences[b->n_sequences++] = s;
    return 0;
}

static int add_tail(struct dry_breakers *b, const int32_t *tokens, size_t n, struct sequence *s)
{
    int32_t *more;

    n = n < MAX_TAIL ? n : MAX_TAIL;
    more = reallocarray(b->tails, b->n_tails + n + 1, sizeof more[0]);
    if (!more)
        return -ENOMEM;
    b->tails = more;
    if (n)
        memcpy(b->tails + b->n_tails, tokens, n * sizeof tokens[0]);
    s->at = (uint32_t)b->n_tails;
    s->n = (uint32_t)n;
    b->n_tails += n;
    return 0;
}

/* What follows a token that ends with the first i bytes of the text, for each i. */
static int make_tails(struct dry_breakers *b, const struct tokenizer *t, const char *text, size_t len,
                      struct sequence *tails, struct err *err)
{
    for (size_t i = 1; i < len; i++) {
        struct token_list list = { 0 };
        int r = tokenizer_encode(t, text + i, len - i, false, &list, err);

        if (r == 0)
            r = add_tail(b, list.ids, list.n, &tails[i]);
        token_list_fini(&list);
        if (r < 0)
            return r;
    }
    return 0;
}

/* Wherever `word` ends with the beginning of the text. */
static int add_overlaps(struct dry_breakers *b, int32_t id, const char *word, size_t word_len, const char *text,
                        size_t len, const struct sequence *tails)
{
    size_t most = word_len < len - 1 ? word_len : len - 1;

    for (size_t i = 1; i <= most; i++) {
        struct sequence s = tails[i];
        int r;

        if (memcmp(word + word_len - i, text, i) != 0)
            continue;
        s.head = id;
        r = add_sequence(b, s);
        if (r < 0)
            return r;
    }
    return 0;
}

struct text {
    const char *bytes;
    size_t len;
    struct sequence tails[DRY_MAX_BREAKER_BYTES];
};

static int add_word(struct dry_breakers *b, int32_t id, const char *word, size_t word_len, const struct text *t)
{
    /* Whatever it holds of a breaker begins here; most words hold nothing. */
    const char *from = memchr(word, t->bytes[0], word_len);
    size_t len = from ? word_len - (size_t)(from - word) : 0;

    if (!from)
        return 0;
    if (t->len == 1 || memmem(from, len, t->bytes, t->len))
        return add_sequence(b, (struct sequence){ .head = id });
    return add_overlaps(b, id, from, len, t->bytes, t->len, t->tails);
}

static int add_words(struct dry_breakers *b, const struct tokenizer *t, const struct text *texts, size_t n)
{
    uint32_t size = tokenizer_size(t);
    int r = 0;

    for (uint32_t id = 0; r == 0 && id < size; id++) {
        size_t word_len = 0;
        const char *word = tokenizer_token(t, (int32_t)id, &word_len);

        for (size_t i = 0; r == 0 && i < n && word && word_len; i++)
            r = add_word(b, (int32_t)id, word, word_len, &texts[i]);
    }
    return r;
}

static struct dry_breakers *breakers_new(void)
{
    struct dry_breakers *b = calloc(1, sizeof *b);

    if (b)
        b->refs = 1;
    return b;
}

static void finish(struct dry_breakers *b)
{
    if (b->n_sequences)
        qsort(b->sequences, b->n_sequences, sizeof b->sequences[0], by_head);
}

int dry_breakers_open(const struct tokenizer *t, const char *const *texts, size_t n, struct dry_breakers **ret,
                      struct err *err)
{
    CLEANUP(dry_breakers_close) struct dry_breakers *b = breakers_new();
    struct text list[DRY_MAX_BREAKERS] = { 0 };
    int r = 0;

    if (n > DRY_MAX_BREAKERS)
        return err_set(err, -EINVAL, "%zu sequence breakers are more than %d", n, DRY_MAX_BREAKERS);
    if (!b)
        return err_set(err, -ENOMEM, "no memory for sequence breakers");
    for (size_t i = 0; r == 0 && i < n; i++) {
        size_t len = strlen(texts[i]);

        if (len == 0 || len > DRY_MAX_BREAKER_BYTES)
            return err_set(err, -EINVAL, "sequence breaker %zu must have 1 to %d bytes, but has %zu", i,
                           DRY_MAX_BREAKER_BYTES, len);
        memcpy(b->texts[b->n_texts++], texts[i], len + 1);
        list[i].bytes = texts[i];
        list[i].len = len;
        r = make_tails(b, t, texts[i], len, list[i].tails, err);
    }
    if (r == 0)
        r = add_words(b, t, list, n);
    if (r < 0)
        return err_set(err, r, "no memory for sequence breakers");
    finish(b);
    *ret = STEAL(b);
    return 0;
}

int dry_breakers_of_tokens(const int32_t *sequences, struct dry_breakers **ret, struct err *err)
{
    CLEANUP(dry_breakers_close) struct dry_breakers *b = breakers_new();

    if (!b)
        return err_set(err, -ENOMEM, "no memory for sequence breakers");
    while (*sequences >= 0) {
        struct sequence s = { .head = *sequences++ };
        size_t n = 0;

        while (sequences[n] >= 0)
            n++;
        if (add_tail(b, sequences, n, &s) < 0 || add_sequence(b, s) < 0)
            return err_set(err, -ENOMEM, "no memory for sequence breakers");
        sequences += n + 1;
    }
    finish(b);
    *ret = STEAL(b);
    return 0;
}

struct dry_breakers *dry_breakers_ref(struct dry_breakers *b)
{
    if (b)
        atomic_fetch_add(&b->refs, 1);
    return b;
}

void dry_breakers_close(struct dry_breakers *b)
{
    if (!b || atomic_fetch_sub(&b->refs, 1) != 1)
        return;
    free(b->sequences);
    free(b->tails);
    free(b);
}

bool dry_breakers_are(const struct dry_breakers *b, const char *const *texts, size_t n)
{
    if (b->n_texts != n)
        return false;
    for (size_t i = 0; i < n; i++)
        if (strcmp(b->texts[i], texts[i]) != 0)
            return false;
    return true;
}

/* The first sequence with this head, or the end. */
static size_t first_of(const struct dry_breakers *b, int32_t head)
{
    size_t low = 0, high = b ? b->n_sequences : 0;

    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (b->sequences[mid].head < head)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static bool has_head(const struct dry_breakers *b, size_t i, int32_t head)
{
    return b && i < b->n_sequences && b->sequences[i].head == head;
}

bool dry_breakers_hold(const struct dry_breakers *b, int32_t token)
{
    size_t i = first_of(b, token);

    return has_head(b, i, token) && b->sequences[i].n == 0;
}

/* Tokens of the longest breaker that begins with text[0]; 0: none does. */
static size_t breaker_at(const struct dry_breakers *b, const int32_t *text, size_t n)
{
    size_t longest = 0;

    for (size_t i = first_of(b, text[0]); has_head(b, i, text[0]); i++) {
        const struct sequence *s = &b->sequences[i];

        if (s->n < n && s->n >= longest &&
            (s->n == 0 || memcmp(b->tails + s->at, text + 1, s->n * sizeof text[0]) == 0))
            longest = s->n + 1;
    }
    return longest;
}

/* Tokens at the end that no breaker interrupts. */
static size_t tokens_since_breaker(const int32_t *text, size_t n, const struct dry_breakers *b)
{
    for (size_t i = 0; i < n; i++) {
        size_t len = breaker_at(b, text + n - 1 - i, i + 1);

        if (len)
            return i + 1 - len;
    }
    return n;
}

/* z[k]: how far the text read backwards goes on like itself k tokens further. */
static void z_backwards(const int32_t *text, size_t n, uint32_t *z)
{
    const int32_t *last = text + n - 1;
    size_t left = 0, right = 0;         /* the box [left, right) that reaches furthest */

    for (size_t k = 1; k < n; k++) {
        size_t len = 0;

        if (k < right)
            len = z[k - left] < right - k ? z[k - left] : right - k;
        while (k + len < n && *(last - len) == *(last - k - len))
            len++;
        z[k] = (uint32_t)len;
        if (k + len > right) {
            left = k;
            right = k + len;
        }
    }
}

size_t dry_find(const int32_t *text, size_t n, const struct dry_breakers *b, uint32_t shortest, uint32_t *z,
                struct dry_match *ret)
{
    size_t most, found = 0;

    if (n < 2 || n <= shortest)
        return 0;
    most = tokens_since_breaker(text, n, b);
    if (most < shortest)
        return 0;
    z_backwards(text, n, z);
    for (size_t k = 1; k < n; k++) {
        uint32_t length = z[k] < most ? z[k] : (uint32_t)most;

        if (length >= shortest)
            ret[found++] = (struct dry_match){ text[n - k], length };
    }
    return found;
}
