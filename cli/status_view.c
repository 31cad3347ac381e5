#include "cli/status_view.h"

#include "base/buf.h"
#include "base/json.h"
#include "cli/term.h"

#include <stdio.h>
#include <string.h>

enum column {
    CHILD, STATE, LOAD, SINCE, RESTARTS, MEMORY, RUNNING, QUEUE, PROMPT, GENERATED, WAIT, ENGINE, PID, N_COLUMNS,
};
enum { CELL = 160, GAP = 2 };

static const struct {
    const char *title;
    int weight; /* the smallest goes first where there is no room; 0: stays */
} columns[N_COLUMNS] = {
    [CHILD] = { "CHILD", 0 },        [STATE] = { "STATE", 0 },        [LOAD] = { "LOAD", 5 },
    [SINCE] = { "SINCE", 9 },        [RESTARTS] = { "RESTARTS", 10 }, [MEMORY] = { "MEMORY", 6 },
    [RUNNING] = { "RUNNING", 7 },    [QUEUE] = { "QUEUE", 11 },       [PROMPT] = { "PROMPT/S", 3 },
    [GENERATED] = { "TOKENS/S", 8 }, [WAIT] = { "WAIT", 4 },          [ENGINE] = { "ENGINE", 2 },
    [PID] = { "PID", 1 },
};

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

static void memory(int64_t kb, char *out, size_t size)
{
    if (kb < 0)
        snprintf(out, size, "-");
    else if (kb < 10240)
        snprintf(out, size, "%.1f MB", (double)kb / 1024);
    else if (kb < 10240 * 1024)
        snprintf(out, size, "%lld MB", (long long)(kb / 1024));
    else
        snprintf(out, size, "%.1f GB", (double)kb / 1048576);
}

static void rate(const cJSON *stats, const char *key, char *out)
{
    double v;

    if (json_get_number(stats, key, &v, NULL) != 0)
        snprintf(out, CELL, "-");
    else
        snprintf(out, CELL, v < 100 ? "%.1f" : "%.0f", v);
}

/* What requests wait: of late, or the one that waits now when that is longer. */
static void waiting_time(const cJSON *stats, char *out)
{
    int64_t ms = whole(stats, "wait_ms"), now = whole(stats, "oldest_wait_ms");

    if (now > ms)
        ms = now;
    if (ms < 0)
        snprintf(out, CELL, "-");
    else if (ms < 1000)
        snprintf(out, CELL, "%d ms", (int)ms);
    else if (ms < 60000)
        snprintf(out, CELL, "%.1f s", (double)ms / 1000);
    else
        span(ms / 1000, out, CELL);
}

/* "api", "api/1", "worker smollm2/0" */
static void name_of(const cJSON *child, char *out)
{
    const char *model = text_of(child, "model");
    int64_t replica = whole(child, "replica");

    if (model[0] && replica >= 0)
        snprintf(out, CELL, "%s %s/%lld", text_of(child, "role"), model, (long long)replica);
    else if (replica > 0)
        snprintf(out, CELL, "%s/%lld", text_of(child, "role"), (long long)replica);
    else
        snprintf(out, CELL, "%s%s%s", text_of(child, "role"), model[0] ? " " : "", model);
}

/* What the configuration says of its model; NULL: it has none. */
static const cJSON *model_of(const cJSON *tree, const cJSON *child)
{
    const cJSON *models = NULL, *model;
    const char *name = text_of(child, "model");

    json_get_array(tree, "models", &models, NULL);
    cJSON_ArrayForEach(model, models)
    {
        if (name[0] && strcmp(text_of(model, "name"), name) == 0)
            return model;
    }
    return NULL;
}

/* When its model is loaded: "always", "on demand", "manual". */
static const char *load_of(const cJSON *model)
{
    const char *load = model ? text_of(model, "load") : "";

    return strcmp(load, "on-demand") == 0 ? "on demand" : load[0] ? load : "-";
}

