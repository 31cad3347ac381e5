/* What a request says to a chat template: the first byte chooses the template and the switches, then come the messages and, each
 * behind a line feed, tools, documents and variables. What is rendered is whole: spans that make up the text; what is refused names a field. */
#include "base/arena.h"
#include "base/err.h"
#include "conv/chat.h"
#include "conv/conv.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const texts[] = {
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}",
    "{% for m in messages %}{% if m.content is string %}{{ m.content | trim }}{% else %}{% for p in m.content %}[{{ p.text }}]{% endfor %}"
    "{% endif %}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}{{ documents }}{{ tools }}{{ x }}",
    "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% for c in m.tool_calls %}{{ ':' + c.function.arguments }}"
    "{% endfor %}{% endfor %}{% if messages | length > 3 %}{{ raise_exception('no') }}{% endif %}",
};
enum { N_TEXTS = sizeof texts / sizeof texts[0], N = N_TEXTS + 2 };

static struct chat_template *templates[N];

static void make(void)
{
    static const struct chat_token tokens[] = { { "bos_token", "<s>" } };

    for (size_t i = 0; i < N_TEXTS; i++) {
        const struct chat_source source = { "default", texts[i], strlen(texts[i]) };

        if (chat_from_jinja("t", &source, 1, tokens, 1, NULL, &templates[i], NULL) < 0)
            abort();
    }
    if (chat_from_row(conv_find(NULL, "chatml"), &templates[N_TEXTS], NULL) < 0 ||
        chat_from_row(conv_find(NULL, "llama-2"), &templates[N_TEXTS + 1], NULL) < 0)
        abort();
}

/* Up to the next line feed. */
static const char *take(const char **at, const char *end, size_t *ret_len)
{
    const char *from = *at, *stop = from < end ? memchr(from, '\n', (size_t)(end - from)) : NULL;

    stop = stop ? stop : end;
    *ret_len = (size_t)(stop - from);
    *at = stop < end ? stop + 1 : end;
    return *ret_len ? from : NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    CLEANUP(arena_free) struct arena *a = arena_new(0);
    const char *at = (const char *)data + 1, *end = (const char *)data + size, *param = NULL, *text;
    struct chat_input in = { .now = 1738555506 };
    struct chat_prompt prompt;
    struct err err = { 0 };
    int r;

    if (size < 1 || !a)
        return 0;
    if (!templates[0])
        make();
    in.messages = take(&at, end, &in.messages_len);
    in.messages = in.messages ? in.messages : "";
    in.tools = take(&at, end, &in.tools_len);
    in.documents = take(&at, end, &in.documents_len);
    in.kwargs = take(&at, end, &in.kwargs_len);
    in.add_generation_prompt = data[0] & 16;
    in.continue_final_message = data[0] & 32;
    r = chat_render(templates[(data[0] & 15) % N], &in, a, &prompt, &param, &err);
    if (r < 0) {
        if (r != -ENOMEM && (!param || !*param || !err_is_set(&err)))
            abort();
        return 0;
    }
    text = prompt.text;
    for (size_t i = 0; i < prompt.n_spans; text += prompt.spans[i++].len)
        if (prompt.spans[i].len == 0 || memcmp(prompt.spans[i].text, text, prompt.spans[i].len) != 0)
            abort();
    if (text != prompt.text + prompt.len || *text)
        abort();
    return 0;
}
