/* service.h - a supervisor in a process of its own, with fake children, whose
 * log is read line by line: tests wait for what it says, never for time.
 */
#ifndef TESTS_DAEMON_SERVICE_H
#define TESTS_DAEMON_SERVICE_H

#include "config_files.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "daemon/supervisor/supervisor.h"
#include "ipc/address.h"
#include "ipc/control.h"

#include <criterion/new/assert.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CEILING_MS = 120000 };

struct service {
    pid_t pid;
    int log;
    struct buf text;            /* all that it said so far */
    size_t seen;                /* what waits have passed */
};

static inline int pidfd_of(pid_t pid)
{
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

static inline void service_start(struct service *s, const char *config)
{
    int pair[2];

    *s = (struct service){ 0 };
    cr_assert(pipe2(pair, O_CLOEXEC) == 0);
    s->log = pair[0];
    s->pid = fork();
    cr_assert(s->pid >= 0);
    if (s->pid == 0) {
        struct supervisor_options o = { .program = getenv("FAKE_CHILD"), .worker_program = getenv("FAKE_CHILD") };
        BUF_LOCAL errors = BUF_INIT;
        struct config *c = NULL;
        int code;

        prctl(PR_SET_PDEATHSIG, SIGKILL);       /* a failed test leaves nothing behind */
        unsetenv("JOURNAL_STREAM");
        dup2(pair[1], 1);
        dup2(pair[1], 2);
        close(pair[1]);
        close(pair[0]);
        log_open("supervisor", LOG_INFO);
        if (config_load(config_write_text("fastchat.conf", config), &c, &errors)) {
            log_error("config: %s", buf_str(&errors));
            _exit(99);
        }
        code = supervisor_run(c, &o);
        _exit(code);
    }
    close(pair[1]);
}

/* More of the log; false at its end. */
static inline bool service_more(struct service *s)
{
    struct pollfd p = { .fd = s->log, .events = POLLIN };
    char *room;
    ssize_t n;

    cr_assert(poll(&p, 1, CEILING_MS) == 1, "nothing more came; so far:\n%s", buf_str(&s->text));
    room = buf_room(&s->text, 4096);
    cr_assert(room != NULL);
    n = read(s->log, room, 4096);
    cr_assert(n >= 0);
    buf_grew(&s->text, (size_t)n);
    return n > 0;
}

/* Waits for a line that holds `what`, behind what earlier waits found, and
 * returns where it begins to match. */
static inline const char *service_wait(struct service *s, const char *what)
{
    const char *at;

    while (!(at = strstr(buf_str(&s->text) + s->seen, what)) || !strchr(at, '\n'))
        cr_assert(service_more(s), "the log ended without \"%s\":\n%s", what, buf_str(&s->text));
    s->seen = (size_t)(at - s->text.data) + strlen(what);
    return at;
}

/* Waits until the service is ready and the line `too` (or NULL) came, in
 * whichever order. */
static inline void service_up(struct service *s, const char *too)
{
    size_t first;

    s->seen = 0;
    service_wait(s, "the service is ready");
    first = s->seen;
    s->seen = 0;
    if (too)
        service_wait(s, too);
    if (s->seen < first)
        s->seen = first;
}

static inline bool service_said(const struct service *s, const char *what)
{
    return strstr(buf_str(&s->text), what) != NULL;
}

/* The number behind `what`, for lines that come. */
static inline int service_wait_number(struct service *s, const char *what)
{
    return atoi(service_wait(s, what) + strlen(what));
}

/* Reads the log to its end and returns the exit code, or minus the signal. */
static inline int service_end(struct service *s)
{
    int status;

    while (service_more(s))
        continue;
    cr_assert(waitpid(s->pid, &status, 0) == s->pid);
    s->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static inline int service_stop(struct service *s)
{
    kill(s->pid, SIGTERM);
    return service_end(s);
}

static inline void service_free(struct service *s)
{
    if (s->pid > 0) {
        kill(s->pid, SIGKILL);
        waitpid(s->pid, NULL, 0);
    }
    close(s->log);
    buf_fini(&s->text);
}

static inline int service_connect(void)
{
    struct address a = { .is_unix = true, .seqpacket = true };
    struct err err = { 0 };
    int fd = -1;

    snprintf(a.path, sizeof a.path, "%s/run/control.sock", config_folder);
    cr_assert(zero(int, address_connect(&a, &fd, &err)), "%s", err_text(&err));
    return fd;
}

static inline int service_ask(int fd, enum control_type type, struct control_frame *f)
{
    struct pollfd p = { .fd = fd, .events = POLLIN };

    cr_assert(zero(int, control_send_json(fd, type, "{}")));
    cr_assert(poll(&p, 1, CEILING_MS) == 1);
    return control_recv(fd, f, NULL);
}

/* The answer to CONTROL_STATUS. */
static inline cJSON *service_status_on(int fd)
{
    static struct control_frame f;
    struct err err = { 0 };
    cJSON *tree = NULL;
    char *text;
    size_t len;

    cr_assert(zero(int, service_ask(fd, CONTROL_STATUS, &f)));
    cr_assert(eq(int, f.type, CONTROL_REPLY));
    cr_assert(eq(sz, f.n_fds, 1));
    cr_assert(zero(int, control_read_memfd(f.fds[0], &text, &len, &err)), "%s", err_text(&err));
    cr_assert(zero(int, json_parse(text, len, NULL, &tree, &err)), "%s", err_text(&err));
    control_close_fds(&f);
    free(text);
    return tree;
}

static inline cJSON *service_status(void)
{
    int fd = service_connect();
    cJSON *tree = service_status_on(fd);

    close(fd);
    return tree;
}

static inline const cJSON *status_child(const cJSON *status, const char *model_or_role)
{
    const cJSON *e, *children = json_find(status, "children");

    cJSON_ArrayForEach(e, children) {
        const char *name = NULL;

        if (json_get_string(e, "model", &name, NULL) != 0)
            json_get_string(e, "role", &name, NULL);
        if (strcmp(name, model_or_role) == 0)
            return e;
    }
    cr_assert(0, "no child %s", model_or_role);
    abort();
}

static inline const char *status_text(const cJSON *child, const char *key)
{
    const char *text = NULL;

    cr_assert(zero(int, json_get_string(child, key, &text, NULL)));
    return text;
}

static inline int status_number(const cJSON *child, const char *key)
{
    int64_t v = -1;

    cr_assert(zero(int, json_get_int(child, key, INT64_MIN, INT64_MAX, &v, NULL)));
    return (int)v;
}

#define QUICK "runtime_dir = \"run\"; restart_delay_ms = 4; restart_delay_max_ms = 64; "
#define SERVICE(supervisor, models)                                                                \
    "supervisor = { " QUICK supervisor "};\napi = { listen = (\"127.0.0.1:0\"); };\nmodels = (" models ");\n"
#define WORKER(name) "{ name = \"" name "\"; path = \"m.gguf\"; }"

#endif
