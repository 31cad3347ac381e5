#include "ipc/address.h"

#include "base/cleanup.h"
#include "base/err.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static inline void file_close_cleanup(FILE **f)
{
    if (*f)
        fclose(*f);
}

static inline void dir_close_cleanup(DIR **d)
{
    if (*d)
        closedir(*d);
}

static inline void addrinfo_free_cleanup(struct addrinfo **list)
{
    if (*list)
        freeaddrinfo(*list);
}

/* ---- text ---- */

static int parse_port(const char *text, uint16_t *ret)
{
    unsigned port = 0;

    if (!*text || strlen(text) > 5)
        return -EINVAL;
    for (; *text; text++) {
        if (!isdigit((unsigned char)*text))
            return -EINVAL;
        port = port * 10 + (unsigned)(*text - '0');
    }
    if (port > UINT16_MAX)
        return -EINVAL;
    *ret = (uint16_t)port;
    return 0;
}

static bool is_host_name(const char *host)
{
    size_t len = strlen(host);

    return len && host[0] != '-' && host[0] != '.' &&
           strspn(host, "abcdefghijklmnopqrstuvwxyz0123456789-._") == len;
}

static int parse_unix(const char *path, struct address *a, struct err *err)
{
    if (!*path)
        return err_set(err, -EINVAL, "'unix:' needs a path behind it");
    if (strlen(path) >= sizeof a->path)
        return err_set(err, -EINVAL, "'%s': a Unix socket's path may have %zu bytes", path, sizeof a->path - 1);
    a->is_unix = true;
    strcpy(a->path, path);
    snprintf(a->text, sizeof a->text, "unix:%s", path);
    return 0;
}

static int parse_tcp(const char *text, struct address *a, struct err *err)
{
    bool bracket = text[0] == '[';
    const char *end = bracket ? strchr(text, ']') : strrchr(text, ':');
    const char *host = text + bracket;
    struct in6_addr in6;
    struct in_addr in;

    if (!end || end[bracket] != ':')
        return err_set(err, -EINVAL, "'%s' is no address: write HOST:PORT, [IPV6]:PORT or unix:PATH", text);
    if (parse_port(end + bracket + 1, &a->port) < 0)
        return err_set(err, -EINVAL, "'%s': the port must be a number from 0 to 65535", text);
    if ((size_t)(end - host) >= sizeof a->host)
        return err_set(err, -EINVAL, "'%.40s…': the host is too long", text);
    for (size_t i = 0; i < (size_t)(end - host); i++)
        a->host[i] = (char)tolower((unsigned char)host[i]);

    if (strcmp(a->host, "unix") == 0)
        return err_set(err, -EINVAL, "'%s': write unix:PATH in lower case; a host can not have that name", text);
    if (bracket) {
        if (inet_pton(AF_INET6, a->host, &in6) != 1)
            return err_set(err, -EINVAL, "'%s': '%s' is no IPv6 address", text, a->host);
    } else if (strchr(a->host, ':')) {
        return err_set(err, -EINVAL, "'%s': put an IPv6 address in brackets: [%s]:%u", text, a->host, a->port);
    } else if (*a->host && strspn(a->host, "0123456789.") == strlen(a->host)) {
        if (inet_pton(AF_INET, a->host, &in) != 1)
            return err_set(err, -EINVAL, "'%s': '%s' is no IPv4 address", text, a->host);
    } else if (!is_host_name(a->host)) {
        return err_set(err, -EINVAL, "'%s': '%s' is no host name", text, a->host);
    }
    snprintf(a->text, sizeof a->text, bracket ? "[%s]:%u" : "%s:%u", a->host, a->port);
    return 0;
}

