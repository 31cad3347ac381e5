/* llama.cpp's own goldens: NAME.gguf, texts in NAME.gguf.inp, a line of ids for each in NAME.gguf.out. */
#include "score.h"

#include "base/err.h"
#include "loaders/gguf.h"
#include "loaders/tokenizer.h"

#include <stdio.h>
#include <string.h>

#define FOLDER "tokenizers/ggml-vocab"

/* Sorted; those without a vocabulary here are too large for it, and said to be left out. */
static const char *const names[] = {
    "baichuan", "bert-bge", "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2", "gpt-neox", "llama-bpe", "llama-spm",
    "mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder",
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

static void check_name(struct score *s, const char *folder, const char *name)
{
    CLEANUP(mem_free) char *texts = NULL, *ids = NULL;
    CLEANUP(gguf_close) struct gguf *file = NULL;
    CLEANUP(tokenizer_close) struct tokenizer *t = NULL;
    char path[4096], line[96];
    struct err err = { 0 };
    size_t len;

    snprintf(line, sizeof line, "ggml/%s", name);
    score_begin(s, line);
    snprintf(path, sizeof path, FOLDER "/ggml-vocab-%s.gguf.inp", name);
    texts = score_file(folder, path, &len);
    snprintf(path, sizeof path, FOLDER "/ggml-vocab-%s.gguf.out", name);
    ids = score_file(folder, path, &len);
    snprintf(path, sizeof path, "%s/" FOLDER "/ggml-vocab-%s.gguf", folder, name);
    if (gguf_open(path, &file, &err) < 0 || (!texts != !ids)) {
        score_leave_out(s, name, texts ? "its vocabulary is not here" : err_text(&err));
        return;
    }
    if (tokenizer_open(file, &t, &err) < 0) {
        score_fail(s, name, "%s", err_text(&err));
        return;
    }
    if (!texts) {
        score_leave_out(s, name, "it has no texts");
        return;
    }
    check_texts(s, name, t, texts, ids);
}

void score_ggml_vocab(struct score *s, const char *folder)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        check_name(s, folder, names[i]);
}
