/* cpu_list.h - a set of CPUs, written as the kernel writes it: "0-3,8".
 *
 * Limits  numbers below CPU_LIST_MAX, the most that Linux can be built for
 * Source  Linux Documentation/admin-guide/cputopology.rst, cpuset(7) "List format"
 */
#ifndef DAEMON_SUPERVISOR_CPU_LIST_H
#define DAEMON_SUPERVISOR_CPU_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct buf;
struct err;

enum { CPU_LIST_MAX = 8192, CPU_LIST_WORDS = CPU_LIST_MAX / (8 * sizeof(unsigned long)) };

/* As sched_setaffinity(2) takes it. */
struct cpu_list {
    unsigned long bits[CPU_LIST_WORDS];
};

/* 0; -EINVAL with a sentence, and *ret is untouched. Blanks may stand around a
 * number; ranges may overlap, none runs backwards. */
int cpu_list_parse(const char *text, struct cpu_list *ret, struct err *err);
/* A file of the kernel with one such line. 0; -errno when it can not be read or
 * holds something else. */
int cpu_list_read(const char *path, struct cpu_list *ret);
void cpu_list_print(const struct cpu_list *l, struct buf *out);

bool cpu_list_is_empty(const struct cpu_list *l);
/* Those of `l` that `other` has too, or has not. */
struct cpu_list cpu_list_and(const struct cpu_list *l, const struct cpu_list *other);
struct cpu_list cpu_list_without(const struct cpu_list *l, const struct cpu_list *other);

/* The CPUs that this machine has now, and those of one of its NUMA nodes. Where
 * the kernel knows of no nodes there is one, 0, with all of them. -ENOENT: no
 * such node. */
int cpu_list_online(struct cpu_list *ret);
int cpu_list_of_node(int node, struct cpu_list *ret);

#endif
