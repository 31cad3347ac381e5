/* streams.c - many streams at once, each verified to the last byte.
 *
 *     bench-streams --api 127.0.0.1:PORT --model NAME --tokens N --streams N --seconds S
 *                   [--worker PATH]… [--straight N] [--process ROLE:PID]… [--threads N] [--opening N]
 *                   [--gather-us N]
 *
 * Streams are opened a few at a time; once every one has given its first event
 * the time runs. A stream that ends begins anew on its connection. After the
 * time the open ones are read to their end.
 *
 * What is verified, of every stream: status 200, the framing of the body, one
 * role chunk first, the same chunk head (id) all along, the tokens 0 to N-1
 * once each and in order, one finish chunk, [DONE], and nothing behind it.
 *
 * Latency: the model's script (streams.py) says the clock instead of its number
 * at every tenth token. Both programs are on one machine, so the time that this one
 * reads the token less the time that it holds is how long it was on its way
 * from the engine. `--straight` streams come from the workers' own sockets in
 * the same run and by the same loop: what the api adds is the difference.
 *
 * Real clients are on other machines. One that sleeps here until bytes come is
 * woken by each event, and the sender pays for that; with --gather-us it looks
 * only so often, which is in both latencies.
 *
 * Lines are CSV: what,value,unit. Exit code 1 when anything was not in order.
 */
#include "base/buf.h"
#include "base/clock.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    MAX_THREADS = 16, MAX_PROCESSES = 160, MAX_WORKERS = 64, EVENTS = 4096, READ_BYTES = 65536,
    LINE_BYTES = 65536, HEAD_ROOM = 160, REPORTED = 10, CLOCK_EVERY = 10, GRACE_S = 180,
};

/* ---- latencies: 32 buckets an octave, so within 3 percent ---- */

enum { LAT_SUB = 32, LAT_BUCKETS = 40 * LAT_SUB };

struct lat {
    uint64_t n, buckets[LAT_BUCKETS];
};

static size_t lat_bucket(uint64_t us)
{
    unsigned shift = 0;

    while (us >> shift >= 2 * LAT_SUB)
        shift++;
    return shift ? (size_t)(shift * LAT_SUB + (us >> shift)) : (size_t)us;
}

static void lat_add(struct lat *l, uint64_t us)
{
    l->buckets[lat_bucket(us < UINT64_C(1) << 36 ? us : UINT64_C(1) << 36)]++;
    l->n++;
}

static double lat_ms(const struct lat *l, double share)
{
    uint64_t want = (uint64_t)(share * (double)l->n), seen = 0;

    for (size_t i = 0; i < LAT_BUCKETS; i++) {
        seen += l->buckets[i];
        if (seen > want) {
            unsigned shift = i < 2 * LAT_SUB ? 0 : (unsigned)(i / LAT_SUB) - 1;

            return (double)((shift ? i - (size_t)shift * LAT_SUB : i) << shift) / 1000;
        }
    }
    return 0;
}

/* ---- what runs ---- */

struct process {
    const char *role;
    int pid;
    double cpu_s, rss_kb;               /* at the last look */
    unsigned n_fds;
};

static struct {
    struct sockaddr_in api;
    const char *model;
    const char *workers[MAX_WORKERS];
    size_t n_workers;
    unsigned n_tokens, n_streams, n_straight, seconds, n_threads, n_opening, gather_us;
    struct process processes[MAX_PROCESSES];
    size_t n_processes;
    char request[1024], straight_request[1024];
} opt = { .n_tokens = 100, .n_streams = 9000, .seconds = 60, .n_threads = 1, .n_opening = 64 };

static atomic_uint n_begun;             /* streams that had their first event */
static atomic_bool measuring, stopping;
static atomic_uint n_faults;
static _Atomic uint64_t give_up_us;     /* streams that run then do not end */

enum phase { PHASE_HEAD, PHASE_SIZE, PHASE_DATA, PHASE_DATA_END, PHASE_TRAILER };

