/* Packed weights that processes share: what may be taken, and that it computes the same. */
#include "base/cleanup.h"
#include "base/err.h"
#include "gen/cpu/pool.h"
#include "gen/kv.h"
#include "gen/model.h"
#include "gen/weights.h"
#include "tests/gen/tiny_model.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BYTES = (5 << 20) + 192, VOCAB = 75 };

static const struct weights_key key = { 11, 22 };

/* ---- the memory itself ---- */

static struct weights make(enum weights_want want, size_t bytes)
{
    CLEANUP(pool_close) struct pool *pool = NULL;
    struct weights w;

    cr_assert(zero(int, pool_open(2, &pool, NULL)));
    cr_assert(zero(int, weights_make(want, bytes, pool, NULL, &w, NULL)));
    return w;
}

/* A sealed file of such weights, which are gone from here. */
static int made(size_t bytes)
{
    struct weights w = make(WEIGHTS_SHARED, bytes);
    int fd;

    cr_assert(ge(int, w.fd, 0));
    for (size_t i = 0; i < bytes; i++)
        w.data[i] = (uint8_t)(i * 7 + i / 4096);
    cr_assert(zero(int, weights_seal(&w, &key, NULL)));
    fd = STEAL_FD(w.fd);
    weights_free(&w);
    return fd;
}

static void refused(int fd, const struct weights_key *k, size_t bytes, const char *why)
{
    struct err err = { 0 };
    struct weights w;

    cr_expect(eq(int, weights_take(fd, k, bytes, &w, &err), -EINVAL));
    cr_expect(strstr(err_text(&err), why) != NULL, "%s", err_text(&err));
    close(fd);
}

Test(weights, another_process_reads_what_was_packed)
{
    int fd = made(BYTES);
    struct weights w;

    cr_assert(zero(int, weights_take(fd, &key, BYTES, &w, NULL)));
    close(fd);
    for (size_t i = 0; i < BYTES; i++)
        if (w.data[i] != (uint8_t)(i * 7 + i / 4096))
            cr_fatal("byte %zu is another one", i);
    weights_free(&w);
}

Test(weights, they_keep_their_address_and_bytes_when_they_are_sealed)
{
    struct weights w = make(WEIGHTS_SHARED, BYTES);
    uint8_t *data = w.data;

    cr_assert(zero(sz, (uintptr_t)data % 64));
    memset(w.data, 3, BYTES);
    cr_assert(zero(int, weights_seal(&w, &key, NULL)));
    cr_assert(eq(ptr, w.data, data));
    cr_expect(eq(int, w.data[0], 3));
    cr_expect(eq(int, w.data[BYTES - 1], 3));
    weights_free(&w);
}

static sigjmp_buf caught;

static void on_fault(int sig)
{
    siglongjmp(caught, sig);
}

Test(weights, sealed_ones_can_not_be_written_by_anybody)
{
    int fd = made(4096);
    struct weights w;
    char one = 1;

    cr_assert(zero(int, weights_take(fd, &key, 4096, &w, NULL)));
    cr_expect(eq(int, (int)pwrite(fd, &one, 1, 0), -1));
    cr_expect(eq(int, ftruncate(fd, 1), -1));
    cr_expect(eq(ptr, mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED));
    signal(SIGSEGV, on_fault);
    if (sigsetjmp(caught, 1) == 0) {
        *(volatile uint8_t *)w.data = 1;
        cr_fail("they could be written");
    }
    signal(SIGSEGV, SIG_DFL);
    weights_free(&w);
    close(fd);
}

Test(weights, private_ones_have_no_descriptor)
{
    struct weights w = make(WEIGHTS_PRIVATE, BYTES);

    cr_assert(eq(int, w.fd, -1));
    w.data[BYTES - 1] = 1;
    cr_assert(zero(int, weights_seal(&w, &key, NULL)));
    w.data[0] = 1;
    weights_free(&w);
    weights_free(&w);
}

Test(weights, of_another_size_are_refused)
{
    refused(made(8192), &key, 4096, "instead of 4096");
    refused(made(4096), &key, 8192, "instead of 8192");
}

Test(weights, of_another_file_are_refused)
{
    refused(made(4096), &(struct weights_key){ 12, 22 }, 4096, "another file");
}

Test(weights, laid_out_otherwise_are_refused)
{
    refused(made(4096), &(struct weights_key){ 11, 23 }, 4096, "laid out otherwise");
}

