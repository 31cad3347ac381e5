#include "base/cursor.h"
#include "base/err.h"
#include "gguf_build.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

static const uint64_t row32[] = { 32 };

/* A file that is sound until something is added to it. */
static struct gguf_build sound(void)
{
    struct gguf_build b = GGUF_BUILD_INIT;

    gguf_build_str(&b, "general.architecture", "llama");
    gguf_build_tensor(&b, "a", GGML_F32, 1, row32, NULL, 128);
    return b;
}

/* That these bytes are refused with this code, in these words, the file's name in front. */
static void refused_bytes(const void *data, size_t len, int code, const char *words)
{
    struct gguf *g = NULL;
    struct err err = { 0 };
    int r = gguf_open_memory("bad.gguf", data, len, &g, &err);

    cr_expect(eq(int, r, code), "%s: %s", words, err_text(&err));
    cr_expect(eq(ptr, g, NULL));
    cr_expect(strncmp(err.text, "bad.gguf: ", 10) == 0 && strstr(err.text, words),
              "wanted \"%s\", got \"%s\"", words, err.text);
    gguf_close(g);
}

static void refused(struct gguf_build *b, int code, const char *words)
{
    BUF_LOCAL file = BUF_INIT;

    gguf_build_finish(b, &file);
    refused_bytes(file.data, file.len, code, words);
}

static void refused_key(const char *key, uint32_t type, const void *value, size_t len, int code,
                        const char *words)
{
    struct gguf_build b = sound();

    gguf_build_raw(&b, key, strlen(key), type, value, len);
    refused(&b, code, words);
}

/* With a line of the tensor table that follows a sound one. */
static void refused_line(const char *name, uint32_t type, uint32_t n_dims, const uint64_t *dims,
                         uint64_t offset, int code, const char *words)
{
    struct gguf_build b = sound();

    gguf_build_line(&b, name, type, n_dims, dims, offset);
    refused(&b, code, words);
}

