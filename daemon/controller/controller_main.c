/* controller_main.c - the controller as a child of the supervisor. */
#include "daemon/controller/controller.h"

#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "daemon/child.h"
#include "daemon/roles.h"
#include "ipc/loop.h"

#include <errno.h>
#include <string.h>

struct app {
    struct child *child;
    struct controller *controller;
};

static void on_drained(void *user)
{
    struct app *app = user;

    loop_stop(child_loop(app->child), EXIT_DONE);
}

static void drain(uint64_t limit_ms, void *user)
{
    struct app *app = user;

    controller_drain(app->controller, on_drained, app);
}

static void stats(struct json_writer *w, void *user)
{
    struct app *app = user;

    json_kint(w, "workers", (int64_t)controller_workers(app->controller));
}

static void listen_anew(const char *name, int fd, void *user)
{
    struct app *app = user;
    struct err err = { 0 };

    if (controller_listen(app->controller, fd, strcmp(name, "controller.unix") == 0, &err) < 0) {
        log_error("%s: %s", name, err_text(&err));
        close(fd);
    }
}

static void say(int level, const char *text)
{
    log_at(level, "%s", text);
}

static int read_settings(const cJSON *settings, struct controller_config *ret, struct err *err)
{
    const char *dispatch = "shortest_queue";
    int64_t lease_ms = 90000, timeout_ms = 100000;

    if (json_get_string(settings, "dispatch", &dispatch, err) < 0 ||
        json_get_int(settings, "lease_ms", 1, INT32_MAX, &lease_ms, err) < 0 ||
        json_get_int(settings, "request_timeout_ms", 1, INT32_MAX, &timeout_ms, err) < 0)
        return -EINVAL;
    if (strcmp(dispatch, "shortest_queue") != 0 && strcmp(dispatch, "lottery") != 0)
        return err_set(err, -EINVAL,
                       "'dispatch' must be \"shortest_queue\" or \"lottery\", but is \"%s\"",
                       dispatch);
    *ret = (struct controller_config){
        .dispatch = strcmp(dispatch, "lottery") == 0 ? DISPATCH_LOTTERY : DISPATCH_SHORTEST_QUEUE,
        .lease_ms = (uint64_t)lease_ms,
        .request_timeout_ms = (uint64_t)timeout_ms,
        .log = say,
    };
    return 0;
}

static int reload(const cJSON *settings, void *user, struct err *err)
{
    struct app *app = user;
    struct controller_config config;
    int r = read_settings(settings, &config, err);

    if (r == 0)
        controller_configure(app->controller, &config);
    return r;
}

/* One socket of the supervisor's; a missing one is fine when it is optional. */
static int listen_on(struct app *app, const char *name, bool local, bool required, struct err *err)
{
    int fd = child_take_socket(app->child, name);

    if (fd < 0)
        return required ? err_set(err, -EINVAL, "the socket %s did not come", name) : 0;
    return controller_listen(app->controller, fd, local, err);
}

int controller_main(int argc, char **argv)
{
    struct app app = { 0 };
    struct controller_config config;
    struct err err = { 0 };
    int code = EXIT_FAILED;
    struct child_ops ops = { .drain = drain, .listen = listen_anew, .reload = reload, .stats = stats, .user = &app };

    if (child_open("controller", &ops, &app.child, &err) < 0) {
        log_error("%s", err_text(&err));
        return EXIT_FAILED;
    }
    if (read_settings(child_settings(app.child), &config, &err) < 0) {
        err_place(&err, "settings");
        code = EXIT_CONFIG;
    } else if (controller_open(child_loop(app.child), &config, &app.controller, &err) == 0 &&
               listen_on(&app, "controller.unix", true, true, &err) == 0 &&
               listen_on(&app, "controller.tcp", false, false, &err) == 0) {
        child_state(app.child, "ready", NULL);
        code = loop_run(child_loop(app.child));
    }
    if (err_is_set(&err)) {
        log_error("%s", err_text(&err));
        child_state(app.child, "failed", err_text(&err));
    }
    controller_close(app.controller);
    child_close(app.child);
    return code;
}
