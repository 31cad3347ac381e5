/* find.c - the contract's table: which adapter a path has, and which template.
 *
 * The rules see the path's last component first and the whole path only when no rule took that; which
 * template of an adapter it is, always the whole path says. So /srv/o1/gpt-4 is ChatGPT's by its
 * last component and not plain "chatgpt" by its folder.
 */
#include "adapters/adapters.h"

#include "adapters/rule.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/file.h"
#include "base/json.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

enum { BASES = 8 };             /* that may stand on each other */
enum { CONFIG_BYTES = 1 << 20 };

struct adapter {
    const char *class, *rule, *template;
    bool fast;
    const char *loading, *loop;
};

struct when {
    const char *class, *rule, *template;
};

static const struct adapter adapters[] = {
#define FAST true
#define SLOW false
#define ADAPTER(class, rule, template, tokenizer, loading, loop) { #class, rule, template, tokenizer, #loading, loop },
#include "adapters/adapters.def"
#undef FAST
#undef SLOW
};

static const struct when whens[] = {
#define WHEN(class, rule, template) { #class, rule, template },
#include "adapters/adapters.def"
};

static const struct adapter_loading loadings[] = {
#define LOADING(class, tokenizer, model, after) { #class, false, tokenizer, model, after, NULL },
#include "adapters/loading.def"
};

enum { N_ADAPTERS = sizeof adapters / sizeof adapters[0] };

static const struct adapter *first(const struct rule_subject *subject)
{
    const struct adapter *a = adapters;

    while (!rule_holds(a->rule, subject))       /* the last one's always does */
        a++;
    return a;
}

struct component {
    const char *text;               /* no NUL behind it */
    size_t len;
    bool alone;                     /* it is the path: relative, nothing in front */
};

/* posixpath.basename(posixpath.normpath(path)): what is last when dots and slashes are resolved. */
static struct component last_component(const char *path, size_t len)
{
    bool absolute = len && path[0] == '/';
    size_t up = 0;                  /* ".." read from the end that no component has taken yet */
    const char *end = path + len;

    while (end > path) {
        const char *slash = memrchr(path, '/', (size_t)(end - path)), *start = slash ? slash + 1 : path;
        size_t n = (size_t)(end - start);

        end = slash ? slash : path;
        if (n == 0 || (n == 1 && start[0] == '.'))
            continue;
        if (n == 2 && memcmp(start, "..", 2) == 0) {
            up++;
        } else if (up) {
            up--;
        } else {
            struct component above = last_component(path, (size_t)(start - path));

            return (struct component){ start, n, above.len == 1 && above.text[0] == '.' };
        }
    }
    if (absolute)
        return (struct component){ "", 0, false };
    return up ? (struct component){ "..", 2, up == 1 } : (struct component){ ".", 1, true };
}

const struct adapter *adapter_find(const char *path, enum adapter_matched *ret_matched)
{
    const struct adapter *last = &adapters[N_ADAPTERS - 1], *a;
    enum adapter_matched matched = ADAPTER_BASENAME;
    struct component name = last_component(path, strlen(path));
    BUF_LOCAL text = BUF_INIT;

    buf_add(&text, name.text, name.len);
    a = first(&(struct rule_subject){ buf_str(&text), name.alone && *path ? buf_str(&text) : NULL });
    if (a == last) {
        a = first(&(struct rule_subject){ path, *path ? path : NULL });
        matched = a == last ? ADAPTER_DEFAULT : ADAPTER_FULL_PATH;
    }
    if (ret_matched)
        *ret_matched = matched;
    return a;
}

const struct adapter *adapter_of_text(const char *text)
{
    return first(&(struct rule_subject){ text, NULL });
}

const char *adapter_class(const struct adapter *a) { return a->class; }

uint32_t adapter_index(const struct adapter *a) { return (uint32_t)(a - adapters); }

const struct adapter *adapter_at(uint32_t index) { return index < N_ADAPTERS ? &adapters[index] : NULL; }

struct adapter_loading adapter_loading(const struct adapter *a)
{
    struct adapter_loading l = { .class = a->loading };

    for (size_t i = 0; i < sizeof loadings / sizeof loadings[0]; i++)
        if (strcmp(loadings[i].class, a->loading) == 0)
            l = loadings[i];
    l.fast_tokenizer = a->fast;
    l.loop = a->loop;
    return l;
}

int adapter_base_model(const char *path, struct buf *ret, struct err *err)
{
    static const struct json_limits limits = { CONFIG_BYTES, 32, CONFIG_BYTES, 65536 };
    BUF_LOCAL file = BUF_INIT;
    BUF_LOCAL text = BUF_INIT;
    CLEANUP(json_delete) cJSON *tree = NULL;
    const char *base = NULL;
    int r;

    buf_printf(&file, "%s/adapter_config.json", path);
    r = file_read(buf_str(&file), CONFIG_BYTES, &text, err);
    if (r < 0)
        return r == -ENOTDIR ? -ENOENT : r;
    r = json_parse(buf_str(&text), text.len, &limits, &tree, err);
    if (r == 0)
        r = json_get_string(tree, "base_model_name_or_path", &base, err);
    if (r == JSON_ABSENT || (base && !*base))
        r = err_set(err, -EINVAL, "names no base_model_name_or_path");
    if (r < 0) {
        err_place(err, "%s", buf_str(&file));
        return r == -ENOMEM ? r : -EINVAL;
    }
    buf_adds(ret, base);
    return ret->failed ? err_set(err, -ENOMEM, "no memory for the name of a base model") : 0;
}

int adapter_template(const struct adapter *a, const char *path, const char **ret, struct err *err)
{
    BUF_LOCAL base = BUF_INIT;
    BUF_LOCAL above = BUF_INIT;

    for (int depth = 0; !a->template; depth++) {
        int r;

        if (depth == BASES)
            return err_set(err, -ELOOP, "%s: its base model has a base model, and so on for %d", path, BASES);
        buf_clear(&base);
        r = adapter_base_model(path, &base, err);
        if (r < 0)
            return r == -ENOMEM ? r : -EINVAL;
        if (strstr(buf_str(&base), "peft"))
            return err_set(err, -EINVAL, "%s: its base model %s is an adapter itself", path, buf_str(&base));
        buf_clear(&above);
        buf_adds(&above, buf_str(&base));
        path = buf_str(&above);
        a = adapter_find(path, NULL);
    }
    *ret = a->template;
    for (size_t i = 0; i < sizeof whens / sizeof whens[0]; i++)
        if (strcmp(whens[i].class, a->class) == 0 && rule_holds(whens[i].rule, &(struct rule_subject){ path, NULL })) {
            *ret = whens[i].template;
            break;
        }
    return 0;
}
