#include "base/reach.h"

#include "base/cleanup.h"
#include "base/err.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

/* ROOT/a/b/file, where a is 0711; b's mode is the test's. The walk needs what is
 * above too: the temporary folder is given by its real path, and open to all. */
static char root[] = "/tmp/fastchat-reach-XXXXXX";
static char file[64];
static const struct reach_user stranger = { .name = "stranger", .uid = 54321 };
static struct err err;

static char *path_of(const char *rest)
{
    static char path[128];

    snprintf(path, sizeof path, "%s/%s", root, rest);
    return path;
}

static void setup(void)
{
    cr_assert(ne(ptr, mkdtemp(root), NULL));
    cr_assert(zero(int, chmod(root, 0755)));
    cr_assert(zero(int, mkdir(path_of("a"), 0711)));
    cr_assert(zero(int, mkdir(path_of("a/b"), 0755)));
    strcpy(file, path_of("a/b/file"));
    close(open(file, O_WRONLY | O_CREAT, 0644));
    cr_assert(zero(int, chmod(path_of("a"), 0711) | chmod(path_of("a/b"), 0755) | chmod(file, 0644)));
    err_clear(&err);
}

static void teardown(void)
{
    char command[80];

    snprintf(command, sizeof command, "rm -r %s", root);
    cr_assert(zero(int, system(command)));
}

TestSuite(reach, .init = setup, .fini = teardown);

Test(reach, a_folder_that_may_only_be_entered_is_no_obstacle)
{
    cr_assert(zero(int, reach_read(file, &stranger, &err)), "%s", err.text);
}

Test(reach, the_folder_that_denies_is_named_with_its_mode_and_what_to_do)
{
    char want[200];

    chmod(path_of("a/b"), 0700);
    cr_assert(eq(int, reach_read(file, &stranger, &err), -EACCES));
    snprintf(want, sizeof want, "user stranger cannot enter the folder %s/a/b (mode 0700, ", root);
    cr_assert(eq(int, strncmp(err.text, want, strlen(want)), 0), "%s", err.text);
    snprintf(want, sizeof want, "'setfacl -m u:stranger:x %s/a/b'", root);
    cr_assert(ne(ptr, strstr(err.text, want), NULL), "%s", err.text);
}

Test(reach, the_file_is_named_when_it_denies)
{
    chmod(file, 0640);
    cr_assert(eq(int, reach_read(file, &stranger, &err), -EACCES));
    cr_assert(ne(ptr, strstr(err.text, "user stranger cannot read "), NULL), "%s", err.text);
    cr_assert(ne(ptr, strstr(err.text, "(mode 0640, "), NULL), "%s", err.text);
}

Test(reach, owner_and_groups_count_and_the_first_that_fits_decides)
{
    struct stat st;
    struct reach_user member = { .name = "member", .uid = 54321, .groups = (gid_t[]){ 0 }, .n_groups = 1 };
    struct reach_user owner = { .name = "owner" };

    cr_assert(zero(int, stat(file, &st)));
    member.groups[0] = st.st_gid;
    owner.uid = st.st_uid;
    chmod(file, 0640);
    cr_expect(zero(int, reach_read(file, &member, NULL)));
    chmod(file, 0604);          /* others may, the group may not */
    cr_expect(eq(int, reach_read(file, &member, NULL), -EACCES));
    cr_expect(zero(int, reach_read(file, &stranger, NULL)));
    chmod(file, 0044);
    cr_expect(eq(int, reach_read(file, &owner, NULL), owner.uid == 0 ? 0 : -EACCES));
}

Test(reach, links_are_followed_and_what_is_behind_them_counts)
{
    cr_assert(zero(int, symlink("a/../a/b/./file", path_of("link"))));
    cr_assert(zero(int, symlink(root, path_of("up"))));
    cr_expect(zero(int, reach_read(path_of("link"), &stranger, NULL)));
    cr_expect(zero(int, reach_read(path_of("up/up/link"), &stranger, NULL)));
    chmod(path_of("a"), 0700);
    cr_expect(eq(int, reach_read(path_of("up/link"), &stranger, &err), -EACCES));
    cr_expect(ne(ptr, strstr(err.text, path_of("a (")), NULL), "%s", err.text);
}

Test(reach, a_path_that_ends_before_says_where)
{
    cr_assert(zero(int, symlink("loop", path_of("loop"))));
    cr_expect(eq(int, reach_read(path_of("loop"), &stranger, &err), -ELOOP));
    err_clear(&err);
    cr_expect(eq(int, reach_read(path_of("a/none/file"), &stranger, &err), -ENOENT));
    cr_expect(eq(int, strncmp(err.text, path_of("a/none: "), strlen(path_of("a/none: "))), 0), "%s", err.text);
    err_clear(&err);
    cr_expect(eq(int, reach_read(path_of("a/b/file/x"), &stranger, &err), -ENOTDIR));
    cr_expect(ne(ptr, strstr(err.text, "file is no folder"), NULL), "%s", err.text);
}

Test(reach, a_relative_path_counts_from_here)
{
    cr_assert(zero(int, chdir(path_of("a"))));
    cr_expect(zero(int, reach_read("b/file", &stranger, NULL)));
    chmod(path_of("a"), 0700);
    cr_expect(eq(int, reach_read("b/file", &stranger, NULL), -EACCES));
    cr_assert(zero(int, chdir("/")));
}

Test(reach, an_access_list_is_read)
{
    const struct {
        uint32_t version;
        struct { uint16_t tag, perm; uint32_t id; } e[5];
    } acl = { 2, { { 1, 6, ~0u }, { 2, 4, 54321 }, { 4, 0, ~0u }, { 16, 4, ~0u }, { 32, 0, ~0u } } };
    struct reach_user other = { .name = "other", .uid = 54322 };

    if (setxattr(file, "system.posix_acl_access", &acl, sizeof acl, 0) < 0)
        cr_skip_test("no access lists in /tmp: %s", strerror(errno));
    cr_expect(zero(int, reach_read(file, &stranger, NULL)));
    cr_expect(eq(int, reach_read(file, &other, NULL), -EACCES));
}

Test(reach, users_are_known_by_name_and_by_process)
{
    struct reach_user user, self;

    cr_assert(zero(int, reach_named("root", &user, &err)), "%s", err.text);
    cr_expect(eq(int, (int)user.uid, 0));
    cr_expect(gt(sz, user.n_groups, 0));
    reach_fini(&user);
    cr_expect(eq(int, reach_named("no-such-user-here", &user, NULL), -ENOENT));
    cr_assert(zero(int, reach_self(&self, &err)));
    cr_assert(zero(int, reach_process(getpid(), &user, &err)), "%s", err.text);
    cr_expect(eq(int, (int)user.uid, (int)self.uid));
    cr_expect(eq(str, user.name, self.name));
    reach_fini(&user);
    reach_fini(&self);
    cr_expect(eq(int, reach_process(-1, &user, NULL), -ENOENT));
}

/* As somebody who is not root; root is never denied. */
Test(reach, whoever_is_denied_is_told_by_what)
{
    int status;
    pid_t child = fork();

    if (child == 0) {
        struct err e = { 0 };

        if (getuid() == 0 && (setgid(54321) || setuid(54321)))
            _exit(9);
        if (reach_denied(file, &e) != -EACCES || !strstr(e.text, "though mode and owner allow it"))
            _exit(1);
        _exit(0);
    }
    cr_assert(eq(int, waitpid(child, &status, 0), child));
    cr_assert(zero(int, status));
}
