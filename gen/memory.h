/* memory.h - how much memory there is to plan with.
 *
 * The kernel's estimate of what can be had without swapping (MemAvailable),
 * or what the memory limits of the cgroup and its parents leave, whichever is
 * less. Page cache that a group was charged for counts as free: it goes when
 * it is needed.
 *
 * Source   proc(5); Linux Documentation/admin-guide/cgroup-v2.rst, "Memory";
 *          cgroup-v1/memory.rst
 */
#ifndef GEN_MEMORY_H
#define GEN_MEMORY_H

#include <stdint.h>

/* Bytes; UINT64_MAX when nothing says a limit. */
uint64_t memory_room(void);
/* The same from files like /proc/meminfo and /proc/self/cgroup, and a folder
 * like /sys/fs/cgroup. */
uint64_t memory_room_of(const char *meminfo, const char *membership, const char *cgroups);

#endif
