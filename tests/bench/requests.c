/* requests.c - the same request again and again, by clients that each wait for their answer.
 *
 *     bench-requests ADDRESS PATH BODY WANT CLIENTS SECONDS
 *
 * ADDRESS is HOST:PORT (numbers) or unix:PATH. The first "@@@@@" of BODY becomes
 * a number of five digits, another one in each request. Each client keeps its
 * connection and sends anew once its answer is whole: status 200, the end of its
 * framing, and WANT somewhere in it; everything else is a fault, after which it
 * connects anew. Time is counted from the first answer behind a second of warming up to the first one behind
 * SECONDS: where all clients get their answers at once, another end would count a whole round of them too many or too few.
 * One thread; it does so little with an answer that it is not what is
 * measured. Prints requests,per_s,p50_ms,p90_ms,p99_ms,faults,cpu_s of this program.
 */
#include "base/buf.h"
#include "base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/times.h>
#include <sys/un.h>
#include <unistd.h>

enum { READ_BYTES = 65536, MAX_CLIENTS = 4096, MAX_SAMPLES = 1 << 22, SILENCE_S = 120 };

struct client {
    int fd;
    uint64_t sent_us;
    struct buf answer;          /* as it came */
    size_t body_at;             /* 0: the head is not whole */
    size_t next_chunk;          /* where its size begins; chunked bodies only */
    size_t length;              /* of the whole answer, once known */
    bool chunked;
};

static struct {
    struct sockaddr_storage at;
    socklen_t at_len;
    struct buf request;
    size_t number;              /* where a number goes; 0: nowhere */
    const char *want;
    unsigned n_clients, seconds;
} opt;

static int epoll_fd;
static float samples_ms[MAX_SAMPLES];
static size_t n_samples;
static uint64_t n_faults, answered_us;      /* the last whole answer */

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "bench-requests: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void ask(struct client *c)
{
    static unsigned number;

    if (opt.number) {
        char digits[6];

        snprintf(digits, sizeof digits, "%05u", 10000 + number++ % 30000);
        memcpy(opt.request.data + opt.number, digits, 5);
    }
    buf_clear(&c->answer);
    c->body_at = c->next_chunk = c->length = 0;
    c->chunked = false;
    c->sent_us = clock_mono_us();
    if (send(c->fd, opt.request.data, opt.request.len, MSG_NOSIGNAL) != (ssize_t)opt.request.len)
        die("send");
}

static void connect_anew(struct client *c)
{
    struct epoll_event ev = { .events = EPOLLIN, .data.ptr = c };
    int one = 1;

    if (c->fd >= 0)
        close(c->fd);
    c->fd = socket(opt.at.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&opt.at, opt.at_len) < 0)
        die("connect");
    if (opt.at.ss_family == AF_INET)
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &ev) < 0)
        die("epoll_ctl");
    ask(c);
}

/* Reads the head once it is whole; -1 when it is not the head of a good answer. */
static int read_head(struct client *c)
{
    char *head = c->answer.data, *end, *length;

    end = memmem(head, c->answer.len, "\r\n\r\n", 4);
    if (!end)
        return 0;
    c->body_at = (size_t)(end + 4 - head);
    if (strncmp(head, "HTTP/1.1 200", 12) != 0)
        return -1;
    *end = '\0';
    length = strcasestr(head, "\ncontent-length:");
    c->chunked = strcasestr(head, "\ntransfer-encoding: chunked") != NULL;
    if (!c->chunked && !length)
        return -1;
    if (!c->chunked)
        c->length = c->body_at + strtoul(length + 16, NULL, 10);
    c->next_chunk = c->body_at;
    *end = '\r';
    return 0;
}

/* Follows the sizes of the chunks that are there; knows the length at the last one. */
static int read_chunks(struct client *c)
{
    while (c->next_chunk < c->answer.len && !c->length) {
        char *at = c->answer.data + c->next_chunk, *end;
        size_t size = strtoul(at, &end, 16);

        if (!memmem(at, c->answer.len - c->next_chunk, "\r\n", 2))
            return 0;
        if (end == at || *end != '\r')
            return -1;
        c->next_chunk = (size_t)(end + 4 - c->answer.data) + size;
        if (size == 0)
            c->length = c->next_chunk;
    }
    return 0;
}

static void take_sample(const struct client *c, uint64_t now)
{
    if (n_samples < MAX_SAMPLES)
        samples_ms[n_samples++] = (float)(now - c->sent_us) / 1000;
}