/* "140 MB of 512 MB" where there is a limit; "240 MB (99 MB shared)": other processes of the model have that too. */
static void memory_of(const cJSON *child, const cJSON *model, char *out)
{
    int64_t used = positive(child, "rss_kb"), most = model ? positive(model, "memory_max_mb") : -1;
    const int64_t shared = positive(child, "shared_kb");
    char part[32];
    size_t n;

    memory(used, out, CELL);
    n = strlen(out);
    if (used >= 0 && shared >= 1024) {
        memory(shared, part, sizeof part);
        n += (size_t)snprintf(out + n, CELL - n, " (%s shared)", part);
    }
    if (used < 0 || most < 0 || most > INT64_MAX / 1024)
        return;
    n += (size_t)snprintf(out + n, CELL - n, " of ");
    memory(most * 1024, out + n, CELL - n);
}

static void fill_row(const cJSON *tree, const cJSON *child, struct row *row)
{
    const cJSON *stats = NULL, *model = model_of(tree, child);
    const char *engine;

    json_get_object(child, "stats", &stats, NULL);
    engine = text_of(stats, "engine");
    name_of(child, row->cell[CHILD]);
    snprintf(row->cell[LOAD], CELL, "%s", load_of(model));
    snprintf(row->cell[STATE], CELL, "%s", text_of(child, "state"));
    span(whole(child, "since_s"), row->cell[SINCE], CELL);
    number(whole(child, "restarts"), row->cell[RESTARTS]);
    memory_of(child, model, row->cell[MEMORY]);
    number(whole(stats, "running"), row->cell[RUNNING]);
    number(whole(stats, "queue_length"), row->cell[QUEUE]);
    rate(stats, "prompt_per_s", row->cell[PROMPT]);
    rate(stats, "generated_per_s", row->cell[GENERATED]);
    waiting_time(stats, row->cell[WAIT]);
    snprintf(row->cell[ENGINE], CELL, "%s", engine[0] ? engine : "-");
    number(positive(child, "pid"), row->cell[PID]);
}

/* "", or the colour of a state that is not as it should be. */
static const char *colour_of(const char *state)
{
    if (strcmp(state, "failed") == 0)
        return term_red();
    return strcmp(state, "ready") == 0 || strcmp(state, "stopped") == 0 ? "" : term_yellow();
}

static void put_row(const struct row *row, const int *width, bool title, struct buf *out)
{
    int blanks = 0;

    for (int i = 0; i < N_COLUMNS; i++) {
        const char *text = row->cell[i], *paint = title ? term_bold() : i == STATE ? colour_of(text) : "";

        if (width[i] == 0)
            continue;
        buf_printf(out, "%*s%s", blanks, "", paint);
        term_put(out, text);
        buf_adds(out, paint[0] ? term_plain() : "");
        blanks = width[i] - (int)strlen(text) + GAP;
    }
    buf_addc(out, '\n');
}

/* Leaves out (width 0) what does not fit into `room` columns; 0: all does. */
static void fit(int *width, int room)
{
    for (int weight = 1; weight < N_COLUMNS && room > 0; weight++) {
        int sum = -GAP;

        for (int i = 0; i < N_COLUMNS; i++)
            sum += width[i] ? width[i] + GAP : 0;
        if (sum <= room)
            return;
        for (int i = 0; i < N_COLUMNS; i++)
            if (columns[i].weight == weight)
                width[i] = 0;
    }
}

/* The column is there where it tells models apart. */
static bool has_load(const struct row *rows, size_t n)
{
    for (size_t k = 1; k <= n; k++)
        if (strcmp(rows[k].cell[LOAD], "-") != 0 && strcmp(rows[k].cell[LOAD], "always") != 0)
            return true;
    return false;
}

