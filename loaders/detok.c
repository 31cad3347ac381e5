#include "loaders/detok.h"

#include "base/buf.h"
#include "base/utf8.h"
#include "loaders/tokenizer.h"

static const char replacement[] = "\xEF\xBF\xBD";   /* U+FFFD */

void detok_init(struct detok *d, const struct tokenizer *t)
{
    *d = (struct detok){ .t = t };
}

/* What is held is always the valid beginning of a character: with the next byte it becomes a
 * character, stays one, or turns out to be a longest ill-formed part. */
static void add_byte(struct detok *d, char byte, struct buf *out)
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

        d->n_held = 0;
        buf_adds(out, replacement);
        if (!alone)
            add_byte(d, byte, out);
    }
}

void detok_add_bytes(struct detok *d, const char *bytes, size_t len, struct buf *out)
{
    while (len) {
        size_t whole = d->n_held ? 0 : utf8_valid_prefix(bytes, len);

        buf_add(out, bytes, whole);
        bytes += whole;
        len -= whole;
        if (len) {
            add_byte(d, *bytes, out);
            bytes++;
            len--;
        }
    }
}

void detok_add(struct detok *d, int32_t id, struct buf *out)
{
    size_t len;
    const char *bytes = tokenizer_token(d->t, id, &len);

    if (!tokenizer_is_control(d->t, id))
        detok_add_bytes(d, bytes, len, out);
}

void detok_flush(struct detok *d, struct buf *out)
{
    if (d->n_held)
        buf_adds(out, replacement);
    d->n_held = 0;
}
