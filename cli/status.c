/* status.c - `fastchat status`: what runs, on one screen. */
#include "cli/commands.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "cli/service.h"
#include "cli/term.h"

#include <stdio.h>
#include <string.h>

enum { N_COLUMNS = 8, CELL = 128 };

static const char *const titles[N_COLUMNS] = { "CHILD",    "PID",    "STATE", "SINCE",
                                               "RESTARTS", "MEMORY", "QUEUE", "REASON" };

struct row {
    char cell[N_COLUMNS][CELL];
};

static int64_t whole(const cJSON *obj, const char *key)
{
    int64_t v = -1;

    json_get_int(obj, key, 0, INT64_MAX / 2, &v, NULL);
    return v;
}

/* A child that does not run has a process and a memory of 0. */
static int64_t positive(const cJSON *obj, const char *key)
{
    int64_t v = whole(obj, key);

    return v > 0 ? v : -1;
}

static const char *text_of(const cJSON *obj, const char *key)
{
    const char *v = "";

    json_get_string(obj, key, &v, NULL);
    return v;
}

/* "3 h 2 min": the two largest units. */
static void span(int64_t s, char *out, size_t size)
{
    if (s < 0)
        snprintf(out, size, "-");
    else if (s < 60)
        snprintf(out, size, "%d s", (int)s);
    else if (s < 3600)
        snprintf(out, size, "%d min", (int)(s / 60));
    else if (s < 86400)
        snprintf(out, size, "%d h %d min", (int)(s / 3600), (int)(s % 3600 / 60));
    else
        snprintf(out, size, "%lld d %d h", (long long)(s / 86400), (int)(s % 86400 / 3600));
}

static void number(int64_t v, char *out)
{
    if (v < 0)
        snprintf(out, CELL, "-");
    else
        snprintf(out, CELL, "%lld", (long long)v);
}

static void memory(int64_t kb, char *out)
{
    if (kb < 0)
        snprintf(out, CELL, "-");
    else if (kb < 10240)
        snprintf(out, CELL, "%.1f MB", (double)kb / 1024);
    else if (kb < 10240 * 1024)
        snprintf(out, CELL, "%lld MB", (long long)(kb / 1024));
    else
        snprintf(out, CELL, "%.1f GB", (double)kb / 1048576);
}

static void fill_row(const cJSON *child, struct row *row)
{
    const cJSON *stats = NULL;
    const char *model = text_of(child, "model");
    int64_t replica = whole(child, "replica");

    json_get_object(child, "stats", &stats, NULL);
    if (model[0] && replica >= 0)
        snprintf(row->cell[0], CELL, "%s %s/%lld", text_of(child, "role"), model,
                 (long long)replica);
    else
        snprintf(row->cell[0], CELL, "%s%s%s", text_of(child, "role"), model[0] ? " " : "", model);
    number(positive(child, "pid"), row->cell[1]);
    snprintf(row->cell[2], CELL, "%s", text_of(child, "state"));
    span(whole(child, "since_s"), row->cell[3], CELL);
    number(whole(child, "restarts"), row->cell[4]);
    memory(positive(child, "rss_kb"), row->cell[5]);
    number(whole(stats, "queue_length"), row->cell[6]);
    snprintf(row->cell[7], CELL, "%s", text_of(child, "reason"));
}

static void print_row(const struct row *row, const int *width)
{
    BUF_LOCAL line = BUF_INIT;

    for (int i = 0; i < N_COLUMNS - 1; i++)
        buf_printf(&line, "%-*s  ", width[i], row->cell[i]);
    buf_adds(&line, row->cell[N_COLUMNS - 1]);
    while (line.len && line.data[line.len - 1] == ' ')
        line.len--;
    buf_addc(&line, '\n');
    term_write(buf_str(&line), line.len);
}

static void print_children(const cJSON *children)
{
    size_t n = (size_t)cJSON_GetArraySize(children);
    CLEANUP(mem_free) struct row *rows = calloc(n + 1, sizeof *rows);
    int width[N_COLUMNS] = { 0 };
    const cJSON *child;
    size_t at = 1;

    if (!rows)
        return;
    for (int i = 0; i < N_COLUMNS; i++)
        snprintf(rows[0].cell[i], CELL, "%s", titles[i]);
    cJSON_ArrayForEach(child, children) fill_row(child, &rows[at++]);
    for (size_t k = 0; k <= n; k++)
        for (int i = 0; i < N_COLUMNS; i++)
            if ((int)strlen(rows[k].cell[i]) > width[i])
                width[i] = (int)strlen(rows[k].cell[i]);
    for (size_t k = 0; k <= n; k++) {
        if (k == 0)
            printf("%s", term_bold());
        print_row(&rows[k], width);
        if (k == 0)
            printf("%s", term_plain());
    }
}

static void print_listeners(const cJSON *list)
{
    const cJSON *item;
    const char *before = "listening on ";

    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsString(item))
            continue;
        printf("%s%s", before, item->valuestring);
        before = ", ";
    }
    if (cJSON_GetArraySize(list) > 0)
        putchar('\n');
}

static void print_status(const cJSON *tree)
{
    const cJSON *listeners = NULL, *children = NULL;
    char up[64];

    json_get_array(tree, "listeners", &listeners, NULL);
    json_get_array(tree, "children", &children, NULL);
    span(whole(tree, "uptime_s"), up, sizeof up);
    printf("fastchat %s, process %lld, up %s, %s\n", text_of(tree, "version"),
           (long long)whole(tree, "pid"), up, text_of(tree, "config"));
    print_listeners(listeners);
    putchar('\n');
    print_children(children);
}

int status_run(const struct command *cmd, int argc, char **argv)
{
    struct service_args service = { 0 };
    CLEANUP(json_delete) cJSON *tree = NULL;
    CLEANUP(mem_free) char *text = NULL;
    bool json = false;
    struct err err = { 0 };
    int r;
    const struct arg args[] = {
        { "json", ARG_FLAG, &json, NULL, "the supervisor's answer as it came" },
        SERVICE_ARG_RUNTIME(service),
    };

    r = args_parse(cmd, args, sizeof args / sizeof args[0], argc, argv, NULL, 0);
    if (r != ARGS_RUN)
        return r;
    if (service_status(&service, &tree, &text, &err) < 0)
        return service_failed(&err);
    if (json)
        printf("%s\n", text);
    else
        print_status(tree);
    return CLI_DONE;
}
