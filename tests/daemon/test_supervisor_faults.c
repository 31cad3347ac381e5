/* What happens when children misbehave: each fault alone, with the others
 * looked at too. */
#include "service.h"

#include <dirent.h>

TestSuite(supervisor_faults, .init = config_folder_make, .fini = config_folder_remove, .timeout = 280);

/* Limits that a slow machine under load keeps, too. */
#define ALIVE "heartbeat_ms = 20; "
#define STRICT "heartbeat_ms = 20; heartbeat_limit_ms = 3000; "

static int child_pid(const char *name)
{
    cJSON *status = service_status();
    int pid = status_number(status_child(status, name), "pid");

    cJSON_Delete(status);
    return pid;
}

Test(supervisor_faults, a_crash_loop_waits_longer_each_time_and_ends_in_failed)
{
    struct service s;
    double before = 0;
    cJSON *status;
    const cJSON *child;

    service_start(&s, SERVICE("restart_budget = 5; ", WORKER("exit-7") "," WORKER("ready")));
    service_wait(&s, "worker ready/0 is ready");
    s.seen = 0;
    for (int i = 0; i < 5; i++) {       /* 4, 8, 16, 32, 64 ms, less up to a half */
        double full = 0.004 * (1 << i), delay;
        const char *at = service_wait(&s, "worker exit-7/0 starts again in ");

        delay = atof(at + strlen("worker exit-7/0 starts again in "));
        cr_expect(delay >= full / 2 - 0.001 && delay <= full + 0.001, "%g, full %g", delay, full);
        cr_expect(delay >= before / 2);
        before = delay;
    }
    service_wait(&s, "worker exit-7/0 is failed and will not be started again: ended with exit code 7");
    status = service_status();
    child = status_child(status, "exit-7");
    cr_expect(eq(str, (char *)status_text(child, "state"), "failed"));
    cr_expect(eq(str, (char *)status_text(child, "reason"), "ended with exit code 7"));
    cr_expect(eq(int, status_number(child, "restarts"), 5));
    cr_expect(eq(str, (char *)status_text(child, "last_reason"), (char *)status_text(child, "reason")));
    cr_expect(eq(int, status_number(child, "pid"), 0));
    cr_expect(eq(str, (char *)status_text(status_child(status, "ready"), "state"), "ready"));
    cJSON_Delete(status);
    cr_expect(eq(int, service_stop(&s), 0));
    cr_expect(not(service_said(&s, "restart 6")));
    service_free(&s);
}

Test(supervisor_faults, exit_78_is_failed_at_once)
{
    struct service s;

    service_start(&s, SERVICE("", WORKER("exit-78") "," WORKER("fail-78")));
    service_up(&s, NULL);
    s.seen = 0;
    service_wait(&s, "worker exit-78/0 is failed and will not be started again: cannot work with this configuration");
    s.seen = 0;
    service_wait(&s, "worker fail-78/0 is failed and will not be started again: the model is no model");
    cr_expect(eq(int, service_stop(&s), 0));
    cr_expect(not(service_said(&s, "starts again")));
    service_free(&s);
}

Test(supervisor_faults, what_a_child_says_of_a_failure_that_may_pass_is_kept_while_it_is_tried_again)
{
    struct service s;
    cJSON *status;

    service_start(&s, SERVICE("restart_budget = 1; ", WORKER("fail-1")));
    service_wait(&s, "fake api: models [{\"name\":\"fail-1\",\"replica\":0,\"state\":\"loading\","
                     "\"reason\":\"the model is no model\",\"restarts\":");
    service_wait(&s, "worker fail-1/0 is failed and will not be started again: the model is no model");
    status = service_status();
    cr_expect(eq(str, (char *)status_text(status_child(status, "fail-1"), "reason"), "the model is no model"));
    cr_expect(eq(str, (char *)status_text(status_child(status, "fail-1"), "last_reason"), "the model is no model"));
    cJSON_Delete(status);
    cr_expect(eq(int, service_stop(&s), 0));
    service_free(&s);
}