/* As sealed ones, but with these seals and this first byte. */
static int forged(int seals, char first)
{
    CLEANUP(fd_close) int from = made(4096);
    int fd = memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    char bytes[2 * 4096];

    cr_assert(eq(int, (int)pread(from, bytes, sizeof bytes, 0), sizeof bytes));
    bytes[0] = first;
    cr_assert(eq(int, (int)write(fd, bytes, sizeof bytes), sizeof bytes));
    if (seals)
        cr_assert(zero(int, fcntl(fd, F_ADD_SEALS, seals)));
    return fd;
}

Test(weights, not_sealed_are_refused)
{
    enum { ALL = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE };

    refused(forged(0, 'F'), &key, 4096, "not sealed");
    refused(forged(ALL & ~F_SEAL_SHRINK, 'F'), &key, 4096, "not sealed");
    refused(forged(ALL & ~F_SEAL_GROW, 'F'), &key, 4096, "not sealed");
    refused(forged(ALL & ~F_SEAL_WRITE, 'F'), &key, 4096, "not sealed");
    refused(forged(ALL, 'G'), &key, 4096, "not packed weights");
}

Test(weights, what_is_no_memory_file_is_refused)
{
    refused(open("/dev/null", O_RDONLY), &key, 4096, "no memory file");
    refused(-1, &key, 4096, "no memory file");
}

/* ---- of a model ---- */

struct bed {
    char folder[64], path[96];
    struct gguf *file;
    struct model *model;
    struct weights_share share;
};

static void write_file(struct bed *b, const struct tiny_model *t)
{
    struct gguf_build build = GGUF_BUILD_INIT;
    BUF_LOCAL bytes = BUF_INIT;
    FILE *f;

    tiny_model_build(t, &build);
    gguf_build_finish(&build, &bytes);
    f = fopen(b->path, "w");
    cr_assert(f && fwrite(bytes.data, 1, bytes.len, f) == bytes.len);
    fclose(f);
}

static void bed_init(struct bed *b)
{
    *b = (struct bed){ .folder = "/tmp/fastchat-weights-XXXXXX" };
    cr_assert(mkdtemp(b->folder) != NULL);
    snprintf(b->path, sizeof b->path, "%s/m.gguf", b->folder);
    write_file(b, &tiny_model_default);
}

static const char *isa;        /* of the models that are loaded next; NULL: the best */

static void load(struct bed *b, enum weights_want want, int given)
{
    struct model_options options = { .threads = 2, .isa = isa, .share = &b->share };
    struct err err = { 0 };

    b->share = (struct weights_share){ .want = want, .given = given, .made = -1 };
    cr_assert(zero(int, gguf_open(b->path, &b->file, &err)), "%s", err_text(&err));
    cr_assert(zero(int, model_open(b->file, &options, &b->model, &err)), "%s", err_text(&err));
}

static void unload(struct bed *b)
{
    model_close(STEAL(b->model));
    gguf_close(STEAL(b->file));
    if (b->share.made >= 0)
        close(STEAL_FD(b->share.made));
}

static void bed_fini(struct bed *b)
{
    unload(b);
    unlink(b->path);
    rmdir(b->folder);
}

static void logits_of_rows(struct bed *b, bool prompt, float logits[VOCAB])
{
    const struct model_shape *s = model_shape(b->model);
    const struct kv_shape shape = { s->n_layers, s->n_kv_heads, s->head_dim, 1 };
    CLEANUP(kv_close) struct kv *kv = NULL;
    struct model_row rows[3];
    uint32_t page;

    cr_assert(eq(u32, s->vocab_size, VOCAB));
    cr_assert(zero(int, kv_open(&shape, &kv, NULL)));
    cr_assert(zero(int, kv_take(kv, &page)));
    for (uint32_t i = 0; i < 3; i++)
        rows[i] = (struct model_row){ .token = (int32_t)(i * 9 + 1), .pos = i, .pages = &page, .prompt = prompt, .logits = i == 2 ? logits : NULL };
    model_forward(b->model, kv, rows, 3);
}

static void logits_of(struct bed *b, float logits[VOCAB]) { logits_of_rows(b, false, logits); }

Test(weights, given_to_a_second_model_are_taken_and_compute_the_same)
{
    float first[VOCAB], second[VOCAB];
    struct bed b;
    int fd;

    bed_init(&b);
    load(&b, WEIGHTS_SHARED, -1);
    cr_assert(ge(int, b.share.made, 0));
    cr_expect(not(b.share.taken));
    logits_of(&b, first);
    fd = STEAL_FD(b.share.made);
    unload(&b);
    load(&b, WEIGHTS_SHARED, fd);
    cr_expect(b.share.taken, "%s", b.share.why);
    cr_expect(eq(int, b.share.made, -1));
    logits_of(&b, second);
    cr_expect(eq(int, memcmp(first, second, sizeof first), 0));
    close(fd);
    bed_fini(&b);
}

