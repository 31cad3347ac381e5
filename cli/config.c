/* config.c - `fastchat config check|dump|diff`: the configuration in force and the
 * one in the file.
 *
 * Whatever can be asked of the running service is: it reads files as its own user
 * and with its own environment, so its answer is the one that counts. A file
 * that is named, and a service that is down, are fastchatd's (--check-config,
 * --dump-config). libconfig stays with the daemon.
 */
#include "cli/commands.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "cli/daemon.h"
#include "cli/service.h"
#include "cli/term.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { TROUBLE = 2 };       /* diff(1)'s exit code where it cannot tell */

struct ask {
    struct service_args service;
    const char *file;       /* NULL: what the service reads */
    bool json;
};

static const char *text_of(const cJSON *obj, const char *key)
{
    const char *v = "";

    json_get_string(obj, key, &v, NULL);
    return v;
}

static int by_daemon(const char *what, const char *file)
{
    const char *const args[] = { what, "--config", file, NULL };
    struct err err = { 0 };
    int r = daemon_run(args, NULL, &err);

    if (r < 0)
        term_error("%s", err_text(&err));
    return r == 0 ? CLI_DONE : CLI_FAILED;
}

static void show(const struct buf *out)
{
    fwrite(buf_str(out), 1, out->len, stdout);
    fflush(stdout);
}

/* ---- check ---- */

/* Nobody there, or nobody who answers us: then the file is read here. */
static bool is_silent(int code)
{
    return code == -ENOENT || code == -ECONNREFUSED || code == -EACCES;
}

static int check(const struct ask *a)
{
    CLEANUP(json_delete) cJSON *plan = NULL;
    CLEANUP(mem_free) char *faults = NULL;
    struct err err = { 0 };
    BUF_LOCAL out = BUF_INIT;
    int r;

    if (a->file)
        return by_daemon("--check-config", a->file);
    r = service_ask(&a->service, "{\"command\":\"plan\"}", &plan, NULL, &faults, &err);
    if (is_silent(r))
        return by_daemon("--check-config", DAEMON_CONFIG);
    if (r < 0)
        return service_failed(&err);
    if (r == SERVICE_REFUSED || text_of(plan, "refused")[0]) {
        term_complain(faults ? faults : text_of(plan, "refused"));
        return CLI_FAILED;
    }
    term_put(&out, text_of(plan, "config"));
    buf_adds(&out, ": configuration is fine\n");
    show(&out);
    return CLI_DONE;
}

/* ---- dump ---- */

static int dump(const struct ask *a)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    CLEANUP(mem_free) char *refusal = NULL;
    struct err err = { 0 };
    const char *text;
    int r;

    if (a->file)
        return by_daemon("--dump-config", a->file);
    r = service_ask(&a->service, "{\"command\":\"config\"}", &tree, NULL, &refusal, &err);
    if (r < 0) {
        service_failed(&err);
        if (is_silent(r))
            fprintf(stderr, "'fastchat config dump FILE' shows the settings of a file.\n");
        return CLI_FAILED;
    }
    if (r == SERVICE_REFUSED) {
        term_complain(refusal);
        return CLI_FAILED;
    }
    text = text_of(tree, "text");
    term_write(text, strlen(text));
    return CLI_DONE;
}

/* ---- diff ---- */

/* "supervisor.drain_s", "model m: context" */
static void put_key(const cJSON *change, struct buf *out)
{
    const char *model = text_of(change, "model");

    if (model[0]) {
        buf_adds(out, "model ");
        term_put(out, model);
        buf_adds(out, ": ");
    } else {
        buf_printf(out, "%s.", text_of(change, "section"));
    }
    buf_adds(out, text_of(change, "key"));
}

static void put_value(const char *value, const char *paint, struct buf *out)
{
    buf_adds(out, paint);
    term_put(out, value[0] ? value : "not set");
    buf_adds(out, term_plain());
}

static void put_origin(const cJSON *change, struct buf *out)
{
    const char *file = text_of(change, "file");
    int64_t line = 0;

    if (!file[0])
        return;
    buf_adds(out, "    # ");
    term_put(out, file);
    if (json_get_int(change, "line", 1, INT32_MAX, &line, NULL) == 0)
        buf_printf(out, ":%d", (int)line);
}

static void put_change(const cJSON *change, struct buf *out)
{
    const char *was = text_of(change, "was"), *is = text_of(change, "is");

    if (text_of(change, "key")[0]) {
        put_key(change, out);
        buf_adds(out, ": ");
        put_value(was, term_red(), out);
        buf_adds(out, " → ");
        put_value(is, term_green(), out);
        put_origin(change, out);
    } else {
        const char *template = text_of(change, "template");

        buf_printf(out, "%s%s %s ", is[0] ? term_green() : term_red(), was[0] && is[0] ? "*" : is[0] ? "+" : "-",
                   template[0] ? "template" : "model");
        term_put(out, template[0] ? template : text_of(change, "model"));
        buf_adds(out, " (");
        term_put(out, is[0] ? is : was);
        buf_printf(out, ")%s", term_plain());
        if (is[0])
            put_origin(change, out);
    }
    buf_addc(out, '\n');
}