Test(supervisor_faults, the_others_hear_why_a_model_is_failed)
{
    struct service s;

    service_start(&s, SERVICE("", WORKER("fail-78") "," WORKER("ready")));
    service_wait(&s, "fake api: models [{\"name\":\"fail-78\",\"replica\":0,\"state\":\"failed\","
                     "\"reason\":\"the model is no model\",\"restarts\":0,");
    s.seen = 0;
    service_wait(&s, "fake controller: models [{\"name\":\"fail-78\",\"replica\":0,\"state\":\"failed\"");
    s.seen = 0;
    service_wait(&s, "{\"name\":\"ready\",\"replica\":0,\"state\":\"ready\",\"reason\":\"\",\"restarts\":0,");
    cr_expect(eq(int, service_stop(&s), 0));
    service_free(&s);
}

Test(supervisor_faults, a_killed_child_comes_back_and_the_others_stay)
{
    struct service s;
    int worker, api;

    service_start(&s, SERVICE(ALIVE, WORKER("ready")));
    service_up(&s, "worker ready/0 is ready");
    worker = child_pid("ready");
    api = child_pid("api");
    kill(worker, SIGKILL);
    service_wait(&s, "is down: was ended by signal 9 (SIGKILL)");
    service_wait(&s, "worker ready/0 is ready");
    cr_expect(ne(int, child_pid("ready"), worker));
    cr_expect(eq(int, child_pid("api"), api));
    kill(api, SIGUSR1);
    service_wait(&s, "is down: was ended by signal 10 (SIGUSR1)");
    service_wait(&s, "api is ready");
    cr_expect(eq(int, service_stop(&s), 0));
    service_free(&s);
}

Test(supervisor_faults, a_stopped_child_is_replaced)
{
    struct service s;

    service_start(&s, SERVICE(STRICT, WORKER("ready")));
    service_up(&s, "worker ready/0 is ready");
    kill(child_pid("ready"), SIGSTOP);
    service_wait(&s, "is killed: it gave no sign of life in time");
    service_wait(&s, "worker ready/0 is ready");
    cr_expect(eq(int, service_stop(&s), 0));
    service_free(&s);
}

Test(supervisor_faults, silence_is_an_end_but_announced_work_is_not)
{
    struct service s;

    service_start(&s, SERVICE(STRICT "restart_budget = 1; ", WORKER("busy") "," WORKER("silent")));
    service_wait(&s, "worker silent/0 is failed");      /* two limits later */
    cr_expect(not(service_said(&s, "worker busy/0 starts again")), "%s", buf_str(&s.text));
    cr_expect(eq(int, service_stop(&s), 0));
    service_free(&s);
}

Test(supervisor_faults, a_child_that_never_begins_is_killed)
{
    struct service s;

    service_start(&s, SERVICE("start_s = 1; restart_budget = 1; ", WORKER("mute") "," WORKER("ready")));
    service_wait(&s, "worker mute/0 is failed and will not be started again: gave no sign of life within 1.0 s of its start");
    cr_expect(eq(int, service_stop(&s), 0));
    service_free(&s);
}

Test(supervisor_faults, something_wrong_ends_its_sender_and_nobody_else)
{
    static const char *const names[] = { "garbage", "strange", "badjson", "badbusy", "hello", "junk", "fds", "unsealed", "noweights" };
    static const char *const reasons[] = {
        "sent something wrong: control frame: 8 bytes are no header",
        "sent something wrong: a child cannot send frames of type 20",
        "sent something wrong: byte ",
        "sent something wrong: 'busy_ms' must be",
        "sent something wrong: HELLO came twice",
        "sent something wrong: a frame of type 2 came before HELLO",
        "sent something wrong: a frame of type 3 brought descriptors",
        "sent something wrong: packed weights must come in a sealed memory file",
        "sent something wrong: packed weights are one descriptor, and come from a worker",
    };
    struct service s;

    service_start(&s, SERVICE(ALIVE "restart_budget = 1; ",
        WORKER("garbage") "," WORKER("strange") "," WORKER("badjson") "," WORKER("badbusy") ","
        WORKER("hello") "," WORKER("junk") "," WORKER("fds") "," WORKER("unsealed") "," WORKER("noweights") "," WORKER("ready")));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char want[256];

        s.seen = 0;
        snprintf(want, sizeof want, "worker %s/0 is failed and will not be started again: %s", names[i], reasons[i]);
        service_wait(&s, want);
    }
    cr_expect(not(service_said(&s, "worker ready/0 starts again")));
    cr_expect(not(service_said(&s, "api starts again")));
    cr_expect(not(service_said(&s, "controller starts again")));
    cr_expect(eq(int, service_stop(&s), 0));
    service_free(&s);
}

