/* The calls that http_client.c leaves to libcurl: https, and names that have to
 * be looked up, which libcurl does on a thread of its own.
 *
 * libcurl is told about sockets and its one timer through callbacks and never
 * polls by itself. A handle must not be removed while libcurl is calling us for
 * it, so what callbacks ask for (cancel, resume) is noted and done by settle()
 * once libcurl has returned.
 */
#include "ipc/http_call.h"

#include "base/clock.h"
#include "base/err.h"
#include "ipc/loop.h"

#include <curl/curl.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum {
    SWEEP_US = 250000,
    CONNECT_US = 5000000,
    READ_BYTES = 16384,         /* of a transfer's buffer: events are small */
    KEPT_CONNECTIONS = 64,
    KEPT_S = 60,                /* below the 75 s of our server, so that a kept connection is rarely dead */
};

struct curl_side {
    struct loop *loop;
    CURLM *multi;
    struct loop_timer *timer;   /* libcurl's */
    struct loop_timer *sweep;   /* silence; 0 when something is to be settled */
    struct curl_call *calls, *last_call;    /* in order of their start */
    size_t n_timed;             /* calls with silence_us */
    unsigned depth;             /* libcurl is on the stack */
    bool unsettled;
};

struct curl_call {
    struct http_call pub;
    struct curl_side *client;
    struct curl_call *next, *prev;
    CURL *easy;
    struct curl_slist *headers;
    uint64_t last_byte_us;
    bool has_head, headless, connected, cancelled, ending;
    bool late;                          /* libcurl does not have it yet */
    bool paused, wants_pause;           /* as libcurl has it; as it should be */
    char text[CURL_ERROR_SIZE];
};

DEFINE_CLEANUP(struct curl_side *, curl_side_close)

/* What libcurl has open and wants to hear of. */
struct sock {
    struct loop_io io;
    struct curl_side *client;
};

/* ---- ends of calls ---- */

static void call_free(struct curl_call *call)
{
    struct curl_side *c = call->client;

    if (call->prev)
        call->prev->next = call->next;
    else
        c->calls = call->next;
    if (call->next)
        call->next->prev = call->prev;
    else
        c->last_call = call->prev;
    c->n_timed -= call->pub.spec.silence_us != 0;
    curl_multi_remove_handle(c->multi, call->easy);
    curl_easy_cleanup(call->easy);
    curl_slist_free_all(call->headers);
    free(call);
}

static int error_of(CURLcode code, CURL *easy)
{
    long os_error = 0;

    switch (code) {
    case CURLE_OK:
        return 0;
    case CURLE_COULDNT_CONNECT:
        curl_easy_getinfo(easy, CURLINFO_OS_ERRNO, &os_error);
        /* a socket file that is not there has nobody behind it either */
        return os_error == 0 || os_error == ENOENT ? -ECONNREFUSED : -(int)os_error;
    case CURLE_COULDNT_RESOLVE_HOST:
        return -EHOSTUNREACH;
    case CURLE_OPERATION_TIMEDOUT:
        return -ETIMEDOUT;
    case CURLE_GOT_NOTHING:
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
        return -ECONNRESET;
    case CURLE_OUT_OF_MEMORY:
        return -ENOMEM;
    case CURLE_BAD_CONTENT_ENCODING:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_WEIRD_SERVER_REPLY:
        return -EPROTO;
    default:
        return -EIO;
    }
}

static void call_finish(struct curl_call *call, int error, const char *text)
{
    struct http_call_result result = { .error = error, .connected = call->connected, .text = text };
    long status = 0, n_connects = 0;

    curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(call->easy, CURLINFO_NUM_CONNECTS, &n_connects);
    result.status = call->has_head ? (int)status : 0;
    result.reused = call->connected && n_connects == 0;
    call->ending = true;
    if (call->pub.spec.on_done)
        call->pub.spec.on_done(&call->pub, &result, call->pub.spec.user);
    call_free(call);
}

static void finish_done(struct curl_side *c)
{
    CURLMsg *msg;
    int left;

    while ((msg = curl_multi_info_read(c->multi, &left))) {
        struct curl_call *call = NULL;
        CURLcode code = msg->data.result;

        if (msg->msg != CURLMSG_DONE)
            continue;
        curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, &call);
        if (call->cancelled)
            call_free(call);
        else if (call->headless)
            call_finish(call, -EPROTO, "the answer has no head");
        else if (code == CURLE_OK && !call->has_head)
            call_finish(call, -ECONNRESET, "the answer ended within its head");     /* fine by curl */
        else
            call_finish(call, error_of(code, call->easy),
                        code == CURLE_OK ? "" : *call->text ? call->text : curl_easy_strerror(code));
    }
}

