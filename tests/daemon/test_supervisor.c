/* The ordinary life of a service: start, status, stop. */
#include "service.h"

#include <sys/socket.h>
#include <sys/un.h>

TestSuite(supervisor, .init = config_folder_make, .fini = config_folder_remove, .timeout = 280);

Test(supervisor, starts_everything_and_stops_in_order)
{
    struct service s;
    char path[PATH_MAX];
    const char *api, *worker, *controller;

    service_start(&s, SERVICE("", WORKER("ready.a") "," WORKER("ready.b")));
    service_up(&s, "controller is ready");
    service_up(&s, "worker ready.a/0 is ready");
    service_up(&s, "worker ready.b/0 is ready");
    cr_expect(eq(int, service_stop(&s), 0));
    api = strstr(buf_str(&s.text), "api (pid");
    worker = strstr(buf_str(&s.text), "worker ready.a/0 (pid");
    controller = strstr(buf_str(&s.text), "controller (pid");
    cr_assert(api && worker && controller);
    cr_expect(api < worker && worker < controller);
    for (size_t i = 0; i < 4; i++) {
        static const char *const names[] = { "control.sock", "controller.sock", "worker-ready.a-0.sock", "worker-ready.b-0.sock" };

        snprintf(path, sizeof path, "%s/run/%s", config_folder, names[i]);
        cr_expect(access(path, F_OK) != 0, "%s is still there", names[i]);
    }
    service_free(&s);
}

Test(supervisor, status_tells_of_every_child)
{
    struct service s;
    cJSON *status;
    const cJSON *child;

    service_start(&s, SERVICE("heartbeat_ms = 20; ", WORKER("ready")));
    service_up(&s, "worker ready/0 is ready");
    status = service_status();
    cr_expect(eq(str, (char *)status_text(status, "version"), FASTCHAT_VERSION));
    cr_expect(eq(int, status_number(status, "pid"), s.pid));
    cr_expect(ge(int, status_number(status, "uptime_s"), 0));
    cr_expect(strstr(status_text(status, "config"), "/fastchat.conf") != NULL);
    cr_expect(strstr(json_find(status, "config_files")->child->valuestring, "fastchat.conf") != NULL);
    cr_expect(strncmp(json_find(status, "listeners")->child->valuestring, "127.0.0.1:", 10) == 0);
    cr_expect(strcmp(json_find(status, "listeners")->child->valuestring, "127.0.0.1:0") != 0);
    child = status_child(status, "ready");
    cr_expect(eq(str, (char *)status_text(child, "role"), "worker"));
    cr_expect(eq(str, (char *)status_text(child, "state"), "ready"));
    cr_expect(eq(int, status_number(child, "restarts"), 0));
    cr_expect(gt(int, status_number(child, "rss_kb"), 0));
    cr_expect(gt(int, status_number(child, "pid"), 0));
    cr_expect(cJSON_IsObject(json_find(child, "stats")));
    cr_expect(eq(str, (char *)status_text(status_child(status, "api"), "state"), "ready"));
    cJSON_Delete(status);
    cr_expect(eq(int, service_stop(&s), 0));
    service_free(&s);
}

Test(supervisor, statistics_of_heartbeats_reach_the_status)
{
    struct service s;
    int beats = 0;

    service_start(&s, SERVICE("heartbeat_ms = 20; ", WORKER("ready")));
    service_wait(&s, "worker ready/0 is ready");
    while (beats < 3) {         /* each question is a turn of the supervisor's loop */
        cJSON *status = service_status();
        const cJSON *stats = json_find(status_child(status, "ready"), "stats");

        if (json_find(stats, "beats"))
            beats = status_number(stats, "beats");
        cJSON_Delete(status);
    }
    cr_expect(eq(int, service_stop(&s), 0));
    service_free(&s);
}

Test(supervisor, children_get_their_sockets_and_nothing_else)
{
    struct service s;

    setenv("NOTIFY_SOCKET", "/nowhere", 1);
    service_start(&s,
        "supervisor = { " QUICK "};\ncontroller = { listen = \"127.0.0.1:0\"; };\n"
        "api = { listen = (\"127.0.0.1:0\", { address = \"unix:run/api.sock\"; mode = \"0600\"; }); };\n"
        "models = ({ name = \"list\"; path = \"m.gguf\"; listen = \"127.0.0.1:0\"; });\n");
    service_up(&s, "worker list/0 is ready");
    s.seen = 0;
    service_wait(&s, "controller is ready");
    cr_expect(eq(int, service_stop(&s), 0));
    cr_expect(service_said(&s, "has controller.unix controller.tcp, is fake controller\n"), "%s", buf_str(&s.text));
    cr_expect(service_said(&s, "has api.0 api.1, is fake api\n"), "%s", buf_str(&s.text));
    cr_expect(service_said(&s, "has worker.unix worker.tcp, is http://127.0.0.1:"), "%s", buf_str(&s.text));
    cr_expect(not(service_said(&s, "is http://127.0.0.1:0\n")));
    cr_expect(service_said(&s, "fake list/0: descriptors 0 1 2 3, input /dev/null, notify unset\n"), "%s", buf_str(&s.text));
    service_free(&s);
}