int address_parse(const char *text, struct address *ret, struct err *err)
{
    struct address a = { 0 };
    char clean[sizeof a.text];
    size_t len;
    int r;

    text += strspn(text, " \t");
    len = strlen(text);
    while (len && (text[len - 1] == ' ' || text[len - 1] == '\t'))
        len--;
    if (len == 0)
        return err_set(err, -EINVAL, "the address is empty");
    if (len >= sizeof clean)
        return err_set(err, -EINVAL, "'%.40s…' is too long for an address", text);
    memcpy(clean, text, len);
    clean[len] = '\0';

    r = strncmp(clean, "unix:", 5) == 0 ? parse_unix(clean + 5, &a, err) : parse_tcp(clean, &a, err);
    if (r == 0)
        *ret = a;
    return r;
}

int address_local(int fd, struct address *ret, struct err *err)
{
    union {
        struct sockaddr any;
        struct sockaddr_in in;
        struct sockaddr_in6 in6;
        struct sockaddr_un un;
    } sa = { 0 };
    socklen_t len = sizeof sa;
    char host[INET6_ADDRSTRLEN] = "";
    struct address a = { 0 };

    if (getsockname(fd, &sa.any, &len) < 0)
        return err_errno(err, -errno, "socket %d", fd);
    switch (sa.any.sa_family) {
    case AF_INET:
        inet_ntop(AF_INET, &sa.in.sin_addr, a.host, sizeof a.host);
        a.port = ntohs(sa.in.sin_port);
        snprintf(a.text, sizeof a.text, "%s:%u", a.host, a.port);
        break;
    case AF_INET6:
        inet_ntop(AF_INET6, &sa.in6.sin6_addr, host, sizeof host);
        snprintf(a.host, sizeof a.host, "%s", host);
        a.port = ntohs(sa.in6.sin6_port);
        snprintf(a.text, sizeof a.text, "[%s]:%u", host, a.port);
        break;
    case AF_UNIX:
        a.is_unix = true;
        if (len > offsetof(struct sockaddr_un, sun_path))
            snprintf(a.path, sizeof a.path, "%.*s", (int)(len - offsetof(struct sockaddr_un, sun_path)),
                     sa.un.sun_path);
        snprintf(a.text, sizeof a.text, "unix:%s", a.path);
        break;
    default:
        return err_set(err, -EAFNOSUPPORT, "socket %d: address family %d", fd, sa.any.sa_family);
    }
    *ret = a;
    return 0;
}

/* ---- who holds an address ---- */

/* Inode of the listening TCP socket on the address, or 0. A socket on the
 * wildcard address holds the port for every other. */
static unsigned long tcp_holder(const struct sockaddr *sa)
{
    bool v6 = sa->sa_family == AF_INET6;
    CLEANUP(file_close) FILE *f = fopen(v6 ? "/proc/self/net/tcp6" : "/proc/self/net/tcp", "re");
    unsigned port = ntohs(v6 ? ((const struct sockaddr_in6 *)sa)->sin6_port
                             : ((const struct sockaddr_in *)sa)->sin_port);
    const void *wanted = v6 ? (const void *)&((const struct sockaddr_in6 *)sa)->sin6_addr
                            : (const void *)&((const struct sockaddr_in *)sa)->sin_addr;
    static const uint32_t wildcard[4];
    char line[512];

    while (f && fgets(line, sizeof line, f)) {
        uint32_t host[4] = { 0 };
        unsigned its_port, state;
        unsigned long inode;
        char hex[33] = "";
        size_t size = v6 ? 16 : 4;

        if (sscanf(line, "%*d: %32[0-9A-F]:%x %*[0-9A-F]:%*x %x %*x:%*x %*x:%*x %*x %*u %*u %lu", hex,
                   &its_port, &state, &inode) != 4 || state != 0x0A || its_port != port)
            continue;
        for (size_t i = 0; i < size / 4; i++)
            sscanf(hex + 8 * i, "%8x", &host[i]);
        if (memcmp(host, wanted, size) == 0 || memcmp(host, wildcard, size) == 0 ||
            memcmp(wanted, wildcard, size) == 0)
            return inode;
    }
    return 0;
}

