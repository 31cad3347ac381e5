/* address.h - socket addresses as people write them.
 *
 *     127.0.0.1:8000   [::1]:8000   localhost:8000   unix:/run/fastchat/api.sock
 *
 * Host names are looked up when the address is used; "localhost" means
 * 127.0.0.1 here, never ::1 alone.
 */
#ifndef IPC_ADDRESS_H
#define IPC_ADDRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

struct err;

struct address {
    char text[160];             /* as written, cleaned */
    bool is_unix;
    char path[108];             /* unix */
    char host[128];             /* tcp, without brackets */
    uint16_t port;
    bool seqpacket;             /* unix: SOCK_SEQPACKET, not a stream; for the caller to set */
};

/* 0 or -EINVAL with what is wrong with it. */
int address_parse(const char *text, struct address *ret, struct err *err);

/* A bound, listening, non-blocking, close-on-exec socket. For a Unix address a
 * stale socket file (nobody accepts) is replaced; `mode` and `group` (gid or
 * (gid_t)-1) are applied before anybody can connect. -EADDRINUSE with a
 * sentence that names the holder (pid and command) where it can be found out. */
int address_listen(const struct address *a, int backlog, mode_t mode, gid_t group, int *ret,
                   struct err *err);

/* For a TCP socket, listening ones hand it on: bytes go at once, and the
 * connection ends once the other host has been out of reach for about that long,
 * whether it is silent or bytes are on their way. (Probes find a host that
 * vanished under a silent stream; while bytes are on their way there are none,
 * and the kernel would go on sending for a quarter of an hour.) On a Unix socket
 * nothing happens. */
void address_watch(int fd, unsigned silent_ms, unsigned away_ms);

/* A blocking connected socket, or -errno with a sentence. */
int address_connect(const struct address *a, int *ret, struct err *err);

/* The address that a socket is bound to: the port that 0 became, or which of
 * several inherited sockets this is. */
int address_local(int fd, struct address *ret, struct err *err);

#endif
