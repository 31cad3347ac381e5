/* The files of a checkpoint's folder: each begins with a record separator, its name and a line feed. Without one the
 * input is a GGUF file. */
#include "base/err.h"
#include "loaders/gguf.h"
#include "loaders/template_files.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FILES = 80, SEPARATOR = 0x1e };

static volatile size_t sink;

static void read_all(struct template_files *t)
{
    size_t n_files, n_tokens;
    const struct template_file *f = template_files_all(t, &n_files);
    const struct template_token *k = template_files_tokens(t, &n_tokens);

    for (size_t i = 0; i < n_files; i++)
        if (strlen(f[i].text) != f[i].len || f[i].len == 0 || !*f[i].name || (i && !strcmp(f[i].name, "default")))
            __builtin_trap();
    for (size_t i = 0; i < n_tokens; i++)
        sink += strlen(k[i].name) + strlen(k[i].text);
}

static void read_gguf(const uint8_t *data, size_t size)
{
    CLEANUP(gguf_close) struct gguf *g = NULL;
    CLEANUP(template_files_free) struct template_files *t = NULL;
    struct err err = { 0 };

    if (gguf_open_memory("fuzz.gguf", data, size, &g, NULL) < 0)
        return;
    if (template_files_of_gguf(g, &t, &err) == 0)
        read_all(t);
    else if (!err_is_set(&err))
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char names[FILES][100];
    struct template_text texts[FILES];
    CLEANUP(template_files_free) struct template_files *t = NULL;
    struct err err = { 0 };
    size_t n = 0;

    if (size == 0 || data[0] != SEPARATOR) {
        read_gguf(data, size);
        return 0;
    }
    while (size && n < FILES) {
        const uint8_t *end = memchr(data + 1, SEPARATOR, size - 1), *line;
        size_t len = end ? (size_t)(end - data) : size;

        line = memchr(data, '\n', len);
        if (line && line - data - 1 < (ptrdiff_t)sizeof names[0]) {
            memcpy(names[n], data + 1, (size_t)(line - data - 1));
            names[n][line - data - 1] = '\0';
            texts[n] = (struct template_text){ names[n], (const char *)line + 1, len - (size_t)(line + 1 - data) };
            n++;
        }
        data += len;
        size -= len;
    }
    if (template_files_of_texts("folder", texts, n, &t, &err) == 0)
        read_all(t);
    else if (!err_is_set(&err))
        __builtin_trap();
    return 0;
}
