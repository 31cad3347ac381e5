/* unit_limits.h - what a model's processes may use, and what of that holds.
 *
 *     memory_max_mb, cpu_quota, pids_max   files of the process's leaf (cgroup.h)
 *     nice, cpus, numa_node                set before exec, inherited by threads
 *
 * A limit that can not be had costs no service: the process runs without it, a
 * line of the log (FASTCHAT_EVENT=limits) and `fastchat status` say so and why.
 * With a memory limit the group may not swap: a limit that turns into swap is
 * none, and a model in swap is of no use.
 */
#ifndef DAEMON_SUPERVISOR_UNIT_LIMITS_H
#define DAEMON_SUPERVISOR_UNIT_LIMITS_H

#include "daemon/supervisor/cgroup.h"
#include "daemon/supervisor/cpu_list.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_writer;
struct supervisor;
struct unit;

enum limit { LIMIT_MEMORY, LIMIT_CPU, LIMIT_PIDS, LIMIT_NICE, LIMIT_CPUS, LIMIT_NODE, LIMIT_N };

/* What was asked for at the start of a process, or since. */
struct limits {
    int64_t value[LIMIT_N];     /* 0 (of numa_node -1): none; nice and cpus: 1 where it is set */
    int nice;                   /* that of the service where none is set */
    int fault[LIMIT_N];         /* -errno of those that do not hold */
};

/* How a process is started (spawn.c). */
struct place {
    int entrance;               /* cgroup.procs of its leaf; -1: it stays in ours */
    bool has_cpus;
    struct cpu_list cpus;
    int numa_node;              /* -1: any */
    bool has_nice;
    int nice;
};

/* -errno of what could not be done there, 0: it is so. */
struct place_faults {
    int entrance, cpus, numa_node, nice;
};

/* The service's group, or why there is none. Leaves that an earlier service left
 * are removed; those of `s`'s units stay. */
void limits_open(struct supervisor *s);
/* What could not be removed at once, is. */
void limits_tick(struct supervisor *s);

/* Before its process is started: its leaf and its place. limits_placed() closes
 * what is in `place`, and takes what came of it; pid < 0: it was not started. */
void limits_place(struct unit *u, struct place *place);
void limits_placed(struct unit *u, struct place *place, const struct place_faults *faults, pid_t pid);
/* The configuration's limits of now for a process that runs. False: it takes
 * another process. */
bool limits_renew(struct unit *u);
/* Was it ended, by that signal, for want of memory? The reason. */
bool limits_ran_out(const struct unit *u, const siginfo_t *si, char *reason, size_t size);
/* Adds to the reason of an end what may have led to it: it wanted more threads
 * than it may have. */
void limits_explain(const struct unit *u, char *reason, size_t size);
/* It has no process any more. */
void limits_leave(struct unit *u);

/* The most that it can take in kB; 0: no limit holds. */
int64_t limits_memory_kb(const struct unit *u);
/* What of its limits does not hold, as strings: a sentence each. */
void limits_notes(const struct unit *u, struct json_writer *w);
/* Members of a child in the status: "cgroup", "not_enforced". */
void limits_status(const struct unit *u, struct json_writer *w);

#endif
