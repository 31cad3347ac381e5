#include "cli/model_dirs.h"

#include "cli/setting_rows.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One of the folders, with $NAME or ~ in front; "" when that holds no absolute path. */
static void resolve(const char *text, size_t n, char *out, size_t size)
{
    size_t head = text[0] == '$' || text[0] == '~' ? strcspn(text, "/:") : 0;
    const char *value = "";
    char name[64];

    if (head > 0) {
        snprintf(name, sizeof name, "%.*s", (int)head - 1, text + 1);
        value = getenv(text[0] == '~' ? "HOME" : name);
        if (!value || value[0] != '/') {
            out[0] = 0;
            return;
        }
    }
    snprintf(out, size, "%s%.*s", value, (int)(n - head), text + head);
}

bool model_dirs_each(bool (*fn)(const char *folder, void *user), void *user)
{
    for (const char *at = setting_rows[SUPERVISOR_model_dirs].def; *at;) {
        size_t n = strcspn(at, ":");
        char folder[PATH_MAX];

        resolve(at, n, folder, sizeof folder);
        if (folder[0] && fn(folder, user))
            return true;
        at += n + (at[n] == ':');
    }
    return false;
}
