/* Reload, load and unload, with children that do as their names say. */
#include "service.h"

TestSuite(supervisor_change, .init = config_folder_make, .fini = config_folder_remove, .timeout = 280);

static void write_config(const char *text)
{
    config_write_text("fastchat.conf", text);
}

/* The answer to a command: its type, and its message in `text`. */
static int command(const char *json, struct buf *text)
{
    static struct control_frame f;
    struct err err = { 0 };
    cJSON *tree = NULL;
    struct pollfd p = { .fd = service_connect(), .events = POLLIN };
    char *copy = NULL;
    size_t len;

    buf_clear(text);
    cr_assert(zero(int, control_send_json(p.fd, CONTROL_COMMAND, json)));
    cr_assert(poll(&p, 1, CEILING_MS) == 1);
    cr_assert(zero(int, control_recv(p.fd, &f, &err)), "%s", err_text(&err));
    if (f.n_fds)
        cr_assert(zero(int, control_read_memfd(f.fds[0], &copy, &len, &err)), "%s", err_text(&err));
    cr_assert(zero(int, json_parse(copy ? copy : f.payload, copy ? len : f.len, NULL, &tree, &err)), "%s", err_text(&err));
    buf_adds(text, status_text(tree, "message"));
    cJSON_Delete(tree);
    free(copy);
    control_close_fds(&f);
    close(p.fd);
    return f.type;
}

Test(supervisor_change, a_child_that_refuses_new_settings_is_replaced)
{
    BUF_LOCAL text = BUF_INIT;
    struct service s;
    int before;

    service_start(&s, SERVICE("", WORKER("picky") "," WORKER("ready")));
    service_up(&s, "worker picky/0 is ready");
    service_up(&s, "worker ready/0 is ready");
    before = status_number(status_child(service_status(), "ready"), "pid");
    write_config(SERVICE("log_level = \"debug\"; ", WORKER("picky") "," WORKER("ready")));
    cr_expect(eq(int, command("{\"command\":\"reload\"}", &text), CONTROL_REPLY), "%s", buf_str(&text));
    service_wait(&s, "worker picky/0 can not take its new settings as it runs: not these");
    service_wait(&s, "worker picky/0 (pid");
    service_wait(&s, "has stopped");
    cr_expect(eq(int, status_number(status_child(service_status(), "ready"), "pid"), before));
    cr_expect(eq(int, service_stop(&s), 0));
    cr_expect(service_said(&s, "fake ready/0: reloads"));
    service_free(&s);
}

Test(supervisor_change, a_reload_while_the_controller_drains_makes_another_one)
{
    BUF_LOCAL text = BUF_INIT;
    struct service s;

    setenv("FAKE_CONTROLLER", "stubborn", 1);
    service_start(&s, SERVICE("replace_s = 1; drain_s = 1; stop_s = 1; ", WORKER("ready")));
    service_up(&s, "controller is ready");
    write_config(SERVICE("replace_s = 1; drain_s = 1; stop_s = 1; heartbeat_ms = 900; ", WORKER("ready")));
    kill(s.pid, SIGHUP);
    service_wait(&s, "controller drains: another one takes its place then");
    write_config(SERVICE("replace_s = 1; drain_s = 1; stop_s = 1; heartbeat_ms = 800; ", WORKER("ready")));
    cr_expect(eq(int, command("{\"command\":\"reload\"}", &text), CONTROL_REPLY), "%s", buf_str(&text));
    cr_expect(eq(str, (char *)status_text(status_child(service_status(), "controller"), "state"), "ready"));
    cr_expect(eq(int, service_stop(&s), 0));
    service_free(&s);
}

Test(supervisor_change, an_heir_that_fails_leaves_its_forerunner_and_is_told)
{
    BUF_LOCAL text = BUF_INIT;
    struct service s;
    char mark[128];

    /* "once" is ready the first time and fails ever after. */
    snprintf(mark, sizeof mark, "%s/once", config_folder);
    setenv("FAKE_ONCE", mark, 1);
    service_start(&s, SERVICE("restart_budget = 0; ", WORKER("once")));
    service_up(&s, "worker once/0 is ready");
    write_config(SERVICE("restart_budget = 0; heartbeat_ms = 900; ", WORKER("once")));
    cr_expect(eq(int, command("{\"command\":\"reload\"}", &text), CONTROL_ERROR));
    cr_expect(strstr(buf_str(&text), "worker once/0 goes on as it is: the one that was to take its place failed: ended with exit code 1") != NULL, "%s", buf_str(&text));
    cr_expect(eq(str, (char *)status_text(status_child(service_status(), "once"), "state"), "ready"));
    cr_expect(eq(int, service_stop(&s), 0));
    service_free(&s);
}

