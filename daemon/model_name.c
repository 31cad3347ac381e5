#include "daemon/model_name.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static const char end[] = ".gguf";
static const char part[] = "-00001-of-00003";   /* its shape: digits for digits */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

bool model_name_char(char c)
{
    return is_digit(c) || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           (c && strchr(MODEL_NAME_EXTRA, c));
}

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

/* Length of the name before ".gguf". */
static size_t stem(const char *name)
{
    size_t n = strlen(name), e = sizeof end - 1;

    return n >= e && strcmp(name + n - e, end) == 0 ? n - e : n;
}

/* True when `name` has the shape of `part` before `n`. */
static bool ends_as_part(const char *name, size_t n)
{
    size_t len = sizeof part - 1;

    if (n <= len)
        return false;
    name += n - len;
    for (size_t i = 0; i < len; i++)
        if (is_digit(part[i]) ? !is_digit(name[i]) : name[i] != part[i])
            return false;
    return true;
}

unsigned model_file_part(const char *path)
{
    const char *name = file_name(path);
    size_t n = stem(name);

    return ends_as_part(name, n) ? (unsigned)strtoul(name + n - (sizeof part - 2), NULL, 10) : 0;
}

bool model_name_of_file(const char *path, char ret[MODEL_NAME_MAX + 1])
{
    const char *name = file_name(path);
    size_t n = stem(name), len = 0;
    bool gap = false;

    if (ends_as_part(name, n))
        n -= sizeof part - 1;
    for (size_t i = 0; i < n && len < MODEL_NAME_MAX; i++) {
        if (!model_name_char(name[i])) {
            gap = true;
            continue;
        }
        if (gap && len > 0 && len < MODEL_NAME_MAX - 1)
            ret[len++] = '-';
        gap = false;
        ret[len++] = name[i];
    }
    ret[len] = 0;
    return len > 0;
}
