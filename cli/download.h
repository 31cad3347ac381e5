/* download.h - one file from a server to a folder, whole and right or not at all.
 *
 * Bytes go to NAME.part, with NAME.part.json beside it that says of what it is a
 * part. An interruption leaves both, and the next call goes on behind them. The
 * checksum runs over all bytes, also those of earlier calls, so that a power cut or
 * a server that changed its mind is seen; then the part, synced, is renamed.
 * Only one process at a time works on a part: it holds a lock on it, others wait
 * and find the work done.
 *
 * A file with a known checksum is asked for from where its part ends. One without
 * is so only if the server's validator (a strong ETag, else Last-Modified) is known,
 * and with If-Range, so that a file that changed comes whole.
 */
#ifndef CLI_DOWNLOAD_H
#define CLI_DOWNLOAD_H

#include "cli/digest.h"
#include "cli/model_store.h"

#include <stdbool.h>
#include <stdint.h>

struct err;
struct hub_refusal;
struct progress;
struct web;

struct download {
    struct web *web;
    struct progress *progress;
    const struct store *store;
    const char *path;            /* in the store */
    const char *url;
    const char *origin;          /* what the state calls it: URLs are signed and long */
    int interrupt_fd;
    int64_t size;                /* -1: not known */
    char sha256[SHA256_HEX + 1]; /* "": not known; filled with what it has */
    char blob[SHA1_HEX + 1];     /* "": not known */
    struct hub_refusal *refusal; /* how a refusal is explained; NULL: of a plain server */
};

enum { DOWNLOAD_INTERRUPTED = 1 };

/* 0: the file is there; size and sha256 are filled. DOWNLOAD_INTERRUPTED. -errno
 * with a sentence; -ENOSPC also names what is missing. */
int download_run(struct download *d, struct err *err);

/* True when the file is there and is what d says, so far as d knows a size and a
 * checksum; fills both. Reads all of it; *ret_interrupted: not to the end. */
bool download_is_there(struct download *d, bool *ret_interrupted);

/* Puts the first `upto` bytes of a file into a checksum, with progress under `verb`.
 * 0, DOWNLOAD_INTERRUPTED, -errno. */
int download_hash(int fd, const char *verb, const char *label, int interrupt_fd, struct progress *p, struct digest *digest,
                  int64_t upto, struct err *err);

#endif