struct stream {
    int fd;
    bool straight, begun, open, asked;
    unsigned serial;
    enum phase phase;
    uint64_t left;                      /* of a chunk */
    unsigned head_at;                   /* line breaks seen of the end of the head, or trailer bytes */
    struct buf rest;                    /* of a line, or the head */
    char head[HEAD_ROOM];               /* of the chunks */
    size_t head_len;
    unsigned next;                      /* token */
    bool role, finished, done;
};

struct client {
    pthread_t thread;
    int epoll;
    struct stream *streams;
    unsigned n_streams, n_unopened, n_opening, n_open;
    uint64_t n_tokens, n_reads, n_whole, n_chunks;
    struct lat lat, lat_straight;
    char read[READ_BYTES];
};

static void fault(struct stream *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void fault(struct stream *s, const char *fmt, ...)
{
    va_list ap;

    if (atomic_fetch_add(&n_faults, 1) < REPORTED) {
        char text[400];

        va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        fprintf(stderr, "stream %u%s, token %u: %s\n", s->serial, s->straight ? " (straight)" : "", s->next, text);
    }
    s->open = false;
}

static void die(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fprintf(stderr, "bench-streams: ");
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, "\n");
    va_end(ap);
    exit(2);
}

/* ---- verifying ---- */

/* "12 13 @1234567 ": numbers in order, the clock where it belongs. */
static void take_text(struct client *c, struct stream *s, const char *text, const char *end)
{
    while (text < end && s->open) {
        bool clock = *text == '@';
        uint64_t value = 0;
        const char *p = text + clock, *start = p;

        while (p < end && *p >= '0' && *p <= '9')
            value = 10 * value + (uint64_t)(*p++ - '0');
        if (p == start || p == end || *p != ' ') {
            fault(s, "not a token: %.*s", (int)(end - text), text);
            return;
        }
        if (clock != (s->next % CLOCK_EVERY == CLOCK_EVERY - 1) || (!clock && value != s->next)) {
            fault(s, "not in order: %.*s", (int)(end - text), text);
            return;
        }
        if (atomic_load_explicit(&measuring, memory_order_relaxed)) {
            c->n_tokens += !s->straight;
            if (clock)
                lat_add(s->straight ? &c->lat_straight : &c->lat, clock_mono_us() - value);
        }
        s->next++;
        text = p + 1;
    }
    c->n_chunks += !s->straight && atomic_load_explicit(&measuring, memory_order_relaxed);
}

static bool begins(const char *line, size_t len, const char *with)
{
    size_t n = strlen(with);

    return len >= n && memcmp(line, with, n) == 0;
}

/* Where the value of "key" begins: `key` holds the quotes and the colon. */
static const char *find(const char *line, size_t len, const char *key)
{
    const char *at = memmem(line, len, key, strlen(key));

    return at ? at + strlen(key) : NULL;
}

static void take_string(struct client *c, struct stream *s, const char *text, const char *line, size_t len)
{
    const char *end = memchr(text, '"', len - (size_t)(text - line));

    if (end)
        take_text(c, s, text, end);
    else
        fault(s, "cut: %.*s", (int)len, line);
}

static void finish(struct stream *s, const char *line, size_t len)
{
    if (!find(line, len, "\"finish_reason\":\"stop\""))
        fault(s, "ended with: %.*s", (int)len, line);
    else if (s->next != opt.n_tokens)
        fault(s, "%u tokens are missing at its end", opt.n_tokens - s->next);
    s->finished = true;
}

/* A line of the worker's own stream; docs/wire.md, part 4. */
static void take_straight(struct client *c, struct stream *s, const char *line, size_t len)
{
    if (s->done)
        fault(s, "more after the end: %.*s", (int)len, line);
    else if (begins(line, len, "{\"prompt_tokens\":") && !s->role)
        s->role = true;
    else if (begins(line, len, "{\"text\":\"") && s->role)
        take_string(c, s, line + 9, line, len);
    else if (begins(line, len, "{\"finish_reason\":") && s->role)
        finish(s, line, len), s->done = true;
    else
        fault(s, "unexpected: %.*s", (int)len, line);
}

