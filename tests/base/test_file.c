#include "base/file.h"

#include "base/buf.h"
#include "base/err.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/fastchat-file-XXXXXX";
static char path[64];

static void make(void)
{
    FILE *f;

    cr_assert_not_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/f", folder);
    f = fopen(path, "w");
    fputs("0123456789", f);
    fclose(f);
}

static void drop(void)
{
    remove(path);
    rmdir(folder);
}

TestSuite(file, .init = make, .fini = drop);

Test(file, bytes_are_added_behind_what_is_there)
{
    BUF_LOCAL b = BUF_INIT;

    buf_adds(&b, "x");
    cr_assert(zero(int, file_read(path, 10, &b, NULL)));
    cr_assert(eq(str, b.data, "x0123456789"));
}

Test(file, one_byte_above_the_limit_is_refused)
{
    BUF_LOCAL b = BUF_INIT;
    struct err err = { 0 };

    cr_assert(eq(int, file_read(path, 9, &b, &err), -E2BIG));
    cr_assert_not_null(strstr(err.text, "is above 9 bytes"));
}

Test(file, what_is_no_regular_file_is_refused_at_once)
{
    BUF_LOCAL b = BUF_INIT;
    struct err err = { 0 };

    cr_assert(eq(int, file_read(folder, 9, &b, &err), -EINVAL));
    remove(path);
    cr_assert(zero(int, mkfifo(path, 0600)));
    err_clear(&err);
    cr_assert(eq(int, file_read(path, 9, &b, &err), -EINVAL));
    remove(path);
    err_clear(&err);
    cr_assert(eq(int, file_read(path, 9, &b, &err), -ENOENT));
    cr_assert(eq(int, strncmp(err.text, path, strlen(path)), 0));
}

Test(file, a_pipe_is_read_to_its_end)
{
    BUF_LOCAL b = BUF_INIT;
    int fds[2];

    cr_assert(zero(int, pipe(fds)));
    cr_assert(eq(int, (int)write(fds[1], "abc", 3), 3));
    close(fds[1]);
    cr_assert(zero(int, file_read_fd(fds[0], "standard input", 3, &b, NULL)));
    cr_assert(eq(str, b.data, "abc"));
    close(fds[0]);
}