Test(supervisor_faults, a_child_that_closes_its_channel_is_replaced)
{
    struct service s;

    service_start(&s, SERVICE(STRICT "restart_budget = 1; ", WORKER("closed")));
    service_wait(&s, "worker closed/0 is failed");
    cr_expect(eq(int, service_stop(&s), 0));
    service_free(&s);
}

Test(supervisor_faults, a_child_that_sends_an_empty_packet_is_replaced_though_it_beats)
{
    struct service s;

    service_start(&s, SERVICE(STRICT "restart_budget = 1; ", WORKER("empty")));
    service_wait(&s, "worker empty/0 is failed");
    cr_expect(eq(int, service_stop(&s), 0));
    service_free(&s);
}

static void wait_gone(int pidfd)
{
    struct pollfd p = { .fd = pidfd, .events = POLLIN };

    cr_assert(poll(&p, 1, CEILING_MS) == 1);
    close(pidfd);
}

Test(supervisor_faults, what_a_child_started_ends_with_it)
{
    struct service s;
    int grandchild;

    service_start(&s, SERVICE(ALIVE, WORKER("parent")));
    grandchild = pidfd_of(service_wait_number(&s, "grandchild "));
    cr_assert(ge(int, grandchild, 0));
    service_up(&s, NULL);
    kill(child_pid("parent"), SIGKILL);
    wait_gone(grandchild);
    cr_expect(eq(int, service_stop(&s), 0));
    service_free(&s);
}

Test(supervisor_faults, children_die_with_a_killed_supervisor)
{
    struct service s;
    int fds[3];

    service_start(&s, SERVICE("", WORKER("silent")));
    service_up(&s, "worker silent/0 is ready");
    fds[0] = pidfd_of(child_pid("silent"));
    fds[1] = pidfd_of(child_pid("api"));
    fds[2] = pidfd_of(child_pid("controller"));
    kill(s.pid, SIGKILL);
    for (int i = 0; i < 3; i++)
        wait_gone(fds[i]);
    service_free(&s);
}

static int count_fds(pid_t pid)
{
    char path[64];
    int n = 0;
    DIR *d;

    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    d = opendir(path);
    cr_assert(d != NULL);
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static int count_children(pid_t pid)
{
    char path[64];
    int n = 0, one;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)pid, (int)pid);
    f = fopen(path, "r");
    cr_assert(f != NULL);
    while (fscanf(f, "%d", &one) == 1)
        n++;
    fclose(f);
    return n;
}

/* Waits until the supervisor has done with all that came before, an answer's
 * memory file included. */
static void settle(int ask)
{
    static struct control_frame f;

    cr_assert(zero(int, service_ask(ask, CONTROL_RELOAD, &f)));
    cr_assert(eq(int, f.type, CONTROL_ERROR));
}

/* One connection asks all along, so that nobody comes or goes but the worker. */
Test(supervisor_faults, twenty_restarts_leave_no_zombie_and_no_descriptor)
{
    struct service s;
    int fds, ask;

    service_start(&s, SERVICE(ALIVE "restart_budget = 100; ", WORKER("ready")));
    service_up(&s, "worker ready/0 is ready");
    ask = service_connect();
    settle(ask);
    fds = count_fds(s.pid);
    for (int i = 0; i < 20; i++) {
        cJSON *status = service_status_on(ask);

        kill(status_number(status_child(status, "ready"), "pid"), SIGKILL);
        cJSON_Delete(status);
        service_wait(&s, "worker ready/0 (pid ");
        service_wait(&s, "worker ready/0 is ready");
    }
    settle(ask);
    cr_expect(eq(int, count_fds(s.pid), fds));
    cr_expect(eq(int, count_children(s.pid), 3));
    close(ask);
    cr_expect(eq(int, service_stop(&s), 0));
    service_free(&s);
}

Test(supervisor_faults, an_api_over_its_budget_ends_the_service)
{
    struct service s;

    setenv("FAKE_API", "exit-3", 1);
    service_start(&s, SERVICE("restart_budget = 2; ", WORKER("ready")));
    cr_expect(eq(int, service_end(&s), 1));
    cr_expect(service_said(&s, "api is failed and will not be started again: ended with exit code 3"));
    cr_expect(service_said(&s, "the service cannot go on and stops"));
    service_free(&s);
}

