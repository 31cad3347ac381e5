/* What a path holds, by content: a name is a habit, and "tokenizer.model" is a protocol buffer for some families and lines
 * of base64 for others.
 *
 * In a folder the file that says most wins: tokenizer.json lists the whole chain and is what Hugging Face's programs use;
 * tekken.json likewise; the others leave to tokenizer_config.json what they do not say.
 */
#include "base/buf.h"
#include "base/err.h"
#include "base/file.h"
#include "base/json.h"
#include "loaders/gguf.h"
#include "loaders/tok/hf.h"
#include "loaders/tok/ranks.h"
#include "loaders/tok/sp_model.h"
#include "loaders/tok/wordpiece.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { CONFIG_BYTES = 1 << 25, HEAD = 8, MAX_PATH = 4000 };

static int open_gguf(const char *path, struct tokenizer **ret, struct err *err)
{
    CLEANUP(gguf_close) struct gguf *g = NULL;
    int r = gguf_open(path, &g, err);

    return r < 0 ? r : tokenizer_open(g, ret, err);
}

/* tokenizer.json and tekken.json are both objects: the one has a "model", the other a "config" and a "vocab". */
static bool is_tekken(const char *text, size_t len)
{
    static const char config[] = "\"config\"", model[] = "\"model\"";
    size_t head = len < 4096 ? len : 4096;
    bool at_head = memmem(text, head, config, sizeof config - 1) && !memmem(text, head, model, sizeof model - 1);

    return at_head || (memmem(text, len, "\"token_bytes\"", 13) && !memmem(text, head, "\"added_tokens\"", 14));
}

static int open_bytes(const char *path, const struct buf *b, const cJSON *config, struct tokenizer **ret, struct err *err)
{
    const char *text = b->data ? b->data : "";
    size_t at = strspn(text, " \t\r\n");

    if (b->len && text[at] == '{' && is_tekken(text, b->len))
        return tekken_open(path, text, b->len, ret, err);
    if (b->len && text[at] == '{')
        return tokenizer_open_json(path, text, b->len, ret, err);
    if (sp_model_looks_like(text, b->len))
        return sp_tokenizer_open(path, text, b->len, config, ret, err);
    if (tiktoken_looks_like(text, b->len))
        return tiktoken_open(path, text, b->len, config, ret, err);
    if (vocab_txt_looks_like(text, b->len))
        return vocab_txt_open(path, text, b->len, config, ret, err);
    return err_set(err, -EINVAL,
                   "%s: no tokenizer: neither GGUF, tokenizer.json, tekken.json, a SentencePiece model, a tiktoken file "
                   "nor a WordPiece vocabulary", path);
}

static int open_file(const char *path, const cJSON *config, struct tokenizer **ret, struct err *err)
{
    CLEANUP(fd_close) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    BUF_LOCAL b = BUF_INIT;
    char head[HEAD] = { 0 };
    int r;

    if (fd < 0)
        return err_errno(err, -errno, "%s", path);
    if (read(fd, head, sizeof head) >= 4 && memcmp(head, "GGUF", 4) == 0)
        return open_gguf(path, ret, err);
    r = file_read(path, TOKENIZER_MAX_FILE, &b, err);
    return r < 0 ? r : open_bytes(path, &b, config, ret, err);
}

static int read_config(const char *folder, cJSON **ret, struct err *err)
{
    BUF_LOCAL text = BUF_INIT;
    char path[4096];
    struct err why = { 0 };
    int r;

    snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    r = file_read(path, CONFIG_BYTES, &text, &why);
    if (r == -ENOENT)
        return 0;
    if (r == 0) {
        r = json_parse(buf_str(&text), text.len, NULL, ret, &why);
        if (r < 0)
            err_place(&why, "%s", path);
    }
    return r < 0 ? err_set(err, r, "%s", err_text(&why)) : 0;
}

/* The only file of a pattern, or the first by name; false: there is none. */
static bool find(const char *folder, const char *pattern, char *path, size_t size)
{
    glob_t g;
    char whole[4096];
    bool found;

    snprintf(whole, sizeof whole, "%s/%s", folder, pattern);
    found = glob(whole, GLOB_NOESCAPE, NULL, &g) == 0 && g.gl_pathc;
    if (found)
        snprintf(path, size, "%s", g.gl_pathv[0]);
    globfree(&g);
    return found;
}

static int open_folder(const char *folder, struct tokenizer **ret, struct err *err)
{
    static const char *const names[] = { "tekken.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model",
                                         "tiktoken.model" };
    CLEANUP(json_delete) cJSON *config = NULL;
    char path[4096];
    struct stat st;
    int r;

    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    if (stat(path, &st) == 0)
        return hf_open_folder(folder, ret, err);
    r = read_config(folder, &config, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        if (stat(path, &st) == 0)
            return open_file(path, config, ret, err);
    }
    if (find(folder, "*.tiktoken", path, sizeof path))
        return open_file(path, config, ret, err);
    snprintf(path, sizeof path, "%s/vocab.txt", folder);
    if (stat(path, &st) == 0)
        return open_file(path, config, ret, err);
    if (find(folder, "*.gguf", path, sizeof path))
        return open_file(path, config, ret, err);
    return err_set(err, -ENOENT, "%s: the folder holds no tokenizer", folder);
}

int tokenizer_open_path(const char *path, struct tokenizer **ret, struct err *err)
{
    struct stat st;

    if (strlen(path) > MAX_PATH)
        return err_set(err, -EINVAL, "a path of %zu bytes is too long", strlen(path));
    if (stat(path, &st) < 0)
        return err_errno(err, -errno, "%s", path);
    return S_ISDIR(st.st_mode) ? open_folder(path, ret, err) : open_file(path, NULL, ret, err);
}
