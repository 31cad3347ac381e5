#include "daemon/supervisor/cpu_list.h"

#include "base/buf.h"
#include "base/err.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { WORD = 8 * sizeof(unsigned long), LINE = 65536 };

static bool has(const struct cpu_list *l, unsigned cpu)
{
    return l->bits[cpu / WORD] >> cpu % WORD & 1;
}

static const char *blanks(const char *at)
{
    return at + strspn(at, " \t");
}

/* One number; where it ends. NULL with a sentence. */
static const char *number(const char *at, unsigned *ret, struct err *err)
{
    unsigned long v = 0;

    at = blanks(at);
    if (!isdigit((unsigned char)*at)) {
        if (*at)
            err_set(err, -EINVAL, "a CPU's number is expected where \"%.20s\" stands", at);
        else
            err_set(err, -EINVAL, "a CPU's number is missing at the end");
        return NULL;
    }
    for (; isdigit((unsigned char)*at); at++) {
        v = v * 10 + (unsigned)(*at - '0');
        if (v >= CPU_LIST_MAX) {
            err_set(err, -EINVAL, "no machine has a CPU of a number above %d", CPU_LIST_MAX - 1);
            return NULL;
        }
    }
    *ret = (unsigned)v;
    return blanks(at);
}

int cpu_list_parse(const char *text, struct cpu_list *ret, struct err *err)
{
    struct cpu_list l = { 0 };
    const char *at = text;

    for (;;) {
        unsigned first, last;

        at = number(at, &first, err);
        last = first;
        if (at && *at == '-')
            at = number(at + 1, &last, err);
        if (!at)
            return -EINVAL;
        if (last < first)
            return err_set(err, -EINVAL, "%u-%u runs backwards", first, last);
        for (unsigned cpu = first; cpu <= last; cpu++)
            l.bits[cpu / WORD] |= 1ul << cpu % WORD;
        if (!*at)
            break;
        if (*at != ',')
            return err_set(err, -EINVAL, "\",\" is expected where \"%.20s\" stands", at);
        at++;
    }
    *ret = l;
    return 0;
}

int cpu_list_read(const char *path, struct cpu_list *ret)
{
    CLEANUP(mem_free) char *line = malloc(LINE);
    FILE *f = line ? fopen(path, "re") : NULL;
    int r;

    if (!f)
        return line ? -errno : -ENOMEM;
    r = fgets(line, LINE, f) ? 0 : -ENODATA;
    fclose(f);
    if (r)
        return r;
    line[strcspn(line, "\n")] = 0;
    if (*line)
        return cpu_list_parse(line, ret, NULL);
    *ret = (struct cpu_list){ 0 };      /* a node may have memory only */
    return 0;
}

void cpu_list_print(const struct cpu_list *l, struct buf *out)
{
    const char *sep = "";

    for (unsigned first = 0, last; first < CPU_LIST_MAX; first = last + 1) {
        last = first;
        if (!has(l, first))
            continue;
        while (last + 1 < CPU_LIST_MAX && has(l, last + 1))
            last++;
        buf_printf(out, "%s%u", sep, first);
        if (last > first)
            buf_printf(out, "-%u", last);
        sep = ",";
    }
}

bool cpu_list_is_empty(const struct cpu_list *l)
{
    return memcmp(l, &(struct cpu_list){ 0 }, sizeof *l) == 0;
}

struct cpu_list cpu_list_and(const struct cpu_list *l, const struct cpu_list *other)
{
    struct cpu_list both;

    for (size_t i = 0; i < CPU_LIST_WORDS; i++)
        both.bits[i] = l->bits[i] & other->bits[i];
    return both;
}

struct cpu_list cpu_list_without(const struct cpu_list *l, const struct cpu_list *other)
{
    struct cpu_list rest;

    for (size_t i = 0; i < CPU_LIST_WORDS; i++)
        rest.bits[i] = l->bits[i] & ~other->bits[i];
    return rest;
}

int cpu_list_online(struct cpu_list *ret)
{
    return cpu_list_read("/sys/devices/system/cpu/online", ret);
}

int cpu_list_of_node(int node, struct cpu_list *ret)
{
    char path[80];

    if (node == 0 && access("/sys/devices/system/node/online", F_OK) < 0)
        return cpu_list_online(ret);
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", node);
    return cpu_list_read(path, ret);
}
