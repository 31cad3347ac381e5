/* Runs the chain over a text:
 *
 *   spans → one text and, where they differ, a byte of trust a byte → added tokens of the raw text → for what lies between:
 *   normalise → added tokens of the normalised text → cut into pieces → ids
 *
 * Joining the spans first is what makes the ids those of the joined text: pieces and merges cross the seams as they do in a
 * text. Only control tokens ask for trust.
 *
 * A normaliser moves bytes. Where a stretch is of mixed trust, its runs are normalised one by one and looked for in the
 * normalised whole, from the front and from the back; what is found so has its run's trust, what is not has none. (A normaliser that
 * composes over a seam, or puts something in front of each text, changes bytes at the seam only.)
 */
#include "base/buf.h"
#include "base/err.h"
#include "loaders/tok/scan.h"
#include "loaders/tok/scratch.h"
#include "loaders/tok/tok.h"

#include <errno.h>
#include <string.h>

struct run {
    const struct tokenizer *t;
    struct token_list *out;
    struct tok_scratch *scratch;
    struct err *err;
};

/* A stretch of text and what may match in it. */
struct stretch {
    const char *text;
    size_t len;
    const uint8_t *trusted;                     /* NULL: all as `special` says */
    bool special, at_start;
};

static struct stretch part(const struct stretch *s, size_t start, size_t end)
{
    struct stretch p = *s;

    p.text += start;
    p.len = end - start;
    p.at_start = s->at_start && start == 0;
    if (p.trusted) {
        const uint8_t *trusted = p.trusted + start;

        p.special = p.len && trusted[0];
        p.trusted = p.len && memchr(trusted, !trusted[0], p.len) ? trusted : NULL;
    }
    return p;
}

static int encode_piece(void *user, const char *piece, size_t len)
{
    const struct run *r = user;

    return r->t->model->ops->encode(r->t->model, piece, len, r->scratch, r->out);
}

static int encode_plain(struct run *r, const struct stretch *s)
{
    const struct tokenizer *t = r->t;

    if (t->splitter)
        return splitter_run(t->splitter, s->text, s->len, s->at_start, r->scratch, encode_piece, r, r->err);
    return scan_all(t->scans, s->text, s->len, encode_piece, r);
}

/* Gives what lies between the matches to fn, and the matches' ids to the list. */
static int encode_around(struct run *r, const struct added *a, const struct stretch *s,
                         int (*fn)(struct run *r, const struct stretch *s))
{
    struct added_cursor c = { 0 };
    struct added_match m;
    size_t from = 0;
    int rc;

    while (a && added_next(a, s->text, s->len, &c, s->special || s->trusted, s->trusted, &m)) {
        if (m.start > from) {
            const struct stretch between = part(s, from, m.start);

            if ((rc = fn(r, &between)) < 0)
                return rc;
        }
        if ((rc = token_list_add(r->out, m.id)) < 0)
            return rc;
        from = m.end;
    }
    if (from < s->len) {
        const struct stretch rest = part(s, from, s->len);

        return fn(r, &rest);
    }
    return 0;
}

static int normalize(struct run *r, const struct stretch *s, bool *at_start, struct buf *out)
{
    int rc = normalizer_run(r->t->normalizer, s->text, s->len, at_start, out, r->err);

    return rc < 0 ? rc : out->failed ? -ENOMEM : 0;
}

static size_t run_length(const uint8_t *trusted, size_t len)
{
    const uint8_t *end = memchr(trusted, !trusted[0], len);

    return end ? (size_t)(end - trusted) : len;
}

/* How many bytes at the front of `one` are not at whole[done]: 0, or, where `may_skip`, its first character; -1: it is not there. */
static ptrdiff_t placed(const struct buf *whole, size_t done, const struct buf *one, bool may_skip)
{
    size_t room = whole->len - done, skip = 1;

    if (one->len <= room && (!one->len || memcmp(whole->data + done, one->data, one->len) == 0))
        return 0;
    while (skip < one->len && ((unsigned char)one->data[skip] & 0xC0) == 0x80)
        skip++;
    if (!may_skip || skip > one->len || one->len - skip > room ||
        memcmp(whole->data + done, one->data + skip, one->len - skip) != 0)
        return -1;
    return (ptrdiff_t)skip;
}

static size_t common_end(const struct buf *a, const struct buf *b)
{
    size_t same = 0, most = a->len < b->len ? a->len : b->len;

    while (same < most && a->data[a->len - 1 - same] == b->data[b->len - 1 - same])
        same++;
    return same;
}

