#include "daemon/supervisor/cgroup.h"

#include "base/cleanup.h"
#include "base/err.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

struct cgroup {
    int dir;                    /* of our group */
    unsigned controllers;
    bool litter;                /* a leaf could not be removed yet */
};

static const struct { const char *name; enum cgroup_controller bit; } controllers[] = {
    { "memory", CGROUP_MEMORY }, { "cpu", CGROUP_CPU }, { "pids", CGROUP_PIDS },
};
enum { N_CONTROLLERS = sizeof controllers / sizeof controllers[0], LINE = 4096, ROUNDS = 8 };

static const char own_leaf[] = "supervisor";

void cgroup_close(struct cgroup *g)
{
    if (!g)
        return;
    fd_close(g->dir);
    free(g);
}
DEFINE_CLEANUP(struct cgroup *, cgroup_close)

unsigned cgroup_controllers(const struct cgroup *g)
{
    return g->controllers;
}

/* ---- files ---- */

static int write_at(int dir, const char *path, const char *value)
{
    CLEANUP(fd_close) int fd = openat(dir, path, O_WRONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : write(fd, value, strlen(value));

    return n < 0 ? -errno : 0;
}

static int read_at(int dir, const char *path, char text[LINE])
{
    CLEANUP(fd_close) int fd = openat(dir, path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, LINE - 1);

    text[n > 0 ? n : 0] = 0;
    return n < 0 ? -errno : 0;
}

static void path_of(char path[PATH_MAX], const char *leaf, const char *file)
{
    snprintf(path, PATH_MAX, "%s/%s", leaf, file);
}

int cgroup_entrance(struct cgroup *g, const char *leaf)
{
    char path[PATH_MAX];
    int fd;

    path_of(path, leaf, "cgroup.procs");
    fd = openat(g->dir, path, O_WRONLY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

int cgroup_write(struct cgroup *g, const char *leaf, const char *file, const char *value)
{
    char path[PATH_MAX];

    path_of(path, leaf, file);
    return write_at(g->dir, path, value);
}

uint64_t cgroup_read(struct cgroup *g, const char *leaf, const char *file, const char *key)
{
    char path[PATH_MAX], text[LINE];
    size_t n = key ? strlen(key) : 0;
    uint64_t v = 0;

    path_of(path, leaf, file);
    if (read_at(g->dir, path, text))
        return 0;
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n')
        if (!key || (strncmp(line, key, n) == 0 && line[n] == ' '))
            return sscanf(line + n, "%" SCNu64, &v) == 1 ? v : 0;
    return 0;
}

/* ---- leaves ---- */

/* What children are in; others, such as systemd's ".control", are not ours. */
static bool is_child(const char *name)
{
    static const char *const beginnings[] = { "controller", "api", "worker-" };

    for (size_t i = 0; i < sizeof beginnings / sizeof beginnings[0]; i++)
        if (strncmp(name, beginnings[i], strlen(beginnings[i])) == 0)
            return true;
    return false;
}

bool cgroup_is_name(const char *name)
{
    return is_child(name) && strlen(name) < CGROUP_NAME && !strchr(name, '/');
}

int cgroup_make(struct cgroup *g, const char *leaf, struct err *err)
{
    if (mkdirat(g->dir, leaf, 0755) < 0 && errno != EEXIST)
        return err_errno(err, -errno, "control group %s", leaf);
    /* Whatever the umask: anybody may look into it with systemd-cgls. */
    fchmodat(g->dir, leaf, 0755, 0);
    return 0;
}

void cgroup_remove(struct cgroup *g, const char *leaf)
{
    cgroup_write(g, leaf, "cgroup.kill", "1");      /* Linux 5.14; before, the process group was all */
    if (unlinkat(g->dir, leaf, AT_REMOVEDIR) < 0 && errno != ENOENT)
        g->litter = true;
}

void cgroup_sweep(struct cgroup *g, bool all, bool (*is_used)(const char *leaf, void *user), void *user)
{
    int fd = g->litter || all ? openat(g->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    DIR *d = fd < 0 ? NULL : fdopendir(fd);

    if (!d) {
        fd_close(fd);
        return;
    }
    g->litter = false;
    for (const struct dirent *e; (e = readdir(d));)
        if (e->d_type == DT_DIR && is_child(e->d_name) && !is_used(e->d_name, user))
            cgroup_remove(g, e->d_name);
    closedir(d);
}

/* ---- finding it ---- */

/* The path of this process in the unified hierarchy. */
static int find_path(const char *membership, char path[PATH_MAX], struct err *err)
{
    FILE *f = fopen(membership, "re");
    bool found = false;

    if (!f)
        return err_errno(err, -errno, "%s", membership);
    while (!found && fgets(path, PATH_MAX, f))
        found = strncmp(path, "0::/", 4) == 0 && strchr(path, '\n');
    fclose(f);
    if (!found)
        return err_set(err, -ENOENT, "this system has no control groups of version 2");
    path[strcspn(path, "\n")] = 0;
    memmove(path, path + 3, strlen(path + 3) + 1);
    if (strstr(path, "/.."))
        return err_set(err, -ENOENT, "its control group is outside of what it can see");
    return 0;
}

/* Where that hierarchy is: below `root`, or beside those of version 1. */
static int open_path(const char *root, const char *path, int *ret, struct err *err)
{
    static const char *const places[] = { "", "/unified" };
    char whole[2 * PATH_MAX];

    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        snprintf(whole, sizeof whole, "%s%s/cgroup.controllers", root, places[i]);
        if (access(whole, F_OK) < 0)
            continue;
        snprintf(whole, sizeof whole, "%s%s%s", root, places[i], path);
        *ret = open(whole, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return *ret < 0 ? err_errno(err, -errno, "control group %s", whole) : 0;
    }
    return err_set(err, -ENOENT, "this system has no control groups of version 2");
}

static bool is_delegated(int dir)
{
    static const char *const names[] = { "user.delegate", "trusted.delegate" };
    char value[8];

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (fgetxattr(dir, names[i], value, sizeof value) >= 1 && value[0] == '1')
            return true;
    return false;
}

/* The group to divide: that of the path, or the one above when an image before
 * this one has moved us into the leaf. */
static int find_group(const char *root, char *path, int *ret, struct err *err)
{
    char *last = strrchr(path, '/');
    CLEANUP(fd_close) int dir = -1;
    int r;

    if (strcmp(last + 1, own_leaf) == 0)
        *last = 0;
    r = open_path(root, path, &dir, err);
    if (r)
        return r;
    if (!is_delegated(dir))
        return err_set(err, -ENOENT, "no control group is delegated to this service (Delegate= of its unit)");
    if (faccessat(dir, "cgroup.procs", W_OK, AT_EACCESS) < 0 || faccessat(dir, ".", W_OK, AT_EACCESS) < 0)
        return err_errno(err, -errno, "control group %s", path);
    *ret = STEAL_FD(dir);
    return 0;
}

/* ---- moving in ---- */

static pid_t parent_of(pid_t pid)
{
    char path[64], text[LINE];
    const char *end;
    int parent = 0;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (read_at(AT_FDCWD, path, text) || !(end = strrchr(text, ')')) || sscanf(end + 1, " %*c %d", &parent) != 1)
        return -1;
    return parent;
}

/* Does what is in our group itself come from us? Anything else would be moved
 * away from where somebody put it. */
static int check_processes(int dir, struct err *err)
{
    char text[LINE];

    if (read_at(dir, "cgroup.procs", text))
        return err_errno(err, -errno, "control group");
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        pid_t pid = atoi(line);

        pid_t parent = parent_of(pid);

        /* 0: one that we can not see; -1: it has ended. */
        if (pid == 0 || (pid != getpid() && parent != getpid() && parent != -1))
            return err_set(err, -EBUSY, "process %d, which is none of its own, is in the control group of this service", (int)pid);
    }
    return 0;
}

/* All that is in the group itself. One that forks meanwhile is seen in another
 * round. */
static int move_in(struct cgroup *g, struct err *err)
{
    CLEANUP(fd_close) int procs = -1;
    char text[LINE];
    int r = cgroup_make(g, own_leaf, err);

    if (r)
        return r;
    procs = cgroup_entrance(g, own_leaf);
    if (procs < 0)
        return err_errno(err, procs, "control group %s", own_leaf);
    if (write(procs, "0", 1) < 0)
        return err_errno(err, -errno, "to move into control group %s", own_leaf);
    for (int i = 0; i < ROUNDS && read_at(g->dir, "cgroup.procs", text) == 0 && text[0]; i++)
        for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
            if (write(procs, line, strlen(line)) < 0 && errno != ESRCH)
                return err_errno(err, -errno, "to move process %s into control group %s", line, own_leaf);
    return 0;
}

static void turn_on(struct cgroup *g)
{
    char text[LINE], there[LINE], word[32];

    if (read_at(g->dir, "cgroup.controllers", text))
        return;
    text[strcspn(text, "\n")] = 0;
    snprintf(there, sizeof there, " %.*s ", LINE - 3, text);
    for (size_t i = 0; i < N_CONTROLLERS; i++) {
        snprintf(word, sizeof word, " %s ", controllers[i].name);
        if (!strstr(there, word))
            continue;
        snprintf(word, sizeof word, "+%s", controllers[i].name);
        if (write_at(g->dir, "cgroup.subtree_control", word) == 0)
            g->controllers |= controllers[i].bit;
    }
}

int cgroup_open(const char *membership, const char *root, struct cgroup **ret, struct err *err)
{
    CLEANUP(cgroup_close) struct cgroup *g = calloc(1, sizeof *g);
    char path[PATH_MAX];
    int r;

    if (!g)
        return err_set(err, -ENOMEM, "no memory");
    g->dir = -1;
    r = find_path(membership, path, err);
    if (r == 0)
        r = find_group(root, path, &g->dir, err);
    if (r == 0)
        r = check_processes(g->dir, err);
    if (r == 0)
        r = move_in(g, err);
    if (r)
        return r;
    turn_on(g);
    *ret = STEAL(g);
    return 0;
}