static unsigned long unix_holder(const char *path)
{
    CLEANUP(file_close) FILE *f = fopen("/proc/self/net/unix", "re");
    enum { ACCEPTS = 0x10000 };
    char line[512];

    while (f && fgets(line, sizeof line, f)) {
        unsigned flags;
        unsigned long inode;
        int at = 0;

        line[strcspn(line, "\n")] = '\0';
        if (sscanf(line, "%*x: %*x %*x %x %*x %*x %lu %n", &flags, &inode, &at) == 2 && at &&
            flags & ACCEPTS && strcmp(line + at, path) == 0)
            return inode;
    }
    return 0;
}

static bool holds_inode(const char *pid, unsigned long inode)
{
    char path[280], target[64], wanted[64];
    CLEANUP(dir_close) DIR *fds = NULL;

    snprintf(path, sizeof path, "/proc/%s/fd", pid);
    snprintf(wanted, sizeof wanted, "socket:[%lu]", inode);
    fds = opendir(path);
    for (struct dirent *d; fds && (d = readdir(fds));) {
        ssize_t n = readlinkat(dirfd(fds), d->d_name, target, sizeof target - 1);

        if (n > 0) {
            target[n] = '\0';
            if (strcmp(target, wanted) == 0)
                return true;
        }
    }
    return false;
}

/* "nginx (pid 812)", or "another process" when nobody let us see. */
static void describe_holder(unsigned long inode, char *text, size_t size)
{
    CLEANUP(dir_close) DIR *proc = inode ? opendir("/proc") : NULL;

    snprintf(text, size, "another process");
    for (struct dirent *d; proc && (d = readdir(proc));) {
        CLEANUP(file_close) FILE *f = NULL;
        char path[280], name[32] = "?";

        if (!isdigit((unsigned char)d->d_name[0]) || !holds_inode(d->d_name, inode))
            continue;
        snprintf(path, sizeof path, "/proc/%s/comm", d->d_name);
        f = fopen(path, "re");
        if (f && fgets(name, sizeof name, f))
            name[strcspn(name, "\n")] = '\0';
        snprintf(text, size, "%s (pid %s)", name, d->d_name);
        return;
    }
}

static int in_use(const struct address *a, unsigned long inode, struct err *err)
{
    char holder[64];

    describe_holder(inode, holder, sizeof holder);
    return err_set(err, -EADDRINUSE, "%s is in use by %s", a->text, holder);
}

/* ---- sockets ---- */

static struct sockaddr_un unix_name(const struct address *a)
{
    struct sockaddr_un sa = { .sun_family = AF_UNIX };

    memcpy(sa.sun_path, a->path, sizeof sa.sun_path);
    return sa;
}

static int lookup(const struct address *a, int flags, struct addrinfo **ret, struct err *err)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | flags };
    const char *host = strcmp(a->host, "localhost") == 0 ? "127.0.0.1" : a->host;
    char port[8];
    int r;

    snprintf(port, sizeof port, "%u", a->port);
    r = getaddrinfo(host, port, &hints, ret);
    if (r == 0)
        return 0;
    if (r == EAI_SYSTEM)
        return err_errno(err, -errno, "%s", a->text);
    return err_set(err, r == EAI_MEMORY ? -ENOMEM : -EHOSTUNREACH, "%s: %s", a->text, gai_strerror(r));
}

static int listen_tcp(const struct address *a, int backlog, int *ret, struct err *err)
{
    CLEANUP(addrinfo_free) struct addrinfo *list = NULL;
    CLEANUP(fd_close) int fd = -1;
    const int one = 1;
    int r = lookup(a, AI_PASSIVE, &list, err);

    if (r < 0)
        return r;
    fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_errno(err, -errno, "%s", a->text);
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) < 0 ||
        (list->ai_family == AF_INET6 &&
         setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one) < 0))
        return err_errno(err, -errno, "%s", a->text);
    if (bind(fd, list->ai_addr, list->ai_addrlen) < 0 || listen(fd, backlog) < 0) {
        if (errno == EADDRINUSE)
            return in_use(a, tcp_holder(list->ai_addr), err);
        return err_errno(err, -errno, "%s", a->text);
    }
    *ret = STEAL_FD(fd);
    return 0;
}

/* Removes a socket file that nobody listens on. A file of another kind stays,
 * and so does one whose owner only has a full queue or another socket type. */
