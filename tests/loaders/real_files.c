#include "real_files.h"

#include "base/err.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char path[4096];

const char *real_smollm2(void)
{
    static const char name[] = "models/SmolLM2-135M-Instruct.Q4_1.gguf";
    const char *file = getenv("FASTCHAT_SMOLLM2"), *cache = getenv("FASTCHAT_CACHE"), *ci = getenv("CI");

    if (file)
        snprintf(path, sizeof path, "%s", file);
    else if (cache)
        snprintf(path, sizeof path, "%s/%s", cache, name);
    else
        snprintf(path, sizeof path, "%s/.cache/fastchat/%s", getenv("HOME") ? getenv("HOME") : "", name);
    if (access(path, R_OK) < 0) {
        if (ci && strcmp(ci, "true") == 0)
            cr_fatal("%s is not there", path);
        printf("skipped: %s is not there; set FASTCHAT_SMOLLM2\n", path);
        cr_skip();
    }
    return path;
}

static const char *in_folder(const char *folder, const char *name)
{
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

const char *real_golden(const char *name)
{
    const char *folder = getenv("FASTCHAT_GOLDEN"), *source = getenv("FASTCHAT_SOURCE");
    char beside[2048];

    snprintf(beside, sizeof beside, "%s/../shared/golden", source ? source : ".");
    in_folder(folder ? folder : beside, name);
    if (access(path, R_OK) < 0) {
        printf("skipped: %s is not there; set FASTCHAT_GOLDEN\n", path);
        cr_skip();
    }
    return path;
}

const char *real_committed(const char *name)
{
    char folder[2048];

    snprintf(folder, sizeof folder, "%s/tests/golden", getenv("FASTCHAT_SOURCE") ? getenv("FASTCHAT_SOURCE") : ".");
    return in_folder(folder, name);
}

char *real_read(const char *file, size_t *ret_len)
{
    FILE *f = fopen(file, "rb");
    char *text;
    long len;

    cr_assert(ne(ptr, f, NULL), "%s", file);
    fseek(f, 0, SEEK_END);
    len = ftell(f);
    rewind(f);
    text = calloc(1, (size_t)len + 1);
    cr_assert(text && fread(text, 1, (size_t)len, f) == (size_t)len, "%s", file);
    fclose(f);
    *ret_len = (size_t)len;
    return text;
}

size_t real_lines(const char *file, void (*fn)(const cJSON *line, void *user), void *user)
{
    size_t len, n = 0;
    CLEANUP(mem_free) char *text = real_read(file, &len);

    for (char *at = text, *end; at < text + len; at = end + 1) {
        CLEANUP(json_delete) cJSON *line = NULL;
        struct err err = { 0 };

        end = memchr(at, '\n', (size_t)(text + len - at));
        end = end ? end : text + len;
        cr_assert(eq(int, json_parse(at, (size_t)(end - at), NULL, &line, &err), 0), "%s", err.text);
        fn(line, user);
        n++;
    }
    return n;
}
