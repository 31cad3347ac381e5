#include "gen/memory.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A model's file that was read twice is active: that cache goes as well when memory is short. */
struct names { const char *limit, *usage, *cache[2]; };

static const struct names v2 = { "memory.max", "memory.current", { "inactive_file", "active_file" } };
static const struct names v1 = { "memory.limit_in_bytes", "memory.usage_in_bytes",
                                 { "total_inactive_file", "total_active_file" } };

/* The number behind `key` in lines of "key number", or the first number of the
 * file when key is NULL; false when there is none ("max"). */
static bool read_number(const char *folder, const char *name, const char *key, uint64_t *ret)
{
    char path[PATH_MAX], line[256];
    bool found = false;
    FILE *f;

    if (snprintf(path, sizeof path, "%s%s%s", folder, name ? "/" : "", name ? name : "") >=
        (int)sizeof path)
        return false;
    f = fopen(path, "re");
    if (!f)
        return false;
    while (!found && fgets(line, sizeof line, f)) {
        size_t at = key ? strlen(key) : 0;
        char *end;

        if (key && (strncmp(line, key, at) != 0 || !strchr(": \t", line[at])))
            continue;
        at += strspn(line + at, ": \t");
        *ret = strtoull(line + at, &end, 10);
        found = end != line + at;
        if (!key)
            break;
    }
    fclose(f);
    return found;
}

static uint64_t room_of_group(const char *folder, const struct names *names)
{
    uint64_t limit, usage;

    if (!read_number(folder, names->limit, NULL, &limit) ||
        !read_number(folder, names->usage, NULL, &usage))
        return UINT64_MAX;
    for (size_t i = 0; i < 2; i++) {
        uint64_t cache = 0;

        read_number(folder, "memory.stat", names->cache[i], &cache);
        usage -= cache < usage ? cache : usage;
    }
    return usage < limit ? limit - usage : 0;
}

/* The least of a group and its parents. Inside a container the path may be
 * the host's and not exist here; then the root is what there is. */
static uint64_t room_of_groups(const char *root, const char *group, const struct names *names)
{
    uint64_t best = UINT64_MAX;
    char folder[PATH_MAX];
    size_t base = strlen(root);

    if (snprintf(folder, sizeof folder, "%s%s", root, group) >= (int)sizeof folder)
        return best;
    for (;;) {
        uint64_t room = room_of_group(folder, names);
        char *slash;

        best = room < best ? room : best;
        slash = strrchr(folder + base, '/');
        if (!slash)
            return best;
        *slash = '\0';
    }
}

uint64_t memory_room_of(const char *meminfo, const char *membership, const char *cgroups)
{
    char line[PATH_MAX], root[PATH_MAX];
    uint64_t best = UINT64_MAX, kb;
    FILE *f;

    if (read_number(meminfo, NULL, "MemAvailable", &kb) && kb <= UINT64_MAX / 1024)
        best = kb * 1024;
    f = fopen(membership, "re");
    while (f && fgets(line, sizeof line, f)) {
        char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
        uint64_t room = UINT64_MAX;

        if (!path)
            continue;
        *list++ = *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        if (!*list)
            room = room_of_groups(cgroups, path, &v2);
        else if (!strcmp(list, "memory") &&
                 snprintf(root, sizeof root, "%s/memory", cgroups) < (int)sizeof root)
            room = room_of_groups(root, path, &v1);
        best = room < best ? room : best;
    }
    if (f)
        fclose(f);
    return best;
}

uint64_t memory_room(void)
{
    return memory_room_of("/proc/meminfo", "/proc/self/cgroup", "/sys/fs/cgroup");
}