/* Hands libcurl the calls that were started inside its callbacks; returns one
 * that it does not take. */
static struct curl_call *add_late(struct curl_side *c)
{
    for (struct curl_call *call = c->calls; call; call = call->next) {
        if (!call->late || call->cancelled)
            continue;
        call->late = false;
        if (curl_multi_add_handle(c->multi, call->easy) != CURLM_OK)
            return call;
    }
    return NULL;
}

/* Does what was asked for while libcurl could not be touched. Pausing and
 * resuming call back, and what is asked for then waits for the next round. */
static void settle(struct curl_side *c)
{
    while (c->unsettled) {
        struct curl_call *next, *refused;

        c->unsettled = false;
        while ((refused = add_late(c)))
            call_finish(refused, -ENOMEM, "no memory for the call");
        c->depth++;
        for (struct curl_call *call = c->calls; call; call = call->next) {
            if (call->cancelled || call->paused == call->wants_pause)
                continue;
            call->paused = call->wants_pause;
            call->last_byte_us = clock_mono_us();
            curl_easy_pause(call->easy, call->paused ? CURLPAUSE_RECV : CURLPAUSE_CONT);
        }
        c->depth--;
        for (struct curl_call *call = c->calls; call; call = next) {
            next = call->next;
            if (call->cancelled)
                call_free(call);
        }
    }
}

static void drive(struct curl_side *c, curl_socket_t fd, int events)
{
    int running;

    c->depth++;
    curl_multi_socket_action(c->multi, fd, events, &running);
    c->depth--;
    finish_done(c);
    settle(c);
}

static void ask_to_settle(struct curl_side *c)
{
    c->unsettled = true;
    if (!c->depth)
        loop_timer_set(c->sweep, 0);
}

/* ---- what the loop tells libcurl ---- */

static void on_sock(struct loop_io *io, uint32_t events)
{
    const struct sock *s = io->user;

    drive(s->client, io->fd, (events & (EPOLLIN | EPOLLRDHUP) ? CURL_CSELECT_IN : 0) |
                             (events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
                             (events & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0));
}

static void on_timer(void *user)
{
    drive(user, CURL_SOCKET_TIMEOUT, 0);
}

static void on_sweep(void *user)
{
    struct curl_side *c = user;
    uint64_t now = clock_mono_us();
    struct curl_call *late;

    settle(c);
    /* Each end calls back, which may end others: so the list is walked anew. */
    do {
        late = c->n_timed ? c->calls : NULL;
        while (late && (!late->pub.spec.silence_us || late->paused || now < late->last_byte_us ||
                        now - late->last_byte_us <= late->pub.spec.silence_us))
            late = late->next;
        if (late)
            call_finish(late, -ETIMEDOUT, "the peer said nothing for too long");
    } while (late);
    if (c->unsettled)
        loop_timer_set(c->sweep, 0);
    else if (c->n_timed)
        loop_timer_set(c->sweep, SWEEP_US);
}

/* ---- what libcurl tells us ---- */

static int watch_socket(CURL *easy, curl_socket_t fd, int what, void *user, void *known)
{
    struct curl_side *c = user;
    struct sock *s = known;
    uint32_t events = (what & CURL_POLL_IN ? EPOLLIN : 0) | (what & CURL_POLL_OUT ? EPOLLOUT : 0);

    if (what == CURL_POLL_REMOVE) {
        if (s) {
            loop_remove(c->loop, &s->io);
            free(s);
            curl_multi_assign(c->multi, fd, NULL);
        }
        return 0;
    }
    if (s)
        return loop_arm(c->loop, &s->io, events) < 0 ? -1 : 0;
    s = calloc(1, sizeof *s);
    if (!s)
        return -1;
    s->client = c;
    s->io = (struct loop_io){ .fd = fd, .fn = on_sock, .user = s };
    if (loop_add(c->loop, &s->io, events) < 0) {
        free(s);
        return -1;
    }
    curl_multi_assign(c->multi, fd, s);
    return 0;
}

static int set_timer(CURLM *multi, long in_ms, void *user)
{
    struct curl_side *c = user;

    if (in_ms < 0)
        loop_timer_off(c->timer);
    else
        loop_timer_set(c->timer, (uint64_t)in_ms * 1000);
    return 0;
}

static int before_request(void *user, char *peer_ip, char *local_ip, int peer_port, int local_port)
{
    struct curl_call *call = user;

    call->connected = true;
    return CURL_PREREQFUNC_OK;
}

static size_t take_header(char *line, size_t size, size_t n, void *user)
{
    struct curl_call *call = user;
    size_t len = size * n;
    long status = 0;

    if (call->cancelled)
        return 0;
    call->last_byte_us = clock_mono_us();
    /* The empty line ends a head; that of a 1xx answer is not the one, and
     * trailers come here too. */
    if (call->has_head || len > 2 || (line[0] != '\r' && line[0] != '\n'))
        return len;
    curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status < 200)
        return len;
    call->has_head = true;
    if (call->pub.spec.on_head)
        call->pub.spec.on_head(&call->pub, (int)status, call->pub.spec.user);
    return call->cancelled ? 0 : len;
}

