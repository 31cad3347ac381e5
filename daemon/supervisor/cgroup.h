/* cgroup.h - the part of the control group tree that is ours to divide.
 *
 * systemd hands a unit's group over where the unit says Delegate=, and marks it
 * (the attribute user.delegate, or trusted.delegate). Groups with processes of
 * their own can not be divided, so the supervisor moves itself into a leaf and
 * gives each child another one:
 *
 *     fastchat.service/               ours, without processes
 *         supervisor/                 this process, and an upgrade's trial
 *         controller/  api-0/  worker-m-0/ …
 *
 * A group that nobody marked is left alone, whoever owns it: others may live in
 * it. Of the controllers memory, cpu and pids those are used that are there.
 *
 * Source  Linux Documentation/admin-guide/cgroup-v2.rst ("Delegation", "No
 *         Internal Process Constraint", "memory.events"); systemd,
 *         docs/CGROUP_DELEGATION.md
 */
#ifndef DAEMON_SUPERVISOR_CGROUP_H
#define DAEMON_SUPERVISOR_CGROUP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct cgroup;
struct err;

enum { CGROUP_NAME = 96 };      /* bytes of a leaf's name, with the NUL */
enum cgroup_controller { CGROUP_MEMORY = 1, CGROUP_CPU = 2, CGROUP_PIDS = 4 };

/* Finds the group of this process (`membership` is its /proc/self/cgroup, `root`
 * where the hierarchies are mounted, /sys/fs/cgroup), moves this process and its
 * children into the supervisor's leaf, and turns the controllers on. 0 and what
 * the caller closes; -ENOENT: there is none for us, -EBUSY: somebody else is in
 * it, or -errno; the sentence says why. */
int cgroup_open(const char *membership, const char *root, struct cgroup **ret, struct err *err);
void cgroup_close(struct cgroup *g);                /* NULL is fine; leaves stay */
unsigned cgroup_controllers(const struct cgroup *g);

/* A name that a leaf may have, when it comes from outside. */
bool cgroup_is_name(const char *name);
/* Makes a leaf; one that is there is used. 0 or -errno with a sentence. */
int cgroup_make(struct cgroup *g, const char *leaf, struct err *err);
/* Kills what is left in a leaf and removes it; what still takes a moment is
 * done by cgroup_sweep(). */
void cgroup_remove(struct cgroup *g, const char *leaf);
/* Removes the leaves of children for which `is_used` says no. `all`: also those
 * that were there before us, else only what cgroup_remove() could not. */
void cgroup_sweep(struct cgroup *g, bool all, bool (*is_used)(const char *leaf, void *user), void *user);

/* The file "cgroup.procs" of a leaf, to write into; -errno. */
int cgroup_entrance(struct cgroup *g, const char *leaf);
/* A file of a leaf, "memory.max": 0 or -errno. */
int cgroup_write(struct cgroup *g, const char *leaf, const char *file, const char *value);
/* A number in a file, alone or behind `key` in one of "key number" lines; 0
 * where there is none. */
uint64_t cgroup_read(struct cgroup *g, const char *leaf, const char *file, const char *key);

#endif
