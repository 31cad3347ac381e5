#include "gen/memory.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char root[] = "/tmp/fastchat-memory-XXXXXX";

static const char *file(const char *name, const char *text)
{
    static char path[8][256];
    static int turn;
    char *p = path[turn++ % 8];
    FILE *f;

    snprintf(p, 256, "%s/%s", root, name);
    for (char *slash = strchr(p + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(p, 0700);
        *slash = '/';
    }
    f = fopen(p, "w");
    cr_assert(ne(ptr, f, NULL));
    fputs(text, f);
    fclose(f);
    return p;
}

static void setup(void) { cr_assert(ne(ptr, mkdtemp(root), NULL)); }

static void teardown(void)
{
    char command[300];

    snprintf(command, sizeof command, "rm -rf '%s'", root);
    cr_expect(zero(int, system(command)));
}

TestSuite(memory, .init = setup, .fini = teardown);

Test(memory, without_limits_it_is_what_the_kernel_says_is_available)
{
    const char *meminfo = file("meminfo", "MemTotal: 100 kB\nMemAvailable:   2000 kB\n");

    cr_expect(eq(u64, memory_room_of(meminfo, "/nonexistent", "/nonexistent"), 2048000));
    cr_expect(eq(u64, memory_room_of("/nonexistent", "/nonexistent", root), UINT64_MAX));
}

Test(memory, the_tightest_group_counts_and_page_cache_is_free)
{
    const char *meminfo = file("meminfo", "MemAvailable: 999999999 kB\n");
    const char *groups = file("groups", "1:cpu:/x\n0::/a/b\n");

    file("a/memory.max", "1000000\n");
    file("a/memory.current", "900000\n");
    file("a/memory.stat", "anon 5\nactive_file 7\ninactive_file 300000\n");
    file("a/b/memory.max", "max\n");
    file("a/b/memory.current", "5\n");
    cr_expect(eq(u64, memory_room_of(meminfo, groups, root), 400007));
}

Test(memory, groups_of_the_first_kind_count_too)
{
    const char *meminfo = file("meminfo", "MemAvailable: 999999999 kB\n");
    const char *groups = file("groups", "4:memory:/g\n0::/\n");

    file("memory/g/memory.limit_in_bytes", "5000\n");
    file("memory/g/memory.usage_in_bytes", "4000\n");
    cr_expect(eq(u64, memory_room_of(meminfo, groups, root), 1000));
    file("memory/g/memory.usage_in_bytes", "6000\n");
    cr_expect(eq(u64, memory_room_of(meminfo, groups, root), 0));
}

Test(memory, this_machine_has_some)
{
    cr_expect(gt(u64, memory_room(), 1 << 20));
}
