/* Which row of the registry writes what a checkpoint's own template writes.
 *
 * It is tried: some chats are written by the template, then by row after row, and the first row that gives the same text for all of them
 * is it. The chats have what rows differ in: with and without a system message, an answer in the middle, white space at
 * the edges of texts. All end with an open answer: who asks for a row does so to have one.
 */
#include "conv/chat_inner.h"

#include "base/arena.h"
#include "conv/conv.h"

#include <string.h>

static const struct conv_message plain[] = { { "user", "one" } };
static const struct conv_message told[] = { { "system", "Be brief." }, { "user", "one" } };
static const struct conv_message turns[] = {
    { "user", "one" }, { "assistant", "two" }, { "user", " three\n" }, { "assistant", " four " }, { "user", "five" },
};
static const struct { const struct conv_message *messages; size_t n; } chats[] = { { plain, 1 }, { told, 2 }, { turns, 5 } };
enum { N_CHATS = sizeof chats / sizeof chats[0] };

struct sample { const char *text, *bos; };      /* of one chat; bos NULL: none */

static bool write_sample(const struct chat_template *t, size_t i, struct arena *a, struct sample *ret)
{
    BUF_LOCAL json = BUF_INIT;
    struct json_writer w = json_writer(&json);

    json_open(&w, '[');
    for (size_t k = 0; k < chats[i].n; k++) {
        json_open(&w, '{');
        json_kstr(&w, "role", chats[i].messages[k].role);
        json_kstr(&w, "content", chats[i].messages[k].content);
        json_close(&w, '}');
    }
    json_close(&w, ']');
    ret->bos = NULL;
    ret->text = json.failed ? NULL : t->kind->try(t, buf_str(&json), a, &ret->bos);
    return ret->text;
}

static bool same(const struct text_span *spans, size_t n, const char *text)
{
    for (size_t i = 0; i < n; i++) {
        if (strncmp(text, spans[i].text, spans[i].len) != 0)
            return false;
        text += spans[i].len;
    }
    return *text == '\0';
}

/* BOS in front is the tokenizer's matter as well: a row without it still says the same. */
static bool writes(const struct conv_template *row, size_t i, const struct sample *s, struct arena *a)
{
    size_t bos = s->bos && strncmp(s->text, s->bos, strlen(s->bos)) == 0 ? strlen(s->bos) : 0, n;
    struct text_span *spans;

    return conv_render(row, chats[i].messages, chats[i].n, true, a, &spans, &n, NULL) == 0 &&
           (same(spans, n, s->text) || (bos && same(spans, n, s->text + bos)));
}

const struct conv_template *chat_same_row(const struct chat_template *t, const struct conv_registry *registry)
{
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    struct sample samples[N_CHATS];
    const char *name;

    if (!t->kind->try)
        return t->wire;
    for (size_t i = 0; i < N_CHATS; i++)
        if (!a || !write_sample(t, i, a, &samples[i]))
            return NULL;
    for (size_t k = 0; (name = conv_registry_name(registry, k)) != NULL; k++) {
        const struct conv_template *row = conv_find(registry, name);
        size_t i = 0;

        while (row && i < N_CHATS && writes(row, i, &samples[i], a))
            i++;
        if (i == N_CHATS)
            return row;
    }
    return NULL;
}