Test(supervisor, a_request_it_does_not_know_is_refused_and_a_bad_one_drops_the_peer)
{
    static struct control_frame f;
    struct service s;
    struct pollfd p = { .events = POLLIN };
    int good, bad;

    service_start(&s, SERVICE("", WORKER("ready")));
    service_up(&s, NULL);
    good = service_connect();
    bad = service_connect();
    cr_assert(zero(int, service_ask(good, CONTROL_RELOAD, &f)));
    cr_expect(eq(int, f.type, CONTROL_ERROR));
    cr_assert(send(bad, "nonsense", 8, 0) == 8);
    p.fd = bad;
    cr_assert(poll(&p, 1, CEILING_MS) == 1);
    cr_expect(eq(int, control_recv(bad, &f, NULL), CONTROL_EOF));
    cr_assert(zero(int, service_ask(good, CONTROL_STATUS, &f)));
    cr_expect(eq(int, f.type, CONTROL_REPLY));
    control_close_fds(&f);
    close(good);
    close(bad);
    cr_expect(eq(int, service_stop(&s), 0));
    service_free(&s);
}

Test(supervisor, many_admin_connections_push_out_the_oldest)
{
    static struct control_frame f;
    struct service s;
    int fds[40];

    service_start(&s, SERVICE("", ""));
    service_up(&s, NULL);
    for (int i = 0; i < 40; i++)
        fds[i] = service_connect();
    cr_assert(zero(int, service_ask(fds[39], CONTROL_STATUS, &f)));
    control_close_fds(&f);
    cr_expect(eq(int, control_recv(fds[0], &f, NULL), CONTROL_EOF));
    for (int i = 0; i < 40; i++)
        close(fds[i]);
    cr_expect(eq(int, service_stop(&s), 0));
    service_free(&s);
}

Test(supervisor, a_second_start_is_refused_and_names_the_holder)
{
    struct service s, second;
    char want[128];

    service_start(&s, SERVICE("", WORKER("ready")));
    service_up(&s, NULL);
    service_start(&second, SERVICE("", WORKER("ready")));
    cr_expect(eq(int, service_end(&second), 1));
    snprintf(want, sizeof want, "fastchatd runs already in %s/run (pid %d)\n", config_folder, (int)s.pid);
    cr_expect(service_said(&second, want), "%s", buf_str(&second.text));
    cr_expect(eq(int, service_stop(&s), 0));
    service_free(&s);
    service_free(&second);
}

Test(supervisor, a_start_after_a_crash_finds_its_sockets_free)
{
    struct service s;

    for (int i = 0; i < 2; i++) {
        service_start(&s, SERVICE("", WORKER("ready")));
        service_up(&s, NULL);
        kill(s.pid, SIGKILL);
        cr_expect(eq(int, service_end(&s), -SIGKILL));      /* the log ends: the children are gone too */
        service_free(&s);
    }
}

Test(supervisor, a_port_in_use_is_one_line_that_names_the_holder)
{
    struct address a = { .host = "127.0.0.1", .text = "127.0.0.1:0" };
    struct address bound;
    struct service s;
    char config[256], want[128];
    int fd = -1;

    cr_assert(zero(int, address_listen(&a, 1, 0, (gid_t)-1, &fd, NULL)));
    cr_assert(zero(int, address_local(fd, &bound, NULL)));
    snprintf(config, sizeof config, "supervisor = { " QUICK "};\napi = { listen = (\"%s\"); };\n", bound.text);
    service_start(&s, config);
    cr_expect(eq(int, service_end(&s), 1));
    snprintf(want, sizeof want, "%s is in use by ", bound.text);
    cr_expect(service_said(&s, want), "%s", buf_str(&s.text));
    cr_expect(strchr(buf_str(&s.text), '\n')[1] == 0, "%s", buf_str(&s.text));
    cr_expect(not(service_said(&s, "starts (pid")));
    service_free(&s);
    close(fd);
}

Test(supervisor, a_runtime_folder_that_others_may_write_to_is_refused)
{
    struct service s;
    char path[PATH_MAX];

    snprintf(path, sizeof path, "%s/run", config_folder);
    mkdir(path, 0755);
    chmod(path, 0777);
    service_start(&s, SERVICE("", ""));
    cr_expect(eq(int, service_end(&s), 1));
    cr_expect(service_said(&s, "/run: others may write to it (mode 0777)"), "%s", buf_str(&s.text));
    service_free(&s);
}

Test(supervisor, a_runtime_folder_that_is_a_file_is_refused)
{
    struct service s;

    config_write_text("run", "x");
    service_start(&s, SERVICE("", ""));
    cr_expect(eq(int, service_end(&s), 1));
    cr_expect(service_said(&s, "/run: is no folder"), "%s", buf_str(&s.text));
    service_free(&s);
}

