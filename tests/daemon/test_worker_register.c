/* A worker and its controllers: one of ours, one as the Python program answers. */
#include "tests/daemon/worker_rig.h"

#include "base/clock.h"
#include "base/err.h"
#include "ipc/address.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_CONNS = 256 };

/* A controller that counts. Everything under the lock. */
struct fake {
    char address[128], quoted[140];
    int fd;
    pthread_t accepter;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool ours, forget, refuse;      /* how it answers */
    int registrations, beats, watches, watch_ends, queue_length;
    char registration[2048];
    int conns[MAX_CONNS];
    size_t n_conns;
};

static void count(struct fake *f, int *counter, int by)
{
    pthread_mutex_lock(&f->lock);
    *counter += by;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

static void wait_for(struct fake *f, const int *counter, int at_least)
{
    struct timespec end;
    int r = 0;

    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += RIG_CEILING_MS / 1000;
    pthread_mutex_lock(&f->lock);
    while (*counter < at_least && r == 0)
        r = pthread_cond_timedwait(&f->changed, &f->lock, &end);
    pthread_mutex_unlock(&f->lock);
    cr_assert(zero(int, r), "the controller waited in vain");
}

static int read_counter(struct fake *f, const int *counter)
{
    int n;

    pthread_mutex_lock(&f->lock);
    n = *counter;
    pthread_mutex_unlock(&f->lock);
    return n;
}

static void answer(int fd, int status, const char *body)
{
    char text[512];
    int n = snprintf(text, sizeof text, "HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                     status, strlen(body), body);

    if (send(fd, text, (size_t)n, MSG_NOSIGNAL) < 0)
        shutdown(fd, SHUT_RDWR);
}

/* Until the worker or the test ends it. */
static void watch(struct fake *f, int fd)
{
    static const char head[] = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n\n\r\n";
    char c;

    if (send(fd, head, sizeof head - 1, MSG_NOSIGNAL) > 0) {
        count(f, &f->watches, 1);
        while (recv(fd, &c, 1, 0) > 0)
            ;
    }
    count(f, &f->watch_ends, 1);
}

static void on_registration(struct fake *f, int fd, const char *body)
{
    bool ours;

    pthread_mutex_lock(&f->lock);
    snprintf(f->registration, sizeof f->registration, "%s", body);
    f->forget = false;
    ours = f->ours;
    pthread_mutex_unlock(&f->lock);
    answer(fd, 200, ours ? "{\"fastchat\":{\"version\":1}}" : "null");
    count(f, &f->registrations, 1);
}

static void on_beat(struct fake *f, int fd, const char *body)
{
    cJSON *tree = cJSON_Parse(body);
    bool forget;

    pthread_mutex_lock(&f->lock);
    f->queue_length = (int)cJSON_GetNumberValue(cJSON_GetObjectItem(tree, "queue_length"));
    forget = f->forget;
    pthread_mutex_unlock(&f->lock);
    cJSON_Delete(tree);
    answer(fd, 200, forget ? "{\"exist\":false}" : "{\"exist\":true}");
    count(f, &f->beats, 1);
}

/* One request off the front of `in`; false while it is not whole. */
static bool serve_one(struct fake *f, int fd, struct buf *in)
{
    char *end = in->len ? strstr(in->data, "\r\n\r\n") : NULL, *length;
    BUF_LOCAL body = BUF_INIT;
    size_t head, n;
    bool is_watch;

    if (!end)
        return false;
    head = (size_t)(end + 4 - in->data);
    length = strcasestr(in->data, "\r\ncontent-length:");
    n = length && length < end ? strtoul(length + strlen("\r\ncontent-length:"), NULL, 10) : 0;
    if (in->len < head + n)
        return false;
    buf_add(&body, in->data + head, n);
    is_watch = strncmp(in->data, "POST /worker_watch ", 19) == 0;
    if (f->refuse)
        answer(fd, 500, "no");
    else if (is_watch)
        watch(f, fd);
    else if (strncmp(in->data, "POST /register_worker ", 22) == 0)
        on_registration(f, fd, buf_str(&body));
    else if (strncmp(in->data, "POST /receive_heart_beat ", 25) == 0)
        on_beat(f, fd, buf_str(&body));
    else
        answer(fd, 404, "{}");
    buf_drop(in, head + n);
    return !is_watch;
}

struct conn { struct fake *fake; int fd; };

static void *serve(void *user)
{
    struct conn *c = user;
    BUF_LOCAL in = BUF_INIT;
    char bytes[4096];
    ssize_t n;

    while ((n = recv(c->fd, bytes, sizeof bytes, 0)) > 0) {
        buf_add(&in, bytes, (size_t)n);
        while (serve_one(c->fake, c->fd, &in))
            ;
    }
    free(c);
    return NULL;
}

static void *accept_all(void *user)
{
    struct fake *f = user;
    int fd;

    while ((fd = accept4(f->fd, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        struct conn *c = malloc(sizeof *c);
        pthread_t t;

        *c = (struct conn){ .fake = f, .fd = fd };
        pthread_mutex_lock(&f->lock);
        f->conns[f->n_conns++ % MAX_CONNS] = fd;
        pthread_mutex_unlock(&f->lock);
        pthread_create(&t, NULL, serve, c);
        pthread_detach(t);
    }
    return NULL;
}

static void fake_open(struct fake *f, const char *listen, const char *scheme, bool ours)
{
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    struct address a;
    struct err err = { 0 };

    *f = (struct fake){ .ours = ours };
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->changed, NULL);
    cr_assert(zero(int, address_parse(listen, &a, &err)), "%s", err_text(&err));
    cr_assert(zero(int, address_listen(&a, 64, 0600, (gid_t)-1, &f->fd, &err)), "%s", err_text(&err));
    fcntl(f->fd, F_SETFL, 0);
    if (a.is_unix) {
        snprintf(f->address, sizeof f->address, "%s", listen);
    } else {
        cr_assert(zero(int, getsockname(f->fd, (struct sockaddr *)&at, &len)));
        snprintf(f->address, sizeof f->address, "%s127.0.0.1:%u", scheme, ntohs(((struct sockaddr_in *)&at)->sin_port));
    }
    snprintf(f->quoted, sizeof f->quoted, "\"%s\"", f->address);
    cr_assert(zero(int, pthread_create(&f->accepter, NULL, accept_all, f)));
}

/* The controller dies: its socket refuses, its connections end. */
static void fake_close(struct fake *f)
{
    shutdown(f->fd, SHUT_RDWR);
    pthread_join(f->accepter, NULL);
    close(f->fd);
    pthread_mutex_lock(&f->lock);
    for (size_t i = 0; i < f->n_conns && i < MAX_CONNS; i++)
        shutdown(f->conns[i], SHUT_RDWR);
    pthread_mutex_unlock(&f->lock);
}

static void fake_path(char *dir, char *listen, size_t size)
{
    strcpy(dir, "/tmp/fastchat-fake-XXXXXX");
    cr_assert(not(zero(ptr, mkdtemp(dir))));
    snprintf(listen, size, "unix:%s/c", dir);
}

static void remove_path(const char *dir, const char *listen)
{
    unlink(listen + strlen("unix:"));
    rmdir(dir);
}

Test(worker_register, a_controller_of_ours_gets_a_watch_and_a_beat_a_second)
{
    struct fake f;
    struct rig_options options = { 0 };
    struct stream s;
    struct rig r;
    char dir[64], listen[128], want[512];
    const char *instance;

    fake_path(dir, listen, sizeof listen);
    fake_open(&f, listen, "", true);
    options.controllers = f.quoted;
    rig_ready(&r, "{\"context_length\":99,\"play\":[\"a\",{\"wait_ms\":80000000}]}", &options);
    wait_for(&f, &f.watches, 1);
    instance = strstr(f.registration, "\"instance\":");
    cr_assert(instance != NULL);
    snprintf(want, sizeof want,
             "{\"worker_name\":\"unix:%s\",\"check_heart_beat\":true,\"worker_status\":{\"model_names\":[\"test\",\"alias\"],"
             "\"speed\":1,\"queue_length\":0},\"multimodal\":false,\"fastchat\":{\"version\":2,\"instance\":%lld,\"unix\":\"%s\","
             "\"lease_ms\":10000,\"context_length\":99,\"parallel\":4,\"queue\":1000,\"aliases\":[\"alias\"]}}",
             r.sock, atoll(instance + strlen("\"instance\":")), r.sock);
    cr_expect(eq(str, f.registration, want));
    stream_open(&r, &s, "POST /fastchat/generate", "{\"prompt\":\"p\"}");
    stream_wait(&s, "\"a\"");
    wait_for(&f, &f.beats, 1);
    while (read_counter(&f, &f.queue_length) != 1)
        wait_for(&f, &f.beats, read_counter(&f, &f.beats) + 1);
    cr_expect(eq(int, f.registrations, 1));
    stream_close(&s);
    rig_send(&r, CONTROL_DRAIN, "{}");
    wait_for(&f, &f.watch_ends, 1);
    cr_expect(zero(int, rig_wait_exit(&r)));
    rig_clean(&r);
    fake_close(&f);
    remove_path(dir, listen);
}

Test(worker_register, a_controller_that_forgot_or_came_back_is_registered_with_again)
{
    struct fake f, again;
    struct rig_options options = { 0 };
    struct rig r;
    char dir[64], listen[128];

    fake_path(dir, listen, sizeof listen);
    fake_open(&f, listen, "", true);
    options.controllers = f.quoted;
    rig_ready(&r, "{}", &options);
    wait_for(&f, &f.beats, 1);
    pthread_mutex_lock(&f.lock);
    f.forget = true;
    pthread_mutex_unlock(&f.lock);
    wait_for(&f, &f.registrations, 2);
    wait_for(&f, &f.watches, 2);
    wait_for(&f, &f.watch_ends, 1);
    fake_close(&f);
    fake_open(&again, listen, "", true);
    wait_for(&again, &again.registrations, 1);
    wait_for(&again, &again.watches, 1);
    wait_for(&again, &again.beats, 1);
    rig_stop(&r);
    fake_close(&again);
    remove_path(dir, listen);
}

Test(worker_register, a_controller_that_comes_late_is_found)
{
    struct fake f;
    struct rig_options options = { 0 };
    struct rig r;
    char dir[64], listen[128], quoted[140];

    fake_path(dir, listen, sizeof listen);
    snprintf(quoted, sizeof quoted, "\"%s\"", listen);
    options.controllers = quoted;
    rig_ready(&r, "{}", &options);
    for (int i = 0; i < 5; i++)
        cJSON_Delete(rig_next(&r, CONTROL_HEARTBEAT));
    fake_open(&f, listen, "", true);
    wait_for(&f, &f.watches, 1);
    rig_stop(&r);
    fake_close(&f);
    remove_path(dir, listen);
}

static bool registered_as(struct fake *f, const char *names)
{
    bool is;

    pthread_mutex_lock(&f->lock);
    is = strstr(f->registration, names) != NULL;
    pthread_mutex_unlock(&f->lock);
    return is;
}

/* The watch that counts for the new registration is there before anybody could
 * see the worker gone: the old one ends only after the new answer. */
Test(worker_register, other_aliases_are_told_to_every_controller)
{
    struct fake ours, theirs;
    struct rig_options options = { 0 };
    struct rig r;
    cJSON *tree;
    char list[400];

    fake_open(&ours, "127.0.0.1:0", "http://", true);
    fake_open(&theirs, "127.0.0.1:0", "http://", false);
    snprintf(list, sizeof list, "%s,%s", ours.quoted, theirs.quoted);
    options.controllers = list;
    rig_ready(&r, "{}", &options);
    wait_for(&ours, &ours.watches, 1);
    wait_for(&theirs, &theirs.registrations, 1);

    options.aliases = "\"new\",\"newer\"";
    cr_expect(zero(ptr, (void *)rig_reload(&r, &options)));
    tree = rig_ask_json(&r, 200, "POST", "/worker_get_status", NULL);
    cr_expect(eq(int, cJSON_GetArraySize(cJSON_GetObjectItem(tree, "model_names")), 3));
    cJSON_Delete(tree);
    wait_for(&theirs, &theirs.registrations, 2);
    wait_for(&ours, &ours.watches, 2);
    wait_for(&ours, &ours.watch_ends, 1);
    cr_expect(registered_as(&ours, "\"model_names\":[\"test\",\"new\",\"newer\"]"));
    cr_expect(registered_as(&ours, "\"aliases\":[\"new\",\"newer\"]"));
    cr_expect(registered_as(&theirs, "\"model_names\":[\"test\",\"new\",\"newer\"]"));

    cr_expect(zero(ptr, (void *)rig_reload(&r, &options)));     /* the same: nobody need know */
    wait_for(&ours, &ours.beats, read_counter(&ours, &ours.beats) + 2);
    cr_expect(eq(int, read_counter(&ours, &ours.registrations), 2));
    cr_expect(eq(int, read_counter(&ours, &ours.watches), 2));
    rig_stop(&r);
    fake_close(&ours);
    fake_close(&theirs);
}

Test(worker_register, aliases_that_change_while_it_loads_are_those_it_comes_with)
{
    struct fake f;
    struct rig_options options = { 0 };
    struct rig r;

    fake_open(&f, "127.0.0.1:0", "http://", true);
    options.controllers = f.quoted;
    rig_start(&r, "{\"load_ms\":300}", &options);
    options.aliases = "";
    cr_expect(zero(ptr, (void *)rig_reload(&r, &options)));
    wait_for(&f, &f.beats, 1);
    cr_expect(registered_as(&f, "\"model_names\":[\"test\"]"));
    cr_expect(ge(int, read_counter(&f, &f.registrations), 1));
    rig_stop(&r);
    fake_close(&f);
}

Test(worker_register, a_python_controller_gets_beats_and_no_watch)
{
    struct fake f;
    struct rig_options options = { 0 };
    struct rig r;

    setenv("FASTCHAT_WORKER_HEART_BEAT_INTERVAL", "1", 1);
    setenv("http_proxy", "http://nowhere.invalid:1", 1);
    fake_open(&f, "127.0.0.1:0", "http://", false);
    options.controllers = f.quoted;
    rig_ready(&r, "{}", &options);
    wait_for(&f, &f.registrations, 1);
    wait_for(&f, &f.beats, 2);
    cr_expect(zero(int, read_counter(&f, &f.watches)));
    cr_expect(eq(int, read_counter(&f, &f.registrations), 1));
    pthread_mutex_lock(&f.lock);
    f.forget = true;
    pthread_mutex_unlock(&f.lock);
    wait_for(&f, &f.registrations, 2);
    rig_stop(&r);
    fake_close(&f);
}

Test(worker_register, several_controllers_are_independent)
{
    struct fake a, b;
    struct rig_options options = { 0 };
    struct rig r;
    char list[400];

    fake_open(&a, "127.0.0.1:0", "http://", true);
    fake_open(&b, "127.0.0.1:0", "http://", true);
    b.refuse = true;
    snprintf(list, sizeof list, "%s,\"unix:/nonexistent/c\",%s", a.quoted, b.quoted);
    options.controllers = list;
    rig_ready(&r, "{}", &options);
    wait_for(&a, &a.beats, 2);
    pthread_mutex_lock(&b.lock);
    b.refuse = false;
    pthread_mutex_unlock(&b.lock);
    wait_for(&b, &b.watches, 1);
    fake_close(&a);
    wait_for(&b, &b.beats, 2);
    rig_stop(&r);
    fake_close(&b);
}

Test(worker_register, a_frozen_engine_sends_controllers_no_beats)
{
    struct fake f;
    struct rig_options options = { 0 };
    struct stream s;
    struct rig r;
    char dir[64], listen[128];
    int beats = 0;

    fake_path(dir, listen, sizeof listen);
    fake_open(&f, listen, "", true);
    options.controllers = f.quoted;
    rig_ready(&r, "{\"play\":[\"a\",{\"hang\":true}]}", &options);
    wait_for(&f, &f.beats, 1);
    stream_open(&r, &s, "POST /fastchat/generate", "{\"prompt\":\"p\"}");
    stream_wait(&s, "\"a\"");
    /* Quiet for several of the intervals that an answering worker keeps. */
    for (uint64_t now, since = clock_mono_ms(), end = since + RIG_CEILING_MS; (now = clock_mono_ms()) < since + 3500;) {
        cr_assert(lt(u64, now, end), "the beats do not stop");
        rig_queue_length(&r);
        if (read_counter(&f, &f.beats) != beats) {
            beats = read_counter(&f, &f.beats);
            since = now;
        }
    }
    stream_close(&s);
    rig_stop(&r);
    fake_close(&f);
    remove_path(dir, listen);
}