Test(gguf, metadata_reads_as_what_it_is)
{
    static const char *const langs[] = { "en", "", "de" };
    static const int32_t types[] = { 1, -3 };
    struct gguf_build b = sound();
    BUF_LOCAL file = BUF_INIT;
    CLEANUP(gguf_close) struct gguf *g = NULL;
    struct err err = { 0 };
    struct gguf_array a;
    struct gguf_str s;
    uint32_t u32 = 0;
    uint64_t u64 = 0;
    float f = 0;
    bool flag = false;
    char text[16];

    gguf_build_u8(&b, "n.u8", 200);
    gguf_build_u64(&b, "n.u64", 1ull << 40);
    gguf_build_i32(&b, "n.negative", -5);
    gguf_build_f32(&b, "f", 1.5f);
    gguf_build_bool(&b, "flag", true);
    gguf_build_strs(&b, "langs", langs, 3);
    gguf_build_i32s(&b, "types", types, 2);
    gguf_build_f32s(&b, "scores", (float[]){ 0.25f }, 1);
    gguf_build_raw(&b, "f64", 3, GGUF_F64, &(double){ 2.5 }, 8);
    gguf_build_raw(&b, "nul", 3, GGUF_STRING, "\3\0\0\0\0\0\0\0a\0b", 11);
    gguf_build_finish(&b, &file);
    cr_assert(eq(int, gguf_open_memory("m.gguf", file.data, file.len, &g, &err), 0), "%s", err.text);

    cr_expect(eq(u32, gguf_version(g), 3));
    cr_expect(eq(int, gguf_text(g, "general.architecture", text, sizeof text, &err), 0));
    cr_expect(eq(str, text, "llama"));
    cr_expect(eq(int, gguf_u32(g, "n.u8", &u32, &err), 0));
    cr_expect(eq(u32, u32, 200));
    cr_expect(eq(int, gguf_u64(g, "n.u64", &u64, &err), 0));
    cr_expect(eq(u64, u64, 1ull << 40));
    cr_expect(eq(int, gguf_f32(g, "f", &f, &err), 0));
    cr_expect(eq(flt, f, 1.5f));
    cr_expect(eq(int, gguf_f32(g, "f64", &f, &err), 0));
    cr_expect(eq(flt, f, 2.5f));
    cr_expect(eq(int, gguf_bool(g, "flag", &flag, &err), 0));
    cr_expect(flag);
    cr_expect(eq(int, gguf_u32(g, "no.such", &u32, &err), GGUF_ABSENT));
    cr_expect(eq(u32, u32, 200));
    cr_expect(not(err_is_set(&err)));

    cr_assert(eq(int, gguf_array(g, "langs", &a, &err), 0));
    cr_expect(eq(u64, a.n, 3));
    cr_expect(gguf_next_str(&a, &s) && s.len == 2 && memcmp(s.text, "en", 2) == 0);
    cr_expect(gguf_next_str(&a, &s) && s.len == 0);
    cr_expect(gguf_next_str(&a, &s) && s.len == 2 && memcmp(s.text, "de", 2) == 0);
    cr_expect(not(gguf_next_str(&a, &s)));
    cr_assert(eq(int, gguf_array(g, "types", &a, &err), 0));
    cr_expect(eq(i64, gguf_array_i64(&a, 1), -3));
    cr_assert(eq(int, gguf_array(g, "scores", &a, &err), 0));
    cr_expect(eq(dbl, gguf_array_f64(&a, 0), 0.25));

    cr_expect(eq(int, gguf_text(g, "nul", text, sizeof text, &err), -EINVAL));
    cr_expect(eq(str, err.text, "m.gguf: key \"nul\" holds a NUL"));
    err_clear(&err);
    cr_expect(eq(int, gguf_text(g, "general.architecture", text, 5, &err), -EINVAL));
    cr_expect(eq(str, err.text, "m.gguf: key \"general.architecture\" has 5 bytes, at most 4 are allowed"));
    err_clear(&err);
    cr_expect(eq(int, gguf_u32(g, "n.u64", &u32, &err), -EINVAL));
    cr_expect(eq(str, err.text, "m.gguf: key \"n.u64\" is 1099511627776, must be between 0 and 4294967295"));
    err_clear(&err);
    cr_expect(eq(int, gguf_u32(g, "n.negative", &u32, &err), -EINVAL));
    cr_expect(eq(str, err.text, "m.gguf: key \"n.negative\" is -5, must be between 0 and 4294967295"));
    err_clear(&err);
    cr_expect(eq(int, gguf_bool(g, "f", &flag, &err), -EINVAL));
    cr_expect(eq(str, err.text, "m.gguf: key \"f\" must be a boolean, but is an f32"));
}

Test(gguf, tensors_are_found_by_name_and_lie_in_the_mapping)
{
    const float values[4] = { 1, 2, 3, 4 };
    struct gguf_build b = sound();
    BUF_LOCAL file = BUF_INIT;
    CLEANUP(gguf_close) struct gguf *g = NULL;
    const struct gguf_tensor *t;

    b.version = 2;
    gguf_build_tensor(&b, "w", GGML_F32, 2, (uint64_t[]){ 2, 2 }, values, sizeof values);
    gguf_build_tensor(&b, "q", GGML_Q4_1, 2, (uint64_t[]){ 64, 3 }, NULL, 3 * 2 * 20);
    gguf_build_finish(&b, &file);
    cr_assert(eq(int, gguf_open_memory("m.gguf", file.data, file.len, &g, NULL), 0));
    cr_expect(eq(sz, gguf_n_tensors(g), 3));
    t = gguf_tensor(g, "w");
    cr_assert(ne(ptr, (void *)t, NULL));
    cr_expect(eq(int, memcmp(t->data, values, sizeof values), 0));
    cr_expect(eq(u64, t->dims[0], 2));
    cr_expect(eq(u64, t->dims[3], 1));
    cr_expect(eq(u64, gguf_tensor(g, "q")->bytes, 120));
    cr_expect(eq(u64, gguf_tensor(g, "q")->offset % 32, 0));
    cr_expect(eq(str, (char *)gguf_tensor_at(g, 0)->name, "a"));
    cr_expect(eq(ptr, (void *)gguf_tensor(g, "nothing"), NULL));
    cr_expect(eq(ptr, (void *)gguf_tensor_at(g, 3), NULL));
}

