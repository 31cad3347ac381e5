#include "cli/download.h"

#include "base/err.h"
#include "base/json.h"
#include "cli/hub.h"
#include "cli/progress.h"
#include "cli/term.h"
#include "cli/web.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    READ_BYTES = 1 << 20,
    WRITE_BACK_BYTES = 32 << 20,
    STATE_BYTES = 16 << 10,
    LOCK_LOOK_MS = 200,
    ENOUGH_BYTES = 1 << 20,     /* so much progress makes the tries fresh */
    ONE_ANSWER = 2,
    DAMAGED = 3,
};

/* What is at work in a folder. */
struct part {
    struct download *d;
    int folder, fd;
    const char *name;               /* of the whole file */
    char part[256], state[256];     /* of the part and its state */
    int64_t size;                   /* bytes that are there, and in the digest */
    struct digest *digest;
    char validator[256];            /* of what is there; "": none */
    bool begun;                     /* the answer that is read holds the file's bytes */
    bool resumed;                   /* bytes of an earlier call are in it */
};

static void part_close(struct part *p)
{
    digest_free(p->digest);
    fd_close(p->fd);
    fd_close(p->folder);
}
static void part_close_cleanup(struct part *p) { part_close(p); }

/* ---- reading what is there ---- */

static bool interrupted(int fd)
{
    struct pollfd p = { .fd = fd, .events = POLLIN };

    return poll(&p, 1, 0) > 0 && term_was_interrupted();
}

int download_hash(int fd, const char *verb, const char *label, int interrupt_fd, struct progress *p, struct digest *digest,
                  int64_t upto, struct err *err)
{
    CLEANUP(mem_free) char *bytes = malloc(READ_BYTES);
    int64_t at = 0;

    if (!bytes)
        return err_set(err, -ENOMEM, "no memory");
    progress_begin(p, verb, label, upto, 0);
    while (at < upto) {
        size_t want = upto - at < READ_BYTES ? (size_t)(upto - at) : READ_BYTES;
        ssize_t n = pread(fd, bytes, want, at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            progress_end(p, false);
            return err_errno(err, n < 0 ? -errno : -EIO, "reading %s", label);
        }
        digest_add(digest, bytes, (size_t)n);
        at += n;
        progress_at(p, at);
        if (interrupted(interrupt_fd)) {
            progress_end(p, false);
            return DOWNLOAD_INTERRUPTED;
        }
    }
    progress_end(p, false);
    return 0;
}

/* True when these are the checksums that are wanted. */
static bool is_right(const struct download *d, const char *sha256, const char *blob)
{
    return (!d->sha256[0] || strcmp(d->sha256, sha256) == 0) && (!d->blob[0] || strcmp(d->blob, blob) == 0);
}

bool download_is_there(struct download *d, bool *ret_interrupted)
{
    CLEANUP(digest_free) struct digest *digest = NULL;
    CLEANUP(fd_close) int fd = -1;
    char sha256[SHA256_HEX + 1], blob[SHA1_HEX + 1];
    struct err ignored = { 0 };
    int64_t size = store_size(d->store, d->path);
    int r;

    *ret_interrupted = false;
    if (size < 0 || (d->size >= 0 && size != d->size) || store_read(d->store, d->path, &fd, &ignored) < 0 ||
        digest_new(d->blob[0] ? size : -1, &digest, &ignored) < 0)
        return false;
    r = download_hash(fd, "checking", d->path, d->interrupt_fd, d->progress, digest, size, &ignored);
    *ret_interrupted = r == DOWNLOAD_INTERRUPTED;
    if (r != 0 || digest_end(digest, sha256, blob, &ignored) < 0 || !is_right(d, sha256, blob))
        return false;
    d->size = size;
    strcpy(d->sha256, sha256);
    return true;
}

/* ---- the part and its lock ---- */

/* True when the name still leads to the open file: whoever had the lock before has
 * not renamed it away. */
