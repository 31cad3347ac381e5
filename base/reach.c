#include "base/reach.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"

#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { MAX_LINKS = 40, MAX_GROUPS = 65536 };
enum { ENTER = 1, READ = 4 };           /* as in a mode */

/* ---- who ---- */

static void name_user(struct reach_user *user)
{
    const struct passwd *p = getpwuid(user->uid);

    if (p)
        snprintf(user->name, sizeof user->name, "%s", p->pw_name);
    else
        snprintf(user->name, sizeof user->name, "%u", (unsigned)user->uid);
}

int reach_self(struct reach_user *ret, struct err *err)
{
    int n = getgroups(0, NULL);
    gid_t *groups = n < 0 ? NULL : calloc((size_t)n + 1, sizeof *groups);

    if (!groups)
        return err_set(err, -ENOMEM, "no memory");
    n = getgroups(n, groups);
    groups[n < 0 ? 0 : n] = getegid();
    *ret = (struct reach_user){ .uid = geteuid(), .groups = groups, .n_groups = (size_t)(n < 0 ? 0 : n) + 1 };
    name_user(ret);
    return 0;
}

int reach_named(const char *name, struct reach_user *ret, struct err *err)
{
    const struct passwd *p = getpwnam(name);
    gid_t *groups = NULL;
    int n = 16;

    if (!p)
        return err_set(err, -ENOENT, "there is no user %s", name);
    *ret = (struct reach_user){ .uid = p->pw_uid };
    snprintf(ret->name, sizeof ret->name, "%s", p->pw_name);
    for (;;) {
        int room = n;
        gid_t *more = realloc(groups, (size_t)n * sizeof *groups);

        if (!more || n > MAX_GROUPS) {
            free(more ? more : groups);
            return err_set(err, -ENOMEM, "no memory for the groups of %s", name);
        }
        groups = more;
        if (getgrouplist(p->pw_name, p->pw_gid, groups, &n) >= 0)
            break;
        if (n <= room)
            n = 2 * room;
    }
    ret->groups = groups;
    ret->n_groups = (size_t)n;
    return 0;
}

static int add_group(struct reach_user *user, gid_t gid)
{
    gid_t *more = realloc(user->groups, (user->n_groups + 1) * sizeof *more);

    if (!more)
        return -ENOMEM;
    user->groups = more;
    more[user->n_groups++] = gid;
    return 0;
}

/* Real, effective, saved and file-system id stand in a row; the last one counts. */
static bool filesystem_id(const char *line, unsigned *ret)
{
    return sscanf(line, "%*u %*u %*u %u", ret) == 1;
}

int reach_process(pid_t pid, struct reach_user *ret, struct err *err)
{
    struct reach_user user = { 0 };
    char path[64], line[16384];
    unsigned id;
    bool any = false;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    f = fopen(path, "re");
    if (!f)
        return err_errno(err, -errno, "process %d", (int)pid);
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, "Uid:", 4) == 0 && filesystem_id(line + 4, &id)) {
            user.uid = id;
            any = true;
        } else if (strncmp(line, "Gid:", 4) == 0 && filesystem_id(line + 4, &id)) {
            add_group(&user, id);
        } else if (strncmp(line, "Groups:", 7) == 0) {
            char *at = line + 7, *end;

            for (unsigned long gid; gid = strtoul(at, &end, 10), end != at; at = end)
                add_group(&user, (gid_t)gid);
        }
    }
    fclose(f);
    if (!any) {
        reach_fini(&user);
        return err_set(err, -EPROTO, "%s says no user", path);
    }
    name_user(&user);
    *ret = user;
    return 0;
}

void reach_fini(struct reach_user *user)
{
    free(user->groups);
    *user = (struct reach_user){ 0 };
}

static bool is_member(const struct reach_user *user, gid_t gid)
{
    for (size_t i = 0; i < user->n_groups; i++)
        if (user->groups[i] == gid)
            return true;
    return false;
}

/* ---- what the rules say ---- */