Test(supervisor_faults, a_controller_that_cannot_be_configured_ends_the_service_with_78)
{
    struct service s;

    setenv("FAKE_CONTROLLER", "exit-78", 1);
    service_start(&s, SERVICE("", WORKER("ready")));
    cr_expect(eq(int, service_end(&s), 78));
    service_free(&s);
}

Test(supervisor_faults, a_program_that_is_not_there_is_named)
{
    struct service s;

    setenv("FAKE_CHILD", "/no/such/program", 1);
    service_start(&s, SERVICE("restart_budget = 1; ", ""));
    cr_expect(eq(int, service_end(&s), 1));
    cr_expect(service_said(&s, "could not be started: /no/such/program: No such file or directory"));
    service_free(&s);
}

Test(supervisor_faults, draining_has_a_limit_and_then_stop_is_obeyed)
{
    struct service s;

    service_start(&s, SERVICE("drain_s = 1; ", WORKER("stubborn")));
    service_up(&s, "worker stubborn/0 is ready");
    kill(s.pid, SIGTERM);
    service_wait(&s, "drains within 1 s");
    cr_expect(eq(int, service_end(&s), 0));
    cr_expect(service_said(&s, "the time to finish what runs is over"));
    cr_expect(not(service_said(&s, "is killed")));
    service_free(&s);
}

Test(supervisor_faults, who_does_not_obey_is_killed)
{
    struct service s;

    service_start(&s, SERVICE("drain_s = 1; stop_s = 1; heartbeat_limit_ms = 60000; ", WORKER("deaf")));
    service_up(&s, "worker deaf/0 is ready");
    cr_expect(eq(int, service_stop(&s), 0));
    cr_expect(service_said(&s, "is killed: it did not stop in time"), "%s", buf_str(&s.text));
    service_free(&s);
}

Test(supervisor_faults, a_second_signal_skips_the_draining)
{
    struct service s;

    service_start(&s, SERVICE("drain_s = 3600; ", WORKER("stubborn")));
    service_up(&s, "worker stubborn/0 is ready");
    kill(s.pid, SIGTERM);
    service_wait(&s, "drains within");
    kill(s.pid, SIGINT);
    service_wait(&s, "SIGINT again: the service stops at once");
    cr_expect(eq(int, service_end(&s), 0));
    service_free(&s);
}

Test(supervisor_faults, a_stop_while_children_wait_for_their_restart_is_quick)
{
    struct service s;

    service_start(&s, "supervisor = { runtime_dir = \"run\"; restart_delay_ms = 60000; restart_delay_max_ms = 60000; };\n"
                      "api = { listen = (\"127.0.0.1:0\"); };\nmodels = (" WORKER("exit-1") ");");
    service_wait(&s, "worker exit-1/0 starts again in");
    cr_expect(eq(int, service_stop(&s), 0));
    service_free(&s);
}

/* Everything stands still for longer than the limit, as when a machine is
 * suspended or starved. The wait is what is tested. */
Test(supervisor_faults, a_supervisor_that_was_held_up_kills_nobody)
{
    struct service s;
    int pids[3];
    struct pollfd never = { .fd = -1 };

    service_start(&s, SERVICE("heartbeat_ms = 20; heartbeat_limit_ms = 2000; ", WORKER("ready")));
    service_up(&s, "worker ready/0 is ready");
    pids[0] = child_pid("ready");
    pids[1] = child_pid("api");
    pids[2] = child_pid("controller");
    kill(s.pid, SIGSTOP);
    cr_assert(waitpid(s.pid, NULL, WUNTRACED) == s.pid);
    for (int i = 0; i < 3; i++)
        kill(pids[i], SIGSTOP);
    poll(&never, 1, 5000);
    kill(s.pid, SIGCONT);
    for (int i = 0; i < 3; i++)
        kill(pids[i], SIGCONT);
    cr_expect(eq(int, child_pid("ready"), pids[0]));
    cr_expect(eq(int, service_stop(&s), 0));
    cr_expect(not(service_said(&s, "is killed")), "%s", buf_str(&s.text));
    service_free(&s);
}