Test(gguf, type_facts_have_no_row_without_a_name)
{
    cr_expect(eq(str, (char *)ggml_type_facts(GGML_Q6_K)->name, "Q6_K"));
    cr_expect(eq(u32, ggml_type_facts(GGML_Q8_0)->block_bytes, 34));
    cr_expect(eq(ptr, (void *)ggml_type_facts(4), NULL));
    cr_expect(eq(ptr, (void *)ggml_type_facts(1u << 31), NULL));
}

Test(gguf, a_file_cut_anywhere_is_refused)
{
    struct gguf_build b = sound();
    BUF_LOCAL file = BUF_INIT;

    gguf_build_strs(&b, "langs", (const char *const[]){ "en", "de" }, 2);
    gguf_build_u32(&b, "n", 7);
    gguf_build_finish(&b, &file);
    for (size_t len = 0; len < file.len; len++) {
        /* In memory of its own, so that reading past the end shows. */
        CLEANUP(mem_free) char *copy = malloc(len ? len : 1);
        struct gguf *g = NULL;
        struct err err = { 0 };

        memcpy(copy, file.data, len);
        cr_assert(lt(int, gguf_open_memory("cut.gguf", copy, len, &g, &err), 0), "%zu bytes", len);
        cr_assert(strstr(err.text, "cut.gguf: byte ") != NULL, "%s", err.text);
    }
}

Test(gguf, other_formats_versions_and_byte_orders_are_refused_by_name)
{
    struct gguf_build b;

    refused_bytes("", 0, -EINVAL, "byte 0: not a GGUF file");
    refused_bytes("ggjt\3\0\0\0", 8, -EINVAL, "byte 0: not a GGUF file");
    refused_bytes("GGUF", 4, -EINVAL, "the file ends within the header");
    b = sound();
    b.version = 1;
    refused(&b, -ENOTSUP, "byte 4: GGUF version 1 is not supported");
    b = sound();
    b.version = 4;
    refused(&b, -ENOTSUP, "byte 4: GGUF version 4 is not supported");
    b = sound();
    b.version = 3u << 24;
    refused(&b, -ENOTSUP, "byte 4: a big-endian file is not supported");
    b = sound();
    gguf_build_u32(&b, "split.count", 3);
    refused(&b, -ENOTSUP, "one of the 3 parts of a split model, which can only be opened as files");
    b = sound();
    gguf_build_u32(&b, "split.count", 5000);
    refused(&b, -E2BIG, "5000 parts of a split model, at most 4096 are allowed");
    b = sound();
    gguf_build_str(&b, "split.count", "3");
    refused(&b, -EINVAL, "key \"split.count\" must be an integer");
}

Test(gguf, absurd_counts_are_refused_before_memory_is_asked_for)
{
    struct gguf_build b = sound();

    b.n_tensors = 1ull << 63;
    refused(&b, -E2BIG, "byte 8: 9223372036854775808 tensors, at most 1048576 are allowed");
    b = sound();
    b.n_tensors = 1000;
    refused(&b, -EINVAL, "byte 8: 1000 tensors do not fit in the file");
    b = sound();
    b.n_keys = 1ull << 32;
    refused(&b, -E2BIG, "byte 16: 4294967296 keys, at most 65536 are allowed");
    b = sound();
    b.n_keys = 60000;
    refused(&b, -EINVAL, "byte 16: 60000 keys do not fit in the file");
}

Test(gguf, bad_keys_are_refused)
{
    struct gguf_build b = sound();

    gguf_build_raw(&b, "", 0, GGUF_U8, "", 1);
    refused(&b, -EINVAL, "a key has 0 bytes, must be 1 to 1024");
    b = sound();
    gguf_build_raw(&b, "\xC3(", 2, GGUF_U8, "", 1);
    refused(&b, -EINVAL, "a key is not valid UTF-8");
    b = sound();
    gguf_build_raw(&b, "a\0b", 3, GGUF_U8, "", 1);
    refused(&b, -EINVAL, "a key has a control character");
    b = sound();
    gguf_build_u8(&b, "general.architecture", 1);
    refused(&b, -EINVAL, "key \"general.architecture\" is there twice");
    refused_key("k", 13, "", 1, -EINVAL, "key \"k\": a value of the unknown type 13");
    b = sound();
    b.n_keys = 2;
    buf_add(&b.keys, "\0\0\0\0\0\0\0\x7F", 8);
    refused(&b, -E2BIG, "a key has 9151314442816847872 bytes, must be 1 to 1024");
}

