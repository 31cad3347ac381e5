/* child.h against a supervisor that the test plays. */
#include "daemon/child.h"

#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "ipc/address.h"
#include "ipc/control.h"
#include "ipc/loop.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CEILING_MS = 120000 };

static struct control_frame frame;
static struct child *child;

/* ---- the child's side: what it hears it says again as its state's text ---- */

static void on_drain(uint64_t limit_ms, void *user)
{
    char text[64];

    snprintf(text, sizeof text, "limit %d", (int)limit_ms);
    child_state(child, "draining", text);
    loop_stop(child_loop(child), 42);
}

static void echo(const char *what, const cJSON *tree)
{
    char *json = cJSON_PrintUnformatted(tree);
    char text[512];

    snprintf(text, sizeof text, "%s %s", what, json);
    child_state(child, "ready", text);
    free(json);
}

static void on_models(const cJSON *models, void *user)
{
    echo("models", models);
}

static int on_reload(const cJSON *settings, void *user, struct err *err)
{
    if (json_find(settings, "bad"))
        return err_set(err, -EINVAL, "'bad' is not wanted");
    echo("reload", settings);
    child_want(child, "a \"b\"");
    return 0;
}

static void on_listen(const char *name, int fd, void *user)
{
    char text[64];

    snprintf(text, sizeof text, "listen %s %d", name, fd >= 0 && (fcntl(fd, F_GETFL) & O_NONBLOCK));
    close(fd);
    child_state(child, "ready", text);
}

static bool on_alive(uint64_t *busy_ms, void *user)
{
    *busy_ms = 1234;
    return true;
}

static bool never_alive(uint64_t *busy_ms, void *user)
{
    return false;
}

static void on_stats(struct json_writer *w, void *user)
{
    json_kint(w, "requests", 7);
}

static const struct child_ops full = {
    .drain = on_drain, .models = on_models, .listen = on_listen, .reload = on_reload, .alive = on_alive, .stats = on_stats,
};
static const struct child_ops frozen = { .alive = never_alive };
static const struct child_ops packing = { .alive = never_alive };

static const struct child_ops crowded = { .models = on_models };

static void take_all_descriptors(void)
{
    struct rlimit limit;

    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 256;
    setrlimit(RLIMIT_NOFILE, &limit);
    while (dup(0) >= 0)
        continue;
}

static int child_process(const struct child_ops *ops)
{
    struct err err = { 0 };
    char text[256];
    int fd, code;

    if (child_open("tested", ops, &child, &err)) {
        log_error("%s", err_text(&err));
        return 99;
    }
    fd = child_take_socket(child, "api.0");
    snprintf(text, sizeof text, "%d %d %d %s", fd >= 0, child_take_socket(child, "api.0"),
             fd >= 0 && (fcntl(fd, F_GETFD) & FD_CLOEXEC) && (fcntl(fd, F_GETFL) & O_NONBLOCK),
             json_find(child_settings(child), "hello") ? "hello" : "nothing");
    if (ops == &crowded)
        take_all_descriptors();
    if (ops == &packing) {
        fd = child_take_weights(child);
        child_give_weights(child, fd >= 0 ? fd : open("/dev/null", O_RDONLY | O_CLOEXEC));
    }
    child_state(child, "ready", text);
    code = loop_run(child_loop(child));
    child_close(child);
    return code;
}

/* ---- the supervisor's side ---- */

static pid_t pid;
static int sock = -1;

