/* reach.h - may somebody read a file, and which part of its path denies it?
 *
 * The kernel says "permission denied" and not where. Here a path is walked as
 * the kernel does it, links included, with the rules for owner, group, others and
 * access lists, for any user; the first folder that cannot be entered, or the
 * file, is named:
 *
 *     user _fastchat cannot enter the folder /home/ann (mode 0700, ann:ann), which …
 *
 * Sources  path_resolution(7); acl(5), "access check algorithm"; the layout of
 *          the attribute system.posix_acl_access: linux/posix_acl_xattr.h
 */
#ifndef BASE_REACH_H
#define BASE_REACH_H

#include <stddef.h>
#include <sys/types.h>

struct err;

struct reach_user {
    char name[64];
    uid_t uid;
    gid_t *groups;              /* all of them, in any order; free() */
    size_t n_groups;
};

/* Of this process. 0 or -errno. */
int reach_self(struct reach_user *ret, struct err *err);
/* By name; -ENOENT when there is none. */
int reach_named(const char *name, struct reach_user *ret, struct err *err);
/* Of a running process, as /proc says; its name is that of its user. */
int reach_process(pid_t pid, struct reach_user *ret, struct err *err);
void reach_fini(struct reach_user *user);

/* 0: the rules let `user` open it and read. -EACCES with a sentence that names what denies it
 * and what to do; another -errno (with a sentence too) where the path ends
 * before: -ENOENT, -ENOTDIR, -ELOOP. Folders that this process cannot enter
 * itself are the end for others too: ask as root. */
int reach_read(const char *path, const struct reach_user *user, struct err *err);

/* Why this process was told EACCES for this path: always -EACCES with a
 * sentence, also where the rules allow it and something else does not. */
int reach_denied(const char *path, struct err *err);

#endif
