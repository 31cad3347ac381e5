#include "adapters/family.h"

#include "adapters/rule.h"
#include "base/err.h"
#include "conv/chat.h"
#include "conv/conv.h"
#include "loaders/template_files.h"

#include <errno.h>
#include <string.h>

static const struct {
    const char *name, *text;
} texts[] = {
#define EMBEDDED(name, text) { name, text },
#include "adapters/families.inc"
#undef EMBEDDED
};

static const struct family families[] = {
#define VARIABLES(...) (const char *const[]){ __VA_ARGS__, NULL }
#define NO_VARIABLES (const char *const[]){ NULL }
#define FAMILY(name, who, names, architectures, ends, text, row, variables) { name, who, names, architectures, ends, text, row, variables },
#include "adapters/families.def"
};

enum {
    N_FAMILIES = sizeof families / sizeof families[0],
    MAX_TOKENS = 8 + TEMPLATE_MAX_TOKENS,           /* no row has more than four variables */
};

const struct family *family_at(size_t index) { return index < N_FAMILIES ? &families[index] : NULL; }

const struct family *family_named(const char *name)
{
    for (size_t i = 0; i < N_FAMILIES; i++)
        if (strcmp(families[i].name, name) == 0)
            return &families[i];
    return NULL;
}

/* The first row whose rule, `at` bytes into it, takes the text. */
static const struct family *first(size_t at, const char *text)
{
    for (size_t i = 0; i < N_FAMILIES; i++) {
        const char *rule = *(const char *const *)((const char *)&families[i] + at);

        if (rule && rule_holds(rule, &(struct rule_subject){ text, NULL }))
            return &families[i];
    }
    return NULL;
}

const struct family *family_of_name(const char *name) { return first(offsetof(struct family, names), name); }

const struct family *family_of_architecture(const char *architecture)
{
    return first(offsetof(struct family, architectures), architecture);
}

const struct family *family_of_end(const char *token) { return first(offsetof(struct family, ends), token); }

static const char *text_named(const char *name)
{
    size_t i = 0;

    while (strcmp(texts[i].name, name) != 0)        /* a test opens every row */
        i++;
    return texts[i].text;
}

/* The checkpoint's special tokens, then those of `variables` that it does not have. */
static size_t put_tokens(const struct template_files *files, const char *const *variables, struct chat_token ret[MAX_TOKENS])
{
    const struct template_token *own = NULL;
    size_t n_own = 0, n = 0;

    if (files)
        own = template_files_tokens(files, &n_own);
    for (size_t i = 0; i < n_own; i++)
        ret[n++] = (struct chat_token){ own[i].name, own[i].text };
    for (const char *const *v = variables; *v; v += 2) {
        size_t i = 0;

        while (i < n_own && strcmp(own[i].name, v[0]) != 0)
            i++;
        if (i == n_own)
            ret[n++] = (struct chat_token){ v[0], v[1] };
    }
    return n;
}

int registry_chat(const char *name, const struct template_files *files, const struct conv_registry *registry,
                  struct chat_template **ret, struct err *err)
{
    const struct conv_template *row = conv_find(registry, name);
    struct chat_source source = { "default", NULL, 0 };
    struct chat_token tokens[MAX_TOKENS];

    if (registry)
        source.text = conv_registry_jinja(registry, name, &source.len);
    if (source.text)
        return chat_from_jinja(name, &source, 1, tokens, put_tokens(files, NO_VARIABLES, tokens), row, ret, err);
    return row ? chat_from_row(row, ret, err) : FAMILY_UNKNOWN;
}

int family_chat(const struct family *f, const struct template_files *files, const struct conv_registry *registry,
                const struct conv_template *wire, struct chat_template **ret, struct err *err)
{
    struct chat_token tokens[MAX_TOKENS];
    struct chat_source source;
    int r = registry_chat(f->name, files, registry, ret, err);

    if (r != FAMILY_UNKNOWN)
        return r;
    if (!f->text)
        return registry_chat(f->row, files, registry, ret, err);
    source = (struct chat_source){ "default", text_named(f->text), 0 };
    source.len = strlen(source.text);
    return chat_from_jinja(f->name, &source, 1, tokens, put_tokens(files, f->variables, tokens),
                           f->row ? conv_find(registry, f->row) : wire, ret, err);
}