Test(gguf, bad_values_are_refused)
{
    refused_key("k", GGUF_STRING, "\0\0\0\0\0\1\0\0", 8, -EINVAL,
                "key \"k\": a string of 1099511627776 bytes does not fit in the file");
    refused_key("k", GGUF_STRING, "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", 8, -EINVAL, "does not fit in the file");
    refused_key("k", GGUF_BOOL, "\7", 1, -EINVAL, "key \"k\": a boolean is 7");
    refused_key("k", GGUF_ARRAY, "\x63\0\0\0\1\0\0\0\0\0\0\0", 12, -EINVAL,
                "key \"k\": an array of the unknown type 99");
    refused_key("k", GGUF_ARRAY, "\x08\0\0\0\0\0\0\0\0\0\0\x10", 12, -EINVAL,
                "key \"k\": an array of 1152921504606846976 elements does not fit in the file");
    refused_key("k", GGUF_ARRAY, "\x0A\0\0\0\0\0\0\0\0\0\0\x20", 12, -EINVAL, "does not fit in the file");
    refused_key("k", GGUF_ARRAY, "\7\0\0\0\2\0\0\0\0\0\0\0\1\2", 14, -EINVAL, "key \"k\": a boolean is 2");
}

Test(gguf, arrays_in_arrays_have_a_depth)
{
    BUF_LOCAL value = BUF_INIT;
    BUF_LOCAL file = BUF_INIT;
    CLEANUP(gguf_close) struct gguf *g = NULL;
    struct gguf_build b = sound();

    for (int i = 1; i < GGUF_MAX_DEPTH; i++)
        buf_add(&value, "\x09\0\0\0\1\0\0\0\0\0\0\0", 12);
    buf_add(&value, "\0\0\0\0\1\0\0\0\0\0\0\0\x2A", 13);
    gguf_build_raw(&b, "k", 1, GGUF_ARRAY, value.data, value.len);
    gguf_build_finish(&b, &file);
    cr_expect(eq(int, gguf_open_memory("deep.gguf", file.data, file.len, &g, NULL), 0));

    buf_clear(&value);
    for (int i = 0; i < 100000; i++)
        buf_add(&value, "\x09\0\0\0\1\0\0\0\0\0\0\0", 12);
    refused_key("k", GGUF_ARRAY, value.data, value.len, -E2BIG, "key \"k\": arrays are nested deeper than 4");
}

Test(gguf, bad_alignments_are_refused)
{
    static const uint32_t bad[] = { 0, 1, 3, 4, 48, 1u << 31 };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct gguf_build b = sound();

        gguf_build_u32(&b, "general.alignment", bad[i]);
        refused(&b, -EINVAL, "must be a power of two between 8 and 1048576");
    }
    refused_key("general.alignment", GGUF_STRING, "\0\0\0\0\0\0\0\0", 8, -EINVAL,
                "key \"general.alignment\" must be an integer, but is a string");
}

Test(gguf, bad_lines_of_the_tensor_table_are_refused)
{
    refused_line("b", 99, 1, row32, 0, -ENOTSUP, "tensor \"b\": type number 99 is not known");
    refused_line("b", 4, 1, row32, 0, -ENOTSUP, "tensor \"b\": type number 4 is not known");
    refused_line("b", GGML_F32, 0, NULL, 0, -EINVAL, "tensor \"b\": 0 dimensions, must be 1 to 4");
    refused_line("b", GGML_F32, 5, (uint64_t[5]){ 1, 1, 1, 1, 1 }, 0, -EINVAL, "5 dimensions, must be 1 to 4");
    refused_line("b", GGML_F32, 2, (uint64_t[]){ 4, 0 }, 128, -EINVAL, "tensor \"b\": dimension 1 is zero");
    refused_line("b", GGML_F32, 2, (uint64_t[]){ 4398046511105, 4194304 }, 128, -EINVAL,
                 "tensor \"b\": its number of elements overflows");
    refused_line("b", GGML_F64, 2, (uint64_t[]){ 1ull << 32, 1ull << 30 }, 128, -EINVAL,
                 "tensor \"b\": its size overflows");
    refused_line("b", GGML_Q4_0, 1, (uint64_t[]){ 33 }, 128, -EINVAL,
                 "tensor \"b\": rows of 33 elements are not whole Q4_0 blocks of 32");
    refused_line("b\n", GGML_F32, 1, row32, 0, -EINVAL, "a tensor's name has a control character");
    refused_line("", GGML_F32, 1, row32, 0, -EINVAL, "a tensor's name has 0 bytes");
    refused_line("a", GGML_F32, 1, row32, 128, -EINVAL, "tensor \"a\" is there twice");
}

