/* config_files.h - a folder of its own for each test of the configuration. */
#ifndef TESTS_DAEMON_CONFIG_FILES_H
#define TESTS_DAEMON_CONFIG_FILES_H

#include "base/buf.h"
#include "daemon/supervisor/config.h"

#include <criterion/criterion.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char config_folder[64];

static int config_remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    return remove(path);
}

static inline void config_folder_remove(void)
{
    nftw(config_folder, config_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* Writes a file (its folders too) and returns its path, which lives until the
 * next call. */
static inline const char *config_write_text(const char *name, const char *text)
{
    static char path[PATH_MAX];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", config_folder, name);
    for (char *slash = strchr(path + strlen(config_folder) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0755);
        *slash = '/';
    }
    f = fopen(path, "w");
    cr_assert(f != NULL);
    cr_assert(fputs(text, f) >= 0);
    cr_assert(fclose(f) == 0);
    return path;
}

static inline void config_folder_make(void)
{
    strcpy(config_folder, "/tmp/fc-conf-XXXXXX");
    cr_assert(mkdtemp(config_folder) != NULL);
    unsetenv("RUNTIME_DIRECTORY");
    unsetenv("FASTCHAT_CACHE");
    setenv("HOME", config_folder, 1);
    config_write_text("m.gguf", "x");
}

/* Takes every "FOLDER/" out, so that messages can be compared. */
static inline void config_strip_folder(struct buf *b)
{
    size_t n = strlen(config_folder) + 1;

    for (char *at = b->data; at && (at = strstr(at, config_folder)) != NULL;) {
        if (at[n - 1] != '/') {
            at++;
            continue;
        }
        memmove(at, at + n, strlen(at + n) + 1);
        b->len -= n;
    }
}

#endif
