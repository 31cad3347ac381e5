/* WordPiece: from the front, again and again the longest token that fits; behind the first one tokens
 * carry a prefix ("##"). One part that has no token makes the whole word unknown. WordLevel: the word or unknown.
 *
 * The prefix is walked in the trie once, at load: its node is where tokens behind the first one begin.
 *
 * Source   tokenizers, models/wordpiece/mod.rs, models/wordlevel/mod.rs
 */
#include "loaders/tok/tok.h"

#include "base/utf8.h"
#include "loaders/tok/trie.h"

#include <errno.h>

struct wordpiece {
    struct tok_model base;
    struct trie *trie;
    int64_t inner;                      /* where tokens behind the first begin; TRIE_NONE: there are none */
    int32_t unk;
    uint32_t max_chars;
};

/* A word is unknown when it is longer than this in characters: a continuation byte begins none. */
static bool too_long(const struct wordpiece *m, const char *word, size_t len)
{
    uint32_t n = 0;

    for (size_t i = 0; i < len && n <= m->max_chars; i++)
        n += ((unsigned char)word[i] & 0xC0) != 0x80;
    return n > m->max_chars;
}

static bool is_boundary(const char *text, size_t len, size_t at)
{
    return at == len || ((unsigned char)text[at] & 0xC0) != 0x80;
}

static int32_t longest(const struct wordpiece *m, const char *word, size_t len, size_t from, size_t *ret_end)
{
    int64_t node = from ? m->inner : TRIE_ROOT;
    int32_t found = -1;

    for (size_t i = from; i < len && node >= 0; i++) {
        node = trie_step(m->trie, (uint32_t)node, (unsigned char)word[i]);
        if (node >= 0 && m->trie->nodes[node].value >= 0 && is_boundary(word, len, i + 1)) {
            found = m->trie->nodes[node].value;
            *ret_end = i + 1;
        }
    }
    return found;
}

static int wordpiece_encode(const struct tok_model *model, const char *word, size_t len, struct tok_scratch *scratch,
                            struct token_list *out)
{
    const struct wordpiece *m = (const struct wordpiece *)model;
    size_t before = out->n, at = 0;
    bool bad = too_long(m, word, len);
    int r = 0;

    while (at < len && !bad && r == 0) {
        int32_t id = longest(m, word, len, at, &at);

        bad = id < 0;
        if (!bad)
            r = token_list_add(out, id);
    }
    if (!bad || r < 0)
        return r;
    out->n = before;
    return m->unk >= 0 ? token_list_add(out, m->unk) : 0;
}

static void wordpiece_free(struct tok_model *model)
{
    struct wordpiece *m = (struct wordpiece *)model;

    trie_free(m->trie);
    free(m);
}

static const struct tok_model_ops wordpiece_ops = { "WordPiece", wordpiece_encode, wordpiece_free };

/* Control tokens and those beside the model's vocabulary come from no text. */
static const uint32_t kinds_of_text = ~(1u << TOK_CONTROL | 1u << TOK_USER_DEFINED);

int wordpiece_new(const struct wordpiece_spec *spec, struct tok_model **ret)
{
    struct wordpiece *m = calloc(1, sizeof *m);
    int r;

    if (!m)
        return -ENOMEM;
    m->base.ops = &wordpiece_ops;
    m->unk = spec->unk;
    m->max_chars = spec->max_chars;
    r = vocab_trie(spec->vocab, kinds_of_text, &m->trie);
    if (r < 0) {
        wordpiece_free(&m->base);
        return r;
    }
    m->inner = TRIE_ROOT;
    for (uint32_t i = 0; i < spec->continuing_prefix.len && m->inner >= 0; i++)
        m->inner = trie_step(m->trie, (uint32_t)m->inner, (unsigned char)spec->continuing_prefix.text[i]);
    *ret = &m->base;
    return 0;
}

struct wordlevel {
    struct tok_model base;
    const struct vocab *vocab;
    int32_t unk;
};

static int wordlevel_encode(const struct tok_model *model, const char *word, size_t len, struct tok_scratch *scratch,
                            struct token_list *out)
{
    const struct wordlevel *m = (const struct wordlevel *)model;
    int32_t id = vocab_find(m->vocab, word, len);

    id = id >= 0 && (kinds_of_text >> vocab_kind(m->vocab, id) & 1) ? id : m->unk;
    return id >= 0 ? token_list_add(out, id) : 0;
}

static void wordlevel_free(struct tok_model *model)
{
    free(model);
}

static const struct tok_model_ops wordlevel_ops = { "WordLevel", wordlevel_encode, wordlevel_free };

int wordlevel_new(const struct vocab *vocab, int32_t unk, struct tok_model **ret)
{
    struct wordlevel *m = calloc(1, sizeof *m);

    if (!m)
        return -ENOMEM;
    *m = (struct wordlevel){ .base.ops = &wordlevel_ops, .vocab = vocab, .unk = unk };
    *ret = &m->base;
    return 0;
}
