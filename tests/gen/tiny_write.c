/* tiny-model FILE - writes the tiny random model of tiny_file.h, for tests that are not C. */
#include "tests/gen/tiny_file.h"

#include <stdio.h>

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: tiny-model FILE\n");
        return 2;
    }
    tiny_file_write(argv[1], &(struct tiny_file){ .seed = 1 });
    return 0;
}