Test(supervisor_change, a_request_for_a_model_on_demand_starts_it)
{
    struct service s;

    setenv("FAKE_API", "want", 1);
    service_start(&s, SERVICE("", "{ name = \"ready.lazy\"; path = \"m.gguf\"; load = \"on-demand\"; }," WORKER("ready")));
    service_up(&s, "worker ready.lazy/0 is ready");
    cr_expect(eq(int, service_stop(&s), 0));
    service_free(&s);
}

Test(supervisor_change, a_worker_that_wants_a_model_is_killed)
{
    struct service s;

    service_start(&s, SERVICE("", WORKER("want")));
    service_up(&s, "WANT needs a model, and comes from the api");
    cr_expect(eq(int, service_stop(&s), 0));
    service_free(&s);
}

Test(supervisor_change, load_and_unload_answer_when_it_is_done)
{
    BUF_LOCAL text = BUF_INIT;
    struct service s;

    service_start(&s, SERVICE("restart_budget = 0; ", "{ name = \"ready.m\"; path = \"m.gguf\"; load = \"manual\"; replicas = 2; aliases = ( \"a\", \"b\" ); },"
                                                      "{ name = \"fail-78\"; path = \"m.gguf\"; load = \"manual\"; }"));
    service_up(&s, NULL);
    cr_expect(eq(int, command("{\"command\":\"load\",\"model\":\"ready.m\"}", &text), CONTROL_REPLY));
    cr_expect(eq(str, (char *)buf_str(&text), "ready.m is loaded"));
    cr_expect(eq(int, command("{\"command\":\"unload\",\"model\":\"ready.m\"}", &text), CONTROL_REPLY));
    cr_expect(eq(str, (char *)status_text(status_child(service_status(), "ready.m"), "state"), "stopped"));
    cr_expect(eq(int, command("{\"command\":\"load\",\"model\":\"b\"}", &text), CONTROL_REPLY));
    cr_expect(eq(str, (char *)buf_str(&text), "ready.m is loaded"));
    cr_expect(eq(int, command("{\"command\":\"load\",\"model\":\"fail-78\"}", &text), CONTROL_ERROR));
    cr_expect(eq(str, (char *)buf_str(&text), "worker fail-78/0: the model is no model"));
    cr_expect(eq(int, command("{\"command\":\"unload\",\"model\":\"fail-78\"}", &text), CONTROL_REPLY));
    cr_expect(eq(str, (char *)status_text(status_child(service_status(), "fail-78"), "state"), "stopped"));
    cr_expect(eq(int, service_stop(&s), 0));
    service_free(&s);
}

Test(supervisor_change, one_that_was_unloaded_and_then_had_no_room_starts_after_a_reload_that_gives_it)
{
    BUF_LOCAL text = BUF_INIT;
    struct service s;

    service_start(&s, SERVICE("memory_mb = 1; ", WORKER("ready.m")));       /* nobody knows yet what it takes */
    service_up(&s, "worker ready.m/0 is ready");
    cr_expect(eq(int, command("{\"command\":\"unload\",\"model\":\"ready.m\"}", &text), CONTROL_REPLY));
    cr_expect(eq(int, command("{\"command\":\"load\",\"model\":\"ready.m\"}", &text), CONTROL_ERROR));
    cr_expect(strstr(buf_str(&text), " MB, and the models that stay loaded leave 1 MB of supervisor.memory_mb") != NULL, "%s", buf_str(&text));
    write_config(SERVICE("", WORKER("ready.m")));
    cr_expect(eq(int, command("{\"command\":\"reload\"}", &text), CONTROL_REPLY), "%s", buf_str(&text));
    cr_expect(eq(str, (char *)status_text(status_child(service_status(), "ready.m"), "state"), "ready"));
    cr_expect(eq(int, service_stop(&s), 0));
    service_free(&s);
}

Test(supervisor_change, commands_that_make_no_sense_are_refused)
{
    static const struct { const char *json, *want; } cases[] = {
        { "{\"command\":\"dance\"}", "unknown command" },
        { "{}", "unknown command" },
        { "{\"command\":7}", "'command' must be a string" },
        { "{\"command\":\"load\"}", "needs the name of a model" },
        { "{\"command\":\"load\",\"model\":\"nobody\"}", "there is no model 'nobody'" },
        { "{\"command\":\"unload\",\"model\":\"nobody\"}", "there is no model 'nobody'" },
        { "{\"command\":\"load\",\"model\":[]}", "'model' must be a string" },
        { "{\"command\":", "byte" },
    };
    BUF_LOCAL text = BUF_INIT;
    struct service s;

    service_start(&s, SERVICE("", WORKER("ready")));
    service_up(&s, "worker ready/0 is ready");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_expect(eq(int, command(cases[i].json, &text), CONTROL_ERROR), "%s", cases[i].json);
        cr_expect(strstr(buf_str(&text), cases[i].want) != NULL, "%s: %s", cases[i].json, buf_str(&text));
    }
    cr_expect(eq(int, service_stop(&s), 0));
    service_free(&s);
}