/* Trust of the normalised text, a byte a byte: see the top. */
static int normalized_trust(struct run *r, const struct stretch *s, const struct buf *whole, uint8_t *trust)
{
    BUF_LOCAL one = BUF_INIT;
    size_t done = 0;
    bool lost = false;

    memset(trust, 0, whole->len);
    for (size_t at = 0, n; at < s->len; at += n) {
        bool at_start = s->at_start && at == 0, last;
        struct stretch p;
        ptrdiff_t skip;
        int rc;

        n = run_length(s->trusted + at, s->len - at);
        p = part(s, at, at + n);
        last = at + n == s->len;
        if (lost && !last)
            continue;
        buf_clear(&one);
        if ((rc = normalize(r, &p, &at_start, &one)) < 0)
            return rc;
        skip = lost ? -1 : placed(whole, done, &one, at > 0);
        if (skip >= 0) {
            memset(trust + done, p.special, one.len - (size_t)skip);
            done += one.len - (size_t)skip;
        } else if (last) {
            size_t same = common_end(whole, &one);

            memset(trust + whole->len - same, p.special, same);
        }
        lost = skip < 0;
    }
    return 0;
}

static int encode_normalized(struct run *r, const struct stretch *s)
{
    BUF_LOCAL text = BUF_INIT;
    struct stretch whole = *s;
    int rc = normalize(r, s, &whole.at_start, &text);

    if (rc < 0 || !text.len)
        return rc;
    whole.text = text.data;
    whole.len = text.len;
    if (s->trusted && r->t->added_normalized) {
        uint8_t *trust = scratch_room(r->scratch, SCRATCH_TEXT_2, text.len);

        if (!trust)
            return -ENOMEM;
        if ((rc = normalized_trust(r, s, &text, trust)) < 0)
            return rc;
        whole.trusted = trust;
    } else if (!r->t->added_normalized) {
        whole.trusted = NULL;
    }
    return encode_around(r, r->t->added_normalized, &whole, encode_plain);
}

static int encode_between(struct run *r, const struct stretch *s)
{
    if (r->t->normalizer)
        return encode_normalized(r, s);
    return encode_around(r, r->t->added_normalized, s, encode_plain);
}

static int encode(const struct tokenizer *t, const struct stretch *s, struct tok_scratch *scratch, struct token_list *out,
                  struct err *err)
{
    struct run r = { t, out, scratch, err };
    size_t before = out->n;
    int rc = s->len ? encode_around(&r, t->added_raw, s, encode_between) : 0;

    if (rc < 0) {
        out->n = before;
        return err_set(err, rc, rc == -ENOMEM ? "no memory to tokenize %zu bytes" : "a text of %zu bytes can not be tokenized", s->len);
    }
    return 0;
}

static int too_long(size_t len, struct err *err)
{
    return err_set(err, -E2BIG, "a text of %zu bytes is over the limit of %d", len, TOKENIZER_MAX_TEXT);
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, bool special, struct token_list *out, struct err *err)
{
    const struct stretch s = { .text = text, .len = len, .special = special, .at_start = true };
    SCRATCH_LOCAL scratch = { 0 };

    return len > TOKENIZER_MAX_TEXT ? too_long(len, err) : encode(t, &s, &scratch, out, err);
}

static void join(const struct text_span *spans, size_t n_spans, char *text, uint8_t *trusted)
{
    for (size_t i = 0; i < n_spans; i++) {
        if (!spans[i].len)
            continue;
        memcpy(text, spans[i].text, spans[i].len);
        memset(trusted, spans[i].trusted, spans[i].len);
        text += spans[i].len;
        trusted += spans[i].len;
    }
}

int tokenizer_encode_spans(const struct tokenizer *t, const struct text_span *spans, size_t n_spans, struct token_list *out,
                           struct err *err)
{
    SCRATCH_LOCAL scratch = { 0 };
    struct stretch s = { .at_start = true };
    char *text;
    uint8_t *trusted;
    size_t len = 0;

    if (n_spans == 1)
        return tokenizer_encode(t, spans[0].text, spans[0].len, spans[0].trusted, out, err);
    for (size_t i = 0; i < n_spans; i++) {
        if (spans[i].len > TOKENIZER_MAX_TEXT - len)
            return too_long(len + spans[i].len, err);
        len += spans[i].len;
    }
    text = scratch_room(&scratch, SCRATCH_TEXT, 2 * len);
    if (!text)
        return err_set(err, -ENOMEM, "no memory to tokenize %zu bytes", len);
    trusted = (uint8_t *)text + len;
    join(spans, n_spans, text, trusted);
    s.text = text;
    s.len = len;
    s.trusted = trusted;
    s = part(&s, 0, len);
    return encode(t, &s, &scratch, out, err);
}