/* The layout is one for all kernels, so the key of packed weights says nothing of these. */
Test(weights, each_instruction_set_computes_the_same_with_those_that_another_packed)
{
    struct tiny_model t = tiny_model_default;
    struct bed b;

    t.types[0] = GGML_Q4_1;
    t.types[1] = GGML_Q8_0;
    t.types[2] = GGML_Q4_0;
    t.types[3] = GGML_F16;
    t.n_types = 4;
    bed_init(&b);
    write_file(&b, &t);
    for (size_t i = 0; kernels_at(i); i++) {
        float own[2][VOCAB], taken[2][VOCAB];

        isa = kernels_at(i)->name;
        load(&b, WEIGHTS_PRIVATE, -1);
        cr_expect(eq(str, (char *)model_isa(b.model), (char *)isa));
        logits_of_rows(&b, false, own[0]);
        logits_of_rows(&b, true, own[1]);
        unload(&b);
        for (size_t k = 0; kernels_at(k); k++) {
            int fd;

            isa = kernels_at(k)->name;
            load(&b, WEIGHTS_SHARED, -1);
            fd = STEAL_FD(b.share.made);
            unload(&b);
            isa = kernels_at(i)->name;
            load(&b, WEIGHTS_SHARED, fd);
            cr_expect(b.share.taken, "%s of %s: %s", isa, kernels_at(k)->name, b.share.why);
            logits_of_rows(&b, false, taken[0]);
            logits_of_rows(&b, true, taken[1]);
            cr_expect(zero(int, memcmp(own, taken, sizeof own)), "%s of %s", isa, kernels_at(k)->name);
            unload(&b);
            close(fd);
        }
    }
    bed_fini(&b);
}

Test(weights, private_ones_compute_the_same_and_are_not_given)
{
    float first[VOCAB], second[VOCAB];
    struct bed b;

    bed_init(&b);
    load(&b, WEIGHTS_SHARED, -1);
    logits_of(&b, first);
    unload(&b);
    load(&b, WEIGHTS_PRIVATE, -1);
    cr_expect(eq(int, b.share.made, -1));
    logits_of(&b, second);
    cr_expect(eq(int, memcmp(first, second, sizeof first), 0));
    bed_fini(&b);
}

/* The second model is packed anew, for that reason, and its weights can be given on. */
static void packed_anew(struct bed *b, int fd, const char *why)
{
    load(b, WEIGHTS_SHARED, fd);
    cr_expect(not(b->share.taken));
    cr_expect(ge(int, b->share.made, 0));
    cr_expect(strstr(b->share.why, why) != NULL, "%s", b->share.why);
    close(fd);
    bed_fini(b);
}

static int packed(struct bed *b)
{
    int fd;

    load(b, WEIGHTS_SHARED, -1);
    fd = STEAL_FD(b->share.made);
    unload(b);
    return fd;
}

Test(weights, a_file_that_changed_is_packed_anew)
{
    const struct timespec times[2] = { { .tv_sec = 1 }, { .tv_sec = 1 } };
    struct bed b;
    int fd;

    bed_init(&b);
    fd = packed(&b);
    cr_assert(zero(int, utimensat(AT_FDCWD, b.path, times, 0)));
    packed_anew(&b, fd, "another file");
}

Test(weights, a_file_in_its_place_is_packed_anew)
{
    struct tiny_model t = tiny_model_default;
    struct bed b;
    int fd;

    bed_init(&b);
    fd = packed(&b);
    t.seed++;
    unlink(b.path);
    write_file(&b, &t);
    packed_anew(&b, fd, "another file");
}

/* As if a program had packed them that does so in another way and does not know it. */
Test(weights, packed_in_another_way_are_seen_by_their_bytes)
{
    enum { HEAD = 4096 };
    struct bed b;
    struct stat st;
    char *bytes;
    int from, to;

    bed_init(&b);
    from = packed(&b);
    cr_assert(zero(int, fstat(from, &st)));
    bytes = malloc((size_t)st.st_size);
    cr_assert(bytes && pread(from, bytes, (size_t)st.st_size, 0) == st.st_size);
    bytes[HEAD] ^= 1;
    to = memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    cr_assert(eq(int, (int)write(to, bytes, (size_t)st.st_size), (int)st.st_size));
    cr_assert(zero(int, fcntl(to, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL)));
    close(from);
    free(bytes);
    packed_anew(&b, to, "other bytes");
}