static int remove_stale(const struct address *a, struct err *err)
{
    struct sockaddr_un sa = unix_name(a);
    CLEANUP(fd_close) int probe = -1;
    struct stat st;

    if (lstat(a->path, &st) < 0)
        return errno == ENOENT ? 0 : err_errno(err, -errno, "%s", a->text);
    if (!S_ISSOCK(st.st_mode))
        return err_set(err, -EEXIST, "%s: a file that is no socket is in the way", a->text);
    probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (probe < 0)
        return err_errno(err, -errno, "%s", a->text);
    if (connect(probe, (struct sockaddr *)&sa, sizeof sa) == 0 ||
        (errno != ECONNREFUSED && errno != ENOENT))
        return in_use(a, unix_holder(a->path), err);
    if (unlink(a->path) < 0 && errno != ENOENT)
        return err_errno(err, -errno, "%s: cannot replace the stale socket", a->text);
    return 0;
}

/* Nobody can connect before listen(), so mode and group are right by then. The
 * descriptor's own mode is what bind() gives the file, less the umask. */
static int listen_unix(const struct address *a, int backlog, mode_t mode, gid_t group, int *ret,
                       struct err *err)
{
    struct sockaddr_un sa = unix_name(a);
    CLEANUP(fd_close) int fd = -1;
    int r;

    fd = socket(AF_UNIX, (a->seqpacket ? SOCK_SEQPACKET : SOCK_STREAM) | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_errno(err, -errno, "%s", a->text);
    r = remove_stale(a, err);
    if (r < 0)
        return r;
    if (fchmod(fd, mode & 0600) < 0 || bind(fd, (struct sockaddr *)&sa, sizeof sa) < 0) {
        if (errno == EADDRINUSE)
            return in_use(a, unix_holder(a->path), err);
        return err_errno(err, -errno, "%s", a->text);
    }
    if ((group != (gid_t)-1 && lchown(a->path, (uid_t)-1, group) < 0) || chmod(a->path, mode) < 0 ||
        listen(fd, backlog) < 0) {
        r = err_errno(err, -errno, "%s", a->text);
        unlink(a->path);
        return r;
    }
    *ret = STEAL_FD(fd);
    return 0;
}

int address_listen(const struct address *a, int backlog, mode_t mode, gid_t group, int *ret,
                   struct err *err)
{
    return a->is_unix ? listen_unix(a, backlog, mode, group, ret, err) : listen_tcp(a, backlog, ret, err);
}

static int connect_unix(const struct address *a, int *ret, struct err *err)
{
    struct sockaddr_un sa = unix_name(a);
    CLEANUP(fd_close) int fd = socket(AF_UNIX, (a->seqpacket ? SOCK_SEQPACKET : SOCK_STREAM) | SOCK_CLOEXEC, 0);

    if (fd < 0 || connect(fd, (struct sockaddr *)&sa, sizeof sa) < 0)
        return err_errno(err, -errno, "%s", a->text);
    *ret = STEAL_FD(fd);
    return 0;
}

void address_watch(int fd, unsigned silent_ms, unsigned away_ms)
{
    enum { PROBES = 4 };
    const int one = 1, probes = PROBES, idle_s = (int)(silent_ms / 2000), interval_s = idle_s / PROBES;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &away_ms, sizeof away_ms);
}

int address_connect(const struct address *a, int *ret, struct err *err)
{
    CLEANUP(addrinfo_free) struct addrinfo *list = NULL;
    const int one = 1;
    int r;

    if (a->is_unix)
        return connect_unix(a, ret, err);
    r = lookup(a, 0, &list, err);
    if (r < 0)
        return r;
    for (struct addrinfo *i = list; i; i = i->ai_next) {
        CLEANUP(fd_close) int fd = socket(i->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

        if (fd >= 0 && connect(fd, i->ai_addr, i->ai_addrlen) == 0) {
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            *ret = STEAL_FD(fd);
            return 0;
        }
        r = -errno;
    }
    return err_errno(err, r, "%s", a->text);
}