static size_t take_data(char *data, size_t size, size_t n, void *user)
{
    struct curl_call *call = user;
    size_t len = size * n;

    if (call->cancelled)
        return CURL_WRITEFUNC_ERROR;
    if (!call->has_head) {              /* behind a 101, or a status line that curl alone can read */
        call->headless = true;
        return CURL_WRITEFUNC_ERROR;
    }
    if (call->wants_pause) {
        call->paused = true;
        return CURL_WRITEFUNC_PAUSE;
    }
    call->last_byte_us = clock_mono_us();
    if (call->pub.spec.on_data && len)
        call->pub.spec.on_data(&call->pub, data, len, call->pub.spec.user);
    return call->cancelled ? CURL_WRITEFUNC_ERROR : len;
}

/* ---- the client ---- */

static void init_curl(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

int curl_side_open(struct loop *l, struct curl_side **ret, struct err *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    CLEANUP(curl_side_close) struct curl_side *c = calloc(1, sizeof *c);

    pthread_once(&once, init_curl);
    if (c) {
        c->loop = l;
        c->multi = curl_multi_init();
    }
    if (!c || !c->multi || loop_timer_new(l, on_timer, c, &c->timer) < 0 ||
        loop_timer_new(l, on_sweep, c, &c->sweep) < 0)
        return err_set(err, -ENOMEM, "HTTP client: no memory");
    curl_multi_setopt(c->multi, CURLMOPT_SOCKETFUNCTION, watch_socket);
    curl_multi_setopt(c->multi, CURLMOPT_SOCKETDATA, c);
    curl_multi_setopt(c->multi, CURLMOPT_TIMERFUNCTION, set_timer);
    curl_multi_setopt(c->multi, CURLMOPT_TIMERDATA, c);
    curl_multi_setopt(c->multi, CURLMOPT_MAXCONNECTS, (long)KEPT_CONNECTIONS);
    *ret = STEAL(c);
    return 0;
}

void curl_side_close(struct curl_side *c)
{
    if (!c)
        return;
    while (c->calls)
        call_free(c->calls);
    if (c->multi)
        curl_multi_cleanup(c->multi);
    loop_timer_free(c->timer);
    loop_timer_free(c->sweep);
    free(c);
}

static bool add_header(struct curl_call *call, const char *line)
{
    struct curl_slist *list = strpbrk(line, "\r\n") ? NULL : curl_slist_append(call->headers, line);

    if (list)
        call->headers = list;
    return list != NULL;
}

static long to_ms(uint64_t us)
{
    return us / 1000 >= INT32_MAX ? INT32_MAX : (long)((us + 999) / 1000);
}

static CURLcode set_request(struct curl_call *call, const struct http_call_spec *spec)
{
    const char *body = spec->body;
    CURL *e = call->easy;
    CURLcode r = CURLE_OK;

#define SET(option, value) do { if (r == CURLE_OK) r = curl_easy_setopt(e, option, value); } while (0)
    SET(CURLOPT_URL, spec->url);
    if (spec->unix_path)
        SET(CURLOPT_UNIX_SOCKET_PATH, spec->unix_path);
    if (!body && spec->method && (strcmp(spec->method, "POST") == 0 || strcmp(spec->method, "PUT") == 0))
        body = "";                      /* says Content-Length: 0 */
    if (body) {
        SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)spec->body_len);
        SET(CURLOPT_COPYPOSTFIELDS, body);
    }
    if (spec->method && strcmp(spec->method, "HEAD") == 0)
        SET(CURLOPT_NOBODY, 1L);
    else if (spec->method)
        SET(CURLOPT_CUSTOMREQUEST, spec->method);
    SET(CURLOPT_HTTPHEADER, call->headers);
    SET(CURLOPT_CONNECTTIMEOUT_MS, to_ms(spec->connect_us ? spec->connect_us : CONNECT_US));
    SET(CURLOPT_TIMEOUT_MS, to_ms(spec->total_us));
    SET(CURLOPT_FRESH_CONNECT, (long)spec->fresh);

    SET(CURLOPT_PRIVATE, call);
    SET(CURLOPT_ERRORBUFFER, call->text);
    SET(CURLOPT_HEADERFUNCTION, take_header);
    SET(CURLOPT_HEADERDATA, call);
    SET(CURLOPT_WRITEFUNCTION, take_data);
    SET(CURLOPT_WRITEDATA, call);
    SET(CURLOPT_PREREQFUNCTION, before_request);
    SET(CURLOPT_PREREQDATA, call);

    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    SET(CURLOPT_PROXY, "");
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_TCP_KEEPALIVE, 1L);
    SET(CURLOPT_BUFFERSIZE, (long)READ_BYTES);
    SET(CURLOPT_UPLOAD_BUFFERSIZE, (long)READ_BYTES);
    SET(CURLOPT_MAXAGE_CONN, (long)KEPT_S);