/* A line of an event stream. */
static void take_event(struct client *c, struct stream *s, const char *line, size_t len)
{
    const char *choices, *text;

    if (!len || line[0] == ':')
        return;
    if (s->done || !begins(line, len, "data: ")) {
        fault(s, "unexpected: %.*s", (int)len, line);
        return;
    }
    if (len == 12 && begins(line, len, "data: [DONE]")) {
        if (!s->finished)
            fault(s, "[DONE] without a finish chunk");
        s->done = true;
        return;
    }
    choices = find(line, len, "\"choices\":[{");
    if (!choices || (size_t)(choices - line) > HEAD_ROOM || s->finished) {
        fault(s, "unexpected: %.*s", (int)len, line);
        return;
    }
    if (!s->role) {
        s->head_len = (size_t)(choices - line);
        memcpy(s->head, line, s->head_len);
        s->role = true;
        if (!find(line, len, "\"role\":\"assistant\""))
            fault(s, "no role chunk: %.*s", (int)len, line);
        return;
    }
    if ((size_t)(choices - line) != s->head_len || memcmp(line, s->head, s->head_len) != 0) {
        fault(s, "a chunk of another answer: %.*s", (int)len, line);
        return;
    }
    len -= (size_t)(choices - line);
    text = find(choices, len, "\"content\":\"");
    if (text)
        take_string(c, s, text, choices, len);
    else
        finish(s, choices, len);
}

static void take_line(struct client *c, struct stream *s, const char *line, size_t len)
{
    if (s->straight)
        take_straight(c, s, line, len);
    else
        take_event(c, s, line, len);
}

/* Bytes of the body, without the chunks' framing. */
static void take_body(struct client *c, struct stream *s, const char *data, size_t len)
{
    while (len && s->open) {
        const char *end = memchr(data, '\n', len);
        size_t n = end ? (size_t)(end - data) : len;

        if (!end || s->rest.len)
            buf_add(&s->rest, data, n);
        if (s->rest.failed || s->rest.len > LINE_BYTES)
            fault(s, "a line without end");
        if (!end)
            return;
        if (s->rest.len)
            take_line(c, s, s->rest.data, s->rest.len);
        else
            take_line(c, s, data, n);
        buf_clear(&s->rest);
        data += n + 1;
        len -= n + 1;
    }
}

/* ---- the framing ---- */

static size_t take_head(struct stream *s, const char *data, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        s->head_at = data[i] == '\n' ? s->head_at + 1 : data[i] == '\r' ? s->head_at : 0;
        if (s->head_at < 2)
            continue;
        buf_add(&s->rest, data, i + 1);
        if (!begins(s->rest.data, s->rest.len, "HTTP/1.1 200 ") ||
            !find(s->rest.data, s->rest.len, "Transfer-Encoding: chunked\r\n"))
            fault(s, "answered: %.*s", (int)(s->rest.len < 300 ? s->rest.len : 300), s->rest.data);
        buf_fini(&s->rest);
        s->head_at = 0;
        s->phase = PHASE_SIZE;
        return i + 1;
    }
    buf_add(&s->rest, data, len);
    return len;
}

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* One phase's part of the bytes; how many it took. */
static size_t take_part(struct client *c, struct stream *s, const char *data, size_t len)
{
    size_t n = 0;

    switch (s->phase) {
    case PHASE_HEAD: return take_head(s, data, len);
    case PHASE_SIZE:
        for (; n < len && data[n] != '\n'; n++)
            if (hex(data[n]) >= 0)
                s->left = 16 * s->left + (uint64_t)hex(data[n]);
            else if (data[n] != '\r')
                fault(s, "not the size of a chunk");
        if (n == len)
            return n;
        s->phase = s->left ? PHASE_DATA : PHASE_TRAILER;
        return n + 1;
    case PHASE_DATA:
        n = len < s->left ? len : s->left;
        take_body(c, s, data, n);
        s->left -= n;
        if (!s->left)
            s->phase = PHASE_DATA_END;
        return n;
    case PHASE_DATA_END:
    case PHASE_TRAILER:
        for (; n < len && s->head_at < 2; n++)
            if (data[n] != "\r\n"[s->head_at++])
                fault(s, "a chunk without its end");
        if (s->head_at < 2)
            return n;
        s->head_at = 0;
        if (s->phase == PHASE_TRAILER) {
            s->asked = false;
            if (!s->done || s->rest.len)
                fault(s, "the body ended before the stream");
        } else {
            s->phase = PHASE_SIZE;
        }
        return n;
    }
    return len;
}