Test(gguf, tensors_out_of_place_are_refused)
{
    refused_line("b", GGML_F32, 1, row32, 1, -EINVAL, "tensor \"b\": offset 1 is not aligned to 32");
    refused_line("b", GGML_F32, 1, (uint64_t[]){ 8 }, 32, -EINVAL, "tensor \"b\": data overlaps that of tensor \"a\"");
    refused_line("b", GGML_F32, 1, row32, 0, -EINVAL, "data overlaps that of tensor");
    refused_line("b", GGML_F32, 1, row32, 128, -EINVAL, "past the end of the file");
    refused_line("b", GGML_F32, 1, row32, 1ull << 40, -EINVAL, "past the end of the file");
    refused_line("b", GGML_F32, 1, row32, UINT64_MAX - 31, -EINVAL, "tensor \"b\": its end overflows");
}

Test(gguf, bytes_behind_the_last_tensor_do_no_harm)
{
    struct gguf_build b = sound();
    BUF_LOCAL file = BUF_INIT;
    CLEANUP(gguf_close) struct gguf *g = NULL;

    gguf_build_finish(&b, &file);
    for (int i = 0; i < 1000; i++)
        buf_addc(&file, 'x');
    cr_expect(eq(int, gguf_open_memory("m.gguf", file.data, file.len, &g, NULL), 0));
}

Test(gguf, many_tensors_open)
{
    enum { N = 200000 };
    struct gguf_build b = GGUF_BUILD_INIT;
    BUF_LOCAL file = BUF_INIT;
    CLEANUP(gguf_close) struct gguf *g = NULL;
    char name[32];

    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "blk.%d.w", i * 7919 % N);
        gguf_build_tensor(&b, name, GGML_F32, 1, (uint64_t[]){ 8 }, NULL, 32);
    }
    gguf_build_finish(&b, &file);
    cr_assert(eq(int, gguf_open_memory("many.gguf", file.data, file.len, &g, NULL), 0));
    cr_expect(eq(str, (char *)gguf_tensor(g, "blk.12345.w")->name, "blk.12345.w"));
}

Test(gguf, what_is_no_regular_file_is_refused)
{
    char dir[] = "/tmp/fastchat-gguf-XXXXXX", path[64], fifo[64], words[128];
    struct gguf *g = NULL;
    struct err err = { 0 };
    struct gguf_build b = sound();
    BUF_LOCAL file = BUF_INIT;
    FILE *f;

    cr_assert(ne(ptr, mkdtemp(dir), NULL));
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    snprintf(fifo, sizeof fifo, "%s/fifo", dir);
    cr_expect(eq(int, gguf_open(dir, &g, &err), -EISDIR));
    err_clear(&err);
    cr_expect(eq(int, gguf_open(path, &g, &err), -ENOENT));
    snprintf(words, sizeof words, "%s: can not open it: No such file or directory", path);
    cr_expect(eq(str, err.text, words));
    err_clear(&err);
    cr_assert(eq(int, mkfifo(fifo, 0600), 0));
    cr_expect(eq(int, gguf_open(fifo, &g, &err), -EINVAL));
    cr_expect(strstr(err.text, "is not a regular file") != NULL);
    err_clear(&err);

    f = fopen(path, "w");
    cr_assert(ne(ptr, f, NULL));
    fflush(f);
    cr_expect(eq(int, gguf_open(path, &g, &err), -EINVAL));
    cr_expect(strstr(err.text, "byte 0: the file is empty") != NULL);
    err_clear(&err);
    gguf_build_finish(&b, &file);
    cr_expect(eq(sz, fwrite(file.data, 1, file.len, f), file.len));
    fclose(f);
    cr_expect(eq(int, gguf_open(path, &g, &err), 0), "%s", err.text);
    cr_expect(eq(u64, gguf_bytes(g), file.len));
    cr_expect(eq(str, (char *)gguf_path(g), path));
    gguf_close(g);
    unlink(path);
    unlink(fifo);
    rmdir(dir);
}