static void put_children(const cJSON *tree, const cJSON *children, int room, struct buf *out)
{
    size_t n = (size_t)cJSON_GetArraySize(children);
    CLEANUP(mem_free) struct row *rows = calloc(n + 1, sizeof *rows);
    int width[N_COLUMNS] = { 0 };
    const cJSON *child;
    size_t at = 1;

    if (!rows)
        return;
    for (int i = 0; i < N_COLUMNS; i++)
        snprintf(rows[0].cell[i], CELL, "%s", columns[i].title);
    cJSON_ArrayForEach(child, children) fill_row(tree, child, &rows[at++]);
    for (size_t k = 0; k <= n; k++)
        for (int i = 0; i < N_COLUMNS; i++)
            if ((int)strlen(rows[k].cell[i]) > width[i])
                width[i] = (int)strlen(rows[k].cell[i]);
    if (!has_load(rows, n))
        width[LOAD] = 0;
    fit(width, room);
    for (size_t k = 0; k <= n; k++)
        put_row(&rows[k], width, k == 0, out);
}

/* ---- what is wrong ---- */

/* One line: the child, `text`, and the reason if there is one. */
static void put_about(const cJSON *child, const char *text, const char *reason, struct buf *out)
{
    BUF_LOCAL line = BUF_INIT;
    char name[CELL];

    name_of(child, name);
    buf_printf(&line, "  %s: %s%s%s\n", name, text, reason[0] ? ": " : "", reason);
    term_put(out, buf_str(&line));
}

static void heading(bool *done, const char *text, struct buf *out)
{
    if (!*done)
        buf_printf(out, "\n%s%s%s\n", term_bold(), text, term_plain());
    *done = true;
}

static bool in_order(const char *state)
{
    return strcmp(state, "ready") == 0 || strcmp(state, "stopped") == 0;
}

/* On its way, and nothing went wrong: what a start, a reload or a stop brings. */
static bool is_changing(const cJSON *child)
{
    const char *state = text_of(child, "state");

    return strcmp(state, "draining") == 0 || (strcmp(state, "loading") == 0 && !text_of(child, "reason")[0]);
}

/* "failed for 1 min, 11 restarts" */
static void describe(const cJSON *child, char *out, size_t size)
{
    int64_t restarts = whole(child, "restarts");
    char since[64], times[64] = "";

    span(whole(child, "since_s"), since, sizeof since);
    if (restarts > 0)
        snprintf(times, sizeof times, ", %lld restart%s", (long long)restarts, restarts == 1 ? "" : "s");
    snprintf(out, size, "%s for %s%s", text_of(child, "state"), since, times);
}

/* The failed ones first, then those that are tried again. */
static bool put_bad(const cJSON *children, struct buf *out)
{
    const cJSON *child;
    bool any = false;

    for (int failed = 1; failed >= 0; failed--)
        cJSON_ArrayForEach(child, children)
        {
            const char *state = text_of(child, "state");
            char text[CELL];

            if (in_order(state) || is_changing(child) || (strcmp(state, "failed") == 0) != failed)
                continue;
            heading(&any, "problems:", out);
            describe(child, text, sizeof text);
            put_about(child, text, text_of(child, "reason"), out);
        }
    return any;
}

static void put_changing(const cJSON *children, struct buf *out)
{
    const cJSON *child;
    bool any = false;

    cJSON_ArrayForEach(child, children)
    {
        const char *change = text_of(child, "change");
        char text[CELL];

        if (!is_changing(child))
            continue;
        heading(&any, "changing:", out);
        describe(child, text, sizeof text);
        put_about(child, text, strcmp(change, "taking over") == 0 ? "it takes another one's place when it is ready"
                  : strcmp(text_of(child, "state"), "draining") == 0 ? "its running requests end first" : "", out);
    }
}

