#include "loaders/tok/sp_normalize.h"

#include "base/buf.h"
#include "base/err.h"
#include "base/utf8.h"
#include "loaders/tok/charsmap.h"
#include "loaders/tok/trie.h"

#include <errno.h>
#include <string.h>

struct sp_normalizer {
    struct normalizer base;
    struct charsmap *map;               /* NULL: there is none */
    struct trie *whole;                 /* NULL: there are none */
    bool dummy_prefix, as_suffix, remove_extra;
};

static const char mark[] = "\xE2\x96\x81";          /* U+2581 */

void sp_space(struct buf *out, const char *text, size_t len)
{
    size_t from = 0;

    for (size_t i = 0; i + 3 <= len;) {
        if (text[i] != mark[0] || text[i + 1] != mark[1] || text[i + 2] != mark[2]) {
            i++;
            continue;
        }
        buf_add(out, text + from, i - from);
        buf_addc(out, ' ');
        i += 3;
        from = i;
    }
    buf_add(out, text + from, len - from);
}

/* What the text begins with becomes: a view, and how much of the text it was. */
struct part { const char *text; size_t len, taken; };

static struct part next_part(const struct sp_normalizer *n, const char *text, size_t len)
{
    struct tok_str to;
    size_t taken = 0;
    uint32_t c;
    int r;

    if (n->whole) {
        trie_longest(n->whole, text, len, &taken);
        if (taken)
            return (struct part){ text, taken, taken };
    }
    if (n->map && charsmap_longest(n->map, text, len, &to, &taken))
        return (struct part){ to.text, to.len, taken };
    r = utf8_decode(text, len, &c);
    if (r > 0)
        return (struct part){ text, (size_t)r, (size_t)r };
    return (struct part){ "\xEF\xBF\xBD", 3, 1 };
}

/* Nothing but spaces to change: whole runs of valid text. */
static void copy_plain(const char *text, size_t len, struct buf *out)
{
    while (len) {
        size_t n = utf8_valid_prefix(text, len);

        sp_space(out, text, n);
        if (n < len) {
            buf_adds(out, "\xEF\xBF\xBD");
            n++;
        }
        text += n;
        len -= n;
    }
}

static size_t leading_spaces(const struct sp_normalizer *n, const char *text, size_t len)
{
    size_t at = 0;

    while (at < len) {
        struct part p = next_part(n, text + at, len - at);

        if (p.len != 1 || p.text[0] != ' ')
            break;
        at += p.taken;
    }
    return at;
}

static void copy_parts(const struct sp_normalizer *n, const char *text, size_t len, struct buf *out)
{
    bool after_space = n->remove_extra;

    for (size_t at = 0; at < len;) {
        struct part p = next_part(n, text + at, len - at);

        at += p.taken;
        while (after_space && p.len && p.text[0] == ' ') {
            p.text++;
            p.len--;
        }
        if (p.len == 0)
            continue;
        sp_space(out, p.text, p.len);
        after_space = n->remove_extra && p.text[p.len - 1] == ' ';
    }
}

static int sp_run(const struct normalizer *base, const char *text, size_t len, bool *at_start, struct buf *out, struct err *err)
{
    const struct sp_normalizer *n = (const struct sp_normalizer *)base;
    size_t skip = n->remove_extra ? leading_spaces(n, text, len) : 0, before = out->len;

    text += skip;
    len -= skip;
    if (len == 0)
        return 0;
    if (n->dummy_prefix && !n->as_suffix)
        buf_addc(out, ' ');
    if (n->map || n->whole || n->remove_extra)
        copy_parts(n, text, len, out);
    else
        copy_plain(text, len, out);
    if (out->failed)
        return -ENOMEM;
    while (n->remove_extra && out->len > before && out->data[out->len - 1] == ' ')
        out->data[--out->len] = '\0';
    if (n->dummy_prefix && n->as_suffix)
        buf_addc(out, ' ');
    return out->failed ? -ENOMEM : 0;
}

static void sp_free(struct normalizer *base)
{
    struct sp_normalizer *n = (struct sp_normalizer *)base;

    charsmap_free(n->map);
    trie_free(n->whole);
    free(n);
}

static const struct normalizer_ops sp_ops = { sp_run, sp_free };

static int read_whole(struct sp_normalizer *n, const struct tok_str *whole, size_t n_whole)
{
    struct trie_key *keys = calloc(n_whole, sizeof *keys);
    size_t n_keys = 0;
    int r;

    if (!keys)
        return -ENOMEM;
    for (size_t i = 0; i < n_whole; i++)
        if (whole[i].len)
            keys[n_keys++] = (struct trie_key){ whole[i].text, whole[i].len, (int32_t)i };
    r = trie_new(keys, n_keys, &n->whole);
    free(keys);
    return r;
}

int sp_normalizer_new(const struct sp_normalizer_spec *spec, struct normalizer **ret, struct err *err)
{
    struct sp_normalizer *n = calloc(1, sizeof *n);
    int r = 0;

    if (!n)
        return err_set(err, -ENOMEM, "no memory for a normaliser");
    n->base.ops = &sp_ops;
    n->dummy_prefix = spec->dummy_prefix;
    n->as_suffix = spec->as_suffix;
    n->remove_extra = spec->remove_extra;
    if (spec->charsmap_len)
        r = charsmap_new(spec->charsmap, spec->charsmap_len, &n->map, err);
    if (r == 0 && spec->n_whole)
        r = read_whole(n, spec->whole, spec->n_whole);
    if (r < 0) {
        sp_free(&n->base);
        return err_set(err, r, r == -ENOMEM ? "no memory for a normaliser" : "its user-defined pieces are too much text");
    }
    *ret = &n->base;
    return 0;
}