Test(gguf, rows_that_are_no_whole_blocks_and_cut_data_are_refused_for_every_type)
{
    for (uint32_t type = 0; type < 64; type++) {
        const struct ggml_type_facts *f = ggml_type_facts(type);
        struct gguf_build b;
        BUF_LOCAL file = BUF_INIT;
        char words[96];

        if (!f)
            continue;
        b = sound();
        snprintf(words, sizeof words, "tensor \"odd\": rows of %u elements are not whole %s blocks of %u", f->block + f->block / 2,
                 f->name, f->block);
        if (f->block > 1)
            refused_line("odd", type, 2, (uint64_t[]){ f->block + f->block / 2, 2 }, 128, -EINVAL, words);
        gguf_build_tensor(&b, "cut", type, 2, (uint64_t[]){ f->block, 3 }, NULL, 3 * f->block_bytes);
        gguf_build_finish(&b, &file);
        refused_bytes(file.data, file.len - 1, -EINVAL, "tensor \"cut\": data ends at byte ");
    }
}

/* ---- split models ----------------------------------------------------- */

enum { N_PARTS = 3 };

struct part {
    uint32_t number, count, total;      /* total: split.tensors.count; 0: not there */
    const char *tensor;                 /* NULL: none */
};

static void part_path(const char *dir, int i, char path[128])
{
    snprintf(path, 128, "%s/m-%05d-of-%05d.gguf", dir, i + 1, N_PARTS);
}

static void part_write(const char *path, const struct part *p, float value)
{
    float row[32] = { value };
    struct gguf_build b = GGUF_BUILD_INIT;
    BUF_LOCAL file = BUF_INIT;
    FILE *f = fopen(path, "w");

    cr_assert(f != NULL);
    gguf_build_u32(&b, "split.no", p->number);
    gguf_build_u32(&b, "split.count", p->count);
    if (p->total)
        gguf_build_i32(&b, "split.tensors.count", (int32_t)p->total);
    if (p->tensor)
        gguf_build_tensor(&b, p->tensor, GGML_F32, 1, row32, row, sizeof row);
    gguf_build_finish(&b, &file);
    cr_assert(eq(sz, fwrite(file.data, 1, file.len, f), file.len));
    cr_assert(zero(int, fclose(f)));
}

/* Three parts; opens the first, or what is at `open`. */
static int split_open(const struct part parts[N_PARTS], int open, struct gguf **ret, struct err *err)
{
    char dir[] = "/tmp/fastchat-gguf-XXXXXX", path[N_PARTS][128];
    int r;

    cr_assert(ne(ptr, mkdtemp(dir), NULL));
    for (int i = 0; i < N_PARTS; i++) {
        part_path(dir, i, path[i]);
        if (parts[i].count)
            part_write(path[i], &parts[i], (float)i);
    }
    r = gguf_open(path[open], ret, err);
    for (int i = 0; i < N_PARTS; i++)
        unlink(path[i]);
    rmdir(dir);
    return r;
}

Test(gguf, a_split_model_is_opened_by_its_first_part)
{
    CLEANUP(gguf_close) struct gguf *g = NULL;
    const struct part parts[N_PARTS] = { { 0, 3, 3, "b" }, { 1, 3, 3, "c" }, { 2, 3, 3, "a" } };
    struct err err = { 0 };
    uint64_t sum = 0;

    cr_assert(zero(int, split_open(parts, 0, &g, &err)), "%s", err_text(&err));
    cr_assert(eq(sz, gguf_n_tensors(g), 3));
    for (size_t i = 0; i < 3; i++) {
        const struct gguf_tensor *t = gguf_tensor(g, parts[i].tensor);

        cr_assert(t == gguf_tensor_at(g, i));
        cr_expect(eq(flt, *(const float *)t->data, (float)i));
        gguf_release(g, t);
        cr_expect(eq(flt, *(const float *)t->data, (float)i));
        sum += t->bytes;
    }
    cr_expect(gt(u64, gguf_bytes(g), sum));
    gguf_close(STEAL(g));
    cr_assert(zero(int, split_open((const struct part[]){ { 0, 3, 0, NULL }, { 1, 3, 0, "c" }, { 2, 3, 0, "a" } }, 0, &g, &err)));
    cr_expect(eq(sz, gguf_n_tensors(g), 2));
}