static bool is_current(const struct part *p)
{
    struct stat own, named;

    return fstat(p->fd, &own) == 0 && fstatat(p->folder, p->part, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           own.st_dev == named.st_dev && own.st_ino == named.st_ino;
}

/* Waits for another process. 0, DOWNLOAD_INTERRUPTED, -errno. */
static int lock(struct part *p, bool *ret_waited, struct err *err)
{
    while (flock(p->fd, LOCK_EX | LOCK_NB) < 0) {
        struct pollfd w = { .fd = p->d->interrupt_fd, .events = POLLIN };

        if (errno == EINTR)
            continue;
        if (errno != EWOULDBLOCK)
            return err_errno(err, -errno, "locking %s", p->part);
        if (!*ret_waited)
            progress_note(p->d->progress, "%s is being fetched by another process; waiting for it", p->d->path);
        *ret_waited = true;
        if (poll(&w, 1, LOCK_LOOK_MS) > 0 && term_was_interrupted())
            return DOWNLOAD_INTERRUPTED;
    }
    return 0;
}

static int open_part(struct part *p, bool *ret_waited, struct err *err)
{
    struct stat st;
    int r;

    do {
        fd_close(p->fd);
        p->fd = openat(p->folder, p->part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
        if (p->fd < 0)
            return err_errno(err, -errno, "%s/%s" STORE_PART, p->d->store->path, p->d->path);
        r = lock(p, ret_waited, err);
        if (r != 0)
            return r;
    } while (!is_current(p));
    if (fstat(p->fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_nlink != 1)
        return err_set(err, -EINVAL, "%s/%s" STORE_PART " is no regular file of its own", p->d->store->path, p->d->path);
    p->size = st.st_size;
    return 0;
}

static int fresh_digest(struct part *p, struct err *err)
{
    digest_free(STEAL(p->digest));
    return digest_new(p->d->blob[0] ? p->d->size : -1, &p->digest, err);
}

/* Nothing is there any more. */
static int start_anew(struct part *p, struct err *err)
{
    if (ftruncate(p->fd, 0) < 0)
        return err_errno(err, -errno, "%s/%s" STORE_PART, p->d->store->path, p->d->path);
    p->size = 0;
    p->resumed = false;
    p->validator[0] = 0;
    return fresh_digest(p, err);
}

/* ---- its state ---- */

static const char *wanted_sum(const struct download *d)
{
    return d->sha256[0] ? d->sha256 : d->blob;
}

static int write_state(struct part *p, struct err *err)
{
    BUF_LOCAL text = BUF_INIT;
    struct json_writer w = json_writer(&text);

    json_open(&w, '{');
    json_kstr(&w, "origin", p->d->origin);
    json_kstr(&w, "checksum", wanted_sum(p->d));
    json_kstr(&w, "validator", p->validator);
    json_close(&w, '}');
    return store_write_text(p->d->store, p->folder, p->state, &text, err);
}

/* True when what is there is of this file; takes its validator. */
static bool read_state(struct part *p)
{
    CLEANUP(json_delete) cJSON *tree = NULL;
    BUF_LOCAL text = BUF_INIT;
    const char *origin = "", *checksum = "", *validator = "";

    if (store_read_text(p->folder, p->state, STATE_BYTES, &text, NULL) < 0 ||
        json_parse(buf_str(&text), text.len, NULL, &tree, NULL) < 0)
        return false;
    json_get_string(tree, "origin", &origin, NULL);
    json_get_string(tree, "checksum", &checksum, NULL);
    json_get_string(tree, "validator", &validator, NULL);
    if (strcmp(checksum, wanted_sum(p->d)) != 0 || (!checksum[0] && strcmp(origin, p->d->origin) != 0))
        return false;
    if (strlen(validator) < sizeof p->validator)
        strcpy(p->validator, validator);
    return checksum[0] || p->validator[0];
}

/* What an earlier call left is read again, or dropped. 0, DOWNLOAD_INTERRUPTED, -errno. */
static int take_up(struct part *p, struct err *err)
{
    int r;

    if (p->size == 0 || !read_state(p) || (p->d->size >= 0 && p->size > p->d->size)) {
        if (p->size > 0)
            progress_note(p->d->progress, "%s: what is there of it is of another file; beginning anew", p->d->path);
        r = start_anew(p, err);
        return r < 0 ? r : write_state(p, err);
    }
    p->resumed = true;
    r = fresh_digest(p, err);
    return r < 0 ? r : download_hash(p->fd, "taking up", p->d->path, p->d->interrupt_fd, p->d->progress, p->digest, p->size, err);
}

/* ---- bytes that come ---- */

/* Errors that mean: there is no room. */
static bool is_full(int code)
{
    return code == -ENOSPC || code == -EDQUOT || code == -EFBIG;
}

static int no_room(const struct part *p, int code, struct err *err)
{
    char have[SIZE_TEXT], left[SIZE_TEXT];

    return err_set(err, -ENOSPC,
                   "%s: no room in %s (%s): %s came and are kept%s%s. Make room and pull again: it goes on from there",
                   p->d->path, p->d->store->path, strerror(-code), size_text(p->size, have),
                   p->d->size >= 0 ? ", missing " : "", p->d->size >= 0 ? size_text(p->d->size - p->size, left) : "");
}

/* Lets the disk begin before the end, so that the end does not wait for gigabytes,
 * and whoever runs beside this gets memory without waiting for them either. */
static void write_back(const struct part *p, ssize_t n)
{
    int64_t before = p->size / WRITE_BACK_BYTES, now = (p->size + n) / WRITE_BACK_BYTES;

    if (now > before)
        sync_file_range(p->fd, before * WRITE_BACK_BYTES, (now - before) * WRITE_BACK_BYTES, SYNC_FILE_RANGE_WRITE);
}

static int on_data(const char *data, size_t len, void *user, struct err *err)
{
    struct part *p = user;

    if (!p->begun)
        return 0;
    if (p->d->size >= 0 && (int64_t)len > p->d->size - p->size)
        return err_set(err, -EPROTO, "%s: more came than the %lld bytes that were announced", p->d->path,
                       (long long)p->d->size);
    while (len > 0) {
        ssize_t n = pwrite(p->fd, data, len, p->size);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && is_full(-errno))
            return no_room(p, -errno, err);
        if (n <= 0)
            return err_errno(err, n < 0 ? -errno : -EIO, "writing %s/%s" STORE_PART, p->d->store->path, p->d->path);
        digest_add(p->digest, data, (size_t)n);
        write_back(p, n);
        p->size += n;
        data += n;
        len -= (size_t)n;
    }
    progress_at(p->d->progress, p->size);
    return 0;
}

static int check_room(const struct part *p, int64_t missing, struct err *err)
{
    int64_t room = store_free_bytes(p->d->store);
    char need[SIZE_TEXT], have[SIZE_TEXT];

    if (room < 0 || missing <= room)
        return 0;
    return err_set(err, -ENOSPC, "%s: no room in %s: %s are missing and %s are free", p->d->path, p->d->store->path,
                   size_text(missing, need), size_text(room, have));
}

static void put_validator(struct part *p, const struct web_answer *a)
{
    bool strong = a->etag[0] == '"';

    snprintf(p->validator, sizeof p->validator, "%s", strong ? a->etag : a->last_modified);
}

/* The headers of a 200 or 206: do they go on where the part ends? Another 2xx has nothing for it. */
static int on_begin(const struct web_answer *a, void *user, struct err *err)
{
    struct part *p = user;
    int64_t total = a->status == 206 ? a->range_total : a->length;
    bool from_start = a->status != 206;
    int r = 0;

    p->begun = a->status == 200 || a->status == 206;
    if (!p->begun)
        return 0;
    if (a->linked_etag[0] && digest_is_hex(a->linked_etag, SHA256_HEX) && p->d->sha256[0] &&
        strcmp(a->linked_etag, p->d->sha256) != 0)
        return err_set(err, -EPROTO, "%s: the hub lists the checksum %.12s… but serves %.12s…", p->d->path, p->d->sha256,
                       a->linked_etag);
    if (a->status == 206 && (a->range_from != p->size || p->size == 0))
        return err_set(err, -EPROTO, "%s: bytes from %lld on came where those from %lld on were asked for", p->d->path,
                       (long long)a->range_from, (long long)p->size);
    if (total >= 0 && p->d->size >= 0 && total != p->d->size)
        return err_set(err, -EPROTO, "%s: the server has %lld bytes, %lld were announced", p->d->path, (long long)total,
                       (long long)p->d->size);
    if (from_start && p->size > 0) {
        progress_note(p->d->progress, "%s: the server sends it from its beginning", p->d->path);
        r = start_anew(p, err);
    }
    if (r == 0 && from_start && !wanted_sum(p->d)[0]) {
        put_validator(p, a);
        r = write_state(p, err);
    }
    if (r == 0 && total >= 0)
        r = check_room(p, total - p->size, err);
    if (r == 0)
        progress_total(p->d->progress, p->d->size >= 0 ? p->d->size : total, p->size);
    return r;
}

/* What another status means. 0: it was dealt with, try again at once. */
static int refused(struct part *p, const struct web_answer *a, struct err *err)
{
    struct hub_refusal *refusal = p->d->refusal;

    if (a->status == 416 && p->size > 0) {
        progress_note(p->d->progress, "%s: what is there is longer than the server's; beginning anew", p->d->path);
        return start_anew(p, err);
    }
    if (refusal && !a->foreign) {
        refusal->status = a->status;
        refusal->code = a->error_code;
        refusal->message = a->error_message;
        return hub_explain(refusal, err);
    }
    return err_set(err, a->status == 404 || a->status == 410 ? -ENOENT : a->status == 401 || a->status == 403 ? -EACCES : -EPROTO,
                   "%.200s: the server answered with status %d%s", p->d->origin, a->status,
                   a->status == 404 ? ", so there is no such file" : "");
}

/* One request. 0: another is needed, ONE_ANSWER: the file ended, others as
 * download_run; -EAGAIN: worth another try. */
static int attempt(struct part *p, struct web_answer *a, struct err *err)
{
    const struct web_request request = {
        .url = p->d->url, .from = p->size, .if_range = wanted_sum(p->d)[0] ? NULL : p->validator,
        .on_begin = on_begin, .on_data = on_data, .user = p,
    };
    int r = web_run(p->d->web, &request, a, err);

    if (r != 0)
        return r;
    if (web_is_passing(a))
        return err_set(err, -EAGAIN, "%s: status %d", p->d->path, a->status);
    if (a->status != 200 && a->status != 206)
        return refused(p, a, err);
    if (p->d->size >= 0 && p->size < p->d->size)
        return err_set(err, -EAGAIN, "%s: the server ended after %lld of %lld bytes", p->d->path, (long long)p->size,
                       (long long)p->d->size);
    return ONE_ANSWER;
}

static int fetch(struct part *p, struct err *err)
{
    unsigned tries = 0;

    while (p->size != p->d->size || p->size == 0) {
        struct web_answer a;
        struct err why = { 0 };
        int64_t before = p->size;
        int r;

        if (p->size == 0 && p->d->size == 0)
            return 0;
        progress_begin(p->d->progress, "fetching", p->d->path, p->d->size, p->size);
        r = attempt(p, &a, &why);
        progress_end(p->d->progress, r == ONE_ANSWER);
        if (r == ONE_ANSWER)
            return 0;
        if (p->size - before >= ENOUGH_BYTES)
            tries = 0;
        if (r == -EAGAIN)
            r = web_wait(p->d->web, &tries, a.retry_after_s, err_text(&why), err);
        else if (r == 0 && ++tries > 3)
            return err_set(err, -EPROTO, "%s: the server's ranges make no sense", p->d->path);
        if (r != 0)
            return r < 0 ? err_set(err, r, "%s", err_text(&why)) : r;
    }
    return 0;
}

/* ---- the end ---- */

/* The part is whole: is it right? 0; DAMAGED: it is not, and holds bytes of an
 * earlier call, so it was emptied for a fresh try; -errno. */
static int check(struct part *p, struct err *err)
{
    char sha256[SHA256_HEX + 1], blob[SHA1_HEX + 1];
    int r = digest_end(p->digest, sha256, blob, err);

    if (r < 0)
        return r;
    if (is_right(p->d, sha256, blob)) {
        strcpy(p->d->sha256, sha256);
        p->d->size = p->size;
        return 0;
    }
    if (p->resumed) {
        progress_note(p->d->progress, "%s: what was there before is damaged; beginning anew", p->d->path);
        r = start_anew(p, err);
        return r < 0 ? r : DAMAGED;
    }
    p->size = 0;
    return err_set(err, -EPROTO, "%s: what came has the checksum %.12s… and should have %.12s…: nothing was kept",
                   p->d->path, p->d->sha256[0] ? sha256 : blob, wanted_sum(p->d));
}

static int publish(struct part *p, struct err *err)
{
    mode_t mode = 0644, mask = umask(0);

    umask(mask);
    if (!p->d->store->shared)
        mode = 0666 & ~mask;
    if (fchmod(p->fd, mode) < 0 || fsync(p->fd) < 0)
        return is_full(-errno) ? no_room(p, -errno, err) : err_errno(err, -errno, "%s/%s" STORE_PART, p->d->store->path, p->d->path);
    if (renameat(p->folder, p->part, p->folder, p->name) < 0)
        return err_errno(err, -errno, "%s/%s", p->d->store->path, p->d->path);
    unlinkat(p->folder, p->state, 0);
    if (fsync(p->folder) < 0)
        return err_errno(err, -errno, "%s", p->d->store->path);
    return 0;
}

/* With the lock held: whoever waits for it finds that the name leads elsewhere. */
static void drop_part(const struct part *p)
{
    unlinkat(p->folder, p->part, 0);
    unlinkat(p->folder, p->state, 0);
}

static int work(struct part *p, struct err *err)
{
    int r = take_up(p, err);

    while (r == 0) {
        r = fetch(p, err);
        if (r == 0)
            r = check(p, err);
        if (r == 0)
            return publish(p, err);
        if (r == DAMAGED)
            r = 0;      /* once: a fresh one is not resumed */
    }
    return r;
}

/* True when the file is there and it is not what it was before. */
static bool has_changed(const struct part *p, const struct stat *before)
{
    struct stat st;

    return fstatat(p->folder, p->name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
           (st.st_ino != before->st_ino || st.st_mtim.tv_sec != before->st_mtim.tv_sec ||
            st.st_mtim.tv_nsec != before->st_mtim.tv_nsec);
}

int download_run(struct download *d, struct err *err)
{
    __attribute__((cleanup(part_close_cleanup))) struct part p = { .d = d, .folder = -1, .fd = -1 };
    struct stat before = { 0 };
    bool waited = false, stop = false;
    int r = store_folder_of(d->store, d->path, true, &p.folder, &p.name, err);

    if (r < 0)
        return r;
    snprintf(p.part, sizeof p.part, "%s" STORE_PART, p.name);
    snprintf(p.state, sizeof p.state, "%s" STORE_STATE, p.name);
    fstatat(p.folder, p.name, &before, AT_SYMLINK_NOFOLLOW);
    r = open_part(&p, &waited, err);
    if (r != 0)
        return r;
    if (waited && p.size == 0 && has_changed(&p, &before) && download_is_there(d, &stop)) {
        drop_part(&p);
        return 0;
    }
    r = stop ? DOWNLOAD_INTERRUPTED : work(&p, err);
    if (r != 0 && p.size == 0)
        drop_part(&p);
    return r;
}
