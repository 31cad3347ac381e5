/* A tree of files in the shape of control groups, as far as what is read and
 * written shows in them. What the kernel makes of it is for tests/system. */
#include "base/err.h"
#include "daemon/supervisor/cgroup.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

static char root[] = "/tmp/fastchat-cgroup-XXXXXX";

/* A path in the tree, with the folders above it. */
static const char *at(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static const char *at(const char *fmt, ...)
{
    static char path[8][512];
    static int turn;
    char *p = path[turn++ % 8];
    size_t n = (size_t)snprintf(p, 512, "%s/", root);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(p + n, 512 - n, fmt, ap);
    va_end(ap);
    for (char *slash = strchr(p + n, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(p, 0755);
        *slash = '/';
    }
    return p;
}

static void put(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");

    cr_assert(f != NULL, "%s", path);
    fputs(text, f);
    fclose(f);
}

static void expect(const char *path, const char *text)
{
    char is[256] = "";
    FILE *f = fopen(path, "r");

    cr_assert(f != NULL, "%s", path);
    is[fread(is, 1, sizeof is - 1, f)] = 0;
    fclose(f);
    cr_expect(eq(str, is, (char *)text));
}

static void setup(void) { cr_assert(mkdtemp(root) != NULL); }

static void teardown(void)
{
    char command[300];

    snprintf(command, sizeof command, "rm -rf '%s'", root);
    cr_expect(zero(int, system(command)));
}

TestSuite(cgroup, .init = setup, .fini = teardown, .timeout = 60);

/* A group as systemd leaves it to a service that it started in it. */
static void make_group(const char *place, const char *path, const char *procs)
{
    put(at("%scgroup.controllers", place), "cpuset cpu io memory pids\n");
    put(at("%s%s/cgroup.controllers", place, path), "cpu memory pids\n");
    put(at("%s%s/cgroup.subtree_control", place, path), "");
    put(at("%s%s/cgroup.procs", place, path), procs);
    put(at("%s%s/supervisor/cgroup.procs", place, path), "");
}

static void delegate(const char *path)
{
    cr_assert(zero(int, setxattr(path, "user.delegate", "1", 1, 0)), "%s: %s", path, strerror(errno));
}

static int open_with(const char *membership, struct cgroup **ret, struct err *err)
{
    put(at("membership"), membership);
    return cgroup_open(at("membership"), root, ret, err);
}

static struct cgroup *open_group(const char *membership)
{
    struct cgroup *g = NULL;
    struct err err = { 0 };

    cr_assert(zero(int, open_with(membership, &g, &err)), "%s", err_text(&err));
    return g;
}

static struct cgroup *usual(void)
{
    make_group("", "s/x.service", "");
    delegate(at("s/x.service"));
    return open_group("0::/s/x.service\n");
}

Test(cgroup, a_group_that_is_delegated_is_divided)
{
    struct cgroup *g;
    char self[16];

    snprintf(self, sizeof self, "%d\n", (int)getpid());
    make_group("", "s/x.service", self);
    delegate(at("s/x.service"));
    g = open_group("1:name=systemd:/\n0::/s/x.service\n");
    cr_expect(eq(uint, cgroup_controllers(g), CGROUP_MEMORY | CGROUP_CPU | CGROUP_PIDS));
    cr_expect(zero(int, access(at("s/x.service/supervisor"), F_OK)));
    cgroup_close(g);
}

Test(cgroup, a_service_that_was_moved_into_its_leaf_finds_the_group_above)
{
    struct cgroup *g;

    make_group("", "s/x.service", "");
    delegate(at("s/x.service"));
    g = open_group("0::/s/x.service/supervisor\n");
    expect(at("s/x.service/supervisor/cgroup.procs"), "0");
    cgroup_close(g);
}

Test(cgroup, beside_hierarchies_of_version_1_it_is_found_too)
{
    struct cgroup *g;

    make_group("unified/", "x.service", "");
    delegate(at("unified/x.service"));
    g = open_group("3:memory:/else\n0::/x.service\n");
    cgroup_close(g);
}

Test(cgroup, the_group_of_a_container_is_its_root)
{
    struct cgroup *g;

    make_group("", ".", "");
    delegate(root);
    g = open_group("0::/\n");
    cgroup_close(g);
}

Test(cgroup, controllers_that_are_not_there_are_not_used)
{
    struct cgroup *g;

    make_group("", "x.service", "");
    put(at("x.service/cgroup.controllers"), "cpuset hugetlb pids-of-others memory");
    delegate(at("x.service"));
    g = open_group("0::/x.service\n");
    cr_expect(eq(uint, cgroup_controllers(g), CGROUP_MEMORY));
    expect(at("x.service/cgroup.subtree_control"), "+memory");
    cgroup_close(g);
}

Test(cgroup, what_is_not_ours_is_left_alone_and_it_says_why)
{
    static const struct { const char *membership; int r; const char *says; } cases[] = {
        { "5:memory:/x\n", -ENOENT, "this system has no control groups of version 2" },
        { "0::/../x\n", -ENOENT, "its control group is outside of what it can see" },
        { "0::/gone.service\n", -ENOENT, "No such file" },
        { "0::/plain.service\n", -ENOENT, "no control group is delegated to this service (Delegate= of its unit)" },
        { "0::/others.service\n", -EBUSY, "process 1, which is none of its own, is in the control group of this service" },
        { "0::/hidden.service\n", -EBUSY, "process 0, which is none of its own" },
    };

    make_group("", "plain.service", "");
    make_group("", "others.service", "1\n");
    delegate(at("others.service"));
    make_group("", "hidden.service", "0\n");
    delegate(at("hidden.service"));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct cgroup *g = NULL;
        struct err err = { 0 };

        cr_expect(eq(int, open_with(cases[i].membership, &g, &err), cases[i].r), "%s", cases[i].membership);
        cr_expect(strstr(err_text(&err), cases[i].says) != NULL, "%s", err_text(&err));
        cr_expect(g == NULL);
    }
    expect(at("others.service/supervisor/cgroup.procs"), "");
    expect(at("plain.service/supervisor/cgroup.procs"), "");
}

Test(cgroup, without_any_hierarchy_there_is_none)
{
    struct cgroup *g = NULL;
    struct err err = { 0 };

    cr_expect(eq(int, open_with("0::/x\n", &g, &err), -ENOENT));
    cr_expect(lt(int, cgroup_open("/nonexistent", root, &g, &(struct err){ 0 }), 0));
}

Test(cgroup, anybody_may_look_into_a_leaf)
{
    struct cgroup *g = usual();
    struct stat st;

    umask(077);
    cr_assert(zero(int, cgroup_make(g, "api-0", NULL)));
    cr_assert(zero(int, stat(at("s/x.service/api-0"), &st)));
    cr_expect(eq(int, st.st_mode & 0777, 0755));
    cgroup_close(g);
}

Test(cgroup, files_of_a_leaf_are_written_and_read)
{
    struct cgroup *g = usual();
    int fd;

    cr_assert(zero(int, cgroup_make(g, "worker-m-0", NULL)));
    cr_assert(zero(int, cgroup_make(g, "worker-m-0", NULL)));
    put(at("s/x.service/worker-m-0/memory.max"), "");
    put(at("s/x.service/worker-m-0/cgroup.procs"), "");
    put(at("s/x.service/worker-m-0/memory.current"), "123456789012\n");
    put(at("s/x.service/worker-m-0/memory.events"), "low 0\nhigh 1\nmax 22\noom 3\noom_kill 4\noom_group_kill 5");
    cr_expect(zero(int, cgroup_write(g, "worker-m-0", "memory.max", "max")));
    expect(at("s/x.service/worker-m-0/memory.max"), "max");
    cr_expect(eq(int, cgroup_write(g, "worker-m-0", "pids.max", "max"), -ENOENT));
    cr_expect(eq(int, cgroup_write(g, "worker-n-0", "memory.max", "max"), -ENOENT));
    cr_expect(eq(u64, cgroup_read(g, "worker-m-0", "memory.current", NULL), 123456789012));
    cr_expect(eq(u64, cgroup_read(g, "worker-m-0", "memory.events", "oom"), 3));
    cr_expect(eq(u64, cgroup_read(g, "worker-m-0", "memory.events", "oom_kill"), 4));
    cr_expect(eq(u64, cgroup_read(g, "worker-m-0", "memory.events", "oom_group_kill"), 5));
    cr_expect(eq(u64, cgroup_read(g, "worker-m-0", "memory.events", "other"), 0));
    cr_expect(eq(u64, cgroup_read(g, "worker-n-0", "memory.events", "oom"), 0));
    fd = cgroup_entrance(g, "worker-m-0");
    cr_expect(ge(int, fd, 0));
    close(fd);
    cr_expect(eq(int, cgroup_entrance(g, "worker-n-0"), -ENOENT));
    cgroup_close(g);
}

static bool is_kept(const char *leaf, void *user)
{
    return strcmp(leaf, user) == 0;
}

static bool is_there(const char *name)
{
    return access(at("s/x.service/%s", name), F_OK) == 0;
}

Test(cgroup, leaves_that_an_earlier_service_left_are_removed_and_no_others)
{
    static const char *const names[] = { "worker-m-0", "worker-old-0.1", "api-0", "controller-0", ".control", "payload" };
    static char kept[] = "worker-m-0";
    struct cgroup *g = usual();

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        cr_assert(zero(int, mkdir(at("s/x.service/%s", names[i]), 0755)));
    cgroup_sweep(g, false, is_kept, kept);      /* nothing that is known of */
    cr_expect(is_there("worker-old-0.1"));
    cgroup_sweep(g, true, is_kept, kept);
    cr_expect(is_there("worker-m-0") && is_there(".control") && is_there("payload") && is_there("supervisor"));
    cr_expect(not(is_there("worker-old-0.1") || is_there("api-0") || is_there("controller-0")));
    cgroup_close(g);
}

Test(cgroup, a_leaf_that_is_still_busy_is_removed_later)
{
    static char kept[] = "none";
    struct cgroup *g = usual();

    put(at("s/x.service/worker-m-0/cgroup.kill"), "");  /* a folder with a file can not be removed */
    cgroup_remove(g, "worker-m-0");
    cr_expect(is_there("worker-m-0"));
    expect(at("s/x.service/worker-m-0/cgroup.kill"), "1");
    unlink(at("s/x.service/worker-m-0/cgroup.kill"));
    cgroup_sweep(g, false, is_kept, kept);
    cr_expect(not(is_there("worker-m-0")));
    cgroup_close(g);
}

Test(cgroup, names_from_outside_are_checked)
{
    char longer[CGROUP_NAME + 8] = "worker-";

    memset(longer + 7, 'x', CGROUP_NAME - 7);
    cr_expect(cgroup_is_name("worker-m-0") && cgroup_is_name("api-0") && cgroup_is_name("controller-0.1"));
    cr_expect(not(cgroup_is_name("..") || cgroup_is_name("supervisor") || cgroup_is_name("api/../..") || cgroup_is_name(longer)));
}