enum { ACL_VERSION = 2, ACL_ENTRIES = 256 };
enum { ACL_USER_OBJ = 1, ACL_USER = 2, ACL_GROUP_OBJ = 4, ACL_GROUP = 8, ACL_MASK = 16, ACL_OTHER = 32 };

struct acl_entry {
    uint16_t tag, perm;         /* little-endian on disk, as here on every machine we run on */
    uint32_t id;
};

struct acl {
    uint32_t version;
    struct acl_entry entries[ACL_ENTRIES];
};

/* The number of entries; 0: it has no list of its own. */
static size_t read_acl(const char *path, struct acl *acl)
{
    ssize_t n = getxattr(path, "system.posix_acl_access", acl, sizeof *acl);

    if (n < (ssize_t)sizeof acl->version || acl->version != ACL_VERSION)
        return 0;
    return ((size_t)n - sizeof acl->version) / sizeof acl->entries[0];
}

static bool acl_allows(const struct acl *acl, size_t n, const struct stat *st, const struct reach_user *user, unsigned want)
{
    unsigned mask = 7, other = 0;
    bool grouped = false;

    for (size_t i = 0; i < n; i++)
        if (acl->entries[i].tag == ACL_MASK)
            mask = acl->entries[i].perm;
    for (size_t i = 0; i < n; i++) {
        const struct acl_entry *e = &acl->entries[i];

        if (e->tag == ACL_USER_OBJ && st->st_uid == user->uid)
            return (e->perm & want) == want;
        if (e->tag == ACL_USER && e->id == user->uid)
            return (e->perm & mask & want) == want;
        if ((e->tag == ACL_GROUP_OBJ && is_member(user, st->st_gid)) || (e->tag == ACL_GROUP && is_member(user, e->id))) {
            grouped = true;
            if ((e->perm & mask & want) == want)
                return true;
        }
        if (e->tag == ACL_OTHER)
            other = e->perm;
    }
    return !grouped && (other & want) == want;
}

static bool allows(const char *path, const struct stat *st, const struct reach_user *user, unsigned want)
{
    struct acl acl;
    size_t n;

    if (user->uid == 0)
        return true;
    n = read_acl(path, &acl);
    if (n)
        return acl_allows(&acl, n, st, user, want);
    if (st->st_uid == user->uid)
        return (st->st_mode >> 6 & want) == want;
    if (is_member(user, st->st_gid))
        return (st->st_mode >> 3 & want) == want;
    return (st->st_mode & want) == want;
}

/* ---- the walk ---- */

struct walk {
    const struct reach_user *user;
    char at[PATH_MAX];          /* where it has come: absolute, without links; "/" at first */
    char rest[PATH_MAX];
    int links;
};

/* "mode 0700, ann:ann" */
static void describe(const struct stat *st, char *out, size_t size)
{
    const struct passwd *p = getpwuid(st->st_uid);
    const struct group *g = getgrgid(st->st_gid);
    char user[64], group[64];

    snprintf(user, sizeof user, "%u", (unsigned)st->st_uid);
    snprintf(group, sizeof group, "%u", (unsigned)st->st_gid);
    snprintf(out, size, "mode %04o, %s:%s", (unsigned)st->st_mode & 07777, p ? p->pw_name : user, g ? g->gr_name : group);
}

static int deny_folder(const struct walk *w, const struct stat *st, struct err *err)
{
    bool hidden = (st->st_mode & 0777) == 0 && st->st_uid == 0;
    char about[200];

    describe(st, about, sizeof about);
    if (hidden)
        return err_set(err, -EACCES, "user %s cannot enter the folder %s (%s): if that is not so outside the service, its unit hides it "
                       "(ProtectHome=, InaccessiblePaths=)", w->user->name, w->at, about);
    return err_set(err, -EACCES, "user %s cannot enter the folder %s (%s): move the file, or 'setfacl -m u:%s:x %s'", w->user->name, w->at,
                   about, w->user->name, w->at);
}

static int deny_file(const struct walk *w, const struct stat *st, struct err *err)
{
    char about[200];

    describe(st, about, sizeof about);
    return err_set(err, -EACCES, "user %s cannot read %s (%s): 'chmod a+r %s', or 'setfacl -m u:%s:r %s'", w->user->name, w->at, about,
                   w->at, w->user->name, w->at);
}

