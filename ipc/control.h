/* control.h - the control channel: small typed frames over SOCK_SEQPACKET.
 *
 * One frame a packet; descriptors ride along with SCM_RIGHTS. The supervisor
 * and a child share a socket pair (the child's end is descriptor 3); `fastchat`
 * speaks the same frames to RUNTIME/control.sock. Whoever reads a frame that is
 * short, long, of another magic or version or with a wrong length gets
 * -EPROTO and drops the peer: nothing after a bad frame can be trusted.
 *
 * Wire     magic u32, version u16, type u16, seq u64, mono_us u64, len u32,
 *          reserved u32 (0), payload[len]; native byte order (one machine)
 * Payload  at most CONTROL_PAYLOAD bytes, JSON where the table says so
 */
#ifndef IPC_CONTROL_H
#define IPC_CONTROL_H

#include <stddef.h>
#include <stdint.h>

struct err;

enum { CONTROL_VERSION = 1, CONTROL_PAYLOAD = 65536, CONTROL_FD = 3, CONTROL_FDS = 8 };
enum { CONTROL_BUSY_MAX_MS = 3600000 };         /* the longest silence that a heartbeat announces */

enum control_type {
    /* child to supervisor */
    CONTROL_HELLO = 1,      /* {"pid","version"} first frame of a child */
    CONTROL_STATE = 2,      /* {"state":"loading|ready|draining|failed","text":…} */
    CONTROL_HEARTBEAT = 3,  /* {} or {"busy_ms":N}: no beat is due for N ms from now; with
                             * statistics of the child for `fastchat status`, see docs/wire.md */
    CONTROL_WANT = 4,       /* {"model"} a request waits for a model that is not loaded (api) */
    CONTROL_RELOADED = 5,   /* {} the settings of the last RELOAD are in use, or {"error":…} */
    CONTROL_WEIGHTS_MADE = 6,   /* one fd: a sealed memfd with what the worker packed, for the next process of its model */
    /* supervisor to child */
    CONTROL_SETTINGS = 16,  /* one fd: a sealed memfd with the settings as JSON */
    CONTROL_LISTEN = 17,    /* {"name"} and one fd: a listening socket */
    CONTROL_START = 18,     /* all settings and sockets are there */
    CONTROL_DRAIN = 19,     /* {"limit_ms","replaced"} finish what runs, take nothing new, exit 0;
                             * replaced: another process goes on in this one's place */
    CONTROL_STOP = 20,      /* exit 0 now */
    CONTROL_MODELS = 21,    /* one fd: memfd, the state of all models (docs/wire.md) */
    CONTROL_RELOAD = 22,    /* one fd: memfd with new settings */
    CONTROL_WEIGHTS = 23,   /* one fd: what a process of the same model packed; before START */
    /* command line to supervisor and back */
    CONTROL_STATUS = 32,    /* {} */
    CONTROL_REPLY = 33,     /* one fd: memfd with the answer as JSON */
    CONTROL_ERROR = 34,     /* {"message"} */
    CONTROL_COMMAND = 35,   /* {"command", …} answered like STATUS, when it is done */
};

struct control_frame {
    uint16_t type;
    uint64_t seq, mono_us;
    size_t len;
    int fds[CONTROL_FDS];       /* owned by the reader; -1 where there is none */
    size_t n_fds;
    char payload[CONTROL_PAYLOAD + 1];  /* NUL behind len */
};

enum { CONTROL_EOF = 1, CONTROL_AGAIN = 2 };

/* Sends one frame without waiting. 0; CONTROL_AGAIN when the peer's queue is
 * full; CONTROL_EOF when the peer is gone; -errno. The fds stay the caller's. */
int control_send(int sock, enum control_type type, const char *payload, size_t len,
                 const int *fds, size_t n_fds);
int control_send_json(int sock, enum control_type type, const char *json);
/* json in a sealed memfd of its own, for what may be longer than a frame. */
int control_send_memfd(int sock, enum control_type type, const char *json, size_t len,
                       struct err *err);

/* The same sealed memfd, for another way. */
int control_make_memfd(const char *json, size_t len, int *ret, struct err *err);

/* Receives one frame without waiting. 0; CONTROL_AGAIN; CONTROL_EOF; -EPROTO
 * with a sentence for a bad frame; -errno. f->fds are the caller's to close. */
int control_recv(int sock, struct control_frame *f, struct err *err);
void control_close_fds(struct control_frame *f);

/* The whole text of a memfd that a frame brought: a NUL-ended copy to free();
 * ret_len may be NULL.
 * -EINVAL when it is no regular memory file, is not sealed against change or
 * is over 64 MB. */
int control_read_memfd(int fd, char **ret, size_t *ret_len, struct err *err);

#endif