/* ---- connections ---- */

static void stream_close(struct client *c, struct stream *s)
{
    close(s->fd);
    s->fd = -1;
    buf_fini(&s->rest);
    c->n_open--;
    if (!s->begun)
        c->n_opening--;
}

static void stream_ask(struct stream *s)
{
    const char *request = s->straight ? opt.straight_request : opt.request;
    size_t len = strlen(request);

    s->phase = PHASE_HEAD;
    s->left = 0;
    s->head_at = s->next = 0;
    s->role = s->finished = s->done = false;
    s->asked = true;
    if (send(s->fd, request, len, MSG_NOSIGNAL) != (ssize_t)len)
        fault(s, "request: %s", strerror(errno));
}

static void stream_connect(struct client *c, struct stream *s)
{
    const char *path = s->straight ? opt.workers[s->serial % opt.n_workers] : NULL;
    struct sockaddr_un un = { .sun_family = AF_UNIX };
    const struct sockaddr *to = s->straight ? (const void *)&un : (const void *)&opt.api;
    socklen_t len = s->straight ? sizeof un : sizeof opt.api;
    struct epoll_event e = { .events = EPOLLIN, .data.ptr = s };
    int one = 1;

    if (path)
        snprintf(un.sun_path, sizeof un.sun_path, "%s", path);
    s->fd = socket(to->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s->fd < 0 || connect(s->fd, to, len) < 0)
        die("connection %u: %s", s->serial, strerror(errno));
    setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(s->fd, F_SETFL, O_NONBLOCK);
    if (epoll_ctl(c->epoll, EPOLL_CTL_ADD, s->fd, &e) < 0)
        die("epoll: %s", strerror(errno));
    s->open = true;
    c->n_open++;
    c->n_opening++;
    stream_ask(s);
}

static void stream_read(struct client *c, struct stream *s)
{
    ssize_t n = recv(s->fd, c->read, sizeof c->read, 0);
    size_t at = 0;

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    c->n_reads++;
    if (n <= 0)
        fault(s, "the connection ended: %s", n ? strerror(errno) : "closed");
    while (n > 0 && at < (size_t)n && s->open) {
        if (!s->asked)
            fault(s, "bytes behind the answer");
        at += take_part(c, s, c->read + at, (size_t)n - at);
    }
    if (s->open && !s->begun && s->next) {
        s->begun = true;
        c->n_opening--;
        atomic_fetch_add(&n_begun, 1);
    }
    if (s->open && !s->asked) {
        c->n_whole++;
        if (atomic_load_explicit(&stopping, memory_order_relaxed))
            s->open = false;
        else
            stream_ask(s);
    }
    if (!s->open)
        stream_close(c, s);
}

static void *client_run(void *user)
{
    struct client *c = user;
    struct epoll_event events[EVENTS];

    while (c->n_open || (c->n_unopened && !atomic_load(&stopping))) {
        int n;

        if (atomic_load(&stopping) && clock_mono_us() > atomic_load(&give_up_us)) {
            for (unsigned i = 0; i < c->n_streams; i++)
                if (c->streams[i].open)
                    fault(&c->streams[i], "does not end");
            break;
        }

        while (c->n_unopened && c->n_opening < opt.n_opening / opt.n_threads + 1 && !atomic_load(&stopping))
            stream_connect(c, &c->streams[--c->n_unopened]);
        if (opt.gather_us)
            usleep(opt.gather_us);
        n = epoll_wait(c->epoll, events, EVENTS, opt.gather_us ? 0 : 100);
        for (int i = 0; i < n; i++)
            stream_read(c, events[i].data.ptr);
    }
    return NULL;
}

