/* What a path holds: told apart by content; in a folder by what says most. */
#include "base/buf.h"
#include "base/err.h"
#include "gguf_build.h"
#include "loaders/tokenizer.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64], path[128];

static void make_folder(void)
{
    snprintf(folder, sizeof folder, "/tmp/fastchat-open-XXXXXX");
    cr_assert(mkdtemp(folder) != NULL);
}

static void remove_folder(void)
{
    char command[128];

    snprintf(command, sizeof command, "rm -rf %s", folder);
    cr_assert(zero(int, system(command)));
}

TestSuite(open, .init = make_folder, .fini = remove_folder);

static const char *in_folder(const char *name)
{
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void put(const char *name, const char *bytes, size_t len)
{
    FILE *f = fopen(in_folder(name), "wb");

    cr_assert(f && fwrite(bytes, 1, len, f) == len && fclose(f) == 0);
}

static const char *kind_of(const char *where)
{
    static char kind[ERR_TEXT + 8];
    CLEANUP(tokenizer_close) struct tokenizer *t = NULL;
    struct err err = { 0 };
    int r = tokenizer_open_path(where, &t, &err);

    if (r < 0)
        snprintf(kind, sizeof kind, "%d: %s", r, err_text(&err) + (strncmp(err_text(&err), folder, strlen(folder)) == 0 ? strlen(folder) : 0));
    else
        snprintf(kind, sizeof kind, "%s", tokenizer_kind(t));
    return kind;
}
#define SAME(have, want) cr_expect(eq(str, (char *)(have), (char *)(want)))

/* A model file of "<unk>" and "a", Unigram. */
static const char spm[] = "\x0A\x0E\x0A\x05<unk>\x15\0\0\0\0\x18\x02\x0A\x08\x0A\x01" "a\x15\0\0\x80\xBF";
static const char json[] = "{\"version\":\"1.0\",\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":0,\"u\":1},\"unk_token\":\"u\"}}";
static const char vocab[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n";

static void put_tiktoken(const char *name)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    BUF_LOCAL b = BUF_INIT;

    for (unsigned i = 0; i < 256; i++)
        buf_printf(&b, "%c%c== %u\n", digits[i >> 2], digits[(i & 3) << 4], i);
    put(name, b.data, b.len);
}

static void put_gguf(const char *name)
{
    struct gguf_build g = GGUF_BUILD_INIT;
    BUF_LOCAL b = BUF_INIT;

    gguf_build_tokenizer(&g, NULL, NULL, 0, NULL, NULL, 0);
    gguf_build_finish(&g, &b);
    put(name, b.data, b.len);
}

Test(open, a_file_is_what_it_holds_whatever_its_name)
{
    put("a.model", spm, sizeof spm - 1);
    put("b.json", json, sizeof json - 1);
    put("c", vocab, sizeof vocab - 1);
    put_tiktoken("qwen.model");
    put_gguf("e.bin");
    SAME(kind_of(in_folder("a.model")), "SentencePiece Unigram");
    cr_expect(strncmp(kind_of(in_folder("b.json")), "WordLevel", 9) == 0, "%s", kind_of(in_folder("b.json")));
    SAME(kind_of(in_folder("c")), "WordPiece, lower-case");
    SAME(kind_of(in_folder("qwen.model")), "byte-level BPE, tiktoken, qwen");
    cr_expect(strncmp(kind_of(in_folder("e.bin")), "byte-level BPE", 14) == 0, "%s", kind_of(in_folder("e.bin")));
}

Test(open, in_a_folder_the_file_that_says_most_wins)
{
    put_gguf("model.gguf");
    cr_expect(strncmp(kind_of(folder), "byte-level BPE", 14) == 0, "%s", kind_of(folder));
    put("vocab.txt", vocab, sizeof vocab - 1);
    SAME(kind_of(folder), "WordPiece, lower-case");
    put("tokenizer_config.json", "{\"do_lower_case\":false}", 23);
    SAME(kind_of(folder), "WordPiece");
    put_tiktoken("qwen.tiktoken");
    SAME(kind_of(folder), "byte-level BPE, tiktoken, qwen");
    put("tokenizer.model", spm, sizeof spm - 1);
    SAME(kind_of(folder), "SentencePiece Unigram");
    put("tokenizer.json", json, sizeof json - 1);
    cr_expect(strncmp(kind_of(folder), "WordLevel", 9) == 0, "%s", kind_of(folder));
}

Test(open, what_is_no_tokenizer_is_refused_by_name)
{
    char want[256];

    put("x", "hello\n", 6);
    put("empty", "", 0);
    put("bad.json", "{\"a\":", 5);
    put("cut.gguf", "GGUF\3", 5);
    snprintf(want, sizeof want, "%d: /x: no tokenizer: neither GGUF, tokenizer.json, tekken.json, a SentencePiece model, a tiktoken file nor a WordPiece vocabulary", -EINVAL);
    SAME(kind_of(in_folder("x")), want);
    cr_expect(strstr(kind_of(in_folder("empty")), "/empty: no tokenizer") != NULL);
    cr_expect(strstr(kind_of(in_folder("bad.json")), "/bad.json: ") != NULL, "%s", kind_of(in_folder("bad.json")));
    cr_expect(strstr(kind_of(in_folder("cut.gguf")), "/cut.gguf: ") != NULL, "%s", kind_of(in_folder("cut.gguf")));
    snprintf(want, sizeof want, "%d: /none: No such file or directory", -ENOENT);
    SAME(kind_of(in_folder("none")), want);
    cr_assert(zero(int, mkdir(in_folder("sub"), 0700)));
    snprintf(want, sizeof want, "%d: /sub: the folder holds no tokenizer", -ENOENT);
    SAME(kind_of(in_folder("sub")), want);
    cr_assert(zero(int, mkfifo(in_folder("pipe"), 0600)));
    cr_expect(strstr(kind_of(in_folder("pipe")), "/pipe: ") != NULL, "%s", kind_of(in_folder("pipe")));
}

Test(open, a_config_that_is_no_json_is_named)
{
    put("vocab.txt", vocab, sizeof vocab - 1);
    put("tokenizer_config.json", "{", 1);
    cr_expect(strstr(kind_of(folder), "/tokenizer_config.json: ") != NULL, "%s", kind_of(folder));
}
