/* seeds_main.c - runs a fuzz target over the files it is given, and over the files of folders,
 * without libFuzzer: its seeds as an ordinary test.
 */
#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t n_run;

static int run_file(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    size_t size = (size_t)st->st_size;
    uint8_t *data;
    FILE *f;

    (void)ftw;
    if (kind != FTW_F)
        return 0;
    f = fopen(path, "rb");
    data = malloc(size ? size : 1);     /* exactly, so that ASan sees a read past its end */
    if (!f || !data || fread(data, 1, size, f) != size) {
        fprintf(stderr, "%s: can not read it\n", path);
        exit(1);
    }
    fclose(f);
    LLVMFuzzerTestOneInput(data, size);
    free(data);
    n_run++;
    return 0;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (nftw(argv[i], run_file, 16, FTW_PHYS) != 0) {
            perror(argv[i]);
            return 1;
        }
    }
    if (n_run == 0) {
        fprintf(stderr, "no seeds\n");
        return 1;
    }
    printf("%zu passed, 0 failed\n", n_run);
    return 0;
}