static void put_processes(const cJSON *list, struct buf *out)
{
    static const struct { const char *change, *means; } kinds[] = {
        { "tell", "running processes use the new settings" },
        { "start", "" },
        { "replace", "one at a time; running requests end first" },
        { "stop", "running requests end first" },
    };

    buf_printf(out, "\n%sa reload would%s\n", term_bold(), term_plain());
    if (cJSON_GetArraySize(list) == 0)
        buf_adds(out, "  leave all processes as they are\n");
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const cJSON *item;
        const char *sep = "";

        cJSON_ArrayForEach(item, list)
        {
            if (strcmp(text_of(item, "change"), kinds[i].change) != 0)
                continue;
            if (!sep[0])
                buf_printf(out, "  %-8s ", kinds[i].change);
            buf_adds(out, sep);
            term_put(out, text_of(item, "name"));
            sep = ", ";
        }
        if (sep[0])
            buf_printf(out, "%s%s%s\n", kinds[i].means[0] ? " (" : "", kinds[i].means, kinds[i].means[0] ? ")" : "");
    }
}

static int show_diff(const cJSON *plan)
{
    const cJSON *changes = NULL, *processes = NULL, *item;
    const char *refused = text_of(plan, "refused");
    BUF_LOCAL out = BUF_INIT;

    json_get_array(plan, "changes", &changes, NULL);
    json_get_array(plan, "processes", &processes, NULL);
    cJSON_ArrayForEach(item, changes) put_change(item, &out);
    if (cJSON_GetArraySize(changes) == 0) {
        buf_adds(&out, "the settings in force are those of ");
        term_put(&out, text_of(plan, "config"));
        buf_addc(&out, '\n');
    }
    if (refused[0]) {
        buf_printf(&out, "\n%sa reload would refuse this:%s ", term_bold(), term_plain());
        term_put(&out, refused);
        buf_addc(&out, '\n');
    } else if (cJSON_GetArraySize(changes) + cJSON_GetArraySize(processes) > 0) {
        put_processes(processes, &out);
    }
    show(&out);
    return cJSON_GetArraySize(changes) + cJSON_GetArraySize(processes) > 0 ? 1 : 0;
}

static void write_question(const char *file, struct buf *out)
{
    CLEANUP(mem_free) char *absolute = file ? realpath(file, NULL) : NULL;
    struct json_writer w = json_writer(out);

    json_open(&w, '{');
    json_kstr(&w, "command", "plan");
    if (file)
        json_kstr(&w, "file", absolute ? absolute : file);
    json_close(&w, '}');
}

static int diff(const struct ask *a)
{
    CLEANUP(json_delete) cJSON *plan = NULL;
    CLEANUP(mem_free) char *text = NULL;
    CLEANUP(mem_free) char *faults = NULL;
    BUF_LOCAL question = BUF_INIT;
    struct err err = { 0 };
    int r;

    write_question(a->file, &question);
    r = service_ask(&a->service, buf_str(&question), &plan, &text, &faults, &err);
    if (r < 0) {
        service_failed(&err);
        return TROUBLE;
    }
    if (r == SERVICE_REFUSED) {
        term_complain(faults);
        return TROUBLE;
    }
    if (a->json) {
        const cJSON *changes = NULL, *processes = NULL;

        json_get_array(plan, "changes", &changes, NULL);
        json_get_array(plan, "processes", &processes, NULL);
        printf("%s\n", text);
        return cJSON_GetArraySize(changes) + cJSON_GetArraySize(processes) > 0 ? 1 : 0;
    }
    return show_diff(plan);
}

int config_run(const struct command *cmd, int argc, char **argv)
{
    static const struct { const char *name; int (*fn)(const struct ask *); } actions[] = {
        { "check", check }, { "diff", diff }, { "dump", dump },
    };
    struct ask a = { 0 };
    const char *operands[2] = { NULL, NULL };
    int r;
    const struct arg args[] = {
        ARG(config_json, &a.json),
        ARG(runtime_dir, &a.service.runtime_dir),
    };

    r = args_parse(cmd, args, sizeof args / sizeof args[0], argc, argv, operands, 2);
    if (r != ARGS_RUN)
        return r;
    if (!operands[0])
        return args_mistake(cmd, "needs check, dump or diff");
    if (a.json && strcmp(operands[0], "diff") != 0)
        return args_mistake(cmd, "--json is for diff");
    a.file = operands[1];
    for (size_t i = 0; i < sizeof actions / sizeof actions[0]; i++)
        if (strcmp(operands[0], actions[i].name) == 0)
            return actions[i].fn(&a);
    return args_mistake(cmd, "'%s' is none of check, dump and diff", operands[0]);
}