#undef SET
    return r;
}

/* curl would ask with Expect and wait, and it would call a body a form. */
static bool set_headers(struct curl_call *call, const char *const *lines)
{
    static const char type[] = "Content-Type:";
    bool fine = add_header(call, "Expect:"), typed = false;

    for (size_t i = 0; fine && lines && lines[i]; i++) {
        typed = typed || strncasecmp(lines[i], type, sizeof type - 1) == 0;
        fine = add_header(call, lines[i]);
    }
    return fine && (typed || add_header(call, type));
}

int curl_call_start(struct curl_side *c, const struct http_call_spec *spec, struct http_call **ret,
                    struct err *err)
{
    struct curl_call *call = calloc(1, sizeof *call);
    CURLcode r = CURLE_OUT_OF_MEMORY;
    bool fine;

    if (!call)
        return err_set(err, -ENOMEM, "%s: no memory", spec->url);
    call->client = c;
    call->pub = (struct http_call){ .spec = *spec, .by_curl = true };
    call->last_byte_us = clock_mono_us();
    call->easy = curl_easy_init();
    fine = call->easy && set_headers(call, spec->headers);
    if (fine)
        r = set_request(call, spec);
    call->late = c->depth > 0;
    if (r == CURLE_OK && !call->late && curl_multi_add_handle(c->multi, call->easy) != CURLM_OK)
        r = CURLE_OUT_OF_MEMORY;
    if (r != CURLE_OK) {
        curl_easy_cleanup(call->easy);
        curl_slist_free_all(call->headers);
        free(call);
        return fine ? err_set(err, -EINVAL, "%s: %s", spec->url, curl_easy_strerror(r))
                    : err_set(err, -EINVAL, "%s: a header that cannot be sent", spec->url);
    }
    call->prev = c->last_call;
    if (call->prev)
        call->prev->next = call;
    else
        c->calls = call;
    c->last_call = call;
    c->unsettled = c->unsettled || call->late;
    if (spec->silence_us && c->n_timed++ == 0)
        loop_timer_set(c->sweep, SWEEP_US);
    *ret = &call->pub;
    return 0;
}

void curl_call_cancel(struct http_call *pub)
{
    struct curl_call *call = (struct curl_call *)pub;

    if (call->cancelled || call->ending)
        return;
    call->cancelled = true;
    if (call->client->depth)
        call->client->unsettled = true;
    else
        call_free(call);
}

void curl_call_pause(struct http_call *pub, bool pause)
{
    struct curl_call *call = (struct curl_call *)pub;

    call->wants_pause = pause;
    if (call->wants_pause != call->paused)
        ask_to_settle(call->client);
}

const char *curl_call_header(struct http_call *pub, const char *name)
{
    struct curl_header *h = NULL;

    if (curl_easy_header(((struct curl_call *)pub)->easy, name, 0, CURLH_HEADER, -1, &h) != CURLHE_OK)
        return NULL;
    return h->value;
}
