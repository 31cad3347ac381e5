/* What a hub sends, and what somebody writes to name something of it: whatever the
 * bytes, a result that holds together or a sentence. The first byte chooses. */
#include "base/err.h"
#include "cli/hub.h"
#include "cli/hub_choose.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_source(const char *text)
{
    struct hub_source s;
    struct err err = { 0 };

    if (hub_source_parse(text, HUB_ENDPOINT, &s, &err) < 0) {
        if (!err_is_set(&err))
            abort();
        return;
    }
    if (!s.repo[0] == !s.url[0] || (s.path[0] && !hub_path_is_safe(s.path)) || strstr(s.repo, ".."))
        abort();
}

static void check_link(const char *text)
{
    char next[HUB_URL_BYTES];

    if (hub_next_link(text, next) && (!next[0] || strlen(next) >= sizeof next))
        abort();
}

static void check_choice(const struct hub_listing *l)
{
    struct hub_source s = { .repo = "org/name" };
    const struct hub_wish wish = { .source = &s };
    bool *chosen = calloc(l->n_files + 1, 1);
    char name[HUB_PATH_BYTES];
    struct err err = { 0 };

    if (!chosen)
        return;
    if (hub_choose(l, &wish, chosen, &err) < 0) {
        if (!err_is_set(&err))
            abort();
    } else {
        for (size_t i = 0; i < l->n_files; i++)
            if (chosen[i] && (!hub_path_is_safe(l->files[i].path) || (hub_is_gguf(l->files[i].path) &&
                              hub_local_name("org/name", l->files[i].path, NULL, name, sizeof name) && strchr(name, '/'))))
                abort();
    }
    free(chosen);
}

static void check_answers(const char *text, size_t len)
{
    struct hub_listing l = { 0 };
    struct err err = { 0 };

    if (hub_parse_revision(text, len, &l, &err) == 0 && !digest_is_hex(l.commit, SHA1_HEX))
        abort();
    err_clear(&err);
    if (hub_parse_tree(text, len, &l, &err) < 0 && !err_is_set(&err))
        abort();
    for (size_t i = 0; i < l.n_files; i++)
        if (l.files[i].size < 0 || !l.files[i].sha256[0] == !l.files[i].blob[0])
            abort();
    if (l.n_files < 100)
        check_choice(&l);
    hub_listing_fini(&l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text;

    if (size == 0 || !(text = strndup((const char *)data + 1, size - 1)))
        return 0;
    if (data[0] == 's')
        check_source(text);
    else if (data[0] == 'l')
        check_link(text);
    else
        check_answers((const char *)data, size);
    free(text);
    return 0;
}
