#include "loaders/detok.h"

#include "base/buf.h"
#include "base/utf8.h"
#include "loaders/tok/decode.h"

#include <errno.h>
#include <string.h>

static const char replacement[] = "\xEF\xBF\xBD";   /* U+FFFD */

static const struct decode_rules *rules(const struct detok *d)
{
    return decoder_rules(d->t ? d->t->decoder : NULL);
}

static bool is_shown(const struct detok *d, int32_t id)
{
    return vocab_text(d->t->vocab, id).text && (d->keep_special || !decoder_skips(d->t->decoder, d->t->vocab, id));
}

void detok_init(struct detok *d, const struct tokenizer *t)
{
    *d = (struct detok){ .t = t, .last = -1 };
    d->n_strip = rules(d)->n_strip;
}

void detok_init_behind(struct detok *d, const struct tokenizer *t)
{
    *d = (struct detok){ .t = t, .last = -1, .started = true };
}

static void give_up_held(struct detok *d, bool each_byte, struct buf *out)
{
    unsigned n = each_byte ? d->n_held : d->n_held > 0;

    d->n_held = 0;
    while (n--)
        buf_adds(out, replacement);
}

/* What is held is always the valid beginning of a character: with the next byte it becomes a
 * character, stays one, or turns out to be a longest ill-formed part. */
static void add_byte(struct detok *d, bool each_byte, char byte, struct buf *out)
{
    uint32_t c;
    int r;

    d->held[d->n_held++] = byte;
    r = utf8_decode(d->held, d->n_held, &c);
    if (r > 0) {
        buf_add(out, d->held, d->n_held);
        d->n_held = 0;
    } else if (r == -1) {
        bool alone = d->n_held == 1;

        d->n_held -= !alone;
        give_up_held(d, each_byte, out);
        if (!alone)
            add_byte(d, each_byte, byte, out);
    }
}

static void add_bytes(struct detok *d, bool each_byte, const char *bytes, size_t len, struct buf *out)
{
    while (len) {
        size_t whole = d->n_held ? 0 : utf8_valid_prefix(bytes, len);

        buf_add(out, bytes, whole);
        bytes += whole;
        len -= whole;
        if (len) {
            add_byte(d, each_byte, *bytes, out);
            bytes++;
            len--;
        }
    }
}

void detok_add_bytes(struct detok *d, const char *bytes, size_t len, struct buf *out)
{
    add_bytes(d, false, bytes, len, out);
}

/* Takes away what goes at the start of a text. */
static void strip(struct detok *d, const struct decode_rules *r, struct decode_form *f)
{
    bool any = false;

    while (d->n_strip && !f->uncut && f->len >= r->strip.len && memcmp(f->text, r->strip.text, r->strip.len) == 0) {
        f->text += r->strip.len;
        f->len -= r->strip.len;
        d->n_strip -= !r->strip_tokens;
        any = true;
        if (r->strip_tokens)
            break;
    }
    if (f->len || (any && r->strip_once))
        d->n_strip = 0;
}

/* A byte that is what goes at the start: only where the joined text is cut. */
static bool strip_byte(struct detok *d, const struct decode_rules *r, const struct decode_form *f)
{
    if (d->n_strip && !r->strip_tokens && d->n_held == 0 && r->strip.len == 1 && f->text[0] == r->strip.text[0]) {
        d->n_strip--;
        return true;
    }
    d->n_strip = 0;
    return false;
}

static struct decode_form form_of(const struct detok *d, int32_t id)
{
    struct tok_str s;

    if (d->t->decoder)
        return decoder_form(d->t->decoder, id, !d->started);
    s = vocab_text(d->t->vocab, id);
    return (struct decode_form){ s.text, s.len, false, false };
}

void detok_add(struct detok *d, int32_t id, struct buf *out)
{
    const struct decode_rules *r = rules(d);
    struct decode_form f;

    if (!is_shown(d, id))
        return;
    if (r->merge_equal && id == d->last)
        return;
    f = form_of(d, id);
    if (d->space)
        buf_addc(out, ' ');
    d->space = false;
    d->started = true;
    d->last = id;
    if (r->by_run && !f.is_byte)
        give_up_held(d, true, out);
    if (!f.is_byte)
        strip(d, r, &f);
    else if (strip_byte(d, r, &f))
        return;
    if (r->hold_space && f.len && f.text[f.len - 1] == ' ') {
        d->space = true;
        f.len--;
    }
    add_bytes(d, r->by_run, f.text, f.len, out);
}

void detok_flush(struct detok *d, struct buf *out)
{
    give_up_held(d, rules(d)->by_run, out);
    d->space = false;
}

static size_t characters(const char *text, size_t len)
{
    size_t n = 0;

    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)text[i] & 0xC0) != 0x80;
    return n;
}

/* Whether a token's text begins behind what is held, because it ends it: then that is U+FFFD. */
static size_t held_before(const struct detok *d, int32_t id)
{
    const struct decode_rules *r = rules(d);
    struct decode_form f = form_of(d, id);
    uint32_t c;
    char held[4];

    if (!d->n_held || !f.len)
        return 0;
    if (r->by_run && !f.is_byte)
        return d->n_held;
    memcpy(held, d->held, d->n_held);
    held[d->n_held] = f.text[0];
    return utf8_decode(held, d->n_held + 1u, &c) == -1 ? r->by_run ? d->n_held : 1 : 0;
}

int detok_offsets(const struct tokenizer *t, const int32_t *ids, size_t n, bool keep_special, size_t *ret_offsets, struct buf *out)
{
    struct detok d;
    size_t at = out->len, offset = 0;

    detok_init(&d, t);
    d.keep_special = keep_special;
    for (size_t i = 0; i < n; i++) {
        ret_offsets[i] = offset + (is_shown(&d, ids[i]) ? held_before(&d, ids[i]) + d.space : 0);
        detok_add(&d, ids[i], out);
        offset += characters(out->data ? out->data + at : "", out->len - at);
        at = out->len;
    }
    detok_flush(&d, out);
    return out->failed ? -ENOMEM : 0;
}
