#include "cli/hub_access.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "cli/hub.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *from_env(const char *name)
{
    const char *v = getenv(name);

    return v && v[0] ? v : NULL;
}

bool hub_access_is_offline(void)
{
    static const char *const yes[] = { "1", "on", "yes", "true" };
    const char *v = from_env("HF_HUB_OFFLINE");

    for (size_t i = 0; v && i < sizeof yes / sizeof yes[0]; i++)
        if (strcasecmp(v, yes[i]) == 0)
            return true;
    return false;
}

static int take_endpoint(struct hub_access *a, struct err *err)
{
    const char *v = from_env("HF_ENDPOINT");
    size_t n;

    if (!v)
        v = HUB_ENDPOINT;
    n = strlen(v);
    while (n > 0 && v[n - 1] == '/')
        n--;
    if (n >= sizeof a->endpoint || (strncmp(v, "https://", 8) != 0 && strncmp(v, "http://", 7) != 0))
        return err_set(err, -EINVAL, "HF_ENDPOINT must be the http(s) address of a hub, not '%.100s'", v);
    snprintf(a->endpoint, sizeof a->endpoint, "%.*s", (int)n, v);
    return 0;
}

/* Without the space around it. `where` says whose it is. */
static int put_token(struct hub_access *a, const char *text, const char *where, struct err *err)
{
    size_t n;

    while (*text && strchr(" \t\r\n", *text))
        text++;
    n = strlen(text);
    while (n > 0 && strchr(" \t\r\n", text[n - 1]))
        n--;
    if (n >= sizeof a->token)
        return err_set(err, -EINVAL, "%s holds no token: it is too long for one", where);
    for (size_t i = 0; i < n; i++)
        if (text[i] <= 0x20 || text[i] == 0x7f)
            return err_set(err, -EINVAL, "%s holds no token: there is a space or a control character in it", where);
    snprintf(a->token, sizeof a->token, "%.*s", (int)n, text);
    return 0;
}

static int read_token(struct hub_access *a, const char *folder, const char *file, struct err *err)
{
    CLEANUP(fd_close) int fd = -1;
    char path[PATH_MAX], text[4096];
    ssize_t n;

    if (snprintf(path, sizeof path, "%s%s", folder, file) >= (int)sizeof path)
        return 0;
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    /* one that is not there, or not ours to read, is none */
    if (n < 0)
        return 0;
    text[n] = 0;
    return put_token(a, text, path, err);
}

static int take_token(struct hub_access *a, struct err *err)
{
    static const char *const names[] = { "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN" };
    const struct {
        const char *folder, *file;
    } places[] = {
        { from_env("CREDENTIALS_DIRECTORY"), "/hf-token" }, { from_env("HF_TOKEN_PATH"), "" },
        { from_env("HF_HOME"), "/token" },                  { from_env("XDG_CACHE_HOME"), "/huggingface/token" },
        { from_env("HOME"), "/.cache/huggingface/token" },
    };
    int r = 0;

    for (size_t i = 0; i < 2 && r == 0 && !a->token[0]; i++)
        if (from_env(names[i]))
            r = put_token(a, from_env(names[i]), names[i], err);
    for (size_t i = 0; i < sizeof places / sizeof places[0] && r == 0 && !a->token[0]; i++)
        if (places[i].folder)
            r = read_token(a, places[i].folder, places[i].file, err);
    return r;
}

int hub_access_read(struct hub_access *ret, struct err *err)
{
    struct hub_access a = { 0 };
    int r = take_endpoint(&a, err);

    if (r == 0)
        r = take_token(&a, err);
    if (r == 0)
        *ret = a;
    return r;
}
