/* How many threads make sense here: nproc(1) knows the affinity mask, nothing
 * but cgroupfs knows the quota of a container. A pool larger than its quota is
 * throttled in the middle of a step, with the others spinning.
 *
 * Sources  cgroups(7); Linux Documentation/admin-guide/cgroup-v2.rst, "cpu.max";
 *          Documentation/scheduler/sched-bwc.rst
 */
#include "gen/cpu/pool.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { MAX_CPUS = 1 << 16 };

static uint32_t affinity_cpus(void)
{
    for (int n = 1024; n <= MAX_CPUS; n *= 2) {
        cpu_set_t *set = CPU_ALLOC(n);
        int r, count = 0;

        if (!set)
            break;
        r = sched_getaffinity(0, CPU_ALLOC_SIZE(n), set);
        if (r == 0)
            count = CPU_COUNT_S(CPU_ALLOC_SIZE(n), set);
        CPU_FREE(set);
        if (r == 0)
            return (uint32_t)count;
        if (errno != EINVAL)
            break;
    }
    return 0;
}

static bool read_line(const char *folder, const char *name, char *line, size_t size)
{
    char path[PATH_MAX];
    FILE *f;
    bool ok;

    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return false;
    f = fopen(path, "re");
    if (!f)
        return false;
    ok = fgets(line, (int)size, f) != NULL;
    fclose(f);
    return ok;
}

/* Whole CPUs, at least one; 0 for no limit. */
static uint32_t cpus_of(long long quota, long long period)
{
    if (quota <= 0 || period <= 0)
        return 0;
    return quota / period < 1 ? 1 : quota / period > MAX_CPUS ? MAX_CPUS : (uint32_t)(quota / period);
}

static uint32_t quota_v2(const char *folder)
{
    char line[128];
    long long quota, period;

    if (!read_line(folder, "cpu.max", line, sizeof line) ||
        sscanf(line, "%lld %lld", &quota, &period) != 2)
        return 0;                                   /* "max 100000" as well */
    return cpus_of(quota, period);
}

static uint32_t quota_v1(const char *folder)
{
    char quota[64], period[64];

    if (!read_line(folder, "cpu.cfs_quota_us", quota, sizeof quota) ||
        !read_line(folder, "cpu.cfs_period_us", period, sizeof period))
        return 0;
    return cpus_of(atoll(quota), atoll(period));
}

/* The tightest quota of a group and its parents. Inside a container the path
 * may be the host's and not exist here; then the root is what there is. */
static uint32_t tightest(const char *root, const char *group, uint32_t (*quota)(const char *))
{
    char folder[PATH_MAX];
    uint32_t best = 0;
    size_t base = strlen(root);

    if (snprintf(folder, sizeof folder, "%s%s", root, group) >= (int)sizeof folder)
        return 0;
    for (;;) {
        uint32_t n = quota(folder);
        char *slash;

        if (n && (!best || n < best))
            best = n;
        slash = strrchr(folder + base, '/');
        if (!slash)
            return best;
        *slash = '\0';
    }
}

/* True when the list "cpu,cpuacct" has "cpu" in it. */
static bool has_cpu(const char *list)
{
    for (const char *at = list; at; at = strchr(at, ','), at = at ? at + 1 : NULL)
        if (strcspn(at, ",") == 3 && memcmp(at, "cpu", 3) == 0)
            return true;
    return false;
}

uint32_t pool_cgroup_cpus(const char *membership, const char *root)
{
    char line[PATH_MAX], v1[PATH_MAX];
    uint32_t best = 0;
    FILE *f = fopen(membership, "re");

    if (!f)
        return 0;
    while (fgets(line, sizeof line, f)) {
        char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
        uint32_t n = 0;

        if (!path)
            continue;
        *list++ = *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        if (*list == '\0')
            n = tightest(root, path, quota_v2);
        else if (has_cpu(list) && snprintf(v1, sizeof v1, "%s/%s", root, list) < (int)sizeof v1)
            n = tightest(v1, path, quota_v1);
        if (n && (!best || n < best))
            best = n;
    }
    fclose(f);
    return best;
}

uint32_t pool_allowed(void)
{
    uint32_t n = affinity_cpus(), quota = pool_cgroup_cpus("/proc/self/cgroup", "/sys/fs/cgroup");

    if (quota && quota < n)
        n = quota;
    if (n > POOL_MAX_THREADS)
        n = POOL_MAX_THREADS;
    return n ? n : 1;
}
