/* llama.cpp's own goldens: NAME.gguf, texts in NAME.gguf.inp, a line of ids for each in NAME.gguf.out. Some vocabularies are not there
 * as GGUF, but the same tokenizer's tokenizer.json is. */
#include "score.h"

#include "base/err.h"
#include "loaders/gguf.h"
#include "loaders/tokenizer.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FOLDER "tokenizers/ggml-vocab"

#define PREFIX "ggml-vocab-"

/* Where the same vocabulary is: FOLDER/tokenizers/vocab/PLACE/tokenizer.json. */
static const struct { const char *name, *place; } elsewhere[] = {
    { "gemma-4", "gemma3" },
    { "llama-bpe", "llama3" },
    { "qwen2", "qwen3" },
};

static void check_text(struct score *s, const struct tokenizer *t, const char *record, const char *text, const char *wanted)
{
    TOKEN_LIST_LOCAL ids = { 0 };
    BUF_LOCAL have = BUF_INIT;
    struct err err = { 0 };

    if (tokenizer_encode(t, text, strlen(text), false, &ids, &err) < 0) {
        score_fail(s, record, "%s", err.text);
        return;
    }
    for (size_t i = 0; i < ids.n; i++)
        buf_printf(&have, "%s%d", i ? " " : "", ids.ids[i]);
    score_compare(s, record, wanted, strlen(wanted), buf_str(&have), have.len);
}

static void check_texts(struct score *s, const char *name, const struct tokenizer *t, char *texts, char *ids)
{
    static const char mark[] = "\n__ggml_vocab_test__\n";
    char record[96];
    int n = 0;

    for (char *text = texts, *line = ids; text; n++) {
        char *end = strstr(text, mark), *line_end = strchr(line, '\n');

        if (end)
            *end = 0;
        if (line_end)
            *line_end = 0;
        while (*line == ' ')
            line++;
        for (char *space = line + strlen(line); space > line && space[-1] == ' ';)
            *--space = 0;
        snprintf(record, sizeof record, "%s text %d", name, n);
        check_text(s, t, record, text, line);
        text = end ? end + sizeof mark - 1 : NULL;
        line = line_end ? line_end + 1 : line + strlen(line);
    }
}

/* 0, 1 for a vocabulary that is not here, or negative. */
static int open_vocabulary(const char *folder, const char *name, struct tokenizer **ret, struct err *err)
{
    CLEANUP(gguf_close) struct gguf *file = NULL;
    CLEANUP(mem_free) char *json = NULL;
    char path[4096];
    size_t len;

    snprintf(path, sizeof path, "%s/" FOLDER "/" PREFIX "%s.gguf", folder, name);
    if (access(path, F_OK) == 0) {
        int r = gguf_open(path, &file, err);

        return r < 0 ? r : tokenizer_open(file, ret, err);
    }
    for (size_t i = 0; i < sizeof elsewhere / sizeof elsewhere[0]; i++) {
        if (strcmp(elsewhere[i].name, name))
            continue;
        snprintf(path, sizeof path, "tokenizers/vocab/%s/tokenizer.json", elsewhere[i].place);
        json = score_file(folder, path, &len);
        return json ? tokenizer_open_json(path, json, len, ret, err) : 1;
    }
    return 1;
}

static void check_name(struct score *s, const char *folder, const char *name)
{
    CLEANUP(mem_free) char *texts = NULL, *ids = NULL;
    CLEANUP(tokenizer_close) struct tokenizer *t = NULL;
    char path[512], line[128];
    struct err err = { 0 };
    size_t len;
    int r;

    snprintf(line, sizeof line, "ggml/%s", name);
    score_begin(s, line);
    snprintf(path, sizeof path, FOLDER "/" PREFIX "%s.gguf.inp", name);
    texts = score_file(folder, path, &len);
    snprintf(path, sizeof path, FOLDER "/" PREFIX "%s.gguf.out", name);
    ids = score_file(folder, path, &len);
    r = open_vocabulary(folder, name, &t, &err);
    if (r < 0)
        score_fail(s, name, "%s", err_text(&err));
    else if (r > 0 || !texts || !ids)
        score_leave_out(s, name, r > 0 ? "its vocabulary is not here" : "it has no texts");
    else
        check_texts(s, name, t, texts, ids);
}

/* A vocabulary, or the texts of one. */
static int is_one(const struct dirent *d)
{
    const char *end = strstr(d->d_name, ".gguf");

    return !strncmp(d->d_name, PREFIX, strlen(PREFIX)) && end && (!end[5] || !strcmp(end + 5, ".inp"));
}

void score_ggml_vocab(struct score *s, const char *folder)
{
    char path[4096], last[NAME_MAX + 1] = "";
    struct dirent **list;
    int n;

    snprintf(path, sizeof path, "%s/" FOLDER, folder);
    n = scandir(path, &list, is_one, alphasort);
    for (int i = 0; i < n; i++) {
        char *name = list[i]->d_name + strlen(PREFIX);

        *strstr(name, ".gguf") = 0;
        if (strcmp(name, last))
            check_name(s, folder, name);
        snprintf(last, sizeof last, "%s", name);
        free(list[i]);
    }
    if (n >= 0)
        free(list);
}
