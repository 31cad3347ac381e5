#include "cli/settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *next_line(const char *line)
{
    const char *end = strchr(line, '\n');

    return end ? end + 1 : line + strlen(line);
}

static bool starts(const char *line, const char *with)
{
    return strncmp(line, with, strlen(with)) == 0;
}

/* The text after `key = `, up to the ';' that is outside quotes. */
static bool take_value(const char *text, char *ret, size_t size)
{
    bool quoted = *text == '"';
    size_t n = 0;

    for (text += quoted; *text && *text != '\n' && *text != (quoted ? '"' : ';'); text++) {
        if (quoted && *text == '\\' && text[1])
            text++;
        if (n + 1 >= size)
            return false;
        ret[n++] = *text;
    }
    ret[n] = '\0';
    return true;
}

/* `line` is behind an opening brace; its keys are `indent` blanks in. */
static bool find(const char *line, size_t indent, const char *key, char *ret, size_t size)
{
    size_t n = strlen(key);

    for (; *line; line = next_line(line)) {
        size_t blanks = strspn(line, " ");

        if (blanks < indent && line[blanks] == '}')
            return false;
        if (blanks == indent && strncmp(line + indent, key, n) == 0 && starts(line + indent + n, " = "))
            return take_value(line + indent + n + 3, ret, size);
    }
    return false;
}

bool settings_get(const char *dump, const char *section, const char *key, char *ret, size_t size)
{
    size_t n = strlen(section);

    for (const char *line = dump; *line; line = next_line(line))
        if (starts(line, section) && starts(line + n, ":\n{\n"))
            return find(line + n + 4, 2, key, ret, size);
    return false;
}

bool settings_part_get(const char *part, const char *key, char *ret, size_t size)
{
    return find(part, strspn(part, " "), key, ret, size);
}

static int64_t number(bool found, const char *text, int64_t otherwise)
{
    return found ? strtoll(text, NULL, 10) : otherwise;
}

int64_t settings_int(const char *dump, const char *section, const char *key, int64_t otherwise)
{
    char text[32];

    return number(settings_get(dump, section, key, text, sizeof text), text, otherwise);
}

int64_t settings_part_int(const char *part, const char *key, int64_t otherwise)
{
    char text[32];

    return number(settings_part_get(part, key, text, sizeof text), text, otherwise);
}

/* The next brace that stands alone, `indent` blanks in, behind the line `list`
 * and before the one that ends it. */
static const char *next_part(const char **at, const char *list, size_t indent, const char *end)
{
    const char *line = *at;

    if (starts(line, "#") || !strncmp(line, "supervisor:", 11)) {       /* the whole dump */
        const char *begin = strstr(line, list);

        if (!begin)
            return NULL;
        line = begin + strlen(list);
    }
    for (; *line && !starts(line, end); line = next_line(line))
        if (strspn(line, " ") == indent && line[indent] == '{') {
            *at = next_line(line);
            return *at;
        }
    return NULL;
}

const char *settings_next_model(const char **at)
{
    return next_part(at, "\nmodels:\n(\n", 2, ");");
}

const char *settings_next_listener(const char **at)
{
    return next_part(at, "\n  listen = (\n", 4, "  );");
}