/* ---- the other processes ---- */

static void look_at(struct process *p)
{
    static const char anon[] = "RssAnon:";
    char path[64], text[4096];
    unsigned long user = 0, kernel = 0;
    const char *at;
    FILE *f;
    DIR *d;

    snprintf(path, sizeof path, "/proc/%d/stat", p->pid);
    f = fopen(path, "r");
    if (f && fgets(text, sizeof text, f) && (at = strrchr(text, ')')) &&
        sscanf(at + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &kernel) == 2)
        p->cpu_s = (double)(user + kernel) / (double)sysconf(_SC_CLK_TCK);
    if (f)
        fclose(f);
    snprintf(path, sizeof path, "/proc/%d/status", p->pid);
    f = fopen(path, "r");
    while (f && fgets(text, sizeof text, f))
        if (strncmp(text, anon, sizeof anon - 1) == 0)
            p->rss_kb = strtod(text + sizeof anon - 1, NULL);
    if (f)
        fclose(f);
    snprintf(path, sizeof path, "/proc/%d/fd", p->pid);
    d = opendir(path);
    for (p->n_fds = 0; d && readdir(d);)
        p->n_fds++;
    if (d)
        closedir(d);
}

/* Seconds that all processors together worked for anybody. */
static double busy_s(void)
{
    unsigned long long v[8] = { 0 };
    FILE *f = fopen("/proc/stat", "r");
    int n = f ? fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &v[0], &v[1], &v[2], &v[3], &v[4], &v[5],
                       &v[6], &v[7]) : 0;

    if (f)
        fclose(f);
    return n == 8 ? (double)(v[0] + v[1] + v[2] + v[5] + v[6]) / (double)sysconf(_SC_CLK_TCK) : 0;
}

struct look {
    struct process processes[MAX_PROCESSES];
    double own_s, busy_s, at_s;
};

static void look(struct look *l)
{
    struct rusage ru;

    for (size_t i = 0; i < opt.n_processes; i++) {
        l->processes[i] = opt.processes[i];
        look_at(&l->processes[i]);
    }
    getrusage(RUSAGE_SELF, &ru);
    l->own_s = (double)(ru.ru_utime.tv_sec + ru.ru_stime.tv_sec) +
               (double)(ru.ru_utime.tv_usec + ru.ru_stime.tv_usec) / 1e6;
    l->busy_s = busy_s();
    l->at_s = (double)clock_mono_us() / 1e6;
}

/* ---- the result ---- */

static void say(const char *what, const char *role, double value, const char *unit)
{
    printf("%s%s%s,%.6g,%s\n", what, *role ? " " : "", role, value, unit);
}

static void say_latency(const char *what, const struct lat *l)
{
    static const struct { const char *name; double share; } rows[] = {
        { "median", 0.5 }, { "90 %", 0.9 }, { "99 %", 0.99 }, { "99.9 %", 0.999 },
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && l->n; i++)
        say(what, rows[i].name, lat_ms(l, rows[i].share), "ms");
}

static void say_processes(const struct look *before, const struct look *begin, const struct look *end, double n_tokens)
{
    double all = end->own_s - begin->own_s;

    for (size_t i = 0; i < opt.n_processes; i++) {
        const char *role = opt.processes[i].role;
        unsigned least = UINT_MAX, most = 0;
        double cpu_s = 0, kb = 0, n = 0;
        bool told = false;

        for (size_t k = 0; k < opt.n_processes; k++) {
            if (strcmp(opt.processes[k].role, role) != 0)
                continue;
            told = told || k < i;
            n++;
            cpu_s += end->processes[k].cpu_s - begin->processes[k].cpu_s;
            kb += end->processes[k].rss_kb - before->processes[k].rss_kb;
            least = end->processes[k].n_fds < least ? end->processes[k].n_fds : least;
            most = end->processes[k].n_fds > most ? end->processes[k].n_fds : most;
        }
        if (told)
            continue;
        all += cpu_s;
        say("processes", role, n, "");
        say("descriptors, least", role, least, "");
        say("descriptors, most", role, most, "");
        say("CPU per event", role, cpu_s * 1e6 / n_tokens, "us");
        say("memory per stream", role, kb / opt.n_streams, "kB");
    }
    say("CPU per event", "client", (end->own_s - begin->own_s) * 1e6 / n_tokens, "us");
    say("CPU per event", "together", all * 1e6 / n_tokens, "us");
    say("processors busy", "for this", all / (end->at_s - begin->at_s), "");
    say("processors busy", "for others", (end->busy_s - begin->busy_s - all) / (end->at_s - begin->at_s), "");
}