static void put_restarted(const cJSON *children, struct buf *out)
{
    const cJSON *child;
    bool any = false;

    cJSON_ArrayForEach(child, children)
    {
        int64_t restarts = whole(child, "restarts");
        char text[CELL];

        if (restarts <= 0 || !in_order(text_of(child, "state")))
            continue;
        heading(&any, "restarted before:", out);
        snprintf(text, sizeof text, "%lld time%s, at last", (long long)restarts, restarts == 1 ? "" : "s");
        put_about(child, text, text_of(child, "last_reason"), out);
    }
}

static bool put_notes(const cJSON *tree, struct buf *out)
{
    const cJSON *list = NULL, *item;
    bool any = false;

    json_get_array(tree, "config_notes", &list, NULL);
    cJSON_ArrayForEach(item, list)
    {
        const char *text = cJSON_IsString(item) ? item->valuestring : "";

        heading(&any, "the configuration's notes:", out);
        buf_adds(out, "  ");
        term_put(out, text);
        buf_addc(out, '\n');
    }
    return any;
}

/* What to do where nothing is served; the folders are in the order in which models are looked for. */
static bool put_no_model(const cJSON *tree, struct buf *out)
{
    const cJSON *models = NULL, *folders = NULL, *folder;
    const char *before = "put a GGUF file into ";
    bool any = false;

    if (json_get_array(tree, "models", &models, NULL) != 0 || cJSON_GetArraySize(models) > 0)
        return false;
    heading(&any, "there is no model:", out);
    buf_adds(out, "  ");
    json_get_array(tree, "model_folders", &folders, NULL);
    cJSON_ArrayForEach(folder, folders)
    {
        buf_adds(out, before);
        term_put(out, cJSON_IsString(folder) ? folder->valuestring : "");
        before = " or ";
    }
    buf_printf(out, "%s'fastchat pull' one, or name one in ", cJSON_GetArraySize(folders) > 0 ? ", " : "");
    term_put(out, text_of(tree, "config"));
    buf_adds(out, "; then run 'fastchat reload'.\n  On Debian, the package fastchat-model-smollm2 brings a small one.\n");
    return true;
}

/* ---- the service ---- */

static void put_files(const cJSON *tree, struct buf *out)
{
    const cJSON *files = NULL, *item;
    const char *config = text_of(tree, "config");
    int n = 0;

    json_get_array(tree, "config_files", &files, NULL);
    buf_adds(out, "configuration ");
    term_put(out, config);
    cJSON_ArrayForEach(item, files)
    {
        const char *text = cJSON_IsString(item) ? item->valuestring : "", *slash = strrchr(text, '/');

        if (n++ == 0)
            continue; /* the file itself */
        buf_adds(out, n == 2 ? " with conf.d/" : ", ");
        text = slash ? slash + 1 : text;
        term_put(out, text);
    }
    buf_addc(out, '\n');
}

static void put_listeners(const cJSON *list, struct buf *out)
{
    const cJSON *item;
    const char *before = "listening on ";

    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsString(item))
            continue;
        buf_adds(out, before);
        term_put(out, item->valuestring);
        before = ", ";
    }
    if (cJSON_GetArraySize(list) > 0)
        buf_addc(out, '\n');
}

void status_view(const cJSON *tree, int room, struct buf *out)
{
    const cJSON *listeners = NULL, *children = NULL;
    char up[64];
    bool bad;

    json_get_array(tree, "listeners", &listeners, NULL);
    json_get_array(tree, "children", &children, NULL);
    span(whole(tree, "uptime_s"), up, sizeof up);
    buf_printf(out, "fastchat %s, process %lld, up %s\n", text_of(tree, "version"), (long long)whole(tree, "pid"), up);
    put_files(tree, out);
    put_listeners(listeners, out);
    buf_addc(out, '\n');
    put_children(tree, children, room, out);
    put_changing(children, out);
    bad = put_bad(children, out);
    bad |= put_no_model(tree, out);
    bad |= put_notes(tree, out);
    put_restarted(children, out);
    if (!bad)
        buf_adds(out, "\nno problems\n");
}

