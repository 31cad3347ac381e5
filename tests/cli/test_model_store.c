#include "base/err.h"
#include "cli/model_store.h"
#include "cli/progress.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUM "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define HEAD "{\"manifest\":1,\"name\":\"x\",\"source\":\"o/n\",\"revision\":\"main\",\"commit\":\"\",\"pulled\":\"2026-01-01T00:00:00Z\",\"files\":["
#define FILE_OF(path) "{\"path\":\"" path "\",\"from\":\"f\",\"size\":5,\"sha256\":\"" SUM "\"}"

static char dir[] = "/tmp/fastchat-store-XXXXXX";
static struct store s = { .fd = -1 };

static void open_store(void)
{
    cr_assert(mkdtemp(dir) != NULL);
    cr_assert(zero(int, store_open(dir, false, &s, NULL)));
}

static void remove_store(void)
{
    char command[64];

    store_close(&s);
    snprintf(command, sizeof command, "rm -r %s", dir);
    cr_assert(zero(int, system(command)));
}

static void put(const char *path, const char *text)
{
    char full[256];
    FILE *f;

    snprintf(full, sizeof full, "%s/%s", dir, path);
    f = fopen(full, "w");
    cr_assert(f != NULL);
    fputs(text, f);
    fclose(f);
}

TestSuite(model_store, .init = open_store, .fini = remove_store);

Test(manifest, what_was_written_is_read)
{
    const char *text = HEAD FILE_OF("x.gguf") "," FILE_OF("a/b") "]}\n";
    struct manifest m;
    BUF_LOCAL out = BUF_INIT;
    struct err err = { 0 };

    cr_assert(zero(int, manifest_parse(text, strlen(text), &m, &err)), "%s", err_text(&err));
    cr_expect(eq(sz, m.n_files, 2));
    cr_expect(eq(str, m.files[1].path, "a/b"));
    manifest_write(&m, &out);
    cr_expect(eq(str, (char *)buf_str(&out), (char *)text));
    manifest_fini(&m);
}

Test(manifest, one_that_can_not_be_right_is_refused)
{
    static const char *const texts[] = {
        "", "{", "[]", "{}", "{\"manifest\":2}", HEAD "]}", HEAD FILE_OF("../x") "]}", HEAD FILE_OF("/x") "]}", HEAD FILE_OF("x.part") "]}",
        HEAD "{\"path\":\"x\",\"size\":-1,\"sha256\":\"" SUM "\"}]}", HEAD "{\"path\":\"x\",\"size\":1,\"sha256\":\"12\"}]}", HEAD "3]}",
        HEAD "{\"path\":3}]}", "{\"manifest\":1,\"name\":\"\",\"files\":[" FILE_OF("x") "]}", "{\"manifest\":1,\"name\":\"x\",\"files\":3}",
    };

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct manifest m;
        struct err err = { 0 };

        cr_expect(lt(int, manifest_parse(texts[i], strlen(texts[i]), &m, &err), 0), "%s", texts[i]);
        cr_expect(err_is_set(&err), "%s", texts[i]);
    }
}

Test(model_store, no_path_leaves_the_folder)
{
    static const char *const paths[] = { "../x", "/etc/passwd", "a/../../x", "" };
    const char *name;
    int fd;

    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        cr_expect(eq(int, store_folder_of(&s, paths[i], true, &fd, &name, NULL), -EINVAL));
        cr_expect(eq(int, store_remove(&s, paths[i], NULL), -EINVAL));
        cr_expect(eq(i64, store_size(&s, paths[i]), -EINVAL));
    }
    cr_assert(zero(int, symlinkat("/etc", s.fd, "link")));
    cr_expect(lt(int, store_folder_of(&s, "link/x", true, &fd, &name, NULL), 0));
    cr_expect(lt(i64, store_size(&s, "link/passwd"), 0));
    cr_assert(zero(int, symlinkat("/etc/passwd", s.fd, "file")));
    cr_expect(eq(i64, store_size(&s, "file"), -EINVAL));
    cr_expect(lt(int, store_read(&s, "file", &fd, NULL), 0));
}

Test(model_store, folders_go_with_their_last_file)
{
    const char *name;
    int fd;

    cr_assert(zero(int, store_folder_of(&s, "a/b/x", true, &fd, &name, NULL)));
    cr_expect(eq(str, (char *)name, "x"));
    close(fd);
    put("a/b/x", "1");
    put("a/y", "2");
    cr_assert(zero(int, store_remove(&s, "a/b/x", NULL)));
    cr_expect(eq(i64, store_size(&s, "a/y"), 1));
    cr_assert(zero(int, store_remove(&s, "a/y", NULL)));
    cr_expect(eq(int, faccessat(s.fd, "a", F_OK, 0), -1));
    cr_expect(eq(int, store_remove(&s, "a/y", NULL), -ENOENT));
}

static const struct store_entry *entry(const struct store_list *l, const char *name)
{
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->entries[i].m.name, name) == 0)
            return &l->entries[i];
    return NULL;
}

Test(model_store, a_list_tells_pulled_loose_unfinished_and_damaged_apart)
{
    struct store_list l;

    put("x.gguf", "12345");
    put("x.fastchat.json", HEAD FILE_OF("x.gguf") "]}");
    put("loose-00001-of-00002.gguf", "123");
    put("loose-00002-of-00002.gguf", "1234");
    put("half.gguf.part", "12");
    put("half.gguf.part.json", "{}");
    put("bad.fastchat.json", "{");
    put("other.fastchat.json", HEAD FILE_OF("x.gguf") "]}");
    put("notes.txt", "no model");
    put(".hidden.gguf", "no model");
    cr_assert(zero(int, store_list(&s, &l, NULL)));
    cr_expect(eq(sz, l.n, 5));
    cr_expect(entry(&l, "x")->pulled && !entry(&l, "x")->missing);
    cr_expect(eq(i64, entry(&l, "x")->size, 5));
    cr_expect(eq(sz, entry(&l, "loose")->m.n_files, 2));
    cr_expect(eq(i64, entry(&l, "loose")->size, 7));
    cr_expect(eq(i64, entry(&l, "half")->partial, 2));
    cr_expect(entry(&l, "bad")->bad);
    cr_expect(entry(&l, "other")->bad, "its name is another's");
    store_list_fini(&l);
    put("x.gguf", "1");
    cr_assert(zero(int, store_list(&s, &l, NULL)));
    cr_expect(entry(&l, "x")->missing);
    store_list_fini(&l);
}

Test(progress, sizes_are_read_at_a_glance)
{
    static const struct {
        int64_t bytes;
        const char *text;
    } cases[] = { { 0, "0 bytes" },       { 999, "999 bytes" },          { 1000, "1.0 kB" },
                  { 98362432, "98.4 MB" }, { 999949999, "999.9 MB" }, { 999999999, "1.0 GB" },
                  { INT64_MAX, "9223.4 PB" } };
    char text[SIZE_TEXT];

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        cr_expect(eq(str, (char *)size_text(cases[i].bytes, text), (char *)cases[i].text));
}
