/* fake_child - a child of the supervisor that behaves as its name says.
 *
 *     fake_child MODEL REPLICA        as a worker: the model's name
 *     fake_child controller|api       $FAKE_CONTROLLER, $FAKE_API; "ready" when unset
 *
 * A name may end in -N, the behaviour's number; what is behind a dot only tells
 * models of one behaviour apart ("exit-7.b").
 */
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "daemon/child.h"
#include "daemon/roles.h"
#include "ipc/control.h"
#include "ipc/loop.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static char behaviour[64];
static int number;
static struct child *child;
static int beats;

static bool is(const char *name)
{
    return strcmp(behaviour, name) == 0;
}

static void drain(uint64_t limit_ms, void *user)
{
    log_info("drains within %d s", (int)((limit_ms + 999) / 1000));
    if (!is("stubborn") && !is("deaf"))
        loop_stop(child_loop(child), EXIT_DONE);
    if (is("deaf"))
        for (;;)
            pause();
}

static void models(const cJSON *tree, void *user)
{
    char *text = cJSON_PrintUnformatted(tree);

    log_info("models %s", text);
    free(text);
}

static int reload(const cJSON *settings, void *user, struct err *err)
{
    if (is("picky"))
        return err_set(err, -EINVAL, "not these");
    log_info("reloads");
    return 0;
}

static bool alive(uint64_t *busy_ms, void *user)
{
    if (is("busy")) {           /* says so once, then nothing for a long time */
        *busy_ms = 600000;
        return beats++ == 0;
    }
    return true;
}

static void stats(struct json_writer *w, void *user)
{
    json_kint(w, "beats", ++beats);
}

/* Those that came with exec; what this program opens is closed on exec. */
static void list_descriptors(void)
{
    char text[512] = "", link[256], path[64];
    DIR *d = opendir("/proc/self/fd");

    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.' && !(fcntl(atoi(e->d_name), F_GETFD) & FD_CLOEXEC))
            snprintf(text + strlen(text), sizeof text - strlen(text), " %s", e->d_name);
    closedir(d);
    snprintf(path, sizeof path, "/proc/self/fd/0");
    link[readlink(path, link, sizeof link - 1)] = 0;
    log_info("descriptors%s, input %s, notify %s", text, link, getenv("NOTIFY_SOCKET") ? "set" : "unset");
}

static void early(void)
{
    if (is("exit"))
        _exit(number);
    if (is("mute"))
        for (;;)
            pause();
    if (is("junk")) {           /* before HELLO */
        control_send_json(CONTROL_FD, CONTROL_STATE, "{\"state\":\"ready\"}");
        for (;;)
            pause();
    }
}

static void send_raw(const char *text)
{
    send(CONTROL_FD, text, strlen(text), MSG_NOSIGNAL);
}

static void after_ready(void)
{
    if (is("ready-exit"))
        _exit(number);
    if (is("silent"))
        for (;;)
            pause();
    if (is("garbage"))
        send_raw("garbage!");
    if (is("strange"))
        control_send_json(CONTROL_FD, CONTROL_STOP, "{}");
    if (is("want"))
        child_want(child, "ready.lazy");
    if (is("badjson"))
        control_send_json(CONTROL_FD, CONTROL_HEARTBEAT, "{\"busy_ms\":");
    if (is("badbusy"))
        control_send_json(CONTROL_FD, CONTROL_HEARTBEAT, "{\"busy_ms\":-5}");
    if (is("hello"))
        control_send_json(CONTROL_FD, CONTROL_HELLO, "{\"pid\":1}");
    if (is("fds"))
        control_send(CONTROL_FD, CONTROL_HEARTBEAT, "{}", 2, (int[]){ 0 }, 1);
    if (is("unsealed"))
        control_send(CONTROL_FD, CONTROL_WEIGHTS_MADE, NULL, 0, (int[]){ 0 }, 1);
    if (is("noweights"))
        control_send(CONTROL_FD, CONTROL_WEIGHTS_MADE, NULL, 0, NULL, 0);
    if (is("parent")) {
        pid_t pid = fork();

        if (pid == 0)
            for (;;)
                pause();
        log_info("grandchild %d", (int)pid);
    }
    if (is("empty"))            /* reads like the end of the channel; beats go on */
        send(CONTROL_FD, "", 0, MSG_NOSIGNAL);
    if (is("closed"))           /* the channel is gone, the process is not */
        for (close(CONTROL_FD);;)
            pause();
}

/* As a worker: packs what nobody has packed before it, and gives it on before it is ready. */
static void weights(void)
{
    int fd = child_take_weights(child);

    log_info(fd < 0 ? "packs weights" : "got weights");
    if (fd < 0 && control_make_memfd("packed", 6, &fd, NULL) == 0)
        child_give_weights(child, fd);
}

static void report(const char *role)
{
    const cJSON *s = child_settings(child);
    const char *name = NULL;
    static const char *const sockets[] = { "controller.unix", "controller.tcp", "api.0", "api.1", "api.9", "worker.unix",
                                           "worker.tcp" };
    char text[256] = "";

    json_get_string(s, "worker_name", &name, NULL);
    for (size_t i = 0; i < sizeof sockets / sizeof sockets[0]; i++)
        if (child_take_socket(child, sockets[i]) >= 0)      /* kept open until the end */
            snprintf(text + strlen(text), sizeof text - strlen(text), " %s", sockets[i]);
    log_info("has%s, is %s", text, name ? name : role);
}

int main(int argc, char **argv)
{
    static char role[160];
    struct child_ops ops = { .drain = drain, .models = models, .reload = reload, .alive = alive, .stats = stats };
    bool worker = argc > 2;
    const char *name = worker ? argv[1] : getenv(strcmp(argv[1], "api") == 0 ? "FAKE_API" : "FAKE_CONTROLLER");
    struct err err = { 0 };
    char *mark;

    snprintf(role, sizeof role, worker ? "fake %s/%s" : "fake %s", argv[1], worker ? argv[2] : "");
    snprintf(behaviour, sizeof behaviour, "%s", name ? name : "ready");
    behaviour[strcspn(behaviour, ".")] = 0;
    mark = strrchr(behaviour, '-');
    if (mark) {
        number = atoi(mark + 1);
        *mark = 0;
    }
    log_open(role, LOG_INFO);
    if (is("list"))
        list_descriptors();
    early();
    if (child_open(role, &ops, &child, &err)) {
        log_error("%s", err_text(&err));
        return EXIT_FAILED;
    }
    report(role);
    if (is("once") && mkdir(getenv("FAKE_ONCE"), 0700) < 0)
        return EXIT_FAILED;
    if (is("fail")) {
        child_state(child, "failed", "the model is no model");
        return number;
    }
    if (is("weights"))
        weights();
    child_state(child, "ready", NULL);
    after_ready();
    number = loop_run(child_loop(child));
    child_close(child);
    return number;
}