static void fault(struct client *c)
{
    if (n_faults++ == 0)
        fprintf(stderr, "bench-requests: the first fault: %.*s\n", (int)c->answer.len, buf_str(&c->answer));
    connect_anew(c);
}

static void on_readable(struct client *c, bool counts)
{
    char *room = buf_room(&c->answer, READ_BYTES);
    ssize_t n = recv(c->fd, room, READ_BYTES, 0);

    if (n > 0)
        buf_grew(&c->answer, (size_t)n);
    if (n <= 0 || (!c->body_at && read_head(c) < 0) || (c->body_at && c->chunked && read_chunks(c) < 0) ||
        (c->length && c->answer.len > c->length)) {
        fault(c);
        return;
    }
    if (!c->length || c->answer.len < c->length)
        return;
    if (!memmem(c->answer.data + c->body_at, c->answer.len - c->body_at, opt.want, strlen(opt.want))) {
        fault(c);
        return;
    }
    answered_us = clock_mono_us();
    if (counts)
        take_sample(c, answered_us);
    ask(c);
}

/* Until the first answer behind a time; samples are kept if they count. */
static void play(uint64_t until_us, bool counts)
{
    struct epoll_event events[256];

    while (answered_us < until_us) {
        int n = epoll_wait(epoll_fd, events, 256, SILENCE_S * 1000);

        errno = ETIMEDOUT;
        if (n == 0 || clock_mono_us() > until_us + SILENCE_S * UINT64_C(1000000))
            die("no whole answer for two minutes");
        for (int i = 0; i < n && answered_us < until_us; i++)
            on_readable(events[i].data.ptr, counts);
    }
}

static int by_size(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return x < y ? -1 : x > y;
}

static double quantile(double share)
{
    return n_samples ? (double)samples_ms[(size_t)(share * (double)(n_samples - 1))] : 0;
}

static void parse(char **argv)
{
    struct sockaddr_un *un = (struct sockaddr_un *)&opt.at;
    struct sockaddr_in *in = (struct sockaddr_in *)&opt.at;
    char *colon = strrchr(argv[1], ':');

    if (strncmp(argv[1], "unix:", 5) == 0) {
        un->sun_family = AF_UNIX;
        snprintf(un->sun_path, sizeof un->sun_path, "%s", argv[1] + 5);
        opt.at_len = sizeof *un;
    } else if (colon) {
        *colon = '\0';
        in->sin_family = AF_INET;
        in->sin_port = htons((uint16_t)atoi(colon + 1));
        inet_pton(AF_INET, argv[1], &in->sin_addr);
        opt.at_len = sizeof *in;
    }
    buf_printf(&opt.request,
               "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
               argv[2], strlen(argv[3]), argv[3]);
    if (strstr(buf_str(&opt.request), "@@@@@"))
        opt.number = (size_t)(strstr(buf_str(&opt.request), "@@@@@") - opt.request.data);
    opt.want = argv[4];
    opt.n_clients = (unsigned)atoi(argv[5]);
    opt.seconds = (unsigned)atoi(argv[6]);
    errno = EINVAL;
    if (!opt.at_len || !opt.n_clients || opt.n_clients > MAX_CLIENTS || !opt.seconds)
        die("arguments");
}

int main(int argc, char **argv)
{
    static struct client clients[MAX_CLIENTS];
    struct tms cpu;
    uint64_t start;
    double s;

    if (argc != 7) {
        fprintf(stderr, "usage: bench-requests ADDRESS PATH BODY WANT CLIENTS SECONDS\n");
        return 2;
    }
    parse(argv);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    for (unsigned i = 0; i < opt.n_clients; i++) {
        clients[i].fd = -1;
        connect_anew(&clients[i]);
    }
    play(clock_mono_us() + 1000000, false);             /* connections and caches are warm then */
    start = answered_us;
    play(start + opt.seconds * UINT64_C(1000000), true);
    s = (double)(answered_us - start) / 1e6;
    times(&cpu);
    qsort(samples_ms, n_samples, sizeof samples_ms[0], by_size);
    printf("%zu,%.1f,%.3f,%.3f,%.3f,%llu,%.2f\n", n_samples, (double)n_samples / s, quantile(0.5), quantile(0.9),
           quantile(0.99), (unsigned long long)n_faults, (double)(cpu.tms_utime + cpu.tms_stime) / (double)sysconf(_SC_CLK_TCK));
    return n_faults != 0;
}