static void start(const struct child_ops *ops)
{
    int pair[2];

    cr_assert(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
    pid = fork();
    cr_assert(pid >= 0);
    if (pid == 0) {
        int end = fcntl(pair[1], F_DUPFD, 200);

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(pair[0]);
        close(pair[1]);
        dup2(end, CONTROL_FD);
        close(end);
        _exit(child_process(ops));
    }
    close(pair[1]);
    sock = pair[0];
}

/* The next frame's type; 0 at the end of the channel. */
static int next(void)
{
    struct pollfd p = { .fd = sock, .events = POLLIN };
    struct err err = { 0 };
    int r;

    cr_assert(poll(&p, 1, CEILING_MS) == 1);
    r = control_recv(sock, &frame, &err);
    cr_assert(r == 0 || r == CONTROL_EOF, "%s", err_text(&err));
    return r == CONTROL_EOF ? 0 : frame.type;
}

static int next_but_beats(void)
{
    int type;

    do
        type = next();
    while (type == CONTROL_HEARTBEAT);
    return type;
}

static void expect_frame(enum control_type type, const char *json)
{
    cr_assert(eq(int, next_but_beats(), type));
    cr_expect(eq(str, frame.payload, (char *)json));
}

static void expect_state(const char *json)
{
    expect_frame(CONTROL_STATE, json);
}

static int end(void)
{
    int status;

    while (next())
        continue;
    cr_assert(waitpid(pid, &status, 0) == pid);
    close(sock);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void send_json(enum control_type type, const char *json)
{
    cr_assert(zero(int, control_send_json(sock, type, json)));
}

static void send_memfd(enum control_type type, const char *json)
{
    cr_assert(zero(int, control_send_memfd(sock, type, json, strlen(json), NULL)));
}

/* For a child that is behind: it reads without being read. */
static void send_memfd_waiting(enum control_type type, const char *json)
{
    struct pollfd p = { .fd = sock, .events = POLLOUT };
    int r;

    while ((r = control_send_memfd(sock, type, json, strlen(json), NULL)) == CONTROL_AGAIN)
        cr_assert(poll(&p, 1, CEILING_MS) == 1);
    cr_assert(zero(int, r));
}

static const char plain[] = "{\"role\":\"x\",\"log_level\":\"error\",\"heartbeat_ms\":10,\"hello\":1}";

static void handshake(const struct child_ops *ops)
{
    struct address a = { .host = "127.0.0.1", .text = "127.0.0.1:0" };
    int fd;

    start(ops);
    cr_assert(eq(int, next(), CONTROL_HELLO));
    send_memfd(CONTROL_SETTINGS, plain);
    cr_assert(zero(int, address_listen(&a, 1, 0, (gid_t)-1, &fd, NULL)));
    cr_assert(zero(int, control_send(sock, CONTROL_LISTEN, "{\"name\":\"api.0\"}", 16, &fd, 1)));
    close(fd);
    send_json(CONTROL_START, "{}");
    expect_state("{\"state\":\"loading\"}");
    expect_state("{\"state\":\"ready\",\"text\":\"1 -1 1 hello\"}");
}

Test(child, hello_says_who_it_is)
{
    char want[128];

    start(&full);
    cr_assert(eq(int, next(), CONTROL_HELLO));
    snprintf(want, sizeof want, "{\"pid\":%d,\"version\":\"%s\"}", (int)pid, FASTCHAT_VERSION);
    cr_expect(eq(str, frame.payload, want));
    send_json(CONTROL_STOP, "{}");
    cr_expect(eq(int, end(), 0));
}

Test(child, settings_and_sockets_come_before_the_start)
{
    handshake(&full);
    send_json(CONTROL_STOP, "{}");
    cr_expect(eq(int, end(), 0));
}

/* What the child took, it gives on: it is the file that was sent. */
Test(child, packed_weights_come_before_the_start_and_go_on)
{
    CLEANUP(mem_free) char *text = NULL;
    int fd;

    start(&packing);
    cr_assert(eq(int, next(), CONTROL_HELLO));
    send_memfd(CONTROL_SETTINGS, plain);
    send_memfd(CONTROL_WEIGHTS, "older");
    cr_assert(zero(int, control_make_memfd("packed", 6, &fd, NULL)));
    cr_assert(zero(int, control_send(sock, CONTROL_WEIGHTS, NULL, 0, &fd, 1)));
    close(fd);
    send_json(CONTROL_START, "{}");
    expect_state("{\"state\":\"loading\"}");
    cr_assert(eq(int, next_but_beats(), CONTROL_WEIGHTS_MADE));
    cr_assert(eq(sz, frame.n_fds, 1));
    cr_assert(zero(int, control_read_memfd(frame.fds[0], &text, NULL, NULL)));
    cr_expect(eq(str, text, "packed"));
    control_close_fds(&frame);
    send_json(CONTROL_STOP, "{}");
    cr_expect(eq(int, end(), 0));
}

Test(child, beats_say_how_long_it_is_busy_and_carry_statistics)
{
    handshake(&full);
    while (next() != CONTROL_HEARTBEAT)
        continue;
    cr_expect(eq(str, frame.payload, "{\"busy_ms\":1234,\"stats\":{\"requests\":7}}"));
    cr_assert(eq(int, next(), CONTROL_HEARTBEAT));
    send_json(CONTROL_STOP, "{}");
    cr_expect(eq(int, end(), 0));
}

Test(child, no_beat_is_sent_for_what_does_not_live)
{
    handshake(&frozen);
    send_json(CONTROL_STOP, "{}");
    while (next())
        cr_expect(ne(int, frame.type, CONTROL_HEARTBEAT));
    cr_expect(eq(int, end(), 0));
}

Test(child, draining_is_told_with_its_limit_and_may_take_its_time)
{
    handshake(&full);
    send_json(CONTROL_DRAIN, "{\"limit_ms\":5000}");
    expect_state("{\"state\":\"draining\"}");
    expect_state("{\"state\":\"draining\",\"text\":\"limit 5000\"}");
    cr_expect(eq(int, end(), 42));
}

Test(child, draining_without_an_op_is_the_end)
{
    handshake(&frozen);
    send_json(CONTROL_DRAIN, "{\"limit_ms\":5000}");
    cr_expect(eq(int, end(), 0));
}

Test(child, models_and_new_settings_reach_their_ops)
{
    handshake(&full);
    send_memfd(CONTROL_MODELS, "{\"models\":[{\"name\":\"m\"}]}");
    expect_state("{\"state\":\"ready\",\"text\":\"models [{\\\"name\\\":\\\"m\\\"}]\"}");
    send_memfd(CONTROL_RELOAD, "{\"a\":1}");
    expect_state("{\"state\":\"ready\",\"text\":\"reload {\\\"a\\\":1}\"}");
    expect_frame(CONTROL_WANT, "{\"model\":\"a \\\"b\\\"\"}");
    expect_frame(CONTROL_RELOADED, "{}");
    send_json(CONTROL_STOP, "{}");
    cr_expect(eq(int, end(), 0));
}

Test(child, new_settings_that_are_wrong_are_answered_and_change_nothing)
{
    static const struct { const char *settings, *answer; } cases[] = {
        { "{\"bad\":1}", "{\"error\":\"'bad' is not wanted\"}" },
        { "{\"log_level\":\"loud\"}", "{\"error\":\"'log_level' is unknown: loud\"}" },
        { "{\"heartbeat_ms\":1}",
          "{\"error\":\"'heartbeat_ms' must be between 10 and 600000, but is 1\"}" },
        { "[]", "{\"error\":\"they must be an object, but are an array\"}" },
    };

    handshake(&full);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        send_memfd(CONTROL_RELOAD, cases[i].settings);
        expect_frame(CONTROL_RELOADED, cases[i].answer);
    }
    send_json(CONTROL_STOP, "{}");
    cr_expect(eq(int, end(), 0));
}

/* It beat every 10 ms: after two beats within the new time none of the old
 * rhythm can be left, and then the old rhythm must come back at once. */
Test(child, the_time_between_beats_is_taken_from_new_settings)
{
    uint64_t last = 0;

    handshake(&full);
    send_memfd(CONTROL_RELOAD, "{\"heartbeat_ms\":300}");
    while (next() != CONTROL_RELOADED)
        continue;
    for (int slow = 0; slow < 2;) {
        cr_assert(eq(int, next(), CONTROL_HEARTBEAT));
        slow += last && frame.mono_us - last >= 250000;
        last = frame.mono_us;
    }
    send_memfd(CONTROL_RELOAD, "{\"heartbeat_ms\":600000}");
    while (next() != CONTROL_RELOADED)
        continue;
    cr_assert(eq(int, next(), CONTROL_HEARTBEAT));      /* was due already */
    send_memfd(CONTROL_RELOAD, "{\"heartbeat_ms\":10}");
    while (next() != CONTROL_RELOADED)
        continue;
    cr_assert(eq(int, next(), CONTROL_HEARTBEAT));
    send_json(CONTROL_STOP, "{}");
    cr_expect(eq(int, end(), 0));
}

static void send_socket(const char *json)
{
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    cr_assert(zero(int, control_send(sock, CONTROL_LISTEN, json, strlen(json), &fd, 1)));
    close(fd);
}

Test(child, a_socket_that_comes_later_reaches_its_op)
{
    handshake(&full);
    send_socket("{\"name\":\"api.0\"}");
    expect_state("{\"state\":\"ready\",\"text\":\"listen api.0 1\"}");
    send_json(CONTROL_STOP, "{}");
    cr_expect(eq(int, end(), 0));
    handshake(&frozen);
    send_socket("{\"name\":\"api.0\"}");
    send_json(CONTROL_STOP, "{}");
    cr_expect(eq(int, end(), 0));
}

Test(child, without_a_free_descriptor_it_still_hears_of_the_models)
{
    handshake(&crowded);
    for (int i = 0; i < 3; i++) {
        send_memfd(CONTROL_MODELS, "{\"models\":[]}");
        expect_state("{\"state\":\"ready\",\"text\":\"models []\"}");
    }
    send_json(CONTROL_STOP, "{}");
    cr_expect(eq(int, end(), 0));
}

Test(child, models_and_new_settings_without_ops_do_no_harm)
{
    handshake(&frozen);
    send_memfd(CONTROL_MODELS, "{\"models\":[]}");
    send_memfd(CONTROL_RELOAD, "{}");
    expect_frame(CONTROL_RELOADED, "{\"error\":\"this child can not take new settings while it runs\"}");
    send_json(CONTROL_STOP, "{}");
    cr_expect(eq(int, end(), 0));
}

Test(child, the_end_of_the_channel_ends_the_process)
{
    int status;

    handshake(&full);
    close(sock);
    cr_assert(waitpid(pid, &status, 0) == pid);
    cr_expect(eq(int, WIFEXITED(status) ? WEXITSTATUS(status) : -1, 1));
}

Test(child, the_end_of_the_channel_ends_it_during_the_start_too)
{
    int status;

    start(&full);
    cr_assert(eq(int, next(), CONTROL_HELLO));
    close(sock);
    cr_assert(waitpid(pid, &status, 0) == pid);
    cr_expect(eq(int, WIFEXITED(status) ? WEXITSTATUS(status) : -1, 1));
}

Test(child, signals_of_a_terminal_are_the_supervisors_business)
{
    handshake(&full);
    kill(pid, SIGTERM);
    kill(pid, SIGINT);
    send_memfd(CONTROL_MODELS, "{\"models\":[]}");
    expect_state("{\"state\":\"ready\",\"text\":\"models []\"}");
    send_json(CONTROL_STOP, "{}");
    cr_expect(eq(int, end(), 0));
}

Test(child, frames_that_do_not_belong_end_it_with_a_failure)
{
    static const enum control_type types[] = { CONTROL_SETTINGS, CONTROL_LISTEN, CONTROL_START, CONTROL_HELLO, CONTROL_STATUS };

    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        handshake(&full);
        send_json(types[i], "{}");
        cr_expect(eq(int, end(), 1), "type %d", types[i]);
    }
}

