/* The built-in rows are those of templates.def, in its order, then ours. What an administrator adds stands before
 * them: it wins by being found first, and the built-in rows stay what they are.
 */
#include "conv/conv.h"

#include "base/err.h"
#include "base/utf8.h"
#include "conv/template.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SLOT CONV_SLOT
#define ARRAY(type, ...) (const type[]){ __VA_ARGS__ }
#define LENGTH(type, ...) sizeof ARRAY(type, __VA_ARGS__) / sizeof(type)
#define TEMPLATE(...) { .name = __VA_ARGS__ },
#define MESSAGES(...)                                                                              \
    .messages = ARRAY(struct conv_preset, __VA_ARGS__), .n_messages = LENGTH(struct conv_preset, __VA_ARGS__)
#define STOP(text) .stops = (const char *const[]){ text, NULL }
#define STOPS(...) .stops = (const char *const[]){ __VA_ARGS__, NULL }, .stops_list = true
#define STOP_TOKENS(...)                                                                           \
    .stop_tokens = ARRAY(int32_t, __VA_ARGS__), .n_stop_tokens = LENGTH(int32_t, __VA_ARGS__)

/* ChatML in the words of a simpler style, which writes the same: a style was put in before CHATML
 * once, so that a Python api server takes its number for another one, and this one's for what it is. */
#define CHATML                                                                                     \
    .system_template = "<|im_start|>system\n" CONV_SLOT "<|im_end|>\n",                            \
    .roles = { "<|im_start|>user\n", "<|im_start|>assistant\n" }, .style = CONV_NO_COLON_SINGLE,   \
    .sep = "<|im_end|>\n", .as_file = true

static const struct conv_template built_in[] = {
#include "conv/templates.def"
    { .name = "chatml", .system_message = "", CHATML },
    { .name = "smollm2",
      .system_message = "You are a helpful AI assistant named SmolLM, trained by Hugging Face", CHATML },
};
enum { N_BUILT_IN = sizeof built_in / sizeof built_in[0] };

struct added {
    char *name, *jinja;
    size_t jinja_len;
    struct conv_template *row;              /* NULL: only a Jinja text */
};

struct conv_registry {
    struct added *added;                    /* [n_added] */
    size_t n_added;
};

static void added_fini(struct added *a)
{
    free(a->name);
    free(a->jinja);
    conv_free(a->row);
    *a = (struct added){ 0 };
}

struct conv_registry *conv_registry_new(void)
{
    return calloc(1, sizeof(struct conv_registry));
}

void conv_registry_free(struct conv_registry *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->n_added; i++)
        added_fini(&r->added[i]);
    free(r->added);
    free(r);
}

static struct added *find_added(const struct conv_registry *r, const char *name)
{
    for (size_t i = 0; r && i < r->n_added; i++)
        if (strcmp(r->added[i].name, name) == 0)
            return &r->added[i];
    return NULL;
}

static const struct conv_template *find_built_in(const char *name)
{
    for (size_t i = 0; i < N_BUILT_IN; i++)
        if (strcmp(built_in[i].name, name) == 0)
            return &built_in[i];
    return NULL;
}

const struct conv_template *conv_find(const struct conv_registry *r, const char *name)
{
    const struct added *a = find_added(r, name);

    return a ? a->row : find_built_in(name);
}

const char *conv_registry_jinja(const struct conv_registry *r, const char *name, size_t *ret_len)
{
    const struct added *a = find_added(r, name);

    if (!a || !a->jinja)
        return NULL;
    *ret_len = a->jinja_len;
    return a->jinja;
}

const char *conv_registry_name(const struct conv_registry *r, size_t i)
{
    if (i < N_BUILT_IN)
        return built_in[i].name;
    i -= N_BUILT_IN;
    for (size_t k = 0; r && k < r->n_added; k++)
        if (!find_built_in(r->added[k].name) && i-- == 0)
            return r->added[k].name;
    return NULL;
}

static int check_name(const char *name, struct err *err)
{
    size_t len = strlen(name);

    if (len == 0 || len > CONV_MAX_NAME)
        return err_set(err, -EINVAL, "the name of a template has 1 to %d bytes", CONV_MAX_NAME);
    for (const char *c = name; *c; c++)
        if ((unsigned char)*c <= ' ' || *c == 0x7F || *c == '/')
            return err_set(err, -EINVAL, "the name of a template has no space, control character or '/'");
    return 0;
}

static int read_added(const char *name, const cJSON *row, const char *jinja, size_t jinja_len, struct added *ret,
                      struct err *err)
{
    int rc = check_name(name, err);

    if (rc == 0 && row)
        rc = conv_read(row, name, &ret->row, err);
    if (rc < 0)
        return rc;
    if (jinja && jinja_len > CONV_MAX_TEMPLATE)
        return err_set(err, -E2BIG, "a template has more than %d bytes", CONV_MAX_TEMPLATE);
    if (jinja && (memchr(jinja, 0, jinja_len) || !utf8_is_valid(jinja, jinja_len)))
        return err_set(err, -EINVAL, "a template is text in UTF-8 without NUL");
    ret->name = strdup(name);
    ret->jinja = jinja ? strndup(jinja, jinja_len) : NULL;
    ret->jinja_len = jinja_len;
    return ret->name && (!jinja || ret->jinja) ? 0 : err_set(err, -ENOMEM, "no memory for a template");
}

int conv_registry_add(struct conv_registry *r, const char *name, const cJSON *row, const char *jinja,
                      size_t jinja_len, struct err *err)
{
    __attribute__((cleanup(added_fini))) struct added a = { 0 };
    struct added *at, *more;
    int rc = read_added(name, row, jinja, jinja_len, &a, err);

    if (rc < 0)
        return rc;
    at = find_added(r, name);
    if (at) {
        const struct added old = *at;

        *at = a;
        a = old;
        return CONV_REPLACED;
    }
    if (r->n_added >= CONV_MAX_ADDED)
        return err_set(err, -E2BIG, "there are more than %d templates", CONV_MAX_ADDED);
    more = realloc(r->added, (r->n_added + 1) * sizeof *more);
    if (!more)
        return err_set(err, -ENOMEM, "no memory for a template");
    r->added = more;
    r->added[r->n_added++] = a;
    a = (struct added){ 0 };
    return find_built_in(name) ? CONV_REPLACED : 0;
}