Test(gguf, parts_that_are_missing_or_do_not_belong_together_are_refused)
{
    static const struct { struct part parts[N_PARTS]; int open, code; const char *words; } bad[] = {
        { { { 0, 3, 3, "b" }, { 1, 3, 3, "c" }, { 0 } }, 0, -ENOENT, "-00003-of-00003.gguf: can not open it: No such file" },
        { { { 0, 3, 3, "b" }, { 1, 3, 3, "c" }, { 0 } }, 0, -ENOENT, "-00001-of-00003.gguf: part 3 of 3: " },
        { { { 0, 3, 3, "b" }, { 2, 3, 3, "c" }, { 1, 3, 3, "a" } }, 0, -EINVAL,
          "-00002-of-00003.gguf: says it is part 3 of 3, its name says 2 of 3" },
        { { { 0, 3, 3, "b" }, { 1, 4, 3, "c" }, { 2, 3, 3, "a" } }, 0, -EINVAL, "says it is part 2 of 4, its name says 2 of 3" },
        { { { 0, 3, 3, "b" }, { 1, 3, 3, "c" }, { 2, 3, 3, "b" } }, 0, -EINVAL, "tensor \"b\" is in two parts" },
        { { { 0, 3, 4, "b" }, { 1, 3, 4, "c" }, { 2, 3, 4, "a" } }, 0, -EINVAL,
          "its 3 parts hold 3 tensors, split.tensors.count is 4" },
        { { { 0, 3, 3, "b" }, { 1, 3, 3, "c" }, { 2, 3, 3, "a" } }, 1, -EINVAL,
          "part 2 of 3 of a split model: open the first, whose name ends in -00001-of-00003.gguf" },
        { { { 0, 2, 3, "b" }, { 1, 3, 3, "c" }, { 2, 3, 3, "a" } }, 0, -EINVAL,
          "the others can only be found when its name ends in -00001-of-00002.gguf" },
        { { { UINT32_MAX, 3, 3, "b" }, { 1, 3, 3, "c" }, { 2, 3, 3, "a" } }, 0, -EINVAL, "of a split model: open the first" },
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct gguf *g = NULL;
        struct err err = { 0 };

        cr_expect(eq(int, split_open(bad[i].parts, bad[i].open, &g, &err), bad[i].code), "%s", bad[i].words);
        cr_expect(strstr(err.text, bad[i].words) != NULL, "wanted \"%s\", got \"%s\"", bad[i].words, err.text);
        cr_expect(eq(ptr, g, NULL));
    }
}

/* As somebody who is not root, for root is never denied. */
Test(gguf, a_file_that_may_not_be_read_names_what_denies_it)
{
    char dir[] = "/tmp/fastchat-gguf-XXXXXX", path[64], words[128];
    int status;
    pid_t child;

    cr_assert(ne(ptr, mkdtemp(dir), NULL));
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    cr_assert(ge(int, close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0000)), 0));
    snprintf(words, sizeof words, "%s: can not open it: user ", path);
    child = fork();
    if (child == 0) {
        struct gguf *g = NULL;
        struct err err = { 0 };

        if (getuid() == 0 && (chmod(dir, 0755) || setgid(54321) || setuid(54321)))
            _exit(2);
        _exit(gguf_open(path, &g, &err) != -EACCES || strncmp(err.text, words, strlen(words)) != 0 || !strstr(err.text, "(mode 0000, "));
    }
    cr_assert(eq(int, waitpid(child, &status, 0), child));
    cr_expect(zero(int, status));
    unlink(path);
    rmdir(dir);
}
