/* models.c - `fastchat models`: a name a line. */
#include "cli/models.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/fetch.h"
#include "cli/service.h"
#include "cli/term.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { TIMEOUT_MS = 30000 };

/* /v1/models as text and tree. */
static int ask(const struct target *api, struct buf *ret_text, cJSON **ret, struct err *err)
{
    struct fetch f = {
        .target = api, .path = "/v1/models", .timeout_ms = TIMEOUT_MS, .interrupt_fd = -1
    };
    int r = fetch_run(&f, err);

    if (r == 0 && f.status != 200)
        r = fetch_refusal(&f, err);
    if (r == 0) {
        r = json_parse(buf_str(&f.answer), f.answer.len, NULL, ret, err);
        err_place(err, "%s: /v1/models", api->text);
    }
    if (r == 0 && ret_text) {
        *ret_text = f.answer;
        f.answer = (struct buf)BUF_INIT;
    }
    buf_fini(&f.answer);
    return r;
}

static const char *id_of(const cJSON *item)
{
    const char *id = NULL;

    json_get_string(item, "id", &id, NULL);
    return id;
}

int models_first(const struct target *api, char **ret, struct err *err)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    const cJSON *list = NULL;
    const char *id;
    int r = ask(api, NULL, &tree, err);

    if (r < 0)
        return r;
    json_get_array(tree, "data", &list, NULL);
    id = id_of(cJSON_GetArrayItem(list, 0));
    *ret = id ? strdup(id) : NULL;
    return id && !*ret ? err_set(err, -ENOMEM, "no memory") : 0;
}

static void print_names(const cJSON *tree)
{
    const cJSON *list = NULL, *item;

    json_get_array(tree, "data", &list, NULL);
    cJSON_ArrayForEach(item, list)
    {
        const char *id = id_of(item);

        if (!id)
            continue;
        term_write(id, strlen(id));
        putchar('\n');
    }
}

/* 0 when every model is loaded; -EAGAIN with the first that is not. */
static int check_ready(const cJSON *tree, struct err *err)
{
    const cJSON *list = NULL, *status, *item;

    json_get_array(tree, "data", &list, NULL);
    cJSON_ArrayForEach(item, list)
    {
        const char *id = id_of(item), *value = "unknown";

        status = NULL;
        json_get_object(item, "status", &status, NULL);
        json_get_string(status, "value", &value, NULL);
        if (strcmp(value, "loaded") != 0)
            return err_set(err, -EAGAIN, "%s: %s", id ? id : "?", value);
    }
    return 0;
}

int models_ready(const struct target *api, struct err *err)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    int r = ask(api, NULL, &tree, err);

    return r < 0 ? r : check_ready(tree, err);
}

bool models_has(const struct target *api, const char *name)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    const cJSON *list = NULL, *item;
    struct err ignored = { 0 };

    if (ask(api, NULL, &tree, &ignored) < 0)
        return false;
    json_get_array(tree, "data", &list, NULL);
    cJSON_ArrayForEach(item, list)
    {
        const char *id = id_of(item);

        if (id && strcmp(id, name) == 0)
            return true;
    }
    return false;
}

int models_run(const struct command *cmd, int argc, char **argv)
{
    struct service_args service = { 0 };
    CLEANUP(json_delete) cJSON *tree = NULL;
    BUF_LOCAL text = BUF_INIT;
    bool json = false, ready = false;
    struct target api;
    struct err err = { 0 };
    int r;
    const struct arg args[] = {
        ARG(api, &service.api),
        ARG(models_json, &json),
        ARG(ready, &ready),
        ARG(runtime_dir, &service.runtime_dir),
    };

    r = args_parse(cmd, args, sizeof args / sizeof args[0], argc, argv, NULL, 0);
    if (r != ARGS_RUN)
        return r;
    if (service_api(&service, &api, &err) < 0 || ask(&api, &text, &tree, &err) < 0)
        return service_failed(&err);
    if (ready) {
        if (check_ready(tree, &err) < 0) {
            term_error("%s", err_text(&err));
            return CLI_FAILED;
        }
    } else if (json)
        printf("%s\n", buf_str(&text));
    else
        print_names(tree);
    return CLI_DONE;
}