Test(child, broken_bytes_end_it_with_a_failure)
{
    handshake(&full);
    cr_assert(send(sock, "garbage", 7, 0) == 7);
    cr_expect(eq(int, end(), 1));
    handshake(&full);
    send_json(CONTROL_DRAIN, "{\"limit");
    cr_expect(eq(int, end(), 1));
    handshake(&full);
    send_json(CONTROL_MODELS, "{}");            /* without the memfd */
    cr_expect(eq(int, end(), 1));
}

struct bad_start {
    const char *settings;       /* NULL: none */
    enum control_type then;
    const char *payload;
};

Test(child, a_start_that_goes_wrong_is_an_error)
{
    static const struct bad_start cases[] = {
        { NULL, CONTROL_START, "{}" },
        { "{", CONTROL_START, "{}" },
        { "{\"log_level\":\"loud\"}", CONTROL_START, "{}" },
        { "{\"heartbeat_ms\":-1}", CONTROL_START, "{}" },
        { plain, CONTROL_LISTEN, "{\"name\":\"x\"}" },
        { plain, CONTROL_LISTEN, "{}" },
        { plain, CONTROL_MODELS, "{}" },
        { plain, CONTROL_WEIGHTS, "{}" },
        { plain, CONTROL_SETTINGS, "{}" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        start(&full);
        cr_assert(eq(int, next(), CONTROL_HELLO));
        if (cases[i].settings)
            send_memfd(CONTROL_SETTINGS, cases[i].settings);
        control_send_json(sock, cases[i].then, cases[i].payload);       /* it may be gone already */
        cr_expect(eq(int, end(), 99), "case %zu", i);
    }
}

/* In a process of its own: descriptor 3 of the test program is somebody's. */
Test(child, without_a_channel_it_says_who_starts_it)
{
    int pair[2], status;
    char said[256] = "";

    cr_assert(pipe(pair) == 0);
    pid = fork();
    if (pid == 0) {
        struct err err = { 0 };
        struct child *c = NULL;
        int to = fcntl(pair[1], F_DUPFD, 200);

        dup2(open("/dev/null", O_RDONLY), CONTROL_FD);
        if (child_open("alone", NULL, &c, &err) == -EINVAL && write(to, err_text(&err), strlen(err_text(&err))) > 0)
            _exit(0);
        _exit(1);
    }
    cr_assert(waitpid(pid, &status, 0) == pid);
    cr_assert(read(pair[0], said, sizeof said - 1) > 0);
    cr_expect(eq(str, said, "descriptor 3 is no control channel: this program is started by fastchatd"));
}

Test(child, the_answer_to_a_reload_is_kept_until_the_supervisor_reads_again)
{
    int n = 0;

    handshake(&full);
    /* Its three frames for each fill the queue, which holds a few hundred. */
    while (n < 2000 && control_send_memfd(sock, CONTROL_RELOAD, "{\"heartbeat_ms\":10}", 19, NULL) == 0)
        n++;
    cr_assert(gt(int, n, 0));
    send_memfd_waiting(CONTROL_RELOAD, "{\"bad\":1}");
    do
        cr_assert(next() != 0);
    while (frame.type != CONTROL_RELOADED || !strstr(frame.payload, "not wanted"));
    send_json(CONTROL_STOP, "{}");
    cr_expect(eq(int, end(), 0));
}

Test(child, a_state_is_kept_until_the_supervisor_reads_again)
{
    char last[128] = "";

    handshake(&full);
    /* The queue is filled with beats by now or soon: nothing is read until the
     * child has been told, and only then everything. */
    for (int i = 0; i < 20; i++) {
        char text[64];

        snprintf(text, sizeof text, "{\"models\":[%d]}", i);
        if (control_send_memfd(sock, CONTROL_MODELS, text, strlen(text), NULL) != 0)
            break;
        snprintf(last, sizeof last, "models [%d]", i);
    }
    do
        cr_assert(eq(int, next_but_beats(), CONTROL_STATE));
    while (!strstr(frame.payload, last));
    send_json(CONTROL_STOP, "{}");
    cr_expect(eq(int, end(), 0));
}
