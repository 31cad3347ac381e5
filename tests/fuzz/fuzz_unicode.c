/* Any bytes through the normal forms and cases: a form of a form is the form, what is quickly seen as normal is, composing after
 * decomposing gives the same, and bytes that are no UTF-8 come through as they are. */
#include "base/buf.h"
#include "base/unicode.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool equal(const struct buf *a, const struct buf *b)
{
    return a->len == b->len && !memcmp(buf_str(a), buf_str(b), a->len);
}

static void normalize(enum unicode_form form, const char *text, size_t len)
{
    static const enum unicode_form taken_apart[] = {
        [UNICODE_NFC] = UNICODE_NFD, [UNICODE_NFD] = UNICODE_NFD, [UNICODE_NFKC] = UNICODE_NFKD, [UNICODE_NFKD] = UNICODE_NFKD,
    };
    BUF_LOCAL once = BUF_INIT, twice = BUF_INIT, apart = BUF_INIT, round = BUF_INIT;

    unicode_add_normal(&once, form, text, len);
    unicode_add_normal(&twice, form, buf_str(&once), once.len);
    unicode_add_normal(&apart, taken_apart[form], text, len);
    unicode_add_normal(&round, form, buf_str(&apart), apart.len);
    if (!equal(&once, &twice) || !equal(&once, &round))
        abort();
    if (unicode_is_normal(form, text, len) && (once.len != len || memcmp(buf_str(&once), text, len) != 0))
        abort();
    if (utf8_is_valid(text, len) != utf8_is_valid(buf_str(&once), once.len))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const maps[])(struct buf *, const char *, size_t) = {
        unicode_add_upper, unicode_add_lower, unicode_add_title, unicode_add_capitalize, unicode_add_swapcase, unicode_add_casefold,
    };
    const char *text = (const char *)data;

    if (!size)
        return 0;
    for (enum unicode_form form = UNICODE_NFC; form <= UNICODE_NFKD; form++)
        normalize(form, text, size);
    for (size_t i = 0; i < sizeof maps / sizeof maps[0]; i++) {
        BUF_LOCAL out = BUF_INIT;

        maps[i](&out, text, size);
        if (utf8_is_valid(text, size) != utf8_is_valid(buf_str(&out), out.len))
            abort();
    }
    return 0;
}