static int too_long(struct err *err)
{
    return err_set(err, -ENAMETOOLONG, "the path is too long");
}

static int go_up(struct walk *w)
{
    char *slash = strrchr(w->at, '/');

    slash[slash == w->at] = '\0';
    return 0;
}

/* The link's text takes its place in front of the rest. */
static int follow(struct walk *w, const char *link, struct err *err)
{
    char text[PATH_MAX], rest[PATH_MAX];
    ssize_t n = readlink(link, text, sizeof text - 1);

    if (n < 0)
        return err_errno(err, -errno, "%s", link);
    text[n] = '\0';
    if (++w->links > MAX_LINKS)
        return err_set(err, -ELOOP, "%s: too many links", link);
    strcpy(rest, w->rest);
    if ((size_t)n + 1 + strlen(rest) >= sizeof w->rest)
        return too_long(err);
    snprintf(w->rest, sizeof w->rest, "%s/%s", text, rest);
    if (text[0] == '/')
        strcpy(w->at, "/");
    return 0;
}

/* The next name of the rest. `at` may be entered. */
static int step(struct walk *w, const char *name, struct err *err)
{
    char next[PATH_MAX];
    struct stat st;

    if (strcmp(name, ".") == 0)
        return 0;
    if (strcmp(name, "..") == 0)
        return go_up(w);
    if ((size_t)snprintf(next, sizeof next, "%s/%s", strcmp(w->at, "/") == 0 ? "" : w->at, name) >= sizeof next)
        return too_long(err);
    if (lstat(next, &st) < 0)
        return err_errno(err, -errno, "%s", next);
    if (S_ISLNK(st.st_mode))
        return follow(w, next, err);
    strcpy(w->at, next);
    return 0;
}

/* Takes the next name off the rest; false: there is none. */
static bool next_name(struct walk *w, char name[NAME_MAX + 1])
{
    size_t blank = strspn(w->rest, "/");
    size_t n = strcspn(w->rest + blank, "/");

    if (n == 0)
        return false;
    snprintf(name, NAME_MAX + 1, "%.*s", (int)(n < NAME_MAX ? n : NAME_MAX), w->rest + blank);
    memmove(w->rest, w->rest + blank + n, strlen(w->rest + blank + n) + 1);
    return true;
}

static int begin(struct walk *w, const char *path, struct err *err)
{
    if (strlen(path) >= sizeof w->rest)
        return too_long(err);
    strcpy(w->rest, path);
    if (path[0] == '/')
        strcpy(w->at, "/");
    else if (!getcwd(w->at, sizeof w->at))
        return err_errno(err, -errno, "the current folder");
    return 0;
}

int reach_read(const char *path, const struct reach_user *user, struct err *err)
{
    struct walk w = { .user = user };
    char name[NAME_MAX + 1];
    struct stat st;
    int r = begin(&w, path, err);

    while (r == 0 && next_name(&w, name)) {
        if (stat(w.at, &st) < 0)
            return err_errno(err, -errno, "%s", w.at);
        if (!S_ISDIR(st.st_mode))
            return err_set(err, -ENOTDIR, "%s is no folder", w.at);
        if (!allows(w.at, &st, user, ENTER))
            return deny_folder(&w, &st, err);
        r = step(&w, name, err);
    }
    if (r == 0 && stat(w.at, &st) < 0)
        r = err_errno(err, -errno, "%s", w.at);
    if (r == 0 && !allows(w.at, &st, user, READ))
        r = deny_file(&w, &st, err);
    return r;
}

int reach_denied(const char *path, struct err *err)
{
    struct reach_user user;
    int r = reach_self(&user, NULL);

    if (r == 0) {
        r = reach_read(path, &user, err);
        reach_fini(&user);
    }
    if (r == 0)
        err_set(err, -EACCES, "permission denied, though mode and owner allow it: the unit's sandbox, or a security module such as AppArmor or SELinux");
    return -EACCES;
}