static void report(struct client *clients, const struct look *before, const struct look *begin, const struct look *end)
{
    static struct lat lat, straight;
    double n_tokens = 0, n_whole = 0, n_chunks = 0, s = end->at_s - begin->at_s;

    for (unsigned i = 0; i < opt.n_threads; i++) {
        n_tokens += (double)clients[i].n_tokens;
        n_chunks += (double)clients[i].n_chunks;
        n_whole += (double)clients[i].n_whole;
        lat.n += clients[i].lat.n;
        straight.n += clients[i].lat_straight.n;
        for (size_t k = 0; k < LAT_BUCKETS; k++) {
            lat.buckets[k] += clients[i].lat.buckets[k];
            straight.buckets[k] += clients[i].lat_straight.buckets[k];
        }
    }
    say("streams at once", "", opt.n_streams, "");
    say("time", "", s, "s");
    say("events", "", n_tokens / s, "1/s");
    say("events of one stream", "", n_tokens / s / opt.n_streams, "1/s");
    say("events in a chunk of their own", "", n_tokens ? 100 * n_chunks / n_tokens : 0, "%");
    say("whole streams verified", "", n_whole, "");
    say("streams not in order", "", atomic_load(&n_faults), "");
    say_latency("engine to client through the api", &lat);
    say_latency("engine to client straight from the worker", &straight);
    if (straight.n)
        say("added by the api", "median", lat_ms(&lat, 0.5) - lat_ms(&straight, 0.5), "ms");
    say_processes(before, begin, end, n_tokens > 0 ? n_tokens : 1);
}

/* ---- the run ---- */

static void wait_until_begun(void)
{
    unsigned all = opt.n_streams + opt.n_straight, seen = 0;
    uint64_t since = clock_mono_us();

    while (atomic_load(&n_begun) < all && !atomic_load(&n_faults)) {
        usleep(10000);
        if (atomic_load(&n_begun) != seen) {
            seen = atomic_load(&n_begun);
            since = clock_mono_us();
        }
        if (clock_mono_us() - since > (uint64_t)GRACE_S * 1000000)
            die("only %u of %u streams have begun", seen, all);
    }
}

/* The streams of thread i: a share of each kind. */
static void client_open(struct client *c, unsigned i)
{
    unsigned total = opt.n_streams + opt.n_straight;

    c->n_streams = total / opt.n_threads + (i < total % opt.n_threads);
    c->streams = calloc(c->n_streams + 1, sizeof c->streams[0]);
    c->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (!c->streams || c->epoll < 0)
        die("no memory");
    for (unsigned k = 0; k < c->n_streams; k++) {
        struct stream *s = &c->streams[k];

        s->serial = k * opt.n_threads + i;
        s->straight = s->serial >= opt.n_streams;
    }
    c->n_unopened = c->n_streams;
}

static int run(void)
{
    static struct look before, begin, end;
    struct client *clients = calloc(opt.n_threads, sizeof clients[0]);

    if (!clients)
        die("no memory");
    look(&before);
    for (unsigned i = 0; i < opt.n_threads; i++) {
        client_open(&clients[i], i);
        if (pthread_create(&clients[i].thread, NULL, client_run, &clients[i]) != 0)
            die("no thread");
    }
    wait_until_begun();
    look(&begin);
    atomic_store(&measuring, true);
    for (unsigned i = 0; i < 10 * opt.seconds && !atomic_load(&n_faults); i++)
        usleep(100000);
    atomic_store(&measuring, false);
    look(&end);
    atomic_store(&give_up_us, clock_mono_us() + (uint64_t)GRACE_S * 1000000);
    atomic_store(&stopping, true);
    for (unsigned i = 0; i < opt.n_threads; i++)
        pthread_join(clients[i].thread, NULL);
    report(clients, &before, &begin, &end);
    for (unsigned i = 0; i < opt.n_threads; i++) {
        close(clients[i].epoll);
        free(clients[i].streams);
    }
    free(clients);
    return atomic_load(&n_faults) ? 1 : 0;
}

