/* How fast a tokenizer is: CSV on standard output.
 *
 *     bench-tokenizer load VOCABULARY [TIMES]              opening the file, the best of some
 *     bench-tokenizer encode VOCABULARY TEXT [SECONDS]     ids of the texts, over and over on one thread; the best and the median pass
 *     bench-tokenizer threads VOCABULARY TEXT N            the same by N threads with one tokenizer
 *     bench-tokenizer curve VOCABULARY                     texts that attack, in sizes that double: time must double too
 *
 * VOCABULARY is a GGUF file, a tokenizer.json or another kind that tokenizer_open_path() knows. TEXT holds texts with a NUL between;
 * a pass encodes each by a call of its own. The hash is of the ids: the same texts have the same one whatever the speed. Time is that of the
 * processor in this thread, so that what else the machine does counts little; with threads it is the clock's.
 */
#include "base/err.h"
#include "loaders/gguf.h"
#include "loaders/tokenizer.h"
#include "tests/bench/median.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static double seconds_of(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double now(void)
{
    return seconds_of(CLOCK_THREAD_CPUTIME_ID);
}

static struct tokenizer *open_vocabulary(const char *path)
{
    struct tokenizer *t = NULL;
    struct err err = { 0 };

    if (tokenizer_open_path(path, &t, &err) < 0) {
        fprintf(stderr, "bench-tokenizer: %s\n", err_text(&err));
        exit(1);
    }
    return t;
}

static char *read_text(const char *path, size_t *ret_len)
{
    FILE *f = fopen(path, "rb");
    char *text;
    long len;

    if (!f || fseek(f, 0, SEEK_END) < 0 || (len = ftell(f)) < 0) {
        fprintf(stderr, "bench-tokenizer: %s can not be read\n", path);
        exit(1);
    }
    rewind(f);
    text = malloc((size_t)len + 1);
    if (!text || fread(text, 1, (size_t)len, f) != (size_t)len)
        exit(1);
    fclose(f);
    *ret_len = (size_t)len;
    return text;
}

static void must_encode(const struct tokenizer *t, const char *text, size_t len, struct token_list *ids)
{
    struct err err = { 0 };

    if (tokenizer_encode(t, text, len, false, ids, &err) < 0) {
        fprintf(stderr, "bench-tokenizer: %s\n", err_text(&err));
        exit(1);
    }
}

static void encode_texts(const struct tokenizer *t, const char *texts, size_t len, struct token_list *ids)
{
    const char *end = texts + len;

    ids->n = 0;
    for (const char *at = texts, *nul; at < end; at = nul + 1) {
        nul = memchr(at, 0, (size_t)(end - at));
        nul = nul ? nul : end;
        must_encode(t, at, (size_t)(nul - at), ids);
    }
}

static uint64_t hash_ids(const struct token_list *ids)
{
    uint64_t h = 0xCBF29CE484222325u;

    for (size_t i = 0; i < ids->n; i++)
        h = (h ^ (uint32_t)ids->ids[i]) * 0x100000001B3u;
    return h;
}

static int load(const char *path, int times)
{
    double best = 1e9;

    for (int i = 0; i < times; i++) {
        double start = now(), took;
        struct tokenizer *t = open_vocabulary(path);

        took = now() - start;
        best = took < best ? took : best;
        if (i + 1 == times)
            printf("load,%s,%u,%.2f ms\n", tokenizer_kind(t), tokenizer_size(t), best * 1e3);
        tokenizer_close(t);
    }
    return 0;
}

static int encode(const char *path, const char *file, double seconds)
{
    CLEANUP(tokenizer_close) struct tokenizer *t = open_vocabulary(path);
    TOKEN_LIST_LOCAL ids = { 0 };
    double took[1000], end = now() + seconds;
    size_t len, n = 0;
    CLEANUP(mem_free) char *text = read_text(file, &len);

    while (n < 3 || (n < 1000 && now() < end)) {
        double start = now();

        encode_texts(t, text, len, &ids);
        took[n++] = now() - start;
    }
    printf("encode,%s,%zu,%zu,%016llx,first %.2f MB/s,", tokenizer_kind(t), len, ids.n, (unsigned long long)hash_ids(&ids),
           (double)len / took[0] / 1e6);
    sort_values(took, n);
    printf("median %.2f MB/s,best %.2f MB/s\n", (double)len / took[n / 2] / 1e6, (double)len / took[0] / 1e6);
    return 0;
}

struct job { const struct tokenizer *t; const char *text; size_t len; uint64_t hash; };

static void *encode_job(void *user)
{
    struct job *j = user;
    TOKEN_LIST_LOCAL ids = { 0 };

    for (int i = 0; i < 5; i++)
        encode_texts(j->t, j->text, j->len, &ids);
    j->hash = hash_ids(&ids);
    return NULL;
}