static int notify_socket(void)
{
    struct sockaddr_un sa = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    snprintf(sa.sun_path, sizeof sa.sun_path, "%s/notify", config_folder);
    cr_assert(bind(fd, (struct sockaddr *)&sa, sizeof sa) == 0);
    setenv("NOTIFY_SOCKET", sa.sun_path, 1);
    return fd;
}

/* Until that has come, before this or now. */
static void wait_notify(int fd, struct buf *all, const char *what)
{
    while (!strstr(buf_str(all), what)) {
        struct pollfd p = { .fd = fd, .events = POLLIN };
        char text[512];
        ssize_t n;

        cr_assert(poll(&p, 1, CEILING_MS) == 1, "no %s in:\n%s", what, buf_str(all));
        n = recv(fd, text, sizeof text, 0);
        cr_assert(n >= 0);
        buf_add(all, text, (size_t)n);
        buf_addc(all, '\n');
    }
}

Test(supervisor, systemd_hears_of_readiness_state_and_end)
{
    struct service s;
    BUF_LOCAL all = BUF_INIT;
    int fd = notify_socket();

    service_start(&s, SERVICE("", WORKER("exit-78")));
    wait_notify(fd, &all, "READY=1");
    wait_notify(fd, &all, "STATUS=serving, 0 of 1 workers ready; failed: worker exit-78/0");
    kill(s.pid, SIGTERM);
    wait_notify(fd, &all, "STOPPING=1");
    cr_expect(eq(int, service_end(&s), 0));
    service_free(&s);
    close(fd);
}

Test(supervisor, there_may_be_only_workers)
{
    struct service s;
    BUF_LOCAL all = BUF_INIT;
    int fd = notify_socket();
    CLEANUP(json_delete) cJSON *status = NULL;

    service_start(&s, SERVICE("parts = \"workers\";", "{ name = \"ready\"; path = \"m.gguf\"; controllers = (\"unix:/nowhere\"); }"));
    wait_notify(fd, &all, "READY=1");
    wait_notify(fd, &all, "STATUS=serving, 1 of 1 workers ready");
    status = service_status();
    cr_expect(eq(int, cJSON_GetArraySize(json_find(status, "children")), 1));
    cr_expect(eq(str, (char *)status_text(json_find(status, "children")->child, "role"), "worker"));
    cr_expect(eq(int, cJSON_GetArraySize(json_find(status, "listeners")), 0));
    kill(s.pid, SIGTERM);
    cr_expect(eq(int, service_end(&s), 0));
    service_free(&s);
    close(fd);
}

#define TWO "{ name = \"weights\"; path = \"m.gguf\"; replicas = 2; }"

Test(supervisor, the_second_replica_waits_for_the_weights_of_the_first_and_gets_them)
{
    struct service s;

    service_start(&s, SERVICE("", TWO));
    service_wait(&s, "worker weights/0 starts (pid ");
    cr_expect(not(service_said(&s, "worker weights/1 starts")));
    service_wait(&s, "fake weights/0: packs weights");
    cr_expect(not(service_said(&s, "worker weights/1 starts")));
    service_wait(&s, "worker weights/0 has packed 0 MB of weights");
    service_wait(&s, "fake weights/1: got weights");
    service_wait(&s, "worker weights/1 is ready");
    cr_expect(eq(int, service_stop(&s), 0));
    service_free(&s);
}

Test(supervisor, a_restarted_worker_gets_the_weights_back_unless_its_file_changed)
{
    struct service s;
    cJSON *status;

    service_start(&s, SERVICE("heartbeat_ms = 20; ", "{ name = \"weights\"; path = \"m.gguf\"; }"));
    service_up(&s, "worker weights/0 is ready");
    status = service_status();
    kill((pid_t)status_number(status_child(status, "weights"), "pid"), SIGKILL);
    cJSON_Delete(status);
    service_wait(&s, "fake weights/0: got weights");
    service_wait(&s, "worker weights/0 is ready");
    config_write_text("m.gguf", "another one");
    status = service_status();
    kill((pid_t)status_number(status_child(status, "weights"), "pid"), SIGKILL);
    cJSON_Delete(status);
    service_wait(&s, "the packed weights of weights are let go: its file is another one");
    service_wait(&s, "fake weights/0: packs weights");
    service_wait(&s, "worker weights/0 is ready");
    cr_expect(eq(int, service_stop(&s), 0));
    service_free(&s);
}

Test(supervisor, replicas_that_share_nothing_do_not_wait_for_each_other)
{
    struct service s;

    service_start(&s, SERVICE("", "{ name = \"mute\"; path = \"m.gguf\"; replicas = 2; share_weights = \"never\"; }"));
    service_wait(&s, "worker mute/1 starts (pid ");
    kill(s.pid, SIGTERM);
    kill(s.pid, SIGTERM);
    cr_expect(eq(int, service_end(&s), 0));
    service_free(&s);
}
