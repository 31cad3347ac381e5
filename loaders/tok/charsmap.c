/* SentencePiece's character map: a double array of Darts, and behind it the replacements, each ended by a NUL.
 *
 * A walk takes one byte of the text a step, so it ends whatever the array says; what points outside it is no entry.
 */
#include "loaders/tok/charsmap.h"

#include "base/err.h"
#include "base/utf8.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct charsmap {
    const char *texts;                  /* behind the units */
    size_t n_texts;                     /* bytes */
    uint32_t n_units;
    uint32_t units[];
};

int charsmap_new(const void *data, size_t len, struct charsmap **ret, struct err *err)
{
    struct charsmap *m;
    uint32_t trie_bytes;

    if (len < sizeof trie_bytes)
        return err_set(err, -EINVAL, "precompiled_charsmap: %zu bytes are too few", len);
    memcpy(&trie_bytes, data, sizeof trie_bytes);
    trie_bytes = le32toh(trie_bytes);
    if (trie_bytes % 4 != 0 || trie_bytes == 0 || trie_bytes > len - sizeof trie_bytes)
        return err_set(err, -EINVAL, "precompiled_charsmap: a table of %u bytes in %zu", trie_bytes, len);
    m = malloc(sizeof *m + (len - sizeof trie_bytes));
    if (!m)
        return err_set(err, -ENOMEM, "precompiled_charsmap: no memory for %zu bytes", len);
    m->n_units = trie_bytes / 4;
    m->texts = (const char *)m->units + trie_bytes;
    m->n_texts = len - sizeof trie_bytes - trie_bytes;
    memcpy(m->units, (const char *)data + sizeof trie_bytes, len - sizeof trie_bytes);
    for (uint32_t i = 0; i < m->n_units; i++)
        m->units[i] = le32toh(m->units[i]);
    if (!utf8_is_valid(m->texts, m->n_texts)) {
        free(m);
        return err_set(err, -EINVAL, "precompiled_charsmap: its replacements are no UTF-8");
    }
    *ret = m;
    return 0;
}

void charsmap_free(struct charsmap *m)
{
    free(m);
}

/* darts-clone's layout of a unit: label in the low byte (bit 31: a value instead), bit 8 a leaf, the rest an offset. */
static uint32_t unit_offset(uint32_t unit)
{
    return unit >> 10 << ((unit & 1u << 9) >> 6);
}

static bool replacement_at(const struct charsmap *m, uint32_t at, struct tok_str *ret)
{
    if (at >= m->n_texts || ((unsigned char)m->texts[at] & 0xC0) == 0x80)
        return false;
    *ret = (struct tok_str){ m->texts + at, (uint32_t)strnlen(m->texts + at, m->n_texts - at) };
    return true;
}

/* A walk from the front: the next entry that text[0..*taken) is; false: there is no further one. */
struct walk { const struct charsmap *m; const char *text; size_t len, taken; uint32_t at; };

static bool next_entry(struct walk *w, uint32_t *ret_value)
{
    while (w->taken < w->len && w->text[w->taken]) {
        unsigned char c = (unsigned char)w->text[w->taken++];
        uint32_t unit;

        w->at ^= c;
        if (w->at >= w->m->n_units)
            break;
        unit = w->m->units[w->at];
        if ((unit & (1u << 31 | 0xFF)) != c)
            break;
        w->at ^= unit_offset(unit);
        if (unit >> 8 & 1 && w->at < w->m->n_units) {
            *ret_value = w->m->units[w->at] & 0x7FFFFFFF;
            return true;
        }
    }
    w->taken = w->len;
    return false;
}

static struct walk walk_begin(const struct charsmap *m, const char *text, size_t len)
{
    return (struct walk){ .m = m, .text = text, .len = len, .at = unit_offset(m->units[0]) };
}

bool charsmap_first(const struct charsmap *m, const char *text, size_t len, struct tok_str *ret)
{
    struct walk w = walk_begin(m, text, len);
    uint32_t value;

    return next_entry(&w, &value) && replacement_at(m, value, ret);
}

bool charsmap_longest(const struct charsmap *m, const char *text, size_t len, struct tok_str *ret, size_t *ret_taken)
{
    struct walk w = walk_begin(m, text, len);
    bool found = false;

    for (uint32_t value; next_entry(&w, &value);)
        if (replacement_at(m, value, ret)) {
            *ret_taken = w.taken;
            found = true;
        }
    return found;
}