static int threads(const char *path, const char *file, int n)
{
    CLEANUP(tokenizer_close) struct tokenizer *t = open_vocabulary(path);
    struct job jobs[64];
    pthread_t ids[64];
    size_t len;
    CLEANUP(mem_free) char *text = read_text(file, &len);
    double start;

    n = n < 1 ? 1 : n > 64 ? 64 : n;
    start = seconds_of(CLOCK_MONOTONIC);
    for (int i = 0; i < n; i++) {
        jobs[i] = (struct job){ t, text, len, 0 };
        if (pthread_create(&ids[i], NULL, encode_job, &jobs[i]) != 0)
            return 1;
    }
    for (int i = 0; i < n; i++)
        pthread_join(ids[i], NULL);
    printf("threads,%s,%d,%.2f MB/s", tokenizer_kind(t), n, 5.0 * n * (double)len / (seconds_of(CLOCK_MONOTONIC) - start) / 1e6);
    for (int i = 0; i < n; i++)
        printf(",%016llx", (unsigned long long)jobs[i].hash);
    printf("\n");
    return 0;
}

/* Repeated to the size: no space, no line end, or nothing else. The words are of one letter class each, so a piece is the whole text. */
static const struct { const char *name, *unit; } attacks[] = {
    { "one letter", "a" }, { "spaces", " " }, { "line ends", "\n" }, { "digits", "7" }, { "signs", "!" }, { "cased", "aA" },
    { "Latin word", "internationalization" }, { "Cyrillic word", "достопримечательность" }, { "Greek word", "ηλεκτροεγκεφαλογράφημα" },
    { "Arabic word", "أفاستسقيناكموها" }, { "Devanagari word", "निर्वाचनक्षेत्र" }, { "Thai word", "ประชาธิปไตยสวัสดีครับ" },
    { "Han", "中华人民共和国万岁" }, { "Hangul", "안녕하세요대한민국" }, { "Kana", "ありがとうございます" }, { "emoji", "👩‍👩‍👧🌍" },
    { "JSON", "{\"a\":[1,{\"b\":null}]}," }, { "base64", "QmFzZTY0IGlzIG5vdCBhIGxhbmd1YWdl" }, { "no UTF-8", "\xFF\xC3" },
};

/* Letters that follow no period, with no space: what a table of repeated pieces does not help. */
static void random_letters(char *text, size_t len)
{
    uint64_t state = 1;

    for (size_t i = 0; i < len; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        text[i] = (char)('a' + (state >> 33) % 26);
    }
}

static void curve_of(const struct tokenizer *t, const char *name, const char *unit, char *text, size_t most)
{
    TOKEN_LIST_LOCAL ids = { 0 };

    printf("curve,%s", name);
    for (size_t len = most / 16; len <= most; len *= 2) {
        double best = 1e9;

        if (unit)
            for (size_t i = 0, n = strlen(unit); i < len; i++)
                text[i] = unit[i % n];
        else
            random_letters(text, len);
        for (int i = 0; i < 3; i++) {
            double start = now();

            ids.n = 0;
            must_encode(t, text, len, &ids);
            best = now() - start < best ? now() - start : best;
        }
        printf(",%.2f ms", best * 1e3);
        if (len == most)
            printf(",%.2f MB/s,%zu ids", (double)len / best / 1e6, ids.n);
    }
    printf("\n");
    fflush(stdout);
}

static int curve(const char *path)
{
    enum { MOST = 4 << 20 };
    CLEANUP(tokenizer_close) struct tokenizer *t = open_vocabulary(path);
    CLEANUP(mem_free) char *text = malloc(MOST);

    if (!text)
        return 1;
    printf("curve,%s,0.25 MB,0.5 MB,1 MB,2 MB,4 MB\n", tokenizer_kind(t));
    for (size_t i = 0; i < sizeof attacks / sizeof attacks[0]; i++)
        curve_of(t, attacks[i].name, attacks[i].unit, text, MOST);
    curve_of(t, "random letters", NULL, text, MOST);
    return 0;
}

int main(int argc, char **argv)
{
    const char *what = argc > 2 ? argv[1] : "";

    if (strcmp(what, "load") == 0)
        return load(argv[2], argc > 3 ? atoi(argv[3]) : 10);
    if (strcmp(what, "encode") == 0 && argc > 3)
        return encode(argv[2], argv[3], argc > 4 ? atof(argv[4]) : 3);
    if (strcmp(what, "threads") == 0 && argc > 4)
        return threads(argv[2], argv[3], atoi(argv[4]));
    if (strcmp(what, "curve") == 0)
        return curve(argv[2]);
    fprintf(stderr, "usage: bench-tokenizer load|encode|threads|curve VOCABULARY [TEXT] [SECONDS|N]\n");
    return 2;
}
