/* A template and its variable `u`, JSON behind the first NUL: rendered within small limits; the spans are the text, which is UTF-8. */
#include "base/arena.h"
#include "base/utf8.h"
#include "conv/jinja/jinja.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct jinja_limits limits = { .template_bytes = 1 << 16, .depth = 60, .output_bytes = 1 << 16, .steps = 100000,
                                            .memory_bytes = 8 << 20 };

static void check(const struct jinja_output *out)
{
    const char *at = out->text;

    if (!utf8_is_valid(out->text, out->len))
        abort();
    for (size_t i = 0; i < out->n_spans; at += out->spans[i++].len)
        if (out->spans[i].text != at || out->spans[i].len == 0 || (i > 0 && out->spans[i].trusted == out->spans[i - 1].trusted))
            abort();
    if (at != out->text + out->len)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data, *nul = size ? memchr(text, 0, size) : NULL;
    size_t len = nul ? (size_t)(nul - text) : size;
    struct jinja *t = NULL;
    struct jinja_vars *v = NULL;
    struct arena *a = arena_new(0);
    struct jinja_output out;
    struct jinja_fault fault = { 0 };

    if (a && jinja_vars_new(&limits, &v, NULL) == 0 && jinja_compile("t", text, len, &limits, &t, NULL, NULL) == 0) {
        if (nul)
            jinja_set_json(v, "u", nul + 1, size - len - 1, NULL);
        if (jinja_render(t, v, 1738555506, a, &out, &fault, NULL) == 0)
            check(&out);
        else if (!fault.type[0])
            abort();
    }
    jinja_vars_free(v);
    jinja_free(t);
    arena_free(a);
    return 0;
}