static unsigned number(const char *name, const char *text, unsigned min, unsigned max)
{
    char *end;
    unsigned long v = strtoul(text, &end, 10);

    if (*end || end == text || v < min || v > max)
        die("%s must be between %u and %u", name, min, max);
    return (unsigned)v;
}

static void set_api(const char *text)
{
    char host[64];
    const char *colon = strrchr(text, ':');

    snprintf(host, sizeof host, "%.*s", colon ? (int)(colon - text) : 0, text);
    opt.api.sin_family = AF_INET;
    if (!colon || inet_pton(AF_INET, host, &opt.api.sin_addr) != 1)
        die("--api must be an IPv4 address and a port");
    opt.api.sin_port = htons((uint16_t)number("the port", colon + 1, 1, 65535));
}

static void add_process(char *text)
{
    char *colon = strchr(text, ':');

    if (!colon || opt.n_processes == MAX_PROCESSES)
        die("--process ROLE:PID, at most %d", MAX_PROCESSES);
    *colon = '\0';
    opt.processes[opt.n_processes++] = (struct process){
        .role = text, .pid = (int)number("a process id", colon + 1, 1, INT32_MAX),
    };
}

static void set_option(const char *name, char *value)
{
    if (strcmp(name, "--api") == 0)
        set_api(value);
    else if (strcmp(name, "--model") == 0)
        opt.model = value;
    else if (strcmp(name, "--worker") == 0 && opt.n_workers < MAX_WORKERS)
        opt.workers[opt.n_workers++] = value;
    else if (strcmp(name, "--process") == 0)
        add_process(value);
    else if (strcmp(name, "--tokens") == 0)
        opt.n_tokens = number(name, value, 1, 1000000);
    else if (strcmp(name, "--streams") == 0)
        opt.n_streams = number(name, value, 1, 100000);
    else if (strcmp(name, "--straight") == 0)
        opt.n_straight = number(name, value, 0, 10000);
    else if (strcmp(name, "--seconds") == 0)
        opt.seconds = number(name, value, 1, 86400);
    else if (strcmp(name, "--threads") == 0)
        opt.n_threads = number(name, value, 1, MAX_THREADS);
    else if (strcmp(name, "--gather-us") == 0)
        opt.gather_us = number(name, value, 0, 1000000);
    else if (strcmp(name, "--opening") == 0)
        opt.n_opening = number(name, value, 1, 10000);
    else
        die("unknown option %s", name);
}

static void make_request(char *out, size_t size, const char *path, const char *more)
{
    char body[600];

    snprintf(body, sizeof body, "{%s\"messages\":[{\"role\":\"user\",\"content\":\"count\"}]}", more);
    snprintf(out, size, "POST %s HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
             "Content-Length: %zu\r\n\r\n%s", path, strlen(body), body);
}

int main(int argc, char **argv)
{
    struct rlimit limit;
    char more[300];

    for (int i = 1; i < argc; i += 2)
        if (i + 1 < argc)
            set_option(argv[i], argv[i + 1]);
        else
            die("%s needs a value", argv[i]);
    if (!opt.model || !opt.api.sin_port || (opt.n_straight && !opt.n_workers))
        die("--api and --model are needed, and a --worker for straight streams");
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    snprintf(more, sizeof more, "\"model\":\"%s\",\"stream\":true,", opt.model);
    make_request(opt.request, sizeof opt.request, "/v1/chat/completions", more);
    make_request(opt.straight_request, sizeof opt.straight_request, "/fastchat/generate", "");
    return run();
}
